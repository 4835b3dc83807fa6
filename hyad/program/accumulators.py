"""What an iteration of a loop does to an accumulator, for derivatives of loops: it adds, or leaves or replaces it, as a
search for the largest does, or changes an array at a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    atoms_of,
    blocks_of,
    count_uses,
    defined_in,
    free_vars,
    most_uses,
    type_of,
)
from .rebuild import Rebuild


class NotRows(Exception):
    """An array is not taken a row, or an element, at a time."""


def sum_like(block: Block, acc: Var, result: Atom) -> bool:
    """Whether an iteration only adds to an accumulator: ``acc' = acc + e`` with no other use of ``acc``. The
    adjoint of such an accumulator is the same in every iteration, and their order does not matter."""
    if most_uses(block, acc) > 1:
        return False
    definitions = {v: (bind, k) for bind in block.binds for k, v in enumerate(bind.vars)}
    while result is not acc:
        found = definitions.get(result) if type(result) is Var else None
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            chain = op.args[:1] if op.name != "+" else op.args
            following = next((a for a in chain if a is acc or reaches(definitions, a, acc)), None)
        elif type(op) is Loop and k < len(op.accs) and sum_like(op.body, op.accs[k], op.body.results[k]):
            following = op.inits[k]
        elif type(op) is If:
            following = next((a for a in added_to(op, k) if a is acc or reaches(definitions, a, acc)), None)
        else:
            return False
        if following is None or most_uses(block, result) > 1 and type(result) is Var:
            return False
        result = following
    return True


def added_to(op: If, k: int) -> list[Var]:
    """What both branches of an ``if`` add to, or leave as it is, to give its result ``k``."""
    branches = [(block, block.results[k]) for block in (op.then, op.orelse)]
    both = [a for a in free_vars(op.then) if a in free_vars(op.orelse)]

    def adds(block: Block, a: Var, r: Atom) -> bool:
        return most_uses(block, a) == 1 if r is a else sum_like(block, a, r)

    return [a for a in both if all(adds(block, a, r) for block, r in branches)]


class Pick(NamedTuple):
    """An accumulator that an iteration leaves or replaces by ``value``: ``acc' = (max acc e)``, the operation being
    ``test``, or ``acc' = (if c e acc)`` with the condition ``cond``; ``stays``: it is left where the test holds."""

    value: Atom
    stays: bool
    test: Prim | None = None
    cond: Atom | None = None

    def place(self, pass_: Rebuild, before: Atom, i: Atom) -> Atom:
        """Where the value was found that the accumulator has after iteration ``i``."""
        b, test = pass_.b, self.test
        holds = b.prim(">=" if test.name == "max" else "<=", *pass_.atoms(test.args)) if test else pass_.atom(self.cond)  # type: ignore[arg-type]
        return b.select(holds, *((before, i) if self.stays else (i, before)))


def picked(block: Block, acc: Var, result: Atom) -> Pick | None:
    """What an iteration puts in the place of an accumulator or not, where nothing but comparisons reads it besides."""
    if acc.type != REAL or type(result) is not Var or count_uses(block, result) != 1:
        return None
    (bind,) = [x for x in block.binds if result in x.vars] or [None]
    if bind is None:
        return None
    op, uses = bind.op, count_uses(block, acc)
    if type(op) is Prim and op.name in ("max", "min"):
        if uses != 1 or acc not in op.args:
            return None
        return Pick(next(a for a in op.args if a is not acc), op.args[0] is acc, test=op)
    if type(op) is If:
        k = bind.vars.index(result)
        cond, then, orelse = op.cond, op.then.results[k], op.orelse.results[k]
        inside = {v for arm in (op.then, op.orelse) for x in arm.binds for v in x.vars}
    elif type(op) is Prim and op.name == "select":
        (cond, then, orelse), inside = op.args, set()
    else:
        return None
    compared = sum(x.op.args.count(acc) for x in block.binds if type(x.op) is Prim and x.vars[0].type == BOOL)
    value = orelse if then is acc else then
    if (then is acc) == (orelse is acc) or value in inside or uses != 1 + compared:
        return None
    return Pick(value, then is acc, cond=cond)


def starts_with(pass_: Rebuild, op: Loop, e: Atom, start: Atom, count: Atom) -> bool:
    """Whether a search for the largest starts with what its first iteration looks at, an element of an array that
    it goes through: then there is a first iteration."""
    source = pass_.b.definitions.get(start) if type(start) is Var else None
    if source is None or source.name != "get":
        return False
    bind = next((bind for bind in op.body.binds if bind.vars == (e,)), None)
    look = bind.op if bind is not None else None
    if type(look) is not Prim or look.name != "get" or look.args[-1] is not op.index:
        return False
    base, *row = pass_.atoms(look.args[:-1])
    if op.index in look.args[:-1]:
        return False
    within = pass_.b.definitions.get(base) if type(base) is Var else None
    if within is not None and within.name == "get":  # a row, of which the builder knows whose it is
        base, *row = *within.args, *row
    array, *first, zero_ = source.args
    same = base is array and len(row) == len(first) and all(map(pass_.b.same_int, row, first))
    if not same or not (type(zero_) is Const and zero_.value == 0):
        return False
    return pass_.b.same_int(type_of(array).dims[len(row)], count)  # type: ignore[union-attr]


def reaches(definitions: dict, atom: Atom, acc: Var) -> bool:
    """Whether ``atom`` is ``acc`` with things added."""
    while type(atom) is Var and atom is not acc:
        found = definitions.get(atom)
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if a is acc]
            if nexts:
                return True
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if type(a) is Var and a in definitions]
            if len(nexts) != 1:
                return any(reaches(definitions, a, acc) for a in nexts)
            atom = nexts[0]
        elif type(op) is Loop and k < len(op.accs):
            atom = op.inits[k]
        elif type(op) is If:
            return any(a is acc or reaches(definitions, a, acc) for a in added_to(op, k))
        else:
            return False
    return atom is acc


def any_order(op: Loop, accs: Sequence[Var]) -> bool:
    """Whether each iteration of a loop reads and changes nothing of some accumulators, arrays, but what lies at a place
    of its own, by any of the subscripts: then what an iteration does to them does not wait for another one.

    ``(ifold (fn [a j] (update a i (+ 1 j) (f (get a i (+ 1 j))))) a m)``: at ``1 + j``.
    """
    if op.snapshots is not None or not all(isinstance(a.type, Arr) for a in accs):
        return False
    moving = moving_with(op.index, op.body, {op.index, *defined_in(op.body)})
    versions: dict[Atom, int] = {a: op.accs.index(a) for a in accs}
    places: dict[int, tuple[Atom | None, ...]] = {}
    try:
        places_of(op.body, versions, places)
    except NotRows:
        return False
    width = len(op.accs)
    kept = all(versions.get(op.body.results[op.accs.index(a)]) == op.accs.index(a) for a in accs)
    others = [r for k, r in enumerate(op.body.results) if k >= width or op.accs[k] not in accs]
    alone = versions.keys().isdisjoint(others)
    return kept and alone and all(any(a in moving for a in place) for place in places.values())


def moving_with(index: Var, body: Block, inside: set[Var]) -> set[Var]:
    """The integers that are the index and something that the loop does not change: another one in each iteration."""
    moving = {index}
    for bind in body.binds:
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-") and bind.vars[0].type == INT:
            if sum(a in moving for a in op.args) == 1 and all(a in moving or a not in inside for a in op.args):
                moving.update(bind.vars)
    return moving


def places_of(block: Block, versions: dict[Atom, int], places: dict[int, tuple[Atom | None, ...]]) -> None:
    """Notes the subscripts that are the same wherever a block touches an accumulator, the others as None, and its new
    versions. Raises ``NotRows`` where an array is read as a whole."""
    for bind in block.binds:
        op = bind.op
        hits = [a for a in atoms_of(op) if a in versions]
        if type(op) is Prim and hits:
            written = op.name in ("add-at", "update")
            if hits != [op.args[0]] or not (op.name == "get" or written) or len(op.args) < 2 + written:
                raise NotRows
            k = versions[op.args[0]]
            subs = op.args[1:-1] if written else op.args[1:]
            places[k] = tuple(a if a is b else None for a, b in zip(places.get(k, subs), subs))
            if written:
                versions[bind.vars[0]] = k
        elif type(op) is Loop:
            inner = [(j, versions[z]) for j, z in enumerate(op.inits) if z in versions]
            if len(inner) < len(hits) or len({k for _, k in inner}) < len(inner) or op.snapshots is not None and inner:
                raise NotRows
            versions.update((op.accs[j], k) for j, k in inner)
            places_of(op.body, versions, places)
            if any(versions.get(op.body.results[j]) != k for j, k in inner):
                raise NotRows
            if any(r in versions for j, r in enumerate(op.body.results) if j not in dict(inner)):
                raise NotRows
            versions.update((bind.vars[j], k) for j, k in inner)
        elif type(op) is If:
            for arm in (op.then, op.orelse):
                places_of(arm, versions, places)
            for v, a, b in zip(bind.vars, op.then.results, op.orelse.results):
                if versions.get(a) != versions.get(b):
                    raise NotRows
                if a in versions:
                    versions[v] = versions[a]
        elif hits or any(r in versions for b in blocks_of(op) for r in (*free_vars(b), *b.results)):
            raise NotRows
