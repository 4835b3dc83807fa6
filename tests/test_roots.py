"""Powers whose exponent is a whole number and a half are products with a square root."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

EXPONENTS = (0.5, 1.5, 2.5, 3.5, 31.5, -0.5, -1.5, -2.5, -31.5)


def power(c: float) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) x] (map (fn [t] (** t {c})) x))", namespace={})


@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("c", EXPONENTS)
def test_powers_with_a_half(c: float, target: str) -> None:
    """To a unit in the last place for each factor, and exactly at zeros of either sign, at inf, below 0 and at NaN."""
    x = np.array([1e-320, 1e-200, 1e-9, 0.3, 0.99, 1.7, 12.0, 1e5, 1e200])
    special = np.array([0.0, -0.0, np.inf, -1.0, -1e-320, np.nan])
    f = hyad.compile(power(c), target=target)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(f(x), x**c, rtol=2e-16 * (abs(c) + 1))
        got, want = f(special), np.power(special, np.full(6, c))  # a number 0.5 would be a root there, too
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[:3]), np.signbit(want[:3]))


def test_no_power_is_left() -> None:
    for c in EXPONENTS:
        assert "pow(" not in hyad.compile(power(c)).source
        assert "pow(" in hyad.compile(power(c), without="roots").source
    for c in (0.25, 1.75, 2.4999999999999996, 33.5, -40.5):
        assert "pow(" in hyad.compile(power(c)).source


@pytest.mark.parametrize("c", [0.5, 1.5, -1.5, 2.5])
def test_a_derivative_has_the_root_of_the_value(c: float) -> None:
    f = hyad.model(f"(fn [#^ Real x #^ Real y] (* (** (+ (* x x) (* y y)) {c}) (sin y)))", namespace={})
    made = hyad.compile(hyad.value_and_grad(f, wrt=("x", "y")))
    assert made.source.count("sqrt(") == 1 and "pow(" not in made.source
    value, (dx, dy) = made(0.7, 0.4)
    r2 = 0.7**2 + 0.4**2
    assert value == pytest.approx(r2**c * np.sin(0.4), rel=1e-14)
    assert dx == pytest.approx(2 * 0.7 * c * r2 ** (c - 1) * np.sin(0.4), rel=1e-14)
    assert dy == pytest.approx(2 * 0.4 * c * r2 ** (c - 1) * np.sin(0.4) + r2**c * np.cos(0.4), rel=1e-14)


def test_the_derivative_at_zero() -> None:
    """That of the power; of a product with a root it would be NaN."""
    f = hyad.model("(fn [#^ Real x] (** x 1.5))", namespace={})
    assert hyad.compile(hyad.grad(f))(0.0) == 0.0
    assert hyad.compile(hyad.grad(hyad.grad(f)))(4.0) == pytest.approx(0.375, rel=1e-15)


def test_the_root_of_zero_needs_no_branch() -> None:
    """Of a sum of squares; what may be -0 has 0 as the branch says."""
    norm = hyad.model("(fn [x y] (let [q (+ (* x x) (* y y))] (if (= q 0.0) 0.0 (sqrt q))))", namespace={})
    assert "roots" in hyad.explain(norm, args=(1.0, 2.0)).fired()
    for x, y in ((3.0, 4.0), (0.0, 0.0), (-0.0, 0.0), (np.inf, 1.0), (np.nan, 1.0)):
        np.testing.assert_equal(norm(x, y), hyad.run(norm, x, y))
    hyad.check_grad(norm, (3.0, 4.0))
    assert hyad.grad(norm, "x")(0.0, 0.0) == 0.0
    root = hyad.model("(fn [x] (if (= x 0.0) 0.0 (sqrt x)))", namespace={})
    assert "roots" not in hyad.explain(root, args=(1.0,)).fired()
    assert not np.signbit(root(-0.0))
