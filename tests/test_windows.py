"""Adjoints of long windows: one number that is added to many elements in a row is taken for each element instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import oracle

#: What is summed of each window of x that begins at i, and whether all of its elements get the same number.
WINDOWS = {
    "a running mean": ("(square (- (/ (sum (slice x i (+ i 20))) 20.0) 0.3))", True),
    "every third one": ("(sin (sum (build 12 (fn [k] (get x (+ i (* 3 k)))))))", True),
    "from the end": ("(sin (sum (build 25 (fn [k] (get x (+ i (- 24 k)))))))", True),
    "of another array, too": ("(* (get y i) (sin (sum (slice x i (+ i 20)))))", True),
    "the same for all": ("(+ (get y i) (sum (slice x i (+ i 20))))", False),
    "a filter": ("(square (sum (build 20 (fn [k] (* (get x (+ i k)) (exp (* -0.1 k)))))))", False),
    "a product": ("(square (sum (build 20 (fn [k] (* (get x (+ i k)) (get y i) k)))))", False),
}


def windows(name: str) -> Any:
    width = 36
    return hyad.model(
        f"(fn [#^ (Vec n) x #^ (Vec n) y] (sum (build (max 0 (- n {width})) (fn [i] {WINDOWS[name][0]}))))",
        namespace={},
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("name", WINDOWS)
def test_the_adjoint_of_windows(name: str, target: str) -> None:
    """For any number of windows: none, fewer than a window has elements, more."""
    f = windows(name)
    gradient, plain = (
        hyad.compile(hyad.grad(f, wrt=("x", "y")), args=(np.ones(40), np.ones(40)), target=target, without=w)
        for w in ((), "shifts")
    )
    rng = np.random.default_rng(8)
    for n in (0, 36, 37, 40, 90):
        x, y = rng.normal(size=n), rng.normal(size=n)
        assert oracle.mismatch(hyad.run(hyad.grad(f, wrt=("x", "y")), x, y), gradient(x, y), 1e-12) is None
        np.testing.assert_allclose(gradient(x, y)[0], plain(x, y)[0], rtol=1e-13, atol=1e-14)
    assert hyad.check_grad(f, (x, y), wrt=("x", "y"))


@pytest.mark.parametrize("name", WINDOWS)
def test_each_element_is_stored_once(name: str) -> None:
    source = hyad.compile(hyad.grad(windows(name), wrt="x"), args=(np.ones(40), np.ones(40))).source
    assert ("padded[" in source) == WINDOWS[name][1]
    scattered = [line for line in source.splitlines() if line.lstrip().startswith("out[i") and "+=" in line]
    assert len(scattered) < 3 if WINDOWS[name][1] else len(scattered) >= 3


def test_a_window_with_a_nan_spoils_its_elements_alone() -> None:
    f = hyad.compile(hyad.grad(windows("a running mean"), wrt="x"), args=(np.ones(40), np.ones(40)))
    x = np.random.default_rng(9).normal(size=90)
    x[60] = np.inf
    with np.errstate(all="ignore"):
        got = f(x, x)
    bad = ~np.isfinite(got)  # the elements of the windows that have the 60th
    assert bad[60 - 19 : 54 + 19].all() and not bad[: 60 - 19].any() and not bad[54 + 19 :].any()
