"""Rows of the array that a loop changes, which it reads and never changes: copied before it, so that it is parallel.

Each iteration of an elimination takes a multiple of one row from a row of its own. Of the array that it changes it then
reads a part that is not its own, and only its order would say what it finds there; but that row is none that the loop
writes to. So it is copied before the loop, which reads the copy::

    (ifold (fn [a i] (.. (update a (+ k 1 i) j (- (get a (+ k 1 i) j) (* f (get a k j)))) ..)) a n)
    =>  r = (build m (fn [j] (get a k j)))
        (ifold (fn [a i] (.. (update a (+ k 1 i) j (- (get a (+ k 1 i) j) (* f (get r j)))) ..)) a n)

A row is copied where the loop has an iteration: else it might not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core import INT, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Var, all_binds, blocks_of, with_blocks
from ..passes.spread import reductions
from ..program.affine import affine_add, affine_in
from .courses import long


def elsewhere_block(block: Block, integers: Mapping[Var, Prim]) -> Block:
    """A block in which loops read rows that they do not change from a copy; ``integers`` are the sums and differences
    of the program."""
    out: list[Bind] = []
    for b in block.binds:
        inner = [elsewhere_block(r, integers) for r in blocks_of(b.op)]
        b = Bind(b.vars, with_blocks(b.op, inner), b.span) if inner else b
        out += changed_rows(b, integers) if long(b) and reductions(b.op) is None else [b]
    return Block(tuple(out), block.results)


def changed_rows(bind: Bind, integers: Mapping[Var, Prim]) -> list[Bind]:
    """A loop, and the copies of rows before it, where it is a parallel one then."""
    op = bind.op
    before: list[Bind] = []
    made: dict[tuple[Atom, Atom], Var] = {}
    body = op.body
    for acc, init in zip(op.accs, op.inits):
        if isinstance(acc.type, Arr) and acc.type.rank == 2:
            states = states_of(body, acc)
            written = rows_written(body, states, op.index, integers)
            if written is not None:
                rows = [r for r in rows_read(body, states) if apart(r, written, op, integers)]
                for r in rows:
                    copy, made[acc, r] = copied(acc, init, r, bind)
                    before += copy
                body = with_copies(body, states, {r: made[acc, r] for r in rows})
    whole = replace(op, body=body)
    if not before or reductions(whole) is None:
        return [bind]
    return [*before, Bind(bind.vars, whole, bind.span)]


def states_of(body: Block, acc: Var) -> set[Var]:
    """An accumulator, and all that becomes of it in the body."""
    found = {acc}
    for b in all_binds(body):
        op = b.op
        if type(op) is Prim and op.name in ("update", "add-at") and op.args[0] in found:
            found.update(b.vars)
        elif type(op) is Loop:
            for z, a, v in zip(op.inits, op.accs, b.vars):
                if z in found:
                    found.update((a, v))
        elif type(op) is If:
            found.update(v for k, v in enumerate(b.vars) if any(r.results[k] in found for r in blocks_of(op)))
    return found


def rows_written(body: Block, states: set[Var], index: Var, integers: Mapping[Var, Prim]) -> tuple | None:
    """The row that an iteration writes to, without the index; None where it is not one, or not the next one."""
    found = None
    for b in all_binds(body):
        if type(b.op) is Prim and b.op.name in ("update", "add-at") and b.op.args[0] in states:
            row = affine_in(b.op.args[1], integers)
            if row[1].get(index) != 1 or found not in (None, row):
                return None
            found = row
    return affine_add(found, (0, {index: 1}), -1) if found is not None else None


def rows_read(body: Block, states: set[Var]) -> dict[Atom, None]:
    """The rows that elements are read of."""
    reads = (b.op.args for b in all_binds(body) if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] in states)
    return dict.fromkeys(args[1] for args in reads if len(args) == 3)


def apart(row: Atom, written: tuple, op: Loop, integers: Mapping[Var, Prim]) -> bool:
    """Whether no iteration changes a row, which all of them read: it comes before the first that is changed, or behind
    the last."""
    inside = {op.index, *op.accs}
    for b in all_binds(op.body):
        inside.update(b.vars)
        if type(b.op) is Loop:
            inside.update((b.op.index, *b.op.accs))
    if row in inside:
        return False
    constant, rest = affine_add(written, affine_in(row, integers), -1)
    last, left = affine_add((constant - 1, rest), affine_in(op.count, integers))
    return not rest and constant > 0 or not left and last < 0


def copied(acc: Var, init: Atom, row: Atom, loop: Bind) -> tuple[list[Bind], Var]:
    """A copy of a row, if there is an iteration to read it, and its variable."""
    some, once, count, j = (Var(name, INT) for name in ("some", "once", "count", "j"))
    x, copy = Var(acc.name, acc.type.elem), Var("row", Arr(acc.type.elem, (count,)))
    element = Block((Bind((x,), Prim("get", (init, row, j))),), (x,))
    return [
        Bind((some,), Prim("max", (loop.op.count, Const(0, INT)))),
        Bind((once,), Prim("min", (some, Const(1, INT)))),
        Bind((count,), Prim("*", (acc.type.dims[1], once))),
        Bind((copy,), Loop(count, j, (), (), element), loop.span),
    ], copy


def with_copies(block: Block, states: set[Var], copies: Mapping[Atom, Var]) -> Block:
    """A block that reads elements of some rows from their copies."""
    out = []
    for b in block.binds:
        op = b.op
        if type(op) is Prim and op.name == "get" and op.args[0] in states and len(op.args) == 3:
            b = Bind(b.vars, Prim("get", (copies[op.args[1]], op.args[2])), b.span) if op.args[1] in copies else b
        inner = [with_copies(r, states, copies) for r in blocks_of(op)]
        out.append(Bind(b.vars, with_blocks(op, inner), b.span) if inner else b)
    return Block(tuple(out), block.results)
