"""Rows of neighbouring threads on a GPU, moved together through shared memory: run on the CPU in both orders of the
threads, on several grids, with and without it; what a missing barrier does; what is left as it is."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen import launches, nvrtc, parallel
from hyad.codegen.cuda import CudaKernel, print_cuda
from hyad.codegen.grid import print_grid
from hyad.codegen.host import print_host
from hyad.codegen.launches import Choose, CudaProgram
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.marshalling import take_apart
from hyad.model import Model
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
#: A model, the shapes of its arguments (with "int" before them: integers), and what goes through shared memory.
MODELS: dict[str, tuple[str, tuple[Any, ...], set[str]]] = {
    "both": ("[#^ (Mat n 5) a] (map (fn [p] [(* (get p 0) (get p 1)) (+ (get p 2) (sin (get p 3))) (get p 4) 2.0]) a)",
             ((300, 5),), {"a", "out"}),
    "cells": ("[#^ (Arr Real n m 3) a] (build [(len a) (len (get a 0))] (fn [i j] [(* (get a i j 0) (get a i j 1))"
              " (get a i j 2) (* (real i) (get a i j 2)) (+ (real j) (get a i j 1))]))", ((7, 13, 3),), {"a", "out"}),
    "cube": ("[#^ (Arr Real n k m 3) a] (build [(len a) (len (get a 0)) (len (get a 0 0))] (fn [i j k]"
             " (map (fn [x] (* x (real j))) (get a i j k))))", ((3, 4, 5, 3),), {"a", "out"}),
    "other": ("[#^ (Mat n 3) a #^ (Mat m 4) b] (build (len a) (fn [i] (if (< i (len b)) [(+ (get a i 0) (get b i 0))"
              " (* (get a i 1) (get b i 1)) (- (get a i 2) (get b i 2))] [0.0 1.0 2.0])))", ((100, 3), (70, 4)),
              {"out"}),
    "longer": ("[#^ (Mat n 3) a #^ (Mat m 4) b] (build (len a) (fn [i] [(* (get a i 0) (get b i 0)) (get b i 1)"
               " (* (get a i 1) (get b i 2) (get a i 2))]))", ((100, 3), (120, 4)), {"a", "b", "out"}),
    "beside": ("[#^ (Mat n 3) a] (let [f (fn [p] (* (get p 0) (sin (get p 1)) (get p 2)))]"
               " #((map (grad f) a) (sum (map f a))))", ((300, 3),), {"a", "t"}),
    "divided": ("[#^ (Mat n 8) a] (map (fn [p] (let [s (sum (map square p))] (map (fn [x] (/ x s)) p))) a)",
                ((100, 8),), {"a", "out"}),
    "picked": ("[#^ (Arr Int n 3) a #^ (Vec m) v] (map (fn [t] [(get v (get t 0)) (get v (get t 1)) (get v (get t 2))])"
               " a)", (("int", 100, 3), (40,)), {"a", "out"}),
    "blocks": ("[#^ (Mat n 6) a] (map (fn [p] ((jacobian (fn [p] [(* (get p 0) (exp (get p 1)) (get p 4))"
               " (sin (* (get p 2) (get p 3) (get p 5)))])) p)) a)", ((200, 6),), {"a", "out"}),
    "pairs": ("[#^ (Mat n 2) a] (map (fn [p] [(* (get p 0) (get p 1)) (sin (get p 0))]) a)", ((90, 2),), set()),
    "branch": ("[#^ (Vec n) x #^ (Mat n 4) a] (build (len x) (fn [i] (if (> (get x i) 1.0) (exp (sum (get a i)))"
               " (sin (get x i)))))", ((90,), (90, 4)), set()),
    "first": ("[#^ (Mat n 4) a] (build (len a) (fn [i] (sin (get a i 0))))", ((90, 4),), set()),
    "ahead": ("[#^ (Mat n 3) a] (build (- (len a) 1) (fn [i] (* (get a i 0) (get a (+ i 1) 1) (get a i 2))))",
              ((90, 3),), set()),
    "nested": ("[#^ (Mat n 60) a] (map (fn [p] (map (fn [x] (* x (get p 0))) (map sin p))) a)", ((70, 60),), set()),
    "wide": ("[#^ (Mat n 8) a] (map (fn [p] ((hessian (fn [q] (/ (exp (get q 0)) (+ 1.0 (dot q q))))) p)) a)",
             ((70, 8),), {"a", "out"}),
}  # fmt: skip
#: A model, the shapes of its arguments, and the arrays that are read for four places at once.
AHEAD: dict[str, tuple[str, tuple[Any, ...], set[str]]] = {
    "energy": ("[#^ (Vec n) v] (let [f (fn [x] (* x x (exp (- x))))] #((sum (map f v)) (map (D f) v)))", ((700,),),
               {"v"}),
    "table2": ("[#^ (Mat n m) a #^ (Mat n m) b] (map (fn [p q] (map (fn [x y] (+ x (* 2.0 y))) p q)) a b)",
               ((13, 29), (13, 29)), {"a", "b"}),
    "indexed": ("[#^ (Arr Real n m k) a] (build [(len a) (len (get a 0)) (len (get a 0 0))] (fn [i j l]"
                " (+ (get a i j l) (real (+ (* 100 i) (+ (* 10 j) l))))))", ((7, 5, 11),), {"a"}),
    "first": ("[#^ (Arr Real n m k) a #^ (Vec n) s] (build [(len a) (len (get a 0)) (len (get a 0 0))] (fn [i j l]"
              " (* (get s i) (get a i j l))))", ((7, 5, 11), (7,)), {"a"}),
    "second": ("[#^ (Arr Real n m k) a #^ (Mat m k) s] (build [(len a) (len (get a 0)) (len (get a 0 0))] (fn [i j l]"
               " (* (get s j 0) (get a i j l))))", ((7, 5, 11), (5, 11)), {"a"}),
    "third": ("[#^ (Arr Real n 50 60) a #^ (Vec 60) s] (build [(len a) 50 60] (fn [i j l]"
              " (* (get a i j l) (get s l))))", ((3, 50, 60), (60,)), {"a"}),
    "lengths": ("[#^ (Vec n) x #^ (Vec m) y] (build (len x) (fn [i] (* (get x i) (get y i))))", ((300,), (310,)),
                {"x", "y"}),
    "counted": ("[#^ (Vec n) x #^ (Arr Int n) at #^ (Vec m) w] (scatter-add w at x)", ((300,), ("int", 300), (40,)),
                {"x", "at"}),
    "many": ("[#^ (Vec n) p #^ (Vec n) q #^ (Vec n) r #^ (Vec n) s #^ (Vec n) t] (map (fn [a b c d e] (+ a b c d e))"
             " p q r s t)", ((300,),) * 5, {"p", "q", "r", "s"}),
    "beside-itself": ("[#^ (Vec n) x] (build (- (len x) 1) (fn [i] (- (get x (+ i 1)) (get x i))))", ((90,),), set()),
    "neighbours": ("[#^ (Vec m) x #^ (Vec n) y] (build (len y) (fn [i] (* (get y i) (+ (get x i) (get x (+ i 1))"
                   " (get x (+ i 2))))))", ((302,), (300,)), set()),  # more of these
    "long": ("[#^ (Vec n) x] (map (fn [a] (sin (exp (sin (exp (sin (exp (sin (exp (sin a)))))))))) x)", ((90,),),
             set()),
    "in-loops": ("[#^ (Vec n) x] (map (fn [a] (ifold (fn [s k] (+ (* s a) 1.0)) a 30)) x)", ((90,),), set()),
    "maybe": ("[#^ (Vec n) x #^ (Vec n) y] (build (len x) (fn [i] (if (> (get x i) 1.0) (exp (get y i)) 0.0)))",
              ((90,), (90,)), {"x"}),
}  # fmt: skip
ALL = MODELS | AHEAD
SINGLE = ("both", "blocks", "divided")  # in single precision too


def arguments(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(name))
    shapes = ALL[name][1]
    return [rng.integers(0, 40, s[1:]) if s[0] == "int" else rng.uniform(0.5, 2.0, s) for s in shapes]


@cache
def model(name: str) -> Model:
    return hyad.model(f"(defmodel {name} {ALL[name][0]})", namespace={})


def printed(name: str, dtype: str = "f64", off: tuple[str, ...] = ()) -> CudaProgram:
    f = model(name)
    program = f.optimised(f.specs(arguments(name)), "cuda", blas=True)
    with without(off):
        return print_grid(program, dtype=dtype, name=f"{name}_{dtype}{len(off)}")


def staged(text: str) -> set[str]:
    """The arrays that have tiles."""
    return set(re.findall(r"__shared__ [a-z ]+ (\w+)_tile\[", text))


@cache
def programs() -> tuple[dict[tuple[str, str, bool], CudaProgram], Emulator]:
    keys = [(name, "f64", False) for name in MODELS] + [(name, "f64", True) for name in ("both", "longer")]
    keys += [(name, "f32", False) for name in SINGLE]
    found = {key: printed(key[0], key[1], ("staging",) * key[2]) for key in keys}
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


def wanted(name: str) -> list[np.ndarray]:
    return memoised.results(model(name), arguments(name))


@pytest.mark.some(6)
@pytest.mark.parametrize("key", [*((name, "f64", False) for name in MODELS), ("both", "f64", True),
                                 ("longer", "f64", True), *((name, "f32", False) for name in SINGLE)])  # fmt: skip
def test_rows_are_the_same(key: tuple[str, str, bool]) -> None:
    found, emulator = programs()
    name, dtype, off = key
    assert staged(found[key].source) == (set() if off else MODELS[name][2])
    for shape in ({}, {"blocks": 2, "block": 32, "descending": True}, {"blocks": 3, "block": 64}):
        for got, want in zip(emulator.run(found[key], arguments(name), **shape), wanted(name), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12 if dtype == "f64" else 1e-5)


WITHOUT_ENGINE = "#undef HYAD_BULK\n"  # as on GPUs that have no copy engine


def broken(source: str, number: int) -> str:
    """Without one of the barriers."""
    parts = source.split("__syncwarp();")
    return "__syncwarp();".join(parts[:number]) + ";" + "__syncwarp();".join(parts[number:])


@pytest.mark.parametrize("name", ["both", "made"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_barrier_of_a_warp_is_noticed(name: str, number: int) -> None:
    """The one before rows are read, or written again, and the one before they are taken away."""
    whole = printed("both")
    args = arguments("both")
    if name != "both":  # nothing is read by rows: the first barrier is there for what is written next
        f = hyad.model("(defmodel made [#^ (Vec n) x] (map (fn [a] [a (* 2.0 a) (* a a) 1.0]) x))", namespace={})
        args = [np.linspace(1.0, 2.0, 300)]
        whole = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
        want = hyad.compile(f, args=args)(*args)
    else:
        (want,) = wanted("both")
    assert whole.source.count("__syncwarp();") == 2
    changed = dataclasses.replace(whole, source=WITHOUT_ENGINE + broken(whole.source, number))
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    found = [emulator.run(changed, args, blocks=1, block=32, descending=d)[0] for d in (False, True)]
    assert any(not np.allclose(x, want) for x in found)


def test_without_a_copy_engine_rows_are_the_same() -> None:
    """On GPUs that have none the threads of a warp move the same rows."""
    names = ("both", "longer", "picked")
    plain = [dataclasses.replace(p, source=WITHOUT_ENGINE + p.source) for p in map(printed, names)]
    for name, program in zip(names, plain):
        assert "hyad_fetch<" in program.source
        emulator = Emulator([program], gpu.cpu_compiler() or ())
        for got, want in zip(emulator.run(program, arguments(name), blocks=2, block=64), wanted(name), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("wait", ["hyad_arrived(&arrived[threadIdx.x/32], turn++ & 1);", "hyad_sent();"])
def test_the_copy_engine_is_waited_for(wait: str) -> None:
    """Before what it has fetched is read, and before rows are made where it still reads those sent before."""
    program, args, (want,) = printed("both"), arguments("both"), wanted("both")
    parts = program.source.partition("__global__")
    assert parts[2].count(wait) == (1 if "arrived" in wait else 2)
    changed = dataclasses.replace(program, source=parts[0] + parts[1] + parts[2].replace(wait, "(void)turn;", 1))
    emulator = Emulator([changed], gpu.cpu_compiler() or ())
    found = [emulator.run(changed, args, blocks=1, block=32, descending=d)[0] for d in (False, True)]
    assert any(not np.allclose(x, want) for x in found)


def test_a_failed_check_waits_for_nobody() -> None:
    """A thread whose subscript is wrong still moves rows with the others."""
    found, emulator = programs()
    a, v = arguments("picked")
    for row in (0, 31, 57, 99):
        bad = a.copy()
        bad[row, 1] = 40
        for descending in (False, True):
            with pytest.raises(BoundsError):
                emulator.run(found["picked", "f64", False], [bad, v], descending=descending)


@needs_ptx
def test_the_copy_engine_is_used_where_there_is_one() -> None:
    """And its instructions are ones that the assembler takes."""
    source = printed("both").source
    new, old = (nvrtc.compile_device(source, arch, "both").decode() for arch in ("compute_90", "compute_80"))
    for part in ("cp.async.bulk.shared", "cp.async.bulk.global", "mbarrier.try_wait", "fence.proxy.async"):
        assert part in new and part not in old
    assert nvrtc.compile_device(source, "sm_90", "both")[:4] == b"\x7fELF"


@pytest.mark.some(10)
@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
@pytest.mark.parametrize("rows", ["(sum a)", "[a0 (* 2.0 a0) (sin a0)]", "(map sin a)"])
def test_nvcc_has_nothing_to_say_of_rows(rows: str, arch: str, tmp_path: Path) -> None:
    """Of rows that are fetched, sent, and both, with a copy engine and without one."""
    f = hyad.model(f"(defmodel rows [#^ (Vec 5) a #^ Real a0] {rows})", namespace={})
    path, _ = hyad.emit(f, tmp_path / "rows.cu", target="cuda")
    flags = [f"-arch={arch}", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-o", str(tmp_path / "rows.o")]
    done = subprocess.run([nvrtc.nvcc(), *flags, "-c", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_words_say_which_rows() -> None:
    assert any("rows of a and out through shared memory" in note for _, note in printed("both").notes)


# ---------------------------------------------------------------------------------- elements read ahead


@cache
def ahead() -> tuple[dict[tuple[str, bool], CudaProgram], Emulator]:
    found = {(name, off): printed(name, off=("ahead",) * off) for name in AHEAD for off in (False, True)}
    return found, Emulator([*found.values()], gpu.cpu_compiler() or ())


@pytest.mark.parametrize("name", AHEAD)
def test_what_is_read_ahead(name: str) -> None:
    """The results are C's, and sums are the same to the last bit as without it: each thread has its places in their
    order."""
    found, emulator = ahead()
    assert set(re.findall(r"(\w+)_ahead\[4\];", found[name, False].source)) == AHEAD[name][2]
    assert "ahead" not in found[name, True].source
    for shape in ({}, {"blocks": 2, "block": 32, "descending": True}, {"blocks": 3, "block": 64}):
        got, plain = (emulator.run(found[name, off], arguments(name), **shape) for off in (False, True))
        for x, y, want in zip(got, plain, wanted(name), strict=True):
            np.testing.assert_allclose(x, want, rtol=1e-12)
            assert np.array_equal(x, y)


CARRIED = {
    "table2": [],
    "indexed": [("at - at1*k >= k", "at1"), ("at1 - i*m >= m", "i")],
    "first": [("at - at1*k >= k", "at1"), ("at1 - i*m >= m", "i")],
    "third": [("at - at1*60 >= 60", "at1")],
}


@pytest.mark.parametrize("name", CARRIED)
def test_indices_are_carried_from_place_to_place(name: str) -> None:
    """No place divides: a thread does before its first one, where an index is needed at all, and its step."""
    before, _, loop = ahead()[0][name, False].source.partition("__global__")[2].partition("for (")
    assert re.findall(r"if \((.*)\) (\w+)\+\+;", loop) == CARRIED[name]
    assert re.findall(r"(\w+)_step = (?:hyad_quotient|.*/60;)", before) == [above for _, above in CARRIED[name]]
    assert "quotient" not in loop and "/60" not in loop


EDGES = [(5, 2, 0), (1, 1, 1), (1, 3, 1), (5, 17, 3), (2, 64, 2), (257, 1, 1), (1, 1, 257), (1, 129, 4)]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_indices_that_are_carried_are_right_at_the_edges(dtype: str) -> None:
    """With blocks of 32 threads in one, two and three of them: of none, one and several rounds of four places."""
    programs = {name: printed(name, dtype) for name in ("table2", "indexed", "first", "second")}
    emulator = Emulator([*programs.values()], gpu.cpu_compiler() or ())
    rng = np.random.default_rng(3)
    for n, m, k in EDGES:
        a = rng.normal(size=(n, m, k))
        s, q = rng.normal(size=n), rng.normal(size=(m, k))
        i, j, l = np.indices(a.shape)  # noqa: E741
        cases = {
            "table2": ([a.reshape(n, m * k), a.reshape(n, m * k) + 1], (3 * a + 2).reshape(n, m * k)),
            "indexed": ([a], a + 100 * i + 10 * j + l),
            "first": ([a, s], s[:, None, None] * a),
            "second": ([a, q], q[:, :1] * a if m * k else a),
        }
        for name, (args, want) in cases.items():
            for blocks, descending in ((1, False), (2, True), (3, False)):
                (got,) = emulator.run(programs[name], args, blocks=blocks, block=32, descending=descending)
                rtol = 1e-12 if dtype == "f64" else 1e-5
                np.testing.assert_allclose(got.reshape(want.shape), want, rtol=rtol, atol=rtol)


def test_threads_that_divide_before_their_first_place_have_several_rounds() -> None:
    found = ahead()[0]
    (plain,), (carried,) = ([s for s in found[name, False].steps if isinstance(s, launches.Launch)]
                            for name in ("table2", "indexed"))  # fmt: skip
    known = {"n": 1000, "m": 1000, "k": 100}
    assert launches.value(plain.blocks, {"n": 1000, "m": 100_000}) == 10**8 // (4 * plain.block) + 1
    assert launches.value(carried.blocks, known) == 10**8 // (16 * carried.block) + 1


@needs_ptx
def test_loads_come_before_what_is_computed() -> None:
    """Four of them, and no array of a thread's in memory."""
    program = ahead()[0]["energy", False]
    ptx = nvrtc.compile_device(program.source, "compute_90", "energy").decode()
    kernel = ptx.partition(f".entry {program.kernels[0]}(")[2].partition(".entry ")[0]
    moves = re.findall(r"\b(ld|st)\.global", kernel)
    assert ".local" not in kernel and moves[:5] == ["ld"] * 4 + ["st"]


# -------------------------------------------------------------------------------- few rows that are long

LONG = {
    "norms": ("[#^ (Mat n m) a] (map (fn [r] (sqrt (sum (map square r)))) a)", True),
    "ranges": ("[#^ (Mat n m) a] (map (fn [r] (- (max r) (min r))) a)", True),
    "moments": ("[#^ (Mat n m) a #^ (Vec n) s] (build (len a) (fn [i] (let [p (fold (fn [p x] #((+ (fst p) (* x (get s"
                " i))) (+ (snd p) (* x x)))) #((get s i) 1.0) (get a i))] (- (snd p) (square (fst p))))))", True),
    "truths": ("[#^ (Mat n m) a] (map (fn [r] (fold (fn [s x] (and s (< x 6.0))) True r)) a)", True),
    "wholes": ("[#^ (Arr Int n m) a] (map (fn [r] (- (* 2 (sum r)) (max r))) a)", True),
    "places": ("[#^ (Mat n m) a] (map argmax a)", False),
}  # fmt: skip


def long_rows(name: str, n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n + m)
    a = rng.integers(-9, 9, (n, m)) if name == "wholes" else rng.normal(size=(n, m))
    return [a, rng.normal(size=n)] if name == "moments" else [a]


def test_few_long_rows_have_several_blocks_each() -> None:
    """Two kernels where the host finds that rows are few and long, and one as before where they are not."""
    programs, called = {}, {}
    for name, (text, several) in LONG.items():
        f = hyad.model(f"(defmodel {name} {text})", namespace={})
        args = long_rows(name, 2, 3)
        programs[name] = print_grid(f.optimised(f.specs(args), "cuda", blas=True), name=name)
        called[name] = f
        choices = [s for s in programs[name].steps if isinstance(s, Choose)]
        assert len(choices) == several, name
        if several:
            sizes = ((4, 10**7), (4, 9000), (500, 10**7))
            assert [launches.value(choices[0].cond, {"n": n, "m": m}) for n, m in sizes] == [1, 0, 0]
            blocks = launches.value(choices[0].then[0].blocks, {"n": 4, "m": 10**7})
            for step in choices[0].then:  # sizes that are not needed are computed as well
                assert all(launches.value(a, {"n": 0, "m": 0}) >= 0 for a in step.args if isinstance(a, (str, tuple)))
            assert 1500 < blocks < 1700 and len(choices[0].orelse) == 1
    emulator = Emulator([programs[name] for name, (_, several) in LONG.items() if several], gpu.cpu_compiler() or ())
    for name, (_, several) in LONG.items():
        for n, m in ((3, 17001), (1, 40000), (2, 5), (0, 17001)) if several else ():
            args = long_rows(name, n, m)
            out = memoised.results(called[name], args)
            for descending in (False, True):
                for got, want in zip(emulator.run(programs[name], args, descending=descending), out, strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-10)


#: A model, and what a team reads ahead of the pieces of its rows.
PIECES = {
    "softmax": ("[#^ (Mat n m) a] (map softmax a)", ["a", "a"]),
    "moments": (LONG["moments"][0], ["a"]),
    "weighted": ("[#^ (Mat n m) a #^ (Mat n m) b #^ (Vec m) w] (map (fn [p q] (sum (map (fn [x y z] (* x (exp y) z))"
                 " p q w))) a b)", ["a", "b"]),  # one more would take registers that there are not
    "shifted": ("[#^ (Mat n m) a] (build (len a) (fn [i] (sum (build (- (len (get a 0)) 1) (fn [j]"
                " (* (get a i j) (get a i (+ j 1))))))))", ["a"]),
    "picked": ("[#^ (Arr Int n m) t #^ (Vec m) v] (map (fn [r] (sum (map (fn [j] (get v j)) r))) t)", ["t"]),
    "placed": ("[#^ (Mat n m) a] (build (len a) (fn [i] (ifold (fn [s j] (+ s (* (real (* i j)) (get a i j)))) 0.5"
               " (len (get a 0)))))", ["a"]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_pieces_of_long_rows_are_read_ahead(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of no element, of some, of four for each thread of a block, and of one less and one more. Each thread has
    its elements in their order, so that sums are the same to the last bit as without it."""
    models = {name: hyad.model(f"(defmodel f {text})", namespace={}) for name, (text, _) in PIECES.items()}
    programs: dict[tuple[str, int, bool], CudaProgram] = {}
    for name, piece, off in itertools.product(models, (1, 1000), (False, True)):
        monkeypatch.setattr(parallel, "PIECE", piece)
        with without(("ahead",) * off):
            whole = models[name].optimised(models[name].specs(None), "cuda", blas=True)
            program = programs[name, piece, off] = print_grid(whole, dtype=dtype, name=f"f{len(programs)}")
        body = program.source[program.source.index("_pieces(") :].partition("\n}\n")[0]
        assert re.findall(r"(\w+)_ahead\[4\];", body) == ([] if off else PIECES[name][1])
    emulator = Emulator([*programs.values()], gpu.cpu_compiler() or ())
    real = np.float64 if dtype == "f64" else np.float32
    sizes = [(1, m) for m in (4, 7)] + [(1000, m) for m in (2044, 2045, 2046, 2047, 2048, 2049, 3200)]
    for name, (piece, m) in itertools.product(models, sizes):
        rng = np.random.default_rng(m)
        a, b, w = (rng.normal(size=shape).astype(real) for shape in ((3, m), (3, m), m))
        t = rng.integers(0, m, (3, m))
        args = {"moments": [a, w[:3]], "weighted": [a, b, w], "picked": [t, w]}.get(name, [a])
        exact = [x.astype(float) if x.dtype == real else x for x in args]
        want = np.asarray(memoised.compile(models[name], args=exact)(*exact))
        for descending in (False, True):
            got, plain = (emulator.run(programs[name, piece, off], args, descending=descending)[0]
                          for off in (False, True))  # fmt: skip
            assert np.array_equal(got, plain)
            np.testing.assert_allclose(got, want, rtol=0, atol=m * np.finfo(real).eps * np.max(np.abs(want)))
        if name == "picked":
            t[1, m // 2] = m
            for descending in (False, True):
                with pytest.raises(BoundsError):
                    emulator.run(programs[name, piece, False], args, descending=descending)


def soft(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(axis=1, initial=-np.inf, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def unit(a: np.ndarray, b: np.ndarray) -> tuple[Any, np.ndarray]:
    s = np.sqrt((a * a).sum(axis=1, keepdims=True))
    return (a * b / s).sum(), b / s - a * (a * b).sum(axis=1, keepdims=True) / s**3


def soft_dot(a: np.ndarray, b: np.ndarray) -> tuple[Any, np.ndarray]:
    p = soft(a)
    return (b * p).sum(), p * (b - (b * p).sum(axis=1, keepdims=True))


NORMAL = """(let [mu (mean r) s (sqrt (+ 1e-5 (mean (map (fn [x] (square (- x mu))) r))))]
  (map (fn [x] (/ (- x mu) s)) r))"""
UNIT = "(let [s (norm r)] (dot q (map (fn [x] (/ x s)) r)))"
#: What is done with each of some rows in several passes, in NumPy, and how many kernels that is of few long rows, of
#: many, and of rows that do not fit into shared memory.
PASSES: dict[str, tuple[str, Any, tuple[int, int, int]]] = {
    "softmax": ("[#^ (Mat n m) a] (map softmax a)", soft, (3, 1, 3)),
    "logsumexp": ("[#^ (Mat n m) a] (map logsumexp a)", lambda a: np.logaddexp.reduce(a, axis=1), (2, 1, 1)),
    "normal": (f"[#^ (Mat n m) a] (map (fn [r] {NORMAL}) a)",
               lambda a: (a - a.mean(axis=1, keepdims=True)) / np.sqrt(1e-5 + a.var(axis=1, keepdims=True)), (5, 1, 1)),
    "soft-dot'": ("[#^ (Mat n m) a #^ (Mat n m) b] (sum (map (fn [r q] (dot q (softmax r))) a b))", soft_dot,
                  (7, 2, 7)),
    "unit'": (f"[#^ (Mat n m) a #^ (Mat n m) b] (sum (map (fn [r q] {UNIT}) a b))", unit, (5, 2, 2)),
    "logsumexp'": ("[#^ (Mat n m) a] (sum (map logsumexp a))",
                   lambda a: (np.logaddexp.reduce(a, axis=1).sum(), soft(a)), (4, 2, 4)),
    "dear": ("[#^ (Mat n m) a] (map (fn [r] (let [f (fn [x] (sin (exp (sin (exp x))))) e (map (fn [x] (f (f x))) r) s"
             " (sum e)] (map (fn [x] (/ x s)) e))) a)", None, (1, 1, 1)),
}  # fmt: skip


def passes_model(name: str) -> Model:
    f = hyad.model(f"(defmodel f {PASSES[name][0]})", namespace={})
    return hyad.value_and_grad(f, wrt="a") if name.endswith("'") else f


def taken(steps: Any, known: dict[str, int]) -> list[launches.Launch]:
    """The launches for some sizes."""
    out = []
    for s in steps:
        if isinstance(s, Choose):
            out += taken(s.then if launches.value(s.cond, known) else s.orelse, known)
        elif isinstance(s, launches.Launch):
            out.append(s)
    return out


def test_few_long_rows_take_their_passes_in_pieces() -> None:
    """Each pass has kernels of its own, of many blocks, and no row is stored that is no result; where rows are many a
    team has each, unless it would have to store it."""
    programs = {}
    for name, (_, _, counts) in PASSES.items():
        f = passes_model(name)
        program = programs[name] = print_grid(f.optimised(f.specs(None), "cuda", blas=True), name=f"f{len(programs)}")
        for (n, m), many in zip(((4, 10**7), (50_000, 9000), (500, 10**6)), counts, strict=True):
            steps = taken(program.steps, {"n": n, "m": m})
            assert len(steps) == many, (name, n, m)
            if many > 1 and n == 4:
                blocks = [launches.value(s.blocks, {"n": n, "m": m}) for s in steps]
                assert all(b > 1000 for b in blocks[: 4 if many > 4 else 1 : 2]), name
    emulator = Emulator(list(programs.values()), gpu.cpu_compiler() or ())
    for name, (_, numpy, _) in PASSES.items():
        for n, m in ((3, 17001), (1, 40000), (2, 5), (0, 17001)) if numpy is not None else ():
            rng = np.random.default_rng(n + m)
            args = [rng.normal(size=(n, m)) for _ in range(1 + ("b]" in PASSES[name][0]))]
            want = numpy(*args)
            for descending in (False, True):
                got = emulator.run(programs[name], args, descending=descending)
                for x, y in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                    scale = np.max(np.abs(y), initial=1e-300)
                    np.testing.assert_allclose(x, y, rtol=0, atol=(2 * m + 32) * np.finfo(float).eps * scale)


SPECIAL = [np.inf, -np.inf, np.nan, 700.0, -700.0]


@pytest.mark.some(2)
@pytest.mark.parametrize("form", ["softmax", "logsumexp", "log-softmax"])
def test_exponentials_below_the_largest_element_of_a_long_row(form: str) -> None:
    """A row is read once for both, in pieces: also where some of it, or all, is infinite or no number."""
    f = hyad.model(f"(defmodel f [#^ (Mat n m) a] (map {form} a))", namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    with without(("online",)):
        off = print_grid(f.optimised(f.specs(None), "cuda", blas=True), name="off")
    known = {"n": 3, "m": 10**6}
    assert len(taken(program.steps, known)) == len(taken(off.steps, known)) - 2
    emulator = Emulator([program, off], gpu.cpu_compiler() or ())
    rows = [np.random.default_rng(k).normal(size=17003) * 30 for k in range(9)]
    rows[1][:] = -np.inf
    rows[2][:9000] = -np.inf
    rows[3][9000:] = -np.inf
    for row, x in zip(rows[4:], SPECIAL):
        row[[5, 12345]] = x
    a = np.stack(rows)
    for descending in (False, True):
        (got,), (want,) = (emulator.run(p, [a], descending=descending) for p in (program, off))
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300)


def test_the_cross_entropy_of_long_rows() -> None:
    """What is folded over the rows comes behind the passes over them."""
    text = "[#^ (Mat n m) a #^ (Arr Int n) t] (sum (map (fn [r k] (- (logsumexp r) (get r k))) a t))"
    f = hyad.value_and_grad(hyad.model(f"(defmodel f {text})", namespace={}), wrt="a")
    program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
    a, t = np.random.default_rng(4).normal(size=(3, 17003)) * 30, np.array([5, 0, 17002])
    want = soft(a)
    want[range(3), t] -= 1
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for descending in (False, True):
        value, slope = emulator.run(program, [a, t], descending=descending)
        np.testing.assert_allclose(value, (np.logaddexp.reduce(a, axis=1) - a[range(3), t]).sum(), rtol=1e-12)
        np.testing.assert_allclose(slope, want, atol=1e-12)


# -------------------------------------------------------------------------------------------- batches

CAMERA = """(defmodel seen [#^ (Vec 7) p #^ (Vec 3) x #^ (Vec 2) f]
  (let [d (+ (* (get p 0) (get x 0)) (* (get p 1) (get x 1)) (* (get p 2) (get x 2)) (get p 3))]
    [(* (get f 0) (/ (* (get p 4) (get x 0)) d)) (* (get f 1) (/ (* (get p 5) (get x 1)) (+ d (get p 6))))]))"""


@cache
def camera(dtype: str = "f64", shared: tuple[str, ...] = ()) -> CudaKernel:
    f = hyad.jacobian(hyad.model(CAMERA, namespace={}), wrt="p")
    return print_cuda(f.optimised(f.specs()), dtype=dtype, shared=shared)


@pytest.mark.some(2)
@pytest.mark.parametrize("shared", [(), ("x",)])
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_rows_of_a_batch(dtype: str, shared: tuple[str, ...]) -> None:
    kernel = camera(dtype, shared)
    assert kernel.warps and staged(kernel.source) == {"p", "x", "out"} - {*shared}
    rng = np.random.default_rng(0)
    args = [rng.uniform(0.5, 2.0, (133, n)) for n in (7, 3, 2)]
    if shared:
        args[1] = args[1][0]
    f = hyad.jacobian(hyad.model(CAMERA, namespace={}), wrt="p")
    want = np.stack([f(p, args[1] if shared else args[1][k], args[2][k]) for k, p in enumerate(args[0])])
    for grid, block, descending in ((None, None, False), (2, 32, True), (1, 96, False), (3, 64, True)):
        (got,) = gpu.run_on_cpu(kernel, *args, grid=grid, block=block, descending=descending)
        np.testing.assert_allclose(got, want, rtol=1e-12 if dtype == "f64" else 1e-4)


def test_wide_rows_have_smaller_blocks() -> None:
    """47 numbers in double precision for each of 128 threads, and 93 for each of 64."""
    for width, block, rows in ((47, 128, {"out"}), (49, 64, {"out"}), (93, 64, {"out"}), (96, 128, set())):
        f = hyad.model(f"(defmodel copies [x] (build {width} (fn [k] (* x (real k)))))", namespace={})
        program = f.optimised(f.specs())
        kernel = print_cuda(program)
        assert kernel.block == block and staged(kernel.source) == rows
        x = np.linspace(1.0, 2.0, 150)
        assert np.array_equal(gpu.run_on_cpu(kernel, x)[0], np.outer(x, np.arange(width)))
    f = model("wide")
    (launch,) = print_grid(f.optimised(f.specs(arguments("wide")), "cuda", blas=True)).steps
    assert launch.block == 64


def test_rows_of_a_batch_stay_where_they_are() -> None:
    """With a thread's memory in one piece blocks may have any number of threads; ``without`` is obeyed."""
    f = hyad.jacobian(hyad.model(CAMERA, namespace={}), wrt="p").without(("staging",))
    kernel = gpu.CudaModel(f.optimised(f.specs(), "cuda"), off=f.off).batch
    assert not kernel.warps and "__syncwarp" not in kernel.source and "__launch_bounds__" not in kernel.source
    text = (
        "(defmodel long [#^ (Vec 300) v x y] (let [s (fold + 0.0 (ifold (fn [u k] (map * u v)) v 5))] [(* x s) y s]))"
    )
    f = hyad.jacobian(hyad.model(text, namespace={}), wrt="v")
    with without(("striding",)):
        kernel = print_cuda(f.optimised(f.specs()))
    assert kernel.workspace is not None and not kernel.warps and "__syncwarp" not in kernel.source


@needs_ptx
def test_tiles_and_folds_fit_into_a_block() -> None:
    """The widest rows beside folds of all kinds."""
    folds = ("(sum v)", "(prod v)", "(max v)", "(min v)", "(argmax v)", "(argmin v)")
    text = f"(let [v (map (fn [r] (* (get r 0) (get r 1))) a)] #((map (fn [r] (map sin r)) a) {' '.join(folds)}))"
    for width in (22, 23):
        f = hyad.model(f"(defmodel full [#^ (Mat n {width}) a] {text})", namespace={})
        program = print_grid(f.optimised(f.specs(), "cuda", blas=True))
        assert nvrtc.compile_device(program.source, "sm_80", "full")[:4] == b"\x7fELF"


@needs_ptx
def test_stores_of_a_warp_are_together() -> None:
    """All stores to memory are those of the loop that writes tiles out, 256 bytes from one to the next."""
    ptx = nvrtc.compile_device(camera().source, "compute_90", "seen").decode()
    offsets = [int(n or 0) for n in re.findall(r"st\.global\.f64\s+\[%rd\d+(?:\+(\d+))?\]", ptx)]
    assert offsets and set(offsets) <= {256 * k for k in range(8)} and "st.shared" in ptx


@pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
def test_what_only_the_pieces_of_rows_need_is_not_handed_to_their_sums() -> None:
    """The emulator's compiler tells of a parameter that a kernel does not read."""
    text = "[#^ (Mat n m) a #^ (Vec n) x] (map (fn [r w] (sum (map (fn [e] (* w e e)) r))) a x)"
    model = hyad.model(f"(defmodel weighted {text})", namespace={})
    program = print_grid(model.optimised(model.specs(None), "cuda", blas=True))
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    a, x = np.random.default_rng(1).normal(size=(3, 20000)), np.array([1.0, -2.0, 0.5])
    (got,) = emulator.run(program, (a, x))
    np.testing.assert_allclose(got, x * (a * a).sum(1), rtol=1e-12)


# -------------------------------------------------------------------------- fewer places than there is room for

#: A model, the shapes of its arguments at few places p and folds of n, what it is differentiated by, and the kernels
#: that are launched at 5 and 20,000, at 20,000 and 100, and at a million and 100.
FEW: dict[str, tuple[str, Any, Any, tuple[int, int, int]]] = {
    "prices": ("[#^ (Vec p) k #^ (Vec n) z v] (map (fn [k] (mean (map (fn [e] (max 0.0 (- (exp (* v e)) k))) z))) k)",
               lambda p, n: ((p,), (n,), 0.3), None, (3, 2, 2)),
    "prices'": ("[#^ (Vec p) k #^ (Vec n) z v] (sum (map (fn [k] (mean (map (fn [e] (max 0.0 (- (exp (* v e)) k))) z)))"
                " k))", lambda p, n: ((p,), (n,), 0.3), ("k", "v"), (3, 3, 3)),
    "integrals": ("[#^ (Vec p) a #^ Int n] (map (fn [b] (ifold (fn [s j] (+ s (exp (* b (real j))))) 0.0 n)) a)",
                  lambda p, n: ((p,), n), None, (2, 1, 1)),
    "sums": ("[#^ (Mat n p) a] (np.sum a :axis 0)", lambda p, n: ((n, p),), None, (2, 1, 1)),
    "cubes": ("[#^ (Arr Real n p m) a] (np.sum a :axis 0)", lambda p, n: ((n, p, 3),), None, (2, 1, 1)),
    "largest": ("[#^ (Mat n p) a] (np.max a :axis 0)", lambda p, n: ((n, p),), None, (2, 1, 1)),
    "spread": ("[#^ (Mat n p) a] (np.var a :axis 0)", lambda p, n: ((n, p),), None, (4, 1, 1)),
    "places": ("[#^ (Mat n p) a] (map argmax (transpose a))", lambda p, n: ((n, p),), None, (1, 1, 1)),
    "checked": ("[#^ (Vec p) q #^ (Vec n) v #^ (Arr Int m) at] (map (fn [a] (ifold (fn [s j] (+ s (* a (get v (get at"
                " (% j (len at))))))) 0.0 (len v))) q)", lambda p, n: ((p,), (n,), ("int", 3)), None, (2, 1, 1)),
}  # fmt: skip


def few_model(name: str) -> Model:
    text, _, wrt, _ = FEW[name]
    f = hyad.model(f"(defmodel f {text})", namespace={})
    return hyad.grad(f, wrt=wrt) if wrt else f


def few_arguments(name: str, p: int, n: int) -> list[Any]:
    rng = np.random.default_rng(p + n)
    args: list[Any] = []
    for s in FEW[name][1](p, n):
        if isinstance(s, tuple):
            args.append(rng.integers(0, max(n, 1), s[1]) if s[0] == "int" else rng.normal(size=s))
        else:
            args.append(s)
    if name == "integrals":
        args[0] = args[0] / max(n, 1)
    return args


@cache
def few_plans() -> tuple[dict[str, CudaProgram], Emulator]:
    made = {}
    for k, name in enumerate(FEW):
        f = few_model(name)
        spread = f.optimised(f.specs(None), "cuda", blas=True)
        made[name] = print_grid(spread, name=f"f{k}", deterministic=True)
    return made, Emulator(list(made.values()), gpu.cpu_compiler() or ())


@pytest.mark.parametrize("name", FEW)
def test_few_places_have_more_threads_each(name: str) -> None:
    """A team has each place, or a column has pieces, where there are few places, and none where there are many."""
    program = few_plans()[0][name]
    counts = []
    for p, n in ((5, 20_000), (20_000, 100), (10**6, 100)):
        steps = taken(program.steps, {"p": p, "n": n, "m": 3})
        counts.append(len(steps))
        threads = max(launches.value(s.blocks, {"p": p, "n": n, "m": 3}) * s.block for s in steps[:2])
        assert threads >= min(p * 3, 5 * 256), (p, n)
    assert tuple(counts) == FEW[name][3]


def test_when_places_are_few() -> None:
    """Columns up to 4,095 from 257 elements on, whose pieces are a launch more; others up to 32,767 from 65 on."""
    for name, points in (
        ("sums", {(4095, 257): 1, (4096, 257): 0, (5, 256): 0}),
        ("integrals", {(32_767, 65): 1, (32_768, 65): 0, (5, 64): 0}),
    ):
        (choice,) = (s for s in few_plans()[0][name].steps if isinstance(s, Choose))
        assert {(p, n): launches.value(choice.cond, {"p": p, "n": n}) for p, n in points} == points
    teams = [taken(choice.then, {"p": p, "n": 2000})[0].args[-1] for p in (4095, 4096)]
    assert [launches.value(team, {"p": p, "n": 2000}) for team, p in zip(teams, (4095, 4096))] == [256, 32]


@pytest.mark.some(3)
@pytest.mark.parametrize("name", FEW)
def test_few_places_compute_the_same(name: str) -> None:
    """In both orders of the threads, to the last bit; on each side of where the host chooses, and of nothing."""
    plans, emulator = few_plans()
    f = few_model(name)
    for p, n in ((1, 1), (0, 300), (4, 64), (4, 65), (3, 256), (3, 257), (33, 1000), (2, 17_001), (4100, 70)):
        args = few_arguments(name, p, n)
        program = f.program(f.specs(args))
        flat: list[Any] = []
        want: list[Any] = []
        for tree, a in zip(program.ins, args):
            take_apart(tree, a, flat)
        take_apart(program.out, memoised.compile(f, args=args)(*args), want)
        found = [emulator.run(plans[name], flat, descending=down) for down in (False, True)]
        for got, again, y in zip(*found, want, strict=True):
            np.testing.assert_allclose(got, y, rtol=1e-9, atol=1e-9 * np.max(np.abs(y), initial=1e-300))
            assert np.array_equal(got, again)


def test_an_index_that_is_none_is_told_by_a_team() -> None:
    plans, emulator = few_plans()
    args = [*few_arguments("checked", 3, 600)[:2], np.array([0, 600, 1])]
    for descending in (False, True):
        with pytest.raises(BoundsError):
            emulator.run(plans["checked"], args, descending=descending)


def test_what_is_known_to_be_few_has_no_other_kernels() -> None:
    """Nor has what is known to be many, or short."""
    text = "[#^ (Vec {}) q #^ (Vec {}) x] (map (fn [a] (sum (map (fn [b] (exp (- (square (- a b))))) x))) q)"
    for p, n, few in ((7, 9000, True), (7, 50, False), (40_000, 9000, False)):
        f = hyad.model(f"(defmodel f {text.format(p, n)})", namespace={})
        program = print_grid(f.optimised(f.specs(None), "cuda", blas=True))
        assert len(program.kernels) == 1 and ("hyad_team" in program.source) is few
        assert not any(isinstance(s, Choose) for s in program.steps)


def test_rows_that_are_as_many_as_long_are_never_few_and_long() -> None:
    f = hyad.model("(defmodel f [#^ (Vec n) x] (map (fn [a] (sum (map (fn [b] (sin (* a b))) x))) x))", namespace={})
    assert len(print_grid(f.optimised(f.specs(None), "cuda", blas=True)).kernels) == 2


def test_neighbours_read_neighbours_in_the_pieces_of_columns() -> None:
    """A piece has every so-many-th row: of few columns, too, a warp reads one stretch of memory."""
    source = few_plans()[0]["sums"].source
    body = source[source.index("t_pieces(") :]
    assert "const long long i = k*many + piece;" in body and "a[i*p + j]" in body
    assert "long long piece = hyad_quotient(thread, p)" in body


def test_the_host_names_sizes_that_it_needs_several_times() -> None:
    source, _ = print_host(few_plans()[0]["spread"])
    call = source[source.index("cudaError_t f6_call") :]
    assert call.count("hyad_least(131072") == 1 and "hyad_start(stream, f6_t_pieces, size1, 128, a, p, size," in call
    assert call.index("if (p < 4096") < call.index("const long long size =")  # where it is needed


@needs_ptx
def test_teams_of_few_places_compile() -> None:
    for program in few_plans()[0].values():
        nvrtc.compile_device(program.source, "compute_80", program.name)
