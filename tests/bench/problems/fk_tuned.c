/* The same Jacobian as fk.c, tuned: joints 2, 3 and 4 are parallel, so their angles add, and the arm up to the wrist
   lies in one vertical plane. No generator is told that; the row shows what it is worth. */
#include <math.h>

static const double A2 = -0.425, A3 = -0.39225, D1 = 0.089159, D4 = 0.10915, D5 = 0.09465, D6 = 0.0823;

void fk_jac(const double *restrict q, double *restrict J)
{
    const double c1 = cos(q[0]), s1 = sin(q[0]), c5 = cos(q[4]), s5 = sin(q[4]), c6 = cos(q[5]), s6 = sin(q[5]);
    const double c2 = cos(q[1]), s2 = sin(q[1]), c3 = cos(q[2]), s3 = sin(q[2]), c4 = cos(q[3]), s4 = sin(q[3]);
    const double c23 = c2 * c3 - s2 * s3, s23 = s2 * c3 + c2 * s3; /* joints 2, 3, 4 are parallel: angles add */
    const double c = c23 * c4 - s23 * s4, s = s23 * c4 + c23 * s4;

    const double r2 = A2 * c2, h2 = D1 + A2 * s2; /* elbow and wrist in the arm's vertical plane */
    const double r3 = r2 + A3 * c23, h3 = h2 + A3 * s23;
    const double z4[3] = {c1 * s, s1 * s, -c}; /* axis of joint 5 */
    const double x4[3] = {c1 * c, s1 * c, s}, y4[3] = {s1, -c1, 0};
    double x5[3], z5[3], R[3][3]; /* R[k] is column k of the rotation */
    for (int i = 0; i < 3; i++) {
        x5[i] = c5 * x4[i] + s5 * y4[i];
        z5[i] = c5 * y4[i] - s5 * x4[i]; /* axis of joint 6 */
    }
    for (int i = 0; i < 3; i++) {
        R[0][i] = c6 * x5[i] - s6 * z4[i];
        R[1][i] = -c6 * z4[i] - s6 * x5[i];
        R[2][i] = z5[i];
    }
    const double p4[3] = {c1 * r3 + s1 * D4, s1 * r3 - c1 * D4, h3};
    const double tool[3] = {D5 * z4[0] + D6 * z5[0], D5 * z4[1] + D6 * z5[1], D5 * z4[2] + D6 * z5[2]};
    const double p[3] = {p4[0] + tool[0], p4[1] + tool[1], p4[2] + tool[2]};
    const double axis[6][3] = {{0, 0, 1}, {s1, -c1, 0}, {s1, -c1, 0}, {s1, -c1, 0},
                               {z4[0], z4[1], z4[2]}, {z5[0], z5[1], z5[2]}};
    const double at[6][3] = {{0, 0, 0}, {0, 0, D1}, {c1 * r2, s1 * r2, h2}, {c1 * r3, s1 * r3, h3},
                             {p4[0], p4[1], p4[2]}, {p[0], p[1], p[2]}};
    for (int k = 0; k < 6; k++) {
        const double *z = axis[k];
        for (int j = 0; j < 3; j++) {
            const double *v = R[j];
            J[(0 + j) * 6 + k] = z[1] * v[2] - z[2] * v[1];
            J[(3 + j) * 6 + k] = z[2] * v[0] - z[0] * v[2];
            J[(6 + j) * 6 + k] = z[0] * v[1] - z[1] * v[0];
        }
        const double v[3] = {p[0] - at[k][0], p[1] - at[k][1], p[2] - at[k][2]};
        J[54 + k] = z[1] * v[2] - z[2] * v[1];
        J[60 + k] = z[2] * v[0] - z[0] * v[2];
        J[66 + k] = z[0] * v[1] - z[1] * v[0];
    }
}
