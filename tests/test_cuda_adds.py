"""Additions to arrays on a GPU: rows at places that only data know, element by element; what is added column by column,
row by row; and sums in fixed point where results are to be the same in every call. Run on the CPU, against NumPy."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batch
import hyad
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Clear, Copy, CudaProgram, Launch, Repeat, walk
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")

SHAPES = ({}, {"blocks": 2, "block": 32, "descending": True}, {"blocks": 3, "block": 64})
TABLE = "[#^ (Mat v d) e #^ (Arr Int n) at #^ (Mat n d) w] (sum (* w (tanh (gather e at))))"
NORMED = """[#^ (Mat n m) a #^ (Mat n m) w] (let [mu (mean a 0) v (var a 0)]
  (sum (* w (map (fn [r] (map (fn [x m v] (/ (- x m) (sqrt (+ v 0.1)))) r mu v)) a))))"""


def printed(text: str, *, derive: Any = None, off: tuple[str, ...] = (), **how: Any) -> CudaProgram:
    f = hyad.model(f"(defmodel f {text})", namespace={})
    f = derive(f) if derive else f
    with without(off):
        return print_grid(f.optimised(f.specs(None), "cuda", blas=True), **how)


@cache
def emulator_of(*programs: CudaProgram) -> Emulator:
    return Emulator(programs, gpu.cpu_compiler() or ())


def kernel(program: CudaProgram, name: str) -> str:
    """The text of the one kernel of that name."""
    return program.source.partition(f" {name}(")[2].partition("\n}\n")[0]


def table_gradient(f: Any) -> Any:
    return hyad.grad(f, wrt="e")


def table_arguments(n: int = 60) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(7, 70)), rng.integers(0, 7, n), rng.normal(size=(n, 70))


def test_rows_are_added_element_by_element() -> None:
    """Neighbouring threads read and add neighbours, and no row is stacked."""
    program = printed(TABLE, derive=table_gradient)
    whole = printed(TABLE, derive=table_gradient, off=("elements",))
    launches = [s for s in walk(program.steps) if isinstance(s, Launch)]
    more = [s for s in walk(whole.steps) if isinstance(s, Launch)]
    text = kernel(program, "f_grad_e_bar")
    assert "j = at1 - i*d" in text and "+ j], " in text and "hyad_add" in text
    assert len(launches) < len(more)  # without it the rows are stacked, and a thread adds all of one
    e, at, w = table_arguments()
    want = np.zeros_like(e)
    np.add.at(want, at, w * (1 - np.tanh(e[at]) ** 2))
    for p in (program, whole):
        for shape in SHAPES:
            (got,) = Emulator([p], gpu.cpu_compiler() or ()).run(p, (e, at, w), **shape)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_what_is_added_to_columns_is_added_row_by_row() -> None:
    """The gradient through means and variances of columns is one kernel that makes each element, in the order of
    memory; nothing is cleared and added to."""
    program = printed(NORMED, derive=lambda f: hyad.grad(f, wrt="a"))
    assert not any(isinstance(s, Clear) for s in walk(program.steps))
    assert "a_bar[i*m + j] = " in program.source and "a_bar[i*m + j] +=" not in program.source
    whole = printed(NORMED, derive=lambda f: hyad.grad(f, wrt="a"), off=("turned",))
    assert "a_bar[i*m + j] +=" in whole.source
    rng = np.random.default_rng(2)
    a, w = rng.normal(size=(40, 5)), rng.normal(size=(40, 5))
    s = np.sqrt(a.var(0) + 0.1)
    z = (a - a.mean(0)) / s
    want = (w - w.mean(0) - z * (w * z).mean(0)) / s
    emulator = emulator_of(program)
    for shape in SHAPES:
        (got,) = emulator.run(program, (a, w), **shape)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("term", "stays"), [
    ("(* (get a i j) (get b i j) (get c i j))", True), ("(* (get a i j) (get b j i) (get c j i))", False),
], ids=["along columns", "along rows"])  # fmt: skip
def test_what_is_read_along_columns_stays(term: str, stays: bool) -> None:
    """A nest whose own order reads more side by side than the other one would."""
    text = f"""[#^ (Mat n m) a #^ (Mat n m) b #^ (Mat n m) c] (let [t (zeros [(len (get a 0)) (len a)])]
      (for [i (range (len a)) j (range (len (get a 0)))] (set-at! t j i (+ (get t j i) {term}))) t)"""
    program, plain = printed(text), printed(text, off=("turned",))
    assert (program.source == plain.source) == stays
    a, b, c = np.random.default_rng(3).normal(size=(3, 7, 7))  # square, for either order
    (got,) = emulator_of(program).run(program, (a, b, c))
    np.testing.assert_allclose(got, (a * b * c).T if stays else a.T * b * c)


SCATTERED = "[#^ (Arr Int n) at #^ (Vec n) x #^ (Vec m) w] (scatter-add w at x)"
GUARDED = """[#^ (Arr Int n) at #^ (Mat n k) x #^ (Vec m) w]
  (let [t (copy w)] (for [i (range (len at)) j (range (len (get x 0)))]
    (when (> (get x i j) 0.0) (set-at! t (get at i) (+ (get t (get at i)) (get x i j))))) t)"""


@pytest.mark.some(6)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("size", [1e-290, 1e-30, 1.0, 1e30, 1e300])
def test_sums_in_fixed_point_are_those_of_reals(size: float, dtype: str) -> None:
    """Of terms of one size, and of very different ones, in any order of threads the same bits, nearer to the sum than
    adding in order comes."""
    if dtype == "f32" and not 1e-31 < size < 1e31:
        pytest.skip("no number in single precision")
    program = printed(SCATTERED, dtype=dtype, deterministic=True)
    assert "hyad_add(double" not in program.source and "hyad_add(float" not in program.source
    rng = np.random.default_rng(4)
    at, w = rng.integers(0, 9, 500), np.zeros(9)
    x = (rng.normal(size=500) * size * 10.0 ** rng.integers(-7, 1, 500)).astype(dtype.replace("f", "float"))
    x[at == 3] *= 1e-6 if dtype == "f32" else 1e-13  # a place that has none of the large ones
    want = np.array([float(np.sum(x[at == k].astype(np.longdouble))) for k in range(9)])
    scale = np.array([float(np.sum(np.abs(x[at == k]).astype(np.longdouble))) for k in range(9)])
    emulator = emulator_of(program)
    found = [emulator.run(program, (at, x, w), **shape)[0] for shape in SHAPES]
    for got in found:
        assert np.array_equal(got, found[0])
        assert (np.abs(got - want) <= scale * (1e-15 if dtype == "f64" else 3e-7)).all()


def test_whole_numbers_are_summed_exactly_in_fixed_point() -> None:
    program = printed(SCATTERED, deterministic=True)
    rng = np.random.default_rng(5)
    at, x, w = rng.integers(0, 5, 400), rng.integers(-1000, 1000, 400).astype(float), np.arange(5.0)
    want = w.copy()
    np.add.at(want, at, x)
    (got,) = emulator_of(program).run(program, (at, x, w))
    assert np.array_equal(got, want)


def test_what_is_no_number_stays_so_in_fixed_point() -> None:
    program = printed(SCATTERED, deterministic=True)
    at = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5])
    x = np.array([np.inf, 1.0, -np.inf, 1.0, np.inf, -np.inf, np.nan, 2.0, 3.0, 4.0, 0.0])
    for shape in SHAPES:
        (got,) = emulator_of(program).run(program, (at, x, np.ones(7)), **shape)
        np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, np.nan, 8.0, 1.0, 1.0])
    (got,) = emulator_of(program).run(program, (at[:0], x[:0], np.ones(3)))
    assert got.tolist() == [1.0, 1.0, 1.0]
    (got,) = emulator_of(program).run(program, (at[:2], np.zeros(2), np.ones(3)))
    assert got.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("deterministic", [False, True])
def test_additions_behind_a_branch_in_two_loops(deterministic: bool) -> None:
    program = printed(GUARDED, deterministic=deterministic)
    rng = np.random.default_rng(6)
    at, x, w = rng.integers(0, 6, 50), rng.normal(size=(50, 3)), np.ones(6)
    want = w.copy()
    for i, row in zip(at, x):
        want[i] += row[row > 0].sum()
    assert not any(about.startswith("one thread:") for _, about in program.notes)
    for shape in SHAPES:
        (got,) = emulator_of(program).run(program, (at, x, w), **shape)
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_added_of_a_table(deterministic: bool) -> None:
    """Of known and of unknown length: the same results as C, and with ``deterministic`` the same bits."""
    for text in (TABLE, TABLE.replace("v d", "v 3").replace("n d", "n 3")):
        program = printed(text, derive=table_gradient, deterministic=deterministic)
        e, at, w = (a[:, :3] if a.ndim == 2 and " 3)" in text else a for a in table_arguments())
        want = np.zeros_like(e)
        np.add.at(want, at, w * (1 - np.tanh(e[at]) ** 2))
        found = [emulator_of(program).run(program, (e, at, w), **shape)[0] for shape in SHAPES]
        for got in found:
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
            assert not deterministic or np.array_equal(got, found[0])


def test_whole_numbers_are_added_atomically_in_any_case() -> None:
    """Their sums do not depend on the order."""
    text = "[#^ (Arr Int n) at #^ (Arr Int m) w] (scatter-add w at (map (fn [i] (* i i)) at))"
    plain, fixed = (printed(text, deterministic=d) for d in (False, True))
    assert plain.source == fixed.source and "hyad_add(" in fixed.source


# ------------------------------------------------------------------------- few elements that are added to often

HISTOGRAM = "[#^ (Arr Int n) at #^ (Vec n) x #^ (Vec m) w] (scatter-add w at x)"
PICKED = "[#^ (Mat v 5) e #^ (Arr Int n) at] (sum (map (fn [i] (prod (get e i))) at))"


def broken(source: str, number: int) -> str:
    """Without one of the barriers of the kernel that adds in shared memory."""
    before, kernel_, after = source.partition("what this block adds")
    parts = after.split("__syncthreads();")
    return before + kernel_ + "__syncthreads();".join(parts[:number]) + ";" + "__syncthreads();".join(parts[number:])


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_few_elements_are_added_to_in_shared_memory(deterministic: bool, dtype: str) -> None:
    """Where there are many additions for each; else as they come. Both give the same, on any grid."""
    program = printed(HISTOGRAM, deterministic=deterministic, dtype=dtype)
    off = printed(HISTOGRAM, deterministic=deterministic, dtype=dtype, off=("copies",))
    assert "_here[i], " in program.source and "_here" not in off.source
    rng = np.random.default_rng(8)
    for n, m in ((12000, 5), (90, 5), (7000, 100), (0, 3), (3000, 0)):
        at, w = rng.integers(0, max(m, 1), n if m else 0), rng.normal(size=m)
        x = rng.normal(size=len(at)).astype(dtype.replace("f", "float"))
        want = w.copy()
        np.add.at(want, at, x.astype(float))
        found = [emulator_of(program).run(program, (at, x, w), **shape)[0] for shape in SHAPES]
        for got in found:
            np.testing.assert_allclose(got, want, rtol=1e-11 if dtype == "f64" else 1e-3, atol=1e-3 * (dtype == "f32"))
            assert not deterministic or np.array_equal(got, found[0])


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_barrier_around_additions_in_shared_memory_is_noticed(number: int) -> None:
    whole = printed(HISTOGRAM)
    changed = dataclasses.replace(whole, source=broken(whole.source, number))
    rng = np.random.default_rng(9)
    at, x, w = rng.integers(0, 6, 13000), rng.uniform(1, 2, 13000), np.zeros(6)
    want = np.bincount(at, x, 6)
    found = [emulator_of(changed).run(changed, (at, x, w), descending=d, blocks=1)[0] for d in (False, True)]
    assert any(not np.allclose(got, want) for got in found)


def test_a_wrong_index_beside_additions_in_shared_memory() -> None:
    program = printed(HISTOGRAM)
    at, x, w = np.arange(9000) % 4, np.ones(9000), np.zeros(4)
    for bad in (0, 31, 5000, 8999):
        wrong = at.copy()
        wrong[bad] = 4
        for shape in SHAPES:
            with pytest.raises(BoundsError):
                emulator_of(program).run(program, (wrong, x, w), **shape)


def test_the_gradient_of_a_short_table_is_added_up_by_blocks() -> None:
    program = printed(TABLE, derive=table_gradient)
    assert "e_bar_here[" in program.source
    e, at, w = table_arguments(2500)
    e, w = e[:, :8], w[:, :8]
    want = np.zeros_like(e)
    np.add.at(want, at, w * (1 - np.tanh(e[at]) ** 2))
    for shape in SHAPES:
        (got,) = emulator_of(program).run(program, (e, at, w), **shape)
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


def test_rows_of_a_short_table_are_added_up_by_blocks() -> None:
    """Instead of going through tiles, as those of a long one do."""
    program = printed(PICKED, derive=lambda f: hyad.grad(f, wrt="e"))
    assert "hyad_add_rows<5>(" in program.source and "e_bar_here[" in program.source
    rng = np.random.default_rng(10)
    for n, v in ((11000, 1), (500, 9)):
        e, at = rng.uniform(0.5, 2.0, (v, 5)), rng.integers(0, v, n)
        want = np.bincount(at, minlength=v)[:, None] * e.prod(1, keepdims=True) / e
        for shape in SHAPES:
            (got,) = emulator_of(program).run(program, (e, at), **shape)
            np.testing.assert_allclose(got, want, rtol=1e-10)


def test_a_loop_of_one_block_adds_as_it_comes() -> None:
    """The block has no room for copies, and little to do."""
    text = """[#^ (Vec m) w #^ (Arr Int n) at #^ Int s]
      (ifold (fn [u k] (scatter-add (* 0.5 u) at (map (fn [i] (* 0.001 (sin (get u i)))) at))) w s)"""
    program = printed(text)
    loop = program.source.partition("by one block")[2]
    assert " f_loop(" in loop and "_here" in program.source and "_here" not in loop
    rng = np.random.default_rng(11)
    for n, m in ((30, 5), (9000, 3)):
        w, at = rng.normal(size=m), rng.integers(0, m, n)
        want = w
        for _ in range(3):
            step = 0.5 * want
            np.add.at(step, at, 0.001 * np.sin(want[at]))
            want = step
        for shape in SHAPES:
            (got,) = emulator_of(program).run(program, (w, at, 3), **shape)
            np.testing.assert_allclose(got, want, rtol=1e-9)


# ------------------------------------------------------------------ elements that all iterations of a loop add to

MIXTURE = Path(__file__).parent / "bench" / "problems" / "gmm.hy"


def mixture_gradient(folder: Path, k: int | str, d: int | str) -> Any:
    """The gradient of the mixture of ``k`` components in ``d`` dimensions: numbers, as a user declares them, or not."""
    p = d * (d + 1) // 2 if isinstance(d, int) else "p"
    sizes = f"#^ (Vec {k}) alphas #^ (Mat {k} {d}) means #^ (Mat {k} {p}) icf #^ (Mat n {d}) x"
    text = re.sub(r"#\^ \(Vec k\) alphas .* x(?= #)", sizes, MIXTURE.read_text(encoding="utf-8"))
    assert sizes in text
    path = folder / "mixture.hy"
    path.write_text(text, encoding="utf-8")
    return hyad.grad(hyad.load(path).gmm, wrt=("alphas", "means", "icf"))


def grid_of(f: Any, **how: Any) -> CudaProgram:
    return print_grid(f.optimised(f.specs(None), "cuda", blas=True), **how)


@pytest.mark.some(10)
@pytest.mark.parametrize(("k", "d"), [(25, 10), (50, 5), (10, 20), (8, 4), (4, 3), (25, 2), ("k", 10)])
def test_a_mixture_of_declared_sizes_has_no_atomic_additions(tmp_path: Path, k: int | str, d: int) -> None:
    """All points add to the same elements of all gradients; the components add each to its own row of ``icf``."""
    f = mixture_gradient(tmp_path, k, d)
    for deterministic in (False, True) if d < 10 else (False,):
        source = grid_of(f, deterministic=deterministic).source
        added = set(re.findall(r"(?:hyad_add|atomicAdd)\(&(\w+?)\d*\[", source))
        assert added <= ({"icf_bar", "icf_bar_here"} if d == 20 else set())
        assert ("hyad_add" in source) == bool(added)


@pytest.mark.some(10)
@pytest.mark.parametrize(("k", "d", "dtype", "deterministic"), [
    (10, 3, "f64", False), (10, 3, "f64", True), (10, 3, "f32", False), (5, 10, "f64", False), ("k", 20, "f64", False),
    (6, "d", "f64", False),
])  # fmt: skip
def test_the_gradient_of_a_mixture_of_declared_sizes(
    tmp_path: Path, k: int | str, d: int | str, dtype: str, deterministic: bool
) -> None:
    f = mixture_gradient(tmp_path, k, d)
    program, compiled = grid_of(f, dtype=dtype, deterministic=deterministic), hyad.compile(f, target="c")
    rng = np.random.default_rng(12)
    k, d = k if isinstance(k, int) else 3, d if isinstance(d, int) else 4
    sizes = (0, 1, 70, 300) if d > 3 else (300, 17000)  # the last one: more parts than a thread had better add up
    for n in sizes:
        alphas, means, x = rng.normal(size=k), rng.normal(size=(k, d)), rng.normal(size=(n, d))
        args = (alphas, means, 0.3 * rng.normal(size=(k, d * (d + 1) // 2)), x, 1.0, 0.0)
        want = compiled(*args)
        found = [emulator_of(program).run(program, args, **shape) for shape in SHAPES]
        for got in found:
            for a, b, first in zip(got, want, found[0]):
                scale = max(1.0, float(np.abs(b).max()))
                np.testing.assert_allclose(a, b, rtol=0, atol=scale * (1e-12 if dtype == "f64" else 1e-4))
                assert not deterministic or np.array_equal(a, first)


SHARED = {
    "rows": ("""[#^ (Mat 30 8) w #^ (Mat n 8) x]
      (sum (map (fn [xi] (square (sum (map (fn [wi] (tanh (dot wi xi))) w)))) x))""", (30, 8)),
    "elements": ("[#^ (Vec 40) w #^ (Mat n 40) x] (sum (map (fn [xi] (square (- (dot w xi) 1.0))) x))", (40,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_what_all_iterations_add_to_in_a_short_loop_is_summed(name: str) -> None:
    """In parts, which a team adds up where there are many."""
    text, shape_ = SHARED[name]
    f = hyad.grad(hyad.model(f"(defmodel f {text})", namespace={}), wrt="w")
    program, whole = grid_of(f), printed(text, derive=lambda f: hyad.grad(f, wrt="w"), off=("apart",))
    assert "hyad_add(" not in program.source and "hyad_add(" in whole.source
    rng, compiled = np.random.default_rng(13), hyad.compile(f, target="c")
    for n in (0, 1, 50, 700):
        w, x = 0.3 * rng.normal(size=shape_), rng.normal(size=(n, shape_[-1]))
        want = compiled(w, x)
        for shape in SHAPES:
            (got,) = emulator_of(program).run(program, (w, x), **shape)
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * max(1.0, float(np.abs(want).max())))


OWN = """[#^ (Mat n 6) w #^ (Mat n 6) x] (sum (map (fn [wi xi] (let [s (sum (map * wi xi))]
  (sum (map (fn [a] (sin (* s a))) wi)))) w x))"""
PLACED = """[#^ (Mat 30 8) w #^ (Mat n 8) x #^ (Arr Int 30) at] (sum (map (fn [xi]
  (square (sum (map (fn [i] (tanh (dot (get w i) xi))) at)))) x))"""


def test_short_loops_stay_in_a_thread_where_their_sums_are_not_gathered() -> None:
    """Each iteration adds to its own row, or to rows that data know: small arrays are in registers."""
    for text in (OWN, PLACED):
        source = printed(text, derive=lambda f: hyad.grad(f, wrt="w")).source
        assert source == printed(text, derive=lambda f: hyad.grad(f, wrt="w"), off=("apart",)).source


#: Loops that set elements of an array: their gradients read what is in it before they set that to zero.
SET = {
    "all but one of a row": "(for [i (range n) j (range 1 m)] (set-at! w i j (* a (get u i j))))",
    "with the one before": "(for [i (range 1 n) j (range m)] (set-at! w i j (* a (+ (get u (- i 1) j) (get u i j)))))",
    "inner ones": """(for [i (range 1 (- n 1)) j (range 1 (- m 1))] (set-at! w i j (* a (- (+ (get u (- i 1) j)
      (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1))) (* 4.0 (get u i j))))))""",
    "sums": "(for [i (range n) j (range m) k (range n)] (set-at! w i j (+ (get w i j) (* a (get u k j) (get u i j)))))",
    "some": "(for [i (range n) j (range m)] (when (= (% (+ i j) 2) 0) (set-at! w i j (* a (get u i j)))))",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", SET)
def test_gradients_of_loops_that_set_elements(name: str, deterministic: bool) -> None:
    """Sums that read what is changed are taken out before it is, or stay with it."""
    text = f"[#^ (Mat n m) u a] (let [w (copy u)] {SET[name]} (sum (square w)))"
    program = printed(text, derive=hyad.value_and_grad, deterministic=deterministic)
    compiled = hyad.compile(hyad.value_and_grad(hyad.model(f"(defmodel f {text})", namespace={})))
    for n, m in ((1, 1), (2, 3), (5, 40), (33, 4)):
        u = np.random.default_rng(n).normal(size=(n, m))
        value, (u_bar, a_bar) = compiled(u, 0.3)
        for shape in SHAPES:
            got = emulator_of(program).run(program, (u, 0.3), **shape)
            for x, want in zip(got, (value, u_bar, a_bar)):
                np.testing.assert_allclose(x, want, rtol=1e-11, atol=1e-11)


def test_no_function_is_there_that_nothing_calls() -> None:
    """Compilers warn about them: sizes of a reshaped array are divided on the host alone."""
    text = """[#^ (Arr Real b h w) x #^ (Arr Real b h w) dx]
      (jvp (fn [x] (amax (amax (reshape x [b (// h 2) 2 (// w 2) 2]) 4) 2)) x dx)"""
    for derive in (None, hyad.jacobian):
        source = printed(text, derive=derive).source
        for name in re.findall(r"^static __device__ inline [\w ]*?[ *](\w+)\(", source, re.MULTILINE):
            assert len(re.findall(rf"\b{name}\b", source)) > 1


def test_warps_that_share_a_tile_agree_on_a_failed_check() -> None:
    """All threads of a block go on, or none: lanes that had left would be missed where rows are moved."""
    text = "[#^ (Arr Real b h w) x] (amax (amax (reshape x [b (// h 2) 2 (// w 2) 2]) 4) 2)"
    kernels = printed(text).source.split('extern "C" __global__')[1:]
    sharing = [kernel for kernel in kernels if "hyad_shared_rows" in kernel and "status" in kernel]
    assert sharing and all("__syncthreads_or(*status != 0)" in kernel for kernel in sharing)


#: Loops whose iterations add to several arrays in one branch, or loop, and that are taken apart.
SEVERAL = {
    "in a branch": ("""[#^ (Mat n n) m #^ (Vec n) v #^ (Vec n) w]
        (sum (build n (fn [a] (+ (dot v (get m a)) (if (> (get v a) 0.0) (sum (get m 0)) (get w a))))))""",
        ("m", "w"), "mvw"),
    "in a branch, and others": ("""[#^ (Mat n n) m #^ (Vec n) v #^ (Vec n) w] (ifold (fn [s a] (+ s (dot v (get m a))
        (if (> (get v a) 0.0) (+ (get w a) (sum (get m 0))) (dot v w)))) 0.0 n)""", ("m", "v", "w"), "mvw"),
    "in a loop": ("""[#^ (Mat n n) m #^ (Vec n) w x] (sum (sin (build [n n] (fn [i j]
        (dot (build n (fn [p] x)) (@ (build [n n] (fn [a b] (get m b j))) w))))))""", ("m", "x"), "mwx"),
    "to a row that is changed": ("""[#^ (Mat n k) m] (sum (build [n n] (fn [a b]
        (let [r (update (get m a) 1 (get m b 2))] (sum (square r))))))""", ("m",), "m"),
}  # fmt: skip
GIVEN = {"m": np.cos(np.arange(25.0)).reshape(5, 5), "v": np.sin(np.arange(5.0)), "w": np.arange(5.0) - 2, "x": 0.3}


@pytest.mark.parametrize("name", SEVERAL)
def test_each_array_that_one_operation_adds_to_goes_on_as_itself(name: str) -> None:
    text, wrt, given = SEVERAL[name]
    args = tuple(GIVEN[k] for k in given)
    f = hyad.grad(hyad.model(f"(defmodel f {text})", namespace={}), wrt=wrt)
    want = hyad.compile(f, "python", args=args)(*args)
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    for shape in SHAPES:
        for ours, theirs in zip(emulator_of(program).run(program, args, **shape), want if len(wrt) > 1 else [want]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "text, given",
    [
        ("""[#^ (Mat n m) x #^ (Mat k l) w] (build [(- n k) (- m l)] (fn [i j]
            (ifold (fn [s a] (ifold (fn [s b] (+ s (* (get w a b) (get x (+ i a) (+ j b))))) s l)) 0.0 k)))""",
         ((6, 7), (2, 3))),
        ('[#^ (Arr Real n m k) x #^ (Arr Real q m k) w] (einsum "nmk,qmk->nq" x w)', ((3, 2, 4), (5, 2, 4))),
    ],
)  # fmt: skip
def test_sums_over_several_axes(text: str, given: tuple[tuple[int, ...], ...]) -> None:
    """Of products, one loop in the other: a convolution's, and an einsum's."""
    args = tuple(np.sin(1.0 + np.arange(np.prod(shape))).reshape(shape) for shape in given)
    f = hyad.model(f"(defmodel f {text})", namespace={})
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    for shape in SHAPES:
        (got,) = emulator_of(program).run(program, args, **shape)
        np.testing.assert_allclose(got, hyad.run(f, *args), rtol=1e-12)


#: Layers over a batch of matrices, and how many loops of the host their gradients are.
LAYERS = {
    "a layer": ("(sum (square (@ x w)))", "xw", 0),
    "two layers": ("(sum (tanh (@ (tanh (@ x w)) u)))", "xwu", 0),
    "an einsum": ('(sum (square (einsum "btd,dh->bth" x w)))', "xw", 0),
    "sums of products that are not by rows": ("(sum (map (fn [m] (sum (square (@ (transpose m) v)))) x))", "xv", None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_products_of_a_batch(name: str) -> None:
    """The gradient by the weights is one product of all rows of the batch, that by the input a stack of products."""
    body, by, loops = LAYERS[name]
    wave = lambda *shape: np.sin(1.0 + np.arange(np.prod(shape))).reshape(shape)  # noqa: E731
    args = wave(2, 3, 4), wave(4, 5), wave(5, 2), wave(3, 2)
    text = f"(defmodel f [#^ (Arr Real b t d) x #^ (Mat d h) w #^ (Mat h k) u #^ (Mat t k) v] {body})"
    f = hyad.grad(hyad.model(text, namespace={}), wrt=tuple(by))
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    if loops is not None:
        assert sum(isinstance(s, Repeat) for s in walk(program.steps)) == loops
    want = hyad.compile(f, "python", args=args)(*args)
    for shape in SHAPES:
        for ours, theirs in zip(emulator_of(program).run(program, args, **shape), want):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "text, copies",
    [
        ("[#^ (Vec n) v x #^ Int j] (update v j x)", 1),
        ("[#^ (Vec n) v x #^ Int j] (let [w (copy v)] (set-at! w 0 x) (set-at! w j 2.0) w)", 1),
        ("[#^ (Vec n) v x #^ Int j] (let [w (update v j x)] (+ (sum v) (sum (sin w))))", 1),
        ("[#^ (Vec n) v x #^ Int j] [v v]", 2),
        ("[#^ (Vec n) v x #^ Int j] (stack #(v (sin v)))", 2),
    ],
)
def test_no_thread_copies_an_array(text: str, copies: int) -> None:
    f = hyad.model(f"(defmodel f {text})", namespace={})
    args = np.arange(5.0), 7.5, 3
    program = print_grid(f.optimised(f.specs(args), "cuda", blas=True))
    assert sum(isinstance(s, Copy) for s in walk(program.steps)) == copies
    assert not re.search(r"for \(long long k = 0; k < n;", program.source)
    for shape in SHAPES:
        (got,) = emulator_of(program).run(program, args, **shape)
        np.testing.assert_allclose(got, hyad.run(f, *args), rtol=1e-14)


#: What a row is, by a condition: of a matrix, of another one, or a vector that many share; with the gradients' names.
CHOSEN = {
    "a row or a vector": ("(if (> (get c i) 0) (get a i) v)", "a v"),
    "a vector or a row": ("(if (> (get c i) 2) v (get a i))", "a v"),
    "a row or another": ("(if (> (get c i) 1) (get a i) (get b (% (+ i 1) n)))", "a b"),
    "three": ("(cond (= (get c i) 0) v (= (get c i) 1) (get a i) True (get b i))", "a b v"),
    "a vector or its double": ("(if (> (get c i) 1) v (* 2.0 v))", "v"),
    "a vector or none": ("(if (and (> (get c i) 1) (< i (- n 1))) v (zeros k))", "v"),
    "stacked": ("(get (vstack [a b]) (+ i (get c i)))", "a b"),
}
READ = {"sums": "(sum (sin ROW))", "log sums": "(logsumexp ROW)", "products": "(dot ROW (get w i))"}


@pytest.mark.some(6)
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("name", CHOSEN)
def test_rows_that_a_branch_chooses(name: str, read: str) -> None:
    """All rows at once, what they add to one vector too: nothing is repeated by the host, or left to one thread."""
    row, wrt = CHOSEN[name]
    text = f"""[#^ (Mat n k) a #^ (Mat n k) b #^ (Vec k) v #^ (Mat n k) w #^ (Arr Int n) c]
      (sum (square (build n (fn [i] {READ[read].replace("ROW", row)}))))"""
    f = hyad.model(f"(defmodel f {text})", namespace={})
    g = hyad.grad(f, wrt=tuple(wrt.split()))
    program = printed(text, derive=lambda f: hyad.grad(f, wrt=tuple(wrt.split())))
    assert not any(isinstance(s, Repeat) for s in walk(program.steps)), program.notes
    assert not any("one thread:" in note for _, note in program.notes), program.notes
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n, k in ((1, 1), (5, 3), (40, 33)):
        rng = np.random.default_rng(n)
        a, b, w = rng.normal(size=(3, n, k))
        args = (a, b, rng.normal(size=k), w, rng.integers(0, 3, n) if name != "stacked" else rng.integers(0, n + 1, n))
        wanted = hyad.run(g, *args)
        for shape in SHAPES:
            got = emulator.run(program, args, **shape)
            for x, y in zip(got, wanted if type(wanted) is tuple else (wanted,), strict=True):
                np.testing.assert_allclose(x.reshape(np.shape(y)), y, rtol=1e-11, atol=1e-12)


#: Elements of a matrix and their mirror images, by what the two loops are.
MIRRORED = {
    "a lower triangle": "i (range n) j (range (+ i 1))",
    "without the diagonal": "i (range n) j (range i)",
    "an upper triangle": "i (range n) j (range i n)",
    "one above": "i (range n) j (range (+ i 1) n)",
    "a choice": "j (range n) i (range n) :if (<= i j)",
    "backwards": "i (range (- n 1) -1 -1) j (range (+ i 1))",
}
#: Pairs that have elements in common: what is stored last stays.
CROSSED = {
    "all": "i (range n) j (range n)",
    "one beyond": "i (range n) j (range (min n (+ i 2)))",
    "half": "i (range n) j (range (// (+ n i) 2))",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", MIRRORED | CROSSED)
def test_symmetric_matrices_that_loops_fill(name: str) -> None:
    loops, _, test = (MIRRORED | CROSSED)[name].partition(" :if ")
    body = "(let [v (exp (- (* 0.5 (get x i)) (get x j)))] (set-at! k i j v) (set-at! k j i (* 2.0 v)))"
    body = f"(when {test} {body})" if test else body
    fill = f"(let [k (zeros [n n])] (for [{loops}] {body}) k)"
    value = hyad.model(f"(defmodel f [#^ (Vec n) x #^ (Mat n n) w] {fill})", namespace={})
    g = hyad.grad(hyad.model(f"(defmodel f [#^ (Vec n) x #^ (Mat n n) w] (sum (* w {fill})))", namespace={}), wrt="x")
    plans = [print_grid(f.optimised(f.specs(), "cuda", blas=True), name=f"p{k}") for k, f in enumerate((value, g))]
    for made in plans:
        alone = any(note.startswith("one thread:") or "repeated" in note for _, note in made.notes)
        assert alone == (name in CROSSED), made.notes
    for n in (1, 2, 5, 40):
        x, w = np.random.default_rng(n).normal(size=n), np.random.default_rng(n).normal(size=(n, n))
        for f, made in zip((value, g), plans):
            wanted = hyad.run(f, x, w)
            for shape in SHAPES:
                (got,) = emulator_of(*plans).run(made, (x, w), **shape)
                np.testing.assert_allclose(got.reshape(np.shape(wanted)), wanted, rtol=1e-11, atol=1e-13)


def test_mirror_images_on_both_sides_of_the_diagonal() -> None:
    """What an iteration stores above the diagonal, the next one stores again below its own."""
    text = """[#^ (Vec n) x] (let [k (zeros [n n])]
      (for [i (range 1 (- n 1))] (set-at! k i (+ i 1) (get x i)) (set-at! k (- i 1) i (* 2.0 (get x i)))) k)"""
    program = printed(text)
    assert any(note.startswith("one thread:") or "repeated" in note for _, note in program.notes)
    x = np.random.default_rng(1).normal(size=70)
    want = np.zeros((70, 70))
    for i in range(1, 69):
        want[i, i + 1], want[i - 1, i] = x[i], 2 * x[i]
    for shape in SHAPES:
        np.testing.assert_array_equal(emulator_of(program).run(program, (x,), **shape)[0], want)
