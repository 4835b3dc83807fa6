"""Partial derivatives of primitives, built from the table's s-expressions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from ..core import BOOL, INT, ONE, REAL, ZERO, Atom, Bind, Const, Prim, Var, type_of
from ..passes.roots import square_root
from ..program.builder import Builder
from ..program.primitives import PRIMITIVES, Primitive, parse_partial

HALF = Const(0.5, REAL)


class Partials:
    """The partials of one application ``y = (name args ...)``, each built at its first use.

    Where all of them are fractions over one denominator, as a quotient's are, the division is done once for all:
    ``product`` gives ``ȳ ∂y/∂x_k``, ``combine`` the sum of ``∂y/∂x_k ẋ_k``. The slopes by the parameters ``steep`` may
    be infinite where ȳ is 0 because nothing took y (``left_out``), or ẋ_k because nothing moves x_k (``resting``); the
    product is 0 there.
    """

    __slots__ = ("builder", "row", "names", "made", "denominator", "quotient", "steep")

    def __init__(
        self, builder: Builder, row: Primitive, args: tuple[Atom, ...], y: Atom, steep: Collection[int] = ()
    ) -> None:
        self.builder, self.row, self.steep = builder, row, steep
        self.names = dict(zip(row.params, args), y=y)
        self.made: dict[int, Atom] = {}
        self.denominator = common_denominator(row) if len(args) > 1 else None
        self.quotient: Atom | None = None

    def __getitem__(self, k: int) -> Atom:
        """The partial by parameter ``k``, or its numerator where there is a common denominator."""
        if k not in self.made:
            form = parse_partial(self.row.partials[k])
            self.made[k] = build_partial(
                self.builder, form if self.denominator is None else numerator(form), self.names
            )
        return self.made[k]

    def product(self, y_bar: Atom, k: int, hint: str | None = None) -> Atom:
        b = self.builder
        if self.row.name == "pass-on":
            return b.prim("pass-on", *((y_bar, self[k]) if k == 0 else (self[k], y_bar)), hint=hint)
        if self.denominator is not None:
            if self.quotient is None:
                self.quotient = self.over(y_bar)
            y_bar = self.quotient
        partial = self[k]
        if k in self.steep:
            return b.prim("pass-on", y_bar, partial, hint=hint)
        chosen = self.chosen(y_bar, partial)
        if chosen is not None:
            return chosen
        op = b.definitions.get(partial) if type(partial) is Var and not partial.given else None
        if (
            op is not None and op.name == "*" and type(op.args[0]) is Const
        ):  # (* c x): scale last, and c x is needed once
            if type(y_bar) is Const:
                return b.prim("*", b.prim("*", y_bar, op.args[0]), op.args[1], hint=hint)
            return b.prim("*", op.args[0], b.prim("*", y_bar, op.args[1]), hint=hint)
        return b.prim("*", y_bar, partial, hint=hint)

    def combine(self, moving: Sequence[tuple[int, Atom]], hint: str | None, given: bool) -> Atom:
        b, total = self.builder, ZERO
        whole = self.denominator is None
        for k, dot in moving:
            name, factors = "*", (self[k], dot)
            if self.row.name == "pass-on":
                name, factors = "pass-on", (dot, self[k]) if k == 0 else (self[k], dot)
            elif whole and k in self.steep:
                name, factors = "pass-on", (dot, self[k])
            term = self.chosen(dot, self[k]) if name == "*" else None
            if term is None:
                term = b.prim(name, *factors, hint=hint if whole and total is ZERO else None, given=given and whole)
            if total is ZERO:
                total = term
                continue
            last = [scope.binds[-1] if scope.binds else None for scope in b.scopes]
            total = b.prim("+", total, term, hint=hint if whole else None, given=given and whole)
            total = up_to_sign(b, total, last)
        return total if whole else self.over(total, hint, given)

    def chosen(self, x: Atom, partial: Atom) -> Atom | None:
        """``x`` times a partial that is 1 or 0 by a condition: ``x`` or 0, even if ``x`` is infinite."""
        b = self.builder
        op = b.definitions.get(partial) if type(partial) is Var else None
        if op is None or op.name != "select" or any(type(a) is not Const for a in op.args[1:]):
            return None
        cond, *factors = op.args
        if sorted(a.value for a in factors) != [0, 1]:  # type: ignore[union-attr]
            return None
        return b.select(cond, *(x if a.value else ZERO for a in factors))  # type: ignore[union-attr]

    def over(self, x: Atom, hint: str | None = None, given: bool = False) -> Atom:
        """``x`` divided by the denominator: times its reciprocal, which can be shared and leave a loop. The pass
        ``divide`` makes a division again of what stays alone."""
        b = self.builder
        reciprocal = b.prim("/", ONE, build_partial(b, self.denominator, self.names))
        if self.steep:
            return b.prim("pass-on", x, reciprocal, hint=hint)
        return b.prim("*", x, reciprocal, hint=hint, given=given)


def up_to_sign(b: Builder, tangent: Atom, last: Sequence[Bind | None]) -> Atom:
    """A tangent ``y - x`` where ``x - y`` is at hand, or ``x + y`` beside ``-x - y``, as its negative: the same up to
    the sign of a zero. It was made just now: ``last`` is the last binding of each scope before."""
    op = b.definitions.get(tangent) if type(tangent) is Var else None
    if op is None or op.name not in ("+", "-") or b.plain:
        return tangent
    new = (s for s, before in zip(b.scopes, last) if s.binds and s.binds[-1] is not before)
    home = next((s for s in new if s.binds[-1].vars[0] is tangent), None)
    if home is None:
        return tangent
    twin = opposite(b, op)
    if twin is None or twin is tangent:  # x - x is its own negative
        return tangent
    home.binds.pop()  # or it would be found at hand itself
    home.shared.pop(b.prim_key(op.name, op.args), None)
    return b.prim("neg", twin)


def opposite(b: Builder, op: Prim) -> Atom | None:
    """What is at hand and minus ``op``, a sum or a difference, up to the sign of a zero."""
    x, y = op.args
    if op.name == "+":
        return b.shared(("-neg", *b.prim_key("+", (x, y))[1:]))  # -x - y
    minus = b.definitions.get(x) if type(x) is Var else None
    found = b.shared(b.prim_key("-", (y, x)))
    if found is None and minus is not None and minus.name == "neg":
        found = b.shared(b.prim_key("+", (minus.args[0], y)))
    return found


@cache
def common_denominator(row: Primitive) -> Any:
    """The denominator that all partials of a row are fractions over, or None."""
    bottoms = set()
    for text in row.partials:
        form = parse_partial(text) if text is not None else None
        while isinstance(form, tuple) and form[0] == "neg":
            form = form[1]
        if not (isinstance(form, tuple) and form[0] == "/"):
            return None
        bottoms.add(form[2])
    return bottoms.pop() if len(bottoms) == 1 else None


def numerator(form: Any) -> Any:
    return ("neg", numerator(form[1])) if form[0] == "neg" else form[1]


def build_partial(b: Builder, form: Any, names: dict[str, Atom]) -> Atom:
    """Build a parsed partial; its numbers are soft."""
    if isinstance(form, str):
        return names[form]
    if isinstance(form, (int, float)):
        return b.number(form, soft=True)
    head, *args = form
    atoms = [build_partial(b, a, names) for a in args]
    numbers = [(a, f) for a, f in zip(atoms, args) if type_of(a) != BOOL]
    if any(type_of(a) == INT for a, _ in numbers) and all(type_of(a) == INT or isinstance(f, int) for a, f in numbers):
        atoms = [whole(a) for a in atoms]  # beside an integer a whole number is one
    if head in PRIMITIVES and PRIMITIVES[head].result(tuple(type_of(a) for a in atoms)) is None:
        atoms = [whole(a) for a in atoms]  # an order or exponent is an integer
    if head == "select":
        return b.select(*atoms)
    if head == "**" and not b.plain and atoms[1] == HALF and type_of(atoms[0]) == REAL:
        return square_root(b, atoms[0])
    return b.prim(head, *atoms)


def whole(a: Atom) -> Atom:
    if type(a) is Const and a.type == REAL and float(a.value).is_integer():
        return Const(int(a.value), INT, a.soft)
    return a
