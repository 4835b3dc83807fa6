"""The optimiser on whole derivatives: what loops are left, and that every pass keeps the value."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import INT, LEAF, ONE, REAL, Arr, Bind, Block, Const, If, Loop, Node, Prim, Program, Var, all_binds
from hyad.model import redefined
from hyad.passes.cancel import cancel
from hyad.passes.fusion import Fuse
from hyad.passes.optimise import PIPELINE, optimise
from hyad.plain_python import python_callable
from hyad.program.builder import Builder
from hyad.program.check import check
from hyad.program.dead import dead_code
from hyad.program.journal import without

ROSENBROCK = """(fn [#^ (Vec n) x]
  (ifold (fn [s i] (+ s (* 100 (** (- (get x (+ i 1)) (** (get x i) 2)) 2)) (** (- 1 (get x i)) 2)))
         0.0 (- (len x) 1)))"""
QUADRATIC = "(fn [#^ (Vec n) x #^ (Mat n n) a] (exp (dot x (map (fn [row] (dot row x)) a))))"
SQUARES = "(fn [#^ (Vec n) x] (map (fn [e] (* e (sin e))) x))"
LOGSUM = "(fn [#^ (Vec n) x] (let [m (fold max (get x 0) x)] (+ m (log (fold + 0.0 (map (fn [e] (exp (- e m))) x))))))"
PRODUCT = "(fn [#^ (Vec n) x] (fold * 1.0 x))"
MIXTURE = """(fn [#^ (Vec n) x #^ (Mat n n) a #^ (Vec n) b]
  (let [s (dot b x)]
    (+ (fold (fn [t e] (+ t (* e (log (/ e (- 8.0 s)))))) 0.0 x)
       (* (/ (dot x (map (fn [row] (dot row x)) a)) s) (log (+ 1.0 s))))))"""
CUBES = """(fn [#^ (Vec n) x #^ (Vec n) y]
  (* (exp (fold + 0.0 (map (fn [e u] (* (- e u) (- e u) (- e u))) x y))) (dot x y)))"""
CHOSEN = "(fn [#^ (Vec n) x] (let [s (fold (fn [s e] (+ s (if (> e 1.0) (* e e e) (sin e)))) 0.0 x)] (* s s)))"
MATVEC = "(fn [#^ (Mat m n) a #^ (Vec n) x] (map (fn [row] (dot row x)) a))"
QUADRATIC_FORM = "(fn [#^ (Mat n n) a #^ (Vec n) x] (fold + 0.0 (map (fn [row e] (* e (dot row x))) a x)))"

DERIVATIVES = [
    (hyad.hessian, ROSENBROCK, None),
    (hyad.hessian, QUADRATIC, "x"),
    (hyad.jacobian, SQUARES, None),
    (hyad.value_and_grad, LOGSUM, None),
    (hyad.grad, PRODUCT, None),
    (hyad.hessian, MIXTURE, "x"),
    (hyad.hessian, CUBES, "x"),
    (hyad.hessian, CUBES, ("x", "y")),
    (hyad.hessian, CHOSEN, None),
    (hyad.hessian, LOGSUM, None),
    (hyad.grad, QUADRATIC_FORM, None),
]


def program(operator, text: str, wrt=None) -> Program:
    return operator(hyad.model(text), *(() if wrt is None else (wrt,))).program()


def loops(p: Program, depth: int = 0) -> list[int]:
    """The depth of every loop."""
    found = []

    def walk(block, depth):
        for bind in block.binds:
            if isinstance(bind.op, Loop):
                found.append(depth)
                walk(bind.op.body, depth + 1)
            elif isinstance(bind.op, If):
                walk(bind.op.then, depth)
                walk(bind.op.orelse, depth)

    walk(p.body, 0)
    return found


def arguments(p: Program, n: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.uniform(0.5, 1.5, (n,) * v.type.rank) for v in p.params]


def flat(value) -> list:
    return [x for part in value for x in flat(part)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("operator, text, wrt", DERIVATIVES)
def test_every_pass_keeps_the_value(operator, text, wrt) -> None:
    p = program(operator, text, wrt)
    sizes = [arguments(p, n) for n in (1, 2, 5, 9)]
    run = python_callable(p)
    before = [run(*args) for args in sizes]

    def watch(pass_, made) -> None:
        run = python_callable(made)
        for args, values in zip(sizes, before):
            for x, y in zip(flat(values), flat(run(*args))):
                np.testing.assert_allclose(y, x, rtol=1e-11, atol=1e-13, err_msg=pass_.__name__)

    assert optimise(p, watch=watch) is not p


def test_dead_code_goes_after_each_pass() -> None:
    """No pass sees what nothing reads: whatever one leaves unread is gone before the next."""
    steps = []
    p = program(hyad.hessian, ROSENBROCK)
    optimise(p, watch=lambda pass_, made: steps.append((pass_.__name__, made)))
    before_others = [made for (_, made), (name, _) in zip(steps, steps[1:]) if name != "dead_code"]
    assert len(steps) > 5 and any(name == "dead_code" for name, _ in steps)
    assert PIPELINE.count(dead_code) == 1
    assert all(dead_code(made) is made for made in before_others)


def test_the_hessian_of_a_chain_needs_no_loop_in_its_rows() -> None:
    """One-hot normalisation: row j has contributions at i = j and i = j - 1 only."""
    assert loops(optimise(program(hyad.hessian, ROSENBROCK))) == [0]


def test_the_jacobian_of_a_map_is_one_statement_in_each_row() -> None:
    assert loops(optimise(program(hyad.jacobian, SQUARES))) == [0]


def test_rows_of_a_hessian_share_what_does_not_depend_on_the_row() -> None:
    """Factoring, fission and hoisting: O(n^2) in all, no matrix-vector product in the loop over rows."""
    assert max(loops(optimise(program(hyad.hessian, QUADRATIC, "x")))) == 1


def test_the_rows_of_a_hessian_run_through_no_sum_again() -> None:
    """The tangent of a sum along a unit vector is an element of the sum's gradient: no row accumulates a number, and
    the values are those of the closed form exp(q) (S + S x (S x)^T), S = A + A^T."""
    hessian = hyad.hessian(hyad.model(QUADRATIC), "x")
    rows = [b.op for b in optimise(hessian.program()).body.binds if isinstance(b.op, Loop)][-1]
    sums = [b for b in all_binds(rows.body) if isinstance(b.op, Loop) and any(a.type == REAL for a in b.op.accs)]
    assert not sums
    for n in (1, 2, 6):
        rng = np.random.default_rng(n)
        x, a = rng.uniform(0.1, 0.5, n), rng.uniform(0.1, 0.5, (n, n))
        both = a + a.T
        expected = np.exp(x @ a @ x) * (both + np.outer(both @ x, both @ x))
        np.testing.assert_allclose(hessian(x, a), expected, rtol=1e-12)


def prims(block) -> list[str]:
    return [bind.op.name for bind in all_binds(block) if isinstance(bind.op, Prim)]


def last_loop(p: Program) -> Loop:
    return [bind.op for bind in p.body.binds if isinstance(bind.op, Loop)][-1]


def innermost(loop: Loop) -> Loop:
    inner = [bind.op for bind in loop.body.binds if isinstance(bind.op, Loop)]
    return innermost(inner[-1]) if inner else loop


def test_sums_of_sums_have_no_backward_pass_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a few: their gradients' code would grow with the square of their number, and that of a row does not."""
    v = np.array([0.3, 1.1])

    def chain(n: int) -> hyad.Model:
        text = "s"
        for _ in range(n):
            text = f"(let [s (sum (map (fn [x] (sin (* x s))) v))] {text})"
        return hyad.hessian(hyad.model(f"(fn [#^ (Vec n) v] (let [s 1.0] {text}))", namespace={}))

    fewer, more = (len(list(all_binds(f.program(f.specs((v,))).body))) for f in (chain(50), chain(100)))
    assert fewer < more < 2.2 * fewer
    apart = chain(3)(v)
    monkeypatch.setattr("hyad.differentiate.jacobians.PASSES_APART", 0)
    f = chain(3)
    np.testing.assert_allclose(hyad.compile(f, args=(v,))(v), apart, rtol=1e-12)
    np.testing.assert_allclose(apart, hyad.run(f, v), rtol=1e-12)


def test_an_entry_of_a_hessian_is_a_sum_of_few_products() -> None:
    """The Hessian of a mixture's energy is a diagonal, a multiple of A + A^T, and b u^T + u b^T: three products."""
    rows = last_loop(optimise(program(hyad.hessian, MIXTURE, "x")))
    entry = prims(innermost(rows).body)
    assert entry.count("*") == 3 and entry.count("+") + entry.count("-") == 3
    assert set(entry) <= {"*", "+", "-", "get"}  # no choice by i = j: the diagonal is added to the row
    assert prims(rows.body).count("add-at") == 1


def mixture_hessian(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By hand, with s = b.x, q = x.A x, S = A + A^T and p(s) = log(1 + s) / s."""
    s, q, both, t = b @ x, x @ a @ x, a + a.T, 8.0 - b @ x
    p0, p1 = math.log1p(s) / s, (1 / (1 + s) - math.log1p(s) / s) / s
    p2 = (-1 / (1 + s) ** 2 - 2 * p1) / s
    mixed = np.outer(b, 1 / t + p1 * (both @ x))
    return np.diag(1 / x) + mixed + mixed.T + p0 * both + (x.sum() / t**2 + q * p2) * np.outer(b, b)


@pytest.mark.some(3)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 33])
@pytest.mark.parametrize("fixed", [False, True])
def test_collected_entries_are_those_of_the_closed_form(n: int, fixed: bool) -> None:
    rng = np.random.default_rng(n)
    x, a, b = rng.uniform(0.5, 1.5, n), rng.uniform(-1.0, 1.0, (n, n)), rng.uniform(0.1, 0.6, n) / n
    text = MIXTURE.replace(" n)", f" {n})").replace("Mat n", f"Mat {n}") if fixed else MIXTURE
    found = hyad.hessian(hyad.model(text), "x")(x, a, b)
    expected = mixture_hessian(x, a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())


def test_differences_of_inputs_are_not_multiplied_out() -> None:
    """Where A is near C their difference is exact; multiplied out with the exponential it would lose nine digits."""
    text = """(fn [#^ (Vec n) x #^ (Mat n n) a #^ (Mat n n) c]
      (exp (dot x (map (fn [r q] (fold + 0.0 (map (fn [e g y] (* (- e g) y)) r q x))) a c))))"""
    rng = np.random.default_rng(1)
    n = 6
    x, c = (
        rng.uniform(0.5, 1.0, n),
        np.fromfunction(lambda i, j: 10.0 ** (i - j), (n, n)) * rng.uniform(1.0, 2.0, (n, n)),
    )
    a = c * (1 + 1e-9 * rng.uniform(0.5, 1.0, (n, n)))
    both = (a - c) + (a - c).T
    expected = np.exp(x @ (a - c) @ x) * (both + np.outer(both @ x, both @ x))
    np.testing.assert_allclose(hyad.hessian(hyad.model(text), "x")(x, a, c), expected, rtol=1e-13)


ELEMENTS = [
    "(sin {0})",
    "(exp (* 0.3 {0}))",
    "(/ 1.0 (+ 2.0 (* {0} {0})))",
    "(if (> {0} 1.0) (* {0} {0} 0.5) (sin {0}))",
    "(max {0} 0.9)",
    "(* {0} {1})",
    "(- {0} {1})",
    "(+ {0} (* 0.5 {1}))",
]
SUMS = [  # an expression of the element and of others stands for each {}
    ("(fold + 0.0 (map (fn [e w] {}) x u))", "ew"),
    ("(fold (fn [s e] (+ (* 0.5 s) {})) 0.3 x)", "es"),
    ("(ifold (fn [s i] (let [p (get x i) q (get x (+ i 1))] (+ s {}))) 0.0 (- (len x) 1))", "pq"),
    ("(fold + 0.0 (map (fn [row e] (* e (fold + 0.0 (map (fn [g h] {}) row x)))) a x))", "gh"),
    ("(dot x (map (fn [row] (let [d (dot row x) f (dot row u)] {})) a))", "df"),
]


def expression(r: random.Random, names: str, depth: int) -> str:
    if depth == 0:
        return r.choice(names)
    return r.choice(ELEMENTS).format(expression(r, names, depth - 1), expression(r, names, depth - 1))


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(32))
def test_hessians_of_random_sums_keep_their_values(seed: int) -> None:
    """The optimised program against the one that was derived, evaluated as it is."""
    r = random.Random(seed)
    sums = []
    for _ in range(2):
        text, names = r.choice(SUMS)
        sums.append(text.format(expression(r, names, r.randrange(1, 3))))
    body = f"(let [s {sums[0]} t {sums[1]}] {expression(r, 'st', 2)})"
    size = r.choice(["n", "n", "7"])
    text = f"(fn [#^ (Vec {size}) x #^ (Mat {size} {size}) a #^ (Vec {size}) u] {body})"
    p = program(hyad.hessian, text, "x")
    q = optimise(p)
    for n in (1, 2, 9) if size == "n" else (7,):
        rng = np.random.default_rng(seed)
        args = rng.uniform(0.4, 1.3, n), rng.uniform(-0.5, 0.5, (n, n)), rng.uniform(-1.0, 1.0, n)
        expected = python_callable(p)(*args)
        np.testing.assert_allclose(
            python_callable(q)(*args), expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max(), err_msg=text
        )


def test_a_users_own_products_stay_as_they_are() -> None:
    """Only rows of derivatives are collected: here (u_i - v_j) c + (u_i + v_j) d would have fewer products."""
    text = """(fn [#^ (Vec n) u #^ (Vec n) v c d] (let [n (len u)] (build [n n] (fn [j i]
      (+ (* c (- (get u i) (get v j))) (* d (+ (get u i) (get v j))))))))"""
    p = hyad.model(text).program()
    assert prims(innermost(last_loop(optimise(p))).body) == prims(innermost(last_loop(p)).body)


def test_what_accumulates_equally_accumulates_once() -> None:
    """A x and A^T x serve the value, the gradient and the Hessian: one loop adds rows of A up."""
    p = optimise(program(hyad.hessian, QUADRATIC, "x"))
    assert prims(p.body).count("add-at") == 1


def test_a_copy_of_an_array_is_the_array() -> None:
    p = optimise(hyad.model("(fn [#^ (Vec n) x] (dot x (map (fn [e] e) x)))").program())
    assert loops(p) == [0]
    swapped = hyad.model("(fn [#^ (Vec n) x] (map (fn [e] e) x))")
    x = np.arange(3.0)
    y = swapped(x)
    y[0] = 9.0
    assert x[0] == 0.0  # a result is memory of its own


def test_sums_of_four_rows_run_side_by_side() -> None:
    p = optimise(hyad.model(MATVEC).program())
    together, alone = (bind.op for bind in p.body.binds if isinstance(bind.op, Loop))
    assert [len(innermost(loop).accs) for loop in (together, alone)] == [4, 1]


@pytest.mark.parametrize("text", [MATVEC, QUADRATIC_FORM])
def test_sums_side_by_side_keep_their_order(text: str) -> None:
    """To the last bit: as the same program before that pass."""
    p = hyad.model(text).program()
    for n in range(12):
        rng = np.random.default_rng(n)
        a, x = rng.normal(size=(n, n)), rng.normal(size=n)
        expected = python_callable(p)(a, x)
        assert np.array_equal(python_callable(optimise(p))(a, x), expected)


def test_sums_that_wait_for_one_another_stay_in_line() -> None:
    text = "(fn [#^ (Mat n n) a] (fold (fn [s row] (fold (fn [t e] (+ (* 0.5 t) e)) s row)) 0.0 a))"
    p = optimise(hyad.model(text).program())
    assert loops(p) == [0, 1] and len(last_loop(p).accs) == 1


def test_sparse_rows_go_into_one_matrix_of_zeros() -> None:
    """Each of the three elements that a chain's row adds to is stored, the one in which two sums meet once."""
    p = optimise(program(hyad.hessian, ROSENBROCK))
    outer = prims_of(p.body.binds)
    assert outer.count("zeros") == 1 and "zeros" not in prims(last_loop(p).body)
    assert prims(last_loop(p).body).count("update") == 3 and "add-at" not in prims(last_loop(p).body)


def prims_of(binds) -> list[str]:
    return [bind.op.name for bind in binds if isinstance(bind.op, Prim)]


def test_rows_that_a_loop_fills_are_cleared_one_by_one() -> None:
    text = "(fn [#^ (Vec n) x] (map (fn [e] (ifold (fn [v i] (add-at v (// i 2) e)) (zeros (len x)) (len x))) x))"
    rows = last_loop(optimise(hyad.model(text).program()))
    assert not rows.accs and prims(rows.body).count("add-at") == 1


def test_a_dense_hessian_of_known_size_is_loops_and_a_sparse_one_is_not() -> None:
    dense = MIXTURE.replace(" n)", " 12)").replace("Mat n", "Mat 12")
    sizes = {n: len(hyad.compile(hyad.hessian(hyad.model(dense.replace("12", n)), "x")).source) for n in ("24", "36")}
    assert abs(sizes["24"] - sizes["36"]) < 100
    sparse = ROSENBROCK.replace("(Vec n)", "(Vec 12)")
    assert loops(optimise(program(hyad.hessian, sparse))) == []


def test_rows_of_a_hessian_do_not_repeat_the_loops_of_the_value() -> None:
    """The maximum and the exponentials of a logsumexp are no row's own, though its tangent runs along the maximum's."""
    rows = last_loop(optimise(program(hyad.hessian, LOGSUM)))
    inside = prims(rows.body)
    assert "exp" not in inside and "max" not in inside
    x = np.array([0.3, -1.0, 2.0, 0.5])
    p = np.exp(x) / np.exp(x).sum()
    np.testing.assert_allclose(hyad.hessian(hyad.model(LOGSUM))(x), np.diag(p) - np.outer(p, p), atol=1e-15)


def test_accumulators_that_are_always_equal_are_one() -> None:
    text = """(fn [#^ (Vec n) x] (let [#(a b c) (fold (fn [s e] (let [#(u v w) s]
      #((+ u (* e e)) (+ v (* e e)) (+ w (* e v))))) #(0.0 0.0 0.0) x)] (+ a (* b c))))"""
    p = optimise(hyad.model(text).program())
    assert len(last_loop(p).accs) == 2
    assert hyad.model(text)(np.array([1.0, 2.0])) == 5.0 + 5.0 * 2.0


def test_accumulators_that_start_equal_may_part() -> None:
    text = """(fn [#^ (Vec n) x] (let [#(a b) (fold (fn [s e] (let [#(u v) s]
      #((+ e (* 2.0 v)) (+ e (* 3.0 u))))) #(0.0 0.0) x)] (- a b)))"""
    assert len(last_loop(optimise(hyad.model(text).program())).accs) == 2
    assert hyad.model(text)(np.array([1.0, 1.0])) == 3.0 - 4.0


def test_a_sum_of_negatives_is_one_in_either_order() -> None:
    """-x - y and -y - x are equal to the last bit, zeros included."""
    both = hyad.model("(fn [x y] (* (- (- x) y) (exp (- (- y) x))))")
    assert prims(optimise(both.program()).body).count("-") == 1
    for x, y in [(0.0, 0.0), (0.0, -0.0), (-0.0, -0.0), (1.5, -1.5), (math.inf, 1.0)]:
        u, v = hyad.model("(fn [x y] #((- (- x) y) (- (- y) x)))")(x, y)
        assert u == -x - y and math.copysign(1, u) == math.copysign(1, -x - y) == math.copysign(1, v)


def test_parallel_joints_share_their_column() -> None:
    """The angles of parallel axes add up: every point moves alike, and its negatives are not computed again."""
    text = """(fn [a b] [(- (* (cos a) (cos b)) (* (sin a) (sin b)))
                          (+ (* (sin a) (cos b)) (* (cos a) (sin b)))])"""
    jacobian = hyad.jacobian(hyad.model(text), (0, 1))
    ops = prims(optimise(jacobian.program()).body)
    assert ops.count("*") == 4 and ops.count("+") + ops.count("-") == 2
    da, db = jacobian(0.3, 0.5)
    np.testing.assert_allclose(da, [-math.sin(0.8), math.cos(0.8)], rtol=1e-14)
    assert np.array_equal(da, db)


def test_a_users_difference_keeps_its_sign_of_zero() -> None:
    f = hyad.model("(fn [x y] (+ (/ 1.0 (- x y)) (/ 1.0 (- y x))))")
    assert f(1.0, 1.0) == math.inf


def test_a_gradient_stores_what_it_adds_once() -> None:
    p = optimise(program(hyad.grad, PRODUCT))
    assert not [b for b in all_binds(p.body) if isinstance(b.op, Prim) and b.op.name in ("zeros", "add-at")]
    assert loops(p) == [0, 0]


def test_a_pure_sum_leaves_no_forward_loop() -> None:
    p = optimise(program(hyad.grad, "(fn [#^ (Vec n) x] (fold (fn [s e] (+ s (* e e e))) 0.0 x))"))
    assert loops(p) == [0]


def test_a_loop_that_only_counts_is_not_written_out() -> None:
    sizes = []
    for depth in (10, 100, 1000):
        text = f"(fn [x] (ifold (fn [y i] (* 4.0 y (- 1.0 y))) x {depth}))"
        sizes.append(len(re.sub("//.*", "", hyad.compile(hyad.grad(text)).source)))
    assert max(sizes) - min(sizes) < 100  # "10" or "1000", a local array or the workspace


def test_one_division_serves_all_partials_of_a_quotient() -> None:
    source = hyad.compile(hyad.grad("(fn [a b] (/ a b))")).source
    assert source.count("/b") <= 2 and source.count("/(") == 0


def test_a_value_read_in_one_branch_is_computed_there() -> None:
    slope = hyad.grad("(fn [t] (let [r (sqrt t)] (if (> t 0) r 0.0)))")
    assert slope(0.0) == 0.0
    p = optimise(hyad.model("(fn [t] (let [r (sqrt t)] (if (> t 0) r 0.0)))").program())
    assert [b.op.name for b in p.body.binds if isinstance(b.op, Prim)] == [">"]


def test_fast_math_is_asked_for() -> None:
    strict, fast = (hyad.model(f"(fn {key} [x] (* 0.0 (sin x)))") for key in ("", ":fast-math"))
    assert math.isnan(strict(math.inf))
    assert fast(math.inf) == 0.0


WARM = """
import sys, numpy as np, hyad
scale = float(sys.argv[1])
f = hyad.model("(fn [x] (* scale (fold + 0.0 (map (fn [e] (* e e)) x))))")
print(hyad.grad(f)(np.array([1.0, 2.0])).tolist())
print("derived" if {"hyad.frontend.specialise", "hyad.codegen.c"} & sys.modules.keys() else "remembered")
"""


def test_a_second_process_derives_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path))

    def run(scale: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", WARM, scale], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert run("1.0") == ["[2.0, 4.0]", "derived"]
    assert run("1.0") == ["[2.0, 4.0]", "remembered"]
    assert run("3.0") == ["[6.0, 12.0]", "derived"]  # what the model reads has changed
    for record in tmp_path.glob("*.model"):
        record.write_bytes(b"damaged")
    assert run("3.0")[0] == "[6.0, 12.0]"


def test_a_compiled_model_is_called_without_a_python_frame() -> None:
    f = hyad.model("(fn [x y] (* x y))")
    assert f(2.0, 3.0) == 6.0
    assert type(f).__call__ is f._call.entry and isinstance(f, hyad.Model)
    assert (f(2, 3), f(np.ones(2), 3.0).tolist(), f(2.0, 3.0)) == (6, [3.0, 3.0], 6.0)
    with pytest.raises(hyad.ModelTypeError):
        f("2", 3.0)
    scope: dict = {"g": hyad.model("(defmodel g [x] (* 2.0 x))")}
    outer = hyad.model("(fn [x] (g x))", namespace=scope)
    assert outer(1.0) == 2.0
    scope["g"] = hyad.model("(defmodel g [x] (* 3.0 x))")
    redefined("g")
    assert outer(1.0) == 3.0


@pytest.mark.parametrize("turn", ["(- (* s c2) (* c s2))", "(+ (* s c2) (* c s2))"])
def test_tangents_that_differ_in_sign_are_computed_once(turn: str) -> None:
    """A rotation by two joints: each entry of the Jacobian is one of the entries of the rotation, up to its sign."""
    other = "(+ (* c c2) (* s s2))" if turn[1] == "-" else "(- (* c c2) (* s s2))"
    text = f"(fn [a b] (let [c (cos a) s (sin a) c2 (cos b) s2 (sin b)] [{turn} {other}]))"
    program = hyad.jacobian(hyad.model(text)).optimised()
    names = [bind.op.name for bind in all_binds(program.body) if type(bind.op) is Prim]
    assert names.count("+") + names.count("-") == 2
    a, b = 0.7, 0.4
    made = hyad.jacobian(hyad.model(text))(a, b)
    t = a - b if turn[1] == "-" else a + b
    sign = -1.0 if turn[1] == "-" else 1.0
    np.testing.assert_allclose(made[0], [np.cos(t), -np.sin(t)], rtol=1e-15)
    np.testing.assert_allclose(made[1], [sign * np.cos(t), -sign * np.sin(t)], rtol=1e-15)


@pytest.mark.parametrize(
    "first, second, slopes",
    [
        ("(- (* c c2) (* s s2))", "(+ (* s c2) (* c s2))", (lambda t: -np.sin(t), np.cos)),
        ("(- (* s s2) (* c c2))", "(- (- (* s c2)) (* c s2))", (np.sin, lambda t: -np.cos(t))),
    ],
)
def test_a_tangent_is_a_value_that_comes_after_it(first: str, second: str, slopes: tuple) -> None:
    """The tangents of the first are the second, up to sign, which the program computes after them."""
    text = f"(fn [a b] (let [c (cos a) s (sin a) c2 (cos b) s2 (sin b)] [{first} {second}]))"
    jacobian = hyad.jacobian(hyad.model(text))
    names = [bind.op.name for bind in all_binds(jacobian.optimised().body) if type(bind.op) is Prim]
    assert names.count("+") + names.count("-") == 2 and names.count("*") == 4
    a, b = 0.7, 0.4
    for made in jacobian(a, b):
        np.testing.assert_allclose(made, [slope(a + b) for slope in slopes], rtol=1e-15)


def test_rows_of_few_numbers_are_made_at_the_end() -> None:
    f = hyad.model("(fn [x] (let [a (sin x) b (exp a) c (* b b)] [[a a] [b c]]))")
    made = [bind.op for bind in f.optimised().body.binds]
    assert [op.name for op in made] == ["sin", "exp", "*", "array", "array", "array"]
    a = np.sin(0.3)
    np.testing.assert_array_equal(f(0.3), [[a, a], [np.exp(a), np.exp(a) ** 2]])


def test_indices_that_differ_are_known_to() -> None:
    """A loop that ends below the index of the loop around never meets it; one that goes up to it does."""
    text = "(fn [v] (build (len v) (fn [i] (ifold (fn [s j] (if (= i j) s (+ s (get v j)))) 0.0 {}))))"
    for count, tests in (("i", 0), ("(+ i 1)", 1)):
        model = hyad.model(text.format(count), namespace={})
        made = hyad.compile(
            model, args=(np.ones(3),), target="python", without=("edges", "growing-sums", "split")
        ).program
        assert sum(type(b.op) is Prim and b.op.name == "=" for b in all_binds(made.body)) == tests
        np.testing.assert_array_equal(model(np.array([1.0, 2.0, 4.0])), [0, 1, 3])


@pytest.mark.parametrize(
    "body",
    [
        "(sum (build [(len w) (len v)] (fn [i j] (get w 0))))",
        "(sum (build [(len w) (len v)] (fn [i j] (* (get v j) (get w (- (len w) 1))))))",
        "(ifold (fn [s i] (+ s (dot v (map (fn [e] (* e (exp (get w 0)))) v)))) 0.0 (len w))",
    ],
)
def test_an_inner_loop_does_not_leave_one_that_makes_its_reading_safe(body: str) -> None:
    f = hyad.model(f"(fn [w v] {body})", namespace={})
    program = f.optimised(f.specs((np.ones(1), np.ones(2))))
    assert python_callable(program)(np.zeros(0), np.ones(2)) == 0.0


def test_a_loop_that_is_left_for_its_checks_keeps_them() -> None:
    unused = "(ifold (fn [z i] (+ z (if (= i 1) 2 (get w (- (len v) 1))))) 0.0 (len v))"
    f = hyad.model(f"(fn [v w] (let [q {unused}] (sum v)))", namespace={})
    program = python_callable(f.optimised(f.specs((np.ones(2), np.ones(2)))))
    assert program(np.ones(3), np.ones(3)) == 3.0
    with pytest.raises(hyad.errors.BoundsError):
        program(np.ones(3), np.ones(2))


def test_a_sum_for_an_element_that_an_empty_loop_has_not() -> None:
    """What a loop adds to one element is added behind it only if the loop was entered."""
    f = hyad.grad(hyad.model("(fn [x v] (ifold (fn [z i] (* z (cos (* x (get v (- (len v) 1)))))) 1.0 (len v)))"))
    program = f.optimised(f.specs((0.5, np.ones(2))))
    x_bar, v_bar = python_callable(program)(0.5, np.array([2.0, 3.0]))
    assert x_bar == pytest.approx(-6 * math.cos(1.5) * math.sin(1.5)) and v_bar[0] == 0.0
    assert v_bar[1] == pytest.approx(-math.cos(1.5) * math.sin(1.5))
    assert python_callable(program)(0.5, np.zeros(0))[0] == 0.0


def test_an_array_of_a_size_that_only_a_loop_has() -> None:
    """The loop that is the same in each iteration has an array of ``n - 1`` elements: where there are none and the
    loop around is empty, it stays there, and no memory of a negative size is cleared."""
    inner = "(ifold (fn [z k] (update z (// k 2) (+ 1.0 (get z k)))) (cut v 1 None) (- (len v) 1))"
    f = hyad.grad(hyad.model(f"(fn [v] (ifold (fn [s i] (* s (cos (sum {inner})))) 1.0 (len v)))", namespace={}))
    v = np.array([0.3, 0.5, -0.2])
    made = python_callable(f.optimised(f.specs((v,))))
    np.testing.assert_allclose(f(v), made(v), rtol=1e-14)
    assert f(v[:0]).shape == made(v[:0]).shape == (0,)


def test_a_table_of_a_size_that_only_a_loop_has() -> None:
    """What is computed before a loop over n for its inner loop over n - 1."""
    each = "(ifold (fn [s i] (+ s (ifold (fn [t j] (+ t (* s (exp (get v j))))) 0.0 (- (len v) 1)))) 1.0 (len v))"
    f = hyad.model(f"(fn [v] {each})", namespace={})
    made = python_callable(f.optimised(f.specs((np.ones(2),))))
    assert made(np.zeros(0)) == f(np.zeros(0)) == 1.0 and made(np.zeros(3)) == f(np.zeros(3)) == 27.0


def test_an_element_is_added_to_behind_a_loop_whose_checks_stay_in_it() -> None:
    """The subscript is computed again behind the loop, the checks of its iterations are not."""
    each = "(let [a (if (> x 1.0) (get v (if (< i 1) i (- i 1))) (get v (% (+ i 1) (len v))))] (* x (get v -1)))"
    f = hyad.model(f"(fn [x #^ (Vec n) v] (fold + 0.0 (build (len v) (fn [i] {each}))))", namespace={})
    program = hyad.grad(f).optimised(f.specs((2.0, np.ones(3))))
    for x in (0.5, 2.0):
        for v in (np.array([1.0, 2.0, 4.0]), np.array([3.0]), np.zeros(0)):
            x_bar, v_bar = python_callable(program)(x, v)
            expected = np.zeros(len(v))
            expected[-1:] = x * len(v)
            assert x_bar == (len(v) * v[-1] if len(v) else 0.0)
            np.testing.assert_array_equal(v_bar, expected)


def test_a_branch_in_a_loop_that_takes_rows_in() -> None:
    upper = "(* (mat-mul s (eye (len v))) (build [(len v) (len v)] (fn [i j] (if (< i j) 1.0 0.0))))"
    f = hyad.model(
        f"(fn [v s] (sq-norm (where (> {upper} 0.0) (transpose (where (> s 0.0) s 0.0)) 0.0)))", namespace={}
    )
    args = (np.ones(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert python_callable(f.optimised(f.specs(args)))(*args) == 9.0


SHIFTED = "(let [m (fold max (get v 0) v)] (+ m (log (fold (fn [s e] (+ s (exp (- e m)))) 0.0 v))))"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (f"(fn [#^ (Vec n) v] {SHIFTED})", (5,)),
        (f"(fn [#^ (Vec n) v] (* -3.0 {SHIFTED}))", (5,)),
        (f"(fn [#^ (Mat m n) x] (fold (fn [t v] (+ t {SHIFTED})) 0.0 x))", (3, 5)),
    ],
)
def test_the_shift_of_a_logarithm_of_exponentials_has_no_adjoint(text: str, shape: tuple[int, ...]) -> None:
    """Nothing is left of the search for the largest but its value, and each exponential is taken once."""
    f = hyad.grad(hyad.model(text, namespace={}))
    x = np.random.default_rng(3).normal(size=shape)
    with without(["searches"]):
        program = f.optimised(f.specs((x,)))
    names = [bind.op.name for bind in all_binds(program.body) if type(bind.op) is Prim]
    assert names.count("exp") == 1 and "select" not in names and ">=" not in names
    before = optimise(f.program(f.specs((x,))), [p for p in PIPELINE if p.__name__ != "cancel"])
    assert "select" in [bind.op.name for bind in all_binds(before.body) if type(bind.op) is Prim]
    expected = np.exp(x) / np.sum(np.exp(x), axis=-1, keepdims=True) * (-3 if "-3" in text else 1)
    for p in (program, before):
        np.testing.assert_allclose(python_callable(p)(x), expected, rtol=1e-13)
    x[..., 2] = np.nan
    assert np.all(np.isnan(python_callable(program)(x)))


def one_less_parts(
    start: float = 0.0, count: int = 4, stacked: str = "", of: str = "total", last: str = "a y", squared: bool = False,
    snapshots: Const | None = None,
) -> Program:  # fmt: skip
    """``total`` = the sum of exp(v), in whose loop the terms are stacked, then 1 less each term times (/ 1 total)."""
    v, z = Var("v", Arr(REAL, (Const(4, INT),))), Var("z", REAL)
    i, s, t, e, s2, total = Var("i", INT), *(Var(n, REAL) for n in ("s", "t", "e", "s", "total"))
    terms = Var("terms", Arr(REAL, (Const(4, INT),)))
    body = (Bind((t,), Prim("get", (v, i))), Bind((e,), Prim("exp", (t,))), Bind((s2,), Prim("+", (s, e))))
    first = Loop(Const(4, INT), i, (Const(start, REAL),), (s,), Block(body, (s2, e)))
    r, k, a, x, y, w, a2, out = Var("r", REAL), Var("k", INT), *(Var(n, REAL) for n in "axywab")
    names = {"a": a, "y": w, "a2": a2, "total": total, "z": z}
    body = (
        Bind((x,), Prim("get", (terms, k))),
        Bind((y,), Prim("*", (x, x if squared else Const(1.0, REAL)))),
        Bind((w,), Prim("*", (y, r))),
        Bind((a2,), Prim("-", tuple(names[n] for n in last.split()))),
    )
    stacks = [Var("more", Arr(REAL, (Const(count, INT),)))] * bool(stacked)
    second = Loop(Const(count, INT), k, (Const(1.0, REAL),), (a,), Block(body, (a2, *map(names.get, stacked.split()))))
    binds = (
        Bind((total, terms), first),
        Bind((r,), Prim("/", (ONE, names[of]))),
        Bind((out, *stacks), replace(second, snapshots=snapshots)),
    )
    results = (out, *stacks)
    return Program("f", (v, z), (), Block(binds, results), (LEAF, LEAF), Node((LEAF,) * len(results)))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"start": 1.0},  # the sum is of more than the terms
        {"count": 3},  # some of the terms
        {"stacked": "a"},
        {"stacked": "a2"},
        {"of": "z"},  # divided by something else
        {"last": "y a"},
        {"squared": True},
        {"snapshots": Const(2, INT)},
    ],
    ids=str,
)
def test_what_a_sum_that_cancels_is(how: dict) -> None:
    program = one_less_parts(**how)
    check(program)
    made = cancel(program)
    assert (made is not program) == (not how)
    args = np.array([0.1, -0.5, 0.75, 1.0]), 2.0
    one, two = (np.hstack(python_callable(p)(*args)) for p in (made, program))
    np.testing.assert_allclose(one, two, atol=1e-15)


def test_sums_that_do_not_cancel() -> None:
    """An empty sum is no sum divided by itself; nor are other terms, or half of the terms."""
    text = "(fn [#^ (Vec n) v #^ Real m] (+ m (log (fold (fn [s e] (+ s (exp (- e m)))) 0.0 v))))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt="m")
    program = f.optimised(f.specs((np.ones(3), 0.5)))
    assert python_callable(program)(np.zeros(0), 0.5) == 1.0
    assert python_callable(program)(np.ones(3), 0.5) == pytest.approx(0.0, abs=1e-15)
    for text in (
        "(log (fold (fn [s e] (+ s (exp (* (get v 0) e)))) 0.0 v))",
        "(let [m (get v 0)] (+ m (log (fold (fn [s e] (+ s (exp (- e (* 2.0 m))))) 0.0 v))))",
        "(let [m (get v 0)] (+ m (* 2.0 (log (fold (fn [s e] (+ s (exp (- e m)))) 0.0 v)))))",
        "(let [m (get v 0)] (+ m (log (fold (fn [s e] (+ s (exp (- e m)))) 1.0 v))))",
    ):
        f = hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={})
        assert hyad.check_grad(f, (np.array([0.3, -0.2, 0.7]),))


def test_the_gradient_of_max_is_one_store_in_both_modes() -> None:
    """Forward mode, a direction at a time: each looks at the place that was found, and all but one are zeros."""
    forward = "(fn [#^ (Vec n) u] (build (len u) (fn [i] (jvp (fn [w] (fold max (get w 0) w)) u (one-hot (len u) i)))))"
    for text in (forward, "(fn [#^ (Vec n) u] ((grad (fn [w] (fold max (get w 0) w))) u))"):
        f = hyad.compile(text, without="searches")
        for u in ([1.0], [2.0, 2.0], [1.0, 3.0, 3.0, -1.0], [-np.inf, -np.inf]):
            assert np.array_equal(f(np.array(u)), np.eye(len(u))[np.argmax(u)])
        assert f.source.count("for (") == 1 and "memset(out" in f.source
    least = "(fn [#^ (Vec n) u] (jvp (fn [w] (fold min 0.5 w)) u (map (fn [a] (* 2.0 a)) u)))"
    for u, wanted in (([1.0, 0.7], 0.0), ([1.0, 0.3, 0.4], 0.6), ([], 0.0)):
        assert hyad.compile(least)(np.array(u)) == wanted


def test_rows_of_one_element_are_where_it_is() -> None:
    """The adjoint of the least in each row, by broadcasting, is one element that the iteration finds: each point adds
    to one centre, and there are no zeros but the gradient's. So is that of an element of each column. An array that
    is needed as a whole stays."""
    text = """(fn [#^ (Mat k d) c #^ (Mat n d) x]
      (sum (np.min (np.sum (** (- (expand-dims x 1) (expand-dims c 0)) 2) :axis 2) :axis 1)))"""
    rng = np.random.default_rng(0)
    c, x = rng.normal(size=(3, 4)), rng.normal(size=(6, 4))
    g = hyad.grad(hyad.model(text, namespace={}), wrt="c")
    wanted = np.zeros_like(c)
    for n, k in enumerate(((x[:, None] - c) ** 2).sum(2).argmin(1)):
        wanted[k] += 2 * (c[k] - x[n])
    np.testing.assert_allclose(g(c, x), wanted, atol=1e-13)
    assert hyad.show(g, "c").count("memset") == 1
    rows = "(fn [#^ (Mat n 40) a] (let [p (log-softmax (sin a) 1)] (sum (build n (fn [i] (exp (get p i (% i 40))))))))"
    columns = rows.replace("n 40", "40 n").replace(") 1)]", ") 0)]").replace("i (% i 40)", "(% i 40) i")
    a, at = rng.normal(size=(5, 40)), (np.arange(5), np.arange(5) % 40)
    p = np.exp(np.sin(a)) / np.exp(np.sin(a)).sum(1)[:, None]
    wanted = -p * p[at][:, None]
    wanted[at] += p[at]
    for text, by_row in ((rows, True), (columns, False)):
        g = hyad.grad(hyad.model(text, namespace={}))
        found = g(a) if by_row else g(np.ascontiguousarray(a.T)).T
        np.testing.assert_allclose(found, wanted * np.cos(a), atol=1e-14)
    whole = "(fn [#^ (Mat n k) a] ((grad (fn [b] (sum (np.max b :axis 1)))) a))"
    assert np.array_equal(hyad.compile(whole)(a), np.eye(40)[a.argmax(1)])


def test_states_that_change_alike_are_one() -> None:
    """Tangents by two numbers of a table that is filled in place share it; what is changed otherwise stays apart."""
    text = """(fn [s u #^ (Vec n) k]
      (let [v (map (fn [x] (max 0.0 (- x s))) k)]
        (for [t (range n)]
          (for [i (range (- n 1))]
            (set-at! v i (max (* s (real t)) (+ (* u (get v i)) (* (- 1 u) (get v (+ i 1))))))))
        (get v 0)))"""
    f = hyad.model(text, namespace={})
    args = 0.7, 0.4, np.array([1.0, 2.0, 0.5, 3.0, 1.5])
    g = hyad.grad(f, wrt=("s", "u"))
    assert hyad.check_grad(f, args, wrt=("s", "u"))
    assert hyad.show(g, "c").count("hyad_max(") == 3  # its definition, the table before, the table
    apart = """(fn [a b #^ (Vec n) v]
      (let [x (copy v) y (copy v)]
        (for [i (range n)]
          (set-at! x i (* a (get x i)))
          (set-at! y i (* b (get y i))))
        (- (sum x) (sum y))))"""
    assert hyad.compile(apart)(2.0, 3.0, np.array([1.0, 2.0])) == -3.0


def test_a_size_that_a_check_finds_is_that_number() -> None:
    """Of arrays that are not declared: what is added to three numbers has three, and so have the arrays added to it."""
    f = hyad.model("(fn [v w] (sum (map (fn [a b] (* a b)) (+ v [1.0 2.0 3.0]) w)))")
    v, w = np.array([1.0, 2.0, 4.0]), np.array([5.0, 6.0, 7.0])
    for found, wanted in zip(hyad.grad(f)(v, w), (w, v + [1.0, 2.0, 3.0])):
        assert found.tolist() == wanted.tolist()
    text = hyad.show(f, "c", args=(v, w))
    assert "for (" not in text and len(re.findall(r"if \(", text)) == 2
    with pytest.raises(hyad.ModelTypeError):
        f(np.ones(2), np.ones(2))
    with pytest.raises(hyad.ModelTypeError):
        f(v, np.ones(4))


FORCES = """(defmodel forces [#^ (Mat n 3) x  #^ (Mat n 3) g]
  (let [force (fn [i c] (ifold
          (fn [s j] (let [d (- (get x j) (get x i))  r (+ 0.01 (sq-norm d))] (+ s (/ (get d c) (* r (sqrt r))))))
          0.0 (len x)))]
    (ifold (fn [s i] (+ s (* (get g i 0) (force i 0)) (* (get g i 1) (force i 1)) (* (get g i 2) (force i 2))))
      0.0 (len x))))"""


def test_a_loop_that_goes_on_with_the_sums_of_another_joins_it() -> None:
    """Each component of a force has its own way back: they share the distance."""
    rng = np.random.default_rng(3)
    gradient = hyad.grad(hyad.model(FORCES), wrt="x")
    compiled = hyad.compile(gradient, without=["eights", "whole-eights"])  # which have each loop twice
    apart = hyad.compile(gradient, without=["meet", "follow", "eights", "whole-eights"])
    roots = [len(re.findall(r"sqrt\((?!double)", f.cfunction.source)) for f in (compiled, apart)]
    assert roots[0] == 1 and roots[1] > 2
    for n in (0, 1, 5):
        x, g = rng.normal(size=(2, n, 3))
        np.testing.assert_allclose(compiled(x, g), hyad.run(gradient, x, g), rtol=1e-12, atol=1e-12)


def test_sums_of_a_users_stay_in_their_order() -> None:
    """They go on from loop to loop as well, but all of the first one's terms come first."""
    text = """(defmodel f [#^ (Vec n) x]
      (ifold (fn [s i] (+ s (sqrt (exp (get x i)))))
        (ifold (fn [s i] (+ s (* 1e16 (sqrt (exp (get x i)))))) 0.0 (len x))
        (len x)))"""
    f = hyad.model(text)
    x = np.random.default_rng(4).normal(size=9)
    expected = 0.0
    for a in 1e16 * np.sqrt(np.exp(x)):
        expected += a
    for a in np.sqrt(np.exp(x)):
        expected += a
    assert len(re.findall(r"for \(", hyad.compile(f).cfunction.source)) == 2
    np.testing.assert_allclose(f(x), expected, rtol=1e-15)


def test_one_matrix_is_factored_once() -> None:
    """``solve``, ``logdet`` and ``inv`` say different things when they fail, and do the same."""
    f = hyad.model("(fn [#^ (Mat n n) a  #^ (Vec n) b] (+ (dot b (solve a b)) (logdet a) (trace (inv a))))")
    for made in (f, hyad.grad(f, wrt="a")):
        source = hyad.compile(made, without="searches").cfunction.source
        pivots = source.count("fabs(")  # the first row, each other row; the diagonal, for the logarithm
        assert pivots == (3 if made is f else 2)
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(4, 4)), rng.normal(size=4)
    expected = b @ np.linalg.solve(a, b) + np.linalg.slogdet(a)[1] + np.trace(np.linalg.inv(a))
    assert f(a, b) == pytest.approx(expected, rel=1e-12)


#: A filter of four states of which two are measured, the matrices as they are in textbooks.
FILTER = """(fn [#^ Real q #^ Real r #^ (Vec 4) m0 #^ (Mat n 2) ys]
  (let [F (+ (eye 4) (diag [1.0 1.0] 2))  H (eye 2 4)
        step (fn [state y]
               (let [#(m P ll) state
                     mp (@ F m)
                     Pp (+ (@ F P (transpose F)) (* q (eye 4)))
                     S (+ (@ H Pp (transpose H)) (* r (eye 2)))
                     e (- y (@ H mp))
                     K (@ Pp (transpose H) (inv S))]
                 #((+ mp (@ K e)) (@ (- (eye 4) (@ K H)) Pp) (- ll (* 0.5 (+ (dot e (solve S e)) (logdet S)))))))
        #(m P ll) (fold step #(m0 (eye 4) 0.0) ys)]
    ll))"""


def filtered(q: float, r: float, m0: np.ndarray, ys: np.ndarray) -> float:
    f, h, m, p, ll = np.eye(4) + np.eye(4, k=2), np.eye(2, 4), m0, np.eye(4), 0.0
    for y in ys:
        m, p = f @ m, f @ p @ f.T + q * np.eye(4)
        s, e = h @ p @ h.T + r * np.eye(2), y - h @ m
        k = p @ h.T @ np.linalg.inv(s)
        m, p, ll = m + k @ e, (np.eye(4) - k @ h) @ p, ll - 0.5 * (e @ np.linalg.solve(s, e) + np.linalg.slogdet(s)[1])
    return ll


def test_what_is_written_out_counts_as_what_is_left_of_it() -> None:
    """Ones and zeros of small matrices leave little of their products: a filter of four states has one loop."""
    model = hyad.model(FILTER, namespace={})
    f, g = hyad.compile(model), hyad.compile(hyad.grad(model, wrt=(0, 1, 2)))
    assert [type(b.op) for b in all_binds(f.program.body)].count(Loop) == 1
    rng = np.random.default_rng(4)
    point = 0.3, 0.7, rng.normal(size=4), rng.normal(size=(6, 2))
    assert f(*point) == pytest.approx(filtered(*point), rel=1e-12)
    step = 1e-6
    for k, got in enumerate(g(*point)):
        for at in np.ndindex(np.shape(got)):
            ends = []
            for sign in (1, -1):
                there = [np.array(x, float) for x in point]
                there[k][at] += sign * step
                ends.append(filtered(*there))
            assert np.asarray(got)[at] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_one_of_few_rows_is_picked(n: int) -> None:
    """The pivots of a small matrix of single values: no element is found by an index that is known late."""
    items = " ".join("[" + " ".join(f"(get v {n * i + j})" for j in range(n)) + "]" for i in range(n))
    f = hyad.model(f"(fn [#^ (Vec {n * n}) v] (inv [{items}]))", namespace={})
    made = hyad.compile(f)
    late = [b.op for b in all_binds(made.program.body) if type(b.op) is Prim and b.op.name in ("get", "update")]
    if n == 2:
        assert all(type(i) is Const for op in late for i in op.args[1:2])
    rng = np.random.default_rng(n)
    for _ in range(40):
        v = rng.integers(-3, 4, n * n).astype(float) + rng.normal(size=n * n) * 1e-3
        expected = np.linalg.inv(v.reshape(n, n))
        np.testing.assert_allclose(made(v), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
        np.testing.assert_allclose(hyad.run(f, v), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("shape", ["Vec n", "Vec 900", "Mat n m", "Mat 2 2"])
def test_one_of_few_rows_that_are_not_small_is_found_by_its_index(shape: str) -> None:
    """Rows of unknown length have no elements to be picked, and those of long ones would be many lines."""
    text = f"(fn [#^ ({shape}) a #^ ({shape}) b x] (let [i (if (> x 0) 0 1)] (* x (get [a b] i))))"
    f = hyad.model(text, namespace={})
    dims = [int(d) if d.isdigit() else 3 for d in shape.split()[1:]]
    a, b = np.random.default_rng(2).normal(size=(2, *dims))
    for x in (1.5, -0.5):
        wanted = x * (a if x > 0 else b)
        np.testing.assert_array_equal(f(a, b, x), wanted)
        np.testing.assert_array_equal(hyad.run(f, a, b, x), wanted)
    assert len(hyad.compile(f, args=(a, b, 1.0)).source) < 4000


def test_a_choice_in_a_choice_by_the_same_condition_is_none() -> None:
    f = hyad.compile(
        hyad.model("(fn [#^ Real a #^ Real b] (let [c (> a b)] (select c (select c a 1.0) (select c 2.0 b))))")
    )
    assert f.cfunction.source.count("?") == 1
    assert f(3.0, 1.0) == 3.0 and f(1.0, 3.0) == 3.0


CLASSES = "(fn [x w b y] (let [z (+ (@ x w) b)] (- (sum (* y (log-softmax z 1))))))"
PIECES = "(fn [x a] (sum (build (len x) (fn [i] (* (get x i) (if (> a 0) (exp a) (* 2.0 a)))))))"
COSINES = "(fn [x] (let [r (/ x (expand-dims (sqrt (sum (square x) 1)) 1))] (sum (log-softmax (@ r (transpose r)) 1))))"


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize(
    "text, shapes", [(CLASSES, [(9, 4), (4, 5), (5,), (9, 5)]), (PIECES, [(7,), ()]), (COSINES, [(6, 3)])]
)
def test_no_call_is_made_more_often_than_it_is_written(text: str, shapes: list[tuple[int, ...]], derived: bool) -> None:
    """What a loop does not change leaves it, a branch as well, also where sizes are known by checks alone."""
    args = [np.random.default_rng(k).uniform(0.2, 1.0, shape) for k, shape in enumerate(shapes)]
    model = hyad.model(text)
    told = hyad.explain(hyad.grad(model, tuple(range(len(args)))) if derived else model, args=args)
    assert 0 < told.steps[-1].after.transcendental <= told.steps[0].before.transcendental


def test_a_branch_that_no_iteration_changes_is_taken_once() -> None:
    """Before the loop: it reads nothing of it, and nothing in it can fail."""
    made = optimise(hyad.model(PIECES.replace("[x a]", "[#^ (Vec n) x a]")).program())
    assert [type(b.op) for b in made.body.binds if type(b.op) in (If, Loop)] == [If, Loop]
    assert all(type(b.op) is not If for b in all_binds(last_loop(made).body))


COLUMNS = """(fn [#^ (Mat n d) x #^ (Vec d) a #^ (Vec d) b]
  (sum (square (+ (* a (/ (- x (mean x 0)) (sqrt (+ (var x 0) 1e-5)))) b))))"""


def test_the_gradient_of_normalised_columns_goes_along_rows() -> None:
    """Down a column nothing is read and nothing is kept: what both the mean's and the variance's parts add to an
    element is computed where it is stored, once, at the end."""
    model = hyad.model(COLUMNS)
    made = optimise(hyad.grad(model, ("x", "a", "b")).program())
    for bind in all_binds(made.body):
        if isinstance(bind.op, Loop) and not any(isinstance(x.op, Loop) for x in bind.op.body.binds):
            at = [x.op.args for x in bind.op.body.binds if isinstance(x.op, Prim) and x.op.name in ("get", "update")]
            at = [args for args in at if args[0].type.rank == 2]
            assert all(bind.op.index not in args[1:] or args[2] is bind.op.index for args in at)
    assert "work: room for 6*d reals" in hyad.compile(hyad.grad(model, ("x", "a", "b"))).source
    x, a, b = np.random.default_rng(1).normal(size=(9, 6)), np.ones(6), np.full(6, 0.5)
    for n in (1, 2, 5, 9):
        hyad.check_grad(model, [x[:n], a, b])


LABELS = """(fn [#^ (Mat n m) x #^ (Mat m k) w #^ (Arr Int r) y]
  (let [z (@ x w)] (sum (build r (fn [i] (- (logsumexp (get z i)) (get z i (get y i))))))))"""


def test_rows_whose_labels_are_checked_are_gone_through_once() -> None:
    """The value's loop over rows checks each label before it reads by it, and that there are so many rows is checked
    before the loop: the gradient's joins it, and takes each exponential once."""
    model, (n, m, k) = hyad.model(LABELS), (12, 3, 5)
    rng = np.random.default_rng(2)
    args = [rng.normal(size=(n, m)), rng.normal(size=(m, k)), rng.integers(0, k, n)]
    told = hyad.explain(hyad.grad(model, ("x", "w")), args=args)
    assert told.steps[-1].after.transcendental == n * k
    gradient = hyad.grad(model, "w")
    z = np.exp(args[0] @ args[1])
    by_hand = args[0].T @ (z / z.sum(1, keepdims=True) - np.eye(k)[args[2]])
    np.testing.assert_allclose(gradient(*args), by_hand, rtol=1e-12, atol=1e-14)
    for wrong in (-1, k):
        with pytest.raises(hyad.HyadError, match="out of range|index"):
            gradient(args[0], args[1], np.append(args[2][:-1], wrong))
    with pytest.raises(hyad.HyadError):
        gradient(args[0][:-1], args[1], args[2])  # more labels than rows


def test_a_sum_for_each_row_is_taken_before_the_loop_around() -> None:
    """The sum of a row does not depend on what it is compared with: n + m sums of d terms, not n m of them."""
    text = "(fn [#^ (Vec n) x #^ (Mat m d) w] (sum (build [n m] (fn [i j] (tanh (* (get x i) (sum (get w j))))))))"
    model, (n, m, d) = hyad.model(text), (20, 20, 100)
    for f in (model, hyad.grad(model, ("x", "w"))):
        told = hyad.explain(f, args=[np.ones(n), np.ones((m, d))])
        assert told.steps[-1].after.operations < n * m * d / 2
    hyad.check_grad(model, [np.linspace(0.1, 0.9, 5), np.linspace(-0.4, 0.5, 12).reshape(3, 4)])
    for shape in ((0, 3, 2), (2, 0, 3), (2, 3, 0)):
        n, m, d = shape
        assert model(np.ones(n), np.ones((m, d))) == pytest.approx(n * m * np.tanh(d))


def test_a_loop_that_remembers_rows_of_unknown_size_stays_a_loop() -> None:
    """Twenty steps on a copy of a row, of which the gradient remembers a row each: the C does not grow with them."""
    text = """(fn [#^ (Vec n) v a] (let [u (copy v)]
      (for [t (range STEPS)] (let [old (copy u)]
        (for [i (range 1 (- (len v) 1))]
          (set-at! u i (+ (get old i) (* a (- (+ (get old (- i 1)) (get old (+ i 1))) (* 2 (get old i)))))))))
      (sum (square u))))"""
    lengths = []
    for steps in (5, 20):
        f = hyad.model(text.replace("STEPS", str(steps)), namespace={})
        g = hyad.compile(hyad.grad(f, wrt=(0, 1)), args=[np.ones(9), 0.1])
        lengths.append(g.source.count("\n"))
        v = np.linspace(0.3, 1.2, 9) ** 2
        for found, wanted in zip(g(v, 0.2), hyad.run(hyad.grad(f, wrt=(0, 1)), v, 0.2)):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert lengths[0] == lengths[1]


@pytest.mark.some(6)
@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["neighbours", "layers"])
def test_an_element_that_is_read_again_is_made_once(name: str, shape: tuple[int, int], monkeypatch) -> None:
    """Arrays with rows of few numbers, which are written out, each of which reads several elements of the one before:
    the work of fusion does not double with every array."""
    texts = {
        "neighbours": """(fn [x w]
          (let [step (fn [x _]
                  (let [left (- x (roll x 1 :axis 1))  right (- (roll x -1 :axis 1) x)  up (- x (roll x 1 :axis 0))]
                    (- x (* 0.1 (sqrt (+ 1 (square (maximum left 0.0)) (square (minimum right 0.0)) (square up)))))))]
            (sum (sin (ifold step (@ x w) 3)))))""",
        "layers": """(fn [x w]
          (let [norm (fn [x]
                  (/ (- x (mean x :axis 1 :keepdims True)) (sqrt (+ 0.1 (var x :axis 1 :keepdims True)))))
                z (norm x)  x (+ x (@ (softmax (@ (@ z w) (transpose (@ z w))) 1) (@ z w)))]
            (sum (square (+ x (@ (tanh (@ (norm x) w)) w))))))""",
    }
    bind, calls = Fuse.bind, []

    def counted(self: Fuse, x: Bind) -> None:
        calls.append(x)
        assert len(calls) < 20000
        bind(self, x)

    monkeypatch.setattr(Fuse, "bind", counted)
    f = hyad.value_and_grad(hyad.model(texts[name], namespace={}), wrt=(0, 1))
    rng = np.random.default_rng(4)
    args = rng.normal(size=shape), rng.normal(size=(shape[1], shape[1]))
    value, gradient = f(*args)
    expected, wanted = hyad.run(f, *args)
    assert calls and value == pytest.approx(expected, rel=1e-12)
    for found, x in zip(gradient, wanted):
        np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-12)


NEAREST = {
    "squared": ("(square d)", "{}"),
    "distances": ("(square d)", "(sqrt {})"),
    "smoothed": ("(square d)", "(sqrt (+ 0.001 {}))"),
    "absolute": ("(abs d)", "{}"),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", NEAREST)
def test_distances_that_are_only_compared_are_numbers_of_a_row(name: str) -> None:
    """The nearest of some points, as arrays: no array of all distances is made, and the gradient goes through the
    nearest ones alone, as those of the loops that one would write. Several sizes, ties, none of a kind."""
    each, of = NEAREST[name]
    total = of.format(f"(sum {each} :axis 2)")
    text = f"(fn [x c] (let [d (- (expand-dims x 1) (expand-dims c 0))] (sum (amin {total} 1))))"
    f = hyad.model(text, namespace={})
    g = hyad.value_and_grad(f, wrt=(0, 1))
    rng = np.random.default_rng(3)
    like = rng.normal(size=(20, 7)), rng.normal(size=(5, 7))
    compiled = hyad.compile(f, args=like), hyad.compile(g, args=like)
    for c in compiled:
        assert "n*k" not in c.source and "n*m*k" not in c.source
    for n, k, m in ((20, 5, 7), (1, 1, 1), (9, 1, 3), (8, 17, 1), (17, 4, 2), (0, 3, 5), (3, 2, 0)):
        if m == 0 and name == "distances":
            continue  # the slope is infinite at a distance of 0
        x, c = rng.normal(size=(n, m)), rng.normal(size=(k, m))
        if k > 1 and m:
            c[-1] = c[0]  # a tie
        value, gradient = compiled[1](x, c)
        expected, wanted = hyad.run(g, x, c)
        assert value == pytest.approx(expected, rel=1e-12) and compiled[0](x, c) == pytest.approx(expected, rel=1e-12)
        for found, one in zip(gradient, wanted):
            np.testing.assert_allclose(found, one, rtol=1e-10, atol=1e-12)
    with pytest.raises(hyad.HyadError):
        compiled[0](np.ones((3, 2)), np.ones((0, 2)))


def test_rows_that_are_also_read_otherwise_are_made_first() -> None:
    """Where a distance is compared and summed, or is a sum of products as those of matrices, its nest stays."""
    for result in (
        "(- (sum t) (sum (amin t 1)))",
        "(sum (* (amin t 1) (get t 0 0)))",
        "(+ (sum (amin t 0)) (sum (amax t 1)))",
        "(sum (take t (argmin t 1) 1))",
        "(sum (amin (@ x (transpose c)) 1))",
    ):
        text = f"""(fn [x c]
          (let [t (sum (square (- (expand-dims x 1) (expand-dims c 0))) :axis 2)]
            {result}))"""
        g = hyad.value_and_grad(hyad.model(text, namespace={}), wrt=(0, 1))
        rng = np.random.default_rng(5)
        for n, k, m in ((6, 5, 7), (9, 1, 5), (1, 8, 6)):
            args = rng.normal(size=(n, m)), rng.normal(size=(k, m))
            (value, gradient), (expected, wanted) = g(*args), hyad.run(g, *args)
            assert value == pytest.approx(expected, rel=1e-12)
            for found, one in zip(gradient, wanted):
                np.testing.assert_allclose(found, one, rtol=1e-10, atol=1e-12)


def changes_in(f: hyad.Model, args: tuple) -> int:
    return sum(type(b.op) is Prim and b.op.name == "update" for b in all_binds(f.optimised(f.specs(args)).body))


def test_arrays_that_are_changed_alike_are_one() -> None:
    """Two loops that become one had factored the same matrix, in place, each for itself."""
    part = "(fold (fn [s k] (+ s {} (dot (get v k) (@ (inv (get m k)) (get v k))))) 0.0 (arange n))"
    head = "#^ (Arr Real n 2 2) m #^ (Mat n 2) v"
    one = hyad.model(f"(fn [{head}] (let [n (len v)] {part.format('0.0')}))")
    two = hyad.model(f"(fn [{head}] (let [n (len v)] #({part.format('0.0')} {part.format('(get v k 0)')})))")
    rng = np.random.default_rng(0)
    m, v = rng.normal(size=(5, 2, 2)) + 3 * np.eye(2), rng.normal(size=(5, 2))
    value = sum(x @ np.linalg.inv(a) @ x for a, x in zip(m, v))
    assert hyad.compile(one)(m, v) == pytest.approx(value, rel=1e-12)
    assert hyad.compile(two)(m, v) == pytest.approx((value, value + v[:, 0].sum()), rel=1e-12)
    assert changes_in(two, (m, v)) == changes_in(one, (m, v)) > 0


def test_arrays_that_are_changed_otherwise_later_are_two() -> None:
    """What they have in common is stored once, and copied."""
    text = """(fn [#^ (Vec n) v #^ Int m]
      (build m (fn [k]
        (let [a (copy v) b (copy v)]
          (set-at! a 0 (real k)) (set-at! b 0 (real k))
          (set-at! a 1 (* 2.0 (get a 0))) (set-at! b 1 (* 3.0 (get b 0)))
          (for [i (range 2 (len v))] (set-at! a i (+ (get a (- i 1)) (get b (- i 1)))) (set-at! b i (get a i)))
          (+ (sum (sin a)) (sum b))))))"""
    f, v = hyad.model(text), np.arange(5.0)
    wanted = []
    for k in range(3):
        a, b = v.copy(), v.copy()
        a[0] = b[0] = k
        a[1], b[1] = 2 * k, 3 * k
        for i in range(2, 5):
            a[i] = a[i - 1] + b[i - 1]
            b[i] = a[i]
        wanted.append(np.sin(a).sum() + b.sum())
    np.testing.assert_allclose(hyad.compile(f)(v, 3), wanted, rtol=1e-14)
    assert hyad.compile(f).cfunction.source.count("memcpy") == 2  # one is a copy of v, the other one of it
    assert hyad.check_grad(hyad.model(f"(fn [v] (sum ({text} v 3)))"), (v,))


def test_what_both_branches_add_to_is_added_to_once() -> None:
    """A sum that is set on both sides of a condition is a sum: the value and the gradient take each term once."""
    f = hyad.model(
        """(fn [#^ (Vec n) x #^ (Vec n) w]
             (let [total (ref 0.0)]
               (for [i (range n)]
                 (let [d (log (+ 2.0 (* (get x i) (get x i))))]
                   (if (> (get w i) 0.0)
                     (set! total (+ (deref total) (* (get w i) (erf d))))
                     (set! total (+ (* (get w i) (erfc d)) (deref total))))))
               (deref total)))""",
        namespace={},
    )
    made = hyad.compile(f)
    assert made.source.count("+=") == 1
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=9), rng.normal(size=9)
    d = np.log(2 + x * x)
    want = sum(a * (math.erf(t) if a > 0 else math.erfc(t)) for a, t in zip(w, d))
    assert made(x, w) == pytest.approx(want, rel=1e-14)
    both = hyad.compile(hyad.value_and_grad(f, wrt=("x", "w")))
    for call in ("erf(", "erfc(", "log("):
        assert both.source.count(f" {call}") + both.source.count(f"*{call}") == 1, call
    value, gradient = both(x, w)
    assert value == made(x, w)
    assert hyad.check_grad(f, (x, w), wrt=("x", "w"))
    assert oracle.mismatch(hyad.run(hyad.grad(f, wrt=("x", "w")), x, w), gradient, 1e-12) is None


def test_sums_of_branches_with_nothing_in_common_or_a_parameter() -> None:
    f = hyad.model("(fn [x y] (if (> x 0.0) (+ x (sin y)) (+ y (cos x))))", namespace={})
    g = hyad.model("(fn [x y] (if (> x 0.0) (+ x (sin y)) (+ (cos y) x)))", namespace={})
    for x, y in ((0.3, 0.4), (-0.3, 0.4)):
        assert hyad.compile(f)(x, y) == hyad.run(f, x, y) == (x + np.sin(y) if x > 0 else y + np.cos(x))
        assert hyad.compile(g)(x, y) == hyad.run(g, x, y) == (x + np.sin(y) if x > 0 else np.cos(y) + x)


@pytest.mark.parametrize("length, loops", [(8, True), (12, True), (3, False)])
def test_a_row_that_data_says_is_gone_along_in_a_loop(length: int, loops: bool) -> None:
    """Written out it would be as many numbers, which compilers make no vector of; short ones are."""
    f = hyad.model(f"""(fn [#^ (Mat n k) u #^ (Mat m l) v #^ (Arr Int p) i #^ (Arr Int p) j #^ (Vec p) r]
      (let [loss (ref 0.0)]
        (for [e (range (len r))]
          (let [s (ref 0.0)]
            (for [c (range {length})] (set! s (+ (deref s) (* (get u (get i e) c) (get v (get j e) c)))))
            (set! loss (+ (deref loss) (square (- (get r e) (deref s)))))))
        (deref loss)))""")
    g = hyad.grad(f, wrt=("u", "v"))
    for made in (f, g):
        counts = [x.op.count for x in all_binds(made.optimised(made.specs()).body) if type(x.op) is Loop]
        assert any(type(c) is Const and c.value == length for c in counts) == loops
    rng = np.random.default_rng(length)
    u, v = rng.normal(size=(4, length)), rng.normal(size=(5, length + 1))
    i, j, r = np.array([0, 3, 1, 3]), np.array([4, 0, 2, 2]), rng.normal(size=4)
    assert f(u, v, i, j, r) == pytest.approx(sum((r - np.sum(u[i] * v[j, :length], 1)) ** 2), rel=1e-13)
    hyad.check_grad(f, (u, v, i, j, r), wrt=("u", "v"))


def test_an_element_that_a_library_function_reads_is_read_once() -> None:
    """The subscripts of ``cross`` and of the model are the same integers; so are powers."""
    f = hyad.model("""(fn [#^ (Vec 3) w #^ (Mat n 3) p]
      (sum (map (fn [x] (let [c (cross w x)] (+ (* (get w 0) (get x 2) (get c 1)) (* (dot w x) (get c 0))))) p)))""")
    reads = [x.op for x in all_binds(f.optimised(f.specs()).body) if type(x.op) is Prim and x.op.name == "get"]
    assert len(reads) == len({(op.args[0], op.args[-1]) for op in reads}) == 6
    hyad.check_grad(f, (np.array([0.3, -0.2, 0.9]), np.arange(12.0).reshape(4, 3)))


def test_an_array_of_integers_keeps_the_zeros_of_a_derivative_apart() -> None:
    """They are subscripts that are the same, but rules may take the one for nothing at all."""
    b = Builder()
    one, two, again = (b.array([Const(0, INT, soft), Const(1, INT)]) for soft in (False, True, False))
    assert one is again and one is not two
    w = Var("w", Arr(REAL, (Const(2, INT),)))
    assert b.get(w, Const(1, INT)) is b.get(w, Const(1, INT, True))
