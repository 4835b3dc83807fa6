"""Loops whose iterations take turns: what the rest of an index decides, or two iterations share, is known in one."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from ..core import (
    FALSE,
    INT,
    REAL,
    TRUE,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    kinds_of,
)
from ..program.affine import affine_in, with_factors
from ..program.builder import Builder
from ..program.dead import dead_code, tidy
from ..program.loops import CALL
from ..program.primitives import PRIMITIVES, price_of
from ..program.rebuild import Rebuild, rebuilt

#: So many iterations are written down at most, of so many bindings in all.
MOST, SHORT = 4, 160


def periods(program: Program) -> Program:
    """Writes down the iterations of a period in one, where the rest of the index decides a branch, or the iterations
    of a period call functions of the same.

    ``(build n (fn [k] (if (= (% k 2) 0) (f (cos (// k 2)) k) (g (cos (// k 2)) k))))``  =>  for each ``q`` below
    ``n // 2`` the elements ``2 q`` and ``2 q + 1``, with one cosine and no branch; and the last one, if ``n`` is odd.
    Design decision: in innermost loops, inside another or around an accumulator: several threads may share the elements
    of an array that are made one by one.
    """
    if not found_in(program.body):
        return program
    return dead_code(rebuilt(program, Periods(Builder())))


def periods_block(b: Builder, block: Block) -> Block:
    """``periods`` for a block under construction: before it is differentiated, for the index of a loop backwards leaves
    a rest that nobody knows."""
    if "periods" in b.off or not found_in(block):
        return block
    return tidy(Periods(b).remade(block))


def found_in(block: Block, inside: bool = False) -> bool:
    """Whether there is a loop to take."""
    for x in block.binds:
        if type(x.op) is Loop and (inside or x.op.accs) and period(x.op):
            return True
        if any(found_in(inner, inside or type(x.op) is Loop) for inner in blocks_of(x.op)):
            return True
    return False


class Periods(Rebuild):
    """``periods`` for a block."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.depth = 0

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        found = period(op) if self.depth or op.accs else 0
        if not found:
            self.depth += 1
            made = super().loop(op, bind)
            self.depth -= 1
            return made
        b, width, turns = self.b, len(op.accs), Const(found, INT)
        b.fired("periods")
        count = b.trips(self.atom(op.count))
        whole = b.prim("//", count, turns)
        done = b.prim("*", turns, whole)
        left = b.prim("-", count, done)
        b.sizes.update(v for v in (whole, left) if type(v) is Var)
        state, names, accs = self.filling(op, bind)

        def turn(i: Atom, state: Sequence[Atom]) -> list[Atom]:
            """An iteration."""
            self.here[op.index] = i
            self.here.update(zip(op.accs, state))
            results = self.block(op.body)
            stacked = [b.update(a, [i], x, a.name) for a, x in zip(state[width:], results[width:])]  # type: ignore
            return [*results[:width], *stacked]

        def all_turns(q: Atom, *state: Atom):
            first, now = b.prim("*", turns, q), list(state)
            for k in range(found):
                now = turn(b.prim("+", first, Const(k, INT)), now)
            return now, ()

        state = b.loop(whole, state, all_turns, names, op.index.name, accs)

        for k in range(found - 1):  # a loop would have to be able to run: what may fail in it is looked at before it
            more = b.prim("<", Const(k, INT), left)
            if more == TRUE:
                state = turn(b.prim("+", done, Const(k, INT)), state)
            elif more != FALSE:
                with b.branch_region(more, True) as scope:
                    after = turn(b.prim("+", done, Const(k, INT)), state)
                with b.branch_region(more, False) as other:
                    pass
                state = b.if_(more, (scope, after), (other, state), names)
        b.span = bind.span
        return state


def period(op: Loop) -> int:
    """After how many iterations the rests of a loop's index are the same again, if they decide a branch in which
    something is read or called, or what is called with; else 0."""
    if op.index.soft or op.snapshots is not None or not kinds_of(op.body) <= {If, Check}:
        return 0
    binds = list(all_binds(op.body))
    integers = {x.vars[0]: x.op for x in binds if type(x.op) is Prim and x.vars[0].type == INT}
    rests: dict[Var, int] = {}
    for v, test in integers.items():
        if test.name in ("//", "%") and type(test.args[1]) is Const and 2 <= test.args[1].value <= MOST:
            step = with_factors(affine_in(test.args[0], integers), integers)[1].get(op.index, 0)
            if step % test.args[1].value:
                rests[v] = test.args[1].value
    if not rests or len(binds) * (turns := lcm(*rests.values())) > SHORT or turns > MOST:
        return 0
    of_index = depends(binds, {op.index}, set(rests))
    of_rests = depends(binds, set(rests), set())
    shared = of_rests - of_index
    useful = any(
        type(x.op) is If and x.op.cond in shared and any(map(reads_or_calls, blocks_of(x.op)))
        or x.vars and x.vars[0] in shared and calls(x)
        for x in binds
    )  # fmt: skip
    return turns if useful else 0


def depends(binds: Sequence[Bind], on: set[Var], but: set[Var]) -> set[Atom]:
    """What is made, by operations and branches, of some variables, otherwise than by way of others."""
    found: set[Atom] = set(on)
    for x in binds:
        read = x.op.args if type(x.op) is Prim else (x.op.a, x.op.b) if type(x.op) is Check else ()
        if type(x.op) is If:
            read = (x.op.cond, *(r for block in blocks_of(x.op) for r in block.results))
        if not found.isdisjoint(read):
            found.update(v for v in x.vars if v not in but)
    return found


def reads_or_calls(block: Block) -> bool:
    """Whether a branch reads elements, calls functions or fails."""
    return any(type(x.op) is Check or type(x.op) is Prim and x.op.name == "get" or calls(x) for x in all_binds(block))


def calls(bind: Bind) -> bool:
    """Whether a binding is a call of the C library, or what costs as much."""
    op = bind.op
    return type(op) is Prim and op.name in PRIMITIVES and price_of(op) >= CALL and bind.vars[0].type is REAL
