"""Code that is equal but for the identity of its inner variables: what the builder shares of branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import (
    Apply,
    Arr,
    Atom,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Var,
    atoms_of,
    binders_of,
    blocks_of,
)


class Alike:
    """A branch or a loop as a key, equal to that of another one that has the same structure.

    Design decision: by what is seen at first sight, and by the structure only where that is equal. The structure of a
    nest of loops would be made again for each loop of it, and most are unlike any other. What a check says when it
    fails makes no difference: the one that was made before fails first.
    """

    __slots__ = ("op", "outline", "made")

    def __init__(self, op: If | Loop | Case) -> None:
        self.op, self.made = op, ()
        atoms = tuple((a.type, repr(a.value)) if type(a) is Const else a for a in atoms_of(op))
        inside = tuple(x.op.name if type(x.op) is Prim else type(x.op) for b in blocks_of(op) for x in b.binds)
        self.outline = (type(op), atoms, inside)

    def __hash__(self) -> int:
        return hash(self.outline)

    def __eq__(self, other: object) -> bool:
        return type(other) is Alike and self.outline == other.outline and self.structure() == other.structure()

    def structure(self) -> tuple:
        self.made = self.made or structure(self.op, silent=True)
        return self.made


def structure(x: If | Loop | Case | Block, silent: bool = False) -> tuple:
    """A key that is equal for operations, or blocks, that differ in the identity of their inner variables alone;
    ``silent``: or in the messages of their checks."""
    made = _Structure(silent)
    return made.block(x) if type(x) is Block else made.one(x)


class _Structure:
    __slots__ = ("numbers", "silent")

    def __init__(self, silent: bool) -> None:
        self.numbers: dict[Var, int] = {}
        self.silent = silent

    def atom(self, a: Atom) -> Any:
        if type(a) is Const:
            return (a.type, repr(a.value), a.soft)
        return self.numbers.get(a, a)

    def bind_all(self, vars: Sequence[Var]) -> None:
        for v in vars:
            self.numbers[v] = len(self.numbers)

    def one(self, x: Any) -> tuple:
        atoms = tuple(map(self.atom, atoms_of(x)))
        if type(x) is Prim:
            return ("Prim", x.name, atoms, ())
        self.bind_all(binders_of(x))
        inner = tuple(map(self.block, blocks_of(x)))
        label: Any = len(inner)
        if type(x) is Check:
            label = (x.relation, "" if self.silent else x.message)
        elif type(x) is Make:
            label = x.constructor
        elif type(x) is Apply:
            label = x.function
        return (type(x).__name__, label, atoms, inner)

    def block(self, b: Block) -> tuple:
        keys = []
        for bind in b.binds:
            keys.append((self.one(bind.op), bind.soft))
            if type(bind.op) is Prim and bind.op.name in ("zeros", "undef"):
                t = bind.vars[0].type
                keys.append((t.elem, *map(self.atom, t.dims)) if isinstance(t, Arr) else t)
            self.bind_all(bind.vars)
        return (tuple(keys), tuple(map(self.atom, b.results)))
