"""dF~'s identities of matrix calculus (section 5), on the optimised programs themselves and not on their values alone.

``SAME`` are derivatives whose program is that of the form derived by hand: as many loops at each depth, as many
operations on numbers, as many arrays. What is said of the paper's forward mode is said of reverse mode as well.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Block, Loop, Prim, Program, blocks_of
from hyad.program.primitives import PRIMITIVES

RNG = np.random.default_rng(4)
S, M, A = RNG.normal(size=(4, 4)), RNG.normal(size=(4, 5)), RNG.normal(size=(5, 4))
U, V, X = RNG.normal(size=4), RNG.normal(size=5), RNG.normal(size=4)
W, H, B = RNG.uniform(1, 2, (6, 3)), RNG.uniform(1, 2, (3, 5)), RNG.uniform(1, 2, (6, 5))


def optimised(text: str, args: tuple[Any, ...]) -> Program:
    model = hyad.model(text, namespace={})
    return model.optimised(model.specs(args))


def contents(program: Program) -> Counter:
    """What a program does: its loops by depth, its operations on reals by depth, the arrays that it clears."""
    found: Counter = Counter()

    def walk(block: Block, depth: int) -> None:
        for bind in block.binds:
            op = bind.op
            if type(op) is Loop and (op.body.results or op.accs):  # one that checks sizes is none
                found["loops", depth] += 1
            if type(op) is Prim and op.name in PRIMITIVES and str(bind.vars[0].type) == "Real":
                found["operations", depth] += 1
            if type(op) is Prim and op.name == "zeros":
                found["zeros", depth] += 1
            for inner in blocks_of(op):
                walk(inner, depth + (type(op) is Loop))

    walk(program.body, 0)
    return found


def forward(f: str, x: str) -> str:
    """dF~ Fig. 6: the derivative by each element of a matrix, along unit matrices."""
    hot = f"(matrix-hot (matrix-rows {x}) (matrix-cols {x}) r c)"
    return f"(build [(matrix-rows {x}) (matrix-cols {x})] (fn [r c] (jvp (fn [{x}] {f}) {x} {hot})))"


def by_deriv(f: str, x: str) -> str:
    return f"(snd (deriv {f} {x}))"


UMV = "(get (mat-mul (vector-to-matrix u) (mat-mul m (transpose (vector-to-matrix v)))) 0 0)"
SAME = {
    "d(v1.v2)/dv1 = v2, forwards": (
        "(fn [u v] (build (len u) (fn [i] (jvp (fn [u] (dot u v)) u (one-hot (len u) i)))))",
        "(fn [u v] (do (require-equal (len u) (len v)) (build (len u) (fn [i] (get v i)))))",
        (U, X),
    ),
    "d tr(M)/dM = I": (f"(fn [m] {by_deriv('(trace m)', 'm')})", "(fn [m] (eye (len m)))", (S,)),
    "d tr(M)/dM = I, forwards": (f"(fn [m] {forward('(trace m)', 'm')})", "(fn [m] (eye (len m)))", (S,)),
    "d tr(MA)/dM = A'": (
        f"(fn [m a] {by_deriv('(trace (mat-mul m a))', 'm')})",
        "(fn [m a] (transpose a))",
        (M, A),
    ),
    "d tr(MA)/dM = A', forwards": (
        f"(fn [m a] {forward('(trace (mat-mul m a))', 'm')})",
        "(fn [m a] (transpose a))",
        (M, A),
    ),
    "d(u M v')/dM = u' v": (f"(fn [u m v] {by_deriv(UMV, 'm')})", "(fn [u m v] (outer u v))", (U, M, V)),
    "d(u M v')/dM = u' v, forwards": (f"(fn [u m v] {forward(UMV, 'm')})", "(fn [u m v] (outer u v))", (U, M, V)),
    "d(u M v')/dM by grad": (
        f"(fn [u m v] ((grad (fn [m] {UMV})) m))",
        "(fn [u m v] (outer u v))",
        (U, M, V),
    ),
    "d(x.x)/dx = 2x": ("(fn [x] ((grad (fn [x] (sum (* x x)))) x))", "(fn [x] (* 2 x))", (U,)),
    "d(x.x)/dx = 2x, forwards": (
        "(fn [x] (build (len x) (fn [i] (jvp sq-norm x (one-hot (len x) i)))))",
        "(fn [x] (* 2 x))",
        (U,),
    ),
    "d2(x.x)/dx2 = 2I": ("(fn [x] ((hessian (fn [x] (dot x x))) x))", "(fn [x] (* 2.0 (eye (len x))))", (U,)),
    "d(y.Mv)/dM = y v'": (
        "(fn [m y v] ((grad (fn [m] (dot y (mat-vec m v)))) m))",
        "(fn [m y v] (outer y v))",
        (M, U, V),
    ),
    "d2(x.Sx)/dx2 = S + S'": (
        "(fn [s x] ((hessian (fn [x] (dot x (mat-vec s x)))) x))",
        "(fn [s x] (+ s (transpose s)))",
        (S, U),
    ),
    "d sum(x)/dx = 1": ("(fn [x] ((grad sum) x))", "(fn [x] (ones (len x)))", (U,)),
    "d exp(x)/dx = diag(exp(x))": ("(fn [x] ((jacobian exp) x))", "(fn [x] (diag (exp x)))", (U,)),
    "d logsumexp(x)/dx = softmax(x)": (
        "(fn [x] ((grad logsumexp) x))",
        "(fn [x] (let [m (amax x) e (exp (- x (if (= (- m m) 0.0) m 0.0))) r (/ 1 (sum e))] (map (fn [a] (* r a)) e)))",
        (U,),
    ),
}
#: A model that is one of its arguments.
ARGUMENT = {
    "d(Mv)/dv = M": ("(fn [m v] ((jacobian (fn [v] (@ m v))) v))", 0, (M, V)),
    "I x M = M": ("(fn [m] (mat-mul (eye (len m)) m))", 0, (M,)),
    "(M')' = M": ("(fn [m] (transpose (transpose m)))", 0, (M,)),
    "(M')' = M in dF~'s names": ("(fn [m] (matrix-transpose (matrix-transpose m)))", 0, (M,)),
    "v x I = v": ("(fn [v] (vec-mat v (eye (len v))))", 0, (U,)),
    "M x I = M": ("(fn [m] (mat-mul m (eye (get (shape m) 1))))", 0, (M,)),
    "d(v1.v2)/dv1 = v2": ("(fn [u v] (snd (deriv (dot u v) u)))", 1, (U, X)),
    "d(v1.v2)/dv1 = v2 by grad": ("(fn [u v] ((grad (fn [u] (dot u v))) u))", 1, (U, X)),
    "d(v1.v2)/dv1 = v2 in dF~'s names": ("(fn [u v] (snd (deriv (vector-dot u v) u)))", 1, (U, X)),
}


@pytest.mark.parametrize("name", SAME)
def test_a_derivative_is_the_form_derived_by_hand(name: str) -> None:
    text, hand, args = SAME[name]
    assert contents(optimised(text, args)) == contents(optimised(hand, args))
    np.testing.assert_allclose(hyad.model(text, namespace={})(*args), hyad.model(hand, namespace={})(*args), rtol=1e-14)


@pytest.mark.parametrize("name", ARGUMENT)
def test_a_form_that_is_its_argument_computes_nothing(name: str) -> None:
    text, k, args = ARGUMENT[name]
    program = optimised(text, args)
    assert program.body.results == (program.params[k],) and not contents(program)
    np.testing.assert_array_equal(hyad.model(text, namespace={})(*args), args[k])


NNMF = {
    "of whole matrices": "(let [wh (mat-mul w h)] (sum (+ (log wh) (/ a wh))))",
    "row by row": "(sum (map (fn [x y] (sum (map (fn [x y] (+ (log x) (/ y x))) x y))) (mat-mul w h) a))",
}


@pytest.mark.parametrize("name", NNMF)
def test_the_gradient_of_nnmf_has_no_loop_more_than_by_hand(name: str) -> None:
    """dD/dH = W' (1/WH - A/(WH)^2)."""
    derived = f"(fn [w h a] {by_deriv(NNMF[name], 'h')})"
    hand = "(fn [w h a] (let [wh (mat-mul w h)] (mat-mul (transpose w) (- (/ 1 wh) (/ a (* wh wh))))))"
    got, wanted = (contents(optimised(text, (W, H, B))) for text in (derived, hand))
    for depth in range(5):
        for kind in ("loops", "operations"):
            assert got[kind, depth] <= wanted[kind, depth], (kind, depth)
    values = [hyad.model(text, namespace={})(W, H, B) for text in (derived, hand)]
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_matrices_between_are_not_made() -> None:
    """What is done to each element of a product is done where its row is made."""
    plain, more = (
        contents(optimised(f"(fn [w h a] {form})", (W, H, B)))
        for form in ("(mat-mul w h)", "(* 2 (+ (mat-mul w h) (/ a (+ a 1))))")
    )
    more["loops", 1] -= 1  # along the row
    assert {k: n for k, n in plain.items() if k[0] != "operations"} == {
        k: n for k, n in more.items() if k[0] != "operations"
    }


def test_what_costs_is_not_computed_again_in_an_inner_loop() -> None:
    """The quotients are made once for each element, not once for each product in which it is read."""
    text = "(fn [w x a] (mat-mul w (- (/ 1 x) (/ a x))))"
    program = optimised(text, (B.T, B, B))
    divisions: list[int] = []

    def walk(block: Block, depth: int) -> None:
        for bind in block.binds:
            if type(bind.op) is Prim and bind.op.name == "/":
                divisions.append(depth)
            for inner in blocks_of(bind.op):
                walk(inner, depth + (type(bind.op) is Loop))

    walk(program.body, 0)
    assert divisions and max(divisions) == 2


def test_what_is_made_first_stays() -> None:
    """A transpose that a product reads again and again is made first; a sum does not come to stand beside a call."""
    product = contents(optimised("(fn [m b] (mat-mul m (transpose b)))", (M, M)))
    made = contents(optimised("(fn [m b] (mat-mul m b))", (M, A)))
    assert product["loops", 0] == made["loops", 0] + 1
    assert contents(optimised("(fn [w h] (exp (mat-mul w h)))", (W, H)))["loops", 0] == 2
