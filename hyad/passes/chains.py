"""Nests of loops of which one reads what another has made: one nest, without the arrays between them."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    Bind,
    Block,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    all_blocks,
    atoms_of,
    blocks_of,
    kinds_of,
    reads,
    same,
    with_blocks,
    with_body,
)
from ..program.rebuild import rebuild
from .fusion import branches, makes_sums, merge_into, one_hot


def chains(program: Program) -> Program:
    """Fuses nests of loops over the same range that hand arrays on, element by element, into one nest.

    ``a = (build n (fn [i] (build m (f i)))) .. (build n (fn [i] (build m (fn [j] (g (get a i j))))))``  =>
    ``(build n (fn [i] (build m (fn [j] (g (f i j))))))``, whoever else reads ``a`` being in that nest as well.
    Design decision: where all that reads an array comes into the nest that makes it, so that the array is a number; of
    nests of two loops, the inner of which have no loops inside, and of deeper ones whose sums are only compared, as
    distances are (``searched``): products of matrices want a nest of their own, and so do sums that are read in loops
    with others in branches. What reads an array of one loop's is ``fuse``'s, which asks what it costs to compute an
    element twice: here nothing is computed twice.
    """
    made = joined(program.body, False)
    return program if made is program.body else rebuild(with_body(program, made))  # what is equal now is shared


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
        first = binds[k]
        if type(first.op) is not Loop or handed.isdisjoint(first.vars):
            k += 1
        elif not merge_into(binds, k, known, wanted, block.results) and binds[k] is first:
            k += 1  # else what comes first now was between the two
    return Block(tuple(binds), block.results)


def handed_on(block: Block, rows: bool) -> set[Var]:
    """The arrays that loops of a block stack and other ones read, each iteration what the same one has made."""
    loops = [x for x in block.binds if type(x.op) is Loop and (plain if rows else nest)(x.op)]
    loops += [] if rows else searched(block, loops)
    found = {v: x.op for x in loops for v in x.vars[len(x.op.accs) :]}  # type: ignore[union-attr]
    sums = {v for x in loops for v in x.vars[: len(x.op.accs)]}  # type: ignore[union-attr]
    loops += [x for x in block.binds if type(x.op) is Loop and not sums.isdisjoint(x.op.inits)]  # they go on with these
    read: set[Var] = set()
    if found:
        for r in block.results:
            found.pop(r, None)  # type: ignore[call-overload]
        for x in block.binds:
            for v in reads(x).keys() & found.keys():
                short = type(x.op) is Loop and plain(x.op) and v.type.rank > 1 and not rows  # type: ignore[union-attr]
                here = x.op if short or x in loops else None
                if here is None or not same(here.count, found[v].count) or not by_row(here.body, v, here.index):
                    del found[v]
                elif makes_sums(found[v]) and branches(here):
                    del found[v]
                else:
                    read.add(v)
    return found.keys() & read


def searched(block: Block, others: Sequence[Bind]) -> list[Bind]:
    """The deeper nests that join as well: where rows of sums are only searched for the least or the greatest, those
    that make the rows and those that search, and those that make or read what is made element by element."""
    deep = [x for x in block.binds if type(x.op) is Loop and x not in others and not plain(x.op)]
    deep = [x for x in deep if not multiplies(x.op)]  # type: ignore[arg-type]
    rows = {v for x in deep for v in x.vars[len(x.op.accs) :] if v.type.rank == 2}  # type: ignore[union-attr]
    compared = {v for v in rows if is_compared(block, v)}
    if not compared:
        return []
    made = compared.union(*(x.vars for x in deep if builds(x.op)))  # type: ignore[arg-type]
    return [x for x in deep if not made.isdisjoint((*x.vars, *reads(x)))]


def is_compared(block: Block, array: Var) -> bool:
    """Whether elements of an array, or of others that are made of these, are only compared, and read at one index."""
    compared = False
    for x in block.binds:
        if array not in reads(x):
            continue
        if type(x.op) is not Loop:
            return False
        made_of = builds(x.op) and not at_one_index(x)
        if only_compared(x.op.body, array) or made_of and all(is_compared(block, v) for v in x.vars):
            compared = True
        elif not at_one_index(x):
            return False
    return compared and array not in block.results


def multiplies(nest: Loop) -> bool:
    """Whether a nest multiplies elements of two arrays, as the sum of a matrix product does."""
    prims = [x for x in all_binds(nest.body) if type(x.op) is Prim]
    read = {x.vars[0] for x in prims if x.op.name == "get"}  # type: ignore[union-attr]
    products = (x.op.args for x in prims if x.op.name == "*")  # type: ignore[union-attr]
    return any(len(set(args)) > 1 and read.issuperset(args) for args in products)


def only_compared(block: Block, array: Var) -> bool:
    """Whether what a block reads of an array are elements, which or functions of which only go into comparisons."""
    binds = list(all_binds(block))
    found = {array}  # and what is made of it, in the order of the program
    for x in binds:
        op = x.op
        read = found.intersection(atoms_of(op))
        if not read:
            continue
        if type(op) is Loop:
            if not read <= set(op.inits):
                return False
        elif type(op) is not Prim or array in read and (op.name != "get" or len(op.args) < 3):
            return False
        elif op.name not in ("min", "max", "<", "<=", "="):
            found.update(x.vars)
    blocks = [block, *(b for x in binds for b in blocks_of(x.op))]
    return all(found.isdisjoint(b.results) for b in blocks)


def at_one_index(bind: Bind) -> bool:
    """Whether a loop makes arrays that are zero but for the rows at one index each."""
    op = bind.op
    return not op.accs and all(one_hot(op, k, v.type.rank) for k, v in enumerate(bind.vars))  # type: ignore[union-attr]


def builds(loop: Loop) -> bool:
    """Whether builds inside one another are all that a loop is."""
    return not loop.accs and all(not x.op.accs for x in all_binds(loop.body) if type(x.op) is Loop)


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
    return all(array not in b.results for b in all_blocks(block))


def without(bind: Bind, unread: set[Var]) -> Bind:
    """A loop that does not stack some arrays."""
    op = bind.op
    if type(op) is not Loop or unread.isdisjoint(bind.vars):
        return bind
    kept = [k for k, v in enumerate(bind.vars) if v not in unread]
    body = Block(op.body.binds, tuple(op.body.results[k] for k in kept))
    return Bind(tuple(bind.vars[k] for k in kept), with_blocks(op, [body]), bind.span, bind.soft)
