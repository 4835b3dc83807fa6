"""Sums of products in derivatives: the factor that a sum does not change leaves it."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

RNG = np.random.default_rng(3)
A, B, C = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3)), RNG.normal(size=(3, 6))
Y, V, W = RNG.normal(size=4), RNG.normal(size=3), RNG.normal(size=6)
ARGS = "#^ (Mat n m) a #^ (Mat m k) b #^ (Mat k l) c #^ (Vec n) y #^ (Vec k) v #^ (Vec l) w"
POINT = (A, B, C, Y, V, W)

#: What is differentiated, and its gradients by a and b on paper.
PRODUCTS = {
    "two matrices": ("(dot y (@ (times a b) v))", np.outer(Y, B @ V), np.outer(A.T @ Y, V)),
    "three matrices": ("(dot y (@ (times (times a b) c) w))", np.outer(Y, B @ C @ W), np.outer(A.T @ Y, C @ W)),
    "a square": (
        "(square (dot y (@ (times a b) v)))",
        2 * (Y @ A @ B @ V) * np.outer(Y, B @ V),
        2 * (Y @ A @ B @ V) * np.outer(A.T @ Y, V),
    ),
}


#: A product whose factors the language does not see.
TIMES = "(fn [p q] (map (fn [row] (map (fn [column] (dot row column)) (transpose q))) p))"


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [{ARGS}] (let [times {TIMES}] {text}))", namespace={})


def fires(f: hyad.Model, **options: object) -> bool:
    return any(step.name == "factors" for step in hyad.explain(f, **options).steps)


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_gradient_of_a_chain_of_products(name: str) -> None:
    text, *wanted = PRODUCTS[name]
    f = hyad.grad(model(text), wrt=("a", "b"))
    assert fires(f)
    for target in ("c", "python"):
        for got, expected in zip(hyad.compile(f, args=POINT, target=target)(*POINT), wanted):
            np.testing.assert_allclose(got, expected, rtol=1e-12)
    empty = [x[:0] if x is A or x is Y else x for x in POINT]
    assert [g.shape for g in hyad.compile(f)(*empty)] == [(0, 5), (5, 3)]


def test_no_product_of_matrices_is_left() -> None:
    """By a alone: what is left to multiply is a matrix and a vector."""
    f = hyad.grad(model(PRODUCTS["two matrices"][0]), wrt="a")
    n = 200
    sizes = [np.zeros(s) for s in ((n, n), (n, n), (n, 1), n, n, 1)]
    cards = [hyad.cost(f, args=sizes, without=off) for off in ((), "factors")]
    made, plain = (list(card.columns.values())[-1].work for card in cards)
    assert made < 20 * n**2 and plain > n**3


def test_a_user_s_sum_stays_as_it_is_written() -> None:
    assert not fires(model("(sum (@ (outer y v) c))"))


def test_a_matrix_that_is_no_such_product_stays() -> None:
    f = hyad.grad(model("(sum (square (@ (@ a b) c)))"), wrt=("a", "b"))
    assert not fires(f)
    two = 2 * A @ B @ C @ C.T
    for got, expected in zip(hyad.compile(f)(*POINT), (two @ B.T, A.T @ two)):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_an_inverse_between_two_vectors() -> None:
    """The rule of `inv` multiplies by the inverse twice; two matrices and a vector are enough."""
    f = hyad.model(
        "(fn [#^ (Mat n n) a #^ (Vec n) y #^ (Vec n) v] (dot y (map (fn [row] (dot row v)) (inv a))))", namespace={}
    )
    g = hyad.grad(f, wrt="a")
    assert fires(g)
    a, v = A[:, :4] + 4 * np.eye(4), W[:4]
    wanted = -np.outer(np.linalg.solve(a.T, Y), np.linalg.solve(a, v))
    np.testing.assert_allclose(hyad.compile(g)(a, Y, v), wanted, rtol=1e-11)


def test_a_column_that_is_a_product_itself() -> None:
    """The adjoint of an inverse between two vectors is a column times a row, and the product of a matrix with it, too:
    neither of the two products of matrices in the rule of `inv` is left, a factor or not."""
    f = hyad.model(
        "(fn [#^ (Mat n n) a #^ (Vec n) y] (* -0.5 (dot y (map (fn [row] (dot row y)) (inv a)))))", namespace={}
    )
    g = hyad.grad(f, wrt="a")
    n = 200
    cards = [hyad.cost(g, args=(np.zeros((n, n)), np.zeros(n)), without=off) for off in ((), "factors")]
    made, plain = (list(card.columns.values())[-1].work for card in cards)
    assert plain - made > 3.9 * n**3  # two products, each n^3 multiplications and additions
    a = A[:, :4] + 4 * np.eye(4)
    wanted = 0.5 * np.outer(np.linalg.solve(a.T, Y), np.linalg.solve(a, Y))
    for target in ("c", "python"):
        np.testing.assert_allclose(hyad.compile(g, args=(a, Y), target=target)(a, Y), wanted, rtol=1e-11)
