"""S-expressions with their places: Hy's syntax as far as models use it.

Hy's own reader gives no way to a model of 10,000 bindings (quadratic in depth, a recursion error at depth 100), so
hyad reads its own text, in one linear pass without recursion. ``read_forms`` agrees with ``hy.read_many`` on every
form of the language; a test holds the two against each other.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import ReadError, Source, Span


@dataclass(slots=True, eq=False)
class Form:
    """One form. ``kind`` is ``"("``, ``"["``, ``"#("``, ``"{"`` or ``"#^"`` with a list of forms as ``value``
    (an annotation has two: the type, then what it annotates), or ``sym``, ``num``, ``str``, ``key`` with the atom."""

    kind: str
    value: Any
    span: Span | None = None

    @property
    def is_list(self) -> bool:
        return type(self.value) is list

    def head(self) -> str | None:
        """The symbol that a parenthesised form starts with."""
        if self.kind == "(" and self.value and self.value[0].kind == "sym":
            return self.value[0].value
        return None

    def __str__(self) -> str:
        return unparse(self)


_TOKEN = re.compile(
    r"""(?P<space>[\s]+|;[^\n]*)
      | (?P<open>\#\(|\(|\[|\#\{|\{)
      | (?P<close>[)\]}])
      | (?P<prefix>\#\^|\#_|'|`|~@|~)
      | (?P<str>[brf]{0,2}"(?:[^"\\]|\\.)*")
      | (?P<atom>[^\s()\[\]{}";'`~]+)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(\d[\d_,]*(\.[\d_]*)?|\.\d[\d_]*)([eE][+-]?\d+)?\Z|[+-]?0[xX][\da-fA-F_]+\Z")
_PREFIXES = {"#_": "it leaves out the form behind it", "#^": "`#^ Real x` annotates x"}
_CLOSER = {"(": ")", "[": "]", "{": "}", "#(": ")", "#{": "}"}
_NAMED = {"True": True, "False": False, "NaN": float("nan"), "Inf": float("inf"), "-Inf": -float("inf")}


def read_forms(text: str, source: Source | None = None) -> list[Form]:
    """Every form of ``text``.

    Raises ``ReadError``: an unclosed or unmatched bracket, an unterminated string, a quote.
    """
    source = source or Source(text)
    stack: list[Form] = []  # the open brackets and pending prefixes
    top: list[Form] = []
    items = top
    position, length = 0, len(text)
    scan = _TOKEN.match

    def close_prefixes(form: Form, items: list[Form]) -> list[Form]:
        """Give ``form`` to the prefixes that wait for it; the list that comes next."""
        while stack and stack[-1].kind in ("#_", "#^"):
            prefix = stack[-1]
            if prefix.kind == "#_":
                stack.pop()
                return stack[-1].value if stack else top
            prefix.value.append(form)
            if len(prefix.value) < 2:
                return prefix.value
            stack.pop()
            prefix.span = Span(source, prefix.span.start, form.span.end)
            form, items = prefix, (stack[-1].value if stack else top)
        items.append(form)
        return items

    while position < length:
        found = scan(text, position)
        if found is None:
            raise ReadError("this string has no end", Span(source, position, length), 'close it with a `"`')
        kind, start, position = found.lastgroup, position, found.end()
        if kind == "space":
            continue
        token = found.group()
        if kind == "open":
            if token == "#{":
                raise ReadError("a model has no sets", Span(source, start, position), "use `[...]` for an array")
            form = Form(token, [], Span(source, start, position))
            stack.append(form)
            items = form.value
        elif kind == "close":
            if stack and stack[-1].kind in ("#_", "#^"):
                raise ReadError(f"nothing follows this `{stack[-1].kind}`", stack[-1].span, _PREFIXES[stack[-1].kind])
            if not stack or _CLOSER.get(stack[-1].kind) != token:
                opened = [("it would close this", stack[-1].span)] if stack else []
                raise ReadError(f"unmatched `{token}`", Span(source, start, position), notes=opened)
            form = stack.pop()
            form.span = Span(source, form.span.start, position)
            items = close_prefixes(form, stack[-1].value if stack else top)
        elif kind == "prefix":
            if token not in ("#_", "#^"):
                raise ReadError("a model has no quoted forms", Span(source, start, position), "write the form itself")
            stack.append(Form(token, [], Span(source, start, position)))
            items = stack[-1].value
        else:
            items = close_prefixes(_atom(kind, token, Span(source, start, position)), items)
    if stack and stack[-1].kind in ("#_", "#^"):
        raise ReadError(f"nothing follows this `{stack[-1].kind}`", stack[-1].span, _PREFIXES[stack[-1].kind])
    if stack:
        raise ReadError(
            f"this `{stack[-1].kind}` is never closed", stack[-1].span, f"a `{_CLOSER[stack[-1].kind]}` is missing"
        )
    return top


def _atom(kind: str, token: str, span: Span) -> Form:
    if kind == "str":
        import ast

        prefix, body = token.split('"', 1)
        try:
            return Form("str", ast.literal_eval(f'{prefix.replace("f", "")}"""{body[:-1]} """')[:-1], span)
        except (SyntaxError, ValueError):
            raise ReadError(
                "this string has an escape that Python cannot read", span, "write `\\\\` for `\\`"
            ) from None
    first = token[0]
    if (first.isdigit() or first in "+-.") and _NUMBER.match(token):
        text = token.replace("_", "").replace(",", "")
        if "x" in text or "X" in text:
            return Form("num", int(text, 16), span)
        whole = text.lstrip("+-").isdigit()
        if whole and len(text) > 4000:
            raise ReadError(f"a number of {len(text)} digits", span, "write a real: `1e20`")
        return Form("num", int(text) if whole else float(text), span)
    if token in _NAMED:
        return Form("num", _NAMED[token], span)
    if first == ":" and len(token) > 1:
        return Form("key", token[1:], span)
    return Form("sym", token, span)


def from_hy(model: Any) -> Form:
    """A form that a macro made (``hy.models``), which has no text of its own."""
    import hy.models as m

    span = None
    if isinstance(model, m.Expression) and len(model) == 3 and model[0] == m.Symbol("annotate"):
        return Form("#^", [from_hy(model[2]), from_hy(model[1])], span)
    for kind, of in (("(", m.Expression), ("[", m.List), ("#(", m.Tuple), ("{", m.Dict)):
        if isinstance(model, of):
            return Form(kind, [from_hy(x) for x in model], span)
    if isinstance(model, m.Symbol):
        name = str(model)
        return Form("num", _NAMED[name], span) if name in _NAMED else Form("sym", name, span)
    if isinstance(model, m.Keyword):
        return Form("key", model.name, span)
    if isinstance(model, (m.String, str)):
        return Form("str", str(model), span)
    if isinstance(model, bool):
        return Form("num", model, span)
    if isinstance(model, int):
        return Form("num", int(model), span)
    if isinstance(model, float):
        return Form("num", float(model), span)
    if isinstance(model, (list, tuple)):
        return Form("[" if isinstance(model, list) else "#(", [from_hy(x) for x in model], span)
    raise ReadError(f"a model cannot hold {type(model).__name__} {model!r}")


def number_text(value: Any) -> str:
    """A number as Hy reads it."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        if value != value:
            return "NaN"
        if value in (float("inf"), -float("inf")):
            return "Inf" if value > 0 else "-Inf"
    return repr(value)


def unparse(form: Form) -> str:
    """The form on one line."""
    out: list[str] = []
    stack: list[Any] = [form]
    while stack:
        x = stack.pop()
        if type(x) is str:
            out.append(x)
        elif x.kind == "#^":
            stack.extend([x.value[1], " ", x.value[0], "#^ "])
        elif x.is_list:
            out.append(x.kind)
            stack.append(_CLOSER[x.kind])
            for i in range(len(x.value) - 1, -1, -1):
                stack.append(x.value[i])
                if i:
                    stack.append(" ")
        elif x.kind == "num":
            out.append(number_text(x.value))
        elif x.kind == "str":
            out.append('"' + x.value.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            out.append((":" if x.kind == "key" else "") + x.value)
    return "".join(out)


@cache
def prelude_texts() -> dict[str, str]:
    """The text of each function of ``prelude.hy`` by its name. A form begins at the beginning of a line."""
    text = package_text("prelude.hy")
    starts = [(m[1], m.start()) for m in re.finditer(r"^\(defmodel (\S+)", text, re.MULTILINE)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    return {name: text[start:end] for (name, start), end in zip(starts, ends)}


def package_text(name: str) -> str:
    """A Hy file of hyad, as text: tables and the prelude are data to hyad's own reader."""
    hyad = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(hyad, name), encoding="utf-8") as file:
        return file.read()
