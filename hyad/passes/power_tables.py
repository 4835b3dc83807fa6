"""Powers with consecutive exponents: a table of products, and reciprocals of these where exponents are negative."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from ..core import INT, REAL, Atom, Bind, Block, Const, Loop, Prim, Program, Var, all_binds, blocks_of
from ..program.affine import Affine, affine_add, affine_in, affine_key, negated, with_factors
from ..program.builder import Builder
from ..program.rebuild import Rebuild, rebuilt
from .running_powers import chosen_exponent, is_power
from .unchanged import inner_of, integers_of

FEW = 8  # powers of fewer exponents are as soon computed one by one
STEP = 2  # of exponents further apart a table would have too many that nobody reads


def power_tables(program: Program) -> Program:
    """Reads the powers of a loop, whose exponents go from one integer to another, from a table of products.

    ``(build (+ n 1) (fn [k] (** u (- (* 2 k) n))))``  =>  ``p = [1 u u*u ..]``, up to ``n``, first; then
    ``(get p e)``, or ``(/ 1.0 (get p (- e)))`` where ``e`` is negative.
    Design decision: as exact as the power of an integer by itself, a product and, for a negative exponent, a division:
    |e| 2^-53. On a processor only, and where ``running_powers`` has not made each of the one before: loops whose
    iterations are independent stay so, and exponents may be negative here. No table is longer than twice what is read
    of it, or begins with another power than the least one.
    """
    pass_ = Tables(Builder(), program.body)
    return rebuilt(program, pass_) if pass_.found else program


class Power(NamedTuple):
    """A power in a loop. Its exponent is ``step`` times the index and ``rest`` more; but 1 where ``guard`` holds."""

    var: Var
    base: Atom
    exponent: Atom
    step: int
    rest: Affine
    guard: Atom | None


class Range(NamedTuple):
    """A power in the new program: no exponent, or what it is less than 0 by, is below ``low``, or above all of
    ``high``; whether exponents are 0 or more, 0 or less, or both (None)."""

    power: Power
    low: Affine
    high: list[Affine]
    up: bool | None


class Tables(Rebuild):
    """``power_tables`` for a block; ``found``: the powers in its loops."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.found: dict[Loop, list[Power]] = {}
        self.tables: dict[Var, tuple[Atom, Range]] = {}
        if any(type(x.op) is Prim and is_power(x.op) for x in all_binds(block)):
            self.integers = integers_of(block)
            self.look(block)

    def look(self, block: Block) -> None:
        """Find the powers in the loops of a block."""
        for x in block.binds:
            op = x.op
            if type(op) is Loop and op.snapshots is None and not op.index.soft:
                own = inner_of(op)
                found = [p for y in all_binds(op.body) if (p := self.power(y, op.index, own)) is not None]
                if found and not (type(op.count) is Const and op.count.value < FEW):
                    self.found[op] = found
            for region in blocks_of(op):
                self.look(region)

    def power(self, x: Bind, index: Var, own: set[Var]) -> Power | None:
        """The power that a binding makes in a loop; of the loop's ``own`` variables only the index is in it."""
        if type(x.op) is not Prim or not is_power(x.op) or x.op.args[0] in own:
            return None
        base, exponent = x.op.args
        guard, exponent = chosen_exponent(exponent, self.integers)
        rest, terms = with_factors(affine_in(exponent, self.integers), self.integers)
        step = terms.get(index, 0)
        terms = {v: n for v, n in terms.items() if v is not index}
        if not 0 < abs(step) <= STEP or not own.isdisjoint(terms):
            return None
        return Power(x.vars[0], base, exponent, step, (rest, terms), guard)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        b = self.b
        alike: dict[tuple, list[Range]] = {}  # those that may have one table
        for p in self.found.get(op, ()):
            r = self.range(p, self.atom(op.count))
            if r is not None:
                alike.setdefault((b.key(self.atom(p.base)), affine_key(r.low)), []).append(r)
        for ranges in alike.values():
            table = self.table(ranges)
            self.tables.update((r.power.var, (table, r)) for r in ranges)
            b.fired("power-tables")
        return super().loop(op, bind)

    def range(self, p: Power, count: Atom) -> Range | None:
        """Which exponents a power in a loop has, if that is known."""
        b = self.b
        runs = b.running(count)
        last = affine_add(b.affine(count) if runs is None else runs, (1, {}), -1)
        low = self.moved(p.rest)
        high = affine_add(low, last, p.step)
        if p.step < 0:
            low, high = high, low
        with b.region() as scope:  # there are some if the loop runs
            scope.facts += b.entered(count)
            for up in (True, False):
                if self.never_below(low, 0):
                    return Range(p, (0, {}) if not low[1] and low[0] < FEW else low, [high], up)
                low, high = negated(high), negated(low)
            around = self.never_below(high, -FEW) and self.never_below(negated(low), -FEW)
        return Range(p, (0, {}), [high, negated(low)], None) if around else None

    def never_below(self, x: Affine, n: int) -> bool:
        """Whether an integer is no less than ``n``, or twice it no less than twice ``n``."""
        gap = affine_add(x, (n, {}), -1)
        return any(self.b.nonnegative(affine_add((0, {}), gap, k)) for k in (1, 2))

    def table(self, ranges: Sequence[Range]) -> Atom:
        """All powers from the least one on."""
        b, (one, *_) = self.b, ranges
        base, low = self.atom(one.power.base), one.low
        start = Const(1.0, REAL) if low == (0, {}) else b.prim("**", base, b.affine_value(low))
        ends: dict[tuple, Affine] = {}
        for end in (end for r in ranges for end in r.high):
            key = affine_key((0, end[1]))
            ends[key] = max(ends.get(key, end), end, key=lambda e: e[0])
        lengths = [b.affine_value(affine_add(affine_add(end, low, -1), (1, {}))) for end in ends.values()]
        count = b.trips(reduce(lambda m, n: b.prim("max", m, n), lengths))
        _, made = b.loop(count, [start], lambda i, p: ([b.prim("*", p, base)], [p]), ["power", "powers"])
        return made

    def bind(self, bind: Bind) -> None:
        if not bind.vars or bind.vars[0] not in self.tables:
            self.copy(bind)
            return
        b, (table, r) = self.b, self.tables[bind.vars[0]]
        e = self.atom(r.power.exponent)
        distance = b.prim("abs", e) if r.up is None else e if r.up else b.prim("neg", e)
        value = b.get(table, b.prim("-", distance, b.affine_value(r.low)))
        if not r.up:
            one_over = b.prim("/", Const(1.0, REAL), value)
            value = one_over if r.up is False else b.select(b.prim("<", e, Const(0, INT)), one_over, value)
        if r.power.guard is not None:
            value = b.select(self.atom(r.power.guard), self.atom(r.power.base), value)
        self.here[bind.vars[0]] = value
