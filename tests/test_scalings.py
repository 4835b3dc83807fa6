"""Terms of a derivative's sums that have the same constant are multiplied by it once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Block, Const, Prim, Program, all_binds, with_body
from hyad.passes.scalings import scalings
from hyad.plain_python import python_callable

X = np.array([0.7, -1.3, 2.1])


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec 3) x] (let [a (get x 0) b (get x 1) c (get x 2)] {text}))", namespace={})


def both(f: Any, *args: Any) -> tuple[Any, Any]:
    return tuple(
        hyad.compile(f, args=args, target="python", without=w)
        for w in (("common-factors",), ("common-factors", "scalings"))
    )  # type: ignore


def constants(program: Program) -> int:
    """Products with a constant."""
    found = (x.op for x in all_binds(program.body) if type(x.op) is Prim and x.op.name == "*")
    return sum(type(op.args[0]) is Const for op in found)


def fires(f: Any) -> bool:
    return "scalings" in [step.name for step in hyad.explain(f, args=(X,)).steps]


#: Tangents of user's sums with constants: what is differentiated, and products with constants without and with it.
PROGRAMS = {
    "the same twice": ("(+ (* 0.1 (sin a) b) (* 0.1 (sin b) c))", True),
    "behind a bracket": ("(+ (* 0.3 (+ (* 3.0 a (sin b)) (* 3.0 (exp a) c))) (* a b c))", True),
    "a constant in a product": ("(* (+ (* 3.0 a b) (* 3.0 (sin c))) (* 0.7 (+ (* b c) (* 0.2 (exp a)))))", True),
    "none": ("(+ (* (sin a) b) (* (sin b) c))", False),
    "a single one": ("(* 0.1 (sin a) (cos b))", False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tangents(name: str) -> None:
    """The same to rounding with fewer products, and as differences say."""
    text, fewer = PROGRAMS[name]
    f = model(text)
    tangent = hyad.model("(fn [#^ (Vec 3) x #^ (Vec 3) v] (jvp f x v))", namespace={"f": f})
    made, plain = both(tangent, X, X)
    assert (constants(made.program) < constants(plain.program)) == fewer
    for x, v in np.random.default_rng(1).normal(size=(20, 2, 3)):
        np.testing.assert_allclose(made(x, v), plain(x, v), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(made(x, v), (f(x + 1e-6 * v) - f(x - 1e-6 * v)) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("operator", [hyad.grad, hyad.hessian])
def test_gradients(name: str, operator: Any) -> None:
    f = model(PROGRAMS[name][0])
    made, plain = both(operator(f), X)
    np.testing.assert_allclose(made(X), plain(X), rtol=1e-13, atol=1e-14)
    below = f if operator is hyad.grad else hyad.grad(f)
    steps = [(np.asarray(below(X + h)) - np.asarray(below(X - h))) / 2e-5 for h in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(made(X), np.stack(steps), rtol=1e-6, atol=1e-7)


def test_a_field_of_force() -> None:
    """A step of a particle, differentiated: one product with 0.1, and one with three of it, for each coordinate."""
    text = """(fn [#^ (Vec 2) x #^ (Vec 2) v #^ (Vec 2) dx]
      (let [potential (fn [p] (/ 1.0 (sqrt (+ (* (get p 0) (get p 0)) (* (get p 1) (get p 1))))))
            step (fn [p] (let [g (vjp potential p 1.0)] [(- (get v 0) (* 0.1 (get g 0))) (- (get v 1) (* 0.1 (get g 1)))]))]
        (jvp step x dx)))"""  # fmt: skip # noqa: E501
    f = hyad.model(text, namespace={})
    args = tuple(np.random.default_rng(2).normal(size=(3, 2)))
    made, plain = both(f, *args)
    assert constants(made.program) < constants(plain.program)
    for x, v, dx in np.random.default_rng(3).normal(size=(20, 3, 2)):
        r = np.hypot(*x)
        expected = 0.1 * (dx / r**3 - 3 * (x @ dx) * x / r**5)
        large = (np.abs(dx) / r**3 + 3 * abs(x[0] * dx[0]) + abs(x[1] * dx[1]) * np.abs(x) / r**5).max()
        np.testing.assert_allclose(made(x, v, dx), expected, rtol=0, atol=20e-16 * max(large, np.abs(expected).max()))


def test_what_the_user_wrote_stays() -> None:
    f = model("(+ (* 0.1 (* a b)) (* 0.1 (* b c)) (* 0.2 (* 0.3 c)))")
    made, plain = both(f, X)
    assert str(made.program) == str(plain.program)
    assert not fires(f)


def as_own(text: str, *args: float) -> tuple[Program, Program]:
    """A function's program as if differentiation had made it, and what the pass makes of that."""
    program = hyad.compile(hyad.model(text, namespace={}), args=args, target="python").program
    own = Block(tuple(replace(x, soft=True) for x in program.body.binds), program.body.results)
    program = with_body(program, own)
    return program, scalings(program)


def test_a_difference_of_exact_numbers_stays_one() -> None:
    """a - b loses nothing; d and a, added, lose all of d."""
    text = (
        "(fn [#^ Real a #^ Real b #^ Real c #^ Real d #^ Real e] (+ (+ (+ d (- a b)) (* 0.3 (* c e))) (* 0.3 (* e e))))"
    )
    args = 1.0, 1.0 - 2.0**-53, 0.0, 2.0**-60, 0.0
    program, made = as_own(text, *args)
    assert constants(made) == 1 < constants(program)
    assert python_callable(made)(*args) == 2.0**-53 + 2.0**-60


def test_terms_that_cancel_are_not_put_together() -> None:
    """Infinite ones do not; and nothing is multiplied by what is left of their constants."""
    text = "(fn [#^ Real x #^ Real y] (+ (* 0.3 (exp x)) (+ (* 0.3 (* y y)) (- (* 0.3 (* x y)) (* 0.3 (exp x))))))"
    _, made = as_own(text, 1.0, 1.0)
    assert not any(
        c == 0 for x in all_binds(made.body) if type(x.op) is Prim for c in x.op.args[:1] if type(c) is Const
    )
    assert python_callable(made)(1.0, 0.5) == pytest.approx(0.3 * (0.5 * 0.5 + 0.5), rel=1e-14)
    with np.errstate(all="ignore"):
        assert np.isnan(python_callable(made)(800.0, 0.5))
