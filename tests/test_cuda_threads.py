"""What one thread of a GPU has of its own: recursion, data, and loops whose rounds it remembers.

The kernels' text runs on the CPU, in both orders of the threads and with less memory than is needed at first; nvcc
compiles it. No GPU has run it.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad import gpu
from hyad.codegen import nvrtc, pieces
from hyad.codegen.cuda import print_cuda
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram, While
from hyad.core import Program
from hyad.emulate import Emulator
from hyad.errors import BoundsError, CompileError, HyadError, OutOfMemory
from hyad.model import Model

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")

#: Each gives one number, of an array and perhaps an integer.
MODELS = {
    # a recursion whose gradient has records, of single numbers
    "halves": "[#^ (Vec n) v] (letrec [f (fn [x d] (if (or (< (abs x) 0.1) (> d 20)) (sin x)"
              " (* (f (* 0.5 x) (+ d 1)) (f (- (* 0.3 x) 0.01) (+ d 1)))))] (sum (map (fn [a] (f a 0)) v)))",
    # small arrays go down and come back
    "pairs": "[#^ (Mat n 2) q] (letrec [f (fn [#^ (Vec 2) p d] (if (or (> d 6) (< (abs (get p 0)) 0.05)) p"
             " (let [a (f [(* 0.5 (get p 0)) (sin (get p 1))] (+ d 1))]"
             " [(* (get a 0) (get p 1)) (+ (get a 1) (get p 0))])))]"
             " (sum (map (fn [p] (prod (f p 0))) q)))",
    # a quadrature that halves where it must, two functions deep
    "simpson": "[#^ (Vec n) v] (letrec [g (fn [a x] (exp (* a (sin x)))) rule (fn [a l r] (* (/ (- r l) 6.0)"
               " (+ (g a l) (* 4.0 (g a (* 0.5 (+ l r)))) (g a r)))) s (fn [a l r eps d] (let [m (* 0.5 (+ l r))"
               " two (+ (rule a l m) (rule a m r))] (if (or (< (abs (- (rule a l r) two)) eps) (> d 12)) two"
               " (+ (s a l m (* 0.5 eps) (+ d 1)) (s a m r (* 0.5 eps) (+ d 1))))))]"
               " (sum (map (fn [a] (square (s a 0.0 1.0 1e-5 0))) v)))",
    # lists in a thread's memory
    "lists": "[#^ (Vec n) v] (letrec [up (fn [x d] (if (or (< d 1) (< x 0.1)) nil (cons (sin x) (up (* 0.7 x)"
             " (- d 1))))) all (fn [l] (if (null? l) 1.0 (* (+ 1.0 (car l)) (all (cdr l)))))]"
             " (sum (map (fn [a] (all (up a 40))) v)))",
    # a recursion in each step of a loop of the host's
    "steps": "[#^ (Vec n) v #^ Int steps] (letrec [f (fn [x] (if (< (abs x) 0.05) x (* (sin x) (f (* 0.5 x)))))]"
             " (sum (ifold (fn [u k] (map (fn [x] (+ (f x) (* 0.9 x))) u)) v steps)))",
    # the same in each thread
    "own-steps": "[#^ (Vec n) v #^ Int steps] (letrec [f (fn [x] (if (< (abs x) 0.05) x (* (sin x) (f (* 0.5 x)))))]"
                 " (sum (map (fn [a] (ifold (fn [x k] (+ (f x) (* 0.9 x))) a steps)) v)))",
    "newton": "[#^ (Vec n) v] (sum (map (fn [a] (let [x (ref a)] (while (> (abs (- (* (deref x) (deref x)) a)) 1e-4)"
              " (set! x (* 0.5 (+ (deref x) (/ a (deref x)))))) (sin (deref x)))) v))",
    "nested": "[#^ (Vec n) v] (sum (map (fn [a] (let [x (ref a) s (ref 0.0)] (while (> (abs (deref x)) 0.1)"
              " (let [y (ref (deref x))] (while (> (abs (deref y)) 0.3) (set! y (* 0.7 (sin (deref y))))"
              " (set! s (+ (deref s) (* (deref y) (deref x)))))) (set! x (* 0.6 (deref x)))) (deref s))) v))",
    "rows": "[#^ (Mat n m) q] (sum (map (fn [r] (let [u (ref r)] (while (> (sum (map square (deref u))) 0.5)"
            " (set! u (map (fn [x] (* 0.8 (sin x))) (deref u)))) (prod (map (fn [x] (+ 1.0 x)) (deref u))))) q))",
    # an array in a sum, of a size that the call knows
    "sides": "[#^ (Vec n) v] (sum (map (fn [b] (case (if (< b 0.9) (inl b) (inr (sort (* b v)))) (inl c) (sin c)"
             " (inr u) (sum (* u (cumsum u))))) v))",
    # a loop of the host's, remembered; and one with a recursion in each round
    "until": "[#^ (Vec n) v] (let [u (ref v)] (while (> (sum (map square (deref u))) 1.0)"
             " (set! u (map (fn [x] (* 0.7 (sin x))) (deref u)))) (prod (map (fn [x] (+ 1.0 x)) (deref u))))",
    "until-deep": "[#^ (Vec n) v] (letrec [f (fn [x] (if (< (abs x) 0.05) x (* (sin x) (f (* 0.5 x)))))]"
                  " (let [u (ref v)] (while (> (sum (map square (deref u))) 1.0)"
                  " (set! u (map (fn [x] (+ (* 0.5 x) (* 0.1 (f x)))) (deref u))))"
                  " (prod (map (fn [x] (+ 1.0 x)) (deref u)))))",
}  # fmt: skip
HEAPS = {"halves", "pairs", "simpson", "lists", "steps", "own-steps", "newton", "nested", "rows", "sides", "until-deep"}
DEEP = {"halves", "pairs", "simpson", "lists", "steps", "own-steps", "until-deep"}


@cache
def derivative(name: str) -> Model:
    return hyad.value_and_grad(hyad.model(f"(defmodel {name} {MODELS[name]})", namespace={}), wrt=0)


def arguments(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(len(name))
    shape = (70, 2) if "Mat n 2" in MODELS[name] else (20, 5) if "Mat" in MODELS[name] else (70,)
    return (rng.uniform(0.4, 1.6, shape), *([4] if "steps" in MODELS[name] else []))


def program_of(name: str, for_grid: bool = True) -> Program:
    f = derivative(name)
    return f.optimised(f.specs(arguments(name)), "cuda", blas=for_grid)


@pytest.fixture(scope="module")
def programs() -> tuple[dict[str, CudaProgram], Emulator]:
    """All of them, compiled at once."""
    made = {name: print_grid(program_of(name), name=f"p{k}") for k, name in enumerate(MODELS)}
    return made, Emulator(list(made.values()), gpu.cpu_compiler() or (), "-O1")


@pytest.mark.some(6)
@pytest.mark.parametrize("name", MODELS)
def test_a_call_is_what_c_gives_and_fits_finite_differences(name: str, programs: Any) -> None:
    made, emulator = programs
    cuda, args = made[name], arguments(name)
    assert (cuda.heap is not None, cuda.stack is not None) == (name in HEAPS, name in DEEP)
    value, gradient = hyad.compile(derivative(name), target="c", args=args)(*args)
    for how in ({"heap": 2, "rounds": 1}, {"descending": True}, {"blocks": 2, "block": 32}):
        found = emulator.run(cuda, args, **how)
        np.testing.assert_allclose(found[0], value, rtol=1e-11)
        np.testing.assert_allclose(found[1], gradient, rtol=1e-9, atol=1e-12)
    x, h = args[0], 1e-6
    along = np.random.default_rng(1).normal(size=x.shape)
    ends = [emulator.run(cuda, (x + s * h * along, *args[1:]))[0] for s in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), (gradient * along).sum(), rtol=1e-5)


@pytest.mark.some(2)
@pytest.mark.parametrize("name, dtype", [("halves", "f32"), ("own-steps", "f64"), ("nested", "f32")])
def test_a_batch_is_what_c_gives(name: str, dtype: str) -> None:
    kernel = print_cuda(program_of(name, False), dtype=dtype)
    assert kernel.heap and kernel.deep == (name in DEEP)
    real = np.float64 if dtype == "f64" else np.float32
    batch = [np.stack([np.multiply(a, s, dtype=np.asarray(a).dtype, casting="unsafe") for s in (1, 0.8, 1.3)])
             for a in arguments(name)]  # fmt: skip
    batch = [a.astype(real) if a.dtype == float else np.array([4, 0, 6]) for a in batch]
    entry = hyad.compile(derivative(name), target="c", dtype=dtype, args=arguments(name))
    wanted = [entry(*(a[k] if a[k].ndim else a[k].item() for a in batch)) for k in range(3)]
    for descending in (False, True):
        found = gpu.run_on_cpu(kernel, *batch, grid=1, block=2, descending=descending, heap=2)
        for k, w in enumerate(wanted):
            np.testing.assert_allclose(found[0][k], w[0], rtol=1e-11 if dtype == "f64" else 1e-3)
            np.testing.assert_allclose(found[1][k], w[1], rtol=1e-9 if dtype == "f64" else 5e-3, atol=1e-6)


# ------------------------------------------------------------------------------------------------- limits

DOWN = "(defmodel down [#^ (Vec n) v #^ Int d] (letrec [f (fn [x k] (if (< k 1) x (sin (* x (f (+ x 0.1) (- k 1))))))]"
DOWN += " (map (fn [x] (f x d)) v)))"
LONG = "(defmodel long [#^ (Vec n) v #^ Int d] (sum (map (fn [a] (let [x (ref a) k (ref 0)]"
LONG += " (while (< (deref k) (* 2 d)) (set! x (sin (deref x))) (set! k (+ (deref k) 2))) (deref x))) v)))"


def test_a_recursion_too_deep_for_the_stack_is_an_error() -> None:
    f = hyad.model(DOWN, namespace={})
    v = np.linspace(0.1, 1.0, 9)
    program = f.optimised(f.specs((v, 3)), "cuda")
    cuda, kernel = print_grid(program), print_cuda(program)
    emulator = Emulator([cuda], gpu.cpu_compiler() or (), "-O1")
    np.testing.assert_allclose(emulator.run(cuda, (v, 40))[0], f(v, 40), rtol=1e-12)
    for call in (
        lambda: emulator.run(cuda, (v, 100_000)),
        lambda: emulator.run(cuda, (v, 40), stack=1500),
        lambda: emulator.run(cuda, (v, 40), stack=0),
        lambda: gpu.run_on_cpu(kernel, np.stack([v, v]), np.array([3, 100_000])),
    ):
        with pytest.raises(HyadError, match="the recursion is too deep for the stack") as caught:
            call()
        assert "(fn [x k]" in caught.value.span.text and "STACK_SIZE" in caught.value.hint


def test_a_check_in_a_recursive_function_is_told() -> None:
    """From some calls deep, of one element among many."""
    f = hyad.model(
        "(fn [#^ (Vec n) v #^ (Arr Int m) at] (letrec [f (fn [k d] (if (< d 1) (get v k) (* 0.5 (+ (f k (- d 1))"
        " (sin (f (+ k 1) (- d 1)))))))] (map (fn [k] (f k 3)) at)))",
        namespace={},
    )
    v, at = np.linspace(1.0, 2.0, 40), np.arange(30)
    cuda = print_grid(f.optimised(f.specs((v, at)), "cuda"))
    emulator = Emulator([cuda], gpu.cpu_compiler() or (), "-O1")
    np.testing.assert_allclose(emulator.run(cuda, (v, at))[0], f(v, at), rtol=1e-12)
    for descending in (False, True):
        with pytest.raises(BoundsError) as caught:
            emulator.run(cuda, (v, np.where(at == 17, 38, at)), descending=descending)
        assert "(get v k)" in caught.value.span.text


def test_a_thread_that_wants_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyad.emulate.MOST", 256)
    f = hyad.grad(hyad.model(LONG, namespace={}), wrt="v")
    v = np.linspace(0.1, 1.0, 9)
    cuda = print_grid(f.optimised(f.specs((v, 3)), "cuda"))
    emulator = Emulator([cuda], gpu.cpu_compiler() or (), "-O1")
    np.testing.assert_allclose(emulator.run(cuda, (v, 100))[0], f(v, 100), rtol=1e-11)
    with pytest.raises(OutOfMemory, match="the memory of a thread is used up"):
        emulator.run(cuda, (v, 100_000))


def test_blocks_that_memory_has_no_room_for_are_not_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is memory for fewer blocks than there is work for, these alone leave parts."""
    monkeypatch.setattr(pieces, "ROOM", 256 * 512)
    f = hyad.grad(hyad.model(LONG, namespace={}), wrt="v")
    value = hyad.value_and_grad(hyad.model(LONG, namespace={}), wrt="v")
    v = np.linspace(0.1, 1.0, 5000)
    cuda = print_grid(value.optimised(value.specs((v, 3)), "cuda"))
    found = Emulator([cuda], gpu.cpu_compiler() or (), "-O1").run(cuda, (v, 20), heap=256)
    np.testing.assert_allclose(found[1], f(v, 20), rtol=1e-11)
    np.testing.assert_allclose(found[0], value(v, 20)[0], rtol=1e-11)


@pytest.mark.parametrize(
    "text, message, form",
    [
        ("(fn [l] (fold + 0.0 l))", "the argument `l` is data", "l"),
        (
            "(fn [#^ (Vec n) v] (letrec [f (fn [x] (if (< x 1.0) nil (cons x (f (* 0.5 x)))))] (f (sum v))))",
            "the result is data",
            "(f (sum v))",
        ),
        (
            "(fn [#^ (Vec n) v] (letrec [f (fn [x d] (if (< d 1) nil (cons x (f (* x (get v 0)) (- d 1)))))"
            " s (fn [l x] (if (null? l) x (+ (sin (* x (car l))) (s (cdr l) x))))] (let [l (f 1.0 (floor (sum v)))"
            " w (map (fn [x] (s l x)) v) y (sum (map (fn [x] (sin (* x (get w 0)))) v))]"
            " (map (fn [x] (s l (* y x))) v))))",
            "one kernel makes data here that another one is to read",
            "(f 1.0 ",
        ),
    ],
)
def test_what_cannot_run_on_a_gpu_says_why(text: str, message: str, form: str) -> None:
    f = hyad.model(text, namespace={})
    given = hyad.lisp([1.0, 2.0]) if "[l]" in text[:8] else np.linspace(1.0, 2.0, 200)
    with pytest.raises(CompileError, match=message) as caught:
        print_grid(f.optimised(f.specs((given,)), "cuda"))
    assert caught.value.span is not None and form in caught.value.span.text


HALVED = "(iterate (fn [v] (> (sum v) 1.0)) (fn [v] (map (fn [a] (* 0.5 a)) v)) x)"
P7 = "(+ (* (get p 0) (get p 5)) (sin (* (get p 1) (real j))) (* (get p 2) (get p 3)) (sin (* (get p 4) (get p 6))))"
#: Arrays whose size depends on how often a ``while`` of the host has run, or on an integer that it has remembered.
ROUNDS_AS_SIZES = {
    "array": f"""(fn [#^ (Vec n) x] (let [r {HALVED}]
        (sum (map (fn [a] (* a (get r 0 0))) (cumsum (build (get r 1) (fn [j] (sin (real j)))))))))""",
    "in a loop": f"""(fn [#^ (Vec n) x] (let [r {HALVED}]
        (ifold (fn [v k] (let [w (cumsum (map (fn [j] (sin (* (get v 0) (real j)))) (arange k)))]
                           (+ (map (fn [a] (+ a (* 0.1 (sum (map sin w))))) v) (sum w))))
               (get r 0) (get r 1))))""",
    "remembered": f"""(fn [x] ((grad (fn [p] (let [v (ref (full 70 900.0)) i (ref 0) s (ref 0.0)]
        (while (> (sum (deref v)) 1.0)
          (set! v (map (fn [a] (* 0.5 a)) (deref v)))
          (set! s (+ (deref s) (sum (map (fn [a]
             (ifold (fn [q j] (sin (+ (* 0.001 a q) {P7}))) 1.0 (* 3 (+ 1 (deref i))))) p))))
          (set! i (+ (deref i) 1)))
        (+ (deref s) (sum (deref v))))))
      x))
    """,
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ROUNDS_AS_SIZES)
def test_arrays_as_long_as_a_while_of_the_host_has_run(name: str) -> None:
    """They had room for one element."""
    f, x = hyad.model(ROUNDS_AS_SIZES[name], namespace={}), np.linspace(0.1, 900.0, 70)
    program = print_grid(f.optimised(f.specs((x,)), "cuda"))
    assert any(isinstance(step, While) for step in program.steps)
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for how in ({}, {"rounds": 1, "heap": 2}, {"descending": True}):
        (got,) = emulator.run(program, (x,), **how)
        np.testing.assert_allclose(got, memoised.compile(f, args=(x,))(x), rtol=1e-10)


def test_a_thread_cannot_have_an_array_of_a_size_that_the_device_finds() -> None:
    text = """(fn [#^ (Vec n) x p] (let [v (ref x) i (ref 0) s (ref 0.0)]
        (while (> (sum (deref v)) 1.0)
          (set! v (map (fn [a] (* 0.5 a)) (deref v)))
          (set! s (+ (deref s) (sum (scan (fn [q j] (sin (* q (+ p j)))) 1.0 (build (+ 1 (deref i)) real)))))
          (set! i (+ (deref i) 1)))
        (+ (deref s) (sum (deref v)))))"""
    f = hyad.model(text, namespace={})
    with pytest.raises(CompileError, match="the size of this array is not known before the call"):
        print_grid(f.optimised(f.specs((np.ones(3), 0.3)), "cuda"))


def test_an_array_whose_shape_changes_says_what_to_declare() -> None:
    text = (Path(__file__).parent / "bench" / "problems" / "naive" / "models.hy").read_text(encoding="utf-8")
    text = "(defmodel jacobi" + text.partition("(defmodel jacobi")[2].partition("\n(defmodel")[0]
    text = text.replace("(range 10)", "(range k)")  # of a known count, the first iteration would stand before the loop
    for declared, works in (("(Mat n m)", False), ("(Mat n n)", True)):
        parameters = f"[#^ {declared} u #^ {declared} f #^ Int k]"
        f = hyad.grad(hyad.model(text.replace("[u f]", parameters), namespace={}), wrt=("u", "f"))
        spread = f.optimised(f.specs((np.eye(4), np.eye(4), 10)), "cuda")
        if works:
            assert not any(note.startswith("one thread") for _, note in print_grid(spread).notes)
            continue
        with pytest.raises(CompileError, match="the shape of this array changes") as caught:
            print_grid(spread)
        assert "(Mat n n) u` (here the length of `u` and the size of `u` along axis 1)" in (caught.value.hint or "")


#: Recursion whose records, or whose rounds, one thread remembers between two parallel loops.
RECURSIVE = {
    "tail": "(letrec [go (fn [t a] (if (= t m) a (go (+ t 1) (sin (* a (get x (% t 3)))))))] (go 0 1.0))",
    "structural": "(letrec [go (fn [t] (if (= t m) 1.0 (* (get x (% t 3)) (sin (go (+ t 1))))))] (go 0))",
    "vectors": "(letrec [go (fn [t] (if (= t m) x (sin (* x (go (+ t 1))))))] (sum (go 0)))",
    "twice": "(letrec [go (fn [t] (if (< t 2) (get x t) (+ (sin (go (- t 1))) (* 0.5 (go (- t 2))))))] (go m))",
    "halves": """(letrec [go (fn [i j] (if (= (- j i) 1) (get x i)
                                   (let [h (// (+ i j) 2)] (* (go i h) (sin (go h j))))))]
                   (+ (go 0 (len x)) (real m)))""",
    "by data": """(letrec [go (fn [v] (if (< (sum v) 0.1) v (sin (* x (go (* 0.5 v))))))]
                    (+ (log (sum (go x))) (real m)))""",
    "products": """(letrec [go (fn [t] (if (= t m) x (let [y (go (+ t 1))]
                     (tanh (map (fn [a] (sum (* 0.1 a y))) x)))))] (sum (sin (go 0))))""",
    "floors": """(letrec [f (fn [d y] (if (< d 1.0) y (* (sin y) (f (- d 1.0) (* y (sum (map (fn [z] (* z y)) x)))))))]
                   (+ (f (floor (/ (sum x) 10)) (get x 0)) (real m)))""",
    "sizes": """(let [a (outer x x)]
                  (letrec [go (fn [t] (if (= t m) (ones (len x)) (@ a (* x (go (+ t 1))))))]
                    (log (sum (* x (go 0))))))""",
    "two": """(letrec [f (fn [t] (if (= t m) 1.0 (* (get x t) (sin (f (+ t 1))))))
                       g (fn [t] (if (= t m) 0.5 (+ (get x t) (cos (* 2 (g (+ t 1)))))))]
                (let [y (f 0)] (+ (sum (* y (sin x))) (g 0))))""",
}


@pytest.mark.some(12)
@pytest.mark.parametrize("name", RECURSIVE)
def test_a_gradient_of_recursion_on_a_gpu(name: str) -> None:
    """What a function remembers lies in one thread, which does all between the calls there and back."""
    f = hyad.model(f"(fn [x #^ Int m] {RECURSIVE[name]})", namespace={})
    x = np.random.default_rng(0).uniform(0.3, 0.9, 20)
    made = [hyad.grad(f, wrt="x"), hyad.value_and_grad(f, wrt="x"), f]
    programs = [print_grid(g.optimised(g.specs((x, 5)), "cuda"), name=f"g{k}") for k, g in enumerate(made)]
    emulator = Emulator(programs, gpu.cpu_compiler() or (), "-O1")
    for g, program in zip(made, programs):
        for m, descending in itertools.product((2, 6), (False, True)):
            want = memoised.compile(g, args=(x, m))(x, m)
            for a, b in zip(emulator.run(program, (x, m), descending=descending, heap=2), leaves(want)):
                np.testing.assert_allclose(a, b, rtol=1e-11)


def leaves(value: Any) -> list[Any]:
    return [*value] if isinstance(value, tuple) else [value]


# ------------------------------------------------------------------------------------------------ as text


def test_golden(golden: Any) -> None:
    golden("halves_cuda.cu", print_cuda(program_of("halves", False), name="halves").source)


@pytest.mark.skipif(nvrtc.nvcc() is None, reason="no nvcc")
def test_emitted_pairs_compile_alone(tmp_path: Path) -> None:
    """Over a batch and for one call, host code and all."""
    hyad.emit(derivative("halves"), tmp_path / "over.cu", target="cuda", args=arguments("halves"))
    hyad.emit(derivative("until-deep"), tmp_path / "one.cu", target="cuda", grid=True, args=arguments("until-deep"))
    assert "long long heap, long long rounds, void *work" in " ".join((tmp_path / "one.h").read_text().split())
    flags = ["-arch=sm_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    done = subprocess.run(
        [nvrtc.nvcc() or "", *flags, "-c", "over.cu", "one.cu"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
def test_compiles_to_ptx() -> None:
    source = print_cuda(program_of("lists", False), dtype="f32").source
    assert b".entry" in nvrtc.compile_device(source, "compute_80", "kernel", fast=True)


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("many", "steps", "dtype", "bounds"),
    [(3, "steps", "f64", "128, 4"), (8, "steps", "f64", "64, 8"), (8, "steps", "f32", "128, 4"),
     (2, "steps", "f64", ""), (4, "20", "f64", ""), (4, "steps", "f32", "")],
)  # fmt: skip
def test_sums_that_wait_for_a_long_loop_leave_registers_to_it(many: int, steps: str, dtype: str, bounds: str) -> None:
    """Where they would take half of all: 24 doubles, 48 floats."""
    step = " ".join(f"(* (get theta {j}) (cos (* {j + 1}.0 s)))" for j in range(many))
    head = f"[#^ (Vec {many}) theta #^ (Vec 8) strikes #^ Int n #^ Int m #^ Int steps]"
    text = f"""(defmodel waits {head} (build n (fn [c]
      ((jacobian (fn [theta] (ifold (fn [total k]
        (map + total (let [x (ifold (fn [s i] (sin (+ s (real (* c k)) {step}))) 0.5 {steps})]
          (map (fn [y] (max 0.0 (- (exp x) y))) strikes)))) (build 8 (fn [j] 0.0)) m))) theta))))"""
    f = hyad.model(text, namespace={})
    args = [np.linspace(0.01, 0.05, many), np.linspace(0.5, 1.5, 8), 70, 3, 5]
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True), dtype=dtype)
    assert re.findall(r"__launch_bounds__\(([^)]*)\)", program.source) == [bounds] * bool(bounds)
    (got,) = Emulator([program], gpu.cpu_compiler() or ()).run(program, args)
    close = 1e-11 if dtype == "f64" else 1e-3
    want = hyad.compile(f, args=args)(*args)
    np.testing.assert_allclose(got, want, rtol=close, atol=close * np.max(np.abs(want)))


def test_a_recursion_by_halves_of_a_vector_compiles_without_a_warning() -> None:
    text = """(defmodel halved [#^ (Vec n) x] (letrec [
      go (fn [lo hi] (if (= (- hi lo) 1) (square (get x lo))
           (let [mid (// (+ lo hi) 2)] (+ (go lo mid) (go mid hi)))))] (go 0 (len x))))"""
    f = hyad.model(text, namespace={})
    program = print_grid(f.optimised(f.specs(None), "cuda"))
    (got,) = Emulator([program], gpu.cpu_compiler() or ()).run(program, [np.arange(5.0)])
    assert got == 30.0
