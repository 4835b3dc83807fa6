"""Matrix products in tiles, and rows folded by teams of threads, run here on the CPU at sizes that leave edges.

A sum of ``k`` terms in whatever order is within ``k`` roundings of the sum of their absolute values; what a model does
before and after adds few: ``near`` allows ``2 k + 8`` of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import hyad
from hyad import gpu
from hyad.codegen import nvrtc
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import WAVES, Choose, CudaProgram, Gemm, Launch, Step, value
from hyad.emulate import Emulator
from hyad.errors import BoundsError
from hyad.model import Model

needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
SIZES = (0, 1, 3, 17, 65, 130)
DTYPES = {"f64": np.float64, "f32": np.float32}


def plan(model: Model, args: tuple[Any, ...], name: str, dtype: str = "f64") -> CudaProgram:
    return print_grid(model.optimised(model.specs(args), "cuda", blas=True), dtype=dtype, name=name)


def near(got: np.ndarray, want: np.ndarray, absolute: np.ndarray, terms: int) -> None:
    """Within the rounding of a sum of so many terms, the sum of whose absolute values is ``absolute``."""
    bound = (2 * terms + 8) * np.finfo(got.dtype).eps
    assert got.shape == want.shape and np.all(np.abs(got - want) <= bound * absolute)


# ------------------------------------------------------------------------------------------------ products

PRODUCTS = {
    (False, False): "(mat-mul a b)",
    (True, False): "(mat-mul (transpose a) b)",
    (False, True): "(mat-mul a (transpose b))",
    (True, True): "(mat-mul (transpose a) (transpose b))",
}


def factors(m: int, n: int, k: int, ta: bool, tb: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + 7 * n + 31 * k)
    a, b = rng.normal(size=(k, m) if ta else (m, k)), rng.normal(size=(n, k) if tb else (k, n))
    return a.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])


@cache
def products() -> tuple[Emulator, dict[tuple[bool, bool, str], CudaProgram]]:
    made = {}
    for (turned, text), dtype in itertools.product(PRODUCTS.items(), DTYPES):
        model = hyad.model(f"(defmodel f [#^ (Mat n m) a #^ (Mat k l) b] {text})", namespace={})
        made[(*turned, dtype)] = plan(model, (np.ones((2, 2)), np.ones((2, 2))), f"p{len(made)}", dtype)
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator(list(made.values()), compiler), made


@needs_cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta, tb", PRODUCTS)
def test_products_at_the_edges_of_tiles(ta: bool, tb: bool, dtype: str) -> None:
    emulator, made = products()
    program = made[ta, tb, dtype]
    sizes = [*((n, n, n) for n in SIZES), (65, 3, 17), (1, 130, 16), (130, 1, 33), (3, 64, 0), (70, 3, 1100)]
    for q, (m, n, k) in enumerate(sizes):
        a, b = factors(m, n, k, ta, tb, dtype)
        x, y = ((t.T if turn else t).astype(np.float64) for t, turn in ((a, ta), (b, tb)))
        (c,) = emulator.run(program, (a, b), descending=q % 2 == 1, blocks=q % 3)
        near(c, x @ y, np.abs(x) @ np.abs(y), k)


def test_a_product_of_transposes_is_one_step() -> None:
    """No kernel turns a matrix: the product reads it as it lies."""
    for turned, text in PRODUCTS.items():
        model = hyad.model(f"(defmodel f [#^ (Mat n m) a #^ (Mat k l) b] {text})", namespace={})
        steps = plan(model, (np.ones((2, 2)), np.ones((2, 2))), "f").steps
        (step,) = (s for s in steps if isinstance(s, (Gemm, Launch)))
        assert isinstance(step, Gemm) and (step.ta, step.tb) == turned


LAYER = """(defmodel layer [#^ (Mat h m) w #^ (Vec h) b #^ (Vec h) u #^ (Mat n m) x]
  (sum (map (fn [r] (dot u (map tanh (vec-add (mat-vec w r) b)))) x)))"""


def test_gradients_by_weights_are_products() -> None:
    """A sum over a batch for each weight, gathered from what each of the batch adds to all of them."""
    args = (np.ones((2, 3)), np.ones(2), np.ones(2), np.ones((4, 3)))
    program = plan(hyad.grad(hyad.model(LAYER, namespace={})), args, "layer")
    found = {s.c.array: (s.ta, s.tb) for s in program.steps if isinstance(s, Gemm)}
    assert len(found) == 3 and found["w_bar"] == (True, False) and found["x_bar"] == (False, False)


# ---------------------------------------------------------------------------------------- rows and columns


class Row(NamedTuple):
    """A model of a matrix (and a vector): what it is in NumPy, how many of its kernels have a team for each row, and
    the least length of one. ``grad``: the gradient of the model by the matrix."""

    text: str
    numpy: Callable[..., Any]
    teams: int = 1
    least: int = 0
    grad: bool = False


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(1, keepdims=True, initial=-np.inf))
    return e / e.sum(1, keepdims=True)


def softmax_gradient(a: np.ndarray) -> np.ndarray:
    p = softmax(a)
    return p * (1 + a - (a * p).sum(1, keepdims=True))


def log_softmax_gradient(a: np.ndarray) -> np.ndarray:
    p = softmax(a)
    return np.log(p) + a - a.sum(1, keepdims=True) * p


def normal(a: np.ndarray) -> np.ndarray:
    d = a - a.mean(1, keepdims=True)
    return d / np.sqrt(1e-5 + (d * d).mean(1, keepdims=True))


def halves_gradient(a: np.ndarray) -> np.ndarray:
    e = np.exp(a) * (np.arange(a.shape[1]) < a.shape[1] // 2)
    return 2 * e.sum(1, keepdims=True) * e


HALVES = """(sum (map (fn [r] (let [s (ifold (fn [s j] (+ s (exp (get r j)))) 0.0 (// (len r) 2))] (* s s))) a))"""
NORMAL = """(let [mu (mean r) d (map (fn [x] (- x mu)) r) s (sqrt (+ 1e-5 (mean (map square d))))]
  (map (fn [x] (/ x s)) d))"""
LOGSUMEXP = "(sum (map logsumexp a))"
SQUARES = "(sum (map (fn [r] (let [s (sum r)] (* s s))) a))"
DISTANCES = "(build [(len a) (len a)] (fn [i j] (sum (map (fn [x y] (square (- x y))) (get a i) (get a j)))))"
COLUMNS = "(build (len (get a 0)) (fn [j] (ifold (fn [s i] (+ s (* (get v i) (get a i j)))) 0.0 (len a))))"
ROWS = {
    "sums": Row("(map sum a)", lambda a: a.sum(1)),
    "largest": Row("(map (fn [r] (fold max 0.5 r)) a)", lambda a: a.max(1, initial=0.5)),
    "softmax": Row("(map softmax a)", softmax, 1, 1),
    "softmax'": Row("(sum (map (fn [r] (dot r (softmax r))) a))", softmax_gradient, 1, 1, True),
    "log-softmax": Row("(map log-softmax a)", lambda a: np.log(softmax(a)), 1, 1),
    "log-softmax'": Row("(sum (map (fn [r] (dot r (log-softmax r))) a))", log_softmax_gradient, 1, 1, True),
    "layers": Row(f"(map (fn [r] (map (fn [x w] (* w x)) {NORMAL} v)) a)", lambda a, v: v * normal(a), 1, 1),
    "scaled": Row("(let [b (map (fn [r] (map (fn [x] (/ (sin x) 3.0)) r)) a)] (map softmax b))",
                  lambda a: softmax(np.sin(a) / 3), 1, 1),
    "halves'": Row(HALVES, halves_gradient, 1, 0, True),
    "first": Row("(map argmax a)", lambda a: a.argmax(1), 1, 1),
    "last": Row("(map argmin a)", lambda a: a.argmin(1), 1, 1),
    "norms": Row("(map (fn [r] (sqrt (+ 1.0 (dot r r)))) a)", lambda a: np.sqrt(1 + (a * a).sum(1))),
    "starting": Row("(map (fn [r] (fold (fn [s x] (+ s (* x x))) (get r 0) r)) a)",
                    lambda a: a[:, 0] + (a * a).sum(1), least=1),
    "multiplied": Row("(map (fn [r] (fold (fn [s x] (* s (+ 1.0 (* 0.01 x)))) 2.0 r)) a)",
                      lambda a: 2 * np.prod(1 + 0.01 * a, axis=1)),
    "any": Row("(map (fn [r] (fold (fn [s x] (or s (> x 2.5))) False r)) a)", lambda a: (a > 2.5).any(1)),
    "distances": Row(DISTANCES, lambda a: ((a[:, None] - a[None]) ** 2).sum(2)),
    "logsumexp": Row(LOGSUMEXP, lambda a: np.log(np.exp(a).sum(1)).sum(), least=1),
    "logsumexp'": Row(LOGSUMEXP, softmax, 1, 1, True),
    "squares": Row(SQUARES, lambda a: (a.sum(1) ** 2).sum()),
    "squares'": Row(SQUARES, lambda a: 2 * a.sum(1, keepdims=True) + 0 * a, 1, 0, True),
    "times a vector": Row("(mat-vec a v)", lambda a, v: a @ v),
    "columns": Row(COLUMNS, lambda a, v: v @ a, 0),
}  # fmt: skip
SHAPES = (
    (3, 0),
    (1, 1),
    (3, 17),
    (17, 3),
    (5, 32),
    (2, 65),
    (65, 2),
    (3, 130),
    (2, 700),
    (2, 1100),
    (0, 40),
    (2, 5000),
)


def row_arguments(row: Row, n: int, m: int, dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n + 100 * m)
    a, v = rng.normal(size=(n, m)), rng.normal(size=n if row.text == COLUMNS else m)
    return tuple(x.astype(DTYPES[dtype]) for x in ((a, v) if " v" in row.text else (a,)))


@cache
def rows() -> tuple[Emulator, dict[tuple[str, str], CudaProgram]]:
    made = {}
    for (name, row), dtype in itertools.product(ROWS.items(), DTYPES):
        vector = f" #^ (Vec {'n' if row.text == COLUMNS else 'm'}) v" if " v" in row.text else ""
        model = hyad.model(f"(defmodel f [#^ (Mat n m) a{vector}] {row.text})", namespace={})
        model = hyad.grad(model) if row.grad else model
        made[name, dtype] = plan(model, row_arguments(row, 2, 2, "f64"), f"r{len(made)}", dtype)
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator(list(made.values()), compiler), made


@needs_cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_rows_by_one_thread_a_warp_and_a_block(name: str, dtype: str) -> None:
    """Short rows are a part of a warp's, others a warp's, long ones a block's; what is kept of very long ones is not
    in shared memory."""
    row, (emulator, made) = ROWS[name], rows()
    for q, (n, m) in enumerate(SHAPES):
        if m < row.least or n == 0 and row.text == COLUMNS:
            continue
        args = row_arguments(row, n, m, dtype)
        want = np.asarray(row.numpy(*(x.astype(np.float64) for x in args)))
        (got,) = emulator.run(made[name, dtype], args, descending=q % 2 == 1, blocks=q % 3)
        if want.dtype.kind in "bi":
            assert np.array_equal(got, want)
            continue
        scale = max(1.0, float(np.max(np.abs(args[0]), initial=1.0)) ** 2)
        near(got, want, np.maximum(np.abs(want), scale), max(n, m))


@needs_cpu
@pytest.mark.parametrize("name", ["first", "last"])
def test_the_place_is_the_first_of_equal_elements(name: str) -> None:
    row, (emulator, made) = ROWS[name], rows()
    for n, m in SHAPES:
        if m >= row.least:
            a = np.random.default_rng(m).integers(0, 3, (n, m)).astype(float)
            (got,) = emulator.run(made[name, "f64"], (a,))
            assert np.array_equal(got, row.numpy(a)), (n, m)


def launches_of(steps: Sequence[Step]) -> list[Gemm | Launch]:
    """The launches and products where no row is so long that several blocks have it."""
    found = [launches_of(s.orelse) if isinstance(s, Choose) else [s] * isinstance(s, (Gemm, Launch)) for s in steps]
    return [s for part in found for s in part]


def teams(program: CudaProgram) -> list[str]:
    """The kernels in which teams have rows."""
    several = {
        s.kernel
        for step in program.steps
        if isinstance(step, Choose)
        for s in launches_of(step.then)
        if isinstance(s, Launch)
    }
    kernels = [k for k in program.kernels if k not in several]
    heads = {k: program.source.partition(f" {k}(")[2].partition(")")[0] for k in kernels}
    return [k for k, head in heads.items() if "long long team" in head]


@pytest.mark.parametrize("name", ROWS)
def test_teams_have_rows_and_threads_have_columns(name: str) -> None:
    row = ROWS[name]
    program = rows()[1][name, "f64"]
    assert len(teams(program)) == row.teams


def test_how_large_a_team_is() -> None:
    (step,) = launches_of(rows()[1]["sums", "f64"].steps)
    assert [value(step.args[-1], {"m": m, "n": 5}) for m in (0, 1, 2, 3, 17, 1024, 1025)] == [
        1,
        1,
        2,
        4,
        32,
        32,
        step.block,
    ]
    assert value(step.blocks, {"n": 10**6, "m": 64}) == WAVES


def launched(text: str, grad: str | tuple[str, ...] = ()) -> list[type]:
    model = hyad.model(f"(defmodel f {text})", namespace={})
    model = hyad.grad(model, wrt=grad) if grad else model
    steps = print_grid(model.optimised(model.specs(None), "cuda", blas=True)).steps
    return [type(s) for s in launches_of(steps)]


def test_rows_are_one_kernel() -> None:
    """What folds and makes rows, value and gradient; sums of columns, each in parts, are kernels of their own."""
    layer = f"(map (fn [r] (map (fn [x u c] (+ (* u x) c)) {NORMAL} u c)) a)"
    loss = f"(sum (map (fn [r q] (dot q r)) {layer} w))"
    head = "[#^ (Mat n m) a #^ (Vec m) u #^ (Vec m) c"
    assert launched(f"{head}] {layer}") == [Launch]
    assert launched(f"{head} #^ (Mat n m) w] {loss}", ("a",)) == [Launch]
    assert launched(f"{head} #^ (Mat n m) w] {loss}", ("a", "u", "c")) == [Launch] * 5
    assert launched("[#^ (Arr k n m) a] (map (fn [t] (map softmax t)) a)") == [Launch]


HEADS = """[#^ (Arr h n d) q #^ (Arr h n d) k #^ (Arr h n d) v]
  (map (fn [q k v] (mat-mul (map softmax (mat-mul q (transpose k))) v)) q k v)"""
STACKS = {
    "heads": HEADS,
    "heads'": HEADS.replace("(map (fn [q k v]", "(sum (map (fn [q k v]") + ")",
    "four": "[#^ (Arr b h n d) q #^ (Arr b h d m) k] (map (fn [q k] (map (fn [x y] (mat-mul x y)) q k)) q k)",
    "shared": "[#^ (Mat d n) w #^ (Arr h n m) x] (map (fn [y] (mat-mul w y)) x)",
}


@cache
def stacks() -> tuple[Emulator, dict[str, CudaProgram]]:
    made = {}
    for name, text in STACKS.items():
        model = hyad.model(f"(defmodel f {text})", namespace={})
        model = hyad.grad(model, wrt=("q", "k", "v")) if "'" in name else model
        made[name] = print_grid(model.optimised(model.specs(None), "cuda", blas=True), name=f"s{len(made)}")
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator(list(made.values()), compiler), made


@needs_cpu
def test_stacks_of_products_are_one_step() -> None:
    """The heads of attention: all their products at once, and their rows."""
    emulator, made = stacks()
    steps = {name: [type(s) for s in p.steps if isinstance(s, (Gemm, Launch))] for name, p in made.items()}
    assert steps["heads"] == [Gemm, Launch, Gemm] and steps["four"] == steps["shared"] == [Gemm]
    assert steps["heads'"].count(Gemm) == 4  # of the ones that come back to a sum, none
    for h, n, d in ((1, 1, 1), (3, 2, 5), (2, 70, 3), (70, 3, 2)):
        rng = np.random.default_rng(n)
        q, k, v = (rng.normal(size=(h, n, d)) for _ in range(3))
        p = np.stack([softmax(x @ y.T) for x, y in zip(q, k)])
        ds = p * (v.sum(2)[:, None, :] - (p @ v.sum(2)[..., None]))
        wanted = (ds @ k, ds.transpose(0, 2, 1) @ q, np.repeat(p.sum(1)[..., None], d, 2))
        for descending in (False, True):
            (got,) = emulator.run(made["heads"], (q, k, v), descending=descending)
            near(got, p @ v, np.full_like(got, 10.0 + np.abs(v).max()), 4 * (n + d))
            for got, want in zip(emulator.run(made["heads'"], (q, k, v), descending=descending), wanted, strict=True):
                near(got, want, np.full_like(want, np.abs(want).max() + 10.0 * d), 4 * (n + d))
        x, y, w = rng.normal(size=(2, h, n, d)), rng.normal(size=(2, h, d, 4)), rng.normal(size=(5, n))
        near(emulator.run(made["four"], (x, y))[0], x @ y, np.abs(x) @ np.abs(y), d)
        near(emulator.run(made["shared"], (w, q))[0], w @ q, np.abs(w) @ np.abs(q), n)


MLP = """[#^ (Mat h m) w #^ (Vec h) b #^ (Mat c h) u #^ (Mat n m) x #^ (Arr Int n) at]
  (map (fn [r k] (- (get (log-softmax (mat-vec u (map tanh (vec-add (mat-vec w r) b)))) k))) x at)"""


def test_layers_for_each_row_are_products() -> None:
    """Sums that stand among other things, too; what is made of a product's rows is one kernel. Labels are checked
    first."""
    assert launched(MLP) == [Launch, Gemm, Launch, Gemm, Launch]


@cache
def mlp() -> tuple[Emulator, CudaProgram, CudaProgram]:
    model = hyad.model(f"(defmodel f {MLP})", namespace={})
    loss = hyad.model(f"(defmodel f {MLP.replace('(map (fn [r k]', '(sum (map (fn [r k]', 1)}))", namespace={})
    args = (np.ones((2, 2)), np.ones(2), np.ones((2, 2)), np.ones((2, 2)), np.zeros(2, int))
    value, grad = plan(model, args, "value"), plan(hyad.grad(loss, wrt=("w", "b", "u")), args, "grad")
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator([value, grad], compiler), value, grad


@needs_cpu
def test_a_classifier_and_its_gradient() -> None:
    emulator, value, grad = mlp()
    for h, m, c, n in ((3, 2, 4, 5), (40, 33, 37, 35), (1, 1, 1, 1)):
        rng = np.random.default_rng(h)
        w, b, u, x = (rng.normal(size=s) for s in ((h, m), (h,), (c, h), (n, m)))
        at = rng.integers(0, c, n)
        y = np.tanh(x @ w.T + b)
        p = softmax(y @ u.T)
        d = p - np.eye(c)[at]
        e = (d @ u) * (1 - y * y)
        for descending in (False, True):
            (got,) = emulator.run(value, (w, b, u, x, at), descending=descending)
            near(got, -np.log(p[np.arange(n), at]), np.full(n, 10.0), 4 * (h + m + c))
            for got, want in zip(
                emulator.run(grad, (w, b, u, x, at), descending=descending), (e.T @ x, e.sum(0), d.T @ y)
            ):
                near(got, want, np.full_like(want, 10.0 * n), 4 * (h + m + c))
    with pytest.raises(BoundsError):
        emulator.run(value, (w, b, u, x, at + c))


GATHERED = "[#^ (Vec k) v #^ (Arr Int n m) at] (map (fn [r] (sum (map (fn [i] (get v i)) r))) at)"


@needs_cpu
def test_a_check_in_a_row_that_a_team_has() -> None:
    """Who fails leaves the row's loop and waits with the others of the team behind it."""
    assert launched(GATHERED) == [Launch]
    model = hyad.model(f"(defmodel f {GATHERED})", namespace={})
    program = plan(model, (np.ones(2), np.zeros((2, 2), int)), "gathered")
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for n, m in ((3, 5), (70, 40), (2, 1500)):
        v, at = np.arange(9.0), np.random.default_rng(n).integers(0, 9, (n, m))
        for descending in (False, True):
            (got,) = emulator.run(program, (v, at), descending=descending)
            assert np.array_equal(got, v[at].sum(1))
            with pytest.raises(BoundsError, match="get"):
                emulator.run(program, (v, np.where(np.arange(m) == m // 2, 9, at)), descending=descending)


COUNTED = """[#^ (Vec n) x #^ Int m] (map (fn [a]
  (let [c (ifold (fn [c k] (let [i (% (int (* a (real (* k k)))) m)] (update c i (+ 1.0 (get c i)))))
                 (build m (fn [j] 0.0)) 20)]
    (ifold (fn [s j] (+ s (* a (get c j) (get c (% (+ j 1) m))))) 0.0 m))) x)"""


@needs_cpu
def test_an_array_of_a_thread_that_is_changed_has_no_team() -> None:
    """One thread of a team would change what the others copy."""
    model = hyad.model(f"(defmodel counted {COUNTED})", namespace={})
    x = np.linspace(0.5, 1.5, 70)
    program = plan(model, (x, 7), "counted")
    assert not teams(program)
    emulator = Emulator([program], gpu.cpu_compiler() or ())
    for m in (1, 7):
        c = np.stack([np.bincount((a * np.arange(20) ** 2).astype(int) % m, minlength=m) for a in x])
        for descending in (False, True):
            (got,) = emulator.run(program, (x, m), descending=descending)
            np.testing.assert_allclose(got, x * (c * np.roll(c, -1, 1)).sum(1), rtol=1e-12)


@needs_cpu
def test_where_the_largest_is_among_equals_and_nans() -> None:
    """As NumPy: the first of equals, and the first NaN."""
    a = np.array([[1.0, 3.0, 3.0, 2.0], [np.nan, 1.0, 2.0, 0.0], [1.0, np.nan, 0.5, np.nan]])
    emulator, made = rows()
    for descending in (False, True):
        for name, want in (("first", [1, 0, 1]), ("last", [0, 0, 1])):
            assert emulator.run(made[name, "f64"], (a,), descending=descending)[0].tolist() == want


ATTENTION = """(defmodel attention [#^ (Mat n d) q #^ (Mat n d) k #^ (Mat n d) v]
  (let [s (map (fn [row] (/ row (sqrt (len row)))) (mat-mul q (transpose k)))]
    (sum (mat-mul (map softmax s) v))))"""


@cache
def attention() -> tuple[Emulator, CudaProgram]:
    model = hyad.value_and_grad(hyad.model(ATTENTION, namespace={}))
    program = plan(model, (np.ones((2, 2)),) * 3, "attention")
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator([program], compiler), program


@needs_cpu
def test_attention_is_products_and_rows() -> None:
    """Its gradient's five products read matrices as they lie, and make them where they are wanted; its rows have teams
    for what comes before its value, and for what comes between its products on the way back."""
    program = attention()[1]
    found = [s for s in program.steps if isinstance(s, Gemm)]
    assert {"q_bar", "k_bar", "v_bar"} <= {s.c.array for s in found}
    assert sorted((s.ta, s.tb) for s in found if s.c.array.endswith("_bar")) == [
        (False, False),
        (True, False),
        (True, False),
    ]
    assert not any(isinstance(s, Launch) and s.form.startswith("(transpose") for s in program.steps)
    assert len(teams(program)) == 2 and not program.source.count("atomicAdd")


@needs_cpu
def test_attention_and_its_gradient() -> None:
    emulator, program = attention()
    for n, d in ((1, 1), (3, 2), (35, 17), (70, 5)):
        rng = np.random.default_rng(n)
        q, k, v = (rng.normal(size=(n, d)) for _ in range(3))
        p = softmax(q @ k.T / np.sqrt(n))
        ds = p * (v.sum(1) - (p @ v.sum(1))[:, None]) / np.sqrt(n)
        wanted = (np.sum(p @ v), ds @ k, ds.T @ q, np.repeat(p.sum(0)[:, None], d, 1))
        for descending in (False, True):
            for got, want in zip(emulator.run(program, (q, k, v), descending=descending), wanted, strict=True):
                near(got, np.asarray(want), np.full_like(want, np.abs(want).max() + d), 4 * (n + d))


@pytest.mark.skipif(nvrtc.nvrtc() is None and nvrtc.nvcc() is None, reason="neither NVRTC nor nvcc")
def test_tiles_and_teams_compile_to_ptx() -> None:
    programs = [*products()[1].values(), *rows()[1].values(), attention()[1], *stacks()[1].values()]
    text = "".join(f"namespace program{k} {{\n{p.source}}}\n" for k, p in enumerate(programs))
    ptx = nvrtc.compile_device(text, "compute_80", "all", fast=True).decode()
    assert "bar.sync" in ptx and "shfl.sync.bfly" in ptx
