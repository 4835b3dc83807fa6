"""Calls of the C library that two loops would make: the second one reads what the first one has kept."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import REAL, Program
from hyad.passes import optimise as passes
from hyad.passes.keep_calls import keep_calls
from hyad.program.loops import calls_in
from memoised import compile, results

#: What two loops after one another have in common, by what is differentiated; ``n`` is the length of ``x``.
PROGRAMS = {
    # two sums over all elements for each frequency, which both go into its derivative
    "in a loop": """(sum (build n (fn [k] (let [a (sum (build n (fn [t] (* (get x t) (cos (* 0.3 k t))))))
      b (sum (build n (fn [t] (* (get x t) (sin (* 0.3 k t))))))] (log (+ 1.0 (* a a) (* b b)))))))""",
    # as often as a number says: a row for all of them
    "in a loop, some": """(let [m (int (+ 3 (get x 0)))] (sum (build n (fn [k] (let [a (sum (build m
      (fn [t] (* (get x k) (exp (* 0.1 k (+ t 1) (get x k)))))))] (log (+ 1.0 a)))))))""",
    # where neighbours are there: in branches of a loop over few
    "in a branch": """(sum (square (build n (fn [i] (let [#(a w) (ifold (fn [#(a w) d]
      (let [j (+ i d -20)] (if (and (>= j 0) (< j n)) (let [e (exp (- (square (- (get x j) (get x i)))))]
        #((+ a (* e (get x j))) (+ w e))) #(a w)))) #(0.0 0.0) 40)] (/ a w))))))""",
    "in two loops": """(sum (square (build n (fn [i] (let [#(a w) (ifold (fn [s c] (ifold (fn [#(a w) d]
      (let [e (exp (- (* 0.1 (+ c 1) (square (- (get x (% (+ i d) n)) (* 0.2 c (get x i)))))))]
        #((+ a (* e (get x (% (+ i d) n)))) (+ w e)))) s 40)) #(0.0 0.0) 10)] (/ a w))))))""",
}


def model(body: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) x] {body})", namespace={})


def calls(program: Program) -> int:
    return sum(x.vars[0].type == REAL for x in calls_in(program.body))


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_are_made_once(name: str) -> None:
    f = model(PROGRAMS[name])
    gradient, rng = hyad.grad(f), np.random.default_rng(1)
    points = [[rng.uniform(0.3, 1.2, n)] for n in (2, 3, 5, 17)]
    assert "keep-calls" in {step.name for step in hyad.explain(gradient, args=points[0]).steps}
    once = 2 if name == "in a loop" else 1
    program = passes.optimise(gradient.program(), passes.PIPELINE[: passes.PIPELINE.index(keep_calls)])
    assert calls(program) == 2 * once
    assert calls(keep_calls(program)) == once
    for point in points:
        (plain,) = results(gradient, point, without="keep-calls")
        for target in ("c", "python"):
            np.testing.assert_allclose(results(gradient, point, target=target)[0], plain, rtol=1e-13, atol=1e-15)
    assert hyad.check_grad(f, points[2])


#: What two loops do that make no call of the same value, or have no room for it.
OTHERS = {
    # the first makes the call in some iterations alone
    "asks more": """(let [s (ifold (fn [s i] (if (> (get x i) 0.5) (+ s (exp (get x i))) s)) 0.0 n)]
      (map (fn [a] (* s (exp a))) x))""",
    "another element": """(let [s (ifold (fn [s i] (+ s (exp (get x i)))) 0.0 n)]
      (build n (fn [i] (* s (exp (get x (- (- n 1) i)))))))""",
    "another number": """(let [s (ifold (fn [s i] (+ s (exp (* 2.0 (get x i))))) 0.0 n)]
      (map (fn [a] (* s (exp a))) x))""",
    # as often as a number says: an array of so many is more than what the function was given
    "no room": """(let [k (int (get x 0)) s (ifold (fn [s i] (+ s (exp (/ 1.0 (+ i 1))))) 0.0 k)
      t (ifold (fn [t i] (+ t (* s (exp (/ 1.0 (+ i 1)))))) 0.0 k)] [s t])""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops(name: str) -> None:
    f, point = model(OTHERS[name]), [np.array([0.7, 0.2, 0.9, 0.4, 1.3])]
    program = compile(f, args=point, target="python", without="keep-calls").program
    assert keep_calls(program) is program
    np.testing.assert_allclose(results(f, point)[0], np.asarray(hyad.run(f, *point)), rtol=1e-13)


def test_what_the_loops_have_is_kept_where_it_is_asked() -> None:
    """A call in a branch is read in the same branch, in one that asks more, and with other names of the index."""
    f = model("""(let [s (ifold (fn [s i] (if (> (get x i) 0.5) (+ s (exp (get x i))) s)) 0.0 n)]
      (build n (fn [k] (if (> (get x k) 0.5) (if (< s 4.0) (* s (exp (get x k))) s) 0.0))))""")
    rng = np.random.default_rng(2)
    for n in (1, 4, 9):
        point = [rng.uniform(0, 1, n)]
        program = compile(f, args=point, target="python", without="keep-calls").program
        assert calls(keep_calls(program)) == 1 < calls(program)
        np.testing.assert_allclose(results(f, point)[0], np.asarray(hyad.run(f, *point)), rtol=1e-13)


def test_sums_that_share_a_call_stay_together_in_a_grid() -> None:
    """Where the elements of two arrays are sums that one loop takes, they go where they are read as one loop."""
    text = """(fn [#^ (Mat n m) u] (sum (square (build [n m] (fn [i j] (let [#(a w) (ifold (fn [#(a w) d]
      (let [k (+ j d -20)] (if (and (>= k 0) (< k m)) (let [e (exp (- (square (- (get u i k) (get u i j)))))]
        #((+ a (* e (get u i k))) (+ w e))) #(a w)))) #(0.0 0.0) 40)] (/ a w)))))))"""
    f = hyad.model(text, namespace={})
    program = passes.optimise(hyad.grad(f).program(), passes.PIPELINE[: passes.PIPELINE.index(keep_calls)])
    assert calls(program) == 2 and calls(keep_calls(program)) == 1
    assert hyad.check_grad(f, [np.random.default_rng(3).uniform(0.2, 0.9, (3, 5))])


def test_a_call_of_what_a_loop_has_stacked() -> None:
    """The argument is read where the first loop has put it, and so is what the call gave: it is stacked as well."""
    f = hyad.model(
        """(fn [#^ (Vec k) a #^ (Vec k) w #^ (Vec k) b #^ (Vec n) xs]
          (let [u (fn [x] (@ (np.tanh (+ (* (get x #((slice None) None)) w) b)) a))
                one (np.ones-like xs)
                ux (fn [x] (jvp u x one))
                r (+ (jvp ux xs one) (u xs))]
            (np.mean (** r 2))))""",
        namespace={},
    )
    rng = np.random.default_rng(8)
    args = (*rng.normal(size=(3, 4)), rng.normal(size=5))
    gradient = hyad.grad(f, wrt=(0, 1, 2))
    made, apart = hyad.compile(gradient, args=args), hyad.compile(gradient, args=args, without="keep-calls")
    assert made.source.count("tanh(") == 1 < apart.source.count("tanh(")
    for x, y, z in zip(made(*args), hyad.run(gradient, *args), apart(*args)):
        np.testing.assert_allclose(x, y, rtol=1e-12)
        np.testing.assert_allclose(x, z, rtol=1e-13)
