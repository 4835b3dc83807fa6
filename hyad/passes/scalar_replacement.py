"""Scalar replacement: elements of an array that a loop changes, always the same ones, are numbers that go from one
iteration to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import INT, Arr, Atom, Bind, Block, Check, Const, If, Loop, Prim, Program, Var, blocks_of, same
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.rebuild import Rebuild, rebuilt
from .unchanged import Course, differ, inner_of, integers_of

#: A loop keeps no more elements of an array than this.
MOST = 12

#: A row that is built has no more numbers than this.
SHORT = 8

#: Which element it is, by its subscripts.
Place = tuple[Atom, ...]


def scalar_replacement(program: Program) -> Program:
    """Keeps what a loop changes of an array as numbers, where it reads and sets a few elements that are the same in all
    of its iterations, and nothing else of the array.

    ``(ifold (fn [a j] (update a i 0 (+ (get a i 0) (f j)))) z n)``  =>
    ``(update z i 0 (ifold (fn [s j] (+ s (f j))) (get z i 0) n))``, and so under conditions and in loops inside.
    And a loop of which each iteration looks at one row alone, the next, of few numbers, builds the rows.
    Design decision: before differentiation too, so that a number is remembered, not an array; and only what the user
    sets: of adjoints, which may be added in any order, ``register`` takes those that are added to.
    """
    pass_ = Replacement(Builder(), program.body)
    return rebuilt(program, pass_) if pass_.plans or pass_.rows else program


def scalar_replacement_block(b: Builder, block: Block) -> Block:
    """``scalar_replacement`` for a block under construction."""
    pass_ = Replacement(b, block)
    if "scalar-replacement" in b.off or not (pass_.plans or pass_.rows):
        return block
    return tidy(pass_.remade(block))


class Slots(NamedTuple):
    """The elements of a version of an array that are kept, and their values in the new program."""

    places: tuple[Place, ...]
    values: tuple[Atom, ...]

    def with_(self, place: Place, x: Atom) -> Slots:
        return Slots(self.places, tuple(x if p == place else v for p, v in zip(self.places, self.values)))

    def at(self, place: Place) -> Atom:
        return self.values[self.places.index(place)]


class Replacement(Rebuild):
    """``scalar_replacement`` for a block; ``plans``: of the accumulators of its loops, which elements are kept;
    ``rows``: those of which each iteration changes the next row, and looks at no other."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.plans: dict[Var, tuple[Place, ...]] = {}
        self.rows: set[Var] = set()
        self.slots: dict[Atom, Slots] = {}  # of each version of such an array in the old program
        self.integers: Mapping[Var, Prim] | None = None
        self.find(block, block)

    def find(self, block: Block, whole: Block) -> None:
        """Plan what each loop would keep; in a loop that keeps it already it stays with that."""
        for x in block.binds:
            if type(x.op) is Loop:
                for k, a in enumerate(x.op.accs):
                    course = self.course(x.op, k) if isinstance(a.type, Arr) else None
                    if course is not None and own_row(x.op, a, course):
                        self.rows.add(a)
                    elif course is not None and (places := self.places(x.op, k, course, whole)):
                        self.plans[a] = places
            for region in blocks_of(x.op):
                self.find(region, whole)

    def course(self, op: Loop, k: int) -> Course | None:
        """What a loop does with an array, if it reads and sets elements and no more."""
        acc = op.accs[k]
        if op.body.results[k] is acc or op.snapshots is not None or op.index.soft:
            return None
        course = Course({acc})
        known = course.goes(op.body) == [k] and any(x.name == "update" for x in course.changes)
        rank = acc.type.rank  # type: ignore[union-attr]
        return course if known and all(len(p) == rank for p in places_of(course)) else None

    def places(self, op: Loop, k: int, course: Course, whole: Block) -> tuple[Place, ...]:
        """The elements of an accumulator that a loop reads or sets, where they are few, and the same throughout."""
        inside, found = inner_of(op), places_of(course)
        if len(found) > MOST or not all(map(inside.isdisjoint, found)):
            return ()
        if len(found) > 1:
            self.integers = integers_of(whole) if self.integers is None else self.integers
        for n, p in enumerate(found):
            if not all(differ(p, q, inside, self.integers) for q in found[:n]):  # type: ignore[arg-type]
                return ()
        return found

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and op.args and op.args[0] in self.slots and op.name in ("get", "update", "add-at"):
            slots, v = self.slots[op.args[0]], bind.vars[0]
            if op.name == "get":
                self.here[v] = slots.at(op.args[1:])
                return
            place, x = op.args[1:-1], self.atom(op.args[-1])
            x = self.b.prim("+", slots.at(place), x) if op.name == "add-at" else x
            self.slots[v] = slots.with_(place, x)
        elif type(op) is If and self.slots and any(isinstance(v.type, Arr) for v in bind.vars):
            self.branches(op, bind)
        else:
            super().bind(bind)

    def branches(self, op: If, bind: Bind) -> None:
        """A branch of which some results may be arrays of which elements are kept."""
        b, cond = self.b, self.atom(op.cond)
        known = cond.value if type(cond) is Const else self.holds.get(cond)
        if known is not None:
            arm = op.then if known else op.orelse
            self.lines(arm)
            for v, r in zip(bind.vars, arm.results):
                self.name(v, r)
            return
        made: list = []
        for arm, holds in ((op.then, True), (op.orelse, False)):
            with b.branch_region(cond, holds) as scope:
                around, self.holds = self.holds, {**self.holds, cond: holds}
                self.lines(arm)
                self.holds = around
                made.append((scope, [x for r in arm.results for x in self.values(r)]))
        names = [n for v, r in zip(bind.vars, op.then.results) for n in [v.name] * len(self.values(r))]
        out = iter(b.if_(cond, *made, names=names, given=bind.vars[0].given))
        for v, r in zip(bind.vars, op.then.results):
            if r in self.slots:
                slots = self.slots[r]
                self.slots[v] = Slots(slots.places, tuple(next(out) for _ in slots.values))
            else:
                self.here[v] = next(out)

    def lines(self, block: Block) -> None:
        for x in block.binds:
            self.line(x)

    def values(self, a: Atom) -> Sequence[Atom]:
        """What a value is in the new program: an array's elements that are kept, or itself."""
        return self.slots[a].values if a in self.slots else (self.atom(a),)

    def name(self, v: Var, a: Atom) -> None:
        """Have a variable stand for a value of the old program."""
        if a in self.slots:
            self.slots[v] = self.slots[a]
        else:
            self.here[v] = self.atom(a)

    def checked_first(self, op: Loop) -> None:
        """Check before a loop what each iteration checks of numbers that the loop does not change, as any pass does."""
        inside = inner_of(op)
        for x in op.body.binds:
            if type(x.op) is Check and inside.isdisjoint((x.op.a, x.op.b)):
                self.line(x)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        b, width = self.b, len(op.accs)
        held = {k: self.slots[z] for k, z in enumerate(op.inits) if z in self.slots}  # kept by a loop around
        begun: dict[int, Slots] = {}
        rows: dict[int, Atom] = {}  # the arrays that are built, as they are before
        if not self.plans.keys().isdisjoint(op.accs):
            self.checked_first(op)
        for k, (a, z) in enumerate(zip(op.accs, op.inits)):
            if k not in held and a in self.rows:
                rows[k] = self.atom(z)
            elif k not in held and a in self.plans:
                array, at = self.atom(z), [self.atoms(p) for p in self.plans[a]]
                if all(b.in_range(array, p) for p in at):  # even where the loop is not entered
                    begun[k] = Slots(self.plans[a], tuple(b.get(array, *p, hint=a.name) for p in at))
        kept = {**begun, **held}
        if not (kept or rows):
            return super().loop(op, bind)
        if begun or rows:
            b.fired("scalar-replacement")
        starts = [() if k in rows else kept[k].values if k in kept else (self.atom(z),) for k, z in enumerate(op.inits)]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            given = iter(accs)
            for k, a in enumerate(op.accs):
                if k in rows:
                    places = places_in_row(op, a)
                    self.slots[a] = Slots(places, tuple(b.get(rows[k], i, *p[1:], hint=a.name) for p in places))
                elif k in kept:
                    self.slots[a] = Slots(kept[k].places, tuple(next(given) for _ in starts[k]))
                else:
                    self.here[a] = next(given)
            self.lines(op.body)
            made = [self.values(r) for r in op.body.results]
            following = [x for k, xs in enumerate(made[:width]) if k not in rows for x in xs]
            stacked = [made[k][0] if op.accs[k].type.rank == 1 else b.array(made[k]) for k in rows]  # type: ignore
            return following, [*stacked, *(x for xs in made[width:] for x in xs)]

        order = [
            *(v for v, xs in zip(bind.vars, starts) for _ in xs),
            *(bind.vars[k] for k in rows),
            *bind.vars[width:],
        ]
        span = b.span
        out = iter(
            b.loop(
                self.atom(op.count),
                [x for xs in starts for x in xs],
                body,
                [v.name for v in order],
                op.index.name,
                [a.name for a, xs in zip(op.accs, starts) for _ in xs],
                bind.vars[0].given,
                soft=op.index.soft,
                snapshots=None if op.snapshots is None else self.atom(op.snapshots),
            )
        )
        b.span = span
        after = {k: tuple(next(out) for _ in xs) for k, xs in enumerate(starts)}
        after.update((k, (next(out),)) for k in rows)
        made: list[Atom] = []
        for k, v in enumerate(bind.vars[:width]):
            if k in begun:
                array = self.atom(op.inits[k])
                for place, before, x in zip(begun[k].places, begun[k].values, after[k]):
                    array = array if x is before else b.update(array, self.atoms(place), x, v.name)
                made.append(array)
            else:
                made.append(after[k][0])
            if k in held:
                self.slots[v] = Slots(held[k].places, after[k])
        return [*made, *out]


def places_of(course: Course) -> tuple[Place, ...]:
    """The elements that are read or set, each once."""
    return tuple(dict.fromkeys([*(x.args[1:] for x in course.looks), *(x.args[1:-1] for x in course.changes)]))


def own_row(op: Loop, acc: Var, course: Course) -> bool:
    """Whether each iteration looks at one row alone, the next, of few numbers that are known one by one."""
    first, *rest = acc.type.dims  # type: ignore[union-attr]
    if not same(first, op.count) or len(rest) > 1 or not all(type(d) is Const and 0 < d.value <= SHORT for d in rest):
        return False
    return all(
        p[0] is op.index and all(type(c) is Const and 0 <= c.value < rest[0].value for c in p[1:])
        for p in places_of(course)
    )


def places_in_row(op: Loop, acc: Var) -> tuple[Place, ...]:
    """All places of such a row."""
    rest = acc.type.dims[1:]  # type: ignore[union-attr]
    return tuple((op.index, Const(c, INT)) for c in range(rest[0].value)) if rest else ((op.index,),)
