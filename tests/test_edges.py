"""First and last iterations apart, a loop for each side of a branch, and sums for each element of a row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Check, If, Loop, Prim, Program, all_binds
from hyad.passes.edges import LONGEST, decides
from hyad.passes.shifts import shifts
from hyad.plain_python import python_callable
from hyad.program.dead import dead_code
from hyad.program.printer import print_program

OFF = ("edges", "shifts", "neighbours")
#: Which adds up the terms of an element that it finds together first, whatever makes these.
ALONE = ("one-addition",)
PLAIN = (*OFF, "split")  # which takes a loop apart at both ends where nothing else does
SIZES = (1, 2, 3, 4, 5, 6, 9, 17, 40)

#: One step of each; ``n`` is the length of ``v``.
STEPS = {
    "first": "(if (= i 0) (get v 0) (* (get v i) (get v (- i 1))))",
    "last": "(if (!= i (- n 1)) (+ (sin (get v i)) (get v (+ i 1))) (get v i))",
    "both": "(if (or (= i 0) (= i (- n 1))) (get v i) (- (+ (get v (- i 1)) (get v (+ i 1))) (* 1.5 (get v i))))",
    "inside": "(if (and (> i 0) (< i (- n 1))) (* (get v (- i 1)) (get v (+ i 1))) (* 0.5 (get v i)))",
    "nested": "(if (< i 1) 0.3 (if (>= i (- n 1)) (get v 0) (+ (get v (- i 1)) (* 0.2 (get v i)))))",
    "two of three": "(+ (if (> i 0) (get v (- i 1)) 0.0) (* 2.0 (get v i)) (if (< i (- n 1)) (get v (+ i 1)) 0.0))",
    "wide": "(if (or (< i 2) (> i (- n 3))) (get v i) (+ (get v (- i 2)) (* 0.3 (get v (+ i 2))) (get v (+ i 1))))",
    "dear terms": """(if (or (= i 0) (= i (- n 1))) 0.0
      (+ (get v i) (* (get v i) (/ (- (get v (+ i 1)) (sin (get v (- i 1)))) (+ 1.5 (get w i))))))""",
    "with another state": "(if (= i 0) (get v 0) (+ (* 0.1 (get w i)) (* (get v (- i 1)) (get v i) (get v i))))",
}


def stepped(step: str) -> str:
    return f"""(fn [#^ (Vec n) v #^ (Vec n) w] (let [n (len v)]
      (sum (square (ifold (fn [v t] (build n (fn [i] {step}))) v 3)))))"""


GRID = """(fn [#^ (Mat n m) u] (let [n (len u) m (len (get u 0))]
  (sum (square (ifold (fn [u t] (build [n m] (fn [i j] STEP))) u 3)))))"""

GRIDS = {
    "a fixed border": """(if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1))) (get u i j)
      (+ (get u i j) (* 0.1 (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
        (* 4.0 (get u i j))))))""",
    "nine points": """(if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1))) 0.0
      (+ (* (get u (- i 1) (- j 1)) (get u i j)) (* 0.5 (get u (- i 1) (+ j 1))) (get u (+ i 1) (- j 1))
        (* 0.25 (get u (+ i 1) (+ j 1)))))""",
    "edges that nothing flows through": """(let [l (if (> j 0) (get u i (- j 1)) (get u i j))
      r (if (< j (- m 1)) (get u i (+ j 1)) (get u i j))] (+ (get u i j) (* 0.2 (- (+ l r) (* 2.0 (get u i j))))))""",
    "upwind": "(if (= j 0) (get u i 0) (- (get u i j) (* 0.3 (get u i j) (- (get u i j) (get u i (- j 1))))))",
    "flows through four sides": """(if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1))) (get u i j)
      (let [flow (fn [r s] (* (+ 0.5 (square (get u i j)) (exp (get u r s))) (- (get u r s) (get u i j))))]
        (+ (get u i j) (* 0.1 (+ (flow (- i 1) j) (flow (+ i 1) j) (flow i (- j 1)) (flow i (+ j 1)))))))""",
}


def model(text: str) -> hyad.Model:
    return hyad.model(text, namespace={})


def innermost(program: Program) -> list[Loop]:
    loops = [x.op for x in all_binds(program.body) if type(x.op) is Loop]
    return [loop for loop in loops if not any(type(x.op) is Loop for x in all_binds(loop.body))]


def branches(f: Any) -> int:
    return sum(type(x.op) is If for loop in innermost(f.program) for x in all_binds(loop.body))


def same(f: Any, args: list, points: list) -> tuple[Any, Any]:
    """A function with and without these passes. The order of sums stays, to the last bit; in loops without branches
    other passes find other terms to collect, and a C compiler others to round at once."""
    ways = ((), OFF[1:], PLAIN)
    made, branched, plain = (hyad.compile(f, args=args, target="python", without=(*ALONE, *w)) for w in ways)
    compiled = hyad.compile(f, args=args)
    for point in points:
        found = made(*point)
        np.testing.assert_array_equal(found, branched(*point))
        for other in (plain, compiled):
            np.testing.assert_allclose(found, other(*point), rtol=1e-12, atol=1e-13)
    return made, plain


@pytest.mark.some(10)
@pytest.mark.parametrize("name", STEPS)
def test_a_row(name: str) -> None:
    rng = np.random.default_rng(1)
    points = [list(rng.uniform(0.5, 1.5, (2, n))) for n in SIZES if n > 3 or name != "wide"]
    f = model(stepped(STEPS[name]))
    for g in (f, hyad.grad(f)):
        made, plain = same(g, points[-1], points)
        assert branches(plain) and (name == "wide" or not branches(made))
    assert hyad.check_grad(f, points[5])


@pytest.mark.some(10)
@pytest.mark.parametrize("name", GRIDS)
def test_a_grid(name: str) -> None:
    rng = np.random.default_rng(2)
    shapes = [(1, 1), (1, 5), (5, 1), (2, 3), (3, 2), (3, 3), (4, 7), (6, 17), (5, 40)]
    points = [[rng.uniform(0.5, 1.5, shape)] for shape in shapes]
    f = model(GRID.replace("STEP", GRIDS[name]))
    for g in (f, hyad.grad(f)):
        _, plain = same(g, points[-1], points)
        by_rows = hyad.compile(g, args=points[-1], target="python", without="neighbours")
        assert branches(plain) and not branches(by_rows)
    assert hyad.check_grad(f, points[6])


#: Neighbours that are not there: those of the border itself, or nothing.
OUTSIDE = {
    "the border's own": "(get u (max 0 (min i (- n 1))) (min (max j 0) (- m 1)))",
    "nothing": "(if (or (< i 0) (< j 0) (>= i n) (>= j m)) 0.0 (get u i j))",
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_grid_with_neighbours_outside(name: str) -> None:
    """First and last rows are apart as well as first and last columns: all others do not ask for their place."""
    step = "(+ (at i j) (* 0.1 (at i j) (+ (at (- i 1) j) (at (+ i 1) j) (at i (- j 1)) (at i (+ j 1)))))"
    f = model(GRID.replace("STEP", f"(let [at (fn [i j] {OUTSIDE[name]})] {step})"))
    rng = np.random.default_rng(4)
    points = [[rng.uniform(0.5, 1.5, s)] for s in [(1, 1), (1, 5), (2, 1), (2, 2), (3, 3), (4, 7), (5, 40), (40, 5)]]
    for g in (f, hyad.grad(f)):
        made = hyad.compile(g, args=points[-1])
        plain, by_columns = (hyad.compile(g, args=points[-1], target="python", without=w) for w in (OFF, "shifts"))
        for point in points:
            for other in (plain, by_columns, lambda u: hyad.run(g, u)):
                np.testing.assert_allclose(made(*point), other(*point), rtol=1e-12, atol=1e-13)
        if g is f:
            steps = [loop for loop in innermost(made.program) if names(loop).count("get") >= 5]
            assert len(steps) == 2 and [any(asks(x.op) for x in all_binds(s.body)) for s in steps] == [True, False]
    assert hyad.check_grad(f, points[5])


def names(loop: Loop) -> list[str]:
    return [x.op.name for x in all_binds(loop.body) if type(x.op) is Prim]


def asks(op: Any) -> bool:
    return type(op) is If or type(op) is Prim and op.name in ("min", "max", "<", ">=", "select")


def test_a_border_is_short() -> None:
    """A row of the border is as the model has it: two copies of a step in the C, not one for each corner and side."""
    step = "(+ (at i j) (* 0.1 (at i j) (+ (at (- i 1) j) (at (+ i 1) j) (at i (- j 1)) (at i (+ j 1)))))"
    f = model(GRID.replace("STEP", f"(let [at (fn [i j] {OUTSIDE['nothing']})] {step})"))
    for g in (f, hyad.grad(f)):
        lines = [hyad.compile(g, args=[np.ones((9, 9))], without=w).source.count("\n") for w in ((), "edges")]
        assert lines[0] < 2.2 * lines[1]


def test_a_row_whose_border_stands_for_what_is_outside() -> None:
    text = """(fn [#^ (Vec n) v] (let [n (len v)] (sum (square (ifold (fn [v t] (build n (fn [i]
      (* (get v (max 0 (- i 1))) (get v (min (+ i 1) (- n 1))))))) v 3)))))"""
    f = model(text)
    made = hyad.compile(f, args=[np.ones(9)])
    assert not any(asks(x.op) for loop in innermost(made.program) for x in loop.body.binds)
    g = hyad.compile(hyad.grad(f), args=[np.ones(9)])
    for n in SIZES:
        v = np.linspace(0.7, 1.3, n)
        np.testing.assert_allclose(made(v), hyad.run(f, v), rtol=1e-12)
        np.testing.assert_allclose(g(v), hyad.run(hyad.grad(f), v), rtol=1e-12)


def test_sums_go_on_from_iteration_to_iteration() -> None:
    """Accumulators come out of the first iteration, go through the others and into the last one."""
    text = """(fn [#^ (Vec n) v] (let [n (len v)]
      (map (fn [z] (ifold (fn [s i] (if (or (= i 0) (= i (- n 1))) (+ s (* 0.5 z (get v i))) (* s (+ z (get v i)))))
        0.0 n)) v)))"""
    for target in ("c", "python"):
        f = hyad.compile(model(text), target=target)
        plain = hyad.compile(model(text), target=target, without=OFF)
        for n in (0, 1, 2, 3, 11):
            v = np.linspace(0.2, 1.4, n)
            np.testing.assert_array_equal(f(v), plain(v))


def test_dear_terms_are_stored_before_they_are_summed() -> None:
    """No sine and no quotient is computed for each of the elements that it comes to."""
    point = [np.linspace(0.5, 1.5, 9)] * 2
    f = hyad.grad(model(stepped(STEPS["dear terms"])), wrt=(0, 1))
    calls = [hyad.compile(f, args=point, without=w).source.count("cos(") for w in ((), "shifts")]
    assert calls[0] == calls[1] and "shifts" in [s.name for s in hyad.explain(f, args=point).steps]


def test_a_short_loop_stays_whole() -> None:
    f = model("(fn [#^ (Mat n 6) u] (map (fn [r] (build 6 (fn [i] (if (= i 0) (get r 0) (get r (- i 1)))))) u))")
    assert "edges" not in [s.name for s in hyad.explain(f, args=[np.ones((3, 6))]).steps]


def test_no_element_gets_its_terms_in_another_order() -> None:
    """Terms of very different sizes, of which another order would lose some."""
    f = model(GRID.replace("STEP", GRIDS["a fixed border"]))
    rng = np.random.default_rng(3)
    u = 10.0 ** rng.uniform(-12, 12, (7, 23)) * rng.choice([-1, 1], (7, 23))
    ways = {"neighbours": ALONE, "shifts": (*ALONE, "neighbours"), "": (*ALONE, *OFF)}
    made = [hyad.compile(hyad.grad(f), args=[u], target="python", without=w) for w in ways.values()]
    for name, gradient in zip(ways, made):
        np.testing.assert_array_equal(gradient(u), made[-1](u))
        assert not name or name in [s.name for s in hyad.explain(hyad.grad(f), args=[u], without=ways[name]).steps]


def test_each_element_of_a_row_once() -> None:
    """A sum for each element of a row: no loop adds to one element twice."""
    u = np.ones((9, 9))
    f = hyad.compile(hyad.grad(model(GRID.replace("STEP", GRIDS["a fixed border"]))), args=[u])
    assert max(_updates(loop) for loop in innermost(f.program)) <= 3  # with few columns it is as it was


def _updates(loop: Loop) -> int:
    return sum(x.op.name == "add-at" for x in loop.body.binds if hasattr(x.op, "name"))


def test_nothing_is_cleared_or_copied_that_a_loop_makes_whole() -> None:
    """The adjoints of a chain are stored, but for the last element; what is added to an array that is needed as it was
    makes a new one."""
    slope = "(build n (fn [i] (if (= i 0) (get x 0) (* (get x i) (get Y (- i 1))))))"
    step = f"""(fn [y t] (let [k {slope.replace("Y", "y")} z (map (fn [a b] (+ a (* 0.3 b))) y k)
      l {slope.replace("Y", "z")} u (map (fn [a b] (+ a (* 0.3 b))) y l) m {slope.replace("Y", "u")}]
      (map (fn [y a b c] (+ y (* 0.1 (+ a (* 2.0 b) c)))) y k l m)))"""
    text = f"(fn [#^ (Vec n) x] (let [n (len x) end (ifold {step} (zeros n) 5)] (get end (- n 1))))"
    f = hyad.grad(model(text))
    rng = np.random.default_rng(4)
    points = [[rng.uniform(0.5, 1.5, n)] for n in SIZES]
    made, plain = (hyad.compile(f, args=points[0], target="python", without=w) for w in ((), "fills"))
    assert "fills" in [s.name for s in hyad.explain(f, args=points[0]).steps]
    adds = [sum(getattr(x.op, "name", "") == "add-at" for x in all_binds(g.program.body)) for g in (made, plain)]
    assert adds[0] < adds[1]
    compiled = hyad.compile(f, args=points[0])
    for point in points:
        np.testing.assert_array_equal(made(*point), plain(*point))
        np.testing.assert_allclose(compiled(*point), plain(*point), rtol=1e-12)


def test_a_compiler_is_told_that_rows_do_not_overlap() -> None:
    """Also of arrays that change places, and of rows above and below."""
    f = hyad.compile(
        hyad.grad(model(GRID.replace("STEP", GRIDS["a fixed border"]))), args=[np.ones((9, 9))], without="neighbours"
    )
    text = f.cfunction.source
    loops = [line for line in text.splitlines() if "HYAD_APART" in line and "define" not in line]
    assert len(loops) >= 4
    after = text[text.index("u_bar[(i + 1)*m") :].split("for (")[0]
    before = text[: text.index("u_bar[(i + 1)*m")].rsplit("HYAD_APART", 1)[1]
    assert "u_bar[(i - 1)*m" in after and before.count("for (") == 1


RING = """(fn [#^ (Vec n) u #^ Int steps]
  (let [n (len u)]
    (sum (square (ifold (fn [u t] (build n (fn [i]
           (+ (get u i) (* 0.1 (- (get u (% (+ i 1) n)) (sin (get u LEFT))))))))
      u steps)))))"""


@pytest.mark.parametrize("left", ["(% (- i 1) n)", "(% (- (+ i n) 1) n)"])
def test_the_ends_of_a_ring_are_apart(left: str) -> None:
    """Between them a neighbour is the next element, which is read as such."""
    f = hyad.model(RING.replace("LEFT", left), namespace={})
    made, plain = (hyad.compile(f, args=(np.ones(3), 3), target="python", without=w) for w in ((), "edges"))
    loops = [[x.op for x in all_binds(g.program.body) if type(x.op) is Loop] for g in (made, plain)]
    choices = [sum(type(b.op) is Prim and b.op.name == "select" for x in of for b in x.body.binds) for of in loops]
    assert choices == [0, 2]
    g = hyad.compile(hyad.grad(f, wrt=0), args=(np.ones(3), 3), target="python")

    def stepped(u: np.ndarray, steps: int) -> float:
        for _ in range(steps):
            u = u + 0.1 * (np.roll(u, -1) - np.sin(np.roll(u, 1)))
        return float((u * u).sum())

    for n in (0, 1, 2, 3, 9):
        u = np.linspace(0.5, 2.0, n)
        for steps in (0, 1, 3):
            assert made(u, steps) == pytest.approx(stepped(u, steps), rel=1e-13)
            slopes = [(stepped(u + 1e-6 * e, steps) - stepped(u - 1e-6 * e, steps)) / 2e-6 for e in np.eye(n)]
            np.testing.assert_allclose(g(u, steps), slopes, rtol=1e-7, atol=1e-8)


#: An iteration's sums in ``a``, of which ``c`` is the last, what else it reads for the state ``s``, and its results.
SUMS = {
    "neighbours": ("(add-at (add-at a i u) (+ i 1) (* 2.0 u))", "0.0", "c", True),
    "three, in no order": ("(add-at (add-at (add-at a i u) (+ i 2) 3.0) (+ i 1) u)", "0.0", "c", True),
    "every second": ("(add-at (add-at a (* 2 i) u) (+ (* 2 i) 1) u)", "0.0", "c", False),
    "backwards": ("(add-at (add-at a (- n i) u) (- (+ n 1) i) u)", "0.0", "c", False),
    "nobody knows how far": ("(add-at (add-at a i u) (+ i (% k 3)) u)", "0.0", "c", False),
    "far": ("(add-at (add-at a i u) (+ i 20) u)", "0.0", "c", False),
    "one element twice": ("(add-at (add-at a i u) i (* 3.0 u))", "0.0", "c", False),
    "of a state": ("(add-at (add-at a i u) (+ i 1) s)", "0.0", "c", False),
    "read after": ("(add-at (add-at a i u) (+ i 1) u)", "(get c 3)", "c", False),
    "read before": ("(add-at (add-at a i u) (+ i 1) u)", "(get a 3)", "c", False),
    "read between": ("(let [e (add-at a i u)] (set! r e) (add-at e (+ i 1) u))", "(get (deref r) 3)", "c", False),
    "seen in each iteration": ("(add-at (add-at a i u) (+ i 1) u)", "0.0", "c c", False),
    "of another array": ("(add-at (add-at z i u) (+ i 1) u)", "0.0", "c", False),
    "of another array, beside it": ("(add-at (add-at z i u) (+ i 1) u)", "(get a 3)", "c", False),
    "beside a branch": ("(add-at (add-at a i u) (+ i 1) u)", "(if (> u 1.0) (sin u) 0.0)", "c", True),
    "of a branch": ("(let [w (if (> u 1.0) (sin u) u)] (add-at (add-at a i w) (+ i 1) u))", "0.0", "c", True),
    "beside a loop": ("(add-at (add-at a i u) (+ i 1) u)", "(ifold (fn [s k] (* s u)) 1.0 n)", "c", False),
}


@pytest.mark.parametrize("name", SUMS)
def test_which_sums_are_taken_for_each_element(name: str) -> None:
    """Those of neighbours that nothing sees before the end; the others stay as they are."""
    sums, seen, results, taken = SUMS[name]
    state = f"(+ (* 0.5 s) u {seen})"
    body = f"(let [u (get x i) r (ref a) c {sums}] #({results.replace('c', f'c {state}', 1)}))"
    start = "(let [n (len x) z (zeros-of (+ n n 22))]"
    f = model(f"(fn [#^ (Vec n) x #^ Int k] {start} (loop n (fn [i a s] {body}) z 0.0)))")
    check_sums(f, (np.linspace(0.3, 1.9, 11), 2), taken)


@pytest.mark.parametrize(
    "sums, taken",
    [
        ("(add-at (add-at a 1 i u) 1 (+ i 1) 2.0)", True),
        ("(add-at (add-at a i i u) i (+ i 1) 2.0)", False),  # the next iteration's are of another row
        ("(add-at (add-at a 0 i u) 1 (+ i 1) 2.0)", False),  # each of a row of its own
        ("(add-at (add-at (add-at a 1 i u) 0 i 3.0) 1 (+ i 1) 2.0)", True),
        ("(add-at (add-at (add-at a (// n 9) i u) 1 i 0.3) (// n 9) (+ i 1) 2.0)", False),  # of rows that may be one
        ("(add-at (add-at a i (get q i)) (+ i 1) (get q i))", False),  # rows
    ],
)
def test_which_sums_are_taken_of_a_matrix(sums: str, taken: bool) -> None:
    body, rows = f"(fn [a i] (let [u (get x i)] {sums}))", "(build [n (+ n 3)] (fn [i j] (* (get x i) (real j))))"
    f = model(f"(fn [#^ (Vec n) x] (let [n (len x) q {rows}] (ifold {body} (zeros-of (+ n 2) (+ n 3)) n)))")
    check_sums(f, (np.linspace(0.3, 1.9, 11),), taken)


def check_sums(f: hyad.Model, args: tuple[Any, ...], taken: bool) -> None:
    program = dead_code(f.program())
    made = shifts(program)
    assert (made is not program) == taken
    found, wanted = python_callable(made)(*args), hyad.run(f, *args)
    for got, want in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15)


def test_what_inner_iterations_check_is_checked_before_them_where_there_are_some() -> None:
    """A bar between n + 1 conductivities, of which those of its ends are never read."""
    text = """(fn [#^ (Vec n) u #^ (Vec k) c] (build n (fn [i]
      (if (or (= i 0) (= i (- n 1))) (get u i) (* (get c (+ i 1)) (- (get u (+ i 1)) (get u (- i 1))))))))"""
    model = hyad.model(text, namespace={})
    made = hyad.compile(model)
    inner = [b.op for b in all_binds(made.program.body) if type(b.op) is Loop]
    assert inner and not [x for loop in inner for x in all_binds(loop.body) if type(x.op) in (If, Check)]
    for n, k in ((0, 0), (1, 0), (2, 0), (2, 1), (3, 3), (7, 7), (7, 9)):
        u, c = np.sin(np.arange(1.0, n + 1)), np.cos(np.arange(1.0, k + 1))
        wanted = [u[i] if i in (0, n - 1) else c[i + 1] * (u[i + 1] - u[i - 1]) for i in range(n)]
        np.testing.assert_array_equal(made(u, c), wanted)
        np.testing.assert_array_equal(hyad.run(model, u, c), wanted)
    for n, k in ((3, 2), (7, 5)):
        with pytest.raises(hyad.HyadError, match="outside axis 0"):
            made(np.ones(n), np.ones(k))


@pytest.mark.parametrize("target", ["python", "c"])
def test_a_loop_that_fills_nothing_leaves_what_is_before_the_array(target: str) -> None:
    """A count may be negative where an array is shorter than what the loop leaves out at its end."""
    text = "(fn [#^ (Vec n) v #^ Int p] (ifold (fn [s i] (+ s (sin (get v i)))) 0.0 (- (len v) (% p 3))))"
    g = hyad.grad(hyad.model(text, namespace={}), wrt=0)
    point = (np.linspace(0.1, 0.9, 6), 2)
    assert "fills" in [s.name for s in hyad.explain(g, args=point).steps]
    made = hyad.compile(g, args=point, target=target)
    for n in (6, 2, 1, 0):
        for p in range(3):
            v = np.linspace(0.1, 0.9, n)
            np.testing.assert_allclose(made(v, p), [*np.cos(v[: max(0, n - p)]), *[0.0] * min(n, p)], rtol=1e-14)


def test_what_is_added_once_between_the_ends_is_stored() -> None:
    """The adjoint of what comes behind a first element: no zeros that it is added to."""
    path = Path(__file__).parent / "bench" / "problems" / "naive" / "models.hy"
    gradient = hyad.grad(hyad.load(path).alignment, wrt=("alike", "gap"))
    source = hyad.compile(gradient, without="one-place").source
    assert re.search(r"t_bar\[i\] = above_bar\[i \+ 1\];", source)


def test_what_comes_to_a_row_of_zeros_or_a_copy_is_stored() -> None:
    """Sums for each element go where nothing has been cleared or copied before; a short row has no such sums."""
    text = """(fn [#^ (Vec n) u0 #^ (Vec n) k] (let [n (len u0)
      u (ifold (fn [u t] (let [f (build (+ n 1) (fn [i] (if (or (= i 0) (= i n)) 0.0
                 (* (get k i) (- (get u i) (get u (- i 1)))))))]
          (build n (fn [i] (+ (get u i) (* 0.1 (- (get f (+ i 1)) (get f i)))))))) u0 4)] (sum (* u u u))))"""
    f = hyad.grad(model(text), wrt=(0, 1))
    rng = np.random.default_rng(4)
    points = [[rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, n)] for n in (0, *SIZES)]
    made, plain = (hyad.compile(f, args=points[0], target="python", without=w) for w in ((), "shifts"))
    compiled = hyad.compile(f, args=points[0])
    steps = [x.op for x in compiled.program.body.binds if type(x.op) is Loop and x.op.accs]
    assert steps and not any(getattr(x.op, "name", "") == "zeros" for op in steps for x in op.body.binds)
    assert not re.search(r"^        memcpy", compiled.source, re.M)
    for point in points:
        for x, y, z in zip(made(*point), plain(*point), compiled(*point)):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_allclose(z, y, rtol=1e-12, atol=1e-13)


#: What each step makes of coefficients alone, where a border has none.
COEFFICIENTS = {
    "harmonic means": ("(/ (* 2 (get k i) (get k (- i 1))) (+ (get k i) (get k (- i 1))))", "/"),
    "exponentials": ("(exp (* 0.5 (+ (get k i) (get k (- i 1)))))", "exp"),
    "from both sides": ("(if (< i 2) 1.5 (/ (get k i) (+ 1.0 (get k (- i 1)))))", "/"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_what_is_made_of_coefficients_is_made_once(name: str) -> None:
    """Before the steps, and taken through its derivative once after them."""
    made_of, operation = COEFFICIENTS[name]
    text = f"""(fn [#^ (Vec n) u0 #^ (Vec n) k #^ Int steps] (let [n (len u0)
      flux (fn [u] (build (+ n 1) (fn [i] (if (or (= i 0) (= i n)) 0.0 (* {made_of} (- (get u i) (get u (- i 1))))))))]
      (sum (square (ifold (fn [u t] (let [f (flux u)]
        (build n (fn [i] (+ (get u i) (* 0.1 (- (get f (+ i 1)) (get f i)))))))) u0 steps)))))"""
    rng = np.random.default_rng(4)
    points = [[rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, n), s] for n in (0, *SIZES) for s in (0, 1, 3)]
    for f in (model(text), hyad.grad(model(text), wrt=(0, 1))):
        made, plain = (hyad.compile(f, args=points[-1], without=w) for w in ((), "expand"))
        for point in points:
            np.testing.assert_allclose(made(*point), plain(*point), rtol=1e-12, atol=1e-13)
        steps = [x.op for x in made.program.body.binds if type(x.op) is Loop and x.op.accs]
        steps = [op for op in steps if any(type(x.op) is Loop for x in op.body.binds)]
        assert steps
        assert not any(getattr(x.op, "name", "") == operation for op in steps for x in all_binds(op.body))


def test_what_comes_to_a_row_of_zeros_that_is_added_to_another_is_added_there() -> None:
    """The adjoint of a copy: to the last bit what it is where it is added up by itself."""
    text = """(fn [u0 a] (let [u (copy u0) n (len u0)]
      (for [t (range 5)]
        (let [old (copy u)]
          (for [i (range 1 (- n 1))]
            (set-at! u i (+ (get old i) (* a (+ (get old (- i 1)) (get old (+ i 1)) (* -2 (get old i)))))))))
      (sum (* u u u))))"""
    f = hyad.grad(model(text), wrt=0)
    rng = np.random.default_rng(4)
    points = [[rng.uniform(0.5, 1.5, n), 0.3] for n in SIZES]
    made, plain = (hyad.compile(f, args=points[0], target="python", without=w) for w in ((), "shifts"))
    compiled = hyad.compile(f, args=points[0])
    (step,) = [x.op for x in made.program.body.binds if type(x.op) is Loop and x.op.accs][-1:]
    assert any(type(x.op) is If for x in step.body.binds)  # whether the row is long enough
    assert not any(type(x.op) is Loop and not x.op.accs for x in step.body.binds)  # no array of sums
    for point in points:
        np.testing.assert_array_equal(made(*point), plain(*point))
        np.testing.assert_allclose(compiled(*point), plain(*point), rtol=1e-12)


def test_what_comes_to_a_row_as_long_as_a_difference_is_stored() -> None:
    """Of a row of n numbers there are as many differences as are more than 0 of n - 1."""
    f = hyad.grad(model("(fn [c] (sum (square (differences (differences c)))))"))
    points = [[np.random.default_rng(n).normal(size=n)] for n in (*SIZES, 0)]
    made, plain = (hyad.compile(f, args=points[0], target="python", without=w) for w in ((), "shifts"))
    compiled = hyad.compile(f, args=points[0])
    assert not re.search(r"^    memset", compiled.source, re.M)
    for point in points:
        np.testing.assert_array_equal(made(*point), plain(*point))
        np.testing.assert_allclose(compiled(*point), plain(*point), rtol=1e-12)


def test_several_terms_of_one_element_are_gathered() -> None:
    """What comes to the middle of a stencil, from it and from what reacts there, comes in one sum."""
    f = model("""(fn [u v] (let [n (len u)
      lap (fn [a] (build n (fn [i] (- (+ (get a (max 0 (- i 1))) (get a (min (- n 1) (+ i 1)))) (* 2.0 (get a i))))))
      step (fn [s t] (let [#(u v) s  uvv (* u v v)]
        #((+ u (- (* 0.16 (lap u)) uvv) (* 0.035 (- 1.0 u))) (+ v (* 0.08 (lap v)) (- uvv (* 0.095 v))))))]
      (sum (square (snd (ifold step #(u v) 4))))))""")
    g, rng = hyad.grad(f, wrt=("u", "v")), np.random.default_rng(6)
    points = [list(rng.uniform(0.2, 1.0, (2, n))) for n in SIZES]
    made, plain = (hyad.compile(g, args=points[-1], target="python", without=w) for w in ((), "shifts"))
    compiled = hyad.compile(g, args=points[-1])

    def scattered(h: Any) -> int:
        added = [[x.op.name for x in a.body.binds if type(x.op) is Prim] for a in innermost(h.program)]
        return max(names.count("add-at") for names in added)

    assert scattered(made) <= scattered(plain) / 2  # what is left is for rows too short for ends of their own
    for point in points:
        assert hyad.check_grad(f, point, wrt=("u", "v"))
        for one, other, third in zip(made(*point), plain(*point), compiled(*point)):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(third, other, rtol=1e-12, atol=1e-13)


#: Steps whose first and last elements, more than one at an end, read others than those between, and of a grid.
FURTHER = {
    "kept inside": "(+ (get v (max 0 (- i 3))) (* (get v i) (get v (min (- n 1) (+ i 2)))))",
    "branches": "(if (or (< i 3) (>= i (- n 2))) (get v i) (+ (get v (- i 3)) (* 0.3 (get v (+ i 2)))))",
}
FURTHER_GRID = """(+ (get u (max 0 (- i 2)) j) (* (get u i j) (get u (min (- n 1) (+ i 3)) (max 0 (- j 2))))
  (get u i (min (- m 1) (+ j 2))))"""


@pytest.mark.parametrize("name", FURTHER)
def test_more_than_one_at_an_end(name: str) -> None:
    """Three loops: that between asks nothing, of however few elements."""
    f = model(stepped(FURTHER[name]))
    rng = np.random.default_rng(6)
    for g in (f, hyad.grad(f)):
        points = [list(rng.uniform(0.5, 1.5, (2, n))) for n in (1, 2, 3, 4, 5, 6, 7, 9, 20)]
        made, plain = same(g, points[-1], points)
        between = [x for x in innermost(made.program) if not any(map(decides, x.body.binds))]
        assert len(between) > len([x for x in innermost(plain.program) if not any(map(decides, x.body.binds))])
    assert hyad.check_grad(f, points[5])


def test_more_than_one_row_at_an_end() -> None:
    """What comes to an element from several rows comes in another order then, as derivatives' own sums may."""
    f = model(GRID.replace("STEP", FURTHER_GRID))
    rng = np.random.default_rng(7)
    for g in (f, hyad.grad(f)):
        assert "edges" in [s.name for s in hyad.explain(g, args=[np.ones((9, 9))]).steps]
        ways = (("python", ()), ("c", ()), ("python", OFF))
        made, compiled, plain = (hyad.compile(g, way, args=[np.ones((9, 9))], without=w) for way, w in ways)
        for shape in ((1, 1), (1, 5), (5, 1), (2, 3), (4, 3), (5, 4), (6, 7), (4, 12), (12, 4), (9, 9)):
            u = rng.uniform(0.5, 1.5, shape)
            np.testing.assert_allclose(made(u), plain(u), rtol=1e-12)
            np.testing.assert_allclose(compiled(u), plain(u), rtol=1e-12)


#: Elements of both neighbours on a ring, more of them than are written out three times.
LONG = "(+ (get v i) " + " ".join(
    f"(* {k + 1}.0 (exp (* -0.{k + 1} (get v (% (- i 1) n)))) (sin (get v (% (+ i 1) n))))" for k in range(20)
) + ")"  # fmt: skip


def test_the_ends_of_a_long_row_are_one_loop() -> None:
    """Two loops: one that asks for the ends, one for all between that does not."""
    f = model(f"(fn [#^ (Vec n) v] (let [n (len v)] (sum (square (build n (fn [i] {LONG}))))))")
    step = model(f"(fn [#^ (Vec n) v] (let [n (len v)] (build n (fn [i] {LONG}))))")
    rng = np.random.default_rng(8)
    for g in (step, hyad.grad(f)):
        points = [[rng.uniform(0.5, 1.5, n)] for n in (0, 1, 2, 3, 4, 5, 6, 9, 20)]
        made, plain = (hyad.compile(g, "python", args=points[-1], without=w) for w in ((), OFF))
        compiled = hyad.compile(g, args=points[-1])
        for x in points:
            np.testing.assert_allclose(made(*x), plain(*x), rtol=1e-13)
            np.testing.assert_allclose(compiled(*x), plain(*x), rtol=1e-12)
    made, plain = (hyad.compile(step, "python", args=points[-1], without=w) for w in ((), OFF))
    (before,), after = innermost(plain.program), innermost(made.program)
    assert any(map(decides, before.body.binds)) and len(list(all_binds(before.body))) > LONGEST
    assert sorted(any(map(decides, x.body.binds)) for x in after) == [False, True]


@pytest.mark.some(3)
@pytest.mark.parametrize("size", ["n", "64"])
@pytest.mark.parametrize("far", [2, 3, 4])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_neighbours_on_a_ring_that_are_further_away(size: str, far: int, turns: int) -> None:
    """As a stencil of higher order on a periodic domain has them: between the ends there are no remainders, also where
    whole turns are added so that no subscript is negative."""
    i = f"(+ i (* {turns} {size}))" if turns else "i"
    before, after, far_after = (f"(get v (% ({by} {i}) {size}))" for by in (f"+ -{far}", "+ 1", f"+ {far}"))
    text = f"(- {before} (* 8.0 {after}) (sin {far_after}))"
    step = model(f"(fn [#^ (Vec {size}) v] (build {size} (fn [i] {text})))")
    f = model(f"(fn [#^ (Vec {size}) v] (sum (square (build {size} (fn [i] {text})))))")
    rng = np.random.default_rng(9)
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 20) if size == "n" else (64,)
    points = [[rng.uniform(0.5, 1.5, n)] for n in sizes]
    for g in (step, hyad.grad(f)):
        made, plain = (hyad.compile(g, "python", args=points[-1], without=w) for w in ((), OFF))
        compiled = hyad.compile(g, args=points[-1])
        for x in points:
            np.testing.assert_allclose(made(*x), plain(*x), rtol=1e-13)
            np.testing.assert_allclose(compiled(*x), plain(*x), rtol=1e-12)
        assert any(not any(map(decides, x.body.binds)) for x in innermost(made.program))
        assert all(any(map(decides, x.body.binds)) for x in innermost(plain.program))
    for (v,) in points:
        want = np.roll(v, far) - 8 * np.roll(v, -1) - np.sin(np.roll(v, -far))
        np.testing.assert_allclose(hyad.compile(step, args=points[-1])(v), want, rtol=1e-13)


def test_no_loop_runs_a_negative_number_of_times() -> None:
    """As it is printed, of a row shorter than its ends: a loop that makes two rows would not read back."""
    near, far = "(get v (% (- i 2) n))", "(get v (% (+ i 2) n))"
    f = model(f"(fn [#^ (Vec n) v] #((build n (fn [i] (sin {near}))) (build n (fn [i] (* {near} {far})))))")
    made = hyad.compile(f, "python", args=[np.ones(9)])
    again = hyad.compile(model(str(print_program(made.program))), "python", args=[np.ones(9)])
    for n in (1, 2, 3, 4, 5, 9):
        v = np.arange(1.0, n + 1)
        for one, two, want in zip(made(v), again(v), (np.sin(np.roll(v, 2)), np.roll(v, 2) * np.roll(v, -2))):
            np.testing.assert_allclose(one, want, rtol=1e-14)
            np.testing.assert_array_equal(one, two)


def test_a_remainder_by_another_number_stays() -> None:
    """By a smaller one, all along the row."""
    f = model("(fn [#^ (Vec n) v #^ (Vec m) w] (build n (fn [i] (* (get v i) (get w (% (+ i 2) m))))))")
    for n, m in ((1, 1), (5, 2), (9, 9), (9, 4), (3, 8)):
        v, w = np.arange(1.0, n + 1), np.arange(1.0, m + 1)
        np.testing.assert_allclose(hyad.compile(f)(v, w), v * w[(np.arange(n) + 2) % m])


def test_of_long_branches_one_is_left() -> None:
    """A wall on either side, and inside what flows from cell to cell: more is written down than any iteration does."""
    text = """(fn [#^ (Vec n) h #^ (Vec n) hu]
      (let [flux (fn [hl ul hr ur]
              (let [cl (sqrt (* 9.81 hl)) cr (sqrt (* 9.81 hr)) vl (/ ul hl) vr (/ ur hr)
                    a (max (+ (abs vl) cl) (+ (abs vr) cr))]
                [(- (* 0.5 (+ ul ur)) (* 0.5 a (- hr hl)))
                 (- (* 0.5 (+ (* ul vl) (* 0.5 9.81 hl hl) (* ur vr) (* 0.5 9.81 hr hr))) (* 0.5 a (- ur ul)))]))
            f (build (+ n 1) (fn [i] (cond (= i 0) (flux (get h 0) (- (get hu 0)) (get h 0) (get hu 0))
                (= i n) (flux (get h (- n 1)) (get hu (- n 1)) (get h (- n 1)) (- (get hu (- n 1))))
                True (flux (get h (- i 1)) (get hu (- i 1)) (get h i) (get hu i)))))]
        (sum (build n (fn [i] (* (+ (get f (+ i 1) 0) (get f i 1)) (- (get f (+ i 1) 1) (get f i 0))))))))"""
    f = hyad.model(text, namespace={})
    made = hyad.compile(f)
    assert max(len(list(all_binds(x.op.body))) for x in all_binds(f.program(f.specs()).body) if type(x.op) is Loop) > 80
    loops = [x.op for x in all_binds(made.program.body) if type(x.op) is Loop]  # type: ignore[attr-defined]
    assert loops and not any(type(x.op) is If for loop in loops for x in all_binds(loop.body))
    for n in (1, 2, 3, 9, 40):
        args = 1 + 0.1 * np.sin(np.arange(n)), 0.1 * np.cos(np.arange(n))
        assert made(*args) == pytest.approx(hyad.run(f, *args), rel=1e-12)
    assert hyad.check_grad(f, args)
