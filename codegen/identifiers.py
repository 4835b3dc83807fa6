"""Names of the model as identifiers of C and Python, each once where it can be seen."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")  # a name in C, but not that of a member

_MARKS = {"\u0304": "_bar", "\u0305": "_bar", "\u0302": "_hat", "\u0303": "_tilde", "\u20d7": "_vec"}
_DOTS = {"\u0307": "d", "\u0308": "dd", "\u20db": "ddd"}
_SIGNS = {"?": "_p", "!": "", "+": "_plus", "*": "_star", "/": "_per_", "<": "_lt", ">": "_gt", "=": "_eq", "%": "_pct"}
_SIGNS |= {"′": "_prime", "″": "_second", "'": "_prime", "∂": "d", "∇": "grad_", "∞": "inf", "&": "_and"}


@lru_cache(maxsize=4096)
def identifier(name: str) -> str:
    """A name of the model as an ASCII identifier: ``step-size`` is ``step_size``, ``x̄`` ``x_bar``, ``ẋ`` ``dx``,
    ``λ`` ``lambda``, ``even?`` ``even_p``."""
    if name.isascii() and name.isidentifier():
        return name
    out: list[str] = []
    prefix, suffix = "", ""
    for ch in unicodedata.normalize("NFKD", name.replace("->", "_to_")):
        if ch.isascii() and (ch.isalnum() or ch == "_"):
            out.append(ch)
        elif ch in _DOTS:
            prefix += _DOTS[ch]
        elif ch in _MARKS:
            suffix += _MARKS[ch]
        elif ch in _SIGNS:
            out.append(_SIGNS[ch])
        elif unicodedata.combining(ch):
            continue
        elif unicodedata.name(ch, "").startswith("GREEK"):
            words = unicodedata.name(ch).split()
            letter = words[words.index("LETTER") + 1] if "LETTER" in words else words[1]
            letter = "lambda" if letter == "LAMDA" else letter
            out.append(letter.capitalize() if "CAPITAL" in words else letter.lower())
        elif ch.isalnum():
            out.append(f"u{ord(ch):x}")
        else:
            out.append("_")
    text = prefix + "".join(out).strip("_") + suffix
    return text if text.isidentifier() else f"v{text}" if text else "v"


class Names:
    """Names that are free where they are asked for; a scope gives its names back when it is left."""

    def __init__(self, reserved: Iterable[str]):
        self.reserved = frozenset(reserved)
        self.taken: set[str] = set()
        self.next: dict[str, int] = {}
        self.scopes: list[list[tuple[str, str, int]]] = []

    def fresh(self, name: str) -> str:
        key = base = text = identifier(name)
        number = start = self.next.get(base, 0)
        if base in self.reserved:
            base += "_"
            text = base
        elif base[0] == "_" and (base[1:2] == "_" or base[1:2].isupper()):  # C compilers' own, and macros
            base = text = f"v{base}"
        elif number:
            text = self._numbered(base, number)
        while text in self.taken or text in self.reserved:
            number += 1
            text = self._numbered(base, number)
        self.taken.add(text)
        self.next[key] = number
        if self.scopes:
            self.scopes[-1].append((key, text, start))
        return text

    @staticmethod
    def _numbered(base: str, number: int) -> str:
        return f"{base}_{number}" if base[-1].isdigit() else f"{base}{number}"

    def enter(self) -> None:
        self.scopes.append([])

    def leave(self) -> None:
        for key, text, start in reversed(self.scopes.pop()):
            self.taken.discard(text)
            self.next[key] = start
