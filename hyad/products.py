"""Dense matrix products, found in nests of loops, for a BLAS to compute."""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Rebuild, defined_in, has_checks
from .core import BOOL, REAL, Arr, Atom, Bind, Block, Const, Loop, Prim
from .dead import tidy
from .nests import part_of, reading

#: A product that is known to take fewer multiplications is left to the loops.
LEAST = 32 * 32 * 32


class Products(Rebuild):
    """Makes one operation of three loops around one another that multiply two matrices.

    ``(build n (fn [i] (build m (fn [j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 l)))))``  =>
    ``(product a b n m l False False)``, the sum over ``k`` of ``a[i, k] b[k, j]``; where a factor is read as its
    transpose, its truth value is ``True``. An adjoint to which such products are added becomes its sum with one.

    Design decision: before the loops are fused, where each product still stands by itself; what is done to its elements
    becomes a loop over a matrix. Only on demand: a BLAS takes a sum in an order of its own.
    """

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and not has_checks(op.body):
            for k in range(len(bind.vars)):
                found = self.found(op, k)
                if found is not None:
                    self.b.fired("products")
                    made = self.product(*found)
                    if k < len(op.accs):
                        made = self.b.add(self.atom(op.inits[k]), made)
                    self.here[bind.vars[k]] = made
                    rest = [j for j in range(len(bind.vars)) if j != k]
                    if rest:
                        self.bind(part_of(bind, rest))
                    return
        self.copy(bind)

    def product(self, factors: Sequence[Prim], turned: Sequence[bool], sizes: Sequence[Atom]) -> Atom:
        """The operation itself, on the matrices that lie in the arrays that are read."""
        views = [self.b.get(*self.atoms(f.args[:-2])) for f in factors]
        n, m, _ = counts = self.atoms(sizes)
        args = (*views, *counts, *(Const(t, BOOL) for t in turned))
        return self.b.array_op("product", args, Arr(REAL, (n, m)), "product")

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
            elif inner.inits[at] is not nest.accs[k] or reading(nest.body, nest.accs[k]) != 1:
                return None
            nest, k = inner, at
        last, acc = made.op, nest.accs[k] if k < len(nest.accs) else None
        if len(loops) != 3 or type(last) is not Prim or acc is None or reading(block, acc) != 1:
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
