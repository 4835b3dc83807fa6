"""Random array programs: what the optimiser makes of their derivatives has the values of what differentiation makes.

At sizes of 0, 1 and more of one compiled program: nothing that an empty loop does not read may be read before it. What
is no derivative is computed as it is written, in its order, to the last bit: random programs, and nests of sums.
``HYAD_ARRAY_PROGRAMS=2000`` draws more, from ``HYAD_PROPERTY_SEED`` on.
"""

from __future__ import annotations

import os
import random
import re
import warnings
from typing import Any

import numpy as np
import pytest

import array_programs
import hyad
from hyad.core import Program
from hyad.errors import HyadError
from hyad.model import Model
from hyad.passes.optimise import PIPELINE, WITH_VECTORS, optimise
from hyad.plain_python import python_callable
from hyad.program.journal import without

COUNT = int(os.environ.get("HYAD_ARRAY_PROGRAMS", "20"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
SIZES = ((0, 0), (1, 2), (3, 4), (4, 0), (0, 3))
DERIVATIVES = re.compile(r"\((grad|jvp|vjp|hvp|hessian|jacobian|deriv|D|ruled) ")
OPERATORS = (hyad.value_and_grad, hyad.value_and_grad, lambda f: hyad.hessian(f, wrt="v"), lambda f: f)


def program(model: Model, args: tuple[Any, ...], off: Any = ()) -> Program:
    with without(off):
        try:
            typed = model.program(model.specs(args))
        except hyad.NotCompiled as refused:  # ``set-at!`` of an array that another value holds
            pytest.skip(refused.message)
        return optimise(typed, [*PIPELINE, *WITH_VECTORS])


def flat(value: Any) -> np.ndarray:
    parts = [flat(x) for x in value] if isinstance(value, tuple) else [np.ravel(np.asarray(value, float))]
    return np.concatenate(parts)


def result(f: Any, args: tuple[Any, ...]) -> Any:
    """The numbers of a result, or None where a check fails."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return flat(f(*args))
        except HyadError:
            return None


@pytest.mark.some(6)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_optimised_and_not(seed: int) -> None:
    text = array_programs.text(seed)
    model = OPERATORS[seed % 4](hyad.model(text, namespace={}))
    given = array_programs.arguments(seed, 3, 2)
    everything = list(hyad.optimisations())
    plain, whole, partly = (
        python_callable(program(model, given, off))
        for off in (everything, (), random.Random(seed).sample(everything, 2))
    )
    for n, m in SIZES:
        args = array_programs.arguments(seed, n, m)
        wanted = result(plain, args)
        for made in (whole, partly):
            got = result(made, args)
            if got is None and min(n, m) < 2:  # what only an empty loop would have needed is required as well
                continue
            assert (got is None) == (wanted is None), (n, m, text)
            if wanted is not None:
                scale = np.max(np.abs(wanted), initial=1.0, where=np.isfinite(wanted))
                if scale < 1e12:
                    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10 * scale, err_msg=text)


def exactly_as_written(text: str, seed: int, sizes: tuple[tuple[int, int], ...]) -> None:
    model, given = hyad.model(text, namespace={}), array_programs.arguments(seed, 3, 2)
    plain, whole = (python_callable(program(model, given, off)) for off in (hyad.optimisations(), ()))
    for n, m in sizes:
        args = array_programs.arguments(seed, n, m)
        wanted, got = result(plain, args), result(whole, args)
        if wanted is not None and got is not None:
            np.testing.assert_array_equal(got, wanted, err_msg=f"{n, m, text}")
            np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(wanted[wanted == 0]), err_msg=text)


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_what_is_no_derivative_is_as_written(seed: int) -> None:
    text = array_programs.text(seed)
    if DERIVATIVES.search(text) is None:
        exactly_as_written(text, seed, SIZES)


@pytest.mark.parametrize("seed", [59, *range(FIRST, FIRST + COUNT)])
def test_sums_have_their_order(seed: int) -> None:
    """Seed 59: sums over one axis inside another, in one number, for each element of a third."""
    exactly_as_written(array_programs.nest(seed), seed, ((0, 0), (1, 2), (3, 4), (13, 9)))
