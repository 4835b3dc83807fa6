"""What an iteration with loops of its own remembers: how much room that needs where these run as often as the iteration
says, and of a matrix the rows and columns that are read again."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    Data,
    Loop,
    Prim,
    Var,
    blocks_of,
    defined_in,
    integer,
    type_atoms,
    type_of,
    with_blocks,
)
from ..passes.copies import changed_by
from ..passes.unchanged import integers_of
from ..program.affine import Affine, affine_in, furthest, with_factors
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.loops import array_uses
from .records import COSTLY, Line, length_of, line_of


def rooms(op: Loop) -> dict[Loop, Affine] | None:
    """For each loop inside of which the count hangs on the iteration, an integer that no such count is above, of what
    is known before ``op``; None where one has no such bound, or an array the size of its iteration.

    Design decision: rows of one length, of which a triangle needs half. Rows of their own lengths would be data, which
    no pass looks into, and memory that is not known before the call.
    """
    bound = {op.index, *op.accs, *defined_in(op.body)}
    integers = integers_of(op.body)
    found: dict[Loop, Affine] = {}

    def affine(a: Atom) -> Affine:
        op = integers.get(a)  # type: ignore[arg-type]
        if perhaps(a):
            return affine(op.args[1])  # type: ignore[union-attr]
        if op is not None and op.name == "max" and op.args[0] == integer(0):  # below zero there is nothing
            a = op.args[1]
        return with_factors(affine_in(a, integers), integers)

    def perhaps(a: Atom) -> bool:
        """Whether a loop with this count runs so often, or not at all."""
        op = integers.get(a)  # type: ignore[arg-type]
        return op is not None and op.name == "select" and op.args[2] == integer(0)

    def known(block: Block, counts: Mapping[Var, Affine]) -> bool:
        for x in block.binds:
            inner = counts
            if any(d in bound for v in x.vars for d in type_atoms(v.type)):
                return False
            if type(x.op) is Loop:
                count = affine(x.op.count)
                if perhaps(x.op.count) or not bound.isdisjoint(count[1]):
                    found[x.op] = furthest(count, True, counts)
                    if not bound.isdisjoint(found[x.op][1]):
                        return False
                inner = {**counts, x.op.index: count}
            if not all(known(region, inner) for region in blocks_of(x.op)):
                return False
        return True

    return found if known(op.body, {op.index: affine(op.count)}) else None


def read_by_rows(b: Builder, scope: Scope, back: Block) -> Block:
    """Backward code that reads rows or columns of the matrices of its forward code, ``scope``, where those would be
    remembered whole: what it reads is copied before the matrix is changed.

    ``(get a i j)``  =>  ``(get r j)``, where ``r = (build m (fn [j] (get a i j)))`` is forward code.
    Design decision: where no more than one element of ``COSTLY`` is read, and it is known before the backward code
    runs where.
    """
    inside = defined_in(back)
    copies: dict[tuple[Atom, Line], Atom] = {}
    for a, seen in array_uses(back).items():
        t = a.type
        if a not in scope.vars or not isinstance(t, Arr) or t.rank < 2 or isinstance(t.elem, Data):
            continue
        lines = dict.fromkeys(line_of(use.subscripts or (), t, inside) for use in seen)
        if any(None not in line or not any(line) for line in lines):
            continue
        if COSTLY * sum(length_of(line, t) for line in lines) > length_of((None,) * t.rank, t):
            continue
        place = next((k for k, x in enumerate(scope.binds) if a in changed_by(x.op)), len(scope.binds))
        late = {v for x in scope.binds[place:] for v in x.vars}
        if any(not late.isdisjoint(line) for line in lines):
            continue
        for line in lines:
            count = len(scope.binds)
            copies[a, line] = copied(b, a, line, ())
            made = scope.binds[count:]
            scope.binds[place:] = [*made, *scope.binds[place:count]]
            place += len(made)
    return of_lines(back, copies, inside) if copies else back


def copied(b: Builder, a: Atom, line: Line, at: tuple[Atom, ...]) -> Atom:
    """A copy of a line of an array, from the subscripts ``at`` on."""
    if len(at) == len(line):
        return b.get(a, *at)
    fixed = line[len(at)]
    if fixed is not None:
        return copied(b, a, line, (*at, fixed))
    return b.build(type_of(a).dims[len(at)], lambda i: copied(b, a, line, (*at, i)))  # type: ignore[union-attr]


def of_lines(block: Block, copies: Mapping[tuple[Atom, Line], Atom], inside: set[Var]) -> Block:
    """A block that reads lines in place of the arrays that they were in."""
    arrays = {a for a, _ in copies}
    binds = []
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name == "get" and op.args[0] in arrays:
            line = line_of(op.args[1:], type_of(op.args[0]), inside)  # type: ignore[arg-type]
            rest = [s for s, fixed in zip(op.args[1:], line) if fixed is None]
            x = Bind(x.vars, Prim("get", (copies[op.args[0], line], *rest)), x.span, x.soft)
        elif regions := blocks_of(op):
            x = Bind(x.vars, with_blocks(op, [of_lines(region, copies, inside) for region in regions]), x.span, x.soft)
        binds.append(x)
    return Block(tuple(binds), block.results)
