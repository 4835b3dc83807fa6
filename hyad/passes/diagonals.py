"""What the elements on one diagonal of a matrix cost: a choice by the indices is decided there."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from math import inf

from ..core import INT, Atom, Const, If, Loop, Op, Prim, Var, all_binds, blocks_of, type_of
from ..program.affine import Affine, affine_add, negated
from ..program.loops import CHEAP, Use
from ..program.primitives import PRIMITIVES
from .tables import affine_of

COMPARE = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def diagonals_cost(op: Loop, uses: Sequence[tuple[int, Use]], sums: dict[Var, Prim], costs: Mapping[Var, int]) -> float:
    """What an element of a matrix costs, at most, if each reading of ``uses`` goes along a diagonal, and choices in an
    element are decided by how far that is from the main one; else infinite, as where an element takes a loop, or more
    than a few additions and is computed for several readings.

    ``(get m i (+ i 1))``, where ``m`` is ``(build [n n] (fn [i j] (if (= (abs (- i j)) 1) (f i) (g i j))))``, is
    ``(f i)``. ``op`` is the loop over rows, ``sums`` are integers that subscripts are made of, and ``costs`` of arrays
    what an element costs.
    """
    rows = {v: (x.op, k) for x in op.body.binds if type(x.op) is Loop for k, v in enumerate(x.vars)}
    read: set[tuple[int, int]] = set()
    most: float = 0
    for k, use in uses:
        columns, j = rows.get(op.body.results[k], (None, 0))  # type: ignore[call-overload]
        if columns is None or columns.accs or not use.loops:
            return inf
        row, column = (affine_of(a, sums, set(sums), set()) for a in use.subscripts[:2])  # type: ignore[index]
        if row is None or column is None or use.loops[-1].index not in row[1]:
            return inf
        offset, terms = affine_add(column, row, -1)
        if terms:
            return inf
        cost = OnDiagonal(op, columns, offset, costs).cost(columns.body.results[j])
        if cost > CHEAP and (k, offset) in read:
            return inf
        read.add((k, offset))
        most = max(most, cost)
    return most


class OnDiagonal:
    """The elements on one diagonal: what the indices decide there, and what else an element costs."""

    def __init__(self, rows: Loop, columns: Loop, offset: int, costs: Mapping[Var, int]) -> None:
        self.made: dict[Atom, tuple[Op, int]] = {}
        for block in (rows.body, columns.body):
            self.made.update((v, (x.op, k)) for x in all_binds(block) for k, v in enumerate(x.vars))
        own = {rows.index: 1}
        self.integers: dict[Atom, Affine | None] = {rows.index: (0, own), columns.index: (offset, own)}
        self.costs = costs
        self.counted: set[Atom] = set()

    def integer(self, a: Atom) -> Affine | None:
        """An integer as a sum of multiples of the row's index and of what is given."""
        if type(a) is Const:
            return int(a.value), {}
        if a not in self.integers:
            self.integers[a] = self.sum_of(a)  # type: ignore[arg-type]
        return self.integers[a]

    def sum_of(self, v: Var) -> Affine | None:
        op, _ = self.made.get(v, (None, 0))
        if op is None:
            return 0, {v: 1}
        if type(op) is not Prim or op.name not in ("+", "-", "neg", "abs"):
            return None
        parts = [self.integer(a) for a in op.args]
        if any(p is None for p in parts):
            return None
        if op.name == "abs":  # type: ignore[union-attr]
            constant, terms = parts[0]  # type: ignore[misc]
            return None if terms else (abs(constant), {})
        if len(parts) == 1:
            return negated(parts[0])  # type: ignore[arg-type]
        return affine_add(*parts, 1 if op.name == "+" else -1)  # type: ignore[arg-type,union-attr,misc]

    def holds(self, cond: Atom) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        if type(cond) is Const:
            return bool(cond.value)
        op, _ = self.made.get(cond, (None, 0))
        if type(op) is not Prim:
            return None
        if op.name == "not":
            known = self.holds(op.args[0])
            return None if known is None else not known
        if op.name in ("and", "or"):
            sides = [self.holds(a) for a in op.args]
            decides = op.name == "or"
            return decides if decides in sides else None if None in sides else not decides
        if op.name not in COMPARE or any(type_of(a) != INT for a in op.args):
            return None
        one, other = map(self.integer, op.args)
        constant, terms = affine_add(one, other, -1) if one is not None and other is not None else (0, {None: 1})
        return None if terms else COMPARE[op.name](constant, 0)

    def side(self, op: If | Prim, k: int) -> Atom | None:
        """What a choice gives; None where it is not decided."""
        known = self.holds(op.cond if type(op) is If else op.args[0])  # type: ignore[union-attr]
        if known is None:
            return None
        return blocks_of(op)[not known].results[k] if type(op) is If else op.args[1 if known else 2]  # type: ignore

    def is_constant(self, a: Atom) -> bool:
        """Whether a number is one that a builder computes."""
        op, k = self.made.get(a, (None, 0))
        if type(op) is If or type(op) is Prim and op.name == "select":
            a = self.side(op, k)  # type: ignore[assignment]
            return a is not None and self.is_constant(a)
        return type(a) is Const or type(op) is Prim and op.name in PRIMITIVES and all(map(self.is_constant, op.args))

    def cost(self, a: Atom) -> float:
        """What it takes to compute a number, but for what has been counted; infinite where that takes a loop."""
        op, k = self.made.get(a, (None, 0))
        if op is None or a in self.counted:
            return 0
        self.counted.add(a)
        if type(op) is If or type(op) is Prim and op.name == "select":
            side = self.side(op, k)
            if side is not None:
                return self.cost(side)
            if type(op) is If:
                return 1 + sum(self.cost(a) for a in (op.cond, *(arm.results[k] for arm in blocks_of(op))))
            return 1 + sum(map(self.cost, op.args))
        if type(op) is not Prim:
            return inf
        if self.is_constant(a):
            return 0
        if op.name == "get":
            own: float = self.costs.get(op.args[0], 1)  # type: ignore[arg-type]
        elif op.name not in PRIMITIVES:
            return inf
        else:
            own = 0 if type_of(a) == INT else PRIMITIVES[op.name].cost
        return own + sum(map(self.cost, op.args))
