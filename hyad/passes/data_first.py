"""Hessians of sums over data: the loop over the data outside, those over the directions of the derivative inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import (
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    blocks_of,
    count_uses,
    defined_in,
    free_vars,
    given,
    reads,
    substitute,
    with_blocks,
)
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks
from ..program.loops import calls_in, slice_of
from ..program.rebuild import Rebuild, rebuilt
from .nests import additions


def outside(program: Program) -> Program:
    """Goes once through the data for all directions of a derivative, where each would call the same functions again.

    ``(build d (fn [j] (ifold (fn [row i] (add-at row k (* (exp (f i)) (g i j k)))) (zeros d) n)))``  =>
    ``(ifold (fn [m i] (let [e (exp (f i))] (ifold (fn [m j] (add-at m j k (* e (g i j k)))) m d))) (zeros [d d]) n)``.
    Design decision: of loops over directions alone, whose results are made of zeros by additions and nothing else, so
    that each element's terms keep their order; and where a call does not depend on the direction. A table of what it
    gives might be larger than all that the program reads. Not where less than such a row is wanted of each direction,
    as of a trace: the matrix would be there for that alone.
    """
    while any(map(takes, [x.op for x in all_binds(program.body)])):
        pass_ = DataFirst(Builder())
        made = rebuilt(program, pass_)
        if not pass_.found:
            break
        program = dead_code(made)
    return program


class Part(NamedTuple):
    """What a loop computes that no direction changes: as a loop of its own, which gives the results ``own`` of the
    whole one, and the numbers ``extra`` of its iterations, in tables."""

    own: tuple[int, ...]
    extra: tuple[Var, ...]
    bind: Bind


class Nest(NamedTuple):
    """A fold over data in a loop over directions: ``before`` and ``after`` it what is computed in each direction,
    ``same`` in an iteration what is so in all; ``parts`` of its loops that are, of which other parts are not."""

    before: tuple[Bind, ...]
    after: tuple[Bind, ...]
    fold: Bind
    same: tuple[Bind, ...]
    rest: tuple[Bind, ...]
    parts: dict[Loop, Part]


def takes(op: object) -> bool:
    return type(op) is Loop and nest_of(op) is not None


def nest_of(op: Loop) -> Nest | None:
    """A loop over directions as one over a fold, where that has calls that are the same in all of them."""
    if not op.index.soft or op.accs or len(op.body.results) != 1 or has_checks(op.body):
        return None
    at = next((k for k, x in enumerate(op.body.binds) if type(x.op) is not Prim and not makes_rows(x)), None)
    if at is None or type(op.body.binds[at].op) is not Loop:
        return None
    before, last, after = op.body.binds[:at], op.body.binds[at], op.body.binds[at + 1 :]
    fold: Loop = last.op  # type: ignore[assignment]
    makers = [x for x in before if type(x.op) is Loop]
    if makers:
        whole = in_one(makers, fold, after)
        if whole is None:
            return None
        fold = whole
        before, last = tuple(x for x in before if type(x.op) is Prim), Bind(last.vars, fold, last.span)
    if len(fold.accs) != 1 or len(last.vars) != 1 or fold.snapshots is not None:
        return None
    if fold.count in {op.index, *defined_in(op.body)} or not isinstance(fold.accs[0].type, Arr):
        return None
    result, row = op.body.results[0].type, fold.accs[0].type
    if not isinstance(result, Arr) or len(result.dims) < len(row.dims):
        return None
    zeros = next((x for x in before if x.vars[0] is fold.inits[0]), None)
    if zeros is None or zeros.op.name != "zeros" or count_uses(op.body, zeros.vars[0]) != 1:  # type: ignore[union-attr]
        return None
    before = tuple(x for x in before if x is not zeros)
    moving = {op.index, fold.accs[0], *(v for x in before for v in x.vars)}
    same, rest, parts = [], [], {}
    for x in fold.body.binds:
        if moving.isdisjoint(reads(x)):
            same.append(x)
            continue
        rest.append(x)
        part = unmoved(x, x.op, moving) if type(x.op) is Loop else None
        if part is not None:
            parts[x.op] = part
            same.append(part.bind)
        moving.update(v for k, v in enumerate(x.vars) if part is None or k not in part.own)
    if not calls_in(Block(tuple(same), ())) or additions(fold.body, fold.accs[0], fold.body.results[0]) is None:
        return None
    return Nest(before, after, last, tuple(same), tuple(rest), parts)


def makes_rows(bind: Bind) -> bool:
    """Whether a loop stacks what each iteration makes, and nothing else."""
    return type(bind.op) is Loop and not bind.op.accs and bind.op.snapshots is None and not bind.op.index.soft


def in_one(makers: Sequence[Bind], fold: Loop, after: Sequence[Bind]) -> Loop | None:
    """A fold that makes itself what other loops make for each of its iterations; None where it reads anything else of
    them, or others do."""
    rows: dict[Var, Atom] = {}  # by array: what it has for an iteration
    index, binds, results = fold.index, [], {v for x in makers for v in x.vars}
    for x in (*makers, Bind((), fold)):
        loop: Loop = x.op  # type: ignore[assignment]
        if loop.count != fold.count:
            return None
        body = substitute(loop.body, {loop.index: index}) if loop.index is not index else loop.body
        made = rows_read(body, rows, index)
        if any(v in results for v in (*free_vars(made), *loop.inits)):
            return None
        binds += made.binds
        rows.update(zip(x.vars, made.results))
    if any(v in results for x in after for v in reads(x)):
        return None
    return Loop(fold.count, index, fold.inits, fold.accs, Block(tuple(binds), made.results))


def rows_read(block: Block, rows: Mapping[Var, Atom], index: Var) -> Block:
    """A block that reads rows where it reads the elements of arrays at an index."""
    binds: list[Bind] = []
    table: dict[Var, Atom] = {}
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name == "get" and op.args[0] in rows and op.args[1] is index:
            if len(op.args) == 2:
                table[x.vars[0]] = rows[op.args[0]]  # type: ignore[index]
                continue
            op = Prim("get", (rows[op.args[0]], *op.args[2:]))  # type: ignore[index]
        elif blocks_of(op):
            op = with_blocks(op, [rows_read(b, rows, index) for b in blocks_of(op)])
        binds.append(x if op is x.op else Bind(x.vars, op, x.span, x.soft))
    made = Block(tuple(binds), block.results)
    return substitute(made, table) if table else made


def unmoved(bind: Bind, op: Loop, moving: set[Var]) -> Part | None:
    """The part of a loop that reads nothing that moves."""
    if op.count in moving or op.snapshots is not None:
        return None
    moved = {a for a, z in zip(op.accs, op.inits) if z in moving}
    while True:
        inner = moving | moved
        for x in op.body.binds:
            if not inner.isdisjoint(reads(x)):
                inner.update(x.vars)
        more = {a for a, r in zip(op.accs, op.body.results) if r in inner} - moved
        if not more:
            break
        moved |= more
    width = len(op.accs)
    own = [k for k, r in enumerate(op.body.results) if r not in inner and (k >= width or op.accs[k] not in moved)]
    if not all(isinstance(op.body.results[k].type, Scalar) for k in own):
        return None
    stacked = {op.body.results[k] for k in own if k >= width}
    wanted = {a for x in op.body.binds if not inner.isdisjoint(x.vars) for a in reads(x)}
    extra = [v for x in op.body.binds for v in x.vars if v in wanted and v not in inner and v not in stacked]
    extra = [v for v in extra if v.type == REAL and calls_in(slice_of(op.body, [v]))]
    if not own and not extra:
        return None
    accs = [k for k in own if k < width]
    body = slice_of(op.body, [*(op.body.results[k] for k in own), *extra])
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), body)
    tables = tuple(Var(v.name, Arr(REAL, (op.count,)), v.span) for v in extra)
    return Part(tuple(own), tuple(extra), Bind((*(bind.vars[k] for k in own), *tables), loop, bind.span))


class DataFirst(Rebuild):
    """``outside``, of the innermost loops that are to be changed."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False
        self.rows: set[Var] = set()  # arrays that have become rows of a matrix
        self.row: Atom | None = None
        self.parts: dict[Loop, Part] = {}

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        nest = nest_of(op) if self.row is None else None
        if nest is not None:
            return self.turned(op, bind, nest)
        if self.row is not None:
            self.rows.update(a for a, z in zip(op.accs, op.inits) if z in self.rows)
            self.rows.update(v for v, z in zip(bind.vars, op.inits) if z in self.rows)
            if op in self.parts:
                return self.other_part(op, bind)
        return super().loop(op, bind)

    def other_part(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        """What is left of a loop of which a part has been made, whose numbers are read."""
        b, part, width = self.b, self.parts[op], len(op.accs)
        stacked = [k for k in part.own if k >= width]
        tables = {op.body.results[k]: self.here[bind.vars[k]] for k in stacked}
        tables.update((v, self.here[t]) for v, t in zip(part.extra, part.bind.vars[len(part.own) :]))

        def body(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            for x in op.body.binds:
                if x.vars and x.vars[0] in tables:
                    self.here[x.vars[0]] = b.get(tables[x.vars[0]], i)
                else:
                    self.line(x)
            results = self.atoms(op.body.results)
            return results[:width], [r for k, r in enumerate(results) if k >= width and k not in part.own]

        made = {k: self.here[bind.vars[k]] for k in part.own}
        names = [v.name for k, v in enumerate(bind.vars) if k < width or k not in part.own]
        accs = [a.name for a in op.accs]
        out = iter(b.loop(self.atom(op.count), self.atoms(op.inits), body, names, op.index.name, accs, pruned=True))
        found = [next(out) if k < width or k not in part.own else made[k] for k in range(len(bind.vars))]
        return [made.get(k, x) for k, x in enumerate(found)]

    def prim(self, op: Prim, var: Var) -> Atom:
        if op.name != "add-at" or op.args[0] not in self.rows:
            return super().prim(op, var)
        self.rows.add(var)
        array, *places, value = self.atoms(op.args)
        return self.b.add_at(array, (self.row, *places), value, var.name)  # type: ignore[arg-type]

    def turned(self, op: Loop, bind: Bind, nest: Nest) -> Sequence[Atom]:
        b, fold = self.b, nest.fold.op
        self.found = True
        b.fired("data-first")
        count, (acc,), self.parts = self.atom(op.count), fold.accs, nest.parts  # type: ignore[union-attr]
        t = self.type(acc.type)
        whole = b.zeros(Arr(t.elem, (count, *t.dims)), bind.vars[0].name)  # type: ignore[union-attr]

        def iteration(i: Atom, m: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[fold.index] = i  # type: ignore[union-attr]
            for x in nest.same:
                self.line(x)

            def direction(j: Atom, m: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
                self.here[op.index], self.here[acc], self.row = j, m, j
                self.rows = {acc}
                for x in (*nest.before, *nest.rest):
                    self.line(x)
                self.row = None
                return self.atoms(fold.body.results), ()  # type: ignore[union-attr]

            return b.loop(count, [m], direction, [acc.name], op.index.name, [acc.name], soft=True), ()

        index = fold.index.name  # type: ignore[union-attr]
        names = [nest.fold.vars[0].name]
        (made,) = b.loop(self.atom(fold.count), [whole], iteration, names, index, [acc.name], given(nest.fold))  # type: ignore
        if op.body.results == nest.fold.vars:
            return [made]

        def rest(j: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[op.index] = j
            for x in nest.before:
                self.line(x)
            self.here[nest.fold.vars[0]] = b.get(made, j)
            for x in nest.after:
                self.line(x)
            return (), self.atoms(op.body.results)

        return b.loop(count, (), rest, [v.name for v in bind.vars], op.index.name, (), given(bind), soft=True)
