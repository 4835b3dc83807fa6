"""Sums that come before a product with what does not change (on a GPU): which programs, what is left of them, and that
the results are C's, of nothing and of numbers that are none, too. Run on the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram
from hyad.emulate import Emulator
from hyad.grid.gather import spread
from hyad.model import Model
from hyad.program.journal import without
from hyad.program.printer import print_program

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")

HEAD = "[#^ (Mat n d) a #^ (Vec d) m #^ (Mat k d) q]"
LENGTHS = "(sum (map (fn [p] (sum (map sin (build (len q) (fn [r] {row}))))) a))"
DENSE = LENGTHS.format(row="(ifold (fn [s c] (+ s (* (get q r c) ({sign} (get p c) (get m c))))) 0.0 (len p))")
LOWER = LENGTHS.format(row="(ifold (fn [s c] (+ s (* (get q r c) (- (get p c) (get m c))))) 0.0 (min (+ r 1) (len p)))")
#: A model, and whether some of its sums come first.
MODELS: dict[str, tuple[str, bool]] = {
    "minus": (f"{HEAD} ((grad (fn [m] {DENSE.format(sign='-')})) m)", True),
    "plus": (f"{HEAD} ((grad (fn [m] {DENSE.format(sign='+')})) m)", True),
    "lower": (f"{HEAD} ((grad (fn [m] {LOWER})) m)", True),
    "both": (f"{HEAD} ((grad (fn [m q] {DENSE.format(sign='-')}) :wrt #(0 1)) m q)", True),
    "rows-too": (f"{HEAD} ((grad (fn [a m] {DENSE.format(sign='-')}) :wrt #(0 1)) a m)", True),
    "mixture": ("", True),
    "rows": (f"{HEAD} ((grad (fn [a] {DENSE.format(sign='-')})) a)", False),  # each row has its own
    "matrix": (f"{HEAD} ((grad (fn [q] {DENSE.format(sign='-')})) q)", False),  # both factors are the row's
    "few": ("[#^ (Mat 9 d) a #^ (Vec d) m #^ (Mat k d) q] ((grad (fn [m] " + DENSE.format(sign="-") + ")) m)", False),
    "short": ("[#^ (Mat n 3) a #^ (Vec 3) m #^ (Mat k 3) q] ((grad (fn [m] " + DENSE.format(sign="-") + ")) m)", False),
}  # fmt: skip
POINTS = [(0, 3, 2), (1, 1, 1), (40, 5, 3), (7, 2, 9), (300, 4, 4)]


@cache
def model(name: str) -> Model:
    if name == "mixture":
        return hyad.grad(hyad.load(Path(__file__).parent / "bench" / "problems" / "gmm.hy").gmm, wrt=(0, 1, 2))
    return hyad.model(f"(defmodel {name} {MODELS[name][0]})", namespace={})


def arguments(name: str, n: int, d: int, k: int) -> list[Any]:
    rng = np.random.default_rng(n + d)
    a = rng.normal(size=(n, d))
    if name == "mixture":
        return [rng.normal(size=k), rng.uniform(size=(k, d)), rng.normal(size=(k, d * (d + 1) // 2)) / 4, a, 1.0, 0.0]
    return [a, rng.normal(size=d), rng.normal(size=(k, d))]


POINT = 9, 3, 2  # which all models take


@cache
def programs() -> tuple[dict[tuple[str, str, bool], CudaProgram], Emulator]:
    found = {}
    for name in MODELS:
        f = model(name)
        program = f.optimised(f.specs(arguments(name, *POINT)), "cuda", blas=True)
        for dtype, off in (("f64", False), ("f64", True), ("f32", False)):
            with without(("sums-first",) * off):
                found[name, dtype, off] = print_grid(program, dtype=dtype, name=f"{name.replace('-', '_')}{len(found)}")
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


@pytest.mark.parametrize("name", MODELS)
def test_which_sums_come_first(name: str) -> None:
    f, seen = model(name), {}
    spread(f.optimised(f.specs(arguments(name, *POINT)), "cuda", blas=True), watch=seen.__setitem__)
    before, after = (str(print_program(seen[step])) for step in ("apart", "sums-first"))
    assert (before != after) == MODELS[name][1]


@pytest.mark.some(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "off"), [("f64", False), ("f64", True), ("f32", False)])
def test_the_sums_are_the_same(name: str, dtype: str, off: bool) -> None:
    found, emulator = programs()
    for n, d, k in POINTS if MODELS[name][1] else [POINT]:
        args = arguments(name, n, d, k)
        want = memoised.results(model(name), args)
        for descending in (False, True):
            for x, y in zip(emulator.run(found[name, dtype, off], args, descending=descending), want, strict=True):
                close = 1e-11 if dtype == "f64" else 3e-4
                np.testing.assert_allclose(x, y, rtol=close, atol=close * np.max(np.abs(y), initial=0.0))


def test_a_sum_of_nothing_is_nothing() -> None:
    """Whatever it would be multiplied by; of rows, what is not a number is none."""
    found, emulator = programs()
    a, m, q = arguments("minus", 40, 5, 3)
    for bad in (np.inf, np.nan):
        q[1, 2] = bad
        for rows in (a[:0], a):
            for descending in (False, True):
                (got,) = emulator.run(found["minus", "f64", False], [rows, m, q], descending=descending)
                (want,) = memoised.results(model("minus"), [rows, m, q])
                assert np.array_equal(np.isnan(got), np.isnan(want)) and np.isnan(got).any() == bool(len(rows))
