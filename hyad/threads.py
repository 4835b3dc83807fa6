"""Loops on several threads: which may, and sums made ready for it.

A ``Loop`` without accumulators is independent by construction: its iterations read what is there and stack what they
make. A sum is not; ``in_parts`` takes it in parts, one for each thread, in an order that the sizes and the number of
threads decide alone, so that a result is the same to the last bit from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from .accumulators import sum_like
from .builder import Builder, Rebuild, type_of
from .core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Program,
    While,
    all_binds,
)
from .counts import DEAR, Cost, inside
from .dead import dead_code, tidy
from .optimise import rebuild
from .primitives import PRIMITIVES

#: The work, in additions, from which on a thread is worth waking.
GRAIN = 40_000


def safe(block: Block) -> bool:
    """Whether a block's code can run on any thread: it neither fails nor takes memory that grows."""
    return not any(isinstance(bind.op, (Apply, Case, Check, Make, While)) for bind in all_binds(block))


def grain(body: Cost) -> int:
    """How many iterations are worth a thread."""
    return max(1, ceil(GRAIN / max(1.0, body.work + body.loads + body.stores)))


def independent(program: Program) -> dict[Bind, int]:
    """The outermost loops whose iterations can run at once, and how many of them are worth a thread."""
    found: dict[Bind, int] = {}
    cost = inside(program)
    made = {bind.vars[0]: bind.op for bind in all_binds(program.body) if type(bind.op) is Prim}

    def for_threads(count: Atom) -> bool:
        """Whether a count is that of the parts of a sum: at most a number of threads."""
        op = made.get(count)  # type: ignore[arg-type]
        return op is not None and op.name == "min" and type(op.args[0]) is Const

    def visit(block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if type(op) is Loop and not op.accs and safe(op.body):
                worth = 1 if for_threads(op.count) else grain(cost(op.body))
                if type(op.count) is not Const or op.count.value > worth:
                    found[bind] = worth
            elif type(op) is Loop:
                visit(op.body)
            elif type(op) is If:
                visit(op.then)
                visit(op.orelse)

    visit(program.body)
    return found


class Parts(Rebuild):
    """Sums in parts: ``(fold + z v)``  =>  the sums of equal parts of ``v``, each by a loop of its own, then theirs.

    Accumulators may be arrays to whose elements is added, as the adjoints of a reverse pass. A loop that stacks
    something beside its sums becomes two: one stacks, costly numbers that the sums need included; the other adds.
    Design decision: the outermost loop that can be so taken apart, for threads are dear to start.
    """

    def __init__(self, builder: Builder, program: Program, threads: int) -> None:
        super().__init__(builder)
        self.cost, self.threads = inside(program), threads
        self.alone = False  # inside a loop that runs on one thread

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width, outer = len(op.accs), self.alone
        adds = all(
            sum_like(op.body, a, r) and (a.type.elem if isinstance(a.type, Arr) else a.type) == REAL
            for a, r in zip(op.accs, op.body.results)
        )
        runs = adds and safe(op.body) and not self.alone
        count = self.atom(op.count)
        try:
            if not runs:
                return super().loop(op, bind)
            self.alone = True
            if not width or type(count) is Const and count.value <= grain(self.cost(op.body)):
                return super().loop(op, bind)
            if len(op.body.results) > width:
                return self.apart(op, bind, count)
            return self.in_parts(op, [v.name for v in bind.vars], count, lambda i: None)
        finally:
            self.alone = outer

    def in_parts(self, op: Loop, names: Sequence[str], count: Atom, first_of_all: Callable[[Atom], None]) -> list[Atom]:
        """A loop of sums alone; ``first_of_all(i)`` says what else is known in iteration ``i``."""
        b, most = self.b, grain(self.cost(op.body))
        whole = b.prim("+", Const(1, INT), b.prim("//", count, Const(most, INT)))
        parts = b.prim("min", Const(self.threads, INT), whole)
        inits = self.atoms(op.inits)

        def part(c: Atom):
            first = b.prim("//", b.prim("*", c, count), parts)
            last = b.prim("//", b.prim("*", b.prim("+", c, Const(1, INT)), count), parts)

            def body(k: Atom, *accs: Atom):
                self.here[op.index] = b.prim("+", first, k)
                first_of_all(self.here[op.index])
                self.here.update(zip(op.accs, accs))
                return self.block(op.body), ()

            zeros = [b.zeros(type_of(z), a.name) for z, a in zip(inits, op.accs)]  # type: ignore[arg-type]
            length = b.prim("-", last, first)
            return (), b.loop(length, zeros, body, names, op.index.name, [a.name for a in op.accs])

        sums = b.loop(parts, (), part, [f"{n}_part" for n in names], "part")
        return [self.total(z, s, parts, name) for z, s, name in zip(inits, sums, names)]

    def total(self, init: Atom, sums: Atom, parts: Atom, name: str) -> Atom:
        """``init`` and the parts' sums, added in their order."""
        b = self.b

        def element(x: Atom, indices: tuple[Atom, ...]) -> Atom:
            t = type_of(x)
            if isinstance(t, Arr):
                return b.build(t.dims[0], lambda i: element(b.get(x, i), (*indices, i)), hint=name)
            (made,) = b.loop(
                parts, [x], lambda c, s: ([b.prim("+", s, b.get(sums, c, *indices))], ()), [name], "part", [name]
            )
            return made

        return element(init, ())

    def apart(self, op: Loop, bind: Bind, count: Atom) -> list[Atom]:
        """A loop that stacks, then one of sums."""
        b, width, body = self.b, len(op.accs), op.body
        adding = tidy(Block(body.binds, body.results[:width]))
        stacking = {v for x in tidy(Block(body.binds, body.results[width:])).binds for v in x.vars}
        kept = [
            v for x in adding.binds for v in x.vars if v in stacking and v.type == REAL and dear(x) and v not in op.accs
        ]
        names = [v.name for v in bind.vars]

        def stack(i: Atom):
            self.here[op.index] = i
            results = self.block(Block(body.binds, (*body.results[width:], *kept)))
            return (), results

        self.here.update((a, b.undef(a.type)) for a in op.accs)  # type: ignore[arg-type]
        out = b.loop(count, (), stack, [*names[width:], *(v.name for v in kept)], op.index.name, pruned=True)
        stacked = dict(zip(kept, out[len(names) - width :]))

        def known(i: Atom) -> None:
            self.here.update((v, b.get(rows, i, hint=v.name)) for v, rows in stacked.items())

        rest = tidy(Block(tuple(x for x in adding.binds if stacked.keys().isdisjoint(x.vars)), adding.results))
        sums = Loop(op.count, op.index, op.inits, op.accs, rest)
        return [*self.in_parts(sums, names[:width], count, known), *out[: len(names) - width]]


def dear(bind: Bind) -> bool:
    """Whether a number is better read than computed again."""
    op = bind.op
    return type(op) in (Loop, If) or type(op) is Prim and op.name in PRIMITIVES and PRIMITIVES[op.name].cost >= DEAR


def in_parts(program: Program, threads: int) -> Program:
    """The program with its long sums in parts that can run on ``threads`` threads."""
    if threads < 2 or not any(type(bind.op) is Loop for bind in program.body.binds):
        return program
    return dead_code(rebuild(program, lambda b: Parts(b, program, threads)))
