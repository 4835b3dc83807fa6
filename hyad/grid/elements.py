"""Rows that are added at places that only data know: each element by a thread, so that neighbours add neighbours.

The adjoint of looking up rows by an index adds a row for each index. As one addition that is one thread's, beside
threads that add to other rows, far away::

    (loop n (fn [i a] (add-at a (get at i) (build m (fn [j] e))) a))
    =>  (loop n (fn [i a] (loop m (fn [j a] (add-at a (get at i) j e)) a)) a)

which is a nest with a thread for each element, and stacks no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Loop,
    Prim,
    Var,
    all_binds,
    blocks_of,
    most_uses,
    substitute,
    type_of,
    with_blocks,
)
from ..passes.spread import reductions
from .nesting import adding

SHORT = 64  # elements of a row that a thread adds by itself: such rows go through shared memory


def by_elements(bind: Bind) -> list[Bind]:
    """A parallel loop that adds long rows to an array, as one that adds elements."""
    if not any(r.kind in ("scatter", "slice") for r in reductions(bind.op) or ()):
        return [bind]
    body = written(bind.op.body)
    return [bind if body is bind.op.body else Bind(bind.vars, with_blocks(bind.op, [body]), bind.span)]


def written(block: Block, least: int = SHORT) -> Block:
    """A block with the additions of rows of more than so many elements written as loops; the same one where there are
    none."""
    made = {b.vars[0]: b.op for b in block.binds if len(b.vars) == 1}
    out: list[Bind] = []
    for b in block.binds:
        op, inner = b.op, blocks_of(b.op)
        if type(op) is Prim and op.name == "add-at" and longer(op.args[-1], least):
            row, dims = op.args[-1], type_of(op.args[-1]).dims
            indices = [Var("j", INT) for _ in dims]
            element = element_of(row, indices, made) if most_uses(block, row) == 1 else None
            if element is None:
                x = Var(row.name, row.type.elem)
                element = Block((Bind((x,), Prim("get", (row, *indices)), b.span),), (x,))
            out.append(adding(b.vars[0], op.args[0], indices, dims, (*op.args[1:-1], *indices), element, b.span))
        elif inner:
            changed = [written(r, least) for r in inner]
            same = all(x is y for x, y in zip(inner, changed))
            out.append(b if same else Bind(b.vars, with_blocks(op, changed), b.span))
        else:
            out.append(b)
    return block if all(x is y for x, y in zip(out, block.binds)) else Block(tuple(out), block.results)


def longer(x: Atom, least: int) -> bool:
    """Whether a value is an array of more than so many elements, or of how many nobody knows yet."""
    t = type_of(x)
    if not isinstance(t, Arr):
        return False
    return prod(d.value if type(d) is Const else least + 1 for d in t.dims) > least


def element_of(row: Atom, indices: Sequence[Var], made: dict) -> Block | None:
    """What an element of a row is that a loop makes for nothing else; None where no loop here makes all of it."""
    op = made.get(row)
    if type(op) is not Loop or op.accs or any(type(b.op) is Check for b in all_binds(op.body)):
        return None
    index, *more = indices
    block = substitute(op.body, {op.index: index})
    if not more:
        return block
    (result,) = block.results
    *before, last = block.binds or (None,)
    inner = element_of(result, more, {last.vars[0]: last.op}) if last is not None and result in last.vars else None
    return Block((*before, *inner.binds), inner.results) if inner is not None else None
