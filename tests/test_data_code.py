"""Data types, recursive functions and ``while`` in compiled code: programs made by hand, in C and in Python.

Each program is checked, optimised, printed and run; what C gives is compared with Python written out here.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hyad
from hyad.codegen import build
from hyad.codegen.c import print_c
from hyad.codegen.cuda import print_cuda
from hyad.codegen.python import load_python
from hyad.core import (
    INT,
    LEAF,
    REAL,
    Arr,
    Block,
    Constructor,
    Data,
    Function,
    Node,
    Program,
    Var,
    integer,
    real,
    type_of,
)
from hyad.errors import CompileError, HyadError, ModelTypeError
from hyad.passes.optimise import optimise
from hyad.program.builder import Builder
from hyad.program.check import check
from hyad.program.data import defdata, lisp
from hyad.program.journal import without


def list_type(elem=REAL, name="List"):
    t = Data(name)
    t.constructors = (
        Constructor("nil", t, (), None),
        Constructor("cons", t, (Var("car", elem, None, True), Var("cdr", t, None, True)), tuple),
    )
    return t


Tree = defdata("Tree", ["Leaf", "word"], ["Node", "label", "left", "right"])


def tree_type():
    t = Data("Tree")
    leaf = Constructor("Leaf", t, (Var("word", REAL, None, True),), Tree.Leaf)
    node = Constructor(
        "Node", t, (Var("label", REAL, None, True), Var("left", t, None, True), Var("right", t, None, True)), Tree.Node
    )
    t.constructors = (leaf, node)
    return t


def program(name, params, b, results, out=None, dims=()):
    out = out or (LEAF if len(results) == 1 else Node((LEAF,) * len(results)))
    p = Program(name, tuple(params), tuple(dims), Block(b.block(), tuple(results)), (LEAF,) * len(params), out)
    check(p)
    with without(["counted"]):  # a ``while`` stays one
        p = optimise(p)
    check(p)
    return p


def function(b, name, params, results, body):
    f = Function(name, tuple(params), tuple(results))
    with b.function_scope(1) as scope:
        scope.vars.update(params)
        out = body(f, *params)
        f.body = b.close(scope, tuple(out))
    return f


def match(b, value, names, *arms):
    """arms: functions of the fields that give results"""
    data = type_of(value)
    made = []
    for c, arm in zip(data.constructors, arms):
        with b.arm(c) as (scope, fields):
            results = list(arm(*fields))
        made.append((c, fields, scope, results))
    return b.case(value, made, names)


def sum_list():
    b, L = Builder(), list_type()
    ls, k = Var("l", L), Var("k", REAL)

    def body(f, pl, pk):
        def cons(car, cdr):
            (r,) = b.apply(f, (cdr, pk))
            return [b.prim("+", b.prim("*", car, pk), r)]

        return match(b, pl, ["s"], lambda: [real(0.0)], cons)

    f = function(b, "go", [Var("l", L), Var("k", REAL)], [Var("s", REAL)], body)
    return program("total", [ls, k], b, b.apply(f, (ls, k)))


def fold_list():
    b, L = Builder(), list_type()
    ls = Var("l", L)

    def body(f, pl, acc):
        return match(b, pl, ["s"], lambda: [acc], lambda car, cdr: b.apply(f, (cdr, b.prim("+", acc, car))))

    f = function(b, "fold-go", [Var("l", L), Var("acc", REAL)], [Var("s", REAL)], body)
    return program("folded", [ls], b, b.apply(f, (ls, real(0.0))))


def map_list():
    b, L = Builder(), list_type()
    ls, k = Var("l", L), Var("k", REAL)

    def body(f, pl, pk):
        def cons(car, cdr):
            (r,) = b.apply(f, (cdr, pk))
            return [b.make(L.constructors[1], (b.prim("*", car, pk), r))]

        return match(b, pl, ["s"], lambda: [b.make(L.constructors[0], ())], cons)

    f = function(b, "scale", [Var("l", L), Var("k", REAL)], [Var("s", L)], body)
    return program("scaled", [ls, k], b, b.apply(f, (ls, k)))


def tree_sum():
    b, T = Builder(), tree_type()
    t = Var("t", T)

    def body(f, pt):
        def node(label, left, right):
            (x,), (y,) = b.apply(f, (left,)), b.apply(f, (right,))
            return [b.prim("tanh", b.prim("+", label, b.prim("*", x, y)))]

        return match(b, pt, ["s"], lambda w: [b.prim("sin", w)], node)

    f = function(b, "value", [Var("t", T)], [Var("s", REAL)], body)
    return program("tree-sum", [t], b, b.apply(f, (t,)))


def tree_map():
    b, T = Builder(), tree_type()
    t = Var("t", T)

    def body(f, pt):
        def node(label, left, right):
            (x,), (y,) = b.apply(f, (left,)), b.apply(f, (right,))
            return [b.make(T.constructors[1], (b.prim("+", label, real(1.0)), x, y))]

        return match(b, pt, ["s"], lambda w: [b.make(T.constructors[0], (b.prim("neg", w),))], node)

    f = function(b, "walk", [Var("t", T)], [Var("s", T)], body)
    return program("tree-map", [t], b, b.apply(f, (t,)))


def tree_grad():
    """value and gradient (a tree) of tree_sum, by a record of each call"""
    b, T = Builder(), tree_type()
    R = Data("Record")
    R.constructors = (
        Constructor("leaf", R, (), "record"),
        Constructor("node", R, (Var("x", REAL), Var("y", REAL), Var("v", REAL), Var("l", R), Var("r", R)), "record"),
    )
    t = Var("t", T)

    def forward(f, pt):
        def node(label, left, right):
            (x, xs), (y, ys) = b.apply(f, (left,)), b.apply(f, (right,))
            v = b.prim("tanh", b.prim("+", label, b.prim("*", x, y)))
            return [v, b.make(R.constructors[1], (x, y, v, xs, ys))]

        return match(b, pt, ["s", "rec"], lambda w: [b.prim("sin", w), b.make(R.constructors[0], ())], node)

    fwd = function(b, "value-there", [Var("t", T)], [Var("s", REAL), Var("rec", R)], forward)

    def backward(f, pt, rec, bar):
        def leaf(w):
            return [b.make(T.constructors[0], (b.prim("*", bar, b.prim("cos", w)),))]

        def node(label, left, right):
            def inner(x, y, v, xs, ys):
                d = b.prim("*", bar, b.prim("-", real(1.0), b.prim("*", v, v)))
                (a,) = b.apply(f, (left, xs, b.prim("*", d, y)))
                (c,) = b.apply(f, (right, ys, b.prim("*", d, x)))
                return [b.make(T.constructors[1], (d, a, c))]

            return match(b, rec, ["t_bar"], lambda: [b.make(T.constructors[0], (real(0.0),))], inner)

        return match(b, pt, ["t_bar"], leaf, node)

    bwd = function(b, "value-back", [Var("t", T), Var("rec", R), Var("s̄", REAL)], [Var("t̄", T)], backward)
    s, rec = b.apply(fwd, (t,))
    (tb,) = b.apply(bwd, (t, rec, real(1.0)))
    return program("tree-grad", [t], b, (s, tb))


def while_sum():
    b = Builder()
    x = Var("x", REAL)
    fin, total, n = b.while_(
        [x, real(0.0)],
        lambda a, s: b.prim(">", a, real(1e-3)),
        lambda a, s: ([b.prim("*", a, real(0.5)), b.prim("+", s, b.prim("sin", a))], []),
        ["a", "s"],
        ["a", "s"],
    )
    return program("halves", [x], b, (total, n))


def while_grad():
    """reverse mode of: y = x; while i < n: y = sin(y)*1.01; i += 1"""
    b = Builder()
    x, n = Var("x", REAL), Var("n", INT)
    i, y, count, ys = b.while_(
        [integer(0), x],
        lambda i, y: b.prim("<", i, n),
        lambda i, y: ([b.prim("+", i, integer(1)), b.prim("*", b.prim("sin", y), real(1.01))], [y]),
        ["i", "y", "ys"],
        ["i", "y"],
    )

    def back(k, bar):
        at = b.prim("-", b.prim("-", count, integer(1)), k)
        return [b.prim("*", bar, b.prim("*", real(1.01), b.prim("cos", b.get(ys, at))))], []

    (bar,) = b.loop(count, [real(1.0)], back, ["x_bar"])
    return program("wander-grad", [x, n], b, (y, bar))


def while_primal():
    b = Builder()
    x, n = Var("x", REAL), Var("n", INT)
    i, y, count = b.while_(
        [integer(0), x],
        lambda i, y: b.prim("<", i, n),
        lambda i, y: ([b.prim("+", i, integer(1)), b.prim("*", b.prim("sin", y), real(1.01))], []),
        ["i", "y"],
        ["i", "y"],
    )
    return program("wander", [x, n], b, (y,))


def V(*dims):
    return Arr(REAL, tuple(integer(d) if isinstance(d, int) else d for d in dims))


VTree = defdata("VTree", ["Leaf", "word"], ["Node", "label", "left", "right"])


def vtree_type(n):
    t = Data("VTree")
    leaf = Constructor("Leaf", t, (Var("word", V(n), None, True),), VTree.Leaf)
    node = Constructor("Node", t, (Var("label", REAL), Var("left", t), Var("right", t)), VTree.Node)
    t.constructors = (leaf, node)
    return t


def vector_tree():
    b, T = Builder(), vtree_type(3)
    t = Var("t", T)

    def body(f, pt):
        def node(label, left, right):
            (x,), (y,) = b.apply(f, (left,)), b.apply(f, (right,))
            return [b.build(integer(3), lambda i: b.prim("+", b.get(x, i), b.prim("*", label, b.get(y, i))))]

        return match(b, pt, ["s"], lambda w: [b.build(integer(3), lambda i: b.prim("sin", b.get(w, i)))], node)

    f = function(b, "value", [Var("t", T)], [Var("s", V(3))], body)
    return program("vector-tree", [t], b, b.apply(f, (t,)))


def vlist_type():
    t = Data("Rows")
    n = Var("n", INT)
    t.constructors = (
        Constructor("nil", t, (), None),
        Constructor("cons", t, (n, Var("car", V(n), None, True), Var("cdr", t, None, True)), tuple),
    )
    return t


def norms():
    b, L = Builder(), vlist_type()
    ls = Var("ls", L)

    def body(f, pl, acc):
        def cons(n, car, cdr):
            (s,) = b.loop(
                n, [acc], lambda i, a: ([b.prim("+", a, b.prim("*", b.get(car, i), b.get(car, i)))], []), ["s"]
            )
            return b.apply(f, (cdr, s))

        return match(b, pl, ["s"], lambda: [acc], cons)

    f = function(b, "norms-go", [Var("l", L), Var("acc", REAL)], [Var("s", REAL)], body)
    return program("norms", [ls], b, b.apply(f, (ls, real(0.0))))


def doubled():
    b, L = Builder(), vlist_type()
    ls = Var("ls", L)

    def body(f, pl):
        def cons(n, car, cdr):
            (r,) = b.apply(f, (cdr,))
            twice = b.build(n, lambda i: b.prim("*", real(2.0), b.get(car, i)))
            return [b.make(L.constructors[1], (n, twice, b.make(L.constructors[1], (n, car, r))))]

        return match(b, pl, ["s"], lambda: [b.make(L.constructors[0], ())], cons)

    f = function(b, "doubled-go", [Var("l", L)], [Var("s", L)], body)
    return program("doubled", [ls], b, b.apply(f, (ls,)))


def histogram():
    """counts, in an array handed through a tree recursion"""
    b, T = Builder(), tree_type()
    n = Var("n", INT)
    t, v = Var("t", T), Var("v", V(n))
    b.sizes.add(n)

    def body(f, pn, pt, acc):
        def node(label, left, right):
            (x,) = b.apply(f, (pn, left, acc))
            (y,) = b.apply(f, (pn, right, x))
            return [b.add_at(y, (integer(0),), label)]

        return match(b, pt, ["s"], lambda w: [b.add_at(acc, (integer(1),), w)], node)

    pn = Var("n", INT)
    f = function(b, "gather", [pn, Var("t", T), Var("acc", V(pn))], [Var("s", V(pn))], body)
    z = b.zeros(V(n))
    (r,) = b.apply(f, (n, t, z))
    (r2,) = b.apply(f, (n, t, v))
    out = b.build(n, lambda i: b.prim("+", b.get(r, i), b.prim("*", real(10.0), b.get(r2, i))))
    return program("histogram", [t, v], b, (out,), dims=(n,))


def gathered():
    """an array whose size the function finds out"""
    b, L = Builder(), list_type()
    ls = Var("ls", L)

    def count(f, pl, acc):
        return match(b, pl, ["n"], lambda: [acc], lambda car, cdr: b.apply(f, (cdr, b.prim("+", acc, integer(1)))))

    c = function(b, "count", [Var("l", L), Var("acc", INT)], [Var("n", INT)], count)
    rn = Var("m", INT)

    def body(f, pl):
        (m,) = b.apply(c, (pl, integer(0)))
        b.sizes.add(m)

        v = b.build(m, lambda i: b.prim("real", i))

        def deeper(car, cdr):
            k, rest = b.apply(f, (cdr,))
            s = b.loop(k, [real(0.0)], lambda i, a: ([b.prim("+", a, b.get(rest, i))], []), ["s"])[0]
            return [b.prim("+", s, car)]

        (x,) = match(b, pl, ["x"], lambda: [real(0.0)], deeper)
        w = b.build(m, lambda i: b.prim("+", b.get(v, i), x))
        return [m, w]

    f = function(b, "gather", [Var("l", L)], [rn, Var("v", V(rn))], body)
    n, v = b.apply(f, (ls,))
    (s,) = b.loop(n, [real(0.0)], lambda i, a: ([b.prim("+", a, b.get(v, i))], []), ["s"])
    return program("gathered", [ls], b, (s, n))


def power():
    """a while with an array state, its rows stacked"""
    b = Builder()
    n = Var("n", INT)
    b.sizes.add(n)
    v, k = Var("v", V(n)), Var("k", INT)

    def step(i, u):
        (m,) = b.loop(n, [real(0.0)], lambda j, a: ([b.prim("+", a, b.get(u, j))], []), ["m"])
        return [
            b.prim("+", i, integer(1)),
            b.build(n, lambda j: b.prim("/", b.prim("+", b.get(u, j), m), real(2.0))),
        ], [u, m]

    i, u, count, us, ms = b.while_(
        [integer(0), v], lambda i, u: b.prim("<", i, k), step, ["i", "u", "us", "ms"], ["i", "u"]
    )
    (total,) = b.loop(
        count,
        [real(0.0)],
        lambda t, a: ([b.prim("+", a, b.prim("*", b.get(us, t, integer(1)), b.get(ms, t)))], []),
        ["total"],
    )
    return program("power", [v, k], b, (u, total), dims=(n,))


def reversed_list():
    """an array made of a list's elements, in place in a tail call; read back into a list"""
    b, L = Builder(), list_type()
    n = Var("n", INT)
    b.sizes.add(n)
    ls, v = Var("ls", L), Var("v", V(n))
    pn = Var("n", INT)

    def body(f, pn_, pl, i, acc):
        return match(
            b,
            pl,
            ["s"],
            lambda: [acc],
            lambda car, cdr: b.apply(f, (pn_, cdr, b.prim("-", i, integer(1)), b.update(acc, (i,), car))),
        )

    f = function(b, "fill", [pn, Var("l", L), Var("i", INT), Var("acc", V(pn))], [Var("s", V(pn))], body)
    (r,) = b.apply(f, (n, ls, b.prim("-", n, integer(1)), v))
    out = b.build(n, lambda i: b.prim("+", b.get(r, i), b.prim("*", real(100.0), b.get(v, i))))
    return program("reversed", [ls, v], b, (out,), dims=(n,))


def picked():
    """elements of an array that a list names, each checked, and the list of them"""
    b = Builder()
    L, R = list_type(INT, "Indices"), list_type(REAL, "Found")
    n = Var("n", INT)
    b.sizes.add(n)
    ls, v = Var("ls", L), Var("v", V(n))
    pn = Var("n", INT)

    def body(f, pn_, pl, pv):
        def cons(car, cdr):
            b.require_index(car, pn_, "the index is out of range")
            (rest,) = b.apply(f, (pn_, cdr, pv))
            return [b.make(R.constructors[1], (b.get(pv, car), rest))]

        return match(b, pl, ["s"], lambda: [b.make(R.constructors[0], ())], cons)

    f = function(b, "pick", [pn, Var("l", L), Var("v", V(pn))], [Var("s", R)], body)
    return program("picked", [ls, v], b, b.apply(f, (n, ls, v)), dims=(n,))


def waste():
    """rounds of a loop that need an array each, of a size that they compute"""
    b = Builder()
    k = Var("k", INT)

    def step(i, s):
        c = b.prim("+", b.prim("%", i, integer(1000)), integer(1))
        b.sizes.add(c)
        v = b.loop(c, [real(1.0)], lambda j, a: ([b.prim("sin", b.prim("+", a, b.prim("real", j)))], [a]), ["a"])[1]
        last = b.prim("-", c, integer(1))
        (m,) = b.loop(
            c, [real(0.0)], lambda j, a: ([b.prim("+", a, b.prim("sin", b.get(v, b.prim("-", last, j))))], []), ["m"]
        )
        (m2,) = b.loop(c, [real(0.0)], lambda j, a: ([b.prim("+", a, b.prim("*", a, b.get(v, j)))], []), ["m"])
        return [b.prim("+", i, integer(1)), b.prim("+", s, b.prim("+", m, m2))], []

    i, s, n = b.while_([integer(0), real(0.0)], lambda i, s: b.prim("<", i, k), step, ["i", "s"], ["i", "s"])
    return program("waste", [k], b, (s,))


def far():
    """a subscript computed from an argument of a recursive function"""
    b = Builder()
    n = Var("n", INT)
    b.sizes.add(n)
    k, m, v = Var("k", INT), Var("m", INT), Var("v", V(n))
    pn = Var("n", INT)

    def body(f, pn_, pk, pm, pv):
        with b.region() as done:
            last = real(0.0)
        with b.region() as more:
            at = b.prim("*", pm, pk)
            b.require_index(at, pn_, "the index is out of range")
            (rest,) = b.apply(f, (pn_, b.prim("-", pk, integer(1)), pm, pv))
            total = b.prim("+", b.get(pv, at), rest)
        return b.if_(b.prim("<=", pk, integer(0)), (done, [last]), (more, [total]), ["s"])

    params = [pn, Var("k", INT), Var("m", INT), Var("v", V(pn))]
    f = function(b, "far-go", params, [Var("s", REAL)], body)
    return program("far", [k, m, v], b, b.apply(f, (n, k, m, v)), dims=(n,))


VECTORS = VTree.Node(2.0, VTree.Leaf(np.array([1.0, 2.0, 3.0])), VTree.Leaf(np.arange(3)))
ROWS = lisp([np.array([1.0, 2.0, 3.0]), np.arange(8.0)[::2], np.array([])])
SMALL = Tree.Node(1.0, Tree.Node(0.5, Tree.Leaf(1), Tree.Leaf(2.0)), Tree.Leaf(3.0))
THREE = np.array([1.0, 2.0, 3.0])

#: Each program, with arguments to call it with.
PROGRAMS = [
    (sum_list, (lisp([1.0, 2, 3.0]), 2.0)),
    (fold_list, (lisp([0.5] * 40),)),
    (map_list, (lisp([1.0, 2.0, 3.0]), 3.0)),
    (tree_sum, (SMALL,)),
    (tree_map, (SMALL,)),
    (tree_grad, (SMALL,)),
    (while_sum, (1.0,)),
    (while_grad, (0.7, 100)),
    (while_primal, (0.7, 100)),
    (vector_tree, (VECTORS,)),
    (norms, (ROWS,)),
    (doubled, (ROWS,)),
    (histogram, (SMALL, THREE)),
    (gathered, (lisp([1.0, 2.0, 3.0]),)),
    (power, (THREE, 50)),
    (reversed_list, (lisp([1.0, 2.0, 3.0]), THREE)),
    (picked, (lisp([2, 0, 2, 1]), THREE)),
    (waste, (2000,)),
    (far, (2, 1, THREE)),
]
EACH = pytest.mark.parametrize("make, args", PROGRAMS, ids=[make.__name__ for make, _ in PROGRAMS])


def loaded(make, **options):
    """A program as a Python function that raises ``Refused`` with the reason where arguments do not fit."""
    p = make()
    fn = print_c(p, **options)

    def fallback(reason, args, kwargs):
        raise Refused(fn.checks[reason - 1][1] if isinstance(reason, int) else reason)

    return build.load(fn, ins=p.ins, out=p.out, fallback=fallback)


class Refused(Exception):
    pass


def leaf_or(t, leaf, node):
    return leaf(t.word) if type(t) is Tree.Leaf else node(t.label, t.left, t.right)


def tree_value(t):
    return leaf_or(t, math.sin, lambda x, a, b: math.tanh(x + tree_value(a) * tree_value(b)))


def leaning(depth, right=True):
    t = Tree.Leaf(1.0)
    for _ in range(depth):
        t = Tree.Node(0.1, Tree.Leaf(0.2), t) if right else Tree.Node(0.1, t, Tree.Leaf(0.2))
    return t


def test_recursion_over_a_list():
    f = loaded(sum_list)
    assert f(lisp([1.0, 2, 3.0]), 2.0) == 12.0
    assert f(None, 2.0) == 0.0
    with pytest.raises(Refused, match="too deep for the stack"):
        f(lisp([1.0] * 10**6), 1.0)
    assert f(lisp([1.0, 2.0]), 1.0) == 3.0  # and the next call is as any other


def test_a_tail_call_is_a_loop():
    assert loaded(fold_list)(lisp([0.5] * 10**6)) == 5e5


def test_a_cell_around_a_tail_call_is_a_loop():
    f = loaded(map_list)
    assert f(lisp([1.0, 2.0, 3.0]), 3.0) == lisp([3.0, 6.0, 9.0])
    assert loaded(fold_list)(f(lisp([1.0] * 10**6), 2.0)) == 2e6


def test_recursion_over_a_tree():
    f = loaded(tree_sum)
    assert f(SMALL) == pytest.approx(tree_value(SMALL), rel=1e-15)
    assert f(leaning(10**4)) == pytest.approx(0.12399207690365883, rel=1e-12)
    assert loaded(tree_map)(SMALL).left.right == Tree.Leaf(-2.0)


def test_gradient_by_records():
    f, g = loaded(tree_sum), loaded(tree_grad)
    value, adjoint = g(SMALL)
    assert value == f(SMALL)
    e = 1e-6
    ends = [f(Tree.Node(1.0, Tree.Node(0.5, Tree.Leaf(1 + s), Tree.Leaf(2.0)), Tree.Leaf(3.0))) for s in (e, -e)]
    assert adjoint.left.left.word == pytest.approx((ends[0] - ends[1]) / (2 * e), rel=1e-8)
    assert g(leaning(10**4))[0] == f(leaning(10**4))


def test_deep_values_of_either_shape():
    f = loaded(tree_map)
    for right in (True, False):
        t = leaning(10**5 if right else 10**4, right)
        assert f(t).label == 1.1


def test_while():
    x, total, n = 1.0, 0.0, 0
    while x > 1e-3:
        x, total, n = x * 0.5, total + math.sin(x), n + 1
    assert loaded(while_sum)(1.0) == pytest.approx((total, n), rel=1e-14)


def test_what_a_while_stacks_grows():
    f, g = loaded(while_primal), loaded(while_grad)
    for n in (0, 1, 31, 32, 33, 1000):
        y, bar = g(0.7, n)
        assert y == f(0.7, n)
        assert bar == pytest.approx((f(0.7 + 1e-6, n) - f(0.7 - 1e-6, n)) / 2e-6, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("bad", [(1.0, 2.0), "x", (1.0, ("a", None)), (1.0, None, None)])
def test_values_that_do_not_fit(bad):
    with pytest.raises(Refused, match="argument l wants a value of List"):
        loaded(sum_list)(bad, 1.0)


def same(a, b):
    """Whether two results are the same up to rounding, data included."""
    if isinstance(a, (tuple, Tree)):
        return type(a) is type(b) and len(list(a)) == len(list(b)) and all(map(same, a, b))
    return a is b if a is None else np.allclose(a, b, rtol=1e-12, atol=0)


@EACH
def test_c_and_python_agree(make, args):
    p = make()
    found = load_python(p)(*args)
    assert same(found if len(found) > 1 else found[0], loaded(make)(*args))


@EACH
def test_single_precision(make, args):
    p = make()
    fn = print_c(p, dtype="f32")
    single = [np.float32(a) if isinstance(a, np.ndarray) else a for a in args]
    if make not in (vector_tree, norms, doubled):  # arrays in data are made single, those of arguments must be
        build.load(fn, ins=p.ins, out=p.out, fallback=lambda why, *_: pytest.fail(str(why)))(*single)


def test_arguments_are_not_changed():
    given = THREE.copy()
    for make in (histogram, reversed_list):
        args = dict(PROGRAMS)[make]
        loaded(make)(*args)
    np.testing.assert_array_equal(THREE, given)


def test_python_names_the_part_that_does_not_fit():
    cases = [
        (
            tree_sum,
            Tree.Node(1.0, Tree.Leaf("x"), Tree.Leaf(1)),
            "argument `t`: field left.word is a str, not a number",
        ),
        (tree_sum, Tree.Node(1.0, 2.0, Tree.Leaf(1)), "field left is a float, not Leaf or Node"),
        (fold_list, lisp([1.0, "a"]), r"part \[item 1\] is a str"),
        (norms, lisp([np.ones((2, 2))]), "is an array of rank 2"),
    ]
    for make, value, message in cases:
        with pytest.raises(ModelTypeError, match=message):
            load_python(make())(value)
    assert load_python(tree_sum())(leaning(10**4)) == pytest.approx((0.12399207690365883,), rel=1e-12)


@EACH
def test_emitted_files_compile_alone_without_a_warning(make, args, tmp_path):
    fn = print_c(make())
    (tmp_path / f"{fn.name}.h").write_text(fn.header)
    (tmp_path / f"{fn.name}.c").write_text(fn.source)
    strict = ["-O2", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-c"]
    subprocess.run(["cc", *strict, f"{fn.name}.c", "-o", "f.o"], cwd=tmp_path, check=True)


def test_an_unread_parameter_is_silenced_though_a_field_has_its_name():
    chain = defdata("Chain", ["End"], ["Link", "x", "rest"])
    text = "(defmodel first [l #^ Real x] (match l (End) 1.0 (Link a r) (* a a)))"
    f = hyad.model(text, namespace={"End": chain.End, "Link": chain.Link})
    found = hyad.show(f, "c", args=[chain.Link(2.0, chain.End()), 3.0])
    assert "l->x*l->x" in found and "(void)x;" in found


@pytest.mark.parametrize("fields", [("arena", "b"), ("a", "cell"), ("real", "list"), ("T", "t")])
def test_fields_may_have_any_name(fields):
    """Also those that a constructor's function has for itself, and those of types."""
    T = hyad.defdata("T", ["Node", *fields], ["Leaf", "w"])
    N, L = T.constructors
    given = {"T": T, "Node": N, "Leaf": L}
    doubled = "(fn [t] (match t (Leaf x) (Leaf (* 2.0 x)) (Node u v) (Node (sin u) (f v))))"
    f = hyad.model(f"(fn [t] (letrec [f {doubled}] (f t)))", namespace=given)
    t = N(0.5, L(1.0))
    assert str(hyad.compile(f, args=(t,))(t)) == str(hyad.run(f, t))


@pytest.mark.parametrize("name", ["n", "failed", "args", "x0", "out", "want", "Tree"])
def test_data_may_have_any_name(name):
    """Also that of a variable where Python's values are taken apart."""
    T = hyad.defdata(name, ["Node", "a", "b"], ["Leaf", "w"])
    N, L = T.constructors
    text = (
        "(fn [t x] (letrec [f (fn [t] (match t (Leaf a) (Leaf (* x a)) (Node u v) (Node (sin (* x u)) (f v))))] (f t)))"
    )
    f = hyad.model(text, namespace={name: T, "Node": N, "Leaf": L})
    t = N(0.5, L(1.0))
    assert str(hyad.compile(f, args=(t, 0.3))(t, 0.3)) == str(hyad.run(f, t, 0.3))


@pytest.mark.parametrize("name", ["failed", "mark", "M_PI", "arena", "FP_NAN", "status"])
def test_numbers_may_have_any_name(name):
    """Also those of macros, and of what a function with an arena has for itself."""
    text = (
        f"(letrec [g (fn [k z] (if (<= k 0) (* z {name}) (sin (* {name} (g (- k 1) (* z {name}))))))] (g (len v) 0.4))"
    )
    f = hyad.value_and_grad(hyad.model(f"(fn [#^ Real {name} #^ (Vec k) v] {text})", namespace={}), wrt=0)
    args = 0.7, np.array([0.3, 0.2])
    assert hyad.compile(f)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-14)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["failed", "mark", "M_PI", "RAND_MAX", "arena", "status", "_Bool", "__LINE__", "_x"])
def test_vectors_may_have_any_name(name):
    """A function with an arena calls the one that does the work with the names of its arguments."""
    text = f"""(fn [#^ (Vec k) {name} #^ Real x]
      (letrec [g (fn [q z] (if (<= q 0) (* z x) (sin (* x (g (- q 1) (* z (get {name} 0)))))))]
        (+ (g (len {name}) 0.4) (sum {name}))))"""
    f = hyad.value_and_grad(hyad.model(text, namespace={}))
    args = np.array([0.3, 0.2]), 0.7
    (value, slopes), (known, expected) = hyad.compile(f)(*args), hyad.run(f, *args)
    assert value == pytest.approx(known, rel=1e-14)
    for found, wanted in zip(slopes, expected):
        np.testing.assert_allclose(found, wanted, 1e-13)


def test_a_part_may_have_the_name_of_its_type():
    """Reverse mode makes records of records; a parameter that is called so hides the type of those after it."""
    text = """(fn [#^ Real x #^ Real y #^ (Vec n) v]
      (letrec [r (fn [q z] (if (<= q 0) (get v q) (r (- q 1) (sin z))))
               g (fn [k s] (if (= k 0) x (h (- k 1) (r n v))))
               h (fn [k s] (if (= k 0) s (+ 0.2 (g (- k 1) s))))]
        (g n y)))"""
    f = hyad.model(text, namespace={})
    args = 0.3, 0.4, np.array([0.3, 0.2, 0.5])
    for found, expected in zip(hyad.grad(f)(*args), hyad.run(hyad.grad(f), *args)):
        np.testing.assert_array_equal(found, expected)


def test_cuda_refuses_by_name():
    assert "while (" in print_cuda(while_primal()).source and not print_cuda(while_primal()).heap
    assert "hyad_grow(" in print_cuda(while_grad()).source and print_cuda(while_grad()).heap
    with pytest.raises(CompileError, match="the argument `l` is data"):
        print_cuda(sum_list())


def test_a_failed_check_inside_a_function():
    f = loaded(picked)
    with pytest.raises(Refused, match="the index is out of range"):
        f(lisp([0, 1, 3]), THREE)
    assert f(lisp([2]), THREE) == (3.0, None)


def test_an_index_that_does_not_fit_inside_a_function():
    with pytest.raises(Refused):
        loaded(far)(4, 2**62, THREE)
    with pytest.raises(HyadError):
        load_python(far())(4, 2**62, THREE)


# A C program that uses the emitted files alone, as a user would. ``limit`` is how many bytes malloc has left.
DRIVER = r"""
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include "tree_grad.h"
#include "tree_map.h"
#include "picked.h"
#include "wander_grad.h"
#include "doubled.h"

long long limit = 1LL << 40;
void *limited(size_t size) { return (limit -= (long long)size) < 0 ? NULL : malloc(size); }
void *limited_again(void *p, size_t size) { return (limit -= (long long)size) < 0 ? NULL : realloc(p, size); }

static struct Tree_cell *leaning(int depth)
{
    struct Tree_cell *cells = calloc(2*depth + 1, sizeof *cells);
    cells[0].tag = Tree_Leaf, cells[0].as.Leaf.word = 1.0;
    for (int i = 1; i <= depth; i++) {
        cells[2*i - 1].tag = Tree_Leaf, cells[2*i - 1].as.Leaf.word = 0.2;
        cells[2*i].tag = Tree_Node, cells[2*i].as.Node.label = 0.1;
        cells[2*i].as.Node.left = i % 2 ? &cells[2*i - 1] : &cells[2*i - 2];
        cells[2*i].as.Node.right = i % 2 ? &cells[2*i - 2] : &cells[2*i - 1];
    }
    return cells;
}

int main(void)
{
    hyad_arena arena = {0};
    const int depth = 2000;
    struct Tree_cell *cells = leaning(depth);
    Tree gradient, copy;
    double value;
    for (int k = 0; k < 3; k++) {
        assert(tree_grad(&cells[2*depth], &value, &gradient, &arena) == 0);
        assert(value > 0.1 && value < 0.2 && gradient->tag == Tree_Node);
        assert(tree_map(gradient, &copy, &arena) == 0 && copy->as.Node.label == gradient->as.Node.label + 1.0);
    }
    arena.stack = 20000; /* too little for so deep a tree */
    assert(tree_grad(&cells[2*depth], &value, &gradient, &arena) > 0);
    arena.stack = 0;
    assert(tree_grad(&cells[2*depth], &value, &gradient, &arena) == 0);

    struct Indices_cell ids[3] = {{2, &ids[1]}, {0, &ids[2]}, {1, NULL}};
    const double v[] = {1.0, 2.0, 3.0};
    Found found;
    assert(picked(ids, v, 3, &found, &arena) == 0 && found->car == 3.0 && found->cdr->cdr->car == 2.0);
    assert(picked(ids, v, 2, &found, &arena) > 0);
    for (long long n = 0; n < 100000; n = 3*n + 1) {
        double y, bar;
        assert(wander_grad(0.7, n, &y, &bar, &arena) == 0);
    }
    struct Rows_cell row = {3, v, NULL};
    Rows twice;
    assert(doubled(&row, &twice, &arena) == 0 && twice->car[2] == 6.0 && twice->cdr->car == v);
    hyad_free(&arena);

    int failures = 0;
    for (long long room = 0; room < 1500000; room += room/4 + 1000) { /* memory ends everywhere */
        hyad_arena small = {0};
        double y, bar;
        limit = room;
        int first = tree_grad(&cells[2*depth], &value, &gradient, &small);
        int second = wander_grad(0.7, 20000, &y, &bar, &small);
        assert((first == 0 || first == -1) && (second == 0 || second == -1));
        failures += first + second;
        hyad_free(&small);
    }
    assert(failures < 0);
    free(cells);
    return 0;
}
"""
LIMIT = """#include <stdlib.h>
extern void *limited(size_t), *limited_again(void *, size_t);
#define malloc limited
#define realloc limited_again
"""


def sanitizers(folder):
    """The flags of the sanitizers that the compiler has and that run here; a reason where there are none."""
    (folder / "try.c").write_text("int main(void) { return 0; }\n")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(["cc", *flags, "try.c", "-o", "try"], cwd=folder, capture_output=True)
    if built.returncode:
        return None, "the compiler has no sanitizers"
    ran = subprocess.run(["./try"], cwd=folder, capture_output=True)
    return (None, "programs with sanitizers do not run here") if ran.returncode else (flags, "")


@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_emitted_files_alone_under_the_sanitizers(optimised, tmp_path):
    flags, reason = sanitizers(tmp_path)
    if flags is None:
        pytest.skip(reason)
    sources = []
    for make in (tree_grad, tree_map, picked, while_grad, doubled):
        fn = print_c(make())
        (tmp_path / f"{fn.name}.h").write_text(fn.header)
        (tmp_path / f"{fn.name}.c").write_text(fn.source)
        sources.append(f"{fn.name}.c")
    (tmp_path / "limit.h").write_text(LIMIT)
    (tmp_path / "driver.c").write_text(DRIVER)
    strict = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-g", optimised, *flags]
    objects = []
    for source in sources:
        objects.append(source.replace(".c", ".o"))
        command = [*strict, "-pedantic", "-include", "limit.h", "-c", source, "-o", objects[-1]]
        subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([*strict, "driver.c", *objects, "-lm", "-o", "driver"], cwd=tmp_path, check=True)
    ran = subprocess.run(["./driver"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_what_a_round_takes_it_gives_back(tmp_path):
    fn = print_c(waste())
    (tmp_path / f"{fn.name}.h").write_text(fn.header)
    (tmp_path / f"{fn.name}.c").write_text(fn.source)
    (tmp_path / "main.c").write_text(
        """#include "waste.h"
int main(void)
{
    hyad_arena arena = {0};
    double s;
    size_t total = 0;
    const int status = waste(20000, &s, &arena);
    for (hyad_block *b = arena.spare; b; b = b->before) total += b->size;
    hyad_free(&arena);
    return status || total > 100000;
}
"""
    )
    subprocess.run(["cc", "main.c", "waste.c", "-lm", "-o", "main"], cwd=tmp_path, check=True)
    subprocess.run(["./main"], cwd=tmp_path, check=True)


def test_the_memory_of_a_while():
    """80 MB for ten million numbers, and no more than twice that while they grow."""
    script = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_data_code import loaded, while_grad\n"
        "f = loaded(while_grad); f(0.7, 10); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "f(0.7, 10**7); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 165_000


@pytest.mark.parametrize("name", ["_init", "_fini", "__exp", "_Pragma", "_own"])
def test_models_may_have_any_name(name):
    """Those that the linker, the compiler or the C library have for themselves, too."""
    f = hyad.model(f"(defmodel {name} [x] (* x x))", namespace={})
    assert hyad.compile(f)(3.0) == 9.0 and hyad.compile(hyad.grad(f))(3.0) == 6.0
