"""What a loop stores and reads in the next iteration goes on as a number: the same to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

LOOPS = {
    "residuals": (
        "(let [e (copy v)] (for [t (range 1 n)] (set-at! e t (- (get w t) (* 0.4 (get e (- t 1)))))) e)", 1,
    ),
    "backwards": (
        "(let [e (copy v)] (for [t (range (- n 2) -1 -1)] (set-at! e t (- (get w t) (* 0.4 (get e (+ t 1)))))) e)", 1,
    ),
    "two arrays": (
        "(let [e (copy v) g (copy w)] (for [t (range 1 n)]"
        " (set-at! e t (- (get w t) (* 0.4 (get e (- t 1)) (get g (- t 1)))))"
        " (set-at! g t (+ (get g t) (* 0.3 (get g (- t 1)))))) (+ e g))", 2,
    ),
    "a row of a table": (
        "(let [e (outer v w)] (for [i (range 1 n)] (for [j (range 1 n)]"
        " (set-at! e i j (+ (get e (- i 1) j) (* 0.5 (get e i (- j 1))))))) e)", 1,
    ),
    "two before": (
        "(let [e (copy v)] (for [t (range 2 n)] (set-at! e t (+ (get e (- t 1)) (get e (- t 2))))) e)", 1,
    ),
    "downwards": (
        "(let [e (outer v w)] (for [i (range 1 n)] (for [j (range n)] (set-at! e i j (sin (get e (- i 1) j))))) e)", 0,
    ),
    "two stores": (
        "(let [e (copy v)] (for [t (range 1 n)] (set-at! e (- t 1) (get w t)) (set-at! e t (get e (- t 1)))) e)", 0,
    ),
    "far": ("(let [e (copy v)] (for [t (range 2 n)] (set-at! e t (* 0.5 (get e (- t 2))))) e)", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_numbers_are_handed_on(name: str) -> None:
    text, count = LOOPS[name]
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w] {text})", namespace={})
    made, plain = (hyad.compile(f, target="python", without=x) for x in ((), "carried"))
    compiled = hyad.compile(f)
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 3, 4, 9):
        v, w = rng.normal(size=(2, n))
        np.testing.assert_array_equal(made(v, w), plain(v, w))
        np.testing.assert_allclose(compiled(v, w), plain(v, w), rtol=1e-14)
    assert ("carried" in [step.name for step in hyad.explain(f, args=(v, w)).steps]) == (count > 0)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_gradient_of_a_moving_average(n: int) -> None:
    """Its tangents are three arrays in one workspace: each is handed on."""
    text = """(fn [phi theta #^ (Vec n) y]
      (let [e (zeros n)]
        (set-at! e 0 (get y 0))
        (for [t (range 1 n)]
          (set-at! e t (- (get y t) (* phi (get y (- t 1))) (* theta (get e (- t 1))))))
        (sum (** e 2))))"""
    f, y = hyad.model(text, namespace={}), np.sin(np.arange(1.0, n + 1))
    e, a, b = y.copy(), np.zeros(n), np.zeros(n)
    for t in range(1, n):
        e[t] = y[t] - 0.3 * y[t - 1] - 0.2 * e[t - 1]
        a[t] = -y[t - 1] - 0.2 * a[t - 1]
        b[t] = -e[t - 1] - 0.2 * b[t - 1]
    g = hyad.grad(f, wrt=("phi", "theta"))
    np.testing.assert_allclose(g(0.3, 0.2, y), (2 * (e * a).sum(), 2 * (e * b).sum()), rtol=1e-13, atol=1e-15)
    assert "[i] -" not in hyad.show(g, "c").partition("for (")[2].partition("}")[0]
