/* Least squares of a polynomial against the sign function, and its gradient by the coefficients. */

static double sign(double t)
{
    return (t > 0) - (t < 0);
}

double llsq(long long m, long long n, const double *restrict x)
{
    double sum = 0;
    for (long long i = 0; i < n; i++) {
        const double t = 2.0 * i / (n > 1 ? n - 1 : 1) - 1;
        double value = 0, power = 1;
        for (long long j = 0; j < m; j++) {
            value += x[j] * power;
            power *= t;
        }
        const double r = sign(t) - value;
        sum += r * r;
    }
    return 0.5 * sum;
}

void llsq_grad(long long m, long long n, const double *restrict x, double *restrict g)
{
    for (long long j = 0; j < m; j++)
        g[j] = 0;
    for (long long i = 0; i < n; i++) {
        const double t = 2.0 * i / (n > 1 ? n - 1 : 1) - 1;
        double value = 0, power = 1;
        for (long long j = 0; j < m; j++) {
            value += x[j] * power;
            power *= t;
        }
        const double r = value - sign(t);
        power = 1;
        for (long long j = 0; j < m; j++) {
            g[j] += r * power;
            power *= t;
        }
    }
}
