"""Powers with consecutive exponents, of either sign, are read from a table of products."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import hyad
from hyad.core import all_binds

#: A model of u and n, its exponents, and how long its table is, or None where it has none.
POWERS = {
    "from zero": ("(build n (fn [k] (** u k)))", lambda n: range(n), 0),
    "around zero": ("(build (+ n 1) (fn [k] (** u (- (* 2 k) n))))", lambda n: range(-n, n + 1, 2), 1),
    "down, around zero": ("(build (+ n 1) (fn [k] (** u (- n (* 2 k)))))", lambda n: range(n, -n - 1, -2), 1),
    "from a larger one on": ("(build n (fn [k] (** u (+ k n))))", lambda n: range(n, 2 * n), 0),
    "below zero": ("(build n (fn [k] (** u (- -1 k))))", lambda n: range(-1, -n - 1, -1), 1),
    "from far below": ("(build n (fn [k] (** u (- (- n) k))))", lambda n: range(-n, -2 * n, -1), 0),
    "nearly around zero": ("(build n (fn [k] (** u (- k 3))))", lambda n: range(-3, n - 3), 4),
    "by three": ("(build n (fn [k] (** u (* 3 k))))", lambda n: range(0, 3 * n, 3), None),
    "from anywhere": ("(build n (fn [k] (** u (- k m))))", lambda n: range(-2, n - 2), None),
    "few": ("(build 6 (fn [k] (** u (* k n))))", lambda n: range(0, 6 * n, n) if n else [0] * 6, None),
}


def model(name: str) -> hyad.Model:
    m = " #^ Int m" if name == "from anywhere" else ""
    return hyad.model(f"(fn [#^ Real u #^ Int n{m}] {POWERS[name][0]})", namespace={})


def power(u: float, e: int) -> float:
    """Rounded once."""
    try:
        return float(mpmath.mpf(u) ** e)
    except ZeroDivisionError:
        return float("inf") if np.copysign(1.0, u) > 0 or e % 2 == 0 else float("-inf")


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_as_exact_as_one_by_itself(name: str) -> None:
    """To |e| units of 2^-53, and 1 for the exponent 0."""
    f, (_, exponents, _) = hyad.compile(model(name)), POWERS[name]
    for n in (0, 1, 2, 9, 40):
        for u in (1.01, 0.3, -1.7, -0.2):
            got = f(u, n, 2) if name == "from anywhere" else f(u, n)
            assert len(got) == len(exponents(n))
            for x, e in zip(got, exponents(n)):
                assert abs(x - power(u, e)) <= (abs(e) + 1) * 2.0**-53 * abs(power(u, e)), (n, u, e)


@pytest.mark.parametrize("name", POWERS)
def test_which_have_a_table(name: str) -> None:
    f, (_, _, more) = model(name), POWERS[name]
    made, left = hyad.compile(f), hyad.compile(f, without="power-tables")
    assert ("hyad_ipow(" in made.source) == (more is None) or name == "from a larger one on" or name == "from far below"
    assert "hyad_ipow(" in left.source
    assert ("power-tables" in hyad.explain(f).fired()) == (more is not None)


def test_zeros_and_what_is_no_number() -> None:
    f = hyad.compile(model("around zero"))
    for u in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-200, -1e200):
        with np.errstate(all="ignore"):
            want = np.float64(u) ** np.arange(-9.0, 10.0, 2)
        np.testing.assert_array_equal(f(u, 9), want)
        np.testing.assert_array_equal(np.signbit(f(u, 9)), np.signbit(want))


@pytest.mark.parametrize("name", ["around zero", "from zero", "below zero", "from a larger one on"])
@pytest.mark.parametrize("n", [0, 1, 12])
def test_the_derivative_has_one_too(name: str, n: int) -> None:
    """Its exponents are one less, or 1 where the base and the exponent are 0; the two share a table."""
    f = hyad.model(f"(fn [#^ Real u #^ (Vec m) c #^ Int n] (sum (map sin {POWERS[name][0]})))", namespace={})
    gradient = hyad.compile(hyad.grad(f, wrt="u"), args=(1.0, np.ones(2), 1))
    assert "power-tables" in hyad.explain(hyad.grad(f, wrt="u"), args=(1.0, np.ones(2), 1)).fired()
    for u in (1.01, -0.8, *((0.0,) if name == "from zero" else ())):
        slope = sum((e * power(u, e - 1) if e else 0.0) * np.cos(power(u, e)) for e in POWERS[name][1](n))
        assert gradient(u, np.ones(2), n) == pytest.approx(slope, rel=1e-12, abs=1e-12)


def test_on_a_gpu_each_thread_has_its_own_power() -> None:
    f = model("around zero")
    for target, number in (("c", 0), ("cuda", 1)):
        program = f.optimised(f.specs((1.0, 3)), target=target)
        assert sum(getattr(x.op, "name", "") == "**" for x in all_binds(program.body)) == number
