"""Matrices of which nothing but the lower triangle is used are kept row by row without the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    integer,
    kinds_of,
    same,
    with_blocks,
    with_body,
)
from ..program.affine import affine_add, affine_in, with_factors
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.rebuild import Rebuild, rebuilt
from .nests import part_of
from .tables import affine_of, sums_in

#: A matrix that is known to have fewer rows is left as it is.
FEWEST = 16


def triangles(program: Program) -> Program:
    """Packs matrices of which only the lower triangle is used, without what is above it.

    ``q`` of size n x n, of which ``(get q r c)`` is read for c <= r alone  =>  n (n + 1) / 2 numbers, ``(get q (+ (//
    (* r (+ r 1)) 2) c))``. What is stored above the diagonal is not; what is read there of zeros is zero.

    Design decision: by rows, which stay neighbouring elements, and only where no innermost loop goes down a column.
    What may be above the diagonal takes a branch, and so stands in fewer loops than what is in the triangle.
    What is above the diagonal is not computed either, where that cannot fail.
    """
    if not any(candidate(v) for x in all_binds(program.body) for v in x.vars):
        return program
    apart = with_body(program, alone(program.body))
    families = Families(apart)
    if not families.alive():
        return program
    rebuilt(apart, Triangles(Builder(), families))  # which subscripts are in the triangle
    families.settle()
    if not families.alive():
        return program
    return rebuilt(apart, Triangles(Builder(), families))


def alone(block: Block) -> Block:
    """A block with loops of their own for matrices that loops stack beside something else, where no work is shared."""
    if Loop not in kinds_of(block):
        return block
    binds: list[Bind] = []
    for x in block.binds:
        op = x.op
        if type(op) is Loop and not op.accs and len(x.vars) > 1 and op.snapshots is None and not has_checks(op.body):
            own = [k for k, v in enumerate(x.vars) if candidate(v)]
            rest = [k for k in range(len(x.vars)) if k not in own]
            parts = [part_of(x, ks) for ks in (*([k] for k in own), rest) if ks]
            inside = [{id(y) for y in part.op.body.binds} for part in parts]  # type: ignore[union-attr]
            work = [y for y in op.body.binds if type(y.op) is not Prim or y.op.name != "get"]
            if own and all(sum(id(y) in part for part in inside) < 2 for y in work):
                binds += parts
                continue
        inner = blocks_of(op)
        binds.append(Bind(x.vars, with_blocks(op, list(map(alone, inner))), x.span, x.soft) if inner else x)
    return Block(tuple(binds), block.results)


def candidate(v: Var) -> bool:
    t = v.type
    if not isinstance(t, Arr) or t.rank < 2 or not same(t.dims[-1], t.dims[-2]):
        return False
    return type(t.dims[-1]) is Var or t.dims[-1].value >= FEWEST  # type: ignore[union-attr]


class Families:
    """The variables that are one matrix, from where it is made through all changes: whether it can be packed."""

    def __init__(self, program: Program) -> None:
        self.parents: dict[Var, Var] = {}
        self.bad: set[Var] = set()  # what cannot be packed; in the end those that stand for all of one matrix
        self.origins: dict[Var, str] = {}
        self.nests: dict[Bind, tuple[Loop, ...]] = {}  # builds inside one another that make a matrix
        self.sums = sums_in(program.body)
        self.settled = False
        self.depths: dict[Var, list[int]] = {}  # of the loops around what is in the triangle, and what may not be
        self.integers = {
            x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim and x.vars[0].type == INT
        }
        self.outermost = {*program.dims, *(v for x in program.body.binds for v in x.vars)}
        self.counts: dict[Atom, Atom] = {}  # of the loops around that no branch is between, by index
        self.everywhere: list[Atom] = []  # what is read in all places
        self.walk(program.body, None)
        self.spoil(program.body.results)
        count: dict[Var, list[str]] = {}
        for v, how in self.origins.items():
            count.setdefault(self.root(v), []).append(how)
        self.zeros = {v for v, how in count.items() if how == ["zeros"]}
        self.spoil(v for v in self.everywhere if self.root(v) not in self.zeros)  # type: ignore[arg-type]
        self.bad = {self.root(v) for v in self.parents if v in self.bad or len(count.get(self.root(v), ())) != 1}

    def root(self, v: Var) -> Var:
        while (up := self.parents.get(v, v)) is not v:
            self.parents[v] = self.parents[up]
            v = up
        return v

    def alive(self) -> bool:
        return any(self.root(v) not in self.bad for v in self.origins)

    def seen(self, v: Var, depth: int, inside: bool) -> None:
        depths = self.depths.setdefault(self.root(v), [0, 0])
        depths[not inside] = max(depths[not inside], depth)

    def settle(self) -> None:
        """What may be above the diagonal takes a branch, and so is to be done less often than the rest."""
        self.bad |= {v for v, (inside, other) in self.depths.items() if other >= inside}
        self.settled = True

    def has(self, v: Atom) -> bool:
        """Whether an array is, as far as is known, one that can be packed."""
        return type(v) is Var and v in self.parents and self.root(v) not in self.bad

    def one(self, *vars: Atom) -> None:
        """The arrays are one."""
        if not all(type(v) is Var and candidate(v) for v in vars):
            self.spoil(vars)
            return
        for v in vars:
            self.parents.setdefault(v, v)  # type: ignore[arg-type]
            self.parents[self.root(v)] = self.root(vars[0])  # type: ignore[arg-type]

    def spoil(self, atoms: Iterable[Atom]) -> None:
        for a in atoms:
            if type(a) is Var and candidate(a):
                self.parents.setdefault(a, a)
                self.bad.add(a)

    def walk(self, block: Block, index: Var | None) -> None:
        for x in block.binds:
            op = x.op
            if type(op) is Prim:
                self.prim(x, op, index)
            elif type(op) is Loop:
                nest = self.nest(x)
                if nest is not None:
                    self.one(x.vars[0])
                    self.origins[x.vars[0]] = "build"
                    self.nests[x] = nest
                    self.counts.update((loop.index, loop.count) for loop in nest)
                    for loop in nest[:-1]:
                        self.walk(Block(loop.body.binds[:-1], ()), loop.index)
                    self.walk(nest[-1].body, nest[-1].index)
                    continue
                width = len(op.accs)
                for group in zip(op.inits, op.accs, op.body.results, x.vars):
                    if isinstance(group[1].type, Arr):
                        self.one(*group)
                self.spoil((*x.vars[width:], *op.body.results[width:]))
                self.counts[op.index] = op.count
                self.walk(op.body, op.index)
            elif type(op) is If:
                for v, one, other in zip(x.vars, op.then.results, op.orelse.results):
                    if isinstance(v.type, Arr):
                        self.one(v, one, other)
                around, self.counts = self.counts, {}
                self.walk(op.then, index)
                self.walk(op.orelse, index)
                self.counts = around
            else:
                for y in (x, *(z for r in blocks_of(op) for z in all_binds(r))):
                    self.spoil((*atoms_of(y.op), *y.vars))
                for r in blocks_of(op):
                    self.spoil(r.results)

    def nest(self, bind: Bind) -> tuple[Loop, ...] | None:
        """Builds inside one another that make a matrix, and nothing else."""
        if len(bind.vars) != 1 or not candidate(bind.vars[0]):
            return None
        loops: list[Loop] = []
        rank = bind.vars[0].type.rank  # type: ignore[union-attr]
        while True:
            op = bind.op
            if type(op) is not Loop or op.accs or op.index.soft or op.snapshots is not None or len(bind.vars) != 1:
                return None
            loops.append(op)
            if len(loops) == rank:
                return tuple(loops)
            *before, bind = op.body.binds or (bind,)
            if op.body.results != bind.vars or any(type(x.op) is not Prim or arrays(x) for x in before):
                return None

    def prim(self, x: Bind, op: Prim, index: Var | None) -> None:
        v = x.vars[0]
        if op.name in ("zeros", "undef"):
            if candidate(v):
                self.one(v)
                self.origins[v] = op.name
        elif op.name in ("get", "update", "add-at") and candidate_atom(op.args[0]):
            base = op.args[0]
            at = op.args[1:] if op.name == "get" else op.args[1:-1]
            if len(at) != base.type.rank or self.down(at, index):  # type: ignore[union-attr]
                self.spoil((base, v, op.args[-1]))
            elif op.name == "get":
                self.one(base)
                if self.all_over(at):
                    self.everywhere.append(base)
            else:
                self.one(base, v)
                if self.all_over(at):
                    self.spoil((base,))
        else:
            self.spoil((*op.args, v))

    def all_over(self, at: Sequence[Atom]) -> bool:
        """Whether loops go to all columns, whichever row it is."""
        first, terms = with_factors(affine_in(at[-2], self.integers), self.integers)
        count = self.counts.get(at[-1])
        if count is None or at[-1] in terms or any(k < 0 or v not in self.counts for v, k in terms.items()):
            return False
        return type(count) is Const and count.value - 1 > first or count in self.outermost and first < FEWEST

    def down(self, at: Sequence[Atom], index: Var | None) -> bool:
        """Whether the innermost loop goes down a column."""
        row, column = (affine_of(a, self.sums, set(self.sums), set()) for a in at[-2:])
        if row is None or column is None:
            return True
        return index in row[1] and bool(affine_add(row, column, -1)[1])


def arrays(bind: Bind) -> bool:
    return any(isinstance(v.type, Arr) for v in bind.vars)


def candidate_atom(a: Atom) -> bool:
    return type(a) is Var and candidate(a)


class Triangles(Rebuild):
    """``triangles`` for a program: first to see which matrices are used in the triangle alone, then for these."""

    def __init__(self, builder: Builder, families: Families) -> None:
        super().__init__(builder)
        self.families = families
        self.depth = 0

    def below(self, at: Sequence[Atom]) -> bool:
        """Whether an element is in the triangle."""
        b = self.b
        return b.nonnegative(affine_add(b.affine(at[-2]), b.affine(at[-1]), -1))

    def packed(self, at: Sequence[Atom]) -> list[Atom]:
        b, row = self.b, at[-2]
        start = b.prim("//", b.prim("*", row, b.prim("+", row, integer(1))), integer(2))
        return [*at[:-2], b.prim("+", start, at[-1])]

    def whole(self, v: Var) -> Arr:
        """The type of a packed matrix."""
        b, t = self.b, self.type(v.type)
        assert isinstance(t, Arr)
        n = t.dims[-1]
        size = b.prim("//", b.prim("*", n, b.prim("+", n, integer(1))), integer(2))
        if type(size) is Var:
            b.sizes.add(size)
        return Arr(t.elem, (*t.dims[:-2], size))

    def prim(self, op: Prim, var: Var) -> Atom:
        families, b = self.families, self.b
        array = op.args[0] if op.name in ("get", "update", "add-at") else var
        if not families.has(array):
            return super().prim(op, var)
        if op.name in ("zeros", "undef"):
            if not families.settled:
                return super().prim(op, var)
            t = self.whole(var)
            return b.zeros(t, hint=var.name) if op.name == "zeros" else b.undef(t)
        args = self.atoms(op.args)
        at = args[1:] if op.name == "get" else args[1:-1]
        inside = self.below(at)
        if not families.settled:
            if not inside and not (op.name == "get" and families.root(array) in families.zeros):  # type: ignore
                families.bad.add(families.root(array))  # type: ignore[arg-type]
            families.seen(array, self.depth, inside)  # type: ignore[arg-type]
            return super().prim(op, var)
        if op.name == "update":
            return b.update(args[0], self.packed(at), args[-1], hint=var.name)
        if op.name == "add-at":
            return b.add_at(args[0], self.packed(at), args[-1], hint=var.name)
        if inside:
            return b.get(args[0], *self.packed(at), hint=var.name, given=var.given)
        there = b.prim(">=", *at[-2:])
        with b.branch_region(there, True) as scope:
            found = b.get(args[0], *self.packed(at), hint=var.name, given=var.given)
        with b.branch_region(there, False) as other:
            pass
        return b.if_(there, (scope, [found]), (other, [b.zeros(var.type)]), [var.name])[0]

    def bind(self, bind: Bind) -> None:
        nest = self.families.nests.get(bind)
        if nest is None or not self.families.settled or not self.families.has(bind.vars[0]):
            if nest is not None and self.families.has(bind.vars[0]) and has_checks(nest[-1].body):
                self.families.seen(bind.vars[0], self.depth + len(nest), False)
            self.depth += type(bind.op) is Loop
            self.copy(bind)
            self.depth -= type(bind.op) is Loop
            return
        array = self.b.undef(self.whole(bind.vars[0]))
        self.define(bind, [self.filled(array, nest, [], bind)])

    def filled(self, array: Atom, loops: Sequence[Loop], at: list[Atom], bind: Bind) -> Atom:
        """The loops of a build, which store what is in the triangle."""
        b, op = self.b, loops[0]
        name = bind.vars[0].name

        def body(i: Atom, array: Atom):
            self.here[op.index] = i
            if len(loops) > 1:
                self.block(Block(op.body.binds[:-1], ()))
                return [self.filled(array, loops[1:], [*at, i], bind)], ()
            (value,) = self.block(op.body)
            place = [*at, i]
            if self.below(place):
                return [b.update(array, self.packed(place), value, name)], ()
            there = b.prim(">=", *place[-2:])
            with b.branch_region(there, True) as scope:
                changed = b.update(array, self.packed(place), value, name)
            with b.branch_region(there, False) as other:
                pass
            return b.if_(there, (scope, [changed]), (other, [array]), [name]), ()

        span = b.span
        count = self.atom(op.count)
        if len(loops) == 1 and not has_checks(op.body):  # what is above the diagonal cannot fail, and nobody asks
            count = b.prim("+", at[-1], integer(1))
            b.sizes.update([count] if type(count) is Var else ())
        (made,) = b.loop(count, [array], body, [name], op.index.name, [name], bind.vars[0].given)
        b.span = span
        return made
