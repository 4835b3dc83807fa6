"""Exponentials in derivatives whose exponents differ by a logarithm: one call of ``exp`` for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    free_vars,
    with_blocks,
    with_body,
)
from ..program.counts import work
from ..program.dead import tidy
from ..program.rebuild import rebuild

Powers = dict[Atom, float]  # a product of atoms: how often each is a factor
Sum = dict[
    frozenset, tuple[float, float]
]  # by product its coefficient, and the sum of what was added to it, as numbers

EPS = 16 * 2.0**-52  # of what was added, a coefficient that is less is nothing but rounding
LONG = 64  # a sum of more products is one number
WIDE, DEEP = 16, 32  # so is a product of more factors, and what lies deeper than that
FACTORS = 4  # nor a power beyond this written out


def exponents(program: Program) -> Program:
    """Computes one exponential where those of a derivative have exponents that differ by a logarithm, and drops what
    cancels then.

    ``(* k (exp (- (log (/ s k)) a)))``, beside ``(exp (- a))``  =>  ``(* s (exp (- a)))``: the density at one place
    times a discount is a density at another one. Exponents are compared as sums of products, their coefficients to
    rounding.

    Design decision: products of differentiation's own (a soft constant leads to them), no others; where there are fewer
    exponentials afterwards, and less work.
    """
    if sum(type(x.op) is Prim and x.op.name == "exp" for x in all_binds(program.body)) < 2:
        return program
    body = collected(program.body, {})
    if body is program.body:
        return program
    made = rebuild(with_body(program, body))  # what is zero now, and what was made of it
    return with_body(made, tidy(made.body))


def collected(block: Block, around: dict[Var, Prim]) -> Block:
    """A block and those in it with fewer exponentials; itself where there are none to save. ``around``: what is
    computed before it."""
    binds = []
    makers = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim and x.vars[0].type == REAL}
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [collected(r, {**around, **makers}) for r in regions]
        same = all(r is s for r, s in zip(made, regions))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    if not all(x is y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    if not calls(block):
        return block
    made = tidy(Block(tuple(in_order(Exponents(block, {**around, **makers}).run())), block.results))
    return made if calls(made) < calls(block) and straight(made) < straight(block) else block


def calls(block: Block) -> int:
    return sum(type(x.op) is Prim and x.op.name == "exp" for x in block.binds)


def straight(block: Block) -> float:
    """The work of what stands in a block itself."""
    return work(Block(tuple(x for x in block.binds if type(x.op) is Prim), ()))


def in_order(binds: list[Bind]) -> Iterator[Bind]:
    """Bindings after what they read, otherwise as they are."""
    makers = {v: x for x in binds for v in x.vars}
    done: set[Bind] = set()
    for first in binds:
        todo = [first]
        while todo:
            x = todo[-1]
            reads = (*atoms_of(x.op), *(v for r in blocks_of(x.op) for v in free_vars(r)))
            left = [y for a in reads if (y := makers.get(a)) is not None and y not in done]  # type: ignore[arg-type]
            if left:
                todo += left
                continue
            todo.pop()
            if x not in done:
                done.add(x)
                yield x


class Exponents:
    """One block; ``makers``: what it and those around it compute. ``forms``: numbers as a coefficient and a product of
    others; ``led``: those that a constant of differentiation's leads to; ``roots``: the square roots of which two are a
    factor."""

    def __init__(self, block: Block, makers: dict[Var, Prim]) -> None:
        self.block, self.makers = block, makers
        self.calls = [v for v, op in self.makers.items() if op.name == "exp"]
        self.forms: dict[Atom, tuple[float, Powers]] = {}
        self.sums: dict[Atom, Sum] = {}
        self.roots: dict[Atom, Var] = {}
        self.led: set[Atom] = set()

    def run(self) -> list[Bind]:
        binds: list[Bind] = []
        changed: set[Atom] = set()
        for x in self.block.binds:
            form = self.form(x, changed) if x.vars and x.vars[0] in self.makers else None
            if form is None or not self.short(form[1]):
                binds.append(x)
            else:
                changed.add(x.vars[0])
                self.forms[x.vars[0]] = form
                binds += self.written(x, *form)
        return binds

    def form(self, x: Bind, changed: set[Atom]) -> tuple[float, Powers] | None:
        """The new form of a derivative's product, or of a sum of two of the same; None where it stays."""
        v, op = x.vars[0], self.makers[x.vars[0]]
        if op.name in ("+", "-"):
            return self.added(v, op) if self.led.issuperset(op.args) and not changed.isdisjoint(op.args) else None
        if op.name not in ("*", "/", "neg"):
            return None
        if not any(a in self.led or type(a) is Const and a.soft for a in op.args):
            return None
        self.led.add(v)
        c, powers = self.product(v)
        found = self.reduced(powers)
        if found is None and changed.isdisjoint(op.args):
            return None
        return c, found if found is not None else powers

    def added(self, v: Var, op: Prim) -> tuple[float, Powers] | None:
        (c, one), (d, two) = map(self.product, op.args)
        if one != two or not any(a in self.calls for a in one):
            return None
        self.led.add(v)
        total = c + d if op.name == "+" else c - d
        return (0.0, {}) if abs(total) <= EPS * max(abs(c), abs(d)) else (total, one)

    def product(self, a: Atom, depth: int = 0) -> tuple[float, Powers]:
        """A number as a coefficient and a product."""
        if type(a) is Const:
            return float(a.value), {}
        if a in self.forms:
            return self.forms[a]
        op = self.makers.get(a) if depth < DEEP else None  # type: ignore[arg-type]
        found: tuple[float, Powers] = (1.0, {a: 1.0})
        if op is not None and op.name in ("*", "/"):
            (c, one), (d, two) = (self.product(x, depth + 1) for x in op.args)
            if op.name == "*":
                found = c * d, times(one, two)
            elif d:
                found = c / d, times(one, two, -1.0)
        elif op is not None and op.name == "neg":
            c, one = self.product(op.args[0], depth + 1)
            found = -c, one
        elif op is not None and op.name == "sqrt":
            c, one = self.product(op.args[0], depth + 1)
            if c == 1 and list(one.values()) == [1.0]:
                (base,) = one
                self.roots[base] = a  # type: ignore[assignment]
                found = 1.0, {base: 0.5}
        found = found if len(found[1]) <= WIDE else (1.0, {a: 1.0})
        self.forms[a] = found
        return found

    def sum(self, a: Atom, depth: int = 0) -> Sum:
        """A number as a sum of products; a long one is not taken apart."""
        if a not in self.sums:
            self.sums[a] = self.summed(a, depth)
        return self.sums[a]

    def summed(self, a: Atom, depth: int) -> Sum:
        op = self.makers.get(a) if depth < DEEP else None  # type: ignore[arg-type]
        found: Sum = {}
        if op is not None and op.name in ("+", "-"):
            for x, sign in zip(op.args, (1.0, 1.0 if op.name == "+" else -1.0)):
                for key, (c, size) in self.sum(x, depth + 1).items():
                    put(found, key, sign * c, size)
        elif op is not None and op.name == "neg":
            found = {key: (-c, size) for key, (c, size) in self.sum(op.args[0], depth + 1).items()}
        elif op is not None and op.name == "*":
            for one, (c, size) in self.sum(op.args[0], depth + 1).items():
                for two, (d, more) in self.sum(op.args[1], depth + 1).items():
                    put(found, frozenset(times(dict(one), dict(two)).items()), c * d, size * more)
        elif op is not None and op.name == "/" and self.product(op.args[1])[0]:
            d, two = self.product(op.args[1])
            for one, (c, size) in self.sum(op.args[0], depth + 1).items():
                put(found, frozenset(times(dict(one), two, -1.0).items()), c / d, size / abs(d))
        if 0 < len(found) <= LONG:
            return found
        c, powers = self.product(a)
        return {frozenset(powers.items()): (c, abs(c))}

    def reduced(self, powers: Powers) -> Powers | None:
        """A product with all its exponentials in one that is another's; None if there is none."""
        mine = [v for v in self.calls if v in powers]
        if not mine:
            return None
        total: Sum = {}
        for v in mine:
            for key, (c, size) in self.sum(self.makers[v].args[0]).items():
                put(total, key, powers[v] * c, abs(powers[v]) * size)
        for k, other in enumerate(self.calls):
            if other in mine or len(mine) == 1 and k > self.calls.index(mine[0]):
                continue
            left = dict(total)
            for key, (c, size) in self.sum(self.makers[other].args[0]).items():
                put(left, key, -c, size)
            factors = self.factors(left)
            if factors is not None:
                rest = {a: p for a, p in powers.items() if a not in mine}
                return times(times(rest, factors), {other: 1.0})
        return None

    def factors(self, left: Sum) -> Powers | None:
        """What the exponential of a sum of logarithms is a product of; None if it is another sum."""
        found: Powers = {}
        for key, (c, size) in left.items():
            if abs(c) <= EPS * size:
                continue
            atoms = list(key)
            op = self.makers.get(atoms[0][0]) if len(atoms) == 1 and atoms[0][1] == 1 else None
            if op is None or op.name != "log" or abs(c - round(c)) > EPS * size:
                return None
            d, powers = self.product(op.args[0])
            if d != 1:
                return None
            found = times(found, powers, float(round(c)))
        return found

    def short(self, powers: Powers) -> bool:
        """Whether a product is short enough to be written out."""
        return sum(map(abs, powers.values())) <= 2 * FACTORS and all(
            abs(p) <= FACTORS and (p % 1 == 0 or p % 1 == 0.5 and a in self.roots) for a, p in powers.items()
        )

    def written(self, x: Bind, c: float, powers: Powers) -> list[Bind]:
        """The bindings of a product, the last one in place of ``x``."""
        binds: list[Bind] = []
        if not math.isfinite(c):
            return [x]

        def emit(name: str, a: Atom, b: Atom) -> Atom:
            v = Var(x.vars[0].name, REAL, x.span)
            binds.append(Bind((v,), Prim(name, (a, b)), x.span))
            return v

        def all_of(sign: int) -> Atom | None:
            made: Atom | None = None
            for a in sorted(powers, key=lambda a: a in self.calls):
                p = sign * powers[a]
                if p <= 0:
                    continue
                for factor in (*([self.roots[a]] if p % 1 else []), *([a] * int(p))):
                    made = factor if made is None else emit("*", made, factor)
            return made

        top, bottom = all_of(1), all_of(-1)
        made = top if bottom is None else emit("/", Const(1.0, REAL, True) if top is None else top, bottom)
        number = Const(c, REAL, True)
        last = Prim("*", (number, made)) if made is not None else Prim("+", (Const(0.0, REAL, True), number))
        return [*binds, Bind(x.vars, last, x.span)]


def times(one: Powers, two: Powers, power: float = 1.0) -> Powers:
    """The product of one product and a power of another."""
    found = dict(one)
    for a, p in two.items():
        found[a] = found.get(a, 0.0) + power * p
        if not found[a]:
            del found[a]
    return found


def put(total: Sum, key: frozenset, c: float, size: float) -> None:
    before = total.get(key, (0.0, 0.0))
    total[key] = before[0] + c, before[1] + size
