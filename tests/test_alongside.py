"""States that are computed again where they are read, four side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hyad
from hyad.core import Arr, Program, all_binds

LLSQ = Path(__file__).parent / "bench" / "problems" / "llsq.hy"

#: A polynomial, and what stands in place of its power's step.
POLYNOMIAL = """(fn [#^ (Vec m) x #^ (Vec n) t]
  (ifold (fn [s i]
           (let [v (fst (fold (fn [sp a] #((+ (fst sp) (* a (snd sp))) STEP)) #(0.0 1.0) x))]
             (+ s (* v v (get t i)))))
         0.0 (len t)))"""
STEPS = {
    "powers": ("(* (snd sp) (get t i))", True),
    "multiples": ("(+ (snd sp) (get t i))", True),
    "a dear step": ("(sin (* (snd sp) (get t i)))", False),
    "a step that reads an array": ("(* (snd sp) a)", False),
}


def model(step: str) -> hyad.Model:
    return hyad.model(POLYNOMIAL.replace("STEP", step), namespace={})


def stacks(program: Program) -> int:
    """How many arrays a program makes, by the names of their sizes."""
    return sum(isinstance(v.type, Arr) for x in all_binds(program.body) for v in x.vars)


@pytest.mark.parametrize("what", STEPS)
def test_cheap_states_are_computed_again_and_dear_ones_remembered(what: str) -> None:
    step, again = STEPS[what]
    f = hyad.grad(model(step), wrt="x")
    for off in ((), ("eights",)):
        assert ("alongside" in hyad.explain(f, without=off).fired()) == again
    eights, four, plain = (hyad.compile(f, without=off) for off in ((), "eights", ("eights", "alongside")))
    for m in (0, 1, 3, 8):
        for n in (0, 1, 4, 7, 13):
            rng = np.random.default_rng(m)
            x, t = rng.standard_normal(m), rng.standard_normal(n)
            assert np.array_equal(four(x, t), plain(x, t)), (m, n)
            np.testing.assert_allclose(eights(x, t), plain(x, t), rtol=1e-13, atol=1e-13)


def test_no_number_is_not_lost() -> None:
    f = hyad.grad(model("(* (snd sp) (get t i))"), wrt="x")
    made, plain = (hyad.compile(f, without=("eights", *off)) for off in ((), ("alongside",)))
    x, t = np.array([1.0, 2.0, -0.0]), np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, 1.0])
    for k in range(len(t)):
        assert np.array_equal(made(x, np.roll(t, k)), plain(x, np.roll(t, k)), equal_nan=True)


def test_least_squares_remember_no_row() -> None:
    f = hyad.grad(hyad.load(LLSQ).llsq, wrt="x")
    one, more = (hyad.stages(f, without=off)["optimised"].program for off in ("eights", ("eights", "alongside")))
    assert "work" not in hyad.compile(f).cfunction.source and stacks(one) < stacks(more)
