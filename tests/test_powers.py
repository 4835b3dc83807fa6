"""Twos and halves of derivatives are moved out of products and sums until they cancel."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import hyad
from hyad.core import Const, Prim, all_binds
from hyad.program.counts import work

X = np.array([0.7, -1.3, 2.1])


def scalings(program) -> int:
    """Products with a power of two, and changes of sign."""
    found = 0
    for x in all_binds(program.body):
        if type(x.op) is Prim and x.op.name == "neg":
            found += 1
        elif type(x.op) is Prim and x.op.name == "*" and type(x.op.args[0]) is Const:
            found += x.op.args[0].value in (2.0, 0.5, -2.0, -0.5, 4.0, 0.25)
    return found


PROGRAMS = {
    "an inverse distance": "(/ 1.0 (sqrt (+ (* a a) (* b b) 1.0)))",
    "of a root": "(sqrt (+ (* a a) (* (- a b) (- a b)) (sqrt (+ c (* a a)))))",
    "a square of a root": "(* a (square (sqrt (+ 3.0 (* b b)))) (sqrt (+ 3.0 c)))",
    "a chosen one": "(let [r (sqrt (+ 4.0 (* a b)))] (if (> a b) (* r r a) (- (* r b) (/ c r))))",
    "in a loop": "(ifold (fn [s i] (sqrt (+ 4.0 (* s s) (* a s)))) (* a b c) 40)",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("operator", [hyad.grad, hyad.hessian])
def test_derivatives(name: str, operator) -> None:
    """The same to the last bit, by no more work."""
    text = f"(fn [#^ (Vec 3) x] (let [a (get x 0) b (get x 1) c (get x 2)] {PROGRAMS[name]}))"
    f = operator(hyad.model(text, namespace={}))
    off = "common-factors"  # which takes other brackets where twos are gone
    made, plain = (hyad.compile(f, args=(X,), target="python", without=w) for w in (off, (off, "powers-of-two")))
    assert work(made.program.body) <= work(plain.program.body)
    for x in (X, X[::-1].copy(), np.array([1e-3, 4e2, 3.0])):
        np.testing.assert_array_equal(made(x), plain(x))


def test_they_cancel() -> None:
    """The half of a root's derivative, and the two of a square's."""
    f = hyad.grad(hyad.model("(fn [#^ Real a #^ Real b] (sqrt (+ (* a a) (* b b))))", namespace={}), wrt=("a", "b"))
    made, plain = (hyad.compile(f, args=(3.0, 4.0), target="python", without=w) for w in ((), "powers-of-two"))
    assert scalings(made.program) == 0 < scalings(plain.program)
    np.testing.assert_allclose(made(3.0, 4.0), (0.6, 0.8), rtol=1e-15)


def test_what_the_user_wrote_stays() -> None:
    """A user's twos and halves are nobody else's: near the largest number they decide."""
    text = "(fn [#^ Real a #^ Real b] (+ (* 0.5 (* 2.0 (* a b))) (- (* -2.0 a) (* 2.0 b))))"
    model = hyad.model(text, namespace={})
    made, plain = (hyad.compile(model, args=(1.0, 1.0), target="python", without=w) for w in ((), "powers-of-two"))
    assert str(made.program) == str(plain.program)
    value = hyad.compile(hyad.value_and_grad(model, wrt=("a", "b")), args=(1.0, 1.0), target="python")
    for a, b in ((1e308, -1e308), (0.0, -0.0), (-0.0, 0.0), (1.5e308, 1.0)):
        np.testing.assert_array_equal(np.signbit(value(a, b)[0]), np.signbit(model(a, b)))
        np.testing.assert_array_equal(value(a, b)[0], model(a, b))


@pytest.mark.parametrize(
    "text",
    ["(fn [#^ (Vec n) r] (sum (** r 1.5)))", "(fn [#^ (Vec n) r] (sum (map (fn [x] (** (+ 1.0 (* x x)) 1.5)) r)))"],
)
def test_a_power_of_one_half_in_a_derivative_is_a_square_root(text: str) -> None:
    """Before ``roots``, which makes products of others."""
    made = hyad.compile(hyad.grad(hyad.model(text)), args=(np.ones(3),), without="roots").source
    assert len(re.findall(r"(?<!double )\bsqrt\(", made)) == 1 and "pow(" not in made


def test_the_square_root_of_a_derivative_at_its_edges() -> None:
    """At zeros of either sign and inf what the power is, below 0 NaN as the value is; at -inf NaN, too."""
    f = hyad.model("(fn [x] (** x 1.5))")
    first, second = hyad.grad(f), hyad.grad(hyad.grad(f))
    for x, one, two in [
        (0.0, 0.0, math.inf),
        (-0.0, 0.0, math.inf),
        (math.inf, math.inf, 0.0),
        (4.0, 3.0, 0.375),
        (-4.0, math.nan, math.nan),
        (-math.inf, math.nan, math.nan),
        (math.nan, math.nan, math.nan),
    ]:
        np.testing.assert_equal((first(x), second(x)), (one, two))
        assert math.copysign(1.0, first(x)) == 1.0 or math.isnan(one)
