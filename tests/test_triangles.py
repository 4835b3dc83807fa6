"""Matrices of which nothing but the lower triangle is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

SIZES = (0, 1, 2, 3, 8, 19)

#: What is made of v, a list of p = n (n + 1) / 2 numbers, and w, of n: a matrix q, and how it is used.
LOWER = "(build [n n] (fn [r c] (if (>= r c) (get v (+ (// (* r (+ r 1)) 2) c)) 0.0)))"
SQUARE = "(build [n n] (fn [r c] (exp (* (get w r) (get w c)))))"
TIMES = "(build n (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get w c)))) 0.0 (+ r 1))))"
BELOW = "(build n (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get w c)))) (get q r r) r)))"
WHOLE = "(build n (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get w c)))) 0.0 n)))"
COLUMNS = "(build n (fn [c] (ifold (fn [s j] (+ s (* (get q (+ c j) c) (get w c)))) 0.0 (- n c))))"
UPPER = "(build n (fn [r] (ifold (fn [s j] (+ s (* (get q r (+ r j)) (get w r)))) 0.0 (- n r))))"

USES = {
    "times a vector": (LOWER, TIMES, True),
    "below the diagonal": (LOWER, BELOW, True),
    "computed everywhere": (SQUARE, TIMES, True),
    "read everywhere": (LOWER, WHOLE, False),
    "down the columns": (LOWER, COLUMNS, False),
    "above the diagonal": (SQUARE, UPPER, False),
}


def model(made: str, used: str) -> hyad.Model:
    """Twice as often as rows, so that it is worth having the matrix."""
    return hyad.model(
        f"""(fn [#^ (Vec p) v #^ (Vec n) w]
          (let [n (len w) q {made}]
            (ifold (fn [total t]
                     (let [y (let [w (map (fn [a] (+ a (real t))) w)] {used})]
                       (+ total (log (+ 1.0 (sum (square y)))))))
                   0.0 (* 2 n))))""",
        namespace={},
    )


def fires(f: Any) -> bool:
    return "\ntriangles:" in str(hyad.explain(f))


def flat(x: Any) -> np.ndarray:
    return np.concatenate([flat(y) for y in x]) if isinstance(x, (tuple, list)) else np.ravel(x)


@pytest.mark.some(6)
@pytest.mark.parametrize("what", USES)
def test_a_triangle_is_packed_and_a_square_is_not(what: str) -> None:
    made, used, packed = USES[what]
    f = model(made, used)
    assert fires(f) == packed
    for g in (f, hyad.grad(f)):
        ours, plain = hyad.compile(g), hyad.compile(g, without="triangles")
        for n in SIZES:
            rng = np.random.default_rng(n)
            v, w = rng.standard_normal(n * (n + 1) // 2), rng.standard_normal(n)
            assert np.allclose(flat(ours(v, w)), flat(plain(v, w)), rtol=1e-13, atol=1e-15), n  # gcc's fma


def test_a_gradient_needs_half_the_workspace() -> None:
    g = hyad.grad(model(LOWER, TIMES))
    rooms = [hyad.compile(g, without=off).cfunction.workspace for off in ((), "triangles")]
    work = [eval(room.replace("/", "//"), {"n": 200, "p": 20100}) for room in rooms]  # type: ignore[union-attr]
    assert work[0] < 0.55 * work[1]


def test_what_fails_above_the_diagonal_fails_still() -> None:
    made = "(build [n n] (fn [r c] (get v (+ (* r n) c))))"
    f = model(made, TIMES)
    ours, plain = hyad.compile(f), hyad.compile(f, without="triangles")
    n, rng = 5, np.random.default_rng(5)
    w, v = rng.standard_normal(n), rng.standard_normal(n * n)
    assert ours(v, w) == plain(v, w)
    for g in (ours, plain):
        with pytest.raises(hyad.HyadError):
            g(v[: n * n - 1], w)
    below = "(build [n n] (fn [r c] (get v (+ (* c n) r))))"  # the last number is on the diagonal, others above
    f = model(below, TIMES)
    with pytest.raises(hyad.HyadError):
        hyad.compile(f)(v[: n * n - n], w)


def test_a_matrix_that_is_given_out_is_whole() -> None:
    f = hyad.model(f"(fn [#^ (Vec p) v #^ (Vec n) w] (let [n (len w) q {LOWER}] #(q {TIMES})))", namespace={})
    assert not fires(f)
    q, y = hyad.compile(f)(np.arange(6.0), np.ones(3))
    assert np.array_equal(q, [[0, 0, 0], [1, 2, 0], [3, 4, 5]]) and np.array_equal(y, [0, 3, 12])


def test_a_matrix_that_is_stored_in_a_stack_is_whole() -> None:
    f = hyad.model(
        f"(fn [#^ (Vec n) w #^ (Arr 3 n n) b] (let [n (len w) q {SQUARE}] #({TIMES} (update b 1 q))))", namespace={}
    )
    assert not fires(f)
    y, b = hyad.compile(f)(np.ones(3), np.zeros((3, 3, 3)))
    assert np.allclose(y, np.e * np.arange(1, 4)) and np.allclose(b[1], np.e) and not b[::2].any()


def test_a_factor_made_element_by_element() -> None:
    """Cholesky's, by rows: each element is read where it was stored before."""
    f = hyad.model(
        """(fn [#^ (Mat n n) a]
          (let [n (len a)
                l (ifold (fn [l r]
                    (ifold (fn [l c]
                      (let [s (ifold (fn [s j] (- s (* (get l r j) (get l c j)))) (get a r c) c)]
                        (update l r c (if (= r c) (sqrt s) (/ s (get l c c)))))) l (+ r 1))) (zeros [n n]) n)]
            (ifold (fn [s i] (+ s (log (get l i i)))) 0.0 n)))""",
        namespace={},
    )
    for g in (f, hyad.grad(f)):
        ours, plain = hyad.compile(g), hyad.compile(g, without="triangles")
        for n in (1, 2, 7, 20):
            x = np.random.default_rng(n).standard_normal((n, n))
            a = x @ x.T + n * np.eye(n)
            assert np.allclose(ours(a), plain(a), rtol=1e-13, atol=1e-15)
