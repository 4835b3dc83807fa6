"""Sums that differentiation made, of neighbouring elements: four partial sums, as a vector."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
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
    type_of,
)
from ..program.affine import Affine, affine_in, never_equal
from ..program.builder import Builder
from ..program.loops import CALL, loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, taken
from .jam import in_fours

#: How many partial sums there are: a vector has room for so many.
STRANDS = 4

#: Sums with more iterations than that, if it is known, are worth it.
LEAST = 4 * STRANDS

#: So many sums of a loop have a register each.
MOST = 12


def strands(program: Program) -> Program:
    """Splits the sums that derivatives made in a loop into four partial sums, if the loop otherwise only changes
    arrays, each element by itself, or adds up in the user's order.

    ``(ifold (fn [s i] (+ s (* (get x i) (get y i)))) 0.0 n)``  =>  four sums, each of every fourth term, side by side;
    then their sum, and the terms that are left.
    Design decision: differentiation's own sums (``Bind.soft``) alone, whose terms have no order of the user's; a
    compiler may reorder no sum, and adds one term after the other, each waiting for the one before. Where what is read
    lies side by side, or is the same for all: what has to be gathered is no vector. Calls of the library are none
    either, nor are integers that become reals. What a loop does to arrays it does in the same order as before; no
    iteration may need what another one does to them, or there is no vector. The terms of the user's own sums are made
    side by side, too, and added one after the other.
    """
    if not any(a.type == REAL for loop in loops_of(program) for a in loop.accs):
        return program
    return taken(program, Strands(Builder(), program))


class Strands(Rebuild):
    """``strands`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.integers = {
            x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim and x.vars[0].type == INT
        }

    def takes(self, bind: Bind) -> bool:
        return self.sums(bind.op)  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        if type(bind.op) is Loop and self.sums(bind.op):
            self.b.fired("strands")
            self.side_by_side(bind, bind.op)
        else:
            self.copy(bind)

    def side_by_side(self, bind: Bind, op: Loop) -> None:
        b, four, width = self.b, integer(STRANDS), len(op.accs)
        count = self.atom(op.count)
        starts, _, names = self.filling(op, bind)
        blocks, left, done = in_fours(b, count)
        users = {k: found for k in range(width) if (found := in_order(op, k))}
        sums = [k for k, a in enumerate(op.accs) if a.type == REAL and k not in users]
        terms = [v for chain in users.values() for _, v in chain]
        aside = without(op, users)

        def block(q: Atom, *state: Atom):
            first = b.prim("*", four, q)

            def one(lane: Atom, *state: Atom):
                before = list(state)
                for k in sums:
                    before[k] = b.get(state[k], lane)
                after = self.iteration(aside, b.prim("+", first, lane), before)
                for k in sums:
                    after[k] = b.update(state[k], [lane], after[k])
                return after, self.atoms(terms)

            hints = [*names, *("term" for _ in terms)]
            after = list(b.loop(four, state, one, hints, "lane", names))
            made = dict(zip(terms, after[len(state) :]))
            for k, chain in users.items():
                for lane in range(STRANDS):
                    for x, v in chain:
                        b.span = x.span
                        term = b.get(made[v], integer(lane))
                        after[k] = b.prim(x.op.name, after[k], term)  # type: ignore[union-attr]
            return after[: len(state)], ()

        def alone(r: Atom, *state: Atom):
            return self.iteration(op, b.prim("+", done, r), state), ()

        own = [names[k] for k in sums]
        with b.differentiating():
            zeros = [b.zeros(Arr(REAL, (four,)), name) for name in own]
        state = list(starts)
        for k, zero in zip(sums, zeros):
            state[k] = zero
        state = list(b.loop(blocks, state, block, names, op.index.name, names))
        lanes = [state[k] for k in sums]

        def together(lane: Atom, *totals: Atom):
            return [b.prim("+", s, b.get(a, lane)) for s, a in zip(totals, lanes)], ()

        with b.differentiating():
            for k, total in zip(sums, b.loop(four, [starts[k] for k in sums], together, own, "lane", own)):
                state[k] = total
        made = b.loop(left, state, alone, [v.name for v in bind.vars], op.index.name, names)
        b.span = bind.span
        self.define(bind, made)

    def iteration(self, op: Loop, i: Atom, state: Sequence[Atom]) -> list[Atom]:
        """One iteration: the accumulators and the arrays of what is stacked after it."""
        width = len(op.accs)
        self.here[op.index] = i
        self.here.update(zip(op.accs, state))
        results = self.block(op.body)
        stacked = (self.b.update(a, [i], x) for a, x in zip(state[width:], results[width:]))
        return [*results[:width], *stacked]

    def sums(self, op: Loop) -> bool:
        """Whether all that a loop does is to add up, in sums of differentiation's own, and to change arrays, what a
        vector can hold."""
        if op.snapshots is not None or op.index.soft:
            return False
        own = [k for k, a in enumerate(op.accs) if a.type == REAL]
        if not 0 < len(own) <= MOST or any(a.type != REAL and not isinstance(a.type, Arr) for a in op.accs):
            return False
        if type(op.count) is Const and op.count.value < LEAST:
            return False
        if any(type_of(r) != REAL for r in op.body.results[len(op.accs) :]):
            return False
        inside = {op.index, *op.accs, *defined_in(op.body)}
        if not all(type(x.op) is Prim and self.in_a_vector(x, op.index, inside) for x in op.body.binds):
            return False
        own = [k for k in own if not in_order(op, k)]
        return (
            bool(own)
            and all(own_sum(op.body, op.accs[k], op.body.results[k]) for k in own)
            and self.one_by_one(op, inside)
        )

    def one_by_one(self, op: Loop, inside: set[Var]) -> bool:
        """Whether no iteration reads or changes an element of an array that another one changes: an array that changes
        is read and changed at one place of a row, or in rows whose numbers differ by a constant."""
        first: dict[Atom, Atom] = {a: a for a in op.accs}
        places: dict[Atom, list[list[Affine]]] = {}
        for x in op.body.binds:
            if x.op.name in ("get", "update", "add-at"):  # type: ignore[union-attr]
                array, *at = x.op.args if x.op.name == "get" else x.op.args[:-1]  # type: ignore[union-attr]
                array = first.get(array, array)
                if x.op.name != "get":  # type: ignore[union-attr]
                    first[x.vars[0]] = array
                places.setdefault(array, []).append([affine_in(a, self.integers) for a in at])
        return all(
            one == two or never_equal(one[:-1], two[:-1])
            for array in set(first.values())
            for k, one in enumerate(places.get(array, ()))
            for two in places[array][:k]
        )

    def in_a_vector(self, x: Bind, index: Var, inside: set[Var]) -> bool:
        """Whether four values of what a binding binds can be computed together."""
        op: Prim = x.op  # type: ignore[assignment]
        changes = op.name in ("update", "add-at")
        if changes or op.name == "get":
            if not isinstance(type_of(op.args[-1]) if changes else x.vars[0].type, Scalar):
                return False
            *rows, last = (affine_in(a, self.integers)[1] for a in (op.args[1:-1] if changes else op.args[1:]))
            moves = last.get(index, 0) in ((1,) if changes else (0, 1))
            return moves and inside & {*last} <= {index} and all(inside.isdisjoint(r) for r in rows)
        if not isinstance(x.vars[0].type, Scalar):
            return False
        if x.vars[0].type == INT:
            return op.name in ("+", "-")
        row = PRIMITIVES.get(op.name)
        return op.name == "select" or row is not None and op.name != "real" and (row.cost < CALL or op.name == "sqrt")


def in_order(op: Loop, k: int) -> list[tuple[Bind, Var]]:
    """What a loop adds to a number of the user's, one after the other, and each term, if it does nothing else to it."""
    made = {x.vars[0]: x for x in op.body.binds}
    acc, result = op.accs[k], op.body.results[k]
    chain: list[tuple[Bind, Var]] = []
    while result is not acc:
        x = made.get(result)  # type: ignore[call-overload]
        if x is None or x.soft or x.op.name not in ("+", "-") or count_uses(op.body, result) != 1:  # type: ignore
            return []
        result, term = x.op.args  # type: ignore[union-attr]
        if type(term) is not Var or term in op.accs:
            return []
        chain.insert(0, (x, term))
    return chain if count_uses(op.body, acc) == 1 else []


def without(op: Loop, users: dict[int, list[tuple[Bind, Var]]]) -> Loop:
    """A loop that leaves some of its accumulators as they are."""
    gone = {x for chain in users.values() for x, _ in chain}
    binds = tuple(x for x in op.body.binds if x not in gone)
    results = (op.accs[k] if k in users else r for k, r in enumerate(op.body.results))
    return Loop(op.count, op.index, op.inits, op.accs, Block(binds, tuple(results)))


def own_sum(block: Block, acc: Var, result: Atom) -> bool:
    """Whether a block adds to a number, by additions of differentiation's own, and reads it for nothing else."""
    made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim}
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
