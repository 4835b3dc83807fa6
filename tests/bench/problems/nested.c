/* Gradient descent on functions that hold derivatives themselves: the derivatives are written out by hand, what is
   differentiated by w carries its derivative along. */
#include <math.h>

static void saddle_inner(const double *start, double *x)
{   /* argmax of c - x0^2 - x1^2, that is argmin of x0^2 + x1^2 (c is nothing that this depends on, but see saddle) */
    double fx, g0, g1, eta = 1e-5;
    int good = 0;
    x[0] = start[0];
    x[1] = start[1];
    fx = x[0] * x[0] + x[1] * x[1];
    g0 = 2 * x[0];
    g1 = 2 * x[1];
    while (sqrt(g0 * g0 + g1 * g1) > 1e-5) {
        if (good == 10) {
            eta *= 2;
            good = 0;
            continue;
        }
        const double n0 = x[0] - eta * g0, n1 = x[1] - eta * g1;
        const double d0 = x[0] - n0, d1 = x[1] - n1;
        if (sqrt(d0 * d0 + d1 * d1) <= 1e-5)
            return;
        const double fn = n0 * n0 + n1 * n1;
        if (fn < fx) {
            x[0] = n0;
            x[1] = n1;
            fx = fn;
            g0 = 2 * n0;
            g1 = 2 * n1;
            good++;
        } else {
            eta /= 2;
            good = 0;
        }
    }
}

static void saddle_max(const double *u, const double *start, double *value, double *g)
{   /* max over v of |u|^2 - |v|^2, and its gradient by u */
    double v[2], fx, g0, g1, eta = 1e-5;
    int good = 0;
    v[0] = start[0];
    v[1] = start[1];
    const double uu = u[0] * u[0] + u[1] * u[1];
    fx = -(uu - (v[0] * v[0] + v[1] * v[1]));
    g0 = 2 * v[0];
    g1 = 2 * v[1];
    while (sqrt(g0 * g0 + g1 * g1) > 1e-5) {
        if (good == 10) {
            eta *= 2;
            good = 0;
            continue;
        }
        const double n0 = v[0] - eta * g0, n1 = v[1] - eta * g1;
        const double d0 = v[0] - n0, d1 = v[1] - n1;
        if (sqrt(d0 * d0 + d1 * d1) <= 1e-5)
            break;
        const double fn = -(uu - (n0 * n0 + n1 * n1));
        if (fn < fx) {
            v[0] = n0;
            v[1] = n1;
            fx = fn;
            g0 = 2 * n0;
            g1 = 2 * n1;
            good++;
        } else {
            eta /= 2;
            good = 0;
        }
    }
    *value = uu - (v[0] * v[0] + v[1] * v[1]);
    g[0] = 2 * u[0];
    g[1] = 2 * u[1];
}

void saddle(const double *restrict start, double *restrict out)
{
    double u[2] = {start[0], start[1]}, g[2], fx, eta = 1e-5;
    int good = 0;
    saddle_max(u, start, &fx, g);
    while (sqrt(g[0] * g[0] + g[1] * g[1]) > 1e-5) {
        if (good == 10) {
            eta *= 2;
            good = 0;
            continue;
        }
        const double next[2] = {u[0] - eta * g[0], u[1] - eta * g[1]};
        const double d0 = u[0] - next[0], d1 = u[1] - next[1];
        if (sqrt(d0 * d0 + d1 * d1) <= 1e-5)
            break;
        double fn, gn[2];
        saddle_max(next, start, &fn, gn);
        if (fn < fx) {
            u[0] = next[0];
            u[1] = next[1];
            fx = fn;
            g[0] = gn[0];
            g[1] = gn[1];
            good++;
        } else {
            eta /= 2;
            good = 0;
        }
    }
    out[0] = u[0];
    out[1] = u[1];
    saddle_inner(start, out + 2);
}

/* the squared landing place, and its derivative by w */
static double lands(double w, double *slope)
{
    const double dt = 0.1;
    double x0 = 0, x1 = 8, v0 = 0.75, v1 = 0, dx0 = 0, dx1 = 0, dv0 = 0, dv1 = 0;
    double n0 = x0 + dt * v0, n1 = x1 + dt * v1, dn0 = 0, dn1 = 0;
    while (n1 > 0) {
        double a0 = 0, a1 = 0, da0 = 0, da1 = 0; /* the gradient of the potential, and its derivative */
        for (int k = 0; k < 2; k++) {
            const double p0 = x0 - 10, p1 = x1 - (k ? 0 : 10 - w), dp1 = dx1 + (k ? 0 : 1);
            const double rr = p0 * p0 + p1 * p1, r = sqrt(rr), c = -1 / (rr * r);
            const double dc = 3 * (p0 * dx0 + p1 * dp1) / (rr * rr * r);
            a0 += c * p0;
            a1 += c * p1;
            da0 += dc * p0 + c * dx0;
            da1 += dc * p1 + c * dp1;
        }
        v0 -= dt * a0;
        v1 -= dt * a1;
        dv0 -= dt * da0;
        dv1 -= dt * da1;
        x0 = n0;
        x1 = n1;
        dx0 = dn0;
        dx1 = dn1;
        n0 = x0 + dt * v0;
        n1 = x1 + dt * v1;
        dn0 = dx0 + dt * dv0;
        dn1 = dx1 + dt * dv1;
    }
    const double left = -x1 / v1, dleft = (-dx1 - left * dv1) / v1;
    const double end = x0 + left * v0, dend = dx0 + dleft * v0 + left * dv0;
    *slope = 2 * end * dend;
    return end * end;
}

double particle(double w)
{
    double g, fx = lands(w, &g), eta = 1e-5;
    int good = 0;
    while (fabs(g) > 1e-5) {
        if (good == 10) {
            eta *= 2;
            good = 0;
            continue;
        }
        const double next = w - eta * g;
        if (fabs(w - next) <= 1e-5)
            break;
        double gn;
        const double fn = lands(next, &gn);
        if (fn < fx) {
            w = next;
            fx = fn;
            g = gn;
            good++;
        } else {
            eta /= 2;
            good = 0;
        }
    }
    return w;
}
