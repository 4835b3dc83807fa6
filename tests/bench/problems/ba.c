/* One bundle-adjustment residual by hand: J[2][15] of w * (project(camera, X) - feature) by
   p = rotation r 3, centre C 3, focal f, principal point 2, radial k1 k2, point X 3, weight w.
   The rotation's columns come from the left Jacobian L of SO(3): d(R v)/dr = -[R v]x L. */
#include <math.h>

void ba_jac(const double *restrict p, const double *restrict feature, double *restrict J)
{
    const double *r = p, f = p[6], k1 = p[9], k2 = p[10], w = p[14];
    const double v0 = p[11] - p[3], v1 = p[12] - p[4], v2 = p[13] - p[5];
    const double tt = r[0] * r[0] + r[1] * r[1] + r[2] * r[2];
    double c = 1, a = 1, b = 0.5, e = 0; /* cos t, sin t/t, (1 - cos t)/t^2, (t - sin t)/t^3 (times r r^T, 0 at 0) */
    if (tt != 0) {
        const double t = sqrt(tt), i = 1 / tt, s = sin(t);
        c = cos(t);
        a = s * t * i;
        b = (1 - c) * i;
        e = (1 - a) * i;
    }
    const double R[3][3] = {
        {c + b * r[0] * r[0], b * r[0] * r[1] - a * r[2], b * r[0] * r[2] + a * r[1]},
        {b * r[0] * r[1] + a * r[2], c + b * r[1] * r[1], b * r[1] * r[2] - a * r[0]},
        {b * r[0] * r[2] - a * r[1], b * r[1] * r[2] + a * r[0], c + b * r[2] * r[2]}};
    const double X0 = R[0][0] * v0 + R[0][1] * v1 + R[0][2] * v2;
    const double X1 = R[1][0] * v0 + R[1][1] * v1 + R[1][2] * v2;
    const double X2 = R[2][0] * v0 + R[2][1] * v1 + R[2][2] * v2;
    const double iz = 1 / X2, x = X0 * iz, y = X1 * iz;
    const double q = x * x + y * y, d = 1 + q * (k1 + k2 * q), dd = 2 * (k1 + 2 * k2 * q);
    const double wf = w * f;
    const double mxx = wf * (d + dd * x * x), mxy = wf * dd * x * y, myy = wf * (d + dd * y * y); /* d residual/d(x, y) */
    const double A[2][3] = {{mxx * iz, mxy * iz, -(mxx * x + mxy * y) * iz},
                            {mxy * iz, myy * iz, -(mxy * x + myy * y) * iz}}; /* d residual/d(R v) */
    const double u[2] = {x * d, y * d};
    for (int k = 0; k < 2; k++) {
        double *row = J + 15 * k;
        const double *g = A[k];
        const double m0 = X1 * g[2] - X2 * g[1], m1 = X2 * g[0] - X0 * g[2], m2 = X0 * g[1] - X1 * g[0];
        const double along = e * (r[0] * m0 + r[1] * m1 + r[2] * m2); /* L^T m = a m + b m x r + e r (r.m) */
        row[0] = a * m0 + b * (m1 * r[2] - m2 * r[1]) + along * r[0];
        row[1] = a * m1 + b * (m2 * r[0] - m0 * r[2]) + along * r[1];
        row[2] = a * m2 + b * (m0 * r[1] - m1 * r[0]) + along * r[2];
        for (int j = 0; j < 3; j++) {
            const double gx = g[0] * R[0][j] + g[1] * R[1][j] + g[2] * R[2][j];
            row[3 + j] = -gx;
            row[11 + j] = gx;
        }
        row[6] = w * u[k];
        row[7] = k == 0 ? w : 0;
        row[8] = k == 1 ? w : 0;
        row[9] = wf * q * (k == 0 ? x : y);
        row[10] = row[9] * q;
        row[14] = f * u[k] + p[7 + k] - feature[k];
    }
}
