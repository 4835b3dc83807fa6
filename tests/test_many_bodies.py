"""Energies and forces of many bodies as newcomers write them: each pair of different ones, a row for each force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hyad
from hyad.core import REAL, Arr, Const, If, Loop, Prim, Program, all_binds

X, Q = np.random.default_rng(2).uniform(-1, 1, (6, 2)), np.linspace(0.5, 1.5, 6)

ENERGY = """(fn [#^ (Mat n 2) x #^ (Vec n) q]
  (ifold (fn [s i] (ifold (fn [s j]
    (if (!= i j) (+ s (/ (* 0.5 (get q i) (get q j)) (norm (- (get x i) (get x j))))) s)) s (len q))) 0.0 (len q)))"""

FORCES = """(fn [#^ (Mat n 2) x #^ (Vec n) q] (build (len q) (fn [i]
  (sum (build (len q) (fn [j]
    (if (!= i j) (let [d (- (get x i) (get x j))] (/ (* (get q j) d) (** (norm d) 3))) [0.0 0.0]))) :axis 0))))"""


LANES = ("lanes", "eights", "whole-eights")


def inner_loops(program: Program) -> list[Loop]:
    loops = [x.op for x in all_binds(program.body) if type(x.op) is Loop]
    return [x.op for loop in loops for x in loop.body.binds if type(x.op) is Loop]


def names(loop: Loop) -> list[str]:
    return [x.op.name for x in all_binds(loop.body) if type(x.op) is Prim]


def numpy_forces(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    d = x[:, None] - x
    r = np.where(np.eye(len(q), dtype=bool), 1.0, np.sqrt(np.sum(d * d, axis=2)))
    return np.sum((q / r**3)[:, :, None] * d, axis=1)


def test_value_and_gradient_go_through_the_pairs_once() -> None:
    """Before a body and after it: both loops run as often as the other's, whoever has computed how often."""
    f = hyad.value_and_grad(ENERGY, wrt=("x", "q"))
    made = hyad.compile(f, args=(X, Q), target="python", without=LANES)
    loops = inner_loops(made.program)
    assert len(loops) == 2 and all("add-at" not in names(loop) for loop in loops)
    value, (x_bar, q_bar) = made(X, Q)
    plain, (x_plain, q_plain) = f(X, Q)
    assert value == pytest.approx(plain, rel=1e-15)
    np.testing.assert_allclose(x_bar, x_plain, rtol=1e-12)
    np.testing.assert_allclose(q_bar, q_plain, rtol=1e-12)


def test_equal_counts_are_one_count() -> None:
    """Each pair once, for a value and a gradient, which have each computed how many bodies there are behind one."""
    term = "(if (< i j) (/ (* (get q i) (get q j)) (norm (- (get x i) (get x j)))) 0.0)"
    text = f"(fn [#^ (Mat n 2) x #^ (Vec n) q] (sum (build [(len q) (len q)] (fn [i j] {term}))))"
    f = hyad.value_and_grad(text, wrt="x")
    made = hyad.compile(f, args=(X, Q), target="python")
    assert len(inner_loops(made.program)) == 1
    assert made(X, Q)[0] == pytest.approx(hyad.model(ENERGY)(X, Q), rel=1e-14)


@pytest.mark.parametrize("guard, derive", [("(!= i j)", hyad.value_and_grad), ("(and (!= i j) (< z 7.5))", hyad.model)])
def test_nothing_is_added_for_a_body_itself(guard: str, derive: Callable) -> None:
    """Neither zero to its sum, nor anything to its adjoints."""
    term = f"(let [z (real (* i j))] (if {guard} (/ (get q i) (norm (- (get x i) (get x j)))) 0.0))"
    f = derive(f"(fn [#^ (Mat n 2) x #^ (Vec n) q] (sum (build [(len q) (len q)] (fn [i j] {term}))))")
    program = hyad.compile(f, args=(X, Q), target="python", without=("pairs", "lanes")).program
    sums = [x for x in all_binds(program.body) if type(x.op) is Prim and x.op.name == "+"]
    assert sums and not any(a == Const(0.0, REAL) for x in sums for a in x.op.args)


def test_what_a_guard_has_chosen_is_not_computed_in_it_again() -> None:
    """The root of ``norm``, which is 0 where the sum is, and the quotients by it: a derivative, behind the same guard,
    takes them from there, and divides by the one reciprocal."""
    f = hyad.value_and_grad(ENERGY, wrt=("x", "q"))
    loops = inner_loops(hyad.compile(f, args=(X, Q), target="python", without=(*LANES, "roots")).program)
    assert [(names(loop).count("sqrt"), names(loop).count("/")) for loop in loops] == [(1, 2)] * 2


@pytest.mark.parametrize("n", [0, 1, 2, 6])
def test_rows_that_are_only_added_up_are_not_stored(n: int) -> None:
    """A branch that gives a short row gives its numbers; both columns are summed where these are made."""
    made, plain = (hyad.compile(FORCES, args=(X, Q), target="python", without=w) for w in ((), "one-reader"))
    stored = [
        any(isinstance(v.type, Arr) for x in all_binds(loop.body) for v in x.vars) for loop in inner_loops(made.program)
    ]
    assert not any(stored) and all(len(loop.accs) == 2 for loop in inner_loops(made.program))
    assert len(inner_loops(plain.program)) > len(inner_loops(made.program))
    np.testing.assert_allclose(made(X[:n], Q[:n]), numpy_forces(X[:n], Q[:n]), rtol=1e-13)
    np.testing.assert_array_equal(made(X[:n], Q[:n]), plain(X[:n], Q[:n]))


def test_a_branch_gives_the_numbers_of_a_short_row() -> None:
    made = hyad.compile(FORCES, args=(X, Q), target="python", without=("split", "lanes", "one-reader"))
    chosen = [v for x in all_binds(made.program.body) if type(x.op) is If for v in x.vars]
    assert len(chosen) >= 2 and not any(isinstance(v.type, Arr) for v in chosen)


def test_a_sum_that_needs_the_other_stays_behind_it() -> None:
    """Two readers of one array, the second of which waits for the first, are two loops, and the array is made."""
    text = """(fn [v m] (map (fn [z] (let [e (build (len v) (fn [i] (exp (* z (get v i)))))
                                           s (sum e)] (sum (build (len v) (fn [i] (/ (get e i) s)))))) m))"""
    made = hyad.compile(text, args=(Q, Q), target="python")
    np.testing.assert_allclose(made(Q, Q), np.ones(len(Q)), rtol=1e-14)


def test_gradients_of_forces() -> None:
    text = f"(fn [#^ (Mat n 2) x #^ (Vec n) q] (let [f ({FORCES} x q)] (sum (* f f))))"
    assert hyad.check_grad(hyad.model(text, namespace={}), [X, Q])
    got, plain = (
        hyad.compile(hyad.grad(text), args=(X, Q), target="python", without=w)(X, Q)
        for w in ((), ("one-reader", "pairs", "split", "share", "reciprocals"))
    )
    for a, b in zip(got, plain):
        np.testing.assert_allclose(a, b, rtol=1e-11)
