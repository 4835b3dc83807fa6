"""Loops of which one does all of another: what both make is made once; judged by the loops that are left."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import INT, LEAF, REAL, Arr, Block, Const, Loop, Program, Var, all_binds
from hyad.passes.optimise import same_loops
from hyad.program.builder import Builder
from hyad.program.dead import dead_code

FIRST = "(ifold (fn [s k] (* 0.5 (+ s (get w k)))) 0.0 (len w))"
PAIR = "(ifold (fn [p k] #((* {half} (+ (fst p) (get w k))) (+ (snd p) {more}))) #({start} 0.0) {count})"
SAME = {"half": "0.5", "start": "0.0", "count": "(len w)", "more": "(get w k)"}


def both(first: str = FIRST, pair: str = "(let [p {pair}] [u (fst p) (snd p)])", **parts: str) -> str:
    made = pair.replace("{pair}", PAIR.format(**{**SAME, **parts}))
    return f"(fn [w] (let [u {first}] {made}))"


#: Programs of two folds, and how many accumulators are left of three.
FOLDS = {
    "the same": (both(), 2),
    "what the second one needs stays": (both(more="(fst p)"), 3),
    "in a branch": (both(pair="(if (> (get w 0) 0.0) (let [p {pair}] [u (fst p) (snd p)]) [u u u])"), 2),
    "after a branch": (both(first=f"(if (> (get w 0) 0.0) {FIRST} 1.0)"), 3),
    "from another start": (both(start="1.0"), 3),
    "from a zero of another sign": (both(start="-0.0"), 3),
    "of another step": (both(half="0.25"), 3),
    "as often as something else": (both(count="(- (len w) 1)"), 3),
}


def sums(program: Program) -> int:
    return sum(len(x.op.accs) for x in all_binds(program.body) if type(x.op) is Loop)


@pytest.mark.parametrize("name", FOLDS)
def test_what_an_earlier_loop_has_folded_is_that(name: str) -> None:
    text, left = FOLDS[name]
    f, w = hyad.model(text, namespace={}), np.array([0.25, -1.5, 2.0, 3.0])
    program = dead_code(hyad.stages(f, args=(w,)).program("typed"))
    assert sums(program) == 3 and sums(dead_code(same_loops(program))) == left
    for at in (w, -w):
        exact = np.asarray(memoised.compile(f, args=(at,), without="same-loops")(at))
        assert np.array_equal(memoised.compile(f, args=(at,))(at), exact)
        assert np.array_equal(hyad.run(f, at), exact)


def two(soft: tuple[bool, bool], kept: tuple[bool, bool] = (False, False), stacks: bool = False) -> Program:
    """Two folds over the same rows, each of differentiation's own or not, with few states kept or not."""
    b, n = Builder(), Var("n", INT)
    w = Var("w", Arr(REAL, (n,)))
    b.sizes.add(n)
    made = []
    for k, (own, few) in enumerate(zip(soft, kept)):

        def body(i, s, c=None, own=own):
            b.soft = own
            total = b.prim("+", s, b.get(w, i))
            b.soft = False
            return [total, b.prim("*", s, total)][: 1 + (c is not None)], [s] if stacks else []

        starts = [Const(0.0, REAL), Const(1.0, REAL)][: k + 1]
        out = b.loop(n, starts, body, snapshots=Const(3, INT) if few else None)
        made.append(out[-1] if stacks else out[0])
    return Program("f", (w,), (n,), b.close(b.scopes[0], made), (LEAF,), LEAF)


def outcome(program: Program) -> Block:
    return dead_code(same_loops(program)).body


def test_a_users_sum_is_none_of_differentiations() -> None:
    """The terms of differentiation's sums may change places: a user's sum is not taken from one."""
    for soft, same in (((False, False), 1), ((False, True), 1), ((True, True), 1), ((True, False), 2)):
        assert len(set(outcome(two(soft)).results)) == same, soft


def test_few_states_are_not_all_of_them() -> None:
    """What a loop stacks that keeps few states is not what one stacks that keeps all."""
    for kept, same in (((False, False), 1), ((True, False), 2), ((False, True), 2)):
        assert len(set(outcome(two((False, False), kept, stacks=True)).results)) == same, kept


def test_a_value_and_its_jacobian_fold_once() -> None:
    f = hyad.model(
        """(fn [x w]
      (let [f (fn [x] (ifold (fn [s k] (map (fn [a b] (+ a (sin (* (get w k) b)))) s x)) (map (fn [a] 0.0) x) (len w)))]
        #((f x) ((jacobian f) x))))""",
        namespace={},
    )
    x, w = np.array([0.5, -1.0, 2.0]), np.array([0.75, 1.25, -2.0, 0.5])
    value, jacobian = f(x, w)
    np.testing.assert_allclose(value, np.sin(np.outer(w, x)).sum(axis=0), rtol=1e-14)
    np.testing.assert_allclose(jacobian, np.diag((w[:, None] * np.cos(np.outer(w, x))).sum(axis=0)), rtol=1e-14)
    twice = hyad.compile(f, args=(x, w), without="same-loops")(x, w)
    assert all(np.array_equal(a, b) for a, b in zip(twice, (value, jacobian)))
    for n in (0, 1):
        empty = f(np.ones(n), np.ones(0))
        assert empty[0].shape == (n,) and not np.any(empty[0]) and empty[1].shape == (n, n) and not np.any(empty[1])


def test_long_lines_are_compared_without_recursion() -> None:
    """A fold of thousands of operations in a row, twice."""
    chain = "s"
    for k in range(3000):
        chain = f"(sin {chain})" if k % 2 else f"(+ {chain} (get w k))"
    first = f"(ifold (fn [s k] {chain}) 0.0 (len w))"
    text = (
        f"(fn [w] (+ {first} (fst (ifold (fn [p k] (let [s (fst p)] #({chain} (+ s (snd p))))) #(0.0 0.0) (len w)))))"
    )
    f, w = hyad.model(text, namespace={}), np.ones(2)
    program = dead_code(hyad.stages(f, args=(w,)).program("typed"))
    same_loops(program)


def test_what_is_made_element_by_element_stays() -> None:
    """It is computed where it is read; and what one loop folds twice is none of this pass's."""
    maps = """(fn [w] (let [u (map sin w) p (map (fn [a] #((sin a) (cos a))) w)]
      [u (map (fn [q] (fst q)) p) (map (fn [q] (snd q)) p)]))"""
    twice = "(fn [w] (ifold (fn [p k] #((+ (fst p) (get w k)) (+ (snd p) (get w k)))) #(0.0 0.0) (len w)))"
    for text in (maps, twice):
        f = hyad.model(text, namespace={})
        program = dead_code(hyad.stages(f, args=(np.ones(3),)).program("typed"))
        assert same_loops(program) is program


def test_what_a_loop_gives_is_not_there_in_its_iterations() -> None:
    """The sum over all elements of what each adds, and in each the sum of as many of the same number: a loop inside is
    not the one around it."""
    text = """(fn [d h] (sum (map (fn [x]
      (let [q (sin x)  s (ifold (fn [s j] (+ s (if (< q x) (* 2.0 q) q))) 0.0 (len d))]
        (/ (+ h s) (+ 2.0 (* x x))))) d)))"""
    f = hyad.model(text, namespace={})
    assert hyad.check_grad(f, [np.linspace(0.1, 0.9, 4), 0.7])
    d, h = np.linspace(0.1, 0.9, 4), 0.7
    np.testing.assert_allclose(hyad.grad(f, "h")(d, h), np.sum(1 / (2 + d * d)), rtol=1e-14)
