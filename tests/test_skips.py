"""Adjoints that are zero go nowhere (``hyad/passes/skips.py``): gradients of best paths against differences and against
what they are without the pass, at ties, infinities and NaN; what is skipped, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import REAL, Arr, Bind, If, Loop, Prim, Program, Var, all_binds, integer
from hyad.passes.skips import additions
from hyad.program.journal import without

BEST = """(fn [#^ (Mat k k) steps  #^ (Mat n k) seen]
  ({of} (fold
      (fn [best e]
        (build (len e) (fn [j] (+ (get e j) (max (build (len best) (fn [i] (+ (get best i) (get steps i j)))))))))
      (get seen 0)
      (slice seen 1 (len seen)))))"""

TABLE = """(fn [#^ (Mat n m) alike  #^ Real gap]
  (let [m (len (get alike 0))
        last (fold
          (fn [above row]
            (let [first (- (get above 0) gap)]
              (concat [first]
                (scan (fn [left j] (max (+ (get above j) (get row j)) (- (get above (+ j 1)) gap) (- left gap)))
                  first (arange m)))))
          (build (+ m 1) (fn [j] (- (* gap j))))
          alike)]
    ({of} last)))"""

FILLED = """(fn [#^ (Mat n m) alike  #^ Real gap]
  (let [n (len alike)
        m (len (get alike 0))
        table (build [(+ n 1) (+ m 1)] (fn [i j] (- (* gap (+ i j)))))]
    (ifold (fn [_ i]
        (ifold (fn [_ j]
            (set-at! table (+ i 1) (+ j 1)
              (max (+ (get table i j) (get alike i j)) (- (get table i (+ j 1)) gap) (- (get table (+ i 1) j) gap)))
            0)
          0 m))
      0 n)
    ({of} (get table n))))"""

#: What is taken of the last states: one adjoint, as many as there are states, and those of a product.
OF = ("max", "sum", "prod")


def skipped(f: hyad.Model) -> list[If]:
    """The branches of a gradient that are taken for adjoints other than zero, those without work left out, where rows
    are not known to have one alone."""
    with without(["one-place"]):
        program: Program = f.optimised(f.specs())
    tests = {x.vars[0] for x in all_binds(program.body) if getattr(x.op, "name", "") == "!="}
    return [x.op for x in all_binds(program.body) if type(x.op) is If and x.op.cond in tests]


@pytest.mark.some(6)
@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize("text", (BEST, TABLE, FILLED), ids=("best path", "row by row", "table"))
def test_gradients_are_as_without_the_pass(text: str, of: str) -> None:
    """Numbers, ties, infinities, NaN: the same, but for the signs of zeros."""
    f = hyad.model(text.replace("{of}", of), namespace={})
    g = hyad.grad(f, wrt=(0, 1))
    rng = np.random.default_rng(8)
    for n, k in ((1, 1), (2, 3), (7, 4), (5, 9)):
        seen = rng.normal(size=(n, k))
        args = [rng.normal(size=(k, k)), seen] if text is BEST else [seen, 0.3]
        assert hyad.check_grad(f, tuple(args), wrt=(0, 1))
        plain = memoised.compile(g, without=["skips"])
        made = memoised.compile(g)
        for change in ({}, {0: -np.inf}, {0: np.nan}, {k - 1: np.inf}, dict.fromkeys(range(k), 0.5)):
            for j, x in change.items():
                seen[n // 2, j] = x
            for got, want in zip(made(*args), plain(*args)):
                np.testing.assert_array_equal(got, want)


def test_the_search_runs_for_the_best_path_alone() -> None:
    """The place of the largest is looked for where there is an adjoint to be put."""
    (branch,) = skipped(hyad.grad(hyad.model(BEST.replace("{of}", "max"), namespace={}), wrt=(0, 1)))
    assert any(type(x.op) is Loop for x in branch.then.binds) and not branch.orelse.binds


@pytest.mark.parametrize("text", (TABLE, FILLED), ids=("row by row", "in place"))
def test_a_table_chooses_its_way_where_there_is_one(text: str) -> None:
    """The loop waits for the adjoint of the field before: what a field chooses is in the branch."""
    (branch,) = skipped(hyad.grad(hyad.model(text.replace("{of}", "max"), namespace={}), wrt=(0, 1)))
    assert sum(getattr(x.op, "name", "") == "select" for x in branch.then.binds) == 4


@pytest.mark.parametrize(
    "text",
    (
        # zero times an infinite slope is NaN, with the pass and without
        "(fn [x] (fold (fn [s a] (* (max (* s a) (* 0.5 s)) a)) 1.0 x))",
        # what the loop chooses does not wait for the iteration before: vectors
        "(fn [x y] (sum (build (len x) (fn [i] (max (get x i) (get y i))))))",
        # each element is cleared, and has all of what comes to it: vectors
        """(fn [x y] (let [z (copy x)]
            (ifold (fn [_ i] (set-at! z i (max (get z i) (get y i))) 0) 0 (len x)) (sum (square z))))""",
        # a user's sums
        "(fn [x y] (ifold (fn [s i] (update s i (+ (get s i) (max (get x i) (get y i))))) x (len x)))",
    ),
)
def test_what_is_left_alone(text: str) -> None:
    f = hyad.model(text.replace("[x y]", "[#^ (Vec n) x  #^ (Vec n) y]").replace("[x]", "[#^ (Vec n) x]"))
    g = f if "update" in text else hyad.grad(f, wrt=0)
    assert not skipped(g)
    assert "skips" not in [step.name for step in hyad.explain(g).steps]


def test_a_loop_that_adds_the_adjoint_itself_is_no_search() -> None:
    """It goes to all of a row: nothing says that there are zeros."""
    text = """(fn [#^ (Vec n) x  #^ (Vec m) y  #^ Int t]
      (sum (ifold
        (fn [v k] (build (len v) (fn [j] (ifold (fn [s i] (+ s (get y i))) (get v (% (+ j 1) (len v))) k))))
        x t)))"""
    f = hyad.model(text, namespace={})
    assert not skipped(hyad.grad(f, wrt=(0, 1)))
    assert hyad.check_grad(f, (np.array([0.5, -1.0]), np.array([2.0, 0.3, 0.1]), 3), wrt=(0, 1))


@pytest.mark.parametrize("own", [True, False])
def test_what_a_user_adds_to_an_element_is_not_skipped(own: bool) -> None:
    """-0.0 and 0.0 are 0.0: what differentiation adds may be left out where it is zero, a user's number may not."""
    t, before, after = Var("t", REAL), Var("a", Arr(REAL, (integer(3),))), Var("a", Arr(REAL, (integer(3),)))
    store = Bind((after,), Prim("add-at", (before, integer(0), t)), soft=own)
    assert additions([store], {t}) is own
