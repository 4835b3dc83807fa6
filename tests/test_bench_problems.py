"""The benchmark's problems at small sizes: yardstick, reference and hyad give the same derivatives."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))

import adrun  # noqa: E402
import guarded  # noqa: E402
import recursion  # noqa: E402
import report  # noqa: E402
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


@pytest.mark.parametrize("name", ["fk", "expr30"])
def test_vector_math_is_right(name: str, tmp_path: Path) -> None:
    problem = next(p for p in PROBLEMS if p.name == name)
    made = derivative_of(problem, SMALL[name], fixed=False, math="vector")
    assert made.name == "hyad, vector math" and "hyad_" in made.source
    assert max(errors_of(made, problem, SMALL[name], tmp_path)) <= GATE


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


@pytest.mark.some(6)
@pytest.mark.parametrize("walk", recursion.WALKS, ids=lambda w: w.name)
def test_walks_are_right(walk: recursion.Walk, tmp_path: Path) -> None:
    """By hand and by hyad against differences; and the stack is measured."""
    points = recursion.points_of(walk, [recursion.parsed("(3 (2 It) (4 (4 (2 's) (1 lovely)) (2 .)))")])[:2]
    made = [recursion.by_hand(walk, True), recursion.by_hyad(walk, True)]
    entries = {c.name: recursion.passes(walk, c, points, tmp_path) for c in made}
    assert max(recursion.check(walk, points, entries).values()) <= GATE
    assert all(0 < entry.stack() < 1 << 20 for entry in entries.values())


def test_trees_are_read_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trees.txt"
    path.write_text("(3 (2 It) (1 's))\n(0 no)\n")
    (one, two), where = recursion.corpus(path)
    assert (one[0], one[1][0], one[2][0], two[0], len(two)) == (3, 2, 1, 0, 2) and where == "trees.txt"
    monkeypatch.setattr(recursion, "TREES", tmp_path / "none.txt")
    drawn, where = recursion.corpus(None)
    assert len(drawn) == 1101 and "--trees" in where and "HYAD_SST_TREES" in where
    monkeypatch.setenv("HYAD_SST_TREES", str(tmp_path / "none.txt"))
    with pytest.raises(FileNotFoundError, match="there are no trees in"):
        recursion.corpus(None)


def test_results_keep_the_sections_that_were_not_run(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    report.write(path, ["## Overheads", "", "old", "", "## Guarded functions", "", "kept"])
    report.write(path, ["## Overheads", "", "new"])
    text = path.read_text()
    assert "old" not in text and text.index("kept") < text.index("new") and text.count("## ") == 2
    assert text.count(report.machine()) == 2  # each says where it was measured


def test_results_keep_the_parts_that_were_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objectives and sizes of the AD suite, problems of the other: rows, tables and plots; each says when it ran."""
    path, text = tmp_path / "RESULTS.md", (BENCH / "RESULTS.md").read_text()
    monkeypatch.setattr(report, "machine", lambda: "another machine, 3 cores; cc 1, `-O3`; Python 3.0.0")
    path.write_text(text)
    kmeans = next(o for o in adrun.OBJECTIVES if o.name == "kmeans")
    rows = [adrun.Row(name, *[0.125] * 6) for name in ("hand primal", "hand gradient", "hyad")]
    made = adrun.lines([(kmeans, kmeans.sizes[0], "gradient", rows)], tmp_path)
    report.write(path, made, adrun.parts())
    old, new = text.splitlines(), path.read_text().splitlines()
    changed = [line for line in set(new) - set(old) if line.startswith("| ")]
    assert sorted(line.split("|")[1].strip() for line in changed) == ["hand gradient", "hand primal", "hyad", KMEANS]
    assert [x for x in new if x.startswith(("#", "!"))] == [x for x in old if x.startswith(("#", "!"))]
    (told,) = {line for line in new if line.endswith(f": {KMEANS}.")}
    section = new[new.index("## The AD suite") :]
    assert (
        told.startswith(datetime.date.today().isoformat())
        and section[2] in old
        and told in section[3 : section.index("", 3)]
    )
    report.write(path, made, adrun.parts())  # again
    assert path.read_text().splitlines() == new

    problem = next(p for p in PROBLEMS if p.name == "ba")
    found = [report.Row("hand", 1.0), report.Row("hyad", 0.5, prepare=0.1)]
    report.write(path, report.problem_lines({(problem, problem.sizes[0]): found}, 20.0), report.problem_parts())
    newer = path.read_text().splitlines()
    assert [x for x in newer if x.startswith(("#", "!"))] == [x for x in old if x.startswith(("#", "!"))]
    assert [x for x in newer if x.startswith("| ba |")] == ["| ba | 1.00; 0.3 s | 0.50 | 0.10 | yes |  |  |  |  |"]
    assert [x for x in newer if x.startswith("| helm ")] == [x for x in old if x.startswith("| helm ")]

    report.write(path, [line.replace("| target |", "| aim |") for line in old], None)
    with pytest.raises(SystemExit, match="other columns"):
        report.write(path, made, adrun.parts())


KMEANS = "kmeans k=10 n=10000 d=16, gradient"


def test_targets_are_met_as_printed() -> None:
    """Per problem, in time and in preparation; vector math apart from the C library's functions."""
    fk, rosen, expr30 = (next(p for p in PROBLEMS if p.name == name) for name in ("fk", "rosen", "expr30"))
    assert fk.targets == {6: (0.65, 0.3)} and rosen.targets == {10: (0.65, 0.2), 100: (1.0, 0.3)}
    row = report.Row
    found = {
        (fk, 6): [row("hand", 1.0), row("hyad", 0.654, prepare=0.2, compile=0.104), row("other", 0.7)],
        (rosen, 10): [row("hyad", 0.9, prepare=0.1), row("hyad, n fixed", 0.6, prepare=0.2, compile=0.006)],
        (rosen, 100): [row("hyad", 1.004, prepare=0.1), row("hyad, vector math, n fixed", 1.006, prepare=0.1)],
        (expr30, 4): [row("hyad", note="wrong"), row("hyad, vector math", 0.5, prepare=0.1)],
    }
    lines = report.summary(found)
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[4:-1]]
    assert cells == [
        ["fk", "0.65; 0.3 s", "0.65", "0.30", "yes", "", "", "", "other 0.70"],
        ["rosen 10", "0.65; 0.2 s", "0.60 (n fixed)", "0.21", "no", "", "", "", ""],
        ["rosen 100", "1.00; 0.3 s", "1.00", "0.10", "yes", "1.01 (n fixed)", "0.10", "no", ""],
        ["expr30", "", "none", "", "", "0.50", "0.10", "", ""],
    ]


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
