"""Loops over the matrices of a batch, as the gradient of a layer makes: products of the whole batch in their place.

``aside_block`` comes first, and gives the products that are added up loops of their own; ``batches_block`` comes when
all else has its form, and makes products of them, and of those that are stacked beside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
    most_uses,
    reads,
    with_blocks,
)
from ..program.dead import tidy


def batches_block(block: Block) -> Block:
    """A block, and the regions that the host runs, whose loops over matrices are products of all of them::

        (loop b (fn [i w] #((+ w (product (get x i) (get y i) ..)) (product (get y i) v ..))) w)
        =>  (+ w (product x y ..)), and a stack of products

    where the sums are over rows of ``x`` and ``y``: these follow one another in memory from one matrix to the next.
    What is added up otherwise, a product at a time, has a loop of its own.
    """
    zeros = {v for b in all_binds(block) if type(b.op) is Prim and b.op.name == "zeros" for v in b.vars}
    return in_their_place(block, lambda bind: as_products(bind, zeros))


def in_their_place(block: Block, change: Callable[[Bind], list[Bind] | None]) -> Block:
    """A block, and the regions that the host runs, with what ``change`` gives in place of loops that carry something
    on, where it gives something."""
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        made = change(b) if type(op) is Loop and op.accs else None
        if made is not None:
            out += made
            continue
        regions = blocks_of(op) if type(op) in (Loop, While, If) else ()
        inner = [in_their_place(r, change) for r in regions]
        same = all(x is y for x, y in zip(inner, regions))
        out.append(b if same else Bind(b.vars, with_blocks(op, inner), b.span))
    unchanged = len(out) == len(block.binds) and all(x is y for x, y in zip(out, block.binds))
    return block if unchanged else Block(tuple(out), block.results)


def as_products(bind: Bind, zeros: set[Var]) -> list[Bind] | None:
    """What takes the place of a loop that adds up and stacks products, and does nothing else; None where a sum is none
    of whole arrays and nothing is stacked beside. ``zeros``: arrays that are known to be."""
    op: Loop = bind.op  # type: ignore[assignment]
    body, n = op.body, len(op.accs)
    if op.snapshots is not None or op.index.soft:
        return None
    made = {v: b for b in body.binds for v in b.vars}
    views = {b.vars[0]: b.op for b in body.binds if type(b.op) is Prim and b.op.name == "get"}
    inside = {op.index, *op.accs, *made}
    if not all(v.args[1:] == (op.index,) and v.args[0] not in inside for v in views.values()):
        return None
    sums: list[tuple[Bind, Bind]] = []  # of each accumulator the product and the sum
    for acc, r in zip(op.accs, body.results):
        total = made.get(r)  # type: ignore[call-overload]
        terms = sum_of(total) if total is not None else None
        if terms is None or acc not in terms or most_uses(body, acc) != most_uses(Block((total,), ()), acc):  # type: ignore
            return None
        product = made.get(next((x for x in terms if x is not acc), acc))  # type: ignore[call-overload, arg-type]
        if product is None or not multiplies(product, views, inside) or r in body.results[:n][: len(sums)]:
            return None
        sums.append((product, total))  # type: ignore[arg-type]
    stacked = [made.get(r) for r in body.results[n:]]  # type: ignore[call-overload]
    if any(b is None or not multiplies(b, views, inside) for b in stacked):
        return None
    used = {b for pair in sums for b in pair} | {*stacked}
    if any(b not in used and b.vars[0] not in views for b in body.binds):
        return None
    whole = [in_rows(product.op, views) for product, _ in sums]  # type: ignore[arg-type]
    if not stacked and not any(whole):
        return None
    out: list[Bind] = []
    for k, ((product, total), flat) in enumerate(zip(sums, whole)):
        if not flat:
            alone = Block(
                tuple(b for b in body.binds if b in (product, total) or b.vars[0] in reads(product)), total.vars
            )
            out.append(Bind((bind.vars[k],), Loop(op.count, op.index, (op.inits[k],), (op.accs[k],), alone), bind.span))
            continue
        x, y, rows, columns, terms, s, t = product.op.args  # type: ignore[union-attr]
        many = Var("rows", INT, bind.span)
        out.append(Bind((many,), Prim("*", (op.count, terms)), bind.span))  # type: ignore[arg-type]
        args = (views[x].args[0], views[y].args[0], rows, columns, many, s, t)  # type: ignore[index]
        init = op.inits[k]
        v = bind.vars[k] if init in zeros else Var(product.vars[0].name, product.vars[0].type, bind.span)
        out.append(Bind((v,), Prim("product", args), product.span))
        if v is not bind.vars[k]:
            like = total.op.body.binds[0].op.body.binds[-1]  # type: ignore[union-attr]
            out.append(matrix_sum(bind.vars[k], init, v, like))  # type: ignore[arg-type]
    for v, b in zip(bind.vars[n:], stacked):
        index = Var(op.index.name, INT, op.index.span, op.index.given)
        here = {op.index: index}
        mine = [x for x in body.binds if x.vars[0] in views and x.vars[0] in reads(b)]  # type: ignore[arg-type]
        fresh = {x.vars[0]: Var(x.vars[0].name, x.vars[0].type, x.span) for x in mine}
        binds = [Bind((fresh[x.vars[0]],), Prim("get", (x.op.args[0], here[op.index])), x.span) for x in mine]  # type: ignore
        last = Var(b.vars[0].name, b.vars[0].type, b.span)  # type: ignore[union-attr]
        args = tuple(fresh.get(a, a) for a in b.op.args)  # type: ignore[union-attr, call-overload]
        binds.append(Bind((last,), Prim("product", args), b.span))  # type: ignore[union-attr]
        out.append(Bind((v,), Loop(op.count, index, (), (), Block(tuple(binds), (last,))), bind.span))
    return out


def multiplies(bind: Bind, views: dict[Var, Prim], inside: set[Var]) -> bool:
    """Whether a binding is a product of matrices of a batch, or of one of them with one that is the same for all."""
    op = bind.op
    if type(op) is not Prim or op.name != "product" or any(a in inside for a in op.args[2:]):
        return False
    return all(a in views or a not in inside for a in op.args[:2])


def in_rows(op: Prim, views: dict[Var, Prim]) -> bool:
    """Whether the terms of a product's sums are rows of both matrices, of a batch each."""
    x, y, *_, s, t = op.args
    return x in views and y in views and bool(s.value) and not t.value  # type: ignore[union-attr]


def sum_of(bind: Bind) -> tuple[Atom, Atom] | None:
    """The two matrices that a nest adds up, and does nothing else."""
    outer = bind.op
    if type(outer) is not Loop or outer.accs or len(outer.body.binds) != 1:
        return None
    inner = outer.body.binds[0].op
    if type(inner) is not Loop or inner.accs or outer.body.results != outer.body.binds[0].vars:
        return None
    *gets, last = inner.body.binds or (None,)
    if len(gets) != 2 or type(last.op) is not Prim or last.op.name != "+" or inner.body.results != last.vars:
        return None
    place = (outer.index, inner.index)
    if any(type(g.op) is not Prim or g.op.name != "get" or g.op.args[1:] != place for g in gets):
        return None
    if {*last.op.args} != {v for g in gets for v in g.vars}:
        return None
    return gets[0].op.args[0], gets[1].op.args[0]


def aside_block(block: Block, parallel: Callable[[Bind], bool]) -> Block:
    """A block, and the regions that the host runs, in which the products that a loop adds up have a loop of their own::

        (loop b (fn [i w] .. x .. y .. (+ w (product x y ..))) w)
        =>  xs, ys = (loop b (fn [i] .. #(x y))), then (loop b (fn [i w] (+ w (product (get xs i) (get ys i) ..))) w)

    where the rest of an iteration needs no other one, as ``parallel`` says of a loop: a gradient of weights by a batch.
    """
    return in_their_place(block, lambda bind: set_aside(bind, parallel))


def set_aside(bind: Bind, parallel: Callable[[Bind], bool]) -> list[Bind] | None:
    """The two loops, and as many more as there are such products."""
    op: Loop = bind.op  # type: ignore[assignment]
    body, n = op.body, len(op.accs)
    if op.snapshots is not None:
        return None
    made = {v: b for b in body.binds for v in b.vars}
    inside: set[Atom] = {op.index, *op.accs, *made}
    found: dict[int, tuple[Bind, Bind, Bind]] = {}  # of an accumulator: the nest, in it the sum, and the product
    for k, (acc, r) in enumerate(zip(op.accs, body.results)):
        nest = made.get(r)  # type: ignore[call-overload]
        alone = nest is not None and most_uses(body, acc) == 1 and most_uses(body, r) == 1  # type: ignore[arg-type]
        step = summed(nest, nest.vars.index(r), acc) if alone else None  # type: ignore[union-attr, arg-type]
        product = made.get(step[1]) if step is not None else None
        if product is None or type(product.op) is not Prim or product.op.name != "product":
            continue
        x, y, *sizes, s, t = product.op.args
        if bool(s.value) and not t.value and x in inside and y in inside and inside.isdisjoint(sizes):  # type: ignore
            found[k] = nest, step[0], product  # type: ignore[assignment, index]
    if not found:
        return None
    gone = {body.results[k] for k in found}
    rest = [dropped(b, gone) if any(b is nest for nest, *_ in found.values()) else b for b in body.binds]
    kept = [k for k in range(n) if k not in found]
    factors: dict[Atom, Var | None] = {}
    for *_, product in found.values():
        for x in product.op.args[:2]:  # type: ignore[union-attr]
            view = made[x].op  # type: ignore[index]
            if (
                type(view) is Prim
                and view.name == "get"
                and view.args[1:] == (op.index,)
                and view.args[0] not in inside
            ):
                factors[x] = None
            elif not inside.isdisjoint(x.type.dims):  # type: ignore[union-attr]
                return None
            else:
                factors.setdefault(x, Var(x.name, Arr(REAL, (op.count, *x.type.dims)), x.span))  # type: ignore
    stacked = {x: v for x, v in factors.items() if v is not None}
    results = (*(body.results[k] for k in kept), *body.results[n:], *stacked)
    inner = tidy(Block(tuple(b for b in rest if b is not None), results))
    inits, accs = (tuple(a[k] for k in kept) for a in (op.inits, op.accs))
    vars_ = (*(bind.vars[k] for k in kept), *bind.vars[n:], *stacked.values())
    first = Bind(vars_, replace(op, inits=inits, accs=accs, body=inner), bind.span)
    if not parallel(first):
        return None
    out = [first] if vars_ else []
    for k, (_, total, product) in found.items():
        index, acc = Var(op.index.name, INT, op.index.span, op.index.given), Var(op.accs[k].name, op.accs[k].type)
        binds, matrices = [], []
        for x in product.op.args[:2]:  # type: ignore[union-attr]
            source = factors[x] or made[x].op.args[0]  # type: ignore[index, union-attr]
            view = Var(x.name, x.type, x.span)  # type: ignore[union-attr]
            binds.append(Bind((view,), Prim("get", (source, index)), product.span))
            matrices.append(view)
        of = Var(product.vars[0].name, product.vars[0].type, product.span)
        binds.append(Bind((of,), Prim("product", (*matrices, *product.op.args[2:])), product.span))  # type: ignore
        binds.append(matrix_sum(Var(acc.name, acc.type, bind.span), acc, of, total))
        block = Block(tuple(binds), binds[-1].vars)
        out.append(Bind((bind.vars[k],), Loop(op.count, index, (op.inits[k],), (acc,), block), bind.span))
    return out


def summed(nest: Bind, k: int, acc: Var) -> tuple[Bind, Var] | None:
    """Where result ``k`` of a nest is a matrix ``acc`` and another one: the sum of two elements, and the other one."""
    place: list[Atom] = []
    block, r, bind = Block((), ()), nest.vars[k], nest
    while type(bind.op) is Loop:
        at = bind.vars.index(r)  # type: ignore[arg-type]
        if at < len(bind.op.accs):
            return None
        place.append(bind.op.index)
        block, r = bind.op.body, bind.op.body.results[at]
        bind = next((b for b in block.binds if r in b.vars), bind)
        if r not in bind.vars:
            return None
    made = {b.vars[0]: b.op for b in block.binds if b.vars}
    if type(bind.op) is not Prim or bind.op.name != "+" or len(place) != 2:
        return None
    gets = [made.get(a) for a in bind.op.args]  # type: ignore[call-overload]
    if any(type(g) is not Prim or g.name != "get" or [*g.args[1:]] != place for g in gets):
        return None
    others = [g.args[0] for g in gets if g.args[0] is not acc]  # type: ignore[union-attr]
    return (bind, others[0]) if len(others) == 1 else None  # type: ignore[return-value]


def dropped(nest: Bind, gone: set[Atom]) -> Bind | None:
    """A nest without some of what it stacks; None where nothing is left."""
    op: Loop = nest.op  # type: ignore[assignment]
    left = [k for k, v in enumerate(nest.vars) if v not in gone]
    if not left:
        return None
    inner = {op.body.results[k] for k in range(len(nest.vars)) if k not in left}
    binds = (dropped(b, inner) if type(b.op) is Loop and inner & {*b.vars} else b for b in op.body.binds)
    body = tidy(Block(tuple(b for b in binds if b is not None), tuple(op.body.results[k] for k in left)))
    return Bind(tuple(nest.vars[k] for k in left), replace(op, body=body), nest.span)


def matrix_sum(out: Var, one: Var, other: Var, like: Bind) -> Bind:
    """``out``, the sum of two matrices, its elements made as ``like`` makes a number."""
    n, m = out.type.dims  # type: ignore[union-attr]
    i, j = Var("i", INT), Var("j", INT)
    a, b, t = (Var(v.name, REAL, like.span) for v in (one, other, like.vars[0]))
    row = Var(out.name, Arr(REAL, (m,)), like.span)
    binds = (
        Bind((a,), Prim("get", (one, i, j)), like.span),
        Bind((b,), Prim("get", (other, i, j)), like.span),
        Bind((t,), Prim("+", (a, b)), like.span, like.soft),
    )
    inner = Bind((row,), Loop(m, j, (), (), Block(binds, (t,))), like.span)
    return Bind((out,), Loop(n, i, (), (), Block((inner,), (row,))), like.span)
