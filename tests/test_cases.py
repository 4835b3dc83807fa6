"""The public cases: programs in a neutral notation, with values that four independent engines agreed on.

``data/cases.json`` holds those that this version's language covers, as they are; here they are translated to models,
run in C and as plain Python, and in every mode that the operators at their head allow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
import oracle
from hyad.forms import Form, read_forms, unparse

CASES = json.loads((Path(__file__).parent / "data" / "cases.json").read_text(encoding="utf-8"))["cases"]
RENAMED = {
    "lambda": "fn",
    "begin": "do",
    "pow": "**",
    "mod": "%",
    "quot": "//",
    "pair": "tuple",
    "index": "get",
    "length": "len",
    "true": "True",
    "false": "False",
    "vset": "update",
    "vcopy": "copy",
}


def translate(form: Form) -> Form:
    """A form of the neutral notation as one of hyad's."""
    if form.kind == "sym":
        numerator, slash, denominator = form.value.partition("/")
        if slash and numerator.lstrip("-").isdigit() and denominator.isdigit():
            return Form("(", [Form("sym", "/"), Form("num", int(numerator)), Form("num", int(denominator))])
        return Form("sym", RENAMED.get(form.value, form.value))
    if not form.is_list or not form.value:
        return form
    head, rest = form.head(), form.value[1:]
    if head == "lambda":
        return Form("(", [Form("sym", "fn"), Form("[", rest[0].value), *map(translate, rest[1:])])
    if head == "let":
        pairs = [part for binding in rest[0].value for part in (binding.value[0], translate(binding.value[1]))]
        return Form("(", [Form("sym", "let"), Form("[", pairs), *map(translate, rest[1:])])
    if head == "field":
        return Form("(", [Form("sym", "."), translate(rest[0]), rest[1]])
    if head == "vector":
        return Form("[", list(map(translate, rest)))
    if head in ("tuple", "pair", "cons"):
        return Form("#(", list(map(translate, rest)))
    return Form("(", list(map(translate, form.value)))


def model_text(program: str) -> str:
    (form,) = read_forms(program)
    return unparse(translate(form))


def decode(value: Any) -> Any:
    """A value of the notation as a model takes it."""
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        assert kind in ("tuple", "pair", "record")
        if kind == "record":
            return {k: decode(v) for k, v in content.items()}
        return tuple(map(decode, content))
    return np.array(value) if isinstance(value, list) else value


def runs() -> list[Any]:
    return [
        pytest.param(c, k, id=f"{c['id']}-{k}" if len(c["inputs"]) > 1 else c["id"])
        for c in CASES
        for k in range(len(c["inputs"]))
    ]


def test_the_table_is_not_empty() -> None:
    assert len(CASES) >= 15


@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("c, k", runs())
def test_case(c: dict[str, Any], k: int, target: str) -> None:
    text, args = model_text(c["program"]), tuple(map(decode, c["inputs"][k]))
    got = hyad.compile(hyad.model(text, namespace={}), target=target, args=args)(*args)
    found = oracle.mismatch(got, decode(c["expected"][k]), c["tolerance"]["rtol"], c["tolerance"]["atol"])
    assert found is None, f"{c['note']}: {found}"


@pytest.mark.parametrize("c, k", runs())
def test_the_oracle_agrees(c: dict[str, Any], k: int) -> None:
    """The values here, the oracle's differences and the engine say the same."""
    if "numerical-trap" in c["tags"] and "conditional" in c["tags"]:
        return  # a difference across the edge of a guard says nothing: test_case has its value
    text, args = model_text(c["program"]), tuple(map(decode, c["inputs"][k]))
    found = oracle.mismatch(oracle.evaluate(text, *args), decode(c["expected"][k]), 1e-9, 1e-12)
    assert found is None, found


@pytest.mark.parametrize("mode", ["grad", "jvp", "vjp", "jacobian"])
@pytest.mark.parametrize("c, k", runs())
def test_operators_exchanged(c: dict[str, Any], k: int, mode: str) -> None:
    """``D`` of a function of one number is its grad, its jvp along 1, its vjp for 1, its jacobian."""
    text = model_text(c["program"])
    nested = {"function-valued-result"} & set(c["tags"])
    if "(D " not in text or nested:
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
    args = tuple(map(decode, c["inputs"][k]))
    got = hyad.compile(hyad.model(text, namespace={}), target="python", args=args)(*args)
    found = oracle.mismatch(got, decode(c["expected"][k]), c["tolerance"]["rtol"], c["tolerance"]["atol"])
    assert found is None, f"{text}: {found}"


def replaced(form: Form) -> Form:
    if not form.is_list:
        return form
    items = list(map(replaced, form.value))
    if form.head() == "D":
        items[0] = Form("sym", "d0")
    return Form(form.kind, items)
