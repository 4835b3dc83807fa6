"""What a loop does not change is read where it is, and not remembered in each iteration; no table is made twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Arr, Loop, Prim, all_binds
from hyad.program.loops import loops_of

#: A line of cells, each of which hands on to the next what depends on constants beside it.
LINE = """(fn [#^ (Vec n) u0 #^ (Vec n) k #^ Int s]
  (let [u (ref u0)]
    (for [t (range s)]
      (let [new (copy (deref u))]
        (for [j (range 1 n)]
          (set-at! new j (+ (get (deref u) j) (* QUOTIENT (get (deref u) (- j 1))))))
        (set! u new)))
    (sum (deref u))))"""
QUOTIENTS = {
    "a reciprocal": "(/ 1 (+ (get k j) (get k (- j 1))))",
    "a quotient": "(/ (* 0.1 (get k j)) (+ (get k j) (get k (- j 1))))",
    "a call": "(* 0.1 (exp (* (get k j) (get k (- j 1)))))",
}
TWICE = LINE.replace("(for [t (range s)]", "(for [q (range 2)] (for [t (range s)]").replace(
    "(set! u new)))", "(set! u new))) (set! u (sin (deref u))))"
)

#: The same on a grid, with means of conductivities.
GRID = """(fn [#^ (Mat n m) u0 #^ (Mat n m) k #^ Int s]
  (let [u (ref (copy u0))]
    (for [t (range s)]
      (let [new (copy (deref u))]
        (for [i (range 1 (- n 1))  j (range 1 (- m 1))]
          (let [c (get (deref u) i j)
                mean (fn [a b] (/ (* 2 a b) (+ a b)))]
            (set-at! new i j (+ c (* 0.1 (+
              (* (mean (get k i j) (get k (- i 1) j)) (- (get (deref u) (- i 1) j) c))
              (* (mean (get k i j) (get k i (+ j 1))) (- (get (deref u) i (+ j 1)) c))))))))
        (set! u new)))
    (sum (square (deref u)))))"""


def compiled(text: str, args: tuple, without: Any = (), gradient: bool = True) -> Any:
    f = hyad.model(text, namespace={})
    return memoised.compile(hyad.grad(f, wrt=("u0", "k")) if gradient else f, args=args, without=without)


def remembered(f: Any) -> int:
    """How many arrays have a row, or a matrix, for each iteration of the loop over time."""
    program = f.program
    rank = max(p.type.rank for p in program.params if isinstance(p.type, Arr))
    return sum(
        isinstance(v.type, Arr) and v.type.rank > rank for x in program.body.binds if type(x.op) is Loop for v in x.vars
    )


def same_bits(one: Any, other: Any) -> bool:
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_table_of_constants_is_not_remembered_in_each_step(name: str) -> None:
    rng = np.random.default_rng(0)
    text = LINE.replace("QUOTIENT", QUOTIENTS[name])
    args = rng.normal(size=6), rng.uniform(0.5, 2.0, 6), 4
    made, plain = compiled(text, args), compiled(text, args, "lasting")
    assert remembered(made) == 1 < remembered(plain)
    for n in (0, 1, 2, 3, 7, 20):
        for s in (0, 1, 2, 5):
            args = rng.normal(size=n), rng.uniform(0.5, 2.0, n), s
            assert same_bits(made(*args), plain(*args))
    assert hyad.check_grad(hyad.model(text, namespace={}), (args[0][:5], args[1][:5], 3), wrt=("u0", "k"))


@pytest.mark.parametrize("name", QUOTIENTS)
def test_nor_in_each_step_of_two_loops(name: str) -> None:
    rng = np.random.default_rng(1)
    text = TWICE.replace("QUOTIENT", QUOTIENTS[name])
    args = rng.normal(size=6), rng.uniform(0.5, 2.0, 6), 4
    made, plain = compiled(text, args), compiled(text, args, "lasting")
    assert made.source.count("s > 0 ? s") < plain.source.count("s > 0 ? s")
    for n, s in ((0, 2), (1, 2), (2, 0), (2, 1), (3, 3), (8, 4)):
        args = rng.normal(size=n), rng.uniform(0.5, 2.0, n), s
        assert same_bits(made(*args), plain(*args))


def test_tables_of_a_grid_are_not_remembered_in_each_step() -> None:
    rng = np.random.default_rng(2)
    args = rng.normal(size=(5, 6)), rng.uniform(0.5, 2.0, (5, 6)), 4
    made, plain = compiled(GRID, args), compiled(GRID, args, "lasting")
    assert remembered(made) == 1 < remembered(plain)
    for n, m, s in ((0, 0, 2), (1, 3, 2), (2, 2, 2), (3, 3, 0), (3, 3, 1), (3, 2, 4), (4, 7, 3), (9, 8, 5)):
        args = rng.normal(size=(n, m)), rng.uniform(0.5, 2.0, (n, m)), s
        assert same_bits(made(*args), plain(*args))
    small = args[0][:4].copy(), args[1][:4].copy(), 2
    assert hyad.check_grad(hyad.model(GRID, namespace={}), small, wrt=("u0", "k"))


def test_a_table_that_differentiation_makes_again_is_made_once() -> None:
    """The reciprocal is the model's own, and the derivative of a quotient by what it is divided by has it, too."""
    args = np.ones(5), np.ones(5), 3
    text = LINE.replace("QUOTIENT", QUOTIENTS["a reciprocal"])
    divisions = [
        sum(type(x.op) is Prim and x.op.name == "/" for x in all_binds(compiled(text, args, off).program.body))
        for off in ((), "lasting")
    ]
    assert divisions == [1, 2]


def test_states_are_remembered() -> None:
    """What each step makes is another in each; and an array may have rows that the loop does not store."""
    for body in (
        "(* (get k j) (get k j))",  # cheap: nothing is remembered of it
        "(/ (get (deref u) j) (+ (get k j) (get (deref u) (- j 1))))",
    ):
        text = LINE.replace("QUOTIENT", body)
        rng = np.random.default_rng(3)
        args = rng.uniform(0.5, 2.0, 6), rng.uniform(0.5, 2.0, 6), 3
        made, plain = compiled(text, args), compiled(text, args, "lasting")
        assert remembered(made) == remembered(plain)
        assert same_bits(made(*args), plain(*args))
    f = hyad.model(
        """(fn [#^ (Vec n) v #^ Int s]
          (let [h (zeros [(+ s 1) n])]
            (for [t (range s)] (set-at! h t v))
            (sum (* (get h s) (+ 1 (get h 0))))))""",
        namespace={},
    )
    v = np.array([1.0, 2.0])
    for s in (0, 1, 3):
        assert hyad.compile(f, args=(v, s))(v, s) == 0.0  # the last row is none that the loop stores


def test_what_is_changed_later_is_not_read_in_place_of_what_was_stored() -> None:
    text = """(fn [#^ (Vec n) v #^ Int s]
      (let [w (sin v)
            h (build s (fn [t] w))
            z (ifold (fn [a i] (update a i (+ (get a i) (get h 0 (- n 1 i))))) w n)]
        (+ (sum (* z (get h 1))) (get h 0 0))))"""
    f = hyad.model(text, namespace={})
    for n, s in ((1, 2), (2, 2), (5, 3)):
        v = np.linspace(0.2, 1.0, n)
        w = np.sin(v)
        want = float(np.sum((w + w[::-1]) * w) + w[0])
        assert hyad.compile(f, args=(v, s))(v, s) == pytest.approx(want, rel=1e-14)
        assert memoised.compile(f, args=(v, s), without="lasting")(v, s) == pytest.approx(want, rel=1e-14)


def test_loops_that_only_stack_are_as_they_were() -> None:
    """Nothing is read by element of what a loop gives away."""
    f = hyad.model("(fn [#^ (Vec n) v #^ Int s] (build s (fn [t] (sin v))))", namespace={})
    v = np.linspace(0.0, 1.0, 4)
    np.testing.assert_array_equal(hyad.compile(f, args=(v, 3))(v, 3), np.tile(np.sin(v), (3, 1)))
    assert "lasting" not in hyad.explain(f, args=(v, 3)).fired()
    assert loops_of(f.optimised(f.specs((v, 3))))


@pytest.mark.parametrize("step", ["(+ x x)", "(- (* 0.5 x) x)", "(+ x (* c x))", "(* x (- 1.0 x))"])
def test_long_chains_are_compared_once(step: str) -> None:
    """Each of fifty numbers is made of the one before, twice: as a tree it would be of 2^50 numbers."""
    chain = " ".join(f"x (* 0.4 {step})" for _ in range(50))
    f = hyad.model(f"(fn [#^ (Vec n) v c] (sum (map (fn [x] (let [{chain}] (exp x))) v)))", namespace={})
    v = np.array([0.3, -0.8])
    np.testing.assert_allclose(hyad.compile(f)(v, 0.7), hyad.run(f, v, 0.7), rtol=1e-12)
    hyad.check_grad(f, (v, 0.7))
