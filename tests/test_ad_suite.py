"""The AD suite at small sizes: model, hand-written derivative and hyad's agree with complex steps of the primal.

Sizes of 1 and 3, odd ones, a prior with its count of degrees of freedom, ties and saturated inputs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad

BENCH = Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))

from adpeers import native_call  # noqa: E402
from adrun import contender, hand  # noqa: E402
from adsuite import OBJECTIVES, NumPy, Objective, Point, Size, bank_of, problem_of, reference, value  # noqa: E402
from hyad_contender import how_to_call  # noqa: E402
from limited import OwnClock, script  # noqa: E402
from measure import CC, Contender, Native, build, layout, run  # noqa: E402
from memory import frames, memory_of, times  # noqa: E402
from reference import GATE, error  # noqa: E402
from suite import Problem  # noqa: E402

CASES = [(o, size) for o in OBJECTIVES for size in o.small]
IDS = [o.label(size) for o, size in CASES]


@pytest.fixture(scope="module")
def derivatives() -> dict[tuple[str, str], Any]:
    """hyad's functions, each compiled once."""
    return {}


def flat(result: Any) -> np.ndarray:
    parts = result if isinstance(result, tuple) else (result,)
    return np.concatenate([np.ravel(p) for p in parts])


def drawn(objective: Objective, size: Size) -> Point:
    return objective.point(np.random.default_rng(7), **size)


@pytest.mark.some(4)
@pytest.mark.parametrize(("objective", "size"), CASES, ids=IDS)
def test_hyad_is_right(objective: Objective, size: Size, derivatives: dict) -> None:
    point = drawn(objective, size)
    for name, make in objective.derivatives.items():
        if (objective.name, name) in (("saddle", "fr"), ("saddle", "rf")):
            continue  # the particle is tested in all modes
        f = derivatives.get((objective.name, name))
        if f is None:
            models = derivatives.setdefault(objective.models, hyad.load(objective.models))
            f = derivatives[objective.name, name] = make(models)
        assert close(flat(f(*point.values())), reference(objective, size, point, name))


@pytest.mark.some(3)
@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if o.name != "det"], ids=lambda o: o.name)
def test_memory_is_no_more_than_twice_that_by_hand(objective: Objective, derivatives: dict) -> None:
    """All that a call touches, at the sizes that are timed; the stack aside. (The determinant's is an arena.)"""
    for name in objective.derivatives:
        if name not in objective.by_hand:
            continue
        models = derivatives.setdefault(objective.models, hyad.load(objective.models))
        f = hyad.compile(objective.derivatives[name](models)).cfunction
        for size in objective.sizes:
            point = drawn(objective, size)
            problem = problem_of(objective, size, point, name)
            work = how_to_call(f, problem, 0, point)[2]
            ours = memory_of(Contender("hyad", "", "", "", 0.0, work=work), problem, 0, None)
            ratio = times(ours, memory_of(hand(objective, size, name), problem, 0, None))
            assert ratio is not None and ratio <= 2, (size, name, ratio)


def test_what_takes_an_arena_is_called_from_c(tmp_path: Path) -> None:
    """The determinant whose size is not known: the harness's C has the arena, and says what it holds."""
    objective, size = next(o for o in OBJECTIVES if o.name == "det"), {"n": 4}
    point = drawn(objective, size)
    problem = problem_of(objective, size, point, "gradient")
    made = contender(objective, size, point, "gradient")
    native = Native(build(made, problem, 0, tmp_path, ["-O1", "-fPIC"]), problem, 0, bank_of(point))
    assert made.arena and native.held() == 0
    assert close(native(0), reference(objective, size, point, "gradient"))
    held = native.held()
    native.seconds(100)
    assert native.held() == held > 8 * 4 * 4


@pytest.mark.parametrize("name", ["gmm", "bundle", "ht-surface"])
def test_adolc_on_the_hand_written_primal(name: str, tmp_path: Path) -> None:
    objective = next(o for o in OBJECTIVES if o.name == name)
    size, derivative = objective.small[0], next(iter(objective.derivatives))
    point = drawn(objective, size)
    try:
        native = native_call("adolc", objective, size, point, derivative, tmp_path)
    except ModuleNotFoundError as reason:
        pytest.skip(str(reason))
    for _ in range(2):
        assert close(native(0), reference(objective, size, point, derivative))


ENZYME = {"gmm": "gradient", "bundle": "blocks", "kmeans": "diagonal", "ht-surface": "jacobian"}
NESTED = [("particle", "ff"), ("particle", "rr"), ("saddle", "fr")]


@pytest.mark.parametrize("name,derivative", [*ENZYME.items(), *NESTED])
def test_enzyme_on_the_hand_written_primal(name: str, derivative: str, tmp_path: Path) -> None:
    """What its wheel for JAX compiles, called from C; its nested derivatives are written for it."""
    pytest.importorskip("enzyme_ad")
    objective = next(o for o in OBJECTIVES if o.name == name)
    size = objective.small[1 if len(objective.small) > 1 else 0]
    point = drawn(objective, size)
    native = native_call("enzyme_ad", objective, size, point, derivative, tmp_path)
    for _ in range(2):
        assert close(native(0), reference(objective, size, point, derivative))


def test_a_peer_that_is_not_prepared_in_time(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(20)")
    with pytest.raises(OwnClock):
        script(str(slow), [], 15)


def test_the_stack_that_functions_take() -> None:
    text = "double f(double x) { volatile double t[1000]; t[0] = x; return t[0]; }"
    assert 7800 <= frames(Contender("f", text, "", "", 0.0)) < 8200
    text = "double f(long long n) { volatile double t[n]; t[0] = n; return t[0]; }"
    with pytest.raises(ValueError, match="as its arguments say"):
        frames(Contender("f", text, "", "", 0.0))


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Within the gate; a derivative that is nothing but zeros (one symbol has one softmax) is so exactly."""
    return np.array_equal(found, expected) if not np.any(expected) else error(found, expected) <= GATE


@pytest.mark.some(3)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.name)
def test_hand_written_is_right(objective: Objective, tmp_path: Path) -> None:
    cases = [(size, name) for size in objective.small for name in objective.by_hand]
    points = [drawn(objective, size) for size, _ in cases]
    for (size, name), point, entry in zip(cases, points, entries(objective, cases, points, tmp_path)):
        problem = problem_of(objective, size, point, name)
        found = entry(problem)
        if name != "primal":
            assert close(found, reference(objective, size, point, name))
        elif objective.wrt:
            assert found[0] == pytest.approx(value(objective, point), rel=1e-12)
        elif not objective.sizes[0]:
            assert close(found, reference(objective, size, point, "ff"))
        else:
            with np.errstate(invalid="ignore"):
                values = objective.primal(NumPy(), *point.values())
            if np.all(np.isfinite(values)):  # a turn by nothing has no axis
                np.testing.assert_allclose(found[: values.size], values.ravel(), rtol=1e-11)


def entries(
    objective: Objective, cases: list[tuple[Size, str]], points: list[Point], folder: Path
) -> list[Callable[[Problem], np.ndarray]]:
    """The hand-written functions of all cases, compiled at once: each called with its point gives the flat result."""
    lines, made = [objective.source], []
    for k, ((size, name), point) in enumerate(zip(cases, points)):
        problem = problem_of(objective, size, point, name)
        starts, _ = layout(problem, 0)
        names = {"out": "out", "work": "work"}
        for given, at in zip(problem.inputs, starts):
            names[given.name] = f"(at + {at})" if given.shape(0) else f"at[{at}]"
        call = hand(objective, size, name).call.format(**names)
        lines.append(f"void entry_{k}(const double *at, double *out, double *work) {{ (void)work; {call}; }}")
    source, library = folder / "hand.c", folder / "hand.so"
    source.write_text("\n".join(lines))
    run([CC, "-O1", "-fPIC", "-shared", str(source), "-lm", "-o", str(library)])
    loaded = ctypes.CDLL(str(library))

    def entry(k: int, work: int, bank: np.ndarray) -> Callable[[Problem], np.ndarray]:
        def call(problem: Problem) -> np.ndarray:
            out, room = np.full(problem.results(0), np.nan), np.zeros(work)
            starts, stride = layout(problem, 0)
            at, flat_at = np.zeros(stride), 0
            for given, start in zip(problem.inputs, starts):
                count = given.count(0)
                at[start : start + count] = bank[flat_at : flat_at + count]
                flat_at += count
            getattr(loaded, f"entry_{k}")(*(ctypes.c_void_p(a.ctypes.data) for a in (at, out, room)))
            return out

        return call

    for k, ((size, name), point) in enumerate(zip(cases, points)):
        made.append(entry(k, hand(objective, size, name).work, bank_of(point)[0]))
    return made


def test_a_rotation_by_nothing_has_a_derivative(derivatives: dict) -> None:
    bundle = next(o for o in OBJECTIVES if o.name == "bundle")
    point = drawn(bundle, {"c": 2, "n": 3, "m": 5})
    point["cameras"][0, :3] = 0.0
    blocks = derivatives.get(("bundle", "blocks")) or hyad.load(bundle.models).bundle_blocks
    assert error(flat(blocks(*point.values())), reference(bundle, {}, point, "blocks")) <= GATE
