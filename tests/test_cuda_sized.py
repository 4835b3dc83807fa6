"""Rows of which only the host knows the width, moved through shared memory that it sizes: run on the CPU in both orders
of the threads, for widths that there is room for and others; what a missing barrier or too little memory does."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen import launches, nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram, Launch
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.model import Model
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")

LENGTHS = """(map (fn [p]
  (let [y (build (len p) (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get p c)))) 0.0 (+ r 1))))]
    (fold (fn [s x] (+ s (* x x))) 0.0 y))) a)"""
SMALLER = "(map (fn [p] (ifold (fn [x k] (/ x (+ 1.0 (norm x)))) p m)) a)"
#: A model, and the arrays whose rows go through shared memory, in the order in which there is room for them.
MODELS: dict[str, tuple[str, list[str]]] = {
    "lengths": (f"[#^ (Mat n d) a #^ (Mat d d) q] {LENGTHS}", ["a"]),
    "total": (f"[#^ (Mat n d) a #^ (Mat d d) q] (sum {LENGTHS})", ["a"]),
    "smaller": (f"[#^ (Mat n d) a #^ Int m] {SMALLER}", ["out"]),
    "picked": ("[#^ (Mat n d) a #^ (Arr Int m) at] (map (fn [p] (ifold (fn [s j] (ifold (fn [s k] (+ (* 0.5 s)"
               " (sin (get p (get at k))))) s (+ j 1))) 0.0 (len at))) a)", ["a"]),
    "once": ("[#^ (Mat n d) a #^ (Arr Int m) at] (map (fn [p] (ifold (fn [s k] (+ (* 0.5 s) (sin (get p (get at k)))))"
             " 0.0 (len at))) a)", []),
    "mixture": ("", ["t2", "x"]),
    "declared": (f"[#^ (Mat n 5) a #^ (Mat 5 5) q] {LENGTHS}", ["a"]),
}  # fmt: skip
POINTS = [(0, 5), (1, 1), (33, 5), (150, 2), (33, 24), (40, 46), (33, 47), (7, 70)]


@cache
def model(name: str) -> Model:
    if name == "mixture":
        return hyad.grad(hyad.load(Path(__file__).parent / "bench" / "problems" / "gmm.hy").gmm, wrt=(0, 1, 2))
    return hyad.model(f"(defmodel {name} {MODELS[name][0]})", namespace={})


def arguments(name: str, n: int, d: int) -> list[Any]:
    rng = np.random.default_rng(n + d)
    a = rng.uniform(0.5, 2.0, (n, d))
    if name == "mixture":
        parts = rng.normal(size=4), rng.uniform(size=(4, d)), rng.normal(size=(4, d * (d + 1) // 2)) / (4 + d)
        return [*parts, a, 1.0, 0.0]
    if name == "smaller":
        return [a, 3]
    return [a, rng.integers(0, d, 6)] if name in ("picked", "once") else [a, rng.normal(size=(d, d))]


def printed(name: str, dtype: str = "f64", off: tuple[str, ...] = ()) -> CudaProgram:
    f = model(name)
    program = f.optimised(f.specs(arguments(name, 3, 5)), "cuda", blas=True)
    with without(off):
        return print_grid(program, dtype=dtype, name=f"{name}_{dtype}{len(off)}")


@cache
def programs() -> tuple[dict[tuple[str, str], CudaProgram], Emulator]:
    keys = [*((name, "f64") for name in MODELS), ("mixture", "f32"), ("smaller", "f32")]
    found = {key: printed(*key) for key in keys}
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


def staged(text: str) -> list[str]:
    """The arrays whose rows have a width that the host knows."""
    return re.findall(r"const (\w+)_row = ", text)


def wanted(name: str, args: list[Any]) -> list[np.ndarray]:
    return memoised.results(model(name), args)


@pytest.mark.some(6)
@pytest.mark.parametrize("key", [*((name, "f64") for name in MODELS), ("mixture", "f32"), ("smaller", "f32")])
def test_rows_are_the_same(key: tuple[str, str]) -> None:
    """Also of widths that there is no room for, or for one of two rows only."""
    found, emulator = programs()
    name, dtype = key
    assert staged(found[key].source) == MODELS[name][1]
    assert ("hyad_shared_rows" in found[key].source) == (name not in ("once", "declared"))
    for n, d in POINTS if name != "declared" else [(40, 5)]:
        args = arguments(name, n, d)
        wanted = memoised.results(model(name), args)
        for descending in (False, True):
            for got, want in zip(emulator.run(found[key], args, descending=descending), wanted, strict=True):
                close = 1e-11 if dtype == "f64" else 2e-4
                np.testing.assert_allclose(got, want, rtol=close, atol=close * np.max(np.abs(want), initial=0.0))


def test_one_can_do_without() -> None:
    program = printed("mixture", off=("staging",))
    assert staged(program.source) == [] and "hyad_shared_rows" not in program.source
    assert not any(step.shared for step in launches.walk(program.steps) if isinstance(step, Launch))


def launch_of(program: CudaProgram) -> Launch:
    (found,) = (s for s in launches.walk(program.steps) if isinstance(s, Launch) and s.shared != 0)
    return found


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_what_a_launch_gives(dtype: str) -> None:
    """Rows lie an odd number of elements apart; what is written has room first, and no row has a part of it."""
    launch = launch_of(programs()[0]["mixture", dtype])
    size, room = (8, 47) if dtype == "f64" else (4, 94)
    for d in range(1, 200):
        apart = d | 1
        rows = 2 if 2 * apart <= room else 1 if apart <= room else 0
        (dim,) = set(launches.names_of(launch.shared))
        assert launches.value(launch.shared, {dim: d}) == rows * apart * size * launch.block <= 48 << 10


@pytest.mark.some(6)
@pytest.mark.parametrize("given", [0, 8, 5 * 8 * 128 - 8, 5 * 8 * 128, 48 << 10])
def test_rows_for_which_there_is_no_memory_stay_where_they_are(given: int) -> None:
    """A kernel looks how much it has, as where it is one of several in a block: the results are the same."""
    whole = printed("mixture")
    launch = launch_of(whole)
    assert any(s is launch for s in whole.steps)
    steps = tuple(dataclasses.replace(s, shared=given) if s is launch else s for s in whole.steps)
    program = dataclasses.replace(whole, steps=steps)
    args = arguments("mixture", 40, 5)
    for got, want in zip(Emulator([program], gpu.cpu_compiler() or ()).run(program, args), wanted("mixture", args)):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["smaller", "lengths"])
def test_a_missing_barrier_of_a_warp_is_noticed(name: str) -> None:
    """The one before rows are read, or made again where they are still written out."""
    whole = programs()[0][name, "f64"]
    args = arguments(name, 300, 4)
    (want,) = wanted(name, args)
    parts = whole.source.split("__syncwarp();")
    assert len(parts) == 3
    changed = dataclasses.replace(whole, source=f"{parts[0]};{parts[1]}__syncwarp();{parts[2]}")
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    found = [emulator.run(changed, args, blocks=1, descending=d)[0] for d in (False, True)]
    assert any(not np.allclose(x, want) for x in found)


def test_a_failed_check_waits_for_nobody() -> None:
    """A thread whose subscript is wrong still moves rows with the others."""
    found, emulator = programs()
    a, at = arguments("picked", 70, 5)
    for descending in (False, True):
        with pytest.raises(BoundsError):
            emulator.run(found["picked", "f64"], [a, np.append(at, 5)], descending=descending)


@pytest.mark.some(6)
@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize("name", ["smaller", "mixture"])
def test_nvcc_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    """Of the kernels, and of host code that gives them memory."""
    path, _ = hyad.emit(model(name), tmp_path / "rows.cu", target="cuda", grid=True)
    assert "hyad_start_sized(" in path.read_text()
    flags = ["-arch=sm_90", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-o", str(tmp_path / "rows.o")]
    done = subprocess.run([nvrtc.nvcc(), *flags, "-c", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_small_launches_are_still_one_kernel() -> None:
    """Beside a kernel with such rows as beside others."""
    f = hyad.load(Path(__file__).parent / "bench" / "problems" / "gmm.hy").gmm
    kernels = []
    for off in ((), ("staging",)):
        with without(off):
            program = print_grid(f.optimised(f.specs(), "cuda", blas=True))
        assert ("hyad_room<" in program.source) == (not off) and "by one block" in program.source
        kernels.append(program.kernels)
    assert kernels[0] == kernels[1]


def test_rows_in_loops_of_the_host_stay_where_they_are() -> None:
    """Such loops become kernels of one block, which have no more shared memory than their own."""
    text = """(defmodel steps [#^ (Mat n d) a #^ (Mat d d) q #^ Int m] (ifold (fn [z k] (amax (map (fn [p]
      (let [y (build (len p) (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get p c)))) 0.0 (+ r 1))))]
        (fold (fn [s x] (+ s (* x (tanh (* z x))))) 0.0 y))) a))) 1.0 m))"""
    f = hyad.model(text, namespace={})
    args = [np.ones((30, 4)), np.ones((4, 4)), 3]
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    assert any(isinstance(s, launches.Repeat) for s in launches.walk(program.steps))
    assert not any(s.shared for s in launches.walk(program.steps) if isinstance(s, Launch))
    (got,) = Emulator([program], gpu.cpu_compiler() or ()).run(program, args)
    np.testing.assert_allclose(got, hyad.compile(f, args=args)(*args), rtol=1e-11)


def test_shared_memory_beyond_what_a_launch_gives_is_noticed() -> None:
    """Where a kernel runs on the CPU: the other tests rely on it."""
    text = """
import dataclasses, test_cuda_sized as t
from hyad import gpu
from hyad.emulate import Emulator
whole = t.printed("smaller")
source = whole.source.replace("return hyad_shared_bytes()/", "return (hyad_shared_bytes() + 9000)/")
assert source != whole.source
wrong = dataclasses.replace(whole, source=source, steps=tuple(
    dataclasses.replace(s, shared=64) if s is t.launch_of(whole) else s for s in whole.steps))
Emulator([wrong], gpu.cpu_compiler()).run(wrong, t.arguments("smaller", 70, 5))
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode != 0 and "shared memory beyond what the launch gives" in done.stderr, done.stderr
