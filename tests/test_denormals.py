"""Adjoints that are exponentials, added up as multiples of a power of two: which programs, that their results are the
same, to the bit where nothing is denormal, and nearer to the truth where something is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad.model import Model
from hyad.passes.denormals import SCALE, denormals
from hyad.passes.optimise import PIPELINE, optimise

pytestmark = pytest.mark.skipif(batch.CC is None, reason="no C compiler")

POINTS = "[#^ (Mat k d) m #^ (Mat n d) x]"
FAR = "(sum (map (fn [a b] (square (- a b))) (get x i) (get m k)))"
NEAR = f"(build (len m) (fn [k] (* -0.5 {FAR})))"


def over_points(each: str) -> str:
    return f"(ifold (fn [s i] (+ s {each})) 0.0 (len x))"


DENSITY, BUMPS = over_points(f"(logsumexp {NEAR})"), over_points(f"(sum (map exp {NEAR}))")
CLUSTERS = over_points(f"(let [y {NEAR}] (dot (softmax y) y))")
SIMILAR = over_points("(logsumexp (build (len m) (fn [k] (dot (get x i) (get m k)))))")
FIT = "(square (- 1.0 (sum (map (fn [a b] (* b (exp (- (square a))))) (get x i) (get m 0)))))"
AGAIN = NEAR.replace("(get x i)", "(get x (% (* i i) (len x)))").join(["(logsumexp ", ")"])
#: A model, and whether its sums are multiples.
MODELS: dict[str, tuple[str, bool]] = {
    "density": (f"{POINTS} ((grad (fn [m] {DENSITY})) m)", True),
    "bumps": (f"{POINTS} ((grad (fn [m] {BUMPS})) m)", True),
    "clusters": (f"{POINTS} ((grad (fn [m] {CLUSTERS})) m)", True),
    "both": (f"{POINTS} ((grad (fn [m x] {DENSITY}) :wrt #(0 1)) m x)", False),  # a sum for each point: n of them
    "residual": (f"{POINTS} ((grad (fn [m] {over_points(f'(square (sum (map exp {NEAR})))')})) m)", True),
    "fitted": (f"{POINTS} ((grad (fn [m] {over_points(FIT)})) m)", False),  # what is left of a sum is not small
    "again": (f"{POINTS} ((grad (fn [x] {over_points(AGAIN)})) x)", False),  # as many sums as points
    "rest": (f"{POINTS} ((grad (fn [m] {over_points(f'(square (- 1.0 (exp (get {NEAR} 0))))')})) m)", True),
    "value-too": (f"{POINTS} #({DENSITY} ((grad (fn [m] {DENSITY})) m))", True),
    "mixture": ("", True),
    "value": (f"{POINTS} {DENSITY}", False),
    "similar": (f"{POINTS} ((grad (fn [m] {SIMILAR})) m)", False),  # nothing is squared
    "few": (f"[#^ (Mat k d) m #^ (Mat 9 d) x] ((grad (fn [m] {DENSITY})) m)", False),
    "started": (f"{POINTS} (map (fn [a b] (map + a b)) ((grad (fn [m] {DENSITY})) m) m)", True),
    "looked-at": (f"{POINTS} (let [g ((grad (fn [m] {DENSITY})) m)] (map (fn [r] (sum (map tanh r))) g))", True),
}  # fmt: skip


@cache
def model(name: str) -> Model:
    if name == "mixture":
        return hyad.grad(hyad.load(Path(__file__).parent / "bench" / "problems" / "gmm.hy").gmm, wrt=(0, 1, 2))
    return hyad.model(f"(defmodel {name} {MODELS[name][0]})", namespace={})


def arguments(name: str, n: int, k: int, d: int, apart: float) -> list[Any]:
    rng = np.random.default_rng(n + k + d)
    x = apart * rng.normal(size=(9 if name == "few" else n, d))
    if name == "mixture":
        parts = [rng.normal(size=k), apart * rng.uniform(size=(k, d)), rng.normal(size=(k, d * (d + 1) // 2)) / 4]
        return [*parts, x, 1.0, 0.0]
    return [apart * rng.normal(size=(k, d)), x]


@pytest.mark.parametrize("name", MODELS)
def test_which_sums_are_multiples(name: str) -> None:
    f = model(name)
    before = optimise(f.program(f.specs(arguments(name, 20, 3, 2, 1.0))), PIPELINE[: PIPELINE.index(denormals)])
    assert (denormals(before) is not before) == MODELS[name][1]


@pytest.mark.some(6)
@pytest.mark.parametrize("name", [name for name, (_, fires) in MODELS.items() if fires])
def test_sums_are_the_same_to_the_bit(name: str) -> None:
    """A power of two rounds nothing."""
    f = model(name)
    for n, k, d in ((0, 3, 2), (1, 1, 1), (50, 4, 3)):
        args = arguments(name, n, k, d, 1.0)
        for a, b in zip(memoised.results(f, args), memoised.results(f, args, without="denormals"), strict=True):
            assert np.array_equal(a, b, equal_nan=True)


def exact(m: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of the bumps from their heights, in numbers of a wider range."""
    apart = x[:, None] - m[None]
    squares = np.zeros(apart.shape[:2])
    for a in np.moveaxis(apart, 2, 0):
        squares += a * a
    return np.sum(np.exp(-0.5 * squares).astype(np.longdouble)[..., None] * apart, 0)


@pytest.mark.skipif(np.finfo(np.longdouble).tiny == np.finfo(float).tiny, reason="long doubles are doubles")
def test_sums_of_denormal_products_are_nearer_to_the_truth() -> None:
    """The weights are normal numbers still; each product would be rounded to a multiple of the least number."""
    rng = np.random.default_rng(0)
    m, x = np.zeros((1, 3)), 1e-4 * rng.normal(size=(400, 3))
    x[:, 0] = np.sqrt(rng.uniform(1408, 1414, 400))
    f, want = model("bumps"), exact(m, x)[0, 1:]
    off, was = (
        np.max(np.abs(g[0, 1:] - want)) / np.finfo(float).smallest_subnormal
        for (g,) in (memoised.results(f, [m, x]), memoised.results(f, [m, x], without="denormals"))
    )
    assert off <= 0.51 < 2 < was


def test_large_gradients_have_room() -> None:
    m, x = np.zeros((1, 1)), np.full((20, 1), 1e-3)
    text = "(sum (map (fn [a b] (* 1e200 (square (- a b)))) (get x i) (get m k)))"
    each = over_points(f"(sum (map exp (build (len m) (fn [k] (* -1e-200 {text})))))")
    f = hyad.model(f"(defmodel large {POINTS} ((grad (fn [m] {each})) m))", namespace={})
    (got,), (want,) = memoised.results(f, [m, x]), memoised.results(f, [m, x], without="denormals")
    assert np.array_equal(got, want) and np.isfinite(got).all()


def multiples(text: str) -> bool:
    """Whether a text has the power of two, or half of it."""
    return any(str(x)[:8] in text for x in (SCALE, SCALE / 2))


def test_floats_have_no_such_room() -> None:
    f, args = model("density"), arguments("density", 50, 4, 3, 1.0)
    wide, single = (hyad.compile(f, args=args, dtype=dtype).source for dtype in ("f64", "f32"))
    assert multiples(wide) and not multiples(single)
    floats = [a.astype(np.float32) for a in args]
    got = hyad.compile(f, args=floats, dtype="f32")(*floats)
    np.testing.assert_allclose(got, memoised.results(f, args)[0], rtol=1e-3, atol=1e-4)


def test_a_gpu_multiplies_denormal_numbers_as_fast_as_others(tmp_path: Path) -> None:
    path, _ = hyad.emit(model("density"), tmp_path / "density.cu", target="cuda", grid=True)
    assert not multiples(path.read_text())


def test_one_can_do_without() -> None:
    assert "denormals" in repr(hyad.explain(model("density"), args=arguments("density", 20, 3, 2, 1.0)))
