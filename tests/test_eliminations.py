"""Matrices changed in place, by loops inside one another that get shorter: what their gradients remember is what is
read, and nothing where that is in the matrix to the end."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import oracle

HEAD = "(fn [#^ (Mat n n) a #^ (Vec n) b #^ (Arr Int n) p] (let [A (+ a (* 6.0 (eye n))) x (+ b 0.0) r (ref A)] "
END = " (+ (sum (sin A)) (sum (square x)) (sum (square (deref r))))))"
STEP = "(set-at! A i j (- (get A i j) (* (get A i k) (get A k j))))"

#: Bodies by name: of these gradients remember nothing.
NOTHING = {
    "elimination": f"""(for [k (range n)] (for [i (range (+ k 1) n)]
        (set-at! A i k (/ (get A i k) (get A k k))) (for [j (range (+ k 1) n)] {STEP})))""",
    "from the end": """(for [k (range (- n 1) -1 -1)] (for [i (range k)]
        (set-at! A i k (/ (get A i k) (get A k k)))
        (for [j (range k)] (set-at! A i j (- (get A i j) (* (get A i k) (get A k j)))))))""",
    "substitution": """(for [i (range n)]
        (for [j (range i)] (set-at! x i (- (get x i) (* (get A i j) (get x j)))))
        (set-at! x i (/ (get x i) (get A i i))))""",
    "backwards": """(for [i (range (- n 1) -1 -1)]
        (for [j (range (+ i 1) n)] (set-at! x i (- (get x i) (* (get A i j) (get x j)))))
        (set-at! x i (/ (get x i) (get A i i))))""",
}
#: Of these they remember something: what is read is changed later, or it is not known.
SOMETHING = {
    "rows of their own": """(for [k (range n)] (for [i (range (+ k 1) n)]
        (set-at! A i (- (get A i) (* (/ (get A i k) (get A k k)) (get A k))))))""",
    "pivots first": """(for [k (range n)]
        (set-at! A k (/ (get A k) (norm (get A k))))
        (for [i (range (+ k 1) n)] (set-at! A i (- (get A i) (* (dot (get A i) (get A k)) (get A k))))))""",
    "pivots last": """(for [i (range n)]
        (for [k (range i)] (set-at! A i (- (get A i) (* (dot (get A i) (get A k)) (get A k)))))
        (set-at! A i (/ (get A i) (norm (get A i)))))""",
    "columns": """(for [j (range n)]
        (for [k (range j)]
          (let [s (ref 0.0)]
            (for [i (range n)] (set! s (+ (deref s) (* (get A i k) (get A i j)))))
            (for [i (range n)] (set-at! A i j (- (get A i j) (* (deref s) (get A i k)))))))
        (let [s (ref 0.5)]
          (for [i (range n)] (set! s (+ (deref s) (square (get A i j)))))
          (for [i (range n)] (set-at! A i j (/ (get A i j) (deref s))))))""",
    "all rows but one": """(for [k (range n)]
        (set-at! A k (/ (get A k) (get A k k)))
        (for [i (range n)] (when (!= i k) (set-at! A i (- (get A i) (* (get A i k) (get A k)))))))""",
    "what is changed last": f"""(for [k (range n)] (for [i (range (+ k 1) n)]
        (for [j (range (+ k 1) n)] {STEP}) (set-at! A i k (sin (get A i k)))))""",
    "the row that comes": """(for [k (range (- n 1))] (for [j (range n)]
        (set-at! A k j (* (get A k j) (get A (+ k 1) j)))))""",
    "the same again": """(for [k (range n)] (for [i (range (+ k 1))]
        (set-at! A k 0 (* (get A k 0) (get A k i)))))""",
    "its own row": """(for [k (range n)] (for [j (range n)] (set-at! A k j (* (get A k j) (get A k 0)))))""",
    "the next in its row": """(for [k (range n)] (for [j (range (- n 1))]
        (set-at! A k j (* (get A k j) (sin (get A k (+ j 1)))))))""",
    "changed afterwards": """(for [k (range (- n 1))]
        (for [j (range n)] (set-at! x j (* (get x j) (get A k 0))))
        (for [j (range n)] (set-at! A k (- n 1 j) (sin (get A k (- n 1 j))))))""",
    "two of one": """(set! r (ifold (fn [A k] (let [B (update A k 0 (sin (get A k k)))]
        (update A k k (exp (* (get B k 0) (get B k 0)))))) A n))""",
    "a row before": """(for [k (range 1 n)] (for [j (range n)]
        (set-at! A k j (* (get A k j) (sin (get A (- k 1) j))))))""",
    "somewhere": """(for [k (range n)] (for [i (range (+ k 1) n)]
        (set-at! A (get p i) k (/ (get A (get p i) k) (+ 2.0 (square (get A (get p k) k)))))))""",
    "back and forth": """(for [k (range n)] (for [j (range k)]
        (set-at! A k j (* (get A k j) (get A j k)))
        (set-at! A (- (- n 1) k) j (sin (get A (- (- n 1) k) j)))))""",
    "a table within": """(for [k (range n)] (let [y (zeros (+ k 1))]
        (for [i (range (+ k 1))] (set-at! y i (* (get A k i) (if (> i 0) (sin (get y (- i 1))) 1.0))))
        (set-at! x k (* (get x k) (get y k)))))""",
    "triangle of a triangle": """(for [i (range n)] (for [j (range (+ i 1))]
        (let [s (ref (get A i j))]
          (for [k (range j)] (set! s (- (deref s) (* (get A i k) (get A j k)))))
          (set-at! A i j (if (= i j) (sqrt (+ 9.0 (deref s))) (/ (deref s) (get A j j)))))))""",
    "as it was": """(set! r (ifold (fn [A k] (let [B (update A k k (sin (get A k k)))]
        (ifold (fn [B j] (update B k j (* (get B k j) (get A k k)))) B k))) A n))""",
    "what was there": """(set! r (ifold (fn [A k] (let [B (update A k k (sin (get x k))) y (get A k k)]
        (ifold (fn [B j] (update B k j (+ (get B k j) (* y y)))) B k))) A n))""",
    "planes": """(for [k (range n) l (range (+ k 1) n)]
        (let [t (atan2 (get A k l) (get A k k)) c (cos t) s (sin t)]
          (for [i (range n)]
            (let [u (get A i k) v (get A i l)]
              (set-at! A i k (- (* c u) (* s v))) (set-at! A i l (+ (* s u) (* c v)))))))""",
}


def args(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, n)), rng.standard_normal(n), rng.permutation(n)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", NOTHING | SOMETHING)
def test_gradients_of_what_is_changed_in_place(name: str) -> None:
    text = HEAD + (NOTHING | SOMETHING)[name] + END
    g = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1))
    offs = ("settled", "remembering", "one-store", ("alias", "filled"))
    found = {off: hyad.compile(g, args=args(3), without=off, target="python") for off in offs}
    found[()] = hyad.compile(g, args=args(3))
    for n in (0, 1, 2, 3, 6):
        wanted = hyad.run(g, *args(n))
        for off, made in found.items():
            assert oracle.mismatch(made(*args(n)), wanted, 1e-9) is None, (n, off)
    source = found[()].source
    room = re.search("room for (.*) reals", source)
    cubes = room is not None and "n*n*n" in room[1]
    assert "record" not in source  # no data: rows of one length
    if name in NOTHING:
        assert not cubes and room[1].count("n*n") <= 1


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["elimination", "rows of their own", "pivots first"])
def test_second_derivatives(name: str) -> None:
    f = hyad.model(HEAD + (NOTHING | SOMETHING)[name] + END, namespace={})
    a, b, p = args(4)
    rng = np.random.default_rng(7)
    da, db = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
    g = hyad.grad(f, wrt=(0, 1))
    up, down = (g(a + s * 1e-5 * da, b + s * 1e-5 * db, p) for s in (1, -1))
    both = hyad.model(
        "(fn [#^ (Mat n n) a #^ (Vec n) b #^ (Arr Int n) p #^ (Mat n n) da #^ (Vec n) db]"
        " (let [f (fn [a b] (f a b p)) g (grad (fn [a b] (f a b)) :wrt #(0 1))] (jvp g a b da db)))",
        namespace={"f": f},
    )
    for got, one, other in zip(both(a, b, p, da, db), up, down):
        np.testing.assert_allclose(got, (one - other) / 2e-5, rtol=1e-5, atol=1e-6)
