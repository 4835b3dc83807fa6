"""Sorting: runs of 64 elements by counting, then merged, 64 elements at a time, so that many threads share the work.

The order is compared with NumPy's stable one: equal elements in the order of their indices, NaN last.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad import gpu
from hyad.codegen import launches
from hyad.codegen.grid import print_grid
from hyad.emulate import Emulator

SIZES = (0, 1, 2, 3, 31, 63, 64, 65, 127, 128, 129, 191, 192, 200, 320, 1000)
MODELS = {
    "sort": "(defmodel sorted [#^ (Vec n) v] (sort v))",
    "argsort": "(defmodel ordered [#^ (Vec n) v] (argsort v))",
    "both": "(defmodel both [#^ (Vec n) v] #((sort v) (argsort v)))",
    "rows": "(defmodel rows [#^ (Mat m n) v] (sort v))",
    "columns": "(defmodel columns [#^ (Mat m n) v] (sort v 0))",
    "loss": "(defmodel loss [#^ (Vec n) v #^ (Vec n) w] (sum (* w (sort v))))",
    "loss of rows": "(defmodel lossy [#^ (Mat m n) v #^ (Mat m n) w] (sum (* w (sort v))))",
}
needs_cpp = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")


def made(name: str) -> hyad.Model:
    return hyad.model(MODELS[name], namespace={})


def vectors(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random, with few values, with what is not finite, falling, rising."""
    some = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan])
    x = rng.normal(size=n)
    return [
        x,
        rng.integers(0, 4, n) * 1.0,
        np.where(rng.random(n) < 0.4, rng.choice(some, n), x),
        -np.sort(x),
        np.sort(x),
    ]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return {name: hyad.compile(made(name)) for name in ("sort", "argsort", "both", "rows", "columns")}


@pytest.mark.parametrize("n", SIZES)
def test_the_order_is_numpys_stable_one(n: int, compiled: dict[str, Any]) -> None:
    for v in vectors(n, np.random.default_rng(n)):
        order = np.argsort(v, kind="stable")
        assert np.array_equal(compiled["argsort"](v), order)
        assert compiled["sort"](v).tobytes() == v[order].tobytes()  # zeros with their signs
        ordered, indices = compiled["both"](v)
        assert ordered.tobytes() == v[order].tobytes() and np.array_equal(indices, order)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (4, 10), (3, 64), (2, 150), (150, 2)])
def test_rows_and_columns(shape: tuple[int, int], compiled: dict[str, Any]) -> None:
    v = np.random.default_rng(1).integers(0, 30, shape) * 0.5
    assert np.array_equal(compiled["rows"](v), np.sort(v, 1))
    if shape[0] and shape[1]:
        assert np.array_equal(compiled["columns"](v), np.sort(v, 0))


@pytest.mark.some(2)
@pytest.mark.parametrize("n", [0, 3, 64, 150])
def test_integers_and_floats(n: int) -> None:
    rng = np.random.default_rng(2)
    whole = rng.integers(-9, 9, n)
    found = hyad.compile(hyad.model("(fn [#^ (Arr Int n) v] (sort v))"))(whole)
    assert found.dtype == np.int64 and np.array_equal(found, np.sort(whole))
    single = rng.normal(size=n).astype(np.float32)
    assert np.array_equal(hyad.compile(made("sort"), dtype="f32")(single), np.sort(single))


@pytest.mark.parametrize("n", [1, 3, 10, 64])
def test_a_vector_of_known_size_is_ordered_by_counting(n: int) -> None:
    f = hyad.compile(hyad.model(f"(fn [#^ (Vec {n}) v] (sort v))"))
    assert "while" not in f.source
    for v in vectors(n, np.random.default_rng(3)):
        assert f(v).tobytes() == v[np.argsort(v, kind="stable")].tobytes()


@pytest.mark.some(3)
@pytest.mark.parametrize("n", [0, 1, 7, 64, 65, 300])
def test_derivatives_go_to_where_elements_came_from(n: int) -> None:
    rng = np.random.default_rng(4)
    v, w, d = rng.normal(size=(3, n))
    order = np.argsort(v)
    f = made("loss")
    wanted = np.zeros(n)
    wanted[order] = w
    assert np.array_equal(memoised.compile(hyad.grad(f, wrt="v"))(v, w), wanted)
    assert np.array_equal(memoised.compile(hyad.grad(f, wrt="w"))(v, w), v[order])
    first = hyad.model("(fn [#^ (Vec n) v #^ (Vec n) d] (jvp sort v d))", namespace={})
    assert np.array_equal(memoised.compile(first)(v, d), d[order])
    squares = "(fn [v] (sum (* w (map square (sort v)))))"
    text = f"(fn [#^ (Vec n) v #^ (Vec n) w #^ (Vec n) d] (hvp {squares} v d))"
    second = memoised.compile(hyad.model(text, namespace={}))
    assert np.allclose(second(v, w, d), 2 * wanted * d, rtol=1e-15)
    assert np.array_equal(hyad.run(hyad.grad(f, wrt="v"), v, w), wanted)  # define by run: through the merges


def test_nothing_is_checked_and_indices_are_made_where_they_are_wanted() -> None:
    text = hyad.compile(made("sort")).source
    assert "void sorted(" in text and "overflows" not in text
    assert not re.search(r"long long \*", text)
    assert "long long *restrict out" in hyad.compile(made("argsort")).source


@needs_cpp
@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["sort", "argsort", "rows", "loss", "loss of rows"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_many_threads_sort_a_vector(name: str, deterministic: bool) -> None:
    """The text of the GPU's kernels on the CPU, in both orders of the threads."""
    f = made(name)
    f = hyad.grad(f, wrt="v") if "loss" in name else f
    many = "rows" in name
    shapes = [(0, 3), (3, 0), (5, 7), (2, 130), (70, 65)] if many else [(n,) for n in SIZES]
    rng = np.random.default_rng(5)
    calls = [tuple(rng.integers(0, 99, shape) * 0.25 for _ in range(1 + ("loss" in name))) for shape in shapes]
    program = print_grid(f.optimised(f.specs(calls[-1]), "cuda", blas=True), deterministic=deterministic)
    if not many:  # what loops over elements is done by many threads
        assert not any(n.startswith("one thread") and "few iterations" not in n for _, n in program.notes)
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for v, *w in calls:
        order = np.argsort(v, -1, kind="stable")
        if w:
            wanted = np.zeros(v.shape)
            np.put_along_axis(wanted, order, w[0], -1)
        else:
            wanted = order if name == "argsort" else np.sort(v)
        for descending in (False, True):
            (got,) = emulator.run(program, (v, *w), descending=descending)
            assert np.array_equal(got, wanted)


@needs_cpp
def test_few_runs_have_a_thread_each() -> None:
    """Rows that go through shared memory are made by blocks of fewer threads: by as many more of them."""
    f = made("sort")
    program = print_grid(f.optimised(f.specs((np.ones(3),)), "cuda", blas=True))
    first = next(s for s in program.steps if isinstance(s, launches.Launch))
    assert first.block == 64
    for n in (64, 64 * 1000, 64 * 100_000):
        assert launches.value(first.blocks, {"n": n}) * first.block >= n // 64
