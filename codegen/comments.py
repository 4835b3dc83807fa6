"""The forms of the model as comments on the lines of C.

A form stands where code that came from it first does, its inner forms left out where the line has no room for them.
Lines that follow and came from it too have none. A later line, in a derivative's backward part above all, names what
the model binds to the form, and where it binds nothing to it repeats the form's outline.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from hyad.core import Program, all_binds
from hyad.errors import Span

from .expressions import WIDTH, wrapped
from .identifiers import identifier
from .operands import Line

OUTLINE = 32  # of a form that is not quoted in full
LONG = 2000  # characters of a form that are looked at: a nested model is as deep as it is long, and each line quotes it
_BARE = re.compile(r"(double|float|long long|int) [\w, ]+;|HYAD_\w+|[#}].*")  # lines that need none of their own
_BRACKETS = re.compile(r"[\[\]]")
_CLOSING = re.compile(r"([()\[\]{}])")


class Comments:
    """Writes lines with their comments, or with ``#line`` before them; forms that it has quoted it knows again."""

    def __init__(self, program: Program, line_directives: bool = False):
        self.line_directives = line_directives
        self.bound = bound_forms(program)
        self.again: dict[tuple, str] = {}  # for forms that stand in full further up
        if program.span is not None:  # above the function
            self.again[_place(program.span)] = "from the model"

    def text(self, lines: Sequence[Line]) -> list[str]:
        out: list[str] = []
        where: tuple[str, int] | None = None
        above: tuple | None = None  # the form of the lines so far
        for line in lines:
            indent = "    " * line.depth
            text, span, comment = line.text, line.span, ""
            if span is not None and not _BARE.fullmatch(text):
                if self.line_directives and where != (span.source.filename, span.line):
                    where = (span.source.filename, span.line)
                    out.append(f'#line {span.line} "{_c_string(span.source.filename)}"')
                if _place(span) != above:
                    comment = self.comment(text, span, len(indent))
                above = _place(span)
            first, *rest = wrapped(text, WIDTH - len(indent)) if len(indent) + len(text) > WIDTH + 20 else (text,)
            out.append(f"{indent}{first}  // {comment}" if comment else indent + first)
            out += [indent + t for t in rest]
            if where is not None:
                where = (where[0], where[1] + 1 + len(rest))
        return out

    def comment(self, text: str, span: Span, indent: int) -> str:
        key = _place(span)
        name = self.bound.get(key)
        if key not in self.again:
            self.again[key] = f"from {name}" if name else _outlined(span.text)
            width = max(WIDTH + 10 - indent - len(text), OUTLINE)
            return commented(outline(span.text, width), width)
        if name:
            target = text.partition(" = ")[0].rpartition(" ")[2].rpartition(">")[2]
            if target == identifier(name):  # what the name is bound to
                return _outlined(span.text)
        return self.again[key]


def bound_forms(program: Program) -> dict[tuple, str]:
    """The names that the model's text binds to forms, by the form's place; none that is bound to two of them."""
    found: dict[tuple, str] = {}
    named: dict[str, tuple] = {}
    for bind in all_binds(program.body):
        span = bind.span
        if span is None or not any(v.given for v in bind.vars):
            continue
        key = _place(span)
        for v in bind.vars:
            if v.given and key not in found and _stands_before(v.name, span):
                if named.setdefault(v.name, key) == key:
                    found[key] = v.name
                else:
                    found.pop(named[v.name], None)
    return found


def shorten(text: str, width: int) -> str:
    text = " ".join(text[:LONG].split())
    return text if len(text) <= width else text[: max(width - 3, 1)].rstrip() + "..."


def commented(text: str, width: int) -> str:
    """A form as one line that is safe in a C comment."""
    text = shorten(text, width)
    return text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").rstrip("\\")


def outline(text: str, width: int) -> str:
    """A form on one line, its inner forms left out from the depth that makes it fit: ``(* 3.0 x ...)``."""
    text = " ".join(text[:LONG].split())
    for limit in (8, 7, 6, 5, 4, 3, 2):
        if len(text) <= width:
            break
        text = _cut(text, limit)
    return text


def _cut(text: str, limit: int) -> str:
    """A form without the forms inside it at a depth."""
    out, depth = [], 0
    for part in _CLOSING.split(text):
        if part in ("(", "[", "{"):
            depth += 1
            if depth == limit:
                out[-1:] = [out[-1].removesuffix("#"), "..."]
        if depth < limit:
            out.append(part)
        if part in (")", "]", "}"):
            depth -= 1
    return "".join(out)


def folded(text: str, width: int) -> list[str]:
    """A line of a comment, broken between words; what follows is indented."""
    return textwrap.wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def listed(checks: Sequence[tuple[str, str, Span | None]], margin: str) -> list[str]:
    """Lines of a comment that say what the numbers of checks mean."""
    out = []
    for n, (kind, message, span) in enumerate(checks, 1):
        place = f", line {span.line}" if span is not None else ""
        out.append(f"{margin}{n}: {kind}{place}: {commented(message, 200)}")
    return out


def headline(text: str, width: int) -> str:
    """A model's form, where it is longer than a line up to its parameters: ``(defmodel f [x] ...)``."""
    text = " ".join(text[:LONG].split())
    if len(text) <= width:
        return text
    depth = 0
    for part in _BRACKETS.finditer(text):
        depth += 1 if part[0] == "[" else -1
        if depth == 0:
            return text[: part.end()] + " ...)"
    return text


def _outlined(form: str) -> str:
    return commented(outline(form, OUTLINE), OUTLINE)


def _place(span: Span) -> tuple[int, int, int]:
    """Equal for spans of one form."""
    return id(span.source), span.start, span.end


def _stands_before(name: str, span: Span) -> bool:
    """Whether a name stands before a form in its source, as in the brackets of a ``let``."""
    before = span.source.text[max(span.start - 200, 0) : span.start].rstrip()
    return before.endswith(name) and before[: -len(name)][-1:] in (" ", "\n", "\t", "[")


def _c_string(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
