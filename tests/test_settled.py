"""Tables that a loop fills in order are remembered once, not as they are before each iteration."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
import oracle

#: Bodies by name; ``w`` is what is summed in the end.
FILLED = {
    "lags": """(let [w (zeros n)]
        (for [t (range n)]
          (let [s (ref (get v t))]
            (for [k (range (// n 2))]
              (when (>= (- t 1 k) 0) (set! s (+ (deref s) (* (get v k) (get w (- t 1 k)))))))
            (set-at! w t (deref s))))
        w)""",
    "the row before": """(let [w (zeros [n 3])]
        (for [t (range n)]
          (let [row (if (= t 0) c (sin (@ m (get w (- t 1)))))] (set-at! w t (* (get v t) row))))
        w)""",
    "from the end": """(let [w (ones [n 3])]
        (for [t (range (- n 2) -1 -1)] (set-at! w t (* (get v t) (sin (@ m (get w (+ t 1)))))))
        w)""",
    "all before": """(let [w (zeros n)]
        (for [t (range n)]
          (set-at! w t (+ (get v t) (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) 0.0 t))))
        w)""",
    "two at once": """(let [w (ones (+ n n))]
        (for [t (range n)]
          (let [s (ifold (fn [s k] (+ s (sin (* (get v (// k 2)) (get w k))))) 0.0 (+ t t))]
            (set-at! w (+ t t) (* (get v t) s))
            (set-at! w (+ t t 1) (* 0.5 s))))
        w)""",
}
#: What reads a row that this iteration or a later one changes, or a table that is not filled in order.
OTHERS = {
    "its own": """(let [w (* v v)]
        (for [t (range n)] (set-at! w t (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) 0.0 (+ t 1))))
        w)""",
    "what comes": """(let [w (* v v)]
        (for [t (range n)] (set-at! w t (ifold (fn [s k] (+ s (sin (* (get v k) (get w (- n 1 k)))))) 0.0 (- n t))))
        w)""",
    "below, from the end": """(let [w (* v v)]
        (for [t (range (- n 1) -1 -1)]
          (set-at! w t (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) (get v t) t)))
        w)""",
    "somewhere": """(let [w (* v v)]
        (for [t (range n)]
          (set-at! w (int (get q t)) (+ (get v t) (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) 0.0 t))))
        w)""",
    "back and forth": """(let [w (* v v)]
        (for [t (range n)]
          (let [s (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) 0.0 t)]
            (set-at! w t s)
            (set-at! w (- n 1 t) (* 0.5 s))))
        w)""",
    "two that change places": """(fst (ifold (fn [#(w u) t]
        #(u (update w t (+ (get v t) (ifold (fn [s k] (+ s (sin (* (get v k) (get w k))))) 0.0 t)))))
        #((* v v) (+ 1.0 v)) n))""",
}


#: Those of which an iteration reads one row, which is remembered by itself without this pass, too; of the first before
#: it comes to see it.
BY_ROWS = ("the row before", "from the end")

OFF = {"without": "settled"}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", FILLED | OTHERS)
def test_gradients_of_tables(name: str) -> None:
    f = hyad.model(
        f"(fn [#^ (Vec n) v #^ (Vec 3) c #^ (Mat 3 3) m #^ (Arr Int n) q] (sum (square {(FILLED | OTHERS)[name]})))"
    )
    g = hyad.grad(f, wrt=("v", "c", "m"))
    for n in (0, 1, 2, 3, 8):
        rng = np.random.default_rng(n)
        args = (rng.standard_normal(n), rng.standard_normal(3), rng.standard_normal((3, 3)), rng.permutation(n))
        if n > 0 or name != "from the end":
            wanted = hyad.run(g, *args)
            for how in ({}, OFF, {"without": ("narrow", "unroll")}):
                assert oracle.mismatch(memoised.compile(g, args=args, **how)(*args), wanted, 1e-9) is None
    assert ("settled" in hyad.explain(g, args=args).fired()) == (name in FILLED and name != BY_ROWS[0])
    rooms = [re.search("room for (.*) reals", hyad.compile(g, args=args, **how).source) for how in ({}, OFF)]
    assert ["n*n" in room[1] for room in rooms if room] == [name not in FILLED, name not in BY_ROWS]


def test_a_table_whose_rows_are_read_in_eight_lanes() -> None:
    """What a row is read of shows before eight iterations are one: the memory does not grow with the square of them."""
    text = """(fn [#^ (Mat d d) F #^ (Vec n) v #^ (Mat n d) c]
      (let [d (len F)  w (zeros [(+ n 1) d])
            times (fn [p q] (map (fn [row] (map (fn [column] (dot row column)) (transpose q))) p))]
        (for [t (range (- n 1) -1 -1)]
          (set-at! w t (@ (times F (inv (+ (eye d) (* (get v t) F)))) (- (get w (+ t 1)) (@ F (get c t))))))
        (sum (square w))))"""
    rng = np.random.default_rng(3)
    args = (rng.uniform(0.0, 0.1, (5, 5)), rng.uniform(0.0, 1.0, 9), rng.standard_normal((9, 5)))
    g = hyad.grad(text, wrt=("F", "v", "c"))
    made = hyad.compile(g, args=args)
    assert oracle.mismatch(made(*args), hyad.run(g, *args), 1e-9) is None
    assert "n*n" in re.search("room for (.*) reals", hyad.compile(g, args=args, **OFF).source)[1]
    assert "n*n" not in re.search("room for (.*) reals", made.source)[1]


#: Triangles that are filled row by row, or column by column, as a Cholesky factor is: whole rows are read of them.
TRIANGLES = {
    "a store for each case": """(for [i (range n)]
      (for [j (range (+ i 1))]
        (let [s (ref (get a i j))]
          (for [p (range j)] (set! s (- (deref s) (* (get c i p) (get c j p)))))
          (if (= i j) (set-at! c i j (sqrt (deref s))) (set-at! c i j (/ (deref s) (get c j j)))))))""",
    "one store": """(for [i (range n)]
      (for [j (range (+ i 1))]
        (let [s (ref (get a i j))]
          (for [p (range j)] (set! s (- (deref s) (* (get c i p) (get c j p)))))
          (set-at! c i j (if (= i j) (sqrt (deref s)) (/ (deref s) (get c j j)))))))""",
    "by columns": """(for [j (range n)]
      (for [i (range j n)]
        (let [s (ref (get a i j))]
          (for [p (range j)] (set! s (- (deref s) (* (get c i p) (get c j p)))))
          (if (= i j) (set-at! c i j (sqrt (deref s))) (set-at! c i j (/ (deref s) (get c j j)))))))""",
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_a_cholesky_factor_by_loops(name: str) -> None:
    """Its gradient takes as much memory as the factor: no row is remembered for each of its elements."""
    loss = f"(fn [#^ (Mat n n) a] (let [c (zeros [n n])] {TRIANGLES[name]} (+ (sum (log (diag c))) (sum (sin c)))))"
    g = hyad.grad(loss)
    made, plain = memoised.compile(g), memoised.compile(g, **OFF)
    for n in (1, 2, 3, 8, 9):
        a = np.random.default_rng(n).normal(size=(n, n))
        a = a @ a.T + n * np.eye(n)
        np.testing.assert_allclose(made(a), plain(a), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(made(a), hyad.run(g, a), rtol=1e-12, atol=1e-13)
    if name != "by columns":
        assert "n*n*n" not in str(made.cfunction.workspace) and "n*n*n" in str(plain.cfunction.workspace)


@pytest.mark.parametrize("count", ["n", "(+ j 1)"])
def test_a_row_that_changes_after_it_was_read_is_remembered(count: str) -> None:
    """Elements of the row that is filled, the one that is stored and those right of it: they are another thing in the
    end."""
    loss = f"""(fn [#^ (Mat n n) a]
      (let [c (copy a)]
        (for [i (range n)]
          (for [j (range n)]
            (set-at! c i j (ifold (fn [s p] (+ s (sin (* (get a p j) (get c i p))))) 0.1 {count}))))
        (sum (square c))))"""
    g = hyad.grad(loss)
    a = np.random.default_rng(4).uniform(0.2, 1, (4, 4))
    np.testing.assert_allclose(memoised.compile(g)(a), hyad.run(g, a), rtol=1e-12)
    np.testing.assert_allclose(memoised.compile(g)(a), memoised.compile(g, **OFF)(a), rtol=1e-13)
