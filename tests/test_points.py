"""Rows of two to four numbers, points and colours: programs with them are loops over numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad

#: Not clang, which goes by that name on some machines.
GCC = None if sys.platform == "darwin" else shutil.which("gcc")

RNG = np.random.default_rng(5)

# As in NumPy: the differences of all points, in arrays of n x n x 3.
BROADCAST = """(fn [#^ (Mat n 3) x #^ (Vec n) m eps]
  (let [d (- (expand-dims x 1) (expand-dims x 0))
        r (sqrt (+ (sum (* d d) 2) (* eps eps)))]
    (* -0.5 (sum (/ (outer m m) r)))))"""

PAIRWISE = """(fn [#^ (Mat n 3) x #^ (Vec n) m eps]
  (* -0.5 (sum (map (fn [xi mi] (sum (map (fn [xj mj] (/ (* mi mj) (sqrt (+ (sq-norm (- xi xj)) (* eps eps))))) x m)))
                    x m))))"""

# A force that the rest goes on with: what is added to n x n x 3 derivatives comes in several sums.
FORCE = """(fn [#^ (Mat n 3) x #^ (Vec n) m #^ (Mat n 3) v eps]
  (let [d (- (expand-dims x 0) (expand-dims x 1))
        r2 (+ (sum (square d) 2) (square eps))
        w (/ (expand-dims m 0) (* r2 (sqrt r2)))]
    (sum (* v (sum (* d (expand-dims w 2)) 1)))))"""


def energy(x: np.ndarray, m: np.ndarray, eps: float) -> float:
    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            total -= 0.5 * m[i] * m[j] / np.sqrt(np.sum((x[i] - x[j]) ** 2) + eps**2)
    return total


def differences(f: Any, args: list[Any], k: int, h: float = 1e-6) -> np.ndarray:
    """The gradient of a Python function by an argument, by central differences."""
    found = np.empty_like(args[k])
    for at in np.ndindex(found.shape):
        two = []
        for s in (h, -h):
            moved = args[k].copy()
            moved[at] += s
            two.append(f(*args[:k], moved, *args[k + 1 :]))
        found[at] = (two[0] - two[1]) / (2 * h)
    return found


@pytest.mark.parametrize("text", [BROADCAST, PAIRWISE])
def test_all_pairs_of_points_are_one_nest_in_lanes(text: str) -> None:
    """No array of all pairs, nothing is added at the inner index: eight points at once, whose sums are in registers."""
    f = hyad.model(text)
    gradient = hyad.compile(hyad.grad(f, wrt=(0, 1)))
    assert gradient.cfunction.workspace is None
    assert gradient.source.count("sqrt(") - gradient.source.count("double sqrt(") == 1
    assert "tile" in gradient.source and not re.search(r"x_bar\[3\*i1[^\]]*\] [-+]=", gradient.source)
    apart = hyad.compile(hyad.grad(f, wrt=(0, 1)), without=["chains", "pairs"])
    for n in (0, 1, 2, 7, 8, 17):
        args = [RNG.normal(size=(n, 3)), RNG.uniform(0.5, 2, n), 0.3]
        assert f(*args) == pytest.approx(energy(*args), rel=1e-12)
        for k, (one, two) in enumerate(zip(gradient(*args), apart(*args))):
            np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(one, differences(energy, args, k), rtol=1e-5, atol=1e-6)


def test_arrays_between_nests_are_gone_where_all_that_reads_them_joins() -> None:
    text = hyad.compile(hyad.grad(hyad.model(BROADCAST), wrt=(0, 1)), without=["chains", "follow"])
    assert "n*n" in text.cfunction.workspace
    # the largest of all comes first: what reads the array after it cannot be in the nest that makes it
    f = hyad.model("""(fn [#^ (Mat n m) x] (let [e (map (fn [r] (map exp r)) x)  top (max (map (fn [r] (max r)) e))]
                       (sum (map (fn [r] (sum (map (fn [a] (sqrt (/ a top))) r))) e))))""")
    for n, m in ((4, 3), (1, 1), (9, 17)):
        x = RNG.normal(size=(n, m))
        e = np.exp(x)
        assert f(x) == pytest.approx(np.sqrt(e / e.max()).sum(), rel=1e-13)
        if x.size > 1:
            assert hyad.check_grad(f, (x,))
        else:  # the sum is 1
            assert hyad.grad(f)(x) == pytest.approx(0.0, abs=1e-15)


def test_the_derivative_of_a_force_makes_no_array_of_all_pairs() -> None:
    """Three columns of a derivative are one sum over rows, whatever is added to them later."""
    f = hyad.model(FORCE)
    gradient = hyad.compile(hyad.grad(f, wrt=(0, 1, 2)))
    assert gradient.cfunction.workspace is None or "n*n" not in gradient.cfunction.workspace

    def plain(x: np.ndarray, m: np.ndarray, v: np.ndarray, eps: float) -> float:
        d = x[None] - x[:, None]
        r2 = (d**2).sum(2) + eps**2
        return float((v * (d * (m[None] / r2**1.5)[:, :, None]).sum(1)).sum())

    for n in (0, 1, 3, 9):
        args = [RNG.normal(size=(n, 3)), RNG.uniform(0.5, 2, n), RNG.normal(size=(n, 3)), 0.5]
        assert f(*args) == pytest.approx(plain(*args), rel=1e-12, abs=1e-12)
        for k, one in enumerate(gradient(*args)):
            np.testing.assert_allclose(one, differences(plain, args, k), rtol=1e-5, atol=1e-6)


def test_a_row_that_is_written_out_is_added_element_by_element() -> None:
    f = hyad.model("(fn [#^ (Mat n 3) x] (sum (map (fn [p] (norm (+ p [1.0 2.0 3.0]))) x)))")
    source = hyad.compile(hyad.grad(f)).source
    assert "memcpy" not in source and "k < 3" not in source
    x = RNG.normal(size=(5, 3))
    y = x + [1.0, 2.0, 3.0]
    np.testing.assert_allclose(hyad.grad(f)(x), y / np.linalg.norm(y, axis=1, keepdims=True), rtol=1e-13)


# ------------------------------------------------------------------------------------ two sets of points

#: Each has a loop over one set inside a loop over the other, and is differentiated by both.
BETWEEN = {
    "cutoff": """(fn [#^ (Mat t 2) p #^ (Mat o 3) obs]
  (sum (map (fn [q] (sum (map (fn [ob] (let [d (- (get ob 2) (sq-norm (- q (get ob (slice 0 2)))))]
                                          (if (> d 0) (* d d) 0.0))) obs))) p)))""",
    "obstacles": """(fn [#^ (Mat t 2) p #^ (Mat o 3) obs]
  (sum (map (fn [q] (sum (map (fn [ob] (let [d (- (get ob 2) (np.linalg.norm (- q (get ob (slice 0 2)))))]
                                          (if (> d 0) (* d d) 0.0))) obs))) p)))""",
    "springs": """(fn [#^ (Mat t 2) p #^ (Mat o 3) obs]
  (sum (map (fn [q] (sum (map (fn [ob] (square (- (get ob 2) (sqrt (sq-norm (- q (get ob (slice 0 2))))))))
                              obs))) p)))""",
    "bumps": """(fn [#^ (Mat t 2) p #^ (Mat o 3) obs]
  (sum (map (fn [q] (square (sum (map (fn [ob] (/ (get ob 2) (+ 1 (sq-norm (- q (get ob (slice 0 2)))))))
                                      obs)))) p)))""",
}


def between(name: str, p: np.ndarray, obs: np.ndarray) -> float:
    d2 = ((p[:, None] - obs[None, :, :2]) ** 2).sum(2)
    if name == "bumps":
        return float(((obs[None, :, 2] / (1 + d2)).sum(1) ** 2).sum())
    d = obs[None, :, 2] - (d2 if name == "cutoff" else np.sqrt(d2))
    return float(((d if name == "springs" else np.maximum(d, 0)) ** 2).sum())


@pytest.mark.parametrize("name", BETWEEN)
def test_the_gradient_by_two_sets_of_points_is_in_lanes(name: str) -> None:
    """One nest, whose eight iterations add to the other set's derivatives together, or two nests that each sum; a guard
    against a root of zero is no branch, and rows are written from lanes."""
    f = hyad.model(BETWEEN[name], namespace={})
    gradient = hyad.compile(hyad.value_and_grad(f, wrt=(0, 1)))
    lanes = re.findall(
        r"HYAD_LANES\n +for \(long long lane = 0; lane < 8; lane\+\+\) {(.*?)\n +}", gradient.source, re.S
    )
    assert sum(bool(re.search(r"_bar\d*\[lane\] [-+]=", body)) for body in lanes) == (2 if name == "cutoff" else 1)
    assert not any("if (" in body for body in lanes)
    for n, m in ((0, 0), (3, 0), (0, 3), (1, 1), (2, 3), (7, 9), (8, 8), (9, 16), (17, 5), (24, 25)):
        p, obs = RNG.normal(size=(n, 2)), np.column_stack([RNG.normal(size=(m, 2)), RNG.uniform(0.2, 1.5, m)])
        value, parts = gradient(p, obs)
        assert value == pytest.approx(between(name, p, obs), rel=1e-12)
        for k, part in enumerate(parts):
            wanted = differences(lambda p, obs: between(name, p, obs), [p, obs], k)
            np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(GCC is None, reason="asks gcc which loops are vectors")
def test_lanes_that_choose_are_vectors_under_strict_flags(tmp_path: Path) -> None:
    """gcc branches there if it thinks of traps, or knows what the sums start at."""
    hyad.emit(hyad.value_and_grad(hyad.model(BETWEEN["cutoff"], namespace={}), wrt=(0, 1)), tmp_path / "cutoff.c")
    lines = (tmp_path / "cutoff.c").read_text().splitlines()
    pragma = next(k for k, line in enumerate(lines) if "no-trapping-math" in line)
    assert pragma < next(k for k, line in enumerate(lines) if "static inline" in line)  # or they are not inlined
    heads = {k + 1 for k, line in enumerate(lines) if "lane++" in line and "? " in "".join(lines[k : k + 10])}
    command = [GCC, "-O3", "-fopt-info-vec-optimized", "-c", "cutoff.c"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    found = {int(k) for k in re.findall(r"cutoff\.c:(\d+):\d+: optimized: *loop vectorized", said)}
    assert len(heads) == 2 and heads <= found


def test_points_that_meet_have_no_derivative_through_their_distance() -> None:
    """Where the root is of zero the guard holds, in each lane by itself."""
    f = hyad.model(BETWEEN["obstacles"], namespace={})
    p = RNG.normal(size=(19, 2))
    obs = np.column_stack([p[[3, 12, 18]], [1.0, 2.0, 3.0]])
    for got, alone in zip(
        hyad.grad(f, wrt=(0, 1))(p, obs), hyad.compile(hyad.grad(f, wrt=(0, 1)), without=["choices"])(p, obs)
    ):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, alone, rtol=1e-12, atol=1e-13)


def test_what_is_left_of_eight_iterations_needs_no_workspace() -> None:
    f = hyad.model(BETWEEN["bumps"], namespace={})
    made = hyad.compile(hyad.value_and_grad(f, wrt=(0, 1))).cfunction
    assert not made.arena and "% 8" in made.source and "n % 8" not in (made.workspace or "")


# ------------------------------------------------------------------------- sizes of rows that nobody declared

SPREAD = "(fn [x c] (sum (map (fn [p] (sq-norm (- p c))) x)))"


def spread(x: np.ndarray, c: np.ndarray) -> float:
    return float(((x - c) ** 2).sum())


def test_short_rows_have_code_of_their_own_and_all_others_one() -> None:
    f = hyad.model(SPREAD)
    gradient = hyad.grad(f, wrt=(0, 1))
    for n, k in ((5, 3), (2, 3), (4, 7), (5, 3), (3, 2), (2, 9), (6, 1), (3, 0), (0, 3), (1, 4)):
        x, c = RNG.normal(size=(n, k)), RNG.normal(size=k)
        assert f(x, c) == pytest.approx(spread(x, c), rel=1e-13)
        for got, wanted in zip(gradient(x, c), (2 * (x - c), -2 * (x - c).sum(0))):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
    assert len(f._compiled) == 4  # 2, 3, 4, and any other
    assert "for (long long i1" not in hyad.show(f, "c", args=(np.ones((9, 3)), np.ones(3)))
    assert "for (long long i1" in hyad.show(f, "c", args=(np.ones((9, 5)), np.ones(5)))


def test_code_for_all_sizes_leaves_short_rows_to_theirs() -> None:
    """Whatever came first: a call has the same code, and the same bits."""
    f, g = hyad.model(SPREAD), hyad.model(SPREAD)
    wide, short = (np.ones((2, 9)), np.ones(9)), (RNG.normal(size=(6, 3)), RNG.normal(size=3))
    f(*wide), f(*short), g(*short), g(*wide)
    assert [len(h._compiled) for h in (f, g)] == [2, 2]
    compiled = hyad.compile(SPREAD, args=wide)
    assert compiled(*short) == f(*short) == g(*short)
    view = memoryview(short[0])
    assert f(view, short[1]) == g(view, short[1]) == f(*short)
    pair = hyad.model("(fn [p] (let [#(x s) p] (* s (sum x))))")
    for k in (5, 3, 5, 3):
        assert pair((np.ones((2, k)), 2.0)) == 4.0 * k


def test_what_is_declared_and_what_is_emitted_is_for_all_sizes(tmp_path: Path) -> None:
    f = hyad.model("(fn [#^ (Mat n k) x] (sum (square x)))")
    assert f(np.ones((2, 3))) == 6.0 and f(np.ones((2, 2))) == 4.0 and len(f._compiled) == 1
    g = hyad.model("(defmodel squares [x] (sum (square x)))")
    assert g(np.ones((2, 3))) == 6.0  # the last call's signature
    for args in (None, (np.ones((2, 3)),)):
        hyad.emit(g, tmp_path, args=args)
        assert re.search(r"x\[n\]\[\w*[a-z]\w*\]", (tmp_path / "squares.c").read_text())


def test_what_does_not_fit_short_rows_is_said_of_the_call() -> None:
    f = hyad.model("(fn [x y] (sum (square (- x y))))")
    with pytest.raises(hyad.ModelTypeError, match=r"different shapes(.|\n)*`y` has shape \(4, 2\)"):
        f(np.ones((4, 3)), np.ones((4, 2)))
    assert f(np.ones((4, 3)), np.zeros((4, 3))) == 12.0
    third = hyad.model("(fn [x] (get x 0 2))")
    with pytest.raises(hyad.BoundsError, match=r"shape \(1, 2\)"):
        third(np.ones((1, 2)))
    assert third(np.ones((1, 3))) == third(np.ones((1, 9))) == 1.0
    either = hyad.model("(fn [x] (if (> (get (shape x) 1) 3) (get x 0 3) (get x 0 0)))")
    assert [either(np.arange(k * 1.0)[None]) for k in (2, 3, 4, 9)] == [0.0, 0.0, 3.0, 3.0]
    sparse = hyad.sparse_jacobian("(fn [x] (map (fn [p] (sq-norm p)) x))")
    for k in (2, 3, 6):
        x = RNG.normal(size=(4, k))
        np.testing.assert_allclose(sparse(x).toarray(), np.kron(np.eye(4), np.ones(k)) * 2 * x.ravel())
