"""Dead stores into a loop's state, beyond all that is read of it afterwards: not made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    defined_in,
    reads,
    uses,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, taken
from .align import without
from .tables import affine_of, sums_in


def unread(program: Program) -> Program:
    """Drops stores to elements of a state that no later iteration of a loop over time reads.

    ``(ifold (fn [v t] (build n (fn [i] (if (< i (- n t 1)) (f (get v i) (get v (+ i 1))) 0.0)))) ..)``  =>  the same
    without the zeros, of which no later iteration reads one: each goes less far than the one before.

    Design decision: late, when the state is changed where it lies: what is not stored is what was there.
    """
    if not any(type(x.op) is Loop and x.op.accs for loop in loops_of(program) for x in loop.body.binds):
        return program
    made = taken(program, Unread(Builder(), program))
    return dead_code(made) if made is not program else program


class Unread(Rebuild):
    """``unread`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.sums = sums_in(program.body)
        self.uses = uses(program.body)
        self.looks: dict[Atom, list[Prim]] = {}  # the elements of an array that are read one by one
        for x in all_binds(program.body):
            if type(x.op) is Prim and x.op.name == "get" and len(x.op.args) == 2:
                self.looks.setdefault(x.op.args[0], []).append(x.op)
        self.skipped: dict[Bind, set[int]] = {}  # loops that fill, and which of their arrays need not be filled

    def bind(self, bind: Bind) -> None:
        if type(bind.op) is Loop:
            for last, k in self.fillings(bind):
                self.skipped.setdefault(last, set()).add(k)
        self.copy(bind)
        for k in self.skipped.get(bind, ()):
            self.here[bind.vars[k]] = self.atom(bind.op.inits[k])  # type: ignore[union-attr]

    def takes(self, bind: Bind) -> bool:
        return bool(self.fillings(bind))

    def fillings(self, bind: Bind) -> list[tuple[Bind, int]]:
        """What a loop need not fill, for each of its states."""
        vectors = (k for k, a in enumerate(bind.op.accs) if isinstance(a.type, Arr) and a.type.rank == 1)  # type: ignore
        return [found for k in vectors if (found := self.filling(bind, k)) is not None]

    def filling(self, bind: Bind, k: int) -> tuple[Bind, int] | None:
        """The last of the loops that change a state, and which of its arrays that is, where it stores what no later
        iteration reads, and nothing behind the loop around."""
        op = bind.op
        assert type(op) is Loop
        result = op.body.results[k]
        last = next((x for x in op.body.binds if type(x.op) is Loop and result in x.vars), None)
        if last is None or op.snapshots is not None or self.uses.get(result) != 1:  # type: ignore[call-overload]
            return None
        at, final = last.vars.index(result), bind.vars[k]  # type: ignore[arg-type]
        around = Around(self.sums, {op.index, *op.accs, *defined_in(op.body), *self.sums}, op.index)
        low = around.lowest(last.op, at) if at < len(last.op.accs) else None  # type: ignore[arg-type, union-attr]
        looks, count = self.looks.get(final, []), around.affine(op.count)
        if low is None or count is None or low[1].get(op.index, 0) > 0 or len(looks) != self.uses.get(final, 0):
            return None
        for high in around.highest(op.body, op.accs[k], (last, at), {}):  # type: ignore[arg-type]
            if high is None or not below(
                affine_add(high, (high[1].get(op.index, 0), {})), low
            ):  # of the next iteration
                return None
        end = affine_add(without(low, op.index), affine_add(count, (1, {}), -1), low[1].get(op.index, 0))
        read = [around.affine(look.args[1]) for look in looks]
        return (last, at) if all(a is not None and below(a, end) for a in read) else None


@dataclass
class Around:
    """A loop over time: its index, and what is made in it."""

    sums: dict[Var, Prim]
    inside: set[Var]
    time: Var

    def affine(self, a: Atom, *indices: Var) -> Affine | None:
        return affine_of(a, self.sums, self.inside, {self.time, *indices})

    def lowest(self, op: Loop, k: int) -> Affine | None:
        """The first element that a loop stores into its array ``k``, upwards, if that is all that it does with it."""
        acc, result = op.accs[k], op.body.results[k]
        store = next((x.op for x in op.body.binds if result in x.vars), None)
        if type(store) is not Prim or store.name != "update" or store.args[0] is not acc:
            return None
        if sum(acc in reads(x) for x in op.body.binds) > 1 or any(result in reads(x) for x in op.body.binds):
            return None
        if [*op.body.results].count(result) > 1 or acc in op.body.results:
            return None
        place = self.affine(store.args[1], op.index)
        return without(place, op.index) if place is not None and place[1].get(op.index) == 1 else None

    def highest(
        self, block: Block, array: Var, last: tuple[Bind, int], counts: dict[Var, Affine], own: int | None = None
    ) -> Iterator[Affine | None]:
        """The highest element that each reading of a vector, or of what is made of it, goes to; None where that is not
        known, as where it is handed on. ``last``: the loop that fills, and in which of its arrays. ``counts``: how
        often the loops run that are around the block; ``own``: of which accumulator the vector is the state there."""
        if any(r is array and k != own for k, r in enumerate(block.results)):
            yield None
        for x in block.binds:
            op = x.op
            if array not in reads(x):
                continue
            if type(op) is Prim and op.name == "get":
                yield self.end(op.args[1], counts)
            elif type(op) is Prim and op.name == "update":
                yield from self.highest(block, x.vars[0], last, counts, own)
            elif type(op) is Loop:
                count = self.affine(op.count, *counts)
                inner = {**counts, op.index: count} if count is not None else counts
                yield from self.highest(op.body, array, last, inner)
                for j, z in enumerate(op.inits):
                    if z is array and (x, j) != last:
                        yield from self.highest(op.body, op.accs[j], last, inner, j)
                        yield from self.highest(block, x.vars[j], last, counts, own)
            else:
                yield None

    def end(self, a: Atom, counts: dict[Var, Affine]) -> Affine | None:
        """The highest value of a subscript in the loops around it."""
        found = self.affine(a, *counts)
        for v, count in reversed(counts.items()):  # how often an inner one runs may depend on those around
            step = found[1].get(v, 0) if found is not None else 0
            if step:
                found = without(found, v)  # type: ignore[arg-type]
            if step > 0:
                found = affine_add(found, affine_add(count, (1, {}), -1), step)  # type: ignore[arg-type]
        return found


def below(a: Affine, b: Affine) -> bool:
    """Whether an integer is known to be less than another one."""
    gap = affine_add(b, a, -1)
    return not gap[1] and gap[0] > 0
