"""Parts of arrays that are read where they lie before a program is differentiated."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

M, V = np.sin(1.0 + np.arange(35.0)).reshape(7, 5), np.cos(np.arange(7.0))
#: Sums of squares and products of parts, and whether each is read where it lies.
PARTS = {
    "rows": ("(let [b (get m (slice k None))] (sum (build (- n k) (fn [i] (* (get b i 0) (get b i 1))))))", True),
    "a block": ("(let [b (get m #((slice k None) (slice k None)))] (sum (* b b)))", True),
    "of a part a part": ("(let [b (get m (slice 1 None)) c (get b (slice k 4))] (dot (get c 0) (get c 1)))", True),
    "a row from the end": ("(let [r (get m k (slice 1 -1))] (dot r r))", True),
    "turned": ("(let [r (slice v k 5)] (sum (build (len r) (fn [i] (* (get r (- (len r) i 1)) (get v i))))))", True),
    "before it changes": ("""(let [a (copy m)] (for [i (range 3)]
        (let [b (get a #((slice i None) (slice i None))) s (sum (* b b))]
          (set-at! a #((slice i None) (slice i None)) (/ b (+ 1 s))))) (sum (* a a)))""", True),
    "after it has changed": ("""(let [a (copy v)] (for [i (range 3)]
        (let [b (copy (slice a i (+ i 3)))] (set-at! a i (sum b)) (set-at! a (+ i 1) (* (get b 0) (get b 1)))))
        (dot a a))""", None),
    "columns": ("(let [c (get m (slice None) k)] (dot c c))", False),
    "by an array": ("(let [b (gather m p)] (sum (* b b)))", False),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    """Their values, and derivatives by both modes and second ones, with the pass and without it."""
    body, where = PARTS[name]
    f = hyad.model(f"(fn [#^ (Mat n q) m #^ (Vec n) v #^ (Arr Int r) p #^ Int k] {body})", namespace={})
    args = M, V, np.array([3, 0, 3]), 2
    g = hyad.grad(f, wrt=(0, 1))
    made = [memoised.compile(g, args=args, **how) for how in ({}, {"without": "views"})]
    assert where is None or (made[0].source != made[1].source) == where  # type: ignore[attr-defined]
    found, plain = (h(*args) for h in made)
    for ours, theirs in zip(found, plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    assert hyad.check_grad(f, args, wrt=(0, 1))
    t = np.cos(np.arange(M.size)).reshape(M.shape)
    slope = hyad.model("(fn [m v p k t] (jvp (fn [m] (f m v p k)) m t))", namespace={"f": f})
    assert slope(*args, t) == pytest.approx(np.sum(found[0] * t), rel=1e-10, abs=1e-12)


def test_no_adjoint_of_a_part() -> None:
    """Householder's reflections by blocks: no zeros as long as the rows are cleared for the columns of each."""
    f = hyad.model(
        """(fn [#^ (Mat m n) a0] (let [a (copy a0)]
             (for [k (range n)]
               (let [x (get a #((slice k None) k)) v (update x 0 (+ (get x 0) (norm x))) b (/ 2 (dot v v))
                     B (get a #((slice k None) (slice k None)))]
                 (set-at! a #((slice k None) (slice k None)) (- B (* b (outer v (@ v B)))))))
             (sum (map (fn [i] (square (get a i i))) (arange n)))))"""
    )
    cards = [
        hyad.cost(hyad.grad(f), args=(np.ones((40, 30)),), without=off).columns["reverse"] for off in ((), "views")
    ]
    assert cards[0].stores < 0.7 * cards[1].stores
    assert hyad.check_grad(f, (np.sin(1.0 + np.arange(30.0)).reshape(6, 5),))
