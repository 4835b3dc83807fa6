"""What was compiled before: the way from a model's text to its compiled code, kept on disk beside that code.

A second process that calls the same model with the same signature needs neither derivation nor optimisation nor
printing: a record tells the compiled function's calling convention, and the shared object is found by its C text. A
record holds for one text, one signature, one state of hyad's own files, and the same values of the names that the
model reads from its module; a model whose meaning cannot be written down so (it closes over local variables, uses a
primitive of the user's) has none.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .core import Leaf, Node, Tree
from .program.primitives import BUILTIN, PRIMITIVES
from .program.signature import DataSpec
from .program.values import Closure, Derived, nothing


def meaning(value: Any) -> Any:
    """A function value, or a value of a module, as plain data; raises ``KeyError`` where it has no such form."""
    if isinstance(value, Closure):
        span = value.function.span
        if value.env is not None or span is None:
            raise KeyError(value)
        return ("model", span.source.text, span.start, span.source.filename, span.source.line)
    if isinstance(value, Derived):
        return (value.operator, value.wrt, value.encoding, meaning(value.function))
    if isinstance(value, (bool, int, float)):
        return (type(value).__name__, repr(value))
    if hasattr(value, "hyad_value"):
        return meaning(value.hyad_value())
    raise KeyError(value)


def plainly(spec: Any) -> Any:
    """A signature as plain data: classes of data by name and fields."""
    if isinstance(spec, DataSpec):
        return ("data", plainly(spec.root), sorted(repr(plainly(row)) for row in spec.rows))
    if isinstance(spec, tuple):
        return tuple(map(plainly, spec))
    if isinstance(spec, type):
        return (spec.__module__, spec.__qualname__, getattr(spec, "__match_args__", ()))
    return spec


def classes_of(spec: Any) -> set[type]:
    """The classes that a signature names."""
    if isinstance(spec, DataSpec):
        return {c for row in spec.rows for c in classes_of(row)}
    if isinstance(spec, tuple):
        return {c for part in spec for c in classes_of(part)}
    return {spec} if isinstance(spec, type) else set()


def scope_of(value: Any) -> Any:
    """The scope that a function's names are resolved in."""
    while isinstance(value, Derived):
        value = value.function
    return value.scope


def path_of(value: Any, specs: Sequence[Any], options: dict[str, Any]) -> str | None:
    """The file of the record for a function and a signature, whether it is there or not."""
    try:
        scope = scope_of(value)
        if getattr(scope, "cells", None) is not None or PRIMITIVES.keys() - BUILTIN:
            return None
        key = repr((meaning(value), list(map(plainly, specs)), sorted(options.items()), own_state()))
    except (KeyError, AttributeError):
        return None
    from hashlib import sha256

    from hyad.codegen.build import cache_folder

    return os.path.join(cache_folder(), f"{sha256(key.encode()).hexdigest()[:32]}.model")


@cache
def own_state() -> tuple:
    """What distinguishes this state of hyad from any other."""
    from hyad.codegen import build

    found = []
    for module in (__file__, build.__file__):
        for folder, _, names in os.walk(os.path.dirname(os.path.abspath(module))):
            for name in names:
                if name.endswith((".py", ".hy", ".h")):
                    status = os.stat(os.path.join(folder, name))
                    found.append((name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


def read(
    path: str | None, scope: Callable[[str], tuple[bool, Any]], specs: Sequence[Any] = ()
) -> tuple[Any, Any, Any, Any] | None:
    """The names that a model reads, its C function and the structure of its arguments and result, if the record is
    there and still true: its classes of data are those of the signature."""
    if path is None:
        return None
    from hyad.codegen.build import used

    try:
        with open(path, "rb") as file:
            names, function, ins, out = pickle.load(file)
        if names != values_of(names, scope):
            return None
        known = {(c.__module__, c.__qualname__): c for c in classes_of(tuple(specs))}
        for c in (c.make for t in function.types for c in t.constructors if isinstance(c.make, type)):
            if known.get((c.__module__, c.__qualname__), c) is not c:
                return None
        used(path)
        return names, function, restore(ins), restore(out)
    except Exception:  # any damaged or outdated record is as good as none
        return None


def write(path: str | None, names: set[str], value: Any, function: Any, ins: Any, out: Any) -> None:
    """Keep a record; what cannot be kept is not, and a cache that cannot be written to is left alone."""
    if path is None or not all(map(plain, (*ins, out))):
        return
    try:
        data = pickle.dumps((values_of(dict.fromkeys(names), scope_of(value)), function, store(ins), store(out)))
        waiting = f"{path}.{os.getpid()}"
        with open(waiting, "wb") as file:
            file.write(data)
        os.replace(waiting, path)
    except (KeyError, OSError, pickle.PicklingError, AttributeError, TypeError):
        return


def values_of(names: dict[str, Any], scope: Callable[[str], tuple[bool, Any]]) -> dict[str, Any]:
    """What names mean in a module now; None for those that it does not have."""
    found = {}
    for name in sorted(names):
        there, value = scope(name)
        found[name] = meaning(value) if there else None
    return found


def plain(tree: Tree) -> bool:
    """Whether a structure holds no classes of the user's."""
    return isinstance(tree, Leaf) or ((tree.make is None or tree.make is nothing) and all(map(plain, tree.items)))


def store(tree: Any) -> Any:
    """Trees as tuples: a ``Leaf`` is compared by kind, whatever process made it."""
    if isinstance(tree, tuple):
        return [store(t) for t in tree]
    return "leaf" if isinstance(tree, Leaf) else (tuple(map(store, tree.items)), tree.keys, tree.make is nothing)


def restore(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(map(restore, data))
    if data == "leaf":
        return Leaf()
    items, keys, none = data
    return Node(tuple(map(restore, items)), keys, nothing if none else None)
