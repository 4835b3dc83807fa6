"""Grids that loops change in place, as newcomers write them: waves, springs, upwind schemes, filters."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Prim, all_binds

RNG = np.random.default_rng(7)

#: Each by its arrays alone, of which nothing is declared.
VECTORS = {
    "yee": """(fn [e eps]
      (let [n (len e)  e (copy e)  h (zeros n)]
        (for [t (range 3)]
          (for [i (range (- n 1))] (set-at! h i (+ (get h i) (* 0.5 (- (get e (+ i 1)) (get e i))))))
          (for [i (range 1 n)] (set-at! e i (+ (get e i) (* (get eps i) (- (get h i) (get h (- i 1))))))))
        (+ (sum (square e)) (sum h))))""",
    "masses": """(fn [x v]
      (let [n (len x)  x (copy x)  v (copy v)
            pull (fn [d] (+ d (* 0.3 d d d)))]
        (for [t (range 3)]
          (for [i (range 1 (- n 1))]
            (set-at! v i
              (+ (get v i)
                 (* 0.1 (- (pull (- (get x (+ i 1)) (get x i))) (pull (- (get x i) (get x (- i 1)))))))))
          (for [i (range 1 (- n 1))] (set-at! x i (+ (get x i) (* 0.1 (get v i))))))
        (sum (square x))))""",
    "springs": """(fn [x v]
      (let [n (len x)  x (copy x)  v (copy v)]
        (for [t (range 3)]
          (let [f (zeros n)]
            (for [i (range (- n 1))]
              (let [d (- (get x (+ i 1)) (get x i) 1.0)]
                (set-at! f i (+ (get f i) d (* 0.3 d d d)))
                (set-at! f (+ i 1) (- (get f (+ i 1)) d (* 0.3 d d d)))))
            (for [i (range n)]
              (set-at! v i (+ (get v i) (* 0.1 (get f i))))
              (set-at! x i (+ (get x i) (* 0.1 (get v i)))))))
        (+ (sum (square x)) (sum v))))""",
    "upwind": """(fn [u k]
      (let [n (len u)  u (copy u)  after (zeros n)]
        (for [t (range 3)]
          (for [i (range 1 (- n 1))]
            (if (> (get u i) 0.0)
              (set-at! after i (- (get u i) (* 0.1 (get k i) (get u i) (- (get u i) (get u (- i 1))))))
              (set-at! after i (- (get u i) (* 0.1 (get k i) (get u i) (- (get u (+ i 1)) (get u i)))))))
          (for [i (range 1 (- n 1))] (set-at! u i (get after i))))
        (sum (square u))))""",
    "upwind on a ring": """(fn [u k]
      (let [n (len u)]
        (sum (square
          (ifold (fn [u t]
            (build n (fn [i]
              (let [a (get u i)  l (get u (% (- i 1) n))  r (get u (% (+ i 1) n))]
                (if (> a 0.0) (- a (* 0.1 a (- a l))) (- a (* (get k i) a (- r a))))))))
            u 3)))))""",
    "one after the other": """(fn [u f]
      (let [n (len u)  u (copy u)]
        (for [t (range 3)]
          (for [i (range 1 (- n 1))]
            (set-at! u i (* 0.5 (+ (get u (- i 1)) (get u (+ i 1)) (* (get f i) (get u i)))))))
        (sum (square u))))""",
    "each to the next": """(fn [u f]
      (let [n (len u)  u (copy u)]
        (for [t (range 2)]
          (for [i (range (- n 1))]
            (set-at! u (+ i 1) (+ (get u (+ i 1)) (* (get f i) (get u i))))))
        (sum (square u))))""",
    "from the other end": """(fn [u f]
      (let [n (len u)  u (copy u)]
        (for [t (range 3)]
          (for [i (range n)] (set-at! u i (* (get f i) (get u i) (get u (- n 1 i))))))
        (sum (square u))))""",
    "every place twice": """(fn [u f]
      (let [n (len u)  u (copy u)]
        (for [i (range (* 2 n))]
          (set-at! u (// i 2) (* (get u (// i 2)) (+ (get f (// i 2)) (* 0.1 i)))))
        (sum (square u))))""",
    "some places": """(fn [u f]
      (let [n (len u)  u (copy u)]
        (for [i (range n)]
          (when (> (get f i) 0.0) (set-at! u i (* (get u i) (get u i) (get f i)))))
        (sum (square u))))""",
}  # fmt: skip

MATRICES = {
    "waves": """(fn [u c]
      (let [n (len u)  m (len (get u 0))]
        (sum (square (snd
          (ifold (fn [#(p u) t]
            #(u (build [n m] (fn [i j]
                  (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1))) 0.0
                    (+ (- (* 2.0 (get u i j)) (get p i j))
                       (* (square (get c i j))
                          (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
                             (* 4.0 (get u i j))))))))))
            #(u u) 4))))))""",
    "heat": """(fn [u k]
      (let [n (len u)  m (len (get u 0))  u (copy u)  after (copy u)]
        (for [t (range 3)]
          (for [i (range 1 (- n 1)) j (range 1 (- m 1))]
            (set-at! after i j
              (+ (get u i j)
                 (* (get k i j)
                    (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
                       (* 4.0 (get u i j)))))))
          (for [i (range 1 (- n 1)) j (range 1 (- m 1))] (set-at! u i j (get after i j))))
        (sum (square u))))""",
    "a filter": """(fn [x w]
      (let [h (- (len x) 1)  l (- (len (get x 0)) 1)  y (zeros [h l])]
        (for [i (range h) j (range l) p (range 2) q (range 2)]
          (set-at! y i j (+ (get y i j) (* (get w p q) (get x (+ i p) (+ j q))))))
        (sum (square y))))""",
    "upwind": """(fn [u v]
      (let [n (len u)  m (len (get u 0))]
        (sum (square
          (ifold (fn [u t]
            (build [n m] (fn [i j]
              (let [a (get u i j)
                    x (if (> (get v i j) 0.0) (- a (get u (% (- i 1) n) j)) (- (get u (% (+ i 1) n) j) a))
                    y (if (> (get v j i) 0.0) (- a (get u i (% (- j 1) m))) (- (get u i (% (+ j 1) m)) a))]
                (- a (* 0.1 (+ (* (get v i j) x) (* (get v j i) y))))))))
            u 3)))))""",
    "towards a corner": """(fn [u f]
      (let [n (len u)  m (len (get u 0))  u (copy u)]
        (for [i (range 1 n) j (range 1 m)]
          (set-at! u i j (* (get f i j) (get u i j) (+ (get u (- i 1) j) (get u i (- j 1))))))
        (sum (square u))))""",
}  # fmt: skip

OFF = ("any-order", "forwards", "overwritten", "unbranched", "shifts", "strands", "history")


def compared(text: str, *points: tuple) -> None:
    """The gradient in C, with and without what is done for grids, and by the other mode and differences."""
    f = hyad.model(text, namespace={})
    g = hyad.value_and_grad(f, wrt=(0, 1))
    made = [hyad.compile(g, args=points[0], target=t, without=w) for t in ("c", "python") for w in ((), OFF)]
    for point in points:
        values, *others = (h(*point) for h in made)
        for value, by in others:
            np.testing.assert_allclose(value, values[0], rtol=1e-13)
            for one, other in zip(by, values[1]):
                np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    assert hyad.check_grad(f, points[0])


@pytest.mark.some(10)
@pytest.mark.parametrize("name", VECTORS)
def test_gradients_of_vectors(name: str) -> None:
    compared(VECTORS[name], *(tuple(RNG.uniform(-1, 1, (2, n))) for n in (7, 1, 2, 3, 4, 5, 23)))


@pytest.mark.some(10)
@pytest.mark.parametrize("name", MATRICES)
def test_gradients_of_matrices(name: str) -> None:
    compared(MATRICES[name], *(tuple(RNG.uniform(-1, 1, (2, n, n))) for n in (5, 2, 3, 4, 19)))


def gradient(text: str, *shapes: tuple[int, ...]) -> str:
    """The C of a gradient."""
    f = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1))
    return hyad.compile(f, args=[RNG.uniform(-1, 1, s) for s in shapes]).cfunction.source


@pytest.mark.parametrize(
    "name, forwards, without",
    [("yee", True, ()), ("masses", True, ()), ("upwind", True, ())]
    + [("some places", True, "scalar-replacement")]  # else it has no array that goes from place to place
    + [
        (name, False, ())
        for name in ("one after the other", "each to the next", "from the other end", "every place twice")
    ],
)
def test_what_goes_forwards(name: str, forwards: bool, without: str | tuple) -> None:
    """The loop over the elements; that over time goes backwards in any case."""
    g = hyad.grad(hyad.model(VECTORS[name], namespace={}), wrt=(0, 1))
    args = tuple(RNG.uniform(-1, 1, (2, 9)))
    steps = hyad.explain(g, args=args, without=without).steps
    assert any("any-order" in str(step) for step in steps) == forwards


def test_what_calls_remember_goes_backwards() -> None:
    """What was remembered last is in the cache."""
    text = """(defmodel walk [#^ Int n #^ (Vec k) x]
      (if (< n 1) 1.0 (ifold (fn [s j] (+ s (* (get x j) (walk (- n 1) (map sin x))))) 0.0 (len x))))"""
    g = hyad.grad(hyad.model(text, namespace={}), wrt="x")
    assert not any("any-order" in str(step) for step in hyad.explain(g, args=(2, np.ones(3))).steps)
    assert re.search(r"record->\w+\[\w+ - k( - 1)?\]", hyad.compile(g, args=(2, np.ones(3))).source)


@pytest.mark.parametrize(
    "name, wanted",
    [("springs", True), ("yee", False)]  # the others' loops go forwards already
    + [
        (name, False) for name in ("one after the other", "each to the next", "from the other end", "every place twice")
    ],
)
def test_what_need_not_go_backwards(name: str, wanted: bool) -> None:
    g = hyad.grad(hyad.model(VECTORS[name], namespace={}), wrt=(0, 1))
    steps = hyad.explain(g, args=tuple(RNG.uniform(-1, 1, (2, 9)))).steps
    assert ("forwards" in [step.name for step in steps]) == wanted


def test_what_a_user_adds_from_the_end_is_added_from_the_end() -> None:
    text = """(fn [#^ (Vec n) a #^ (Vec n) x] (ifold (fn [a k]
      (add-at (add-at a (- n 1 k) (get x k)) (- n 2 k) (get x (- n 1 k)))) a (- n 1)))"""
    f = hyad.model(text, namespace={})
    a, x = np.exp(RNG.uniform(-9, 9, (2, 30)))
    wanted = a.copy()
    for k in range(29):
        wanted[29 - k] += x[k]
        wanted[28 - k] += x[29 - k]
    np.testing.assert_array_equal(hyad.compile(f)(a, x), wanted)


def test_a_stack_of_states_is_not_copied_beside_the_state_before() -> None:
    """A row of it that is handed on is no part of the row that is made."""
    there = gradient(MATRICES["waves"], (5, 5), (5, 5)).split("2.0*t1[(4*n + i)*m + i1]")[0]
    assert "memcpy" in there and not re.search(r"memcpy\([^;]*\(size_t\)\(5\*n\*m\)", there), there


#: What is done to u in place, w being another vector, and what is left of it.
STORES = {
    "twice": ("(update (update u i x) i 2.0)", ["update"]),
    "after a sum": ("(update (add-at u i x) i 2.0)", ["update"]),
    "what was there": ("(let [y (get u i)] (update (update u i x) i y))", []),
    "another element between": ("(update (update (update u i x) (+ i 1) 3.0) i 2.0)", ["update"] * 3),
    "what may be another element": ("(update (update u i x) k 2.0)", ["update"] * 2),
    "read between": ("(let [v (update u i x)] (update v i (get v k)))", ["update"] * 2),
    "seen as it was between": ("(let [v (update u i x)] (+ v (update v i 2.0)))", ["update"] * 2),
}


@pytest.mark.parametrize("name", STORES)
def test_what_is_overwritten_is_not_stored(name: str) -> None:
    body, left = STORES[name]
    f = hyad.model(f"(fn [#^ (Vec n) u #^ Int i #^ Int k #^ Real x] {body})", namespace={})
    u = RNG.uniform(-1, 1, 6)
    found, plain = (hyad.compile(f, args=(u, 2, 2, 0.3), without=w) for w in ((), "overwritten"))
    assert [x.op.name for x in all_binds(found.program.body) if is_store(x.op)] == left
    for k in (2, 3):
        for other in (plain(u, 2, k, 0.3), hyad.run(f, u, 2, k, 0.3)):
            np.testing.assert_array_equal(found(u, 2, k, 0.3), other)


def test_what_is_read_between_is_stored() -> None:
    """Without it the vector would be there twice, and copied."""
    text = """(fn [#^ (Vec n) u #^ Int i #^ Int k] (ifold (fn [s t]
      (let [v (update s i (sin (get s k)))] (update v i (+ (get v k) (real t))))) u 5))"""
    made = hyad.compile(hyad.model(text, namespace={}), args=(np.ones(4), 1, 2))
    assert made.cfunction.source.count("memcpy(") == 1


def is_store(op: object) -> bool:
    return type(op) is Prim and op.name in ("update", "add-at")


#: What an iteration does to ``a``, longer by 3 than x, by u = x[i], and whether it is done after the branch.
BRANCHES = {
    "either neighbour": ("(if (> u 0.0) (get x i) (* 2.0 (get x (+ i 1))))", True),
    "both, in one branch": ("(if (> u 0.0) (* (get x i) (get x (+ i 2))) u)", True),
    "the neighbour before": ("(if (> i 0) (get x (- i 1)) u)", False),
    "what may not be there": ("(if (and (> u 0.0) (>= i far)) (get x (- i far)) u)", False),
    "a library's function": ("(if (> u 0.0) (sin (get x (+ i 2))) (* 2.0 (get x (+ i 1))))", False),
    "found by an index": ("(if (> u 0.0) (get x (get k i)) (* 2.0 (get x (+ i 1))))", False),
    "what is nothing": ("(if (> u 0.0) (sqrt (get x (+ i 1))) (* 2.0 (get x (+ i 2))))", True),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_what_branches_add_is_added_after_them(name: str) -> None:
    body, wanted = BRANCHES[name]
    text = f"""(fn [#^ (Vec n) x #^ (Arr Int n) k #^ Int far]
      (sum (build (max 0 (- (len x) 2)) (fn [i] (let [u (get x i)] (* u {body}))))))"""
    f = hyad.model(text, namespace={})
    g, k = hyad.grad(f, wrt="x"), np.arange(23)[::-1].copy()
    x = RNG.uniform(-1, 1, 23)
    x[x < -0.9] = 0.0
    assert ("unbranched" in [step.name for step in hyad.explain(g, args=(x, k, 2)).steps]) == wanted
    made = [hyad.compile(g, args=(x, k, 2), target=t, without=w) for t in ("c", "python") for w in ((), "unbranched")]
    for n in (23, 0, 1, 2, 3, 4, 5):
        values = [h(x[:n], k[23 - n :] if n else k[:0], 2) for h in made]
        for other in values[1:]:
            np.testing.assert_allclose(other, values[0], rtol=1e-13, atol=1e-15)


def test_a_branch_that_is_not_taken_adds_nothing() -> None:
    """No NaN of the root of a number below zero, nor infinity times zero."""
    text = """(fn [#^ (Vec n) x] (sum (build (- (len x) 2) (fn [i]
      (if (> (get x i) 0.0) (sqrt (get x i)) (* (get x (+ i 1)) (get x (+ i 2))))))))"""
    g = hyad.grad(hyad.model(text, namespace={}))
    x = np.array([0.25, -1.0, 4.0, 0.0, 9.0, -2.0, 1.0, 16.0, -3.0, -5.0, 7.0, 2.0])
    assert "unbranched" in [step.name for step in hyad.explain(g, args=(x,)).steps]
    wanted = np.zeros(len(x))
    for i in range(len(x) - 2):
        if x[i] > 0:
            wanted[i] += 0.5 / np.sqrt(x[i])
        else:
            wanted[i + 1] += x[i + 2]
            wanted[i + 2] += x[i + 1]
    np.testing.assert_allclose(g(x), wanted, rtol=1e-14)


def test_what_a_user_adds_in_a_branch_stays_there() -> None:
    """Zero would be added to the zero below zero that is there."""
    text = """(fn [#^ (Vec n) a #^ (Vec n) x] (ifold (fn [a i]
      (if (> (get x i) 0.0) (add-at a i (get x i)) (add-at a (+ i 1) (get x i)))) a (- (len x) 1)))"""
    made = hyad.compile(hyad.model(text, namespace={}), args=(np.zeros(9), np.ones(9)))
    found = made(-np.zeros(9), np.array([-1.0, 2.0, 1.0, -1.0, -0.0, 3.0, -1.0, -2.0, 5.0]))
    assert np.signbit(found[0]) and found[0] == 0.0


def test_a_user_s_sum_beside_strands_keeps_its_order() -> None:
    """A filter's value beside its gradient: the weights' adjoints are strands, what the model adds up is as it was.
    The products are exact, as a compiler may add one without rounding it, and the sums are not."""
    text = """(fn [#^ (Vec 2) w #^ (Vec m) x] (ifold
      (fn [s j] (- (+ s (square (+ (* (get w 0) (get x j)) (* (get w 1) (get x (+ j 1)))))) (* 0.125 (get x j))))
        1e8 (- m 1)))"""
    both, w = hyad.value_and_grad(hyad.model(text, namespace={}), wrt=(0, 1)), np.array([0.75, -0.25])
    for m in (40, 41, 43, 3, 1):
        x = np.round(RNG.uniform(-1, 1, m) * 2**20) / 2**20
        total = 1e8
        for j in range(m - 1):
            error = 0.75 * x[j] - 0.25 * x[j + 1]
            total = total + error * error - 0.125 * x[j]

        value, (by_w, _) = memoised.compile(both, args=(w, x))(w, x)
        assert value == total
        y = 2 * (0.75 * x[:-1] - 0.25 * x[1:])
        np.testing.assert_allclose(by_w, [y @ x[:-1], y @ x[1:]], rtol=1e-12, atol=1e-14)
    assert "term[lane] = " in hyad.compile(both, args=(w, np.ones(40))).source
