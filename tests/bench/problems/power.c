/* The product of sines by hand: what the way back needs is on the stack. */
#include <math.h>

double power(double x, long long n)
{
    return n == 0 ? 1 : x*sin(power(x, n - 1));
}

struct dual { double y, dy; };

static struct dual walk(double x, long long n)
{
    if (n == 0) return (struct dual){1, 0};
    const struct dual p = walk(x, n - 1);
    const double s = sin(p.y);
    return (struct dual){x*s, s + x*cos(p.y)*p.dy};
}

void power_grad(double x, long long n, double *g)
{
    g[0] = walk(x, n).dy;
}
