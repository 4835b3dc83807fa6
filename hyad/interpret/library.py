"""What the language has beside its primitives, as Python functions on the values of a running program.

A function that calls functions is a generator: it yields each call that it waits for (see ``eager.drive``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from ..errors import BESIDE_SLICE, BoundsError, HyadError, ModelTypeError, hint_for
from ..program.advice import call_hint
from ..program.data import Data, Inl, Inr, lisp
from ..program.values import halved
from .active import operation
from .dynamic import (
    NUMBERS,
    Empty,
    Record,
    Ref,
    blame,
    describe,
    dims_of,
    is_list,
    items_of,
    kind_of,
    leaves,
    shaped,
    transform,
)
from .operators import GENERATOR, accepts, wrong_count

Run = Iterator[Any]

#: Threads that run code for the shape of what it gives, and how many more calls they may wait for (see ``row_of``).
TRIALS: dict[int, int] = {}
STEPS = 10_000


class Untried(Exception):
    """What code gives is not known without running it for good."""


def for_good() -> None:
    """Before anything that can be seen from outside."""
    if TRIALS and get_ident() in TRIALS:
        raise Untried


# --------------------------------------------------------------------------------------------- tuples, lists


def tuple_(*items: Any) -> tuple:
    return items


def cons(a: Any, b: Any) -> tuple:
    return (a, b)


def list_(*items: Any) -> Any:
    return lisp(items)


def half(pair: Any, which: int, name: str) -> Any:
    if pair.__class__ is tuple and len(pair) == 2:
        return pair[which]
    what = "nil, the empty list" if pair is None else describe(pair)
    hint = "ask `(null? l)` first" if pair is None else halved(name)
    raise blame(ModelTypeError(f"`{name}` of {what}", None, hint), pair)


def car(pair: Any) -> Any:
    return half(pair, 0, "car")


def cdr(pair: Any) -> Any:
    return half(pair, 1, "cdr")


def is_null(x: Any) -> bool:
    return x is None


def is_num(x: Any) -> bool:
    return x.__class__ in NUMBERS


def are_truths(x: Any) -> bool:
    return x.__class__ is bool or isinstance(x, list) and kind_of(x) is bool


def are_reals(x: Any) -> bool:
    return kind_of(x) is float and x.__class__ is not tuple and x is not None


def by_its_making(a: Any) -> bool:
    """Whether a matrix is symmetric, triangular or the same in all iterations only the program says that made it."""
    return False


def band_of(a: Any) -> Any:
    """Which diagonals of a matrix may hold anything but zeros is known by the program that made it."""
    return None


def as_it_is(a: Any) -> Any:
    """Only the compiler keeps notes, and knows of zeros by the way a matrix was made."""
    return a


def is_same_size(n: Any, m: Any) -> bool:
    """Whether two sizes are equal; a compiler asks whether they are in every call."""
    return n == m


def note_result(f: Any, x: Any, *others: Any) -> Any:
    """Only the compiler keeps notes."""
    return x


def noted_result(f: Any, *values: Any) -> Any:
    return None


def inl(value: Any) -> Inl:
    return Inl(value)


def inr(value: Any) -> Inr:
    return Inr(value)


def field(value: Any, name: str) -> Any:
    if value.__class__ is Record:
        if name in value.keys:
            return value.values[value.keys.index(name)]
    elif isinstance(value, Data) and name in getattr(value, "fields", ("value",)):
        return tuple(value)[getattr(value, "fields", ("value",)).index(name)]
    elif isinstance(value, list) and name in ATTRIBUTES:
        return ATTRIBUTES[name](value)
    what = describe(value)
    raise blame(ModelTypeError(f"{what} has no field `{name}`", None, hint_for("field", what)), value)


# --------------------------------------------------------------------------------------------- references


def ref(value: Any) -> Ref:
    return Ref(value)


def deref(r: Any) -> Any:
    if r.__class__ is not Ref:
        raise blame(ModelTypeError(f"`deref` of {describe(r)}", None, "`(ref e)` makes a reference"), r)
    return r.value


def set_(r: Any, value: Any) -> None:
    if r.__class__ is not Ref:
        hint = "`(ref e)` makes a reference; `(set-at! v i x)` changes an element"
        raise blame(ModelTypeError(f"`set!` of {describe(r)}", None, hint), r)
    for_good()
    r.value = value


# --------------------------------------------------------------------------------------------- arrays


def array(*items: Any) -> list:
    """``[a b c]``: beside a real an integer is one."""
    if not items:
        raise ModelTypeError("an array has at least one element", None, "`(zeros 0)` has none")
    kinds = {x.__class__ for x in items}
    if len(kinds) == 1 and list not in kinds:
        return list(items)
    if list in kinds or Empty in kinds:
        dims = [dims_of(x) for x in items]
        if () in dims and len(set(dims)) > 1:
            raise ModelTypeError("this array mixes numbers and arrays", None, "all elements have one shape")
        if None not in dims and len(set(dims)) > 1:
            raise ModelTypeError(f"`[...]` of {' and '.join(map(describe, items))}", None, "the shapes must be equal")
        return list(items)
    if bool in kinds and kinds & NUMBERS:
        raise ModelTypeError("this array mixes numbers and truth values")
    if int in kinds and kinds <= NUMBERS:
        return [float(x) if x.__class__ is int else x for x in items]
    return list(items)


def place(value: Any, i: Any, axis: int, end: bool) -> int:
    """An index, which must be in range; a negative literal counts from the end."""
    if i.__class__ is not int:
        what = describe(i)
        raise blame(
            ModelTypeError(f"this index is {what}, not an integer", None, hint_for("index", what, kind_of(i))), i
        )
    n = len(value)
    if 0 <= i < n:
        return i
    if end and -n <= i < 0:
        return i + n
    if value.__class__ is tuple:
        raise BoundsError(f"a tuple of {n} has no element {i}")
    hint = f"indices run from 0 to {n - 1}; negative literals count from the end" if n else None
    raise blame(BoundsError(f"index {i} is outside axis {axis} of size {n}", None, hint), i)


def get(value: Any, *indices: Any, end: bool = False) -> Any:
    if not indices:
        raise ModelTypeError("get takes an array or tuple and an index", None, "`(get v i)`")
    axis = 0
    for i in indices:
        if isinstance(i, list) and isinstance(value, list) and kind_of(i) is int and len(indices) - axis <= 3:
            return picked(value, indices[axis:], end)
        if value.__class__ is Record:
            value = value.values
        elif not isinstance(value, list) and value.__class__ is not tuple:
            if axis and value.__class__ in NUMBERS:
                raise ModelTypeError(f"{len(indices)} subscripts of an array of {axis} dims")
            hint = (
                "`(deref r)` is what a reference holds"
                if isinstance(value, Ref)
                else "get subscripts arrays and tuples"
            )
            raise blame(ModelTypeError(f"get of {describe(value)}", None, hint), value)
        value = row_in_trial(value, i, axis, end) if TRIALS else value[place(value, i, axis, end)]
        axis += 1
    return value


def picked(value: list, indices: Sequence[Any], end: bool) -> Any:
    """The elements at indices some of which are arrays, which are broadcast: NumPy's ``a[i, j]``."""
    axes = max(map(rank, indices))
    if not axes:
        return get(value, *indices, end=end)
    shapes = [shape(i) if isinstance(i, list) else () for i in indices]
    sizes = [broadcast([s[k - axes] for s in shapes if len(s) >= axes - k], indices) for k in range(axes)]
    if not sizes[0]:
        return none_of((*sizes, *shape(value)[len(indices) :]), None)
    rows = ([i[k if len(i) > 1 else 0] if rank(i) == axes else i for i in indices] for k in range(sizes[0]))
    return [own(picked(value, row, end)) for row in rows]


def broadcast(sizes: Sequence[int], arrays: Sequence[Any]) -> int:
    """The size of an axis that has these sizes in some arrays."""
    found = set(sizes) - {1} or {1}
    if len(found) > 1:
        raise ModelTypeError(f"the shapes of the indices do not fit: {' and '.join(map(describe, arrays))}")
    return found.pop()


def one_index(i: Any) -> Any:
    """An index that is no array, behind an index and a slice."""
    if isinstance(i, list) and kind_of(i) is int:
        raise blame(
            ModelTypeError(f"this index is {describe(i)}, with an index and a slice before it", None, BESIDE_SLICE), i
        )
    return i


def without_ones(value: Any) -> Any:
    """An array without its axes of size 1."""
    if not isinstance(value, list):
        return value
    dims = shape(value)
    if 0 in dims:
        return shaped([], [n for n in dims if n != 1], kind_of(value))
    return without_ones(value[0]) if len(value) == 1 else [own(without_ones(x)) for x in value]


def get_from_end(value: Any, *indices: Any) -> Any:
    """``get`` with a negative literal among its indices."""
    return get(value, *indices, end=True)


def fst(pair: Any) -> Any:
    return get(pair, 0) if pair.__class__ in (tuple, list, Record) else half(pair, 0, "fst")


def snd(pair: Any) -> Any:
    return get(pair, 1) if pair.__class__ in (tuple, list, Record) else half(pair, 1, "snd")


def len_(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    if value.__class__ is tuple or value is None:
        return len(items_of(value)) if is_list(value) else len(value)
    raise blame(ModelTypeError(f"`len` of {describe(value)}", None, "`len` takes an array"), value)


def shape(value: Any, axis: Any = ...) -> Any:
    if not isinstance(value, list):
        raise blame(ModelTypeError(f"`shape` of {describe(value)}", None, "`shape` takes an array"), value)
    dims: list[int] = []
    row: Any = value
    while isinstance(row, list):
        dims.append(len(row))
        if not row:
            dims += getattr(row, "inner", ())
            break
        row = row[0]
    if axis is ...:
        return tuple(dims)
    if axis.__class__ is not int:
        what = f"an axis is an integer; this is {describe(axis)}"
        raise blame(ModelTypeError(what, None, "write the axis as a number: 0, 1, or -1 for the last"), axis)
    if not -len(dims) <= axis < len(dims):
        raise blame(BoundsError(f"{describe(value)} has no axis {axis}"), axis)
    return dims[axis]


def rank(value: Any) -> int:
    if value.__class__ in NUMBERS or value.__class__ is bool:
        return 0
    if not isinstance(value, list):
        what = describe(value)
        text = f"`rank` works on numbers and arrays; this is {what}"
        raise blame(ModelTypeError(text, None, hint_for("operand", what)), value)
    return len(shape(value))


def transposed(value: list) -> Any:
    """The axes in the other order."""
    dims, flat = shape(value), leaves(value)
    order = np.arange(len(flat)).reshape(dims).ravel(order="F")
    return shaped([flat[k] for k in order], dims[::-1])


#: What NumPy's arrays call some functions of them.
ATTRIBUTES: dict[str, Callable[[list], Any]] = {
    "T": transposed,
    "shape": shape,
    "ndim": rank,
    "size": lambda value: len(leaves(value)),
}


def copy(value: Any) -> Any:
    """Arrays anew, their rows as well; what else they hold is shared."""
    if not isinstance(value, list) or value.__class__ is Empty:
        return value
    return [copy(x) if isinstance(x, list) else x for x in value]


def array_of(value: Any) -> Any:
    return array(*map(own, value)) if value.__class__ is tuple else copy(value)


def own(x: Any) -> Any:
    """What an array that is made keeps of ``x``: arrays are copied into it."""
    if x.__class__ is list:
        return copy(x)
    return tuple(map(own, x)) if x.__class__ is tuple else x


def fitting(old: Any, x: Any, name: str) -> Any:
    """What ``update`` and ``set-at!`` may put where ``old`` stands: a number for a number, a row for a row; what has
    fewer axes stands in each place."""
    one, other = dims_of(old), dims_of(x)
    if one and other is not None and len(other) < len(one) and one[len(one) - len(other) :] == other:
        return [copy(fitting(row, x, name)) for row in old]
    if one != other or (one == () and (old.__class__ is bool) != (x.__class__ is bool)):
        if one is not None and other is not None or (one is None) != (other is None):
            raise ModelTypeError(
                f"`{name}` puts {describe(x)} where {describe(old)} stands", None, "the types must be equal"
            )
    return float(x) if x.__class__ is int and old.__class__ in NUMBERS and old.__class__ is not int else x


def row_at(value: Any, indices: Sequence[Any], name: str, end: bool) -> tuple[list, int]:
    """The array that holds an element, and where; each must be there."""
    row = value
    for axis, i in enumerate(indices):
        if not isinstance(row, list):
            raise blame(ModelTypeError(f"`{name}` of {describe(row)}", None, f"`{name}` works on arrays"), row)
        at = place(row, i, axis, end)
        if axis == len(indices) - 1:
            return row, at
        row = row[at]
    raise ModelTypeError(f"{name} takes an array, an index and a value", None, f"`({name} v i x)`")


def update(value: Any, *rest: Any, end: bool = False) -> Any:
    if len(rest) < 2:
        raise ModelTypeError("update takes an array, an index and a value", None, "`(update v i x)`")
    *indices, x = rest
    row, at = row_at(value, indices, "update", end)
    old = row[at]
    x = fitting(old, x, "update")
    made = below = list(value)
    for i in indices[:-1]:
        k = i if i >= 0 else i + len(below)
        below[k] = list(below[k])
        below = below[k]
    below[at] = x
    if old.__class__ is int and x.__class__ in NUMBERS and x.__class__ is not int and dims_of(made) is not None:
        return transform(made, lambda y: float(y) if y.__class__ is int else y)
    return made


def update_from_end(value: Any, *rest: Any) -> Any:
    return update(value, *rest, end=True)


def set_at(value: Any, *rest: Any, end: bool = False) -> None:
    """``(set-at! v i ... x)``: in place, for every name of the array. A row is copied into its place, as NumPy does."""
    if len(rest) < 2:
        raise ModelTypeError("set-at! takes an array, an index and a value", None, "`(set-at! v i x)`")
    *indices, x = rest
    for_good()
    row, at = row_at(value, indices, "set-at!", end)
    x = fitting(row[at], x, "set-at!")
    if isinstance(x, list) and isinstance(row[at], list):
        row[at][:] = copy(x)
    else:
        row[at] = x


def set_at_from_end(value: Any, *rest: Any) -> None:
    set_at(value, *rest, end=True)


def add_at(value: Any, *rest: Any) -> Any:
    *indices, x = rest
    row, at = row_at(value, indices, "add-at", False)
    return update(value, *indices, operation("+")(row[at], x))


def undef(constructor: Any) -> None:
    """``(undef Leaf)``: a value that is never read."""


def zeros_of(*dims: Any) -> Any:
    return shaped([0.0] * product(dims), dims)


def product(dims: Sequence[int]) -> int:
    total = 1
    for n in dims:
        total *= n
    return total


# --------------------------------------------------------------------------------------------- loops


def row_in_trial(value: Any, i: Any, axis: int, end: bool) -> Any:
    """A row of an array, or of one that has not so many another one, for a trial."""
    inside = i.__class__ is int and -len(value) * end <= i < len(value)
    if inside or not isinstance(value, list) or get_ident() not in TRIALS:
        return value[place(value, i, axis, end)]
    return value[0] if value else zero_row(value)


def zero_row(value: Any) -> Any:
    """A row of zeros for an array that has no rows."""
    kind, inner = kind_of(value), getattr(value, "inner", ())
    return shaped([kind(0)] * product(inner), inner, kind)


def row_of(f: Callable[..., Any], *args: Any) -> Any:
    """A row of an array of none, made of zeros, for its shape; None where that is not known: ``f`` sets something,
    fails on zeros, or takes long."""
    me = get_ident()
    outermost = me not in TRIALS
    TRIALS.setdefault(me, STEPS)
    try:
        return tried(f, args, me)
    except (Untried, HyadError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    finally:
        if outermost:
            del TRIALS[me]


def tried(f: Callable[..., Any], args: Sequence[Any], me: int) -> Any:
    """The value of a call, as ``eager.drive`` gives it, in so many steps as the trial has left."""
    waiting: list[Any] = []
    value = f(*args)
    while True:
        if value.__class__ is GENERATOR:
            if not TRIALS[me]:
                raise Untried
            TRIALS[me] -= 1
            waiting.append(value)
            value = None
        elif not waiting:
            return value
        try:
            value = waiting[-1].send(value)
        except StopIteration as stop:
            waiting.pop()
            value = stop.value


def none_of(dims: Sequence[int], row: Any) -> Any:
    """An array of these dims, one of which is 0, of rows like ``row``."""
    inner = () if row is None else dims_of(row) or ()
    return shaped([], (*dims, *inner), float if row is None else kind_of(row))


def function_of(f: Any, name: str, count: int) -> Callable[..., Any]:
    if not callable(f):
        raise blame(ModelTypeError(f"`{name}` takes a function, not {describe(f)}", None, call_hint(name)), f)
    if not accepts(f, count):
        error = wrong_count(f, count)
        if name == "build":
            error.hint = error.hint or call_hint(name)
        raise blame(error, f)
    return f


def size_of(n: Any, name: str) -> int:
    if count_of(n, f"the size in `{name}`") != n:
        raise blame(ModelTypeError(f"the size in `{name}` is {n}", None, "sizes are not negative"), n)
    return n


def count_of(n: Any, said: str = "the count of this loop") -> int:
    """How often a loop runs: never where Python's ``range`` is empty."""
    if n.__class__ is not int:
        what = describe(n)
        raise blame(ModelTypeError(f"{said} is {what}, not an integer", None, hint_for("size", what)), n)
    return max(n, 0)


def build(sizes: Any, f: Any) -> Run:
    counts = [size_of(n, "build") for n in (sizes if isinstance(sizes, (list, tuple)) else [sizes])]
    function_of(f, "build", len(counts))
    made: list[Any] = []
    if 0 in counts:
        return none_of(counts, row_of(f, *(0 for _ in counts)))
    if len(counts) == 1:
        for i in range(counts[0]):
            x = f(i)
            if x.__class__ is GENERATOR:
                x = yield x
            made.append(own(x))
        return made
    for k in range(product(counts)):
        indices = []
        for n in reversed(counts):
            indices.append(k % n)
            k //= n
        x = f(*reversed(indices))
        if x.__class__ is GENERATOR:
            x = yield x
        made.append(own(x))
    return shaped(made, counts)


def rows_of(name: str, values: Sequence[Any]) -> list[Sequence[Any]]:
    """The elements of arrays, of tuples or of lists, which are of one length."""
    found: list[Sequence[Any]] = []
    for v in values:
        if isinstance(v, list):
            found.append(v)
        elif v.__class__ is tuple or v is None:
            found.append(items_of(v) if is_list(v) else v)
        else:
            raise blame(ModelTypeError(f"`{name}` of {describe(v)}", None, f"`{name}` takes arrays and lists"), v)
    if any(len(x) != len(found[0]) for x in found):
        lengths = " and ".join(str(len(x)) for x in found)
        raise ModelTypeError(f"`{name}` over arrays of lengths {lengths}", None, "the lengths must be equal")
    return found


def map_(f: Any, *values: Any) -> Run:
    """An array from arrays, a list from lists, a tuple from tuples."""
    if not values:
        raise ModelTypeError("map takes a function and at least one array", None, "`(map f xs)`")
    function_of(f, "map", len(values))
    made = []
    array = any(isinstance(v, list) for v in values)
    for xs in zip(*rows_of("map", values)):
        x = f(*xs)
        if x.__class__ is GENERATOR:
            x = yield x
        made.append(own(x) if array else x)
    if not made and all(isinstance(v, list) for v in values):
        return none_of((0,), row_of(f, *map(zero_row, values)))
    if array:
        return made
    return lisp(made) if is_list(values[0]) else tuple(made)


def fold(f: Any, acc: Any, *values: Any) -> Run:
    if not values:
        raise ModelTypeError("fold takes a function, a start and at least one array", None, "`(fold + 0.0 xs)`")
    function_of(f, "fold", 1 + len(values))
    for xs in zip(*rows_of("fold", values)):
        acc = f(acc, *xs)
        if acc.__class__ is GENERATOR:
            acc = yield acc
    return acc


def ifold(f: Any, acc: Any, n: Any) -> Run:
    function_of(f, "ifold", 2)
    for i in range(count_of(n)):
        acc = f(acc, i)
        if acc.__class__ is GENERATOR:
            acc = yield acc
    return acc


def scan(f: Any, acc: Any, values: Any) -> Run:
    function_of(f, "scan", 2)
    (rows,) = rows_of("scan", [values])
    made = []
    for x in rows:
        acc = f(acc, x)
        if acc.__class__ is GENERATOR:
            acc = yield acc
        made.append(own(acc) if isinstance(values, list) else acc)
    if isinstance(values, list):
        return made or none_of((0,), acc)
    return lisp(made) if is_list(values) else tuple(made)


def pushed(made: Any, width: int, stacks: list[list]) -> tuple:
    """The next accumulators of what an iteration of typed core gives; the rest goes to the stacks."""
    made = made if made.__class__ is tuple else (made,)
    stacks += [[] for _ in made[width + len(stacks) :]]
    for stack, x in zip(stacks, made[width:]):
        stack.append(x)
    return made[:width]


def loop(n: Any, f: Any, *accs: Any) -> Run:
    """``(loop n f z ...)``: the one loop of typed core, as it is printed."""
    function_of(f, "loop", 1 + len(accs))
    width, stacks = len(accs), []
    if not count_of(n):
        row = row_of(f, 0, *accs)
        rows = row[width:] if row.__class__ is tuple else () if width else (row,)
        stacks = [none_of((0,), x) for x in rows]
    for i in range(n):
        made = f(i, *accs)
        if made.__class__ is GENERATOR:
            made = yield made
        accs = pushed(made, width, stacks)
    out = (*accs, *stacks)
    return out[0] if len(out) == 1 else out


def iterate(test: Any, f: Any, *accs: Any) -> Run:
    """``(iterate c f z ...)``: the ``while`` of typed core, as it is printed."""
    for function in (test, f):
        function_of(function, "iterate", len(accs))
    width, count, stacks = len(accs), 0, []
    while True:
        holds = test(*accs)
        if holds.__class__ is GENERATOR:
            holds = yield holds
        if not holds:
            break
        made = f(*accs)
        if made.__class__ is GENERATOR:
            made = yield made
        accs, count = pushed(made, width, stacks), count + 1
    if not count:
        row = row_of(f, *accs)
        stacks = [none_of((0,), x) for x in (row[width:] if row.__class__ is tuple else ())]
    return (*accs, count, *stacks)


def constant(f: Any, *args: Any) -> Run:
    """``(constant f x ...)``: what is a constant to the rules of a ``ruled`` value is not one here, where derivatives
    go the way of the values."""
    value = function_of(f, "constant", len(args))(*args)
    if value.__class__ is GENERATOR:
        value = yield value
    return value


def ruled(f: Any, jvp: Any, vjp: Any, *args: Any) -> Run:
    """``(ruled f jvp vjp x ...)``: the function's own derivatives serve as well as its rules."""
    return constant(f, *args)


def select(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


def requirement(holds: Callable[[Any, Any], bool], text: str) -> Callable[[Any, Any], None]:
    def require(a: Any, b: Any) -> None:
        if not holds(a, b):
            raise ModelTypeError(text.format(a, b))

    return require


def condition(c: Any) -> HyadError:
    """The error of a condition that is no truth value."""
    what = describe(c)
    return blame(ModelTypeError(f"the condition is {what}", None, hint_for("condition", what)), c)


PLAIN: dict[str, Callable[..., Any]] = {
    "tuple": tuple_,
    "cons": cons,
    "list": list_,
    "car": car,
    "cdr": cdr,
    "null?": is_null,
    "num?": is_num,
    "truths?": are_truths,
    "reals?": are_reals,
    "same-size?": is_same_size,
    "symmetric?": by_its_making,
    "band-of": band_of,
    "known-zeros": as_it_is,
    "lower-triangular?": by_its_making,
    "upper-triangular?": by_its_making,
    "note-lower": as_it_is,
    "hoisted?": by_its_making,
    "note-result": note_result,
    "noted-result": noted_result,
    "inl": inl,
    "inr": inr,
    "ref": ref,
    "deref": deref,
    "set!": set_,
    "array": array,
    "get": get,
    "one-index": one_index,
    "fst": fst,
    "snd": snd,
    "len": len_,
    "shape": shape,
    "rank": rank,
    "without-ones": without_ones,
    "copy": copy,
    "array-of": array_of,
    "update": update,
    "set-at!": set_at,
    "add-at": add_at,
    "zeros-of": zeros_of,
    "undef": undef,
    "select": select,
    "require-index": requirement(lambda a, b: 0 <= a < b, "index {} is outside an axis of size {}"),
    "require-equal": requirement(lambda a, b: a == b, "the sizes {} and {} must be equal"),
    "require-at-most": requirement(lambda a, b: a <= b, "{} is more than {}"),
    "require-below": requirement(lambda a, b: a < b, "{} is not less than {}"),
}
FROM_END = {"get": get_from_end, "update": update_from_end, "set-at!": set_at_from_end}
CALLING: dict[str, Callable[..., Any]] = {
    "build": build,
    "map": map_,
    "fold": fold,
    "ifold": ifold,
    "scan": scan,
    "loop": loop,
    "iterate": iterate,
    "constant": constant,
    "ruled": ruled,
}

for _name, _function in (*PLAIN.items(), *CALLING.items()):
    _function.__name__ = _name
