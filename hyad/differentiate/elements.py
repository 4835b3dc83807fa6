"""Hessians of sums over elements: the dense Hessian of each element's term, added to where it stands.

    (ifold (fn [e k] (+ e (energy (get x (get at k 0)) (get x (get at k 1))))) 0.0 n)

A function is *partially separable* (Griewank, Toint 1982) where it is a sum of terms that depend on few numbers each.
The terms of a fold are a row loop (``blocks``) with one number to a row, whose slots are those few: the term's Hessian
by its slots is a small dense block, as a finite element's matrix, and the Hessian of the sum is these blocks, each at
its slots' places in rows and columns. Several such sums, times numbers that nothing is differentiated by, are taken
together, and so is what stands beside them. ``elements`` makes the program that adds all blocks up in the order of a
pattern, and the one that says where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import (
    INT,
    ONE,
    REAL,
    ZERO,
    Arr,
    Atom,
    Block,
    Const,
    If,
    Leaf,
    Loop,
    Node,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    free_vars,
    integer,
    is_zero,
    reads,
    type_of,
)
from ..frontend.specialise import Specialiser
from ..passes.optimise import expanded_size, optimise
from ..program.builder import Builder
from ..program.dead import dead_code, tidy
from ..program.rebuild import Rebuild, rebuild
from .activity import activity, differentiable
from .blocks import CELLS, PREPARE, WRITTEN_OUT, Group, Inline, Located, RowLoop, depending, position, row_loop
from .jacobians import forward_unrolled
from .reverse import vjp
from .tracing import Trace, cells

Factor = tuple[str, Atom]  # "*" or "/", and by what


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A loop over terms, and the factors that each of them has."""

    row: RowLoop
    factors: tuple[Factor, ...]


LESS: Factor = ("*", Const(-1.0, REAL))


class Other(Exception):  # noqa: N818
    """A number is no sum of terms."""


def elements(program: Program, wrt: Sequence[Var]) -> tuple[Program, Program, list[Group]] | None:
    """The program of a Hessian's numbers, the program of where the slots of each iteration stand, and for each loop
    what is in its blocks. The first takes, after the function's arguments, for each loop a matrix [iterations, kept] of
    where in the pattern each number of a block goes, and how many numbers that has.

    None where the function is no sum of terms that are small enough to be written out.
    """
    program = optimise(program, PREPARE)
    late = depending(program.body, wrt)
    program = dead_code(rebuild(program, lambda b: Inline(b, late)))
    (result,) = program.body.results
    if len(program.body.results) != 1 or type_of(result) != REAL:
        return None
    active = activity(program.body, {p: 1 for p in wrt if differentiable(p.type)})
    late = depending(program.body, wrt)
    try:
        found = Terms(program, active, late, dict.fromkeys(wrt)).of(result, ())
    except Other:
        return None
    if not found:
        return None
    places = program_of_places(program, found, late)
    numbers, groups = program_of_numbers(program, found, late)
    return numbers, places, groups


class Terms:
    """Takes a number apart into terms."""

    def __init__(self, program: Program, active: dict[Var, int], late: set[Atom], wrt: dict[Var, None]) -> None:
        self.program, self.active, self.late, self.wrt = program, active, late, wrt
        self.made = {v: (x, k) for x in program.body.binds for k, v in enumerate(x.vars)}
        self.outside = [x for x in program.body.binds if type(x.op) is not Loop and not late.isdisjoint(reads(x))]

    def of(self, a: Atom, factors: tuple[Factor, ...]) -> list[Term]:
        """The terms of a number times ``factors``; raises ``Other``."""
        if a not in self.active:
            return []
        bind, k = self.made.get(a, (None, 0))  # type: ignore[call-overload]
        op = bind.op if bind is not None else None
        if type(op) is Loop and k < len(op.accs):
            return self.sum(op, k, factors)
        if type(op) is Prim:
            moving = [x for x in op.args if x in self.active]
            if op.name in ("+", "-"):
                last = factors if op.name == "+" else (*factors, LESS)
                return [*self.of(op.args[0], factors), *self.of(op.args[1], last)]
            if op.name == "neg":
                return self.of(op.args[0], (*factors, LESS))
            if op.name == "*" and len(moving) == 1:
                (other,) = [x for x in op.args if x is not moving[0]] or [moving[0]]
                if other not in self.late and other is not moving[0]:
                    return self.of(moving[0], (*factors, ("*", other)))
            if op.name == "/" and op.args[1] not in self.late:
                return self.of(op.args[0], (*factors, ("/", op.args[1])))
        return [self.alone(a, factors)]

    def alone(self, a: Atom, factors: tuple[Factor, ...]) -> Term:
        """A number of few, as the one term of a loop."""
        block = tidy(Block(self.program.body.binds, (a,)))
        if any(type(x.op) is Loop and not self.late.isdisjoint(reads(x)) for x in block.binds):
            raise Other
        return self.term(Loop(Const(1, INT), Var("i", INT), (), (), Block((), (a,))), factors)

    def sum(self, op: Loop, k: int, factors: tuple[Factor, ...]) -> list[Term]:
        """The terms of a fold, and those that it starts from."""
        acc, result = op.accs[k], op.body.results[k]
        if acc.type != REAL or op.count in self.late or op.snapshots is not None:
            raise Other
        block = tidy(Block(op.body.binds, (result,)))
        if any(a is not acc and a in free_vars(block) for a in op.accs) or not adds(block, acc, result):
            raise Other
        b = Builder()
        copy = Rebuild(b)
        copy.here[acc] = Const(0.0, REAL, soft=True)
        term = copy.remade(block)
        loop = Loop(op.count, op.index, (), (), term)
        return [*self.of(op.inits[k], factors), self.term(loop, factors)]

    def term(self, loop: Loop, factors: tuple[Factor, ...]) -> Term:
        row = row_loop(loop, 0, self.outside, self.late, self.wrt)
        if row is None:
            raise Other
        size = sum(len(cells(s.var.type)) for s in row.slots)
        if size * size > CELLS or 2 * size * expanded_size(row.body) > WRITTEN_OUT:
            raise Other
        if any(type(x.op) is Loop for x in all_binds(row.body)):
            raise Other
        return Term(row, factors)


def adds(block: Block, acc: Atom, result: Atom) -> bool:
    """Whether a block gives a number that it is handed and something that is not made of it, added up."""
    sums: set[Atom] = {acc}
    for x in block.binds:
        op = x.op
        read = [a for a in reads(x) if a in sums]
        if not read:
            continue
        if type(op) is If and len(x.vars) == 1 and op.cond not in sums and len(set(read)) == 1:
            if not all(adds(arm, read[0], arm.results[0]) for arm in blocks_of(op)):
                return False
        elif type(op) is not Prim or len(read) > 1 or op.name != "+" and (op.name != "-" or op.args[1] in sums):
            return False
        sums.update(x.vars)
    return result in sums


def program_of_places(program: Program, terms: Sequence[Term], late: set[Atom]) -> Program:
    """For each loop the positions of its slots in their parameters, [iterations, slots]."""
    b, copy = started(program, late)
    results: list[Atom] = []
    for term in terms:
        row = term.row

        def body(i: Atom, row: RowLoop = row) -> Any:
            known(copy, row, i)
            return (), (b.array([position(b, s, copy) for s in row.slots]),)

        results += b.loop(copy.atom(row.loop.count), (), body, [f"places{len(results)}"], row.loop.index.name)
    out = Node((Leaf(),) * len(results)) if len(results) > 1 else Leaf()
    return dead_code(replace(program, body=Block(b.block(), tuple(results)), out=out, names=(), doc=None))


def program_of_numbers(program: Program, terms: Sequence[Term], late: set[Atom]) -> tuple[Program, list[Group]]:
    """The numbers of the pattern, and the blocks that are added up there."""
    b, copy = started(program, late)
    numbers = Var("numbers", INT)
    b.sizes.add(numbers)
    total: Atom = b.zeros(Arr(REAL, (numbers,)), "hessian")
    groups: list[Group] = []
    tables: list[Var] = []
    for term in terms:
        row = term.row

        def body(i: Atom, total: Atom, row: RowLoop = row, term: Term = term) -> Any:
            here = known(copy, row, i)
            here.update({s.var: b.get(copy.atom(s.source), *copy.atoms(s.indices)) for s in row.slots})
            group, values = block_of(b, row, here)
            size = Var(f"n{len(groups)}", INT)
            b.sizes.add(size)
            table = Var(f"places{len(groups)}", Arr(INT, (size, integer(len(values)))))
            groups.append(group)
            tables.append(table)
            for k, x in enumerate(values):
                for name, by in term.factors:
                    x = b.prim(name, x, copy.atom(by))
                total = b.add_at(total, (b.get(table, i, integer(k)),), x, "hessian")
            return [total], ()

        (total,) = b.loop(copy.atom(row.loop.count), [total], body, ["hessian"], row.loop.index.name, ["hessian"])
    made = replace(
        program,
        params=(*program.params, *tables, numbers),
        dims=(*program.dims, *(t.type.dims[0] for t in tables)),  # type: ignore[union-attr]
        ins=(*program.ins, *(Leaf() for _ in tables), Leaf()),
        body=Block(b.block(), (total,)),
        out=Leaf(),
        names=(),
        doc=None,
    )
    return dead_code(made), groups


def started(program: Program, late: set[Atom]) -> tuple[Builder, Rebuild]:
    """A new program that begins with what holds no derivative."""
    b = Builder()
    b.sizes.update(program.dims)
    copy = Rebuild(b)
    for bind in program.body.binds:
        if late.isdisjoint(reads(bind)):
            b.span = bind.span
            copy.bind(bind)
    return b, copy


def known(copy: Rebuild, row: RowLoop, i: Atom) -> dict[Var, Atom]:
    """What an iteration of a row loop computes before its slots are read."""
    copy.here[row.loop.index] = i
    for bind in row.known:
        copy.b.span = bind.span
        copy.bind(bind)
    return dict(copy.here)


def block_of(b: Builder, row: RowLoop, here: dict[Var, Atom]) -> tuple[Group, list[Atom]]:
    """The numbers of one term's Hessian that can be other than zero, row by row, and what they are."""
    sp = Specialiser()
    sp.b = b
    variables = [s.var for s in row.slots]
    with b.region() as scope:  # the gradient, as a block of the slots
        scope.vars.update(variables)
        _, bars = vjp(b, row.body, {**here, **{v: v for v in variables}}, lambda results: [ONE], variables)
    block = b.close(scope, bars)
    traced = Located(Trace(block, [variables], [[here[v] for v in variables]], [], [], Leaf()), here)
    _, blocks = forward_unrolled(sp, traced, False)
    columns = [(j, e) for j, v in enumerate(variables) for e in range(len(cells(v.type)))]
    values: list[Atom] = []
    kept: list[tuple[int, int]] = []
    upper: dict[tuple[int, int], Atom] = {}
    for r, (j, e) in enumerate(columns):
        for c, (k, f) in enumerate(columns):
            if c >= r:
                at = (*cells(variables[j].type)[e], *cells(variables[k].type)[f])
                whole = blocks[j * len(variables) + k]
                upper[r, c] = b.get(whole, *map(integer, at)) if at else whole
            found = upper[min(r, c), max(r, c)]
            if not is_zero(found):
                values.append(found)
                kept.append((r, c))
    if not kept:
        values, kept = [ZERO], [(0, 0)]
    return Group(0, len(columns), tuple(kept), tuple(columns), tuple(s.source for s in row.slots)), values
