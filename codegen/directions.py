"""What one thread would do for many directions, by a warp: each of its threads has some directions of its own.

A derivative by many numbers of what is done step by step, a chain of bones, takes an array of tangents along with each
number, and all of it is one thread's: nothing else of a step is done for several things at once. The tangents are. So a
warp does it: all of its threads compute the numbers, each for itself, and of a loop over directions each takes its
share, always the same::

    for (long long b = 0; b < bones; b++) {
        const double c = cos(theta[b]);
        for (long long d = lane; d < 26; d += 32) {
            dc[d] = -sin(theta[b])*dtheta[26*b + d];
        }
    }

No thread reads a direction that another one makes, so nothing waits. What is not of directions and lies in memory that
all threads see is written by the first of them alone, between two barriers of the warp.

Design decision: at printing, on the text of stores. Turned inside out, each thread with all steps for its directions,
it would be the same work, but the arrays would have to be turned as well, and back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from hyad.core import Arr, Atom, Block, Check, Const, If, Loop, Prim, Program, Var, all_binds, blocks_of, same
from hyad.program.journal import on

from .lower import TABLE_LENGTH, type_of
from .operands import Line

NAME = "directions"  # of the optimisation, to switch it off
LEAST = 8  # directions that are worth a warp
WARP = 32
CHANGES = ("update", "add-at")
ARRAYS = ("get", *CHANGES, "array", "zeros", "undef")  # what makes and reads arrays of directions


class Classes:
    """Variables that may have the same elements: union and find."""

    def __init__(self) -> None:
        self.parent: dict[Var, Var] = {}

    def find(self, v: Var) -> Var:
        while self.parent.get(v, v) is not v:
            v = self.parent[v]
        return v

    def join(self, *atoms: Atom) -> None:
        arrays = [a for a in atoms if type(a) is Var and isinstance(a.type, Arr)]
        for a in arrays[1:]:
            self.parent[self.find(a)] = self.find(arrays[0])


def over_directions(op: object) -> bool:
    """Whether an operation is a loop of so many iterations that makes a number for each array that it makes, or
    changes."""
    if type(op) is not Loop or type(op.count) is not Const or op.count.value < LEAST:
        return False
    if not all(isinstance(acc.type, Arr) for acc in op.accs):
        return False
    for b in all_binds(op.body):
        changed = type(b.op) is Prim and b.op.name in CHANGES and b.op.args[-2] is op.index
        read = type(b.op) is Prim and b.op.name == "get"
        arrays = any(isinstance(v.type, Arr) for v in b.vars)
        if type(b.op) not in (Prim, If) or arrays and not (changed or read):
            return False
    return not any(isinstance(type_of(r), Arr) for r in op.body.results[len(op.accs) :])


def shared_by_a_warp(program: Program) -> tuple[frozenset[Var], frozenset[Var]] | None:
    """The indices of loops over directions, and the arrays of these; None where there are none, or where something
    reads directions that are not its iteration's."""
    loops = [b for b in all_binds(program.body) if over_directions(b.op)] if on(NAME) else []
    if not loops:
        return None
    classes = Classes()
    join(program.body, classes)
    roots = {classes.find(v) for b in loops for v in b.vars}
    held = frozenset(v for v in arrays_of(program) if classes.find(v) in roots)
    count = loops[0].op.count
    indices = frozenset(b.op.index for b in loops)
    if not all(same(b.op.count, count) for b in loops) or not all(same(v.type.dims[-1], count) for v in held):
        return None
    return (indices, held) if own_directions(program.body, held, indices) else None


def arrays_of(program: Program) -> list[Var]:
    found = [*program.params, *(v for b in all_binds(program.body) for v in b.vars)]
    found += [a for b in all_binds(program.body) if type(b.op) is Loop for a in b.op.accs]
    return [v for v in found if isinstance(v.type, Arr)]


def join(block: Block, classes: Classes) -> None:
    """Put together what flows into each other: rows and their arrays, states of loops, results of branches."""
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name in ARRAYS:
            classes.join(bind.vars[0], *(op.args[:1] if op.name == "get" else op.args))
        elif type(op) is If:
            for v, a, b in zip(bind.vars, op.then.results, op.orelse.results):
                classes.join(v, a, b)
        elif type(op) is Loop:
            n = len(op.accs)
            for v, acc, init, result in zip(bind.vars, op.accs, op.inits, op.body.results):
                classes.join(v, acc, init, result)
            for v, row in zip(bind.vars[n:], op.body.results[n:]):
                classes.join(v, row)
        for inner in blocks_of(op):
            join(inner, classes)


def own_directions(block: Block, held: Collection[Var], indices: Collection[Var], here: Var | None = None) -> bool:
    """Whether arrays of directions are made and read in loops over directions alone, each iteration its own, or moved
    by whole rows."""
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim:
            used = [a for a in (*op.args, *bind.vars) if type(a) is Var and a in held]
            if not used:
                continue
            if op.name not in ARRAYS:
                return False
            if op.name == "get" and not isinstance(bind.vars[0].type, Arr) and op.args[-1] is not here:
                return False
            if op.name in CHANGES and not isinstance(type_of(op.args[-1]), Arr) and op.args[-2] is not here:
                return False
            table = len(op.args) > TABLE_LENGTH and all(type(a) is Const for a in op.args)
            if op.name == "array" and not table and not all(a in held for a in op.args):
                return False
        elif type(op) not in (If, Loop, Check):
            return False
        elif type(op) is Loop:
            inner = op.index if op.index in indices else here
            made = zip(bind.vars[len(op.accs) :], op.body.results[len(op.accs) :])
            if op.index not in indices and any(v in held and r not in held for v, r in made):
                return False
            if not own_directions(op.body, held, indices, inner):
                return False
        elif not all(own_directions(b, held, indices, here) for b in blocks_of(op)):
            return False
    return True


def by_the_first(lines: Sequence[Line], names: Collection[str], lane: str) -> list[Line]:
    """Lines in which elements of the arrays of some names are written by the first thread of a warp."""
    stores = [re.match(r"\s*(\w+)\[.*\] [-+*/]?= .*;$", line.text) for line in lines]
    words = Counter(word for line in lines for word in re.findall(r"\w+", line.text))
    words.subtract(found[1] for found in stores if found)
    out: list[Line] = []
    for line, found in zip(lines, stores):
        if found is None or found[1] not in names:
            out.append(line)
            continue
        indent = line.text[: len(line.text) - len(line.text.lstrip())]
        barrier = [replace(line, text=f"{indent}__syncwarp();")] if words[found[1]] else []  # it is read as well
        out += [*barrier, replace(line, text=f"{indent}if ({lane} == 0) {line.text.strip()}"), *barrier]
    return out
