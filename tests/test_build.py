"""Compiled C from Python: what a call takes and gives, what happens to what does not fit, and every way to fail."""

from __future__ import annotations

import array
import ast
import ctypes
import errno
import gc
import inspect
import math
import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import warnings
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import hyad
from hyad.codegen import build, stub
from hyad.codegen.cfunction import CFunction, CParam
from hyad.core import LEAF, Node
from hyad.errors import CompileError, ModelTypeError

P = CParam
REAL, INT, BOOL = P("x"), P("k", "int"), P("c", "bool")
V, W = P("v", "real", ("n",)), P("w", "real", ("n",))

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


class Misfit(tuple):
    """What the fallback of these tests returns."""


def fallback(reason, args, kwargs):
    assert type(args) is tuple and type(kwargs) is dict
    return Misfit((reason, args, kwargs))


def load(fn, ins=None, out=LEAF, **options):
    ins = (LEAF,) * len(fn.params) if ins is None else ins
    return build.load(fn, ins=ins, out=out, fallback=fallback, **options)


def scalar(body: str, *params: CParam, name: str = "f", **rest) -> CFunction:
    """A function of scalars whose one real result is the expression ``body``."""
    fn = CFunction(name, params, (P("y"),), **rest)
    return CFunction(
        name, params, (P("y"),), source=f"#include <math.h>\n{fn.prototype} {{ return {body}; }}\n", **rest
    )


def function(body: str, params, results, dims=(), name="f", **rest) -> CFunction:
    fn = CFunction(name, params, results, dims, **rest)
    return CFunction(name, params, results, dims, source=f"#include <math.h>\n{fn.prototype}\n{{\n{body}\n}}\n", **rest)


ADD = function("for (long long i = 0; i < n; i++) out[i] = v[i] + w[i];", (V, W), (P("out", "real", ("n",)),), ("n",))
DOT = function("double s = 0; for (long long i = 0; i < n; i++) s += v[i]*w[i]; return s;", (V, W), (P("s"),), ("n",))


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, on the disk and in memory."""
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_codes", {})
    monkeypatch.setattr(build, "_private", None)
    monkeypatch.setattr(build, "_wanted", set())
    monkeypatch.delenv("HYAD_TIERED", raising=False)
    return tmp_path / "cache"


def left_over(folder: Path) -> list[str]:
    """What a cache holds besides finished objects and kept sources."""
    return [p.name for p in folder.iterdir() if p.suffix not in (".so", ".o") and not p.name.startswith("failed-")]


# ---------------------------------------------------------------------------------------------- scalars


def test_scalar_call_is_the_builtin_itself():
    f = load(scalar("atan2(x, y)", P("x"), P("y")))
    assert f(1.0, 2.0) == math.atan2(1.0, 2.0)
    assert inspect.isbuiltin(f) and f.__name__ == "f"
    assert list(inspect.signature(f).parameters) == ["x", "y"]


@pytest.mark.parametrize(
    "value", [3, 3.0, np.float64(3), np.float32(3), np.float16(3), np.longdouble(3), np.int8(3), np.uint64(3)], ids=repr
)
def test_real_takes_numbers(value):
    assert load(scalar("x*2", REAL))(value) == 6.0


def test_real_takes_subclasses():
    class F(float):
        pass

    class I(int):  # noqa: E742
        pass

    f = load(scalar("x*2", REAL))
    assert f(F(1.5)) == 3.0 and f(I(4)) == 8.0


@pytest.mark.parametrize(
    "value",
    [
        True,
        np.True_,
        None,
        "1",
        b"1",
        1j,
        np.complex128(1),
        [1.0],
        (1.0,),
        np.array(1.0),
        np.array([1.0]),
        10**400,
        object(),
    ]
    + [np.timedelta64(3, "s"), np.datetime64("2020-01-01"), float, -(10**400), np.void(b"ab"), np.str_("1")],
    ids=lambda v: "object" if type(v) is object else repr(v)[:30],
)
def test_real_refuses_the_rest(value):
    result = load(scalar("x*2", REAL))(value)
    assert isinstance(result, Misfit)
    assert result[0].startswith("argument x wants a real number; this") and result[1][0] is value


@pytest.mark.parametrize("value", [7, np.int64(7), np.uint8(7), -(2**63), 2**63 - 1])
def test_int_takes_integers(value):
    f = load(CFunction("f", (INT,), (P("r", "int"),), source="long long f(long long k) { return k; }"))
    assert f(value) == value and type(f(value)) is int


@pytest.mark.parametrize("value", [1.0, True, np.float64(1), 2**63, -(2**63) - 1, np.uint64(2**63), "1", None])
def test_int_refuses_the_rest(value):
    f = load(CFunction("f", (INT,), (P("r", "int"),), source="long long f(long long k) { return k; }"))
    assert isinstance(f(value), Misfit)


def test_bool():
    f = load(CFunction("f", (BOOL,), (P("r", "bool"),), source="int f(int c) { return c ? 0 : 7; }"))
    assert f(True) is False and f(False) is True and f(np.True_) is False
    assert isinstance(f(1), Misfit) and isinstance(f(None), Misfit) and isinstance(f(np.array(True)), Misfit)


def test_special_values():
    f = load(scalar("x", REAL))
    assert math.isnan(f(math.nan)) and f(math.inf) == math.inf and f(-1.0) == -1.0 and f(-1) == -1.0
    assert math.copysign(1, f(-0.0)) == -1 and f(5e-324) == 5e-324


def test_wrong_count_and_keywords():
    f = load(scalar("x + y", P("x"), P("y")))
    assert f() == ("f takes 2 arguments; there are 0", (), {})
    assert f(1.0, 2.0, 3.0)[1] == (1.0, 2.0, 3.0)
    assert f(1.0, y=2.0) == ("f takes its arguments by position; there are keyword arguments", (1.0,), {"y": 2.0})
    assert f(1.0, 2.0, out=None)[2] == {"out": None}


def test_signature_of_a_python_keyword():
    fn = CFunction("f", (P("lambda"),), (P("y"),), source="double f(double lambda) { return lambda; }")
    assert list(inspect.signature(load(fn)).parameters) == ["argument1"]


def test_no_arguments():
    f = load(CFunction("f", (), (P("y"),), source="double f(void) { return 42; }"))
    assert f() == 42.0 and isinstance(f(1), Misfit)


def test_f32_scalars_are_rounded():
    fn = CFunction("f", (REAL,), (P("y"),), source="float f(float x) { return x; }", dtype="f32")
    assert load(fn)(0.1) == float(np.float32(0.1))


def test_names_of_the_stub_may_be_the_models():
    for name in ("args", "self", "result", "why", "x0", "a", "r", "n", "got"):
        fn = CFunction(
            name, (P("n"), P("a")), (P("r"),), source=f"double {name}(double n, double a) {{ return n - a; }}"
        )
        assert load(fn)(5.0, 3.0) == 2.0


def test_a_name_of_the_interpreter_is_not_taken_over():
    """The C function is hidden: neither it nor CPython's own of the same name replaces the other."""
    fn = CFunction("Py_GetVersion", (REAL,), (P("y"),), source="double Py_GetVersion(double x) { return x + 1; }")
    assert load(fn)(1.0) == 2.0


# ----------------------------------------------------------------------------------------------- arrays


def test_arrays():
    v, w = np.arange(4.0), np.full(4, 2.0)
    assert load(DOT)(v, w) == 12.0
    result = load(ADD)(v, w)
    assert type(result) is np.ndarray and result.dtype == np.float64 and result.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert result.flags.owndata and result.flags.writeable
    assert load(ADD)(np.empty(0), np.empty(0)).shape == (0,)


@pytest.mark.parametrize(
    "dtype", ["f4", "i8", ">f8", "c16", "?", "O", "M8[s]", "f2", "g", "U3", [("a", "f8")]], ids=str
)
def test_other_dtypes_do_not_fit(dtype):
    v = np.zeros(3, dtype)
    result = load(DOT)(v, np.zeros(3))
    assert isinstance(result, Misfit) and result[1][0] is v


@pytest.mark.parametrize(
    ("v", "why"),
    [
        (np.zeros(6)[::2], "this is not C-contiguous"),
        (np.zeros(3)[::-1], "this is not C-contiguous"),
        (np.zeros((3, 1)), "this has rank 2"),
        (np.array(1.0), "this has rank 0"),
        (np.zeros(4), "its dimension 1 is 3, where n is 4"),
        (np.frombuffer(bytes(25), "u1")[1:].view("f8"), "this is not aligned"),
        (np.ma.masked_array(np.zeros(3)), "this is a masked array"),
        ([0.0, 0.0, 0.0], "this is not such an array"),
        (3.0, "this is not such an array"),
        (None, "this is not such an array"),
        (b"12345678" * 3, "this has another dtype"),
        (array.array("f", [0] * 3), "this has another dtype"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_arrays_that_do_not_fit(v, why):
    result = load(DOT)(v, np.zeros(3))
    assert isinstance(result, Misfit) and result[0].endswith("; " + why)


def test_what_else_offers_a_buffer():
    class Sub(np.ndarray):
        pass

    f, w = load(DOT), np.ones(3)
    for v in (array.array("d", [1, 2, 3]), memoryview(array.array("d", [1, 2, 3])), np.arange(1.0, 4.0).view(Sub)):
        assert f(v, w) == 6.0
    fixed = np.arange(1.0, 4.0)
    fixed.flags.writeable = False
    assert f(fixed, w) == 6.0
    assert f((ctypes.c_double * 3)(1, 2, 3), w) == 6.0


def test_buffers_are_given_back():
    data = array.array("d", [1, 2, 3])
    f = load(DOT)
    f(data, np.ones(3)), f(data, np.ones(4)), f(data, None), f(np.ones(4), data)
    data.append(4.0)  # BufferError while a buffer is held
    raising = build.load(DOT, ins=(LEAF,) * 2, out=LEAF, fallback=lambda *_: data.append(5.0))
    raising(data, None)
    assert len(data) == 5


def test_static_dims():
    fn = function(
        "for (int i = 0; i < 2; i++) out[i] = m[3*i] + m[3*i+1] + m[3*i+2];",
        (P("m", "real", (2, 3)),),
        (P("out", "real", (2,)),),
    )
    f = load(fn)
    assert f(np.arange(6.0).reshape(2, 3)).tolist() == [3.0, 12.0]
    result = f(np.zeros((3, 2)))
    assert result[0].endswith("of shape (2, 3); its dimension 1 is 3, must be 2")
    assert isinstance(f(np.asfortranarray(np.ones((2, 3)))), Misfit)


def test_dims_are_shared_by_arrays():
    m, v, out = P("m", "real", ("n", "m_")), P("v", "real", ("m_",)), P("out", "real", ("n",))
    f = load(
        function(
            "for (long long i = 0; i < n; i++) {\n"
            "out[i] = 0; for (long long j = 0; j < m_; j++) out[i] += m[i*m_+j]*v[j]; }",
            (m, v),
            (out,),
            ("n", "m_"),
        )
    )
    a, x = np.random.default_rng(0).normal(size=(3, 5)), np.arange(5.0)
    assert np.allclose(f(a, x), a @ x)
    assert f(a, np.zeros(4))[0].endswith("its dimension 1 is 4, where m_ is 5")


def test_a_dim_within_one_array():
    square = P("m", "real", ("n", "n"))
    f = load(function("return m[n*n - 1];", (square,), (P("y"),), ("n",)))
    assert f(np.arange(9.0).reshape(3, 3)) == 8.0
    assert isinstance(f(np.zeros((2, 3))), Misfit)


def test_int_and_bool_arrays():
    k, c = P("k", "int", ("n",)), P("c", "bool", ("n",))
    out = (P("j", "int", ("n",)), P("d", "bool", ("n",)))
    f = load(
        function(
            "for (long long i = 0; i < n; i++) { j[i] = c[i] ? k[i] : -k[i]; d[i] = !c[i]; }", (k, c), out, ("n",)
        ),
        out=Node((LEAF, LEAF)),
    )
    j, d = f(np.array([1, 2, 2**62]), np.array([True, False, True]))
    assert j.dtype == np.int64 and j.tolist() == [1, -2, 2**62]
    assert d.dtype == np.bool_ and d.tolist() == [False, True, False]
    assert isinstance(f(np.array([1.0]), np.array([True])), Misfit)
    assert isinstance(f(np.array([1], "i4"), np.array([True])), Misfit)
    assert isinstance(f(np.array([1]), np.array([1], "u1")), Misfit)
    mine = (np.empty(1, "i8"), np.empty(1, "?"))
    assert f(np.array([5]), np.array([False]), out=mine)[1] is mine[1] and mine[1][0] and mine[0][0] == -5


def test_f32_arrays():
    fn = function(
        "for (long long i = 0; i < n; i++) out[i] = v[i]*s;",
        (V, P("s")),
        (P("out", "real", ("n",)),),
        ("n",),
        dtype="f32",
    )
    f = load(fn)
    result = f(np.ones(3, "f4"), 0.1)
    assert result.dtype == np.float32 and result[0] == np.float32(0.1)
    assert isinstance(f(np.ones(3), 0.1), Misfit)


def test_result_sizes_from_integers():
    fn = function("for (long long i = 0; i < 2*k + 1; i++) out[i] = i;", (INT,), (P("out", "real", ("2*k + 1",)),))
    f = load(fn)
    assert f(2).tolist() == [0, 1, 2, 3, 4]
    assert f(-3)[0].endswith("must not be negative; it is -5")
    for k in (2**62, 2**61, 2**57):
        assert f(k)[0] == "out of memory"


def test_without_numpys_c_api(fresh, monkeypatch):
    """NumPy of another ABI: arrays are read by the buffer protocol and made by numpy.empty."""
    monkeypatch.setattr(build, "_numpy_capsule", lambda: None)
    f, v = load(ADD), np.arange(3.0)
    out = np.empty(3)
    assert f(v, v).tolist() == [0.0, 2.0, 4.0] and f(v, v, out=out) is out
    assert isinstance(f(v, v, out=v), Misfit) and isinstance(f(v, np.zeros(4)), Misfit)


# ------------------------------------------------------------------------------------------------- out=


def test_out():
    f, v, w = load(ADD), np.arange(3.0), np.ones(3)
    out = np.empty(3)
    assert f(v, w, out=out) is out and out.tolist() == [1.0, 2.0, 3.0]
    assert f(v, w, out=None).tolist() == [1.0, 2.0, 3.0]
    rest = array.array("d", [0, 0, 0])
    assert f(v, w, out=rest) is rest and rest.tolist() == [1.0, 2.0, 3.0]


def test_out_that_does_not_fit():
    f, v, w = load(ADD), np.arange(3.0), np.ones(3)
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    big = np.zeros(8)
    for out, why in [
        (fixed, "read-only"),
        (np.zeros(4), "its dimension 1 is 4, must be 3"),
        (np.zeros(3, "f4"), "another dtype"),
        (np.zeros(6)[::2], "not C-contiguous"),
        (np.zeros((3, 1)), "rank 2"),
        ([0.0] * 3, "not such an array"),
        (v, "shares memory with an argument or another result"),
        (bytes(24), "another dtype"),
    ]:
        result = f(v, w, out=out)
        assert isinstance(result, Misfit) and why in result[0] and result[2]["out"] is out
    assert isinstance(f(big[:3], w, out=big[2:5]), Misfit)
    assert f(big[:3], w, out=big[3:6]).tolist() == [1.0, 1.0, 1.0]
    assert isinstance(f(v, w, out=np.zeros(3), v=1), Misfit)
    assert v.tolist() == [0.0, 1.0, 2.0]


def test_out_of_several_results():
    fn = function(
        "*y = v[0]; for (long long i = 0; i < n; i++) { g[i] = 2*v[i]; h[i] = 3*v[i]; }",
        (V,),
        (P("y"), P("g", "real", ("n",)), P("h", "real", ("n",))),
        ("n",),
    )
    f, v = load(fn, out=Node((LEAF, Node((LEAF, LEAF))))), np.arange(1.0, 3.0)
    g = np.empty(2)
    y, (g1, h1) = f(v, out=(None, g, None))
    assert y == 1.0 and g1 is g and g.tolist() == [2.0, 4.0] and h1.tolist() == [3.0, 6.0]
    for out in ((None, g), [None, g, g], g, (None, g, g), (np.array(0.0), g, None), (None, None, v)):
        assert isinstance(f(v, out=out), Misfit)


# ------------------------------------------------------------------------------------------- structure


@dataclass
class Point:
    x: float
    y: float


def test_tuples():
    fn = scalar("x - y*z", P("x"), P("y"), P("z"))
    f = load(fn, ins=(Node((LEAF, Node((LEAF,)))), LEAF))
    assert f((7.0, (2.0,)), 3.0) == 1.0
    Pair = namedtuple("Pair", "a b")
    assert f(Pair(7.0, (2,)), 3.0) == 1.0
    for bad in ([7.0, (2.0,)], (7.0,), (7.0, 2.0), (7.0, (2.0,), 1.0), (7.0, (None,)), None, 1.0):
        assert isinstance(f(bad, 3.0), Misfit)


def test_dicts_and_dataclasses():
    keyed = Node((LEAF, LEAF), ("x", "y"))
    f = load(scalar("x - y", P("x"), P("y")), ins=(keyed,))
    assert f({"y": 1.0, "x": 3.0}) == 2.0
    for bad in (
        {"x": 1.0},
        {"x": 1.0, "z": 2.0},
        {"x": 1.0, "y": 2.0, "z": 3.0},
        {"x": 1.0, "y": "2"},
        Point(1, 2),
        (),
    ):
        assert isinstance(f(bad), Misfit)
    g = load(scalar("x - y", P("x"), P("y")), ins=(Node((LEAF, LEAF), ("x", "y"), Point),))
    assert g(Point(3.0, 1)) == 2.0
    broken = Point(1.0, 2.0)
    del broken.y
    for bad in ({"x": 1.0, "y": 2.0}, broken, (1.0, 2.0), Point("1", 2.0)):
        assert isinstance(g(bad), Misfit)


def test_structured_results():
    fn = function(
        "*a = x + 1; *b = x + 2; *c = x > 0; *d = 7;", (REAL,), (P("a"), P("b"), P("c", "bool"), P("d", "int"))
    )
    tree = Node((Node((LEAF, LEAF), ("x", "y"), Point), Node((LEAF, Node((LEAF,))), ("p", "q")), Node(())))
    assert load(fn, out=tree)(1.0) == (Point(2.0, 3.0), {"p": True, "q": (7,)}, ())


def test_record_in_and_out_keep_their_own_fields():
    fn = function("*a = x*10; *b = y*10;", (P("x"), P("y")), (P("a"), P("b")))
    f = load(fn, ins=(Node((LEAF, LEAF), ("u", "w")),), out=Node((LEAF, LEAF), ("x", "y"), Point))
    assert f({"u": 1.0, "w": 2.0}) == Point(10.0, 20.0)


def test_a_maker_that_raises():
    def make(**fields):
        raise KeyError("no")

    fn = function("*a = x;", (REAL,), (P("a"), P("v", "real", (2,)))[:1], fallible=False, workspace="1")
    f = load(fn, out=Node((LEAF,), ("x",), make))
    with pytest.raises(KeyError):
        f(1.0)


def test_arrays_in_structures():
    f = load(DOT, ins=(Node((LEAF, LEAF), ("v", "w")),))
    v = array.array("d", [1, 2])
    assert f({"v": v, "w": np.ones(2)}) == 3.0
    v.append(1.0)


def test_trees_must_fit_the_function():
    with pytest.raises(ValueError, match="trees"):
        stub.stub(DOT, (LEAF,), LEAF)
    with pytest.raises(ValueError, match="cannot be watched"):
        stub.stub(CFunction("f", (INT,), (P("y"),), workspace="k % 7"), (LEAF,), LEAF)
    with pytest.raises(ValueError, match="dim m"):
        stub.stub(CFunction("f", (REAL,), (P("y"),), ("m",)), (LEAF,), LEAF)


# ----------------------------------------------------------------------------------- checks, workspace


def test_failed_check_calls_the_fallback():
    fn = function(
        "if (k > 2) return 1; if (k < 0) return 2; out[0] = k; return 0;",
        (INT,),
        (P("out", "real", (1,)),),
        fallible=True,
    )
    f = load(fn)
    assert f(1).tolist() == [1.0]
    assert f(3) == (1, (3,), {}) and f(-1) == (2, (-1,), {})
    out = np.zeros(1)
    assert f(3, out=out)[2]["out"] is out
    y = load(function("*y = 2*x; return x < 0 ? 3 : 0;", (REAL,), (P("y"),), fallible=True))
    assert y(2.0) == 4.0 and y(-2.0)[0] == 3


def test_fallback_result_and_errors_pass_through():
    def raising(reason, args, kwargs):
        raise ZeroDivisionError(reason)

    f = build.load(DOT, ins=(LEAF,) * 2, out=LEAF, fallback=raising)
    with pytest.raises(ZeroDivisionError, match="argument v wants"):
        f(1, 2)
    g = build.load(DOT, ins=(LEAF,) * 2, out=LEAF, fallback=lambda reason, args, kwargs: f(np.ones(2), np.ones(2)))
    assert g(1, 2) == 2.0


def test_equal_functions_keep_their_own_fallbacks():
    fn = scalar("x", REAL)
    one = build.load(fn, ins=(LEAF,), out=LEAF, fallback=lambda *_: 1)
    two = build.load(fn, ins=(LEAF,), out=LEAF, fallback=lambda *_: 2)
    assert one(None) == 1 and two(None) == 2


def test_workspace():
    body = "for (long long i = 0; i < n*n; i++) work[i] = i; *y = 0; for (long long i = 0; i < n*n; i++) *y += work[i];"
    f = load(function(body, (V,), (P("y"),), ("n",), workspace="n*n"))
    for n in (3, 300, 3, 0, 50):
        assert f(np.zeros(n)) == sum(range(n * n))


@pytest.mark.parametrize("size", ["k*k*k", "k", "(size_t)k*8", "k*k", "k > 7 ? k*4*k : k", "(k + 1)*(k - 1)"])
def test_a_workspace_that_overflows_is_out_of_memory(size):
    f = load(function("*y = 0;", (INT,), (P("y"),), workspace=size))
    assert f(1) == 0.0 and f(-5) == 0.0
    for k in (2**62, 2**33 * 2**28 - 1, 2**63 - 1):
        assert f(k)[0] == "out of memory"
    assert f(2) == 0.0


def test_nothing_leaks():
    """References and memory, on each way out of a call."""
    record = Node((LEAF, LEAF), ("x", "y"), Point)
    fn = function(
        "out[0] = x; for (long long i = 0; i < n; i++) out[i] = v[i] + x + y; *s = 1; return y > 5 ? 1 : 0;",
        (P("x"), P("y"), V),
        (P("out", "real", ("n",)), P("s")),
        ("n",),
        fallible=True,
        workspace="n",
    )
    f = load(fn, ins=(record, LEAF), out=Node((LEAF, LEAF), ("x", "y"), Point))
    good, big, v, out, buffer = (
        Point(1.5, 2),
        Point(1.5, 6.0),
        np.ones(20_000),
        np.empty(20_000),
        array.array("d", [1.0]),
    )
    keys = {"x": 1.0, "y": 1.0}
    calls = [
        lambda: f(good, v),
        lambda: f(good, buffer),
        lambda: f(good, v, out=(out, None)),
        lambda: f(big, v),
        lambda: f(big, buffer, out=(np.empty(1), None)),
        lambda: f(good, v, out=(v, None)),
        lambda: f(good, v, out=(out[1:], None)),
        lambda: f(good, v, out=[]),
        lambda: f(keys, v),
        lambda: f(good),
        lambda: f(good, v, what=1),
        lambda: f(Point(1.0, None), buffer),
    ]
    watched = [good, v, out, buffer, Point, keys, None, 1.5, f, f.__self__, f.__self__[0]]

    def run(times):
        for _ in range(times):
            for call in calls:
                call()
        gc.collect()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 if os.path.exists("/proc/self/statm") else 0

    run(20)
    before, blocks, memory = [sys.getrefcount(o) for o in watched], sys.getallocatedblocks(), resident()
    run(1000)
    after = [sys.getrefcount(o) for o in watched]
    assert all(abs(b - a) < 20 for a, b in zip(after, before))
    assert abs(sys.getallocatedblocks() - blocks) < 800  # what leaks in each run is 1000 blocks; others come and go
    assert resident() - memory < 20e6  # one leaked result is 160 kB, 1000 are 160 MB


def test_junk_in_every_place():
    """Every pair of odd things, also as out=: an answer or the fallback, never an exception or a crash."""
    junk = [
        None,
        True,
        1,
        2.5,
        1j,
        "s",
        b"12345678",
        [1.0],
        (1.0,),
        {"x": 1.0},
        {},
        (),
        object(),
        Point(1.0, 2.0),
        10**30,
    ]
    junk += [np.ones(n, t) for n in (0, 1, 2, (1, 1), ()) for t in ("f8", "f4", "i8", "?", "O")]
    junk += [
        np.ones(4)[::2],
        memoryview(b"abc"),
        memoryview(np.ones(1)),
        array.array("d"),
        range(1),
        math,
        float("nan"),
    ]
    functions = [load(ADD), load(DOT), load(scalar("x + y", P("x"), P("y")))]
    functions.append(load(DOT, ins=(Node((LEAF,)), Node((LEAF,), ("x",)))))
    functions.append(load(scalar("x + k", P("x"), INT), ins=(Node((LEAF,), ("x",), Point), LEAF)))
    for f in functions:
        for x in junk:
            assert isinstance(f(x), Misfit)
            for y in junk:
                assert type(f(x, y)) in (Misfit, float, np.ndarray)
    for out in junk:
        result = functions[0](np.ones(1), np.ones(1), out=out)
        assert result is out or type(result) in (Misfit, np.ndarray)


def test_callable_and_fallback_are_collected():
    import weakref

    class Model:
        def __call__(self, reason, args, kwargs):
            return None

    model = Model()
    model.f = build.load(scalar("x", REAL), ins=(LEAF,), out=LEAF, fallback=model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_calls_from_threads():
    from concurrent.futures import ThreadPoolExecutor

    body = "for (long long i = 0; i < n; i++) work[i] = v[i]; *y = 0; for (long long i = 0; i < n; i++) *y += work[i];"
    f = load(function(body, (V,), (P("y"),), ("n",), workspace="n"))
    with ThreadPoolExecutor(4) as pool:
        sizes = [17, 1000, 3, 70000] * 25
        assert list(pool.map(lambda n: f(np.ones(n)), sizes)) == sizes


# --------------------------------------------------------------------------- addresses and SciPy's calls


def test_address():
    f = load(scalar("x*y", P("x"), P("y")))
    c = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(build.address(f))
    assert c(3.0, 4.0) == 12.0
    with pytest.raises(TypeError, match="not a function that was loaded"):
        build.address(math.sin)


def test_low_level_callable():
    integrate = pytest.importorskip("scipy.integrate")
    f = load(scalar("exp(-x*x)", REAL))
    for signature in (None, *stub.LOW_LEVEL[:4]):
        assert integrate.quad(build.low_level_callable(f, signature), 0, 1)[0] == pytest.approx(
            0.746824132812427, abs=1e-12
        )
    g = load(scalar("x*y*y", P("x"), P("y")))
    assert integrate.quad(build.low_level_callable(g), 0, 1, args=(3.0,))[0] == pytest.approx(4.5)
    assert integrate.nquad(build.low_level_callable(g), [(0, 1), (0, 3)])[0] == pytest.approx(4.5)
    with pytest.warns(integrate.IntegrationWarning):  # an argument too few
        assert math.isnan(integrate.quad(build.low_level_callable(g), 0, 1)[0])
    v = load(function("return n < 3 ? v[0] : -1;", (V,), (P("y"),), ("n",)))
    assert integrate.quad(build.low_level_callable(v), 0, 1)[0] == pytest.approx(0.5)


def test_low_level_callable_of_ndimage():
    ndimage = pytest.importorskip("scipy.ndimage")
    f = load(scalar("a + 10*b + 100*c", P("a"), P("b"), P("c")))
    kernel = build.low_level_callable(f, stub.LOW_LEVEL[4])
    image = np.arange(5.0)
    expected = ndimage.generic_filter(image, lambda b: b[0] + 10 * b[1] + 100 * b[2], 3)
    assert ndimage.generic_filter(image, kernel, 3).tolist() == expected.tolist()


def test_low_level_callable_of_a_fallible_function():
    integrate = pytest.importorskip("scipy.integrate")
    f = load(function("*y = x; return x < 0.5;", (REAL,), (P("y"),), fallible=True))
    with pytest.warns(integrate.IntegrationWarning):
        assert math.isnan(integrate.quad(build.low_level_callable(f), 0, 1)[0])
    assert integrate.quad(build.low_level_callable(f), 1, 2)[0] == pytest.approx(1.5)


def test_low_level_callable_that_cannot_be():
    with pytest.raises(ModelTypeError, match="cannot be a LowLevelCallable"):
        build.low_level_callable(load(DOT))
    with pytest.raises(ModelTypeError, match="no signature 'double \\(double\\)'"):
        build.low_level_callable(load(scalar("x + y", P("x"), P("y"))), "double (double)")


# ------------------------------------------------------------------------------------------- the compiler


def test_build_record(fresh, monkeypatch):
    load(DOT)
    assert not build.last.hit and build.last.compile_seconds > 0 and Path(build.last.path).parent == fresh
    assert "-O3" in build.last.command and not any("fast-math" in word for word in build.last.command)
    first = build.last.path
    monkeypatch.setattr(build, "_codes", {})
    f = load(DOT)
    assert build.last.hit and build.last.compile_seconds == 0.0 and build.last.path == first == build.how(f).path
    assert left_over(fresh) == []


def test_the_same_function_is_loaded_once(fresh, monkeypatch):
    load(DOT)
    monkeypatch.setattr(build, "_import", None)
    monkeypatch.setattr(build, "_run", None)
    load(DOT)


def test_key_depends_on_all_that_matters(fresh):
    paths = set()
    for fn, optimise in [(DOT, "exact"), (DOT, "fast"), (ADD, "exact")]:
        load(fn, optimise=optimise)
        paths.add(build.last.path)
    assert len(paths) == 3
    with pytest.raises(ValueError, match="optimise"):
        load(DOT, optimise="most")


def test_fast_reorders_sums_but_keeps_denormals(fresh):
    f = load(scalar("(x + y) - x", P("x"), P("y")), optimise="fast")
    assert f(1e16, 1.0) == 1.0
    g = load(scalar("(x + y) - x", P("x"), P("y")))
    assert g(1e16, 1.0) == 0.0
    assert 5e-324 * 1.0 != 0.0 and np.float64(5e-324) / 1.0 != 0.0 and 2.3e-308 / 4 > 0


def test_huge_functions_are_not_optimised(fresh, monkeypatch):
    for limit, level in (("LONG", "-O1"), ("LONGEST", "-O0"), ("HUGE", "-O0")):
        with monkeypatch.context() as m:
            m.setattr(build, limit, 10)
            assert load(DOT)(np.ones(3), np.ones(3)) == 3.0
            assert level in build.last.command


def test_march_native_only_where_the_compiler_knows_it(fresh, tmp_path, monkeypatch):
    picky = script(
        tmp_path,
        'case "$*" in *-march=native*) echo "bad value for -march" >&2; exit 1;; esac; exec cc "$@"',
    )
    monkeypatch.setenv("HYAD_CC", picky)
    assert load(DOT)(np.ones(3), np.ones(3)) == 3.0
    assert build.NATIVE not in build.last.command
    load(ADD)
    assert build.NATIVE not in build.last.command


def script(folder: Path, body: str, name: str = "compiler") -> str:
    """A compiler of our own making."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_order_of_compilers(tmp_path, monkeypatch):
    one, two = script(tmp_path, "", "one"), script(tmp_path, "", "two")
    monkeypatch.setenv("HYAD_CC", one + " -m64")
    monkeypatch.setenv("CC", two)
    assert build.compiler() == (one, "-m64")
    monkeypatch.setenv("HYAD_CC", "")
    assert build.compiler() == (two,)
    monkeypatch.delenv("CC")
    script(tmp_path, "", "gcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiler() == (str(tmp_path / "gcc"),)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("HYAD_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(build.NoCompiler, match="no C compiler was found") as caught:
        load(DOT)
    assert isinstance(caught.value, CompileError) and "hyad[zig]" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "message"),
    [("/nowhere/cc", "'/nowhere/cc', which \\$HYAD_CC names, was not found"), ("cc 'x", "\\$HYAD_CC cannot be read")],
)
def test_a_compiler_that_is_not_there(fresh, monkeypatch, value, message):
    monkeypatch.setenv("HYAD_CC", value)
    with pytest.raises(CompileError, match=message):
        load(DOT)


def test_a_compiler_that_is_not_executable(fresh, tmp_path, monkeypatch):
    (tmp_path / "cc").write_text("")
    monkeypatch.setenv("HYAD_CC", str(tmp_path / "cc"))
    with pytest.raises(CompileError, match="is not executable"):
        load(DOT)
    (tmp_path / "cc").chmod(0o755)
    (tmp_path / "cc").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(CompileError, match="cannot be run"):
        load(DOT)
    assert left_over(fresh) == []


def test_a_failing_compiler(fresh):
    fn = CFunction("f", (REAL,), (P("y"),), source="double f(double x) { return undeclared(x) + nothing; }\n")
    with pytest.raises(CompileError) as caught:
        load(fn)
    text = str(caught.value)
    assert "nothing" in text and "undeclared" in text and "command: " in text and "source: " in text
    kept = Path(text.split("source: ")[1].splitlines()[0])
    assert kept.parent == fresh and kept.name.startswith("failed-") and fn.source in kept.read_text()
    assert str(kept) in text.split("command: ")[1] and left_over(fresh) == []


def test_a_long_message_is_cut(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HYAD_CC", script(tmp_path, "for i in $(seq 50); do echo line $i >&2; done; exit 1"))
    with pytest.raises(CompileError, match="line 20\n  ... 30 more lines"):
        load(DOT)


def test_a_silent_failure(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HYAD_CC", script(tmp_path, "exit 3"))
    with pytest.raises(CompileError, match="no message; exit status 3"):
        load(DOT)
    monkeypatch.setenv("HYAD_CC", script(tmp_path, "exit 0"))
    with pytest.raises(CompileError, match="no message; exit status 0"):
        load(DOT)


def test_a_compiler_that_hangs(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HYAD_CC", script(tmp_path, f"sleep 60 & echo $! > {tmp_path}/pid; wait"))
    monkeypatch.setenv("HYAD_CC_TIMEOUT", "0.5")
    with pytest.raises(CompileError, match="took longer than 0.5 s"):
        load(DOT)
    assert left_over(fresh) == []
    sleeper = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{sleeper}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    monkeypatch.setenv("HYAD_CC_TIMEOUT", "soon")
    with pytest.raises(CompileError, match="HYAD_CC_TIMEOUT is a number"):
        load(DOT)


def test_an_object_that_cannot_be_loaded(fresh):
    fn = CFunction(
        "f", (REAL,), (P("y"),), source="double missing(double);\ndouble f(double x) { return missing(x); }\n"
    )
    with pytest.raises(CompileError, match="cannot be loaded.*missing"):
        load(fn)


def test_a_prototype_that_disagrees_is_an_error(fresh):
    with pytest.raises(CompileError, match="conflicting types"):
        load(CFunction("f", (REAL,), (P("y"),), source="float f(double x) { return x; }\n"))


def test_header_of_its_own(fresh):
    source = '#include "f.h"\ndouble f(double x) { return TWO*x; }\n'
    assert load(CFunction("f", (REAL,), (P("y"),), source=source, header="#define TWO 2\n"))(4.0) == 8.0


# ---------------------------------------------------------------------------------------------- the cache


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("HYAD_CACHE", "/some/where")
    assert build.cache_folder() == "/some/where"
    monkeypatch.delenv("HYAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert build.cache_folder() == "/x/hyad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert build.cache_folder() == "/h/.cache/hyad"


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "junk"])
def test_a_damaged_file_is_built_again(fresh, monkeypatch, damage):
    load(DOT)
    path = Path(build.last.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    bad = {"truncate": bytes(data[:1000]), "flip": bytes(data), "empty": b"", "junk": b"x" * 5000}[damage]
    path.unlink()
    path.write_bytes(bad)
    monkeypatch.setattr(build, "_codes", {})
    assert load(DOT)(np.ones(2), np.ones(2)) == 2.0
    assert not build.last.hit and build._contents(str(path)) is not None


def numbered(k: int) -> CFunction:
    return function(f"return {k}.0 + v[0]*0.0;", (V,), (P("s"),), ("n",), name=f"f{k}")


def test_the_cache_is_bounded(fresh, monkeypatch):
    """What was used longest ago goes, what was just written stays; what is loaded works on."""
    ages = {}
    functions = []
    for k in range(4):
        functions.append(load(numbered(k)))
        ages[k] = Path(build.last.path)
    for k, hours in enumerate((5, 7, 3, 4)):  # since its last use
        os.utime(ages[k], (time.time() - 3600 * hours,) * 2)
    monkeypatch.setattr(build, "_codes", {})
    load(numbered(1))
    assert build.last.hit and ages[1].stat().st_mtime > time.time() - 60, "a hit is a use"
    stale, working = fresh / "build-stale", fresh / "build-working"
    for folder in (stale, working):
        folder.mkdir()
    os.utime(stale, (time.time() - 90000,) * 2)
    size, common = ages[0].stat().st_size, sum(p.stat().st_size for p in fresh.glob("*.o"))
    monkeypatch.setenv("HYAD_CACHE_MB", str((2.5 * size + common) / 1e6))
    load(numbered(4))
    last = Path(build.last.path)
    assert {p for p in fresh.iterdir() if p.suffix == ".so"} == {ages[1], ages[2], last}
    assert working.exists() and not stale.exists()
    assert [f(np.ones(1)) for f in functions] == [0.0, 1.0, 2.0, 3.0]
    monkeypatch.setattr(build, "_codes", {})
    assert load(numbered(0))(np.ones(1)) == 0.0 and not build.last.hit
    monkeypatch.setenv("HYAD_CACHE_MB", "0")
    assert load(numbered(5))(np.ones(1)) == 5.0
    assert [p for p in fresh.iterdir() if p.suffix == ".so"] == [Path(build.last.path)]
    monkeypatch.setenv("HYAD_CACHE_MB", "plenty")
    with pytest.raises(CompileError, match="HYAD_CACHE_MB is a number of megabytes, not 'plenty'"):
        load(numbered(6))


def test_the_cache_is_not_looked_at_each_time(fresh, monkeypatch):
    """Only when this process has added a sixteenth of what it may hold, or filled it."""
    looks, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scandir(path))
    for k in range(4):
        load(numbered(k))
    assert looks.count(str(fresh)) == 1
    monkeypatch.setenv("HYAD_CACHE_MB", str(40 * Path(build.last.path).stat().st_size / 1e6))
    for k in range(4, 10):  # two and a half of them are a sixteenth of that
        load(numbered(k))
    assert looks.count(str(fresh)) == 3


def commands(monkeypatch) -> list[tuple[str, ...]]:
    """The compilers that run from now on."""
    ran, run = [], build._run
    monkeypatch.setattr(build, "_run", lambda command, folder: ran.append(command) or run(command, folder))
    return ran


def test_what_stubs_have_in_common_is_compiled_once(fresh, monkeypatch):
    ran, square = commands(monkeypatch), scalar("x*x", REAL)
    assert load(DOT)(np.ones(3), np.ones(3)) == 3.0 and len(ran) == 1, "the first is in one piece"
    assert load(ADD)(np.ones(3), np.ones(3)).tolist() == [2.0] * 3 and len(ran) == 3 and "-c" in ran[1]
    assert load(numbered(0))(np.ones(3)) == 0.0 and len(ran) == 4, "arrays of the same reals"
    assert load(square)(3.0) == 9.0 and len(ran) == 5, "no arrays"
    assert load(scalar("-x", REAL))(3.0) == -3.0 and len(ran) == 7
    assert load(scalar("2*x", REAL))(3.0) == 6.0 and len(ran) == 8
    common = sorted(p for p in fresh.iterdir() if p.suffix == ".o")
    assert len(common) == 2
    for path in common:  # a damaged one is made again
        path.write_bytes(path.read_bytes()[:100])
    assert load(numbered(1))(np.ones(3)) == 1.0 and len(ran) == 10


def test_what_stubs_have_in_common_is_only_declared_beside_them():
    own, common = build._parts(ADD, (LEAF, LEAF), LEAF)
    names = re.findall(r"^(?!static|extern)\w[^\n]*?(hyad_\w+)\([^\n]*\)\n\{", common, re.MULTILINE)
    assert {"hyad_real", "hyad_view", "hyad_new", "hyad_tuple", "hyad_bind_types"} <= set(names)
    for name in names:
        assert re.search(rf"^extern [^\n]*\b{name}\([^\n]*\);$", own, re.MULTILINE), name
        assert not re.search(rf"\b{name}\([^\n]*\)\n\{{", own), name


def test_a_compiler_that_makes_no_object_files(fresh, tmp_path, monkeypatch):
    """One that cannot compile in parts compiles the whole, and its failure is that of the whole."""
    cc = shutil.which("cc")
    monkeypatch.setenv("HYAD_CC", script(tmp_path, f'case " $* " in *" -c "*) exit 1;; esac; exec {cc} "$@"'))
    ran = commands(monkeypatch)
    assert load(ADD)(np.ones(3), np.ones(3)).tolist() == [2.0] * 3
    assert load(DOT)(np.ones(3), np.ones(3)) == 3.0 and ["-c" in command for command in ran] == [False, True, False]
    assert not any(word.endswith(".o") for word in build.last.command)


def test_an_unwritable_cache(fresh, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(build.HyadWarning, match="cannot be kept in .*file/cache .*HYAD_CACHE") as caught:
        assert load(DOT)(np.ones(2), np.ones(2)) == 2.0
        assert load(ADD)(np.ones(2), np.ones(2)).tolist() == [2.0, 2.0]
    assert len(caught) == 1
    folder = Path(build.last.path).parent
    assert folder.stat().st_mode & 0o77 == 0
    monkeypatch.setattr(build, "_codes", {})
    load(DOT)
    assert build.last.hit
    shutil.rmtree(folder)


def test_full_disk_when_the_source_is_written(fresh, monkeypatch):
    real = open

    def full(path, mode="r", *rest, **options):
        if str(path).endswith(".c") and "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path, mode, *rest, **options)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(CompileError, match="no space left in .*cache") as caught:
        load(DOT)
    assert "HYAD_CACHE" in caught.value.hint and list(fresh.iterdir()) == []


def test_full_disk_when_the_compiler_writes(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HYAD_CC", script(tmp_path, "echo 'ld: final link failed: No space left on device' >&2; exit 1"))
    with pytest.raises(CompileError, match="no space left in"):
        load(DOT)
    assert list(fresh.iterdir()) == []


def test_full_disk_when_the_seal_or_the_folder_is_written(fresh, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(CompileError, match="no space left in"):
            load(DOT)
    assert list(fresh.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "makedirs", full)
        with pytest.raises(CompileError, match="no space left in"):
            load(DOT)


def test_file_size_limit(fresh):
    """A real limit, on the real compiler: nothing half-written is left or loaded."""
    code = (
        SCRIPT
        + "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        + (
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "from hyad.errors import CompileError\n"
            "try: print(f(2.0))\nexcept CompileError as e: print('CompileError', e)\n"
        ).replace("print(f(2.0))", "print(make()(2.0))")
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("CompileError no space left in"), done.stdout + done.stderr
    assert list(fresh.iterdir()) == []


ROOT = str(Path(hyad.__file__).parents[1])
SCRIPT = f"""
import sys
sys.path.insert(0, {ROOT!r})
from hyad.codegen import build
from hyad.codegen.cfunction import CFunction, CParam as P
from hyad.core import LEAF
def make(tag=0):
    source = f"double f(double x) {{{{ return 2*x + {{tag}}; }}}}"
    fn = CFunction("f", (P("x"),), (P("y"),), source=source)
    return build.load(fn, ins=(LEAF,), out=LEAF, fallback=lambda *a: a)
"""


def test_racing_processes(fresh):
    code = SCRIPT + "print([make(k % 3)(2.0) for k in range(6)])"
    command = [sys.executable, "-c", code]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    for racer in racers:
        output, errors = racer.communicate(timeout=120)
        assert output.strip() == "[4.0, 5.0, 6.0, 4.0, 5.0, 6.0]", errors
    assert len(list(fresh.glob("*.so"))) == 3 and left_over(fresh) == []


def test_forked_processes(fresh):
    f = load(DOT)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_norm_in_child, [2, 3]) == [2.0, 3.0]
    assert f(np.ones(4), np.ones(4)) == 4.0


def _norm_in_child(n):
    return load(DOT)(np.ones(n), np.ones(n))


def test_import_is_cheap():
    """No module that can wait is imported at the top of these files, and nothing runs there."""
    for module in (build, stub):
        tree = ast.parse(Path(module.__file__).read_text())
        imported = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
        imported |= {n.module for n in tree.body if isinstance(n, ast.ImportFrom) and not n.level}
        light = "__future__ collections.abc contextlib dataclasses errno functools keyword os re sys threading time"
        assert imported <= {*light.split(), "typing", "hyad.core", "hyad.errors"}


# ---------------------------------------------------------------------------------------------- two tiers

tcc = pytest.mark.skipif(not shutil.which("tcc"), reason="needs tcc")


@tcc
def test_tiers(fresh, monkeypatch):
    monkeypatch.setenv("HYAD_TIERED", "1")
    f, g = load(DOT), load(DOT)
    assert "tcc" in build.last.command[0]
    assert f(np.ones(3), np.ones(3)) == 3.0
    before = build.address(f)
    build.wait()
    assert build.how(f).command[0].endswith("cc") and "tcc" not in build.how(f).command[0]
    assert build.address(f) == build.address(g) != before
    assert f(np.ones(3), np.ones(3)) == 3.0 == g(np.ones(3), np.ones(3)) and isinstance(f(1, 2), Misfit)
    monkeypatch.setattr(build, "_codes", {})
    load(DOT)
    assert build.last.hit and "tcc" not in build.last.command[0]
    assert left_over(fresh) == []


@tcc
@pytest.mark.parametrize("number", range(3))
def test_tcc_compiles_every_stub(fresh, monkeypatch, number):
    monkeypatch.setenv("HYAD_CC", "tcc")
    if number == 0:
        test_structured_results()
        test_dicts_and_dataclasses()
    elif number == 1:
        test_arrays()
        test_int_and_bool_arrays()
        test_out_of_several_results()
    else:
        test_failed_check_calls_the_fallback()
        test_workspace()
    assert "tcc" in build.last.command[0]


@tcc
def test_a_second_tier_that_fails_is_a_warning(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HYAD_TIERED", "1")
    monkeypatch.setenv("HYAD_CC", script(tmp_path, "echo broken >&2; exit 1"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = load(DOT)
        build.wait()
    assert any("f stays as tcc compiled it" in str(w.message) and "broken" in str(w.message) for w in caught)
    assert f(np.ones(3), np.ones(3)) == 3.0


@tcc
def test_what_tcc_cannot_compile_goes_to_the_compiler(fresh, monkeypatch):
    monkeypatch.setenv("HYAD_TIERED", "1")
    f = load(function("__int128 wide = k; return wide << 3 >> 3;", (INT,), (P("y"),)))
    assert f(3) == 3.0 and "tcc" not in build.last.command[0]


@tcc
def test_exit_while_compiling(fresh, tmp_path):
    slow = script(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60")
    environment = {**os.environ, "HYAD_TIERED": "1", "HYAD_CC": slow, "HYAD_CACHE": str(fresh)}
    code = (
        SCRIPT
        + f"import os, time; print(make()(2.0))\nwhile not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4.0\n", "")
    assert left_over(fresh) == []


def test_a_model_integrates_without_python() -> None:
    import hyad

    integrate = pytest.importorskip("scipy.integrate")
    bell = hyad.model("(fn [x] (exp (- (* x x))))")
    assert integrate.quad(hyad.low_level_callable(bell), 0, 1)[0] == pytest.approx(0.7468241328124270, abs=1e-12)
    slope = hyad.low_level_callable(hyad.compile(hyad.grad(bell)))
    assert integrate.quad(slope, 0, 1)[0] == pytest.approx(bell(1.0) - bell(0.0), abs=1e-12)
    with pytest.raises(hyad.ModelTypeError):
        hyad.low_level_callable("(fn [#^ (Mat 2 2) m] (get m 0 0))")


def has_gcc() -> bool:
    found = shutil.which("cc")
    return found is not None and "gcc" in subprocess.run([found, "-v"], capture_output=True, text=True).stderr


VECTORS = build.has_libmvec() and has_gcc()


@pytest.mark.skipif(not VECTORS, reason="needs gcc and glibc's vector functions")
@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh", "log1p", "expm1", "cbrt", "erf"])
def test_fast_flags_take_vector_functions(name: str) -> None:
    """At most 4 units in the last place from the exact flags, and from a shared object that asks for vectors."""
    model = hyad.model(f"(fn [v] (map {name} v))")
    v = np.linspace(0.01, 3.0, 1003)
    exact = hyad.compile(model, args=(v,))
    fast = hyad.compile(model, args=(v,), flags="fast")
    assert build.last is not None and b"_ZGV" in Path(build.last.path).read_bytes()
    np.testing.assert_array_max_ulp(fast(v), exact(v), 5)
