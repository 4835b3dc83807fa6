"""Tables that are filled by the length of spans, shortest first: matrix chains, folds of a string, parses.

Each entry reads shorter spans only. A gradient needs the table as it is in the end, and no copy of it for each length.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
import oracle

#: What an entry (i, j) of the table ``t`` is, of shorter spans.
ENTRIES = {
    "a log sum": """(log (+ (exp (get t i (- j 1)))
        (fold + 0.0 (build (- j i) (fn [k] (exp (+ (get e i) (get e j) (get t i (+ i k)) (get t (+ i k 1) j))))))))""",
    "the best": """(fold min 1e30 (build (- j i) (fn [k]
        (+ (get t i (+ i k)) (get t (+ i k 1) j) (* (get e i) (get e (+ i k)) (get e j))))))""",
    "pairs or none": """(let [both (+ (if (> s 1) (get t (+ i 1) (- j 1)) 0.0) (* (get e i) (get e j)))]
        (max both (max (get t (+ i 1) j) (get t i (- j 1)))))""",
}
#: The table: built anew for each length, or changed in place, from its start or from its end.
TABLES = {
    "built": """(ifold (fn [t r] (let [s (+ r 1)]
        (build n (fn [i] (build n (fn [j] (if (= j (+ i s)) ENTRY (get t i j))))))))
      (build n (fn [i] (build n (fn [j] 0.0)))) (- n 1))""",
    "built by lengths": """(ifold (fn [t r] (let [s (+ r 1)]
        (build [n n] (fn [i j] (if (= (- j i) s) ENTRY (get t i j)))))) (zeros [n n]) (- n 1))""",
    "in place": """(let [t (zeros [n n])]
        (for [s (range 1 n) i (range (- n s))] (let [j (+ i s)] (set-at! t i j ENTRY))) t)""",
    "in place, by ends": """(let [t (zeros [n n])]
        (for [s (range 1 n) j (range s n)] (let [i (- j s)] (set-at! t i j ENTRY))) t)""",
}


def model(table: str, entry: str) -> hyad.Model:
    text = TABLES[table].replace("ENTRY", ENTRIES[entry])
    return hyad.model(f"(fn [#^ (Vec n) e] (let [t {text}] (+ (get t 0 (- n 1)) (* 0.1 (get t 0 (// n 2))))))")


@pytest.mark.some(4)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("entry", ENTRIES)
def test_values_and_gradients(table: str, entry: str) -> None:
    f = model(table, entry)
    g = hyad.grad(f)
    made, plain = memoised.compile(g), memoised.compile(g, without=["settled", "unchanged", "one-changed"])
    for n in (1, 2, 3, 6, 11):
        e = np.random.default_rng(n).uniform(0.1, 1.0, n)
        np.testing.assert_allclose(memoised.compile(f)(e), hyad.run(f, e), rtol=1e-13)
        wanted = hyad.run(g, e)
        for got in (made(e), plain(e)):
            assert oracle.mismatch(got, wanted, 1e-10) is None
    room = re.search("room for (.*) reals", made.source)[1]
    assert "n*n*n" not in room, room
    if entry != "pairs or none":  # which place is the best is remembered then
        assert "n*n*n" in re.search("room for (.*) reals", plain.source)[1]


def test_a_table_that_is_built_is_as_one_that_is_changed_in_place() -> None:
    for entry in ENTRIES:
        for text in (hyad.compile(model("built", entry)).source, hyad.compile(model("built by lengths", entry)).source):
            assert "memcpy" not in text and "room for n*n reals" in text, text


#: Entries that read their own diagonal, of the iteration before or of the same one, or a longer span.
OTHERS = {
    "its own": "(for [s (range 1 n) i (range (- n s))] (set-at! t i (+ i s) (sin (+ (get t i (+ i s)) (get e i)))))",
    "its neighbour": """(for [s (range 1 n) i (range 1 (- n s))]
        (set-at! t i (+ i s) (sin (+ (get e s) (get t (- i 1) (+ i s -1))))))""",
    "a longer one": """(for [s (range 1 (- n 1)) i (range (- n s 1))]
        (set-at! t i (+ i s) (sin (+ (get e i) (get t i (+ i s 1))))))""",
    "the one before, twice": """(for [r (range 2) s (range 1 n) i (range (- n s))]
        (set-at! t i (+ i s) (sin (+ (get e i) (get t i (+ i s -1)) (get t i (+ i s))))))""",
    "one that goes down": """(for [s (range (- n 1) 0 -1) i (range (- n s))]
        (set-at! t i (+ i s) (sin (+ (get e i) (get t i (+ i s -1))))))""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_after_it_was_read_is_remembered(name: str) -> None:
    f = hyad.model(
        f"""(fn [#^ (Vec n) e] (let [t (build [n n] (fn [i j] (* (get e i) (get e j))))]
        {OTHERS[name]} (sum (square t))))"""
    )
    g = hyad.grad(f)
    for n in (1, 2, 3, 7):
        e = np.random.default_rng(n).uniform(0.1, 1.0, n)
        np.testing.assert_allclose(memoised.compile(f)(e), hyad.run(f, e), rtol=1e-13)
        assert oracle.mismatch(memoised.compile(g)(e), hyad.run(g, e), 1e-10) is None
    assert hyad.check_grad(f, (e,))


def test_tables_on_antidiagonals() -> None:
    """A wavefront reads the two antidiagonals before."""
    f = hyad.model(
        """(fn [#^ (Vec n) e #^ (Vec m) c]
        (let [t (zeros [n m])]
          (for [d (range (+ n m -1)) i (range (max 0 (- d (- m 1))) (min n (+ d 1)))]
            (let [j (- d i)  cost (square (- (get e i) (get c j)))]
              (set-at! t i j (+ cost (if (and (> i 0) (> j 0))
                (* 0.5 (+ (exp (- (get t (- i 1) j))) (exp (- (get t i (- j 1))))))
                (if (> i 0) (sin (get t (- i 1) j)) (if (> j 0) (sin (get t i (- j 1))) 0.0)))))))
          (get t (- n 1) (- m 1))))"""
    )
    g = hyad.grad(f, wrt=("e", "c"))
    for n, m in ((1, 1), (1, 4), (5, 3), (6, 6)):
        args = np.random.default_rng(n).normal(size=n), np.random.default_rng(m + 9).normal(size=m)
        assert oracle.mismatch(memoised.compile(g)(*args), hyad.run(g, *args), 1e-10) is None
    room = re.search("room for (.*) reals", hyad.compile(g).source)[1]
    assert "n*m*(" not in room and "n*n*m" not in room and "n*m*m" not in room, room


def test_the_insides_of_a_grammar() -> None:
    """Entries that are vectors, one number for each symbol."""
    f = hyad.model(
        """(fn [#^ (Arr Real r r r) rules #^ (Mat n r) emit]
        (let [t (ifold (fn [t s0] (let [s (+ s0 1)]
              (build [n n r] (fn [i j a] (if (= (- j i) s)
                 (sum (build [s r r] (fn [k b c] (* (get rules a b c) (get t i (+ i k) b) (get t (+ i k 1) j c)))))
                 (get t i j a))))))
              (build [n n r] (fn [i j a] (if (= i j) (get emit i a) 0.0))) (- n 1))]
          (log (get t 0 (- n 1) 0))))"""
    )
    g = hyad.grad(f)
    for n in (1, 2, 5, 8):
        args = np.random.default_rng(n).uniform(size=(3, 3, 3)), np.random.default_rng(n).uniform(size=(n, 3))
        assert oracle.mismatch(memoised.compile(g)(*args), hyad.run(g, *args), 1e-10) is None
    assert "n*n*n" not in re.search("room for (.*) reals", hyad.compile(g).source)[1]
