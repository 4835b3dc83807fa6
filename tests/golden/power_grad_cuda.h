#ifndef POWER_GRAD_CUDA_H
#define POWER_GRAD_CUDA_H

#if !defined(__CUDACC_RTC__) && !defined(CUDA_ON_CPU)
#include <cuda_runtime_api.h>
#endif

/* power_grad, for batch elements at once: grad of power
 * All pointers are to the device's memory; arrays are row-major.
 *   x: a real for each element
 *   n: an integer for each element
 *   out: a real for each element, the result
 *   work: room for threads*room elements that the kernel writes to
 *   room: at least POWER_GRAD_WORK(n) of the largest n
 *   threads: how many threads may run at once, at least 32 */
#define POWER_GRAD_WORK(n) (((n) > 0 ? (n) : 0))
#ifndef __CUDACC_RTC__
#ifdef __cplusplus
extern "C"
#endif
cudaError_t power_grad_launch(long long batch, const double *x, const long long *n, double *out,
    double *work, long long room, long long threads, cudaStream_t stream);
#endif

#endif /* POWER_GRAD_CUDA_H */
