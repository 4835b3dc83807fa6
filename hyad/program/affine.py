"""Integers in affine normal form: a constant, and a coefficient for each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import Atom, Const, Prim, Var

Affine = tuple[int, dict[Var, int]]  # constant, coefficients (none is 0)


def affine_add(a: Affine, b: Affine, scale: int = 1) -> Affine:
    terms = dict(a[1])
    for v, k in b[1].items():
        total = terms.get(v, 0) + scale * k
        if total:
            terms[v] = total
        else:
            terms.pop(v, None)
    return a[0] + scale * b[0], terms


def affine_in(a: Atom, integers: Mapping[Var, Prim]) -> Affine:
    """An integer of a finished program in affine normal form, as its sums and differences, ``integers``, make it."""
    if type(a) is Const:
        return a.value, {}
    op = integers.get(a)  # type: ignore[arg-type]
    if op is not None and op.name in ("+", "-"):
        x, y = (affine_in(arg, integers) for arg in op.args)
        return affine_add(x, y, 1 if op.name == "+" else -1)
    return 0, {a: 1}  # type: ignore[dict-item]


def with_factors(affine: Affine, integers: Mapping[Var, Prim]) -> Affine:
    """The same where multiples by a number and negations have been looked into: indices that count down are made so."""
    total: Affine = (affine[0], {})
    for v, n in affine[1].items():
        op = integers.get(v)
        inner: Affine = (0, {v: 1})
        if op is not None and op.name == "*" and type(op.args[0]) is Const:
            n *= op.args[0].value
            inner = with_factors(affine_in(op.args[1], integers), integers)
        elif op is not None and op.name == "neg":
            n = -n
            inner = with_factors(affine_in(op.args[0], integers), integers)
        total = affine_add(total, inner, n)
    return total


def never_equal(one: Sequence[Affine | None], two: Sequence[Affine | None]) -> bool:
    """Whether two places of an array differ by a number in one of their subscripts; None for one that is not known."""
    gaps = [affine_add(x, y, -1) for x, y in zip(one, two) if x is not None and y is not None]
    return any(constant and not terms for constant, terms in gaps)


def furthest(a: Affine, most: bool, counts: Mapping[Var, Affine]) -> Affine:
    """The most, or the least, that an integer is in loops, whose indices and counts are ``counts``, outermost first."""
    for v, count in reversed(counts.items()):
        step = a[1].get(v, 0)
        end = affine_add(count, (-1, {})) if (step > 0) is most else (0, {})
        a = affine_add(affine_add(a, (0, {v: 1}), -step), end, step)
    return a


def directions(place: Sequence[Affine]) -> list[Affine]:
    """An element's place along each axis, then across and along the diagonals of each two: what lies apart in one of
    these are different elements."""
    pairs = [(a, b, sign) for k, b in enumerate(place) for a in place[:k] for sign in (-1, 1)]
    return [*place, *(affine_add(b, a, sign) for a, b, sign in pairs)]


def negated(a: Affine) -> Affine:
    return -a[0], {v: -k for v, k in a[1].items()}


def affine_key(a: Affine) -> tuple:
    return ("affine", a[0], frozenset((id(v), k) for v, k in a[1].items()))
