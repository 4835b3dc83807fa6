/* All residuals of a bundle adjustment, and the 2 x 15 blocks of their sparse Jacobian: ba_jac of ba.c for each
   observation, which stands before this text. */

static void residual(const double *restrict c, const double *restrict X, double w, const double *restrict feature,
                     double *restrict out)
{
    const double v0 = X[0] - c[3], v1 = X[1] - c[4], v2 = X[2] - c[5];
    const double tt = c[0] * c[0] + c[1] * c[1] + c[2] * c[2];
    const double k0 = c[1] * v2 - c[2] * v1, k1 = c[2] * v0 - c[0] * v2, k2 = c[0] * v1 - c[1] * v0;
    double X0 = v0 + k0, X1 = v1 + k1, X2 = v2 + k2;
    if (tt != 0) {
        const double t = sqrt(tt), co = cos(t), a = sin(t) / t, along = (1 - co) * (c[0] * v0 + c[1] * v1 + c[2] * v2) / tt;
        X0 = co * v0 + a * k0 + along * c[0];
        X1 = co * v1 + a * k1 + along * c[1];
        X2 = co * v2 + a * k2 + along * c[2];
    }
    const double x = X0 / X2, y = X1 / X2, q = x * x + y * y, d = 1 + q * (c[9] + c[10] * q);
    out[0] = w * (c[6] * d * x + c[7] - feature[0]);
    out[1] = w * (c[6] * d * y + c[8] - feature[1]);
}

void bundle(long long m, const double *restrict cameras, const double *restrict points, const double *restrict weights,
            const double *restrict features, const long long *restrict seen_by, const long long *restrict point_of,
            double *restrict errors, double *restrict weight_errors)
{
    for (long long o = 0; o < m; o++)
        residual(cameras + 11 * seen_by[o], points + 3 * point_of[o], weights[o], features + 2 * o, errors + 2 * o);
    for (long long o = 0; o < m; o++)
        weight_errors[o] = 1 - weights[o] * weights[o];
}

void bundle_blocks(long long m, const double *restrict cameras, const double *restrict points,
                   const double *restrict weights, const double *restrict features, const long long *restrict seen_by,
                   const long long *restrict point_of, double *restrict blocks, double *restrict diagonal)
{
    for (long long o = 0; o < m; o++) {
        double p[15];
        for (int j = 0; j < 11; j++)
            p[j] = cameras[11 * seen_by[o] + j];
        for (int j = 0; j < 3; j++)
            p[11 + j] = points[3 * point_of[o] + j];
        p[14] = weights[o];
        ba_jac(p, features + 2 * o, blocks + 30 * o);
    }
    for (long long o = 0; o < m; o++)
        diagonal[o] = -2 * weights[o];
}
