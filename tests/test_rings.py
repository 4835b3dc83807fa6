"""Adjoints of stencils on rings: each element takes what its neighbours would add to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Prim, all_binds

#: One step of each on a ring: of ``u``, of ``n`` elements.
ROWS = {
    "neighbours": "(- (+ (get u (% (- i 1) n)) (* (get u i) (get u (% (+ i 1) n)))) (* 2.0 (get u i)))",
    "two away": "(+ (* 0.5 (get u (% (- i 2) n))) (square (get u (% (+ i 3) n))) (get u (% (- i 1) n)))",
    "dear": "(+ (get u i) (* 0.1 (sin (* (get u (% (- i 1) n)) (get u (% (+ i 1) n))))))",
    "two arrays": "(* (get u (% (+ i 1) n)) (get w i) (get w (% (- i 1) n)))",
}
#: And of a grid.
GRIDS = {
    "five points": """(- (+ (get u (% (- i 1) n) j) (get u (% (+ i 1) n) j) (get u i (% (- j 1) m))
      (* (get u i j) (get u i (% (+ j 1) m)))) (* 4.0 (get u i j)))""",
    "corners": """(+ (* (get u (% (- i 1) n) (% (- j 1) m)) (get u i j))
      (* 0.5 (get u (% (+ i 1) n) (% (+ j 1) m))) (exp (* 0.1 (get u (% (+ i 1) n) (% (- j 1) m)))))""",
    "one way": "(* 0.3 (get u i (% (+ j 1) m)) (get u i j))",
}


def of_row(step: str) -> hyad.Model:
    text = f"""(fn [#^ (Vec n) u #^ (Vec n) w] (let [n (len u)]
      (sum (square (ifold (fn [u t] (build n (fn [i] {step}))) u 3)))))"""
    return hyad.model(text, namespace={})


def of_grid(step: str) -> hyad.Model:
    text = f"""(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j] {step}))) u 3)))))"""
    return hyad.model(text, namespace={})


def passes(f: hyad.Model, args: list) -> set[str]:
    return {step.name for step in hyad.explain(f, args=args).steps}


def additions(f: Any) -> int:
    return sum(type(x.op) is Prim and x.op.name == "add-at" for x in all_binds(f.program.body))


def agree(f: hyad.Model, points: list[list]) -> None:
    """A gradient with and without the pass, and by differences."""
    gradient = hyad.grad(f, wrt=tuple(range(len(points[0]))) if len(points[0]) > 1 else 0)
    assert "rings" in passes(gradient, points[0])
    made, plain = (hyad.compile(gradient, args=points[0], target="python", without=w) for w in ((), "rings"))
    compiled = hyad.compile(gradient, args=points[0])
    assert additions(made) < additions(plain)
    for point in points:
        for one in (made, compiled):
            np.testing.assert_allclose(one(*point), plain(*point), rtol=1e-12, atol=1e-13)
    assert hyad.check_grad(f, points[-1])


@pytest.mark.parametrize("name", ROWS)
def test_a_ring(name: str) -> None:
    """Also one of fewer elements than a neighbour is away."""
    rng = np.random.default_rng(1)
    agree(of_row(ROWS[name]), [list(rng.uniform(0.2, 0.9, (2, n))) for n in (1, 2, 3, 4, 9, 17)])


@pytest.mark.parametrize("name", GRIDS)
def test_a_ring_of_rings(name: str) -> None:
    rng = np.random.default_rng(2)
    shapes = [(1, 1), (1, 5), (5, 1), (2, 2), (3, 4), (9, 17)]
    agree(of_grid(GRIDS[name]), [[rng.uniform(0.2, 0.9, shape)] for shape in shapes])


def test_a_grid_s_gradient_adds_to_nothing() -> None:
    """All of a step's adjoint is made in one nest of loops."""
    text = """(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (+ u (* 0.1 (build [n m] (fn [i j]
        (- (+ (get u (% (- i 1) n) j) (get u i (% (+ j 1) m))) (* 2.0 (get u i j)))))))) u 3)))))"""
    f = hyad.compile(hyad.grad(hyad.model(text, namespace={})), args=[np.ones((9, 9))])
    assert additions(f) == 0


def test_what_costs_is_computed_once() -> None:
    point = [np.linspace(0.2, 0.9, 9)] * 2
    f = hyad.grad(of_row(ROWS["dear"]))
    calls = [hyad.compile(f, args=point, without=w).source.count("cos(") for w in ((), ("rings", "edges", "shifts"))]
    assert calls[0] <= 3 * calls[1]  # the ends of a ring are apart


@pytest.mark.parametrize(
    "subscript", ["(% (* 2 i) n)", "(% (+ i 1) (+ n 1))", "(% (+ i k) n)", "(% (+ i (get p i)) n)", "(// i 2)"]
)
def test_what_is_no_ring_stays(subscript: str) -> None:
    """Several elements may read one."""
    text = f"""(fn [#^ (Vec n) u #^ (Vec m) v #^ Int k #^ (Arr Int n) p] (let [n (len u)]
      (sum (square (build n (fn [i] (* (get u i) (get v {subscript}))))))))"""
    f = hyad.model(text, namespace={})
    n = 5
    args = [np.linspace(0.2, 0.9, n), np.linspace(0.5, 1.5, n + 1), 2, np.array([0, 3, 1, 0, 2])]
    g = hyad.grad(f, wrt=(0, 1))
    assert "rings" not in passes(g, args)
    assert hyad.check_grad(f, args, wrt=(0, 1))


def test_a_ring_of_some_elements_stays() -> None:
    """A loop over a part of an array makes a part of its adjoint."""
    text = """(fn [#^ (Vec n) u] (let [m (// (len u) 2)]
      (sum (square (build m (fn [i] (* (get u i) (get u (% (+ i 1) m)))))))))"""
    g = hyad.grad(hyad.model(text, namespace={}))
    assert "rings" not in passes(g, [np.ones(9)])
    for n in (2, 3, 9):
        u = np.linspace(0.5, 1.5, n)
        head, rest = u[: n // 2], np.zeros(n - n // 2)
        expected = 2 * head * (np.roll(head, 1) ** 2 + np.roll(head, -1) ** 2) if n > 3 else 4 * head**3
        np.testing.assert_allclose(g(u), [*expected, *rest], rtol=1e-13)
