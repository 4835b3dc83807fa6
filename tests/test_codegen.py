"""Code generation: hand-built programs, run as C and as Python, against a direct evaluation of the core.

``evaluate`` below is the oracle: it follows the text of ``core.py`` with copies everywhere, so nothing in it can
alias. The C of every program compiles alone under ``-std=c99 -Wall -Wextra -Werror`` and runs with its undefined
behaviour and addresses checked.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyad.codegen.c import print_c
from hyad.codegen.lower import Names, identifier, plan, prune
from hyad.codegen.python import load_python, print_python
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
from hyad.primitives import PRIMITIVES

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
