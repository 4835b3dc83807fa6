"""Square roots in place of powers: ``(** x 1.5)`` as a product."""

from __future__ import annotations

import math

from ..core import INT, REAL, Atom, Bind, Const, If, Prim, Program, Var, all_binds, real
from ..program.builder import Builder
from ..program.primitives import WRITTEN
from ..program.rebuild import Rebuild, rebuilt


def roots(program: Program) -> Program:
    """Writes powers with an odd number of halves as exponent as products with a square root, and takes the root of zero
    where a branch saves a derivative from that.

    ``(** x 1.5)``  =>  ``(* x (sqrt x))``; ``(** x -2.5)``  =>  ``(/ 1.0 (* (** x 2) (sqrt x)))``; ``(if (= x 0) 0.0
    (sqrt x))``, the length of a vector  =>  ``(sqrt x)``, where x is not -0: no branch, and a vector in a loop.
    Design decision: after differentiation, whose rule for a power is exact at zero, and where its own square root is
    then shared. As exact as a whole power, which is products, too: within one unit in the last place for each factor.
    The same at zeros of either sign, at inf, and NaN below 0.
    """
    found = any(halves(x.op) or root_or_zero(x.op) for x in all_binds(program.body))
    return rebuilt(program, Roots(Builder())) if found else program


def halves(op: object) -> float | None:
    """The exponent of a power that is a whole number and a half."""
    c = op.args[1] if type(op) is Prim and op.name == "**" else None
    if type(c) is not Const or c.type != REAL or not abs(c.value) <= WRITTEN:
        return None
    return c.value if (2 * c.value) % 2 == 1 else None


def root_or_zero(op: object) -> Atom | None:
    """A number of which a branch gives the root, and 0 where the condition holds; None where it does not."""
    if type(op) is not If or op.then.binds or len(op.then.results) != 1 or len(op.orelse.binds) != 1:
        return None
    (zero,), (root,) = op.then.results, op.orelse.binds
    if zero != real(0.0) or math.copysign(1.0, zero.value) < 0 or op.orelse.results != root.vars:  # type: ignore
        return None
    return root.op.args[0] if type(root.op) is Prim and root.op.name == "sqrt" else None


class Roots(Rebuild):
    def bind(self, bind: Bind) -> None:
        x = root_or_zero(bind.op)
        b = self.b
        if x is not None and no_minus_zero(b, self.atom(x)):
            test = b.definitions.get(self.atom(bind.op.cond))  # type: ignore[union-attr, arg-type]
            if test is not None and test.name == "=" and set(test.args) == {self.atom(x), real(0.0)}:
                b.fired("roots")
                self.here[bind.vars[0]] = b.prim("sqrt", self.atom(x), hint=bind.vars[0].name, given=bind.vars[0].given)
                return
        self.copy(bind)

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
