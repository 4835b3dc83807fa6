#ifndef SMOOTH_GRAD_CUDA_H
#define SMOOTH_GRAD_CUDA_H

#if !defined(__CUDACC_RTC__) && !defined(CUDA_ON_CPU)
#include <cuda_runtime_api.h>
#endif

/* smooth_grad, for batch elements at once: grad of smooth
 * All pointers are to the device's memory; arrays are row-major.
 *   v: n reals for each element
 *   a: a real for each element
 *   n: a size
 *   u_bar: n reals for each element, the result
 *   a_bar: a real for each element, the result
 *   work: room for threads*room elements that the kernel writes to
 *   room: at least SMOOTH_GRAD_WORK(n)
 *   threads: how many threads may run at once, at least 1
 *   status: two numbers, 0 before the launch; if a check fails, its number and the element:
 *     1: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     2: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     3: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     4: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     5: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     6: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     7: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0
 *     8: bounds, line 2: index `(% (+ i 1) (len v))` is outside axis 0 */
#define SMOOTH_GRAD_WORK(n) (4*(n))
#ifndef __CUDACC_RTC__
#ifdef __cplusplus
extern "C"
#endif
cudaError_t smooth_grad_launch(long long batch, const double *v, const double *a, long long n,
    double *u_bar, double *a_bar, double *work, long long room, unsigned long long *status,
    long long threads, cudaStream_t stream);
#endif

#endif /* SMOOTH_GRAD_CUDA_H */
