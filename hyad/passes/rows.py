"""Adjoints of matrices, a row at a time; loops whose iterations change rows of their own; rows that are added."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    REAL,
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
    reads,
    with_blocks,
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
        elif type(op) is If and any(r in rows or reads_any(b, rows) for b in blocks_of(op) for r in (*b.results, None)):
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


def reads_any(block: Block, rows: dict[Atom, Var]) -> bool:
    return any(v in rows for v in free_vars(block))


def untouched(block: Block, rows: dict[Atom, Var]) -> None:
    if reads_any(block, rows):
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


# ------------------------------------------------------------------------------------- rows that are added


def added_rows(block: Block) -> Block:
    """A block in which rows that are made and then added to rows of an array are added element by element, where they
    are made.

    ``r = (build m f) .. (add-at a i r)``  =>  ``(ifold (fn [a k] (add-at a i k (f k))) a m)``.
    """
    binds: list[Bind | None] = list(block.binds)
    for k, x in enumerate(block.binds):
        regions = blocks_of(x.op)
        inner = [added_rows(region) for region in regions]
        if any(one is not two for one, two in zip(regions, inner)):
            binds[k] = Bind(x.vars, with_blocks(x.op, inner), x.span, x.soft)
    for k in range(len(binds)):
        adds = additions_of(binds, k, block.results)
        if adds:
            binds[adds[-1]] = adding(binds[k], [binds[j] for j in adds])  # type: ignore[arg-type, misc]
            binds[k] = None
            for j in adds[:-1]:
                binds[j] = None
    if all(one is two for one, two in zip(binds, block.binds)):
        return block
    return Block(tuple(x for x in binds if x is not None), block.results)


def additions_of(binds: Sequence[Bind | None], k: int, results: Sequence[Atom]) -> list[int]:
    """Where all rows of numbers that a loop makes are added to rows, and read by nothing else, so that they can be
    added at the last of these places; else nothing."""
    made = binds[k]
    op = made.op if made is not None else None
    if type(op) is not Loop or op.accs or op.snapshots is not None or not made.vars:  # type: ignore[union-attr]
        return []
    rows = set(made.vars)  # type: ignore[union-attr]
    if not all(isinstance(v.type, Arr) and v.type.rank == 1 and v.type.elem == REAL for v in rows):
        return []
    readers = [j for j, x in enumerate(binds) if x is not None and not rows.isdisjoint(reads(x))]
    adds = [binds[j] for j in readers]
    if len(adds) != len(rows) or not rows.isdisjoint(results):  # type: ignore[arg-type]
        return []
    if not all(type(x.op) is Prim and x.op.name == "add-at" and x.op.args[-1] in rows for x in adds):  # type: ignore
        return []
    arrays = {a for x in adds for a in (x.op.args[0], *x.vars)}  # type: ignore[union-attr]
    between = [x for j, x in enumerate(binds[: readers[-1]]) if x is not None and j >= k and j not in readers]
    if any(not arrays.isdisjoint(reads(x)) for x in between):
        return []
    starts = [x.op.args[0] for x in adds]  # type: ignore[union-attr]
    return readers if len(set(starts)) == len(starts) else []


def adding(made: Bind, adds: Sequence[Bind]) -> Bind:
    """The loop that adds the elements of rows as it makes them. What is added to what another one gives goes on with
    that, element by element."""
    op = made.op
    assert type(op) is Loop
    number = dict(zip(made.vars, op.body.results))
    inits: list[Atom] = []
    accs: list[Var] = []
    last: dict[Atom, int] = {}  # which accumulator an array is, as far as it has been added to
    given: list[Var] = []
    now: list[Atom] = []
    binds = list(op.body.binds)
    for x in adds:
        start, *at, row = x.op.args  # type: ignore[union-attr]
        (after,) = x.vars
        k = last.pop(start, len(accs))
        if k == len(accs):
            inits.append(start)
            accs.append(Var(after.name, after.type, after.span))
            now.append(accs[k])
            given.append(after)
        changed = Var(after.name, after.type, after.span)
        binds.append(Bind((changed,), Prim("add-at", (now[k], *at, op.index, number[row])), x.span, x.soft))  # type: ignore
        now[k], given[k], last[after] = changed, after, k
    loop = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(binds), tuple(now)))
    return Bind(tuple(given), loop, made.span)
