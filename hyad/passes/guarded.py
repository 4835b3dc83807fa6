"""Loops in a branch that changes an array: loops beside it, which run no time where the branch is not taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..core import (
    BOOL,
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Scalar,
    Var,
    all_binds,
    blocks_of,
    integer,
    reads,
    real,
    substitute,
    type_of,
    with_blocks,
)
from ..program.builder import Builder
from .spread import changed

#: What makes an integer of any integers.
SUMS = frozenset({"+", "-", "neg", "max", "min", "select"})


def guarded_block(b: Builder, block: Block) -> Block:
    """Takes the loops that change an array in place out of a branch that else leaves it as it is.

    ``(if c (let [x (f s)] (ifold (fn [a k] (update a k (g x (get a k)))) a n)) a)``  =>
    ``(let [x (if c (f s) 0.0)] (ifold (fn [a k] (update a k (g x (get a k)))) a (if c n 0)))``.
    Design decision: before differentiation alone, in loops that carry the array. Reverse mode does again what a branch
    has done, from the array as it was, and would remember all of it for each iteration; of a loop it remembers the
    elements that it reads.
    """
    if "guarded" in b.off or not any(type(x.op) is If for x in all_binds(block)):
        return block
    return freed(block, frozenset())


def freed(block: Block, carried: frozenset[Var]) -> Block:
    """A block whose branches have no loops that change arrays ``carried`` from iteration to iteration; itself where
    there are none such."""
    binds: list[Bind] = []
    table: dict[Var, Atom] = {}
    for x in block.binds:
        op = x.op
        mine = carried | frozenset(a for a in op.accs if isinstance(a.type, Arr)) if type(op) is Loop else carried
        made = [freed(r, mine) for r in blocks_of(op)]
        if any(r is not s for r, s in zip(made, blocks_of(op))):
            x = Bind(x.vars, with_blocks(op, made), x.span, x.soft)
        apart = beside(x, x.op) if carried and type(x.op) is If else None
        if apart is None:
            binds.append(x)
        else:
            binds += apart[0]
            table.update((v, table.get(a, a)) for v, a in zip(x.vars, apart[1]))  # type: ignore[call-overload]
    if all(x is y for x, y in zip(binds, block.binds)) and not table:
        return block
    return substitute(Block(tuple(binds), block.results), table)


def beside(bind: Bind, op: If) -> tuple[list[Bind], list[Atom]] | None:
    """What a branch does, its loops beside it, and what it gives; None where it does not change arrays by loops and
    else leave them."""
    then, orelse, out = op.then, op.orelse, []
    cond = op.cond
    if orelse.binds and not then.binds:
        then, orelse = orelse, then
        cond = Var("otherwise", BOOL)
        out.append(Bind((cond,), Prim("not", (op.cond,)), bind.span))
    if not all(isinstance(v.type, (Scalar, Arr)) for x in (bind, *then.binds) for v in x.vars):
        return None
    arrays = [k for k, v in enumerate(bind.vars) if isinstance(v.type, Arr)]
    versions = {k: chain(then, then.results[k]) for k in arrays}
    if orelse.binds or any(not vs or vs[-1] is not orelse.results[k] for k, vs in versions.items()):
        return None
    mine = {v for vs in versions.values() for v in vs[:-1]}
    loops = [x for x in then.binds if type(x.op) is Loop]
    if not any(v in mine for x in loops for v in x.vars) or not all(map(plain, loops)):
        return None
    table: dict[Var, Atom] = {}
    waiting: list[Bind] = []
    for k, x in enumerate(then.binds):
        if type(x.op) is not Loop:
            if any(isinstance(v.type, Arr) and v not in mine for v in x.vars):
                return None  # an array of the branch's own
            waiting.append(x)
            continue
        later = {a for y in then.binds[k:] for a in reads(y)} | {*then.results}
        out += inside(cond, waiting, later, table, bind)
        waiting = []
        count = Var("count", INT)
        out.append(Bind((count,), Prim("select", (cond, table.get(x.op.count, x.op.count), integer(0))), x.span))  # type: ignore
        (loop,) = substitute(Block((x,), ()), table).binds
        made = tuple(Var(v.name, v.type, v.span, v.given) for v in x.vars)
        out.append(Bind(made, replace(loop.op, count=count), x.span, x.soft))
        table.update(zip(x.vars, made))
    out += inside(cond, waiting, set(then.results), table, bind)
    given: list[Atom] = []
    for k, v in enumerate(bind.vars):
        one, other = table.get(then.results[k], then.results[k]), orelse.results[k]  # type: ignore[call-overload]
        if k not in versions and one is not other:
            chosen = Var(v.name, v.type, v.span, v.given)
            out.append(Bind((chosen,), Prim("select", (cond, one, other)), bind.span))
            one = chosen
        given.append(one)
    return out, given


def plain(bind: Bind) -> bool:
    """Whether a loop gives nothing but its accumulators."""
    return len(bind.vars) == len(bind.op.accs)  # type: ignore[union-attr]


def chain(block: Block, r: Atom) -> list[Atom]:
    """What an array was, change by change, the last one outside of a block; nothing where it is made anew."""
    made = {v: x for x in block.binds for v in x.vars}
    found = [r]
    while r in made:
        x, k = made[r], made[r].vars.index(r)  # type: ignore[index, arg-type]
        before = [changed(x, k)]
        if type(x.op) is If:
            before = [(chain(arm, arm.results[k]) or [None])[-1] for arm in blocks_of(x.op)]  # type: ignore[list-item]
        r = before[0]  # type: ignore[assignment]
        if r is None or r is not before[-1]:
            return []
        found.append(r)
    return found


def inside(cond: Atom, binds: list[Bind], later: Iterable[Atom], table: dict[Var, Atom], around: Bind) -> list[Bind]:
    """What stays in the branch, between its loops; ``table`` learns what is read of it ``later``."""
    wanted = dict.fromkeys(v for x in binds for v in x.vars if v in later)
    made_by = {v: x for x in binds for v in x.vars}
    sums: dict[Var, Bind] = {}  # of integers, as how often a loop runs: done beside the branch as well
    stack = [v for v in wanted if sums_up(made_by[v])]
    while stack:
        v = stack.pop()
        wanted.pop(v, None)
        sums[v] = made_by[v]
        for a in reads(made_by[v]):
            if a in made_by and sums_up(made_by[a]):
                stack.append(a)
            elif a in made_by:
                wanted[a] = None
    if not wanted and all(type(x.op) is Prim for x in binds):
        return summed(binds, sums, table)
    block = substitute(Block(tuple(binds), tuple(wanted)), table)
    versions = {v: chain(Block(tuple(binds), ()), v) for v in wanted if isinstance(v.type, Arr)}
    before = [table.get(versions[v][-1], versions[v][-1]) if v in versions else nothing(v) for v in wanted]  # type: ignore
    made = tuple(Var(v.name, v.type, v.span, v.given) for v in wanted)
    table.update(zip(wanted, made))
    branch = Bind(made, If(cond, block, Block((), tuple(before))), around.span, around.soft)
    return [branch, *summed(binds, sums, table)]


def sums_up(bind: Bind) -> bool:
    """Whether an operation makes an integer of integers that may be any."""
    return type(bind.op) is Prim and bind.vars[0].type == INT and bind.op.name in SUMS


def summed(binds: list[Bind], sums: dict[Var, Bind], table: dict[Var, Atom]) -> list[Bind]:
    """Some sums of a branch, beside it; ``table`` learns of them."""
    out = []
    for x in binds:
        if x.vars and x.vars[0] in sums:
            again = substitute(Block((x,), ()), table).binds[0]
            table[x.vars[0]] = v = Var(x.vars[0].name, INT, x.vars[0].span, x.vars[0].given)
            out.append(Bind((v,), again.op, x.span))
    return out


def nothing(v: Var) -> Const:
    """What a number is where nobody asks for it."""
    t = type_of(v)
    assert isinstance(t, Scalar)
    return Const(False, BOOL) if t == BOOL else integer(0) if t == INT else real(0.0)
