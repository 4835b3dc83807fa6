"""Vectors on a GPU as one row: one kernel where they are short, few passes over memory where they are long, run here
on the CPU. A sum of ``n`` terms in whatever order is within ``n`` roundings of the sum of their absolute values; that
the largest element so far was another one when a term was added costs each of them no more than its own exponential.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import hyad
from hyad import gpu
from hyad.codegen import nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Choose, CudaProgram, Launch, Require, value
from hyad.emulate import Emulator

needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
DTYPES = {"f64": np.float64, "f32": np.float32}
SIZES = (1, 33, 700, 4097)


class Vector(NamedTuple):
    """A model of vectors, what it is in NumPy, and how many kernels it is: of a short vector and of a long one."""

    text: str
    numpy: Callable[..., Any]
    short: int
    long: int
    grad: bool = False


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def normal(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    d = x - x.mean()
    return v * d / np.sqrt(1e-5 + (d * d).mean())


def softmax_gradient(x: np.ndarray) -> np.ndarray:
    p = softmax(x)
    return p * (1 + x - (x * p).sum())


NORMAL = """(let [mu (mean x) d (map (fn [a] (- a mu)) x) s (sqrt (+ 1e-5 (mean (map square d))))]
  (map (fn [a w] (* w (/ a s))) d v))"""
WEIGHTED = "(let [t (fold max {} x) e (map (fn [a] (exp (- a t))) x)] (/ (dot e v) (+ 1.0 (sum e))))"
VECTORS = {
    "softmax": Vector("(softmax x)", softmax, 1, 3),
    "softmax'": Vector("(dot x (softmax x))", softmax_gradient, 1, 5, True),
    "log-softmax": Vector("(log-softmax x)", lambda x: np.log(softmax(x)), 1, 3),
    "logsumexp": Vector("(logsumexp x)", lambda x: x.max() + np.log(np.exp(x - x.max()).sum()), 1, 2),
    "logsumexp'": Vector("(logsumexp x)", softmax, 1, 3, True),
    "layer": Vector(NORMAL, normal, 1, 5),
    "weighted": Vector(WEIGHTED.format(-1e300), lambda x, v: np.exp(x - x.max()) @ v / (1 + np.exp(x - x.max()).sum()),
                       1, 2),
    "from": Vector(WEIGHTED.format(9.0), lambda x, v: np.exp(x - 9) @ v / (1 + np.exp(x - 9).sum()), 1, 2),
    "unit": Vector("(let [s (norm x)] (map (fn [a] (/ a s)) x))", lambda x: x / np.sqrt(x @ x), 1, 3),
    "both": Vector("(let [y (map sin x)] #((map (fn [a] (/ a (sum y))) x) y))",
                   lambda x: (x / np.sin(x).sum(), np.sin(x)), 1, 3),
    "goes-on": Vector("(let [s (sum x) q (fold (fn [q a] (+ q (* a a))) (* 3.0 s) x)] (fold max (- q s) x))",
                      lambda x: max(2 * x.sum() + x @ x, x.max()), 2, 2),
    "behind": Vector("(let [s (mean x) q (sum (map (fn [a] (square (- a s))) x)) p (fold (fn [p a] (+ p (* a s))) q x)]"
                     " (map (fn [a] (* a p)) (cut x 0 1)))",
                     lambda x: x[:1] * (((x - x.mean()) ** 2).sum() + x.sum() * x.mean()), 2, 5),
    "products": Vector("(let [p (fold * 0.5 (map cos x))] (fold (fn [q a] (* q (+ 1.0 (* 0.1 (sin a))))) p x))",
                       lambda x: 0.5 * np.cos(x).prod() * (1 + 0.1 * np.sin(x)).prod(), 2, 2),
    "loss": Vector("(let [f (fn [a] (+ (sum (map (fn [x v] (square (- v (* a x)))) x v)) (* a (sum (map abs x)))))]"
                   " #((f 0.7) ((D f) 0.7)))",
                   lambda x, v: (((v - 0.7 * x) ** 2).sum() + 0.7 * abs(x).sum(),
                                 abs(x).sum() - 2 * ((v - 0.7 * x) * x).sum()), 2, 2),
}  # fmt: skip
SINGLE = ("softmax", "softmax'", "weighted")


def arguments(text: str, n: int, dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n)
    made = rng.normal(size=n) + 1, rng.normal(size=n)
    return tuple(a.astype(DTYPES[dtype]) for a in made[: 1 + (" v" in text)])


def plan(text: str, name: str, dtype: str = "f64", grad: bool = False, size: str | int = "n") -> CudaProgram:
    vector = f" #^ (Vec {size}) v" if " v" in text else ""
    model = hyad.model(f"(defmodel f [#^ (Vec {size}) x{vector}] {text})", namespace={})
    model = hyad.grad(model, wrt="x") if grad else model
    return print_grid(model.optimised(model.specs(None), "cuda", blas=True), dtype=dtype, name=name)


@cache
def plans() -> tuple[Emulator, dict[tuple[str, str], CudaProgram]]:
    made = {}
    for name, v in VECTORS.items():
        for dtype in DTYPES if name in SINGLE else ("f64",):
            made[name, dtype] = plan(v.text, f"v{len(made)}", dtype, v.grad)
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator(list(made.values()), compiler), made


@needs_cpu
@pytest.mark.parametrize("name, dtype", [*((name, "f64") for name in VECTORS), *((name, "f32") for name in SINGLE)])
def test_vectors_of_one_block_and_of_many(name: str, dtype: str) -> None:
    v, (emulator, made) = VECTORS[name], plans()
    for q, n in enumerate(SIZES):
        args = arguments(v.text, n, dtype)
        want = v.numpy(*(a.astype(np.float64) for a in args))
        for got, y in zip(
            emulator.run(made[name, dtype], args, descending=q % 2 == 1),
            want if isinstance(want, tuple) else (want,),
            strict=True,
        ):
            bound = (2 * n + 32) * np.finfo(got.dtype).eps
            np.testing.assert_allclose(got, y, rtol=bound, atol=bound * np.max(np.abs(y)))


def kernels(steps: tuple[Any, ...], n: int, m: int = 0) -> list[Launch]:
    """The launches for vectors of ``n`` elements, and of ``m``."""
    out: list[Launch] = []
    for s in steps:
        if isinstance(s, Choose):
            assert not hasattr(s.cond, "array")
            out += kernels(s.then if value(s.cond, {"n": n, "m": m}) else s.orelse, n, m)
        elif not isinstance(s, Require):
            assert isinstance(s, Launch)
            out.append(s)
    return out


@pytest.mark.parametrize("name", VECTORS)
def test_how_many_kernels(name: str) -> None:
    """A block has a short vector that takes several passes; passes over a long one store nothing but results."""
    v, program = VECTORS[name], plans()[1][name, "f64"]
    short, long = kernels(program.steps, 4096), kernels(program.steps, 4097)
    assert (len(short), len(long)) == (v.short, v.long)
    assert all(s.blocks == 1 for s in short) or short == long
    assert all(m.kind != "own" or m.dims in ((), (2,), (1024,)) for m in program.memory)


def test_a_vector_of_a_known_size_is_one_kernel_or_a_few() -> None:
    short, long = plan("(softmax x)", "f", size=300), plan("(softmax x)", "f", size=5000)
    assert len(short.kernels) == 1 and len(long.kernels) == 3
    assert [m.name for m in short.memory] == ["x", "out"]


def test_checks_of_the_host_keep_no_passes_apart() -> None:
    """That there is a largest element is looked at first; then all folds are one pass."""
    program = plan("#((sum x) (sum (map square x)) (max x) (min x))", "f")
    assert [type(s) for s in program.steps] == [Require, Launch, Launch]


#: Loops over vectors of two lengths: what they are, in NumPy, and how many kernels where both are long.
TWO = {
    "folds": ("(+ (sum (map sin x)) (* (sum (map exp v)) (dot x x)) (dot v v))",
              lambda x, v: np.sin(x).sum() + np.exp(v).sum() * (x @ x) + v @ v, 5),
    "made": ("(let [e (map exp v) q (dot x x)] (map (fn [a b] (+ a (* q b))) e v))",
             lambda x, v: np.exp(v) + (x @ x) * v, 3),
    "needed": ("(let [q (dot x x) s (sum (map (fn [a] (* q a)) v))] (+ s (sum (map (fn [b] (* s b)) x))))",
               lambda x, v: (x @ x) * v.sum() * (1 + x.sum()), 6),
    "checked": ("(let [q (dot x x) a (get v (int (get v 0)))] (+ q (sum v) (sum (map (fn [b] (* a b)) x))))",
                lambda x, v: x @ x + v.sum() + v[int(v[0])] * x.sum(), None),
}  # fmt: skip


@needs_cpu
@pytest.mark.parametrize("name", TWO)
def test_vectors_of_two_lengths(name: str) -> None:
    """Loops over those of one length are beside one another where they may be: one pass over each."""
    text, numpy, many = TWO[name]
    model = hyad.model(f"(defmodel f [#^ (Vec n) x #^ (Vec m) v] {text})", namespace={})
    program = print_grid(model.optimised(model.specs(None), "cuda", blas=True))
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n, m in ((5000, 4500), (700, 1), (1, 6000)):
        rng = np.random.default_rng(n)
        x, v = rng.normal(size=n), abs(rng.normal(size=m)) / 9
        want = numpy(x, v)
        for descending in (False, True):
            (got,) = emulator.run(program, (x, v), descending=descending)
            bound = 4 * (n + m) * np.finfo(float).eps * (np.abs(x).sum() + 1) * (np.exp(v).sum() + x @ x + 1)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    if many is not None:
        assert len(kernels(program.steps, 10**7, 10**7)) == many


def test_what_is_left_is_computed_beside_its_sums() -> None:
    """A value of sums is made with them, not by a last kernel of one thread."""
    model = hyad.model("(defmodel f [#^ (Mat n m) a] (sqrt (sum (map (fn [r] (dot r r)) a))))", namespace={})
    model = hyad.value_and_grad(model)
    program = print_grid(model.optimised(model.specs(None), "cuda", blas=True))
    steps = kernels(program.steps, 10**4, 10**4)
    assert [s.blocks == 1 for s in steps] == [False, True, False]


@needs_cpu
@pytest.mark.parametrize("n", [40, 4100])
def test_infinite_elements(n: int) -> None:
    """As in C: masked elements count for nothing, wherever they lie; others make no number, or infinity."""
    emulator, made = plans()
    x = arguments("x", n, "f64")[0]
    for special in (
        {0: -np.inf, 3: -np.inf, n - 1: -np.inf},
        {7: np.inf},
        {7: np.nan},
        dict.fromkeys(range(n), -np.inf),
    ):
        y = x.copy()
        for at, e in special.items():
            y[at] = e
        for name in ("softmax", "logsumexp"):
            f = hyad.model(f"(defmodel f [#^ (Vec n) x] {VECTORS[name].text})", namespace={})
            want = hyad.compile(f, args=(y,))(y)
            for descending in (False, True):
                (got,) = emulator.run(made[name, "f64"], (y,), descending=descending)
                np.testing.assert_allclose(got, want, rtol=1e-11)


@needs_cpu
def test_a_run_ends_where_other_elements_are_read() -> None:
    """What a thread reads of another one's element is in memory: a kernel of its own makes it."""
    text = "(let [y (map sin x) s (sum y)] (build (len x) (fn [i] (/ (get y (- (len x) 1 i)) s))))"
    program = plan(text, "f")
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n in (1, 300):
        x = np.linspace(0.1, 1.0, n)
        for descending in (False, True):
            (got,) = emulator.run(program, (x,), descending=descending)
            np.testing.assert_allclose(got, np.sin(x)[::-1] / np.sin(x).sum(), rtol=1e-12)


@pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
def test_vectors_compile_to_ptx() -> None:
    made = plans()[1]
    some = (made["softmax'", "f32"], made["weighted", "f64"])
    text = "".join(f"namespace program{k} {{\n{p.source}}}\n" for k, p in enumerate(some))
    assert "shfl.sync.bfly" in nvrtc.compile_device(text, "compute_80", "all", fast=True).decode()
