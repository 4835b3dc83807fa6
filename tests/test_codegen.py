"""Code generation: hand-built programs, run as C and as Python, against a direct evaluation of the core.

``evaluate`` below is the oracle: it follows the text of ``core.py`` with copies everywhere, so nothing in it can
alias. The C of every program compiles alone under ``-std=c99 -Wall -Wextra -Werror`` and runs with its undefined
behaviour and addresses checked.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import shutil
import subprocess

import numpy as np
import pytest

import hyad
import memoised
from hyad.codegen import parts
from hyad.codegen.c import print_c
from hyad.codegen.comments import outline
from hyad.codegen.cuda import print_cuda
from hyad.codegen.expressions import as_reals
from hyad.codegen.grid import print_grid
from hyad.codegen.identifiers import Names, identifier
from hyad.codegen.lower import plan
from hyad.codegen.operands import Line
from hyad.codegen.python import load_python, print_python
from hyad.codegen.statements import CHECKED
from hyad.core import (
    BOOL,
    INT,
    LEAF,
    REAL,
    Arr,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Node,
    Prim,
    Program,
    Var,
)
from hyad.errors import BoundsError, CompileError, ModelTypeError, Source, Span
from hyad.program.primitives import PRIMITIVES

CC = shutil.which("gcc") or shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
OPTIMISED = ["-O2"]
SANITIZED = ["-O1", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]


# ---------------------------------------------------------------------------------- building programs


def atom(x):
    if isinstance(x, (Var, Const)):
        return x
    t = BOOL if isinstance(x, bool) else INT if isinstance(x, int) else REAL
    return Const(x, t)


def vec(*dims, elem=REAL):
    return Arr(elem, tuple(atom(d) for d in dims))


class Build:
    """Collects the bindings of one block."""

    def __init__(self):
        self.binds = []

    def bind(self, op, types, names, span=None, given=False):
        variables = tuple(Var(n, t, span, given) for n, t in zip(names, types))
        self.binds.append(Bind(variables, op, span))
        return variables

    def __call__(self, name, *args, type=None, as_=None, span=None):
        args = tuple(atom(a) for a in args)
        if type is None:
            type = self.type(name, args)
        return self.bind(Prim(name, args), (type,), (as_ or "t",), span, as_ is not None)[0]

    @staticmethod
    def type(name, args):
        if name == "get":
            return args[0].type.item(len(args) - 1)
        if name == "array":
            inner = args[0].type
            dims = (Const(len(args), INT),)
            return Arr(inner.elem, dims + inner.dims) if isinstance(inner, Arr) else Arr(inner, dims)
        if name in ("update", "add-at"):
            return args[0].type
        if name == "select":
            return args[1].type
        return PRIMITIVES[name].result(tuple(a.type for a in args))[1]

    def if_(self, cond, then, orelse, names=None, span=None):
        """``then`` and ``orelse`` are functions of a Build to results."""
        blocks = [region(f) for f in (then, orelse)]
        types = [r.type for r in blocks[0].results]
        out = self.bind(If(atom(cond), *blocks), types, names or ["r"] * len(types), span)
        return out[0] if len(out) == 1 else out

    def loop(self, count, inits, body, names=None, span=None, index="i"):
        """``body`` is a function of a Build, the index and the accumulators to (next accumulators, stacked)."""
        count, i = atom(count), Var(index, INT, None, True)
        inits = tuple(atom(a) for a in inits)
        accs = tuple(Var((names or "stuvw")[k], a.type, None, True) for k, a in enumerate(inits))
        b = Build()
        nexts, stacked = body(b, i, *accs)
        results = tuple(atom(a) for a in (*nexts, *stacked))
        types = [a.type for a in inits]
        for r in results[len(inits) :]:
            inner = r.type
            types.append(Arr(inner.elem, (count, *inner.dims)) if isinstance(inner, Arr) else Arr(inner, (count,)))
        labels = [a.name for a in accs] + ["rows"] * (len(types) - len(accs))
        out = self.bind(Loop(count, i, inits, accs, Block(tuple(b.binds), results)), types, labels, span)
        return out[0] if len(out) == 1 else out

    def build(self, count, f, index="i"):
        return self.loop(count, [], lambda b, i: ([], [f(b, i)]), index=index)

    def check(self, relation, a, b, message="bad", kind="bounds", span=None):
        self.binds.append(Bind((), Check(relation, atom(a), atom(b), message, kind), span))


def region(f):
    b = Build()
    out = f(b)
    out = out if isinstance(out, tuple) else (out,)
    return Block(tuple(b.binds), tuple(atom(a) for a in out))


def program(params, f, name="f", out=None, **extra):
    """``params``: name -> type; ``f(b, *params)`` gives the results."""
    variables = tuple(Var(n, t, None, True) for n, t in params.items())
    dims = {}
    for v in variables:
        for d in v.type.dims if isinstance(v.type, Arr) else ():
            if isinstance(d, Var) and d not in variables:
                dims[d] = None
    block = region(lambda b: f(b, *variables))
    tree = out or (LEAF if len(block.results) == 1 else Node((LEAF,) * len(block.results)))
    return Program(name, variables, tuple(dims), block, (LEAF,) * len(variables), tree, **extra)


def dim(name="n"):
    return Var(name, INT, None, True)


# ----------------------------------------------------------------------------------------- the oracle

DTYPE = {REAL: np.float64, INT: np.int64, BOOL: np.bool_}


def evaluate(p, *args):
    """What core.py says, with a copy at every step."""
    env = {}
    for v, a in zip(p.params, args):
        env[v] = np.array(a, DTYPE[v.type.elem]) if isinstance(v.type, Arr) else a
        if isinstance(v.type, Arr):
            for d, n in zip(v.type.dims, env[v].shape):
                env.setdefault(d, n)

    def value(a):
        if isinstance(a, Var):
            return env[a]
        return float(a.value) if a.type == REAL else a.value

    def run(block):
        for bind in block.binds:
            out = step(bind, bind.op)
            for v, x in zip(bind.vars, out):
                env[v] = np.array(x, DTYPE[v.type.elem]) if isinstance(v.type, Arr) else x
        return [value(r) for r in block.results]

    def shape(t):
        return tuple(int(value(d)) for d in t.dims)

    def step(bind, op):
        if isinstance(op, If):
            return run(op.then if value(op.cond) else op.orelse)
        if isinstance(op, Check):
            a, b = value(op.a), value(op.b)
            if not {"==": a == b, "<": a < b, "<=": a <= b, "in": 0 <= a < b}[op.relation]:
                raise (BoundsError if op.kind == "bounds" else ModelTypeError)(op.message, bind.span)
            return []
        if isinstance(op, Loop):
            accs = [value(a) for a in op.inits]
            rows = [np.zeros(shape(v.type), DTYPE[v.type.elem]) for v in bind.vars[len(accs) :]]
            for i in range(value(op.count)):
                env[op.index] = i
                env.update(zip(op.accs, accs))
                out = [np.array(r) if isinstance(r, np.ndarray) else r for r in run(op.body)]
                accs = out[: len(accs)]
                for row, r in zip(rows, out[len(accs) :]):
                    row[i] = r
            return accs + rows
        args = [value(a) for a in op.args]
        t = bind.vars[0].type
        if op.name == "get":
            return [args[0][tuple(args[1:])]]
        if op.name == "array":
            return [np.array(args).reshape(shape(t))]
        if op.name in ("zeros", "undef"):
            return [np.zeros(shape(t)) if isinstance(t, Arr) else 0]
        if op.name in ("update", "add-at"):
            a = np.array(args[0])
            a[tuple(args[1:-1])] = args[-1] + (a[tuple(args[1:-1])] if op.name == "add-at" else 0)
            return [a]
        if op.name == "select":
            return [args[1] if args[0] else args[2]]
        with np.errstate(all="ignore"):
            wanted = PRIMITIVES[op.name].result(tuple(a.type for a in op.args))[0]
            args = [float(x) if w == REAL else x for x, w in zip(args, wanted)]
            return [PRIMITIVES[op.name].python(*args)]

    with np.errstate(all="ignore"):
        return run(p.body)


# ------------------------------------------------------------------------------------------ running C


class Failed(Exception):
    """A check of the C code failed: its number."""


def compile_c(fn, folder, flags=OPTIMISED):
    source = folder / f"{fn.name}_{next(_number)}.c"
    source.write_text(fn.source)
    target = source.with_suffix(".so")
    command = [CC, *STRICT, *flags, str(source), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{fn.source}"
    return getattr(ctypes.CDLL(str(target)), fn.name)


_number = itertools.count()


def call_c(fn, function, *args):
    """Call compiled C as its CFunction says, with guard elements behind every array that it writes."""
    real = np.float64 if fn.dtype == "f64" else np.float32
    dtypes = {"real": real, "int": np.int64, "bool": np.int32}
    scalars = {"real": ctypes.c_double if fn.dtype == "f64" else ctypes.c_float, "int": ctypes.c_longlong}
    scalars["bool"] = ctypes.c_int
    given, known, originals = [], {}, []
    for p, a in zip(fn.params, args):
        if p.dims:
            array = np.ascontiguousarray(a, dtypes[p.elem])
            known.update((d, n) for d, n in zip(p.dims, array.shape) if isinstance(d, str))
            given.append(array.ctypes.data_as(ctypes.c_void_p))
            originals.append((array, array.copy()))
        else:
            given.append(scalars[p.elem](a))
            known[p.name] = a

    def number(text):
        if isinstance(text, int):
            return text
        text = re.sub(r"\((\w+) > 0 \? \w+ : 0\)", r"max(\1, 0)", text).replace("/", "//")
        return eval(text, dict(known))

    given += [ctypes.c_longlong(known[d]) for d in fn.dims]
    outs = []
    if fn.returns_value:
        function.restype = scalars[fn.results[0].elem]
    else:
        function.restype = ctypes.c_int if fn.fallible else None
        for r in fn.results:
            size = int(np.prod([number(d) for d in r.dims], dtype=int))
            outs.append((np.full(size + 2, 77, dtypes[r.elem]), [number(d) for d in r.dims]))
            given.append(outs[-1][0].ctypes.data_as(ctypes.c_void_p))
    if fn.workspace is not None:
        size = max(number(fn.workspace), 0)
        work = np.full(size + 2, np.nan, real)
        given.append(work.ctypes.data_as(ctypes.c_void_p))
    status = function(*given)
    for array, original in originals:
        assert np.array_equal(array, original, equal_nan=array.dtype.kind == "f"), "a parameter was written to"
    if fn.workspace is not None:
        assert np.isnan(work[size:]).all(), "the workspace overflowed"
    if fn.returns_value:
        return [status]
    if fn.fallible and status:
        raise Failed(status)
    for out, dims in outs:
        assert (out[out.size - 2 if dims else 1 :] == 77).all(), "a result overflowed"
    return [out[:-2].reshape(dims) if dims else out[0].item() for out, dims in outs]


def close(got, want, rtol=1e-12):
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert np.shape(g) == np.shape(w)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-300 if rtol < 1e-9 else 1e-6)


def agree(p, *cases, folder, dtype="f64", flags=(OPTIMISED, SANITIZED)):
    """The program's C (under each set of flags) and Python give what the oracle gives, on each tuple of arguments."""
    fn = print_c(p, dtype=dtype)
    python = load_python(p)
    functions = [compile_c(fn, folder, f) for f in flags]
    for args in cases:
        want = evaluate(p, *args)
        before = [np.array(a) for a in args]
        close(python(*args), want)
        for a, b in zip(args, before):
            assert np.array_equal(a, b, equal_nan=True)
        for function in functions:
            close(call_c(fn, function, *args), want, 1e-12 if dtype == "f64" else 1e-5)
    return fn


# ------------------------------------------------------------------------------------------- the table


def straight(b, x, y):
    return b("*", b("sin", x), b("-", y, b("/", x, 2.0)))


def branches(b, x, y):
    def then(c):
        inner = c.if_(c("<", y, 0.0), lambda d: (d("sin", y), x), lambda d: (d("exp", y), d("+", x, y)))
        return c("+", x, inner[0]), inner[1]

    return b.if_(b("<", x, y), then, lambda c: (x, c("cos", y)))


def guarded(b, x):
    return b.if_(b("<", x, 0.0), lambda c: 0.0, lambda c: c("sqrt", x))


def clauses(b, x):
    def last(c):
        return c.if_(c("<", x, 2.0), lambda d: d("sin", x), lambda d: d("cos", x))

    return b.if_(b("<", x, 0.0), lambda c: c("exp", x), lambda c: c.if_(c("<", x, 1.0), lambda d: d("sqrt", x), last))


N = dim("n")
M = dim("m")


def total(b, v):
    return b.loop(N, [0.0], lambda c, i, s: ([c("+", s, c("get", v, i))], []))


def swapped(b, x):
    return b.loop(5, [0.0, x], lambda c, i, s, t: ([t, c("+", s, t)], []))


def rotated(b, x):
    return b.loop(7, [0.0, x, 2.0], lambda c, i, s, t, u: ([t, u, s], []))


def conditional_sum(b, v):
    def body(c, i, s):
        x = c("get", v, i)
        return [c.if_(c("<", 0.0, x), lambda d: d("+", s, d("sqrt", x)), lambda d: s)], []

    return b.loop(N, [0.0], body)


def nested_sum(b, m):
    def row(c, i, s):
        return [c.loop(M, [s], lambda d, j, t: ([d("+", t, d("get", m, i, j))], []), index="j")], []

    return b.loop(N, [0.0], row)


def matrix(b, v):
    def row(c, i):
        return c.build(M, lambda d, j: d("*", d("get", v, i), d("real", j)), index="j")

    return b.build(N, row)


def gradient(b, v):
    """Accumulate into an array of zeros."""
    zero = b("zeros", N, type=vec(N), as_="v̄")

    def body(c, i, g):
        return [c("add-at", g, i, c("*", 2.0, c("get", v, i)))], []

    return b.loop(N, [zero], body)


def update_then_old(b, v):
    changed = b("update", v, 0, 5.0)
    again = b("update", changed, 1, b("get", v, 0))
    return again, changed, b("get", v, 0)


def own_then_old(b, v):
    mine = b.build(N, lambda c, i: c("+", c("get", v, i), 1.0))
    changed = b("update", mine, 0, 9.0)
    return b("+", b("get", mine, 0), b("get", changed, 0))


def base_of_view(b, m):
    mine = b.build(N, lambda c, i: c.build(M, lambda d, j: d("+", d("get", m, i, j), 1.0), index="j"))
    row = b("get", mine, 1)
    changed = b("update", mine, 1, 0, 50.0)
    return b("+", b("get", row, 0), b("get", changed, 1, 0))


def waiting_read(b, v):
    mine = b.build(N, lambda c, i: c("*", c("get", v, i), 2.0))
    old = b("get", mine, 0)
    changed = b("update", mine, 0, 100.0)
    return changed, b("+", old, 1.0)


def same_twice(b, v):
    mine = b.build(N, lambda c, i: c("*", c("get", v, i), 2.0))
    return mine, mine, v


def row_in(b, m):
    mine = b.build(N, lambda c, i: c.build(M, lambda d, j: d("get", m, i, j), index="j"))
    moved = b("update", mine, 0, b("get", mine, 1))
    return b("add-at", moved, 1, b("get", moved, 0))


def scan(b, v):
    """A running state: the next one is also a row."""

    def body(c, i, s):
        nxt = c.build(N, lambda d, j: d("+", d("get", s, j), d("get", v, i)), index="j")
        return [nxt], [nxt]

    return b.loop(3, [v], body)


def old_rows(b, v):
    def body(c, i, s):
        return [c("update", s, i, 0.0)], [s]

    return b.loop(N, [v], body)


def shifted(b, v):
    """The next state reads another element than it writes."""

    def body(c, i, s):
        def element(d, j):
            k = d("%", d("+", j, 1), N)
            return d("get", s, k)

        return [c.build(N, element, index="j")], []

    return b.loop(4, [v], body)


def heat(b, v):
    """Two steps in one iteration, the state read at neighbours: pointers change places instead of copies."""

    def step(c, s):
        def element(d, j):
            inner = d.if_(d("<", 0, j), lambda e: e("<", j, e("-", N, 1)), lambda e: False)

            def moved(e):
                flow = e("+", e("get", s, e("-", j, 1)), e("get", s, e("+", j, 1)))
                return e("+", e("get", s, j), e("*", 0.1, e("-", flow, e("*", 2.0, e("get", s, j)))))

            return d.if_(inner, moved, lambda e: e("get", s, j))

        return c.build(N, element, index="j")

    def outer(c, i, s, t):
        first = c.loop(3, [s], lambda d, k, u: ([step(d, u)], []), index="k")
        return [step(c, first), c("+", t, c("get", s, 0))], []

    last, total = b.loop(5, [v, 0.0], outer)
    return last, b("+", total, b("get", last, 0))


def two_anew(b, v):
    """Two states, each made from both at other places; one is stacked as well."""

    def body(c, i, s, t):
        def mixed_up(x, y):
            return lambda d, j: d("-", d("get", x, d("-", d("-", N, 1), j)), d("get", y, j))

        x, y = c.build(N, mixed_up(s, t), index="j"), c.build(N, mixed_up(t, s), index="j")
        return [x, y], [x, t, c("get", s, 0)]

    return b.loop(3, [v, v], body)


def added(b, m):
    """acc + row, elementwise: done in place."""

    def body(c, i, s):
        row = c("get", m, i)
        return [c.build(M, lambda d, j: d("+", d("get", s, j), d("get", row, j)), index="j")], []

    return b.loop(N, [b("zeros", M, type=vec(M))], body)


def back_and_forth(b, v):
    """A step of reverse mode: one adjoint is accumulated into, the other made anew from itself, elementwise."""

    def step(c, k, g, h):
        def element(d, i, total):
            x = d("get", h, i)
            return [d("add-at", total, i, d("*", x, d("get", v, i)))], [d("sin", x)]

        return list(c.loop(N, [g], element)), []

    ones = b.build(N, lambda c, i: 1.0)
    return b.loop(3, [b("zeros", N, type=vec(N)), ones], step, index="k")


def added_square(b, m):
    def body(c, i, s):
        def row(d, j):
            return d.build(M, lambda e, k: e("+", e("get", s, j, k), e("get", m, j, k)), index="k")

        return [c.build(N, row, index="j")], []

    return b.loop(3, [b("zeros", N, M, type=vec(N, M))], body)


def two_in_place(b, v):
    """Two states, each from both."""

    def body(c, i, s, t):
        def both(d, j):
            x, y = d("get", s, j), d("get", t, j)
            return [], [d("+", x, y), d("-", x, y)]

        return list(c.loop(N, [], both, index="j")), []

    return b.loop(3, [v, v], body)


def swapped_arrays(b, v):
    w = b.build(N, lambda c, i: c("neg", c("get", v, i)))
    u = b.build(N, lambda c, i: c("real", i))
    return b.loop(3, [w, u], lambda c, i, s, t: ([t, s], []))


def rotated_arrays(b, v):
    parts = [b.build(N, lambda c, i, k=k: c("*", float(k), c("get", v, i))) for k in range(3)]
    return b.loop(4, parts, lambda c, i, s, t, u: ([t, u, s], []))


def chosen(b, v):
    c = b("<", b("get", v, 0), 0.0)
    return b.if_(c, lambda d: v, lambda d: d.build(N, lambda e, i: e("sqrt", e("get", v, i))))


def chosen_then_changed(b, v):
    c = b("<", b("get", v, 0), 0.0)
    w = b.if_(c, lambda d: v, lambda d: d.build(N, lambda e, i: e("sqrt", e("get", v, i))))
    return b("update", w, 0, 7.0)


def maybe_added(b, v):
    def body(c, i, g):
        x = c("get", v, i)
        return [c.if_(c("<", 0.0, x), lambda d: d("add-at", g, i, d("*", x, x)), lambda d: g)], []

    return b.loop(N, [b("zeros", N, type=vec(N))], body)


def maybe_replaced(b, v):
    def body(c, i, g):
        def fresh(d):
            return d.build(N, lambda e, j: e("-", e("get", v, j), e("get", g, i)), index="j")

        return [c.if_(c("<", 0.0, c("get", v, i)), fresh, lambda d: g)], []

    return b.loop(N, [b.build(N, lambda c, i: c("get", v, i))], body)


def rows_of_array(b, x):
    r1 = b("array", x, b("sin", x), as_="first")
    r2 = b("array", b("cos", x), x)
    return b("array", r1, r2), b("get", r1, 1)


def same_row_twice(b, x):
    r = b("array", x, b("sin", x))
    return b("array", r, r)


def row_changed_later(b, x):
    r = b("array", x, 1.0)
    m = b("array", r, r)
    return m, b("update", r, 0, 9.0), b("update", m, 0, 0, 3.0)


def table(b, x):
    w = b("array", *[float(k) / 7 for k in range(20)], as_="weights")
    s = b.loop(20, [0.0], lambda c, i, s: ([c("+", s, c("*", x, c("get", w, i)))], []))
    return s, w, b("update", w, 3, x)


def records(b, v):
    """What reverse mode makes: save in one branch, use in the same branch of a later if."""
    c = b("<", 0.0, b("get", v, 0))
    saved, x = b.if_(
        c,
        lambda d: (d.build(3, lambda e, i: e("get", v, i)), d("sin", d("get", v, 0))),
        lambda d: (d("undef", type=vec(3)), d("undef", type=REAL)),
    )
    return b.if_(c, lambda d: d("*", x, d("get", saved, 2)), lambda d: 0.5)


def views(b, t):
    m = b("get", t, 1, as_="slab")
    r = b("get", m, 1)
    return b("+", b("get", r, 2), b("+", b("get", m, 0, 1), b("get", t, 0, 1, 0)))


def returned_view(b, m):
    return b("get", m, 1), b("get", m, 0)


def argument_row(b, m, k):
    """A view whose subscript is an accumulator."""

    def body(c, i, s, t):
        row = c("get", m, s)
        return [c("%", c("+", s, 1), N), c("+", t, c("+", c("get", row, 0), c("get", row, 1)))], []

    return b.loop(5, [k, 0.0], body)


def integers(b, k, v):
    s = b.loop(N, [0], lambda c, i, s: ([c("+", s, c("get", v, i))], []))
    q = b("//", s, 3)
    return q, b("%", s, 3), b("-", b("*", q, k), b("neg", b("-", k, 1)))


def int_arrays(b, v):
    w = b.build(N, lambda c, i: c("*", i, i))
    u = b("update", w, 0, 5)
    flags = b.build(N, lambda c, i: c("<", c("get", v, i), 0.0))
    return b.build(N, lambda c, i: c("select", c("get", flags, i), c("get", u, i), c("get", w, i)))


def mixed(b, k, x):
    return b("/", k, 2), b("*", k, x), b("sin", k), b("/", b("real", k), x), b("**", x, 3), b("**", x, 0.5)


def temporaries(b, v):
    """Several arrays that are not results: they share the workspace."""
    w = v
    for k in range(4):
        w = b.build(N, lambda c, i, w=w: c("sin", c("get", w, c("-", c("-", N, 1), i))))
    return b.loop(N, [0.0], lambda c, i, s: ([c("+", s, c("get", w, i))], []))


def late_reads(b, v):
    """An element that is read when its array is dead, and used when the workspace has been given to another."""
    first = b.build(N, lambda c, i: c("cos", c("get", v, i)))
    second = b.build(N, lambda c, i: c("sin", c("get", v, i)))
    x = b("get", first, 0)
    third = b("update", second, 0, 3.0)
    return b("+", x, b("*", b("get", second, 0), b("get", third, 0)))


def local_rows(b, x):
    """A local matrix whose first row is made before it."""
    zero = b("array", 0.0, x)
    m = b("array", zero, zero)
    return b("get", b("add-at", m, 1, 1, b("get", m, 0, 1)), 1, 1)


def triangle(b, v):
    """A size that depends on a loop's index: room for the largest."""

    def body(c, i, s):
        part = c.build(i, lambda d, j: d("*", 2.0, d("get", v, j)), index="j")
        return [c.loop(i, [s], lambda d, j, t: ([d("+", t, d("get", part, j))], []), index="j")], []

    return b.loop(N, [0.0], body)


def grown(b, v):
    size = b("+", b("*", 2, N), 1)
    half = b("//", size, 2)
    return b.build(size, lambda c, i: c("real", i)), b.build(half, lambda c, i: c("get", v, i))


def literals(b, x):
    a = b("+", b("*", x, -2.0), b("-", 0.1, b("neg", b("neg", x))))
    return a, b("*", float("inf"), x), float("nan"), 1e300, b("-", 1e-5, b("-", x, b("-", x, 3.0)))


def logic(b, x, y):
    p = b("or", b("and", b("<", x, y), b("<", y, 1.0)), b("not", b("<=", x, 0.0)))
    return p, b("select", p, x, y)


def short_circuits(b, v):
    """``and`` and ``or`` that must not evaluate their second operand."""

    def body(c, i, s):
        inside = c.if_(c("<", 0, i), lambda d: d("<", d("get", v, d("-", i, 1)), 0.5), lambda d: False)
        either = c.if_(c("<", N, c("+", i, 2)), lambda d: True, lambda d: d("<", 0.0, d("get", v, d("+", i, 1))))
        x = c.if_(inside, lambda d: d("sin", s), lambda d: s)
        return [c.if_(either, lambda d: d("+", x, 1.0), lambda d: d("cos", x))], []

    return b.loop(N, [0.0], body)


def or_with_lines(b, x, y):
    """An ``or`` whose second operand takes lines of its own, after a condition that waits for its use."""
    a = b.loop(3, [y], lambda c, i, s: ([c("+", c("*", s, s), x)], []))

    def second(c):
        inner = c.if_(c("<", 0.177, y), lambda d: d("tanh", d("sin", x)), lambda d: d("sin", d("tanh", y)))
        return c("<", 0.5, inner)

    either = b.if_(b("<=", a, 1.09), lambda c: True, second)
    return b.if_(either, lambda c: c("tanh", y), lambda c: c("*", y, y))


def or_with_a_number(b, x, v):
    """An ``or`` in an ``and``, each with a second operand that takes lines of its own."""

    def near(c):
        t = c("get", v, 2)
        return c("or", c("<", 0.1, t), c("<", t, -1.4))

    def inner(c):
        return c.if_(c("<", 0.9, x), lambda d: True, near)

    both = b.if_(b("<", 0.5, x), inner, lambda c: False)
    return b("select", both, 0.5, 3.0)


def several(b, x, y):
    r = b.if_(b("<", x, y), lambda c: (x, y, 1), lambda c: (y, x, 2))
    return r


def read_before_swap(b, x):
    """A folded expression that reads an accumulator which the same iteration changes."""

    def body(c, i, s, t):
        old = c("*", s, 2.0)
        return [c("+", s, t), old], [c("-", old, s) if False else c("-", t, s)]

    return b.loop(4, [x, 1.0], body)


def if_updates_accumulator(b, x):
    def body(c, i, s, t):
        old = c("*", s, 3.0)
        nxt = c.if_(c("<", s, 4.0), lambda d: d("+", s, 1.0), lambda d: s)
        return [nxt, c("+", old, t)], []

    return b.loop(6, [x, 0.0], body)


def loops_in_sequence(b, x):
    s = b.loop(3, [x], lambda c, i, s: ([c("square", s)], []))
    t = b.loop(3, [s], lambda c, i, s: ([c("sin", s)], []))
    return b("+", s, t)


def loops_in_chain(b, x):
    s = b.loop(3, [x], lambda c, i, s: ([c("cos", s)], []))
    return b.loop(3, [s], lambda c, i, s: ([c("sin", s)], []))


def loop_sized_by_loop(b, v):
    k = b.loop(3, [0], lambda c, i, k: ([c("+", k, 1)], []))
    return b.loop(k, [0.0], lambda c, i, s: ([c("+", s, c("get", v, i))], []))


def undefined_accumulator(b, v):
    return b.loop(N, [b("undef", type=vec(N))], lambda c, i, s: ([c("update", s, i, c("get", v, i))], []))


def nothing_used(b, x, v):
    b("sin", x)
    b.loop(3, [x], lambda c, i, s: ([c("+", s, 1.0)], []))
    b("update", v, 0, x)
    return 2


def if_of_rows(b, m):
    mine = b.build(N, lambda c, i: c.build(M, lambda d, j: d("*", 2.0, d("get", m, i, j)), index="j"))
    c = b("<", b("get", m, 0, 0), 0.0)
    return b.if_(c, lambda d: (d("get", mine, 0), d("get", mine, 1)), lambda d: (d("get", mine, 1), d("get", mine, 0)))


def update_in_branch(b, v):
    mine = b.build(N, lambda c, i: c("get", v, i))
    c = b("<", b("get", v, 0), 0.0)
    x = b.if_(c, lambda d: d("get", d("update", mine, 0, 4.0), 0), lambda d: d("get", mine, 1))
    return x


def update_in_branch_then_read(b, v):
    mine = b.build(N, lambda c, i: c("get", v, i))
    c = b("<", b("get", v, 0), 0.0)
    x = b.if_(c, lambda d: d("get", d("update", mine, 0, 4.0), 0), lambda d: d("get", mine, 1))
    return b("+", x, b("get", mine, 0))


def update_in_loop_of_outer(b, v):
    """The array is made outside the loop: each iteration must see it unchanged."""
    mine = b.build(N, lambda c, i: c("get", v, i))

    def body(c, i, s):
        changed = c("add-at", mine, 0, c("real", i))
        return [c("+", s, c("get", changed, 0))], []

    return b.loop(4, [0.0], body)


def view_kept_over_loop(b, m):
    mine = b.build(N, lambda c, i: c.build(M, lambda d, j: d("get", m, i, j), index="j"))
    row = b("get", mine, 0)
    changed = b.loop(N, [mine], lambda c, i, s: ([c("update", s, i, 0, 8.0)], []))
    return b("+", b("get", row, 0), b("get", changed, 0, 0))


def inner_accumulator(b, m):
    """The inner loop takes the outer accumulator and gives it back."""
    zero = b("zeros", M, type=vec(M))

    def outer(c, i, g):
        def inner(d, j, h):
            return [d("add-at", h, j, d("get", m, i, j))], []

        return [c.loop(M, [g], inner, index="j")], []

    return b.loop(N, [zero], outer)


def stacked_pairs(b, v):
    return b.loop(N, [1.0], lambda c, i, p: ([c("*", p, c("get", v, i))], [p, c("array", p, c("get", v, i))]))


def constant_array(b, v):
    w = Const(np.array([1.5, 2.5, 3.5]), vec(3))
    return b("+", b("get", w, 1), b("get", v, 0)), w


VECTOR, MATRIX = {"v": vec(N)}, {"m": vec(N, M)}
V3 = [(np.array([0.3, -0.7, 1.9]),), (np.array([-0.3, 0.7, 1.9, 2.0]),)]
V0 = [*V3, (np.zeros(0),), (np.ones(1),)]
M23 = [(np.arange(6.0).reshape(2, 3) - 1,), (np.arange(12.0).reshape(3, 4),)]
M22 = [(np.arange(4.0).reshape(2, 2) - 1,), (np.arange(9.0).reshape(3, 3),)]
X = [(0.7,), (-1.3,), (2.5,)]
XY = [(0.7, 1.1), (1.1, 0.7), (-1.0, -0.5)]

TABLE = [
    (straight, {"x": REAL, "y": REAL}, XY),
    (branches, {"x": REAL, "y": REAL}, XY),
    (guarded, {"x": REAL}, X),
    (clauses, {"x": REAL}, [*X, (0.5,), (1.5,)]),
    (total, VECTOR, V0),
    (swapped, {"x": REAL}, X),
    (rotated, {"x": REAL}, X),
    (conditional_sum, VECTOR, V0),
    (nested_sum, MATRIX, [*M23, (np.zeros((0, 3)),), (np.zeros((3, 0)),)]),
    (matrix, {"v": vec(N), "w": vec(M)}, [(np.ones(3), np.ones(2)), (np.ones(0), np.ones(2))]),
    (gradient, VECTOR, V0),
    (update_then_old, VECTOR, V3),
    (own_then_old, VECTOR, V3),
    (base_of_view, MATRIX, M23),
    (waiting_read, VECTOR, V3),
    (same_twice, VECTOR, V0),
    (row_in, MATRIX, M23),
    (scan, VECTOR, V3),
    (old_rows, VECTOR, V3),
    (shifted, VECTOR, V3),
    (heat, VECTOR, V3),
    (two_anew, VECTOR, V3),
    (added, MATRIX, M23),
    (back_and_forth, VECTOR, V0),
    (added_square, MATRIX, M23),
    (two_in_place, VECTOR, V0),
    (swapped_arrays, VECTOR, V0),
    (rotated_arrays, VECTOR, V0),
    (chosen, VECTOR, V3),
    (chosen_then_changed, VECTOR, V3),
    (maybe_added, VECTOR, V0),
    (maybe_replaced, VECTOR, V0),
    (rows_of_array, {"x": REAL}, X),
    (same_row_twice, {"x": REAL}, X),
    (row_changed_later, {"x": REAL}, X),
    (table, {"x": REAL}, X),
    (records, VECTOR, V3),
    (views, {"t": vec(2, 3, 4)}, [(np.arange(24.0).reshape(2, 3, 4),)]),
    (returned_view, MATRIX, M23),
    (argument_row, {"m": vec(N, M), "k": INT}, [(M23[0][0], 1), (M23[1][0], 0)]),
    (integers, {"k": INT, "v": vec(N, elem=INT)}, [(3, np.array([1, -5, 2])), (-3, np.array([7, 1]))]),
    (int_arrays, VECTOR, V3),
    (mixed, {"k": INT, "x": REAL}, [(3, 0.5), (-7, 2.0)]),
    (temporaries, VECTOR, V0),
    (late_reads, VECTOR, V3),
    (local_rows, {"x": REAL}, X),
    (triangle, VECTOR, V0),
    (grown, VECTOR, V3),
    (literals, {"x": REAL}, X),
    (logic, {"x": REAL, "y": REAL}, XY),
    (short_circuits, VECTOR, V0),
    (or_with_lines, {"x": REAL, "y": REAL}, [*XY, (0.1, 0.2), (2.0, 0.1)]),
    (or_with_a_number, {"x": REAL, "v": vec(3)}, [(x, np.full(3, t)) for x in (0.2, 0.7, 1.0) for t in (0.0, 0.5)]),
    (several, {"x": REAL, "y": REAL}, XY),
    (read_before_swap, {"x": REAL}, X),
    (if_updates_accumulator, {"x": REAL}, X),
    (loops_in_sequence, {"x": REAL}, X),
    (loops_in_chain, {"x": REAL}, X),
    (loop_sized_by_loop, VECTOR, V3),
    (undefined_accumulator, VECTOR, V0),
    (nothing_used, {"x": REAL, "v": vec(N)}, [(0.3, np.ones(2))]),
    (if_of_rows, MATRIX, M23),
    (update_in_branch, VECTOR, V3),
    (update_in_branch_then_read, VECTOR, V3),
    (update_in_loop_of_outer, VECTOR, V3),
    (view_kept_over_loop, MATRIX, M22),
    (inner_accumulator, MATRIX, M23),
    (stacked_pairs, VECTOR, V0),
    (constant_array, VECTOR, V3),
]


def drop_extra(function, params):
    """``matrix`` takes only what it needs."""
    names = list(params)[: function.__code__.co_argcount - 1]
    return (lambda b, *xs: function(b, *xs[: len(names)])), names


def made(function, params):
    f, _ = drop_extra(function, params)
    return program(params, f, name=function.__name__)


@pytest.mark.some(6)
@needs_cc
@pytest.mark.parametrize("function, params, cases", TABLE, ids=[row[0].__name__ for row in TABLE])
def test_table(function, params, cases, tmp_path):
    agree(made(function, params), *cases, folder=tmp_path)


@pytest.fixture
def cut_small(monkeypatch):
    """Every body is cut into parts wherever it can be."""
    monkeypatch.setattr(parts, "LONG", 0)
    monkeypatch.setattr(parts, "PART", 1)


@pytest.mark.some(10)
@needs_cc
@pytest.mark.parametrize("function, params, cases", TABLE, ids=[row[0].__name__ for row in TABLE])
def test_table_in_parts(function, params, cases, tmp_path, cut_small):
    agree(made(function, params), *cases, folder=tmp_path)


def handed_on_and_dead(b, v):
    """Two values live at a time, along twenty steps; a pointer, and one value from the first step to the last."""
    first = x = b("sin", b("get", v, 0), as_="first")
    y = b("cos", x, as_="y")
    for k in range(20):
        x, y = b("*", b("exp", y), b("get", v, 1), as_=f"x{k}"), b("+", b("sin", x), y, as_=f"y{k}")
    return b("+", b("*", x, y), first)


def test_pointers_and_numbers_share_no_memory(cut_small) -> None:
    """A number written anywhere might change such a pointer: a compiler would read that again in every iteration."""
    lines = ["double *old = work;", "double x = old[0];"]
    lines += [f"double a{k} = x*old[{k}];" for k in range(40)]
    lines += [f"double b{k} = a{k} + x;" for k in range(40)]
    lines += ["double *new = work + 1;", *(f"new[{k}] = b{k};" for k in range(40))]
    found = parts.split([Line(1, line) for line in lines])
    assert found is not None and found.unions
    for members in found.unions.values():
        assert len({"*" in kind for kind in members}) == 1


def test_parts_hand_on_records(cut_small) -> None:
    """Whatever the name of their type."""
    lines = ["f_record *all = (f_record *)work;", "const f_record one = all[0];", "double x = one->x;"]
    lines += [f"x = sin(x*{k}.0);" for k in range(40)]
    found = parts.split([Line(1, line) for line in [*lines, "all[1] = one;", "return x;"]])
    assert found is not None and found.fields["f_record *"] == ["all"] and found.fields["f_record"] == ["one"]
    assert [line.text for line in found.parts[-1].lines][-1] == f"return {found.values}.x;"
    texts = [line.text for part in found.parts for line in part.lines]
    assert {f"{m}all[1] = {m}one;" for m in (f"{found.values}->", f"{found.values}.")}.intersection(texts)


def test_parts_read_in_loops_what_is_their_own(monkeypatch) -> None:
    """No member of a struct that a compiler has to think what the loop stores may change."""
    monkeypatch.setattr(parts, "LONG", 200)
    monkeypatch.setattr(parts, "PART", 100)
    lines = ["double *y = work;", "const double a = y[0];", "double b = 0.0;"]
    lines += ["for (long long i = 0; i < 3; i++) {", "    b += a*y[i];", "}", "double x = a;"]
    lines += [f"x = sin(x*{k}.0);" for k in range(40)]
    lines += ["for (long long i = 0; i < 3; i++) {", "    y[i] = a*b;", "}", "return x;"]
    found = parts.split([Line(1, line) for line in lines])
    assert found is not None
    texts = [[line.text for line in part.lines] for part in found.parts]
    v = found.values
    first, last = texts[0], next(part for part in texts[1:] if "    y[i] = a*b;" in part)
    assert {f"{v}->y = y;", f"{v}->a = a;", f"{v}->b = b;", "    b += a*y[i];"} <= set(first)
    assert first.index("}") < first.index(f"{v}->b = b;")
    m = next(m for m in (f"{v}->", f"{v}.") if f"const double a = {m}a;" in last)
    assert {f"double *y = {m}y;", f"const double a = {m}a;", f"const double b = {m}b;"} <= set(last)


@needs_cc
def test_parts_use_the_memory_of_dead_values_again(tmp_path, cut_small):
    p = program({"v": vec(N)}, handed_on_and_dead)
    fn = print_c(p)
    struct = re.search(r"struct \w+_values \{.*?\n\};", fn.source, re.DOTALL)[0]
    size = tmp_path / "size.c"
    size.write_text(f"{struct}\nchar taken[sizeof(struct {fn.name}_values)];\n")
    subprocess.run([CC, *STRICT, "-c", str(size), "-o", str(size.with_suffix(".o"))], check=True)
    sizes = subprocess.run(["nm", "-S", str(size.with_suffix(".o"))], check=True, capture_output=True, text=True).stdout
    assert int(sizes.split()[1], 16) <= 6 * 8 and struct.count("x1") >= 1
    v = np.array([0.3, 0.2])
    close(call_c(fn, compile_c(fn, tmp_path), v), evaluate(p, v))


@needs_cc
def test_what_parts_hand_on_has_no_parameters_name(tmp_path, cut_small):
    """Not that of one that nothing reads, either."""
    p = program({"w": vec(N), "v": REAL, "s": REAL}, lambda b, w, v, s: handed_on_and_dead(b, w))
    fn = print_c(p)
    assert "_part2(" in fn.source and {"v", "s"} <= set(fn.declared)
    w = np.array([0.3, 0.2])
    close(call_c(fn, compile_c(fn, tmp_path), w, 0.5, 0.25), evaluate(p, w, 0.5, 0.25))


def many_checks(b, v, i):
    total = b("get", v, 0)
    for k in range(4):
        b.check("in", b("+", i, k), N, f"step {k}")
        total = b("*", b("sin", total), b("get", v, b("+", i, k)), as_=f"s{k}")
    return total


@needs_cc
def test_a_check_in_a_part_ends_the_call(tmp_path, cut_small):
    p = program({"v": vec(N), "i": INT}, many_checks)
    fn = print_c(p)
    assert len(re.findall(r"^APART int", fn.source, re.M)) >= 4
    function = compile_c(fn, tmp_path)
    v = np.arange(1.0, 8.0)
    close(call_c(fn, function, v, 3), evaluate(p, v, 3))
    for i in (4, 5, 6, 7):
        with pytest.raises(Failed) as failed:
            call_c(fn, function, v, i)
        assert fn.checks[failed.value.args[0] - 1][1] == f"step {7 - i}"


EDGES = [s * (2**k) + d for k in (0, 31, 32, 62, 63) for s in (1, -1) for d in (-1, 0, 1)]


@needs_cc
@pytest.mark.parametrize("flags", [[], ["-U__GNUC__"]], ids=["builtin", "portable"])
def test_overflow_is_seen(flags, tmp_path):
    edges = [e for e in EDGES if -(2**63) <= e < 2**63]
    source = tmp_path / "overflows.c"
    made = {"add": (CHECKED["+"][1], int.__add__), "sub": (CHECKED["-"][1], int.__sub__)}
    made["mul"] = (CHECKED["*"][1], int.__mul__)
    source.write_text("".join(text for text, _ in made.values()).replace("static inline ", ""))
    subprocess.run([CC, *STRICT, *SANITIZED, *flags, str(source), "-o", str(tmp_path / "o.so")], check=True)
    library = ctypes.CDLL(str(tmp_path / "o.so"))
    for name, (_, exact) in made.items():
        function = getattr(library, f"hyad_{name}_overflows")
        for a, b in itertools.product(edges, edges):
            got = ctypes.c_longlong()
            failed = function(ctypes.c_longlong(a), ctypes.c_longlong(b), ctypes.byref(got))
            assert bool(failed) == (not -(2**63) <= exact(a, b) < 2**63), (name, a, b)
            assert (got.value - exact(a, b)) % 2**64 == 0


def test_only_what_may_not_fit_is_checked():
    """A subscript that is bounded by sizes, or proven, is plain arithmetic; an Int that no subscript needs wraps."""

    def f(b, v, k):
        near = b("+", b("%", k, 1000), 7)
        b.check("in", near, N, "near")
        far = b("*", k, k)
        b.check("in", far, N, "far")
        return b("+", b("get", v, near), b("get", v, far)), b("-", k, 5)

    p = program({"v": vec(N), "k": INT}, f)
    source = print_c(p).source
    assert source.count("_overflows(") == 2, "the function and one call of it"
    assert "if (hyad_mul_overflows(k, k, &t1)) return" in source
    assert print_python(p).count("wrapped(") == 2


@needs_cc
def test_a_long_body_is_cut(tmp_path):
    """Every value is handed on: the last statement reads them all."""

    def f(b, x):
        values = [x]
        for k in range(700):
            values.append(b("sin", b("+", values[-1], float(k)), as_=f"s{k}"))
        return b("*", values[1], values[-1]), b("+", values[350], values[-2])

    fn = agree(program({"x": REAL}, f), (0.3,), folder=tmp_path)
    assert fn.source.count("APART void f_part") > 3
    assert "APART" not in print_c(program({"x": REAL}, lambda b, x: b("sin", x))).source


# --------------------------------------------------------------------------------- generated programs


class Generator:
    """A random program over reals, vectors of N, vectors of 3 and N x 3 matrices; every subscript is in range."""

    SHAPES = [REAL, REAL, vec(N), vec(3), vec(N, 3)]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.budget = self.random.randint(8, 40)

    def program(self, name):
        params = {"x": REAL, "y": REAL, "v": vec(N), "w": vec(3), "m": vec(N, 3)}

        def body(b, *xs):
            env = self.block(b, list(xs), {}, 0)
            return tuple(self.pick(env, self.random.choice(self.SHAPES)) for _ in range(self.random.randint(1, 4)))

        return program(params, body, name=name)

    def pick(self, env, t):
        """A value of a type, the newer the likelier."""
        fitting = [a for a in env if a.type == t]
        return fitting[-1 - int(len(fitting) * self.random.random() ** 2)]

    def subscript(self, indices, d):
        loops = [i for i, count in indices.items() if count == d]
        if loops and self.random.random() < 0.7:
            return self.random.choice(loops)
        return Const(0 if isinstance(d, Var) else self.random.randrange(3), INT)

    def block(self, b, env, indices, depth):
        env = list(env)
        for _ in range(self.random.randint(1, 7)):
            self.budget -= 1
            if self.budget > 0:
                env.extend(self.step(b, env, indices, depth))
        return env

    def step(self, b, env, indices, depth):
        r = self.random
        kinds = ["scalar"] * 4 + ["get"] * 3 + ["row", "store", "store", "store", "row-store", "array", "zeros", "map"]
        kinds += ["loop", "loop", "loop", "if", "if", "build"] if depth < 3 else []
        kind = r.choice(kinds)
        name = r.choice([None, None, None, "a", "b"])
        arrays = [a for a in env if isinstance(a.type, Arr)]
        scalar = self.pick(env, REAL)
        if kind == "scalar":
            op = r.choice(["+", "-", "*", "sin", "cos", "neg", "select", "tanh"])
            if op == "select":
                return [b("select", b("<", scalar, self.pick(env, REAL)), self.pick(env, REAL), scalar, as_=name)]
            arity = len(PRIMITIVES[op].params)
            return [b(op, *[r.choice([self.pick(env, REAL), scalar, 0.5]) for _ in range(arity)], as_=name)]
        if kind == "zeros":
            t = r.choice(self.SHAPES[2:])
            return [b("zeros", *t.dims, type=t, as_=name)]
        if kind == "array":
            if r.random() < 0.5:
                return [b("array", *[self.pick(env, REAL) for _ in range(3)], as_=name)]
            k = self.subscript(indices, Const(3, INT))
            rows = b("array", *[self.pick(env, vec(N)) for _ in range(3)])
            return [b("get", rows, k, as_=name)]
        if kind == "map":  # elementwise, so perhaps in place; and an element that is read early and used late
            x, y = self.pick(env, t := r.choice([vec(N), vec(3)])), self.pick(env, t)
            early = b("get", x, 0)
            at = r.choice([None, Const(0, INT)])
            z = b.build(t.dims[0], lambda c, i: c(r.choice("+*"), c("get", x, i), c("get", y, at or i)), index="h")
            return [z, b("update", z, 0, scalar), early]
        if kind == "build":
            t = r.choice(self.SHAPES[2:])
            return [self.loop(b, env, indices, depth, t.dims[0], [], [t.item()])]
        if kind == "loop":
            count = r.choice([N, Const(3, INT)])
            carried = [self.pick(env, r.choice(self.SHAPES)) for _ in range(r.randint(1, 3))]
            stacked = r.choice([[], [], [REAL], [vec(3)] if count is N else [REAL]])
            out = self.loop(b, env, indices, depth, count, carried, stacked)
            return list(out) if isinstance(out, tuple) else [out]
        if kind == "if":
            types = [r.choice(self.SHAPES) for _ in range(r.randint(1, 3))]

            def branch(c):
                inner = self.block(c, env, indices, depth + 1)
                return tuple(self.pick(inner, t) for t in types)

            out = b.if_(b("<", scalar, self.pick(env, REAL)), branch, branch)
            return list(out) if isinstance(out, tuple) else [out]
        array = r.choice(arrays)
        subs = [self.subscript(indices, d) for d in array.type.dims]
        op = r.choice(["update", "add-at"])
        if kind == "get":
            return [b("get", array, *subs, as_=name)]
        if kind == "store":
            return [b(op, array, *subs, scalar, as_=name)]
        matrix = self.pick(env, vec(N, 3))
        sub = self.subscript(indices, N)
        if kind == "row":
            return [b("get", matrix, sub, as_=name)]
        return [b(op, matrix, sub, self.pick(env, vec(3)), as_=name)]

    def loop(self, b, env, indices, depth, count, carried, stacked):
        def body(c, i, *accs):
            inner = self.block(c, [*env, *accs], {**indices, i: count}, depth + 1)
            return [self.pick(inner, a.type) for a in accs], [self.pick(inner, t) for t in stacked]

        return b.loop(count, carried, body, index="ijkl"[depth])


def some_arguments(seed):
    r = np.random.default_rng(seed)
    n = int(r.integers(1, 5))
    return (*r.normal(size=2), r.normal(size=n), r.normal(size=3), r.normal(size=(n, 3)))


@needs_cc
@pytest.mark.some(2)
@pytest.mark.parametrize("batch", range(3))
def test_generated_programs(batch, tmp_path, request):
    """C and Python agree with the oracle on random programs: the traps of aliasing that nobody thought of."""
    size = 40
    programs = {k: Generator(k).program(f"p{k}") for k in range(batch * size, (batch + 1) * size)}
    functions = {k: print_c(p) for k, p in programs.items()}
    for k, fn in functions.items():
        (tmp_path / f"p{k}.c").write_text(fn.source)
    sources = [str(tmp_path / f"p{k}.c") for k in functions]
    done = subprocess.run([CC, *STRICT, "-O1", *sources, "-o", str(tmp_path / "all.so"), "-lm"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    for k, p in programs.items():
        args = some_arguments(k)
        want = evaluate(p, *args)
        try:
            close(load_python(p)(*args), want)
            close(call_c(functions[k], getattr(library, f"p{k}"), *args), want)
        except AssertionError as error:
            raise AssertionError(f"program {k}\n{print_python(p)}\n{functions[k].source}\n{error}") from None


# ------------------------------------------------------------------------------------------ the C text


def text_of(f, params, **options):
    return print_c(program(params, f), **options).source


def body_of(source):
    """The statements, stripped and joined."""
    return " ".join(source[source.rindex("\n{") :].split())


XYZ = {"x": REAL, "y": REAL, "z": REAL}


@pytest.mark.parametrize(
    "f, text",
    [
        (lambda b, x, y, z: b("+", x, b("+", y, z)), "x + (y + z)"),
        (lambda b, x, y, z: b("+", b("+", x, y), z), "x + y + z"),
        (lambda b, x, y, z: b("-", x, b("-", y, z)), "x - (y - z)"),
        (lambda b, x, y, z: b("*", b("+", x, y), z), "(x + y)*z"),
        (lambda b, x, y, z: b("/", x, b("*", y, z)), "x/(y*z)"),
        (lambda b, x, y, z: b("*", b("/", x, y), z), "x/y*z"),
        (lambda b, x, y, z: b("neg", b("*", x, y)), "-x*y"),
        (lambda b, x, y, z: b("neg", b("+", x, y)), "-(x + y)"),
        (lambda b, x, y, z: b("-", x, b("neg", y)), "x + y"),
        (lambda b, x, y, z: b("*", x, b("neg", y)), "-x*y"),
        (lambda b, x, y, z: b("*", b("neg", x), y), "-x*y"),
        (lambda b, x, y, z: b("neg", b("neg", x)), "x"),
        (lambda b, x, y, z: b("+", x, b("neg", b("*", y, z))), "x - y*z"),
        (lambda b, x, y, z: b("-", x, b("*", -2.0, y)), "x + 2.0*y"),
        (lambda b, x, y, z: b("+", b("neg", x), b("*", y, z)), "y*z - x"),
        (lambda b, x, y, z: b("-", x, b("neg", b("+", y, z))), "x + (y + z)"),
        (lambda b, x, y, z: b("-", b("neg", x), y), "-x - y"),
        (lambda b, x, y, z: b("*", b("*", x, y), -3.0), "-x*y*3.0"),
        (lambda b, x, y, z: b("*", x, -3.0), "-3.0*x"),
        (lambda b, x, y, z: b("/", b("neg", x), b("neg", b("+", y, z))), "x/(y + z)"),
        (lambda b, x, y, z: b("/", x, b("neg", b("*", y, z))), "-x/(y*z)"),
        (lambda b, x, y, z: b("+", x, -1.0), "x - 1.0"),
        (lambda b, x, y, z: b("sin", b("+", x, y)), "sin(x + y)"),
        (lambda b, x, y, z: b("select", b("<", x, y), b("+", x, 1), z), "x < y ? x + 1.0 : z"),
        (lambda b, x, y, z: b("+", b("select", b("<", x, y), x, y), z), "(x < y ? x : y) + z"),
        (lambda b, x, y, z: b("and", b("or", b("<", x, y), b("<", y, z)), b("<", x, z)), None),
        (lambda b, x, y, z: b("not", b("<", x, y)), "!(x < y)"),
        (lambda b, x, y, z: b("square", b("sin", x)), None),
    ],
)
def test_parentheses(f, text):
    """As few as C's precedence allows, and none that would change a rounding."""
    source = text_of(f, XYZ)
    if text is not None:
        assert f"return {text};" in source


def test_fold_by_form():
    """Any form of a primitive is taken apart, not only the table's."""
    from hyad.codegen.expressions import ADD, ASSIGN, MUL, PRIMARY, UNARY, parse_form

    assert parse_form("f({0}, {1})") == (PRIMARY, ((ASSIGN, True), (ASSIGN, True)), ())
    assert parse_form("{0} + {1}")[0] == ADD
    assert parse_form("{0}*{1} + {2}")[1] == ((MUL, True), (UNARY, False), (MUL, False))
    assert parse_form("(double){0}") == (UNARY, ((UNARY, False),), ())
    assert parse_form("sqrt({0}*{0} + {1})")[1][0][0] == UNARY


def test_named_values_have_lines_of_their_own():
    def f(b, x, y, z):
        speed = b("*", x, y, as_="speed")
        return b("+", b("sin", speed), b("cos", b("*", y, z)))

    assert "const double speed = x*y; return sin(speed) + cos(y*z);" in body_of(text_of(f, XYZ))


def test_long_expressions_are_cut():
    def f(b, x, y, z):
        t = x
        for _ in range(60):
            t = b("+", b("*", t, y), b("sin", z))
        return t

    source = text_of(f, XYZ)
    assert max(map(len, source.splitlines())) <= 110
    assert source.count("const double") > 5


def test_literals_read_back():
    values = [0.1, 1 / 3, 1e-320, -2.5, 2.0, 1e22, 123456789.123456789]

    def f(b, x, y, z):
        return tuple(b("+", x, v) for v in values)

    source = text_of(f, XYZ)
    assert [float(m.replace(" ", "")) for m in re.findall(r"= x ([+-] [\d.e+-]+);", source)] == values
    assert "1.0f" in text_of(lambda b, x: b("+", x, 1.0), {"x": REAL}, dtype="f32")


SOURCE = Source('(defmodel f [x v]\n  (+ (sin x) "*/ ??/"\n     (get v 0)))', "model.hy", 10)


def spanned(b, x, v):
    whole, sine = Span(SOURCE, SOURCE.text.index("(+"), len(SOURCE.text) - 1), Span(SOURCE, 23, 30)
    a = b("sin", x, as_="a", span=sine)
    c = b("cos", x, as_="c", span=sine)
    return b("+", b("*", a, c), b("get", v, 0), as_="y", span=whole)


def test_comments_carry_the_source_form():
    source = text_of(spanned, {"x": REAL, "v": vec(2)})
    lines = source.splitlines()
    assert "    const double a = sin(x);  // (sin x)" in lines
    assert "    const double c = cos(x);" in lines, "a form is said once for the lines that came from it"
    assert any(t.endswith('// (+ (sin x) "* / ? ?/" (get v 0))') for t in lines)


@needs_cc
@pytest.mark.parametrize("form", ["(f\\", "(f ??/\n x)", "(f /* x */)", "(f // x)"])
def test_comments_end_with_their_line(form, tmp_path):
    span = Span(Source(form), 0, len(form))
    p = program({"x": REAL}, lambda b, x: b("+", b("sin", x, as_="a", span=span), 1.0, span=span))
    agree(p, (0.5,), folder=tmp_path)


def test_outlines():
    form = "(+ (get u i) (* h (get d (+ i 1))))"
    widths = (40, 34, 30, 12)
    outlines = [form, "(+ (get u i) (* h (get d ...)))", "(+ (get u i) (* h ...))", "(+ ... ...)"]
    assert [outline(form, w) for w in widths] == outlines


def test_line_directives():
    source = text_of(spanned, {"x": REAL, "v": vec(2)}, line_directives=True)
    lines = source.splitlines()
    assert lines[lines.index('#line 11 "model.hy"') + 1].startswith("    const double a")
    assert "#line" not in text_of(spanned, {"x": REAL, "v": vec(2)})


@pytest.mark.parametrize(
    "name, text",
    [
        ("step-size", "step_size"),
        ("x̄", "x_bar"),
        ("ẋ", "dx"),
        ("λ", "lambda"),
        ("Δt", "Deltat"),
        ("even?", "even_p"),
        ("x₁", "x1"),
        ("a->b", "a_to_b"),
        ("2x", "v2x"),
        ("*", "star"),
        ("字", "u5b57"),
        ("x", "x"),
    ],
)
def test_names(name, text):
    assert identifier(name) == text


def test_names_avoid_what_is_taken():
    names = Names({"exp", "for"})
    assert [names.fresh(n) for n in ("x", "x", "exp", "for", "x1", "x̄", "x-bar")] == [
        "x", "x1", "exp_", "for_", "x1_1", "x_bar", "x_bar1",
    ]  # fmt: skip
    names.enter()
    assert names.fresh("y") == "y"
    names.leave()
    assert names.fresh("y") == "y"


@needs_cc
def test_c_words_as_names(tmp_path):
    params = {
        "double": REAL,
        "exp": REAL,
        "work": vec(N),
        "out": REAL,
        "memcpy": REAL,
        "sin": REAL,
        "λ": REAL,
        "in": REAL,
    }

    def f(b, *xs):
        t = b("sin", b("exp", xs[0]), as_="return")
        return b("+", b("+", t, b("get", xs[2], 0)), b("+", xs[1], b("*", xs[4], b("+", xs[6], xs[7]))))

    for name in ("exp", "main", "f", "y0", "class", "lambda"):
        agree(program(params, f, name=name), (1.0, 2.0, np.ones(2), 3.0, 4.0, 5.0, 6.0, 7.0), folder=tmp_path)


@needs_cc
def test_macros_of_the_compiler_and_words_of_cplusplus_as_names(tmp_path):
    names = "linux unix not xor try catch virtual using nullptr and_eq concept wchar_t".split()
    fn = print_c(program(dict.fromkeys(names, REAL), lambda b, *xs: b("+", *xs[:2])))
    (tmp_path / "f.h").write_text(fn.header)
    (tmp_path / "f.c").write_text('#include "f.h"\n' + fn.source)
    (tmp_path / "f.cpp").write_text('#include "f.h"\n')
    assert subprocess.run([CC, "-std=gnu99", "-fsyntax-only", "f.c"], cwd=tmp_path).returncode == 0
    if shutil.which("g++"):
        assert subprocess.run(["g++", "-fsyntax-only", "f.cpp"], cwd=tmp_path).returncode == 0


# --------------------------------------------------------------------------------------------- memory


def count(source, *words):
    return sum(body_of(source).count(w) for w in words)


@pytest.mark.parametrize(
    "function",
    [
        total,
        matrix,
        gradient,
        added_square,
        maybe_added,
        rows_of_array,
        inner_accumulator,
        undefined_accumulator,
        added,
        back_and_forth,
    ],
)
def test_no_copy(function):
    """The common shapes of derivatives are built in the result's memory, without a copy or a workspace."""
    params = next(params for f, params, _ in TABLE if f is function)
    fn = print_c(made(function, params))
    assert count(fn.source, "memcpy", "memmove") == 0
    assert fn.workspace is None


def test_workspace_is_reused():
    fn = print_c(made(temporaries, VECTOR))
    assert fn.workspace == "2*n" and not fn.work_static
    fn = print_c(program({"x": REAL}, lambda b, x: b("get", spill(b, x), 0)))
    assert fn.workspace == "600" and fn.work_static


def spill(b, x):
    return b.loop(3, [b("zeros", 600, type=vec(600))], lambda c, i, s: ([c("add-at", s, i, x)], []))


def test_small_arrays_are_local():
    fn = print_c(program({"x": REAL}, lambda b, x: b("get", b("array", x, b("sin", x), as_="pair"), 1)))
    assert "double pair[2] = {x, sin(x)};" in fn.source
    assert fn.workspace is None


def test_size_that_is_not_known_before_the_call():
    """An array that only the call measures is in its arena, and in a thread's own memory on a GPU."""
    source = Source("(build (get v 0) f)")

    def f(b, v):
        inner = Build()
        rows = Var("rows", Arr(REAL, (k := b("get", v, 0),)), None)
        loop = Loop(k, Var("i", INT), (), (), Block(tuple(inner.binds), (Const(1.0, REAL),)))
        b.binds.append(Bind((rows,), loop, Span(source, 0, 19)))
        return b.loop(k, [0.0], lambda c, i, s: ([c("+", s, c("get", rows, i))], []))

    p = program({"v": vec(N, elem=INT)}, f)
    assert print_c(p).arena and print_cuda(p).heap
    with pytest.raises(CompileError, match="not known before the call") as caught:
        print_grid(p)
    assert caught.value.span.text == "(build (get v 0) f)"


def test_result_sizes():
    fn = print_c(made(grown, VECTOR))
    assert [r.dims for r in fn.results] == [("(2*n + 1)",), ("((2*n + 1)/2)",)]
    fn = print_c(program(VECTOR, lambda b, v: b.build(b("max", 2, N), lambda c, i: c("real", i))))
    assert fn.results[0].dims == ("(2 > n ? 2 : n)",)
    k = Var("k", INT, None, True)
    p = Program("f", (k,), (), region(lambda b: b.build(k, lambda c, i: c("real", i))), (LEAF,), LEAF)
    assert print_c(p).results[0].dims == ("k",)


@needs_cc
def test_what_a_division_leaves_as_size() -> None:
    """It is known before the call; where such a size is not, room for it is computed as an integer."""
    f = hyad.model("(fn [#^ (Vec n) v] (map exp (slice v 0 (% n 8))))", namespace={})
    made = hyad.compile(f)
    assert not made.cfunction.arena and "out[n - 8*(n/8)]" in made.source
    for n in (0, 1, 7, 8, 9, 17):
        v = np.linspace(-1, 1, n)
        np.testing.assert_array_equal(made(v), np.exp(v[: n % 8]))
    assert as_reals("n % 8*m") == "(double)(n % 8*m)" and as_reals("n*m") == "(double)n*(double)m"


@needs_cc
def test_room_for_what_a_division_leaves() -> None:
    """Room is asked for in real numbers: a quotient in a size is rounded down all the same."""
    turned = "(let [t (flip v)] (concat (cut t (// n 2) None) (cut t 0 (// n 2))))"
    made = hyad.compile(hyad.model(f"(fn [#^ (Vec n) v] (cumsum {turned}))", namespace={}))
    assert made.cfunction.arena and "((double)n - (double)(n/2))" in made.source
    for n in (2, 3, 1, 0):
        v = np.linspace(-1, 1, n)
        np.testing.assert_allclose(made(v), np.cumsum(np.roll(v[::-1], -(n // 2))))


@pytest.mark.parametrize(
    "text, real",
    [
        ("3*n", "3*(double)n"),
        ("-n + 2*a->k - v0.m", "-(double)n + 2*(double)a->k - (double)v0.m"),
        ("n*m/4 + (n - n/2)*k", "(double)(n*m/4) + ((double)n - (double)(n/2))*(double)k"),
        ("4*((n + 7)/8)*(m + 1)", "4*(double)((n + 7)/8)*((double)m + 1)"),
        ("hyad_imin(n, m)*d[3*i + 1]", "(double)hyad_imin(n, m)*(double)d[3*i + 1]"),
        ("(n > 3 ? n : 3)*k", "(double)(n > 3 ? n : 3)*(double)k"),
    ],
)
def test_integers_as_reals(text: str, real: str) -> None:
    assert as_reals(text) == real


def test_int_parameter_as_size(tmp_path):
    def f(b, k):
        w = b.build(k, lambda c, i: c("real", i))
        return b.loop(k, [0.0], lambda c, i, s: ([c("+", s, c("get", w, i))], []))

    fn = agree(program({"k": INT}, f), (4,), (0,), folder=tmp_path)
    assert fn.workspace == "(k > 0 ? k : 0)"


@needs_cc
def test_large_tables(tmp_path):
    def f(b, x):
        w = b("array", *[float(k) / 7 for k in range(3000)], as_="weights")
        return b.loop(3000, [0.0], lambda c, i, s: ([c("+", s, c("*", x, c("get", w, i)))], []))

    fn = agree(program({"x": REAL}, f), (0.5,), folder=tmp_path)
    assert "static const double weights[3000]" in fn.source
    assert max(map(len, fn.source.splitlines())) <= 110


def test_a_state_that_changes_places_is_copied_back_where_it_is_read_alone():
    loop = """(ifold (fn [#(u s) i] (let [u (build (len u) (fn [j] (+ (get u j) (* 0.5 (get u (- (len u) j 1))))))]
      #(u (+ s (sum (* u u)))))) #((* 2 x) 0.0) m)"""
    back = re.compile(r"if \((\w+) != (\w+)\) memcpy\(\2, \1, ")
    x = np.array([0.3, -0.2, 0.5])
    u, total = 2 * x, 0.0
    for _ in range(3):
        u = u + 0.5 * u[::-1]
        total += u @ u
    for what, copies in (("(snd {})", 0), ("{}", 1), ("(let [p {} a (fst p)] (+ (snd p) (get a 0)))", 1)):
        f = hyad.model(f"(fn [#^ (Vec n) x #^ Int m] {what.format(loop)})")
        found = hyad.show(f, "c")
        assert "= u;" in found and len(back.findall(found)) == copies
        got = f(x, 3)
        if isinstance(got, tuple):
            np.testing.assert_allclose(got[0], u, rtol=1e-14)
        assert (got[1] if isinstance(got, tuple) else got) == pytest.approx(total + (u[0] if "get a" in what else 0.0))


def test_unused_code_goes_checks_stay():
    def f(b, x, v):
        b.loop(3, [x], lambda c, i, s: ([c("sin", s)], []))
        b.check("in", 3, N, "index 3 is out of range")
        return x

    p = plan(program({"x": REAL, "v": vec(N)}, f)).program
    assert [type(b.op) for b in p.body.binds] == [Check]


# --------------------------------------------------------------------------------------------- checks


def checked(b, v, k):
    b.check("in", k, N, "index out of range", span=Span(SOURCE, 0, 5))
    s = b.loop(N, [0.0], lambda c, i, s: (c.check("<", i, 3, "too long", kind="shape"), ([c("+", s, 1.0)], []))[1])
    return b("+", s, b("get", v, k))


@needs_cc
def test_checks(tmp_path):
    p = program({"v": vec(N), "k": INT}, checked)
    fn = print_c(p)
    assert fn.fallible and not fn.returns_value
    assert [c[:2] for c in fn.checks] == [("bounds", "index out of range"), ("shape", "too long")]
    function, python = compile_c(fn, tmp_path), load_python(p)
    assert call_c(fn, function, np.ones(2), 1) == [3.0] and python(np.ones(2), 1) == (3.0,)
    for args, number, error in [((np.ones(2), 2), 1, BoundsError), ((np.ones(2), -1), 1, BoundsError)] + [
        ((np.ones(4), 0), 2, ModelTypeError)
    ]:
        with pytest.raises(Failed) as failed:
            call_c(fn, function, *args)
        assert failed.value.args == (number,)
        with pytest.raises(error) as raised:
            python(*args)
        assert raised.value.span is fn.checks[number - 1][2]


@needs_cc
@pytest.mark.parametrize(
    "relation, bad", [("==", (2, 3)), ("<", (3, 3)), ("<=", (4, 3)), ("in", (-1, 3)), ("in", (3, 3))]
)
def test_relations(relation, bad, tmp_path):
    def f(b, i, j):
        b.check(relation, i, j)
        return b("+", i, j)

    p = program({"i": INT, "j": INT}, f)
    fn = print_c(p)
    function = compile_c(fn, tmp_path)
    good = (3, 3) if relation in ("==", "<=") else (2, 3)
    assert call_c(fn, function, *good) == [sum(good)]
    with pytest.raises(Failed):
        call_c(fn, function, *bad)
    with pytest.raises(BoundsError):
        load_python(p)(*bad)


# -------------------------------------------------------------------------------- the rest of the file


@needs_cc
@pytest.mark.parametrize(
    "function", [straight, branches, clauses, gradient, scan, int_arrays, mixed, records, table, logic]
)
def test_f32(function, tmp_path):
    _, params, cases = next(row for row in TABLE if row[0] is function)
    fn = agree(made(function, params), *cases, folder=tmp_path, dtype="f32")
    assert "double" not in fn.source


MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "f.h"
int main(void)
{
    double v[3] = {1, 2, 3}, out = 0, *work = malloc(F_WORK(3)*sizeof(double));
    int failed = f(v, 5, 3, &out, work);
    printf("%d ", failed);
    failed = f(v, 1, 3, &out, work);
    printf("%d %g", failed, out);
    free(work);
    return 0;
}
"""


def emitted(b, v, k):
    b.check("in", k, N, "k is out of range")
    w = b.build(N, lambda c, i: c("*", 2.0, c("get", v, i)))
    x = b("get", w, k)
    w = b("update", w, k, 0.0)
    return b.loop(N, [x], lambda c, i, s: ([c("+", s, c("get", w, i))], []))


@needs_cc
def test_source_and_header_in_another_project(tmp_path):
    fn = print_c(program({"v": vec(N), "k": INT}, emitted, doc="A sum.\nMore."))
    (tmp_path / "f.c").write_text('#include "f.h"\n' + fn.source)
    (tmp_path / "f.h").write_text(fn.header)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    address = ["-fsanitize=address,undefined"]
    for extra in ([], address):
        command = [CC, *flags, *extra, "f.c", "main.c", "-o", "main", "-lm"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        out = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
        assert (out.stdout, out.returncode) == ("1 0 12", 0), out.stderr
    assert "/* f: A sum." in fn.source
    assert "1: bounds: k is out of range" in fn.header
    if shutil.which("g++"):
        (tmp_path / "main.cpp").write_text('#include "f.h"\nint main() { return 0; }\n')
        command = ["g++", "-Wall", "-Wextra", "-Werror", "-pedantic", "-c", "main.cpp", "-o", "cpp.o"]
        assert subprocess.run(command, cwd=tmp_path).returncode == 0


CALLER = """
#include <stdlib.h>
#include <string.h>
static void *room(long long bytes) {{ void *p = malloc(bytes > 0 ? bytes : 1); memset(p, 0, bytes); return p; }}
{prototypes}
int main(void) {{ {calls} return 0; }}
"""


@needs_cc
def test_addresses(tmp_path):
    """Every program of the table, on memory of exactly the size that it asks for, under the address sanitizer."""
    prototypes, calls, sources = [], [], []
    for function, params, _ in TABLE:
        fn = print_c(made(function, params))
        (tmp_path / f"{fn.name}.c").write_text(fn.source)
        sources.append(f"{fn.name}.c")
        prototypes.append(fn.prototype + ";")
        numbers = {d: 3 for d in fn.dims} | {p.name: 1 for p in fn.params if p.elem == "int" and not p.dims}

        def bytes_of(dims, elem):
            return f"({'*'.join(map(str, dims)) or 1})*sizeof({fn.ctype(elem)})"

        args = [f"room({bytes_of(p.dims, p.elem)})" if p.dims else "1" for p in fn.params]
        args += ["3"] * len(fn.dims)
        if not fn.returns_value:
            args += [f"room({bytes_of(r.dims, r.elem)})" for r in fn.results]
        if fn.workspace is not None:
            args.append(f"room(({fn.workspace})*sizeof(double))")
        names = "".join(f"const long long {n} = {k}; (void){n}; " for n, k in numbers.items())
        calls.append(f"{{ {names}{fn.name}({', '.join(args)}); }}")
    (tmp_path / "main.c").write_text(CALLER.format(prototypes="\n".join(prototypes), calls="\n".join(calls)))
    flags = ["-std=c99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    done = subprocess.run(
        [CC, *flags, "main.c", *sources, "-o", "main", "-lm"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    out = subprocess.run(
        ["./main"], cwd=tmp_path, capture_output=True, text=True, env={"ASAN_OPTIONS": "detect_leaks=0"}
    )
    assert out.returncode == 0, out.stderr


def long_program(n):
    def f(b, x, y):
        t = x
        for k in range(n):
            t = b("*", b("sin", t), y) if k % 2 else b("+", t, b("*", t, x))
        return t

    return program({"x": REAL, "y": REAL}, f)


def test_long_straight_line():
    """Ten thousand bindings: no recursion, and text in proportion."""
    short, long = (print_c(long_program(n)).source for n in (1000, 10_000))
    assert len(long) < 11.5 * len(short)
    assert load_python(long_program(10_000))(0.1, 0.2) == tuple(evaluate(long_program(10_000), 0.1, 0.2))


def test_deep_nesting():
    """A ``cond`` of a thousand clauses prints as one chain; Python's own limit is an error that says so."""
    x = Var("x", REAL)
    inner = region(lambda b: 0.0)
    for d in range(1000):
        b = Build()
        c = b("<", x, float(d))
        r = Var("r", REAL)
        b.binds.append(Bind((r,), If(c, region(lambda b: b("exp", x)), inner)))
        inner = Block(tuple(b.binds), (r,))
    p = Program("f", (x,), (), inner, (LEAF,), LEAF)
    source = print_c(p).source
    assert source.count("} else if (x < ") == 999
    with pytest.raises(CompileError, match="nested too deeply for the Python target"):
        load_python(p)


def test_many_arrays_and_branches():
    def f(b, v):
        g = b("zeros", N, type=vec(N))
        for k in range(1500):
            x = b("get", v, k % 3)
            g = b("add-at", g, k % 3, x)
            g = b.if_(b("<", x, 0.0), lambda c, g=g, x=x: c("add-at", g, 0, x), lambda c, g=g: g)
        return g

    source = print_c(program(VECTOR, f)).source
    assert count(source, "memcpy") == 0


def test_printer_is_open():
    """Another target changes the head and the literals by overriding."""
    from hyad.codegen.c import CPrinter
    from hyad.codegen.expressions import Expr

    class Device(CPrinter):
        def prototype(self, fn):
            return "__device__ " + super().prototype(fn)

        def real_literal(self, value):
            return Expr(f"R({value!r})")

    source = Device(program({"x": REAL}, lambda b, x: b("+", x, 2.0))).function().source
    assert "__device__ double f(double x)" in source and "x + R(2.0)" in source


def test_python_text_runs_by_itself():
    p = program(VECTOR, lambda b, v: b("/", total(b, v), 3.0), name="mean-of", doc="The mean.")
    names = {}
    exec(print_python(p), names)
    assert names["mean_of"](np.ones(3)) == (1.0,)
    assert load_python(p)([1, 2, 3]) == (2.0,)


def test_python_is_ieee():
    p = program({"x": REAL, "y": REAL}, lambda b, x, y: (b("/", x, y), b("exp", x), b("log", y), b("sqrt", x)))
    got = load_python(p)(-1000.0, 0.0)
    assert got[:3] == (-np.inf, 0.0, -np.inf) and np.isnan(got[3])
    assert load_python(p)(1000.0, 1.0)[1] == np.inf
    assert [type(x) for x in got] == [float] * 4


def test_python_shares_no_memory_with_its_arguments():
    v = np.ones(3)
    for function in (same_twice, update_then_old):
        out = load_python(made(function, VECTOR))(v)
        arrays = [a for a in out if isinstance(a, np.ndarray)]
        assert not any(np.shares_memory(a, c) for a, c in itertools.combinations([v, *arrays], 2))


@pytest.mark.parametrize(
    "function", [clauses, gradient, maybe_added, scan, table, argument_row], ids=lambda f: f.__name__
)
def test_golden(function, golden):
    params = next(params for f, params, _ in TABLE if f is function)
    fn = print_c(made(function, params))
    golden(f"{function.__name__}.c", fn.source)


def test_golden_header_and_comments(golden):
    p = program(
        {"x": REAL, "v": vec(2)}, spanned, name="spanned", doc="A sine, a cosine, an element.", span=Span(SOURCE, 0, 57)
    )
    golden("spanned.c", print_c(p, name="spanned_wave").source)
    golden("emitted.h", print_c(program({"v": vec(N), "k": INT}, emitted, name="emitted", doc="A sum.")).header)


def test_quotients_of_what_is_not_negative_are_plain() -> None:
    """C rounds towards zero, a model down: the same where neither number is negative, as far as that is known."""
    text = """(fn [#^ (Vec n) v #^ Int k]
  (ifold (fn [s i] (+ s (* (get v (// i 3)) (real (+ (// k 4) (% (+ i 2) 5)))))) 0.0 (// (+ (len v) 2) 3)))"""
    v = np.arange(1.0, 12.0)
    f = hyad.compile(text)
    for k in (7, -7):
        wanted = sum(v[i // 3] * (k // 4 + (i + 2) % 5) for i in range((len(v) + 2) // 3))
        assert f(v, k) == wanted == hyad.compile(text, target="python")(v, k)
    assert "(n + 2)/3" in f.source and "i/3" in f.source and "(i + 2) % 5" in f.source
    assert "k >> 2" in f.source and "hyad_i" not in f.source  # by a power of two the other is plain, too
    thirds = hyad.compile(text.replace("(// k 4)", "(// k 3)"))
    assert thirds.source.count("hyad_ifloordiv(") == 2 and "hyad_imod" not in thirds.source  # one is its definition


def test_a_larger_number_that_the_next_iteration_waits_for() -> None:
    """It has a form of its own, NaN included; where nothing waits, the one of which vectors are made."""
    waits = hyad.model("(fn [#^ (Vec n) x] (scan (fn [s a] (max (min (- s 0.1) 2.0) a)) 0.0 x))", namespace={})
    source = hyad.compile(waits).source
    assert "hyad_max_serial(hyad_min_serial(" in source and "hyad_max(" not in source
    for x in ([1.0, 0.5, 3.0, -1.0], [1.0, np.nan, 3.0], [np.nan], [-np.inf, np.inf, 0.0], []):
        expected = memoised.compile(waits, target="python")(np.array(x))
        np.testing.assert_array_equal(memoised.compile(waits)(np.array(x)), expected)
    side = "(fn [#^ (Vec n) x #^ (Vec n) y] (build (len x) (fn [i] (max (get x i) (get y i)))))"
    assert "_serial" not in hyad.compile(hyad.model(side, namespace={})).source


def test_quotients_and_remainders_by_a_power_of_two() -> None:
    """Rounded down, of what is below 0 too: as shifts and bits."""
    f = hyad.compile(hyad.model("(fn [#^ (Arr Int n) v] #((// v 8) (% v 16)))", namespace={}))
    assert ">> 3" in f.source and "& 15" in f.source and "hyad_i" not in f.source
    v = np.array([-(2**63), -17, -16, -9, -8, -1, 0, 1, 7, 8, 15, 16, 2**63 - 1])
    for found, wanted in zip(f(v), (v // 8, v % 16)):
        np.testing.assert_array_equal(found, wanted)


def test_a_reshaped_array_is_read_and_added_to_in_its_order() -> None:
    """A quotient and its remainder by the length of a row are one subscript, for reading and for adding."""
    f = hyad.model("(fn [#^ (Mat n m) v #^ (Vec k) w] (sum (* w (sin (reshape v #(k))))))", namespace={})
    v, w = np.arange(12.0).reshape(3, 4), np.linspace(1.0, 2.0, 12)
    for g, wanted in (
        (f, (w * np.sin(v.ravel())).sum()),
        (hyad.grad(f, wrt="v"), (w * np.cos(v.ravel())).reshape(3, 4)),
    ):
        made = hyad.compile(g)
        assert not re.search(
            r"hyad_i(floordiv|mod)|[^/*]/[^/*]| % ", made.source.partition("{\n")[2].partition("}\n")[2]
        )
        np.testing.assert_allclose(made(v, w), wanted, rtol=1e-14)
    text = "(fn [#^ (Arr Int n m) a #^ Int k] (let [b (copy a)] (set-at! b (// k 3) (% k 3) (+ 10 (% k 3))) b))"
    wide = hyad.compile(hyad.model(text, namespace={}))
    for m in (3, 4):  # of rows of another length they are two
        a = np.zeros((2, m), int)
        a[4 // 3, 4 % 3] = 11
        np.testing.assert_array_equal(wide(np.zeros((2, m), int), 4), a)
