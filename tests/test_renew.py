"""A state of which each element is made of itself and of those after it is changed where it lies."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

N = 40  # a loop of so many is not written out
V = np.linspace(0.5, 1.0, N)

#: The next state, whether it may be written over the one before, and what it is in NumPy.
STEPS = {
    "a triangle": (
        "(build n (fn [i] (if (< (+ i t) 39) (+ (get v i) (* 0.3 (get v (+ i 1)))) 0.0)))", True,
        lambda v, t: np.where(np.arange(N) + t < 39, v + 0.3 * np.append(v[1:], 0.0), 0.0),
    ),
    "a triangle, the rest as it was": (
        "(build n (fn [i] (if (< (+ i t) 39) (+ (get v i) (* 0.3 (get v (+ i 1)))) (get v i))))", False,
        lambda v, t: np.where(np.arange(N) + t < 39, v + 0.3 * np.append(v[1:], 0.0), v),
    ),
    "the one before": (
        "(build n (fn [i] (if (and (> i 0) (< i 39)) (+ (get v i) (* 0.3 (get v (- i 1)))) 0.0)))", False,
        lambda v, t: np.where((np.arange(N) > 0) & (np.arange(N) < 39), v + 0.3 * np.append(0.0, v[:-1]), 0.0),
    ),
    "the last one, read before": (
        "(build n (fn [i] (if (< (+ i t) 39) (* (get v i) (get v 39)) 1.5)))", True,
        lambda v, t: np.where(np.arange(N) + t < 39, v * v[39], 1.5),
    ),
    "backwards": (
        "(build n (fn [i] (if (< (+ i t) 39) (get v (- 39 i)) 1.5)))", False,
        lambda v, t: np.where(np.arange(N) + t < 39, v[::-1], 1.5),
    ),
}  # fmt: skip
LOOP = "(fn [#^ (Vec 40) v] (let [n (len v)] (ifold (fn [v t] {step}) v 39)))"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("target", ["c", "python"])
def test_states(name: str, target: str) -> None:
    step, over, numpy = STEPS[name]
    model = hyad.model(LOOP.format(step=step), namespace={})
    expected = V.copy()
    for t in range(39):
        expected = numpy(expected, t)
    made, plain = (hyad.compile(model, args=(V,), target=target, without=w) for w in ((), "renew"))
    np.testing.assert_allclose(made(V), expected, rtol=1e-14)
    np.testing.assert_array_equal(made(V), plain(V))
    np.testing.assert_array_equal(V, np.linspace(0.5, 1.0, N))
    if target == "c":
        assert (made.cfunction.source != plain.cfunction.source) == over


def test_no_state_is_copied() -> None:
    """The tree of an option: one array, which shrinks."""
    text = (
        "(fn [#^ (Vec q) w] (map (fn [x] (get (ifold (fn [v t] (build 40 (fn [i] (if (< (+ i t) 39)"
        " (max (* x (real i)) (+ (get v i) (* 0.3 (get v (+ i 1))))) 0.0))))"
        " (build 40 (fn [i] (* x (real i)))) 39) 0)) w))"
    )
    model = hyad.model(text, namespace={})
    source = hyad.compile(model, args=(V,)).cfunction.source
    assert "memcpy" not in source and "memcpy" in hyad.compile(model, args=(V,), without="renew").cfunction.source
    np.testing.assert_array_equal(model(V), hyad.compile(model, args=(V,), without="renew")(V))


def test_what_is_remembered_is_the_state_before() -> None:
    """Reverse mode stacks the states: each as it was."""
    step, _, numpy = STEPS["a triangle"]
    text = LOOP.format(step=step.replace("(* 0.3 (get", "(* 0.3 (get v i) (get"))
    f = hyad.grad(hyad.model(f"(fn [v] (sum ({text} v)))", namespace={}))
    made, plain = (hyad.compile(f, args=(V,), without=w) for w in ((), "renew"))
    small = V / 50  # so that the states stay finite
    for v in (V, small):
        np.testing.assert_array_equal(made(v), plain(v))
    assert hyad.check_grad(hyad.model(f"(fn [v] (sum ({text} v)))", namespace={}), [small])


def test_two_states_that_read_each_other() -> None:
    text = """(fn [#^ (Vec 40) v #^ (Vec 40) w] (let [#(a b) (ifold (fn [s t] (let [#(a b) s]
      #((build 40 (fn [i] (if (< (+ i t) 39) (+ (get a i) (get b (+ i 1))) 0.5)))
        (build 40 (fn [i] (if (< (+ i t) 39) (* 0.3 (+ (get b i) (get a (+ i 1)))) 0.0)))))) #(v w) 39)]
      (+ (sum a) (* 2.0 (sum b)))))"""
    model = hyad.model(text, namespace={})
    a, b, i = V.copy(), V[::-1].copy(), np.arange(N)
    for t in range(39):
        a, b = (
            np.where(i + t < 39, a + np.append(b[1:], 0.0), 0.5),
            np.where(i + t < 39, 0.3 * (b + np.append(a[1:], 0.0)), 0.0),
        )
    for target in ("c", "python"):
        made = hyad.compile(model, args=(V, V), target=target)
        np.testing.assert_allclose(made(V, V[::-1].copy()), a.sum() + 2.0 * b.sum(), rtol=1e-13)


#: A step changes one row of the state; the gradient takes the row's adjoint and puts zeros in its place.
BY_ROWS = """(fn [#^ (Mat n m) w #^ (Mat n m) h #^ Int t]
  (sum (ifold (fn [h k] (ifold (fn [h i]
         (update h i (map (fn [a b] (* b (tanh (* a b)))) (get w i) (get h i)))) h (len w))) h t)))"""


def test_a_row_that_is_read_once_more_is_put_aside() -> None:
    w, h = np.linspace(-1.0, 1.0, 12).reshape(4, 3), np.cos(np.arange(12.0)).reshape(4, 3)
    f = hyad.grad(BY_ROWS, wrt=("w", "h"))
    made, whole = (hyad.compile(f, args=(w, h, 3), without=off) for off in ((), "put-aside"))
    for got, wanted in zip(made(w, h, 3), whole(w, h, 3)):
        np.testing.assert_allclose(got, wanted, rtol=1e-14)
    assert hyad.check_grad(BY_ROWS, (w, h, 3))
    matrices = [g.source.count("(size_t)(n*m)*sizeof(double)") for g in (made, whole)]
    assert matrices[0] < matrices[1] and "swap" not in made.source and "swap" in whole.source


def test_an_array_of_which_other_rows_are_read_stays_as_it_was() -> None:
    """The row of the next iteration, the row before it was changed, and the whole array, after the change."""
    text = """(fn [#^ (Mat n m) h]
  (ifold (fn [h i]
    (let [new (update h i (map (fn [a] (* 2.0 a)) (get h i)))
          old (fold + 0.0 (get h (% (+ i {}) (len h))))]
      (map (fn [row] (map (fn [a] (+ a old)) row)) new))) h (len h)))"""
    h = np.arange(12.0).reshape(4, 3)
    for shift in (0, 1):
        wanted = h.copy()
        for i in range(4):
            old = wanted[(i + shift) % 4].sum()
            wanted[i] *= 2
            wanted = wanted + old
        for target in ("c", "python"):
            np.testing.assert_allclose(hyad.compile(text.format(shift), target=target)(h), wanted, rtol=1e-14)
