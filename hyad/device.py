"""A GPU through pycuda: its contexts, its memory, its modules and its streams. Nothing here knows of models.

``current`` gives the ``Device`` of the context that the calling thread has made current, else of the primary context,
which PyTorch, CuPy and JAX use too. What one call of a model does there, it does through ``Device.call``: the context
is pushed for it and popped after it, whatever happens; pycuda's errors leave it as hyad's.

Order. All that a call does is on one stream: the user's, else the default one, after which other libraries' default
streams come. A stream that is not pycuda's is waited for before the call's own stream begins, and waits for its end.

Memory comes from a pool and goes back to it when the last reference is gone, whatever context is current then: it is
used again by calls on the same stream, whose order keeps the old contents safe for as long as they are read.

Design decision: the pool is not pycuda's ``DeviceMemoryPool``, which knows no streams, and which ends the process where
an array is freed while no context is current, as any array may be that a call gave out.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .codegen import nvrtc
from .errors import BoundsError, CompileError, DeviceError, HyadError, ModelTypeError, OutOfMemory

EMIT = 'hyad.emit(f, target="cuda") writes the CUDA text, which needs none of this'
SMALL, PAGE = 1 << 20, 1 << 21  # sizes of memory: powers of two up to SMALL bytes, then multiples of PAGE


@cache
def driver() -> Any:
    """``pycuda.driver``, ready to use. CompileError says what is missing."""
    try:
        import pycuda.driver as found
    except ImportError as e:
        if e.name in ("pycuda", "pycuda.driver"):
            missing, hint = "pycuda is not installed", 'pip install "hyad[cuda]"'
        elif "libcuda" in str(e):
            missing, hint = f"this machine has no NVIDIA driver ({e})", "run it where there is a GPU and its driver"
        else:
            missing, hint = f"pycuda cannot be loaded: {e}", 'pip install --force-reinstall "hyad[cuda]"'
        message = f'target "cuda" runs on a GPU through pycuda, and {missing}'
        raise CompileError(message, hint=f"{hint}; {EMIT}") from None
    if nvrtc.nvrtc() is None and nvrtc.nvcc() is None:
        raise nvrtc.NoCudaCompiler(
            'target "cuda" needs a CUDA compiler: neither NVRTC nor nvcc was found',
            hint=f"pip install nvidia-cuda-nvrtc; {EMIT}",
        )
    try:
        found.init()
        count = found.Device.count()
    except found.Error as e:
        raise CompileError(f'target "cuda" needs a GPU: {e}', hint=EMIT) from None
    if not count:
        raise CompileError('target "cuda" needs a GPU: there is none', hint=f"look at CUDA_VISIBLE_DEVICES; {EMIT}")
    return found


# ---------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True, slots=True)
class Remote:
    """An array in a GPU's memory, whoever owns it: where it is, and the handle of the stream that it is made on."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    stream: int | None
    owner: Any  # kept alive

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def remote(value: Any, name: str) -> Remote | None:
    """An argument that tells of memory of a GPU (``__cuda_array_interface__``: pycuda, PyTorch, CuPy, Numba, JAX), as
    it is, without a copy; None for any other. ModelTypeError where kernels cannot read it so."""
    if isinstance(value, np.ndarray):
        return None
    try:
        told = getattr(value, "__cuda_array_interface__", None)
    except RuntimeError as e:  # PyTorch's, of a tensor that asks for gradients
        raise ModelTypeError(f"argument `{name}` cannot be read: {e}", hint="pass .detach() of it") from None
    if not isinstance(told, dict):
        return None
    try:
        shape, dtype, address = tuple(map(int, told["shape"])), np.dtype(told["typestr"]), int(told["data"][0] or 0)
    except (KeyError, IndexError, TypeError, ValueError):
        raise ModelTypeError(
            f"argument `{name}` tells of memory of a GPU, but not of which (shape, typestr, data)"
        ) from None
    if told.get("mask") is not None:
        raise ModelTypeError(f"argument `{name}` is a masked array of the GPU", hint="pass a plain array")
    strides, step = told.get("strides"), dtype.itemsize
    if strides is not None and 0 not in shape:
        for n, s in zip(reversed(shape), reversed(tuple(strides))):
            if n != 1 and s != step:
                raise ModelTypeError(
                    f"argument `{name}`, an array of the GPU, is not laid out row by row (its strides are"
                    f" {tuple(strides)} bytes)",
                    hint="pass a contiguous copy of it: .contiguous(), .copy()",
                )
            step *= n
    return Remote(address, shape, dtype, told.get("stream"), value)


# --------------------------------------------------------------------------------------------- streams


class Driver:
    """The few functions of CUDA's driver that pycuda lacks: for contexts, streams and arrays that are not its own."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def in_context(self) -> bool:
        """Whether a context is current, whoever made it so. To ask for its device and see that fail says so too, but
        compute-sanitizer reports each call that fails."""
        found = ctypes.c_void_p()
        return not self.library.cuCtxGetCurrent(ctypes.byref(found)) and bool(found)

    def ordinal(self, pointer: int) -> int | None:
        """The number of the GPU whose memory this is."""
        found, where = ctypes.c_int(-1), ctypes.c_ulonglong(pointer)
        return None if self.library.cuPointerGetAttribute(ctypes.byref(found), 9, where) else found.value

    def order(self, first: int, second: int) -> None:
        """Let what comes on the stream ``second`` wait for all that is on ``first`` now (handles; 0 is the default)."""
        event = ctypes.c_void_p()
        self.check(self.library.cuEventCreate(ctypes.byref(event), 2))  # without timing
        try:
            self.check(self.library.cuEventRecord(event, ctypes.c_void_p(first)))
            self.check(self.library.cuStreamWaitEvent(ctypes.c_void_p(second), event, 0))
        finally:
            self.library.cuEventDestroy_v2(event)

    def check(self, status: int) -> None:
        if status:
            hint = "a stream is of one context: make that current which it was made in"
            raise DeviceError(f"CUDA's driver does not take this stream (error {status})", hint=hint)


@cache
def raw() -> Driver:
    """CUDA's driver itself, which pycuda has loaded."""
    return Driver(ctypes.CDLL("libcuda.so.1"))


def handle_of(stream: Any) -> int:
    """The handle of a stream that another library made."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    told = getattr(stream, "__cuda_stream__", None)
    if told is not None:
        return int((told() if callable(told) else told)[1])
    for name in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    raise ModelTypeError(
        f"stream is {type(stream).__name__}, not a stream", None, "pass a pycuda.driver.Stream, or its handle"
    )


# ---------------------------------------------------------------------------------------------- checks


def failed_check(name: str, check: tuple[str, str, Any], where: str = "") -> HyadError:
    """The error of a check that failed on a GPU, in the model ``name``."""
    kind, message, span = check
    said, hint = f"{name}: {message}{where}", None
    if kind == "depth":
        hint = "make the recursive call the last thing that is done (a loop), or give threads a larger stack:"
        hint += " pycuda.driver.Context.set_limit(pycuda.driver.limit.STACK_SIZE, bytes)"
        return HyadError(said, span, hint)
    if kind in ("memory", "rounds"):
        return OutOfMemory(said, span, "remember less: (while c :checkpoint n ..), or a recursion that ends earlier")
    return (BoundsError if kind == "bounds" else ModelTypeError)(said, span)


# ---------------------------------------------------------------------------------------------- memory


class Pool:
    """Memory of one context that calls on the same stream use again."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.free: dict[tuple[int, int], list[Any]] = {}  # by stream and size

    def take(self, nbytes: int, stream: int) -> Any:
        """So many bytes, at least one, for calls on ``stream``."""
        size = rounded(nbytes)
        blocks = self.free.setdefault((stream, size), [])
        try:
            block = blocks.pop()
        except IndexError:
            block = self.allocated(size)
        return memory_class(self.driver)(blocks, block)

    def allocated(self, size: int) -> Any:
        try:
            return self.driver.mem_alloc(size)
        except self.driver.MemoryError:  # what is kept for later may be enough
            self.release()
            return self.driver.mem_alloc(size)

    def release(self) -> None:
        """Give all that is free back to the driver."""
        self.driver.Context.synchronize()
        for blocks in list(self.free.values()):
            while blocks:
                blocks.pop().free()


def rounded(nbytes: int) -> int:
    """A size that calls of about this size share."""
    return max(512, 1 << (nbytes - 1).bit_length()) if nbytes <= SMALL else -(-nbytes // PAGE) * PAGE


@cache
def memory_class(driver: Any) -> type:
    class Memory(driver.PointerHolderBase):
        """Memory of the GPU as pycuda takes it; it goes back to its pool when nobody holds it any more."""

        def __init__(self, home: list[Any], block: Any) -> None:
            super().__init__()
            self.home, self.block, self.pointer = home, block, int(block)

        def get_pointer(self) -> int:
            return self.pointer

        def __int__(self) -> int:
            return self.pointer

        __index__ = __int__

        def free(self) -> None:
            """Give it back now."""
            if self.block is not None:
                self.home.append(self.block)
                self.block = None

        __del__ = free

    return Memory


# --------------------------------------------------------------------------------------------- devices

_devices: list[Device] = []
_lock = threading.RLock()


def current(arguments: Sequence[Any] = ()) -> Device:
    """The device of pycuda's current context; where there is none, the primary context of the GPU that the
    ``arguments`` are on, or that another library has made current, or of the first."""
    found = driver()
    context = found.Context.get_current()
    with _lock:
        if context is not None:
            for known in _devices:
                if known.of(context):
                    return known
            return _entered(Device(found, context, found.Context.get_device(), primary=False))
        place = _place(found, arguments)
        for known in _devices:
            if known.primary and known.place == place:
                return known
        try:
            return _entered(Device(found, place.retain_primary_context(), place, primary=True))
        except found.Error as e:
            raise CompileError(f'target "cuda" needs a GPU: {e}', hint=EMIT) from None


def _place(driver: Any, arguments: Sequence[Any]) -> Any:
    for a in arguments:
        if isinstance(a, Remote) and a.pointer:
            number = raw().ordinal(a.pointer)
            if number is not None:
                return driver.Device(number)
    if raw().in_context():
        try:
            return driver.Context.get_device()
        except driver.Error:  # one that is gone
            pass
    return driver.Device(0)


def _entered(device: Device) -> Device:
    if not _devices:
        import atexit

        atexit.register(forget)
    _devices.append(device)
    return device


def forget() -> None:
    """Drop all modules and free memory, while their contexts are still there."""
    for device in _devices:
        device.forget()
    _devices.clear()


class Device:
    """One context of a GPU, and what is kept in it: functions of compiled modules, and free memory."""

    def __init__(self, driver: Any, context: Any, place: Any, primary: bool) -> None:
        self.driver, self.context, self.place, self.primary = driver, context, place, primary
        self.arch = "sm_{}{}".format(*place.compute_capability())
        self.pool = Pool(driver)
        self.modules: dict[str, Any] = {}  # by text
        self.functions: dict[tuple[str, str], Any] = {}
        self.plans: dict[str, dict[str, Any]] = {}  # of each text, the kernels that plans have started
        self.found: dict[tuple[str, str], int] = {}  # sizes that calls of a text were found to need, by their names
        self.kept: dict[str, Any] = {}  # what else lives as long as the context: the handle of cuBLAS
        self.stream: Any = None  # for calls on other libraries' streams
        self.lost = ""  # how the context came to be of no use any more

    def of(self, context: Any) -> bool:
        """Whether this is the device of a context. Contexts are equal that have one address, which CUDA gives again
        when a context is gone; pycuda's hash tells them apart. A primary context is not gone while it is held here."""
        return self.context == context and (self.primary or hash(self.context) == hash(context))

    def forget(self) -> None:
        """Drop what is kept in the context. A primary one is current meanwhile, for pycuda leaves alone what belongs
        to a context of another thread, with a warning; one that is lost is let go first, or each piece has its own."""
        if self.primary and self.lost:
            self.let_go()
        elif self.primary:
            self.context.push()
        for kept in (self.functions, self.plans, self.modules, self.pool.free):
            kept.clear()
        if self.primary and not self.lost:
            if "cublas" in self.kept:
                self.kept["cublas"].close()
            self.stream = None
            self.driver.Context.pop()

    def let_go(self) -> None:
        """Detach from a context that CUDA refuses to work in, whether or not it is current."""
        try:
            self.context.detach()
        except self.driver.Error:  # it is detached from already
            pass

    def attribute(self, name: str) -> int:
        """One of CUDA's device attributes."""
        return self.place.get_attribute(getattr(self.driver.device_attribute, name))

    def stack(self, least: int) -> int:
        """The bytes of the stack that each thread has, which are made more where they are less than ``least``."""
        context, which = self.driver.Context, self.driver.limit.STACK_SIZE
        if context.get_limit(which) < least:
            context.set_limit(which, least)
        return int(context.get_limit(which))

    @contextmanager
    def call(self, name: str, stream: Any = None, arguments: Sequence[Any] = ()) -> Iterator[Call]:
        """What one call of the model ``name`` does on this device, its context current, on ``stream``."""
        if self.lost:
            raise DeviceError(f"{name} cannot run: {self.lost}", hint="start the process again")
        pushed = self.driver.Context.get_current() is None
        if pushed:
            self.context.push()
        try:
            try:
                own, foreign = self.own(stream)
                made = Call(self, name, own, foreign)
                for other in {foreign, *(a.stream for a in arguments if isinstance(a, Remote))} - {None}:
                    if (0 if other == 1 else other) != made.key:
                        raw().order(other, made.key)
                yield made
                made.finish()
                if foreign is not None:
                    raw().order(made.key, foreign)
            except self.driver.Error as e:
                failed = self.failure(name, e)
                e.__traceback__ = None  # Python 3.12's ``with`` would hold it, and it the memory of the call
                raise failed from None
        finally:
            if pushed:
                self.pop()

    def pop(self) -> None:
        """Take the context off the stack again."""
        try:
            self.driver.Context.pop()
        except self.driver.Error as e:  # after an error that stays CUDA may refuse even this
            self.lost = self.lost or f"the GPU's context cannot be left ({e})"
            self.let_go()  # which takes it off pycuda's stack: a process that ends with one there is aborted

    def own(self, stream: Any) -> tuple[Any, int | None]:
        """The stream of pycuda's that a call runs on, and the handle of the one that it stands for, if it does."""
        if stream is None or isinstance(stream, self.driver.Stream):
            return stream, None
        handle = handle_of(stream)
        if handle in (0, 1):  # the default stream
            return None, None
        if self.stream is None:
            self.stream = self.driver.Stream(1)  # which does not wait for the default stream
        return self.stream, handle

    def function(self, source: str, entry: str, signature: str, name: str) -> Any:
        """A kernel of a compiled text, ready to be launched; ``signature`` has a letter of ``struct`` per parameter."""
        with _lock:
            if (source, entry) not in self.functions:
                if source not in self.modules:
                    self.modules[source] = self.module(source, name)
                self.functions[source, entry] = self.modules[source].get_function(entry).prepare(signature)
            return self.functions[source, entry]

    def module(self, source: str, name: str) -> Any:
        """A CUDA text, compiled and loaded."""
        image = nvrtc.compiled(source, self.arch, name)
        try:
            return self.driver.module_from_buffer(image)
        except self.driver.MemoryError:
            raise
        except self.driver.Error as e:
            version, compiler = self.driver.get_driver_version(), nvrtc.compiler().partition(" /")[0]
            raise CompileError(
                f"the GPU does not load the code of {name}: {e}",
                hint=f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}, the compiler is {compiler}:"
                " install one that is not newer",
            ) from None

    def failure(self, name: str, error: Exception) -> Exception:
        """What to say of an error of pycuda's, in a call of the model ``name``."""
        if isinstance(error, self.driver.MemoryError):
            return OutOfMemory(
                f"{name}: the arrays of this call do not fit into the GPU's memory{self.room()}",
                hint="call it on less at once, or free arrays of other libraries: torch.cuda.empty_cache()",
            )
        try:
            self.driver.Context.synchronize()
        except self.driver.Error:  # an error that stays: CUDA says it again at every call
            self.lost = f"the GPU was lost to an earlier failure ({error})"
            return DeviceError(
                f"{name}, or what ran on the GPU before it, failed: {error}",
                hint="the GPU's context is lost with all its arrays, and this process cannot use the GPU any more:"
                " start it again. compute-sanitizer tells which access was at fault",
            )
        return DeviceError(f"{name}: CUDA refused a call: {error}", hint="the GPU can still be used")

    def room(self) -> str:
        try:
            return ": {:.0f} of {:.0f} MB are free".format(*(n / 1e6 for n in self.driver.mem_get_info()))
        except self.driver.Error:
            return ""


class Call:
    """One call on a device: memory for it, copies, launches, all on one stream. Where that stands for a ``foreign`` one
    its memory is used again by calls for the same: what reads a result is on that stream."""

    def __init__(self, device: Device, name: str, stream: Any, foreign: int | None = None) -> None:
        self.device, self.driver, self.name, self.stream = device, device.driver, name, stream
        self.key: int = 0 if stream is None else stream.handle
        self.home = self.key if foreign is None else foreign
        self.sent: list[np.ndarray] = []  # what the GPU may still be reading

    def memory(self, nbytes: int) -> Any:
        """Memory that the rest of the call, or who takes it along, may write to."""
        return self.device.pool.take(max(nbytes, 1), self.home)

    def send(self, array: np.ndarray) -> Any:
        """An array of the host, copied."""
        memory = self.memory(array.nbytes)
        if array.nbytes and self.stream is None:
            self.driver.memcpy_htod(int(memory), array)
        elif array.nbytes:
            self.driver.memcpy_htod_async(int(memory), array, self.stream)
            self.sent.append(array)
        return memory

    def fetch(self, array: np.ndarray, pointer: Any) -> np.ndarray:
        """Fill an array of the host, after all that came before."""
        if array.nbytes and self.stream is None:
            self.driver.memcpy_dtoh(array, int(pointer))
        elif array.nbytes:
            self.driver.memcpy_dtoh_async(array, int(pointer), self.stream)
            self.wait()
        return array

    def clear(self, pointer: Any, nbytes: int) -> None:
        """Zeros."""
        if nbytes:
            self.driver.memset_d8_async(int(pointer), 0, nbytes, self.stream)

    def copy(self, to: Any, source: Any, nbytes: int) -> None:
        """Bytes from place to place on the GPU."""
        if nbytes:
            self.driver.memcpy_dtod_async(int(to), int(source), nbytes, self.stream)

    def launch(self, function: Any, grid: tuple, block: tuple, arguments: Sequence[Any], shared: int = 0) -> None:
        """Start a kernel; numbers and pointers as its signature says."""
        function.prepared_async_call(grid, block, self.stream, *arguments, shared_size=shared)

    def wait(self) -> None:
        (self.driver.Context if self.stream is None else self.stream).synchronize()
        self.sent.clear()

    def finish(self) -> None:
        """The caller's arrays are the caller's again."""
        if self.sent:
            self.wait()

    def array(self, shape: tuple[int, ...], dtype: Any, memory: Any) -> Any:
        """Memory as an array that the caller keeps."""
        from pycuda.gpuarray import GPUArray

        return GPUArray(shape, dtype) if 0 in shape else GPUArray(shape, dtype, gpudata=memory)
