/* saddle and particle as they are written for Enzyme: OUTER and INNER say which gradient is taken by a reverse pass.
   Gradient descent asks for a value together with its gradient: one pass gives both. */
/* what it differentiates may hold its calls, and call nothing that does */
#define INLINE __attribute__((always_inline))

struct two { double x0, x1; };

static double apart(const double *a, double b0, double b1)
{
    const double d0 = a[0] - b0, d1 = a[1] - b1;
    return sqrt(d0 * d0 + d1 * d1);
}

/* f(x, held), and its gradient by x */
template <bool back, int n, void (*f)(const double *, const double *, double *)>
INLINE static double both(const double *x, const double *held, double *g)
{
    double fx = 0, one = 1;
    if (back) {
        for (int i = 0; i < n; i++)
            g[i] = 0;
        __enzyme_autodiff<void>((void *)f, enzyme_dup, x, g, enzyme_const, held, enzyme_dup, &fx, &one);
    } else
        for (int i = 0; i < n; i++) {
            double e[n] = {};
            e[i] = 1;
            __enzyme_fwddiff<void>((void *)f, enzyme_dup, x, e, enzyme_const, held, enzyme_dup, &fx, g + i);
        }
    return fx;
}

template <bool back, int n, void (*f)(const double *, const double *, double *)>
INLINE static void argmin(double *x, const double *held)
{
    double g[n], eta = 1e-5, fx = both<back, n, f>(x, held, g);
    int good = 0;
    for (;;) {
        double length = 0, moved = 0, next[n], gn[n];
        for (int i = 0; i < n; i++)
            length += g[i] * g[i];
        if (sqrt(length) <= 1e-5)
            return;
        if (good == 10) {
            eta *= 2;
            good = 0;
            continue;
        }
        for (int i = 0; i < n; i++) {
            next[i] = x[i] - eta * g[i];
            moved += (x[i] - next[i]) * (x[i] - next[i]);
        }
        if (sqrt(moved) <= 1e-5)
            return;
        const double fn = both<back, n, f>(next, held, gn);
        if (fn < fx) {
            for (int i = 0; i < n; i++) {
                x[i] = next[i];
                g[i] = gn[i];
            }
            fx = fn;
            good++;
        } else {
            eta /= 2;
            good = 0;
        }
    }
}

static double squares(const double *u, const double *v)
{
    return u[0] * u[0] + u[1] * u[1] - (v[0] * v[0] + v[1] * v[1]);
}

static void lower(const double *v, const double *u, double *out) { *out = -squares(u, v); }

static void highest(const double *u, const double *start, double *out)
{
    double v[2] = {start[0], start[1]};
    argmin<INNER, 2, lower>(v, u);
    *out = squares(u, v);
}

static void saddle(const double *start, double *out)
{
    out[0] = out[2] = start[0];
    out[1] = out[3] = start[1];
    argmin<OUTER, 2, highest>(out, start);
    argmin<INNER, 2, lower>(out + 2, out);
}

static double potential_at(const double *x, double w)
{
    return 1 / apart(x, 10, 10 - w) + 1 / apart(x, 10, 0);
}

static double potential(double x0, double x1, double w)
{
    const double x[2] = {x0, x1};
    return potential_at(x, w);
}

/* its gradient by x */
static two force(double x0, double x1, double w)
{
    if (INNER)
        return __enzyme_autodiff<two>((void *)potential, enzyme_out, x0, enzyme_out, x1, enzyme_const, w);
    const double a0 = __enzyme_fwddiff<double>((void *)potential, x0, 1.0, x1, 0.0, enzyme_const, w);
    const double a1 = __enzyme_fwddiff<double>((void *)potential, x0, 0.0, x1, 1.0, enzyme_const, w);
    return {a0, a1};
}

/* The same twice: of arrays it is quicker forwards, and wrong backwards, where they change in the loop. */
static void lands(const double *w, const double *, double *out)
{
    const double dt = 0.1;
    double x[2] = {0, 8}, v[2] = {0.75, 0}, next[2] = {x[0] + dt * v[0], x[1] + dt * v[1]};
    while (next[1] > 0) {
        double a[2] = {0, 0}, e0[2] = {1, 0}, e1[2] = {0, 1};
        if (INNER) {
            __enzyme_autodiff<void>((void *)potential_at, enzyme_dup, x, a, enzyme_const, *w);
        } else {
            a[0] = __enzyme_fwddiff<double>((void *)potential_at, enzyme_dup, x, e0, enzyme_const, *w);
            a[1] = __enzyme_fwddiff<double>((void *)potential_at, enzyme_dup, x, e1, enzyme_const, *w);
        }
        for (int i = 0; i < 2; i++) {
            v[i] -= dt * a[i];
            x[i] = next[i];
        }
        for (int i = 0; i < 2; i++)
            next[i] = x[i] + dt * v[i];
    }
    const double left = -x[1] / v[1], end = x[0] + left * v[0];
    *out = end * end;
}

static void lands_back(const double *w, const double *, double *out)
{
    const double dt = 0.1, here = *w;
    double x0 = 0, x1 = 8, v0 = 0.75, v1 = 0, n0 = x0 + dt * v0, n1 = x1 + dt * v1;
    while (n1 > 0) {
        const two a = force(x0, x1, here);
        v0 -= dt * a.x0;
        v1 -= dt * a.x1;
        x0 = n0;
        x1 = n1;
        n0 = x0 + dt * v0;
        n1 = x1 + dt * v1;
    }
    const double end = x0 - x1 / v1 * v0;
    *out = end * end;
}

static double particle(double w)
{
    argmin<OUTER, 1, OUTER ? lands_back : lands>(&w, &w);
    return w;
}
