"""Small matrices and vectors of which elements are zero by the way they are made: products leave these out.

Which elements a product leaves out shows where the other factor has NaN: what meets none of them is a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

P = np.sin(np.arange(1.0, 17.0)).reshape(4, 4)
Q = 0.3

#: Of literals, whose zeros are numbers but for products.
ONE, NONE = "[[1.0 0 0 0] [0 1 0 0] [0 0 1 0] [0 0 0 1]]", "[[0.0 0 0 0] [0 0 0 0] [0 0 0 0] [0 0 0 0]]"
#: Ways to make a matrix of which all zeros are known.
MATRICES = {
    "a literal": "[[1.0 0.0 q 0.0] [0.0 1.0 0.0 q] [0.0 0.0 1.0 0.0] [0.0 0.0 0.0 1.0]]",
    "integers": "[[1 0 q 0] [0 1 0 q] [0 0 1 0] [0 0 0 1]]",
    "a transpose": "(transpose [[1 0 q 0] [0 1 0 q] [0 0 1 0] [0 0 0 1]])",
    "a sum": "(+ (eye 4) (* q [[0 0 1 0] [0 0 0 1] [0 0 0 0] [0 0 0 0]]))",
    "a difference": "(- [[1.0 0.0 q 0.0] [0.0 2.0 0.0 q] [0.0 0.0 1.0 0.0] [0.0 0.0 0.0 0.0]] (* q (tril (eye 4))))",
    "multiples of rows": "(map (fn [r] (* q r)) [[1.0 0 0 0] [0 1.0 0 1.0] [0 0 1.0 0] [0 0 1.0 1.0]])",
    "blocks": "(vstack [(hstack [(eye 2) (* q (eye 2))]) (hstack [(zeros [2 2]) (eye 2)])])",
    "all products of elements": "(kron [[1.0 q] [0.0 1.0]] (eye 2))",
    "conditions": "(build [4 4] (fn [i j] (cond (= i j) 1.0 (= j (+ i 2)) q True 0.0)))",
    "other conditions": "(build [4 4] (fn [i j] (if (or (> i j) (and (!= j 3) (not (<= j i)))) (* q (+ i j)) 0.0)))",
    "elements put": f"(let [f (* 1.0 {ONE})] (set-at! f 0 2 q) (set-at! f 1 3 q) f)",
    "a row put": f"(let [f (* 1.0 {NONE})] (set-at! f 1 [0.0 q 0.0 1.0]) f)",
    "elements put in a loop": f"(let [f (* 1.0 {ONE})] (for [i (range 2)] (set-at! f i (+ i 2) q)) f)",
    "loops in loops": f"""(let [f (* 1.0 {NONE})]
        (for [i (range 4) j (range 4)] (when (= i j) (set-at! f i j 1.0)))
        (for [i (range 2)] (set-at! f i (+ i 2) (+ (get f i (+ i 2)) q)))
        f)""",
    "a new matrix each time": f"(ifold (fn [f i] (update f i (+ i 2) (* (+ i 1) q))) {ONE} 2)",
    "a matrix of which elements are added to": f"(let [f (* 1.0 {ONE})] (set-at! f 0 2 (+ (get f 0 2) q)) f)",
    "a row that is put over others": f"(update (update {ONE} 0 2 q) 1 [0 0 0 q])",
    "functions of zero": "(tanh (* 2.0 (square [[1 0 q 0] [0 1 0 q] [0 0 1 0] [0 0 0 1]])))",
}


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Mat 4 4) p q] {text})", namespace={})


def compiled(text: str, **options: Any) -> Any:
    return hyad.compile(model(text), args=(P, Q), **options)


@pytest.mark.parametrize("name", MATRICES)
def test_products_leave_out_what_is_zero(name: str) -> None:
    matrix = np.asarray(hyad.run(model(MATRICES[name]), P, Q))
    assert 0 < np.count_nonzero(matrix) < 12
    products = compiled(f"(let [f {MATRICES[name]}] #((@ f p) (@ p f) (@ f (get p 0)) (@ (get p 0) f)))")
    for k in range(4):
        for place, axis, row in ((np.s_[k], 0, matrix[:, k]), (np.s_[:, k], 1, matrix[k])):
            spoilt = P.copy()
            spoilt[place] = np.nan
            np.testing.assert_array_equal(np.isnan(products(spoilt, Q)[axis]).any(axis=1 - axis), row != 0)
        spoilt = P.copy()
        spoilt[0, k] = np.nan
        _, _, image, preimage = products(spoilt, Q)
        np.testing.assert_array_equal(np.isnan(image), matrix[:, k] != 0)
        np.testing.assert_array_equal(np.isnan(preimage), matrix[k] != 0)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", MATRICES)
def test_values_and_derivatives_are_those_of_whole_products(name: str) -> None:
    text = f"(let [f {MATRICES[name]}] (@ f p (transpose f)))"
    made, whole = compiled(text)(P, Q), compiled(text, without=["known-zeros"])(P, Q)
    np.testing.assert_allclose(made, whole, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(made, hyad.run(model(text), P, Q), rtol=1e-13, atol=1e-16)
    loss = model(f"(sum (sin {text}))")
    assert hyad.check_grad(loss, (P, Q))
    second = hyad.compile(hyad.hessian(loss, wrt="q"), args=(P, Q))(P, Q)
    whole = hyad.compile(hyad.hessian(loss, wrt="q"), args=(P, Q), without=["known-zeros"])(P, Q)
    np.testing.assert_allclose(second, whole, rtol=1e-12)


def test_zeros_of_either_branch() -> None:
    """Of a matrix that is chosen when the program runs, those elements are known that are zero in both."""
    matrices = "[[1 0 q 0] [0 1 0 q] [0 0 1 0] [0 0 0 1]]", "[[1 0 0 0] [0 1 0 q] [0 0 1 0] [0 0 1 1]]"
    f = compiled(f"(let [f (if (> q 0.0) {matrices[0]} {matrices[1]})] (@ f p))")
    either = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 1, 1]], bool)
    for k in range(4):
        for q in (Q, -Q):
            spoilt = P.copy()
            spoilt[k] = np.nan
            missed = ~np.isnan(f(spoilt, q)).any(axis=1)
            assert missed[~either[:, k]].all()
    np.testing.assert_allclose(f(P, -Q), hyad.run(model(f"(@ {matrices[1]} p)"), P, -Q), rtol=1e-14)


def test_vectors() -> None:
    f = compiled("#((@ [0.0 1.0 0.0 q] (get p 0)) (@ (get p 0) [0.0 1.0 0.0 q]) (outer [0.0 q 0.0 2.0] (get p 0)))")
    spoilt = P.copy()
    spoilt[0, [0, 2]] = np.nan
    before, after, all_products = f(spoilt, Q)
    assert before == after == P[0, 1] + P[0, 3] * Q
    np.testing.assert_array_equal(np.isnan(all_products), np.isnan(spoilt[0]) & (np.arange(4) % 2 == 1)[:, None])
    np.testing.assert_array_equal(f(P, Q)[2], np.outer([0.0, Q, 0.0, 2.0], P[0]))


def test_a_branch_that_is_not_taken_may_read_beside_a_literal() -> None:
    text = "(build [4 4] (fn [i j] (if (< (+ i j) 2) (get [q 0.0] (+ i j)) 0.0)))"
    assert hyad.run(model(f"(sum (@ {text} p))"), P, Q) == pytest.approx(compiled(f"(sum (@ {text} p))")(P, Q))


def test_integers_stay_integers() -> None:
    f = hyad.model("(fn [#^ (Arr Int n) k v] (get v (outer [0 1 2] k)))", namespace={})
    k, v = np.array([1, 0, 2]), np.arange(5.0) ** 2
    np.testing.assert_array_equal(hyad.compile(f, args=(k, v))(k, v), v[np.outer([0, 1, 2], k)])


def test_truth_values_are_no_factors() -> None:
    built = "(@ (build [n n] (fn [i j] (if (= i j) True False))) w)"
    rows = "(@ (build [n n] (fn [i j] True)) w)"
    for text in ("(@ [[True False] [True True]] v)", "(outer [True False] v)", built, rows):
        with pytest.raises(hyad.ModelTypeError, match="does not work on a truth value"):
            hyad.model(f"(fn [#^ (Vec 2) v #^ (Mat n n) w] {text})", namespace={})(np.ones(2), np.eye(3))


@pytest.mark.parametrize(
    "matrix",
    [
        "p",
        "(* q p)",
        "(build [4 4] (fn [i j] (if (> (get p i j) 0) 0.0 1.0)))",
        "(let [f (eye 4)] (set-at! f 0 (int q) 5.0) f)",
        "(map (fn [row] (- row row)) p)",
        "(exp [[1.0 0.0] [0.0 0.0]])",
    ],
)
def test_what_is_not_known(matrix: str) -> None:
    """NaN goes through products with elements that happen to be zero."""
    f = compiled(f"(let [m {matrix}] (@ m (slice p 0 (len m))))")
    assert np.isnan(f(np.where(np.arange(4)[:, None] == 1, np.nan, P), Q)[0]).all()


def test_of_many_elements_few_are_no_matter() -> None:
    """Where few of more than 16 elements are zero, or a matrix has more than 8 rows, it is used as it is made."""
    zeros = "(build [{0} {0}] (fn [i j] (if (< (+ i j) {1}) 0.0 q)))"
    for n, count, some in ((5, 1, False), (5, 4, True), (8, 8, True), (9, 9, False)):
        f = hyad.model(f"(fn [#^ (Mat {n} {n}) p q] (@ {zeros.format(n, count)} p))", namespace={})
        spoilt = np.ones((n, n))
        spoilt[0] = np.nan
        args = spoilt, Q
        assert np.isfinite(hyad.compile(f, args=args)(*args)[0]).any() == some
        assert not np.isfinite(hyad.compile(f, args=args, without=["known-zeros"])(*args)).any()


def test_the_steps_of_a_filter() -> None:
    """A Kalman filter of constant velocity by whole matrices: no product with zero is left of it."""
    text = """(fn [#^ (Mat t 2) ys q r dt]
      (let [F [[1.0 0.0 dt 0.0] [0.0 1.0 0.0 dt] [0.0 0.0 1.0 0.0] [0.0 0.0 0.0 1.0]]
            H [[1.0 0.0 0.0 0.0] [0.0 1.0 0.0 0.0]]
            x (ref (zeros 4))
            P (ref (eye 4))
            total (ref 0.0)]
        (for [y ys]
          (let [xp (@ F (deref x))
                Pp (+ (@ F (deref P) (transpose F)) (* q (eye 4)))
                v (- y (@ H xp))
                S (+ (@ H Pp (transpose H)) (* r (eye 2)))
                K (@ Pp (transpose H) (inv S))]
            (set! x (+ xp (@ K v)))
            (set! P (@ (- (eye 4) (@ K H)) Pp))
            (set! total (- (deref total) (* 0.5 (+ (logdet S) (@ v (inv S) v)))))))
        (deref total)))"""
    f = hyad.model(text, namespace={})
    args = np.cos(np.arange(24.0)).reshape(12, 2), 0.1, 0.2, 0.3
    for what in (f, hyad.grad(f, wrt=["q", "r", "dt"])):
        made = hyad.compile(what, args=args)
        assert "0.0*" not in made.source and "*0.0" not in made.source
        whole = hyad.compile(what, args=args, without=["known-zeros"])
        assert made.source.count("*") < 0.6 * whole.source.count("*")
        np.testing.assert_allclose(made(*args), whole(*args), rtol=1e-11)
    assert hyad.check_grad(f, args)
