"""Scans on a GPU: prefix sums and other recurrences whose states blocks put together, run here on the CPU, equal C's.

A scan takes its terms in another order than C does: the difference is at most their number times the precision times
what the recurrence makes of their absolute values, which for these models is below ``BOUND`` times the largest result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import batch
import hyad
from hyad import gpu
from hyad.codegen import launches, nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Choose, CudaProgram, Launch
from hyad.core import Program
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.marshalling import take_apart
from hyad.model import Model

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
BOUND = {"f64": 1e-11, "f32": 3e-3}
SIZES = (0, 1, 31, 32, 33, 1000, 5000)

THREE = """(let [t (fold (fn [t a] (let [#(u v w) t] #((+ (* 0.5 u) (* c v)) (- w (* 0.1 a u)) (+ (* 0.3 v) a))))
  #(1.0 0.0 2.0) x)] (let [#(u v w) t] (+ u (* v w))))"""
LOSS = "(sum (map sin {}))"
SCANS = {
    "sums": "(scan + 0.0 (map sin x))",
    "cumsum": "(cumsum x)",
    "largest": "(scan max -1e300 x)",
    "smallest": "(scan min 1e300 x)",
    "decay": "(scan (fn [s a] (+ (* 0.9 s) a)) 0.0 x)",
    "turns": "(scan (fn [s a] (- a (/ s 1.25))) 0.5 x)",
    "varying": "(scan (fn [s a] (+ (* (cos a) s) (if (> a 0.0) a 0.0))) 1.0 x)",
    "momentum": "(map fst (scan (fn [p a] (let [v (+ (* 0.9 (snd p)) a)] #((- (fst p) (* 0.1 v)) v))) #(1.0 0.0) x))",
    "filter": "(map fst (scan (fn [p a] #((- (+ a (* 0.9 (fst p))) (* 0.5 (snd p))) (fst p))) #(0.0 0.5) x))",
    "resets": "(scan (fn [s a] (if (> a 0.3) a (+ s (* a a)))) 0.0 x)",
    "products": "(scan (fn [s a] (* s (- 1.0 (* 0.01 a)))) 1.0 x)",
}
MODELS = {
    **{name: f"[#^ (Vec n) x] {scan}" for name, scan in SCANS.items()},
    **{f"{name}'": f"[#^ (Vec n) x] {LOSS.format(scan)}" for name, scan in SCANS.items()},
    "coefficient'": f"[#^ (Vec n) x c] {LOSS.format('(scan (fn [s a] (+ (* (sin c) s) a)) 0.0 x)')}",
    "tanh'": f"[#^ (Vec n) x c] {LOSS.format('(scan (fn [s a] (tanh (+ (* c s) a))) 0.0 x)')}",
    "fibonacci'": "[#^ (Vec n) x c] (fst (fold (fn [p a] #((snd p) (+ (fst p) (* c (sin a) (snd p))))) #(0.0 1.0) x))",
    "three'": f"[#^ (Vec n) x c] {THREE}",
    "suffixes'": "[#^ (Vec n) x] (sum (build n (fn [i] (log (sum (exp (slice x i n)))))))",
    "whole": "[#^ (Arr Int n) x] (scan + 3 x)",
    "truth": "[#^ (Vec n) x] (scan (fn [s a] (or s (> a 0.99))) False x)",
    "last": "[#^ (Vec n) x c] (fold (fn [s a] (+ (* s c) a)) 2.0 x)",
    "grows": "[#^ (Vec n) x] (scan (fn [s a] (+ (* 1.5 s) a)) 0.0 x)",
    "weighted": "[#^ (Vec n) x] (map * x (cumsum (map square x)))",
    "two": "[#^ (Vec n) x] #((cumsum x) (scan max -9.0 x) (sum x))",
    "steps": "[#^ (Vec n) x #^ Int k] (ifold (fn [v j] (map (fn [a] (* 0.01 a)) (cumsum v))) x k)",
    "rows": "[#^ (Mat n m) x] (map cumsum x)",
    "across": "[#^ (Mat n m) x] (cumsum x 0)",
    "rows'": "[#^ (Mat n m) x] (sum (map (fn [r] (sum (map sin (cumsum r)))) x))",
    "rows-decay": "[#^ (Mat n m) x] (map (fn [r] (scan (fn [s a] (+ (* 0.9 s) a)) 0.0 r)) x)",
    "cube": "[#^ (Arr n k m) x] (map (fn [t] (map cumsum t)) x)",
}  # fmt: skip
SHAPES = ((0, 3), (3, 0), (1, 1), (5, 31), (3, 33), (2, 300))
SINGLE = ("cumsum", "decay", "filter", "products", "decay'", "largest'", "varying", "rows")


class Subject(NamedTuple):
    program: Program
    cuda: CudaProgram
    call: Callable[..., Any]
    points: list[tuple[Any, ...]]
    dtype: str


def model_of(name: str) -> Model:
    f = hyad.model(f"(defmodel f {MODELS[name]})", namespace={})
    return hyad.grad(f, wrt=("x", "c") if "]" in MODELS[name] and " c]" in MODELS[name] else "x") if "'" in name else f


def points_of(name: str) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(3)
    points: list[tuple[Any, ...]] = []
    head = MODELS[name].partition("]")[0]
    if "Mat" in head or " k m" in head:
        for n, m in SHAPES:
            points.append((rng.normal(size=(n, m) if "Mat" in head else (n, 2, m)),))
        return points
    if name == "grows":  # 1.5 to the power of a block's iterations is not finite, the states are
        x = np.zeros(SIZES[-1])
        x[-7] = 2.0
        return [(x,)]
    for n in SIZES:
        x = rng.integers(-9, 9, n) if "Int n" in head else rng.normal(size=n)
        points.append((x, *((0.7,) if head.endswith(" c") else (3,) if head.endswith("k") else ())))
    return points


def keys() -> list[str]:
    return [*MODELS, *(f"{name} f32" for name in SINGLE)]


@pytest.fixture(scope="module")
def subjects() -> tuple[dict[str, Subject], Emulator]:
    c = {dtype: batch.Batch(dtype, [*batch.FLAGS[1:], "-O0"]) for dtype in ("f64", "f32")}
    made: dict[str, Subject] = {}
    for key in keys():
        name, _, dtype = key.partition(" ")
        dtype = dtype or "f64"
        f, points = model_of(name), points_of(name)
        program = f.optimised(f.specs(points[-1]))
        spread = f.optimised(f.specs(points[-1]), "cuda", blas=True)
        cuda = print_grid(spread, dtype=dtype, name=f"p{len(made)}", deterministic=True)
        made[key] = Subject(program, cuda, c[dtype].add(program), points, dtype)
    for b in c.values():
        b.compile()
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return made, Emulator([s.cuda for s in made.values()], compiler)


def like(name: str, args: tuple[Any, ...]) -> Any:
    x = args[0]
    if "'" in name:
        return (x, 0.0) if len(args) > 1 else x
    return {"last": 0.0, "truth": x > 0, "two": (x, x, 0.0)}.get(name, x)


@pytest.mark.some(4)
@pytest.mark.parametrize("key", keys())
def test_scans_are_what_c_computes(key: str, subjects: tuple[dict[str, Subject], Emulator]) -> None:
    """In either order of the threads; in both to the same last bit, on grids of any shape."""
    made, emulator = subjects
    s = made[key]
    for k, args in enumerate(s.points):
        wanted: list[Any] = []
        take_apart(s.program.out, s.call(*args, like=like(key.partition(" ")[0], args)), wanted)
        flat: list[Any] = []
        for tree, a in zip(s.program.ins, args):
            take_apart(tree, a, flat)
        first = emulator.run(s.cuda, flat, descending=k % 2 == 1)
        if k == len(s.points) - 1:
            again = emulator.run(s.cuda, flat, descending=k % 2 == 0, blocks=2, block=32)
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        for got, want in zip(first, wanted, strict=True):
            want = np.asarray(want)
            assert got.shape == want.shape
            scale = np.max(np.abs(want), initial=1.0) if want.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(got, want, rtol=BOUND[s.dtype], atol=BOUND[s.dtype] * scale)


#: Recurrences that do not read their state where an element is above 1.09, and two whose factor may be zero.
FORGETS = {
    "linear": "(scan (fn [s a] (if (> a 1.09) a (+ (* 0.5 s) a))) 0.0 x)",
    "product": "(scan (fn [s a] (if (> a 1.09) 1.0 (* s a))) 1.0 x)",
    "turned": "(scan (fn [s a] (* -2.0 (select (> a 1.09) 0.25 (* 0.25 s a)))) 1.0 x)",
    "difference": "(scan (fn [s a] (- (select (> a 1.09) a s) (select (> a 1.09) 0.5 (* 0.25 s)))) 0.0 x)",
    "late": "(scan (fn [s a] (select (< a 0.6) s (select (> a 1.09) a (+ (* 0.5 s) a)))) 0.0 x)",
    "two": "(map fst (scan (fn [p a] (let [c (> a 1.09)] #((select c a (+ (fst p) (* 0.5 (snd p)))) (select c 0.5 a))))"
           " #(0.0 0.5) x))",
    "apart": "(map fst (scan (fn [p a] #((+ a (* 0.5 (fst p)) (* 0.25 (snd p))) (select (> a 1.09) 1.0 (* 0.5 (snd"
             " p))))) #(0.0 0.5) x))",
    "computed": "(scan (fn [s a] (+ (* (max 0.0 (- a 0.55)) s) a)) 0.0 x)",
    "chosen": "(scan (fn [s a] (let [q (if (> a 1.09) #(0.0 (+ s 1.0)) #(a (* 0.5 s)))]"
              " (+ (* (fst q) s) (* 0.0 (snd q))))) 1.0 x)",
}  # fmt: skip


def test_what_is_forgotten_is_forgotten() -> None:
    """No number, or infinity, before a place where the state is not read, as C has it; a factor that is computed to be
    zero makes it none of a state that is none."""
    programs, models = {}, {}
    x = np.random.default_rng(0).uniform(0.5, 1.1, 2600)
    for name, text in FORGETS.items():
        f = models[name] = hyad.model(f"(defmodel f [#^ (Vec n) x] {text})", namespace={})
        programs[name] = print_grid(f.optimised(f.specs((x,)), "cuda", blas=True), name=f"forgets_{name}")
        assert any("a scan by blocks" in note for _, note in programs[name].notes), name
    emulator = Emulator([*programs.values()], gpu.cpu_compiler() or ())
    called = {name: hyad.compile(f, args=(x,)) for name, f in models.items()}
    for bad in (np.nan, -np.inf):
        for place in (40, 1000, 1300):
            given = x.copy()
            given[place] = bad
            for name, call in called.items():
                if name in ("apart", "computed", "chosen") and bad < 0:  # where 0 times what is too large is 0
                    continue
                want = call(given)
                for descending in (False, True):
                    (got,) = emulator.run(programs[name], (given,), descending=descending)
                    np.testing.assert_allclose(got, want, rtol=1e-9, err_msg=f"{name} {bad} {place}")


@needs_ptx
def test_scans_compile_to_ptx(subjects: tuple[dict[str, Subject], Emulator]) -> None:
    programs = {key: s.cuda for key, s in subjects[0].items()}
    sources = (f"namespace program{k} {{\n{p.source}}}\n" for k, p in enumerate(programs.values()))
    ptx = nvrtc.compile_device("".join(sources), "compute_80", "scans", fast=True).decode()
    assert all(f".entry {kernel}(" in ptx for p in programs.values() for kernel in p.kernels)
    single = (f"namespace {n} {{\n{programs[f'{n} f32'].source}}}\n" for n in ("cumsum", "decay", "products"))
    assert ".f64" not in nvrtc.compile_device("".join(single), "compute_80", "single").decode()


def plan(name: str) -> CudaProgram:
    f = model_of(name)
    return print_grid(f.optimised(f.specs(points_of(name)[-1]), "cuda", blas=True), deterministic=True)


def test_what_scans_run_as() -> None:
    """The parts only where there are several blocks; what makes a term is in the same kernel."""
    steps = plan("sums").steps
    assert [type(s) for s in steps] == [Choose, Launch] and len(plan("rows").steps) == 1
    assert isinstance(steps[0], Choose) and not launches.value(steps[0].cond, {"n": 1000})
    assert launches.value(steps[0].cond, {"n": 5000})
    assert not any("one thread:" in note for name in MODELS if name != "tanh'" for _, note in plan(name).notes)


def test_the_checks_of_a_scan_come_before_it() -> None:
    """An index that is out of range, and one that no integer is: no thread leaves between barriers."""
    text = "[#^ (Vec k) v #^ (Arr Int n) at] (scan (fn [s i] (+ s (get v (* i i)))) 0.0 at)"
    f = hyad.model(f"(defmodel f {text})", namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    assert [type(s) for s in program.steps] == [Launch, Choose, Launch]
    assert program.source.count("return; }") == 2  # both in the first kernel
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    v, at = np.arange(1.0, 27.0), np.random.default_rng(0).integers(-5, 6, 3000)
    for descending in (False, True):
        (got,) = emulator.run(program, (v, at), descending=descending)
        assert np.array_equal(got, np.cumsum(v[at * at]))
        for wrong in (6, 2**32):
            with pytest.raises(BoundsError, match="get"):
                emulator.run(program, (v, np.where(np.arange(3000) == 1700, wrong, at)), descending=descending)


@pytest.mark.parametrize(
    "text",
    [
        "(scan (fn [s a] (sin (+ s a))) 0.0 x)",
        "(scan (fn [s a] (* s (+ s a))) 0.5 x)",
        "(scan (fn [s a] (if (> s a) 0.0 (+ s a))) 0.0 x)",
        "(scan (fn [s a] (max (* 2.0 s) a)) 0.0 x)",
        "(scan (fn [s a] (/ a (+ s 1.0))) 0.0 x)",
        "(map fst (scan (fn [p a] #((* (snd p) (fst p)) (+ a (fst p)))) #(1.0 0.0) x))",
    ],
)
def test_other_recurrences_are_taken_in_their_order(text: str) -> None:
    f = hyad.model(f"(defmodel f [#^ (Vec n) x] {text})", namespace={})
    program = print_grid(f.optimised(f.specs((np.ones(3),)), "cuda", blas=True))
    assert [note.partition(":")[0] for _, note in program.notes] == ["one thread"]
