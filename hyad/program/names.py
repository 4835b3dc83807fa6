"""Names: of derivatives, ``ẋ`` for the tangent of ``x``, ``x̄`` for its adjoint (``dx`` and ``x_bar`` in C), and Hy's
names as Python has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

DOT, MACRON = "\u0307", "\u0304"


@lru_cache(maxsize=4096)
def tangent(name: str) -> str:
    from unicodedata import normalize

    return normalize("NFC", name[0] + DOT + name[1:])


@lru_cache(maxsize=4096)
def adjoint(name: str) -> str:
    from unicodedata import normalize

    return normalize("NFC", name + MACRON)


def part_name(whole: str, key: object) -> str:
    """What a part of a tuple or record is called: a symbol, whatever the key is."""
    symbol = re.sub(r"[^\w?*!]+", "-", str(key)).strip("-")
    return f"{whole}-{symbol or 'part'}"


def place_of(name: object, names: Sequence[str]) -> Any:
    """Where a name stands among ``names``, also as Python has it: ``step_size`` is ``step-size``. What is no name among
    them, such as a number, is itself."""
    if not isinstance(name, str):
        return name
    known = names if name in names else [mangled(n) for n in names]
    return known.index(name) if name in known else name


def is_symbol(text: object) -> bool:
    """Whether a text can be the name of something: a symbol without dots."""
    return (
        isinstance(text, str) and re.fullmatch(r"[^\s()\[\]{}\"'`~;,#:.0-9][^\s()\[\]{}\"'`~;,:.]*", text) is not None
    )


@lru_cache(maxsize=4096)
def mangled(name: str) -> str:
    """``hy.mangle`` of a symbol: ``step-size`` is ``step_size``, ``even?`` ``hyx_evenXquestion_markX``.

    Design decision: Hy's rules again, for importing Hy takes longer than all else that a first call of a model whose
    code is on disk does.
    """
    if name.isidentifier() and name.isascii():
        return name
    from unicodedata import name as title
    from unicodedata import normalize

    if "." in name and name.strip("."):
        return ".".join(mangled(part) if part else "" for part in name.split("."))
    bare = name.lstrip("_\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f")  # all that Python reads as an underscore
    leading = "_" * (len(name) - len(bare))
    bare = bare[:1] + bare[1:].replace("-", "_")
    if not (leading + bare).isidentifier():
        bare = "hyx_" + "".join(
            c
            if c != "X" and f"S{c}".isidentifier()
            else f"X{title(c, '').lower().replace('-', 'H').replace(' ', '_') or f'U{ord(c):x}'}X"
            for c in bare
        )
    return normalize("NFKC", leading + bare)
