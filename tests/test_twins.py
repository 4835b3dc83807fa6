"""Straight-line code that does the same twice, as loops of two: the same numbers, to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

import hyad
from hyad.core import Const, If, Loop, Prim, Program, all_binds
from hyad.passes import twins
from hyad.passes.optimise import PIPELINE, optimise
from hyad.plain_python import python_callable
from hyad.program.check import check

SEEN = """
(fn [#^ (Vec 12) p]
  (let [turn (fn [w x y z a b c]
               (let [n (+ (* w w) (* x x) (* y y) (* z z))
                     r (+ (* (- (* w w) (* z z)) a) (* 2.0 (- (* x y) (* w z)) b) (* 2.0 (+ (* x z) (* w y)) c))
                     s (+ (* 2.0 (+ (* x y) (* w z)) a) (* (- (* w w) (* x x)) b) (* 2.0 (- (* y z) (* w x)) c))
                     t (+ (* 2.0 (- (* x z) (* w y)) a) (* 2.0 (+ (* y z) (* w x)) b) (* (- (* w w) (* y y)) c))]
                 [(/ r n) (/ s n) (/ t n)]))
        at {}
        z (+ (get p 7) (get at 2)) u (/ (get at 0) z) v (/ (get at 1) z)
        d (+ 1.0 (* (get p 8) (+ (* u u) (* v v))))]
    [(+ (* (get p 9) d u) (* 2.0 u v)) (+ (* (get p 10) d v) (* u v (get p 11)))]))
"""
P = "(get p 0) (get p 1) (get p 2) (get p 3) (get p 4) (get p 5) (get p 6)"
LONG = """
(fn [#^ (Vec 12) p]
  (let [layer (fn [x y z at]
                (let [unit (fn [k] (let [s (+ (* (get p k) x) (* (get p (+ k 1)) y) (* (get p (+ k 2)) z))]
                                     (/ s (+ 1.0 (* s s)))))]
                  [(unit at) (unit (+ at 1)) (unit (+ at 2))]))
        one (layer (get p 0) (get p 1) (get p 2) 3)
        two (layer (get one 0) (get one 1) (get one 2) 5)
        three (layer (get two 0) (get two 1) (get two 2) 7)]
    [(+ (get three 0) (get three 1) (get three 2)) (+ (* 1.5 (get three 0)) (* 2.5 (get three 1)) (get three 2))]))
"""
BRANCH = SEEN.format(
    f"(if (> (get p 0) 0.0) (turn {P}) (turn (get p 6) 1.5 (* (get p 0) (get p 1)) (get p 4) (get p 3) 0.5 (get p 5)))"
)


def before(f: hyad.Model) -> Program:
    return optimise(f.program(), [p for p in PIPELINE if p is not twins.twins])


def pairs_of(program: Program) -> list[Loop]:
    return [x.op for x in all_binds(program.body) if type(x.op) is Loop and x.op.count == Const(2, x.op.index.type)]


def arithmetic(program: Program) -> int:
    return sum(type(x.op) is Prim and x.op.name in twins.OPERATIONS for x in all_binds(program.body))


@pytest.mark.parametrize("text", [LONG, BRANCH])
def test_the_rows_of_a_jacobian_are_computed_side_by_side(text: str) -> None:
    f = hyad.jacobian(hyad.model(text, namespace={}))
    plain, made = before(f), f.optimised()
    check(made)
    assert pairs_of(made) and not pairs_of(plain)
    assert arithmetic(made) < 0.85 * arithmetic(plain)
    one, two = python_callable(plain), python_callable(made)
    rng = np.random.default_rng(3)
    compiled = hyad.compile(f)
    for scale in (0.3, 1.0, 3.0):
        for _ in range(4):
            p = scale * rng.standard_normal(12)
            np.testing.assert_array_equal(two(p), one(p))
            np.testing.assert_allclose(compiled(p), one(p), rtol=1e-12, atol=1e-13)


def test_the_stage_reads_back() -> None:
    f = hyad.jacobian(hyad.model(LONG, namespace={}))
    p = np.linspace(0.4, 1.7, 12)
    np.testing.assert_allclose(f(p), hyad.compile(f, without="twins")(p), rtol=1e-13)
    stage = hyad.model(str(hyad.show(f, "optimised")), namespace={})
    np.testing.assert_allclose(stage(p), f(p), rtol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "(fn [#^ (Vec 2) p] [(* (get p 0) (sin (get p 1))) (* (get p 1) (sin (get p 0)))])",  # too little
        "(fn [#^ (Vec 6) p] (let [f (fn [x y] (/ (- (* x y) x) (+ (* x x) (* y y))))]"
        " [(f (get p 0) (get p 1)) (f (get p 2) (get p 3)) (f (get p 4) (get p 5))]))",  # each has numbers of its own
        "(fn [#^ (Vec 40) p] (ifold (fn [s i] (+ s (* (get p i) s))) 1.0 40))",  # nothing is done twice in a block
    ],
)
def test_what_would_gain_nothing_stays(text: str) -> None:
    f = hyad.jacobian(hyad.model(text, namespace={}))
    assert not pairs_of(f.optimised()) or pairs_of(before(f))


def program_of(rng: random.Random) -> str:
    """Two results by the same operations on other numbers, some of which read what the other one computes, and what is
    neither's; with zeros of both signs."""
    bindings: list[str] = []
    lanes: list[list[str]] = [["a", "b", "c", "0.0", "1.5"], ["d", "b", "f", "-0.0", "1.5"]]
    for k in range(rng.randint(6, 30)):
        op = rng.choice(["+", "-", "*", "*", "/", "neg", "beside", "mixed"])
        if op == "beside":
            v = rng.choice(rng.choice(lanes)[-4:])
            bindings.append(f"s{k} (sin {v})")
            for lane in lanes:
                lane.append(f"s{k}")
            continue
        places = [rng.randrange(len(lanes[0])) for _ in range(2)]
        for j, lane in enumerate(lanes):
            other = lanes[1 - j] if op == "mixed" and rng.random() < 0.5 else lane
            one, two = lane[places[0]], other[min(places[1], len(other) - 1)]
            if op == "neg":
                text = f"(- {one})"
            elif op in ("+", "*") and rng.random() < 0.5:
                text = f"({op} {two} {one})"
            else:
                text = f"({'+' if op == 'mixed' else op} {one} {two})"
            bindings.append(f"{'xy'[j]}{k} {text}")
        for j, lane in enumerate(lanes):
            lane.append(f"{'xy'[j]}{k}")
    chosen = [rng.randrange(5, len(lanes[0])) if len(lanes[0]) > 5 else 0 for _ in range(3)]
    results = " ".join(lane[k] for lane in lanes for k in chosen)
    return f"(fn [a b c d f] (let [{' '.join(bindings)}] [{results}]))"


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_give_the_same_numbers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pairs are taken, paying or not."""
    monkeypatch.setattr(twins, "LEAST", -1000)
    monkeypatch.setattr(twins, "SAVED", (-0.1, -0.5, -2)[seed % 3])
    f = hyad.model(program_of(random.Random(seed)), namespace={})
    plain = before(f)
    made = twins.twins(plain)
    check(made)
    one, two = python_callable(plain), python_callable(made)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        point = np.round(rng.standard_normal(5), 2)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(list(map(repr, two(*point))), list(map(repr, one(*point))))


def test_random_programs_have_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "LEAST", -1000)
    monkeypatch.setattr(twins, "SAVED", -0.1)
    models = [hyad.model(program_of(random.Random(seed)), namespace={}) for seed in range(60)]
    counts = [len(pairs_of(twins.twins(before(f)))) for f in models]
    assert sum(c > 0 for c in counts) > 30 and max(counts) > 1


def test_no_loop_has_a_branch_of_another_condition() -> None:
    """Branches are looked into, each for itself."""
    f = hyad.jacobian(hyad.model(BRANCH, namespace={}))
    inside = [
        y.op for x in f.optimised().body.binds if type(x.op) is If for y in (*x.op.then.binds, *x.op.orelse.binds)
    ]
    assert all(type(x) is not Loop or not any(type(y.op) is If for y in x.body.binds) for x in inside)
