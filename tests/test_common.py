"""What terms of a derivative's sum have in common is multiplied once, and several directions share the bracket."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy

import hyad
from hyad.core import Loop, Prim, Program, all_binds

GARCH = """(fn [mu omega alpha beta r]
  (let [h (ref (/ omega (- 1.0 alpha beta)))
        sum (ref 0.0)]
    (for [x r]
      (let [e (- x mu)]
        (set! sum (- (deref sum) (* 0.5 (+ (log (deref h)) (/ (* e e) (deref h))))))
        (set! h (+ omega (* alpha e e) (* beta (deref h))))))
    (deref sum)))"""


def operations(program: Program | Loop) -> int:
    reals = (x for x in all_binds(program.body) if type(x.op) is Prim and str(x.vars[0].type) == "Real")
    return sum(x.op.name in ("+", "-", "*", "/", "neg") for x in reals)  # type: ignore[union-attr]


def both(f: Any, *args: Any, name: str = "common-factors") -> tuple[Any, Any]:
    return tuple(hyad.compile(f, args=args, target="python", without=w) for w in ((), name))  # type: ignore[arg-type]


def test_tangents_in_four_directions_share_a_bracket() -> None:
    """A GARCH(1, 1) likelihood: its derivative by the state, times four tangents; one division, as by hand."""
    f = hyad.grad(hyad.model(GARCH, namespace={}), ("mu", "omega", "alpha", "beta"))
    args = 0.1, 0.2, 0.1, 0.7, np.random.default_rng(1).normal(size=9)
    made, plain = both(f, *args)
    (loop,), (plain_loop,) = ([x.op for x in all_binds(f.program.body) if type(x.op) is Loop] for f in (made, plain))
    assert sum(x.op.name == "/" for x in loop.body.binds if type(x.op) is Prim) == 1
    assert operations(loop) <= 32 < operations(plain_loop) - 8
    symbols = sympy.symbols("mu omega alpha beta")
    mu, omega, alpha, beta = symbols
    h, total = omega / (1 - alpha - beta), sympy.Integer(0)
    for x in map(sympy.Rational, map(Fraction, args[4].tolist())):
        total -= (sympy.log(h) + (x - mu) ** 2 / h) / 2
        h = omega + alpha * (x - mu) ** 2 + beta * h
    at = {s: sympy.Rational(Fraction(a)) for s, a in zip(symbols, args)}
    truth = [float(total.diff(s).subs(at).evalf(30)) for s in symbols]
    np.testing.assert_allclose(made(*args), truth, rtol=1e-13)
    np.testing.assert_allclose(hyad.compile(f, target="c", args=args)(*args), truth, rtol=1e-13)


def test_it_is_said_and_can_be_switched_off() -> None:
    f = hyad.grad(hyad.model(GARCH, namespace={}), ("mu", "omega", "alpha", "beta"))
    args = 0.1, 0.2, 0.1, 0.7, np.ones(9)
    assert "common-factors" in [step.name for step in hyad.explain(f, args=args).steps]
    assert "common-factors" not in [step.name for step in hyad.explain(f, args=args, without="common-factors").steps]


def test_a_product_that_is_there_stays() -> None:
    """``r = x y`` is read by the sine as well: it is a factor of a bracket, not ``x`` and ``y`` once more."""
    text = "(fn [#^ Real x #^ Real y #^ Real z #^ Real a] (let [r (* x y)] (* (sin r) (- (* z a) (* r a a (exp a))))))"
    made, plain = both(hyad.grad(hyad.model(text, namespace={}), "a"), 1.0, 1.0, 1.0, 1.0)
    assert operations(made.program) == 7 < operations(plain.program)
    for x, y, z, a in np.random.default_rng(5).normal(size=(20, 4)):
        wanted = np.sin(x * y) * (z - x * y * (2 * a + a * a) * np.exp(a))
        assert made(x, y, z, a) == pytest.approx(wanted, rel=1e-12)


def test_the_users_own_sums_stay() -> None:
    """To the last bit, beside their derivative."""
    text = "(fn [#^ Real x #^ Real y] (+ (* x (* y 0.3)) (* x (* y (* y 0.7)))))"
    model = hyad.model(text, namespace={})
    pair = hyad.compile(hyad.value_and_grad(model, wrt=("x", "y")), target="python")
    for x, y in np.random.default_rng(4).normal(size=(50, 2)):
        assert pair(x, y)[0] == x * (y * 0.3) + x * (y * (y * 0.7))


class Products(random.Random):
    """Draws sums of products of w, x, y and z with factors in common, as text and for SymPy."""

    def draw(self) -> tuple[str, Any]:
        text, value = "0.0", sympy.Integer(0)
        for _ in range(self.randrange(2, 6)):
            names = self.choices("wxyz", k=self.randrange(1, 4)) + self.choice([["x"], ["x", "y"], []])
            c = self.choice([-2, -1, 0.5, 1, 3])
            text = f"(+ {text} (* {c} {' '.join(names)}))"
            value += sympy.Rational(c) * sympy.prod(sympy.symbols(names))
        return text, value


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(24))
def test_exactly_the_same_of_small_integers(seed: int) -> None:
    """Gradients and Hessians of integers, in which nothing is rounded."""
    draws = Products(seed)
    text, value = draws.draw()
    model = hyad.model(
        f"(fn [#^ (Vec 4) v] (let [w (get v 0) x (get v 1) y (get v 2) z (get v 3)] {text}))", namespace={}
    )
    symbols = sympy.symbols("w x y z")
    for operator, truth in (
        (hyad.grad, [value.diff(s) for s in symbols]),
        (hyad.hessian, sympy.hessian(value, symbols)),
    ):
        made, plain = both(operator(model), np.zeros(4))
        assert operations(made.program) <= operations(plain.program)
        for _ in range(4):
            at = [draws.randrange(-9, 10) for _ in symbols]
            exact = np.array([float(e.subs(dict(zip(symbols, at)))) for e in truth])
            assert np.array_equal(made(np.array(at, float)).ravel(), exact)


# ------------------------------------------------------------------------------------------ quotients of the user's

QUOTIENT = "(fn [#^ Real x #^ Real h] (- (+ (log h) (/ (* x x) h))))"


def divisions(f: Any) -> int:
    return sum(x.op.name == "/" for x in all_binds(f.program.body) if type(x.op) is Prim)


def test_a_quotient_that_is_divided_again() -> None:
    """By way of a sum: ``(1 - x x / h) / h`` takes one division."""
    model = hyad.model(QUOTIENT, namespace={})
    made = hyad.compile(hyad.grad(model, "h"), target="python")
    assert divisions(made) == 1
    for x, h in np.random.default_rng(2).uniform(0.1, 3.0, size=(20, 2)):
        assert made(x, h) == pytest.approx((x * x / h - 1) / h, rel=1e-13)
    for x, h in ((0.0, 0.0), (1.0, 0.0), (0.0, 5e-324), (np.inf, 1.0), (1.0, np.inf), (np.nan, 1.0)):
        slow = hyad.compile(hyad.grad(model, "h"), target="python", without=("reciprocals", "common-factors"))
        got, want = made(x, h), slow(x, h)
        assert np.isfinite(got) == np.isfinite(want) and (not np.isfinite(want) or got == want)


def test_a_quotient_that_is_a_result_stays() -> None:
    """To the last bit."""
    f = hyad.compile(hyad.value_and_grad(hyad.model(QUOTIENT, namespace={}), "h"), target="python")
    for x, h in np.random.default_rng(3).uniform(0.1, 3.0, size=(50, 2)):
        assert f(x, h)[0] == -(np.log(h) + x * x / h)
