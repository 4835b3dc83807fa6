#include <string.h>

/* maybe_added
 * arrays, row-major: v[n], out[n] */
void maybe_added(const double *restrict v, long long n, double *restrict out)
{
    memset(out, 0, (size_t)n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        const double t = v[i];
        if (0.0 < t) {
            out[i] += t*t;
        }
    }
}
