"""One call on a GPU: the plan of launches and its kernels, run here on the CPU, give what the program says as it was
differentiated: in Python, before any pass.

A result that is a sum differs by the order of its terms: by no more than the number of terms times the
precision times the sum of their absolute values, which ``BOUND`` is far above at these sizes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import batch
import hyad
import memoised
import test_arrays
import test_properties
from hyad import core, gpu
from hyad.codegen import launches, nvrtc, parallel, steps
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Choose, Clear, Copy, CudaProgram, Gemm, Launch, Repeat, Size, Swap, While, walk
from hyad.core import Program
from hyad.emulate import Emulator, entries
from hyad.errors import BoundsError, CompileError, HyadError
from hyad.marshalling import take_apart
from hyad.model import Model
from hyad.passes.spread import Reduction, reductions
from hyad.plain_python import python_callable
from hyad.program.journal import without

sys.path.insert(0, str(Path(__file__).parent / "bench"))

from adsuite import OBJECTIVES  # noqa: E402

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
BOUND = {"f64": 1e-9, "f32": 2e-3}
SEEDS = range(16)

STEP = """(ifold (fn [u k] (build (len u0) (fn [i] (if (or (= i 0) (= i (- (len u0) 1))) (get u i)
  (+ (get u i) (* a (+ (get u (- i 1)) (get u (+ i 1)) (* -2.0 (get u i)))))))))
  u0 steps)"""
MODELS = {
    "saxpy": ("[a #^ (Vec n) x #^ (Vec n) y] (map (fn [u v] (+ (* a u) v)) x y)", (2.0, (300,), (300,))),
    "table": ("[#^ (Vec n) x #^ (Vec m) y] (build [(len x) (len y)] (fn [i j] (* (sin (get x i)) (get y j))))",
              ((33,), (7,))),
    "cube": ("[#^ (Vec n) x] (build [(len x) 3 (len x)] (fn [i j k] (+ (get x i) (* (real j) (get x k)))))", ((9,),)),
    "block": ("[#^ (Vec n) x] (build [(len x) (len x) 80] (fn [i j k] (+ (get x i) (* (real k) (get x j)))))", ((7,),)),
    "sums": ("[#^ (Vec n) x] #((sum x) (prod x) (max x) (min x) (argmax x) (argmin x) (sum (map square x)))",
             ((700,),)),
    "softmax": ("[#^ (Vec n) x] (softmax x)", ((300,),)),
    "states": ("[#^ (Mat k k) m #^ (Mat n k) b] (logsumexp (fold (fn [a e] (build (len e) (fn [j] (+ (get e j)"
               " (logsumexp (build (len a) (fn [i] (+ (get a i) (get m i j)))))))) (get b 0) b))", ((5, 5), (7, 5))),
    "barrier": ("[c #^ (Mat n m) z] (let [s (* c (exp (map cumsum z)))]"
                " (sum (map (fn [r] (if (> (amin r) 2.0) (get r -1) 0.0)) s)))", (1.5, (300, 6))),
    "rows": ("[#^ (Mat n m) a] (map softmax a)", ((20, 9),)),
    "any": ("[#^ (Vec n) x] #((fold (fn [s a] (or s (> a 1.9))) False x) (fold (fn [s a] (and s (> a 0.0))) True x))",
            ((90,),)),
    "heat": (f"[#^ (Vec n) u0 a #^ Int steps] {STEP}", ((60,), 0.2, 7)),
    "heat-loss": (f"[#^ (Vec n) u0 a #^ Int steps] (sum (map square {STEP}))", ((60,), 0.2, 7)),
    "product": ("[#^ (Mat n k) a #^ (Mat k m) b] (mat-mul a b)", ((9, 11), (11, 13))),
    "quadratic": ("[#^ (Mat n k) a #^ (Mat k m) b] (sum (map (fn [r] (sum (map square r))) (mat-mul a b)))",
                  ((9, 11), (11, 13))),
    "layer": ("[#^ (Mat m n) w #^ (Vec m) b #^ (Vec m) v #^ (Mat k n) x #^ (Vec k) y] (fold + 0.0 (map (fn [x t]"
              " (let [h (map tanh (vec-add (mat-vec w x) b)) e (- (dot v h) t)] (* e e))) x y))",
              ((5, 4), (5,), (5,), (30, 4), (30,))),
    "scan": ("[#^ (Vec n) x] (scan + 0.0 (map sin x))", ((300,),)),
    "filter": ("[#^ (Vec n) x] (scan (fn [s a] (+ (* 0.5 (tanh s)) a)) 0.0 x)", ((100,),)),
    "picked": ("[#^ (Vec n) w #^ (Arr Int m) at] (sum (map (fn [i] (let [x (get w (% i (len w)))] (* x x))) at))",
               ((40,), ("int", 500))),
    "random-walks": ("[s #^ (Mat n m) z] (/ (sum (map (fn [row] (max 0.0 (- (fold (fn [x dz] (* x (exp (* 0.1 dz)))) s"
                     " row) 1.0))) z)) (real (len z)))", (1.1, (200, 6))),
    "newton": ("[#^ (Vec n) a] (map (fn [c] (let [x (ref c)] (while (> (abs (- (* (deref x) (deref x)) c)) 1e-9)"
               " (set! x (* 0.5 (+ (deref x) (/ c (deref x)))))) (deref x))) a)", ((50,),)),
    "until": ("[#^ (Vec n) a] (let [v (ref a)] (while (> (sum (deref v)) 1.0) (set! v (map (fn [x] (* 0.5 x))"
              " (deref v)))) (deref v))", ((90,),)),
    "chosen": ("[#^ (Vec n) a] (if (> (sum a) 50.0) (map sin a) (map cos a))", ((90,),)),
    "branch": ("[#^ (Vec n) a] (sum (map (fn [x] (if (> x 1.0) (* x (sqrt (- x 1.0))) (/ x (+ x 1.0)))) a))",
               ((300,),)),
    "checked": ("[#^ (Vec n) v #^ (Arr Int m) at] (sum (map (fn [i] (get v i)) at))", ((40,), ("int", 30))),
    "few": ("[x y] #((* x (sin y)) [x (+ x y)] (> x y))", (1.5, 0.25)),
    "constant": ("[x] #([1.0 2.0 3.0] (build 3 (fn [i] 0.0)) x)", (1.5,)),
    "same": ("[#^ (Vec n) v x] #(v x (map (fn [a] a) v))", ((5,), 1.5)),
    "fibonacci": ("[x #^ Int n] (let [p (ifold (fn [p k] #((snd p) (+ (fst p) (* x (snd p))))) #(0.0 1.0) n)] (fst p))",
                  (0.5, 30)),
    "powers": ("[#^ (Mat n n) a #^ Int steps] (ifold (fn [b k] (mat-mul a b)) a steps)", ((12, 12), 3)),
    "two-states": ("[#^ (Vec n) a #^ Int steps] (fst (ifold (fn [p k] #((snd p) (map + (fst p) (snd p)))) #(a a)"
                   " steps))", ((80,), 5)),
    "kept": ("[#^ (Vec n) x #^ Int steps] (let [y (map sin x) w (map cos x)"  # arrays that are read again later
             " a (ifold (fn [u k] (map (fn [p q] (+ (* 0.5 p) q)) u w)) y steps)"
             " b (ifold (fn [p k] #(w (map + (fst p) (snd p)))) #(y y) steps)"
             " c (ifold (fn [p k] #((fst (snd p)) #((fst p) (map + (fst p) (snd (snd p)))))) #(y #(w x)) steps)]"
             " #((map + a y) (map + (snd b) w) (map + (fst c) (fst (snd c))) (map + (snd (snd c)) y)))", ((70,), 3)),
    "changed": ("[#^ (Vec n) x #^ (Arr Int m) at] (let [y (map sin x)"
                " z (scatter-add y at (map (fn [i] (* 0.5 (real i))) at)) n (- (len y) 1)"
                " s (ifold (fn [a i] (update a (+ i 1) (+ (get a (+ i 1)) (tanh (get a i))))) y n)]"
                " (map (fn [p q r] (+ p (* 2.0 q) (* 3.0 r))) y z s))", ((40,), ("int", 90))),
    "backwards": ("[#^ (Vec n) x #^ Int steps] (let [t (ifold (fn [a s] (ifold (fn [b k] (update b k"  # old elements
                  " (get a (- (len x) 1 k)))) a (len x))) x steps)] (dot x (map sin t)))", ((300,), 3)),
    "scanned-backwards": ("[#^ (Vec n) x #^ Int steps] (let [t (ifold (fn [a s] (snd (ifold (fn [p k] (let [u (+ (* 0.5"
                          " (fst p)) (get x k))] #(u (update (snd p) k (+ u (get a (- (len x) 1 k))))))) #(0.0 a)"
                          " (len x)))) x steps)] (dot x (map sin t)))", ((300,), 3)),
    "whole": ("[#^ (Arr Int n) a] #((sum a) (map (fn [x] (* 2 x)) a) (max a))", (("int", 80),)),
}  # fmt: skip
DERIVED = {
    "softmax": hyad.jacobian, "heat-loss": hyad.grad, "quadratic": hyad.grad, "layer": hyad.grad,
    "picked": lambda f: hyad.grad(f, wrt="w"), "random-walks": hyad.value_and_grad, "branch": hyad.hessian,
    "rows": hyad.jacobian, "scan": hyad.jacobian, "filter": hyad.jacobian,
    "checked": lambda f: hyad.grad(f, wrt="v"), "fibonacci": lambda f: hyad.D(f, wrt="x"),
}  # fmt: skip


class Subject(NamedTuple):
    """A program in both forms, and the arguments that it is called with; ``launched``: with loops that the host alone
    takes."""

    program: Program
    cuda: CudaProgram
    launched: CudaProgram
    call: Callable[..., Any]
    points: tuple[tuple[Any, ...], ...]
    dtype: str


def model_of(name: str) -> Model:
    """``f``, or its derivative ``f'``."""
    base = name.rstrip("'")
    f = hyad.model(f"(defmodel {base} {MODELS[base][0]})", namespace={})
    return f if name == base else DERIVED[base](f)


def arguments(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(len(name))
    made: list[Any] = []
    for s in MODELS[name.rstrip("'")][1]:
        if isinstance(s, tuple) and s[0] == "int":
            made.append(rng.integers(0, 40, s[1]))
        else:
            made.append(rng.uniform(0.5, 2.0, s) if isinstance(s, tuple) else s)
    return tuple(made)


def program_of(f: Model, args: Any) -> Program:
    """What is printed for a GPU."""
    return f.optimised(f.specs(args), "cuda", blas=True)


def own_names() -> list[str]:
    return [*MODELS, *(f"{name}'" for name in DERIVED)]


class Collection:
    """All programs, compiled at once when the first is called."""

    def __init__(self) -> None:
        self.subjects: dict[str, Subject] = {}
        self.emulator: Emulator | None = None

    def add(self, key: str, f: Model, points: Sequence[Any], dtype: str = "f64", deterministic: bool = False) -> None:
        program = f.program(f.specs(points[-1]))
        spread = program_of(f, points[-1])
        name = f"p{len(self.subjects)}"
        cuda = launched = print_grid(spread, dtype=dtype, name=name, deterministic=deterministic)
        if re.search(r"_part\(", cuda.source):
            with without(("persistent",)):
                launched = print_grid(spread, dtype=dtype, name=f"{name}l", deterministic=deterministic)
        self.subjects[key] = Subject(program, cuda, launched, python_callable(program), tuple(points), dtype)

    def compile(self) -> None:
        compiler = gpu.cpu_compiler()
        assert compiler is not None
        programs = [
            p for s in self.subjects.values() for p in ((s.cuda, s.launched) if s.launched is not s.cuda else (s.cuda,))
        ]
        self.emulator = Emulator(programs, compiler, "-O0")


def rows() -> dict[str, int]:
    """Every third of the array functions, and all of linear algebra."""
    every = {f"{k} {row.form} {' '.join(row.args)}": k for k, row in enumerate(test_arrays.ROWS)}
    dense = ("regular", "positive", "regulars")
    return {key: k for key, k in every.items() if k % 3 == 0 or test_arrays.ROWS[k].args[0] in dense}


SUITE = [(o, name) for o in OBJECTIVES if o.name not in ("det", "saddle") for name in o.derivatives]
SUITE = [(o, name) for o, name in SUITE if (o.name, name) not in {("particle", n) for n in ("ff", "rf", "rr")}]
KEYS = [
    *own_names(),
    *(f"{name} f32" for name in ("softmax", "heat-loss'", "layer'", "random-walks'", "sums", "picked'", "table")),
    *(f"{name} fixed" for name in ("picked'", "layer'", "softmax'", "checked'", "heat-loss'", "random-walks'")),
    *rows(),
    *(f"{o.name} {name}" for o, name in SUITE),
    *(f"seed {seed}" for seed in SEEDS),
]


@pytest.fixture(scope="module")
def collection(chosen: Callable[[str, str], list[str]]) -> Collection:
    made, rest = Collection(), set(chosen("test_what_the_gpu_would_do_is_what_the_program_says", "key"))
    keys = [k for k in KEYS if k in rest or k.endswith("fixed") or k in ("sums", "checked")]
    for key in keys:
        name, _, kind = key.partition(" ")
        if name in own_names():
            f, args = model_of(name), arguments(name)
            dtype = "f32" if kind == "f32" else "f64"
            made.add(key, f, (args,), dtype, kind == "fixed")
    for key, k in rows().items():
        if key not in keys:
            continue
        row = test_arrays.ROWS[k]
        points = []
        for n in (0, 3, 17):
            if n >= row.least:
                args, moves, ct = test_arrays.given(row, n)
                points.append((*args, *moves, ct))
        f = hyad.model(test_arrays.text_of(row), namespace={})
        made.add(key, f, points)
    for o, name in SUITE:
        if f"{o.name} {name}" not in keys:
            continue
        f = o.derivatives[name](hyad.load(o.models))
        args = tuple(o.point(np.random.default_rng(7), **o.small[-1]).values())
        made.add(f"{o.name} {name}", f, (args,))
    for seed in SEEDS:
        if f"seed {seed}" not in keys:
            continue
        text = test_properties.Programs(seed).text()
        body = f"#((f {test_properties.NAMES} k) ((grad h) {test_properties.NAMES}))"
        f = hyad.model(test_properties.around(text, body), namespace={})
        made.add(f"seed {seed}", f, (test_properties.arguments(seed)[0],), "f64", seed % 2 == 1)
    made.compile()
    return made


def flat(program: Program, args: Any) -> list[Any]:
    out: list[Any] = []
    for tree, a in zip(program.ins, args):
        take_apart(tree, a, out)
    return out


def run(
    collection: Collection, subject: Subject, args: Any, launched: bool = False, **shape: Any
) -> tuple[np.ndarray, ...]:
    emulator = collection.emulator
    assert emulator is not None
    return emulator.run(subject.launched if launched else subject.cuda, flat(subject.program, args), **shape)


@pytest.mark.some(12)
@pytest.mark.parametrize("key", KEYS)
def test_what_the_gpu_would_do_is_what_the_program_says(key: str, collection: Collection) -> None:
    """In both orders of the threads, and on grids of several shapes."""
    s = collection.subjects[key]
    for k, args in enumerate(s.points):
        wanted: list[Any] = []
        take_apart(s.program.out, s.call(*args), wanted)
        shapes = [{"blocks": 2, "block": 32, "descending": k % 2 == 1}]
        if k == len(s.points) - 1:
            shapes.append({"blocks": 3, "block": 64, "descending": k % 2 == 0})
            if s.launched is not s.cuda:
                shapes.append({"blocks": 3, "block": 64, "descending": k % 2 == 1, "launched": True})
        for shape in shapes:
            for got, want in zip(run(collection, s, args, **shape), wanted, strict=True):
                want = np.asarray(want)
                if s.dtype == "f32" and want.dtype == float:
                    with np.errstate(over="ignore"):
                        want = want.astype(np.float32)
                assert got.shape == want.shape
                if want.dtype.kind in "bi":
                    assert np.array_equal(got, want)
                    continue
                scale = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
                bound = BOUND[s.dtype]
                np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(float(scale), 1.0))


@pytest.mark.parametrize("at", [0, 130, 699])
def test_no_number_is_the_largest_and_the_least(at: int, collection: Collection) -> None:
    s = collection.subjects["sums"]
    x = np.linspace(-1.0, 1.0, 700)
    x[at] = np.nan
    for descending in (False, True):
        *numbers, first, last, _ = run(collection, s, (x,), blocks=2, block=32, descending=descending)
        assert np.isnan(numbers).all() and len(numbers) == 4 and first == last == at


@pytest.mark.parametrize("key", [key for key in KEYS if key.endswith("fixed")])
def test_deterministic_results_are_the_same_to_the_last_bit(key: str, collection: Collection) -> None:
    """No atomic addition decides anything: the order of threads and the shape of grids do not."""
    s = collection.subjects[key]
    assert "hyad_add(double" not in s.cuda.source
    shapes = ((False, 0, 0), (True, 0, 0), (True, 7, 32))
    calls = ({"descending": d, "blocks": b, "block": t} for d, b, t in shapes)
    first, *others = (run(collection, s, s.points[0], **shape) for shape in calls)
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other))


def test_additions_to_elements_run_in_parallel() -> None:
    """Those of the model itself, as those of a gradient: an element that becomes itself and something is added to."""
    text = "[#^ (Vec n) x #^ (Arr Int m) at #^ (Vec m) v] (scatter-add x at v)"
    f = hyad.model(f"(defmodel f {text})", namespace={})
    for deterministic in (False, True):
        program = print_grid(f.optimised(f.specs(None), "cuda", blas=True), deterministic=deterministic)
        assert ("hyad_add(double" in program.source) is not deterministic
        assert not any(note.startswith("one thread:") for _, note in program.notes)


@pytest.mark.parametrize("name", [f"{name}'" for name in DERIVED])
def test_no_atomic_additions_where_results_are_to_be_the_same(name: str) -> None:
    assert "hyad_add(double" not in plan(name, deterministic=True).source


SIZED = {
    "reshaped": ("[#^ (Mat n d) x #^ Int h] (sum (square (reshape x [n h (// d h)])))", ((4, 2), (4, 4), (8, 1))),
    "chosen": ("[#^ (Mat n d) x #^ Int h] (build (if (< h 3) (+ h 1) (// d 2)) (fn [i] (* 2.0 (get x 0 i))))",
               ((4, 2), (4, 7), (8, 3), (8, -1))),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZED)
def test_the_host_knows_sizes_that_a_branch_of_integers_chooses(name: str) -> None:
    text, points = SIZED[name]
    f = hyad.model(f"(defmodel f {text})", namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for d, h in points:
        x = np.random.default_rng(d).normal(size=(3, d))
        for descending in (False, True):
            (got,) = emulator.run(program, (x, h), descending=descending)
            np.testing.assert_allclose(got, memoised.compile(f, args=(x, h))(x, h), rtol=1e-12)
    if name == "reshaped":
        for h in (3, 0, -1, -8):  # does not divide; nothing divides by 0; is no size
            with pytest.raises(HyadError) as caught:
                memoised.compile(f, args=(x, h))(x, h)
            with pytest.raises(type(caught.value)):
                emulator.run(program, (x, h))


def together(subjects: list[CudaProgram]) -> str:
    return "".join(f"namespace program{k} {{\n{p.source}}}\n" for k, p in enumerate(subjects))


@needs_ptx
def test_kernels_compile_to_ptx(collection: Collection) -> None:
    programs = [s.cuda for s in collection.subjects.values()]
    ptx = nvrtc.compile_device(together(programs), "compute_80", "all", fast=True).decode()
    for p in programs:
        assert all(f".entry {kernel}(" in ptx for kernel in p.kernels)
    single = [s.cuda for key, s in collection.subjects.items() if key in ("softmax f32", "layer' f32")]
    assert ".f64" not in nvrtc.compile_device(together(single), "compute_80", "single").decode()


def test_kernels_look_up_no_scalar_that_they_do_not_need() -> None:
    """One that an iteration of a loop of the host hands on, beside what a team makes of a row."""
    models = hyad.load(Path(__file__).parent / "bench" / "problems" / "naive" / "models.hy")
    source = print_grid(models.crf.optimised(models.crf.specs(None), "cuda", blas=True)).source
    bodies = [part.partition("\n}\n")[0] for part in source.split("\n{\n")[1:]]
    names = [(name, body) for body in bodies for name in re.findall(r"const double (\w+) = \*\w+;", body)]
    assert names and all(len(re.findall(rf"\b{name}\b", body)) > 1 for name, body in names)


# ------------------------------------------------------------------------------------------ accumulators

LOOK = "(ifold (fn [p i] (let [m (fst p) at (snd p) t (get x i)] #({} (select {} at {})))) #(0.0 0) (len x))"
LOOK_BESIDE = (
    "(ifold (fn [p i] (let [m (fst (fst p)) at (snd (fst p)) t (get x i) b (max m t)]"
    " #(#(b (select (>= m t) at i)) (+ (snd p) {})))) #(#(0.0 0) {}) (len x))"
)
CHANGED = "(ifold (fn [a i] (update a {} {})) (map sin x) k)"
#: What the accumulators of a loop are: "place first", "slice read" and so on; None: it is taken in its order.
ACCUMULATORS = {
    LOOK.format("(max m t)", "(>= m t)", "i"): ["largest, the first"],
    LOOK.format("(max m t)", "(> m t)", "i"): ["largest, the last"],
    LOOK.format("(min m t)", "(>= t m)", "i"): ["least, the first"],
    LOOK.format("(min m t)", "(> t m)", "i"): ["least, the last"],
    LOOK.format("(max m t)", "(<= m t)", "i"): None,
    LOOK.format("(max m t)", "(>= m t)", "(+ k i)"): ["largest, the first"],
    LOOK.format("(max m t)", "(>= m t)", "(- k i)"): None,
    LOOK.format("(max m t)", "(>= m t)", "(* 2 i)"): None,
    LOOK_BESIDE.format("m", "0.0"): None,
    LOOK_BESIDE.format("b", "0.0"): None,
    LOOK_BESIDE.format("at", "0"): None,
    "(fold (fn [s e] (- s e)) 0.0 x)": ["sum"],
    "(fold (fn [s e] (- e s)) 0.0 x)": None,
    "(fold (fn [s e] (+ s (* s e))) 0.0 x)": None,
    "(ifold (fn [p i] #((+ (fst p) (get x i)) (max (snd p) (fst p)))) #(0.0 0.0) (len x))": None,
    "(ifold (fn [p i] (let [s (+ (fst p) (get x i))] #(s (max (snd p) s)))) #(0.0 0.0) (len x))": None,
    "(fold (fn [s e] (if (> e 0.0) (+ s (exp (sin e))) s)) 0.0 x)": ["sum"],
    "(fold (fn [s e] (if (> e 0.0) (+ s (exp (sin e))) (cos e))) 0.0 x)": None,
    "(fold (fn [s e] (if (> s 0.0) (+ s (exp (sin e))) s)) 0.0 x)": None,
    CHANGED.format("i", "1.0"): ["slice"],
    CHANGED.format("i", "(* 2.0 (get a i))"): ["slice read"],
    CHANGED.format("i", "(get a (- i 1))"): None,
    CHANGED.format("(+ i k)", "(* 2.0 (get a (+ k i)))"): ["slice read"],
    CHANGED.format("(- k i)", "(* 2.0 (get a (- k i)))"): ["slice read"],
    CHANGED.format("(- k i)", "(* 2.0 (get a (+ k i)))"): None,
    CHANGED.format("i", "(sum a)"): None,
    CHANGED.format("(+ i (get z i))", "1.0"): None,
    CHANGED.format("(- (get z i) i)", "1.0"): None,
    "(ifold (fn [a i] (update a (get a i) 7)) z k)": None,
    "(ifold (fn [p i] #((update (fst p) i 1.0) (+ (snd p) (get (fst p) 0)))) #((map sin x) 0.0) k)": None,
    "(ifold (fn [p i] #((update (fst p) i 1.0) (update (snd p) i (fst p)))) #(x (build k (fn [i] x))) k)": None,
    "(ifold (fn [p i] #((update (snd p) i 1.0) (update (fst p) i 2.0))) #((map sin x) (map cos x)) k)": None,
}


def said(r: Reduction) -> str:
    if r.kind == "place":
        return f"{'least' if r.least else 'largest'}, the {'last' if r.last else 'first'}"
    return f"{r.kind} read" if r.read else r.kind


@pytest.mark.parametrize("text", ACCUMULATORS)
def test_what_accumulators_are(text: str) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) x #^ Int k #^ (Arr Int m) z] {text})", namespace={})
    body = f.optimised(f.specs(), "cuda").body
    (loop,) = (b.op for b in body.binds if isinstance(b.op, core.Loop) and b.op.accs)
    kinds = reductions(loop)
    assert (kinds and [*map(said, kinds)]) == ACCUMULATORS[text]


# ------------------------------------------------------------------------------------------------- plans


def plan(name: str, off: tuple[str, ...] = (), **options: Any) -> CudaProgram:
    with without(off):
        return print_grid(program_of(model_of(name), arguments(name)), **options)


def kinds(program: CudaProgram) -> list[type]:
    return [type(step) for step in program.steps]


def test_a_map_is_one_kernel() -> None:
    p = plan("saxpy")
    (step,) = p.steps
    assert isinstance(step, Launch) and step.free
    for n, blocks in (
        (1000, 8),
        (10**6, -(-(10**6) // 128)),
        (4 * 10**6, parallel.BLOCKS),
        (10**9, -(-(10**9) // 512)),
    ):
        assert launches.value(step.blocks, {"n": n}) == blocks
    (step,) = plan("saxpy", off=("ahead",)).steps
    assert isinstance(step, Launch) and launches.value(step.blocks, {"n": 10**9}) == parallel.BLOCKS


def test_nests_are_one_index_space() -> None:
    """The last index is the threads' own: neighbours in memory are neighbours in a warp."""
    p = plan("block")
    (step,) = p.steps
    assert isinstance(step, Launch) and launches.value(step.blocks, {"n": 1000}) == parallel.BLOCKS
    assert launches.value(step.blocks, {"n": 7}) == -(-7 * 7 * 80 // launches.BLOCK)
    assert p.source.count("for (") == 1 and "/80" in p.source and p.source.count("hyad_quotient(") == 3


def test_additions_to_one_element_are_atomic() -> None:
    assert "hyad_add(&" in plan("picked'").source and "hyad_add(&" not in plan("layer'").source


def test_time_steps_are_the_hosts() -> None:
    """The state is made in another array, and the two change places: nothing is copied but the start."""
    p = plan("heat", off=("persistent",))
    assert kinds(p) == [Copy, Repeat, Copy]
    (loop,) = (s for s in p.steps if isinstance(s, Repeat))
    assert [type(s) for s in loop.steps] == [Launch, Swap] and loop.count == "steps"


FLOW = """(build n (fn [i] (if (or (= i 0) (= i (- n 1))) (get u i)
  (+ (get u i) (* 0.1 (get u i) (- (get u (+ i 1)) (get u (- i 1))))))))"""
#: Loops over time that remember their states, and how many copies the first loop of the host makes in an iteration.
COURSES = [
    (f"(sum (map square (ifold (fn [u t] {FLOW}) x steps)))", 0),
    (f"(sum (map * x (fst (ifold (fn [p t] (let [u (fst p) v (snd p)] #({FLOW} (map * u v)))) #(x x) steps))))", 0),
    (f"(sum (map * x (fst (ifold (fn [p t] (let [u (fst p) v (snd p) w {FLOW}] #((map * w v) u))) #(x x) steps))))", 2),
    (f"(sum (map square (ifold (fn [u t] (let [w {FLOW}] (update w (// n 2) (+ (get w (// n 2)) (get x 0)))))"
     " x steps)))", 0),
]  # fmt: skip


def test_states_that_are_remembered_lie_on_their_stack() -> None:
    """Each is made in the row behind the one before."""
    made = []
    for k, (body, copies) in enumerate(COURSES):
        f = hyad.grad(hyad.model(f"(defmodel f [#^ (Vec n) x #^ Int steps] {body})", namespace={}), wrt="x")
        made.append((f, print_grid(program_of(f, (np.ones(9), 3)), name=f"s{k}")))
        with without(("persistent",)):
            p = print_grid(program_of(f, (np.ones(9), 3)), name=f"l{k}")
        loop = next(s for s in p.steps if isinstance(s, Repeat))
        assert sum(isinstance(s, Copy) for s in loop.steps) == copies
        made.append((f, p))
    emulator = Emulator([p for _, p in made], gpu.cpu_compiler() or ())
    for (f, p), n, times in itertools.product(made, (1, 70), (0, 1, 2, 5)):
        args = (np.random.default_rng(n).uniform(0.5, 1.0, n), times)
        (got,) = emulator.run(p, args, blocks=2, block=64)
        np.testing.assert_allclose(got, python_callable(f.program(f.specs(args)))(*args), rtol=1e-12)


#: What a loop makes of a vector and its neighbours, and whether their adjoints are sums of each element.
STENCILS = [
    ("(len x)", "(if (or (= i 0) (= i (- (len x) 1))) (get x i) (* (get x (- i 1)) (get x (+ i 1))))", True),
    ("(len x)", "(if (> i 1) (* (square (get x i)) (get x (- i 2))) (if (= i 0) (get x 0) (square (get x i))))", True),
    ("(len x)", "(+ (get x i) (if (< i (- (len x) 3)) (get x (+ i 3)) 0.0))", True),
    ("(- (len x) 2)", "(* (get x i) (get x (+ i 2)))", True),  # fewer iterations than elements
    ("(len x)", "(* (get x i) (get x (max 0 (- i 2))) (get x (min (- (len x) 1) (+ i 1))))", True),
    ("(len x)", "(* (get x i) (get x (- (len x) 1 i)))", True),
    ("(len x)", "(if (> i 0) (exp (sin (exp (* (get x i) (exp (cos (get x (- i 1)))))))) 1.0)", True),  # dear: stacked
    ("(len x)", "(+ (if (> i 0) (* (get x i) (get x (- i 1))) 0.0) (if (< i 9) (* 2.0 (get x i)) 0.0))", True),
    ("(len x)", "(if (> i 1) (+ (if (< i 9) (get x (- i 1)) 0.0) (if (> i 5) (square (get x i)) 0.0)) 0.0)", True),
]
#: The same of neighbours that are k away, and of vectors that are read backwards.
FAR = [
    ("(- n k)", "(* (get x (+ i k)) (exp (get x i)))", True),
    ("(- n k)", "(* (get x (+ i k)) (get x (- (+ i k) 1)))", True),
    ("n", "(if (>= i k) (* (get x (- i k)) (get x i)) 1.0)", True),
    ("n", "(* (get x i) (if (< (+ i k) n) (get x (+ i k)) 1.0) (if (<= k i) (get x (- i k)) 2.0))", True),
    ("n", "(* (get x i) (exp (get x (- n 1 i))))", True),
    ("(- n k)", "(* (get x i) (exp (get x (- n k 1 i))))", True),
    ("(- n k)", "(* (get x i) (exp (get x (- n 1 i))))", True),  # not all of them
    ("(- n k)", "(ifold (fn [s j] (+ s (* (get x j) (exp (get x (- (+ i k) j 1)))))) 0.0 k)", True),
    ("(- n k)", "(ifold (fn [s j] (+ s (* (get x j) (exp (get x (+ i j)))))) 0.0 k)", True),
    ("(- n k)", "(ifold (fn [s j] (+ s (* (real j) (exp (get x (- n 1 i j)))))) 0.0 k)", False),
    ("(- n k k)", "(* (get x (+ i k k)) (exp (get x i)))", False),
    ("(// n 2)", "(* (get x i) (exp (get x (- n 1 i i))))", False),
    ("(- n 3)", "(* (get x i) (exp (get x (+ i (% i 3)))))", False),
    ("(- n k k)", "(ifold (fn [s j] (ifold (fn [s l] (+ s (* (real (* j l)) (exp (get x (+ i j l)))))) s k)) 0.0 k)",
     False),
    ("70", "(* (get x i) (exp (get x (- 69 i))))", True),
]  # fmt: skip
SUMS = """(ifold (fn [a i] (ifold (fn [a j] (let [a (update a i (+ (get a i) (sin (* (real j) (get x i))))) p {}]
  (update a p (+ (get a p) (cos (* (real j) (get x i))))))) a n)) x {})"""
INSIDE = "(and (< 0 i) (< i (- n 1)) (< 0 j) (< j (- m 1)))"
SOBEL = [  # across and along
    "(let [d (fn [i] (- (get x i (+ j 2)) (get x i j)))] (+ (d i) (* 2 (d (+ i 1))) (d (+ i 2))))",
    "(let [d (fn [j] (- (get x (+ i 2) j) (get x i j)))] (+ (d j) (* 2 (d (+ j 1))) (d (+ j 2))))",
]
#: The same of a matrix, as a loop over so many rows and columns.
PLANES = [
    (
        "n m",
        f"(if {INSIDE} (* (get x (- i 1) j) (+ (get x (+ i 1) j) (get x i (- j 1)) (get x i (+ j 1)))) (get x i j))",
    ),
    ("n m", f"(if {INSIDE} (exp (* (get x i j) (sin (get x (- i 1) (+ j 1))) (get x (+ i 1) j))) 0.0)"),
    ("(- n 2) (- m 1)", "(* (get x i j) (get x (+ i 2) (+ j 1)) (get x (+ i 1) j))"),
    ("n m", "(* (get x (max 0 (- i 1)) j) (get x (min (- n 1) (max 0 (+ i 1))) j) (get x i (min (- m 1) (+ j 2))))"),
    ("n m", "(* (get x (max 0 (- i 1)) (max 0 (- j 1))) (get x (min (- n 1) (+ i 1)) (min (- m 1) (+ j 1))))"),
    ("n m", "(if (= j 0) (square (get x i 0)) (if (= i (- n 1)) (sin (get x (- n 1) j)) (get x (+ i 1) (- j 1))))"),
    ("m n", "(* (get x j i) (if (> i 0) (get x j (- i 1)) 1.0))"),  # across
    ("n m", "(+ (if (> i 0) (square (get x (- i 1) j)) 0.0) (if (> j 0) (get x i (- j 1)) 0.0))"),  # side by side
    ("(- n 2) (- m 2)", f"(sqrt (+ (square {SOBEL[0]}) (square {SOBEL[1]}) 0.1))"),  # sums of two dear numbers
    ("(- n 2) (- m 2)", f"(atan2 {SOBEL[0]} (+ 9.0 {SOBEL[1]}))"),
]


def test_adjoints_of_stencils_are_each_elements() -> None:
    """One kernel makes them: no atomic additions, and no zeros before."""
    made = []
    for k, (count, form, _) in enumerate(STENCILS):
        text = f"(defmodel f [#^ (Vec n) x] (sum (map square (build {count} (fn [i] {form})))))"
        f = hyad.grad(hyad.model(text, namespace={}))
        made.append((f, print_grid(program_of(f, (np.ones(9),)), name=f"s{k}")))
    emulator = Emulator([p for _, p in made], gpu.cpu_compiler() or ())
    for (f, p), (*_, gathered) in zip(made, STENCILS):
        assert ("atomicAdd" not in p.source) is gathered
        assert not gathered or not any(isinstance(s, Clear) for s in walk(p.steps))
        for n, descending in itertools.product((2, 3, 4, 300), (False, True)):
            x = np.random.default_rng(n).uniform(0.5, 1.5, n)
            (got,) = emulator.run(p, (x,), descending=descending, blocks=2, block=64)
            np.testing.assert_allclose(got, python_callable(f.program(f.specs((x,))))(x), rtol=1e-12)


@pytest.mark.long
def test_adjoints_of_what_is_far_away_are_each_elements() -> None:
    made: list[Any] = []
    for count, form, gathered in FAR:
        text = f"(defmodel f [#^ (Vec n) x #^ Int k] (sum (map square (build {count} (fn [i] {form})))))"
        made.append((hyad.grad(hyad.model(text, namespace={}), wrt="x"), gathered))
    for count, place in (("n", "(- n 1 i)"), ("(- n k)", "(+ i k)")):  # a sum for each of two elements
        text = f"(defmodel f [#^ (Vec n) x #^ Int k] {SUMS.format(place, count)})"
        made.append((hyad.model(text, namespace={}), True))
    for k, (f, gathered) in enumerate(made):
        made[k] = f, print_grid(program_of(f, (np.ones(9), 2)), name=f"s{k}")
        assert ("hyad_add(&" not in made[k][1].source) is gathered
    emulator = Emulator([p for _, p in made], gpu.cpu_compiler() or ())
    for (f, p), n, far in itertools.product(made, (2, 3, 80), (0, 1, 2, 3, 79, 90, -1)):
        x = np.random.default_rng(n).uniform(0.5, 1.5, n)
        try:
            want = python_callable(f.program(f.specs((x, far))))(x, far)
        except hyad.HyadError:
            with pytest.raises(hyad.HyadError):
                emulator.run(p, (x, far))
            continue
        except ValueError:  # no such size
            continue
        for descending in (False, True):
            (got,) = emulator.run(p, (x, far), descending=descending, blocks=2, block=64)
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


def test_adjoints_of_stencils_in_a_plane_are_each_elements() -> None:
    made = []
    for k, (counts, form) in enumerate(PLANES):
        text = f"(sum (map (fn [r] (sum (map square r))) (build [{counts}] (fn [i j] {form}))))"
        f = hyad.grad(hyad.model(f"(defmodel f [#^ (Mat n m) x] {text})", namespace={}))
        made.append((f, print_grid(program_of(f, (np.ones((4, 4)),)), name=f"s{k}")))
        assert "atomicAdd" not in made[-1][1].source and not any(isinstance(s, Clear) for s in walk(made[-1][1].steps))
    emulator = Emulator([p for _, p in made], gpu.cpu_compiler() or ())
    for f, p in made:
        for (n, m), descending in itertools.product(((1, 1), (1, 3), (2, 2), (3, 2), (3, 4), (20, 17)), (False, True)):
            x = np.random.default_rng(n).uniform(0.5, 1.5, (n, m))
            try:
                want = python_callable(f.program(f.specs((x,))))(x)
            except hyad.HyadError:
                continue  # no such size
            (got,) = emulator.run(p, (x,), descending=descending, blocks=2, block=64)
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


SQUARES = "(sum (map (fn [r] (sum (map square r))) {}))"
LARGEST = "(max (get x (* 2 i) (* 2 j)) (get x (* 2 i) (+ {} (* 2 j))))"
#: Of convolutions and of pooling: the parameters, the arguments' shapes, and whether no atomic additions are made.
WINDOWS = [
    ("(Mat n m) x #^ (Mat p q) k", [((9, 8), (3, 2)), ((40, 70), (5, 4)), ((3, 3), (3, 3)), ((2, 9), (3, 2))],
     SQUARES.format("(build [(- (+ n 1) p) (- (+ m 1) q)] (fn [i j] (tanh (ifold (fn [s a] (ifold (fn [s b]"
                    " (+ s (* (get k a b) (get x (+ i a) (+ j b))))) s q)) 0.0 p))))"), True),
    ("(Arr Real c n m) x #^ (Arr Real o c 2 2) k", [((1, 2, 2), (1, 1, 2, 2)), ((3, 5, 7), (2, 3, 2, 2)),
                                                   ((2, 6, 70), (5, 2, 2, 2))],  # in channels
     "(sum (build [o (- n 1) (- m 1)] (fn [f i j] (max 3.0 (ifold (fn [s d] (ifold (fn [s a] (ifold (fn [s b] (+ s"
     " (* (get k f d a b) (get x d (+ i a) (+ j b))))) s 2)) s 2)) 0.0 c)))))", True),
    ("(Vec n) x #^ (Vec p) k", [((9,), (9,)), ((70,), (3,)), ((70,), (60,))],
     "(sum (map square (build (- (+ n 1) p) (fn [i] (ifold (fn [s a] (+ s (* (get k a) (get x (+ i a))))) 0.0 p)))))",
     True),
    ("(Vec n) x #^ (Vec lags) y", [((9,), (3,)), ((70,), (50,))],  # each element with those after it
     "(sum (map * y (build lags (fn [i] (ifold (fn [s a] (+ s (* (get x a) (get x (+ i a))))) 0.0 (- n lags))))))",
     False),
    ("(Mat n m) x #^ (Vec p) k", [((9, 8), (2,)), ((40, 71), (2,))],
     SQUARES.format(f"(build [(// n 2) (// m 2)] (fn [i j] (* (get k 0) {LARGEST.format(1)})))"), True),
    ("(Mat n m) x #^ (Vec p) k", [((9, 8), (2,)), ((40, 71), (2,))],  # two of them have an element in common
     SQUARES.format(f"(build [(- (// n 2) 1) (- (// m 2) 1)] (fn [i j] (* (get k 0) {LARGEST.format(2)})))"), False),
]  # fmt: skip
PAIR = """(let [dx (- (get x i 0) (get x j 0)) dy (- (get x i 1) (get x j 1))]
  (/ (get w j) (sqrt (+ 0.1 (* dx dx) (* dy dy)))))"""
#: Of pairs, in the same way.
PAIRS = [
    ("(Mat n 2) x #^ (Vec n) w", [((1, 2), (1,)), ((5, 2), (5,)), ((200, 2), (200,))],
     f"(sum (build n (fn [i] (* (get w i) (sum (build n (fn [j] (if (= i j) 0.0 {PAIR}))))))))", True),
    ("(Mat n 2) x #^ (Mat m 2) y", [((1, 2), (3, 2)), ((70, 2), (9, 2)), ((9, 2), (150, 2))],
     "(sum (map (fn [a] (square (sum (map (fn [b] (exp (- 0.0 (sum (map (fn [p q] (square (- p q))) a b))))) y)))) x))",
     True),
    ("(Vec n) x #^ (Vec m) y", [((3,), (2,)), ((30,), (90,))],  # by the data's word
     "(sum (build n (fn [i] (sum (build m (fn [j] (if (> (get x i) (get y j)) (* (get x i) (get y j)) (sin (get y j))"
     ")))))))", True),
    ("(Vec n) x #^ (Vec m) y", [((3,), (2,)), ((30,), (90,))],  # there may be no such element
     "(sum (build n (fn [i] (sum (build m (fn [j] (if (< i 2) (* (get x i) (get y i) (get y j)) 0.0)))))))", False),
    ("(Vec n) x #^ (Vec m) y", [((3,), (2,)), ((30,), (90,))],
     "(sum (build (+ n 1) (fn [i] (sum (build m (fn [j] (if (< i n) (sin (* (get x i) (get y j))) 0.0)))))))", False),
    ("(Vec n) x #^ (Vec m) y", [((1,), (2,)), ((30,), (90,))],  # not all of them
     "(sum (build (- n 1) (fn [i] (sum (build m (fn [j] (if (> (get y j) 1.0) (sin (* (get x i) (get y j))) 0.0)))))))",
     True),
]  # fmt: skip
ONCE = "(sum (build n (fn [i] (* (get w i) (ifold (fn [t k] (let [j {}] (+ t {}))) 0.0 {})))))"
DEEP = "(sin (* (get x i 0) (get x j 1)))"
for _ in range(16):
    DEEP = f"(sin (exp {DEEP}))"
#: Of pairs that are gone over once: which one the k-th is of those of i, what it adds, and how many there are.
PAIRS_ONCE = [
    (
        f"(Mat n 2) x #^ (Vec n) w{' #^ (Vec m) y' if 'y' in count else ''}",
        [((n, 2), (n,), (5,))[: 2 + ("y" in count)] for n in (5, 6, 200)],
        ONCE.format(*form, count),
        gathered,
    )
    for *form, count, gathered in [
        ("k", PAIR, "i", True),
        ("k", PAIR, "(+ i 1)", True),
        ("k", PAIR, "(- i 3)", True),
        ("k", PAIR, "(- n i)", True),
        ("(+ i 1 k)", PAIR, "(- n (+ i 1))", True),
        ("(+ k i)", PAIR, "(- n i)", True),
        ("k", f"(if (> (get w j) 1.0) {PAIR} (get x j 1))", "i", True),
        ("k", PAIR, "(len y)", False),  # as far in each row
        ("(+ i k)", f"(if (< j n) {PAIR} 0.0)", "(len y)", False),  # a window
        ("(+ k (len y))", PAIR, "(- n (len y))", False),
        ("(- (- n 1) k)", PAIR, "i", False),
        ("k", "(* (get x i 0) (get x j 1) (get x (- i j) 0))", "i", False),  # and one that is neither
        ("k", DEEP, "i", False),
    ]
]
PAIRS_ONCE += [
    (
        "(Mat n 2) x #^ (Vec n) w",
        [((1, 2), (1,)), ((5, 2), (5,)), ((200, 2), (200,))],
        f"(let [s (ref 0.0)] (for [i (range {rows}) j (range {row})] (set! s (+ (deref s) {PAIR}))) (deref s))",
        gathered,
    )
    for rows, row, gathered in [
        ("n", "(+ i 1) n", True),
        ("(- n 1)", "(+ i 1) n", True),
        ("1 n", "i", True),
        ("1 n", "i n", True),
        ("2 (- n 1)", "i", True),
        ("(len w)", "i", True),
    ]
]
ALONE = "(sin (* (real i) (exp (sin (exp (get x j))))))"  # for one of them
PAIRS_ONCE.append(
    (
        "(Vec n) x #^ (Vec m) y",
        [((5,), (2,)), ((200,), (1,))],
        f"(+ (sum y) (sum (build n (fn [i] (ifold (fn [t j] (+ t {ALONE})) 0.0 i)))))",
        True,
    )
)


@pytest.mark.some(10)
@pytest.mark.parametrize("models", [WINDOWS, PAIRS, PAIRS_ONCE])
def test_adjoints_of_windows_are_each_elements(models: list[Any]) -> None:
    """A convolution's are sums over the window, and over the rows that it is laid on; those of windows that do not
    overlap are each iteration's own; what all pairs add to both is a sum for each of them."""
    made = []
    for k, (parameters, shapes, body, gathered) in enumerate(models):
        f = hyad.model(f"(defmodel f [#^ {parameters}] {body})", namespace={})
        f = hyad.grad(f, wrt=tuple(p.name for p in f.program(f.specs()).params))
        made.append((f, print_grid(program_of(f, tuple(map(np.ones, shapes[-1]))), name=f"s{k}"), shapes))
        assert ("hyad_add(&" not in made[-1][1].source) is gathered
    emulator = Emulator([p for _, p, _ in made], gpu.cpu_compiler() or ())
    for f, p, shapes in made:
        for sizes, descending in itertools.product(shapes, (False, True)):
            args = tuple(np.random.default_rng(n).uniform(0.5, 1.5, s) for n, s in enumerate(sizes))
            want = python_callable(f.program(f.specs(args)))(*args)
            for got, w in zip(emulator.run(p, args, descending=descending, blocks=2, block=64), want, strict=True):
                np.testing.assert_allclose(got, w, rtol=1e-11, atol=1e-13)


ELIMINATION = """[#^ (Mat n m) a #^ Int k] (ifold (fn [a i]
  (let [r (+ {0} i) f (/ (get a r k) (get a {1} k))]
    (ifold (fn [a j] (update a r j (- (get a r j) (* f (get a {1} j))))) (update a r k f) (shape a 1))))
  a (- (len a) {2}))"""


@pytest.mark.parametrize(
    "first, row, less",
    [("(+ k 1)", "k", "(+ k 1)"), ("0", "(- (len a) 2)", "2"), ("3", "1", "5"), ("k", "(- k 2)", "k")],
)
def test_eliminations_are_parallel(first: str, row: str, less: str) -> None:
    """A row that no iteration changes is copied; then the factors, then a thread for each element."""
    f = hyad.model(f"(defmodel f {ELIMINATION.format(first, row, less)})", namespace={})
    with without(("persistent",)):
        p = print_grid(f.optimised(f.specs(), "cuda", blas=True))
    assert not any(isinstance(s, Repeat) for s in walk(p.steps))
    assert [note for _, note in p.notes][-3:] == [
        "parallel: one thread for each element",
        "parallel: one thread for each element",
        "parallel: one thread for each element, 2 loops as one",
    ]


@pytest.mark.parametrize(
    "first, row, less",
    [("k", "k", "k"), ("(+ k 1)", "(+ k 2)", "(+ k 1)"), ("0", "(- (len a) 2)", "1"), ("1", "k", "1")],
)
def test_what_reads_a_changed_row_is_taken_in_its_order(first: str, row: str, less: str) -> None:
    f = hyad.model(f"(defmodel f {ELIMINATION.format(first, row, less)})", namespace={})
    p = print_grid(f.optimised(f.specs(), "cuda", blas=True))
    assert any(isinstance(s, Repeat) for s in walk(p.steps)) and not any("row" in kernel for kernel in p.kernels)


TRIANGLE = """[#^ (Mat n n) a #^ (Vec n) v] (ifold (fn [a i] (ifold (fn [a j]
  (update a i j (- (get a i j) (* (get v i) (get v j))))) a {})) a (len v))"""


@pytest.mark.parametrize("count, rectangle", [("(+ i 1)", True), ("(- (len v) i)", True), ("(* i i)", False)])
def test_triangles_are_rectangles(count: str, rectangle: bool) -> None:
    """Of threads, half of which have nothing to do; where a row of the triangle is as long as its number says."""
    f = hyad.model(f"(defmodel f {TRIANGLE.format(count)})", namespace={})
    p = print_grid(f.optimised(f.specs(), "cuda", blas=True))
    *_, launch = (s for s in walk(p.steps) if isinstance(s, Launch))
    assert (launches.value(launch.blocks, {"n": 1000}) == -(-1000 * 1000 // launches.BLOCK)) is rectangle
    a, v = np.arange(36.0).reshape(6, 6), np.linspace(0.5, 2.0, 6)
    if count != "(* i i)":
        (got,) = Emulator([p], gpu.cpu_compiler() or ()).run(p, (a, v))
        i, j = np.indices(a.shape)
        inside = j <= i if count == "(+ i 1)" else j < 6 - i
        np.testing.assert_allclose(got, np.where(inside, a - np.outer(v, v), a))


LOWER = """[#^ (Mat n n) a #^ (Mat m n) x] (sum (map (fn [x] (sum (map square (build {rows}
  (fn [r] (ifold (fn [s c] (+ s {term})) 0.0 {count})))))) x))"""
LINEAR, DEAR = "(* (get a r c) (get x c))", "(sin (* (get a r c) (exp (get x c))))"
#: Rows and how far they go, what is added there, and whether its gradient's sums are gathered.
TRIANGLES = [
    ("(len x)", "(+ r 1)", LINEAR, True),
    ("(len x)", "r", LINEAR, True),
    ("(len x)", "(- r 3)", LINEAR, True),
    ("(len x)", "(- (len x) r)", LINEAR, True),
    ("(len x)", "(+ r 1)", "(* (exp (get a r c)) (get x c))", True),
    ("(- (len x) 2)", "(+ r 3)", LINEAR, False),
    ("(len x)", "(+ r 1)", DEAR, False),
]


def test_sums_of_triangles_are_gathered() -> None:
    """No additions from many threads; what the rows of a triangle are multiplied by is stacked, and read again."""
    rng = np.random.default_rng(2)
    points = [(rng.normal(size=(n, n)), rng.normal(size=(m, n))) for n, m in ((7, 150), (2, 3), (7, 0))]
    made = []
    for k, (rows, count, term, _) in enumerate(TRIANGLES):
        f = hyad.grad(hyad.model(f"(defmodel f {LOWER.format(rows=rows, count=count, term=term)})", namespace={}))
        program = f.optimised(f.specs(points[0]), "cuda", blas=True)
        made.append((f, *(print_grid(program, name=f"t{k}{d:d}", deterministic=d) for d in (False, True))))
    emulator = Emulator([p for _, *both in made for p in both], gpu.cpu_compiler() or ())
    for (f, *both), (*_, gathered) in zip(made, TRIANGLES):
        assert ("atomicAdd" not in both[0].source) is gathered and "hyad_add(double" not in both[1].source
        for args in points:
            wanted = python_callable(f.program(f.specs(args)))(*args)
            for p, descending in itertools.product(both, (False, True)):
                for got, want in zip(emulator.run(p, args, descending=descending, blocks=3, block=64), wanted):
                    np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * np.max(np.abs(want), initial=1.0))


def test_a_row_beside_a_triangle_that_is_shorter_is_not_touched() -> None:
    """The loop goes as far as its own index says; what lies beyond may be nowhere."""
    text = """[#^ (Mat m n) x #^ (Vec l) y] (ifold (fn [y i] (ifold (fn [y r] (ifold (fn [y c]
      (update y (- r c) (+ (get y (- r c)) (* (get x i r) (get x i c))))) y (+ r 1))) y (len (get x 0)))) y (len x))"""
    plain, flat = text.replace("(- r c)", "c"), text.replace("(Vec l)", "(Mat k l)").replace("(- r c)", "r c")
    x, y, z = np.random.default_rng(1).normal(size=(150, 5)), np.zeros(9), np.full((6, 9), -0.5)
    corner = np.tril(x.T @ x)
    wanted = z + np.pad(corner, ((0, 1), (0, 4)))
    sums = np.append(corner.sum(axis=0), np.zeros(4))
    back = np.append([sum(x[:, r] @ x[:, r - p] for r in range(p, 5)) for p in range(5)], np.zeros(4))
    for source, start, want, atomic in ((plain, y, sums, False), (flat, z, wanted, False), (text, y, back, True)):
        f = hyad.model(f"(defmodel f {source})", namespace={})
        p = print_grid(f.optimised(f.specs((x, start)), "cuda", blas=True))
        assert ("atomicAdd" in p.source) is atomic
        emulator = Emulator([p], gpu.cpu_compiler() or ())
        for descending in (False, True):
            (got,) = emulator.run(p, (x, start), descending=descending)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)


def test_adjoints_of_stencils_in_a_short_loop_are_each_elements() -> None:
    """Of a few steps, whose number is written there, as of many."""
    step = STEP.replace("steps)", "5)")
    f = hyad.grad(hyad.model(f"(defmodel f [#^ (Vec n) u0 a] (sum (map square {step})))", namespace={}), wrt="u0")
    p = print_grid(program_of(f, (np.ones(9), 0.2)))
    assert "hyad_add(&" not in p.source
    emulator = Emulator([p], gpu.cpu_compiler() or ())
    for n, descending in itertools.product((2, 3, 300), (False, True)):
        x = np.random.default_rng(n).uniform(0.5, 1.5, n)
        (got,) = emulator.run(p, (x, 0.2), descending=descending, blocks=2, block=64)
        np.testing.assert_allclose(got, python_callable(f.program(f.specs((x, 0.2))))(x, 0.2), rtol=1e-12)


def test_a_short_loop_around_long_ones_is_a_nest_as_a_long_one_is() -> None:
    """How many there are of something makes no difference where each of them is many."""
    text = """[#^ Int q #^ (Mat n m) a] (build {} (fn [k] (build (len a) (fn [i] (let [w (build (shape a 1) (fn [j]
      (exp (* (real k) (get a i j)))))] (build (shape a 1) (fn [j] (get w (- (shape a 1) 1 j)))))))))"""
    for count in ("40", "q"):
        f = hyad.model(f"(defmodel f {text.format(count)})", namespace={})
        notes = [note for _, note in print_grid(f.optimised(f.specs(), "cuda", blas=True)).notes]
        assert notes == ["parallel: one thread for each element, 3 loops as one"] * 2


@pytest.mark.parametrize(("work", "parallel"), [("(sin (exp (tanh (* u x))))", True), ("(* 2.0 u x)", False)])
def test_few_iterations_with_much_to_do_have_a_thread_each(work: str, parallel: bool) -> None:
    text = f"""[#^ (Mat 30 7) a] (map (fn [r] (let [u (get r 3)] (ifold (fn [s k] (let [x (get r k)]
      (+ (* s x) {work}))) 0.0 7))) a)"""
    f = hyad.model(f"(defmodel f {text})", namespace={})
    a = np.random.default_rng(3).uniform(0.1, 0.9, (30, 7))
    program = print_grid(program_of(f, (a,)), name="few_with_much" if parallel else "few")
    assert any(about.startswith("one thread: few iterations") for _, about in program.notes) != parallel
    want = hyad.compile(f, target="c")(a)
    for descending in (False, True):
        (got,) = Emulator([program], gpu.cpu_compiler()).run(program, (a,), block=32, descending=descending)
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_rows_that_begin_as_one_array_have_a_thread_for_each_element() -> None:
    """They are made by as many threads as they have elements; one thread had a row."""
    text = """[#^ (Mat n m) a #^ (Vec m) v] (let [w (map sin v)] (map (fn [r]
      (ifold (fn [w j] (update w j (+ (get w j) (exp (get r j)))))
        (ifold (fn [w j] (update w (+ 1 j) (+ (get w (+ 1 j)) (get r j)))) w (- (len w) 1)) (len w))) a))"""
    f = hyad.model(f"(defmodel f {text})", namespace={})
    for deterministic in (False, True):
        p = print_grid(f.optimised(f.specs(), "cuda", blas=True), deterministic=deterministic)
        _, *by_rows = (s for s in walk(p.steps) if isinstance(s, Launch))  # the first makes the array
        sizes = {"n": 50, "m": 1024}
        assert by_rows and all(launches.value(s.blocks, sizes) * launches.BLOCK > 50 * 1000 for s in by_rows)
        assert "hyad_add(&" not in p.source
        emulator = Emulator([p], gpu.cpu_compiler() or ())
        for n, m, descending in itertools.product((1, 7), (1, 2, 90), (False, True)):
            a, v = np.random.default_rng(m).normal(size=(n, m)), np.linspace(0.0, 1.0, m)
            (got,) = emulator.run(p, (a, v), descending=descending, blocks=2, block=64)
            want = np.sin(v) + np.exp(a)
            want[:, 1:] += a[:, :-1]
            np.testing.assert_allclose(got, want, rtol=1e-12)


def test_two_kinds_of_rows_may_begin_as_one_array() -> None:
    row = "(map (fn [r] (ifold (fn [w j] (update w j (+ (get w j) ({} (get r j))))) w (len w))) a)"
    text = f"[#^ (Mat n m) a #^ (Vec m) v] (let [w (map sin v)] #({row.format('exp')} {row.format('cos')}))"
    f = hyad.model(f"(defmodel f {text})", namespace={})
    p = print_grid(f.optimised(f.specs(), "cuda", blas=True))
    a, v = np.random.default_rng(1).normal(size=(7, 90)), np.linspace(0.0, 1.0, 90)
    found = Emulator([p], gpu.cpu_compiler() or ()).run(p, (a, v))
    for got, more in zip(found, (np.exp(a), np.cos(a)), strict=True):
        np.testing.assert_allclose(got, np.sin(v) + more, rtol=1e-12)


NEAREST = """[#^ (Mat k {d}) c #^ (Mat n {d}) x]
  (sum (map (fn [p] (amin (map (fn [q] (sum (map (fn [a b] (square (- a b))) p q))) c))) x))"""


@pytest.mark.some(2)
@pytest.mark.parametrize("d, inside", [("m", True), ("80", True), ("3", False)])
def test_a_branch_with_a_loop_goes_inside(d: str, inside: bool) -> None:
    """Each element of the row of the nearest centre, which is added to where there is one, has a thread."""
    f = hyad.grad(hyad.model(f"(defmodel f {NEAREST.format(d=d)})", namespace={}), wrt="c")
    rng = np.random.default_rng(3)
    m = int(d) if d.isdigit() else 20
    c, x = rng.normal(size=(6, m)), rng.normal(size=(300, m))
    near = ((x[:, None] - c) ** 2).sum(axis=2).argmin(axis=1)
    want = np.zeros_like(c)
    np.add.at(want, near, 2 * (c[near] - x))
    program = f.optimised(f.specs((c, x)), "cuda", blas=True)
    made = [print_grid(program, name=f"f{d:d}", deterministic=d) for d in (False, True)]
    emulator = Emulator(made, gpu.cpu_compiler() or ())
    for p, deterministic in zip(made, (False, True)):
        *_, last = (s for s in walk(p.steps) if isinstance(s, Launch))
        blocks = launches.value(last.blocks, {"n": 10_000, "k": 6, "m": m})
        assert deterministic or blocks == -(-10_000 * (m if inside else 1) // launches.BLOCK)
        for descending in (False, True):
            (got,) = emulator.run(p, (c, x), descending=descending)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)


def test_the_host_chooses_and_waits() -> None:
    assert any(isinstance(s, Choose) for s in plan("chosen").steps)
    assert any(isinstance(s, While) for s in plan("until", off=("persistent",)).steps)


def test_products_are_the_librarys() -> None:
    """Three of the quadratic form's gradient, each with a kernel for where there is no library."""
    found = [s for s in plan("quadratic'").steps if isinstance(s, Gemm)]
    assert len(found) == 3 and {s.launch.kernel for s in found} == {"quadratic_grad_product"}
    assert sorted((s.ta, s.tb) for s in found) == [(False, False), (False, True), (True, False)]


def test_sums_of_a_gradient_are_gathered() -> None:
    """No additions from many threads, and no zeros before: each element of a gradient is one thread's sum."""
    p = plan("layer'")
    cleared = {s.to.array for s in walk(p.steps) if isinstance(s, Clear)}  # but counters of a product's parts
    assert "atomicAdd" not in p.source and not any(m.name in cleared for m in p.memory if m.elem == "real")
    assert "atomicAdd" in plan("picked'").source  # places that only data know
    assert "hyad_add(double" not in plan("picked'", deterministic=True).source


def test_words_say_what_runs_how() -> None:
    notes = dict(plan("filter").notes)
    assert any(text.startswith("(scan (fn [s a]") and "one thread" in note for text, note in notes.items())


# ------------------------------------------------------------------------------------------------- sizes


def test_sizes_in_c_are_the_same_integers(tmp_path: Path, collection: Collection) -> None:
    """Of all sizes of all plans: as the host computes them and as C does."""
    sizes: dict[Any, None] = {}
    for s in collection.subjects.values():
        for m in s.cuda.memory:
            sizes[m.length] = None
        for step in walk(s.cuda.steps):
            if isinstance(step, Launch):
                sizes[step.blocks] = None
                sizes.update(dict.fromkeys(a for a in step.args if isinstance(a, (int, str, tuple))))
    for operator in ("+", "-", "*", "min", "max", "==", "!=", "<", "<=", "and", "or"):
        sizes[operator, ("-", "a", 3), "b"] = None
    sizes["//", ("-", "a", 9), 4] = sizes["%", ("-", "a", 9), 4] = sizes["%", ("-", "a", 9), ("max", "b", 1)] = None
    names = sorted({n for size in sizes for n in launches.names_of(size)})
    head = ", ".join(f"long long {n}" for n in names)
    lines = [f"    out[{k}] = {launches.text(size)};" for k, size in enumerate(sizes)]
    source = "\n".join([f"void sizes(long long *out, {head})", "{", *lines, "}", ""])
    (tmp_path / "sizes.c").write_text(source)
    command = [batch.CC, "-O0", "-fPIC", "-shared", "-w", "sizes.c", "-o", "sizes.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    entry = ctypes.CDLL(str(tmp_path / "sizes.so")).sizes
    for seed in range(5):
        rng = np.random.default_rng(seed)
        known = {n: int(rng.integers(0, 40)) for n in names}
        out = (ctypes.c_longlong * len(sizes))()
        entry(out, *(ctypes.c_longlong(known[n]) for n in names))
        assert list(out) == [launches.value(size, known) for size in sizes]


def test_what_the_form_of_a_size_tells_of_its_sign() -> None:
    """Divisions in C round towards 0, sizes down: as C has it where neither side can be negative."""
    rng = random.Random(1)

    def made(depth: int) -> Size:
        if depth == 0 or rng.random() < 0.2:
            return rng.choice([0, 1, 2, 5, -3, 64, "a", "b", "c"])
        operator = rng.choice(["+", "-", "*", "//", "%", "min", "max", "<", "==", "power"])
        return operator, made(depth - 1), rng.choice([4, 32]) if operator == "power" else made(depth - 1)

    told = 0
    for size in (made(4) for _ in range(1000)):
        told += (not launches.negative(size)) + launches.positive(size)
        for _ in range(20):
            known = {"a": rng.randint(-20, 20), "b": rng.randint(-9, 40), "c": rng.randint(-3, 3)}
            try:
                found = launches.value(size, known)
            except ZeroDivisionError:
                continue
            assert found >= 0 or launches.negative(size)
            assert found >= 1 or not launches.positive(size)
    assert told > 500
    assert launches.text(("//", ("+", ("max", "n", 0), 127), 128)) == "(((n > 0 ? n : 0) + 127)/128)"
    assert launches.text(("//", "n", 64)) == "(n/64 - (n % 64 < 0))"


HEADS = """(fn [#^ (Mat n d) x #^ Int heads]
  (let [w (// (len (get x 0)) heads)]
    (build heads (fn [h]
      (let [part (build [(len x) w] (fn [i j] (get x i (+ (* h w) j))))]
        (@ (softmax (@ part (transpose part)) 1) part))))))"""


def test_sizes_that_are_quotients_of_sizes() -> None:
    """As the width of each head of attention is."""
    f = hyad.model(HEADS, namespace={})
    x = np.random.default_rng(0).normal(size=(5, 6))
    program = print_grid(program_of(f, (x, 2)), name="heads")
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for heads in (2, 3, 4, 0):
        np.testing.assert_allclose(emulator.run(program, (x, heads))[0], f(x, heads), rtol=1e-11, atol=1e-13)


def test_sizes_in_python_are_the_same_integers(collection: Collection) -> None:
    """Of all arrays of all plans: as ``launches.value`` has them and as the compiled steps do."""
    for s in collection.subjects.values():
        params = [p.name for p in s.cuda.params if p.elem == "int" and not p.dims]
        for seed in range(3):
            rng = np.random.default_rng(seed)
            known = {n: int(rng.integers(1, 40)) for n in (*s.cuda.dims, *params)}
            wanted = [tuple(launches.value(d, known) for d in m.dims) for m in s.cuda.memory]
            assert list(steps.compiled(s.cuda).shapes(known)) == wanted


# --------------------------------------------------------------------------------------- checks and refusals


def test_a_failed_check_is_told(collection: Collection) -> None:
    s = collection.subjects["checked"]
    v, at = arguments("checked")
    with pytest.raises(BoundsError) as caught:
        run(collection, s, (v, np.where(np.arange(len(at)) == 7, 40, at)))
    assert caught.value.span is not None and "(get v i)" in caught.value.span.text


@pytest.mark.parametrize(
    "text, message, form",
    [
        ("(fn [l] (fold + 0.0 l))", "the argument `l` is data", "l"),
        (
            "(fn [#^ (Arr Int n) a] (let [v (build (get a 0) (fn [i] (real i)))] (map (fn [x] (/ x (sum v))) v)))",
            "the size of this array is not known before the call",
            "(map (fn [x] (/ x (sum v))) v)",
        ),
    ],
)
def test_what_cannot_run_on_a_gpu_says_why(text: str, message: str, form: str) -> None:
    f = hyad.model(text, namespace={})
    given = np.arange(3) if "Arr" in text else hyad.lisp([1.0, 2.0]) if "[l]" in text else 2.5
    with pytest.raises(CompileError, match=message) as caught:
        print_grid(f.optimised(f.specs((given,))))
    assert caught.value.span is not None and form in caught.value.span.text


# -------------------------------------------------------------------------------------- the emulation itself


def altered(name: str, old: str, new: str) -> tuple[CudaProgram, Program]:
    program = program_of(model_of(name), arguments(name))
    cuda = print_grid(program, name="altered")
    assert old in cuda.source
    return dataclasses.replace(cuda, source=cuda.source.replace(old, new, 1)), program


def test_a_missing_barrier_is_noticed() -> None:
    """In one of the two orders of threads a block's sum is read before all of it is there."""
    cuda, program = altered("branch", "  __syncthreads();\n  if (warp == 0)", "  if (warp == 0)")
    args = arguments("branch")
    emulator = Emulator([cuda], gpu.cpu_compiler() or ())
    wanted = hyad.compile(model_of("branch"), target="python", args=args)(*args)
    found = [emulator.run(cuda, flat(program, args), descending=d)[0] for d in (False, True)]
    assert any(not np.isclose(f, wanted, rtol=1e-9) for f in found)


def test_writing_beyond_an_array_is_noticed() -> None:
    cuda, program = altered("saxpy", "if (i < n)", "if (i < n + 1)")
    emulator = Emulator([cuda], gpu.cpu_compiler() or ())
    with pytest.raises(hyad.HyadError, match="wrote outside"):
        emulator.run(cuda, flat(program, arguments("saxpy")), blocks=1, block=32)


@pytest.mark.parametrize(
    "body, said",
    [
        ("if (threadIdx.x < 3) __syncthreads();", "a barrier was reached by 3 of 32 threads"),
        ("if (threadIdx.x < 3) __shfl_xor_sync(0xffu, *x, 1);", "a shuffle was reached by 3 of 32 threads"),
        ("if (threadIdx.x < 8) __shfl_xor_sync(0xf0u, *x, 1);", "a shuffle was reached by 4 of 32 threads"),
    ],
)
def test_a_barrier_that_some_threads_miss_ends_the_program(body: str, said: str, tmp_path: Path) -> None:
    source = f'extern "C" __global__ void f(int *x) {{ {body} *x = 1; }}\n'
    program = CudaProgram("f", (), (), (), (), (), ("f",), source)
    main = "int main() { int x, *p = &x; void *args[] = {&p}; return f_start(args, 1, 32, 0); }\n"
    (tmp_path / "f.cu").write_text(source + entries(program) + main)
    header = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
    command = [*(gpu.cpu_compiler() or ()), "-std=c++17", "-include", str(header), "-x", "c++", "f.cu", "-o", "f"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./f"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and said in done.stderr
