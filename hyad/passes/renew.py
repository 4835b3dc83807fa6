"""States of loops that are made from themselves, or changed in parts, updated in place; rows copied aside for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Scalar,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    defined_in,
    free_vars,
    reads,
    substitute,
    type_of,
    with_blocks,
    with_body,
)
from ..errors import Span
from ..program.affine import Affine, affine_add
from ..program.dead import has_checks
from ..program.rebuild import rebuild
from ..program.sink import reads_first
from .history import remembered
from .tables import affine_of


def renew(program: Program) -> Program:
    """Updates a state in place if each element is made of itself and of those after it; and a part of an array, of
    which each element is made of itself.

    ``(ifold (fn [v t] (build n (fn [i] (f (get v i) (get v (+ i 1)))))) ..)``  =>  the same, each element written over
    the old one, which no later iteration reads. So is ``(set-at! u (slice 1 -1) (f (get u (slice 1 -1))))``.

    Design decision: the new array starts as the old one, and what is read of the old is read of the new: the same
    values, since they are not written yet. That both have one memory is then what ``codegen/lower.py`` finds. Not of a
    state that is remembered as it was: it is made anew where that is (``history``), and no row is copied. Nor of one
    that is made of other arrays alone: the two change places, and what has made these can be stored there at once.
    """
    nested = (x.op for x in all_binds(program.body) if type(x.op) in (Loop, While))
    if not any(type(x.op) is Loop for op in nested for x in op.body.binds):
        return program
    made = with_body(program, renewed(program.body, len(program.body.results)))
    return program if made is program else rebuild(made)


def put_aside(program: Program) -> Program:
    """Reads what is needed of an array before it is changed, numbers as they are and rows as copies, so that it can be
    changed in place.

    ``b = (update a i x); y = (get a j k)``  =>  ``y = (get a j k); b = (update a i x)``; where a loop reads of the row
    that is replaced, ``r = row i of a; b = (update a i x); .. (get r k)``. So it is where the block gives that row.
    Design decision: where nothing else of the old array is read any more; else all of it would be copied.
    """
    changed = any(type(x.op) is Prim and x.op.name in CHANGES for x in all_binds(program.body))
    return with_body(program, aside(program.body, set(program.params))) if changed else program


#: The operations that make an array from another one.
CHANGES = ("update", "add-at")


def aside(block: Block, params: set[Var]) -> Block:
    """``put_aside`` for a block; itself where there is nothing to put aside."""
    binds: list[Bind] = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [aside(r, params) for r in regions]
        changed = any(r is not s for r, s in zip(made, regions))
        binds.append(Bind(x.vars, with_blocks(x.op, made), x.span, x.soft) if changed else x)
    binds = [*reads_first(binds)]
    for change in [x for x in binds if type(x.op) is Prim and x.op.name in CHANGES and x.op.args[0] not in params]:
        binds = read_before(binds, change, block.results)
    return block if all(x is y for x, y in zip(binds, block.binds)) else Block(tuple(binds), block.results)


def read_before(binds: list[Bind], change: Bind, results: Sequence[Atom]) -> list[Bind]:
    """The bindings of a block in which what is read after ``change`` of the array before it is read first; themselves
    where that cannot be."""
    k = binds.index(change)
    old, *at, new = change.op.args  # type: ignore[union-attr]
    before, after = binds[:k], binds[k + 1 :]
    views = [x for x in before if is_view(x.op, old, at)]
    given = [x for x in views if x.vars[0] in results and isinstance(x.vars[0].type, Arr)]
    views = [x for x in views if x in given or read_in(after, x.vars[0])]
    rows = {old, *(x.vars[0] for x in views)}
    found = [x for x in after if not rows.isdisjoint(reads(x))]
    if not (found or given) or old in results:
        return binds
    first = first_of_all(after, rows, change)
    again = [x for x in after if is_view(x.op, old, at)]
    rest = [x for x in found if x not in first and x not in again]
    if (rest or again) and (change.op.name == "add-at" or not isinstance(type_of(new), Arr)):  # type: ignore[union-attr]
        return binds
    if not all(of_row(Block((x,), ()), old, at) for x in rest):
        return binds
    copied = [x for x in views if x in given or read_in(rest, x.vars[0])]
    made = [row_of(old, at, x.vars[0], change.span) if x in copied else x for x in before] + first
    made += [row_of(old, at, x.vars[0], x.span) for x in again]
    if read_in(rest, old):  # type: ignore[arg-type]
        kept = Var("row", type_of(new))
        made.append(row_of(old, at, kept, change.span))
        after = [of_kept(Block((x,), ()), old, len(at), kept).binds[0] if x in rest else x for x in after]
    return [*made, change, *(x for x in after if x not in first and x not in again)]


def first_of_all(binds: Sequence[Bind], arrays: set[Atom], change: Bind) -> list[Bind]:
    """The bindings that read a number of one of some arrays and need nothing of what comes before them, ``change``
    included: neither a value nor a check."""
    found, made = [], set(change.vars)
    for x in binds:
        if has_checks(Block((x,), ())):
            break
        number = type(x.op) is Prim and x.op.name == "get" and isinstance(x.vars[0].type, Scalar)
        if number and x.op.args[0] in arrays and made.isdisjoint(reads(x)):  # type: ignore[union-attr]
            found.append(x)
        made.update(x.vars)
    return found


def is_view(op: Op, old: Atom, at: Sequence[Atom]) -> bool:
    """Whether an operation looks at a row of an array."""
    return type(op) is Prim and op.name == "get" and op.args == (old, *at)


def read_in(binds: Sequence[Bind], v: Var) -> bool:
    return any(v in reads(x) for x in binds)


def row_of(old: Atom, at: Sequence[Atom], kept: Var, span: Span | None) -> Bind:
    """A copy of a row, of any rank."""
    size, index = kept.type.dims[0], Var("i", INT)  # type: ignore[union-attr]
    item = Var(kept.name, kept.type.item())  # type: ignore[union-attr]
    row = isinstance(item.type, Arr)
    part = row_of(old, (*at, index), item, span) if row else Bind((item,), Prim("get", (old, *at, index)), span)
    return Bind((kept,), Loop(size, index, (), (), Block((part,), (item,))), span)


def of_row(block: Block, old: Atom, at: Sequence[Atom]) -> bool:
    """Whether all that a block reads of an array are parts of one row."""
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name == "get" and op.args[0] is old:
            if len(op.args) < len(at) + 2 or op.args[1 : len(at) + 1] != tuple(at):
                return False
        elif old in atoms_of(op) or not all(of_row(r, old, at) for r in blocks_of(op)):
            return False
    return old not in block.results


def of_kept(block: Block, old: Atom, depth: int, row: Var) -> Block:
    """A block that reads a row in place of the array that it was in."""
    binds = []
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name == "get" and op.args[0] is old:
            x = Bind(x.vars, Prim("get", (row, *op.args[1 + depth :])), x.span)
        elif regions := blocks_of(op):
            x = Bind(x.vars, with_blocks(op, [of_kept(r, old, depth, row) for r in regions]), x.span)
        binds.append(x)
    return Block(tuple(binds), block.results)


def renewed(block: Block, width: int, around: Mapping[Var, Prim | None] | None = None) -> Block:
    """A block with the states of the loops in it renewed; itself where there are none. Its results from ``width`` on
    are stacked: what an iteration begins with is, before anything is changed. ``around``: the sums of integers of the
    blocks around, and the indices of the loops."""
    binds = []
    sums = dict(around or {})
    for x in block.binds:
        if type(x.op) is Prim and x.op.name in ("+", "-") and x.vars[0].type == INT:
            sums[x.vars[0]] = x.op
    for at, x in enumerate(block.binds):
        regions = blocks_of(x.op)
        here = {**sums, x.op.index: None} if type(x.op) is Loop else sums
        made = [renewed(r, len(x.op.accs) if type(x.op) is Loop else len(r.results), here) for r in regions]
        op = x.op if all(r is s for r, s in zip(made, regions)) else with_blocks(x.op, made)
        if type(op) is Loop:
            op = of_their_own(op, Block(block.binds[at + 1 :], block.results[:width]), sums)
        if type(op) in (Loop, While):
            body = op.body  # type: ignore[union-attr]
            kept = remembered(op) if type(op) is Loop else {}
            for k, (acc, r) in enumerate(zip(op.accs, op.body.results)):  # type: ignore[union-attr]
                if isinstance(acc.type, Arr) and acc.type.rank == 1 and type(r) is Var and k not in kept:
                    body = over(body, acc, r)
            if body is not op.body:  # type: ignore[union-attr]
                op = with_blocks(op, [*blocks_of(op)[:-1], body])
        binds.append(x if op is x.op else Bind(x.vars, op, x.span))
    return block if all(x is y for x, y in zip(binds, block.binds)) else Block(tuple(binds), block.results)


def of_their_own(op: Loop, after: Block, sums: Mapping[Var, Prim | None]) -> Loop:
    """A nest that changes elements of an array, and reads of it as it was those alone, each before it is changed, or
    such as it does not change, as of another column: it reads them of the array as it changes, which is no copy then if
    nothing reads the old one ``after``."""
    later = {a for x in after.binds for a in reads(x)} | {*after.results}
    for k, old in enumerate(op.inits):
        if type(old) is Var and isinstance(old.type, Arr) and old in free_vars(op.body) and old not in later:
            made = own_elements(op, k, old, (), sums)
            op = made if made is not None and op.inits.count(old) == 1 else op
    return op


def own_elements(
    op: Loop, k: int, old: Var, indices: tuple[Var, ...], integers: Mapping[Var, Prim | None]
) -> Loop | None:
    """A nest of which state ``k`` has elements or rows changed one by one, each once, that reads in it what it read of
    ``old``; None where that are not the same ones, or such as it does not change. ``indices``: those of the loops
    around."""
    acc, result, body = op.accs[k], op.body.results[k], op.body
    indices = (*indices, op.index)
    integers = {**integers} | {x.vars[0]: x.op for x in body.binds if type(x.op) is Prim and x.vars[0].type == INT}
    maker = next((x for x in body.binds if result in x.vars), None)
    if maker is None or acc not in reads(maker):
        return None
    if not all(is_number_of(x, acc) for x in body.binds if x is not maker and acc in reads(x)):
        return None
    if body.results.count(result) != 1 or op.snapshots is not None:
        return None
    if type(maker.op) is Loop:
        if any(old in reads(x) for x in body.binds if x is not maker) or maker.op.inits.count(acc) != 1:
            return None
        j = maker.op.inits.index(acc)
        inner = own_elements(maker.op, j, old, indices, integers) if maker.vars.index(result) == j else None
        if inner is None:
            return None
        binds = [Bind(x.vars, inner, x.span, x.soft) if x is maker else x for x in body.binds]
        return with_blocks(op, [Block(tuple(binds), body.results)])  # type: ignore[return-value]
    if type(maker.op) is not Prim or maker.op.name != "update" or maker.op.args[0] is not acc:
        return None
    counting = {*indices, *(v for v, made in integers.items() if made is None)}

    def place(a: Atom) -> Affine | None:
        return affine_of(a, integers, {*counting, *integers}, counting)  # type: ignore[arg-type]

    at = [place(a) for a in maker.op.args[1:-1]]
    if None in at:
        return None
    moved = [[i for i in indices if a[1].get(i)] for a in at]  # type: ignore[index]
    places = [own for own in moved if own]
    if any(len(own) != 1 for own in places) or sorted(indices.index(i) for (i,) in places) != [*range(len(indices))]:
        return None

    def stays(there: Sequence[Affine | None]) -> bool:
        """Whether none of the elements at a place that is read is changed, or the one of this iteration alone, or in a
        later one."""
        if None in there or len(there) < len(at):
            return False
        gaps = [affine_add(a, b, -1) for a, b in zip(there, at)]  # type: ignore[arg-type]
        if len(indices) == 1 and any(
            own and not gap[1] and gap[0] * a[1][own[0]] > 0  # type: ignore[index]
            for gap, own, a in zip(gaps, moved, at)
        ):
            return True
        return all(gap == (0, {}) for gap in gaps) or any(
            not own and never_zero(gap, counting) for gap, own in zip(gaps, moved)
        )

    def own(block: Block) -> Block | None:
        """A block that reads of the array as it changes what is not changed yet."""
        binds = []
        for x in block.binds:
            if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] is old:
                if not stays([place(a) for a in x.op.args[1 : len(at) + 1]]):
                    return None
                x = Bind(x.vars, Prim("get", (acc, *x.op.args[1:])), x.span, x.soft)
            elif blocks_of(x.op) and old in reads(x):
                made = [own(b) for b in blocks_of(x.op)]
                if None in made or old in atoms_of(x.op):
                    return None
                x = Bind(x.vars, with_blocks(x.op, made), x.span, x.soft)  # type: ignore[arg-type]
            elif old in reads(x):
                return None
            binds.append(x)
        return None if old in block.results else Block(tuple(binds), block.results)

    whole = own(body)
    if whole is None or any(maker.vars[0] in reads(x) for x in body.binds):
        return None
    binds = [*(x for x in whole.binds if maker.vars[0] not in x.vars), maker]  # when all has been read
    return with_blocks(op, [Block(tuple(binds), body.results)])  # type: ignore[return-value]


def is_number_of(bind: Bind, array: Var) -> bool:
    """Whether a binding is a number that is read of an array."""
    number = type(bind.op) is Prim and bind.op.name == "get" and bind.op.args[0] is array
    return number and isinstance(bind.vars[0].type, Scalar) and array not in bind.op.args[1:]  # type: ignore[union-attr]


def never_zero(gap: Affine, counting: set[Var]) -> bool:
    """Whether an integer is above 0, or below, where indices are not below 0."""
    signs = {n > 0 for n in (gap[0], *gap[1].values()) if n}
    return gap[0] != 0 and len(signs) == 1 and all(v in counting for v, n in gap[1].items() if n)


def over(body: Block, old: Var, new: Var) -> Block:
    """The body of a loop, in which its next state ``new`` is written over ``old``; itself where that cannot be."""
    makers = {v: x for x in body.binds for v in x.vars}
    chain: list[tuple[Bind, int]] = []  # the loops that write it, the first one last, and which state of theirs it is
    at: Atom = new
    while (made := makers.get(at)) is not None and type(made.op) is Loop:  # type: ignore[arg-type]
        k = made.vars.index(at)
        chain.append((made, k))
        if k >= len(made.op.accs):
            break
        at = made.op.inits[k]
    if not chain or made is None or type(made.op) not in (Loop, Prim):
        return body
    first, k = chain[-1]
    fresh = k >= len(first.op.accs)  # type: ignore[union-attr]
    if not fresh and not (type(made.op) is Prim and made.op.name == "undef") or old.type != new.type:
        return body
    here = body.binds.index(first)
    for x in body.binds[here + 1 :]:
        if old in reads(x):
            return body
    after = {a for x in body.binds[here + 1 :] for a in reads(x)}
    links = {x.vars[j] for x, j in chain[1:]}  # each of them is the start of the next one and nothing else
    if links & set(body.results) or any(sum(v in reads(x) for x in body.binds) > 1 for v in links):
        return body
    if fresh and (chain[1:] or new in after or old not in reads(first)):
        return body
    if fresh and not (ahead(first.op, old) or branches(first.op)):
        return body
    op = written_over(first.op, old, k)  # type: ignore[arg-type]
    if op is None:
        return body
    vars = first.vars
    if fresh:
        width = len(first.op.accs)  # type: ignore[union-attr]
        vars = (*vars[:width], vars[k], *(v for j, v in enumerate(vars) if j >= width and j != k))
    binds = list(body.binds)
    binds[here] = Bind(vars, op, first.span)
    return Block(tuple(binds), body.results)


def ahead(op: Op, old: Var) -> bool:
    """Whether a loop that stacks reads elements of ``old`` other than the one that it makes in the same iteration."""
    binds = (x.op for x in all_binds(op.body) if type(x.op) is Prim)  # type: ignore[union-attr]
    return any(o.name == "get" and o.args[0] is old and o.args[1:] != (op.index,) for o in binds)  # type: ignore


def branches(op: Op) -> bool:
    """Whether a loop has a branch, which may take it apart (``edges.py``)."""
    return any(type(x.op) is If for x in op.body.binds)  # type: ignore[union-attr]


def written_over(op: Loop, old: Var, k: int) -> Loop | None:
    """A loop that makes a new array, its result number ``k``, made to change ``old``; None where an iteration may read
    what an earlier one has written."""
    width, body = len(op.accs), op.body
    inside = {op.index, *op.accs, *defined_in(body)}
    made = {v: x.op for x in body.binds for v in x.vars if type(x.op) is Prim}
    integers = {v: x.op for x in all_binds(body) for v in x.vars if v.type == INT and type(x.op) is Prim}

    def place(index: Atom):
        return affine_of(index, integers, inside, {op.index})

    if k < width:
        acc, store = op.accs[k], made.get(body.results[k])  # type: ignore[arg-type]
        if store is None or store.name != "update" or store.args[0] is not acc or len(store.args) != 3:
            return None
        if sum(acc in reads(x) for x in body.binds) > 1 or body.results.count(body.results[k]) > 1:
            return None
        index = store.args[1]
    else:
        acc, index = Var(old.name, old.type, old.span), op.index
    at = place(index)
    if at is None or at[1].get(op.index) != 1 or old in op.inits:
        return None

    def safe(block: Block) -> bool:
        for x in block.binds:
            if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] is old:
                gap = affine_add(where, at, -1) if (where := place(x.op.args[1])) is not None else (-1, {})
                if any(gap[1].values()) or gap[0] < 0:
                    return False
            elif type(x.op) is If:
                if not all(map(safe, blocks_of(x.op))):
                    return False
            elif old in reads(x):
                return False
        return old not in block.results

    if not safe(body):
        return None
    body = substitute(body, {old: acc})
    if k < width:
        store = next(x for x in body.binds if body.results[k] in x.vars)
        if not read_in(body.binds, store.vars[0]):  # when all that an iteration reads has been read
            body = Block((*(x for x in body.binds if x is not store), store), body.results)
        inits = (*op.inits[:k], old, *op.inits[k + 1 :])
        return Loop(op.count, op.index, inits, op.accs, body, op.snapshots)
    value = body.results[k]
    changed = Var(old.name, old.type, old.span)
    binds = (*body.binds, Bind((changed,), Prim("update", (acc, op.index, value)), old.span))
    results = (*body.results[:width], changed, *(r for j, r in enumerate(body.results) if j >= width and j != k))
    return Loop(op.count, op.index, (*op.inits, old), (*op.accs, acc), Block(binds, results), op.snapshots)
