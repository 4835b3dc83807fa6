"""Rows that a loop reads of the array that it changes, and leaves as they are by a condition, copied before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import BOOL, INT, REAL, Arr, Atom, Block, If, Loop, Prim, Var, all_binds, blocks_of, type_of
from ..program.affine import affine_add, affine_in, negated
from ..program.builder import Builder
from ..program.loops import loops_in
from ..program.rebuild import Rebuild
from .unchanged import Course, differ, inner_of, integers_of

#: The conditions of the branches around an operation, and whether they hold there.
Conditions = tuple[tuple[Atom, bool], ...]


def spared_block(b: Builder, block: Block) -> Block:
    """Copies, before a loop, a row that the loop reads of the array that it changes, where a condition says that what
    it changes is another row.

    ``(ifold (fn [a i] (if (!= i k) (ifold (fn [a j] (update a i j (f (get a i j) (get a k j)))) a n) a)) z n)``  =>
    the same with ``(get r j)`` in place of ``(get a k j)``, where ``r = (build n (fn [j] (get z k j)))``.
    Design decision: before differentiation alone, which remembers the row once then, and not in each iteration. Rows
    that differ whatever the condition says are left to ``settled``, which reads them where they are.
    """
    if "spared" in b.off or not any(type(x.op) is If for x in all_binds(block)):
        return block
    pass_ = Spared(b, block)
    made = pass_.remade(block)
    return made if pass_.found else block


class Spared(Rebuild):
    """``spared_block`` for a block."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.integers = integers_of(block)
        self.tests = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == BOOL}
        self.copies: dict[Prim, tuple[Atom, int]] = {}  # for what reads a row: its copy, and the row's subscripts
        self.found = False

    def loop(self, op: Loop, bind) -> Sequence[Atom]:
        for k, acc in enumerate(op.accs):
            if isinstance(acc.type, Arr) and acc.type.elem == REAL and op.body.results[k] is not acc:
                self.copied(op, k)
        return super().loop(op, bind)

    def prim(self, op: Prim, var: Var) -> Atom:
        if op not in self.copies:
            return super().prim(op, var)
        copy, depth = self.copies[op]
        rest = self.atoms(op.args[1 + depth :])
        return self.b.get(copy, *rest, hint=var.name, given=var.given) if rest else copy

    def copied(self, op: Loop, k: int) -> None:
        """Copy the rows of an accumulator that no iteration of a loop changes; numbers, where all subscripts are the
        same in all iterations."""
        course = Course({op.accs[k]})
        if op.snapshots is not None or course.goes(op.body) != [k] or not course.looks:
            return
        inside, z, t = inner_of(op), self.atom(op.inits[k]), op.accs[k].type
        again = {x.op for inner in loops_in(op.body) for x in all_binds(inner.body)}
        around = dict(changes(op.body, ()))
        made: dict[tuple[Atom, ...], Atom] = {}
        for look in course.looks:
            subscripts = look.args[1:]
            depth = next((n for n, s in enumerate(subscripts) if s in inside), len(subscripts))
            if not depth or depth < t.rank and look not in again and depth < len(subscripts):  # type: ignore[union-attr]
                continue
            row = self.atoms(subscripts[:depth])
            if self.apart(course, look, depth, inside, around) and self.b.in_range(z, row):
                if row not in made:
                    made[row] = self.row_of(z, row)
                self.copies[look] = made[row], depth
                self.found = True

    def row_of(self, z: Atom, at: tuple[Atom, ...]) -> Atom:
        """A copy of what subscripts select of an array."""
        t: Arr = type_of(z)  # type: ignore[assignment]
        if len(at) == t.rank:
            return self.b.get(z, *at)
        return self.b.build(t.dims[len(at)], lambda i: self.row_of(z, (*at, i)))

    def apart(self, course: Course, look: Prim, depth: int, inside: set[Var], around: dict[Prim, Conditions]) -> bool:
        """Whether each change is one of another row, and it takes a condition to say so."""
        row, by_condition = look.args[1 : 1 + depth], False
        for change in course.changes:
            place = change.args[1:-1]
            if not differ(row, place, inside, self.integers):
                if not self.told_apart(row, place, around.get(change, ())):
                    return False
                by_condition = True
        return by_condition

    def told_apart(self, one: Sequence[Atom], other: Sequence[Atom], known: Conditions) -> bool:
        """Whether conditions say that two rows differ in a subscript."""
        todo, gaps = list(known), []
        while todo:
            cond, holds = todo.pop()
            op = self.tests.get(cond)  # type: ignore[call-overload]
            if op is None:
                continue
            if op.name == "not":
                todo.append((op.args[0], not holds))
            elif op.name == ("and" if holds else "or"):
                todo += [(a, holds) for a in op.args]
            elif op.name == ("!=" if holds else "=") and type_of(op.args[0]) == INT:
                gaps.append(self.gap(*op.args))
        pairs = [self.gap(a, b) for a, b in zip(one, other)] if gaps else []
        return any(gap in gaps or negated(gap) in gaps for gap in pairs)

    def gap(self, a: Atom, b: Atom) -> tuple:
        return affine_add(affine_in(a, self.integers), affine_in(b, self.integers), -1)


def changes(block: Block, known: Conditions) -> Iterator[tuple[Prim, Conditions]]:
    """What a block stores and adds in arrays, and on which conditions."""
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name in ("update", "add-at"):
            yield op, known
        elif type(op) is If:
            yield from changes(op.then, (*known, (op.cond, True)))
            yield from changes(op.orelse, (*known, (op.cond, False)))
        else:
            for region in blocks_of(op):
                yield from changes(region, known)
