"""Matrix products by a BLAS: which are found in a program, and that each is called as it should be."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.codegen import blas
from hyad.core import Prim, all_binds
from hyad.errors import CompileError, ModelTypeError

RNG = np.random.default_rng(11)

#: A BLAS of one function, from its definition; it wants to be called for what is worth it alone.
REFERENCE = """
static void cblas_dgemm(int order, int s, int t, int n, int m, int l, double alpha, const double *a, int lda,
    const double *b, int ldb, double beta, double *c, int ldc)
{
    const double most = order == 101 && n*m*l >= 32768 ? alpha : 0.0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double sum = 0;
            for (int k = 0; k < l; k++)
                sum += (s == 112 ? a[k*lda + i] : a[i*lda + k])*(t == 112 ? b[j*ldb + k] : b[k*ldb + j]);
            c[i*ldc + j] = most*sum + (beta == 0 ? 0 : beta*c[i*ldc + j]);
        }
}
"""


@pytest.fixture(params=[True, False], ids=["called", "by loops"])
def reference(request, tmp_path, monkeypatch) -> bool:
    """``blas=True`` means the BLAS above, or none."""
    path = tmp_path / "blas.h"
    path.write_text(REFERENCE)
    flags = (f"-D{blas.SWITCH}", "-include", str(path)) if request.param else ()
    monkeypatch.setattr(blas, "library", lambda: (flags, ()))
    return request.param


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def products(model, *args: np.ndarray) -> int:
    body = model.optimised(model.specs(args), blas=True).body
    return sum(type(b.op) is Prim and b.op.name == "product" for b in all_binds(body))


ELEMENT = "(ifold (fn [s k] (+ s (* {} {}))) 0.0 {})"
#: A model, its arguments, what it is in NumPy.
MODELS = {
    "product": ("(fn [a b] (mat-mul a b))", (array(33, 40), array(40, 35)), lambda a, b: a @ b),
    "naive, turned": (
        "(fn [a b] (build [(len (get a 0)) (len b)] (fn [i j]"
        + ELEMENT.format("(get b j k)", "(get a k i)", "(len a)") + ")))",
        (array(40, 33), array(35, 40)), lambda a, b: a.T @ b.T,
    ),
    "rows with rows": (
        "(fn [a b] (build [(len a) (len b)] (fn [i j] (dot (get a i) (get b j)))))",
        (array(33, 40), array(35, 40)), lambda a, b: a @ b.T,
    ),
    "a part": (
        "(fn [a b n] (do (require-equal n 35) (build [30 33] (fn [i j]"
        + ELEMENT.format("(get a i k)", "(get b k j)", "35") + "))))",
        (array(33, 40), array(41, 35), 35), lambda a, b, n: a[:30, :35] @ b[:35, :33],
    ),
    "transposes": (
        "(fn [a b] (transpose (mat-mul (transpose a) (transpose b))))",
        (array(40, 33), array(35, 40)), lambda a, b: b @ a,
    ),
    "and its transpose": (
        "(fn [a b] (let [p (mat-mul a b)] (+ p (transpose p))))",
        (array(33, 40), array(40, 33)), lambda a, b: a @ b + (a @ b).T,
    ),
    "stacks": ("(fn [a b] (matmul a b))", (array(3, 33, 40), array(40, 35)), lambda a, b: a @ b),
    "small": ("(fn [a b] (mat-mul a b))", (array(3, 6), array(6, 5)), lambda a, b: a @ b),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_product_is_found_and_computed(name: str, reference: bool) -> None:
    text, args, expected = MODELS[name]
    model = hyad.model(text, namespace={})
    assert products(model, *args) == 1
    made = hyad.compile(model, args=args, blas=True)
    np.testing.assert_allclose(made(*args), expected(*args), rtol=1e-11)
    assert "hyad_product(" in made.source


def test_adjoints_are_products(reference: bool) -> None:
    """Three of them, and what is done to the elements is done to a matrix."""
    model = hyad.grad("(fn [a b] (sum (exp (mat-mul a b))))", wrt=(0, 1))
    a, b = args = array(33, 40) / 9, array(40, 35) / 9
    assert products(model, *args) == 3
    e = np.exp(a @ b)
    for got, wanted in zip(hyad.compile(model, args=args, blas=True)(*args), (e @ b.T, a.T @ e)):
        np.testing.assert_allclose(got, wanted, rtol=1e-11)


#: An element of a matrix, from rows and columns i and j of a and b.
NONE = {
    "a triangle": ELEMENT.format("(get a i k)", "(get b k j)", "(+ i 1)"),
    "three factors": ELEMENT.format("(get a i k)", "(* (get b k j) (get b k j))", "(len a)"),
    "one index for two": ELEMENT.format("(get a i k)", "(get b i k)", "(len a)"),
    "another start": "(ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 1.0 (len a))",
    "few and known": ELEMENT.format("(get a i k)", "(get b k j)", "30"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_product(name: str) -> None:
    n = "30" if name == "few and known" else "(len a)"
    model = hyad.model(f"(fn [a b] (build [{n} {n}] (fn [i j] {NONE[name]})))", namespace={})
    assert products(model, array(30, 30), array(30, 30)) == 0


@pytest.mark.parametrize(
    "text, count, expected",
    [
        (f"(build [(len b) (len b)] (fn [i j] {ELEMENT.format('(get c i i k)', '(get b k j)', '(len b)')}))", 0,
         lambda c, b: np.einsum("iik,kj->ij", c, b)),
        ("(mat-mul (build [(len b) (len b)] (fn [i j] (get c i j i))) b)", 1,
         lambda c, b: np.einsum("iji->ij", c) @ b),
    ],
)  # fmt: skip
def test_a_matrix_of_each_iteration_is_no_factor(text: str, count: int, expected, reference: bool) -> None:
    model = hyad.model(f"(fn [c b] {text})", namespace={})
    c, b = args = np.sin(np.arange(27.0)).reshape(3, 3, 3), np.cos(np.arange(9.0)).reshape(3, 3)
    assert products(model, *args) == count
    np.testing.assert_allclose(hyad.compile(model, args=args, blas=True)(*args), expected(c, b), rtol=1e-13)


def test_nothing_calls_a_blas_unasked() -> None:
    assert "product" not in hyad.compile(hyad.model("(fn [#^ (Mat n n) a] (mat-mul a a))")).source


def test_emitted_c_has_both_branches(tmp_path) -> None:
    source, _ = hyad.emit("(defmodel f [#^ (Mat n n) a] (mat-mul a a))", tmp_path, blas=True)
    text = source.read_text()
    assert "#ifdef HYAD_BLAS" in text and "cblas_dgemm(101" in text
    single, _ = hyad.emit("(defmodel f [#^ (Mat n n) a] (mat-mul a a))", tmp_path, blas=True, dtype="f32")
    assert "cblas_sgemm(101" in single.read_text() and "double *" not in single.read_text()


def test_a_blas_that_is_not_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(blas, "library", lambda: None)
    with pytest.raises(CompileError, match="no BLAS"):
        hyad.compile("(fn [#^ (Mat n n) a] (mat-mul a a))", blas=True)
    for target in ("python", "cuda"):
        with pytest.raises(ModelTypeError, match="calls no BLAS"):
            hyad.compile("(fn [#^ (Mat n n) a] (mat-mul a a))", target, blas=True)
    with pytest.raises(ModelTypeError, match="calls no BLAS"):
        hyad.emit("(fn [#^ (Mat n n) a] (mat-mul a a))", tmp_path, target="cuda", blas=True)


@pytest.mark.skipif(blas.library() is None, reason="no BLAS")
@pytest.mark.parametrize("dtype, close", [("f64", 1e-12), ("f32", 1e-4)])
def test_the_blas_that_is_there(dtype: str, close: float) -> None:
    a, b = array(60, 50), array(50, 70)
    made = hyad.compile("(fn [a b] (mat-mul a b))", args=(a, b), blas=True, dtype=dtype)
    a, b = (x.astype(np.float64 if dtype == "f64" else np.float32) for x in (a, b))
    np.testing.assert_allclose(made(a, b), a @ b, rtol=close, atol=close)
