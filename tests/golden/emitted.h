#ifndef EMITTED_H
#define EMITTED_H

#ifdef __cplusplus
extern "C" {
#endif

/* emitted: A sum.
 *   v: n reals
 *   k: an integer
 *   n: a size
 *   out: a real, the result
 *   work: room for EMITTED_WORK(n) elements that the function writes to
 * Returns 0, or, with the results not written to the end:
 *   1: bounds: k is out of range */
#define EMITTED_WORK(n) (n)
#ifdef __cplusplus
#define restrict
#endif
int emitted(const double *restrict v, long long k, long long n, double *restrict out,
    double *restrict work);
#ifdef __cplusplus
#undef restrict
#endif

#ifdef __cplusplus
}
#endif

#endif /* EMITTED_H */
