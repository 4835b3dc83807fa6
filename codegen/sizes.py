"""Sizes as polynomials in what the caller of a function knows: its dims and its integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from hyad.core import (
    INT,
    Atom,
    Const,
    Prim,
    Program,
    Var,
)
from hyad.passes.checks import leading

MAX_TERMS, MAX_DEGREE = 16, 8  # sizes are polynomials no bigger than this


@dataclass(frozen=True)
class Quotient:
    """``terms // by`` of a size that is not negative and a positive number: a symbol of sizes."""

    terms: tuple[tuple[tuple[Any, ...], int], ...]
    by: int


@dataclass(frozen=True)
class Extreme:
    """The ``min`` or ``max`` of two sizes: a symbol of sizes."""

    name: str
    a: tuple[tuple[tuple[Any, ...], int], ...]
    b: tuple[tuple[tuple[Any, ...], int], ...]


Symbol = Union[Var, Quotient, Extreme]
Size = dict[tuple[Symbol, ...], int]  # monomial -> coefficient; the number itself stands at ()


class Sizes:
    """Int variables as polynomials in what the caller knows: the named dims and the Int parameters.

    ``exact`` is the value, ``bound`` an upper bound without a negative term (a loop's index stands for its count), for
    room in the workspace. A variable in neither is not known before the call.
    """

    def __init__(self, program: Program):
        self.order: dict[Symbol, int] = {}
        self.exact: dict[Var, Size] = {}
        self.bound: dict[Var, Size] = {}
        self.dims = set(program.dims)
        self.indices: set[Var] = set()  # of loops: never negative
        self.linear: dict[Var, Size] = {}  # values in which loop indices stand for themselves
        for v in (*program.dims, *program.params):
            if v.type == INT:
                self.order[v] = len(self.order)
                self.exact[v] = self.bound[v] = {(v,): 1}
        self.same = leading(program)  # sizes found equal before anything else is done: one stands for all
        for found in self.same.values():
            for size, other in found.items():
                self.exact[size] = self.bound[size] = self.value(other)

    @staticmethod
    def value(a: Atom) -> Size:
        """A size as it stands."""
        if isinstance(a, Const):
            return {(): int(a.value)} if a.value else {}
        return {(a,): 1}

    def atom(self, a: Atom, table: dict[Var, Size]) -> Size | None:
        if isinstance(a, Const):
            if not math.isfinite(a.value):
                return None
            value = int(a.value)
            value = max(value, 0) if table is self.bound else value
            return {(): value} if value else {}
        return table.get(a)

    def _add(self, a: Size, b: Size, sign: int = 1) -> Size:
        total = dict(a)
        for k, c in b.items():
            total[k] = total.get(k, 0) + sign * c
        return {k: c for k, c in total.items() if c}

    def _multiply(self, a: Size, b: Size) -> Size:
        product: Size = {}
        for ka, ca in a.items():
            for kb, cb in b.items():
                key = tuple(sorted((*ka, *kb), key=self.order.__getitem__))
                product[key] = product.get(key, 0) + ca * cb
        return {k: c for k, c in product.items() if c}

    def define(self, var: Var, op: Prim) -> None:
        """Note an Int variable's definition, where it is a sum, difference, product, quotient, minimum or maximum."""
        for table in (self.exact, self.bound):
            args = [self.atom(a, table) for a in op.args]
            value: Size | None = None
            if len(args) == 2 and op.name == "min" and table is self.bound:
                value = args[0] if args[0] is not None else args[1]
            elif None in args:
                continue
            elif op.name == "+" and len(args) == 2:
                value = self._add(args[0], args[1])
            elif op.name == "*" and len(args) == 2:
                value = self._multiply(args[0], args[1])
            elif op.name == "-" and len(args) == 2:
                value = self._add(args[0], args[1], -1) if table is self.exact else args[0]
                if table is self.bound and not self._known_positive(op.args[1]):
                    continue
            elif op.name == "%" and table is self.bound and isinstance(op.args[1], Const) and op.args[1].value > 0:
                value = {(): op.args[1].value - 1} if op.args[1].value > 1 else {}
            elif op.name == "max" and table is self.bound:
                value = self._add(args[0], args[1])
            elif op.name in ("//", "%") and isinstance(op.args[1], Const) and op.args[1].value > 0:
                terms, by = args[0], op.args[1].value
                if all(c > 0 and all(s in self.dims for s in k) for k, c in terms.items()):
                    value = self._symbol(Quotient(self._ordered(terms), by))
                    if op.name == "%":  # what is left
                        value = self._add(terms, self._multiply(value, {(): by}), -1)
            elif op.name in ("min", "max"):
                value = self._symbol(Extreme(op.name, *map(self._ordered, args)))
            if value is not None and len(value) <= MAX_TERMS and all(len(k) <= MAX_DEGREE for k in value):
                table[var] = value
        if op.name in ("+", "-", "*") and len(op.args) == 2:
            a, b = (self.in_indices(x) for x in op.args)
            if a is not None and b is not None:
                made = self._multiply(a, b) if op.name == "*" else self._add(a, b, 1 if op.name == "+" else -1)
                if len(made) <= MAX_TERMS and all(len(k) <= MAX_DEGREE for k in made):
                    self.linear[var] = made
                    high = self.highest(made)
                    if high is not None and var not in self.exact:
                        self.bound[var] = high

    def in_indices(self, a: Atom) -> Size | None:
        """An integer as a polynomial in sizes and loop indices."""
        if isinstance(a, Const):
            return self.value(a)
        if a in self.indices:
            self.order.setdefault(a, len(self.order))
            return {(a,): 1}
        return self.linear.get(a) or self.exact.get(a)

    def highest(self, size: Size) -> Size | None:
        """An upper bound of such a polynomial: an index is at most its count where it adds, and nothing where it
        takes away; None where an Int parameter, whose sign is not known, takes away."""
        total: Size = {}
        for symbols, c in size.items():
            if c < 0:
                if not all(s in self.indices or s in self.dims for s in symbols):
                    return None
                if not symbols:
                    total = self._add(total, {(): c})
                continue
            term: Size = {(): c}
            for s in symbols:
                factor = self.bound.get(s) if s in self.indices else {(s,): 1}
                if factor is None:
                    return None
                term = self._multiply(term, factor)
            total = self._add(total, term)
        if total.get((), 0) < 0:  # a bound has no negative term
            total = {k: c for k, c in total.items() if k}
        return total

    def either(self, var: Var, atoms: Sequence[Atom]) -> None:
        """Note an Int that is one of several."""
        if var.type != INT:
            return
        sizes = [self.atom(x, self.bound) for x in atoms]
        if None not in sizes:
            self.bound[var] = {k: max(s.get(k, 0) for s in sizes) for k in dict.fromkeys(k for s in sizes for k in s)}

    def _ordered(self, size: Size) -> tuple[tuple[tuple[Any, ...], int], ...]:
        return tuple(sorted(size.items(), key=lambda t: [self.order[s] for s in t[0]]))

    def _symbol(self, symbol: Symbol) -> Size:
        self.order.setdefault(symbol, len(self.order))
        return {(symbol,): 1}

    def _known_positive(self, a: Atom) -> bool:
        if isinstance(a, Const):
            return a.value >= 0
        if a in self.indices:
            return True
        size = self.exact.get(a)
        return size is not None and all(c > 0 and all(s in self.dims for s in k) for k, c in size.items())

    def product(self, dims: Iterable[Atom], table: dict[Var, Size]) -> Size | None:
        """The number of elements of an array, or None where it is not known before the call."""
        total: Size = {(): 1}
        for d in dims:
            factor = self.atom(d, table)
            if factor is None:
                return None
            total = self._multiply(total, factor)
        return total
