"""Define by run: the whole language as it is read, differentiated while it runs."""

from __future__ import annotations

import math
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
import oracle
import test_derivatives as derivatives
import test_language as language
from hyad import BoundsError, DerivativeError, HyadError, ModelTypeError, NotCompiled, UnboundError
from hyad.interpret import library
from hyad.program.primitives import PRIMITIVES

Tree = hyad.defdata("Tree", ["Leaf", "word"], ["Node", "label", "left", "right"])
Leaf, Node = Tree.constructors


def run(text: str, *args: Any, **namespace: Any) -> Any:
    return hyad.run(hyad.model(text, namespace=namespace), *args)


# ------------------------------------------------------------- what compiles means the same when it runs


@pytest.mark.some(6)
@pytest.mark.parametrize("c", derivatives.CASES, ids=[c.name for c in derivatives.CASES])
def test_every_way_to_differentiate_agrees_with_the_oracle(c: derivatives.Case) -> None:
    wrong = []
    for point in c.points:
        args, texts = derivatives.everything(c, point)
        expected: dict[str, Any] = {}
        for key, text in texts.items():
            found = oracle.mismatch(run(text, *args), derivatives.expectation(expected, key, text, args), c.rtol)
            if found:
                wrong.append(f"{key} at {point}: {found}")
    assert not wrong, "\n".join([c.text, *wrong])


@pytest.mark.parametrize("f, x, expected", derivatives.KINKS)
def test_kinks_and_guards(f: str, x: Any, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        for way in derivatives.WAYS[key]:
            found = oracle.mismatch(run(f"(fn [x] (let [f {f}] {way}))", x), value)
            assert found is None, f"{way}: {found}"


@pytest.mark.parametrize("expression", derivatives.CONFUSION)
def test_no_perturbation_confusion(expression: str) -> None:
    for x in (0.7, 1.3):
        text = f"(fn [x] {expression})"
        assert oracle.mismatch(run(text, x), oracle.evaluate(text, x)) is None


def test_values() -> None:
    for expression, args, expected in [*language.ROWS, *((e, a, language.by_hy(e, a)) for e, a in language.AS_HY)]:
        got = hyad.run(language.model_of(expression, args), *args)
        assert language.same(got, expected) or "round" in expression, (expression, got, expected)
    for text, args, expected in language.RESULTS:
        assert language.identical(run(text, *args), expected), text


# --------------------------------------------------------------------------------------- the language


@pytest.mark.parametrize(
    "text, args, expected",
    [
        ("(fn [x] (let [r (ref x)] (set! r (* 2 (deref r))) (deref r)))", (3.0,), 6.0),
        ("(fn [x] (let [r (ref x)  s r] (set! s 5.0) (deref r)))", (3.0,), 5.0),
        ("(fn [l] (map (fn [x] (* x x)) l))", (hyad.lisp([1.0, 2.0, 3.0]),), hyad.lisp([1.0, 4.0, 9.0])),
        ("(fn [l] (fold + 0.0 l))", (hyad.lisp([1.0, 2.0, 3.0]),), 6.0),
        ("(fn [l] (fold + 0.0 l))", (None,), 0.0),
        ("(fn [x] (list x (+ x 1)))", (1.0,), hyad.lisp([1.0, 2.0])),
        ("(fn [x] #((car (cons x nil)) (null? nil) (num? x) (num? nil) (num? True)))", (1.0,),
         (1.0, True, True, False, False)),
        ("(fn [s] (case s (inl x) (* 2 x) (inr y) (fst y)))", (hyad.inl(3.0),), 6.0),
        ("(fn [s] (case s (inl x) (inr x) (inr y) (inl (snd y))))", (hyad.inr((1.0, 2.0)),), hyad.inl(2.0)),
        ("(fn [l] (match l nil 0.0 (cons h t) h))", (hyad.lisp([4.0]),), 4.0),
        ("(fn [l] (match l nil 0.0 _ 1.0))", (hyad.lisp([4.0]),), 1.0),
        ("(fn [v] (let [w v  u (copy v)] (set-at! v 0 9.0) #((get w 0) (get u 0))))", (np.ones(2),), (9.0, 1.0)),
        ("(fn [m] (let [r (get m 1)] (set-at! r 0 7.0) (get m 1 0)))", (np.ones((2, 2)),), 7.0),
        ("(fn [m] (do (set-at! m 0 -1 7.0) m))", (np.zeros((1, 2)),), np.array([[0.0, 7.0]])),
        ("(fn [v] (let [u (update v 0 9.0)] #(u v)))", (np.ones(2),), (np.array([9.0, 1.0]), np.ones(2))),
        ("(fn [x] (get [(fn [] x) (fn [] (* 2 x))] 1))", (1.0,), None),
        ("(fn [x] (build 2 (fn [i] (if (= i 0) None x))))", (1.0,), [None, 1.0]),
        ("(fn [x y] (let [m [[x y] [y x]]] (get m 0 1)))", (1.0, 2.0), 2.0),
        ("(fn [n] (letrec [even (fn [k] (or (= k 0) (odd (- k 1))))  odd (fn [k] (and (> k 0) (even (- k 1))))]"
         " (even n)))", (7,), False),
        ("(fn [x] (scan (fn [a b] (+ a b)) x (list 1.0 2.0)))", (1.0,), hyad.lisp([2.0, 4.0])),
        ("(fn [r] (+ (. r a) r.b))", ({"a": 1.0, "b": 2.0},), 3.0),
        ("(fn [] (build [0 3] (fn [i j] 1.0)))", (), np.zeros((0, 3))),
        ("(fn [m] (shape m))", (np.zeros((0, 3)),), (0, 3)),
        ("(fn [ps] (fold (fn [s p] (+ s (* (fst p) (snd p)))) 0.0 ps))", ([(1.0, 2.0), (3.0, 4.0)],), 14.0),
    ],
)  # fmt: skip
def test_language(text: str, args: tuple[Any, ...], expected: Any) -> None:
    got = run(text, *args)
    if expected is None and callable(got):
        assert got() == 2.0
    elif isinstance(expected, (np.ndarray, tuple)):
        assert language.identical(got, expected), got
    else:
        assert type(got) is type(expected) and got == expected, got


def test_data_types_come_and_go() -> None:
    total = "(fn [t] (letrec [go (fn [t] (match t (Leaf w) w (Node a l r) (+ a (* (go l) (go r)))))] (go t)))"
    tree = Node(1.0, Leaf(2), Node(0.5, Leaf(3.0), Leaf(4.0)))
    model = hyad.model(total, namespace=globals())
    assert hyad.run(model, tree) == 26.0
    assert hyad.run(hyad.grad(model), tree) == Node(1.0, Leaf(12.5), Node(2.0, Leaf(8.0), Leaf(6.0)))
    doubled = (
        "(fn [t] (letrec [go (fn [t] (match t (Leaf w) (Leaf (* 2 w)) (Node a l r) (Node a (go l) (go r))))] (go t)))"
    )
    assert hyad.run(hyad.model(doubled, namespace=globals()), tree).right.left == Leaf(6.0)
    assert run("(fn [#^ Tree t] (. t word))", Leaf(3.0), Tree=Tree) == 3.0
    with pytest.raises(ModelTypeError, match="declared Tree"):
        run("(fn [#^ Tree t] 1.0)", 3.0, Tree=Tree)


def test_models_call_themselves_and_each_other(tmp_path: Any) -> None:
    path = tmp_path / "m.hy"
    path.write_text(
        "(defmodel even-like [n x] (if (<= n 0) x (odd-like (- n 1) (* x x))))\n"
        "(defmodel odd-like [n x] (if (<= n 0) x (even-like (- n 1) (sin x))))\n"
    )
    m = hyad.load(path)
    assert hyad.run(m.even_like, 2, 0.5) == math.sin(0.25)
    assert math.isclose(hyad.run(hyad.grad(m.even_like, wrt="x"), 2, 0.5), math.cos(0.25))


def test_a_redefined_model_is_run_anew(tmp_path: Any) -> None:
    space: dict[str, Any] = {}
    space["g"] = hyad.model("(defmodel g [x] (* 2 x))", namespace=space)
    f = hyad.model("(fn [x] (g x))", namespace=space)
    assert hyad.run(f, 3.0) == 6.0
    space["g"] = hyad.model("(defmodel g [x] (* 5 x))", namespace=space)
    f._forget()
    assert hyad.run(f, 3.0) == 15.0


def test_a_closure_of_a_loop_has_its_own_variables() -> None:
    text = (
        "(fn [n] (let [fs (ref nil) i (ref 0)]"
        " (while (< (deref i) n) (let [k (deref i)] (set! fs (cons (fn [] k) (deref fs))) (set! i (+ k 1))))"
        " (map (fn [f] (f)) (deref fs))))"
    )
    assert run(text, 4) == hyad.lisp([3, 2, 1, 0])


def test_loops_inside_one_another_beyond_what_python_allows() -> None:
    loops = "(set! r (+ (deref r) 1))"
    for _ in range(30):
        loops = f"(let [c (ref 0)] (while (< (deref c) 1) {loops} (set! c 1)))"
    assert run(f"(fn [] (let [r (ref 0)] {loops} (deref r)))") == 1


def test_arguments_are_not_written_to() -> None:
    v = np.ones(3)
    assert list(run("(fn [v] (do (set-at! v 0 5.0) v))", v)) == [5.0, 1.0, 1.0] and list(v) == [1.0] * 3
    text = "(fn [i] (do (set-at! table i 5.0) (fold + 0.0 table)))"
    model = hyad.model(text, namespace={"table": v})
    assert [hyad.run(model, 0), hyad.run(model, 1)] == [7.0, 7.0] and list(v) == [1.0] * 3


def test_functions_go_to_python_and_back() -> None:
    f = run("(fn [a] (fn [b] (fn [v] (* a b (fold + 0.0 v)))))", 2.0)
    g = f(3.0)
    assert callable(g) and g(np.ones(4)) == 24.0
    assert run("(fn [h x] (+ (h x) ((grad h) x)))", hyad.model("(fn [x] (* x x))"), 3.0) == 15.0
    assert run("(fn [h x] (h x))", math.floor, 3.5) == 3
    with pytest.raises(ModelTypeError, match="takes 1 argument, not 2"):
        f(1.0, 2.0)
    with pytest.raises(ModelTypeError, match="argument `b` is a Python str"):
        f("a")


def test_python_functions_are_called_with_plain_values_and_not_differentiated() -> None:
    seen = []

    def log(*args: Any) -> float:
        seen.append(args)
        return 2.0

    assert run("(fn [x v] (* x (log2- #(x v))))", 3.0, np.ones(2), **{"log2_": log}) == 6.0
    assert type(seen[0][0][0]) is float and isinstance(seen[0][0][1], np.ndarray)
    with pytest.raises(DerivativeError, match="Python function") as caught:
        run("(fn [x] ((grad (fn [y] (+ y (spy y)))) x))", 3.0, spy=log)
    assert caught.value.span.text == "(spy y)"
    assert run("(fn [x] ((grad (fn [y] (* y (spy x)))) x))", 3.0, spy=log) == 2.0


def test_a_users_own_rules_serve_both_modes_and_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cube1", "cube2"):  # gone again after the test
        monkeypatch.setitem(PRIMITIVES, name, None)
    hyad.defprim("cube1", ["x"], python=lambda x: x**3, c="{0}*{0}*{0}", jvp="(fn [x dx] (* 3 x x dx))")
    hyad.defprim("cube2", ["x"], python=lambda x: x**3, c="{0}*{0}*{0}", vjp="(fn [x y ct] (* 3 x x ct))")
    for name in ("cube1", "cube2"):
        f = hyad.model(f"(fn [x] (* 2 ({name} x)))", namespace={})
        assert hyad.run(f, 2.0) == 16.0
        for first in (hyad.D, hyad.grad):
            assert hyad.run(first(f), 2.0) == 24.0
            for second in (hyad.D, hyad.grad):
                assert hyad.run(second(first(f)), 2.0) == 24.0


# --------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize(
    "text, args, expected",
    [
        ("(fn [x] ((grad (fn [p] (* (fst p) (snd p)))) #(x 3)))", (2.0,), (3.0, 2.0)),
        ("(fn [l] ((grad (fn [l] (fold * 1.0 l))) l))", (hyad.lisp([2, 3, 4]),), hyad.lisp([12.0, 8.0, 6.0])),
        ("(fn [l] ((grad (fn [l] 3.0)) l))", (hyad.lisp([1.0, None, True]),), hyad.lisp([0.0, None, True])),
        ("(fn [s] ((grad (fn [s] (case s (inl x) (* x x) (inr y) 0.0))) s))", (hyad.inl(3),), hyad.inl(6.0)),
        ("(fn [x] ((D (fn [t] (list t True nil (inl (* t t)) [t 2]))) x))", (3.0,),
         hyad.lisp([1.0, True, None, hyad.inl(6.0), np.array([1.0, 0.0])])),
        ("(fn [x] ((snd ((D (fn [t] #(t (fn [y] (* t t y))))) x)) 5.0))", (3.0,), 30.0),
        ("(fn [x] ((get ((D (fn [t] [(fn [y] (* t y)) (fn [y] (* t t t))])) x) 1) 5.0))", (2.0,), 12.0),
        ("(fn [x] (((grad (fn [t] (fn [y] (* t t y)))) x) 5.0))", (3.0,), 30.0),
        ("(fn [x] (((jvp (fn [t u] (fn [y] (* t u y))) x 2.0 1.0 0.5)) 5.0))", (3.0,), None),
        ("(fn [x] (let [r (ref 0.0)] ((D (fn [t] (do (set! r (* t t)) (* 2 t)))) x) (* 3 (deref r))))", (3.0,), 27.0),
        ("(fn [x] ((D (fn [u] (let [r (ref 0.0)] ((grad (fn [t] (do (set! r (* t u)) t))) u) (deref r)))) x))",
         (3.0,), 6.0),
        ("(fn [x] (vjp (fn [t] #(t (list (* t t) True) nil)) x #(1 (list 10.0 True) nil)))", (3.0,), 61.0),
        ("(fn [x] ((jacobian (fn [p] #((fst p) [(snd p) (fst p)]))) #(x x)))", (3.0,),
         ((1.0, 0.0), (np.array([0.0, 1.0]), np.array([1.0, 0.0])))),
        ("(fn [n] ((D (fn [t] (letrec [p (fn [k] (if (= k 0) 1 (* t (p (- k 1)))))] (p n)))) 2.0))", (5,), 80.0),
        ("(fn [x] ((D (fn [t] (if (> t 0) (sqrt t) 0.0))) x))", (0.0,), 0.0),
        ("(fn [x] ((grad (fn [t] (sqrt t))) x))", (0.0,), math.inf),
        ("(fn [x y] (jvp (fn [a b] (+ (* a a) (sqrt b))) x y 1.0 0.0))", (3.0, 0.0), 6.0),
        ("(fn [x] ((D (fn [t] (get (let [v [t t t]] (set-at! v 1 (* t t)) v) 1))) x))", (3.0,), 6.0),
        ("(fn [x] ((value-and-grad (fn [t] (* t t))) x))", (3,), (9.0, 6.0)),
        ("(fn [x] (deriv (* x x) x))", (3.0,), (9.0, 6.0)),
        ("(fn [x y] ((grad * :wrt #(1 0)) x y))", (3.0, 2.0), (3.0, 2.0)),
    ],
)  # fmt: skip
def test_derivatives(text: str, args: tuple[Any, ...], expected: Any) -> None:
    if expected is None:
        with pytest.raises(ModelTypeError, match="takes 1 argument, not 0"):
            run(text, *args)
        return
    found = oracle.mismatch(run(text, *args), oracle.internal(expected), 1e-14)
    assert found is None, found


def test_a_jacobian_of_many_results_goes_forward() -> None:
    f = hyad.model("(fn [x] (build 300 (fn [i] (* x x i))))", namespace={})
    assert np.array_equal(hyad.run(hyad.jacobian(f), 3.0), 6.0 * np.arange(300))


# --------------------------------------------------------------------------------------- depth


COUNT = "(fn [n x] (letrec [go (fn [k a] (if (= k 0) a (go (- k 1) (+ a x))))] (go n x)))"
DEEP = "(fn [n x] (letrec [go (fn [k] (if (= k 0) x (+ x (go (- k 1)))))] (go n)))"
WHILE = (
    "(fn [n x] (let [i (ref 0) a (ref x)]"
    " (while (< (deref i) n) (set! a (+ (deref a) x)) (set! i (+ (deref i) 1))) (deref a)))"
)


@pytest.mark.some(10)
@pytest.mark.parametrize(
    "text, n", [(COUNT, 1_000_000), (WHILE, 1_000_000), (DEEP, 100_000)], ids=["tail", "while", "deep"]
)
def test_long_and_deep(text: str, n: int) -> None:
    model = hyad.model(text, namespace={})
    assert hyad.run(model, n, 0.5) == 0.5 * (n + 1)
    n = min(n, 100_000)
    for first in (hyad.D, hyad.grad):
        assert hyad.run(first(model, wrt="x"), n, 0.5) == n + 1
    small = min(n, 20_000)
    assert hyad.run(hyad.D(hyad.grad(model, wrt="x"), wrt="x"), small, 0.5) == 0.0


def test_a_long_list_is_an_ordinary_argument_and_result() -> None:
    squares = "(fn [l] (letrec [go (fn [l] (if (null? l) 0.0 (+ (* (car l) (car l)) (go (cdr l)))))] (go l)))"
    made = hyad.run(hyad.grad(squares), hyad.lisp([1.0] * 30_000))
    count = 0
    while made is not None:
        count, made = count + (made[0] == 2.0), made[1]
    assert count == 30_000


@pytest.mark.parametrize(
    "text, form",
    [
        ("(fn [x] (letrec [f (fn [n] (+ 1.0 (f (+ n 1))))] (f x)))", "(f (+ n 1))"),
        ("(fn [x] (letrec [f (fn [n] (sin (g n))) g (fn [n] (cos (f n)))] (f x)))", None),
        ("(fn [x] ((D (fn [t] (letrec [f (fn [n] (* t (f n)))] (f 1)))) x))", "(f n)"),
    ],
)
def test_a_recursion_without_an_end(text: str, form: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyad.interpret.eager.DEPTH", 20_000)
    with pytest.raises(HyadError, match="does not end") as caught:
        run(text, 1.0)
    assert caught.value.span.text in ("(g n)", "(f n)") if form is None else caught.value.span.text == form


def test_runs_in_threads_at_once() -> None:
    found: list[float] = []
    model = hyad.grad(hyad.model(DEEP, namespace={}), wrt="x")
    threads = [threading.Thread(target=lambda n=n: found.append(hyad.run(model, n, 0.5))) for n in (2000, 3000, 4000)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found) == [2001.0, 3001.0, 4001.0]


# --------------------------------------------------------------------------------------- errors


MISTAKES = [
    ("(fn [x] (+ x (foo 5)))", UnboundError, "nothing binds `foo`", "foo"),
    ("(fn [x] (+ x (car 5)))", ModelTypeError, "`car` of an integer", "5"),
    ("(fn [x] (+ x (car nil)))", ModelTypeError, "the empty list", "nil"),
    ("(fn [x] (let [f (fn [a b] a)] (+ 1.0 (f x))))", ModelTypeError, "takes 2 arguments, not 1", "(f x)"),
    ("(fn [x] (let [f (fn [a b] a)] (f x)))", ModelTypeError, "takes 2 arguments, not 1", "(f x)"),
    ("(fn [x] (+ 1 (x 2)))", ModelTypeError, "a number is called as a function", "(x 2)"),
    ("(fn [x] (deref x))", ModelTypeError, "`deref` of a number", "x"),
    ("(fn [x] (set! x 2))", ModelTypeError, "`set!` of a number", "x"),
    ("(fn [x] (get [1 2] (int x)))", BoundsError, "index 3 is outside axis 0 of size 2", "(int x)"),
    ("(fn [x] (get [1 2] x))", ModelTypeError, "this index is a number", "x"),
    ("(fn [x] (set-at! [1 2] (int x) x))", BoundsError, "index 3 is outside axis 0 of size 2", "(int x)"),
    ("(fn [x] (case (inr x) (inl y) y))", ModelTypeError, r"no arm takes `\(inr ..\)`", "(case (inr x) (inl y) y)"),
    ("(fn [x] (case x (inl y) y))", ModelTypeError, "no arm takes a number", "(case x (inl y) y)"),
    ("(fn [x] (match x (Foo y) y))", UnboundError, "nothing binds `Foo`", "Foo"),
    ("(fn [x] (match x (sin y) y))", ModelTypeError, "`sin` is not a constructor", "sin"),
    ("(fn [x] (if x 1 2))", ModelTypeError, "the condition is a number", "(if x 1 2)"),
    ("(fn [x] (while x 1))", ModelTypeError, "the condition is a number", "(while x 1)"),
    ("(fn [x] (+ 1.0 (dot [x] [x x])))", ModelTypeError, "lengths 1 and 2", "(dot [x] [x x])"),
    ("(fn [x] ((grad (fn [y] #(y y))) x))", DerivativeError, "gives a pair", "((grad (fn [y] #(y y))) x)"),
    ("(fn [x] (grad x))", DerivativeError, "takes a function, not a number", "(grad x)"),
    ("(fn [x] ((D (fn [r] 1.0)) (ref x)))", DerivativeError, "not by a reference", "((D (fn [r] 1.0)) (ref x))"),
    ("(fn [x] ((grad (fn [f] 1.0)) sin))", DerivativeError, "by a function", "((grad (fn [f] 1.0)) sin)"),
    ("(fn [x] (map (fn [a b] a) [x x]))", ModelTypeError, "takes 2 arguments, not 1", "(fn [a b] a)"),
    ("(fn [x] (sin #(x x)))", ModelTypeError, "this is a pair", "#(x x)"),
    ("(fn [x] (+ True x))", ModelTypeError, "does not work on a truth value and a number", "(+ True x)"),
    ("(fn [x] (sin x x))", ModelTypeError, "takes 1 argument, not 2", "(sin x x)"),
    ("(fn [x] (cons x))", ModelTypeError, "takes 2 arguments, not 1", "(cons x)"),
    ("(fn [x] (. x foo))", ModelTypeError, "a number has no field `foo`", "(. x foo)"),
    ("(fn [x] (ref x))", ModelTypeError, "cannot leave the model", None),
    ("(fn [x] (build x (fn [i] 1)))", ModelTypeError, "the size in `build` is a number", "x"),
    ("(fn [x] (build -2 (fn [i] x)))", ModelTypeError, "sizes are not negative", "-2"),
    ("(fn [x] (ifold (fn [s i] s) x [2 2]))", ModelTypeError, "the count of this loop is an array", "[2 2]"),
    ("(fn [x] (vjp (fn [a] #(a a)) x 1.0))", ModelTypeError, "the shape of the result", None),
    ("(fn [x] (jvp sin x [1.0]))", ModelTypeError, "the shape of its argument", None),
    ("(fn [x] ((jacobian (fn [y] (> y 0))) x))", DerivativeError, "it has no derivative", None),
    ("(fn [x] (update [1.0 2.0] 0 True))", ModelTypeError, "puts a truth value where a number stands", None),
    ("(fn [x] (+ [1 2] [1 2 3]))", ModelTypeError, "the shapes must be equal", "(+ [1 2] [1 2 3])"),
]


@pytest.mark.parametrize("text, kind, message, form", MISTAKES, ids=[row[0] for row in MISTAKES])
def test_mistakes(text: str, kind: type[HyadError], message: str, form: str | None) -> None:
    with pytest.raises(kind) as caught:
        run(text, 3.0)
    error = caught.value
    assert message.replace("\\", "") in str(error) and error.span is not None
    assert form is None or error.span.text == form
    assert error.__traceback__ is None or "active.py" not in str(error.__traceback__)


def test_an_error_in_a_called_model_is_at_home() -> None:
    space: dict[str, Any] = {}
    space["inner"] = hyad.model("(defmodel inner [v] (get v 7))", namespace=space)
    with pytest.raises(BoundsError) as caught:
        run("(fn [v] (+ 1.0 (inner v)))", np.ones(2), **space)
    assert caught.value.span.source.text.startswith("(defmodel inner")


def test_what_a_python_function_raises_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        run("(fn [x] (spy x))", 1.0, spy=lambda x: x / 0)


# ------------------------------------------------------------------------- models that do not compile


ORDER = "(defmodel f [x] (letrec [go (fn [n g] (if (> (g x) 0) n (go (+ n 1) (D g))))] (go 0 sin)))"


def test_a_model_without_a_typed_program_runs_and_says_so_once() -> None:
    f = hyad.model(ORDER, namespace={})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert f(5.0) == 1 and f(4.0) == 2
    assert len(said) == 1 and "cannot be compiled" in str(said[0].message) and said[0].filename == __file__
    with pytest.raises(NotCompiled):
        hyad.compile(f, args=(5.0,))


EMPTY = [
    "(map (fn [r] (* 2 r)) m)", "(map (fn [r] (sum r)) m)", "(build (len m) (fn [i] (get m i)))", "(flip m 1)",
    "(build [(len m) 2] (fn [i j] (get m i)))", "(scan (fn [s r] (+ s r)) (zeros (get (shape m) 1)) m)",
    "(cumsum m 1)", "(sort m)", "(softmax m 1)", "(cut m 0 0)", "(concat m m)", "(zeros [(len m) 3])",
    "(moveaxis (expand-dims m 2) 0 1)", "(stack [m m] 1)", "(map (fn [r] (map (fn [e] [e e]) r)) m)",
    "((jacobian (fn [m] (map (fn [r] (* r r)) m))) m)",
    "(loop (len m) (fn [i s] #((+ s 1.0) (get m i))) 0.0)", "(map sin (ravel m))", "(solve (eye (len m)) m)",
    "(argmax m 1)", "(map argmax m)", "(argsort m)", "(argsort (ravel m))", "(build (len m) (fn [i] i))",
    "(> m 0.0)", "(any (> m 0.0) 1)", "(map len m)", "(map (fn [i] (* 2 i)) (map len m))", "(where (> m 0) m 1.0)",
    "(map (fn [r] (> 1 0)) m)", "(+ (argsort m) 1)", "(/ (argsort m) 1)", "(real (argsort m))",
    "(gather m (argsort (sum m 1)))", "(* (get m #((slice None) 0 None)) m)", "(+ m (expand-dims (sum m 1) 1))",
    "(* (get m #((slice None) 0 None)) [1.0 2.0])", "(> (expand-dims (sum m 1) 1) m)",
]  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("text", EMPTY)
def test_arrays_of_no_rows_have_the_shape_and_kind_of_rows(text: str) -> None:
    """As what is compiled has, whose shapes are known before it runs."""
    f = hyad.model(f"(fn [#^ (Mat n k) m] {text})", namespace={})
    for m in (np.ones((0, 3)), np.ones((0, 1)), np.ones((2, 2))):
        found, wanted = hyad.run(f, m), memoised.compile(f, target="python", args=(m,))(m)
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
            assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("step", ["(sin (* s x))", "(+ s (* x (real i)))", "(if (= i 0) x (sin (+ s x)))"])
@pytest.mark.parametrize(
    "text",
    [
        "(fn [#^ Int k  x] (ifold (fn [s i] STEP) x k))",
        "(fn [#^ Int k  x] (ifold (fn [s i] STEP) x k :checkpoint 2))",
        "(fn [#^ Int k  x] (ifold (fn [s j] (ifold (fn [s i] STEP) s (+ j k))) x 3))",
        "(fn [#^ Int k  #^ (Vec 1) v] (let [x (get v 0)] (ifold (fn [s i] STEP) x (- (len v) 3))))",
        "(fn [#^ Int k  #^ (Vec 1) v] (let [x (get v 0)] (ifold (fn [s i] (ifold (fn [s i] STEP) s (- i 2))) x 4)))",
    ],
)
def test_a_loop_of_a_negative_count_does_nothing(text: str, step: str) -> None:
    """Whether the count is known before the call or not; as Python's range has it."""
    f = hyad.model(text.replace("STEP", step), namespace={})
    x = np.array([0.7]) if "Vec" in text else 0.7
    if "j" not in text and "- i 2" not in text:
        assert hyad.run(f, -2, x) == 0.7
    for g in (f, hyad.grad(f, wrt=1)):
        for target in ("python", "c"):
            made = hyad.compile(g, target=target, args=(3, x))
            for k in (-9, -2, -1, 0, 2):
                np.testing.assert_allclose(made(k, x), hyad.run(g, k, x), rtol=1e-13)


def test_the_shape_of_rows_is_found_without_changing_anything() -> None:
    """Nothing is set for a row that is not there, no Python function is called, no error comes of it."""
    seen: list[float] = []
    names = {"note": lambda x: seen.append(x) or x}
    for body, wanted in (
        ("(let [k (ref 1.0) e (map (fn [r] (do (set! k 2.0) r)) m)] (deref k))", 1.0),
        ("(let [b (copy [1.0]) e (map (fn [r] (do (set-at! b 0 2.0) r)) m)] (get b 0))", 1.0),
        ("(let [e (map (fn [r] (note (get r 0))) m)] (len e))", 0),
        ("(len (map (fn [r] (get [1.0 2.0] 7)) m))", 0),
        ("(letrec [f (fn [r] (+ 1.0 (f r)))] (len (map f m)))", 0),
        ("(sum ((grad (fn [m] (sum (map (fn [r] (* x (sum r))) m)))) m))", 0.0),
        ("((D (fn [x] (+ x (sum (map (fn [r] (* x (sum r))) m))))) x)", 1.0),
    ):
        assert hyad.run(hyad.model(f"(fn [m x] {body})", namespace=names), np.ones((0, 3)), 3.0) == wanted
    assert not seen


def test_an_update_copies_the_rows_that_it_changes() -> None:
    """The others are those of the array before, or a system of 60 equations would take minutes. A real number among
    integers makes all of them real, as in an array of NumPy."""
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    made = library.update(rows, 1, 0, 7.0)
    assert made == [[1.0, 2.0], [7.0, 4.0], [5.0, 6.0]] and rows[1] == [3.0, 4.0]
    assert made[0] is rows[0] and made[2] is rows[2]
    mixed = library.update([[1, 2], [3, 4]], 1, 0, 7.5)
    assert mixed == [[1, 2], [7.5, 4]] and all(type(x) is float for row in mixed for x in row)
    n = 60
    a = np.random.default_rng(0).normal(size=(n, n))
    np.testing.assert_allclose(hyad.run(hyad.model("(fn [a] (solve a (get a 0)))"), a), np.linalg.solve(a, a[0]), 1e-8)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("(fn [#^ Int a #^ Int b] (% (+ a b) 7))", (2**62, 2**62)),
        ("(fn [#^ Int a #^ Int b] (real (* a b)))", (2**40, 2**40)),
        ("(fn [#^ Int a] (- a))", (-(2**63),)),
        ("(fn [#^ Int a] (abs a))", (-(2**63),)),
        ("(fn [#^ Int a] (square a))", (2**33 + 5,)),
        ("(fn [x] (let [k (fold * 1 (build 40 (fn [i] 10000000001)))] (+ x k)))", (1.0,)),
        (
            "(fn [#^ Int s #^ Int n] (fst (ifold (fn [#(x s) k] #((+ x (real (% s 1000))) (+ 1442695040888963407"
            " (* s 6364136223846793005)))) #(0.0 s) n)))",
            (12345, 50),
        ),
    ],
)
def test_integers_come_round_as_in_compiled_code(text: str, args: tuple[Any, ...]) -> None:
    f = hyad.model(text, namespace={})
    assert hyad.run(f, *args) == hyad.compile(f)(*args) == hyad.compile(f, target="python", args=args)(*args)
