"""Models over batches: on a GPU through pycuda, and on the CPU from the very same CUDA text.

``hyad.compile(f, target="cuda")`` gives a ``BatchModel``. An argument with one dim more than the model's parameter is
batched, element by element; one with just the parameter's dims is shared by all elements; results come back with the
batch as their leading dim::

    g = hyad.compile(hyad.grad(f), target="cuda")
    g(x[1000], 2.0)     # 1000 gradients, all with the second argument 2.0

NumPy arrays are copied to the GPU and back at each call. ``run_on_cpu`` runs a kernel without a GPU, for tests: it
checks the text, not the speed. What the tests have shown: the text is right on the CPU and compiles to PTX and to
machine code; the calls to pycuda fit a stand-in for it. No GPU has run any of it yet.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .codegen import nvrtc
from .codegen.cuda import BLOCK, CudaKernel, CudaParam, print_cuda
from .core import Program
from .errors import BoundsError, CompileError, HyadError, ModelTypeError
from .model import Model, put_together, take_apart

EMIT = 'hyad.emit(f, target="cuda") writes the CUDA text, which needs none of this'
GRID = 1024  # blocks at most: each thread then takes several elements
DTYPES = {"f64": np.float64, "f32": np.float32, "int": np.int64, "bool": np.int32}


# ------------------------------------------------------------------------------------------- one launch


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch of a kernel is given: ``values`` for its params (a NumPy array for a pointer, else a number),
    ``sizes`` for its dims, ``results`` to fill, ``room`` elements of workspace for each thread (None: no workspace)."""

    kernel: CudaKernel
    batch: int
    values: tuple[Any, ...]
    sizes: tuple[int, ...]
    results: tuple[np.ndarray, ...]
    room: int | None

    def answers(self) -> tuple[np.ndarray, ...]:
        """The results as the model's types: truth values are ``int`` in the kernel."""
        kinds = (r.elem for r in self.kernel.results)
        return tuple(a.astype(bool) if kind == "bool" else a for kind, a in zip(kinds, self.results))


def prepare(kernel: CudaKernel, args: Sequence[Any]) -> Launch:
    """Fit flat arguments to a kernel. ModelTypeError where kinds, dims or batches do not fit."""
    if len(args) != len(kernel.params):
        raise ModelTypeError(f"{kernel.name} takes {len(kernel.params)} arguments, not {len(args)}")
    values: list[Any] = []
    known: dict[str, int] = {}
    batches: dict[str, int] = {}
    shapes: list[tuple[CudaParam, tuple[int, ...]]] = []
    for p, a in zip(kernel.params, args):
        array = _converted(p, a, kernel.dtype)
        wanted = len(p.dims) + p.batched
        if array.ndim != wanted:
            what = "with the batch as its leading dim" if p.batched else "shared by all elements"
            raise ModelTypeError(f"{kernel.name}: argument `{p.name}`, {what}, has {wanted} dims, not {array.ndim}")
        if p.batched:
            batches[p.name] = array.shape[0]
        elif not p.dims:
            known[p.name] = array.item()
        shapes.append((p, array.shape[1:] if p.batched else array.shape))
        values.append(array if array.ndim else array[()])
    if len(set(batches.values())) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in batches.items())
        raise ModelTypeError(f"{kernel.name}: the batches have different lengths ({listed})")
    if not batches:
        raise ModelTypeError(
            f"{kernel.name}: no argument is batched", hint="give one argument a leading dim: the elements of the batch"
        )
    for p, shape in shapes:  # named dims first: another dim may be an expression of them
        for d, n in zip(p.dims, shape):
            if isinstance(d, str) and d in kernel.dims:
                known.setdefault(d, n)
    for p, shape in shapes:
        expected = tuple(size_of(d, known) for d in p.dims)
        if expected != shape:
            raise ModelTypeError(f"{kernel.name}: an element of argument `{p.name}` has shape {shape}, not {expected}")
    batch = next(iter(batches.values()))
    results = []
    for r in kernel.results:
        shape = tuple(size_of(d, known) for d in r.dims)
        if min(shape, default=0) < 0:
            raise ModelTypeError(f"{kernel.name}: the result would have shape {shape}")
        results.append(np.zeros((batch, *shape), DTYPES[kernel.dtype if r.elem == "real" else r.elem]))
    for p, value in zip(kernel.params, values):  # the workspace is as large as the largest element's
        if p.elem == "int" and p.batched and not p.dims:
            known[p.name] = int(value.max(initial=0))
    room = None if kernel.workspace is None else size_of(kernel.workspace, known)
    return Launch(kernel, batch, tuple(values), tuple(known[d] for d in kernel.dims), tuple(results), room)


def _converted(p: CudaParam, value: Any, dtype: str) -> np.ndarray:
    """A value as the kernel reads it; contiguous, and not copied where it is so already."""
    kinds = {"real": "fiub", "int": "iub", "bool": "b"}[p.elem]
    array = np.asarray(value)
    if array.dtype.kind not in kinds:
        wanted = {"real": "reals", "int": "integers", "bool": "truth values"}[p.elem]
        raise ModelTypeError(f"argument `{p.name}` holds {array.dtype}, not {wanted}")
    wanted = DTYPES[dtype if p.elem == "real" else p.elem]
    return np.require(array, wanted, "C")


def size_of(size: int | str, known: dict[str, int]) -> int:
    """The value of a size: a number, or C over the dims and the Int params, as ``CPrinter.polynomial`` writes it."""
    if isinstance(size, int):
        return size
    text = re.sub(r"\((\w+) > 0 \? \1 : 0\)", r"max(\1, 0)", size).replace("/", "//")
    return int(eval(text, {"__builtins__": {}, "max": max}, known))


def failure(kernel: CudaKernel, number: int, element: int) -> HyadError:
    """The error of a check that failed at one element of the batch."""
    kind, message, span = kernel.checks[number - 1]
    error = BoundsError if kind == "bounds" else ModelTypeError
    return error(f"{kernel.name}: {message} (element {element} of the batch)", span)


# ---------------------------------------------------------------------------------------------- the CPU


def run_on_cpu(
    kernel: CudaKernel, *args: Any, grid: int | None = None, block: int | None = None, descending: bool = False
) -> tuple[np.ndarray, ...]:
    """Run a kernel on the CPU from its CUDA text, by a C++ compiler: the results, stacked along the batch.

    ``args`` are flat, as the kernel's params. ``grid`` and ``block`` replace the launcher's own shape; threads run one
    after another, the last one first if ``descending``. CompileError without a C++ compiler; the errors of the
    model's checks; HyadError where the kernel wrote beyond its results or its workspace.
    """
    launch = prepare(kernel, args)
    library = _cpu_library(kernel.source, kernel.name)
    shape = (grid or 0, block or 0)
    threads = (grid or 7) * (block or BLOCK)
    library.cuda_on_cpu_shape(*map(ctypes.c_uint, shape), ctypes.c_int(descending))
    guarded = [_Guarded(r.size, r.dtype) for r in launch.results]
    pointers: list[Any] = [ctypes.c_longlong(launch.batch)]
    for p, value in zip(kernel.params, launch.values):
        pointers.append(value.ctypes if isinstance(value, np.ndarray) else _number(p.elem, value, kernel.dtype))
    pointers += map(ctypes.c_longlong, launch.sizes)
    pointers += [g.whole.ctypes for g in guarded]
    status = np.zeros(2, np.uint64)
    if launch.room is not None:
        guarded.append(_Guarded(launch.room * threads, DTYPES[kernel.dtype]))
        pointers += [guarded[-1].whole.ctypes, ctypes.c_longlong(launch.room)]
    if kernel.fallible:
        pointers.append(status.ctypes)
    if launch.room is not None:
        pointers.append(ctypes.c_longlong(threads))
    refused = getattr(library, f"{kernel.name}_launch")(*pointers, ctypes.c_void_p())
    if refused:
        raise HyadError(f"{kernel.name}: no launch with grid {grid} and block {block}")
    if not all(g.intact() for g in guarded):
        raise HyadError(f"{kernel.name} wrote outside its results or its workspace")
    if status[0]:
        raise failure(kernel, int(status[0]), int(status[1]))
    for r, g in zip(launch.results, guarded):
        r[...] = g.whole[: r.size].reshape(r.shape)
    return launch.answers()


def _number(elem: str, value: Any, dtype: str) -> Any:
    if elem == "real":
        return (ctypes.c_double if dtype == "f64" else ctypes.c_float)(value)
    return (ctypes.c_longlong if elem == "int" else ctypes.c_int)(int(value))


class _Guarded:
    """Memory with a strip behind it that nothing may write to."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.size = size
        self.whole = np.full(size + 16, 85, dtype)

    def intact(self) -> bool:
        return bool((self.whole[self.size :] == 85).all())


@cache
def _cpu_library(source: str, name: str) -> ctypes.CDLL:
    import subprocess
    import tempfile

    compiler = cpu_compiler()
    if compiler is None:
        raise CompileError("no C++ compiler was found (looked for $CXX, g++, clang++ and c++)")
    header = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
    with tempfile.TemporaryDirectory(prefix="hyad-") as folder:
        path, target = Path(folder, f"{name}.cu"), Path(folder, f"{name}.so")
        path.write_text(source, encoding="utf-8")
        flags = [
            "-std=c++17",
            "-O1",
            "-fPIC",
            "-shared",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Wno-unknown-pragmas",
        ]
        command = [*compiler, *flags, "-include", str(header), "-x", "c++", str(path), "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or done.stderr:
            raise CompileError(f"the CUDA text does not compile for the CPU:\n{done.stderr.strip()}")
        return ctypes.CDLL(str(target))  # which stays loaded when the file is gone


@cache
def cpu_compiler() -> tuple[str, ...] | None:
    """The command of a C++ compiler, if there is one."""
    import os
    import shlex
    import shutil

    given = shlex.split(os.environ.get("CXX", ""))
    for words in ([given] if given else []) + [["g++"], ["clang++"], ["c++"]]:
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    return None


# ---------------------------------------------------------------------------------------------- the GPU


def compile_cuda(model: Model, dtype: str = "f64", args: Sequence[Any] | None = None) -> BatchModel:
    """A model as a function over batches that runs on the GPU.

    ``args`` are arguments of one element, whose signature is meant; without them the annotations say it. CompileError
    says what is missing: pycuda, a GPU with its driver, or a CUDA compiler.
    """
    program = model.optimised(model.specs(args), "cuda")
    kernel = print_cuda(program, dtype=dtype)  # what cannot be printed is said before what is missing here
    return BatchModel(program, kernel, gpu())


class BatchModel:
    """A compiled model over batches. ``run`` takes a ``Launch`` and fills its results; ``source`` and ``header`` are
    the CUDA text with all arguments batched."""

    target = "cuda"

    def __init__(self, program: Program, kernel: CudaKernel, run: Callable[[Launch], None]) -> None:
        self.program, self.run, self.dtype = program, run, kernel.dtype
        self.source, self.header, self.__name__ = kernel.source, kernel.header, kernel.name
        self._kernels: dict[tuple[int, ...], CudaKernel] = {(): kernel}

    def __call__(self, *args: Any) -> Any:
        flat = self._flat(args)
        launch = prepare(self._kernel(flat), flat)
        if launch.batch:
            self.run(launch)
        return put_together(self.program.out, iter(launch.answers()))

    def _flat(self, args: Sequence[Any]) -> list[Any]:
        if len(args) != len(self.program.ins):
            raise ModelTypeError(
                f"{self.program.name} takes {len(self.program.ins)} arguments, not {len(args)}", self.program.span
            )
        flat: list[Any] = []
        for tree, a in zip(self.program.ins, args):
            take_apart(tree, a, flat)
        return flat

    def _kernel(self, flat: Sequence[Any]) -> CudaKernel:
        ranks = (getattr(p.type, "rank", 0) for p in self.program.params)
        shared = tuple(k for k, (rank, a) in enumerate(zip(ranks, flat)) if np.ndim(a) <= rank)
        if shared not in self._kernels:
            self._kernels[shared] = print_cuda(self.program, dtype=self.dtype, shared=shared)
        return self._kernels[shared]


@cache
def gpu() -> Callable[[Launch], None]:
    """What runs launches on the first GPU, through pycuda. CompileError says what is missing."""
    try:
        import pycuda.driver as driver
    except ImportError as e:
        missing = (
            "pycuda is not installed" if e.name in ("pycuda", "pycuda.driver") else f"pycuda cannot be loaded: {e}"
        )
        raise CompileError(
            f'target "cuda" runs on a GPU through pycuda, and {missing}', hint=f'pip install "hyad[cuda]"; {EMIT}'
        ) from None
    if nvrtc.nvrtc() is None and nvrtc.nvcc() is None:
        raise nvrtc.NoCudaCompiler(
            'target "cuda" needs a CUDA compiler: neither NVRTC nor nvcc was found',
            hint=f"pip install nvidia-cuda-nvrtc; {EMIT}",
        )
    try:
        driver.init()
        device = driver.Device(0)
        return _Gpu(driver, device, device.retain_primary_context())
    except driver.Error as e:
        raise CompileError(f'target "cuda" needs a GPU: {e}', hint=EMIT) from None


class _Gpu:
    """Copies in, launches, copies out. Kernels are compiled once for this device."""

    def __init__(self, driver: Any, device: Any, context: Any) -> None:
        self.driver, self.context = driver, context
        self.arch = "sm_{}{}".format(*device.compute_capability())
        self.functions: dict[str, Any] = {}

    def __call__(self, launch: Launch) -> None:
        driver, kernel = self.driver, launch.kernel
        self.context.push()
        try:
            function = self.function(kernel)
            block, grid = min(launch.batch, BLOCK), min(-(-launch.batch // BLOCK), GRID)
            arguments: list[Any] = [np.int64(launch.batch)]
            for value in launch.values:
                arguments.append(self.sent(value) if isinstance(value, np.ndarray) else value)
            arguments += map(np.int64, launch.sizes)
            outs = [driver.mem_alloc(max(r.nbytes, 1)) for r in launch.results]
            arguments += outs
            if launch.room is not None:  # at most half of the memory that is free
                size = max(launch.room, 1) * np.dtype(DTYPES[kernel.dtype]).itemsize
                threads = max(driver.mem_get_info()[0] // 2 // size, 1)
                block = min(block, threads)
                grid = min(grid, threads // block)
                arguments += [driver.mem_alloc(size * block * grid), np.int64(launch.room)]
            status = np.zeros(2, np.uint64)
            if kernel.fallible:
                arguments.append(self.sent(status))
            function(*arguments, block=(block, 1, 1), grid=(grid, 1))
            if kernel.fallible:
                driver.memcpy_dtoh(status, arguments[-1])
            for r, out in zip(launch.results, outs):
                if r.nbytes:
                    driver.memcpy_dtoh(r, out)
        finally:
            self.context.pop()
        if status[0]:
            raise failure(kernel, int(status[0]), int(status[1]))

    def sent(self, array: np.ndarray) -> Any:
        memory = self.driver.mem_alloc(max(array.nbytes, 1))
        if array.nbytes:
            self.driver.memcpy_htod(memory, array)
        return memory

    def function(self, kernel: CudaKernel) -> Any:
        if kernel.source not in self.functions:
            image = nvrtc.compile_device(kernel.source, self.arch, kernel.name)
            self.functions[kernel.source] = self.driver.module_from_buffer(image).get_function(kernel.entry)
        return self.functions[kernel.source]
