"""Let floating: a value that one branch alone reads is computed in that branch."""

from __future__ import annotations

from .core import (
    Atom,
    Bind,
    Block,
    Case,
    Check,
    If,
    Program,
    Var,
    atoms_of,
    binders_of,
    blocks_of,
    free_vars,
    type_atoms,
    with_blocks,
    with_body,
)
from .dead import effects


def sink(program: Program) -> Program:
    """Moves bindings into the one branch that reads them.

    ``(let [r (sqrt t)] (if (> t 0) r 0))``  =>  ``(if (> t 0) (let [r (sqrt t)] r) 0)``.
    Design decision: before differentiation, so that the branch not taken contributes nothing there either (an adjoint
    0 times the infinite slope of what was computed for the other branch is NaN).
    """
    return with_body(program, sink_block(program.body))


def sink_block(block: Block) -> Block:
    if not any(blocks_of(bind.op) for bind in block.binds):
        return block
    here: set[Var] = set()  # read in the block itself, or in two places
    branch_of: dict[Var, tuple[int, int]] = {}  # read in this branch only
    moved: dict[tuple[int, int], list[Bind]] = {}
    kept: list[tuple[int, Bind]] = []

    def read(a: Atom, place: tuple[int, int] | None = None) -> None:
        if type(a) is not Var or a in here:
            return
        if place is None or branch_of.setdefault(a, place) != place:
            here.add(a)

    for r in block.results:
        read(r)
    for k in range(len(block.binds) - 1, -1, -1):
        bind = block.binds[k]
        op = bind.op
        places = {branch_of.get(v) if v not in here else None for v in bind.vars}
        place = places.pop() if len(places) == 1 else None
        if place is not None and not (type(op) is Check or effects(op)):
            moved.setdefault(place, []).append(bind)
        else:
            place = None
            kept.append((k, bind))
        for a in atoms_of(op):
            read(a, place)
        for v in bind.vars:
            for d in type_atoms(v.type):
                read(d, place)
        for j, region in enumerate(blocks_of(op)):
            own = binders_of(op)
            for v in free_vars(region):
                if v in own:
                    continue
                read(v, place if place is not None else (k, j) if type(op) in (If, Case) else None)
    binds = []
    for k, bind in reversed(kept):
        op = bind.op
        if blocks_of(op):
            regions = []
            for j, region in enumerate(blocks_of(op)):
                first = tuple(reversed(moved.get((k, j), ())))
                regions.append(sink_block(Block((*first, *region.binds), region.results)))
            op = with_blocks(op, regions)
        binds.append(bind if op is bind.op else Bind(bind.vars, op, bind.span))
    return Block(tuple(binds), block.results)
