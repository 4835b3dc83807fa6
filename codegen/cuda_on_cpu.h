/* Runs the text of CUDA kernels on the CPU, to test it where there is no GPU:
 *
 *     c++ -std=c++17 -x c++ -include cuda_on_cpu.h f.cu
 *
 * The blocks of a grid run one after another, and so do the threads of a block, in ascending or in descending order.
 * A thread is a fiber: at a barrier or a shuffle it waits until all other threads of its block have come as far, so
 * that a barrier that is missing shows in one order or the other, and one that some threads never reach ends the
 * program; so does a shuffle, of the lanes that its mask names. Races between blocks that run at once do not show.
 */
#pragma once
#define CUDA_ON_CPU
#undef _FORTIFY_SOURCE /* its longjmp goes to no other stack */
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __constant__
#define __noinline__
#define __shared__ static __attribute__((section("cuda_shared"))) /* what a block finds there is not a number */
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

template <class T> T atomicCAS(T *p, T expected, T value)
{
    const T old = *p;
    if (old == expected)
        *p = value;
    return old;
}
inline unsigned atomicInc(unsigned *p, unsigned most)
{
    const unsigned old = *p;
    *p = old >= most ? 0 : old + 1;
    return old;
}
template <class T> T atomicAdd(T *p, T value)
{
    const T old = *p;
    *p = old + value;
    return old;
}

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
typedef void *cudaStream_t;

extern "C" char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

namespace cuda_on_cpu {
constexpr size_t STACK = 1 << 18;
enum state { RUNS, POLLS, IN_WARP, IN_BLOCK };
struct fiber {
    jmp_buf here; /* where it waits: to change to it takes no system call, as swapcontext would */
    char *stack;
    bool done;
    state at;
    unsigned mask; /* with which lanes of its warp it shuffles */
};
inline thread_local unsigned grid = 0, block = 0; /* in place of the launcher's own, where they are not 0 */
inline thread_local int descending = 0;
inline thread_local bool alone = false; /* whether the kernel has no barriers: its threads need no fibers */
inline thread_local fiber fibers[1024];
inline thread_local jmp_buf scheduler;
inline thread_local unsigned current = 0;
inline thread_local unsigned long long lanes[1024];
inline thread_local void (*todo)(void *) = nullptr;
inline thread_local void *given = nullptr;

inline void wait(state at, unsigned mask = ~0u)
{
    if (alone) {
        fprintf(stderr, "a kernel that was said to have no barriers has one\n");
        abort();
    }
    fiber &me = fibers[current];
    me.at = at;
    me.mask = mask;
    if (!_setjmp(me.here))
        _longjmp(scheduler, 1);
}

/* A fiber is the same thread of one block after the other. */
inline void entry()
{
    for (;;) {
        todo(given);
        fibers[current].done = true;
        if (!_setjmp(fibers[current].here))
            _longjmp(scheduler, 1);
    }
}

/* Runs a thread until it waits, or is done. */
inline void resume(unsigned i)
{
    fiber &f = fibers[i];
    current = i;
    threadIdx = dim3(i);
    if (_setjmp(scheduler))
        return;
    if (f.stack)
        _longjmp(f.here, 1);
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = f.stack = (char *)malloc(STACK);
    first.uc_stack.ss_size = STACK;
    makecontext(&first, entry, 0);
    setcontext(&first);
}

/* The shared memory that a launch sizes; what lies behind that must stay as it is. */
static constexpr unsigned MOST = 48 << 10;
inline thread_local unsigned sized = 0;
}
static __attribute__((section("cuda_shared"), aligned(16))) char cuda_on_cpu_sized[cuda_on_cpu::MOST];
namespace cuda_on_cpu {

inline void stuck(const char *what, unsigned come, unsigned all)
{
    fprintf(stderr, "%s was reached by %u of %u threads\n", what, come, all);
    abort();
}

/* Whether all lanes that a thread shuffles with have come to the same shuffle. */
inline bool together(unsigned first, unsigned n, unsigned mask)
{
    for (unsigned k = 0; k < n; k++) {
        const fiber &f = fibers[first + k];
        if ((mask >> k & 1) && (f.done || f.at != IN_WARP || f.mask != mask))
            return false;
    }
    return true;
}

/* The copy engine: a copy is made at once or, where threads go in descending order, as late as it may be: rows into
 * shared memory when someone asks for them, rows out of it when someone waits for that, and else never. */
struct copy {
    void *to;
    const void *from;
    unsigned bytes;
    const void *of; /* what counts it, or the thread that waits for it */
};
inline thread_local copy fetched[1024], sent[1024];
inline thread_local unsigned fetching = 0, sending = 0;

inline void start(copy *all, unsigned &many, copy c)
{
    if (((size_t)c.to | (size_t)c.from | c.bytes) & 15 || many == 1024)
        stuck("a copy that the engine does not take", c.bytes, many);
    if (descending)
        all[many++] = c;
    else
        memcpy(c.to, c.from, c.bytes);
}

inline void finish(copy *all, unsigned &many, const void *of)
{
    unsigned left = 0;
    for (unsigned k = 0; k < many; k++) {
        if (all[k].of == of)
            memcpy(all[k].to, all[k].from, all[k].bytes);
        else
            all[left++] = all[k];
    }
    many = left;
}

/* The threads of a warp, until each is done or at a barrier of the block. */
inline void run_warp(unsigned first, unsigned n)
{
    for (unsigned waits = 0;;) {
        unsigned shuffling = 0, released = 0, polling = 0;
        for (unsigned k = 0; k < n; k++) {
            fiber &f = fibers[first + (descending ? n - 1 - k : k)];
            const bool polled = f.at == POLLS;
            if (!f.done && (polled || f.at == RUNS)) {
                resume((unsigned)(&f - fibers));
                released += polled && f.at != POLLS; /* it goes on */
            }
            shuffling += !f.done && f.at == IN_WARP;
            polling += !f.done && f.at == POLLS;
        }
        if (!shuffling && !polling)
            return;
        for (unsigned k = 0; k < n; k++) {
            const fiber &f = fibers[first + k];
            const unsigned mask = f.mask;
            if (f.done || f.at != IN_WARP || !(mask >> k & 1) || !together(first, n, mask))
                continue;
            for (unsigned j = 0; j < n; j++) {
                if (mask >> j & 1) {
                    fibers[first + j].at = RUNS;
                    released++;
                }
            }
        }
        waits = released ? 0 : waits + 1;
        if (waits > (polling ? 2 : 0)) /* those that poll may have been asked before the others */
            stuck(polling ? "the arrival of rows" : "a shuffle", shuffling, n);
    }
}

/* All threads of one block, from barrier to barrier. */
inline void run_block(void (*body)(void *), void *args)
{
    const unsigned n = blockDim.x, warps = (n + 31)/32;
    if (alone) {
        for (unsigned i = 0; i < n; i++) {
            threadIdx = dim3(descending ? n - 1 - i : i);
            body(args);
        }
        return;
    }
    todo = body;
    given = args;
    if (__start_cuda_shared)
        memset(__start_cuda_shared, 0xff, (size_t)(__stop_cuda_shared - __start_cuda_shared));
    fetching = sending = 0;
    for (unsigned i = 0; i < n; i++) {
        fibers[i].done = false;
        fibers[i].at = RUNS;
    }
    for (;;) {
        unsigned waiting = 0;
        for (unsigned k = 0; k < warps; k++) {
            const unsigned w = descending ? warps - 1 - k : k;
            run_warp(32*w, n - 32*w < 32 ? n - 32*w : 32);
        }
        for (unsigned i = 0; i < n; i++)
            waiting += !fibers[i].done;
        if (!waiting)
            return;
        if (waiting < n)
            stuck("a barrier", waiting, n);
        for (unsigned i = 0; i < n; i++)
            fibers[i].at = RUNS;
    }
}

/* The value that another thread of the warp gives; every thread that the mask names takes part. */
template <class T> T exchange(unsigned mask, T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes");
    const unsigned me = current, base = me & ~31u, from = base + lane;
    unsigned long long word = 0;
    memcpy(&word, &value, sizeof value);
    lanes[me] = word;
    wait(IN_WARP, mask);
    T other;
    memcpy(&other, &lanes[from < blockDim.x ? from : me], sizeof other);
    wait(IN_WARP, mask);
    return other;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void **args, std::index_sequence<I...>)
{
    kernel(*(A *)args[I]...);
}

template <class... A> struct launch {
    void (*kernel)(A...);
    void **args;
    static void run(void *self)
    {
        const launch *l = (const launch *)self;
        call(l->kernel, l->args, std::index_sequence_for<A...>());
    }
};
}

#define HYAD_BULK
/* In the barrier: how many announcements end a phase, how many this one still wants, and how many have ended. */
inline void hyad_bulk_begin(unsigned long long *arrived, unsigned many)
{
    *arrived = many | (unsigned long long)many << 16;
}
inline void hyad_bulk_announce(unsigned long long *arrived, unsigned)
{
    *arrived -= 1ull << 16;
    if (!(*arrived >> 16 & 0xffff))
        *arrived += (*arrived & 0xffff) << 16 | 1ull << 32;
}
inline void hyad_bulk_fetch(void *to, const void *from, unsigned bytes, unsigned long long *arrived)
{
    cuda_on_cpu::start(cuda_on_cpu::fetched, cuda_on_cpu::fetching, {to, from, bytes, arrived});
}
inline bool hyad_bulk_arrived(unsigned long long *arrived, unsigned parity)
{
    if ((*arrived >> 32 & 1) == parity) { /* the phase goes on */
        cuda_on_cpu::wait(cuda_on_cpu::POLLS);
        return false;
    }
    cuda_on_cpu::finish(cuda_on_cpu::fetched, cuda_on_cpu::fetching, arrived);
    return true;
}
inline void hyad_bulk_made() {}
inline void hyad_bulk_send(void *to, const void *from, unsigned bytes)
{
    cuda_on_cpu::start(cuda_on_cpu::sent, cuda_on_cpu::sending, {to, from, bytes, &cuda_on_cpu::fibers[cuda_on_cpu::current]});
}
inline void hyad_bulk_sent()
{
    cuda_on_cpu::finish(cuda_on_cpu::sent, cuda_on_cpu::sending, &cuda_on_cpu::fibers[cuda_on_cpu::current]);
}

inline void __threadfence() {}
inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::IN_BLOCK); }
/* Whether any thread of the block says so. */
inline int __syncthreads_or(int holds)
{
    static thread_local int any;
    any = 0; /* by each thread, before the barrier lets the first one go on */
    __syncthreads();
    any |= holds != 0;
    __syncthreads();
    const int found = any;
    __syncthreads();
    return found;
}
inline void __syncwarp(unsigned mask = ~0u) { cuda_on_cpu::wait(cuda_on_cpu::IN_WARP, mask); }
template <class T> T __shfl_sync(unsigned mask, T value, unsigned lane)
{
    return cuda_on_cpu::exchange(mask, value, lane & 31u);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by)
{
    const unsigned lane = (cuda_on_cpu::current & 31u) + by;
    return cuda_on_cpu::exchange(mask, value, lane < 32 ? lane : cuda_on_cpu::current & 31u);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by)
{
    const unsigned lane = cuda_on_cpu::current & 31u;
    return cuda_on_cpu::exchange(mask, value, lane >= by ? lane - by : lane);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, unsigned by)
{
    return cuda_on_cpu::exchange(mask, value, (cuda_on_cpu::current & 31u) ^ by);
}

/* For the tests: the shape of the launches to come, the order of their threads, and whether these wait for no other. */
extern "C" inline __attribute__((used)) void cuda_on_cpu_shape(unsigned grid, unsigned block, int descending, int alone)
{
    cuda_on_cpu::alone = alone;
    cuda_on_cpu::grid = grid;
    cuda_on_cpu::block = block;
    cuda_on_cpu::descending = descending;
}

template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t)
{
    gridDim = cuda_on_cpu::grid ? dim3(cuda_on_cpu::grid) : grid;
    blockDim = cuda_on_cpu::block ? dim3(cuda_on_cpu::block) : block;
    if (gridDim.x < 1 || gridDim.x > 2147483647u || blockDim.x < 1 || blockDim.x > 1024 || shared > cuda_on_cpu::MOST)
        return cudaErrorInvalidConfiguration;
    cuda_on_cpu::launch<A...> all = {kernel, args};
    cuda_on_cpu::sized = (unsigned)shared;
    for (unsigned b = 0; b < gridDim.x; b++) {
        blockIdx = dim3(cuda_on_cpu::descending ? gridDim.x - 1 - b : b);
        cuda_on_cpu::run_block(&cuda_on_cpu::launch<A...>::run, &all);
        const char *const end = cuda_on_cpu_sized + shared;
        const size_t left = cuda_on_cpu::MOST - shared;
        if (!cuda_on_cpu::alone && left && (*end != -1 || memcmp(end, end + 1, left - 1)))
            cuda_on_cpu::stuck("shared memory beyond what the launch gives", (unsigned)shared, cuda_on_cpu::MOST);
    }
    return cudaSuccess;
}

/* The runtime's calls in host code; the device's memory is the host's. */
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

enum cudaLimit { cudaLimitStackSize = 0 };
namespace cuda_on_cpu {
inline size_t limit = 1 << 10; /* bytes of a thread's stack, of which nobody sees to it that they are all */
}
inline cudaError_t cudaDeviceGetLimit(size_t *bytes, cudaLimit)
{
    *bytes = cuda_on_cpu::limit;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSetLimit(cudaLimit, size_t bytes)
{
    cuda_on_cpu::limit = bytes;
    return cudaSuccess;
}
