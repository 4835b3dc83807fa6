#include <math.h>

/* clauses */
double clauses(double x)
{
    double r;
    if (x < 0.0) {
        r = exp(x);
    } else if (x < 1.0) {
        r = sqrt(x);
    } else if (x < 2.0) {
        r = sin(x);
    } else {
        r = cos(x);
    }
    return r;
}
