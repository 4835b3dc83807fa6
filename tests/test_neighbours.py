"""Adjoints of stencils on grids: each element takes what its neighbours would add to it, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import hyad
from hyad.core import Loop, Prim, all_binds
from memoised import compile, results

BORDER = "(or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1)))"
SUM = "(+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))"
#: An element after a step, by its place and the grid before, ``u``.
GRIDS = {
    "five points": f"(if {BORDER} (get u i j) (+ (get u i j) (* 0.1 (- {SUM} (* 4.0 (get u i j))))))",
    "border of zeros": f"(if {BORDER} 0.0 (* 0.2 (- {SUM} (get u i j))))",
    "nine points": f"""(if {BORDER} (* 0.5 (get u i j))
      (* 0.1 (+ (get u (- i 1) (- j 1)) {SUM} (* 3.0 (get u (+ i 1) (- j 1))) (get u (+ i 1) (+ j 1)))))""",
    "upwind": "(if (or (= i 0) (= j 0)) (get u i j) (- (* 0.7 (get u i j)) (* 0.2 (get u (- i 1) j))))",
    "downwind": "(if (= i (- n 1)) 0.5 (* 0.4 (+ (get u i j) (get u (+ i 1) j))))",
    "two away": """(if (or (< i 2) (> i (- n 3))) (get u i j)
      (- (* 0.3 (get u (- i 2) j)) (+ (get u (- i 1) j) (* 0.2 (get u (+ i 2) j)))))""",
    "no border": "(* 0.3 (+ (get u i j) (* (get u i j) (get u (min (+ i 1) (- n 1)) j))))",
}


def stepped(step: str, steps: int = 3) -> hyad.Model:
    text = f"""(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j] {step}))) u {steps})))))"""
    return hyad.model(text, namespace={})


def grids(*shapes: tuple[int, ...]) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(2)
    return [[rng.uniform(0.2, 0.9, shape)] for shape in shapes]


SHAPES = [(1, 1), (1, 5), (5, 1), (2, 2), (3, 3), (3, 9), (9, 3), (4, 4), (5, 6), (4, 11), (11, 4), (12, 13)]


def agree(gradient: hyad.Model, points: Sequence[Sequence]) -> None:
    """A gradient with the pass and without it; the latter has been made by another way."""
    for point in points:
        plain = results(gradient, point, without="neighbours")
        for target in ("c", "python"):
            for one, other in zip(results(gradient, point, target=target), plain):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def taken(gradient: hyad.Model, point: Sequence) -> bool:
    return "neighbours" in {step.name for step in hyad.explain(gradient, args=point).steps}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", GRIDS)
def test_a_grid(name: str) -> None:
    """Of any size, down to those that have no element without one at the edge around it."""
    f = stepped(GRIDS[name])
    points = grids(*SHAPES)
    assert taken(hyad.grad(f), points[-1]) == (name != "no border")  # what is kept inside is no shift
    agree(hyad.grad(f), points)
    assert hyad.check_grad(f, points[8])


def additions(f: hyad.Model, point: Sequence, **how: object) -> int:
    program = compile(f, args=point, **how).program
    return sum(type(x.op) is Prim and x.op.name == "add-at" for x in all_binds(program.body))


@pytest.mark.parametrize("name", ["five points", "border of zeros", "nine points"])
def test_what_is_left(name: str) -> None:
    """Nothing is added to an array, nor cleared; the rows between the first and the last ones are one loop without
    branches."""
    gradient, (point,) = hyad.grad(stepped(GRIDS[name])), grids((9, 9))
    assert additions(gradient, point, without="neighbours") > 0
    assert additions(gradient, point) == 0
    program = compile(gradient, args=point).program
    assert not any(type(x.op) is Prim and x.op.name == "zeros" for x in all_binds(program.body))
    inner = [x.op for x in all_binds(program.body) if type(x.op) is Loop]
    inner = [x for x in inner if all(type(y.op) is Prim for y in x.body.binds)]
    reads = [sum(y.op.name == "get" for y in x.body.binds) for x in inner]
    assert max(reads) == (7 if name == "nine points" else 5)


def test_other_arrays_of_the_same_loops() -> None:
    """What else gets an element in each iteration is made in the same loops, and a sum in loops of its own."""
    text = f"""(fn [#^ (Mat n m) u #^ (Mat n m) k c] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j]
        (if {BORDER} (get u i j) (+ (* c (get u i j)) (* 0.1 (get k i j) {SUM})))))) u 3)))))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(3)
    points = [[*rng.uniform(0.2, 0.9, (2, *shape)), 0.8] for shape in ((2, 2), (3, 7), (5, 5), (8, 6))]
    gradient = hyad.grad(f, wrt=("u", "k", "c"))
    assert taken(gradient, points[0])
    agree(gradient, points)
    assert additions(gradient, points[-1]) == 0
    assert hyad.check_grad(f, points[2])


def test_two_fields() -> None:
    """Each gets something from its own neighbours and from the other's."""
    text = """(fn [#^ (Mat n m) h #^ (Mat n m) v] (let [n (len h) m (len (get h 0))]
      (let [#(h v) (ifold (fn [#(h v) t]
            #((build [n m] (fn [i j] (if (= i 0) (get h i j)
                (- (get h i j) (* 0.1 (- (get v i j) (get v (- i 1) j)))))))
              (build [n m] (fn [i j] (if (or (= i (- n 1)) (= j (- m 1))) 0.0
                (- (get v i j) (* 0.2 (+ (get h (+ i 1) j) (get h i (+ j 1)))))))))) #(h v) 4)]
        (+ (sum (square h)) (sum (* h v))))))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(4)
    points = [list(rng.uniform(0.2, 0.9, (2, *shape))) for shape in ((1, 1), (2, 3), (3, 3), (7, 5), (6, 9))]
    gradient = hyad.grad(f, wrt=(0, 1))
    assert taken(gradient, points[0])
    agree(gradient, points)
    assert hyad.check_grad(f, points[3])


def test_a_state_kept_for_a_step() -> None:
    """The wave equation: the adjoint of the state before is stored where no neighbour adds to it."""
    text = f"""(fn [#^ (Mat n m) u c] (let [n (len u) m (len (get u 0))]
      (sum (square (get (ifold (fn [#(u before) t] #((build [n m] (fn [i j] (if {BORDER} 0.0
        (+ (- (* 2.0 (get u i j)) (get before i j)) (* c (- {SUM} (* 4.0 (get u i j)))))))) u)) #(u u) 5) 0)))))"""
    f = hyad.model(text, namespace={})
    points = [[*point, 0.1] for point in grids((1, 2), (3, 3), (4, 6), (8, 7))]
    for wrt in ("u", ("u", "c")):
        gradient = hyad.grad(f, wrt=wrt)
        assert taken(gradient, points[0])
        agree(gradient, points)
    assert hyad.check_grad(f, points[2])


@pytest.mark.parametrize("rows, step", [(2, "(get u (+ i 2) (+ j 1))"), (4, "(* 0.5 (get u (+ i 1) j))")])
def test_inner_elements_alone(rows: int, step: str) -> None:
    """The array that gets the sums has more rows and columns than the loops, or more than get anything."""
    text = f"""(fn [#^ (Mat n m) u #^ (Mat n m) w] (let [n (len u) m (len (get u 0))]
      (sum (build [(- n {rows}) (- m 2)] (fn [i j] (* (get w i j)
        (- (+ (get u i (+ j 1)) {step} (get u (+ i 1) j)) (* 0.3 (get u (+ i 1) (+ j 2))))))))))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(5)
    shapes = [(rows + p, 2 + q) for p, q in ((0, 0), (0, 4), (1, 1), (2, 2), (3, 5), (6, 3), (8, 9))]
    points = [list(rng.uniform(0.2, 0.9, (2, *shape))) for shape in shapes]
    assert taken(hyad.grad(f), points[0])
    agree(hyad.grad(f), points)
    assert hyad.check_grad(f, points[4])


@pytest.mark.parametrize("rows", ["k", "(- n 1)"])
def test_an_array_of_other_sizes(rows: str) -> None:
    """Of how many rows is not known, or fewer than the loops have: what gets nothing is not touched."""
    text = f"""(fn [#^ (Mat n m) u #^ (Mat k m) w] (let [n (len u) m (len (get u 0)) k (len w)
      v (build [{rows} m] (fn [i j] (* 2.0 (get w i j))))]
      (sum (build [n m] (fn [i j] (* (get u i j)
        (if (or (= i 0) (= i (- n 1))) 0.0 (+ (get v (- i 1) j) (* 0.5 (get v i j))))))))))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(6)
    points = [[rng.uniform(0.2, 0.9, (n, m)), rng.uniform(0.2, 0.9, (n - 1, m))] for n, m in ((2, 1), (5, 6), (9, 7))]
    gradient = hyad.grad(f, wrt=(0, 1))
    assert not taken(gradient, points[0])
    agree(gradient, points)


def test_what_is_added_reads_places_kept_inside() -> None:
    """The larger or smaller of two indices is one of them where that is known, and not whether it is the first."""
    text = """(fn [#^ (Mat n m) u #^ (Mat n m) w] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j] (if (= i 0) (get u i j)
        (+ (get u i j) (* (get w (max 1 (min i (- n 2))) j) (get u (- i 1) j))))))) u 3)))))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(7)
    points = [list(rng.uniform(0.2, 0.9, (2, *shape))) for shape in ((3, 3), (4, 2), (6, 5), (9, 4))]
    gradient = hyad.grad(f, wrt="u")
    assert taken(gradient, points[0])
    agree(gradient, points)
    assert hyad.check_grad(f, points[2])


def test_three_dimensions() -> None:
    """Planes add to planes, and rows to rows."""
    border = "(or (= i 0) (= j 0) (= k 0) (= i (- n 1)) (= j (- m 1)) (= k (- l 1)))"
    around = " ".join(
        f"(get u {i} {j} {k})"
        for i, j, k in (
            *(("(- i 1)", "j", "k"), ("(+ i 1)", "j", "k"), ("i", "(- j 1)", "k")),
            *(("i", "(+ j 1)", "k"), ("i", "j", "(- k 1)"), ("i", "j", "(+ k 1)")),
        )
    )
    text = f"""(fn [#^ (Arr Real n m l) u] (let [n (len u) m (len (get u 0)) l (len (get u 0 0))]
      (sum (square (ifold (fn [u t] (build [n m l] (fn [i j k]
        (if {border} (get u i j k) (+ (get u i j k) (* 0.1 (- (+ {around}) (* 6.0 (get u i j k)))))))))
        u 2)))))"""
    f = hyad.model(text, namespace={})
    points = grids((1, 2, 3), (3, 3, 3), (4, 5, 3), (5, 4, 6), (3, 6, 7), (7, 6, 5))
    assert taken(hyad.grad(f), points[0])
    agree(hyad.grad(f), points)
    assert additions(hyad.grad(f), points[-1]) == 0


def test_what_is_left_alone() -> None:
    """What is dear, or depends on more than the place, or is the user's own scatter."""
    dear = f"(if {BORDER} (get u i j) (sin (* (exp (get u (- i 1) j)) (tanh (get u (+ i 1) j)))))"
    asks = f"(if {BORDER} (get u i j) (if (> (get u i j) 0.5) (get u (- i 1) j) (get u (+ i 1) j)))"
    for step in (dear, asks):
        f, (point,) = stepped(step), grids((6, 7))
        assert not taken(hyad.grad(f), point)
        assert hyad.check_grad(f, point)
    text = """(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
      (ifold (fn [a i] (ifold (fn [a j] (add-at (add-at a i j (get u i j)) (+ i 1) j 2.0)) a m))
        (zeros [(+ n 1) m]) n)))"""
    f, (point,) = hyad.model(text, namespace={}), grids((5, 6))
    assert not taken(f, point)
    (made,) = results(f, point)
    expected = np.zeros((6, 6))
    expected[:-1] += point[0]
    expected[1:] += 2.0
    np.testing.assert_allclose(made, expected, rtol=1e-15)


def random_step(rng: np.random.Generator) -> str:
    """A weighted sum of elements around an element, not all of them alone, where they are there."""
    far = sorted({tuple(rng.integers(-2, 3, 2).tolist()) for _ in range(rng.integers(2, 6))})

    def element(i: int, j: int) -> str:
        return f"(get u (+ i {i}) (+ j {j}))"

    terms = [f"(* {rng.uniform(-0.5, 0.5):.2f} {element(*at)})" for at in far]
    terms += [f"(* 0.1 {element(*far[0])} {element(*far[-1])})"] * int(rng.integers(2))
    tests = ["(= i 0)"] if rng.integers(2) else []
    for name, size, shifts in (("i", "n", [i for i, _ in far]), ("j", "m", [j for _, j in far])):
        low, high = -min(0, *shifts), max(0, *shifts)
        tests += [f"(< {name} {low})"] * (low > 0) + [f"(>= {name} (- {size} {high}))"] * (high > 0)
    border = rng.choice(["0.0", "(get u i j)", "(* 2.0 (get u i j))"])
    return f"(if (or {' '.join(tests)} False) {border} (+ {' '.join(terms)}))"


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(6))
def test_random_stencils(seed: int) -> None:
    f = stepped(random_step(np.random.default_rng(seed)), 2)
    points = grids((2, 3), (4, 4), (5, 7), (7, 5), (9, 9))
    agree(hyad.grad(f), points)
    assert hyad.check_grad(f, points[2])


@pytest.mark.parametrize("name", ["five points", "nine points", "upwind"])
def test_threads(name: str) -> None:
    """Rows do not wait for each other then, and two threads take half of them each."""
    gradient = hyad.grad(stepped(GRIDS[name]))
    for point in grids((3, 3), (40, 50), (65, 33)):
        (one,), (two,), (again,) = (results(gradient, point, threads=threads) for threads in (1, 2, 2))
        np.testing.assert_allclose(one, two, rtol=1e-14)
        np.testing.assert_array_equal(two, again)
