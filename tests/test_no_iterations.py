"""Loops whose count is negative, as that of ``(- n 5)`` at n = 3, do not run: not in parts either."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

BODIES = {
    "a sum": "(ifold (fn [s i] (+ s (* (get v i) (get w (+ i 5))))) 0.0 (- n 5))",
    "sums of rows": "(sum (build n (fn [i] (ifold (fn [s j] (+ s (* (get m i j) (get v j)))) 1.0 (- n 5)))))",
    "sums of columns": """(sum (square (build n (fn [j] (ifold (fn [s i] (+ s (* (get m i j) (get v i)))) 1.0
                                                        (- n 5))))))""",
    "a triangle": "(ifold (fn [s i] (+ s (ifold (fn [t j] (+ t (* (get v j) (get w i)))) 0.0 (- i 2)))) 0.0 n)",
    "the largest": "(ifold (fn [s i] (max s (* (get v i) (get w i)))) 0.1 (- n 12))",
    "a recurrence of each row": """(sum (build n (fn [i] (ifold (fn [s j] (tanh (+ (* (get w i) s) (get m i j)))) x
                                                          (- n 9)))))""",
    "products with rows": "(ifold (fn [s i] (+ s (dot (get m i) v))) 0.0 (- n 9))",
    "rows that are added": "(sum (square (ifold (fn [u i] (+ u (* (get v i) (get m i)))) w (- n 9))))",
    "calls": "(ifold (fn [s i] (+ s (exp (* x (get v i))))) 0.0 (- n 9))",
    "two loops": """(ifold (fn [s i] (ifold (fn [t j] (+ t (* (get v i) (get w j) (get m i j)))) s (- n 9))) 0.0
                           (- n 7))""",
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", BODIES)
def test_none_is_none(name: str) -> None:
    f = hyad.model(f"(fn [#^ Real x #^ (Vec n) v #^ (Vec n) w #^ (Mat n n) m] {BODIES[name]})", namespace={})
    g = hyad.grad(f, wrt=("x", "v", "w", "m"))
    for derived, options in ((f, {}), (g, {}), (g, {"math": "vector"}), (g, {"threads": 2})):
        made = hyad.compile(derived, **options)
        for n in (0, 1, 3, 4, 6, 8, 13, 22):
            rng = np.random.default_rng(n)
            args = (0.3, rng.normal(size=n), rng.normal(size=n), rng.normal(size=(n, n)))
            got, wanted = (x if isinstance(x, tuple) else (x,) for x in (made(*args), hyad.run(derived, *args)))
            for a, b in zip(got, wanted):
                np.testing.assert_allclose(a, np.reshape(b, np.shape(a)), rtol=1e-11, atol=1e-12, err_msg=str(n))


def test_what_stands_in_a_loop_over_no_elements_reads_none() -> None:
    """The sum over the other loop is the same in each iteration, but its element, found by turns, is there only if the
    loop around has been entered."""
    text = """(fn [v w] (ifold (fn [p i]
      (* p (cos (ifold (fn [s a]
        (+ s (ifold (fn [t b] (if (= a b) t (+ t (get w (% 1 (len w)))))) 0.0 (len v)))) 0.0 (len v)))))
        1.0 (len w)))"""
    for f in (hyad.model(text, namespace={}), hyad.value_and_grad(text, wrt=("v", "w"))):
        made = [hyad.compile(f, args=(np.ones(4), np.ones(2)), target=target) for target in ("c", "python")]
        for n in (0, 1, 2, 3):
            args = np.ones(4), np.arange(0.1, n)
            value = np.cos(12 * args[1][1 % n]) ** n if n else 1.0
            for g in made:
                got = g(*args)
                assert (got[0] if isinstance(got, tuple) else got) == pytest.approx(value, rel=1e-13)
