"""Triangles of iterations as rectangles, so that each place has a thread.

Where an inner loop goes up to the outer index, as in the columns of Cholesky's factor, the two are no index space:
each thread of the outer one would take a row, the last one the longest, and neighbours would read what lies rows apart.
The inner loop goes as far as it ever does, and an iteration beyond its own end does nothing::

    (ifold (fn [l i] (ifold (fn [l j] (update l i j e)) l (+ i 1))) l n)
    =>  (ifold (fn [l i] (ifold (fn [l j] (if (< j (+ i 1)) (update l i j e) l)) l n)) l n)

Half of the threads are idle; the others have an element each. So it is where a branch has all that an iteration does, a
loop that adds to a row that it found, or one of two such loops: the branch goes inside, and neighbours add to
neighbours::

    (ifold (fn [r i] (if (f i) (ifold (fn [r j] (add-at r (get at i) j e)) r m) r)) r n)
    =>  (ifold (fn [r i] (ifold (fn [r j] (if (f i) (add-at r (get at i) j e) r)) r m)) r n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import BOOL, INT, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Var, free_vars, same, substitute
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
    """A loop in whose iterations a branch is a loop that changes arrays, and the other one such a loop of as many
    iterations, or nothing: the branch is in that loop, with the scalars that come before the loop, which may only be
    right in the branch."""
    op = bind.op
    binds = tuple(turned(b) if type(b.op) is If else b for b in op.body.binds)
    return [Bind(bind.vars, replace(op, body=Block(binds, op.body.results)), bind.span)]


def turned(bind: Bind) -> Bind:
    """A branch with a loop as a loop with a branch, where it is that."""
    op = bind.op
    arms = [op.then, op.orelse]
    loops = [arm.binds[-1] for arm in arms if arm.binds]
    if not loops or not all(isinstance(v.type, Arr) for v in bind.vars) or not all(map(goes_inside, arms)):
        return bind
    count = loops[0].op.count
    if not all(same(count, x.op.count) for x in loops) or type(count) is Const and count.value < FEW:
        return bind
    befores = [[before(arm, k) for arm in arms] for k in range(len(bind.vars))]
    if any(one is not other for one, other in befores):
        return bind
    index = loops[0].op.index
    accs = tuple(Var(v.name, v.type, v.span) for v in bind.vars)
    made = [one_iteration(arm, index, accs) for arm in arms]
    if any(one in free_vars(arm) for arm in made for one, _ in befores):
        return bind
    results = tuple(Var(v.name, v.type, v.span) for v in bind.vars)
    body = Block((Bind(results, If(op.cond, *made), bind.span),), results)
    return Bind(bind.vars, Loop(count, index, tuple(one for one, _ in befores), accs, body), bind.span)


def goes_inside(arm: Block) -> bool:
    """Whether a branch does nothing, or ends in a loop that changes arrays, after a few scalars."""
    if not arm.binds:
        return True
    *first, inner = arm.binds
    loop = inner.op
    if type(loop) is not Loop or not all(isinstance(v.type, Arr) for v in inner.vars):
        return False
    if len(loop.accs) < len(inner.vars) or any(arm.results.count(v) != 1 for v in inner.vars):
        return False
    if any(loop.count in b.vars for b in first) or reductions(loop) is None:
        return False
    return all(type(b.op) is Prim and scalars(b) for b in first) and sum(work(b.op) for b in first) <= AGAIN


def before(arm: Block, k: int) -> Atom:
    """What result ``k`` of a branch is before its loop."""
    inner = arm.binds[-1] if arm.binds else None
    r = arm.results[k]
    return inner.op.inits[inner.vars.index(r)] if inner is not None and r in inner.vars else r  # type: ignore


def one_iteration(arm: Block, index: Var, accs: Sequence[Var]) -> Block:
    """What a branch does in one iteration of its loop; ``accs`` are its results before."""
    if not arm.binds:
        return Block((), tuple(accs))
    *first, inner = arm.binds
    loop = inner.op
    at = [arm.results.index(v) for v in inner.vars]
    body = Block((*first, *loop.body.binds), loop.body.results)
    body = renamed(substitute(body, {loop.index: index, **{a: accs[k] for a, k in zip(loop.accs, at)}}))
    given = dict(zip(at, body.results))
    return Block(body.binds, tuple(given.get(k, a) for k, a in enumerate(accs)))


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
