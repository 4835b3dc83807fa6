"""Marshalling: Python's arguments as the numbers and arrays of a program, and its results as Python values.

A *spec* is the type of an argument (``spec_of``), a tree the structure of one that is taken apart.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import numpy as np

from . import core
from .core import BOOL, INT, REAL, ROW, Arr, Leaf, Node, Tree
from .errors import ModelTypeError, NotCompiled
from .program.data import Data
from .program.signature import FLAT, DataSpec, Spec, data_spec, is_flat, is_list
from .program.values import nothing


def spec_of(value: Any, name: str | None = None) -> Spec:
    """The type of a Python value, the argument ``name``, as a model sees it.

    Raises ``ModelTypeError`` for what models do not take.
    """
    t, who = type(value), f"argument `{name}`" if name else "this argument"
    if t is float:
        return REAL
    if t is bool or t is np.bool_:
        return BOOL
    if t is int:
        return INT
    if value is None:
        return Node((), None, nothing)
    if isinstance(value, np.ndarray):
        elem = {"f": REAL, "i": INT, "u": INT, "b": BOOL}.get(value.dtype.kind)
        if elem is None:
            raise ModelTypeError(
                f"{who} is an array of {value.dtype}, not of numbers", None, "models take float, int and bool arrays"
            )
        return Arr(elem, (None,) * value.ndim) if value.ndim else elem
    if isinstance(value, Data) and not is_flat(value) or t is tuple and len(value) == 2 and is_list(value):
        try:
            return data_spec(value, lambda part: spec_of(part, name))
        except ModelTypeError as error:
            raise ModelTypeError(f"{who}: {foreign(value) or error.message}", error.span, error.hint) from None
        except NotCompiled:  # a pair whose second is a list of other things than its first
            items = lisp_items(value, FLAT + 1)
            if t is not tuple or len(items) > FLAT or all(isinstance(x, Data) for x in items):
                raise
            return Node((spec_of(value[0], f"{name}[0]"), spec_of(value[1], f"{name}[1]")))
    if isinstance(value, Data):
        keys = value.__match_args__
        return Node(tuple(spec_of(x, f"{name}.{k}") for k, x in zip(keys, value)), keys, t)
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = tuple(spec_of(x, f"{name}[{k}]") for k, x in enumerate(value))
        return Node(items, names, type(value)) if names else Node(items)
    if isinstance(value, dict):
        if not all(isinstance(k, str) for k in value):
            raise ModelTypeError(f"{who} is a dict whose keys are not all strings", None, "records have named fields")
        return Node(tuple(spec_of(x, f"{name}[{k!r}]") for k, x in value.items()), tuple(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(f.name for f in dataclasses.fields(value))
        return Node(tuple(spec_of(getattr(value, f), f"{name}.{f}") for f in fields), fields, t)
    if isinstance(value, np.floating):
        return REAL
    if isinstance(value, np.integer):
        return INT
    if isinstance(value, list):
        raise ModelTypeError(f"{who} is a Python list", None, "pass an array: numpy.array(...)")
    if isinstance(value, (memoryview, array)):
        return spec_of(np.asarray(value), name)
    if callable(value):
        raise ModelTypeError(f"{who} is a function", None, "name the function inside the model: `(f x)`")
    if isinstance(value, int):
        return INT
    if isinstance(value, float):
        return REAL
    hint = "models take numbers, NumPy arrays, tuples, dicts and dataclasses"
    if hasattr(t, "__cuda_array_interface__"):
        hint = 'arrays of the GPU are for what hyad.compile(f, target="cuda") gives'
    elif hasattr(value, "__float__"):
        hint = "pass float(...) of it" if not hasattr(value, "__len__") else "pass numpy.asarray(...) of it"
    raise ModelTypeError(f"{who} is a Python {t.__name__}", None, hint)


def with_rows(spec: Spec, value: Any) -> Spec:
    """The type of an argument with the size of its arrays' rows, where these are short: two to four numbers are a point
    or a colour, and get code of their own."""
    if isinstance(spec, Arr):
        shape = getattr(value, "shape", ())
        short = len(shape) > 1 and 1 < shape[-1] <= ROW
        return Arr(spec.elem, (*spec.dims[:-1], shape[-1])) if short else spec
    if isinstance(spec, Node):
        parts = parts_of(spec, value)
        return Node(tuple(map(with_rows, spec.items, parts)), spec.keys, spec.make)
    return spec


def without_rows(spec: Spec) -> Spec:
    """A type with all sizes left open."""
    if isinstance(spec, Arr):
        return Arr(spec.elem, (None,) * spec.rank)
    return Node(tuple(map(without_rows, spec.items)), spec.keys, spec.make) if isinstance(spec, Node) else spec


def lisp_items(value: Any, most: int) -> list[Any]:
    """The first elements of a list."""
    items: list[Any] = []
    while type(value) is tuple and len(value) == 2 and len(items) < most:
        items.append(value[0])
        value = value[1]
    return items


def foreign(value: Any) -> str:
    """Which part of data is nothing that models take, and what it is."""
    from hyad.codegen.values import article, written

    todo: list[tuple[Any, Any]] = [(value, None)]
    while todo:
        x, path = todo.pop()
        if isinstance(x, Data):
            todo += [(part, (path, f".{k}")) for k, part in zip(x.__match_args__, x)][::-1]
        elif type(x) is tuple:
            todo += [(part, (path, f"[{k}]")) for k, part in enumerate(x)][::-1]
        else:
            try:
                spec_of(x)
            except ModelTypeError:
                return f"{written(path)} is {article(x)}, not a number"
    return ""


def signature_key(spec: Spec) -> Any:
    """A hashable form of a spec."""
    if isinstance(spec, Node):
        return ("node", tuple(map(signature_key, spec.items)), spec.keys, spec.make)
    return spec


def tree_spec(tree: Tree, params: Any) -> Spec:
    """The spec of an argument that was taken apart into parameters, the next of ``params``."""
    if isinstance(tree, Leaf):
        t = next(params).type
        return Arr(t.elem, (None,) * t.rank) if isinstance(t, Arr) else t
    return Node(tuple(tree_spec(t, params) for t in tree.items), tree.keys, tree.make)


def fits(wanted: Any, key: Any) -> bool:
    """Whether an argument of the signature ``key`` goes where ``wanted`` is declared."""
    if isinstance(wanted, tuple) and isinstance(key, tuple):
        return len(wanted) == len(key) and all(map(fits, wanted, key))
    if isinstance(wanted, core.Data):  # which parts do not fit is found as they are read
        return isinstance(key, DataSpec)
    return wanted == key or (wanted == REAL and key == INT)


def take_apart(tree: Tree, value: Any, into: list[Any]) -> None:
    """The numbers and arrays of a structured argument, left to right."""
    if isinstance(tree, Leaf):
        into.append(value)
    else:
        for t, x in zip(tree.items, parts_of(tree, value)):
            take_apart(t, x, into)


def parts_of(tree: Tree, value: Any) -> Any:
    """The parts of a structured argument, in the order of the tree's."""
    if tree.keys is None:
        return value or ()
    return [value[k] if isinstance(value, dict) else getattr(value, k) for k in tree.keys]


def put_together(tree: Tree, results: Any) -> Any:
    """The inverse: a structure from its numbers and arrays."""
    if isinstance(tree, Leaf):
        return next(results)
    parts = [put_together(t, results) for t in tree.items]
    if tree.keys is None:
        return tree.make() if tree.make is not None else tuple(parts)
    fields = dict(zip(tree.keys, parts))
    return tree.make(**fields) if tree.make is not None else fields
