"""What calls of the C library give in a loop is kept for a loop after it that would make the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ..core import (
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Var,
    blocks_of,
    same,
    with_blocks,
    with_body,
)
from ..program.dead import dead_code
from ..program.loops import CALL, calls_in, loops_of
from ..program.primitives import PRIMITIVES, price_of

#: What is around a binding, outermost first: its place in its block, and which arm, or None for a loop's body.
Path = tuple[tuple[int, int | None], ...]
#: The conditions of branches, by number, and which arms.
Asked = frozenset[tuple[int, int]]
ZERO = Const(0.0, REAL)
DEEPEST = 2  # loops around a call
FEW = 4096  # elements of a table that is no larger than that, whatever the arguments are


def keep_calls(program: Program) -> Program:
    """Stacks what a call gives in a loop where a later loop of as many iterations makes the same call, and reads it
    there: reverse mode computes again what it needs of an iteration's sums.

    ``(loop n (fn [i s] (+ s (exp (get x i)))) 0.0) .. (build n (fn [i] (* c (exp (get x i)))))``  =>  ``e``, stacked
    by the first one, and ``(build n (fn [i] (* c (get e i))))``.

    Design decision: a call costs more than an element that is stored and read. Room is made for rows in other loops,
    for few elements, and for as many as an argument has, so that memory stays what the arguments take.
    """
    if sum(any(calls_in(Block(x.body.binds, ()))) for x in loops_of(program)) < 2:
        return program
    pass_ = KeepCalls(program)
    body = pass_.block(program.body, False)
    return dead_code(with_body(program, body)) if pass_.found else program


@dataclass(frozen=True)
class Call:
    """A call in a loop: its number, where it is in the loop's body, what has been asked on the way, and of which
    iteration of which loops, as often as ``counts`` says, it is."""

    number: int
    path: Path
    at: int
    asked: Asked
    indices: tuple[Atom, ...]
    counts: tuple[Atom, ...]


class KeepCalls:
    """``keep_calls`` for a program."""

    def __init__(self, program: Program) -> None:
        self.found = False
        self.shapes = [p.type.dims for p in program.params if isinstance(p.type, Arr)]

    def block(self, block: Block, inside: bool) -> Block:
        binds = [self.within(x, inside) for x in block.binds]
        places = [k for k, x in enumerate(binds) if type(x.op) is Loop and x.op.snapshots is None]
        places = [k for k in places if calls_in(binds[k].op.body)] if len(places) > 1 else []  # type: ignore[union-attr]
        for n, k in enumerate(places):
            for j in places[n + 1 :]:
                if same(binds[k].op.count, binds[j].op.count):  # type: ignore[union-attr]
                    binds[k], binds[j] = self.kept(binds[k], binds[j], inside)
        return Block(tuple(binds), block.results) if self.found else block

    def within(self, bind: Bind, inside: bool) -> Bind:
        if type(bind.op) is Prim or not any(blocks_of(bind.op)):
            return bind
        blocks = [self.block(x, inside or type(bind.op) is Loop) for x in blocks_of(bind.op)]
        return Bind(bind.vars, with_blocks(bind.op, blocks), bind.span, bind.soft) if self.found else bind

    def fits(self, counts: Sequence[Atom], inside: bool) -> bool:
        """Whether there is room for a table: a row of what is in another loop, few elements, or no more than those of
        an argument."""
        known = [c.value for c in counts if type(c) is Const]
        if len(counts) == 1 and inside or len(known) == len(counts) and prod(known) <= FEW:
            return True
        there = [shape[k : k + len(counts)] for shape in self.shapes for k in range(len(shape))]
        return any(len(dims) == len(counts) and all(map(same, dims, counts)) for dims in there)

    def kept(self, first: Bind, second: Bind, inside: bool) -> tuple[Bind, Bind]:
        """Two loops, of which the second one reads what the first one has kept."""
        one: Loop = first.op  # type: ignore[assignment]
        two: Loop = second.op  # type: ignore[assignment]
        numbers = Numbers()
        there = [x for x in numbers.calls(one) if self.fits(x.counts, inside)]
        width = len(one.accs)
        numbers.stacks = dict(zip(first.vars[width:], map(numbers.of, one.body.results[width:])))
        made: dict[Call, Call] = {}
        for x in numbers.calls(two) if there else ():
            before = [y for y in there if y.number == x.number and y.asked <= x.asked]
            before = [y for y in before if len(y.counts) == len(x.counts) and all(map(same, y.counts, x.counts))]
            if before:
                made[x] = before[0]
        if not made:
            return first, second
        self.found = True
        arrays: dict[Call, Var] = {}
        body, vars, given = two.body, list(first.vars), one.body
        for x, y in made.items():
            if y not in arrays:
                given = shown(given, y.path, y.at)
                last: Var = given.results[-1]  # type: ignore[assignment]
                arrays[y] = Var(last.name, Arr(REAL, y.counts), first.span)
                vars.append(arrays[y])
            body = replaced(body, x.path, x.at, Prim("get", (arrays[y], *x.indices)))
        first = Bind(tuple(vars), replace(one, body=given), first.span, first.soft)
        return first, Bind(second.vars, replace(two, body=body), second.span, second.soft)


def shown(block: Block, path: Path, at: int) -> Block:
    """A block that also gives what a binding of it computes: in all iterations of the loops that it is in, and 0 where
    a branch that it is in is not taken."""
    if not path:
        return Block(block.binds, (*block.results, block.binds[at].vars[0]))
    place, arm = path[0]
    bind, op = block.binds[place], block.binds[place].op
    if type(op) is Loop:
        inner = shown(op.body, path[1:], at)
        last: Var = inner.results[-1]  # type: ignore[assignment]
        dims = last.type.dims if isinstance(last.type, Arr) else ()
        out = Var(last.name, Arr(REAL, (op.count, *dims)), bind.span)
        op = replace(op, body=inner)
    else:
        arms = [
            shown(x, path[1:], at) if k == arm else Block(x.binds, (*x.results, ZERO))
            for k, x in enumerate(blocks_of(op))
        ]
        out = Var(arms[arm].results[-1].name, REAL, bind.span)  # type: ignore[index, union-attr]
        op = with_blocks(op, arms)
    made = Bind((*bind.vars, out), op, bind.span, bind.soft)
    return Block((*block.binds[:place], made, *block.binds[place + 1 :]), (*block.results, out))


def replaced(block: Block, path: Path, at: int, op: Op) -> Block:
    """A block in which a binding, in branches and loops, has another operation."""
    place = path[0][0] if path else at
    bind = block.binds[place]
    if path:
        arm = path[0][1] or 0
        op = with_blocks(
            bind.op, [replaced(x, path[1:], at, op) if k == arm else x for k, x in enumerate(blocks_of(bind.op))]
        )
    made = Bind(bind.vars, op, bind.span, bind.soft)
    return Block((*block.binds[:place], made, *block.binds[place + 1 :]), block.results)


class Numbers:
    """Value numbering of the bodies of two loops: what has one number in both is one value, in the same iterations."""

    def __init__(self) -> None:
        self.table: dict[tuple, int] = {}
        self.known: dict[Atom, int] = {}  # in the loop whose calls were asked for last
        self.found: list[Call] = []
        self.stacks: dict[Var, int] = {}  # of an array that the first loop stacks what an element of it is

    def number(self, *key: object) -> int:
        return self.table.setdefault(key, len(self.table))

    def of(self, a: Atom) -> int:
        if type(a) is Const:
            return self.number("const", str(a.type), repr(a.value))
        return self.known[a] if a in self.known else self.number("var", a)

    def calls(self, op: Loop) -> list[Call]:
        self.known, self.found = {}, []
        self.body(op, (), frozenset(), (), ())
        return self.found

    def body(self, op: Loop, path: Path, asked: Asked, at: tuple[Atom, ...], counts: tuple[Atom, ...]) -> None:
        self.known[op.index] = self.number("iteration", len(at))
        self.walk(op.body, path, asked, (*at, op.index), (*counts, op.count))

    def walk(self, block: Block, path: Path, asked: Asked, at: tuple[Atom, ...], counts: tuple[Atom, ...]) -> None:
        for place, bind in enumerate(block.binds):
            op = bind.op
            if type(op) is If:
                cond = self.of(op.cond)
                results = []
                for arm, inner in enumerate(blocks_of(op)):
                    self.walk(inner, (*path, (place, arm)), asked | {(cond, arm)}, at, counts)
                    results.append([self.of(r) for r in inner.results])
                for v, *arms in zip(bind.vars, *results):
                    self.known[v] = self.number("if", cond, *arms)
            elif type(op) is Loop and op.snapshots is None and len(at) < DEEPEST and not asked:
                self.body(op, (*path, (place, None)), asked, at, counts)
            elif type(op) is Prim and op.args:
                (v,) = bind.vars
                own = self.stacks.get(op.args[0]) if op.name == "get" and op.args[1:] == at[:1] else None  # type: ignore
                self.known[v] = self.number(op.name, *map(self.of, op.args)) if own is None else own
                if op.name in PRIMITIVES and price_of(op) >= CALL and v.type == REAL:
                    self.found.append(Call(self.known[v], path, place, asked, at, counts))
