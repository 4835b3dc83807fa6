"""What a loop adds to elements that another iteration may add to as well, computed for some iterations at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    blocks_of,
    defined_in,
    reads,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.loops import CALL, CHEAP, closure, cost_of, loops_of, slice_of
from ..program.primitives import PRIMITIVES, price_of
from ..program.rebuild import Rebuild, taken
from .nests import Steps
from .tables import affine_of

TILE = 32  # iterations at once: what they add stays in the nearest cache
FEWEST = 16  # a loop that is known to run less often is left as it is
MOST = 12  # numbers that an iteration adds
BRANCHES = 2  # of what an iteration does outside of branches: what it may do inside, both sides together
EACH = 5  # in additions: what has to be computed for each of them, for this to be worth it
CHECKED = 3  # times as much, where it is checks alone that keep a compiler from taking several at once


def adds_last(program: Program) -> Program:
    """Computes what an innermost loop adds to elements of an array before it adds it, for 32 iterations at a time.

    ``(ifold (fn [g i] (let [f (force (get p i) (get q i))] (add-at (add-at g (get p i) f) (get q i) (- f)))) g n)``  =>
    for 32 ``i`` at a time a loop that makes the ``f``, and one that does the additions; before them one that checks
    the ``p`` and ``q``. So are numbers that a loop stacks or adds up where it is checks that keep it from vectors.
    Design decision: each element gets what it got, in the order in which it got it, and so the same value. Where two
    iterations may change one element a compiler takes one iteration after the other; the first of the two loops is a
    vector loop. Late, for what is left: additions at places of known distance are gathered before (``shifts``,
    ``rings``, ``neighbours``), those that cost little have loops of their own (``overlaps``). Of a branch both sides
    are computed: they may cost twice as much as the rest of an iteration.
    """
    return taken(program, AddsLast(Builder(), program)) if any(map(candidate, loops_of(program))) else program


def candidate(loop: Loop) -> bool:
    """Whether a loop itself changes elements of an array, or checks something, and has no loop inside."""
    kinds = {type(x.op) for x in all_binds(loop.body)}
    return kinds <= {Prim, If, Check} and any(changes(x) or type(x.op) is Check for x in loop.body.binds)


def changes(bind: Bind) -> bool:
    return type(bind.op) is Prim and bind.op.name in ("update", "add-at")


@dataclass
class Plan:
    """What is checked first, the block whose results are computed ahead, and what is left of an iteration then."""

    checks: list[Bind]
    work: Block
    rest: list[Bind]


class AddsLast(Rebuild):
    """``adds_last`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.steps = Steps(program.body)
        self.integers = {
            v: x.op for x in all_binds(program.body) for v in x.vars if v.type == INT and type(x.op) is Prim
        }

    def takes(self, bind: Bind) -> bool:
        return self.plan(bind.op) is not None  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        plan = self.plan(bind.op) if type(bind.op) is Loop else None
        if plan is None:
            self.copy(bind)
        else:
            self.b.fired("adds-last")
            self.split(bind, bind.op, plan)  # type: ignore[arg-type]

    # ---------------------------------------------------------------------------------------- what goes ahead

    def plan(self, op: Loop) -> Plan | None:
        """What of an iteration goes ahead, if it is worth it."""
        if not candidate(op) or op.index.soft or op.snapshots is not None:
            return None
        if type(op.count) is Const and op.count.value < FEWEST or self.steps.few(op.count):
            return None
        late: set[Atom] = set(op.accs)
        ahead, rest, checks = [], [], []
        for x in op.body.binds:
            if type(x.op) is Check:
                checks.append(x)
            elif late.isdisjoint(reads(x)):
                ahead.append(x)
            else:
                late.update(x.vars)
                rest.append(x)
        if not all(map(numbers, ahead)) or not all(map(adds, rest)):
            return None
        if not (meets := self.meets(op)) and not checks:
            return None
        checks = [*closure(ahead, {a for x in checks for a in reads(x)}), *checks]
        if any(a in late for x in checks for a in reads(x)) or cost_of(Block(tuple(checks), ())) > CHEAP * len(checks):
            return None
        read = {a for x in rest for a in reads(x)}.union(op.body.results)
        read.update(a for x in ahead if negates(x) and x.vars[0] in read for a in reads(x))
        passed = [v for x in ahead for v in x.vars if v in read and v.type == REAL and not (looks(x) or negates(x))]
        again = closure([x for x in ahead if not {*passed}.intersection(x.vars)], read)
        there = {*passed, *(v for x in again for v in x.vars)}
        if not passed or len(passed) > MOST or any(v in read and v not in there for x in ahead for v in x.vars):
            return None
        work = slice_of(Block(tuple(ahead), ()), passed)
        here, branches = cost_of(work), sum(price(y) for x in work.binds for y in inner(x))
        least = EACH * (len(passed) + 1) * (1 if meets else CHECKED)
        twice = cost_of(Block(tuple(again), ())) + sum(price(y) for x in again for y in inner(x))
        if twice > CHEAP * len(again) or branches > BRANCHES * here or here + branches < least:
            return None
        return Plan(checks, work, [*again, *rest])

    def meets(self, op: Loop) -> bool:
        """Whether an element that an iteration changes may be one that another one changes or reads: of an array that
        it changes at a place that is not known, or at two that may be one."""
        inside = {op.index, *op.accs, *defined_in(op.body)}
        roots: dict[Atom, Atom] = {a: a for a in op.accs if isinstance(a.type, Arr)}
        places: dict[Atom, list[tuple[list, bool]]] = {}  # by the accumulator; whether something is changed there
        for x in op.body.binds:
            if type(x.op) is Prim and x.op.args and x.op.args[0] in roots:
                root, change = roots[x.op.args[0]], changes(x)
                where = [self.place(a, op, inside) for a in x.op.args[1 : -1 if change else None]]
                if change:
                    roots[x.vars[0]] = root
                    if any(p is None for p in where) or not any(op.index in p[1] for p in where):  # type: ignore
                        return True
                found = places.setdefault(root, [])
                if any((change or changed) and not apart(where, other, op.index) for other, changed in found):
                    return True
                found.append((where, change))
        return False

    def place(self, a: Atom, op: Loop, inside: set[Var]) -> Affine | None:
        return affine_of(a, self.integers, inside, {op.index})

    # ---------------------------------------------------------------------------------------- the two loops

    def split(self, bind: Bind, op: Loop, plan: Plan) -> None:
        b, count = self.b, self.b.trips(self.atom(op.count))
        state, names, accs = self.filling(op, bind)
        size = Const(TILE, INT)
        if type(count) is Const and count.value <= TILE:
            made = self.tile(bind, op, plan, Const(0, INT), count, state, names)
        else:
            tiles = b.prim("//", b.prim("+", count, Const(TILE - 1, INT)), size)
            if type(tiles) is Var:
                b.sizes.add(tiles)

            def tile(q: Atom, *state: Atom):
                first = b.prim("*", size, q)
                left = b.prim("min", size, b.prim("-", count, first))
                if type(left) is Var:
                    b.sizes.add(left)
                return self.tile(bind, op, plan, first, left, state, names), ()

            made = b.loop(tiles, state, tile, names, "tile", accs)
        b.span = bind.span
        self.define(bind, made)

    def tile(
        self, bind: Bind, op: Loop, plan: Plan, first: Atom, left: Atom, state: Sequence[Atom], names: Sequence[str]
    ) -> Sequence[Atom]:
        """So many iterations: what goes ahead of all of them, then the rest of each in turn."""
        b, width = self.b, len(op.accs)
        own = [v.name for v in plan.work.results]
        rooms = [b.undef(Arr(REAL, (Const(TILE, INT),))) for _ in own]
        around = dict(self.here)

        def check(k: Atom):
            self.here = {**around, op.index: b.prim("+", first, k)}
            self.block(Block(tuple(plan.checks), ()))
            return (), ()

        if plan.checks:
            b.loop(left, (), check, (), "k")

        def ahead(k: Atom, *rooms: Atom):
            self.here = {**around, op.index: b.prim("+", first, k)}
            results = self.block(plan.work)
            return [b.update(room, [k], x, name) for room, x, name in zip(rooms, results, own)], ()

        passed = dict(zip(plan.work.results, b.loop(left, rooms, ahead, own, "k", own)))

        def last(k: Atom, *state: Atom):
            i = b.prim("+", first, k)
            self.here = {**around, op.index: i, **dict(zip(op.accs, state))}
            self.here.update((v, b.get(array, k, hint=v.name)) for v, array in passed.items())
            results = self.block(Block(tuple(plan.rest), op.body.results))
            stacked = zip(state[width:], results[width:], names[width:])
            return [*results[:width], *(b.update(a, [i], x, name) for a, x, name in stacked)], ()

        made = b.loop(left, state, last, names, op.index.name, [*(a.name for a in op.accs), *names[width:]])
        self.here = around
        return made


def apart(one: Sequence[Affine | None], two: Sequence[Affine | None], index: Var) -> bool:
    """Whether two places of an array are not the same in two iterations of a loop: one of their subscripts moves alike
    in both, or is never the same."""
    for p, q in zip(one, two):
        if p is None or q is None:
            continue
        gap, terms = affine_add(p, q, -1)
        step = p[1].get(index, 0)
        if not terms and (gap % step if step else gap) or not terms and not gap and step:
            return True
    return False


def numbers(bind: Bind) -> bool:
    """Whether a binding makes numbers of numbers or of elements, in a way that vectors have: no call, and in branches
    nothing is read."""
    op = bind.op
    if not all(isinstance(v.type, Scalar) for v in bind.vars):
        return False
    if type(op) is If:
        return all(numbers(x) and not looks(x) for block in blocks_of(op) for x in block.binds)
    if type(op) is not Prim:
        return False
    if op.name in ("int", "real"):
        return False  # of eight bytes each few processors convert several at once
    return op.name in ("get", "select") or op.name in PRIMITIVES and price_of(op) < CALL


def adds(bind: Bind) -> bool:
    """Whether a binding changes an element, or adds to a number: where more waits for the iteration before, what does
    not is computed meanwhile."""
    return changes(bind) or type(bind.op) is Prim and bind.op.name in ("+", "-")


def negates(bind: Bind) -> bool:
    return type(bind.op) is Prim and bind.op.name == "neg"


def looks(bind: Bind) -> bool:
    return type(bind.op) is Prim and bind.op.name == "get"


def inner(bind: Bind) -> Iterator[Bind]:
    """The bindings in the branches of one."""
    for block in blocks_of(bind.op):
        yield from all_binds(block)


def price(bind: Bind) -> int:
    return price_of(bind.op) if type(bind.op) is Prim and bind.op.name in PRIMITIVES else 0
