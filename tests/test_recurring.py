"""What an iteration ends with and the next one begins with, computed once (``hyad/passes/recurring.py``)."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Bind, Block, Check, While, all_binds, blocks_of, with_blocks
from hyad.passes.recurring import in_common

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


#: What the condition of a ``while`` asks for, and its body needs: a function, a residual, a sum; in a branch, too.
ROOT = """(fn [x a]
  (let [f (fn [x] (- (exp x) (* a x) 2.0)) x (ref x)]
    (while (> (abs (f (deref x))) 1e-10) (set! x (- (deref x) (/ (f (deref x)) (- (exp (deref x)) a)))))
    (deref x)))"""
DAMPED = """(fn [#^ (Mat n n) A #^ (Vec n) b]
  (let [x (ref (* 0.0 b))]
    (while (> (sum (square (- b (@ A (deref x))))) 1e-12)
      (set! x (+ (deref x) (* 0.2 (- b (@ A (deref x)))))))
    (sum (square (deref x)))))"""
CONJUGATE = """(fn [#^ (Mat n n) A #^ (Vec n) b]
  (let [x (ref (* 0.0 b)) r (ref b) p (ref b) k (ref 0)]
    (while (and (< (deref k) 5) (> (dot (deref r) (deref r)) 1e-6))
      (let [q (@ A (deref p)) rr (dot (deref r) (deref r)) s (/ rr (dot (deref p) q)) rest (- (deref r) (* s q))]
        (set! x (+ (deref x) (* s (deref p))))
        (set! r rest)
        (set! p (+ rest (* (/ (dot rest rest) rr) (deref p))))
        (set! k (+ 1 (deref k)))))
    (sum (square (deref x)))))"""


def system(n: int) -> tuple:
    rng = np.random.default_rng(n)
    half = rng.normal(size=(n, n)) / 10
    return 2.0 * np.eye(n) + half + half.T, rng.normal(size=n)


@pytest.mark.parametrize(
    "text, args",
    [(ROOT, (0.7, 0.3)), (ROOT, (1.7, 1.5)), *((t, system(n)) for t in (DAMPED, CONJUGATE) for n in (1, 2, 5, 9))],
)
def test_what_a_condition_asks_for_is_computed_once(text: str, args: tuple) -> None:
    f = hyad.model(text, namespace={})
    assert "recurring" in [step.name for step in hyad.explain(f, args=args).steps]
    assert hyad.compile(f, "python", args=args)(*args) == hyad.run(f, *args)
    wrt = ("x", "a") if text is ROOT else ("A", "b")
    g = hyad.grad(f, wrt=wrt)
    for one, other in zip(memoised.compile(g)(*args), hyad.compile(g, args=args, without="recurring")(*args)):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    assert hyad.check_grad(f, args, wrt=wrt)


def test_a_while_with_nothing_made_twice() -> None:
    """One exponential in an iteration, one product with the matrix, one sum of squares; the sizes compared before."""
    for text, args, pattern, times, others in (
        (ROOT, (0.7, 0.3), r"\bexp\(", 1, 2),
        (DAMPED, system(9), r"for \(long long i1", 2, 4),  # four rows at once, and what is left of them
        (CONJUGATE, system(9), r"\+= (\w+)\*\1;", 1, 3),
    ):
        f = hyad.model(text, namespace={})
        for how, wanted in (({}, times), ({"without": "recurring"}, others)):
            source = hyad.compile(f, args=args, **how).source
            code = re.sub(" *//.*", "", source)
            inside = re.search(r"\n    (while|for \(;;\)).*?\n    }\n", code, re.DOTALL)[0]
            assert len(re.findall(pattern, inside)) == wanted and "return 1" not in inside, inside


@pytest.mark.parametrize(
    "cond, step",
    [
        ("(> (exp x) 1.0)", "(- x (exp (+ x 1.0)))"),
        ("(> (* x x) 1.0)", "(- x (* 0.1 x x))"),
        ("(and (< (int x) (len v)) (> (exp (get v (int x))) 1.0))", "(+ x (exp (get v (int x))))"),
    ],
    ids=["of another number", "cheap", "may fail"],
)
def test_a_while_left_alone(cond: str, step: str) -> None:
    text = f"""(fn [x #^ (Vec n) v]
      (let [r (ref x)]
        (while (let [x (deref r)] {cond}) (set! r (let [x (deref r)] {step})))
        (deref r)))"""
    f, args = hyad.model(text, namespace={}), (1.3, np.linspace(0.5, 1.5, 4))
    assert "recurring" not in [s.name for s in hyad.explain(f, args=args).steps]
    assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)


def test_what_a_branch_of_a_condition_guards_stays_there() -> None:
    """An element is there where the branch says so; beyond it, nothing is read. What is whole needs no guard."""
    text = """(fn [#^ (Vec n) v #^ Int k]
      (let [k (ref k) s (ref 0.0)]
        (while (and (<= 0 (deref k)) (< (deref k) n) (< TERM 9.0))
          (set! s (+ (deref s) TERM))
          (set! k (+ 1 (deref k))))
        (deref s)))"""
    for term, name, guarded in (
        ("(exp (get v (deref k)))", "an element", True),
        ("(ifold (fn [q i] (+ q (exp (get v i)))) 0.0 (deref k))", "as many", True),
        ("(* (deref s) (ifold (fn [q i] (+ q (exp (+ (deref s) (get v i))))) 0.0 n))", "all", False),
    ):
        f = hyad.model(text.replace("TERM", term), namespace={})
        loop = next(x.op for x in all_binds(f.program(f.specs()).body) if type(x.op) is While)
        bare = dataclasses.replace(loop, cond=unchecked(loop.cond), body=unchecked(loop.body))
        assert (in_common(bare) == {}) is guarded, name
        v = np.linspace(0.1, 0.7, 4)
        for k in (-1, 0, 3, 4, 9):
            assert hyad.compile(f, "python", args=(v, k))(v, k) == hyad.run(f, v, k)


def unchecked(block: Block) -> Block:
    """A block as if all in it had been proved."""
    binds = (x for x in block.binds if type(x.op) is not Check)
    made = (
        Bind(x.vars, with_blocks(x.op, [unchecked(b) for b in blocks_of(x.op)]), x.span, x.soft)
        if blocks_of(x.op)
        else x
        for x in binds
    )
    return Block(tuple(made), block.results)


def test_a_condition_that_fails_at_once() -> None:
    """What is handed on is computed before the loop, and of a state that the condition does not ask for."""
    text = """(fn [x] (let [r (ref x) k (ref 0)]
      (while (and (< (deref k) 3) (< (log (deref r)) 1.0))
        (set! r (+ (deref r) (log (deref r))))
        (set! k (+ 1 (deref k))))
      (deref r)))"""
    f = hyad.model(text, namespace={})
    for x in (-1.0, 0.0, 1.5, 9.0, float("nan"), float("inf")):
        np.testing.assert_equal(f(x), hyad.run(f, x))
        np.testing.assert_equal(hyad.grad(f)(x), hyad.jvp(f, [x], [1.0]))


def test_sizes_that_a_while_needs_are_compared_before_it_and_named() -> None:
    f = hyad.model(CONJUGATE.replace("(Mat n n)", "(Mat n m)").replace("(Vec n) b", "(Vec k) b"), namespace={})
    with pytest.raises(hyad.HyadError) as caught:
        f(np.eye(3), np.ones(2))
    assert "(@ A (deref p))" in str(caught.value) or "(dot (deref p) q)" in str(caught.value)
