"""Optimisation of typed programs: plain lists of passes ``Program -> Program``.

The builder already folds, rewrites and shares as a program is built; the passes here do what needs a view of the
whole: dead code, loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .builder import Builder, Rebuild
from .check import check_after
from .core import (
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
    size,
    type_atoms,
)
from .dead import dead_code, tidy
from .loops import Expand, Fission, Fuse, OneHot, assign, divide, fuse_siblings
from .sink import sink

Pass = Callable[[Program], Program]

#: A loop of known trip count is written out if it is that short and that makes at most so many bindings.
UNROLL_COUNT, UNROLL = 32, 400


# -------------------------------------------------------------------------------------------- unrolling


class Unroll(Rebuild):
    """Writes out loops of small known trip count; their arrays become single values.

    ``(build 3 (fn [i] (f (get x i))))``  =>  ``[(f (get x 0)) (f (get x 1)) (f (get x 2))]``.
    Design decision: before differentiation, where a scalar's derivative is sparse for free.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.budget = 4 * UNROLL

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and type(self.atom(op.count)) is Const:
            count = self.atom(op.count).value  # type: ignore[union-attr]
            cost = count * expanded_size(op.body)
            if 0 < count <= UNROLL_COUNT and cost <= min(UNROLL, self.budget) and self.by_element(op):
                self.budget -= cost
                self.write_out(op, bind, count)
                return
        self.copy(bind)

    def by_element(self, op: Loop) -> bool:
        """Whether writing a loop out makes single values of array elements: it stacks what it computes, or subscripts
        an argument or an array of known elements by its index. A loop that only counts stays a loop (and so do the
        loops of its derivative, which remember accumulators), so that the code does not grow with the count."""
        if any(r not in op.accs for r in op.body.results[len(op.accs) :]):
            return True
        moving: set[Atom] = {op.index}
        for bind in all_binds(op.body):
            inner = bind.op
            if type(inner) is Prim:
                if inner.name in ("get", "update", "add-at") and any(a in moving for a in inner.args):
                    base = self.atom(inner.args[0])
                    made_here = any(base in scope.vars for scope in self.b.scopes)
                    if not made_here or base in self.b.definitions:
                        return True
                if any(a in moving for a in inner.args):
                    moving.update(bind.vars)
        return False

    def write_out(self, op: Loop, bind: Bind, count: int) -> None:
        width = len(op.accs)
        accs = list(self.atoms(op.inits))
        stacked: list[list[Atom]] = [[] for _ in bind.vars[width:]]
        for i in range(count):
            self.here[op.index] = Const(i, op.index.type)
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            accs = list(results[:width])
            for column, r in zip(stacked, results[width:]):
                column.append(r)
        self.b.span = bind.span
        outs = [self.b.array(column, v.name, v.given) for column, v in zip(stacked, bind.vars[width:])]
        self.define(bind, [*accs, *outs])


def expanded_size(block: Block) -> int:
    """The bindings of a block with its inner loops of known trip count written out."""
    total = 1
    for bind in block.binds:
        inner = sum(expanded_size(b) for b in blocks_of(bind.op))
        if type(bind.op) is Loop and type(bind.op.count) is Const:
            inner *= max(1, bind.op.count.value)
        total += 1 + inner
    return total


def unroll_block(b: Builder, block: Block) -> Block:
    """``Unroll`` for a block under construction."""
    if not any(type(bind.op) is Loop for bind in all_binds(block)):
        return block
    with b.region() as scope:
        results = Unroll(b).block(block)
    return b.close(scope, results)


def split_block(b: Builder, block: Block) -> Block:
    """``Fission`` for a block under construction, its outermost loops included."""
    with b.region() as scope:
        results = Fission(b, depth=1).block(block)
    return tidy(b.close(scope, results))


def rebuild(program: Program, make: Callable[[Builder], Rebuild]) -> Program:
    """Run a rebuilding pass over a whole program; parameters and sizes stay themselves."""
    b = Builder()
    b.sizes.update(program.dims)
    results = make(b).block(program.body)
    return replace(program, body=Block(b.block(), results))


def fission(program: Program) -> Program:
    return rebuild(program, Fission) if nested_loops(program) else program


def expand(program: Program) -> Program:
    return rebuild(program, Expand) if nested_loops(program) else program


def nested_loops(program: Program) -> bool:
    return any(type(inner.op) is Loop for loop in loops(program) for inner in all_binds(loop.body))


def loops(program: Program) -> list[Loop]:
    return [bind.op for bind in all_binds(program.body) if type(bind.op) is Loop]


def unroll(program: Program) -> Program:
    return rebuild(program, Unroll) if any(type(loop.count) is Const for loop in loops(program)) else program


def fuse(program: Program) -> Program:
    return rebuild(program, lambda b: Fuse(b, program.body)) if loops(program) else program


def share(program: Program) -> Program:
    """Common subexpressions once more, where regions have been joined."""
    return rebuild(program, Rebuild) if any(type(bind.op) in (If, Loop) for bind in program.body.binds) else program


def one_hot(program: Program) -> Program:
    return rebuild(program, OneHot) if loops(program) else program


#: From a specialised program to what is printed.
PIPELINE: list[Pass] = [
    dead_code,  # first: a derivative stacks more than it needs, and fusion counts uses
    unroll,  # makes constants of subscripts, and single values of small arrays
    dead_code,
    sink,  # what one branch reads is computed there
    assign,  # what is added once is stored: adjoints become builds
    fission,  # what an outer loop does not change leaves it; and a loop that does one thing may do it at one index
    dead_code,
    fuse,
    dead_code,
    one_hot,  # loops that vanish
    dead_code,
    expand,  # values of inner iterations that an outer loop does not change leave it as well
    dead_code,
    assign,
    fuse,
    dead_code,
    fuse_siblings,
    share,  # what siblings had in common
    divide,
    dead_code,
]


def optimise(program: Program, passes: Sequence[Pass] = PIPELINE) -> Program:
    for p in passes:
        program = check_after(p.__name__, p(program))
    return program


def program_size(program: Program) -> int:
    return size(program.body)


def uses(block: Block) -> dict[Var, int]:
    """How often each variable is read in a block and its regions."""
    counts: dict[Var, int] = {}

    def use(atoms: Sequence[Atom]) -> None:
        for a in atoms:
            if type(a) is Var:
                counts[a] = counts.get(a, 0) + 1

    stack = [block]
    while stack:
        b = stack.pop()
        use(b.results)
        for bind in b.binds:
            use(atoms_of(bind.op))
            for v in bind.vars:
                use(type_atoms(v.type))
            stack.extend(blocks_of(bind.op))
    return counts
