"""Matrix products in tiles, run here on the CPU at sizes that leave edges.

A sum of ``k`` terms in whatever order is within ``k`` roundings of the sum of their absolute values; what a model does
before and after adds few: ``near`` allows ``2 k + 8`` of them.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

import hyad
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram, Gemm, Launch, Require
from hyad.emulate import Emulator
from hyad.model import Model

needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
SIZES = (0, 1, 3, 17, 65, 130)
DTYPES = {"f64": np.float64, "f32": np.float32}


def plan(model: Model, args: tuple[Any, ...], name: str, dtype: str = "f64") -> CudaProgram:
    return print_grid(model.optimised(model.specs(args), "grid", blas=True), dtype=dtype, name=name)


def near(got: np.ndarray, want: np.ndarray, absolute: np.ndarray, terms: int) -> None:
    """Within the rounding of a sum of so many terms, the sum of whose absolute values is ``absolute``."""
    bound = (2 * terms + 8) * np.finfo(got.dtype).eps
    assert got.shape == want.shape and np.all(np.abs(got - want) <= bound * absolute)


# ------------------------------------------------------------------------------------------------ products

PRODUCTS = {
    (False, False): "(mat-mul a b)",
    (True, False): "(mat-mul (transpose a) b)",
    (False, True): "(mat-mul a (transpose b))",
    (True, True): "(mat-mul (transpose a) (transpose b))",
}


def factors(m: int, n: int, k: int, ta: bool, tb: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + 7 * n + 31 * k)
    a, b = rng.normal(size=(k, m) if ta else (m, k)), rng.normal(size=(n, k) if tb else (k, n))
    return a.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])


@cache
def products() -> tuple[Emulator, dict[tuple[bool, bool, str], CudaProgram]]:
    made = {}
    for (turned, text), dtype in itertools.product(PRODUCTS.items(), DTYPES):
        model = hyad.model(f"(defmodel f [#^ (Mat n m) a #^ (Mat k l) b] {text})", namespace={})
        made[(*turned, dtype)] = plan(model, (np.ones((2, 2)), np.ones((2, 2))), f"p{len(made)}", dtype)
    compiler = gpu.cpu_compiler()
    assert compiler is not None
    return Emulator(list(made.values()), compiler), made


@needs_cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta, tb", PRODUCTS)
def test_products_at_the_edges_of_tiles(ta: bool, tb: bool, dtype: str) -> None:
    emulator, made = products()
    program = made[ta, tb, dtype]
    sizes = [*((n, n, n) for n in SIZES), (65, 3, 17), (1, 130, 16), (130, 1, 33), (3, 64, 0)]
    for q, (m, n, k) in enumerate(sizes):
        a, b = factors(m, n, k, ta, tb, dtype)
        x, y = ((t.T if turn else t).astype(np.float64) for t, turn in ((a, ta), (b, tb)))
        (c,) = emulator.run(program, (a, b), descending=q % 2 == 1, blocks=q % 3)
        near(c, x @ y, np.abs(x) @ np.abs(y), k)


def test_a_product_of_transposes_is_one_step() -> None:
    """No kernel turns a matrix: the product reads it as it lies."""
    for turned, text in PRODUCTS.items():
        model = hyad.model(f"(defmodel f [#^ (Mat n m) a #^ (Mat k l) b] {text})", namespace={})
        steps = plan(model, (np.ones((2, 2)), np.ones((2, 2))), "f").steps
        (step,) = (s for s in steps if not isinstance(s, Require))
        assert isinstance(step, Gemm) and (step.ta, step.tb) == turned


def test_attention_transposes_nothing() -> None:
    """Its gradient's five products read matrices as they lie, and make them as they are wanted."""
    text = "(let [s (mat-mul q (transpose k))] (sum (mat-mul (map softmax s) v)))"
    model = hyad.grad(hyad.model(f"(defmodel f [#^ (Mat n d) q #^ (Mat n d) k #^ (Mat n d) v] {text})", namespace={}))
    program = plan(model, (np.ones((4, 3)),) * 3, "f")
    found = [s for s in program.steps if isinstance(s, Gemm)]
    assert len(found) == 5 and {"q_bar", "k_bar", "v_bar"} <= {s.c.array for s in found}
    assert sum(isinstance(s, Launch) and s.form.startswith("(transpose") for s in program.steps) == 0
