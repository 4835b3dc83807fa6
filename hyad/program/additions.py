"""What an iteration adds to arrays, one addition after the other, and the sum of some of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import REAL, Atom, Bind, Block, Const, If, Prim, Var
from .dead import tidy

ZERO = Const(0.0, REAL, True)


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """What an iteration adds: the array after it, subscripts, value, and what it is in: branches and which arm."""

    after: Var
    subs: tuple[Atom, ...]
    value: Atom
    inside: tuple[tuple[If, int], ...]


def additions(block: Block, result: Atom, inside: tuple = ()) -> tuple[list[Addition], Atom] | None:
    """What is added to an array in a block that makes ``result`` of it, and the array; None where it is more."""
    made = {v: b for b in block.binds for v in b.vars}
    found: list[Addition] = []
    while result in made:
        bind = made[result]
        op = bind.op
        if type(op) is Prim and op.name == "add-at":
            found.insert(0, Addition(result, op.args[1:-1], op.args[-1], inside))
            result = op.args[0]
        elif type(op) is If:
            k = bind.vars.index(result)
            arms = [additions(arm, arm.results[k], (*inside, (op, j))) for j, arm in enumerate((op.then, op.orelse))]
            if None in arms or arms[0][1] is not arms[1][1]:
                return None
            found[:0] = [*arms[0][0], *arms[1][0]]
            result = arms[0][1]
        else:
            return None
    return found, result


def total(block: Block, result: Atom, chosen: set[Var]) -> Block:
    """A block that makes an array as the sum of some of what it adds to it, or 0 where their branches are not taken."""
    return totals(block, [(result, chosen)])


def totals(block: Block, wanted: Sequence[tuple[Atom, set[Var]]], also: Sequence[Atom] = ()) -> Block:
    """The same for several arrays, or for other additions to the same ones: a number for each, and then what the block
    makes besides, ``also``."""
    made = {v: b for b in block.binds for v in b.vars}
    binds = list(block.binds)
    terms: list[list[Atom]] = [[] for _ in wanted]
    branches: dict[Bind, list[tuple[int, int, int]]] = {}  # whose number, the result's, the term's
    for k, (result, chosen) in enumerate(wanted):
        while result in made:
            bind = made[result]
            if type(bind.op) is Prim:
                terms[k] += [bind.op.args[-1]] if result in chosen else []
                result = bind.op.args[0]
            else:
                j, arm = bind.vars.index(result), bind.op.then
                branches.setdefault(bind, []).append((k, j, len(terms[k])))
                terms[k].append(ZERO)
                result = additions(arm, arm.results[j])[1]
    for bind, numbers in branches.items():
        arms = [
            totals(arm, [(arm.results[j], wanted[k][1]) for k, j, _ in numbers])
            for arm in (bind.op.then, bind.op.orelse)
        ]
        outs = tuple(Var("t", REAL) for _ in numbers)
        binds.append(Bind(outs, If(bind.op.cond, *arms)))
        for n, (k, _, at) in enumerate(numbers):
            if any(arm.results[n] is not ZERO for arm in arms):
                terms[k][at] = outs[n]
    sums = [added([t for t in each[::-1] if t is not ZERO], binds) for each in terms]
    return tidy(Block(tuple(binds), (*sums, *also)))


def added(terms: Sequence[Atom], binds: list[Bind]) -> Atom:
    """The sum of some numbers; ``binds`` gets what computes it."""
    sum_: Atom = terms[0] if terms else ZERO
    for t in terms[1:]:
        both = Var("t", REAL)
        binds.append(Bind((both,), Prim("+", (sum_, t))))
        sum_ = both
    return sum_
