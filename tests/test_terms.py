"""Like terms and constants of a derivative's sums are put together, as a person would; what the user wrote stays."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy

import hyad
from hyad.core import Loop, Prim, Program, all_binds

ROSEN = """(fn [#^ (Vec {n}) x]
  (ifold (fn [sum i]
           (let [a (get x i)
                 b (get x (+ i 1))]
             (+ sum (* 100.0 (** (- b (* a a)) 2)) (** (- 1.0 a) 2))))
         0.0
         (- (len x) 1)))"""


BRACKETS = ("common-factors",)  # what makes brackets of terms is not what is looked at here


def both(f: Any, *args: Any, target: str = "python") -> tuple[Any, Any]:
    """A derivative with its terms collected, and without; no brackets are made of what is left."""
    ways = BRACKETS, (*BRACKETS, "like-terms")
    return tuple(hyad.compile(f, args=args, target=target, without=w) for w in ways)


def operations(program: Program | Loop) -> int:
    reals = (x for x in all_binds(program.body) if type(x.op) is Prim and str(x.vars[0].type) == "Real")
    return sum(x.op.name in ("+", "-", "*", "/", "neg") for x in reals)  # type: ignore[union-attr]


def rosen_hessian(x: np.ndarray) -> np.ndarray:
    h = np.zeros((len(x), len(x)))
    for i in range(len(x) - 1):
        h[i, i] += 1200 * x[i] ** 2 - 400 * x[i + 1] + 2
        h[i, i + 1] = h[i + 1, i] = -400 * x[i]
        h[i + 1, i + 1] += 200
    return h


@pytest.mark.parametrize("n", [10, "n"])
def test_rosenbrock(n: Any) -> None:
    """As many operations as by hand: one for each pair beside the diagonal, on it four (one is such a pair's)."""
    x = np.linspace(-1.2, 1.3, 10)
    made, plain = both(hyad.hessian(hyad.model(ROSEN.format(n=n), namespace={})), x)
    np.testing.assert_allclose(made(x), rosen_hessian(x), rtol=1e-15)
    np.testing.assert_allclose(made(x), plain(x), rtol=1e-15)
    if n == 10:
        assert operations(made.program) == 9 + 9 * 4 + 1 < operations(plain.program)
    else:
        (loop,) = [x.op for x in all_binds(made.program.body) if type(x.op) is Loop]
        assert operations(loop) == 8 < operations(plain.program)  # where both terms meet they are one more


def test_it_is_said_and_can_be_switched_off() -> None:
    f = hyad.hessian(hyad.model(ROSEN.format(n=4), namespace={}))
    assert "like-terms" in [step.name for step in hyad.explain(f).steps]
    assert "like-terms" not in [step.name for step in hyad.explain(f, without="like-terms").steps]


FIELD = """(fn [#^ Real x #^ Real y #^ Real dx #^ Real dy]
  (let [potential (fn [p] (/ 1.0 (sqrt (+ (* (get p 0) (get p 0)) (* (get p 1) (get p 1))))))]
    (jvp (fn [p] (jvp potential p [1.0 0.0])) [x y] [dx dy])))"""


def test_brackets_are_opened_where_terms_meet() -> None:
    """A tangent of a tangent of 1/r: ``r^-2 x dr`` stands in three brackets, one in another."""
    f = hyad.model(FIELD, namespace={})
    made, plain = (hyad.compile(f, target="python", without=w) for w in (BRACKETS, (*BRACKETS, "open-brackets")))
    for x, y, dx, dy in np.random.default_rng(2).normal(size=(20, 4)):
        r = np.hypot(x, y)
        terms = 3 * x * x / r**5 * dx, -dx / r**3, 3 * x * y / r**5 * dy
        assert made(x, y, dx, dy) == pytest.approx(sum(terms), abs=1e-15 * sum(map(abs, terms)) * 20)
        assert made(x, y, dx, dy) == pytest.approx(plain(x, y, dx, dy), abs=1e-15 * sum(map(abs, terms)) * 20)
    assert operations(made.program) < operations(plain.program)
    assert "open-brackets" in [step.name for step in hyad.explain(f).steps]
    assert "open-brackets" not in [step.name for step in hyad.explain(f, without="open-brackets").steps]


def test_brackets_of_exact_numbers_stay() -> None:
    """``z (x - y)`` beside ``z y``: the difference loses nothing, and is not taken apart to meet the other y."""
    f = hyad.grad(
        hyad.model("(fn [#^ Real x #^ Real y #^ Real z] (* z z (- (+ (- x y) (sin y)) y)))", namespace={}), "z"
    )
    assert "open-brackets" not in [step.name for step in hyad.explain(f).steps]
    g = hyad.grad(hyad.model("(fn [#^ Real x #^ Real y #^ Real z] (+ (* z z (- x y)) (* z z y)))", namespace={}), "z")
    assert "open-brackets" not in [step.name for step in hyad.explain(g).steps]
    assert hyad.compile(g, target="python")(3.0, 2.0, 5.0) == 30.0


def test_a_two_meets_a_half() -> None:
    """The derivative of a root, added twice beside something else."""
    f = hyad.grad(
        hyad.model("(fn [#^ Real x #^ Real y] (* (sqrt (+ (* x x) (* y y))) (sin (* x y))))", namespace={}), 0
    )
    source = hyad.compile(f, target="c").cfunction.source
    assert not re.search(r"\b(0\.5|2\.0)\b", source.partition("{")[2])
    assert hyad.compile(f, target="python")(3.0, 4.0) == pytest.approx(0.6 * np.sin(12) + 20 * np.cos(12), rel=1e-14)


def test_a_multiple_and_its_opposite() -> None:
    """What a difference's square gives to one term and takes from the other is computed once: to the last bit."""
    text = "(fn [#^ Real x #^ Real y] (let [p (- (* (sin x) y) (* x (cos y)))] (* p p)))"
    made, plain = both(hyad.grad(hyad.model(text, namespace={}), (0, 1)), 1.0, 1.0)
    assert operations(made.program) == operations(plain.program) - 1
    for x, y in np.random.default_rng(1).normal(size=(20, 2)):
        assert made(x, y) == plain(x, y)


def test_a_multiple_that_nobody_reads() -> None:
    f = hyad.hessian(
        hyad.model("(fn [v w] (if (< w 0.5) 0.5 (ifold (fn [s i] (norm v)) 0.0 (int w))))", namespace={}), "v"
    )
    v = np.array([3.0, 4.0])
    made = hyad.compile(f, "python", args=(v, 2.0), without="dead-code")
    np.testing.assert_allclose(made(v, 2.0), (np.eye(2) - np.outer(v, v) / 25) / 5)


# --------------------------------------------------------------------------------------- what must not change


class Polynomials(random.Random):
    """Draws polynomials of x, y and z as text and for SymPy, with numbers that cancel."""

    def draw(self) -> tuple[str, Any]:
        known = [(s, sympy.Symbol(s)) for s in "xyz"]
        bindings = []
        for k in range(self.randrange(4, 9)):
            (a, p), (b, q) = self.choice(known[-4:]), self.choice(known)
            c = self.choice([-3, -1, 2, 5, 100])
            text, value = self.choice(
                [(f"(+ {a} {b})", p + q), (f"(- {a} {b})", p - q), (f"(* {a} {b})", p * q), (f"(* {a} {a})", p * p)]
                + [
                    (f"(* {c}.0 {a})", c * p),
                    (f"(- {c}.0 (* {a} {b}))", c - p * q),
                    (f"(- {b} (* {a} {a}))", q - p * p),
                ]
            )
            if sympy.Poly(value, *sympy.symbols("x y z")).total_degree() < 7:
                bindings.append(f"v{k} {text}")
                known.append((f"v{k}", value))
        last = known[-3:]
        text = f"(fn [#^ (Vec 3) p] (let [x (get p 0) y (get p 1) z (get p 2) {' '.join(bindings)}] (+ "
        return text + " ".join(f"(* {a} {a})" for a, _ in last) + ")))", sum(v * v for _, v in last)

    def points(self) -> list[np.ndarray]:
        """Ordinary ones, and some where differences cancel."""
        found = [np.array([self.uniform(-2, 2) for _ in range(3)]) for _ in range(6)]
        for x, _, z in found[:4]:
            found += [np.array([x, x * x + self.choice([0.0, 1e-9]), z]), np.array([x, x * (1 + 1e-12), 1 - x])]
        return found


@pytest.mark.parametrize("seed", range(16))
def test_values_are_as_exact_as_before(seed: int) -> None:
    """Against exact arithmetic: no entry is off by more than a few times what it was off before."""
    draws = Polynomials(seed)
    text, value = draws.draw()
    symbols = sympy.symbols("x y z")
    hessian = hyad.hessian(hyad.model(text, namespace={}))
    made, plain = both(hessian, np.zeros(3))
    neither = hyad.compile(hessian, "python", args=(np.zeros(3),), without=(*BRACKETS, "like-terms", "powers-of-two"))
    assert operations(made.program) <= operations(neither.program)  # twos alone may leave one fewer than like terms do
    exact = sympy.lambdify(symbols, sympy.hessian(value, symbols).tolist(), modules=[])
    errors = []
    for p in draws.points():
        truth = exact(*map(Fraction, p.tolist()))
        size = np.abs(np.array(truth, float))
        errors.append([np.abs(np.array([[float(Fraction(h) - t) for h, t in zip(*rows)] for rows in zip(f(p).tolist(),
                       truth)])) for f in (made, plain)] + [2**-52 * size])  # fmt: skip
    off, before, unit = (np.max(column, axis=0) for column in zip(*errors))
    assert (off <= 6 * before + 4 * unit).all()


def test_exact_differences_stay() -> None:
    """``1 - x`` near 1 is exact: to multiply it out would lose all of it."""
    text = "(fn [#^ Real x #^ Real y] (let [t (- 1.0 x)] (+ (* 100.0 (** t 2)) (* 50.0 (* y (** t 2))))))"
    made, _ = both(hyad.grad(hyad.model(text, namespace={}), 0), 1.0, 1.0)
    x = 1 + 2.0**-50
    assert made(x, 3.0) == pytest.approx(-2 * (100 + 50 * 3) * (1 - x), rel=1e-15)


def test_what_cancels_stays() -> None:
    """A term that is infinite does not cancel."""
    text = "(fn [#^ Real x #^ Real y] (+ (* 0.5 (* x y)) (- (* x y) (* 1.5 (* x y)))))"
    f = hyad.grad(hyad.model(text, namespace={}), 0)
    for made in both(f, 1.0, 1.0):
        assert made(1.0, 2.0) == 0.0 and np.isnan(made(1.0, np.inf))


SUM = "(let [d (- (* x (* 400.0 x)) (* 200.0 (- y (* x x))))] (+ (+ (+ 2.0 d) d) 200.0))"


def test_the_users_own_sums_stay() -> None:
    """To the last bit: the value beside its gradient, and an operation that the derivative has as well."""
    model = hyad.model(f"(fn [#^ Real x #^ Real y] {SUM})", namespace={})
    before, after = both(model, 1.0, 1.0)
    assert str(before.program) == str(after.program)
    points = np.random.default_rng(3).normal(size=(50, 2))
    value = hyad.compile(hyad.value_and_grad(model, wrt=("x", "y")), target="python", args=(1.0, 1.0))
    assert all(value(x, y)[0] == before(x, y) for x, y in points)

    square = "(fn [#^ Real x] (* 1.1 (* x (* x x))))"
    text = f"(fn [#^ Real x] (let [g ((D {square}) x)] #(g (+ (* 1.1 (* x x)) (* 2.2 (* x x))))))"
    own = hyad.model("(fn [#^ Real x] (+ (* 1.1 (* x x)) (* 2.2 (* x x))))", namespace={})
    own = hyad.compile(own, target="python", args=(1.0,))
    pair = hyad.compile(hyad.model(text, namespace={}), target="python", args=(1.0,))
    for x in points[:, 0]:
        assert pair(x)[1] == own(x)
        assert pair(x)[0] == pytest.approx(3.3 * x * x, rel=1e-14)
