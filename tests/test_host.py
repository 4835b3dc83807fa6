"""The host code of a plan: a pair of files that stands alone, run on the CPU, and compiled and linked by nvcc."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hyad
import plans
from hyad import gpu
from hyad.cli import main
from hyad.codegen import launches, nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.host import _Host as host_code
from hyad.codegen.host import print_host
from hyad.codegen.launches import CudaProgram
from hyad.errors import ModelTypeError

HEADER = Path(nvrtc.__file__).with_name("cuda_on_cpu.h")
needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
REALS = {"f64": (np.float64, ctypes.c_double), "f32": (np.float32, ctypes.c_float)}
TYPES = {"int": (np.int64, ctypes.c_longlong), "bool": (np.int32, ctypes.c_int)}


def pair(folder: Path, program: CudaProgram) -> None:
    source, header = print_host(program, "what it does")
    (folder / f"{program.name}.cu").write_text(source)
    (folder / f"{program.name}.h").write_text(header)


def called(folder: Path, program: CudaProgram, sizes: dict[str, int], *args: object) -> tuple[list[np.ndarray], int]:
    """The pair in ``folder``, compiled for the CPU and called: its results, and the number of a check that failed."""
    library = folder / f"{program.name}.so"
    header = (folder / f"{program.name}.h").read_text()
    macro = re.search(r"#define (\w+_BYTES(?:\(([^)]*)\))?) ", header)
    names = macro[2].split(", ") if macro and macro[2] else []
    if not library.exists():
        lines = [f'#include "{program.name}.cu"', 'extern "C" long long room(const long long *sizes_)', "{"]
        lines += [f"    const long long {n} = sizes_[{k}];" for k, n in enumerate(names)]
        lines += [
            "    (void)sizes_;",
            "    cuda_on_cpu::alone = false;",
            f"    return (long long)({macro[1] if macro else 0});",
            "}",
        ]
        (folder / "all.cu").write_text("\n".join(lines))
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
        command = [*gpu.cpu_compiler(), *flags, "-include", str(HEADER), "-x", "c++", str(folder / "all.cu")]
        done = subprocess.run([*command, "-o", str(library), "-lm"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    code = ctypes.CDLL(str(library))
    code.room.restype = ctypes.c_longlong
    room = code.room((ctypes.c_longlong * (len(names) + 1))(*(sizes[n] for n in names)))
    work = np.full(room + 64, 99, np.uint8)
    types = TYPES | {"real": REALS[program.dtype]}
    given: list[object] = []
    for p, a in zip(program.params, args):
        held = np.ascontiguousarray(a, types[p.elem][0])
        given.append(held.ctypes if p.dims else types[p.elem][1](held.item()))
    given += [ctypes.c_longlong(sizes[d]) for d in program.dims]
    shapes = [tuple(launches.value(d, sizes) for d in r.dims) for r in program.results]
    results = [np.zeros(s, types[r.elem][0]) for s, r in zip(shapes, program.results)]
    given += [r.ctypes for r in results]
    if macro:
        given.append(work.ctypes)
    failed = ctypes.c_longlong(-1)
    if program.checks:
        given.append(ctypes.byref(failed))
    assert getattr(code, f"{program.name}_call")(*given, ctypes.c_void_p()) == 0
    assert (work[-64:] == 99).all()
    return results, failed.value


@needs_cpu
def test_every_step_of_a_plan(tmp_path: Path) -> None:
    pair(tmp_path, plans.WALK)
    for n, m in ((2, 0), (3, 1), (500, 4)):
        v = np.linspace(1.0, 9.0, n)
        (out,), failed = called(tmp_path, plans.WALK, {"n": n}, v, 3.0, m)
        np.testing.assert_allclose(out, plans.walked(v, 3.0, m), rtol=1e-15)
        assert failed == 0
    assert called(tmp_path, plans.WALK, {"n": 1000}, np.ones(1000), 3.0, 1)[1] == 1
    assert called(tmp_path, plans.WALK, {"n": 2}, np.array([1.0, -9.0]), 1.0, 1)[1] == 2


@needs_cpu
def test_a_product(tmp_path: Path) -> None:
    program = plans.product("f64")
    pair(tmp_path, program)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 5)), rng.normal(size=(4, 6))
    (out,), _ = called(tmp_path, program, {"m": 5, "n": 4, "k": 6}, a, b)
    np.testing.assert_allclose(out, a.T @ b.T, rtol=1e-13)


ROWS = "(defmodel rows [#^ (Mat n m) a #^ (Vec m) x] (fold + 0.0 (build (len a) (fn [i] (sin (dot (get a i) x))))))"


@needs_cpu
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_an_emitted_model(dtype: str, tmp_path: Path) -> None:
    """One call in parallel: the very files, on the CPU, give what C gives."""
    f = hyad.value_and_grad(hyad.model(ROWS, namespace={}))
    source, header = hyad.emit(f, tmp_path / "both.cu", target="cuda", grid=True, dtype=dtype)
    assert (source.name, header.name) == ("both.cu", "both.h") and "both_call(" in header.read_text()
    program = print_grid(f.optimised(f.specs()), dtype=dtype, name="both")
    a, x = np.random.default_rng(2).normal(size=(300, 7)), np.linspace(-1, 1, 7)
    got, _ = called(tmp_path, program, {"n": 300, "m": 7}, a, x)
    value, (by_a, by_x) = f(a, x)
    for one, wanted in zip(got, (np.asarray(value), by_a, by_x)):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-12 if dtype == "f64" else 1e-3)


ATTENTION = """(defmodel attention [#^ (Mat n d) q #^ (Mat n d) k #^ (Mat n d) v]
  (sum (mat-mul (map softmax (mat-mul q (transpose k))) v)))"""


@needs_cpu
def test_an_emitted_model_of_products_and_rows(tmp_path: Path) -> None:
    """Attention and its gradient; nvcc takes the pair where there is one."""
    f = hyad.value_and_grad(hyad.model(ATTENTION, namespace={}))
    hyad.emit(f, tmp_path / "attention.cu", target="cuda", grid=True)
    program = print_grid(f.optimised(f.specs(), "cuda", blas=True), name="attention")
    given = np.random.default_rng(3).normal(size=(3, 70, 5))
    got, _ = called(tmp_path, program, {"n": 70, "d": 5}, *given)
    value, gradient = f(*given)
    for one, wanted in zip(got, (np.asarray(value), *gradient), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-10)
    if nvrtc.nvcc() is not None:
        flags = ["-arch=compute_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
        command = [nvrtc.nvcc(), *flags, "-c", "attention.cu", "-o", "attention.o"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


UNUSED = """(defmodel unused [#^ (Vec n) x y #^ (Vec k) u #^ (Arr Int m) at]
  (sum (map (fn [i] (square (get x i))) at)))"""


@needs_cpu
def test_what_is_not_used_is_no_warning(tmp_path: Path) -> None:
    """An argument that nothing reads, a function of a type that nothing adds, a size that is compared with itself."""
    f = hyad.grad(hyad.model(UNUSED, namespace={}), wrt="x")
    hyad.emit(f, tmp_path / "unused.cu", target="cuda", grid=True)
    program = print_grid(f.optimised(f.specs(), "cuda", blas=True), name="unused")
    x, at = np.linspace(0.1, 1.0, 70), np.array([3, 69, 3])
    (got,), failed = called(tmp_path, program, {"n": 70, "k": 2, "m": 3}, x, 1.0, np.ones(2), at)
    want = np.zeros(70)
    np.add.at(want, at, 2 * x[at])
    assert failed == 0 and program.source.count("void hyad_add(") == 1
    np.testing.assert_allclose(got, want, rtol=1e-14)
    if nvrtc.nvcc() is not None:
        flags = ["-arch=compute_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
        command = [nvrtc.nvcc(), *flags, "-c", "unused.cu", "-o", "unused.o"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    square = hyad.model("(defmodel square [#^ (Mat n n) a] (+ a (transpose a)))", namespace={})
    steps = print_grid(square.optimised(square.specs(), "cuda", blas=True)).steps
    assert not any(isinstance(s, launches.Require) and s.holds[1] == s.holds[2] for s in steps)


@needs_cpu
def test_sizes_that_are_quotients_of_integers(tmp_path: Path) -> None:
    """Of any sign, and 0 where the divisor is; in the macro of the workspace, too."""
    text = """(defmodel halves [#^ (Vec n) v #^ Int k]
      (let [m (max 0 (+ (// (len v) k) (% k 3)))  s (scan (fn [a i] (tanh (+ (sin a) (sum v)))) 0.0 (arange m))]
        (fold (fn [a x] (sin (+ a x))) 0.0 (map exp (flip s)))))"""
    f = hyad.model(text, namespace={})
    hyad.emit(f, tmp_path / "halves.cu", target="cuda", grid=True)
    program = print_grid(f.optimised(f.specs(), "cuda", blas=True), name="halves")
    assert not program.checks
    for n, k in ((7, 2), (7, 0), (7, -2), (0, 5), (3, 5)):
        v = np.ones(n)
        (out,), _ = called(tmp_path, program, {"n": n, "k": k}, v, k)
        assert out == pytest.approx(f(v, k), rel=1e-12)


DEEP = """(defmodel deep [#^ (Vec n) y #^ Int m]
  (build (max m 1)
    (fn [i] (let [t (ifold (fn [t k] (build 1000 (fn [q] (max 0.1 (* 0.5 (get t (- 999 q)))))))
                           (build 1000 (fn [q] (* 1.0 q (get y (min i (- (len y) 1)))))) 5)]
              (max (get t 3) (sum t))))))"""


@needs_cpu
def test_functions_of_sizes_have_names_of_their_own(tmp_path: Path) -> None:
    """Those of the model, of reals and of integers, are no others of the same name: a call had two meanings."""
    f = hyad.model(DEEP, namespace={})
    program = print_grid(f.optimised(f.specs()))
    pair(tmp_path, program)
    source = (tmp_path / "deep.cu").read_text()
    names = re.findall(r"^static .*?(hyad_\w+)\(.*\{", source, re.M)
    assert {"hyad_max", "hyad_imin", "hyad_least", "hyad_most"} <= {*names} and len({*names}) == len(names)
    y = np.array([1.0, -2.0, 0.3])
    (out,), _ = called(tmp_path, program, {"n": 3, "m": 5}, y, 5)
    np.testing.assert_allclose(out, f(y, 5), rtol=1e-12)


def test_quotients_in_products_are_whole() -> None:
    """C would take ``x/2*y/2`` from the left."""
    host = host_code(plans.product("f64"), "")
    assert host.text(("*", ("//", "n", 2), ("//", "m", 2))) == "n/2*(m/2)"
    assert host.text(("*", ("*", "n", "m"), ("*", "k", 2))) == "n*m*k*2"


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ModelTypeError, match="grid does not go with the target 'c'"):
        hyad.emit("(fn [x] x)", tmp_path, grid=True)
    with pytest.raises(ModelTypeError, match="grid does not go with line_directives"):
        hyad.emit("(fn [x] x)", tmp_path, target="cuda", grid=True, line_directives=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "m.hy").write_text(ROWS)
    assert (
        main(["emit", str(tmp_path / "m.hy"), "rows", "--grad", "--target", "cuda", "--grid", "-o", str(tmp_path)]) == 0
    )
    assert "rows_grad_call(" in (tmp_path / "rows_grad.cu").read_text()
    assert capsys.readouterr().out.split() == [str(tmp_path / f"rows_grad.{kind}") for kind in ("cu", "h")]


MAIN = """\
#include "walk.h"
int main(void)
{
    double *v = 0, *out = 0;
    void *work = 0;
    long long failed = 0;
    cudaMalloc((void **)&v, 3*sizeof *v);
    cudaMalloc((void **)&out, 3*sizeof *out);
    cudaMalloc(&work, WALK_BYTES(3));
    return walk_call(v, 3.0, 2, 3, out, work, &failed, 0) ? 1 : (int)failed;
}
"""


@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
def test_nvcc_compiles_and_links_the_pair(tmp_path: Path) -> None:
    """From a program in C, too: the header is C."""
    pair(tmp_path, plans.WALK)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ["-arch=compute_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    command = [nvrtc.nvcc(), *flags, "walk.cu", "main.c", "-o", "main"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "main").exists(), done.stderr


@needs_cpu
def test_one_block_for_small_launches_reads_the_callers_arrays(tmp_path: Path) -> None:
    """Which are constant in the header."""
    text = "(defmodel f [#^ (Arr Int n) at #^ (Vec n) x #^ (Vec m) w] (scatter-add w at x))"
    f = hyad.model(text, namespace={})
    hyad.emit(f, tmp_path / "sums.cu", target="cuda", grid=True, deterministic=True)
    program = print_grid(f.optimised(f.specs(), "cuda", blas=True), name="sums", deterministic=True)
    assert "sums_run(const long long *at, const double *x," in program.source
    at, x, w = np.array([1, 0, 1, 2]), np.array([0.5, 1.5, 2.5, -1.0]), np.ones(3)
    (got,), failed = called(tmp_path, program, {"n": 4, "m": 3}, at, x, w)
    assert failed == 0 and got.tolist() == [2.5, 4.0, 0.0]


def test_sizes_are_printed_as_what_they_are() -> None:
    """Quotients of quotients and products, with what they are never less than: C divides from left to right."""
    model = hyad.model("(fn [#^ (Mat n m) x] (sum x))", namespace={})
    host = host_code(print_grid(model.optimised(model.specs(), "cuda", blas=True)), "")
    rng = np.random.default_rng(1)

    def some(depth: int) -> launches.Size:
        if not depth or rng.random() < 0.15:
            return ("n", "m", 2, 3, 64)[rng.integers(5)]
        operator = ("+", "*", "*", "//", "//", "%", "max", "min")[rng.integers(8)]
        if operator == "max":
            return ("max", some(depth - 1), 0)
        return (operator, some(depth - 1), (3, 5, 64)[rng.integers(3)] if operator in "//%" else some(depth - 1))

    def least(a: int, b: int) -> int:
        return min(a, b)

    for _ in range(400):
        size = some(4)
        for known in ({"n": 7, "m": 130}, {"n": 1000, "m": 3}):
            for macro in (False, True):
                text = host.text(size, macro=macro).replace("(long long)", "").replace("/", "//")
                if "?" in text:  # the smaller of two in a macro: no Python
                    continue
                names = {**known, "hyad_least": least, "hyad_most": max, "hyad_floor": lambda a, b: a // b}
                assert eval(text, names) == launches.value(size, known), (size, text)
