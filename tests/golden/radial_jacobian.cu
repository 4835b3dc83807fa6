/* radial_jacobian: jacobian of radial
 * (defmodel radial [#^ (Vec 3) p c] (let [r2 (+ (* (get p 0) (get p 0)) (* (get p 1) (get...
 * arrays, row-major: p[3], out0[2][3], out1[2] */
static __device__ void radial_jacobian_element(const double *__restrict__ p, double c,
    double *__restrict__ out0, double *__restrict__ out1)
{
    const double t = p[0];  /* (get p 0) */
    const double t1 = p[1];  /* (get p 1) */
    const double r2 = t*t + t1*t1;  /* (+ (* (get p 0) (get p 0)) (* (get p 1) (get p 1))) */
    const double t2 = p[2];  /* (get p 2) */
    const double t3 = 1.0 + c*r2;  /* (+ 1.0 (* c r2)) */
    const double t4 = t2*t;  /* (* (get p 2) (get p 0) (+ 1.0 (* c r2))) */
    const double t5 = t2*t1;  /* (* (get p 2) (get p 1) (+ 1.0 (* c r2))) */
    const double t_bar = t3*t2;  /* (* (get p 2) (get p 0) (+ 1.0 (* c r2))) */
    const double r2_bar = t4*c;  /* (* c r2) */
    const double t_bar1 = r2_bar*t;  /* (* (get p 0) (get p 0)) */
    out0[0] = t_bar + t_bar1 + t_bar1;  /* (get p 0) */
    out0[1] = 2.0*(r2_bar*t1);
    out0[2] = t3*t;
    const double r2_bar1 = t5*c;  /* (* c r2) */
    const double t_bar2 = r2_bar1*t1;  /* (* (get p 1) (get p 1)) */
    out0[3] = 2.0*(r2_bar1*t);  /* (get p 0) */
    out0[4] = t_bar + t_bar2 + t_bar2;
    out0[5] = t3*t1;
    out1[0] = t4*r2;
    out1[1] = t5*r2;
}

/* one thread for each element; batched: p; shared: c */
extern "C" __global__ void radial_jacobian_batch(long long batch, const double *__restrict__ p,
    double c, double *__restrict__ out0, double *__restrict__ out1)
{
    const long long thread = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const long long step = (long long)gridDim.x*blockDim.x;
    for (long long k = thread; k < batch; k += step) {
        radial_jacobian_element(p + k*3, c, out0 + k*6, out1 + k*2);
    }
}

#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */
extern "C" cudaError_t radial_jacobian_launch(long long batch, const double *p, double c,
    double *out0, double *out1, cudaStream_t stream)
{
    const long long block = 128;
    long long grid = (batch + block - 1)/block;
    void *args[] = {&batch, &p, &c, &out0, &out1};
    if (batch <= 0)
        return cudaSuccess;
    if (grid > 2147483647)
        grid = 2147483647;
    return cudaLaunchKernel(radial_jacobian_batch, dim3((unsigned)grid), dim3((unsigned)block),
        args, 0, stream);
}
#endif
