#include <string.h>

/* table
 * arrays, row-major: weights[20], out2[20] */
void table(double x, double *restrict out0, double *restrict weights, double *restrict out2)
{
    static const double weights1[20] = {0.0, 0.14285714285714285, 0.2857142857142857,
        0.42857142857142855, 0.5714285714285714, 0.7142857142857143, 0.8571428571428571, 1.0,
        1.1428571428571428, 1.2857142857142858, 1.4285714285714286, 1.5714285714285714,
        1.7142857142857142, 1.8571428571428572, 2.0, 2.142857142857143, 2.2857142857142856,
        2.4285714285714284, 2.5714285714285716, 2.7142857142857144};
    double s = 0.0;
    for (long long i = 0; i < 20; i++) {
        s += x*weights1[i];
    }
    memcpy(out2, weights1, 20*sizeof(double));
    out2[3] = x;
    memcpy(weights, weights1, 20*sizeof(double));
    *out0 = s;
}
