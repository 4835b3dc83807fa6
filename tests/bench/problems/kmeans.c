/* The sum of the squared distances of points to their nearest centres; its gradient and the diagonal of its Hessian by the
   centres. */

double kmeans(long long k, long long n, long long d, const double *restrict centres, const double *restrict points)
{
    double sum = 0;
    for (long long i = 0; i < n; i++) {
        double best = 0;
        for (long long j = 0; j < k; j++) {
            double s = 0;
            for (long long a = 0; a < d; a++) {
                const double v = centres[j * d + a] - points[i * d + a];
                s += v * v;
            }
            if (j == 0 || s < best)
                best = s;
        }
        sum += best;
    }
    return sum;
}

static long long nearest(long long k, long long d, const double *restrict centres, const double *restrict p)
{
    double best = 0;
    long long at = 0;
    for (long long j = 0; j < k; j++) {
        double s = 0;
        for (long long a = 0; a < d; a++) {
            const double v = centres[j * d + a] - p[a];
            s += v * v;
        }
        if (j == 0 || s < best) {
            best = s;
            at = j;
        }
    }
    return at;
}

void kmeans_grad(long long k, long long n, long long d, const double *restrict centres, const double *restrict points,
                 double *restrict g)
{
    for (long long j = 0; j < k * d; j++)
        g[j] = 0;
    for (long long i = 0; i < n; i++) {
        const long long at = nearest(k, d, centres, points + i * d);
        for (long long a = 0; a < d; a++)
            g[at * d + a] += 2 * (centres[at * d + a] - points[i * d + a]);
    }
}

void kmeans_diagonal(long long k, long long n, long long d, const double *restrict centres,
                     const double *restrict points, double *restrict h)
{
    for (long long j = 0; j < k * d; j++)
        h[j] = 0;
    for (long long i = 0; i < n; i++) {
        const long long at = nearest(k, d, centres, points + i * d);
        for (long long a = 0; a < d; a++)
            h[at * d + a] += 2;
    }
}
