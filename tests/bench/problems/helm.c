/* Hessian of the Helmholtz energy by hand. With s = b.x, t = 1 - s, S = A + A^T, q = x.A x and
   phi(s) = log((1 + (1+sqrt 2) s) / (1 + (1-sqrt 2) s)) / (sqrt(8) s), f = sum x_i log(x_i / t) - q phi, so
   H = diag(1/x) - phi S + b u^T + u b^T,  u = 1/t + (sum(x)/t^2 - q phi'')/2 b - phi' S x. */
#include <math.h>

void helm_hess(const double *restrict x, const double *restrict a, const double *restrict b, long long n,
               double *restrict H)
{
    double u[n], s = 0, sum = 0, q = 0;
    for (long long i = 0; i < n; i++) {
        s += b[i] * x[i];
        sum += x[i];
        u[i] = 0;
    }
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j <= i; j++)
            H[i * n + j] = H[j * n + i] = a[i * n + j] + a[j * n + i];
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++)
            u[j] += H[i * n + j] * x[i]; /* by rows of the symmetric S: the sum over i vectorises */
    for (long long i = 0; i < n; i++)
        q += u[i] * x[i] / 2;
    const double r2 = sqrt(2), up = 1 / (1 + (1 + r2) * s), dn = 1 / (1 + (1 - r2) * s), is = 1 / s, it = 1 / (1 - s);
    const double k = 1 / (2 * r2), l1 = up * dn, l2 = -l1 * ((1 + r2) * up + (1 - r2) * dn); /* (k log)', (k log)'' */
    const double phi = k * log(dn / up) * is, phi1 = (l1 - phi) * is, phi2 = (l2 - 2 * phi1) * is;
    const double half = (sum * it * it - q * phi2) / 2;
    for (long long i = 0; i < n; i++)
        u[i] = it + half * b[i] - phi1 * u[i];
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j < n; j++)
            H[i * n + j] = b[i] * u[j] + u[i] * b[j] - phi * H[i * n + j];
        H[i * n + i] += 1 / x[i];
    }
}
