"""What a derivative adds in each iteration to all elements before or after it: running sums."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
import oracle

#: What is summed over i, of vectors v and w, a matrix m of n rows, and a vector u as long as a row; whether derivatives
#: by v, w, m and u have running sums.
SUMS = {
    "who is at risk": ("(* (get w i) (- (get v i) (log (sum (exp (slice v i n))))))", True),
    "who was before": ("(* (get w i) (ifold (fn [s j] (+ s (* (get w i) (sin (get v j))))) 0.0 (+ i 1)))", True),
    "all below": ("(exp (ifold (fn [s j] (+ s (* (get w i) (get v j)))) 0.1 i))", True),
    "two factors": (
        """(ifold (fn [s j] (let [x (get v (+ i j))] (+ s (* (get w i) x) (* (sin (get w i)) (sin x)))))
             0.0 (- n i))""", True,
    ),
    "pairs": ("(sin (ifold (fn [s j] (+ s (* (get w i) (exp (get v (+ i j 1)))))) 0.0 (- n i 1)))", True),
    "far pairs": ("(sin (ifold (fn [s j] (+ s (* (get w i) (exp (get v (+ i j)))))) 0.0 (- n i 3)))", True),
    "a branch": (
        """(exp (* 0.1 (ifold (fn [s j] (let [x (get v (+ i j))] (+ s (* (get w i) (if (> x 0.0) (sin x) (* 2.0 x))))))
                      0.0 (- n i))))""", True,
    ),
    "rows": ("(* (get w i) (log (ifold (fn [s j] (+ s (exp (dot u (get m (+ i j)))))) 0.0 (- n i))))", True),
    "by a comparison": (
        """(* (get w i) (log (ifold (fn [s j] (if (>= j i) (+ s (exp (get v j))) s)) 0.0 n)))""", True,
    ),
    "below, by a comparison": (
        """(sin (ifold (fn [s j] (if (< j i) (+ s (* (get w i) (get v j))) s)) 0.1 n))""", True,
    ),
    "of both": ("(log (ifold (fn [s j] (+ s (exp (* (get v i) (get v (+ i j)))))) 0.0 (- n i)))", False),
    "far off": ("(sin (ifold (fn [s j] (+ s (* (get w i) (get v (% (+ i i j) n))))) 0.0 (- n i)))", False),
    "a branch of both": (
        """(sin (ifold (fn [s j] (let [x (get v (+ i j))] (+ s (if (> x (get v i)) (* (get w i) x) 0.0))))
                  0.0 (- n i)))""", False,
    ),
    "around": ("(sin (ifold (fn [s j] (+ s (* (get w i) (get v (% (+ i j) n))))) 0.0 (- n i)))", True),
    "too far around": ("(sin (ifold (fn [s j] (+ s (* (get w i) (get v (% (+ i j) n))))) 0.0 (- (+ n 2) i)))", False),
    "in a square": ("(sin (ifold (fn [s j] (+ s (square (- (get v i) (get v (+ i j)))))) 0.0 (- n i)))", False),
    "to half of it": ("(exp (* 0.1 (ifold (fn [s j] (+ s (* (get w i) (get v j)))) 0.0 (// i 2))))", False),
}  # fmt: skip


def gradient(name: str) -> hyad.Model:
    text = f"""(fn [#^ (Vec n) v #^ (Vec n) w #^ (Mat n d) m #^ (Vec d) u]
      (sum (build n (fn [i] {SUMS[name][0]}))))"""
    return hyad.grad(text, wrt=("v", "w", "m", "u"))


def arguments(n: int, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), rng.normal(size=n), rng.normal(size=(n, 5)), rng.normal(size=5)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", SUMS)
def test_gradients(name: str) -> None:
    g, args = gradient(name), arguments(6)
    made = [hyad.compile(g, t, args=args, without=w) for t in ("c", "python") for w in ((), "running-sums")]
    for n in (0, 1, 2, 3, 4, 19):
        args = arguments(n, n)
        wanted = hyad.run(g, *args)
        for f in made:
            assert oracle.mismatch(f(*args), wanted, 1e-11) is None
    assert any(step.name == "running-sums" for step in hyad.explain(g, args=args).steps) == SUMS[name][1]


@pytest.mark.parametrize("name", [k for k in SUMS if SUMS[k][1]])
def test_what_is_infinite_or_no_number_goes_where_it_went(name: str) -> None:
    g = gradient(name)
    made, plain = (hyad.compile(g, args=arguments(7), without=w) for w in ((), "running-sums"))
    for bad in (np.nan, np.inf, -np.inf):
        for which in (0, 1):
            for k in (0, 3, 6):
                args = arguments(7)
                args[which][k] = bad
                for got, wanted in zip(made(*args), plain(*args)):
                    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_the_adjoint_of_a_sum_of_sums_takes_linear_time() -> None:
    """Cox's likelihood: what is left of two loops inside one another is the model's own."""
    source = hyad.compile(
        gradient("who is at risk"), args=arguments(5), without=("growing-sums", "jam", "strands")
    ).source
    nested = [line for line in source.splitlines() if re.match(r" {8}for ", line)]
    assert len(nested) == 1 and re.search(r"< n - \w+;", nested[0])


def test_a_table_is_read_where_it_is() -> None:
    """What a loop reads of a table, beside what it adds up, is not stacked for the way back: Cox's likelihood in two
    loops has one exponential for each row, and no loop inside another but the model's own and those over a row."""
    text = """(fn [#^ (Vec d) u #^ (Mat n d) m #^ (Vec n) w]
      (let [total (ref 0.0)]
        (for [i (range n)]
          (let [risk (ref 0.0)]
            (for [j (range i n)] (set! risk (+ (deref risk) (exp (dot (get m j) u)))))
            (set! total (+ (deref total) (* (get w i) (log (deref risk)))))))
        (deref total)))"""
    g = hyad.grad(text, wrt="u")
    _, w, m, u = arguments(7)
    source = hyad.compile(g, args=(u, m, w), without=("jam", "strands", "jam-rows")).source
    assert source.count("exp(") == 1 and not re.search(r"\n {12}for ", source)
    for n in (0, 1, 2, 7):
        _, w, m, u = arguments(n)
        wanted = hyad.run(g, u, m, w)
        for target in ("c", "python"):
            assert oracle.mismatch(memoised.compile(g, target, args=(u, m, w))(u, m, w), wanted, 1e-11) is None


def test_what_changes_is_stacked() -> None:
    """Elements of an array that a later iteration changes."""
    text = """(fn [#^ (Vec n) v] (let [z (copy v)]
      (sum (build n (fn [i]
        (let [s (ref 0.0)]
          (for [j (range n)]
            (set! s (+ (deref s) (* (deref s) (get z j)) (sin (get z j))))
            (set-at! z j (* 0.5 (+ (get z j) (get v i)))))
          (deref s)))))))"""
    g = hyad.grad(text)
    for n in (0, 1, 2, 5):
        v = 0.1 * arguments(n)[0]
        wanted = hyad.run(g, v)
        for target in ("c", "python"):
            assert oracle.mismatch(memoised.compile(g, target, args=(v,))(v), wanted, 1e-11) is None


def test_a_users_sum_is_not_taken_apart() -> None:
    """The same additions as a model writes them keep their order."""
    text = """(fn [#^ (Vec n) v #^ (Vec n) w]
      (ifold (fn [z i] (scatter-add z (arange i n) (* (get w i) (slice v i n)))) (zeros n) n))"""
    v, w, _, _ = arguments(9)
    for target in ("c", "python"):
        made, plain = (hyad.compile(text, target, args=(v, w), without=x) for x in ((), "running-sums"))
        np.testing.assert_array_equal(made(v, w), plain(v, w))
    assert not any(step.name == "running-sums" for step in hyad.explain(text, args=(v, w)).steps)


def test_what_is_read_in_between() -> None:
    """The adjoint of a table that is filled from its end: what an iteration adds the next one reads."""
    text = """(fn [#^ (Vec n) v #^ (Vec n) w]
      (let [z (zeros n)]
        (for [i (range (- n 1) -1 -1)]
          (let [s (ref (get v i))]
            (for [j (range (+ i 1) n)] (set! s (+ (deref s) (* (get w i) (get z j)))))
            (set-at! z i (sin (deref s)))))
        (sum z)))"""
    g = hyad.grad(text, wrt=("v", "w"))
    for n in (0, 1, 2, 7):
        v, w, _, _ = arguments(n)
        wanted = hyad.run(g, v, w)
        for target in ("c", "python"):
            assert oracle.mismatch(memoised.compile(g, target, args=(v, w))(v, w), wanted, 1e-11) is None
