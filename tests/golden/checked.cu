/* checked = (defmodel checked [#^ (Vec n) v #^ Int i] (* (get v i) (get v 0)))
 * arrays, row-major: v[n]
 * returns 0, or the number of the check that failed */
static __device__ int checked_element(const double *__restrict__ v, long long i, long long n,
    double *__restrict__ out)
{
    if (i < 0 || i >= n) return 1;  // (get v i)
    *out = v[i]*v[0];  // (* (get v i) (get v 0))
    return 0;
}

/* one thread for each element; batched: v, i */
extern "C" __global__ void checked_batch(long long batch, const double *__restrict__ v,
    const long long *__restrict__ i, long long n, double *__restrict__ out,
    unsigned long long *status)
{
    const long long thread = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const long long step = (long long)gridDim.x*blockDim.x;
    for (long long k = thread; k < batch; k += step) {
        const int failed = checked_element(v + k*n, i[k], n, out + k);
        if (failed && atomicCAS(status, 0ULL, (unsigned long long)failed) == 0)
            status[1] = (unsigned long long)k;
    }
}

#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */
extern "C" cudaError_t checked_launch(long long batch, const double *v, const long long *i,
    long long n, double *out, unsigned long long *status, cudaStream_t stream)
{
    if (batch <= 0)
        return cudaSuccess;
    const long long block = 128;
    long long grid = (batch + block - 1)/block;
    void *args[] = {&batch, &v, &i, &n, &out, &status};
    if (grid > 2147483647)
        grid = 2147483647;
    return cudaLaunchKernel(checked_batch, dim3((unsigned)grid), dim3((unsigned)block), args, 0,
        stream);
}
#endif
