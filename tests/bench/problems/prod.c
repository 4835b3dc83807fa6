/* Speelpenning's product and its gradient by hand: prefix products forwards, suffix products backwards. */
void prod_grad(const double *restrict x, long long n, double *restrict value, double *restrict g)
{
    double left = 1, right = 1;
    for (long long i = 0; i < n; i++) {
        g[i] = left;
        left *= x[i];
    }
    *value = left;
    for (long long i = n - 1; i >= 0; i--) {
        g[i] *= right;
        right *= x[i];
    }
}
