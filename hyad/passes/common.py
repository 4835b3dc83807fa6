"""Sums of products that differentiation makes, some of which have factors in common: those are multiplied once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from ..core import Atom, Bind, Block, Const, Prim, Program
from .terms import Forms, Product, Sum, Sums, Term, Writer, cost, put_together

Kernel = frozenset[tuple[Product, float]]  # what is left of terms without what they have in common


def common_factors(program: Program) -> Program:
    """Takes what terms of a derivative's sum have in common out of them, if that is less work.

    ``(+ s (- (* r d) (* (* q d) r)))``  =>  ``(+ s (* (* (- 1 q) r) d))``: where ``d`` is the tangent in one of many
    directions, all but the last product is that of the others, too, and computed once. Rules of a ring, ``e1 e2 + e1
    e3 = e1 (e2 + e3)`` (dF~ Fig. 8c).

    Design decision: after ``monomials``, which knows powers, for sums of differentiation's own (``Bind.soft``) with
    what is computed for nothing but them; a product that is there anyway is one number. Where it is fewer operations,
    and fewer as well on a processor that multiplies and adds in one. The bound of roundings stays: what is cancelled in
    a bracket was cancelled before, between products that had been rounded once more. A bracket may overflow where its
    products by a small number did not. As for ``open_brackets``, a sum of two numbers that may be exact stays one.
    """
    return put_together(program, Common)


class Common(Sums):
    """One block. ``met``: of how many sums a kernel is a part, beside each of the factors that it has there."""

    def __init__(self, block: Block, makers: dict[Atom, Prim], counts: dict[Atom, int]) -> None:
        super().__init__(block, makers, counts, opened=True)
        self.met: Counter[tuple[Kernel, Atom]] = Counter()
        seen: set[Atom] = set()
        for x in reversed(block.binds):
            if self.is_sum(x) and x.vars[0] not in seen:
                forms, total = self.forms(x)
                seen |= forms.opened()
                if total is not None:
                    self.meet(total)

    def forms(self, x: Bind) -> tuple[Forms, Sum | None]:
        """A sum as one of products; None for what stays one number."""
        v = x.vars[0]
        forms = Forms(self, self.cone(v), v, False)
        return forms, None if v in forms.whole else forms.of(v)

    def meet(self, total: Sum) -> None:
        common, inner, rest = taken_out(total)
        if common:
            k = kernel(inner)
            self.met.update((k, a) for a in set(common))
            self.meet(inner)
            self.meet(rest)

    def product(self, a: Atom) -> tuple[Product, float]:
        """A product that is there anyway is one number; not so a multiple of a number."""
        op = self.makers.get(a)
        if op is None or op.name == "*" and type(op.args[0]) is not Const:
            return (a,), 1.0
        return super().product(a)

    def root(self, x: Bind) -> None:
        """Write the sum ``x`` with what its terms have in common in front of brackets, if that is less."""
        forms, total = self.forms(x)
        if total is not None and taken_out(total)[0]:
            writer = Brackets(self, forms.cone, x)
            result = writer.sum(total)
            before = {w: self.makers[w] for w in forms.cone}
            after = {w: self.makers[w] for w in writer.kept} | {y.vars[0]: y.op for y in writer.binds}
            if writer.cost < sum(map(cost, before.values())) and fused(after) - writer.shared < fused(before):  # type: ignore
                return self.replace(x, writer, result)
        self.done |= forms.opened()


def taken_out(total: Sum) -> tuple[Product, Sum, Sum]:
    """What most terms of a sum have in common, those terms without it, and the other terms; () if nothing."""
    most = Counter(a for key in total for a in dict.fromkeys(key)).most_common(1)
    if not most or most[0][1] < 2:
        return (), {}, total
    first = most[0][0]
    inner = {key: t for key, t in total.items() if first in key}
    common = Counter(next(iter(inner)))
    for key in inner:
        common &= Counter(key)
    left = {tuple((Counter(key) - common).elements()): Term(t.factor) for key, t in inner.items()}
    return tuple(common.elements()), left, {key: t for key, t in total.items() if first not in key}


def kernel(inner: Sum) -> Kernel:
    """Equal for the same terms, and for their opposites."""
    sign = math.copysign(1.0, next(iter(inner.values())).factor)
    return frozenset((key, sign * t.factor) for key, t in inner.items())


def fused(ops: Mapping[Atom, Prim]) -> int:
    """What operations cost where a product and a sum of it are one."""
    sums = [op for op in ops.values() if op.name in ("+", "-")]
    return sum(map(cost, ops.values())) - sum(any(a in ops and ops[a].name == "*" for a in op.args) for op in sums)


class Brackets(Writer):
    """Writes a sum with what terms have in common in front of brackets. ``shared``: of ``cost``, what other sums pay
    that have the same bracket."""

    sums: Common
    shared = 0.0

    def terms(self, total: Sum) -> list[tuple[float, float, Atom]]:
        common, inner, rest = taken_out(total)
        if not common:
            return super().terms(total)
        met, key, before = self.sums.met, kernel(inner), self.cost
        factors = sorted(common, key=lambda a: -met[key, a])  # that which the sums do not share is the last one
        k = min(abs(t.factor) for t in inner.values())
        if any(abs(t.factor) != k for t in inner.values()):
            k = 1.0
        sign = -1.0 if all(t.factor < 0 for t in inner.values()) else 1.0
        made = self.sum({key: Term(t.factor / (sign * k)) for key, t in inner.items()})
        if met[key, factors[0]] > 1:
            made, k = self.times(k, made), 1.0
        for a in factors:
            self.shared += (self.cost - before) * (1 - 1 / max(1, met[key, a]))
            before = self.cost
            made = self.emit("*", made, self.keep(a))
        return [(sign, k, made), *self.terms(rest)]
