"""Loops that add to several elements of a row, as adjoints of stencils do, made to take the sum for each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..core import INT, Arr, Atom, Bind, Block, Const, Loop, Prim, Program, Var, defined_in, reads, type_of
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, rebuilt
from .edges import FEWEST
from .spread import work
from .tables import affine_of, sums_in

#: What is added is computed again for each element if it costs no more, in additions; else it is stored first.
CHEAP = 8.0
#: So many numbers of an iteration are stored, at most.
STORED = 4
#: The first and last elements of a row, to which not all come, are written out if no more is added to them.
WRITTEN_OUT = 24


def shifts(program: Program) -> Program:
    """A loop that adds to several elements of one row in an iteration takes the sum for each element of the row.

    ``(loop n (fn [i a] (add-at (add-at a (+ i 1) (x i)) i (y i))) a)``  =>  ``(add-at a 0 (y 0))``; for the elements
    ``i`` = 1 .. n-1 of ``a``, ``(+ (+ (get a i) (x (- i 1))) (y i))``; ``(add-at a n (x (- n 1)))``.

    Design decision: each element gets what it got, in the order in which it got it, and so the same value. What an
    iteration adds to and the next one reads again keeps a compiler from taking several at once.
    """
    if not any(adds_twice(loop) for loop in loops_of(program)):
        return program
    pass_ = Shifts(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def adds_twice(loop: Loop) -> bool:
    return sum(type(x.op) is Prim and x.op.name == "add-at" for x in loop.body.binds) > 1


@dataclass
class Store:
    """An addition of an innermost loop: its subscripts, and how far its row and its place in the row are from those of
    the loop's first addition."""

    bind: Bind
    place: tuple[Affine, ...]
    row: tuple[int, ...]
    shift: int


class Shifts(Rebuild):
    """``shifts`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        self.sums = sums_in(program.body)
        self.stored: dict[Atom, Atom] = {}  # what is added, by the iteration

    def bind(self, bind: Bind) -> None:
        op = bind.op
        chains = self.chains(op) if type(op) is Loop and adds_twice(op) else None
        if not chains:
            self.copy(bind)
            return
        self.found = True
        self.define(bind, self.gathered(op, bind, chains))  # type: ignore[arg-type]

    def chains(self, op: Loop) -> dict[int, list[list[Store]]]:
        """For accumulators that a loop adds to: its additions to rows that get several, in the order in which they
        come to an element."""
        if op.index.soft or op.snapshots is not None or type(op.count) is Const and op.count.value < FEWEST:
            return {}
        if any(type(x.op) is not Prim for x in op.body.binds):
            return {}
        made = {x.vars[0]: x for x in op.body.binds}
        carried = set(op.accs)
        for x in op.body.binds:
            if any(a in carried for a in reads(x)):
                carried.update(x.vars)
        found = {}
        for k, (acc, result) in enumerate(zip(op.accs, op.body.results)):
            adds: list[Bind] = []
            at: Atom = result
            while (x := made.get(at)) is not None and x.op.name == "add-at":  # type: ignore
                adds.insert(0, x)
                at = x.op.args[0]  # type: ignore[union-attr]
            steps = [acc, *(x.vars[0] for x in adds)]
            alone = all(sum(v in reads(x) for x in op.body.binds) + op.body.results.count(v) == 1 for v in steps)
            if at is not acc or not alone or len(adds) < 2 or any(x.op.args[-1] in carried for x in adds):  # type: ignore
                continue
            stores = self.stores(op, adds)
            rows = [list(row) for _, row in groupby(sorted(stores, key=lambda s: s.row), key=lambda s: s.row)]
            rows = [sorted(row, key=lambda s: -s.shift) for row in rows if len(row) > 1]
            if rows and all(self.worth(op, row) for row in rows):
                found[k] = rows
        return found

    def stores(self, op: Loop, adds: Sequence[Bind]) -> list[Store]:
        """The additions to an array; none where it is not known how their places differ."""
        stores: list[Store] = []
        inside = defined_in(op.body)
        for x in adds:
            *_, value = x.op.args  # type: ignore[union-attr]
            place = tuple(affine_of(a, self.sums, set(self.sums), set()) for a in x.op.args[1:-1])  # type: ignore
            if isinstance(type_of(value), Arr) or any(p is None or not p[1].keys().isdisjoint(inside) for p in place):
                return []
            if [p[1].get(op.index, 0) for p in place] != [*(0 for _ in place[1:]), 1]:  # type: ignore[index]
                return []
            gaps = [affine_add(p, q, -1) for p, q in zip(place, stores[0].place)] if stores else [(0, {})] * len(place)
            if any(gap[1] for gap in gaps):
                return []
            stores.append(Store(x, place, tuple(gap[0] for gap in gaps[:-1]), gaps[-1][0]))  # type: ignore[arg-type]
        return stores

    def worth(self, op: Loop, row: list[Store]) -> bool:
        shifts = [s.shift for s in row]
        few = len(self.dear(op, [row])) <= STORED
        return few and len(set(shifts)) == len(shifts) and (shifts[0] - shifts[-1]) * len(shifts) <= WRITTEN_OUT

    def dear(self, op: Loop, rows: Sequence[Sequence[Store]]) -> list[Var]:
        """What is added that costs more than to store it and to read it."""
        values = dict.fromkeys(s.bind.op.args[-1] for row in rows for s in row)  # type: ignore[union-attr]
        made = {v: tidy(Block(op.body.binds, (v,))) for v in values if type(v) is Var}
        return [v for v, block in made.items() if sum(work(x.op) for x in block.binds) > CHEAP]

    def gathered(self, op: Loop, bind: Bind, chains: dict[int, list[list[Store]]]) -> Sequence[Atom]:
        """The loop without the additions of ``chains``, if that does anything, and then these, row by row."""
        taken = {s.bind.vars[0]: s.bind.op.args[0] for rows in chains.values() for row in rows for s in row}  # type: ignore
        binds = tuple(x for x in op.body.binds if not any(v in taken for v in x.vars))

        def left(a: Atom) -> Atom:
            while a in taken:
                a = taken[a]  # type: ignore[index]
            return a

        binds = tuple(
            Bind(x.vars, Prim("add-at", (left(x.op.args[0]), *x.op.args[1:])), x.span, x.soft)  # type: ignore[union-attr]
            if x.op.name == "add-at"  # type: ignore[union-attr]
            else x
            for x in binds
        )
        dear = self.dear(op, [row for rows in chains.values() for row in rows])
        count = self.b.prim("max", self.atom(op.count), Const(0, INT)) if dear else op.count  # sizes are not negative
        kept = tuple(Var(v.name, Arr(v.type, (count,)), v.span) for v in dear)
        rest = tidy(Block(binds, (*map(left, op.body.results), *dear)))
        again = Bind((*bind.vars, *kept), Loop(count, op.index, op.inits, op.accs, rest), bind.span)
        out = list(super().loop(again.op, again))  # type: ignore[arg-type]
        self.stored = dict(zip(dear, out[len(bind.vars) :]))
        for k, rows in chains.items():
            for row in rows:
                out[k] = self.row(op, row, out[k])
        return out[: len(bind.vars)]

    def row(self, op: Loop, row: list[Store], array: Atom) -> Atom:
        """The additions to the elements of one row, where there are as many iterations as elements that not all come
        to; else as they were."""
        b, count = self.b, self.atom(op.count)
        gap = row[0].shift - row[-1].shift
        many = affine_add(b.affine(count), (gap, {}), -1)
        if b.nonnegative(many):
            return self.sums_of(op, row, array, gap)
        there = b.prim("<=", Const(gap, INT), count)
        with b.branch_region(there, True) as scope:
            one = self.sums_of(op, row, array, gap)
        with b.branch_region(there, False) as other:
            (two,) = b.loop(count, [array], lambda i, a: ((self.added(op, row, i, a),), ()), [], op.index.name, ["a"])
        return b.if_(there, (scope, [one]), (other, [two]))[0]

    def sums_of(self, op: Loop, row: list[Store], array: Atom, gap: int) -> Atom:
        b, count = self.b, self.atom(op.count)
        low = row[-1].shift
        for d in range(gap):  # the first elements
            for s in row:
                if s.shift <= low + d:
                    array = self.add(op, s, Const(low + d - s.shift, INT), array)
        length = b.prim("-", count, Const(gap, INT))

        def body(i: Atom, a: Atom):
            place, total = None, None
            for s in row:
                j = b.prim("+", i, Const(row[0].shift - s.shift, INT))
                place, value = self.value(op, s, j)
                total = b.prim("+", b.get(a, *place) if total is None else total, value)
            return (b.update(a, place, total),), ()

        (array,) = b.loop(length, [array], body, [], op.index.name, ["a"])
        for d in range(gap):  # and the last ones
            for s in row:
                if s.shift > low + d:
                    back = b.prim("-", count, Const(s.shift - low - d, INT))
                    array = self.add(op, s, back, array)
        return array

    def value(self, op: Loop, store: Store, index: Atom) -> tuple[tuple[Atom, ...], Atom]:
        """Where an addition comes to in an iteration, and what is added."""
        self.here[op.index] = index
        *place, value = store.bind.op.args[1:]  # type: ignore[union-attr]
        self.b.span = store.bind.span
        if value in self.stored:
            at = self.block(tidy(Block(op.body.binds, tuple(place))))
            return at, self.b.get(self.stored[value], index)
        *at, x = self.block(tidy(Block(op.body.binds, (*place, value))))
        return tuple(at), x

    def add(self, op: Loop, store: Store, index: Atom, array: Atom) -> Atom:
        place, value = self.value(op, store, index)
        return self.b.add_at(array, place, value, soft=store.bind.soft)

    def added(self, op: Loop, row: list[Store], index: Atom, array: Atom) -> Atom:
        for s in row:
            array = self.add(op, s, index, array)
        return array
