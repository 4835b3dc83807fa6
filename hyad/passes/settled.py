"""What a loop remembers of a table that it fills in order: the table as it is in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core import Arr, Atom, Bind, Block, Loop, Prim, Program, Var, all_binds, blocks_of, count_uses
from ..program.affine import Affine, affine_add, affine_in, directions, with_factors
from ..program.builder import Builder
from ..program.loops import array_uses
from ..program.rebuild import Rebuild, rebuilt
from .unchanged import Course, inner_of, integers_of


def settled(program: Program) -> Program:
    """Reads from the finished table, and remembers no state of it, what reverse mode needs of a table that a loop fills
    in order, where nothing changes those elements later.

    ``(loop n (fn [i a] .. [(update a (+ c i) x) a]) z) .. (get s t j)``  =>  ``(get a' j)``, where s is what was
    stacked of a, a' what a is after the loop, and j below c + t; so it is with (- c i), and j above c - t. So it is
    with the rows and pivots of an elimination, in loops inside one another: ``(get a' (+ t u) t)`` for what has been
    stored there.
    Design decision: early, that nothing is remembered, and before ``narrow``, which stacks one row in place of the
    table: what reads several, or one in a branch, would remember the square of it.
    """
    integers = integers_of(program.body)
    found = {v: kept for x in all_binds(program.body) for v, kept in remembered(x)}
    uses = array_uses(program.body) if found else {}
    found = {v: kept for v, kept in found.items() if v in uses and all(u.subscripts for u in uses[v])}
    if not found:
        return program
    look = Settled(Builder(), found, integers, looking=True)
    rebuilt(program, look)
    found = {v: [kept[k] for k in sorted(look.held[v])[:1]] for v, kept in found.items() if look.held.get(v)}
    return rebuilt(program, Settled(Builder(), found, integers)) if found else program


#: The loops around, and where in the body of each, and of the outer one.
Place = tuple[tuple[Loop, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is remembered: for each iteration of the loops ``levels`` the element at ``place`` of a table, the part of
    it if that has fewer subscripts, which is ``last`` in the end. ``look`` reads or stores it, None where it is the
    table as the iteration finds it; where this is, and what changes the table, stands in ``where``."""

    last: Var
    levels: tuple[Loop, ...]
    place: tuple[Atom, ...]
    look: Prim | None
    changes: tuple[Prim, ...]
    where: dict[Prim, Place]


def remembered(bind: Bind) -> Iterator[tuple[Var, list[Kept]]]:
    """What a loop remembers of its tables, by what the program reads it of; each may be found in several places."""
    op = bind.op
    if type(op) is not Loop or op.snapshots is not None:
        return
    courses: dict[int, Course] = {}
    looks: dict[int, set[Prim]] = {}
    for k, a in enumerate(op.accs):
        if isinstance(a.type, Arr):
            course = Course({a})
            goes = course.goes(op.body)
            if goes is not None and [n for n in goes if n < len(op.accs)] == [k] and course.changes:
                looks[k] = set()
                if in_turn(op.body, a, course.vars, looks[k]):
                    courses[k] = course
    if not courses:
        return
    where = dict(walk(op.body, (), ()))
    for n, v in enumerate(bind.vars):
        found = []
        for k, course in courses.items():
            if n >= len(op.accs) and op.body.results[n] is op.accs[k]:
                found.append(Kept(bind.vars[k], (op,), (), None, tuple(course.changes), where))
        leaf = leaf_of(bind, n) if n not in courses and isinstance(v.type, Arr) and not found else None
        if leaf is not None:
            levels, x, block = leaf
            for k, course in courses.items():
                for y in block.binds:
                    look = y.op
                    if type(look) is Prim and look in looks[k]:
                        stores = look.name == "update"
                        if x is (look.args[-1] if stores else y.vars[0]):
                            place = look.args[1:-1] if stores else look.args[1:]
                            found.append(Kept(bind.vars[k], levels, place, look, tuple(course.changes), where))
        if found:
            yield v, found


def in_turn(block: Block, now: Atom, versions: set[Var], looks: set[Prim]) -> bool:
    """Whether all that changes a table changes what it is then, ``now`` at first; ``looks``: what reads and stores
    elements of that."""
    for x in block.binds:
        op = x.op
        if type(op) is Prim:
            if op.args and op.args[0] is now:
                looks.add(op)
            elif op.name != "get" and x.vars[0] in versions:
                return False
        for region in blocks_of(op):
            own = [(a, z) for a, z in zip(op.accs, op.inits) if a in versions] if type(op) is Loop else []
            if any(z is not now for _, z in own):
                return False
            if not in_turn(region, own[0][0] if own else now, versions, looks):
                return False
        now = next((v for v in x.vars if v in versions), now)
    return True


def walk(block: Block, loops: tuple[Loop, ...], at: tuple[int, ...]) -> Iterator[tuple[Prim, Place]]:
    """The primitives of a loop's body: in which loops inside of it each stands, and where."""
    inside = len(at) > len(loops)  # in a branch
    for k, x in enumerate(block.binds):
        here = at if inside else (*at, k)
        if type(x.op) is Prim:
            yield x.op, (loops, here)
        for region in blocks_of(x.op):
            yield from walk(region, (*loops, x.op) if type(x.op) is Loop else loops, here)


def leaf_of(bind: Bind, n: int) -> tuple[tuple[Loop, ...], Atom, Block] | None:
    """What loops inside one another remember in each iteration as their result ``n``, a number or a row: the loops, it,
    and the block that makes it. They stack it, or store it in memory that was there for nothing else."""
    op: Loop = bind.op  # type: ignore[assignment]
    x: Atom = op.body.results[n]
    if n < len(op.accs):
        acc = op.accs[n]
        store = next((y.op for y in op.body.binds if x in y.vars), None)
        if type(store) is not Prim or store.name != "update" or store.args[:-1] != (acc, op.index):
            return None
        if count_uses(op.body, acc) > 1 or count_uses(op.body, x) > 1:
            return None
        x = store.args[-1]
    if type(x) is not Var:
        return None
    inner = next((y for y in op.body.binds if x in y.vars), None)
    if inner is None or type(inner.op) is not Loop:
        return (op,), x, op.body
    found = leaf_of(inner, inner.vars.index(x))
    return None if found is None else ((op, *found[0]), *found[1:])


class Settled(Rebuild):
    """What is read of what is remembered, read of the tables. ``looking``: it only finds which of the places hold what
    all reads ask for."""

    def __init__(
        self, builder: Builder, found: dict[Var, list[Kept]], integers: dict[Var, Prim], looking: bool = False
    ) -> None:
        super().__init__(builder)
        self.found, self.integers, self.looking = found, integers, looking
        self.held: dict[Var, set[int]] = {}

    def prim(self, op: Prim, var: Var) -> Atom:
        several = self.found.get(op.args[0]) if op.name == "get" else None  # type: ignore[arg-type]
        if several is not None and self.looking:
            good = {k for k, kept in enumerate(several) if self.stays(kept, op.args[1:])}
            self.held[op.args[0]] = self.held.get(op.args[0], good) & good  # type: ignore[index, arg-type]
        elif several is not None:
            self.b.fired("settled")
            (kept,) = several
            subscripts = [self.b.affine_value(self.moved(a)) for a in self.element(kept, op.args[1:])]
            return self.b.get(self.atom(kept.last), *subscripts, hint=var.name, given=var.given)
        return super().prim(op, var)

    def affine(self, a: Atom) -> Affine:
        return with_factors(affine_in(a, self.integers), self.integers)

    def element(self, kept: Kept, subscripts: Sequence[Atom]) -> list[Affine]:
        """Where in the table the element is that is read of what is remembered."""
        at = [self.affine(s) for s in subscripts]
        depth = len(kept.levels)
        found = []
        for a in map(self.affine, kept.place):
            for loop, e in zip(kept.levels, at):
                step = a[1].get(loop.index, 0)
                a = affine_add(affine_add(a, (0, {loop.index: 1}), -step), e, step)
            found.append(a)
        return [*found, *at[depth:]]

    def stays(self, kept: Kept, subscripts: Sequence[Atom]) -> bool:
        """Whether nothing changes an element after it has been remembered."""
        depth = len(kept.levels)
        if len(subscripts) < depth or len(kept.place) + len(subscripts) - depth != kept.last.type.rank:  # type: ignore
            return False
        place, inside = self.element(kept, subscripts), inner_of(kept.levels[0])
        if any(not inside.isdisjoint(a[1]) for a in place[: len(kept.place)]):
            return False
        times = [self.affine(s) for s in subscripts[:depth]]
        return all(self.spares(kept, change, place, times, inside) for change in kept.changes)

    def spares(
        self, kept: Kept, change: Prim, place: Sequence[Affine], times: Sequence[Affine], inside: set[Var]
    ) -> bool:
        """Whether a change keeps away from an element that was remembered in the iterations ``times``, in all that
        come later: later ones of the outer loop, those of the same that come later in a loop inside, and so on; and
        the rest of that iteration."""
        loops, here = kept.where[kept.look] if kept.look is not None else ((), (-1,))
        around, there = kept.where[change]
        common = next((k for k, (a, b) in enumerate(zip(loops, around)) if a is not b), min(len(loops), len(around)))
        levels = (kept.levels[0], *around)
        cases = [(d, True) for d in range(common + 1)]
        if change is not kept.look and there[common] >= here[common]:
            cases.append((common, False))
        changed = [self.affine(a) for a in change.args[1:-1]]
        pairs = list(zip(directions(changed), directions(place[: len(changed)])))
        return all(any(self.apart(a, at, levels, times, *case, inside) for a, at in pairs) for case in cases)

    def apart(
        self,
        changed: Affine,
        at: Affine,
        levels: Sequence[Loop],
        times: Sequence[Affine],
        depth: int,
        later: bool,
        inside: set[Var],
    ) -> bool:
        """Whether a change keeps to one side of a place, in the iterations ``times`` of the loops down to
        ``depth``, or the ``later`` ones of the last of them, and in all of those inside."""
        for side in (1, -1):
            a = changed
            for k in range(len(levels) - 1, -1, -1):
                step = a[1].get(levels[k].index, 0)
                end: Affine = (0, {})
                if k > depth or k == depth and later:
                    if side * step < 0:
                        end = affine_add(self.affine(levels[k].count), (-1, {}))
                    elif k == depth:
                        end = affine_add(times[k], (1, {}))
                else:
                    end = times[k]
                a = affine_add(affine_add(a, (0, {levels[k].index: 1}), -step), end, step)
            ahead = affine_add((-1, {}), affine_add(a, at, -1), side)
            if inside.isdisjoint(a[1]) and self.b.nonnegative(self.moved(ahead)):
                return True
        return False
