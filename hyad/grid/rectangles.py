"""Triangles of iterations as rectangles, so that each place has a thread.

Where an inner loop goes up to the outer index, as in the columns of Cholesky's factor, the two are no index space:
each thread of the outer one would take a row, the last one the longest, and neighbours would read what lies rows apart.
The inner loop goes as far as it ever does, and an iteration beyond its own end does nothing::

    (ifold (fn [l i] (ifold (fn [l j] (update l i j e)) l (+ i 1))) l n)
    =>  (ifold (fn [l i] (ifold (fn [l j] (if (< j (+ i 1)) (update l i j e) l)) l n)) l n)

Half of the threads are idle; the others have an element each. So it is where a branch has all that an iteration does, a
loop that adds to a row that it found: the branch goes inside, and neighbours add to neighbours::

    (ifold (fn [r i] (if (f i) (ifold (fn [r j] (add-at r (get at i) j e)) r m) r)) r n)
    =>  (ifold (fn [r i] (ifold (fn [r j] (if (f i) (add-at r (get at i) j e) r)) r m)) r n)
"""

from __future__ import annotations

from dataclasses import replace

from ..core import BOOL, INT, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Var
from ..passes.spread import AGAIN, next_level, reductions, work
from ..program.affine import Affine, affine_add, affine_in
from .teams import renamed, scalars

FEW = 8  # iterations that one thread may as well have


def rectangle(bind: Bind) -> list[Bind]:
    """A parallel loop and what comes before it: its inner loop as long in each iteration, where that does nothing but
    change the iteration's own part of arrays."""
    op = bind.op
    inner = next_level(op)
    if inner is None or len(op.body.results) != len(op.accs) or not op.accs:
        return [bind]
    if any(r.kind != "slice" for o in (op, inner.op) for r in reductions(o) or ()):
        return [bind]
    integers = {b.vars[0]: b.op for b in op.body.binds if type(b.op) is Prim and b.op.name in ("+", "-")}
    count = affine_in(inner.op.count, integers)
    along = count[1].get(op.index)
    made = {v for b in op.body.binds for v in b.vars}
    if along not in (1, -1) or any(v in made for v in count[1]) or any(abs(k) > 1 for k in count[1].values()):
        return [bind]
    rest = affine_add(count, (0, {op.index: along}), -1)
    if along == 1:
        rest = affine_add(affine_add(rest, affine_in(op.count, {})), (-1, {}))
    before, most = written(rest)
    return [*before, Bind(bind.vars, replace(op, body=within(op.body, inner, most)), bind.span)]


def branch_inside(bind: Bind) -> list[Bind]:
    """A loop in whose iterations a branch is a loop that changes arrays, and nothing where it is not taken: the branch
    is in that loop, with the scalars that come before the loop, which may only be right in the branch."""
    op = bind.op
    binds = tuple(turned(b) if type(b.op) is If else b for b in op.body.binds)
    return [Bind(bind.vars, replace(op, body=Block(binds, op.body.results)), bind.span)]


def turned(bind: Bind) -> Bind:
    """A branch with a loop as a loop with a branch, where it is that."""
    op = bind.op
    for then, orelse in ((op.then, op.orelse), (op.orelse, op.then)):
        if not then.binds or orelse.binds:
            continue
        *first, inner = then.binds
        if type(inner.op) is not Loop or inner.vars != then.results or inner.op.inits != orelse.results:
            continue
        loop, count = inner.op, inner.op.count
        if any(count in b.vars for b in first) or type(count) is Const and count.value < FEW:
            continue
        if not all(type(b.op) is Prim and scalars(b) for b in first) or sum(work(b.op) for b in first) > AGAIN:
            continue
        if not all(isinstance(v.type, Arr) for v in inner.vars) or reductions(loop) is None:
            continue
        results = tuple(Var(a.name, a.type, a.span) for a in loop.accs)
        taken, left = renamed(Block((*first, *loop.body.binds), loop.body.results)), Block((), loop.accs)
        arms = (taken, left) if then is op.then else (left, taken)
        body = Block((Bind(results, If(op.cond, *arms), bind.span),), results)
        return Bind(bind.vars, replace(loop, body=body), bind.span)
    return bind


def within(body: Block, inner: Bind, most: Atom) -> Block:
    """The body with the inner loop as long as ``most``, in which iterations beyond its count change nothing."""
    op = inner.op
    holds = Var("within", BOOL)
    vars_ = tuple(Var(a.name, a.type, a.span) for a in op.accs)
    chosen = Bind(vars_, If(holds, op.body, Block((), op.accs)), inner.span)
    guarded = Block((Bind((holds,), Prim("<", (op.index, op.count))), chosen), vars_)
    loop = Bind(inner.vars, Loop(most, op.index, op.inits, op.accs, guarded), inner.span)
    return Block(tuple(loop if b is inner else b for b in body.binds), body.results)


def written(affine: Affine) -> tuple[list[Bind], Atom]:
    """An integer in affine normal form, whose coefficients are 1 or -1, as bindings and its value."""
    binds: list[Bind] = []
    value: Atom = Const(affine[0], INT)
    for v, k in affine[1].items():
        name, args = ("+", (value, v)) if k == 1 else ("-", (value, v))
        value = Var("most", INT)
        binds.append(Bind((value,), Prim(name, args)))
    return binds, value
