"""What a loop stacks of a table that it fills in order: the table as it is in the end."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Arr, Atom, Bind, Const, Loop, Prim, Program, Var, all_binds
from ..program.affine import Affine, affine_add, affine_in
from ..program.builder import Builder
from ..program.loops import array_uses
from ..program.rebuild import Rebuild, rebuilt
from .unchanged import Course, inner_of, integers_of


def settled(program: Program) -> Program:
    """What is remembered of a table before each iteration of a loop that fills it in order is the table itself, where
    rows are read that the iteration and all later ones leave as they are.

    ``(loop n (fn [i a] .. [(update a (+ c i) x) a]) z) .. (get s t j)``  =>  ``(get a' j)``, where s is what was
    stacked of a, a' what a is after the loop, and j below c + t; so it is with (- c i), and j above c - t.
    Design decision: before ``narrow``, which stacks one row in place of the table: what reads several, or one in a
    branch, would remember the square of it.
    """
    integers = integers_of(program.body)
    found = {s: t for x in all_binds(program.body) for s, t in tables(x, integers).items()}
    uses = array_uses(program.body) if found else {}
    found = {s: t for s, t in found.items() if s in uses and all(len(u.subscripts or ()) > 1 for u in uses[s])}
    if not found:
        return program
    look = Settled(Builder(), found, integers)
    rebuilt(program, look)
    for s in look.others:
        del found[s]
    return rebuilt(program, Settled(Builder(), found, integers, look.others)) if found else program


@dataclass(frozen=True, slots=True)
class Table:
    """A table after the loop that fills it, and the rows that iterations change: each this far from a multiple of the
    loop's index."""

    last: Var
    rows: tuple[tuple[Affine, int], ...]


def tables(bind: Bind, integers: dict[Var, Prim]) -> dict[Var, Table]:
    """The stacks of a loop that hold, for each iteration, a table as it was before."""
    op = bind.op
    found: dict[Var, Table] = {}
    if type(op) is not Loop or op.snapshots is not None:
        return found
    width = len(op.accs)
    for k, a in enumerate(op.accs):
        stacks = [n for n in range(width, len(op.body.results)) if op.body.results[n] is a]
        if not stacks or not isinstance(a.type, Arr):
            continue
        course = Course({a})
        goes = course.goes(op.body)
        if goes is None or [n for n in goes if n < width] != [k] or not course.changes:
            continue
        rows = {row_of(op, change.args[1], integers) for change in course.changes}
        if None not in rows:
            places = tuple(((c, dict(terms)), step) for c, terms, step in rows)  # type: ignore[misc]
            found.update((bind.vars[n], Table(bind.vars[k], places)) for n in stacks)
    return found


def row_of(op: Loop, at: Atom, integers: dict[Var, Prim]) -> tuple[int, frozenset, int] | None:
    """A subscript as a multiple of the loop's index and what it has beside, which no iteration changes."""
    constant, terms = with_factors(affine_in(at, integers), integers)
    step = terms.get(op.index, 0)
    rest = {v: n for v, n in terms.items() if v is not op.index}
    return (constant, frozenset(rest.items()), step) if step and inner_of(op).isdisjoint(rest) else None


def with_factors(affine: Affine, integers: dict[Var, Prim]) -> Affine:
    """The same where multiples by a number have been looked into, too: indices that count down are made so."""
    total: Affine = (affine[0], {})
    for v, n in affine[1].items():
        op = integers.get(v)
        inner: Affine = (0, {v: 1})
        if op is not None and op.name == "*" and type(op.args[0]) is Const:
            n *= op.args[0].value
            inner = with_factors(affine_in(op.args[1], integers), integers)
        total = affine_add(total, inner, n)
    return total


class Settled(Rebuild):
    """Reads of stacks as reads of the tables. Without ``others`` it only looks: those are the stacks of which something
    else is read."""

    def __init__(
        self, builder: Builder, found: dict[Var, Table], integers: dict[Var, Prim], others: set[Var] | None = None
    ) -> None:
        super().__init__(builder)
        self.found, self.integers = found, integers
        self.looking = others is None
        self.others: set[Var] = set() if others is None else others

    def prim(self, op: Prim, var: Var) -> Atom:
        table = self.found.get(op.args[0]) if op.name == "get" else None  # type: ignore[arg-type]
        if table is not None and self.looking:
            if not all(self.apart(row, step, *op.args[1:3]) for row, step in table.rows):
                self.others.add(op.args[0])  # type: ignore[arg-type]
        elif table is not None:
            self.b.fired("settled")
            return self.b.get(self.atom(table.last), *self.atoms(op.args[2:]), hint=var.name, given=var.given)
        return super().prim(op, var)

    def apart(self, row: Affine, step: int, t: Atom, j: Atom) -> bool:
        """Whether the row that an iteration changes, and those of the iterations after it, lie beyond one."""
        here = affine_add(row, affine_in(t, self.integers), step)
        sign = 1 if step > 0 else -1
        ahead = affine_add((-1, {}), affine_add(here, affine_in(j, self.integers), -1), sign)
        return self.b.nonnegative(self.moved(ahead))
