"""A check is made once: what has been found to be in range is not looked at again."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
from hyad.builder import Builder
from hyad.core import INT, REAL, Arr, Check, Const, Loop, Prim, Var, all_binds
from hyad.errors import BoundsError
from hyad.fusion import siblings

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
        3,  # and whether half of them are there
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


def test_a_sort_that_is_only_checked_is_not_made_again() -> None:
    """Integers that loops make are compared like others: what three derivatives of a sort look up is checked once."""
    text = "(fn [#^ (Mat n m) a #^ (Mat n m) c] #((map sort a) (vjp (fn [a] (map sort a)) a c)))"
    f = hyad.model(text)
    checks = [sum(type(b.op) is Check for b in all_binds(f.optimised().body)), 0]
    checks[1] = sum(
        type(b.op) is Check for b in all_binds(hyad.model("(fn [#^ (Mat n m) a] (map sort a))").optimised().body)
    )
    assert checks[0] == checks[1]
    a = np.array([[3.0, 1.0, 2.0], [0.5, 0.25, 4.0]])
    got, bar = hyad.compile(f)(a, a)
    np.testing.assert_array_equal(got, np.sort(a))
    assert bar.shape == a.shape and np.isclose((bar * a).sum(), (np.sort(a) * a).sum())


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
