"""Matrices that are symmetric by the way they are made, and what is done with these: one triangle is read, half of the
work is left out where they are positive definite, and the results are those of any other matrix where they are not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import oracle

HEAD = "(fn [#^ (Mat n n) a #^ (Mat n 3) p #^ (Vec n) x #^ (Vec n) y] "
SYMMETRIC = {
    "a product with the transpose": "(@ a (transpose a))",
    "the other product": "(@ (transpose a) a)",
    "a sum with the transpose": "(+ a (transpose a))",
    "a kernel": "(build [n n] (fn [i j] (exp (- (sq-norm (- (get p i) (get p j)))))))",
    "a kernel by distances": "(build [n n] (fn [i j] (exp (- (abs (- (get x i) (get x j)))))))",
    "differences, squared": "(build [n n] (fn [i j] (** (- (get x i) (get x j)) 2)))",
    "products of differences": "(build [n n] (fn [i j] (* (- (get x i) (get x j)) (- (get y i) (get y j)))))",
    "an outer product": "(outer x x)",
    "one more on the diagonal": "(+ (@ a (transpose a)) (* 0.5 (eye n)))",
    "by the indices": "(build [n n] (fn [i j] (/ 1.0 (real (+ i j 1)))))",
    "from one triangle": "(build [n n] (fn [i j] (get a (max i j) (min i j))))",
    "covariances": "(cov (transpose p))",
    "broadcast": "(exp (- (square (- (expand-dims x 1) (expand-dims x 0)))))",
    "elements chosen": "(build [n n] (fn [i j] (if (= i j) 2.0 (cos (- (get x i) (get x j))))))",
    "zeros": "(zeros [n n])",
}
OTHER = {
    "an argument": "a",
    "a product": "(@ a a)",
    "a difference from the transpose": "(- a (transpose a))",
    "differences": "(build [n n] (fn [i j] (- (get x i) (get x j))))",
    "differences, to the third": "(build [n n] (fn [i j] (** (- (get x i) (get x j)) 3)))",
    "one factor changes sign": "(build [n n] (fn [i j] (* (abs (- (get x i) (get x j))) (- (get y i) (get y j)))))",
    "an outer product of two": "(outer x y)",
    "rows scaled": "(* x (@ a (transpose a)))",
    "an order": "(build [n n] (fn [i j] (if (< i j) 1.0 0.5)))",
    "not square": "(@ p (transpose (cut p 1 None)))",
    "sums in sums": """(build [n n] (fn [i j]
        (ifold (fn [s k] (+ s (ifold (fn [s l] (+ s (* (get a i k) (get a l j)))) 0.0 n))) 0.0 n)))""",
    "one element changed": "(update (@ a (transpose a)) 0 0 (get x 0))",
}


def arguments(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, n)), rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=n)


@pytest.mark.parametrize(
    "text, wanted", [*((t, True) for t in SYMMETRIC.values()), *((t, False) for t in OTHER.values())]
)
def test_what_is_known_to_be_symmetric(text: str, wanted: bool) -> None:
    f = hyad.model(f"{HEAD} (if (symmetric? {text}) 1.0 0.0))", namespace={})
    assert f(*arguments(4)) == float(wanted)
    made = hyad.model(f"{HEAD} {text})", namespace={})(*arguments(4))
    if wanted:
        np.testing.assert_allclose(made, np.transpose(made), rtol=1e-14)


#: By name: the program, and its value by NumPy from the matrix and y.
MEASURES = {
    "solve": ("(sum (sin (solve K y)))", lambda k, y: np.sum(np.sin(np.linalg.solve(k, y)))),
    "solve a matrix": ("(sum (sin (solve K b)))", lambda k, y: np.sum(np.sin(np.linalg.solve(k, np.outer(y, [1, 2]))))),
    "inverse": ("(sum (sin (inv K)))", lambda k, y: np.sum(np.sin(np.linalg.inv(k)))),
    "logdet": ("(logdet K)", lambda k, y: np.linalg.slogdet(k)[1]),
    "a quadratic form": ("(dot y (solve K y))", lambda k, y: y @ np.linalg.solve(k, y)),
    "by the inverse": ("(@ y (inv K) y)", lambda k, y: y @ np.linalg.solve(k, y)),
    "all at once": (
        "(+ (logdet K) (@ y (inv K) y) (sum (sin (inv K))))",
        lambda k, y: np.linalg.slogdet(k)[1] + y @ np.linalg.solve(k, y) + np.sum(np.sin(np.linalg.inv(k))),
    ),
}


@pytest.mark.some(10)
@pytest.mark.parametrize("name", MEASURES)
def test_definite_or_not(name: str) -> None:
    """Positive definite; neither that nor its negative, in the first pivot, a later one or all; and a matrix that needs
    its rows exchanged. The gradient by the matrix that it is made of is that of the same program with a plain one."""
    text, wanted = MEASURES[name]
    body = f"(let [b (outer y [1.0 2.0])] {text})"
    f = hyad.model(f"(fn [#^ (Mat n n) a #^ (Vec n) y] (let [K (+ a (transpose a))] {body}))", namespace={})
    plain = hyad.model(f"(fn [#^ (Mat n n) K #^ (Vec n) y] {body})", namespace={})
    g, h = (hyad.compile(hyad.grad(m, wrt=(0, 1))) for m in (f, plain))
    for n in (1, 2, 3, 5, 9, 33):
        a, *_, y = arguments(n)
        a /= np.sqrt(n)
        cases = [a + 3 * np.eye(n), a, a - 3 * np.eye(n), a + np.diag(np.linspace(3, -3, n)) + 0.1]
        cases += [a - np.diag(np.diag(a))] if n % 2 == 0 else []
        for m in cases:
            k = m + m.T
            np.testing.assert_allclose(f(m, y), wanted(k, y), rtol=1e-9, atol=1e-9)
            (by_a, by_y), (by_k, by_y2) = g(m, y), h(k, y)
            np.testing.assert_allclose(by_a, by_k + by_k.T, rtol=1e-8, atol=1e-8 * np.abs(by_k).max())
            np.testing.assert_allclose(by_y, by_y2, rtol=1e-8, atol=1e-9)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", ["solve", "inverse", "logdet", "a quadratic form"])
def test_second_derivatives_and_tangents(name: str) -> None:
    body = f"(let [b (outer y [1.0 2.0])] {MEASURES[name][0]})"
    f = hyad.model(f"(fn [#^ (Mat n n) a #^ (Vec n) y] (let [K (+ (@ a (transpose a)) (eye n))] {body}))", namespace={})
    a, *_, y = arguments(3)
    rng = np.random.default_rng(1)
    da, dy = rng.normal(size=a.shape), rng.normal(size=y.shape)
    g = hyad.grad(f, wrt=(0, 1))
    assert oracle.mismatch(g(a, y), hyad.run(g, a, y), 1e-10) is None
    both = hyad.model(
        "(fn [#^ (Mat n n) a #^ (Vec n) y #^ (Mat n n) da #^ (Vec n) dy]"
        " (jvp (grad (fn [a y] (f a y)) :wrt #(0 1)) a y da dy))",
        namespace={"f": f},
    )
    up, down = (g(a + s * 1e-5 * da, y + s * 1e-5 * dy) for s in (1, -1))
    for got, one, other in zip(both(a, y, da, dy), up, down):
        np.testing.assert_allclose(got, (one - other) / 2e-5, rtol=1e-5, atol=1e-6)
    assert hyad.jvp(f, (a, y), (da, dy)) == pytest.approx(sum(np.sum(x * d) for x, d in zip(g(a, y), (da, dy))))


def test_what_is_singular_or_no_number() -> None:
    f = hyad.model("(fn [#^ (Mat n n) a #^ (Vec n) y] (solve (+ a (transpose a)) y))", namespace={})
    d = hyad.model("(fn [#^ (Mat n n) a] (logdet (+ a (transpose a))))", namespace={})
    assert not np.isfinite(f(np.ones((3, 3)), np.array([1.0, 2.0, 3.0]))).all()
    assert d(np.zeros((3, 3))) == d(np.diag([1.0, 0.0])) == -np.inf
    a = np.eye(3)
    a[1, 2] = np.nan
    assert np.isnan(d(a)) and np.isnan(f(a, np.ones(3))).any()


def test_no_inverse_is_made_for_a_vector() -> None:
    """The solution of a system is computed for the product, not in a loop that runs more often than the inverse is
    made."""
    texts = {
        "plain": ("(fn [#^ (Mat n n) a #^ (Vec n) y] (@ (inv a) y))", "(fn [#^ (Mat n n) a #^ (Vec n) y] (solve a y))"),
        "symmetric": (
            "(fn [#^ (Mat n n) a #^ (Vec n) y] (let [K (+ a (transpose a))] (@ y (inv K) y)))",
            "(fn [#^ (Mat n n) a #^ (Vec n) y] (let [K (+ a (transpose a))] (dot y (solve K y))))",
        ),
    }
    for pair in texts.values():
        one, other = (hyad.compile(hyad.model(t, namespace={})).source for t in pair)
        code = [re.sub(r"\s*(//.*$|/\*.*?\*/)", "", s, flags=re.M | re.S) for s in (one, other)]
        assert code[0] == code[1]
    rows = hyad.model("(fn [#^ (Mat n n) a #^ (Mat m n) x] (let [k (inv a)] (map (fn [r] (@ k r)) x)))", namespace={})
    a, p, *_ = arguments(3)
    np.testing.assert_allclose(rows(a, p), p @ np.linalg.inv(a).T, rtol=1e-9)
    left = hyad.model("(fn [#^ (Mat n n) a #^ (Vec n) y] (@ y (inv a)))", namespace={})
    np.testing.assert_allclose(left(a, p[0]), p[0] @ np.linalg.inv(a), rtol=1e-9)
    assert hyad.check_grad(hyad.model("(fn [a y] (sum (sin (@ y (inv a)))))", namespace={}), (a, p[0]))


def test_half_of_a_kernel_is_computed() -> None:
    f = hyad.model(
        """(fn [#^ Real l #^ (Mat n 3) x #^ (Vec n) y]
             (let [K (+ (build [n n] (fn [i j] (exp (* l (- (sq-norm (- (get x i) (get x j))))))))
                       (* 0.1 (eye (len x))))]
               (+ (@ y (inv K) y) (logdet K))))""",
        namespace={},
    )
    source = hyad.compile(f).source
    assert re.search(r"for \(long long (\w+) = 0; \1 < \w+ \+ 1; \1\+\+\) .*?exp\(", source, re.S)
    assert "4*n*n" not in source and "(n*n + n)/2" in source
    _, p, _, y = arguments(7)
    k = np.exp(-1.5 * ((p[:, None] - p) ** 2).sum(2)) + 0.1 * np.eye(7)
    assert f(1.5, p, y) == pytest.approx(y @ np.linalg.solve(k, y) + np.linalg.slogdet(k)[1], rel=1e-12)
    assert hyad.check_grad(f, (1.5, p, y))


def test_what_rows_share_is_differentiated_once() -> None:
    """The covariance is the same for all rows: what its derivative adds up for a row is a product of two vectors, and
    the rest is done after the rows."""
    f = hyad.model(
        """(fn [#^ (Mat d d) a #^ (Mat n d) x]
             (sum (map (fn [row]
                 (let [s (+ (eye d) (@ a (transpose a)))] (+ (dot row (solve s row)) (logdet s))))
               x)))""",
        namespace={},
    )
    source = hyad.compile(hyad.grad(f, wrt="a")).source
    rows = next(part for part in source.split("\n    for (")[1:] if "< n;" in part[:60])
    assert (
        "bar" in rows
        and "log(" not in rows
        and "swap" not in rows
        and max(map(len, re.findall(r"\n( +)for \(", rows))) <= 16
    )
    rng = np.random.default_rng(3)
    a, x = rng.normal(size=(4, 4)), rng.normal(size=(6, 4))
    assert hyad.check_grad(f, (a, x))
