"""Matrices that a kernel reads the other way round, by tiles in shared memory: run on the CPU in both orders of the
threads, on several grids; what a missing barrier does; what is left as it is."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import batch
import hyad
from hyad import gpu
from hyad.codegen import nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram
from hyad.emulate import Emulator
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
SHAPES = ({}, {"blocks": 1, "descending": True}, {"blocks": 3})
#: A model, the shapes of its arguments, what is read by tiles, and what it computes.
MODELS: dict[str, tuple[str, tuple[Any, ...], set[str], Any]] = {
    "plain": ("[#^ (Mat n m) x] (transpose x)", ((70, 33),), {"x"}, lambda x: x.T),
    "sum": ("[#^ (Mat n m) x #^ (Mat m n) y] (+ (* 2.0 y) (transpose x))", ((45, 70), (70, 45)), {"x"},
            lambda x, y: 2 * y + x.T),
    "both": ("[#^ (Mat n n) x] (+ x (transpose x))", ((67, 67),), {"x"}, lambda x: x + x.T),
    "stack": ("[#^ (Arr Real b n m) x] (transpose x [0 2 1])", ((3, 34, 5),), {"x"}, lambda x: x.transpose(0, 2, 1)),
    "deep": ("[#^ (Arr Real b c n m) x] (exp (transpose x [0 1 3 2]))", ((2, 3, 5, 33),), {"x"},
             lambda x: np.exp(x.transpose(0, 1, 3, 2))),
    "views": ("[#^ (Mat n m) x #^ (Mat n m) y] (build [(len (get x 0)) (len x)] (fn [j i]"
              " (* (get (get x i) j) (get y i j) (real (+ i (* 100 j))))))", ((20, 40), (20, 40)), {"x", "y"},
              lambda x, y: (x * y).T * (np.arange(20) + 100 * np.arange(40)[:, None])),
    "whole": ("[#^ (Arr Int n m) x] (transpose x)", (("int", 37, 65),), {"x"}, lambda x: x.T),
    "part": ("[#^ (Mat n m) x] (build [(- (len (get x 0)) 3) (- (len x) 2)] (fn [j i] (get x i j)))", ((40, 37),),
             {"x"}, lambda x: x[:-2, :-3].T),
    "shifted": ("[#^ (Mat n m) x] (build [(- (len (get x 0)) 1) (len x)] (fn [j i] (get x i (+ j 1))))", ((9, 8),),
                set(), lambda x: x[:, 1:].T),
    "sometimes": ("[#^ (Mat n m) x #^ (Vec m) y] (build [(len (get x 0)) (len x)] (fn [j i] (if (> (get y j) 1.0)"
                  " (exp (get x i j)) 0.0)))", ((40, 37), (37,)), set(),
                  lambda x, y: np.where(y > 1, np.exp(x), 0.0).T),
}  # fmt: skip


def printed(name: str, dtype: str = "f64", off: bool = False) -> CudaProgram:
    f = hyad.model(f"(defmodel {name} {MODELS[name][0]})", namespace={})
    with without(("tiles",) * off):
        program = f.optimised(f.specs(arguments(name)), "cuda", blas=True)
        return print_grid(program, dtype=dtype, name=f"{name}_{dtype}{'_off' * off}")


def arguments(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = MODELS[name][1]
    return [rng.integers(0, 9, s[1:]) if s[0] == "int" else rng.uniform(0.5, 2.0, s) for s in shapes]


@cache
def programs() -> tuple[dict[tuple[str, str, bool], CudaProgram], Emulator]:
    keys = [(name, dtype, off) for name in MODELS for dtype, off in (("f64", False), ("f32", False), ("f64", True))]
    found = {key: printed(*key) for key in keys}
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


def tiled(source: str) -> set[str]:
    return set(re.findall(r"hyad_turn\((\w+)_tile,", source))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_the_elements_are_the_same(name: str, dtype: str) -> None:
    found, emulator = programs()
    args = arguments(name)
    assert tiled(found[name, dtype, False].source) == MODELS[name][2]
    assert tiled(found[name, "f64", True].source) == set()
    want = MODELS[name][3](*args)
    for program in (found[name, dtype, False], *((found[name, "f64", True],) if dtype == "f64" else ())):
        for shape in SHAPES:
            (got,) = emulator.run(program, args, **shape)
            np.testing.assert_allclose(got, want, rtol=1e-12 if dtype == "f64" else 1e-5)


def test_empty_matrices() -> None:
    found, emulator = programs()
    for name in ("plain", "stack"):
        for k in range(len(MODELS[name][1][0])):
            shape = [*MODELS[name][1][0]]
            shape[k] = 0
            (got,) = emulator.run(found[name, "f64", False], [np.zeros(shape)])
            assert got.shape == MODELS[name][3](np.zeros(shape)).shape


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_barrier_is_noticed(number: int) -> None:
    """The one before a tile is read, and the one before it is filled again."""
    whole = printed("plain")
    parts = whole.source.split("__syncthreads();")
    assert len(parts) == 3
    source = "__syncthreads();".join(parts[:number]) + ";" + "__syncthreads();".join(parts[number:])
    changed = dataclasses.replace(whole, source=source)
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    (x,) = arguments("plain")
    found = [emulator.run(changed, [x], blocks=1, descending=d)[0] for d in (False, True)]
    assert any(not np.array_equal(got, x.T) for got in found)


@needs_ptx
def test_the_text_compiles_for_a_device() -> None:
    found, _ = programs()
    for key in (("deep", "f64", False), ("both", "f32", False)):
        assert b".entry" in nvrtc.compile_device(found[key].source)


def test_a_loop_of_one_block_has_tiles_too() -> None:
    """Of as many threads as a tile is for."""
    text = "[#^ (Mat n n) x #^ Int s] (ifold (fn [u k] (* 0.5 (+ u (transpose u)))) x s)"
    f = hyad.model(f"(defmodel f {text})", namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    assert "__launch_bounds__(256) f_loop(" in program.source and tiled(program.source) == {"u"}
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n in (37, 300):  # in one block, and in launches
        x = np.random.default_rng(n).normal(size=(n, n))
        for descending in (False, True):
            (got,) = emulator.run(program, [x, 3], descending=descending)
            np.testing.assert_allclose(got, 0.5 * (x + x.T), rtol=1e-12)
