"""Adjoints of stencils, for a device with thousands of threads: each element takes what its neighbours would add to it.

A loop over the elements of a vector that adds to them and to their neighbours has three atomic additions for a stencil
of three, to zeros that are written before. The other way round each element is one thread's, which computes again what
its neighbours add::

    (ifold (fn [a i] (if (f i) (add-at (add-at a (+ i 1) (x i)) i (y i)) a)) a n)
    =>  (ifold (fn [a i] (add-at a i (+ (if (<= 1 i) (if (f (- i 1)) (x (- i 1)) 0.0) 0.0) (if (f i) (y i) 0.0)))) a n)

The terms of an element are those that it got, in the order of the additions in an iteration.
"""

from __future__ import annotations

from dataclasses import replace

from .affine import affine_add, affine_in
from .core import (
    BOOL,
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
    Var,
    all_binds,
    free_vars,
    same,
    substitute,
    type_of,
)
from .dead import tidy
from .spread import reductions, work
from .teams import renamed

DEAR = 96.0  # the work of all that is computed again for an element, in additions: less than memory takes
ZERO = Const(0.0, REAL, True)


class Addition:
    """What a loop adds in an iteration, where its branches are taken: the subscript, the value, and the branches
    around it, the innermost first, each with which arm it is."""

    def __init__(self, sub: Atom, value: Atom, block: Block) -> None:
        self.sub, self.value = sub, value
        self.blocks = [block]
        self.branches: list[tuple[If, int]] = []

    def inside(self, op: If, arm: int, block: Block) -> Addition:
        self.branches.append((op, arm))
        self.blocks.append(block)
        return self

    def term(self) -> Block:
        """The value, or 0 where its branch is not taken."""
        block = tidy(Block(self.blocks[0].binds, (self.value,)))
        for (op, arm), around in zip(self.branches, self.blocks[1:]):
            t, arms = Var("t", REAL), [Block((), (ZERO,))] * 2
            arms[arm] = block
            block = tidy(Block((*around.binds, Bind((t,), If(op.cond, *arms))), (t,)))
        return block

    def offset(self, index: Var, integers: dict) -> int | None:
        """How far from the iteration's own element it is added."""
        if type(self.sub) is Const:  # where the index is this very number
            for (op, arm), block in zip(self.branches, self.blocks[1:]):
                test = next((b.op for b in block.binds if op.cond in b.vars), None)
                if arm == 0 and type(test) is Prim and test.name == "=" and set(test.args) == {index, self.sub}:
                    return 0
            return None
        constant, rest = affine_add(affine_in(self.sub, integers), (0, {index: 1}), -1)
        return constant if not rest else None


def additions(block: Block, result: Atom) -> tuple[list[Addition], Atom] | None:
    """What is added to an array in a block that makes ``result`` of it, and the array; None where it is more."""
    made = {v: b for b in block.binds for v in b.vars}
    found: list[Addition] = []
    while result in made:
        bind = made[result]
        op = bind.op
        if type(op) is Prim and op.name == "add-at" and len(op.args) == 3:
            found.insert(0, Addition(op.args[1], op.args[2], block))
            result = op.args[0]
        elif type(op) is If:
            k = bind.vars.index(result)
            arms = [additions(arm, arm.results[k]) for arm in (op.then, op.orelse)]
            if None in arms or arms[0][1] is not arms[1][1]:
                return None
            found[:0] = [a.inside(op, arm, block) for arm in (0, 1) for a in arms[arm][0]]
            result = arms[0][1]
        else:
            return None
    return found, result


def stencil(bind: Bind) -> Bind:
    """A parallel loop whose additions to vectors of its own length are sums for each element, where they are cheap."""
    op = bind.op
    if any(type(b.op) not in (Prim, If) for b in all_binds(op.body)):
        return bind
    integers = {b.vars[0]: b.op for b in all_binds(op.body) if type(b.op) is Prim and b.op.name in ("+", "-")}
    binds, results = list(op.body.binds), list(op.body.results)
    for kind in reductions(op) or ():
        acc = op.accs[kind.accs[0]]
        if kind.kind == "scatter" and acc.type.rank == 1 and acc.type.elem == REAL and same(acc.type.dims[0], op.count):
            made = sums(op, acc, results[kind.accs[0]], integers)
            if made is not None:
                binds += made.binds
                (results[kind.accs[0]],) = made.results
    if len(binds) == len(op.body.binds):
        return bind
    return Bind(bind.vars, replace(op, body=tidy(Block(tuple(binds), tuple(results)))), bind.span)


def sums(op: Loop, acc: Var, result: Atom, integers: dict) -> Block | None:
    """What adds to the element of an iteration's index all that is added to it."""
    found = additions(op.body, result)
    if found is None or found[1] is not acc or not found[0]:
        return None
    binds: list[Bind] = []
    total: Atom | None = None
    weight = 0.0
    for a in found[0]:
        far, block = a.offset(op.index, integers), a.term()
        weight += sum(work(b.op) for b in all_binds(block) if type(b.op) is Prim)
        if far is None or weight > DEAR or isinstance(type_of(a.value), Arr):
            return None
        if any(v in op.accs for v in free_vars(block)):
            return None
        block = renamed(block)
        if far:
            block = from_neighbour(op, block, far)
        binds += block.binds
        if total is None:
            (total,) = block.results
        else:
            both = Var("t", REAL)
            binds.append(Bind((both,), Prim("+", (total, block.results[0]))))
            total = both
    after = Var(acc.name, acc.type, acc.span)
    return Block((*binds, Bind((after,), Prim("add-at", (acc, op.index, total)))), (after,))


def from_neighbour(op: Loop, block: Block, far: int) -> Block:
    """A term as it is in the iteration whose index is less by ``far``, if there is one."""
    i, there, t = Var(op.index.name, INT), Var("there", BOOL), Var("t", REAL)
    test = Prim("<=", (Const(far, INT), op.index)) if far > 0 else Prim("<", (i, op.count))
    back = Prim("-", (op.index, Const(far, INT))) if far > 0 else Prim("+", (op.index, Const(-far, INT)))
    then = substitute(block, {op.index: i})
    return Block((Bind((i,), back), Bind((there,), test), Bind((t,), If(there, then, Block((), (ZERO,))))), (t,))
