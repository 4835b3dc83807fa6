"""Where threads of a GPU read and write: arrays of their own between those of their neighbours. Run on the CPU in both
orders of the threads, against C of the same model."""

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
from hyad.codegen.cuda import print_cuda
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram
from hyad.emulate import Emulator
from hyad.journal import without

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


@needs_ptx
def test_strided_text_compiles() -> None:
    for p in own_programs()[0].values():
        assert b"st.global" in nvrtc.compile_device(p.source, "compute_90", p.name)
