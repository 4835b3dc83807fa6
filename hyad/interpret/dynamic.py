"""The values of a program that runs as it is read: numbers under derivatives, references, records, and structure.

Numbers are Python's, or *active*: ``Dual`` carries a tangent, ``Node`` stands on a tape. Each belongs to a ``Level``,
one application of a derivative operator. Levels are numbered as they begin, so that of two the later is the inner one,
and an operation belongs to the innermost level among its operands: nothing else is needed to keep perturbations apart
(Lantern, section 2.5; Siskind and Pearlmutter's tags).

An array is a Python list, a vector of vectors a list of lists; tuples, lists (nested pairs), sums and data types are
what they are outside. Every walk over a structure is a loop: a list of a million cells is an ordinary value.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from ..errors import HyadError, ModelTypeError
from ..program.data import Data

_tags = count(1)


class Level:
    """One application of a derivative operator: ``tape`` is a list in reverse mode, None in forward mode. What is
    active at a level that has ended (``dead``: a reference outlived it) counts as the number that it was."""

    __slots__ = ("tag", "tape", "dead")

    def __init__(self, reverse: bool) -> None:
        self.tag = next(_tags)
        self.tape: list[Node] | None = [] if reverse else None
        self.dead = False

    def end(self) -> None:
        self.dead = True
        if self.tape is not None:
            self.tape.clear()


class Active:
    """A number under a derivative; ``primal`` is a number again, of an outer level or none."""

    __slots__ = ("level", "primal")


class Dual(Active):
    """Forward mode: a number with its tangent."""

    __slots__ = ("tangent",)

    def __init__(self, level: Level, primal: Any, tangent: Any) -> None:
        self.level, self.primal, self.tangent = level, primal, tangent


class Node(Active):
    """Reverse mode: a number with the operands that it was computed from and its partials by them, in turn."""

    __slots__ = ("edges", "bar")

    def __init__(self, level: Level, primal: Any, edges: Any) -> None:
        self.level, self.primal, self.edges, self.bar = level, primal, edges, None


ACTIVE = frozenset({Dual, Node})
NUMBERS = frozenset({float, int, Dual, Node})


class Ref:
    """``(ref e)``"""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Record:
    """A dict, dataclass or named tuple; ``make`` rebuilds it from its fields as keywords, None makes a dict."""

    __slots__ = ("keys", "values", "make")

    def __init__(self, keys: tuple[str, ...], values: tuple[Any, ...], make: Any) -> None:
        self.keys, self.values, self.make = keys, values, make


class Empty(list):
    """An array of no rows whose rows would have the shape ``inner``, of elements of the class ``kind``."""

    __slots__ = ("inner", "kind")


def plain(x: Any) -> Any:
    """A number without its derivatives."""
    while x.__class__ in ACTIVE:
        x = x.primal
    return x


# ------------------------------------------------------------------------------------------- structure


class _Make:
    __slots__ = ("count", "make")

    def __init__(self, count: int, make: Callable[[list[Any]], Any]) -> None:
        self.count, self.make = count, make


def walk(value: Any, visit: Callable[[Any], tuple[Sequence[Any] | None, Any]]) -> Any:
    """Rebuild a structure: ``visit(x)`` gives the parts of ``x`` and what makes it again of new ones, or None and the
    leaf that stands for it."""
    built: list[Any] = []
    todo: list[Any] = [value]
    while todo:
        x = todo.pop()
        if x.__class__ is _Make:
            start = len(built) - x.count
            parts = built[start:]
            del built[start:]
            built.append(x.make(parts))
            continue
        parts, made = visit(x)
        if parts is None:
            built.append(made)
        else:
            todo.append(_Make(len(parts), made))
            todo.extend(reversed(parts))
    return built[0]


def opened(x: Any) -> tuple[Sequence[Any] | None, Any]:
    """The parts of a structure, and what makes it again; None of a leaf."""
    kind = x.__class__
    if kind is tuple:
        return x, tuple
    if kind is list:
        return x, list
    if kind is Record:
        return x.values, lambda parts: Record(x.keys, tuple(parts), x.make)
    if kind is Empty:
        return (), lambda parts: x
    if isinstance(x, Data):
        return tuple(x), lambda parts: kind(*parts)
    return None, None


def transform(value: Any, leaf: Callable[[Any], Any], whole: Callable[[Any], bool] | None = None) -> Any:
    """``value`` with every leaf replaced; ``whole`` says of an array whether it counts as one leaf."""
    if value.__class__ in NUMBERS:
        return leaf(value)

    def visit(x: Any) -> tuple[Sequence[Any] | None, Any]:
        if whole is not None and isinstance(x, list) and whole(x):
            return None, leaf(x)
        parts, make = opened(x)
        return (None, leaf(x)) if parts is None else (parts, make)

    return walk(value, visit)


def leaves(value: Any, whole: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a structure, left to right."""
    found: list[Any] = []
    todo = [value]
    while todo:
        x = todo.pop()
        if whole is not None and isinstance(x, list) and whole(x):
            found.append(x)
            continue
        parts, _ = opened(x)
        if parts is None:
            found.append(x)
        else:
            todo.extend(reversed(parts))
    return found


def paired(value: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """The leaves of ``value``, each with what stands in its place in ``other``; None where the structures differ."""
    found: list[tuple[Any, Any]] = []
    todo = [(value, other)]
    while todo:
        x, y = todo.pop()
        parts, _ = opened(x)
        if parts is None:
            if opened(y)[0] is not None and x.__class__ in NUMBERS:
                return None
            found.append((x, y))
            continue
        others, _ = opened(y)
        kind = x.__class__ if x.__class__ is not Empty else list
        if others is None or not isinstance(y, kind) or len(parts) != len(others):
            return None
        todo.extend(reversed(list(zip(parts, others))))
    return found


def dims_of(value: Any) -> tuple[int, ...] | None:
    """The dims of a rectangular array of numbers or truth values; None of anything else."""
    if not isinstance(value, list):
        return () if value.__class__ in NUMBERS or value.__class__ is bool else None
    if not value:
        return (0, *getattr(value, "inner", ()))
    first = dims_of(value[0])
    if first is None or any(dims_of(x) != first for x in value[1:]):
        return None
    return (len(value), *first)


def is_numeric(value: list) -> bool:
    return dims_of(value) is not None


def shaped(flat: Sequence[Any], dims: Sequence[int], kind: type = float) -> Any:
    """The array of these dims that holds ``flat`` in memory order; ``kind`` is what it would hold if it is empty."""
    if not dims:
        return flat[0]
    if not dims[0]:
        made = Empty()
        made.inner, made.kind = tuple(dims[1:]), kind
        return made if dims[1:] or kind is not float else []
    step = len(flat) // dims[0]
    return [shaped(flat[k * step : (k + 1) * step], dims[1:], kind) for k in range(dims[0])]


def kind_of(x: Any) -> type:
    """What the elements of an array are, of no rows too, or a number is: ``bool``, ``int`` or ``float``."""
    while isinstance(x, list) and x:
        x = x[0]
    kind = getattr(x, "kind", float) if isinstance(x, list) else plain(x).__class__
    return kind if kind in (bool, int) else float


def is_list(value: Any) -> bool:
    """Whether a value is a list: pairs that end in nil."""
    while value.__class__ is tuple and len(value) == 2:
        value = value[1]
    return value is None


def items_of(value: Any) -> list[Any]:
    """The elements of a list."""
    found = []
    while value is not None:
        found.append(value[0])
        value = value[1]
    return found


def describe(value: Any) -> str:
    """A value's kind in the words of the language."""
    kind = value.__class__
    if kind in ACTIVE or kind is float:
        return "a number"
    if kind is int:
        return "an integer"
    if kind is bool:
        return "a truth value"
    if value is None:
        return "None"
    if kind is tuple:
        return "a list" if is_list(value) else "a pair" if len(value) == 2 else f"a tuple of {len(value)}"
    if isinstance(value, list):
        dims = dims_of(value)
        return "an array" if dims is None else f"an array of shape [{' '.join(map(str, dims))}]"
    if kind is Record:
        return f"a record of {', '.join(value.keys)}" if value.keys else "a record without fields"
    if kind is Ref:
        return "a reference"
    if isinstance(value, Data):
        return f"`({' '.join([value.name, *('..' for _ in value.__match_args__)])})`"
    return "a function" if callable(value) else f"a Python {kind.__name__}"


# -------------------------------------------------------------------------------------- to and from Python


def enter(value: Any, label: str = "this argument", function: Callable[[Any], Any] | None = None) -> Any:
    """A Python value as a running model has it. Arrays are copied: ``set-at!`` never writes into the caller's.

    ``function`` says what a Python function becomes. Raises ``ModelTypeError`` for what models do not take.
    """

    def fail(what: str, hint: str) -> ModelTypeError:
        return ModelTypeError(f"{label} is {what}", None, hint)

    def visit(x: Any) -> tuple[Sequence[Any] | None, Any]:
        kind = x.__class__
        if kind is float or kind is int or kind is bool or x is None:
            return None, x
        if kind is tuple:
            return x, tuple
        if isinstance(x, np.ndarray):
            if x.dtype.kind not in "fiub":
                raise fail(f"an array of {x.dtype}, not of numbers", "models take float, int and bool arrays")
            kind = {"b": bool, "f": float}.get(x.dtype.kind, int)
            return None, shaped((), x.shape, kind) if x.size == 0 else x.tolist()
        if isinstance(x, np.generic) and x.dtype.kind in "fiub":
            return None, x.item()
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return tuple(x), lambda parts: Record(x._fields, tuple(parts), kind)
        if isinstance(x, tuple):
            return tuple(x), tuple
        if isinstance(x, dict):
            if not all(isinstance(k, str) for k in x):
                raise fail("a dict whose keys are not all strings", "records have named fields")
            return tuple(x.values()), lambda parts: Record(tuple(x), tuple(parts), None)
        if isinstance(x, Data):
            return tuple(x), lambda parts: kind(*parts)
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            keys = tuple(f.name for f in dataclasses.fields(x))
            return tuple(getattr(x, k) for k in keys), lambda parts: Record(keys, tuple(parts), kind)
        if isinstance(x, list):  # an array of what NumPy has no array of
            if all(isinstance(n, (int, float, np.number)) for n in x):
                raise fail("a Python list", "pass an array: numpy.array(...)")
            return x, list
        if isinstance(x, (memoryview, array)):
            return None, np.asarray(x).tolist()
        if callable(x) and function is not None:
            return None, function(x)
        if isinstance(x, (int, float)):
            return None, int(x) if isinstance(x, int) else float(x)
        raise fail(f"a Python {kind.__name__}", "models take numbers, NumPy arrays, tuples, dicts and data types")

    return walk(value, visit)


def leave(value: Any, function: Callable[[Any], Any]) -> Any:
    """A value of a running model as Python has it: arrays of numbers are NumPy arrays, other arrays lists.

    ``function`` says what a function becomes. Raises ``ModelTypeError`` for a reference, which is the model's own.
    """

    def visit(x: Any) -> tuple[Sequence[Any] | None, Any]:
        kind = x.__class__
        if kind in NUMBERS:
            x = plain(x)
            if x.__class__ is int and not -(2**63) <= x < 2**63:
                raise ModelTypeError("an integer of this call does not fit in 64 bits", None, "compute with reals")
            return None, x
        if isinstance(x, list):
            dims = dims_of(x)
            if dims is None:
                return x, list
            return None, numpy_array([plain(n) for n in leaves(x)], dims, kind_of(x))
        if kind is Record:
            return x.values, x.make and (lambda parts: x.make(**dict(zip(x.keys, parts)))) or (
                lambda parts: dict(zip(x.keys, parts))
            )
        if kind is Ref:
            raise ModelTypeError("a reference cannot leave the model", None, "give what it holds: `(deref r)`")
        parts, make = opened(x)
        if parts is not None:
            return parts, make
        return None, function(x) if callable(x) else x

    return walk(value, visit)


def numpy_array(flat: list[Any], dims: tuple[int, ...], kind: type) -> np.ndarray:
    kinds = {x.__class__ for x in flat} or {kind}
    if bool in kinds and len(kinds) > 1:
        raise ModelTypeError("this array mixes numbers and truth values", None, "all elements have one type")
    dtype = np.bool_ if bool in kinds else np.int64 if kinds == {int} else np.float64
    try:
        return np.array(flat, dtype).reshape(dims)
    except OverflowError:
        raise ModelTypeError("an integer of this call does not fit in 64 bits", None, "compute with reals") from None


def blame(error: HyadError, value: Any) -> HyadError:
    """An error that is about one operand: its place is that operand's."""
    error.value = value  # type: ignore[attr-defined]
    return error
