"""Random programs that change matrices and vectors in place, in loops inside one another: their derivatives, optimised,
against those of the same programs as they are read.

``HYAD_IN_PLACE_PROGRAMS=2000`` draws more, from ``HYAD_PROPERTY_SEED`` on.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import hyad
import oracle

COUNT = int(os.environ.get("HYAD_IN_PLACE_PROGRAMS", "60"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
INDICES = ("k", "i", "j")
INNER = "q"  # an index that has neighbours


class Draw(random.Random):
    """A program over a matrix ``a`` and a vector ``v``, which it changes, and a vector ``w``."""

    def program(self) -> str:
        loops = " ".join(f"(for [k (range n)] {self.body(['k'], self.choice((1, 2, 2)))})" for _ in range(self.one(2)))
        return f"(fn [a v w] (let [n (len v) a (copy a) v (copy v)] {loops} (+ (sum (sin a)) (dot v w))))"

    def one(self, most: int) -> int:
        return min(self.randint(1, most), self.randint(1, most))

    def range(self, around: list[str]) -> str:
        """All indices, those up to an index around it, or those from one on."""
        low = self.choice(["0", *around, *(f"(+ {x} 1)" for x in around)])
        high = self.choice(["n", "n", *around, *(f"(+ {x} 1)" for x in around)])
        return f"(range {low if high == 'n' else 0} {high})"

    def at(self, around: list[str]) -> str:
        if INNER in around and self.random() < 0.5:
            return self.choice([f"(- {INNER} 1)", INNER, f"(+ {INNER} 1)"])
        some = [*3 * around, *(f"(- n 1 {x})" for x in around), *(f"(max 0 (- {x} 1))" for x in around), "0"]
        return self.choice([*some, f"(% (+ {around[0]} {around[-1]}) n)"] if len(around) > 1 else some)

    def element(self, around: list[str]) -> str:
        of_a, of_v = f"(get a {self.at(around)} {self.at(around)})", f"(get v {self.at(around)})"
        return self.choice([of_a] * 4 + [of_v] * 2 + ["0.7", f"(get w {self.at(around)})"])

    def number(self, around: list[str], depth: int = 2) -> str:
        if depth == 0 or self.random() < 0.25:
            return self.element(around)
        x, y = self.number(around, depth - 1), self.element(around)
        over, chosen = f"(/ {x} (+ 1.5 (square {y})))", f"(if (> {y} 0.1) {x} {self.element(around)})"
        two = [f"({op} {x} {self.number(around, depth - 1)})" for op in "**+-"]
        return self.choice([f"(sin {x})", f"(tanh {x})", over, chosen, *two])

    def row(self, around: list[str]) -> str:
        """A sum over a row."""
        other = self.choice([self.element([*around, "l"]), "(get v l)"])
        return f"(ifold (fn [s l] (+ s (* (get a {self.at(around)} l) {other}))) 0.0 {self.choice(['n', *around])})"

    def statement(self, around: list[str], depth: int) -> str:
        kind = self.random()
        if depth and kind < 0.1 and INNER not in around:
            return f"(for [{INNER} (range 1 (- n 1))] {self.body([*around, INNER], 0)})"
        if depth and kind < 0.5:
            x = INDICES[sum(x in INDICES for x in around)]
            return f"(for [{x} {self.range(around)}] {self.body([*around, x], depth - 1)})"
        if kind > 0.93:
            some, other = self.statement(around, 0), self.statement(around, 0)
            return self.choice([f"(when (> {self.element(around)} 0.1) {some})"] * 2 + [f"(if (< k 2) {some} {other})"])
        if kind < 0.65:
            return f"(set-at! a {self.at(around)} {self.at(around)} (tanh {self.number(around)}))"
        if kind < 0.8:
            i, j = self.at(around), self.at(around)
            return f"(set-at! a {i} {j} (- (get a {i} {j}) (* 0.5 {self.element(around)} {self.element(around)})))"
        value = self.number(around) if kind < 0.88 else self.row(around)
        return f"(set-at! v {self.at(around)} (tanh {value}))"

    def body(self, around: list[str], depth: int) -> str:
        made = " ".join(self.statement(around, depth) for _ in range(self.one(3)))
        if self.random() < 0.7:
            return made
        last = f"(set-at! v {self.at(around)} (* 0.5 (+ p (get v {self.at(around)}))))"
        return f"(let [p {self.number(around)}] (do {made} {last}))"


def arguments(seed: int, n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (n, n)), rng.uniform(-1, 1, n), rng.uniform(0.2, 1, n)


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_gradients(seed: int) -> None:
    text = Draw(seed).program()
    f = hyad.value_and_grad(hyad.model(text, namespace={}), wrt=(0, 1, 2))
    made = hyad.compile(f, target="python", args=arguments(seed, 5))
    for n in (1, 2, 5):
        args = arguments(seed, n)
        assert oracle.mismatch(made(*args), hyad.run(f, *args), 1e-9) is None, (n, text)


class Vectors(random.Random):
    """A program that changes one vector in nested loops, and gives a vector."""

    def program(self) -> str:
        init = self.choice(["x", "(* w 2.0)", "(build n (fn [i] (* (get x i) (get w i))))"])
        loops = " ".join(f"v {self.loop([])}" for _ in range(self.choice((1, 1, 2))))
        return f"(fn [#^ (Vec n) x #^ (Vec n) w] (let [v {init} {loops}] {self.choice(['v', '(sin v)', '(sin v)'])}))"

    def loop(self, around: list[str]) -> str:
        i = INDICES[len(around)]
        inner = not around and self.random() < 0.5
        body = self.loop([i]) if inner else self.statement([*around, i])
        return f"(ifold (fn [v {i}] {body}) v {self.choice(['n', *around, *(f'(- n {x})' for x in around)])})"

    def at(self, around: list[str]) -> str:
        i = self.choice(around)
        near = f"(min (- n 1) (+ {i} 1))", f"(max 0 (- {i} 1))", f"(% (+ {i} {self.randint(1, 3)}) n)"
        return self.choice([i, i, *near, f"(- n 1 {i})", "0"])

    def value(self, around: list[str], depth: int = 2) -> str:
        if depth == 0 or self.random() < 0.4:
            return f"(get {self.choice('vvxw')} {self.at(around)})"
        x, y = self.value(around, depth - 1), self.value(around, depth - 1)
        cond = self.choice([f"(= (% {around[-1]} 2) 0)", f"(< {around[0]} 2)", f"(> {self.value(around, 0)} 0.2)"])
        chosen = f"(if {cond} {x} {self.choice(['0.0', y])})"
        return self.choice([f"(sin {x})", chosen, f"({self.choice('+-*')} {x} {y})"])

    def statement(self, around: list[str]) -> str:
        i = self.at(around)
        add = f"(+ (get v {i}) {self.value(around)})"
        made = f"(update v {i} {self.choice([add, self.value(around)])})"
        return made if self.random() < 0.7 else f"(let [v {made}] (update v {self.at(around)} {self.value(around)}))"


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT // 2))
def test_jacobians(seed: int) -> None:
    """In C, where vectors that each direction makes share memory; and by coloured passes."""
    f = hyad.model(Vectors(seed).program(), namespace={})
    dense = hyad.jacobian(f, wrt="x")
    for n in (1, 5, 9):
        x, w, _ = np.random.default_rng(seed).normal(size=(3, n))
        expected = hyad.run(dense, x, w)
        assert oracle.mismatch(hyad.compile(dense)(x, w), expected, 1e-9) is None, (n, f.source)
        assert oracle.mismatch(hyad.sparse_jacobian(f, wrt="x")(x, w).toarray(), expected, 1e-9) is None, (n, f.source)


def test_a_vector_that_each_direction_makes() -> None:
    """An element of it is read after the adjoints have begun: they lie in other memory."""
    m = "(min (- n 1) (+ i 1))"
    f = hyad.model(
        f"""(fn [#^ (Vec n) x] (sin (ifold (fn [v i] (ifold (fn [v j]
              (update v {m} (+ (get v {m}) (if (= (% j 2) 0) (get x j) 0.0)))) v (- n i))) x n)))""",
        namespace={},
    )
    x = np.array([0.3, 0.7, 1.1, -0.4, 0.9])
    made, expected = hyad.compile(hyad.jacobian(f))(x), hyad.run(hyad.jacobian(f), x)
    np.testing.assert_allclose(made, expected, rtol=1e-13, atol=1e-15)
    assert hyad.check_grad(f"(fn [x] (sum ({f.source} x)))", [x])


def test_an_element_that_a_branch_reads_before_it_is_changed() -> None:
    """Its value then is remembered, also where other reads of the same table are as they are in the end."""
    text = """(fn [a v w] (let [n (len v) a (copy a) v (copy v)]
      (for [k (range n)]
        (let [p (if (> (get v 0) 0.1) (* (get a 0 0) (get a k (- n 1 k))) (get w k))]
          (for [i (range k n)]
            (set-at! v k (tanh (ifold (fn [s l] (+ s (* (get a i l) (get v l)))) 0.0 k))))
          (set-at! a k k 0.6)
          (set-at! v k (* 0.5 (+ p (get v k))))))
      (+ (sum (sin a)) (dot v w))))"""
    f = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1, 2))
    for n in (2, 5):
        args = arguments(265, n)
        assert oracle.mismatch(hyad.compile(f, target="python", args=args)(*args), hyad.run(f, *args), 1e-9) is None


@pytest.mark.parametrize(
    ("form", "value", "slope"),
    [
        ("(get w i j)", 18.0, 25.0),
        ("(get w #((slice None) j))", 34.0, 33.0),
        ("(let [k (copy i)] (set-at! k 0 0) (get w k j))", 16.0, 24.0),
        ("(let [z (get w i)] (set-at! w 2 1 9.0) z)", 44.0, 38.0),
        ("(let [z (get w i)] (set-at! z 1 1 5.0) (concatenate #(z w)))", 122.0, 77.0),
    ],
)
def test_elements_at_many_indices_are_copies(form: str, value: float, slope: float) -> None:
    f = hyad.model(
        f"""(fn [p #^ (Arr Int n) i #^ (Arr Int n) j]
          (let [w (zeros [4 3])]
            (set-at! w 1 [1.0 2.0 3.0]) (set-at! w 2 1 p)
            (* p (sum (square {form})))))""",
        namespace={},
    )
    args = 2.0, np.array([1, 2, 2]), np.array([0, 1, 1])
    g = hyad.grad(f)
    assert (f(*args), hyad.run(f, *args)) == (value, value)
    assert (g(*args), hyad.run(g, *args)) == (slope, slope)


#: Loops over the elements of an array that their bodies change: an element is what it is when its turn comes, as in
#: NumPy; a row is the row itself.
OVER_ITSELF = {
    "for": "(let [a (copy x)] (for [y a] (set-at! a 1 (+ (get a 1) y))) (get a 1))",
    "zip": "(let [a (copy x)] (for [#(y z) (zip a x)] (set-at! a 1 (+ (get a 1) (* y z)))) (get a 1))",
    "enumerate": "(let [a (copy x)] (for [#(i y) (enumerate a)] (set-at! a 1 (+ (get a 1) y))) (get a 1))",
    "fold": "(let [a (copy x)] (fold (fn [s y] (set-at! a 1 (+ (get a 1) y)) (+ s (* y y))) 0.0 a))",
    "scan": "(let [a (copy x)] (sum (scan (fn [s y] (set-at! a 1 (+ (get a 1) y)) (+ s (* y y))) 0.0 a)))",
    "map": "(let [a (copy x)] (sum (map (fn [y] (set-at! a 1 (+ (get a 1) y)) (* y y)) a)))",
    "rows": """(let [a (build [3 2] (fn [i j] (+ (get x i) (* 0.5 (get x j)))))]
      (for [row a] (set-at! a 2 (+ (get a 2) row))) (sum (square (get a 2))))""",
    "rows read after a change": """(let [a (build [3 2] (fn [i j] (+ (get x i) (* 0.5 (get x j)))))]
      (fold (fn [s row] (set-at! a 1 (* 2.0 (get a 1))) (+ s (sum (square row)))) 0.0 a))""",
    "rows that change": """(let [a (build [3 2] (fn [i j] (+ (get x i) (* 0.5 (get x j))))) s (ref 0.0)]
      (for [row a] (set-at! row 1 (* (get row 0) (get a 0 1))) (set! s (+ (deref s) (sum row))))
      (* (deref s) (sum (map (fn [row] (set-at! row 0 (square (get row 1))) (sum row)) a))))""",
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", OVER_ITSELF)
def test_an_array_that_changes_while_it_is_gone_through(name: str) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) x] {OVER_ITSELF[name]})", namespace={})
    x = np.array([0.3, 0.7, 1.1])
    assert hyad.compile(f, args=[x])(x) == pytest.approx(hyad.run(f, x), rel=1e-14)
    np.testing.assert_allclose(hyad.compile(hyad.grad(f), args=[x])(x), hyad.run(hyad.grad(f), x), rtol=1e-13)
    assert hyad.check_grad(f, [x])


def test_a_loop_over_a_changing_array_by_numbers() -> None:
    f = hyad.model(f"(fn [#^ (Vec n) x] {OVER_ITSELF['for']})", namespace={})
    a = np.array([1.0, 1.0, 5.0])
    expected = a.copy()
    for y in expected:
        expected[1] += y
    assert f(a) == expected[1] == 9.0
