"""CUDA text: what a GPU would be given runs here on the CPU, equals the C result, and compiles to PTX.

Nothing here needs a GPU or pycuda, so nothing here shows that the text runs on a GPU. ``test_gpu.py`` has the calls to
pycuda, ``tests/device`` what needs a GPU.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
from hyad import gpu
from hyad.codegen import nvrtc
from hyad.codegen.cuda import CudaKernel, print_cuda
from hyad.core import Program
from hyad.errors import BoundsError, CompileError, HyadError, ModelTypeError
from hyad.marshalling import take_apart
from hyad.model import Model
from hyad.program.journal import without

PROBLEMS = Path(__file__).parent / "bench" / "problems"
HEADER = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
needs_ptx = pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
BATCHES = (0, 1, 7, 1000)
SHAPES = ((None, None), (1, 1), (3, 5), (40, 32))


@dataclass(frozen=True)
class Case:
    """A model and how to test it. ``shapes``: per argument the shape of one element, or "int"; ``derive`` makes the
    derivative; ``shared`` are arguments that all elements have in common."""

    text: str
    shapes: tuple[Any, ...]
    derive: Any
    shared: tuple[str, ...] = ()
    low: float = 0.5
    high: float = 2.0


RADIAL = """(defmodel radial [#^ (Vec 3) p c]
  (let [r2 (+ (* (get p 0) (get p 0)) (* (get p 1) (get p 1)))]
    [(* (get p 2) (get p 0) (+ 1.0 (* c r2))) (* (get p 2) (get p 1) (+ 1.0 (* c r2)))]))"""
SMOOTH = """(defmodel smooth [#^ (Vec n) v a]
  (fold + 0.0 (ifold (fn [u k] (build (len v) (fn [i] (* a (sin (+ (get u i) (get u (% (+ i 1) (len v))))))))) v 4)))"""
COUNTS = """(defmodel counts [#^ (Vec n) v #^ Int steps]
  (let [last (- (len v) 1)
        c (ifold (fn [c k] (build (len v) (fn [i] (+ (get c i) (get c (- last i)) k))))
                 (build (len v) (fn [i] (* i i))) steps)
        s (ifold (fn [s k] (build (len v) (fn [i] (sin (+ (get s i) (get s (- last i))))))) v steps)]
    (fold + 0.0 (map (fn [x y] (* (real x) y)) c s))))"""
TABLE = "(defmodel table [x #^ Int i] (* x x (get [1.5 0.25 -3.0 0.5 7.0 1e30 0.125 2.0 9.0 -1.0] (% i 10))))"
KINDS = (
    "(defmodel kinds [x y] #((> x y) (sigmoid (- x y)) (gamma x) (digamma y) (** x 3) (max x y) (// x y) (log (- x))))"
)
CASES = {
    "scalar": Case("(defmodel scalar [x y] (/ (* x (sin y)) (+ 1.0 (exp (- x)))))", ((), ()), hyad.grad, ("y",)),
    "branch": Case("(defmodel branch [x y] (if (< x y) (let [d (- y x)] (* d d (sqrt d))) (log (- x (* 0.5 y)))))",
                   ((), ()), hyad.grad),
    "kinds": Case(KINDS, ((), ()), lambda f: hyad.D(f, wrt="x")),
    "table": Case(TABLE, ((), "int"), lambda f: hyad.D(f, wrt="x")),
    "radial": Case(RADIAL, ((3,), ()), hyad.jacobian, ("c",)),
    "dot": Case("(defmodel dot-sin [#^ (Vec n) v #^ (Vec n) w] (fold + 0.0 (map (fn [a b] (* a (sin b))) v w)))",
                ((6,), (6,)), hyad.grad, ("w",)),
    "rows": Case("(defmodel rows [#^ (Mat n m) a #^ (Vec m) x] (build (len a) (fn [i] (dot (get a i) (map exp x)))))",
                 ((3, 4), (4,)), hyad.jacobian, ("a",)),
    "power": Case("(defmodel power [x #^ Int n] (ifold (fn [s k] (* s x (+ 1.0 (real k)))) 1.0 n))",
                  ((), "int"), hyad.grad),
    "ramp": Case("(defmodel ramp [x #^ Int n] (build n (fn [i] (* x (real i)))))", ((), "int"), hyad.jacobian, ("n",)),
    "smooth": Case(SMOOTH, ((5,), ()), hyad.grad, ("a",)),
    "checked": Case("(defmodel checked [#^ (Vec n) v #^ Int i] (* (get v i) (get v 0)))", ((4,), "int"),
                    lambda f: hyad.grad(f, wrt="v"), ("v",)),
    "counts": Case(COUNTS, ((5,), "int"), lambda f: hyad.grad(f, wrt="v")),
    "system": Case("(defmodel system [#^ (Mat n n) a #^ (Vec n) b] (dot b (solve (+ a (* 9.0 (eye (len a)))) b)))",
                   ((4, 4), (4,)), hyad.grad, ("a",)),
    "axes": Case("(defmodel axes [#^ (Mat n m) a] (max (* (sum a 0) (amax a 0))))", ((3, 4),), hyad.value_and_grad),
    "fk": Case("", ((6,),), hyad.jacobian),
    "ba": Case("", ((15,), (2,)), lambda f: hyad.jacobian(f, wrt="p")),
    "rosen": Case("", ((9,),), hyad.value_and_grad),
}  # fmt: skip


@cache
def model(name: str, derived: bool) -> Model:
    text = CASES[name].text
    f = hyad.model(text, namespace={}) if text else getattr(hyad.load(PROBLEMS / f"{name}.hy"), name)
    return CASES[name].derive(f) if derived else f


def elements(case: Case, count: int, seed: int = 1) -> list[np.ndarray]:
    """``count`` elements for each argument."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 4, count) if s == "int" else rng.uniform(case.low, case.high, (count, *s)) for s in case.shapes
    ]


def program_of(name: str, derived: bool) -> Program:
    """In reverse mode also where few inputs would do it forwards: kernels with a workspace."""
    f = model(name, derived)
    one = [a[0].item() if a.ndim == 1 else a[0] for a in elements(CASES[name], 1)]
    with without({"few-inputs"}):
        return f.optimised(f.specs(one))


@cache
def reference(name: str, derived: bool, dtype: str, shared: tuple[str, ...]) -> tuple[list[Any], list[np.ndarray]]:
    """Batched and shared arguments for the longest batch, and the C results, element by element."""
    case, f = CASES[name], model(name, derived)
    real = np.float64 if dtype == "f64" else np.float32
    args: list[Any] = [a.astype(real) if a.dtype == float else a for a in elements(case, max(BATCHES))]
    params = [p.name for p in program_of(name, derived).params]
    for k, p in enumerate(params):
        if p in shared:
            args[k] = args[k][0]

    def one(k: int) -> list[Any]:
        picked = [a if p in shared else a[k] for p, a in zip(params, args)]
        return [a if np.ndim(a) else a.item() for a in picked]

    entry = hyad.compile(f, target="c", dtype=dtype, args=one(0))
    out: list[list[Any]] = []
    for k in range(max(BATCHES)):
        flat: list[Any] = []
        take_apart(entry.program.out, entry(*one(k)), flat)
        out.append([np.array(x) for x in flat])
    return args, [np.stack(column) for column in zip(*out)]


def kernel_of(name: str, derived: bool = False, dtype: str = "f64", shared: tuple[str, ...] = ()) -> CudaKernel:
    return print_cuda(program_of(name, derived), dtype=dtype, shared=shared)


def assert_same(got: tuple[np.ndarray, ...], wanted: list[np.ndarray], tolerance: float) -> None:
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert a.shape == b.shape
        scale = np.max(np.abs(b), initial=0, where=np.isfinite(b)) if b.dtype != bool else 0
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=tolerance, atol=tolerance * float(scale))


# ------------------------------------------------------------------------------------- on the CPU, as C


@pytest.mark.some(10)
@needs_cpu
@pytest.mark.parametrize("derived,dtype", [(False, "f64"), (True, "f64"), (True, "f32")])
@pytest.mark.parametrize("name", CASES)
def test_text_on_the_cpu_equals_c(name: str, derived: bool, dtype: str) -> None:
    """Every element, for all batch sizes, grids, blocks and both orders of the threads."""
    shared = ("n",) if name == "ramp" else ()  # a size of the result: shared in any case
    kernel = kernel_of(name, derived, dtype)
    args, wanted = reference(name, derived, dtype, shared)
    for size in BATCHES:
        for k, (grid, block) in enumerate(SHAPES):
            batch = [a[:size] if p.batched else a for p, a in zip(kernel.params, args)]
            block = -(-block // 32) * 32 if block and kernel.warps else block
            got = gpu.run_on_cpu(kernel, *batch, grid=grid, block=block, descending=k % 2 == 1)
            assert_same(got, [w[:size] for w in wanted], 1e-12 if dtype == "f64" else 2e-3)


@pytest.mark.some(6)
@needs_cpu
@pytest.mark.parametrize("derived", [False, True], ids=["value", "derivative"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shared])
def test_shared_arguments(name: str, derived: bool) -> None:
    shared = CASES[name].shared
    kernel = kernel_of(name, derived, shared=shared)
    assert [p.name for p in kernel.params if not p.batched] == list(shared)
    args, wanted = reference(name, derived, "f64", shared)
    assert_same(gpu.run_on_cpu(kernel, *args, grid=2, block=64), wanted, 1e-12)


@needs_cpu
def test_a_wrong_text_is_noticed() -> None:
    """The comparison can fail: every element reads the first one's argument; one element too many is written."""
    kernel = kernel_of("rosen", derived=True)
    args, wanted = reference("rosen", True, "f64", ())
    broken = kernel.source.replace("(x + k*n,", "(x,")
    other = CudaKernel(**{f: getattr(kernel, f) for f in kernel.__slots__} | {"source": broken})
    with pytest.raises(AssertionError):
        assert_same(gpu.run_on_cpu(other, *args), wanted, 1e-12)
    beyond = kernel.source.replace("k < batch", "k < batch + 1")
    other = CudaKernel(**{f: getattr(kernel, f) for f in kernel.__slots__} | {"source": beyond})
    with pytest.raises(HyadError, match="wrote outside"):
        gpu.run_on_cpu(other, *args)


# --------------------------------------------------------------------------------------------- checks


@needs_cpu
@pytest.mark.parametrize("descending", [False, True])
def test_a_failed_check_names_its_element(descending: bool) -> None:
    kernel = kernel_of("checked")
    v = np.arange(40.0).reshape(10, 4)
    index = np.array([0, 3, 1, 2, 4, 0, 1, -1, 2, 3])
    with pytest.raises(BoundsError, match=r"element 7 of" if descending else r"element 4 of") as caught:
        gpu.run_on_cpu(kernel, v, index, grid=1, block=16, descending=descending)
    assert caught.value.span is not None and "(get v i)" in caught.value.span.text
    good = np.where((index >= 0) & (index < 4), index, 0)
    assert np.array_equal(gpu.run_on_cpu(kernel, v, good)[0], v[np.arange(10), good] * v[:, 0])


# -------------------------------------------------------------------------------------------- memory


@needs_cpu
@pytest.mark.parametrize("length,own", [(90, True), (300, False)])
def test_workspace_of_fixed_size(length: int, own: bool) -> None:
    """Up to 512 elements it is a local array of the thread; beyond, the caller's."""
    text = f"(defmodel wide [#^ (Vec {length}) v] (fold + 0.0 (ifold (fn [u k] (map (fn [x y] (* x x y)) u v)) v 5)))"
    f = hyad.grad(hyad.model(text, namespace={}))
    kernel = print_cuda(program_of_text(f))
    assert ("double own[450];" in kernel.source and kernel.workspace is None) == own
    v = np.random.default_rng(3).uniform(0.5, 1.5, (9, length))
    wanted = [np.stack([f(row) for row in v])]
    assert_same(gpu.run_on_cpu(kernel, v, grid=2, block=32), wanted, 1e-12)
    if kernel.warps:
        with pytest.raises(ValueError, match="whole warps"):
            gpu.run_on_cpu(kernel, v, block=2)


def program_of_text(f: Model) -> Program:
    return f.optimised(f.specs())


@needs_cpu
@pytest.mark.parametrize("grid,block", [(1, 32), (2, 96), (5, 64)])
def test_workspace_slices(grid: int, block: int) -> None:
    """Each thread in flight has a slice of its own, and writes nowhere else."""
    kernel = kernel_of("smooth", derived=True)
    assert kernel.workspace is not None and "n" in kernel.workspace
    args, wanted = reference("smooth", True, "f64", ())
    assert_same(gpu.run_on_cpu(kernel, *args, grid=grid, block=block), wanted, 1e-12)
    assert f"SMOOTH_GRAD_WORK(n) ({kernel.workspace.replace('n', '(n)')})" in kernel.header


def test_whole_numbers_among_floats_are_aligned() -> None:
    """Each thread's floats begin where a ``long long`` may lie."""
    assert kernel_of("counts", dtype="f64").workspace == "4*n"
    assert kernel_of("counts", dtype="f32").workspace == "(6*n + 1)/2*2"


def test_tables_are_in_constant_memory_while_it_lasts() -> None:
    assert "static __constant__ const double" in kernel_of("table").source
    long = " ".join(f"{k}.5" for k in range(8000))
    f = hyad.model(f"(defmodel lookup [#^ Int i] (let [t [{long}]] (get t (% i 8000))))", namespace={})
    source = print_cuda(program_of_text(f)).source
    assert "static const double" in source and "__constant__" not in source


def test_copies_and_zeros_are_loops() -> None:
    f = hyad.model(
        "(defmodel f [#^ (Vec n) v] #(v (build n (fn [i] 0.0))))".replace("n (fn", "(len v) (fn"), namespace={}
    )
    for program in (program_of_text(f), *(program_of(name, True) for name in CASES)):
        assert not {"memcpy", "memset", "memmove"} & set(print_cuda(program).source.replace("(", " ").split())


# ------------------------------------------------------------------------------------- names and records


def test_record() -> None:
    kernel = kernel_of("radial", derived=True, shared=("c",))
    assert (kernel.name, kernel.entry, kernel.dtype) == ("radial_jacobian", "radial_jacobian_batch", "f64")
    assert [(p.name, p.dims, p.batched) for p in kernel.params] == [("p", (3,), True), ("c", (), False)]
    assert [len(r.dims) for r in kernel.results] == [2, 1]
    assert not kernel.fallible and kernel.workspace is None and kernel.dims == ()
    assert print_cuda(program_of("radial", True), name="other").entry == "other_batch"
    assert print_cuda(program_of("radial", False), shared=(1,)) == print_cuda(program_of("radial", False), shared=["c"])


def test_there_is_no_such_parameter_to_share() -> None:
    with pytest.raises(ModelTypeError, match="radial has no parameter 'd' to share"):
        kernel_of("radial", shared=("d",))


@needs_cpu
def test_names_that_the_kernel_uses_itself() -> None:
    """Parameters may have the names of the kernel's variables, of C++ keywords and of CUDA's own."""
    names = (
        "batch status k step thread own failed threads stream block grid args threadIdx class xor dim3 rsqrt".split()
    )
    f = hyad.model(
        f"(defmodel norm [{' '.join(names)} #^ (Vec n) v #^ Int work] (* (get v work) (+ {' '.join(names)})))"
    )
    kernel = print_cuda(program_of_text(f))
    x = np.arange(5.0 * len(names)).reshape(len(names), 5)
    got = gpu.run_on_cpu(kernel, *x, np.ones((5, 2)), np.zeros(5, int))
    assert np.array_equal(got[0], x.sum(0))
    if nvrtc.nvrtc() or nvrtc.nvcc():
        nvrtc.compile_device(kernel.source)


# ----------------------------------------------------------------------------------------------- PTX


@pytest.mark.some(6)
@needs_ptx
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_compiles_to_ptx(name: str, dtype: str) -> None:
    for derived in (False, True):
        kernel = kernel_of(name, derived, dtype)
        single = dtype == "f32" and name in ("branch", "table", "radial", "rosen")
        ptx = nvrtc.compile_device(kernel.source, "compute_80", kernel.name, fast=not single).decode()
        assert ".target sm_80" in ptx and f".entry {kernel.entry}(" in ptx
        if single:
            assert ".f64" not in ptx  # nothing is computed in double by oversight


@needs_ptx
def test_compiles_to_machine_code() -> None:
    cubin = nvrtc.compile_device(kernel_of("rosen", True).source, "sm_90")
    assert cubin[:4] == b"\x7fELF" and b"rosen_value_and_grad_batch" in cubin


@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
def test_nvcc_compiles_kernel_launcher_and_header(tmp_path: Path) -> None:
    """Host code too, and a program that includes the header and calls the launcher."""
    kernel = kernel_of("smooth", True, shared=("a",))
    (tmp_path / "smooth.h").write_text(kernel.header)
    (tmp_path / "smooth.cu").write_text(kernel.header + kernel.source)  # the declaration must fit the definition
    (tmp_path / "main.c").write_text(
        '#include "smooth.h"\n'
        "int main(void) { return (int)smooth_grad_launch(0, 0, 1.0, 4, 0, 0, 0, SMOOTH_GRAD_WORK(4), 128, 0); }\n"
    )
    flags = ["-arch=compute_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    done = subprocess.run(
        [nvrtc.nvcc(), *flags, "-c", "smooth.cu", "main.c"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
def test_nvcc_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    kernel = kernel_of("checked", True)
    assert f".entry {kernel.entry}(".encode() in nvrtc.compile_device(kernel.source, "compute_90", kernel.name)
    with pytest.raises(CompileError, match=r"(?s)nvcc failed:.*bad\.cu\(1\).*nonsense"):
        nvrtc.compile_device("__global__ void f() { nonsense; }", name="bad")


@needs_ptx
def test_a_text_that_does_not_compile() -> None:
    with pytest.raises(CompileError, match="(?s)failed:.*nonsense"):
        nvrtc.compile_device('extern "C" __global__ void f(double *x) { x[0] = nonsense; }')
    with pytest.raises(CompileError, match="no CUDA architecture"):
        nvrtc.compile_device("", "gfx90a")


@needs_ptx
def test_an_architecture_that_the_compiler_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="this (NVRTC|nvcc) does not know the architecture sm_10"):
            nvrtc.compile_device("", "sm_10")
        if nvrtc.nvcc() is not None:
            monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)


def test_no_cuda_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    monkeypatch.setattr(nvrtc, "nvcc", lambda: None)
    with pytest.raises(nvrtc.NoCudaCompiler, match="no CUDA compiler was found"):
        nvrtc.compile_device("")


# --------------------------------------------------------------------------------- from C++, by hand

MAIN = """\
#include "radial.h"
#include <stdio.h>
int main(void)
{
    const double p[6] = {1, 2, 3, 4, 5, 6}, c[2] = {0.5, 0.5};
    double out[4];
    if (radial_launch(2, p, c, out, 0) != cudaSuccess)
        return 1;
    printf("%g %g %g %g\\n", out[0], out[1], out[2], out[3]);
    return 0;
}
"""


@needs_cpu
def test_launched_from_a_program_of_ones_own(tmp_path: Path) -> None:
    """The emitted pair, linked to a hand-written main: the very files, on the CPU."""
    source, header = hyad.emit(model("radial", False), tmp_path / "radial.cu", target="cuda")
    assert (source.name, header.name) == ("radial.cu", "radial.h")
    (tmp_path / "main.cpp").write_text(MAIN)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-include", str(HEADER), "-x", "c++"]
    command = [*gpu.cpu_compiler(), *flags, "radial.cu", "main.cpp", "-o", "main", "-lm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
    p = np.array([[1.0, 2, 3], [4, 5, 6]])
    wanted = p[:, 2:] * p[:, :2] * (1 + 0.5 * (p[:, :2] ** 2).sum(1, keepdims=True))
    assert out.stdout.split() == [f"{x:g}" for x in wanted.ravel()]


# ---------------------------------------------------------------------------------------- arguments


def test_arguments_that_do_not_fit() -> None:
    kernel = kernel_of("dot", shared=("w",))
    v, w = np.ones((5, 3)), np.ones(3)
    for args, message in (
        ((v,), "takes 2 arguments, not 1"),
        ((v[0], w), "argument `v`, with the batch as its leading dim, has 1 dims, not 2"),
        ((v, v), "argument `w`, shared by all elements, has 2 dims, not 1"),
        ((v, np.ones(4)), r"an element of argument `w` has shape \(4,\), not \(3,\)"),
        ((v * 1j, w), "argument `v` holds complex128, not reals"),
        ((np.array([["a"]]), w), "argument `v` holds <U1, not reals"),
    ):
        with pytest.raises(ModelTypeError, match=message):
            gpu.prepare(kernel, args)
    with pytest.raises(ModelTypeError, match="different lengths"):
        gpu.prepare(kernel_of("dot"), (v, np.ones((4, 3))))
    with pytest.raises(ModelTypeError, match="holds float64, not integers"):
        gpu.prepare(kernel_of("checked"), (v, np.ones(5)))
    with pytest.raises(ModelTypeError, match="no argument is batched"):
        gpu.prepare(kernel_of("dot", shared=("v", "w")), (w, w))
    with pytest.raises(ModelTypeError, match="the result would have shape"):
        gpu.prepare(kernel_of("ramp"), (np.ones(5), -1))


# --------------------------------------------------------------------------------------------- golden


@pytest.mark.parametrize("name,derived,shared", [("power", True, ()), ("checked", False, ())])
def test_golden(name: str, derived: bool, shared: tuple[str, ...], golden: Any) -> None:
    kernel = kernel_of(name, derived, shared=shared)
    golden(f"{kernel.name}.cu", kernel.source)


def test_golden_header(golden: Any) -> None:
    golden("power_grad_cuda.h", kernel_of("power", derived=True).header)
