#include "f_grad.h"
#include <math.h>

/* f_grad: grad of f
 * (fn [x] (** x 1.5)) */
double f_grad(double x)
{
    return 1.5*pow(x, 0.5);  // (** x 1.5)
}
