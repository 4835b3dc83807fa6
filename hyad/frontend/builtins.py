"""The builtin functions by name, and what a call does with its arguments before.

``builtin`` is where a call of any name of the language goes: derivative operators, primitives and
``BUILTINS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core import Var
from ..errors import DerivativeError
from ..program.values import (
    FUNCTIONS,
    OPERATORS,
    Derived,
    References,
    Spans,
    TupleValue,
    Value,
    Wrt,
    describe,
    is_array,
)
from . import arithmetic, bands, combinators, references, ruled, structures, subscripts, symmetry, typed_forms

if TYPE_CHECKING:
    from .specialise import Specialiser


BUILTINS: dict[str, Callable[..., Value]] = {
    "tuple": structures.tuple_,
    "array": structures.array,
    "get": subscripts.elements,
    "one-index": subscripts.one_index,
    "fst": lambda sp, *given: subscripts.half(sp, "fst", 0, *given),
    "snd": lambda sp, *given: subscripts.half(sp, "snd", 1, *given),
    "len": structures.len_,
    "shape": structures.shape,
    "rank": structures.rank,
    "without-ones": structures.without_ones,
    "constant": ruled.constant_of,
    "ruled": ruled.ruled,
    "build": combinators.build,
    "map": combinators.map_,
    "fold": combinators.fold,
    "ifold": combinators.ifold,
    "scan": combinators.scan,
    "update": subscripts.update,
    "copy": structures.copy,
    "array-of": structures.copy,
    "set-at!": references.set_at,
    "cons": structures.cons,
    "car": lambda sp, *given: subscripts.half(sp, "car", 0, *given),
    "cdr": lambda sp, *given: subscripts.half(sp, "cdr", 1, *given),
    "null?": structures.is_nil,
    "num?": structures.is_number,
    "truths?": structures.are_truths,
    "reals?": structures.are_reals,
    "same-size?": structures.is_same_size,
    "symmetric?": symmetry.is_symmetric,
    "band-of": bands.band,
    "known-zeros": bands.known_zeros,
    "lower-triangular?": bands.is_lower,
    "upper-triangular?": bands.is_upper,
    "note-lower": bands.note_lower,
    "hoisted?": symmetry.is_hoisted,
    "note-result": symmetry.note_result,
    "noted-result": symmetry.noted_result,
    "list": structures.list_,
    "inl": structures.inl,
    "inr": structures.inr,
    "ref": references.ref,
    "deref": references.deref,
    "set!": references.set_,
    "not": arithmetic.negation,
    "loop": typed_forms.loop,
    "iterate": typed_forms.iterate,
    "zeros-of": typed_forms.zeros_of,
    "undef": typed_forms.undef,
    "add-at": typed_forms.add_at,
    "select": typed_forms.select,
    "require-index": lambda sp, args, spans, var: typed_forms.require(sp, "in", args, spans),
    "require-equal": lambda sp, args, spans, var: typed_forms.require(sp, "==", args, spans),
    "require-at-most": lambda sp, args, spans, var: typed_forms.require(sp, "<=", args, spans),
    "require-below": lambda sp, args, spans, var: typed_forms.require(sp, "<", args, spans),
}

#: What takes structures as they are: all else looks into arrays of sizes that only a run knows.
STRUCTURE = frozenset("tuple cons list ref set! deref null? num? truths? reals? inl inr".split())
#: The arguments in which an array that is changed in place is itself, and not what is in it now.
EVERY = range(2**31)
KEEPING = {**dict.fromkeys("tuple cons list ref set! inl inr map fold scan".split(), EVERY), "ifold": (1,)}


def builtin(sp: Specialiser, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """A call of a name of the language."""
    if name in OPERATORS:
        return operator(sp, name, args, spans, var)
    if name == "get" and args and (is_array(args[0]) or isinstance(args[0], References)):
        many = any(subscripts.is_indices(sp.look(a)) for a in args[1:])
        found = None if many else references.row(sp, args, spans)
        if found is not None:
            return found
    if name == "array-of":
        parts = sp.look(args[0]) if len(args) == 1 else None
        if isinstance(parts, TupleValue):
            return builtin(sp, "array", list(parts.items), (None,) * len(parts.items), var)
        name = "copy"
    if name == "array":
        args = list(map(sp.copied, args))
    if name != "set-at!":
        keeps = KEEPING.get(name, ())
        args = [a if k in keeps and is_array(a) else sp.look(a) for k, a in enumerate(args)]
        if name not in STRUCTURE and any(map(sp.boxed_array, args)):
            return sp.with_arrays(args, lambda known: builtin(sp, name, known, spans, None), var)
    handler = BUILTINS.get(name)
    if handler is not None:
        value = handler(sp, args, spans, var)
    else:
        value = arithmetic.arithmetic(sp, name, args, spans, var)
    if sp.facts.mutates and name not in ("get", "fst", "snd", "car", "cdr", "deref"):
        return sp.changeable(value) if type(value) is Var else value
    return value


def operator(sp: Specialiser, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(grad f)``, ``(grad f :wrt x)`` or ``(grad f x ...)``."""
    wrt = None
    if args and isinstance(args[-1], Wrt):
        wrt, args, spans = args[-1].wrt, args[:-1], spans[:-1]
    if not args or not isinstance(args[0], FUNCTIONS) and sp.family_of(args[0]) is None:
        what = describe(args[0]) if args else "nothing"
        place = spans[0] if args and spans and spans[0] else sp.b.span
        raise DerivativeError(f"`{name}` takes a function, not {what}", place, f"`({name} (fn [x] ...))`")
    derived = Derived(name, args[0], wrt)
    return derived if len(args) == 1 else sp.call(derived, args[1:], spans[1:], var)
