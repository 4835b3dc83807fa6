/* UR5 forward kinematics by hand: J[r][k] = d output r / d q[k], outputs = rotation (row-major), then position.
   The geometric Jacobian: with z_k the axis of joint k and p_k a point on it, dR/dq_k = z_k x R (column by column)
   and dp/dq_k = z_k x (p - p_k). */
#include <math.h>

static const double LINK[6] = {0, -0.425, -0.39225, 0, 0, 0};
static const double RISE[6] = {0.089159, 0, 0, 0.10915, 0.09465, 0.0823};
static const int TWIST[6] = {1, 0, 0, 1, -1, 0}; /* in right angles */

void fk_jac(const double *restrict q, double *restrict J)
{
    double x[3] = {1, 0, 0}, y[3] = {0, 1, 0}, z[3] = {0, 0, 1}, p[3] = {0, 0, 0};
    double axis[6][3], at[6][3];
    for (int k = 0; k < 6; k++) {
        const double c = cos(q[k]), s = sin(q[k]);
        for (int i = 0; i < 3; i++) {
            const double u = c * x[i] + s * y[i], v = c * y[i] - s * x[i], w = z[i];
            axis[k][i] = w;
            at[k][i] = p[i];
            p[i] += RISE[k] * w + LINK[k] * u;
            x[i] = u;
            y[i] = TWIST[k] == 0 ? v : TWIST[k] * w;
            z[i] = TWIST[k] == 0 ? w : -TWIST[k] * v;
        }
    }
    for (int k = 0; k < 6; k++) {
        const double *a = axis[k], d[3] = {p[0] - at[k][0], p[1] - at[k][1], p[2] - at[k][2]};
        const double *v[3] = {x, y, z};
        for (int j = 0; j < 3; j++) {
            J[(0 + j) * 6 + k] = a[1] * v[j][2] - a[2] * v[j][1];
            J[(3 + j) * 6 + k] = a[2] * v[j][0] - a[0] * v[j][2];
            J[(6 + j) * 6 + k] = a[0] * v[j][1] - a[1] * v[j][0];
        }
        J[54 + k] = a[1] * d[2] - a[2] * d[1];
        J[60 + k] = a[2] * d[0] - a[0] * d[2];
        J[66 + k] = a[0] * d[1] - a[1] * d[0];
    }
}
