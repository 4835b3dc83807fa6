"""Marks of what differentiates in its own way: constants, values with rules, loops of which few states are kept.

They stand in a program until its derivatives have been made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import Bind, Block, Loop, Prim, Var, While, all_binds, blocks_of, functions_of, substitute, with_blocks


def without_rules(block: Block) -> Block:
    """A block, and the functions that it calls, without the marks of what differentiates in its own way: they are what
    they mark. ``(stop x)``  =>  ``x``; ``(rule-0 y x)``  =>  ``y``; a loop with snapshots is a loop."""
    blocks = [block, *(f.body for f in functions_of(block) if f.body is not None)]
    marks = {bind.vars[0]: bind.op.args[0] for b in blocks for bind in all_binds(b) if is_mark(bind)}
    if not marks and not any(has_snapshots(bind.op) for b in blocks for bind in all_binds(b)):
        return block
    for v, a in marks.items():
        while type(a) is Var and a in marks:
            a = marks[a]
        marks[v] = a
    for f in functions_of(block):
        if f.body is not None:
            f.body = substitute(unmarked(f.body), marks)
    return substitute(unmarked(block), marks)


def unmarked(block: Block) -> Block:
    binds = []
    for x in block.binds:
        if not is_mark(x):
            regions = blocks_of(x.op)
            op = replace(x.op, snapshots=None) if has_snapshots(x.op) else x.op
            binds.append(Bind(x.vars, with_blocks(op, [*map(unmarked, regions)]), x.span) if regions else x)
    return Block(tuple(binds), block.results)


def is_mark(bind: Bind) -> bool:
    return type(bind.op) is Prim and (bind.op.name == "stop" or bind.op.name.startswith("rule-"))


def has_snapshots(op: Any) -> bool:
    """Whether an operation is a loop of which reverse mode keeps few states."""
    return type(op) in (Loop, While) and op.snapshots is not None
