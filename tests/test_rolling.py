"""Long recursion whose course is known, as loops over tables: when it is made, that values and derivatives are those of
the straight-line code, and that what differs too much or takes too long is left as it is."""

from __future__ import annotations

import itertools
from collections import Counter

import mpmath
import numpy as np
import pytest

import hyad
import hyad.passes.rolling
import hyad.passes.unfold
from hyad.core import Apply, Loop, Prim, all_binds
from test_fast_loops import DET

#: A vector by halves: no two calls are equal.
HALVES = """
(defmodel part [a from] (build (// (len a) 2) (fn [i] (get a (+ from i)))))
(defmodel total [a]
  (if (= (len a) 1)
    (sin (get a 0))
    (ifold (fn [s j] (+ (cos s) (* s (total (part a (* j (// (len a) 2))))))) 1.0 2)))
"""
#: A call is given what its caller has computed, and its caller goes on with what it gives.
GIVEN = """
(defmodel down [n x y]
  (if (= n 0)
    (* x y)
    (ifold (fn [u k] (+ (* 0.5 u) (down (- n 1) (sin (+ u x)) y))) y 2)))
"""
HALF = "(defmodel half [a j] (build (// (len a) 2) (fn [i] (get a (+ (* 2 i) j)))))"
#: Calls give arrays: of their own numbers, and of what other calls give, in another order.
PAIRS = """
(defmodel f [a]
  (if (= (len a) 1)
    [(exp (get a 0)) 2.0]
    (ifold (fn [v j] (let [p (f (half a j))] [(+ (* 0.5 (get v 1)) (get p 0)) (* (get v 0) (get p 1))])) [1.0 2.0] 2)))
"""
ORDERED = """
(defmodel f [a]
  (if (= (len a) 1)
    (map exp a)
    (ifold (fn [v j]
             (let [p (f (half a j))]
               (build (len a) (fn [i] (if (= (// i (// (len a) 2)) j) (get p (% i (// (len a) 2))) (get v i))))))
           a 2)))
"""


def pairs(a):
    if len(a) == 1:
        return np.array([np.exp(a[0]), 2.0])
    v = [1.0, 2.0]
    for p in (pairs(a[::2]), pairs(a[1::2])):
        v = [0.5 * v[1] + p[0], v[0] * p[1]]
    return np.array(v)


def ordered(a):
    return np.exp(a) if len(a) == 1 else np.concatenate([ordered(a[::2]), ordered(a[1::2])])


@pytest.fixture
def short(monkeypatch) -> None:
    """Loops from 40 operations on."""
    monkeypatch.setattr(hyad.passes.unfold, "long", lambda again: (40, 12_000))


def model(text: str, tmp_path, name: str = "whole"):
    path = tmp_path / "models.hy"
    path.write_text(text)
    return getattr(hyad.load(path), name)


def count(f, kind: type = Prim) -> int:
    return sum(type(b.op) is kind for b in all_binds(f.optimised(f.specs()).body))


def both(f, *args):
    """What a model gives with loops, and without."""
    return hyad.compile(f, target="c")(*args), hyad.compile(f, target="c", without="rolling")(*args)


def test_minors_of_large_matrices_are_loops(tmp_path) -> None:
    det = model(f"{DET}(defmodel whole [#^ (Mat 9 9) a] (det a))", tmp_path)
    kinds = Counter(type(b.op) for b in all_binds(det.optimised(det.specs()).body))
    assert kinds[Apply] == 0 and 3 <= kinds[Loop] < 9 and kinds[Prim] < 1000
    a = np.random.default_rng(9).normal(size=(9, 9))
    compiled = hyad.compile(hyad.grad(det), target="c")
    assert len(compiled.cfunction.source) < 40_000
    np.testing.assert_allclose(compiled(a), np.linalg.det(a) * np.linalg.inv(a).T, rtol=1e-9, atol=1e-10)


def test_rounding_is_that_of_the_calls(short, tmp_path) -> None:
    """Each sum has its terms in the order of the user's loop: the value is the same to the last bit."""
    det = model(f"{DET}(defmodel whole [#^ (Mat 6 6) a] (det a))", tmp_path)
    a = np.random.default_rng(6).normal(size=(6, 6))
    assert "rolling" in hyad.explain(det).fired()
    with_it, without = both(det, a)
    assert with_it == without == naive(a)
    np.testing.assert_allclose(*both(hyad.grad(det), a), rtol=1e-13)
    tangent = hyad.jvp(det, (a,), (np.cos(a),))
    assert tangent == pytest.approx(np.sum(hyad.grad(det)(a) * np.cos(a)), rel=1e-12)


def naive(a: np.ndarray) -> float:
    if len(a) == 1:
        return a[0, 0]
    s = 0.0
    for j in range(len(a)):
        term = a[0, j] * naive(np.delete(a[1:], j, axis=1))
        s = s - term if j % 2 else s + term
    return s


def test_second_derivatives(short, tmp_path) -> None:
    """By hand: the derivative by two entries is the determinant without their rows and columns, with a sign."""
    det = model(f"{DET}(defmodel whole [#^ (Mat 5 5) a] (det a))", tmp_path)
    a = np.random.default_rng(5).normal(size=(5, 5))
    hessian = hyad.hessian(det)(a)
    for i, j, k, m in itertools.product(range(5), repeat=4):
        want = 0.0
        if i != k and j != m:
            rest = np.delete(np.delete(a, (i, k), axis=0), (j, m), axis=1)
            want = (-1) ** (i + j + k + m) * (1 if (i < k) == (j < m) else -1) * np.linalg.det(rest)
        assert hessian[i, j, k, m] == pytest.approx(want, rel=1e-9, abs=1e-11)


def differences(f, x: np.ndarray) -> np.ndarray:
    """The gradient of a function of mpmath's numbers, by central differences in 50 digits."""
    with mpmath.workdps(50):
        point, h = [mpmath.mpf(float(v)) for v in x], mpmath.mpf(10) ** -15
        out = []
        for k in range(len(point)):
            up, down = ([*point[:k], point[k] + s * h, *point[k + 1 :]] for s in (1, -1))
            out.append(float((f(up) - f(down)) / (2 * h)))
    return np.array(out)


def total(a):
    if len(a) == 1:
        return mpmath.sin(a[0])
    h, s = len(a) // 2, mpmath.mpf(1)
    for part in (a[:h], a[h:]):
        s = mpmath.cos(s) + s * total(part)
    return s


def test_calls_that_do_alike_are_loops_although_none_are_equal(tmp_path) -> None:
    f = model(f"{HALVES}(defmodel whole [#^ (Vec 512) a] (total a))", tmp_path)
    assert count(f, Apply) == 0 and count(f, Loop) >= 3 and count(f) < 400
    x = np.random.default_rng(2).normal(size=512)
    with mpmath.workdps(50):
        assert f(x) == pytest.approx(float(total([mpmath.mpf(float(v)) for v in x])), rel=1e-13)
    g = hyad.grad(f)(x)
    at = [0, 100, 511]
    want = differences(lambda v: total(placed(x, at, v)), x[at])
    np.testing.assert_allclose(g[at], want, rtol=1e-11)


def placed(x: np.ndarray, at: list[int], values: list) -> list:
    out = [mpmath.mpf(float(v)) for v in x]
    for k, v in zip(at, values):
        out[k] = v
    return out


def down(n, x, y):
    if n == 0:
        return x * y
    u = y
    for _ in range(2):
        u = u / 2 + down(n - 1, mpmath.sin(u + x), y)
    return u


def test_calls_that_are_given_what_their_callers_compute(short, tmp_path) -> None:
    """A caller's operations before a call and after it are two pieces: no loop needs what it makes."""
    f = model(f"{GIVEN}(defmodel whole [#^ (Vec 2) v] (down 6 (get v 0) (get v 1)))", tmp_path)
    x = np.array([0.3, -0.7])
    np.testing.assert_allclose(*both(f, x), rtol=1e-13)
    np.testing.assert_allclose(*both(hyad.grad(f), x), rtol=1e-12)
    np.testing.assert_allclose(hyad.grad(f)(x), differences(lambda v: down(6, *v), x), rtol=1e-11)


@pytest.mark.parametrize("text, same", [(PAIRS, pairs), (ORDERED, ordered)])
def test_results_that_are_arrays(text: str, same, short, tmp_path) -> None:
    f = model(f"{HALF}{text}(defmodel whole [#^ (Vec 64) a] (f a))", tmp_path)
    assert "rolling" in hyad.explain(f).fired()
    x = np.random.default_rng(3).normal(size=64)
    np.testing.assert_allclose(hyad.compile(f, target="c")(x), same(x), rtol=1e-13)
    steps = [same(x + 1e-40j * row).imag / 1e-40 for row in np.eye(len(x))]
    np.testing.assert_allclose(hyad.jacobian(f)(x), np.transpose(steps), rtol=1e-12)


def test_special_values(short, tmp_path) -> None:
    det = model(f"{DET}(defmodel whole [#^ (Mat 6 6) a] (det a))", tmp_path)
    for special in (np.nan, np.inf, -0.0):
        a = np.random.default_rng(4).normal(size=(6, 6))
        a[2, 3] = special
        np.testing.assert_array_equal(*both(det, a))
    zeros = -np.zeros((6, 6))
    one, other = both(det, zeros)
    assert one == other == 0 and np.signbit(one) == np.signbit(other)


def test_in_a_loop_and_in_a_branch(short, tmp_path) -> None:
    text = f"""{DET}
    (defmodel whole [#^ (Vec m) x  #^ (Mat 5 5) a]
      (ifold (fn [s i] (if (> (get x i) 0.0) (+ s (* (get x i) (det (map (fn [row] (map (fn [e] (+ e s)) row)) a)))) s))
             0.0 (len x)))"""
    f = model(text, tmp_path)
    rng = np.random.default_rng(8)
    x, a = np.array([0.01, -1.0, 0.02]), rng.normal(size=(5, 5))
    for g in (f, hyad.grad(f)):
        one, other = both(g, x, a)
        for p, q in zip(one, other) if isinstance(one, tuple) else [(one, other)]:
            np.testing.assert_allclose(p, q, rtol=1e-12)


@pytest.mark.parametrize("off", ["rolling", "unfold"])
def test_can_be_switched_off(off: str, short, tmp_path) -> None:
    det = model(f"{DET}(defmodel whole [#^ (Mat 5 5) a] (det a))", tmp_path)
    assert "rolling" not in hyad.explain(det, without=off).fired()


def test_what_is_too_long_is_left_and_said(monkeypatch, tmp_path) -> None:
    """No more than so many operations, or iterations, are run to find out."""
    monkeypatch.setattr(hyad.passes.rolling, "NODES", 1000)
    det = model(f"{DET}(defmodel whole [#^ (Mat 9 9) a] (det a))", tmp_path)
    assert count(det, Apply) == 1
    assert "too-long" in hyad.explain(det).fired()
    monkeypatch.setattr(hyad.passes.rolling, "NODES", 60_000)
    monkeypatch.setattr(hyad.passes.rolling, "TURNS", 1000)
    assert "too-long" in hyad.explain(det).fired()


def test_a_choice_that_a_real_makes_is_left(short, tmp_path) -> None:
    text = "(defmodel f [n x] (if (= n 0) x (if (< x 1.0) (f (- n 1) (* 2.0 x)) (* x (f (- n 1) (/ x 2.0))))))"
    f = model(f"{text}(defmodel whole [#^ Real x] (f 50 x))", tmp_path)
    assert count(f, Apply) == 1


def test_a_check_that_fails_is_not_lost(short, tmp_path) -> None:
    text = "(defmodel f [n a] (if (= n 0) (get a 0) (* (get a n) (+ (f (- n 1) a) (sin (get a (- n 1)))))))"
    f = model(f"{text}(defmodel whole [#^ (Vec 30) a] (f 30 a))", tmp_path)
    with pytest.raises(hyad.HyadError):
        hyad.compile(f, target="c")(np.ones(30))
