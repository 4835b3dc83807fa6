"""Linear algebra: what its programs do not do."""

from __future__ import annotations

import numpy as np

import hyad


def test_rows_in_the_other_order_are_not_stored() -> None:
    """A matrix of which each element is read once, the last row first, is computed where it is read."""
    text = """(fn [#^ (Vec n) u #^ (Vec n) v]
      (let [n (len u)  m (build [n n] (fn [i j] (+ (* (get u i) (get v j)) (/ (get v i) (get u j)))))]
        (ifold (fn [w t]
            (let [i (- n (+ t 1))]
              (ifold (fn [w j] (update w j (- (* 0.5 (get w j)) (* (get w i) (get m i j))))) w n)))
          v n)))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(4)
    u, v = rng.uniform(1, 2, 9), rng.normal(size=9)
    made, plain = (hyad.compile(f, without=w).cfunction.workspace for w in ((), "fuse"))
    assert not made and "n*n" in plain
    m, w = np.outer(u, v) + np.outer(v, 1 / u), v.copy()
    for i in range(8, -1, -1):
        for j in range(9):
            w[j] = 0.5 * w[j] - w[i] * m[i, j]
    np.testing.assert_allclose(hyad.compile(f)(u, v), w, rtol=1e-12)
