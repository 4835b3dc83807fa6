"""Loops that stack a whole array, of which only a row is read, or a few: they stack these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Op,
    Prim,
    Program,
    Type,
    Var,
    While,
    all_binds,
    blocks_of,
    with_blocks,
    with_body,
)
from ..program.affine import affine_add, affine_in
from ..program.loops import array_uses

MOST = 4  # rows side by side


def narrow(program: Program) -> Program:
    """Stacks only the row that is read of an array, or the few side by side, not the whole array.

    ``(loop n (fn [i a] .. [a' a]) z) .. (get s k k j)``  =>  ``(loop n (fn [i a] (let [r (get a i)] .. [a' r])) z) ..
    (get s k j)``, where s is what was stacked of a, and nothing else is read of it.
    Design decision: last. What the backward code reads of a state shows when its loops are made: one that goes through
    the rows of its state would remember the square of it. And no other pass is to find that the row is a copy.
    """
    while (found := Narrow(program).block()) is not None:
        program = with_body(program, found)
    return program


@dataclass(frozen=True, slots=True)
class Level:
    """A loop that stacks, as its result ``k``, what the level inside of it gives."""

    bind: Bind
    k: int

    @property
    def index(self) -> Var | None:
        return self.bind.op.index if type(self.bind.op) is Loop else None

    @property
    def stack(self) -> Var:
        return stacks(self.bind)[self.k]


def stacks(bind: Bind) -> dict[int, Var]:
    """What a loop stacks, by the place among its body's results."""
    op = bind.op
    if type(op) not in (Loop, While):
        return {}
    width, shift = len(op.accs), type(op) is While  # type: ignore[union-attr]
    return {k: bind.vars[k + shift] for k in range(width, len(op.body.results))}  # type: ignore[union-attr]


class Narrow:
    """One step: the first array of which a row is read alone, or a few that lie side by side. ``row`` is the subscript
    of the first one, as far as it is from the index of the level ``along`` (None: from 0); ``rows`` how many there
    are."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = array_uses(program.body)
        self.integers = {
            b.vars[0]: b.op for b in all_binds(program.body) if type(b.op) is Prim and b.vars[0].type == INT
        }
        self.levels: list[Level] = []
        self.along: Level | None = None
        self.row, self.rows = 0, 1

    def block(self) -> Block | None:
        """The program's body with one stack made narrower; None where there is none left."""
        for bind in all_binds(self.program.body):
            for k, s in stacks(bind).items():
                if isinstance(s.type, Arr) and s.type.rank > 1 and self.found(Level(bind, k)):
                    return self.rewritten()
        return None

    def found(self, top: Level) -> bool:
        uses = self.uses.get(top.stack, [])
        if not uses or any(u.subscripts is None for u in uses):
            return False
        self.levels = [top]
        while (inner := self.inside(self.levels[-1])) is not None:
            self.levels.append(inner)
        last = self.levels[-1]
        r = last.bind.op.body.results[last.k]  # type: ignore[union-attr]
        depth = len(self.levels)
        if type(r) is not Var or not isinstance(r.type, Arr) or any(len(u.subscripts) <= depth for u in uses):  # type: ignore[arg-type]
            return False
        if not self.here(last, r):
            return False
        fewest = MOST + 1
        for level in (*reversed(self.levels), None):
            if level is not None and level.index is None:
                continue
            before = self.along, self.row, self.rows
            self.along = level
            at = [self.distance(u.subscripts) for u in uses]  # type: ignore[arg-type]
            if None not in at:
                self.row, self.rows = min(at), max(at) - min(at) + 1  # type: ignore[type-var, operator, assignment]
            if None not in at and self.rows < fewest and self.in_range(r):
                fewest = self.rows
            else:
                self.along, self.row, self.rows = before
        return fewest <= MOST

    def distance(self, subscripts: Sequence[Atom]) -> int | None:
        """How far the row that is read is from the index of the level ``along``; None where that is not one number."""
        at = affine_in(subscripts[len(self.levels)], self.integers)
        if self.along is not None:
            at = affine_add(at, affine_in(subscripts[self.levels.index(self.along)], self.integers), -1)
        return None if at[1] else at[0]

    def inside(self, level: Level) -> Level | None:
        """The loop in the body of another whose stack that one stacks, and nothing else reads."""
        body = level.bind.op.body  # type: ignore[union-attr]
        r = body.results[level.k]
        if type(r) is not Var or len(self.uses.get(r, [])) != 1:
            return None
        for bind in body.binds:
            for k, s in stacks(bind).items():
                if s is r:
                    return Level(bind, k)
        return None

    def here(self, level: Level, r: Var) -> bool:
        """Whether an array is an accumulator of a loop, or made in its body."""
        op = level.bind.op
        return r in op.accs or any(r in bind.vars for bind in op.body.binds)  # type: ignore[union-attr]

    def in_range(self, r: Var) -> bool:
        """Whether each iteration has the row."""
        size = r.type.dims[0]  # type: ignore[union-attr]
        if self.row < 0:
            return False
        if type(size) is Const and size.value <= self.rows:
            return False
        last = self.row + self.rows - 1
        if self.along is None:
            return type(size) is Const and last < size.value
        count = self.along.bind.op.count  # type: ignore[union-attr]
        made = self.integers.get(count)  # type: ignore[call-overload]
        if made is not None and made.name == "max" and made.args[0] == Const(0, INT):
            count = made.args[1]  # if it runs at all
        constant, terms = affine_add(affine_in(size, self.integers), affine_in(count, self.integers), -1)
        return not terms and constant >= last

    # ------------------------------------------------------------------------------------------ rewriting

    def rewritten(self) -> Block:
        """All that is between the loop that has the array and the reads of its rows."""
        self.new: dict[Var, Var] = {}
        depth = len(self.levels)
        for n, level in enumerate(self.levels):
            s = level.stack
            t = s.type
            rows = (Const(self.rows, INT),) if self.rows > 1 else ()
            dims = (*t.dims[: depth - n], *rows, *t.dims[depth - n + 1 :])  # type: ignore[union-attr]
            self.new[s] = Var(s.name, Arr(t.elem, dims), s.span, s.given)  # type: ignore[union-attr]
        return self.walk(self.program.body)

    def walk(self, block: Block) -> Block:
        top, last, depth = self.levels[0].stack, self.levels[-1], len(self.levels)
        binds: list[Bind] = []
        changed = False
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim:
                if op.name == "get" and op.args[0] is top:
                    row = self.distance(op.args[1:]) if self.rows > 1 else None
                    at = () if row is None else (Const(row - self.row, INT),)
                    args = (self.new[top], *op.args[1 : depth + 1], *at, *op.args[depth + 2 :])
                    bind = Bind(bind.vars, Prim("get", args), bind.span)
            elif regions := blocks_of(op):
                made = [self.walk(region) for region in regions]
                if bind is last.bind:
                    made[-1] = self.stacking(made[-1], op.accs)  # type: ignore[union-attr]
                vars = tuple(self.new.get(v, v) for v in bind.vars)
                if vars != bind.vars or any(a is not b for a, b in zip(made, regions)):
                    bind = Bind(vars, with_blocks(op, made), bind.span)
            changed |= bind is not block.binds[len(binds)]
            binds.append(bind)
        results = tuple(self.new.get(r, r) if type(r) is Var else r for r in block.results)
        return Block(tuple(binds), results) if changed or results != block.results else block

    def copy(self, r: Var, at: tuple[Atom, ...]) -> Op:
        """A number of an array, or a copy of a row: a row itself would have to be kept from changes until the end."""
        t = r.type.item(len(at))  # type: ignore[union-attr]
        if not isinstance(t, Arr):
            return Prim("get", (r, *at))
        index, item = Var("i", INT, r.span), Var(r.name, t.item(), r.span, r.given)
        bind = Bind((item,), self.copy(r, (*at, index)), self.levels[-1].bind.span)
        return Loop(t.dims[0], index, (), (), Block((bind,), (item,)))

    def place(self, binds: list[Bind], row: Atom) -> Atom:
        """The subscript of a row that is ``row`` from the one that ``along`` tells."""
        if self.along is None or row == Const(0, INT):
            return row if self.along is None else self.along.index  # type: ignore[return-value]
        at = Var("i", INT, self.levels[-1].bind.span)
        binds.append(Bind((at,), Prim("+", (self.along.index, row)), at.span))  # type: ignore[arg-type]
        return at

    def stacking(self, body: Block, accs: Sequence[Var]) -> Block:
        """A loop's body that gives the row; it is read where the array is made, before anything changes it."""
        k, span = self.levels[-1].k, self.levels[-1].bind.span
        r = body.results[k]
        assert type(r) is Var and isinstance(r.type, Arr)
        first: list[Bind] = []
        item: Type = r.type.item()
        if self.rows == 1:
            op = self.copy(r, (self.place(first, Const(self.row, INT)),))
        else:
            j, inner = Var("i", INT, span), []
            at: Atom = j
            if self.row:
                at = Var("i", INT, span)
                inner.append(Bind((at,), Prim("+", (j, Const(self.row, INT))), span))
            one = Var(r.name, item, span, r.given)
            inner.append(Bind((one,), self.copy(r, (self.place(inner, at),)), span))
            op = Loop(Const(self.rows, INT), j, (), (), Block(tuple(inner), (one,)))
            item = Arr(r.type.elem, (Const(self.rows, INT), *(item.dims if isinstance(item, Arr) else ())))
        row = Var(r.name, item, r.span, r.given)
        first.append(Bind((row,), op, span))
        where = 0 if r in accs else next(n + 1 for n, bind in enumerate(body.binds) if r in bind.vars)
        results = (*body.results[:k], row, *body.results[k + 1 :])
        return Block((*body.binds[:where], *first, *body.binds[where:]), results)
