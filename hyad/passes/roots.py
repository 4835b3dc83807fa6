"""Square roots in place of powers: ``(** x 1.5)`` as a product."""

from __future__ import annotations

import math

from ..core import INT, REAL, Atom, Const, Prim, Program, Var, all_binds
from ..program.builder import Builder
from ..program.primitives import WRITTEN
from ..program.rebuild import Rebuild, rebuilt


def roots(program: Program) -> Program:
    """Writes powers with an odd number of halves as exponent as products with a square root.

    ``(** x 1.5)``  =>  ``(* x (sqrt x))``; ``(** x -2.5)``  =>  ``(/ 1.0 (* (** x 2) (sqrt x)))``.
    Design decision: after differentiation, whose rule for a power is exact at zero, and where its own square root is
    then shared. As exact as a whole power, which is products, too: within one unit in the last place for each factor.
    The same at zeros of either sign, at inf, and NaN below 0.
    """
    return rebuilt(program, Roots(Builder())) if any(halves(x.op) for x in all_binds(program.body)) else program


def halves(op: object) -> float | None:
    """The exponent of a power that is a whole number and a half."""
    c = op.args[1] if type(op) is Prim and op.name == "**" else None
    if type(c) is not Const or c.type != REAL or not abs(c.value) <= WRITTEN:
        return None
    return c.value if (2 * c.value) % 2 == 1 else None


class Roots(Rebuild):
    def prim(self, op: Prim, var: Var) -> Atom:
        c = halves(op)
        if c is None:
            return super().prim(op, var)
        b, x, whole = self.b, self.atom(op.args[0]), int(abs(c))
        b.fired("roots")
        # where it is multiplied by an odd power, the root of a negative zero makes a positive one of it
        root = b.prim("sqrt", x, hint=var.name if c == 0.5 else None) if whole % 2 else square_root(b, x)
        power = x if whole == 1 else b.prim("**", x, Const(whole, INT)) if whole else None
        product = root if power is None else b.prim("*", power, root, hint=var.name)
        return b.prim("/", Const(1.0, REAL), product, hint=var.name) if c < 0 else product


def square_root(b: Builder, x: Atom) -> Atom:
    """``(** x 0.5)`` as a square root, which takes less and goes in vectors: the same at a zero of either sign, at inf,
    and NaN below 0; at -inf, where the power is inf, NaN as there."""
    return b.prim("sqrt", x if no_minus_zero(b, x) else b.prim("+", x, Const(0.0, REAL)))


def no_minus_zero(b: Builder, x: Atom, depth: int = 8) -> bool:
    """Whether a number is known not to be -0."""
    if type(x) is Const:
        return math.copysign(1.0, x.value) > 0 or x.value != 0
    op = b.definitions.get(x)
    if op is None or not depth:
        return False
    if op.name == "*":
        return op.args[0] == op.args[1]
    if op.name == "+":  # only -0 and -0 give -0
        return any(no_minus_zero(b, a, depth - 1) for a in op.args)
    return op.name in ("abs", "exp", "hypot") or op.name == "sqrt" and no_minus_zero(b, op.args[0], depth - 1)
