"""What needs a real GPU: results, arrays of other libraries, streams, contexts, errors, memory, host programs.

    python tests/device/checks.py [--seconds N] [NAME ...]

It makes the checks whose names hold one of these, else all; after so many seconds it begins no further one.

Plain functions: ``tests/device/run.sh`` runs them without pytest, one after another, and pytest could. A check returns
nothing, or why it was left out. What may end a process runs in one of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hyad
from hyad import device, gpu
from hyad.codegen import nvrtc
from hyad.marshalling import take_apart

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = ROOT / "tests" / "bench" / "problems"
SCALE = "(defmodel scale [#^ (Vec n) v a] (map (fn [x] (* a x x)) v))"
RNG = np.random.default_rng(0)


def model(text: str) -> hyad.Model:
    return hyad.model(text, namespace={})


def problem(name: str) -> hyad.Model:
    return getattr(hyad.load(PROBLEMS / f"{name}.hy"), name)


def flat(tree: Any, value: Any) -> list[Any]:
    out: list[Any] = []
    take_apart(tree, value, out)
    return out


def near(a: Any) -> np.ndarray:
    """An array of the host's, from wherever."""
    return a.get() if hasattr(a, "get") else np.asarray(a)


def same(got: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    """To rounding: relative to the largest element, for sums are added up in another order."""
    got, wanted = np.asarray(got, float), np.asarray(wanted, float)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    scale = max(np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted)), 1e-300)
    worst = np.max(np.abs(got - wanted), initial=0, where=np.isfinite(wanted))
    assert worst <= tolerance * scale, f"off by {worst / scale:.1e} of the largest"


def alike(f: Any, args: list[Any], tolerance: float = 1e-10, **options: Any) -> gpu.CudaModel:
    """One call on the GPU gives what C gives, from arrays of the host's and of the GPU's."""
    compiled, entry = hyad.compile(f, "cuda", args=args, **options), hyad.compile(f, args=args)
    wanted = flat(entry.program.out, entry(*args))
    for given in (args, [to_gpu(a) if isinstance(a, np.ndarray) else a for a in args]):
        found = flat(compiled.program.out, compiled(*given))
        for a, b in zip(found, wanted):
            same(near(a), b, tolerance)
    return compiled


def to_gpu(array: np.ndarray) -> Any:
    from pycuda.gpuarray import to_gpu

    return to_gpu(np.ascontiguousarray(array))


def child(text: str, *, status: int = 0) -> str:
    """What a Python process prints."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert "PyCUDA ERROR" not in done.stderr and "terminate called" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def standing_in() -> bool:
    """Whether a CPU stands in for the GPU (``without_gpu.sh``)."""
    return device.current().place.name() == "a stand-in"


def size(many: int, few: int) -> int:
    """``many``; where a CPU stands in for the GPU, which takes thousands of times as long, ``few``."""
    return few if standing_in() else many


# -------------------------------------------------------------------------------------------- results


def check_batches() -> None:
    """Jacobians and gradients of many elements are those of C, one by one."""
    for f, shapes in (
        (hyad.jacobian(problem("fk")), [(6,)]),
        (hyad.jacobian(problem("ba"), wrt="p"), [(15,), (2,)]),
        (hyad.value_and_grad(problem("rosen")), [(9,)]),
        (hyad.grad(model("(defmodel s [x y] (/ (* x (sin y)) (+ 1.0 (exp (- x)))))")), [(), ()]),
    ):
        for n in (1, 127, 5000):
            args = [RNG.uniform(0.5, 2.0, (n, *s)) for s in shapes]
            one = [a[0] if a.ndim > 1 else a[0].item() for a in args]
            compiled, entry = hyad.compile(f, "cuda", args=one), hyad.compile(f, args=one)
            found = flat(compiled.program.out, compiled(*args))
            for k in {0, n // 2, n - 1}:
                at = [a[k] if a.ndim > 1 else a[k].item() for a in args]
                for a, b in zip(found, flat(entry.program.out, entry(*at))):
                    same(a[k], b)


def check_rows_at_any_address() -> None:
    """Rows that the copy engine moves, and those that it does not take: at odd places, and of a length that 16 does not
    divide."""
    f = hyad.jacobian(problem("ba"), wrt="p")
    triple = model("(defmodel triple [#^ (Mat n 3) a] (map (fn [x] (* 2.0 x)) a))")
    for dtype, real in (("f64", np.float64), ("f32", np.float32)):
        compiled, rows = hyad.compile(f, "cuda", dtype=dtype), hyad.compile(triple, "cuda", dtype=dtype)
        for n in (1, 31, 33, size(400_001, 1001)):
            p, feature = (RNG.uniform(0.5, 2.0, s).astype(real) for s in ((n, 15), (n, 2)))
            wanted, three = compiled(p, feature), p[:, :3].copy()
            at_one = [to_gpu(np.concatenate([np.zeros(1, real), a.ravel()]))[1:].reshape(a.shape) for a in (p, feature)]
            assert np.array_equal(near(compiled(*at_one)), wanted, equal_nan=True)
            for k in {0, n // 2, n - 1} if dtype == "f64" else ():
                same(wanted[k], f(p[k], feature[k]))
            odd = to_gpu(np.concatenate([np.zeros(1, real), three.ravel()]))[1:].reshape(three.shape)
            assert np.array_equal(near(rows(odd)), 2 * three) and np.array_equal(rows(three), 2 * three)


def check_single_precision() -> None:
    """f32 is near f64: some elements divide by little."""
    f = hyad.jacobian(problem("ba"), wrt="p")
    p, feature = RNG.uniform(0.5, 2.0, (1000, 15)), RNG.uniform(0.5, 2.0, (1000, 2))
    double = hyad.compile(f, "cuda")(p, feature)
    single = hyad.compile(f, "cuda", dtype="f32")(p, feature)
    assert single.dtype == np.float32
    same(single, double, 2e-3)


def check_one_call() -> None:
    """Maps, folds, scans, products, loops of the host, scatter-adds: one call in parallel."""
    n = 100_003
    v, w = RNG.normal(size=n), RNG.normal(size=n)
    alike(
        hyad.value_and_grad(model("(defmodel d [#^ (Vec n) v #^ (Vec n) w] (fold + 0.0 (map * v (map sin w))))")),
        [v, w],
    )
    alike(model("(defmodel m [#^ (Vec n) v] (fold max (get v 0) v))"), [v])
    alike(model("(defmodel c [#^ (Vec n) v] (scan + 0.0 v))"), [v[:3000]], 1e-9)
    smooth = "(build (len u) (fn [i] (+ (* 0.5 (get u i)) (* 0.5 (get u (% (+ i 1) (len u)))))))"
    text = f"(defmodel h [#^ (Vec n) v #^ Int steps] (fold + 0.0 (map sin (ifold (fn [u k] {smooth}) v steps))))"
    alike(hyad.grad(model(text), wrt="v"), [v[:5000], 7])
    gather = "(defmodel g [#^ (Vec n) v #^ (Arr Int m) at] (fold + 0.0 (map (fn [k] (* (get v k) (get v k))) at)))"
    alike(hyad.grad(model(gather), wrt="v"), [v[:100], RNG.integers(0, 100, 50_000)])
    a, b = RNG.normal(size=(70, 50)), RNG.normal(size=(50, 90))
    alike(model("(defmodel p [#^ (Mat n k) a #^ (Mat k m) b] (mat-mul a b))"), [a, b])


def check_recursion_and_memory() -> None:
    """Gradients of a recursion and of ``while``s, over a batch too; a stack that is used up, which the GPU survives."""
    down = "(letrec [f (fn [x d] (if (< d 1) x (sin (* x (f (* 0.9 x) (- d 1))))))] (sum (map (fn [x] (f x d)) v)))"
    f = hyad.value_and_grad(model(f"(defmodel down [#^ (Vec n) v #^ Int d] {down})"), wrt="v")
    v = RNG.uniform(0.5, 1.5, 20_000)
    compiled = alike(f, [v, 60])
    same(compiled(np.stack([v[:50], v[50:100]]), 60)[1], np.stack([f(x, 60)[1] for x in (v[:50], v[50:100])]))
    try:
        compiled(v, 100_000)
        raise AssertionError("no error")
    except hyad.HyadError as error:
        assert "too deep for the stack" in str(error), error
    same(compiled(v, 60)[1], f(v, 60)[1])
    root = "(while (> (abs (- (square (deref x)) a)) 1e-9) (set! x (* 0.5 (+ (deref x) (/ a (deref x))))))"
    root = f"(sum (map (fn [a] (let [x (ref a)] {root} (deref x))) v))"
    alike(hyad.value_and_grad(model(f"(defmodel r [#^ (Vec n) v] {root})")), [v])
    halve = "(while (> (sum (deref u)) 1.0) (set! u (map (fn [x] (* 0.7 (sin x))) (deref u))))"
    alike(hyad.value_and_grad(model(f"(defmodel u [#^ (Vec n) v] (let [u (ref v)] {halve} (sum (deref u))))")), [v])


def check_gmm() -> None:
    """The gradient of a Gaussian mixture's likelihood, of sizes that are given, and of rows that go through shared
    memory: both, one and none of two. And of declared sizes."""
    f, n = problem("gmm"), size(2000, 100)

    def given(k: int, d: int) -> list[Any]:
        parts = [RNG.normal(size=k), RNG.normal(size=(k, d)), RNG.normal(size=(k, d * (d + 1) // 2)) / (d + 4)]
        return [*parts, RNG.normal(size=(n, d)), 1.0, 0.0]

    for d in (1, 4, 23, 24, 47, 50):
        alike(hyad.value_and_grad(f, wrt=(0, 1, 2)), given(5, d), 1e-9)
    text = (PROBLEMS / "gmm.hy").read_text()
    for declared, size_ in (
        ("(Vec k) alphas", "(Vec 5) alphas"),
        ("(Mat k d)", "(Mat 5 4)"),
        ("(Mat k p)", "(Mat 5 10)"),
    ):
        assert declared in text
        text = text.replace(declared, size_)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "declared.hy").write_text(text.replace("(Mat n d) x", "(Mat n 4) x"))
        g = hyad.value_and_grad(hyad.load(Path(folder, "declared.hy")).gmm, wrt=(0, 1, 2))
        args = given(5, 4)
        compiled = alike(g, args, 1e-9)
        exact = hyad.compile(g, "cuda", args=args, deterministic=True)
        first, again = (flat(exact.program.out, exact(*args)) for _ in range(2))
        assert all(np.array_equal(x, y) for x, y in zip(first, again))
        assert "hyad_add(&" not in compiled.source


def check_rows_by_an_index() -> None:
    """Cameras, points and corners that threads find by an index, gathered by warps; a wrong index is an error."""
    c, n, m = 50, 3000, 40_001
    f = hyad.load(PROBLEMS / "bundle.hy").bundle_blocks
    args = [RNG.uniform(0.5, 1.5, s) for s in ((c, 11), (n, 3), m, (m, 2))]
    args += [RNG.integers(0, c, m), RNG.integers(0, n, m)]
    compiled = alike(f, args)
    assert "hyad_gather<11>" in compiled.source
    args[5][m // 2] = n
    try:
        compiled(*args)
    except hyad.BoundsError as e:
        assert "points" in str(e), e
    else:
        raise AssertionError("the index was not checked")
    normal = "(cross (map - (get x (get t 1)) (get x (get t 0))) (map - (get x (get t 2)) (get x (get t 0))))"
    f = model(f"(defmodel normals [#^ (Mat n 3) x #^ (Arr Int f 3) at] (map (fn [t] {normal}) at))")
    args = [RNG.normal(size=(500, 3)), RNG.integers(0, 500, (20_003, 3))]
    alike(f, args)
    same(hyad.compile(f, "cuda", args=args, dtype="f32")(*args), hyad.compile(f, args=args)(*args), 1e-4)


def check_memory_of_threads() -> None:
    """States that each thread remembers, between those of its neighbours: in one call and over a batch, whole numbers
    among them."""
    path = "(ifold (fn [s k] (+ (* 0.9 (sin s)) (* (get p 1) (get p 2)))) (get p 0) m)"
    f = hyad.grad(model(f"(defmodel paths [#^ (Mat n 3) x #^ Int m] (sum (map (fn [p] {path}) x)))"), wrt="x")
    assert "hyad_strided" in alike(f, [RNG.uniform(0.5, 1.5, (50_001, 3)), 40]).source
    g = hyad.grad(model(f"(defmodel path [#^ (Vec 3) p #^ Int m] {path})"), wrt="p")
    p = RNG.uniform(0.5, 1.5, (3001, 3))
    same(hyad.compile(g, "cuda", args=(p[0], 40))(p, 40), np.stack([g(row, 40) for row in p]))
    step = "(fn [c k] (let [i (% (int (* a (real (* k k)))) m)] (update c i (+ 1 (get c i)))))"
    count = f"(ifold {step} (build m (fn [j] 0)) 20)"
    text = f"(map (fn [a] (let [c {count}] (ifold (fn [s j] (+ (* 0.9 s) (* a (real (get c j))))) 0.0 m))) x)"
    f = model(f"(defmodel counted [#^ (Vec n) x #^ Int m] {text})")
    args = [RNG.integers(32, 96, 10_001) / 64.0, 7]  # whose products are exact in single precision, too
    alike(f, args)
    same(hyad.compile(f, "cuda", args=args, dtype="f32")(*args), hyad.compile(f, args=args)(*args), 1e-4)


def check_loops_of_one_block() -> None:
    """Systems of equations, states that change places, ``while``s: by one block where they are small, else launched."""
    solve = "(defmodel s [#^ (Mat n n) a #^ (Vec n) b] (solve a b))"
    state = "(build (len u) (fn [i] (+ (* 0.5 (get u i)) (* 0.5 (get u (% (+ i 1) (len u)))))))"
    heat = f"(defmodel h [#^ (Vec n) u #^ Int steps] (ifold (fn [u k] {state}) u steps))"
    halve = "(while (> (amax (deref u)) 0.1) (set! u (map (fn [x] (* 0.7 (sin x))) (deref u))))"
    until = f"(defmodel u [#^ (Vec n) v] (let [u (ref v)] {halve} (deref u)))"
    for n in (1, 33, size(130, 40), size(500, 70)):
        a = RNG.normal(size=(n, n))
        alike(model(solve), [a, RNG.normal(size=n)], 1e-7)
        alike(model("(defmodel c [#^ (Mat n n) a] (cholesky a))"), [a @ a.T + n * np.eye(n)], 1e-9)
        alike(hyad.value_and_grad(model("(defmodel l [#^ (Mat n n) a] (logdet a))")), [a], 1e-6)
        for f in (solve, "(defmodel c [#^ (Mat n n) a] (inv a))"):
            args = [a, RNG.normal(size=n)] if f is solve else [a]
            alike(model(f).without(("persistent",)), args, 1e-7)
    for n in (50, size(200_000, 40_000)):
        for steps in (6, 7):
            alike(model(heat), [RNG.normal(size=n), steps])
        alike(model(until), [RNG.uniform(0.5, 2.0, n)])


def check_large_products() -> str | None:
    """By cuBLAS, where it is installed, and by the program's own kernel."""
    from hyad import cublas

    a, b = RNG.normal(size=(700, 300)), RNG.normal(size=(300, 500))
    f = hyad.compile(model("(defmodel p [#^ (Mat n k) a #^ (Mat k m) b] (mat-mul a b))"), "cuda")
    same(f(a, b), a @ b, 1e-12)
    if cublas.cublas() is None:
        return "there is no cuBLAS: its part is left out"
    library, cublas.LARGE = cublas.LARGE, 1 << 62
    try:
        same(f(a, b), a @ b, 1e-12)
    finally:
        cublas.LARGE = library
    return None


def check_deterministic() -> None:
    """The same to the last bit from call to call."""
    text = "(defmodel g [#^ (Vec n) v #^ (Arr Int m) at] (fold + 0.0 (map (fn [k] (sin (get v k))) at)))"
    args = [RNG.normal(size=50), RNG.integers(0, 50, 200_000)]
    f = hyad.compile(hyad.value_and_grad(model(text), wrt="v"), "cuda", args=args, deterministic=True)
    first = [np.asarray(x).tobytes() for x in f(*args)]
    for _ in range(5):
        assert [np.asarray(x).tobytes() for x in f(*args)] == first


def check_additions() -> None:
    """At places that the data know: few that are added to often, many, and rows; atomic and in fixed point."""
    sums = model("(defmodel f [#^ (Vec m) w #^ (Arr Int n) at #^ (Vec n) x] (scatter-add w at x))")
    text = "(defmodel g [#^ (Mat v d) e #^ (Arr Int n) at #^ (Mat n d) w] (sum (* w (tanh (gather e at)))))"
    rows = hyad.grad(model(text), wrt="e")
    for deterministic in (False, True):
        for m, n in ((7, size(3_000_000, 20_000)), (100_000, size(1_000_000, 3000))):
            args = [np.zeros(m), RNG.integers(0, m, n), RNG.normal(size=n)]
            got = hyad.compile(sums, "cuda", args=args, deterministic=deterministic)(*args)
            same(got, np.bincount(args[1], args[2], m), 1e-9)
        for v, d in ((300, 200), (5, 40)):
            n = size(50_000, 500)
            e, at, w = RNG.normal(size=(v, d)), RNG.integers(0, v, n), RNG.normal(size=(n, d))
            want = np.zeros_like(e)
            np.add.at(want, at, w * (1 - np.tanh(e[at]) ** 2))
            same(hyad.compile(rows, "cuda", args=[e, at, w], deterministic=deterministic)(e, at, w), want, 1e-9)


def check_transposed_and_long_rows() -> None:
    """What is read the other way round, by tiles; rows of several blocks each; sums over the first axis."""
    a = RNG.normal(size=(size(3001, 70), size(2003, 45)))
    same(hyad.compile(model("(defmodel f [#^ (Mat n m) a] (transpose a))"), "cuda")(a), a.T, 0.0)
    rows = RNG.normal(size=(3, size(1_000_003, 17_003)))
    e = np.exp(rows - rows.max(axis=1, keepdims=True))
    soft = hyad.compile(model("(defmodel f [#^ (Mat n m) a] (map softmax a))"), "cuda")
    same(soft(rows), e / e.sum(axis=1, keepdims=True), 1e-9)
    loss = hyad.grad(model("(defmodel f [#^ (Mat n m) a] (sum (square (mean a 0))))"))
    same(hyad.compile(loss, "cuda")(a), np.broadcast_to(2 * a.mean(0) / len(a), a.shape), 1e-9)


# --------------------------------------------------------------------------- arrays, streams, contexts


def check_arrays_of_pycuda() -> None:
    v = RNG.normal(size=(1000, 7))
    out = hyad.compile(model(SCALE), "cuda")(to_gpu(v), 3.0)
    assert type(out).__name__ == "GPUArray"
    same(out.get(), 3.0 * v * v)
    same(out[10:20].reshape(7, 10).get(), (3.0 * v * v)[10:20].reshape(7, 10))
    if shutil.which("nvcc") is not None:
        same((out + out).get(), 6.0 * v * v)  # pycuda's own arithmetic, which it compiles


def check_arrays_of_torch() -> str | None:
    """Zero copy in and out, on PyTorch's current stream."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    f = hyad.compile(model(SCALE), "cuda")
    v = torch.randn(1_000_000, 8, dtype=torch.float64, device="cuda")
    same(torch.as_tensor(f(v, 2.0), device="cuda").cpu().numpy(), (2.0 * v * v).cpu().numpy())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for k in range(20):  # made, read and written in the order of the stream
            w = v * float(k)
            for _ in range(5):
                w = w + 1.0
            out = torch.as_tensor(f(w, 1.0, stream=stream), device="cuda") * 2.0
            assert torch.equal(out, 1.0 * w * w * 2.0), k
    try:
        f(v.t(), 1.0)
    except hyad.ModelTypeError as e:
        assert "not laid out row by row" in str(e)
    else:
        raise AssertionError("a transposed tensor was taken")


def check_arrays_of_cupy() -> str | None:
    """CuPy says on which stream an array is made; that is waited for."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    f = hyad.compile(model(SCALE), "cuda")
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for k in range(20):
                v = cupy.arange(3_000_000, dtype=float).reshape(-1, 3) + k
                for _ in range(5):
                    v = v * 1.0
                out = f(v, 2.0, stream=stream)
                assert bool((cupy.asarray(out) == 2.0 * v * v).all()), k
                again = f(v, 2.0)  # on the default stream, after the array's
                device.driver().Context.synchronize()
                assert bool((cupy.asarray(again) == 2.0 * v * v).all()), k


def check_streams_of_pycuda() -> None:
    import pycuda.driver as driver

    f, v = hyad.compile(model(SCALE), "cuda"), RNG.normal(size=(100_000, 8))
    streams = [driver.Stream() for _ in range(3)]
    given = to_gpu(v)
    driver.Context.synchronize()
    outs = [f(given, float(k), stream=s) for k, s in enumerate(streams)]
    for k, (s, out) in enumerate(zip(streams, outs)):
        s.synchronize()
        same(out.get(), float(k) * v * v)
    same(f(v, 2.0, stream=streams[0]), 2.0 * v * v)


def check_memory_of_foreign_streams() -> None:
    """What one of two streams of another library still reads is not written to by a call for the other."""
    import pycuda.driver as driver
    from pycuda.gpuarray import GPUArray

    f = hyad.compile(model(SCALE), "cuda")
    first, second = driver.Stream(1), driver.Stream(1)
    ones, twos = to_gpu(np.ones((1 << 20, 8))), to_gpu(np.full((1 << 20, 8), 2.0))
    read = GPUArray(ones.shape, ones.dtype)
    driver.Context.synchronize()
    for _ in range(5):
        out = f(ones, 1.0, stream=first.handle)
        driver.memcpy_dtod_async(read.gpudata, int(out.gpudata), read.nbytes, first)
        del out
        f(twos, 1.0, stream=second.handle)
        driver.Context.synchronize()
        assert (read.get() == 1.0).all()


def check_contexts_and_threads() -> None:
    """Nothing stays on the stack of contexts; threads without a context of their own may call too."""
    import pycuda.driver as driver

    f, v, wrong = hyad.compile(model(SCALE), "cuda"), RNG.normal(size=(50, 3)), []
    own = driver.Context.get_current()
    if own is not None:
        driver.Context.pop()

    def work(k: int) -> None:
        for _ in range(50):
            if not np.array_equal(f(v, float(k)), float(k) * v * v) or driver.Context.get_current() is not None:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    work(9)
    made = driver.Device(0).make_context()
    try:
        same(f(v, 5.0), 5.0 * v * v)
        assert driver.Context.get_current() == made
    finally:
        driver.Context.pop()
        if own is not None:
            own.push()
    assert not wrong, wrong


# --------------------------------------------------------------------------------------------- errors


def check_failed_checks() -> None:
    f = hyad.compile(model("(defmodel c [#^ (Vec n) v #^ Int i] (get v i))"), "cuda")
    for args in ((np.ones((5, 4)), np.array([0, 1, 9, 2, 0])), (np.ones(4), 4)):
        try:
            f(*args)
        except hyad.BoundsError as e:
            assert "(get v i)" in str(e), e
        else:
            raise AssertionError("the subscript was not checked")
    assert f(np.ones(4), 3) == 1.0


def check_out_of_memory() -> None:
    """Then it works again."""
    f = hyad.compile(model("(defmodel b [x #^ Int n] (build n (fn [i] (* x (real i)))))"), "cuda", args=(1.0, 3))
    for _ in range(2):
        try:
            f(2.0, 10**13)
        except hyad.OutOfMemory as e:
            assert "do not fit into the GPU's memory" in str(e)
        else:
            raise AssertionError("80 TB were there")
        assert f(2.0, 3).tolist() == [0.0, 2.0, 4.0]


def check_memory_is_used_again() -> None:
    """A hundred calls take no more than the first two."""
    import pycuda.driver as driver

    f, v = (
        hyad.compile(hyad.grad(model("(defmodel s [#^ (Vec n) v] (fold + 0.0 (map exp v)))")), "cuda"),
        RNG.normal(size=10**6),
    )
    for _ in range(2):
        f(v)
    free = driver.mem_get_info()[0]
    for _ in range(100):
        f(v)
    assert driver.mem_get_info()[0] >= free - 2**21


LOST = """
import hyad, numpy as np
f = hyad.compile(hyad.model("(defmodel scale [#^ (Vec n) v a] (map (fn [x] (* a x x)) v))"), "cuda")
print(f(np.ones((2, 3)), 1.0))
class Wild:
    __cuda_array_interface__ = {"shape": (100000, 3), "typestr": "<f8", "data": (0x10, False), "version": 3}
for _ in range(2):
    try:
        f(Wild(), np.ones(100000))
        f(np.ones((2, 3)), 1.0)
    except hyad.DeviceError as e:
        print("DeviceError:", e)
"""


def check_an_illegal_access() -> None:
    """Said with what to do, and the process ends as it should."""
    said = child(LOST)
    assert "this process cannot use the GPU any more" in said, said
    assert "was lost to an earlier failure" in said, said


LEFT = """
import hyad, numpy as np
{how}
f = hyad.compile(hyad.model("(defmodel scale [#^ (Vec n) v a] (map (fn [x] (* a x x)) v))"), "cuda")
print(f(np.ones((2, 3)), 1.0).sum())
{then}
"""


ONE_BY_ONE = """
import pycuda.driver as driver
from pycuda.gpuarray import to_gpu
driver.init()
kept = []
for k in range(4):
    own = driver.Device(0).make_context()
    kept.append(f(to_gpu(np.ones((2, 3))), 2.0))
    assert kept[-1].get().sum() == 12 and f(np.ones((2, 3)), 2.0).sum() == 12
    own.pop()
    own.detach()
"""
THREAD = "import threading\nt = threading.Thread(target=f, args=(np.ones((2, 3)), 2.0))\nt.start()\nt.join()"


def check_how_processes_end() -> None:
    """With arrays alive, with and without a context of the user's, whatever was imported first; after contexts one
    where another had been, and where the first call was another thread's."""
    for how, then in (
        ("", ""),
        ("", ONE_BY_ONE),
        ("import pycuda.autoinit", "from pycuda.gpuarray import to_gpu\nout = f(to_gpu(np.ones((2, 3))), 2.0)"),
        ("", "import pycuda.autoprimaryctx\nfrom pycuda.gpuarray import to_gpu\nout = f(to_gpu(np.ones((2, 3))), 2.0)"),
    ):
        assert child(LEFT.format(how=how, then=then)).startswith("6.0")
    late = LEFT.format(how="", then="").replace("print(f(", THREAD + "\nprint(f(")
    assert "UserWarning" not in (said := child(late)) and said.startswith("6.0"), said


def check_modules_are_kept_on_disk() -> None:
    """A second process compiles nothing."""
    text = LEFT.format(how="from hyad.codegen import nvrtc", then="")
    child(text)
    quiet = text.replace("f = hyad", "nvrtc.compile_device = None\nf = hyad")
    assert child(quiet).startswith("6.0")


# ------------------------------------------------------------------------------------- host programs

MAIN = """\
#include "total.h"
#include <stdio.h>
int main(void)
{
    enum { n = 1000 };
    double v[n], grad[n], value, *dv, *dgrad, *dvalue;
    void *work = 0;
    for (int k = 0; k < n; k++)
        v[k] = 0.001*k;
    cudaMalloc((void **)&dv, sizeof v);
    cudaMalloc((void **)&dgrad, sizeof v);
    cudaMalloc((void **)&dvalue, sizeof value);
    cudaMalloc(&work, %s);
    cudaMemcpy(dv, v, sizeof v, cudaMemcpyHostToDevice);
    if (total_call(dv, n, dvalue, dgrad, work, 0) != cudaSuccess)
        return 1;
    cudaMemcpy(grad, dgrad, sizeof v, cudaMemcpyDeviceToHost);
    cudaMemcpy(&value, dvalue, sizeof value, cudaMemcpyDeviceToHost);
    printf("%%.12g %%.12g\\n", value, grad[n - 1]);
    return 0;
}
"""


def check_a_host_program() -> str | None:
    """An emitted pair, compiled by nvcc and linked to a main."""
    if nvrtc.nvcc() is None:
        return "there is no nvcc"
    with tempfile.TemporaryDirectory() as folder:
        f = hyad.value_and_grad(model("(defmodel total [#^ (Vec n) v] (fold + 0.0 (map (fn [x] (* x (sin x))) v)))"))
        _, header = hyad.emit(f, Path(folder, "total.cu"), target="cuda", grid=True)
        Path(folder, "main.cu").write_text(MAIN % ("TOTAL_BYTES(n)" if "(n)" in header.read_text() else "TOTAL_BYTES"))
        arch = "-arch=sm_90" if standing_in() else "-arch=native"  # nvcc looks for a GPU itself
        command = [nvrtc.nvcc(), arch, "total.cu", "main.cu", "-o", "main"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if standing_in():
            return "it is compiled, and not run: a CPU stands in for the GPU"
        found = subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, f"exit status {found.returncode}\n{found.stderr}"
        v = 0.001 * np.arange(1000)
        same([float(x) for x in found.stdout.split()], [np.sum(v * np.sin(v)), np.sin(v[-1]) + v[-1] * np.cos(v[-1])])
    return None


# ---------------------------------------------------------------------------------------- what takes long


def check_the_ad_suite() -> str | None:
    """Every derivative of the suite at a small size, as one call; what has no such form is named."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from adsuite import OBJECTIVES

    left = []
    for objective in OBJECTIVES:
        models = hyad.load(objective.models)
        for name, make in objective.derivatives.items():
            args = list(objective.point(np.random.default_rng(7), **objective.small[-1]).values())
            try:
                alike(make(models), args, 1e-8)
            except hyad.CompileError as e:
                left.append(f"{objective.name}'s {name} ({e.message})")
            except AssertionError as e:
                raise AssertionError(f"{objective.name}'s {name}: {e}") from None
    return ", ".join(left) or None


SMALL = """
import hyad, numpy as np
text = "(defmodel d [#^ (Vec n) v #^ (Arr Int m) at] (fold + 0.0 (map (fn [k] (sin (get v k))) at)))"
f = hyad.compile(hyad.value_and_grad(hyad.model(text), wrt="v"), "cuda", args=(np.ones(3), np.zeros(3, int)))
print(f(np.ones(77), np.arange(1000) % 77)[0])
g = hyad.compile(hyad.jacobian(hyad.model("(defmodel j [x y] [(* x y) (sin x)])")), "cuda")
print(g(np.ones(300), np.ones(300))[0].sum())
"""


def check_with_compute_sanitizer() -> str | None:
    """Memory and races, on small sizes."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return "there is no compute-sanitizer"
    for kind in ("memcheck", "racecheck"):
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, "-c", SMALL]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        except subprocess.TimeoutExpired:
            return f"{kind} took more than a minute"
        if "not supported" in done.stdout:
            return "compute-sanitizer does not support this machine"
        assert done.returncode == 0, done.stdout[-3000:]
    return None


# ------------------------------------------------------------------------------------------- running


def run(names: Sequence[str], seconds: float) -> int:
    """Run the checks, and begin none after so many seconds; how many failed."""
    checks: dict[str, Callable[[], Any]] = {k: v for k, v in globals().items() if k.startswith("check_")}
    failed, began = 0, time.perf_counter()
    for name, check in checks.items():
        if names and not any(n in name for n in names):
            continue
        started = time.perf_counter()
        try:
            said = "no time" if started - began > seconds else check()
            said = f"left out: {said}" if said else "ok"
        except Exception:
            failed, said = failed + 1, "FAILED"
            traceback.print_exc()
        print(f"{name.removeprefix('check_').replace('_', ' '):40s} {said} ({time.perf_counter() - started:.1f} s)")
    print(f"{failed} failed")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when no further check is begun")
    parser.add_argument("names", nargs="*", help="parts of names: the checks to make")
    given = parser.parse_args(arguments)
    try:
        import pycuda.autoprimaryctx  # noqa: F401  (the context that PyTorch, CuPy and JAX use too)

        device.driver()
    except Exception as e:  # whatever it is: there is nothing to test
        print(f"no GPU can be used here: {e}", file=sys.stderr)
        return 2
    os.environ.setdefault("HYAD_CHECK", "0")
    return 1 if run(given.names, given.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
