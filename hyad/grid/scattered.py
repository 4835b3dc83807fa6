"""What a nest of loops adds in several places, as sums for each place, for a device with thousands of threads.

All pairs of particles add to both, each to its coordinates: for a thread for each particle these are atomic additions,
which meet in one element. ``gather`` takes sums one by one, out of nests that add to one place, and always. Here all
that goes to elements of the same loops' indices is one nest, with a sum for each place::

    (loop n (fn [i x] (loop n (fn [j x] (if (= i j) x (add-at (add-at x i 0 e) j 0 g))) x)) x)
    =>  s = (build n (fn [i] (ifold (fn [s j] (+ s (if (= i j) 0.0 e))) 0.0 n))), added to x at i 0
        t = (build n (fn [j] (ifold (fn [t i] (+ t (if (= i j) 0.0 g))) 0.0 n))), added to x at j 0

What is added is computed again for each place that it goes to. Where there are many parts, and several sums for each
index, the parts of these are rows, to be added up by a nest of their own, one that a team may have.

Before, a loop that adds to arrays and has sums of its own is taken apart: the sums stay with the iteration. Where that
loop goes over each pair once, ``j < i`` or ``i < j``, what it adds is a loop over all, in which a branch leaves out the
others::

    (ifold (fn [x j] (add-at x j e)) x i)
    =>  (ifold (fn [x j] (if (< j i) (add-at x j e) x)) x n)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core import (
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
    integer,
    same,
    substitute,
    type_of,
)
from ..passes.spread import nest, reductions, work
from ..program.additions import Addition, additions, totals
from ..program.affine import affine_add, affine_in
from ..program.dead import tidy
from .nesting import PLACES, SHARE, parts_of, share_of, statements, without
from .teams import renamed

AT_ONCE = 16  # sums that a thread takes at once; of threads that take more, a device has room for fewer
DEAR = 512.0  # the work of what is added, from which on it is not computed again: what atomic additions cost


def parted(bind: Bind, integers: Mapping[Var, Prim]) -> list[Bind]:
    """A parallel loop in whose body no loop both adds to arrays, in places of the loops' own, and has other results."""
    op = bind.op
    binds = [part for b in op.body.binds for part in in_two(b, op, integers)]
    if all(a is b for a, b in zip(binds, op.body.binds)):
        return [bind]
    return [Bind(bind.vars, replace(op, body=Block(tuple(binds), op.body.results)), bind.span)]


def in_two(bind: Bind, outer: Loop, integers: Mapping[Var, Prim]) -> list[Bind]:
    """A loop as two, of which one adds to arrays and nothing else, where that is possible; or as that one alone, where
    it goes over all now."""
    if type(bind.op) is not Loop or not plain(bind.op):
        return [bind]
    whole = over_all(bind, outer, integers)
    op = (whole or bind).op
    gone = []
    for r in reductions(op) or ():
        found = placed(op, r.accs[0], [outer, op], integers) if r.kind in ("scatter", "slice") and not r.read else None
        if found and any(i not in a.subs for a in found for i in (op.index, outer.index)):
            gone.append(r.accs[0])
        elif r.kind == "scatter":
            return [bind]
    left = [k for k in range(len(bind.vars)) if k not in gone]
    if not gone or not left and whole is None:
        return [bind]
    parts = [only(bind, numbers) for numbers in (gone, left) if numbers]
    if any(a in free_vars(part.op.body) for part in parts for a in op.accs):
        return [bind]
    return [over_all(parts[0], outer, integers) or parts[0], *parts[1:]]


def over_all(bind: Bind, outer: Loop, integers: Mapping[Var, Prim]) -> Bind | None:
    """A loop that adds to the elements of an array up to the index of the loop around it, or from there on, as one over
    all elements, with a branch; None where it is not that."""
    op, i = bind.op, outer.index
    inside = {b.vars[0]: b.op for b in all_binds(op.body) if type(b.op) is Prim}
    known = {**integers, **{v: x for v, x in inside.items() if x.name in ("+", "-")}}
    adds = (x.args for x in inside.values() if x.name == "add-at")
    places = ((affine_in(s, known), d) for a, *at in adds for s, d in zip(at[:-1], a.type.dims))
    place, size = next(((p, d) for p, d in places if p[1].get(op.index) == 1), (None, None))
    if place is None:
        return None
    first = affine_add(place, (0, {op.index: 1}), -1)
    end = affine_add(first, affine_in(op.count, known))
    left = affine_add(end, affine_in(size, known), -1)
    up_to = first == (0, {}) and (end[1] == {i: 1} or left[1] == {i: -1})
    if not up_to and not (first[1] == {i: 1} and not left[1]):
        return None
    index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
    binds: list[Bind] = []

    def made(name: str, *args: Atom, t: object = INT) -> Var:
        binds.append(Bind((Var("within" if t == BOOL else op.index.name, t),), Prim(name, args)))
        return binds[-1].vars[0]

    k: Atom = index if up_to else made("-", index, made("+", i, integer(first[0])))
    holds = made("<", k, op.count, t=BOOL)
    if not up_to:
        holds = made("and", made("<=", integer(0), k, t=BOOL), holds, t=BOOL)
    table = {op.index: k, **{v: index for v in inside if affine_in(v, known) == place}}
    body = renamed(substitute(Block(tuple(b for b in op.body.binds if b.vars[0] not in table), op.body.results), table))
    vars_ = tuple(like(a) for a in op.accs)
    binds.append(Bind(vars_, If(holds, body, Block((), op.accs)), bind.span))
    return Bind(bind.vars, Loop(size, index, op.inits, op.accs, Block(tuple(binds), vars_)), bind.span)


def only(bind: Bind, numbers: Sequence[int]) -> Bind:
    """A loop with some of its results alone."""
    op = bind.op
    n = len(op.accs)
    index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
    first = [k for k in numbers if k < n]
    accs = {op.accs[k]: like(op.accs[k]) for k in first}
    body = tidy(Block(op.body.binds, tuple(op.body.results[k] for k in numbers)))
    body = renamed(substitute(body, {op.index: index, **accs}))
    made = Loop(op.count, index, tuple(op.inits[k] for k in first), tuple(accs.values()), body)
    return Bind(tuple(bind.vars[k] for k in numbers), made, bind.span)


def plain(op: Loop) -> bool:
    return all(type(b.op) in (Prim, If) for b in all_binds(op.body))


def placed(op: Loop, k: int, loops: Sequence[Loop], integers: Mapping[Var, Prim]) -> list[Addition] | None:
    """What a loop adds to an array, where all subscripts are indices of ``loops``, or numbers."""
    acc = op.accs[k]
    found = additions(op.body, op.body.results[k])
    if found is None or found[1] is not acc or acc.type.elem != REAL:
        return None
    counts = {o.index: o.count for o in loops}
    for a in found[0]:
        indices = [s for s in a.subs if s in counts]
        if isinstance(type_of(a.value), Arr) or not indices or len(set(indices)) != len(indices):
            return None
        for s, size in zip(a.subs, acc.type.dims):  # there is such an element, whatever the other loops and branches do
            known = type(s) is Const and type(size) is Const and 0 <= s.value < size.value
            beyond = affine_add(affine_in(counts.get(s, s), integers), affine_in(size, integers), -1)
            if not known and not (s in counts and not beyond[1] and beyond[0] <= 0):
                return None
    return found[0]


def scattered(bind: Bind, integers: Mapping[Var, Prim]) -> list[Bind]:
    """A nest, and what it adds to arrays in several places, or in some iterations, as sums. ``integers``: the sums and
    differences of the program."""
    levels = nest(bind)
    ops: list[Loop] = [b.op for b in levels]
    inner = ops[-1]
    if not plain(inner):
        return [bind]
    binds = statements(levels, ())
    number = {k: k for k in range(len(ops[0].accs))}
    for outer, within in zip(ops, ops[1:]):
        number = {k: next(m for m, z in enumerate(within.inits) if z is outer.accs[j]) for k, j in number.items()}
    groups: dict[tuple[Var, ...], dict[tuple[int, tuple[Atom, ...]], set[Var]]] = {}
    taken: set[int] = set()
    for kind in reductions(ops[0]) or ():
        k = kind.accs[0]
        found = placed(inner, number[k], ops, integers) if kind.kind in ("scatter", "slice") and not kind.read else None
        if not found or len(found) == 1 and not found[0].inside:
            continue  # none, or one for ``gather``
        places = [tuple(o.index for o in ops if o.index in a.subs) for a in found]
        if any(len(free) == len(ops) for free in places):
            continue
        taken.add(k)
        for a, free in zip(found, places):
            groups.setdefault(free, {}).setdefault((k, a.subs), set()).add(a.after)
    accs = {a for o in ops for a in o.accs}
    made = {}
    for free, places in groups.items():
        wanted = [(inner.body.results[number[k]], chosen) for (k, _), chosen in places.items()]
        made[free] = totals(Block(binds, ()), wanted)
        weight = sum(work(b.op) for b in all_binds(made[free]) if type(b.op) is Prim)
        if weight > DEAR or any(v in accs for v in free_vars(made[free])):
            return [bind]
    if not taken:
        return [bind]
    rest = without(levels, taken)
    out = [rest] if rest is not None else []
    states: dict[int, Atom] = {k: ops[0].inits[k] for k in taken}
    for n, (free, places) in enumerate(groups.items()):
        later = {k for others in [*groups.values()][n + 1 :] for k, _ in others}
        finals = {k: bind.vars[k] if k not in later else like(bind.vars[k]) for k, _ in places}
        out += together(made[free], free, [*places], states, finals, ops, bind)
        states.update(finals)
    return out


def like(v: Var) -> Var:
    return Var(v.name, v.type, v.span)


def together(
    block: Block,
    free: Sequence[Var],
    places: Sequence[tuple[int, tuple[Atom, ...]]],
    states: dict[int, Atom],
    finals: dict[int, Var],
    ops: Sequence[Loop],
    bind: Bind,
) -> list[Bind]:
    """What adds the sums of a block's numbers to arrays, each to its place, for each of the indices ``free``."""
    table: dict[Var, Atom] = {o.index: Var(o.index.name, INT, o.index.span, o.index.given, o.index.soft) for o in ops}
    mine = [table[i] for i in free]
    sizes = [o.count for o in ops if o.index in free]
    first, *more = (o for o in ops if o.index not in free)
    block = renamed(block)
    if more and side_by_side(block, [more[-1].index], [o.index for o in ops]):
        return by_rows(block, free, places, states, finals, ops, bind)
    parts, before = parts_of(first.count, sizes, PLACES * AT_ONCE // max(AT_ONCE, len(places)))
    split = not (type(parts) is Const and parts.value == 1)
    inside, count, head, shift, part = table[first.index], first.count, [], [], Var("part", INT)
    if split:
        table[first.index] = Var(first.index.name, INT)
        count, head, shift = share_of(part, parts, first.count, inside, table[first.index])
    block = substitute(block, table)
    for o in reversed(more):
        block = folds(o.count, table[o.index], block)
    block = folds(count, inside, Block((*shift, *block.binds), block.results))
    if split:
        block = Block((*head, *block.binds), block.results)
        several = len({k for k, _ in places}) < len(places) and not (
            type(parts) is Const and parts.value <= SHARE or any(same(first.count, n) for n in sizes)  # few parts, too
        )
        made = stacks([part, *mine], [parts, *sizes], as_row(block) if several else block)
        before.append(made)
        if several:
            made = summed(made.vars[0], parts, sizes)
            before.append(made)
        table.update({i: Var(i.name, INT) for i in free})
        mine, part = [table[i] for i in free], Var("part", INT)
        terms = [Var("t", REAL) for _ in places]
        if several:
            reads = [Bind((t,), Prim("get", (made.vars[0], *mine, integer(k)))) for k, t in enumerate(terms)]
            block = Block(tuple(reads), tuple(terms))
        else:
            reads = [Bind((t,), Prim("get", (v, part, *mine))) for t, v in zip(terms, made.vars)]
            block = folds(parts, part, Block(tuple(reads), tuple(terms)))
    subs = [tuple(table.get(s, s) for s in at) for _, at in places]
    return [*before, stores(block, [k for k, _ in places], subs, mine, sizes, states, finals, bind)]


def side_by_side(block: Block, last: Sequence[Var], indices: Sequence[Var]) -> bool:
    """Whether what a block reads lies side by side along the last of the indices that it is summed over: then
    neighbouring threads had better share a sum."""
    integers = {b.vars[0]: b.op for b in all_binds(block) if type(b.op) is Prim and b.op.name in ("+", "-")}
    gets = [b.op for b in all_binds(block) if type(b.op) is Prim and b.op.name == "get" and len(b.op.args) > 1]
    inner = [{v for v in affine_in(op.args[-1], integers)[1] if v in indices} for op in gets]
    return any(i in part for part in inner for i in last) and all(not part or part & {*last} for part in inner)


def by_rows(
    block: Block,
    free: Sequence[Var],
    places: Sequence[tuple[int, tuple[Atom, ...]]],
    states: dict[int, Atom],
    finals: dict[int, Var],
    ops: Sequence[Loop],
    bind: Bind,
) -> list[Bind]:
    """``together`` over the last of the other indices first, which teams share."""
    *left, last = (o for o in ops if o.index not in free)
    mine = [o for o in ops if o.index in free]
    out: list[Bind] = []
    while True:
        table: dict[Var, Atom] = {o.index: Var(o.index.name, INT, o.index.span, o.index.given) for o in ops}
        block = folds(last.count, table[last.index], substitute(block, table))
        around = [*left, *mine]
        if not left:
            break
        made = stacks([table[o.index] for o in around], [o.count for o in around], block)
        out.append(made)
        terms = tuple(Var("t", REAL) for _ in made.vars)
        indices = [o.index for o in around]
        block = Block(tuple(Bind((t,), Prim("get", (v, *indices))) for t, v in zip(terms, made.vars)), terms)
        last = left.pop()
    subs = [tuple(table.get(s, s) for s in at) for _, at in places]
    indices = [table[o.index] for o in mine]
    counts = [o.count for o in mine]
    return [*out, stores(block, [k for k, _ in places], subs, indices, counts, states, finals, bind)]


def folds(count: Atom, index: Atom, block: Block) -> Block:
    """The sums of a block's results over an index."""
    accs = [Var("s", REAL) for _ in block.results]
    binds, totals_ = list(block.binds), [Var("s", REAL) for _ in accs]
    binds += [Bind((t,), Prim("+", (a, r))) for t, a, r in zip(totals_, accs, block.results)]
    zeros = (Const(0.0, REAL, True),) * len(accs)
    outs = tuple(Var("s", REAL) for _ in accs)
    return Block((Bind(outs, Loop(count, index, zeros, tuple(accs), Block(tuple(binds), tuple(totals_)))),), outs)


def as_row(block: Block) -> Block:
    """A block with its results in one row."""
    row = Var("s", Arr(REAL, (integer(len(block.results)),)))
    return Block((*block.binds, Bind((row,), Prim("array", block.results))), (row,))


def summed(rows: Var, parts: Atom, sizes: Sequence[Atom]) -> Bind:
    """The sums of rows over their first index, the parts: one for each element."""
    counts = [*sizes, rows.type.dims[-1]]
    indices, part, term = [Var("k", INT) for _ in counts], Var("part", INT), Var("t", REAL)
    read = Bind((term,), Prim("get", (rows, part, *indices)))
    return stacks(indices, counts, folds(parts, part, Block((read,), (term,))))


def stacks(indices: Sequence[Atom], counts: Sequence[Atom], block: Block) -> Bind:
    """A block's results, stacked over some indices."""
    for k in range(len(indices) - 1, -1, -1):
        inner = (getattr(type_of(r), "dims", ()) for r in block.results)
        outs = tuple(Var("s", Arr(REAL, (counts[k], *dims))) for dims in inner)
        bind = Bind(outs, Loop(counts[k], indices[k], (), (), block))
        block = Block((bind,), outs)
    return bind


def stores(
    block: Block,
    numbers: Sequence[int],
    subs: Sequence[tuple[Atom, ...]],
    indices: Sequence[Atom],
    counts: Sequence[Atom],
    states: dict[int, Atom],
    finals: dict[int, Var],
    bind: Bind,
) -> Bind:
    """The nest that adds a block's results to arrays, the first to the one of the first number, at its subscripts."""
    levels = [{k: like(v) for k, v in finals.items()} for _ in indices]
    now: dict[int, Atom] = dict(levels[-1])
    binds = list(block.binds)
    for k, at, x in zip(numbers, subs, block.results):
        after = like(finals[k])
        binds.append(Bind((after,), Prim("add-at", (now[k], *at, x)), bind.span))
        now[k] = after
    body = Block(tuple(binds), tuple(now.values()))
    for depth in range(len(indices) - 1, -1, -1):
        accs = levels[depth]
        inits = [levels[depth - 1][k] if depth else states[k] for k in accs]
        outs = tuple(like(finals[k]) if depth else finals[k] for k in accs)
        made = Bind(outs, Loop(counts[depth], indices[depth], tuple(inits), tuple(accs.values()), body), bind.span)
        body = Block((made,), outs)
    return made
