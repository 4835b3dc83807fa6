"""Parts of arrays, as slices are, read where they lie: before differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import INT, Atom, Bind, Block, Check, Loop, Prim, Var, While, all_binds, blocks_of, defined_in, reads
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.loops import array_uses
from ..program.rebuild import Rebuild
from .tables import affine_of


def views_block(b: Builder, block: Block) -> Block:
    """Reads elements of a part of an array from the array itself, where that has not changed yet.

    ``t = (build m (fn [i] (get a (+ k i))))``, ``(get t i j)``  =>  ``(get a (+ k i) j)``.
    Design decision: before a block is differentiated, for adjoints: what they add to elements of the part they add to
    those of the array, and no part has an adjoint of its own, among zeros. Not columns, and what is taken by a list of
    indices: such parts are better copied once, side by side. What is read by row is a part all the same.
    """
    if "views" in b.off:
        return block
    while found := Views(b, block).candidates(block):  # of parts of parts, the inner ones first
        pass_ = Views(b, block)
        pass_.found = found
        block = tidy(pass_.remade(block))
    return block


@dataclass(frozen=True)
class View:
    """The loops that make a part, the array, and the subscripts of an element of the part in it."""

    loops: tuple[Loop, ...]
    integers: tuple[Bind, ...]
    array: Var
    place: tuple[Atom, ...]


class Views(Rebuild):
    """``views_block`` for a block; ``found`` has the parts that are read where they lie."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.uses = array_uses(block)
        self.made = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == INT}
        self.found: dict[Var, View] = {}

    def candidates(self, block: Block) -> dict[Var, View]:
        """The parts that a block makes, or a region in it, and reads element by element before their array changes."""
        found: dict[Var, View] = {}
        for k, x in enumerate(block.binds):
            view = self.view(x.op, ()) if type(x.op) is Loop and len(x.vars) == 1 and not x.op.accs else None
            if view is not None and self.readable(x.vars[0], view):
                later = block.binds[k + 1 :]
                change = next((j for j, y in enumerate(later) if changes(y, view.array)), len(later))
                if not any(x.vars[0] in reads(y) for y in later[change:]) and x.vars[0] not in block.results:
                    found[x.vars[0]] = view
            for region in blocks_of(x.op):
                found.update(self.candidates(region))
        return {v: view for v, view in found.items() if view.array not in found}

    def view(self, op: Loop, around: tuple[Loop, ...]) -> View | None:
        """What a loop takes of an array: its rows or elements from one on."""
        loops = (*around, op)
        *binds, last = op.body.binds or (None,)
        if op.index.soft or op.snapshots is not None or last is None or op.body.results != last.vars:
            return None
        if not all(type(x.op) is Check or type(x.op) is Prim and x.vars[0].type == INT for x in binds):
            return None
        if type(last.op) is Loop:
            inner = self.view(last.op, loops) if not last.op.accs else None
            return inner and View(inner.loops, (*binds, *inner.integers), inner.array, inner.place)  # type: ignore
        if type(last.op) is not Prim or last.op.name != "get" or type(last.op.args[0]) is not Var:
            return None
        array, *place = last.op.args
        inside = {loop.index for loop in loops}.union(*(defined_in(loop.body) for loop in loops))
        if array in inside or not self.moves(place, loops, inside, array.type.rank):  # type: ignore[union-attr]
            return None
        return View(loops, tuple(binds), array, tuple(place))

    def moves(self, place: Sequence[Atom], loops: Sequence[Loop], inside: set[Var], rank: int) -> bool:
        """Whether subscripts are sums of indices, and the last index goes along the last axis."""
        indices = {loop.index for loop in loops}
        where = [affine_of(a, self.made, inside, indices) for a in place]
        if any(a is None for a in where):
            return False
        if len(place) < rank:
            return True
        *rest, last = where
        along = loops[-1].index
        return last[1].get(along) == 1 and not any(along in a[1] for a in rest)  # type: ignore[index]

    def readable(self, v: Var, view: View) -> bool:
        """Whether all that reads a part reads elements, or rows of the array."""
        uses = self.uses.get(v, [])
        return bool(uses) and all(u.subscripts is not None and len(u.subscripts) >= len(view.loops) for u in uses)

    def prim(self, op: Prim, var: Var) -> Atom:
        view = self.found.get(op.args[0]) if op.name == "get" else None  # type: ignore[arg-type]
        if view is None:
            return super().prim(op, var)
        self.b.fired("views")
        at = self.atoms(op.args[1:])
        around = dict(self.here)
        self.here.update((loop.index, a) for loop, a in zip(view.loops, at))
        for x in view.integers:
            if type(x.op) is Prim:
                self.here[x.vars[0]] = super().prim(x.op, x.vars[0])
        place = (*self.atoms(view.place), *at[len(view.loops) :])
        self.here = around
        return self.b.get(self.atom(view.array), *place, hint=var.name, given=var.given)


def changes(bind: Bind, array: Var) -> bool:
    """Whether an operation may change an array in place, or what is made of it."""
    op = bind.op
    if type(op) is Prim:
        return op.name not in ("get", "array") and bool(op.args) and op.args[0] is array
    if type(op) in (Loop, While) and array in op.inits:  # type: ignore[union-attr]
        return True
    return any(changes(x, array) for block in blocks_of(op) for x in block.binds)
