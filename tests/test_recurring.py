"""What an iteration ends with and the next one begins with, computed once (``hyad/passes/recurring.py``)."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import all_binds

#: Leapfrog steps, the forces of a pendulum, and of bodies that attract one another.
PENDULUM = """(fn [x v dt #^ Int steps]
  (let [#(x v) (ifold (fn [#(x v) s]
                        (let [v (- v (* 0.5 dt (sin x))) x (+ x (* dt v)) v (- v (* 0.5 dt (sin x)))] #(x v)))
                      #(x v) steps)]
    (+ (* 0.5 v v) (* x x))))"""
BODIES = """(fn [#^ (Mat n 2) x #^ (Mat n 2) v #^ (Vec n) m #^ Real dt #^ Int steps]
  (let [forces (fn [x] (let [a (zeros [n 2])]
                         (for [i (range n) j (range (+ i 1) n)]
                           (let [d (- (get x j) (get x i)) w (/ 1.0 (+ 0.1 (dot d d)))]
                             (set-at! a i (+ (get a i) (* (get m j) w d)))
                             (set-at! a j (- (get a j) (* (get m i) w d)))))
                         a))
        x (ref x) v (ref v)]
    (for [s (range steps)]
      (set! v (+ (deref v) (* 0.5 dt (forces (deref x)))))
      (set! x (+ (deref x) (* dt (deref v))))
      (set! v (+ (deref v) (* 0.5 dt (forces (deref x))))))
    (+ (sum (square (deref x))) (sum (deref v)))))"""


def count(f: hyad.Model, name: str, *without: str) -> int:
    """How often the one of a program's loops that does most of all calls a function."""
    body = f.without(without).optimised(f.specs()).body if without else f.optimised(f.specs()).body
    loops = [x.op.body for x in body.binds if hasattr(x.op, "accs")]
    return max(sum(getattr(y.op, "name", None) == name for y in all_binds(block)) for block in loops)


def points(text: str, steps: int) -> tuple:
    rng = np.random.default_rng(steps)
    if text is PENDULUM:
        return 0.7, -0.2, 0.1, steps
    return rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.uniform(0.5, 2.0, 4), 0.05, steps


@pytest.mark.some(10)
@pytest.mark.parametrize("text, wrt", [(PENDULUM, ("x", "v")), (BODIES, ("x", "v", "m"))], ids=["pendulum", "bodies"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_values_to_the_last_bit_and_gradients(text: str, wrt: tuple, steps: int) -> None:
    args = points(text, steps)
    f = hyad.model(text, namespace={})
    assert hyad.compile(f, "python", args=args)(*args) == hyad.run(f, *args)
    assert "recurring" in [step.name for step in hyad.explain(f, args=args).steps]
    g = hyad.grad(f, wrt=wrt)
    for one, other in zip(memoised.compile(g)(*args), hyad.compile(g, args=args, without="recurring")(*args)):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    hyad.check_grad(f, args, wrt=wrt)


def test_one_evaluation_in_a_step() -> None:
    f = hyad.model(PENDULUM, namespace={})
    assert count(f, "sin") == 1 and count(f, "sin", "recurring") == 2
    g = hyad.model(BODIES, namespace={})
    assert count(g, "/") == 1 and count(g, "/", "recurring") == 2
    back = hyad.grad(f, wrt="x")
    assert count(back, "sin") <= 1 and count(back, "sin", "recurring") == 2
    forces = hyad.grad(g, wrt=("x", "v", "m"))  # taken once in a step there, and once back
    assert count(forces, "/") == 1 and count(forces, "/", "recurring") == 2


@pytest.mark.parametrize(
    "step",
    [
        "(let [v (- v (* 0.5 (sin (+ x (real s))))) x (+ x v) v (- v (* 0.5 (sin (+ x (real s)))))] #(x v))",
        "(let [v (- v (* 0.5 (sin x))) y (+ x v) v (- v (* 0.5 (sin y)))] #((* 2 y) v))",
        "(let [v (- v (* 0.5 (* x 3.0))) x (+ x v) v (- v (* 0.5 (* x 3.0)))] #(x v))",
    ],
    ids=["the step counts", "another state", "cheap"],
)
def test_left_alone(step: str) -> None:
    text = f"(fn [x v #^ Int n] (let [#(x v) (ifold (fn [#(x v) s] {step}) #(x v) n)] (+ x v)))"
    f = hyad.model(text, namespace={})
    assert "recurring" not in [s.name for s in hyad.explain(f, args=(0.1, 0.2, 3)).steps]
    assert f(0.1, 0.2, 3) == pytest.approx(hyad.run(f, 0.1, 0.2, 3), rel=1e-13)


def test_nothing_larger_than_a_state() -> None:
    """A matrix of all distances would be remembered for each step of a vector."""
    text = """(fn [#^ (Vec n) x #^ Int steps]
      (let [far (fn [x] SIZE)
            #(x e) (ifold (fn [#(x e) s] (let [y (+ x (* 0.01 (ROW (far x))))] #(y (+ e (sum (square (far y)))))))
                          #(x 0.0) steps)]
        (+ e (sum x))))"""
    matrix = "(build [(len x) (len x)] (fn [i j] (exp (* (get x i) (get x j)))))"
    for size, row, fired in ((matrix, "(fn [k] (map sum k))", False), ("(exp x)", "(fn [k] k)", True)):
        f = hyad.model(text.replace("SIZE", size).replace("ROW", row), namespace={})
        args = (np.linspace(-1.0, 1.0, 4), 2)
        assert ("recurring" in [s.name for s in hyad.explain(f, args=args).steps]) is fired
        assert hyad.check_grad(f, args, wrt="x")
