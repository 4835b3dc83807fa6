"""Rows of two to four numbers, points and colours: programs with them are loops over numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad

RNG = np.random.default_rng(5)

# As in NumPy: the differences of all points, in arrays of n x n x 3.
BROADCAST = """(fn [#^ (Mat n 3) x #^ (Vec n) m eps]
  (let [d (- (expand-dims x 1) (expand-dims x 0))
        r (sqrt (+ (sum (* d d) 2) (* eps eps)))]
    (* -0.5 (sum (/ (outer m m) r)))))"""

PAIRWISE = """(fn [#^ (Mat n 3) x #^ (Vec n) m eps]
  (* -0.5 (sum (map (fn [xi mi] (sum (map (fn [xj mj] (/ (* mi mj) (sqrt (+ (sq-norm (- xi xj)) (* eps eps))))) x m)))
                    x m))))"""

# A force that the rest goes on with: what is added to n x n x 3 derivatives comes in several sums.
FORCE = """(fn [#^ (Mat n 3) x #^ (Vec n) m #^ (Mat n 3) v eps]
  (let [d (- (expand-dims x 0) (expand-dims x 1))
        r2 (+ (sum (square d) 2) (square eps))
        w (/ (expand-dims m 0) (* r2 (sqrt r2)))]
    (sum (* v (sum (* d (expand-dims w 2)) 1)))))"""


def energy(x: np.ndarray, m: np.ndarray, eps: float) -> float:
    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            total -= 0.5 * m[i] * m[j] / np.sqrt(np.sum((x[i] - x[j]) ** 2) + eps**2)
    return total


def differences(f: Any, args: list[Any], k: int, h: float = 1e-6) -> np.ndarray:
    """The gradient of a Python function by an argument, by central differences."""
    found = np.empty_like(args[k])
    for at in np.ndindex(found.shape):
        two = []
        for s in (h, -h):
            moved = args[k].copy()
            moved[at] += s
            two.append(f(*args[:k], moved, *args[k + 1 :]))
        found[at] = (two[0] - two[1]) / (2 * h)
    return found


@pytest.mark.parametrize("text", [BROADCAST, PAIRWISE])
def test_all_pairs_of_points_are_one_nest_in_lanes(text: str) -> None:
    """No array of all pairs, nothing is added at the inner index: eight points at once, whose sums are in registers."""
    f = hyad.model(text)
    gradient = hyad.compile(hyad.grad(f, wrt=(0, 1)))
    assert gradient.cfunction.workspace is None
    assert gradient.source.count("sqrt(") - gradient.source.count("double sqrt(") == 1
    assert "tile" in gradient.source and not re.search(r"x_bar\[3\*i1[^\]]*\] [-+]=", gradient.source)
    apart = hyad.compile(hyad.grad(f, wrt=(0, 1)), without=["chains", "pairs"])
    for n in (0, 1, 2, 7, 8, 17):
        args = [RNG.normal(size=(n, 3)), RNG.uniform(0.5, 2, n), 0.3]
        assert f(*args) == pytest.approx(energy(*args), rel=1e-12)
        for k, (one, two) in enumerate(zip(gradient(*args), apart(*args))):
            np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(one, differences(energy, args, k), rtol=1e-5, atol=1e-6)


def test_arrays_between_nests_are_gone_where_all_that_reads_them_joins() -> None:
    text = hyad.compile(hyad.grad(hyad.model(BROADCAST), wrt=(0, 1)), without=["chains", "follow"])
    assert "n*n" in text.cfunction.workspace
    # the largest of all comes first: what reads the array after it cannot be in the nest that makes it
    f = hyad.model("""(fn [#^ (Mat n m) x] (let [e (map (fn [r] (map exp r)) x)  top (max (map (fn [r] (max r)) e))]
                       (sum (map (fn [r] (sum (map (fn [a] (sqrt (/ a top))) r))) e))))""")
    for n, m in ((4, 3), (1, 1), (9, 17)):
        x = RNG.normal(size=(n, m))
        e = np.exp(x)
        assert f(x) == pytest.approx(np.sqrt(e / e.max()).sum(), rel=1e-13)
        assert hyad.check_grad(f, (x,))


def test_the_derivative_of_a_force_makes_no_array_of_all_pairs() -> None:
    """Three columns of a derivative are one sum over rows, whatever is added to them later."""
    f = hyad.model(FORCE)
    gradient = hyad.compile(hyad.grad(f, wrt=(0, 1, 2)))
    assert gradient.cfunction.workspace is None or "n*n" not in gradient.cfunction.workspace

    def plain(x: np.ndarray, m: np.ndarray, v: np.ndarray, eps: float) -> float:
        d = x[None] - x[:, None]
        r2 = (d**2).sum(2) + eps**2
        return float((v * (d * (m[None] / r2**1.5)[:, :, None]).sum(1)).sum())

    for n in (0, 1, 3, 9):
        args = [RNG.normal(size=(n, 3)), RNG.uniform(0.5, 2, n), RNG.normal(size=(n, 3)), 0.5]
        assert f(*args) == pytest.approx(plain(*args), rel=1e-12, abs=1e-12)
        for k, one in enumerate(gradient(*args)):
            np.testing.assert_allclose(one, differences(plain, args, k), rtol=1e-5, atol=1e-6)


def test_a_row_that_is_written_out_is_added_element_by_element() -> None:
    f = hyad.model("(fn [#^ (Mat n 3) x] (sum (map (fn [p] (norm (+ p [1.0 2.0 3.0]))) x)))")
    source = hyad.compile(hyad.grad(f)).source
    assert "memcpy" not in source and "k < 3" not in source
    x = RNG.normal(size=(5, 3))
    y = x + [1.0, 2.0, 3.0]
    np.testing.assert_allclose(hyad.grad(f)(x), y / np.linalg.norm(y, axis=1, keepdims=True), rtol=1e-13)
