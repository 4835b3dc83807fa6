"""Sums that differentiation made, of numbers that lie side by side: four partial sums, as a vector."""

from __future__ import annotations

from collections.abc import Sequence

from .affine import affine_in
from .builder import Builder
from .core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    count_uses,
    defined_in,
    integer,
)
from .jam import in_fours
from .loops import CALL, loops_of
from .primitives import PRIMITIVES
from .rebuild import Rebuild, rebuilt

#: How many partial sums there are: a vector has room for so many.
STRANDS = 4

#: Sums with more iterations than that, if it is known, are worth it.
LEAST = 4 * STRANDS

#: So many sums of a loop have a register each.
MOST = 12


def strands(program: Program) -> Program:
    """The sums of a loop, if all that it does is to add up what derivatives made, are taken in four strands.

    ``(ifold (fn [s i] (+ s (* (get x i) (get y i)))) 0.0 n)``  =>  four sums, each of every fourth term, side by side;
    then their sum, and the terms that are left.
    Design decision: differentiation's own sums (``Bind.soft``) alone, whose terms have no order of the user's; a
    compiler may reorder no sum, and adds one term after the other, each waiting for the one before. Where what is read
    lies side by side, or is the same for all: what has to be gathered is no vector. Calls of the library are none
    either, nor are integers that become reals.
    """
    if not any(loop.accs and all(a.type == REAL for a in loop.accs) for loop in loops_of(program)):
        return program
    pass_ = Strands(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


class Strands(Rebuild):
    """``strands`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        self.integers = {
            x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim and x.vars[0].type == INT
        }

    def bind(self, bind: Bind) -> None:
        if type(bind.op) is Loop and self.sums(bind.op):
            self.found = True
            self.b.fired("strands")
            self.side_by_side(bind, bind.op)
        else:
            self.copy(bind)

    def side_by_side(self, bind: Bind, op: Loop) -> None:
        b, four = self.b, integer(STRANDS)
        count, starts = self.atom(op.count), self.atoms(op.inits)
        blocks, left, done = in_fours(b, count)
        names = [a.name for a in op.accs]

        def block(q: Atom, *lanes: Atom):
            first = b.prim("*", four, q)

            def one(lane: Atom, *lanes: Atom):
                before = [b.get(a, lane) for a in lanes]
                after = self.iteration(op, b.prim("+", first, lane), before)
                return [b.update(a, [lane], x) for a, x in zip(lanes, after)], ()

            return b.loop(four, lanes, one, names, "lane", names), ()

        with b.differentiating():
            zeros = [b.zeros(Arr(REAL, (four,)), name) for name in names]
            lanes = b.loop(blocks, zeros, block, names, op.index.name, names)

            def together(lane: Atom, *sums: Atom):
                return [b.prim("+", s, b.get(a, lane)) for s, a in zip(sums, lanes)], ()

            sums = b.loop(four, starts, together, names, "lane", names)

        def alone(r: Atom, *sums: Atom):
            return self.iteration(op, b.prim("+", done, r), sums), ()

        made = b.loop(left, sums, alone, [v.name for v in bind.vars], op.index.name, names)
        b.span = bind.span
        self.define(bind, made)

    def iteration(self, op: Loop, i: Atom, sums: Sequence[Atom]) -> tuple[Atom, ...]:
        self.here[op.index] = i
        self.here.update(zip(op.accs, sums))
        return self.block(op.body)

    def sums(self, op: Loop) -> bool:
        """Whether a loop does nothing but to add up, in sums of differentiation's own, what a vector can hold."""
        plain = op.snapshots is None and not op.index.soft and len(op.body.results) == len(op.accs)
        if not plain or not 0 < len(op.accs) <= MOST or any(a.type != REAL for a in op.accs):
            return False
        if type(op.count) is Const and op.count.value < LEAST:
            return False
        inside = {op.index, *op.accs, *defined_in(op.body)}
        if not all(type(x.op) is Prim and self.in_a_vector(x, op.index, inside) for x in op.body.binds):
            return False
        return all(own_sum(op.body, a, r) for a, r in zip(op.accs, op.body.results))

    def in_a_vector(self, x: Bind, index: Var, inside: set[Var]) -> bool:
        """Whether four values of what a binding binds can be computed together."""
        op: Prim = x.op  # type: ignore[assignment]
        if not isinstance(x.vars[0].type, Scalar):
            return False
        if op.name == "get":
            *rows, last = (affine_in(a, self.integers)[1] for a in op.args[1:])
            return (
                all(inside.isdisjoint(r) for r in rows) and inside & {*last} <= {index} and last.get(index, 0) in (0, 1)
            )
        if x.vars[0].type == INT:
            return op.name in ("+", "-")
        row = PRIMITIVES.get(op.name)
        return op.name == "select" or row is not None and op.name != "real" and (row.cost < CALL or op.name == "sqrt")


def own_sum(block: Block, acc: Var, result: Atom) -> bool:
    """Whether a block adds to a number, by additions of differentiation's own, and reads it for nothing else."""
    made = {x.vars[0]: x for x in block.binds}
    while result is not acc:
        x = made.get(result)  # type: ignore[call-overload]
        if x is None or not x.soft or x.op.name not in ("+", "-") or count_uses(block, result) != 1:  # type: ignore
            return False
        args = x.op.args[:1] if x.op.name == "-" else x.op.args  # type: ignore[union-attr]
        result = next((a for a in args if a is acc or chains(made, a, acc)), None)  # type: ignore[assignment]
    return count_uses(block, acc) == 1


def chains(made: dict[Var, Bind], a: Atom, acc: Var) -> bool:
    """Whether a number is made from ``acc`` by additions."""
    while a in made and made[a].soft and made[a].op.name in ("+", "-"):  # type: ignore[index, union-attr]
        if acc in made[a].op.args:  # type: ignore[index, union-attr]
            return True
        a = made[a].op.args[0]  # type: ignore[index, union-attr]
    return False
