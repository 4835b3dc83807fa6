"""Data that Python and models share: sums, and the user's own data types.

Lists are nested pairs as in Lisp, ``(1.0, (2.0, None))``; a sum is ``inl(v)`` or ``inr(v)``; ``defdata`` makes a type
of constructors, each a class whose instances hold its fields in order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ModelTypeError
from .names import is_symbol, mangled


class Data:
    """The instances of every constructor: equal where constructor and fields are, immutable, shown as a call."""

    __slots__ = ()
    __match_args__: tuple[str, ...] = ()
    name = ""  # as a model calls the constructor

    def __init__(self, *fields: Any, **named: Any) -> None:
        wanted = self.__match_args__
        if named and not fields and named.keys() == set(wanted):
            fields = tuple(named[name] for name in wanted)
        if len(fields) != len(wanted):
            raise ModelTypeError(
                f"`{self.name}` takes {len(wanted)} field{'s' * (len(wanted) != 1)} [{' '.join(wanted)}],"
                f" not {len(fields)}"
            )
        for name, value in zip(wanted, fields):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a {self.name} cannot be changed: make another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {self.name} cannot be changed: make another")

    def __reduce__(self) -> Any:
        return type(self), tuple(self)

    def __iter__(self) -> Any:
        return (getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: Any) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        pairs = [(self, other)]
        while pairs:  # no recursion: a list of a million cells is an ordinary value
            a, b = pairs.pop()
            if isinstance(a, Data):
                if type(a) is not type(b):
                    return False
                pairs.extend(zip(a, b))
            elif type(a) is tuple and type(b) is tuple:
                if len(a) != len(b):
                    return False
                pairs.extend(zip(a, b))
            elif not equal(a, b):
                return False
        return True

    def __hash__(self) -> int:
        return hash((type(self), *(x for x in self if not isinstance(x, (Data, tuple)))))

    def __repr__(self) -> str:
        return written(self)


def equal(a: Any, b: Any) -> bool:
    if hasattr(a, "shape") or hasattr(b, "shape"):
        return getattr(a, "shape", ()) == getattr(b, "shape", ()) and bool((a == b).all())
    return bool(a == b)


def written(value: Any) -> str:
    """Data as Hy that reads back: ``(Node 1.0 (Leaf 2) None)``."""
    out: list[str] = []
    todo: list[Any] = [value]
    while todo:
        x = todo.pop()
        if type(x) is _Text:
            out.append(x)
        elif isinstance(x, Data):
            todo.append(_Text(")"))
            for part in reversed(tuple(x)):
                todo += [part, _Text(" ")]
            out.append(f"({x.name}")
        elif type(x) is tuple:
            todo.append(_Text(")"))
            for k, part in reversed(list(enumerate(x))):
                todo += [part, _Text(" ")] if k else [part]
            out.append("#(")
        else:
            out.append(repr(x))
    return "".join(out)


class _Text(str):
    __slots__ = ()


class Inl(Data):
    """The left case of a sum: ``(inl v)``."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    name = "inl"


class Inr(Data):
    """The right case of a sum: ``(inr v)``."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    name = "inr"


inl, inr = Inl, Inr


def defdata(name: str, *constructors: Sequence[str], module: str | None = None) -> type:
    """A data type: a class, whose attributes are its constructors, in ``constructors`` order.

    Each constructor is its name and those of its fields. ``Tree = defdata("Tree", ["Leaf", "word"], ["Node", "label",
    "left", "right"])`` makes ``Tree.Leaf`` and ``Tree.Node``: classes to make values with and to match on. Raises
    ``ModelTypeError`` for a name that stands twice.
    """
    if not is_symbol(name):
        raise ModelTypeError(f"{name!r} is no name for a data type", None, "a name is a symbol, such as Tree")
    if not constructors:
        raise ModelTypeError(f"the data type `{name}` has no constructor", None, f"`(defdata {name} (Leaf x) ...)`")
    for c in constructors:
        if not isinstance(c, (list, tuple)) or not c or not all(map(is_symbol, c)):
            hint = 'as ["Node", "left", "right"], which `(Node left right)` makes'
            raise ModelTypeError(f"a constructor is its name and those of its fields, not {c!r}", None, hint)
    module = module or sys._getframe(1).f_globals.get("__name__", "__main__")
    base = type(name, (Data,), {"__slots__": (), "__module__": module, "__qualname__": name, "constructors": ()})
    made: list[type] = []
    for label, *fields in constructors:
        if any(label == c.name for c in made):
            raise ModelTypeError(f"`{name}` has two constructors called `{label}`", None, "rename one of them")
        if len(set(fields)) < len(fields):
            raise ModelTypeError(f"two fields of `{label}` have one name", None, "rename one of them")
        attributes = [mangled(f) for f in fields]
        body = {
            "__slots__": tuple(attributes), "__match_args__": tuple(attributes), "__module__": module,
            "__qualname__": mangled(label), "name": label, "fields": tuple(fields),
            "__doc__": f"`({' '.join([label, *fields])})` of {name}",
        }  # fmt: skip
        made.append(type(mangled(label), (base,), body))
        setattr(base, mangled(label), made[-1])
    base.constructors = tuple(made)
    return base


def lisp(items: Iterable[Any], end: Any = None) -> Any:
    """A list of models, nested pairs that end in ``None``: ``lisp([1.0, 2.0])`` is ``(1.0, (2.0, None))``."""
    if not isinstance(items, Iterable):
        raise ModelTypeError(f"a list has items: {items!r} has none", None, "`lisp([1.0, 2.0])`")
    for item in reversed(list(items)):
        end = (item, end)
    return end
