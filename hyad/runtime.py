"""The Python meaning of the language's names: ``(import hyad.runtime *)``, and the text of any stage runs as Hy.

Numbers are floats and ints, arrays NumPy arrays (a literal ``[a b]`` is a list until something reads it), functions
Python functions. What Hy has itself (``let``, ``if``, ``+``, ``get``, ``len``) is Hy's own, so ``(/ 1.0 0.0)`` raises
here and is ``Inf`` in C. A slow and plain second opinion, for reading, pasting and testing.

Some names replace Python's (``map``, ``min``, ``round`` ..): import them into a namespace of their own where that
matters. The derivative operators are those of ``hyad`` and take models, not Python functions.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import cache
from typing import Any

import hy
import numpy as np

from .derivatives import D, grad, hessian, hvp, jacobian, jvp, value_and_grad, vjp
from .errors import BoundsError, ModelTypeError
from .program.forms import prelude_texts
from .program.primitives import PRIMITIVES

nil = None
Real, Int, Bool = float, int, bool

# ------------------------------------------------------------------------------------------ annotations


def Vec(n: Any) -> tuple:
    """The annotation ``(Vec n)``; Python does not look at it."""
    return (float, n)


def Mat(n: Any, m: Any) -> tuple:
    """The annotation ``(Mat n m)``."""
    return (float, n, m)


def Arr(elem: Any, *dims: Any) -> tuple:
    """The annotation ``(Arr Real n m k)``."""
    return (elem, *dims)


def Tuple(*items: Any) -> tuple:
    """The annotation ``(Tuple Real (Vec n))``."""
    return items


# ----------------------------------------------------------------------------------- arrays and their loops


def build(sizes: Any, f: Callable[..., Any]) -> np.ndarray:
    """``(build n f)``, ``(build [n m] f)``: the array of f at every index."""
    first, *rest = sizes if isinstance(sizes, (list, tuple, np.ndarray)) else (sizes,)
    if not rest:
        return _stacked([f(i) for i in range(first)])
    return _stacked([build(rest, lambda *indices, i=i: f(i, *indices)) for i in range(first)])


def _stacked(items: list) -> Any:
    """An array of numbers or arrays; a tuple of arrays where the items are tuples."""
    if items and isinstance(items[0], builtins.tuple):
        return builtins.tuple(_stacked([x[k] for x in items]) for k in range(len(items[0])))
    return np.array(items) if items else np.zeros(0)


def map(f: Callable[..., Any], *arrays: Any) -> Any:  # noqa: A001
    """``(map f xs ...)``: an array from arrays, a tuple from tuples; from anything else what Python's map gives."""
    if builtins.all(isinstance(a, builtins.tuple) for a in arrays):
        return builtins.tuple(builtins.map(f, *arrays))
    if builtins.all(isinstance(a, (np.ndarray, list)) for a in arrays):
        _same_length("map", arrays)
        return _stacked(list(builtins.map(f, *arrays)))
    return builtins.map(f, *arrays)


def fold(f: Callable[..., Any], start: Any, *arrays: Any, checkpoint: int | None = None) -> Any:
    """``(fold f z xs ...)``: f takes what has been accumulated and an element of each array. ``:checkpoint`` is for
    derivatives."""
    _same_length("fold", arrays)
    for items in zip(*arrays):
        start = f(start, *items)
    return start


def ifold(f: Callable[..., Any], start: Any, count: int, checkpoint: int | None = None) -> Any:
    """``(ifold f z n)``: f takes what has been accumulated and the index. ``:checkpoint`` is for derivatives."""
    for i in range(count):
        start = f(start, i)
    return start


def scan(f: Callable[..., Any], start: Any, xs: Any) -> Any:
    """``(scan f z xs)``: what has been accumulated after each element."""
    made = []
    for x in xs:
        start = f(start, x)
        made.append(start)
    return _stacked(made)


def _pushed(made: Any, width: int, stacks: list[list]) -> tuple:
    """The next accumulators of what an iteration gives; the rest goes to the stacks."""
    made = made if isinstance(made, builtins.tuple) else (made,)
    stacks += [[] for _ in made[width + len(stacks) :]]
    for stack, x in zip(stacks, made[width:]):
        stack.append(x)
    return made[:width]


def loop(count: int, f: Callable[..., Any], *accs: Any) -> Any:
    """``(loop n f z ...)``, the loop of typed programs: f takes the index and the accumulators, and gives the next
    accumulators, then what is stacked."""
    stacks: list[list] = []
    for i in range(count):
        accs = _pushed(f(i, *accs), len(accs), stacks)
    out = (*accs, *builtins.map(_stacked, stacks))
    return out[0] if len(out) == 1 else out


def iterate(test: Callable[..., bool], f: Callable[..., Any], *accs: Any) -> Any:
    """``(iterate c f z ...)``, the ``while`` of typed programs: c and f take the accumulators; the last ones, how many
    iterations there were, and what is stacked."""
    stacks: list[list] = []
    count = 0
    while test(*accs):
        accs, count = _pushed(f(*accs), len(accs), stacks), count + 1
    return (*accs, count, *builtins.map(_stacked, stacks))


def _same_length(name: str, arrays: Any) -> None:
    if len({len(a) for a in arrays}) > 1:
        raise ModelTypeError(f"`{name}` over arrays of lengths {' and '.join(str(len(a)) for a in arrays)}")


def shape(array: Any, axis: Any = None) -> Any:
    """``(shape m)``: the sizes; ``(shape m k)``: the size of axis k."""
    return np.shape(array) if axis is None else np.shape(array)[axis]


def rank(value: Any) -> int:
    """``(rank m)``: the number of sizes, 0 of a number."""
    return np.ndim(value)


def is_num(value: Any) -> bool:
    """``(num? x)``: whether x is a number."""
    return isinstance(value, (builtins.int, builtins.float, np.number)) and not isinstance(value, builtins.bool)


def is_null(value: Any) -> bool:
    """``(null? l)``: whether l is the empty list."""
    return value is nil


def is_truths(value: Any) -> bool:
    """``(truths? a)``: whether a is a truth value, or an array of them."""
    return np.asarray(value).dtype == bool


def is_reals(value: Any) -> bool:
    """``(reals? a)``: whether a is a real, or an array of them."""
    return np.asarray(value).dtype.kind == "f"


def is_symmetric(matrix: Any) -> bool:
    """``(symmetric? a)``: whether a matrix is symmetric by the program that made it, which a value does not say."""
    return False


def band_of(matrix: Any) -> Any:
    """``(band-of a)``: nil; only a compiler knows by which diagonals a matrix was made."""
    return nil


def known_zeros(array: Any) -> Any:
    """``(known-zeros a)``: a; only a compiler knows which elements are zero by the way they were made."""
    return array


def is_lower_triangular(matrix: Any) -> bool:
    """``(lower-triangular? a)``: whether a has zeros above its diagonal by the program, which a value does not say."""
    return False


def is_upper_triangular(matrix: Any) -> bool:
    """``(upper-triangular? a)``: the same of zeros below it."""
    return False


def note_lower(matrix: Any) -> Any:
    """``(note-lower a)``: a; only a compiler keeps notes."""
    return matrix


def is_same_size(n: Any, m: Any) -> bool:
    """``(same-size? n m)``: whether two sizes are equal; a compiler asks whether they are in every call."""
    return n == m


def is_hoisted(value: Any) -> bool:
    """``(hoisted? a)``: only a compiler moves values out of loops."""
    return False


def note_result(f: Any, x: Any, *others: Any) -> Any:
    """``(note-result f x ... how)``: x; only a compiler keeps notes."""
    return x


def noted_result(f: Any, *values: Any) -> Any:
    """``(noted-result f x ...)``: nil."""
    return nil


def constant(f: Callable[..., Any], *args: Any) -> Any:
    """``(constant f x ...)``: what f gives; to derivatives, a constant."""
    return f(*args)


def ruled(f: Callable[..., Any], jvp: Any, vjp: Any, *args: Any) -> Any:
    """``(ruled f jvp vjp x ...)``: what f gives; its derivatives are the rules'."""
    return f(*args)


def copy(array: Any) -> np.ndarray:
    """``(copy v)``"""
    return np.array(array)


def array_of(parts: Any) -> np.ndarray:
    """``(array-of a)``: a copy of an array, or the array of what a tuple holds."""
    return np.array(parts)


def update(array: Any, *indices_and_value: Any) -> np.ndarray:
    """``(update v i ... x)``: a copy with one element (or row) replaced."""
    *indices, value = indices_and_value
    made = np.array(array, dtype=np.result_type(np.asarray(array), np.asarray(value)))
    made[builtins.tuple(indices)] = value
    return made


def add_at(array: Any, *indices_and_value: Any) -> np.ndarray:
    """``(add-at v i ... x)``: a copy with x added to one element (or row)."""
    *indices, value = indices_and_value
    return update(array, *indices, np.asarray(array)[builtins.tuple(indices)] + value)


def undef(constructor: Any) -> None:
    """``(undef Leaf)``: a value that is never read, of the type that the constructor is of."""


def zeros_of(*dims: Any) -> np.ndarray:
    """``(zeros-of n ...)``"""
    return np.zeros(dims)


def fst(pair: Any) -> Any:
    """``(fst p)``"""
    return pair[0]


def snd(pair: Any) -> Any:
    """``(snd p)``"""
    return pair[1]


class Ref:
    """``(ref x)``: a place whose value ``set!`` changes."""

    def __init__(self, value: Any) -> None:
        self.value = value


def ref(value: Any) -> Ref:
    """``(ref x)``"""
    return Ref(value)


def deref(place: Ref) -> Any:
    """``(deref r)``: what the place holds."""
    return place.value


def set_in(place: Ref, value: Any) -> None:
    """``(set! r x)``"""
    place.value = value


def select(condition: Any, then: Any, orelse: Any) -> Any:
    """``(select c a b)``: a or b, both already computed."""
    return then if condition else orelse


def in_rising_order(v: Any) -> tuple[np.ndarray, np.ndarray]:
    """``(in-rising-order v)``: what the prelude merges out of an array of pairs, which is a pair of arrays here."""
    order = np.argsort(v, kind="stable")
    return np.asarray(v)[order], order


# ------------------------------------------------------------------------------- what a program requires


def require_index(index: int, size: int) -> None:
    """``(require-index i n)``: 0 <= i < n."""
    if not 0 <= index < size:
        raise BoundsError(f"index {index} in an array of length {size}")


def require_equal(a: int, b: int) -> None:
    """``(require-equal n m)``"""
    if a != b:
        raise ModelTypeError(f"the sizes {a} and {b} differ")


def require_at_most(a: int, b: int) -> None:
    """``(require-at-most n m)``: n <= m."""
    if not a <= b:
        raise BoundsError(f"{a} is more than {b}")


def require_below(a: int, b: int) -> None:
    """``(require-below n m)``: n < m."""
    if not a < b:
        raise BoundsError(f"{a} is not less than {b}")


# ------------------------------------------------------------------------------ primitives and the prelude


def _primitives() -> dict[str, Callable[..., Any]]:
    """The rows of the table by their Python names. Operators are Hy's own, as values too: ``(fold + 0.0 xs)``."""
    found = {}
    for name, row in PRIMITIVES.items():
        if name not in ("and", "or", "not", "neg"):
            mangled = hy.mangle(name)
            found[mangled] = getattr(hy.pyops, mangled, row.python)
    for name in ("min", "max"):  # n-ary, as in a model
        found[name] = _n_ary(found[name])
    return found


def _n_ary(binary: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meaning(first: Any, *rest: Any) -> Any:
        if not rest and np.ndim(first):
            first, *rest = np.ravel(first)
        for x in rest:
            first = binary(first, x)
        return first

    return meaning


def _prelude() -> list[str]:
    """The functions of ``prelude.hy`` here, each evaluated as Hy when it is called first; their Python names."""
    names = {hy.mangle(name): name for name in prelude_texts() if "/" not in name}
    globals().update({python: _of_prelude(name) for python, name in names.items() if name != "in-rising-order"})
    return [*names]


def _of_prelude(name: str) -> Callable[..., Any]:
    """``sum``: of one argument what the prelude calls so, of two its ``sum/2``."""

    def function(*args: Any) -> Any:
        wanted = f"{name}/{len(args)}"
        return _evaluated(wanted if wanted in prelude_texts() else name)(*args)

    function.__name__ = hy.mangle(name)
    function.__doc__ = f"``{name}`` of ``prelude.hy``."
    return function


@cache
def _evaluated(name: str) -> Callable[..., Any]:
    return hy.eval(hy.read(prelude_texts()[name].replace(f"(defmodel {name}", "(fn", 1)), globals())


globals().update(_primitives())
globals()[hy.mangle("set!")] = set_in
_ASKED = (
    is_num,
    is_null,
    is_same_size,
    is_symmetric,
    is_lower_triangular,
    is_upper_triangular,
    is_truths,
    is_reals,
    is_hoisted,
)
_QUESTIONS = {hy.mangle(f"{f.__name__[3:]}?"): f for f in _ASKED}
globals().update(_QUESTIONS)

__all__ = [
    "Arr", "Bool", "D", "Int", "Mat", "Real", "Tuple", "Vec", "add_at", "array_of", "build", "constant", "copy",
    "deref", "fold", "fst", "grad", "hessian", "hvp", "ifold", "iterate", "jacobian", "jvp", "loop", "map", "nil",
    "note_result", "noted_result", "rank", "ref", "require_at_most", "require_below", "require_equal",
    "require_index", "ruled", "scan", "select", "shape", "snd", "undef", "update", "value_and_grad", "vjp",
    "zeros_of",
]  # fmt: skip
__all__ += [hy.mangle("set!"), *_QUESTIONS, *_primitives(), *_prelude()]
