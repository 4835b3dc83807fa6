"""Dead code: what no result needs.

One backward walk with liveness of single results, so that a loop that a derivative stacks all its accumulators in
costs nothing where the backward code wants none.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    Apply,
    Arm,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    If,
    Loop,
    Make,
    Op,
    Prim,
    Program,
    Scalar,
    Var,
    While,
    all_binds,
    blocks_of,
    functions_of,
    kinds_of,
    type_atoms,
    with_body,
)


def dead_code(program: Program) -> Program:
    """Drops what no result needs: bindings, results of branches, accumulators and stacked arrays of loops.

    ``t = (sin x); r = x``  =>  ``r = x``. A ``Check`` stays, and so does a loop or branch that holds one.
    """
    live: set[Var] = set()
    for r in program.body.results:
        if type(r) is Var:
            live.add(r)
    for p in program.params:
        live.update(d for d in type_atoms(p.type) if type(d) is Var)
    return with_body(program, prune(program.body, live, program.body.results))


def tidy(block: Block) -> Block:
    """A finished region without its dead bindings."""
    live = {r for r in block.results if type(r) is Var}
    return prune(block, live, block.results)


def need(live: set[Var], atoms: Sequence[Atom]) -> None:
    for a in atoms:
        if type(a) is Var:
            live.add(a)


def these(atoms: tuple, at: Sequence[int]) -> tuple:
    """Some of several atoms; themselves where that is all of them."""
    return atoms if len(at) == len(atoms) else tuple(atoms[k] for k in at)


def prune(block: Block, live: set[Var], results: Sequence[Atom]) -> Block:
    """A block with only the bindings that ``live`` variables need; ``live`` grows by what they read. It is the same
    block where there is nothing to drop."""
    kept: list[Bind] = []
    for bind in reversed(block.binds):
        op = bind.op
        if type(op) is Prim:
            if bind.vars[0] not in live:
                continue
            for a in op.args:
                if type(a) is Var:
                    live.add(a)
            if type(bind.vars[0].type) is Scalar:
                kept.append(bind)
                continue
        elif type(op) is Check:
            need(live, (op.a, op.b))
        elif type(op) is If:
            at = [k for k, v in enumerate(bind.vars) if v in live]
            if not at and not effects(op):
                continue
            blocks = []
            for inner in (op.then, op.orelse):
                chosen = these(inner.results, at)
                need(live, chosen)
                blocks.append(prune(inner, live, chosen))
            need(live, (op.cond,))
            if blocks[0] is not op.then or blocks[1] is not op.orelse:
                bind = Bind(these(bind.vars, at), If(op.cond, *blocks), bind.span)
        elif type(op) is Loop:
            pruned = prune_loop(bind, op, live)
            if pruned is None:
                continue
            bind = pruned
        elif type(op) is Make:
            if bind.vars[0] not in live:
                continue
            need(live, op.args)
        elif type(op) is Apply:
            if not any(v in live for v in bind.vars) and not effects(op):
                continue
            need(live, op.args)
        elif type(op) is Case:
            at = [k for k, v in enumerate(bind.vars) if v in live]
            if not at and not effects(op):
                continue
            arms = []
            for arm in op.arms:
                chosen = tuple(arm.block.results[k] for k in at)
                need(live, chosen)
                arms.append(Arm(arm.constructor, arm.fields, prune(arm.block, live, chosen), arm.span))
            need(live, (op.value,))
            bind = Bind(tuple(bind.vars[k] for k in at), Case(op.value, tuple(arms)), bind.span)
        elif type(op) is While:
            pruned = prune_while(bind, op, live)
            if pruned is None:
                continue
            bind = pruned
        for v in bind.vars:
            need(live, type_atoms(v.type))
        kept.append(bind)
    kept.reverse()
    binds = tuple(kept)
    return block if results is block.results and binds == block.binds else Block(binds, tuple(results))


def prune_loop(bind: Bind, op: Loop, live: set[Var]) -> Bind | None:
    width = len(op.accs)
    wanted = {k for k, v in enumerate(bind.vars) if v in live}
    if not wanted and not effects(op):
        return None
    while True:  # an accumulator is needed if a needed result of the body reads it
        need(live, [op.body.results[k] for k in wanted])
        body = prune(op.body, live, op.body.results)
        more = {k for k, a in enumerate(op.accs) if a in live} - wanted
        if not more:
            break
        wanted |= more
    at = sorted(wanted)
    accs = [k for k in at if k < width]
    need(live, (op.count, *(op.inits[k] for k in accs)))
    if op.snapshots is not None:
        need(live, (op.snapshots,))
    if len(at) == len(bind.vars) and body is op.body:
        return bind
    body = Block(body.binds, tuple(op.body.results[k] for k in at))
    inits, rest = tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs)
    loop = Loop(op.count, op.index, inits, rest, body, op.snapshots)
    return Bind(tuple(bind.vars[k] for k in at), loop, bind.span)


def prune_while(bind: Bind, op: While, live: set[Var]) -> Bind | None:
    width = len(op.accs)
    outs = {k for k in range(len(op.body.results)) if bind.vars[k + (k >= width)] in live}
    if not outs and bind.vars[width] not in live and not effects(op):
        return None
    wanted = set(outs)
    while True:  # an accumulator is needed if the condition or a needed result of the body reads it
        need(live, op.cond.results)
        cond = prune(op.cond, live, op.cond.results)
        need(live, [op.body.results[k] for k in wanted])
        body = prune(op.body, live, op.body.results)
        more = {k for k, a in enumerate(op.accs) if a in live} - wanted
        if not more:
            break
        wanted |= more
    at = sorted(wanted)
    accs = [k for k in at if k < width]
    need(live, [op.inits[k] for k in accs])
    body = Block(body.binds, tuple(op.body.results[k] for k in at))
    if op.snapshots is not None:
        need(live, (op.snapshots,))
    inits, rest = tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs)
    made = While(cond, body, inits, rest, op.snapshots)
    stacked = [bind.vars[k + 1] for k in at if k >= width]
    return Bind((*(bind.vars[k] for k in accs), bind.vars[width], *stacked), made, bind.span)


def effects(op: Op) -> bool:
    """Whether a check stands inside, or in a function that is called."""
    blocks = list(blocks_of(op))
    called = [op.function.body] if type(op) is Apply and op.function.body is not None else []
    called += [f.body for f in functions_of(*blocks, *called) if f.body is not None]
    return any(Check in kinds_of(block) for block in (*blocks, *called))


def has_checks(block: Block) -> bool:
    """Whether a check stands in a block, a region inside it, or a function that it calls."""
    kinds = kinds_of(block)
    return Check in kinds or Apply in kinds and any(type(x.op) is Apply and effects(x.op) for x in all_binds(block))
