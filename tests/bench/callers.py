"""The tools that are called from Python only, timed through their own call against the hand-written C.

Run as ``python callers.py CALLER PROBLEM N LIBRARY ROUNDS BUDGET``: prepare, check against the reference on standard
input, time by turns with the yardstick in LIBRARY, print one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from measure import FLAGS, Contender, Native, PythonCall, alternate, bank_of
from reference import error
from suite import GRADIENT, HESSIAN, JACOBIAN, PROBLEMS, VALUE_AND_GRADIENT, Problem, nest

Caller = Callable[[int], Any]


def arguments_of(problem: Problem, n: int, row: np.ndarray) -> list[Any]:
    return [np.asarray(a, float) if not np.isscalar(a) else float(a) for a in nest(problem, n, list(row))]


def jax_call(problem: Problem, n: int, bank: np.ndarray) -> Caller:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    active = tuple(k for k, i in enumerate(problem.inputs) if i.active)
    which = active[0] if len(active) == 1 else active

    def primal(*arguments: Any) -> Any:
        y = (problem.array_primal or problem.primal)(jnp, *arguments)
        return jnp.stack(y) if isinstance(y, list) else y

    operator = {
        JACOBIAN: jax.jacfwd,
        HESSIAN: jax.hessian,
        GRADIENT: jax.grad,
        VALUE_AND_GRADIENT: jax.value_and_grad,
    }[problem.kind]
    compiled = jax.jit(operator(primal, argnums=which))
    points = [[jnp.asarray(a) for a in arguments_of(problem, n, row)] for row in bank]

    def call(row: int) -> Any:
        return jax.block_until_ready(compiled(*points[row]))

    call(0)  # compile
    return call


def autograd_call(problem: Problem, n: int, bank: np.ndarray) -> Caller:
    import autograd
    import autograd.numpy as anp

    active = tuple(k for k, i in enumerate(problem.inputs) if i.active)
    which = active[0] if len(active) == 1 else active

    def primal(*arguments: Any) -> Any:
        y = (problem.array_primal or problem.primal)(anp, *arguments)
        return anp.array(y) if isinstance(y, list) else y

    operator = {
        JACOBIAN: autograd.jacobian,
        HESSIAN: autograd.hessian,
        GRADIENT: autograd.grad,
        VALUE_AND_GRADIENT: autograd.value_and_grad,
    }[problem.kind]
    derivative = operator(primal, which)
    points = [arguments_of(problem, n, row) for row in bank]
    return lambda row: derivative(*points[row])


def autowrap_call(problem: Problem, n: int, bank: np.ndarray) -> Caller:
    import sympy
    from sympy.utilities.autowrap import autowrap
    from sympy.utilities.codegen import C99CodeGen

    symbols: list[Any] = []
    for given in problem.inputs:
        symbols.append(
            sympy.MatrixSymbol(given.name, given.count(n), 1) if given.shape(n) else sympy.Symbol(given.name)
        )
    plain = [
        [sympy.Symbol(f"{i.name}_{k}", real=True) for k in range(i.count(n))] if i.shape(n) else [s]
        for i, s in zip(problem.inputs, symbols)
    ]
    numbers = [e for part in plain for e in part]
    active = [e for part, i in zip(plain, problem.inputs) if i.active for e in part]
    y = problem.primal(sympy, *nest(problem, n, numbers))
    if problem.kind == HESSIAN:
        results = list(sympy.hessian(y, active))
    else:
        results = list(sympy.Matrix(y if isinstance(y, list) else [y]).jacobian(active))
        results = [y, *results] if problem.kind == VALUE_AND_GRADIENT else results
    entries = {
        e: s[k, 0] for part, s, i in zip(plain, symbols, problem.inputs) if i.shape(n) for k, e in enumerate(part)
    }
    matrix = sympy.Matrix(results).xreplace(entries)
    flags = ["-D_DEFAULT_SOURCE", *FLAGS]  # its C says M_SQRT2
    generator = C99CodeGen(cse=True)
    wrapped = autowrap(matrix, args=symbols, backend="cython", code_gen=generator, extra_compile_args=flags)
    points = [
        [a.reshape(-1, 1) if isinstance(a, np.ndarray) else a for a in arguments_of(problem, n, row)] for row in bank
    ]
    return lambda row: wrapped(*points[row])


def llvm_call(problem: Problem, n: int, bank: np.ndarray) -> Caller:
    import symengine

    from peers import symbols_of

    symbols, active = symbols_of(problem, n, symengine.Symbol)
    y = problem.primal(symengine, *nest(problem, n, symbols))
    rows = [y.diff(a) for a in active] if problem.kind == HESSIAN else (y if isinstance(y, list) else [y])
    results = [row.diff(a) for row in rows for a in active]
    results = [y, *results] if problem.kind == VALUE_AND_GRADIENT else results
    compiled = symengine.Lambdify(symbols, results, backend="llvm", cse=True)
    out, rows_of = np.empty(len(results)), np.ascontiguousarray(bank)

    def call(row: int) -> Any:
        compiled.unsafe_real(rows_of[row], out)
        return out

    return call


CALLERS = {"jax": jax_call, "autograd": autograd_call, "autowrap": autowrap_call, "symengine-llvm": llvm_call}
TITLES = {
    "jax": "JAX (call)",
    "autograd": "autograd (call)",
    "autowrap": "SymPy autowrap (call)",
    "symengine-llvm": "SymEngine LLVM (call)",
}
IMPORTS = {"autowrap": "sympy", "symengine-llvm": "symengine"}


def flat(result: Any) -> np.ndarray:
    """The numbers of a result, tuples one part after the other."""
    if isinstance(result, (tuple, list)):
        return np.concatenate([flat(r) for r in result])
    return np.array(result, float).ravel()


def main(caller: str, name: str, size: str, library: str, rounds: str, budget: str) -> None:
    __import__(IMPORTS.get(caller, caller))
    problem, n = next(p for p in PROBLEMS if p.name == name), int(size)
    expected = np.frombuffer(sys.stdin.buffer.read())
    bank = bank_of(problem, n, np.random.default_rng(1))
    start = time.perf_counter()
    call = CALLERS[caller](problem, n, bank)
    first = flat(call(0))
    prepare = time.perf_counter() - start
    yardstick = Native(Contender("hand", "", "", "", library=library), problem, n, bank)
    timings = alternate({"hand": yardstick, caller: PythonCall(call, len(bank))}, int(rounds), float(budget))
    t = timings[caller]
    found = {"nanoseconds": t.nanoseconds, "wall_ratio": t.wall_ratio, "cpu_ratio": t.cpu_ratio}
    print(json.dumps({**found, "prepare": prepare, "error": error(first, expected)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
