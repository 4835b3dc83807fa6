"""Jacobians of row loops: a dense block for each iteration, no entry of it computed in vain.

    (build n (fn [i] (residual (get cameras (get camera i)) (get points (get point i)))))

A *row loop* has no accumulators, and its body reads numbers of the arguments at subscripts that do not depend on
reals: the *slots* of an iteration. The derivative of its body by its slots is a small dense block (of bundle
adjustment: two rows, and a column for each number of one camera, one point and one weight). So the Jacobian's entries
are one loop over such blocks, and their places another, over integers alone: rows of the blocks are rows of the
Jacobian, one after the other, and slots say which columns. Nothing is coloured, and no seed is multiplied.

``row_loops`` finds them, in a program in which arrays that row loops make for other loops are computed where they are
read (``Inline``); ``entries`` makes both programs. Where a result comes otherwise there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import (
    ZERO,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Leaf,
    Loop,
    Node,
    Prim,
    Program,
    Var,
    free_vars,
    integer,
    is_zero,
    reads,
    substitute,
    type_of,
)
from ..frontend.specialise import Specialiser
from ..passes.functions import inline, tail_calls, unused
from ..passes.optimise import expanded_size, fuse, optimise, unroll
from ..program.builder import Builder
from ..program.dead import dead_code, tidy
from ..program.rebuild import Rebuild, rebuild
from .activity import activity, differentiable
from .jacobians import extent, forward_unrolled, reverse_unrolled
from .tracing import Trace, cells

#: What makes one loop of each result, and single numbers of small arrays.
PREPARE = [dead_code, tail_calls, inline, unused, unroll, dead_code, fuse, dead_code]
#: Larger blocks, and blocks that take more operations, are not written out.
CELLS, WRITTEN_OUT = 1024, 10_000
#: Of arrays between, so many operations are computed again.
RECOMPUTED = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A number, or a row of numbers, of the parameter ``source``, read at ``indices``; ``var`` is it in the body."""

    var: Var
    source: Var
    indices: tuple[Atom, ...]

    @property
    def order(self) -> tuple:
        return tuple(i.value if type(i) is Const else -1 for i in self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class RowLoop:
    """A loop that stacks ``results``: its ``known`` bindings hold no derivative and come first, then slots are read,
    then ``body`` computes the results from them."""

    loop: Loop
    known: tuple[Bind, ...]
    slots: tuple[Slot, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The entries that one row loop gives to one result, as the programs of ``entries`` give them.

    ``kept`` are pairs of an element of the loop's rows (``cells`` to a row) and a column of the iteration's block;
    ``columns`` says of each column of the block which slot it is of and which element of it; ``sources`` the slots'
    parameters. ``result`` is the result's position.
    """

    result: int
    cells: int
    kept: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    sources: tuple[Var, ...]


def entries(program: Program, wrt: Sequence[Var]) -> tuple[Program, Program, list[Group]] | None:
    """The program of a Jacobian's entries, the program of where they stand, and what the results of both mean: for
    each group one array [iterations, kept] and one [iterations, slots], of the slots' positions in their parameters.

    None where a result is not of a row loop.
    """
    program = optimise(program, PREPARE)
    late = depending(program.body, wrt)
    program = dead_code(rebuild(program, lambda b: Inline(b, late)))
    active = activity(program.body, {p: 1 for p in wrt if differentiable(p.type)})
    late = depending(program.body, wrt)
    found = row_loops(program, active, late, dict.fromkeys(wrt))
    if not found:
        return None
    numbers, groups = program_of(program, found, late, numeric=True)
    places, _ = program_of(program, found, late, numeric=False)
    return numbers, places, groups


class Inline(Rebuild):
    """Reads of an array that a row loop made from ``late`` become what the loop's body gives there, computed again:
    a block then is of the arguments themselves, and what several iterations share is cheap beside its derivative.

    ``y = (build n (fn [i] (f (get x i)))); (get y (get at j))``  =>  ``(f (get x (get at j)))``.
    """

    def __init__(self, builder: Builder, late: set[Atom]) -> None:
        super().__init__(builder)
        self.late = late
        self.made: dict[Atom, tuple[Loop, int]] = {}
        self.room = RECOMPUTED

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and op.name == "get" and op.args[0] in self.made and self.room > 0:
            loop, column = self.made[op.args[0]]
            self.room -= expanded_size(loop.body)
            index, *rest = self.atoms(op.args[1:])
            self.here[loop.index] = index
            (row,) = self.block(tidy(Block(loop.body.binds, (loop.body.results[column],))))
            self.here[bind.vars[0]] = self.b.get(row, *rest)
            return
        self.copy(bind)
        if type(op) is Loop and not op.accs:
            self.made.update((v, (op, k)) for k, v in enumerate(bind.vars) if v in self.late)


def depending(block: Block, on: Iterable[Var]) -> set[Atom]:
    """All that a block's own bindings compute from some variables, with or without a derivative."""
    found: set[Atom] = set(on)
    for bind in block.binds:
        if not found.isdisjoint(reads(bind)):
            found.update(bind.vars)
    return found


def row_loops(
    program: Program, active: dict[Var, int], late: set[Atom], wrt: dict[Var, None]
) -> list[tuple[int, RowLoop]] | None:
    """For each result that depends on ``wrt``, its place and row loop."""
    made: dict[Atom, tuple[Bind, int]] = {}
    outside: list[Bind] = []  # numbers of the whole program that depend on ``wrt``: each row loop computes them itself
    for bind in program.body.binds:
        if type(bind.op) is Loop and not bind.op.accs:
            made.update({v: (bind, k) for k, v in enumerate(bind.vars)})
        elif not late.isdisjoint(reads(bind)):
            outside.append(bind)
    found = []
    for k, r in enumerate(program.body.results):
        if r not in active:
            continue
        if r not in made:
            return None
        bind, column = made[r]
        row = row_loop(bind.op, column, outside, late, wrt)  # type: ignore[arg-type]
        if row is None:
            return None
        found.append((k, row))
    return found


def row_loop(loop: Loop, column: int, outside: list[Bind], late: set[Atom], wrt: dict[Var, None]) -> RowLoop | None:
    """One result of a loop, taken apart; None where it reads what is no slot."""
    body = tidy(Block((*outside, *loop.body.binds), (loop.body.results[column],)))
    known: list[Bind] = []
    slots: list[Slot] = []
    left: list[Bind] = []
    moving: set[Atom] = set()  # what depends on slots
    for bind in body.binds:
        op = bind.op
        if type(op) is Prim and op.name == "get" and op.args[0] in wrt and moving.isdisjoint(op.args[1:]):
            slots.append(Slot(bind.vars[0], op.args[0], op.args[1:]))  # type: ignore[arg-type]
            moving.update(bind.vars)
        elif not moving.isdisjoint(reads(bind)) or not late.isdisjoint(reads(bind)):
            left.append(bind)
            moving.update(bind.vars)
        else:
            known.append(bind)
    block = Block(tuple(left), body.results)
    safe = {(bind.op.a, bind.op.b) for bind in known if type(bind.op) is Check and bind.op.relation == "in"}
    block = hoisted(block, slots, wrt, safe | {(loop.index, loop.count)})
    numbers = [w for w in wrt if not isinstance(w.type, Arr) and w in free_vars(block)]
    for w in numbers:
        slots.append(Slot(Var(w.name, w.type, w.span, w.given), w, ()))
        block = substitute(block, {w: slots[-1].var})
    free = free_vars(block)
    if any(v in late and v not in {s.var for s in slots} for v in free):
        return None
    order = {w: k for k, w in enumerate(wrt)}
    slots.sort(key=lambda s: (order[s.source], s.order))
    columns, rows = extent([s.var for s in slots]), extent(block.results)
    if columns is None or rows is None or not 0 < rows * columns <= CELLS:
        return None
    if min(rows, columns) * expanded_size(block) > WRITTEN_OUT:
        return None
    return RowLoop(loop, tuple(known), tuple(slots), block)


def hoisted(block: Block, slots: list[Slot], wrt: dict[Var, None], safe: set[tuple]) -> Block:
    """A body whose branches read slots, too, where that cannot fail outside of them: numbers of a row that the body
    reads anyway, and those at subscripts that are ``safe``, pairs of an index and the size that it is below."""
    rows = {(s.source, s.indices[:k]) for s in slots for k in range(len(s.indices) + 1)}
    known: dict[tuple, Var] = {(s.source, s.indices): s.var for s in slots}

    def inside(b: Block) -> Block:
        binds: list[Bind] = []
        table: dict[Var, Atom] = {}
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim and op.name == "get" and op.args[0] in wrt:
                source, indices = op.args[0], op.args[1:]
                lead = next((k for k, i in enumerate(indices) if type(i) is Const), len(indices))
                rest = zip(indices[lead:], source.type.dims[lead:])
                static = all(type(i) is Const and type(d) is Const for i, d in rest)
                checked = all(pair in safe for pair in zip(indices[:lead], source.type.dims))
                if static and (checked or (source, indices[:lead]) in rows):
                    key = (source, indices)
                    if key not in known:
                        v = bind.vars[0]
                        known[key] = Var(v.name, v.type, v.span, v.given)
                        slots.append(Slot(known[key], source, indices))  # type: ignore[arg-type]
                    table[bind.vars[0]] = known[key]
                    continue
            if type(op) is If:
                op = If(op.cond, inside(op.then), inside(op.orelse))
                bind = Bind(bind.vars, op, bind.span)
            binds.append(bind)
        made = Block(tuple(binds), b.results)
        return substitute(made, table) if table else made

    return inside(block)


def program_of(
    program: Program, rows: list[tuple[int, RowLoop]], late: set[Atom], numeric: bool
) -> tuple[Program, list[Group]]:
    """The entries (``numeric``) or their places, and the groups."""
    b = Builder()
    b.sizes.update(program.dims)
    copy = Rebuild(b)
    for bind in program.body.binds:  # what holds no derivative is computed as it was
        if late.isdisjoint(reads(bind)):
            b.span = bind.span
            copy.bind(bind)
    results: list[Atom] = []
    groups: list[Group] = []
    for k, row in rows:
        group: list[Group] = []

        def body(i: Atom, row: RowLoop = row, k: int = k, group: list[Group] = group) -> Any:
            copy.here[row.loop.index] = i
            for bind in row.known:
                b.span = bind.span
                copy.bind(bind)
            if not numeric:
                return (), (b.array([position(b, s, copy) for s in row.slots]),)
            here = dict(copy.here)
            here.update({s.var: b.get(copy.atom(s.source), *copy.atoms(s.indices)) for s in row.slots})
            made, values = derivative(b, row, here, k)
            group.append(made)
            return (), (b.array(values),)

        results += b.loop(copy.atom(row.loop.count), (), body, [f"entries{len(results)}"], row.loop.index.name)
        groups += group
    out = Node((Leaf(),) * len(results))
    made = replace(program, body=Block(b.block(), tuple(results)), out=out, names=(), doc=None)
    return dead_code(made), groups


def position(b: Builder, slot: Slot, copy: Rebuild) -> Atom:
    """Where a slot starts in its parameter, in numbers."""
    dims = slot.source.type.dims if isinstance(slot.source.type, Arr) else ()
    at: Atom = integer(0)
    for k, d in enumerate(dims):
        at = b.prim("*", at, copy.atom(d))
        if k < len(slot.indices):
            at = b.prim("+", at, copy.atom(slot.indices[k]))
    return at


def derivative(b: Builder, row: RowLoop, here: dict[Var, Atom], k: int) -> tuple[Group, list[Atom]]:
    """The numbers of one iteration's block that can be other than zero, row by row, and what they are."""
    sp = Specialiser()
    sp.b = b
    variables = [s.var for s in row.slots]
    traced = Trace(row.body, [variables], [[here[v] for v in variables]], [], [], Leaf())
    traced = Located(traced, here)
    (result,) = row.body.results
    count = len(cells(type_of(result)))
    columns = [(j, e) for j, v in enumerate(variables) for e in range(len(cells(v.type)))]
    if len(columns) <= count:
        _, blocks = forward_unrolled(sp, traced, False)
    else:
        _, blocks = reverse_unrolled(sp, traced)
    values, kept = [], []
    for o, cell in enumerate(cells(type_of(result))):
        for column, (j, e) in enumerate(columns):
            at = (*cell, *cells(variables[j].type)[e])
            found = b.get(blocks[j], *map(integer, at)) if at else blocks[j]
            if not is_zero(found):
                values.append(found)
                kept.append((o, column))
    if not kept:
        values, kept = [ZERO], [(0, 0)]
    return Group(k, count, tuple(kept), tuple(columns), tuple(s.source for s in row.slots)), values


class Located(Trace):
    """A trace of a part of the program at hand: ``here`` says what all that it reads is now."""

    __slots__ = ("place",)

    def __init__(self, traced: Trace, place: dict[Var, Atom]) -> None:
        super().__init__(traced.block, traced.params, traced.actuals, traced.trees, traced.fixed, traced.out)
        self.place = place

    @property
    def here(self) -> dict[Var, Atom]:
        return self.place
