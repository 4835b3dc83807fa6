/* The logarithm of a sum of exponentials, and its gradient. */
#include <math.h>

double lse(long long n, const double *restrict x)
{
    double top = x[0], sum = 0;
    for (long long i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (long long i = 0; i < n; i++)
        sum += exp(x[i] - top);
    return top + log(sum);
}

void lse_grad(long long n, const double *restrict x, double *restrict g)
{
    double top = x[0], sum = 0;
    for (long long i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (long long i = 0; i < n; i++)
        g[i] = exp(x[i] - top);
    for (long long i = 0; i < n; i++)
        sum += g[i];
    const double scale = 1 / sum;
    for (long long i = 0; i < n; i++)
        g[i] *= scale;
}
