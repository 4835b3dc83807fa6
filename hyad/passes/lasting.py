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
        width, inside = len(op.accs), None
        made = {x.vars[0]: x for x in op.body.binds if type(x.op) is Prim and x.op.name in PRIMITIVES}
        soft = {v for v, x in made.items() if x.soft}
        stacked: dict[Any, list[tuple[Var, Atom]]] = {}
        known: dict[Atom, Any] = {}

        def numbers(a: Atom) -> Any:
            """What a number is computed by, whoever made it: differentiation's own are not shared with the user's."""
            if a not in known:
                x = made.get(a)  # type: ignore[call-overload]
                known[a] = a if x is None else (x.op.name, *map(numbers, x.op.args))  # type: ignore[union-attr]
            return known[a]

        for k, v in enumerate(bind.vars):
            uses = self.uses.get(v, ())
            if not uses or v in self.changed or any(use.subscripts is None for use in uses):
                continue
            r = self.stored(op, k, v)
            if r is None:
                continue
            if inside is None:
                inside = {op.index, *op.accs, *defined_in(op.body)}
            if type(r) is not Var or r not in inside:
                if r not in self.changed:
                    self.same[v] = r, 1
            elif k >= width:
                stacked.setdefault(numbers(r), []).append((v, r))
        for many in stacked.values():
            kept = next((v for v, r in many if r not in soft), many[0][0])
            self.same.update({v: (kept, 0) for v, _ in many if v is not kept})

    def stored(self, op: Loop, k: int, v: Var) -> Atom | None:
        """What a loop stacks as its result ``k``, or stores in the row of the iteration, where that is all that it does
        with the array, and this has no other rows."""
        r = op.body.results[k]
        if k >= len(op.accs):
            return r
        acc = op.accs[k]
        store = next((x.op for x in op.body.binds if r in x.vars), None)
        if type(store) is not Prim or store.name != "update" or store.args[:-1] != (acc, op.index):
            return None
        if not isinstance(v.type, Arr) or not self.all_rows(v.type.dims[0], op.count):
            return None
        if count_uses(op.body, acc) > 1 or count_uses(op.body, r) > 1:  # type: ignore[arg-type]
            return None
        return store.args[-1]

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
