"""Hessians of sums over pairs: for each direction the pairs of one body, not all pairs."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import oracle

#: Energies of n bodies, in one dimension or three.
ENERGIES = {
    "build": "(fn [#^ (Vec n) x] (sum (build [n n] (fn [i j] (exp (- (square (- (get x i) (get x j)))))))))",
    "broadcast": "(fn [#^ (Vec n) x] (sum (exp (- (square (- (expand-dims x 1) x))))))",
    "pairs once": """(fn [#^ (Vec n) x]
      (let [e (ref 0.0)]
        (for [i (range n)]
          (for [j (range i)]
            (set! e (+ (deref e) (log (+ 1.0 (square (- (get x i) (get x j)))))))))
        (deref e)))""",
    "sines of products": "(fn [#^ (Vec n) x] (sum (build [n n] (fn [i j] (sin (* (get x i) (get x j)))))))",
    "with the next one": """(fn [#^ (Vec n) x]
      (let [e (ref 0.0)]
        (for [i (range n)  k (range n)]
          (when (< (+ k 1) n) (set! e (+ (deref e) (exp (* 0.3 (get x i) (get x (+ k 1))))))))
        (deref e)))""",
    "in three dimensions": """(fn [#^ (Mat n 3) x]
      (let [e (ref 0.0)]
        (for [i (range n)  j (range i)]
          (let [d (- (get x i) (get x j))  q (/ 1.0 (** (+ 0.1 (dot d d)) 3))]
            (set! e (+ (deref e) (* 4.0 (- (* q q) q))))))
        (deref e)))""",
    "upper triangle": """(fn [#^ (Mat n 3) x]
      (let [d (- (expand-dims x 1) (expand-dims x 0))  q (/ 1.0 (** (+ 0.1 (np.sum (** d 2) :axis -1)) 3))]
        (np.sum (np.triu (* 4.0 (- (* q q) q)) 1))))""",
    "all but oneself": """(fn [#^ (Mat n 3) x]
      (* 0.5 (sum (build [n n] (fn [i j]
        (if (= i j) 0.0
          (let [q (/ 1.0 (** (+ 0.1 (sq-norm (- (get x i) (get x j)))) 3))] (* 4.0 (- (* q q) q)))))))))""",
}


def hessian(name: str) -> hyad.Model:
    return hyad.hessian(hyad.model(ENERGIES[name], namespace={}))


def point(name: str, n: int) -> np.ndarray:
    shape = (n, 3) if "Mat" in ENERGIES[name] else n
    return np.random.default_rng(n).uniform(0.2, 2.5, shape)


@pytest.mark.some(6)
@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("name", ENERGIES)
def test_hessians_of_sums_over_pairs(name: str, target: str) -> None:
    h = hessian(name)
    made = hyad.compile(h, target=target, args=(point(name, 2),))
    apart = hyad.compile(h, target=target, args=(point(name, 2),), without="unswitch")
    for n in (0, 1, 2, 3, 7):
        x = point(name, n)
        want = hyad.run(h, x)
        assert oracle.mismatch(want, made(x), 1e-11) is None
        assert oracle.mismatch(apart(x), made(x), 1e-11) is None


@pytest.mark.parametrize("name", ENERGIES)
def test_which_are_moved_under_a_test(name: str) -> None:
    assert "unswitch" in hyad.explain(hessian(name), args=(point(name, 3),)).fired()


def test_rows_that_are_sums_of_products_are_left() -> None:
    """The Hessian of a function of a product with a matrix needs no test, and its loops go in vectors."""
    f = hyad.model("(fn [#^ (Vec n) x #^ (Mat n n) a] (exp (dot x (sin (@ a x)))))", namespace={})
    x = np.ones(3)
    assert "unswitch" not in hyad.explain(hyad.hessian(f, "x"), args=(x, np.eye(3))).fired()


def test_a_quadratic_form_by_sums_takes_as_long_as_its_hessian_is_large() -> None:
    """Its loops over rows and columns are one row, and one element of each other row."""
    f = hyad.model(
        """(fn [#^ (Vec n) x #^ (Mat n n) a]
          (exp (sum (build n (fn [i] (* (get x i) (sum (build n (fn [j] (* (get a i j) (get x j)))))))))))""",
        namespace={},
    )
    rng = np.random.default_rng(2)
    made = hyad.compile(hyad.hessian(f, "x"))
    for n in (1, 2, 6):
        x, a = rng.uniform(0.1, 0.5, n), rng.uniform(0.1, 0.5, (n, n))
        both = a + a.T
        want = np.exp(x @ a @ x) * (both + np.outer(both @ x, both @ x))
        np.testing.assert_allclose(made(x, a), want, rtol=1e-12)
    assert "unswitch" in hyad.explain(hyad.hessian(f, "x"), args=(x, a)).fired()
