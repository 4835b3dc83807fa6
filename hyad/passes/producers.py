"""What elements of arrays are made of, seen through the loops that make the arrays."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Atom, Bind, Block, Case, Loop, Prim, Var, While, blocks_of, reads
from ..program.builder import Builder, known_place
from ..program.rebuild import Rebuild


@dataclass(frozen=True, eq=False)
class Frame:
    """The body of a loop, in one of its iterations: at an index that is read in another frame, or, None, at one that is
    to be chosen. ``outer`` is the frame around the loop, if that is the body of another one seen through."""

    loop: Loop
    at: Place | None
    outer: Frame | None
    binds: dict[Var, Bind]

    def owner(self, a: Atom) -> Frame | None:
        """The frame that binds a variable, this one or one around it."""
        frame: Frame | None = self
        while frame is not None and a is not frame.loop.index and a not in frame.loop.accs and a not in frame.binds:
            frame = frame.outer
        return frame


#: An atom, and the frame that it is read in.
Place = tuple[Atom, "Frame | None"]


def frame_of(loop: Loop, at: Place | None, outer: Frame | None) -> Frame:
    return Frame(loop, at, outer, {v: x for x in loop.body.binds for v in x.vars})


def owner(a: Atom, frame: Frame | None) -> Frame | None:
    return None if frame is None else frame.owner(a)


class Producers(Rebuild):
    """The base of passes that ask what an element is made of. ``made``: what binds each variable of a block; ``needs``:
    the loops around that change it; ``at``: the index of the loop that is being built; ``seeing``: what is made of an
    element is copied as it is, since a pass knows its variables where they are bound, and not in this iteration."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.made: dict[Atom, Bind] = {}
        self.needs: dict[Atom, frozenset[Loop | While]] = {}
        self.changed: dict[Place, frozenset[Loop | While]] = {}
        self.at: Atom | None = None
        self.seeing = False
        self.learn(block)

    def learn(self, block: Block) -> None:
        for x in block.binds:
            op = x.op
            needs = frozenset().union(*(self.needs.get(v, ()) for v in reads(x)))
            for v in x.vars:
                self.made[v], self.needs[v] = x, needs
            if type(op) is Loop:
                self.needs[op.index] = frozenset((op,))
            if type(op) in (Loop, While):
                self.needs.update((a, needs | {op}) for a in op.accs)  # type: ignore[union-attr]
            if type(op) is Case:
                self.needs.update((v, needs) for arm in op.arms for v in arm.fields)
            for region in blocks_of(op):
                self.learn(region)

    def changes(self, a: Atom, frame: Frame | None) -> frozenset[Loop | While]:
        """The loops that change an atom."""
        mine = owner(a, frame)
        if mine is None:
            return self.needs.get(a, frozenset())
        if (a, mine) not in self.changed:
            if a is mine.loop.index and mine.at is not None:
                found = self.changes(*mine.at)
            elif a in mine.binds:
                found = frozenset().union(*(self.changes(v, mine) for v in reads(mine.binds[a])))  # type: ignore[index]
            else:
                found = frozenset((mine.loop,))
            self.changed[a, mine] = found
        return self.changed[a, mine]

    def definition(self, a: Atom, frame: Frame | None) -> tuple[Prim, Frame | None] | None:
        """The primitive that makes an atom, and the frame of its arguments."""
        mine = owner(a, frame)
        x = self.made.get(a) if mine is None else mine.binds.get(a)  # type: ignore[arg-type]
        return (x.op, mine) if x is not None and type(x.op) is Prim else None

    def look(self, a: Atom, frame: Frame | None, moving: bool = False) -> Place:
        """What an element is of an array that a loop makes, in an iteration of that loop; ``moving``: of one that some
        loop around changes."""
        found = self.definition(a, frame)
        while found is not None and found[0].name == "get":
            array, *indices = found[0].args
            if moving and not self.changes(array, found[1]):
                break
            element = self.element(array, [(i, found[1]) for i in indices], found[1])
            if element is None:
                break
            a, frame = element
            found = self.definition(a, frame)
        return a, frame

    def element(self, array: Atom, indices: list[Place], frame: Frame | None) -> Place | None:
        """An element of an array, where it is made."""
        if not indices:
            return array, frame
        mine = owner(array, frame)
        x = self.made.get(array) if mine is None else mine.binds.get(array)  # type: ignore[arg-type]
        op = None if x is None else x.op
        if type(op) is Prim and op.name == "get":
            return self.element(op.args[0], [*((i, mine) for i in op.args[1:]), *indices], mine)
        if type(op) is Prim and op.name == "array" and (k := known_place(op, indices[0][0])) is not None:
            return self.element(op.args[k], indices[1:], mine)
        if type(op) is Loop and not op.accs and op.snapshots is None:
            inner = frame_of(op, indices[0], mine)
            return self.element(op.body.results[x.vars.index(array)], indices[1:], inner)  # type: ignore[union-attr]
        return None

    def read(self, a: Atom, frame: Frame | None) -> set[Var]:
        """The variables outside of all frames that an atom is made of."""
        found: set[Var] = set()
        seen: set[Place] = set()
        todo: list[Place] = [(a, frame)]
        while todo:
            a, frame = todo.pop()
            mine = owner(a, frame)
            if (a, mine) in seen:
                continue
            seen.add((a, mine))
            if mine is None:
                found |= {a} if type(a) is Var else set()
            elif a is not mine.loop.index:
                todo += ((v, mine) for v in reads(mine.binds[a]))  # type: ignore[index]
            elif mine.at is not None:
                todo.append(mine.at)
        return found

    def value(self, a: Atom, frame: Frame | None, known: dict[Place, Atom] | None = None) -> Atom:
        """An atom of an iteration, made in the loop that is being built; ``known``: what has been made for it."""
        mine = owner(a, frame)
        if mine is None:
            return self.atom(a)
        known = {} if known is None else known
        if a is mine.loop.index:
            return self.at if mine.at is None else self.value(*mine.at, known)  # type: ignore[return-value]
        if (a, mine) in known:
            return known[a, mine]
        x = mine.binds[a]  # type: ignore[index]
        needed = {v: self.value(v, mine, known) for v in reads(x)}
        before = {v: self.here.get(v) for v in (*needed, *x.vars)}
        self.here.update(needed)
        seeing, self.seeing = self.seeing, True
        self.line(x)
        self.seeing = seeing
        made = known[a, mine] = self.here[a]  # type: ignore[index]
        for v, was in before.items():
            if was is None:
                del self.here[v]
            else:
                self.here[v] = was
        return made
