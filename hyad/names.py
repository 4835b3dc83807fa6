"""Names of derivatives: ``ẋ`` for the tangent of ``x``, ``x̄`` for its adjoint (``dx`` and ``x_bar`` in C)."""

from __future__ import annotations

import unicodedata

DOT, MACRON = "\u0307", "\u0304"


def tangent(name: str) -> str:
    return unicodedata.normalize("NFC", name[0] + DOT + name[1:])


def adjoint(name: str) -> str:
    return unicodedata.normalize("NFC", name + MACRON)
