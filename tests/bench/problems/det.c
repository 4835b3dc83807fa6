/* The determinant by expansion along minors, and its gradient: each entry's cofactor, expanded too. The minors' rows
   and columns are the entries of two lists. */

static double minor(long long n, const double *a, long long m, long long row, const long long *columns)
{
    if (m == 1)
        return a[row * n + columns[0]];
    double sum = 0;
    long long rest[16];
    for (long long j = 0; j < m; j++) {
        for (long long c = 0, k = 0; c < m; c++)
            if (c != j)
                rest[k++] = columns[c];
        const double term = a[row * n + columns[j]] * minor(n, a, m - 1, row + 1, rest);
        sum = j % 2 ? sum - term : sum + term;
    }
    return sum;
}

double det(long long n, const double *restrict a)
{
    long long columns[16];
    for (long long j = 0; j < n; j++)
        columns[j] = j;
    return minor(n, a, n, 0, columns);
}

void det_grad(long long n, const double *restrict a, double *restrict g, double *restrict work)
{
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) {
            double *m = work;
            for (long long r = 0; r < n; r++)
                for (long long c = 0; c < n; c++)
                    if (r != i && c != j)
                        *m++ = a[r * n + c];
            const double cofactor = n == 1 ? 1 : det(n - 1, work);
            g[i * n + j] = (i + j) % 2 ? -cofactor : cofactor;
        }
}
