"""Recursion whose way back can begin at once: one function for both ways, and no record (``roundtrip``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import functions_of
from hyad.passes.optimise import PIPELINE, optimise
from hyad.passes.roundtrip import round_trips
from hyad.program.data import lisp

Tree = hyad.defdata("Tree", ["Leaf", "x"], ["Node", "left", "right"])
NAMES = {"Tree": Tree, "Leaf": Tree.Leaf, "Node": Tree.Node}
TREE = Tree.Node(Tree.Node(Tree.Leaf(0.3), Tree.Node(Tree.Leaf(-0.7), Tree.Leaf(1.2))), Tree.Leaf(0.4))
LIST = lisp([0.3, -0.7, 1.2, 0.4])

WALK = "(fn [a b t] (letrec [s (fn [t] (match t (Leaf x) {} (Node l r) {}))] (s t)))"
COUNT = "(fn [a b n] (letrec [f (fn [n] {})] (f n)))"
JOINED = [
    (WALK.format("(* a x)", "(+ (* b (s l)) (s r))"), TREE),
    (WALK.format("(sin (* a x))", "(* b (- (s r) (s l)))"), TREE),
    ("(fn [a b l] (letrec [s (fn [l] (if (null? l) a (+ (* b (car l)) (* a (s (cdr l))))))] (s l)))", LIST),
    (COUNT.format("(if (< n 2) a (+ (* b (f (- n 1))) (* a (f (- n 2)))))"), 7),
    ("(fn [a b n] (letrec [f (fn [n x] (if (= n 0) (* x a) (* b (f (- n 1) (sin x)))))] (f n a)))", 5),
    (COUNT.format("(if (= n 0) a (if (= (% n 2) 0) (* b (f (- n 1))) (- (* a (f (- n 1))) (* b n))))"), 6),
    (
        "(fn [a b n] (letrec [f (fn [n] (if (= n 0) a (+ b (* a (g (- n 1))))))"
        " g (fn [n] (if (= n 0) b (* b (f (- n 1)))))] (f n)))",
        7,
    ),
    (
        "(fn [a b n] (letrec [f (fn [n] (if (= n 0) #(a b) (let [#(x y) (f (- n 1))]"
        " #((+ (* a x) (* b y)) (* 0.5 x)))))] (let [#(x y) (f n)] x)))",
        5,
    ),
]
KEPT = [
    (COUNT.format("(if (= n 0) a (* b (sin (f (- n 1)))))"), 5),  # needs the inner value
    (COUNT.format("(if (< n 2) a (* b (* (f (- n 1)) (f (- n 2)))))"), 5),
    (WALK.format("(* a x)", "(tanh (+ (s l) (* b (s r))))"), TREE),
    ("(fn [a b n] (letrec [f (fn [n] (if (= n 0) a (+ (* b (f (- n 1))) a)))] (sin (f n))))", 5),  # the first needs all
]


def both_ways(text: str, data: Any) -> tuple[hyad.Model, str]:
    f = hyad.value_and_grad(hyad.model(text, namespace=NAMES), wrt=("a", "b"))
    return f, hyad.compile(f, args=(0.7, 1.3, data), without="few-inputs").cfunction.source


def differences(text: str, args: Sequence[Any], h: float = 1e-5) -> np.ndarray:
    f = hyad.model(text, namespace=NAMES)

    def value(a: float, b: float) -> float:
        return hyad.run(f, a, b, *args[2:])

    a, b, steps = *args[:2], ((1, 8), (-1, -8), (2, -1), (-2, 1))
    da = sum(w * value(a + k * h, b) for k, w in steps) / (12 * h)
    return np.array([value(a, b), da, sum(w * value(a, b + k * h) for k, w in steps) / (12 * h)])


@pytest.mark.parametrize(("text", "data"), JOINED)
def test_no_record_is_made(text: str, data: Any) -> None:
    f, source = both_ways(text, data)
    assert "_both(" in source and "record" not in source and "hyad_alloc" not in source
    back = hyad.compile(f, target="c", args=(0.7, 1.3, data), without="few-inputs")
    got = oracle.numbers(back(0.7, 1.3, data))
    np.testing.assert_allclose(got, differences(text, (0.7, 1.3, data)), rtol=1e-9)
    np.testing.assert_allclose(
        got, oracle.numbers(hyad.compile(f, target="python", args=(0.7, 1.3, data))(0.7, 1.3, data)), rtol=1e-13
    )


@pytest.mark.parametrize(("text", "data"), KEPT)
def test_a_record_that_is_needed_stays(text: str, data: Any) -> None:
    f, source = both_ways(text, data)
    assert "_both(" not in source and "record" in source


def test_a_program_without_trips_is_left_alone() -> None:
    f = hyad.grad(hyad.model(KEPT[0][0], namespace=NAMES), wrt=("a", "b"))
    program = f.program(f.specs((0.7, 1.3, 5)))
    before = optimise(program, PIPELINE[: PIPELINE.index(round_trips)])
    assert functions_of(before.body) and round_trips(before) is before


def test_arrays_of_parameters_are_added_to_in_place() -> None:
    text = WALK.format("(* (get w 0) x)", "(+ (* (get w 1) (s l)) (s r))").replace("[a b t]", "[w t]")
    f = hyad.grad(hyad.model(text, namespace=NAMES), wrt="w")
    w = np.array([0.7, 1.3])
    wanted = hyad.grad(hyad.model(JOINED[0][0], namespace=NAMES), wrt=("a", "b"))(*w, TREE)
    np.testing.assert_allclose(hyad.compile(f, target="c", args=(w, TREE))(w, TREE), wanted, rtol=1e-13)


def test_a_gradient_by_data_and_second_derivatives() -> None:
    text = JOINED[0][0]
    by_tree = hyad.grad(hyad.model(text, namespace=NAMES), wrt="t")
    a, b = 0.7, 1.3
    found = hyad.compile(by_tree, target="c", args=(a, b, TREE))(a, b, TREE)
    wanted = hyad.compile(by_tree, target="python", args=(a, b, TREE))(a, b, TREE)
    np.testing.assert_allclose(oracle.numbers(found), oracle.numbers(wanted), rtol=1e-13)
    f = hyad.model(f"(fn [a b t] (let [#(p q) ((grad (fn [a b] ({text} a b t))) a b)] (* p q)))", namespace=NAMES)
    np.testing.assert_allclose(
        hyad.compile(hyad.grad(f, wrt=("a", "b")), target="c", args=(a, b, TREE))(a, b, TREE),
        [
            (lambda g: (g(a + 1e-5, b) - g(a - 1e-5, b)) / 2e-5)(lambda a, b: hyad.run(f, a, b, TREE)),
            (lambda g: (g(a, b + 1e-5) - g(a, b - 1e-5)) / 2e-5)(lambda a, b: hyad.run(f, a, b, TREE)),
        ],
        rtol=1e-8,
    )


def test_stack_of_both_ways_is_near_the_primals() -> None:
    """A right-leaning tree of 10,000 levels, and a list of as many."""
    tree = Tree.Leaf(0.5)
    for _ in range(10_000):
        tree = Tree.Node(Tree.Leaf(0.1), tree)
    f = hyad.grad(hyad.model(JOINED[0][0], namespace=NAMES), wrt=("a", "b"))
    assert np.isfinite(hyad.compile(f, target="c", args=(0.7, 0.9, tree))(0.7, 0.9, tree)).all()
