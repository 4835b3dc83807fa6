"""C expressions as text: precedence, operands put into a primitive's form, minus signs, long lines.

An ``Expr`` knows how tightly it binds, so that parentheses stand only where C's precedence asks for them, and which
memory and variables it reads that may change, so that the printer of statements knows how long it may wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

WIDTH = 100  # of a line of code

# C's precedence levels, loosest first
COMMA, ASSIGN, TERNARY, OR, AND, BITS, EQUAL, ORDER, SHIFT, ADD, MUL, UNARY, PRIMARY = range(13)
_BINARY = {"||": OR, "&&": AND, "|": BITS, "^": BITS, "&": BITS, "==": EQUAL, "!=": EQUAL}
_BINARY |= {"<": ORDER, "<=": ORDER, ">": ORDER, ">=": ORDER, "<<": SHIFT, ">>": SHIFT, "+": ADD, "-": ADD}
_BINARY |= {"*": MUL, "/": MUL, "%": MUL, "?": TERNARY, ":": TERNARY}
_TOKEN = re.compile(r"\s*(\{\d+\}|[A-Za-z_]\w*|\d[\w.]*|\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>!~?:(),&|^.\[\]])")


@dataclass(frozen=True, slots=True)
class Expr:
    """A C expression, how tightly it binds, and the memory and variables in it that may change.

    ``update`` is (operator, left, right) where it reads ``left op right``, for ``left op= right``.
    """

    text: str
    prec: int = PRIMARY
    reads: frozenset[Any] = frozenset()
    update: tuple[str, str, str] | None = None

    def at(self, level: int, leftmost: bool = True) -> str:
        """The text as an operand that must bind at least as tightly as ``level``."""
        return f"({self.text})" if self.prec < level or (not leftmost and self.text.startswith("-")) else self.text


def _positive(e: Expr) -> Expr:
    """A product or primary that starts with a minus, without it."""
    return Expr(e.text[1:], PRIMARY if e.prec == UNARY else e.prec, e.reads)


@lru_cache(maxsize=None)
def parse_form(template: str) -> tuple[int, tuple[tuple[int, bool], ...], tuple[str, ...]]:
    """A C form's own precedence; for each operand the level that it must have and whether it starts the form; and the
    form's operators outside parentheses."""
    tokens = [""] + _TOKEN.findall(template) + [""]
    level, own, operators = 0, PRIMARY, []
    wanted: dict[int, tuple[int, bool]] = {}
    for k in range(1, len(tokens) - 1):
        token, before, after = tokens[k], tokens[k - 1], tokens[k + 1]
        if token in "([":
            level += 1
        elif token in ")]":
            level -= 1
        prefix = before in ("", "(", ",", "[") or before in _BINARY or before in ("!", "~")
        if token in ("!", "~") or (token in ("-", "+") and prefix):
            own = min(own, UNARY) if level == 0 else own
        elif token in _BINARY and level == 0:
            own = min(own, _BINARY[token])
            operators.append(token)
        if token.startswith("{"):
            need = ASSIGN
            if before in _BINARY:
                unary = before in ("-", "+") and (tokens[k - 2] in ("", "(", ",", "[") or tokens[k - 2] in _BINARY)
                need = max(need, UNARY + 1 if unary else _operand(before, right=True))
            elif before in ("!", "~"):
                need = UNARY + 1
            elif before == ")":  # a cast
                need = UNARY
                own = min(own, UNARY) if level == 0 else own
            if after in _BINARY:
                need = max(need, _operand(after, right=False))
            number = int(token[1:-1])
            old = wanted.get(number, (ASSIGN, True))
            wanted[number] = (max(old[0], need), old[1] and (need == ASSIGN or before in ("", "(", ",")))
    return own, tuple(wanted.get(k, (ASSIGN, True)) for k in range(max(wanted, default=-1) + 1)), tuple(operators)


def _operand(operator: str, right: bool) -> int:
    """The level of an operand. Comparisons and logic take no operand of their own kind: compilers warn."""
    level = _BINARY[operator]
    if level in (EQUAL, ORDER):
        return SHIFT
    if level in (OR, AND):
        return EQUAL
    if level == TERNARY:
        return OR
    return level + 1 if right else level


def fill(template: str, operands: Sequence[Expr]) -> Expr:
    """A C form with its operands in, parenthesised where needed."""
    moved = signed(template, operands)
    if moved is not None:
        return moved
    own, wanted, _ = parse_form(template)
    parts = [e.at(*wanted[k]) if k < len(wanted) else e.text for k, e in enumerate(operands)]
    operator = _update_operator(template)
    update = (operator, operands[0].text, operands[1].text) if operator else None
    return Expr(template.format(*parts), own, all_reads(operands), update)


@lru_cache(maxsize=None)
def _update_operator(template: str) -> str:
    """The operator of a form ``{0} + {1}``, ``{0}*{1}`` .., which C also has as ``+=``, ``*=``; else ''."""
    return template[3:-3].strip() if re.fullmatch(r"\{0\} ?[-+*/] ?\{1\}", template) else ""


def all_reads(operands: Iterable[Expr]) -> frozenset[Any]:
    """What an expression of these operands reads."""
    found: frozenset[Any] = frozenset()
    for e in operands:
        if e.reads:
            found = found | e.reads if found else e.reads
    return found


def signed(template: str, operands: Sequence[Expr]) -> Expr | None:
    """Minus signs as a person puts them: ``x + (-2.0*y)`` is ``x - 2.0*y``, ``x*(-y)`` is ``-x*y``. Every rewrite
    here is exact, for a sign passes through products and quotients unrounded. None where there is none to move."""
    if template == "-{0}":
        (last,) = operands
        if _is_negative(last):
            return _positive(last)
        multiple = last.prec == MUL and "%" not in last.text
        return Expr(f"-{last.text}", MUL, last.reads) if multiple else Expr(f"-{last.at(UNARY)}", UNARY, last.reads)
    if template not in ("{0} + {1}", "{0} - {1}", "{0}*{1}", "{0}/{1}"):
        return None
    a, b = operands
    minus = _is_negative(a), _is_negative(b)
    if not any(minus):
        return None
    reads = all_reads(operands)
    if template in ("{0} + {1}", "{0} - {1}"):
        operator = template[4]
        if minus[1]:
            right = _positive(b).at(MUL)
            operator = "-" if operator == "+" else "+"
            return Expr(f"{a.at(ADD)} {operator} {right}", ADD, reads, (operator, a.text, right))
        if operator == "+" and b.prec >= MUL:
            return Expr(f"{b.text} - {_positive(a).at(MUL)}", ADD, reads, ("-", b.text, _positive(a).at(MUL)))
        return None
    if not minus[1]:
        return None
    operator, right = template[3], _positive(b)
    if operator == "*" and a.prec == PRIMARY and right.text[0].isdigit():
        return Expr(f"-{right.text}*{a.text}", MUL, reads)
    left = _positive(a).text if minus[0] else f"-{a.at(MUL)}"
    return Expr(f"{left}{operator}{right.at(UNARY)}", MUL, reads)


def _is_negative(e: Expr) -> bool:
    """Whether an expression is a product or primary with a minus before it."""
    return e.text[0] == "-" and e.prec >= MUL and "%" not in e.text


def plus(a: Expr | None, b: Expr) -> Expr:
    if a is None:
        return b
    if a.text.isdigit() and b.text.isdigit():
        return Expr(str(int(a.text) + int(b.text)))
    return Expr(f"{a.at(ADD)} + {b.at(ADD, leftmost=False)}", ADD, a.reads | b.reads)


def times(a: Expr | None, b: Expr) -> Expr | None:
    if a is None:
        return None
    if a.text == "1" or b.text == "1":
        return b if a.text == "1" else a
    if a.text.isdigit() and b.text.isdigit():
        return Expr(str(int(a.text) * int(b.text)))
    if b.text.isdigit():
        a, b = b, a
    return Expr(f"{a.at(MUL)}*{b.at(UNARY, leftmost=False)}", MUL, a.reads | b.reads)


def negated(cond: Expr) -> Expr:
    return Expr(f"!{cond.at(PRIMARY)}", UNARY, cond.reads)


def as_reals(text: str) -> str:
    """The product of integers as one of real numbers: where it would overflow it is known how large it is."""
    return re.sub(r"\b([A-Za-z_]\w*(?:(?:->|\.)\w+)*)", r"(double)\1", text)


def wrapped(text: str, width: int) -> list[str]:
    """A long line broken at commas; what follows is indented."""
    out: list[str] = []
    while len(text) > width:
        cut = text.rfind(", ", 8, width)
        if cut < 0:
            break
        out.append(text[: cut + 1])
        text = "    " + text[cut + 2 :]
    out.append(text)
    return out
