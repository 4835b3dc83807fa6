"""Structures: tuples, lists, sums and arrays as they are made, and what is asked of their kind and size.

Each function is a builtin: it takes the specialiser, the arguments, their places and the variable that names the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import BOOL, INT, REAL, Arr, Check, Const, Var, elem_of, integer, type_of
from ..errors import BoundsError, ModelTypeError, NotCompiled
from ..program.data import Inl, Inr
from ..program.reader import prelude
from ..program.values import (
    CLOSED,
    NIL,
    ArrayOfTuples,
    Constructing,
    Spans,
    TupleValue,
    Value,
    describe,
    flatten,
    nothing,
    same_tree,
    unflatten,
)
from .arguments import arity, blamed, facts_at, operand
from .arithmetic import same_shape
from .branches import ask
from .subscripts import shape_of

if TYPE_CHECKING:
    from .specialise import Specialiser


def tuple_(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``#(a b)``."""
    return TupleValue(tuple(args))


def cons(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(cons a l)``."""
    arity(sp, "cons", args, 2)
    return TupleValue(tuple(args), None, tuple)


def list_(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(list a b)``."""
    value: Value = NIL
    for a in reversed(args):
        value = TupleValue((a, value), None, tuple)
    return value


def inl(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(inl a)``: a value of a sum's left side."""
    return sp.construct(Constructing(Inl), args)


def inr(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(inr b)``: a value of a sum's right side."""
    return sp.construct(Constructing(Inr), args)


def array(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``[a b]``: numbers, or arrays of one shape; of functions, a structure that a subscript chooses from."""
    if not args:
        raise ModelTypeError("an array has at least one element", sp.b.span, "`(zeros 0)` has none")
    if all(isinstance(a, TupleValue) for a in args):
        return array_of_tuples(sp, args, spans, var)
    if all(isinstance(a, CLOSED) or sp.gives_function(a) for a in args):
        return TupleValue(tuple(args), None, list)  # known by its elements; a run-time subscript chooses
    atoms = [operand(sp, "[...]", a, s) for a, s in zip(args, spans)]
    arrays = [isinstance(type_of(a), Arr) for a in atoms]
    if any(arrays):
        if not all(arrays):
            pair = [0, arrays.index(not arrays[0])]
            raise ModelTypeError(
                "this array mixes numbers and arrays",
                sp.b.span,
                "all elements have one shape",
                facts_at([atoms[k] for k in pair], [spans[k] for k in pair]),
            )
        same_shape(sp, atoms, "[...]", spans)
    if any(elem_of(a) == REAL for a in atoms):
        atoms = [sp.b.reals(a) for a in atoms]
    if len({elem_of(a) for a in atoms}) > 1:
        pair = [0, next(k for k, a in enumerate(atoms) if elem_of(a) != elem_of(atoms[0]))]
        notes = facts_at([atoms[k] for k in pair], [spans[k] for k in pair])
        raise ModelTypeError("this array mixes numbers and truth values", sp.b.span, None, notes)
    return sp.b.array(atoms, *((var.name, var.given) if var is not None else ()))


def array_of_tuples(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``[#(a b) #(c d)]``: an array for each part."""
    flat = [flatten(sp.now(a), sp.b.span) for a in args]
    if not all(same_tree(flat[0][1], t) for _, t in flat):
        what = "the elements of this array are tuples of different kinds"
        raise NotCompiled(what, sp.b.span, "write a list: `(list f g)`")
    columns = [array(sp, list(column), (None,) * len(args), None) for column in zip(*(a for a, _ in flat))]
    return ArrayOfTuples(unflatten(flat[0][1], iter(columns)), 1)


# ------------------------------------------------------------------------------------- kinds and sizes


def is_nil(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(null? l)``."""
    arity(sp, "null?", args, 1)
    return ask(sp, args[0], lambda v: v is NIL)


def is_number(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(num? x)``."""
    arity(sp, "num?", args, 1)

    def number(v: Value) -> bool:
        return isinstance(v, (Const, Var)) and v is not NIL and type_of(v) in (REAL, INT)

    return ask(sp, args[0], number)


def are_truths(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(truths? a)``: whether a is a truth value, or an array of them."""
    arity(sp, "truths?", args, 1)
    return ask(sp, args[0], lambda v: isinstance(v, (Const, Var)) and v is not NIL and elem_of(v) == BOOL)


def are_reals(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(reals? a)``: whether a is a real, or an array of them."""
    arity(sp, "reals?", args, 1)
    return ask(sp, args[0], lambda v: isinstance(v, (Const, Var)) and v is not NIL and elem_of(v) == REAL)


def is_same_size(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(same-size? n m)``: whether two sizes are known to be equal."""
    arity(sp, "same-size?", args, 2)
    return Const(sp.b.same_int(*(operand(sp, "same-size?", a, s) for a, s in zip(args, spans))), BOOL)


def len_(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(len v)``."""
    arity(sp, "len", args, 1)
    if are_lists(sp, args):
        return over_lists(sp, "len", [], args, 1)
    return shape_of(sp, args[0], "len")[0]


def shape(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(shape a)``, or ``(shape a k)`` along one axis."""
    if len(args) == 2:
        dims, axis = shape_of(sp, args[0], "shape"), args[1]
        if not (type(axis) is Const and type_of(axis) == INT):
            what = f"`{blamed(sp, 'shape')}` along an axis that is {describe(axis)}"
            raise ModelTypeError(what, spans[1] or sp.b.span, "write the axis as a number: 0, 1, or -1 for the last")
        if not -len(dims) <= axis.value < len(dims):
            what = f"`{blamed(sp, 'shape')}`: {describe(args[0])} has no axis {axis.value}"
            axes = f"axes are 0 to {len(dims) - 1}" if len(dims) > 1 else "one axis is 0"
            raise BoundsError(what, spans[1] or sp.b.span, f"its {axes}, or -1 for the last")
        return dims[axis.value]
    arity(sp, "shape", args, 1)
    return TupleValue(shape_of(sp, args[0], "shape"))


def rank(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(rank a)``."""
    arity(sp, "rank", args, 1)
    if isinstance(args[0], ArrayOfTuples):
        return integer(args[0].rank)
    t = type_of(operand(sp, "rank", args[0], spans[0] if spans else None))
    return integer(t.rank if isinstance(t, Arr) else 0)


def without_ones(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(without-ones a)``: the array without its axes of size 1. Which these are is known when a model is compiled;
    an axis whose size only a call knows must have another size then."""
    arity(sp, "squeeze", args, 1)
    b, value = sp.b, args[0]
    if not (isinstance(value, ArrayOfTuples) or isinstance(type_of(operand(sp, "squeeze", value, None)), Arr)):
        return value
    sizes = shape_of(sp, value, "squeeze")
    counts = [b.affine(b.representative(n)) for n in sizes]
    for n, (_, unknown) in zip(sizes, counts):
        if unknown:
            more = b.prim("-", n, integer(1))
            text = (
                "`squeeze` names no axis, and one has size 1 in this call, but not in the program: `(squeeze a axis)`"
            )
            squared = b.prim("*", more, more)  # which is 0 at size 1 only
            b.check(Check("<", integer(0), squared, text, "shape"), integer(0), squared)
    for k in reversed([k for k, count in enumerate(counts) if count == (1, {})]):
        value = sp.call(prelude("squeeze"), [value, integer(k)], (None, None), None)
    return value


def copy(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """A copy is the value itself: typed core is functional, and lowering copies where memory is shared."""
    arity(sp, "copy", args, 1)
    return args[0]  # where arrays are changed in place it is held anew, see ``builtin``


# ------------------------------------------------------------------------------------------------ lists


def are_lists(sp: Specialiser, values: Sequence[Value]) -> bool:
    """Whether all of some values are lists: nil, pairs that ``cons`` made, data of both."""

    def is_list(v: Value) -> bool:
        family = sp.family_of(v)
        if family is not None:
            return family.sort == "list" and any(m.make in (nothing, tuple) for m in family.members.values())
        return v is NIL or isinstance(v, TupleValue) and v.make is tuple

    return bool(values) and all(map(is_list, values))


def over_lists(sp: Specialiser, name: str, first: list[Value], lists: Sequence[Value], most: int) -> Value:
    """``map``, ``fold`` or ``scan`` of lists: the prelude's recursive function for so many."""
    if len(lists) > most:
        raise ModelTypeError(f"`{name}` over {len(lists)} lists", sp.b.span, f"it takes {most} at most")
    function = prelude(f"list-{name}" if len(lists) == 1 else f"list-{name}-{len(lists)}")
    assert function is not None
    return sp.call(function, [*first, *lists], (None,) * (len(first) + len(lists)), None)
