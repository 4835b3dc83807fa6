"""Powers of one number in a loop are products of the one before and that number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import oracle

#: A model of c and x, its value by hand, and whether it is left without a power of an exponent that changes.
SUMS = {
    "up": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x k)))) 0.0 n)",
        lambda c, x: sum(a * x**k for k, a in enumerate(c)),
        True,
    ),
    "down": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (- n 1 k))))) 0.0 n)",
        lambda c, x: sum(a * x ** (len(c) - 1 - k) for k, a in enumerate(c)),
        True,
    ),
    "from two on": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (+ k 2))) (sin (** x (+ 2 k))))) 0.0 n)",
        lambda c, x: sum(a * x ** (k + 2) + np.sin(x ** (k + 2)) for k, a in enumerate(c)),
        True,
    ),
    "two numbers": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x k) (** (+ 1.0 (* x x)) (+ k 1))))) 0.0 n)",
        lambda c, x: sum(a * x**k * (1 + x * x) ** (k + 1) for k, a in enumerate(c)),
        True,
    ),
    "discounted": (
        "(sum (build n (fn [k] (/ (get c k) (** (+ 1.0 (* 0.1 x)) (+ k 1))))))",
        lambda c, x: sum(a / (1 + 0.1 * x) ** (k + 1) for k, a in enumerate(c)),
        None,
    ),
    "rows of a table": (
        "(sum (map sin (@ (build [n n] (fn [i k] (** (get c i) k))) c)))",
        lambda c, x: np.sum(np.sin(np.array([[a**k for k in range(len(c))] for a in c]).reshape(len(c), len(c)) @ c)),
        True,
    ),
    "under a condition": (
        "(ifold (fn [s k] (if (> (get c k) 0.0) (+ s (** x k)) s)) 0.0 n)",
        lambda c, x: sum(x**k for k, a in enumerate(c) if a > 0),
        True,
    ),
    "of a number that changes": (
        "(ifold (fn [s k] (+ s (** (get c k) k))) 0.0 n)",
        lambda c, x: sum(a**k for k, a in enumerate(c)),
        False,
    ),
    "less than none": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (- k 2))))) 0.0 n)",
        lambda c, x: sum(a * x ** (k - 2.0) for k, a in enumerate(c)),
        True,
    ),
    "with exponents below zero": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (- (+ k 1)))))) 0.0 n)",
        lambda c, x: sum(a / x ** (k + 1) for k, a in enumerate(c)),
        True,
    ),
    "with exponents that rise to zero": (
        "(ifold (fn [s k] (+ s (* (get c k) (sin (** x (- k (- n 1))))))) 0.0 n)",
        lambda c, x: sum(a * np.sin(x ** (k - (len(c) - 1.0))) for k, a in enumerate(c)),
        True,
    ),
    "by leaps": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (+ k (% (* k k) 3)))))) 0.0 n)",
        lambda c, x: sum(a * x ** (k + k * k % 3) for k, a in enumerate(c)),
        False,
    ),
    "every second one": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (* 2 k))))) 0.0 n)",
        lambda c, x: sum(a * x ** (2 * k) for k, a in enumerate(c)),
        True,
    ),
    "every third one, backwards": (
        "(ifold (fn [s k] (+ s (* (get c k) (** x (- (* 3 n) (* 3 k)))))) 0.0 n)",
        lambda c, x: sum(a * x ** (3 * len(c) - 3 * k) for k, a in enumerate(c)),
        True,
    ),
}

#: Those that have one at 0.
POLES = ("less than none", "with exponents below zero", "with exponents that rise to zero")


def sums(name: str) -> Any:
    return hyad.model(f"(fn [#^ (Vec n) c #^ Real x] {SUMS[name][0]})", namespace={})


@pytest.mark.some(4)
@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_powers(name: str, target: str) -> None:
    f, rng = sums(name), np.random.default_rng(3)
    made = hyad.compile(f, target=target)
    gradient = hyad.compile(hyad.grad(f, wrt=("c", "x")), args=(np.ones(3), 1.0), target=target)
    for n in (0, 1, 2, 9):
        for x in (0.7, -1.3) if name in POLES else (0.7, -1.3, 0.0):
            c = rng.normal(size=n)
            assert made(c, x) == pytest.approx(SUMS[name][1](c, x), rel=1e-13, abs=1e-13)
            run = hyad.run(hyad.grad(f, wrt=("c", "x")), c, x)
            assert oracle.mismatch(run, gradient(c, x), 1e-11) is None
    assert hyad.check_grad(f, (rng.uniform(0.5, 1.0, 5), 0.8))


@pytest.mark.parametrize("name", [n for n in SUMS if SUMS[n][2] is not None])
def test_which_powers_are_products(name: str) -> None:
    """The gradient's as well: it is one of the products."""
    f = sums(name)
    sources = [hyad.compile(f).source, hyad.compile(hyad.grad(f, wrt=("c", "x")), args=(np.ones(3), 1.0)).source]
    for source in sources:
        assert ("hyad_ipow(" in source) != SUMS[name][2]


def test_powers_of_numbers_at_their_edges() -> None:
    """What the powers are: 1 at the exponent 0 of anything, and zeros, infinities and NaN as they multiply."""
    f = hyad.compile(
        hyad.model(
            """(fn [#^ Real x #^ Int n]
                 (snd (ifold (fn [#(s out) k] #((+ s (** x k)) (update out k (** x k))))
                             #(0.0 (build 7 (fn [i] 9.0)))
                             n)))""",
            namespace={},
        )
    )
    for x in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-200, -1e200, 5e-324):
        with np.errstate(all="ignore"):
            want = np.array([np.float64(x) ** k for k in range(7)])
        got = f(x, 7)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[:6]), np.signbit(want[:6]))


def test_one_loop_alone_is_left() -> None:
    """Its elements may be for several threads; ``power_tables`` makes them for one."""
    f = hyad.model("(fn [#^ Real x #^ Int n] (build n (fn [k] (** x k))))", namespace={})
    assert hyad.explain(f).fired().keys().isdisjoint({"running-powers"})
    assert "hyad_ipow(" in hyad.compile(f, without="power-tables").source
    np.testing.assert_allclose(hyad.compile(f)(1.1, 9), 1.1 ** np.arange(9), rtol=1e-15)


def test_the_powers_below_zero_of_a_loop_alone_need_no_array() -> None:
    """A state that goes on by products, and a division: no power, no table."""
    made = hyad.compile(sums("with exponents below zero"))
    assert not made.cfunction.workspace and "1.0/" in made.source
