"""Arrays that are built anew with one element, row, column or diagonal changed are changed in place."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Loop, blocks_of

#: Steps ``k`` = 0 .. n-1 of a state ``v``, a vector or a matrix, and whether it is changed in place.
STEPS = {
    "an element": ("v", "(build n (fn [i] (if (= i k) (* c (get v i)) (get v i))))"),
    "an element, the others first": ("v", "(build n (fn [i] (if (!= k i) (get v i) (sin (get w i)))))"),
    "one of another place": ("v", "(build n (fn [i] (if (= i (- n 1 k)) (+ (get v i) (get v k)) (get v i))))"),
    "one that may not be there": ("v", "(build n (fn [i] (if (= i (- (* 2 k) 1)) (* c (get v i)) (get v i))))"),
    "by map and enumeration": ("v", "(map (fn [i x] (if (= i k) (+ x (dot v w)) x)) (arange n) v)"),
    "a row": ("m", "(build [n n] (fn [i j] (if (= i k) (* c (get v i j)) (get v i j))))"),
    "a row of others": ("m", "(build [n n] (fn [i j] (if (= i k) (+ (get v (% (+ i 1) n) j) (get w j)) (get v i j))))"),
    "a column": ("m", "(build [n n] (fn [i j] (if (!= j k) (get v i j) (+ (get w i) (* c (get v i j))))))"),
    "a column of earlier ones": (
        "m", """(build [n n] (fn [i j] (if (!= j k) (get v i j)
                     (- (get w i) (ifold (fn [s l] (+ s (* (get v i l) (get v k l)))) 0.0 k)))))""",
    ),
    "a column of itself": (
        "m", "(build [n n] (fn [i j] (if (= j k) (+ (get v i j) (get v (% (+ i 1) n) j)) (get v i j))))",
    ),
    "both": ("m", "(build [n n] (fn [i j] (if (and (= i k) (= j (- n 1 k))) (* c (get v k k)) (get v i j))))"),
    "the diagonal": ("m", "(build [n n] (fn [i j] (if (= i j) (* c (get v i j)) (get v i j))))"),
    "a diagonal above": ("m", "(build [n n] (fn [i j] (if (= j (+ i k 1)) (+ (get v i j) (get v i i)) (get v i j))))"),
    "a diagonal below": ("m", "(build [n n] (fn [i j] (if (= (- i j) k) (* c (get v i j)) (get v i j))))"),
    "a diagonal that moves": ("m", "(build [n n] (fn [i j] (if (!= (- i 2) (- j k k)) (get v i j) (sin c))))"),
    "an antidiagonal": ("m", "(build n (fn [i] (build n (fn [j] (if (= (+ i j) k) (sin (get v i j)) (get v i j))))))"),
    "one of the one before": (
        "m", """(build [n n] (fn [i j] (if (= (+ i j 1) (+ n k))
                     (+ (* c (get v i j)) (if (> i 0) (* (get w i) (get v (- i 1) j)) 0.0)) (get v i j))))""",
    ),
    "a diagonal of its mirror image": (
        "m", "(build [n n] (fn [i j] (if (= (+ j k) i) (* c (get v j i) (get w i)) (get v i j))))",
    ),
    "rows as they are": ("m", "(build n (fn [i] (if (= i k) (* c w) (get v i))))"),
}  # fmt: skip
#: What stays: another element is kept, more than one is changed, or by what differs between them; a part of the array
#: is; or what might fail for another element would not be told.
OTHERS = {
    "a shift": ("v", "(build n (fn [i] (if (= i k) (* c (get v i)) (get v (% (+ i 1) n)))))"),
    "all from there on": ("v", "(build n (fn [i] (if (>= i k) (* c (get v i)) (get v i))))"),
    "every other column": ("m", "(build [n n] (fn [i j] (if (= j (+ i i k)) (* c (get v i j)) (get v i j))))"),
    "by another number of each": (
        "m", "(build [n n] (fn [i j] (if (= j (+ i (int (get w i)))) (* c (get v i j)) (get v i j))))",
    ),
    "a part": ("v", "(update v k (sum (build (- n 1) (fn [i] (if (= i k) (* c (get v i)) (get v i))))))"),
    "what may fail for all": (
        "v", """(build n (fn [i] (let [x (get w (max i (int (* 0.5 c))))] (if (= i k) (* x (get v i)) (get v i)))))""",
    ),
    "what may fail for the others": (
        "v", """(build n (fn [i] (if (= i k) (* c (get v i)) (do (get w (max i (int (* 0.5 c)))) (get v i)))))""",
    ),
    "a transpose": ("m", "(build [n n] (fn [i j] (if (= j k) (* c (get v i j)) (get v j i))))"),
}  # fmt: skip


def model(name: str, total: bool = False) -> hyad.Model:
    kind, step = (STEPS | OTHERS)[name]
    start = {"v": "u", "m": "a"}[kind]
    text = f"(ifold (fn [v k] {step}) {start} n)"
    text = f"(sum (sin {text}))" if total else text
    return hyad.model(f"(fn [#^ (Mat n n) a #^ (Vec n) u #^ (Vec n) w #^ Real c] {text})", namespace={})


def point(n: int) -> tuple:
    rng = np.random.default_rng(n)
    return rng.uniform(0.2, 1, (n, n)), rng.uniform(0.2, 1, n), rng.uniform(0.2, 1, n), 0.7


@pytest.mark.some(6)
@pytest.mark.parametrize("name", STEPS | OTHERS)
def test_values_and_gradients(name: str) -> None:
    f, g = model(name), hyad.grad(model(name, total=True))
    assert ("one-changed" in hyad.explain(f).fired()) == (name in STEPS)
    assert ("one-changed" in hyad.explain(g).fired()) == (name in STEPS)
    exact, plain = memoised.compile(f, "python"), memoised.compile(f, "python", without=["one-changed"])
    for n in (0, 1, 2, 3, 7):
        args = point(n)
        np.testing.assert_array_equal(exact(*args), plain(*args))
        np.testing.assert_allclose(memoised.compile(f)(*args), plain(*args), rtol=1e-14)
        for x, y in zip(memoised.compile(g)(*args), memoised.compile(g, without=["one-changed"])(*args)):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    assert hyad.check_grad(model(name, total=True), point(3))
    np.testing.assert_allclose(hyad.run(f, *point(3)), plain(*point(3)), rtol=1e-14)


def deepest(program: object) -> int:
    def depth(block: object) -> int:
        return max((depth(b) + (type(x.op) is Loop) for x in block.binds for b in blocks_of(x.op)), default=0)  # type: ignore

    return depth(program.body)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["an element", "a row", "a column", "both", "one of another place"])
def test_steps_take_the_time_of_what_they_change(name: str) -> None:
    f = model(name)
    assert deepest(f.optimised(f.specs())) == (1 if STEPS[name][0] == "v" or name == "both" else 2)
    assert "memcpy" not in hyad.show(f, "c").partition("for (")[2]


def test_an_array_that_is_read_later_is_copied() -> None:
    f = hyad.model("(fn [#^ (Vec n) v #^ Int k] (let [w (build n (fn [i] (if (= i k) 9.0 (get v i))))] (+ w (* 2 v))))")
    v = np.array([1.0, 2.0, 4.0])
    for k in (-1, 0, 2, 3):
        w = v.copy()
        w[k : k + 1] = 9.0 if 0 <= k < 3 else w[k : k + 1]
        np.testing.assert_array_equal(f(v, k), w + 2 * v)
    np.testing.assert_array_equal(v, [1.0, 2.0, 4.0])


def test_cholesky_by_new_matrices() -> None:
    """Each step builds a matrix with one more column of the factor."""
    f = hyad.model("""(fn [#^ (Mat n n) a]
      (ifold (fn [l j]
               (let [d (sqrt (- (get a j j) (ifold (fn [s k] (+ s (square (get l j k)))) 0.0 j)))]
                 (build [n n] (fn [i c]
                   (cond
                     (!= c j) (get l i c)
                     (< i j) 0.0
                     (= i j) d
                     True (/ (- (get a i j) (ifold (fn [s k] (+ s (* (get l i k) (get l j k)))) 0.0 j)) d))))))
        (zeros [n n]) n))""")
    b = np.random.default_rng(0).normal(size=(6, 6))
    a = b @ b.T + 6 * np.eye(6)
    np.testing.assert_allclose(f(a), np.linalg.cholesky(a), rtol=1e-12, atol=1e-14)
    assert deepest(f.optimised(f.specs())) == 3
    hyad.check_grad(f, (a,))
    likelihood = hyad.model(
        """(fn [#^ (Mat n n) a #^ (Vec n) y]
             (let [l (f a)] (+ (sum (build n (fn [i] (log (get l i i))))) (* 0.5 (sq-norm (solve-lower l y))))))""",
        namespace={"f": f},
    )
    hyad.check_grad(likelihood, (a, b[0]))
    copies = [line for line in hyad.show(hyad.grad(likelihood), "c").splitlines() if "memcpy" in line]
    assert max(len(line) - len(line.lstrip()) for line in copies) < 12, "no matrix is copied for one element"


def test_a_function_sees_the_array_as_it_was() -> None:
    """A new column whose elements a recursive function makes of the whole array: it is changed when all are there."""
    f = hyad.model("""(fn [#^ (Mat n n) a #^ Int m]
      (letrec [f (fn [v i k]
                   (if (< k 1) (* 0.3 (get v (% (+ i 3) (len v)) 0)) (+ (sin (f v i (- k 1))) (f v i (- k 2)))))]
        (ifold (fn [v q] (build [n n] (fn [i j] (if (= j q) (f v i m) (get v i j))))) a n)))""")

    def by_hand(v: np.ndarray, i: int, k: int) -> float:
        if k < 1:
            return 0.3 * v[(i + 3) % 4, 0]
        return np.sin(by_hand(v, i, k - 1)) + by_hand(v, i, k - 2)

    a = np.random.default_rng(2).uniform(0.1, 0.5, (4, 4))
    want = a.copy()
    for q in range(4):
        want[:, q] = [by_hand(want, i, 4) for i in range(4)]
    assert "one-changed" in hyad.explain(f, args=(a, 4)).fired()
    np.testing.assert_allclose(f(a, 4), want, rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("test", ["(= j (+ i k))", "(= (+ i j) k)", "(= (- i k) j)", "(= k (- (- i) j))"])
def test_diagonals_of_rectangles(test: str, shape: tuple) -> None:
    """From where to where a diagonal goes, for each that there is and some that are not there."""
    f = hyad.model(
        f"(fn [#^ (Mat n m) a #^ Int k] (build [n m] (fn [i j] (if {test} (+ 9.0 i) (get a i j)))))", namespace={}
    )
    assert "one-changed" in hyad.explain(f).fired()
    a = np.random.default_rng(1).normal(size=shape)
    i, j = np.indices(shape)
    for k in range(-10, 11):
        there = {"(= j": j == i + k, "(= (": i + j == k if "+" in test else i - k == j, "(= k": -i - j == k}[test[:4]]
        np.testing.assert_array_equal(memoised.compile(f)(a, k), np.where(there, 9.0 + i, a))
