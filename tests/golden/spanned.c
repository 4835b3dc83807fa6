#include <math.h>

/* spanned_wave: A sine, a cosine, an element.
 * (defmodel f [x v] (+ (sin x) "* / ? ?/" (get v 0)))
 * arrays, row-major: v[2] */
double spanned_wave(double x, const double *restrict v)
{
    const double a = sin(x);  // (sin x)
    const double c = cos(x);
    const double y = a*c + v[0];  // (+ (sin x) "* / ? ?/" (get v 0))
    return y;
}
