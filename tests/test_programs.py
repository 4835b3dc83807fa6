"""Random programs of the whole language (``programs.py``), define by run: forward mode, reverse mode and their
mixtures give what differences of the oracle give.

The seed is the program: a failure prints it. ``HYAD_PROPERTY_PROGRAMS=2000`` draws more. The same property under
hypothesis shrinks what it finds: ``--hypothesis-profile explore``.
"""

from __future__ import annotations

import os
import random
from typing import Any

import hypothesis
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st

import hyad
import oracle
from programs import DEFINITIONS, NAMESPACE, PARAMS, Programs, arguments

COUNT = int(os.environ.get("HYAD_PROPERTY_PROGRAMS", "200"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
CHUNK = 20
NAMES = " ".join(PARAMS)
MOVES = " ".join(f"d{n}" for n in PARAMS)


def flat(value: Any) -> np.ndarray:
    return np.array(oracle.numbers(value))


def truth_of(text: str, point: Any, one: Any, two: Any, second: bool) -> tuple[float, float, float | None]:
    """Value, slope along ``one``, second derivative along both, by the oracle."""
    with mpmath.workdps(oracle.DIGITS):
        f = oracle.meaning(text, DEFINITIONS)
        args, a, b = ([*map(oracle.internal, given)] for given in (point, one, two))
        at = range(len(args))
        slope = oracle.along(f, args, at, a)
        curve = oracle.along(lambda *xs: oracle.along(f, xs, at, a), args, at, b) if second else None
        return float(f(*args)), float(slope), None if curve is None else float(curve)


def run(text: str, *args: Any) -> Any:
    return hyad.run(hyad.model(text, namespace=NAMESPACE), *args)


def examine(text: str, point: Any, one: Any, two: Any, second: bool) -> list[str]:
    """What is wrong with a program."""
    value, slope, curve = truth_of(text, point, one, two, second)
    if not all(abs(t) < 1e5 for t in (value, slope, curve or 0.0)):
        return []  # too steep to be judged in double precision
    wrong: list[str] = []

    def judge(what: str, got: float, expected: float, scale: float = 0.0) -> None:
        if not abs(got - expected) <= 1e-8 + 1e-7 * max(abs(got), abs(expected), scale):
            wrong.append(f"{what}: {got!r}, expected {expected!r}")

    judge("value", float(run(text, *point)), value)
    both = run(f"(fn [{NAMES}] ((value-and-grad {text}) {NAMES}))", *point)
    gradient = flat(both[1])
    scale = float(np.abs(gradient).max())
    judge("value beside the gradient", float(both[0]), value)
    judge("reverse", float(gradient @ flat(one)), slope, scale)
    judge("forward", float(run(f"(fn [{NAMES} {MOVES}] (jvp {text} {NAMES} {MOVES}))", *point, *one)), slope, scale)
    if curve is not None:
        h1 = flat(run(f"(fn [{NAMES} {MOVES}] (hvp {text} {NAMES} {MOVES}))", *point, *one))
        judge("forward over reverse", float(h1 @ flat(two)), curve, float(np.abs(h1).max()))
        h2 = flat(run(f"(fn [{NAMES} {MOVES}] (vjp (grad {text}) {NAMES} #({MOVES})))", *point, *one))
        judge("reverse over reverse", float(h2 @ flat(two)), curve, float(np.abs(h2).max()))
        inner = f"(fn [{NAMES}] (jvp {text} {NAMES} {MOVES}))"
        h3 = flat(run(f"(fn [{NAMES} {MOVES}] ((grad {inner}) {NAMES}))", *point, *one))
        judge("reverse over forward", float(h3 @ flat(two)), curve, float(np.abs(h3).max()))
    return wrong


@pytest.mark.some(6)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_programs_mean_one_thing_in_every_mode(first: int) -> None:
    failures = []
    for seed in range(first, first + CHUNK):
        text = Programs(seed).text()
        try:
            wrong = examine(text, *arguments(seed), seed % 3 == 0)
        except Exception as error:  # every program is tried
            wrong = [f"{type(error).__name__}: {error}"]
        failures += [f"seed {seed}: {text}\n  {w}" for w in wrong]
    assert not failures, "\n".join(failures)


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.randoms(use_true_random=False), st.booleans())
def test_the_same_of_what_hypothesis_draws(draw: random.Random, second: bool) -> None:
    text = Programs(draw, depth=3).text()
    hypothesis.note(text)
    assert not examine(text, *arguments(draw), second)


def test_the_programs_use_the_whole_language() -> None:
    every = " ".join(Programs(seed).text() for seed in range(COUNT))
    for form in (
        "letrec", "while", "(case", "(match", "set!", "set-at!", "(ref ", "inl", "inr", "Box", "(cons", "(list",
        "null?", "num?", "(D ", "(grad ", "(jvp ", "(vjp ", "(jacobian ", "(hessian ", "value-and-grad", "(update ",
        "(build ", "(map ", "(fold ", "(ifold ", "(copy ", "_ ",
    ):  # fmt: skip
        assert form in every, form
