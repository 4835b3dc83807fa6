"""A user's own rules: the ``jvp`` or ``vjp`` that ``defprim`` was given, in either mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import (
    INT,
    ONE,
    REAL,
    ZERO,
    Atom,
    type_of,
)
from ..errors import DerivativeError
from ..frontend.annotations import parameters
from ..program.primitives import Primitive
from ..program.values import (
    Closure,
    describe,
    flatten,
    language,
)


def apply_rule(b: Any, row: Primitive, kind: str, given: Sequence[Atom], wanted: int) -> list[Atom]:
    """What the model of a row's own ``jvp`` or ``vjp`` gives for ``given``: ``wanted`` numbers."""
    from ..frontend.specialise import Specialiser
    from ..program.reader import read_model

    rule = row.vjp if kind == "vjp" else row.jvp
    function = rule.hyad_value() if hasattr(rule, "hyad_value") else Closure(read_model(rule), None, language)
    sp = Specialiser()
    sp.b = b
    span = b.span
    takes = parameters(function)
    if takes is not None and len(takes) != len(given):
        after = {"jvp": "then the tangent of each", "vjp": "then the result and its cotangent"}[kind]
        raise DerivativeError(
            f"the {kind} of `{row.name}` takes {len(takes)} argument{'s' * (len(takes) != 1)}, not {len(given)}",
            span,
            f"it takes those of `{row.name}`, {after}",
        )
    with b.as_written():
        value = sp.call(function, given, (None,) * len(given), None)
        atoms, _ = flatten(value, span)
    b.span = span
    if len(atoms) != wanted or any(type_of(a) not in (REAL, INT) for a in atoms):
        numbers = "a number" if wanted == 1 else f"{wanted} numbers"
        raise DerivativeError(f"the {kind} of `{row.name}` gives {describe(value)}, not {numbers}", span)
    return [b.to_real(a) for a in atoms]


def custom_tangents(
    b: Any, row: Primitive, args: Sequence[Atom], y: Atom, dots: Sequence[dict[int, Atom]]
) -> dict[int, Atom]:
    """The tangents, by direction, of a primitive with a rule of its own. A ``vjp`` alone serves as well: the result
    is one number, so that its adjoints for cotangent 1 are the partials."""
    found: dict[int, Atom] = {}
    partials = apply_rule(b, row, "vjp", [*args, y, ONE], len(args)) if row.jvp is None else []
    for d in sorted({d for dot in dots for d in dot}):
        if row.jvp is not None:
            found[d] = apply_rule(b, row, "jvp", [*args, *(dot.get(d, ZERO) for dot in dots)], 1)[0]
        else:
            found[d] = b.sum([b.prim("*", partials[k], dot[d]) for k, dot in enumerate(dots) if d in dot])
    return found


def custom_adjoints(b: Any, row: Primitive, args: Sequence[Atom], y: Atom, y_bar: Atom) -> list[Atom]:
    """The adjoints of the operands of a primitive with a rule of its own; a ``jvp`` is asked for each unit tangent."""
    if row.vjp is not None:
        return apply_rule(b, row, "vjp", [*args, y, y_bar], len(args))
    units = [[ONE if j == k else ZERO for j in range(len(args))] for k in range(len(args))]
    return [b.prim("*", y_bar, apply_rule(b, row, "jvp", [*args, *unit], 1)[0]) for unit in units]
