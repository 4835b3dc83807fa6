"""Loops and runs of launches that one block takes instead: what they compute, as one kernel and launch by launch, on
the CPU in both orders of the threads; and how many launches a call is. NumPy and C are what they are held against."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hyad
from hyad import gpu
from hyad.codegen import nvrtc, steps
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Choose, CudaProgram, Launch, Repeat, While, walk
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.program.journal import without

needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
RNG = np.random.default_rng(3)
OFF = ("persistent",)


class Case(NamedTuple):
    """A model, what it is in NumPy, and arguments of a size."""

    text: str
    numpy: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]


def heat(u: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        u = 0.5 * u + 0.5 * np.roll(u, -1)
    return u


def power(a: np.ndarray, v: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        v = a @ v
        v = v / np.sqrt(v @ v)
    return v


def halved(u: np.ndarray) -> np.ndarray:
    while u.sum() > 1.0:
        u = 0.7 * np.sin(u)
    return u


def regular(n: int) -> np.ndarray:
    """Not dominated by its diagonal: rows are exchanged."""
    return RNG.normal(size=(n, n))


def positive(n: int) -> np.ndarray:
    a = RNG.normal(size=(n, n))
    return a @ a.T + n * np.eye(n)


HEAT = "(build (len u) (fn [i] (+ (* 0.5 (get u i)) (* 0.5 (get u (% (+ i 1) (len u)))))))"
HALVE = "(while (> (sum (deref u)) 1.0) (set! u (map (fn [x] (* 0.7 (sin x))) (deref u))))"
POWER = "(let [w (map (fn [r] (dot r v)) a) s (norm w)] (map (fn [x] (/ x s)) w))"
STEPS = "#^ Int steps"
CASES = {
    "cholesky": Case("[#^ (Mat n n) a] (cholesky a)", np.linalg.cholesky, lambda n: (positive(n),)),
    "solve": Case("[#^ (Mat n n) a #^ (Vec n) b] (solve a b)", np.linalg.solve,
                  lambda n: (regular(n), RNG.normal(size=n))),
    "inv": Case("[#^ (Mat n n) a] (inv a)", np.linalg.inv, lambda n: (regular(n),)),
    "logdet": Case("[#^ (Mat n n) a] (logdet a)", lambda a: np.linalg.slogdet(a)[1], lambda n: (regular(n),)),
    "odd": Case(f"[#^ (Vec n) u {STEPS}] (ifold (fn [u k] {HEAT}) u steps)", heat, lambda n: (RNG.normal(size=n), 7)),
    "even": Case(f"[#^ (Vec n) u {STEPS}] (ifold (fn [u k] {HEAT}) u steps)", heat, lambda n: (RNG.normal(size=n), 4)),
    "power": Case(f"[#^ (Mat n n) a #^ (Vec n) v {STEPS}] (ifold (fn [v k] {POWER}) v steps)", power,
                  lambda n: (positive(n), RNG.normal(size=n), 3)),
    "halve": Case(f"[#^ (Vec n) v] (let [u (ref v)] {HALVE} (deref u))", halved, lambda n: (RNG.uniform(1, 2, n),)),
}  # fmt: skip


def plan(text: str, name: str, off: Sequence[str] = ()) -> CudaProgram:
    f = hyad.model(f"(defmodel {name} {text})", namespace={})
    with without(off):
        return print_grid(f.optimised(f.specs(None), "cuda", blas=True), name=name)


@cache
def plans() -> tuple[dict[tuple[str, bool], CudaProgram], Emulator]:
    made = {(c, off): plan(CASES[c].text, f"{c}{int(off)}", OFF * off) for c in CASES for off in (False, True)}
    return made, Emulator([*made.values()], gpu.cpu_compiler() or ())


class Counter:
    """A device that starts nothing: how many launches there would be."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def launch(self, step: Launch, blocks: int, args: Sequence[Any], shared: int = 0) -> None:
        self.started.append(step.kernel)

    def clear(self, to: int, nbytes: int) -> None: ...

    def copy(self, to: int, source: int, nbytes: int) -> None: ...

    def read(self, at: int, elem: str) -> int:
        return 0

    def gemm(self, *args: Any) -> bool:
        return True


def launched(program: CudaProgram, **sizes: int) -> list[str]:
    counter, given = Counter(), dict.fromkeys(program.known, 1) | sizes
    scalars = {p.name: 0.0 for p in program.params}
    steps.compiled(program).run(counter, {m.name: 0 for m in program.memory}, scalars, given)
    return counter.started


@needs_cpu
@pytest.mark.some(3)
@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_a_block_computes(name: str, off: bool) -> None:
    made, emulator = plans()
    assert ("_part(" in made[name, off].source) is not off
    for k, n in enumerate((1, 2, 19)):
        args = CASES[name].args(n)
        want = CASES[name].numpy(*args)
        for descending in (False, True) if n > 2 else (k == 0,):
            (got,) = emulator.run(made[name, off], args, descending=descending)
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.max(np.abs(want)))


@needs_cpu
@pytest.mark.parametrize("step", ["(+ (cumsum u) (amax u))", "(* (scan max 0.0 u) (norm u))"])
def test_a_block_folds_its_one_part(step: str) -> None:
    """Of a scan that many blocks share otherwise: of more elements than a block has threads."""
    text = f"[#^ (Vec n) x] (ifold (fn [u k] (* 0.01 {step})) x 2)"
    f = hyad.model(f"(defmodel scanned {text})", namespace={})
    program = plan(text, "scanned")
    assert "_loop(" in program.source
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n in (1000, 1025, 3100):
        x = RNG.normal(size=n)
        (got,) = emulator.run(program, [x])
        np.testing.assert_allclose(got, hyad.compile(f)(x), rtol=1e-11)


@needs_cpu
@pytest.mark.parametrize("step", ["(map (fn [e] (sin (+ e (sum u)))) u)", "(@ (outer u x) u)"])
def test_a_loop_of_a_negative_number_of_steps_has_none(step: str) -> None:
    """Nor does what it remembers for the way back have negative sizes."""
    text = f"(defmodel backwards [#^ (Vec n) x #^ Int t] (sum (square (ifold (fn [u k] {step}) (* 0.1 x) t))))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt="x")
    program = print_grid(f.optimised(f.specs(None), "cuda"), name="backwards")
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    x = RNG.normal(size=4)
    for t in (-2, -1, 0, 1, 3):
        np.testing.assert_allclose(emulator.run(program, [x, t])[0], hyad.compile(f)(x, t), rtol=1e-11)


@needs_cpu
def test_a_missing_barrier_is_noticed() -> None:
    """In one of the two orders of threads an iteration reads what the one before has not made yet."""
    program = plan(CASES["odd"].text, "heat")
    head, name, loop = program.source.partition(" heat_loop(")
    assert loop.count("__syncthreads();") == 2
    altered = dataclasses.replace(program, source=head + name + loop.replace("__syncthreads();", "", 1))
    args = CASES["odd"].args(40)
    emulator = Emulator([altered], gpu.cpu_compiler() or ())
    found = [emulator.run(altered, args, descending=d)[0] for d in (False, True)]
    assert not all(np.allclose(f, heat(*args)) for f in found)


def test_how_many_launches() -> None:
    """A matrix of 100 rows is factored by one kernel; a large one by a few for each column, not for each row of it."""
    made, _ = plans()
    few = {"cholesky": 5, "solve": 7, "logdet": 3, "odd": 1, "power": 1}
    for name, most in few.items():
        assert len(launched(made[name, False], n=100, steps=50)) <= most, name
    for name, each in {"cholesky": 4, "solve": 8 + 3 + 3, "logdet": 8}.items():
        for n in (1500, 3000):
            assert len(launched(made[name, False], n=n)) <= each * n + 5, name
        assert len(launched(made[name, True], n=100)) > 300
    large = launched(made["odd", False], n=10**6, steps=50)
    assert len(large) == 50 and not any("loop" in kernel for kernel in large)
    assert made["odd", True].source.count("__global__") == 1


def mixture() -> hyad.Model:
    return hyad.grad(hyad.load(Path(__file__).parent / "bench" / "problems" / "gmm.hy").gmm, wrt=(0, 1, 2))


@cache
def mixtures() -> tuple[CudaProgram, CudaProgram]:
    """The gradient of a Gaussian mixture's likelihood, as it is and launch by launch."""
    f = mixture()
    spread = f.optimised(f.specs(None), "cuda", blas=True)
    with without(OFF):
        apart = print_grid(spread, name="apart")
    return print_grid(spread, name="near"), apart


def test_small_launches_side_by_side_are_one() -> None:
    """What is done for each component of a mixture before its points are gone through, and behind them."""
    near, apart = mixtures()
    for sizes, most in (({"n": 1000, "k": 5, "d": 4, "p": 10}, 11), ({"n": 100_000, "k": 25, "d": 10, "p": 55}, 17)):
        assert len(launched(near, **sizes)) <= most < 20 <= len(launched(apart, **sizes))
    assert len(launched(near, n=100_000, k=400, d=100, p=5050)) > 12  # too much for a block


def test_long_folds_of_few_places_are_no_small_launches() -> None:
    """A block's threads would wait for the few that have one: columns go in pieces before they go side by side."""
    text = """[#^ (Mat n m) a #^ (Mat n l) b #^ (Mat n n) c] #((np.sum a :axis 0) (np.max b :axis 0) (sin c))"""
    program = plan(text, "columns")
    sizes = [{"n": n, "m": 3, "l": 3} for n in (5000, 200)]
    assert [len(launched(program, **s)) for s in sizes] == [5, 2]


@needs_cpu
def test_small_launches_side_by_side_compute_the_same() -> None:
    near, apart = mixtures()
    emulator = Emulator([near, apart], gpu.cpu_compiler() or ())
    for n, k, d in ((3, 1, 1), (40, 3, 4)):
        args = [RNG.normal(size=k), RNG.normal(size=(k, d)), RNG.normal(size=(k, d * (d + 1) // 2)) / 4]
        args += [RNG.normal(size=(n, d)), 1.0, 0.0]
        want = hyad.compile(mixture(), args=args)(*args)
        for program, descending in ((near, False), (near, True), (apart, n > 3)):
            for got, y in zip(emulator.run(program, args, descending=descending), want, strict=True):
                np.testing.assert_allclose(got, y, rtol=1e-9, atol=1e-9 * np.max(np.abs(y)))


def test_the_host_chooses_by_the_work() -> None:
    program = plans()[0]["cholesky", False]
    (chosen,) = (s for s in program.steps if isinstance(s, Choose))
    assert [type(s) for s in chosen.then] == [Launch] and [type(s) for s in chosen.orelse] == [Repeat]
    assert chosen.then[0].blocks == 1
    waited = plans()[0]["halve", False]
    assert any(isinstance(s, Choose) and any(isinstance(x, While) for x in s.orelse) for s in walk(waited.steps))


def test_a_shrinking_loop_is_not_taken_for_little_work() -> None:
    """A thread's loop of ``n - i`` steps is none of no steps: a triangle of work is no block's."""
    text = """[#^ (Vec n) v #^ (Mat n n) a] (let [
      t (build (len v) (fn [i] (ifold (fn [s k] (+ s (sin (* (real k) (get v i))))) 0.0 (- (len v) i)))) m (map sin t)]
      #(t (map (fn [r] (map (fn [x] (* x (get m 0))) r)) a) (get m 0)))"""
    assert len(launched(plan(text, "shrinking"), n=1000)) == 3


def test_what_is_known_to_be_little_has_no_other_kernels() -> None:
    f = hyad.model("(defmodel f [#^ (Mat 80 80) a] (cholesky a))", namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    assert not any(isinstance(s, (Choose, Repeat)) for s in program.steps)
    started = {s.kernel for s in walk(program.steps) if isinstance(s, Launch)}
    assert set(program.kernels) == started and len(re.findall("__global__", program.source)) == len(started)


@needs_cpu
def test_a_check_that_fails_in_a_block_is_told() -> None:
    text = "[#^ (Vec n) u #^ (Arr Int n) at #^ Int steps] (ifold (fn [u k] (map (fn [i] (get u (+ i k))) at)) u steps)"
    program = plan(text, "checked")
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    u, at = RNG.normal(size=9), np.arange(9)[::-1] // 2
    (got,) = emulator.run(program, (u, at, 4))
    for k in range(4):
        u = u[at + k]
    assert np.array_equal(got, u)
    with pytest.raises(BoundsError):
        emulator.run(program, (u, at, 7))


@pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
def test_what_a_block_changes_is_not_read_through_the_cache_of_constants() -> None:
    """Kernels may read what none changes meanwhile past the cache that knows of stores; parts of a loop may not."""
    program = plans()[0]["cholesky", False]
    ptx = nvrtc.compile_device(program.source, "compute_80", "cholesky").decode()
    entries = {part.partition("(")[0]: part for part in ptx.split(".entry ")[1:]}
    (loop,) = (k for k in entries if k.endswith("_loop"))
    assert "ld.global.nc" not in entries[loop] and entries[loop].count("bar.sync") >= 3
    assert any("ld.global.nc" in text for k, text in entries.items() if k != loop)


@needs_cpu
def test_what_a_kernel_does_not_read_it_does_not_take() -> None:
    """Not even what is called ``x``, as a member of ``threadIdx`` is: the emulator's compiler refuses it."""
    text = """[x] (let [n (len x) f (zeros n)]
      (for [t (range 1 n)] (set-at! f t (+ (get x t) (logsumexp (cut f 0 t))))) (sum f))"""
    f = hyad.model(f"(defmodel unread {text})", namespace={})
    x = RNG.normal(size=9)
    program = print_grid(f.optimised(f.specs((x,)), "cuda"))
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for descending in (False, True):
        np.testing.assert_allclose(emulator.run(program, (x,), descending=descending)[0], f(x), rtol=1e-12)
