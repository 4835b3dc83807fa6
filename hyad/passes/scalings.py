"""The constants of the sums that differentiation makes: terms with the same one are multiplied by it once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..core import (
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    uses,
    with_blocks,
    with_body,
)
from ..program.counts import work
from ..program.dead import tidy
from ..program.primitives import PRIMITIVES
from ..program.rebuild import rebuild
from .terms import LINEAR, exact, is_power

TERMS = 12  # a sum of more terms is one number
NEAR = 1e-9  # terms whose sum is that small beside them cancel: infinite ones do not


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A product of two, or a sum of some with their signs. There is one of each."""

    signs: tuple[float, ...]  # () is a product
    parts: tuple[Atom | Made, ...]


Item = Atom | Made
Terms = tuple[tuple[float, Item], ...]


def scalings(program: Program) -> Program:
    """Factors constants out of a derivative's products, and adds up terms with the same one before multiplying.

    ``(+ x (+ (* 0.1 (* a b)) (* -0.2 (* c (* 1.5 (+ d e))))))``, ``(+ .. (* 0.1 (* f g)))``  =>
    ``(- (+ x (* 0.1 (+ (* a b) (* f g)))) (* 0.3 (* c (+ d e))))``.

    Design decision: sums and products of differentiation's own (``Bind.soft``); after ``powers-of-two``, which is exact
    and leaves the constants that it cannot put together. A product that one addition takes up costs nothing, as one
    operation does both. A sum of two exact numbers stays one, as in ``like-terms``.
    """
    if not any(x.soft and is_scaled(x) for x in all_binds(program.body)):
        return program
    body = collected(program.body, uses(program.body))
    return program if body is program.body else rebuild(with_body(program, body))  # what is equal now is shared


def is_scaled(x: Bind) -> bool:
    return type(x.op) is Prim and x.op.name == "*" and type(x.op.args[0]) is Const and x.vars[0].type == REAL


def collected(block: Block, counts: Mapping[Var, int]) -> Block:
    """A block and those in it with such sums; itself where there are none."""
    binds = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [collected(r, counts) for r in regions]
        same = all(r is s for r, s in zip(made, regions))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    if not all(x is y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    if not any(x.soft and is_scaled(x) for x in block.binds):
        return block
    made = Scalings(block, counts).run()
    return made if fused(made) < fused(block) else block


def fused(block: Block) -> float:
    """The work of what stands in a block itself, without the products that an addition takes up."""
    straight = [x for x in block.binds if type(x.op) is Prim]
    products = {x.vars[0] for x in straight if x.op.name == "*" and x.vars[0].type == REAL}  # type: ignore[union-attr]
    reads: dict[Atom, int] = {}
    for a in (*block.results, *(a for x in block.binds for a in atoms_of(x.op))):
        reads[a] = reads.get(a, 0) + 1
    sums = [x.op.args for x in straight if x.op.name in ("+", "-")]  # type: ignore[union-attr]
    free = sum(any(a in products and reads[a] == 1 for a in args) for args in sums)
    return work(Block(tuple(straight), ())) - free


class Scalings:
    """One block. ``terms``: a number of differentiation's own as a sum of multiples; ``made``: what is computed."""

    def __init__(self, block: Block, counts: Mapping[Var, int]) -> None:
        self.block, self.counts = block, counts
        self.makers = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim}
        self.own = {
            x.vars[0]
            for x in block.binds
            if x.soft and type(x.op) is Prim and x.op.name in LINEAR and x.vars[0].type == REAL
        }
        self.terms: dict[Atom, Terms] = {}
        self.items: dict[tuple, Made] = {}
        self.made: dict[Item, Atom] = {}
        self.binds: list[Bind] = []
        self.scaled: dict[Atom, float] = {}  # how many products with a constant are in each
        self.ready: dict[Atom, float] = {}  # how much has to be computed, one after the other, before each number

    def run(self) -> Block:
        for x in self.block.binds:
            v = x.vars[0] if x.vars else None
            if v not in self.own:
                self.put(x)
                continue
            found = self.sum_of(x.op)  # type: ignore[arg-type]
            self.terms[v] = found or ((1.0, v),)  # type: ignore[index]
            scaled = is_scaled(x) + sum(map(self.scaled_in, x.op.args)) if found else 0.0  # type: ignore[union-attr]
            self.scaled[v] = scaled  # type: ignore[index]
            if len({abs(c) for c, _ in found if abs(c) != 1}) < scaled:
                self.write(x, found)
            else:
                self.put(x)
                if found and len(found) == 1 and found[0][0] == 1:
                    self.made.setdefault(found[0][1], v)  # type: ignore[arg-type]
        return tidy(Block(tuple(self.binds), self.block.results))

    def scaled_in(self, a: Atom) -> float:
        """How many products with a constant there are in a number, for each of those that read it."""
        reads = self.counts.get(a, 1)  # type: ignore[call-overload]
        return self.scaled.get(a, 0.0) / reads if reads == 1 or len(self.terms.get(a, ())) == 1 else 0.0

    def sum_of(self, op: Prim) -> Terms:
        """An operation as a sum of multiples; none where it stays as it is."""
        if op.name == "neg":
            return times(-1.0, self.open(op.args[0]))
        a, b = op.args
        if op.name == "*" and type(a) is Const:
            return times(float(a.value), self.open(b))
        if op.name == "*":
            (c, one), (d, two) = self.single(a), self.single(b)
            return times(c * d, ((1.0, self.one_of((), (one, two))),))
        if exact(self.makers, a) and exact(self.makers, b):
            return ()
        return together(self.open(a), times(1.0 if op.name == "+" else -1.0, self.open(b)))

    def open(self, a: Atom) -> Terms:
        """A number as the terms that a sum which reads it has."""
        found = self.terms.get(a, ((1.0, a),))
        if len(found) == 1 or self.counts.get(a) == 1:  # type: ignore[arg-type]
            return found
        return (self.single(a),)

    def single(self, a: Atom) -> tuple[float, Item]:
        """A number as a multiple of one other."""
        found = self.terms.get(a, ((1.0, a),))
        if len(found) == 1:
            return found[0]
        c = abs(found[0][0])
        if c == 1 or any(abs(d) != c for d, _ in found):
            return 1.0, a
        signs = tuple(math.copysign(1.0, d) for d, _ in found)
        return c, self.one_of(signs, tuple(item for _, item in found))

    def one_of(self, signs: tuple[float, ...], parts: tuple[Item, ...]) -> Made:
        return self.items.setdefault((signs, parts), Made(signs, parts))

    def emit(self, x: Bind, op: Prim, last: bool = False) -> Atom:
        v = x.vars[0] if last else Var(x.vars[0].name, REAL, x.span)
        self.put(Bind((v,), op, x.span, True))
        return v

    def put(self, x: Bind) -> None:
        row = PRIMITIVES.get(x.op.name) if type(x.op) is Prim else None
        before = max((self.ready.get(a, 0.0) for a in atoms_of(x.op)), default=0.0)
        self.ready.update(dict.fromkeys(x.vars, before + (row.cost if row else 0)))
        self.binds.append(x)

    def item(self, x: Bind, item: Item) -> Atom:
        """What computes a product or a sum, once."""
        if type(item) is not Made:
            return item  # type: ignore[return-value]
        if item not in self.made:
            parts = [self.item(x, i) for i in item.parts]
            product = not item.signs
            self.made[item] = (
                self.emit(x, Prim("*", tuple(parts))) if product else self.added(x, list(zip(item.signs, parts)))
            )
        return self.made[item]

    def added(self, x: Bind, terms: list[tuple[float, Atom]], last: bool = False) -> Atom:
        """The sum of numbers with their signs: one that is added stands first."""
        at = next((k for k, (sign, _) in enumerate(terms) if sign > 0), None)
        if at is None:
            total = self.added(x, [(1.0, a) for _, a in terms])
            return self.emit(x, Prim("neg", (total,)), last)
        terms = [terms[at], *terms[:at], *terms[at + 1 :]]
        total = terms[0][1]
        for k, (sign, a) in enumerate(terms[1:], 2):
            total = self.emit(x, Prim("+" if sign > 0 else "-", (total, a)), last and k == len(terms))
        return total

    def write(self, x: Bind, terms: Terms) -> None:
        """A sum in place of ``x``: what has the same constant is one term, and what is there late comes last."""
        groups: dict[float, list[tuple[float, Atom]]] = {}
        for c, item in terms:
            groups.setdefault(abs(c), []).append((math.copysign(1.0, c), self.item(x, item)))
        found: list[tuple[float, Atom]] = []
        for c, members in groups.items():
            if c == 1:
                found += members
                continue
            sign = members[0][0]
            total = self.added(x, [(sign * s, a) for s, a in members])
            if len(groups) == 1:
                self.emit(x, Prim("*", (Const(sign * c, REAL, is_power(c)), total)), True)
                return
            found.append((sign, self.emit(x, Prim("*", (Const(c, REAL, is_power(c)), total)))))
        found.sort(key=lambda term: self.ready.get(term[1], 0.0))
        if len(found) == 1 and found[0][0] > 0:
            self.emit(x, Prim("+", (Const(0.0, REAL, True), found[0][1])), True)
        else:
            self.added(x, found, True)


def times(c: float, terms: Terms) -> Terms:
    """A multiple of a sum; none where there is no number for it."""
    found = tuple((c * d, item) for d, item in terms)
    return found if all(math.isfinite(d) and d for d, _ in found) else ()


def together(one: Terms, two: Terms) -> Terms:
    """Two sums as one; none where terms of theirs cancel, or that is too long."""
    if not one or not two:
        return ()
    found: dict[Item, float] = {}
    for c, item in (*one, *two):
        total = found.get(item, 0.0) + c
        if abs(total) < NEAR * abs(c):
            return ()
        found[item] = total
    return tuple((c, item) for item, c in found.items()) if len(found) <= TERMS else ()
