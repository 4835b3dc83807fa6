/* The loss of an LSTM with diagonal weights over one-hot symbols, and its gradient: backpropagation through time. */
#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double log_sum_exp(long long n, const double *v)
{
    double top = v[0], sum = 0;
    for (long long i = 1; i < n; i++)
        top = v[i] > top ? v[i] : top;
    for (long long i = 0; i < n; i++)
        sum += exp(v[i] - top);
    return top + log(sum);
}

double lstm(long long l, long long b, long long n, const double *restrict weight, const double *restrict bias,
            const double *restrict in_scale, const double *restrict out_scale, const double *restrict out_bias,
            const double *restrict hidden0, const double *restrict cell0, const double *restrict text,
            double *restrict work)
{
    double *h = work, *c = h + l * b, *x = c + l * b, *y = x + b, loss = 0;
    for (long long i = 0; i < l * b; i++) {
        h[i] = hidden0[i];
        c[i] = cell0[i];
    }
    for (long long t = 0; t + 1 < n; t++) {
        for (long long j = 0; j < b; j++)
            x[j] = text[t * b + j] * in_scale[j];
        for (long long i = 0; i < l; i++) {
            const double *w = weight + 4 * i * b, *a = bias + 4 * i * b;
            double *hi = h + i * b, *ci = c + i * b;
            for (long long j = 0; j < b; j++) {
                const double forget = sigmoid(w[j] * x[j] + a[j]);
                const double enter = sigmoid(w[b + j] * hi[j] + a[b + j]);
                const double leave = sigmoid(w[2 * b + j] * x[j] + a[2 * b + j]);
                const double change = tanh(w[3 * b + j] * hi[j] + a[3 * b + j]);
                ci[j] = ci[j] * forget + enter * change;
                x[j] = hi[j] = leave * tanh(ci[j]);
            }
        }
        for (long long j = 0; j < b; j++)
            y[j] = x[j] * out_scale[j] + out_bias[j];
        const double total = log_sum_exp(b, y);
        for (long long j = 0; j < b; j++)
            loss += text[(t + 1) * b + j] * (y[j] - total);
    }
    return -loss / ((n - 1) * b);
}

void lstm_grad(long long l, long long b, long long n, const double *restrict weight, const double *restrict bias,
               const double *restrict in_scale, const double *restrict out_scale, const double *restrict out_bias,
               const double *restrict hidden0, const double *restrict cell0, const double *restrict text,
               double *restrict g_weight, double *restrict g_bias, double *restrict g_in, double *restrict g_scale,
               double *restrict g_out, double *restrict work)
{
    /* of each step and layer: x, forget, enter, leave, change, tanh(c), c and h before */
    const long long lb = l * b, row = 8 * lb;
    double *h = work, *c = h + lb, *hb = c + lb, *cb = hb + lb, *x = cb + lb, *y = x + b, *saved = y + b;
    double *ys = saved + (n - 1) * row, *last = ys + (n - 1) * b;
    const double scale = -1.0 / ((n - 1) * b);
    for (long long i = 0; i < 4 * lb; i++)
        g_weight[i] = g_bias[i] = 0;
    for (long long j = 0; j < b; j++)
        g_in[j] = g_scale[j] = g_out[j] = 0;
    for (long long i = 0; i < lb; i++) {
        h[i] = hidden0[i];
        c[i] = cell0[i];
        hb[i] = cb[i] = 0;
    }
    for (long long t = 0; t + 1 < n; t++) {
        for (long long j = 0; j < b; j++)
            x[j] = text[t * b + j] * in_scale[j];
        for (long long i = 0; i < l; i++) {
            const double *w = weight + 4 * i * b, *a = bias + 4 * i * b;
            double *hi = h + i * b, *ci = c + i * b, *s = saved + t * row + i * 8 * b;
            for (long long j = 0; j < b; j++) {
                s[j] = x[j];
                s[6 * b + j] = ci[j];
                s[7 * b + j] = hi[j];
                const double forget = s[b + j] = sigmoid(w[j] * x[j] + a[j]);
                const double enter = s[2 * b + j] = sigmoid(w[b + j] * hi[j] + a[b + j]);
                const double leave = s[3 * b + j] = sigmoid(w[2 * b + j] * x[j] + a[2 * b + j]);
                const double change = s[4 * b + j] = tanh(w[3 * b + j] * hi[j] + a[3 * b + j]);
                ci[j] = ci[j] * forget + enter * change;
                const double tc = s[5 * b + j] = tanh(ci[j]);
                x[j] = hi[j] = leave * tc;
            }
        }
        double top = -INFINITY, total = 0, weights = 0;
        for (long long j = 0; j < b; j++) {
            last[t * b + j] = x[j];
            y[j] = x[j] * out_scale[j] + out_bias[j];
            top = y[j] > top ? y[j] : top;
        }
        for (long long j = 0; j < b; j++) {
            total += y[j] = exp(y[j] - top);
            weights += text[(t + 1) * b + j];
        }
        for (long long j = 0; j < b; j++)
            ys[t * b + j] = scale * (text[(t + 1) * b + j] - weights * y[j] / total);
    }
    for (long long t = n - 2; t >= 0; t--) {
        double *xb = x;
        for (long long j = 0; j < b; j++) {
            const double g = ys[t * b + j];
            g_scale[j] += g * last[t * b + j];
            g_out[j] += g;
            xb[j] = g * out_scale[j];
        }
        for (long long i = l - 1; i >= 0; i--) {
            const double *w = weight + 4 * i * b, *s = saved + t * row + i * 8 * b;
            double *gw = g_weight + 4 * i * b, *gb = g_bias + 4 * i * b, *hi = hb + i * b, *ci = cb + i * b;
            for (long long j = 0; j < b; j++) {
                const double in = s[j], forget = s[b + j], enter = s[2 * b + j], leave = s[3 * b + j];
                const double change = s[4 * b + j], tc = s[5 * b + j], c0 = s[6 * b + j], h0 = s[7 * b + j];
                const double g = hi[j] + xb[j], dc = ci[j] + g * leave * (1 - tc * tc);
                const double df = dc * c0 * forget * (1 - forget), de = dc * change * enter * (1 - enter);
                const double dl = g * tc * leave * (1 - leave), dg = dc * enter * (1 - change * change);
                gw[j] += df * in;
                gw[b + j] += de * h0;
                gw[2 * b + j] += dl * in;
                gw[3 * b + j] += dg * h0;
                gb[j] += df;
                gb[b + j] += de;
                gb[2 * b + j] += dl;
                gb[3 * b + j] += dg;
                xb[j] = df * w[j] + dl * w[2 * b + j];
                hi[j] = de * w[b + j] + dg * w[3 * b + j];
                ci[j] = dc * forget;
            }
        }
        for (long long j = 0; j < b; j++)
            g_in[j] += xb[j] * text[t * b + j];
    }
}
