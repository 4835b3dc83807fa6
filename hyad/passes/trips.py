"""How often the inner loops of a loop run at most, where an integer says so that is another one in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    BOOL,
    INT,
    REAL,
    Atom,
    Bind,
    Block,
    Check,
    Loop,
    Prim,
    Var,
    defined_in,
    integer,
    kinds_of,
    reads,
)
from ..program.affine import affine_in
from ..program.dead import has_checks
from ..program.loops import calls_in, closure
from ..program.rebuild import Rebuild


def of_the_index(op: Loop) -> tuple[set[Atom], list[Bind]]:
    """The numbers of a loop's iterations that are made of its index and of what is outside of it; and the operations
    that make them and the checks of them, up to the first thing that may fail otherwise."""
    inside = {op.index, *op.accs, *defined_in(op.body)}
    made: set[Atom] = {op.index}
    found: list[Bind] = []
    for x in op.body.binds:
        prim = x.op
        if type(prim) is Prim:
            known = all(a in made or a not in inside for a in prim.args)
            if known and x.vars[0].type in (INT, BOOL, REAL) and prim.name not in ("stop", "undef"):
                made.update(x.vars)
                found.append(x)
        elif type(prim) is Check and all(a in made or a not in inside for a in (prim.a, prim.b)):
            found.append(x)
        elif has_checks(Block((x,), ())):
            break
    return made, found


def counting(op: Loop, binds: Sequence[Bind], bind: Bind, count: Atom) -> list[Bind]:
    """Those of some operations of a loop's body that give ``count``, and the checks before another binding of it."""
    before = op.body.binds[: op.body.binds.index(bind)]
    checks = [x for x in binds if type(x.op) is Check and x in before]
    needed = closure(binds, (count, *(a for x in checks for a in reads(x))))
    return [x for x in binds if x in checks or x in needed]


def longest(pass_: Rebuild, op: Loop, binds: Sequence[Bind], count: Atom) -> Atom:
    """The largest of the integers ``count`` that a loop's iterations make of their index, before it, and not less than
    0; what they check of it is checked for all."""
    b = pass_.b
    ends = at_ends(pass_, op, binds, count)
    if ends is not None:
        return ends
    made = next((x.op for x in binds if count in x.vars), None)
    same = {count, *(made.args if type(made) is Prim and made.name == "max" and integer(0) in made.args else ())}
    inside = {op.index, *(v for x in binds for v in x.vars)}
    limits = [x for x in binds if type(x.op) is Check and x.op.relation == "<=" and x.op.a in same]
    limits = [x for x in limits if x.op.b not in inside]  # type: ignore[union-attr]
    needed = [x for x in binds if x not in limits]

    def body(i: Atom, most: Atom):
        pass_.here[op.index] = i
        pass_.block(Block(tuple(needed), ()))
        return [b.prim("max", most, pass_.atom(count))], ()

    (most,) = b.loop(pass_.atom(op.count), (integer(0),), body, ("most",), op.index.name, ("most",))
    if type(most) is Var:
        b.sizes.add(most)
    for x in limits:
        b.span = x.span
        b.check(x.op, most, pass_.atom(x.op.b))  # type: ignore[arg-type, union-attr]
    return most


def at_ends(pass_: Rebuild, op: Loop, binds: Sequence[Bind], count: Atom) -> Atom | None:
    """The same of an integer that grows or falls with the index; None for others, and where something is checked."""
    b, inside = pass_.b, {v for x in binds for v in x.vars}
    integers = {x.vars[0]: x.op for x in binds if type(x.op) is Prim and x.vars[0].type == INT}
    if any(type(x.op) is Check for x in binds) or not inside.isdisjoint(affine_in(count, integers)[1]):
        return None
    size, values = pass_.atom(op.count), []
    for at in (integer(0), b.prim("-", size, integer(1))):
        pass_.here[op.index] = at
        pass_.block(Block(tuple(binds), ()))
        values.append(pass_.atom(count))
    most = b.prim("max", integer(0), b.prim("max", *values))
    most = b.select(b.prim("<", integer(0), size), most, integer(0))
    if type(most) is Var:
        b.sizes.add(most)
    return most


def worth(inner: Loop) -> bool:
    """Whether a loop calls the C library, or has other loops inside: a table of it may take room that nobody knows
    before."""
    return bool(calls_in(inner.body)) or Loop in kinds_of(inner.body)
