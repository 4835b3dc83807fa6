"""Sums to the last element, which a derivative needs from each element on: one running sum, if the user reads none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

RNG = np.random.default_rng(23)

#: Programs of v, w, a matrix m, numbers p and k, and n, the length of v; whether their gradients take one running sum.
PROGRAMS = {
    "to the last": ("(ifold (fn [t i] (+ t (* p p (log (sum (exp (slice v i n))))))) 0.0 n)", True),
    "of Cox's likelihood": (
        "(sum (build n (fn [i] (* (sin (get w i)) (- (get v i) (log (sum (exp (slice v i n)))))))))", True,
    ),
    "after the index": (
        "(sum (build n (fn [i] (exp (* p (ifold (fn [s j] (+ s (sin (get v (+ i j 1))))) 0.0 (- n i 1)))))))", True,
    ),
    "all but the last two": (
        "(sum (build n (fn [i] (square (ifold (fn [s j] (+ s (sin (get v (+ i j))))) 0.5 (- n i 2))))))", True,
    ),
    "subtracted": ("(sum (build n (fn [i] (log (ifold (fn [s j] (- s (exp (get v (+ i j))))) 99.0 (- n i))))))", True),
    "two sums": (
        """(sum (build n (fn [i]
             (let [#(a b) (ifold (fn [#(a b) j] #((+ a (exp (get v (+ i j)))) (+ b (get w (+ i j)))))
                                                       #(1.0 p) (- n i))]
             (* (log a) (sin b))))))""", True,
    ),
    "of rows": (
        "(sum (build (len m) (fn [r] (sum (build n (fn [i] (sqrt (sum (exp (slice (get m r) i n))))))))))", True,
    ),
    "of what rows give": (
        "(sum (build n (fn [i] (log (sum (build (- n i) (fn [j] (exp (sum (* w (get v (+ i j))))))))))))", True,
    ),
    "a slope that the user gets": (
        "(ifold (fn [t i] (+ t (* (get w i) (log (sum (exp (slice v i n))))))) 0.0 n)", False,
    ),
    "what a condition reads": (
        """(sum (build n (fn [i] (let [s (sum (exp (slice v i n)))]
             (if (> s 3.0) (log s) (get w i))))))""", False,
    ),
    "with the index": (
        "(sum (build n (fn [i] (log (ifold (fn [s j] (+ s (exp (* (real i) (get v (+ i j)))))) 1.0 (- n i))))))", False,
    ),
    "with the place in the sum": (
        "(sum (build n (fn [i] (log (ifold (fn [s j] (+ s (exp (* (real j) (get v (+ i j)))))) 1.0 (- n i))))))", False,
    ),
    "of what changes": (
        "(ifold (fn [t i] (+ t (log (ifold (fn [s j] (+ s (exp (* t (get v (+ i j)))))) 1.0 (- n i))))) 0.1 n)", False,
    ),
    "from what changes": (
        "(ifold (fn [t i] (log (ifold (fn [s j] (+ s (exp (get v (+ i j))))) (+ 1.0 (exp t)) (- n i)))) 0.1 n)", False,
    ),
    "no sum": (
        "(sum (build n (fn [i] (ifold (fn [s j] (tanh (+ (* p s) (get v (+ i j))))) 0.5 (- n i)))))", False,
    ),
    "to the last but one, by twos": (
        "(sum (build n (fn [i] (log (ifold (fn [s j] (+ s (exp (get v (+ i j))))) 1.0 (- n (* 2 i)))))))", False,
    ),
    "what may fail": (
        "(sum (build n (fn [i] (log (ifold (fn [s j] (+ s (exp (get v (* k (+ i j)))))) 1.0 (- n i))))))", False,
    ),
}  # fmt: skip

WRT = ("v", "w", "m", "p")


def model(name: str) -> hyad.Model:
    text = f"(fn [#^ (Vec n) v #^ (Vec n) w #^ (Mat r n) m #^ Real p #^ Int k] {PROGRAMS[name][0]})"
    return hyad.model(text, namespace={})


def arguments(n: int) -> tuple[Any, ...]:
    return RNG.normal(size=n), RNG.normal(size=n), RNG.normal(size=(2, n)), 0.7, 1


def fires(f: hyad.Model, n: int = 5) -> bool:
    return any(step.name == "suffix-sums" for step in hyad.explain(f, args=arguments(n)).steps)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    f = model(name)
    g = hyad.grad(f, wrt=WRT)
    assert fires(g) == PROGRAMS[name][1]
    args = arguments(5)
    made = [hyad.compile(g, target, args=args, without=w) for target in ("c", "python") for w in ((), "suffix-sums")]
    for n in (0, 1, 2, 3, 20):
        args = arguments(n)
        first, *others = (h(*args) for h in made)
        for other in others:
            for x, y in zip(first, other):
                np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
    assert hyad.check_grad(f, arguments(4), wrt=WRT)


@pytest.mark.parametrize("name", [name for name, (_, one) in PROGRAMS.items() if one])
def test_forward_mode(name: str) -> None:
    """What the tangents sum is one running sum, too."""
    f = model(name)
    for n in (1, 2, 6):
        v, w, m, p, k = arguments(n)
        dv = RNG.normal(size=n)
        slope = hyad.jvp(lambda_of(name, w, m, p, k), (v,), (dv,))
        g = hyad.grad(f, wrt="v")(v, w, m, p, k)
        np.testing.assert_allclose(slope, g @ dv, rtol=1e-10, atol=1e-12)


def lambda_of(name: str, w: np.ndarray, m: np.ndarray, p: float, k: int) -> hyad.Model:
    """A program as a function of v alone."""
    text = PROGRAMS[name][0]
    return hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={"w": w, "m": m, "p": p, "k": k})


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_user_gets_is_added_up_as_it_is_written(name: str) -> None:
    """The value, and the value beside its gradient: the same number."""
    f = model(name)
    both = hyad.value_and_grad(f, wrt=WRT)
    assert not fires(f)
    args = arguments(9)
    plain = hyad.compile(f, args=args, without="suffix-sums")
    np.testing.assert_array_equal(f(*args), plain(*args))
    for target in ("c", "python"):
        made, other = (hyad.compile(both, target, args=args, without=w)(*args)[0] for w in ((), "suffix-sums"))
        np.testing.assert_array_equal(made, other)


def test_a_sum_that_is_itself_a_slope_stays_as_it_is_written() -> None:
    """d/dw of w * s is s, which the user gets."""
    text = "(fn [#^ (Vec n) v #^ (Vec n) w] (sum (build n (fn [i] (* (get w i) (sum (exp (slice v i n))))))))"
    g = hyad.grad(hyad.model(text, namespace={}), wrt="w")
    v, w = RNG.normal(size=(2, 30))
    assert not any(step.name == "suffix-sums" for step in hyad.explain(g, args=(v, w)).steps)
    exact = hyad.compile(g, "python", args=(v, w))(v, w)
    np.testing.assert_array_equal(exact, [sum_in_order(np.exp(v[i:])) for i in range(30)])


def sum_in_order(terms: np.ndarray) -> float:
    total = 0.0
    for t in terms:
        total += t
    return total


def test_the_gradient_takes_as_many_steps_as_there_are_elements() -> None:
    g = hyad.grad(model("of Cox's likelihood"), wrt="v")
    source = hyad.compile(g, args=arguments(5)).source
    assert "    for" in source
    assert "        for" not in source


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_goes_where_it_went(value: float) -> None:
    g = hyad.grad(model("all but the last two"), wrt="v")
    args = arguments(8)
    args[0][3] = value
    made, plain = (hyad.compile(g, args=args, without=w)(*args) for w in ((), "suffix-sums"))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(plain))


def test_second_derivatives() -> None:
    f = model("of Cox's likelihood")
    args = arguments(6)
    h = hyad.hessian(f, wrt="v")
    made, plain = (hyad.compile(h, args=args, without=w)(*args) for w in ((), "suffix-sums"))
    np.testing.assert_allclose(made, plain, rtol=1e-10, atol=1e-12)
    step = 1e-6
    g = hyad.grad(f, wrt="v")
    for k in range(6):
        up, down = (np.array(args[0]) for _ in range(2))
        up[k] += step
        down[k] -= step
        want = (g(up, *args[1:]) - g(down, *args[1:])) / (2 * step)
        np.testing.assert_allclose(made[k], want, rtol=1e-6, atol=1e-8)
