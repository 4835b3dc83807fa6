"""Costly functions of an integer that loops make of their indices are computed once for each of its values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Loop, Program, all_binds
from hyad.passes import tables

U, V = 1.01, np.linspace(0.5, 2.0, 12)


def deepest(program: Program, name: str) -> int:
    """How many loops stand around the innermost call of a primitive."""
    found = [0]

    def walk(block, depth: int) -> None:
        for bind in block.binds:
            if getattr(bind.op, "name", None) == name:
                found.append(depth)
            if type(bind.op) is Loop:
                walk(bind.op.body, depth + 1)
            elif hasattr(bind.op, "then"):
                walk(bind.op.then, depth)
                walk(bind.op.orelse, depth)

    walk(program.body, 0)
    return max(found)


#: A model of u and v, the costly function in it, and what it is in NumPy.
TABLES = {
    "powers": (
        "(build [40 50] (fn [t i] (* (get v 0) (** u (real (- (* 2 i) t))))))", "**",
        lambda u, v: v[0] * u ** (2.0 * np.arange(50) - np.arange(40)[:, None]),
    ),
    "in a branch": (
        "(build [40 50] (fn [t i] (if (<= i t) (exp (* u (real (+ i t)))) 0.0)))", "exp",
        lambda u, v: np.tril(np.exp(u * (np.arange(50) + np.arange(40)[:, None]))),
    ),
    "from a start that is a size": (
        "(build [40 50] (fn [t i] (* (get v 0) (exp (/ (real (- i (+ t (len v)))) u)))))", "exp",
        lambda u, v: v[0] * np.exp((np.arange(50) - np.arange(40)[:, None] - 12) / u),
    ),
    "of sizes known at run time": (
        "(build [(len v) (len v)] (fn [t i] (cos (* u (real (- i t))))))", "cos",
        lambda u, v: np.cos(u * (np.arange(12) - np.arange(12)[:, None])),
    ),
    "two of one integer": (
        "(build [40 50] (fn [t i] (let [x (* u (real (- i t)))] (+ (* (get v 1) (sin x)) (* (get v 2) (cos x))))))",
        "sin",
        lambda u, v: v[1] * np.sin(u * (np.arange(50) - np.arange(40)[:, None]))
        + v[2] * np.cos(u * (np.arange(50) - np.arange(40)[:, None])),
    ),
    "of the inner index alone": (
        "(build [40 50] (fn [t i] (* (get v 0) (** u i) (exp (* u (real (- i t)))))))", "exp",
        lambda u, v: v[0] * u ** np.arange(50.0) * np.exp(u * (np.arange(50) - np.arange(40)[:, None])),
    ),
    "in a triangle": (
        "(ifold (fn [s t] (ifold (fn [s i] (+ s (exp (/ (real (- (* 2 i) (- 39 t))) u)))) s (- 40 t))) 0.0 40)", "exp",
        lambda u, v: sum(np.exp((2.0 * i - (39 - t)) / u) for t in range(40) for i in range(40 - t)),
    ),
    "in a triangle of a size": (
        "(let [n (* 3 (len v))]"
        " (ifold (fn [s t] (ifold (fn [s i] (+ s (exp (/ (real (- i t)) u)))) s (+ t 1))) 0.0 n))",
        "exp", lambda u, v: sum(np.exp((i - t) / u) for t in range(36) for i in range(t + 1)),
    ),
    "in a pyramid": (
        "(ifold (fn [s t] (ifold (fn [s i] (ifold (fn [s j] (+ s (exp (/ (real (- j i)) u)))) s (- t i))) s (+ t 1)))"
        " 0.0 40)",
        "exp", lambda u, v: sum(np.exp((j - i) / u) for t in range(40) for i in range(t + 1) for j in range(t - i)),
    ),
    "in a loop that changes nothing of it": (
        "(map (fn [x] (ifold (fn [s t] (ifold (fn [s i] (+ s (* x (exp (* u (real (- i t))))))) s 50)) 0.0 40)) v)",
        "exp",
        lambda u, v: v * np.exp(u * (np.arange(50) - np.arange(40)[:, None])).sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_first(name: str) -> None:
    text, costly, expected = TABLES[name]
    model = hyad.model(f"(fn [u v] {text})", namespace={})
    program = model.optimised(model.specs((U, V)))
    assert deepest(program, costly) == 1
    made, plain = (hyad.compile(model, args=(U, V), target="python", without=w)(U, V) for w in ((), "tabulate"))
    np.testing.assert_array_equal(made, plain)
    np.testing.assert_allclose(made, expected(U, V), rtol=1e-13, atol=1e-15)


def test_its_derivatives_have_tables_too() -> None:
    model = hyad.model("(fn [u v] (sum (map (fn [x] (sum (build [40 50] (fn [t i] (** (* x u) (real (- i t))))))) v)))")
    gradient = hyad.grad(model, wrt=(0, 1))
    made, plain = (hyad.compile(gradient, args=(U, V), target="python", without=w)(U, V) for w in ((), "tabulate"))
    assert deepest(gradient.optimised(gradient.specs((U, V))), "**") <= 2
    for x, y in zip(made, plain):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_iterations_or_none(n: int) -> None:
    model = hyad.model("(fn [#^ Real u #^ (Vec n) v] (build [(len v) (len v)] (fn [t i] (exp (* u (real (- i t)))))))")
    made = hyad.compile(model)
    np.testing.assert_allclose(made(U, V[:n]), np.exp(U * (np.arange(n) - np.arange(n)[:, None])), rtol=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "(build [40 50] (fn [t i] (exp (* u (real (+ i (* 50 t)))))))",  # as many values as iterations
        "(build [40 50] (fn [t i] (exp (* u (real (- i (* 50 t)))))))",  # so too
        "(build 40 (fn [t] (ifold (fn [s i] (+ s (exp (* u (real (- i t)))))) 0.0 (* t t))))",  # how many nobody knows
        "(build [40 50] (fn [t i] (exp (* u (real (* i t))))))",  # not affine
        "(build [40 50] (fn [t i] (exp (* u (real (- i t)) (real (+ i t))))))",  # of two integers
        "(build [40 50] (fn [t i] (exp (* (get v t) (real (- i t))))))",  # not of the integer alone
        "(build [40 50] (fn [t i] (* 0.5 (real (- i t)))))",  # cheap
    ],
)
def test_what_is_computed_where_it_stands(text: str) -> None:
    model = hyad.model(f"(fn [u v] {text})", namespace={})
    explained = hyad.explain(model, args=(U, V))
    assert "tabulate" not in [step.name for step in explained.steps]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_triangle_of_few_iterations_or_none(n: int) -> None:
    """An American put on a tree, by the price at each node: its table is as wide as the tree."""
    model = hyad.model("""(fn [u v]
      (let [n (len v)  w (copy v)]
        (for [k (range n)  j (range (- n 1 k))]
          (set-at! w j (max (get w (+ j 1)) (exp (* u (real (- (* 2 j) (- n 1 k))))))))
        w))""")
    w = V[:n].copy()
    for k in range(n):
        for j in range(n - 1 - k):
            w[j] = max(w[j + 1], np.exp(U * (2 * j - (n - 1 - k))))
    made = hyad.compile(model, args=(U, V[:n]))
    np.testing.assert_allclose(made(U, V[:n]), w, rtol=1e-15)
    assert "integer-tables" in [step.name for step in hyad.explain(model, args=(U, V[:n])).steps]


def test_no_loop_is_longer() -> None:
    model = hyad.model("(fn [u v] (build [40 50] (fn [t i] (** u (real (- (* 2 i) t))))))", namespace={})
    loops = [b.op for b in all_binds(model.optimised(model.specs((U, V))).body) if type(b.op) is Loop]
    assert max(loop.count.value for loop in loops) == 138  # from -39 to 98


def test_a_branch_leaves_fewer_integers() -> None:
    """What its condition says of two indices bounds a sum of them."""
    for test, count in (("(<= (+ i t) 39)", 118), ("(> (+ i t) 39)", 136), ("(< i 20)", 78), ("(< (* 3 i) t)", 39)):
        text = f"(build [40 50] (fn [t i] (if {test} (** u (real (- (* 2 i) t))) (get v 0))))"
        model = hyad.model(f"(fn [u v] {text})", namespace={})
        made, plain = (hyad.compile(model, args=(U, V), target="python", without=w) for w in ((), "tabulate"))
        loops = [b.op.count.value for b in all_binds(made.program.body) if type(b.op) is Loop]
        assert count in loops, test
        np.testing.assert_allclose(made(U, V), plain(U, V), rtol=1e-14)


AT_RISK = """(fn [#^ (Vec n) v #^ (Vec n) e]
  (sum (build n (fn [i] (* (get e i) (log (sum (exp (slice v i n)))))))))"""


@pytest.mark.parametrize("n", [0, 1, 2, 12])
def test_elements_of_an_array_have_tables(n: int) -> None:
    """Cox's likelihood: who is at risk at a time is in all sums before it. Each exponential is computed once, in the
    gradient as well."""
    v, e = V[:n], np.cos(V[:n])
    f = hyad.model(AT_RISK, namespace={})
    sums = np.cumsum(np.exp(v)[::-1])[::-1]
    np.testing.assert_allclose(f(v, e), (e * np.log(sums)).sum(), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(hyad.grad(f, wrt="v")(v, e), np.exp(v) * np.cumsum(e / sums), rtol=1e-13)
    for g in (f, hyad.grad(f, wrt="v")):
        assert deepest(g.optimised(g.specs((v, e))), "exp") == 1


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("(build [n n] (fn [t i] (if (< (+ t i) n) (get v (+ t i)) (exp (get v (- (+ t i) n))))))", True),
        ("(build [n n] (fn [t i] (if (< (+ (* 2 t) i) n) (exp (get v (+ (* 2 t) i))) 0.0)))", False),  # not as it shows
        ("(build [n n] (fn [t i] (exp (get v (// (+ t i) 2)))))", False),
        ("(build [n n] (fn [t i] (if (< (+ t i) n) 0.0 (if (= t i) (exp (get v (- (+ t i) n))) 1.0))))", False),  # few
    ],
)
def test_no_element_is_read_that_may_not_be_there(text: str, table: bool) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={})
    made, plain = (hyad.compile(f, without=w) for w in ((), "tabulate"))
    for n in (0, 1, 2, 7):
        np.testing.assert_array_equal(made(V[:n]), plain(V[:n]))
    names = [step.name for step in hyad.explain(f, args=(V,)).steps]
    assert bool({"tabulate", "integer-tables"} & {*names}) == table, names


PUT = """(fn [#^ Real u #^ (Vec n) v]
  (let [n (len v)]
    (fst (ifold
      (fn [#(total w) k]
        (let [i (- n 1 k)
              next (build (+ n 1) (fn [j] (if (<= j i) (max (get w (+ j 1)) (* (get w j) (** u (- i j)))) 0.0)))]
          #((+ total (get next 0)) next)))
      #(0.0 (build (+ n 1) (fn [j] (real j)))) n))))"""


def put(u: float, n: int) -> float:
    """``PUT`` as it is defined."""
    total, w = 0.0, np.arange(n + 1.0)
    for k in range(n):
        i = n - 1 - k
        w = np.array([max(w[j + 1], w[j] * u ** (i - j)) if j <= i else 0.0 for j in range(n + 1)])
        total += w[0]
    return total


@pytest.mark.parametrize("n", [0, 1, 2, 12])
def test_a_power_and_its_partial_are_in_tables(n: int) -> None:
    """The exponent of the partial is one less, or 1 where the base and the exponent are 0: a choice by the integer."""
    model = hyad.model(PUT, namespace={})
    gradient = hyad.grad(model, wrt="u")
    for f in (model, gradient):
        assert deepest(hyad.compile(f, args=(U, V[:n]), without="power-tables").program, "**") == 1
        assert deepest(hyad.compile(f, args=(U, V[:n]), without=("tabulate", "power-tables")).program, "**") == 2
    for u in (U, 2.5):
        np.testing.assert_allclose(memoised.compile(model)(u, V[:n]), put(u, n), rtol=1e-14)
        slope = (put(u + 1e-6, n) - put(u - 1e-6, n)) / 2e-6
        np.testing.assert_allclose(memoised.compile(gradient)(u, V[:n]), slope, rtol=1e-6, atol=1e-8)


def test_a_table_has_what_a_triangle_of_a_size_comes_to() -> None:
    """A row is no longer than the loop around says, and the conditions of branches hold."""
    n = len(V)
    for rows, guard, low, high in (
        ("(ifold {} s (+ t 1))", "True", 1 - n, 0),
        ("(ifold {} s (- n t))", "True", 1 - n, n - 1),
        ("(ifold {} s (+ n 5))", "(<= i t)", 1 - n, 0),
    ):
        step = f"(fn [s i] (if {guard} (+ s (exp (* u (real (- i t))))) s))"
        text = f"(fn [u v] (let [n (len v)] (ifold (fn [s t] {rows.format(step)}) 0.0 n)))"
        model = hyad.model(text, namespace={})
        made = hyad.compile(model, args=(U, V))
        source = made.cfunction.source
        known = {"n": n, "hyad_imax": max}
        for name, value in re.findall(r"const long long (\w+) = ([^;]+);", source.partition(" q++")[0]):
            known[name] = eval(value.split("  //")[0], known)
        (count,) = re.findall(r"q < (.+?); q\+\+", source)
        assert eval(count, known) == high - low + 1, guard
        plain = hyad.compile(model, args=(U, V), without="tabulate")
        for k in (0, 1, 2, n):
            np.testing.assert_allclose(made(U, V[:k]), plain(U, V[:k]), rtol=1e-15)


#: Sums of a row that a triangle comes to, and whether they are in a table.
ROWS = {
    "of a triangle": ("(ifold (fn [s j] (+ s (exp (dot (get m (+ i j)) u)))) 0.0 (- n i))", True),
    "by themselves": ("(ifold (fn [s j] (+ s (* (get v i) (dot (get m (+ i j)) u)))) 0.0 (- n i))", True),
    "with a number of the row": (
        """(ifold (fn [s j] (+ s (exp (ifold (fn [t k] (+ t (* (get m (+ i j) k) (get v (+ i j))))) 0.1 2))))
             0.0 (- n i))""", True,
    ),
    "of the rows before": (
        "(ifold (fn [s j] (+ s (if (>= i j) (exp (dot (get m (- i j)) u)) 0.0))) 0.0 n)", False,
    ),
    "of two rows": ("(ifold (fn [s j] (+ s (exp (dot (get m (+ i j)) (get m i))))) 0.0 (- n i))", False),
    "as long as an index": (
        "(ifold (fn [s j] (+ s (exp (ifold (fn [t k] (+ t (get m (+ i j) 0))) 0.0 i)))) 0.0 (- n i))", False,
    ),
    "of every other row": ("(ifold (fn [s j] (+ s (exp (dot (get m (% (+ i i j) n)) u)))) 0.0 (- n i))", False),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_sums_of_rows_have_tables(name: str) -> None:
    """Cox's likelihood with the product of a row and the coefficients where it is wanted."""
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Mat n d) m #^ (Vec d) u] (build n (fn [i] {ROWS[name][0]})))", namespace={})
    rng = np.random.default_rng(6)
    made = [hyad.compile(f, t, args=(V, np.ones((12, 3)), np.ones(3))) for t in ("c", "python")]
    plain = [hyad.compile(f, t, args=(V, np.ones((12, 3)), np.ones(3)), without="tabulate") for t in ("c", "python")]
    for n in (0, 1, 2, 9):
        for d in (2, 5):
            args = rng.normal(size=n), rng.normal(size=(n, d)), rng.normal(size=d)
            for g, h in zip(made, plain):
                np.testing.assert_allclose(g(*args), h(*args), rtol=1e-13)
            np.testing.assert_array_equal(made[1](*args), plain[1](*args))
    names = [step.name for step in hyad.explain(f, args=(V, np.ones((12, 3)), np.ones(3))).steps]
    assert bool({"tabulate", "integer-tables"} & {*names}) == ROWS[name][1], names


def test_a_row_that_is_read_further_than_it_is_long_has_no_table() -> None:
    """What a check in the loop says is not known before it."""
    text = """(fn [#^ (Vec n) v #^ (Mat n d) m #^ Int k] (let [n (len v)]
      (build n (fn [i]
        (ifold (fn [s j] (+ s (exp (ifold (fn [t c] (+ t (get m (+ i j) c))) 0.0 k)))) 0.0 (- n i))))))"""
    f = hyad.model(text, namespace={})
    v, m = np.ones(4), np.cos(np.arange(12.0)).reshape(4, 3)
    for target in ("c", "python"):
        made, plain = (hyad.compile(f, target, args=(v, m, 2), without=w) for w in ((), "tabulate"))
        for k in (-1, 0, 2, 3):
            np.testing.assert_allclose(made(v, m, k), plain(v, m, k), rtol=1e-14)
        with pytest.raises(hyad.HyadError):
            made(v, m, 4)
        assert made(v[:0], m[:0], 3).shape == (0,)


@pytest.mark.parametrize(
    ("exponent", "table"),
    [
        ("(- (* 2.0 (real j)) (real k))", True),
        ("(- (real j) (real (- n k)))", True),
        ("(* 3.0 (- (real (+ j k)) 1.0))", True),
        ("(- (* 0.5 (real j)) (real k))", False),  # no integer
        ("(- (real j) (* x (real k)))", False),
        ("(* (real j) (real k))", False),  # not of one integer
        ("(- (* 2097152.0 (real j)) (real k))", False),  # which reals may be too short for
        ("(- (real j) (real (- m k)))", False),  # as they may be for m
    ],
)
def test_real_numbers_that_are_integers(exponent: str, table: bool) -> None:
    """What loops of a nest go up to is known for a number that a real is exact for."""
    f = hyad.model(
        f"""(fn [#^ Real x #^ Int n #^ Int m]
          (ifold (fn [s k] (ifold (fn [s j] (+ s (sin (** x {exponent})))) s n)) 0.0 n))""",
        namespace={},
    )
    fired = {step.name for step in hyad.explain(f).steps}
    assert bool({"tabulate", "integer-tables"} & fired) == table
    made, apart = hyad.compile(f), hyad.compile(f, without="tabulate")
    for n in (0, 1, 2, 9):
        np.testing.assert_array_equal(made(1.1, n, 3), apart(1.1, n, 3))
    assert hyad.check_grad(hyad.model("(fn [x] (f x 4 3))", namespace={"f": f}), (1.1,))


def test_of_elements_at_one_index_no_table_is_made_before_differentiation() -> None:
    """Its adjoint would be a table as well; of elements at two indices, and of integers, it is the smaller one."""
    f = hyad.model(
        """(fn [#^ (Vec p) k #^ (Vec n) z #^ Real v]
          (sum (map (fn [k] (sum (map (fn [e] (max 0.0 (- (exp (* v e)) k))) z))) k)))""",
        namespace={},
    )
    args = (np.ones(2), np.ones(3), 0.5)
    assert "integer-tables" not in hyad.explain(hyad.grad(f, wrt=("k", "v")), args=args).fired()
    assert "integer-tables" not in {step.name for step in hyad.explain(f, args=args).steps}


def test_each_number_is_asked_once_whether_it_is_an_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each way in which it is made of another one."""
    asked = []
    combined = tables.combined

    def counted(*args: Any) -> Any:
        asked.append(1)
        assert len(asked) < 2000
        return combined(*args)

    monkeypatch.setattr(tables, "combined", counted)
    chain = " ".join(f"a{k + 1} (+ (* a{k} a{k}) (* 0.5 a{k}))" for k in range(12))
    text = f"(let [a0 (+ (get v i) (get w j)) {chain}] (exp (- a12)))"
    f = hyad.model(
        f"""(fn [#^ (Vec n) v #^ (Vec m) w]
          (ifold (fn [s i] (+ s (ifold (fn [s j] (+ s {text})) 0.0 m))) 0.0 n))""",
        namespace={},
    )
    args = np.linspace(0.1, 0.3, 3), np.linspace(0.2, 0.4, 2)
    assert hyad.compile(f)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
    assert asked
