"""Sums of lagged products, as slices, as masks or by hand, side by side; their adjoints in loops of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import INT, REAL, ZERO, Arr, Bind, Block, If, Loop, Prim, Var, all_binds
from hyad.passes.overlaps import adds_of

#: The product sums of a series with itself, ``m`` places on.
LAGS = {
    "slices": "(fn [k] (sum (* (slice e k n) (slice e 0 (- n k)))))",
    "by hand": "(fn [k] (sum (build (max 0 (- n k)) (fn [t] (* (get e t) (get e (+ t k)))))))",
    "mask": "(fn [k] (sum (build n (fn [t] (if (< (+ t k) n) (* (get e t) (get e (+ t k))) 0.0)))))",
    "mask first": "(fn [k] (sum (build n (fn [t] (if (< t k) 0.0 (* (get e t) (get e (- t k))))))))",
}


def model(name: str, count: str) -> hyad.Model:
    text = f"""(fn [#^ (Vec n) e #^ Int m] (let [gamma {LAGS[name]}]
      (sum (build {count} (fn [k] (* (/ 1.0 (+ k 1.0)) (square (gamma k))))))))"""
    return hyad.model(text, namespace={})


def by_numpy(e: np.ndarray, m: int) -> tuple[float, np.ndarray]:
    value, gradient, n = 0.0, np.zeros_like(e), len(e)
    for k in range(m):
        gamma = sum(e[t] * e[t + k] for t in range(n - k))
        value += gamma**2 / (k + 1)
        for t in range(n - k):
            gradient[t] += 2 * gamma / (k + 1) * e[t + k]
            gradient[t + k] += 2 * gamma / (k + 1) * e[t]
    return value, gradient


def adds_in(f: Any) -> list[int]:
    """How many additions to elements each innermost loop makes."""
    loops = [x.op for x in all_binds(f.program.body) if type(x.op) is Loop]
    inner = [loop for loop in loops if not any(type(x.op) is Loop for x in loop.body.binds)]
    return [sum(type(x.op) is Prim and x.op.name == "add-at" for x in loop.body.binds) for loop in inner]


@pytest.mark.some(6)
@pytest.mark.parametrize("name", LAGS)
@pytest.mark.parametrize("count", ["m", "9"])
def test_lagged_products(name: str, count: str) -> None:
    """Also where the lags are longer than the series."""
    f = model(name, count)
    point = np.ones(20), 9
    value, gradient = hyad.compile(f, args=point), hyad.compile(hyad.grad(f), args=point)
    plain = hyad.compile(hyad.grad(f), "python", args=point, without=("overlaps", "jam", "split", "unroll"))
    for n in (0, 1, 3, 7, 8, 9, 10, 12, 20, 33):
        if name == "slices" and n < 9:
            continue  # an index may not be beyond the end
        e = np.sin(1.0 + np.arange(n))
        m = 9 if count == "9" else min(n + 1, 9)
        expected = by_numpy(e, m)
        np.testing.assert_allclose(value(e, m), expected[0], rtol=1e-13)
        np.testing.assert_allclose(gradient(e, m), expected[1], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(plain(e, m), expected[1], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["slices", "by hand", "mask"])
def test_each_loop_of_the_adjoint_adds_to_one_place(name: str) -> None:
    gradient, point = hyad.grad(model(name, "m")), (np.ones(20), 9)
    assert max(adds_in(hyad.compile(gradient, args=point))) == 1
    assert max(adds_in(hyad.compile(gradient, args=point, without="overlaps"))) == 2


@pytest.mark.parametrize("name", LAGS)
def test_the_sums_are_taken_four_at_a_time(name: str) -> None:
    """None of them adds zeros on the other side of its mask, and as many lags as are known are not as many loops."""
    sums = hyad.compile(model(name, "20"), args=(np.ones(40), 20), without="growing-sums")
    loops = [x.op for x in all_binds(sums.program.body) if type(x.op) is Loop]
    assert any(len(loop.accs) == 4 for loop in loops) and len(loops) <= 8
    fired = hyad.explain(model(name, "20"), args=(np.ones(40), 20)).fired()
    assert ("growing-sums" in fired) == (name != "mask first")  # else the sums of all lags lie in a row
    assert not any(type(x.op) is If for x in all_binds(sums.program.body))
    assert "+= 0.0" not in sums.source


def test_numbers_that_the_terms_share_have_a_sum_of_their_own() -> None:
    """The mean, that is subtracted from both factors: in one loop it would keep both additions waiting."""
    f = hyad.model("""(fn [#^ (Vec n) x #^ Real p]
      (let [m (* p (/ (sum x) n))
            c (fn [l] (sum (build (- n l) (fn [i] (* (- (get x i) m) (- (get x (+ i l)) m))))))]
        (sum (build 6 (fn [l] (square (c (+ l 1))))))))""")
    x = np.sin(1.0 + np.arange(23))
    g = hyad.compile(hyad.grad(f), args=(x, 0.9))
    inner = [x.op for x in all_binds(g.program.body) if type(x.op) is Loop]
    adding = [loop for loop in inner if any(type(y.op) is Prim and y.op.name == "add-at" for y in loop.body.binds)]
    assert max(adds_in(g)) == 1
    assert all(len(loop.accs) == 1 for loop in adding if not any(type(y.op) is Loop for y in loop.body.binds))
    for n in (6, 7, 12, 23):
        hyad.check_grad(f, (x[:n], 0.9))
        made, plain = g(x[:n], 0.9), hyad.compile(hyad.grad(f), args=(x, 0.9), without="overlaps")(x[:n], 0.9)
        for one, other in zip(made, plain):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "term",
    [
        "(* (get e t) (get e (+ t 3)))",  # gathered, as their distance is known
        "(* (get e t) (get e (* 2 t)))",  # one of them moves on by two
        "(sin (* (get e t) (get e (+ t k))))",  # the call would be made twice
    ],
)
def test_what_stays_one_loop(term: str) -> None:
    text = f"""(fn [#^ (Vec n) e #^ Int m]
      (sum (build m (fn [k] (square (sum (build (// (- n k) 4) (fn [t] {term}))))))))"""
    f = hyad.model(text, namespace={})
    point = [np.linspace(0.2, 0.9, 16), 4]
    found = hyad.explain(hyad.grad(f), args=point)
    assert "overlaps" not in {step.name for step in found.steps}
    assert hyad.check_grad(f, point)


@pytest.mark.parametrize("alone", [True, False])
def test_numbers_that_the_additions_read_stay_with_them(alone: bool) -> None:
    """As ``s``, the sum of all elements so far, where that is what is added."""
    n, i, x, y = Var("n", INT), Var("i", INT), Var("x", REAL), Var("y", REAL)
    array, after, s, more = Var("a", Arr(REAL, (n,))), Var("a", Arr(REAL, (n,))), Var("s", REAL), Var("s", REAL)
    binds = (
        Bind((x,), Prim("get", (Var("v", Arr(REAL, (n,))), i))),
        Bind((more,), Prim("+", (s, x)), soft=True),
        Bind((y,), Prim("*", (x, x if alone else more))),
        Bind((after,), Prim("add-at", (array, i, y)), soft=True),
    )
    loop = Loop(n, i, (Var("z", array.type), ZERO), (array, s), Block(binds, (after, more)))
    assert [x.vars[0] for x in adds_of(loop)] == ([after] if alone else [])


def test_a_sum_that_starts_at_less_than_zero_keeps_its_zeros() -> None:
    """-0.0 plus 0.0 is 0.0."""
    text = """(fn [#^ (Vec n) v #^ Int m] (build n (fn [k]
      (ifold (fn [s t] (+ s (if (< t m) (* (get v k) (get v t)) 0.0))) -0.0 n))))"""
    f, v = hyad.compile(hyad.model(text, namespace={}), args=(np.ones(3), 0)), np.array([-0.0, -0.0, -0.0, 1.0])
    assert "split" in {step.name for step in hyad.explain(hyad.model(text, namespace={}), args=(v, 0)).steps}
    assert not np.signbit(f(v, 0)).any()
    assert np.signbit(f(v[::-1].copy(), 4)).tolist() == [False] * 4
