"""Loops over the matrices of a batch, as the gradient of a layer makes: products of the whole batch in their place."""

from __future__ import annotations

from dataclasses import replace

from ..core import INT, Atom, Bind, Block, If, Loop, Prim, Var, While, blocks_of, most_uses, reads, with_blocks


def batches_block(block: Block) -> Block:
    """A block, and the regions that the host runs, whose loops over matrices are products of all of them::

        (loop b (fn [i w] #((+ w (product (get x i) (get y i) ..)) (product (get y i) v ..))) w)
        =>  (+ w (product x y ..)), and a stack of products

    where the sums are over rows of ``x`` and ``y``: these follow one another in memory from one matrix to the next.
    What is added up otherwise, a product at a time, has a loop of its own.
    """
    out: list[Bind] = []
    zeros = {b.vars[0] for b in block.binds if type(b.op) is Prim and b.op.name == "zeros"}
    for b in block.binds:
        op = b.op
        made = apart(b, zeros) if type(op) is Loop and op.accs else None
        if made is not None:
            out += made
            continue
        regions = blocks_of(op) if type(op) in (Loop, While, If) else ()
        inner = [batches_block(r) for r in regions]
        same = all(x is y for x, y in zip(inner, regions))
        out.append(b if same else Bind(b.vars, with_blocks(op, inner), b.span))
    unchanged = len(out) == len(block.binds) and all(x is y for x, y in zip(out, block.binds))
    return block if unchanged else Block(tuple(out), block.results)


def apart(bind: Bind, zeros: set[Var]) -> list[Bind] | None:
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
            out.append(Bind((bind.vars[k],), added(total.op, {op.accs[k]: init, product.vars[0]: v}), bind.span))
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


def added(nest: Loop, names: dict[Atom, Atom]) -> Loop:
    """The nest of a sum of two matrices, of others."""
    index, inner = Var(nest.index.name, INT), nest.body.binds[0]
    op: Loop = inner.op  # type: ignore[assignment]
    j, row = Var(op.index.name, INT), Var(inner.vars[0].name, inner.vars[0].type, inner.span)
    new: dict[Atom, Atom] = {**names, nest.index: index, op.index: j}
    binds = []
    for b in op.body.binds:
        v = Var(b.vars[0].name, b.vars[0].type, b.span)
        binds.append(Bind((v,), Prim(b.op.name, tuple(new.get(a, a) for a in b.op.args)), b.span, b.soft))  # type: ignore
        new[b.vars[0]] = v
    body = Block((Bind((row,), Loop(op.count, j, (), (), Block(tuple(binds), (v,))), inner.span),), (row,))
    return replace(nest, index=index, body=body)


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
