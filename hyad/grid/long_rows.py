"""Few long rows on a device with thousands of threads: each in pieces, over many blocks.

Where a team of threads has a row, as in ``(map softmax a)``, a block is the most that it is, and few rows leave most of
a device idle. ``by_passes`` makes of such a loop one for each pass over the rows, which may run as any other: one that
makes elements has a thread for each; what is folded is folded in pieces (``in_pieces``), and these are folded again::

    (build n (fn [i] (let [m (fold max .. (get a i))  s (fold + (map (exp (- x m))) ..)] (build m (fn [j] (/ .. s))))))
    =>  m = (build n (fn [i] (fold max .. (get a i))))
        s = (build n (fn [i] (fold + (map (fn [x] (exp (- x (get m i)))) ..))))
        (build [n m] (fn [i j] (/ (exp (- (get a i j) (get m i))) (get s i))))

What an element is computed from is read again in each pass, and the element computed again, rather than stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import INT, Arr, Bind, Block, Loop, Var, binds_of, reads, same, substitute
from ..passes.spread import nest, reductions
from ..program.dead import tidy
from .gather import divided
from .teams import elementwise, merged, renamed, scalars

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
    parts = divided(replace(bind, op=replace(op, body=body)), groups, folded=True)
    if parts is None or len(parts) < 2:
        return None
    for part in parts:
        inner = [b for b in part.op.body.binds if type(b.op) is Loop]
        if len(inner) > 1 or any(isinstance(v.type, Arr) for b in inner for v in b.vars) and len(nest(part)) != 2:
            return None
    return parts


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
