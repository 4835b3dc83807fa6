"""The optimiser on whole derivatives: what loops are left, and that every pass keeps the value."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

import hyad
from hyad.core import REAL, If, Loop, Prim, Program, all_binds
from hyad.model import python_callable, redefined
from hyad.optimise import PIPELINE, optimise

ROSENBROCK = """(fn [#^ (Vec n) x]
  (ifold (fn [s i] (+ s (* 100 (** (- (get x (+ i 1)) (** (get x i) 2)) 2)) (** (- 1 (get x i)) 2)))
         0.0 (- (len x) 1)))"""
QUADRATIC = "(fn [#^ (Vec n) x #^ (Mat n n) a] (exp (dot x (map (fn [row] (dot row x)) a))))"
SQUARES = "(fn [#^ (Vec n) x] (map (fn [e] (* e (sin e))) x))"
LOGSUM = "(fn [#^ (Vec n) x] (let [m (fold max (get x 0) x)] (+ m (log (fold + 0.0 (map (fn [e] (exp (- e m))) x))))))"
PRODUCT = "(fn [#^ (Vec n) x] (fold * 1.0 x))"

DERIVATIVES = [
    (hyad.hessian, ROSENBROCK, None),
    (hyad.hessian, QUADRATIC, "x"),
    (hyad.jacobian, SQUARES, None),
    (hyad.value_and_grad, LOGSUM, None),
    (hyad.grad, PRODUCT, None),
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


@pytest.mark.parametrize("operator, text, wrt", DERIVATIVES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_pass_keeps_the_value(operator, text, wrt, n) -> None:
    p = program(operator, text, wrt)
    args = arguments(p, n)
    before = python_callable(p)(*args)
    for pass_ in PIPELINE:
        p = pass_(p)
        after = python_callable(p)(*args)
        pairs = zip(before, after) if isinstance(before, tuple) else [(before, after)]
        for x, y in pairs:
            np.testing.assert_allclose(y, x, rtol=1e-11, atol=1e-13, err_msg=pass_.__name__)


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
        sizes.append(len(hyad.compile(hyad.grad(text)).source))
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
print("hyad.specialise derived" if "hyad.codegen.c" in sys.modules else "remembered")
"""


def test_a_second_process_derives_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path))

    def run(scale: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", WARM, scale], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert run("1.0") == ["[2.0, 4.0]", "hyad.specialise derived"]
    assert run("1.0") == ["[2.0, 4.0]", "remembered"]
    assert run("3.0") == ["[6.0, 12.0]", "hyad.specialise derived"]  # what the model reads has changed
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
