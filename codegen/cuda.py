"""Typed core to CUDA: a model mapped over a batch, one thread for each element.

``print_cuda(program)`` gives a ``CudaKernel``, whose text has three parts: the model as a device function, which is
what the C printer prints but for its head, its tables and its block copies; the kernel ``NAME_batch``, a grid-stride
loop that calls it for every element; and the launcher ``NAME_launch`` for a host program. Any program will do: a
value, a Jacobian, a gradient.

An argument is *batched*, with a leading dim of its own: element k is at ``arg + k*size``; or it is *shared* by all
elements. Results are stacked. All elements have one shape, so an Int that a result's size depends on is shared.

The one text compiles under nvcc, under NVRTC (without the launcher) and, through ``cuda_on_cpu.h``, by a C++
compiler for the CPU.

A batched argument or result of few numbers is a row that neighbouring threads have side by side: it goes through shared
memory (``staging.py``).

Memory: a workspace of fixed size up to ``LOCAL_REALS`` elements is a local array of the thread. A bigger one, or one
whose size is known at run time, is the caller's: one piece for each thread in flight, not for each element; those of a
warp between each other (``thread.py``), which is why blocks have whole warps then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hyad.core import Data, Program, Scalar
from hyad.errors import CompileError, ModelTypeError

from .c import FUNCTION_RESERVED
from .cfunction import CFunction, CParam
from .comments import commented, listed, shorten
from .data import item_type, without_unused
from .expressions import WIDTH, wrapped
from .identifiers import WORD, Names
from .launches import WAVES
from .lower import LOCAL_REALS, Plan, plan
from .operands import Line
from .staging import Tile, blocks_for, by_warps, functions_of, mostly_read
from .thread import CONSTANTS, CUDA, HEAD, HEAP, SPARE, STACK_LIMIT, WARP, ThreadPrinter, ThreadUnit

BLOCK = 128  # threads of a block, as NAME_launch starts them
GRID = 2**31 - 1  # blocks at most
# names around the device function, unless a parameter has them: first the kernel's, then the launcher's own
OUTER = (*"batch room status k step thread own failed threads stream block grid args stack memory error".split(),)
TILED = ("first", "lane", "rows", "arrived", "turn")


@dataclass(frozen=True, slots=True)
class CudaParam(CParam):
    """A parameter: ``dims`` are those of one element; ``batched`` says that it has the batch's dim before them."""

    batched: bool = True


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One model over a batch.

    The kernel ``NAME_batch`` takes the length of the batch, the ``params`` (a shared scalar by value, everything else
    as a pointer to the device's memory), the named ``dims``, a pointer for each of the ``results`` (their dims are one
    element's), then ``work`` and ``room`` where there is a ``workspace``, then ``status`` where the model is
    ``fallible``. Sizes are ``long long``. It may be launched with any grid and block of one dimension; where
    ``warps``, with blocks of whole warps, and of up to ``block`` threads. More than ``most`` blocks gain nothing.

    ``workspace`` is None, or a C expression over the dims and the Int params, growing with them: what ``room``, the
    reals for each thread in flight, must be at least; ``work`` points to ``room`` of them for each thread. With
    ``heap`` what is more of ``room`` is memory that the thread takes as it needs it: a check of the kind "memory" fails
    where it is not enough, and the kernel may be launched again with more. With ``deep`` it takes ``stack``, the bytes
    of the stack that each thread has: a check of the kind "depth" fails where recursion wants more. ``status``
    points to two ``unsigned long long``, zeros before the launch: afterwards the number of a check that failed,
    ``checks[number - 1]``, and the element that it failed at. Where several elements fail one of them is told; the
    others' results are right.
    """

    name: str
    params: tuple[CudaParam, ...]
    results: tuple[CParam, ...]
    dims: tuple[str, ...] = ()
    fallible: bool = False
    workspace: str | None = None
    checks: tuple[tuple[str, str, Any], ...] = ()
    source: str = ""
    header: str = ""
    dtype: str = "f64"
    heap: bool = False
    deep: bool = False
    warps: bool = False
    block: int = BLOCK
    most: int = GRID

    @property
    def entry(self) -> str:
        """The kernel's name in the compiled module."""
        return f"{self.name}_batch"


def print_cuda(
    program: Program,
    *,
    dtype: str = "f64",
    name: str | None = None,
    shared: Collection[str | int] = (),
    line_directives: bool = False,
) -> CudaKernel:
    """A typed program, mapped over a batch, as CUDA.

    ``shared`` are the flat parameters, by name or position, that all elements have in common; the others have a
    leading dim of the batch, except an Int that the size of a result depends on. ``dtype`` is "f64" or "f32"; ``name``
    replaces the model's; ``line_directives`` puts ``#line`` before the statements.

    Raises ModelTypeError for a shared parameter that there is not, CompileError where ``print_c`` does.
    """
    return CudaPrinter(program, dtype, name, shared, line_directives).kernel()


def refuse(program: Program) -> None:
    """What has no form on a GPU, with its place: data that come from the host or go there."""
    hint = 'use target="c", or take and give numbers and arrays'
    for p in program.params:
        if isinstance(item_type(p), Data):
            raise CompileError(f"the argument `{p.name}` is data, which CUDA code does not take", p.span, hint)
    for r in program.body.results:
        if isinstance(item_type(r), Data):
            span = getattr(r, "span", None) or program.span
            raise CompileError("the result is data, which CUDA code does not give", span, hint)


class CudaPrinter(ThreadPrinter):
    """Prints the device function by the C printer's means, then the kernel and the launcher around it."""

    def __init__(
        self,
        program: Program,
        dtype: str = "f64",
        name: str | None = None,
        shared: Collection[str | int] = (),
        line_directives: bool = False,
        unit: ThreadUnit | None = None,
    ):
        refuse(program)
        own = Names(FUNCTION_RESERVED | CUDA).fresh(name or program.name or "model")
        self.unit = unit or ThreadUnit(program, dtype, own)
        self.block = BLOCK
        super().__init__(program, dtype=dtype, name=name, line_directives=line_directives)
        self.names.taken |= self.unit.names.taken
        self.checks, self.support = self.unit.checks, self.unit.support
        called = self.called_functions()
        self.deep = any(f in self.unit.deep for f in called)
        self.heap = self.takes() or any(f in self.unit.heap for f in called)
        self.arena = self.heap or any(self.unit.functions[f].arena for f in called)
        if self.heap:
            self.unit.used_up()
        known = {p.name: k for k, p in enumerate(program.params)}
        self.shared: set[int] = set()
        for which in shared:
            k = known.get(which, -1) if isinstance(which, str) else which
            if not 0 <= k < len(program.params):
                raise ModelTypeError(
                    f"{program.name} has no parameter {which!r} to share", program.span, f"it has {', '.join(known)}"
                )
            self.shared.add(k)

    def planned(self, program: Program) -> Plan:
        return plan(program, self.unit.pairs)

    def layout(self) -> tuple[dict[Any, tuple[dict, dict]], str]:
        """With whether arrays in the workspace are strided: not where that is a local array of each thread."""
        offsets, total = super().layout()
        local = total.isdigit() and int(total) <= LOCAL_REALS and not self.heap
        self.strided = self.in_warps() and not local and self.can_be_strided()
        return offsets, total

    def in_warps(self) -> bool:
        """Whether all threads of a warp do this, each for itself."""
        return True

    def workspace_piece(self, elem: Scalar, name: str, offset: str) -> str:
        if self.strided:
            return self.strided_piece("work", elem, name, offset)
        return super().workspace_piece(elem, name, offset)

    # ------------------------------------------------------------------------ the device function

    def prototype(self, fn: CFunction) -> str:
        text = fn.prototype.replace("*restrict ", "*__restrict__ ")
        return "static __device__ " + text.replace(f" {fn.name}(", f" {fn.name}_element(", 1)

    def part_head(self, head: str) -> str:
        return "static __device__ __noinline__ " + head.replace("*restrict ", "*__restrict__ ")

    def before_parts(self) -> list[str]:
        return []

    def includes(self, text: str) -> list[str]:
        constants = CONSTANTS if re.search(r"\b(INFINITY|NAN)\b", text) else []
        return [*HEAD, *constants, "#endif"] if "#include <math.h>" in super().includes(text) else []

    # ---------------------------------------------------------------- the kernel and its launcher

    def kernel(self) -> CudaKernel:
        fn = self.function()
        slices = self.slice(fn) if self.has_slices(fn) else None
        params, name, dtype = self.parameters(fn), fn.name, fn.dtype
        checks, source, header = fn.checks, fn.source, fn.header
        own = self.heap, self.deep, bool(self.tiles) or self.strided, self.block, self.most()
        return CudaKernel(name, params, fn.results, fn.dims, fn.fallible, slices, checks, source, header, dtype, *own)

    def extras(self) -> dict[str, Any]:
        return {"arena": self.arena}

    def top(self, frame: CFunction) -> None:
        super().top(frame)
        if self.arena:
            self.lines = without_unused(self.lines)

    def preamble(self) -> list[str]:
        shared = self.unit.text("\n".join(["hyad_arena" * self.arena, *(line.text for line in self.lines)]))
        return [*shared, *functions_of(self.tiles.values())]

    def parameters(self, fn: CFunction) -> tuple[CudaParam, ...]:
        """The parameters with their flags: what a shape depends on is shared."""
        sizes = " ".join(str(d) for p in (*fn.params, *fn.results) for d in p.dims)
        words = set(WORD.findall(sizes))
        return tuple(
            CudaParam(p.name, p.elem, p.dims, batched=k not in self.shared and p.name not in words)
            for k, p in enumerate(fn.params)
        )

    def described(self, p: CParam) -> str:
        return super().described(p).removesuffix(", row-major")

    def has_slices(self, fn: CFunction) -> bool:
        """Whether the caller gives the workspace."""
        return self.heap or fn.workspace is not None and not (fn.work_static and int(fn.workspace) <= LOCAL_REALS)

    def slice(self, fn: CFunction) -> str:
        """The reals of one thread's part of the workspace."""
        size = fn.workspace or "0"
        return f"({size} + 1)/2*2" if self.mixed() and fn.workspace else size

    def mixed(self) -> bool:
        """Whether what takes eight bytes lies among floats in the workspace, which must then be aligned for it."""
        return self.dtype == "f32" and (self.heap or any(key[0] == "Int" for key in self.plan.pools))

    def arena_value(self, frames: int, start: str, end: str, stack: str) -> str:
        """The value of the thread's ``hyad_arena``; ``frames`` are the bytes of local arrays."""
        spare = SPARE + self.unit.frames + frames
        begin = start if start.isidentifier() else f"({start})"
        free = f"(char *){begin}, (char *)({end})" if self.heap else "nullptr, nullptr"
        deep = f"{stack} > {spare} ? (size_t)({stack} - {spare}) : 0" if self.deep else "0"
        return f"{{{free}, {deep}, 0}}"

    def source(self, fn: CFunction, lines: list[Line]) -> str:
        names = Names(self.reserved())
        names.taken.update([*(p.name for p in (*fn.params, *fn.results)), *fn.dims, "work"])
        self.outer = {n: names.fresh(n) for n in (*OUTER, *TILED)}
        self.tiles = self.staged(fn, names)
        text = "\n".join([super().source(fn, lines), *self.batch(fn), "", *self.launcher(fn), ""])
        return re.sub(r"\bNULL\b", "nullptr", text)

    def signature(self, fn: CFunction, restrict: str = "") -> list[str]:
        """The kernel's parameters; the launcher has them too, and more."""
        out = [f"long long {self.outer['batch']}"]
        for p in self.parameters(fn):
            pointer = p.batched or p.is_array
            out.append(f"const {fn.ctype(p.elem)} *{restrict}{p.name}" if pointer else f"{fn.ctype(p.elem)} {p.name}")
        out += [f"long long {d}" for d in fn.dims]
        out += [f"{fn.ctype(r.elem)} *{restrict}{r.name}" for r in fn.results]
        if self.has_slices(fn):
            out += [f"{fn.ctype('real')} *{restrict}work", f"long long {self.outer['room']}"]
        if self.deep and restrict:  # the launcher finds it out
            out.append(f"long long {self.outer['stack']}")
        if fn.fallible:
            out.append(f"unsigned long long *{self.outer['status']}")
        return out

    def batch(self, fn: CFunction) -> list[str]:
        """The kernel."""
        batch, room, status, k, step, thread, own, failed = (self.outer[n] for n in OUTER[:8])
        params, tiles = self.parameters(fn), self.tiles

        def part(p: CParam, pointer: bool = False) -> str:
            return tiles[p.name].own() if p.name in tiles else _part(p, k, pointer)

        args = [part(p) if p.batched else p.name for p in params] + [*fn.dims]
        if not fn.returns_value:
            args += [part(r, pointer=True) for r in fn.results]
        lines = [
            f"const long long {thread} = (long long)blockIdx.x*blockDim.x + threadIdx.x;",
            f"const long long {step} = (long long)gridDim.x*blockDim.x;",
        ]
        real = fn.ctype("real")
        if self.has_slices(fn):
            lines.append(f"{real} *{own} = {self.memory_of(thread, room)};")
        elif fn.workspace is not None:
            lines.append(f"{'alignas(8) ' if self.mixed() else ''}{real} {own}[{fn.workspace}];")
        if fn.workspace is not None:
            args.append(own)
        memory, stack = self.outer["memory"], self.outer["stack"]
        if self.arena:
            args.append(f"&{memory}")
        call = f"{fn.name}_element({', '.join(args)})"
        body = []
        if self.arena:
            local = 0 if self.has_slices(fn) or fn.workspace is None else 8 * int(fn.workspace)
            taken = self.slice(fn)
            for p in params:
                taken = re.sub(rf"\b{p.name}\b", f"{p.name}[{k}]", taken) if p.batched and not p.dims else taken
            value = self.arena_value(fn.stack + local, *self.free_memory(own, room, taken), stack)
            body.append(f"hyad_arena {memory} = {value};")
        if fn.returns_value:
            body.append(f"{fn.results[0].name}[{k}] = {call};")
        elif fn.fallible:
            body.append(f"const int {failed} = {call};")
            body.append(f"if ({failed} && atomicCAS({status}, 0ULL, (unsigned long long){failed}) == 0)")
            body.append(f"    {status}[1] = (unsigned long long){k};")
        else:
            body.append(f"{call};")
        if tiles:
            first, lane, *_ = own_names = tuple(self.outer[n] for n in TILED)
            lines[:0] = [tile.declared(self.block) for tile in tiles.values()]
            if any(re.search(rf"\b{k}\b", line) for line in body):
                body.insert(0, f"const long long {k} = {first} + {lane};")
            head, tail = by_warps([*tiles.values()], self.block, (thread, step, batch), own_names)
            lines += [*head, *("        " + line for line in body), *tail]
        else:
            lines.append(f"for (long long {k} = {thread}; {k} < {batch}; {k} += {step}) {{")
            lines += ["    " + line for line in body]
            lines.append("}")
        shared = ", ".join(p.name for p in params if not p.batched)
        note = "batched: " + (", ".join(p.name for p in params if p.batched) or "nothing")
        note = shorten(note + (f"; shared: {shared}" if shared else ""), WIDTH)
        bounds = f"__launch_bounds__({self.block}) " if tiles else ""
        head = f'extern "C" __global__ void {bounds}{fn.name}_batch({", ".join(self.signature(fn, "__restrict__ "))})'
        return [f"/* one thread for each element; {note} */", *wrapped(head, WIDTH), "{", *_body(lines), "}"]

    def launch_head(self, fn: CFunction) -> str:
        parts = self.signature(fn) + ([f"long long {self.outer['threads']}"] if self.has_slices(fn) else [])
        return f"cudaError_t {fn.name}_launch({', '.join(parts)}, cudaStream_t {self.outer['stream']})"

    def launcher(self, fn: CFunction) -> list[str]:
        """The host's function: a thread for each element, as far as the grid or the workspace allows."""
        batch, threads, stream, block, grid, args = (self.outer[n] for n in (OUTER[0], *OUTER[8:13]))
        width = f"{threads} < {self.block} ? {threads} : {self.block}" if self.has_slices(fn) else str(self.block)
        least = 1
        if self.strided:
            least, width = WARP, f"{threads} < {self.block} ? {threads}/{WARP}*{WARP} : {self.block}"
        most = f"{threads}/{block}" if self.has_slices(fn) else str(self.most())
        given = [part.split()[-1].lstrip("*") for part in self.signature(fn, " ")]
        stack, error = self.outer["stack"], self.outer["error"]
        limit = [
            f"long long {stack} = 0;",
            f"const cudaError_t {error} = hyad_stack(&{stack});",
            f"if ({error})",
            f"    return {error};",
        ]
        lines = [
            f"if ({batch} <= 0)",
            "    return cudaSuccess;",
            *([f"if ({threads} < {least})", "    return cudaErrorInvalidValue;"] if self.has_slices(fn) else []),
            *(limit if self.deep else []),
            f"const long long {block} = {width};",
            f"long long {grid} = ({batch} + {block} - 1)/{block};",
            f"void *{args}[] = {{{', '.join('&' + n for n in given)}}};",
            f"if ({grid} > {most})",
            f"    {grid} = {most};",
            f"return cudaLaunchKernel({fn.name}_batch, dim3((unsigned){grid}), dim3((unsigned){block}), {args}, 0,"
            f" {stream});",
        ]
        head = wrapped(f'extern "C" {self.launch_head(fn)}', WIDTH)
        first = ["#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */"]
        first += STACK_LIMIT.strip("\n").split("\n") if self.deep else []
        return [*first, *head, "{", *_body(lines), "}", "#endif"]

    def staged(self, fn: CFunction, names: Names) -> dict[str, Tile]:
        """The tiles of arguments and results, by their names: of those that neighbouring threads have side by side."""
        if self.has_slices(fn) and not self.strided:  # its blocks may have any number of threads
            return {}
        rows = [
            (p, False)
            for p, v in zip(self.parameters(fn), self.program.params)
            if p.batched and mostly_read(self.program, v, ())
        ]
        rows += [(r, True) for r in fn.results]
        tiles = [
            Tile(p.name, names.fresh(f"{p.name}_tile"), fn.ctype(p.elem), math.prod(p.dims), given)
            for p, given in rows
            if p.dims and all(isinstance(d, int) for d in p.dims)
        ]
        self.block, found = blocks_for(tiles, BLOCK)
        return {tile.array: tile for tile in found}

    def most(self) -> int:
        """How many blocks there are at most: where rows are fetched ahead, so few that each has some to go on with."""
        return WAVES if any(tile.bulk and not tile.given for tile in self.tiles.values()) else GRID

    # ------------------------------------------------------------------------------- the header

    def header(self, fn: CFunction) -> str:
        batch, status, threads = self.outer["batch"], self.outer["status"], self.outer["threads"]
        doc = commented((self.program.doc or "").strip(), 400)
        out = [f"/* {fn.name}, for {batch} elements at once" + (f": {doc}" if doc else "")]
        out.append(" * All pointers are to the device's memory; arrays are row-major.")
        for p in self.parameters(fn):
            out.append(
                f" *   {p.name}: {self.described(p)}" + (" for each element" if p.batched else ", for all elements")
            )
        out += [f" *   {d}: a size" for d in fn.dims]
        out += [f" *   {r.name}: {self.described(r)} for each element, the result" for r in fn.results]
        macro = []
        if self.has_slices(fn):
            arguments = self.macro_arguments(fn)
            size = self.slice(fn)
            for n in arguments:
                size = re.sub(rf"\b{n}\b", f"({n})", size)
            call = f"{fn.name.upper()}_WORK" + (f"({', '.join(arguments)})" if arguments else "")
            macro = [f"#define {call} ({size})"]
            largest = [p.name for p in self.parameters(fn) if p.batched and p.name in arguments]
            of = f" of the largest {', '.join(largest)}" if largest else ""
            out.append(
                f" *   work: room for {self.outer['threads']}*{self.outer['room']} elements that the kernel writes to"
            )
            least = f" *   {self.outer['room']}: at least {call}{of}" + (", and even" if self.mixed() else "")
            out.append(least)
            if self.heap:
                out.append(
                    f" *     and more, {HEAP} say, that a thread takes as it needs it; where that was not enough"
                )
                out.append(f" *     check {self.unit.memory} fails: launch it again with more")
            out.append(f" *   {threads}: how many threads may run at once, at least {WARP if self.strided else 1}")
        if fn.fallible:
            out.append(
                f" *   {status}: two numbers, 0 before the launch; if a check fails, its number and the element:"
            )
            out += listed(fn.checks, " *     ")
        return header_of(fn.name, out, macro, self.launch_head(fn))


def header_of(name: str, comment: list[str], macro: list[str], function: str) -> str:
    """A header: the lines of the comment, which ends here, those of a macro, and the declaration of a host's function,
    which NVRTC is not to see."""
    guard = f"{name.upper()}_CUDA_H"
    out = [f"#ifndef {guard}", f"#define {guard}", "", "#if !defined(__CUDACC_RTC__) && !defined(CUDA_ON_CPU)"]
    out += ["#include <cuda_runtime_api.h>", "#endif", "", *comment]
    out[-1] += " */"
    declared = wrapped(f"{function};", WIDTH)
    out += [*macro, "#ifndef __CUDACC_RTC__", "#ifdef __cplusplus", 'extern "C"', "#endif", *declared, "#endif"]
    return "\n".join([*out, "", f"#endif /* {guard} */", ""])


def _part(p: CParam, k: str, pointer: bool = False) -> str:
    """Element k of a batched parameter, or of a result."""
    if not p.dims:
        return f"{p.name} + {k}" if pointer else f"{p.name}[{k}]"
    number = math.prod(d for d in p.dims if isinstance(d, int))
    sizes = [str(number)] * (number != 1) + [d for d in p.dims if isinstance(d, str)]
    return f"{p.name} + {'*'.join([k, *sizes])}"


def _body(lines: list[str]) -> list[str]:
    """Lines of a function's body, indented, the long ones wrapped."""
    out = []
    for line in lines:
        text = line.lstrip()
        indent = " " * (4 + len(line) - len(text))
        out += [indent + t for t in wrapped(text, WIDTH - len(indent))]
    return out
