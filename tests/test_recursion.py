"""Derivatives of typed core's recursion: while, data, recursive functions; both modes, nested, against differences.

Programs are made by hand with the builder and evaluated by ``typed``, in 50 digits: nothing here depends on the
specialiser or on a printer.
"""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest

import hyad
from hyad.core import (
    BOOL,
    INT,
    LEAF,
    REAL,
    Arr,
    Atom,
    Block,
    Const,
    Constructor,
    Data,
    Function,
    Make,
    Node,
    Program,
    Var,
    all_binds,
    functions_of,
    integer,
    real,
    size,
    type_of,
)
from hyad.differentiate.activity import differentiable
from hyad.differentiate.adjoints import fill, tangent_of, zero
from hyad.differentiate.derive import apply_operator
from hyad.differentiate.forward import jvp
from hyad.differentiate.reverse import vjp
from hyad.errors import NotCompiled
from hyad.frontend.specialise import Specialiser
from hyad.passes.functions import inline, tail_calls, unused
from hyad.passes.optimise import optimise
from hyad.program.builder import Builder
from hyad.program.check import check
from hyad.program.data import lisp as as_list
from hyad.program.rebuild import Rebuild
from hyad.program.values import ENCODINGS, Builtin, Derived, TupleValue, flatten
from typed import evaluate, number, reals, with_reals

mpmath.mp.dps = 50
SHAPE = "the shapes differ"


def program(b: Builder, params: Sequence[Var], results: Sequence[Atom], dims: Sequence[Var] = ()) -> Program:
    """What a builder has made, checked."""
    leaves = (LEAF,) * len(params)
    made = Program(
        "f", tuple(params), tuple(dims), Block(b.block(), tuple(results)), leaves, Node((LEAF,) * len(results))
    )
    check(made)
    return made


def fresh(p: Program, b: Builder) -> tuple[dict[Var, Atom], list[Var], list[Var]]:
    dims = {d: Var(d.name, INT) for d in p.dims}
    b.sizes.update(dims.values())
    here: dict[Var, Atom] = dict(dims)
    for v in p.params:
        t = v.type
        here[v] = Var(v.name, Arr(t.elem, tuple(here.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t)
    return here, [here[v] for v in p.params], list(dims.values())


def reverse(p: Program, encoding: str = "record") -> Program:
    """The gradient of the first result, in the shape of the differentiable params."""
    b = Builder()
    here, params, dims = fresh(p, b)
    wrt = [v for v in p.params if differentiable(v.type)]
    seeds = lambda results: [real(1.0)] + [None] * (len(results) - 1)  # noqa: E731
    _, bars = vjp(b, p.body, here, seeds, wrt, encoding=encoding)
    return program(b, params, [fill(b, here[v], x) for v, x in zip(wrt, bars)], dims)


def forward(p: Program) -> Program:
    """The tangents of all differentiable results; the params' tangents are further params."""
    b = Builder()
    here, params, dims = fresh(p, b)
    wrt = [v for v in p.params if differentiable(v.type)]
    moves = [Var(f"d{v.name}", here[v].type) for v in wrt]
    tangents = {v: {0: tangent_of(b, here[v], m, SHAPE)} for v, m in zip(wrt, moves)}
    results, dots = jvp(b, p.body, here, tangents)
    moved = [(r, d.get(0, zero(b, r))) for r, d in zip(results, dots) if differentiable(type_of(r))]
    return program(b, [*params, *moves], [fill(b, r, d) for r, d in moved], dims)


def flat(p: Program, values: Sequence[Any]) -> list[Any]:
    return [r for v, x in zip(p.params, values) for r in reals(number(x), v.type)]


def differences(p: Program, args: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
    """The gradient of the first result by central differences."""
    h = mpmath.mpf(10) ** -16
    point = flat(p, args)
    found = []
    for k in range(len(point)):
        ends = []
        for sign in (1, -1):
            it = iter([x + sign * h if j == k else x for j, x in enumerate(point)])
            moved = [with_reals(x, v.type, it) for v, x in zip(p.params, args)]
            ends.append(evaluate(p, moved, sizes)[0])
        found.append((ends[0] - ends[1]) / (2 * h))
    return found


def close(found: Sequence[Any], wanted: Sequence[Any], digits: int = 13) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        assert abs(x - y) <= mpmath.mpf(10) ** -digits * max(1, abs(y)), (found, wanted)


def gradient(p: Program, args: Sequence[Any], sizes: Sequence[int] = (), encoding: str = "record") -> list[Any]:
    """The gradient in reverse mode: optimised and as it is."""
    made = reverse(p, encoding)
    wrt = [v for v in p.params if differentiable(v.type)]
    out = []
    for q in (made, optimise(made)):
        results = evaluate(q, args, sizes)
        out.append([r for v, x in zip(wrt, results) for r in reals(x, v.type)])
    close(out[0], out[1])
    return out[0]


def pushed(p: Program, args: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
    """The gradient of the first result in forward mode, by unit tangents."""
    made = optimise(forward(p))
    wrt = [(v, x) for v, x in zip(p.params, args) if differentiable(v.type)]
    point = [r for v, x in wrt for r in reals(number(x), v.type)]
    found = []
    for k in range(len(point)):
        it = iter([mpmath.mpf(j == k) for j in range(len(point))])
        found.append(evaluate(made, [*args, *(with_reals(x, v.type, it) for v, x in wrt)], sizes)[0])
    return found


def everything(p: Program, args: Sequence[Any], sizes: Sequence[int] = (), second: bool = True) -> None:
    """Both modes against differences; then the derivative by the first real of the gradient, over both modes."""
    wanted = differences(p, args, sizes)
    close(gradient(p, args, sizes), wanted)
    close(pushed(p, args, sizes), wanted)
    if second:
        for first in (summed(reverse(p)), directional(p, args)):
            wanted = differences(first, args, sizes)
            close(gradient(first, args, sizes), wanted)
            close(pushed(first, args, sizes), wanted)


def summed(p: Program, weight: float = 0.7) -> Program:
    """The sum of all reals among the results of a program, each with a weight of its own."""
    b = Builder()
    here, params, dims = fresh(p, b)
    copy = Rebuild(b)
    copy.here.update(here)
    results = copy.block(p.body)
    total: Atom = real(0.0)
    for k, r in enumerate(results):
        total = b.prim("+", total, b.prim("*", real(weight + 0.3 * k), weighed(b, r)))
    return program(b, params, [total], dims)


def weighed(b: Builder, x: Atom) -> Atom:
    """A number that depends on all reals of a value."""
    t = type_of(x)
    if t == REAL:
        return x
    if isinstance(t, Arr):
        out = b.loop(
            t.dims[0], [real(0.0)], lambda i, s: ([b.prim("+", b.prim("*", s, real(1.1)), weighed(b, b.get(x, i)))], ())
        )
        return out[0]
    return b.apply(weighing(b, t), (x,))[0] if isinstance(t, Data) and differentiable(t) else real(0.0)


def weighing(b: Builder, data: Data) -> Function:
    f = b.memo.get(("weigh", data))
    if f is None:
        f = b.memo["weigh", data] = Function("weigh", (Var("x", data),), (Var("w", REAL),))
        with b.function_scope(0) as scope:
            arms = []
            for c in data.constructors:
                with b.arm(c) as (inside, fields):
                    total: Atom = real(0.1)
                    for v in fields:
                        total = b.prim("+", b.prim("*", total, real(1.3)), weighed(b, v))
                arms.append((c, fields, inside, [total]))
            results = b.case(f.params[0], arms)
        f.body = b.close(scope, results)
    return f


def directional(p: Program, args: Sequence[Any]) -> Program:
    """The tangent of the first result where the tangent of each argument is the argument itself."""
    q = forward(p)
    b = Builder()
    here, params, dims = fresh(p, b)
    copy = Rebuild(b)
    copy.here.update(zip(q.dims, dims))
    wrt = [v for v, w in zip(params, p.params) if differentiable(w.type)]
    copy.here.update(zip(q.params, [*params, *wrt]))
    results = copy.block(q.body)
    return program(b, params, [weighed(b, results[0])], dims)


# ------------------------------------------------------------------------------------------ the programs

LIST = Data("List")
NIL = Constructor("nil", LIST, (), None)
CONS = Constructor("cons", LIST, (Var("car", REAL), Var("cdr", LIST)), tuple)
LIST.constructors = (NIL, CONS)

TREE = Data("Tree")
EMPTY = Constructor("Empty", TREE)
LEAF_ = Constructor("Leaf", TREE, (Var("label", REAL),))
NODE = Constructor("Node", TREE, (Var("label", REAL), Var("left", TREE), Var("right", TREE)))
TREE.constructors = (EMPTY, LEAF_, NODE)


def lisp(*items: float) -> Any:
    out: Any = (NIL,)
    for x in reversed(items):
        out = (CONS, x, out)
    return out


def tree(depth: int, x: float = 0.3) -> Any:
    if depth == 0:
        return (EMPTY,) if x > 0.9 else (LEAF_, x)
    return (NODE, x + 0.1, tree(depth - 1, x * 0.7), tree(depth - 1, x * 1.3))


def define(b: Builder, name: str, params: Sequence[Var], results: Sequence[Var], body: Callable) -> Function:
    f = Function(name, tuple(params), tuple(results))
    with b.function_scope(0) as scope:
        scope.vars.update(f.params)
        for p in f.params:
            b.note_sizes(p.type)
        out = body(f, *f.params)
    f.body = b.close(scope, out)
    return f


def match(b: Builder, value: Atom, *bodies: Callable) -> tuple[Var, ...]:
    arms = []
    for c, body in zip(type_of(value).constructors, bodies):
        with b.arm(c) as (scope, fields):
            results = body(*fields)
        arms.append((c, fields, scope, results))
    return b.case(value, arms)


def branch(b: Builder, cond: Atom, then: Callable, orelse: Callable) -> tuple[Var, ...]:
    regions = []
    for body, holds in ((then, True), (orelse, False)):
        with b.region() as scope:
            scope.facts.extend(b.facts_of(cond, holds))
            results = body()
        regions.append((scope, results))
    return b.if_(cond, *regions)


def power() -> Program:
    """x * (f x (n - 1))"""
    b = Builder()

    def body(f, x, n):
        return branch(
            b,
            b.prim("=", n, integer(0)),
            lambda: [real(1.0)],
            lambda: [b.prim("*", x, b.apply(f, (x, b.prim("-", n, integer(1))))[0])],
        )

    f = define(b, "power", [Var("x", REAL), Var("n", INT)], [Var("y", REAL)], body)
    x = Var("x", REAL)
    return program(b, [x], b.apply(f, (b.prim("sin", x), integer(5))))


def list_sum() -> Program:
    """The sum of k sin(car) + car^2 over a list"""
    b = Builder()

    def body(f, ls, k):
        def cons(car, cdr):
            (r,) = b.apply(f, (cdr, k))
            e = b.prim("+", b.prim("*", k, b.prim("sin", car)), b.prim("*", car, car))
            return [b.prim("+", e, r)]

        return match(b, ls, lambda: [real(0.0)], cons)

    f = define(b, "total", [Var("l", LIST), Var("k", REAL)], [Var("s", REAL)], body)
    ls, k = Var("l", LIST), Var("k", REAL)
    return program(b, [ls, k], b.apply(f, (ls, k)))


def list_map() -> Program:
    """(map f (map f l)), then the product: lists are results and arguments"""
    b = Builder()

    def body(f, ls, k):
        return match(
            b,
            ls,
            lambda: [b.make(NIL, ())],
            lambda car, cdr: [b.make(CONS, [b.prim("sin", b.prim("*", k, car)), b.apply(f, (cdr, k))[0]])],
        )

    def prod(f, ls):
        return match(
            b,
            ls,
            lambda: [real(1.0)],
            lambda car, cdr: [b.prim("*", car, b.apply(f, (cdr,))[0])],
        )

    f = define(b, "map", [Var("l", LIST), Var("k", REAL)], [Var("m", LIST)], body)
    g = define(b, "product", [Var("l", LIST)], [Var("s", REAL)], prod)
    ls, k = Var("l", LIST), Var("k", REAL)
    (m,) = b.apply(f, (ls, k))
    (m,) = b.apply(f, (m, b.prim("*", k, k)))
    return program(b, [ls, k], b.apply(g, (m,)))


def tree_product() -> Program:
    b = Builder()

    def body(f, t, k):
        def node(label, left, right):
            (x,), (y,) = b.apply(f, (left, k)), b.apply(f, (right, b.prim("*", k, label)))
            return [b.prim("*", b.prim("*", label, x), b.prim("+", y, k))]

        return match(b, t, lambda: [k], lambda label: [b.prim("exp", label)], node)

    f = define(b, "product", [Var("t", TREE), Var("k", REAL)], [Var("s", REAL)], body)
    t, k = Var("t", TREE), Var("k", REAL)
    return program(b, [t, k], b.apply(f, (t, k)))


def tree_weights() -> Program:
    """An array of weights used at every node"""
    b = Builder()
    n = Var("n", INT)

    def body(f, n, w, t):
        def node(label, left, right):
            (x,), (y,) = b.apply(f, (n, w, left)), b.apply(f, (n, w, right))
            (s,) = b.loop(
                n, [real(0.0)], lambda i, s: ([b.prim("+", s, b.prim("sin", b.prim("*", b.get(w, i), x)))], ())
            )
            return [b.prim("*", b.prim("+", s, y), label)]

        return match(b, t, lambda: [real(0.5)], lambda label: [b.prim("*", label, label)], node)

    m = Var("n", INT)
    f = define(b, "net", [m, Var("w", Arr(REAL, (m,))), Var("t", TREE)], [Var("s", REAL)], body)
    w, t = Var("w", Arr(REAL, (n,))), Var("t", TREE)
    return program(b, [w, t], b.apply(f, (n, w, t)), [n])


def halving() -> Program:
    """While: halve until small, multiply up sines on the way; what is stacked is used after"""
    b = Builder()
    x, k = Var("x", REAL), Var("k", REAL)

    def body(y, s):
        return [b.prim("*", y, k), b.prim("*", s, b.prim("sin", b.prim("+", y, s)))], [b.prim("*", y, y)]

    last, s, count, ys = b.while_([x, real(1.5)], lambda y, s: b.prim(">", y, real(1.0)), body)
    (t,) = b.loop(count, [real(0.0)], lambda i, a: ([b.prim("+", a, b.prim("exp", b.get(ys, i)))], ()))
    return program(b, [x, k], [b.prim("+", b.prim("*", last, s), b.prim("log", t))])


def nested_while() -> Program:
    """A while in a while in a build, with a vector among the accumulators"""
    b = Builder()
    x, v = Var("x", REAL), Var("v", Arr(REAL, (integer(3),)))

    def outer(y, u):
        z, _ = b.while_(
            [y],
            lambda z: b.prim(">", z, real(2.0)),
            lambda z: ([b.prim("*", b.prim("sqrt", z), b.get(u, integer(1)))], ()),
        )
        w = b.build(integer(3), lambda i: b.prim("sin", b.prim("*", b.get(u, i), z)))
        return [b.prim("-", y, b.prim("*", z, real(0.9))), w], ()

    def each(i):
        last, u, count = b.while_([b.prim("*", x, b.get(v, i)), v], lambda y, u: b.prim(">", y, real(1.0)), outer)
        return b.prim("+", last, b.prim("*", b.get(u, integer(2)), b.prim("real", count)))

    w = b.build(integer(3), each)
    (s,) = b.loop(integer(3), [real(0.0)], lambda i, a: ([b.prim("+", a, b.prim("*", b.get(w, i), b.get(w, i)))], ()))
    return program(b, [x, v], [s])


def mutual() -> Program:
    """even and odd, with two results"""
    b = Builder()
    odd = Function("odd", (Var("x", REAL), Var("n", INT)), (Var("a", REAL), Var("b", REAL)))

    def even(f, x, n):
        def go():
            a, c = b.apply(odd, (b.prim("*", x, x), b.prim("-", n, integer(1))))
            return [b.prim("*", a, b.prim("sin", x)), b.prim("+", a, c)]

        return branch(b, b.prim("=", n, integer(0)), lambda: [x, b.prim("*", real(2.0), x)], go)

    f = define(b, "even", [Var("x", REAL), Var("n", INT)], [Var("a", REAL), Var("b", REAL)], even)
    with b.function_scope(0) as scope:
        x, n = odd.params

        def go():
            a, c = b.apply(f, (b.prim("sin", x), b.prim("-", n, integer(1))))
            return [b.prim("*", c, x), b.prim("*", b.prim("exp", a), real(0.3))]

        out = branch(b, b.prim("=", n, integer(0)), lambda: [x, x], go)
    odd.body = b.close(scope, out)
    x = Var("x", REAL)
    a, c = b.apply(f, (x, integer(3)))
    return program(b, [x], [b.prim("*", a, c)])


def calls_in_loops() -> Program:
    """A recursive function called in a loop and a while, in branches that may not be taken"""
    b = Builder()

    def body(f, x, n):
        def go():
            (y,) = b.apply(f, (b.prim("*", x, real(0.5)), b.prim("-", n, integer(1))))
            return [b.prim("*", y, b.prim("+", x, real(1.0)))]

        return branch(b, b.prim("<=", n, integer(0)), lambda: [b.prim("cos", x)], go)

    f = define(b, "f", [Var("x", REAL), Var("n", INT)], [Var("y", REAL)], body)
    x, v = Var("x", REAL), Var("v", Arr(REAL, (integer(4),)))

    def each(i, s):
        t = b.prim("*", b.get(v, i), b.prim("exp", s))
        (u,) = branch(
            b, b.prim(">", t, real(1.0)), lambda: [b.prim("*", t, b.apply(f, (t, i))[0])], lambda: [b.prim("sin", t)]
        )
        return [b.prim("*", u, real(0.4))], [u]

    s, us = b.loop(integer(4), [x], each)

    def again(y):
        (u,) = b.apply(f, (y, integer(2)))
        return [b.prim("*", u, real(0.6))], ()

    y, count = b.while_([b.prim("+", s, real(3.0))], lambda y: b.prim(">", y, real(0.5)), again)
    return program(b, [x, v], [b.prim("+", b.prim("*", y, s), b.get(us, integer(2)))])


def trees_of_arrays() -> Program:
    """An array of lists; a list of arrays: data hold arrays and arrays hold data"""
    b = Builder()
    n = Var("n", INT)
    rows = Data("Rows")
    end = Constructor("End", rows)
    length = Var("m", INT)
    row = Constructor("Row", rows, (length, Var("xs", Arr(REAL, (length,))), Var("rest", rows)))
    rows.constructors = (end, row)

    def total(f, r):
        def one(m, xs, rest):
            (s,) = b.loop(m, [real(0.0)], lambda i, s: ([b.prim("+", s, b.prim("sin", b.get(xs, i)))], ()))
            return [b.prim("+", b.prim("*", s, s), b.apply(f, (rest,))[0])]

        return match(b, r, lambda: [real(0.0)], one)

    g = define(b, "total", [Var("r", rows)], [Var("s", REAL)], total)
    inner = list_function(b)
    ls, r = Var("ls", Arr(LIST, (n,))), Var("r", rows)
    (s,) = b.loop(n, [real(0.0)], lambda i, s: ([b.prim("+", s, b.apply(inner, (b.get(ls, i),))[0])], ()))
    doubled = b.build(n, lambda i: b.make(CONS, [s, b.get(ls, i)]))
    (s2,) = b.loop(n, [real(1.0)], lambda i, s: ([b.prim("*", s, b.apply(inner, (b.get(doubled, i),))[0])], ()))
    made = program(b, [ls, r], [b.prim("+", s2, b.apply(g, (r,))[0])], [n])
    trees_of_arrays.rows = (end, row)  # type: ignore[attr-defined]
    return made


def list_function(b: Builder) -> Function:
    def body(f, ls):
        return match(
            b,
            ls,
            lambda: [real(0.5)],
            lambda car, cdr: [b.prim("*", b.prim("sin", car), b.prim("+", car, b.apply(f, (cdr,))[0]))],
        )

    return define(b, "g", [Var("l", LIST)], [Var("s", REAL)], body)


def fib() -> Program:
    """Two calls of one function, on different arguments"""
    b = Builder()

    def body(f, x, n):
        def go():
            (u,) = b.apply(f, (x, b.prim("-", n, integer(1))))
            (v,) = b.apply(f, (b.prim("*", x, u), b.prim("-", n, integer(2))))
            return [b.prim("+", b.prim("sin", u), b.prim("*", v, x))]

        return branch(b, b.prim("<=", n, integer(1)), lambda: [x], go)

    f = define(b, "fib", [Var("x", REAL), Var("n", INT)], [Var("y", REAL)], body)
    x = Var("x", REAL)
    return program(b, [x], b.apply(f, (x, integer(5))))


def growing() -> Program:
    """A list made by recursion on a number, then folded by a while"""
    b = Builder()

    def body(f, x, n):
        return branch(
            b,
            b.prim("<=", n, integer(0)),
            lambda: [b.make(NIL, ())],
            lambda: [
                b.make(
                    CONS,
                    [b.prim("*", x, b.prim("real", n)), b.apply(f, (b.prim("sin", x), b.prim("-", n, integer(1))))[0]],
                )
            ],
        )

    f = define(b, "f", [Var("x", REAL), Var("n", INT)], [Var("l", LIST)], body)
    x = Var("x", REAL)
    (ls,) = b.apply(f, (x, integer(4)))

    def cond(ls, s):
        return match(b, ls, lambda: [Const(False, BOOL)], lambda car, cdr: [Const(True, BOOL)])[0]

    def step(ls, s):
        return match(
            b, ls, lambda: [ls, s], lambda car, cdr: [cdr, b.prim("+", b.prim("*", s, car), b.prim("exp", car))]
        ), ()

    _, s, _ = b.while_([ls, real(1.0)], cond, step)
    return program(b, [x], [s])


def counting() -> Program:
    """A tail call: the sum of sin(k x) k^2, a loop in disguise"""
    b = Builder()

    def body(f, x, n, s):
        def go():
            k = b.prim("real", n)
            more = b.prim("*", b.prim("sin", b.prim("*", k, x)), b.prim("*", k, s))
            return b.apply(f, (x, b.prim("-", n, integer(1)), b.prim("+", s, more)))

        return branch(b, b.prim("<=", n, integer(0)), lambda: [b.prim("*", s, x)], go)

    f = define(b, "count", [Var("x", REAL), Var("n", INT), Var("s", REAL)], [Var("y", REAL)], body)
    x = Var("x", REAL)
    return program(b, [x], b.apply(f, (x, integer(5), b.prim("*", x, x))))


def newton() -> Program:
    """A tail call behind a costly test: the root of y^2 = a, in two results; and a fold of a list with two ends"""
    b = Builder()

    def body(f, a, y):
        z = b.prim("*", real(0.5), b.prim("+", y, b.prim("/", a, y)))
        far = b.prim(">", b.prim("abs", b.prim("-", b.prim("exp", z), b.prim("exp", y))), real(0.01))
        return branch(b, far, lambda: b.apply(f, (a, z)), lambda: [z, b.prim("*", y, z)])

    f = define(b, "root", [Var("a", REAL), Var("y", REAL)], [Var("r", REAL), Var("q", REAL)], body)

    def fold(f, ls, s):
        def cons(car, cdr):
            return branch(
                b,
                b.prim("<", s, real(50.0)),
                lambda: b.apply(f, (cdr, b.prim("*", s, b.prim("+", car, s)))),
                lambda: [b.prim("*", s, car)],
            )

        return match(b, ls, lambda: [s], cons)

    g = define(b, "fold", [Var("ls", LIST), Var("s", REAL)], [Var("t", REAL)], fold)
    ls, a = Var("ls", LIST), Var("a", REAL)
    r, q = b.apply(f, (a, real(1.0)))
    return program(b, [ls, a], [b.prim("+", b.apply(g, (ls, r))[0], q)])


def array_results() -> Program:
    """Recursion on arrays, called with one array twice, and with one list twice; its result's size is a result"""
    b = Builder()
    n, m = Var("n", INT), Var("m", INT)

    def body(f, n, u, v, k):
        def go():
            w = b.build(n, lambda i: b.prim("*", b.get(u, i), b.prim("sin", b.get(v, i))))
            size, out = b.apply(f, (n, w, u, b.prim("-", k, integer(1))))
            return [n, b.build(n, lambda i: b.prim("+", b.get(out, i), b.prim("*", b.get(w, i), b.get(v, i))))]

        return branch(b, b.prim("<=", k, integer(0)), lambda: [n, u], go)

    params = [n, Var("u", Arr(REAL, (n,))), Var("v", Arr(REAL, (n,))), Var("k", INT)]
    f = define(b, "f", params, [m, Var("w", Arr(REAL, (m,)))], body)

    def both(f, ls, other):
        def cons(car, cdr):
            def pair(head, tail):
                return [b.prim("*", b.prim("+", car, b.prim("sin", head)), b.apply(f, (tail, cdr))[0])]

            return match(b, other, lambda: [car], pair)

        return match(b, ls, lambda: [real(0.7)], cons)

    g = define(b, "zip", [Var("ls", LIST), Var("other", LIST)], [Var("s", REAL)], both)
    n = Var("n", INT)
    v, ls = Var("v", Arr(REAL, (n,))), Var("ls", LIST)
    size, w = b.apply(f, (n, v, v, integer(2)))
    (s,) = b.loop(size, [b.apply(g, (ls, ls))[0]], lambda i, s: ([b.prim("*", s, b.prim("exp", b.get(w, i)))], ()))
    return program(b, [v, ls], [s], [n])


def heads() -> Program:
    """A match in a loop, on the elements of an array; data chosen by a branch; a list that is an accumulator"""
    b = Builder()
    n = Var("n", INT)
    rows, x = Var("rows", Arr(LIST, (n,))), Var("x", REAL)

    def each(i, s, longest):
        row = b.get(rows, i)
        (t,) = match(b, row, lambda: [x], lambda car, cdr: [b.prim("*", b.prim("sin", car), s)])
        (kept,) = branch(b, b.prim(">", t, real(0.2)), lambda: [row], lambda: [longest])
        return [b.prim("+", s, b.prim("*", t, t)), b.make(CONS, [t, kept])], [kept]

    s, last, kept = b.loop(n, [x, b.make(NIL, ())], each)
    g = list_function(b)
    (u,) = b.apply(g, (last,))
    (w,) = b.apply(g, (b.get(b.update(kept, [integer(1)], b.make(CONS, [s, last])), integer(1)),))
    return program(b, [rows, x], [b.prim("+", b.prim("*", s, u), w)], [n])


CASES: dict[str, tuple[Callable[[], Program], list[Any], list[int]]] = {
    "power": (power, [1.3], []),
    "list-sum": (list_sum, [lisp(0.3, 0.7, -1.1), 1.7], []),
    "list-map": (list_map, [lisp(0.3, 0.7, -1.1), 1.7], []),
    "tree": (tree_product, [tree(3), 1.2], []),
    "weights": (tree_weights, [[0.3, -0.4], tree(2)], [2]),
    "while": (halving, [7.3, 0.6], []),
    "nested while": (nested_while, [5.3, [0.6, 1.2, 0.9]], []),
    "mutual": (mutual, [0.8], []),
    "loops": (calls_in_loops, [0.4, [0.5, 1.2, -0.3, 2.1]], []),
    "fib": (fib, [0.9], []),
    "growing": (growing, [0.9], []),
    "tail call": (counting, [0.9], []),
    "tail calls": (newton, [lisp(0.3, 0.7, 1.1), 2.3], []),
    "arrays": (array_results, [[0.4, 0.9], lisp(0.3, 0.7, 0.2)], [2]),
    "heads": (heads, [[lisp(0.3, 0.4), lisp(), lisp(0.9)], 0.8], [3]),
    "stopped": (newton, [lisp(0.3, 0.7, 1.1, 4.0, 7.0, 1.0), 2.3], []),
}


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYAD_CHECK", "1")


@pytest.mark.parametrize("name", CASES)
def test_both_modes_agree_with_differences(name: str) -> None:
    make, args, sizes = CASES[name]
    everything(make(), args, sizes, second=False)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    make, args, sizes = CASES[name]
    everything(make(), args, sizes)


@pytest.mark.some(12)
@pytest.mark.parametrize("name", CASES)
def test_encodings_are_records(name: str) -> None:
    """The encodings agree, on each other's gradients as well."""
    make, args, sizes = CASES[name]
    p = make()
    slopes, wanted = differences(p, args, sizes), gradient(summed(reverse(p)), args, sizes)
    for encoding in ("closure", "continuation"):
        close(gradient(p, args, sizes, encoding), slopes)
        for first, second in (("record", encoding), (encoding, "record"), (encoding, encoding)):
            close(gradient(summed(reverse(p, first)), args, sizes, second), wanted)


@pytest.mark.parametrize("name", ["list-map", "weights", "tail calls"])
def test_closures_and_continuations_of_each_other(name: str) -> None:
    make, args, sizes = CASES[name]
    p = make()
    wanted = gradient(summed(reverse(p)), args, sizes)
    for first, second in (("closure", "continuation"), ("continuation", "closure")):
        close(gradient(summed(reverse(p, first)), args, sizes, second), wanted)


def test_a_closure_takes_cotangents_alone() -> None:
    made = optimise(reverse(tree_product(), "closure"))
    (there,) = [f for f in functions_of(made.body) if f.name.endswith("-there")]
    (back,) = [f for f in functions_of(made.body) if f.name.endswith("-back")]
    assert [c.make for c in there.results[-1].type.constructors] == ["function"]
    assert len(back.params) == 2  # itself and the cotangent
    assert any(f.name == "call" for f in functions_of(made.body))


def test_a_continuation_takes_results_and_gives_their_cotangents() -> None:
    """And a function takes a continuation: nothing is remembered, nothing comes back but adjoints."""
    made = reverse(tree_product(), "continuation")
    (there,) = [f for f in functions_of(made.body) if f.name.endswith("-cps")]
    (on,) = [f for f in functions_of(made.body) if f.name.startswith("continue-")]
    continuation = there.params[-1].type
    assert on.params[0].type is continuation and len(on.params) == 2
    assert [c.make for c in continuation.constructors] == ["continuation"] * 3  # left, right, and all of it
    assert not any(c.make == "function" for r in there.results for c in getattr(r.type, "constructors", ()))


MODELS = [
    ("grad", "(fn [x y] (if (> x y) (* x (sin y)) (exp (* x y))))", (1.3, 0.4)),
    ("grad", "(fn [x v] (fold (fn [a b] (* a (sin (+ b x)))) x v))", (0.3, [0.5, 0.7, -0.2])),
    ("grad", "(fn [v] (fold (fn [a x] (if (> x 0.0) (* a (exp x)) (- a x))) 1.0 v))", ([0.5, -0.7, 0.2],)),
    ("grad", "(fn [v] (dot (map sin v) (build (len v) (fn [i] (* (get v i) (get v 0))))))", ([0.5, 0.7, 0.2],)),
    ("grad", "(fn [m v] (let [w (mat-vec m v)] (dot w (map exp w))))", ([[0.5, 0.7], [0.2, -0.3]], [0.4, 1.1])),
    ("hessian", "(fn [v] (fold (fn [a x] (+ (* a x) (sin x))) 1.0 v))", ([0.5, 0.7, 0.2],)),
    ("jacobian", "(fn [v] (build (len v) (fn [i] (ifold (fn [a j] (+ a (* (get v j) (get v i)))) 0.0 (+ i 1)))))",
     ([0.5, 0.7],)),
    ("grad", "(fn [x] (* x ((grad (fn [y] (ifold (fn [a i] (* a (sin (* x y)))) y 3))) x)))", (0.8,)),
]  # fmt: skip


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("kind", "text", "args"), MODELS)
def test_encodings_of_models(kind: str, text: str, args: tuple, static: bool) -> None:
    """Branches and loops without calls go another way as closures."""

    def shape(x: Any) -> list[int]:
        return [len(x), *shape(x[0])] if type(x) is list else []

    specs = [
        Arr(REAL, tuple(n if static else "nm"[k] for k, n in enumerate(shape(x)))) if type(x) is list else REAL
        for x in args
    ]
    found = []
    for encoding in ENCODINGS:
        p = Specialiser().program(Derived(kind, hyad.model(text).value, None, encoding), specs, "f")
        q = optimise(p)
        known = {d: n for v, x in zip(q.params, args) if isinstance(v.type, Arr) for d, n in zip(v.type.dims, shape(x))}
        found.append(evaluate(q, args, [known[d] for d in q.dims]))

    def flatten_all(x: Any) -> list[Any]:
        return [r for y in x for r in flatten_all(y)] if type(x) is list else [x]

    for other in found[1:]:
        close(flatten_all(found[0]), flatten_all(other))


@pytest.mark.some(10)
@pytest.mark.parametrize("name", ["power", "list-sum", "tree", "while", "weights", "tail call"])
def test_third_derivatives(name: str) -> None:
    """And the code grows by a constant factor with each derivative."""
    make, args, sizes = CASES[name]
    second = summed(reverse(summed(reverse(make()))))
    close(gradient(second, args, sizes), differences(second, args, sizes))
    lengths = []
    p = make()
    for _ in range(3):
        p = optimise(summed(reverse(p)))
        lengths.append(size(p.body) + sum(size(f.body) for f in functions_of(p.body)))
    assert lengths[2] < 6 * lengths[1] and lengths[1] < 6 * lengths[0], lengths


def test_data_hold_arrays_and_arrays_hold_data() -> None:
    p = trees_of_arrays()
    end, row = trees_of_arrays.rows  # type: ignore[attr-defined]
    r = (row, 2, [0.3, 0.5], (row, 1, [0.8], (end,)))
    everything(p, [[lisp(0.3), lisp(), lisp(0.2, 0.9)], r], [3])


# ------------------------------------------------------------------------------------------ the operators


class ByHand(Specialiser):
    """A specialiser whose one function is a program made by hand."""

    def __init__(self, p: Program) -> None:
        super().__init__()
        self.p = p
        self.facts.widen = lambda data: None  # type: ignore[method-assign]  # data made by hand is as it is

    def gives_function(self, value: Any) -> bool:
        return False

    def call(self, fn: Any, args: Any, spans: Any = (), var: Any = None) -> Any:
        if isinstance(fn, Derived):
            return apply_operator(self, fn, list(args), spans)
        copy = Rebuild(self.b)
        copy.here.update(zip(self.p.params, args))
        results = copy.block(self.p.body)
        return results[0] if len(results) == 1 else TupleValue(tuple(results))


def operator(kind: str, p: Program, extra: Sequence[Any] = ()) -> Program:
    """``(kind p)`` at fresh arguments, and the types of further ones."""
    sp = ByHand(p)
    here, params, _ = fresh(p, sp.b)
    more = [Var(f"d{k}", t) for k, t in enumerate(extra)]
    value = apply_operator(sp, Derived(kind, Builtin("by-hand")), [*params, *more], ())
    return program(sp.b, [*params, *more], flatten(value)[0])


def test_grad_mirrors_its_argument() -> None:
    p = list_sum()
    items = lisp(0.3, 0.7)
    by_list, by_k = evaluate(optimise(operator("grad", p)), [items, 1.7])
    assert by_list[0] is CONS and by_list[2][0] is CONS and by_list[2][2] == (NIL,)
    close([*reals(by_list, LIST), by_k], differences(p, [items, 1.7]))
    assert evaluate(operator("grad", p), [lisp(), 1.7]) == [(NIL,), 0]


MAPPED = "(fn [xs k] (letrec [m (fn [l] (if (null? l) None (cons (sin (* k (car l))) (m (cdr l)))))] (m xs)))"
TIMES = "(fn [xs k] (letrec [p (fn [l] (if (null? l) k (* (sin (* k (car l))) (p (cdr l)))))] (p xs)))"


def test_tangents_and_cotangents_are_data() -> None:
    m = hyad.model(MAPPED)
    out = hyad.jvp(m, (as_list([0.3, 0.7]), 1.7), (as_list([1.0, -2.0]), 0.5))
    cos = [math.cos(1.7 * x) for x in (0.3, 0.7)]
    assert out[0] == pytest.approx(cos[0] * (1.7 + 0.15)) and out[1][0] == pytest.approx(cos[1] * (-3.4 + 0.35))
    by_list, by_k = hyad.vjp(m, (as_list([0.3, 0.7]), 1.7), as_list([1.0, -2.0]))
    assert by_list[0] == pytest.approx(cos[0] * 1.7) and by_list[1][0] == pytest.approx(-3.4 * cos[1])
    assert by_k == pytest.approx(cos[0] * 0.3 - 2 * cos[1] * 0.7)
    with pytest.raises(hyad.HyadError, match="the cotangent must have the shape of the result"):
        hyad.vjp(m, (as_list([0.3, 0.7]), 1.7), as_list([1.0]))


def test_hvp_of_data() -> None:
    """Against differences of the gradient along the direction."""
    m, h = hyad.model(TIMES), 1e-6
    items, moves = [0.3, 0.7, 1.1], [1.0, -2.0, 0.5]
    by_list, by_k = hyad.hvp(m, (as_list(items), 1.7), (as_list(moves), 0.4))
    ends = []
    for sign in (1, -1):
        moved = as_list([x + sign * h * d for x, d in zip(items, moves)])
        ends.append(hyad.grad(m, wrt=(0, 1))(moved, 1.7 + sign * h * 0.4))
    (up, up_k), (down, down_k) = ends
    for _ in items:
        assert by_list[0] == pytest.approx((up[0] - down[0]) / (2 * h), rel=1e-6)
        by_list, up, down = by_list[1], up[1], down[1]
    assert by_k == pytest.approx((up_k - down_k) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("name", ["while", "power", "loops"])
def test_hessians(name: str) -> None:
    make, args, _ = CASES[name]
    p = make()
    if name == "loops":  # by the array alone, in a loop over unit vectors or not
        b = Builder()
        copy = Rebuild(b)
        copy.here.update(zip(p.params, [real(0.4), p.params[1]]))
        p, args = program(b, [p.params[1]], copy.block(p.body)), args[1:]
    made = optimise(operator("hessian", p))
    rows = [r for x in evaluate(made, args) for r in reals(x, Arr(REAL, (2, 2)) if type(x) is list else REAL)]
    wanted = []
    for k in range(len(flat(p, args))):
        h = mpmath.mpf(10) ** -16
        ends = []
        for sign in (1, -1):
            it = iter([x + sign * h if j == k else x for j, x in enumerate(flat(p, args))])
            ends.append(gradient(p, [with_reals(x, v.type, it) for v, x in zip(p.params, args)]))
        wanted += [(u - w) / (2 * h) for u, w in zip(*ends)]
    close(sorted(rows), sorted(wanted))


def test_jacobians_have_no_data() -> None:
    with pytest.raises(NotCompiled, match="and no data"):
        operator("jacobian", list_sum())


def test_a_function_inside_its_own_definition() -> None:
    b = Builder()
    f = Function("f", (Var("x", REAL),), (Var("y", REAL),))
    x = Var("x", REAL)
    block = Block(b.block(), b.apply(f, (x,)))
    block = Block(b.block(), block.results)
    with pytest.raises(NotCompiled, match="inside its own definition"):
        vjp(Builder(), block, {x: x}, lambda results: [real(1.0)], [x])


def test_a_backward_function_takes_the_sizes_of_its_arrays() -> None:
    """Of those, too, that nothing else of it reads."""
    text = """(fn [v y w] (letrec [f (fn [k u] (if (<= k 0)
                                                   (if (< (get y 0 1) 0.1) 0.5 (get v (- (len v) 1)))
                                                   (f (- k 1) u)))]
                    (f (len w) w)))"""
    f, args = hyad.model(text, namespace={}), (np.ones(3), np.ones((3, 2)), np.ones(2))
    np.testing.assert_array_equal(hyad.grad(f, wrt="v")(*args), [0.0, 0.0, 1.0])


def test_sizes_that_no_call_changes_are_those_of_the_results() -> None:
    """In a loop over columns: the backward function's loop gave a size of its own to what it returns."""
    text = """(fn [v s a]
      (let [r (letrec [f (fn [k u] (if (<= k 0)
                                     (sum (solve-lower s v))
                                     (f (// k 2) (build [(len v) 4] (fn [i j] (get u i j))))))]
                (f (len v) a))]
        (* r v)))"""
    f = hyad.jacobian(hyad.model(text, namespace={}), wrt="v")
    args = np.array([1.0, 2.0, -0.5]), np.eye(3) + 0.1 * np.arange(9.0).reshape(3, 3), np.ones((3, 4))
    lower, v = np.tril(args[1]), args[0]
    slope = np.linalg.solve(lower.T, np.ones(3))
    expected = np.outer(v, slope) + np.eye(3) * np.sum(np.linalg.solve(lower, v))
    np.testing.assert_allclose(f(*args), expected, rtol=1e-12)


# --------------------------------------------------------------------------------- passes over functions


def test_tail_calls_become_loops() -> None:
    for make, args, _ in (CASES["tail call"], CASES["tail calls"], CASES["stopped"]):
        p = make()
        made = optimise(p)
        assert functions_of(p.body) and not functions_of(made.body)
        close(evaluate(made, args), evaluate(p, args))
        assert not functions_of(optimise(reverse(p)).body) or make is newton


def test_other_recursion_is_left_alone() -> None:
    for name in ("power", "tree", "mutual", "fib", "list-map"):
        p = CASES[name][0]()
        assert tail_calls(p) is p


def test_a_long_tail_call_needs_no_stack() -> None:
    made = optimise(reverse(deep()))
    assert not functions_of(made.body)
    (found,) = evaluate(made, [0.5])
    assert abs(found - 20_000) < 1


def deep() -> Program:
    b = Builder()

    def body(f, x, n, s):
        return branch(
            b,
            b.prim("<=", n, integer(0)),
            lambda: [s],
            lambda: b.apply(f, (x, b.prim("-", n, integer(1)), b.prim("+", s, x))),
        )

    f = define(b, "count", [Var("x", REAL), Var("n", INT), Var("s", REAL)], [Var("y", REAL)], body)
    x = Var("x", REAL)
    return program(b, [x], b.apply(f, (x, integer(20_000), real(0.0))))


def test_unused_parts_of_functions_go() -> None:
    """A parameter that is only handed on, one that is always 2, a result that no one reads."""
    b = Builder()

    def body(f, x, idle, two, n):
        def go():
            y, z = b.apply(f, (x, b.prim("*", idle, x), two, b.prim("-", n, integer(1))))
            return [b.prim("*", y, b.prim("+", x, two)), b.prim("+", z, b.prim("sin", x))]

        return branch(b, b.prim("<=", n, integer(0)), lambda: [x, b.prim("*", x, x)], go)

    params = [Var("x", REAL), Var("idle", REAL), Var("two", REAL), Var("n", INT)]
    f = define(b, "f", params, [Var("y", REAL), Var("z", REAL)], body)
    x = Var("x", REAL)
    y, _ = b.apply(f, (x, b.prim("exp", x), real(2.0), integer(3)))
    p = program(b, [x], [y])
    made = unused(p)
    check(made)
    (g,) = functions_of(made.body)
    assert [v.name for v in g.params] == ["x", "n"] and [v.name for v in g.results] == ["y"]
    assert "sin" not in {getattr(bind.op, "name", "") for bind in all_binds(g.body)}
    assert evaluate(made, [1.5]) == evaluate(p, [1.5])
    assert unused(made) is made


@pytest.mark.parametrize("given", ["the same", "another one"])
def test_parameters_that_are_the_same_in_every_call_are_one(given: str) -> None:
    """Two that change places in the inner call, where the first call gives both the same; a third is a constant."""
    b = Builder()

    def body(f, x, y, z, n):
        def go():
            (inner,) = b.apply(f, (y, x, z, b.prim("-", n, integer(1))))
            return [b.prim("*", inner, b.prim("+", b.prim("*", x, z), b.prim("sin", y)))]

        return branch(b, b.prim("<=", n, integer(0)), lambda: [b.prim("+", x, b.prim("exp", z))], go)

    params = [Var("x", REAL), Var("y", REAL), Var("z", REAL), Var("n", INT)]
    f = define(b, "f", params, [Var("r", REAL)], body)
    v, w = Var("v", REAL), Var("w", REAL)
    p = program(b, [v, w], b.apply(f, (v, v if given == "the same" else w, w, integer(3))))
    made = unused(p)
    check(made)
    (g,) = functions_of(made.body)
    assert [q.name for q in g.params] == (["y", "z", "n"] if given == "the same" else ["x", "y", "z", "n"])
    assert evaluate(made, [1.5, 0.25]) == evaluate(p, [1.5, 0.25])
    assert unused(made) is made


def test_a_gradient_by_data_is_made_at_once() -> None:
    """The adjoint's lazy zeros are filled where it is made: there is no function that does it, and no other tree."""
    p = tree_product()
    made = optimise(reverse(p))
    assert [f.name for f in functions_of(made.body)] == ["product-there", "product-back"]
    back = functions_of(made.body)[1]
    tags = {bind.op.constructor.data.name for bind in all_binds(back.body) if type(bind.op) is Make}
    assert tags == {"Tree"} and back.results[0].type is TREE


def test_a_record_holds_what_was_computed() -> None:
    """Of a node: what both calls gave, and remember. Of a leaf the exponential alone, of nothing nothing."""
    made = optimise(reverse(tree_product()))
    (there,) = [f for f in functions_of(made.body) if f.name.endswith("-there")]
    record = there.results[-1].type
    assert {c.name: len(c.fields) for c in record.constructors} == {"Leaf": 1, "Node": 4}


def test_what_is_not_recursive_is_written_out() -> None:
    b = Builder()
    f = define(b, "f", [Var("x", REAL)], [Var("y", REAL)], lambda f, x: [b.prim("*", x, b.prim("sin", x))])
    x = Var("x", REAL)
    (y,) = b.apply(f, (x,))
    p = program(b, [x], b.apply(f, (y,)))
    made = inline(p)
    assert not functions_of(made.body) and evaluate(made, [1.5]) == evaluate(p, [1.5])
    left = power()
    assert inline(left) is left


PRODUCTS = {  # a model, where, and how many calls the backward function makes of itself
    "of two calls": ("(letrec [f (fn [n] (if (< n 2) (* x y) (+ (sin y) (* (f (- n 1)) (f (- n 2))))))] (f n))", 7, 1),
    "along a list": ("(letrec [f (fn [l] (if (null? l) y (* (+ x (car l)) (f (cdr l)))))] (f n))",
                     hyad.lisp([0.5, -1.5, 2.0]), 0),
    "in a loop": ("(letrec [f (fn [n] (if (< n 1) x (ifold (fn [s i] (* s (f (- n 1)) y)) x 2)))] (f n))", 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_backward_recursion_is_handed_the_sum_so_far(name: str) -> None:
    """What a call adds to an adjoint is added in it: its last call is a jump, and the only one a loop."""
    body, data, calls = PRODUCTS[name]
    f = hyad.model(f"(fn [x y n] {body})", namespace={})
    args = (0.6, 1.3, data)
    gradient = hyad.compile(hyad.grad(f, wrt=("x", "y")), args=args, without="few-inputs")
    assert gradient(*args) == pytest.approx(hyad.run(hyad.grad(f, wrt=("x", "y")), *args), rel=1e-12)
    plain = hyad.compile(hyad.grad(f, wrt=("x", "y")), args=args, without=("few-inputs", "hand-on"))
    assert plain(*args) == pytest.approx(gradient(*args), rel=1e-13)
    backs = re.findall(r"^static [^;]*?\bf_back\([^;]*?\)\n\{.*?^\}", gradient.source, re.MULTILINE | re.DOTALL)
    code = [re.sub(r"//.*", "", back.partition("{")[2]) for back in backs]
    assert sum(text.count("f_back(") for text in code) == calls


# ------------------------------------------------------------------------------- adjoints of what is handed on

#: Recursion along the rows of ``x``: each call adds one row to the adjoint of ``x``. The parameters, and the body.
ALONG = {
    "rows": ("[x b]", "(letrec [f (fn [i] (if (= i (len x)) b (sin (+ (get x i) (f (+ i 1))))))] (sum (f 0)))"),
    "declared": (
        "[#^ (Mat n k) x #^ (Vec k) b]",
        "(letrec [f (fn [i] (if (= i (len x)) b (sin (+ (get x i) (f (+ i 1))))))] (sum (f 0)))",
    ),
    "handed on": (
        "[x b]",
        "(letrec [f (fn [x i] (if (= i (len x)) b (sin (+ (get x i) (f x (+ i 1))))))] (sum (f x 0)))",
    ),
    "of products": (
        "[x b]",
        "(letrec [f (fn [i] (if (= i (len x)) b (sin (@ (outer b b) (+ (get x i) (f (+ i 1)))))))] (sum (f 0)))",
    ),
    "last": (
        "[x b]",
        "(letrec [f (fn [i s] (if (= i (len x)) s (f (+ i 1) (sin (+ (get x i) (@ (outer b b) s))))))] (sum (f 0 b)))",
    ),
    "of pairs": (
        "[x b]",
        """(letrec [f (fn [i] (if (= i (len x)) #(b b) (let [#(u v) (f (+ i 1))] #((sin (+ (get x i) v)) (* u v)))))]
             (let [#(u v) (f 0)] (+ (sum u) (sum v))))""",
    ),
    "given itself": (
        "[x b]",
        "(let [f (fn [f i] (if (= i (len x)) b (sin (+ (get x i) (f f (+ i 1))))))] (sum (f f 0)))",
    ),
    "in a match": (
        "[x b]",
        """(letrec [f (fn [i l] (if (null? l) b (sin (+ (get x i) (* (car l) (f (+ i 1) (cdr l)))))))
                    down (fn [n] (if (= n 0) None (cons 0.9 (down (- n 1)))))]
             (sum (f 0 (down (len x)))))""",
    ),
}

#: What a call allocates, and copies or clears.
COUNTED = """
static size_t moved;
#define memcpy(to, from, size) (moved += (size), memcpy(to, from, size))
#define memset(to, value, size) (moved += (size), memset(to, value, size))
"""
SPENT = """
void spent(const double *x, const double *b, long long n, long long k, double *xb, double *bb, double *work,
    long long *out)
{
    hyad_arena arena = {0};
    arena.stack = 1 << 22;
    moved = 0;
    out[0] = CALL;
    out[1] = hyad_held(&arena);
    out[2] = moved;
    hyad_free(&arena);
}
"""


@pytest.mark.some(10)
@pytest.mark.parametrize("name", ALONG)
def test_the_adjoint_of_an_array_is_added_to_where_it_lies(name: str, tmp_path) -> None:
    """A call's row is added to it: there was a copy of all rows in each call, and time and memory were quadratic."""
    head, body = ALONG[name]
    f, rng = hyad.model(f"(fn {head} {body})", namespace={}), np.random.default_rng(1)
    x, b = rng.normal(size=(7, 5)), 0.3 * rng.normal(size=5)
    gradient = hyad.compile(hyad.grad(f), args=(x, b))
    dx, db = rng.normal(size=x.shape), rng.normal(size=b.shape)
    gx, gb = gradient(x, b)
    for other in (hyad.run(hyad.grad(f), x, b), hyad.grad(f, encoding="closure")(x, b)):
        np.testing.assert_allclose(gx, other[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(gb, other[1], rtol=1e-12, atol=1e-14)
    slope = np.sum(gx * dx) + np.sum(gb * db)
    assert slope == pytest.approx(hyad.jvp(f, (x, b), (dx, db)), rel=1e-11)
    h = 1e-6
    assert slope == pytest.approx((f(x + h * dx, b + h * db) - f(x - h * dx, b - h * db)) / (2 * h), rel=1e-6)

    made = gradient.cfunction
    source = made.source.replace(f'#include "{made.name}.h"', made.header)
    includes, _, rest = source.partition("typedef const struct")
    given = ["x", "b", "n", *["k"] * (len(made.dims) - 1), "xb", "bb", *["work"] * (made.workspace != "0"), "&arena"]
    spending = SPENT.replace("CALL", f"{made.name}({', '.join(given)})")
    library = str(tmp_path / "spent.so")
    text = tmp_path / "spent.c"
    text.write_text(includes + COUNTED + "typedef const struct" + rest + spending)
    subprocess.run(["gcc", "-std=c99", "-O1", "-fPIC", "-shared", "-o", library, str(text), "-lm"], check=True)
    spent = ctypes.CDLL(library).spent

    def counted(n: int) -> np.ndarray:
        k = 5
        x, b = rng.normal(size=(n, k)), rng.normal(size=k)
        found, out = [np.zeros_like(x), np.zeros_like(b), np.zeros(40 * (n + 10) * k)], np.zeros(3, np.int64)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, b, *found, out)]
        spent(*pointers[:2], ctypes.c_longlong(n), ctypes.c_longlong(k), *pointers[2:])
        assert out[0] == 0
        return out[1:]

    less, more = counted(400), counted(1600)
    assert np.all(more < 6 * less)


def test_a_reference_that_is_read_before_a_call_and_set_behind_it() -> None:
    """That a function sets it shows when its body has been gone through."""
    f = hyad.model(
        """(fn [x #^ Int n] (let [q (ref x)]
             (letrec [f (fn [k] (if (<= k 0) (deref q) (do (f (- k 1)) (set! q (* 2 (deref q))) (+ k (deref q)))))]
               (f n))))""",
        namespace={},
    )
    for n in (0, 1, 3):
        assert f(0.3, n) == hyad.run(f, 0.3, n)
        assert hyad.grad(f, wrt=0)(0.3, n) == hyad.run(hyad.grad(f, wrt=0), 0.3, n)
