/* Rosenbrock's Hessian by hand: tridiagonal in a dense n x n matrix. */
#include <string.h>

void rosen_hess(const double *restrict x, long long n, double *restrict H)
{
    memset(H, 0, (size_t)(n * n) * sizeof *H);
    for (long long i = 0; i + 1 < n; i++) {
        const double off = -400 * x[i];
        H[i * n + i] += 1200 * x[i] * x[i] - 400 * x[i + 1] + 2;
        H[i * n + i + 1] = off;
        H[(i + 1) * n + i] = off;
        H[(i + 1) * n + i + 1] = 200;
    }
}
