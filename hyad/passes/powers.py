"""Powers of two and signs that differentiation brings in, moved out of products and sums until they cancel."""

from __future__ import annotations

import math

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
    blocks_of,
    substitute,
    with_blocks,
    with_body,
)
from ..program.counts import work
from ..program.dead import tidy
from ..program.rebuild import rebuild

#: Factors are kept within this and one over it.
MOST = 256.0


def powers_of_two(program: Program) -> Program:
    """Moves twos and halves of derivatives until they cancel, and multiplies by what is left once; that is exact.

    ``(* 2.0 (* x (* 0.5 y)))``  =>  ``(* x y)``; ``(- (neg x) x)``, where x has such a factor  =>  ``(* -2.0 x)``.

    Design decision: numbers to which a factor of differentiation's own leads (a soft constant, or that of a product of
    its own), no others; a user's products and sums stay what they are. To the last bit, but for overflow, subnormal
    numbers and the sign of a zero.
    """
    if not any(map(has_factor, all_binds(program.body))):
        return program
    made = with_body(program, factored(program.body))
    return program if made is program else rebuild(made)  # what is equal now is shared


def is_factor(a: Atom) -> bool:
    """Whether an operand is a power of two, or minus one, that differentiation introduced."""
    return type(a) is Const and a.soft and a.type == REAL and a.value != 1 and is_power(a.value)


def has_factor(x: Bind) -> bool:
    """Whether an operation has such an operand, or is a product by a power of two that differentiation made."""
    return type(x.op) is Prim and (any(map(is_factor, x.op.args)) or is_own_product(x))


def is_own_product(x: Bind) -> bool:
    c = x.op.args[0] if type(x.op) is Prim and x.op.name == "*" and x.soft else None
    return type(c) is Const and c.type == REAL and c.value != 1 and is_power(c.value)


def is_power(x: float) -> bool:
    return math.isfinite(x) and abs(math.frexp(x)[0]) == 0.5 and 1 / MOST <= abs(x) <= MOST


def factored(block: Block) -> Block:
    """A block and those in it with factors moved out, where that is less work; itself where it is not."""
    binds = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [factored(r) for r in regions]
        same = all(r is s for r, s in zip(made, regions))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    if not all(x is y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    if not any(map(has_factor, block.binds)):
        return block
    pass_ = Factors()
    for x in block.binds:
        pass_.bind(x)
    made = tidy(substitute(Block(tuple(pass_.binds), block.results), pass_.same))
    straight, before = (Block(tuple(x for x in b.binds if type(x.op) is Prim), ()) for b in (made, block))
    return made if work(straight) < work(before) else block


class Factors:
    """Copies bindings. ``form``: of a number to which a factor leads, the factor and the number without it, which is
    there as well; ``own``: those whose factor is a user's, or might be, who keep it until a factor of differentiation's
    meets it; ``same``: what is another number."""

    def __init__(self) -> None:
        self.binds: list[Bind] = []
        self.form: dict[Atom, tuple[float, Atom]] = {}
        self.own: set[Atom] = set()
        self.same: dict[Var, Atom] = {}

    def bind(self, x: Bind) -> None:
        op = x.op
        if type(op) is not Prim or x.vars[0].type != REAL or not self.scalar(op, x):
            self.binds.append(x)

    def of(self, a: Atom) -> tuple[float, Atom]:
        return self.form.get(a, (1.0, a))

    def scalar(self, op: Prim, x: Bind) -> bool:
        """Copy an operation on numbers with factors; whether it is one."""
        name, args = op.name, op.args
        if name == "*" and type(args[0]) is Const:
            return self.scaled(args[0], args[1], x)
        if name == "/" and is_factor(args[0]):
            return self.quotient(*args, x)
        led = [a for a in args if a in self.form]
        if not led or name not in ("neg", "*", "/", "+", "-", "select") or type(args[-1]) is Const:
            return False
        own = all(a in self.own for a in led)
        if own and (name == "/" or name == "select"):
            return False
        if name == "neg":
            return self.known(x, -self.form[args[0]][0], self.form[args[0]][1], own)
        if name == "*":
            (f, a), (g, b) = map(self.of, args)
            return self.made(x, f * g, Prim("*", (a, b)), own)
        if name == "/":
            return self.quotient(*args, x)
        if name == "select":
            (f, a), (g, b) = map(self.of, args[1:])
            return len(led) == 2 and f == g and self.made(x, f, Prim("select", (args[0], a, b)), False)
        return self.sum(name, *args, x, own)

    def scaled(self, c: Const, a: Atom, x: Bind) -> bool:
        g, b = self.of(a)
        if is_factor(c) or is_own_product(x):
            return self.known(x, c.value * g, b, False)
        if a in self.form and a not in self.own:
            if is_power(c.value * g):
                return self.known(x, c.value * g, b, False)
            return g != 1 and self.constant(x, "*", c.value * g, b)
        return is_power(c.value) and self.known(x, c.value * g, b, True)

    def quotient(self, a: Atom, b: Atom, x: Bind) -> bool:
        (f, top), (g, bottom) = self.of(a), self.of(b)
        if is_factor(a):
            return self.made(x, a.value / g, Prim("/", (Const(1.0, REAL, True), bottom)), False)  # type: ignore
        if type(a) is Const:
            return g != 1 and self.constant(x, "/", a.value / g, bottom)
        return self.made(x, f / g, Prim("/", (top, bottom)), False)

    def sum(self, name: str, a: Atom, b: Atom, x: Bind, own: bool) -> bool:
        (f, one), (g, two) = self.of(a), self.of(b)
        g = g if name == "+" else -g
        if type(one) is Const or own and len({a, b} & self.own) < 2:
            return False
        if one is two:
            total = f + g
            if total == 0 or own:
                return False
            return self.known(x, total, one, own) if is_power(total) else self.constant(x, "*", total, one)
        if f == g:
            return self.made(x, f, Prim("+", (one, two)), own)
        if f == -g:
            return self.made(x, abs(f), Prim("-", (one, two) if f > 0 else (two, one)), own)
        return False

    def made(self, x: Bind, f: float, op: Prim, own: bool) -> bool:
        """The result of ``x`` is ``f`` times that of ``op``."""
        if f == 1 and not own:
            self.binds.append(Bind(x.vars, op, x.span, x.soft))
            self.form[x.vars[0]] = 1.0, x.vars[0]
            return True
        if not is_power(f):
            return False
        base = Var(x.vars[0].name, REAL, x.span)
        self.binds.append(Bind((base,), op, x.span, x.soft))
        return self.known(x, f, base, own)

    def known(self, x: Bind, f: float, base: Atom, own: bool) -> bool:
        """The result of ``x`` is ``f`` times a number that is there."""
        v = x.vars[0]
        if not is_power(f):
            return False
        self.form[v] = f, base
        if own:
            self.own.add(v)
            self.binds.append(x)
        elif f == 1:
            self.same[v] = self.same.get(base, base)  # type: ignore[arg-type]
        else:
            op = Prim("neg", (base,)) if f == -1 else Prim("*", (Const(f, REAL, True), base))
            self.binds.append(Bind((v,), op, x.span, x.soft))
        return True

    def constant(self, x: Bind, name: str, c: float, a: Atom) -> bool:
        """A product of a number and a constant, or a constant over a number, that took up its factor."""
        self.binds.append(Bind(x.vars, Prim(name, (Const(c, REAL, True), a)), x.span, x.soft))
        return True
