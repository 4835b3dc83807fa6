/* Runs the text of a CUDA kernel on the CPU, to test it where there is no GPU:
 *
 *     c++ -std=c++17 -x c++ -include cuda_on_cpu.h f.cu
 *
 * The threads of a grid run one after another, in ascending or in descending order: enough for kernels without
 * barriers, which is what hyad prints. Races between threads that run at once do not show.
 */
#pragma once
#define CUDA_ON_CPU
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <utility>

#define __global__
#define __device__
#define __constant__
#define __noinline__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

inline unsigned long long atomicCAS(unsigned long long *p, unsigned long long expected, unsigned long long value)
{
    const unsigned long long old = *p;
    if (old == expected)
        *p = value;
    return old;
}

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
typedef void *cudaStream_t;

namespace cuda_on_cpu {
inline thread_local unsigned grid = 0, block = 0; /* in place of the launcher's own, where they are not 0 */
inline thread_local int descending = 0;

template <class... A, size_t... I>
void call(void (*kernel)(A...), void **args, std::index_sequence<I...>)
{
    kernel(*(A *)args[I]...);
}
}

/* For the tests: the shape of the launches to come, and the order of their threads. */
extern "C" inline __attribute__((used)) void cuda_on_cpu_shape(unsigned grid, unsigned block, int descending)
{
    cuda_on_cpu::grid = grid;
    cuda_on_cpu::block = block;
    cuda_on_cpu::descending = descending;
}

template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void **args, size_t, cudaStream_t)
{
    gridDim = cuda_on_cpu::grid ? dim3(cuda_on_cpu::grid) : grid;
    blockDim = cuda_on_cpu::block ? dim3(cuda_on_cpu::block) : block;
    if (gridDim.x < 1 || gridDim.x > 2147483647u || blockDim.x < 1 || blockDim.x > 1024)
        return cudaErrorInvalidConfiguration;
    const unsigned long long count = (unsigned long long)gridDim.x*blockDim.x;
    for (unsigned long long n = 0; n < count; n++) {
        const unsigned long long t = cuda_on_cpu::descending ? count - 1 - n : n;
        blockIdx = dim3((unsigned)(t/blockDim.x));
        threadIdx = dim3((unsigned)(t % blockDim.x));
        cuda_on_cpu::call(kernel, args, std::index_sequence_for<A...>());
    }
    return cudaSuccess;
}
