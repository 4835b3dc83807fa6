"""Optimisation of typed programs: plain lists of passes ``Program -> Program``.

The builder already folds, rewrites and shares as a program is built; the passes here do what needs a view of the
whole: dead code, loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .builder import Builder, Rebuild, type_of
from .core import (
    Arr,
    Atom,
    Bind,
    Block,
    Check,
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
from .loops import Fuse, OneHot, assign, fuse_siblings

Pass = Callable[[Program], Program]

#: A loop of known trip count is written out if that makes at most so many bindings.
UNROLL = 400


# ------------------------------------------------------------------------------------------- dead code


def dead_code(program: Program) -> Program:
    """Drops what no result needs: bindings, results of branches, accumulators and stacked arrays of loops.

    ``t = (sin x); r = x``  =>  ``r = x``. A ``Check`` stays, and so does a loop or branch that holds one.
    Design decision: one backward walk with liveness of single results, so that a loop that a derivative stacks all
    its accumulators in costs nothing where the backward code wants none.
    """
    live: set[Var] = set()
    for r in program.body.results:
        if type(r) is Var:
            live.add(r)
    for p in program.params:
        live.update(d for d in type_atoms(p.type) if type(d) is Var)
    return replace(program, body=prune(program.body, live, program.body.results))


def need(live: set[Var], atoms: Sequence[Atom]) -> None:
    for a in atoms:
        if type(a) is Var:
            live.add(a)


def prune(block: Block, live: set[Var], results: Sequence[Atom]) -> Block:
    """A block with only the bindings that ``live`` variables need; ``live`` grows by what they read."""
    kept: list[Bind] = []
    for bind in reversed(block.binds):
        op = bind.op
        if type(op) is Prim:
            if bind.vars[0] not in live:
                continue
            need(live, op.args)
        elif type(op) is Check:
            need(live, (op.a, op.b))
        elif type(op) is If:
            at = [k for k, v in enumerate(bind.vars) if v in live]
            if not at and not effects(op):
                continue
            blocks = []
            for inner in (op.then, op.orelse):
                chosen = tuple(inner.results[k] for k in at)
                need(live, chosen)
                blocks.append(prune(inner, live, chosen))
            need(live, (op.cond,))
            bind = Bind(tuple(bind.vars[k] for k in at), If(op.cond, *blocks), bind.span)
        elif type(op) is Loop:
            pruned = prune_loop(bind, op, live)
            if pruned is None:
                continue
            bind = pruned
        for v in bind.vars:
            need(live, type_atoms(v.type))
        kept.append(bind)
    return Block(tuple(reversed(kept)), tuple(results))


def prune_loop(bind: Bind, op: Loop, live: set[Var]) -> Bind | None:
    width = len(op.accs)
    wanted = {k for k, v in enumerate(bind.vars) if v in live}
    if not wanted and not effects(op):
        return None
    while True:  # an accumulator is needed if a needed result of the body reads it
        inner = set(live)
        need(inner, [op.body.results[k] for k in sorted(wanted)])
        body = prune(op.body, inner, op.body.results)
        more = {k for k, a in enumerate(op.accs) if a in inner} - wanted
        if not more:
            break
        wanted |= more
    live |= inner
    at = sorted(wanted)
    accs = [k for k in at if k < width]
    body = Block(body.binds, tuple(op.body.results[k] for k in at))
    need(live, (op.count, *(op.inits[k] for k in accs)))
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), body)
    return Bind(tuple(bind.vars[k] for k in at), loop, bind.span)


def effects(op: If | Loop) -> bool:
    """Whether a check stands inside."""
    for block in blocks_of(op):
        for bind in block.binds:
            if type(bind.op) is Check or (type(bind.op) in (If, Loop) and effects(bind.op)):
                return True
    return False


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
            if 0 < count and cost <= min(UNROLL, self.budget):
                self.budget -= cost
                self.write_out(op, bind, count)
                return
        self.copy(bind)

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
    with b.region() as scope:
        results = Unroll(b).block(block)
    return b.close(scope, results)


def rebuild(program: Program, make: Callable[[Builder], Rebuild]) -> Program:
    """Run a rebuilding pass over a whole program; parameters and sizes stay themselves."""
    b = Builder()
    b.sizes.update(program.dims)
    results = make(b).block(program.body)
    return replace(program, body=Block(b.block(), results))


def loops(program: Program) -> list[Loop]:
    return [bind.op for bind in all_binds(program.body) if type(bind.op) is Loop]


def unroll(program: Program) -> Program:
    return rebuild(program, Unroll) if any(type(loop.count) is Const for loop in loops(program)) else program


def fuse(program: Program) -> Program:
    return rebuild(program, lambda b: Fuse(b, program.body)) if loops(program) else program


def one_hot(program: Program) -> Program:
    return rebuild(program, OneHot) if loops(program) else program


#: From a specialised program to what is printed.
PIPELINE: list[Pass] = [
    dead_code,  # first: a derivative stacks more than it needs, and fusion counts uses
    unroll,  # makes constants of subscripts, and single values of small arrays
    dead_code,
    one_hot,  # before fusion: the loops that vanish need none
    dead_code,
    fuse,
    dead_code,
    assign,  # what is added once is stored: more arrays become builds
    fuse,
    dead_code,
    fuse_siblings,
    dead_code,
]


def optimise(program: Program, passes: Sequence[Pass] = PIPELINE) -> Program:
    for p in passes:
        program = p(program)
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
                if isinstance(v.type, Arr):
                    use(v.type.dims)
            stack.extend(blocks_of(bind.op))
    return counts


def result_types(program: Program) -> list:
    return [type_of(r) for r in program.body.results]
