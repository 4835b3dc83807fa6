"""Models on a GPU through pycuda, and on the CPU from the very same CUDA text.

``hyad.compile(f, target="cuda")`` gives a ``CudaModel``. An argument with one dim more than the model's parameter is
batched, element by element; one with just the parameter's dims is shared by all elements; results come back with the
batch as their leading dim. Where nothing is batched the one call is run in parallel::

    g = hyad.compile(hyad.grad(f), target="cuda")
    g(x[1000], 2.0)     # 1000 gradients, all with the second argument 2.0
    g(3.0, 2.0)         # one

NumPy arrays are copied to the GPU and back at each call. Arrays of the GPU are read where they are, and where there is
one among the arguments the results stay on the GPU too. ``run_on_cpu`` runs a kernel without a GPU, for tests: it
checks the text, not the speed. What has been shown: the text is right on the CPU and compiles to PTX and to machine
code; with pycuda 2026.1 and an H200 26 of the 27 checks of ``tests/device/checks.py`` passed, and for one there was no
time; what has changed since has not been on a GPU (tests/bench/RESULTS-gpu.md).
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import device
from .codegen import launches, nvrtc, steps
from .codegen.cuda import BLOCK, CudaKernel, CudaParam, print_cuda
from .codegen.grid import print_grid
from .codegen.launches import CudaProgram
from .codegen.thread import HEAP, MORE, ROUNDS, STACK
from .core import Program
from .device import Remote
from .errors import CompileError, HyadError, ModelTypeError, border
from .marshalling import put_together, take_apart
from .model import Model
from .program.journal import without

MOST = 1 << 14  # reals of memory that a thread takes at most on the CPU
DTYPES = {"f64": np.float64, "f32": np.float32, "int": np.int64, "bool": np.int32, "word": np.uint64}


# ------------------------------------------------------------------------------------------- one launch


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch of a kernel is given: ``values`` for its params (a NumPy array, or a ``Remote`` of the GPU's, for
    a pointer, else a number), ``sizes`` for its dims, ``results`` to fill, ``room`` elements of workspace for each
    thread (None: no workspace)."""

    kernel: CudaKernel
    batch: int
    values: tuple[Any, ...]
    sizes: tuple[int, ...]
    results: tuple[Any, ...]
    room: int | None

    def answers(self) -> tuple[np.ndarray, ...]:
        """The results as the model's types: truth values are ``int`` in the kernel."""
        kinds = (r.elem for r in self.kernel.results)
        return tuple(a.astype(bool) if kind == "bool" else a for kind, a in zip(kinds, self.results))


def prepare(kernel: CudaKernel, args: Sequence[Any], make: Callable[..., Any] = np.zeros) -> Launch:
    """Fit flat arguments to a kernel; ``make`` makes the results. ModelTypeError where kinds, dims or batches do not
    fit."""
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
            raise ModelTypeError(f"{kernel.name}: argument `{p.name}`, {what}, has {array.ndim} dims, not {wanted}")
        if p.batched:
            batches[p.name] = array.shape[0]
        elif not p.dims:
            known[p.name] = array.item()
        shapes.append((p, array.shape[1:] if p.batched else array.shape))
        values.append(array if array.ndim or isinstance(array, Remote) else array[()])
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
        results.append(make((batch, *shape), DTYPES[kernel.dtype if r.elem == "real" else r.elem]))
    for p, value in zip(kernel.params, values):  # the workspace is as large as the largest element's
        if p.elem == "int" and p.batched and not p.dims and kernel.workspace is not None:
            known[p.name] = int(value.max(initial=0))
    room = None if kernel.workspace is None else size_of(kernel.workspace, known)
    return Launch(kernel, batch, tuple(values), tuple(known[d] for d in kernel.dims), tuple(results), room)


def _converted(p: CudaParam | launches.Param, value: Any, dtype: str) -> Any:
    """A value as the kernel reads it; contiguous, and not copied where it is so already. An array of the GPU is never
    copied: it must have the kernel's own type."""
    if isinstance(value, Remote):
        wanted = np.dtype(DTYPES[dtype if p.elem == "real" else p.elem])
        if value.dtype != wanted:
            other = {"float32": "f32", "float64": "f64"}.get(value.dtype.name) if p.elem == "real" else None
            raise ModelTypeError(
                f"argument `{p.name}`, an array of the GPU, holds {value.dtype}, and the kernel reads {wanted}",
                hint=f"convert it{f', or compile with dtype={other!r}' if other else ''}",
            )
        return value
    kinds = {"real": "fiub", "int": "iu", "bool": "b"}[p.elem]
    if isinstance(value, np.ma.MaskedArray):
        raise ModelTypeError(f"argument `{p.name}` is a masked array", hint=f"fill it: {p.name}.filled(...)")
    array = np.asarray(value)
    if array.dtype.kind not in kinds:
        wanted = {"real": "reals", "int": "integers", "bool": "truth values"}[p.elem]
        raise ModelTypeError(f"argument `{p.name}` holds {array.dtype}, not {wanted}")
    wanted = DTYPES[dtype if p.elem == "real" else p.elem]
    return np.require(array, wanted, "C")


def _even(value: Any, name: str) -> Any:
    """A list as an array, and any other value as it is."""
    try:
        return np.asarray(value) if isinstance(value, (list, tuple)) else value
    except ValueError:
        raise ModelTypeError(f"argument `{name}` is a list of rows of different lengths") from None


def size_of(size: int | str, known: dict[str, int]) -> int:
    """The value of a size: a number, or C over the dims and the Int params, as ``CPrinter.polynomial`` writes it."""
    if isinstance(size, int):
        return size
    text = re.sub(r"\((\w+) > 0 \? \1 : 0\)", r"max(\1, 0)", size).replace("/", "//")
    return int(eval(text, {"__builtins__": {}, "max": max}, known))


def failure(kernel: CudaKernel, number: int, element: int) -> HyadError:
    """The error of a check that failed at one element of the batch."""
    return device.failed_check(kernel.name, kernel.checks[number - 1], f" (element {element} of the batch)")


def wants_more(kernel: CudaKernel, number: int) -> bool:
    """Whether a check that failed is that of a thread's memory, so that there may be more of it."""
    return kernel.checks[number - 1][0] == "memory"


# ---------------------------------------------------------------------------------------------- the CPU


def run_on_cpu(
    kernel: CudaKernel,
    *args: Any,
    grid: int | None = None,
    block: int | None = None,
    descending: bool = False,
    heap: int = HEAP,
) -> tuple[np.ndarray, ...]:
    """Run a kernel on the CPU from its CUDA text, by a C++ compiler: the results, stacked along the batch.

    ``args`` are flat, as the kernel's params. ``grid`` and ``block`` replace the launcher's own shape; threads run one
    after another, the last one first if ``descending``. ``heap``: the reals of memory that each has at first, where the
    kernel takes any. ValueError for blocks that do not suit the kernel; CompileError without a C++ compiler; the errors
    of the model's checks; HyadError where the kernel wrote beyond its results or its workspace.
    """
    launch = prepare(kernel, args)
    while True:
        number, element = run_launch_on_cpu(launch, grid, block, descending, heap)
        if not number:
            return launch.answers()
        if not wants_more(kernel, number) or heap > MOST:
            raise failure(kernel, number, element)
        heap *= MORE


def run_launch_on_cpu(
    launch: Launch, grid: int | None, block: int | None, descending: bool, heap: int
) -> tuple[int, int]:
    """Launch a kernel on the CPU: the number of the check that failed, and where."""
    kernel = launch.kernel
    if kernel.warps and block and (block % 32 or block > kernel.block):
        raise ValueError(f"blocks of {kernel.name} have whole warps, and up to {kernel.block} threads")
    library = _cpu_library(kernel.source, kernel.name)
    shape = (grid or 0, block or 0)
    threads = (grid or 7) * (block or BLOCK)
    alone = "__sync" not in kernel.source
    library.cuda_on_cpu_shape(*map(ctypes.c_uint, shape), ctypes.c_int(descending), ctypes.c_int(alone))
    guarded = [_Guarded(r.size, r.dtype) for r in launch.results]
    pointers: list[Any] = [ctypes.c_longlong(launch.batch)]
    for p, value in zip(kernel.params, launch.values):
        pointers.append(value.ctypes if isinstance(value, np.ndarray) else _number(p.elem, value, kernel.dtype))
    pointers += map(ctypes.c_longlong, launch.sizes)
    pointers += [g.whole.ctypes for g in guarded]
    status = np.zeros(2, np.uint64)
    if launch.room is not None:
        room = launch.room + heap * kernel.heap
        guarded.append(_Guarded(room * threads, DTYPES[kernel.dtype]))
        pointers += [guarded[-1].whole.ctypes, ctypes.c_longlong(room)]
    if kernel.fallible:
        pointers.append(status.ctypes)
    if launch.room is not None:
        pointers.append(ctypes.c_longlong(threads))
    refused = getattr(library, f"{kernel.name}_launch")(*pointers, ctypes.c_void_p())
    if refused:
        raise HyadError(f"{kernel.name}: no launch with grid {grid} and block {block}")
    if not all(g.intact() for g in guarded):
        raise HyadError(f"{kernel.name} wrote outside its results or its workspace")
    for r, g in zip(launch.results, guarded):
        r[...] = g.whole[: r.size].reshape(r.shape)
    return int(status[0]), int(status[1])


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

ALIGNED = 256  # bytes at which every array of a call begins
LETTERS = {"f64": "d", "f32": "f", "int": "q", "bool": "i"}  # of ``struct``


def compile_cuda(
    model: Model, dtype: str = "f64", args: Sequence[Any] | None = None, deterministic: bool = False
) -> CudaModel:
    """A model as a function that runs on the GPU.

    ``args`` are arguments of one element, whose signature is meant; without them the annotations say it. CompileError
    says what is missing: pycuda, a GPU with its driver, or a CUDA compiler.
    """
    specs = model.specs(None if args is None else [likeness(a) for a in args])
    spread = model.optimised(specs, "cuda", blas=True)
    made = CudaModel(model.optimised(specs, "cuda"), dtype, deterministic, spread, model.off)
    made.source  # what cannot be printed is said before what is missing here
    device.driver()
    return made


def likeness(value: Any) -> Any:
    """A value of the same type in the host's memory, for a signature."""
    if isinstance(value, tuple):
        items = [likeness(x) for x in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {k: likeness(x) for k, x in value.items()}
    array = device.remote(value, "args")
    return value if array is None else np.broadcast_to(np.zeros((), array.dtype), array.shape)


class CudaModel:
    """A model on the GPU, as ``hyad.compile(f, target="cuda")`` gives it.

    An argument with one dim more than its parameter is batched: the model is run for each element, one thread for each.
    Where no argument is batched the one call is run in parallel. Results are in the host's memory unless an argument
    is on the GPU: then they are ``pycuda.gpuarray.GPUArray``s, numbers too, and truth values are integers, 0 or 1.

    It runs on the stream that ``stream=`` names (pycuda's, PyTorch's, CuPy's, or the handle of one), else on the
    default stream; in the context that is current, else in the primary one. With results on the GPU it returns as soon
    as all is under way, unless the model has checks or loops that the host must watch.

    Where the model recurs each thread has a stack of 16 kB, or of what the context's limit says if that is more; what a
    thread remembers lies in memory of its own, of which there is more at a second try if the first one did not find
    enough.

    ``source`` is the CUDA text: that of one call in parallel where there is one, else the batch's. ``plan`` is the
    former's ``CudaProgram``, ``batch`` the latter's ``CudaKernel`` with all arguments batched; CompileError where a
    model has none.
    """

    target = "cuda"

    def __init__(
        self,
        program: Program,
        dtype: str = "f64",
        deterministic: bool = False,
        spread: Program | None = None,
        off: Sequence[str] = (),
    ) -> None:
        self.program, self.dtype, self.deterministic, self.off = program, dtype, deterministic, off
        self.spread = spread or program  # for one call
        self.__name__, self.__doc__ = program.name, program.doc
        self._kernels: dict[tuple[int, ...], CudaKernel] = {}

    @border
    def __call__(self, *args: Any, stream: Any = None, **named: Any) -> Any:
        for keyword in named:
            raise ModelTypeError(
                f"{self.program.name} got an unexpected keyword `{keyword}`",
                self.program.span,
                "arguments go by position",
            )
        flat = self._flat(args)
        ranks = (getattr(p.type, "rank", 0) for p in self.program.params)
        shared = tuple(k for k, (rank, a) in enumerate(zip(ranks, flat)) if rank_of(a) <= rank)
        if len(shared) == len(flat):
            found = run_program(self.plan, flat, stream)
        else:
            found = run_batch(self._kernel(shared), flat, stream)
        return put_together(self.program.out, iter(found))

    def _flat(self, args: Sequence[Any]) -> list[Any]:
        if len(args) != len(self.program.ins):
            raise ModelTypeError(
                f"{self.program.name} takes {len(self.program.ins)} arguments, not {len(args)}", self.program.span
            )
        flat: list[Any] = []
        try:
            for tree, a in zip(self.program.ins, args):
                take_apart(tree, a, flat)
        except (AttributeError, KeyError, TypeError):
            flat.clear()
        if len(flat) != len(self.program.params):
            raise ModelTypeError(
                f"{self.program.name}: an argument has another structure than it was compiled for", self.program.span
            )
        return [device.remote(a, p.name) or _even(a, p.name) for p, a in zip(self.program.params, flat)]

    def _kernel(self, shared: tuple[int, ...]) -> CudaKernel:
        if shared not in self._kernels:
            with without(self.off):
                self._kernels[shared] = print_cuda(self.program, dtype=self.dtype, shared=shared)
        return self._kernels[shared]

    @property
    def batch(self) -> CudaKernel:
        """The kernel over a batch, all arguments batched."""
        return self._kernel(())

    @cached_property
    def plan(self) -> CudaProgram:
        """One call, run in parallel."""
        with without(self.off):
            return print_grid(self.spread, dtype=self.dtype, deterministic=self.deterministic)

    @cached_property
    def source(self) -> str:
        """The CUDA text."""
        try:
            return self.plan.source
        except CompileError:
            return self.batch.source


def rank_of(value: Any) -> int:
    return value.ndim if isinstance(value, Remote) else np.ndim(value)


def run_batch(kernel: CudaKernel, flat: Sequence[Any], stream: Any = None) -> tuple[Any, ...]:
    """Run a kernel on the GPU: its results, on the GPU if one of the arguments is."""
    stays = any(isinstance(a, Remote) for a in flat)
    with device.current(flat).call(kernel.name, stream, flat) as call:

        def made(shape: tuple[int, ...], dtype: Any) -> Any:
            dtype = np.dtype(dtype)
            memory = call.memory(math.prod(shape) * dtype.itemsize)
            return Remote(int(memory), shape, dtype, None, memory)

        near = [near_value(call, kernel, p, a) for p, a in zip(kernel.params, flat)]
        launch = prepare(kernel, near, made)
        if launch.batch:
            run_launch(call, launch)
        if stays:
            return tuple(call.array(r.shape, r.dtype, r.owner) for r in launch.results)
        found = (call.fetch(np.empty(r.shape, r.dtype), r.pointer) for r in launch.results)
        return tuple(a.astype(bool) if r.elem == "bool" else a for r, a in zip(kernel.results, found))


def near_value(call: device.Call, kernel: CudaKernel, p: CudaParam, value: Any) -> Any:
    """A value that sizes may depend on, or that the kernel takes by value, in the host's memory."""
    wanted = not p.dims and (not p.batched or p.elem == "int" and kernel.workspace is not None)
    if isinstance(value, Remote) and wanted:
        return call.fetch(np.empty(value.shape, value.dtype), value.pointer)
    return value


def run_launch(call: device.Call, launch: Launch) -> None:
    """Start a kernel over a batch, and wait for its checks if it has any; again with more memory for each thread, where
    that was not enough."""
    kernel, known = launch.kernel, call.device.found
    heap = known.get((kernel.source, "heap"), HEAP) if kernel.heap else 0
    while True:
        number, element = started(call, launch, heap)
        if not number:
            break
        if not wants_more(kernel, number):
            raise failure(kernel, number, element)
        heap *= MORE
        known[kernel.source, "heap"] = heap


def started(call: device.Call, launch: Launch, heap: int) -> tuple[int, int]:
    """Start a kernel, and wait for the check that failed, and where, if it has any."""
    kernel, place, batch = launch.kernel, call.device, launch.batch
    arguments: list[Any] = [batch]
    letters = ["q"]
    held = []  # until the kernel is under way
    for p, value in zip(kernel.params, launch.values):
        if isinstance(value, np.ndarray):
            value = call.send(value)
            held.append(value)
        pointer = not isinstance(value, np.generic)
        letters.append("P" if pointer else LETTERS[kernel.dtype if p.elem == "real" else p.elem])
        arguments.append((value.pointer if pointer else value.item()))
    arguments += [*launch.sizes, *(r.pointer for r in launch.results)]
    letters += [*("q" for _ in launch.sizes), *("P" for _ in launch.results)]
    block, grid = min(batch, kernel.block), min(-(-batch // kernel.block), kernel.most)
    if kernel.warps:
        block = -(-block // 32) * 32
    if launch.room is not None:  # for as many threads as may run at once, in at most half of the memory that is free
        room = launch.room + heap
        size = max(room, 1) * np.dtype(DTYPES[kernel.dtype]).itemsize
        most = place.attribute("MULTIPROCESSOR_COUNT") * place.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        least = 32 if kernel.warps else 1
        threads = max(min(most, call.driver.mem_get_info()[0] // 2 // size), least)
        block = min(block, threads) // least * least
        grid = min(grid, threads // block)
        held.append(call.memory(size * block * grid))
        arguments += [held[-1].pointer, room]
        letters += ["P", "q"]
    if kernel.deep:
        arguments.append(place.stack(STACK))
        letters.append("q")
    status = np.zeros(2, np.uint64)
    if kernel.fallible:
        held.append(call.send(status))
        arguments.append(held[-1].pointer)
        letters.append("P")
    function = place.function(kernel.source, kernel.entry, "".join(letters), kernel.name)
    call.launch(function, (grid, 1), (block, 1, 1), arguments)
    if kernel.fallible:
        call.fetch(status, held[-1].pointer)
    return int(status[0]), int(status[1])


# ------------------------------------------------------------------------------- one call of the whole model


def run_program(program: CudaProgram, flat: Sequence[Any], stream: Any = None) -> tuple[Any, ...]:
    """Run a model's plan on the GPU: its results, on the GPU if one of the arguments is."""
    stays = any(isinstance(a, Remote) for a in flat)
    with device.current(flat).call(program.name, stream, flat) as call:
        near = [
            call.fetch(np.empty(a.shape, a.dtype), a.pointer) if isinstance(a, Remote) and not p.dims else a
            for p, a in zip(program.params, flat)
        ]
        arrays, scalars, sizes = bound(program, near)
        known = call.device.found
        for name, least in ((program.heap, HEAP), (program.rounds, ROUNDS)):
            if name is not None:
                sizes[name] = known.get((program.source, name), least)
        if program.stack is not None:
            sizes[program.stack] = call.device.stack(STACK)
        while True:
            number, results = run_steps(call, program, arrays, scalars, sizes)
            if not number:
                break
            more = program.more(number)
            if more is None:
                raise device.failed_check(program.name, program.checks[number - 1])
            sizes[more] *= MORE
            known[program.source, more] = sizes[more]
        if stays:
            return tuple(call.array(r.shape, r.dtype, r.owner) for r in results)
        found = (call.fetch(np.empty(r.shape, r.dtype), r.pointer) for r in results)
        typed = (a.astype(bool) if m.elem == "bool" else a for m, a in zip(program.results, found))
        return tuple(a if a.ndim else a.item() for a in typed)


def run_steps(
    call: device.Call, program: CudaProgram, arrays: dict[str, Any], scalars: dict[str, Any], sizes: dict[str, int]
) -> tuple[int, list[Remote]]:
    """Take a plan's steps: the number of the check that failed, and the results."""
    machine = Gpu(call, program)
    made = steps.compiled(program)
    memory, results = machine.memory(arrays, made.shapes(sizes))
    if made.watched:
        call.clear(memory[program.status], 16)
    try:
        made.run(machine, memory, scalars, sizes)
        if made.watched:
            return int(call.fetch(np.zeros(2, np.uint64), memory[program.status])[0]), results
    except steps.Failed as failed:
        return failed.number, results
    return 0, results


def bound(program: CudaProgram, flat: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Flat arguments by name, as a plan's kernels read them: arrays, Real and Bool scalars, sizes. ModelTypeError where
    kinds or shapes do not fit."""
    if len(flat) != len(program.params):
        raise ModelTypeError(f"{program.name} takes {len(program.params)} arguments, not {len(flat)}")
    arrays: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for p, a in zip(program.params, flat):
        array = _converted(p, a, program.dtype)
        if array.ndim != len(p.dims):
            raise ModelTypeError(f"{program.name}: argument `{p.name}` has {array.ndim} dims, not {len(p.dims)}")
        if p.dims:
            arrays[p.name] = array
            for d, n in zip(p.dims, array.shape):
                if isinstance(d, str) and d in program.dims:
                    sizes.setdefault(d, n)
        elif p.elem == "int":
            sizes[p.name] = array.item()
        else:
            scalars[p.name] = array.item()
    for p in program.params:
        expected = tuple(launches.value(d, sizes) for d in p.dims)
        if p.dims and arrays[p.name].shape != expected:
            shape = arrays[p.name].shape
            raise ModelTypeError(f"{program.name}: argument `{p.name}` has shape {shape}, not {expected}")
    return arrays, scalars, sizes


class Gpu:
    """What the steps of a plan ask of a device (``steps.Machine``), on a GPU."""

    def __init__(self, call: device.Call, program: CudaProgram) -> None:
        self.call, self.program = call, program
        self.types = {e: np.dtype(DTYPES[program.dtype if e == "real" else e]) for e in ("real", "int", "bool", "word")}
        self.ready = call.device.plans.setdefault(program.source, {})
        self.held: list[Any] = []  # memory until the call is done

    def memory(self, arrays: dict[str, Any], shapes: Sequence[tuple[int, ...]]) -> tuple[dict[str, int], list[Remote]]:
        """The address of each array, and the results; what the program needs besides is one piece of memory."""
        program, found, results = self.program, {}, []
        own, total = [], 0
        for m, shape in zip(program.memory, shapes):
            if min(shape, default=0) < 0:  # of the states of a loop that does not run
                if m.kind == "result":
                    raise ModelTypeError(f"{program.name}: `{m.name}` would have shape {shape}")
                shape = tuple(max(d, 0) for d in shape)
            if m.kind == "param":
                array = arrays[m.name]
                if not isinstance(array, Remote):
                    self.held.append(self.call.send(array))
                    array = self.held[-1]
                found[m.name] = array.pointer
                continue
            dtype = self.types[m.elem]
            nbytes = math.prod(shape) * dtype.itemsize
            if m.kind == "result":
                memory = self.call.memory(nbytes)
                found[m.name] = memory.pointer
                results.append(Remote(memory.pointer, shape, dtype, None, memory))
            else:
                own.append((m.name, total))
                total += -(-max(nbytes, 1) // ALIGNED) * ALIGNED
        if own:
            self.held.append(self.call.memory(total))
            found.update((name, self.held[-1].pointer + at) for name, at in own)
        order = {r.name: k for k, r in enumerate(m for m in program.memory if m.kind == "result")}
        return found, [results[order[r.name]] for r in program.results]

    def launch(self, step: launches.Launch, blocks: int, args: Sequence[Any], shared: int = 0) -> None:
        """Start a kernel."""
        ready = self.ready.get(step.kernel)
        if ready is None:
            ready = self.ready[step.kernel] = (self.function(step), (step.block, 1, 1))
        self.call.launch(ready[0], (blocks, 1), ready[1], args, shared)

    def function(self, step: launches.Launch) -> Any:
        """A kernel, with a letter for each of its arguments."""
        letters = []
        for a in step.args:
            if isinstance(a, launches.At):
                letters.append("P")
            elif isinstance(a, launches.Scalar):
                letters.append(LETTERS[self.program.dtype if a.elem == "real" else a.elem])
            else:
                letters.append("q")
        program = self.program
        return self.call.device.function(program.source, step.kernel, "".join(letters), program.name)

    def clear(self, to: int, nbytes: int) -> None:
        """Fill with zeros."""
        self.call.clear(to, nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy bytes."""
        self.call.copy(to, source, nbytes)

    def read(self, at: int, elem: str) -> int:
        """One element, waited for."""
        return int(self.call.fetch(np.zeros(1, self.types[elem]), at)[0])

    def gemm(self, step: launches.Gemm, sizes: Sequence[int], a: int, b: int, c: int) -> bool:
        """A large product by cuBLAS, where it is installed."""
        from .cublas import LARGE, Handle, cublas

        library = cublas() if math.prod((*sizes[:3], sizes[6])) >= LARGE else None
        if library is None:
            return False
        kept = self.call.device.kept
        if "cublas" not in kept:
            kept["cublas"] = Handle(library)
        return kept["cublas"].product(self.program.dtype, sizes, step.ta, step.tb, a, b, c, step.add, self.call.key)
