#ifndef __CUDACC_RTC__ /* NVRTC has these functions built in */
#include <math.h>
#endif

/* what a thread has to itself: free memory, bytes of the stack for recursion, the check that failed */
struct hyad_arena { char *next, *end; size_t stack; int failed; };

static __device__ inline void *hyad_alloc(hyad_arena *arena, size_t size)
{
    char *p = arena->next;
    size = (size + 7)/8*8;
    if (size > (size_t)(arena->end - p)) {
        arena->failed = 3;
        return nullptr;
    }
    arena->next = p + size;
    return p;
}

/* whether the stack is nearly used up, down to what lies `here`: whichever way it grows. Nothing is written there, but
   compilers warn that nothing was, of a pointer to what is constant. */
static __device__ inline int hyad_deep(const hyad_arena *arena, char *here)
{
    const size_t a = (size_t)arena, b = (size_t)here;
    return (a > b ? a - b : b - a) > arena->stack;
}

typedef const struct f_record_cell *f_record;
/* f_record: then: nullptr or (else_ t record t1 record1) */
struct f_record_cell {
    double t;
    f_record record;
    double t1;
    f_record record1;
};

static __device__ inline struct f_record_cell *new_f_record_else_(hyad_arena *arena, double t,
    f_record record, double t1, f_record record1)
{
    struct f_record_cell *cell;
    cell = (struct f_record_cell *)hyad_alloc(arena, sizeof(struct f_record_cell));
    if (!cell) return nullptr;
    cell->t = t;
    cell->record = record;
    cell->t1 = t1;
    cell->record1 = record1;
    return cell;
}
struct f_there_results { double f; f_record record; };
static __device__ struct f_there_results f_there(hyad_arena *arena, double x, long long d);
static __device__ double f_back(hyad_arena *arena, double x, f_record record, double f_bar);

/* (fn [x d] (if (or (< ... 0.1) (> d 20)) (sin x) (* (f ... ...) (f ... ...)))) */
static __device__ struct f_there_results f_there(hyad_arena *arena, double x, long long d)
{
    if (fabs(x) < 0.1 || d > 20) {  // (if (or (< ... 0.1) (> d 20)) (sin x) (* (f ... ...) (f ... ...)))
        return f_there_results{sin(x), nullptr};  // (sin x)
    }
    char here;  // (if ... ... ...)
    if (hyad_deep(arena, &here)) { arena->failed = 1; return {}; }
    const struct f_there_results f_there1 = f_there(arena, 0.5*x, d + 1);  // (f (* 0.5 x) (+ d 1))
    if (arena->failed) return {};
    const struct f_there_results f_there2 = f_there(arena, 0.3*x - 0.01, d + 1);  // (f (- (* 0.3 x) 0.01) (+ d 1))
    if (arena->failed) return {};
    const f_record record = new_f_record_else_(arena, f_there1.f, f_there1.record, f_there2.f, f_there2.record);  // (if ... ... ...)
    if (arena->failed) return {};
    return f_there_results{f_there1.f*f_there2.f, record};  // (* (f (* 0.5 x) (+ d 1)) (f (- ... 0.01) (+ d 1)))
}

/* (fn [x d] (if (or (< ... 0.1) (> d 20)) (sin x) (* (f ... ...) (f ... ...)))) */
static __device__ double f_back(hyad_arena *arena, double x, f_record record, double f_bar)
{
    if (record == nullptr) {  // (if (or (< ... 0.1) (> d 20)) (sin x) (* (f ... ...) (f ... ...)))
        return f_bar*cos(x);  // (sin x)
    }
    char here;
    if (hyad_deep(arena, &here)) { arena->failed = 2; return {}; }
    const double t_bar = f_back(arena, 0.3*x - 0.01, record->record1, f_bar*record->t);  // (* (f ... ...) (f ... ...))
    if (arena->failed) return {};
    const double t_bar1 = f_back(arena, 0.5*x, record->record, f_bar*record->t1);
    if (arena->failed) return {};
    return 0.3*t_bar + 0.5*t_bar1;  // (* 0.5 x)
}


/* halves: value-and-grad of halves by 0
 * (defmodel halves [#^ (Vec n) v] ...)
 * arrays, row-major: v[n], v_bar[n]
 * work: room for 2*n reals
 * returns 0, or the number of the check that failed */
static __device__ int halves_element(const double *__restrict__ v, long long n,
    double *__restrict__ value, double *__restrict__ v_bar, double *__restrict__ work,
    hyad_arena *arena)
{
    double *t = work + n;  // (map (fn [a] (f a 0)) v)
    f_record *t1 = (f_record *)work;
    for (long long i = 0; i < n; i++) {
        const struct f_there_results f_there1 = f_there(arena, v[i], 0);  // (f a 0)
        if (arena->failed) return arena->failed;
        t[i] = f_there1.f;  // (map (fn [a] (f a 0)) v)
        t1[i] = f_there1.record;
    }
    double acc = 0.0;  // (sum (map (fn [a] (f a 0)) v))
    for (long long i = 0; i < n; i++) {
        const double t_bar = f_back(arena, v[n - i - 1], t1[n - i - 1], 1.0);  // (f a 0)
        if (arena->failed) return arena->failed;
        v_bar[n - i - 1] = t_bar;  // (map (fn [a] (f a 0)) v)
        acc += t[i];  // (sum (map (fn [a] (f a 0)) v))
    }
    *value = acc;
    return 0;
}

/* one thread for each element; batched: v */
extern "C" __global__ void halves_batch(long long batch, const double *__restrict__ v, long long n,
    double *__restrict__ value, double *__restrict__ v_bar, double *__restrict__ work,
    long long room, long long stack, unsigned long long *status)
{
    const long long thread = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const long long step = (long long)gridDim.x*blockDim.x;
    double *own = work + thread*room;
    for (long long k = thread; k < batch; k += step) {
        hyad_arena memory = {(char *)(own + 2*n), (char *)(own + room),
            stack > 2048 ? (size_t)(stack - 2048) : 0, 0};
        const int failed = halves_element(v + k*n, n, value + k, v_bar + k*n, own, &memory);
        if (failed && atomicCAS(status, 0ULL, (unsigned long long)failed) == 0)
            status[1] = (unsigned long long)k;
    }
}

#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */
#ifndef HYAD_STACK
#define HYAD_STACK 16384 /* bytes of the stack that each thread has at least, for recursion */
#endif
static inline cudaError_t hyad_stack(long long *bytes)
{
    size_t found = 0;
    cudaError_t error = cudaDeviceGetLimit(&found, cudaLimitStackSize);
    if (!error && found < HYAD_STACK)
        error = cudaDeviceSetLimit(cudaLimitStackSize, found = HYAD_STACK);
    *bytes = (long long)found;
    return error;
}
extern "C" cudaError_t halves_launch(long long batch, const double *v, long long n, double *value,
    double *v_bar, double *work, long long room, unsigned long long *status, long long threads,
    cudaStream_t stream)
{
    if (batch <= 0)
        return cudaSuccess;
    if (threads < 1)
        return cudaErrorInvalidValue;
    long long stack = 0;
    const cudaError_t error = hyad_stack(&stack);
    if (error)
        return error;
    const long long block = threads < 128 ? threads : 128;
    long long grid = (batch + block - 1)/block;
    void *args[] = {&batch, &v, &n, &value, &v_bar, &work, &room, &stack, &status};
    if (grid > threads/block)
        grid = threads/block;
    return cudaLaunchKernel(halves_batch, dim3((unsigned)grid), dim3((unsigned)block), args, 0,
        stream);
}
#endif
