"""What is moved along a ring: one division, and two loops (``hyad/passes/wraps.py``)."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

#: Programs of a matrix a of n rows and m columns, as many moves s as rows, and one move t; and whether there are loops
#: that become two, or divide before they begin.
PROGRAMS = {
    "columns": ("(build [n m] (fn [i j] (get a i (% (- j t) m))))", True),
    "rows": ("(build [n m] (fn [i j] (get a (% (+ i t) n) j)))", True),
    "roll": ("(np.roll a t :axis 1)", True),
    "each row by its own": ("(build [n m] (fn [i j] (* (get a i (% (+ j (get s i)) m)) (get a i j))))", True),
    "backwards": ("(build [n m] (fn [i j] (get a i (% (- t j) m))))", True),
    "both": ("(build [n m] (fn [i j] (get a (% (- i t) n) (% (+ j t 1) m))))", True),
    "two moves": ("(build [n m] (fn [i j] (- (get a i (% (+ j t) m)) (get a i (% (- j t) m)))))", True),
    "the same twice": ("(build [n m] (fn [i j] (* (get a i (% (+ j t) m)) (get a 0 (% (+ j t) m)))))", True),
    "a vector": ("(build m (fn [j] (get a 0 (% (- j t) m))))", True),
    "sums": ("(build n (fn [i] (sum (build m (fn [j] (* (get a i j) (get a i (% (- j t) m))))))))", True),
    "in place": (
        """(let [b (zeros [n m])]
             (for [i (range n)  j (range m)] (set-at! b i (% (+ j (get s i)) m) (square (get a i j))))
             b)""",
        True,
    ),
    "a table": ("(let [c [2 0 -1]] (build [n m] (fn [i j] (get a i (% (- j (get c (% i 3))) m)))))", None),
    "next": ("(build [n m] (fn [i j] (get a i (% (+ j 1) m))))", False),
    "of another length": ("(build [n (+ m 1)] (fn [i j] (get a i (% (- j t) m))))", False),
    "by two": ("(build [n m] (fn [i j] (get a i (% (- (* 2 j) t) m))))", False),
    "by the place": ("(build [n m] (fn [i j] (get a i (% (- j (* j t)) m))))", False),
}


def model(name: str) -> hyad.Model:
    text = f"""(fn [#^ (Mat n m) a #^ (Arr Int n) s #^ Int t]
      (let [r {PROGRAMS[name][0]}]
        (+ (sum (square r)) (sum (* 0.5 r r r)) (get (ravel r) 0))))"""
    return hyad.model(text, namespace={})


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    """Values are the same to the last bit."""
    f = model(name)
    g = hyad.grad(f, wrt="a")
    rng = np.random.default_rng(5)
    for n, m, t in ((3, 7, 2), (3, 7, -9), (4, 5, 5), (2, 1, 3), (1, 4, 0), (2, 3, 400)):
        args = rng.uniform(0.5, 1, (n, m)), rng.integers(-9, 9, n), t
        fired = PROGRAMS[name][1]
        if fired is not None:
            assert ("wraps" in hyad.explain(f, args=args).fired()) == fired
        assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        for h in (f, g):
            one, other = memoised.results(h, args), memoised.results(h, args, without=["wraps"])
            for x, y in zip(one, other):
                np.testing.assert_allclose(x, y, rtol=1e-13)
        plain = memoised.compile(f, args=args, target="python", without=["wraps"])
        assert memoised.compile(f, args=args, target="python")(*args) == plain(*args)
    hyad.check_grad(f, (rng.uniform(0.5, 1, (3, 7)), rng.integers(-9, 9, 3), 2), wrt="a")


def test_a_ring_of_nothing() -> None:
    for turned in ("(- j t)", "(- t j)"):
        text = f"(fn [#^ (Mat n m) a #^ Int t] (build [n m] (fn [i j] (get a i (% {turned} m)))))"
        f = hyad.model(text, namespace={})
        for shape in ((0, 3), (3, 0), (0, 0)):
            assert memoised.compile(f, args=(np.ones((2, 3)), 1))(np.ones(shape), 1).shape == shape
            assert hyad.compile(f, args=(np.ones((2, 3)), 1), target="python")(np.ones(shape), 1).shape == shape


def test_the_inner_loops_have_no_division() -> None:
    for name in ("columns", "backwards", "sums"):
        f = model(name)
        text = hyad.show(f, "c", args=(np.ones((3, 7)), np.ones(3, int), 2))
        assert text.count("hyad_imod(") == 2  # what it is, and before the loops
        assert " ? " not in text.split("*/")[-1]
