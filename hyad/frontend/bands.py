"""Which diagonals of a matrix may hold anything but zeros, by the way it was made."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core import (
    BOOL,
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    While,
    elem_of,
    integer,
    rank_of,
    type_of,
)
from ..errors import ModelTypeError
from ..passes.bands import WIDE
from ..program.builder import Builder
from ..program.values import NIL, Spans, TupleValue, Value
from .arguments import arity, blamed, operand
from .symmetry import Expressions, Inside, TooLong

if TYPE_CHECKING:
    from .specialise import Specialiser

#: Functions that are 0 at 0.
KEEP_ZERO = frozenset("abs asin asinh atan atanh cbrt ceil expm1 floor log1p neg real round sign sin sinh sqrt square "
                      "tan tanh trunc".split())  # fmt: skip

Range = tuple[float, float]  # whole numbers from the first to the second, which may be infinite; none if that is less

SMALL = 8  # rows or columns of a matrix that is looked at element by element
SHORT = 16  # elements of one whose products are written out anyway

#: Functions of integers that are known where these are, besides sums and products.
FOLDED = frozenset({"//", "%", "min", "max", "abs"})
#: Conditions by known integers, of those that expressions have.
ORDERS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}

NONE: Range = (math.inf, -math.inf)
ALL: Range = (-math.inf, math.inf)


def band(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(band-of a)``: how many diagonals below and above the main one of the matrix a may hold anything but zeros; nil
    unless both are known numbers, and few of all that it is known to have."""
    low, high = range_of(sp, "band-of", args, spans)
    if low > high:
        low = high = 0
    if not (math.isfinite(low) and math.isfinite(high)):
        return NIL
    below, above = max(0, int(-low)), max(0, int(high))
    sizes = [d.value for d in type_of(args[0]).dims if type(d) is Const]  # type: ignore
    if below + above + 1 >= WIDE or any(2 * (below + above + 1) > n for n in sizes):
        return NIL
    sp.b.fired("banded")
    return TupleValue((Const(below, INT), Const(above, INT)))


def is_lower(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(lower-triangular? a)``: whether the matrix a is known to have zeros above its diagonal."""
    return Const(range_of(sp, "lower-triangular?", args, spans)[1] <= 0, BOOL)


def is_upper(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(upper-triangular? a)``: whether the matrix a is known to have zeros below its diagonal."""
    return Const(range_of(sp, "upper-triangular?", args, spans)[0] >= 0, BOOL)


def note_lower(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(note-lower a)``: the matrix a, of which is known from now on that it has zeros above its diagonal."""
    arity(sp, "note-lower", args, 1)
    a = operand(sp, "note-lower", args[0], spans[0])
    if type(a) is Var:
        sp.lower.add(a)
    return a


def known_zeros(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(known-zeros a)``: the small vector or matrix a as a literal, where an element that is zero by the way it was
    made is a zero that products leave out; a itself where no elements are, few of many, or its sizes are not known."""
    arity(sp, "known-zeros", args, 1)
    a, b = operand(sp, "known-zeros", args[0], spans[0]), sp.b
    if not isinstance(type_of(a), Arr):
        raise ModelTypeError(f"`{blamed(sp, 'known-zeros')}` of a number", sp.b.span, "`*` multiplies by a number")
    sizes = [n.value if type(n) is Const else math.inf for n in type_of(a).dims]  # type: ignore[union-attr]
    if type(a) is not Var or "known-zeros" in b.off or elem_of(a) == BOOL:
        return a
    if len(sizes) > 2 or not all(0 < n <= SMALL for n in sizes):
        return a
    if a not in sp.zeros:
        try:
            sp.zeros[a] = Zeros(b).of(a, sizes)
        except TooLong:
            sp.zeros[a] = set()
    zeros, count = sp.zeros[a], math.prod(sizes)
    if not zeros or 3 * len(zeros) < count > SHORT:
        return a
    b.fired("known-zeros")

    def part(*at: int) -> Atom:
        if len(at) < len(sizes):
            return b.array([part(*at, i) for i in range(sizes[len(at)])])
        return b.number(0, elem_of(a), soft=True) if at in zeros else b.get(a, *map(integer, at))

    return part()


def range_of(sp: Specialiser, name: str, args: list[Value], spans: Spans) -> Range:
    """By how much the second index is more than the first where a matrix may hold anything but zeros."""
    arity(sp, name, args, 1)
    a = operand(sp, name, args[0], spans[0])
    if type(a) is not Var or rank_of(a) != 2 or "banded" in sp.b.off:
        return ALL
    try:
        return Bands(sp.b, sp.lower, sp.ranges).matrix(a, None)
    except TooLong:
        sp.ranges[a] = ALL
        return ALL


def place_of(inside: Inside | None) -> tuple:
    """What tells the iterations apart in which a block is looked into."""
    return () if inside is None else inside.place


def both(x: Range, y: Range) -> Range:
    return max(x[0], y[0]), min(x[1], y[1])


def either(x: Range, y: Range) -> Range:
    """Of two ranges, all that is between as well."""
    if x[0] > x[1]:
        return y
    return x if y[0] > y[1] else (min(x[0], y[0]), max(x[1], y[1]))


def plus(x: Range, y: Range) -> Range:
    """The sums of a number of one range and one of another."""
    return NONE if x[0] > x[1] or y[0] > y[1] else (x[0] + y[0], x[1] + y[1])


class Bands(Expressions):
    """Elements of matrices as expressions of their two indices, and where those are zero.

    ``(build [n n] (fn [i j] (if (= (abs (- i j)) 1) (f i) 0.0)))`` is zero unless ``j - i`` is from -1 to 1.
    A sum is zero where all its terms are, a product where one factor is. A sum of products over ``k``, of which one
    factor is zero unless ``k - i`` is in one range, the other unless ``j - k`` is in another, is zero unless ``j - i``
    is a sum of both. An array that is changed in place is zero where it was before and nothing is put.
    """

    def __init__(self, b: Builder, lower: Collection[Var], known: dict[Var, Range]) -> None:
        super().__init__(b)
        self.lower = lower  # what is known to be lower triangular by the function that made it
        self.known = known  # what was found before of matrices outside of closed loops
        self.ranges: dict[tuple[int, int, int], Range] = {}
        self.sizes: dict[int, int | float] = {}  # the expression of an index: how many there are
        self.arrays: dict[tuple[Var, tuple], Range] = {}
        self.homes: dict[tuple[Var, tuple], Inside | None] = {}
        self.loops = 0

    def matrix(self, a: Atom, inside: Inside | None) -> Range:
        """By how much the second subscript is more than the first where an element of a matrix may not be zero."""
        if type(a) is not Var or a in self.lower:
            return (-math.inf, 0) if a in self.lower else ALL
        if a in self.known:
            return self.known[a]
        bind, home = self.found(a, inside)
        key = a, place_of(inside if bind is None else home)
        if key not in self.arrays:
            self.arrays[key] = ALL
            if bind is not None:
                self.arrays[key] = self.made_in_place(a, bind, home)
            if home is None:
                self.known[a] = self.arrays[key]
        return self.arrays[key]

    def made_in_place(self, a: Var, bind: Bind, home: Inside | None) -> Range:
        """The same by the operation that makes the matrix."""
        op, k = bind.op, bind.vars.index(a)
        if type(op) is Prim and op.name == "zeros":
            return NONE
        if type(op) is Prim and op.name in ("update", "add-at"):
            if len(op.args) != 4:
                return ALL
            return either(self.matrix(op.args[0], home), self.apart(*(self.value(x, home) for x in op.args[1:3])))
        if type(op) is If:
            return either(*(self.matrix(arm.results[k], Inside(arm, home, {})) for arm in (op.then, op.orelse)))
        if type(op) in (Loop, While) and k < len(op.accs):  # type: ignore[union-attr]
            start = self.matrix(op.inits[k], home)  # type: ignore[union-attr]
            return either(start, self.after(op, k, start, home))  # type: ignore[arg-type]
        row, column = self.term("row"), self.term("column")
        element = super().made(bind, k, [row, column], home)
        return ALL if element is None else self.nonzero(element, row, column)

    def after(self, op: Loop | While, k: int, before: Range, home: Inside | None) -> Range:
        """What an iteration leaves of an accumulator of which is known what it was before. Puts into it add the same
        places in every iteration; of what is made of its elements nothing is known."""
        self.loops += 1
        known = {v: self.term("of", self.loops, v) for v in op.accs}
        if type(op) is Loop:
            known[op.index] = self.term("index", self.loops)
            self.sizes[known[op.index]] = op.count.value if type(op.count) is Const else math.inf
        body = Inside(op.body, home, known)
        self.arrays[op.accs[k], body.place] = before
        return self.matrix(op.body.results[k], body)

    def apart(self, row: int, column: int) -> Range:
        """By how much one subscript is more than another, each made of the indices of loops and of sizes."""
        constant, terms = self.linear(column, self.linear(row, (0, {}), -1), 1)
        return plus((constant, constant), self.between(terms))

    def between(self, terms: dict[int, int]) -> Range:
        """What a sum of multiples of expressions is between."""
        low = high = 0.0
        for x, k in terms.items():
            ends = [k * bound for bound in self.bounds(x)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def bounds(self, x: int) -> Range:
        """What is known of an integer: an index is below its count, a size is not negative."""
        kind, *given = self.terms[x]
        if x in self.sizes:
            return 0, self.sizes[x] - 1
        size = kind == "given" and len(given) == 1 and type_of(given[0]) == INT
        return (0, math.inf) if size and self.b.nonnegative(self.b.affine(given[0])) else ALL

    # ------------------------------------------------------------------------------------------ expressions

    def made(self, bind: Bind, k: int, at: Sequence[int], inside: Inside | None) -> int | None:
        """Of an element of a matrix the expression says which it is, and where it is looked up: what of each matrix may
        not be zero is found once."""
        self.homes[bind.vars[k], place_of(inside)] = inside
        return None if len(at) == 2 and rank_of(bind.vars[k]) == 2 else super().made(bind, k, at, inside)

    def linear(self, x: int, total: tuple[int, dict[int, int]], times: int) -> tuple[int, dict[int, int]]:
        """A sum of multiples of expressions with a multiple of an integer expression added to it."""
        kind, *given = self.terms[x]
        if kind == "constant" and given[0] == INT:
            return total[0] + times * int(given[1]), total[1]
        if kind == "neg":
            return self.linear(given[0], total, -times)
        if kind == "*":
            for factor, other in (given, given[::-1]):
                if self.terms[factor][:2] == ("constant", INT):
                    return self.linear(other, total, times * int(self.terms[factor][2]))
        if kind in ("+", "-"):
            return self.linear(given[1], self.linear(given[0], total, times), times if kind == "+" else -times)
        k = total[1].get(x, 0) + times
        return total[0], {**{y: c for y, c in total[1].items() if y != x}, **({x: k} if k else {})}

    def nonzero(self, x: int, p: int, q: int) -> Range:
        """By how much q is more than p where an expression may not be zero."""
        found = self.ranges.get((x, p, q))
        if found is None:
            self.steps += 1
            found = self.ranges[x, p, q] = self.of_term(x, p, q)
        return found

    def of_term(self, x: int, p: int, q: int) -> Range:
        kind, *given = self.terms[x]
        if kind == "constant":
            return NONE if given[1] == "False" or given[0] != BOOL and float(given[1]) == 0 else ALL
        if kind in ("if", "select"):
            cond, *arms = given
            where = self.holding(cond, True, p, q), self.holding(cond, False, p, q)
            return either(*(both(w, self.nonzero(arm, p, q)) for w, arm in zip(where, arms)))
        if kind == "*":
            return both(*(self.nonzero(y, p, q) for y in given))
        if kind in ("/", "**"):
            positive = kind == "/" or self.terms[given[1]][0] == "constant" and float(self.terms[given[1]][2]) > 0
            return self.nonzero(given[0], p, q) if positive else ALL
        if kind in KEEP_ZERO:
            return self.nonzero(given[0], p, q)
        if kind in ("+", "-", "min", "max"):
            return either(*(self.nonzero(y, p, q) for y in given))
        if kind == "fold" and len(given) == 5:
            return self.of_sum(*given, p, q)
        if kind == "given" and len(given) == 4 and isinstance(given[0].type, Arr) and given[0].type.rank == 2:
            return self.of_given(*given, p, q)
        return ALL

    def of_sum(self, folds: int, k: int, count: int, start: int, step: int, p: int, q: int) -> Range:
        """A sum over an index."""
        index, acc = self.term("state", folds, 0), self.term("state", folds, 1)
        kind, *given = self.terms[count]
        size, before = int(given[1]) if kind == "constant" else math.inf, self.sizes.get(index, 0)
        if size > before:  # another sum in the same place may be shorter: what it has found is too narrow here
            self.sizes[index] = size
            self.ranges.clear()
        added = self.added_to(acc, step)
        if added is None:
            return ALL
        found = self.nonzero(start, p, q)
        for x in added:
            through = plus(self.nonzero(x, p, index), self.nonzero(x, index, q))
            found = either(found, both(through, self.nonzero(x, p, q)))
        return found

    def added_to(self, acc: int, x: int) -> list[int] | None:
        """What an iteration may add to an accumulator; None where it does something else."""
        if x == acc:
            return []
        kind, *given = self.terms[x]
        if kind in ("if", "select"):
            sides = [self.added_to(acc, y) for y in given[1:]]
            return None if None in sides else [y for side in sides for y in side]  # type: ignore[union-attr]
        if kind == "+" and acc in given:
            return [y for y in given if y != acc]
        return [given[1]] if kind == "-" and given[0] == acc else None

    def of_given(self, a: Var, place: tuple, row: int, column: int, p: int, q: int) -> Range:
        """An element of another matrix."""
        if (a, place) not in self.homes and (a, place) not in self.arrays:
            return ALL
        low, high = self.arrays.get((a, place)) or self.matrix(a, self.homes[a, place])
        return self.distance(*self.linear(column, self.linear(row, (0, {}), -1), 1), low, high, p, q)

    def holding(self, x: int, true: bool, p: int, q: int) -> Range:
        """By how much q is more than p where a condition may hold, or may not."""
        kind, *given = self.terms[x]
        if kind == "constant":
            return ALL if (given[1] == "True") == true else NONE
        if kind == "if":
            sides = zip((True, False), given[1:])
            return either(*(both(self.holding(given[0], c, p, q), self.holding(arm, true, p, q)) for c, arm in sides))
        if kind == "not":
            return self.holding(given[0], not true, p, q)
        if kind in ("and", "or"):
            meet = both if (kind == "and") == true else either
            return meet(*(self.holding(y, true, p, q) for y in given))
        if kind in ("=", "!="):
            return self.within(*given, 0, 0, p, q) if (kind == "=") == true else ALL
        if kind in ("<", "<="):
            x, y = given if true else given[::-1]
            return self.within(x, y, -math.inf, -1 if (kind == "<") == true else 0, p, q)
        return ALL

    def within(self, x: int, y: int, low: float, high: float, p: int, q: int) -> Range:
        """By how much q is more than p where x - y is from low to high."""
        constant, terms = self.linear(y, self.linear(x, (0, {}), 1), -1)
        size = next((v for v in terms if self.terms[v][0] == "abs"), None)
        if size is None:
            return self.distance(constant, terms, low, high, p, q)
        if len(terms) > 1 or terms[size] not in (1, -1):
            return ALL
        low, high = low - constant, high - constant
        if terms[size] < 0:
            low, high = -high, -low
        inner = self.linear(self.terms[size][1], (0, {}), 1)
        return self.distance(*inner, -high, high, p, q) if high >= 0 else NONE

    def distance(self, constant: int, terms: dict[int, int], low: float, high: float, p: int, q: int) -> Range:
        """The same, where the sum of a constant and of multiples of indices is."""
        least, most = self.between({v: k for v, k in terms.items() if v not in (p, q)})
        low, high = low - constant - most, high - constant - least
        if terms.get(p, 0) + terms.get(q, 0) or terms.get(q, 0) not in (1, -1):
            return ALL
        return (low, high) if terms[q] > 0 else (-high, -low)


class Zeros(Bands):
    """Which elements of a small vector or matrix are zero by the way it was made: subscripts are known numbers."""

    def __init__(self, b: Builder) -> None:
        super().__init__(b, (), {})

    def of(self, a: Var, sizes: Sequence[int]) -> set[tuple[int, ...]]:
        """The subscripts of those elements."""
        index = [self.value(integer(i), None) for i in range(max(sizes))]
        found = set()
        for at in itertools.product(*map(range, sizes)):
            element = self.element(a, [index[i] for i in at], None)
            if self.nonzero(element, -1, -1) == NONE:  # no expression is a row or a column here
                found.add(at)
        return found

    def made(self, bind: Bind, k: int, at: Sequence[int], inside: Inside | None) -> int | None:
        """An element at known subscripts is looked up among those of a literal, and behind what changes others, also in
        the iterations of a loop, from the last one on."""
        op = bind.op
        if type(op) is Prim and op.name == "array" and at:
            place = self.known_integer(at[0])
            there = place is not None and 0 <= place < len(op.args)  # a branch that is not taken may read beside it
            return self.element(op.args[place], at[1:], inside) if there else None  # type: ignore[index]
        if type(op) is If:
            cond, sides = self.value(op.cond, inside), ((op.then, True), (op.orelse, False))
            arms = [arm for arm, true in sides if self.holding(cond, true, -1, -1) != NONE]
            if len(arms) == 1:  # or each iteration of a loop would double what is looked at
                r, arm = arms[0].results[k], Inside(arms[0], inside, {})
                return self.element(r, at, arm) if at else self.value(r, arm)
        if type(op) is Prim and op.name == "update":
            array, *written, x = op.args
            changed = [self.known_integer(self.value(i, inside)) for i in written]
            here = [self.known_integer(i) for i in at[: len(changed)]]
            if None in changed or None in here:
                return None
            return self.element(*((x, at[len(here) :]) if changed == here else (array, at)), inside)
        if type(op) is Loop and k < len(op.accs) and at and type(op.count) is Const and op.count.value <= SMALL:
            count = op.count.value
            if count == 0:
                return self.element(op.inits[k], at, inside)
            before = Bind((*op.accs, *bind.vars[len(op.accs) :]), replace(op, count=integer(count - 1)), bind.span)
            around = Inside(Block((), ()), inside, {})
            around.binds.update((acc, before) for acc in op.accs)
            last = Inside(op.body, around, {op.index: self.value(integer(count - 1), None)})
            return self.element(op.body.results[k], at, last)
        return Expressions.made(self, bind, k, at, inside)

    def applied(self, name: str, args: Sequence[int]) -> int:
        known = [self.known_integer(x) for x in args] if name in FOLDED else [None]
        made = None if None in known else self.b.fold(name, *map(integer, known))  # type: ignore[arg-type]
        return super().applied(name, args) if made is None else self.value(made, None)

    def holding(self, x: int, true: bool, p: int, q: int) -> Range:
        kind, *given = self.terms[x]
        known = [self.known_integer(y) for y in given] if kind in ORDERS else [None]
        if None in known:
            return super().holding(x, true, p, q)
        return ALL if ORDERS[kind](*known) == true else NONE

    def known_integer(self, x: int) -> int | None:
        constant, terms = self.linear(x, (0, {}), 1)
        return None if terms else constant
