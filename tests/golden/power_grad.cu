/* an array of a thread: between its elements lie those of the other threads of its warp */
template <class T> struct hyad_strided {
  T *first;
  __device__ T &operator[](long long k) const { return first[32*k]; }
  __device__ hyad_strided operator+(long long k) const { return {first + 32*k}; }
  __device__ bool operator!=(hyad_strided other) const { return first != other.first; }
};
/* the one that begins behind so many reals of each thread, in the memory of a warp */
template <class T, class R>
static __device__ inline hyad_strided<T> hyad_own(R *warp, long long behind) {
  return {(T *)(warp + 32*behind) + (threadIdx.x & 31u)};
}

/* power_grad: grad of power
 * (defmodel power [x #^ Int n] (ifold (fn [s k] (* s x (+ 1.0 (real k)))) 1.0 n))
 * work: room for (n > 0 ? n : 0) reals */
static __device__ void power_grad_element(double x, long long n, double *__restrict__ out,
    double *__restrict__ work)
{
    hyad_strided<double> s = hyad_own<double>(work, 0);  // (ifold (fn [s k] (* s x (+ 1.0 (real k)))) 1.0 n)
    double s1 = 1.0;
    for (long long k = 0; k < n; k++) {
        s[k] = s1;
        s1 = s1*x*(1.0 + (double)k);  // (* s x (+ 1.0 (real k)))
    }
    double s_bar = 1.0;  // (ifold (fn ... ...) 1.0 n)
    double x_bar = 0.0;
    for (long long k = 0; k < n; k++) {
        const double s2 = s[n - 1 - k];
        const double t_bar = s_bar*(1.0 + (double)(n - 1 - k));  // (* s x (+ 1.0 (real k)))
        s_bar = t_bar*x;
        x_bar += t_bar*s2;
    }
    *out = x_bar;  // (ifold (fn ... ...) 1.0 n)
}

/* one thread for each element; batched: x, n */
extern "C" __global__ void power_grad_batch(long long batch, const double *__restrict__ x,
    const long long *__restrict__ n, double *__restrict__ out, double *__restrict__ work,
    long long room)
{
    const long long thread = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const long long step = (long long)gridDim.x*blockDim.x;
    double *own = work + (thread - (threadIdx.x & 31u))*room;
    for (long long k = thread; k < batch; k += step) {
        power_grad_element(x[k], n[k], out + k, own);
    }
}

#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */
extern "C" cudaError_t power_grad_launch(long long batch, const double *x, const long long *n,
    double *out, double *work, long long room, long long threads, cudaStream_t stream)
{
    if (batch <= 0)
        return cudaSuccess;
    if (threads < 32)
        return cudaErrorInvalidValue;
    const long long block = threads < 128 ? threads/32*32 : 128;
    long long grid = (batch + block - 1)/block;
    void *args[] = {&batch, &x, &n, &out, &work, &room};
    if (grid > threads/block)
        grid = threads/block;
    return cudaLaunchKernel(power_grad_batch, dim3((unsigned)grid), dim3((unsigned)block), args, 0,
        stream);
}
#endif
