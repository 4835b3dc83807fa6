"""``for``, and the names of sizes in a body: values as Python has them, compiled and define by run, and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

V, M = np.array([3.0, 1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])


def both(text: str, *args: Any) -> float:
    """The value, compiled and define by run alike."""
    f = hyad.model(text)
    value = f(*args)
    assert hyad.run(f, *args) == value
    return value


@pytest.mark.parametrize(
    "bounds", ["0", "4", "1 4", "4 1", "-2 3", "1 9 3", "1 10 3", "9 1 3", "5 -1 -1", "5 0 -2", "0 5 -2"]
)
def test_ranges_are_pythons(bounds: str) -> None:
    text = f"(fn [x] (let [s (ref x)] (for [i (range {bounds})] (set! s (+ (* 3 (deref s)) i))) (deref s)))"
    wanted = 1.0
    for i in range(*map(int, bounds.split())):
        wanted = 3 * wanted + i
    assert both(text, 1.0) == wanted


def test_bounds_that_are_known_at_the_call() -> None:
    text = "(fn [v] (let [s (ref 0.0)] (for [i (range 1 (len v))] (set! s (+ (deref s) (* i (get v i))))) (deref s)))"
    for n in range(4):
        assert both(text, V[:n]) == sum(i * V[i] for i in range(1, n))


def test_loops_inside_one_another() -> None:
    text = """(fn [m] (let [s (ref 0.0)]
      (for [i (range (len m))  j (range i)  x (get m i)] (set! s (+ (* 0.5 (deref s)) (* x (get m j 0)))))
      (deref s)))"""
    wanted = 0.0
    for i in range(3):
        for j in range(i):
            for x in M[i]:
                wanted = 0.5 * wanted + x * M[j, 0]
    assert both(text, M) == wanted


def test_arrays_and_several_arrays() -> None:
    rows = "(fn [m] (let [s (ref 0.0)] (for [r m] (set! s (+ (* 2 (deref s)) (prod r)))) (deref s)))"
    assert both(rows, M) == 4 * 2 + 2 * 12 + 35
    names = "(fn [m v] (let [s (ref 0.0)] (for [#(#(a b) x) (zip m v)] (set! s (+ (deref s) (* a x) b))) (deref s)))"
    assert both(names, M, V) == float(M[:, 0] @ V + M[:, 1].sum())


def test_an_array_with_its_indices() -> None:
    rows = """(fn [m] (let [s (ref 0.0)]
      (for [#(i #(a b)) (enumerate m 2)  #(j x) (enumerate (get m (- i 2)))] (set! s (+ (deref s) (* i a x) (* j b))))
      (deref s)))"""
    wanted = sum(i * r[0] * x + j * r[1] for i, r in enumerate(M, 2) for j, x in enumerate(r))
    assert both(rows, M) == pytest.approx(wanted, rel=1e-15)


def test_names_of_the_model_are_not_the_languages() -> None:
    text = "(fn [v] (let [range (fn [n] v)  s (ref 0.0)] (for [_ (range 7)] (set! s (+ 1 (deref s)))) (deref s)))"
    assert both(text, V) == 3.0


def test_gradients() -> None:
    f = hyad.model("""(fn [v]
      (let [w (copy v)  s (ref 0.0)]
        (for [i (range 1 (len v))] (set-at! w i (* (get v i) (sin (get w (- i 1))))))
        (for [i (range (- (len v) 1) -1 -1)] (set! s (+ (* (deref s) (deref s)) (get w i))))
        (deref s)))""")

    def value(v: np.ndarray) -> float:
        w, s = v.copy(), 0.0
        for i in range(1, len(v)):
            w[i] = v[i] * np.sin(w[i - 1])
        for x in w[::-1]:
            s = s * s + x
        return s

    for n in (1, 2, 3):
        v, h = V[:n] / 4, 1e-6
        assert f(v) == pytest.approx(value(v), rel=1e-14)
        slopes = [(value(v + h * e) - value(v - h * e)) / (2 * h) for e in np.eye(n)]
        np.testing.assert_allclose(hyad.grad(f)(v), slopes, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(hyad.run(hyad.grad(f), v), hyad.grad(f)(v), rtol=1e-13)


@pytest.mark.parametrize(
    "text, message",
    [
        ("(for [i] x)", "for takes names and what they go through"),
        ("(for [i (range 3)])", "for takes names and what they go through"),
        ("(for [i (range 3) :if x] x)", "no such clause"),
        ("(for [i (range 0 3 x)] x)", "the step of a range is written out"),
        ("(for [i (range 0 3 0)] x)", "the step of a range is written out"),
        ("(for [#(a b c) (zip [x] [x])] x)", "3 names for 2 arrays"),
        ("(for [a (enumerate [x])] x)", r"nothing binds `enumerate`(?s:.)*\(for \[#\(i x\) \(enumerate v\)\]"),
    ],
)
def test_what_is_no_for(text: str, message: str) -> None:
    with pytest.raises(hyad.HyadError, match=message):
        hyad.model(f"(fn [x] {text})")(1.0)


def test_a_size_has_its_name_in_the_body() -> None:
    text = "(fn [#^ (Mat n 2) m #^ (Arr Int k) v] (+ (* 100 n) (* 10 k) ((fn [x] (* x n)) (sum (build n (fn [i] i))))))"
    assert both(text, M, np.arange(4)) == 100 * 3 + 10 * 4 + 3 * 3


def test_what_else_has_the_name_of_a_size() -> None:
    assert both("(fn [#^ (Vec n) v n] (* n (sum v)))", V, 2.0) == 12.0
    assert both("(fn [#^ (Vec n) v] (let [n 5.0] (* n (len v))))", V) == 15.0
    assert both("(fn [#^ (Vec sum) v] (sum v))", V) == 6.0
    module: dict[str, Any] = {}
    module["n"] = hyad.model("(defmodel n [x] (* 2 x))")
    assert hyad.model("(fn [#^ (Vec n) v] (n (sum v)))", namespace=module)(V) == 12.0
    with pytest.raises(hyad.HyadError, match="nothing here binds `n`"):
        hyad.model("(fn [#^ (Vec n) v] (deriv (* n n) n))")(V)
