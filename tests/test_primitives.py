"""The table of primitives: every field of every row against something that does not come from the row.

Values and partial derivatives are compared with mpmath and with SymPy's own differentiation, the C text with the
Python meaning, at points of each row's domain and well outside of it. What a row can't be compared with is named here.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy

import hyad
from hyad.core import BOOL, INT, REAL
from hyad.errors import CompileError, DerivativeError, HyadError, ModelTypeError, ReadError, UnboundError
from hyad.program import primitives
from hyad.program.own_primitives import check_partial, defprim
from hyad.program.primitives import PRECEDENCE, PRIMITIVES, Primitive, c_form, parse_partial, sympy_form

ROWS = [PRIMITIVES[name] for name in sorted(primitives.BUILTIN)]
SMOOTH = [row for row in ROWS if not isinstance(row.partials, str)]
STEPS = {"//", "%", "floor", "ceil", "round", "trunc", "int", "sign"}  # SymPy differentiates them to distributions
WIDE = (-3.7, -1.3, -0.45, 0.3, 0.85, 1.7, 6.2)  # no whole numbers, where step functions jump


def names(rows: list[Primitive]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def select(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


def evaluate(expr: Any, env: dict[str, float]) -> Any:
    """A parsed partial, through the Python meanings of the table."""
    if isinstance(expr, tuple):
        f = select if expr[0] == "select" else PRIMITIVES[expr[0]].python
        return f(*(evaluate(e, env) for e in expr[1:]))
    return env[expr] if isinstance(expr, str) else expr


def partials_at(row: Primitive, point: tuple) -> list[Any]:
    if isinstance(row.partials, str):
        return [0] * len(point)  # truth values do not move
    env = {**dict(zip(row.params, point)), "y": row.python(*point)}
    return [None if text is None else evaluate(parse_partial(text), env) for text in row.partials]


def tangent(expr: Any, env: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Value and tangent of a parsed expression, its derivative taken from the table as forward mode takes it."""
    if not isinstance(expr, tuple):
        return env[expr] if isinstance(expr, str) else (expr, 0)
    args = [tangent(e, env) for e in expr[1:]]
    if expr[0] == "select":
        return args[1] if args[0][0] else args[2]
    row = PRIMITIVES[expr[0]]
    values = [value for value, _ in args]
    moving = [i for i, (_, dot) in enumerate(args) if dot != 0]
    slopes = partials_at(row, tuple(values)) if moving else []
    return row.python(*values), sum(slopes[i] * args[i][1] for i in moving)


def inner(row: Primitive, t: float) -> tuple:
    """The point of the domain at ``t`` of each interval, a little further in each next one so that none are equal."""
    return tuple(lo + (hi - lo) * (t + 0.02 * i) for i, (lo, hi) in enumerate(row.domain))


def points(row: Primitive) -> list[tuple]:
    """Points of the domain, then points anywhere."""
    inside = list(zip(*(inner(row, t) for t in (0.03, 0.37, 0.52, 0.93))))
    ints = [INT in {types[i] for types, _ in row.types} and not admits_real(row, i) for i in range(len(row.params))]
    wide = [[x + 0.013 * i for x in WIDE] for i in range(len(row.params))]  # no ties
    grids = [
        sorted({round(x) for x in near} | {-3, 0, 2}) if integer else [*near, *far]
        for near, far, integer in zip(inside, wide, ints)
    ]
    whole = itertools.product(WIDE, (-3, -1, 0, 1, 2, 5)) if row.name == "**" else ()
    return [*itertools.product(*grids), *whole]


def admits_real(row: Primitive, i: int) -> bool:
    return any(types[i] == REAL for types, _ in row.types)


def reference(row: Primitive) -> Any:
    """The function in high precision, from its SymPy form."""
    if row.name == "round":
        return mpmath.nint  # halves to even
    if row.name == "lgamma":
        return lambda x: mpmath.re(mpmath.loggamma(x))
    symbols = sympy.symbols(" ".join(f"x{i}" for i in range(len(row.params))) + ",", real=True)
    form = sympy_form(row, *symbols)
    return sympy.lambdify(symbols, form.expand(func=True) if isinstance(form, sympy.Expr) else form, "mpmath")


def real(x: Any) -> bool:
    """Whether a reference value is a real number, neither complex nor a pole."""
    return mpmath.im(x) == 0 and bool(mpmath.isfinite(x))


def close(a: Any, b: Any, rel: float = 1e-12) -> bool:
    return abs(a - b) <= rel * max(1, abs(b))


# ------------------------------------------------------------------------------------------ the rows alone


@names(ROWS)
def test_row_is_complete(row: Primitive) -> None:
    arity = len(row.params)
    assert row.doc.endswith(".")
    assert len(row.domain) == arity and all(lo < hi for lo, hi in row.domain)
    assert row.types and all(len(wanted) == arity for wanted, _ in row.types)
    assert "y" not in row.params
    assert row.cost >= 1 and row.prec in PRECEDENCE
    assert row.c is not None and all(f"{{{i}}}" in row.c for i in range(arity))
    for text in filter(None, (row.c_int, row.c_serial)):
        assert all(f"{{{i}}}" in text for i in range(arity))
    assert row.sympy is not None or row.why, "a missing field states why"
    if isinstance(row.partials, str):
        assert " " in row.partials and all(result == BOOL for _, result in row.types)
    else:
        assert len(row.partials) == arity
        for i, text in enumerate(row.partials):
            assert text is not None or not admits_real(row, i)
            if text is not None:
                check_partial(parse_partial(text), row.params)


@names(ROWS)
def test_precedence_is_that_of_the_text(row: Primitive) -> None:
    operators = {"+": "add", "-": "add", "*": "mul", "/": "mul", "&&": "logic", "||": "logic"}
    for text in filter(None, (row.c, row.c_int, row.c_serial)):
        words = text.replace("*", " * ").replace("/", " / ").split()
        if len(words) == 3 and words[0] == "{0}" and words[2] == "{1}":
            assert row.prec == operators.get(words[1], "cmp")
        elif text in ("-{0}", "!{0}", "(double){0}"):
            assert row.prec == "unary"
        else:
            assert row.prec == "call" and text.endswith(")")


def test_the_table_holds_the_language() -> None:
    language = """+ - * / // % ** sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log
        log2 log10 log1p sqrt cbrt hypot abs sign min max sigmoid softplus relu erf erfc gamma lgamma digamma polygamma
        floor ceil round trunc < <= > >= = != not and or real int square"""
    assert set(language.split()) <= set(PRIMITIVES)


# ------------------------------------------------------------------------------------ values and derivatives


@names(ROWS)
def test_python_value(row: Primitive) -> None:
    if BOOL in row.types[0][0]:
        truth = {"not": lambda a: 1 - a, "and": lambda a, b: a * b, "or": lambda a, b: a + b - a * b}[row.name]
        for args in itertools.product((False, True), repeat=len(row.params)):
            assert row.python(*args) is bool(truth(*args))
        return
    f = reference(row)
    seen = 0
    with mpmath.workdps(40):
        for point in points(row):
            try:
                expected = f(*map(mpmath.mpf, point))
            except (ZeroDivisionError, ValueError):  # a pole
                continue
            got = row.python(*point)
            if isinstance(expected, bool):
                assert got is expected, point
            elif real(expected):
                assert close(got, float(expected)), (point, got, expected)
                seen += 1
            elif mpmath.isfinite(expected):
                assert math.isnan(got), (point, got, expected)
    assert seen > 3 or row.types[0][1] == BOOL


@names(SMOOTH)
def test_partials_against_high_precision_differences(row: Primitive) -> None:
    f = reference(row)
    seen = 0
    with mpmath.workdps(40):
        for point in points(row):
            exact = list(map(mpmath.mpf, point))
            for i, slope in enumerate(partials_at(row, point)):
                if slope is None:
                    continue
                beside = [[*exact[:i], exact[i] + h, *exact[i + 1 :]] for h in (-1e-9, 0, 1e-9)]
                try:
                    if not all(real(f(*at)) for at in beside):
                        continue
                except (ZeroDivisionError, ValueError):  # a pole
                    continue
                order = tuple(int(i == j) for j in range(len(point)))
                expected = mpmath.diff(f, tuple(exact), order) if len(point) > 1 else mpmath.diff(f, exact[0])
                assert close(slope, float(expected.real), 1e-11), (point, row.partials[i], slope, expected)
                seen += 1
    assert seen > 3


@names([row for row in SMOOTH if row.name not in STEPS])
def test_partials_against_sympy(row: Primitive) -> None:
    symbols = sympy.symbols(" ".join(f"x{i}" for i in range(len(row.params))) + ",", real=True)
    form = sympy_form(row, *symbols)
    for i, text in enumerate(row.partials):
        if text is None:
            continue
        slope = sympy.diff(form, symbols[i]).doit().expand(func=True).replace(sympy.DiracDelta, lambda *_: 0)
        derivative = sympy.lambdify(symbols, slope, "mpmath")
        for point in (inner(row, t) for t in (0.21, 0.34, 0.83)):
            whole = tuple(round(x) if not admits_real(row, j) else x for j, x in enumerate(point))
            expected = derivative(*map(mpmath.mpf, whole))
            assert close(partials_at(row, whole)[i], float(mpmath.re(expected)), 1e-11), (whole, text, expected)


@names([row for row in SMOOTH if not row.kinks and row.name not in STEPS | {"polygamma"}])
def test_second_derivatives(row: Primitive) -> None:
    """The derivative of each partial, by the table, against high-precision differences: no term may be missing."""
    f = reference(row)
    with mpmath.workdps(40):
        for t in (0.21, 0.83):
            point = inner(row, t)
            y = row.python(*point)
            slopes = partials_at(row, point)
            for i, text in enumerate(row.partials):
                for j, name in enumerate(row.params):
                    env = {p: (x, int(p == name)) for p, x in zip(row.params, point)}
                    env["y"] = (y, slopes[j])
                    got = tangent(parse_partial(text), env)[1]
                    order = [0] * len(point)
                    order[i] += 1
                    order[j] += 1
                    at = tuple(map(mpmath.mpf, point))
                    expected = mpmath.diff(f, at, tuple(order)) if len(at) > 1 else mpmath.diff(f, at[0], 2)
                    assert close(got, float(expected), 1e-10), (point, text, name, got, expected)


INF = math.inf
CONVENTIONS = [
    ("abs", (0.0,), 0, 0),
    ("abs", (-0.0,), 0, 0),
    ("sign", (0.0,), 0, 0),
    ("relu", (0.0,), 0, 0),
    ("max", (2.0, 2.0), 0, 1),
    ("max", (2.0, 2.0), 1, 0),
    ("min", (2.0, 2.0), 0, 1),
    ("min", (2.0, 2.0), 1, 0),
    ("sqrt", (0.0,), 0, INF),
    ("cbrt", (0.0,), 0, INF),
    ("hypot", (0.0, 0.0), 0, 0),
    ("hypot", (0.0, 0.0), 1, 0),
    ("asin", (1.0,), 0, INF),
    ("acos", (-1.0,), 0, -INF),
    ("acosh", (1.0,), 0, INF),
    ("floor", (3.0,), 0, 0),
    ("log", (0.0,), 0, INF),
    ("**", (0.0, 0), 0, 0),
    ("**", (0.0, 1), 0, 1),
    ("**", (0.0, 2), 0, 0),
    ("**", (-2.0, 3), 0, 12),
    ("**", (-2.0, -1), 0, -0.25),
    ("**", (0.0, 2), 1, 0),
    ("**", (0.0, 0.0), 0, 0),
    ("**", (0.0, 1.0), 0, 1),
    ("**", (0.0, 2.0), 0, 0),
    ("**", (-2.0, 3.0), 0, 12),
    ("**", (0.0, 2.5), 1, 0),
    ("**", (0.0, 0.0), 1, -INF),
    ("tanh", (400.0,), 0, 0),
    ("sigmoid", (-800.0,), 0, 0),
    ("softplus", (800.0,), 0, 1),
    ("exp2", (0.0,), 0, math.log(2)),
    ("%", (-7.0, 3.0), 1, 3),
]


@pytest.mark.parametrize(("name", "point", "which", "expected"), CONVENTIONS)
def test_conventions_at_kinks(name: str, point: tuple, which: int, expected: float) -> None:
    assert partials_at(PRIMITIVES[name], point)[which] == expected


def test_mixed_derivative_of_a_power_survives_the_convention() -> None:
    """d2/da db of a ** b is 1/a at b = 0: a guard on b alone would lose it."""
    env = {"a": (2.0, 0), "b": (0.0, 1), "y": (1.0, math.log(2.0))}
    assert close(tangent(parse_partial(PRIMITIVES["**"].partials[0]), env)[1], 0.5)


def test_partials_do_not_cancel() -> None:
    """Relative accuracy where a simpler formula would lose half of the digits."""
    one = mpmath.mpf(1)
    for name, x, derivative in [
        ("expm1", -30.0, mpmath.exp),
        ("asin", 1 - 1e-12, lambda x: 1 / mpmath.sqrt(1 - x * x)),
        ("atanh", 1 - 1e-12, lambda x: 1 / (1 - x * x)),
        ("acosh", 1 + 1e-12, lambda x: 1 / mpmath.sqrt(x * x - 1)),
        ("erfc", 5.0, lambda x: -2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x)),
        ("softplus", -50.0, lambda x: 1 / (1 + mpmath.exp(-x))),
    ]:
        with mpmath.workdps(40):
            expected = float(derivative(x * one))
        assert abs(partials_at(PRIMITIVES[name], (x,))[0] / expected - 1) < 1e-14, name


# ------------------------------------------------------------------------------------ special values, C, NumPy

REALS = [0.0, -0.0, INF, -INF, math.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 2.5, 3.5, -2.5, 0.1, 0.7, -7.3, 40.0, -40.0]
REALS += [171.5, -170.5, 800.0, -800.0, 1e-12, -1e-12, 1e10, -1e10, 2.0**53, 1e300, -1e300, 5e-324, 1e19, -1e19]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 13, 32, 33, -33, 100, 10**6, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
GRID = {REAL: REALS, INT: INTS, BOOL: [False, True]}
NUMPY = {REAL: np.float64, INT: np.int64, BOOL: np.int32}
OVERLOADS = [(row, wanted, result) for row in ROWS for wanted, result in row.types]


def overload_id(value: Any) -> str:
    return value.name if isinstance(value, Primitive) else str(value)


def columns(row: Primitive, wanted: tuple, small: bool) -> list[np.ndarray]:
    """The grid's points as one array per operand; ``small`` makes reals float."""
    grids = [
        GRID[t] + ([lo + (hi - lo) * t for t in (0.2, 0.6)] if t == REAL else [])
        for t, (lo, hi) in zip(wanted, row.domain)
    ]
    rows = list(itertools.product(*grids))
    kinds = [np.float32 if small and t == REAL else NUMPY[t] for t in wanted]
    with np.errstate(all="ignore"):
        return [np.array([r[i] for r in rows], dtype=np.float64 if t == REAL else NUMPY[t]).astype(kind)
                for i, (t, kind) in enumerate(zip(wanted, kinds))]  # fmt: skip


def as_python(x: Any, t: Any) -> Any:
    return {REAL: float, INT: int, BOOL: bool}[t](x)


@pytest.mark.parametrize(("row", "wanted", "result"), OVERLOADS, ids=overload_id)
def test_python_on_arrays_is_python_on_numbers(row: Primitive, wanted: tuple, result: Any) -> None:
    arrays = [a.astype(bool) if t == BOOL else a for a, t in zip(columns(row, wanted, small=False), wanted)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = row.python(*arrays)
        singly = [row.python(*(as_python(x, t) for x, t in zip(point, wanted))) for point in zip(*arrays)]
    assert isinstance(together, np.ndarray) and together.shape == arrays[0].shape
    assert together.dtype == {REAL: np.float64, INT: np.int64, BOOL: np.bool_}[result]
    for point, a, b in zip(zip(*arrays), together, singly):
        assert isinstance(b, {REAL: float, INT: int, BOOL: bool}[result]), (point, b)
        if result == INT and not -(2**63) <= b < 2**63:
            continue  # an Int has 64 bits
        assert a == b or (a != a and b != b) or abs(a - b) <= 4e-15 * abs(b), (point, a, b)


@pytest.fixture(scope="module")
def table_in_c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C form of every overload in double and float, each looping over arrays, compiled in one file."""
    folder = tmp_path_factory.mktemp("primitives")
    functions, support = [], []
    for k, (row, wanted, result) in enumerate(OVERLOADS):
        for small, serial in itertools.product((False, True), (False, True) if row.c_serial else (False,)):
            types = {REAL: "float" if small else "double", INT: "long long", BOOL: "int"}
            text, needed = c_form(row, wanted, f32=small, serial=serial)
            support += [s for s in needed if s not in support]
            params = ", ".join(f"const {types[t]} *x{i}" for i, t in enumerate(wanted))
            body = text.format(*(f"x{i}[i]" for i in range(len(wanted))))
            functions.append(
                f"void f{k}{'f' * small}{'s' * serial}(long long n, {params}, {types[result]} *out);\n"
                f"void f{k}{'f' * small}{'s' * serial}(long long n, {params}, {types[result]} *out) {{\n"
                f"  for (long long i = 0; i < n; i++) out[i] = {body};\n}}\n"
            )
    source = folder / "table.c"
    source.write_text("\n".join(["#include <math.h>", *support, *functions]))
    return compile_c(source)


def compile_c(source: Path) -> ctypes.CDLL:
    library = source.with_suffix(".so")
    flags = ["-std=c99", "-O2", "-fwrapv", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    done = subprocess.run(["cc", *flags, str(source), "-o", str(library), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("small", [False, True], ids=["double", "float"])
@pytest.mark.parametrize(("row", "wanted", "result"), OVERLOADS, ids=overload_id)
def test_c_is_python(row: Primitive, wanted: tuple, result: Any, small: bool, table_in_c: ctypes.CDLL) -> None:
    arrays = columns(row, wanted, small)
    out = np.empty(len(arrays[0]), dtype=np.float32 if small and result == REAL else NUMPY[result])
    k = next(k for k, (r, w, _) in enumerate(OVERLOADS) if r is row and w == wanted)

    def run(name: str, out: np.ndarray) -> np.ndarray:
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*arrays, out)]
        table_in_c[name](ctypes.c_longlong(len(out)), *pointers)
        return out

    run(f"f{k}{'f' * small}", out)
    if row.c_serial is not None:
        again = run(f"f{k}{'f' * small}s", np.empty_like(out))
        np.testing.assert_array_equal(again, out)
        np.testing.assert_array_equal(np.signbit(again), np.signbit(out))
    for point, got in zip(zip(*arrays), out):
        expected = row.python(*(as_python(x, t) for x, t in zip(point, wanted)))
        if result != REAL:
            assert got == expected or not -(2**63) <= expected < 2**63, (point, got, expected)
            continue
        if small:
            with np.errstate(all="ignore"):
                expected = float(np.float32(expected))
        got = float(got)
        if expected == 0 and got == 0 and row.name not in ("min", "max"):
            assert math.copysign(1, got) == math.copysign(1, expected), (point, got, expected)
        rel, tiny = (2e-6, 1.2e-38) if small else (2e-14, 0.0)
        if row.name in ("digamma", "polygamma", "gamma", "lgamma", "**"):
            rel *= 50
        same = (
            got == expected
            or (got != got and expected != expected)
            or abs(got - expected) <= rel * abs(expected) + tiny
        )
        assert same, (point, got, expected)


def test_int_division_is_pythons() -> None:
    assert [PRIMITIVES["//"](a, b) for a, b in [(7, 2), (-7, 2), (7, -2), (5, 0)]] == [3, -4, -4, 0]
    assert [PRIMITIVES["%"](a, b) for a, b in [(7, 3), (-7, 3), (7, -3), (5, 0)]] == [1, 2, -2, 0]
    assert PRIMITIVES["//"](1.0, 0.1) == 9.0  # floor(1.0/0.1) is 10
    assert PRIMITIVES["/"](1, 0) == INF and math.isnan(PRIMITIVES["/"](0.0, 0.0))


def test_trigamma_in_c() -> None:
    """The one that second derivatives of log-likelihoods take, to 4 units in the last place."""
    f = hyad.compile(hyad.model("(fn [#^ (Vec n) x] (map (fn [t] (polygamma 1 t)) x))", namespace={}))
    x = np.concatenate([np.logspace(-9, 9, 300), np.linspace(0.05, 25, 500)])
    with mpmath.workdps(40):
        want = [float(mpmath.psi(1, mpmath.mpf(t))) for t in x]
    np.testing.assert_allclose(f(x), want, rtol=8e-16)
    np.testing.assert_array_equal(f(np.array([0.0, np.inf, np.nan, -2.0])), [np.inf, 0.0, np.nan, np.inf])


@pytest.mark.parametrize("n", range(1, 31))
def test_polygamma_of_every_order(n: int) -> None:
    for x in (0.01, 0.5, 3.3, 60.0, 1e5, -0.3, -7.9, -1000.25):
        with mpmath.workdps(60):
            expected = float(mpmath.psi(n, mpmath.mpf(x)))
        assert close(PRIMITIVES["polygamma"](n, x) / expected, 1.0, 1e-11), (n, x)


# ------------------------------------------------------------------------------------------------ look-up


@pytest.mark.parametrize(
    ("name", "types", "wanted", "result"),
    [
        ("+", (INT, INT), (INT, INT), INT),
        ("+", (INT, REAL), (REAL, REAL), REAL),
        ("/", (INT, INT), (REAL, REAL), REAL),
        ("**", (REAL, INT), (REAL, INT), REAL),
        ("**", (INT, INT), (REAL, INT), REAL),
        ("**", (INT, REAL), (REAL, REAL), REAL),
        ("=", (BOOL, BOOL), (BOOL, BOOL), BOOL),
        ("<", (INT, REAL), (REAL, REAL), BOOL),
        ("sin", (INT,), (REAL,), REAL),
        ("int", (REAL,), (REAL,), INT),
    ],
)
def test_overloads(name: str, types: tuple, wanted: tuple, result: Any) -> None:
    assert PRIMITIVES[name].result(types) == (wanted, result)


@pytest.mark.parametrize(("name", "types"), [("sin", (BOOL,)), ("sin", (REAL, REAL)), ("**", (BOOL, INT))])
def test_no_overload(name: str, types: tuple) -> None:
    assert PRIMITIVES[name].result(types) is None


def test_int_power_in_c() -> None:
    assert c_form(PRIMITIVES["**"], (REAL, INT))[0] == "hyad_ipow({0}, {1})"
    assert c_form(PRIMITIVES["**"], (REAL, REAL)) == ("pow({0}, {1})", ())


def by_squares(x: Any, n: int) -> Any:
    """What ``hyad_ipow`` does."""
    y, k = type(x)(1), abs(n)
    while k:
        y = y * x if k & 1 else y
        x, k = x * x, k >> 1
    return 1 / y if n < 0 else y


def test_known_whole_powers_are_products() -> None:
    """The same numbers as by the loop, to the last bit, and code of which compilers make vectors."""
    exponents = [n for n in range(-33, 34) if abs(n) > 2]
    powers = " ".join(f"(** x {n})" for n in exponents)
    f = hyad.model(f"(fn [x] [{powers}])")
    single = hyad.compile(f, args=(1.0,), dtype="f32")
    for x in (1.5, -0.7, 0.0, -0.0, 1e12, math.inf, math.nan):
        with np.errstate(all="ignore"):
            for call, real in ((f, np.float64), (single, np.float32)):
                wanted = np.array([by_squares(real(x), n) for n in exponents])
                found = np.asarray(call(x))
                np.testing.assert_array_equal(found[1:-1], wanted[1:-1])
                np.testing.assert_array_equal(np.signbit(found[1:-1]), np.signbit(wanted[1:-1]))
    text = str(hyad.show(f, "c", args=(1.0,)))
    assert "hyad_ipow(x, 33)" in text and "hyad_ipow(x, 32)" not in text and "hyad_pow_minus32(x)" in text
    assert "static __device__ inline double hyad_pow6" in str(hyad.show(f, "cuda", args=(1.0,)))
    assert "hyad_ipow(x, n)" in str(hyad.show(hyad.model("(fn [x #^ Int n] (** x n))"), "c"))


def test_a_whole_power_is_computed_again() -> None:
    """It is a few products: a loop remembers none for its gradient, but the power of an exponent that is not known."""
    text = "(fn [#^ (Vec n) v #^ Int k] (fold (fn [s x] (+ s (/ 1.0 (** (sqrt x) K)))) 0.0 v))"
    known, not_known = (hyad.grad(hyad.model(text.replace("K", k)), wrt="v") for k in ("12", "k"))
    v = np.array([0.7, 1.3, 2.9])
    np.testing.assert_allclose(known(v, 12), -6 * v**-7.0, rtol=1e-14)
    np.testing.assert_allclose(known(v, 12), not_known(v, 12), rtol=1e-14)
    first, second = (hyad.compile(f, args=(v, 12)).cfunction for f in (known, not_known))
    assert first.workspace is None and second.source.count("hyad_ipow(") > 1
    assert first.source.count("for (") == 1


def test_parse_partial() -> None:
    assert parse_partial("1") == 1 and isinstance(parse_partial("1"), int)
    assert parse_partial("-1.5e-3") == -0.0015
    assert parse_partial("(- (sin x))") == ("neg", ("sin", "x"))
    assert parse_partial("(- x 1)") == ("-", "x", 1)
    assert parse_partial("(* a b c d)") == ("*", ("*", ("*", "a", "b"), "c"), "d")
    assert parse_partial("(select (<= a b) 1 0)") == ("select", ("<=", "a", "b"), 1, 0)


@pytest.mark.parametrize("text", ["", "(sin x", "sin x)", "(sin x) y", "()", "(+ 1 1.2.3)"])
def test_parse_partial_refuses(text: str) -> None:
    with pytest.raises(ReadError):
        parse_partial(text)


def test_float_text() -> None:
    assert c_form(PRIMITIVES["sin"], f32=True) == ("sinf({0})", ())
    assert c_form(PRIMITIVES["real"], f32=True)[0] == "(float){0}"
    text, support = c_form(PRIMITIVES["softplus"], f32=True)
    assert text == "hyad_softplusf({0})"
    assert support == (
        "static inline float hyad_softplusf(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }\n",
    )


def test_support_is_what_the_form_calls() -> None:
    assert [s.split("(")[0] for s in c_form(PRIMITIVES["max"])[1]] == ["static inline double hyad_max"]
    assert [s.split("(")[0] for s in c_form(PRIMITIVES["max"], (INT, INT))[1]] == ["static inline long long hyad_imax"]
    assert c_form(PRIMITIVES["abs"])[1] == ()
    assert [s.split("(")[0] for s in c_form(PRIMITIVES["polygamma"])[1]] == [
        "static inline double hyad_digamma",
        "static inline double hyad_trigamma",
        "static inline double hyad_polygamma",
    ]


# ------------------------------------------------------------------------------------------------ defprim


@pytest.fixture
def table() -> Any:
    """The table, put back as it was after the test."""
    rows = dict(PRIMITIVES)
    yield PRIMITIVES
    PRIMITIVES.clear()
    PRIMITIVES.update(rows)


SOFTSIGN: dict[str, Any] = {
    "partials": ["(/ 1 (square (+ 1 (abs x))))"],
    "python": lambda x: x / (1 + abs(x)),
    "c": "softsign({0})",
    "support": "static inline double softsign(double x) { return x/(1 + fabs(x)); }",
    "sympy": "{0}/(1 + Abs({0}))",
    "doc": "x/(1 + |x|), a cheap sigmoid.",
}


def test_defprim(table: dict[str, Primitive], tmp_path: Path) -> None:
    row = defprim("softsign", ["x"], **SOFTSIGN)
    assert table["softsign"] is row and row.result((INT,)) == ((REAL,), REAL)
    assert row(-3.0) == -0.75 and partials_at(row, (-3.0,)) == [1 / 16]
    assert sympy_form(row, sympy.Integer(-3)) == sympy.Rational(-3, 4)
    text, support = c_form(row, f32=True)
    source = tmp_path / "softsign.c"
    source.write_text(
        f"#include <math.h>\n{''.join(support)}float f(float x);\nfloat f(float x) {{ return {text.format('x')}; }}"
    )
    f = compile_c(source).f
    f.argtypes, f.restype = [ctypes.c_float], ctypes.c_float
    assert f(-3.0) == -0.75


def test_defprim_example_runs(table: dict[str, Primitive]) -> None:
    example = defprim.__doc__.partition("::\n\n")[2].partition("\n\n")[0]
    exec(textwrap.dedent(example), {"defprim": defprim})
    assert table["softsign"](1.0) == 0.5 and c_form(table["softsign"])[1]


def test_no_form_of_the_language_is_a_primitive() -> None:
    from hyad.frontend.builtins import BUILTINS
    from hyad.program.reader import SPECIAL
    from hyad.program.values import OPERATORS

    for name in {*SPECIAL, *BUILTINS, *OPERATORS} - primitives.BUILTIN:
        with pytest.raises(ReadError):
            defprim(name, ["x"], **SOFTSIGN)


def test_defprim_replaces_ones_own(table: dict[str, Primitive]) -> None:
    defprim("softsign", ["x"], **SOFTSIGN)
    again = defprim("softsign", ["x"], **{**SOFTSIGN, "cost": 3})
    assert table["softsign"] is again and again.cost == 3


def test_defprim_c_text_may_stand_anywhere(table: dict[str, Primitive]) -> None:
    row = defprim("blend", ["a", "b"], partials=["1", "2"], python=lambda a, b: a + 2 * b, c="{0} + 2*{1}")
    assert c_form(row)[0].format("u + v", "p - q") == "((u + v) + 2*(p - q))"
    assert row.sympy is None and row.why


def test_defprim_without_c_says_why(table: dict[str, Primitive]) -> None:
    row = defprim("lookup", ["x"], partials="a table look-up jumps", python=round, c="it reads a Python table")
    assert row.c is None and row.partials == "a table look-up jumps"
    with pytest.raises(CompileError, match="lookup has no C form: it reads a Python table"):
        c_form(row)


def test_without_c_a_model_runs_as_python(table: dict[str, Primitive]) -> None:
    """As it does without a compiler: with a note; asking for C is an error at the user's form."""
    defprim("lookup", ["x"], partials=["(* 2 x)"], python=lambda x: x * x, c="it reads a Python table")
    f = hyad.model("(fn [x] (* 3.0 (lookup x)))")
    with pytest.warns(UserWarning, match="lookup has no C form: it reads a Python table: f runs as plain Python"):
        assert f(2.0) == 12.0
    assert hyad.grad(f)(2.0) == 12.0  # whose code has no look-up
    with pytest.raises(CompileError, match="it reads a Python table") as caught:
        hyad.compile(f, target="c")
    assert caught.value.span.text == "(lookup x)"


@pytest.mark.parametrize("operator", [hyad.grad, hyad.D, hyad.jacobian, hyad.hessian])
def test_what_has_no_derivative_is_not_a_constant(operator: Callable, table: dict[str, Primitive]) -> None:
    defprim("nearest", ["x"], partials="a table look-up jumps", python=round, c="rint({0})")
    f = hyad.model("(fn [x y] (* y (nearest x)))")
    assert hyad.grad(f, wrt="y")(2.0, 3.0) == 2.0
    with pytest.raises(DerivativeError, match="`nearest` has no derivative: a table look-up jumps") as caught:
        operator(f, wrt="x")(2.0, 3.0)
    assert caught.value.span.text == "(nearest x)" and "defprim" in caught.value.hint


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"jvp": "(fn [x] x)"}, "the jvp of `softsign` takes 1 argument, not 2"),
        ({"vjp": "(fn [x ct] x)"}, "the vjp of `softsign` takes 2 arguments, not 3"),
    ],
)
def test_a_rule_with_other_arguments(rule: dict, message: str, table: dict[str, Primitive]) -> None:
    defprim("softsign", ["x"], **{**SOFTSIGN, "partials": None, **rule})
    with pytest.raises(DerivativeError, match=message) as caught:
        hyad.grad("(fn [x] (softsign x))")(1.0)
    assert caught.value.span.text == "(softsign x)" and "it takes those of `softsign`" in caught.value.hint


def test_a_rule_that_gives_something_else(table: dict[str, Primitive]) -> None:
    defprim("softsign", ["x"], **{**SOFTSIGN, "partials": None, "jvp": "(fn [x dx] [dx dx])"})
    with pytest.raises(DerivativeError, match="the jvp of `softsign` gives an array of shape .2., not a number"):
        hyad.grad("(fn [x] (softsign x))")(1.0)
    defprim("softsign", ["x"], **{**SOFTSIGN, "partials": None, "jvp": "(fn [x dx] (nowhere dx))"})
    with pytest.raises(UnboundError, match="nothing binds `nowhere`") as caught:
        hyad.grad("(fn [x] (softsign x))")(1.0)
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("python", "message"),
    [(lambda x: None, "None"), (lambda x: "a", "a str"), (lambda x: 1j * x, "a complex"), (lambda x: [x], "a list")],
)
def test_a_python_function_that_gives_no_number(python: Callable, message: str, table: dict[str, Primitive]) -> None:
    """Run, it went on as it was."""
    defprim("lookup", ["x"], partials=["1"], python=python, c="it reads a Python table")
    f = hyad.model("(fn [x] (* 2 (lookup x)))")
    for call in (hyad.compile(f, "python"), lambda x: hyad.run(f, x), lambda x: hyad.run(hyad.grad(f), x)):
        with pytest.raises(ModelTypeError, match=f"the Python function of `lookup` gives {message}, not a number") as e:
            call(1.0)
        assert "(lookup x)" in e.value.span.text


def test_a_python_function_that_refuses_is_underlined(table: dict[str, Primitive]) -> None:
    """For the Python target the whole model was."""

    def positive(x: float) -> float:
        if x < 0:
            raise HyadError("the table begins at 0")
        return x

    defprim("lookup", ["x"], partials=["(lookup x)"], python=positive, c="it reads a Python table")
    one = "(fn [x y] (+ (lookup x) (* 2 (lookup y))))"
    deep = "(fn [x y] (letrec [f (fn [k] (if (< k 1) (lookup y) (+ (lookup x) (f (- k 1)))))] (f x)))"
    turns = "(fn [x y] (+ (lookup x) (sum (map (fn [a] (lookup y)) [1.0 y 2.0]))))"
    for text in (one, deep, turns):
        for f in (hyad.model(text), hyad.grad(text)):
            with pytest.raises(HyadError, match="the table begins at 0") as error:
                hyad.compile(f, "python")(1.0, -1.0)
            assert error.value.span.text == "(lookup y)"


def test_defprim_own_rules(table: dict[str, Primitive]) -> None:
    rule = "(fn [x dx] (* dx (cos x)))"
    row = defprim("mysin", ["x"], jvp=rule, python=math.sin, c="sin({0})")
    assert row.jvp == rule and isinstance(row.partials, str)


def test_defprim_may_use_itself_and_other_types(table: dict[str, Primitive]) -> None:
    row = defprim(
        "decay", ["k", "x"], types=[((INT, REAL), REAL)], partials=["(* y (log x))", "(* k (decay (- k 1) x))"],
        python=lambda k, x: x**k, c="pow({1}, {0})", domain=[(1, 3), (0.5, 2)],
    )  # fmt: skip
    assert partials_at(row, (3, 2.0))[1] == 12 and row.types == (((INT, REAL), REAL),)


REFUSED = [
    ({"name": "let"}, ReadError, "let is a form of the language and can't be redefined"),
    ({"name": "sin"}, ReadError, "sin is a built-in primitive and can't be redefined"),
    ({"name": "two words"}, ReadError, "'two words' can't be the name of a primitive"),
    ({"name": "3d"}, ReadError, "'3d' can't be the name of a primitive"),
    ({"params": "x"}, ReadError, "params 'x' is not a list of parameter names"),
    ({"params": []}, ReadError, r"params \[\] is not a list of parameter names"),
    ({"params": ["y"]}, ReadError, "y means the result in partials"),
    ({"params": ["sin"]}, ReadError, "sin means something else in partials"),
    ({"params": ["x", "x"]}, ReadError, "has a name twice"),
    ({"partials": ["1", "2"]}, DerivativeError, r"2 partial derivative\(s\) for 1 parameter\(s\)"),
    ({"partials": None}, DerivativeError, "neither a list of partial derivatives nor a reason"),
    ({"partials": "(cos x)"}, DerivativeError, "neither a list of partial derivatives nor a reason"),
    ({"partials": [1]}, DerivativeError, "the partial 1 is not a text"),
    ({"partials": ["(cos z)"]}, DerivativeError, "in the partial .cos z.: z is not a parameter"),
    ({"partials": ["(cosine x)"]}, DerivativeError, "cosine is not a primitive"),
    ({"partials": ["(cos x x)"]}, DerivativeError, r"cos takes 1 operand\(s\), not 2"),
    ({"partials": ["(cos x"]}, ReadError, "is not one well-formed expression"),
    ({"python": 3}, ModelTypeError, "python is 3, which can't be called"),
    ({"c": None}, ModelTypeError, "c and sympy are texts"),
    ({"c": "f({0}, {1})"}, ModelTypeError, r"the c text .* does not fit 1 operand\(s\)"),
    ({"sympy": "f({x})"}, ModelTypeError, "the sympy text .* does not fit"),
    ({"cuda": "f({1})"}, ModelTypeError, "the cuda text .* does not fit"),
    ({"types": [((REAL, REAL), REAL)]}, ModelTypeError, "is not a list of .operand types, result type."),
    ({"types": 5}, ModelTypeError, "is not a list of .operand types, result type."),
    ({"domain": [(1.0, 0.0)]}, ModelTypeError, "is not one interval"),
    ({"domain": 3}, ModelTypeError, "domain 3 is not one interval"),
    ({"domain": [("a", 2.0)]}, ModelTypeError, "is not one interval"),
    ({"partials": 3}, DerivativeError, "partials 3 is neither a list of partial derivatives nor a reason"),
    ({"cost": "low"}, ModelTypeError, "cost is 'low'"),
    ({"cost": 0}, ModelTypeError, "cost is 0"),
    ({"support": 3}, ModelTypeError, "support and doc are texts"),
    ({"jvp": 3}, ModelTypeError, "jvp is 3, which is not a model"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=[str(change) for change, _, _ in REFUSED])
def test_defprim_refuses(change: dict, error: type[HyadError], message: str, table: dict[str, Primitive]) -> None:
    before = dict(table)
    with pytest.raises(error, match=message) as caught:
        defprim(**{"name": "softsign", "params": ["x"], **SOFTSIGN, **change})
    assert caught.value.hint, "says what to do"
    assert table == before
