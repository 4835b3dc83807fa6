"""States that are kept for one step more, as schemes of two time levels have them: arrays that change places."""

from __future__ import annotations

import os
import random
import re
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen import launches, persistent
from hyad.codegen.cuda import print_cuda
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Copy, Repeat
from hyad.emulate import Emulator
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(batch.CC is None, reason="no C compiler")

STEP = "(build n (fn [i] (- (* 1.9 (get u i)) (get v i) (* 0.1 (get u (% (+ i 1) n))))))"
TWO = f"(ifold (fn [#(u v) t] #({STEP} u)) #(a b) k)"
THREE = """(ifold (fn [#(u v w) t]
  #((build n (fn [i] (- (* 0.5 (+ (get v i) (get u i))) (* 0.3 (get w (% (+ i 1) n)))))) u v)) #(a b (* 2.0 a)) k)"""
#: A program of two vectors, their length n, and how often; and how many copies an iteration makes.
PROGRAMS: dict[str, tuple[str, int]] = {
    "two levels": (f"(let [#(u v) {TWO}] (sum (* u u)))", 0),
    "the result": (f"(let [#(u v) {TWO}] u)", 0),
    "the one before": (f"(let [#(u v) {TWO}] v)", 0),
    "both": (f"(let [#(u v) {TWO}] #(u v))", 0),
    "the difference": (f"(let [#(u v) {TWO}] (sum (square (- u v))))", 0),
    "three levels": (f"(let [#(u v w) {THREE}] u)", 0),
    "the oldest": (f"(let [#(u v w) {THREE}] (sum (* w w)))", 0),
    "the first and the oldest": (f"(let [#(u v w) {THREE}] (sum (* u w)))", 1),
    "two that follow one": (
        """(get (ifold (fn [#(u v w) t] #((build n (fn [i] (- (get u i) (* 0.5 (get v i)) (* 0.1 (get w (- n i 1))))))
                                         u u)) #(a b a) k) 0)""", 1,
    ),
    "rows of a matrix": (
        """(get (ifold (fn [#(u v) t] #((build [n 3] (fn [i j] (- (get u (- n i 1) j) (* 0.5 (get v i j))))) u))
                       #((build [n 3] (fn [i j] (get a i))) (build [n 3] (fn [i j] (get b i)))) k) 0)""", 0,
    ),
    "while": (
        f"""(get (loop [u a v b t 0] (if (or (>= t k) (> (get u 0) 1e6)) #(u v)
                                       (recur {STEP} u (+ t 1)))) 0)""", 3,
    ),
    "in a loop": (
        f"(get (ifold (fn [#(u v) s] {TWO.replace(' k)', ' 3)').replace('#(a b)', '#(u v)')}) #(a b) k) 0)", 3,
    ),
}  # fmt: skip


def model(name: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) a #^ (Vec n) b #^ Int k] {PROGRAMS[name][0]})", namespace={})


def arguments(n: int, k: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    return rng.uniform(0.5, 2.0, n), rng.uniform(0.5, 2.0, n), k


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_changes_places(name: str) -> None:
    source = hyad.compile(model(name), args=arguments(5, 3)).source
    loop = re.search(
        r"\n    for \(long long \w+ = 0; \w+ < k;.*?\n    }|\n    (?:while|for \(;;).*?\n    }", source, re.S
    )
    assert loop is not None
    assert [loop[0].count(" *swap"), loop[0].count("memcpy(")] == [1, PROGRAMS[name][1]]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, dtype: str) -> None:
    """For each number of steps: wherever the pointers are after the last one."""
    f = model(name)
    for n in (1, 2, 7):
        for k in range(8):
            args = arguments(n, k)
            given = tuple(a.astype(np.float32) if dtype == "f32" and isinstance(a, np.ndarray) else a for a in args)
            want = hyad.run(f, *args)
            got = memoised.compile(f, dtype=dtype, args=given)(*given)
            close = 1e-12 if dtype == "f64" else 1e-4
            for x, y in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
                np.testing.assert_allclose(x, y, rtol=close, atol=10 * close)


@pytest.mark.parametrize(
    "name", [name for name, (text, *_) in PROGRAMS.items() if text.startswith("(let") and "sum" in text]
)
def test_gradients(name: str) -> None:
    f = model(name)
    for k in range(4):
        assert hyad.check_grad(f, arguments(3, k), wrt=("a", "b"))


#: What launches copy in each iteration, of a grid of blocks or of one.
ON_A_GPU = {"two levels": 0, "both": 0, "three levels": 0, "the first and the oldest": 0, "two that follow one": 1}


@pytest.mark.some(6)
@pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("off", [(), (persistent.NAME,)])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu(name: str, off: tuple[str, ...]) -> None:
    """By launches, and in a kernel of one block, which leaves each array where its name says."""
    f = model(name)
    with without(off):
        program = print_grid(f.optimised(f.specs(arguments(5, 3)), "cuda", blas=True), name=f"f{len(off)}")
    assert ("_loop" in program.source) == (not off)
    (loop,) = (s for s in launches.walk(program.steps) if isinstance(s, Repeat))
    assert sum(isinstance(s, Copy) for s in loop.steps) == ON_A_GPU[name]
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for k in range(5):
        args = arguments(7, k)
        for descending in (False, True):
            got = emulator.run(program, list(args), descending=descending)
            for x, y in zip(got, memoised.results(f, args), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)


#: States that start as one array, which is made before the loop: how it begins must not write over it.
STARTS = {
    "results": ("(* 2.0 a) (* 2.0 a)", "#(u v w)"),
    "numbers": ("(* 2.0 a) (* 2.0 a)", "#((sum u) (sum (* v v)) (sum (* u w)))"),
    "turned": ("(+ a b) (* 2.0 (+ a b))", "#(w v u)"),
    "one of its own": ("(* 2.0 a) (- 1.0 (* 2.0 a))", "#(u v w)"),
}


@pytest.mark.parametrize("name", STARTS)
def test_states_that_start_as_one(name: str) -> None:
    starts, out = STARTS[name]
    text = f"""(fn [#^ (Vec n) a #^ (Vec n) b #^ Int k]
      (let [#(u v w) (ifold (fn [#(u v w) t] #(v (build n (fn [i] (- (* 0.6 (get v i)) (* 0.5 (get u i)))))
                                                (build n (fn [i] (- (get w (- n i 1)) (* 0.1 (get u i)))))))
                            #(b {starts}) k)] {out}))"""
    f = hyad.model(text, namespace={})
    for n, k in ((1, 0), (5, 0), (5, 1), (5, 4)):
        args = arguments(n, k)
        for x, y in zip(memoised.compile(f, args=args)(*args), hyad.run(f, *args), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)


def random_states(seed: int) -> str:
    """A loop over states that are made anew, kept, changed at one place, chosen, or made by a loop of their own."""
    r = random.Random(seed)
    states = "uvwx"[: r.randint(2, 4)]

    def anew(*others: str) -> str:
        one, other = (r.choice([*states, *others]) for _ in "ab")
        at = r.choice(["i", "(- n i 1)", "(% (+ i 1) n)"])
        return f"(build n (fn [i] (- (* 0.6 (get {one} i)) (* 0.5 (get {other} {at})) (* 0.01 (real t)))))"

    def following(depth: int = 0) -> str:
        x = r.choice(states)
        two = f"(ifold (fn [#(y z) s] #({anew('y', 'z')} y)) #({x} {r.choice(states)}) k)"
        kinds = [anew(), x, x, f"(add-at {x} 0 0.5)", f"(ifold (fn [y s] {anew('y')}) {x} 2)", f"(get {two} 1)"]
        if depth < 2 and r.random() < 0.2:
            return f"(if (> (get {x} 0) 0.0) {following(depth + 1)} {following(depth + 1)})"
        return r.choice(kinds)

    steps = " ".join(following() for _ in states)
    starts = " ".join(r.choice(["a", "b", "(* 2.0 a)", "(+ a b)"]) for _ in states)
    read = r.sample(states, r.randint(1, len(states)))
    out = f"(sum (+ 0.0 {' '.join(f'(* {k + 1}.0 {x})' for k, x in enumerate(read))}))" if seed % 2 else " ".join(read)
    names = f"#({' '.join(states)})"
    out = out if seed % 2 or len(read) == 1 else f"#({out})"
    return f"""(fn [#^ (Vec n) a #^ (Vec n) b #^ Int k]
      (let [{names} (ifold (fn [{names} t] #({steps})) #({starts}) k)] {out}))"""


@pytest.mark.some(6)
@pytest.mark.parametrize("seed", range(int(os.environ.get("HYAD_STATES", "16"))))
def test_random_states(seed: int) -> None:
    """Values, and every other time gradients, are those of a run define by run (``HYAD_STATES``: so many programs)."""
    f = hyad.model(random_states(seed), namespace={})
    for h in (f, hyad.grad(f, wrt=("a", "b"))) if seed % 2 else (f,):
        for n, k in ((1, 1), (5, 0), (5, 1), (5, 2), (5, 3), (5, 4)):
            args = arguments(n, k)
            args = args[0], -args[1], k
            want = hyad.run(h, *args)
            for x, y in zip(memoised.results(h, args), want if isinstance(want, tuple) else (want,), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("n", [32, 33, 201])
def test_long_states_of_known_size_change_places(n: int) -> None:
    """Short ones are copied: a C compiler has them in registers."""
    f = hyad.model(
        f"(fn [#^ (Vec {n}) a k] (ifold (fn [u t] (build {n} (fn [i] (* k (get u (% (+ i 1) {n})))))) a 7))",
        namespace={},
    )
    a = np.arange(1.0, n + 1)
    made = hyad.compile(f, args=[a, 0.5])
    assert ("swap" in made.source) == (n > 32)
    assert "swap" not in print_cuda(f.optimised(f.specs([a, 0.5]))).source  # a thread has its own array
    np.testing.assert_allclose(made(a, 0.5), 0.5**7 * np.roll(a, -7), rtol=1e-15)
    tree = hyad.model(
        f"""(fn [#^ (Vec {n}) a p] (sum (square (ifold (fn [u t] (build {n} (fn [i]
              (if (and (> i t) (< i (- {n - 1} t))) (sin (* p (+ (get u (- i 1)) (get u (+ i 1))))) 0.0)))) a 5))))""",
        namespace={},
    )
    assert hyad.check_grad(tree, (np.sin(a), 0.6))
