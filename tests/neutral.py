"""The neutral notation of ``data/public.json``: its programs as models, its values as Python's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import hyad
from hyad.program.forms import Form, read_forms, unparse
from hyad.program.reader import SPECIAL

DATA = Path(__file__).parent / "data"
RENAMED = {
    "pow": "**",
    "mod": "%",
    "quot": "//",
    "pair": "cons",
    "index": "get",
    "length": "len",
    "true": "True",
    "false": "False",
    "vset": "update",
    "vset!": "set-at!",
    "vcopy": "copy",
    "vector": "array",
}


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text(encoding="utf-8"))["cases"]


def bracket(items: list[Form]) -> Form:
    return Form("[", items)


def call(*items: Form | str) -> Form:
    return Form("(", [Form("sym", x) if isinstance(x, str) else x for x in items])


def translate(form: Form, bound: frozenset[str] = frozenset()) -> Form:
    """A form of the neutral notation as one of hyad's; ``bound`` are the names that it is in the scope of."""
    if form.kind == "sym":
        return symbol(form.value, bound)
    if not form.is_list or not form.value:
        return form
    head, rest = form.head(), form.value[1:]
    if head in bound:
        head = None
    if head == "lambda":
        inner = bound | {p.value for p in rest[0].value}
        return call("fn", bracket([local(p) for p in rest[0].value]), *(translate(x, inner) for x in rest[1:]))
    if head == "let":
        pairs: list[Form] = []
        for name, value in (b.value for b in rest[0].value):
            pairs += [local(name), translate(value, bound)]
            bound |= {name.value}
        return call("let", bracket(pairs), *(translate(x, bound) for x in rest[1:]))
    if head == "letrec":
        bound |= {b.value[0].value for b in rest[0].value}
        pairs = [x for b in rest[0].value for x in (local(b.value[0]), translate(b.value[1], bound))]
        return call("letrec", bracket(pairs), *(translate(x, bound) for x in rest[1:]))
    if head == "case":
        arms: list[Form] = []
        for arm in rest[1:]:
            side, name, value = arm.value
            arms += [call(side, local(name)), translate(value, bound | {name.value})]
        return call("case", translate(rest[0], bound), *arms)
    if head == "field":
        return call(".", translate(rest[0], bound), rest[1])
    items = [translate(x, bound) for x in rest]
    if head == "vector" and items:
        return bracket(items)
    if head == "tuple":
        return Form("#(", items)
    if head == "pair":
        return Form("#(", items)
    if head == "begin":
        return call("do", *items)
    if head in ("if", "while"):
        return call(head, *items)
    return Form("(", [translate(form.value[0], bound), *items])


def local(name: Form) -> Form:
    return Form("sym", f"{name.value}-" if name.value in SPECIAL else name.value)


def symbol(name: str, bound: frozenset[str]) -> Form:
    if name in bound:
        return local(Form("sym", name))
    numerator, slash, denominator = name.partition("/")
    if slash and numerator.lstrip("-").isdigit() and denominator.isdigit():
        return call("/", Form("num", int(numerator)), Form("num", int(denominator)))
    return Form("sym", RENAMED.get(name, name))


def model_text(program: str) -> str:
    """The text of the model that a program is."""
    (form,) = read_forms(program)
    return unparse(translate(form))


def decode(value: Any) -> Any:
    """A value of the notation as a model takes it. A vector of what is no number is a Python list."""
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "record":
            return {k: decode(v) for k, v in content.items()}
        if kind in ("inl", "inr"):
            return getattr(hyad, kind)(decode(content))
        items = tuple(map(decode, content))
        return hyad.lisp(items) if kind == "list" else items
    if isinstance(value, list):
        items = [decode(x) for x in value]
        numeric = all(isinstance(x, (int, float, np.ndarray)) and not isinstance(x, bool) for x in items)
        return np.array(items) if numeric and len({np.shape(x) for x in items}) <= 1 else items
    return value
