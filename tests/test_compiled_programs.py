"""Random programs of the whole language, compiled: forward = reverse = differences (see ``compiled.py``).

``HYAD_PROPERTY_COMPILED=20000`` draws more, and as many again in ``test_compiled_more.py``; ``HYAD_PROPERTY_SEED`` says
where the seeds begin. Together the two files compile 2,000 programs.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

import hyad
import programs
from compiled import Subject, examine, report, smaller, subject
from hyad.core import Bind, Case
from hyad.differentiate.forward import Forward
from hyad.differentiate.reverse import Reverse
from hyad.program.primitives import PRIMITIVES

COUNT = int(os.environ.get("HYAD_PROPERTY_COMPILED", "200"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
CHUNK = 50

WRONG = dataclasses.replace(PRIMITIVES["tanh"], partials=("(- (* y y) 1)",))  # the derivative with another sign

# What random programs found, made small.
FOUND = {
    "the fields of an arm are not live before it": (
        "(case (if (> x 0) (inl (fn [a] (* a (get v 0)))) (inr (fn [a] (* (get v 1) a))))"
        " (inl f) (f x) (inr f) (f (f x)))"
    ),
    "a size that only a reference has": (
        "(letrec [go (fn [u] (if (null? u) (get v 0) (let [a (go (cdr u)) w (copy v)] (set-at! w -1 a) (get w -1))))]"
        " (go l))"
    ),
    "a recursive function reads what others set": (
        "(let [z (ref x)] (set! z (sin x)) (letrec [go (fn [u] (if (null? u) (get v 0) (* (get v 1) (deref z)"
        " (+ (car u) (go (cdr u))))))] (+ (go l) (let [w (copy v)] (set-at! w 0 y) (get w 0)))))"
    ),
    "an array is found to be changed inside a fold": (
        "(fold (fn [a b] (tanh (let [w (copy v)] (set-at! w -1 b) (get w -1)))) x (map (fn [a] (get v 0)) l))"
    ),
    "and in an arm, after others": (
        "(ifold (fn [a i] (sin (match q (Ball b) b _ (let [w (copy v)] (set-at! w i a) (get w -1))))) x 1)"
    ),
}


@pytest.mark.some(12)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_compiled_programs_have_one_derivative(first: int) -> None:
    found = examine(range(first, min(first + CHUNK, FIRST + COUNT)))
    assert not any(s.wrong for s in found), report(found)
    assert sum(s.judge == "differences" for s in found) > 0.8 * len(found)


@pytest.mark.some(6)
@pytest.mark.parametrize("what", FOUND)
def test_what_random_programs_found(what: str) -> None:
    text = f"(fn [{' '.join(programs.PARAMS)}] {FOUND[what]})"
    for seed in (0, 3):
        point, one, two = programs.arguments(seed)
        found = [Subject(k, text, point, one, two) for k in range(4)]
        assert not any(s.wrong for s in examine(found, extra=True)), report(found, extra=True)


def wrong(count: int = 40) -> list[str]:
    return [w.partition(":")[0] for s in examine(range(count)) for w in s.wrong]


@pytest.mark.long
def test_a_wrong_partial_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRIMITIVES, "tanh", WRONG)
    found = wrong()
    assert "forward, differences" in found and "reverse, forward" not in found


@pytest.mark.long
def test_a_wrong_clause_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Reverse.contribute_at
    monkeypatch.setattr(Reverse, "contribute_at", lambda self, a, at, x: right(self, a, at, self.b.prim("+", x, x)))
    assert "reverse, forward" in wrong()
    monkeypatch.undo()
    forward = Forward.case_tangents

    def half(self: Forward, op: Case, bind: Bind) -> None:
        """The tangents of what is in data are lost."""
        self.dot.pop(op.value, None)
        forward(self, op, bind)

    monkeypatch.setitem(Forward.CLAUSES, Case, half)
    assert "reverse, forward" in wrong()


@pytest.mark.long
def test_a_failure_is_reported_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRIMITIVES, "tanh", WRONG)
    point, one, two = programs.arguments(1)
    text = f"(fn [{' '.join(programs.PARAMS)}] (+ (* x y) (let [a (sin (get v 0))] (* a (tanh (* a x))))))"
    found = examine([Subject(1, text, point, one, two)])
    first = report(found).splitlines()[0]
    assert first.startswith("seed 1, shrunk: (fn [x y v p l t s q] ") and "tanh" in first
    assert len(first) < 60 and "sin" not in first


def test_smaller_texts_are_smaller() -> None:
    text = subject(5).text
    every = [*smaller(text)]
    assert every and all(len(t) < len(text) for t in every) and len({*every}) == len(every)


def test_the_same_program_by_hand() -> None:
    """The callers that the tests print read and write what the extension reads and writes."""
    s = subject(11)
    (found,) = examine([s], extra=True)
    got = hyad.value_and_grad(s.model)(*s.point)
    assert not found.wrong and np.isfinite(got[0])
