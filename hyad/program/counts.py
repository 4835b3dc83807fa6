"""What a typed program costs to run, counted from its text: operations, memory, loops, at given sizes.

The counts are those of the program, not of a machine: an operation on reals counts once, and by its row's ``cost`` (in
additions) as work; an integer's operation (subscripts, counters) does not count. Where a branch decides, the dearer arm
counts. A trip count that only the data decide (``while``, a computed count) and the depth of a recursion cannot be
counted: one iteration and one call are, and ``unknown`` says so. The steps that ``:checkpoint`` takes again are counted
where the loop's own are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from ..core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Type,
    Var,
    While,
    blocks_of,
    functions_of,
)
from ..errors import Span
from .primitives import PRIMITIVES

#: The size of a dimension that nobody gave.
ASSUMED = 100

#: Bytes of a number, and of a pointer.
WORD = 8

#: A primitive of at least this cost, in additions, is said to be transcendental.
DEAR = 10


@dataclass(slots=True)
class Cost:
    """Counts for one call, as floats: they may be large, and the mean over a triangular loop is no integer.

    ``operations`` on reals, of them ``transcendental``; ``work`` is the operations weighed by their rows' ``cost``;
    ``loads`` and ``stores`` of elements of arrays; ``bindings``, ``loops``, ``arrays`` (made) and ``cells`` (of data)
    are of the text, each counted once wherever it stands. ``unknown`` names what could not be counted. ``taken``: bytes
    of cells, and of what a ``while`` remembers, by what they are counted for: "" (the whole call), "a round" of a
    ``while``, "a call of f".
    """

    operations: float = 0.0
    transcendental: float = 0.0
    work: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    bindings: int = 0
    loops: int = 0
    arrays: int = 0
    cells: int = 0
    unknown: set[str] = field(default_factory=set)
    taken: dict[str, float] = field(default_factory=dict)

    def add(self, other: Cost, times: float = 1.0) -> None:
        """Add ``times`` the run-time counts of ``other``, and its counts of the text once."""
        for f in fields(self):
            if f.name == "unknown":
                self.unknown |= other.unknown
            elif f.name == "taken":
                for unit, n in other.taken.items():
                    self.take(n * times, unit)
            else:
                scale = times if f.type == "float" else 1
                setattr(self, f.name, getattr(self, f.name) + scale * getattr(other, f.name))

    def take(self, n: float, unit: str = "") -> None:
        """Count bytes."""
        if n:
            self.taken[unit] = self.taken.get(unit, 0.0) + n

    def each(self, unit: str) -> Cost:
        """The same, where what was taken is for one of many."""
        if "" in self.taken:
            self.take(self.taken.pop(""), unit)
        return self


class Schedule(NamedTuple):
    """How a loop with ``:checkpoint`` runs again in its derivative: for each ``while`` of it that the program has or
    repeats, the mean number of its rounds, and the mean number of steps in a round."""

    rounds: float
    steps: float


def cost(
    program: Program, sizes: Mapping[Var, float] | None = None, schedules: Mapping[Span, Schedule] | None = None
) -> Cost:
    """What ``program`` costs where its dims (and ``Int`` parameters) are ``sizes``; one not given is ``ASSUMED``.
    ``schedules`` has those of its loops by their places."""
    counter = _counter(program, sizes)
    counter.schedules = schedules or {}
    total = counter.block(program.body)
    for f in functions_of(program.body):
        total.unknown.add(f"calls of {f.name}")
    return total


def inside(program: Program) -> Callable[[Block], Cost]:
    """A function for what one pass through a block of ``program`` costs, its dims being ``ASSUMED``."""
    counter = _Counter(dict.fromkeys(program.dims, float(ASSUMED)))
    counter.block(program.body)  # the integers that follow from those
    return counter.block


def dims(program: Program, sizes: Mapping[Var, float] | None = None) -> dict[Var, float]:
    """The dims of a program, of which some are given: a check may say what another one is."""
    counter = _counter(program, sizes)
    counter.block(program.body)
    return {d: counter.values[d] for d in program.dims}


def _counter(program: Program, sizes: Mapping[Var, float] | None) -> _Counter:
    given = sizes or {}
    assumed = {d for d in program.dims if d not in given}
    return _Counter({**dict.fromkeys(assumed, float(ASSUMED)), **given}, assumed)


def work(block: Block) -> float:
    """The work of one pass through a block of which nothing is known but its text."""
    return _Counter({}).block(block).work


def stacked(op: Loop | While) -> int:
    """The numbers that an iteration stacks; a row that it stacks is built in its place."""
    return sum(not isinstance(r.type, Arr) for r in op.body.results[len(op.accs) :])  # type: ignore[union-attr]


def cell(op: Make) -> int:
    """The bytes of a cell of data: a word for each field, and one that tells constructors with fields apart."""
    filled = [c for c in op.constructor.data.constructors if c.fields]
    return WORD * (len(op.args) + (len(filled) > 1)) if op.args else 0


def sets_counts(block: Block, known: set[Var]) -> bool:
    """Whether a trip count in a block is computed from integers in ``known``."""
    known = set(known)
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim:
            if bind.vars[0].type == INT and op.name != "get" and not known.isdisjoint(op.args):
                known.add(bind.vars[0])
        elif type(op) is Loop and op.count in known or any(sets_counts(inner, known) for inner in blocks_of(op)):
            return True
    return False


class _Counter:
    """Walks a program once; ``values`` are the integers that are known, or ``assumed`` until a check says more."""

    def __init__(self, values: dict[Var, float], assumed: set[Var] | None = None) -> None:
        self.values, self.assumed = values, assumed or set()
        self.schedules: Mapping[Span, Schedule] = {}
        self.schedule: Schedule | None = None  # of the ``while`` that is being counted
        self.functions: dict[Function, Cost] = {}
        self.calling: set[Function] = set()

    def number(self, a: Atom) -> float | None:
        if type(a) is Const:
            return float(a.value)
        return self.values.get(a)  # type: ignore[arg-type]

    def size(self, a: Atom) -> float:
        known = self.number(a)
        return float(ASSUMED) if known is None else max(0.0, known)

    def elements(self, t: Type) -> float:
        total = 1.0
        for d in t.dims if isinstance(t, Arr) else ():
            total *= self.size(d)
        return total

    def block(self, block: Block) -> Cost:
        total = Cost()
        for bind in block.binds:
            total.bindings += 1
            op = bind.op
            if type(op) is Prim:
                self.prim(op, bind.vars[0], total)
            elif type(op) is If:
                self.either(total, [self.block(op.then), self.block(op.orelse)])
            elif type(op) is Case:
                self.either(total, [self.block(arm.block) for arm in op.arms])
            elif type(op) is Loop:
                count = self.number(op.count)
                if count is None and bind.span in self.schedules:
                    count = 1.0 if self.schedule is None else self.schedule.steps
                if count is None:
                    total.unknown.add("iterations of a loop whose count is computed")
                    count = 1.0
                body = self.iteration(op, count)
                body.stores += stacked(op)
                total.add(body, max(0.0, count))
                total.loops += 1
                total.arrays += stacked(op)
            elif type(op) is While:
                schedule = self.schedules.get(bind.span) if self.scheduled(bind) else None  # type: ignore[arg-type]
                if schedule is None:
                    total.unknown.add("iterations of a while")
                total.add(self.block(op.cond))
                around, self.schedule = self.schedule, schedule
                body = self.block(op.body)
                self.schedule = around
                body.take(sum(WORD * self.elements(r.type) for r in op.body.results[len(op.accs) :]))  # type: ignore
                total.add(body.each("a round"), 1.0 if schedule is None else schedule.rounds)
                total.loops += 1
                total.arrays += stacked(op)
            elif type(op) is Make:
                total.cells += 1
                total.stores += len(op.args)
                total.take(cell(op))
            elif type(op) is Check:
                if op.relation == "==":  # two sizes of which one is known
                    for a, b in ((op.a, op.b), (op.b, op.a)):
                        open_ = type(a) is Var and (a not in self.values or a in self.assumed)
                        if open_ and b not in self.assumed and self.number(b) is not None:
                            self.values[a] = self.number(b)  # type: ignore[assignment,index]
                            self.assumed.discard(a)  # type: ignore[arg-type]
            elif type(op) is Apply:
                total.add(self.call(op.function))
        return total

    def scheduled(self, bind: Bind) -> bool:
        """Whether a ``while`` is a loop with ``:checkpoint`` on its way to a state, or its search for the next one that
        it keeps."""
        op = bind.op
        if all(a.type == INT for a in op.accs):  # type: ignore[union-attr]
            return self.schedule is not None
        loops = [b for b in op.body.binds if b.span == bind.span and type(b.op) is Loop]  # type: ignore[union-attr]
        return any(self.number(b.op.count) is None for b in loops)  # type: ignore[union-attr]

    def iteration(self, op: Loop, count: float) -> Cost:
        """The mean cost of an iteration. Where loops inside run as often as the index says, that of the two iterations
        around the middle one whose mean is the mean of all for every polynomial up to the third degree."""
        mean = max(0.0, (count - 1) / 2)
        if not sets_counts(op.body, {op.index}):
            self.values[op.index] = mean
            return self.block(op.body)
        away = (max(0.0, count * count - 1) / 12) ** 0.5
        self.values[op.index] = mean - away
        total, other = Cost(), self.block(op.body)
        self.values[op.index] = mean + away
        total.add(self.block(op.body), 0.5)
        other.bindings = other.loops = other.arrays = other.cells = 0  # the text stands once
        total.add(other, 0.5)
        return total

    def either(self, total: Cost, arms: Sequence[Cost]) -> None:
        """Add the dearest of some arms, and all that stands in their text."""
        dearest = max(arms, key=lambda arm: (arm.work, arm.loads + arm.stores))
        for arm in arms:
            total.add(arm, 1.0 if arm is dearest else 0.0)

    def call(self, f: Function) -> Cost:
        """One call of a function, those that it makes of itself aside."""
        if f in self.calling or f.body is None:
            return Cost()
        found = self.functions.get(f)
        if found is None:
            self.calling.add(f)
            found = self.functions[f] = self.block(f.body).each(f"a call of {f.name}")
            self.calling.discard(f)
            return found
        again = Cost()
        again.add(found)
        again.bindings = again.loops = again.arrays = again.cells = 0  # its text stands once
        return again

    def prim(self, op: Prim, var: Var, total: Cost) -> None:
        row = PRIMITIVES.get(op.name)
        if row is not None:
            if any(a.type == REAL for a in op.args) or var.type == REAL:  # type: ignore[union-attr]
                total.operations += 1
                total.work += row.cost
                total.transcendental += row.cost >= DEAR
            else:
                self.integer(op, var, row)
        elif op.name == "select":
            total.operations += 1
            total.work += 1
        elif op.name == "get":
            if not isinstance(var.type, Arr):
                total.loads += 1
        elif op.name in ("update", "add-at"):
            n = self.elements(op.args[-1].type)  # type: ignore[union-attr, arg-type]
            total.stores += n
            if op.name == "add-at":
                total.loads += n
                total.operations += n
                total.work += n
        elif op.name == "zeros" or op.name == "array" and not isinstance(op.args[0].type, Arr):  # type: ignore[union-attr]
            total.arrays += 1
            total.stores += self.elements(var.type)  # type: ignore[arg-type]

    def integer(self, op: Prim, var: Var, row: Any) -> None:
        """An integer that follows from known ones is known."""
        known = [self.number(a) for a in op.args]
        if op.name == "min" and None in known:  # no more than what is known
            known = [k for k in known if k is not None] * 2
        if var.type == INT and known and None not in known:
            try:
                self.values[var] = float(row.python(*known))
            except (ArithmeticError, ValueError):
                return
