"""The rule table ``rules.hy``, compiled to matchers.

A rule is data: ``(name pattern => template)``; the table's head explains the notation. ``RULES`` lists them, so that
tests sample each on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..core import Atom, Const, Prim, Var
from .forms import Form, package_text, read_forms


def any_constant(value: Any) -> bool:
    return True


def plain(value: Any) -> bool:
    return 0 <= value < math.inf and math.copysign(1, value) > 0 and type(value) is not bool


#: What the letters for constants ask of them.
_GUARDS = {
    "c": any_constant,
    "d": any_constant,
    "p": lambda value: 1.0 <= abs(value) < 1e30 and abs(math.frexp(value)[0]) == 0.5,
    "w": lambda value: 1.0 <= abs(value) < 1e30,
    "n": lambda value: type(value) is float and value < 0,
    "q": plain,
    "r": plain,
}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    pattern: Form
    template: Form

    @property
    def head(self) -> str:
        return self.pattern.value[0].value


@cache
def rules() -> dict[str, tuple[Rule, ...]]:
    """The rules by the operation that they rewrite."""
    table: dict[str, list[Rule]] = {}
    for form in read_forms(package_text("rules.hy")):
        name, pattern, arrow, template = form.value
        assert arrow.value == "=>", form
        rule = Rule(name.value, pattern, template)
        table.setdefault(rule.head, []).append(rule)
    return {head: tuple(rows) for head, rows in table.items()}


def rewrite(
    name: str,
    args: tuple[Atom, ...],
    definitions: dict[Var, Prim],
    builder: Any,
    like: Any,
    hint: str | None = None,
    given: bool = False,
) -> Atom | None:
    """The first rule's result for ``(name args ...)``, or None; the template's numbers take the type ``like``, its
    outermost operation the name ``hint``."""
    matchers = builder.rewrites.get(name)
    if matchers is None or len(args) != matchers[0]:
        return None
    return matchers[1](builder, definitions, like, hint, given, *args)


# A rule is tried on every operation of every program, so the table is turned into one Python function for each head:
# nested tests, cheapest first, in the order of the table.


@cache
def compiled(off: frozenset[str] = frozenset(), noted: bool = False) -> dict[str, tuple[int, Any]]:
    """For each head its arity and matcher ``(builder, definitions, like, hint, given, operand ...) -> Atom | None``;
    without the rules that are ``off``. ``noted``: a rule that fires is said to the builder."""
    if "rules" in off:
        return {}
    scope: dict[str, Any] = {"Const": Const, "Var": Var, **{f"is_{k}": g for k, g in _GUARDS.items()}}
    made = {}
    for k, (head, rows) in enumerate(rules().items()):
        arity = len(rows[0].pattern.value) - 1
        operands = [f"a{j}" for j in range(arity)]
        lines = [f"def rewrite_{k}(b, defs, like, hint, given, {', '.join(operands)}):"]
        for a in operands:  # what is asked of an operand again and again: whether it is a constant, what made it
            lines += [f"    {a}_const = type({a}) is Const", f"    {a}_op = None if {a}_const else defs.get({a})"]
            lines += [f"    {a}_head = None if {a}_op is None else {a}_op.name"]
        for rule in rows:
            if rule.name in off:
                continue
            tests = _Tests(scope)
            for p, operand in zip(rule.pattern.value[1:], operands):
                tests.match(p, operand)
            template = tests.template(rule.template, ", hint=hint, given=given")
            lines += tests.lines(f"b.fired({rule.name!r}) or {template}" if noted else template)
        lines.append("    return None")
        exec("\n".join(lines), scope)
        made[head] = (arity, scope[f"rewrite_{k}"])
    return made


class _Tests:
    """The conditions of one rule as lines of Python."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.steps: list[tuple[str, str]] = []  # ("if", condition) or ("let", assignment)
        self.guards: list[tuple[str, str]] = []  # tests that cost more: they come last
        self.letters: dict[str, str] = {}
        self.count = 0

    def need(self, condition: str) -> None:
        if ("if", condition) not in self.steps:
            self.steps.append(("if", condition))

    def constant(self, operand: str) -> None:
        self.need(f"{operand}_const" if operand.isalnum() else f"type({operand}) is Const")

    def match(self, pattern: Form, operand: str, soft: bool = False) -> None:
        if pattern.kind == "sym":
            name = pattern.value
            if name in self.letters:
                same = self.letters[name]
                self.need(f"({operand} is {same} or (type({operand}) is Const and {operand} == {same}))")
                return
            self.letters[name] = operand
            if name in _GUARDS:
                self.constant(operand)
                if _GUARDS[name] is not any_constant:
                    self.guards.append(("if", f"is_{name}({operand}.value)"))
        elif pattern.kind == "num":
            self.constant(operand)
            self.need(f"{operand}.value == {pattern.value!r} and type({operand}.value) is not bool")
            if pattern.value == 0 and not soft:
                self.need(f"str({operand}.value)[0] != '-'")  # -0.0 is another number
        elif pattern.value[0].value == "temp":
            self.need(f"type({operand}) is Var and not {operand}.given")
            self.match(pattern.value[1], operand)
        elif pattern.value[0].value == "soft":
            self.constant(operand)
            self.need(f"{operand}.soft")
            self.match(pattern.value[1], operand, soft=True)
        else:
            head, *parts = pattern.value
            op = f"{operand}_op"
            if operand.isalnum():
                self.need(f"{operand}_head == {head.value!r}")
            else:  # inside another operation
                self.count += 1
                op = f"o{self.count}"
                self.need(f"type({operand}) is Var")
                self.steps.append(("let", f"{op} = defs.get({operand})"))
                self.need(f"{op} is not None and {op}.name == {head.value!r}")
            self.need(f"len({op}.args) == {len(parts)}")
            for j, p in enumerate(parts):
                self.match(p, f"{op}.args[{j}]")

    def template(self, form: Form, name: str = "") -> str:
        if form.kind == "sym":
            return self.letters[form.value]
        if form.kind == "num":
            return f"b.number({form.value!r}, like)"
        head, *args = form.value
        if head.value == "soft":
            return f"b.number({args[0].value!r}, like, soft=True)"
        if head.value == "fold":
            return f"b.fold({args[0].value!r}, {', '.join(self.letters[a.value] for a in args[1:])})"
        parts = ", ".join(map(self.template, args))
        return f"b.select({parts})" if head.value == "select" else f"b.prim({head.value!r}, {parts}{name})"

    def lines(self, template: str) -> list[str]:
        out, depth, tests = [], 1, []
        for kind, text in [*self.steps, *self.guards, ("let", f"return {template}")]:
            if kind == "if":
                tests.append(text)
                continue
            if tests:
                out.append("    " * depth + f"if {' and '.join(tests)}:")
                depth, tests = depth + 1, []
            out.append("    " * depth + text)
        return out
