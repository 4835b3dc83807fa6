"""Dense matrix products, found in nests of loops, for a BLAS to compute."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import BOOL, REAL, Arr, Atom, Bind, Block, Const, Loop, Prim, Var, count_uses, defined_in
from ..program.builder import Builder
from ..program.dead import has_checks, tidy
from ..program.rebuild import Rebuild
from .nests import part_of

#: A product that is known to take fewer multiplications is left to the loops.
LEAST = 32 * 32 * 32


class Products(Rebuild):
    """Makes one operation of three loops around one another that multiply two matrices.

    ``(build n (fn [i] (build m (fn [j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 l)))))``  =>
    ``(product a b n m l False False)``, the sum over ``k`` of ``a[i, k] b[k, j]``; where a factor is read as its
    transpose, its truth value is ``True``. An adjoint to which such products are added becomes its sum with one.

    No transpose is made for a product, or of one: ``(product (transpose a) b ..)`` reads ``a`` as its transpose, and
    ``(transpose (product a b ..))``, where nothing else reads the product, is one of ``b`` and ``a``.

    Design decision: before the loops are fused, where each product still stands by itself; what is done to its elements
    becomes a loop over a matrix. Only on demand: a BLAS takes a sum in an order of its own.
    """

    def __init__(self, builder: Builder, uses: dict[Var, int]) -> None:
        super().__init__(builder)
        self.uses = uses
        self.transposes: dict[Atom, Atom] = {}  # the matrix that each is the transpose of
        self.made: dict[Var, tuple[Atom, ...]] = {}  # this block's products, by what they were: their arguments

    def block(self, block: Block) -> tuple[Atom, ...]:
        outer, self.made = self.made, {}
        results = super().block(block)
        self.made = outer
        return results

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop or has_checks(op.body):
            self.copy(bind)
            return
        for k, var in enumerate(bind.vars):
            found = self.found(op, k)
            made = self.product(var, *found) if found is not None else self.other_way(op, k)
            if made is not None:
                self.b.fired("products")
                if k < len(op.accs):
                    start, product = self.atom(op.inits[k]), made
                    made = self.b.add(start, product)
                    if made is not product:
                        self.made.pop(var, None)
                self.here[var] = made
                rest = [j for j in range(len(bind.vars)) if j != k]
                if rest:
                    self.bind(part_of(bind, rest))
                return
        self.copy(bind)
        for k in range(len(op.accs), len(bind.vars)):
            turned = transposed(op, k)
            if turned is not None:
                self.transposes[self.here[bind.vars[k]]] = self.b.get(*self.atoms(turned[0].args[:-2]))

    def product(self, var: Var, factors: Sequence[Prim], turned: Sequence[bool], sizes: Sequence[Atom]) -> Atom:
        """The operation itself, on the matrices that lie in the arrays that are read."""
        views, ways = [], []
        for f, t in zip(factors, turned):
            view = self.b.get(*self.atoms(f.args[:-2]))
            views.append(self.transposes.get(view, view))
            ways.append(Const(t != (view in self.transposes), BOOL))
        args = self.made[var] = (*views, *self.atoms(sizes), *ways)
        return self.b.array_op("product", args, Arr(REAL, args[2:4]), "product")

    def other_way(self, op: Loop, k: int) -> Atom | None:
        """The transpose of a product, as a product."""
        turned = transposed(op, k)
        if turned is None:
            return None
        (source, *subscripts), rows, columns = turned[0].args, *self.atoms(turned[1:])
        if len(subscripts) != 2 or source not in self.made or self.uses[source] != 1:
            return None
        x, y, n, m, terms, s, t = self.made[source]
        if (rows, columns) != (m, n):
            return None
        if k < len(op.accs) and self.type(op.accs[k].type) != Arr(REAL, (m, n)):
            return None
        turned_factors = (Const(not t.value, BOOL), Const(not s.value, BOOL))
        return self.b.array_op("product", (y, x, m, n, terms, *turned_factors), Arr(REAL, (m, n)), "product")

    def found(self, op: Loop, k: int) -> tuple[list[Prim], list[bool], list[Atom]] | None:
        """The two readings that are multiplied, whether each matrix is a transpose, and the three sizes."""
        loops: list[Loop] = []
        definitions: dict[Atom, Prim] = {}
        outside = defined_in(op.body) | {op.index, *op.accs}
        stacks = k >= len(op.accs)
        nest = op
        while True:
            if nest.count in outside:
                return None
            loops.append(nest)
            block = tidy(Block(nest.body.binds, (nest.body.results[k],)))
            definitions.update((x.vars[0], x.op) for x in block.binds if type(x.op) is Prim)
            (result,) = block.results
            made = next((x for x in block.binds if result in x.vars), None)
            if made is None or len(loops) > 3:
                return None
            if type(made.op) is not Loop:
                break
            at = made.vars.index(result)  # type: ignore[arg-type]
            inner = made.op
            if stacks and len(loops) < 2:
                if at < len(inner.accs):
                    return None
            elif at >= len(inner.accs):
                return None
            elif stacks:  # the sum
                start = inner.inits[at]
                if type(start) is not Const or repr(float(start.value)) != "0.0":
                    return None
            elif inner.inits[at] is not nest.accs[k] or count_uses(nest.body, nest.accs[k]) != 1:
                return None
            nest, k = inner, at
        last, acc = made.op, nest.accs[k] if k < len(nest.accs) else None
        if len(loops) != 3 or type(last) is not Prim or acc is None or count_uses(block, acc) != 1:
            return None
        if stacks:
            if last.name != "+" or acc not in last.args:
                return None
            value, place = last.args[last.args[0] is acc], (loops[0].index, loops[1].index)
        else:
            if last.name != "add-at" or last.args[0] is not acc or len(last.args) != 4:
                return None
            value, place = last.args[-1], last.args[1:-1]
        times = definitions.get(value)
        if times is None or times.name != "*":
            return None
        factors = [definitions.get(a) for a in times.args]
        indices = [loop.index for loop in loops]
        if any(f is None or f.name != "get" or f.args[0] in outside for f in factors):
            return None
        if any(a in outside for f in factors for a in f.args[1:-2]) or any(len(f.args) < 3 for f in factors):
            return None
        sets = [set(place), *(set(f.args[-2:]) for f in factors)]
        if any(len(s) != 2 or not s <= set(indices) for s in sets) or len(set(map(frozenset, sets))) != 3:
            return None
        x, y = place
        if x not in sets[1]:
            factors.reverse()
        (z,) = set(indices) - {x, y}
        turned = [factors[0].args[-1] is x, factors[1].args[-2] is y]
        sizes = [loops[indices.index(v)].count for v in (x, y, z)]
        if all(type(s) is Const for s in sizes) and sizes[0].value * sizes[1].value * sizes[2].value < LEAST:
            return None
        return factors, turned, sizes


def transposed(op: Loop, k: int) -> tuple[Prim, Atom, Atom] | None:
    """The reading of a matrix whose transpose is result ``k`` of two loops, or is what they add to it; and the sizes of
    the result."""
    outside = defined_in(op.body) | {op.index, *op.accs}
    block = tidy(Block(op.body.binds, (op.body.results[k],)))
    if len(block.binds) != 1 or type(block.binds[0].op) is not Loop:
        return None
    (made,) = block.binds
    inner: Loop = made.op  # type: ignore[assignment]
    if inner.count in outside or block.results[0] not in made.vars:
        return None
    at = made.vars.index(block.results[0])  # type: ignore[arg-type]
    body = tidy(Block(inner.body.binds, (inner.body.results[at],)))
    ops = {b.vars[0]: b.op for b in body.binds if type(b.op) is Prim}
    value, place = body.results[0], (op.index, inner.index)
    if k < len(op.accs):
        last = ops.get(value)
        if at >= len(inner.accs) or inner.inits[at] is not op.accs[k] or last is None or last.name != "add-at":
            return None
        if (
            last.args[0] is not inner.accs[at]
            or count_uses(block, op.accs[k]) != 1
            or count_uses(body, inner.accs[at]) != 1
        ):
            return None
        if len(last.args) != 4 or set(last.args[1:3]) != set(place):
            return None
        value, place = last.args[3], last.args[1:3]
    elif at < len(inner.accs):
        return None
    read = ops.get(value)
    if read is None or read.name != "get" or len(read.args) < 3 or read.args[-2:] != place[::-1]:
        return None
    if any(a in outside for a in read.args[:-2]):
        return None
    rows, columns = (op.count if index is op.index else inner.count for index in place)
    return read, rows, columns
