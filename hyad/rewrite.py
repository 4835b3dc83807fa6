"""The rule table ``rules.hy``, compiled to matchers.

A rule is data: ``(name pattern => template)``; the table's head explains the notation. ``RULES`` lists them, so that
tests sample each on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .core import Atom, Const, Prim, Var
from .forms import Form, read_forms

_CONSTANTS = frozenset("cdpn")


#: What the letters for constants ask of them.
_GUARDS = {
    "c": lambda value: True,
    "d": lambda value: True,
    "p": lambda value: math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 and 1e-30 < abs(value) < 1e30,
    "n": lambda value: type(value) is float and value < 0,
}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    pattern: Form
    template: Form
    wants: tuple[str | None, ...] = ()  # of each operand: "const", the operation that made it, or None: anything

    @property
    def head(self) -> str:
        return self.pattern.value[0].value


@cache
def rules() -> dict[str, tuple[Rule, ...]]:
    """The rules by the operation that they rewrite."""
    table: dict[str, list[Rule]] = {}
    for form in read_forms((Path(__file__).parent / "rules.hy").read_text(encoding="utf-8")):
        name, pattern, arrow, template = form.value
        assert arrow.value == "=>", form
        rule = Rule(name.value, pattern, template, tuple(map(wanted, pattern.value[1:])))
        table.setdefault(rule.head, []).append(rule)
    return {head: tuple(rows) for head, rows in table.items()}


def wanted(pattern: Form) -> str | None:
    """What an operand must be for a pattern to stand a chance."""
    if pattern.kind == "sym":
        return "const" if pattern.value in _CONSTANTS else None
    if pattern.kind == "num" or pattern.value[0].value == "soft":
        return "const"
    return pattern.value[0].value


def match(pattern: Form, atom: Atom, definitions: dict[Var, Prim], found: dict[str, Atom]) -> bool:
    """Whether ``atom`` is what ``pattern`` describes; ``found`` then holds what the letters stand for."""
    kind = pattern.kind
    if kind == "sym":
        name = pattern.value
        if name in _CONSTANTS and (type(atom) is not Const or not _GUARDS[name](atom.value)):
            return False
        seen = found.get(name)
        if seen is None:
            found[name] = atom
            return True
        return seen is atom or (type(seen) is Const and seen == atom)
    if kind == "num":
        return type(atom) is Const and type(atom.value) is not bool and atom.value == pattern.value
    head = pattern.value[0].value
    if head == "soft":
        return type(atom) is Const and atom.soft and match(pattern.value[1], atom, definitions, found)
    if type(atom) is not Var:
        return False
    op = definitions.get(atom)
    if op is None or op.name != head or len(op.args) != len(pattern.value) - 1:
        return False
    return all(match(p, a, definitions, found) for p, a in zip(pattern.value[1:], op.args))


def instantiate(template: Form, found: dict[str, Atom], builder: Any, like: Any) -> Atom:
    """Build a template; its numbers take the type ``like``."""
    if template.kind == "sym":
        return found[template.value]
    if template.kind == "num":
        return builder.number(template.value, like)
    head, *args = template.value
    if head.value == "soft":
        return builder.number(args[0].value, like, soft=True)
    if head.value == "fold":
        return builder.fold(args[0].value, *(found[a.value] for a in args[1:]))
    atoms = [instantiate(a, found, builder, like) for a in args]
    return builder.select(*atoms) if head.value == "select" else builder.prim(head.value, *atoms)


def rewrite(name: str, args: tuple[Atom, ...], definitions: dict[Var, Prim], builder: Any, like: Any) -> Atom | None:
    """The first rule's result for ``(name args ...)``, or None."""
    candidates = rules().get(name)
    if candidates is None:
        return None
    kinds: list[str | None] = []
    for a in args:
        if type(a) is Const:
            kinds.append("const")
        else:
            op = definitions.get(a)
            kinds.append(op.name if op is not None else None)
    for rule in candidates:
        if len(rule.wants) != len(kinds):
            continue
        for want, kind in zip(rule.wants, kinds):
            if want is not None and want != kind:
                break
        else:
            found: dict[str, Atom] = {}
            parts = rule.pattern.value
            if all(match(p, a, definitions, found) for p, a in zip(parts[1:], args)):
                return instantiate(rule.template, found, builder, like)
    return None
