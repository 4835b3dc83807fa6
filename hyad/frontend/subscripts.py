"""Subscripts: a part of a tuple, a record, a list, data or an array, and an array with another part.

``(get v i j)``, ``(car l)``, ``(. p x)``, ``(update v i x)``. The index of a tuple is a literal; that of
an array is proven to lie inside, or the program checks it when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import INT, REAL, Arr, Atom, Const, Var, elem_of, integer, type_of
from ..errors import BESIDE_SLICE, BoundsError, ModelTypeError, hint_for
from ..program.advice import said_of
from ..program.data import Data as PythonData
from ..program.names import mangled
from ..program.reader import prelude
from ..program.values import (
    CLOSED,
    NIL,
    ArrayOfTuples,
    Builtin,
    References,
    Spans,
    TupleValue,
    Value,
    describe,
    flatten,
    halved,
    unflatten,
)
from .arguments import arity, blamed, integer_arg, operand
from .arithmetic import same_shape
from .branches import branches, cases, expose

if TYPE_CHECKING:
    from .specialise import Specialiser


#: What takes subscripts, of which a negative literal counts from the end.
COUNTED_FROM_END = ("get", "update", "set-at!")


def written(value: Value) -> Value:
    """A literal among the arguments of one of these: a negative one counts from the end, and no other number does."""
    if type(value) is Const and type_of(value) == INT and value.value < 0:
        return Const(value.value, value.type, value.soft, True)
    return value


def elements(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(get v i ...)``, of which indices may be arrays, as in NumPy's ``v[i, j]``: arrays side by side, broadcast."""
    value, indices = args[0] if args else NIL, args[1:]
    first = next((k for k, i in enumerate(indices) if is_indices(i)), len(indices))
    rank = value.rank if isinstance(value, ArrayOfTuples) else rank_of(value)
    if first == len(indices) or len(indices) > rank or len(indices) - first > 3:
        return get(sp, args, spans, var)
    places = [*spans, *(None for _ in args[len(spans) :])]
    if first:
        value = get(sp, [value, *indices[:first]], places[: 1 + first], None)
    rest = [from_end(sp, value, axis, i) for axis, i in enumerate(indices[first:])]
    return sp.call(prelude("gather"), [value, *rest], [places[0], *places[1 + first :]], var)  # type: ignore[arg-type]


def is_indices(value: Value) -> bool:
    t = type_of(value) if isinstance(value, (Const, Var)) and value is not NIL else None
    return isinstance(t, Arr) and t.elem == INT


def rank_of(value: Value) -> int:
    t = type_of(value) if isinstance(value, (Const, Var)) and value is not NIL else None
    return t.rank if isinstance(t, Arr) else 0


def from_end(sp: Specialiser, value: Value, axis: int, index: Value) -> Value:
    """A negative literal counted from the end of an axis."""
    if type(index) is not Const or not index.from_end:
        return index
    return sp.b.prim("+", shape_of(sp, value, "shape")[axis], index)


def one_index(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(one-index i)``: i, which is no array, behind an index and a slice: NumPy would move its axes."""
    if is_indices(args[0]):
        place = (spans[0] if spans else None) or sp.b.span
        raise ModelTypeError(
            f"this index is {describe(args[0])}, with an index and a slice before it", place, BESIDE_SLICE
        )
    return integer_arg(sp, args[0], "this index", (spans[0] if spans else None) or sp.b.span)


def get(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(get v i ...)``, one element or row."""
    if len(args) < 2:
        raise ModelTypeError("get takes an array or tuple and an index", sp.b.span, "`(get v i)`")
    value, *indices = args
    b = sp.b
    if sp.family_of(value) is not None:
        return part_of_data(sp, value, indices, spans, var)
    if isinstance(value, TupleValue):
        at = indices[0]
        if value.make is list and type(at) is Var:
            return one_of(sp, value, at, indices[1:], spans, var)
        if not (type(at) is Const and type_of(at) == INT):
            raise ModelTypeError(
                "a tuple is subscripted by a literal integer",
                spans[1] or b.span,
                "`(get t 0)`; use an array for run-time indices",
            )
        if not (-len(value.items) if at.from_end else 0) <= at.value < len(value.items):
            raise BoundsError(f"a tuple of {len(value.items)} has no element {at.value}", b.span)
        item = value.items[at.value]
        return item if len(indices) == 1 else get(sp, [item, *indices[1:]], [None, *spans[2:]], var)
    if isinstance(value, ArrayOfTuples):
        leading, rest = indices[: value.rank], indices[value.rank :]
        atoms, tree = flatten(value.parts)
        parts = [get(sp, [a, *leading], spans[: 1 + len(leading)], None) for a in atoms]
        part = unflatten(tree, iter(parts))
        if len(leading) < value.rank:
            return ArrayOfTuples(part, value.rank - len(leading))
        return get(sp, [part, *rest], [None, *spans[1 + len(leading) :]], var) if rest else part
    if not isinstance(value, (Const, Var)) or not isinstance(type_of(value), Arr):
        place = (spans[0] if spans else None) or b.span
        if value is NIL and (sp.branching or sp.making):  # perhaps nothing comes here
            before, b.span = b.span, place
            part = {0: "first", 1: "second"}.get(getattr(indices[0], "value", None), "part")  # type: ignore[call-overload]
            try:
                return sp.impossible(f"the {part} of None")
            finally:
                b.span = before
        what = describe(value)
        hint = "`(deref r)` is what a reference holds" if what == "a reference" else "get subscripts arrays and tuples"
        raise ModelTypeError(f"get of {what}", place, hint)
    t = type_of(value)
    written = b.definitions.get(value) if sp.library is not None and type(value) is Var else None
    if written is not None and written.name == "array" and len(indices) == 1 and type(indices[0]) is Const:
        if 0 <= indices[0].value < len(written.args):  # the sizes of an array are for now
            return written.args[indices[0].value]
    if len(indices) > t.rank:
        raise ModelTypeError(f"{len(indices)} subscripts of {describe(value)}", b.span)
    checked = []
    for axis, (i, dim) in enumerate(zip(indices, t.dims)):
        place = (spans[axis + 1] if axis + 1 < len(spans) else None) or b.span
        index = integer_arg(sp, i, "this index", place)
        if type(index) is Const and index.from_end:
            index = b.prim("+", dim, index)
        size = f" of size {dim}" if type(dim) is Const else ""
        text = f"index `{place.text}`" if place is not None else f"index `{index}`"
        if sp.library is not None:
            text = f"in `{sp.library}`: {f'index `{index}`' if type(index) is Const else 'an index'}"
        if not b.require_index(index, dim, said_of(sp.library or "", f"{text} is outside axis {axis}{size}")):
            last = dim.value - 1 if type(dim) is Const else f"{dim} - 1"
            hint = f"indices run from 0 to {last}; negative literals count from the end" if last != -1 else None
            raise BoundsError(f"index {i} is outside an axis of size {dim}", place, hint)
        checked.append(index)
    return b.get(value, *checked, hint=var.name if var is not None else None, given=bool(var is not None and var.given))


def one_of(sp: Specialiser, value: TupleValue, at: Value, rest: list[Value], spans: Spans, var: Var | None) -> Value:
    """An element of an array of functions by a run-time subscript."""
    b, place = sp.b, (spans[1] if len(spans) > 1 else None) or sp.b.span
    index = integer_arg(sp, at, "this index", place)
    b.require_index(index, integer(len(value.items)), f"index `{place.text if place else index}` is outside axis 0")

    def pick(k: int) -> Value:
        if k == len(value.items) - 1:
            return value.items[k]
        return branches(sp, b.prim("=", index, integer(k)), lambda: value.items[k], lambda: pick(k + 1), None)

    item = pick(0)
    return get(sp, [item, *rest], [None, *spans[2:]], var) if rest else item


def part_of_data(sp: Specialiser, value: Value, indices: list[Value], spans: Spans, var: Var | None) -> Value:
    """``get``, ``car`` or ``cdr`` of data: of its pair, tuple or array."""

    def part(known: Value) -> Value:
        array = isinstance(known, (Const, Var)) and isinstance(type_of(known), Arr)
        at = indices[0]
        short = isinstance(known, TupleValue) and type(at) is Const and len(known.items) <= at.value
        if isinstance(known, TupleValue) and not short or array:
            return get(sp, [known, *indices], spans, None)
        name = {0: "first", 1: "second"}.get(getattr(at, "value", None), "part")  # type: ignore[call-overload]
        return sp.impossible(f"the {name} of {describe(known)}")

    at = indices[0].value if type(indices[0]) is Const and type_of(indices[0]) == INT else None
    if at is not None:
        what = f"{ {0: 'the first', 1: 'the second'}.get(at, f'part {at}') } of {{}}"
        apart = expose(sp, value, lambda v: isinstance(v, TupleValue) and len(v.items) > at, what)
        if apart is not None:
            return get(sp, [apart, *indices], spans, var)
    return cases(sp, value, part, var)  # type: ignore[arg-type]


def half(sp: Specialiser, name: str, at: int, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``car``, ``cdr``, ``fst`` and ``snd``: of a pair, which is no constructor of a data type."""
    arity(sp, name, args, 1)
    a, place = args[0], (spans[0] if spans else None) or sp.b.span
    if isinstance(a, TupleValue) and isinstance(a.make, type) and issubclass(a.make, PythonData):
        raise ModelTypeError(f"the parts of {describe(a)} by position", place, "`match` and `case` take it apart")
    if a is NIL and not (sp.branching or sp.making):
        raise ModelTypeError(f"`{name}` of nil, the empty list", place, "ask `(null? l)` first")
    number = isinstance(a, (Const, Var)) and a is not NIL and sp.family_of(a) is None
    if number and (name in ("car", "cdr") or not isinstance(type_of(a), Arr)) or isinstance(a, CLOSED):
        raise ModelTypeError(f"`{name}` of {describe(a)}", place, halved(name))
    return get(sp, [a, integer(at)], [*spans, None], var)


def field(sp: Specialiser, value: Value, name: str) -> Value:
    """``(. p x)``: a field of a record by name; ``m.T``, ``m.shape``, ``m.ndim`` and ``m.size`` of an array."""
    value = sp.look(value)
    if sp.family_of(value) is not None:

        def read(known: Value) -> Value:
            if isinstance(known, TupleValue) and known.keys and mangled(name) in known.keys:
                return field(sp, known, name)
            return sp.impossible(f"{describe(known)} has no field `{name}`")

        return cases(sp, value, read, None)  # type: ignore[arg-type]
    for key in (name, mangled(name)):  # a dict may have both
        if isinstance(value, TupleValue) and value.keys and key in value.keys:
            return value.items[value.keys.index(key)]
    what = describe(value)
    if name in ATTRIBUTES and what.startswith("an array"):
        return sp.call(language(ATTRIBUTES[name]), [value], (None,), None)
    raise ModelTypeError(f"{what} has no field `{name}`", sp.b.span, hint_for("field", what))


#: What NumPy's arrays call some functions of them.
ATTRIBUTES = {"T": "transpose", "shape": "shape", "ndim": "rank", "size": "size"}


def language(name: str) -> Value:
    """A function of the language."""
    return prelude(name) or Builtin(name)


def shape_of(sp: Specialiser, value: Value, name: str) -> tuple[Atom, ...]:
    """The sizes of an array; of a tuple, how many it has."""
    if isinstance(value, TupleValue) and name == "len":
        return (integer(len(value.items)),)
    if isinstance(value, ArrayOfTuples):
        return type_of(flatten(value.parts)[0][0]).dims[: value.rank]
    if isinstance(value, References):
        return type_of(sp.held(value.array)).dims
    if isinstance(value, (Const, Var)) and isinstance(type_of(value), Arr):
        return type_of(value).dims
    name = blamed(sp, name)
    integer_ = name == "fold" and isinstance(value, (Const, Var)) and type_of(value) == INT
    also = "; what goes through the integers below one is a `for` over `(range n)`" if integer_ else ""
    if name in ("fold", "scan") and not integer_:
        also = f", after what it starts from: `({name} f start v)`"
    raise ModelTypeError(f"`{name}` of {describe(value)}", sp.b.span, f"`{name}` takes an array{also}")


def update(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None, name: str = "update") -> Value:
    """``(update v i ... x)``: the array with another element or row; a row may be given by one of its own, or a
    number, for all of it."""
    if len(args) < 3:
        raise ModelTypeError("update takes an array, an index and a value", sp.b.span, "`(update v i x)`")
    array, *indices, x = args
    a = operand(sp, name, array, spans[0])
    row = get(sp, [a, *indices], spans[:-1], None)  # checks the indices
    x = operand(sp, name, x, spans[-1])
    if elem_of(a) == INT and elem_of(x) == REAL:
        a = sp.b.reals(a)
    x = sp.b.reals(x) if elem_of(a) == REAL else x
    if rank_of(x) < rank_of(row) and elem_of(a) == elem_of(x):
        for dim in reversed(type_of(row).dims[: rank_of(row) - rank_of(x)]):
            x = sp.b.build(dim, lambda _, x=x: x)
    if rank_of(row) != rank_of(x) or elem_of(a) != elem_of(x):
        raise ModelTypeError(
            f"`{name}` puts {describe(x)} where {describe(row)} stands", sp.b.span, "the types must be equal"
        )
    if isinstance(type_of(row), Arr):
        same_shape(sp, [row, x], name)
    at = []
    for i, dim in zip(indices, type_of(a).dims):
        at.append(sp.b.prim("+", dim, i) if type(i) is Const and i.from_end else i)
    return sp.b.update(a, at, x, hint=var.name if var is not None else None)
