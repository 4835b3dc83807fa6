"""Arithmetic: the primitives on numbers and, element by element, on arrays.

Arrays are combined as NumPy broadcasts them: one of lower rank with each row of the others. What the specialiser and
the builder know of sizes is checked here, what only a run knows becomes a ``Check``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import BOOL, REAL, TRUE, Arr, Atom, Const, Var, elem_of, integer, is_one, type_of
from ..errors import ModelTypeError, truth_hint
from ..program.advice import call_hint
from ..program.builder import wider
from ..program.primitives import CHAINED, COMPARISONS, FURTHER, ORDERED, PRIMITIVES
from ..program.reader import prelude
from ..program.values import Spans, Value, describe
from .annotations import arity_text
from .arguments import arity, blamed, facts_at, operand

if TYPE_CHECKING:
    from .specialise import Specialiser


def arithmetic(sp: Specialiser, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """A primitive on numbers, or element by element on arrays of one shape."""
    row = PRIMITIVES[name]
    atoms = [operand(sp, name, a, s) for a, s in zip(args, spans or (None,) * len(args))]
    if name == "-" and len(atoms) == 1:
        name, row = "neg", PRIMITIVES["neg"]
    if name == "/" and len(atoms) == 1:
        atoms.insert(0, integer(1))
    spans = spans if len(spans) == len(atoms) else (None,) * len(atoms)
    if name in ORDERED and len(atoms) == 1:  # as in Hy: nothing is out of order
        combine(sp, name, atoms * 2, None, spans * 2)  # which refuses what has no order
        return TRUE
    if name in COMPARISONS and len(atoms) > 2:
        pairs = [combine(sp, name, atoms[k : k + 2], None, spans[k : k + 2]) for k in range(len(atoms) - 1)]
        result = pairs[0]
        for p in pairs[1:]:
            result = combine(sp, "and", [result, p], None, ())
        return result
    if name == "**" and len(atoms) > 2:
        for k in range(len(atoms) - 2, 0, -1):
            last = k == len(atoms) - 2
            atoms[k] = combine(sp, name, atoms[k : k + 2], None, (spans[k], spans[k + 1] if last else None))
        atoms, spans = atoms[:2], (spans[0], None)
    elif name in CHAINED | FURTHER and len(atoms) > 2:
        for k, x in enumerate(atoms[1:-1], 1):
            atoms[0] = combine(sp, name, [atoms[0], x], None, (spans[0] if k == 1 else None, spans[k]))
        atoms, spans = [atoms[0], atoms[-1]], (None, spans[-1])
    elif name in ("min", "max") and len(atoms) == 1 and isinstance(type_of(atoms[0]), Arr):
        return sp.call(prelude(f"a{name}"), atoms, spans, var)  # type: ignore[arg-type, return-value]
    elif name in ("+", "*", "min", "max") and len(atoms) == 1:
        return atoms[0]
    elif name in ("+", "*") and not atoms:
        return integer(0 if name == "+" else 1)
    if name in ORDERED and not atoms:
        raise ModelTypeError(f"`{name}` takes at least 1 argument, not 0", sp.b.span)
    if len(atoms) != len(row.params):
        raise ModelTypeError(arity_text(name, len(row.params), len(atoms)), sp.b.span, call_hint(name))
    return combine(sp, name, atoms, var, spans)


def combine(sp: Specialiser, name: str, atoms: list[Atom], var: Var | None, spans: Spans) -> Atom:
    """A primitive of its number of operands: each a number or an array. ``var`` names the result."""
    b = sp.b
    hint, given = (var.name, var.given) if var is not None else (None, False)
    arrays = [a for a in atoms if isinstance(type_of(a), Arr)]
    if sp.library is not None and b.plain and all(type(a) is Const and a.type != REAL for a in atoms):
        known = b.fold(name, *atoms)  # type: ignore[arg-type]
        if known is not None:  # ranks, and recursion on them, are for now
            return known
    if arrays:
        rows_fit(sp, arrays, name, [s for a, s in zip(atoms, spans) if isinstance(type_of(a), Arr)])
        return b.elementwise(lambda *xs: combine(sp, name, list(xs), None, spans), *atoms, hint=hint)
    if name == "**" and type(atoms[1]) is Const and type_of(atoms[1]) == REAL and float(atoms[1].value).is_integer():
        if abs(atoms[1].value) < 2**31:
            atoms = [atoms[0], integer(int(atoms[1].value))]
    if PRIMITIVES[name].result(tuple(type_of(a) for a in atoms)) is None:
        kinds = " and ".join(describe(a) for a in atoms)
        hint, notes = truth_hint(name, kinds), facts_at(atoms, spans)
        raise ModelTypeError(f"`{name}` does not work on {kinds}", b.span, hint, notes)
    return b.prim(name, *atoms, hint=hint, given=given)


def same_shape(sp: Specialiser, arrays: Sequence[Atom], name: str, spans: Spans = ()) -> None:
    """Arrays that must have one shape."""
    more = "; a tuple, `#(a b)`, holds any, as `concatenate` takes it" if name == "[...]" else ""
    first, name = type_of(arrays[0]), blamed(sp, name)
    for k, other in enumerate(arrays[1:], 1):
        t = type_of(other)
        if t.rank != first.rank or not all(
            sp.b.require_equal(d, e, f"the arrays in `{name}` have different shapes")
            for d, e in zip(first.dims, t.dims)
        ):
            notes = facts_at([arrays[0], other], [spans[0], spans[k]]) if len(spans) == len(arrays) else ()
            raise ModelTypeError(
                f"`{name}` of {describe(arrays[0])} and {describe(other)}",
                sp.b.span,
                "the shapes must be equal" + more,
                notes,
            )


def rows_fit(sp: Specialiser, arrays: Sequence[Atom], name: str, spans: Spans = ()) -> None:
    """Arrays are combined element by element; one of lower rank with each row, and row of rows, of the others, and
    along an axis whose size is known to be 1 the one row with all of the others'."""
    whole = max(arrays, key=lambda a: type_of(a).rank)
    message = f"the arrays in `{blamed(sp, name)}` have different shapes"
    for k in range(1, type_of(whole).rank + 1):
        sizes = [type_of(a).dims[-k] if type_of(a).rank >= k else None for a in arrays]
        size = wider(sizes)
        for a, n in zip(arrays, sizes):
            if n is None or is_one(n) or sp.b.require_equal(size, n, message):
                continue
            widest = arrays[next(j for j, m in enumerate(sizes) if m is size)]
            one, other = (a, widest) if arrays[0] is a else (widest, a)
            same = type_of(one).rank == type_of(other).rank
            hint = "the shapes must be equal" if same else "each row must have the shape of the other"
            at = [spans[arrays.index(x)] for x in (one, other)] if len(spans) == len(arrays) else ()
            notes = facts_at([one, other], at)
            text = f"`{blamed(sp, name)}` of {describe(one)} and {describe(other)}"
            raise ModelTypeError(text, sp.b.span, hint, notes)


def negation(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(not p)``."""
    arity(sp, "not", args, 1)
    a = args[0]
    if not isinstance(a, (Const, Var)) or elem_of(a) != BOOL:
        raise ModelTypeError(f"`not` of {describe(a)}", sp.b.span, "`not` takes a truth value")
    return combine(sp, "not", [a], None, ())
