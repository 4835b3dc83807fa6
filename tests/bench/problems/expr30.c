/* Gradient of the thirty-operation expression by hand: one sweep forwards, one back, every value used again. */
#include <math.h>

void expr30_grad(double x, double y, double z, double w, double *restrict out)
{
    const double a = x * y, b = a + z, c = sin(b), cb = cos(b), d = c * w, e = exp(-0.5 * d);
    const double ir = 1 / (1 + z * z), f = a * ir, g = sqrt(x * x + y * y), ige = 1 / (g + e), h = log(g + e);
    const double i = f - h, k = cos(x - w), sk = sin(x - w), m = tanh(i * c + k * e), ig = 1 / (g + 2);
    const double n = m * ig, p = n * b - d * w;

    const double p_bar = 2 * p, n_bar = p_bar * b;
    const double l_bar = n_bar * ig * (1 - m * m), i_bar = l_bar * c;
    const double h_bar = 1 - i_bar, e_bar = l_bar * k + h_bar * ige;
    const double g_bar = h_bar * ige - n_bar * n * ig;
    const double d_bar = -p_bar * w - 0.5 * e * e_bar;
    const double b_bar = p_bar * n + cb * (l_bar * i + d_bar * w);
    const double a_bar = b_bar + i_bar * ir, q_bar = l_bar * e * -sk, g_scaled = g_bar / g;
    out[0] = a_bar * y + g_scaled * x + q_bar;
    out[1] = a_bar * x + g_scaled * y;
    out[2] = b_bar - 2 * z * i_bar * f * ir;
    out[3] = d_bar * c - p_bar * d - q_bar;
}
