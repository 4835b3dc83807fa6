"""Sparse Hessians of sums of terms that read few numbers each: the terms' own Hessians, added where they stand."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

SPRING = "(* 0.5 (square (- (sqrt (+ 0.01 (dot d d))) r)))"
#: Energies of points and springs between them, and the sizes of their elements.
ENERGIES = {
    "a loop": (
        f"""(let [s (ref 0.0)]
              (for [k (range e)]
                (let [d (- (get x (get at k 0)) (get x (get at k 1)))  r (get l k)]
                  (set! s (+ (deref s) {SPRING}))))
              (deref s))""",
        "4 x 4",
    ),
    "arrays": (
        """(let [d (- (gather x (get at #((slice None) 0))) (gather x (get at #((slice None) 1))))]
             (* 0.5 (sum (square (- (sqrt (+ 0.01 (sum (* d d) 1))) l)))))""",
        "4 x 4",
    ),
    "a map, a mean": (
        f"(mean (map (fn [a r] (let [d (- (get x (get a 0)) (get x (get a 1)))] {SPRING})) at l))", "4 x 4",
    ),
    "two kinds of terms": (
        f"""(- (/ (sum (map (fn [a r] (let [d (- (get x (get a 0)) (get x (get a 1)))] {SPRING})) at l)) (+ 1.0 e))
              (* 0.1 (sum (map (fn [p] (exp (* (get p 0) (get p 1)))) x))))""",
        "2 x 2 and 4 x 4",
    ),
    "under a condition": (
        f"""(let [s (ref 2.0)]
              (for [k (range e)]
                (let [d (- (get x (get at k 0)) (get x (get at k 1)))  r (get l k)]
                  (when (> r 0.7) (set! s (- (deref s) {SPRING})))))
              (deref s))""",
        "4 x 4",
    ),
    "one loop after the other": (
        f"""(let [s (ref 0.0)]
              (for [k (range e)]
                (let [d (- (get x (get at k 0)) (get x (get at k 1)))  r (get l k)]
                  (set! s (+ (deref s) {SPRING}))))
              (for [p x] (set! s (+ (deref s) (sin (* (get p 0) (get p 1))))))
              (deref s))""",
        "2 x 2 and 4 x 4",
    ),
    "with one of its own": (
        f"""(+ (sum (map (fn [a r] (let [d (- (get x (get a 0)) (get x (get a 1)))] {SPRING})) at l))
              (* (get x 0 0) (exp (get x 1 1))))""",
        "2 x 2 and 4 x 4",
    ),
}  # fmt: skip


def model(name: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Mat n 2) x #^ (Arr Int e 2) at #^ (Vec e) l] {ENERGIES[name][0]})", namespace={})


def net(n: int, e: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, springs between any two of them, and the springs' lengths; several between the same, some from a point to
    itself."""
    rng = np.random.default_rng(n + e)
    return rng.uniform(-1, 1, (n, 2)), rng.integers(0, n, (e, 2)), rng.uniform(0.4, 1.0, e)


def dense(f: hyad.Model, *args: np.ndarray) -> np.ndarray:
    x = args[0]
    return np.reshape(hyad.run(hyad.hessian(f, wrt=0), *args), (x.size, x.size))


@pytest.mark.some(12)
@pytest.mark.parametrize("name", ENERGIES)
def test_hessians_of_nets(name: str) -> None:
    f, size = model(name), ENERGIES[name][1]
    sparse = hyad.sparse_hessian(f, wrt=0)
    for n, e in ((9, 40), (6, 30), (14, 60)):
        args = net(n, e)
        found = sparse(*args)
        assert sparse.how(*args) == f"element Hessians of {size}"
        assert found.has_canonical_format and found.shape == (2 * n, 2 * n)
        np.testing.assert_allclose(found.toarray(), dense(f, *args), rtol=1e-12, atol=1e-12)
        again = net(n, e)[0] * 0.7
        np.testing.assert_allclose(
            sparse(again, *args[1:]).toarray(), dense(f, again, *args[1:]), rtol=1e-12, atol=1e-12
        )
    for n, e in ((2, 0), (3, 1), (2, 2)):
        args = net(n, e)
        np.testing.assert_allclose(sparse(*args).toarray(), dense(f, *args), rtol=1e-12, atol=1e-12)


def test_few_passes_stay_passes() -> None:
    """Neighbours along a chain have three colours."""
    products = "(sum (map (fn [a b] (exp (* a b))) (cut x 1 None) (cut x None -1)))"
    sparse = hyad.sparse_hessian(hyad.model(f"(fn [#^ (Vec n) x] {products})", namespace={}))
    assert sparse.how(np.ones(50)) == "3 forward passes"


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "text",
    [
        "(log (sum (map (fn [a] (exp (dot (get x (get a 0)) (get x (get a 1))))) at)))",  # no sum of terms
        "(* (get x 0 0) (sum (map (fn [a] (dot (get x (get a 0)) (get x (get a 1)))) at)))",  # a factor that moves
        "(* (floor (get x 0 0)) (sum (map (fn [a] (sin (dot (get x (get a 0)) (get x (get a 1))))) at)))",  # one by x
        """(ifold (fn [s k] (+ (* 0.5 s) (sin (dot (get x (get at k 0)) (get x (get at k 1)))))) 0.0 e)""",
        """(ifold (fn [s k] (+ s (sin (* s (get x (get at k 0) 0))))) 1.0 e)""",
        "(sum (map (fn [a] (ifold (fn [s k] (+ s (sin (get x k 0)))) 0.0 (get a 0))) at))",  # a term of any length
    ],
)
def test_what_is_no_sum_of_small_terms(text: str) -> None:
    f = hyad.model(f"(fn [#^ (Mat n 2) x #^ (Arr Int e 2) at #^ (Vec e) l] {text})", namespace={})
    sparse, args = hyad.sparse_hessian(f, wrt=0), net(6, 20)
    assert "element" not in sparse.how(*args)
    np.testing.assert_allclose(sparse(*args).toarray(), dense(f, *args), rtol=1e-11, atol=1e-11)


def test_by_two_arguments_and_an_emitted_program() -> None:
    """Places in one argument and in the other; the C is one loop for each kind of term."""
    f = hyad.model(
        """(fn [#^ (Mat n 2) x #^ (Vec m) w #^ (Arr Int e 2) at]
          (sum (map (fn [a] (* (get w (get a 1)) (exp (dot (get x (get a 0)) (get x (get a 0)))))) at)))""",
        namespace={},
    )
    rng = np.random.default_rng(3)
    x, w, at = rng.normal(size=(7, 2)), rng.normal(size=8), rng.integers(0, 7, (60, 2))
    sparse = hyad.sparse_hessian(f, wrt=("x", "w"))
    assert sparse.how(x, w, at) == "element Hessians of 3 x 3"

    blocks = hyad.run(hyad.hessian(f, wrt=("x", "w")), x, w, at)
    want = np.block([[np.reshape(b, (r, c)) for b, c in zip(row, (14, 8))] for row, r in zip(blocks, (14, 8))])
    np.testing.assert_allclose(sparse(x, w, at).toarray(), want, rtol=1e-12, atol=1e-12)
    assert "places0" in sparse.source(x, w, at)
