"""The checker finds what is wrong with a program and says after which pass; ``check_grad`` finds wrong derivatives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hyad
from hyad import checking
from hyad.checking import check_grad, sample_args
from hyad.core import BOOL, INT, LEAF, REAL, Arr, Bind, Block, Check, Const, If, Loop, Prim, Program, Var
from hyad.errors import ModelTypeError
from hyad.passes import optimise
from hyad.program.check import CheckError, check

X, Y, N = Var("x", REAL), Var("y", REAL), Var("n", INT)
V = Var("v", Arr(REAL, (N,)))
T = Var("t", REAL)


def program(*binds: Bind, results=(T,)) -> Program:
    return Program("p", (X, V), (N,), Block(tuple(binds), tuple(results)), (LEAF, LEAF), LEAF)


def loop(init, acc: Var, out: Var, body: Block) -> Bind:
    return Bind((out,), Loop(N, Var("i", INT), (init,), (acc,), body))


ONE, TRUE = Const(1, INT), Const(True, BOOL)
S = Var("s", REAL)
GOOD = Bind((T,), Prim("sin", (X,)))
WRONG = {
    "t is bound twice": [GOOD, GOOD],
    "y is read and not bound": [Bind((T,), Prim("sin", (Y,)))],
    "y is read outside its scope": [
        Bind((S,), If(TRUE, Block((Bind((Y,), Prim("sin", (X,))),), (Y,)), Block((), (X,)))),
        Bind((T,), Prim("sin", (Y,))),
    ],
    "there is no primitive sine": [Bind((T,), Prim("sine", (X,)))],
    "no overload takes Real": [Bind((T,), Prim("+", (X,)))],
    "no overload takes Bool": [Bind((T,), Prim("sin", (TRUE,)))],
    "the result is Bool, the variable Real": [Bind((T,), Prim("<", (X, X)))],
    "the condition is no truth value": [Bind((T,), If(X, Block((), (X,)), Block((), (X,))))],
    "the branch `else` gives Int, not Real": [Bind((T,), If(TRUE, Block((), (X,)), Block((), (ONE,))))],
    "the branch `then` gives 2 values, not 1": [Bind((T,), If(TRUE, Block((), (X, X)), Block((), (X,))))],
    "the accumulators start as Int, not Real": [loop(ONE, S, T, Block((), (S,)))],
    "the accumulators go on as Int, not Real": [loop(X, S, T, Block((), (ONE,)))],
    "2 results for 1 variables": [loop(X, S, T, Block((), (S, S)))],
    "what is stacked is Real, not": [Bind((T,), Loop(N, Var("i", INT), (), (), Block((), (X,))))],
    "the trip count is no integer": [Bind((T,), Loop(X, Var("i", INT), (X,), (S,), Block((), (S,))))],
    "a primitive binds one variable": [Bind((Var("r", V.type), T), Prim("get", (V, ONE)))],
    "subscripts are integers": [Bind((T,), Prim("get", (V, X)))],
    "2 subscripts in an array of 1 dims": [Bind((T,), Prim("get", (V, ONE, ONE)))],
    "sizes and indices are compared": [Bind((), Check("<", X, X, "")), GOOD],
    "there is no relation '>'": [Bind((), Check(">", N, N, "")), GOOD],
    "1 items in an array of 2": [Bind((Var("a", Arr(REAL, (Const(2, INT),))),), Prim("array", (X,))), GOOD],
    "the size x of a is Real": [Bind((Var("a", Arr(REAL, (X,))),), Prim("zeros", ())), GOOD],
}


def test_a_good_program_passes() -> None:
    check(program(GOOD))
    check(program(loop(X, S, T, Block((Bind((Y,), Prim("sin", (S,))),), (Y,)))))
    check(program(Bind((T,), Prim("get", (V, ONE)))))


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_one_is_refused(message: str) -> None:
    with pytest.raises(CheckError) as error:
        check(program(*WRONG[message]), "some_pass")
    assert message in str(error.value)
    assert str(error.value).startswith("p after some_pass")


def test_the_binding_is_named() -> None:
    with pytest.raises(CheckError, match=r"in `t = \(sin y\)`"):
        check(program(Bind((T,), Prim("sin", (Y,)))))


def test_results_fit_their_structure() -> None:
    with pytest.raises(CheckError, match="its results do not fit"):
        check(program(GOOD, results=(T, T)))


def test_every_pass_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(p: Program) -> Program:
        return replace(p, body=Block((*p.body.binds, *p.body.binds), p.body.results))

    p = hyad.model("(fn [x] (sin (exp x)))").program()
    monkeypatch.setenv("HYAD_CHECK", "1")
    with pytest.raises(CheckError, match="f after broken, in .* is bound twice"):
        optimise.optimise(p, [optimise.dead_code, broken])
    monkeypatch.setenv("HYAD_CHECK", "0")
    optimise.optimise(p, [broken])


def test_no_pass_changes_a_record(pytestconfig: pytest.Config) -> None:
    """A process of its own, in which records are frozen."""
    environment = {**os.environ, "HYAD_FREEZE": "1"}
    step = "1" if pytestconfig.getoption("--all") else "3"
    subprocess.run([sys.executable, Path(__file__).with_name("frozen.py"), step], check=True, env=environment)


# ----------------------------------------------------------------------------------------- check_grad

POINTS = [
    ("(fn [x y] (* x (sin y)))", (2, 0.3), 2),
    ("(fn [v i] (* (get v i) (get v 0)))", (np.array([1.0, 2, 3]), 1), 3),
    ("(fn [v p] (let [#(a b) p] #((map (fn [x] (* x a)) v) (dot v v) b)))", (np.array([1.0, 2]), (2.0, 3)), 16),
    ("(fn [q] (* (. q a) (. q b)))", ({"a": 2.0, "b": 3.0},), 2),
    ("(fn [x] (exp (* 50.0 x)))", (1.0,), 1),
    ("(fn [x] (+ 1e9 (sin x)))", (1.0,), 1),
    ("(fn [x] (log x))", (0.01,), 1),
    ("(fn [x] (abs x))", (0.0,), 1),
]


@pytest.mark.parametrize(("text", "args", "count"), POINTS)
def test_right_derivatives_agree(text: str, args: tuple, count: int) -> None:
    report = check_grad(hyad.model(text), args)
    assert report, str(report)
    assert len(report.entries) == count
    assert f"{count} derivative{' agrees' if count == 1 else 's agree'}" in str(report)


def test_an_integer_without_a_derivative_is_not_moved() -> None:
    """A count that ends a recursion: a tenth more than 3 never becomes 0."""
    f = hyad.model("(defmodel chain [n x] (if (= n 0) x (chain (- n 1) (sin x))))", namespace={})
    report = check_grad(f, (3, 0.4))
    assert report and [e.argument for e in report.entries] == ["x"]
    g = hyad.model("(defmodel chain [p x] (if (= (fst p) 0) x (chain #((- (fst p) 1) (snd p)) (* (snd p) x))))")
    report = check_grad(g, ((2, 3), 0.5))
    assert report and sorted(e.argument for e in report.entries) == ["p-1", "x"]
    with pytest.raises(hyad.DerivativeError, match="no derivative by these integers"):
        check_grad(hyad.model("(fn [n] (if (= n 0) 1.0 2.0))"), (3,))


def test_arguments_that_are_no_tuple() -> None:
    f = hyad.model("(fn [x v w] (* x (dot v w)))")
    for rest in ([np.ones(2), np.ones(2)], [2.0, 3.0]):
        with pytest.raises(ModelTypeError, match="takes a model's arguments as one tuple"):
            check_grad(f, 2.0, *rest)


def test_a_wrong_partial_is_found() -> None:
    hyad.defprim("nearly-sin", ["x"], partials=["(* 1.0001 (cos x))"], python=np.sin, c="sin({0})")
    f = hyad.model("(defmodel f [x v] (+ (* x x) (nearly-sin (get v 1))))")
    report = check_grad(f, (2.0, np.array([0.5, 0.6])))
    assert not report
    assert [(e.argument, e.error > 1) for e in report.entries if e.error > 1] == [("v[1]", True)]
    assert "f by v[1]" in str(report) and "<--" in str(report) and "1 of 3 derivatives disagree" in str(report)
    assert check_grad(f, (2.0, np.array([0.5, 0.6])), wrt="x")


def test_modes_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right backward, wrong forward."""
    right = checking.derived

    def wrong(operator: str, f, wrt=None):
        made = right(operator, f, wrt)
        return (lambda *args: 1.5 * made(*args)) if operator == "jvp" else made

    monkeypatch.setattr(checking, "derived", wrong)
    report = check_grad(hyad.model("(fn [x] (* x x))"), (2.0,))
    assert not report
    assert (report.entries[0].reverse, report.entries[0].forward) == (4.0, 6.0)


def test_the_border_of_a_domain_is_said() -> None:
    report = check_grad(hyad.model("(fn [x] (sqrt x))"), (0.0,))
    assert report and report.skipped == 1 and "the border of the domain" in str(report)


def test_what_cannot_be_differentiated_raises() -> None:
    with pytest.raises(hyad.DerivativeError, match="no parameter `z`"):
        check_grad(hyad.model("(fn [x] x)"), (1.0,), wrt="z")
    with pytest.raises(hyad.DerivativeError, match="no real"):
        check_grad(hyad.model("(fn [x] (> x 1.0))"), (1.0,))


def test_samples_fit_the_annotations() -> None:
    a, k, t, x = sample_args(hyad.model("(fn [#^ (Mat 2 n) a #^ Int k #^ (Tuple Real (Vec 4)) t x] x)"))
    assert a.shape == (2, 3) and k == 1 and isinstance(t[0], float) and t[1].shape == (4,) and 0.5 <= x <= 1.5
