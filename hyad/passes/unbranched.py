"""What the branches of a loop add to arrays, as upwind schemes' derivatives do, added after the branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core import (
    BOOL,
    INT,
    ZERO,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    reads,
    type_of,
)
from ..program.affine import affine_key
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.loops import CALL, loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuilt
from .edges import FEWEST, LONGEST
from .tables import affine_of, sums_in

#: So many additions of a branch are made where it is not taken, at most.
MOST = 8
#: What a place may be made of, where it is not known that the branch is taken.
PLACES = ("+", "-", "*", "min", "max", "select", "<", "<=", ">", ">=", "=", "!=", "and", "or", "not")


def unbranched(program: Program, own: bool = False) -> Program:
    """Moves what the branches of an innermost loop add to array elements behind the branches, as zero where a branch is
    not taken; not to elements that may be out of range.

    ``(if c (add-at a i x) (add-at a (+ i 2) y))``  =>  ``#(u v) = (if c #(x 0.0) #(0.0 y))``, then
    ``(add-at (add-at a i u) (+ i 2) v)``.
    What both branches store in one element is stored after them. Design decision: differentiation's own additions
    alone, of which one more zero changes nothing; a number that a branch does not make is not there, NaN or not. Then a
    compiler has no stores that depend on a condition, and takes several iterations at once. Not where a branch calls
    the library, nor where elements are found by an index. With ``own``, for threads, elements of the iteration alone.
    """
    pass_ = Unbranched(Builder(), program, own)
    if not any(chooses_arrays(loop.body) and pass_.takes(loop) for loop in loops_of(program)):
        return program
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def chooses_arrays(block: Block) -> bool:
    """Whether a branch in a block gives an array."""
    return any(type(x.op) is If and any(isinstance(v.type, Arr) for v in x.vars) for x in all_binds(block))


class Change(NamedTuple):
    """What a branch does to an element of one of the arrays that the ``if`` gives."""

    bind: Bind
    result: int
    place: tuple[Atom, ...]


class Unbranched(Rebuild):
    """``unbranched`` for a program."""

    def __init__(self, builder: Builder, program: Program, own: bool = False) -> None:
        super().__init__(builder)
        self.own = own
        self.index: Var | None = None
        self.sums = sums_in(program.body)
        self.inside = False
        self.found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        around, self.inside, self.index = (self.inside, self.index), self.takes(op), op.index
        out = super().loop(op, bind)
        self.inside, self.index = around
        return out

    def takes(self, op: Loop) -> bool:
        """Whether a compiler could take several iterations of a loop at once, but for its branches."""
        found = list(all_binds(op.body))
        if op.snapshots is not None or op.index.soft or type(op.count) is Const and op.count.value < FEWEST:
            return False
        if len(found) > LONGEST or any(type(x.op) not in (Prim, If) for x in found):
            return False
        moving: set[Atom] = {op.index, *op.accs}
        for x in found:
            if any(a in moving for a in reads(x)):
                moving.update(x.vars)
        return all(self.in_a_vector(x.op, op.index, moving) for x in found if type(x.op) is Prim)

    def in_a_vector(self, op: Prim, index: Var, moving: set[Atom]) -> bool:
        """Whether a compiler can do something for several iterations at once; ``moving`` is what differs in them."""
        if op.name not in ("get", "update", "add-at"):
            row = PRIMITIVES.get(op.name)
            return op.name == "select" or row is not None and (row.cost < CALL or op.name == "sqrt")
        *rows, last = op.args[1 : None if op.name == "get" else -1]
        place = affine_of(last, self.sums, moving, {index})
        return moving.isdisjoint(rows) and place is not None and place[1].get(index, 0) in (0, 1)

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        arrays = [k for k, v in enumerate(bind.vars) if isinstance(v.type, Arr)]
        if self.inside and arrays:
            sides = [self.changes(block, arrays) for block in (op.then, op.orelse)]
            before = [side[1] for side in sides if side is not None]
            if len(before) == 2 and before[0] == before[1]:
                made = self.after(op, bind, [side[0] for side in sides if side is not None], before[0])
                if made is not None:
                    self.found = True
                    return made
        return super().if_(op, bind)

    def changes(self, block: Block, arrays: Sequence[int]) -> tuple[list[Change], dict[int, Atom]] | None:
        """What a branch adds to each array, or stores in one element of it, and the arrays as they were before; None
        where it does anything else to them, or the places are not to be had outside."""
        made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim}
        found: list[Change] = []
        before: dict[int, Atom] = {}
        for k in arrays:
            at = block.results[k]
            steps: list[Change] = []
            while (x := made.get(at)) is not None and x.op.name in ("add-at", "update"):  # type: ignore
                array, *place, value = x.op.args  # type: ignore[union-attr]
                readers = sum(at in reads(y) for y in block.binds) + block.results.count(at)
                if readers != 1 or isinstance(type_of(value), Arr) or x.op.name == "add-at" and not x.soft:  # type: ignore
                    return None
                if self.own and place[-1] is not self.index:
                    return None
                steps.insert(0, Change(x, k, tuple(place)))
                at = array
            if at in made or any(x.bind.op.name == "update" for x in steps) and len(steps) > 1:  # type: ignore
                return None
            before[k] = at
            found += steps
        needed = tidy(Block(block.binds, tuple(a for x in found for a in x.place)))
        plain = all(type(y.op) is Prim and y.op.name in PLACES for y in needed.binds)
        plain = plain and all(v.type in (INT, BOOL) for y in needed.binds for v in y.vars)
        return (found, before) if plain and len(found) <= MOST else None

    def after(
        self, op: If, bind: Bind, sides: Sequence[Sequence[Change]], before: dict[int, Atom]
    ) -> Sequence[Atom] | None:
        """What an ``if`` gives, with the changes of arrays after it; None where an element may not be there, or one
        branch alone stores something in it."""
        b, cond = self.b, self.atom(op.cond)
        branches = (op.then, op.orelse)
        keys: list[list[tuple]] = []
        changed: dict[tuple, tuple[Change, tuple[Atom, ...]]] = {}
        for block, side in zip(branches, sides):
            keys.append([])
            for x in side:
                at = self.block(tidy(Block(block.binds, x.place)))
                if not b.in_range(self.atom(before[x.result]), at):
                    return None
                key = (x.bind.op.name, x.result, *map(affine_key, map(b.affine, at)))  # type: ignore[union-attr]
                keys[-1].append(key)
                changed.setdefault(key, (x, at))
        for key in changed:
            if key[0] == "update" and not all(key in side for side in keys):
                return None
        scalars = [k for k in range(len(bind.vars)) if k not in before]
        taken = {x.bind for side in sides for x in side}
        regions = []
        for block, side, own, holds in zip(branches, sides, keys, (True, False)):
            with b.branch_region(cond, holds) as scope:
                around, self.holds = self.holds, {**self.holds, cond: holds}
                wanted = (*(block.results[k] for k in scalars), *(x.bind.op.args[-1] for x in side))  # type: ignore
                made = self.block(Block(tuple(x for x in block.binds if x not in taken), wanted))
                self.holds = around
                values: dict[tuple, Atom] = {}
                with b.differentiating():
                    for key, value in zip(own, made[len(scalars) :]):
                        values[key] = b.prim("+", values[key], value) if key in values else value
            regions.append((scope, [*made[: len(scalars)], *(values.get(key, ZERO) for key in changed)]))
        names = [bind.vars[k].name for k in (*scalars, *(x.result for x, _ in changed.values()))]
        out = b.if_(cond, *regions, names)
        found = dict(zip(scalars, out))
        found.update((k, self.atom(a)) for k, a in before.items())
        for (x, at), value in zip(changed.values(), out[len(scalars) :]):
            array, name = found[x.result], bind.vars[x.result].name
            if x.bind.op.name == "update":  # type: ignore[union-attr]
                found[x.result] = b.update(array, at, value, name)
            else:
                found[x.result] = b.add_at(array, at, value, name, soft=True)
        return [found[k] for k in range(len(bind.vars))]
