"""Sums that come before a product with what does not change: what many iterations add up is summed first.

The adjoint of what each iteration multiplies by the same matrix is a row for each iteration; where these rows are only
added up, each was a product that the sum needs but once::

    (loop n (fn [i z] (loop k (fn [r z] (loop d (fn [c z] (add-at z i c (* (f i r) (g r c)))) z)) z)) (zeros-of n d))
    (loop n (fn [i m] (loop d (fn [c m] (add-at m c (get z i c))) m)) m)
    =>  (loop n (fn [i s] (loop k (fn [r s] (add-at s r (f i r))) s)) (zeros-of k))
        (loop k (fn [r m] (loop d (fn [c m] (add-at m c (* (get s r) (g r c)))) m)) m)

The rows ``z`` are neither written nor read, and n k numbers are added instead of n k d. It is the distributive law, and
the order of the sum's terms is another one, as it is of every sum that threads share. ``f`` is stacked where it is not
cheap, since the loop that it comes from may go on to need it for other sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Loop,
    Op,
    Prim,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    most_uses,
    same,
    substitute,
    with_blocks,
)
from ..passes.spread import nest, next_level, reductions, work
from ..program.dead import tidy
from .nesting import adding, stacking, statements, without
from .teams import renamed

CHEAP = 8.0  # the work of a factor, in additions, that is computed again rather than read from memory


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a nest makes of zeros: accumulator ``number`` of its outermost loop, of which each iteration of the
    innermost one adds ``term`` at ``subs``, indices of the nest."""

    levels: tuple[Bind, ...]
    number: int
    store: Prim
    subs: tuple[Var, ...]
    term: Atom

    @property
    def indices(self) -> list[Var]:
        return [b.op.index for b in self.levels]


def sums_first(block: Block) -> Block:
    """A block in which rows that are only added up are not made; inside its loops and branches, too."""
    binds = list(block.binds)
    for k, b in enumerate(binds):
        inner = [sums_first(r) for r in blocks_of(b.op)]
        if any(x is not y for x, y in zip(inner, blocks_of(b.op))):
            binds[k] = Bind(b.vars, with_blocks(b.op, inner), b.span)
    for bind in list(binds):
        found = added_up(bind)
        if found is None:
            continue
        rows, subs, places, sign = found
        here = Block(tuple(binds), block.results)
        at = next((k for k, b in enumerate(binds) if rows in b.vars), None)
        if at is None or most_uses(here, rows) != 1:
            continue
        made = rows_of(binds[at], rows, binds[:at])
        changed = instead(binds[at], made, bind, subs, places, sign) if made is not None else None
        if changed is not None:
            before, after = changed
            end = binds.index(bind)
            binds = [*binds[:at], *before, *binds[at + 1 : end], *after, *binds[end + 1 :]]
    same_ = len(binds) == len(block.binds) and all(x is y for x, y in zip(binds, block.binds))
    return block if same_ else Block(tuple(binds), block.results)


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


def rows_of(bind: Bind, rows: Var, before: Sequence[Bind]) -> Rows | None:
    """How a nest makes an array of zeros, one term for each place; None where it does so otherwise."""
    op, k = bind.op, bind.vars.index(rows)
    if type(op) is not Loop or k >= len(op.accs) or reductions(op) is None:
        return None
    start = next((b.op for b in before if op.inits[k] in b.vars), None)
    if type(start) is not Prim or start.name != "zeros":
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
    plain = len(set(subs)) == len(subs) == rows.type.rank and all(i in indices for i in subs)
    if not plain or most_uses(last.body, last.accs[j]) != 1:
        return None
    return Rows(tuple(levels), k, store, tuple(subs), store.args[-1])


def instead(
    bind: Bind, rows: Rows, total: Bind, read: Sequence[Var], places: Sequence[int], sign: int
) -> tuple[list[Bind], list[Bind]] | None:
    """What stands for the nest that makes some rows, and for the one that adds them up; None where nothing is won."""
    indices, ops = rows.indices, [b.op for b in rows.levels]
    kept = {rows.subs[p] for p in places}
    summed = {i for i in rows.subs if i not in kept}  # a row for each of these
    binds = statements(rows.levels, [rows.store])
    needs = dependence(binds, indices)
    made = {b.vars[0]: b.op for b in binds if len(b.vars) == 1}
    factors = factors_of(rows.term, made, lambda a: summed & needs[a] and len(needs[a]) < len(indices))
    varying = [a for a in factors if needs.get(a, frozenset()) & summed]
    fixed = [a for a in factors if a not in varying]
    along = frozenset().union(*(needs[a] for a in varying)) | summed if varying else summed
    own = [i for i in indices if i in along - summed]  # the sum is for each of these
    counts = {o.index: o.count for o in ops}
    depends = {i: needs.get(counts[i], frozenset()) if type(counts[i]) is Var else frozenset() for i in indices}
    if not varying or all(i in along for i in indices) or any(depends[i] for i in (*own, *summed)):
        return None
    if any(depends[i] & summed for i in indices) or any(type(b.op) is Check for b in binds):
        return None
    out: list[Bind] = []
    changed = without(list(rows.levels), {rows.number})
    factor, block = product(varying, binds)
    levels = [b for b in rows.levels if b.op.index in along]
    if len(varying) == 1 and sum(weight(b.op) for b in block.binds) > CHEAP:
        stack = Var(factor.name, Arr(REAL, tuple(b.op.count for b in levels)), factor.span)
        out.append(stacking(levels, binds, {factor: stack}))
        found = Prim("get", (stack, *(b.op.index for b in levels)))
        changed = with_op(changed, factor, found) if changed is not None else None
        block = Block((Bind((factor,), found),), (factor,))
    out += [changed] if changed is not None else []
    start, sums = (Var("s", Arr(REAL, tuple(counts[i] for i in own))) for _ in range(2))
    out.append(Bind((start,), Prim("zeros", sums.type.dims)))
    fresh = {i: Var(i.name, INT, i.span, i.given, i.soft) for i in along}
    block = renamed(substitute(block, fresh))
    order = [b.op.index for b in levels]
    mine = [fresh[i] for i in own]
    out.append(adding(sums, start, [fresh[i] for i in order], [counts[i] for i in order], mine, block, bind.span))
    (final,), init = total.vars, total.op.inits[0]
    place = [rows.subs[p] for p in places]
    inner = products_added(rows, summed, (sums, *own), fixed, place, sign, init, final)
    return out, list(inner.binds)


def products_added(
    rows: Rows, summed: set[Var], read: Sequence[Atom], fixed: Sequence[Atom], place: Sequence[Var], sign: int,
    init: Atom, final: Var,
) -> Block:  # fmt: skip
    """The nest without the loops over what is summed, which adds the products of the sums and of what is fixed."""

    def inside(k: int, acc: Atom) -> tuple[list[Bind], Var]:
        if k == len(rows.levels):
            x = Var("t", REAL)
            out = [Bind((x,), Prim("get", tuple(read)))]
            for a in fixed:
                x, y = Var("t", REAL), x
                out.append(Bind((x,), Prim("*", (y, a))))
            if sign < 0:
                x, y = Var("t", REAL), x
                out.append(Bind((x,), Prim("neg", (y,))))
            stored = Var(final.name, final.type)
            return [*out, Bind((stored,), Prim("add-at", (acc, *place, x)))], stored
        op = rows.levels[k].op
        before = [b for b in op.body.binds if b.op is not rows.store and b not in rows.levels]
        if op.index in summed:
            more, result = inside(k + 1, acc)
            return [*before, *more], result
        own = Var(final.name, final.type)
        more, result = inside(k + 1, own)
        out = Var(final.name, final.type)
        body = tidy(Block((*before, *more), (result,)))
        return [Bind((out,), Loop(op.count, op.index, (acc,), (own,), body), rows.levels[k].span)], out

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


def factors_of(a: Atom, made: dict[Var, Op], whole: Callable[[Var], object]) -> list[Atom]:
    """The factors of a number; products that are ``whole`` are not taken apart."""
    op = made.get(a) if type(a) is Var else None
    if type(op) is not Prim or op.name != "*" or whole(a):
        return [a]
    return [x for y in op.args for x in factors_of(y, made, whole)]


def product(factors: Sequence[Atom], binds: Sequence[Bind]) -> tuple[Atom, Block]:
    """The product of some numbers that bindings make, and what computes it."""
    x, *more = factors
    out: list[Bind] = []
    for y in more:
        out.append(Bind((Var("t", REAL),), Prim("*", (x, y))))
        (x,) = out[-1].vars
    return x, tidy(Block((*binds, *out), (x,)))


def weight(op: Op) -> float:
    """The work of an operation; of all that is none a lot."""
    return work(op) if type(op) is Prim else 10 * CHEAP


def with_op(bind: Bind, v: Var, op: Op) -> Bind:
    """A binding in whose loops a variable is made by another operation."""
    if v in bind.vars:
        return Bind(bind.vars, op, bind.span)
    if type(bind.op) is not Loop:
        return bind
    binds = tuple(with_op(b, v, op) for b in bind.op.body.binds)
    return Bind(bind.vars, replace(bind.op, body=tidy(Block(binds, bind.op.body.results))), bind.span)
