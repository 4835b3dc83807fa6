"""Branches that cost less than to foresee them: both sides computed, and one of two numbers chosen; sums with masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import is_

from ..core import (
    BOOL,
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    atoms_of,
    blocks_of,
    kinds_of,
    type_of,
    with_blocks,
    with_body,
)
from ..program.loops import CALL, loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuild
from ..program.sink import DEAR


def choices(program: Program) -> Program:
    """Computes both sides of a cheap branch of an innermost loop, and selects a number: a loop without branches can be
    vectors.

    ``(if (< q 1.0) (* 3.0 (- 1.0 q)) 0.0)``  =>  ``(select (< q 1.0) (* 3.0 (- 1.0 q)) 0.0)``.
    Design decision: of operations on reals alone, which cannot fail, and where all else that an iteration does are
    operations; before pairs are turned and iterations go in lanes. What costs as much as a call stays a branch, and so
    does what an index decides: loops are taken apart there.
    """
    return rebuild(program, Choices) if any(map(cheap, loops_of(program))) else program


def masked_sums(program: Program) -> Program:
    """Adds -0.0, not 0.0, to a sum where a branch adds nothing: that changes no sum, so compilers can mask the addition
    (vectors).

    ``(ifold (fn [s i] (+ s (if c x 0.0))) 0.0 n)``  =>  ``(ifold (fn [s i] (+ s (if c x -0.0))) 0.0 n)``.
    Design decision: -0.0 is what leaves every number as it is, -0.0 too, which adding 0.0 would change: a compiler may
    only then leave the sum alone where the condition does not hold. A sum that does not start at -0.0 never is -0.0, so
    that the result is the same to the last bit. Last, since rules and passes look for zeros.
    """
    body = masked(program.body)
    return with_body(program, body)


def masked(block: Block) -> Block:
    """``masked_sums`` for a block."""
    if Loop not in kinds_of(block):
        return block
    binds = []
    for bind in block.binds:
        op, regions = bind.op, list(blocks_of(bind.op))
        made = [masked(region) for region in regions]
        if type(op) is Loop:
            made = [negative(op, made[0])]
        same = all(x is y for x, y in zip(made, regions))
        binds.append(bind if same else Bind(bind.vars, with_blocks(op, made), bind.span, bind.soft))
    return Block(tuple(binds), block.results) if any(x is not y for x, y in zip(binds, block.binds)) else block


def negative(op: Loop, body: Block) -> Block:
    """The body of a loop in which what its sums add is -0.0 where it would be 0.0."""
    made = {v: b for b in body.binds for v in b.vars}
    masks: dict[Bind, set[int]] = {}
    for acc, init, result in zip(op.accs, op.inits, body.results):
        add = made.get(result)  # type: ignore[arg-type]
        if acc.type != REAL or type(init) is not Const or is_negative_zero(init):
            continue
        if add is None or type(add.op) is not Prim or add.op.name != "+" or acc not in add.op.args:
            continue
        term = next((a for a in add.op.args if a is not acc), acc)
        mask = made.get(term)  # type: ignore[arg-type]
        if mask is None or type(mask.op) is not If or uses(body, term) != 1:
            continue
        masks.setdefault(mask, set()).add(mask.vars.index(term))  # type: ignore[arg-type]
    if not masks:
        return body

    def arm(block: Block, at: set[int]) -> Block:
        results = [MINUS if k in at and is_plus_zero(r) else r for k, r in enumerate(block.results)]
        return block if all(map(is_, results, block.results)) else Block(block.binds, tuple(results))

    binds = []
    for b in body.binds:
        at = masks.get(b)
        if at is not None and any(is_plus_zero(x.results[k]) for x in blocks_of(b.op) for k in at):
            b = Bind(b.vars, with_blocks(b.op, [arm(x, at) for x in blocks_of(b.op)]), b.span, b.soft)
        binds.append(b)
    return Block(tuple(binds), body.results)


def uses(block: Block, v: Atom) -> int:
    """How often a block reads a variable, in its regions and as a result, too."""
    count = sum(r is v for r in block.results)
    for b in block.binds:
        count += sum(a is v for a in atoms_of(b.op)) + sum(uses(x, v) for x in blocks_of(b.op))
    return count


MINUS = Const(-0.0, REAL)


def is_plus_zero(a: Atom) -> bool:
    return type(a) is Const and a.type == REAL and a.value == 0 and math.copysign(1.0, a.value) > 0


def is_negative_zero(a: Const) -> bool:
    return a.value == 0 and math.copysign(1.0, a.value) < 0


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
    return any(type(x.op) is If for x in op.body.binds) and simple(op.body, {}, None)


def simple(block: Block, made: dict[Atom, Op], most: int | None) -> bool:
    """Whether a block is few operations on reals, each of less than ``most`` additions, and choices by reals between
    such. What is done where two numbers are not equal is done all the same, so that it may cost more. ``made`` knows
    what is around. Of a loop's body, for which ``most`` is None, any operation is taken."""
    made = {**made, **{v: x.op for x in block.binds for v in x.vars}}

    def by_reals(cond: Atom) -> bool:
        op = made.get(cond)
        if type(op) is not Prim:
            return False
        return all(map(by_reals, op.args)) if type_of(op.args[0]) == BOOL else type_of(op.args[0]) == REAL

    def taken(x: Bind) -> bool:
        if type(x.op) is If:
            equal = made.get(x.op.cond)
            unequal = {"=": x.op.orelse, "!=": x.op.then}.get(equal.name) if type(equal) is Prim else None
            arms = [(arm, CALL if arm is unequal else most or DEAR) for arm in blocks_of(x.op)]
            return by_reals(x.op.cond) and all(simple(arm, made, limit) for arm, limit in arms)
        if type(x.op) is not Prim or most is None:
            return type(x.op) is Prim
        row = PRIMITIVES.get(x.op.name)
        return row is not None and row.cost < most and x.vars[0].type in (REAL, BOOL)

    return all(map(taken, block.binds)) and (most is None or all(type_of(r) == REAL for r in block.results))
