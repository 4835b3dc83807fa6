"""What one thread of a GPU computes, as CUDA: its statements, functions that call themselves, memory of its own.

``ThreadPrinter`` says what the C printer's text is in CUDA; the kernels around it are those of ``cuda.py`` and of
``kernels.py``.

*Functions.* A recursive function is a device function, printed as the C one is. A thread has a stack of some kilobytes,
and no one notices where it ends: so each call that goes deeper looks how much is taken, and fails where that is more
than the launch has said.

*Memory.* What cannot be measured before the call, the cells of data and the stacks of a ``while``, is cut from the
thread's *heap*: memory that the launch gives, as much for each thread in flight. Where it does not suffice the launch
fails by a check of the kind "memory", and the host makes it again with more: nothing that it read has been changed.

What can be measured is a slice of the workspace. Where a warp's threads have such slices they lie *between* each other:
element k of a thread's arrays is 32 elements behind its element k - 1, and the other 31 threads of the warp have theirs
in between (``hyad_strided``), so that what the threads of a warp read at once is one piece of memory; as it is in the
local arrays of threads, which the machine lays out like that by itself. Not where arrays are handed to functions or
kept in cells, nor where one changes places with an array that the caller laid out.

Design decision: not counted first. A thread would run its loops twice, the recursion that makes records as well, and
threads differ; what sufficed once is kept for the next call, so that one call pays.

*Failing.* No thread jumps out of its functions: one that fails notes the number of the check in its ``hyad_arena`` and
returns, and so does each that called it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hyad.core import REAL, Apply, Atom, Bind, Function, Make, Program, Scalar, While, all_binds
from hyad.program.journal import on
from hyad.program.primitives import PRIMITIVES, c_form, power_form

from .arena import ARENA_NAMES
from .c import RESERVED, CPrinter
from .cfunction import CConstructor, CData, CFunction
from .data import definitions
from .functions import FunctionPrinter, Unit
from .lower import Buffer

CUDA = frozenset(
    "threadIdx blockIdx blockDim gridDim warpSize dim3 atomicCAS cudaLaunchKernel cudaSuccess cudaError_t cudaStream_t"
    " cudaDeviceGetLimit cudaDeviceSetLimit cudaLimitStackSize hyad_deep hyad_stack".split()
)
CONSTANT_BYTES = 60_000  # of the 64 kB of constant memory that a module has
HEAP = 128  # reals of the heap that a thread has at first
ROUNDS = 16  # of a ``while`` of the host that is remembered there is room for at first
MORE = 4  # how many times as much it has where that was not enough
WARP = 32
STACK = 1 << 14  # bytes of the stack that a thread has at least, for recursion
SPARE = 2048  # bytes of it that are left for what is below the last look: a frame's end, functions that do not look

NAME = "striding"  # of the optimisation, to switch it off

HEAD = ["#ifndef __CUDACC_RTC__ /* NVRTC has these functions built in */", "#include <math.h>"]
CONSTANTS = ["#else", "#define INFINITY __int_as_float(0x7f800000)", "#define NAN __int_as_float(0x7fffffff)"]

USED_UP = "the memory of a thread is used up"

ARENA = """\
/* what a thread has to itself: free memory, bytes of the stack for recursion, the check that failed */
struct hyad_arena { char *next, *end; size_t stack; int failed; };
"""
ALLOC = """
static __device__ inline void *hyad_alloc(hyad_arena *arena, size_t size)
{
    char *p = arena->next;
    size = (size + 7)/8*8;
    if (size > (size_t)(arena->end - p)) {
        arena->failed = MEMORY;
        return nullptr;
    }
    arena->next = p + size;
    return p;
}
"""
ROOM = """
static __device__ inline void *hyad_room(hyad_arena *arena, double count, size_t size)
{
    return hyad_alloc(arena, count*(double)size < 1e18 ? (count > 0 ? (size_t)count*size : 0) : (size_t)1 << 60);
}
"""
COPY = """
template <class T>
static __device__ inline const T *hyad_copy(hyad_arena *arena, const T *from, double count, size_t size)
{
    T *to = (T *)hyad_room(arena, count, size);
    if (to)
        for (long long k = 0; k < (long long)count; k++) to[k] = from[k];
    return to;
}
"""
GROW = """
/* room for more elements of an array that has `count` and is full; the newest one stays where it is */
template <class T>
static __device__ inline T *hyad_grow(hyad_arena *arena, T *from, long long count, long long room, size_t size)
{
    const size_t old = (size_t)count*size;
    if (from && (char *)from + (old + 7)/8*8 == arena->next) {
        arena->next = (char *)from;
        return (T *)hyad_room(arena, (double)room, size);
    }
    T *to = (T *)hyad_room(arena, (double)room, size);
    if (to)
        for (size_t k = 0; k < old/sizeof(T); k++) to[k] = from[k];
    return to;
}
"""
DEEP = """
/* whether the stack is nearly used up, down to what lies `here`: whichever way it grows. Nothing is written there, but
   compilers warn that nothing was, of a pointer to what is constant. */
static __device__ inline int hyad_deep(const hyad_arena *arena, char *here)
{
    const size_t a = (size_t)arena, b = (size_t)here;
    return (a > b ? a - b : b - a) > arena->stack;
}
"""
STRIDED = f"""\
/* an array of a thread: between its elements lie those of the other threads of its warp */
template <class T> struct hyad_strided {{
  T *first;
  __device__ T &operator[](long long k) const {{ return first[{WARP}*k]; }}
  __device__ hyad_strided operator+(long long k) const {{ return {{first + {WARP}*k}}; }}
  __device__ bool operator!=(hyad_strided other) const {{ return first != other.first; }}
}};
/* the one that begins behind so many reals of each thread, in the memory of a warp */
template <class T, class R>
static __device__ inline hyad_strided<T> hyad_own(R *warp, long long behind) {{
  return {{(T *)(warp + {WARP}*behind) + (threadIdx.x & {WARP - 1}u)}};
}}
"""
#: Of the host: the stack that threads have, set where it is less than recursion wants.
STACK_LIMIT = f"""\
#ifndef HYAD_STACK
#define HYAD_STACK {STACK} /* bytes of the stack that each thread has at least, for recursion */
#endif
static inline cudaError_t hyad_stack(long long *bytes)
{{
    size_t found = 0;
    cudaError_t error = cudaDeviceGetLimit(&found, cudaLimitStackSize);
    if (!error && found < HYAD_STACK)
        error = cudaDeviceSetLimit(cudaLimitStackSize, found = HYAD_STACK);
    *bytes = (long long)found;
    return error;
}}
"""


class ThreadPrinter(CPrinter):
    """Prints what one thread does. ``unit`` is what the functions of its text share."""

    marks_apart = False
    constant_bytes = 0
    strided = False  # whether the arrays in the workspace are strided

    def reserved(self) -> Iterable[str]:
        return RESERVED | CUDA | ARENA_NAMES

    # ------------------------------------------------------------------------------- C, as CUDA has it

    def primitive(self, name: str, types: tuple[Scalar, ...], power: int | None = None) -> tuple[str, tuple[str, ...]]:
        if name == "square":
            return super().primitive(name, types)
        if power is not None:
            form, support = power_form(power, f32=self.dtype == "f32")
            return form, tuple(map(self.support_text, support))
        form, support = c_form(PRIMITIVES[name], types, f32=self.dtype == "f32", cuda=True)
        return form, tuple(map(self.support_text, support))

    def support_text(self, text: str) -> str:
        return text.replace("static inline", "static __device__ inline")

    def table(self, elem: Scalar, name: str, length: int, values: str) -> str:
        """In constant memory while there is room: the threads of a warp mostly read the same element."""
        size = length * (4 if elem == REAL and self.dtype == "f32" else 8)
        if self.constant_bytes + size > CONSTANT_BYTES:
            return super().table(elem, name, length, values)
        self.constant_bytes += size
        return f"static __constant__ const {self.ctype(elem)} {name}[{length}] = {{{values}}};"

    def copy_block(
        self, function: str, to: str, source: str, dims: Sequence[Atom], elem: Scalar, guard: str = ""
    ) -> None:
        """A loop, for nvcc's ``memcpy`` moves single bytes. Two rows of one array are the same or apart."""
        self.every(to, lambda k: at(source, k), dims, guard)

    def clear_block(self, to: str, dims: Sequence[Atom], elem: Scalar) -> None:
        self.every(to, lambda k: "0", dims)

    def every(self, to: str, value: Callable[[str], str], dims: Sequence[Atom], guard: str = "") -> None:
        """A loop over all elements of a block, however many dims it has."""
        self.names.enter()
        k = self.names.fresh("k")
        self.emit(guard + self.loop_head(k, self.length(dims).text))
        self.emit(f"    {at(to, k)} = {value(k)};")
        self.emit("}")
        self.names.leave()

    # ------------------------------------------------------------------------------- the thread's memory

    def can_be_strided(self) -> bool:
        """Whether nothing needs the arrays in the workspace to be in one piece each."""
        if not on(NAME) or not self.plan.pools:
            return False
        if any(isinstance(b.op, (Apply, Make)) for b in all_binds(self.program.body)):
            return False
        swaps = [(b.op.accs[k], made) for b, found in self.plan.swaps.items() for k, made in found.items()]
        return all((self.plan.root(acc).slot is None) == (made.slot is None) for acc, made in swaps)

    def pointer_type(self, buffer: Buffer, const: str = "") -> str:
        if self.strided and buffer.slot is not None:
            return f"hyad_strided<{self.ctype(buffer.elem)}> "
        return super().pointer_type(buffer, const)

    def memory_of(self, number: str, room: str, work: str = "work") -> str:
        """Where the memory of a thread of this number begins, or, where it is strided, that of its warp."""
        first = f"({number} - (threadIdx.x & {WARP - 1}u))" if self.strided else number
        return f"{work} + {first}*{room}"

    def free_memory(self, own: str, room: str, taken: str) -> tuple[str, str]:
        """Where a thread's memory begins and ends that is free, behind the reals that are taken."""
        if not self.strided:
            return (f"{own} + {taken}" if taken != "0" else own), f"{own} + {room}"
        each, lane = f"({room} - ({taken}))", f"(threadIdx.x & {WARP - 1}u)"
        start = f"{own} + {WARP}*({taken})"
        return f"{start} + {lane}*{each}", f"{start} + ({lane} + 1)*{each}"

    def strided_piece(self, warp: str, elem: Scalar, name: str, offset: str) -> str:
        """The declaration of a strided array, behind so many reals of a warp's memory."""
        self.support[STRIDED] = None
        ctype = self.ctype(elem)
        return f"hyad_strided<{ctype}> {name} = hyad_own<{ctype}>({warp}, {offset or '0'});"

    def cast(self, elem: str) -> str:
        return f"({elem} *)"

    def failing(self) -> list[str]:
        return [f"if (arena->failed) {self.failed('arena->failed')}"]

    def banner(self, fn: CFunction) -> list[str]:
        return super().banner(replace(fn, arena=False))

    def mark(self, name: str) -> str:
        return f"char *const {name} = arena->next;"

    def release(self, name: str) -> str:
        return f"arena->next = {name};"

    def cell_on_the_stack(self, data: CData, c: CConstructor, name: str, values: Sequence[str]) -> None:
        self.emit(f"struct {data.cell} {name};")
        if data.tagged:
            self.emit(f"{name}.tag = {data.tag(c)};")
        for field, value in zip(c.fields, values):
            member = f"as.{c.name}.{field.name}" if data.tagged else field.name
            self.emit(f"{name}.{member} = {value};")

    def make(self, bind: Bind, op: Make) -> None:
        super().make(bind, op)
        if self.celled(op):
            self.settled(bind)

    def apply(self, bind: Bind, op: Apply) -> None:
        super().apply(bind, op)
        if self.unit.functions[op.function].arena:
            self.settled(bind)

    def settled(self, bind: Bind) -> None:
        """What may have failed has a line of its own, and is left where it has."""
        for v in bind.vars:
            if v in self.pending:
                self.materialise(v)
        self.unless_failed()

    def takes(self) -> bool:
        """Whether the thread's memory is needed, by this text itself."""
        binds = list(all_binds(self.program.body))
        grown = any(isinstance(b.op, While) and len(b.vars) > len(b.op.accs) + 1 for b in binds)
        arrays = any(buffer.arena for held in self.plan.declare.values() for buffer in held)
        return grown or arrays or any(self.celled(b.op) for b in binds)

    def called_functions(self) -> list[Function]:
        """The functions that this text itself calls."""
        return [b.op.function for b in all_binds(self.program.body) if isinstance(b.op, Apply)]


class ThreadFunction(ThreadPrinter, FunctionPrinter):
    """Prints a recursive function as a device function."""

    unit: ThreadUnit

    def failed(self, number: Any) -> str:
        """The statement that ends a call: the functions around it end theirs."""
        back = "return;" if self.returns() == "void" else "return {};"
        return back if number == "arena->failed" else f"{{ arena->failed = {number}; {back} }}"

    def too_deep(self, here: str) -> str:
        return f"hyad_deep(arena, &{here})"

    def prototype_text(self) -> str:
        return "static __device__ " + super().prototype_text().removeprefix("static ").replace(
            "*restrict ", "*__restrict__ "
        )

    def struct_value(self, struct: str, values: Sequence[str]) -> str:
        return f"{struct}{{{', '.join(values)}}}"


class ThreadUnit(Unit):
    """The functions and data that the kernels of a text share, with their checks. ``deep``, ``heap``: which of them
    need a stack, and memory."""

    def __init__(self, program: Program, dtype: str, name: str, checks: list | None = None) -> None:
        super().__init__(program, dtype, name, keywords=CUDA)
        if checks is not None:
            self.checks = checks
        self.memory = 0  # the number of the check that memory sufficed
        printers = [ThreadFunction(f, self) for f in self.order]
        self.needs(printers)
        for p in printers:
            p.define_params()
        self.texts = [line for p in printers for line in ["", *p.text()]]
        self.structs = self.heads(printers)
        self.frames = sum(p.stack for p in printers)  # bytes of local arrays
        grows = {p.f for p in printers if p.guarded()}
        takes = {p.f for p in printers if p.allocates()}
        calls = {p.f: p.called_functions() for p in printers}
        self.deep = {f for f in self.order if reached(f, calls) & grows}
        self.heap = {f for f in self.order if reached(f, calls) & takes}

    def use_empty(self, data: CData, c: CConstructor) -> None:
        if not c.null:
            tag = data.tag(c) if data.tagged else ""
            text = f"static __device__ const struct {data.cell} {data.tag(c)}_cell = {{{tag}}};"
            self.empties[data.name, c.name] = text

    def makers_text(self) -> list[str]:
        out = []
        for line in super().makers_text():
            line = line.replace("static inline", "static __device__ inline")
            found = re.match(r"    (struct \w+ \*)(\w+) = hyad_alloc\(arena, (.*)\);$", line)
            if found is None:
                out.append(line)
                continue
            kind, cell, size = found.groups()
            part = re.match(r"offsetof\(struct \w+, as\) \+ sizeof (.*)$", size)
            if part is not None:  # NVRTC has no offsetof
                size = f"sizeof *{cell} - sizeof {cell}->as + sizeof {part[1]}"
            out += [f"    {kind}{cell};", f"    {cell} = ({kind})hyad_alloc(arena, {size});"]
            out.append(f"    if (!{cell}) return nullptr;")
        return out

    def used_up(self) -> int:
        """The number of the check that a thread's memory suffices."""
        if not self.memory:
            self.checks.append(("memory", USED_UP, None))
            self.memory = len(self.checks)
        return self.memory

    def text(self, kernels: str) -> list[str]:
        """What stands before kernels that call the functions."""
        body = "\n".join([*self.makers_text(), *self.structs, *self.texts])
        whole = body + kernels
        if "hyad_arena" not in whole and not self.types:
            return []
        out = [ARENA] if "hyad_arena" in whole else []
        if re.search(r"\bhyad_(alloc|room|copy|grow)\(", whole):
            out.append(ALLOC.replace("MEMORY", str(self.used_up())))
            out += [ROOM] if re.search(r"\bhyad_(room|copy|grow)\(", whole) else []
            out += [COPY] if "hyad_copy(" in whole else []
            out += [GROW] if "hyad_grow(" in whole else []
        out += [DEEP] if "hyad_deep(" in whole else []
        types = "\n".join(definitions(self.types.values(), self.dtype)) + "\n" if self.types else ""
        return [part.strip("\n") + "\n" for part in (*out, types, *self.empties.values(), body) if part.strip()]


def reached(f: Function, calls: dict[Function, list[Function]]) -> set[Function]:
    """A function and all that it calls."""
    found: set[Function] = set()
    todo = [f]
    while todo:
        g = todo.pop()
        if g not in found:
            found.add(g)
            todo += calls[g]
    return found


def at(pointer: str, index: str) -> str:
    """An element behind a pointer that is written ``base`` or ``base + offset``."""
    base, plus, offset = pointer.partition(" + ")
    return f"{base}[{offset} + {index}]" if plus else f"{base}[{index}]"
