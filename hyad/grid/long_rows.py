"""Few long rows on a device with thousands of threads: each in pieces, over many blocks.

Where a team of threads has a row, as in ``(map softmax a)``, a block is the most that it is, and few rows leave most of
a device idle. ``by_passes`` makes of such a loop one for each pass over the rows, which may run as any other: one that
makes elements has a thread for each; what is folded is folded in pieces (``in_pieces``), and these are folded again::

    (build n (fn [i] (let [m (fold max .. (get a i))  s (fold + (map (exp (- x m))) ..)] (build m (fn [j] (/ .. s))))))
    =>  m = (build n (fn [i] (fold max .. (get a i))))
        s = (build n (fn [i] (fold + (map (fn [x] (exp (- x (get m i)))) ..))))
        (build [n m] (fn [i j] (/ (exp (- (get a i j) (get m i))) (get s i))))

What an element is computed from is read again in each pass, and the element computed again, rather than stored.

Exponentials below the largest element of a row are summed where that is looked for (``largest_in_pieces``): each piece
below its own largest element, while its elements are still in the cache, and the sums of the pieces are rescaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    binds_of,
    reads,
    same,
    substitute,
)
from ..passes.spread import nest, reductions
from ..program.dead import tidy
from ..program.journal import on
from .gather import divided
from .teams import TwoFolds, cut_in_pieces, deeper, elementwise, merged, renamed, scalars
from .vectors import with_largest

AGAIN = 96.0  # the work of an element, in additions, that many threads had better do again in a later pass


def by_passes(bind: Bind, rows: Sequence[Bind]) -> list[Bind] | None:
    """A loop over rows, of which a team shares the loops ``rows``, as several: each with one pass over the rows, or
    with none. None where a pass needs what is dearer than to compute it again, or where there is one pass alone."""
    op = bind.op
    count = rows[0].op.count
    loops = [b for b in op.body.binds if type(b.op) is Loop]
    if len(rows) != len(loops) or not all(same(b.op.count, count) and elementwise(b.op) for b in loops):
        return None
    if any(isinstance(acc.type, Arr) for acc in op.accs):
        return None
    if not all(scalars(c) for b in op.body.binds if b not in loops for c in binds_of(b)):
        return None
    wanted = {r for r in op.body.results if type(r) is Var}
    binds = [half for b in merged(op.body.binds, count, AGAIN) for half in halves(b)]
    body = tidy(Block(tuple(binds), op.body.results))
    late: set[Var] = set(op.accs)  # what the loop over rows folds is folded behind all passes
    groups: list[list[Bind]] = []
    for b in body.binds:
        if any(v in late for v in reads(b)):
            late.update(b.vars)
        elif type(b.op) is Loop or not groups:
            groups.append([b])
        else:
            groups[-1].append(b)
    if len(groups) > 1 and not any(type(b.op) is Loop for b in groups[0]):
        groups[:2] = [[*groups[0], *groups[1]]]
    made = [v for b in body.binds for v in b.vars if isinstance(v.type, Arr) and type(b.op) is Loop]
    if any(v not in wanted for v in made):
        return None
    whole = replace(bind, op=replace(op, body=body))
    joined = list(groups)
    for k in range(len(groups) - 1, 0, -1):
        if below_the_largest([*joined[k - 1], *joined[k]]) is not None:
            joined[k - 1 : k + 1] = [[*joined[k - 1], *joined[k]]]
    found = parted(whole, joined) if len(joined) < len(groups) else None
    return found or parted(whole, groups)


def parted(bind: Bind, groups: Sequence[Sequence[Bind]]) -> list[Bind] | None:
    """A loop over rows as one for each group of bindings, and one for the others; None where a pass of one of them is
    not for several blocks, or there is one pass alone."""
    parts = divided(bind, groups, folded=True)
    if parts is None and len(groups) == 1 and largest_in_pieces(bind) is not None:
        return [bind]
    for part in parts or ():
        inner = [b for b in part.op.body.binds if type(b.op) is Loop]
        rows = any(isinstance(v.type, Arr) for b in inner for v in b.vars)
        if rows and len(nest(part)) != 2 or len(inner) > 1 and largest_in_pieces(part) is None:
            return None
    return parts if parts is not None and len(parts) > 1 else None


def halves(bind: Bind) -> list[Bind]:
    """A pass that folds and makes rows as two."""
    op = bind.op
    n = len(op.accs) if type(op) is Loop else 0
    if not 0 < n < len(bind.vars) or reductions(op) is None:
        return [bind]
    folds = Loop(op.count, op.index, op.inits, op.accs, tidy(Block(op.body.binds, op.body.results[:n])))
    index = Var(op.index.name, INT, op.index.span)
    block = renamed(substitute(tidy(Block(op.body.binds, op.body.results[n:])), {op.index: index}))
    return [Bind(bind.vars[:n], folds, bind.span), Bind(bind.vars[n:], Loop(op.count, index, (), (), block), bind.span)]


# ------------------------------------------------------------------------------------------ sums of exponentials


def below_the_largest(binds: Sequence[Bind]) -> tuple[Bind, Bind, Var, bool] | None:
    """Of some bindings the one loop that looks for the largest element alone and the other one, that sums exponentials
    below it; what it sums them below; and whether that is 0 where the largest element is infinite."""
    loops = [b for b in binds if type(b.op) is Loop]
    if len(loops) != 2 or len(loops[0].vars) != 1 or not on("online"):
        return None
    one, other = loops
    between = binds[binds.index(one) + 1 : binds.index(other)]
    found = with_largest(one, between, other)
    if found is None:
        return None
    below = {v for b in (one, *between) for v in b.vars}.intersection(reads(other))
    return one, other, below.pop(), any(r.finite for r in found[1])


def largest_in_pieces(bind: Bind) -> TwoFolds | None:
    """A loop over rows, of each of which it looks for the largest element and sums exponentials below it, in pieces.
    None where it does more."""
    op, body = bind.op, bind.op.body
    found = below_the_largest(body.binds)
    if found is None:
        return None
    largest, sums, below, finite = found
    loops = largest, sums
    others = [b for b in body.binds if b not in loops]
    zeros = all(type(z) is Const and z.value == 0 for z in sums.op.inits)
    if op.accs or not zeros or any(isinstance(v.type, Arr) for b in loops for v in b.vars):
        return None
    if not all(type(c.op) in (Prim, If) and scalars(c) for b in others for c in binds_of(b)):
        return None
    names = "many most left piece each".split()
    many, most, left, piece, each = (Var(name, INT) for name in names)
    counting, start = cut_in_pieces(largest.op.count, piece, most, each)
    made = [tuple(Var(v.name, v.type, v.span) for v in b.vars) for b in loops]
    parts: list[Bind] = []
    for b, out in zip(loops, made):
        k = Var("k", INT)
        at = Bind((b.op.index,), Prim("+", (start, k)))
        least = (Const(float("-inf"), REAL),) if b is largest else b.op.inits
        block = Block((at, *b.op.body.binds), b.op.body.results)
        block = block if b is largest else substitute(block, {below: made[0][0]})
        parts.append(Bind(out, Loop(each, k, least, b.op.accs, block), b.span))
    flat = (*made[0], *made[1])
    rows = tuple(Var(v.name, Arr(v.type, (many,)), v.span) for v in flat)
    pieces = Bind(rows, Loop(many, piece, (), (), Block((*counting, *parts), flat)), sums.span)
    before = body.binds[: body.binds.index(largest)]
    stacks = tuple(Var(f"{v.name}_pieces", deeper(v.type, bind), v.span) for v in rows)
    first = Bind(stacks, replace(op, body=tidy(Block((*before, pieces), rows))), bind.span)
    whole: list[Bind] = []
    for b in body.binds:
        if b not in loops:
            whole.append(b)
            continue
        index = Var("piece", INT)
        total: list[Bind] = []

        def step(name: str, *args: object, t: object = REAL, total: list[Bind] = total) -> Var:
            total.append(Bind((Var("t", t),), Prim(name, args)))  # type: ignore[arg-type]
            return total[-1].vars[0]

        accs = tuple(Var(a.name, a.type) for a in b.op.accs)
        top = step("get", stacks[0], op.index, index)
        if b is largest:
            results = (step("max", accs[0], top),)
        else:
            equal = step("=", top, largest.vars[0], t=BOOL)  # both may be infinite
            none = step("=", top, Const(float("-inf"), REAL), t=BOOL)
            gap = step("select", equal, Const(0.0, REAL), step("-", top, largest.vars[0]))
            factor = step("exp", gap)
            results = ()
            for acc, stack in zip(accs, stacks[1:]):
                part = step("*", step("get", stack, op.index, index), factor)
                part = step("select", equal, part, step("select", none, Const(0.0, REAL), part))
                results = (*results, step("+", acc, part))
        loop = Loop(many, index, b.op.inits, accs, Block(tuple(total), results))
        if b is largest or not finite:
            whole.append(Bind(b.vars, loop, b.span))
            continue
        there = tuple(Var(v.name, v.type) for v in b.vars)
        total = []
        known = step(
            "=", step("-", largest.vars[0], largest.vars[0], total=total), Const(0.0, REAL), t=BOOL, total=total
        )
        beyond = step("exp", largest.vars[0], total=total)
        chosen = (Bind((v,), Prim("select", (known, s, beyond))) for v, s in zip(b.vars, there))
        whole += [Bind(there, loop, b.span), *total, *chosen]
    last = tuple(Var(v.name, v.type, v.span, v.given) for v in bind.vars)
    second = Bind(last, replace(op, body=tidy(Block(tuple(whole), body.results))), bind.span)
    return TwoFolds(first, renamed(Block((second,), ())).binds[0], many, most, left, each, True)
