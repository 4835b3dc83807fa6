"""What the derivatives are, found without any of the contenders: differences of the primal in high precision.

First derivatives are central differences in 60-digit arithmetic. Second derivatives of vectors beyond a few numbers
would take hours that way; they are fourth-order differences of the complex step, all in the extended precision of
the processor (19 digits), where a complex step of 1e-40 costs no digits at all. ``tests/test_bench_problems.py``
holds the second against the first.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from suite import HESSIAN, VALUE_AND_GRADIENT, Problem, nest

GATE = 1e-11


def reference(problem: Problem, n: int, numbers: np.ndarray) -> np.ndarray:
    """The flat derivative of ``problem`` at the point whose numbers are ``numbers``."""
    if problem.kind == HESSIAN:
        extended = np.finfo(np.longdouble).eps < 1e-18
        return hessian_by_complex_step(problem, n, numbers) if extended else hessian_by_digits(problem, n, numbers)
    return first_by_digits(problem, n, numbers)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest deviation over largest entry; infinite where a derivative has come out as nothing but zeros."""
    if not np.all(np.isfinite(found)) or not np.any(found):
        return float("inf")
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


def active_positions(problem: Problem, n: int) -> list[int]:
    """Where the differentiated numbers stand among a point's numbers."""
    positions, at = [], 0
    for given in problem.inputs:
        if given.active:
            positions += range(at, at + given.count(n))
        at += given.count(n)
    return positions


def _values(problem: Problem, n: int, numbers: list[Any]) -> list[Any]:
    y = problem.primal(mpmath, *nest(problem, n, numbers))
    return y if isinstance(y, list) else [y]


def first_by_digits(problem: Problem, n: int, numbers: np.ndarray) -> np.ndarray:
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -20
        point = [mpmath.mpf(float(a)) for a in numbers]
        columns = []
        for i in active_positions(problem, n):
            up, down = list(point), list(point)
            up[i] += h
            down[i] -= h
            pairs = zip(_values(problem, n, up), _values(problem, n, down))
            columns.append([float((a - b) / (2 * h)) for a, b in pairs])
        jacobian = np.array(columns).T.ravel()
        if problem.kind == VALUE_AND_GRADIENT:
            return np.concatenate([[float(_values(problem, n, point)[0])], jacobian])
        return jacobian


def hessian_by_digits(problem: Problem, n: int, numbers: np.ndarray) -> np.ndarray:
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -15
        point = [mpmath.mpf(float(a)) for a in numbers]
        active = active_positions(problem, n)

        def shifted(i: int, j: int, di: int, dj: int) -> Any:
            at = list(point)
            at[i] += di * h
            at[j] += dj * h
            return _values(problem, n, at)[0]

        signs = [(1, 1), (-1, -1), (1, -1), (-1, 1)]
        return np.array(
            [float(sum(a * b * shifted(i, j, a, b) for a, b in signs) / (4 * h * h)) for i in active for j in active]
        )


def hessian_by_complex_step(problem: Problem, n: int, numbers: np.ndarray) -> np.ndarray:
    """Column j: fourth-order differences along j of the gradient, itself one complex step for all rows at once."""
    active = active_positions(problem, n)
    tiny, h = np.longdouble("1e-40"), np.longdouble("1e-4")
    batch = np.repeat(np.asarray(numbers, np.clongdouble)[:, None], len(active), axis=1)
    for row, position in enumerate(active):
        batch[position, row] += 1j * tiny
    hessian = np.empty((len(active), len(active)))
    for column, position in enumerate(active):
        below = batch[:, column:].copy()  # the rows from the diagonal down; the matrix is symmetric
        step = h * max(abs(np.longdouble(numbers[position])), np.longdouble("0.1"))
        total = np.zeros(len(active) - column, np.longdouble)
        for offset, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            below[position] = batch[position, column:] + offset * step
            total += weight * problem.primal(np, *nest(problem, n, list(below))).imag
        hessian[column:, column] = hessian[column, column:] = (total / (12 * step * tiny)).astype(float)
    return hessian.ravel()
