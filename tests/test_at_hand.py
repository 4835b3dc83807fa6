"""What a call gives is read where an array of such results is there (``hyad/passes/at_hand.py``)."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Prim, all_binds

#: Programs of a matrix m, vectors v and w of one length and a number c; how often each is called, with the pass.
PROGRAMS = {
    "both at once": ("(let [s (map sin v) t (map cos v)] (+ (dot s w) (dot t s) (dot t t)))", {"sin": 1, "cos": 1}),
    "of a matrix": (
        "(let [s (np.sin m) t (np.cos m)] (+ (sum (* s t)) (sum (square (@ v s))) (sum (square (@ v t)))))",
        {"sin": 1, "cos": 1},
    ),
    "of an expression": (
        """(let [e (map (fn [x] (exp (* c (- x 1.0)))) v)]
             (+ (dot e e) (* 2.0 (sum (build (len v) (fn [i] (* (get w i) (exp (* c (- (get v (- (len v) 1 i)) 1.0)))
                                                                (get e i))))))))""",
        {"exp": 1},
    ),
    "of two arrays": (
        """(let [e (map (fn [x y] (hypot x y)) v w)]
             (+ (dot e e) (sum (build (len v) (fn [i] (* (get v i) (hypot (get v i) (get w i)) (get e i)))))))""",
        {"hypot": 1},
    ),
    "of another element": (
        """(let [e (map (fn [x y] (hypot x y)) v w)  n (len v)]
             (+ (dot e e) (sum (build n (fn [i] (* (get e i) (hypot (get v i) (get w (- n 1 i)))))))))""",
        {"hypot": 2},
    ),
    "backwards": (
        """(let [n (len v)  e (build n (fn [i] (exp (get v (- n 1 i)))))]
             (+ (dot e e) (sum (build n (fn [i] (* (get w i) (exp (get v i)) (get e i)))))))""",
        {"exp": 2},
    ),
    "of a part": (
        """(let [n (len v)  k (shape m 1)  e (build k (fn [i] (exp (get v i))))]
             (+ (dot e e) (sum (build n (fn [i] (* (get w i) (exp (get v i)) (get e (% i k))))))))""",
        {"exp": 2},
    ),
    "of another array": ("(let [s (map tanh v) t (map tanh w)] (+ (dot s w) (dot t s) (dot t t)))", {"tanh": 2}),
    "of another factor": (
        """(let [e (map (fn [x] (exp (* c x))) v)]
             (+ (dot e e) (dot e w) (sum (build (len v) (fn [i] (* (get e i) (exp (* (+ c 1) (get v i)))))))))""",
        {"exp": 2},
    ),
}
#: And without, where nothing else sees that it is the same.
NEEDED = {"of an expression": {"exp": 2}}


def model(name: str) -> hyad.Model:
    text = f"(fn [#^ (Mat n k) m #^ (Vec n) v #^ (Vec n) w #^ Real c] {PROGRAMS[name][0]})"
    return hyad.model(text, namespace={})


def calls(f: hyad.Model) -> dict[str, int]:
    names = [x.op.name for x in all_binds(f.optimised(f.specs()).body) if type(x.op) is Prim]
    return {name: names.count(name) for name in names if name in ("sin", "cos", "exp", "hypot", "tanh")}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    f = model(name)
    g = hyad.grad(f)
    assert calls(f) == PROGRAMS[name][1]
    assert calls(f.without(["at-hand"])) == NEEDED.get(name, PROGRAMS[name][1])
    rng = np.random.default_rng(4)
    for n, k in ((1, 1), (4, 3), (9, 2)):
        args = rng.uniform(0.2, 1, (n, k)), rng.uniform(0.2, 1, n), rng.uniform(0.2, 1, n), 0.7
        for h in (f, g):
            one, other = memoised.results(h, args), memoised.results(h, args, without=["at-hand"])
            for x, y in zip(one, other):
                np.testing.assert_allclose(x, y, rtol=1e-13)
        hyad.check_grad(f, args)


def test_one_that_only_a_branch_makes_is_not_there() -> None:
    f = hyad.model("""(fn [#^ (Vec n) v #^ Real c]
      (+ (if (> c 0) (let [s (map sin v)] (+ (dot s s) (get s 0))) 0.0)
         (let [t (map sin v)] (dot t v))))""")
    v = np.array([0.3, 0.5])
    for c in (-1.0, 1.0):
        assert f(v, c) == pytest.approx(hyad.run(f, v, c), rel=1e-14)
        np.testing.assert_allclose(hyad.grad(f, wrt="v")(v, c), hyad.run(hyad.grad(f, wrt="v"), v, c), rtol=1e-14)


def test_the_derivative_of_a_phase_takes_no_more_sines() -> None:
    """An Ewald sum in NumPy's style: sine and cosine of each phase once, backwards too."""
    f = hyad.model("""(fn [#^ (Mat n 3) r #^ (Vec n) q #^ (Mat k 3) kv #^ (Vec k) w]
      (let [p (@ r kv.T)] (sum (* w (+ (square (@ q (np.cos p))) (square (@ q (np.sin p))))))))""")
    for made in (f, hyad.grad(f, wrt=("r", "q"))):
        assert calls(made) == {"sin": 1, "cos": 1}
    assert calls(hyad.grad(f, wrt=("r", "q")).without(["at-hand"])) == {"sin": 2, "cos": 2}
