"""Adjoints of matrices, a row at a time; loops of which each iteration changes a row of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Var,
    atoms_of,
    blocks_of,
    defined_in,
    free_vars,
)
from ..program.accumulators import NotRows, moving_with, places_of


def by_row(op: Loop, k: int) -> tuple[Block, Var] | None:
    """The body of a loop that gives row ``index`` of its accumulator ``k`` as one more result, and the zeros that the
    row starts from; None where an iteration does more than add to elements of that one row.

    ``(ifold (fn [a i] (ifold (fn [a j] (add-at a i j x)) a m)) (zeros n m) n)``  =>
    ``(build n (fn [i] (ifold (fn [r j] (add-at r j x)) (zeros m) m)))``, for ``n`` iterations.
    Design decision: a matrix that is stacked needs no clearing before, its rows can be stores in turn (``assign``),
    and no iteration waits for another.
    """
    acc = op.accs[k]
    assert isinstance(acc.type, Arr)
    if acc.type.rank < 2 or any(r is acc for r in op.body.results):
        return None
    start = row_of(acc)
    rows: dict[Atom, Var] = {acc: start}
    try:
        binds = rewritten(op.body.binds, op.index, rows)
        results = list(op.body.results)
        row = rows.get(results[k])
        if row is None or any(r in rows for j, r in enumerate(results) if j != k):
            return None
    except NotRows:
        return None
    del results[k]
    zeros = Bind((start,), Prim("zeros", start.type.dims), acc.span)  # type: ignore[union-attr]
    return Block((zeros, *binds), (*results, row)), start


def row_of(v: Var) -> Var:
    t = v.type
    assert isinstance(t, Arr)
    return Var(v.name, t.item(), v.span, v.given)


def rewritten(binds: Sequence[Bind], index: Var, rows: dict[Atom, Var]) -> list[Bind]:
    """Bindings in which each version of the matrix is its row ``index``; ``rows`` learns of new versions.

    Raises ``NotRows`` where another row is touched, or the matrix read.
    """
    made: list[Bind] = []
    for bind in binds:
        op = bind.op
        if type(op) is Prim:
            hits = [a for a in op.args if a in rows]
            if hits:
                if op.name != "add-at" or hits != [op.args[0]] or op.args[1] is not index or len(op.args) < 4:
                    raise NotRows
                rows[bind.vars[0]] = row_of(bind.vars[0])
                args = (rows[op.args[0]], *op.args[2:])
                bind = Bind((rows[bind.vars[0]],), Prim("add-at", args), bind.span, bind.soft)
        elif type(op) is Loop and any(z in rows for z in op.inits):
            at = [j for j, z in enumerate(op.inits) if z in rows]
            inner = {op.accs[j]: row_of(op.accs[j]) for j in at}
            untouched(op.body, rows)
            body, inside = inner_block(op.body, index, inner, at)
            inits = tuple(rows.get(z, z) for z in op.inits)
            rows.update((bind.vars[j], row_of(bind.vars[j])) for j in at)
            loop = Loop(op.count, op.index, inits, tuple(inside.get(a, a) for a in op.accs), body)  # type: ignore[arg-type]
            bind = Bind(tuple(rows.get(v, v) for v in bind.vars), loop, bind.span)
        elif type(op) is If and any(r in rows or reads(b, rows) for b in blocks_of(op) for r in (*b.results, None)):
            at = sorted({j for b in (op.then, op.orelse) for j, r in enumerate(b.results) if is_version(b, r, rows)})
            arms = [inner_block(b, index, dict(rows), at)[0] for b in (op.then, op.orelse)]
            rows.update((bind.vars[j], row_of(bind.vars[j])) for j in at)
            bind = Bind(tuple(rows.get(v, v) for v in bind.vars), If(op.cond, *arms), bind.span)
        else:
            if any(a in rows for a in atoms_of(op)):
                raise NotRows
            for block in blocks_of(op):
                untouched(block, rows)
        made.append(bind)
    return made


def inner_block(block: Block, index: Var, rows: dict[Atom, Var], at: Sequence[int]) -> tuple[Block, dict[Atom, Var]]:
    """A region with its versions of the matrix as rows; exactly its results ``at`` are such."""
    binds = rewritten(block.binds, index, rows)
    if any((r in rows) != (j in at) for j, r in enumerate(block.results)):
        raise NotRows
    return Block(tuple(binds), tuple(rows.get(r, r) for r in block.results)), rows


def is_version(block: Block, r: Atom, rows: dict[Atom, Var]) -> bool:
    """Whether a result of a branch is the matrix, or made from it in the branch."""
    if r in rows:
        return True
    made = {v: bind.op for bind in block.binds for v in bind.vars}
    while r in made:
        op = made[r]  # type: ignore[index]
        if type(op) is Prim and op.name == "add-at":
            r = op.args[0]
        elif type(op) is Loop:
            bind = next(b for b in block.binds if r in b.vars)
            j = bind.vars.index(r)  # type: ignore[arg-type]
            if j >= len(op.inits):
                return False
            r = op.inits[j]
        else:
            return False
        if r in rows:
            return True
    return False


def reads(block: Block, rows: dict[Atom, Var]) -> bool:
    return any(v in rows for v in free_vars(block))


def untouched(block: Block, rows: dict[Atom, Var]) -> None:
    if reads(block, rows):
        raise NotRows


def own_rows(op: Loop) -> dict[Atom, int] | None:
    """All versions of a loop's accumulators, arrays, with the place of each among them, if each iteration reads and
    changes nothing of them but a row that no other iteration does: then their order is nothing to the result. Else
    None.

    ``(ifold (fn [a i] (ifold (fn [a j] (add-at a (+ 1 i) j x)) a m)) a n)``: row ``i + 1``.
    """
    if op.snapshots is not None or not all(isinstance(a.type, Arr) for a in op.accs):
        return None
    inside = {op.index, *defined_in(op.body)}
    moving = {op.index, *moving_with(op.index, op.body, inside)}
    versions: dict[Atom, int] = {a: k for k, a in enumerate(op.accs)}
    at: dict[int, Atom] = {}  # the row of each accumulator
    try:
        rows_of(op.body, versions, at)
    except NotRows:
        return None
    width = len(op.accs)
    kept = all(versions.get(r) == k for k, r in enumerate(op.body.results[:width]))
    alone = versions.keys().isdisjoint(op.body.results[width:]) and all(row in moving for row in at.values())
    return versions if kept and alone else None


def rows_of(block: Block, versions: dict[Atom, int], at: dict[int, Atom]) -> None:
    """Notes which row of each accumulator a block touches, and its new versions. Raises ``NotRows`` where there is
    another row, or the array is read as a whole."""
    places: dict[int, tuple[Atom | None, ...]] = {}
    places_of(block, versions, places)
    if any(place[0] is None for place in places.values()):
        raise NotRows
    at.update((k, place[0]) for k, place in places.items())  # type: ignore[misc]
