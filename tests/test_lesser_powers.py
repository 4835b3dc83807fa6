"""A power and the one with an exponent less by one: a quotient, but where that has lost digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import hyad

SUM = "(fn [#^ (Vec n) x #^ Real e] (ifold (fn [s i] (+ s (** (get x i) e))) 0.0 n))"
X = np.array([1e-300, 1e-20, 0.3, 0.99, 1.0, 1.7, 12.0, 1e20, 1e200])


def calls(f: hyad.Model, args: tuple, **kw: object) -> int:
    """How many powers a run takes where none is near 0 or infinite: those in no branch."""
    source = hyad.compile(f, args=args, **kw).source
    return source.count("pow(") - source.count(": pow(")


@pytest.mark.parametrize("e", [2.4, -0.7, 0.5, 1.0, 0.0, 30.25, 400.0])
def test_both_derivatives_of_a_power(e: float) -> None:
    f = hyad.grad(hyad.model(SUM, namespace={}), wrt=("x", "e"))
    made = hyad.compile(f, args=(X, e))
    for x in X:
        got = made(np.array([x]), e)[0][0]
        want = float(e * mpmath.mpf(x) ** (mpmath.mpf(e) - 1)) if e else 0.0
        if 1e-307 < abs(want) < 1e308:
            assert got == pytest.approx(want, rel=(8 + abs(e)) * 2.0**-52), x
        else:
            assert got == pytest.approx(want, rel=1e-3, abs=5e-324) or got == want


@pytest.mark.parametrize("x", [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 5e-324])
@pytest.mark.parametrize("e", [0.0, 0.3, 1.0, 2.0, -1.0, -2.5])
def test_where_there_is_no_quotient(x: float, e: float) -> None:
    """The same as two powers, to the sign of a zero."""
    f = hyad.grad(hyad.model(SUM, namespace={}), wrt=("x", "e"))
    args = (np.array([x]), e)
    for got, want in zip(hyad.compile(f, args=args)(*args), hyad.compile(f, args=args, without="lesser-powers")(*args)):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_one_power_for_both_and_for_the_value() -> None:
    both, args = hyad.grad(hyad.model(SUM, namespace={}), wrt=("x", "e")), (X, 1.7)
    assert calls(both, args) == 1 and calls(both, args, without="lesser-powers") == 2
    value = hyad.value_and_grad(hyad.model(SUM, namespace={}), wrt=("x", "e"))
    assert calls(value, args) == 1 and hyad.compile(value, args=args).source.count("for (") == 1
    known = hyad.value_and_grad(hyad.model("(fn [#^ (Vec n) x] (sum (** x 2.4)))", namespace={}))
    assert calls(known, (X,)) == 1 and calls(known, (X,), without="lesser-powers") == 2
    whole = hyad.value_and_grad(hyad.model("(fn [#^ Real x #^ Int n] (** x n))", namespace={}), wrt="x")
    assert hyad.compile(whole, args=(2.0, 3)).source.count("? hyad_ipow(") <= 1
    assert hyad.compile(whole, args=(2.0, 3))(2.0, 50) == pytest.approx((2.0**50, 50 * 2.0**49), rel=1e-15)


def test_one_alone_stays_and_so_do_vectors() -> None:
    alone = hyad.grad(hyad.model("(fn [#^ (Vec n) x] (sum (** x 2.4)))", namespace={}))
    assert "lesser-powers" not in hyad.explain(alone, args=(X,)).fired()
    other = hyad.grad(
        hyad.model("(fn [#^ Real x #^ Real y #^ Real e] (+ (** x e) (** y (- e 1.0))))", namespace={}), wrt="e"
    )
    assert "lesser-powers" not in hyad.explain(other, args=(1.0, 2.0, 3.0)).fired()
    both = hyad.grad(hyad.model(SUM, namespace={}), wrt=("x", "e"))
    assert "pow(" in hyad.compile(both, args=(X, 1.7)).source
    vectors = both.optimised(both.specs((X, 1.7)), math="vector")
    assert not any(type(x.op) is hyad.core.If for x in hyad.core.all_binds(vectors.body))
