"""C expressions as text: precedence, operands put into a primitive's form, minus signs, long lines.

An ``Expr`` knows how tightly it binds, so that parentheses stand only where C's precedence asks for them, and which
memory and variables it reads that may change, so that the printer of statements knows how long it may wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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

    ``update`` is (operator, left, right) where it reads ``left op right``, for ``left op= right``. An integer that is
    a sum says of what (``total``), and a quotient by a number what it divides by which (``quotient``).
    """

    text: str
    prec: int = PRIMARY
    reads: frozenset[Any] = frozenset()
    update: tuple[str, str, str] | None = None
    total: Total | None = None
    quotient: tuple[Expr, int] | None = None

    def at(self, level: int, leftmost: bool = True) -> str:
        """The text as an operand that must bind at least as tightly as ``level``."""
        return f"({self.text})" if self.prec < level or (not leftmost and self.text.startswith("-")) else self.text


@dataclass(frozen=True, slots=True)
class Total:
    """An integer as a sum: what its terms are multiples of, which multiples, and a number."""

    terms: tuple[tuple[Expr, int], ...]
    number: int


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
    if level in (BITS, EQUAL, ORDER):
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
    return b if a is None else integer("+", a, b)


def times(a: Expr | None, b: Expr) -> Expr | None:
    return None if a is None else integer("*", a, b)


def integer(operator: str, a: Expr, b: Expr) -> Expr:
    """A sum, difference or product of integers, like terms put together: ``n - (i + 1)`` is ``n - i - 1``,
    ``3*(3*f + 2) + 1`` is ``9*f + 7``. Wrapping around or not, it is the same integer."""
    one, two = total_of(a), total_of(b)
    if operator == "*":
        made = _product(a, one, b, two)
    else:
        sign = 1 if operator == "+" else -1
        terms = {e.text: (e, k) for e, k in one.terms}
        for e, k in two.terms:
            terms[e.text] = e, terms.get(e.text, (e, 0))[1] + sign * k
        made = _remainder(Total(tuple(t for t in terms.values() if t[1]), one.number + sign * two.number))
    if max(abs(made.number), *(abs(k) for _, k in made.terms), 0) > 2**62:  # no literal
        return fill("{0}*{1}" if operator == "*" else f"{{0}} {operator} {{1}}", [a, b])
    return replace(_written(made, a.reads | b.reads), update=(operator, a.text, b.text))


def total_of(e: Expr) -> Total:
    if e.total is not None:
        return e.total
    if e.text.removeprefix("-").isdigit():
        return Total((), int(e.text))
    return Total(((_positive(e), -1),), 0) if _is_negative(e) else Total(((e, 1),), 0)


def _product(a: Expr, one: Total, b: Expr, two: Total) -> Total:
    for total, e, number in ((one, a, two), (two, b, one)):
        if not number.terms:
            k = number.number
            if len(total.terms) <= 1:
                return Total(tuple((t, k * m) for t, m in total.terms if k), k * total.number)
            return Total(((replace(e, total=None), k),) if k else (), 0)
    factors, k = [], 1
    for total, e in ((one, a), (two, b)):
        alone = len(total.terms) == 1 and total.number == 0
        factors.append(total.terms[0][0] if alone else e)
        k *= total.terms[0][1] if alone else 1
    x, y = factors
    return Total(((Expr(f"{x.at(MUL)}*{y.at(UNARY, leftmost=False)}", MUL, x.reads | y.reads), k),), 0)


def _remainder(total: Total) -> Total:
    """``n - 4*(n/4)``  =>  ``n % 4``."""
    for e, k in total.terms:
        of = total_of(e.quotient[0]) if e.quotient is not None and e.quotient[1] == -k else None
        if of is not None and of.number == total.number and all(t in total.terms for t in of.terms):
            rest = tuple(t for t in total.terms if t not in of.terms and t[0] is not e)
            return Total(((Expr(f"{e.quotient[0].at(MUL)} % {-k}", MUL, e.reads), 1), *rest), 0)
    return total


def _written(total: Total, reads: frozenset[Any]) -> Expr:
    """The text of a sum: what is added, then what is taken off, a number as the last of these."""
    parts = [(k > 0, _multiple(e, abs(k))) for e, k in total.terms]
    if total.number or not parts:
        parts.append((total.number >= 0, Expr(str(abs(total.number)))))
    parts.sort(key=lambda part: not part[0])
    (positive, first), *rest = parts
    text = first.at(MUL) if positive else f"-{first.at(MUL)}"
    text += "".join(f" {'+' if plus else '-'} {e.at(MUL, leftmost=False)}" for plus, e in rest)
    prec = ADD if rest else first.prec if positive and first.prec >= MUL else MUL if first.prec == MUL else UNARY
    quotient = first.quotient if positive and not rest else None
    return Expr(text, prec, reads, None, total, quotient)


def _multiple(e: Expr, k: int) -> Expr:
    if k == 1:
        return e
    plain = e.prec == MUL and not {"/", "%"} & set(e.text)
    return Expr(f"{k}*{e.text if plain else e.at(UNARY)}", MUL, e.reads)


def added(target: str, e: Expr) -> str:
    """The assignment that adds a number to ``target``: ``s += x``, or ``s -= x`` where the number is ``-x``."""
    if not _is_negative(e):
        return f"{target} += {e.text}"
    text = _positive(e).text
    whole = e.prec == UNARY and text[0] == "(" and _closing(text) == len(text) - 1
    return f"{target} -= {text[1:-1] if whole else text}"


def _closing(text: str) -> int:
    """Where the parenthesis closes that a text starts with."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return k
    return -1


def negated(cond: Expr) -> Expr:
    return Expr(f"!{cond.at(PRIMARY)}", UNARY, cond.reads)


def as_reals(text: str) -> str:
    """Sums and products of integers as those of real numbers: where they would overflow it is known how large they are.
    A quotient is rounded down as before, so it is one of integers, and so is a subscript and what a function takes."""
    if not (inner := text.strip()) or inner.isdigit():
        return text
    if inner != text:
        return text.replace(inner, as_reals(inner))
    if text[0] == "(" and not outermost(text).strip("() "):
        made = as_reals(text[1:-1])
        return made if made == f"(double){text}" else f"({made})"
    if re.search(r"[?<&|]|(?<!-)>", outermost(text)):
        return f"(double)({text})"
    sums, products = (list(re.finditer(x, outermost(text))) for x in (r"\+|-(?!>)", r"\*"))
    if not sums and re.search("[/%]", outermost(text)):
        return f"(double)({text})"
    if not sums and not products:
        return f"(double){text}"
    at = [m.start() for m in sums or products]
    return "".join(as_reals(text[i:j]) + text[j : j + 1] for i, j in zip([0, *(k + 1 for k in at)], [*at, len(text)]))


def outermost(text: str) -> str:
    """A text with what stands in brackets blank."""
    out, depth = "", 0
    for c in text:
        depth -= c in ")]"
        out += " " if depth else c
        depth += c in "(["
    return out


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
