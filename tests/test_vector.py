"""``math="vector"``: exp, sin and others in C that vectorises, within the errors that they state; side by side."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyad
from hyad.codegen.vector import FAR, KERNELS, WAVES
from hyad.core import Loop
from hyad.errors import ModelTypeError
from hyad.passes.abreast import CALLS, LEAST

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    709.7,
    709.8,
    720.0,
    1e300,
    -1e300,
    5e-324,
    -708.5,
    -744.0,
    -745.2,
    -800.0,
    1.0,
    -1.0,
    2.2250738585072014e-308,
    -5e-324,
]
POINTS = {
    "exp": (1, [(-1, 1), (-40, 40), (-708, 709.7), (-745, -708)]),
    "expm1": (3, [(-1e-5, 1e-5), (-1, 1), (-50, 50), (0, 709.7)]),
    "log": (1, [(0.7, 1.5), (1 - 1e-9, 1 + 1e-9), (1e-300, 1e-290), (0, 1e300), (0, 1e-310)]),
    "log1p": (2, [(-1e-9, 1e-9), (-0.999, 1.5), (-1 + 1e-15, -0.99), (0, 1e20)]),
    "tanh": (3, [(-1e-7, 1e-7), (-1, 1), (-25, 25)]),
    "sin": (1, [(-1e-5, 1e-5), (-0.8, 0.8), (-7, 7), (-1e4, 1e4), (-FAR, FAR), (2 * FAR, 1e18)]),
    "cos": (1, [(-1e-5, 1e-5), (-0.8, 0.8), (-7, 7), (-1e4, 1e4), (-FAR, FAR), (2 * FAR, 1e18)]),
    "tan": (3, [(-1e-5, 1e-5), (-0.8, 0.8), (-7, 7), (-1e4, 1e4), (-FAR, FAR), (2 * FAR, 1e18)]),
}
MAP = "(fn [#^ (Vec n) x] (map (fn [a] ({name} a)) x))"


def body(f) -> str:
    """The C function itself, without those that it calls."""
    return f.source.partition(f.cfunction.prototype)[2]


def exactly(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return getattr(np, name)(x.astype(np.longdouble))


@pytest.mark.parametrize("name", KERNELS)
def test_errors_are_those_stated(name: str) -> None:
    f = hyad.compile(hyad.model(MAP.format(name=name)), math="vector")
    call = f"hyad_{name}(&far, x[i])" if name in WAVES else f"hyad_{name}(x[i])"
    assert call in f.source and f"unit{'s' * (POINTS[name][0] > 1)} in the last place" in f.source
    most, ranges = POINTS[name]
    assert f"at most {most} unit" in KERNELS[name][-1]
    for low, high in ranges:
        x = np.random.default_rng(3).uniform(low, high, 100_000)
        expected = exactly(name, x)
        rounded = expected.astype(float)
        error = np.abs(f(x) - expected) / np.spacing(np.abs(rounded))
        assert error.max() < most + 0.05, (low, high, x[error.argmax()])


@pytest.mark.parametrize("name", KERNELS)
def test_errors_where_sums_may_be_reordered(name: str) -> None:
    """Reordered, an error that another operation finds would be taken for nothing: these are the C library's then."""
    f = hyad.compile(hyad.model(MAP.format(name=name)), math="vector", flags="fast")
    for low, high in POINTS[name][1]:
        x = np.random.default_rng(3).uniform(low, high, 20_000)
        expected = exactly(name, x)
        found = f(x)
        normal = np.abs(expected) > 1e-300
        error = np.abs(found - expected) / np.spacing(np.abs(expected.astype(float)))
        assert not normal.any() or error[normal].max() < 4
    if name == "log1p":
        np.testing.assert_allclose(f(np.array([1e-8, 1e-12, 1e-20])), np.log1p([1e-8, 1e-12, 1e-20]), rtol=1e-15)


@pytest.mark.parametrize("flags", ["exact", "fast"])
@pytest.mark.parametrize("name", KERNELS)
def test_ends_of_the_range(name: str, flags: str) -> None:
    f = hyad.compile(hyad.model(MAP.format(name=name)), math="vector", flags=flags)
    for x in (np.array(SPECIAL), *(np.array([a]) for a in SPECIAL)):  # one by one as well: none hides behind another
        with np.errstate(over="ignore"):  # what is too large for a double is infinite
            found, expected = f(x), exactly(name, x).astype(float)
        known = ~np.isnan(expected)
        np.testing.assert_array_max_ulp(found[known], expected[known], 3)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.signbit(found[x == 0]), np.signbit(expected[x == 0]))


@pytest.mark.parametrize("name", WAVES)
def test_where_a_sine_is_nearly_zero(name: str) -> None:
    """The doubles next to multiples of half of pi: what is left of them is the parts of pi that come last."""
    f = hyad.compile(hyad.model(MAP.format(name=name)), math="vector")
    most = int(FAR / (np.pi / 2))
    k = np.r_[np.arange(1, 60), np.random.default_rng(5).integers(1, most, 140)]
    with mpmath.workdps(60):
        x = np.array([float(int(i) * mpmath.pi / 2) for i in k])
        x = np.r_[x, 2**21 * 1.5707963267948966, 6381956.970095103]  # and two that are not
        exact = [getattr(mpmath, name)(mpmath.mpf(a)) for a in x]
        error = [abs((mpmath.mpf(y) - e) / mpmath.mpf(np.spacing(abs(float(e))))) for y, e in zip(f(x), exact)]
    assert max(error) < POINTS[name][0]


@pytest.mark.parametrize("name", KERNELS)
def test_single_precision(name: str) -> None:
    f = hyad.compile(hyad.model(MAP.format(name=name)), math="vector", dtype="f32")
    assert f"hyad_{name}f(" in f.source
    for low, high in ((-1e-3, 1e-3), (-4, 4), (-80, 80)):
        x = np.random.default_rng(3).uniform(low, high, 20_000).astype(np.float32)
        expected = exactly(name, x.astype(float)).astype(float)
        unit = np.spacing(np.abs(expected).astype(np.float32)).astype(float)
        assert np.nanmax(np.abs(f(x) - expected) / unit) < 0.51
        np.testing.assert_array_equal(np.isnan(f(x)), np.isnan(expected))
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-45], np.float32)
    expected = exactly(name, x.astype(float)).astype(np.float32)
    np.testing.assert_allclose(f(x), expected, rtol=1e-7)
    np.testing.assert_array_equal(np.signbit(f(x)[:2]), np.signbit(expected[:2]))


@pytest.mark.parametrize("name", KERNELS)
def test_c_without_warnings(name: str, tmp_path: Path) -> None:
    for dtype in ("f64", "f32"):
        source = hyad.compile(hyad.model(MAP.format(name=name)), math="vector", dtype=dtype).source
        (tmp_path / "kernel.c").write_text(source, encoding="utf-8")
        strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-c", "kernel.c"]
        done = subprocess.run(["cc", *strict], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@given(st.lists(st.floats(), min_size=1, max_size=40))
def test_any_sines_and_cosines(numbers: list[float]) -> None:
    x = np.array(numbers)
    for name in WAVES:
        found, expected = WATCHED[name](x), exactly(name, x).astype(float)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), ~known)
        np.testing.assert_array_max_ulp(found[known], expected[known], POINTS[name][0])


WATCHED = {name: hyad.compile(hyad.model(MAP.format(name=name)), math="vector") for name in WAVES}


def test_no_loop_is_run_again_for_what_is_no_number() -> None:
    """A missing value costs nothing: the sines beside it are not the C library's."""
    f, plain = WATCHED["sin"], hyad.compile(hyad.model(MAP.format(name="sin")))
    x = np.random.default_rng(2).uniform(-1e6, 1e6, 4000)
    own = f(x)
    assert (own != plain(x)).any()
    for missing in (np.nan, np.inf, -np.inf):
        y = np.r_[x, missing]
        assert np.isnan(f(y)[-1])
        np.testing.assert_array_equal(f(y)[:-1], own)
    np.testing.assert_array_equal(f(np.r_[x, 2 * FAR]), plain(np.r_[x, 2 * FAR]))


def test_a_loop_is_run_again_from_its_start() -> None:
    """By the C library's functions, all of it, where one argument is too large: to the bit the plain build."""
    text = "(fn [#^ (Vec n) x #^ Real z] (fold (fn [s a] (+ s (* (sin a) (cos a)))) z x))"
    plain = hyad.compile(hyad.model(text))
    f = hyad.compile(hyad.model(text), math="vector", without="calls-first")
    x = np.linspace(-30, 30, 1001)
    assert body(f).count("hyad_sin(") == 1 and "start" in body(f)
    assert f(x, 0.25) == pytest.approx(plain(x, 0.25), rel=1e-13) and "far" not in plain.source
    for at in (0, 500, 1000):
        y = x.copy()
        y[at] = 3e300
        assert f(y, 0.25) == plain(y, 0.25)


@pytest.mark.parametrize(
    "text",
    [
        "(fn [#^ (Vec n) x] (ifold (fn [s i] (+ (sin s) (get x i))) 0.3 (len x)))",  # waits for the iteration before
        "(fn [#^ (Vec n) x] (ifold (fn [v i] (update v i (* 2 (sin (get v i))))) x (- (len x) 1)))",
        "(fn [#^ (Vec n) x] (sin (get x 0)))",  # one call
    ],
)
def test_where_the_library_is_called(text: str) -> None:
    f, plain = hyad.compile(hyad.model(text), math="vector"), hyad.compile(hyad.model(text))
    x = np.linspace(-3, 3, 23)
    assert "hyad_sin" not in f.source
    np.testing.assert_array_equal(f(x), plain(x))


def test_threads() -> None:
    f = hyad.model("(fn [#^ (Vec n) x] (map (fn [a] (* (sin a) (exp (cos a)))) x))")
    own = hyad.compile(f, math="vector", threads=2)
    x = np.linspace(-9, 9, 50_001)
    assert "reduction(|:far)" in own.source
    np.testing.assert_allclose(own(x), f(x), rtol=1e-14)
    x[40_000] = 1e17
    np.testing.assert_allclose(own(x), f(x), rtol=1e-14)


ARM = """(fn [#^ (Vec 5) q] (+ (* (sin (get q 0)) (cos (get q 1))) (* (cos (get q 2)) (sin (get q 3)))
  (sin (+ (get q 4) (cos (get q 0))))))"""


def test_calls_side_by_side() -> None:
    f = hyad.model(ARM)
    own = hyad.compile(f, math="vector")
    assert set(CALLS) == set(KERNELS)
    assert "= {" in body(own) and body(own).count("hyad_sin(") == body(own).count("hyad_cos(") == 1
    assert body(own).count(" sin(") == 2  # of a cosine: alone, as it was, and in the loop that is run again
    q = np.array([0.3, -1.2, 2.2, 0.7, 5.0])
    assert own(q) == pytest.approx(f(q), rel=1e-15)
    for special in (1e9, -1e300):
        far = np.where(np.arange(5) == 2, special, q)
        assert own(far) == f(far)
    assert np.isnan(own(np.where(np.arange(5) == 3, np.inf, q)))
    loops = [type(x.op) is Loop for x in f.optimised(f.specs((q,))).body.binds]
    assert not any(loops), "a plain build is what it was"


def test_one_number_stays_alone() -> None:
    f = hyad.compile(hyad.model("(fn [#^ Real x #^ Real y] (* y (sin x) (cos x)))"), math="vector")
    assert LEAST == 2 and "hyad_" not in f.source
    off = hyad.compile(hyad.model(ARM), math="vector", without="abreast")
    assert "hyad_" not in off.source


def test_calls_that_need_each_other() -> None:
    """Sines of exponentials and exponentials of sines: no loop waits for itself."""
    text = """(fn [#^ (Vec 6) v]
      (let [a (sin (get v 0))  b (exp a)  c (exp (get v 1))  d (sin c)  e (sin (get v 2))  g (exp (get v 3))
            h (sin (get v 4))  k (exp (get v 5))  l (sin k)  m (exp h)  n (sin g)  o (exp e)]
        (+ (* a b) (* c d) (* e g) (* h k) (* l m) (* n o))))"""
    f, v = hyad.model(text), np.array([0.1, -0.3, 0.9, 0.4, -0.8, 0.2])
    own = hyad.compile(f, math="vector")
    assert body(own).count("hyad_sin(") == 2 and body(own).count("hyad_exp(") == 2
    assert own(v) == pytest.approx(f(v), rel=1e-14)
    gradient = hyad.compile(hyad.grad(f), math="vector")
    np.testing.assert_allclose(gradient(v), hyad.grad(f)(v), rtol=1e-13)


def test_derivatives() -> None:
    """Of loops, of straight-line code and of both, against mpmath's differences."""
    text = "(fn [#^ (Vec n) x] (fold (fn [s a] (+ s (* (sin (* 3 a)) (cos (* a a)) (tan (/ a 4))))) 0.0 x))"
    x = np.linspace(-2.5, 2.9, 17)
    own = hyad.compile(hyad.grad(hyad.model(text)), math="vector")
    assert "hyad_cos(&far" in own.source

    def term(a):
        return mpmath.sin(3 * a) * mpmath.cos(a * a) * mpmath.tan(a / 4)

    with mpmath.workdps(40):
        expected = [float(mpmath.diff(term, a)) for a in x]
    np.testing.assert_allclose(own(x), expected, rtol=1e-13, atol=1e-15)
    jacobian = hyad.compile(hyad.hessian(hyad.model(ARM)), math="vector")
    q = np.array([0.3, -1.2, 2.2, 0.7, 5.0])

    def arm(*q):
        return (
            mpmath.sin(q[0]) * mpmath.cos(q[1])
            + mpmath.cos(q[2]) * mpmath.sin(q[3])
            + mpmath.sin(q[4] + mpmath.cos(q[0]))
        )

    with mpmath.workdps(40):
        orders = [[tuple((k == i) + (k == j) for k in range(5)) for j in range(5)] for i in range(5)]
        expected = [[float(mpmath.diff(arm, tuple(q), n)) for n in row] for row in orders]
    np.testing.assert_allclose(jacobian(q), expected, rtol=1e-13, atol=1e-15)


def test_what_is_made_of_them() -> None:
    text = "(fn [#^ (Vec n) v] (fold (fn [s a] (+ s (sigmoid a) (* a (tanh a)))) 0.0 v))"
    f, v = hyad.model(text), np.linspace(-3, 3, 11)
    own = hyad.compile(hyad.grad(f), math="vector")
    assert "hyad_sigmoid" in own.source and " exp(" not in body(own)
    np.testing.assert_allclose(own(v), hyad.grad(f)(v), rtol=1e-14)


def test_several_results() -> None:
    """The stub has functions of its own."""
    f = hyad.model("(fn [#^ Real x #^ Real y #^ (Vec n) v] #((exp x) (* x (sin y) (sin x)) (map tanh v) (map tan v)))")
    given = 0.3, 0.7, np.linspace(-1, 1, 5)
    for got, expected in zip(hyad.compile(f, math="vector")(*given), f(*given)):
        np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_functions_that_recur_have_it_too() -> None:
    go = "(fn [y k] (if (= k 0) (sum y) (+ (sum (map exp y)) (go (map (fn [a] (/ a 2)) y) (- k 1)))))"
    f = hyad.model(f"(fn [#^ (Vec m) x #^ Int n] (letrec [go {go}] (* 2.0 (go x n))))")
    own, x = hyad.compile(f, math="vector"), np.linspace(0.1, 1.0, 9)
    assert "hyad_exp(" in own.source
    assert own(x, 5) == pytest.approx(f(x, 5), rel=1e-14)


def test_one_number_after_the_other_is_for_the_c_library() -> None:
    """Its functions are quicker outside of loops, in loops that wait for the iteration before, and around loops."""
    text = """(fn [#^ Real x #^ (Vec n) v] #((log (+ 2.0 x)) (fold (fn [s a] (log (+ 3.0 s a))) x v)
      (map (fn [a] (log (fold (fn [s b] (+ s (log (+ 2.0 a b)))) 1.0 v))) v)))"""
    own = hyad.compile(hyad.model(text), math="vector")
    calls = re.findall(r"\b(hyad_log|log)\(", own.source.partition("arrays, row-major")[2])
    assert sorted(calls) == ["hyad_log", "log", "log", "log"]


@pytest.mark.parametrize(
    "options", [{"math": "wild"}, {"math": "vector", "target": "cuda"}, {"math": "vector", "target": "python"}]
)
def test_where_there_is_none(options: dict) -> None:
    with pytest.raises(ModelTypeError):
        hyad.compile(hyad.model("(fn [x] (exp x))"), **options)


def test_emitted(tmp_path) -> None:
    source, _ = hyad.emit(hyad.model(MAP.format(name="exp")), tmp_path / "f.c", math="vector")
    assert "hyad_exp(x[i])" in source.read_text()


LOOPS = [
    # adds to an array at every element, and elsewhere
    """(fn [#^ (Vec n) x #^ Real k] (ifold (fn [v i] (add-at (add-at v i (* k (sin (* 3 (get x i))))) 0
      (cos (get x i)))) (zeros-like x) (len x)))""",
    # a gradient that does
    """(grad (fn [#^ (Vec n) x #^ Real k] (ifold (fn [s i] (+ s (* k (ifold (fn [t j]
      (+ t (cos (- (get x j) (get x i))))) 0.0 (len x))))) 0.0 (len x))))""",
    # two additions to one sum
    "(fn [#^ (Vec n) x #^ Real k] (ifold (fn [s i] (+ s (* k (sin (get x i))) (cos (get x i)))) 0.5 (len x)))",
    # a sum and a product of two functions' values
    """(fn [#^ (Vec n) x #^ Real k] (let [r (ifold (fn [s i] #((+ (fst s) (exp (* k (get x i))))
      (* (snd s) (tanh (+ 2 (sin (get x i))))))) #(0.0 1.0) (len x))] (+ (fst r) (snd r))))""",
    # steps that are done in place
    """(fn [#^ (Vec n) x #^ Real k] (fst (ifold (fn [s t] (let [o (map (fn [a b] (- b (* k (sin a)))) (fst s) (snd s))]
      #((map (fn [a b] (+ a (* 0.1 b))) (fst s) o) o))) #(x x) 7)))""",
]


@pytest.mark.parametrize("text", LOOPS)
@pytest.mark.parametrize("n", [0, 1, 3, 8, 31, 32, 33, 100])
def test_sines_before_stores(text: str, n: int) -> None:
    f = compiled_twice(text)
    x = np.linspace(-2, 9, n)
    plain, own = f
    assert re.search(r"hyad_(sin|cos)\(&far", own.source)
    np.testing.assert_allclose(own(x, 0.3), plain(x, 0.3), rtol=1e-13, atol=1e-13)
    for at in (0, n - 1) if n else ():
        far = x.copy()
        far[at] = 1e200
        np.testing.assert_allclose(own(far, 0.3), plain(far, 0.3), rtol=1e-12, atol=1e-13)


@functools.cache
def compiled_twice(text: str) -> tuple:
    args = (np.zeros(3), 1.0)
    f = hyad.grad(hyad.model(text[6:-1]), wrt="x") if text.startswith("(grad ") else hyad.model(text)
    return hyad.compile(f, args=args), hyad.compile(f, args=args, math="vector")


def test_calls_stay_where_a_loop_only_stores() -> None:
    f = hyad.model("(fn [#^ (Vec n) x] (map (fn [a] (* a (sin a) (exp a))) x))")
    own = hyad.compile(f, math="vector")
    assert "tile" not in own.source
    off = hyad.compile(hyad.model(LOOPS[2]), math="vector", without="calls-first")
    assert "tile" not in off.source and "tile" in compiled_twice(LOOPS[2])[1].source
