/* The log posterior of a Gaussian mixture and its gradient by alphas, means and icf, as they are usually written: Q_k has
   exp(q) on its diagonal and what stands below it column by column; the work is that of the textbook's derivation. */
#include <math.h>

static double log_sum_exp(long long n, const double *v)
{
    double top = v[0], sum = 0;
    for (long long i = 1; i < n; i++)
        top = v[i] > top ? v[i] : top;
    for (long long i = 0; i < n; i++)
        sum += exp(v[i] - top);
    return top + log(sum);
}

static double constant(long long d, double gamma, double m)
{
    const double f = d + m + 1, pi = 3.141592653589793;
    double g = 0.25 * d * (d - 1) * log(pi);
    for (long long j = 0; j < d; j++)
        g += lgamma(0.5 * f - 0.5 * j);
    return f * d * (log(gamma) - 0.5 * log(2)) - g;
}

/* y = Q v */
static void lower_times(long long d, const double *restrict diagonal, const double *restrict below,
                        const double *restrict v, double *restrict y)
{
    for (long long i = 0; i < d; i++)
        y[i] = diagonal[i] * v[i];
    for (long long c = 0; c < d; c++)
        for (long long r = c + 1; r < d; r++)
            y[r] += *below++ * v[c];
}

double gmm(long long d, long long k, long long n, const double *restrict alphas, const double *restrict means,
           const double *restrict icf, const double *restrict x, double gamma, double m, double *restrict work)
{
    const long long p = d * (d + 1) / 2;
    double *diagonal = work, *logs = diagonal + k * d, *terms = logs + k, *v = terms + k, *y = v + d;
    double likelihood = 0, prior = 0;
    for (long long j = 0; j < k; j++) {
        double squares = 0;
        logs[j] = 0;
        for (long long i = 0; i < d; i++) {
            const double e = diagonal[j * d + i] = exp(icf[j * p + i]);
            logs[j] += icf[j * p + i];
            squares += e * e;
        }
        for (long long i = d; i < p; i++)
            squares += icf[j * p + i] * icf[j * p + i];
        prior += 0.5 * gamma * gamma * squares - m * logs[j];
    }
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j < k; j++) {
            double squares = 0;
            for (long long a = 0; a < d; a++)
                v[a] = x[i * d + a] - means[j * d + a];
            lower_times(d, diagonal + j * d, icf + j * p + d, v, y);
            for (long long a = 0; a < d; a++)
                squares += y[a] * y[a];
            terms[j] = alphas[j] + logs[j] - 0.5 * squares;
        }
        likelihood += log_sum_exp(k, terms);
    }
    return -0.5 * n * d * log(2 * 3.141592653589793) + likelihood - n * log_sum_exp(k, alphas) + prior
           - k * constant(d, gamma, m);
}

void gmm_grad(long long d, long long k, long long n, const double *restrict alphas, const double *restrict means,
              const double *restrict icf, const double *restrict x, double gamma, double m,
              double *restrict g_alphas, double *restrict g_means, double *restrict g_icf, double *restrict work)
{
    const long long p = d * (d + 1) / 2;
    double *diagonal = work, *logs = diagonal + k * d, *terms = logs + k, *v = terms + k, *y = v + k * d;
    double sum = 0, top = alphas[0];
    for (long long j = 1; j < k; j++)
        top = alphas[j] > top ? alphas[j] : top;
    for (long long j = 0; j < k; j++)
        sum += g_alphas[j] = exp(alphas[j] - top);
    for (long long j = 0; j < k; j++) {
        g_alphas[j] *= -n / sum;
        logs[j] = 0;
        for (long long a = 0; a < d; a++) {
            const double e = diagonal[j * d + a] = exp(icf[j * p + a]);
            logs[j] += icf[j * p + a];
            g_means[j * d + a] = 0;
            g_icf[j * p + a] = gamma * gamma * e * e - m;
        }
        for (long long a = d; a < p; a++)
            g_icf[j * p + a] = gamma * gamma * icf[j * p + a];
    }
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j < k; j++) {
            double *restrict vj = v + j * d, *restrict yj = y + j * d, squares = 0;
            for (long long a = 0; a < d; a++)
                vj[a] = x[i * d + a] - means[j * d + a];
            lower_times(d, diagonal + j * d, icf + j * p + d, vj, yj);
            for (long long a = 0; a < d; a++)
                squares += yj[a] * yj[a];
            terms[j] = alphas[j] + logs[j] - 0.5 * squares;
        }
        double most = terms[0], total = 0;
        for (long long j = 1; j < k; j++)
            most = terms[j] > most ? terms[j] : most;
        for (long long j = 0; j < k; j++)
            total += terms[j] = exp(terms[j] - most);
        for (long long j = 0; j < k; j++) {
            const double w = terms[j] / total, *restrict vj = v + j * d, *restrict yj = y + j * d;
            const double *below = icf + j * p + d;
            double *restrict gq = g_icf + j * p, *gl = gq + d, *restrict gm = g_means + j * d;
            g_alphas[j] += w;
            for (long long a = 0; a < d; a++) {
                gq[a] += w - w * yj[a] * diagonal[j * d + a] * vj[a];
                gm[a] += w * diagonal[j * d + a] * yj[a];
            }
            for (long long c = 0; c < d; c++)
                for (long long r = c + 1; r < d; r++) {
                    *gl++ -= w * yj[r] * vj[c];
                    gm[c] += w * *below++ * yj[r];
                }
        }
    }
}
