"""Loops: states of few numbers as single values, a value's loop in that of its gradient; divisions by the same."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Arr, If, Loop, Prim, While, all_binds

FALL = """
(let [x (ref [a 8.0]) v (ref [0.75 (* 0.1 a)])]
  (while (> (get (deref x) 1) 0.0)
    (set! v (map (fn [p q] (- p (* 0.1 (/ q (sqrt (+ 1.0 (* q q))))))) (deref v) (deref x)))
    (set! x (map (fn [p q] (+ p (* 0.1 q))) (deref x) (deref v))))
  (* (get (deref x) 0) (get (deref v) 1)))
"""


def binds(f: hyad.Model, *args) -> list:
    return list(all_binds(f.optimised(f.specs(args)).body))


def whiles(f: hyad.Model, *args) -> list[While]:
    return [b.op for b in binds(f, *args) if type(b.op) is While]


@pytest.mark.parametrize("operator", [lambda f: f, hyad.D])
def test_a_state_of_few_numbers_is_carried_in_numbers(operator) -> None:
    f = operator(hyad.model(f"(fn [#^ Real a] {FALL})", namespace={}))
    for loop in whiles(f, 0.5):
        assert not any(isinstance(a.type, Arr) for a in loop.accs)
    for a in (0.5, -2.0, 7.0):
        expected = memoised.compile(f, args=(a,), without=("singles", "meet-whiles", "reciprocals"))(a)
        np.testing.assert_allclose(memoised.compile(f, args=(a,))(a), expected, rtol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "(set! x (build 3 (fn [i] (* 0.5 (get (deref x) (% (+ i k) 3))))))",  # subscripts known at run time only
        "(set! x (map (fn [u] (* 0.15 u (get m (argmax (deref x))))) (deref x)))",
    ],
)
def test_a_state_that_is_read_at_a_place_known_late_stays_an_array(text: str) -> None:
    text = f"(fn [#^ (Vec 3) m #^ Int k] (let [x (ref m)] (while (> (get (deref x) 0) 0.1) {text}) (deref x)))"
    f = hyad.model(text, namespace={})
    args = (np.array([3.0, 2.0, 0.5]), 1)
    if "% (+ i k)" in text:
        assert all(isinstance(a.type, Arr) for loop in whiles(f, *args) for a in loop.accs)
    expected = hyad.compile(f, args=args, without="singles")(*args)
    assert np.array_equal(hyad.compile(f, args=args)(*args), expected)


PULL = """(fn [#^ (Mat n 3) x #^ (Vec 3) a]
  (ifold (fn [f j] (let [d (vec-sub (get x j) a)] (vec-add f (vec-scale (/ 1.0 (+ 0.1 (sq-norm d))) d))))
    [0.0 0.0 0.0] (len x)))"""


def test_a_sum_of_short_vectors_is_carried_in_numbers() -> None:
    """In a counted loop, too; and what its gradient carries back."""
    value = hyad.model(PULL, namespace={})
    size = hyad.model(f"(fn [x a] (sq-norm ({PULL} x a)))", namespace={})
    rng = np.random.default_rng(1)
    for n in (0, 1, 5):
        args = rng.normal(size=(n, 3)), rng.normal(size=3)
        d = args[0] - args[1]
        pull = (d / (0.1 + (d * d).sum(1))[:, None]).sum(0)
        np.testing.assert_allclose(memoised.compile(value, args=args)(*args), pull, rtol=1e-13, atol=1e-14)
        if n:
            assert hyad.check_grad(size, args)
    for f in (value, hyad.grad(size, wrt=1)):
        loops, apart = (
            [x.op for x in all_binds(hyad.compile(f, args=args, target="python", without=w).program.body)]
            for w in ((), "singles")
        )
        found = [[a for op in ops if type(op) is Loop for a in op.accs] for ops in (loops, apart)]
        assert not any(isinstance(a.type, Arr) for a in found[0]) and any(isinstance(a.type, Arr) for a in found[1])


DESCENT = f"""
(fn [#^ Real start]
  (let [f (fn [a] {FALL})
        x (ref start) fx (ref (f start)) n (ref 0)]
    (let [g (ref (jvp f start 1.0))]
      (while (< (deref n) 5)
        (let [next (- (deref x) (* 0.01 (deref g))) fnext (f next)]
          (set! n (+ (deref n) 1))
          (if (< fnext (deref fx))
            (do (set! x next) (set! fx fnext) (set! g (jvp f next 1.0)))
            (set! g (* 0.5 (deref g)))))))
    [(deref x) (deref fx)]))
"""


def test_a_gradient_and_its_value_take_one_loop() -> None:
    """Also where the gradient is asked for in a branch."""
    f = hyad.model(DESCENT, namespace={})
    assert len(whiles(f, 1.0)) == 2  # the fall before the descent, which counts, and in it
    args = (1.0,)
    apart = hyad.model(DESCENT, namespace={})
    expected = hyad.compile(apart, args=args, without=("meet-whiles",))(*args)
    np.testing.assert_allclose(hyad.compile(f, args=args)(*args), expected, rtol=1e-13)
    assert "meet-whiles" in [step.name for step in hyad.explain(f, args=args).steps]


HALF = (
    "(let [x (ref a) s (ref 0.0)] (while (> (deref x) 1.0) (set! s (+ (deref s) {0})) (set! x (/ (deref x) 2.0))) {1})"
)

LONGER = HALF.replace("(deref x) 1.0", "(deref x) b")  # or shorter
DEAR = "(exp (sin (exp (cos (exp (sin (deref x)))))))"
LAST = "(let [x (ref a) s (ref 0.0)] (while (> (deref x) 1.0) (set! s (deref x)) (set! x (/ (deref x) 2.0))) (deref s))"
LAST_OF_TWO = (
    "(let [x (ref a) t (ref 0.0) s (ref 1.0)] (while (> (deref x) 1.0) (set! t (+ (deref t) 1.0)) (set! s (deref x))"
    " (set! x (/ (deref x) 2.0))) (+ (deref t) (deref s)))"
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"(+ {HALF.format('(deref x)', '(deref s)')} {HALF.format('1.0', '(deref x)')})", 1),
        (f"(+ {HALF.format('1.0', '(deref x)')} {HALF.format('(deref x)', '(deref s)')})", 1),
        (f"(+ {HALF.format('2.0', '(deref s)')} {HALF.format('1.0', '(deref s)')})", 2),
        (f"(let [y {HALF.format('1.0', '(deref s)')}] (if (> y b) {HALF.format('(deref x)', '(deref s)')} y))", 2),
        (f"(let [y {HALF.format('1.0', '(deref x)')}] (if (> y b) {HALF.format('(deref x)', '(deref s)')} y))", 1),
        (f"(let [y {HALF.format('1.0', '(deref x)')}] (if (< b 3.0) {HALF.format('(get v k)', '(deref s)')} y))", 2),
        (f"(let [y {HALF.format('1.0', '(deref x)')} a b] {HALF.format('(deref x)', '(+ y (deref s))')})", 2),
        (f"(let [y {HALF.format('1.0', '(deref x)')}] {HALF.format('y', '(deref s)')})", 2),
        (f"(+ {HALF.format('1.0', '(deref x)')} {LONGER.format('1.0', '(deref x)')})", 2),
        (f"(+ {LAST} {LAST_OF_TWO})", 2),  # equal after an iteration, but not before
        (f"(let [y {HALF.format('1.0', '(deref x)')} z (get v k)] (+ y z {HALF.format('(get v k)', '(deref s)')}))", 2),
        (f"(let [y {HALF.format('1.0', '(deref x)')}] (if (> y b) {HALF.format(DEAR, '(deref s)')} y))", 2),
    ],
)
def test_one_loop_of_two(text: str, count: int) -> None:
    f = hyad.model(f"(fn [#^ Real a #^ Real b #^ (Vec n) v #^ Int k] {text})", namespace={})
    for args in ((20.0, 0.1, np.ones(3), 1), (20.0, 100.0, np.ones(3), 2), (0.5, 0.1, np.ones(3), 0)):
        assert len(whiles(f, *args)) == count
        assert memoised.compile(f, args=args)(*args) == memoised.compile(f, args=args, without="meet-whiles")(*args)


def test_what_a_branch_has_checked_is_not_read_before() -> None:
    """The larger loop reads an element that is there only in its branch."""
    larger = HALF.format("(get v k)", "(deref s)")
    text = f"(let [y {HALF.format('1.0', '(deref x)')}] (if (< k (len v)) {larger} y))"
    f = hyad.model(f"(fn [#^ Real a #^ (Vec n) v #^ Int k] {text})", namespace={})
    args = (20.0, np.ones(3), 1)
    kinds = [type(b.op) for b in f.optimised(f.specs(args)).body.binds]
    assert kinds.index(While) < kinds.index(If) and kinds.count(While) == 1
    assert hyad.compile(f, args=args)(20.0, np.ones(3), 10**9) == 0.625


def test_divisions_by_the_same() -> None:
    """Once in a derivative; a user's own are as they are written: 0.5/y is finite where 1/y is not."""
    f = hyad.model("(fn [#^ Real x #^ Real y] [(/ 0.5 y) (* x (/ 1.0 y)) (/ 0.25 y) (/ 3.0 y)])", namespace={})
    for y in [*np.random.default_rng(1).normal(size=20), 0.0, -0.0, np.inf, np.nan, 1e300, 4e-309, -1.7e308]:
        with np.errstate(all="ignore"):
            expected = np.array([0.5, 0.0, 0.25, 3.0]) / y
            expected[1] = 3.0 * (np.float64(1.0) / y)
        assert np.array_equal(memoised.compile(f, args=(1.0, 1.0))(3.0, y), expected, equal_nan=True)
    g = hyad.grad(hyad.model("(fn [#^ Real x] (/ 1.0 (sqrt x)))", namespace={}))
    assert sum(type(b.op) is Prim and b.op.name == "/" for b in binds(g, 1.0)) == 1
    assert hyad.compile(g)(4.0) == -1 / 16


def test_a_loop_that_may_fail_stays() -> None:
    """Its checks are its own, though all that it gives is known from another."""
    failing = HALF.format("(get v (+ k (if (> (deref x) b) 1 0)))", "(deref x)")
    text = f"(+ {HALF.format('1.0', '(deref x)')} {failing})"
    f = hyad.model(f"(fn [#^ Real a #^ Real b #^ (Vec n) v #^ Int k] {text})", namespace={})
    call = hyad.compile(f)
    assert call(20.0, 30.0, np.ones(3), 2) == 1.25
    with pytest.raises(hyad.errors.BoundsError):
        call(20.0, 3.0, np.ones(3), 2)


def test_a_quotient_that_is_only_divided_again_is_a_product() -> None:
    """What a derivative by y has of x/y is x times the reciprocal that is there; a value's own quotient stays one."""
    model = hyad.model("(fn [#^ Real x #^ Real y #^ Real z] (/ (* x z) (sqrt (+ y 1.0))))", namespace={})
    for operator, count in ((hyad.grad, 1), (hyad.value_and_grad, 2)):
        f = operator(model, wrt="y")
        made = hyad.compile(f, args=(1.0, 2.0, 3.0), target="python")
        divisions = [b for b in all_binds(made.program.body) if type(b.op) is Prim and b.op.name == "/"]
        assert len(divisions) == count
        plain = hyad.compile(f, args=(1.0, 2.0, 3.0), target="python", without="reciprocals")
        for args in ((1.0, 2.0, 3.0), (-7.0, 1e10, 0.1), (0.0, 0.5, 1.0)):
            np.testing.assert_allclose(made(*args), plain(*args), rtol=1e-14)
            if operator is hyad.value_and_grad:
                assert made(*args)[0] == model(*args)


def test_a_loop_of_loops_whose_sizes_are_known_outside() -> None:
    """What an iteration remembers of its `while` has its size beside it; the adjoint has the size of the argument."""
    halves = (
        "(let [q (ref v)] (while (< (sum (deref q)) 4) (set! q (* (get v (% 1 (len v))) (deref q)))) (sum (deref q)))"
    )
    f = hyad.model(f"(fn [#^ (Vec n) v] (ifold (fn [e r] (+ (* 0.1 e) {halves})) 0.5 (len v)))", namespace={})
    v = np.array([1.1, 1.3, 0.9])
    assert hyad.check_grad(f, [v])
    slope, h = hyad.grad(f), 1e-5
    np.testing.assert_allclose(hyad.hessian(f)(v).sum(0), (slope(v + h) - slope(v - h)) / (2 * h), rtol=1e-7, atol=1e-8)


INVARIANT = """(defmodel invariant [x y #^ (Vec n) v]
  (let [r (ref x) s (ref 0.0)]
    (while (> (deref r) (exp y))
      (set! r (* (sin y) (deref r)))
      (set! s (+ (deref s) (sum (map (fn [a] (* a (cos y))) v)) (get v 1))))
    (+ (deref r) (deref s))))"""


@pytest.mark.parametrize("operator", [lambda f: f, lambda f: hyad.grad(f, wrt=("x", "y", "v"))])
def test_what_is_the_same_in_each_round_is_computed_before_the_loop(operator) -> None:
    """Calls, and whole loops; not what may fail where no round is run."""
    f = operator(hyad.model(INVARIANT, namespace={}))
    v = np.array([0.5, -0.25, 2.0])
    for loop in whiles(f, 9.0, -0.5, v):
        inside = [b for block in (loop.cond, loop.body) for b in all_binds(block)]
        assert not any(type(b.op) is Prim and b.op.name in ("exp", "sin", "cos") for b in inside)
    compiled = hyad.compile(f)
    for x in (9.0, 1.0, 0.1):
        found, wanted = compiled(x, -0.5, v), hyad.run(f, x, -0.5, v)
        both = zip(found, wanted, strict=True) if type(found) is tuple else [(found, wanted)]
        assert all(np.allclose(got, want, rtol=1e-13, atol=0.0) for got, want in both)
    assert np.array_equal(hyad.compile(hyad.model(INVARIANT))(0.1, -0.5, v[:1]), 0.1)  # no round, no element


@pytest.mark.parametrize(
    "text, ends",
    [
        ("(let [k (ref 0.0)] (while (> x 2.0) (set! k 1.0)) (* x x))", False),
        ("(let [k (ref 0)] (while (< (deref k) 3) (while (> x 2.0) 1) (set! k (+ (deref k) 1))) (* x x))", False),
        ("(let [k (ref 0)] (while (> x (deref k)) (set! k (+ (deref k) 3))) (* x x (deref k)))", True),
    ],
)
def test_a_loop_that_never_ends_is_an_error_where_it_is_entered(text: str, ends: bool) -> None:
    """Its condition reads nothing that its body changes: where that does not hold at first there is no loop."""
    f = hyad.model(f"(fn [x] {text})", namespace={})
    for g in (f, hyad.grad(f)):
        for target in ("c", "python"):
            found = hyad.compile(g, target=target, args=(1.0,))
            assert found(1.5) == hyad.run(g, 1.5)
            if ends:
                assert found(4.0) == hyad.run(g, 4.0)
            else:
                with pytest.raises(hyad.HyadError, match="never ends"):
                    found(4.0)


def test_the_same_loop_is_one_but_where_it_never_ends() -> None:
    """A loop in whose place there is an error is none that another could be."""
    halved = "(let [r (ref x)] (while (> (deref r) 1.0) (set! r (* 0.5 (deref r)))) (deref r))"
    f = hyad.model(f"(fn [x] (* {halved} (sin {halved})))", namespace={})
    assert len(whiles(f, 3.0)) == 1 and hyad.compile(f)(5.0) == 0.625 * np.sin(0.625)
    stays = "(while (> x 2.0) 1)"
    f = hyad.model(f"(fn [x] (do {stays} {stays} (* x x)))", namespace={})
    assert hyad.compile(f)(1.5) == 2.25
    with pytest.raises(hyad.HyadError, match="never ends"):
        hyad.compile(f)(4.0)
