"""A sum of arrays of which one element alone is read becomes the sum of these elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core import (
    REAL,
    TRUE,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    binders_of,
    blocks_of,
    defined_in,
    reads,
)
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.loops import Use, array_uses
from ..program.rebuild import Rebuild, rebuilt
from .fusion import Builds

Place = tuple[Atom, ...]
ZERO = Const(0.0, REAL, soft=True)


def one_element(program: Program) -> Program:
    """Adds up one element in place of an array of which no other is read."""
    states = (v for x in all_binds(program.body) if type(x.op) is Loop for v in x.op.accs)
    if not any(isinstance(v.type, Arr) for v in states):
        return program
    if any(lone(program.body, array_uses(program.body), 0)):  # a sum of such sums, say
        program = dead_code(rebuilt(program, Lone(Builder(), program.body)))
    found = Sums(program.body).found
    return rebuilt(program, OneElement(Builder(), found)) if found else program


def lone(block: Block, uses: Mapping[Var, Sequence[Use]], depth: int) -> Iterator[Var]:
    """The arrays of which the block that makes them reads one element, and nothing else does."""
    for bind in block.binds:
        if type(bind.op) is Loop and not bind.op.accs:
            for v in bind.vars:
                found = uses.get(v, ())
                if found and all(u.subscripts == found[0].subscripts and len(u.loops) == depth for u in found):
                    if found[0].subscripts:
                        yield v
        for region in blocks_of(bind.op):
            yield from lone(region, uses, depth + (type(bind.op) is Loop))


class Lone(Builds):
    """Makes that one element in place of such an array."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder, block)
        self.lone = set(lone(block, self.uses, 0))

    def fusible(self, bind: Bind, op: Loop) -> int:
        return int(all(v in self.lone for v in bind.vars if self.uses.get(v)) and not self.lone.isdisjoint(bind.vars))


class Sums:
    """Finds the states of loops that start from zeros, to which differentiation adds, and of which one element is read:
    ``found`` has every array on the way, and which element of them is wanted."""

    def __init__(self, block: Block) -> None:
        self.uses = array_uses(block)
        self.zeros = {x.vars[0] for x in all_binds(block) if type(x.op) is Prim and x.op.name == "zeros"}
        self.later = set(defined_in(block))  # what is not there yet where the search has come to
        self.found: dict[Var, Place] = {}
        self.search(block)

    def search(self, block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if type(op) is Loop and op.snapshots is None:
                for v, init, acc, result in zip(bind.vars, op.inits, op.accs, op.body.results):
                    place = self.place(v) if init in self.zeros and v not in self.found else None
                    way = self.way(op.body, acc, result) if place and self.later.isdisjoint(place) else None
                    if place and way:
                        self.found.update(dict.fromkeys((v, *way), place))
            self.later.difference_update(binders_of(op))
            for region in blocks_of(op):
                self.search(region)
            self.later.difference_update(bind.vars)

    def place(self, v: Var) -> Place | None:
        """The subscripts of the one element of an array of real numbers that is read; None if there are others."""
        first, *more = self.uses.get(v, ()) or (Use(None, ()),)
        if not first.subscripts or not isinstance(v.type, Arr) or v.type.elem != REAL:
            return None
        one = len(first.subscripts) == v.type.rank and all(u.subscripts == first.subscripts for u in more)
        return first.subscripts if one else None

    def way(self, block: Block, array: Atom, result: Atom) -> list[Atom] | None:
        """The arrays from ``array`` to a result of a block, each the one before with something added to it; None where
        anything else is made of one of them."""
        found = [array]
        for bind in block.binds:
            op, array = bind.op, found[-1]
            if array not in reads(bind):
                continue
            if type(op) is Prim and op.name == "add-at" and op.args[0] is array and bind.soft:
                found.append(bind.vars[0])
            elif type(op) is Loop and array in op.inits and op.snapshots is None:
                k = op.inits.index(array)
                inner = self.way(op.body, op.accs[k], op.body.results[k])
                if inner is None:
                    return None
                found += [*inner, bind.vars[k]]
            else:
                return None
        ended = found[-1] is result and all(type(a) is Var and len(self.uses.get(a, ())) == 1 for a in found)
        return found if ended else None


class OneElement(Rebuild):
    """The states that ``Sums`` finds as numbers.

    ``(get (ifold (fn [a i] (ifold (fn [a j] (add-at a j (f i j))) a n)) (zeros [n]) m) k)``  =>
    ``(ifold (fn [s i] (ifold (fn [s j] (+ s (if (= j k) (f i j) 0))) s n)) 0 m)``, of which ``OneHot`` leaves
    ``(ifold (fn [s i] (+ s (f i k))) 0 m)``: what is on the diagonal of a Hessian, say, of each of its rows.
    """

    def __init__(self, builder: Builder, found: Mapping[Var, Place]) -> None:
        super().__init__(builder)
        self.found = found

    def prim(self, op: Prim, var: Var) -> Atom:
        array = op.args[0] if op.args else None
        if array not in self.found:
            return super().prim(op, var)
        b, before = self.b, self.atom(array)
        if op.name == "get":
            return before
        wanted, hit = self.atoms(self.found[array]), TRUE
        at, x = self.atoms(op.args[1:-1]), self.atom(op.args[-1])
        for i, j in zip(at, wanted):
            same = b.prim("=", i, j)
            hit = same if hit is TRUE else b.prim("and", hit, same)
        return b.prim("+", before, b.select(hit, b.get(x, *wanted[len(at) :]), ZERO), hint=var.name)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        inits = (ZERO if a in self.found and z not in self.found else z for a, z in zip(op.accs, op.inits))
        return super().loop(replace(op, inits=tuple(inits)), bind)
