"""The order of loops in nests: rows of sums, adjoints along rows, four terms at a time; judged by the loops that come
out, and by values that do not change by a bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
from hyad.codegen.python import load_python
from hyad.core import (
    INT,
    LEAF,
    REAL,
    Arr,
    Atom,
    Block,
    Check,
    Const,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    defined_in,
    type_of,
)
from hyad.errors import ModelTypeError
from hyad.passes import jam
from hyad.passes.nests import FAR, Steps, accesses
from hyad.passes.optimise import jam_rows, loops_of
from hyad.passes.rows import added_rows
from hyad.plain_python import python_callable
from hyad.program.builder import Builder
from hyad.program.journal import without

NESTS = ("interchange", "register", "row-folds", "jam-rows")
RNG = np.random.default_rng(7)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def far(program: Program) -> int:
    """How many accesses of innermost loops go from row to row."""
    steps, found = Steps(program.body), 0

    def walk(block: Block, loops: tuple[Loop, ...]) -> None:
        if loops and not any(type(bind.op) is Loop for bind in block.binds):
            inside = {loops[-1].index, *loops[-1].accs, *defined_in(loops[-1].body)}
            found_here = [steps.cost(subscripts, loops[-1].index, inside) for _, subscripts, _ in accesses(block)]
            nonlocal found
            found += found_here.count(FAR)
        for bind in block.binds:
            for region in blocks_of(bind.op):
                walk(region, (*loops, bind.op) if type(bind.op) is Loop else loops)

    walk(program.body, ())
    return found


def optimised(model, *args) -> Program:
    return model.optimised(model.specs(args))


PRODUCT = "(fn [a b] (mat-mul a b))"
NAIVE = """(fn [a b]
  (build [(len a) (len (get b 0))] (fn [i j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 (len b)))))"""
TURNED = """(fn [a b]
  (build [(len (get b 0)) (len a)] (fn [j i] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 (len b)))))"""
#: A model, its arguments, and what it is in NumPy.
BY_ROWS = {
    "product": (PRODUCT, (array(5, 6), array(6, 9)), lambda a, b: a @ b),
    "product, naive": (NAIVE, (array(5, 6), array(6, 9)), lambda a, b: a @ b),
    "row times matrix": ("(fn [v a] (vec-mat v a))", (array(6), array(6, 9)), lambda v, a: v @ a),
    "sums of columns": ("(fn [a] (sum a 0))", (array(6, 9),), lambda a: a.sum(0)),
    "from a start of its own": (
        "(fn [v a] (build (len v) (fn [j] (ifold (fn [s i] (+ s (get a i j))) (get v j) (len a)))))",
        (array(9), array(6, 9)), lambda v, a: v + a.sum(0),
    ),
    "largest of columns": ("(fn [a] (amax a 0))", (array(6, 9),), lambda a: a.max(0)),
    "costly before, something after": (
        "(fn [v a] (build (len v) (fn [j] (let [e (exp (get v j))]"
        " (log (ifold (fn [s i] (+ s (* e (square (get a i j))))) 0.0 (len a)))))))",
        (array(9), array(6, 9)), lambda v, a: np.log((np.exp(v) * a**2).sum(0)),
    ),
    "one sum needs another": ("(fn [a] (logsumexp a 0))", (array(6, 9),), lambda a: np.log(np.exp(a).sum(0))),
    "two at once": (
        "(fn [a] (build (len (get a 0)) (fn [j] (let [#(p q)"
        " (ifold (fn [s i] #((+ (fst s) (get a i j)) (* (snd s) (get a i j)))) #(0.0 1.0) (len a))] (* p q)))))",
        (array(6, 9),), lambda a: a.sum(0) * a.prod(0),
    ),
    "a sum of sums": (
        "(fn [v a] (fold + 0.0 (build (len v) (fn [j] (exp (ifold (fn [s i] (+ s (get a i j))) (get v j) (len a)))))))",
        (array(9), array(6, 9)), lambda v, a: np.exp(v + a.sum(0)).sum(),
    ),
    "three loops": (
        "(fn [a] (build (get (shape a) 2) (fn [k]"
        " (ifold (fn [s i] (ifold (fn [s j] (+ s (get a i j k))) s (len (get a 0)))) 0.0 (len a)))))",
        (array(3, 4, 9),), lambda a: a.sum((0, 1)),
    ),
    "convolution": (
        "(fn [x w] (build (- (len x) 3) (fn [i] (ifold (fn [s k] (+ s (* (get x (+ i k)) (get w k)))) 0.0 4))))",
        (array(13), array(4)), lambda x, w: np.convolve(x, w[::-1], "valid"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_ROWS)
def test_inner_loops_go_along_rows(name: str) -> None:
    text, args, expected = BY_ROWS[name]
    model = hyad.model(text, namespace={})
    assert far(optimised(model, *args)) == 0
    made, plain = (hyad.compile(model, args=args, target="python", without=w)(*args) for w in ((), NESTS))
    np.testing.assert_allclose(made, expected(*args), rtol=1e-12)
    np.testing.assert_array_equal(made, plain)


HARDEST = ("product", "from a start of its own", "one sum needs another", "two at once", "three loops", "convolution")


@pytest.mark.parametrize("name", HARDEST)
def test_derivatives_are_those_without(name: str) -> None:
    """Forwards and backwards, with an array each added to."""
    text, args, _ = BY_ROWS[name]
    whole = f"(fn [x y] (let [f {text} s (fn [u] (sq-norm u))] (s (f x y))))"
    if len(args) == 1:
        whole = f"(fn [x] (let [f {text} s (fn [u] (sq-norm u))] (s (f x))))"
    model = hyad.model(whole, namespace={})
    gradient = hyad.grad(model, wrt=tuple(range(len(args))))
    made, wanted = (hyad.compile(gradient, args=args, target="python", without=w)(*args) for w in ((), NESTS))
    names = "x" if len(args) == 1 else "x y"
    tangent = hyad.model(f"(fn [{names}] (jvp {whole} {names} {names}))", namespace={})
    tangent = hyad.compile(tangent, args=args, target="python")(*args)
    made, wanted = ((x,) if len(args) == 1 else x for x in (made, wanted))
    for x, y in zip(made, wanted):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
    assert tangent == pytest.approx(sum(float((x * y).sum()) for x, y in zip(wanted, args)), rel=1e-10)


def mixed(*shape: int) -> np.ndarray:
    """Numbers of very different sizes: a sum of them tells the order that it was taken in."""
    return array(*shape) * 10.0 ** RNG.integers(0, 12, shape)


K = np.array([1, 0, 1, 2, 1, 0, 2, 1, 1])
#: Sums of the user's that rows take, or several iterations: a model and its arguments.
IN_ORDER = {
    "sums of sums": (
        "(fn [v c] (build (len v) (fn [j] (ifold (fn [s i] (+ s (ifold (fn [s k] (+ s (+ (get v j) (get c i j i))))"
        " 0.0 (len v)))) 0.0 (len v)))))",
        (mixed(13), mixed(13, 13, 13)),
    ),
    "what an inner loop goes on with": (
        "(fn [v a] (build [(len v) (len v)] (fn [i j] (ifold (fn [s k] (ifold (fn [s l] (+ s (- (get a i j) (get a k i"
        ")))) s (len v))) 0.0 (len v)))))",
        (mixed(9), mixed(9, 9)),
    ),
    "a window for each of some filters": (
        "(fn [x #^ (Arr Real k 3 3) w] (build [(len w) (- (len x) 2) (- (len (get x 0)) 2)] (fn [f i j] (ifold"
        " (fn [s p] (ifold (fn [s q] (+ s (* (get w f p q) (get x (+ i p) (+ j q))))) s 3)) 0.0 3))))",
        (mixed(15, 19), mixed(4, 3, 3)),
    ),
    "added to places that come again": (
        "(fn [v a] (let [#(w t) (ifold (fn [#(w t) i] (let [#(w s) (ifold (fn [#(w s) j]"
        " #((add-at w (min j 2) (* (get v i) (get a i j))) (+ s (get a i j)))) #(w 0.0) (len v))] #(w (+ t s))))"
        " #((zeros 3) 0.0) (len v))] (* t w)))",
        (mixed(29), mixed(29, 29)),
    ),
    "added to one place": (
        "(fn [v a] (ifold (fn [w i] (ifold (fn [w j] (add-at w 1 (* (get v i) (get a i j)))) w (len v))) v (len v)))",
        (mixed(9), mixed(9, 9)),
    ),
    "added to one place and to others": (
        "(fn [v k a] (ifold (fn [w j] (add-at (add-at w 1 (get a 0 j)) (get k j) (get v j))) v (len v)))",
        (mixed(9), K, mixed(9, 9)),
    ),
    "added to two places that are one": (
        "(fn [v k a] (ifold (fn [w j] (add-at (add-at w 1 (get a 0 j)) (get k 0) (get v j))) v (len v)))",
        (mixed(9), K, mixed(9, 9)),
    ),
    "added to neighbours": (
        "(fn [v a] (ifold (fn [w i] (ifold (fn [w j] (add-at (add-at w j (get a i j)) (+ j 1) (get v j))) w (len v)))"
        " (zeros (+ (len v) 1)) (len v)))",
        (mixed(29), mixed(29, 29)),
    ),
    "added to neighbours beside a sum": (
        "(fn [v a] (let [#(w t) (ifold (fn [#(w t) i] (let [#(w s) (ifold (fn [#(w s) j] #((add-at (add-at w j"
        " (get a i j)) (+ j 1) (get v i)) (+ s (get a i j)))) #(w 0.0) (len v))] #(w (+ t s))))"
        " #((zeros (+ (len v) 1)) 0.0) (len v))] (* t w)))",
        (mixed(29), mixed(29, 29)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_ORDER)
def test_sums_of_the_users_keep_their_order(name: str) -> None:
    """To the last bit, as the interpreter adds."""
    text, args = IN_ORDER[name]
    model = hyad.model(text, namespace={})
    made = python_callable(optimised(model, *args))(*args)
    np.testing.assert_array_equal(made, hyad.run(model, *args))


def test_the_gradient_of_a_product_goes_along_rows() -> None:
    """Both adjoints: one is a sum for each element, the other is added to a row at a time."""
    model = hyad.grad("(fn [a b] (sq-norm (mat-mul a b)))", wrt=(0, 1))
    args = array(9, 10), array(10, 11)
    assert far(optimised(model, *args)) == 0
    a, b = args
    for x, y in zip(model(a, b), (2 * (a @ b) @ b.T, 2 * a.T @ (a @ b))):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_the_gradient_of_nnmf_needs_no_matrix_more() -> None:
    text = "(fn [w h a] (sum (map (fn [x y] (sum (map (fn [p q] (+ (log p) (/ q p))) x y))) (mat-mul w h) a)))"
    model, args = hyad.grad(text, wrt=1), tuple(np.abs(array(*s)) + 0.1 for s in ((9, 3), (3, 10), (9, 10)))
    assert far(optimised(model, *args)) == 0
    w, h, a = args
    p = w @ h
    np.testing.assert_allclose(model(w, h, a), w.T @ (1 / p - a / p**2), rtol=1e-11)


#: What reads memory in its order as it stands, or cannot be turned.
AS_THEY_ARE = {
    "matrix times vector": ("(fn [a v] (mat-vec a v))", (array(9, 8), array(8))),
    "a triangle by rows": (
        "(fn [a] (build (len a) (fn [j] (ifold (fn [s i] (+ s (get a j i))) 0.0 (+ j 1)))))", (array(9, 9),),
    ),
    "windows that grow to their length": (
        "(fn [x h] (build (len x) (fn [k]"
        " (ifold (fn [s t] (+ s (* (get h t) (get x (- k t))))) 0.0 (min 4 (+ k 1))))))",
        (array(19), array(4)),
    ),
    "a recurrence": (
        "(fn [a] (ifold (fn [s j] (* 0.5 (ifold (fn [t i] (+ t (get a i j))) s (len a)))) 1.0 (len (get a 0))))",
        (array(9, 9),),
    ),
    "iterations of a number": (
        "(fn [v] (build (len v) (fn [i] (ifold (fn [x k] (* 0.5 (+ x (/ (get v i) x)))) 1.0 9))))", (np.abs(array(9)),),
    ),
    "what both adjoints need": (
        "(fn [x] ((grad (fn [x]"
        " (fold (fn [s a] (+ s (fold (fn [t b] (+ t (sqrt (+ 1.0 (square (- a b)))))) 0.0 x))) 0.0 x))) x))",
        (array(9),),
    ),
    "a few columns": ("(fn [#^ (Mat n 3) a] (sum a 0))", (array(9, 3),)),
}  # fmt: skip


#: Sums that are a term longer or shorter each time: models of two vectors and an integer.
RAGGED = {
    "lags": "(build m (fn [k] (sum (build (- (len x) k) (fn [t] (* (get x t) (get x (+ t k))))))))",
    "all lags": "(build (len x) (fn [k] (sum (build (- (len x) k) (fn [t] (* (get x t) (get x (+ t k))))))))",
    "lags of slices": """(build 9
        (fn [k] (* (+ 1.0 k) (dot (slice x k (len x)) (slice x 0 (- (len x) k))))))""",
    "a response": "(build (len x) (fn [k] (ifold (fn [s t] (+ s (* (get h t) (get x (- k t))))) 0.0 (+ k 1))))",
    "one that begins later": """(build (len x)
        (fn [k] (ifold (fn [s t] (+ s (* (get h t) (get x (- k t 1))))) (get h k) k)))""",
    "columns of a triangle": """(let [a
        (build [(len x) (len x)] (fn [i j] (* (get x i) (exp (* (get h j) (get x i))))))]
        (build (len x) (fn [j] (tanh (ifold (fn [s i] (+ s (get a i j))) 0.0 (+ j 1))))))""",
    "two sums": """(build (len x)
        (fn [k] (let [#(a b) (ifold (fn [#(a b) t]
          #((+ a (* (get h t) (get x (+ t k)))) (- b (* (get x t) (get h (+ t k)))))) #(0.5 (get x k)) (- (len x) k))]
        (* a b))))""",
}  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("name", RAGGED)
def test_sums_of_growing_and_shrinking_length_lie_in_a_row(name: str) -> None:
    model, total = (
        hyad.model(f"(fn [#^ (Vec n) x #^ (Vec n) h #^ Int m] {text})", namespace={})
        for text in (RAGGED[name], f"(sum (sin {RAGGED[name]}))")
    )
    assert "growing-sums" in hyad.explain(model).fired()
    made, plain = (hyad.compile(model, "python", without=w) for w in ((), "growing-sums"))
    compiled, gradient = hyad.compile(model), hyad.compile(hyad.grad(total, wrt=("x", "h")))
    for n in (0, 1, 2, 3, 7, 8, 9, 10, 11, 19, 34):
        x, h = array(n), array(n)
        for m in {min(m, n + 1) for m in (0, 1, 7, 8, 9, 20)}:
            np.testing.assert_array_equal(made(x, h, m), plain(x, h, m))
            np.testing.assert_allclose(compiled(x, h, m), made(x, h, m), rtol=1e-12, atol=1e-13)
    for n in (1, 2, 9, 12):
        x, h = array(n), array(n)
        along = array(2, n)
        up, down = (total(*(np.stack([x, h]) + e * along), n) for e in (1e-6, -1e-6))
        assert np.sum(gradient(x, h, n) * along) == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_stays(name: str) -> None:
    text, args = AS_THEY_ARE[name]
    assert "interchange" not in hyad.explain(hyad.model(text, namespace={}), args=args).fired()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17])
def test_four_terms_at_a_time(n: int) -> None:
    """Of any number of terms, in their order."""
    model, args = hyad.model(PRODUCT, namespace={}), (array(3, n), array(n, 9))
    made = hyad.compile(model, args=args, target="python")(*args)
    np.testing.assert_array_equal(made, hyad.compile(model, args=args, target="python", without="jam-rows")(*args))
    np.testing.assert_allclose(model(*args), args[0] @ args[1], rtol=1e-12)


#: Programs of a vector and a square matrix that choose each element of a row; whether four terms are taken at once.
CHOSEN = {
    "the largest": ("(build n (fn [j] (max (build n (fn [i] (+ (get v i) (get a i j)))))))", True),
    "the smallest": ("(build n (fn [j] (min (build n (fn [i] (* (get v i) (get a i j)))))))", True),
    "the term first": ("(build n (fn [j] (ifold (fn [t i] (max (* (get v i) (get a i j)) t)) 0.0 n)))", True),
    "few in a row": (
        "(build 8 (fn [j] (max (build n (fn [i] (+ (get v i) (* (real j) (get a i 0))))))))", False,
    ),
    "a row that is read as it changes": (
        """(let [u (copy v)]
             (for [i (range n)  j (range n)] (set-at! u j (min (get u j) (+ (get u i) (get a i j)))))
             u)""", False,
    ),
    "an element more than once": (
        """(let [u (copy v)]
             (for [i (range n)  j (range n)] (set-at! u (// j 2) (max (get u (// j 2)) (+ (get v i) (get a i j)))))
             u)""", False,
    ),
    "an element that is read again": (
        """(let [u (copy v)]
             (for [i (range n)  j (range n)]
               (set-at! u j (max (get u j) (* (get u j) (get v i) (get a i j)))))
             u)""", False,
    ),
    "another element": (
        """(let [u (copy v)]
             (for [i (range n)  j (range 1 n)] (set-at! u j (max (get u (- j 1)) (+ (get v i) (get a i j)))))
             u)""", False,
    ),
    "where the row is that of the iteration": (
        """(let [u (copy a)]
             (for [i (range n)  j (range n)] (set-at! u i j (max (get u i j) (* (get v i) (get v j)))))
             (get u 0))""", False,
    ),
}  # fmt: skip


@pytest.mark.some(10)
@pytest.mark.parametrize("name", CHOSEN)
def test_four_at_a_time_that_are_compared(name: str) -> None:
    """To the last bit, of equal ones, zeros with a sign and what is no number, too."""
    text, fours = CHOSEN[name]
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Mat n n) a] {text})", namespace={})
    total = hyad.model(f"(fn [#^ (Vec n) v #^ (Mat n n) a] (sum (map sin {text})))", namespace={})
    args = array(6), array(6, 6)
    assert ("/4" in hyad.compile(f, args=args).source) == fours
    for target in ("c", "python"):
        made, plain = (hyad.compile(f, args=args, target=target, without=w) for w in ((), "jam-rows"))
        gradients = [
            hyad.compile(hyad.grad(total, wrt=("v", "a")), args=args, target=target, without=w)
            for w in ((), "jam-rows")
        ]
        for n in (1, 2, 3, 4, 5, 8, 11):
            v, a = array(n), np.round(array(n, n), 1)
            np.testing.assert_array_equal(made(v, a), plain(v, a))
            for one, other in zip(*(g(v, a) for g in gradients)):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
            v[0], a[n // 2] = 0.0, -0.0
            for x in (made(v, a), plain(v, a)):
                np.testing.assert_array_equal(np.signbit(x), np.signbit(plain(v, a)))
            a[n // 2, n // 3] = np.nan
            np.testing.assert_array_equal(made(v, a), plain(v, a))
    assert hyad.check_grad(total, (array(5), array(5, 5)), wrt=("v", "a"))


TURNED = (
    "(fn [#^ (Mat n k) q #^ (Vec k) mu #^ (Mat m k) x] (fold (fn [s xi]"
    " (let [v (map (fn [a b] (- a b)) xi mu)"
    "       y (build (len q) (fn [r] (ifold (fn [t c] (+ t (* (get q r c) (get v c)))) 0.0 (len v))))]"
    "   (+ s (exp (* -0.5 (fold (fn [t a] (+ t (* a a))) 0.0 y)))))) 0.0 x))"
)


@pytest.mark.some(6)
@pytest.mark.parametrize("n, k, m", [(3, 4, 1), (1, 1, 3), (5, 7, 17), (4, 3, 40), (2, 0, 9), (0, 2, 9)])
def test_rows_made_of_several_are_kept(n: int, k: int, m: int) -> None:
    """To the last bit: a row of differences is made once for all rows of a matrix, in lanes and in what is added four
    terms at a time."""
    model, args = hyad.model(TURNED, namespace={}), (array(n, k), array(k), array(m, k))
    gradient = hyad.grad(model, wrt=("q", "mu"))
    for f in (model, gradient):
        assert "kept-rows" in hyad.explain(f, args=args).fired()
        made, plain = (hyad.compile(f, args=args, target="python", without=w)(*args) for w in ((), "kept-rows"))
        for one, two in zip(made, plain) if f is gradient else ((made, plain),):
            np.testing.assert_array_equal(one, two)
    q, mu, x = args
    y = (x - mu) @ q.T
    w = np.exp(-0.5 * (y * y).sum(1))
    q_bar, mu_bar = gradient(*args)
    np.testing.assert_allclose(model(*args), w.sum(), rtol=1e-12)
    np.testing.assert_allclose(q_bar, -np.einsum("i,ir,ic->rc", w, y, x - mu), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(mu_bar, np.einsum("i,ir,rc->c", w, y, q), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n, k, m", [(3, 4, 1), (5, 7, 17), (4, 3, 40)])
def test_kept_rows_are_added_four_at_a_time(n: int, k: int, m: int) -> None:
    """Each of four terms has a row of its own: the four rows are made in one loop."""
    text = TURNED.replace("(+ s (exp (* -0.5", "(+ s (square (* 0.5")  # an exponential is too dear to stand there twice
    gradient, args = hyad.grad(hyad.model(text, namespace={}), wrt="q"), (array(n, k), array(k), array(m, k))
    made, plain = (hyad.compile(gradient, args=args, without=w) for w in ((), "jam-rows"))
    assert made.source.count("for (") > plain.source.count("for (") + 2
    made, plain = (hyad.compile(gradient, args=args, target="python", without=w) for w in ((), "jam-rows"))
    np.testing.assert_array_equal(made(*args), plain(*args))
    x = args[2] - args[1]
    y = x @ args[0].T
    want = np.einsum("i,ir,ic->rc", (y * y).sum(1), y, x)
    np.testing.assert_allclose(made(*args), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "(fn [m x y] (let [v (map (fn [a b] (* 2.0 a)) x y)] (map (fn [row] (dot row v)) m)))",  # of one number each
        "(fn [m x y] (let [v (map (fn [a b] (- a b)) x y)] (dot (get m 0) v)))",  # read once
        "(fn [m x y] (let [v (map (fn [a b] (- a b)) x y)] (map (fn [a b] (* a b)) v (get m 0))))",
    ],
)
def test_rows_that_are_not_kept(text: str) -> None:
    args = array(3, 5), array(5), array(5)
    assert "kept-rows" not in hyad.explain(hyad.model(text, namespace={}), args=args).fired()


def test_infinite_rows_that_are_kept() -> None:
    model, args = hyad.model(TURNED, namespace={}), [array(4, 5), array(5), array(9, 5)]
    args[2][3, 1], args[2][5, 2] = np.inf, np.nan
    gradient = hyad.grad(model, wrt=("q", "mu"))
    for one, two in zip(gradient(*args), hyad.compile(gradient, args=args, without="kept-rows")(*args)):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(two))


@pytest.mark.parametrize("second, jams", [(1, True), (0, False), (None, False)])
def test_rows_that_are_added_to_twice(second: int | None, jams: bool) -> None:
    """Four terms at a time where both places are known to be two; each sum in its order."""
    b, n, m, at = Builder(), Var("n", INT), Var("m", INT), Var("at", INT)
    x, y = Var("x", Arr(REAL, (n, m))), Var("y", Arr(REAL, (n, m)))
    b.sizes |= {n, m}
    place = at if second is None else Const(second, INT)

    def row(k: Atom, total: Atom):
        def element(j: Atom, total: Atom):
            once = b.add_at(total, (j, Const(0, INT)), b.get(x, k, j))
            return (b.add_at(once, (j, place), b.get(y, k, j)),), ()

        return b.loop(m, (total,), element), ()

    start = b.zeros(Arr(REAL, (m, Const(2, INT))))
    body = b.close(b.scopes[0], b.loop(n, (start,), row))
    program = Program("rows", (x, y, at), (n, m), body, (LEAF,) * 3, LEAF)
    made = jam_rows(program)
    assert (len(list(loops_of(made))) > len(list(loops_of(program)))) == jams
    one, two = 1e8 * array(9, 5), array(9, 5)
    for where in (0, 1) if second is None else (second,):
        want = np.zeros((5, 2))
        for k in range(9):
            want[:, 0] += one[k]
            want[:, where] += two[k]
        np.testing.assert_array_equal(load_python(made)(one, two, where)[0], want)


def test_a_long_program_does_not_double_its_loops(monkeypatch) -> None:
    """Four terms at a time, or four sums, as far as there is room for loops."""
    step = "(let [x {}] (tanh (@ a (* x (/ 1.0 (sum x))))))"
    text = f"(fn [a x] (sum {step.format(step.format('x'))}))"

    def loops(room: int, *off: str) -> int:
        monkeypatch.setattr(jam, "LOOPS", room)
        model = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1))
        with without(off):
            program = model.optimised(model.specs((np.eye(2), np.eye(2))))
        return sum(type(bind.op) is Loop for bind in all_binds(program.body))

    plain = loops(160, "jam", "jam-rows")
    assert plain == loops(0) < loops(plain + 8) < loops(160)


def test_a_thread_of_a_gpu_keeps_its_sums(tmp_path) -> None:
    model = hyad.model("(defmodel product [#^ (Mat 9 9) a #^ (Mat 9 9) b] (mat-mul a b))", namespace={})
    hyad.emit(model, tmp_path, target="cuda")
    text = (tmp_path / "product.cu").read_text()
    print(text)
    assert "+=" in text and "memset" not in text


def test_sizes_are_compared_before_the_loops() -> None:
    """Rows of two matrices: their lengths are compared once, and no loop holds what may fail."""
    model = hyad.model("(fn [a b] (build [(len a) (len b)] (fn [i j] (dot (get a i) (get b j)))))", namespace={})
    args = array(3, 5), array(4, 5)
    body = optimised(model, *args).body
    assert any(type(bind.op) is Check for bind in body.binds)
    assert not any(type(inner.op) is Check for bind in body.binds for r in blocks_of(bind.op) for inner in all_binds(r))
    made = hyad.compile(model, args=args, target="python")
    np.testing.assert_allclose(made(*args), args[0] @ args[1].T, rtol=1e-12)
    with pytest.raises(ModelTypeError, match="different lengths"):
        made(array(3, 5), array(4, 6))


def test_an_array_of_tuples_is_several_arrays() -> None:
    """Each part lies in an array of its own, which loops read element after element; one that is another is that."""
    text = """(fn [x y]
      (let [points (build (len x) (fn [i] #((get x i) #((get y i) (exp (get x i)))))) n (len x)]
        (ifold (fn [s i]
            (+ s (ifold (fn [t j] (let [#(a #(b c)) (get points j)] (+ t (* a (fst (snd (get points i))) c)))) 0.0 n)))
          0.0 n)))"""
    model, args = hyad.model(text, namespace={}), (array(9), array(9))
    made = hyad.compile(model, args=args, target="python", without="lanes")  # which copy what they read
    program = made.program
    assert far(program) == 0
    types = [v.type for bind in all_binds(program.body) for v in bind.vars if isinstance(v.type, Arr)]
    assert types and all(t.elem == REAL and t.rank == 1 for t in types)
    x, y = args
    assert made(*args) == pytest.approx(float((x * np.exp(x)).sum() * y.sum()))


def test_a_row_goes_through_all_iterations() -> None:
    """A fold whose state is mapped over is a map of folds, the rows outside. Neighbouring numbers are better taken side
    by side; rows that need one another cannot go alone."""
    numbers = "(fn [x n] (ifold (fn [s k] (map (fn [a] (sin (* (real k) a))) s)) x n))"
    coupled = """(fn [x n] (ifold (fn [s k] (build (len s) (fn [i] (map (fn [a b] (sin (+ a b))) (get s i)
                   (get s (- (len s) i 1)))))) x n))"""
    alone = "(fn [x n] (ifold (fn [s k] (map (fn [r] (map (fn [a] (sin (* (real k) a))) r)) s)) x n))"
    for text, x, fires in (
        (numbers, np.ones(5), False),
        (coupled, np.ones((5, 6)), False),
        (alone, np.linspace(0, 1, 30).reshape(5, 6), True),
    ):
        f = hyad.model(text, namespace={})
        assert ("row-folds" in hyad.explain(f, args=(x, 3)).fired()) == fires
        exact = hyad.compile(f, args=(x, 3), target="python", without="row-folds")(x, 3)
        assert np.array_equal(hyad.compile(f, args=(x, 3), target="python")(x, 3), exact)
        np.testing.assert_allclose(f(x, 3), exact, rtol=1e-14)
    for off, first in (((), "(long long i"), ("row-folds", "(long long k")):
        text = hyad.show(f, "c", args=(x, 3), without=off)
        assert min(map(text.index, ("(long long i", "(long long k"))) == text.index(first)


#: A matrix that gets a part of another one, moved, in each step.
MOVED = """(fn [#^ (Mat n m) a] (let [s (ref (zeros [(- n {k}) (- m {j})]))]
  (for [q (range (+ 1 {k}))  r (range (+ 1 {j}))]
    (set! s (+ (deref s) (get a (slice q (- (+ n q) {k})) (slice r (- (+ m r) {j}))))))
  (deref s)))"""


@pytest.mark.parametrize("k, j", [(4, 4), (2, 3), (1, 6)])
def test_a_row_goes_through_two_folds(k: int, j: int) -> None:
    """A row takes all that comes to it, five terms at once where there are five; to the last bit."""
    f = hyad.model(MOVED.format(k=k, j=j), namespace={})
    g = hyad.grad(hyad.model(MOVED.format(k=k, j=j).replace("(deref s)))", "(sum (np.sin (deref s)))))")))
    for shape in ((9, 8), (5, 7), (k, j)):
        a = RNG.normal(size=shape)
        exact = memoised.compile(f, args=(a,), target="python", without=["row-folds", "jam-rows"])(a)
        for target in ("c", "python"):
            np.testing.assert_array_equal(memoised.compile(f, args=(a,), target=target)(a), exact)
        np.testing.assert_allclose(g(a), hyad.run(g, a), rtol=1e-12, atol=1e-13)
    c = hyad.show(f, "c", args=(np.ones((9, 8)),))
    assert "swap" not in c and "memcpy" not in c
    if j == 4:  # no loop over the terms of a row
        assert c.count("for (") == 3


@pytest.mark.parametrize(
    "step",
    [
        "(+ (get s j) (* (get s j) (get a k j)))",  # the term needs what it is added to
        "(+ (get s j) (get s (- m 1 j)))",  # or another element
        "(+ (get s (- m 1 j)) (get a k j))",  # or that alone
        "(* (get s j) (get a k j))",  # no sum
        "(+ (get a k j) (* (get a k j) (get s j)))",  # nor is this
    ],
)
def test_other_steps_of_a_row(step: str) -> None:
    """To the last bit; ``k`` goes through rows of a, ``j`` through their elements."""
    f = hyad.model(
        f"""(fn [#^ (Mat n m) a] (build n (fn [i]
              (ifold (fn [s k] (build m (fn [j] {step}))) (get a i) n))))""",
        namespace={},
    )
    for shape in ((4, 5), (5, 1), (9, 8)):
        a = RNG.uniform(-0.5, 0.5, shape)
        exact = memoised.compile(f, args=(a,), target="python", without=["row-folds", "jam-rows"])(a)
        np.testing.assert_array_equal(memoised.compile(f, args=(a,), target="python")(a), exact)
        np.testing.assert_allclose(f(a), exact, rtol=1e-13)
        np.testing.assert_allclose(exact, hyad.run(f, a), rtol=1e-13)


#: Rows of two numbers that are added to, with a matrix's rows beside them.
SKIN = """(fn [a w p] (ifold (fn [s k] (map (fn [r u q] (let [e (get u k)]
    [(+ (get r 0) (* e (exp (get a k)) (get q 0))) (+ (get r 1) (* e (sin (get a k)) (get q 1)))])) s w p))
  (map (fn [q] [0.5 -0.0]) p) (len a)))"""


def test_few_sums_of_a_row_go_along_a_matrix() -> None:
    """Rows of few numbers that are added to go through all iterations where these read the rows of a matrix; what the
    iterations need for it is made once, before."""
    f = hyad.model(SKIN, namespace={})
    for n, m in ((7, 9), (1, 1), (3, 4), (5, 0), (0, 3)):
        a, w, p = RNG.normal(size=m), RNG.normal(size=(n, m)), RNG.normal(size=(n, 2))
        exact = memoised.compile(f, args=(a, w, p), target="python", without="row-folds")(a, w, p)
        assert np.array_equal(memoised.compile(f, args=(a, w, p), target="python")(a, w, p), exact)
        expected = np.stack([0.5 + w @ np.exp(a) * p[:, 0], w @ np.sin(a) * p[:, 1]], axis=1)
        np.testing.assert_allclose(f(a, w, p), expected, rtol=1e-12, atol=1e-12)
        total = hyad.model(SKIN.replace("(fn [a w p]", "(fn [a w p] (sum") + ")", namespace={})
        slope = w.T @ p[:, 0] * np.exp(a) + w.T @ p[:, 1] * np.cos(a)
        np.testing.assert_allclose(hyad.grad(total, wrt="a")(a, w, p), slope, rtol=1e-12, atol=1e-12)
    text = hyad.show(f, "c", args=(a, w, p))
    assert text.count("exp(") == 1 and text.index("exp(") < text.index("(long long i") < text.rindex("(long long k")
    assert "row-folds" in hyad.explain(f, args=(a, w, p)).fired()


@pytest.mark.parametrize(
    "old, new",
    [
        ("(get u k)", "(get a k)"),  # no matrix
        ("r 0) (* e (exp (get a k)) (get q 0))) (+ (get r 1", "r 1) (* e (exp (get a k)) (get q 0))) (+ (get r 0"),
        ("(+ (get r 0)", "(* (get r 0)"),  # no sum
        ("(* e (exp", "(* (get r 0) (exp"),  # a sum that needs itself
    ],
)
def test_other_rows_of_few_numbers_stay_side_by_side(old: str, new: str) -> None:
    f, args = hyad.model(SKIN.replace(old, new, 1), namespace={}), (array(4), array(5, 4), array(5, 2))
    assert "row-folds" not in hyad.explain(f, args=args).fired()
    np.testing.assert_allclose(f(*args), hyad.run(f, *args), rtol=1e-12)


def test_many_numbers_and_integers_of_an_iteration_stay() -> None:
    """A row of many numbers is a loop's, one of one number is a number; an integer is none of a table's."""
    parts = " ".join(f"(+ (get r {j}) (* e (get q 0)))" for j in range(9))
    many = SKIN[: SKIN.index("[(+ (get r 0)")] + f"[{parts}]" + SKIN[SKIN.index(")) s w p))") :]
    many = many.replace("[0.5 -0.0]", "[" + "0.5 " * 9 + "]")
    odd = SKIN.replace("(get q 0)", "(get q (% (* k k k) 2))")
    single = SKIN.replace("0.5 -0.0", "0.5").replace(" (+ (get r 1) (* e (sin (get a k)) (get q 1)))", "")
    given = (array(4), array(5, 4), array(5, 2))
    for text in (many, odd, single):
        f = hyad.model(text, namespace={})
        assert "row-folds" not in hyad.explain(f, args=given).fired()
        np.testing.assert_allclose(f(*given), hyad.run(f, *given), rtol=1e-12)


def test_it_is_named_and_explained() -> None:
    assert set(NESTS) <= set(hyad.optimisations())
    found = hyad.explain(hyad.model(PRODUCT, namespace={}), args=(array(9, 9), array(9, 9)))
    assert "interchange" in found.fired() and "neighbouring elements" in str(found)


def exponentials(f, **options) -> int:
    return hyad.compile(f, **options).cfunction.source.count("exp(")


def test_no_call_is_made_in_two_loops_for_the_order_of_one() -> None:
    text = """(defmodel chain [#^ (Mat n k) u  #^ (Mat k k) w]
      (logsumexp (ifold (fn [alpha t]
          (build (len w) (fn [j] (logsumexp (build (len w) (fn [i] (+ (get alpha i) (get w i j) (get u t j))))))))
        (get u 0) (len u))))"""
    gradient = hyad.grad(hyad.model(text), wrt=("u", "w"))
    assert exponentials(gradient) == exponentials(gradient, without="interchange")
    u, w = array(4, 9), array(9, 9)
    for one, other in zip(hyad.compile(gradient)(u, w), hyad.run(gradient, u, w)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


PAIRS = """(defmodel pairs [#^ (Mat n 3) x]
  (sum (build [(len x) (len x)] (fn [i j]
    (if (< i j) (let [d (- (get x i) (get x j))  r (+ 0.1 (sq-norm d))] (/ 1.0 (* r r r))) 0.0)))))"""


def test_what_is_added_to_one_element_is_added_up_beside_what_goes_to_others() -> None:
    gradient = hyad.grad(hyad.model(PAIRS))
    x = array(7, 3)
    made = hyad.compile(gradient)(x)
    np.testing.assert_allclose(made, hyad.run(gradient, x), rtol=1e-12)
    np.testing.assert_allclose(made, hyad.compile(gradient, without="register")(x), rtol=1e-12)
    assert hyad.compile(gradient)(array(0, 3)).shape == (0, 3)
    np.testing.assert_array_equal(hyad.compile(gradient)(array(1, 3)), np.zeros((1, 3)))
    stores = hyad.compile(gradient).cfunction.source
    inner = stores[stores.rindex("for (") :].split("}")[0]
    elements = len(re.findall(r"\] [+-]= ", inner))
    assert elements == 3 and len(re.findall(r" [+-]= ", inner)) == elements + 3, inner  # and three sums


INSIDE = "(and (>= y 0) (< y n) (>= x 0) (< x m))"
#: What a pixel adds to the number t for each one in a window around it, which ends at the edges of an image; also of an
#: element that is there only where a branch is taken.
WINDOWS = {
    "one branch": f"(when {INSIDE} (let [e (- (get a y x) (get a i j))] (set! t (+ (deref t) (exp (* -1 e e))))))",
    "before it": """(when (and (>= x 0) (< x m) (> i 0)) (set! t (+ (deref t) (* (get a i x) (get a h j)))))""",
}


@pytest.mark.parametrize("name", WINDOWS)
def test_what_branches_add_to_one_element_is_added_up(name: str) -> None:
    f = hyad.model(
        f"""(fn [#^ (Mat n m) a] (sum (build [n m] (fn [i j]
              (let [t (ref 0.0)  h (- i 1)]
                (for [p (range -2 3) q (range -2 3)] (let [y (+ i p)  x (+ j q)] {WINDOWS[name]}))
                (deref t))))))""",
        namespace={},
    )
    g = hyad.grad(f)
    made, plain = hyad.compile(g), hyad.compile(g, without=["branch-sums"])
    assert "branch-sums" in hyad.optimisations() and made.source != plain.source
    assert not re.search(r"out\[h\*m \+ j\] \+= (?!a\[)", made.source)  # of a row that need not be there
    for n, m in ((5, 4), (1, 1), (2, 3), (0, 3)):
        a = array(n, m)
        np.testing.assert_allclose(made(a), hyad.run(g, a), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(made(a), plain(a), rtol=1e-12, atol=1e-13)
    hyad.check_grad(f, (array(5, 4),))


NORMALISED = """(fn [#^ (Mat n d) x #^ (Vec d) g #^ (Vec d) b]
  (sum (np.square (+ (* g (/ (- x (np.mean x :axis 0)) (np.sqrt (+ (np.var x :axis 0) 1e-5)))) b))))"""


def test_what_all_elements_get_comes_where_they_are_read() -> None:
    """The adjoint of a mean goes to all elements of a column: they are read so, and are no array for it."""
    f = hyad.model(NORMALISED, namespace={})
    args = RNG.normal(size=(7, 3)), RNG.normal(size=3), RNG.normal(size=3)
    assert hyad.check_grad(f, args)
    x, g, b = args
    s = np.sqrt(x.var(0) + 1e-5)
    h = (x - x.mean(0)) / s
    e = 2 * (g * h + b)
    made = g / s * (e - e.mean(0) - h * (e * h).mean(0)), (e * h).sum(0), e.sum(0)
    for found, wanted in zip(hyad.grad(f)(*args), made):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
    ratio = "(fn [#^ (Vec n) v] (let [u (map sin v)] (/ (mean u) (std u))))"
    text = hyad.show(hyad.grad(hyad.model(ratio, namespace={})), "c")
    assert not re.search(r"\w+\[i\] \+= \w+;", text)
    more = "(fn [#^ (Vec n) v] (let [w (* v v 2.0 v)  u (map (fn [x] (+ x (sum w))) w)] (+ (dot u w) (sum (sin u)))))"
    assert hyad.check_grad(hyad.model(more, namespace={}), (np.array([0.3, -0.5, 1.2]),))


def test_a_sum_that_shares_most_of_its_work_stays_with_the_others() -> None:
    """Each element is divided by its column's deviation once, not once more for one of the sums to be in fours."""
    text = hyad.show(hyad.grad(hyad.model(NORMALISED, namespace={})), "c")
    assert len(re.findall(r" - made\w*\[\w+\]\)/\w+\[", text)) == 1


#: Rows found by an index, whose adjoints come back to rows.
GATHERED = {
    "two factors": "(fn [u v #^ (Arr Int n) i #^ (Arr Int n) j] (sum (square (sum (* (gather u i) (gather v j)) 1))))",
    "one array": "(fn [u v #^ (Arr Int n) i #^ (Arr Int n) j] (sum (square (sum (* (gather u i) (gather u j)) 1))))",
}


@pytest.mark.parametrize("name", GATHERED)
def test_adjoints_of_rows_are_added_where_they_are_made(name: str) -> None:
    """No array of a row for each index is stored; rows that come twice get both adjoints."""
    text = GATHERED[name]
    rng = np.random.default_rng(5)
    args = (rng.normal(size=(7, 40)), rng.normal(size=(6, 40)), rng.integers(0, 6, 30), rng.integers(0, 6, 30))
    f = hyad.grad(hyad.model(text), wrt=(0, 1))
    made, plain = (hyad.compile(f, args=args, without=w) for w in ((), "add-rows"))
    assert "add-rows" in [step.name for step in hyad.explain(f, args=args).steps]
    width = made.program.params[0].type.dims[1:]
    stacked = [r for op in loops_of(made.program) for r in op.body.results[len(op.accs) :] if type(r) is Var]
    assert not any(r.type.dims == width for r in stacked if isinstance(r.type, Arr))
    adds = [x.op for x in all_binds(made.program.body) if type(x.op) is Prim and x.op.name == "add-at"]
    assert adds and not any(isinstance(type_of(op.args[-1]), Arr) for op in adds)
    for i, j in ((args[2], args[3]), (args[2] * 0, args[3] * 0), (args[2], args[2]), (args[2][:0], args[3][:0])):
        for x, y in zip(made(*args[:2], i, j), plain(*args[:2], i, j)):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_two_rows_are_added_to_one_array_in_turn() -> None:
    """Each element gets one and then the other, also where both rows are the same one."""
    b, n, m, i, j = Builder(), *(Var(name, INT) for name in "nmij")
    a, v = Var("a", Arr(REAL, (n, m))), Var("v", Arr(REAL, (m,)))
    with b.function_scope(0) as scope:
        scope.vars.update((a, v, i, j, n, m))
        r, s = b.loop(m, (), lambda k: ((), [b.prim(f, b.get(v, k)) for f in ("sin", "cos")]), ["r", "s"])
        out = b.add_at(b.add_at(a, [i], r), [j], s)
    block = b.close(scope, [out])
    (loop,) = added_rows(block).binds
    assert loop.vars == added_rows(block).results == (out,) and loop.op.inits == (a,)
    first, second = (x for x in loop.op.body.binds if x.op.name == "add-at")
    assert first.op.args[:2] == (loop.op.accs[0], i) and second.op.args[:2] == (first.vars[0], j)
    assert loop.op.body.results == second.vars


def test_the_elements_of_a_short_row_come_with_its_first() -> None:
    """Each bone of a skeleton has a small matrix: what comes to them from a point is added bone by bone."""
    text = """(fn [t w v] (sum (square (build (len v) (fn [i]
      (fold (fn [acc b] (+ acc (* (get w i b) (@ (get t b) (get v i))))) (zeros 3) (arange (len t))))))))"""
    args = (array(8, 3, 3), array(20, 8), array(20, 3))
    f = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1, 2))
    made, plain = (hyad.compile(f, args=args, without=w) for w in ((), "interchange"))
    assert re.search(r"t_bar\[9\*i1 \+ 2\] \+= ", made.source)  # .. in the loop over the bones
    for x, y in zip(made(*args), plain(*args)):
        np.testing.assert_allclose(x, y, rtol=1e-12)
