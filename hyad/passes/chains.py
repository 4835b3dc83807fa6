"""Nests of loops of which one reads what another has made: one nest, without the arrays between them."""

from __future__ import annotations

from ..core import (
    Bind,
    Block,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    kinds_of,
    reads,
    same,
    with_blocks,
    with_body,
)
from .fusion import merge_into


def chains(program: Program) -> Program:
    """Fuses nests of loops over the same range that hand arrays on, element by element, into one nest.

    ``a = (build n (fn [i] (build m (f i)))) .. (build n (fn [i] (build m (fn [j] (g (get a i j))))))``  =>
    ``(build n (fn [i] (build m (fn [j] (g (f i j))))))``, whoever else reads ``a`` being in that nest as well.
    Design decision: where all that reads an array comes into the nest that makes it, so that the array is a number; of
    nests of two loops, the inner of which have no loops inside. What reads an array of one loop's is ``fuse``'s, which
    asks what it costs to compute an element twice: here nothing is computed twice.
    """
    made = joined(program.body, False)
    return program if made is program.body else with_body(program, made)


def joined(block: Block, rows: bool) -> Block:
    """``chains`` for a block; ``rows``: it is the body of a nest that was joined, whose rows become numbers."""
    if Loop not in kinds_of(block):
        return block
    before = block
    block = at_this_level(block, rows)
    fresh = {x.op for x in before.binds}
    binds = []
    for x in block.binds:
        inner = blocks_of(x.op)
        made = [joined(b, type(x.op) is Loop and x.op not in fresh) for b in inner]
        changed = any(a is not b for a, b in zip(made, inner))
        binds.append(Bind(x.vars, with_blocks(x.op, made), x.span, x.soft) if changed else x)
    if block is before and all(a is b for a, b in zip(binds, block.binds)):
        return before
    return Block(tuple(binds), block.results)


def at_this_level(block: Block, rows: bool) -> Block:
    """The loops of a block joined, so that arrays that they hand on are gone; itself where there are none."""
    handed = handed_on(block, rows)
    while handed:
        made = merged(block, handed)
        kept = handed & {v for x in made.binds for v in reads(x)}
        if not kept:
            return Block(tuple(without(x, handed) for x in made.binds), made.results)
        handed -= kept  # what comes between two loops keeps them apart
    return block


def merged(block: Block, handed: set[Var]) -> Block:
    """Each loop of a block with those that read of it what is ``handed`` on."""
    binds, known, k = list(block.binds), {}, 0

    def wanted(one: Bind, two: Bind, both: Bind | None) -> bool:
        return any(v in handed and v in known[two] for v in one.vars)

    while k < len(binds):
        while type(binds[k].op) is Loop and not handed.isdisjoint(binds[k].vars):
            if not merge_into(binds, k, known, wanted, block.results):
                break
        k += 1
    return Block(tuple(binds), block.results)


def handed_on(block: Block, rows: bool) -> set[Var]:
    """The arrays that loops of a block stack and other ones read, each iteration what the same one has made."""
    loops = [x for x in block.binds if type(x.op) is Loop and (plain if rows else nest)(x.op)]
    found = {v: x.op.count for x in loops for v in x.vars[len(x.op.accs) :]}  # type: ignore[union-attr]
    sums = {v for x in loops for v in x.vars[: len(x.op.accs)]}  # type: ignore[union-attr]
    loops += [x for x in block.binds if type(x.op) is Loop and not sums.isdisjoint(x.op.inits)]  # they go on with these
    read: set[Var] = set()
    if found:
        for r in block.results:
            found.pop(r, None)  # type: ignore[call-overload]
        for x in block.binds:
            here = x.op if x in loops else None
            for v in reads(x).keys() & found.keys():
                if here is None or not same(here.count, found[v]) or not by_row(here.body, v, here.index):
                    del found[v]
                else:
                    read.add(v)
    return found.keys() & read


def plain(loop: Loop) -> bool:
    """Whether a loop has none inside."""
    return Loop not in kinds_of(loop.body)


def nest(loop: Loop) -> bool:
    """Whether a loop has some inside, and these have none."""
    inner = [x.op for x in all_binds(loop.body) if type(x.op) is Loop]
    return bool(inner) and all(map(plain, inner))


def by_row(block: Block, array: Var, index: Var) -> bool:
    """Whether a block reads of an array only the row at an index."""
    for x in all_binds(block):
        if array in atoms_of(x.op) and not (
            type(x.op) is Prim and x.op.name == "get" and x.op.args[1] is index and x.op.args.count(array) == 1
        ):
            return False
    blocks = [block, *(b for x in all_binds(block) for b in blocks_of(x.op))]
    return all(array not in b.results for b in blocks)


def without(bind: Bind, unread: set[Var]) -> Bind:
    """A loop that does not stack some arrays."""
    op = bind.op
    if type(op) is not Loop or unread.isdisjoint(bind.vars):
        return bind
    kept = [k for k, v in enumerate(bind.vars) if v not in unread]
    body = Block(op.body.binds, tuple(op.body.results[k] for k in kept))
    return Bind(tuple(bind.vars[k] for k in kept), with_blocks(op, [body]), bind.span, bind.soft)
