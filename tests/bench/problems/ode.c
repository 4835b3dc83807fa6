/* The classical Runge-Kutta method for y_0' = x_0, y_i' = x_i y_(i-1) to t = 2, and the gradient of the last y. */

static void slope(long long n, const double *restrict x, const double *restrict y, double *restrict k)
{
    k[0] = x[0];
    for (long long i = 1; i < n; i++)
        k[i] = x[i] * y[i - 1];
}

static void along(long long n, const double *restrict y, double h, const double *restrict k, double *restrict out)
{
    for (long long i = 0; i < n; i++)
        out[i] = y[i] + h * k[i];
}

double ode(long long n, long long s, const double *restrict x, double *restrict work)
{
    double *y = work, *z = y + n, *k1 = z + n, *k2 = k1 + n, *k3 = k2 + n, *k4 = k3 + n;
    const double h = 2.0 / s;
    for (long long i = 0; i < n; i++)
        y[i] = 0;
    for (long long step = 0; step < s; step++) {
        slope(n, x, y, k1);
        along(n, y, h / 2, k1, z);
        slope(n, x, z, k2);
        along(n, y, h / 2, k2, z);
        slope(n, x, z, k3);
        along(n, y, h, k3, z);
        slope(n, x, z, k4);
        for (long long i = 0; i < n; i++)
            y[i] += h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
    }
    return y[n - 1];
}

/* kb is the adjoint of the slope at z: g += by x, zb = by y */
static void slope_back(long long n, const double *restrict x, const double *restrict z, const double *restrict kb,
                       double *restrict g, double *restrict zb)
{
    g[0] += kb[0];
    for (long long i = 1; i < n; i++) {
        g[i] += kb[i] * z[i - 1];
        zb[i - 1] = kb[i] * x[i];
    }
    zb[n - 1] = 0;
}

void ode_grad(long long n, long long s, const double *restrict x, double *restrict g, double *restrict work)
{
    double *k1 = work, *k2 = k1 + n, *k3 = k2 + n, *k4 = k3 + n, *yb = k4 + n, *kb = yb + n, *zb = kb + n;
    double *sum = zb + n, *saved = sum + n, *last = saved + 4 * n * s; /* y and the places of k2, k3, k4 of each step */
    const double h = 2.0 / s;
    for (long long i = 0; i < n; i++) {
        saved[i] = g[i] = 0;
        yb[i] = i == n - 1;
    }
    for (long long step = 0; step < s; step++) {
        double *y = saved + 4 * n * step, *z2 = y + n, *z3 = z2 + n, *z4 = z3 + n, *next = z4 + n;
        slope(n, x, y, k1);
        along(n, y, h / 2, k1, z2);
        slope(n, x, z2, k2);
        along(n, y, h / 2, k2, z3);
        slope(n, x, z3, k3);
        along(n, y, h, k3, z4);
        slope(n, x, z4, k4);
        if (next < last)
            for (long long i = 0; i < n; i++)
                next[i] = y[i] + h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
    }
    for (long long step = s - 1; step >= 0; step--) {
        const double *y = saved + 4 * n * step, *z2 = y + n, *z3 = z2 + n, *z4 = z3 + n;
        for (long long i = 0; i < n; i++) {
            kb[i] = h / 6 * yb[i];
            sum[i] = yb[i];
        }
        slope_back(n, x, z4, kb, g, zb);
        for (long long i = 0; i < n; i++) {
            sum[i] += zb[i];
            kb[i] = h / 3 * yb[i] + h * zb[i];
        }
        slope_back(n, x, z3, kb, g, zb);
        for (long long i = 0; i < n; i++) {
            sum[i] += zb[i];
            kb[i] = h / 3 * yb[i] + h / 2 * zb[i];
        }
        slope_back(n, x, z2, kb, g, zb);
        for (long long i = 0; i < n; i++) {
            sum[i] += zb[i];
            kb[i] = h / 6 * yb[i] + h / 2 * zb[i];
        }
        slope_back(n, x, y, kb, g, zb);
        for (long long i = 0; i < n; i++)
            yb[i] = sum[i] + zb[i];
    }
}
