"""Loops over the places of a matrix by one index, as reshaping makes them: two loops without divisions, without checks,
with the same values in the same order."""

from __future__ import annotations

import re

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad.core import Loop, Prim, all_binds
from hyad.program.printer import print_program

needs_compiler = pytest.mark.skipif(batch.CC is None, reason="no C compiler")
#: A model and the shape of its argument.
MODELS = {
    "sum": ("[#^ (Mat n m) a] (sum (square (ravel a)))", (4, 3)),
    "cube": ("[#^ (Arr Real n m k) a] (sum (map (fn [x] (* x x x)) (ravel a)))", (2, 3, 4)),
    "four": ("[#^ (Arr Real n m k l) a] (sum (map (fn [x] (+ x (* x x))) (ravel a)))", (2, 2, 3, 2)),
    "weighed": ("[#^ (Mat n m) a] (let [v (ravel a)] (dot v (map real (arange (len v)))))", (3, 4)),
    "shifted": ("[#^ (Mat n m) a] (sum (map square (ravel (build [(- (len a) 1) (- (len (get a 0)) 2)]"
                " (fn [i j] (- (get a (+ i 1) j) (get a i (+ j 2))))))))", (4, 5)),
    "own": ("[#^ (Mat n m) a] (let [m (shape a 1)] (ifold (fn [s k] (+ (* 0.5 s) (get a (// k m) (% k m)))) 0.0"
            " (* (len a) m)))", (3, 4)),
}  # fmt: skip


def model_of(name: str) -> hyad.model.Model:
    return hyad.model(f"(defmodel f {MODELS[name][0]})", namespace={})


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_two_loops_without_divisions(name: str) -> None:
    f = model_of(name)
    shape = MODELS[name][1]
    for g in (f, hyad.grad(f)) if name != "own" else (f,):  # whose gradient runs backwards
        text = hyad.show(g, "c", args=[np.zeros(shape)])
        off = g.without(("reshaped",))
        assert "hyad_ifloordiv" not in text and "hyad_imod" not in text
        assert "reshaped" in [step.name for step in hyad.explain(g, args=[np.zeros(shape)]).steps]
        for n in (0, 1):  # rows and columns that are not there, too
            for k in range(len(shape)):
                sizes = [*shape[:k], shape[k] if n else 0, *shape[k + 1 :]]
                a = np.random.default_rng(1).normal(size=sizes)
                if name == "shifted" and min(sizes) == 0:
                    continue
                got, want = memoised.compile(g)(a), memoised.compile(off)(a)
                assert np.array_equal(got, want) or np.allclose(got, want, rtol=1e-14)


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_the_derivatives_are_those_of_differences(name: str) -> None:
    f = model_of(name)
    a = np.random.default_rng(2).normal(size=MODELS[name][1])
    g = hyad.grad(f)(a)
    for at in np.ndindex(*a.shape):
        e = np.zeros_like(a)
        e[at] = 1e-6
        assert abs((f(a + e) - f(a - e)) / 2e-6 - g[at]) < 1e-7
    direction = np.random.default_rng(3).normal(size=a.shape)
    along = hyad.model(f"(defmodel g [a d] (jvp (fn {MODELS[name][0]}) a d))", namespace={})
    assert abs(along(a, direction) - np.vdot(g, direction)) < 1e-9


def test_what_is_left_alone() -> None:
    """A divisor that is no factor of the count, a size that might be negative, and what stacks a vector."""
    for text in (
        "[#^ (Mat n m) a #^ Int k] (ifold (fn [s i] (+ s (get a (% i k) 0))) 0.0 (* (len a) (len (get a 0))))",
        "[#^ Int n #^ Int m] (ifold (fn [s i] (+ s (real (// i m)))) 0.0 (* n m))",
        "[#^ (Mat n m) a] (ravel a)",
    ):
        f = hyad.model(f"(defmodel f {text})", namespace={})
        specs = f.specs(None)
        on, off = (str(print_program(g.optimised(specs))) for g in (f, f.without(("reshaped",))))
        assert on == off


def test_a_negative_size_still_counts() -> None:
    """Two negative numbers have a positive product."""
    f = hyad.model("(defmodel f [#^ Int n #^ Int m] (ifold (fn [s i] (+ s (// i m))) 0 (* n m)))", namespace={})
    assert f(-2, -3) == sum(i // -3 for i in range(6))


ROWS = {  # a model, the shape of its argument, and what NumPy makes of it
    "heads": ("(fn [#^ (Mat n d) x] (reshape x [n 2 (// d 2)]))", (3, 4), lambda x: x.reshape(-1, 2, 2)),
    "rest": ("(fn [#^ (Arr Real n p q) x] (reshape x [n -1]))", (2, 3, 2), lambda x: x.reshape(2, 6)),
    "two axes": ("(fn [#^ (Arr Real n p q) x] (reshape x [n p 2 -1]))", (2, 3, 4), lambda x: x.reshape(2, 3, 2, 2)),
}


@needs_compiler
@pytest.mark.parametrize("name", ROWS)
def test_as_many_rows_as_before_are_each_reshaped(name: str) -> None:
    """Without a vector of all elements; without rows, run and C agree on the sizes, and on an error for wrong ones."""
    text, shape, numpy = ROWS[name]
    f = hyad.model(text, namespace={})
    x = np.random.default_rng(1).normal(size=shape)
    for way in (f, hyad.run(f, x), hyad.compile(f, "python")):
        np.testing.assert_array_equal(way(x) if callable(way) else way, numpy(x))
    g = hyad.model(text.replace("(reshape", "(sum (np.sin (reshape") + "))", namespace={})
    np.testing.assert_array_equal(hyad.grad(g)(x), np.cos(x))
    assert "work" not in hyad.show(f, "c") and "hyad_ifloordiv" not in hyad.show(g, "c")
    empty = np.zeros((0, *shape[1:]))
    assert f(empty).shape == hyad.run(f, empty).shape == (0, *numpy(x).shape[1:])
    if name == "heads":
        for n in (0, 3):
            for way in (f, lambda x: hyad.run(f, x)):
                with pytest.raises(hyad.HyadError, match="reshape"):
                    way(np.zeros((n, 5)))


HEADS = """(fn [#^ (Mat d m) W #^ (Mat d m) U #^ (Mat t d) x]
  (let [h HEADS split (fn [M] (transpose (reshape M [t h (// m h)]) [1 0 2]))]
    (sum (tanh (np.einsum "hid,hjd->hij" (split (@ x W)) (split (@ x U)))))))"""


@needs_compiler
@pytest.mark.parametrize("heads", [2, 8])
def test_heads_are_copied_once(heads: int) -> None:
    """From the product to where they are read along a row: not first as the reshaped array, and then as its axes in
    another order."""
    f = hyad.model(HEADS.replace("HEADS", str(heads)), namespace={})
    rng = np.random.default_rng(3)
    W, U, x = 0.3 * rng.normal(size=(5, 8)), 0.3 * rng.normal(size=(5, 8)), rng.normal(size=(4, 5))

    def split(m: np.ndarray) -> np.ndarray:
        return m.reshape(4, heads, 8 // heads).transpose(1, 0, 2)

    wanted = np.tanh(split(x @ W) @ split(x @ U).transpose(0, 2, 1)).sum()
    assert f(W, U, x) == pytest.approx(wanted, rel=1e-12)
    hyad.check_grad(f, (W, U, x))
    text = hyad.show(f, "c")
    assert "memcpy" not in text and "return 2" not in text  # one check: that the heads are equally long
    arrays = re.findall(r"double \*\w+ = work", text)
    assert len(arrays) <= 5 + (heads == 2)  # two products, twice the heads, once transposed, and what comes of them


@needs_compiler
def test_products_with_a_matrix_stay_rows() -> None:
    """A row of a product is a sum of rows of the matrix, which lie side by side: eight sequences are not laid side by
    side for it. Where the matrix is the transposed one, they are."""
    text = """(fn [#^ (Mat d m) W #^ (Arr Real b t d) X]
      (fold (fn [s x] (+ s (sum (map (fn [r] (log (sum (exp r)))) (np.einsum "ij,PLACES->ik" x W))))) 0.0 X))"""
    rng = np.random.default_rng(4)
    W, X = rng.normal(size=(5, 5)), rng.normal(size=(3, 4, 5))
    for places, tiles in (("jk", False), ("kj", True)):
        f = hyad.model(text.replace("PLACES", places), namespace={})
        rows = X @ (W if places == "jk" else W.T)
        assert f(W, X) == pytest.approx(np.log(np.exp(rows).sum(-1)).sum(), rel=1e-12)
        assert ("side_by_side" in hyad.show(f, "c")) is tiles


def test_two_heads_of_each_sequence_are_copied_once() -> None:
    """Written out, each head is a row of an array of two, which one loop reads."""
    text = """(fn [#^ (Mat d m) W #^ (Mat d m) U #^ (Arr Real b t d) X]
      (let [h 2 out (ref 0.0) split (fn [M] (transpose (reshape M [t h (// m h)]) [1 0 2]))]
        (for [x X]
          (set! out (+ (deref out) (sum (softmax (np.einsum "hid,hjd->hij" (split (@ x W)) (split (@ x U))) -1)))))
        (deref out)))"""
    assert "memcpy" not in hyad.show(hyad.model(text, namespace={}), "c")


def test_what_is_made_of_a_row_is_made_once_for_its_elements() -> None:
    """The adjoints of a row that was reshaped, in places that nobody knows: not all of them again for each element."""
    f = hyad.model("""(fn [#^ (Arr Real k n n) x]
      (sum (square (reshape (square x) [k (// n 2) (* 2 n)]))))""")
    g = hyad.grad(f)
    for k, n in ((2, 4), (3, 2), (1, 6), (2, 0)):
        x = np.random.default_rng(1).normal(size=(k, n, n))
        np.testing.assert_allclose(memoised.compile(g, args=[x])(x), 4 * x**3, rtol=1e-13)
    rows = [x for x in g.optimised(g.specs([np.ones((2, 4, 4))])).body.binds if type(x.op) is Loop]
    elements = [y for x in rows for y in all_binds(x.op.body) if type(y.op) is Loop]
    assert not any(type(z.op) is Prim and z.op.name == "zeros" for y in elements for z in all_binds(y.op.body))


@needs_compiler
def test_the_places_of_three_axes_need_no_division() -> None:
    """A vector of all elements, which are made before: quotients and remainders by two sizes are one subscript."""
    f = hyad.model("""(fn [#^ (Arr Real k n m) a #^ (Mat p q) d]
      (let [b (build [k n m] (fn [f i j] (max (exp (get a f i j)) (get a f i 0))))] (sum (square (@ (ravel b) d)))))""")
    rng = np.random.default_rng(3)
    for shape in ((2, 3, 4), (1, 1, 1), (3, 1, 2), (2, 2, 0)):
        args = rng.normal(size=shape), rng.normal(size=(int(np.prod(shape)), 3))
        b = np.maximum(np.exp(args[0]), args[0][:, :, :1]) if shape[2] else args[0]
        assert memoised.compile(f, args=args)(*args) == pytest.approx(np.sum((b.ravel() @ args[1]) ** 2), rel=1e-12)
        for x, y in zip(memoised.results(hyad.grad(f, wrt=("a", "d")), args), args):
            assert x.shape == y.shape
    args = rng.normal(size=(2, 3, 4)), rng.normal(size=(24, 3))
    hyad.check_grad(f, args)
    text = hyad.show(f, "c", args=args)
    assert "ifloordiv" not in text and "imod" not in text
