"""The steps of a plan as a Python function, written for the plan and compiled by Python, once.

What a host does between two launches is the time that a short kernel takes: a walk over the steps that computes sizes
from their trees at each of them is slower than the kernels. So the walk is unrolled: sizes are Python's own arithmetic,
each once where it is needed first, places are addresses, and a launch is one call with numbers. A ``Repeat`` and a
``While`` are Python's loops::

    v0 = max(1, min((s_n + 127)//128, 2112))
    for s_k in range(s_steps):
        launch(step0, v0, (p_u0, s_n, x_a, p_u))
        p_u, p_u0 = p_u0, p_u
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .launches import (
    At,
    Choose,
    Clear,
    Copy,
    CudaProgram,
    Gemm,
    Launch,
    Repeat,
    Scalar,
    Size,
    Step,
    Swap,
    While,
    checked_there,
    names_of,
    walk,
)

SIGNS = {"and": " and ", "or": " or "}


class Machine(Protocol):
    """What the steps need of a device. Memory is addresses and bytes."""

    def launch(self, step: Launch, blocks: int, args: Sequence[Any], shared: int = 0) -> None:
        """Start a kernel; ``args`` are numbers: an address for each ``At``, the value of each ``Scalar`` and size;
        ``shared`` is how many bytes of shared memory it is given."""

    def clear(self, to: int, nbytes: int) -> None: ...

    def copy(self, to: int, source: int, nbytes: int) -> None: ...

    def read(self, at: int, elem: str) -> int:
        """An "int" or "bool" of device memory, waited for."""

    def gemm(self, step: Gemm, sizes: Sequence[int], a: int, b: int, c: int) -> bool:
        """Products by a library: ``sizes`` are m, n, k, lda, ldb, ldc, how many, and how far apart. False where the
        program's own kernel is to do it."""


class Failed(Exception):
    """A check of the host did not hold; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Steps(NamedTuple):
    """A program's steps, compiled: ``shapes(sizes)`` are those of its arrays, in their order; ``run(machine, memory,
    scalars, sizes)`` takes the steps. ``memory`` has the address of each array by name, ``scalars`` the Real and Bool
    parameters, ``sizes`` the dims and the Int parameters. Raises Failed. ``watched``: whether a kernel may note that a
    check failed."""

    program: CudaProgram
    shapes: Callable[[Mapping[str, int]], Sequence[tuple[int, ...]]]
    run: Callable[[Machine, Mapping[str, int], Mapping[str, Any], Mapping[str, int]], None]
    watched: bool


def compiled(program: CudaProgram) -> Steps:
    """A program's steps, compiled when they are first asked for."""
    found = _made.get(id(program))
    if found is None or found.program is not program:
        if len(_made) > 256:
            _made.clear()
        writer = _Writer(program)
        names = {"Failed": Failed, **{f"step{k}": step for k, step in enumerate(writer.named)}}
        exec(compile(writer.text, "<steps>", "exec"), names)
        found = _made[id(program)] = Steps(program, names["shapes"], names["run"], checked_there(program))
    return found


_made: dict[int, Steps] = {}


class _Writer:
    """Writes both functions; ``text`` is their text, ``named`` the steps that it names."""

    def __init__(self, program: CudaProgram) -> None:
        self.program = program
        self.elem = {m.name: m.elem for m in program.memory}
        self.width = {"real": 8 if program.dtype == "f64" else 4, "int": 8, "bool": 4, "word": 8}
        self.named: list[Step] = []
        self.lines: list[str] = []
        self.known: dict[Size, str] = {}  # the variables of sizes that have been computed
        self.count = 0
        head = [f"    s_{d} = sizes[{d!r}]" for d in program.known]
        dims = ["(" + "".join(f"{self.size(d, 1)}, " for d in m.dims) + ")" for m in program.memory]
        first = ["def shapes(sizes):", *head, *self.lines, f"    return ({''.join(f'{d}, ' for d in dims)})"]
        self.lines, self.known = [], {}
        self.steps(program.steps, 1)
        head += [f"    p_{m.name} = memory[{m.name!r}]" for m in program.memory]
        head += [f"    x_{p.name} = scalars[{p.name!r}]" for p in program.params if not p.dims and p.elem != "int"]
        head += [f"    {call} = machine.{call}" for call in ("launch", "clear", "copy", "read", "gemm")]
        self.text = "\n".join([*first, "def run(machine, memory, scalars, sizes):", *head, *self.lines, ""])

    def emit(self, line: str, depth: int) -> None:
        self.lines.append("    " * depth + line)

    # ------------------------------------------------------------------------------------- sizes

    def size(self, size: Size, depth: int) -> str:
        """A size as Python, its parts computed before, where it stands."""
        if isinstance(size, int):
            return str(size) if size >= 0 else f"({size})"
        if isinstance(size, str):
            return f"s_{size}"
        if size not in self.known:
            operator, *rest = size
            a, b = (self.size(x, depth) for x in rest)
            if operator in ("min", "max"):
                text = f"{a} if {a} {'<' if operator == 'min' else '>'} {b} else {b}"
            elif operator == "power":
                text = f"min({b}, 1 << ({a} - 1).bit_length()) if {a} > 1 else 1"
            elif operator in SIGNS:
                text = f"1 if {a}{SIGNS[operator]}{b} else 0"
            else:
                text = f"{a} {operator} {b}"
            name = self.known[size] = f"v{self.count}"
            self.count += 1
            self.emit(f"{name} = {text}", depth)
        return self.known[size]

    def place(self, at: At, depth: int) -> str:
        offset = self.size(at.offset, depth)
        return f"p_{at.array}" + (f" + {self.width[self.elem[at.array]]}*{offset}" if at.offset != 0 else "")

    def bytes(self, at: At, length: Size, depth: int) -> str:
        return f"{self.width[self.elem[at.array]]}*{self.size(length, depth)}"

    def sizes_of(self, step: Step) -> Iterator[Size]:
        """The sizes that a step needs before it, those of inner steps too; of a branch none, which may not be taken."""
        if isinstance(step, Launch):
            yield step.blocks
            yield step.shared
            yield from (a.offset if isinstance(a, At) else a for a in step.args if not isinstance(a, Scalar))
        elif isinstance(step, Repeat):
            yield step.count
            for inner in step.steps:
                yield from self.sizes_of(inner)

    # ------------------------------------------------------------------------------------- steps

    def inside(self, steps: Sequence[Step], depth: int) -> None:
        """Steps of a block of Python's; what it computes is not known behind it."""
        known, start = dict(self.known), len(self.lines)
        self.steps(steps, depth)
        if len(self.lines) == start:
            self.emit("pass", depth)
        self.known = known

    def steps(self, steps: Sequence[Step], depth: int) -> None:
        for step in steps:
            self.step(step, depth)

    def name(self, step: Step) -> str:
        self.named.append(step)
        return f"step{len(self.named) - 1}"

    def step(self, step: Step, depth: int) -> None:
        if isinstance(step, Launch):
            blocks = self.size(step.blocks, depth)
            blocks = str(max(step.blocks, 1)) if isinstance(step.blocks, int) else f"{blocks} if {blocks} > 1 else 1"
            args = []
            for a in step.args:
                if isinstance(a, At):
                    args.append(self.place(a, depth))
                else:
                    args.append(f"x_{a.name}" if isinstance(a, Scalar) else self.size(a, depth))
            shared = f", {self.size(step.shared, depth)}" if step.shared != 0 else ""
            self.emit(f"launch({self.name(step)}, {blocks}, ({''.join(f'{a}, ' for a in args)}){shared})", depth)
        elif isinstance(step, Clear):
            length, place = self.bytes(step.to, step.length, depth), self.place(step.to, depth)
            self.emit(f"if ({length}) > 0: clear({place}, {length})", depth)
        elif isinstance(step, Copy):
            length = self.bytes(step.to, step.length, depth)
            to, source = self.place(step.to, depth), self.place(step.source, depth)
            self.emit(f"if ({length}) > 0: copy({to}, {source}, {length})", depth)
        elif isinstance(step, Swap):
            self.emit(f"p_{step.a}, p_{step.b} = p_{step.b}, p_{step.a}", depth)
        elif isinstance(step, Repeat):
            self.repeat(step, depth)
        elif isinstance(step, Choose):
            cond = self.cond(step.cond, depth)
            self.emit(f"if {cond}:", depth)
            self.inside(step.then, depth + 1)
            if step.orelse:
                self.emit("else:", depth)
                self.inside(step.orelse, depth + 1)
        elif isinstance(step, While):
            if step.index:
                self.emit(f"s_{step.index} = 0", depth)
            self.emit("while True:", depth)
            known = dict(self.known)
            self.steps(step.before, depth + 1)
            self.emit(f"if not {self.cond(step.cond, depth + 1)}: break", depth + 1)
            if checked_there(self.program, [step]):
                self.emit(f"if read(p_{self.program.status}, 'int'): break", depth + 1)
            if step.number:
                most = self.size(step.most, depth + 1)
                self.emit(f"if s_{step.index} >= {most}: raise Failed({step.number})", depth + 1)
            self.steps(step.steps, depth + 1)
            if step.index:
                self.emit(f"s_{step.index} += 1", depth + 1)
            self.known = known
        elif isinstance(step, Gemm):
            given = (step.m, step.n, step.k, step.lda, step.ldb, step.ldc, step.many, *step.apart)
            sizes = [self.size(s, depth) for s in given]
            places = [self.place(at, depth) for at in (step.a, step.b, step.c)]
            self.emit(f"if not gemm({self.name(step)}, ({', '.join(sizes)}), {', '.join(places)}):", depth)
            self.inside((step.launch,), depth + 1)
        else:
            holds = self.size(step.holds, depth)
            self.emit(f"if not {holds}: raise Failed({step.number})", depth)

    def cond(self, cond: Size | At, depth: int) -> str:
        if isinstance(cond, At):
            return f"read({self.place(cond, depth)}, {self.elem[cond.array]!r})"
        return self.size(cond, depth)

    def repeat(self, step: Repeat, depth: int) -> None:
        count = self.size(step.count, depth)
        counting = {s.index for s in walk([step]) if isinstance(s, (Repeat, While))}
        for size in self.sizes_of(step):  # what does not change from time to time
            if isinstance(size, tuple) and not counting & set(names_of(size)) and not divides(size):
                self.size(size, depth)
        self.emit(f"for s_{step.index} in range({count}):", depth)
        self.inside(step.steps, depth + 1)


def divides(size: Size) -> bool:
    """Whether a size has a quotient by what might be 0 where the quotient is not needed."""
    if not isinstance(size, tuple):
        return False
    operator, a, b = size
    return operator in ("//", "%") and not (isinstance(b, int) and b > 0) or divides(a) or divides(b)
