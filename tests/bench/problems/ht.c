/* Hand tracking: points minus a skinned mesh, and the derivatives by the 26 numbers of the pose, as written by hand. The
   first six parameters move the whole hand, so their columns need no bones; a finger's four move its own four bones, and
   a vertex's other columns stay zero where those have no weight. */
#include <math.h>
#include <string.h>

enum { T = 26 };

/* Rz Ry Rx, and its derivatives by x and y (z is 0 in this model) */
static void euler(double x, double y, double *restrict r, double *restrict rx, double *restrict ry)
{
    const double cx = cos(x), sx = sin(x), cy = cos(y), sy = sin(y);
    const double m[9] = {cy, sx * sy, cx * sy, 0, cx, -sx, -sy, sx * cy, cx * cy};
    const double mx[9] = {0, cx * sy, -sx * sy, 0, -sx, -cx, 0, cx * cy, -sx * cy};
    const double my[9] = {-sy, sx * cy, cx * cy, 0, 0, 0, -cy, -sx * sy, -cx * sy};
    memcpy(r, m, sizeof m);
    memcpy(rx, mx, sizeof mx);
    memcpy(ry, my, sizeof my);
}

static void turned(const double *restrict m, const double *restrict r, double last, double *restrict out)
{
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++)
            out[4 * i + j] = m[4 * i] * r[j] + m[4 * i + 1] * r[3 + j] + m[4 * i + 2] * r[6 + j];
        out[4 * i + 3] = last * m[4 * i + 3];
    }
}

/* a after b; last is 0 for the derivative of a product by its second factor */
static void compose(const double *restrict a, const double *restrict b, double last, double *restrict out)
{
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 4; j++)
            out[4 * i + j] = a[4 * i] * b[j] + a[4 * i + 1] * b[4 + j] + a[4 * i + 2] * b[8 + j];
        out[4 * i + 3] += last * a[4 * i + 3];
    }
}

/* Rodrigues' matrix; with d, its three derivatives as well */
static void whole(const double *r, double *restrict m, double *restrict d)
{
    const double tt = r[0] * r[0] + r[1] * r[1] + r[2] * r[2];
    const double k[3][9] = {{0, 0, 0, 0, 0, -1, 0, 1, 0}, {0, 0, 1, 0, 0, 0, -1, 0, 0}, {0, -1, 0, 1, 0, 0, 0, 0, 0}};
    if (tt == 0) {
        for (int e = 0; e < 9; e++)
            m[e] = (e % 4 == 0) + r[0] * k[0][e] + r[1] * k[1][e] + r[2] * k[2][e];
        if (d)
            memcpy(d, k, sizeof k);
        return;
    }
    const double t = sqrt(tt), c = cos(t), s = sin(t), u[3] = {r[0] / t, r[1] / t, r[2] / t};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const int e = 3 * i + j;
            const double cross = u[0] * k[0][e] + u[1] * k[1][e] + u[2] * k[2][e];
            m[e] = (i == j) * c + s * cross + (1 - c) * u[i] * u[j];
            for (int p = 0; d && p < 3; p++) {
                const double ui = ((i == p) - u[i] * u[p]) / t, uj = ((j == p) - u[j] * u[p]) / t;
                const double turn = (k[p][e] - u[p] * cross) / t;
                d[9 * p + e] = u[p] * (-(i == j) * s + c * cross + s * u[i] * u[j]) + s * turn
                               + (1 - c) * (ui * u[j] + u[i] * uj);
            }
        }
}

/* the bones' transforms; with d, their derivatives by the finger's four parameters: d[bone][parameter] */
static void bones(long long n, const double *theta, const long long *parents, const double *relatives,
                  const double *inverses, double *restrict absolutes, double *restrict transforms, double *restrict da,
                  double *restrict d)
{
    for (long long b = 0; b < n; b++) {
        double r[9], by[2][9], own[12], dot[12];
        const int joint = b < 2 ? 3 : (b - 2) % 4, first = 6 + 4 * (b < 2 ? 0 : (b - 2) / 4);
        euler(joint == 3 ? 0 : theta[joint ? first + 1 + joint : first], joint ? 0 : theta[first + 1], r, by[0], by[1]);
        const double *m = relatives + 12 * b, *up = absolutes + 12 * parents[b];
        turned(m, r, 1, own);
        if (parents[b] < 0)
            memcpy(absolutes + 12 * b, own, sizeof own);
        else
            compose(up, own, 1, absolutes + 12 * b);
        compose(absolutes + 12 * b, inverses + 12 * b, 1, transforms + 12 * b);
        for (int p = 0; d && b >= 2 && p < 4; p++) {
            double *at = da + 12 * (4 * b + p);
            const int mine = joint == 3 ? 0 : joint == 0 ? p < 2 : p == joint + 1;
            memset(at, 0, 12 * sizeof *at);
            if (joint) /* the parent is of the same finger */
                compose(da + 12 * (4 * parents[b] + p), own, 1, at);
            if (mine) {
                turned(m, by[joint == 0 && p == 1], 0, dot);
                double more[12];
                compose(up, dot, 0, more);
                for (int e = 0; e < 12; e++)
                    at[e] += more[e];
            }
            compose(at, inverses + 12 * b, 1, d + 12 * (4 * b + p));
        }
    }
}

static void skinned(long long n, const double *restrict transforms, const double *restrict w, const double *restrict p,
                    double *restrict q)
{
    double m[12] = {0};
    for (long long b = 0; b < n; b++)
        for (int e = 0; e < 12; e++)
            m[e] += w[b] * transforms[12 * b + e];
    for (int i = 0; i < 3; i++)
        q[i] = m[4 * i] * p[0] + m[4 * i + 1] * p[1] + m[4 * i + 2] * p[2] + m[4 * i + 3];
}

static void hand(long long n, long long v, const double *theta, const long long *parents, const double *relatives,
                 const double *inverses, const double *weights, const double *base, double *restrict vertices,
                 double *restrict work)
{
    double m[9], q[3];
    bones(n, theta, parents, relatives, inverses, work, work + 12 * n, 0, 0);
    whole(theta, m, 0);
    for (long long i = 0; i < v; i++) {
        skinned(n, work + 12 * n, weights + i * n, base + 3 * i, q);
        for (int k = 0; k < 3; k++)
            vertices[3 * i + k] = m[3 * k] * q[0] + m[3 * k + 1] * q[1] + m[3 * k + 2] * q[2] + theta[3 + k];
    }
}

/* the vertices and their 3 x 26 derivatives */
static void hand_d(long long n, long long v, const double *theta, const long long *parents, const double *relatives,
                   const double *inverses, const double *weights, const double *base, double *restrict vertices,
                   double *restrict columns, double *restrict work)
{
    double *absolutes = work, *transforms = absolutes + 12 * n, *da = transforms + 12 * n, *d = da + 48 * n;
    double m[9], dm[27];
    memset(da, 0, 96 * n * sizeof *da);
    bones(n, theta, parents, relatives, inverses, absolutes, transforms, da, d);
    whole(theta, m, dm);
    for (long long i = 0; i < v; i++) {
        const double *w = weights + i * n, *p = base + 3 * i;
        double q[3], *restrict out = columns + 3 * T * i;
        skinned(n, transforms, w, p, q);
        for (int k = 0; k < 3; k++) {
            vertices[3 * i + k] = m[3 * k] * q[0] + m[3 * k + 1] * q[1] + m[3 * k + 2] * q[2] + theta[3 + k];
            for (int c = 0; c < 3; c++) {
                const double *row = dm + 9 * c + 3 * k;
                out[T * k + c] = row[0] * q[0] + row[1] * q[1] + row[2] * q[2];
                out[T * k + 3 + c] = k == c;
            }
        }
        for (int c = 6; c < T; c++) {
            double s[12] = {0};
            for (long long b = 2 + (c - 6) / 4 * 4, end = b + 4; b < end; b++)
                if (w[b] != 0)
                    for (int e = 0; e < 12; e++)
                        s[e] += w[b] * d[12 * (4 * b + (c - 6) % 4) + e];
            for (int k = 0; k < 3; k++)
                q[k] = s[4 * k] * p[0] + s[4 * k + 1] * p[1] + s[4 * k + 2] * p[2] + s[4 * k + 3];
            for (int k = 0; k < 3; k++)
                out[T * k + c] = m[3 * k] * q[0] + m[3 * k + 1] * q[1] + m[3 * k + 2] * q[2];
        }
    }
}

#define HAND long long n, long long v, long long c, const double *theta, const long long *parents, \
    const double *relatives, const double *inverses, const double *weights, const double *base, \
    const double *points, const long long *nearest

void ht(HAND, double *restrict out, double *restrict work)
{
    double *vertices = work + 24 * n;
    hand(n, v, theta, parents, relatives, inverses, weights, base, vertices, work);
    for (long long i = 0; i < c; i++)
        for (int k = 0; k < 3; k++)
            out[3 * i + k] = points[3 * i + k] - vertices[3 * nearest[i] + k];
}

void ht_jacobian(HAND, double *restrict out, double *restrict work)
{
    double *vertices = work + 120 * n, *columns = vertices + 3 * v;
    (void)points;
    hand_d(n, v, theta, parents, relatives, inverses, weights, base, vertices, columns, work);
    for (long long i = 0; i < c; i++)
        for (int e = 0; e < 3 * T; e++)
            out[3 * T * i + e] = -columns[3 * T * nearest[i] + e];
}

void ht_surface(HAND, const double *us, const long long *faces, double *restrict out, double *restrict work)
{
    double *vertices = work + 24 * n;
    hand(n, v, theta, parents, relatives, inverses, weights, base, vertices, work);
    for (long long i = 0; i < c; i++) {
        const long long *f = faces + 3 * nearest[i];
        const double u0 = us[2 * i], u1 = us[2 * i + 1], u2 = 1 - u0 - u1;
        for (int k = 0; k < 3; k++)
            out[3 * i + k] = points[3 * i + k] - (u0 * vertices[3 * f[0] + k] + u1 * vertices[3 * f[1] + k]
                                                  + u2 * vertices[3 * f[2] + k]);
    }
}

void ht_surface_jacobian(HAND, const double *us, const long long *faces, double *restrict by_pose,
                         double *restrict by_us, double *restrict work)
{
    double *vertices = work + 120 * n, *columns = vertices + 3 * v;
    (void)points;
    hand_d(n, v, theta, parents, relatives, inverses, weights, base, vertices, columns, work);
    for (long long i = 0; i < c; i++) {
        const long long *f = faces + 3 * nearest[i];
        const double u0 = us[2 * i], u1 = us[2 * i + 1], u2 = 1 - u0 - u1;
        const double *a = columns + 3 * T * f[0], *b = columns + 3 * T * f[1], *z = columns + 3 * T * f[2];
        for (int e = 0; e < 3 * T; e++)
            by_pose[3 * T * i + e] = -(u0 * a[e] + u1 * b[e] + u2 * z[e]);
        for (int k = 0; k < 3; k++) {
            by_us[6 * i + 2 * k] = vertices[3 * f[2] + k] - vertices[3 * f[0] + k];
            by_us[6 * i + 2 * k + 1] = vertices[3 * f[2] + k] - vertices[3 * f[1] + k];
        }
    }
}
