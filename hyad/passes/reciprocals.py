"""Divisions: the quotients that differentiation made, as products with one reciprocal and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..core import (
    ONE,
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
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    reads,
    substitute,
    uses,
    with_blocks,
    with_body,
)
from ..program.dead import tidy
from ..program.primitives import PRIMITIVES
from ..program.rebuild import rebuild
from .terms import LINEAR

DEEP = 8  # between a quotient and what divides it again, so many operations of differentiation's own are looked through


def reciprocals(program: Program) -> Program:
    """Divides by a common divisor once: ``(/ 1 y) .. (/ 0.5 y)``  =>  ``(* 0.5 (/ 1 y))``.

    Only what differentiation divides becomes a product: ``(/ 0.5 y)`` is finite where ``(/ 1 y)`` is just not any more.
    The reciprocal that it makes of a division by y is then the user's own where there is one. A quotient that is read
    only to be divided again, as a derivative of it by y has it, is such a product, too: ``(/ (- (/ x y) 1) y)``.
    """
    counts = uses(program.body)

    def once(b: Block) -> Block:
        """A block with such quotients as products: ``(* (/ x y) (/ 1 y))``  =>  ``(* (* x (/ 1 y)) (/ 1 y))``. What
        is infinite now was not a number, or infinite, when it had been multiplied."""
        ones = {x.op.args[1]: x for x in b.binds if is_reciprocal(x.op)}  # type: ignore[union-attr]
        if not ones:
            return b
        readers: dict[Atom, list[Bind]] = {}
        for x in b.binds:
            for a in atoms_of(x.op):
                readers.setdefault(a, []).append(x)

        def divided(y: Var, r: Var, depth: int = 0) -> bool:
            """Whether all that is made of a number is multiplied by the reciprocal, too."""
            found = readers.get(y, [])
            return depth < DEEP and 0 < len(found) == counts.get(y) and all(takes(x, r, depth) for x in found)

        def takes(x: Bind, r: Var, depth: int) -> bool:
            if type(x.op) is not Prim:
                return False
            if x.op.name == "*" and r in x.op.args:
                return True
            return x.soft and x.op.name in LINEAR and divided(x.vars[0], r, depth + 1)

        binds: list[Bind] = []
        for x in b.binds:
            one = ones.get(x.op.args[1]) if type(x.op) is Prim and x.op.name == "/" else None
            if one is not None and one is not x and type(x.op.args[0]) is Var:  # type: ignore[union-attr]
                if divided(x.vars[0], one.vars[0]):
                    if one not in binds:
                        binds.append(one)
                    x = Bind(x.vars, Prim("*", (x.op.args[0], one.vars[0])), x.span, True)  # type: ignore[union-attr]
            if x not in binds:
                binds.append(x)
        return Block(tuple(binds), b.results) if binds != list(b.binds) else b

    def block(b: Block, around: dict[Atom, Bind] = {}) -> Block:
        """A block; ``around`` are the reciprocals of the blocks whose branch it is."""
        b = once(b)
        by: dict[Atom, list[Bind]] = {}
        for x in b.binds:
            if halving(x.op):
                by.setdefault(x.op.args[1], []).append(x)  # type: ignore[union-attr]
        shared: dict[Bind, Bind] = {}  # a division: the one that stands for its reciprocal
        for many in by.values():
            ones = [x for x in many if x.op.args[0] == ONE]  # type: ignore[union-attr]
            if ones and len(many) > 1:
                kept = next((x for x in ones if not x.op.args[0].soft), ones[0])  # type: ignore[union-attr]
                shared.update(dict.fromkeys(many, kept))
        binds, table = [], {}
        for bottom, many in by.items():
            if bottom in around:
                shared.update(dict.fromkeys(many, around[bottom]))
        here = dict(around)
        for x in b.binds:
            inner, kept = blocks_of(x.op), shared.get(x)
            if inner:
                made = [block(r, here if type(x.op) is If else {}) for r in inner]
                x = x if all(r is s for r, s in zip(made, inner)) else Bind(x.vars, with_blocks(x.op, made), x.span)
            if kept is None:
                binds.append(x)
                if halving(x.op) and x.op.args[0] == ONE:  # type: ignore[union-attr]
                    here[x.op.args[1]] = x  # type: ignore[union-attr]
                continue
            top, bottom = x.op.args  # type: ignore[union-attr]
            if x is by[bottom][0] and bottom not in around:
                binds.append(kept)
                here[bottom] = kept
            if top == ONE:
                table[x.vars[0]] = kept.vars[0]
            else:
                binds.append(Bind(x.vars, Prim("*", (top, kept.vars[0])), x.span, x.soft))
        if all(x is y for x, y in zip(binds, b.binds)) and len(binds) == len(b.binds):
            return b
        return substitute(Block(tuple(binds), b.results), table)

    made = with_body(program, block(program.body))
    return program if made is program else rebuild(made)  # what is equal now is shared


LONG = 100  # what a loop or a branch is taken to cost, in additions, where it is waited for


def divide(program: Program) -> Program:
    """Turns a product with a reciprocal that nothing else uses into a division: ``(* x (/ 1 y))``  =>  ``(/ x y)``.

    Only the reciprocals that differentiation introduced (their 1 is soft), and not across a loop; nor where the
    reciprocal is there long before the other factor, which then need not wait for a division: outside of loops, or in a
    recurrence, of which the reciprocal is no part.
    """
    if not any(is_reciprocal(bind.op) for bind in all_binds(program.body)):
        return program
    counts = uses(program.body)
    ready: dict[Atom, int] = {}  # outside of loops: how much has to be computed, one after the other, before it

    def block(b: Block, once: bool, waits: Callable[[Var, Var], bool] = lambda product, r: False) -> Block:
        bottoms: dict[Var, Atom] = {}
        binds = []
        for bind in b.binds:
            op = bind.op
            if type(op) is If:
                op = If(op.cond, block(op.then, once), block(op.orelse, once))
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, block(op.body, False, recurrence(op)))
            elif is_reciprocal(op):
                if counts.get(bind.vars[0]) == 1:
                    bottoms[bind.vars[0]] = op.args[1]
            elif type(op) is Prim and op.name == "*":
                for x, r in (op.args, op.args[::-1]):
                    early = ready.get(x, 0) < ready[r] if once and r in bottoms else not waits(bind.vars[0], r)  # type: ignore
                    if type(r) is Var and r in bottoms and early:
                        op = Prim("/", (x, bottoms[r]))
                        break
            if once:
                row = PRIMITIVES.get(op.name) if type(op) is Prim else None
                time = row.cost if row else LONG if blocks_of(op) else 0
                time += max((ready.get(a, 0) for a in atoms_of(op)), default=0)
                ready.update(dict.fromkeys(bind.vars, time))
            binds.append(bind if op is bind.op else Bind(bind.vars, op, bind.span, bind.soft))
        return Block(tuple(binds), b.results)

    return replace(program, body=block(program.body, True))


def recurrence(loop: Loop) -> Callable[[Var, Var], bool]:
    """Of a loop: whether a product is what the next iteration waits for, and one of its factors is not."""
    numbers = [k for k, acc in enumerate(loop.accs) if acc.type == REAL]
    late: set[Atom] = {loop.accs[k] for k in numbers}
    for x in loop.body.binds:
        if not late.isdisjoint(reads(x)):
            late.update(x.vars)
    needed = {
        v for x in tidy(Block(loop.body.binds, tuple(loop.body.results[k] for k in numbers))).binds for v in x.vars
    }
    return lambda product, factor: product in late and product in needed and factor not in late


def halving(op: Op) -> bool:
    """Whether an operation divides 1 by something, or differentiation a half, a quarter .."""
    if type(op) is not Prim or op.name != "/" or type(op.args[1]) is not Var:
        return False
    top = op.args[0]
    if type(top) is not Const or top.type != REAL:
        return False
    return top.value == 1 or top.soft and 0 < top.value < 1 and math.frexp(top.value)[0] == 0.5


def is_reciprocal(op: Op) -> bool:
    """Whether an operation is a ``(/ 1 y)`` that differentiation introduced."""
    if type(op) is not Prim or op.name != "/":
        return False
    top = op.args[0]
    return type(top) is Const and top.soft and top == ONE
