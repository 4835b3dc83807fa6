"""Calls of the C library whose results stand in an array: of each of its elements, made of those of another one."""

from __future__ import annotations

from collections import Counter

from ..core import REAL, Arr, Atom, Bind, Block, Const, Loop, Prim, Program, Var, all_binds, defined_in, same
from ..program.builder import Builder
from ..program.loops import CALL, calls_in, loops_of
from ..program.primitives import PRIMITIVES, price_of
from ..program.rebuild import Rebuild, rebuilt

DEEP = 4  # operations between a call and the elements that it is made of

#: What a number is made of: a primitive and such, the element of an array, or an atom.
Key = tuple


def at_hand(program: Program) -> Program:
    """Reads what a call gives where an array of such results is there: of the elements of the same arrays.

    ``s = (map sin p)``, ``c = (map cos p)``, then ``(cos (get p i))``, as the derivative of ``s`` has it  =>
    ``(get c i)``.
    Design decision: while each array has a loop of its own; those that nothing else reads are made where they are read
    afterwards, and no call is made for them then.
    """
    calls = calls_in(program.body)
    names = Counter(x.op.name for x in calls)  # type: ignore[union-attr]
    again = {x.vars[0] for x in calls if names[x.op.name] > 1}  # type: ignore[union-attr]
    stacked = again and any(not again.isdisjoint(loop.body.results) for loop in loops_of(program) if not loop.accs)
    return rebuilt(program, AtHand(Builder(), program.body)) if stacked else program


def called(bind: Bind) -> bool:
    """Whether a binding is a number that costs as much as a call."""
    op = bind.op
    return type(op) is Prim and op.name in PRIMITIVES and bind.vars[0].type == REAL and price_of(op) >= CALL


class AtHand(Rebuild):
    """``at_hand`` for a block. ``tables``: the arrays, in the new program, by what their elements are made of."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.made = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim}
        self.tables: dict[Key, Var] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and self.tables and called(bind):
            at: list[tuple[Atom, ...]] = []
            table = self.tables.get(self.key(op, at, DEEP))
            if table is not None and any(table in scope.vars for scope in self.b.scopes):
                self.b.fired("at-hand")
                self.here[bind.vars[0]] = self.b.get(table, *self.atoms(at[0]), hint=bind.vars[0].name)
                return
        self.copy(bind)
        if type(op) is Loop and not op.accs and op.snapshots is None:
            for k, v in enumerate(bind.vars):
                self.note(v, op, k)

    def note(self, v: Var, op: Loop, k: int) -> None:
        """Note an array of calls' results, each of elements at its own place."""
        counts, indices, inside = [op.count], [op.index], {op.index, *defined_in(op.body)}
        r = op.body.results[k]
        while isinstance(getattr(r, "type", None), Arr):
            inner = next((x for x in op.body.binds if r in x.vars), None)
            if inner is None or type(inner.op) is not Loop or inner.op.accs:
                return
            r, op = inner.op.body.results[inner.vars.index(r)], inner.op  # type: ignore[arg-type]
            counts.append(op.count)
            indices.append(op.index)
        made = next((x for x in op.body.binds if r in x.vars), None)
        array = self.here[v]
        if made is None or not called(made) or type(array) is not Var:
            return
        at: list[tuple[Atom, ...]] = []
        key = self.key(made.op, at, DEEP, inside)  # type: ignore[arg-type]
        if key is not None and at[0] == tuple(indices) and all(map(same, self.of_elements(key), self.atoms(counts))):
            self.tables.setdefault(key, array)

    @staticmethod
    def of_elements(key: Key) -> tuple[Atom, ...]:
        """The sizes of the first array that a number is made of elements of."""
        todo = [key]
        while todo:
            name, *parts = todo.pop()
            if name == "element":
                return parts[0].type.dims
            todo += [x for x in reversed(parts) if type(x) is tuple]
        return ()

    def key(self, op: Prim, at: list[tuple[Atom, ...]], deep: int, inside: set[Var] | None = None) -> Key | None:
        """What a number is made of, of elements at one place, which ``at`` gets; None for others. ``inside``: variables
        of the loops around, of which nothing but these elements may be made."""
        parts: list[object] = []
        for a in op.args:
            found = self.made.get(a) if type(a) is Var else None
            places: list[tuple[Atom, ...]] = []
            part: object = None
            if type(a) is Const:
                part = (a.type, repr(a.value))
            elif found is not None and found.name == "get":
                array, place = self.element(found)
                if len(place) == self.atom(array).type.rank:  # type: ignore[union-attr]
                    places, part = [place], ("element", self.atom(array))
            elif found is not None and deep and found.name in PRIMITIVES:
                part = self.key(found, places, deep - 1, inside)
            if not places and type(a) is Var:  # not made of elements: as it is
                part = self.atom(a) if inside is None or a not in inside else None
            if part is None or places and at and at[0] != places[0]:
                return None
            at += places[:1]
            parts.append(part)
        return (op.name, *parts) if at else None

    def element(self, op: Prim) -> tuple[Atom, tuple[Atom, ...]]:
        """The array, and the subscripts, of an element that is read of a row of it maybe."""
        array, *place = op.args
        while type(array) is Var and (row := self.made.get(array)) is not None and row.name == "get":
            array, place = row.args[0], [*row.args[1:], *place]
        return array, tuple(place)
