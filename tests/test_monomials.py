"""Factors that stand in a derivative's products several times are powers, which its products share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Prim, Program, all_binds

X = np.array([0.7, -1.3, 2.1])
DISTANCE = "(sqrt (+ (* a a) (* b b) (* c c)))"


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec 3) x] (let [a (get x 0) b (get x 1) c (get x 2)] {text}))", namespace={})


def both(f: Any, *args: Any) -> tuple[Any, Any]:
    """A derivative with powers in its products, and without."""
    return tuple(
        hyad.compile(f, args=args or None, target="python", without=w)
        for w in (("common-factors",), ("common-factors", "monomials"))
    )  # type: ignore


def count(program: Program, *names: str) -> int:
    return sum(type(x.op) is Prim and x.op.name in names for x in all_binds(program.body))


def fires(f: Any, *args: Any) -> bool:
    return "monomials" in [step.name for step in hyad.explain(f, args=args or None).steps]


PROGRAMS = {
    "an inverse distance": f"(/ 1.0 {DISTANCE})",
    "one with masses": f"(/ (* a b) {DISTANCE})",
    "a force": f"(let [r {DISTANCE}] (/ a (* r r r)))",
    "a squared one": f"(let [s (/ 1.0 {DISTANCE})] (* s s s s))",
    "a reciprocal": "(/ 1.0 (+ 3.0 (* a b) c))",
    "cubes": "(* (sin a) (* b b b) (exp c))",
    "an attraction and a repulsion": f"(let [q (** (/ 1.0 {DISTANCE}) 6)] (* 4.0 (- (* q q) q)))",
    "high powers": "(* (** a 9) (** b 3) (** c 12))",
    "a quotient by a root of a product": "(/ c (sqrt (* (exp a) (+ 1.0 (* b b)))))",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("operator", [hyad.grad, hyad.hessian])
def test_derivatives(name: str, operator: Any) -> None:
    """The same to rounding, by no more operations; checked by differences of what is a derivative less, too."""
    f = model(PROGRAMS[name])
    made, plain = both(operator(f), X)
    assert count(made.program, "*", "/", "sqrt") <= count(plain.program, "*", "/", "sqrt")
    below = f if operator is hyad.grad else hyad.grad(f)
    for x in (X, X[::-1].copy(), np.array([1e-3, 4e2, 3.0])):
        np.testing.assert_allclose(made(x), plain(x), rtol=4e-15, atol=4e-15 * np.abs(plain(x)).max())
    steps = [(np.asarray(below(X + h)) - np.asarray(below(X - h))) / 2e-5 for h in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(made(X), np.stack(steps), rtol=1e-6, atol=1e-8)


FIELD = """(fn [#^ Real x #^ Real y #^ Real dx #^ Real dy]
  (let [potential (fn [p] (/ 1.0 (sqrt (+ (* (get p 0) (get p 0)) (* (get p 1) (get p 1))))))
        force (fn [p] (vjp potential p 1.0))]
    (jvp force [x y] [dx dy])))"""


def field(x: float, y: float, dx: float, dy: float) -> tuple[np.ndarray, float]:
    """By hand, and how large its terms are."""
    r = np.hypot(x, y)
    dot = 3 * (x * dx + y * dy) / r**5
    return np.array([dot * x - dx / r**3, dot * y - dy / r**3]), abs(dot) * r + max(abs(dx), abs(dy)) / r**3


def test_a_field_of_force() -> None:
    """The tangent of a gradient of 1/r: its powers -3 and -5 are made of 1/r^2, whose root is 1/r."""
    f = hyad.model(FIELD, namespace={})
    made, plain = both(f)
    assert fires(f)
    assert "monomials" not in [step.name for step in hyad.explain(f, without="monomials").steps]
    assert count(made.program, "*") < count(plain.program, "*")
    (division,) = [x for x in all_binds(made.program.body) if type(x.op) is Prim and x.op.name == "/"]
    (root,) = [x for x in all_binds(made.program.body) if type(x.op) is Prim and x.op.name == "sqrt"]
    assert root.op.args == division.vars  # type: ignore[union-attr]
    for x, y, dx, dy in np.random.default_rng(2).normal(size=(20, 4)):
        expected, large = field(x, y, dx, dy)
        np.testing.assert_allclose(made(x, y, dx, dy), expected, rtol=0, atol=20e-16 * large)


def test_what_the_user_asks_for_is_as_it_was() -> None:
    """1/r is a result: a quotient by a root, whose square is made of it."""
    text = f"(/ 1.0 {DISTANCE})"
    f = hyad.value_and_grad(model(text))
    made = hyad.compile(f, args=(X,), target="python")
    (root,) = [x for x in all_binds(made.program.body) if type(x.op) is Prim and x.op.name == "sqrt"]
    divided = [x.op.args[1] for x in all_binds(made.program.body) if type(x.op) is Prim and x.op.name == "/"]
    assert divided == [root.vars[0]]
    for x in np.random.default_rng(3).normal(size=(50, 3)):
        r = np.sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2])
        assert made(x)[0] == 1.0 / r  # to the last bit
        np.testing.assert_allclose(made(x)[1], -x / r**3, rtol=1e-15)


def test_what_may_be_negative_has_no_root() -> None:
    """The square of the root of y is y where that is no number: only what is a sum of squares is taken for one."""
    f = hyad.grad(hyad.model("(fn [#^ Real y] (log (sqrt y)))", namespace={}))
    with np.errstate(invalid="ignore"):
        assert np.isnan(hyad.compile(f, target="c")(-2.0))
    assert hyad.compile(f, target="c")(2.0) == pytest.approx(0.25, rel=1e-15)


def test_at_zero_and_at_infinity() -> None:
    """Powers of one sign alone are multiplied: no infinity meets a zero."""
    f = hyad.model("(fn [#^ Real x #^ Real v] (jvp (fn [x] (vjp (fn [x] (/ 1.0 (sqrt (* x x)))) x 1.0)) x v))")
    for target in ("c", "python"):
        made, plain = (hyad.compile(f, target=target, without=w) for w in ((), "monomials"))
        with np.errstate(all="ignore"):
            for x in (0.0, 1e-200, 1e200, np.inf, np.nan, -3.0):
                np.testing.assert_allclose(made(x, 1.0), plain(x, 1.0), rtol=1e-14, err_msg=f"{x}")


def test_a_sum_of_a_product_and_its_multiple() -> None:
    """m/(y sqrt y), differentiated: ``sqrt y`` and ``y / (2 sqrt y)`` are one and a half of the root."""
    text = "(let [y (+ 0.01 (* a a) (* b b))] (/ c (* y (sqrt y))))"
    f = hyad.grad(model(text))
    made, plain = both(f, X)
    assert count(made.program, "/") < count(plain.program, "/")
    a, b, c = X
    y = 0.01 + a * a + b * b
    np.testing.assert_allclose(made(X), [-3 * c * a / y**2.5, -3 * c * b / y**2.5, y**-1.5], rtol=2e-15)


def test_products_of_different_factors_stay() -> None:
    """The order in which a tiny and a huge number meet others is as it was."""
    f = hyad.grad(model("(* a b c (exp a) (sin b))"))
    made, plain = both(f, X)
    assert str(made.program) == str(plain.program)
    assert not fires(f, X)


def test_products_of_the_user_stay() -> None:
    f = model("(* a (* a (* a (* b a))))")
    made, plain = both(f, X)
    assert str(made.program) == str(plain.program)


def test_in_pairs_and_in_lanes() -> None:
    """What differentiation made is its own there as well: the gradient of a potential over all pairs."""
    squares = "(square (- (get x i 0) (get x j 0))) (square (- (get x i 1) (get x j 1)))"
    pair = f"(/ (* (get m i) (get m j)) (sqrt (+ 0.01 {squares})))"
    inner = f"(ifold (fn [s j] (+ s {pair})) 0.0 (len m))"
    text = f"(fn [#^ (Mat n 2) x #^ (Vec n) m] (ifold (fn [t i] (+ t {inner})) 0.0 (len m)))"
    x, m = np.random.default_rng(1).uniform(-1, 1, (19, 2)), np.linspace(0.5, 1.5, 19)
    f = hyad.grad(hyad.model(text, namespace={}), wrt="x")
    steps = [step.name for step in hyad.explain(f, args=(x, m)).steps]
    assert {"pairs", "lanes", "monomials"} <= set(steps)
    made, plain = (hyad.compile(f, args=(x, m), target="c", without=w) for w in ((), "monomials"))
    d = x[:, None] - x[None]
    expected = -2 * np.sum((m[:, None] * m / (0.01 + np.sum(d * d, 2)) ** 1.5)[..., None] * d, 1)
    np.testing.assert_allclose(made(x, m), expected, rtol=1e-12, atol=1e-11)
    assert count(made.program, "*") < count(plain.program, "*")


def test_powers_that_the_model_writes_are_powers_of_its_products() -> None:
    """The force between two atoms: -6 (8 q - 4) q r^-2, where q = r^-6 is there; no other power is made."""
    gradient = hyad.grad(model(PROGRAMS["an attraction and a repulsion"]))
    (power,) = [x for x in all_binds(both(gradient)[0].program.body) if type(x.op) is Prim and x.op.name == "**"]
    assert power.op.args[1].value == 6
