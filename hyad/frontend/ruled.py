"""Values with derivatives of their own: ``(ruled f jvp vjp x ...)`` and ``(constant f x ...)``.

The calls of a rule are made when its value is differentiated: ``forward`` asks a ``Rule`` for the tangent, ``reverse``
for the adjoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core import BOOL, REAL, Atom, Var, elem_of, type_of
from ..errors import DerivativeError, ModelTypeError
from ..program.values import Closure, Function, Spans, Value, captures, describe, flatten, unflatten
from .annotations import parameters
from .arguments import function_arg, operand

if TYPE_CHECKING:
    from .specialise import Specialiser


def ruled(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(ruled f jvp vjp x ...)``: ``(f x ...)``, differentiated by rule.

    ``(jvp x ... y dx ...)`` gives the tangent, ``(vjp x ... y ct)`` the adjoints: of the first arguments, as
    many as ``jvp`` takes tangents. What the rules call may have rules in turn, so that derivatives nest.
    """
    hint = "`(ruled f jvp vjp x)`: jvp takes x, the result and dx; vjp takes x, the result and its cotangent"
    if len(args) < 4:
        raise ModelTypeError("ruled takes a function, two rules and the function's arguments", sp.b.span, hint)
    f, jvp, vjp = (function_arg(sp, a, "ruled", s) for a, s in zip(args[:3], spans))
    count = len(args) - 3
    known = parameters(jvp)
    moving = count if known is None else len(known) - count - 1
    if not 0 < moving <= count or any(isinstance(r, Closure) and captures(r) for r in (jvp, vjp)):
        raise ModelTypeError("these rules do not fit the function", sp.b.span, f"{hint}; and nothing else")
    atoms = [operand(sp, "ruled", a, s) for a, s in zip(args[3:], spans[3:])]
    atoms[:moving] = map(sp.b.reals, atoms[:moving])
    with sp.b.as_written():  # the same where a rule asks for it: it is computed once
        y = sp.call(f, [stopped(sp, a) for a in atoms], (None,) * count, var)
    y = operand(sp, "ruled", sp.look(y), None)
    if elem_of(y) != REAL:
        raise ModelTypeError(f"`ruled` of a function that gives {describe(y)}", sp.b.span, "it gives reals")
    return sp.b.ruled(Rule(sp, jvp, vjp, moving), y, atoms, var.name if var is not None else None)


def constant_of(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(constant f x ...)``: what ``f`` gives, without derivatives."""
    if not args:
        raise ModelTypeError("constant takes a function and its arguments", sp.b.span, "`(constant f x)`")
    fn = function_arg(sp, args[0], "constant", spans[0])
    return sp.call(fn, [stopped(sp, a) for a in args[1:]], (None,) * (len(args) - 1), var)


def stopped(sp: Specialiser, value: Value) -> Value:
    """A value that is a constant to every derivative."""
    atoms, tree = flatten(sp.held(value), sp.b.span)
    return unflatten(tree, iter([sp.b.stop(a) for a in atoms]))


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The derivatives of a ``ruled`` value: functions, and how many arguments they are about."""

    sp: Specialiser
    jvp: Function
    vjp: Function
    moving: int

    def tangent(self, args: Sequence[Atom], y: Atom, dots: Sequence[Atom]) -> Atom:
        """The tangent of ``y`` for those of the operands."""
        (dot,) = self.apply(self.jvp, [*args, y, *dots], [y])
        return dot

    def adjoints(self, args: Sequence[Atom], y: Atom, y_bar: Atom) -> list[Atom]:
        """The adjoints of the operands for that of ``y``."""
        return self.apply(self.vjp, [*args, y, y_bar], args[: self.moving])

    def apply(self, rule: Function, given: Sequence[Atom], like: Sequence[Atom]) -> list[Atom]:
        """What a rule gives of ``given``, numbers and arrays of the shapes of ``like``: a user's as it is written; the
        prelude's are differentiation's own, and known to fit."""
        sp, span = self.sp, self.sp.b.span
        own = isinstance(rule, Closure) and rule.is_library
        with sp.b.differentiating() if own else sp.b.as_written():
            atoms = flatten(sp.now(sp.call(rule, given, (None,) * len(given), None)), span)[0]
        sp.b.span = span
        if len(atoms) != len(like):
            raise DerivativeError(f"a rule of `ruled` gives {len(atoms)} values, not {len(like)}", span)
        if not own:
            for a, x in zip(atoms, like):
                self.fits(a, x, rule is self.jvp)
        return [sp.b.reals(a) for a in atoms]

    def fits(self, made: Atom, like: Atom, forwards: bool) -> None:
        """Require what a user's rule gives to have the shape of the result, or of an argument."""
        b = self.sp.b
        message = "the adjoints that a rule of `ruled` gives must have the shapes of the arguments"
        message = "the tangent of a `ruled` value must have the value's shape" if forwards else message
        truths = elem_of(made) == BOOL
        dims, wanted = (getattr(type_of(a), "dims", ()) for a in (made, like))
        if truths or len(dims) != len(wanted) or not all(b.require_equal(n, m, message) for n, m in zip(dims, wanted)):
            hint = f"the rule gives {'truth values' if truths else describe(made)}, where {describe(like)} is due"
            raise DerivativeError(message, b.span, hint)
