"""Elements that one iteration stores and the next one reads, carried from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    REAL,
    ZERO,
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
    Var,
    all_binds,
    defined_in,
    substitute,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import has_checks, tidy
from ..program.loops import loops_of, slice_of
from ..program.rebuild import Rebuild, taken
from .tables import affine_of, sums_in

Place = tuple[Affine, ...]


@dataclass
class Carried:
    """An element of the accumulator ``k`` that ``read`` reads, and ``change`` has stored in the iteration before."""

    k: int
    read: Bind
    change: Bind


def carry(program: Program) -> Program:
    """Carries an element that an iteration stores, and the next one reads, from one to the other as a scalar.

    ``(loop n (fn [i a] (update a (+ i 1) (f (get a i)))) a)``  =>
    ``(loop n (fn [i a x] (let [y (f x)] #((update a (+ i 1) y) y))) a (get a 0))``: a recurrence waits for its
    operations, and not for memory.

    Design decision: where what is stored hangs on what is read, or it would be vectors that wait; in loops that have
    none inside, and no checks but of what they look up. Each element gets what it got. The first one is read before the
    loop, if that runs.
    """
    if not any(changes(loop) for loop in loops_of(program)):
        return program
    return taken(program, Carry(Builder(), program))


def changes(loop: Loop) -> bool:
    return any(type(x.op) is Prim and x.op.name in ("update", "add-at") for x in loop.body.binds)


class Carry(Rebuild):
    """``carry`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        multiples = (x for x in all_binds(program.body) if type(x.op) is Prim and x.op.name == "*")
        self.sums = {x.vars[0]: x.op for x in multiples if x.vars[0].type is INT and type(x.op.args[0]) is Const}  # type: ignore
        self.sums |= sums_in(program.body)

    def takes(self, bind: Bind) -> bool:
        return changes(bind.op) and bool(self.carried(bind.op))  # type: ignore[arg-type]

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        found = self.carried(op) if changes(op) else []
        if not found:
            return super().loop(op, bind)
        width, more = len(op.accs), len(found)
        accs, starts, lasts = [], [], []
        for c in found:
            v = c.read.vars[0]
            accs.append(Var(v.name, REAL, v.span))
            starts.append(Var(v.name, REAL, v.span))
            lasts.append(Var(v.name, REAL, v.span))
            self.here[starts[-1]] = self.first(op, c)
        table: dict[Atom, Atom] = {c.read.vars[0]: acc for c, acc in zip(found, accs)}
        changed = {c.change: k for k, c in enumerate(found)}
        following: list[Atom] = [*accs]
        binds: list[Bind] = []
        for x in op.body.binds:
            k = changed.get(x)
            if k is not None and x.op.name == "add-at":  # type: ignore[union-attr]
                array, *at, value = x.op.args  # type: ignore[union-attr]
                old, total = Var("t", REAL, x.span), Var(accs[k].name, REAL, x.span)
                binds.append(Bind((old,), Prim("get", (array, *at)), x.span))
                binds.append(Bind((total,), Prim("+", (old, value)), x.span, x.soft))
                x = Bind(x.vars, Prim("update", (array, *at, total)), x.span)
            if k is not None:
                following[k] = x.op.args[-1]  # type: ignore[union-attr]
            if not x.vars or x.vars[0] not in table:
                binds.append(x)
        results = op.body.results
        body = substitute(Block(tuple(binds), (*results[:width], *following, *results[width:])), table)
        again = Loop(op.count, op.index, (*op.inits, *starts), (*op.accs, *accs), body, op.snapshots)
        out = super().loop(again, Bind((*bind.vars[:width], *lasts, *bind.vars[width:]), again, bind.span))
        return [*out[:width], *out[width + more :]]

    def first(self, op: Loop, c: Carried) -> Atom:
        """What the first iteration reads, if there is one."""
        b, span = self.b, c.read.span
        runs = b.prim("<", Const(0, INT), self.atom(op.count))

        def element() -> Atom:
            self.here[op.index] = Const(0, INT)
            b.span = span
            sound = Block(tuple(x for x in op.body.binds if type(x.op) is not Check), ())
            return b.get(self.atom(op.inits[c.k]), *self.block(slice_of(sound, c.read.op.args[1:])))  # type: ignore[union-attr]

        if type(runs) is Const:
            return element() if runs.value else ZERO
        with b.branch_region(runs, True) as scope:
            value = element()
        with b.branch_region(runs, False) as other:
            pass
        return b.if_(runs, (scope, [value]), (other, [ZERO]))[0]

    def carried(self, op: Loop) -> list[Carried]:
        """The elements to carry in a loop, one for an accumulator at most."""
        if op.index.soft or op.snapshots is not None:
            return []
        inside = defined_in(op.body)
        for x in op.body.binds:
            if type(x.op) is Check and not self.of_data(x.op, inside) or type(x.op) not in (Prim, If, Check):
                return []
            if type(x.op) is If and has_checks(Block((x,), ())):
                return []
        made = {v: x for x in op.body.binds for v in x.vars}
        found = []
        for k, (acc, result) in enumerate(zip(op.accs, op.body.results)):
            if not isinstance(acc.type, Arr) or acc.type.elem is not REAL:
                continue
            chain: list[tuple[Bind, Place | None]] = []
            at: Atom = result
            while (x := made.get(at)) is not None and type(x.op) is Prim and x.op.name in ("update", "add-at"):  # type: ignore
                chain.insert(0, (x, self.place(op, x.op.args[1:-1], acc.type)))
                at = x.op.args[0]
            if at is not acc or any(place is None for _, place in chain):
                continue
            reads = (x for x in op.body.binds if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] is acc)
            for x in reads:
                change = self.stored(op, x, chain, acc.type)
                if change is not None and x in tidy(Block(op.body.binds, (change.op.args[-1],))).binds:  # type: ignore
                    found.append(Carried(k, x, change))
                    break
        return found

    def of_data(self, check: Check, inside: set[Var]) -> bool:
        """Whether a check is of what an iteration finds alone, and so of no place that is known before."""
        place = affine_of(check.a, self.sums, set(self.sums), set())
        return check.relation == "in" and place is not None and bool(place[1]) and place[1].keys() <= inside

    def stored(self, op: Loop, read: Bind, chain: Sequence[tuple[Bind, Place | None]], t: Arr) -> Bind | None:
        """What stored, last of all in the iteration before, the element that is read in this one."""
        place = self.place(op, read.op.args[1:], t)  # type: ignore[union-attr]
        for change, other in reversed(chain) if place is not None else ():
            steps = [q[1].get(op.index, 0) for q in other]  # type: ignore[union-attr]
            gaps = [affine_add(q, p, -1) for p, q in zip(place, other)]  # type: ignore[arg-type]
            if any(gap[1] for gap in gaps):  # nobody knows whether it is this one
                return None
            if any(steps) and [gap[0] for gap in gaps] == steps:
                return change
        return None

    def place(self, op: Loop, at: Sequence[Atom], t: Arr) -> Place | None:
        """The subscripts of an element in what the loop does not make, and its index."""
        inside = defined_in(op.body)
        found = tuple(affine_of(a, self.sums, set(self.sums), set()) for a in at)
        known = len(at) == t.rank and all(p is not None and p[1].keys().isdisjoint(inside) for p in found)
        return found if known else None  # type: ignore[return-value]
