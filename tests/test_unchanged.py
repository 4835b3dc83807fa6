"""Tables that are filled in place: rows that are built, and what is read of an array as it was before a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import memoised
import oracle
from hyad.codegen.c import print_c
from hyad.core import INT, Arr, Block, Const, Loop, Prim, Var, all_binds, integer
from hyad.passes.optimise import PIPELINE, named
from hyad.passes.unchanged import Unchanged
from hyad.program.builder import Builder

#: A table whose rows are filled by a loop: the element that is stored, how often, and whether the rows are built.
TABLE = """(fn [#^ (Mat k k) a #^ (Mat n k) x]
  (let [n (len x)  k (len a)  best (zeros [n k])]
    (ifold (fn [_ j] (set-at! best 0 j (get x 0 j)) 0) 0 k)
    (ifold (fn [_ t] (ifold (fn [_ j] STORE 0) 0 COUNT)) 0 (- n 1))
    (sum (sin (get best (- n 1))))))"""
NEXT = "(+ (get x t j) (max (build k (fn [i] (+ (get best t i) (get a i j))))))"
TABLES = {
    "from the row before": (f"(set-at! best (+ t 1) j {NEXT})", "k", True),
    "from another one": (f"(set-at! best (+ t 1) j {NEXT.replace('best t', 'best 0')})", "k", False),
    "from the row itself": ("(set-at! best (+ t 1) j (+ (get x t j) (get best (+ t 1) (- k 1 j))))", "k", False),
    "from the end": (f"(set-at! best (+ t 1) (- k 1 j) {NEXT})", "k", False),
    "not to the end": (f"(set-at! best (+ t 1) j {NEXT})", "(- k 1)", False),
    "not from the beginning": (f"(set-at! best (+ t 1) (+ j 1) {NEXT})", "(- k 1)", False),
    "a column": (f"(set-at! best (min j (- n 1)) (min t (- k 1)) {NEXT})", "k", False),
    "where a condition holds": (f"(if (> (get x t j) 0.0) (set-at! best (+ t 1) j {NEXT}) None)", "k", False),
}


def by_hand(name: str, a: np.ndarray, x: np.ndarray) -> float:
    n, k = x.shape
    best = np.zeros((n, k))
    best[0] = x[0]
    for t in range(n - 1):
        for j in range(k - name.startswith("not")):
            if name == "from the row itself":
                best[t + 1, j] = x[t, j] + best[t + 1, k - 1 - j]
                continue
            value = x[t, j] + max(best[0 if name == "from another one" else t] + a[:, j])
            if name == "a column":
                best[min(j, n - 1), min(t, k - 1)] = value
            elif name == "from the end":
                best[t + 1, k - 1 - j] = value
            elif name != "where a condition holds" or x[t, j] > 0:
                best[t + 1, j + (name == "not from the beginning")] = value
    return float(np.sum(np.sin(best[n - 1])))


def table(name: str) -> Any:
    store, count, _ = TABLES[name]
    return hyad.model(TABLE.replace("STORE", store).replace("COUNT", count), namespace={})


def fired(f: Any, args: tuple, without: Any = ()) -> set[str]:
    return {step.name for step in hyad.explain(f, args=args, without=without).steps}


@pytest.mark.some(10)
@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("name", TABLES)
def test_tables_filled_row_by_row(name: str, target: str) -> None:
    f, rng = table(name), np.random.default_rng(3)
    made, gradient = (
        hyad.compile(g, args=(np.ones((4, 4)), np.ones((6, 4))), target=target) for g in (f, hyad.grad(f))
    )
    for n, k in ((6, 4), (2, 1), (5, 20)):
        a, x, da, dx = (rng.normal(size=s) for s in ((k, k), (n, k), (k, k), (n, k)))
        assert made(a, x) == pytest.approx(by_hand(name, a, x), rel=1e-12)
        ga, gx = gradient(a, x)
        h = 1e-6
        up, down = (by_hand(name, a + s * da, x + s * dx) for s in (h, -h))
        assert np.sum(ga * da) + np.sum(gx * dx) == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-8)
        assert oracle.mismatch(hyad.run(hyad.grad(f), a, x), (ga, gx), 1e-12) is None


def carried(f: Any, rank: int) -> int:
    """How often a loop carries an array."""
    loops = [x.op for x in all_binds(f.program.body) if type(x.op) is Loop]
    return sum(isinstance(a.type, Arr) and a.type.rank == rank for op in loops for a in op.accs)


@pytest.mark.parametrize("name", TABLES)
def test_which_rows_are_built(name: str) -> None:
    """The rows, and that first row which all of these tables have: what is left is carried by the loop over time."""
    f, args = table(name), (np.ones((4, 4)), np.ones((6, 4)))
    made, plain = (hyad.compile(f, args=args, without=w) for w in ((), "filled"))
    assert carried(plain, 2) == 3
    assert carried(made, 2) == (1 if TABLES[name][2] else 2)


def test_an_array_whose_elements_are_stored_one_by_one_is_built() -> None:
    """Beside a number that goes along, and another array that is not stored from its beginning."""
    f = hyad.model(
        """(fn [#^ (Vec n) x]
             (let [n (len x)  a (zeros n)  b (zeros n)
                   s (ifold (fn [s i]
                       (set-at! a i (* s (sin (get x i))))
                       (set-at! b (- n 1 i) (+ s (get x i)))
                       (+ s (get x i))) 1.0 n)]
               (+ s (dot a (exp b)))))""",
        namespace={},
    )
    x = np.random.default_rng(5).normal(size=7)
    s = np.concatenate([[1.0], 1.0 + np.cumsum(x)])
    want = s[-1] + np.sum(s[:-1] * np.sin(x) * np.exp(s[1:][::-1]))
    assert hyad.compile(f)(x) == pytest.approx(want, rel=1e-13)
    assert hyad.check_grad(f, (x,))
    made, plain = (hyad.compile(f, args=(x,), without=["scalar-replacement", *w]) for w in ((), ("filled",)))
    assert carried(made, 1) == carried(plain, 1) - 1


def work(f: Any, n: int, k: int) -> int:
    """How many numbers it needs room for."""
    line = next(line for line in f.cfunction.source.splitlines() if "room for" in line)
    return eval(line.split("room for")[1].split("reals")[0], {"n": n, "k": k})


def test_what_a_gradient_remembers_of_a_table() -> None:
    """A row for each step, whether it fills whole rows or parts of them; not the table for each."""
    for name in ("from the row before", "not from the beginning", "not to the end"):
        g = hyad.grad(table(name))
        assert work(hyad.compile(g), 1000, 10) < 40 * 1000
        if not TABLES[name][2]:
            assert work(hyad.compile(g, without=["remembering", "unchanged"]), 1000, 10) > 1000 * 1000


MEMORY = """(fn [#^ (Mat k d) w #^ Int t]
  (let [g (ones [(+ t 1) k])]
    (for [u (range 1 (+ t 1)) j (range k)]
      (set-at! g u j (sum (build COUNT (fn [a] (tanh (* (get w j (% a d)) (get g ROW j))))))))
    (sum (get g -1))))"""


@pytest.mark.some(6)
@pytest.mark.parametrize(
    "count, row, before",
    [("(min d u)", "(- u (+ a 1))", True), ("u", "a", True), ("(min d u)", "(- u a)", False), ("(+ u 1)", "a", False)],
)
def test_rows_of_a_recurrence_with_memory(count: str, row: str, before: bool) -> None:
    """Rows before the one that is filled: no copy of the table is remembered for each of them."""
    f = hyad.model(MEMORY.replace("COUNT", count).replace("ROW", row), namespace={})
    g = hyad.grad(f, wrt="w")
    printed = print_c(g.optimised(g.specs()))
    room = eval(printed.workspace.replace("(t > 0 ? t : 0)", "t").replace("?", "and").replace(":", "or"),
                {"k": 3, "t": 1000, "d": 2})  # fmt: skip
    assert (room < 20_000) is before
    for k, d, t in ((1, 1, 1), (2, 3, 4), (3, 2, 0)):
        w = np.random.default_rng(t).normal(size=(k, d))
        assert hyad.compile(f, "python", args=(w, t))(w, t) == pytest.approx(hyad.run(f, w, t), rel=1e-14)
        assert t == 0 or hyad.check_grad(f, (w, t), wrt="w")
        np.testing.assert_allclose(g(w, t), hyad.compile(g, args=(w, t), without="filled")(w, t), rtol=1e-12)


def test_a_row_that_may_be_the_one_that_is_filled() -> None:
    """Which row is read a number says: the same loop reads what it has stored, where it is that."""
    f = hyad.model(
        """(fn [#^ (Vec k) x #^ Int s]
             (let [k (len x)  a (build [2 k] (fn [i j] (get x j)))]
               (ifold (fn [_ j] (set-at! a 1 j (+ (* 2.0 (get x j)) (get a s 0))) 0) 0 k)
               (sum (square (get a 1)))))""",
        namespace={},
    )
    x = np.array([1.0, 2.0, 4.0])
    assert "filled" not in fired(f, (x, 1))
    assert hyad.compile(f)(x, 0) == pytest.approx(np.sum((2 * x + 1) ** 2))
    assert hyad.compile(f)(x, 1) == pytest.approx(3.0**2 + (4 + 3) ** 2 + (8 + 3) ** 2)
    assert hyad.check_grad(f, (x, 1), wrt="x")


JORDAN = """(fn [#^ (Mat n n) a]
  (let [m (copy a)]
    (for [k (range n)]
      (let [p (get m k k)]
        (for [j (range n)] (set-at! m k j (/ (get m k j) p)))
        (for [i (range n)]
          (when CONDITION
            (let [f (get m i k)]
              (for [j (range n)] (set-at! m i j (- (get m i j) (* f (get m k j))))))))))
    (sum (* m m a))))"""


@pytest.mark.some(10)
@pytest.mark.parametrize(
    "condition, apart", [("(!= i k)", True), ("(and (> f0 -9.0) (not (= k i)))", True), ("(!= i 0)", False)]
)
def test_rows_that_a_condition_tells_apart(condition: str, apart: bool) -> None:
    """Each element of a row is made of itself and of another row: it is built, where it lies, and its derivative
    remembers rows and not matrices."""
    text = JORDAN.replace("CONDITION", condition.replace("f0", "(get m k k)"))
    f = hyad.model(text, namespace={})
    g = hyad.grad(f)
    assert "n*n*n*n" not in hyad.compile(g).source
    if apart:
        assert "memcpy(m +" not in hyad.compile(f).source
    for n in (1, 2, 3, 5):
        a = np.random.default_rng(n).normal(size=(n, n)) + 4 * np.eye(n)
        assert hyad.check_grad(f, [a])
        np.testing.assert_allclose(g(a), hyad.run(g, a), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(memoised.compile(g, without=["filled"])(a), g(a), rtol=1e-12, atol=1e-13)


#: Elimination in place, nothing declared: which rows are changed, what is done to a row, and whether the row that is
#: read is one that the condition spares.
SPARED = {
    "elements": ("(!= i k)", "(for [j (range n)] (set-at! m i j (- (get m i j) (* f (get m k j)))))", True),
    "some of them": ("(not (= k i))", "(for [j (range k n)] (set-at! m i j (- (get m i j) (* f (get m k j)))))", True),
    "whole rows": ("(!= i k)", "(set-at! m i (- (get m i) (* f (get m k))))", True),
    "another row": ("(!= i 0)", "(for [j (range n)] (set-at! m i j (- (get m i j) (* f (get m k j)))))", False),
    "a row outside": (
        "(!= i (+ k 1))",
        "(for [j (range n)] (set-at! m i j (- (get m i j) (* f (if (< k (- n 1)) (get m (+ k 1) j) 0.0)))))",
        False,
    ),
}


@pytest.mark.some(10)
@pytest.mark.parametrize("name", SPARED)
def test_a_row_that_a_condition_spares_is_remembered_once(name: str) -> None:
    """Not in each iteration, nor the matrix; where the condition spares another row, it is as it was."""
    condition, step, spared = SPARED[name]
    text = f"""(fn [a b] (let [n (len b)  m (copy a)  y (copy b)]
      (for [k (range n)]
        (let [p (get m k k)]
          (for [j (range n)] (set-at! m k j (/ (get m k j) p)))
          (set-at! y k (/ (get y k) p))
          (for [i (range n)]
            (when {condition}
              (let [f (* 0.1 (get m i k))]
                {step}
                (set-at! y i (- (get y i) (* f (get y k)))))))))
      (+ (sum (* y y)) (sum (* m a)))))"""
    f = hyad.model(text, namespace={})
    g = hyad.grad(f, wrt=("a", "b"))
    for n in (1, 2, 3, 6):
        rng = np.random.default_rng(n)
        args = rng.normal(size=(n, n)) + 4 * np.eye(n), rng.normal(size=n)
        made, plain = (memoised.compile(g, args=args, without=w) for w in ((), "spared"))
        assert (made.cfunction.source != plain.cfunction.source) == spared
        assert hyad.check_grad(f, args, wrt=("a", "b"))
        for one, other, run in zip(made(*args), plain(*args), hyad.run(g, *args)):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(one, run, rtol=1e-11, atol=1e-12)
    if spared:
        room = next(line for line in made.cfunction.source.splitlines() if "room for" in line)
        sizes = room.split("room for")[1].split("reals")[0]
        numbers = dict.fromkeys("nmkl", 1000)
        assert eval(sizes, {v: numbers.get(v[0], 1000) for v in ("n", "m", "k", "l", "k1", "m1")}) < 10 * 1000**2


def test_a_row_scattered_from_itself() -> None:
    """A row that is made by changing zeros anywhere is not built where the row lies that it is made of."""
    f = hyad.model(
        """(fn [#^ (Mat n n) a #^ (Arr Int n) order]
             (ifold (fn [x i]
                 (update x i
                   (ifold (fn [y k] (update y (max 0 (min (get order k) (- n 1))) (get x i k))) (zeros n) n)))
               a n))""",
        namespace={},
    )
    for n in (1, 2, 5):
        rng = np.random.default_rng(n)
        a, order = rng.normal(size=(n, n)), rng.permutation(n)
        np.testing.assert_array_equal(f(a, order)[:, order], a)


#: What the iterations of two loops set elements of a table to, and whether the gradient then clears their adjoints.
SET = {
    "row by row": ("[i (range n)] [j (range m)]", "(set-at! a i j (sin (get x i j)))", False),
    "column by column": ("[j (range m)] [i (range n)]", "(set-at! a i j (sin (get x i j)))", False),
    "a part": ("[i (range 1 n)] [j (range (- m 2))]", "(set-at! a i (+ j 2) (sin (get x i j)))", False),
    "from the last": (
        "[i (range n)] [j (range (- m 2))]",
        "(set-at! a (- n 1 i) (- m 1 j) (* (get x i j) (get x i (+ j 1))))",
        False,
    ),
    "under a condition": (
        "[i (range n)] [j (range (- m 1))]",
        "(when (> (get x i j) 0.0) (set-at! a i j (exp j)))",
        False,
    ),
    "of what was there": ("[i (range n)] [j (range (- m 1))]", "(set-at! a i j (* (get a i j) (get x i j)))", False),
    "twice": (
        "[i (range n)] [j (range (- m 1))]",
        "(when (> (get x i j) 0.0) (set-at! a i j (sin (get x i j)))) (set-at! a i j (* (get a i j) (get x i j)))",
        False,
    ),
    "again and again": ("[i (range n)] [j (range (- m 1))]", "(set-at! a (// (+ i j) 2) 3 (sin (get x i j)))", True),
    "along a diagonal": ("[i (range (// n 2))] [j (range (// n 2))]", "(set-at! a (+ i j) 3 (sin (get x i j)))", True),
    "of the one before": ("[i (range 1 n)] [j (range (- m 1))]", "(set-at! a i j (sin (get a (- i 1) j)))", False),
    "once for all": ("[i (range n)] [j (range m)]", "(set-at! a i 3 (sin (get x i j)))", False),
}


def set_in_place(name: str) -> Any:
    outer, inner = SET[name][0].split("] ")
    return hyad.model(
        f"""(fn [#^ (Mat n m) x]
              (let [a (build [n m] (fn [i j] (* 0.5 i j)))]
                (for {outer}] (for {inner} {SET[name][1]}))
                (+ (sum (build [(- n 1) m] (fn [i j] (* (get a i j) (get a (+ i 1) j))))) (sum (get a 0)))))""",
        namespace={},
    )


@pytest.mark.some(4)
@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("name", SET)
def test_the_gradient_of_elements_that_are_set(name: str, target: str) -> None:
    f, x = set_in_place(name), np.random.default_rng(7).normal(size=(6, 7))
    assert hyad.check_grad(f, (x,))
    g = hyad.compile(hyad.grad(f), target=target)
    assert oracle.mismatch(hyad.run(hyad.grad(f), x), g(x), 1e-12) is None


@pytest.mark.parametrize("name", SET)
def test_adjoints_that_nobody_reads_are_not_cleared(name: str) -> None:
    """Those of elements that are set once each."""
    found = list(all_binds(hyad.compile(hyad.grad(set_in_place(name))).program.body))
    zeros = {x.vars[0] for x in found if type(x.op) is Prim and x.op.name == "zeros"}
    stored = [x.op.args[-1] for x in found if type(x.op) is Prim and x.op.name == "update"]
    assert any(a in zeros or type(a) is Const and a.value == 0 for a in stored) == SET[name][2]


def test_a_table_that_is_filled_in_place_is_as_one_that_is_built() -> None:
    """The gradient has no array but its result, and remembers nothing."""
    f = hyad.model(
        """(fn [#^ (Mat n m) x]
             (let [a (build [n m] (fn [i j] 0.0))]
               (for [i (range n)] (for [j (range m)] (set-at! a i j (max 0.0 (sin (get x i j))))))
               (sum (build [n m] (fn [i j] (* (get a i j) (get a i j)))))))""",
        namespace={},
    )
    g = hyad.compile(hyad.grad(f))
    assert "double *restrict work" not in g.cfunction.source
    assert carried(g, 1) == carried(g, 2) == 0
    x = np.random.default_rng(8).normal(size=(5, 3))
    assert g(x) == pytest.approx(2 * np.maximum(np.sin(x), 0) * np.cos(x), rel=1e-13)


def test_what_is_read_after_it_is_set() -> None:
    """Nobody wants the table in the end, but each iteration reads what it has set before, or what another has set."""
    f = hyad.model(
        """(fn [#^ (Mat n m) x #^ Int k]
             (let [a (build [n m] (fn [i j] (* 0.5 i j)))  s (ref 0.0)  t (ref 0.0)]
               (for [i (range n)]
                 (for [j (range m)]
                   (for [l (range k)] (set-at! a i j (+ (get x i j) (* 2.0 (get a i j)))))
                   (when (> (get a i j) 0.5) (set-at! a i j (exp (- (get a i j)))))
                   (set! s (+ (deref s) (sin (get a i j))))))
               (for [j (range m)]
                 (for [i (range n)]
                   (set! t (+ (deref t) (exp (get a i j))))
                   (set-at! a i 0 (get x i j))))
               (+ (deref s) (deref t))))""",
        namespace={},
    )

    def by_hand(x: np.ndarray, k: int) -> float:
        a = 0.5 * np.outer(np.arange(len(x)), np.arange(x.shape[1]))
        for _ in range(k):
            a = x + 2 * a
        a = np.where(a > 0.5, np.exp(-a), a)
        first = np.sum(np.sin(a))
        t = 0.0
        for j in range(x.shape[1]):
            t += np.sum(np.exp(a[:, j]))
            a[:, 0] = x[:, j]
        return first + t

    x = 0.3 * np.random.default_rng(9).normal(size=(4, 3))
    for k in (0, 1, 3):
        assert hyad.compile(f)(x, k) == pytest.approx(by_hand(x, k), rel=1e-13)
        assert hyad.check_grad(f, (x, k))


def test_what_is_read_after_it_is_set_and_a_loop_has_changed_something_else() -> None:
    f = hyad.model(
        """(fn [#^ (Vec n) x]
             (let [a (build [2 n] (fn [i j] (* 0.5 j)))  s (ref 0.0)]
               (for [j (range n)]
                 (set-at! a 1 j (get x j))
                 (for [l (range n)] (set-at! a 0 l (get x l)))
                 (set! s (+ (deref s) (square (get a 1 j)))))
               (deref s)))""",
        namespace={},
    )
    x = np.array([0.1, 0.2, -0.3])
    others = [named(p) for p in PIPELINE if named(p) not in ("unchanged", "dead-code")]
    for without in ((), others):
        assert hyad.compile(f, without=without)(x) == pytest.approx(np.sum(x * x), rel=1e-14)
    assert hyad.compile(hyad.grad(f))(x) == pytest.approx(2 * x, rel=1e-14)


def test_negative_zeros_stay() -> None:
    made = hyad.compile(hyad.model("(fn [#^ (Vec n) x] (build [n n] (fn [i j] -0.0)))", namespace={}))
    assert np.signbit(made(np.ones(3))).all()


def test_zeros_are_cleared_at_once() -> None:
    """A table of zeros, however many loops it is written with; not rows of zeros, copied."""
    f = hyad.model(
        """(fn [#^ (Vec n) x #^ Int k]
             (let [a (build [k n n] (fn [l i j] 0.0))]
               (for [l (range k)] (for [i (range n)] (for [j (range i n)] (set-at! a l i j (exp (get x j))))))
               (map (fn [m] (sum (map sum m))) a)))""",
        namespace={},
    )
    made = hyad.compile(f)
    x = np.array([0.1, 0.2, -0.3])
    assert made(x, 2) == pytest.approx([np.sum(np.exp(x) * np.arange(1, 4))] * 2, rel=1e-14)
    assert made.source.count("memset(") == 1 and "memcpy(" not in made.source
    assert "memset(a, 0, (size_t)(k*n*n)*sizeof(double))" in made.source


def test_rows_over_zeros_are_built_though_they_are_read() -> None:
    """Of zeros nothing is left; a state that is not zero before stays one array, which changes in place."""
    loops = "(for [i (range n) j (range k) l (range m)] (set-at! c i j (+ (get c i j) (* (get a i l) (get b l j)))))"
    head = "(fn [#^ (Mat n m) a #^ (Mat m k) b #^ (Mat n k) z]"
    over, on = (hyad.model(f"{head} (let [c {c}] {loops} c))", namespace={}) for c in ("(zeros [n k])", "(copy z)"))
    for n, m, k in ((1, 1, 1), (3, 0, 2), (0, 3, 2), (5, 7, 9)):
        rng = np.random.default_rng(n)
        a, b, z = rng.normal(size=(n, m)), rng.normal(size=(m, k)), rng.normal(size=(n, k))
        np.testing.assert_allclose(memoised.compile(over)(a, b, z), a @ b, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(memoised.compile(on)(a, b, z), z + a @ b, rtol=1e-12, atol=1e-14)
    assert memoised.compile(over).cfunction.workspace is None
    assert not outermost(over).accs
    assert outermost(on).accs


def outermost(f: hyad.Model) -> Loop:
    return next(x.op for x in f.optimised(f.specs(None)).body.binds if type(x.op) is Loop)


def test_rows_and_elements_are_compared_by_the_subscripts_that_both_have() -> None:
    """A row that is read, and an element of a row that is changed: of the same one, or of the next."""
    f = hyad.model("(fn [x] (* x x))", namespace={})
    look = Unchanged(Builder(), f.program(f.specs((1.0,))), {})
    c = Var("c", INT)
    loop = Loop(integer(3), c, (), (), Block((), ()))
    row, other = (integer(0), integer(5)), (integer(0), integer(6))
    assert not look.aside(row, (*row, c), [], [loop], {c})
    assert look.aside(row, (*other, c), [], [loop], {c})
    assert not look.aside((*row, c), row, [loop], [], {c})
