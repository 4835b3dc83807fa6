"""Mean programs of the whole language, ``data/whole.json``: run as they are read, and compiled as C and as Python,
each against the oracle's differences. ``"compiled": false`` marks those that can only be run: why must be said.
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import hy
import numpy as np
import pytest

import hyad
import oracle

CASES = json.loads((Path(__file__).parent / "data" / "whole.json").read_text(encoding="utf-8"))


def given(case: dict[str, Any]) -> tuple[hyad.Model, tuple[Any, ...]]:
    """The model, its data types defined, and its arguments."""
    module = types.ModuleType("whole")
    names = module.__dict__
    for form in hy.read_many("(import hyad) (require hyad.macros [defmodel defdata])" + case.get("definitions", "")):
        hy.eval(form, names, module=module)
    array = np.array
    args = eval(case["args"], {**names, "array": array, "lisp": hyad.lisp, "inl": hyad.inl, "inr": hyad.inr})
    return hyad.model(case["program"], namespace=names), args


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_a_program(case: dict[str, Any]) -> None:
    model, args = given(case)
    expected = oracle.evaluate(case["program"], *args, definitions=case.get("definitions", ""))
    found = {"run": hyad.run(model, *args)}
    if case.get("compiled", True):
        found |= {target: hyad.compile(model, target=target, args=args)(*args) for target in ("c", "python")}
    else:
        with pytest.raises(hyad.HyadError) as caught:
            hyad.compile(model, args=args)
        assert type(caught.value).__name__ == "NotCompiled" and caught.value.span is not None
        with pytest.warns(UserWarning, match="runs as it is read"):
            found["called"] = model(*args)
    for how, value in found.items():
        wrong = oracle.mismatch(value, expected, 1e-9)
        assert wrong is None, f"{how}: {wrong}"
