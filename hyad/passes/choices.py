"""Branches that cost less than to foresee them: both sides computed, and one of two numbers chosen."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import BOOL, REAL, Atom, Bind, Block, If, Loop, Prim, Program, blocks_of, type_of
from ..program.loops import loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuild
from ..program.sink import dear


def choices(program: Program) -> Program:
    """Computes both sides of a cheap branch of an innermost loop, and selects a number: a loop without branches can be
    vectors.

    ``(if (< q 1.0) (* 3.0 (- 1.0 q)) 0.0)``  =>  ``(select (< q 1.0) (* 3.0 (- 1.0 q)) 0.0)``.
    Design decision: of operations on reals alone, which cannot fail, and where all else that an iteration does are
    operations; before pairs are turned and iterations go in lanes. What costs as much as a call stays a branch, and so
    does what an index decides: loops are taken apart there.
    """
    return rebuild(program, Choices) if any(map(cheap, loops_of(program))) else program


class Choices(Rebuild):
    """``choices`` for a program."""

    inside = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        around, self.inside = self.inside, cheap(op)
        made = super().loop(op, bind)
        self.inside = around
        return made

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        if not self.inside:
            return super().if_(op, bind)
        self.b.fired("choices")
        cond = self.atom(op.cond)
        then, orelse = map(self.block, blocks_of(op))
        return [self.b.select(cond, x, y) for x, y in zip(then, orelse)]


def cheap(op: Loop) -> bool:
    """Whether an iteration has branches by reals, all of them of few operations on reals, and else nothing but
    operations."""
    branches = [x.op for x in op.body.binds if type(x.op) is If]
    others = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
    if not branches or len(others) + len(branches) < len(op.body.binds):
        return False

    def by_reals(cond: Atom) -> bool:
        made = others.get(cond)  # type: ignore[call-overload]
        if made is None:
            return False
        return all(map(by_reals, made.args)) if type_of(made.args[0]) == BOOL else type_of(made.args[0]) == REAL

    return all(by_reals(b.cond) and all(map(simple, blocks_of(b))) for b in branches)


def simple(block: Block) -> bool:
    """Whether a block is few operations on reals."""
    return (
        not dear(block)
        and all(type_of(r) == REAL for r in block.results)
        and all(type(x.op) is Prim and x.op.name in PRIMITIVES and x.vars[0].type == REAL for x in block.binds)
    )
