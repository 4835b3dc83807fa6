"""Sparse Jacobians and Hessians: the numbers of the dense ones, and no more entries than there need be."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import scipy.sparse

import hyad
from hyad.core import REAL, Arr
from hyad.differentiate.sparsity import pattern
from hyad.sparse import colours, greedy, seeds, symmetric_colours

RNG = np.random.default_rng(7)


def dense(parts: object, rows: int) -> np.ndarray:
    """Blocks of a dense Jacobian by one argument, or several, as one matrix."""
    blocks = parts if isinstance(parts, tuple) else (parts,)
    return np.concatenate([np.reshape(b, (rows, np.size(b) // max(rows, 1))) for b in blocks], 1)


def agree(text: str, args: tuple, wrt: object = 0, entries: int | None = None, passes: str | None = None) -> None:
    """The sparse Jacobian is the dense one; it stores ``entries`` numbers and is computed as ``passes`` says."""
    f = hyad.model(text)
    sparse = hyad.sparse_jacobian(f, wrt)
    found = sparse(*args)
    assert isinstance(found, scipy.sparse.csr_array) and found.has_canonical_format
    value, wanted = hyad.run(f, *args), hyad.run(hyad.jacobian(f, wrt), *args)
    if isinstance(value, tuple):
        wanted = np.concatenate([dense(part, np.size(v)) for part, v in zip(wanted, value)])
    else:
        wanted = dense(wanted, np.size(value))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-12, atol=1e-12)
    if entries is not None:
        assert found.nnz == entries
    if passes is not None:
        assert sparse.how(*args) == passes


JACOBIANS = {
    "diagonal": ("(fn [x] (map (fn [a] (* a (sin a))) x))", 9, 9),
    "banded": ("(fn [x] (build (- (len x) 1) (fn [i] (* (get x i) (get x (+ i 1))))))", 9, 16),
    "tridiagonal with ends": (
        "(fn [x] (let [n (len x)] (build n (fn [i] (+ (* 2 (get x i))"
        " (if (= i 0) 0.0 (exp (get x (- i 1)))) (if (= i (- n 1)) 0.0 (sin (get x (+ i 1)))))))))",
        9,
        25,
    ),
    "two steps": (
        "(fn [x] (let [y (map (fn [a] (* a a)) x)] (build (- (len x) 2) (fn [i] (* (get y i) (get y (+ i 2)))))))",
        9,
        14,
    ),
    "a dense row": ("(fn [x] [(fold (fn [s a] (+ s (* a a))) 0.0 x) (get x 0) (get x 3)])", 9, 11),
    "all": ("(fn [x] (let [s (fold + 0.0 x)] (map (fn [a] (* a s)) x)))", 6, 36),
    "running sums": ("(fn [x] (scan (fn [s a] (+ s (* a a))) 0.0 x))", 6, None),
    "strided": ("(fn [x] (build (// (len x) 2) (fn [i] (* (get x (* 2 i)) (get x (+ 1 (* 2 i)))))))", 9, 8),
    "branches by value": ("(fn [x] (map (fn [a] (if (> a 0.0) (* a a) (sin a))) x))", 9, 9),
    "a chosen element": ("(fn [x] (build (len x) (fn [i] (get x (int (abs (* 3 (sin (get x i)))))))))", 9, 81),
    "heat": (
        "(fn [x] (ifold (fn [u t] (build (len u) (fn [i] (if (or (= i 0) (= i (- (len u) 1))) (get u i)"
        " (+ (get u i) (* 0.1 (get u (- i 1)) (get u (+ i 1)))))))) x 2))",
        12,
        None,
    ),
    "triangular": (
        "(fn [x] (build (len x) (fn [i] (ifold (fn [s k] (+ s (* (get x k) (get x i)))) 0.0 (+ i 1)))))",
        7,
        28,
    ),
    "set in place": (
        "(fn [x] (ifold (fn [v i] (update v (+ i 1) (* (get x i) (get x (+ i 1))))) (build (len x) (fn [i] 0.0))"
        " (- (len x) 1)))",
        9,
        16,
    ),
    "differences": ("(fn [x] (fst (ifold (fn [p i] #((update (fst p) i (- (get x i) (snd p))) (get x i)))"
        " #((build (len x) (fn [i] 0.0)) 1.0) (len x))))", 7, 13),
    "a number": ("(fn [x] (* (get x 0) (get x 2)))", 5, 2),
    "constant": ("(fn [x] (build (len x) (fn [i] 1.0)))", 5, 0),
    "floor": ("(fn [x] (map (fn [a] (+ a (floor a))) x))", 5, 5),
    "while": ("(fn [x] (let [r (ref 0.0) i (ref 0)] (while (< (deref i) 3) (set! r (+ (deref r) (get x (deref i))))"
        " (set! i (+ (deref i) 1))) [(deref r) (get x 4)]))", 6, None),
}  # fmt: skip


def checked_pattern(f: hyad.Model, numbers: np.ndarray, x: np.ndarray, entries: int | None) -> None:
    """The pattern has all that is not zero, and ``entries`` in all."""
    program = f.program([REAL_VECTOR])
    found = pattern(program, [x], [0])
    assert found.shape == numbers.shape
    assert not np.any((numbers != 0) & ~found.toarray())
    if entries is not None:
        assert found.nnz == entries


REAL_VECTOR = Arr(REAL, (None,))


@pytest.mark.parametrize("name", JACOBIANS)
def test_pattern(name: str) -> None:
    text, n, entries = JACOBIANS[name]
    x, f = RNG.uniform(-1, 1, n), hyad.model(text)
    checked_pattern(f, dense(hyad.run(hyad.jacobian(f), x), np.size(hyad.run(f, x))), x, entries)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few(n: int) -> None:
    x = RNG.uniform(-1, 1, n)
    for text in (JACOBIANS["diagonal"][0], "(fn [x] (build (len x) (fn [i] (* (get x 0) (get x i)))))"):
        f = hyad.model(text)
        checked_pattern(f, dense(hyad.run(hyad.jacobian(f), x), n), x, None)


WAYS = [
    ("banded", "blocks", "blocks of 1 x 2"),
    ("banded", "passes", "2 forward passes"),
    ("diagonal", "blocks", "blocks of 1 x 1"),
    ("diagonal", "passes", "1 forward pass"),
    ("branches by value", "blocks", "blocks of 1 x 1"),
    ("tridiagonal with ends", "passes", "3 forward passes"),
    ("a dense row", "passes", "1 forward pass and 1 reverse pass"),
    ("all", "passes", "6 forward passes"),
    ("constant", "passes", "no pass: the matrix is empty"),
]


@pytest.mark.parametrize(("name", "way", "how"), WAYS)
def test_jacobian(name: str, way: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compute the numbers."""
    if way == "passes":
        monkeypatch.setattr("hyad.sparse.entries", lambda program, wrt: None)
    text, n, entries = JACOBIANS[name]
    agree(text, (RNG.uniform(-1, 1, n),), entries=entries, passes=how)


HESSIANS = {
    "separable": ("(fn [x] (fold + 0.0 (map (fn [a] (* a a (sin a))) x)))", 8, 8),
    "rosenbrock": (
        "(fn [x] (ifold (fn [s i] (+ s (* 100 (** (- (get x (+ i 1)) (** (get x i) 2)) 2)) (** (- 1 (get x i)) 2)))"
        " 0.0 (- (len x) 1)))",
        9,
        25,
    ),
    "arrow": ("(fn [x] (ifold (fn [s i] (+ s (* (get x 0) (exp (get x i))))) 0.0 (len x)))", 9, 25),
    "squared sum": ("(fn [x] (** (fold + 0.0 x) 2))", 6, 36),
    "product": ("(fn [x] (fold * 1.0 x))", 5, None),
    "linear": ("(fn [x] (fold + 0.0 x))", 5, 0),
    "through an array": (
        "(fn [x] (let [y (map sin x)] (ifold (fn [s i] (+ s (* (get y i) (get y (+ i 2))))) 0.0 (- (len x) 2))))",
        9,
        None,
    ),
    "of a part": ("(fn [x] (* (get x 1) (get x 2)))", 6, 2),
    "grid": (
        "(fn [x] (ifold (fn [s i] (ifold (fn [s j] (+ s (** (- (get x (+ (* 4 i) j)) (get x (+ (* 4 i) j 1))) 4)"
        " (** (- (get x (+ (* 4 i) j)) (get x (+ (* 4 (+ i 1)) j))) 4))) s 3)) 0.0 3))",
        16,
        None,
    ),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_pattern_of_a_hessian(name: str) -> None:
    text, n, entries = HESSIANS[name]
    x, f = RNG.uniform(-1, 1, n), hyad.model(text)
    checked_pattern(hyad.grad(f), hyad.run(hyad.hessian(f), x), x, entries)


@pytest.mark.parametrize(("name", "passes"), [("rosenbrock", 3), ("arrow", 2), ("squared sum", 6), ("linear", 0)])
def test_hessian(name: str, passes: int) -> None:
    text, n, entries = HESSIANS[name]
    x, f = RNG.uniform(-1, 1, n), hyad.model(text)
    sparse = hyad.sparse_hessian(f)
    found = sparse(x)
    assert isinstance(found, scipy.sparse.csr_array) and found.nnz == entries
    np.testing.assert_allclose(found.toarray(), hyad.run(hyad.hessian(f), x), rtol=1e-11, atol=1e-12)
    assert sparse.how(x) == (f"{passes} forward passes" if passes else "no pass: the matrix is empty")


def some_matrix(rng: np.random.Generator, rows: int, columns: int) -> scipy.sparse.csr_array:
    """A matrix of few entries, some of whose rows and columns are full."""
    numbers = rng.uniform(1, 2, (rows, columns))
    kept = rng.uniform(size=(rows, columns)) < rng.choice([0.0, 0.03, 0.1, 0.4])
    kept[rng.uniform(size=rows) < rng.choice([0, 0.1])] = True
    kept[:, rng.uniform(size=columns) < rng.choice([0, 0.1])] = True
    return scipy.sparse.csr_array(numbers * kept)


@pytest.mark.parametrize("seed", range(40))
def test_colours(seed: int) -> None:
    """Each entry is found in the products with the sums of the unit vectors of each colour."""
    rng = np.random.default_rng(seed)
    matrix = some_matrix(rng, *rng.integers(1, 40, 2))
    found = colours(matrix, reversible=bool(seed % 4))
    up, back = found.counts
    (forward,) = seeds(found.forward, up, [matrix.shape[1:]])
    (reverse,) = seeds(found.reverse, back, [matrix.shape[:1]])
    products = np.concatenate([(matrix @ forward.T).T.ravel(), (reverse @ matrix).ravel()])
    np.testing.assert_allclose(products[found.take], matrix.data)
    assert found.cost <= matrix.shape[1]
    matrix = some_matrix(rng, 30, 30)
    matrix = scipy.sparse.csr_array(matrix + matrix.T)
    found = symmetric_colours(matrix)
    (forward,) = seeds(found.forward, found.counts[0], [(30,)])
    np.testing.assert_allclose((matrix @ forward.T).T.ravel()[found.take], matrix.data)


def test_a_band_takes_as_many_colours_as_it_is_wide() -> None:
    band = scipy.sparse.diags_array([np.ones(50)] * 5, offsets=range(-2, 3), shape=(50, 50)).tocsr()
    assert greedy(band).max() == 4


def test_columns_of_a_full_row_have_a_colour_each() -> None:
    """What the row has in columns that are not asked for does not count."""
    full = scipy.sparse.csr_array(np.array([[0, 1, 1, 1], [0, 0, 0, 1]], bool))
    assert greedy(full).tolist() == [-1, 0, 1, 2]
    crossed = scipy.sparse.csr_array(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], bool))
    assert greedy(crossed, np.array([False, False, True, True])).tolist() == [-1, -1, 0, 0]


OBSERVED = """
(fn [#^ (Mat n 3) cameras #^ (Vec m) points #^ (Arr Int k) camera #^ (Arr Int k) point scale]
  #((build (len camera) (fn [i] (let [[a b c] (get cameras (get camera i))  p (get points (get point i))]
      [(* scale (sin (+ (* a p) b))) (* p p c)])))
    (map (fn [a] (* a a)) points)))
"""


def observed(n: int = 3, m: int = 4, k: int = 9) -> tuple:
    integers = RNG.integers(0, n, k), RNG.integers(0, m, k)
    return RNG.uniform(-1, 1, (n, 3)), RNG.uniform(-1, 1, m), *integers, 2.0


def test_several_results_and_arguments() -> None:
    """Rows and columns one after the other; an argument that holds integers is not differentiated by."""
    f, args = hyad.model(OBSERVED), observed()
    sparse = hyad.sparse_jacobian(f)
    found = sparse(*args)
    assert sparse.how(*args) == "blocks of 1 x 1 and 2 x 5" and found.shape == (22, 14)
    rows = hyad.run(hyad.jacobian(f, (0, 1, 4)), *args)
    wanted = np.concatenate([dense(rows[0], 18), dense(rows[1], 4)])
    np.testing.assert_allclose(found.toarray(), wanted, atol=1e-12)
    other = hyad.sparse_jacobian(f, ("points", "cameras"))(*args)
    np.testing.assert_allclose(other.toarray(), wanted[:, [9, 10, 11, 12, *range(9)]], atol=1e-12)
    assert found.nnz == 9 * (4 + 2) + 4


def test_integers_beside_reals_have_columns_where_wrt_names_them() -> None:
    f, v = hyad.model("(fn [v k] (* k v))"), np.array([1.0, 2.0])
    assert hyad.sparse_jacobian(f)(v, 3).toarray().tolist() == [[3, 0], [0, 3]]
    for jacobian, k in ((hyad.sparse_jacobian(f, wrt=("v", "k")), 3), (hyad.sparse_jacobian(f), 3.0)):
        assert jacobian(v, k).toarray().tolist() == [[3, 0, 1], [0, 3, 2]]
    picked = hyad.sparse_jacobian("(fn [v k] (map (fn [i] (get v i)) k))", wrt=(0, 1))
    with pytest.raises(hyad.ModelTypeError, match="leave out what is an index or a size"):
        picked(v, np.array([0, 1]))


def test_the_pattern_follows_the_integers() -> None:
    """Other integers or shapes are another pattern, the same ones the one that was found."""
    sparse = hyad.sparse_jacobian(hyad.model(OBSERVED), ("cameras", "points"))
    args = observed()
    first = sparse.pattern(*args)
    args[2][:] = (args[2] + 1) % 3  # in place
    second = sparse.pattern(*args)
    assert (first != second).nnz > 0
    dense_now = dense(hyad.run(hyad.jacobian(sparse.base, (0, 1)), *args)[0], 18)
    np.testing.assert_allclose(sparse(*args).toarray()[:18], dense_now, atol=1e-12)
    assert sparse(*observed(4, 5, 3)).shape == (11, 17)
    ((signature, *_),) = sparse._signatures.values()
    assert len(signature.plans) == 3
    sparse(*args)
    assert len(signature.plans) == 3


TURNED = """
(fn [#^ (Mat n 3) cameras #^ (Mat m 2) points #^ (Arr Int k) camera #^ (Arr Int k) point]
  (let [turns (map (fn [c] (let [s (sin (get c 0)) t (cos (get c 0))] [[t (- s)] [s t]])) cameras)]
    (build (len camera) (fn [i]
      (let [turn (get turns (get camera i))  c (get cameras (get camera i))  x (get points (get point i))]
        [(+ (get c 1) (dot (get turn 0) x)) (+ (get c 2) (dot (get turn 1) x))])))))
"""


def test_blocks_through_an_array_between() -> None:
    args = RNG.uniform(-1, 1, (3, 3)), RNG.uniform(-1, 1, (5, 2)), RNG.integers(0, 3, 9), RNG.integers(0, 5, 9)
    agree(TURNED, args, (0, 1), entries=72, passes="blocks of 2 x 5")


def test_many_arrays_between_are_not_computed_again_and_again() -> None:
    """Each of twelve steps reads three elements: computed again, that would be 3 ** 12 of the first."""
    step = "v (build n (fn [i] (+ (get v i) (* 0.1 (get v (% (+ i 1) n)) (get v (% (+ i 2) n))))))"
    text = f"(fn [x] (let [n (len x) v x {' '.join([step] * 12)}] v))"
    agree(text, (RNG.uniform(size=30),), entries=30 * 25, passes="30 forward passes")


def test_the_size_of_a_loop_inside_is_that_of_the_program() -> None:
    """What a loop in a loop stacks is as long as the vector, in the lanes of the outer one and outside of them."""
    f = hyad.model("(fn [v] (sum (square (sum (vander v (len v)) 1))))", namespace={})
    v = np.array([0.3, 0.5, -0.2, 0.7])
    made = hyad.sparse_hessian(f)(v)
    assert made.nnz == 4
    np.testing.assert_allclose(made.toarray(), hyad.run(hyad.hessian(f), v), 1e-12)


def test_one_number_through_two_slots() -> None:
    """Two subscripts of an iteration that are equal at a call are one entry."""
    text = "(fn [x #^ (Arr Int n) p] (build (len p) (fn [i] (* (get x i) (get x (get p i))))))"
    agree(text, (RNG.uniform(-1, 1, 4), np.array([0, 3, 2, 0])), entries=6, passes="blocks of 1 x 2")


def test_a_matrix_is_the_callers_own() -> None:
    """What is done to a result does not reach the next one."""
    sparse, x = hyad.sparse_jacobian(hyad.model(JACOBIANS["diagonal"][0])), np.array([0.0, 1.0])
    first = sparse(x)
    first.eliminate_zeros()
    assert sparse(x).nnz == 2


def test_scipy_takes_it() -> None:
    """A chained least-squares problem, by SciPy's sparse solver."""
    from scipy.optimize import least_squares

    text = "(fn [x] (build (- (len x) 1) (fn [i] (- (* (get x i) (get x (+ i 1))) 2.0))))"
    f = hyad.model(text)
    found = least_squares(f, np.linspace(1, 2, 30), jac=hyad.sparse_jacobian(f), tr_solver="lsmr")
    assert found.cost < 1e-12


ARROW = """(fn [x] (let [n (len x)] (build n (fn [i]
  (if (= i 0) (ifold (fn [s j] (+ s (* (get x j) (get x j)))) 0.0 n) (* (get x 0) (get x i)))))))"""
MODES = {
    "arrow": (ARROW, 9, "2 forward passes and 1 reverse pass"),
    "arrow, more columns": (
        ARROW.replace("(* (get x 0) (get x i))", "(get x i)"),
        9,
        "1 forward pass and 1 reverse pass",
    ),
    "dense columns": (
        "(fn [x] (build 6 (fn [i] (ifold (fn [s j] (+ s (* (get x j) (get x (+ 1 j (* 4 i)))))) (sin (get x 0)) 4))))",
        25,
        "4 forward passes and 1 reverse pass",
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_are_mixed(name: str) -> None:
    text, n, how = MODES[name]
    agree(text, (RNG.uniform(-1, 1, n),), passes=how)


def test_linear_algebra() -> None:
    a, v = RNG.uniform(size=(4, 4)) + 4 * np.eye(4), RNG.uniform(size=4)
    agree("(fn [a v] (mat-vec a v))", (a, v), (0, 1), entries=32, passes="blocks of 1 x 8")
    checked_pattern(hyad.model("(fn [v] (solve (diag v) (cumsum v)))"), np.tril(np.ones((4, 4))), v, None)
    inverse = hyad.model("(fn [a] (inv a))").program([Arr(REAL, (None, None))])
    assert pattern(inverse, [a], [0]).nnz == 256


def test_a_branch_that_guards_a_subscript() -> None:
    """What only a branch reads, at a subscript that may be out of range elsewhere, is read in the branch."""
    text = "(fn [x] (let [n (len x)] (build n (fn [i] (if (< 6 n) (* (get x i) (get x 6)) (get x i))))))"
    for n, entries in ((3, 3), (8, 15)):
        agree(text, (RNG.uniform(size=n),), entries=entries, passes="2 forward passes" if n > 6 else "1 forward pass")


def test_a_while_that_is_remembered() -> None:
    """How many values the gradient remembers depends on reals: its Jacobian is taken to be full."""
    f = hyad.model("""(fn [x] (let [r (ref (get x 0))]
      (while (< (* (deref r) (deref r)) 10.0) (set! r (+ (* (deref r) (deref r)) (get x 1))))
      (* (deref r) (get x 2))))""")
    x = np.array([1.1, 0.5, 2.0, 3.0])
    sparse = hyad.sparse_hessian(f)
    np.testing.assert_allclose(sparse(x).toarray(), hyad.run(hyad.hessian(f), x), rtol=1e-12)
    assert sparse(x).nnz == 16


def test_the_code_can_be_read() -> None:
    """Of blocks one loop, of passes those of each mode."""
    banded = hyad.sparse_jacobian(JACOBIANS["banded"][0])
    assert "out[2*i] = x[i + 1];" in banded.source(np.ones(4)) and banded.source(np.ones(4)).count("for (") == 1
    mixed = hyad.sparse_jacobian(ARROW).source(np.ones(9))
    assert mixed.index("(jvp ") < mixed.index("(vjp ")


def test_few_numbers() -> None:
    """The numbers where there are none, or one."""
    text = "(fn [x] (map (fn [a] (* a a)) x))"
    jacobian = hyad.sparse_jacobian(text)
    hessian = hyad.sparse_hessian("(fn [x] (fold (fn [s a] (+ s (* a a))) 0.0 x))")
    for n in (0, 1, 3):
        for found in (jacobian(np.ones(n)), hessian(np.ones(n))):
            np.testing.assert_array_equal(found.toarray(), 2 * np.eye(n))


def test_an_index_that_depends_on_a_real_is_checked_at_each_call() -> None:
    f = hyad.model("(fn [x t] (let [s (get t (int (get x 0)))] (map (fn [a] (* a s)) x)))")
    sparse, t = hyad.sparse_jacobian(f, "x"), np.array([5.0, 7.0])
    assert sparse.how(np.array([1.0, 2.0]), t).startswith("blocks")
    np.testing.assert_allclose(sparse(np.array([1.0, 2.0]), t).toarray(), 7 * np.eye(2))
    with pytest.raises(hyad.BoundsError):
        sparse(np.array([10.0, 2.0]), t)


def test_a_part_that_a_model_cannot_write() -> None:
    """A record is given whole, and not differentiated by."""
    f = hyad.model("(fn [r x] (map (fn [a b] (* a b (. r k))) x (. r w)))")
    record = {"k": 2.0, "w": np.array([1.0, 3.0])}
    np.testing.assert_allclose(hyad.sparse_jacobian(f, "x")(record, np.ones(2)).toarray(), [[2, 0], [0, 6]])
    with pytest.raises(hyad.ModelTypeError, match="`r` is no number, array or tuple of them"):
        hyad.sparse_jacobian(f)(record, np.ones(2))


def test_scipy_is_asked_for_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(hyad.ModelTypeError, match="not installed"):
        hyad.sparse_jacobian("(fn [x] x)")


def test_mistakes() -> None:
    f = hyad.model("(fn [x #^ (Arr Int n) p] (map (fn [i] (get x i)) p))")
    sparse = hyad.sparse_jacobian(f)
    x = np.ones(3)
    with pytest.raises(hyad.BoundsError, match="in this call `x` has shape"):
        sparse(x, np.array([3]))
    with pytest.raises(hyad.ModelTypeError, match="takes 2 arguments"):
        sparse(x)
    with pytest.raises(hyad.DerivativeError, match="no parameter `z` to differentiate by"):
        hyad.sparse_jacobian(f, "z")(x, np.array([0]))
    with pytest.raises(hyad.DerivativeError, match="stands twice in wrt"):
        hyad.sparse_jacobian(f, ("x", 0))(x, np.array([0]))
    with pytest.raises(hyad.DerivativeError, match="no argument of this call holds reals"):
        hyad.sparse_jacobian("(fn [#^ Int k] (* k 2.0))")(1)
    assert hyad.sparse_jacobian(f)(np.array([1]), np.array([0])).toarray().tolist() == [[1.0]]
    assert hyad.sparse_hessian("(fn [x y] (* x y))")(2, 3).toarray().tolist() == [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(hyad.DerivativeError, match="needs a function that gives a number"):
        hyad.sparse_hessian(f)(x, np.array([0]))
    with pytest.raises(hyad.DerivativeError, match="it has no derivative"):
        hyad.sparse_jacobian("(fn [x] (> x 0.0))")(1.0)
    with pytest.raises(hyad.ModelTypeError, match="takes a model"):
        hyad.sparse_jacobian(np.sin)
    with pytest.raises(hyad.ModelTypeError, match="is a Python list"):
        sparse([1.0], np.array([0]))


# ------------------------------------------------------------------------------------ random programs


class Random:
    """A model of a vector x, a matrix y [_, 2] and integers p, drawn at random: loops over loops, arrays of arrays'
    elements, subscripts by integers, branches on both."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays = ["x"]

    def one(self, *choices: str) -> str:
        return choices[self.rng.integers(len(choices))]

    def index(self, i: str) -> str:
        shift = self.rng.integers(4)
        return self.one(i, f"(% (+ {i} {shift}) n)", f"(get p {i})", f"(- n (+ {i} 1))", f"(// {i} 2)", f"{shift}")

    def real(self, i: str, depth: int) -> str:
        kind = self.rng.integers(9 if depth else 3)
        if kind < 2:
            return f"(get {self.one(*self.arrays)} {self.index(i)})"
        if kind == 2:
            return self.one(f"(get y {self.index(i)} {self.rng.integers(2)})", "0.5", f"(real {i})")
        if kind == 3:
            return f"({self.one('sin', 'exp', 'neg', 'floor')} {self.real(i, depth - 1)})".replace("neg", "-")
        if kind == 4:
            test = self.one(f"(< {i} 2)", f"(= (% {i} 2) 0)", f"(> {self.real(i, 0)} 0.1)")
            return f"(if {test} {self.real(i, depth - 1)} {self.real(i, depth - 1)})"
        if kind == 5:
            k, count = i + "k", self.one("2", f"(% {i} 3)", "n")
            return f"(ifold (fn [s {k}] ({self.one('+', '*')} s {self.real(k, depth - 1)})) {self.real(i, 0)} {count})"
        return f"({self.one('+', '*', '-')} {self.real(i, depth - 1)} {self.real(i, depth - 1)})"

    def array(self, depth: int) -> str:
        kind = self.rng.integers(6)
        if kind == 0:
            return f"(scan (fn [s a] (+ (* 0.5 s) a)) 0.0 {self.one(*self.arrays)})"
        if kind == 1:
            body = self.real("i", depth)
            return f"(ifold (fn [v i] (update v {self.index('i')} {body})) {self.one(*self.arrays)} n)"
        if kind == 2:
            return f"(ifold (fn [v t] (build n (fn [i] (+ (get v {self.index('i')}) {self.real('i', 0)})))) x 2)"
        return f"(build n (fn [i] {self.real('i', depth)}))"

    def result(self) -> str:
        more = f"(build (- n 1) (fn [i] {self.real('i', 2)}))", f"(build [n 2] (fn [i j] {self.real('i', 2)}))"
        parts = [self.one(self.array(2), *more) for _ in range(self.rng.integers(1, 3))]
        return f"#({' '.join(parts)})" if len(parts) > 1 else parts[0]

    def text(self, scalar: bool) -> str:
        lets = []
        for name in ("u", "v")[: self.rng.integers(3)]:
            lets.append(f"{name} {self.array(2)}")
            self.arrays.append(name)
        body = f"(fold (fn [s a] (+ s (* a (sin a)))) 0.0 {self.array(2)})" if scalar else self.result()
        return f"(fn [x #^ (Mat m 2) y p] (let [n (len x) {' '.join(lets)}] {body}))"


COUNT, FIRST = int(os.environ.get("HYAD_SPARSE_PROGRAMS", 4)), int(os.environ.get("HYAD_SPARSE_SEED", 0))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs(seed: int) -> None:
    made = Random(seed)
    text = made.text(scalar=seed % 2 == 1)
    n = 4 + seed % 3
    args = made.rng.uniform(0.2, 1, n), made.rng.uniform(0.2, 1, (n, 2)), made.rng.integers(0, n, n)
    f = hyad.model(text)
    agree(text, args, ("x", "y"))
    if seed % 2:
        found = hyad.sparse_hessian(f, "x")(*args).toarray()
        wanted = hyad.run(hyad.hessian(f, "x"), *args)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * (1 + abs(wanted).max()), err_msg=text)


#: A recursive function of x and k, how many entries its Jacobian can have at 12 inputs, k = 3.
RECURSIVE = {
    "chain": ("""(letrec [go (fn [i] (if (= i 0) (get x 0) (+ (get x i) (* 0.5 (go (- i 1))))))]
                    (build (len x) go))""", 78),
    "halves": ("""(letrec [go (fn [i j] (if (= (- j i) 1) (get x i)
                                   (let [h (// (+ i j) 2)] (* (go i h) (sin (go h j))))))]
                    (build 3 (fn [k] (go (* 4 k) (+ (* 4 k) 4)))))""", 12),
    "as deep as data say": """(letrec [go (fn [a i] (if (< a 0.5) a (sin (* (get x i) (go (* 0.5 a) (% (+ i 1) 12))))))]
                    (build (len x) (fn [i] (go (get x i) i))))""",
    "a branch on reals inside": ("""(letrec [go (fn [i] (if (= i 0) 1.0
                                   (let [y (go (- i 1))] (if (> y 0.3) (* y (get x i)) y))))]
                    (build 3 (fn [k] (go (* 3 k)))))""", 9),
    "mutual": ("""(letrec [even (fn [i] (if (< i 1) 1.0 (* (get x i) (odd (- i 1)))))
                             odd (fn [i] (if (< i 1) 2.0 (+ 1 (even (- i 1)))))] (build (len x) even))""", 36),
    "rows": ("""(letrec [go (fn [i v] (if (= i 0) v
                                 (go (- i 1) (build (len v) (fn [j] (* (get v j) (get v (max 0 (- j 1)))))))))]
                  (go k x))""", 42),
    "different depths": ("""(letrec [go (fn [i d] (if (= d 0) (get x i)
                                 (+ (sin (go (- i 1) (- d 1))) (* 2 (get x i)))))]
                  (build (len x) (fn [i] (go i (min i k)))))""", 42),
    "twice": ("""(letrec [go (fn [t] (if (< t 2) (get x t) (+ (sin (go (- t 1))) (* 0.5 (go (- t 2))))))]
                   (build 9 go))""", 16),
    "in a sum": ("""(letrec [go (fn [i] (if (< i 2) (square (get x i)) (* (get x i) (go (- i 2)))))]
                  (build 6 (fn [j] (ifold (fn [s i] (+ s (go (+ (% j 2) (* 2 i))))) 0.0 k))))""", 18),
    "while": ("""(build 6 (fn [j] (let [s (ref 1.0) i (ref j)]
                  (while (< (deref i) 9) (set! s (* (deref s) (sin (get x (deref i))))) (set! i (+ (deref i) k)))
                  (deref s))))""", 15),
    "a while by reals": """(build 6 (fn [j] (let [s (ref 1.0) i (ref j)]
                  (while (> (deref s) 0.1) (set! s (* (deref s) 0.5 (get x (deref i)))) (set! i (% (+ (deref i) k) 12)))
                  (deref s))))""",
    "too many calls": """(letrec [go (fn [t] (if (< t 2) (get x t) (+ (sin (go (- t 1))) (* 0.5 (go (- t 2))))))]
                  (build 2 (fn [j] (go (+ 20 j)))))""",
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("name", RECURSIVE)
def test_patterns_of_recursion(name: str) -> None:
    """They were full. No entry may be missing; none is too many where integers decide."""
    text, *entries = (RECURSIVE[name],) if isinstance(RECURSIVE[name], str) else RECURSIVE[name]
    f = hyad.model(f"(fn [x #^ Int k] {text})", namespace={})
    x = np.random.default_rng(1).uniform(0.2, 1.5, 12)
    dense = hyad.jacobian(f, wrt="x")(x, 3)
    sparse = hyad.sparse_jacobian(f, "x")
    found = sparse.pattern(x, 3)
    assert not np.any(dense[~found.toarray().astype(bool)])
    np.testing.assert_allclose(sparse(x, 3).toarray(), dense, rtol=1e-12, atol=1e-300)
    if entries:
        assert [found.nnz] == entries


#: Loops that change elements where they stand: the text, exact entries for 7 inputs (None: it may be more than there
#: are), and whether all iterations are followed at once.
IN_PLACE = {
    "added to twice": (
        """(for [i (range n)]
             (set-at! r i (+ (get r i) (* 2.0 (get x i))))
             (when (> i 0) (set-at! r i (- (get r i) (* (get x i) (get x (- i 1)))))))""",
        13,
        True,
    ),
    "multiplied": (
        "(for [i (range n)] (set-at! r i (get x i)) (set-at! r i (* (get r i) (get x (// i 2)))))", 13, True,
    ),
    "a row each": (
        """(let [m (zeros [n 2])]
             (for [i (range n)]
               (set-at! m i (+ (get m i) [(get x i) 1.0]))
               (set-at! m i (* (get m i) [2.0 (get x 0)]))
               (set-at! r i (get m i 0))))""",
        7,
        True,
    ),
    "in a nest": (
        """(for [i (range n)]
             (for [j (range i)]
               (set-at! r i (+ (* (get r i) (get x i)) (get x j)))))""",
        27,
        None,
    ),
    "by an index": (
        "(for [i (range n)] (let [k (- n 1 i)] (set-at! r k (* (+ 1.0 (get r k)) (get x i)))))", 7, True,
    ),
    "the same twice": (
        "(for [i (range n)] (let [k (// i 2)] (set-at! r k (* (+ 1.0 (get r k)) (get x i)))))", 7, True,
    ),
    "fluxes": (
        """(for [i (range (- n 1))]
             (let [f (* (get x i) (get x (+ i 1)))]
               (set-at! r i (- (get r i) f))
               (set-at! r (+ i 1) (+ (get r (+ i 1)) f))))""",
        19,
        True,
    ),
    "the largest of each": (
        "(for [i (range n)] (let [k (% (* i i) n)] (set-at! r k (max (get r k) (sin (get x i))))))", 7, True,
    ),
    "twice in an iteration": (
        """(for [i (range n)]
             (let [k (// i 3)]
               (set-at! r k (+ (get r k) (get x i)))
               (set-at! r k (* (get r k) (get x 0)))))""",
        9,
        True,
    ),
    "put elsewhere as well": (
        """(for [i (range (- n 1))]
             (let [y (+ (get r i) (get x i))]
               (set-at! r i y)
               (set-at! r (+ i 1) (* 2.0 y))))""",
        None,
        False,
    ),
    "a sum of what is there": (
        """(let [t (ref 0.0)]
             (for [i (range n)]
               (set-at! r i (+ (get r i) (get x i)))
               (set! t (+ (deref t) (get r 0))))
             (for [i (range (min n 1))] (set-at! r i (deref t))))""",
        7,
        False,
    ),
    "the one before": (
        "(for [i (range 1 n)] (set-at! r i (+ (* 0.5 (get r (- i 1))) (sin (get x i)))))", 21, False,
    ),
    "the one after": (
        "(for [i (range (- n 1))] (set-at! r i (+ (get r (+ i 1)) (sin (get x i)))))", 6, False,
    ),
    "one that is changed later": (
        "(for [i (range (- n 1))] (set-at! r i (+ (get r i) (get x i))) (set-at! r (+ i 1) (* 2.0 (get x i))))",
        12,
        True,
    ),
    "under a condition": (
        "(for [i (range n)] (when (> (get x i) 0.0) (set-at! r i (+ (get r i) (get x i) (get x 0)))))", None, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_elements_that_change_in_place(name: str, monkeypatch) -> None:
    """What an iteration reads of an array that the loop changes is what was there before, and what it put there."""
    text, entries, at_once = IN_PLACE[name]
    f = hyad.model(f"(fn [x] (let [n (len x)  r (copy x)] {text} r))", namespace={})
    x = RNG.uniform(0.5, 1, 7)
    for n in (0, 1, 2, 7):
        checked_pattern(f, dense(hyad.run(hyad.jacobian(f), x[:n]), n), x[:n], None)
    g = hyad.model(f"(fn [x] (let [n (len x)  r (zeros n)] {text} r))", namespace={})
    numbers = dense(hyad.run(hyad.jacobian(g), x), 7)
    checked_pattern(g, numbers, x, entries)
    if at_once is not None:
        long: list = []
        monkeypatch.setattr("hyad.differentiate.sparsity.ITERATIONS", 3)
        pattern(g.program([REAL_VECTOR]), [x], [0], long)
        assert (not long) == at_once


def test_a_hessian_by_blocks_has_the_size_of_the_gradient() -> None:
    f = "(sum (ruled (fn [x] (* x x x)) (fn [x y dx] (* 3 x x dx)) (fn [x y c] (* 3 c x x)) x))"
    sparse = hyad.sparse_hessian(hyad.model(f"(fn [x] {f})", namespace={}))
    x = RNG.uniform(-1, 1, 5)
    assert sparse.how(x) == "blocks of 1 x 1"
    np.testing.assert_allclose(sparse(x).toarray(), np.diag(6 * x), rtol=1e-15)


def test_a_long_loop_that_cannot_be_followed_says_so() -> None:
    f = hyad.model(
        "(fn [x] (let [r (copy x)] (for [i (range 1 (len x))] (set-at! r i (* (get r (- i 1)) (get x i)))) r))"
    )
    sparse = hyad.sparse_jacobian(f)
    assert sparse(np.ones(50)).nnz == 50 * 51 // 2
    with pytest.warns(UserWarning, match="the pattern of .* may be larger than it is"):
        assert sparse.pattern(np.ones(2002)).nnz == 2002**2


def test_a_matrix_with_short_rows_is_typed_once(monkeypatch) -> None:
    sparse = hyad.sparse_jacobian(hyad.model("(fn [m] (map (fn [r] (* (get r 0) (sin (get r 1)))) m))", namespace={}))
    a = RNG.uniform(-1, 1, (5, 3))
    first = sparse(a)
    monkeypatch.setattr(hyad.Model, "program", None)
    assert (sparse(a) != first).nnz == 0


@pytest.mark.parametrize("counts", [[3], [3, 2], [1], [3, 3, 3]])
def test_products_in_place_in_an_inner_loop(counts: list[int]) -> None:
    """What is read of an array that an inner loop has changed is followed, or anything may depend on anything."""
    f = hyad.model(
        """(fn [v #^ (Arr Int n) w] (let [b (copy v)]
             (for [i (range (len w))  c (range (get w i))] (set-at! b c (* (get b c) (get v i))))
             (sum b)))""",
        namespace={},
    )
    v, w = np.arange(1.0, 4.0), np.array(counts)
    np.testing.assert_allclose(hyad.sparse_hessian(f, wrt=0)(v, w).toarray(), hyad.hessian(f, wrt=0)(v, w), rtol=1e-13)


@pytest.mark.some(2)
@pytest.mark.parametrize(("n", "sweeps"), [(2, 1), (2, 2), (3, 2)])
def test_rotations_in_place(n: int, sweeps: int) -> None:
    f = hyad.model(
        """(fn [a0 #^ Int sweeps] (let [n (len a0)  a (copy a0)]
          (for [s (range sweeps)  p (range n)  q (range (+ p 1) n)]
            (let [th (- (get a q q) (get a p p))  c (cos th)  s (sin th)]
              (for [k (range n)]
                (let [x (get a k p)  y (get a k q)]
                  (set-at! a k p (- (* c x) (* s y))) (set-at! a k q (+ (* s x) (* c y)))))
              (for [k (range n)]
                (let [x (get a p k)  y (get a q k)]
                  (set-at! a p k (- (* c x) (* s y))) (set-at! a q k (+ (* s x) (* c y)))))))
          (sum (diag a))))""",
        namespace={},
    )
    a = np.random.default_rng(0).normal(size=(n, n))
    dense = np.reshape(hyad.hessian(f, wrt=0)(a, sweeps), (n * n, n * n))
    np.testing.assert_allclose(hyad.sparse_hessian(f, wrt=0)(a, sweeps).toarray(), dense, atol=1e-12)


FOUND = (
    "(map (fn [z] (let [i (int (floor z)) t (- z i)] (+ (* (- 1 t) (get x i)) (* t (get x (+ i 1)))))) q)",
    "(map (fn [z] (square (interp z [0.0 1.0 2.0 3.0 4.0 5.0] x))) q)",
    "(map (fn [z] (square (get x (searchsorted [0.0 1.0 2.0 3.0 4.0 5.0] z)))) q)",
    pytest.param("(get x (argsort q))", marks=pytest.mark.long),
    "(build 2 (fn [k] (square (get x (argmax (* (get q k) q))))))",
    "(build 2 (fn [k] (square (get x (if (> (get q k) 1.0) 0 3)))))",
    "(build 2 (fn [k] (let [i (ref 0)] (while (> (get q k) (deref i)) (set! i (+ 1 (deref i))))"
    " (square (get x (deref i))))))",
)


@pytest.mark.some(3)
@pytest.mark.parametrize("body", FOUND)
def test_entries_move_with_the_reals_that_subscripts_come_from(body: str) -> None:
    x, places = np.arange(1.0, 7.0), ([0.5, 3.2], [4.5, 0.2], [0.5, 3.2], [1.5, 2.5])
    for text, sparse, dense in (
        (body, hyad.sparse_jacobian, hyad.jacobian),
        (f"(sum (map (fn [y] (* y y y)) {body}))", hyad.sparse_hessian, hyad.hessian),
    ):
        f = hyad.model(f"(fn [x q] {text})", namespace={})
        found = sparse(f, wrt="x")
        for q in map(np.array, places):
            np.testing.assert_allclose(found(x, q).toarray(), dense(f, wrt="x")(x, q), rtol=1e-13)
