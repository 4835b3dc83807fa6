"""Strength reduction of powers: each is the one before it, multiplied once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import INT, REAL, Atom, Bind, Block, Const, Loop, Prim, Program, Var, all_binds, blocks_of, type_of
from ..program.affine import Affine, affine_add, affine_in, negated, with_factors
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.primitives import WRITTEN
from ..program.rebuild import Rebuild, rebuilt
from .unchanged import inner_of, integers_of


def running_powers(program: Program) -> Program:
    """Goes from the power of one iteration to that of the next by one product.

    ``(ifold (fn [s k] (+ s (* (get c k) (** x k)))) 0.0 n)``  =>
    ``(ifold (fn [#(s p) k] #((+ s (* (get c k) p)) (* p x))) #(0.0 1.0) n)``. Where the exponent goes down, as in
    ``(** x (- n 1 k))``, the powers are made in a table first.
    Design decision: a power with a whole exponent is a product anyway; this one is as exact, for any x. Before
    differentiation too, so that the derivative is one of products. Where all exponents are negative, each is one over
    such a power: products of a reciprocal would be rounded more often. Not where some may be negative, nor for what one
    loop alone makes, whose elements may be for several threads (``power_tables``).
    """
    pass_ = Powers(Builder(), program.body)
    return rebuilt(program, pass_) if pass_.found else program


def running_powers_block(b: Builder, block: Block) -> Block:
    """``running_powers`` for a block under construction."""
    pass_ = Powers(b, block)
    if "running-powers" in b.off or not pass_.found:
        return block
    return tidy(pass_.remade(block))


class Power(NamedTuple):
    """Powers of one number in a loop: in an iteration the exponent is the index, ``step`` times, and ``rest`` more; or
    that is what it is less than 0 by (``under``)."""

    var: Var
    base: Atom
    step: int
    rest: Affine
    under: bool = False


class Powers(Rebuild):
    """``running_powers`` for a block; ``found``: the powers in its loops."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        powers = [x for x in all_binds(block) if type(x.op) is Prim and is_power(x.op)]
        self.found: dict[Loop, list[Power]] = {}
        self.made: dict[Var, Atom] = {}  # what they are in the new program
        self.integers = integers_of(block) if powers else {}
        if powers:
            self.look(block, False)

    def look(self, block: Block, inside: bool) -> None:
        """Find the powers in the loops of a block, which is in another loop or not."""
        for x in block.binds:
            op = x.op
            if type(op) is Loop and op.snapshots is None and not op.index.soft and (inside or op.accs):
                own = inner_of(op)
                found = [p for y in all_binds(op.body) if (p := self.power(y, op.index, own)) is not None]
                if found:
                    self.found[op] = found
            for region in blocks_of(op):
                self.look(region, inside or type(op) is Loop)

    def power(self, x: Bind, index: Var, own: set[Var]) -> Power | None:
        """The power that a binding makes in a loop; of the loop's ``own`` variables only the index is in it."""
        if type(x.op) is not Prim or not is_power(x.op) or x.op.args[0] in own:
            return None
        rest, terms = with_factors(affine_in(x.op.args[1], self.integers), self.integers)
        step = terms.get(index, 0)
        terms = {v: n for v, n in terms.items() if v is not index}
        if not 0 < abs(step) <= WRITTEN or not own.isdisjoint(terms):
            return None
        return Power(x.vars[0], x.op.args[0], step, (rest, terms))

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        powers = self.found.get(op, ())
        b, count, width = self.b, self.atom(op.count), len(op.accs)
        last = affine_add(b.affine(count), (1, {}), -1)
        chains: dict[tuple, list[Power]] = {}  # those that go up: of which number, from which exponent on
        for p in powers:
            p = self.whole(p, count, last)
            if p is not None:
                low = self.least(p, last)
                key = b.key(self.atom(p.base)), p.step, low[0], frozenset(low[1].items())
                chains.setdefault(key, []).append(p)
        if not chains:
            return super().loop(op, bind)
        b.fired("running-powers")
        up = [ps for ps in chains.values() if ps[0].step > 0]
        down = [(ps, self.table(ps[0], count, last)) for ps in chains.values() if ps[0].step < 0]
        starts, steps = [self.first(ps[0], last) for ps in up], [self.step(ps[0]) for ps in up]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            own = accs[width:]
            self.made.update((p.var, self.value(p, own[k])) for k, ps in enumerate(up) for p in ps)
            at = b.affine_value(affine_add(last, b.affine(i), -1)) if down else None
            self.made.update((p.var, self.value(p, b.get(table, at))) for ps, table in down for p in ps)  # type: ignore
            results = self.block(op.body)
            following = [b.prim("*", p, x) for p, x in zip(own, steps)]
            return [*results[:width], *following], results[width:]

        names = [v.name for v in bind.vars]
        span = b.span
        out = b.loop(
            count,
            [*self.atoms(op.inits), *starts],
            body,
            [*names[:width], *["power"] * len(up), *names[width:]],
            op.index.name,
            [*(a.name for a in op.accs), *["power"] * len(up)],
            bool(bind.vars) and bind.vars[0].given,
        )
        b.span = span
        return [*out[:width], *out[width + len(up) :]]

    def whole(self, p: Power, count: Atom, last: Affine) -> Power | None:
        """A power as one whose exponents are never negative, or with one below 0 as one over another one; None where
        neither is known."""
        under = p._replace(step=-p.step, rest=negated(p.rest), under=True)
        with self.b.region() as scope:  # there is one if the loop runs
            scope.facts += self.b.entered(count)
            return next((q for q in (p, under) if self.b.nonnegative(self.least(q, last))), None)

    def least(self, p: Power, last: Affine) -> Affine:
        """The least exponent."""
        return affine_add(self.moved(p.rest), last, min(0, p.step))

    def first(self, p: Power, last: Affine) -> Atom:
        """The power with the least exponent."""
        exponent = self.least(p, last)
        one = exponent == (0, {})
        return Const(1.0, REAL) if one else self.b.prim("**", self.atom(p.base), self.b.affine_value(exponent))

    def step(self, p: Power) -> Atom:
        """What takes a power to the next one."""
        base = self.atom(p.base)
        return base if abs(p.step) == 1 else self.b.prim("**", base, Const(abs(p.step), INT))

    def table(self, p: Power, count: Atom, last: Affine) -> Atom:
        """All powers of a loop, the one with the least exponent first."""
        b, step = self.b, self.step(p)
        start = [self.first(p, last)]
        _, made = b.loop(b.trips(count), start, lambda i, x: ([b.prim("*", x, step)], [x]), ["power", "powers"])
        return made

    def value(self, p: Power, made: Atom) -> Atom:
        """What a power is, of one whose exponent is not negative."""
        return self.b.prim("/", Const(1.0, REAL), made) if p.under else made

    def bind(self, bind: Bind) -> None:
        made = self.made.get(bind.vars[0]) if bind.vars else None
        if made is None:
            self.copy(bind)
        else:
            self.here[bind.vars[0]] = made


def chosen_exponent(e: Atom, made: Mapping[Var, Prim]) -> tuple[Atom | None, Atom]:
    """When the exponent of a partial is 1, and what it is else: x^(e - 1) is x where both x and e are 0."""
    op = made.get(e)  # type: ignore[call-overload]
    if op is None or op.name != "select" or type(op.args[1]) is not Const or op.args[1].value != 1:
        return None, e
    return op.args[0], op.args[2]


def is_power(op: Prim) -> bool:
    """Whether it is one of a real number with an exponent that is an integer, and not known."""
    return op.name == "**" and type_of(op.args[0]) == REAL and type_of(op.args[1]) == INT and type(op.args[1]) is Var
