"""Matrices that a loop multiplies with vectors are transposed before it (``hyad/passes/transposes.py``)."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import REAL, Loop, Prim, all_binds
from hyad.passes.copies import copied
from hyad.program.journal import without
from hyad.program.loops import loops_of

#: Programs of a matrix a of as many rows as columns, three of these w, a vector v of as many elements, and a number of
#: iterations t; and whether the pass takes their values.
PROGRAMS = {
    "product": ("(ifold (fn [h i] (tanh (@ a h))) v t)", True),
    "sums": (
        """(ifold (fn [h k] (build (len h) (fn [i]
             (* 0.5 (+ (get h i) (sum (build (len h) (fn [j] (* (get a i j) (get h j)))))))))) v t)""",
        True,
    ),
    "in place": (
        """(let [n (len v)  h (build n (fn [i] (get v i)))]
             (for [k (range t)]
               (let [q (zeros n)]
                 (for [i (range n)  j (range n)] (set-at! q i (+ (get q i) (* (get a i j) (get h j)))))
                 (for [i (range n)] (set-at! h i (sin (get q i))))))
             h)""",
        True,
    ),
    "until it is near": (
        """(let [x (ref v)  n (ref 0)]
             (while (< (deref n) t) (set! x (+ v (* 0.1 (@ a (deref x))))) (set! n (+ (deref n) 1)))
             (deref x))""",
        True,
    ),
    "one of three": ("(ifold (fn [h i] (tanh (@ (get w 1) h))) v t)", True),
    "all of three": ("(ifold (fn [h i] (tanh (@ (get w (% i 3)) h))) v t)", False),
    "of each layer": ("(fold (fn [h b] (ifold (fn [h i] (tanh (@ b h))) h t)) v w)", True),
    "made before": (
        """(let [b (build [(len a) (len a)] (fn [i j] (exp (* 0.1 (get a i j)))))]
             (ifold (fn [h k] (tanh (* 0.1 (@ b h)))) v t))""",
        True,
    ),
    "made before, and read": (
        """(let [b (build [(len a) (len a)] (fn [i j] (exp (* 0.1 (get a i j)))))]
             (+ (get b 0) (ifold (fn [h k] (tanh (* 0.1 (@ b h)))) v t)))""",
        True,
    ),
    "rows of two": ("(build [(len a) (len a)] (fn [i j] (dot (get a i) (get w 1 j))))", True),
    "of several vectors": ("(map sum (map (fn [u] (ifold (fn [h i] (tanh (@ a h))) u t)) w))", None),
    "with an offset": (
        """(ifold (fn [h k] (build (len h) (fn [i] (tanh (sum (build (- (len h) 1) (fn [j]
             (* (get a i (+ j 1)) (get h j)))))))))  v t)""",
        True,
    ),
    "both ways": ("(ifold (fn [h i] (tanh (@ (transpose a) (@ a h)))) v t)", True),
    "by columns": ("(ifold (fn [h i] (tanh (@ h a))) v t)", False),
    "once": ("(tanh (@ a v))", False),
    "three times": ("(ifold (fn [h i] (tanh (@ a h))) v 3)", False),
    "changing": (
        "(snd (ifold (fn [#(b h) i] #((* 0.9 b) (tanh (@ b h)))) #(a v) t))",
        False,
    ),
    "a triangle": (
        """(ifold (fn [h k] (build (len h) (fn [i] (tanh (sum (build (+ i 1) (fn [j]
             (* (get a i j) (get h j)))))))))  v t)""",
        False,
    ),
    "a part of it": (
        """(let [u (get v (slice 0 12))] (ifold (fn [h k] (build 12 (fn [i] (tanh (sum (build 12 (fn [j]
             (* (get a i j) (get h j))))))))) u t))""",
        False,
    ),
}


def model(name: str) -> hyad.Model:
    text = f"""(fn [#^ (Mat n n) a #^ (Arr Real 3 n n) w #^ (Vec n) v #^ Int t]
      (let [r {PROGRAMS[name][0]}] (+ (sum r) (sum (* r r)))))"""
    return hyad.model(text, namespace={})


def arguments(n: int, t: int) -> tuple:
    rng = np.random.default_rng(4)
    return (*(rng.uniform(-1, 1, s) / max(1, n) ** 0.5 for s in ((n, n), (3, n, n), (n,))), t)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    """Values are the same to the last bit: each sum is taken in its own order."""
    f = model(name)
    g = hyad.grad(f, wrt="a") if "(get w" not in PROGRAMS[name][0] else hyad.grad(f, wrt="w")
    fires = PROGRAMS[name][1]
    for n, t in ((13, 4), (16, 5), (1, 3), (3, 0), (12, 1)):
        if n < 12 and name == "a part of it" or n == 3 and t == 0 and name == "of each layer":
            continue
        args = arguments(n, t)
        if fires is not None:
            assert ("transposes" in hyad.explain(f, args=args).fired()) == fires
        assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        for h in (f, g):
            one, other = memoised.results(h, args), memoised.results(h, args, without=["transposes", "by-columns"])
            for x, y in zip(one, other):
                np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-15)
        plain = memoised.compile(f, args=args, target="python", without=["transposes", "by-columns"])
        assert memoised.compile(f, args=args, target="python")(*args) == plain(*args)
    hyad.check_grad(f, arguments(13, 4))


def matrices(f: hyad.Model, n: int) -> int:
    """How many loops make a matrix, where the loops have gone where they are to go."""
    program = f.optimised(f.specs(arguments(n, 4)))
    made = [x for x in all_binds(program.body) if type(x.op) is Loop for v in x.vars if getattr(v.type, "rank", 0) == 2]
    return len([x for x in made if not any(x in all_binds(y.op.body) for y in made)])


def test_what_is_read_transposed_alone_is_made_so() -> None:
    assert matrices(model("made before"), 13) == 1
    assert matrices(model("made before, and read"), 13) > 1


def test_the_transpose_of_a_transpose_is_the_matrix() -> None:
    """A matrix that is multiplied from both sides, as in Sinkhorn's scaling: one of the two is there already."""
    f = hyad.model("""(fn [#^ (Mat n m) c #^ Int t]
      (let [k (exp (- c))]
        (ifold (fn [#(u v) i] (let [u (/ 1 (@ k v))  v (/ 1 (@ k.T u))] #(u v)))
               #((ones (len c)) (ones (len (get c 0)))) t)))""")
    args = np.random.default_rng(5).uniform(0, 1, (9, 8)), 4
    assert "transposes" in hyad.explain(f, args=args).fired()
    assert not any(map(copied, loops_of(f.optimised(f.specs(args)))))
    for one, other in zip(f(*args), hyad.run(f, *args)):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_what_is_read_once_stays() -> None:
    """A matrix that an iteration makes, and transposes."""
    for text in (
        "(sum (ifold (fn [b i] (transpose (tanh (* 0.5 b)))) a t))",
        "(sum (ifold (fn [b i] (build [n n] (fn [i j] (- (get b j i) (* 0.1 (get a i j)))))) a t))",
    ):
        f = hyad.model(f"(fn [#^ (Mat n n) a #^ Int t] {text})", namespace={})
        args = arguments(13, 4)[0], 4
        assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        for g in (f, hyad.grad(f, wrt="a")):
            assert not {"transposes", "by-columns"} & set(hyad.explain(g, args=args).fired())


def reads_matrix(bind) -> bool:
    return type(bind.op) is Prim and bind.op.name == "get" and len(bind.op.args) == 3


def test_sums_are_vectors() -> None:
    """The loop that goes along a matrix adds to a row of sums: none has a sum of its own, whose additions would wait
    for one another."""
    f = model("product")

    def sums(*off: str) -> list[Loop]:
        with without(off):
            program = f.optimised(f.specs(arguments(13, 4)))
        loops = [x.op for x in all_binds(program.body) if type(x.op) is Loop]
        return [op for op in loops if any(a.type == REAL for a in op.accs) and any(map(reads_matrix, op.body.binds))]

    assert not sums()
    assert sums("transposes")


def test_columns_that_innermost_loops_read() -> None:
    """What a hidden Markov model's gradient adds to the logarithms of its steps."""
    f = hyad.model("""(fn [#^ (Mat k k) p #^ (Mat n k) e]
      (logsumexp (fold (fn [a x] (build (len x) (fn [j] (+ (get x j) (logsumexp (build (len a) (fn [i]
        (+ (get a i) (get p i j)))))))))
        (get e 0) (slice e 1 (len e)))))""")
    rng = np.random.default_rng(3)
    for k, n in ((17, 6), (4, 3), (1, 1)):
        args = rng.uniform(-2, 0, (k, k)), rng.uniform(-2, 0, (n, k))
        g = hyad.grad(f, wrt=("p", "e"))
        assert {"transposes", "by-columns"} <= set(hyad.explain(g, args=args).fired())
        for x, y in zip(memoised.results(g, args), memoised.results(g, args, without=["transposes", "by-columns"])):
            np.testing.assert_allclose(x, y, rtol=1e-12)
        hyad.check_grad(f, args)


def test_adjoints_are_vectors_as_they_are() -> None:
    """Sums of differentiation's own have no order, and what it adds to rows goes along them."""
    args = arguments(13, 4)
    g = hyad.grad(model("by columns"), wrt="a")
    assert "transposes" not in hyad.explain(g, args=args).fired()
    g = hyad.grad(model("product"), wrt=("a", "v"))
    program = g.optimised(g.specs(args))
    a = program.params[0]
    assert a.name == "a"
    reads = [x for x in all_binds(program.body) if reads_matrix(x) and x.op.args[0] is a]
    assert len(reads) > 2  # to be transposed, all tiles and the rest, and by the way back


def test_sizes_that_are_not_declared() -> None:
    """A matrix that is checked to have room for what is read is supposed to be read whole."""
    f = hyad.model("""(fn [a v #^ Int t] (sum (ifold (fn [h k] (build (len h) (fn [i]
      (tanh (sum (build (len h) (fn [j] (* (get a i j) (get h j)))))))))  v t)))""")
    rng = np.random.default_rng(2)
    for n, m, k in ((9, 9, 9), (12, 10, 9), (3, 3, 2)):
        args = rng.uniform(-1, 1, (n, m)), rng.uniform(-1, 1, k), 4
        assert "transposes" in hyad.explain(f, args=args).fired()
        assert memoised.compile(f, args=args)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
    with pytest.raises(IndexError):
        f(rng.uniform(-1, 1, (3, 9)), rng.uniform(-1, 1, 9), 4)
    f = hyad.model("(fn [a v #^ Int t] (sum (ifold (fn [h i] (tanh (@ a h))) v t)))")
    args = rng.uniform(-1, 1, (9, 9)), rng.uniform(-1, 1, 9), 4
    assert "transposes" in hyad.explain(f, args=args).fired()  # as many columns as the vector has elements
    assert memoised.compile(f, args=args)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
