"""The types of Python data: lists, trees and sums as a signature, from a value.

A list or a tree is told from its values, not declared: which constructors stand where, and what kind each field is.
``(1.0, (2.0, None))`` and a list of a million numbers have the same signature, so that both run the same code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import BOOL, INT, REAL, Arr
from ..errors import NotCompiled
from .data import Data, Inl, Inr

Spec = Any  # Scalar | Arr with dims int | str | None | Node of Specs | DataSpec | None (unknown)
Path = tuple[Any, ...]
PAIRS = 64  # nested pairs that do not end in None are a tuple up to so many numbers, data beyond
FLAT = 8  # data of so few values is taken apart
SUMS = 4  # sums that hold nothing but sums are told apart to this depth


@dataclass(frozen=True, slots=True)
class Inline:
    """A step of a path: the tuple or record in field ``field``, of which no family is made."""

    field: int
    keys: tuple[str, ...] | None
    make: Any


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Data as families of constructors: ``rows`` holds (family, constructor, fields). A family is told by the sorts
    on the way to it; a field is a ``Scalar``, an ``Arr``, ``"nil"`` or the path of a family or of an ``Inline``."""

    root: Path
    rows: frozenset[tuple[Path, Any, tuple[Any, ...]]]

    def families(self) -> list[Path]:
        return sorted({row[0] for row in self.rows if not isinstance(row[0][-1], Inline)}, key=len)

    def __repr__(self) -> str:
        return f"data of {' or '.join(sorted(name_of(kind) for path, kind, _ in self.rows if path == self.root))}"


def name_of(kind: Any) -> str:
    return kind.name if isinstance(kind, type) else str(kind)


def is_list(value: tuple) -> bool:
    """Whether nested 2-tuples are a list (they end in None) or too large to be taken apart."""
    end: Any = value
    while type(end) is tuple and len(end) == 2:
        end = end[1]
    if end is None:
        return True
    count, todo = 0, [value]
    while todo and count <= PAIRS:
        x = todo.pop()
        if type(x) is tuple:
            if len(x) != 2:
                return False
            todo.extend(x)
        else:
            count += 1
    return count > PAIRS


def is_flat(value: Data) -> bool:
    """Whether data is so small that its structure is worth code of its own: no constructor inside its own type."""
    todo: list[tuple[Any, tuple[Any, ...]]] = [(value, ())]
    count = 0
    while todo:
        x, around = todo.pop()
        count += 1
        if count > FLAT:
            return False
        if isinstance(x, Data):
            sort = sort_of(x)
            if sort in around:
                return False
            todo.extend((part, (*around, sort)) for part in x)
        elif type(x) is tuple:
            if x and is_list(x):
                return False
            todo.extend((part, around) for part in x)
    return True


def sort_of(value: Any) -> Any:
    if isinstance(value, Data):
        return "sum" if isinstance(value, (Inl, Inr)) else type(value).__mro__[1]
    return "list"


def data_spec(value: Any, leaf: Callable[[Any], Any]) -> DataSpec:
    """The signature of data; ``leaf`` gives the spec of what is no data (and raises for what models do not take)."""
    found: dict[Path, dict[Any, list[set[Any]]]] = {}
    root: Path = (sort_of(value),)
    todo: list[tuple[Any, Path]] = [(value, root)]
    kinds: dict[type, Any] = {float: REAL, int: INT, bool: BOOL, np.float64: REAL}
    while todo:
        x, path = todo.pop()
        rows = found.setdefault(path, {})
        kind: Any = path[-1]
        if not isinstance(kind, Inline):
            kind = type(x) if isinstance(x, Data) else "cons"
        row = rows.get(kind)
        if row is None:
            row = rows[kind] = [set() for _ in x]
        if kind == "cons" and inside(path, "list", True) == path:  # along a list there is nothing to look up
            heads: set[type] = set()
            start = x
            while type(x[1]) is tuple and len(x[1]) == 2 and type(x[0]) in kinds:
                heads.add(type(x[0]))
                x = x[1]
            if x is not start:
                row[0].update(kinds[t] for t in heads)
                row[1].add(path)
        for k, part in enumerate(x):
            scalar = kinds.get(type(part))
            if scalar is not None:
                row[k].add(scalar)
            elif part is None:
                row[k].add("nil")
            elif isinstance(part, Data) or type(part) is tuple and len(part) == 2:
                inner = inside(path, sort_of(part), kind == "cons" and k == 1)
                row[k].add(inner)
                todo.append((part, inner))
            elif (fields := fields_of(part)) is not None:
                if fields[2] is not None:
                    raise NotCompiled(f"a {fields[2].__name__} inside data", None, "use a dict, or a type of `defdata`")
                inner = (*path, Inline(k, *fields[1:]))
                row[k].add(inner)
                todo.append((fields[0], inner))
            else:
                spec = leaf(part)
                row[k].add(Arr(spec.elem, (None,) * spec.rank) if isinstance(spec, Arr) else spec)
    table: dict[tuple[Path, Any], tuple[Any, ...]] = {}
    more: dict[Path, set[Any]] = {}
    for path, rows in found.items():
        for kind, row in rows.items():
            fields = tuple(settle(path, kind, k, held, more) for k, held in enumerate(row))
            table[path, kind] = fields
    for path, extra in more.items():
        for kind in extra:
            made = {"nil": (), "number": (REAL,), "truth": (BOOL,)}.get(kind, (kind,))  # type: ignore[call-overload]
            table.setdefault((path, kind), made)
    return DataSpec(root, frozenset((path, kind, fields) for (path, kind), fields in table.items()))


def fields_of(value: Any) -> tuple[tuple[Any, ...], tuple[str, ...] | None, Any] | None:
    """The fields of a tuple or record, their names, and what makes it anew; None for what has none."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return tuple(value), names, type(value) if names else None
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return tuple(value.values()), tuple(value), None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in dataclasses.fields(value))
        return tuple(getattr(value, f) for f in names), names, type(value)
    return None


def inside(path: Path, sort: Any, tail: bool) -> Path:
    """The family of a field: its own again where that is recursive."""
    if sort not in path:
        return (*path, sort)
    depth = path.count(sort)
    own = len(path) - 1 - path[::-1].index(sort)
    if sort == "sum" and depth < SUMS and path[-depth:] == (sort,) * depth:  # right inside one another
        return (*path, sort)
    if tail or sort not in ("list", "sum") or depth >= 2:
        return path[: own + 1]
    return (*path, sort)


def settle(path: Path, kind: Any, k: int, held: set[Any], more: dict[Path, set[Any]]) -> Any:
    """What one field holds, of all that was found in it. Raises ``NotCompiled`` where no type has all of that."""
    paths = [x for x in held if isinstance(x, tuple)]
    rest = {x for x in held if not isinstance(x, tuple)}
    for x in list(rest):  # integers among reals are reals
        real = Arr(REAL, x.dims) if isinstance(x, Arr) and x.elem == INT else REAL if x == INT else None
        if real in rest:
            rest.discard(x)
    nil = "nil" in rest
    tail = kind == "cons" and k == 1
    if len(paths) + len(rest) == 1 and not (tail and nil):
        return paths[0] if paths else next(iter(rest))
    if len(paths) > 1 or paths and rest and isinstance(paths[0][-1], Inline):
        raise NotCompiled(
            "a part of this data is of different kinds, here " + " and there ".join(sorted({said(x) for x in held})[:2])
        )
    if not paths:
        paths = [inside(path, "list", tail)]
    home = paths[0]
    kinds = more.setdefault(home, set())
    for x in rest:
        kinds.add("number" if x in (REAL, INT) else "truth" if x == BOOL else x)
    return home


def said(held: Any) -> str:
    """What a field holds, in the words of the language."""
    if isinstance(held, tuple):
        made = held[-1]
        if isinstance(made, Inline):
            return f"a record of {', '.join(made.keys)}" if made.keys else "a tuple"
        return {"list": "a pair", "sum": "a sum"}.get(made) or f"a {made.__name__}"
    if isinstance(held, Arr):
        return "an array"
    return {"nil": "nil", REAL: "a number", INT: "a number", BOOL: "a truth value"}.get(held, str(held))
