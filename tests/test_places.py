"""Adjoint rows with one element other than zero, as place and value (``hyad/passes/places.py``): gradients of best
paths against differences, forward mode and what they are without the pass; what is left as a row."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import Arr, Loop, While, all_binds

PROGRAMS = {
    "alignment": (
        """(fn [#^ (Mat n m) a  #^ Real gap]
        (let [m (len (get a 0))
              last (fold
                (fn [above row]
                  (let [first (- (get above 0) gap)]
                    (concat [first]
                      (scan (fn [left j] (max (+ (get above j) (get row j)) (- (get above (+ j 1)) gap) (- left gap)))
                        first (arange m)))))
                (build (+ m 1) (fn [j] (- (* gap j))))
                a)]
          (get last m)))""",
        lambda rng, n: (rng.normal(size=(n, n + 1)), 0.3),
    ),
    "the shortest way": (
        """(fn [#^ (Mat k k) a  #^ (Vec k) start]
        (min (ifold (fn [d t] (build k (fn [j] (min (build k (fn [i] (+ (get d i) (get a i j)))))))) start 5)))""",
        lambda rng, n: (rng.normal(size=(n, n)), rng.normal(size=n)),
    ),
    "a seam": (
        """(fn [#^ (Mat n m) a]
        (let [m (len (get a 0))]
          (min (fold
              (fn [d row] (build m (fn [j]
                (+ (get row j) (min (get d (max 0 (- j 1))) (get d j) (get d (min (- m 1) (+ j 1))))))))
              (get a 0) (slice a 1 (len a))))))""",
        lambda rng, n: (rng.normal(size=(n + 1, n)),),
    ),
    "a knapsack": (
        """(fn [#^ (Vec n) a  #^ (Arr Int n) weight  #^ Int room]
        (get (ifold
            (fn [d t] (build (+ room 1) (fn [c]
              (if (>= c (get weight t)) (max (get d c) (+ (get a t) (get d (- c (get weight t))))) (get d c)))))
            (build (+ room 1) (fn [c] 0.0)) n)
          room))""",
        lambda rng, n: (rng.uniform(size=n), rng.integers(0, 4, n), 2 * n),
    ),
    "two turns in a branch": (
        """(fn [#^ (Mat n m) a]
        (let [m (len (get a 0))]
          (max (ifold
              (fn [d t] (build m (fn [j] (if (> j 2)
                (max (+ (get a t j) (get d (- j 1))) (- (get d (- j 2)) 0.1))
                (+ (get a t j) (get d j))))))
              (get a 0) n))))""",
        lambda rng, n: (rng.normal(size=(n, n + 4)),),
    ),
}  # fmt: skip

#: What has more than one way: no row of theirs keeps one element other than zero, or none is known to.
OTHERS = {
    "twice": "(+ (get d j) (max (get row j) (get d (max 0 (- j 1)))))",
    "a mean": "(* 0.5 (+ (get d j) (get d (max 0 (- j 1)))))",
    "a scale": "(max (+ (get row j) (get d j)) (* 0.5 (get d (max 0 (- j 1)))))",
    "both of a choice": "(if (> (get row j) 0.0) (+ (get d j) (get d 0)) (get d j))",
    "two choices": "(+ (max (get row j) (get d j)) (max 0.0 (get d (max 0 (- j 1)))))",
}


def gradient(text: str) -> hyad.Model:
    f = hyad.model(text, namespace={})
    return hyad.grad(f, wrt=0)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_as_without_the_pass(name: str) -> None:
    """Numbers, ties, infinities and NaN, rows of one element: the same, and for numbers what differences say."""
    text, draw = PROGRAMS[name]
    f, g = hyad.model(text, namespace={}), gradient(text)
    rng = np.random.default_rng(4)
    first = draw(rng, 4)
    assert "one-place" in hyad.explain(g, args=first).fired()
    made, plain = (hyad.compile(g, without=w) for w in ((), "one-place"))
    for n in (1, 2, 4, 9):
        args = draw(rng, n)
        assert hyad.check_grad(f, args, wrt=0)
        a = args[0]
        for x in (None, 0.5, -np.inf, np.inf, np.nan):
            if x is not None:
                a.flat[rng.integers(0, a.size, 1 + a.size // 3)] = x
            np.testing.assert_array_equal(made(*args), plain(*args))


def test_the_way_is_followed_back_alone() -> None:
    """No loop over a row is left beside those that go forwards: the steps back are those of the path."""
    for name in PROGRAMS:
        text, draw = PROGRAMS[name]
        g = gradient(text)
        program = g.optimised(g.specs(draw(np.random.default_rng(3), 4)))
        loops = [x.op for x in program.body.binds if type(x.op) is Loop]
        (back,) = [op for op in loops if any(op.accs[k].name == "at" for k in range(len(op.accs) - 1))]
        inner = [x.op for x in all_binds(back.body) if type(x.op) in (Loop, While)]
        assert len(inner) == (name in ("alignment", "the shortest way")), name
        assert sum(isinstance(a.type, Arr) for a in back.accs) == 1, name


@pytest.mark.parametrize("name", OTHERS)
def test_rows_with_more_than_one_way_stay_rows(name: str) -> None:
    text = f"""(fn [#^ (Mat n m) a] (let [m (len (get a 0))]
        (max (fold (fn [d row] (build m (fn [j] {OTHERS[name]}))) (get a 0) (slice a 1 (len a))))))"""
    f, g = hyad.model(text, namespace={}), gradient(text)
    args = (np.random.default_rng(5).normal(size=(5, 4)),)
    assert "one-place" not in hyad.explain(g, args=args).fired()
    assert hyad.check_grad(f, args, wrt=0)


def test_several_adjoints_stay_a_row() -> None:
    """The sum of the last states hands an adjoint on to all of them."""
    text, draw = PROGRAMS["a seam"]
    g = gradient(text.replace("(min (fold", "(sum (fold"))
    args = draw(np.random.default_rng(5), 4)
    assert "one-place" not in hyad.explain(g, args=args).fired()


def test_a_user_who_moves_an_element_gets_his_zeros() -> None:
    """Sums that are not differentiation's may differ in the signs of zeros."""
    text = """(fn [#^ (Vec n) x #^ Int p] (let [n (len x)]
        (ifold (fn [a k] (build n (fn [j] (+ (get a j) 0.0)))) (update (zeros n) p 1.0) 3)))"""
    f = hyad.model(text, namespace={})
    args = (np.zeros(4), 2)
    assert "one-place" not in hyad.explain(f, args=args).fired()
    np.testing.assert_array_equal(hyad.compile(f)(*args), [0, 0, 1, 0])


def test_counts_from_one_element_on() -> None:
    """Places are checked in the loop, which goes on with a row that has one element."""
    f = hyad.model(
        """(fn [#^ (Arr Int k) at #^ (Vec k) c #^ (Vec n) x] (ifold (fn [row e]
             (let [i (get at e)] (update row i (+ (get row i) (get c e))))) (update (zeros n) 0 (get c 1)) k))""",
        namespace={},
    )
    args = (np.array([0, 2, 1, 1]), np.arange(4.0), np.ones(3))
    np.testing.assert_array_equal(hyad.compile(f)(*args), [1, 5, 1])
    np.testing.assert_array_equal(hyad.run(f, *args), [1, 5, 1])
    with pytest.raises(hyad.HyadError, match="3"):
        hyad.compile(f)(np.array([0, 3, 1, 1]), *args[1:])


def turn(rng: np.random.Generator, depth: int) -> str:
    """What a state may be made of: choices of states before, shifted, and sums of some."""
    kind = rng.integers(0, 8 if depth else 2)
    if kind < 2:
        read = f"(get d (max 0 (min (- m 1) (+ j {rng.integers(-2, 3)}))))"
        return f"(+ {read} (* {rng.normal():.2f} (get row j)))" if kind else read
    one, other = turn(rng, depth - 1), turn(rng, depth - 1)
    if kind < 5:
        return f"({rng.choice(['max', 'min'])} {one} {other})"
    if kind < 7:
        compared = rng.choice(["j 2", "(get row j) 0.3", "(get row 0) 0.0"])
        return f"(if ({rng.choice(['<', '>='])} {compared}) {one} {other})"
    return f"(+ {one} (* 0.3 {other}))"


@pytest.mark.some(6)
@pytest.mark.parametrize("seed", range(8))
def test_random_steps(seed: int) -> None:
    """Reverse mode with the pass, without it, and forward mode."""
    rng = np.random.default_rng(seed)
    text = f"""(fn [#^ (Mat n m) a] (let [m (len (get a 0))]
        (max (fold (fn [d row] (build m (fn [j] {turn(rng, 2)}))) (get a 0) (slice a 1 (len a))))))"""
    f, g = hyad.model(text, namespace={}), gradient(text)
    a = rng.normal(size=(4, 5))
    made, plain = (hyad.compile(g, args=(a,), target="python", without=w)(a) for w in ((), "one-place"))
    np.testing.assert_allclose(made, plain, rtol=1e-13, atol=1e-15)
    along = rng.normal(size=a.shape)
    assert np.sum(made * along) == pytest.approx(hyad.jvp(f, (a,), (along,)), rel=1e-9, abs=1e-12)
