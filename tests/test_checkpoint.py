"""``:checkpoint n``: reverse mode of a loop that keeps n of its states and computes the others again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyad
import oracle
import typed
from hyad.codegen.c import print_c
from hyad.differentiate.checkpoint import repeated
from hyad.errors import BoundsError, HyadError, ModelTypeError, ReadError
from hyad.passes.optimise import optimise
from hyad.program.journal import without

W, H = np.array([[0.3, 0.2], [-0.4, 0.7]]), np.array([0.5, 0.1])
STEPS = 9

#: Name: a model of the steps n as well, with K where the option stands, and its arguments but for n.
MODELS = {
    "a number": ("(fn [x] (ifold (fn [s i] (sin (+ (* 1.1 s) (* 0.01 (real i) s)))) x n K))", (0.3,)),
    "a tuple": (
        "(fn [x y] (let [#(a b) (ifold (fn [s i] (let [#(p v) s] #((+ p (* 0.1 v)) (- v (* 0.1 (sin p)))))) #(x y) n K)"
        "] (* a b)))",
        (0.3, 0.4),
    ),
    "an array, and one outside": ("(fn [w h] (sum (ifold (fn [h i] (tanh (@ w h))) h n K)))", (W, H)),
    "a matrix": (
        "(fn [u] (sum (ifold (fn [u i] (build [2 2] (fn [a b] (sin (+ (get u a b) (get u b (% (+ a i) 2)))))))"
        " u n K)))",
        (W,),
    ),
    "over an array": (
        "(fn [xs a] (fold (fn [s x] (+ (* a s) (* x (exp (* -0.1 s))))) 0.0 xs K))",
        (np.arange(9) / 9, 0.7),
    ),
    "references": (
        "(fn [x] (let [r (ref x) c (ref 0)] (ifold (fn [s i] (do (set! c (+ (deref c) 1))"
        " (set! r (* (deref r) (sin (+ s (real (deref c)))))) (+ s (deref r)))) 0.5 n K)))",
        (0.3,),
    ),
    "while": (
        "(fn [x] (let [r (ref x) i (ref 0)] (while (< (deref i) n) K (set! r (sin (* 1.3 (deref r))))"
        " (set! i (+ 1 (deref i)))) (deref r)))",
        (0.3,),
    ),
    "while, until a norm is small": (
        "(fn [x] (let [r (ref x) v (ref [x 1.0 2.0])] (while (> (norm (deref v)) 0.1) K"
        " (set! v (* (deref v) (sin (deref r)))) (set! r (* 0.9 (deref r)))) (+ (deref r) (sum (deref v)))))",
        (0.8,),
    ),
    "in a loop": (
        "(fn [x] (ifold (fn [t k] (+ t (ifold (fn [s i] (sin (+ (* 1.1 s) (* 0.01 (real (+ i k)) s t))))"
        " x n K))) x 3))",
        (0.3,),
    ),
    "a loop in it": (
        "(fn [x] (ifold (fn [t k] (+ t (ifold (fn [s i] (sin (+ (* 1.1 s) (* 0.01 (real (+ i k)) s t))))"
        " x 4))) x n K))",
        (0.3,),
    ),
    "in one another": (
        "(fn [x] (ifold (fn [t k] (* t (ifold (fn [s i] (sin (+ (* 1.1 s) t))) x 4 :checkpoint 2))) x n K))",
        (0.3,),
    ),
    "in a while": (
        "(fn [x] (let [r (ref x) i (ref 0)] (while (< (deref i) 3) "
        "(set! r (ifold (fn [s k] (sin (* 1.1 s))) (deref r) n K)) (set! i (+ 1 (deref i)))) (deref r)))",
        (0.3,),
    ),
    "in a branch": (
        "(fn [x] (let [y (if (> x 0.0) (ifold (fn [s i] (sin (* 1.1 s))) x n K) (* 2.0 x))] (* y y)))",
        (0.3,),
    ),
    "a branch in it": ("(fn [x] (ifold (fn [s i] (if (> s 0.5) (sin (* 1.1 s)) (exp (* s x)))) x n K))", (0.3,)),
    "in a recursion": (
        "(fn [x #^ Int d] (letrec [f (fn [y k] (if (= k 0) y (* 0.5 (+ (f (* y 0.9) (- k 1))"
        " (ifold (fn [s i] (sin (* 1.1 s))) y n K)))))] (f x d)))",
        (0.3, 3),
    ),
    "a recursion in it": (
        "(fn [x] (letrec [f (fn [y k] (if (= k 0) y (sin (f (* y 0.9) (- k 1)))))]"
        " (ifold (fn [s i] (+ s (* 0.1 (f s (% i 3))))) x n K)))",
        (0.3,),
    ),
    "a sum of calls": (
        "(fn [x] (letrec [f (fn [y k] (if (= k 0) y (sin (f (* y 0.9) (- k 1)))))]"
        " (ifold (fn [s i] (+ s (f x (% i 3)))) 0.0 n K)))",
        (0.3,),
    ),
    "a list": (
        "(fn [x] (let [l (ifold (fn [l i] (cons (* x (sin (car l))) l)) (list x) n K)]"
        " (letrec [total (fn [l] (if (null? l) 0.0 (+ (car l) (total (cdr l)))))] (total l))))",
        (0.3,),
    ),
    "a search": ("(fn [xs] (fold (fn [m x] (max m (sin x))) -10.0 xs K))", (np.arange(9) / 3,)),
    "a sum": ("(fn [xs] (fold (fn [m x] (+ m (exp (sin x)))) 0.0 xs K))", (np.arange(9) / 3,)),
}  # fmt: skip


def both(text: str, states: int = 3) -> tuple[str, str]:
    """A model without checkpoints, and with some."""
    text = text if "Int n]" in text or "Int steps]" in text else text.replace("]", " #^ Int n]", 1)
    return text.replace(" K", ""), text.replace("K", f":checkpoint {states}")


def flat(value) -> np.ndarray:
    parts = [flat(x) for x in value] if isinstance(value, tuple) else [np.ravel(value)]
    return np.concatenate(parts)


def python(f, args):
    """By reverse mode, also where there are few inputs."""
    return hyad.compile(f, target="python", args=args, without="few-inputs")(*args)


# ------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_same_to_the_last_bit(name: str) -> None:
    """The operations are those of the gradient that remembers everything, in their order. (C compilers contract them in
    different ways, Python does what is written.)"""
    text, args = MODELS[name]
    wanted = flat(python(hyad.value_and_grad(both(text)[0]), (*args, STEPS)))
    got = flat(python(hyad.value_and_grad(both(text, 2)[1]), (*args, STEPS)))
    assert (got == wanted).all()


def test_compiled_and_define_by_run() -> None:
    for name in ("an array, and one outside", "a list"):
        text, args = MODELS[name]
        plain, kept = (hyad.value_and_grad(t) for t in both(text))
        wanted = flat(plain(*args, 40))
        np.testing.assert_allclose(flat(kept(*args, 40)), wanted, rtol=1e-11)
        np.testing.assert_allclose(flat(hyad.run(kept, *args, 40)), wanted, rtol=1e-11)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["a tuple", "while, until a norm is small", "in a branch", "a list"])
def test_higher_derivatives(name: str) -> None:
    """Forward over reverse, reverse over forward and reverse over reverse."""
    text, args = MODELS[name]
    args = (*args, 7)
    x, *others = args
    form = "(sum (* 0.7 %s))" if np.ndim(x) else "(* 0.7 %s)"
    rest = " ".join(["y", "z"][: len(others) - 1])
    models = [f"(fn [x {rest} #^ Int n] ({t} x {rest} n))" for t in both(text)]
    first = "((grad {f} :wrt 0) x {rest} n)"
    for inner in (
        "(jvp (fn [x] " + first + ") x (* 0.7 x))",
        "((grad (fn [x] (jvp (fn [x] ({f} x {rest} n)) x (* 0.7 x)))) x)",
        "((grad (fn [x] " + form % first + ")) x)",
    ):
        wanted, got = (
            python(f"(fn [x {rest} #^ Int n] {inner.replace('{f}', f).replace('{rest}', rest)})", args) for f in models
        )
        np.testing.assert_allclose(flat(got), flat(wanted), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["a tuple", "while, until a norm is small", "in one another", "a branch in it"])
def test_against_differences(name: str) -> None:
    text, args = MODELS[name]
    plain, kept = both(text)
    wanted = oracle.evaluate(plain.replace(":checkpoint 2", ""), *args, STEPS, operator="grad", wrt=(0,))
    got = python(hyad.grad(kept, wrt=(0,)), (*args, STEPS))
    assert oracle.mismatch(got, wanted, rtol=1e-9) is None


EXPRESSIONS = st.recursive(
    st.sampled_from(["s", "x", "0.9", "(real i)", "(get w i)"]),
    lambda e: (
        st.builds("({} {})".format, st.sampled_from(["sin", "tanh", "cos"]), e)
        | st.builds("(+ {} (* 0.5 {}))".format, e, e)
        | st.builds("(* {} {})".format, st.builds("(tanh {})".format, e), e)
        | st.builds("(if (> {} 0.1) {} {})".format, e, e, e)
    ),
    max_leaves=6,
)


@settings(max_examples=10, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.integers(0, 12), st.integers(1, 6), st.booleans())
def test_random_loops(a: str, b: str, steps: int, states: int, while_: bool) -> None:
    """A loop over a pair whose step is any expression: with and without checkpoints the same, as differences say."""
    body = f"(let [#(t s) p x (+ y t)] #((tanh {a}) (sin (+ s {b}))))"
    loop = f"(ifold (fn [p i] {body}) #(y 0.3) n K)"
    if while_:
        step = f"(let [p (deref r) i (deref c)] (set! r {body}))"
        loop = f"(let [r (ref #(y 0.3)) c (ref 0)] (while (< (deref c) n) K {step} (set! c (+ 1 (deref c)))) (deref r))"
    text = f"(fn [y w #^ Int n] (let [#(p q) {loop}] (+ p (* 2.0 q))))"
    args = (0.4, np.linspace(-1, 1, 12), steps)
    plain, kept = both(text, states)
    wanted = python(hyad.value_and_grad(plain), args)
    assert np.array_equal(flat(python(hyad.value_and_grad(kept), args)), flat(wanted), equal_nan=True)
    by_differences = oracle.evaluate(plain, *args, operator="grad", wrt=(0, 1))
    assert oracle.mismatch(wanted[1], by_differences, rtol=1e-7, atol=1e-9) is None


# --------------------------------------------------------------------------------- the schedule, memory


@cache
def least(steps: int, states: int) -> int:
    """The fewest steps that reach each state of a loop, last to first: tried."""
    if steps < 2:
        return 0
    if states == 1:
        return steps * (steps - 1) // 2
    return min(m + least(m, states) + least(steps - m, states - 1) for m in range(1, steps))


def test_the_formula_is_the_least() -> None:
    for steps in range(40):
        for states in range(1, 7):
            assert repeated(steps, states) == least(steps, states), (steps, states)


def counts_of(text: str, steps: Sequence[int]) -> list[dict[str, int]]:
    """How often each operation is done. The evaluator fails where anything undefined is read."""
    model = hyad.value_and_grad(text, wrt=0)
    program = optimise(model.program(model.specs((0.3, 1))))
    return [typed.run(program, [0.3, n])[1] for n in steps]


LONG = "(fn [x #^ Int n] (ifold (fn [s i] (sin (* 1.1 s))) x n :checkpoint {}))"
COUNTS = (0, 1, 2, 3, 6, 7, 21, 56, 57)


@pytest.mark.parametrize("states", [1, 2, 5])
def test_the_schedule_takes_the_fewest_steps(states: int) -> None:
    """The first run of the loop is the first way to its last state."""
    for steps, counts in zip(COUNTS, counts_of(LONG.format(states), COUNTS)):
        assert counts.get("sin", 0) == repeated(steps, states) + min(steps, 1), steps
        assert counts.get("cos", 0) == steps


def test_the_schedule_of_a_while_that_counts() -> None:
    """As of the loop that it is."""
    step = "(set! r (sin (* 1.1 (deref r)))) (set! i (+ 1 (deref i)))"
    text = f"(fn [x #^ Int n] (let [r (ref x) i (ref 0)] (while (< (deref i) n) :checkpoint 4 {step}) (deref r)))"
    for steps, counts in zip(COUNTS, counts_of(text, COUNTS)):
        assert counts.get("sin", 0) == repeated(steps, 4) + min(steps, 1), steps
        assert counts.get("cos", 0) == steps


def test_the_schedule_of_a_while() -> None:
    """Of one that does not count by an integer: its steps are found by running it, and the way back starts anew."""
    step = "(set! r (sin (* 1.1 (deref r)))) (set! i (+ 1 (deref i)))"
    text = f"(fn [x #^ Int n] (let [r (ref x) i (ref 0.0)] (while (< (deref i) n) :checkpoint 4 {step}) (deref r)))"
    for steps, counts in zip(COUNTS, counts_of(text, COUNTS)):
        assert counts.get("sin", 0) == steps + repeated(steps, 4)
        assert counts.get("cos", 0) == steps


HEAT = """(fn [u #^ Int steps] (sum (ifold (fn [u i] (build (len u) (fn [j]
    (let [c (get u j)] (+ c (* 0.1 (- (get u (% (+ j 1) (len u))) (* c (* c c)))))))))
  u steps K)))"""


def workspace(text: str, n: int, steps: int, operator=hyad.value_and_grad) -> int:
    """The reals of workspace that a gradient takes at a size, as its cost card says."""
    card = hyad.cost(operator(text, wrt=0), args=(np.ones(n), steps))
    memory = list(card.memory.values())[-1]
    assert not memory["arena"] and memory["workspace"] % 8 == 0
    return memory["workspace"] // 8


def test_memory_is_that_of_the_states_kept() -> None:
    """n states, the one at hand, and what a step needs: whatever the count."""
    plain, kept = both(HEAT, 7)
    assert workspace(plain, 100, 1000) > 1000 * 100
    assert workspace(kept, 100, 1000) == workspace(kept, 100, 10) <= (7 + 1 + 3) * 100
    assert workspace(both(HEAT, 17)[1], 100, 1000) - workspace(kept, 100, 1000) == 10 * 100


def room(f, args) -> str:
    """The workspace of a model, as its C asks for it."""
    return str(print_c(f.optimised(f.specs(args))).workspace)


def test_memory_of_second_derivatives() -> None:
    """Products with the Hessian keep n states and their tangents; reverse over reverse keeps n times as many."""
    kept = both(HEAT, 7)[1]
    at = (np.ones(100), 1000)
    product = f"(fn [u #^ Int steps v] (jvp (fn [w] ((grad {kept} :wrt 0) w steps)) u v))"
    assert "steps" not in room(hyad.model(product), (*at, np.ones(100)))
    twice = f"(fn [u #^ Int steps v] (dot v ((grad {kept} :wrt 0) u steps)))"
    assert "steps" not in room(hyad.grad(twice, wrt=0), (*at, np.ones(100)))


def test_nested_loops_keep_few_states_each() -> None:
    """What a step of the outer loop remembers is the inner loop's few states, and only while it goes back."""
    inner = "(ifold (fn [u j] (* u (sin u))) u steps K)"
    text = f"(fn [u #^ Int steps] (sum (ifold (fn [u i] {inner}) u steps K)))"
    assert workspace(both(text, 5)[1], 100, 1000) <= (2 * (5 + 1) + 5) * 100


def test_a_million_steps() -> None:
    f = hyad.grad(LONG.format(30), wrt=0)
    wanted = np.prod([1.0])
    s = 0.3
    for _ in range(2000):
        wanted, s = wanted * 1.1 * np.cos(1.1 * s), np.sin(1.1 * s)
    assert f(0.3, 2000) == pytest.approx(wanted, rel=1e-9)
    assert np.isfinite(f(0.3, 1_000_000))


def test_the_number_of_states_is_any_integer() -> None:
    text = "(fn [x #^ Int n #^ Int k] (ifold (fn [s i] (sin (* 1.1 s))) x n :checkpoint (+ k 1)))"
    f = hyad.grad(text, wrt=0)
    wanted = hyad.grad(LONG.replace(":checkpoint {}", ""), wrt=0)(0.3, 50)
    assert [f(0.3, 50, k) for k in (0, 3, 200)] == pytest.approx([wanted] * 3, rel=1e-12)
    with pytest.raises(BoundsError, match="keeps one state at least"):
        f(0.3, 50, -1)


def test_what_a_card_says() -> None:
    model = hyad.value_and_grad(LONG.format(10), wrt=0)
    said = str(hyad.cost(model, args=(0.3, 1000)))
    assert f"keeps 10 of its 1 000 states: {repeated(1000, 10) + 1:,} steps".replace(",", " ") in said
    assert "checkpoint" in hyad.explain(model, args=(0.3, 1000)).fired()
    off = hyad.cost(model, args=(0.3, 1000), without="checkpoint")
    assert "keeps" not in str(off) and off.memory["value-and-grad"]["workspace"] >= 8 * 1000  # a state for each step
    while_ = "(fn [x] (let [r (ref x)] (while (> (deref r) 1.0) :checkpoint 3 (set! r (sqrt (deref r)))) (deref r)))"
    assert "keeps 3 of its states" in str(hyad.cost(hyad.grad(while_), args=(9.0,)))


COUNTED = {
    "plain": ("(fn [x] (ifold (fn [s i] (sin (* 1.1 s))) x 57 :checkpoint 3))", 0.3, 1.0),
    "count": ("(fn [x #^ Int k] (ifold (fn [s i] (sin (* 1.1 s))) x k :checkpoint 3))", 0.3, 1.0),
    "all states": ("(fn [x #^ Int k] (ifold (fn [s i] (sin (* 1.1 s))) x k :checkpoint 90))", 0.3, 1.0),
    "fold": ("(fn [x] (fold (fn [s a] (sin (* a s))) 0.3 x :checkpoint 3))", np.ones(70), 1.0),
    "map": ("(fn [x #^ Int k] (sum (map (fn [a] (ifold (fn [s i] (sin s)) a k :checkpoint 3)) x)))", np.ones(7), 1.0),
    "array": (
        "(fn [x] (sum (ifold (fn [y i] (map (fn [a] (sin (+ a (* 0.1 (real i))))) y)) x 100 :checkpoint 4)))",
        np.ones(5),
        1.0,
    ),
    "nested": (
        "(fn [x] (ifold (fn [t k] (* t (ifold (fn [s i] (sin (+ s t))) x 40 :checkpoint 3))) x 30 :checkpoint 5))",
        0.3,
        1.0,
    ),
    "two": ("(fn [x] (let [f (fn [n] (ifold (fn [s i] (sin s)) x n :checkpoint 3))] (+ (f 20) (f 200))))", 0.3, 1.0),
    "gradient": ("(fn [x #^ Int k] ((grad (fn [y] (ifold (fn [s i] (sin s)) y k :checkpoint 3))) x))", 0.3, 0.9),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", COUNTED)
def test_a_card_counts_the_steps_that_are_taken_again(name: str) -> None:
    """As many as a run takes; nearly, where the backward loop itself is differentiated."""
    text, x, share = COUNTED[name]
    args = (x, 40)[: 2 if "#^ Int k" in text else 1]
    model = hyad.value_and_grad(text, wrt=0)
    with without(["few-inputs"]):
        card, program = hyad.cost(model, args=args), model.optimised(model.specs(args))
    values = [a.tolist() if isinstance(a, np.ndarray) else a for a in args]
    _, counts = typed.run(program, values, [len(x)] if program.dims else [])
    found, taken = card.columns["value-and-grad"].transcendental, counts["sin"] + counts["cos"]
    assert share * taken <= found * (1 + 1e-12) <= taken * (1 + 1e-9)
    assert "counted once each" not in str(card)


def test_a_card_counts_no_steps_of_unknown_number() -> None:
    text = "(fn [x] (let [r (ref x)] (while (> (deref r) 1.0) :checkpoint 3 (set! r (sqrt (deref r)))) (deref r)))"
    assert "iterations of a while" in str(hyad.cost(hyad.grad(text), args=(9.0,)))


# --------------------------------------------------------------------------------------------- the form


def test_the_form_reads_again() -> None:
    for name in ("a number", "while"):
        text, args = MODELS[name]
        args = (*args, STEPS)
        model = hyad.model(both(text)[1])
        printed = hyad.show(model, "source")
        assert ":checkpoint 3" in printed
        again = hyad.model(printed, namespace={})
        assert ":checkpoint 3" in hyad.show(again, "anf")
        assert again(*args) == model(*args)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("(fn [x] (ifold (fn [s i] (sin s)) x 9 :checkpoint 0))", ModelTypeError, "`:checkpoint 0` keeps nothing"),
        ("(fn [x] (ifold (fn [s i] (sin s)) x 9 :checkpoint 1.5))", ModelTypeError, "the number of snapshots is"),
        ("(fn [x] (sin x :checkpoint 3))", ModelTypeError, "`:checkpoint` is an option of loops"),
        ("(fn [x] (scan + x [1.0 2.0] :checkpoint 3))", ModelTypeError, "`:checkpoint` is an option of loops"),
        ("(fn [x] (fold + x (list 1.0 2.0) :checkpoint 3))", ModelTypeError, "`:checkpoint` of a fold over a list"),
        ("(fn [x] (ifold (fn [s i] s) x 9 :checkpoint))", ReadError, "`:checkpoint` lacks its value"),
        ("(fn [x] (ifold (fn [s i] s) x 9 :checkpoint 1 :checkpoint 2))", ReadError, "a second `:checkpoint`"),
        ("(fn [x] (while (> x 1.0) :checkpoint))", ReadError, "`:checkpoint` lacks its value"),
    ],
)
def test_what_is_refused(text: str, error: type[HyadError], message: str) -> None:
    with pytest.raises(error, match=message):
        hyad.compile(hyad.model(text, namespace={}), args=(2.0,))
