"""Loops of the host, and small launches side by side, that one block takes instead: a barrier in place of each launch.

A factorisation of a matrix of 100 rows, or a Newton iteration on a short vector, is thousands of launches that have
little to do: each takes microseconds to start, and what it does less than one. So where there is little work in an
iteration one kernel of one block takes the whole loop, the steps of its iterations and the loops inside them::

    for (long long k = 0; k < n; k++) {
        f_column_part(l, n, k, column);
        __syncthreads();
        f_t2_part(n - (k + 1), l, column, n, k + 1, k);
        __syncthreads();
    }

The parts are the kernels' own text: any of them may run as one block, and what is folded has one part then. The host
chooses when it knows the sizes; where there is more work the kernels are launched, each with all of the device.

So it is with launches side by side (``runs``): those that make tables of parameters before all data are gone through,
or look for a pivot and exchange two rows before all others are changed. How the work of each grows says which.

Design decision: by the amount of work alone (``LAUNCH``), in the iteration in the middle, since what one multiprocessor
does while a kernel is started hardly differs from one device to the next. Nothing is kept in shared memory: what a
block reads again the L1 cache has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hyad.core import Atom, Bind, Block, Check, Const, If, Loop, Prim, Var, blocks_of
from hyad.passes.spread import work
from hyad.program.journal import fires, on

from .comments import commented
from .expressions import WIDTH, wrapped
from .kernels import KernelText
from .launches import (
    FOLDING,
    At,
    Choose,
    Clear,
    Copy,
    Gemm,
    Launch,
    Repeat,
    Require,
    Scalar,
    Size,
    Step,
    Swap,
    While,
    names_of,
    text,
    value,
    walk,
)
from .memory import HostMemory, simple, with_name
from .thread import WARP

NAME = "persistent"  # of the optimisation, to switch it off
LAUNCH = 1 << 16  # the work, in additions, that one block does while a kernel is started
THREADS = 512  # of such a block, but for FOLDING where a team may be all of a block
LARGE = 1000  # elements: sizes from which it is seen how the work of launches grows
ROOM = 46 << 10  # bytes of shared memory of all parts together
BYTES = {"double": 8, "float": 4, "long long": 8, "int": 4}
HEAD = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)\n')
SHARED = re.compile(r"__shared__ (double|float|long long|int) \w+\[(\d+)\]")


class Unfit(Exception):
    """One block cannot take some steps."""


class Persistent(HostMemory):
    """What is known of each kernel, by its name, and the loops of the host made kernels of one block."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.loads: dict[str, Size | None] = {}  # the work of a kernel, in additions
        self.many: dict[str, Size] = {}  # how many parts a kernel folds
        self.wide: set[str] = set()  # kernels of which a team may be a block, or that have a tile
        self.warps: set[str] = set()  # kernels of one warp, whose threads have a direction each
        self.large: set[str] = set()  # kernels that are launched where they are no little work
        self.roomy: set[str] = set()  # kernels that are for where a device has room for more threads than others have
        self.part_names: dict[str, str] = {}  # of kernels that are functions, too
        self.turns: set[str] = set()  # the indices of the host's loops

    # ------------------------------------------------------------------------------------- how much work

    def known(self, name: str, printed: KernelText, binds: Sequence[Bind], rows: bool) -> None:
        """Note what a kernel does; nothing where it cannot be one of several in a block: its memory is counted by the
        threads of its own launch."""
        own = printed.heap or printed.staged and not printed.sized  # rows of a width that the host knows need none
        if own or "stack" in printed.needs or "work" in printed.needs and not rows:
            return
        self.loads[name] = self.load(Block(tuple(binds), ()), {})
        if rows:
            self.wide.add(name)

    def load(self, block: Block, most: dict[Var, Size]) -> Size | None:
        """The work of a block, in additions, None where nobody knows; ``most``: how large integers of it get."""
        total: Size = 0
        for b in block.binds:
            op = b.op
            each: Size | None
            if type(op) is Prim:
                size = self.at_most(op, most)
                if len(b.vars) == 1 and size is not None:
                    most[b.vars[0]] = size
                each = round(work(op))
            elif type(op) is Loop:
                count = self.most(op.count, most)
                if count is None:
                    return None
                most[op.index] = count
                inner = self.load(op.body, most)
                each = None if inner is None else simple("*", simple("max", count, 0), inner)
            elif type(op) is Check:
                each = 1
            elif type(op) is If:
                arms = [self.load(r, most) for r in blocks_of(op)]
                each = None if None in arms else simple("+", *arms)
            else:
                return None
            if each is None:
                return None
            total = simple("+", total, each)
        return total

    def most(self, a: Atom, most: dict[Var, Size]) -> Size | None:
        """About how large an integer gets."""
        if type(a) is Const:
            return self.size(a)
        return most[a] if a in most else self.size(a)

    def at_most(self, op: Prim, most: dict[Var, Size]) -> Size | None:
        if op.name not in ("+", "-", "*", "min", "max", "//"):
            return None
        a, *rest = (self.most(x, most) for x in op.args)
        if op.name == "-" and rest and self.size(op.args[1]) is None:
            return a  # what is taken away may be as little as nothing
        if a is None or op.name == "//" or None in rest and op.name in ("-", "min"):
            return a
        return simple(op.name, a, rest[0]) if rest and None not in rest else None

    # --------------------------------------------------------------------------------------- the steps

    def persistent(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Steps whose loops, and whose small kernels side by side, are one block's where they are little work."""
        if not on(NAME):
            return tuple(steps)
        self.turns = {s.index for s in walk(steps) if isinstance(s, (Repeat, While))}
        made = self.together(steps)
        launched = {s.kernel for s in walk(made) if isinstance(s, Launch)}
        for k, kernel in enumerate(self.kernels):  # those that are but parts of others, or none's
            if kernel in self.part_names and kernel not in launched:
                self.texts[k] = self.texts[k].partition('\nextern "C" __global__')[0]
        unused = self.roomy - launched - set(self.part_names)
        self.texts[:] = [t for t, kernel in zip(self.texts, self.kernels, strict=True) if kernel not in unused]
        self.kernels = [kernel for kernel in self.kernels if kernel not in unused]
        self.kernels = [kernel for kernel in self.kernels if kernel in launched or kernel not in self.part_names]
        return made

    def together(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """``persistent`` of some of the steps."""
        out: list[Step] = []
        for step in self.runs(steps):
            if isinstance(step, tuple):
                out += self.chosen(self.one_run, step)
            elif isinstance(step, Choose):
                out.append(replace(step, then=self.together(step.then), orelse=self.together(step.orelse)))
            elif isinstance(step, (Repeat, While)):
                out += self.chosen(self.one_block, step)
            else:
                out.append(step)
        return tuple(out)

    def chosen(self, kernel: Callable[[Any], tuple[Size, Launch]], given: Any) -> Sequence[Step]:
        """A kernel of one block, or what is given to be made one, as the host finds."""
        try:
            fits, launch = kernel(given)
        except Unfit:
            fits = 0
        if fits == 1:
            return [launch]
        if isinstance(given, tuple):
            whole: Sequence[Step] = self.together_apart(given)
        else:
            whole = [replace(given, steps=self.together(given.steps))]
        return whole if fits == 0 else [Choose(fits, (launch,), tuple(whole))]

    def together_apart(self, steps: Sequence[Step]) -> list[Step]:
        """The steps of a run that is none."""
        return [
            replace(s, then=self.together(s.then), orelse=self.together(s.orelse)) if isinstance(s, Choose) else s
            for s in steps
        ]

    def runs(self, steps: Sequence[Step]) -> list[Step | tuple[Step, ...]]:
        """Steps, those put together that are launches side by side and grow less than the largest: with a size that
        this is linear in, where there is one, and that most of the others do not know."""
        works = [None if isinstance(s, Launch) and s.kernel in self.large else self.load_of(s) for s in steps]
        known = [w for w in works if w is not None]
        largest = max(known, key=self.probed, default=0)
        small: set[Size] = {w for w in known if isinstance(w, int) and w <= LAUNCH}
        found = [(self.degree(largest, name), name) for name in dict.fromkeys(names_of(largest))]
        choices = [(d, [w for w in known if self.degree(w, name) < d]) for d, name in found if d > 0]
        if choices:
            small.update(min(choices, key=lambda choice: (choice[0], -len(choice[1])))[1])
        out: list[Step | tuple[Step, ...]] = []
        run: list[Step] = []
        for s, w in zip((*steps, None), (*works, None)):
            if s is not None and w in small:
                run.append(s)
                continue
            out += [tuple(run)] if len(run) > 1 else run
            run = []
            out += [s] if s is not None else []
        return out

    def load_of(self, step: Step) -> Size | None:
        """The work of a step that may be with others in a kernel, None of another one."""
        if isinstance(step, Launch):
            return 0 if step.blocks == 1 and step.kernel in self.loads else self.loads.get(step.kernel)
        if isinstance(step, (Clear, Copy)):
            return step.length
        if isinstance(step, Choose) and not isinstance(step.cond, At):
            works = [self.load_of(s) for s in self.plain([step], within=True)]
            return None if None in works else max(works, key=self.probed)
        return None

    def probed(self, size: Size, name: str = "", large: int = LARGE) -> float:
        """A size where all that it is made of is large, ``name`` so large, and the loops of the host are half done."""
        known = {n: LARGE // 2 if n in self.turns else LARGE for n in names_of(size)}
        return float(value(size, known | {name: large}))

    def degree(self, size: Size, name: str) -> int:
        """About how a size grows with one that it is made of: 1 as that does, 2 as its square."""
        near, far = (self.probed(size, name, large) for large in (LARGE**2, LARGE**3))
        return round(math.log(far / near, LARGE)) if far > near > 0 else 0

    def one_run(self, steps: tuple[Step, ...]) -> tuple[Size, Launch]:
        """When launches side by side are one kernel, and that. Unfit where they never are."""
        steps, given = tuple(self.plain(steps)), steps
        load, launches = self.all_work(steps)
        fits = simple("<=", load, simple("*", LAUNCH, simple("-", launches, 1)))
        for s in given:
            if self.for_room(s):
                fits = simple("and", fits, simple("==", s.cond, 0))
        if fits == 0:
            raise Unfit
        return fits, self.printed(_Text(self, steps), "run")

    def for_room(self, step: Step) -> bool:
        """Whether a step chooses kernels of more threads, which one block does not have."""
        if not isinstance(step, Choose):
            return False
        return all(s.kernel in self.roomy for s in walk(step.then) if isinstance(s, Launch))

    def plain(self, steps: Sequence[Step], within: bool = False) -> list[Step]:
        """Steps without the kernels that are for a device with room; ``within`` those of a branch, both its arms."""
        out: list[Step] = []
        for s in steps:
            if self.for_room(s):
                out += self.plain(s.orelse)
            elif isinstance(s, Choose):
                then, orelse = (self.plain(arm) for arm in (s.then, s.orelse))
                out += [*then, *orelse] if within else [replace(s, then=tuple(then), orelse=tuple(orelse))]
            elif isinstance(s, Repeat):
                out.append(replace(s, steps=tuple(self.plain(s.steps))))
            elif isinstance(s, While):
                out.append(replace(s, before=tuple(self.plain(s.before)), steps=tuple(self.plain(s.steps))))
            else:
                out.append(s)
        return out

    def one_block(self, step: Repeat | While) -> tuple[Size, Launch]:
        """When a loop of the host is one kernel, and that. Unfit where it never is."""
        (step,) = self.plain([step])
        load, launches = self.all_work(step.steps if isinstance(step, Repeat) else (*step.before, *step.steps))
        if isinstance(step, Repeat):
            load, launches = (self.typical(x, step) for x in (load, launches))
        elif step.index:  # how often it is taken is the host's to know
            raise Unfit
        fits = simple("<=", load, simple("*", LAUNCH, launches))
        if fits == 0:
            raise Unfit
        return fits, self.printed(_Text(self, (step,)), "loop")

    def typical(self, size: Size, step: Repeat) -> Size:
        """A size in the iteration in the middle of a loop."""
        return with_name(size, step.index, simple("//", step.count, 2))

    def all_work(self, steps: Sequence[Step]) -> tuple[Size, Size]:
        """The work of some steps that is not one block's anyway, in additions, and how many launches they are."""
        load: Size = 0
        launches: Size = 0
        for s in steps:
            more: tuple[Size, Size] = 0, 1
            if isinstance(s, Launch):
                load_here = self.load_of(s)
                if load_here is None:
                    raise Unfit
                more = simple("*", load_here, simple("<", THREADS // s.block, s.blocks)), 1
            elif isinstance(s, (Copy, Clear)):
                more = s.length, 1
            elif isinstance(s, Repeat):
                inner = self.all_work(s.steps)
                more = tuple(simple("*", simple("max", s.count, 0), self.typical(x, s)) for x in inner)
            elif isinstance(s, Choose):
                arms = [self.all_work(arm) for arm in (s.then, s.orelse)]
                more = simple("max", arms[0][0], arms[1][0]), 1
            elif isinstance(s, Swap):
                more = 0, 0
            elif isinstance(s, (Gemm, Require, While)):
                raise Unfit
            load, launches = simple("+", load, more[0]), simple("+", launches, more[1])
        return load, launches

    # ---------------------------------------------------------------------------------------- the kernel

    def printed(self, found: _Text, kind: str) -> Launch:
        """A kernel of one block, and its launch."""
        first = found.launches[0]
        for s in found.launches:
            self.part(s.kernel)
        kernel = self.kernel_names.fresh(f"{self.name}_{kind}")
        head = f'extern "C" __global__ void __launch_bounds__({found.threads}) {kernel}({", ".join(found.params())})'
        where = commented(first.form, 96)
        lines = [f"/* by one block: {where} */" if where else "/* by one block */", *wrapped(head, WIDTH), "{"]
        self.texts.append("\n".join([*lines, *found.lines, "}", ""]))
        self.kernels.append(kernel)
        fires(NAME)
        self.notes.append((first.form, "by one block where there is little work: a barrier in place of a launch"))
        return Launch(kernel, 1, found.threads, tuple(found.args()), form=first.form)

    def part_of(self, kernel: str) -> str:
        """The name of a kernel's text as a function, which blocks of other kernels call too."""
        if kernel not in self.part_names:
            self.part_names[kernel] = self.kernel_names.fresh(f"{kernel}_part")
        return self.part_names[kernel]

    def part(self, kernel: str) -> None:
        """Print a kernel's text as a function, and the kernel as a call of it."""
        k, name = self.kernels.index(kernel), self.part_of(kernel)
        printed = self.texts[k]
        if f" {name}(" in printed:
            return
        head = HEAD.search(printed)
        assert head is not None
        params = re.sub(r"\s+", " ", head[2])
        given = ", ".join(re.findall(r"(\w+)(?:,|$)", params))
        function = "\n".join(wrapped(f"static __device__ inline void {name}({params})", WIDTH))
        whole = "\n".join(wrapped(head[0].strip().replace(head[2], params), WIDTH))
        call = "\n".join(wrapped(f"    {name}({given});", WIDTH))
        self.texts[k] = f"{printed[: head.start()]}{function}\n{printed[head.end() :]}\n{whole}\n{{\n{call}\n}}\n"


class _Text:
    """The body of a kernel that takes the steps of a loop, and what it is given."""

    def __init__(self, cut: Persistent, steps: Sequence[Step]) -> None:
        self.cut = cut
        self.lines: list[str] = []
        self.launches: list[Launch] = []
        self.swaps: list[list[str]] = []  # arrays that change places with one another
        self.shared = 0
        self.inner: set[str] = set()  # the indices of loops
        self.read: dict[str, None] = {}  # the names of sizes, and of scalars
        self.arrays: dict[str, None] = {}
        self.scalars: dict[str, Scalar] = {}
        self.counter = cut.names.fresh("at")
        self.steps(steps, 1)
        if self.shared > ROOM or not self.launches:
            raise Unfit
        self.threads = FOLDING if any(s.kernel in cut.wide for s in self.launches) else THREADS
        for arrays in self.swaps:
            self.put_back(arrays)

    def emit(self, line: str, depth: int) -> None:
        first, *more = wrapped("    " * depth + line, WIDTH)
        self.lines += [first, *("    " * depth + line for line in more)]

    # ------------------------------------------------------------------------------------ what it is given

    def ctype(self, elem: str) -> str:
        real = "double" if self.cut.dtype == "f64" else "float"
        return {"real": real, "int": "long long", "bool": "int", "word": "unsigned long long"}[elem]

    def params(self) -> list[str]:
        out = [f"{'const ' if self.given(a) else ''}{self.ctype(self.elem(a))} *{a}" for a in self.arrays]
        out += [f"{self.ctype(s.elem)} {s.name}" for s in self.scalars.values()]
        return [*out, *(f"long long {n}" for n in self.read if n not in self.inner)]

    def args(self) -> list:
        return [*map(At, self.arrays), *self.scalars.values(), *(n for n in self.read if n not in self.inner)]

    def elem(self, array: str) -> str:
        return "word" if array == self.cut.status else self.cut.memory[array].elem

    def given(self, array: str) -> bool:
        """Whether an array is the caller's, which nothing writes to."""
        return array != self.cut.status and self.cut.memory[array].kind == "param"

    def size(self, size: Size) -> str:
        self.read.update(dict.fromkeys(names_of(size)))
        return text(size)

    def place(self, at: At) -> str:
        self.arrays[at.array] = None
        return at.array if at.offset == 0 else f"{at.array} + {self.size(at.offset)}"

    # ------------------------------------------------------------------------------------------- its text

    def steps(self, steps: Sequence[Step], depth: int) -> None:
        folded: Size | None = None  # how many parts the kernel before made
        for s in steps:
            if isinstance(s, Launch):
                self.launch(s, depth, folded)
                folded = simple("max", s.blocks, 1)
            else:
                folded = None
                self.step(s, depth)

    def step(self, s: Step, depth: int) -> None:
        if isinstance(s, Repeat):
            self.inner.add(s.index)
            count = self.size(s.count)
            self.emit(f"for (long long {s.index} = 0; {s.index} < {count}; {s.index}++) {{", depth)
            self.steps(s.steps, depth + 1)
            self.emit("}", depth)
        elif isinstance(s, While):
            self.emit("for (;;) {", depth)
            self.steps(s.before, depth + 1)
            failed = f" || *{self.place(At(self.cut.status))}" if self.cut.status else ""
            self.emit(f"if (__syncthreads_or(!*({self.place(s.cond)}){failed})) break;", depth + 1)
            self.steps(s.steps, depth + 1)
            self.emit("}", depth)
        elif isinstance(s, Choose):
            cond = f"__syncthreads_or(*({self.place(s.cond)}))" if isinstance(s.cond, At) else self.size(s.cond)
            self.emit(f"if ({cond}) {{", depth)
            self.steps(s.then, depth + 1)
            if s.orelse:
                self.emit("} else {", depth)
                self.steps(s.orelse, depth + 1)
            self.emit("}", depth)
        elif isinstance(s, Swap):
            joined = [arrays for arrays in self.swaps if s.a in arrays or s.b in arrays]
            others = [arrays for arrays in self.swaps if arrays not in joined]
            self.swaps = [*others, [*dict.fromkeys([*(a for arrays in joined for a in arrays), s.a, s.b])]]
            a, b = (self.place(At(name)) for name in (s.a, s.b))
            self.emit(f"{{ {self.ctype(self.elem(a))} *const {self.counter} = {a}; {a} = {b}; {b} = {self.counter}; }}",
                      depth)  # fmt: skip
        elif isinstance(s, (Clear, Copy)):
            to = self.place(s.to)
            source = f"({self.place(s.source)})[{self.counter}]" if isinstance(s, Copy) else "0"
            self.each(s.length, f"({to})[{self.counter}] = {source};", depth)
        else:
            raise Unfit

    def each(self, length: Size, text_: str, depth: int) -> None:
        """A statement for each element of an array."""
        at = self.counter
        self.emit(f"for (long long {at} = threadIdx.x; {at} < {self.size(length)}; {at} += blockDim.x)", depth)
        self.emit(f"    {text_}", depth)
        self.emit("__syncthreads();", depth)

    def launch(self, s: Launch, depth: int, folded: Size | None) -> None:
        self.launches.append(s)
        many = self.cut.many.get(s.kernel)
        args = []
        for a in s.args:
            if isinstance(a, At):
                args.append(self.place(a))
            elif isinstance(a, Scalar):
                self.scalars[a.name] = a
                args.append(a.name)
            else:
                args.append("1" if many is not None and a == many == folded else self.size(a))
        part = self.cut.part_of(s.kernel)
        printed = self.cut.texts[self.cut.kernels.index(s.kernel)]
        self.shared += sum(BYTES[t] * int(n) for t, n in SHARED.findall(printed)) + 512
        few = f"if (threadIdx.x < {WARP}) " if s.kernel in self.cut.warps else ""
        self.emit(f"{'if (threadIdx.x == 0) ' if s.block == 1 else few}{part}({', '.join(args)});", depth)
        self.emit("__syncthreads();", depth)

    def put_back(self, arrays: Sequence[str]) -> None:
        """What some arrays hold changes places in memory, where their names have."""
        t, length = self.ctype(self.elem(arrays[0])), self.cut.memory[arrays[0]].length
        given = {a: self.cut.names.fresh(f"{a}_given") for a in arrays}
        held = {a: self.cut.names.fresh("x") for a in arrays}
        self.lines[:0] = [f"    {t} *const {given[a]} = {a};" for a in arrays]
        self.emit(f"if ({' || '.join(f'{a} != {given[a]}' for a in arrays[1:])}) {{", 1)
        at, held_here = self.counter, ", ".join(f"{held[a]} = {a}[{self.counter}]" for a in arrays)
        self.emit(f"for (long long {at} = threadIdx.x; {at} < {self.size(length)}; {at} += blockDim.x) {{", 2)
        self.emit(f"const {t} {held_here};", 3)
        for a in arrays:
            self.emit(f"{given[a]}[{at}] = {held[a]};", 3)
        self.emit("}", 2)
        self.emit("__syncthreads();", 2)
        self.emit("}", 1)
