/* A libcuda.so.1 where there is no GPU, for pycuda itself to run on: what it is given as machine code is code for this
 * CPU, which the nvcc beside this file makes of a kernel's text.
 *
 * It is strict. What CUDA may put off is put off until something waits for it, so that a missing wait gives wrong
 * numbers. Each context has an arena of its own, which is closed but while a kernel or a copy of that context runs: the
 * host cannot touch the memory of a GPU, nor one context another's. A write behind an allocation is a failed launch, an
 * address that is nobody's an error that stays. The address of a context that is gone is that of the next one.
 *
 * Functions that hyad's calls of pycuda do not need say that they are not supported.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {
typedef unsigned long long u64;

size_t setting(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

const size_t TOTAL = setting("STANDIN_MEMORY", size_t(2) << 30); /* bytes of each GPU */
const size_t COUNT = setting("STANDIN_GPUS", 1);
const size_t GUARD = 256, ARENA = size_t(1) << 36;

struct Stream;
struct Context;
struct Op {
    std::function<void()> run;
    std::vector<std::pair<Stream *, u64>> after;
};
struct Stream {
    Context *context;
    bool blocking = true, alive = true;
    u64 queued = 0, done = 0;
    std::deque<Op> ops;
};
struct Event {
    Context *context;
    Stream *stream = nullptr;
    u64 at = 0;
    bool timing, alive = true;
    double time = 0;
};
struct Context {
    int device;
    bool primary, alive = true;
    int uses = 1;
    CUresult lost = CUDA_SUCCESS;
    char *arena = nullptr;
    std::map<size_t, size_t> memory; /* sizes by their places in the arena */
    size_t stack = 1024, heap = 8 << 20;
    Stream legacy;
    std::set<Stream *> streams;
};
struct Module {
    Context *context;
    void *library;
    bool alive = true;
};
typedef int (*start)(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, const void *, size_t);
struct Function {
    Module *module;
    std::string name;
    start run;
    int shared = 48 << 10;
};

std::recursive_mutex lock;
bool initialised = false;
std::vector<Context *> contexts, primaries;
std::map<size_t, size_t> used; /* bytes by device */
std::set<Event *> events;
std::set<Function *> functions;
std::set<Module *> modules;
thread_local std::vector<Context *> stack;

Context *current() { return stack.empty() ? nullptr : stack.back(); }

/* How a function begins: with what must be so, and with errors that stay. */
#define ENTER \
    std::lock_guard<std::recursive_mutex> held(lock); \
    if (!initialised) \
        return CUDA_ERROR_NOT_INITIALIZED;
#define IN_CONTEXT \
    ENTER \
    Context *c = current(); \
    if (!c) \
        return CUDA_ERROR_INVALID_CONTEXT; \
    if (!c->alive) \
        return CUDA_ERROR_CONTEXT_IS_DESTROYED; \
    if (c->lost) \
        return c->lost;

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3*t.tv_sec + 1e-6*t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------ memory */

size_t end_of(Context *c)
{
    if (c->memory.empty())
        return 4096;
    const auto &last = *c->memory.rbegin();
    return last.first + last.second + GUARD;
}

void open_arena(Context *c, int how)
{
    const size_t size = (end_of(c) + 4095) & ~size_t(4095);
    mprotect(c->arena, size, how);
}

/* Whether so many bytes are one allocation's. */
bool inside(Context *c, CUdeviceptr p, size_t bytes)
{
    const size_t at = p - (CUdeviceptr)c->arena;
    auto next = c->memory.upper_bound(at);
    if (next == c->memory.begin())
        return false;
    --next;
    return at >= next->first && at + bytes <= next->first + next->second;
}

bool guards_hold(Context *c)
{
    for (auto &m : c->memory)
        for (size_t k = 0; k < GUARD; k++)
            if ((unsigned char)c->arena[m.first + m.second + k] != 0xa7) {
                fprintf(stderr, "stand-in: a write behind an allocation of %zu bytes\n", m.second);
                return false;
            }
    return true;
}

/* ----------------------------------------------------------------------------------------- streams */

void run_to(Stream *s, u64 at)
{
    while (s->done < at) {
        Op op = std::move(s->ops.front());
        s->ops.pop_front();
        for (auto &d : op.after)
            run_to(d.first, d.second);
        if (!s->context->lost)
            op.run();
        s->done++;
    }
}

void run_all(Context *c)
{
    run_to(&c->legacy, c->legacy.queued);
    for (Stream *s : c->streams)
        run_to(s, s->queued);
}

CUresult enqueue(Stream *s, std::function<void()> what, std::vector<std::pair<Stream *, u64>> after = {})
{
    Context *c = s->context;
    if (s == &c->legacy) {
        for (Stream *other : c->streams)
            if (other->blocking)
                after.push_back({other, other->queued});
    } else if (s->blocking)
        after.push_back({&c->legacy, c->legacy.queued});
    s->ops.push_back({std::move(what), std::move(after)});
    s->queued++;
    return CUDA_SUCCESS;
}

/* The stream of a handle, or null. */
Stream *stream_of(Context *c, CUstream h)
{
    if (!h || h == CU_STREAM_LEGACY)
        return &c->legacy;
    Stream *s = (Stream *)h;
    return c->streams.count(s) ? s : nullptr;
}

CUresult finish(Stream *s)
{
    run_to(s, s->queued);
    return s->context->lost;
}

/* ----------------------------------------------------------------------------------------- kernels */

thread_local sigjmp_buf escape;
thread_local volatile bool running = false;
struct sigaction before[2];

void fault(int number, siginfo_t *info, void *)
{
    if (running)
        siglongjmp(escape, 1);
    fprintf(stderr, "stand-in: the host touched memory at %p that is not its own\n", info->si_addr);
    sigaction(number, &before[number == SIGBUS], nullptr);
}

void launch(Context *c, Function *f, const unsigned *shape, size_t shared, const std::vector<char> &params)
{
    open_arena(c, PROT_READ | PROT_WRITE);
    int refused = 0;
    if (!sigsetjmp(escape, 1)) {
        running = true;
        refused = f->run(shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shared, params.data(),
                         params.size());
        running = false;
        if (refused || !guards_hold(c))
            c->lost = CUDA_ERROR_LAUNCH_FAILED;
    } else {
        running = false;
        c->lost = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    open_arena(c, PROT_NONE);
}

Context *make_context(int device, bool primary)
{
    Context *c = new Context;
    for (Context *&old : contexts)
        if (!old->alive && !primary) { /* its address comes again */
            c = old;
            c->~Context();
            new (c) Context;
            break;
        }
    if (std::find(contexts.begin(), contexts.end(), c) == contexts.end())
        contexts.push_back(c);
    c->device = device;
    c->primary = primary;
    c->legacy.context = c;
    c->arena = (char *)mmap(nullptr, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return c;
}

void destroy(Context *c)
{
    run_all(c);
    for (auto &m : c->memory)
        used[c->device] -= m.second;
    for (Module *m : modules)
        if (m->context == c)
            m->alive = false;
    munmap(c->arena, ARENA);
    c->alive = false;
}
}

#define API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

API cuInit(unsigned flags)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    if (!COUNT)
        return CUDA_ERROR_NO_DEVICE;
    if (!initialised) {
        struct sigaction a = {};
        a.sa_sigaction = fault;
        a.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &a, &before[0]);
        sigaction(SIGBUS, &a, &before[1]);
        initialised = true;
        primaries.resize(COUNT);
    }
    return CUDA_SUCCESS;
}
API cuDriverGetVersion(int *v) { *v = 13000; return CUDA_SUCCESS; }
API cuGetErrorString(CUresult e, const char **text)
{
    static const std::map<int, const char *> all = {
        {0, "no error"}, {1, "invalid argument"}, {2, "out of memory"}, {3, "initialization error"},
        {100, "no CUDA-capable device is detected"}, {101, "invalid device ordinal"},
        {200, "device kernel image is invalid"}, {201, "invalid device context"},
        {209, "no kernel image is available for execution on the device"}, {400, "invalid resource handle"},
        {500, "named symbol not found"}, {600, "device not ready"},
        {700, "an illegal memory access was encountered"}, {701, "too many resources requested for launch"},
        {709, "context is destroyed"}, {719, "unspecified launch failure"}, {801, "operation not supported"}};
    auto found = all.find(e);
    *text = found == all.end() ? "unknown error" : found->second;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------- devices */
API cuDeviceGetCount(int *n)
{
    ENTER
    *n = (int)COUNT;
    return CUDA_SUCCESS;
}
API cuDeviceGet(CUdevice *d, int k)
{
    ENTER
    if (k < 0 || k >= (int)COUNT)
        return CUDA_ERROR_INVALID_DEVICE;
    *d = k;
    return CUDA_SUCCESS;
}
API cuDeviceGetName(char *name, int length, CUdevice) { snprintf(name, length, "a stand-in"); return CUDA_SUCCESS; }
API cuDeviceComputeCapability(int *major, int *minor, CUdevice) { *major = 9; *minor = 0; return CUDA_SUCCESS; }
API cuDeviceTotalMem(size_t *bytes, CUdevice) { *bytes = TOTAL; return CUDA_SUCCESS; }
API cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice)
{
    static const std::map<int, int> all = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 1 << 16},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 256},
    };
    auto found = all.find(which);
    if (found == all.end())
        return CUDA_ERROR_INVALID_VALUE;
    *value = found->second;
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------- contexts */
API cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *, unsigned, CUdevice d)
{
    ENTER
    Context *c = make_context(d, false);
    stack.push_back(c);
    *out = (CUcontext)c;
    return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d)
{
    ENTER
    Context *&c = primaries[d];
    if (!c || !c->alive)
        c = make_context(d, true);
    else
        c->uses++;
    *out = (CUcontext)c;
    return c->lost;
}
API cuDevicePrimaryCtxRelease(CUdevice d)
{
    ENTER
    Context *c = primaries[d];
    if (!c || !c->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult lost = c->lost;
    if (!--c->uses)
        destroy(c);
    return lost;
}
API cuCtxDetach(CUcontext h)
{
    ENTER
    Context *c = (Context *)h;
    if (c != current() || !c->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult lost = c->lost;
    stack.pop_back();
    if (!--c->uses)
        destroy(c);
    return lost;
}
API cuCtxPushCurrent(CUcontext h)
{
    ENTER
    Context *c = (Context *)h;
    if (!c->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stack.push_back(c);
    return CUDA_SUCCESS;
}
API cuCtxPopCurrent(CUcontext *h)
{
    ENTER
    if (stack.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    *h = (CUcontext)stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}
API cuCtxGetCurrent(CUcontext *h)
{
    ENTER
    *h = (CUcontext)current();
    return CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext h)
{
    ENTER
    if (!stack.empty())
        stack.pop_back();
    if (h)
        stack.push_back((Context *)h);
    return CUDA_SUCCESS;
}
API cuCtxGetDevice(CUdevice *d)
{
    IN_CONTEXT
    *d = c->device;
    return CUDA_SUCCESS;
}
API cuCtxSynchronize()
{
    IN_CONTEXT
    run_all(c);
    return c->lost;
}
API cuCtxGetLimit(size_t *value, CUlimit which)
{
    IN_CONTEXT
    *value = which == CU_LIMIT_STACK_SIZE ? c->stack : c->heap;
    return CUDA_SUCCESS;
}
API cuCtxSetLimit(CUlimit which, size_t value)
{
    IN_CONTEXT
    if (which == CU_LIMIT_STACK_SIZE)
        c->stack = (value + 15) & ~size_t(15);
    else
        c->heap = value;
    return CUDA_SUCCESS;
}
API cuCtxGetApiVersion(CUcontext, unsigned *v) { *v = 3020; return CUDA_SUCCESS; }

/* ----------------------------------------------------------------------------------------- memory */
API cuMemGetInfo(size_t *free, size_t *total)
{
    IN_CONTEXT
    *total = TOTAL;
    *free = TOTAL - used[c->device];
    return CUDA_SUCCESS;
}
API cuMemAlloc(CUdeviceptr *p, size_t bytes)
{
    IN_CONTEXT
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (used[c->device] + bytes > TOTAL || end_of(c) + bytes + 2*GUARD > ARENA)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t at = (end_of(c) + 511) & ~size_t(511);
    used[c->device] += bytes;
    c->memory[at] = bytes;
    open_arena(c, PROT_READ | PROT_WRITE);
    if (bytes <= (64 << 20))
        memset(c->arena + at, 0x63, bytes);
    memset(c->arena + at + bytes, 0xa7, GUARD);
    open_arena(c, PROT_NONE);
    *p = (CUdeviceptr)(c->arena + at);
    return CUDA_SUCCESS;
}
API cuMemFree(CUdeviceptr p)
{
    IN_CONTEXT
    const size_t at = p - (CUdeviceptr)c->arena;
    auto found = c->memory.find(at);
    if (found == c->memory.end())
        return CUDA_ERROR_INVALID_VALUE;
    run_all(c);
    used[c->device] -= found->second;
    if (found->second > 8192)
        madvise(c->arena + ((at + 4095) & ~size_t(4095)), (found->second - 4096) & ~size_t(4095), MADV_DONTNEED);
    c->memory.erase(found);
    return c->lost;
}
API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    IN_CONTEXT
    const size_t at = p - (CUdeviceptr)c->arena;
    for (auto &m : c->memory)
        if (m.first <= at && at < m.first + m.second) {
            *base = (CUdeviceptr)c->arena + m.first;
            *size = m.second;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
API cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr p)
{
    ENTER
    if (which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (Context *c : contexts)
        if (c->alive && inside(c, p, 1)) {
            *(int *)out = c->device;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(Context *c, Stream *s, std::function<void()> what, bool wait)
{
    enqueue(s, [c, what] {
        open_arena(c, PROT_READ | PROT_WRITE);
        what();
        open_arena(c, PROT_NONE);
    });
    return wait ? finish(s) : CUDA_SUCCESS;
}
#define STREAM \
    Stream *s = stream_of(c, h); \
    if (!s) \
        return CUDA_ERROR_INVALID_HANDLE;
#define INSIDE(p, n) \
    if (!inside(c, p, n)) \
        return CUDA_ERROR_INVALID_VALUE;
API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n)
{
    IN_CONTEXT
    INSIDE(to, n)
    return copy(c, &c->legacy, [=] { memcpy((void *)to, from, n); }, true);
}
API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream h)
{
    IN_CONTEXT
    STREAM
    INSIDE(to, n)
    return copy(c, s, [=] { memcpy((void *)to, from, n); }, false);
}
API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n)
{
    IN_CONTEXT
    INSIDE(from, n)
    return copy(c, &c->legacy, [=] { memcpy(to, (void *)from, n); }, true);
}
API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream h)
{
    IN_CONTEXT
    STREAM
    INSIDE(from, n)
    return copy(c, s, [=] { memcpy(to, (void *)from, n); }, false);
}
API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n)
{
    IN_CONTEXT
    INSIDE(from, n)
    INSIDE(to, n)
    return copy(c, &c->legacy, [=] { memmove((void *)to, (void *)from, n); }, false);
}
API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream h)
{
    IN_CONTEXT
    STREAM
    INSIDE(from, n)
    INSIDE(to, n)
    return copy(c, s, [=] { memmove((void *)to, (void *)from, n); }, false);
}
API cuMemsetD8(CUdeviceptr to, unsigned char v, size_t n)
{
    IN_CONTEXT
    INSIDE(to, n)
    return copy(c, &c->legacy, [=] { memset((void *)to, v, n); }, false);
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream h)
{
    IN_CONTEXT
    STREAM
    INSIDE(to, n)
    return copy(c, s, [=] { memset((void *)to, v, n); }, false);
}

/* ------------------------------------------------------------------------------ streams and events */
API cuStreamCreate(CUstream *out, unsigned flags)
{
    IN_CONTEXT
    Stream *s = new Stream;
    s->context = c;
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    c->streams.insert(s);
    *out = (CUstream)s;
    return CUDA_SUCCESS;
}
API cuStreamDestroy(CUstream h)
{
    IN_CONTEXT
    STREAM
    s->alive = false; /* what is on it still runs */
    return CUDA_SUCCESS;
}
API cuStreamSynchronize(CUstream h)
{
    ENTER
    Context *c = current();
    Stream *s = c ? stream_of(c, h) : nullptr;
    for (Context *other : contexts)
        if (!s && other->alive)
            s = other->streams.count((Stream *)h) ? (Stream *)h : nullptr;
    if (!s)
        return c ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    return s->context->lost ? s->context->lost : finish(s);
}
API cuStreamQuery(CUstream h)
{
    IN_CONTEXT
    STREAM
    return s->done < s->queued ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API cuEventCreate(CUevent *out, unsigned flags)
{
    IN_CONTEXT
    Event *e = new Event;
    e->context = c;
    e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    events.insert(e);
    *out = (CUevent)e;
    return CUDA_SUCCESS;
}
API cuEventDestroy(CUevent h)
{
    ENTER
    Event *e = (Event *)h;
    if (!events.count(e) || !e->alive)
        return CUDA_ERROR_INVALID_HANDLE;
    e->alive = false;
    return CUDA_SUCCESS;
}
API cuEventRecord(CUevent h0, CUstream h)
{
    IN_CONTEXT
    STREAM
    Event *e = (Event *)h0;
    if (!events.count(e) || !e->alive || e->context != c)
        return CUDA_ERROR_INVALID_HANDLE;
    enqueue(s, [e] { e->time = now(); });
    e->stream = s;
    e->at = s->queued;
    return CUDA_SUCCESS;
}
API cuStreamWaitEvent(CUstream h, CUevent h0, unsigned flags)
{
    IN_CONTEXT
    STREAM
    Event *e = (Event *)h0;
    if (!events.count(e) || !e->alive || flags)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->stream)
        enqueue(s, [] {}, {{e->stream, e->at}});
    return CUDA_SUCCESS;
}
API cuEventQuery(CUevent h)
{
    IN_CONTEXT
    Event *e = (Event *)h;
    return e->stream && e->stream->done < e->at ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API cuEventSynchronize(CUevent h)
{
    IN_CONTEXT
    Event *e = (Event *)h;
    if (!events.count(e) || !e->alive)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->stream)
        run_to(e->stream, e->at);
    return c->lost;
}
API cuEventElapsedTime(float *out, CUevent a, CUevent b)
{
    IN_CONTEXT
    Event *first = (Event *)a, *second = (Event *)b;
    if (!first->timing || !second->timing || !first->stream || !second->stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (first->stream->done < first->at || second->stream->done < second->at)
        return CUDA_ERROR_NOT_READY;
    *out = (float)(second->time - first->time);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------- modules */
API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, CUjit_option *, void **)
{
    IN_CONTEXT
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG))
        return CUDA_ERROR_INVALID_IMAGE;
    if (head->e_machine != EM_X86_64)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const size_t size = head->e_shoff + (size_t)head->e_shnum*head->e_shentsize;
    char path[] = "/tmp/standinXXXXXX";
    const int fd = mkstemp(path);
    if (write(fd, image, size) != (ssize_t)size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    close(fd);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (!library) {
        fprintf(stderr, "stand-in: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    Module *m = new Module{c, library};
    modules.insert(m);
    *out = (CUmodule)m;
    return CUDA_SUCCESS;
}
API cuModuleLoadData(CUmodule *out, const void *image) { return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr); }
API cuModuleUnload(CUmodule h)
{
    IN_CONTEXT
    Module *m = (Module *)h;
    if (!modules.count(m) || !m->alive || m->context != c)
        return CUDA_ERROR_INVALID_HANDLE;
    run_all(c);
    m->alive = false;
    return c->lost;
}
API cuModuleGetFunction(CUfunction *out, CUmodule h, const char *name)
{
    IN_CONTEXT
    Module *m = (Module *)h;
    if (!modules.count(m) || !m->alive || m->context != c)
        return CUDA_ERROR_INVALID_HANDLE;
    void *found = dlsym(m->library, (std::string("standin_") + name).c_str());
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    Function *f = new Function{m, name, (start)found};
    functions.insert(f);
    *out = (CUfunction)f;
    return CUDA_SUCCESS;
}
API cuFuncSetBlockShape(CUfunction h, int x, int y, int z)
{
    IN_CONTEXT
    return functions.count((Function *)h) && x > 0 && y > 0 && z > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction h)
{
    IN_CONTEXT
    if (!functions.count((Function *)h))
        return CUDA_ERROR_INVALID_HANDLE;
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction h, CUfunction_attribute which, int value)
{
    IN_CONTEXT
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        ((Function *)h)->shared = value;
    return CUDA_SUCCESS;
}
API cuLaunchKernel(CUfunction h0, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, CUstream h, void **params, void **extra)
{
    IN_CONTEXT
    STREAM
    Function *f = (Function *)h0;
    if (!functions.count(f) || !f->module->alive || f->module->context != c)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!gx || !gy || !gz || !bx || !by || !bz || gx > 2147483647u || gy > 65535 || gz > 65535 || bx*by*bz > 1024 ||
        (int)shared > f->shared || params)
        return CUDA_ERROR_INVALID_VALUE;
    const char *buffer = nullptr;
    size_t size = 0;
    for (void **e = extra; e && *e != CU_LAUNCH_PARAM_END; e += 2) {
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = (const char *)e[1];
        else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(size_t *)e[1];
    }
    if (f->run(0, 0, 0, 0, 0, 0, 0, nullptr, size)) /* other params than the kernel's */
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<char> held_params(buffer, buffer + size);
    const std::vector<unsigned> shape = {gx, gy, gz, bx, by, bz};
    return enqueue(s, [=] { launch(c, f, shape.data(), shared, held_params); });
}
API cuProfilerStart() { return CUDA_SUCCESS; }
API cuProfilerStop() { return CUDA_SUCCESS; }
/* For libcublas: a function of the host's in the order of a stream, which may touch the context's memory. */
extern "C" __attribute__((visibility("default"))) int standin_enqueue(void *h, void (*f)(void *), void *arg)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    Context *c = current();
    Stream *s = c ? stream_of(c, (CUstream)h) : nullptr;
    if (!s)
        return 1;
    enqueue(s, [=] {
        open_arena(c, PROT_READ | PROT_WRITE);
        if (!sigsetjmp(escape, 1)) {
            running = true;
            f(arg);
            running = false;
        } else {
            running = false;
            c->lost = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        open_arena(c, PROT_NONE);
    });
    return 0;
}
