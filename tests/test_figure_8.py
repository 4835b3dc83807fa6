"""dF~ Fig. 8 rule by rule, on the programs that are compiled (the textbook's rewriting has its own tests): the left
side of a rule becomes what its right side becomes, and with the optimisation that does it switched off it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Program
from hyad.program.forms import unparse
from hyad.program.journal import without
from hyad.program.printer import alpha_equal, print_program

#: The parameters of every model below, and values of them: numbers, vectors, a size and conditions' numbers.
PARAMS = "x y #^ (Vec n) v #^ (Vec n) w #^ Int k"
ARGS = (0.7, -1.3, np.linspace(0.5, 2.0, 6), np.linspace(-1.0, 1.0, 6), 4)

#: Rule, left side, right side, and what does it, if that can be switched off.
RULES: list[tuple[str, str, str, str | None]] = [
    # (a) lambda calculus: administrative normal form has these by construction
    ("beta", "((fn [a] (* a (sin a))) (+ x y))", "(let [a (+ x y)] (* a (sin a)))", None),
    ("let inline", "(let [a (sin x)] (+ a y))", "(+ (sin x) y)", None),
    ("let dead", "(let [a (exp x)] (+ x y))", "(+ x y)", None),
    ("let dead loop", "(let [a (sum (map exp v))] (+ x y))", "(+ x y)", "dead-code"),
    ("let of let", "(let [a (let [b (sin x)] (* b b))] (+ a y))", "(let [b (sin x)] (let [a (* b b)] (+ a y)))", None),
    ("let same", "(let [a (sin x)] (let [b (sin x)] (+ a (* b y))))", "(let [a (sin x)] (+ a (* a y)))", "sharing"),
    (
        "let same loop",
        "(let [a (sum (map exp v)) b (sum (map exp v))] (+ a (* b y)))",
        "(let [a (sum (map exp v))] (+ a (* a y)))",
        "sharing same-loops",
    ),
    (
        "let swap and same",
        "(let [a (sin x) b (cos y) c (sin x)] (* a b c))",
        "(let [a (sin x) b (cos y)] (* a b a))",
        "sharing",
    ),
    ("let out", "(exp (let [a (sin x)] (* a a)))", "(let [a (sin x)] (exp (* a a)))", None),
    # (b) the ring of numbers: what holds for NaN and infinity as well; 0 is exact, a user's own zero times x is not
    ("one times", "(+ (* 1 x) (* y 1))", "(+ x y)", "rules"),
    ("zero of the derivative", "(jvp (fn [a] (+ (* a y) (* x y))) x 1.0)", "y", "rules"),
    ("plus negative", "(+ x (- y))", "(- x y)", "rules"),
    ("integers' zero", "(+ (* k 0) (- k k) (+ k 0))", "k", None),
    # (c) loop fusion
    ("get of build", "(get (build n (fn [i] (* (get v i) x))) 2)", "(* (get v 2) x)", "fuse alone"),
    (
        "get of build in a loop",
        "(let [a (build n (fn [i] (sin (get v i))))] (build n (fn [i] (* (get a i) (get w i)))))",
        "(build n (fn [i] (* (sin (get v i)) (get w i))))",
        "fuse",
    ),
    (
        "map of map into a fold",
        "(sum (map (fn [a] (* a a)) (map sin v)))",
        "(fold (fn [s a] (let [b (sin a)] (+ s (* b b)))) 0.0 v)",
        "fuse",
    ),
    ("length of build", "(len (build k (fn [i] (sin (* x i)))))", "(len (build k (fn [i] x)))", None),
    # (d) conditions
    ("if true", "(if (< 1 2) (sin x) (cos x))", "(sin x)", None),
    ("if false", "(if (> 1 2) (sin x) (cos x))", "(cos x)", None),
    ("if same", "(if (< x y) (* 2.0 (sin x)) (* 2.0 (sin x)))", "(* 2.0 (sin x))", None),
    (
        "if known",
        "(if (< x y) (if (< x y) (sin x) (cos x)) (if (< x y) (exp x) (tanh x)))",
        "(if (< x y) (sin x) (tanh x))",
        None,
    ),
    # (e) loop normalisation
    ("ifold 0", "(ifold (fn [a i] (sin a)) x 0)", "x", "unroll"),
    ("ifold 1", "(ifold (fn [a i] (sin a)) x 1)", "(sin x)", "unroll"),
    (
        "ifold 3",
        "(ifold (fn [a i] (* a (get [x (sin y) (exp x)] i))) y 3)",
        "(let [p (sin y) q (exp x)] (* (* (* y x) p) q))",
        "unroll",
    ),
    ("ifold idle", "(ifold (fn [a i] a) x k)", "x", None),
    (
        "ifold once",
        "(ifold (fn [a i] (if (= i 2) (+ a (sin (get v i))) a)) x n)",
        "(if (< 2 n) (+ x (sin (get v 2))) x)",
        "one-hot",
    ),
    # (f) tuples
    ("fst of pair", "(fst (pair (sin x) (exp y)))", "(sin x)", None),
    ("snd of pair", "(snd (pair (sin x) (exp y)))", "(exp y)", None),
    # (g) loop fission: a part that nothing needs goes, and one that does not depend on a loop leaves it
    (
        "fission, one part unused",
        "(fst (ifold (fn [a i] (pair (+ (fst a) (get v i)) (* (snd a) (get w i)))) (pair x y) n))",
        "(ifold (fn [a i] (+ a (get v i))) x n)",
        "dead-code",
    ),
    (
        "fission out of an outer loop",
        "(build n (fn [j] (let [a (ifold (fn [a i] (pair (+ (fst a) (get v i)) (+ (snd a) (* (get w i) (get v j))))) "
        "(pair x y) n)] (* (fst a) (snd a)))))",
        "(let [s (ifold (fn [a i] (+ a (get v i))) x n)] "
        "(build n (fn [j] (* s (ifold (fn [a i] (+ a (* (get w i) (get v j)))) y n)))))",
        "fission",
    ),
]
NAMES = [name for name, *_ in RULES]


def model(body: str) -> Any:
    return hyad.model(f"(fn [{PARAMS}] (let [n (len v)] {body}))", namespace={})


def optimised(body: str) -> Program:
    m = model(body)
    return m.optimised(m.specs(ARGS))


@pytest.mark.parametrize("name, left, right, by", RULES, ids=NAMES)
def test_the_left_side_becomes_the_right_side(name: str, left: str, right: str, by: str | None) -> None:
    one, other = optimised(left), optimised(right)
    assert alpha_equal(one, other), f"{unparse(print_program(one))}\n{unparse(print_program(other))}"
    np.testing.assert_allclose(hyad.compile(model(left))(*ARGS), model(right)(*ARGS), rtol=1e-14)


@pytest.mark.parametrize("name, left, right, by", [r for r in RULES if r[3]], ids=[r[0] for r in RULES if r[3]])
def test_switched_off_the_left_side_stays(name: str, left: str, right: str, by: str) -> None:
    with without(by.split()):
        one = optimised(left)
    assert not alpha_equal(one, optimised(right)), unparse(print_program(one))
    np.testing.assert_allclose(hyad.compile(model(left), without=by.split())(*ARGS), model(left)(*ARGS), rtol=1e-14)
