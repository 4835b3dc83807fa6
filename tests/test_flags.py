"""Truth values that loops carry, and recurrences along rows, in lanes (``hyad/passes/flags.py``, ``lanes.py``)."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

#: What is carried beside a state, and what comes of it, for each row of a matrix.
FLAGS = {
    "alive": ("True", "(if (<= x 0.4) False f)", "(if f (max 0.0 (- x 0.9)) 0.0)"),
    "alive by and": ("True", "(and (> x 0.4) f)", "(if f (exp x) 0.0)"),
    "found": ("False", "(or f (> x 1.2))", "(if f (* 0.5 x) x)"),
    "found first": ("False", "(or (> x 1.2) f)", "(if (not f) x 2.0)"),
    "turned": ("True", "(if (> x 1.1) (not f) f)", "(if f x (- x))"),
    "a start that differs": ("(> (get z i 0) 0.0)", "(if (< x 0.5) False f)", "(if f x 0.0)"),
    "a choice of three": ("False", "(if (> x 1.2) True (if (< x 0.7) False f))", "(if f x 0.3)"),
}
MODELS = {
    name: f"""(fn [s v #^ (Mat n m) z]
      (sum (build n (fn [i]
        (let [r (ifold (fn [#(x f) t] (let [x (+ x s (* v (get z i t)))] #(x {step}))) #(1.0 {start}) m)
              x (fst r) f (snd r)]
          {end})))))"""
    for name, (start, step, end) in FLAGS.items()
}
MODELS["a loop that sets"] = """(fn [s v #^ (Mat n m) z]
  (let [total (ref 0.0)]
    (for [i (range n)]
      (let [x (ref 1.0) alive (ref True)]
        (for [t (range m)]
          (set! x (+ (deref x) s (* v (get z i t))))
          (when (<= (deref x) 0.4) (set! alive False)))
        (when (deref alive) (set! total (+ (deref total) (max 0.0 (- (exp (deref x)) 1.5)))))))
    (deref total)))"""
MODELS["no flag"] = """(fn [s v #^ (Mat n m) z]
  (sum (map (fn [row] (let [#(x low) (fold (fn [#(x low) e] (let [x (+ x s (* v e))] #(x (min low x)))) #(1.0 1.0) row)]
                        (if (> low 0.4) (max 0.0 (- (exp x) 1.5)) 0.0))) z)))"""


def model(name: str) -> hyad.Model:
    return hyad.model(MODELS[name], namespace={})


def point(n: int, m: int = 6) -> tuple:
    return 0.02, 0.2, np.random.default_rng(n).normal(size=(n, m))


BRANCHES = {"turned", "a choice of three"}  # in branches: these stay as they are


@pytest.mark.parametrize("name", sorted(MODELS.keys() - BRANCHES))
def test_they_go_in_lanes(name: str) -> None:
    fired = [step.name for step in hyad.explain(model(name), args=point(20)).steps]
    assert "lanes" in fired and ("flags" in fired) is (name != "no flag")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 29])
def test_values_to_the_last_bit(name: str, n: int) -> None:
    """In Python, where nothing contracts a product and a sum."""
    f, args = model(name), point(n)
    assert memoised.compile(f, "python")(*args) == memoised.compile(f, "python", without=["lanes", "flags"])(*args)
    np.testing.assert_allclose(memoised.compile(f)(*args), hyad.run(f, *args), rtol=1e-13)
    if n:
        args[2][n // 2, 3] = np.nan
        np.testing.assert_equal(
            memoised.compile(f, "python")(*args), memoised.compile(f, "python", without=["lanes", "flags"])(*args)
        )


@pytest.mark.some(10)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [1, 9, 20])
def test_gradients(name: str, n: int) -> None:
    f, args = model(name), point(n)
    for wrt in (("s", "v"), ("s", "v", "z")):
        g = hyad.grad(f, wrt=wrt)
        for one, other in zip(
            memoised.results(g, args), memoised.results(g, args, without=["lanes", "flags", "eights"])
        ):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    hyad.check_grad(f, args, wrt=("s", "v", "z"))


@pytest.mark.parametrize(
    "text",
    [
        # little is done with each element, no lanes: a flag stays one
        """(fn [#^ (Mat n m) z]
             (sum (build n (fn [i] (if (ifold (fn [f t] (or f (> (get z i t) 1.0))) False m) 1.0 0.0)))))""",
        # what the flag is made of waits for the iteration before
        """(fn [#^ (Mat n m) z] (fst (ifold (fn [#(s g) i]
             (let [r (ifold (fn [#(x f) t] (let [x (+ (* 0.5 x s) (get z i t))] #(x (or f (> x s))))) #(s g) m)] r))
             #(0.1 False) n)))""",
    ],
)
def test_left_alone(text: str) -> None:
    f = hyad.model(text, namespace={})
    z = point(20)[2]
    assert "flags" not in [step.name for step in hyad.explain(f, args=(z,)).steps]
    np.testing.assert_allclose(hyad.compile(f)(z), hyad.run(f, z), rtol=1e-13)
