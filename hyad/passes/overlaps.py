"""Additions to places of one array of which nobody knows how far apart they are, in a loop for each."""

from __future__ import annotations

from ..core import INT, REAL, Arr, Atom, Bind, Block, Loop, Prim, Program, Var, all_binds, defined_in, reads
from ..program.additions import additions
from ..program.affine import affine_add
from ..program.builder import Builder
from ..program.loops import CHEAP, cost_of, loops_of, slice_of
from ..program.rebuild import Rebuild, taken
from .nests import Steps
from .strands import own_sum
from .tables import affine_of


def overlaps(program: Program) -> Program:
    """Takes a loop apart that adds to one array at several places, each of which moves on by an element.

    ``(loop n (fn [i a] (add-at (add-at a i (x i)) (+ i k) (y i))) a)``  =>
    ``(loop n (fn [i a] (add-at a (+ i k) (y i))) (loop n (fn [i a] (add-at a i (x i))) a))``.
    Design decision: late, for places whose distance is not known; those of known distance are gathered before
    (``shifts``, ``rings``, ``neighbours``). A vector of such sums would have to wait until those that it may overlap
    have been stored, and compilers take the sums one by one; in loops of their own they take vectors of each. Only
    where the numbers are so cheap that next to nothing is computed twice. The terms of an element come in another
    order: they are differentiation's own (``Bind.soft``).
    """
    if not any(len(adds_of(loop)) > 1 for loop in loops_of(program)):
        return program
    return taken(program, Overlaps(Builder(), program))


def adds_of(loop: Loop) -> list[Bind]:
    """What a loop over one array does, if it is only single operations, and adds to its elements, or to numbers that it
    does nothing else with: its additions to elements."""
    arrays = [k for k, a in enumerate(loop.accs) if isinstance(a.type, Arr)]
    if len(arrays) != 1 or len(loop.body.results) != len(loop.accs) or loop.snapshots is not None or loop.index.soft:
        return []
    if any(type(x.op) is not Prim for x in loop.body.binds):
        return []
    (k,) = arrays
    sums = [(a, r) for a, r in zip(loop.accs, loop.body.results) if a is not loop.accs[k]]
    if any(a.type != REAL or not own_sum(loop.body, a, r) for a, r in sums):
        return []
    found = additions(loop.body, loop.body.results[k])
    if found is None or found[1] is not loop.accs[k]:
        return []
    made = {x.vars[0]: x for x in loop.body.binds}
    adds = [made[x.after] for x in found[0]]
    going: set[Atom] = {loop.accs[k], *(x.vars[0] for x in adds)}
    alone = all(x.soft and going.isdisjoint(x.op.args[1:]) for x in adds)  # type: ignore[union-attr]
    return adds if alone and not any(going & reads(x).keys() for x in loop.body.binds if x not in adds) else []


class Overlaps(Rebuild):
    """``overlaps`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.steps = Steps(program.body)
        self.integers = {
            v: x.op for x in all_binds(program.body) for v in x.vars if v.type == INT and type(x.op) is Prim
        }

    def takes(self, bind: Bind) -> bool:
        op: Loop = bind.op  # type: ignore[assignment]
        adds = adds_of(op)
        if len(adds) < 2:
            return False
        inside = {op.index, *op.accs, *defined_in(op.body)}
        places = [x.op.args[1:-1] for x in adds]  # type: ignore[union-attr]
        for at in places:
            *rows, last = (self.steps.step(s, op.index, inside) for s in at)
            if last not in (1, -1) or any(step != 0 for step in rows):
                return False
        lasts = [affine_of(at[-1], self.integers, inside, {op.index}) for at in places]
        if None in lasts or any(at[:-1] != places[0][:-1] for at in places):
            return False
        gaps = [affine_add(a, b, -1) for k, a in enumerate(lasts) for b in lasts[:k]]  # type: ignore[arg-type]
        if not all(gap[1] for gap in gaps):
            return False
        parts = [*(self.part(op, x) for x in adds), self.sums(op)]
        # a number keeps each of the steps of its sum waiting, too
        return sum(map(cost_of, parts)) <= cost_of(op.body) + CHEAP * len(op.accs)

    def part(self, op: Loop, add: Bind) -> Block:
        """What one of the additions needs, and the addition."""
        needed = slice_of(Block(op.body.binds, ()), add.op.args[1:])  # type: ignore[union-attr]
        (array,) = (a for a in op.accs if isinstance(a.type, Arr))
        made = Bind(add.vars, Prim("add-at", (array, *add.op.args[1:])), add.span, add.soft)  # type: ignore
        return Block((*needed.binds, made), add.vars)

    def sums(self, op: Loop) -> Block:
        """What is added to numbers."""
        return slice_of(op.body, [r for a, r in zip(op.accs, op.body.results) if not isinstance(a.type, Arr)])

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop or not self.takes(bind):
            self.copy(bind)
            return
        (k,) = (k for k, a in enumerate(op.accs) if isinstance(a.type, Arr))
        old, state, adds = bind.vars[k], op.inits[k], adds_of(op)
        for x in adds:
            v = old if x is adds[-1] else Var(old.name, old.type, old.span)
            loop = Loop(op.count, op.index, (state,), op.accs[k : k + 1], self.part(op, x))
            self.copy(Bind((v,), loop, bind.span, bind.soft))
            state = v
        numbers = [j for j in range(len(op.accs)) if j != k]
        if numbers:
            inits, accs, vars = (tuple(xs[j] for j in numbers) for xs in (op.inits, op.accs, bind.vars))
            self.copy(Bind(vars, Loop(op.count, op.index, inits, accs, self.sums(op)), bind.span, bind.soft))
