"""Partial derivatives of primitives, built from the table's s-expressions."""

from __future__ import annotations

from typing import Any

from .builder import Builder
from .core import Atom
from .primitives import PRIMITIVES, Primitive, parse_partial


class Partials:
    """The partials of one application ``y = (name args ...)``, each built at its first use."""

    __slots__ = ("builder", "row", "names", "made")

    def __init__(self, builder: Builder, row: Primitive, args: tuple[Atom, ...], y: Atom) -> None:
        self.builder, self.row = builder, row
        self.names = dict(zip(row.params, args), y=y)
        self.made: dict[int, Atom] = {}

    def __getitem__(self, k: int) -> Atom:
        if k not in self.made:
            self.made[k] = build_partial(self.builder, parse_partial(self.row.partials[k]), self.names)
        return self.made[k]


def build_partial(b: Builder, form: Any, names: dict[str, Atom]) -> Atom:
    """Build a parsed partial; its numbers are soft."""
    if isinstance(form, str):
        return names[form]
    if isinstance(form, (int, float)):
        return b.number(form, soft=True)
    head, *args = form
    atoms = [build_partial(b, a, names) for a in args]
    if head == "select":
        return b.select(*atoms)
    if head == "-" and len(atoms) == 1:
        head = "neg"
    if len(atoms) > 2 and head in ("+", "*"):
        total = atoms[0]
        for a in atoms[1:]:
            total = b.prim(head, total, a)
        return total
    assert head in PRIMITIVES, head
    return b.prim(head, *atoms)
