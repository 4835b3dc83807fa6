"""Largest and smallest of numbers of which one comes from the iteration before: that one last."""

from __future__ import annotations

from ..core import REAL, Atom, Bind, Block, If, Loop, Prim, Program, Var, count_uses, reads, with_blocks, with_body
from ..program.journal import fires
from ..program.loops import loops_of

NAMES = ("min", "max")


def carried_last(program: Program) -> Program:
    """Compares what is there before an iteration waits for the one before, and what that hands on after it.

    ``(loop m (fn [j left] (+ (get c j) (min (min (get up j) left) (get diagonal j)))))``  =>
    ``(min (min (get up j) (get diagonal j)) left)``: the chain from one iteration to the next has one comparison.
    Design decision: the value is the same, NaN if one of the numbers is; of zeros of both signs it may be the other.
    """
    if not any(any(a.type == REAL for a in loop.accs) for loop in loops_of(program)):
        return program
    made = in_block(program.body)
    return program if made is program.body else with_body(program, made)


def in_block(block: Block) -> Block:
    """A block whose loops, and those inside of them, compare so."""
    binds: list[Bind] = []
    for x in block.binds:
        op = x.op
        if type(op) is Loop or type(op) is If:
            regions = [op.body] if type(op) is Loop else [op.then, op.orelse]
            made = [in_block(r) for r in regions]
            if type(op) is Loop and any(a.type == REAL for a in op.accs):
                made = [reordered(made[0], op)]
            if any(a is not b for a, b in zip(made, regions)):
                x = Bind(x.vars, with_blocks(op, made), x.span)
        binds.append(x)
    same = all(x is y for x, y in zip(binds, block.binds))
    return block if same else Block(tuple(binds), block.results)


def reordered(body: Block, op: Loop) -> Block:
    """A loop's body in which what comes from the iteration before is compared last."""
    late: set[Atom] = {a for a in op.accs if a.type == REAL}
    made = {x.vars[0]: x for x in body.binds if type(x.op) is Prim and x.op.name in NAMES and x.vars[0].type == REAL}
    for x in body.binds:
        if not late.isdisjoint(reads(x)):
            late.update(x.vars)
    if late.isdisjoint(made):
        return body
    inner = {
        a for x in made.values() for a in x.op.args  # type: ignore[union-attr]
        if a in made and made[a].op.name == x.op.name and count_uses(body, a) == 1  # type: ignore[index, union-attr]
    }  # fmt: skip

    def leaves(a: Atom, name: str) -> list[Atom]:
        """The numbers that are compared, in their order."""
        if a in inner and a in late and made[a].op.name == name:  # type: ignore[index, union-attr]
            return [y for b in made[a].op.args for y in leaves(b, name)]  # type: ignore[index, union-attr]
        return [a]

    binds: list[Bind] = []
    changed = False
    for x in body.binds:
        v = x.vars[0] if x.vars else None
        if v in inner and v in late:
            continue  # it is made with the last of its comparisons
        if v not in made or v in inner or v not in late:
            binds.append(x)
            continue
        name = x.op.name  # type: ignore[union-attr]
        found = [y for a in x.op.args for y in leaves(a, name)]  # type: ignore[union-attr]
        order = sorted(found, key=lambda a: a in late) if len(found) > 2 else found
        if order != found:
            fires("carried-last", x.span)
        changed |= order != found or any(a in inner and a in late for a in x.op.args[1:])  # type: ignore[union-attr]
        first = order[0]
        for k, y in enumerate(order[1:]):
            to = v if k == len(order) - 2 else Var(v.name, REAL, v.span)  # type: ignore[union-attr]
            binds.append(Bind((to,), Prim(name, (first, y)), x.span, x.soft))  # type: ignore[arg-type]
            first = to  # type: ignore[assignment]
    return Block(tuple(binds), body.results) if changed else body
