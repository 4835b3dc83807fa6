"""What all pairs give their second members is added to the first ones, the pairs turned."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Loop, Prim, all_binds
from hyad.passes import pairs

X, M = np.random.default_rng(1).uniform(-1, 1, (7, 2)), np.linspace(0.5, 1.5, 7)

BETWEEN = "(- (get x i 0) (get x j 0))", "(- (get x i 1) (get x j 1))"

#: What a pair gives, and whether the turned pair takes no more work, or up to twice that in lanes.
PAIRS = {
    "a distance": (f"(sqrt (+ 0.1 (square {BETWEEN[0]}) (square {BETWEEN[1]})))", True),
    "masses": ("(/ (* (get m i) (get m j)) (+ 0.1 (square (- (get x i 0) (get x j 1))) (square (get x i 1))))", True),
    "masses apart": ("(/ (* (get m i) (get m j)) (sqrt (+ 0.1 (square (- (get x i 0) (get x j 0))))))", True),
    "a product": ("(/ 1.0 (+ 3.0 (* (get x i 0) (get x j 0))))", True),
    "not symmetric": ("(sin (* (get x i 0) (exp (get x j 1))))", False),
    "only the second": ("(exp (* (get m i) (get x j 1)))", False),
}  # fmt: skip


def model(term: str) -> hyad.Model:
    inner = f"(ifold (fn [s j] (+ s {term})) 0.0 (len m))"
    return hyad.model(f"(fn [#^ (Mat n 2) x #^ (Vec n) m] (ifold (fn [t i] (+ t {inner})) 0.0 (len m)))", namespace={})


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PAIRS)
def test_all_pairs(name: str) -> None:
    term, turned = PAIRS[name]
    f = hyad.grad(model(term), wrt="x")
    fired = any(step.name == "pairs" for step in hyad.explain(f, args=(X, M)).steps)
    assert fired == turned
    made, plain = (hyad.compile(f, args=(X, M), target="python", without=w) for w in ((), "pairs"))
    np.testing.assert_allclose(made(X, M), plain(X, M), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(made(X[:1], M[:1]), plain(X[:1], M[:1]), rtol=1e-12, atol=1e-14)
    assert made(X[:0], M[:0]).shape == (0, 2)
    assert hyad.check_grad(model(term), [X, M], wrt="x")


VECTORS = {
    "each adds to both": ("(/ (* (get y i) (get y j)) (sqrt (+ 0.1 (square (- (get x i) (get x j))))))", ("x", "y")),
    "an array for each": ("(/ 1.0 (+ 3.0 (* (get x i) (get y j))))", ("x", "y")),
    "only the second": ("(/ 1.0 (+ 3.0 (* (get x i) (get y j))))", "y"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_each_array_has_its_own_sum(name: str) -> None:
    """What the outer loop adds at its index may be added to another array than the pairs' sums."""
    term, wrt = VECTORS[name]
    inner = f"(ifold (fn [s j] (+ s {term})) 0.0 (len y))"
    text = f"(fn [#^ (Vec n) x #^ (Vec n) y] (ifold (fn [t i] (+ t {inner})) 0.0 (len y)))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt=wrt)
    assert any(step.name == "pairs" for step in hyad.explain(f, args=(X[:, 0], M)).steps)
    made, plain = (hyad.compile(f, args=(X[:, 0], M), target="python", without=w) for w in ((), "pairs"))
    for got, expected in zip(made(X[:, 0], M), plain(X[:, 0], M)):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


def test_nothing_is_added_to_the_second() -> None:
    f = hyad.grad(model(PAIRS["masses apart"][0]), wrt="x")
    program = hyad.compile(f, args=(X, M), target="python", without=("lanes", "jam")).program
    nests = [
        x.op for x in all_binds(program.body) if type(x.op) is Loop and any(type(y.op) is Loop for y in x.op.body.binds)
    ]
    for nest in nests:
        for inner in (y.op for y in nest.body.binds if type(y.op) is Loop):
            assert not any(type(z.op) is Prim and z.op.name == "add-at" for z in inner.body.binds)


PULLS = """(fn [#^ (Vec n) x #^ (Vec n) m #^ (Vec n) w] (dot w (build (len m) (fn [i]
  (ifold (fn [s j] (let [d (- (get x j) (get x i)) r (+ 0.1 (* d d))] (+ s (* (/ (get m j) (* r (sqrt r))) d))))
    0.0 (len m))))))"""


def test_twice_the_work_in_lanes() -> None:
    """The second members have weights and masses of their own; what calls functions goes in no lanes, and stays."""
    f, args = hyad.model(PULLS, namespace={}), (X[:, 0].copy(), M, X[:, 1].copy())

    def passes(text: str) -> set[str]:
        return {step.name for step in hyad.explain(hyad.grad(hyad.model(text, namespace={}), wrt=0), args=args).steps}

    assert {"pairs", "lanes"} <= passes(PULLS)
    assert "pairs" not in passes(PULLS.replace("(sqrt r)", "(log (+ 1.0 r))"))
    g = hyad.grad(f, wrt=0)
    made, plain = (hyad.compile(g, args=args, target="python", without=w) for w in ((), "pairs"))
    for n in (0, 1, 7, 16):
        point = tuple(np.random.default_rng(n).uniform(-1, 1, (3, n)))
        np.testing.assert_allclose(made(*point), plain(*point), rtol=1e-12, atol=1e-13)
    assert hyad.check_grad(f, [*args])


def test_a_range_of_another_length_stays() -> None:
    inner = "(ifold (fn [s j] (+ s (square (- (get x i) (get x j))))) t 5)"
    text = f"(fn [#^ (Vec n) x #^ (Vec m) y] (ifold (fn [t i] {inner}) 0.0 6))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt="x")
    made, plain = (hyad.compile(f, args=(M, M), target="python", without=w) for w in ((), "pairs"))
    np.testing.assert_allclose(made(M, M), plain(M, M), rtol=1e-12)


def test_a_transposed_system() -> None:
    """Turned, a pair would add to a column of the inner loop's, not of the outer one's."""
    f = hyad.grad(hyad.model("(fn [v s] (sum (solve (transpose s) v)))", namespace={}), wrt="s")
    args = np.array([1.0, 2.0, -0.5]), np.eye(3) + 0.1 * np.sqrt(np.arange(9.0)).reshape(3, 3)
    y, ct = np.linalg.solve(args[1].T, args[0]), np.linalg.solve(args[1], np.ones(3))
    np.testing.assert_allclose(f(*args), -np.outer(y, ct), rtol=1e-12)


@pytest.mark.parametrize("without", [(), ("lanes", "eights", "whole-eights")])
def test_what_differentiation_made_stays_its_own(without: tuple[str, ...]) -> None:
    """In turned pairs, and in lanes: the passes after them may take sums and products apart there."""
    f = hyad.grad(model("(/ 1.0 (sqrt (+ 0.1 (square (- (get x i 0) (get x j 0))))))"), wrt="x")
    program = hyad.compile(f, args=(X, M), target="python", without=without).program
    products = [x for x in all_binds(program.body) if type(x.op) is Prim and x.op.name == "*"]
    assert sum(x.soft for x in products) >= 2


def test_sums_of_two_arrays_are_turned_together() -> None:
    """By places and masses: one alone would leave the other to be added to from eight iterations at once, across
    them."""
    text = """(fn [#^ (Mat n 3) x #^ (Vec n) m]
      (sum (map (fn [xi mi] (sum (map (fn [xj mj] (/ (* mi mj) (sqrt (+ 0.1 (sq-norm (- xi xj)))))) x m))) x m)))"""
    f = hyad.grad(hyad.model(text, namespace={}), wrt=("x", "m"))
    made, plain = (hyad.compile(f, without=w) for w in ((), "pairs"))
    across = re.compile(r"\+ t_bar\d*\[4\]")
    assert "tile" in made.source and not across.search(made.source) and across.search(plain.source)
    for n in (0, 1, 7, 16):
        rng = np.random.default_rng(n)
        x, m = rng.normal(size=(n, 3)), rng.uniform(0.5, 1, n)
        d = x[:, None] - x
        r = np.sqrt(0.1 + (d**2).sum(2))
        found = made(x, m)
        np.testing.assert_allclose(found[0], -2 * np.einsum("i,j,ij,ijc->ic", m, m, r**-3.0, d), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(found[1], 2 * (m / r).sum(1), rtol=1e-12)
        for one, two in zip(found, plain(x, m)):
            np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-12)


DENSITY = """(fn [#^ (Mat n 2) x h]
  (sum (square (- (build (len x) (fn [i] (ifold (fn [s j]
    (let [a (- (get x i 0) (get x j 0))  b (- (get x i 1) (get x j 1))  q (/ (+ (* a a) (* b b)) (* h h))]
      (+ s (if (< q 1.0) (** (- 1.0 q) 3) 0.0)))) 0.0 (len x)))) 1.0))))"""


@pytest.mark.parametrize("wrt", [0, 1, (0, 1)])
def test_what_members_take_loops_for_is_there_before_the_pairs(wrt: int | tuple[int, ...]) -> None:
    """Smoothed particles: what a pair gives hangs on the densities of both, and on whether it is within reach; the
    sum over all pairs, by their reach, keeps no member waiting for another."""
    model = hyad.model(DENSITY, namespace={})
    f = hyad.grad(model, wrt=wrt)
    names = {step.name for step in hyad.explain(f, args=(X, 0.9)).steps}
    assert "choices" in names and ("pairs" in names) == (wrt != 1)
    for n in (0, 1, 2, 7):
        args = X[:n], 0.9
        plain = memoised.compile(f, args=args, target="python", without=("pairs", "choices"))(*args)
        for made in (memoised.compile(f, args=args), memoised.compile(f, args=args, target="python")):
            for got, expected in zip(flat(made(*args)), flat(plain)):
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    assert hyad.check_grad(model, [X, 0.9], wrt=wrt)


def flat(value: object) -> list:
    return list(value) if isinstance(value, tuple) else [value]


def test_a_branch_by_reals_that_is_cheap_is_no_branch() -> None:
    """Both sides are computed; a call stays a branch, and so does what an index decides."""
    sums = "(fn [#^ (Vec n) x #^ (Vec n) y] (ifold (fn [s i] (+ s (if CONDITION ARM (get y i)))) 0.0 (len x)))"
    for condition, arm, fires in (
        ("(< (get x i) 0.5)", "(* 2.0 (get x i))", False),  # the elements are read in the branch
        ("(< (get x i) (get y i))", "(exp (get y i))", False),
        ("(< i 3)", "(* (get x i) (get x i))", False),
    ):
        f = hyad.model(sums.replace("CONDITION", condition).replace("ARM", arm), namespace={})
        assert ("choices" in [step.name for step in hyad.explain(f, args=(M, M)).steps]) == fires
    let = "(let [a (get x i) b (get y i)] (+ s (if (< a b) (* a (- b a)) (* b b))))"
    f = hyad.model(f"(fn [#^ (Vec n) x #^ (Vec n) y] (ifold (fn [s i] {let}) 0.0 (len x)))", namespace={})
    assert "choices" in [step.name for step in hyad.explain(f, args=(M, M)).steps]
    x, y = np.array([0.1, np.nan, 2.0, np.inf]), np.array([0.3, 1.0, np.nan, np.inf])
    for k in range(5):
        got, plain = (memoised.compile(f, args=(x, y), without=w)(x[:k], y[:k]) for w in ((), "choices"))
        np.testing.assert_equal(got, plain)


#: The pairs of different members, as they are written, over what one of them gives.
DIFFERENT = {
    "no pair of one": "(if (= i j) 0.0 {})",
    "pairs of two": "(if (!= j i) {} 0.0)",
    "near ones": "(if (and (!= i j) (< (sq-norm (- (get x i) (get x j))) 1.5)) {} 0.0)",
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_pairs_of_different_members(name: str) -> None:
    """They are turned as all pairs are: nothing is added at the second one, nor computed again for the turned pair."""
    term = DIFFERENT[name].format("(/ (* (get m i) (get m j)) (norm (- (get x i) (get x j))))")
    text = f"(fn [#^ (Mat n 2) x #^ (Vec n) m] (sum (build [(len m) (len m)] (fn [i j] {term}))))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt=("x", "m"))
    made, plain = (hyad.compile(f, args=(X, M), target="python", without=w) for w in ("lanes", ("pairs", "split")))
    inner = [x.op for loop in all_binds(made.program.body) if type(loop.op) is Loop for x in loop.op.body.binds]
    inner = [op for op in inner if type(op) is Loop]
    assert len(inner) == 2
    for op in inner:
        names = [x.op.name for x in all_binds(op.body) if type(x.op) is Prim]
        assert "add-at" not in names and names.count("sqrt") == 1
    for n in (0, 1, 2, 7):
        for got, wanted in zip(made(X[:n], M[:n]), plain(X[:n], M[:n])):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
    assert hyad.check_grad(hyad.model(text, namespace={}), [X, M], wrt=("x", "m"))


def test_each_pair_once_is_not_turned() -> None:
    """Where one member comes before the other, half of the pairs are those of a turned one."""
    term = "(if (< i j) (/ 1.0 (+ 0.1 (square (- (get x i) (get x j))))) 0.0)"
    f = hyad.grad(f"(fn [#^ (Vec n) x] (sum (build [(len x) (len x)] (fn [i j] {term}))))")
    assert not any(step.name == "pairs" for step in hyad.explain(f, args=(M,)).steps)


@pytest.mark.some(2)
@pytest.mark.parametrize("h", ["(@ x w)", "(relu (@ x w))", "(tanh (@ x w))"])
def test_many_arrays_that_pairs_add_to_take_their_number_of_tries(h: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not twice as many for each, as where all are tried with and without: a Hessian by four weights adds to many."""
    tries = []
    turned = pairs.Pairs.turned

    def counted(*args: Any) -> Any:
        tries.append(1)
        assert len(tries) < 500
        return turned(*args)

    monkeypatch.setattr(pairs.Pairs, "turned", counted)
    text = f"(fn [#^ (Mat 2 2) w #^ (Mat n 2) x] (let [h {h}] (sum (square (@ h (transpose h))))))"
    hessian = hyad.hessian(hyad.model(text, namespace={}), wrt="w")
    rng = np.random.default_rng(3)
    args = rng.uniform(-1, 1, (2, 2)), rng.uniform(-1, 1, (5, 2))
    np.testing.assert_allclose(hyad.compile(hessian)(*args), hyad.run(hessian, *args), 1e-11, 1e-12)
    assert tries
