"""What a loop stacks and does not change, and what it stacks twice: one array is read in place of the others."""

from __future__ import annotations

from typing import Any

from ..core import Arr, Atom, Bind, Block, Loop, Prim, Program, Var, all_binds, blocks_of, count_uses, defined_in
from ..program.builder import Builder
from ..program.loops import array_uses
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuilt
from .copies import changed_by


def lasting(program: Program) -> Program:
    """Reads a value itself, and remembers none of it, where a loop would remember the same one in each iteration; and
    one of two arrays that a loop stacks of the same numbers.

    ``(loop n (fn [i h] (update h i v)) z) .. (get h t j)``  =>  ``(get v j)``, where nothing in the loop makes ``v``,
    and ``h`` has n rows; so it is where it stacks ``v``. ``#(a b) = (loop n (fn [i] x x)) .. (get b i)``  =>
    ``(get a i)``.
    Design decision: reverse mode remembers what its loop computes, and finds out nothing about what does not change:
    that is known here, when such values have left the loop. Where an array is changed later and read after that, all of
    it would have to be copied: it stays as it is.
    """
    if not any(type(x.op) is Loop and x.vars for x in all_binds(program.body)):
        return program
    pass_ = Lasting(program)
    return rebuilt(program, pass_) if pass_.same else program


class Lasting(Rebuild):
    """``lasting`` for a program; ``same``: what to read in place of an array, and of how many subscripts less."""

    def __init__(self, program: Program) -> None:
        super().__init__(Builder())
        self.uses = array_uses(program.body)
        self.changed = {a for x in program.body.binds for a in changed_by(x.op)}.difference(program.params)
        self.same: dict[Atom, tuple[Atom, int]] = {}
        self.sizes = {x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim}
        self.look(program.body)

    def look(self, block: Block) -> None:
        for x in block.binds:
            if type(x.op) is Loop and x.op.snapshots is None and x.vars:
                self.find(x, x.op)
            for region in blocks_of(x.op):
                self.look(region)

    def find(self, bind: Bind, op: Loop) -> None:
        """What a loop stacks that is the same in all iterations, or that it has stacked before."""
        read = {v: uses for v in bind.vars if (uses := self.read_of(v)) and v not in self.changed}
        if not read:
            return
        inside = {op.index, *op.accs, *defined_in(op.body)}
        numbers = Numbers(op.body)
        stacked: dict[Any, list[tuple[Var, Atom]]] = {}
        for k, v in enumerate(bind.vars):
            found = self.stored(op, k) if v in read else None
            if found is None:
                continue
            r, depth = found
            if type(r) is not Var or r not in inside:
                if r not in self.changed and read[v] >= depth:
                    self.same[v] = r, depth
            elif k >= len(op.accs):
                r = op.body.results[k]
                stacked.setdefault(numbers.key(r), []).append((v, r))
        for many in stacked.values():
            kept = next((v for v, r in many if not numbers.soft(r)), many[0][0])
            self.same.update({v: (kept, 0) for v, _ in many if v is not kept})

    def read_of(self, v: Var) -> int:
        """With how many subscripts at least an array is read; 0 where nothing reads it, or anything all of it."""
        return min((len(use.subscripts or ()) for use in self.uses.get(v, ())), default=0)

    def stored(self, op: Loop, k: int) -> tuple[Atom, int] | None:
        """What a loop stacks as its result ``k``, or stores in the row of the iteration, where that is all that it does
        with the array, and this has no other rows; where loops inside of it make that in the same way, what these do.
        And of how many subscripts less it is."""
        r = op.body.results[k]
        if k < len(op.accs):
            acc = op.accs[k]
            store = next((x.op for x in op.body.binds if r in x.vars), None)
            if type(store) is not Prim or store.name != "update" or store.args[:-1] != (acc, op.index):
                return None
            if not isinstance(acc.type, Arr) or not self.all_rows(acc.type.dims[0], op.count):
                return None
            if count_uses(op.body, acc) > 1 or count_uses(op.body, r) > 1:  # type: ignore[arg-type]
                return None
            r = store.args[-1]
        inner = next((x for x in op.body.binds if r in x.vars), None)
        if inner is not None and type(inner.op) is Loop and inner.op.snapshots is None:
            found = self.stored(inner.op, inner.vars.index(r))  # type: ignore[arg-type]
            if found is not None:
                return found[0], found[1] + 1
        return r, 1

    def all_rows(self, size: Atom, count: Atom) -> bool:
        """Whether an array has as many rows as a loop has iterations."""
        op = self.sizes.get(size)  # type: ignore[call-overload]
        return size is count or size == count or op is not None and op.name == "max" and count in op.args

    def prim(self, op: Prim, var: Var) -> Atom:
        if op.name != "get" or op.args[0] not in self.same:
            return super().prim(op, var)
        self.b.fired("lasting")
        array, subscripts = op.args[0], list(op.args[1:])
        while array in self.same and len(subscripts) >= self.same[array][1]:
            array, fewer = self.same[array]
            del subscripts[:fewer]
        if not subscripts:
            return self.atom(array)
        return self.b.get(self.atom(array), *self.atoms(subscripts), hint=var.name, given=var.given)


class Numbers:
    """What the numbers of a block are computed by, whoever made them: the builder does not share those of
    differentiation with the user's."""

    def __init__(self, block: Block) -> None:
        self.made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim and x.op.name in PRIMITIVES}
        self.known: dict[Atom, Any] = {}
        self.numbered: dict[tuple, int] = {}  # one for each way to compute a number, so that each is compared once

    def key(self, a: Atom) -> Any:
        """Equal for numbers that are computed in the same way."""
        if a not in self.known:
            x = self.made.get(a)  # type: ignore[call-overload]
            way = () if x is None else (x.op.name, *map(self.key, x.op.args))  # type: ignore[union-attr]
            self.known[a] = self.numbered.setdefault(way, len(self.numbered)) if way else a
        return self.known[a]

    def soft(self, a: Atom) -> bool:
        """Whether differentiation made a number."""
        return a in self.made and self.made[a].soft  # type: ignore[index]
