"""Forward and backward recursion fused into one function, so that no record is made between them.

A gradient of a recursive function runs it twice: forwards, which gives the results and a record, and backwards on that
record. Where the cotangents of the inner calls do not depend on what these calls give, as in sums, in products with
what is known before, in all that is linear in the inner calls, the way back can begin before the way there:

    y, r = (f-there x);  x̄ = (f-back x r ȳ)   =>   y, x̄ = (f-both x ȳ)

Cotangents go down as arguments, values and adjoints come up as results, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..core import (
    REAL,
    Apply,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    Data,
    Function,
    If,
    Make,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    free_vars,
    functions_of,
    retarget,
    type_atoms,
    uses,
    with_blocks,
)
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild

ENDS = 8  # so many ways through a function are followed to their ends
LOOK = 2000  # so many bindings are looked at for a way from a value to a cotangent


@dataclass(frozen=True)
class Trip:
    """``back`` takes, as its parameter number ``p``, the record that is result number ``k`` of ``there``."""

    there: Function
    back: Function
    k: int
    p: int


@dataclass
class Trips:
    """The functions of both ways that have been begun. ``same``: which parameters of ``back`` are, in every pair of
    calls, which of ``there``. ``failed``: what cannot be made."""

    same: dict[Trip, dict[int, int]] = field(default_factory=dict)
    failed: set[Trip] = field(default_factory=set)
    made: dict[Trip, Function] = field(default_factory=dict)
    stale: bool = False

    def function(self, trip: Trip) -> Function:
        """The joint function; its body comes later."""
        if trip not in self.made:
            there, back = trip.there, trip.back
            params = (*there.params, *(back.params[q] for q in self.own(trip)))
            results = (*without(there.results, trip.k), *back.results)
            name = there.name.removesuffix("-there") + "-both"
            self.made[trip] = Function(name, tuple(map(copy, params)), tuple(map(copy, results)), None, there.span)
        return self.made[trip]

    def own(self, trip: Trip) -> list[int]:
        """The parameters of ``back`` that are not among those of ``there``."""
        return [q for q in range(len(trip.back.params)) if q != trip.p and q not in self.same[trip]]

    def agree(self, trip: Trip, there: Apply, back: Apply) -> None:
        """Note which arguments of two calls are the same."""
        found: dict[int, int] = {}
        for q, x in enumerate(back.args):
            j = next((j for j, a in enumerate(there.args) if a is x or (type(a) is Const and a == x)), None)
            if j is not None and q != trip.p:
                found[q] = j
        before = self.same.setdefault(trip, found)
        kept = {q: j for q, j in before.items() if back.args[q] is there.args[j] or back.args[q] == there.args[j]}
        if kept != before:
            self.same[trip], self.stale = kept, True


def without(items: Sequence, k: int) -> list:
    return [*items[:k], *items[k + 1 :]]


def copy(v: Var) -> Var:
    return Var(v.name, v.type, v.span, v.given)


def round_trips(program: Program) -> Program:
    """Fuses the forward and the backward function of a recursion wherever cotangents are known before the values."""
    functions = functions_of(program.body)
    trips = Trips()
    while True:
        trips.made, trips.stale = {}, False
        bodies = {f: join(f.body, trips) for f in functions}  # type: ignore[arg-type]
        body = join(program.body, trips)
        if not trips.made:
            return program
        if finished(trips):
            break
    every = {f: Function(f.name, f.params, f.results, None, f.span) for f in functions}
    for f, new in every.items():
        new.body = retarget(bodies[f], every)
    for h in trips.made.values():
        h.body = retarget(h.body, every)  # type: ignore[arg-type]
    return replace(program, body=retarget(body, every))


def finished(trips: Trips) -> bool:
    """Make the bodies of the joint functions, and of those that they call; whether nothing came in the way."""
    done = 0
    while done < len(trips.made):
        trip = list(trips.made)[done]
        try:
            body = join(both(trip, trips), trips)
        except TooMany:
            body = trip.there.body  # type: ignore[assignment]
        if any(type(b.op) is Apply and b.op.function in (trip.there, trip.back) for b in all_binds(body)):
            trips.failed.add(trip)
            return False
        trips.made[trip].body = body
        done += 1
    return not trips.stale


# ------------------------------------------------------------------------------------------ the bodies


class TooMany(Exception):
    """There are too many ways through a function to write what follows behind each."""


class Both(Rebuild):
    """Copies the body of ``there`` with that of ``back`` wherever it ends. What follows a branch that makes a record is
    written into its arms: there the record's constructor is known."""

    def __init__(self, b: Builder, trip: Trip, params: Callable[[Atom], dict[Var, Atom]]) -> None:
        super().__init__(b)
        self.trip, self.params, self.ends = trip, params, 0
        self.names = [v.name for v in (*without(trip.there.results, trip.k), *trip.back.results)]

    def end(self, results: Sequence[Atom]) -> Sequence[Atom]:
        self.ends += 1
        if self.ends > ENDS:
            raise TooMany
        self.here.update(self.params(results[self.trip.k]))
        return [*without(results, self.trip.k), *self.block(self.trip.back.body)]  # type: ignore[arg-type]

    def walk(self, block: Block, done: Callable[[Sequence[Atom]], Sequence[Atom]]) -> Sequence[Atom]:
        """Emit a block, and behind it what ``done`` makes of its results."""
        b, binds = self.b, block.binds
        choices = (n for n, bind in enumerate(binds) if type(bind.op) in (If, Case) and any(map(is_record, bind.vars)))
        at = next(choices, None)
        if at is None:
            return done(self.block(block))
        self.block(Block(binds[:at], ()))
        bind, rest = binds[at], Block(binds[at + 1 :], block.results)

        def follow(results: Sequence[Atom]) -> Sequence[Atom]:
            self.define(bind, results)
            return self.walk(rest, done)

        op, regions = bind.op, []
        if type(op) is If:
            cond = self.atom(op.cond)
            if type(cond) is Const:
                return self.walk(op.then if cond.value else op.orelse, follow)
            for inner, holds in ((op.then, True), (op.orelse, False)):
                with b.branch_region(cond, holds) as scope:
                    results = self.walk(inner, follow)
                regions.append((scope, results))
            return b.if_(cond, *regions, self.names)
        value, arms = self.atom(op.value), []  # type: ignore[union-attr]
        known = b.made.get(value)  # type: ignore[arg-type]
        if known is not None:
            arm = op.arms[known.constructor.tag]  # type: ignore[union-attr]
            self.here.update(zip(arm.fields, known.args))
            return self.walk(arm.block, follow)
        for arm in op.arms:  # type: ignore[union-attr]
            with b.arm(arm.constructor) as (scope, fields):
                self.here.update(zip(arm.fields, fields))
                b.made[value] = Make(arm.constructor, fields)  # type: ignore[index]
                results = self.walk(arm.block, follow)
                del b.made[value]  # type: ignore[arg-type]
            arms.append((arm.constructor, fields, scope, results))
        return b.case(value, arms, self.names)


def both(trip: Trip, trips: Trips) -> Block:
    """The body of a joint function, the inner calls still in two."""
    f, there, back = trips.made[trip], trip.there, trip.back
    b, width = Builder(), len(there.params)
    for p in f.params:
        b.note_sizes(p.type)  # type: ignore[arg-type]
    table: dict[Var, Atom] = {back.params[q]: f.params[j] for q, j in trips.same[trip].items()}
    table.update((back.params[q], p) for q, p in zip(trips.own(trip), f.params[width:]))
    pass_ = Both(b, trip, lambda record: {**table, back.params[trip.p]: record})
    pass_.here.update(zip(there.params, f.params))
    results = pass_.walk(there.body, pass_.end)  # type: ignore[arg-type]
    return tidy(Block(b.block(), tuple(results)))


# ------------------------------------------------------------------------------------- pairs of calls


def is_record(v: Var) -> bool:
    return isinstance(v.type, Data) and all(c.make == "record" for c in v.type.constructors)


def fits(trip: Trip) -> bool:
    """Whether a pair of functions may be joined: ``there`` is recursive, and no size is an argument or a result."""
    variables = (*trip.there.params, *trip.there.results, *trip.back.params, *trip.back.results)
    sized = any(type(d) is Var for v in variables for d in type_atoms(v.type))
    return not sized and trip.there in functions_of(trip.there.body)  # type: ignore[arg-type]


def join(block: Block, trips: Trips) -> Block:
    """A block with its pairs of calls, there and back, joined where that can be."""
    binds = []
    for bind in block.binds:
        inner = blocks_of(bind.op)
        joined = [join(region, trips) for region in inner]
        changed = any(a is not b for a, b in zip(joined, inner))
        binds.append(Bind(bind.vars, with_blocks(bind.op, joined), bind.span) if changed else bind)
    if any(a is not b for a, b in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    found = pairs(block, trips)
    return Ordered(block).with_pairs(found, trips) if found else block


def pairs(block: Block, trips: Trips) -> list[tuple[Trip, int, int]]:
    """The calls there, with the calls back on their records, by their places."""
    calls = [n for n, bind in enumerate(block.binds) if type(bind.op) is Apply]
    records = {v: (n, k) for n in calls for k, v in enumerate(block.binds[n].vars) if is_record(v)}
    if len(calls) < 2 or not records:
        return []
    counts, found = uses(block), []
    for n in calls:
        op = block.binds[n].op
        for p, a in enumerate(op.args):  # type: ignore[union-attr]
            if a in records and counts[a] == 1:
                at, k = records[a]  # type: ignore[index]
                trip = Trip(block.binds[at].op.function, op.function, k, p)  # type: ignore[union-attr]
                if trip not in trips.failed and fits(trip):
                    found.append((trip, at, n))
    return found


class Ordered:
    """The bindings of a block as a graph, in which two calls may become one."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.node = list(range(len(block.binds)))  # the place of each binding; a call back is where the call there is
        self.maker = {v: n for n, bind in enumerate(block.binds) for v in bind.vars}
        self.reads: list[list[int]] = []
        for bind in block.binds:
            sizes = [d for v in bind.vars for d in type_atoms(v.type)]
            read = [*free_vars(Block((bind,), ())), *sizes]
            self.reads.append([self.maker[v] for v in read if v in self.maker and v not in bind.vars])  # type: ignore
        self.calls: dict[int, tuple[int, Trip]] = {}  # place there: place back

    def below(self, n: int) -> list[int]:
        """The places that a place reads."""
        parts = [n, self.calls[n][0]] if n in self.calls else [n]
        return [m for part in parts for r in self.reads[part] if (m := self.node[r]) != n]

    def reaches(self, starts: Sequence[int], end: int, first: int) -> bool:
        """Whether ``starts`` need what is at ``end``, or something after ``first`` that must stay where it is."""
        seen, todo = set(starts), list(starts)
        while todo:
            n = todo.pop()
            if n == end or len(seen) > LOOK or (n > first and not self.moves(n)):
                return True
            more = [m for m in self.below(n) if m not in seen]
            seen.update(more)
            todo += more
        return False

    def moves(self, n: int) -> bool:
        """Whether a binding may stand earlier: a call of both ways, or a real that is computed from others."""
        op = self.block.binds[n].op
        return n in self.calls or (
            type(op) is Prim and op.name in PRIMITIVES and all(v.type == REAL for v in self.block.binds[n].vars)
        )

    def with_pairs(self, found: list[tuple[Trip, int, int]], trips: Trips) -> Block:
        for trip, there, back in found:
            binds = self.block.binds
            reads = [
                self.node[self.maker[a]] for q, a in enumerate(binds[back].op.args) if q != trip.p and a in self.maker
            ]  # type: ignore
            before = [self.node[r] for r in self.reads[there]]
            if not (self.reaches(reads, there, there) or self.reaches(before, back, there)):
                trips.agree(trip, binds[there].op, binds[back].op)  # type: ignore[arg-type]
                self.calls[there], self.node[back] = (back, trip), there
        return Block(tuple(self.in_order(trips)), self.block.results) if self.calls else self.block

    def in_order(self, trips: Trips) -> list[Bind]:
        """The bindings, each after what it reads, else where they stood."""
        out: list[Bind] = []
        done: set[int] = set()
        for n in range(len(self.block.binds)):
            todo = [n] if self.node[n] == n else []
            while todo:
                m = todo[-1]
                missing = [r for r in self.below(m) if r not in done]
                todo += missing
                if not missing:
                    todo.pop()
                    if m not in done:
                        done.add(m)
                        out.append(self.bind(m, trips))
        return out

    def bind(self, n: int, trips: Trips) -> Bind:
        there = self.block.binds[n]
        if n not in self.calls:
            return there
        at, trip = self.calls[n]
        back = self.block.binds[at]
        args = (*there.op.args, *(back.op.args[q] for q in trips.own(trip)))  # type: ignore[union-attr]
        variables = (*without(there.vars, trip.k), *back.vars)
        return Bind(variables, Apply(trips.function(trip), args), there.span)
