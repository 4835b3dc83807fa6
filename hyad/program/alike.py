"""Code that is equal but for the identity of its inner variables: what the builder shares of branches and loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core import (
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Type,
    Var,
    While,
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

    def __init__(self, op: If | Loop | Case | While) -> None:
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


def structure(x: Any, silent: bool = False, known: Mapping[Var, Var] | None = None) -> tuple:
    """A key that is equal for operations, or blocks, that differ in the identity of their inner variables alone;
    ``silent``: or in the messages of their checks. ``known``: variables that others stand for."""
    made = _Structure(silent, known or {})
    return made.block(x) if type(x) is Block else made.one(x)


class _Structure:
    __slots__ = ("numbers", "silent", "last")

    def __init__(self, silent: bool, known: Mapping[Var, Var]) -> None:
        self.numbers: dict[Var, Any] = dict(known)
        self.silent = silent
        self.last = 0

    def atom(self, a: Atom) -> Any:
        if type(a) is Const:
            return (a.type, repr(a.value), a.soft)
        return self.numbers.get(a, a)

    def bind_all(self, vars: Sequence[Var]) -> None:
        for v in vars:
            self.numbers[v] = self.last
            self.last += 1

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


def same_code(one: Block, other: Block) -> bool:
    """Whether two blocks differ in the identity of their inner variables alone: names, places and marks are equal, too.
    Most that differ do so early, and no key is made of either."""
    return _Lockstep().block(one, other)


def same_programs(one: Program, other: Program) -> bool:
    """Whether two programs differ in the identity of their variables alone."""
    if one is other:
        return True
    if one.span is not other.span or len(one.body.binds) != len(other.body.binds):
        return False
    if any(getattr(one, x) != getattr(other, x) for x in ("name", "ins", "out", "doc", "names")):
        return False
    both = _Lockstep()
    return (
        both.bound(one.dims, other.dims) and both.bound(one.params, other.params) and both.block(one.body, other.body)
    )


class _Lockstep:
    """Two blocks, walked side by side; ``twin`` has the variable of the other for each inner one of the first."""

    __slots__ = ("twin",)

    def __init__(self) -> None:
        self.twin: dict[Var, Var] = {}

    def atoms(self, one: Sequence[Atom], other: Sequence[Atom]) -> bool:
        if len(one) != len(other):
            return False
        twin = self.twin
        for a, b in zip(one, other):
            if type(a) is Var:
                if twin.get(a, a) is not b:
                    return False
            elif a is not b:
                if type(b) is not Const or a.type is not b.type or a.soft != b.soft:  # type: ignore[union-attr]
                    return False
                if type(a.value) is not type(b.value) or repr(a.value) != repr(b.value):  # type: ignore[union-attr]
                    return False
        return True

    def type(self, one: Type | None, other: Type | None) -> bool:
        if one is other:
            return type(one) is not Arr or self.atoms(one.dims, one.dims)
        return type(one) is Arr and type(other) is Arr and one.elem is other.elem and self.atoms(one.dims, other.dims)

    def bound(self, one: Sequence[Var], other: Sequence[Var]) -> bool:
        """Whether variables are bound alike; from here on each is the other's twin. A size may be one beside it."""
        if len(one) != len(other):
            return False
        self.twin.update(zip(one, other))
        for v, w in zip(one, other):
            if v is not w and (v.name != w.name or v.given != w.given or v.soft != w.soft):
                return False
            if not self.type(v.type, w.type):
                return False
        return True

    def block(self, one: Block, other: Block) -> bool:
        if len(one.binds) != len(other.binds) or len(one.results) != len(other.results):
            return False
        return self.all_alike(zip(one.binds, other.binds)) and self.atoms(one.results, other.results)

    def all_alike(self, pairs: Iterable[tuple[Bind, Bind]]) -> bool:
        for x, y in pairs:
            op, new = x.op, y.op
            if type(op) is not type(new) or x.soft != y.soft or x.span is not y.span:
                return False
            if not self.atoms(atoms_of(op), atoms_of(new)):
                return False
            if type(op) is Prim:
                if op.name != new.name:  # type: ignore[union-attr]
                    return False
            elif not self.region(op, new):
                return False
            if not self.bound(x.vars, y.vars):
                return False
        return True

    def region(self, op: Any, new: Any) -> bool:
        """What is neither an atom nor the name of a primitive."""
        if type(op) is Check:
            return (op.relation, op.message, op.kind) == (new.relation, new.message, new.kind)
        if type(op) is Make:
            return op.constructor is new.constructor
        if type(op) is Apply:
            return op.function is new.function
        if not self.bound(binders_of(op), binders_of(new)):
            return False
        blocks, others = blocks_of(op), blocks_of(new)
        return len(blocks) == len(others) and all(map(self.block, blocks, others))
