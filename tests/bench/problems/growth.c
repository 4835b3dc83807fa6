/* Logistic growth by hand: y at each step is put down, everything else computed again. */
#include <math.h>

double growth(double r, double k, double y)
{
    for (double t = 0; t < 10;) {
        const double slope = r*y*(1 - y/k), h = 0.01/(1 + fabs(slope));
        y += h*slope;
        t += h;
    }
    return y;
}

void growth_grad(double r, double k, double y, double *g, double *work)
{
    long n = 0;
    for (double t = 0; t < 10;) {
        work[n++] = y;
        const double slope = r*y*(1 - y/k), h = 0.01/(1 + fabs(slope));
        y += h*slope;
        t += h;
    }
    double bar = 1, r_bar = 0, k_bar = 0;
    while (n-- > 0) {
        y = work[n];
        const double left = 1 - y/k, slope = r*y*left, h = 0.01/(1 + fabs(slope));
        const double slope_bar = bar*h*(1 - fabs(slope)*h/0.01);
        r_bar += slope_bar*y*left;
        k_bar += slope_bar*r*y*y/(k*k);
        bar += slope_bar*r*(left - y/k);
    }
    g[0] = r_bar;
    g[1] = k_bar;
    g[2] = bar;
}
