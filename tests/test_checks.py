"""A check is made once: what has been found to be in range is not looked at again."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
from hyad.builder import Builder
from hyad.core import INT, REAL, Arr, Check, Const, Loop, Var, all_binds
from hyad.errors import BoundsError
from hyad.fusion import siblings

#: Lower triangles packed by columns, as a mixture's covariances are: a subscript that nothing proves to be in range.
PACKED = """(defmodel packed [#^ (Mat k p) packed #^ (Mat k d) v]
  (let [d (shape v 1)
        entry (fn [row r c]
                (cond (= r c) (exp (get row r))
                      (> r c) (get row (+ d (- (// (* c (- (* 2 d) (+ c 1))) 2) (+ c 1)) r))
                      True 0.0))
        roots (map (fn [row] (build [d d] (fn [r c] (entry row r c)))) packed)]
    (fold + 0.0 (map (fn [q x] (let [y (map (fn [r] (dot r x)) q)] (dot y y))) roots v))))"""
GATHERED = """(defmodel gathered [#^ (Vec n) x #^ (Arr Int m) at #^ (Vec m) w]
  (ifold (fn [s i] (+ s (* (get w i) (exp (get x (get at i)))))) 0.0 (len at)))"""
#: The loop of the error is the first one that fails, whichever comes first in the derivative.
TWICE = """(defmodel twice [#^ (Vec n) x #^ (Arr Int m) at #^ (Arr Int m) to]
  (let [a (build (len at) (fn [i] (sin (get x (get at i)))))
        b (build (len at) (fn [i] (* (get a i) (get x (get to i)))))]
    (+ (fold + 0.0 a) (fold + 0.0 b))))"""
CHOSEN = """(defmodel chosen [#^ (Vec n) x #^ (Arr Int m) at]
  (ifold (fn [s i]
           (if (> (get x 0) 0.0)
             (* s (ifold (fn [t j] (+ t (* (get x (get at j)) (get x (get at i))))) 1.0 (len at)))
             (+ s (get x (get at i)))))
         1.0 (len at)))"""


def returns(source: str) -> int:
    """How many checks the C makes."""
    return len(re.findall(r"return [1-9]", source))


def packed(k: int = 2, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 0.5, (k, d * (d + 1) // 2)), rng.normal(0, 1, (k, d))


def differences(f, args, k: int) -> np.ndarray:
    """The gradient of a compiled function by its argument ``k``, by differences."""
    x, found = np.array(args[k], float), np.zeros(np.shape(args[k]))
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += 1e-6
        down[at] -= 1e-6
        found[at] = (f(*args[:k], up, *args[k + 1 :]) - f(*args[:k], down, *args[k + 1 :])) / 2e-6
    return found


def test_a_gradient_checks_what_its_value_does() -> None:
    model, args = hyad.model(PACKED), packed()
    value, gradient = hyad.compile(model), hyad.compile(hyad.grad(model, "packed"))
    value(*args), gradient(*args)
    assert returns(gradient.source) == returns(value.source)
    assert gradient.source.count("hyad_mul_overflows(c") == 1
    np.testing.assert_allclose(gradient(*args), differences(value, args, 0), rtol=1e-6, atol=1e-7)
    for target in ("c", "python"):
        f = hyad.compile(hyad.grad(model, "packed"), target=target)
        with pytest.raises(BoundsError):
            f(args[0][:, :-1].copy(), args[1])


@pytest.mark.parametrize("text", [GATHERED, TWICE, CHOSEN])
def test_the_first_error_is_the_one_of_the_value(text: str) -> None:
    model, rng = hyad.model(text), np.random.default_rng(2)
    x, m = np.array([0.3, 0.5, -0.2]), 5
    good = [rng.integers(0, 3, m) for _ in range(2)]
    others = [rng.normal(0, 1, m)] if model is not None and "w]" in text else []

    def arguments(*at: np.ndarray) -> tuple:
        return (x, at[0], *others) if "to]" not in text else (x, *at)

    derivatives = [hyad.grad(model, "x"), hyad.value_and_grad(model, "x"), hyad.hessian(model, "x")]
    value = hyad.compile(model)
    for f in derivatives[:1]:
        got = hyad.compile(f)(*arguments(*good))
        np.testing.assert_allclose(got, differences(value, arguments(*good), 0), rtol=1e-6, atol=1e-7)
    for place, wrong in ((0, 3), (1, -1), (0, 10**6), (1, -(10**9))):
        bad = [g.copy() for g in good]
        bad[place][3] = wrong
        bad[1 - place][4] = wrong
        args = arguments(*bad)
        with pytest.raises(BoundsError) as first:
            value(*args)
        for f in derivatives:
            for target in ("c", "python"):
                with pytest.raises(BoundsError) as caught:
                    hyad.compile(f, target=target)(*args)
                assert caught.value.span == first.value.span
                assert str(caught.value).partition(":")[2] == str(first.value).partition(":")[2]


@pytest.mark.parametrize("sure", [False, True])
def test_no_loop_passes_a_check_that_it_may_need(sure: bool) -> None:
    """What a loop reads may be in range because an earlier one found it so: it is not joined with one before that."""
    b, n, m = Builder(), Var("n", INT), Var("m", INT)
    x, at = Var("x", Arr(REAL, (n,))), Var("at", Arr(INT, (m,)))
    b.sizes |= {n, m}
    one = b.build(m, lambda i: b.prim("*", Const(2, INT), b.get(at, i)))

    def look(i):
        b.emit(Check("in", b.get(one, i), n, "out of range"), ())
        return (), ()

    b.loop(n, (), look)
    two = b.build(m, lambda i: b.prim("real", b.get(at, i)) if sure else b.get(x, b.get(at, i)))
    made = siblings(b.close(b.scopes[0], (one, two)))
    counts = [bind.op.count for bind in made.binds if type(bind.op) is Loop]
    assert counts == ([m, n] if sure else [m, n, m])
    assert sum(type(bind.op) is Check for bind in all_binds(made)) == 1
