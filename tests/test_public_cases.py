"""Programs in a neutral notation with known values: ``data/public.json``, on which four independent engines agreed, and
``data/more.json`` and ``data/mean.json``, ours of the same kinds, whose values are the oracle's (``neutral.py``
translates).

Each is run as it is read, and compiled where it types: ``NOT_COMPILED`` names those that do not, and is exact.
"""

from __future__ import annotations

from typing import Any

import pytest

import hyad
import neutral
import oracle
from hyad.program.forms import Form, read_forms, unparse

CASES = [*neutral.cases("public.json"), *neutral.cases("more.json")]
MEAN = neutral.cases("mean.json")

#: Programs that have no typed program: they run as they are read. A case that does compile must not stand here.
NOT_COMPILED: dict[str, str] = {
    "vlad-runtime-order": "the order of differentiation is known at run time only",
    "nth-derivative-inside-grad": "the order of differentiation is known at run time only",
}


def runs(cases: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(c, k, id=f"{c['id']}-{k}" if len(c["inputs"]) > 1 else c["id"])
        for c in cases
        for k in range(len(c["inputs"]))
    ]


def wrong(got: Any, c: dict[str, Any], k: int) -> str | None:
    tolerance = c.get("tolerance", {"rtol": 1e-9, "atol": 1e-11})
    return oracle.mismatch(got, neutral.decode(c["expected"][k]), tolerance["rtol"], tolerance["atol"])


def given(c: dict[str, Any], k: int) -> tuple[hyad.Model, tuple[Any, ...]]:
    text = neutral.model_text(c["program"])
    return hyad.model(text, namespace={}), tuple(map(neutral.decode, c["inputs"][k]))


@pytest.mark.parametrize("c, k", runs(CASES))
def test_run(c: dict[str, Any], k: int) -> None:
    model, args = given(c, k)
    found = wrong(hyad.run(model, *args), c, k)
    assert found is None, f"{c.get('note')}: {found}"


@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("c, k", runs(CASES))
def test_compiled(c: dict[str, Any], k: int, target: str) -> None:
    model, args = given(c, k)
    if c["id"] in NOT_COMPILED:
        with pytest.raises(hyad.NotCompiled):
            hyad.compile(model, target=target, args=args)
        return
    found = wrong(hyad.compile(model, target=target, args=args)(*args), c, k)
    assert found is None, f"{c.get('note')}: {found}"


@pytest.mark.some(10)
@pytest.mark.parametrize("c", MEAN, ids=[c["id"] for c in MEAN])
def test_a_mean_program(c: dict[str, Any]) -> None:
    """As it is read and in C, for all inputs; in Python for the first."""
    for k in range(len(c["inputs"])):
        model, args = given(c, k)
        found = {"run": wrong(hyad.run(model, *args), c, k)}
        for target in ("c", "python")[: 1 if k else 2]:
            found[target] = wrong(hyad.compile(model, target=target, args=args)(*args), c, k)
        assert not any(found.values()), (k, found)


def test_the_table_names_cases() -> None:
    assert NOT_COMPILED.keys() <= {c["id"] for c in CASES}


@pytest.mark.parametrize("mode", ["grad", "jvp", "vjp", "jacobian"])
@pytest.mark.parametrize("c, k", runs(CASES))
def test_operators_exchanged(c: dict[str, Any], k: int, mode: str) -> None:
    """``D`` of a function of one number is its grad, its jvp along 1, its vjp for 1, its jacobian."""
    text = neutral.model_text(c["program"])
    structured = {"function-valued-result", "structured-result"} & set(c["tags"])
    if "(D " not in text or structured and mode != "jvp":
        return
    other = {
        "grad": "(fn [f0] (grad f0))",
        "jvp": "(fn [f0] (fn [x0] (jvp f0 x0 1.0)))",
        "vjp": "(fn [f0] (fn [x0] (vjp f0 x0 1.0)))",
        "jacobian": "(fn [f0] (jacobian f0))",
    }[mode]
    (form,) = read_forms(text)
    head = unparse(Form("[", form.value[1].value))
    text = f"(fn {head} (let [d0 {other}] {unparse(replaced(form.value[2]))}))"
    args = tuple(map(neutral.decode, c["inputs"][k]))
    found = wrong(hyad.run(text, *args), c, k)
    assert found is None, f"{text}: {found}"


def replaced(form: Form) -> Form:
    if form.kind == "sym" and form.value == "D":
        return Form("sym", "d0")
    return Form(form.kind, list(map(replaced, form.value))) if form.is_list else form


@pytest.mark.parametrize("c, k", runs(CASES))
def test_the_oracle_agrees(c: dict[str, Any], k: int) -> None:
    """The values here and the differences of an interpreter that shares nothing with the engine say the same."""
    if "no-difference" in c["tags"] or {"numerical-trap", "conditional"} <= set(c["tags"]):
        return  # a difference across a kink or the edge of a guard says nothing: test_run has its value
    text, args = neutral.model_text(c["program"]), tuple(map(neutral.decode, c["inputs"][k]))
    found = wrong(oracle.evaluate(text, *args), c, k)
    assert found is None, found
