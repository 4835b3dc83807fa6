"""Truth values that loops carry, as numbers: vectors have lanes for these."""

from __future__ import annotations

from ..core import (
    BOOL,
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    blocks_of,
    kinds_of,
    real,
    with_blocks,
    with_body,
)
from ..program.dead import tidy
from .lanes import ahead


def flags(program: Program) -> Program:
    """Carries truth values as 1.0 and 0.0 where eight iterations of the loop around go in lanes then.

    ``(build n (fn [i] (ifold (fn [#(alive x) t] (let [x (f x i t)] #((select (< x b) False alive) x))) .. m)))``  =>
    ``#((select (< x b) 0.0 alive) x)``, and ``(!= alive 0.0)`` after the loop: which paths stayed above a barrier.
    """
    made = numbered_in(program.body)
    return program if made is program.body else with_body(program, made)


def numbered_in(block: Block) -> Block:
    if Loop not in kinds_of(block):
        return block
    binds = []
    for x in block.binds:
        op, inner = x.op, blocks_of(x.op)
        if type(op) is Loop and any(map(carries, op.body.binds)) and ahead(op) is None:
            body = Block(tuple(z for y in op.body.binds for z in (numbered(y) if carries(y) else [y])), op.body.results)
            changed = with_blocks(op, [tidy(body)])
            if ahead(changed) is not None:  # type: ignore[arg-type]
                binds.append(Bind(x.vars, changed, x.span, x.soft))
                continue
        made = [*map(numbered_in, inner)]
        same = all(a is b for a, b in zip(made, inner))
        binds.append(x if same else Bind(x.vars, with_blocks(op, made), x.span, x.soft))
    if all(x is y for x, y in zip(binds, block.binds)):
        return block
    return Block(tuple(binds), block.results)


def carries(bind: Bind) -> bool:
    """Whether a loop carries truth values."""
    op = bind.op
    return type(op) is Loop and op.snapshots is None and any(a.type == BOOL for a in op.accs)


def numbered(bind: Bind) -> list[Bind]:
    """A loop that carries numbers in place of truth values, with what makes the one of the other around it."""
    op: Loop = bind.op  # type: ignore[assignment]
    which = [k for k, a in enumerate(op.accs) if a.type == BOOL]
    inits, accs, results, out = list(op.inits), list(op.accs), list(op.body.results), list(bind.vars)
    before, first, last, after = [], [], [], []
    for k in which:
        inits[k] = number(op.inits[k], {}, {}, before)
        accs[k], out[k] = (Var(v.name, REAL, v.span, v.given) for v in (accs[k], out[k]))
        first.append(Bind((op.accs[k],), Prim("!=", (accs[k], real(0.0))), bind.span))
        after.append(Bind((bind.vars[k],), Prim("!=", (out[k], real(0.0))), bind.span))
    known = {op.accs[k]: accs[k] for k in which}
    made = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
    for x in op.body.binds:
        if type(x.op) is If and not any(arm.binds for arm in blocks_of(x.op)):
            chosen = zip(x.vars, x.op.then.results, x.op.orelse.results)
            made.update((v, Prim("select", (x.op.cond, a, b))) for v, a, b in chosen)
    for k in which:
        results[k] = number(op.body.results[k], known, made, last)
    body = tidy(Block((*first, *op.body.binds, *last), tuple(results)))
    return [*before, Bind(tuple(out), Loop(op.count, op.index, tuple(inits), tuple(accs), body), bind.span), *after]


def number(a: Atom, known: dict[Var, Var], made: dict[Var, Prim], binds: list[Bind]) -> Atom:
    """1.0 for true, 0.0 for false; ``known``: the numbers of those that a loop carries."""
    if type(a) is Const:
        return real(float(a.value))
    if a in known:
        return known[a]  # type: ignore[index]
    op = made.get(a)  # type: ignore[arg-type]
    args: tuple[Atom, ...] = (a, real(1.0), real(0.0))
    if op is not None and op.name == "select":
        args = (op.args[0], *(number(x, known, made, binds) for x in op.args[1:]))
    elif op is not None and op.name == "and":
        args = (op.args[0], number(op.args[1], known, made, binds), real(0.0))
    elif op is not None and op.name == "or":
        args = (op.args[0], real(1.0), number(op.args[1], known, made, binds))
    v = Var("t", REAL, a.span)  # type: ignore[union-attr]
    binds.append(Bind((v,), Prim("select", args)))
    return v
