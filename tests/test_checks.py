"""A check is made once: what has been found to be in range is not looked at again."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import BOOL, INT, REAL, Arr, Bind, Block, Check, Const, Loop, Prim, Var, While, all_binds
from hyad.errors import BoundsError, HyadError
from hyad.passes.checks import Around, Once
from hyad.passes.fusion import siblings
from hyad.passes.optimise import optimise
from hyad.program.builder import Builder

#: Lower triangles packed by columns, as a mixture's covariances are: a subscript that nothing proves to be in range.
PACKED = """(defmodel packed [#^ (Mat k p) packed #^ (Mat k d) v]
  (let [d (shape v 1)
        entry (fn [row r c]
                (cond (= r c) (exp (get row r))
                      (> r c) (get row (+ d (- (// (* c (- (* 2 d) (+ c 1))) 2) (+ c 1)) r))
                      True 0.0))
        roots (map (fn [row] (build [d d] (fn [r c] (entry row r c)))) packed)]
    (fold + 0.0 (map (fn [q x] (let [y (map (fn [r] (dot r x)) q)] (dot y y))) roots v))))"""
GATHERED = """(defmodel gathered [#^ (Vec n) x #^ (Arr Int m) at #^ (Vec m) w]
  (ifold (fn [s i] (+ s (* (get w i) (exp (get x (get at i)))))) 0.0 (len at)))"""
#: The loop of the error is the first one that fails, whichever comes first in the derivative.
TWICE = """(defmodel twice [#^ (Vec n) x #^ (Arr Int m) at #^ (Arr Int m) to]
  (let [a (build (len at) (fn [i] (sin (get x (get at i)))))
        b (build (len at) (fn [i] (* (get a i) (get x (get to i)))))]
    (+ (fold + 0.0 a) (fold + 0.0 b))))"""
CHOSEN = """(defmodel chosen [#^ (Vec n) x #^ (Arr Int m) at]
  (ifold (fn [s i]
           (if (> (get x 0) 0.0)
             (* s (ifold (fn [t j] (+ t (* (get x (get at j)) (get x (get at i))))) 1.0 (len at)))
             (+ s (get x (get at i)))))
         1.0 (len at)))"""


def returns(source: str) -> int:
    """How many checks the C makes."""
    return len(re.findall(r"if \(.*\) return [1-9]", source))


def packed(k: int = 2, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 0.5, (k, d * (d + 1) // 2)), rng.normal(0, 1, (k, d))


def differences(f, args, k: int) -> np.ndarray:
    """The gradient of a compiled function by its argument ``k``, by differences."""
    x, found = np.array(args[k], float), np.zeros(np.shape(args[k]))
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += 1e-6
        down[at] -= 1e-6
        found[at] = (f(*args[:k], up, *args[k + 1 :]) - f(*args[:k], down, *args[k + 1 :])) / 2e-6
    return found


def test_a_gradient_checks_what_its_value_does() -> None:
    model, args = hyad.model(PACKED), packed()
    value, gradient = hyad.compile(model), hyad.compile(hyad.grad(model, "packed"))
    value(*args), gradient(*args)
    assert returns(gradient.source) == returns(value.source)
    assert gradient.source.count("hyad_mul_overflows(c") == 1
    np.testing.assert_allclose(gradient(*args), differences(value, args, 0), rtol=1e-6, atol=1e-7)
    for target in ("c", "python"):
        f = hyad.compile(hyad.grad(model, "packed"), target=target)
        with pytest.raises(BoundsError):
            f(args[0][:, :-1].copy(), args[1])


@pytest.mark.parametrize("text", [GATHERED, TWICE, CHOSEN])
def test_the_first_error_is_the_one_of_the_value(text: str) -> None:
    model, rng = hyad.model(text), np.random.default_rng(2)
    x, m = np.array([0.3, 0.5, -0.2]), 5
    good = [rng.integers(0, 3, m) for _ in range(2)]
    weights = [rng.normal(0, 1, m)] if text == GATHERED else []

    def arguments(*at: np.ndarray) -> tuple:
        return (x, *at) if text == TWICE else (x, at[0], *weights)

    derivatives = [hyad.grad(model, "x"), hyad.value_and_grad(model, "x"), hyad.hessian(model, "x")]
    value = hyad.compile(model)
    made = [hyad.compile(f, target=target) for f in derivatives for target in ("c", "python")]
    for gradient in made[:2]:
        got = gradient(*arguments(*good))
        np.testing.assert_allclose(got, differences(value, arguments(*good), 0), rtol=1e-6, atol=1e-7)
    for place, wrong in ((0, 3), (1, -1), (0, 10**6), (1, -(10**9))):
        bad = [g.copy() for g in good]
        bad[place][3] = wrong
        bad[1 - place][4] = wrong
        args = arguments(*bad)
        with pytest.raises(BoundsError) as first:
            value(*args)
        for f in made:
            with pytest.raises(BoundsError) as caught:
                f(*args)
            assert caught.value.span == first.value.span
            assert str(caught.value).partition(":")[2] == str(first.value).partition(":")[2]


@pytest.mark.parametrize("sure", [False, True])
def test_no_loop_passes_a_check_that_it_may_need(sure: bool) -> None:
    """What a loop reads may be in range because an earlier one found it so: it is not joined with one before that."""
    b, n, m = Builder(), Var("n", INT), Var("m", INT)
    x, at = Var("x", Arr(REAL, (n,))), Var("at", Arr(INT, (m,)))
    b.sizes |= {n, m}
    one = b.build(m, lambda i: b.prim("*", Const(2, INT), b.get(at, i)))

    def look(i):
        b.emit(Check("in", b.get(one, i), n, "out of range"), ())
        return (), ()

    b.loop(n, (), look)
    two = b.build(m, lambda i: b.prim("real", b.get(at, i)) if sure else b.get(x, b.get(at, i)))
    made = siblings(b.close(b.scopes[0], (one, two)))
    counts = [bind.op.count for bind in made.binds if type(bind.op) is Loop]
    assert counts == ([m, n] if sure else [m, n, m])
    assert sum(type(bind.op) is Check for bind in all_binds(made)) == 1


#: What is looked up twice, and how many checks are left.
AGAIN = {
    "in two loops": (
        "(+ (ifold (fn [s i] (+ s (get x (get at i)))) 0.0 n) (fold * 1.0 (build n (fn [k] #x(get at k)))))",
        1,
    ),
    "inside two loops": (
        "(* (ifold (fn [s i] (+ s (* (get y i) (get x (get at i))))) 0.0 n)"
        " (ifold (fn [s i] (* s (ifold (fn [t j] (+ t (* (get y i) #x(get at j)))) 0.0 n))) 1.0 n))",
        1,
    ),
    "the outer one does not matter": (
        "(* (ifold (fn [s i] (+ s (ifold (fn [t j] (+ t (* (get y i) #x(get at j)))) 0.0 n))) 0.0 n)"
        " (ifold (fn [s j] (* s #x(get at j))) 1.0 n))",
        1,
    ),
    "under the same condition": (
        "(* (ifold (fn [s i] (if (> (get y i) 0.0) (+ s #x(get at i)) s)) 0.0 n)"
        " (ifold (fn [s i] (if (> (get y i) 0.0) (* s #x(get at i)) 2.0)) 1.0 n))",
        1,
    ),
    "under another condition": (
        "(* (ifold (fn [s i] (if (> (get y i) 0.0) (+ s #x(get at i)) s)) 0.0 n)"
        " (ifold (fn [s i] (if (< (get y i) 0.0) (* s #x(get at i)) 2.0)) 1.0 n))",
        2,
    ),
    "under a condition first": (
        "(* (ifold (fn [s i] (if (> (get y i) 0.0) (+ s #x(get at i)) s)) 0.0 n)"
        " (ifold (fn [s i] (* s #x(get at i))) 1.0 n))",
        2,
    ),
    "in fewer iterations first": (
        "(* (ifold (fn [s i] (+ s #x(get at i))) 0.0 (// n 2)) (ifold (fn [s i] (* s #x(get at i))) 1.0 n))",
        2,  # half of them are there
    ),
    "where there may be none first": (
        "(* (ifold (fn [s i] (+ s #x(get at 0))) 0.0 (len x)) (ifold (fn [s i] (* s #x(get at 0))) 1.0 n))",
        2,  # that there is a first place, and what is there
    ),
    "other places": (
        "(* (ifold (fn [s i] (+ s #x(get at i))) 0.0 n) (ifold (fn [s i] (* s #x(+ (get at i) 1))) 1.0 n))",
        3,  # and whether the sum fits
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_same_is_checked_once(name: str) -> None:
    body, count = AGAIN[name]
    while "#x" in body:  # (get x ..), the reader's brackets as they come
        before, _, rest = body.partition("#x")
        depth = [sum((c == "(") - (c == ")") for c in rest[: k + 1]) for k in range(len(rest))]
        end = depth.index(0) + 1
        body = f"{before}(get x {rest[:end]}){rest[end:]}"
    text = f"(fn [#^ (Vec m) x #^ (Vec n) y #^ (Arr Int n) at] (let [n (len at)] {body}))"
    model, rng = hyad.model(text), np.random.default_rng(3)
    x, y = rng.normal(0, 1, 4), rng.normal(0, 1, 5)
    f, at = hyad.grad(model, "x"), np.array([0, 1, 3, 2, 1])
    compiled = hyad.compile(f)
    made, plain = (hyad.compile(f, target="python", without=w) for w in ((), "once"))
    for k, wrong in ((0, 0), *((k, w) for k in range(5) for w in (-1, 4))):
        here = np.where(np.arange(5) == k, wrong, at)
        results: list = []
        for g in (made, plain, compiled):
            try:
                results.append(g(x, y, here))
            except BoundsError as error:
                results.append(error.span)
        if isinstance(results[1], np.ndarray):
            np.testing.assert_array_equal(results[0], results[1])
            np.testing.assert_allclose(results[2], results[1], rtol=1e-13)
        else:
            assert results[0] == results[1] == results[2], (name, here)
    assert returns(hyad.compile(model).source) == count and returns(compiled.source) == count


def test_a_loop_that_needs_what_another_has_checked_joins_it() -> None:
    """Residuals and their derivatives, say: the second looks at what the first one has checked in that iteration."""
    text = """(fn [#^ (Vec m) x #^ (Vec n) y #^ (Arr Int n) at]
  #((build (len at) (fn [i] (* (get y i) (exp (get x (get at i))))))
    (build (len at) (fn [i] (* (get y i) (sin (get x (get at i))))))))"""
    f, args = hyad.compile(text), (np.array([0.1, 0.2, 0.3]), np.ones(4), np.array([0, 2, 1, 0]))
    one, two = f(*args)
    np.testing.assert_allclose(one, np.exp(args[0][args[2]]))
    np.testing.assert_allclose(two, np.sin(args[0][args[2]]))
    assert f.source.count("for (") == 1 and returns(f.source) == 1
    with pytest.raises(BoundsError, match="exp"):
        f(*args[:2], np.array([0, 3, 1, 0]))


#: Sums of what a loop with checks makes of a vector x and integers at, and how many loops are left.
SUMS = {
    "a sum": ("(sum (build (len at) (fn [i] (exp (get x (get at i))))))", 1),
    "of squares": ("(let [r (build (len at) (fn [i] (sin (get x (get at i)))))] (/ (dot r r) 2.0))", 1),
    "two of them": (
        "(let [r (build (len at) (fn [i] (exp (get x (get at i)))))] (+ (sum r) (prod (map (fn [q] (* q 0.9)) r))))",
        1,
    ),
    "gathered": ("(sum (* 0.7 (get x at)))", 1),
    "a check between": ("(sum (* (get x at) (get x 0)))", 2),
    "made and read": (
        """(let [r (build (len at) (fn [i] (exp (get x (get at i)))))]
             (+ (sum r) (ifold (fn [s i] (* s (get r (- (len at) 1 i)))) 1.0 (len at))))""",
        2,
    ),
    "with calls": ("(sum (map tanh (build (len at) (fn [i] (get x (get at i))))))", 2),
    "by a condition": (
        """(let [r (build (len at) (fn [i] (exp (get x (get at i)))))]
             (ifold (fn [s i] (if (> (get r i) 1.3) (* s (+ 1.0 (exp (* s (get r i))))) s)) 1.0 (len at)))""",
        2,
    ),
    "that fails": (
        """(let [r (build (len at) (fn [i] (exp (get x (get at i)))))]
             (ifold (fn [s i] (+ s (* (get r i) (get x (+ (get at i) 1))))) 0.0 (len at)))""",
        2,
    ),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", SUMS)
def test_numbers_are_added_up_where_they_are_checked(name: str) -> None:
    """Where nothing else reads them: a sum in the user's order is no vector, whatever is checked meanwhile."""
    text, loops = SUMS[name]
    f = hyad.model(f"(fn [#^ (Vec n) x #^ (Arr Int m) at] {text})", namespace={})
    x, at = np.array([0.3, 0.2, 0.5]), np.array([0, 1, 1, 0, 1])
    made = hyad.compile(f, args=(x, at))
    assert made.source.count("for (") == loops
    for k in (5, 1, 0):
        plain = memoised.compile(f, args=(x, at), without=["checked-sums"])(x, at[:k])
        assert made(x, at[:k]) == plain == pytest.approx(hyad.run(f, x, at[:k]), rel=1e-14)
    hyad.check_grad(f, (x, at))
    for wrong in (3, -1, 2**40):
        with pytest.raises(BoundsError) as error:
            made(x, np.array([0, 1, wrong]))
        with pytest.raises(BoundsError) as other:
            memoised.compile(f, args=(x, at), without=["checked-sums"])(x, np.array([0, 1, wrong]))
        assert str(error.value) == str(other.value)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("(let [r (build (len at) (fn [i] (get x (get at i))))] #((sum r) r))", "x[at[i]]"),  # read by more than a sum
        (  # integers, in any order
            """(let [r (build (len at) (fn [i] (get x (get at i))))]
                 (ifold (fn [s i] (+ s (int (get r i)))) 0 (len at)))""",
            "x[at[i]]",
        ),
        (  # what is not checked is made in vectors
            """(let [r (map exp x)  q (build (len at) (fn [i] (get x (get at i))))] #((sum r) (prod r) (sum q)))""",
            "exp(x[i])",
        ),
    ],
)
def test_other_sums_keep_their_loop(text: str, made: str) -> None:
    """``made`` is what the array is filled with that they sum."""
    f = hyad.model(f"(fn [#^ (Vec n) x #^ (Arr Int m) at] {text})", namespace={})
    x, at = np.array([0.3, 0.2, 0.5]), np.array([0, 2, 2, 0])
    call = hyad.compile(f, args=(x, at))
    (line,) = [line for line in call.source.splitlines() if made + ";" in line]
    assert re.match(rf" *\w+\[i\] = {re.escape(made)};", line)
    assert not any("acc +=" in after for after in call.source[call.source.index(line) :].splitlines()[1:2])
    found, wanted = call(x, at), hyad.run(f, x, at)
    for one, other in zip(found, wanted) if isinstance(found, tuple) else [(found, wanted)]:
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_what_is_not_checked_in_the_same_iteration_keeps_its_loop() -> None:
    """The last element's place is checked last: a loop that reads it in each iteration comes behind all checks."""
    text = """(fn [#^ (Vec m) x #^ (Arr Int n) at]
  (let [n (len at)
        a (build n (fn [i] (exp (get x (get at i)))))
        b (build n (fn [i] (* (sin (get x (get at i))) (get x (get at (- n 1 i))))))]
    #(a b)))"""
    f, x = hyad.compile(text), np.array([0.1, 0.2, 0.3])
    at = np.array([0, 2, 1, 0])
    np.testing.assert_allclose(f(x, at)[1], np.sin(x[at]) * x[at[::-1]])
    for wrong in (3, -1, 2**40):
        with pytest.raises(BoundsError):
            f(x, np.array([0, 2, 1, wrong]))


#: What rays see that go through a table, step by step: its elements are checked in the first loop of each ray.
RAYS = """(fn [#^ (Mat a b) table #^ (Vec n) rays #^ (Vec n) seen]
  (let [colour (fn [ray]
                 (let [j (int (floor ray))]
                   (fst (ifold
                     (fn [#(light through) s]
                       (let [i (int (floor (* 0.1 (+ s ray))))
                             alpha (- 1.0 (exp (- (+ (get table i j) (get table (+ i 1) (+ j 1))))))]
                         #((+ light (* through alpha (+ s 1))) (* through (- 1.0 alpha)))))
                     #(0.0 1.0) 32))))]
    (sum (square (- (map colour rays) seen)))))"""


def test_the_way_back_joins_a_loop_that_has_checked_the_same_steps() -> None:
    """In order and from the last one to the first: a ray's steps are computed once, and its errors are the value's."""
    model = hyad.model(RAYS, namespace={})
    rng = np.random.default_rng(4)
    table, rays, seen = rng.uniform(0.0, 1.0, (5, 6)), rng.uniform(0.0, 4.9, 7), rng.uniform(0.0, 1.0, 7)
    value, f = hyad.compile(model), hyad.compile(hyad.grad(model, wrt="table"))
    assert f.source.count("exp(") == 1 and returns(f.source) == returns(value.source) > 3
    np.testing.assert_allclose(f(table, rays, seen), differences(value, (table, rays, seen), 0), atol=1e-8)
    for at, wrong in ((0, -0.5), (6, 5.0), (3, 5.5), (3, 1e30), (3, np.nan)):
        outside = rays.copy()
        outside[at] = wrong
        messages = set()
        for g in (value, f, hyad.compile(model, target="python")):
            with pytest.raises(BoundsError) as found:
                g(table, outside, seen)
            messages.add(str(found.value).partition(": ")[2])
        assert len(messages) == 1
    with pytest.raises(BoundsError):
        f(table[:4], rays, seen)


TABLE = """(fn [#^ (Vec k) y #^ (Vec n) at]
  (sum (map (fn [x] (let [i (int (floor x)) t (- x i)] (square (+ (* (- 1.0 t) (get y i)) (* t (get y (+ i 1)))))))
            at)))"""


def test_what_is_added_to_a_table_is_found_once() -> None:
    """No compiler makes vectors of a loop that adds to elements as it finds them: the checks are made in it."""
    model = hyad.model(TABLE, namespace={})
    y, at = np.array([0.3, 1.0, -0.5, 2.0]), np.array([0.2, 2.9, 1.0, 1.5, 0.0])
    f = hyad.compile(hyad.grad(model, wrt=("y", "at")))
    assert f.source.count("for (") == 1 and f.source.count("floor(") == 1
    for k, found in enumerate(f(y, at + 0.01)):
        np.testing.assert_allclose(found, differences(hyad.compile(model), (y, at + 0.01), k), atol=1e-8)
    for wrong in (-0.1, 3.0, np.nan):
        with pytest.raises(BoundsError):
            f(y, np.append(at, wrong))


#: How a picture, warped by an offset for each pixel, differs from another; neighbours' offsets are alike.
WARPED = """(fn [#^ (Mat h w) a #^ (Mat h w) b #^ (Mat h w) u]
  (let [cost (ref 0.0)]
    (for [i (range h) j (range w)]
      (let [x (clip (+ j (get u i j)) 0.0 (- w 1.001))
            k (int (floor x))
            t (- x k)]
        (set! cost (+ (deref cost) (square (- (+ (* (- 1.0 t) (get b i k)) (* t (get b i (+ k 1)))) (get a i j)))))
        (when (< j (- w 1))
          (set! cost (+ (deref cost) (square (- (get u i (+ j 1)) (get u i j))))))))
    (deref cost)))"""
#: Values between those of a table, at places that are searched.
SEARCHED = """(fn [#^ (Vec n) x #^ (Vec n) y #^ (Vec q) at]
  (sum (map (fn [t] (let [k (max 0 (min (- n 2) (- (np.searchsorted x t) 1)))
                          b (/ (- t (get x k)) (- (get x (+ k 1)) (get x k)))]
                      (square (+ (* (- 1.0 b) (get y k)) (* b (get y (+ k 1)))))))
            at)))"""


def test_what_is_found_from_a_real_number_is_found_once() -> None:
    """And checked where it is used, though the loop asks for a neighbour that its condition says to be there."""
    model, rng = hyad.model(WARPED, namespace={}), np.random.default_rng(5)
    a, b, u = rng.normal(size=(3, 4, 5))
    value, f = hyad.compile(model), hyad.compile(hyad.grad(model, wrt="u"))
    assert f.source.count("floor(") == 2 and returns(f.source) == 4  # of the last element, and of all others
    np.testing.assert_allclose(f(a, b, u), differences(value, (a, b, u), 2), atol=1e-7)
    with pytest.raises(BoundsError, match="k"):
        f(a, b, np.where(u == u[1, 1], np.nan, u))
    with pytest.raises(BoundsError):
        f(*(np.ascontiguousarray(m[:, :1]) for m in (a, b, u)))


def test_what_is_searched_is_searched_once() -> None:
    model, rng = hyad.model(SEARCHED, namespace={}), np.random.default_rng(6)
    x, y, at = np.sort(rng.uniform(0.0, 1.0, 9)), rng.normal(size=9), rng.uniform(0.0, 1.0, 7)
    value, f = hyad.compile(model), hyad.compile(hyad.grad(model, wrt=("y", "at")))
    assert f.source.count(">> 1") == value.source.count(">> 1") == 1
    for found, k in zip(f(x, y, at), (1, 2)):
        np.testing.assert_allclose(found, differences(value, (x, y, at), k), atol=1e-7)
    with pytest.raises(BoundsError):
        f(x[:1], y[:1], at)


@pytest.mark.parametrize(
    "relation, holds, i, within",
    [("<", True, 1, True), ("<", True, 2, False), ("<=", True, 1, False), ("<=", True, 0, True)]
    + [(">=", False, 1, True), (">", False, 1, False), (">", False, 0, True), ("<", False, 0, False)],
)
def test_what_a_condition_says_of_a_subscript(relation: str, holds: bool, i: int, within: bool) -> None:
    """``j < n - 1`` of a loop's index: there is an element ``j + 1``."""
    j, n, end, cond, at = Var("j", INT), Var("n", INT), Var("t", INT), Var("c", BOOL), Var("t", INT)
    binds = [
        Bind((), Check("<=", Const(0, INT), j, ""), None),
        Bind((end,), Prim("-", (n, Const(1, INT))), None),
        Bind((cond,), Prim(relation, (j, end)), None),
        Bind((at,), Prim("+", (j, Const(i, INT))), None),
    ]
    once = Once(Block(tuple(binds), ()))
    once.block(Block(tuple(binds), ()))
    once.holds.append((cond, holds))
    assert not once.fits(at, n)  # any integer but an index might have wrapped
    once.around[j] = Var("m", INT)
    assert once.fits(at, n) == within
    once.holds.clear()
    assert not once.fits(at, n)


@pytest.mark.parametrize(
    "i, n, within",
    [(0, "n", True), (1, "n", True), (2, "n", False), (-1, "n", False), (0, "m", False), (1, "m", False)],
)
def test_what_two_checks_of_one_side_each_say(i: int, n: str, within: bool) -> None:
    """``0 <= j`` and ``2 + j <= n``: of the subscripts ``j`` and ``j + 1`` alone that they are in range."""
    j, n_, m = Var("j", INT), Var("n", INT), Var("m", INT)
    more, at = Var("t", INT), Var("t", INT)
    binds = [
        Bind((more,), Prim("+", (Const(2, INT), j)), None),
        Bind((), Check("<=", more, n_, ""), None),
        Bind((), Check("<=", Const(0, INT), j, ""), None),
        Bind((at,), Prim("+", (j, Const(i, INT))), None),
    ]
    once = Once(Block(tuple(binds), ()))
    once.block(Block(tuple(binds), ()))
    assert once.fits(at, {"n": n_, "m": m}[n]) == within


def test_a_sort_that_is_only_checked_is_not_made_again() -> None:
    """A `while` that is made twice is one, and so are the checks of what it makes."""
    vjp = "(vjp sort a {})"
    loss = "(value-and-grad (fn [a] (dot c (sort a))) a)"  # what is sorted, and where it came from
    for results in (loss, vjp.format("c"), f"#({vjp.format('c')} {vjp.format('d')})"):
        f = hyad.model(f"(fn [#^ (Vec n) a #^ (Vec n) c #^ (Vec n) d] {results})")
        kinds = [type(b.op) for b in all_binds(f.optimised().body)]
        assert kinds.count(Check) == 1 and kinds.count(While) == 2  # levels, and in each of them a search
    a = np.array([3.0, 1.0, 2.0, 0.5, 0.25, 4.0])
    one, other = hyad.compile(f)(a, a, 2 * a)
    np.testing.assert_array_equal(one[np.argsort(a)], a)
    np.testing.assert_array_equal(other, 2 * one)


@pytest.mark.parametrize(
    "text",
    [
        "(build (// (+ n 63) 64) (fn [c] (get v (min (- n 1) (* 64 c)))))",  # where there is an element at all
        "(build n (fn [i] (let [j (max 0 (min k (- n 1)))] (get v (if (> c 0.0) i j)))))",
        "(let [m (reshape v [(// n 64) 64])]"
        " (build (len m) (fn [i] (let [k (max 0 (min (+ i k) (- (* 64 (len m)) 1)))] (get m (// k 64) (% k 64))))))",
        "(build n (fn [i] (get v (max 0 (min (- n 1) (+ i (* k k)))))))",  # also where the other one may wrap
    ],
)
def test_subscripts_that_are_kept_in_range(text: str) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v c #^ Int k] {text})")
    kept = [b for b in all_binds(f.optimised().body) if type(b.op) is Check and b.op.kind == "bounds"]
    assert not kept
    for n in (64, 640):
        for k in (-(2**62), -1, 5, 10**6, 2**62):
            args = np.arange(1.0, n + 1), 1.0 if k % 2 else -1.0, k
            if abs(k) < 2**62:
                np.testing.assert_array_equal(hyad.compile(f)(*args), hyad.run(f, *args))
            else:
                assert np.isfinite(hyad.compile(f)(*args)).all()


# ---------------------------------------------------------------------------------------------- rings

RING = "(fn [#^ (Vec n) u] (let [n (len u)] (sum (build n (fn [i] (* (get u i) (sin (get u AT))))))))"


@pytest.mark.parametrize(
    "at, shift, divided",
    [
        ("(% (+ i 1) n)", 1, 0),
        ("(% (- i 1) n)", -1, 0),
        ("(% (- (+ i n) 1) n)", -1, 0),
        ("(% (+ (- i 1) n) n)", -1, 0),
        ("(% i n)", 0, 0),
        ("(% (+ i 5) n)", 5, 1),
        ("(% (- i 5) n)", -5, 1),
        ("(% (+ i i 1) n)", None, 0),
    ],
)
def test_a_neighbour_on_a_ring_takes_no_division_and_no_check(at: str, shift: int | None, divided: int) -> None:
    """A ring may have one element, or none: what goes further round than once is divided."""
    f = hyad.model(RING.replace("AT", at))
    g = hyad.grad(f)
    program = g.optimised(g.specs())
    assert any(type(b.op) is Prim and b.op.name == "%" for b in all_binds(program.body)) == divided
    assert returns(hyad.compile(g).source) == 0
    for n in (0, 1, 2, 3, 7):
        u = np.random.default_rng(n).normal(size=n)
        k = np.arange(n) + shift if shift is not None else 2 * np.arange(n) + 1
        k = k % n if n else k
        want = np.sin(u[k])
        np.add.at(want, k, u * np.cos(u[k]))
        assert f(u) == pytest.approx(np.sum(u * np.sin(u[k])))
        np.testing.assert_allclose(g(u), want, rtol=1e-12, atol=1e-15)


def test_what_is_on_a_ring_outside_of_a_loop_is_looked_at_where_it_is() -> None:
    """Where a ring may be empty, a remainder is no subscript of it."""
    f = hyad.model("(fn [#^ (Vec n) u #^ Int k] (get u (% k (len u))))")
    assert f(np.array([1.0, 2.0, 3.0]), -1) == 3.0
    with pytest.raises(BoundsError):
        f(np.empty(0), 1)


# ------------------------------------------------------------------------------------------ sizes found equal

#: No size is declared: what the sizes of each array have to do with one another is in the operations alone.
RELATED = """(fn [w b x y at]
  (let [h (tanh (+ (@ w x) b))
        e (- (map (fn [i] (get h i)) at) y)]
    (+ (sum (* e e)) (sum (* h (+ b h))))))"""


def related(**change: int) -> tuple[np.ndarray, ...]:
    s = {"wn": 4, "wm": 3, "b": 4, "x": 3, "y": 5, "at": 5, "high": 4, **change}
    rng = np.random.default_rng(6)
    at = rng.integers(0, 4, s["at"])
    at[2] = s["high"] - 1
    return rng.normal(size=(s["wn"], s["wm"])), *(rng.normal(size=s[k]) for k in ("b", "x", "y")), at


def test_sizes_that_a_check_finds_equal_are_one() -> None:
    text = "(fn [w b x v] (let [h (tanh (+ (@ w x) b))] (+ (dot x v) (sum (* h (@ w (* v h)))))))"
    model, rng = hyad.value_and_grad(hyad.model(text), wrt=("w", "b", "x")), np.random.default_rng(6)
    args = rng.normal(size=(5, 5)), *(rng.normal(size=5) for _ in range(3))
    f = hyad.compile(model, args=args)
    body = f.source[f.source.index("\n{") :]
    checks = [line for line in body.split("\n") if re.search(r"if \(.*\) return [1-9]", line)]
    assert len(checks) == 4 and all("!=" in line for line in checks)  # five sizes are one
    after = re.sub(r"//.*", "", body[body.index(checks[-1]) + len(checks[-1]) :])
    assert [size for size in "nmklpq" if re.search(rf"\b{size}\b", after)] == ["n"]
    value, gradient = f(*args)
    w, b, x, v = args
    h = np.tanh(w @ x + b)
    assert value == pytest.approx(x @ v + (h * (w @ (v * h))).sum(), rel=1e-12)
    for k in range(3):
        np.testing.assert_allclose(gradient[k], differences(lambda *a: f(*a)[0], args, k), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "change", [{"wm": 2}, {"b": 5}, {"y": 6}, {"high": 9}, {"high": 9, "y": 6}, {"b": 2, "high": 9}]
)
def test_errors_stay_what_they_are(change: dict[str, int]) -> None:
    """The first error, its message and place: as without what moves checks, in every target."""
    model, args, found = hyad.value_and_grad(hyad.model(RELATED), wrt=("w", "b", "x")), related(**change), []
    for target, without in (("python", ("checks-first", "one-size", "once")), ("python", ()), ("c", ())):
        with pytest.raises(hyad.HyadError) as error:
            hyad.compile(model, target=target, without=without, args=related())(*args)
        found.append((type(error.value), error.value.span, str(error.value)))
    assert found[0] == found[1] == found[2]


def test_what_a_branch_finds_equal_is_so_there_alone() -> None:
    text = "(fn [u v s] (if (> s 0.0) (sum (* u v)) (- (sum u) (sum v))))"
    f = hyad.compile(hyad.grad(text, wrt=(0, 1)), args=(np.ones(3), np.ones(3), 1.0))
    u, v = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0])
    for got, wanted in zip(f(u, v, -1.0), (np.ones(3), -np.ones(2)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(hyad.HyadError):
        f(u, v, 1.0)
    np.testing.assert_array_equal(f(u, u + 1, 1.0)[0], u + 1)


def test_no_check_passes_what_may_fail_before() -> None:
    """A loop that looks something up, and one that may not end."""
    text = """(fn [x at u v]
  (let [r (ref (fold (fn [s i] (+ s (get x i))) 0.0 at))]
    (while (> (deref r) 100.0) (set! r (* 0.5 (deref r))))
    (+ (deref r) (sum (* u v)))))"""
    model = hyad.grad(text, wrt=(0, 2))
    x, u = np.ones(3), np.ones(2)
    for target in ("c", "python"):
        f = hyad.compile(model, target=target, args=(x, np.array([0, 2]), u, u))
        with pytest.raises(BoundsError):
            f(x, np.array([0, 3]), u, x)
        with pytest.raises(hyad.HyadError) as error:
            f(x, np.array([0, 2]), u, x)
        assert not isinstance(error.value, BoundsError)


def test_a_size_that_is_found_to_be_a_number_is_that() -> None:
    """Three coordinates that a rotation asks for are no loop; one look at the sign of a subscript is enough."""
    text = """(fn [a p q to]
  (let [turn [[(cos a) (- (sin a)) 0.0] [(sin a) (cos a) 0.0] [0.0 0.0 1.0]]]
    (sum (map (fn [x i] (let [e (- (@ turn x) (get p i))] (dot e (get q i)))) p to))))"""
    rng = np.random.default_rng(7)
    args = 0.3, rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), rng.integers(0, 4, 5)
    f = hyad.compile(hyad.grad(text, wrt=0), args=args)
    assert f.source.count("for (") == 2 and len(re.findall(r"3\*i\b", f.source)) == 2  # one looks at the subscripts
    assert len(re.findall(r" < 0 \|\|", f.source)) == 1
    value = hyad.compile(text, args=args)
    assert f(*args) == pytest.approx((value(0.3 + 1e-6, *args[1:]) - value(0.3 - 1e-6, *args[1:])) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize(
    "text",
    [
        "(fn [a b] (slice b 1 (len a)))",
        "(fn [a b] (build (max 0 (- (len a) 1)) (fn [i] (* (get a i) (get b (+ i 1))))))",
        "(fn [a b] (build (max 0 (- (len a) 2)) (fn [i] (* (get a (+ i 1)) (get b (+ i 2))))))",
        "(fn [a b] (jvp (fn [a] (* (slice a 1 (len a)) (slice b 1 (len a)))) a b))",
    ],
)
def test_a_loop_that_does_not_run_requires_no_element(text: str, target: str) -> None:
    """A slice from 1 on of empty arrays is empty; one element too few is an error as before."""
    f = hyad.model(text)
    for n in (0, 1, 2, 5):
        args = (np.arange(1.0, n + 1), np.arange(2.0, n + 2))
        np.testing.assert_array_equal(memoised.compile(f, target, args=args)(*args), hyad.run(f, *args))
    with pytest.raises(HyadError):
        hyad.compile(f, target, args=(np.ones(4), np.ones(3)))(np.ones(4), np.ones(3))


@pytest.mark.parametrize(
    "index, proven",
    [
        ("(if (> x 0.0) 3 0)", True),
        ("(if (> x 0.0) 4 0)", False),
        ("(if (> x 0.0) 3 -1)", False),
        ("(if (> x 0.0) (min k 3) 2)", False),  # -9, say
        ("(let [j (max 0 (min k 3))] (if (> x 0.0) j 3))", True),
    ],
)
def test_a_subscript_that_is_one_of_two(index: str, proven: bool) -> None:
    """In range if both are, where it is known which of them is the larger."""
    f = hyad.model(f"(fn [#^ (Vec 4) v x #^ Int k] (get v {index}))")
    checks = [b for b in all_binds(f.optimised(f.specs()).body) if type(b.op) is Check]
    assert bool(checks) != proven
    v = np.array([1.0, 2.0, 4.0, 8.0])
    x = -0.5 if "-1)" not in index else 0.5
    assert hyad.compile(f)(v, x, 2) == hyad.run(f, v, x, 2)


def test_pivots_of_a_small_system_are_in_range() -> None:
    """Each is one of the rows that are left, by the choices that find it; so is the order of the right-hand side."""
    f = hyad.compile("(fn [#^ (Mat 4 4) a #^ (Vec 4) b] (solve a b))")
    assert "hyad_imin" not in f.source
    a, b = np.random.default_rng(5).normal(size=(4, 4)), np.arange(4.0)
    np.testing.assert_allclose(f(a, b), np.linalg.solve(a, b), rtol=1e-11)


TREE = """(fn [v #^ Int n]
  (ifold (fn [w k] (let [i (- n 1 k)] (build {size} (fn [j] (if (<= j i) (- (get w (+ j 1)) (get w j)) 0.0)))))
         (build {size} (fn [j] (get v j))) n))"""


@pytest.mark.parametrize("size", ["(+ n 1)", "(+ 2 n)"])
def test_an_integer_of_which_a_size_is_made_is_exact(size: str) -> None:
    """It is small, so that a branch's condition on a sum of it says what it seems to: no loop checks a subscript."""
    model = hyad.model(TREE.format(size=size), namespace={})
    v = np.sin(np.arange(9.0))
    made = hyad.compile(model, args=(v, 5))
    assert not [x for loop in loops_of(made.program) for x in all_binds(loop.body) if type(x.op) is Check]
    for n in (0, 1, 5):
        w = v[: n + (2 if "2" in size else 1)]
        for k in range(n):
            w = np.array([w[j + 1] - w[j] if j <= n - 1 - k else 0.0 for j in range(len(w))])
        np.testing.assert_array_equal(made(v, n), w)
    for n in (-3, 9, 2**63 - 1, -(2**63)):
        with pytest.raises(HyadError):
            made(v, n)


def test_any_other_integer_may_wrap() -> None:
    """Beside the same test: n makes no size where the branch stands."""
    text = "(fn [v #^ Int n] (map (fn [j] (if (<= (+ j 1) n) (get v j) 0.0)) (arange 4)))"
    for n in (2, -(2**63), 2**63 - 1):
        v = np.arange(1.0, 5.0)
        np.testing.assert_array_equal(hyad.model(text)(v, n), np.where(np.arange(4) + 1 <= n, v, 0.0))
    arms = "(sum (build 4 (fn [j] (if (< j (- n 4)) (get v (+ j 1)) 0.0)))) (sum (build (+ n 1) (fn [j] 2.0)))"
    in_one_arm = f"(fn [v #^ Int n] (if (> n 3) {arms}))"
    made = hyad.compile(hyad.model(in_one_arm), args=(np.arange(4.0), 2))
    assert [made(np.arange(4.0), n) for n in (7, 5, 2, -1)] == [6.0, 1.0, 6.0, 0.0]
    for n in (8, 2**63 - 1, -2, -(2**63)):
        with pytest.raises(HyadError):
            made(np.arange(4.0), n)


#: Nothing says that k is as large as u, and where the border is k is not read.
GRID = """(defmodel grid [#^ (Mat n m) u k]
  (build [n m]
    (fn [i j]
      (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1)))
        (get u i j)
        (* (get k i j) (- (get u (+ i 1) j) (get u i (- j 1))))))))"""


def unchecked_in(f, args) -> bool:
    return "unchecked" in [step.name for step in hyad.explain(f, args=args).steps]


def test_a_loop_whose_checks_hold_runs_without_them() -> None:
    grid = hyad.model(GRID)
    total = hyad.model(GRID.replace("grid", "total").replace("(build [n m]", "(sum (build [n m]") + ")")
    declared = hyad.model(GRID.replace("grid", "declared").replace("u k]", "u #^ (Mat n m) k]"))
    u, k = np.random.default_rng(1).uniform(0.1, 1, (2, 6, 7))
    without = hyad.compile(grid, args=(u, k), without="unchecked")
    assert unchecked_in(grid, (u, k)) and not unchecked_in(declared, (u, k))
    np.testing.assert_array_equal(grid(u, k), declared(u, k))
    np.testing.assert_array_equal(grid(u, k), without(u, k))
    source = hyad.compile(grid, args=(u, k)).cfunction.source
    assert returns(source) == returns(without.cfunction.source)  # those of the loop as it was
    fast, slow = source[source.index("for (") :].split("\n    } else {\n", 1)
    assert "return" not in fast and "return 1" in slow

    made = hyad.grad(total, wrt=("u", "k"))
    assert unchecked_in(made, (u, k))
    for name, g in zip("uk", made(u, k)):
        at = "uk".index(name)
        np.testing.assert_allclose(g, differences(total, (u, k), at), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("n, m", [(0, 3), (1, 1), (2, 5), (3, 2), (3, 3), (4, 5)])
def test_the_errors_of_such_a_loop_are_its_own(n: int, m: int) -> None:
    """Those of the program as it is read, or none, however small or large the other array is."""
    grid, rng = hyad.model(GRID), np.random.default_rng(2)
    without = hyad.compile(grid, args=(np.ones((5, 5)), np.ones((5, 5))), without="unchecked")
    u = rng.uniform(0, 1, (n, m))
    for rows in range(7):
        for width in (0, 1, m - 2, m - 1, m, m + 1, 9):
            k = rng.uniform(0, 1, (rows, max(0, width)))
            found = []
            for call in (grid, without):
                try:
                    found.append(call(u, k))
                except BoundsError as error:
                    found.append(str(error))
            assert type(found[0]) is type(found[1])
            np.testing.assert_array_equal(*found)
            fits = n < 3 or m < 3 or rows >= n - 1 and width >= m - 1
            assert isinstance(found[0], np.ndarray) == fits


@pytest.mark.parametrize(
    "text, args",
    [  # found in data; made before the loop anyway; an integer that may wrap
        ("(fn [#^ (Vec n) v #^ (Arr Int n) at] (build n (fn [i] (if (> (get v i) 0) (get v (get at i)) 0.0))))", "vi"),
        ("(fn [#^ (Vec n) v #^ (Vec m) w] (build n (fn [i] (* (get v i) (get w i)))))", "vv"),
        ("(fn [#^ (Vec n) v w #^ Int k] (build n (fn [i] (if (> (get v i) 0) (get w (+ i k)) 0.0))))", "vvk"),
    ],
)
def test_checks_that_stay(text: str, args: str) -> None:
    v = np.array([1.0, 2.0, 3.0])
    values = {"v": v, "i": np.array([2, 0, 1]), "k": 0}
    f, given = hyad.model(text), tuple(values[a] for a in args)
    assert not unchecked_in(f, given)
    f(*given)
    for k in (1, -1, 2**63 - 1, -(2**63)) if "k" in args else ():
        with pytest.raises(BoundsError):
            f(v, v, k)


def test_an_integer_that_wraps_is_in_no_range() -> None:
    f = hyad.model("(fn [#^ (Vec n) v #^ Int k] (build n (fn [i] (if (> (get v i) 0) (get v (+ i k)) 0.0))))")
    v = np.array([1.0, 2.0, 3.0])
    assert unchecked_in(f, (v, 0))  # for one k
    np.testing.assert_array_equal(f(v, 0), v)
    np.testing.assert_array_equal(f(np.array([-1.0, -2.0, 3.0, -4.0]), 1), [0.0, 0.0, -4.0, 0.0])
    for k in (1, -1, 2**63 - 1, -(2**63)):
        with pytest.raises(BoundsError):
            f(v, k)


def test_the_outermost_loop_that_is_checked_is_made_two() -> None:
    """A loop over time stays one, and what is known in its branches is: the last row has no neighbour below."""
    text = """(fn [#^ (Mat n 4) u k t]
      (ifold (fn [u _] (build [(len u) 4] (fn [i j]
               (if (> (get u i 0) 0.0)
                 (if (< (+ i 1) (len u)) (+ (get u (+ i 1) j) (get k (+ i 1) (+ j 1))) (get u i j))
                 7.0))))
        u t))"""
    f, (u, k) = hyad.model(text), np.random.default_rng(3).uniform(0, 1, (2, 5, 4))
    wide = np.hstack((k, k[:, :1]))
    once = np.vstack((u[1:] + wide[1:, 1:], u[-1:]))
    np.testing.assert_array_equal(f(u, wide, 2), np.vstack((once[1:] + wide[1:, 1:], once[-1:])))
    assert unchecked_in(f, (u, wide, 2))
    source = hyad.compile(f, args=(u, wide, 2)).cfunction.source
    assert source.count(" < t; ") == 1
    for other in (k, wide[:-1]):
        with pytest.raises(BoundsError):
            f(u, other, 2)
    np.testing.assert_array_equal(f(u, k, 0), u)


def loops_of(program):
    return [x.op for x in all_binds(program.body) if type(x.op) is Loop]


#: One store, or one reading, beyond the end of an array that is written out.
BEYOND = (
    "(let [b (zeros 3)] (for [i (range 4)] (set-at! b i (sin (get v i)))) (sum b))",
    "(let [b [x 2.0 (* x x)]] (ifold (fn [s i] (+ s (* (get v i) (get b i)))) 0.0 4))",
    "(let [b [[x 2.0] [(* x x) x]]] (for [i (range 3)] (set-at! b 1 i (* x (get v i)))) (sum b))",
)


@pytest.mark.parametrize("text", BEYOND)
@pytest.mark.parametrize("operator", [hyad.grad, hyad.jacobian, hyad.hessian, lambda f: f])
def test_an_element_beyond_what_is_written_out_is_an_error_where_a_run_comes_to_it(text: str, operator: Any) -> None:
    """It was an ``IndexError`` of hyad's own, in a branch that is not taken, too."""
    v = np.array([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(BoundsError, match="index `i` is outside axis"):
        operator(hyad.model(f"(fn [#^ (Vec 4) v x] {text})", namespace={}))(v, 1.5)
    branch = operator(hyad.model(f"(fn [#^ (Vec 4) v x] (if (> x 1.0) {text} (* x (get v 0))))", namespace={}))
    for x in (0.5, 1.5):
        try:
            wanted = hyad.run(branch, v, x)
        except HyadError:
            with pytest.raises(BoundsError, match="index `i` is outside axis"):
                branch(v, x)
        else:
            assert x == 0.5
            assert repr(branch(v, x)) == repr(wanted)


@pytest.mark.parametrize(
    "loops, last",
    [
        ("(for [k (range n)] (for [i (range (+ k 1) n)] {}))", lambda n: 2 * n - 3),
        ("(for [k (range n)] (for [i (range (+ k 1) n)] (for [j (range (+ i 1) n)] {})))", lambda n: 2 * n - 5),
        ("(for [k (range n)] (for [j (range 2)] (for [i (range (+ k 2) n)] {})))", lambda n: 2 * n - 4),
        ("(for [k (range n)] (for [i (range k n)] {}))", lambda n: 2 * n - 2),
    ],
)
def test_the_last_iterations_of_a_triangle_that_are_none_need_nothing(loops: str, last) -> None:
    """The largest index is asked for, and no more."""
    store = "(set-at! a k i (get v (+ k i)))"
    text = f"(fn [#^ (Mat n n) a #^ (Vec m) v] (let [a (copy a)] {loops.format(store)} (sum a)))"
    f = hyad.model(text, namespace={})
    for target in ("python", "c"):
        g = hyad.compile(hyad.value_and_grad(f), target=target)
        for n in (3, 4, 7):
            a, v = np.ones((n, n)), np.arange(float(last(n) + 1))
            assert g(a, v)[0] == hyad.run(f, a, v)
            with pytest.raises(hyad.BoundsError):
                g(a, v[:-1])


@pytest.mark.parametrize(
    "loops",
    [
        "(for [j (range 2 (min 4 (- n 2)))] {})",
        "(for [i (range (- n 2) 0 -2)] (for [j (range (max (- i 2) 3) (min (+ i 3) (- n 2)))] {}))",
        "(for [i (range n)] (for [j (range (max 2 (- i 1)) (min (- n 2) (max 3 (min n (+ i 4)))))] {}))",
    ],
)
def test_a_window_that_is_empty_needs_nothing(loops: str) -> None:
    """Its end is the smaller of two integers, and may be below its start."""
    store = "(set-at! v (+ j 1) (* 0.5 (get u (+ j 1))))"
    f = hyad.model(f"(fn [u] (let [n (len u) v (copy u)] {loops.format(store)} (sum (square v))))", namespace={})
    for target in ("python", "c"):
        g = hyad.compile(hyad.value_and_grad(f), target=target, args=(np.ones(5),))
        for n in (0, 1, 2, 3, 4, 9):
            v = np.linspace(0.1, 1.0, n)
            value, slope = hyad.run(hyad.value_and_grad(f), v)
            made = g(v)
            assert made[0] == pytest.approx(value)
            np.testing.assert_allclose(made[1], slope)


def test_which_elements_checks_and_counts_say_to_be_there() -> None:
    """A loop of n - 1 iterations has elements i and i + 1 of n, and of m where a check before it says that n <= m; the
    first of those that an index was found to be one of."""
    n, m, k, count, i = (Var(name, INT) for name in ("n", "m", "k", "count", "i"))
    before, after, beyond = (Var(name, INT) for name in ("before", "after", "beyond"))
    binds = [
        Bind((v,), Prim(op, (a, Const(by, INT))))
        for v, op, a, by in ((count, "-", n, 1), (before, "-", i, 1), (after, "+", i, 1), (beyond, "+", i, 2))
    ]
    once = Once(Block(tuple(binds), ()))
    once.around[i] = count
    assert once.fits(i, n) and once.fits(after, n)
    assert not once.fits(before, n) and not once.fits(beyond, n)
    assert not once.fits(after, m) and not once.fits(Const(0, INT), k)
    once.block(Block((Bind((), Check("<=", n, m, "")), Bind((), Check("in", m, k, ""))), ()))
    assert once.fits(after, m) and not once.fits(before, m) and not once.fits(beyond, m)
    assert once.fits(Const(0, INT), k) and not once.fits(Const(1, INT), k)


def test_the_size_of_a_slice_that_a_check_finds() -> None:
    """What is left between the ends of a slice, or none: a check of the sizes says that something is left. Then the
    loops end where the row does, and the zeros around it are apart."""
    f = hyad.model(
        """(fn [u] (sum (square (ifold (fn [u t]
             (+ u (* 0.1 (pad (- (+ (cut u 0 -2) (cut u 2 None)) (* 2.0 (cut u 1 -1))) 1)))) u 3))))""",
        namespace={},
    )
    g = hyad.grad(f)
    made, plain = (hyad.compile(g, args=(np.ones(9),), without=w) for w in ((), "one-size"))
    for h, alone in ((made, True), (plain, False)):
        clipped = [x for x in h.cfunction.source.splitlines() if "imax(0, " in x]
        assert alone == all("return" in x for x in clipped)  # nothing but the check asks whether something is left
    for n in (2, 3, 4, 5, 9, 40):
        u = np.random.default_rng(n).normal(size=n)
        np.testing.assert_allclose(made(u), plain(u), rtol=1e-12, atol=1e-13)
        assert hyad.check_grad(f, (u,))
    for h in (made, plain):
        with pytest.raises(hyad.HyadError):
            h(np.ones(1))


def test_multiples_of_sizes_are_divided() -> None:
    f = hyad.model("(fn [#^ (Vec n) v] (build (// (* 4 (+ n 1)) 2) (fn [i] (real (// (* 1 i) 1)))))", namespace={})
    text = hyad.show(f, "c").split("f(")[-1]
    assert "2*n + 2" in text and "/" not in text.split("//")[0] and ">>" not in text
    assert f(np.zeros(3)).tolist() == list(range(8))


@pytest.mark.parametrize(
    "index, loops",
    [
        ("(max 0 (min (- n 2) (- (searchsorted x t) 1)))", 1),
        ("(min (- n 2) (searchsorted x t))", 1),
        ("(if (< t 0.5) 0 (- n 2))", 1),
    ],
)
def test_what_an_iteration_has_read_is_there_for_another_loop(index: str, loops: int) -> None:
    """Value and gradient search once, and are one loop, where reasoning and no check says that an element is there."""
    text = f"""(fn [#^ (Vec n) x #^ (Vec n) y #^ (Vec m) q]
      (fold (fn [s t] (let [i {index} w (- t (get x i))] (+ s (* w (+ (get y i) (get y (+ i 1)) (get x (+ i 1)))))))
            0.0 q))"""
    f = hyad.value_and_grad(hyad.model(text), wrt="y")
    args = np.linspace(0, 1, 7), np.arange(7.0), np.random.default_rng(0).uniform(-0.1, 1.1, 23)
    value, bar = hyad.compile(f)(*args)
    other, wanted = hyad.compile(f, without="fuse-siblings")(*args)
    assert value == pytest.approx(other, rel=1e-14)
    np.testing.assert_allclose(bar, wanted, rtol=1e-13)
    program = f.optimised(f.specs(args))
    over = [x for x in all_binds(program.body) if type(x.op) is Loop and str(x.op.count) == "m"]
    assert len(over) == loops


def test_what_one_branch_reads_is_not_there_for_another() -> None:
    """What a loop reads under a condition says nothing of where it does not hold."""
    text = """(fn [#^ (Vec n) x #^ (Arr Int m) at]
      #((sum (map (fn [k] (if (< k n) (if (>= k 0) (get x k) 0.0) 1.0)) at))
        (sum (map (fn [k] (* 2.0 (get x k))) at))))"""
    f = hyad.compile(hyad.model(text))
    x = np.arange(4.0)
    assert f(x, np.array([0, 3, 2])) == (5.0, 10.0)
    with pytest.raises(hyad.BoundsError):
        f(x, np.array([0, 4]))


def test_what_comes_before_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known behind more and more operations of a block is what a walk through all of them tells; after a
    change, from that place on."""

    def lookup(k: int) -> Bind:
        i, j, x, size, count = Var("i", INT), Var("j", INT), Var("x", REAL), Var("n", INT), Var(f"m{k % 3}", INT)
        v, w = Var("v", Arr(REAL, (size,))), Var("w", Arr(INT, (count,)))
        body = (Bind((j,), Prim("get", (w, i))), Bind((), Check("in", j, size, "")), Bind((x,), Prim("get", (v, j))))
        return Bind((Var("r", Arr(REAL, (count,))),), Loop(count, i, (), (), Block(body, (x,))))

    binds = [lookup(k) for k in range(40)]
    walked: list[int] = []
    go_on = Once.go_on
    monkeypatch.setattr(Once, "go_on", lambda self, more: (walked.append(len(more)), go_on(self, more))[1])

    def known(once: Once) -> dict:
        return {
            key: [(m.check.relation, m.check.a, m.check.b, m.loops, m.holds) for m in many]
            for key, many in once.made.items()
        }

    around = Around()
    for k in range(1, 41):
        for _ in range(2):
            found = around.behind(binds[:k])
        assert known(found) == known(Around().behind(binds[:k]))
    assert sum(walked) == 40 + sum(range(1, 41))  # the second for what it is held against
    binds[30] = lookup(99)
    walked.clear()
    found = around.behind(binds)
    assert walked[0] < 40
    assert known(found) == known(Around().behind(binds))
    assert len(around.known) <= 25


def test_nothing_is_known_from_one_program_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor from one thread, which optimises another, to the next."""
    asked: list[Around] = []
    behind = Around.behind
    monkeypatch.setattr(Around, "behind", lambda self, before: (asked.append(self), behind(self, before))[1])
    g = hyad.grad(hyad.model(TWICE, namespace={}))
    program = g.program(g.specs(None))
    optimise(program)
    first = len(asked)
    optimise(program)
    assert 0 < first < len(asked) and {id(x) for x in asked[:first]}.isdisjoint(id(x) for x in asked[first:])


def test_what_a_loop_that_may_be_empty_has_checked_is_known_in_it_alone() -> None:
    b, n, top, low = Builder(), Var("n", INT), Var("top", INT), Var("low", INT)
    b.sizes.add(n)
    count = b.prim("max", Const(0, INT), b.prim("-", top, low))

    def least(i: Any) -> Any:
        return b.prim("-", b.prim("-", top, i), low)

    def body(i: Any) -> Any:
        b.check(Check("in", least(i), n, "out of range"), least(i), n)
        return (), ()

    b.loop(count, (), body)
    assert sum(type(x.op) is Check for x in b.scopes[0].binds) == 1
    assert not b.nonnegative(b.affine(least(b.prim("-", count, Const(1, INT)))))


def test_a_proof_begins_with_what_cancels_a_term_that_may_be_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """That ``i >= m`` is not looked for in what is known of ``i`` and of other integers."""
    b, i, j, m = Builder(), Var("i", INT), Var("j", INT), Var("m", INT)
    b.sizes.add(i)
    facts = b.scopes[0].facts
    facts += [(0, {i: 1, Var("k", INT): -1}) for _ in range(30)]
    tried: list[Any] = []
    bound = Builder.lower_bound
    monkeypatch.setattr(Builder, "lower_bound", lambda self, a: (tried.append(a), bound(self, a))[1])
    assert not b.nonnegative((0, {i: 1, m: -1})) and not tried
    facts += [(0, {i: 1, j: -1}), (0, {j: 1, m: -1})]
    assert b.nonnegative((0, {i: 1, m: -1}))
    below = Var("l", INT)  # below j - m, which is unknown: the end of its loop cancels them
    b.counted(below, b.prim("-", j, m))
    assert b.nonnegative((-1, {j: 1, m: -1, below: -1}))
