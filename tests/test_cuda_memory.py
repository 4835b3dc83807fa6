"""Where threads of a GPU read and write: arrays of their own between those of their neighbours, and rows that they find
by an index, read together. Run on the CPU in both orders of the threads, against C of the same model or NumPy."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen import launches, nvrtc, pieces
from hyad.codegen.cuda import print_cuda
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
DTYPES = {"f64": np.float64, "f32": np.float32}

# ------------------------------------------------------------------------------- arrays of a thread's own

STEPS = "(ifold (fn [s k] (+ (* s (sin s)) (* (get p 1) (get p 2)))) (get p 0) m)"
ROUNDS = "(while (> (abs (- (square (deref x)) a)) 1e-4) (set! x (* 0.5 (+ (deref x) (/ a (deref x))))))"
RING = "(fn [u k] (build m (fn [j] (+ (* a (get u j)) (sin (get u (% (+ j 1) m)))))))"
COUNT = """(ifold (fn [c k] (let [i (% (int (* a (real (* k k)))) m)] (update c i (+ 1 (get c i)))))
  (build m (fn [j] 0)) 20)"""
#: A model of an array x and an integer m, whether it is differentiated, and whether the arrays that each thread has in
#: the workspace are strided.
OWN: dict[str, tuple[str, bool, bool]] = {
    "remembered": (f"[#^ (Mat n 3) x #^ Int m] (sum (map (fn [p] {STEPS}) x))", True, True),
    "counted": (f"[#^ (Vec n) x #^ Int m] (map (fn [a] (let [c {COUNT}] (ifold (fn [s j] (+ (* 0.9 s) (* a (real"
                " (get c j))))) 0.0 m))) x)", False, True),
    "flags": ("[#^ (Vec n) x #^ Int m] (map (fn [a] (fst (ifold (fn [p k] (let [s (fst p) f (snd p) j (% (+ (* 3 k) 1)"
              " m)] #((if (get f j) (* 0.5 s) (+ a s)) (update f j (> (sin (* s a)) 0.3))))) #(a (build m (fn [j]"
              " (> (* a (real j)) 1.0)))) (* 2 m)))) x)", False, True),
    "heap-too": ("[#^ (Vec n) x #^ Int m] (sum (map (fn [a] (let [b (fst (ifold (fn [p k] (let [b (snd p) j (% (* 2 k)"
                 " m)] #((+ (fst p) (get b j)) (update b j (* a (fst p)))))) #(a (build m (fn [j] (* a (real j))))) m))"
                 f" x (ref a)] {ROUNDS} (* (deref x) b))) x))", True, True),
    "exchanged": (f"[#^ (Vec n) x #^ Int m] (map (fn [a] (let [u (ifold {RING} (build m (fn [j] (* a (real j)))) 3)]"
                  " (ifold (fn [s j] (+ (* 0.9 s) (get u j))) 0.0 m))) x)", False, True),
    "in-the-result": (f"[#^ (Vec n) x #^ Int m] (map (fn [a] (ifold {RING} (build m (fn [j] (* a (real j)))) 3)) x)",
                      False, False),
}  # fmt: skip


def own_model(name: str) -> hyad.Model:
    text, derived, _ = OWN[name]
    f = hyad.model(f"(defmodel {name} {text})", namespace={})
    return hyad.grad(f, wrt="x") if derived else f


def own_arguments(name: str) -> list[Any]:
    return [np.random.default_rng(1).uniform(0.5, 1.5, (300, 3) if "Mat" in OWN[name][0] else 300), 7]


@cache
def own_programs() -> tuple[dict[tuple[str, str], CudaProgram], Emulator]:
    found = {}
    for name in OWN:
        f = own_model(name)
        program = f.optimised(f.specs(own_arguments(name)), "cuda", blas=True)
        for dtype in DTYPES:
            found[name, dtype] = print_grid(program, dtype=dtype, name=f"own{len(found)}")
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OWN)
def test_arrays_between_those_of_the_neighbours(name: str, dtype: str) -> None:
    """Whole numbers and truth values among reals, of four bytes and of eight, and memory that is taken besides."""
    found, emulator = own_programs()
    program = found[name, dtype]
    assert ("= hyad_own<" in program.source) == OWN[name][2]
    for m in (7, 1):
        x = own_arguments(name)[0].astype(DTYPES[dtype])
        want = hyad.compile(own_model(name), args=(x.astype(float), m))(x.astype(float), m)
        for options in ({}, {"descending": True}, {"heap": 8, "descending": True}):
            (got,) = emulator.run(program, (x, m), **options)
            np.testing.assert_allclose(got, want, rtol=1e-11 if dtype == "f64" else 2e-3, atol=1e-4 * (dtype == "f32"))


def test_neighbours_touch_neighbours() -> None:
    """The addresses, as they are when the text runs: element k of a warp's threads is 32 reals side by side."""
    program = own_programs()[0]["remembered", "f64"]
    assert "return first[32*k];" in program.source
    noted = program.source.replace("return first[32*k];", "noted[count++] = &first[32*k]; return first[32*k];")
    head = "static const void *noted[1 << 16];\nstatic int count;\n"
    tail = 'extern "C" long long stride(int k) { return (const char *)noted[k + 1] - (const char *)noted[k]; }\n'
    changed = dataclasses.replace(program, source=f"{head}{noted}{tail}", name="noted")
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    x, m = np.ones((40, 3)), 5
    emulator.run(changed, (x, m))
    steps = {abs(emulator.library.stride(k)) for k in range(2 * m - 1)}  # s and t of each of a thread's steps
    assert steps and all(s % (32 * 8) == 0 for s in steps)


def test_striding_is_left_where_it_is_switched_off() -> None:
    f = own_model("remembered")
    program = f.optimised(f.specs(own_arguments("remembered")), "cuda", blas=True)
    with without(("striding",)):
        source = print_grid(program).source
    assert "hyad_strided" not in source and "work_ + thread*room" in source


LONG = """(defmodel wide [#^ (Vec n) v #^ (Vec 4) q]
  (let [s (fold + 0.0 (ifold (fn [u k] (map (fn [x y] (* x x y)) u v)) v 5))]
    [(* s (get q 0)) (* (get q 1) (get q 2)) s]))"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_with_memory_of_the_callers(dtype: str) -> None:
    """Rows go through shared memory as well, since blocks have whole warps; fewer threads than a warp are refused."""
    f = hyad.jacobian(hyad.model(LONG, namespace={}), wrt="q")
    product = LONG.replace("[(* s (get q 0)) (* (get q 1) (get q 2)) s]", "(* s (get q 0))")
    g = hyad.grad(hyad.model(product, namespace={}), wrt="v")
    rng = np.random.default_rng(0)
    v, q = rng.uniform(0.5, 1.5, (70, 9)), rng.uniform(0.5, 1.5, (70, 4))
    for model, rows in ((f, {"q", "out"}), (g, set())):
        kernel = print_cuda(model.optimised(model.specs((v[0], q[0]))), dtype=dtype)
        assert kernel.workspace is not None and kernel.warps and "= hyad_own<" in kernel.source
        assert set(re.findall(r"__shared__ [a-z ]+ (\w+)_tile\[", kernel.source)) == rows
        entry = hyad.compile(model, args=(v[0], q[0]))
        want = np.stack([entry(*row) for row in zip(v, q)])
        args = v.astype(DTYPES[dtype]), q.astype(DTYPES[dtype])
        for grid, block, descending in ((None, None, False), (1, 32, True), (2, 64, False)):
            (got,) = gpu.run_on_cpu(kernel, *args, grid=grid, block=block, descending=descending)
            np.testing.assert_allclose(got, want, rtol=1e-11 if dtype == "f64" else 1e-3)
        with pytest.raises(ValueError, match="whole warps"):
            gpu.run_on_cpu(kernel, *args, block=8)
        assert "how many threads may run at once, at least 32" in kernel.header


# --------------------------------------------------------------------------- rows that are found by an index

SPRING = """(let [d (map - (get x (get at e 0)) (get x (get at e 1)))]
  (map (fn [c] (* c (sqrt (sum (map square d))))) d))"""
#: A model, the shapes of its arguments ("int": of integers below), and the arrays whose rows are gathered, with how
#: often each is.
GATHERED: dict[str, tuple[str, tuple[Any, ...], dict[str, int]]] = {
    "camera": ("[#^ (Mat c 5) cams #^ (Mat n 3) pts #^ (Arr Int m) by #^ (Arr Int m) of #^ (Vec m) w] (build (len w)"
               " (fn [o] (let [c (get cams (get by o)) p (get pts (get of o))] [(* (get w o) (+ (* (get c 0) (get p 0))"
               " (* (get c 1) (get p 1)) (get c 4))) (+ (get c 2) (sin (get c 3))) (get p 2)])))",
               ((40, 5), (50, 3), ("int", 300), ("int", 300), (300,)), {"cams": 1, "pts": 1}),
    "springs": (f"[#^ (Mat n 3) x #^ (Arr Int m 2) at] (build (len at) (fn [e] {SPRING}))",
                ((40, 3), ("int", 200, 2)), {"x": 2}),
    "triangles": ("[#^ (Mat n 3) x #^ (Arr Int f 3) at] (map (fn [t] (let [u (map - (get x (get t 1)) (get x (get t"
                  " 0))) v (map - (get x (get t 2)) (get x (get t 0)))] (cross u v))) at)",
                  ((40, 3), ("int", 150, 3)), {"x": 3}),
    "corners": ("[#^ (Mat n 3) x #^ (Arr Int f 3) faces #^ (Arr Int m) near] (map (fn [k] (let [a (get x (get"
                " faces k 0)) b (get x (get faces k 2))] (map * a b))) near)",
                ((40, 3), ("int", 40, 3), ("int", 150)), {"x": 2}),
    "scaled": ("[#^ (Mat n 4) x #^ (Arr Int m k) at] (build [(len at) (len (get at 0))] (fn [i j] (sum (map square"
               " (get x (get at i j))))))", ((40, 4), ("int", 13, 29)), {"x": 1}),
    "folded": ("[#^ (Mat n 6) x #^ (Arr Int m) at] (sum (map (fn [k] (prod (get x k))) at))",
               ((40, 6), ("int", 700)), {"x": 1}),
    "blocks": ("[#^ (Arr Real n 2 3) x #^ (Arr Int m) at] (map (fn [k] (map (fn [r] (sum (map exp r))) (get x k))) at)",
               ((40, 2, 3), ("int", 70)), {"x": 1}),
    "both": ("[#^ (Mat n 3) x #^ (Arr Int n) next] (build (len x) (fn [i] (map - (get x i) (get x (get next i)))))",
             ((40, 3), ("int", 40)), {"x": 1}),
    "narrow": ("[#^ (Mat n 2) x #^ (Arr Int m) at] (map (fn [k] (* (get x k 0) (get x k 1))) at)",
               ((40, 2), ("int", 90)), {}),
    "one": ("[#^ (Mat n 4) x #^ (Arr Int m) at] (map (fn [k] (sin (get x k 1))) at)", ((40, 4), ("int", 90)), {}),
    "maybe": ("[#^ (Mat n 3) x #^ (Arr Int m) at] (map (fn [k] (if (> k 20) (sum (get x k)) 0.0)) at)",
              ((40, 3), ("int", 90)), {}),
    "next": ("[#^ (Mat n 3) x] (build (- (len x) 1) (fn [i] (sum (get x (+ i 1)))))", ((90, 3),), {}),
}  # fmt: skip


def gathered_arguments(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(name))
    shapes = GATHERED[name][1]
    return [rng.integers(0, 40, s[1:]) if s[0] == "int" else rng.uniform(0.5, 2.0, s) for s in shapes]


@cache
def gathered_programs() -> tuple[dict[tuple[str, str], CudaProgram], Emulator]:
    found = {}
    for name, (text, _, _) in GATHERED.items():
        f = hyad.model(f"(defmodel {name} {text})", namespace={})
        program = f.optimised(f.specs(gathered_arguments(name)), "cuda", blas=True)
        for dtype in DTYPES:
            found[name, dtype] = print_grid(program, dtype=dtype, name=f"gathered{len(found)}")
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


def gathered(source: str) -> dict[str, int]:
    names = re.findall(r"    hyad_gather<\d+>\(\w+, (\w+),", source)
    return {name: names.count(name) for name in names}


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATHERED)
def test_rows_that_are_found(name: str, dtype: str) -> None:
    found, emulator = gathered_programs()
    program, args = found[name, dtype], gathered_arguments(name)
    assert gathered(program.source) == GATHERED[name][2]
    want = memoised.results(hyad.model(f"(defmodel {name} {GATHERED[name][0]})", namespace={}), args)
    given = [a.astype(DTYPES[dtype]) if a.dtype == float else a for a in args]
    for shape in ({}, {"blocks": 2, "block": 32, "descending": True}, {"blocks": 3, "block": 64}):
        for got, expected in zip(emulator.run(program, given, **shape), want, strict=True):
            rounding = (1e-11, 1e-14) if dtype == "f64" else (1e-3, 1e-5)
            np.testing.assert_allclose(got, expected, *rounding)


@pytest.mark.parametrize("name, which", [("camera", 2), ("springs", 1), ("corners", 1), ("corners", 2), ("scaled", 1)])
def test_a_wrong_index_is_an_error_and_reads_nothing(name: str, which: int) -> None:
    """In whatever thread, and at an index that another one is found by."""
    found, emulator = gathered_programs()
    for wrong in (-1, 10**12, -(10**12)):
        args = gathered_arguments(name)
        args[which].reshape(-1)[args[which].size * 2 // 3] = wrong
        for descending in (False, True):
            with pytest.raises(BoundsError):
                emulator.run(found[name, "f64"], args, descending=descending)


def test_a_missing_barrier_before_gathered_rows_is_noticed() -> None:
    """The one after indices are taken, for these are rows as well. (Behind what is gathered the CPU, whose threads wait
    for each other at each shuffle, does not show it.)"""
    program = gathered_programs()[0]["triangles", "f64"]
    args = gathered_arguments("triangles")
    (want,) = gathered_programs()[1].run(program, args)
    parts = program.source.split("__syncwarp();")
    assert len(parts) == 4 and "hyad_fetch<3>(at_tile" in parts[0] and "= at_row[" in parts[1]
    without_engine = "#undef HYAD_BULK\n"  # whose rows have arrived without the barrier
    changed = dataclasses.replace(program, source=f"{without_engine}{parts[0]};{'__syncwarp();'.join(parts[1:])}")
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    wrong = []
    for descending in (False, True):
        try:
            (got,) = emulator.run(changed, args, blocks=1, block=32, descending=descending)
            wrong.append(not np.allclose(got, want))
        except BoundsError:  # what lay there before
            wrong.append(True)
    assert any(wrong)


def test_the_notes_say_which_rows_and_staging_switches_them_off() -> None:
    f = hyad.model(f"(defmodel camera {GATHERED['camera'][0]})", namespace={})
    program = f.optimised(f.specs(gathered_arguments("camera")), "cuda", blas=True)
    assert any("rows of out and cams and pts through shared memory" in note for _, note in print_grid(program).notes)
    with without(("staging",)):
        assert "hyad_gather" not in print_grid(program).source


#: Sums over rows that are found by an index, what is differentiated by, and how often rows of the gradient are added to
#: by warps.
LENGTH = (
    "(let [d (map - (get x (get at e 0)) (get x (get at e 1)))] (square (- (sqrt (+ 0.1 (sum (map square d)))) 1.0)))"
)
ADDED: dict[str, tuple[str, tuple[Any, ...], str | tuple[str, ...], dict[str, int]]] = {
    "lengths": (f"[#^ (Mat n 3) x #^ (Arr Int m 2) at] (sum (build (len at) (fn [e] {LENGTH})))",
                ((40, 3), ("int", 200, 2)), "x", {"x_bar": 2}),
    "seen": ("[#^ (Mat c 5) cams #^ (Mat n 3) pts #^ (Arr Int m) by #^ (Arr Int m) of #^ (Vec m) w] (sum (build (len w)"
             " (fn [o] (let [c (get cams (get by o)) p (get pts (get of o))] (square (- (get w o) (* (get c 4) (+ (*"
             " (get c 0) (get p 0)) (* (get c 1) (get p 1)) (* (get p 2) (sin (get p 1)))))))))))",
             ((40, 5), (50, 3), ("int", 300), ("int", 300), (300,)), ("cams", "pts"), {"cams_bar": 1, "pts_bar": 1}),
    "matrices": ("[#^ (Arr Real n 2 3) x #^ (Arr Int m) at] (sum (map (fn [k] (exp (* 0.1 (sum (map (fn [r] (prod r))"
                 " (get x k)))))) at))", ((40, 2, 3), ("int", 170)), "x", {"x_bar": 1}),
    "few": ("[#^ (Mat n 5) x #^ (Arr Int m) at] (sum (map (fn [k] (* (get x k 1) (get x k 3))) at))",
            ((40, 5), ("int", 90)), "x", {}),
    "maybe": ("[#^ (Mat n 3) x #^ (Arr Int m) at] (sum (map (fn [k] (if (> k 20) (prod (get x k)) 0.0)) at))",
              ((40, 3), ("int", 90)), "x", {}),
    "whole": ("[#^ (Mat n d) x #^ (Arr Int m) at] (sum (map (fn [k] (sum (map exp (get x k)))) at))",
              ((40, 7), ("int", 90)), "x", {}),
}  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ADDED)
def test_rows_that_are_added_to(name: str) -> None:
    """Neighbours add to neighbours: in both orders of the threads, on several grids; a wrong index adds nothing."""
    text, shapes, wrt, rows = ADDED[name]
    rng = np.random.default_rng(len(name))
    args = [rng.integers(0, 40, s[1:]) if s[0] == "int" else rng.uniform(0.5, 2.0, s) for s in shapes]
    f = hyad.grad(hyad.model(f"(defmodel {name} {text})", namespace={}), wrt=wrt)
    typed, want = f.optimised(f.specs(args), "cuda", blas=True), memoised.results(f, args)
    programs = [print_grid(typed, dtype=dtype, name=f"added_{dtype}") for dtype in DTYPES]
    emulator = Emulator(programs, gpu.cpu_compiler() or ())
    for program, dtype in zip(programs, DTYPES, strict=True):
        found = re.findall(r"    hyad_add_rows<\d+>\(\w+, (\w+),", program.source)
        assert {a: found.count(a) for a in found} == rows
        given = [a.astype(DTYPES[dtype]) if a.dtype == float else a for a in args]
        for shape in ({}, {"blocks": 2, "block": 32, "descending": True}, {"blocks": 3, "block": 64}):
            for got, expected in zip(emulator.run(program, given, **shape), want, strict=True):
                scale = np.max(np.abs(expected))
                np.testing.assert_allclose(got, expected, rtol=0, atol=(1e-13 if dtype == "f64" else 1e-4) * scale)
    at = next(a for a in args if a.dtype != float)
    for wrong in (10**12, -1)[: 1 if name == "maybe" else 2]:
        at.reshape(-1)[at.size * 2 // 3] = wrong
        with pytest.raises(BoundsError):
            emulator.run(programs[0], args)
    with without(("staging",)):
        assert "hyad_add_rows" not in print_grid(typed).source


def test_what_is_added_to_some_elements_of_a_row() -> None:
    """Three of four: the fourth adds nothing. By a model's own changes."""
    body = "".join(f"x (update x k {c} (+ (get x k {c}) {v})) " for c, v in ((1, "a"), (2, "(* 2.0 a)"), (3, "1.0")))
    text = f"(ifold (fn [x i] (let [k (get at i) a (get v i) {body}] x)) x (len v))"
    f = hyad.model(f"(defmodel added [#^ (Mat n 4) x #^ (Vec m) v #^ (Arr Int m) at] {text})", namespace={})
    rng = np.random.default_rng(1)
    x, v, at = rng.normal(size=(20, 4)), rng.normal(size=300), rng.integers(0, 20, 300)
    program = print_grid(f.optimised(f.specs((x, v, at)), "cuda", blas=True))
    row = re.search(r"hyad_add_rows<4>\((\w+)_tile", program.source)
    assert row is not None and f"{row[1]}_row[0] = 0;" in program.source
    want = x.copy()
    np.add.at(want, at, np.stack([0 * v, v, 2 * v, 0 * v + 1], axis=1))
    for descending in (False, True):
        (got,) = Emulator([program], gpu.cpu_compiler() or ()).run(program, (x, v, at), descending=descending)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


# ------------------------------------------------------------------- directions of what one thread does by steps

CHAIN = """(defmodel chain [#^ (Vec n) x #^ (Arr Int n) parents #^ (Vec d) w]
  (ifold (fn [acc b]
           (let [q (get parents b) s (fst acc) u (snd acc) a (if (< q 0) 0.5 (get s q)) c (cos (+ a (get x b)))]
             #((update s b c)
               (update u b (if (< q 0) w (map (fn [y z] (+ (* a y) (* c z))) (get u q) w))))))
         #((build n (fn [i] 0.0)) (build [n d] (fn [i k] 0.0))) n))"""
PLACE = """(defmodel place [#^ (Vec n) x #^ (Vec d) w]
  (ifold (fn [acc b]
           (let [j (% b 3) s (update (fst acc) j (sin (+ (get (fst acc) j) (get x b))))]
             #(s (update (snd acc) j (map (fn [y z] (+ (* (get s j) z) (* 0.5 y))) (get (snd acc) j) w)))))
         #((build 3 (fn [i] 0.1)) (build [3 d] (fn [i k] 0.0))) n))"""
TURNED = CHAIN.replace("(map (fn [y z] (+ (* a y) (* c z))) (get u q) w)", "(build d (fn [k] (get u q (- (- d 1) k))))")
#: A model of steps with arrays of directions, how many these are, and whether a warp has them.
DIRECTIONS: dict[str, tuple[str, int, bool]] = {
    "chain": (CHAIN, 45, True),
    "as-many-twice": (CHAIN, 64, True),
    "in-place": (PLACE, 60, True),
    "few": (CHAIN, 3, False),
    "turned": (TURNED, 60, False),
}


def steps_model(name: str) -> hyad.Model:
    text, many, _ = DIRECTIONS[name]
    text = re.sub(r"\bd\b", str(many), re.sub(r"\bn\b", "7", text))
    return hyad.model(text, namespace={})


def steps_arguments(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    args = [rng.uniform(0.5, 1.5, 7), np.array([-1, 0, 0, 1, 3, 2, 5]), rng.uniform(0.5, 1.5, DIRECTIONS[name][1])]
    return args if "parents" in DIRECTIONS[name][0] else args[::2]


def warps(program: CudaProgram) -> int:
    return program.source.count("const int lane = threadIdx.x;")


@cache
def direction_programs() -> tuple[dict[str, CudaProgram], Emulator]:
    found = {}
    for name in DIRECTIONS:
        f = steps_model(name)
        program = f.optimised(f.specs(steps_arguments(name)), "cuda", blas=True)
        found[name] = print_grid(program, name=f"directions{len(found)}")
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


@pytest.mark.parametrize("name", DIRECTIONS)
def test_a_warp_has_the_directions_of_what_is_done_by_steps(name: str) -> None:
    """The results are those of C, in both orders of the threads; few directions, and those that are read in another
    order, are one thread's."""
    found, emulator = direction_programs()
    assert bool(warps(found[name])) == DIRECTIONS[name][2]
    f, args = steps_model(name), steps_arguments(name)
    wanted = hyad.compile(f, args=args)(*args)
    for descending in (False, True):
        for got, want in zip(emulator.run(found[name], args, descending=descending), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_warp_of_a_block_that_has_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other warps of the block wait."""
    monkeypatch.setattr(pieces, "COPIED", 64)  # the start is made row by row, by the block
    f, args = steps_model("in-place"), steps_arguments("in-place")
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True), name="steps")
    assert warps(program) == 2 and "if (threadIdx.x < 32) steps_" in program.source
    wanted = hyad.compile(f, args=args)(*args)
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for descending in (False, True):
        for got, want in zip(emulator.run(program, args, descending=descending), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_state_that_all_read_is_written_by_one_between_barriers() -> None:
    """Without them a thread reads what the first one has made of it since."""
    program, args = direction_programs()[0]["in-place"], steps_arguments("in-place")
    wanted = direction_programs()[1].run(program, args)
    assert "__syncwarp();" in program.source and "if (lane == 0) " in program.source
    changed = dataclasses.replace(program, source=program.source.replace("__syncwarp();", ";"))
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    found = [emulator.run(changed, args, descending=d) for d in (False, True)]
    assert any(not np.array_equal(x, y) for got in found for x, y in zip(got, wanted, strict=True))


def test_directions_are_one_threads_where_that_is_asked() -> None:
    f = steps_model("chain")
    program = f.optimised(f.specs(steps_arguments("chain")), "cuda", blas=True)
    assert any("with a warp for its directions" in note for _, note in print_grid(program).notes)
    with without(("directions",)):
        assert not warps(print_grid(program))


# ----------------------------------------------------------------------- memory in the loops of the host

#: Arrays whose size an iteration of the host's loops decides on: in a thread's own memory, of an inner loop as long as
#: the outer one has run, and two that are largest in the middle.
SIZED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "workspace": ("[x #^ Int k] (let [n (len x) f (zeros [n k])] (for [t (range 1 n) j (range k)] (set-at! f t j"
                  " (+ (get x t) (logsumexp (build t (fn [d] (sin (get f d j)))))))) (sum f))", (3,)),
    "triangle": ("[x] (let [n (len x) s (zeros n)] (for [t (range n) u (range t)] (let [y (cumsum (build u (fn [k]"
                 " (sin (+ k (get s 0) (get s t))))))] (set-at! s t (+ (get x t) (sum (* y y)))))) (sum s))", ()),
    "middle": ("[x] (let [n (len x) s (zeros n)] (for [t (range n)] (let [y (cumsum (build (* t (- n t)) (fn [k] (sin"
               " (+ k (get s 0) (get s t))))))] (set-at! s t (+ (get x t) (sum (* y y)))))) (sum s))", ()),
    "window": ("[x #^ Int w] (let [n (len x) s (zeros n)] (for [t (range n)] (let [y (cumsum (cut s (max 0 (- t w))"
               " (min n (+ t w))))] (set-at! s t (+ (get x t) (sum (* y y)))))) (sum s))", (2,)),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", SIZED)
def test_memory_is_as_large_as_any_iteration_needs(name: str) -> None:
    """The host makes it once, before its loops; the emulator sees what is written beyond an array."""
    text, more = SIZED[name]
    f = hyad.value_and_grad(hyad.model(f"(defmodel f {text})", namespace={}), wrt="x")
    args = (np.random.default_rng(2).normal(size=6), *more)
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    assert all(set(launches.names_of(m.length)) <= set(program.known) for m in program.memory)
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for descending in (False, True):
        for got, want in zip(emulator.run(program, args, descending=descending), f(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@needs_ptx
def test_all_this_compiles() -> None:
    """For a GPU; indices of rows that are gathered go from thread to thread."""
    programs = [*gathered_programs()[0].values(), *own_programs()[0].values(), *direction_programs()[0].values()]
    for p in programs:
        ptx = nvrtc.compile_device(p.source, "compute_90", p.name, fast=True).decode()
        assert ("shfl.sync.idx" in ptx) == ("hyad_gather<" in p.source)
