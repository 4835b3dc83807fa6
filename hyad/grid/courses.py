"""Loops over time moved inside the loop over elements, for one call on a GPU: each element on its own course.

A loop over time whose iterations do the same with each element of its states, and nothing with two of them, would be a
kernel for each iteration, which reads all states and writes them. The other way round it is one kernel, whose threads
have their states in registers::

    (ifold (fn [s t] (build n (fn [i] (f (get s i) (get z t i))))) s0 steps)
    =>  (build n (fn [i] (ifold (fn [x t] (f x (get z t i))) (get s0 i) steps)))

What an iteration gives out, as a gradient remembers states, and what it adds to a part of an array that is the
element's own, goes to the same places; what it adds to a sum over all elements comes element by element. What an
iteration does once for all elements each thread does for itself, if that is little.

Rows that are put into arrays, or added to them, become loops: else one thread would go through each.

Design decision: not where an element's part of an iteration has long loops of its own, which threads could share; and
not where an element's states are too many for a thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..core import (
    INT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    most_uses,
    reads,
    same,
    substitute,
    type_of,
    with_blocks,
)
from ..passes.spread import AGAIN, reductions, work
from ..program.dead import has_checks
from ..program.journal import on
from .teams import one_loop

NAME = "courses"  # of the optimisation, to switch it off
LONG = 64  # iterations that are worth a loop of the grid
ROOM = 96  # reals of an element's states
CHANGES = ("update", "add-at")


def long(bind: Bind) -> bool:
    op = bind.op
    return type(op) is Loop and (type(op.count) is not Const or op.count.value > LONG)


# ---------------------------------------------------------------------------------------------------- rows


def rows_block(block: Block) -> Block:
    """A block in which long rows are put into arrays, or added to them, by loops."""
    if not any(type(b.op) is Prim and b.op.name in CHANGES and lengthy(b.op.args[-1]) for b in all_binds(block)):
        return block
    made = {v: b.op for b in block.binds for v in b.vars}
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) is Prim and op.name in CHANGES and lengthy(op.args[-1]):
            out += by_elements(b, op, made)
        elif type(op) in (If, While) or type(op) is Loop and reductions(op) is None:
            out.append(Bind(b.vars, with_blocks(op, [rows_block(r) for r in blocks_of(op)]), b.span))
        else:
            out.append(b)
    return Block(tuple(out), block.results)


def lengthy(row: Atom) -> bool:
    """Whether a value is an array of many elements, or of how many nobody knows yet."""
    dims = getattr(type_of(row), "dims", ())
    return bool(dims) and not (all(type(d) is Const for d in dims) and math.prod(d.value for d in dims) <= LONG)


def by_elements(bind: Bind, op: Prim, made: dict) -> list[Bind]:
    """The loops that do with each element of a row what ``op`` does with the row."""
    array, *subs, row = op.args
    before = []
    root = row
    while type(made.get(root)) is Prim and made[root].name == "get":
        root = made[root].args[0]
    if root is array:  # a row of the same array, which is changed
        before = [stacked(row)]
        row = before[0].vars[0]
    dims = row.type.dims
    indices = [Var("k", INT) for _ in dims]
    accs = [Var(bind.vars[0].name, array.type, bind.span) for _ in dims]
    x, last = Var("x", row.type.elem), Var(bind.vars[0].name, array.type, bind.span)
    element = Prim("get", (row, *indices))
    change = Prim(op.name, (accs[-1], *subs, *indices, x))
    body = Block((Bind((x,), element, bind.span), Bind((last,), change, bind.span)), (last,))
    for k in range(len(dims) - 1, -1, -1):
        start, final = (accs[k - 1], Var(last.name, last.type, bind.span)) if k else (array, bind.vars[0])
        found = Bind((final,), Loop(dims[k], indices[k], (start,), (accs[k],), body), bind.span)
        body = Block((found,), (final,))
    return [*before, found]


def stacked(row: Var) -> Bind:
    """A copy of an array."""
    dims = row.type.dims
    indices = [Var("k", INT) for _ in dims]
    x = Var("x", row.type.elem)
    body = Block((Bind((x,), Prim("get", (row, *indices))),), (x,))
    for k in range(len(dims) - 1, -1, -1):
        made = Var(row.name, Arr(row.type.elem, dims[k:]))
        found = Bind((made,), Loop(dims[k], indices[k], (), (), body))
        body = Block((found,), (made,))
    return found


# ------------------------------------------------------------------------------------------------- courses


def stepped(block: Block) -> bool:
    """Whether a block has loops that are taken in their order, with loops over elements in them."""
    return on(NAME) and any(
        type(b.op) is Loop and any(map(long, b.op.body.binds)) and reductions(b.op) is None for b in all_binds(block)
    )


def courses_block(block: Block, deterministic: bool = False) -> Block:
    """A block in which each element of a loop's states has its own course, where that can be."""
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) in (If, While) or type(op) is Loop and reductions(op) is None:
            b = Bind(b.vars, with_blocks(op, [courses_block(r, deterministic) for r in blocks_of(op)]), b.span)
            found = course(b, deterministic) if long_or_unknown(b) else None
            out += found or [b]
        else:
            out.append(b)
    return Block(tuple(out), block.results)


def long_or_unknown(bind: Bind) -> bool:
    """Whether a loop has several iterations."""
    op = bind.op
    return type(op) is Loop and op.snapshots is None and (type(op.count) is not Const or op.count.value > 1)


def course(bind: Bind, deterministic: bool) -> list[Bind] | None:
    """The loop over elements that a loop with states is the other way round, and what it starts with."""
    op, n = bind.op, len(bind.op.accs)
    parts = in_parts(op)
    if parts is None:
        return None
    before, loop, after = parts
    each, m = loop.op, len(loop.op.accs)
    if any(long(b) or type(b.op) in (Make, Apply, Case) for b in all_binds(each.body)) or has_checks(op.body):
        return None
    sums = {v: k for k, v in enumerate(loop.vars[:m])}
    made = {v: m + k for k, v in enumerate(loop.vars[m:])}
    states: dict[int, int] = {}  # accumulators by the results of ``each`` that they become
    through: dict[int, int] = {}  # and those that it adds to
    for k, (acc, result) in enumerate(zip(op.accs, op.body.results)):
        if result in after:
            added = after[result]
            if acc is not added[0] or most_uses(op.body, acc) != 1:
                return None
            through[k] = sums[added[1]]
        elif result in sums:
            if each.inits[sums[result]] is not acc or most_uses(op.body, acc) != 1 + most_uses(each.body, acc):
                return None
            through[k] = sums[result]
            if most_uses(each.body, acc):
                each = replace(each, body=from_the_same(each.body, acc, each.accs[sums[result]]))
        elif result in made and isinstance(acc.type, Arr) and same(acc.type.dims[0], each.count):
            states[k] = made[result]
        else:
            return None
    given = op.body.results[n:]
    own = {op.accs[k] for k in states}
    if (
        set(through.values()) != set(range(m))
        or len(through) != m
        or not all(r in made or r in own or apart(r, op, each) for r in given)
    ):
        return None
    loop = Bind(loop.vars, each, loop.span)
    if any(op.accs[k] in free_vars(each.body) for k in through):  # what has been changed by then
        return None
    room = [d for k in states for d in op.accs[k].type.dims[1:]]
    if not all(type(d) is Const for d in room):
        return None
    if sum(math.prod(d.value for d in op.accs[k].type.dims[1:]) for k in states) > ROOM:
        return None
    return turned(bind, before, loop, states, through, deterministic)


def apart(row: Atom, op: Loop, each: Loop) -> bool:
    """Whether what a loop gives out is an array that it does not change, with an element for each of ``each``."""
    t = type_of(row)
    if not isinstance(t, Arr) or not same(t.dims[0], each.count) or row in op.accs:
        return False
    return type(row) is Var and not any(row in b.vars for b in op.body.binds)


def from_the_same(block: Block, old: Var, new: Var) -> Block:
    """A block that reads an array as it was from the one that it changes, up to its first change."""
    table = {old: new}
    first = next((k for k, b in enumerate(block.binds) if new in reads(b)), len(block.binds))
    begin = substitute(Block(block.binds[:first], ()), table)
    return Block((*begin.binds, *block.binds[first:]), block.results)


def in_parts(op: Loop) -> tuple[list[Bind], Bind, dict[Var, tuple[Atom, Var]]] | None:
    """An iteration as what is done first for all elements, the one loop over these, and sums that it is added to: by
    the sum, what it was and what is added. None where it is not so."""
    moved: set[Var] = {*op.accs}
    before: list[Bind] = []
    loops: list[Bind] = []
    after: dict[Var, tuple[Atom, Var]] = {}
    for b in op.body.binds:
        if type(b.op) is Loop and long(b) and reductions(b.op) is not None:
            if loops:
                first = loops.pop()
                ends, rows = first.vars[: len(first.op.accs)], first.vars[len(first.op.accs) :]
                fresh = [k for k, z in enumerate(b.op.inits) if z in rows and most_uses(op.body, z) == 1]
                again = by_rows(b, fresh) if fresh else b
                if again is None:
                    return None
                b = again
                chained = {z for z in b.op.inits if z in ends and most_uses(op.body, z) == 1}
                joined = one_loop(first, b, chained) if same(first.op.count, b.op.count) else None
                if joined is None:
                    return None
                b = joined
            loops.append(b)
            moved.update(b.vars)
        elif not any(a in moved for a in reads(b)):
            if loops and any(v in reads(loops[0]) for v in b.vars):
                return None
            before.append(b)
        elif type(b.op) is Prim and b.op.name == "+" and loops:
            m = len(loops[0].op.accs)
            ways = [(x, y) for x, y in (b.op.args, b.op.args[::-1]) if x in op.accs and y in loops[0].vars[:m]]
            start = loops[0].op.inits[loops[0].vars.index(ways[0][1])] if ways else None
            if not (type(start) is Const and start.value == 0) or most_uses(op.body, ways[0][1]) != 1:
                return None
            after[b.vars[0]] = ways[0]
            moved.update(b.vars)
        else:
            return None
    scalars = all(type(b.op) is Prim and (b.op.name == "get" or not isinstance(b.vars[0].type, Arr)) for b in before)
    inside = {v for b in before for v in b.vars} | {op.index}
    if len(loops) != 1 or not scalars or sum(work(b.op) for b in before) > AGAIN or loops[0].op.count in inside:
        return None
    summed = {v for _, v in after.values()}
    ends = loops[0].vars[: len(loops[0].op.accs)]
    within = [k for k, v in enumerate(ends) if v not in op.body.results and v not in summed]
    loop = by_rows(loops[0], within) if within else loops[0]
    return (before, loop, after) if loop is not None else None


def by_rows(bind: Bind, fresh: Sequence[int]) -> Bind | None:
    """A loop that makes rows in place of some accumulators, of which each iteration changes its own part; None where it
    reads or changes another."""
    op, n = bind.op, len(bind.op.accs)
    rows: dict[Atom, Atom] = {}  # what is an iteration's own of each state of the arrays
    alias: dict[Var, Atom] = {}
    out: list[Bind] = []
    for k in fresh:
        acc = op.accs[k]
        row = Var(acc.name, Arr(acc.type.elem, rest) if (rest := acc.type.dims[1:]) else acc.type.elem, acc.span)
        out.append(Bind((row,), Prim("get", (op.inits[k], op.index)), bind.span))
        rows[acc] = row
    for b in op.body.binds:
        o = b.op
        if type(o) is not Prim or o.name not in ("get", *CHANGES) or o.args[0] not in rows:
            if any(a in rows for a in reads(b)):
                return None
            out.append(b)
            continue
        array, at, *rest = o.args
        if at is not op.index or any(a in rows for a in rest):
            return None
        row = rows[array]
        if o.name == "get" and not rest:
            alias[b.vars[0]] = row
        elif o.name == "get":
            out.append(Bind(b.vars, Prim("get", (row, *rest)), b.span))
        elif len(rest) > 1:
            rows[b.vars[0]] = Var(b.vars[0].name, type_of(row), b.span)
            out.append(Bind((rows[b.vars[0]],), Prim(o.name, (row, *rest)), b.span))
        elif o.name == "update":
            rows[b.vars[0]] = rest[0]
        elif isinstance(type_of(row), Arr):
            return None
        else:
            rows[b.vars[0]] = Var(b.vars[0].name, type_of(row), b.span)
            out.append(Bind((rows[b.vars[0]],), Prim("+", (row, rest[0])), b.span))
    results = op.body.results
    if not all(results[k] in rows for k in fresh) or any(r in rows for r in results[n:]):
        return None
    kept = [k for k in range(n) if k not in fresh]
    made = (*(results[k] for k in kept), *results[n:], *(rows[results[k]] for k in fresh))
    body = substitute(Block(tuple(out), made), alias)
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in kept), tuple(op.accs[k] for k in kept), body)
    return Bind((*(bind.vars[k] for k in kept), *bind.vars[n:], *(bind.vars[k] for k in fresh)), loop, bind.span)


def turned(
    bind: Bind,
    before: Sequence[Bind],
    loop: Bind,
    states: dict[int, int],
    through: dict[int, int],
    deterministic: bool,
) -> list[Bind] | None:
    op, each, n = bind.op, loop.op, len(bind.op.accs)
    index, rooms, starts = each.index, [], []
    here: dict[Var, Var] = {}  # an element's own, by the array
    for k in states:
        acc = op.accs[k]
        here[acc] = Var(acc.name, Arr(acc.type.elem, rest) if (rest := acc.type.dims[1:]) else acc.type.elem, acc.span)
        start = Var(acc.name, here[acc].type, acc.span)
        starts.append(Bind((start,), Prim("get", (op.inits[k], index)), bind.span))
    body = elements(each.body, here, index)
    if body is None:
        return None
    sums = {k: each.accs[j] for k, j in through.items()}
    # what iterations give out is put where it would be stacked
    puts: list[Bind] = []
    given: list[tuple[Var, Var, Var, Var]] = []  # the array, it around the loop over time, in it, and what it becomes
    for k, r in enumerate(op.body.results[n:]):
        v = bind.vars[n + k]
        if r in here:
            value: Atom = here[r]
        elif r in loop.vars:
            value = body.results[loop.vars.index(r)]
        else:
            value = Var(v.name, Arr(r.type.elem, rest) if (rest := r.type.dims[1:]) else r.type.elem, v.span)
            puts.append(Bind((value,), Prim("get", (r, index)), bind.span))
        room, around, acc, put = (Var(v.name, v.type, v.span) for _ in range(4))
        rooms.append(Bind((room,), Prim("undef", ()), bind.span))
        puts.append(Bind((put,), Prim("update", (acc, op.index, index, value)), bind.span))
        given.append((room, around, acc, put))
    inner_accs = [here[op.accs[k]] for k in states]
    finals = [Var(v.name, v.type, v.span) for v in inner_accs]
    inner_accs += [*sums.values(), *(acc for _, _, acc, _ in given)]
    outer_accs = [Var(a.name, a.type, a.span) for a in sums.values()] + [around for _, around, _, _ in given]
    inits = (*(b.vars[0] for b in starts), *outer_accs)
    results = [body.results[j] for j in states.values()]
    results += [body.results[j] for j in through.values()] + [put for *_, put in given]
    course_ = Loop(op.count, op.index, inits, tuple(inner_accs), Block((*before, *body.binds, *puts), tuple(results)))
    ends = [Var(a.name, a.type, a.span) for a in outer_accs]
    whole = Block((*starts, Bind((*finals, *ends), course_, bind.span)), (*ends, *finals))
    outer_inits = (*(op.inits[k] for k in through), *(room for room, *_ in given))
    outer = Loop(each.count, index, outer_inits, tuple(outer_accs), whole)
    kinds = reductions(outer)
    if kinds is None or deterministic and any(r.kind == "scatter" for r in kinds):
        return None
    found = (*(bind.vars[k] for k in through), *bind.vars[n:], *(bind.vars[k] for k in states))
    return [*rooms, Bind(found, outer, bind.span)]


def elements(block: Block, here: dict[Var, Var], index: Var) -> Block | None:
    """A block that has an element of each array in place of the array; None where it reads other elements."""
    alias: dict[Var, Atom] = {}

    def own(block: Block) -> Block | None:
        out = []
        for b in block.binds:
            op = b.op
            if type(op) is Prim and op.name == "get" and op.args[0] in here and op.args[1] is index:
                if len(op.args) == 2:
                    alias[b.vars[0]] = here[op.args[0]]
                else:
                    out.append(Bind(b.vars, Prim("get", (here[op.args[0]], *op.args[2:])), b.span))
                continue
            if any(a in here for a in atoms_of(op)):
                return None
            inner = [own(r) for r in blocks_of(op)]
            if None in inner:
                return None
            out.append(Bind(b.vars, with_blocks(op, inner), b.span) if inner else b)
        return None if any(r in here for r in block.results) else Block(tuple(out), block.results)

    made = own(block)
    return substitute(made, alias) if made is not None else None
