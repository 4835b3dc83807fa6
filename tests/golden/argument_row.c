static inline long long hyad_imod(long long a, long long b) { /* with b's sign; 0 where b is 0, as NumPy */
    if (b == 0 || b == -1) return 0;
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}

/* argument_row
 * arrays, row-major: m[n][m1] */
void argument_row(const double *restrict m, long long k, long long n, long long m1,
    long long *restrict out0, double *restrict out1)
{
    long long s = k;
    double t = 0.0;
    for (long long i = 0; i < 5; i++) {
        const long long s1 = s;
        s = hyad_imod(s + 1, n);
        t += m[s1*m1] + m[s1*m1 + 1];
    }
    *out0 = s;
    *out1 = t;
}
