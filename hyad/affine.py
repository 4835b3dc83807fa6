"""Integers in affine normal form: a constant, and a coefficient for each variable."""

from __future__ import annotations

from .core import Var

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


def negated(a: Affine) -> Affine:
    return -a[0], {v: -k for v, k in a[1].items()}


def affine_key(a: Affine) -> tuple:
    return ("affine", a[0], frozenset((id(v), k) for v, k in a[1].items()))
