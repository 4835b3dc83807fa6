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


#: The same of whole rows: ``u`` and ``w`` are matrices, or of three axes.
ROLLED = {
    "neighbours": "(- (+ (np.roll u 1 :axis 0) (* u (np.roll u -1 :axis 0))) (* 2.0 u))",
    "two away": "(+ (* 0.5 (np.roll u 2 :axis 0)) (square (np.roll u -3 :axis 0)) (np.roll u 1 :axis 0))",
    "dear": "(+ u (* 0.1 (sin (* (np.roll u 1 :axis 0) (np.roll u -1 :axis 0)))))",
    "two arrays": "(* (np.roll u -1 :axis 0) (exp w) (np.roll (* u w) 1 :axis 0))",
    "both axes": "(+ (* 0.3 (np.roll u 1 :axis 0)) (* (np.roll w -2 :axis 0) (np.roll u -1 :axis 1)))",
    "five points": """(+ u (* 0.25 (+ (np.roll u 1 :axis 0) (np.roll u -1 :axis 0)
      (np.roll u 1 :axis 1) (np.roll u -1 :axis 1))))""",
    "rows by hand": "(build [(len u)] (fn [i] (* 0.5 (get u (% (+ i 1) (len u))) (get w i))))",
}


def of_row(step: str) -> hyad.Model:
    text = f"""(fn [#^ (Vec n) u #^ (Vec n) w] (let [n (len u)]
      (sum (square (ifold (fn [u t] (build n (fn [i] {step}))) u 3)))))"""
    return hyad.model(text, namespace={})


def of_grid(step: str) -> hyad.Model:
    text = f"""(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j] {step}))) u 3)))))"""
    return hyad.model(text, namespace={})


def of_rows(step: str, axes: int) -> hyad.Model:
    text = f"""(fn [#^ (Arr Real {" ".join("abc"[:axes])}) u #^ (Arr Real {" ".join("abc"[:axes])}) w]
      (sum (square (ifold (fn [u t] {step}) u 3))))"""
    return hyad.model(text, namespace={"np": np})


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


@pytest.mark.some(6)
@pytest.mark.parametrize("name", ROWS)
def test_a_ring(name: str) -> None:
    """Also one of fewer elements than a neighbour is away."""
    rng = np.random.default_rng(1)
    agree(of_row(ROWS[name]), [list(rng.uniform(0.2, 0.9, (2, n))) for n in (1, 2, 3, 4, 9, 17)])


@pytest.mark.some(6)
@pytest.mark.parametrize("name", GRIDS)
def test_a_ring_of_rings(name: str) -> None:
    rng = np.random.default_rng(2)
    shapes = [(1, 1), (1, 5), (5, 1), (2, 2), (3, 4), (9, 17)]
    agree(of_grid(GRIDS[name]), [[rng.uniform(0.2, 0.9, shape)] for shape in shapes])


@pytest.mark.some(12)
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("name", ROLLED)
def test_a_ring_of_rows(name: str, axes: int) -> None:
    rng = np.random.default_rng(3)
    shapes = [(1, 1, 2), (1, 5, 2), (5, 1, 1), (2, 2, 3), (3, 4, 2), (9, 4, 3)]
    agree(of_rows(ROLLED[name], axes), [list(rng.uniform(0.2, 0.9, (2, *shape[:axes]))) for shape in shapes])


def test_rows_on_a_ring_are_read_where_they_are() -> None:
    """Neither a step nor its adjoint copies rows, nor keeps them in arrays of their own."""
    f, point = of_rows(ROLLED["neighbours"], 2), [np.ones((9, 9))] * 2
    grid = hyad.model(f"(fn [#^ (Mat n m) u] (ifold (fn [u t] {ROLLED['five points']}) u 10))", namespace={"np": np})
    copies = [hyad.compile(grid, args=point[:1], without=w).source.count("memcpy") for w in ((), "fuse")]
    assert copies[0] <= 2 < copies[1]  # the state's
    gradient = hyad.compile(hyad.grad(f, wrt=(0, 1)), args=point)
    assert additions(gradient) == 0


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


def test_adjoints_that_a_branch_chooses_are_not_added_to_zeros() -> None:
    """Upwind, by whole arrays: which neighbour's adjoint it is, each element chooses, and no array is cleared first."""
    f = hyad.model(
        """(fn [#^ (Vec n) u nu]
          (sum (square (ifold (fn [u t]
            (let [left (np.roll u 1)  right (np.roll u -1)  slope (np.where (> u 0.0) (- u left) (- right u))]
              (+ u (* 0.2 (- (* nu (+ left right (* -2.0 u))) (* u slope)))))) u 3))))""",
        namespace={"np": np},
    )
    for wrt in (("u", "nu"), ("u",)):
        assert "memset" not in hyad.show(hyad.grad(f, wrt=wrt), "c").partition("{")[2]
    for n in (1, 2, 3, 4, 9):
        hyad.check_grad(f, (np.random.default_rng(n).normal(size=n), 0.1))


def test_what_is_added_several_times_is_added_once() -> None:
    """The terms of an adjoint in one iteration are one sum, which needs no zeros first."""
    f = hyad.model(
        "(fn [#^ (Vec n) u #^ (Vec n) w] (sum (build n (fn [i] (* (sin (get u i)) (- (get w i) (exp (get u i))))))))",
        namespace={},
    )
    g = hyad.grad(f, wrt=("u", "w"))
    assert "memset" not in hyad.show(g, "c") and "add-at" not in {
        x.op.name for x in all_binds(g.optimised(g.specs()).body) if type(x.op) is Prim
    }


def test_what_a_program_adds_twice_is_added_in_its_order() -> None:
    f = hyad.model(
        """(fn [#^ (Vec n) w #^ (Vec n) u #^ (Vec n) v]
          (let [a (* 1.0 w)]
            (for [i (range n)]
              (set-at! a i (+ (get a i) (get u i)))
              (set-at! a i (+ (get a i) (get v i))))
            (sum a)))""",
        namespace={},
    )
    one = np.ones(3)
    assert hyad.compile(f)(1e16 * one, one, one) == hyad.run(f, 1e16 * one, one, one) == 3e16
