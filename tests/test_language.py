"""What the forms mean, held against Hy and Python themselves where these have the same form.

Each row runs as plain Python and, all in one batch, as C.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import hy
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import batch
import hyad
import oracle
from hyad.core import Prim, all_binds
from hyad.errors import BoundsError, ModelTypeError
from hyad.plain_python import python_callable
from hyad.program.names import mangled

V = np.array([0.5, -1.5, 2.0, 3.25])
M = np.arange(6.0).reshape(2, 3)
NAN, INF = math.nan, math.inf

# --------------------------------------------------------------------------- the same text, run by Hy itself

AS_HY = [
    # arithmetic: n-ary, unary, integers and reals
    ("(+ a b)", (2, 3)),
    ("(+ a b)", (2, 3.5)),
    ("(+ a b c)", (1, 2, 3)),
    ("(- a b c)", (1.0, 2.0, 3.5)),
    *((f"({order} a)", (2.5,)) for order in ("<", "<=", ">", ">=", "=")),
    ("(if (< (+ a b)) a b)", (1, 2)),
    ("(- a)", (3,)),
    ("(- a)", (-2.5,)),
    ("(* a b c)", (2, 3, 4)),
    ("(/ a b)", (7, 2)),
    ("(/ a b c)", (7, 2, 4.0)),
    ("(/ a)", (4,)),
    ("(+)", ()),
    ("(*)", ()),
    ("(+ a)", (3,)),
    ("(* a)", (3.5,)),
    *[(f"({op} a b)", (a, b)) for op in ("//", "%") for a in (7, -7, 0) for b in (2, -2, 3)],
    *[(f"({op} a b)", (a, b)) for op in ("//", "%") for a in (7.5, -7.5, 0.0, 1e300) for b in (2.0, -2.0, 0.1)],
    ("(% a b)", (7, 2.5)),
    ("(// a b)", (-7, 2.5)),
    ("(** a b)", (2.0, 10)),
    ("(** a b)", (-2.0, 3)),
    ("(** a b)", (2.0, -2)),
    ("(** a b)", (0.0, 0)),
    ("(** a 0.5)", (2.0,)),
    ("(** a b)", (-8.0, 3.0)),
    ("(abs a)", (-3,)),
    ("(abs a)", (-3.5,)),
    ("(min a b)", (3, 2)),
    ("(max a b c)", (1.5, 2.5, -1.0)),
    ("(min a b)", (2.5, 2.0)),
    ("(int a)", (2.7,)),
    ("(int a)", (-2.7,)),
    ("(round a)", (2.5,)),
    ("(round a)", (3.5,)),
    ("(round a)", (-0.5,)),
    # comparisons: chained; equality of integers and reals
    ("(< a b)", (1, 2)),
    ("(< a b c)", (1, 2, 3)),
    ("(< a b c)", (1, 3, 2)),
    ("(<= a b c)", (1, 1, 2)),
    ("(> a b c)", (3, 2, 1)),
    ("(>= a b)", (2, 2.0)),
    ("(= a b)", (2, 2.0)),
    ("(= a b c)", (2, 2, 2)),
    ("(= a b c)", (2, 2, 3)),
    ("(!= a b)", (1, 2)),
    ("(= a b)", (NAN, NAN)),
    ("(!= a b)", (NAN, NAN)),
    ("(< a b)", (NAN, 1.0)),
    ("(<= 0 a 1)", (0.5,)),
    ("(= a b)", (True, False)),
    # truth values, short circuits
    ("(and (> a 0) (< a 10))", (5,)),
    ("(or (> a 0) (< a -10))", (-5,)),
    ("(not (> a 0))", (5,)),
    ("(and)", ()),
    ("(and (> a 0) (> a 1) (> a 2))", (1.5,)),
    ("(or (> a 0) (> a 1) (> a 2))", (1.5,)),
    ("(if (and True (or False (= a 1))) 10 20)", (1,)),
    # bindings: sequential, shadowing, closures over the binding of their time
    ("(let [x a  y (* x 2)] (- y x))", (3,)),
    ("(let [x a  x (+ x 1)  x (* x x)] x)", (3,)),
    ("(let [a (+ a 1)] (* a a))", (3,)),
    ("(+ (let [a 10] a) a)", (3,)),
    ("(let [x a  f (fn [y] (+ x y))] (let [x 100] (f x)))", (3,)),
    ("(let [f (fn [a] (* a a))] (f (f a)))", (3,)),
    ("(do (+ a 1) (* a 2))", (3,)),
    ("((fn [x y] (- x y)) a 1)", (3,)),
    ("(let [add (fn [n] (fn [x] (+ x n)))] ((add 3) a))", (4,)),
    ("(let [#(x y) #(a b)] (- x y))", (3, 5)),
    ("(let [[x y] #(a b)] (- x y))", (3, 5)),
    # conditionals
    ("(if (< a 0) (- a) a)", (-3,)),
    ("(cond (< a 0) -1  (= a 0) 0  True 1)", (0,)),
    ("(cond (< a 0) -1  (= a 0) 0  True 1)", (7,)),
    ("(when (> 2 1) a)", (3,)),
    # tuples and subscripts
    ("(get #(a b) 0)", (3, 5)),
    ("(get #(a b) -1)", (3, 5)),
    ("#(a #(b a))", (3, 5)),
    ("(get #(a #(b 7)) 1 1)", (3, 5)),
    ("(len #(a b))", (3, 5)),
    ("(get v 0)", (V,)),
    ("(get v -1)", (V,)),
    ("(get m 1 2)", (M,)),
    ("(get m -1 -3)", (M,)),
    ("(get m 1)", (M,)),
    ("(len v)", (V,)),
    ("(len m)", (M,)),
]


def parameters(args: tuple[Any, ...]) -> str:
    if args and isinstance(args[0], np.ndarray):
        return "m" if args[0].ndim == 2 else "v"
    return " ".join("abc"[: len(args)])


def by_hy(expression: str, args: tuple[Any, ...]) -> Any:
    return hy.eval(hy.read(f"(fn [{parameters(args)}] {expression})"), {})(*args)


@pytest.mark.parametrize("expression, args", AS_HY, ids=[f"{e} {a}" for e, a in AS_HY])
def test_as_hy_has_it(expression: str, args: tuple[Any, ...]) -> None:
    text = f"(fn [{parameters(args)}] {expression})"
    got = hyad.compile(hyad.model(text, namespace={}), target="python", args=args)(*args)
    expected = by_hy(expression, args)
    assert oracle.mismatch(got, expected, 1e-15, 0.0) is None, (got, expected)
    if isinstance(expected, (bool, int)) and "round" not in expression:
        assert type(got) is type(expected), (got, expected)


# ------------------------------------------------------------------- what Hy has no form for: expected values

ROWS = [
    # arrays
    ("[1 2.5 (* 2 a)]", (3.0,), np.array([1, 2.5, 6.0])),
    ("[[a 1] [2 a]]", (3.0,), np.array([[3.0, 1], [2, 3]])),
    ("[1 2 3]", (), np.array([1, 2, 3])),
    ("(build 3 (fn [i] (* i i)))", (), np.array([0, 1, 4])),
    ("(build [2 3] (fn [i j] (+ (* 10 i) j)))", (), np.array([[0, 1, 2], [10, 11, 12]])),
    ("(build [2 2 2] (fn [i j k] (+ (* 4 i) (* 2 j) k)))", (), np.arange(8).reshape(2, 2, 2)),
    ("(build 2 (fn [i] v))", (V,), np.array([V, V])),
    ("(shape m)", (M,), (2, 3)),
    ("(get (shape m) 1)", (M,), 3),
    ("(shape v)", (V,), (4,)),
    ("(len [1 2 3])", (), 3),
    ("(map (fn [x] (* x x)) v)", (V,), V * V),
    ("(map + v v)", (V,), V + V),
    ("(map (fn [r] (get r 1)) m)", (M,), M[:, 1]),
    ("(map len m)", (M,), np.array([3, 3])),
    ("(fold + 0.0 v)", (V,), 4.25),
    ("(fold (fn [s x] (- x s)) 0.0 v)", (V,), 3.25 - (2.0 - (-1.5 - 0.5))),
    ("(fold max -1e9 v)", (V,), 3.25),
    ("(fold (fn [s x y] (+ s (* x y))) 0.0 v v)", (V,), float(V @ V)),
    ("(ifold (fn [s i] (+ s i)) 0 5)", (), 10),
    ("(ifold (fn [s i] (+ (* 10 s) i)) 0 4)", (), 123),
    ("(scan + 0.0 v)", (V,), np.cumsum(V)),
    ("(scan (fn [s x] (* s x)) 1.0 v)", (V,), np.cumprod(V)),
    ("(update v 1 9)", (V,), np.array([0.5, 9, 2, 3.25])),
    ("(update m 1 0 9.5)", (M,), np.array([[0, 1, 2], [9.5, 4, 5]])),
    ("(update m 0 (get m 1))", (M,), M[[1, 1]]),
    ("(update v -1 9)", (V,), np.array([0.5, -1.5, 2, 9])),
    ("#((update v 0 9) v)", (V,), (np.array([9, -1.5, 2, 3.25]), V)),
    ("(let [w (update v 0 9)] (+ (get v 0) (get w 0)))", (V,), 9.5),
    ("(copy v)", (V,), V),
    # broadcasting: a scalar among arrays of one shape
    ("(+ v 1)", (V,), V + 1),
    ("(* 2 v)", (V,), 2 * V),
    ("(- 1 v v)", (V,), 1 - V - V),
    ("(/ 1 m)", (M + 1,), 1 / (M + 1)),
    ("(sin m)", (M,), np.sin(M)),
    ("(- v)", (V,), -V),
    ("(** v 2)", (V,), V**2),
    ("(max v 1)", (V,), np.maximum(V, 1)),
    ("(+ m m)", (M,), 2 * M),
    # empty arrays, loops of no iterations
    ("(zeros 0)", (), np.zeros(0)),
    ("(fold + 1.5 v)", (np.zeros(0),), 1.5),
    ("(map sin v)", (np.zeros(0),), np.zeros(0)),
    ("(scan + 0.0 v)", (np.zeros(0),), np.zeros(0)),
    ("(len v)", (np.zeros(0),), 0),
    ("(ifold (fn [s i] (* s 2)) 7 0)", (), 7),
    ("(build 0 (fn [i] 1.0))", (), np.zeros(0)),
    ("(build [0 3] (fn [i j] 1.0))", (), np.zeros((0, 3))),
    ("(build [3 0] (fn [i j] 1.0))", (), np.zeros((3, 0))),
    ("(dot v v)", (np.zeros(0),), 0.0),
    ("(shape m)", (np.zeros((0, 3)),), (0, 3)),
    ("(shape m)", (np.zeros((2, 0)),), (2, 0)),
    ("(fold (fn [s r] (+ s (fold + 0.0 r))) 0.0 m)", (np.zeros((2, 0)),), 0.0),
    ("(transpose m)", (np.zeros((0, 3)),), np.zeros((3, 0))),
    ("(let [#(a b) (fold (fn [#(a b) x] #((+ a x) (* b x))) #(1 2.0) v)] (+ a b))", (np.zeros(0),), 3.0),
    # loops carrying tuples; widening from integers
    ("(ifold (fn [#(a b) i] #(b (+ a b))) #(0 1) 10)", (), (55, 89)),
    ("(fold (fn [#(lo hi) x] #((min lo x) (max hi x))) #(9.0 -9.0) v)", (V,), (-1.5, 3.25)),
    ("(ifold (fn [s i] (+ s 0.5)) 0 4)", (), 2.0),
    ("(fold + 0 v)", (V,), 4.25),
    ("(ifold (fn [#(i s) j] #((+ i 1) (+ s i))) #(0 0.0) 4)", (), (4, 6.0)),
    ("(ifold (fn [#(a #(b c)) i] #((+ a 1) #(c (+ b a)))) #(0 #(1 2)) 3)", (), (3, (3, 3))),
    # maps and folds over tuples, arrays of tuples
    ("(map (fn [x] (* 2 x)) #(a 4))", (3.0,), (6.0, 8)),
    ("(fold + 0 #(a 4 5))", (3.0,), 12.0),
    ("(fold (fn [s p] (+ s (* (fst p) (snd p)))) 0.0 (build 3 (fn [i] #((real i) (* 2.0 a)))))", (3.0,), 18.0),
    ("(let [p (map (fn [x y] #(x y)) v v)] #((fst (get p 1)) (snd (get p 2))))", (V,), (-1.5, 2.0)),
    ("(len (build 3 (fn [i] #(i 1.0))))", (), 3),
    # evaluation is lazy in branches only
    ("(if (> a 0) (log a) 0.0)", (-1.0,), 0.0),
    ("(if (= a 0) 0.0 (/ 1 a))", (0.0,), 0.0),
    ("(and (> (len v) 5) (> (get v 0) 0))", (V,), False),
    ("(or (< (len v) 1) (> (get v 0) 1))", (np.zeros(0),), True),
    ("(if (> (len v) 2) (get v 2) -1.0)", (np.zeros(1),), -1.0),
    ("(if (> (len v) 2) (get v 2) -1.0)", (V,), 2.0),
    ("(cond (= (len v) 0) 0.0  (> (get v 0) 0) 1.0  True 2.0)", (np.zeros(0),), 0.0),
    # integers stay integers: 64 bits
    ("(* a a)", (3037000499,), 3037000499**2),
    ("(// a 2)", (2**62 + 1,), 2**61),
    ("(int (** 2 a))", (10,), 1024),
    ("(+ a 0.5)", (2**53,), 2.0**53),
    ("(real a)", (3,), 3.0),
    ("(int a)", (1e18,), 10**18),
    ("(sign a)", (-5,), -1),
    ("(sign a)", (0.0,), 0.0),
    # IEEE: no exception, no surprise
    ("(/ a 0)", (1.0,), INF),
    ("(/ a 0)", (-1.0,), -INF),
    ("(/ a 0)", (0.0,), NAN),
    ("(log a)", (0.0,), -INF),
    ("(log a)", (-1.0,), NAN),
    ("(sqrt a)", (-1.0,), NAN),
    ("(* a 0)", (INF,), NAN),
    ("(- a a)", (INF,), NAN),
    ("(/ a a)", (0.0,), NAN),
    ("(* 0 a)", (NAN,), NAN),
    ("(exp a)", (1000.0,), INF),
    ("(max a 1)", (NAN,), NAN),
    ("(min 1 a)", (NAN,), NAN),
    ("(** a 0.5)", (-1.0,), NAN),
    ("(** a -1)", (0.0,), INF),
    ("(+ a 0)", (-0.0,), 0.0),
    ("(- a 0)", (-0.0,), -0.0),
    ("(* a 1)", (-0.0,), -0.0),
    ("(- a)", (0.0,), -0.0),
    ("(* -1 a)", (0.0,), -0.0),
    ("(- 0 a)", (0.0,), 0.0),
    ("(+ 0 a)", (-0.0,), 0.0),
    ("(if (< a 1) 1 2)", (NAN,), 2),
    # the prelude
    ("(norm v)", (V,), float(np.linalg.norm(V))),
    ("(norm v)", (np.zeros(3),), 0.0),
    ("(mat-mul m (transpose m))", (M,), M @ M.T),
    ("(mat-vec m [1 2 3])", (M,), M @ [1, 2, 3]),
    ("(vec-mat [1 2] m)", (M,), np.array([1, 2]) @ M),
    ("(outer v v)", (V,), np.outer(V, V)),
    ("(cross [1 2 3] [a 0 1])", (2.0,), np.cross([1, 2, 3], [2.0, 0, 1])),
    ("(eye 2)", (), np.eye(2)),
    ("(one-hot 3 1)", (), np.array([0, 1.0, 0])),
    ("(trace (mat-mul m (transpose m)))", (M,), float(np.trace(M @ M.T))),
    ("(mat-add m m)", (M,), 2 * M),
    ("(mat-sub m m)", (M,), 0 * M),
    ("(mat-scale a [[1 2]])", (3.0,), np.array([[3.0, 6.0]])),
    ("(vec-scale 2 v)", (V,), 2 * V),
    ("(vec-add v v)", (V,), 2 * V),
    ("(vec-sub v v)", (V,), np.zeros(4)),
    ("(vec-mul v v)", (V,), V * V),
    ("(vec-map sin v)", (V,), np.sin(V)),
    ("(sum v)", (V,), 4.25),
    ("(vec-sum v)", (V,), 4.25),
    ("(sq-norm v)", (V,), float(V @ V)),
    ("(ones 2)", (), np.ones(2)),
    ("(mat-mul m m)", (M[:, :2],), M[:, :2] @ M[:, :2]),
]


def same(got: Any, expected: Any) -> bool:
    """Equal to the last digits, infinities, NaNs and signs of zero included."""
    if oracle.mismatch(got, expected, 1e-14, 0.0) is not None:
        return False
    pairs = zip(oracle.numbers(got), oracle.numbers(expected))
    return all(b != 0 or math.copysign(1, a) == math.copysign(1, b) for a, b in pairs)


def model_of(expression: str, args: tuple[Any, ...]) -> Any:
    return hyad.model(f"(fn [{parameters(args)}] {expression})", namespace={})


@pytest.mark.parametrize("expression, args, expected", ROWS, ids=[f"{k} {row[0]}" for k, row in enumerate(ROWS)])
def test_value(expression: str, args: tuple[Any, ...], expected: Any) -> None:
    got = hyad.compile(model_of(expression, args), target="python", args=args)(*args)
    assert same(got, expected), (got, expected)
    if isinstance(expected, (bool, int, float, np.ndarray)):
        kinds = {bool: "b", int: "i", float: "f"}
        wanted = expected.dtype.kind if isinstance(expected, np.ndarray) else kinds[type(expected)]
        found = got.dtype.kind if isinstance(got, np.ndarray) else kinds[type(got)]
        assert found == wanted or expression.startswith("(update"), (got, expected)


@pytest.mark.skipif(batch.CC is None, reason="no C compiler")
def test_the_same_values_in_c() -> None:
    together, calls = batch.Batch(), []
    rows = [*ROWS, *((e, a, by_hy(e, a)) for e, a in AS_HY)]
    for expression, args, expected in rows:
        model = model_of(expression, args)
        calls.append((expression, args, expected, together.add(model.optimised(model.specs(args)))))
    together.compile()
    wrong = []
    for expression, args, expected, call in calls:
        got = call(*args, like=expected)
        if not same(got, expected) and "round" not in expression:
            wrong.append(f"{expression} {args}: {got!r}, expected {expected!r}")
    assert not wrong, "\n".join(wrong)


def test_the_optimiser_changes_no_value() -> None:
    """The plain program (nothing folded, shared or rewritten) and the optimised one agree to the last bit or nearly."""
    for expression, args, expected in ROWS:
        model = model_of(expression, args)
        got = python_callable(model.program(model.specs(args), plain=True))(*args)
        assert same(got, expected), (expression, got, expected)


# ------------------------------------------------------------------------------------------ run-time checks


@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize(
    "text, args, error",
    [
        ("(fn [v i] (get v i))", (V, 4), BoundsError),
        ("(fn [v i] (get v i))", (V, -1), BoundsError),
        ("(fn [v] (get v 2))", (np.zeros(2),), BoundsError),
        ("(fn [v] (get v -3))", (np.zeros(2),), BoundsError),
        ("(fn [v i x] (update v i x))", (V, 9, 1.0), BoundsError),
        ("(fn [u v] (dot u v))", (V, np.zeros(3)), ModelTypeError),
        ("(fn [u v] (+ u v))", (V, np.zeros(3)), ModelTypeError),
        ("(fn [#^ (Vec n) u #^ (Vec n) v] (get u 0))", (V, np.zeros(3)), ModelTypeError),
        ("(fn [#^ (Vec 3) u] (get u 0))", (V,), ModelTypeError),
        ("(fn [a b] (mat-mul a b))", (M, M), ModelTypeError),
        ("(fn [v m] (vec-mat v m))", (V[:1], M), ModelTypeError),
        ("(fn [m] (trace m))", (M,), ModelTypeError),
        ("(fn [v] (ifold (fn [s i] (+ s (get v (+ i 1)))) 0.0 (len v)))", (V,), BoundsError),
        ("(fn [v n] (ifold (fn [s i] (+ s (get v i))) 0.0 n))", (V, 5), BoundsError),
        ("(fn [n] (build n (fn [i] 1.0)))", (-1,), ModelTypeError),
        ("(fn [v i] ((grad (fn [w] (get w i))) v))", (V, 4), BoundsError),
        ("(fn [v i] (let [unused (get v i)] 1.0))", (V, 4), BoundsError),
    ],
)
def test_run_time_checks(text: str, args: tuple[Any, ...], error: type[Exception], target: str) -> None:
    with pytest.raises(error) as raised:
        hyad.compile(hyad.model(text, namespace={}), target=target, args=args)(*args)
    assert raised.value.span is not None, "an error has a place"


@pytest.mark.parametrize("target", ["python", "c"])
def test_an_index_is_checked_where_it_is_read_and_not_before(target: str) -> None:
    text = "(fn [v i] (if (and (>= i 0) (< i (len v))) (get v i) 0.0))"
    f = hyad.compile(hyad.model(text, namespace={}), target=target, args=(V, 1))
    assert [f(V, i) for i in (-1, 0, 3, 4, 10**12)] == [0.0, 0.5, 3.25, 0.0, 0.0]


@pytest.mark.parametrize("target", ["python", "c"])
def test_a_loop_that_ends_before_the_bad_index(target: str) -> None:
    text = "(fn [v n] (ifold (fn [s i] (if (< i (len v)) (+ s (get v i)) s)) 0.0 n))"
    f = hyad.compile(hyad.model(text, namespace={}), target=target, args=(V, 1))
    assert [f(V, n) for n in (0, 2, 4, 9)] == [0.0, -1.0, 4.25, 4.25]


# ----------------------------------------------------------------------------------- sizes and signatures


def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that models compile from now on."""
    from hyad.model import Model

    made: list[Any] = []
    original = Model.compile_for

    def counting(self: Any, specs: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(specs)
        return original(self, specs, *args, **kwargs)

    monkeypatch.setattr(Model, "compile_for", counting)
    return made


def test_one_function_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compilations(monkeypatch)
    f = hyad.grad(hyad.model("(fn [v] (fold (fn [s x] (+ s (* x x x))) 0.0 v))", namespace={}))
    for n in (0, 1, 2, 5, 100):
        v = np.linspace(-1, 2, n)
        assert np.allclose(f(v), 3 * v * v)
    assert len(made) == 1


def test_each_rank_and_element_type_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compilations(monkeypatch)
    f = hyad.model("(fn [a] (* a a))", namespace={})
    assert f(3.0) == 9.0 and type(f(3)) is int and f(3) == 9
    assert np.array_equal(f(V), V * V) and np.array_equal(f(M), M * M)
    assert f(4.0) == 16.0 and f(5) == 25 and np.array_equal(f(V[:2]), V[:2] ** 2)
    assert len(made) == 4


def test_a_static_size_is_a_constant_of_the_program() -> None:
    model = hyad.model("(fn [#^ (Vec 3) v] (fold + 0.0 v))", namespace={})
    program = model.optimised()
    assert not program.dims and all(isinstance(b.op, Prim) for b in all_binds(program.body))


def test_a_size_without_a_name_takes_no_name_that_stands_in_an_annotation() -> None:
    f = hyad.model("(fn [x #^ (Vec n) y #^ (Tuple (Vec m) (Vec k)) z] (- (len x) (* (len y) (len (get z 0)))))")
    assert f(np.ones(1), np.ones(2), (np.ones(3), np.ones(4))) == -5


def test_named_sizes_are_one_number() -> None:
    model = hyad.model("(fn [#^ (Vec n) u #^ (Mat n m) a #^ (Vec m) v] (dot u (mat-vec a v)))", namespace={})
    program = model.optimised()
    assert [d.name for d in program.dims] == ["n", "m"]
    assert model(np.ones(2), M, np.ones(3)) == 15.0


@pytest.mark.parametrize(
    "annotation, value, result",
    [("Real", 3, 9.0), ("Real", 2.5, 6.25), ("Int", 3, 9), ("(Vec n)", np.array([1, 2]), np.array([1.0, 4.0]))],
)
def test_annotations_decide_the_type(annotation: str, value: Any, result: Any) -> None:
    got = hyad.model(f"(fn [#^ {annotation} a] (* a a))", namespace={})(value)
    assert same(got, result) and (type(got) is type(result))
    if isinstance(got, np.ndarray):
        assert got.dtype.kind == result.dtype.kind


@pytest.mark.parametrize(
    "annotation, value",
    [("Int", 2.5), ("Bool", 1), ("(Vec n)", 2.0), ("(Vec n)", M), ("Real", V), ("(Tuple Real Real)", (1.0, 2.0, 3.0))],
)
def test_annotations_refuse(annotation: str, value: Any) -> None:
    with pytest.raises(ModelTypeError):
        hyad.model(f"(fn [#^ {annotation} a] 1.0)", namespace={})(value)


# --------------------------------------------------------------------------------- values in and out

RESULTS = [
    ("(fn [a b] #((* a b) b))", (1.0, 2.0), (2.0, 2.0)),
    ("(fn [v] #((get v 0) (get v 1)))", (V,), (0.5, -1.5)),
    ("(fn [v i] #((get v i) i))", (V, 2), (2.0, 2)),
    ("(fn [a v] #(a (dot v v) (> a 0)))", (1.0, V), (1.0, float(V @ V), True)),
    ("(fn [a v] #(a v))", (1.0, V), (1.0, V)),
    ("(fn [a] #(a #(a 2) #()))", (1.0,), (1.0, (1.0, 2), ())),
    ("(fn [a] #([a] [[a a]]))", (1.0,), (np.array([1.0]), np.array([[1.0, 1.0]]))),
    ("(fn [a] #())", (1.0,), ()),
    ("(fn [a] None)", (1.0,), None),
    ("(fn [a] #(None a))", (1.0,), (None, 1.0)),
    ("(fn [a] (> a 0))", (1.0,), True),
    ("(fn [] #(1 2.0 False))", (), (1, 2.0, False)),
    ("(fn [v] (map (fn [x] (> x 0)) v))", (V,), V > 0),
    ("(fn [v] (map (fn [x] (int x)) v))", (V,), V.astype(int)),
    ("(fn [p] p)", ((1.0, (V, 2)),), (1.0, (V, 2))),
    ("(fn [p] p)", ({"a": 1.0, "v": V},), {"a": 1.0, "v": V}),
    ("(fn [a b] #(b a))", ({"a": 1.0}, (2, None)), ((2, None), {"a": 1.0})),
    ("(fn [v] #(v v))", (V,), (V, V)),
    ("(fn [v m] #((len v) (shape m) (get m 0)))", (V, M), (4, (2, 3), M[0])),
    ("(fn [v] v)", (np.zeros(0),), np.zeros(0)),
    ("(fn [b] (if b 1 2))", (True,), 1),
    ("(fn [b] (map not b))", (np.array([True, False]),), np.array([False, True])),
    ("(fn [k] (map (fn [i] (* i i)) k))", (np.array([1, -2, 3]),), np.array([1, 4, 9])),
]


def identical(got: Any, expected: Any) -> bool:
    """Equal in value, structure and Python type."""
    if isinstance(expected, np.ndarray):
        return isinstance(got, np.ndarray) and got.dtype.kind == expected.dtype.kind and np.array_equal(got, expected)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, tuple):
        return len(got) == len(expected) and all(map(identical, got, expected))
    if isinstance(expected, dict):
        return list(got) == list(expected) and all(identical(got[k], v) for k, v in expected.items())
    return got == expected


@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("text, args, expected", RESULTS, ids=[f"{k} {row[0]}" for k, row in enumerate(RESULTS)])
def test_results_come_back_as_python_values(text: str, args: tuple[Any, ...], expected: Any, target: str) -> None:
    got = hyad.compile(hyad.model(text, namespace={}), target=target, args=args)(*args)
    assert identical(got, expected), got


@pytest.mark.parametrize("target", ["python", "c"])
def test_arguments_are_never_written_to_and_results_are_new(target: str) -> None:
    for text in (
        "(fn [v] (update v 0 9))",
        "(fn [v] v)",
        "(fn [v] (ifold (fn [w i] (update w i 0)) v (len v)))",
        "(fn [v] (copy v))",
    ):
        v = V.copy()
        f = hyad.compile(hyad.model(text, namespace={}), target=target, args=(v,))
        got = f(v)
        assert np.array_equal(v, V), text
        got[:] = 77.0
        assert np.array_equal(v, V) and not np.array_equal(f(v), got), text


@pytest.mark.parametrize("grow", ["(ifold (fn [s i] (set! r (concat (deref r) [x]))) None 3)",
                                  "(while (< (len (deref r)) 4) (set! r (concat (deref r) [x])))"])  # fmt: skip
def test_names_of_the_module_after_a_call_with_an_array_of_unknown_size(grow: str) -> None:
    namespace: dict[str, Any] = {}
    namespace["twice"] = hyad.model("(defmodel twice [x] (* 2.0 x))", namespace=namespace)
    text = f"(fn [x] (let [r (ref [x])] {grow} (let [s (sum (deref r))] (* s (twice x)))))"
    f = hyad.model(text, namespace=namespace)
    assert f(1.5) == hyad.run(f, 1.5) == 18.0
    assert hyad.grad(f)(1.5) == 24.0


def test_models_with_a_primitive_that_is_redefined_are_compiled_anew() -> None:
    f = hyad.model("(fn [x] (sin (times-own x)))", namespace={})
    for k in (1.0, 5.0):
        hyad.defprim("times-own", ["x"], partials=[str(k)], python=lambda x, k=k: k * x, c=f"{k}*({{0}})")
        for value in (f(2.0), hyad.run(f, 2.0), hyad.value_and_grad(f)(2.0)[0]):
            assert value == pytest.approx(np.sin(2 * k), rel=1e-15)
        assert hyad.grad(f)(2.0) == pytest.approx(k * np.cos(2 * k), rel=1e-15)


def test_a_key_is_itself_beside_one_that_hy_calls_alike() -> None:
    f = hyad.model("""(fn [p] (- (* 10 (get p "a-b")) (get p "a_b")))""", namespace={})
    for p in ({"a-b": 2.0, "a_b": 5.0}, {"a_b": 5.0, "a-b": 2.0}):
        assert f(p) == hyad.run(f, p) == 15.0
        assert hyad.grad(f)(p) == {"a-b": 10.0, "a_b": -1.0}


def test_a_redefined_model_is_compiled_anew() -> None:
    namespace: dict[str, Any] = {}
    namespace["g"] = hyad.model("(defmodel g [x] (* 2 x))", namespace=namespace)
    f = hyad.model("(fn [x] (g x))", namespace=namespace)
    derivative = hyad.grad(f)
    jacobian = hyad.sparse_jacobian(hyad.model("(fn [v] (map g v))", namespace=namespace))
    hessian = hyad.sparse_hessian(hyad.model("(fn [v] (sum (map (fn [x] (square (g x))) v)))", namespace=namespace))
    for k in (2, 5):
        namespace["g"] = hyad.model(f"(defmodel g [x] (* {k} x))", namespace=namespace)
        assert f(3.0) == 3 * k and derivative(3.0) == k
        assert jacobian(np.ones(2)).toarray().tolist() == [[k, 0], [0, k]]
        assert hessian(np.ones(2)).toarray().tolist() == [[2 * k * k, 0], [0, 2 * k * k]]


def test_so_it_is_where_an_earlier_process_has_compiled_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path))
    text = """import hyad
ns = {}
ns["g"] = hyad.model("(defmodel g [x] (* 2 x))", namespace=ns)
f = hyad.model("(fn [x] (g x))", namespace=ns)
before = f(3.0)
ns["g"] = hyad.model("(defmodel g [x] (* 5 x))", namespace=ns)
print(before, f(3.0))"""
    for k in (2, 5):  # the second finds what the first has compiled
        here = [sys.executable, "-c", text.replace("5", str(k))]
        done = subprocess.run(here, capture_output=True, text=True, check=True)
        assert done.stdout == f"6.0 {3.0 * k}\n"


@pytest.mark.parametrize("others", [{}, {"power": len}, {"power": 2.0}])
def test_a_model_of_a_text_calls_itself_by_its_name(others: dict[str, Any]) -> None:
    """Whatever variable holds it, and whatever the module calls by that name: an older model, say."""
    text = "(defmodel power [n x] (if (= n 0) 1.0 (* x (power (- n 1) x))))"
    f = hyad.model(text, namespace=others)
    older = hyad.model("(defmodel power [n x] 7.0)", namespace={})
    g = hyad.model(text, namespace={"power": older})
    for model in (f, g):
        assert model(3, 2.0) == hyad.run(model, 3, 2.0) == 8.0
        assert hyad.grad(model, wrt="x")(3, 2.0) == hyad.run(hyad.grad(model, wrt="x"), 3, 2.0) == 12.0
        assert hyad.compile(model, target="python", args=(3, 2.0))(3, 2.0) == 8.0
    local = hyad.model("(defmodel down? [n x] (if (< x 0.1) n (down? (+ n 1) (/ x 2))))")
    assert local(0, 1.0) == hyad.run(local, 0, 1.0) == 4
    wrapped = hyad.model("(defmodel sum [v] (* 2 (sum v)))", namespace={})
    assert wrapped(np.ones(3)) == hyad.run(wrapped, np.ones(3)) == 6.0
    text = "(defmodel sum [l] (if (null? l) 0.5 (+ (car l) (sum (cdr l)))))"
    listed = hyad.model(text, namespace={"sum": wrapped})
    assert listed((1.0, (2.0, None))) == hyad.run(listed, (1.0, (2.0, None))) == 3.5
    user = hyad.model("(fn [x] (+ (power 2 x) (power 3 x)))", namespace={"power": f})
    assert user(2.0) == hyad.run(user, 2.0) == 12.0


# ------------------------------------------------------------------------------------------------- names


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.text("-_.X?!*a1ᵃﬁ︳", min_size=1, max_size=8))
@example("step-size")
@example("->x")
@example("_-x")
@example("hyx_evenXquestion_markX")
@example("vec.step-size")
def test_names_are_mangled_as_hy_does(name: str) -> None:
    try:
        expected = hy.mangle(name)
    except AssertionError:  # no symbol
        return
    assert mangled(name) == expected


@pytest.mark.parametrize(
    ("body", "x", "wanted"),
    [
        ("(** x 3 2)", 1.5, 1.5**9),
        ("(** 2 x 2 2)", 1.5, 2 ** (1.5**4)),
        ("(// x 3 2)", 100.0, 16.0),
        ("(// (int x) 3 2 2)", 100.0, 8),
        ("(let [p **] (p x 2 3))", 1.5, 1.5**8),
        ("(** [x 2] 2 2)", 3.0, [81, 16]),
    ],
)
def test_powers_and_quotients_of_several_are_hys(body: str, x: float, wanted: object) -> None:
    f = hyad.model(f"(fn [x] {body})")
    for call in (f, hyad.compile(f, "python", args=(x,)), lambda x: hyad.run(f, x)):
        np.testing.assert_allclose(call(x), wanted, rtol=1e-14)
    if "int" not in body:
        assert hyad.check_grad(f, (x,))
    with pytest.raises(ModelTypeError, match="takes 2 arguments, not 1"):
        hyad.model("(fn [x] (** x))")(x)


@pytest.mark.parametrize(
    "text",
    [
        "(defmodel f[x] (* x x))",
        "(defmodel :fast-math f[x] (* x x))",
        "(fn[x] (let[y[x 3.0]] (* (get y 0) x)))",
        "(fn[x] (letrec [g(fn[z] (* z x))] (g x)))",
        "(fn[x] (for [i[1]] i) (* x x))",
    ],
)
def test_what_binds_names_needs_no_space_before_its_bracket(text: str) -> None:
    """Unlike ``v[0]``, which would be two forms where an element is meant."""
    assert hyad.model(text, namespace={})(3.0) == 9.0


def test_an_imported_module_hides_nothing_of_the_language() -> None:
    """``import copy`` stands above many a model that copies an array."""
    import copy
    import trace

    f = hyad.model(
        "(fn [#^ (Mat n n) m] (let [c (copy m)] (set-at! c 0 0 5.0) (+ (trace c) (get m 0 0))))",
        namespace={"copy": copy, "trace": trace},
    )
    m = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert hyad.compile(f)(m) == hyad.run(f, m) == f(m) == 10.0
    with pytest.raises(hyad.HyadError, match="Python module"):
        hyad.model("(fn [x] (* x np))", namespace={"np": np})(1.0)
