"""LANGUAGE.md is true: its forms give the values that it shows, compiled and define by run; it names all functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hy
import numpy as np
import pytest

import hyad
from hyad.plain_python import python_callable
from hyad.program.forms import prelude_texts, read_forms
from hyad.program.primitives import BUILTIN, PRIMITIVES
from hyad.program.reader import SPECIAL

TEXT = (Path(__file__).resolve().parent.parent / "LANGUAGE.md").read_text(encoding="utf-8")
V, M = np.array([3.0, 1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
#: What functions of the prelude need and no user does.
INTERNAL = set(
    "full-from product-from size-from row-size element-at reshape-from along-from where-fits where-part put-there"
    " by-rows reshape-rows rolled repeated times-row times-hessian"
    " along-pairs along-triples substitute-down substitute-up lu"
    " lu-solve lu-solve-transposed lu-inverse in-order-of index-below solve-factored solve-transposed lu-det"
    " order-sign half-lower over-pivot substitute-down-transposed substitute-up-transposed solve-lower-transposed"
    " solve-upper-transposed inv-one inv-factored mirrored-solve cholesky-rows cholesky-adjoint permuted"
    " place-left swap-first to-first first-to axis-of moved swapped joined concatenate-from concatenate-along"
    " along-two backwards size-of product-of-sizes steps finite-max doublings in-order within"
    " in-rising-order in-order-by-counting merged-runs merge-point at-place"
    " solve-two inv-two det-two logdet-two well-scaled upper-right"
    " expand-among is-among place-of solve-one det-of-one logdet-of-one cholesky-of-one vstack-from"
    " column-stack-from pad-from pad-width padded trapezia interp-at reduced of-rows axes-last axis-left tile-from"
    " banded band-rows band-lu band-step band-solve band-down band-down-exchanged band-up band-solve-transposed"
    " band-up-exchanged with-zeros band-product band-times band-sum band-outer turned-rows solve-banded"
    " solve-banded-transposed noted-product in-brackets bracketed of-parts range-step true-or-not-zero"
    " tiled nth-differences steps-along var-over rows-in-order unit-lower-inverse solve-from-left lu-logdet"
    " by-lower-triangle folded-down mirrored factored-symmetric eliminate-symmetric forward-symmetric over-diagonal"
    " backward-symmetric substitute-symmetric solve-symmetric quadratic-form inv-symmetric inverse-below"
    " logdet-symmetric below-part".split()
)


def examples() -> list[tuple[str, str]]:
    found = []
    for block in re.findall(r"^```hy\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        for form in read_forms(block):
            value = re.match(r"\s*; => (.*)", block[form.span.end :])
            assert value, form
            found.append((form.span.text, value[1]))
    return found


def value_of(text: str) -> Any:
    return hy.eval(hy.read(text))


def agree(got: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(got, tuple) and len(got) == len(wanted)
        for x, y in zip(got, wanted):
            agree(x, y)
    else:
        assert np.shape(got) == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form, value", examples())
def test_an_example(form: str, value: str) -> None:
    model = hyad.model(f"(fn [v m p] {form})", namespace={})
    wanted, args = value_of(value), (V, M, {"a": 2.0})
    agree(python_callable(model.optimised(model.specs(args)))(*args), wanted)
    agree(hyad.run(model, *args), wanted)


def test_every_function_is_named() -> None:
    names = {name.partition("/")[0] for name in prelude_texts() if not name.startswith("list-")}
    assert names >= INTERNAL
    words = set(re.findall(r"[^\s()\[\]`]+", TEXT))
    assert not names - INTERNAL - words


def test_the_functions_of_numbers_and_the_reserved_names_are_named() -> None:
    paragraphs = TEXT.split("\n\n")
    (numbers,) = (p for p in paragraphs if p.startswith("The functions of numbers are"))
    primitives = {PRIMITIVES[name].surface or name for name in BUILTIN} - {
        "pass-on",
        "logaddexp-slope",
        "logaddexp-other",
    }
    assert primitives <= set(re.findall(r"[^\s()`,;]+", numbers))
    (reserved,) = (p for p in paragraphs if p.startswith("The names of the language's forms are reserved"))
    assert set(re.findall(r"`([^`]+)`", reserved.partition(". All others")[0])) == SPECIAL
