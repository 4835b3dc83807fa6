"""Scalar replacement: elements that a loop changes, always the same ones, are numbers; rows that each iteration
changes alone are built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import Arr, Loop, all_binds

#: What the loops in ``(let [v (copy y)] LOOPS v)`` do, y of n rows of 3, x of n numbers; how many arrays loops carry in
#: the value.
LOOPS = {
    "sums of rows": (
        """(for [i (range n)]
             (for [j (range n)]
               (let [d (- (get x j) (get x i))]
                 (set-at! v i 0 (+ (get v i 0) (* 0.1 d)))
                 (set-at! v i 1 (- (get v i 1) (sin d))))))""",
        0,
    ),
    "under a condition": (
        """(for [i (range n)]
             (for [j (range n)]
               (when (!= i j)
                 (set-at! v i 0 (+ (get v i 0) (/ 0.1 (- (get x i) (get x j)))))
                 (if (> (get x j) 0.0) (set-at! v i 1 (* 0.9 (get v i 1))) (set-at! v i 2 (get v i 0))))))""",
        0,
    ),
    "in loops of loops": (
        """(for [i (range n)]
             (for [j (range n)]
               (for [k (range 2)]
                 (set-at! v i k (+ (* 0.5 (get v i k)) (* (get x j) (get v i 2)))))))""",
        0,
    ),
    "of all rows but the last": (
        """(for [i (range (- n 1))]
             (for [j (range n)]
               (set-at! v i 0 (+ (get v i 0) (* (get x j) (get v i 1))))))""",
        1,
    ),
    "of one row": (
        """(let [m (max 0 (- n 2))]
             (for [j (range n)]
               (set-at! v 1 0 (+ (get v 1 0) (* (get x j) (get v 1 1))))
               (set-at! v 1 1 (* 1.01 (get v 1 1)))))""",
        0,
    ),
    "of two rows": (
        """(for [j (range n)]
             (set-at! v 0 0 (+ (get v 0 0) (* (get x j) (get v 1 1))))
             (set-at! v 1 1 (sin (get v 0 0))))""",
        0,
    ),
    "of rows that may be one": (
        """(for [j (range n)]
             (set-at! v a 0 (+ (get v a 0) (* (get x j) (get v b 0))))
             (set-at! v b 0 (sin (get v a 0))))""",
        1,
    ),
    "of the row before": (
        """(for [i (range 1 n)]
             (for [j (range n)]
               (set-at! v i 0 (+ (get v i 0) (* 0.3 (get x j) (get v (- i 1) 0))))))""",
        1,
    ),
    "whole rows": (
        """(for [i (range n)]
             (for [j (range n)]
               (set-at! v i 0 (+ (get v i 0) (* (get x j) (get v i 1)))))
             (set-at! v i (* 2.0 (get v i))))""",
        1,
    ),
}


def in_place(name: str) -> Any:
    text = f"""(fn [#^ (Mat n 3) y #^ (Vec n) x #^ Int a #^ Int b]
                 (let [v (copy y)] {LOOPS[name][0]} v))"""
    return hyad.model(text, namespace={})


def carried(f: Any) -> int:
    """How many matrices loops carry."""
    loops = [x.op for x in all_binds(f.program.body) if type(x.op) is Loop]
    return sum(isinstance(a.type, Arr) and a.type.rank == 2 for op in loops for a in op.accs)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", LOOPS)
def test_in_place(name: str) -> None:
    """As the model is run, and its gradient, also for rows that are one, and as without this."""
    f, rng = in_place(name), np.random.default_rng(4)
    total = hyad.model("(fn [y x a b] (sum (sin (f y x a b))))", namespace={"f": f})
    made, plain = hyad.compile(f), hyad.compile(f, without="scalar-replacement")
    gradient = hyad.compile(hyad.grad(total, wrt=("y", "x")), args=(np.ones((4, 3)), np.ones(4), 0, 1))
    for n, a, b in ((5, 1, 3), (5, 2, 2), (2, 0, 1), (9, 8, 0)):
        y, x = rng.normal(size=(n, 3)), rng.normal(size=n)
        want = hyad.run(f, y, x, a, b)
        np.testing.assert_allclose(made(y, x, a, b), want, rtol=1e-14)
        np.testing.assert_allclose(made(y, x, a, b), plain(y, x, a, b), rtol=1e-14)
        assert hyad.check_grad(total, (y, x, a, b), wrt=("y", "x"))
        run = hyad.run(hyad.grad(total, wrt=("y", "x")), y, x, a, b)
        assert oracle.mismatch(run, gradient(y, x, a, b), 1e-12) is None


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_carried(name: str) -> None:
    made = hyad.compile(in_place(name), without=["lanes", "whole-eights", "eights", "jam", "interchange"])
    assert carried(made) == LOOPS[name][1]


def test_an_element_that_is_checked() -> None:
    f = hyad.model(
        """(fn [#^ (Vec n) y #^ Int k #^ Int a]
             (let [v (copy y)]
               (for [j (range k)] (set-at! v a (+ (get v a) (sin j))))
               v))""",
        namespace={},
    )
    made = hyad.compile(f)
    assert "+= sin" in made.source and "out[a] += " not in made.source  # a number is added to
    y = np.array([1.0, 2.0])
    np.testing.assert_array_equal(made(y, 0, 1), y)
    np.testing.assert_allclose(made(y, 3, 1), [1.0, 2.0 + np.sin(1) + np.sin(2)], rtol=1e-15)
    for k, a in ((1, 7), (1, -1), (1, 2)):
        with pytest.raises(hyad.HyadError, match="outside"):
            made(y, k, a)


def test_an_element_that_is_there_only_in_some_iterations() -> None:
    """Nothing is read of it before: they know by their condition that it is there."""
    f = hyad.model(
        """(fn [#^ (Vec n) y #^ (Vec k) w]
             (let [v (copy y)]
               (for [j (range n)]
                 (when (< (+ k j) n) (set-at! v k (+ (get v k) (sin j)))))
               v))""",
        namespace={},
    )
    made = hyad.compile(f)
    assert "return" not in made.source.split("void f(")[1] and "= y[k];" not in made.source
    y = np.array([1.0, 2.0, 3.0])
    for k in (0, 1, 2, 3, 5):
        want = y.copy()
        want[k : k + 1] += np.sum(np.sin(np.arange(3 - k)))
        np.testing.assert_allclose(made(y, np.zeros(k)), want, rtol=1e-15)


def test_pulls_by_loops_take_eight_bodies_at_once() -> None:
    """As where each row is built: the outer loop carries nothing any more."""
    f = hyad.model(
        """(fn [#^ (Mat n 3) x #^ (Mat n 3) v #^ (Vec n) m]
             (let [a (copy v)]
               (for [i (range n)]
                 (for [j (range n)]
                   (when (!= i j)
                     (let [dx (- (get x j 0) (get x i 0))
                           dy (- (get x j 1) (get x i 1))
                           r2 (+ (* dx dx) (* dy dy) 0.01)
                           f (/ (get m j) (* r2 (sqrt r2)))]
                       (set-at! a i 0 (+ (get a i 0) (* f dx)))
                       (set-at! a i 1 (+ (get a i 1) (* f dy)))))))
               a))""",
        namespace={},
    )
    made = hyad.compile(f)
    assert "HYAD_LANES" in made.source and "work" not in made.source
    rng = np.random.default_rng(5)
    x, v, m = rng.normal(size=(11, 3)), rng.normal(size=(11, 3)), rng.uniform(0.1, 1, size=11)
    d = x[None, :, :2] - x[:, None, :2]
    want = v.copy()
    want[:, :2] += np.sum(m[None, :, None] * d / ((d**2).sum(2) + 0.01)[:, :, None] ** 1.5, 1)
    np.testing.assert_allclose(made(x, v, m), want, rtol=1e-12)
