"""Tangents and adjoints of data, and the functions that derivatives of recursive functions are made of.

The tangent type ``D̄`` of a data type ``D`` has a constructor ``zero`` first, and then one for each constructor of
``D`` that holds a real: the tangents of its differentiable fields, with the sizes of those that are arrays. A value's
tangent is ``zero`` or made by the counterpart of the value's own constructor. Adjoints have the same type; a tangent
type is its own tangent type, so that nothing grows when derivatives are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import (
    INT,
    Arr,
    Atom,
    Block,
    Check,
    Constructor,
    Data,
    Function,
    Type,
    Var,
    integer,
    is_zero,
    type_atoms,
    type_of,
)
from ..passes.functions import ZERO_CONSTRUCTOR, loop_of
from ..passes.optimise import Unroll
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.names import adjoint
from ..program.sink import sink_block
from .activity import differentiable

# ---------------------------------------------------------------------------------------------- types


def tangent_type(b: Builder, t: Type) -> Type:
    """The type of tangents and adjoints of a differentiable type."""
    if isinstance(t, Arr):
        return Arr(tangent_data(b, t.elem), t.dims) if isinstance(t.elem, Data) else t
    return tangent_data(b, t) if isinstance(t, Data) else t


def is_tangent_data(data: Data) -> bool:
    return bool(data.constructors) and data.constructors[0].make == ZERO_CONSTRUCTOR


def tangent_data(b: Builder, data: Data) -> Data:
    """``D̄``, made once for each ``D``."""
    if is_tangent_data(data):
        return data
    found = b.memo.get(("tangent", data))
    if found is None:
        found = b.memo["tangent", data] = Data(adjoint(data.name))
        made = [Constructor("zero", found, (), ZERO_CONSTRUCTOR)]
        for c in data.constructors:
            table: dict[Atom, Atom] = {}
            for k, kind in parts_of(c):
                f = c.fields[k]
                if kind == "size":
                    table[f] = Var(f.name, INT)
                else:
                    t = tangent_type(b, f.type)  # type: ignore[arg-type]
                    t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
                    table[f] = Var(adjoint(f.name), t, None, f.given)
            if table:
                made.append(Constructor(adjoint(c.name), found, tuple(table.values()), "record"))  # type: ignore[arg-type]
                b.memo["counterpart", c] = made[-1]
        found.constructors = tuple(made)
    return found


def parts_of(c: Constructor) -> list[tuple[int, str]]:
    """The fields of a constructor that its counterpart has, as (position, "size" or "tangent")."""
    moving = [k for k, f in enumerate(c.fields) if differentiable(f.type)]
    sizes = {d for k in moving for d in type_atoms(c.fields[k].type)}
    return [(k, "size" if f in sizes else "tangent") for k, f in enumerate(c.fields) if f in sizes or k in moving]


def counterpart(b: Builder, c: Constructor) -> Constructor | None:
    """The constructor of tangents of what ``c`` makes; None where they are all zero."""
    if is_tangent_data(c.data):
        return c if c.fields else None
    tangent_data(b, c.data)
    return b.memo.get(("counterpart", c))


def zero(b: Builder, a: Atom, hint: str | None = None) -> Atom:
    """The zero tangent of a value."""
    return b.zeros(tangent_type(b, type_of(a)), hint)


def vanishes(b: Builder, a: Atom) -> bool:
    """Whether a tangent is known to be zero."""
    made = b.made.get(a) if type(a) is Var else None
    return is_zero(a) or (made is not None and made.constructor.make == ZERO_CONSTRUCTOR)


def pack(b: Builder, c: Constructor, args: Sequence[Atom], parts: Mapping[int, Atom], hint: str | None = None) -> Atom:
    """The tangent of ``(c args ...)`` from those of some arguments; the others' are zero."""
    bar = counterpart(b, c)
    if bar is None or all(vanishes(b, x) for x in parts.values()):
        return b.zeros(tangent_type(b, c.data), hint)
    fields = []
    for k, kind in parts_of(c):
        fields.append(args[k] if kind == "size" else parts[k] if k in parts else zero(b, args[k]))
    return b.make(bar, fields, hint)


def unpack(b: Builder, c: Constructor, tangent: Atom, fields: Sequence[Atom]) -> dict[int, Atom]:
    """The tangents of the fields of a value that ``c`` made from ``fields``, by position."""
    bar = counterpart(b, c)
    made = b.made.get(tangent) if type(tangent) is Var else None
    if bar is None or (made is not None and made.constructor.make == ZERO_CONSTRUCTOR):
        return {}
    kinds = parts_of(c)
    at = [k for k, kind in kinds if kind == "tangent"]
    if made is not None and made.constructor is bar:
        return {k: x for (k, kind), x in zip(kinds, made.args) if kind == "tangent"}
    arms = []
    for other in bar.data.constructors:
        with b.arm(other) as (scope, parts):
            if other is bar:
                results: list[Atom] = [x for (_, kind), x in zip(kinds, parts) if kind == "tangent"]
            elif other.make == ZERO_CONSTRUCTOR:
                results = [zero(b, fields[k]) for k in at]
            else:  # never: a tangent has the constructor of its value, or is zero
                results = [b.undef(tangent_type(b, type_of(fields[k]))) for k in at]
        arms.append((other, parts, scope, results))
    return dict(zip(at, b.case(tangent, arms, [bar.fields[j].name for j, p in enumerate(kinds) if p[0] in at])))


# ------------------------------------------------------------------------------------------ functions


def copied(variables: Sequence[Var], table: dict[Atom, Atom]) -> tuple[Var, ...]:
    """Fresh variables like some others, which ``table`` then maps to them, sizes included."""
    for v in variables:
        t = v.type
        t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
        table[v] = Var(v.name, t, v.span, v.given)
    return tuple(table[v] for v in variables)  # type: ignore[misc]


def like(b: Builder, v: Var, table: Mapping[Atom, Atom], name: str) -> Var:
    """A fresh variable for a tangent or an adjoint of ``v``."""
    t = tangent_type(b, v.type)  # type: ignore[arg-type]
    t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
    return Var(name, t, v.span, v.given)


def fill_body(b: Builder, f: Function, body: Callable[[], Sequence[Atom]]) -> None:
    """Make the body of a function that has its parameters and results."""
    span = b.span
    with b.function_scope(0) as scope:
        scope.vars.update(f.params)
        for p in f.params:
            b.note_sizes(p.type)  # type: ignore[arg-type]
        results = body()
    f.body = tidy(b.close(scope, results))
    b.span = span


def prepared(b: Builder, f: Function, loops: bool = True) -> Block:
    """The body of a function as it is differentiated: short loops written out, bindings in the branch that reads
    them (see ``sink``), and (``loops``) a loop in place of tail calls."""
    found = b.memo.get(("prepared", f, loops))
    if found is None:
        assert f.body is not None
        found = f.body
        if not b.plain:
            with b.function_scope(0) as scope:
                scope.vars.update(f.params)
                for p in f.params:
                    b.note_sizes(p.type)  # type: ignore[arg-type]
                results = Unroll(b).block(f.body)
            found = sink_block(tidy(b.close(scope, results)))
            found = loops and loop_of(f, found, b.rules) or found
        b.memo["prepared", f, loops] = found
    return found


# ------------------------------------------------------------------------------------------- addition


def add(b: Builder, x: Atom, y: Atom) -> Atom:
    """The sum of two adjoints of one type."""
    t = type_of(x)
    if vanishes(b, x):
        return y
    if vanishes(b, y):
        return x
    if isinstance(t, Data):
        return b.apply(addition(b, t), (x, y))[0]
    if isinstance(t, Arr) and isinstance(t.elem, Data):
        return b.elementwise(lambda u, v: add(b, u, v), x, y)
    return b.add(x, y)


def add_at(b: Builder, a: Atom, indices: Sequence[Atom], x: Atom, hint: str | None = None) -> Atom:
    """``a`` with ``x`` added to an element or a row."""
    elem = type_of(a).elem  # type: ignore[union-attr]
    if isinstance(elem, Data):
        return b.update(a, indices, add(b, b.get(a, *indices), x), hint)
    return b.add_at(a, indices, x, hint)


def addition(b: Builder, data: Data) -> Function:
    """``(add x y)`` of a tangent type: ``zero`` is neutral, and two others have one constructor.

    It runs over the cells that both have, so that all additions of a derivative together cost no more than the
    making of its adjoints. The call for the last recursive field stands right before its use.
    """
    f = b.memo.get(("add", data))
    if f is None:
        x, y = Var("x", data), Var("y", data)
        f = b.memo["add", data] = Function(f"add-{data.name}", (x, y), (Var("sum", data),))
        b.memo["linear", f] = True
        fill_body(b, f, lambda: [_sum(b, data, x, y)])
    return f


def _sum(b: Builder, data: Data, x: Var, y: Var) -> Atom:
    arms: list[tuple[Constructor, tuple[Var, ...], Any, list[Atom]]] = []
    for c in data.constructors:
        with b.arm(c) as (scope, xs):
            out: Atom = y
            if c.make != ZERO_CONSTRUCTOR:
                inner: list[tuple[Constructor, tuple[Var, ...], Any, list[Atom]]] = []
                for other in data.constructors:
                    with b.arm(other) as (scope2, ys):
                        if other.make == ZERO_CONSTRUCTOR:
                            total: Atom = x
                        elif other is c:
                            total = b.make(c, [u if type_of(u) == INT else add(b, u, v) for u, v in zip(xs, ys)])
                        else:
                            total = b.undef(data)
                    inner.append((other, ys, scope2, [total]))
                (out,) = b.case(y, inner, ["sum"])
        arms.append((c, xs, scope, [out]))
    return b.case(x, arms, ["sum"])[0]


def is_linear(b: Builder, f: Function) -> bool:
    """Whether a function is an addition: it is its own derivative."""
    return ("linear", f) in b.memo


# --------------------------------------------------------------------- between data and their tangents


def fill(b: Builder, x: Atom, bar: Atom) -> Atom:
    """An adjoint in the shape of its value ``x``: zeros where it is lazily zero; what is no number stays."""
    t = type_of(x)
    if not differentiable(t):
        return x
    if isinstance(t, Arr) and isinstance(t.elem, Data):
        return b.build(t.dims[0], lambda i: fill(b, b.get(x, i), b.get(bar, i)))
    return b.apply(filling(b, t), (x, bar))[0] if isinstance(t, Data) else bar


def filling(b: Builder, data: Data) -> Function:
    f = b.memo.get(("fill", data))
    if f is None:
        x, bar = Var("x", data), Var(adjoint("x"), tangent_data(b, data))
        f = b.memo["fill", data] = Function(f"fill-{data.name}", (x, bar), (Var("filled", data),))

        def body() -> Sequence[Atom]:
            arms = []
            for c in data.constructors:
                with b.arm(c) as (scope, fields):
                    out: Atom = x
                    if counterpart(b, c) is not None:
                        parts = unpack(b, c, bar, fields)
                        out = b.make(c, [fill(b, v, parts[k]) if k in parts else v for k, v in enumerate(fields)])
                arms.append((c, fields, scope, [out]))
            return b.case(x, arms, ["filled"])

        fill_body(b, f, body)
    return f


def tangent_of(b: Builder, x: Atom, move: Atom, message: str) -> Atom:
    """The tangent (or adjoint) of ``x`` that a value ``move`` of the same shape stands for. Whether the shapes are the
    same is checked at run time; ``message`` says what is wrong."""
    t = type_of(x)
    if isinstance(t, Arr) and isinstance(t.elem, Data):
        return b.build(t.dims[0], lambda i: tangent_of(b, b.get(x, i), b.get(move, i), message))
    return b.apply(reading(b, t, message), (x, move))[0] if isinstance(t, Data) else move


def reading(b: Builder, data: Data, message: str) -> Function:
    f = b.memo.get(("read", data, message))
    if f is None:
        bar = tangent_data(b, data)
        x, move = Var("x", data), Var("dx", data)
        f = b.memo["read", data, message] = Function(f"tangent-{data.name}", (x, move), (Var("tangent", bar),))

        def matching(c: Constructor, xs: Sequence[Var]) -> Atom:
            arms = []
            for other in data.constructors:
                with b.arm(other) as (scope, ys):
                    if other is not c:
                        b.emit(Check("==", integer(0), integer(1), message, "shape"), ())
                        out = b.zeros(bar)
                    else:
                        parts = {}
                        for k, kind in parts_of(c):
                            if kind == "size":
                                same_size(b, xs[k], ys[k], message)
                            else:
                                parts[k] = tangent_of(b, xs[k], ys[k], message)
                        out = pack(b, c, xs, parts)
                arms.append((other, ys, scope, [out]))
            return b.case(move, arms, ["tangent"])[0]

        def body() -> Sequence[Atom]:
            arms = []
            for c in data.constructors:
                with b.arm(c) as (scope, xs):
                    out = matching(c, xs)
                arms.append((c, xs, scope, [out]))
            return b.case(x, arms, ["tangent"])

        fill_body(b, f, body)
    return f


def same_size(b: Builder, n: Atom, m: Atom, message: str) -> None:
    if not b.require_equal(n, m, message):
        b.emit(Check("==", n, m, message, "shape"), ())
