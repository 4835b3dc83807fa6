"""Cheap states recomputed, several side by side, in the loop that reads them, instead of remembered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core import INT, REAL, Atom, Bind, Block, Loop, Prim, Program, Var, free_vars, given, reads, same
from ..program.builder import Builder
from ..program.loops import array_uses, cost_of, loops_of, slice_of
from ..program.rebuild import Rebuild, rebuilt
from .jam import JAMMED

#: What it costs to compute a state again, in additions, for each that is not remembered then.
CHEAP = 2


def alongside(program: Program) -> Program:
    """Recomputes cheap states, four at once, in the loop that reads them, instead of remembering them.

    ``(loop m (fn [j p q r s] .. stacks p q r s, next (* p a) (* q b) ..))``, then ``(loop m (fn [j] .. (get p j) ..))``
    =>  the second loop with ``p``, ``q``, ``r``, ``s`` of its own.

    Design decision: four at least. One chain of multiplications keeps its loop waiting, and what reads a remembered row
    is taken several elements at a time; four chains go as fast as four rows are read, and need no memory.
    """
    if not any(sum(stacked(loop)) >= JAMMED for loop in loops_of(program)):
        return program
    return recomputed(program, JAMMED)


def recomputed(program: Program, least: int, within: Collection[Bind] | None = None) -> Program:
    """The same for as many states as that, in some loops or in all."""
    pass_ = Alongside(Builder(), program, least, within)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def stacked(loop: Loop) -> list[bool]:
    """Of what a loop stacks: whether it is a state, as it was before each iteration."""
    return [r in loop.accs and r.type == REAL for r in loop.body.results[len(loop.accs) :]]


@dataclass(slots=True)
class Again:
    """What a loop is to carry: states of an earlier loop, and which arrays they are in place of."""

    loop: Loop
    states: list[int]
    arrays: dict[Var, int]


class Alongside(Rebuild):
    """``recomputed`` for a program."""

    def __init__(self, builder: Builder, program: Program, least: int, within: Collection[Bind] | None) -> None:
        super().__init__(builder)
        self.found = False
        self.least, self.within, self.inside = least, within, within is None
        self.uses = array_uses(program.body)
        self.plans: dict[Bind, Again] = {}
        self.elements: dict[Var, Atom] = {}

    def block(self, block: Block) -> tuple[Atom, ...]:
        for k, x in enumerate(block.binds if self.inside else ()):
            few = type(x.op) is not Loop or sum(stacked(x.op)) < self.least
            if not few and all(type(y.op) is Prim for y in x.op.body.binds):
                for y in block.binds[k + 1 :]:
                    if type(y.op) is Loop and y not in self.plans and not reads(y).keys().isdisjoint(x.vars):
                        plan = self.plan(x, y)
                        if plan is not None:
                            self.plans[y] = plan
                        break
        return super().block(block)

    def plan(self, one: Bind, two: Bind) -> Again | None:
        """The states of a loop that a later one reads, each in the iteration in which it was stacked; None where these
        are few, or dear."""
        a, c = one.op, two.op
        assert type(a) is Loop and type(c) is Loop
        if not same(a.count, c.count) or c.index.soft or c.snapshots is not None or a.snapshots is not None:
            return None
        if any(type(x.op) is not Prim for x in c.body.binds):
            return None
        width, arrays = len(a.accs), {}
        for v, r in zip(one.vars[width:], a.body.results[width:]):
            uses = self.uses.get(v, ())
            if r in a.accs and r.type == REAL and uses and all(u.loops[-1:] == (c,) for u in uses):
                if all(u.subscripts == (c.index,) for u in uses):
                    arrays[v] = a.accs.index(r)  # type: ignore[arg-type]
        states = sorted(set(arrays.values()))
        for k in states:  # and those from which they are computed
            needs = free_vars(slice_of(a.body, (a.body.results[k],)))
            states += [j for j, acc in enumerate(a.accs) if acc in needs and j not in states]
        steps = slice_of(a.body, [a.body.results[k] for k in states])
        moving = {a.index, *(x.vars[0] for x in a.body.binds)}
        if len(arrays) < self.least or cost_of(steps) > CHEAP * len(arrays):
            return None
        if any(a.accs[k].type != REAL for k in states) or any(x.op.name == "get" for x in steps.binds):  # type: ignore
            return None
        if any(x.vars[0].type == INT for x in steps.binds if x.vars[0] in moving):
            return None
        return Again(a, states, arrays)

    def bind(self, bind: Bind) -> None:
        again = self.plans.get(bind)
        if again is None:
            around = self.inside
            self.inside = around or bind in (self.within or ())
            self.copy(bind)
            self.inside = around
            return
        self.found = True
        b, op, a = self.b, bind.op, again.loop
        b.fired("alongside")
        assert type(op) is Loop
        width, own = len(op.accs), [a.accs[k] for k in again.states]
        inits = [*self.atoms(op.inits), *self.atoms([a.inits[k] for k in again.states])]

        def body(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[op.index] = self.here[a.index] = i
            self.here.update(zip(op.accs, accs))
            states = dict(zip(again.states, accs[width:]))
            self.elements = {v: states[k] for v, k in again.arrays.items()}
            results = self.block(op.body)
            self.elements = {}
            self.here.update(zip(own, accs[width:]))
            following = self.block(slice_of(a.body, [a.body.results[k] for k in again.states]))
            return [*results[:width], *following], results[width:]

        names = [*(v.name for v in bind.vars[:width]), *(v.name for v in own), *(v.name for v in bind.vars[width:])]
        hints = [x.name for x in (*op.accs, *own)]
        span = b.span
        out = b.loop(self.atom(op.count), inits, body, names, op.index.name, hints, given(bind))
        b.span = span
        self.define(bind, [*out[:width], *out[width + len(own) :]])

    def prim(self, op: Prim, var: Var) -> Atom:
        if op.name == "get" and op.args[0] in self.elements:
            return self.elements[op.args[0]]  # type: ignore[index]
        return super().prim(op, var)
