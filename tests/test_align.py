"""Two loops as one of which the second reads what the first has just stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Loop, Program, all_binds

SIZES = (1, 2, 3, 4, 9, 20)

#: One part of a step: ``n`` is the length of ``a``, and ``b`` is as long.
PARTS = {
    "next": "(build n (fn [i] (if (= i 0) (get b 0) (* (get b i) (get a (- i 1))))))",
    "last": "(build n (fn [i] (if (= i (- n 1)) (get a i) (* (get b i) (get a (+ i 1))))))",
    "two on": "(build n (fn [i] (if (< i 2) (get b i) (+ (get a i) (* (get b i) (get a (- i 2)))))))",
    "both": "(build n (fn [i] (if (or (= i 0) (= i (- n 1))) (get a i) (- (get a (- i 1)) (get a (+ i 1))))))",
    "along": "(build n (fn [i] (+ (get a i) (* 0.5 (get b i)))))",
    "twice": "(map (fn [p q] (- (* p q) p)) a b)",
}

CHAIN = """(fn [#^ (Vec n) v #^ (Vec n) w]
  (let [n (len v)
        step (fn [a b] {one})
        along (fn [a b] {two})
        k1 (step v w)
        z1 (along v k1)
        k2 (step z1 w)
        z2 (along z1 k2)
        k3 (step z2 k1)]
    (sum (map (fn [p q r] (+ (* p p) (* q r))) k1 k2 k3))))"""

PAIR = "(fn [#^ (Vec n) v #^ (Vec n) w] (let [n (len v) a (build n (fn [i] {one})) c (build n (fn [i] {two}))] [a c]))"
RUNNING = "(if (= i 0) 1.0 (* (get w i) (get v (- i 1))))"

#: What the second one of two loops reads of the first one's array, and how many loops there are then.
PAIRS = {
    "the same element": ("(* (get v i) (get w i))", "(* 2.0 (get a i) (get a i) (get a i) (get w i))", 1),
    "the element just stored": (RUNNING, "(+ (get v i) (* 0.5 (get a i)))", 1),
    "its neighbour": (RUNNING, "(if (= i 0) 1.0 (* (get v i) (get a (- i 1))))", 2),
    "the next one, which was stored": (RUNNING, "(if (= i (- n 1)) 1.0 (* (get v i) (get a (+ i 1))))", 1),
    "two elements": (RUNNING, "(if (= i 0) 1.0 (* (get a i) (get a (- i 1))))", 2),
    "an exponential": (RUNNING, "(exp (get a i))", 2),
    "another order": (RUNNING, "(get a (- (- n 1) i))", 2),
}


def model(text: str) -> hyad.Model:
    return hyad.model(text, namespace={})


def optimised(f: Any, off: tuple[str, ...] = ()) -> Program:
    return hyad.stages(f, without=off)["optimised"].program  # type: ignore[return-value]


def loops(program: Program) -> int:
    return sum(type(x.op) is Loop for x in all_binds(program.body))


def fires(f: hyad.Model) -> bool:
    return "\nalign:" in str(hyad.explain(f))


@pytest.mark.some(12)
@pytest.mark.parametrize("one", PARTS)
@pytest.mark.parametrize("two", PARTS)
def test_the_values_stay_to_the_last_bit(one: str, two: str) -> None:
    f = model(CHAIN.format(one=PARTS[one], two=PARTS[two]))
    for g in (f, hyad.value_and_grad(f)):
        with_it, plain = hyad.stages(g)["optimised"], hyad.stages(g, without="align")["optimised"]
        for n in SIZES:
            rng = np.random.default_rng(n)
            v, w = rng.standard_normal((2, n))
            if n >= 2 or "two on" not in (one, two):
                assert np.array_equal(flat(with_it(v, w)), flat(plain(v, w))), n


def flat(x: Any) -> np.ndarray:
    return np.concatenate([flat(y) for y in x]) if isinstance(x, (tuple, list)) else np.ravel(x)


@pytest.mark.parametrize("what", PAIRS)
def test_two_loops_are_one_where_each_iteration_reads_its_own_element(what: str) -> None:
    one, two, expected = PAIRS[what]
    f = model(PAIR.format(one=one, two=two))
    made = optimised(f)
    assert loops(made) == expected
    assert loops(optimised(f, ("align",))) == 2
    text, plain = hyad.compile(f), hyad.compile(f, without="align")
    for n in (0, *SIZES):
        v, w = np.random.default_rng(n).standard_normal((2, n))
        assert np.array_equal(flat(text(v, w)), flat(plain(v, w))), n


def test_a_chain_of_slopes_is_one_loop_for_each_stage() -> None:
    f = hyad.grad(model(CHAIN.format(one=PARTS["next"], two=PARTS["along"])))
    assert fires(f)
    assert loops(optimised(f)) < loops(optimised(f, ("align",)))


def test_what_the_first_loop_reads_the_second_may_not_change() -> None:
    """ȳ is read one element further on than it is changed."""
    f = model("""(fn [#^ (Vec n) v #^ (Vec n) w]
      (let [n (len v)]
        (sum (square (ifold (fn [y t]
          (let [a (build n (fn [i] (if (= i (- n 1)) (get w i) (* (get w i) (get y (+ i 1))))))]
            (map (fn [p q] (+ p (* q q q q))) y a))) v 3)))))""")
    for g in (f, hyad.grad(f)):
        text, plain = hyad.compile(g), hyad.compile(g, without="align")
        for n in SIZES:
            v, w = np.random.default_rng(n).standard_normal((2, n))
            assert np.array_equal(flat(text(v, w)), flat(plain(v, w))), n


#: What a fold makes of a row and a matrix's next one, by a scan; whether what the scan gives is stored where it goes.
ROWS = {
    "behind its start": (
        """(let [first (- (get above 0) p)]
             (concat [first]
               (scan (fn [left j] (max (+ (get above j) (get row j)) (- (get above (+ j 1)) p) (- left p)))
                 first (arange m))))""", True,
    ),
    "of products": (
        """(let [first (* 0.5 (get above m))]
             (concat [first]
               (scan (fn [left j] (+ (* p left (get above (+ j 1))) (sin (get row j)))) first (arange m))))""", True,
    ),
    "before its end": (
        """(concat (scan (fn [left j] (+ (* p left (get above (+ j 1))) (get row j))) 0.1 (arange m)) [p])""", True,
    ),
    "before its end, by a function": (
        """(concat (scan (fn [left j] (tanh (+ (* p left) (get above (+ j 1)) (get row j)))) 0.1 (arange m))
             [p])""", True,
    ),
    "turned around": (
        """(concat [p]
             (flip (scan (fn [left j] (sin (+ (* p left) (get above j) (get row j)))) 0.1 (arange m))))""", False,
    ),
    "with what was there": (
        """(let [s (scan (fn [left j] (sin (+ (* p left) (get above j) (get row j)))) 0.1 (arange m))]
             (build (+ m 1) (fn [j] (if (= j 0) p (* (get above j) (get s (- j 1)))))))""", False,
    ),
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("name", ROWS)
def test_what_a_scan_gives_is_stored_where_it_goes(name: str) -> None:
    """The state of a gradient's loop lies where it is remembered, and the scan fills its next row."""
    row, joined = ROWS[name]
    f = model(f"""(fn [#^ Real p #^ (Mat n m) a]
      (let [last (fold (fn [above row] {row}) (build (+ m 1) (fn [j] (* p (sin (real j))))) a)]
        (+ (get last m) (* p (sin (get last 0))))))""")
    g = hyad.value_and_grad(f, wrt=("p", "a"))
    rng = np.random.default_rng(4)
    args = 0.3, rng.standard_normal((9, 10))
    made = [hyad.compile(g, t, args=args, without=w) for t in ("c", "python") for w in ((), "align", "renew")]
    assert (made[0].source.count("for (") < made[1].source.count("for (")) == joined
    for n, m in ((1, 1), (1, 5), (2, 2), (5, 1), (6, 9), (3, 20)):
        args = 0.3, rng.standard_normal((n, m))
        first, *others = (h(*args) for h in made)
        for other in others:
            np.testing.assert_allclose(flat(first[0]), flat(other[0]), rtol=1e-14)
            for x, y in zip(first[1], other[1]):
                np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(first[1][1], made[1](*args)[1][1])
    assert hyad.check_grad(f, (0.3, rng.standard_normal((4, 5))), wrt=("p", "a"))
    assert hyad.compile(f, args=args)(*args) == hyad.compile(f, args=args, without=("align", "renew"))(*args)


def test_a_state_that_is_remembered_is_not_copied() -> None:
    f = model(f"""(fn [#^ Real p #^ (Mat n m) a]
      (get (fold (fn [above row] {ROWS["behind its start"][0]}) (zeros (+ m 1)) a) m))""")
    args = 0.3, np.ones((4, 5))
    source = hyad.compile(hyad.grad(f, wrt="a"), args=args).source
    forwards = source[source.index("restrict work)") : source.index("_bar = 1.0")]
    assert "memcpy" not in forwards
    assert forwards.count("for (") == 2
