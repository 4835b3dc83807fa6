"""What a row of a window gives is computed once for all windows that have it (``hyad/passes/windows.py``)."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Prim, all_binds
from hyad.program.counts import work

#: Programs of a matrix a, vectors w and u, whether the pass takes them, and the rows and columns of a and lengths.
PROGRAMS = {
    "box": (
        "(build [(- n 4) (- m 4)] (fn [i j] (/ (sum (build [5 5] (fn [k l] (get a (+ i k) (+ j l))))) 25.0)))",
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1), (4, 6, 1, 1), (6, 4, 1, 1)],
    ),
    "of any size": (
        """(let [p (len w)  q (len u)]
             (build [(+ 1 (- n p)) (+ 1 (- m q))] (fn [i j]
               (sum (build [p q] (fn [k l] (square (get a (+ i k) (+ j l)))))))))""",
        True,
        [(7, 8, 3, 2), (3, 2, 3, 2), (4, 4, 1, 1), (4, 4, 4, 4)],
    ),
    "by slices": (
        "(build [(- n 4) (- m 4)] (fn [i j] (sum (get a (slice i (+ i 5)) (slice j (+ j 5))))))",
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1)],
    ),
    "with steps": (
        """(build [(// (- n 4) 2) (// (- m 4) 2)] (fn [i j]
             (sum (build [6 5] (fn [k l] (exp (get a (+ (* 2 i) k) (+ (* 2 j) l))))))))""",
        True,
        [(12, 11, 1, 1), (6, 7, 1, 1), (4, 4, 1, 1)],
    ),
    "with holes": (
        """(build [(- n 8) (- m 4)] (fn [i j]
             (sum (build [5 5] (fn [k l] (get a (+ i (* 2 k)) (+ j l)))))))""",
        True,
        [(12, 7, 1, 1), (9, 5, 1, 1), (8, 5, 1, 1)],
    ),
    "from the other end": (
        """(build [(- n 4) (- m 4)] (fn [i j]
             (sum (build [5 5] (fn [k l] (get a (+ (- i k) 4) (+ (- j l) 4)))))))""",
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1), (4, 6, 1, 1)],
    ),
    "backwards": (
        """(build [(- n 4) (- m 4)] (fn [i j]
             (sum (build [5 5] (fn [k l] (square (get a (- n 1 i k) (+ j l))))))))""",
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1)],
    ),
    "largest": (
        """(build [(- n 4) (- m 4)] (fn [i j]
             (max (build 5 (fn [k] (max (build 5 (fn [l] (get a (+ i k) (+ j l)))))))))) """,
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1)],
    ),
    "weights": (
        """(build [(- n 4) (- m 4)] (fn [i j]
             (sum (build 5 (fn [k] (* (get w k)
               (sum (build 5 (fn [l] (* (get w l) (get a (+ i k) (+ j l)))))))))))) """,
        True,
        [(9, 7, 5, 1), (5, 5, 5, 1)],
    ),
    "at the edge": (
        """(build [n m] (fn [i j] (sum (build [5 5] (fn [k l]
             (square (get a (min (+ i k) (- n 1)) (min (+ j l) (- m 1)))))))))""",
        True,
        [(6, 7, 1, 1), (1, 1, 1, 1), (3, 2, 1, 1)],
    ),
    "of the place": (
        """(build [(- n 4) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l]
             (* (get a (+ i k) (+ j l)) (+ 1.0 (real (+ i k)) (real (* j l)))))))))""",
        True,
        [(9, 7, 1, 1), (5, 6, 1, 1)],
    ),
    "rows that may not be there": (
        """(build [(len u) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l] (square (get a (+ i k) (+ j l))))))))""",
        True,
        [(9, 7, 1, 5), (7, 7, 1, 1), (4, 7, 1, 0)],
    ),
    "none": (
        "(build [(max 0 (- n 4)) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l] (square (get a (+ i k) (+ j l))))))))",
        True,
        [(6, 7, 1, 1), (2, 7, 1, 1), (0, 7, 1, 1)],
    ),
    "of a triangle": (
        """(build (- n 4) (fn [i] (sum (build (+ i 1) (fn [j]
             (square (sum (build [5 5] (fn [k l] (square (get a (+ i k) (+ j l))))))))))))""",
        False,
        [(7, 8, 1, 1)],
    ),
    "of four indices": (
        """(build [(- n 4) (- m 4) (len w) (len u)] (fn [i j g h] (square (sum (build [5 5] (fn [k l]
             (sin (* (get w g) (get u h) (get a (+ i k) (+ j l))))))))))""",
        False,
        [(6, 7, 2, 3)],
    ),
    "of two indices each by itself": (
        """(build [5 (- m 4)] (fn [i j] (* (sum (build 5 (fn [k] (get a (+ i k) (+ j k)))))
             (sum (build 5 (fn [k] (sum (build 5 (fn [l] (* (get a 0 (+ j k)) (get w (+ j l)))))))))))) """,
        False,
        [(9, 7, 7, 1)],
    ),
    "of a batch": (
        """(build (len u) (fn [q] (sum (build [(- n 4) (- m 4)] (fn [i j]
             (square (sum (build [5 5] (fn [k l] (exp (* (get u q) (get a (+ i k) (+ j l)))))))))))))""",
        True,
        [(9, 7, 1, 2), (5, 5, 1, 1), (4, 5, 1, 3)],
    ),
    "of three axes": (
        """(build [(- n 4) (- m 4) (- (len w) 4)] (fn [i j h] (sum (build [5 5 5] (fn [k l g]
             (square (* (get w (+ h g)) (get a (+ i k) (+ j l)))))))))""",
        True,
        [(6, 7, 8, 1), (5, 5, 5, 1)],
    ),
    "two kinds": (
        """(let [f (fn [p] (build [(- n 4) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l] (p (+ i k) (+ j l))))))))]
             (* (f (fn [i j] (get a i j))) (f (fn [i j] (square (get a i j))))))""",
        True,
        [(9, 7, 1, 1), (5, 5, 1, 1)],
    ),
    "small": (
        "(build [(- n 2) (- m 2)] (fn [i j] (sum (build [3 3] (fn [k l] (get a (+ i k) (+ j l)))))))",
        False,
        [(5, 4, 1, 1)],
    ),
    "weights of their own": (
        """(build [(- n 4) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l]
             (* (get w (+ (* 5 k) l)) (get a (+ i k) (+ j l))))))))""",
        False,
        [(9, 7, 25, 1)],
    ),
    "of the row": (
        """(build [(- n 4) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l]
             (* (get u i) (get a (+ i k) (+ j l))))))))""",
        False,
        [(6, 7, 1, 6)],
    ),
    "by two steps and three": (
        """(build [(// (- n 14) 2) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l]
             (square (get a (+ (* 2 i) (* 3 k)) (+ j l))))))))""",
        False,
        [(18, 6, 1, 1)],
    ),
    "of the row and a place in it": (
        """(build [(- n 4) (- m 4)] (fn [i j] (sum (build [5 5] (fn [k l]
             (* (get a (+ i k) (+ j l)) (real (+ i (min l 2)))))))))""",
        False,
        [(9, 7, 1, 1)],
    ),
    "apart": (
        """(build [(// n 5) (// m 5)] (fn [i j] (sum (build [5 5] (fn [k l] (get a (+ (* 5 i) k) (+ (* 5 j) l)))))))""",
        False,
        [(10, 15, 1, 1), (4, 4, 1, 1)],
    ),
    "going on": (
        """(build [(- n 4) (- m 4)] (fn [i j]
             (let [s (ref 0.0)]
               (for [k (range 5)  l (range 5)] (set! s (+ (deref s) (square (get a (+ i k) (+ j l))))))
               (deref s))))""",
        False,
        [(9, 7, 1, 1)],
    ),
}


#: Arguments of the first.
ARGS = np.ones((9, 7)), np.ones(1), np.ones(1)


def model(name: str) -> hyad.Model:
    text = f"""(fn [#^ (Mat n m) a #^ (Vec p) w #^ (Vec q) u]
      (let [n (len a)  m (shape a 1)  t {PROGRAMS[name][0]}] (+ (sum t) (sum (* t t)))))"""
    return hyad.model(text, namespace={})


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    """Values are the same to the last bit, run in the order in which they are written."""
    f = model(name)
    g = hyad.grad(f, wrt="a")
    _, takes, sizes = PROGRAMS[name]
    rng = np.random.default_rng(4)
    for n, m, p, q in sizes:
        args = rng.uniform(0.2, 1, (n, m)), rng.uniform(0.2, 1, p), rng.uniform(0.2, 1, q)
        assert ("windows" in hyad.explain(f, args=args).fired()) == takes
        assert ("windows" in hyad.explain(g, args=args).fired()) == takes
        assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        for h in (f, g):
            one, other = memoised.results(h, args), memoised.results(h, args, without=["windows"])
            for x, y in zip(one, other):
                np.testing.assert_allclose(x, y, rtol=1e-12)
        plain = memoised.compile(f, args=args, target="python", without=["windows"])
        assert memoised.compile(f, args=args, target="python")(*args) == plain(*args)
        if min(n, m) > 4:
            hyad.check_grad(f, args, wrt="a")


def test_what_a_row_begins_with_is_there_before() -> None:
    """The first weight, which no loop changes."""
    f = hyad.model("""(fn [#^ (Mat n m) a #^ (Vec p) w #^ (Vec q) u #^ (Vec r) z]
      (sum (build (len z) (fn [i] (* (get z i) (sum (build (len u) (fn [j] (square (sum (build 6
        (fn [k] (max (build (len w) (fn [l] (* (- (get u j) (get a (+ i k) j)) (get w l)))))))))))))))))""")
    rng = np.random.default_rng(6)
    args = rng.uniform(0, 1, (9, 3)), rng.uniform(0, 1, 5), rng.uniform(0, 1, 3), rng.uniform(0, 1, 4)
    assert "windows" in hyad.explain(f, args=args).fired()
    assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
    hyad.check_grad(f, args)


def test_a_row_out_of_range_is_an_error() -> None:
    f = model("rows that may not be there")
    with pytest.raises(IndexError):
        f(np.ones((5, 7)), np.ones(1), np.ones(2))


def test_a_row_is_summed_once() -> None:
    """Five loads of the matrix, for a window of 25; backwards as many additions of rows and to each row."""
    f = model("box")
    g = hyad.grad(f, wrt="a")

    def loads(f: hyad.Model) -> int:
        return len(re.findall(r"\ba\[[^]]*i", hyad.stages(f, args=ARGS)["c"]))

    def additions(f: hyad.Model) -> int:
        binds = all_binds(f.optimised(f.specs(ARGS)).body)
        return sum(type(x.op) is Prim and x.op.name == "add-at" for x in binds)

    assert (loads(f), loads(f.without(["windows"]))) == (5, 25)
    assert additions(g) == 10 and additions(g.without(["windows"])) > 25


def test_three_axes_are_taken_one_after_the_other() -> None:
    """A plane of a window is a row of planes, and is made of rows."""
    f = model("of three axes")
    args = np.ones((7, 8)), np.ones(9), np.ones(1)
    made, plain = (f.optimised(f.specs(args)), f.without(["windows"]).optimised(f.specs(args)))
    assert work(made.body) < work(plain.body) / 6
