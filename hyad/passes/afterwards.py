"""Additions to elements that a loop has done with, made after the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import INT, REAL, Arr, Atom, Bind, Block, Const, Loop, Prim, Program, reads
from ..program.affine import affine_add, affine_in, never_equal, with_factors
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, rebuilt
from .edges import FEWEST
from .shifts import chooses, freely
from .unchanged import inner_of, integers_of


def afterwards(program: Program) -> Program:
    """Makes the additions of a loop to elements that its earlier iterations have changed, and later ones do not look
    at, after the loop.

    ``(loop n (fn [i a] (let [t (get a (- m i))] (add-at (update a (- m i) (x t)) (- (+ m 1) i) (y t)))) a)``  =>
    ``(loop n (fn [i a] (let [t (get a (- m i))] [(update a (- m i) (x t)) (y t)])) a)``, which stacks ``ys``, and then
    ``(loop n (fn [i a] (add-at a (- (+ m 1) i) (get ys i))) a)``.
    Design decision: what is left changes one element in each iteration, and several iterations run at once; before, a
    vector would wait until both of the vectors that it overlaps have been stored. Each element gets what it got, in the
    same order. Such loops are the derivatives of those that replace each element by a function of itself and later
    ones, as a tree of prices does.
    """
    if not any(candidate(loop) for loop in loops_of(program)):
        return program
    pass_ = Afterwards(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def candidate(loop: Loop) -> bool:
    """Whether a loop adds to elements of an array, and stores others."""
    names = {x.op.name for x in loop.body.binds if type(x.op) is Prim}
    return {"add-at", "update"} <= names and loop.snapshots is None and not loop.index.soft


class Afterwards(Rebuild):
    """``afterwards`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        self.integers = integers_of(program.body)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        late: dict[int, list[Bind]] = {}
        if candidate(op) and not (type(op.count) is Const and op.count.value < FEWEST):
            if all(type(x.op) is Prim or chooses(x) for x in op.body.binds):
                late = {k: found for k in range(len(op.accs)) if (found := self.late(op, k))}
        return self.split(op, bind, late) if late else super().loop(op, bind)

    def late(self, op: Loop, k: int) -> list[Bind]:
        """The additions to an accumulator that can wait until the loop is over."""
        acc, at = op.accs[k], op.body.results[k]
        if not isinstance(acc.type, Arr) or acc.type.elem != REAL:
            return []
        made = {v: x for x in op.body.binds for v in x.vars}
        steps: list[Bind] = []
        while at is not acc:
            x = made.get(at)  # type: ignore[call-overload]
            if x is None or type(x.op) is not Prim or x.op.name not in ("update", "add-at"):
                return []
            steps.insert(0, x)
            at = x.op.args[0]
        versions: set[Atom] = {acc, *(x.vars[0] for x in steps)}
        looks = [x for x in op.body.binds if x not in steps and any(a in versions for a in reads(x))]
        if not all(type(x.op) is Prim and x.op.name == "get" for x in looks):
            return []
        if any(r in versions for n, r in enumerate(op.body.results) if n != k):
            return []
        if any(a in versions for x in steps for a in x.op.args[1:]):  # type: ignore[union-attr]
            return []
        places = {x: self.place(op, x) for x in (*steps, *looks)}
        stores = [x for x in steps if x.op.name == "update"]  # type: ignore[union-attr]
        if not stores or any(p is None for p in places.values()):
            return []
        own = places[stores[0]]
        step = own[-1][1].get(op.index, 0)  # type: ignore[index]
        if step not in (1, -1) or any(op.index in p[1] for p in own[:-1]):  # type: ignore[index]
            return []
        late = []
        for x, place in places.items():
            ahead = self.ahead(own, place, step)
            if x in steps and x.op.name == "add-at" and ahead is not None and ahead < 0:  # type: ignore[union-attr]
                late.append(x)
            elif ahead != 0 and not never_equal(own[:-1], place[:-1]):  # type: ignore[index]
                return []
        return late

    def place(self, op: Loop, x: Bind) -> list | None:
        """The subscripts of an element; none of a row, nor where one hangs on more than the index."""
        args = x.op.args[1:] if x.op.name == "get" else x.op.args[1:-1]  # type: ignore[union-attr]
        found = [with_factors(affine_in(a, self.integers), self.integers) for a in args]
        inside = inner_of(op) - {op.index}
        if len(args) != x.op.args[0].type.rank or any(inside & a[1].keys() for a in found):  # type: ignore
            return None
        return found

    def ahead(self, own: list, place: list, step: int) -> int | None:
        """How many iterations later an element is the one that the iteration itself stores; None where it is not known
        to be in the same row, that many iterations away."""
        gaps = [affine_add(a, b, -1) for a, b in zip(place, own)]
        if any(terms for _, terms in gaps) or any(constant for constant, _ in gaps[:-1]):
            return None
        return gaps[-1][0] * step

    def split(self, op: Loop, bind: Bind, late: dict[int, list[Bind]]) -> Sequence[Atom]:
        """The loop without those additions, and a loop of them."""
        self.found = True
        moved = {x.vars[0]: x.op.args[0] for xs in late.values() for x in xs}  # type: ignore[union-attr]

        def left(a: Atom) -> Atom:
            while a in moved:
                a = moved[a]  # type: ignore[index]
            return a

        binds = tuple(
            replace(x, op=Prim(x.op.name, (left(x.op.args[0]), *x.op.args[1:])))
            if type(x.op) is Prim and x.op.args
            else x
            for x in op.body.binds
            if x.vars[0] not in moved
        )
        values = list(dict.fromkeys(x.op.args[-1] for xs in late.values() for x in xs))  # type: ignore[union-attr]
        kept = [v for v in values if v in inner_of(op)]
        width, results = len(op.accs), tuple(map(left, op.body.results))
        turned = self.turned(op, late) and freely(replace(op, body=tidy(Block(binds, results[:width]))))
        turned = turned and len(results) == width
        count = self.b.prim("max", self.atom(op.count), Const(0, INT)) if kept else self.atom(op.count)
        last = self.b.prim("-", count, Const(1, INT))

        def at(i: Atom) -> Atom:
            return self.b.prim("-", last, i) if turned else i

        def first(i: Atom, *accs: Atom) -> tuple:
            self.here[op.index] = at(i)
            self.here.update(zip(op.accs, accs))
            found = self.block(Block(binds, (*results, *kept)))
            return found[:width], found[width:]

        names = [*(v.name for v in bind.vars), *(v.name for v in kept)]
        inits, acc_names = self.atoms(op.inits), [a.name for a in op.accs]
        out = list(self.b.loop(count, inits, first, names, op.index.name, acc_names))
        self.b.span = bind.span
        stacked = dict(zip(kept, out[len(bind.vars) :]))
        for k, xs in late.items():

            def second(i: Atom, a: Atom, xs: list[Bind] = xs) -> tuple:
                self.here[op.index] = at(i)
                for x in xs:
                    *place, value = x.op.args[1:]  # type: ignore[union-attr]
                    where = self.block(tidy(Block(op.body.binds, tuple(place))))
                    y = self.b.get(stacked[value], i, hint=value.name) if value in stacked else self.atom(value)
                    a = self.b.add_at(a, where, y, soft=x.soft)
                return (a,), ()

            (out[k],) = self.b.loop(count, [out[k]], second, [bind.vars[k].name], op.index.name, [acc_names[k]])
        return out[: len(bind.vars)]

    def turned(self, op: Loop, late: dict[int, list[Bind]]) -> bool:
        """Whether a loop goes backwards, and the order of what comes late is nothing to what an element gets."""
        places = [self.place(op, x) for xs in late.values() for x in xs]
        backwards = all(p is not None and p[-1][1].get(op.index) == -1 for p in places)
        return backwards and all(len(xs) == 1 or all(x.soft for x in xs) for xs in late.values())
