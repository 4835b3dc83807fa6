"""What reverse mode remembers: memory of gradients, counted from the programs."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.codegen.c import print_c
from hyad.core import Loop, Prim, all_binds
from hyad.differentiate.records import stepwise
from hyad.passes.narrow import narrow
from hyad.plain_python import python_callable
from hyad.program.check import check
from hyad.program.journal import without as switched_off

W = np.linspace(-1.0, 1.0, 12).reshape(4, 3)
H = np.cos(np.arange(12.0)).reshape(4, 3)


def workspace(f, args, without=(), **sizes: int) -> int:
    """The reals of workspace of a derivative, at the sizes given by name."""
    with switched_off((without,) if isinstance(without, str) else without):
        printed = print_c(f.optimised(f.specs(args)))
    assert not printed.arena
    text = str(printed.workspace)
    for name in sizes:
        text = text.replace(f"({name} > 0 ? {name} : 0)", name)
    return int(eval(text, dict(sizes)))


#: The state is a matrix, and a step changes one row of it.
ROWS = """(fn [#^ (Mat n m) w #^ (Mat n m) h]
  (sum (ifold (fn [h i] (update h i (map (fn [a b] (tanh (* a b))) (get w i) (get h i)))) h (len w))))"""
#: So in every step of a loop around.
SWEEPS = """(fn [#^ (Mat n m) w #^ (Mat n m) h #^ Int t]
  (sum (ifold (fn [h k] (ifold (fn [h i]
         (update h i (map (fn [a b] (tanh (* a b))) (get w i) (get h i)))) h (len w))) h t)))"""
#: An element of a vector.
ELEMENTS = """(fn [#^ (Vec n) w #^ (Vec n) h #^ Int t]
  (sum (ifold (fn [h k] (ifold (fn [h i] (update h i (tanh (* (get w i) (get h i))))) h (len w))) h t)))"""
#: Two elements, one after the other and back from the end.
TWO = """(fn [#^ (Vec n) w #^ (Vec n) h #^ Int t]
  (sum (ifold (fn [h k] (ifold (fn [h i]
         (update h i (tanh (* (get w i) (get h i) (get h (- (- (len w) 1) i)))))) h (len w))) h t)))"""


@pytest.mark.parametrize(
    "text, args, sizes, most",
    [
        (ROWS, (W, H), {"n": 1000, "m": 10}, lambda n, m: 5 * n * m),
        (SWEEPS, (W, H, 3), {"n": 1000, "m": 10, "t": 10}, lambda n, m, t: 3 * t * n * m + 6 * n * m),
    ],
)
def test_a_state_that_is_changed_row_by_row_is_remembered_by_row(text, args, sizes, most) -> None:
    """By reverse mode where that looks for what is read of a state, else when the backward code is there."""
    f = hyad.grad(text, wrt=(0, 1))
    whole = {"without": ("narrow", "remembering", "any-order")}
    assert workspace(f, args, **sizes) <= most(**sizes)
    assert workspace(f, args, without=("remembering", "any-order"), **sizes) <= most(**sizes)
    assert workspace(f, args, **whole, **sizes) > 10 * most(**sizes)
    assert "narrow" in [step.name for step in hyad.explain(f, args=args, without=("remembering", "any-order")).steps]
    plain = hyad.compile(f, args=args, **whole, target="python")(*args)
    for target in ("python", "c"):
        for got, wanted in zip(hyad.compile(f, args=args, target=target)(*args), plain):
            np.testing.assert_allclose(got, wanted, rtol=0 if target == "python" else 1e-13)


#: The distance of two sequences, by a table that is filled in place; its edges by conditions, a branch in a branch.
TABLE = """(fn [#^ (Vec n) a #^ (Vec m) b g]
  (let [n (len a)  m (len b)  d (zeros [(+ n 1) (+ m 1)])]
    (ifold (fn [_ i] (ifold (fn [_ j]
        (set-at! d i j
          (cond (= i 0) (* g j)
                (= j 0) (* g i)
                True (logsumexp [(+ (get d (- i 1) j) g) (+ (get d i (- j 1)) g)
                                 (+ (get d (- i 1) (- j 1)) (square (- (get a (- i 1)) (get b (- j 1)))))])))
        0) 0 (+ m 1))) 0 (+ n 1))
    (get d n m)))"""
#: An element chosen by another array.
KNAPSACK = """(fn [#^ (Vec n) v #^ (Arr Int n) w #^ Int most]
  (let [t (zeros most)]
    (ifold (fn [_ i] (ifold (fn [_ k]
        (let [c (- most 1 k)]
          (when (>= c (get w i)) (set-at! t c (max (get t c) (+ (get t (- c (get w i))) (square (get v i))))))
          0)) 0 most)) 0 (len v))
    (get t (- most 1))))"""
#: A table of one row, in a `while` too.
STEPS = """(fn [#^ (Vec n) a]
  (let [t (copy a)  i (ref 1)]
    (ifold (fn [_ k] (do (set-at! t (+ k 1) (* (get t (+ k 1)) (sin (get t k)))) 0)) 0 (- (len a) 1))
    (while (< (deref i) (len a))
      (set-at! t (deref i) (* (get t (deref i)) (get t (- (deref i) 1))))
      (set! i (+ (deref i) 1)))
    (sum t)))"""


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "text, args, sizes, most",
    [
        (ELEMENTS, (W[0], H[0], 3), {"n": 1000, "t": 10}, lambda n, t: 3 * t * n + 6 * n),
        (TWO, (W[0], H[0], 3), {"n": 1000, "t": 10}, lambda n, t: 4 * t * n + 6 * n),
        (TABLE, (W[0], H[1], 0.3), {"n": 1000, "m": 100}, lambda n, m: 12 * (n + 1) * (m + 1)),
        (KNAPSACK, (W[0], np.array([1, 3, 2]), 6), {"n": 100, "most": 1000}, lambda n, most: 8 * n * most),
        (STEPS, (W.ravel(),), {}, None),
    ],
)
def test_elements_that_are_read_of_a_table_are_remembered(text, args, sizes, most) -> None:
    f = hyad.grad(text, wrt=0)
    if most is not None:
        assert workspace(f, args, **sizes) <= most(**sizes)
    assert hyad.check_grad(text, args)
    f, again = (hyad.compile(f, args=args, target="python", without=off) for off in ((), "remembering"))
    np.testing.assert_allclose(f(*args), again(*args), rtol=1e-12)
    hessian = hyad.compile(hyad.hessian(text, wrt=0), args=args, target="python")
    moved = [np.eye(len(args[0]))[k] * 1e-5 for k in range(len(args[0]))]
    slopes = [(f(args[0] + d, *args[1:]) - f(args[0] - d, *args[1:])) / 2e-5 for d in moved]
    np.testing.assert_allclose(hessian(*args), slopes, rtol=1e-4, atol=1e-6)


#: Two rows, of which a branch changes one or both.
LINKS = """(fn [#^ (Mat n 3) p]
  (let [x (copy p)]
    (for [i (range (- (len x) 1))]
      (let [c (* (get x i) (get x (+ i 1)))]
        (if (= i 0)
          (set-at! x 1 (- (get x 1) c))
          (do (set-at! x i (- (get x i) c)) (set-at! x (+ i 1) (+ (get x (+ i 1)) (sin c)))))))
    (sum x)))"""
#: Points between two, as often as there are points.
BETWEEN = """(fn [#^ (Mat n 2) p]
  (let [x (copy p)]
    (for [r (range 1 (len x))  i (range (- (len x) r))]
      (set-at! x i (* (+ (get x i) (get x (+ i 1))) (get x i 0))))
    (sum (square x))))"""


@pytest.mark.parametrize(
    "text, args, sizes, most",
    [
        (LINKS, (W,), {"n": 1000}, lambda n: 40 * n),
        (BETWEEN, (np.ascontiguousarray(W[:, :2]),), {}, None),  # what a round remembers is of its own size
    ],
)
def test_rows_that_are_read_of_a_table_are_remembered(text, args, sizes, most) -> None:
    f = hyad.grad(text, wrt=0)
    if most is not None:
        assert workspace(f, args, **sizes) <= most(**sizes)
    assert hyad.check_grad(text, args)
    rng = np.random.default_rng(5)
    made, again = (hyad.compile(f, args=args, without=off) for off in ((), "remembering"))
    for n in (0, 1, 2, 5):
        points = [rng.normal(size=(n, a.shape[1])) for a in args]
        wanted = hyad.run(f, *points)
        for got in (made(*points), again(*points), hyad.grad(text, wrt=0, encoding="closure")(*points)):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
    along = [rng.normal(size=a.shape) for a in args]
    slope = [made(*(a + s * 1e-5 * d for a, d in zip(args, along))) for s in (1, -1)]
    second = hyad.hvp(text, args, tuple(along))
    second = second[0] if isinstance(second, tuple) else second
    np.testing.assert_allclose(second, (slope[0] - slope[1]) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows, remembered", [("n", True), ("60", True), ("4", False)])
def test_rows_of_a_small_state_are_not_remembered_apart(rows: str, remembered: bool) -> None:
    """Where an iteration reads as much as the state is, there is nothing to be saved."""
    f = hyad.model(LINKS.replace("(Mat n 3)", f"(Mat {rows} 3)").replace("(sin c)", "c"), namespace={})
    loops = [b.op for b in all_binds(f.program(f.specs()).body) if type(b.op) is Loop and b.op.accs]
    assert bool(stepwise(loops[0])) == remembered


#: What is recorded of a vector in each step: one number, without which the step would be taken once more.
RECORDED = """(fn [#^ (Vec {}) x a #^ Int steps]
  (let [n (len x)]
    (snd (ifold (fn [s t]
                  (let [#(u total) s
                        v (build n (fn [i] (+ (* a (get u i)) (get u (% (+ i 1) n)))))
                        seen (get (update v (// n 2) a) 0)]
                    #(v (+ total (* seen seen)))))
                #(x 0.0) steps))))"""
#: A sum, whose states are not remembered, of numbers that take a loop each.
SUMMED = """(fn [#^ (Vec n) x a #^ Int steps]
  (sin (ifold (fn [s t] (+ s (square (get (scan (fn [c e] (* c (+ e (* a t)))) 1.0 x) (// (len x) 2)))))
              0.0 steps)))"""


def test_numbers_that_are_read_of_what_a_step_makes() -> None:
    f = hyad.grad(RECORDED.format("n"), wrt=(0, 1))
    args = (np.linspace(0.3, 1.0, 5), 0.7, 3)
    assert hyad.check_grad(RECORDED.format("n"), args)
    made, again = (hyad.compile(f, args=args, without=off) for off in ((), "remembering"))
    assert made.source.count("for (") < again.source.count("for (")
    assert workspace(f, args, n=1000, steps=100) <= workspace(f, args, without="remembering", n=1000, steps=100) + 100
    for n, steps in ((1, 2), (2, 1), (5, 0), (7, 4)):
        point = (np.linspace(0.3, 1.0, n), 0.7, steps)
        for got, other, wanted in zip(made(*point), again(*point), hyad.run(f, *point), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)
            np.testing.assert_allclose(other, wanted, rtol=1e-12)


def test_numbers_that_are_read_of_little_or_for_a_sum_are_computed_again() -> None:
    f, args = hyad.grad(RECORDED.format("4"), wrt=(0, 1)), (np.linspace(0.3, 1.0, 4), 0.7, 3)
    assert workspace(f, args, steps=100) <= 400 + 16  # the states, and no number beside
    f = hyad.grad(SUMMED, wrt=(0, 1))
    assert workspace(f, args, n=10, steps=1000) <= 500
    assert hyad.check_grad(SUMMED, args)


STATES = "(let [s (scan (fn [a e] (map (fn [x] (sin (+ x e))) a)) {} w)] {})"
READ = "(build {} (fn [k] (get s {})))"


@pytest.mark.parametrize(
    "text, narrower",
    [
        (STATES.format("v", READ.format("(len w)", "k k")), True),
        (STATES.format("v", READ.format("(- (len w) 1)", "(+ k 1) k")), False),  # the first has no row before it
        (STATES.format("v", READ.format("(- (len w) 1)", "k (+ k 1)")), False),  # the last has none after it
        (STATES.format("v", READ.format("(len w)", "k 2")), False),  # known at run time only
        (STATES.format("[1.0 2.0 3.0]", READ.format("(len w)", "k 2")), True),
        (STATES.format("[1.0 2.0 3.0]", READ.format("(len w)", "k 2")).replace(" 3.0]", " 3.0 4.0 5.0 6.0]")
         .replace("(get s k 2)", "(* (get s k 1) (get s k 3))"), True),  # of four rows
        (STATES.format("v", READ.format("(len w)", "k 2")).replace("(get s k 2)", "(* (get s k k) (get s k (+ k 1)))")
         .replace("v w)", "(concat v [1.0]) w)"), True),  # of two
        (STATES.format("[1.0 2.0 3.0]", "(* (get s 1 0) (get s 2 2))"), False),  # all there are
        # one of nine, far from the number of the iteration
        (STATES.format("[1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0]", "(* (get s 0 8) (get s 2 8))"), True),
        # two rows
        (STATES.format("v", f"(+ (sum {READ.format('(len w)', 'k k')}) (sum {READ.format('2', 'k 0')}))"), False),
        (f"(let [s (build (len w) (fn [k] v))] {READ.format('(len w)', 'k k')})", False),  # made before the loop
        ("(let [s (build (len w) (fn [i] (let [t (scan (fn [a e] (map cos a)) v w)] #(t (get t 0 1)))))]"
         " (build (len w) (fn [k] (* (get s k 1) (get (get s k 0) 2 2)))))", False),
    ],
)  # fmt: skip
def test_rows_that_every_iteration_has(text: str, narrower: bool) -> None:
    """On programs as they are read, so that nothing else has made them smaller before."""
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w] {text})", namespace={})
    program = f.program(f.specs())
    made = narrow(program)
    check(made)
    assert (made is not program) == narrower
    for n in (3, 5):
        args = np.linspace(0.1, 1.0, n), np.linspace(-1.0, 2.0, n)
        assert np.array_equal(python_callable(made)(*args), python_callable(program)(*args))


def test_what_a_build_gives_is_not_remembered_again() -> None:
    """The gates of a network: each is stacked once, for its own derivative and for that of the next operation."""
    text = """(fn [#^ (Vec m) w #^ (Vec m) h #^ Int t]
      (sum (ifold (fn [h k] (let [g (map (fn [a b] (sigmoid (* a b))) w h)]
                              (map (fn [a b] (* a (exp b))) g h))) h t)))"""
    sizes = {"m": 100, "t": 1000}
    assert workspace(hyad.grad(text, wrt=(0, 1)), (W[0], H[0], 3), **sizes) <= (3 * 1000 + 6) * 100
    assert hyad.check_grad(text, (W[0], H[0], 3))


#: Each number of the product takes a loop to compute; nothing in it is dear.
PRODUCTS = """(fn [#^ (Mat m m) w #^ (Vec m) h #^ Int t]
  (sum (ifold (fn [h k] (map (fn [a] (/ a (+ 1.0 (* a a)))) (@ w h))) h t)))"""


def test_what_is_dear_is_remembered_and_what_is_cheap_computed_again() -> None:
    """By its work for each number: a product of a matrix is, the quotient of it is not."""
    f = hyad.grad(PRODUCTS, wrt=(0, 1))
    args, sizes = (np.eye(30) / 2, np.ones(30), 20), {"m": 30, "t": 1000}
    with_it, without = (hyad.cost(f, args=args, without=off).columns["grad"].work for off in ((), "remembering"))
    assert with_it < 0.85 * without
    least = workspace(f, args, without="remembering", **sizes)
    assert 1000 * 30 < least < workspace(f, args, **sizes) <= 2 * least
    said = hyad.explain(f, args=args).fired()["remembering"]
    assert "(@ w h)" in [span.text for span in said]
    plain = hyad.compile(f, args=args, without="remembering", target="python")(*args)
    for got, wanted in zip(hyad.compile(f, args=args, target="python")(*args), plain):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_the_exponentials_of_rows_are_computed_once() -> None:
    """They take no more room than the rows that are made of them; where those are numbers, they are computed again."""
    rows = "(map (fn [v] (let [top (fold max (get v 0) v) e (map (fn [a] (exp (- a top))) v)] (map (fn [a] {}) e))) x)"
    parts = rows.format("(/ a (sum e))")
    f = hyad.grad(f"(fn [#^ (Mat n m) x #^ (Mat n m) w] (sum (* w (square {parts}))))", wrt="x")
    args = H, W
    assert hyad.compile(f, args=args).source.count("exp(") == 1
    again = hyad.compile(f, args=args, without="remembering")
    np.testing.assert_allclose(hyad.compile(f)(*args), again(*args), rtol=1e-13, atol=1e-16)
    assert hyad.check_grad(f"(fn [#^ (Mat n m) x #^ (Mat n m) w] (sum (* w (square {parts}))))", args)
    sums = "(map (fn [v] (square (sum (map (fn [a] (exp (* a (sum v)))) v)))) x)"
    g = hyad.grad(f"(fn [#^ (Mat n m) x] (prod {sums}))")
    assert workspace(g, (H,), without="keep-calls", n=1000, m=1000) < 10_000
    assert workspace(g, (H,), n=1000, m=1000) < 1.01e6  # which keeps as many as the argument has elements


@pytest.mark.parametrize("step", ["(* 1.1 (exp (- s)))", "(sin (sin s))"])
def test_costly_values_are_computed_once(step: str) -> None:
    f = hyad.grad(f"(fn [s #^ Int t] (ifold (fn [s k] {step}) s t))")
    back, again = ("few-inputs",), ("few-inputs", "remembering")
    counts = [hyad.cost(f, args=(0.3, 100), without=off).columns["grad"].transcendental for off in (back, again)]
    assert counts[0] < counts[1] and "remembering" in hyad.explain(f, args=(0.3, 100), without=back).fired()
    made, plain = (hyad.compile(f, args=(0.3, 100), without=off)(0.3, 100) for off in (back, again))
    assert made == pytest.approx(plain, rel=1e-13)


#: The course of a number along each row, from one element to the next.
COURSES = """(fn [#^ (Vec m) v #^ (Mat n m) x]
  (sum (fold (fn [v row] (scan (fn [s i] {step}) 0.0 (arange (len v)))) v x)))"""


@pytest.mark.parametrize(
    "step, kept",
    [
        ("(max (- s (get v i)) (* (get row i) (get v i)))", 2),  # the rows, and the course of each
        ("(+ s (max (get row i) (get v i)))", 1),  # a sum, of which differentiation does not ask how far it is
    ],
)
def test_numbers_that_wait_for_one_another_are_computed_once(step: str, kept: int) -> None:
    """Cheap as each is: it is read back in less than the time of waiting."""
    text = COURSES.replace("{step}", step)
    f, args = hyad.grad(text, wrt=(0, 1)), (W[0], H)
    assert workspace(f, args, n=1000, m=100) // 100_000 == kept
    assert workspace(f, args, without="remembering", n=1000, m=100) // 100_000 == 1
    assert hyad.check_grad(text, args, wrt=(0, 1))
    plain = hyad.compile(f, args=args, without="remembering", target="python")(*args)
    for got, wanted in zip(hyad.compile(f, args=args, target="python")(*args), plain):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


SWING = """(defmodel swing [#^ (Vec n) x #^ (Vec n) v]
  (let [pull (fn [x] (map (fn [a] (fold (fn [s b] (+ s (/ 1.0 (+ 1.0 (square (- a b)))))) 0.0 x)) x))]
    (sum (fst (ifold
      (fn [state t] (let [#(x v) state  x (+ x (* 0.1 v))  v (+ v (* 0.1 (pull x)))] #((+ x (* 0.1 v)) v)))
      #(x v) 10)))))"""


def test_states_are_remembered_in_one_order() -> None:
    """Whatever the addresses of the variables: the C of a model is the same in each process."""
    texts, kept = set(), []
    for k in range(8):
        kept.append([object() for _ in range(97 * k)])
        kept.append(hyad.grad(hyad.model(SWING), wrt=(0, 1)))
        texts.add(print_c(kept[-1].optimised(kept[-1].specs())).source)
    assert len(texts) == 1


#: Branches that end in a costly function: of a number, of elements, in loops that carry something, within each other.
ENDS = {
    "elu": ("(fn [#^ (Vec n) v] (sum (square (map (fn [z] (if (> z 0) (+ 1 z) (exp z))) v))))", "exp", 1),
    "of a number": ("(fn [#^ Real z] (square (if (> z 0) (+ 1 z) (exp z))))", "exp", 1),
    "features": (
        """(fn [#^ (Mat n n) v] (let [k (map (fn [r] (map (fn [z] (if (> z 0) (+ 1 z) (exp z))) r)) (@ v v))]
             (sum (square (@ k (transpose k))))))""",
        "exp",
        1,
    ),
    "two arms": ("(fn [#^ (Vec n) v] (sum (square (map (fn [z] (if (> z 0) (tanh z) (tanh (* 3 z)))) v))))", "tanh", 2),
    "nested": (
        "(fn [#^ (Vec n) v] (sum (square (map (fn [z] (if (> z 1) z (if (> z 0) (* z z) (exp z)))) v))))",
        "exp",
        1,
    ),
    "carried": ("(fn [#^ (Vec n) v] (fold (fn [s z] (if (> z s) (* s z) (tanh (- z s)))) 0.3 v))", "tanh", 2),
    "also read": ("(fn [#^ (Vec n) v] (sum (map (fn [z] (let [e (if (> z 0) z (exp z))] (* e e z))) v)))", "exp", 1),
    "not in": (
        "(fn [#^ (Vec n) v] (fold (fn [s z] (if (> z s) (/ (exp (* s z)) (+ 4.0 s)) (* 0.5 s))) 0.3 v))",
        "exp",
        1,
    ),
    "log": ("(fn [#^ (Vec n) v] (sum (square (map (fn [z] (if (> z 0) (log z) z)) v))))", "log", 1),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", ENDS)
def test_what_a_branch_ends_in_is_computed_once(name: str) -> None:
    """The backward code of the branch reads what it has given."""
    text, function, times = ENDS[name]
    f = hyad.model(text)
    g = hyad.grad(f)
    calls = [x for x in all_binds(g.optimised(g.specs()).body) if getattr(x.op, "name", None) == function]
    assert len(calls) <= times
    v = np.random.default_rng(0).normal(size=(5, 5))
    v = {"features": v, "of a number": float(v[0, 0])}.get(name, v[0])
    for operator in (hyad.grad, hyad.hessian) if name != "features" else (hyad.grad,):
        with switched_off(("remembering",)):
            wanted = hyad.compile(operator(hyad.model(text)), args=(v,))(v)
        np.testing.assert_allclose(hyad.compile(operator(f), args=(v,))(v), wanted, rtol=1e-12, atol=1e-14)


#: Forward rates, of which each step moves those that are still to come: fewer from step to step, at last none.
RATES = """(fn [#^ (Vec n) rates #^ (Vec n) vol #^ (Vec steps) z]
  (let [l (copy rates)]
    (for [t (range steps)]
      (let [v (ref 0.0)]
        (for [i (range (+ t 1) n)]
          (set! v (+ (deref v) (/ (* (get vol (- i t 1)) (get l i)) (+ 1.0 (get l i)))))
          (set-at! l i (* (get l i) (exp (* (get vol (- i t 1)) (+ (deref v) (get z t)))))))))
    (prod l)))"""


def test_loops_that_become_shorter_and_then_empty_are_not_run_again() -> None:
    """Their values are remembered in rows as long as the first; no exponential is computed twice."""
    f = hyad.grad(RATES, wrt=("rates", "vol"))
    rng = np.random.default_rng(3)
    draws = [
        (rng.uniform(0.1, 0.3, n), rng.uniform(0.1, 0.5, n), rng.normal(size=m)) for n in range(7) for m in (0, 3, 9)
    ]
    assert hyad.compile(f, args=draws[-1]).source.count("exp(") == 1
    assert workspace(f, draws[-1], n=1000, steps=100) // 100_000 <= 4
    c, again = (hyad.compile(f, args=draws[-1], target=t, without=w) for t, w in (("c", ()), ("python", "remembering")))
    for args in draws:
        for got, wanted in zip(c(*args), again(*args)):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)
        assert not args[0].size or hyad.check_grad(RATES, args, wrt=("rates", "vol"))


#: Steps with a sparse matrix, its rows compressed: nobody knows how long its rows are before they are read.
SPARSE = """(fn [#^ (Arr Int r) start #^ (Arr Int z) column #^ (Vec z) value #^ (Vec n) x #^ Int steps]
  (let [times (fn [x]
                (build (- r 1)
                  (fn [i]
                    (let [s (ref 0.0)]
                      (for [k (range (get start i) (get start (+ i 1)))]
                        (set! s (+ (deref s) (* (get value k) (get x (get column k))))))
                      (deref s)))))]
    (sum (square (ifold (fn [x t] (let [y (times x)] (/ y (dot y y)))) x steps)))))"""


def test_a_product_with_rows_of_any_length_is_remembered() -> None:
    """Its numbers take a loop each; the terms of these are read again."""
    f = hyad.grad(SPARSE, wrt=("value", "x"))
    start, column = np.array([0, 2, 2, 5, 6]), np.array([0, 3, 1, 2, 0, 3])
    args = start, column, np.linspace(0.5, 1.5, 6), np.linspace(1.0, 2.0, 4), 6
    made = hyad.compile(f, args=args)
    assert workspace(f, args, n=1000, r=1001, z=9000, steps=100) // 100_000 == 2
    assert workspace(f, args, without="remembering", n=1000, r=1001, z=9000, steps=100) // 100_000 == 1
    loops = [x.op for x in all_binds(f.optimised(f.specs(args)).body) if type(x.op) is Loop]
    with switched_off(("remembering",)):
        again = [x.op for x in all_binds(f.optimised(f.specs(args)).body) if type(x.op) is Loop]
    assert len(loops) < len(again)
    for got, wanted in zip(made(*args), hyad.compile(f, args=args, without="remembering", target="python")(*args)):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert hyad.check_grad(SPARSE, args, wrt=("value", "x"))


def test_what_a_step_makes_of_two_elements_is_not_remembered() -> None:
    """A matrix of products, of which none takes a loop: two states for each step, and a few matrices."""
    text = """(fn [#^ (Mat n m) u #^ (Mat n m) v #^ Int t]
      (sum (fst (ifold (fn [#(u v) k] (let [w (* u v v)] #((- u w) (+ (np.roll v 1 :axis 0) w)))) #(u v) t))))"""
    assert workspace(hyad.grad(text, wrt=(0, 1)), (H, W, 5), n=1000, m=1000, t=100) // 10**8 == 2


def test_what_tells_its_own_slope_is_read_where_it_is_stored() -> None:
    """A rectified sum of products that is stored anyway: no product is taken again for its sign."""
    f = hyad.model("""(fn [#^ (Mat n n) a #^ (Mat 3 3) w]
      (let [z (build [(- n 2) (- n 2)] (fn [i j] (relu (sum (* w (get a (slice i (+ i 3)) (slice j (+ j 3))))))))]
        (sum (build [(// n 2) (// n 2)] (fn [i j] (square (max (get z i j) (get z (* 2 (// i 2)) j))))))))""")
    g = hyad.grad(f, wrt="w")
    a, w = np.random.default_rng(8).normal(size=(9, 9)), np.random.default_rng(9).normal(size=(3, 3))
    program = g.optimised(g.specs((a, w)))
    assert sum(type(x.op) is Prim and x.op.name == "relu" for x in all_binds(program.body)) == 1
    hyad.check_grad(f, (a, w))


@pytest.mark.parametrize("squash", ["tanh", "sigmoid", "exp"])
def test_states_that_tell_their_own_slopes_are_read_where_they_are(squash: str) -> None:
    """Each step's sums are in no memory but the step's, and the function is called on the way there alone."""
    step = "(build n (fn [i] (ifold (fn [s p] (+ s (* (get w i p) (get v (get at i p))))) 0.0 (get much i))))"
    f = hyad.model(
        f"""(fn [#^ (Mat n m) w #^ (Arr Int n m) at #^ (Arr Int n) much #^ (Vec n) v #^ Int t]
          (sum (square (ifold (fn [v k] ({squash} {step})) v t))))""",
        namespace={},
    )
    rng = np.random.default_rng(3)
    args = (rng.uniform(-0.5, 0.5, (5, 4)), rng.integers(0, 5, (5, 4)), rng.integers(0, 5, 5), rng.uniform(-1, 1, 5), 3)
    gradient = hyad.grad(f, wrt=("w", "v"))
    program = gradient.optimised(gradient.specs(args))
    assert sum(type(x.op) is Prim and x.op.name == squash for x in all_binds(program.body)) == 1
    assert workspace(gradient, args, n=100, t=10) <= 100 * 10 + 3 * 100
    assert hyad.check_grad(f, args, wrt=("w", "v"))
