/* Kepler's equation by hand; the derivative that of the iteration, as a differentiator has it, not of its limit. */
#include <math.h>

double kepler(double m, double e)
{
    double x = m, step = 1;
    while (fabs(step) > 1e-10) {
        step = (x - e*sin(x) - m)/(1 - e*cos(x));
        x -= step;
    }
    return x;
}

void kepler_grad(double m, double e, double *g)
{
    double s[64], c[64], steps[64], x = m, step = 1;
    int n = 0;
    for (; fabs(step) > 1e-10; n++) {
        s[n] = sin(x);
        c[n] = cos(x);
        steps[n] = step = (x - e*s[n] - m)/(1 - e*c[n]);
        x -= step;
    }
    double bar = 1, m_bar = 0, e_bar = 0;
    while (n-- > 0) {
        const double over = bar/(1 - e*c[n]);
        m_bar += over;
        e_bar += over*(s[n] - steps[n]*c[n]);
        bar += over*(steps[n]*e*s[n] - (1 - e*c[n]));
    }
    g[0] = m_bar + bar;
    g[1] = e_bar;
}
