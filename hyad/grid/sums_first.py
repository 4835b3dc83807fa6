"""Sums that come before a product with what does not change: what many iterations add up is summed first.

The adjoint of what each iteration multiplies by the same matrix is, where it is added up, a product that needs to be
taken but once::

    (loop n (fn [i m] (loop k (fn [r m] (loop d (fn [c m] (add-at m c (* (f i r) (g r c)))) m)) m)) m)
    =>  (loop n (fn [i s] (loop k (fn [r s] (add-at s r (f i r))) s)) (zeros k))
        (loop k (fn [r m] (loop d (fn [c m] (add-at m c (* (get s r) (g r c)))) m)) m)

So are rows of such sums that another nest adds up; they are neither written nor read then::

    (loop n (fn [i z] (loop k (fn [r z] (loop d (fn [c z] (add-at z i c (* (f i r) (g r c)))) z)) z)) (zeros n d))
    (loop n (fn [i m] (loop d (fn [c m] (add-at m c (get z i c))) m)) m)

Instead of n k d products n k numbers are added. It is the distributive law, and the order of the sum's terms is another
one, as it is of every sum that threads share; a sum of nothing is 0 whatever ``g`` is. ``f`` is stacked where it is not
cheap, since the loop that it comes from may go on to need it for other sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Loop,
    Op,
    Prim,
    Scalar,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    integer,
    most_uses,
    same,
    substitute,
    with_blocks,
)
from ..passes.spread import nest, next_level, reductions
from ..program.dead import tidy
from .nesting import CHEAP, adding, stacking, statements, weighed, without
from .teams import renamed

LONG = 64  # iterations from which on a sum is worth a kernel of its own
WIDE = 4  # products from which on their sums are worth one product


@dataclass(frozen=True, slots=True)
class Term:
    """What a nest adds to an array: accumulator ``number`` of its outermost loop, to which each iteration of the
    innermost one adds ``value`` at ``subs``, indices of the nest."""

    levels: tuple[Bind, ...]
    number: int
    store: Prim
    subs: tuple[Var, ...]
    value: Atom

    @property
    def indices(self) -> list[Var]:
        return [b.op.index for b in self.levels]


def sums_first(block: Block) -> Block:
    """A block in which sums come before products with what does not change; inside its loops and branches, too."""
    binds: list[Bind] = []
    for b in block.binds:
        inner = [sums_first(r) for r in blocks_of(b.op)]
        if any(x is not y for x, y in zip(inner, blocks_of(b.op))):
            b = Bind(b.vars, with_blocks(b.op, inner), b.span)
        binds += at_once(b)
    for bind in list(binds):
        found = added_up(bind)
        if found is None:
            continue
        rows, subs, places, sign = found
        at = next((k for k, b in enumerate(binds) if rows in b.vars), None)
        if at is None or most_uses(Block(tuple(binds), block.results), rows) != 1:
            continue
        made = added(binds[at], binds[at].vars.index(rows))
        if made is None or not zeros(binds[at].op.inits[made.number], binds[:at]):
            continue
        place = [made.subs[p] for p in places]
        changed = instead(binds[at], made, {*made.subs} - {*place}, place, sign, bind.vars[0], bind.op.inits[0])
        if changed is not None:
            before, after = changed
            end = binds.index(bind)
            binds = [*binds[:at], *before, *binds[at + 1 : end], *after, *binds[end + 1 :]]
    same_ = len(binds) == len(block.binds) and all(x is y for x, y in zip(binds, block.binds))
    return block if same_ else Block(tuple(binds), block.results)


def at_once(bind: Bind) -> list[Bind]:
    """A nest, and what stands for those of its sums that can come first."""
    for k in range(len(bind.op.accs)) if type(bind.op) is Loop else ():
        made = added(bind, k)
        for i in made.indices if made is not None else ():
            if i in made.subs:
                continue
            changed = instead(bind, made, {i}, made.subs, 1, bind.vars[k], bind.op.inits[k])
            if changed is not None:
                before, after = changed
                return [
                    *(x for b in before for x in (at_once(b) if b.vars and b.vars[0] in bind.vars else [b])),
                    *after,
                ]
    return [bind]


def few(counts: Sequence[Atom], least: int) -> bool:
    """Whether loops of these counts certainly have fewer iterations, all together."""
    return math.prod(int(n.value) if type(n) is Const else least for n in counts) < least


def zeros(a: Atom, before: Sequence[Bind]) -> bool:
    """Whether an array is made of zeros."""
    start = next((b.op for b in before if a in b.vars), None)
    return type(start) is Prim and start.name == "zeros"


def added_up(bind: Bind) -> tuple[Var, list[Var], list[int], int] | None:
    """The array that a nest does nothing with but to add its elements to another one, or to take them from it (a sign
    of -1), several to each: with the indices that it is read at, and which of them are the place, in its order."""
    op = bind.op
    if type(op) is not Loop or len(bind.vars) != 1 or len(op.accs) != 1 or reductions(op) is None:
        return None
    levels = nest(bind)
    indices, body = [b.op.index for b in levels], levels[-1].op.body
    made = {v: b.op for b in body.binds for v in b.vars}
    store = made.get(body.results[0])
    if type(store) is not Prim or store.name != "add-at" or store.args[0] is not levels[-1].op.accs[0]:
        return None
    x, sign = made.get(store.args[-1]), 1
    if type(x) is Prim and x.name == "neg":
        x, sign = made.get(x.args[0]), -1
    if type(x) is not Prim or x.name != "get" or type(x.args[0]) is not Var:
        return None
    rows, *subs = x.args
    place = store.args[1:-1]
    if sorted(map(id, subs)) != sorted(map(id, indices)) or not isinstance(rows.type, Arr) or len(place) >= len(subs):
        return None
    if rows.type.elem != REAL or rows.type.rank != len(subs) or any(i not in subs for i in place):
        return None
    counts = {b.op.index: b.op.count for b in levels}
    if len(set(place)) != len(place) or not all(same(counts[i], d) for i, d in zip(subs, rows.type.dims)):
        return None
    if any(type(b.op) is Check for b in all_binds(op.body)):
        return None
    return rows, subs, [subs.index(i) for i in place], sign


def added(bind: Bind, k: int) -> Term | None:
    """What a nest adds to an array, one term for each iteration; None where it changes the array otherwise."""
    op = bind.op
    if type(op) is not Loop or k >= len(op.accs) or not isinstance(op.accs[k].type, Arr) or reductions(op) is None:
        return None
    levels = nest(bind)
    inner = next_level(levels[-1].op)
    levels += [inner] if inner is not None else []
    j = k
    for outer, within in zip(levels, levels[1:]):
        j = next(m for m, z in enumerate(within.op.inits) if z is outer.op.accs[j])
    last = levels[-1].op
    made = {v: b.op for b in last.body.binds for v in b.vars}
    store = made.get(last.body.results[j])
    if type(store) is not Prim or store.name != "add-at" or store.args[0] is not last.accs[j]:
        return None
    subs, indices = store.args[1:-1], [b.op.index for b in levels]
    plain = len(set(subs)) == len(subs) == op.accs[k].type.rank and all(i in indices for i in subs)
    if not plain or op.accs[k].type.elem != REAL or most_uses(last.body, last.accs[j]) != 1:
        return None
    return Term(tuple(levels), k, store, tuple(subs), store.args[-1])


def instead(
    bind: Bind, made: Term, summed: set[Var], place: Sequence[Var], sign: int, final: Var, init: Atom
) -> tuple[list[Bind], list[Bind]] | None:
    """What stands for a nest, and what is added to ``init`` at ``place``, to be ``final``, where the sums over some of
    the nest's indices come first; None where nothing is won."""
    indices, ops = made.indices, [b.op for b in made.levels]
    binds = statements(made.levels, [made.store])
    needs = dependence(binds, indices)
    prims = {b.vars[0]: b.op for b in binds if len(b.vars) == 1}
    factors, turned = factors_of(made.value, prims, lambda a: summed & needs[a] and len(needs[a]) < len(indices))
    varying = [a for a in factors if needs.get(a, frozenset()) & summed]
    fixed = [a for a in factors if a not in varying]
    along = frozenset(summed).union(*(needs[a] for a in varying))
    own = [i for i in indices if i in along - summed]  # the sum is for each of these
    counts = {o.index: o.count for o in ops}
    depends = {i: needs.get(counts[i], frozenset()) if type(counts[i]) is Var else frozenset() for i in indices}
    if not varying or not own or any(depends[i] for i in (*own, *summed)) or few([counts[i] for i in summed], LONG):
        return None
    if few([counts[i] for i in indices if i not in along], WIDE):  # so many products are one
        return None
    if any(depends[i] & summed for i in indices) or any(type(b.op) is Check for b in binds):
        return None
    out: list[Bind] = []
    changed = without(list(made.levels), {made.number})
    factor, block = product(varying, binds)
    levels = [b for b in made.levels if b.op.index in along]
    if len(varying) == 1 and sum(map(weighed, block.binds)) > CHEAP:
        stack = Var(factor.name, Arr(REAL, tuple(b.op.count for b in levels)), factor.span)
        out.append(stacking(levels, binds, {factor: stack}))
        found = Prim("get", (stack, *(b.op.index for b in levels)))
        changed = with_op(changed, factor, found) if changed is not None else None
        block = Block((Bind((factor,), found),), (factor,))
    out += [changed] if changed is not None else []
    fresh = {i: Var(i.name, INT, i.span, i.given, i.soft) for i in along}
    block = renamed(substitute(block, fresh))
    order = [b.op.index for b in levels]
    start, sums = (Var("s", Arr(REAL, tuple(counts[i] for i in own))) for _ in range(2))
    out.append(Bind((start,), Prim("zeros", sums.type.dims)))
    mine = [fresh[i] for i in own]
    out.append(adding(sums, start, [fresh[i] for i in order], [counts[i] for i in order], mine, block, bind.span))
    often = [counts[i] for i in order if i in summed]
    products = products_added(made, summed, [sums, *own], fixed, often, place, sign * turned, init, final)
    return out, list(products.binds)


def products_added(
    added: Term, summed: set[Var], read: Sequence[Atom], fixed: Sequence[Atom], often: Sequence[Atom],
    place: Sequence[Var], sign: int, init: Atom, final: Var,
) -> Block:  # fmt: skip
    """The nest without the loops over what is summed, which adds the products of the sums and of what is fixed; a sum
    over loops that run so ``often``, not at all even, is nothing then."""

    def inside(k: int, acc: Atom) -> tuple[list[Bind], Var]:
        if k == len(added.levels):
            out: list[Bind] = []

            def made(name: str, *args: Atom, t: Scalar = REAL) -> Var:
                out.append(Bind((Var("t" if t == REAL else "nothing", t),), Prim(name, args)))
                return out[-1].vars[0]

            x = made("get", *read)
            for a in fixed:
                x = made("*", x, a)
            x = made("neg", x) if sign < 0 else x
            for n in often:
                if not (type(n) is Const and n.value > 0) and fixed:
                    x = made("select", made("<", n, integer(1), t=BOOL), Const(0.0, REAL), x)
            stored = Var(final.name, final.type)
            return [*out, Bind((stored,), Prim("add-at", (acc, *place, x)))], stored
        op = added.levels[k].op
        before = [b for b in op.body.binds if b.op is not added.store and b not in added.levels]
        if op.index in summed:
            more, result = inside(k + 1, acc)
            return [*before, *more], result
        own = Var(final.name, final.type)
        more, result = inside(k + 1, own)
        out = Var(final.name, final.type)
        body = tidy(Block((*before, *more), (result,)))
        return [Bind((out,), Loop(op.count, op.index, (acc,), (own,), body), added.levels[k].span)], out

    binds, result = inside(0, init)
    block = renamed(tidy(Block(tuple(binds), (result,))))
    (result,) = block.results
    last = block.binds[-1]
    return Block((*block.binds[:-1], Bind((final,), last.op, last.span)), (final,))


def dependence(binds: Sequence[Bind], indices: Sequence[Var]) -> dict[Atom, frozenset[Var]]:
    """Which indices of a nest hang together with each of its values."""
    needs: dict[Atom, frozenset[Var]] = {i: frozenset({i}) for i in indices}
    for b in binds:
        read = {*atoms_of(b.op), *(v for block in blocks_of(b.op) for v in free_vars(block))}
        found = frozenset().union(*(needs.get(a, frozenset()) for a in read))
        needs.update((v, found) for v in b.vars)
    return needs


def factors_of(a: Atom, made: dict[Var, Op], whole: Callable[[Var], object]) -> tuple[list[Atom], int]:
    """The factors of a number, and its sign; products that are ``whole`` are not taken apart."""
    op = made.get(a) if type(a) is Var else None
    if type(op) is not Prim or op.name not in ("*", "neg") or whole(a):
        return [a], 1
    found: list[Atom] = []
    sign = -1 if op.name == "neg" else 1
    for x in op.args:
        more, turned = factors_of(x, made, whole)
        found, sign = [*found, *more], sign * turned
    return found, sign


def product(factors: Sequence[Atom], binds: Sequence[Bind]) -> tuple[Atom, Block]:
    """The product of some numbers that bindings make, and what computes it."""
    x, *more = factors
    out: list[Bind] = []
    for y in more:
        out.append(Bind((Var("t", REAL),), Prim("*", (x, y))))
        (x,) = out[-1].vars
    return x, tidy(Block((*binds, *out), (x,)))


def with_op(bind: Bind, v: Var, op: Op) -> Bind:
    """A binding in whose loops a variable is made by another operation."""
    if v in bind.vars:
        return Bind(bind.vars, op, bind.span)
    if type(bind.op) is not Loop:
        return bind
    binds = tuple(with_op(b, v, op) for b in bind.op.body.binds)
    return Bind(bind.vars, replace(bind.op, body=tidy(Block(binds, bind.op.body.results))), bind.span)
