"""Products that differentiation made: factors that stand in them several times, as powers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..core import (
    ONE,
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
from .exponents import in_order
from .powers import is_power

LONG = 8  # a product of more factors is left as it is
HIGH = 24  # so is one of a higher power, in halves

Power = tuple[float, Atom, int]  # a number as a coefficient, what it is a power of, and twice the exponent


def monomials(program: Program) -> Program:
    """Multiplies a derivative's equal factors first, as powers, which its products share.

    ``t = (/ 1 (sqrt y))``, ``(* t (* t (* t a)))``, ``(* t (* (* t (* t b)) (* t t)))``  =>  ``s = (/ 1 y)``,
    ``t = (sqrt s)``, ``c = (* s t)``, ``(* c a)``, ``(* (* s c) b)``.

    Design decision: products of differentiation's own (``Bind.soft``), whose factors have no order of anybody's; what
    the user computes is a power as well, where it is one, a square root of what is no less than zero too. Two of which
    one is a multiple of the other are added as that. No division is made that there was not, and no power of a positive
    exponent meets one of a negative: at zero there would be no number. Where that is fewer operations. The factors of
    such a product are multiplied in the order in which they are there, so that it may overflow or underflow on the way
    where it did not; a product without equal factors stays as it is.
    """
    if not any(x.soft and is_product(x) for x in all_binds(program.body)):
        return program
    counts = uses(program.body)
    body = collected(program.body, counts, {})
    return program if body is program.body else rebuild(with_body(program, body))  # what is equal now is shared


def collected(block: Block, counts: Mapping[Var, int], around: Mapping[Atom, Prim]) -> Block:
    """A block and those in it with such products; itself where there are none. ``around``: what is computed before."""
    makers = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim and x.vars[0].type == REAL}
    binds = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [collected(r, counts, {**around, **makers}) for r in regions]
        same = all(r is s for r, s in zip(made, regions))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    if not all(x is y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    if any(x.soft and is_product(x) for x in block.binds):
        block = Products(Multiples(block, counts, around).run(), counts, around).run()
    return block


def is_product(x: Bind) -> bool:
    return type(x.op) is Prim and x.op.name == "*" and x.vars[0].type == REAL


class Known:
    """What is known of the numbers of a block: what computes them, and what they are powers of."""

    def __init__(self, block: Block, counts: Mapping[Var, int], around: Mapping[Atom, Prim]) -> None:
        self.block, self.around, self.counts = block, around, counts
        self.binds: dict[Atom, Bind] = {
            x.vars[0]: x for x in block.binds if type(x.op) is Prim and x.vars[0].type == REAL
        }
        self.powers: dict[Atom, Power] = {}

    @cached_property
    def readers(self) -> dict[Atom, list[Bind]]:
        """Who reads a number in this block."""
        found: dict[Atom, list[Bind]] = {}
        for x in self.block.binds:
            for a in atoms_of(x.op):
                found.setdefault(a, []).append(x)
        return found

    def op(self, a: Atom) -> Prim | None:
        x = self.binds.get(a)
        return x.op if x is not None else self.around.get(a)  # type: ignore[return-value]

    def own(self, a: Atom) -> bool:
        """Whether a number is a product of differentiation's own in this block."""
        x = self.binds.get(a)
        return x is not None and is_product(x) and (x.soft or any(type(c) is Const and c.soft for c in x.op.args))  # type: ignore

    def power(self, a: Atom) -> Power:
        """What a number is a power of; of itself, if of nothing else."""
        if a not in self.powers:
            self.powers[a] = (1.0, a, 2)
            x = self.binds.get(a)
            found = self.power_of(x.op) if x is not None else None  # type: ignore[arg-type]
            if found is not None and found[0] and math.isfinite(found[0]) and 0 < abs(found[2]) <= HIGH:
                self.powers[a] = found
        return self.powers[a]

    def power_of(self, op: Prim) -> Power | None:
        if op.name == "sqrt":
            (y,) = op.args
            return (1.0, y, 1) if self.power(y)[1] is y and self.not_negative(y) else None
        if op.name not in ("*", "/", "**"):
            return None
        a, b = op.args
        if op.name == "**":
            if type(b) is not Const or not float(b.value).is_integer() or not 1 < b.value <= HIGH:
                return None
            c, z, j = self.power(a)
            return (1.0, z, j * int(b.value)) if c == 1 else None
        d, y, k = self.power(b)
        if type(a) is Const:
            if type(b) is Const or op.name == "*" and y is b:
                return None
            return (a.value * d, y, k) if op.name == "*" else (a.value / d, y, -k)
        c, z, j = self.power(a)
        return (c * d, y, j + k) if op.name == "*" and z is y and type(b) is not Const else None

    def not_negative(self, a: Atom, depth: int = 0) -> bool:
        """Whether a number is a sum of squares and constants, or an exponential."""
        if type(a) is Const:
            return a.value >= 0
        op = self.op(a)
        if op is None or depth > LONG:
            return False
        if op.name == "*" and op.args[0] is op.args[1] or op.name in ("exp", "abs"):
            return True
        return op.name in ("+", "*") and all(self.not_negative(b, depth + 1) for b in op.args)

    def factors(self, a: Atom, top: bool = True) -> tuple[float, list[Atom], list[Bind]]:
        """A product as a coefficient and factors, with the operations that are read for nothing else."""
        x = self.binds.get(a)
        if x is None or not self.own(a) or not top and (self.counts.get(a, 0) != 1 or self.power(a)[1] is not a):  # type: ignore
            return 1.0, [a], []
        c, found, within = 1.0, [], [x]
        for b in x.op.args:  # type: ignore[union-attr]
            if type(b) is Const:
                c *= b.value
            else:
                d, more, inner = self.factors(b, False)
                c, found, within = c * d, found + more, within + inner
        return c, found, within


class Multiples(Known):
    """A block in which a sum of two products of the same factors is a multiple of the first:
    ``(+ (* t r) (* 0.5 (* t (* y (/ 1 r)))))``, where r is the square root of y  =>  ``(* 1.5 (* t r))``."""

    def run(self) -> Block:
        found: dict[Bind, Bind] = {}
        for x in self.block.binds:
            if x.soft and type(x.op) is Prim and x.op.name in ("+", "-") and x.vars[0].type == REAL:
                made = self.multiple(x, *x.op.args)
                if made is not None:
                    found[x] = made
        if not found:
            return self.block
        return tidy(Block(tuple(found.get(x, x) for x in self.block.binds), self.block.results))

    def multiple(self, x: Bind, a: Atom, b: Atom) -> Bind | None:
        (c, one), (d, two) = map(self.monomial, (a, b))
        if one != two or not c or len(one) < 2:
            return None
        total = c + d if x.op.name == "+" else c - d  # type: ignore[union-attr]
        if abs(total) < 1e-9 * abs(c):
            return None  # infinite ones do not cancel
        return Bind(x.vars, Prim("*", (Const(total / c, REAL, is_power(total / c)), a)), x.span, True)

    def monomial(self, a: Atom) -> tuple[float, dict[Atom, int]]:
        """A number that is read once as a coefficient and a product of powers."""
        x, sign = self.binds.get(a), 1.0
        while x is not None and x.soft and x.op.name == "neg" and self.counts.get(a) == 1:  # type: ignore[union-attr, arg-type]
            a = x.op.args[0]  # type: ignore[union-attr]
            x, sign = self.binds.get(a), -sign
        if self.counts.get(a) != 1:  # type: ignore[arg-type]
            return 1.0, {}
        c, atoms, _ = self.factors(a)
        found: dict[Atom, int] = {}
        for b in atoms:
            d, y, k = self.power(b)
            c *= d
            found[y] = found.get(y, 0) + k
        return sign * c, {y: k for y, k in found.items() if k}


@dataclass(slots=True)
class Root:
    """A product that is no factor of another one: a coefficient and factors, and its operations."""

    bind: Bind
    coefficient: float
    factors: list[Atom]
    within: list[Bind]


@dataclass(slots=True)
class Chain:
    """The powers of one base that there are, by twice their exponents, and those that are made: each of two others."""

    there: dict[int, Atom]
    made: dict[int, tuple[int, int]] = field(default_factory=dict)

    def reach(self, k: int) -> bool:
        """Make a power, if it can be: of others of its sign, of which none is larger."""
        if k in self.there or k in self.made:
            return True
        smaller = [j for j in (*self.there, *self.made) if j * k > 0 and abs(j) < abs(k)]
        if not smaller:
            return False
        first = next((j for j in smaller if k - j in smaller), None)
        if first is None:
            first = max(smaller, key=abs)
            if not self.reach(k - first):
                return False
        self.made[k] = first, k - first
        return True


class Products(Known):
    """A block with powers in its products."""

    def run(self) -> Block:
        roots = self.roots()
        chains: dict[Atom, Chain] = {}
        for y in {y: None for root in roots for y in self.twice(root)}:
            chain = self.chain(y, roots)
            if chain is not None:
                chains[y] = chain
        if not chains:
            return self.block
        made = self.written(roots, chains)
        straight, before = (Block(tuple(x for x in b.binds if type(x.op) is Prim), ()) for b in (made, self.block))
        return made if work(straight) < work(before) else self.block

    def roots(self) -> list[Root]:
        """The products that others than products of differentiation's own read."""
        found = []
        for v, x in self.binds.items():
            if not self.own(v):
                continue
            readers = self.readers.get(v, [])
            inside = len(readers) == self.counts.get(v, 0) and all(self.own(y.vars[0]) for y in readers)  # type: ignore[arg-type]
            if not inside or len(readers) > 1 and self.power(v)[1] is v:
                found.append(Root(x, *self.factors(v)))
        return found

    def twice(self, root: Root) -> list[Atom]:
        """What several factors of a product are powers of."""
        bases = [self.power(a)[1] for a in root.factors]
        return [y for y in dict.fromkeys(bases) if bases.count(y) > 1]

    def chain(self, y: Atom, roots: Sequence[Root]) -> Chain | None:
        """How to make the powers of ``y`` that products need, if that is fewer operations than there are now."""
        chain = Chain({2: y})
        named = {root.bind.vars[0] for root in roots}
        saved = 0
        for v in self.binds:
            c, z, k = self.power(v)
            if z is y and v is not y and self.own(v):
                saved += v not in named
            elif z is y and v is not y and c == 1:
                chain.there.setdefault(k, v)
        for root in roots:
            exponents = [self.power(a)[2] for a in root.factors if self.power(a)[1] is y]
            if exponents:
                saved += len(exponents) - 1
                k = sum(exponents)
                mixed = any(j * k <= 0 for j in exponents)
                if mixed or abs(k) > HIGH or len(root.factors) > LONG or not chain.reach(k):
                    return None
        spared = bool(self.root_of_reciprocal(y, chain))
        return chain if len(chain.made) - spared < saved else None

    def written(self, roots: Sequence[Root], chains: Mapping[Atom, Chain]) -> Block:
        """The block with the powers of some bases made, and the products of them."""
        made: dict[tuple[Atom, int], Atom] = {}
        instead: dict[Bind, Sequence[Bind]] = {}
        powers: list[Bind] = []
        for y, chain in chains.items():
            span = self.binds[y].span if y in self.binds else None
            swapped = self.root_of_reciprocal(y, chain)
            if swapped:
                instead.update(swapped)
                (chain.there[-2],) = (x.vars[0] for found in swapped.values() for x in found if x.op.name == "/")  # type: ignore
                chain.made.pop(-2)
            made.update({(y, k): v for k, v in chain.there.items()})
            for k, (i, j) in chain.made.items():
                v = made[y, k] = Var("t", REAL)
                powers.append(Bind((v,), Prim("*", (made[y, i], made[y, j])), span, True))
        ready = self.ready(powers)
        for root in roots:
            if any(self.power(a)[1] in chains for a in root.factors):
                instead.update(dict.fromkeys(root.within, ()))
                instead[root.bind] = self.product(root, chains, made, ready)
        binds = [*(z for x in self.block.binds for z in instead.get(x, (x,))), *powers]  # where they are read first
        return tidy(Block(tuple(in_order(binds)), self.block.results))

    def root_of_reciprocal(self, y: Atom, chain: Chain) -> dict[Bind, Sequence[Bind]]:
        """``r = (sqrt y)``, ``t = (/ 1 r)``  =>  ``s = (/ 1 y)``, ``t = (sqrt s)``, if the square of ``t`` is to be
        made and neither ``r`` nor ``t`` is what the user asks for: the square is there then, and early."""
        t = chain.there.get(-1)
        x = self.binds.get(t) if t is not None else None  # type: ignore[arg-type]
        if -2 not in chain.made or x is None or x.op.name != "/":  # type: ignore[union-attr]
            return {}
        one, r = x.op.args  # type: ignore[union-attr]
        root = self.binds.get(r)
        if one != ONE or root is None or self.counts.get(r) != 1 or root.op.name != "sqrt":  # type: ignore
            return {}
        readers = self.readers.get(t, [])  # type: ignore[arg-type]
        if len(readers) != self.counts.get(t, 0) or not all(self.own(z.vars[0]) for z in readers):  # type: ignore
            return {}
        s = Var("t", REAL, x.span)
        return {
            root: [Bind((s,), Prim("/", (Const(1.0, REAL, True), y)), x.span, True)],
            x: [Bind(x.vars, Prim("sqrt", (s,)), x.span, True)],
        }

    def ready(self, powers: Sequence[Bind]) -> dict[Atom, float]:
        """How much has to be computed, one after the other, before each number is there."""
        found: dict[Atom, float] = {}
        for x in (*self.binds.values(), *powers):
            row = PRIMITIVES.get(x.op.name)  # type: ignore[union-attr]
            found[x.vars[0]] = (row.cost if row else 0) + max((found.get(a, 0.0) for a in atoms_of(x.op)), default=0.0)
        return found

    def product(
        self,
        root: Root,
        chains: Mapping[Atom, Chain],
        made: Mapping[tuple[Atom, int], Atom],
        ready: Mapping[Atom, float],
    ) -> list[Bind]:
        """The bindings of a product; what is there late is multiplied last."""
        c = root.coefficient
        exponents: dict[Atom, int] = {}
        atoms = []
        for a in root.factors:
            d, y, k = self.power(a)
            if y in chains:
                c *= d
                exponents[y] = exponents.get(y, 0) + k
            else:
                atoms.append(a)
        atoms += [made[y, k] for y, k in exponents.items()]
        atoms.sort(key=lambda a: ready.get(a, 0.0))
        steps: list[Atom] = [*atoms] if c == 1 else [*atoms, Const(c, REAL, is_power(c))]
        binds: list[Bind] = []
        total = steps[0]
        x = root.bind
        for k, a in enumerate(steps[1:], 2):
            v = x.vars[0] if k == len(steps) else Var(x.vars[0].name, REAL, x.span)
            binds.append(Bind((v,), Prim("*", (a, total) if type(a) is Const else (total, a)), x.span, True))
            total = v
        return binds or [Bind(x.vars, Prim("+", (Const(0.0, REAL, True), total)), x.span)]
