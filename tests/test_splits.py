"""Loops are taken apart where the branch that their index decides becomes the other one."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import BOOL, INT, REAL, Arr, Bind, Block, Const, If, Loop, Prim, Program, Var, all_binds
from hyad.passes.splits import selections

V = np.linspace(0.5, 2.0, 12)
W = np.linspace(-1.0, 3.0, 12)


def branches(program: Program) -> int:
    """The branches inside loops."""
    loops = [b.op for b in all_binds(program.body) if type(b.op) is Loop]
    return sum(type(b.op) is If for loop in loops for b in loop.body.binds)


def sides(test: str) -> str:
    inner = f"(if {test} (exp (* (get v q) (get v i))) (sqrt (+ 2.0 (get v q) (get w i))))"
    return f"(fn [#^ (Vec n) v #^ (Vec n) w #^ Int k] (build [(len v) (len v)] (fn [q i] {inner})))"


def expected(below: np.ndarray) -> np.ndarray:
    return np.where(below, np.exp(V[:, None] * V), np.sqrt(2.0 + V[:, None] + W))


TESTS = {
    "(< i k)": lambda i, k: i < k,
    "(<= i k)": lambda i, k: i <= k,
    "(> i k)": lambda i, k: i > k,
    "(>= i k)": lambda i, k: i >= k,
    "(< k i)": lambda i, k: k < i,
    "(<= (- k i) 3)": lambda i, k: k - i <= 3,
    "(> (+ k (* 2 3)) (- 10 i))": lambda i, k: k + 6 > 10 - i,
}


@pytest.mark.parametrize("test", TESTS)
def test_a_loop_becomes_two(test: str) -> None:
    """Wherever the bound lies: below the first index, among them, beyond the last."""
    model = hyad.model(sides(test), namespace={})
    made, plain = (hyad.compile(model, args=(V, W, 3), target="python", without=w) for w in ((), "split"))
    assert branches(plain.program) == 1 and branches(made.program) == 0
    for k in (-20, -1, 0, 1, 3, 7, 11, 12, 40):
        np.testing.assert_allclose(made(V, W, k), expected(TESTS[test](np.arange(12), k)), rtol=1e-14)


@pytest.mark.parametrize(
    "test", ["(and (> i q) (< i (- n q 1)))", "(if (> i q) (< i (- n q 1)) False)", "(< q i (- n q 1))"]
)
def test_both_ends_of_a_row(test: str) -> None:
    """A tree of options in rows of one length: what is left of the tree, the tree, what is right of it."""
    model = hyad.model(sides(test), namespace={})
    made, plain = (hyad.compile(model, args=(V, W, 3), target="python", without=w) for w in ((), "split"))
    assert branches(plain.program) > 0 and branches(made.program) == 0
    i, q = np.arange(12), np.arange(12)[:, None]
    np.testing.assert_allclose(made(V, W, 3), expected((i > q) & (i < 11 - q)), rtol=1e-14)


ONCE = {
    "(= i q)": lambda i, q, w: i == q,
    "(!= q i)": lambda i, q, w: i != q,
    "(and (!= i q) (> (get w i) 0.5))": lambda i, q, w: (i != q) & (w > 0.5),
    "(and (> (get v q) 0.6) (= i q))": lambda i, q, w: (i == q) & (V[:, None] > 0.6),
}


@pytest.mark.parametrize("last", ["(= i (- n 1))", "(!= i (- n 1))"])
def test_the_last_step_of_a_recurrence_is_done_by_itself(last: str) -> None:
    """Where there is one. ``test_lines.py``: what differentiation adds may be added in any order after that, too."""
    text = f"""(fn [#^ (Mat l n) v #^ Real r] (build [l n] (fn [q j] (get (ifold
        (fn [s i] (update s (+ i 1) (if {last} (* (get v q i) (get s i)) (/ (get s i) (+ r (get v q i))))))
        (build (+ n 1) (fn [i] r)) n) j))))"""
    model = hyad.model(text, namespace={})
    gradient = hyad.grad(hyad.model(f"(fn [#^ (Mat l n) v #^ Real r] (sum ({text} v r)))", namespace={}))
    for f in (model, gradient):
        made, plain = (hyad.compile(f, "python", without=("eights", "lanes", w)) for w in ("edges", "split"))
        for l, n in ((3, 0), (0, 3), (2, 1), (3, 5), (9, 2)):  # noqa: E741
            args = np.random.default_rng(n).uniform(0.5, 1.5, (l, n)), 0.7
            for one, other in zip(made(*args), plain(*args)):
                np.testing.assert_allclose(one, other, rtol=1e-13)
    assert "split" in {step.name for step in hyad.explain(gradient).steps}


@pytest.mark.parametrize("test", ONCE)
def test_one_index_of_a_loop_is_done_by_itself(test: str) -> None:
    """Between the iterations before it and those after it."""
    model = hyad.model(sides(test), namespace={})
    made, plain = (hyad.compile(model, args=(V, W, 3), target="python", without=w) for w in ((), "split"))
    equal = [
        sum(x.op.name in ("=", "!=") for x in all_binds(f.program.body) if type(x.op) is Prim) for f in (made, plain)
    ]
    assert equal == [0, 1]
    i, q = np.arange(12), np.arange(12)[:, None]
    np.testing.assert_allclose(made(V, W, 3), expected(ONCE[test](i, q, W)), rtol=1e-14)
    for n in (0, 1, 2):
        np.testing.assert_array_equal(made(V[:n], W[:n], 3), plain(V[:n], W[:n], 3))


def test_a_pair_of_one_adds_nothing() -> None:
    """Nor is zero added for it; a sum of the user's own stays in its order."""
    text = "(fn [v] (sum (build [(len v) (len v)] (fn [i j] (if (= i j) 0.0 (/ 1.0 (- (get v i) (get v j))))))))"
    off = ("growing-sums", "jam", "lanes")
    made, plain = (hyad.compile(text, args=(V,), target="python", without=w) for w in (off, "split"))
    (outer,) = [x.op for x in made.program.body.binds if type(x.op) is Loop]
    assert [type(x.op) is Loop for x in outer.body.binds].count(True) == 2
    assert sum(type(x.op) is Prim and x.op.name == "+" and x.vars[0].type == REAL for x in outer.body.binds) <= 1
    assert made(V) == plain(V)


APART = "(if (= i j) 0.0 (/ (* (get w i) (get w j)) (norm [(- (get v i) (get v j)) (- (get w i) (get w j))])))"


def test_members_are_taken_eight_at_once() -> None:
    """Where they can be, the branch is a choice between what both sides give; the value is the same to the last bit."""
    text = f"(fn [#^ (Vec n) v #^ (Vec n) w] (sum (build [(len v) (len v)] (fn [i j] {APART}))))"
    model, v, w = hyad.model(text, namespace={}), np.linspace(0.5, 2.0, 19) ** 2, np.linspace(-1.0, 3.0, 19)
    assert {"lanes", "split"} <= {step.name for step in hyad.explain(model, args=(v, w)).steps}
    made, plain = (hyad.compile(model, args=(v, w), without=without) for without in ((), ("lanes", "split")))
    for n in (0, 1, 2, 7, 8, 9, 16, 19):
        assert made(v[:n], w[:n]) == plain(v[:n], w[:n])
    x = v[:, None] - v, w[:, None] - w
    r = np.where(np.eye(19, dtype=bool), np.inf, np.hypot(*x))
    assert made(v, w) == pytest.approx(np.sum(np.outer(w, w) / r), rel=1e-13)
    gradients = [hyad.compile(hyad.grad(model), args=(v, w), without=without) for without in ((), ("lanes", "split"))]
    for n in (1, 2, 7, 8, 9, 16, 19):
        for got, wanted in zip(*(g(v[:n], w[:n]) for g in gradients)):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("other", ["(get w (- (abs (- i j)) 1))", "(ifold (fn [s k] (+ s (get w k))) 0.0 j)"])
def test_what_is_not_there_for_the_member_itself_is_not_computed(other: str) -> None:
    """Its elements may be out of range, and a loop is not run for nothing."""
    text = f"(fn [#^ (Vec n) v #^ (Vec n) w] (sum (build [(len v) (len v)] (fn [i j] (if (= i j) 0.0 {other})))))"
    f = hyad.compile(hyad.model(text, namespace={}), args=(V, W))
    i, j = np.indices((12, 12))
    one = W[np.abs(i - j) - 1] if "abs" in other else np.concatenate([[0.0], np.cumsum(W)])[j]
    assert f(V, W) == pytest.approx(np.sum(np.where(i == j, 0.0, one)), rel=1e-13)


@pytest.mark.parametrize(
    "name, divisor, fine", [("//", "d", False), ("%", "d", False), ("//", "2", True), ("-", "d", True)]
)
def test_no_integer_is_divided_by_what_a_branch_has_excluded(name: str, divisor: str, fine: bool) -> None:
    """C ends a program that does; of reals both quotients are there."""
    i, j, n, c, d, x, y = (Var(v, t) for v, t in zip("ijncdxy", (INT, INT, INT, BOOL, INT, INT, REAL)))
    by = d if divisor == "d" else Const(2, INT)
    arm = Block((Bind((d,), Prim("-", (i, j))), Bind((x,), Prim(name, (i, by))), Bind((y,), Prim("real", (x,)))), (y,))
    out = Var("r", REAL)
    branch = Bind((out,), If(c, Block((), (Const(0.0, REAL),)), arm))
    made = selections(Block((Bind((c,), Prim("=", (i, j))), branch), (out,)), {i: n, j: n})
    assert (made is not None) == fine
    if made is not None:
        assert [x.op.name for x in made.binds if type(x.op) is Prim] == ["=", "-", name, "real", "select"]


def test_an_element_is_there_for_all_indices() -> None:
    """Of an axis that is as long as the loop over it, or at a number below its length."""
    i, j, n, m, c, x = (Var(v, t) for v, t in zip("ijnmcx", (INT, INT, INT, INT, BOOL, REAL)))
    v, zero, out = Var("v", Arr(REAL, (n, Const(2, INT)))), Const(0.0, REAL), Var("r", REAL)
    for subscripts, counts, fine in (
        ((i, Const(1, INT)), (n, n), True),
        ((j, Const(0, INT)), (m, n), True),
        ((i, Const(1, INT)), (m, n), False),
        ((i, Const(2, INT)), (n, n), False),
        ((i, Const(-1, INT)), (n, n), False),
    ):
        arm = Block((Bind((x,), Prim("get", (v, *subscripts))),), (x,))
        branch = Bind((out,), If(c, Block((), (zero,)), arm))
        made = selections(Block((Bind((c,), Prim("=", (i, j))), branch), (out,)), dict(zip((i, j), counts)))
        assert (made is not None) == fine


def test_a_bound_among_conditions() -> None:
    """Beyond it none of the others is asked."""
    model = hyad.model(sides("(and (< i k) (> (get w i) 0.5))"), namespace={})
    made, plain = (hyad.compile(model, args=(V, W, 3), target="python", without=w) for w in ((), "split"))
    assert "split" in [step.name for step in hyad.explain(model, args=(V, W, 3)).steps]
    bounds = [
        sum(type(x.op) is Prim and x.op.name == "<" and x.op.args[0].type == INT for x in all_binds(f.program.body))
        for f in (made, plain)
    ]
    assert bounds == [0, 1]
    for k in (-1, 0, 3, 12, 40):
        np.testing.assert_array_equal(made(V, W, k), plain(V, W, k))


def test_sums_and_what_is_stacked_go_on() -> None:
    """Both halves see what came before, and give what comes after."""
    text = """(fn [v k] (map (fn [z] (let [#(s a) (ifold
      (fn [state i] (let [#(s a) state x (if (< i k) (* (get v i) (sin s)) (+ s (sin (get v i))))]
        #((* 0.5 (+ s x)) (update a i x)))) #(z (copy v)) (len v))] (+ s (sum a)))) v))"""
    model = hyad.model(text, namespace={})
    made, plain = (hyad.compile(model, args=(V, 3), target="python", without=w) for w in ((), "split"))
    assert branches(made.program) < branches(plain.program)
    for k in (-1, 0, 5, 12, 13):
        np.testing.assert_array_equal(made(V, k), plain(V, k))


@pytest.mark.parametrize("k", [0, 3, 12])
def test_gradients(k: int) -> None:
    text = "(fn [v w k] (let [f " + sides("(< i k)") + "] (sum (square (f v w k)))))"
    gradient = hyad.grad(hyad.model(text, namespace={}), wrt=(0, 1))
    made, plain = (hyad.compile(gradient, args=(V, W, k), target="python", without=w) for w in ((), "split"))
    for got, wanted in zip(made(V, W, k), plain(V, W, k)):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_rows_are_stacked_as_numbers_are() -> None:
    text = "(fn [#^ (Mat n n) m #^ Int k] (build [(len m) (len m)] (fn [q i] (if (< i (- k q)) (get m i) (get m q)))))"
    model, m = hyad.model(text, namespace={}), np.outer(V, W)
    made, plain = (hyad.compile(model, args=(m, 3), target="python", without=w) for w in ((), "split"))
    assert branches(made.program) < branches(plain.program)
    for k in (-1, 0, 5, 12, 30):
        np.testing.assert_array_equal(made(m, k), plain(m, k))


def test_an_outermost_loop_stays() -> None:
    """Its iterations may run on several threads."""
    model = hyad.model("(fn [v k] (build (len v) (fn [i] (if (< i k) (exp (get v i)) (sin (get v i))))))", namespace={})
    assert branches(hyad.compile(model, args=(V, 3), target="python").program) == 1


@pytest.mark.parametrize(
    "text",
    [
        "(> (get v i) 1.0)",  # not of the index
        "(< (% i 3) k)",  # not once
        "(< (* 2 i) k)",  # not by one
        "(= i k)",  # which may be no index of the loop
        "(!= i (+ q 1))",
        "(> k 3)",  # not in the loop
    ],
)
def test_what_stays(text: str) -> None:
    model = hyad.model(sides(text), namespace={})
    assert "split" not in [step.name for step in hyad.explain(model, args=(V, W, 3)).steps]


@pytest.mark.parametrize("arm", ["(ifold (fn [s c] (sin (+ s (get w i)))) 0.0 k)", "(get w (+ i k))"])
def test_what_is_more_than_single_operations_stays(arm: str) -> None:
    """A loop in it, or a check."""
    text = f"(build [(len v) (len v)] (fn [q i] (if (< i k) {arm} (exp (* (get v q) (get v i))))))"
    model = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w #^ Int k] {text})", namespace={})
    assert "split" not in [step.name for step in hyad.explain(model, args=(V, W, 3)).steps]


def test_only_what_stands_twice_has_to_be_short() -> None:
    """However long a branch is, it is in one of the two loops alone."""
    long = "(+ " + " ".join(f"(* (get v i) (sin (+ {k}.5 (get w q))))" for k in range(40)) + ")"
    f = f"(fn [#^ (Vec n) v #^ (Vec n) w #^ Int k] (build [(len v) (len v)] (fn [q i] (if (< i k) {long} 0.0))))"
    model = hyad.model(f, namespace={})
    made, plain = (hyad.compile(model, args=(V, W, 3), target="python", without=w) for w in ((), "split"))
    assert branches(plain.program) == 1 and branches(made.program) == 0
    np.testing.assert_array_equal(made(V, W, 5), plain(V, W, 5))


#: Loops that change a row of D and read one element of it in all iterations, which is one of those that change.
SPOTS = {
    "shortest paths": """(for [k (range n) i (range n) j (range n)]
        (set-at! D i j (min (get D i j) (+ (get D i k) (get D k j)))))""",
    "elimination": """(for [k (range n) i (range n) j (range n)]
        (set-at! D i j (- (get D i j) (* 0.1 (get D i k) (get D k j)))))""",
    "a vector": "(for [k (range n) j (range n)] (set-at! w j (+ (get w j) (* (get w k) (get D k j)))))",
    "added to": "(for [k (range n) j (range n)] (set-at! w j (- (get w j) (* 0.5 (get w k)))))",
    "from the second on": """(for [k (range 1 n) i (range n) j (range 1 n)]
        (set-at! D i j (- (get D i j) (* 0.1 (get D i k)))))""",
    "backwards": """(for [k (range n) i (range n) j (range n)]
        (set-at! D i (- n 1 j) (* 0.5 (+ (get D i (- n 1 j)) (get D i k)))))""",
    "two of them": """(for [k (range n) i (range n) j (range n)]
        (set-at! D i j (+ (get D i j) (* 0.1 (get D i k) (get D i i)))))""",
}  # fmt: skip


@pytest.mark.parametrize("name", SPOTS)
def test_what_a_row_is_read_at_is_read_before_it_changes_and_after(name: str) -> None:
    """To the last bit, and no iteration but one reads what another has changed."""
    text = f"(fn [#^ (Mat n n) A] (let [D (copy A) w (copy (get A 0))] {SPOTS[name]} (+ (sum (* D A)) (sum w))))"
    model = hyad.model(text, namespace={})
    made, plain = (hyad.compile(model, "python", without=w) for w in ((), "split"))
    compiled, gradient = hyad.compile(model), hyad.compile(hyad.grad(model))
    for n in (1, 2, 3, 8, 9, 17):
        a, along = np.random.default_rng(n).normal(size=(2, n, n)) / n
        assert made(a) == plain(a)
        assert compiled(a) == pytest.approx(made(a), rel=1e-12, abs=1e-14)
        up, down = (compiled(a + e * along) for e in (1e-6, -1e-6))
        assert np.sum(gradient(a) * along) == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)
    assert ("split" in {step.name for step in hyad.explain(model).steps}) == (name != "backwards")
