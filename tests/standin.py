"""Stands in for pycuda where there is no GPU: device memory is the host's, kernels run on the CPU from their own text.

``Driver`` has the part of ``pycuda.driver`` that hyad uses, as pycuda 2026.1 does it, and is strict about it: nothing
works without a current context, copies and launches stay inside live allocations, contexts are pushed and popped in
pairs, have one address one after another, and cannot be cleaned up from another thread. Modules are the CUDA text
itself, compiled by a C++ compiler with ``cuda_on_cpu.h``. It counts what it does, and fails on demand:
``driver.fail["mem_alloc"] = [driver.MemoryError("..")]`` fails the next call of that function; ``driver.lost`` is an
error that stays, as after an illegal access.

Streams are in order here, whatever they wait for, so nothing here shows a missing wait.
"""

from __future__ import annotations

import builtins
import ctypes
import re
import struct
import subprocess
import tempfile
import threading
import time
import types
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hyad import device, gpu
from hyad.codegen import nvrtc

HEADER = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
LIMITS = {"MULTIPROCESSOR_COUNT": 4, "MAX_THREADS_PER_MULTIPROCESSOR": 256, "MAX_THREADS_PER_BLOCK": 1024}


class Error(Exception):
    pass


class CudaMemoryError(Error, builtins.MemoryError):
    pass


class LogicError(Error):
    pass


class LaunchError(Error):
    pass


class CudaRuntimeError(Error):
    pass


class Driver(types.ModuleType):
    """``pycuda.driver``, with ``count`` GPUs of ``memory`` bytes each."""

    Error, MemoryError, LogicError = Error, CudaMemoryError, LogicError
    LaunchError, RuntimeError = LaunchError, CudaRuntimeError

    def __init__(self, count: int = 1, memory: int = 2**30) -> None:
        super().__init__("pycuda.driver")
        self.count, self.total, self.used = count, memory, 0
        self.fail: dict[str, list[Exception]] = {}
        self.lost: Exception | None = None
        self.calls: list[str] = []
        self.launches: list[tuple[str, tuple, tuple]] = []
        self.live: dict[int, np.ndarray] = {}  # allocations by address
        self.where: dict[int, int] = {}  # the GPU that each is on
        self.local = threading.local()
        self.addresses = list(range(1, 100))  # for contexts; that of one that is gone comes again
        self.leaked: list[str] = []  # what could not be cleaned up
        self.primaries = [Context(self, k, f"primary {k}") for k in range(count)]
        self.limit = types.SimpleNamespace(STACK_SIZE="stack")
        self.limits = {"stack": 1024}
        self.device_attribute = types.SimpleNamespace(**{name: name for name in LIMITS})
        outer = self

        class BoundContext(Context):
            @staticmethod
            def get_current() -> Context | None:
                return copy(outer.stack[-1]) if outer.stack else None

            @staticmethod
            def pop() -> None:
                outer.called("Context.pop", current=False, fails=False)
                if not outer.stack:
                    raise LogicError("context::pop failed: invalid device context - cannot pop non-current context")
                outer.stack.pop()

            @staticmethod
            def get_device() -> Device:
                outer.called("Context.get_device")
                return Device(outer, outer.stack[-1].number)

            @staticmethod
            def synchronize() -> None:
                outer.called("Context.synchronize")

            @staticmethod
            def get_limit(which: str) -> int:
                outer.called("Context.get_limit")
                return outer.limits[which]

            @staticmethod
            def set_limit(which: str, value: int) -> None:
                outer.called("Context.set_limit")
                outer.limits[which] = value

        class BoundStream:
            handles = 100

            def __init__(self, flags: int = 0) -> None:
                outer.called("Stream")
                BoundStream.handles += 1
                self.flags, self.handle = flags, BoundStream.handles

            def synchronize(self) -> None:
                outer.called("Stream.synchronize", current=False)

        class Event:
            def __init__(self, flags: int = 0) -> None:
                self.at = 0.0

            def record(self, stream: Any = None) -> Event:
                outer.called("Event.record")
                self.at = time.perf_counter()
                return self

            def synchronize(self) -> Event:
                return self

            def time_since(self, other: Event) -> float:
                return 1e3 * (self.at - other.at)

        class BoundDevice(Device):
            def __init__(self, number: int) -> None:
                super().__init__(outer, number)

            @staticmethod
            def count() -> int:
                return outer.count

        class PointerHolderBase:
            def __init__(self) -> None:
                self.initialised = True  # Boost.Python's constructor must have run

        self.count = count
        self.Context, self.Stream, self.Device = BoundContext, BoundStream, BoundDevice
        self.PointerHolderBase, self.Event = PointerHolderBase, Event

    # ----------------------------------------------------------------------------------- bookkeeping

    @property
    def stack(self) -> list[Context]:
        """The contexts that the calling thread has pushed."""
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def called(self, name: str, current: bool = True, fails: bool = True) -> None:
        """Every function begins so: is it to fail, is a context current?"""
        self.calls.append(name)
        if self.fail.get(name):
            raise self.fail[name].pop(0)
        if fails and self.lost is not None:
            raise self.lost
        if current and not self.stack:
            raise LogicError(f"{name} failed: invalid device context - no currently active context?")

    def inside(self, pointer: Any, nbytes: int) -> int:
        """An address that so many bytes of one live allocation lie behind."""
        address = pointer.get_pointer() if isinstance(pointer, self.PointerHolderBase) else int(pointer)
        for start, memory in self.live.items():
            if start <= address and address + nbytes <= start + memory.nbytes:
                return address
        raise LogicError(f"invalid argument: {nbytes} bytes at {address:#x} are not one allocation's")

    # ------------------------------------------------------------------------------ pycuda's functions

    def init(self, flags: int = 0) -> None:
        self.called("init", current=False)

    def get_driver_version(self) -> int:
        return 13000

    def mem_get_info(self) -> tuple[int, int]:
        self.called("mem_get_info")
        return self.total - self.used, self.total

    def mem_alloc(self, size: int) -> Allocation:
        self.called("mem_alloc")
        assert type(size) is int
        if size <= 0:
            raise LogicError("cuMemAlloc failed: invalid argument")
        if self.used + size > self.total:
            raise CudaMemoryError("cuMemAlloc failed: out of memory")
        return Allocation(self, size)

    def memcpy_htod(self, dest: Any, src: np.ndarray) -> None:
        self.called("memcpy_htod")
        assert src.flags.c_contiguous
        ctypes.memmove(self.inside(dest, src.nbytes), src.ctypes.data, src.nbytes)

    def memcpy_htod_async(self, dest: Any, src: np.ndarray, stream: Any = None) -> None:
        assert stream is None or isinstance(stream, self.Stream)
        self.memcpy_htod(dest, src)

    def memcpy_dtoh(self, dest: np.ndarray, src: Any) -> None:
        self.called("memcpy_dtoh")
        assert dest.flags.c_contiguous and dest.flags.writeable
        ctypes.memmove(dest.ctypes.data, self.inside(src, dest.nbytes), dest.nbytes)

    def memcpy_dtoh_async(self, dest: np.ndarray, src: Any, stream: Any = None) -> None:
        assert stream is None or isinstance(stream, self.Stream)
        self.memcpy_dtoh(dest, src)

    def memcpy_dtod_async(self, dest: Any, src: Any, size: int, stream: Any = None) -> None:
        self.called("memcpy_dtod_async")
        ctypes.memmove(self.inside(dest, size), self.inside(src, size), size)

    def memset_d8_async(self, dest: Any, data: int, size: int, stream: Any = None) -> None:
        self.called("memset_d8_async")
        ctypes.memset(self.inside(dest, size), data, size)

    def module_from_buffer(self, image: bytes) -> Module:
        self.called("module_from_buffer")
        return Module(self, image.decode())


class Context:
    """pycuda gives a new object each time. Equal are those of one address, and one hash have those of one context."""

    def __init__(self, driver: Driver, number: int, name: str) -> None:
        self.driver, self.number, self.name = driver, number, name
        self.held = types.SimpleNamespace(address=driver.addresses.pop(0), thread=threading.get_ident(), valid=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and other.held.address == self.held.address

    def __hash__(self) -> int:
        return id(self.held)

    def push(self) -> None:
        self.driver.called("Context.push", current=False, fails=False)
        if not self.held.valid:
            raise LogicError("cuCtxPushCurrent failed: invalid device context")
        self.driver.stack.append(self)

    def detach(self) -> None:
        if not self.held.valid:
            raise LogicError("context::detach failed: invalid device context - cannot detach from invalid context")
        self.held.valid = False
        self.driver.addresses.insert(0, self.held.address)
        self.driver.stack[:] = [c for c in self.driver.stack if c.held is not self.held]

    def cleans(self, what: str) -> bool:
        """Whether what belongs to the context can be given back now; pycuda pushes it where it may."""
        current = self.driver.stack and self.driver.stack[-1].held is self.held
        if self.held.valid and not current and threading.get_ident() != self.held.thread:
            self.driver.leaked.append(what)
            return False
        return self.held.valid


class Device:
    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number = driver, number
        if not 0 <= number < driver.count:
            raise LogicError("cuDeviceGet failed: invalid device ordinal")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def name(self) -> str:
        return "a stand-in"

    def compute_capability(self) -> tuple[int, int]:
        return 9, 0

    def get_attribute(self, which: str) -> int:
        return LIMITS[which]

    def make_context(self, flags: int = 0) -> Context:
        made = Context(self.driver, self.number, "made")
        made.push()
        return made

    def retain_primary_context(self) -> Context:
        self.driver.called("retain_primary_context", current=False)
        made = self.driver.primaries[self.number]
        made.held.thread = threading.get_ident()
        return copy(made)


class Allocation:
    """``pycuda.driver.DeviceAllocation``: filled with what no model should read."""

    def __init__(self, driver: Driver, size: int) -> None:
        self.driver, self.memory, self.context = driver, np.full(size, 0x63, np.uint8), driver.stack[-1]
        self.address = self.memory.ctypes.data
        driver.live[self.address], driver.where[self.address] = self.memory, driver.stack[-1].number
        driver.used += size

    def __int__(self) -> int:
        return self.address

    __index__ = __int__

    def free(self) -> None:
        self.driver.calls.append("free")
        if self.driver.live.get(self.address) is self.memory and self.context.cleans("an allocation"):
            del self.driver.live[self.address]
            self.driver.used -= self.memory.nbytes

    def __del__(self) -> None:
        if self.address in self.driver.live:
            self.context.cleans("an allocation")


class Module:
    def __init__(self, driver: Driver, source: str) -> None:
        self.driver, self.source, self.context = driver, source, driver.stack[-1]

    def __del__(self) -> None:
        self.context.cleans("a module")

    def get_function(self, name: str) -> Function:
        if f" {name}(" not in self.source:
            raise LogicError("cuModuleGetFunction failed: named symbol not found")
        return Function(self, name)


class Function:
    def __init__(self, module: Module, name: str) -> None:
        self.module, self.driver, self.name = module, module.driver, name
        self.format: str | None = None

    def prepare(self, arg_types: str) -> Function:
        self.format = "".join(arg_types)
        return self

    def prepared_async_call(self, grid: tuple, block: tuple, stream: Any, *args: Any, shared_size: int = 0) -> None:
        driver = self.driver
        driver.called("launch")
        assert stream is None or isinstance(stream, driver.Stream)
        assert isinstance(grid, tuple) and isinstance(block, tuple) and len(grid) <= 3 and len(block) == 3
        assert all(type(n) is int for n in (*grid, *block)) and self.format is not None
        if len(args) != len(self.format):
            raise struct.error(f"pack expected {len(self.format)} items for packing (got {len(args)})")
        if self.module.context.held is not driver.stack[-1].held:
            raise LogicError("cuLaunchKernel failed: invalid resource handle")
        if min((*grid, *block)) < 1 or grid[0] >= 2**31 or int(np.prod(block)) > LIMITS["MAX_THREADS_PER_BLOCK"]:
            raise LogicError("cuLaunchKernel failed: invalid argument")
        driver.launches.append((self.name, grid, block))
        kinds = {"P": ctypes.c_void_p, "q": ctypes.c_longlong, "d": ctypes.c_double}
        kinds |= {"f": ctypes.c_float, "i": ctypes.c_int}
        values = []
        for letter, a in zip(self.format, args):
            assert type(a) in ((float,) if letter in "df" else (int, bool)), (letter, a)
            if letter == "P" and a:
                driver.inside(a, 1)
            values.append(kinds[letter](a))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        sizes = [ctypes.c_uint(n) for n in (*grid, *(1,) * (3 - len(grid)), *block)]
        run = getattr(library(self.module.source), f"on_cpu_{self.name}")
        if run(*sizes, ctypes.c_size_t(shared_size), pointers):
            raise LogicError("cuLaunchKernel failed: invalid argument")


@cache
def library(source: str) -> ctypes.CDLL:
    """CUDA text compiled for the CPU, with a function for each kernel that launches it."""
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    lines = [source]
    alone = str("__shfl" not in source and "__sync" not in source).lower()  # threads that never wait
    for name in re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', source):
        lines += [
            f'extern "C" int on_cpu_{name}(unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,',
            "    size_t shared, void **args)",
            f"{{\n    cuda_on_cpu::alone = {alone};",
            f"    return (int)cudaLaunchKernel({name}, dim3(x, y, z), dim3(a, b, c), args, shared, 0);\n}}",
        ]
    with tempfile.TemporaryDirectory(prefix="hyad-") as folder:
        path, target = Path(folder, "kernel.cu"), Path(folder, "kernel.so")
        path.write_text("\n".join(lines), encoding="utf-8")
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]
        command = [*compiler, *flags, "-include", str(HEADER), "-x", "c++", str(path), "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(target))


class GPUArray:
    """``pycuda.gpuarray.GPUArray``: an array of the GPU."""

    def __init__(self, shape: Any, dtype: Any, gpudata: Any = None, strides: Any = None) -> None:
        import pycuda.driver

        pycuda.driver.Context.get_device()
        self.shape, self.dtype = tuple(int(n) for n in shape), np.dtype(dtype)
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape, dtype=int))
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = strides or np.empty(self.shape, self.dtype).strides
        if gpudata is None and self.size:
            gpudata = pycuda.driver.mem_alloc(self.nbytes)
        self.gpudata = gpudata

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        pointer = int(self.gpudata) if self.gpudata is not None else 0
        told = {"shape": self.shape, "strides": self.strides, "data": (pointer, False), "typestr": self.dtype.str}
        return told | {"stream": None, "version": 3}

    def get(self) -> np.ndarray:
        import pycuda.driver

        out = np.empty(self.shape, self.dtype)
        if self.size:
            pycuda.driver.memcpy_dtoh(out, self.gpudata)
        return out


def to_gpu(array: np.ndarray) -> GPUArray:
    import pycuda.driver

    array = np.ascontiguousarray(array) if array.ndim else array
    made = GPUArray(array.shape, array.dtype)
    if made.size:
        pycuda.driver.memcpy_htod(made.gpudata, array)
    return made


class Library:
    """``libcuda``, as far as ``device.Driver`` calls it."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.orders, self.events = driver, [], {}

    def cuCtxGetCurrent(self, found: Any) -> int:
        found._obj.value = self.driver.stack[-1].held.address if self.driver.stack else None
        return 0

    def cuPointerGetAttribute(self, found: Any, which: int, pointer: Any) -> int:
        assert which == 9
        for start, memory in self.driver.live.items():
            if start <= pointer.value < start + memory.nbytes:
                found._obj.value = self.driver.where[start]
                return 0
        return 1

    def cuEventCreate(self, event: Any, flags: int) -> int:
        assert flags == 2
        event._obj.value = len(self.events) + 1
        self.events[event._obj.value] = None
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.events[event.value] = stream.value or 0
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> int:
        self.orders.append((self.events[event.value], stream.value or 0))
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.events[event.value] = "destroyed"
        return 0


def install(monkeypatch: Any, made: Driver) -> Driver:
    """Let hyad find this driver, and modules be the CUDA text."""
    import sys

    package, arrays = types.ModuleType("pycuda"), types.ModuleType("pycuda.gpuarray")
    current = types.ModuleType("pycuda.autoprimaryctx")  # which pushes nothing here
    package.driver, package.gpuarray = made, arrays  # type: ignore[attr-defined]
    arrays.GPUArray, arrays.to_gpu = GPUArray, to_gpu  # type: ignore[attr-defined]
    for module in (package, made, arrays, current):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(nvrtc, "nvcc", lambda: "nvcc")
    monkeypatch.setattr(nvrtc, "compiler", lambda: "stand-in")
    monkeypatch.setattr(nvrtc, "compile_device", lambda source, arch, name: source.encode())
    made.library = Library(made)  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "raw", lambda: device.Driver(made.library))
    device.driver.cache_clear()
    monkeypatch.setattr(device, "_devices", [])
    return made
