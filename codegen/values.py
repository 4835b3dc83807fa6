"""Values of data types in Python: as users write them, and as the Python target computes with them.

The Python target has a tuple for each cell, the constructor's name before its fields: ``("Node", 1.0, left, right)``.
``into`` makes that of a user's value, ``back`` the other way round; both keep a list of what is to be done, so that
depth is no matter. ``misfit`` says which part of a value does not fit, for the code that only knows that one does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hyad.core import BOOL, INT, REAL, Arr, Const, Constructor, Data, Leaf, Node, Tree, Var, type_atoms
from hyad.errors import HyadError
from hyad.program.values import nothing


class Misfit(Exception):
    """A part of a value does not fit: ``path`` leads to it, ``reason`` says what it is and what it should be."""

    def __init__(self, path: str, reason: str):
        super().__init__(f"{path} {reason}".strip())
        self.path, self.reason = path, reason


def visible(c: Constructor) -> list[Var]:
    """The fields that a Python value has: the sizes of its arrays are not among them."""
    sizes = {d for f in c.fields for d in type_atoms(f.type)}
    return [f for f in c.fields if f not in sizes]


def leaves_of(value: Any, tree: Tree) -> tuple | None:
    """The leaves of a structured part, None where it is not so structured."""
    if isinstance(tree, Leaf):
        return (value,)
    if tree.make is nothing:
        return () if value is None else None
    if tree.keys is None:
        items = value if type(value) is tuple and len(value) == len(tree.items) else None
    elif isinstance(value, dict):
        items = tuple(value[k] for k in tree.keys) if value.keys() == set(tree.keys) else None
    else:
        items = tuple(getattr(value, k, None) for k in tree.keys) if type(value) is tree.make else None
    inner = [leaves_of(x, t) for x, t in zip(items, tree.items)] if items is not None else [None]
    return None if None in inner else tuple(leaf for part in inner for leaf in part)  # type: ignore[union-attr]


def parts_of(value: Any, c: Constructor) -> tuple | None:
    """The parts of a value that ``c`` made, a value for each visible field; None where it made it not."""
    make = c.make
    if c.parts:
        if make == "whole":
            return leaves_of(value, c.parts[0])
        if type(value) is not make or len(tuple(value)) != len(c.parts):
            return None
        return leaves_of(tuple(value), Node(c.parts))
    if make is None:
        return () if value is None else None
    if make is tuple:
        return value if type(value) is tuple and len(value) == len(visible(c)) else None
    if make is float:
        return (value,) if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else None
    if make is bool:
        return (value,) if isinstance(value, (bool, np.bool_)) else None
    if make == "array":
        return (value,) if isinstance(value, np.ndarray) else None
    if isinstance(make, type):
        return tuple(value) if type(value) is make else None
    return None


def into(value: Any, data: Data) -> tuple:
    """A user's value as the Python target has it. Raises ``Misfit``."""
    root: list[Any] = [None]
    # what is to be done: a value, its type, where it goes, and the path to it: (path of the whole, step)
    todo: list[tuple[Any, Data, list, int, Any]] = [(value, data, root, 0, None)]
    made: list[list] = []
    places: list[tuple[list, int, list]] = []
    while todo:
        x, t, owner, at, path = todo.pop()
        for c in t.constructors:
            parts = parts_of(x, c)
            if parts is not None:
                break
        else:
            raise Misfit(written(path), f"is {article(x)}, not {wanted(t)}")
        cell: list[Any] = [c.name]
        sizes: dict[Var, int] = {}
        slots = iter(zip(visible(c), parts))
        made.append(cell)
        places.append((owner, at, cell))
        later: list[tuple[Any, Data, int, Any]] = []
        known = dict.fromkeys(visible(c))
        for f in c.fields:
            if f not in known:
                cell.append(None)  # a size
                continue
            _, part = next(slots)
            step = (path, step_of(c, f))
            if isinstance(f.type, Data):
                later.append((part, f.type, len(cell), step))
                cell.append(None)
            elif isinstance(f.type, Arr):
                cell.append(array(part, f.type, sizes, step))
            else:
                cell.append(scalar(part, f.type, step))
        for k, f in enumerate(c.fields):
            if f not in known:
                cell[k + 1] = sizes[f]
        todo += [(part, kind, cell, k, step) for part, kind, k, step in later]
    for owner, at, cell in reversed(places):  # the innermost first: tuples hold what is ready
        owner[at] = tuple(cell)
    return root[0]


def step_of(c: Constructor, f: Var) -> str:
    if isinstance(c.make, type) and c.make not in (tuple, float, bool) and not c.parts:
        return "." + c.make.__match_args__[visible(c).index(f)]
    return "" if c.make in (float, bool, "array", "whole") else f"[{visible(c).index(f)}]"


def scalar(value: Any, t: Any, path: Any) -> Any:
    if t == BOOL:
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise Misfit(written(path), f"is {article(value)}, not a truth value")
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if t == INT:
        if number and -(2**63) <= value < 2**63:
            return int(value)
        raise Misfit(written(path), f"is {article(value)}, not an integer" + " of 64 bits" * number)
    if t == REAL:
        if number or isinstance(value, (float, np.floating)):
            try:
                return float(value)
            except OverflowError:
                raise Misfit(written(path), "is an integer too large for a real") from None
        raise Misfit(written(path), f"is {article(value)}, not a number")
    return value


def array(value: Any, t: Arr, sizes: dict[Var, int], path: Any) -> Any:
    from .stub_data import fit_array

    dtype = np.dtype({"Real": "float64", "Int": "int64", "Bool": "bool"}[t.elem.name])
    a = fit_array(value, dtype)
    kind = f"an array of rank {t.rank} of {dtype}"
    if a is None:
        raise Misfit(written(path), f"is {article(value)}, not {kind}")
    if a.ndim != t.rank:
        raise Misfit(written(path), f"is an array of rank {a.ndim}, not {kind}")
    for axis, (d, n) in enumerate(zip(t.dims, a.shape)):
        want = int(d.value) if isinstance(d, Const) else sizes.setdefault(d, n)
        if want != n:
            raise Misfit(written(path), f"is an array whose dimension {axis + 1} is {n}, not {want}")
    return a


def written(path: Any) -> str:
    """``field left.word``, ``item 3``, ``part [0][1]``: the steps from a whole to a part."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    steps.reverse()
    out = ""
    k = 0
    while k < len(steps):
        end = k
        while end < len(steps) and steps[end] == "[1]":
            end += 1
        if end < len(steps) and steps[end] == "[0]":  # of a list
            out += f"[item {end - k}]"
            k = end + 1
            continue
        out += steps[k]
        k += 1
    if not out:
        return "it"
    return f"field {out[1:]}" if out[0] == "." else f"part {out}"


def article(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if type(value) is tuple:
        return f"a tuple of {len(value)}"
    name = getattr(type(value), "name", None) or type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def wanted(t: Data) -> str:
    names = []
    for c in t.constructors:
        known = {None: "None", tuple: "a pair", float: "a number", bool: "a truth value", "array": "an array"}
        names.append(known.get(c.make) or (c.name if isinstance(c.make, type) else "a function"))
    return " or ".join(names)


def misfit(value: Any, data: Data) -> str:
    """What does not fit in a value of a data type; nothing where it all does."""
    try:
        into(value, data)
    except Misfit as error:
        return str(error)
    return ""


def back(cell: tuple, data: Data) -> Any:
    """A value of the Python target as the user has it."""
    todo: list[tuple[tuple, Data, bool]] = [(cell, data, False)]
    done: list[Any] = []
    while todo:
        x, t, ready = todo.pop()
        c = next(c for c in t.constructors if c.name == x[0])
        known = dict.fromkeys(visible(c))
        fields = [(f, v) for f, v in zip(c.fields, x[1:]) if f in known]
        inner = [(v, f.type) for f, v in fields if isinstance(f.type, Data)]
        if inner and not ready:
            todo.append((x, t, True))
            todo += [(v, kind, False) for v, kind in inner]
            continue
        ends = iter([done.pop() for _ in inner])  # the last to be made is the first field
        parts = [next(ends) if isinstance(f.type, Data) else own(v, f.type) for f, v in fields]
        done.append(assembled(c, parts))
    return done[0]


def own(value: Any, t: Any) -> Any:
    if isinstance(t, Arr):
        return np.array(value)
    return {"Real": float, "Int": int, "Bool": bool}.get(t.name, lambda v: v)(value)


def structured(tree: Tree, leaves: Any) -> Any:
    """A part from its leaves."""
    if isinstance(tree, Leaf):
        return next(leaves)
    if tree.make is nothing:
        return None
    if tree.make == "function":
        raise HyadError("a function inside data cannot be given to Python", None, "call it in the model")
    items = [structured(t, leaves) for t in tree.items]
    if tree.keys is None:
        return tuple(items)
    if tree.make is None:
        return dict(zip(tree.keys, items))
    return tree.make(*items) if hasattr(tree.make, "__match_args__") else tree.make(**dict(zip(tree.keys, items)))


def assembled(c: Constructor, parts: list) -> Any:
    if c.parts:
        leaves = iter(parts)
        parts = [structured(t, leaves) for t in c.parts]
        if c.make == "whole":
            return parts[0]
    if c.make == "function":
        raise HyadError("a function inside data cannot be given to Python", None, "call it in the model")
    if c.make is None:
        return None
    if c.make in (float, bool, "array"):
        return parts[0]
    return tuple(parts) if c.make is tuple else c.make(*parts)
