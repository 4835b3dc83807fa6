"""Rows, columns and parts of an array that are read, and changed one after the other: an iteration takes the time of
those, and so does its derivative; no array is copied, added up or cleared as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import INT, REAL, Arr, Bind, Block, Check, Loop, Prim, Var
from hyad.passes.fusion import stale
from hyad.program.sink import reads_first

N = 8


def rows(m: int, rng: np.random.Generator) -> tuple:
    return (rng.normal(size=(m, N)),)


def columns(m: int, rng: np.random.Generator) -> tuple:
    return (rng.normal(size=(N, m)),)


def blocks(m: int, rng: np.random.Generator) -> tuple:
    return (rng.normal(size=(m, 3, 3)) * 0.3,)


def vector(m: int, rng: np.random.Generator) -> tuple:
    return rng.normal(size=m), 3


def with_vector(m: int, rng: np.random.Generator) -> tuple:
    return (*rows(m, rng), rng.normal(size=m))


def with_places(m: int, rng: np.random.Generator) -> tuple:
    return (*rows(m, rng), rng.permutation(m))


def by_rows(body: str, first: str = "(range 1 m)") -> str:
    return f"(fn [#^ (Mat m n) a0] (let [a (copy a0)] (for [i {first}] {body}) (sum (* a a))))"


PAIR = "(let [u (copy (get a (- i 1))) v (copy (get a i))] {})"
TURN = "(set-at! a i (* 0.6 (+ u v))) (set-at! a (- i 1) (* 0.6 (- v u)))"
MODELS: dict[str, tuple[str, Callable[..., tuple]]] = {
    "the one before, by what it was": (by_rows("""(let [x (copy (get a (- i 1)))]
        (set-at! a i (+ 0.1 (get a i))) (set-at! a (- i 1) (* 0.5 x)))"""), rows),
    "two are turned": (by_rows(PAIR.format(TURN)), rows),
    "two are turned where that is asked": (by_rows(PAIR.format(f"(when (> (get u 0) 0) {TURN})")), rows),
    "by an index": ("""(fn [#^ (Mat m n) a0 #^ (Arr Int m) p] (let [a (copy a0)]
        (for [i (range m)] (let [u (copy (get a (get p i))) v (copy (get a i))]
          (set-at! a i (* 0.6 (+ u v))) (set-at! a (get p i) (* 0.6 (- v u))))) (sum (* a a))))""", with_places),
    "updates of updates": ("""(fn [#^ (Mat m n) a0] (let [s (ifold (fn [s i]
        (update (update s (+ i 1) (* 0.5 (+ (get s i) (get s (+ i 1))))) i (* 0.5 (- (get s i) (get s (+ i 1))))))
        a0 (- m 1))] (sum (* s s))))""", rows),
    "a rope": (by_rows("""(let [d (- (get a (+ i 1)) (get a i))]
        (set-at! a i (+ (get a i) (* 0.1 d))) (set-at! a (+ i 1) (- (get a (+ i 1)) (* 0.1 d))))""",
        "(range (- m 1))"), rows),
    "a number and a row": (by_rows("""(let [u (copy (get a i))]
        (set-at! a (- i 1) 0 (sum u)) (set-at! a i (* 0.5 u)))"""), rows),
    "two matrices": ("""(fn [#^ (Mat m n) a0] (let [a (copy a0) b (* 0.5 a0)]
        (for [i (range 1 m)] (let [u (copy (get a i)) v (copy (get b (- i 1)))]
          (set-at! a i (- u (* 0.1 v))) (set-at! b (- i 1) (- v (* 0.1 u))))) (sum (* a b))))""", rows),
    "one by those after it": (by_rows("""(let [r (copy (get a i))]
        (set-at! a i (/ r (+ 1 (norm r))))
        (for [j (range (+ i 1) (+ i 3))]
          (set-at! a j (- (get a j) (* (dot (get a i) (get a j)) (get a i))))))""", "(range (- m 2))"), rows),
    "rotations": ("""(fn [#^ (Mat m n) a0 #^ (Vec m) b0] (let [a (copy a0) b (copy b0)]
        (for [j (range 2)  i (range (- m 1) j -1)]
          (let [p (get a (- i 1) j) q (get a i j) r (hypot p q)]
            (when (> r 0)
              (let [c (/ p r) s (/ q r) u (copy (get a (- i 1))) v (copy (get a i)) x (get b (- i 1)) y (get b i)]
                (set-at! a (- i 1) (+ (* c u) (* s v))) (set-at! a i (- (* c v) (* s u)))
                (set-at! b (- i 1) (+ (* c x) (* s y))) (set-at! b i (- (* c y) (* s x)))))))
        (sum (* b b (get a (slice None) 1)))))""", with_vector),
    "columns change places": ("""(fn [#^ (Mat m n) a0] (let [a (copy a0)]
        (for [j (range 1 n)] (let [u (get a (slice None) (- j 1))]
          (set-at! a #((slice None) (- j 1)) (* 0.5 (get a (slice None) j)))
          (set-at! a #((slice None) j) u))) (sum (* a a))))""", columns),
    "columns are turned": ("""(fn [#^ (Mat m n) a0] (let [a (copy a0)]
        (for [q (range 1 n)]
          (let [p (- q 1) u (build m (fn [i] (get a i p))) v (build m (fn [i] (get a i q)))
                t (atan2 (dot u v) (+ 1 (dot u u))) c (cos t) s (sin t)]
            (for [i (range m)]
              (set-at! a i p (+ (* c (get u i)) (* s (get v i))))
              (set-at! a i q (- (* c (get v i)) (* s (get u i)))))))
        (sum (* a a a))))""", columns),
    "slices": ("""(fn [#^ (Vec m) a0 #^ Int k] (let [a (copy a0)]
        (for [i (range 1 (- m k))] (let [u (get a (slice i (+ i k)))]
          (set-at! a (slice (- i 1) (+ i k -1)) (* 0.5 u)) (set-at! a (+ i k -1) (sum u)))) (sum (* a a))))""", vector),
    "slices of rows": (by_rows("""(let [u (get a (- i 1) (slice 1 None)) v (get a i (slice 0 -1))]
        (set-at! a i (slice 1 None) (* 0.5 (+ u v))) (set-at! a (- i 1) (slice 0 -1) (* 0.5 (- u v))))"""), rows),
    "matrices": ("""(fn [#^ (Arr m n n) a0] (let [a (copy a0)]
        (for [i (range 1 m)] (let [c (copy (get a i))]
          (set-at! a (- i 1) (@ (get a (- i 1)) c)) (set-at! a i (- c (* 0.3 (get a (- i 1)))))))
        (sum (* a a))))""", blocks),
    "butterflies": ("""(fn [#^ (Mat m n) a0] (let [a (copy a0) s (ref 1)]
        (while (< (* 2 (deref s)) m)
          (let [h (deref s)]
            (for [i (range (- m h))] (let [u (copy (get a i)) v (copy (get a (+ i h)))]
              (set-at! a i (* 0.7 (+ u v))) (set-at! a (+ i h) (* 0.7 (- u v)))))
            (set! s (* 2 h))))
        (sum (* a a))))""", rows),
}  # fmt: skip
#: How often the loop runs is known to grow with m; a ``while``'s rounds are not.
COUNTED = [name for name in MODELS if name != "butterflies"]
#: A copy of as many numbers as an array has, from where, and its size.
WHOLE = r"memcpy\(\w+, (\w+), \(size_t\)(?:\(m\*n(?:\*n)?\)|m)\*"


def given(name: str, m: int) -> tuple[hyad.Model, tuple]:
    text, make = MODELS[name]
    return hyad.model(text, namespace={}), make(m, np.random.default_rng(m))


@pytest.mark.some(2)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives(name: str) -> None:
    f, _ = given(name, 5)
    g = hyad.grad(f, wrt=0)
    for m in (5, 8):
        args = given(name, m)[1]
        assert memoised.compile(f)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-12)
        slopes, plain = memoised.compile(g)(*args), memoised.compile(g, without=("fuse", "put-aside"))(*args)
        np.testing.assert_allclose(slopes, plain, rtol=1e-10, atol=1e-12)
        assert hyad.check_grad(f, args, wrt=0)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", MODELS)
def test_no_array_is_copied_in_the_loop(name: str) -> None:
    f, args = given(name, 6)
    source: Any = memoised.compile(f, args=args).source
    assert set(re.findall(WHOLE, source)) <= {"a0", "b0"} and "swap" not in source


@pytest.mark.some(2)
@pytest.mark.parametrize("name", COUNTED)
def test_derivatives_take_the_time_of_what_is_changed(name: str) -> None:
    """As many operations for each row, whatever the number of rows."""
    f, _ = given(name, 6)
    cards = [hyad.cost(f, args=given(name, m)[1]).columns for m in (50, 400)]
    for column in ("value", "forward", "reverse"):
        few, many = (card[column].operations for card in cards if column in card)
        assert many < 9.5 * few


def test_systems_of_the_rows_before() -> None:
    """What reverse mode reads of both matrices is remembered, and no other of them."""
    f = hyad.model("""(fn [#^ (Arr m n n) a0] (let [a (copy a0)]
        (for [i (range 1 m)] (let [f (get a (- i 1))] (set-at! a i (solve (+ (@ f f.T) (eye n)) (get a i)))))
        (sum (* a a))))""")
    few, many = (hyad.cost(f, args=blocks(m, np.random.default_rng(m))).columns["reverse"] for m in (50, 400))
    assert many.operations < 9.5 * few.operations
    (a,) = blocks(5, np.random.default_rng(5))
    t = 1e-6 * np.cos(np.arange(a.size)).reshape(a.shape)
    assert (f(a + t) - f(a - t)) / 2 == pytest.approx(np.sum(t * hyad.grad(f)(a)), rel=1e-7)


def test_other_encodings() -> None:
    f, args = given("two are turned", 6)
    want = hyad.grad(f, wrt=0)(*args)
    for encoding in ("closure", "continuation"):
        np.testing.assert_allclose(hyad.grad(f, wrt=0, encoding=encoding)(*args), want, rtol=1e-12)


def test_what_is_read_first() -> None:
    """With what that needs, checks among it; not past a check that waits for the change, nor what reads that."""
    a, b, c = (Var(name, Arr(REAL, (Var("n", INT),))) for name in "abc")
    i, j, x, y, z = Var("i", INT), Var("j", INT), *(Var(name, REAL) for name in "xyz")
    change = Bind((b,), Prim("update", (a, i, x)))
    place, check = Bind((j,), Prim("+", (i, i))), Bind((), Check("in", j, a.type.dims[0], "?"))
    old, new = Bind((y,), Prim("get", (a, j))), Bind((z,), Prim("get", (b, i)))
    assert [*reads_first([change, place, check, old])] == [place, check, old, change]
    assert [*reads_first([change, new, old])] == [old, change, new]
    later = Bind((), Check("in", Var("k", INT), z, "?"))  # type: ignore[arg-type]
    assert [*reads_first([change, new, later, old])] == [change, new, later, old]
    both = [change, Bind((c,), Prim("update", (a, j, y)))]  # one of two has to be a copy
    assert [*reads_first(both)] == both


def test_what_is_read_too_late() -> None:
    n = Var("n", INT)
    a, b, u, w = (Var(name, Arr(REAL, (n,))) for name in "abuw")
    i, x, y = Var("i", INT), Var("x", REAL), Var("y", REAL)
    made = Bind((u,), Loop(n, i, (), (), Block((Bind((x,), Prim("get", (a, i))),), (x,))))
    through = Bind((w,), Loop(n, i, (), (), Block((Bind((x,), Prim("get", (u, i))),), (x,))))
    change, number = Bind((b,), Prim("update", (a, n, y))), Bind((x,), Prim("get", (w, i)))
    z = Var("z", REAL)
    both = Bind((z,), Prim("get", (w, Var("j", INT))))
    waits = Bind((Var("c", a.type),), Prim("update", (b, n, z)))
    assert stale(Block((made, through, change, number), (x, b))) == set()  # it can be read before
    row = Bind((Var("d", a.type),), Loop(n, i, (b,), (b,), Block((number, waits), ())))
    assert stale(Block((made, through, change, row), (b,))) == {through}
    assert stale(Block((made, through, both, change, waits), (b,))) == set()
