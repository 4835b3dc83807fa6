"""Dead code: what no result needs.

One backward walk with liveness of single results, so that a loop that a derivative stacks all its accumulators in
costs nothing where the backward code wants none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .core import Atom, Bind, Block, Check, If, Loop, Prim, Program, Var, blocks_of, type_atoms


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
    return replace(program, body=prune(program.body, live, program.body.results))


def tidy(block: Block) -> Block:
    """A finished region without its dead bindings."""
    live = {r for r in block.results if type(r) is Var}
    return prune(block, live, block.results)


def need(live: set[Var], atoms: Sequence[Atom]) -> None:
    for a in atoms:
        if type(a) is Var:
            live.add(a)


def prune(block: Block, live: set[Var], results: Sequence[Atom]) -> Block:
    """A block with only the bindings that ``live`` variables need; ``live`` grows by what they read."""
    kept: list[Bind] = []
    for bind in reversed(block.binds):
        op = bind.op
        if type(op) is Prim:
            if bind.vars[0] not in live:
                continue
            need(live, op.args)
        elif type(op) is Check:
            need(live, (op.a, op.b))
        elif type(op) is If:
            at = [k for k, v in enumerate(bind.vars) if v in live]
            if not at and not effects(op):
                continue
            blocks = []
            for inner in (op.then, op.orelse):
                chosen = tuple(inner.results[k] for k in at)
                need(live, chosen)
                blocks.append(prune(inner, live, chosen))
            need(live, (op.cond,))
            bind = Bind(tuple(bind.vars[k] for k in at), If(op.cond, *blocks), bind.span)
        elif type(op) is Loop:
            pruned = prune_loop(bind, op, live)
            if pruned is None:
                continue
            bind = pruned
        for v in bind.vars:
            need(live, type_atoms(v.type))
        kept.append(bind)
    return Block(tuple(reversed(kept)), tuple(results))


def prune_loop(bind: Bind, op: Loop, live: set[Var]) -> Bind | None:
    width = len(op.accs)
    wanted = {k for k, v in enumerate(bind.vars) if v in live}
    if not wanted and not effects(op):
        return None
    while True:  # an accumulator is needed if a needed result of the body reads it
        inner = set(live)
        need(inner, [op.body.results[k] for k in sorted(wanted)])
        body = prune(op.body, inner, op.body.results)
        more = {k for k, a in enumerate(op.accs) if a in inner} - wanted
        if not more:
            break
        wanted |= more
    live |= inner
    at = sorted(wanted)
    accs = [k for k in at if k < width]
    body = Block(body.binds, tuple(op.body.results[k] for k in at))
    need(live, (op.count, *(op.inits[k] for k in accs)))
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), body)
    return Bind(tuple(bind.vars[k] for k in at), loop, bind.span)


def effects(op: If | Loop) -> bool:
    """Whether a check stands inside."""
    for block in blocks_of(op):
        for bind in block.binds:
            if type(bind.op) is Check or (type(bind.op) in (If, Loop) and effects(bind.op)):
                return True
    return False
