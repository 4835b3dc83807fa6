"""Exponentials in derivatives whose exponents differ by a logarithm are one call."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Prim, all_binds

NORMAL = "(fn [x] (* 0.5 (+ 1.0 (erf (/ x (sqrt 2.0))))))"
CALL = f"""(let [normal {NORMAL} spread (* v (sqrt t))
  d (/ (+ (log (/ s k)) (* (+ 0.03 (* 0.5 v v)) t)) spread)]
  (- (* s (normal d)) (* k (exp (* -0.03 t)) (normal (- d spread)))))"""
#: The same in other words.
PUT = f"""(let [normal {NORMAL} root (sqrt t)
  d1 (/ (+ (log s) (- (log k)) (* (+ 0.03 (/ (* v v) 2.0)) t)) (* v root)) d2 (- d1 (* v root))]
  (- (* k (exp (- (* 0.03 t))) (normal (- d2))) (* s (normal (- d1)))))"""

#: A program of four numbers, and how many exponentials its gradient has without and with the pass.
PROGRAMS = {
    "a call": (CALL, "sv", 3, 1),
    "a put": (PUT, "sv", 3, 1),
    "a call by its strike": (CALL, "k", 3, 1),
    "another spread": (CALL.replace("0.5 v v", "0.6 v v"), "sv", 3, 3),
    "another discount": (CALL.replace("-0.03", "-0.04"), "sv", 3, 3),
    "two densities": ("(* (erf (* s v)) (erf (+ t (* k v))))", "sv", 2, 2),
}
POINTS = [(100.0, 95.0, 0.2, 0.7), (90.0, 110.0, 0.35, 2.0), (100.0, 100.0, 0.1, 0.25)]


def model(text: str) -> hyad.Model:
    body = (
        text.replace("(let [", "(let [s (get ss i) ", 1) if text.startswith("(let") else f"(let [s (get ss i)] {text})"
    )
    each = f"(build (len ss) (fn [i] (let [v (get vs i)] {body})))"
    return hyad.model(f"(fn [#^ (Vec n) ss #^ (Vec n) vs #^ Real k #^ Real t] (sum {each}))", namespace={})


def calls(program) -> int:
    return sum(type(x.op) is Prim and x.op.name == "exp" for x in all_binds(program.body))


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_fewer_exponentials(name: str) -> None:
    text, by, before, after = PROGRAMS[name]
    wrt = ("ss", "vs") if by == "sv" else "k"
    f = hyad.grad(model(text), wrt=wrt)
    s, v = np.array([p[0] for p in POINTS]), np.array([p[2] for p in POINTS])
    for _, k, _, t in POINTS:
        args = (s, v, k, t)
        made, plain = (memoised.compile(f, args=args, target="python", without=w) for w in ((), "exponents"))
        found, expected = (np.concatenate([np.ravel(x) for x in np.atleast_1d(g(*args))]) for g in (made, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    assert (calls(plain.program), calls(made.program)) == (before, after)
    assert hyad.check_grad(model(text), list(args), wrt=wrt)


def test_delta_is_a_probability() -> None:
    """What an option's price changes by its hedge cancels: the gradient by the spot is the distribution alone."""
    f = hyad.grad(model(CALL), wrt="ss")
    args = (np.array([100.0]), np.array([0.2]), 95.0, 0.7)
    program = hyad.compile(f, args=args, target="python").program
    assert calls(program) == 0


def test_the_value_stays() -> None:
    """The exponentials of the value are the user's, and nothing else is put in their place."""
    args = (np.array([100.0, 90.0]), np.array([0.2, 0.3]), 95.0, 0.7)
    text = "(* s (exp (* v k)) (exp (- (log s) (* v k))))"
    for target in ("python", "c"):
        both = hyad.compile(hyad.value_and_grad(model(CALL), wrt=("ss", "vs")), args=args, target="python")
        assert both(*args)[0] == hyad.compile(model(CALL), args=args, target="python", without="exponents")(*args)
        made, plain = (hyad.compile(model(text), args=args, target=target, without=w) for w in ((), "exponents"))
        assert made(*args) == plain(*args)
