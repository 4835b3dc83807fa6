#ifndef F_GRAD_H
#define F_GRAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* f_grad: grad of f
 *   x: a real
 *   what comes back: a real, the result */
double f_grad(double x);

#ifdef __cplusplus
}
#endif

#endif /* F_GRAD_H */
