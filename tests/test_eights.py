"""Whole iterations in lanes (``hyad/passes/eights.py``): values and gradients at counts around eight, which loops go in
lanes, and which are left alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import INT, Arr, Const, Loop, all_binds
from hyad.passes.lanes import LANES

OFF = ("eights", "whole-eights")
MODELS = {
    "polynomial": """(fn [#^ (Vec m) c #^ (Vec n) x #^ (Vec n) y]
      (fold (fn [s x y] (+ s (square (- y (fold (fn [p a] (+ (* p x) a)) 0.0 c))))) 0.0 x y))""",
    "powers": """(fn [#^ (Vec m) c #^ (Vec n) x]
      (fold (fn [s x] (+ s (square (fst (fold (fn [#(s p) a] #((+ s (* a p)) (* p x))) #(0.0 1.0) c))))) 0.0 x))""",
    "logistic": """(fn [#^ Real r #^ (Vec n) x #^ (Vec m) y]
      (sum (map (fn [x] (fold (fn [x a] (* r x (- a x))) x y)) x)))""",
    "paths": """(fn [#^ Real spot #^ Real sigma #^ (Mat n m) z]
      (sum (map (fn [row] (let [r (fold (fn [#(s a) e] (let [s (* s (+ 1.01 (* sigma e)))] #(s (+ a s))))
                                        #(spot 0.0) row)]
                            (max 0.0 (- (/ (snd r) (real (len row))) 1.0)))) z)))""",
    "oscillator": """(fn [#^ Real mu #^ (Vec n) x #^ (Vec n) v #^ (Vec m) push]
      (sum (map (fn [x v] (let [r (fold (fn [#(x v) a] (let [u (+ v (* 0.1 (+ a (- (* mu v (- 1.0 (* x x))) x))))]
                                                         #((+ x (* 0.1 u)) u))) #(x v) push)]
                            (+ (square (fst r)) (square (snd r))))) x v)))""",
    "fraction": """(fn [#^ (Vec m) a #^ (Vec n) x]
      (sum (map (fn [x] (fold (fn [f a] (/ a (+ x f))) 1.0 a)) x)))""",
    "smoothing": """(fn [#^ Real alpha #^ (Mat n m) y]
      (sum (map (fn [row] (snd (fold (fn [#(l e) y] (let [d (- y l)] #((+ l (* alpha d)) (+ e (* d d)))))
                                     #(0.0 0.0) row))) y)))""",
    "prices": """(fn [#^ Real v #^ Real k #^ (Mat n m) z]
      (sum (map (fn [row] (let [step (fn [#(v x) e] #((+ v (* k (- 1.0 v)) (* 0.1 v e)) (- x (* v e))))]
                            (max 0.4 (exp (* 0.1 (snd (fold step #(v 0.0) row))))))) z)))""",
    "drawdown": """(fn [#^ (Mat n m) y]
      (sum (map (fn [row] (fst (fold (fn [#(w p q) y] (let [q (+ q y) p (max p q)] #((max w (- p q)) p q)))
                                     #(0.0 0.0 0.0) row))) y)))""",
}
WRT = {"polynomial": 0, "powers": (0, 1), "logistic": (0, 1, 2), "paths": (0, 1, 2), "oscillator": (0, 1, 2, 3),
       "fraction": (0, 1), "prices": (0, 1, 2), "smoothing": (0, 1), "drawdown": 0}  # fmt: skip
#: Whose values go in lanes as well, and by which pass.
VALUES = {"drawdown": "eights", "paths": "lanes"}


def given(name: str, n: int, m: int) -> tuple:
    rng = np.random.default_rng(n)
    vector, row, rows = rng.uniform(0.5, 1, n), rng.uniform(0.5, 1, m), rng.normal(size=(n, m))
    return {
        "polynomial": (row, vector, vector[::-1].copy()),
        "powers": (row, vector),
        "logistic": (1.1, vector, row),
        "paths": (1.0, 0.1, rows),
        "oscillator": (0.7, vector, -vector, row),
        "fraction": (row, vector),
        "smoothing": (0.3, rows),
        "prices": (1.2, 0.1, rows),
        "drawdown": (rows,),
    }[name]


@cache
def model(name: str) -> hyad.Model:
    return hyad.model(MODELS[name])


@cache
def gradient(name: str) -> hyad.Model:
    return hyad.grad(model(name), wrt=WRT[name])


@cache
def fired(f: hyad.Model) -> set[str]:
    return {*hyad.explain(f).fired()}


def flat(result: object) -> np.ndarray:
    parts = result if isinstance(result, tuple) else (result,)
    return np.concatenate([np.ravel(p) for p in parts])


@pytest.mark.some(3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 24, 29])
def test_gradients(name: str, n: int) -> None:
    """Against differences, and the same without; in C."""
    f, g = model(name), gradient(name)
    assert "eights" in fired(g)
    here, plain = memoised.compile(g), memoised.compile(g, without=OFF)
    for m in (1, 5):
        args = given(name, n, m)
        got = flat(here(*args))
        np.testing.assert_allclose(got, flat(plain(*args)), rtol=1e-12, atol=1e-13)
        wrt = WRT[name] if isinstance(WRT[name], tuple) else (WRT[name],)
        rng, h = np.random.default_rng(1), 1e-6
        steps = {k: rng.normal(size=np.shape(args[k])) for k in wrt}
        ends = [f(*(a + s * steps[k] if k in steps else a for k, a in enumerate(args))) for s in (h, -h)]
        slope = np.sum(got * np.concatenate([np.ravel(steps[k]) for k in wrt]))
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 29])
def test_values_keep_their_order(name: str, n: int) -> None:
    """To the last bit, in Python, where nothing contracts a product and a sum."""
    f = model(name)
    assert VALUES[name] in [step.name for step in hyad.explain(f).steps]
    here, plain = memoised.compile(f, "python"), memoised.compile(f, "python", without=(*OFF, "lanes"))
    args = given(name, n, 6)
    assert here(*args) == plain(*args)


def test_not_a_number_stays_in_its_lane() -> None:
    g = hyad.compile(hyad.grad(hyad.model(MODELS["smoothing"]), wrt=1))
    rows = given("smoothing", 19, 5)[1]
    rows[3, 1] = np.nan
    found = np.isnan(g(0.3, rows))
    assert found[3].any() and not np.delete(found, 3, axis=0).any()


def test_a_sum_of_its_own_in_each_lane() -> None:
    """What differentiation adds up is one vector through all iterations, added across at the end."""
    g = hyad.grad(hyad.model(MODELS["logistic"]), wrt=(0, 1, 2))

    def vectors(**options: object) -> int:
        loops = [b.op for b in all_binds(hyad.compile(g, "python", **options).program.body) if type(b.op) is Loop]
        eight = [a for op in loops for a in op.accs if isinstance(a.type, Arr) and a.type.dims[-1] == Const(LANES, INT)]
        around = [op for op in loops if any(a in eight for a in op.accs) and op.index.name == "tile"]
        return len(around)

    assert vectors() == 1 and vectors(without=OFF) == 0


def test_two_changes_of_an_array_of_an_iteration() -> None:
    """The adjoint of a table of three that is read at two places: each lane has one of its own, changed twice."""
    text = """(fn [x #^ (Vec n) w] (ifold (fn [s1 i] (+ s1 (ifold (fn [s j]
      (+ s (interp x [-1.0 0.1 2.0] [0.5 s 1.5]))) 0.0 n))) 0.0 n))"""
    f = hyad.grad(hyad.model(text, namespace={}))
    assert any(step.name in OFF for step in hyad.explain(f).steps)
    for n in (0, 1, 7, 8, 19):
        got, wanted = f(0.3, np.ones(n)), hyad.run(f, 0.3, np.ones(n))
        np.testing.assert_allclose(flat(got), flat(wanted), rtol=1e-12, atol=1e-14)


def test_powers_are_computed_again() -> None:
    """Eight cheap states side by side are as quickly computed again as read: none is remembered."""
    f = hyad.model("""(fn [#^ (Vec m) c #^ (Vec n) x]
      (sum (map (fn [x] (square (fst (fold (fn [#(s p) a] #((+ s (* a p)) (* p x))) #(0.0 1.0) c)))) x)))""")
    g = hyad.compile(hyad.grad(f, wrt=0))
    assert "work" not in g.cfunction.source and "eights" in hyad.explain(hyad.grad(f, wrt=0)).fired()
    c, x = np.linspace(-1.0, 1.0, 7), np.linspace(-0.9, 1.1, 19)
    powers = np.vander(x, 7, increasing=True)
    np.testing.assert_allclose(g(c, x), 2.0 * powers.T @ (powers @ c), rtol=1e-12)


def test_terms_in_lanes_are_no_turned_rows() -> None:
    """The terms that are added one by one have been vectors: no element of a row is read as a volatile one
    (``codegen/miscompiled.py``), and the sum is right."""
    f = hyad.model("""(fn [#^ (Mat n m) rows #^ (Vec n) high]
      (fold (fn [s row h] (+ s (square (- h (fst (fold (fn [#(w p q) y] (let [q (+ q y) p (max p q)]
                                                                           #((max w (- p q)) p q)))
                                                       #(0.0 0.0 0.0) row)))))) 0.0 rows high))""")
    c, python = hyad.compile(f), hyad.compile(f, "python")
    assert "HYAD_ALONE" not in c.cfunction.source and "eights" in hyad.explain(f).fired()
    rng = np.random.default_rng(1)
    for n in (8, 29, 800):
        args = rng.normal(size=(n, 6)), rng.normal(size=n)
        assert c(*args) == pytest.approx(python(*args), rel=1e-14)


ALONE = {
    "sums": """(fn [#^ (Mat n m) x #^ (Vec m) w] (sum (map (fn [row] (square (sum (* row w)))) x)))""",
    "calls": """(fn [#^ (Mat n m) x] (sum (map (fn [row] (fold (fn [s a] (exp (- (* s a)))) 1.0 row)) x)))""",
    "lengths": """(fn [#^ (Vec n) x]
      (ifold (fn [s i] (+ s (ifold (fn [p j] (* p (- 1.5 (* p (get x i))))) 1.0 i))) 0.0 (len x)))""",
    "branches": """(fn [#^ (Vec n) x #^ Int m]
      (sum (map (fn [x] (ifold (fn [x t] (if (> x 1.0) (exp (- x)) (* 2.0 x))) x m))
             x)))""",
    "every second element": """(fn [#^ (Mat n m) x #^ (Vec 9) w]
      (let [p (pad x [[1 1] [1 1]])]
        (sum (build [(// n 2) (// m 2)] (fn [i j]
          (ifold (fn [best u]
            (ifold (fn [best v]
              (let [s (ifold (fn [s a] (ifold (fn [s b]
                        (+ s (* (get w (+ (* 3 a) b)) (get p (+ (* 2 i) u a) (+ (* 2 j) v b))))) s 3)) 0.0 3)]
                (if (> s best) s best))) best 2)) -1e300 2))))))""",
    "a chain": """(fn [#^ (Vec n) x #^ Int m]
      (fold (fn [s x] (ifold (fn [s t] (* 0.5 s (- 2.0 (* s x)))) s m)) 1.0 x))""",
}


@pytest.mark.parametrize("name", ALONE)
def test_left_alone(name: str) -> None:
    f = hyad.model(ALONE[name])
    for g in (f, hyad.grad(f, wrt=0)):
        assert "eights" not in hyad.explain(g).fired()


#: Iterations that have nothing to do with one another, and how many go at once: sixteen where each waits for what it
#: has computed last, eight where that takes no longer than the work of eight.
PRIVATE = {
    "systems": ("""(fn [c #^ (Mat n m) u]
        (map (fn [row] (let [d (scan (fn [s e] (/ (+ e (* c s)) (+ 2.0 c))) 0.0 row)]
                         (ifold (fn [x k] (let [i (- m 2 k)] (update x i (- (get d i) (* c (get x (+ i 1)))))))
                                d (- m 1)))) u))""", 16),
    "fractions": ("""(fn [c #^ (Mat n m) u]
        (map (fn [row] (fold (fn [f a] (/ a (+ c f))) 1.0 row)) u))""", 16),
    "two turns": ("""(fn [c #^ (Mat n m) u]
        (map (fn [row] (scan (fn [s e] (let [p (* s e) q (+ p (* c e e e e)) r (* q q e e)] (- (* r 0.1) (* c p q))))
                             1.0 row)) u))""", 8),
}  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_the_last_ones_repeat_the_last_iteration(name: str) -> None:
    """To the last bit, whatever there is to be done: none is done alone."""
    text, lanes = PRIVATE[name]
    f = hyad.model(text, namespace={})
    g = hyad.grad(hyad.model(f"(fn [c u] (sum (square ({text} c u))))", namespace={}), wrt=("c", "u"))
    here, plain = (memoised.compile(f, "python", without=off) for off in ((), (*OFF, "lanes")))
    compiled, slopes, one_by_one = memoised.compile(f), memoised.compile(g), memoised.compile(g, without=OFF)
    for n, m in ((0, 3), (1, 4), (7, 1), (8, 5), (15, 2), (16, 5), (17, 6), (33, 3), (3, 0)):
        u = np.random.default_rng(n).uniform(-1, 1, (n, m))
        if n == 17:
            u[16, 2] = np.nan  # stays in the lanes that repeat it
        got = here(0.3, u)
        np.testing.assert_array_equal(got, plain(0.3, u))
        np.testing.assert_allclose(compiled(0.3, u), got, rtol=1e-12)
        if n != 17:
            np.testing.assert_allclose(flat(slopes(0.3, u)), flat(one_by_one(0.3, u)), rtol=1e-10, atol=1e-13)
    loops = [x.op for x in all_binds(f.optimised(f.specs((0.3, u))).body) if type(x.op) is Loop]
    counts = {x.count.value for x in loops if type(x.count) is Const}
    assert lanes in counts
