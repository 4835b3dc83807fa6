"""Matrices of zeros that are changed and read along a few diagonals alone: these are all that is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..core import (
    INT,
    REAL,
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
    While,
    all_binds,
    atoms_of,
    blocks_of,
    type_of,
    with_blocks,
    with_body,
)
from ..program.affine import Affine, affine_add, affine_in

#: So many diagonals are taken for a full matrix.
WIDE = 100


def bands(program: Program) -> Program:
    """Keeps a few diagonals of a matrix, by rows, where nothing else is put into it or read of it.

    ``a = (ifold (fn [a i] (update a i (+ i 1) (f i))) (zeros [n n]) m) .. (get a k (+ k 1))``
    =>  ``a = (ifold (fn [a i] (update a i 0 (f i))) (zeros [n 1]) m) .. (get a k 0)``.
    Such are the matrices of finite elements, to which each element adds; and what reverse mode adds to the adjoint of a
    matrix of which a few diagonals are read.
    """
    zeros = [b for b in all_binds(program.body) if type(b.op) is Prim and b.op.name == "zeros" and is_matrix(b.vars[0])]
    return BandStorage(program).program_made() if zeros else program


def is_matrix(a: Atom) -> bool:
    t = type_of(a)
    return isinstance(t, Arr) and t.rank == 2 and t.elem == REAL


@dataclass(slots=True)
class Matrix:
    """A matrix in all its states: the variables that hold it, and how far to the right of the diagonal its elements
    are that are put or read; ``fits`` unless something else is done with it."""

    vars: list[Var]
    fits: bool = True
    made: bool = False  # zeros, somewhere
    low: float = float("inf")
    high: float = float("-inf")
    parent: Matrix | None = field(default=None, repr=False)


class BandStorage:
    """One program: what its matrices are, then the program with those of few diagonals kept as these."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.matrices: dict[Var, Matrix] = {}
        binds = list(all_binds(program.body))
        self.integers = {b.vars[0]: b.op for b in binds if type(b.op) is Prim and b.vars[0].type == INT}
        self.last = {
            b.op.index: b.op.count.value - 1 for b in binds if type(b.op) is Loop and type(b.op.count) is Const
        }
        self.new: dict[Var, Var] = {}
        self.lows: dict[Var, int] = {}

    def program_made(self) -> Program:
        self.look(self.program.body)
        for a in (*self.program.body.results, *self.program.params):
            self.other(a)
        for m in {id(m): m for m in map(self.root, list(self.matrices.values()))}.values():
            if m.fits and m.made and m.low <= m.high and few(m):
                for v in m.vars:
                    t = v.type
                    width = Const(int(m.high - m.low) + 1, INT)
                    self.new[v] = Var(v.name, Arr(t.elem, (t.dims[0], width)), v.span, v.given)  # type: ignore[union-attr]
                    self.lows[v] = int(m.low)
        return with_body(self.program, self.block(self.program.body)) if self.new else self.program

    # ------------------------------------------------------------------------------------------ what is done with them

    def of(self, a: Atom) -> Matrix | None:
        """The matrix that a variable holds."""
        if type(a) is not Var or not is_matrix(a):
            return None
        if a not in self.matrices:
            self.matrices[a] = Matrix([a])
        return self.root(self.matrices[a])

    @staticmethod
    def root(m: Matrix) -> Matrix:
        while m.parent is not None:
            m = m.parent
        return m

    def same(self, a: Atom, b: Atom) -> None:
        """Two variables hold one matrix, one after the other."""
        x, y = self.of(a), self.of(b)
        if x is None or y is None or x is y:
            return
        x.vars += y.vars
        x.fits, x.made = x.fits and y.fits, x.made or y.made
        x.low, x.high = min(x.low, y.low), max(x.high, y.high)
        y.parent = x

    def other(self, a: Atom) -> None:
        """Something else is done with a matrix."""
        m = self.of(a)
        if m is not None:
            m.fits = False

    def touched(self, a: Atom, row: Atom, column: Atom) -> None:
        """An element is put into a matrix, or read of it."""
        m = self.of(a)
        if m is None:
            return
        constant, terms = self.gap(row, column)
        low: float = constant
        high: float = constant
        for v, k in terms.items():
            if v not in self.last:
                m.fits = False
                return
            low, high = low + min(0, k * self.last[v]), high + max(0, k * self.last[v])
        m.low, m.high = min(m.low, low), max(m.high, high)

    def gap(self, row: Atom, column: Atom) -> Affine:
        return affine_add(affine_in(column, self.integers), affine_in(row, self.integers), -1)

    def look(self, block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim and op.name in ("update", "add-at") and len(op.args) == 4:
                self.same(bind.vars[0], op.args[0])
                self.touched(op.args[0], *op.args[1:3])
            elif type(op) is Prim and op.name == "get" and len(op.args) == 3:
                self.touched(op.args[0], *op.args[1:])
            elif type(op) is Prim and op.name == "zeros":
                m = self.of(bind.vars[0])
                if m is not None:
                    m.made = True
            else:
                self.flows(bind)
            for region in blocks_of(op):
                self.look(region)

    def flows(self, bind: Bind) -> None:
        """A branch or a loop that hands matrices on, or anything else."""
        op = bind.op
        handed: tuple[Atom, ...] = ()
        if type(op) is If:
            for arm in blocks_of(op):
                for v, r in zip(bind.vars, arm.results):
                    self.same(v, r)
            return
        if type(op) in (Loop, While):
            for v, acc, z, r in zip(bind.vars, op.accs, op.inits, op.body.results):  # type: ignore[union-attr]
                self.same(v, acc)
                self.same(acc, z)
                self.same(acc, r)
            handed = op.inits  # type: ignore[union-attr]
            for r in op.body.results[len(op.accs) :]:  # type: ignore[union-attr]
                self.other(r)
            for v in bind.vars[len(op.accs) :]:  # type: ignore[union-attr]
                self.other(v)
        else:
            for v in bind.vars:
                self.other(v)
            for region in blocks_of(op):
                for r in region.results:
                    self.other(r)
        for a in atoms_of(op):
            if a not in handed:
                self.other(a)

    # ------------------------------------------------------------------------------------------ as few diagonals

    def block(self, block: Block) -> Block:
        binds = [new for bind in block.binds for new in self.bind(bind)]
        return Block(tuple(binds), tuple(self.atom(r) for r in block.results))

    def atom(self, a: Atom) -> Atom:
        return self.new.get(a, a) if type(a) is Var else a

    def bind(self, bind: Bind) -> Iterator[Bind]:
        op = bind.op
        if type(op) is Prim and op.args and op.args[0] in self.new:
            array, row, column, *rest = op.args
            constant, terms = self.gap(row, column)
            at: Atom = Const(constant - self.lows[array], INT)  # type: ignore[index]
            for v, k in terms.items():
                part, total = (Var("d", INT, bind.span) for _ in range(2))
                yield Bind((part,), Prim("*", (Const(k, INT), v)), bind.span)
                yield Bind((total,), Prim("+", (at, part)), bind.span)
                at = total
            op = Prim(op.name, (self.new[array], row, at, *rest))  # type: ignore[index]
        elif type(op) is Prim and bind.vars[0] in self.new:
            op = Prim(op.name, self.new[bind.vars[0]].type.dims)  # type: ignore[union-attr]
        elif regions := blocks_of(op):
            op = with_blocks(op, [self.block(region) for region in regions])
            if type(op) in (Loop, While):
                inits, accs = (tuple(self.atom(a) for a in atoms) for atoms in (op.inits, op.accs))  # type: ignore
                op = replace(op, inits=inits, accs=accs)  # type: ignore[type-var]
        yield Bind(tuple(self.new.get(v, v) for v in bind.vars), op, bind.span, bind.soft)


def few(m: Matrix) -> bool:
    """Whether the diagonals are few of all that there are."""
    width = m.high - m.low + 1
    size = m.vars[0].type.dims[1]  # type: ignore[union-attr]
    return 2 * width <= size.value if type(size) is Const else width < WIDE
