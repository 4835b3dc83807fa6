"""What is added to a matrix column by column, as in the gradient of a sum over the first axis: row by row.

::

    (loop m (fn [j a] (loop n (fn [i a] (add-at a i j x)) a)) a)
    =>  (loop n (fn [i a] (loop m (fn [j a] (add-at a i j x)) a)) a)

Neighbouring threads then add to neighbouring elements; and where the matrix was zeros before, each element is made
where it is read. A nest of which more is read along its own innermost loop stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import INT, Arr, Atom, Bind, Block, Loop, Op, Prim, Var, all_binds, substitute, type_of
from ..passes.spread import depends, nest, reductions
from ..program.affine import affine_in
from ..program.dead import tidy
from .nesting import adding, statements


def turned(bind: Bind) -> Bind:
    """A nest that adds once to each element of an array, with its loops in the order of the array's axes."""
    levels = nest(bind)
    op, last = bind.op, levels[-1].op
    (*_, kind) = reductions(op) or (None,)
    if len(levels) < 2 or len(bind.vars) != 1 or len(op.accs) != 1 or kind is None or kind.kind != "slice" or kind.read:
        return bind
    indices = [b.op.index for b in levels]
    stores = added(last, {v: b.op for b in last.body.binds for v in b.vars})
    subs = stores[0].args[1:-1] if stores else ()
    if len(subs) != len(indices) or set(subs) != {*indices} or subs[-1] is indices[-1]:
        return bind
    block = total(statements(levels, stores), [store.args[-1] for store in stores])
    if along(block, indices[-1]) > along(block, subs[-1]):
        return bind
    table: dict[Var, Atom] = {i: Var(i.name, INT, i.span, i.given, i.soft) for i in indices}
    counts = {b.op.index: b.op.count for b in levels}
    mine = [table[i] for i in subs]
    return adding(bind.vars[0], op.inits[0], mine, [counts[i] for i in subs], mine, substitute(block, table), bind.span)


def added(op: Loop, made: dict[Var, Op]) -> list[Prim]:
    """The additions to one element by which an iteration changes an array; none where it does so otherwise."""
    found: list[Prim] = []
    v = op.body.results[0]
    while v is not op.accs[0]:
        store = made.get(v)
        if type(store) is not Prim or store.name != "add-at" or isinstance(type_of(store.args[-1]), Arr):
            return []
        if found and store.args[1:-1] != found[0].args[1:-1]:
            return []
        found.append(store)
        v = store.args[0]
    return found[::-1]


def total(binds: Sequence[Bind], terms: Sequence[Atom]) -> Block:
    """The sum of some terms that bindings make."""
    more: list[Bind] = []
    x, *others = terms
    for y in others:
        more.append(Bind((Var("t", type_of(x)),), Prim("+", (x, y))))
        (x,) = more[-1].vars
    return tidy(Block((*binds, *more), (x,)))


def along(block: Block, index: Var) -> int:
    """How many arrays are read in a block side by side along an index."""
    made = {v: b.op for b in all_binds(block) for v in b.vars}
    integers = {v: o for v, o in made.items() if type(o) is Prim and o.name in ("+", "-")}
    gets: Sequence[Prim] = [o for o in made.values() if type(o) is Prim and o.name == "get" and len(o.args) > 1]
    found = 0
    for o in gets:
        *outer, inner = o.args[1:]
        side = index in affine_in(inner, integers)[1]
        found += side and not any(depends(a, {index}, made) for a in outer)
    return found
