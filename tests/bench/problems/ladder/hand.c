/* dF~'s experiments by hand. */
#include <math.h>
#include <string.h>

void dot_gradient_hand(const double *u, const double *v, long long n, double *restrict out)
{
    (void)u;
    memcpy(out, v, n * sizeof(double));
}

void max_gradient_hand(const double *restrict u, long long n, double *restrict out)
{
    long long at = 0;
    for (long long i = 1; i < n; i++)
        if (u[i] > u[at]) at = i;
    memset(out, 0, n * sizeof(double));
    out[at] = 1.0;
}

void add_jacobian_hand(const double *u, const double *v, long long n, double *restrict out)
{
    (void)u;
    (void)v;
    memset(out, 0, n * n * sizeof(double));
    for (long long i = 0; i < n; i++) out[i * n + i] = 1.0;
}

void scale_jacobian_hand(double s, const double *restrict v, long long n, double *restrict out)
{
    (void)s;
    memcpy(out, v, n * sizeof(double));
}

/* W^T (1/WH - A/(WH)^2), a row of WH at a time */
void nnmf_gradient_hand(const double *restrict W, const double *restrict H, const double *restrict A, long long m,
    long long k, long long n, double *restrict out, double *restrict row)
{
    memset(out, 0, k * n * sizeof(double));
    for (long long i = 0; i < m; i++) {
        memset(row, 0, n * sizeof(double));
        for (long long r = 0; r < k; r++)
            for (long long j = 0; j < n; j++) row[j] += W[i * k + r] * H[r * n + j];
        for (long long j = 0; j < n; j++) {
            const double p = 1.0 / row[j];
            row[j] = p - A[i * n + j] * p * p;
        }
        for (long long r = 0; r < k; r++)
            for (long long j = 0; j < n; j++) out[r * n + j] += W[i * k + r] * row[j];
    }
}

/* A column of the Jacobian for each of the camera's numbers; out[point][number][x, y]. */
void project_jacobian_hand(const double *restrict c, const double *restrict points, long long n, double *restrict out)
{
    const double f = c[6], k1 = c[9], k2 = c[10];
    const double square = c[0] * c[0] + c[1] * c[1] + c[2] * c[2], angle = sqrt(square);
    const double w[3] = {c[0] / angle, c[1] / angle, c[2] / angle}, co = cos(angle), si = sin(angle);
    double R[9], dR[3][9];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) R[3 * i + j] = (i == j ? co : 0) + (1 - co) * w[i] * w[j];
    R[1] -= si * w[2], R[2] += si * w[1], R[3] += si * w[2], R[5] -= si * w[0], R[6] -= si * w[1], R[7] += si * w[0];
    for (int a = 0; a < 3; a++) {
        double dw[3];
        for (int i = 0; i < 3; i++) dw[i] = ((i == a) - w[i] * w[a]) / angle;
        const double dco = -si * w[a], dsi = co * w[a];
        double *D = dR[a];
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                D[3 * i + j] = (i == j ? dco : 0) - dco * w[i] * w[j] + (1 - co) * (dw[i] * w[j] + w[i] * dw[j]);
        const double t[3] = {dsi * w[0] + si * dw[0], dsi * w[1] + si * dw[1], dsi * w[2] + si * dw[2]};
        D[1] -= t[2], D[2] += t[1], D[3] += t[2], D[5] -= t[0], D[6] -= t[1], D[7] += t[0];
    }
    for (long long k = 0; k < n; k++) {
        const double v[3] = {points[3 * k] - c[3], points[3 * k + 1] - c[4], points[3 * k + 2] - c[5]};
        double s[3], ds[6][3];
        for (int i = 0; i < 3; i++) {
            s[i] = R[3 * i] * v[0] + R[3 * i + 1] * v[1] + R[3 * i + 2] * v[2];
            for (int a = 0; a < 3; a++) {
                ds[a][i] = dR[a][3 * i] * v[0] + dR[a][3 * i + 1] * v[1] + dR[a][3 * i + 2] * v[2];
                ds[3 + a][i] = -R[3 * i + a];
            }
        }
        const double z = 1 / s[2], x = s[0] * z, y = s[1] * z, q = x * x + y * y, bend = 1 + k1 * q + k2 * q * q;
        const double slope = k1 + 2 * k2 * q;
        double *o = out + 22 * k;
        for (int a = 0; a < 6; a++) {
            const double dx = (ds[a][0] - x * ds[a][2]) * z, dy = (ds[a][1] - y * ds[a][2]) * z;
            const double db = slope * 2 * (x * dx + y * dy);
            o[2 * a] = f * (db * x + bend * dx);
            o[2 * a + 1] = f * (db * y + bend * dy);
        }
        const double rest[10] = {bend * x, bend * y, 1, 0, 0, 1, f * q * x, f * q * y, f * q * q * x, f * q * q * y};
        memcpy(o + 12, rest, sizeof rest);
    }
}
