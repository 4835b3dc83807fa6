"""Loops that do not run, and arrays without elements: nothing of them is read or written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

#: A model of vectors v and w, and sizes of these, among which one is 0.
MODELS = {
    "a subscript by a size": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (let [b (build [n m] (fn [i j] (get w j)))  t (outer v v)]
        (for [i (range m)] (for [k (range n)] (set-at! t 0 (tanh (get b #((slice None) (min k (- m 1))))))))
        (sum (* t t))))""",
    "a remainder by a size": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (ifold (fn [s j] (+ s (* (get w j) (sum (build n (fn [i] (tanh (* (get v i) (get w (% i m)))))))))) 0.0 m))""",
    "a quotient by a size": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (ifold (fn [s j] (+ s (sum (build n (fn [i] (* (get v i) (get w (min (// i m) (- m 1))))))))) 0.0 m))""",
    "the last element": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (ifold (fn [s j] (+ s (sum (map (fn [x] (exp (* x (get w (- m 1))))) v)))) 0.0 m))""",
    "the larger of two": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (ifold (fn [s j] (+ s (sum (build n (fn [i] (sin (* (get v i) (get w (- (max 1 m) 1))))))))) 0.0 m))""",
    "rows behind a row": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (let [t (outer v v)  z (zeros n)]
        (for [i (range n)] (set-at! z (slice (+ i 1) n) (get t #((slice (+ i 1) n) i))))
        (+ (dot z v) (sum w))))""",
    "rows in an arena": """(fn [#^ (Vec n) v #^ (Vec m) w]
      (let [t (outer v v)  z (zeros n)]
        (for [i (range n)]
          (let [k (+ (% (+ i 1) n) 1)] (set-at! z (slice k n) (get t #((slice k n) 0)))))
        (dot z v)))""",
}
SIZES = [(1, 1), (2, 0), (0, 2), (0, 0), (3, 2), (5, 7)]


@pytest.mark.some(3)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_read_where_nothing_is(name: str) -> None:
    f = hyad.model(MODELS[name], namespace={})
    for made in (f, hyad.grad(f), hyad.jacobian(hyad.grad(f, wrt="v"), wrt="v")):
        compiled = hyad.compile(made, args=(np.ones(2), np.ones(2)))
        for n, m in SIZES:
            rng = np.random.default_rng(3)
            args = rng.uniform(0.5, 1.0, n), rng.uniform(0.5, 1.0, m)
            for found, wanted in zip(parts(compiled(*args)), parts(hyad.run(made, *args))):
                np.testing.assert_allclose(found, wanted, 1e-12, 1e-13)


def parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]
