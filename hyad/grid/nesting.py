"""Nests of parallel loops: split, and rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Loop,
    Prim,
    Var,
    all_binds,
    blocks_of,
    free_vars,
    integer,
    reads,
    substitute,
)
from ..errors import Span
from ..passes.spread import reductions, work
from ..program.dead import tidy

PLACES = 1 << 18  # sums that keep a device busy: as many threads as it has room for
CHEAP = 8.0  # the work of a scalar, in additions, that is done again rather than read from memory
DEAR = 24.0  # the work of what is added from which on it is stacked, before it is gathered
SHARE = 64  # iterations that each part of a sum has at least


def statements(levels: Sequence[Bind], stores: Sequence[Prim]) -> tuple[Bind, ...]:
    """What is done in a nest, but for ``stores``."""
    ops = [b.op for b in levels]
    binds = (b for o in ops for b in o.body.binds)
    return tuple(b for b in binds if b.op not in stores and not (type(b.op) is Loop and b.op in ops))


def without(levels: Sequence[Bind], numbers: set[int]) -> Bind | None:
    """A nest without some accumulators; None where nothing is left."""
    op, (bind, *inner) = levels[0].op, levels
    n = len(op.accs)
    left = [k for k in range(n) if k not in numbers]
    binds = list(op.body.binds)
    if inner:
        within = {next(m for m, z in enumerate(inner[0].op.inits) if z is op.accs[k]) for k in numbers}
        made = without(inner, within)
        binds = binds[:-1] + ([made] if made is not None else [])
    results = tuple(op.body.results[k] for k in left) + op.body.results[n:]
    if not results and not any(type(b.op) is Check for x in binds for b in [x, *all_binds(Block((x,), ()))]):
        if not inner or made is None:
            return None
    body = tidy(Block(tuple(binds), results))
    accs, inits = tuple(op.accs[k] for k in left), tuple(op.inits[k] for k in left)
    vars_ = tuple(bind.vars[k] for k in left) + bind.vars[n:]
    return Bind(vars_, Loop(op.count, op.index, inits, accs, body), bind.span)


def alone(op: Loop, keep: Sequence[int]) -> Loop | None:
    """A parallel loop with some of its accumulators and nothing else. Of an array of which each iteration reads and
    changes a part of its own, and reads it first, that reads what was there before the loop. None where it does not
    read it first."""
    gone = {acc: (k, init) for k, (acc, init) in enumerate(zip(op.accs, op.inits)) if k not in keep}
    slices = {k for r in reductions(op) or () if r.kind == "slice" for k in r.accs}
    changed: set[Atom] = set()  # what those arrays have become, and all that is made of it
    binds: list[Bind] = []
    for b in op.body.binds:
        x, read = b.op, reads(b)
        starts = [k for k, z in enumerate(x.inits) if z in gone] if type(x) is Loop else []
        if not changed.isdisjoint(read) or type(x) is Prim and x.name in ("update", "add-at") and x.args[0] in gone:
            changed.update(b.vars)
        elif starts:
            inner = alone(x, [k for k in range(len(x.accs)) if k not in starts])
            changed.update(b.vars if inner is None else [b.vars[k] for k in starts])
            changed.update(b.vars[len(x.accs) :])
            if inner is not None:
                kept = tuple(v for k, v in enumerate(b.vars[: len(x.accs)]) if k not in starts)
                binds.append(Bind(kept, inner, b.span))
        elif type(x) is not Prim and any(isinstance(v.type, Arr) for v in b.vars) and not gone.keys().isdisjoint(read):
            changed.update(b.vars)
        else:
            binds.append(b)
    results = tuple(op.body.results[k] for k in keep)
    body = tidy(Block(tuple(binds), results))
    used = free_vars(body)
    if not changed.isdisjoint((*used, *results)) or any(a in used and k not in slices for a, (k, _) in gone.items()):
        return None
    body = substitute(body, {a: init for a, (_, init) in gone.items()})
    return Loop(op.count, op.index, tuple(op.inits[k] for k in keep), tuple(op.accs[k] for k in keep), body)


def operation(name: str, *args: Atom, hint: str = "parts") -> tuple[Var, Bind]:
    """An integer operation and its value."""
    v = Var(hint, INT)
    return v, Bind((v,), Prim(name, args))


def nested(indices: Sequence[Var], counts: Sequence[Atom], block: Block, elem, name: str) -> Bind:
    """``block``, with one result, stacked over some indices."""
    (x,) = block.results
    bind: Bind | None = None
    for k in range(len(indices) - 1, -1, -1):
        body = block if bind is None else Block((bind,), bind.vars)
        var = Var(name, Arr(elem, tuple(counts[k:])))
        bind = Bind((var,), Loop(counts[k], indices[k], (), (), body))
    assert bind is not None
    return bind


def adding(
    array: Var,
    init: Atom,
    indices: Sequence[Var],
    counts: Sequence[Atom],
    subs: Sequence[Atom],
    block: Block,
    span: Span | None,
    where: Callable[[Block, Atom], Block] | None = None,
    by: str = "add-at",
) -> Bind:
    """The nest that adds ``block``'s result to ``array`` at ``subs``, or stores it there (``by``); with ``where`` only
    where that makes what it is given first of it, and not second."""
    (x,) = block.results
    t = array.type
    if not indices:
        raise AssertionError
    accs = [Var(array.name, t) for _ in indices]
    stored = Var(array.name, t)
    bind: Bind | None = None
    for k in range(len(indices) - 1, -1, -1):
        if bind is None:
            store = Bind((stored,), Prim(by, (accs[k], *subs, x)), span)
            body = Block((*block.binds, store), (stored,))
            body = body if where is None else where(body, accs[k])
        else:
            body = Block((bind,), bind.vars)
        out = array if k == 0 else Var(array.name, t)
        start = init if k == 0 else accs[k - 1]
        bind = Bind((out,), Loop(counts[k], indices[k], (start,), (accs[k],), body), span)
    assert bind is not None
    return bind


def folding(count: Atom, index: Var, block: Block, elem, span) -> Bind:
    """The sum of ``block``'s result over an index."""
    zero = Const(0.0 if elem == REAL else 0, elem, True)
    acc, total, out = Var("s", elem), Var("s", elem), Var("s", elem)
    body = Block((*block.binds, Bind((total,), Prim("+", (acc, block.results[0])), span)), (total,))
    return Bind((out,), Loop(count, index, (zero,), (acc,), body), span)


def stacking(levels: Sequence[Bind], binds: Sequence[Bind], kept: dict[Var, Var]) -> Bind:
    """A nest that stacks some values."""
    ops = [b.op for b in levels]
    table: dict[Var, Atom] = {o.index: Var(o.index.name, INT, o.index.span, o.index.given, o.index.soft) for o in ops}
    block = substitute(tidy(Block(tuple(binds), tuple(kept))), table)
    bind: Bind | None = None
    for k in range(len(ops) - 1, -1, -1):
        body = block if bind is None else Block((bind,), bind.vars)
        outs = tuple(v if k == 0 else Var(v.name, Arr(v.type.elem, v.type.dims[k:]), v.span) for v in kept.values())
        bind = Bind(outs, Loop(ops[k].count, table[ops[k].index], (), (), body), levels[0].span)
    assert bind is not None
    return bind


def parts_of(count: Atom, sizes: Sequence[Atom], most: int) -> tuple[Atom, list[Bind]]:
    """How many parts a sum of ``count`` terms for each of ``sizes`` elements is taken in, and how that is computed."""
    if all(type(a) is Const for a in (count, *sizes)):
        outputs = 1
        for a in sizes:
            outputs *= max(a.value, 1)
        return integer(max(1, min(most // outputs, count.value // SHARE))), []
    binds: list[Bind] = []
    outputs: Atom = integer(1)
    for a in sizes:
        outputs, b = operation("*", outputs, a)
        binds.append(b)
    for name, other in (("max", integer(1)), ("//", integer(most))):
        args = (outputs, other) if name == "max" else (other, outputs)
        outputs, b = operation(name, *args)
        binds.append(b)
    shares, b = operation("//", count, integer(SHARE))
    binds.append(b)
    parts, b = operation("min", outputs, shares)
    binds.append(b)
    parts, b = operation("max", parts, integer(1))
    return parts, [*binds, b]


def share_of(part: Atom, parts: Atom, count: Atom, index: Atom, place: Var) -> tuple[Atom, list[Bind], list[Bind]]:
    """How many terms a part of a sum has, how that is computed, and how ``place``, the number of its ``index``-th term,
    is: neighbouring parts take neighbouring terms, which lie side by side in memory."""
    head: list[Bind] = []

    def made(binds: list[Bind], name: str, *args: Atom) -> Atom:
        v, b = operation(name, *args, hint="terms")
        binds.append(b)
        return v

    rest = made(head, "-", made(head, "-", count, part), integer(1))
    length = made(head, "+", made(head, "//", rest, parts), integer(1))
    step: list[Bind] = []
    ahead = made(step, "*", index, parts)
    return length, head, [*step, Bind((place,), Prim("+", (ahead, part)))]


def weighed(b: Bind) -> float:
    """The work of a binding; of a loop more than of anything else."""
    if type(b.op) is Prim:
        return work(b.op)
    return sum(weighed(x) for block in blocks_of(b.op) for x in block.binds) + (DEAR if type(b.op) is Loop else 0.0)
