"""Jacobians of states: columns side by side, where each row would go through all states."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Loop
from test_one_hot import depth

#: Vectors of which each number is made of the one before.
STATES = {
    "a fold that fills a vector": """(let [#(d _) (ifold (fn [#(d s) i]
          (let [v (/ (- 1 (* (get q i) s)) (+ 1 (get q i)))] #((update d i v) (+ s v))))
        #((zeros n) 0.0) n)]
      (square d))""",
    "a scan": "(scan (fn [s x] (sin (+ (* 0.5 s) x))) 0.3 q)",
    "a function of two states": """(let [a (scan (fn [s x] (* s (- 1.0 (* 0.1 x s)))) 0.9 q)]
      (- a (concat [0.0] (cut a 0 (- n 1)))))""",
    "pairs": """(map (fn [r] (* (get r 0) (get r 1)))
      (scan (fn [#(a b) x] #((+ (* 0.5 a) (* b x)) (cos (+ a b)))) #(0.1 0.2) q))""",
    "a branch": "(scan (fn [s x] (if (> x s) (* x s) (+ x (* 0.5 s)))) 0.5 q)",
    "in place": """(let [x (zeros (+ n 1)) v (zeros (+ n 1))]
      (set-at! v 0 0.5)
      (for [t (range n)]
        (set-at! x (+ t 1) (+ (get x t) (* 0.1 (get v t))))
        (set-at! v (+ t 1) (+ (get v t) (* 0.1 (- (get q t) (sin (get x t)))))))
      (cut (+ x v) 1 None))""",
    "in place, with a loop inside": """(let [d (zeros n)]
      (for [i (range n)]
        (let [s (ref 0.0)]
          (for [j (range i)] (set! s (+ (deref s) (get d j))))
          (set-at! d i (/ (- 1 (* (get q i) (deref s))) (+ 1 (get q i))))))
      d)""",
    "running sums": "(cumsum (square q))",
    "fewer results": "(scan (fn [s i] (sin (+ s (get q (* 2 i))))) 0.1 (arange (// n 2)))",
}
#: What is taken row by row: no states, or more than a vector of numbers on the way.
ROWS = {
    "no states": "(map sin q)",
    "a sum": "(let [s (sum (square q))] (* s q))",
    "in place, each by itself": "(let [w (copy q)] (for [i (range n)] (set-at! w i (sin (* 2.0 (get w i))))) w)",
    "neighbours": "(map (fn [i] (* (get q i) (get q (max 0 (- i 1))))) (arange n))",
    "matrices on the way": "(map (fn [r] (ifold (fn [s i] (sin (+ s (get r i)))) 0.0 n)) (outer q q))",
}


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) q] {text})", namespace={})


@pytest.mark.parametrize("name", STATES | ROWS)
def test_jacobians(name: str) -> None:
    f = model((STATES | ROWS)[name])
    jacobian = hyad.jacobian(f)
    by_rows = hyad.compile(jacobian, without="columns-of-states")
    made = hyad.compile(jacobian)
    assert ("columns-of-states" in str(hyad.explain(jacobian))) == (name in STATES)
    for n in (1, 2, 5, 17):
        q = np.random.default_rng(n).uniform(0.1, 1.0, n)
        np.testing.assert_allclose(made(q), by_rows(q), 1e-12, 1e-14)
        steps = np.stack([hyad.run(f, q + 1e-6 * u) - hyad.run(f, q - 1e-6 * u) for u in np.eye(n)], -1) / 2e-6
        np.testing.assert_allclose(made(q), steps, 1e-7, 1e-8)


#: Numbers that are made of all elements: searches among them, which Jacobians go through as through states.
OF_ALL = [
    *("(max q)", "(min (* q q))", "(max (abs q))", "(max (exp q))", "(ptp q)", "(norm q)", "(prod q)", "(std q)"),
    *("(logsumexp q)", "(mean q)", "(median q)", "(get q (argmin (* q q)))", "(dot q q)"),
    pytest.param("(get (sort q) 0)", marks=pytest.mark.long),
    *("(fold max 0.0 (* q q))", "(ifold (fn [m i] (max m (sin (get q i)))) -9.0 n)", "(get (cumsum q) -1)"),
    "(snd (fold (fn [#(k m) x] (if (> x m) #((+ k x) x) #(k m))) #(0.0 -9.0) q))",
    "(let [m (ref -9.0)] (for [x q] (when (> x (deref m)) (set! m x))) (deref m))",
    """(let [m (ref 0.0)  i (ref 0)]
         (while (< (deref i) n) (set! m (max (deref m) (get q (deref i)))) (set! i (+ (deref i) 1)))
         (deref m))""",
    "(loop [m 0.0  i 0] (if (= i n) m (recur (max m (* 2 (get q i))) (+ i 1))))",
]  # fmt: skip


@pytest.mark.some(10)
@pytest.mark.parametrize("number", OF_ALL)
def test_jacobians_of_all_elements(number: str) -> None:
    """Those by columns took the number of an iteration for a tangent, and chose between arrays as between numbers."""
    for n in (2, 5):
        q = np.random.default_rng(n).uniform(0.2, 1.0, n)
        for text in (f"(let [m {number}] (* q m))", f"(let [m {number}] (/ (- q m) (+ 2.0 m)))"):
            f = model(text)
            steps = np.stack([hyad.run(f, q + 1e-6 * u) - hyad.run(f, q - 1e-6 * u) for u in np.eye(n)], -1) / 2e-6
            for off in ((), "columns-of-states"):
                found = memoised.compile(hyad.jacobian(f), args=(q,), without=off)(q)
                np.testing.assert_allclose(found, steps, 1e-7, 1e-8)


@pytest.mark.some(10)
@pytest.mark.parametrize("number", OF_ALL)
def test_jacobians_of_gradients(number: str) -> None:
    """Are Hessians, in functions and in models."""
    for text in (f"(let [m {number}] (* m m m))", f"(let [m {number}] (* m (sum q)))", f"(exp (* 0.3 {number}))"):
        f = model(text)
        inside = model(f"((jacobian (grad (fn [q] {text}))) q)")
        for n in (2, 5):
            q = np.random.default_rng(n).uniform(0.2, 1.0, n)
            wanted = hyad.run(hyad.hessian(f), q)
            for made in (hyad.jacobian(hyad.grad(f)), inside, hyad.hessian(f)):
                np.testing.assert_allclose(memoised.compile(made, args=(q,))(q), wanted, 1e-11, 1e-12)


def test_states_are_gone_through_once() -> None:
    """In a loop around one over the columns, in which none is left."""
    jacobian = hyad.jacobian(model(STATES["a scan"]))
    program = jacobian.optimised(jacobian.specs([np.ones(3)]))
    (loop,) = (x.op for x in program.body.binds if type(x.op) is Loop and x.op.accs)
    assert depth(loop.body) == 1


def test_the_cost_card_says_so() -> None:
    f = model(STATES["a scan"])
    for said in (str(hyad.cost(hyad.jacobian(f))), str(hyad.cost(f))):
        assert "forward" in said and "all states" in said
    assert "a Jacobian is reverse" in str(hyad.cost(model(ROWS["neighbours"])))
    inside = model("(sum (@ ((jacobian (fn [q] (scan (fn [s x] (sin (+ s x))) 0.3 q))) q) q))")
    assert "reverse, at once" in str(hyad.cost(hyad.grad(inside)))


def test_on_a_gpu_each_row_has_a_thread() -> None:
    """A loop around the columns would wait for all of them in each of its iterations."""
    made = hyad.jacobian(model(STATES["a scan"]))
    specs = made.specs([np.ones(3)])
    rows, columns = (x.body.binds[-1].op for x in (made.optimised(specs, target="cuda"), made.optimised(specs)))
    assert type(rows) is type(columns) is Loop and not rows.accs and columns.accs
