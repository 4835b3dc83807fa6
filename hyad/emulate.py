"""CUDA programs on the CPU: the text of the kernels, compiled as C++, and the steps of their plan.

For tests where there is no GPU: it checks what a program computes, not how fast. The threads of a block are fibers that
change at barriers and shuffles, in ascending or descending order of their numbers (``codegen/cuda_on_cpu.h``).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .codegen import launches, nvrtc, steps
from .codegen.launches import At, CudaProgram, Gemm, Launch, Scalar
from .codegen.thread import HEAP, MORE, ROUNDS, STACK
from .device import failed_check
from .errors import CompileError, HyadError, ModelTypeError

FLAGS = "-std=c++17 -fPIC -shared -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-function".split()
STRIP = 16  # elements behind each array that nothing may write to
MARK = 85
MOST = 1 << 14  # reals of memory that a thread takes at most
GRID = 5  # blocks, where any number will do
DTYPES = {"int": np.int64, "bool": np.int32, "word": np.uint64}


def entries(program: CudaProgram) -> str:
    """C++ that starts each kernel from its arguments' addresses."""
    out = []
    for kernel in program.kernels:
        body = program.source.partition(f" {kernel}(")[2].partition("\n}\n")[0]
        barriers = re.search(r"\b(__sync|__shfl|hyad_block_|hyad_team_|\w+_part\()", body) is not None
        out.append(
            f'extern "C" int {kernel}_start(void **args, unsigned blocks, unsigned block, unsigned shared)\n'
            f"{{\n    cuda_on_cpu::alone = {str(not barriers).lower()};\n"
            f"    return (int)cudaLaunchKernel({kernel}, dim3(blocks), dim3(block), args, shared, 0);\n}}\n"
        )
    return "".join(out)


class Emulator:
    """Some programs, compiled together; ``run`` calls one. Names of kernels must differ. ``level``: how much the
    compiler optimises; programs mostly run briefly, and "-O1" takes three times as long to compile."""

    def __init__(self, programs: Sequence[CudaProgram], compiler: Sequence[str], level: str = "-O0") -> None:
        header = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
        with tempfile.TemporaryDirectory(prefix="hyad-") as folder:
            parts = [f"namespace program{k} {{\n{p.source}{entries(p)}}}\n" for k, p in enumerate(programs)]
            path = Path(folder, "programs.cu")
            path.write_text("".join(parts), encoding="utf-8")
            target = Path(folder, "programs.so")
            files = ["-include", str(header), "-x", "c++", str(path), "-o", str(target), "-lm"]
            command = [*compiler, *FLAGS, level, *files]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode or done.stderr:
                raise CompileError(f"the CUDA text does not compile for the CPU:\n{done.stderr.strip()}")
            self.library = ctypes.CDLL(str(target))

    def run(
        self,
        program: CudaProgram,
        args: Sequence[Any],
        *,
        descending: bool = False,
        blocks: int = 0,
        block: int = 0,
        heap: int = HEAP,
        stack: int = STACK,
        rounds: int = ROUNDS,
    ) -> tuple[np.ndarray, ...]:
        """Call a program with flat arguments: its flat results. ``blocks`` and ``block`` replace the shape of launches
        that may have any. ``heap``: the reals of memory that a thread has at first, where it takes some; ``stack``: the
        bytes of its stack; ``rounds``: how many of a remembered ``while`` of the host there is room for at first. The
        errors of the model's checks; HyadError where a kernel wrote beyond an array."""
        named = ((program.heap, heap), (program.stack, stack), (program.rounds, rounds))
        own = {name: n for name, n in named if name is not None}
        while True:
            machine = _Cpu(self.library, program, descending, blocks, block)
            found = machine.call(args, own)
            if not isinstance(found, int):
                return found
            more = program.more(found)
            if more is None or own[more] > MOST:
                raise failed_check(program.name, program.checks[found - 1])
            own[more] *= MORE


class _Array:
    """Memory with a strip behind it."""

    def __init__(self, length: int, dtype: Any) -> None:
        self.whole = np.full(length + STRIP, MARK, dtype)
        self.length, self.address = length, self.whole.ctypes.data

    @property
    def data(self) -> np.ndarray:
        return self.whole[: self.length]


class _Cpu:
    def __init__(self, library: ctypes.CDLL, program: CudaProgram, descending: bool, blocks: int, block: int) -> None:
        self.library, self.program = library, program
        self.blocks, self.block = blocks, block
        self.real = np.float64 if program.dtype == "f64" else np.float32
        library.cuda_on_cpu_shape(0, 0, int(descending), 1)
        self.arrays: list[_Array] = []

    def dtype(self, elem: str) -> Any:
        return self.real if elem == "real" else DTYPES[elem]

    def call(self, args: Sequence[Any], own: dict[str, int]) -> tuple[np.ndarray, ...] | int:
        """The results, or the number of the check that failed."""
        program = self.program
        sizes = dict(own)
        scalars: dict[str, Any] = {}
        memory: dict[str, _Array] = {}
        for p, a in zip(program.params, args):
            a = np.asarray(a)
            if p.dims:
                for d, n in zip(p.dims, a.shape):
                    if isinstance(d, str):
                        sizes.setdefault(d, n)
            elif p.elem == "int":
                sizes[p.name] = int(a)
            else:
                scalars[p.name] = a.item()
        for p, a in zip(program.params, args):
            if p.dims and tuple(launches.value(d, sizes) for d in p.dims) != np.shape(a):
                raise ModelTypeError(f"argument `{p.name}` has shape {np.shape(a)}")
        for m in program.memory:
            length = max(0, launches.value(m.length, sizes))
            memory[m.name] = array = _Array(length, self.dtype(m.elem))
            self.arrays.append(array)
        given = {p.name: np.ascontiguousarray(a, self.dtype(p.elem)) for p, a in zip(program.params, args) if p.dims}
        for name, a in given.items():
            memory[name].data[...] = a.reshape(-1)
        if program.status is not None:
            memory[program.status].data[...] = 0
        number = 0
        try:
            steps.compiled(program).run(self, {n: a.address for n, a in memory.items()}, scalars, sizes)
        except steps.Failed as failed:
            number = failed.number
        if not all((a.whole[a.length :] == MARK).all() for a in self.arrays):
            raise HyadError(f"{program.name} wrote outside its arrays")
        if not all(np.array_equal(memory[n].data, a.reshape(-1), equal_nan=True) for n, a in given.items()):
            raise HyadError(f"{program.name} wrote to its arguments")
        if program.status is not None and not number:
            number = int(memory[program.status].data[0])
        if number:
            return number
        out = []
        for r in program.results:
            shape = tuple(launches.value(d, sizes) for d in r.dims)
            a = memory[r.name].data.reshape(shape).copy()
            out.append(a.astype(bool) if r.elem == "bool" else a)
        return tuple(out)

    # ---------------------------------------------------------------------------- what the steps ask for

    def launch(self, step: Launch, blocks: int, args: Sequence[Any], shared: int = 0) -> None:
        held: list[Any] = []
        real = ctypes.c_double if self.program.dtype == "f64" else ctypes.c_float
        for kind, a in zip(step.args, args):
            if isinstance(kind, At):
                held.append(ctypes.c_void_p(a))
            elif isinstance(kind, Scalar):
                held.append(real(a) if kind.elem == "real" else ctypes.c_int(int(a)))
            else:
                held.append(ctypes.c_longlong(a))
        pointers = (ctypes.c_void_p * max(len(held), 1))(*(ctypes.addressof(h) for h in held))
        block = step.block
        if step.free:
            blocks = self.blocks or min(blocks, GRID)
            if block == launches.BLOCK and not shared:  # a kernel that stands on its block's size has another one
                block = self.block or block
        if getattr(self.library, f"{step.kernel}_start")(pointers, blocks, block, shared):
            raise HyadError(f"{step.kernel}: no launch with {blocks} blocks of {block} threads")

    def clear(self, to: int, nbytes: int) -> None:
        ctypes.memset(self.inside(to, nbytes), 0, nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(self.inside(to, nbytes), self.inside(source, nbytes), nbytes)

    def inside(self, address: int, nbytes: int) -> int:
        """An address that so many bytes of one array lie behind."""
        for a in self.arrays:
            if a.address <= address and address + nbytes <= a.address + a.data.nbytes:
                return address
        raise HyadError(f"{self.program.name}: a step goes beyond an array")

    def read(self, at: int, elem: str) -> int:
        return int((ctypes.c_longlong if elem == "int" else ctypes.c_int).from_address(at).value)

    def gemm(self, step: Gemm, sizes: Sequence[int], a: int, b: int, c: int) -> bool:
        return False
