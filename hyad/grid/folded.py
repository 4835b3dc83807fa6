"""Rows that are made for one fold over them alone: each element is computed where it is folded, and none is stored.

The nearest of many points, for each of many others, is the least of a row of distances. Made apart, by a thread for
each element, these are a matrix, which may be larger than all memory::

    (loop n (fn [i] (let [d (build m (fn [j] (e i j)))] (ifold (fn [s j] (min s (get d j))) (get d 0) m))))
    =>  (loop n (fn [i] (ifold (fn [s j] (min s (e i j))) (e i 0) m)))
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    count_uses,
    free_vars,
    same,
    type_of,
)
from ..passes.spread import changed, work
from ..program.rebuild import Rebuild, rebuild

COST = 64.0  # the work of an element, in additions, that may be done again for the few that are read beside the fold
FEW = 2  # that are read so


def folded(program: Program) -> Program:
    """The program without rows that one loop alone reads, element by element."""
    loops = [b.op for b in all_binds(program.body) if type(b.op) is Loop]
    rows = {v: row for op in loops for v, row in rows_in(op.body, set(op.accs)).items()}
    if not rows:
        return program

    class Folded(Rebuild):
        """Rebuilds the program; what reads a row has what makes its element."""

        def bind(self, bind: Bind) -> None:
            op = bind.op
            if bind.vars and bind.vars[0] in rows:
                return
            if type(op) is Prim and op.name == "get" and op.args[0] in rows:
                made = rows[op.args[0]]  # type: ignore[index]
                self.here[made.index] = self.atom(op.args[1])
                (self.here[bind.vars[0]],) = self.block(made.body)
            else:
                self.copy(bind)

    return rebuild(program, Folded)


def rows_in(block: Block, changing: set[Var]) -> dict[Var, Loop]:
    """The rows that a block makes, of numbers that are cheap by themselves, for one of its loops to fold; of no array
    that is changed there, nor of one of those that are ``changing`` around it."""
    found: dict[Var, Loop] = {}
    changing = changing | {a for b in block.binds for k in range(len(b.vars)) if (a := changed(b, k)) is not None}
    for b in block.binds:
        op = b.op
        if type(op) is not Loop or op.accs or len(b.vars) != 1 or isinstance(type_of(op.body.results[0]), Arr):
            continue
        if not all(
            type(x.op) is Prim and x.op.name != "array" and not isinstance(x.vars[0].type, Arr) for x in op.body.binds
        ):
            continue
        if sum(work(x.op) for x in op.body.binds) > COST or not changing.isdisjoint(free_vars(op.body)):
            continue
        if read_once(b.vars[0], op.count, block):
            found[b.vars[0]] = op
    return found


def read_once(row: Var, count: Atom, block: Block) -> bool:
    """Whether a block reads a row in one loop that is as long, each element in its iteration, and a few beside it."""
    folds, beside = 0, 0
    for b in block.binds:
        if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] is row:
            beside += 1
        elif type(b.op) is Loop and row in free_vars(b.op.body):
            folds += 1
            if not same(b.op.count, count) or not by_element(row, b.op.index, [b.op.body]):
                return False
    return folds == 1 and beside <= FEW and count_uses(block, row) == beside + reads_in(row, block)


def reads_in(row: Var, block: Block) -> int:
    """How often the loops of a block read a row."""
    return sum(count_uses(b.op.body, row) for b in block.binds if type(b.op) is Loop)


def by_element(row: Var, index: Var, blocks: Sequence[Block]) -> bool:
    """Whether blocks read nothing of a row but the element of an iteration, outside of inner loops."""
    for block in blocks:
        if row in block.results:
            return False
        for b in block.binds:
            if type(b.op) is Prim and row in b.op.args:
                if b.op.name != "get" or b.op.args != (row, index):
                    return False
            elif type(b.op) is If:
                if not by_element(row, index, blocks_of(b.op)):
                    return False
            elif any(row in free_vars(x) for x in blocks_of(b.op)):
                return False
    return True
