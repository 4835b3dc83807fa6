"""Extremes of monotone functions, found among the arguments (``hyad/passes/monotone.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Block, Loop, Prim, blocks_of

CALLS = ("exp", "tanh", "sqrt", "log", "atan")
#: An extreme of each of ``v``, ``n`` numbers, and of ``m``, ``n`` by five: what is taken of one element alone then.
PROGRAMS = {
    "a multiple": "(amax (map (fn [x] (* c (exp x))) v))",
    "the least": "(amin (* c (exp v)))",
    "a quotient": "(amin (/ (exp (* 0.5 v)) c))",
    "falling": "(amax (map (fn [x] (- 1.0 (exp x))) v))",
    "falling twice": "(amax (map (fn [x] (- 1.0 (exp (- x)))) v))",
    "a negative number": "(amin (* -2.0 (tanh (+ v c))))",
    "one of another": "(amax (map (fn [x] (exp (* c (tanh x)))) v))",
    "two factors": "(amax (map (fn [x] (* c (exp (* x (- c 1.0))))) v))",
    "distances": "(amin (build (len m) (fn [i] (sqrt (+ 0.1 (sum (square (get m i))))))))",
    "logarithms": "(amin (log (+ 2.0 (square v))))",
    "rows": "(sum (amax (* c (exp m)) 1))",
    "a path": "(let [s (* c (np.exp (np.cumsum v)))] (+ (amax s) (get s -1)))",
    "paths": """(let [s (* c (np.exp (np.cumsum m :axis 1)))]
        (np.mean (np.where (> (np.min s :axis 1) 0.3) (np.maximum 0.0 (- (get s #((slice None) -1)) 0.5)) 0.0)))""",
    "another start": "(let [low (ref 0.4)] (for [x v] (set! low (min (deref low) (exp x)))) (deref low))",
    "a start that is more": """(fst (ifold
        (fn [#(high x) i] #((max high (exp (get v i))) (+ x 1.0))) #(9.0 0.0) (len v)))""",
}


def model(name: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) v #^ (Mat n k) m c] {PROGRAMS[name]})", namespace={})


def point(n: int = 7, c: float = 1.3) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    return rng.normal(size=n), rng.normal(size=(n, 5)), c


def calls_in_loops(block: Block, depth: int = 0) -> dict[str, int]:
    """For each function that is called, in how many loops."""
    found: dict[str, int] = {}
    for x in block.binds:
        if type(x.op) is Prim and x.op.name in CALLS:
            found[x.op.name] = max(depth, found.get(x.op.name, 0))
        for inner in blocks_of(x.op):
            for name, k in calls_in_loops(inner, depth + (type(x.op) is Loop)).items():
                found[name] = max(k, found.get(name, 0))
    return found


def deepest(f: hyad.Model, args: tuple) -> int:
    return max(calls_in_loops(f.optimised(f.specs(args)).body).values(), default=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_call(name: str) -> None:
    f, args = model(name), point()
    assert "monotone" in [step.name for step in hyad.explain(f, args=args).steps]
    assert deepest(f, args) < deepest(f.without(["monotone"]), args) or name == "paths"  # in lanes
    for made in (f, hyad.grad(f, wrt=("v", "m", "c"))):
        assert deepest(made, args) == 0 or name in ("rows", "paths")


def test_one_price_of_a_path_is_computed() -> None:
    """The largest one is found among logarithms, and of the last one no loop is left."""
    f = hyad.model("(fn [#^ (Vec n) v c] (let [s (* c (exp (cumsum v)))] (- (amax s) (get s -1))))", namespace={})
    for made in (f, hyad.grad(f, wrt=("v", "c"))):
        body = made.optimised(made.specs((np.ones(3), 1.0))).body
        assert calls_in_loops(body) == {"exp": 0}
        assert sum(type(x.op) is Prim and x.op.name == "exp" for x in body.binds) == 2


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("c", [1.3, -0.8, 0.4])
def test_values_and_derivatives(name: str, c: float) -> None:
    f, args = model(name), point(c=c)
    wrt = ("v", "m", "c")
    np.testing.assert_allclose(memoised.compile(f)(*args), hyad.run(f, *args), rtol=1e-15)
    for how in (f, hyad.grad(f, wrt=wrt)):
        for one, other in zip(memoised.results(how, args), memoised.results(how, args, without=["monotone"])):
            np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-15)
    hyad.check_grad(f, args, wrt=wrt)
    direction = tuple(np.ones_like(a) for a in args)
    np.testing.assert_allclose(
        hyad.jvp(f, args, direction),
        sum(np.sum(g) for g in memoised.results(hyad.grad(f, wrt=wrt), args)),
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("c", [1.3, -0.8])
def test_numbers_that_are_none(name: str, value: float, c: float) -> None:
    v, m, c = point(c=c)
    v[3], m[3, 1] = value, value
    f = model(name)
    np.testing.assert_allclose(
        memoised.compile(f)(v, m, c), memoised.compile(f, without=["monotone"])(v, m, c), rtol=1e-15
    )


@pytest.mark.parametrize("name", ["another start", "a start that is more"])
@pytest.mark.parametrize("n", [0, 1])
def test_a_start_counts_as_it_is(name: str, n: int) -> None:
    f, args = model(name), point(n)
    assert hyad.compile(f)(*args) == hyad.run(f, *args)


def test_roots_and_logarithms_of_what_has_none() -> None:
    """The least argument tells whether there is one; of the greatest root each is taken."""
    either = hyad.model("(fn [#^ (Vec n) v c] (amin (* c (sqrt v))))", namespace={})
    for c in (1.0, -1.0):
        assert np.isnan(hyad.compile(either)(np.array([1.0, -1.0, 2.0]), c))
    least = hyad.model("(fn [#^ (Vec n) v] (amin (sqrt v)))", namespace={})
    most = hyad.model("(fn [#^ (Vec n) v] (amax (sqrt v)))", namespace={})
    turned = hyad.model("(fn [#^ (Vec n) v] (amax (- 1.0 (log v))))", namespace={})
    v = np.array([1.0, -1.0, 2.0])
    for f, fires in ((least, True), (most, False), (turned, True)):
        assert ("monotone" in [step.name for step in hyad.explain(f, args=(v,)).steps]) is fires
        assert np.isnan(hyad.compile(f)(v))
        np.testing.assert_allclose(hyad.compile(f)(np.abs(v)), hyad.run(f, np.abs(v)), rtol=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "(ifold (fn [m i] (max m (+ (get w k) (exp (get v i))))) 0.0 (len v))",
        "(ifold (fn [m i] (max m (* (sin c) (exp (get v i))))) 0.0 (len v))",
        "(ifold (fn [m i] (max m (get (map (fn [x] (* (sin c) (exp x))) v) i))) 0.0 (len v))",
        """(ifold (fn [m i] (max m (get (map (fn [x] (- (sum (build k (fn [j] (get w j)))) (exp x))) v) i)))
             0.0 (len v))""",
    ],
)
@pytest.mark.parametrize("k", [0, 2])
def test_what_is_the_same_each_time_may_stand_in_the_loop(text: str, k: int) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec m) w c #^ Int k] {text})", namespace={})
    args = np.array([0.1, -0.4, 0.7]), np.array([1.0, 2.0, -3.0]), -0.6, k
    for how in ((), ("hoisting",), ("hoisting", "sharing", "fuse")):
        np.testing.assert_allclose(memoised.compile(f, without=[*how])(*args), hyad.run(f, *args), rtol=1e-14)
    hyad.check_grad(f, args, wrt=("v", "w", "c"))


@pytest.mark.parametrize(
    "text",
    [
        "(amax (map (fn [x] (* x (exp x))) v))",  # two arguments move
        "(amax (square v))",
        "(amax (map (fn [x] (/ 1.0 (exp x))) v))",  # falls on one side of 0 alone
        "(amax (* 2.0 v))",  # no call
        "(amax (map cosh v))",
        "(ifold (fn [m i] (max (* 0.5 m) (exp (get v i)))) 0.0 (len v))",  # the extreme of something else
        "(sum (scan max 0.0 (exp v)))",  # each of them is read
        "(snd (ifold (fn [#(m s) i] #((max m (exp (get v i))) (+ s m))) #(0.0 0.0) (len v)))",
        "(amin (map (fn [x] (* 0.0 (exp x))) v))",
    ],
)
def test_what_is_left(text: str) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={})
    assert "monotone" not in [step.name for step in hyad.explain(f, args=point()[:1]).steps]
    np.testing.assert_allclose(hyad.compile(f)(point()[0]), hyad.run(f, point()[0]), rtol=1e-15)


def test_a_start_that_is_another_element() -> None:
    f = hyad.model(
        "(fn [#^ (Vec n) v #^ Int k] (let [e (map exp v)] (ifold (fn [m i] (max m (get e i))) (get e 2) k)))",
        namespace={},
    )
    v = np.array([0.3, -0.1, 0.9])
    for k in (0, 2):
        assert hyad.compile(f)(v, k) == hyad.run(f, v, k) == np.exp(0.9)


def test_factors_of_no_value_are_not_read() -> None:
    """The last element is there where there is one."""
    f = hyad.model(
        """(fn [#^ (Vec n) v #^ (Vec n) w]
          (ifold (fn [m i] (max m (get (map (fn [x] (* (get w (- n 1)) (exp x))) v) i))) 0.5 (len v)))""",
        namespace={},
    )
    assert "monotone" in [step.name for step in hyad.explain(f).steps]
    for how in ((), ("sink",)):
        call = memoised.compile(f, "python", without=[*how])
        assert call(np.zeros(0), np.zeros(0)) == 0.5
        assert call(np.zeros(2), np.array([1.0, 3.0])) == 3.0


@pytest.mark.parametrize(
    "text",
    [
        "(get (cumsum v) -1)",
        "(get (scan (fn [s x] (sin (+ s x))) 0.5 v) (- (len v) 1))",
        "(let [s (build [2 (len v)] (fn [i j] (* (+ i 1) (exp (get v j)))))] (get s 1 -1))",
    ],
)
def test_one_element_alone_takes_no_array(text: str) -> None:
    """The state that a loop ends with, or the element that is read."""
    f = hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={})
    v = point(4)[0]
    np.testing.assert_allclose(hyad.compile(f)(v), hyad.run(f, v), rtol=1e-15)
    assert "work" not in hyad.show(f, "c").partition("{")[2]
    hyad.check_grad(f, (v,))


def test_no_matrix_of_paths_is_made() -> None:
    """What makes paths, reads the last price of each and compares all is one nest, of two sets of paths as well."""
    pay = f"(fn [m] {PROGRAMS['paths']})".replace("np.mean", "identity", 1).replace("(identity ", "(+ 0.0 ")
    for text in (PROGRAMS["paths"], f"(let [pay {pay}] (np.mean (+ (pay m) (pay (- m)))))"):
        f = hyad.model(f"(fn [#^ (Mat n k) m c] {text})", namespace={})
        workspace = hyad.compile(f).cfunction.workspace
        assert workspace is None or "n*k" not in workspace


@pytest.mark.parametrize("reduced", ["amax", "amin", "logsumexp"])
def test_extremes_seen_through_loops_that_look_for_extremes(reduced: str) -> None:
    """Rows of a softmax of a softmax: what the inner one looks for is known where it is made, and not elsewhere."""
    f = hyad.model(f"(fn [#^ (Mat n k) m] ({reduced} (map softmax (map softmax m)) 1))", namespace={})
    m = np.sin(np.arange(15.0)).reshape(3, 5)
    np.testing.assert_allclose(hyad.compile(f, "python")(m), hyad.run(f, m), rtol=1e-13)
    total = hyad.model(f"(fn [#^ (Mat n k) m] (sum ({reduced} (map softmax (map softmax m)) 1)))", namespace={})
    assert hyad.check_grad(total, (m,))
