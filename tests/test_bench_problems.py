"""The benchmark's problems at small sizes: yardstick, reference and hyad give the same derivatives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))

import guarded  # noqa: E402
import swell  # noqa: E402
from hyad_contender import derivative_of, hyad  # noqa: E402
from measure import Contender, Native, bank_of, build, hand_written, hand_written_dynamic  # noqa: E402
from reference import GATE, error, hessian_by_complex_step, hessian_by_digits, reference  # noqa: E402
from suite import HESSIAN, PROBLEMS, Problem  # noqa: E402

SMALL = {"fk": 6, "ba": 15, "rosen": 5, "helm": 3, "prod": 7, "expr30": 4}


@pytest.fixture(params=PROBLEMS, ids=lambda p: p.name)
def problem(request: pytest.FixtureRequest) -> Problem:
    return request.param


def errors_of(contender: Contender, problem: Problem, n: int, folder: Path) -> list[float]:
    bank = bank_of(problem, n, np.random.default_rng(7))[:2]
    entry = Native(build(contender, problem, n, folder), problem, n, bank)
    return [error(entry(row), reference(problem, n, bank[row])) for row in range(2)]


def test_hand_written_is_right(problem: Problem, tmp_path: Path) -> None:
    n = SMALL[problem.name]
    assert max(errors_of(hand_written(problem, n), problem, n, tmp_path)) <= GATE
    assert max(errors_of(hand_written_dynamic(problem, n), problem, n, tmp_path)) <= GATE


def test_tuned_kinematics_is_right(tmp_path: Path) -> None:
    fk = PROBLEMS[0]
    tuned = Contender("tuned", (BENCH / "problems" / "fk_tuned.c").read_text(), fk.declaration, fk.call)
    assert max(errors_of(tuned, fk, 6, tmp_path)) <= GATE


def test_hyad_is_right(problem: Problem, tmp_path: Path) -> None:
    n = SMALL[problem.name]
    assert max(errors_of(derivative_of(problem, n, fixed=False), problem, n, tmp_path)) <= GATE


@pytest.mark.parametrize("make", [hand_written, partial(derivative_of, fixed=False)], ids=["hand", "hyad"])
def test_residual_at_zero_rotation(make: Callable[[Problem, int], Contender], tmp_path: Path) -> None:
    """There the reference's primal divides by zero: a rotation by nearly nothing stands for it."""
    ba = next(p for p in PROBLEMS if p.name == "ba")
    bank = bank_of(ba, 15, np.random.default_rng(7))[:2]
    bank[0, :3] = 0.0
    bank[1, 3:] = bank[0, 3:]
    bank[1, :3] = 1e-14
    entry = Native(build(make(ba, 15), ba, 15, tmp_path), ba, 15, bank)
    assert error(entry(0), reference(ba, 15, bank[1])) <= GATE


def test_both_references_agree() -> None:
    for problem in PROBLEMS:
        if problem.kind == HESSIAN:
            point = bank_of(problem, 3, np.random.default_rng(7))[0]
            stepped = hessian_by_complex_step(problem, 3, point)
            assert error(stepped, hessian_by_digits(problem, 3, point)) <= 1e-13


def test_a_wrong_derivative_is_noticed() -> None:
    right = np.array([1.0, 0.0, 2.0])
    assert error(right + [0.0, 1e-10, 0.0], right) > GATE
    assert error(np.zeros(3), np.zeros(3)) == float("inf")
    assert error(np.array([1.0, np.nan, 2.0]), right) == float("inf")


def test_every_guarded_model_is_expected() -> None:
    text = (BENCH / "problems" / "guarded.hy").read_text()
    assert text.count("(defmodel guarded-") == len(guarded.EXPECTED)


def test_logistic_models_agree_with_the_recurrence() -> None:
    for text in (swell.straight_model(10), swell.loop_model(10)):
        assert hyad.grad(hyad.model(text))(swell.X) == pytest.approx(swell.truth(10), rel=1e-12)
