"""Whole iterations in lanes: eight iterations of a loop around recurrences at once, with what they add to arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    Scalar,
    Var,
    all_binds,
    binds_of,
    defined_in,
    free_vars,
    integer,
    reads,
    type_of,
)
from ..program.affine import affine_add, affine_in
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import CALL, closure, read_of, slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from .fission import without
from .jam import Jam, Room, carried_in
from .lanes import LANES, ahead, simple_step
from .nests import FAR, Steps, accesses

START = integer(0)
CHAIN = 8  # in additions of throughput: what an operation costs that waits for the one before
WIDTH = 4  # numbers that one instruction takes
WIDE = 2 * LANES  # iterations at once, where those of one register wait for it
APART = 14  # in additions: eight numbers that do not lie side by side, read or written
GATHERED = 24  # and those of one row, to be found by eight subscripts
ACROSS = 8  # in additions: the sum of the lanes, added to an element
USUAL = 16  # steps: of a loop that nobody knows how long it is
WORTH = 0.75  # of the time of the iterations one by one: what eight at once may take


class Eights(Rebuild):
    """Runs eight iterations of a loop around recurrences at once: each number of theirs is eight numbers.

    ``(ifold (fn [g i] (let [#(y ys) (h x i) z (k ys)] (ifold (fn [g j] (add-at g j (f z ys j))) g m))) g n)``  =>  in
    each of ``n // 8`` iterations all of it for eight ``i``, every operation in a loop over the eight, and the eight
    ``f`` added to an element of ``g``; the iterations that are left follow one by one. So are recurrences along rows
    that change in place, a tridiagonal system for each line say: the rows that they begin with are made before, as they
    would be without lanes, and eight at once are turned so that their elements lie side by side.
    Of iterations that share nothing the last eight are never fewer: their last lanes repeat the last iteration, and
    nobody looks at them. Sixteen of these go at once where eight would wait for the number that comes next.
    Design decision: a recurrence is computed as it is written, and what is added in a user's order is added in it. A C
    compiler makes no vectors of a loop whose steps wait for one another; eight of them that do not are two vectors. Of
    differentiation's own sums each lane has one, or its terms are added in halves.
    """

    def __init__(self, builder: Builder, steps: Steps, room: Room, which: Callable[[Loop, Plan], bool]) -> None:
        super().__init__(builder)
        self.which = which
        self.steps, self.room, self.jam = steps, room, Jam(builder, steps, room)

    def bind(self, bind: Bind) -> None:
        plan = self.plan(bind.op) if type(bind.op) is Loop else None
        if plan is None or not self.room.for_two(bind.op):  # type: ignore[arg-type]
            self.copy(bind)
            return
        self.b.fired("eights")
        self.split(bind, bind.op, plan)  # type: ignore[arg-type]

    def takes(self, bind: Bind) -> bool:
        return self.plan(bind.op) is not None  # type: ignore[arg-type]

    def plan(self, op: Loop) -> Plan | None:
        plan = plan_of(op, self.steps, self.jam.side_by_side(op))
        return plan if plan is not None and self.which(op, plan) else None

    def split(self, bind: Bind, op: Loop, plan: Plan) -> None:
        """Whole eights, then what is left."""
        b, count, eight = self.b, self.b.trips(self.atom(op.count)), integer(plan.lanes)
        if plan.private:
            self.padded(bind, op, plan, count)
            return
        tiles = b.prim("//", count, eight)
        done = b.prim("*", eight, tiles)
        left = b.prim("-", count, done)
        b.sizes.update(v for v in (tiles, left) if type(v) is Var)
        width = len(op.accs)
        state, names, accs = self.filling(op, bind)
        starts = [b.zeros(Arr(REAL, (eight,))) if k in plan.sums else z for k, z in enumerate(state)]
        before = self.rows(op, plan, op.count) if self.kept(op) else {}

        def tile(q: Atom, *state: Atom):
            first = b.prim("*", eight, q)
            apart = before or self.rows(op, plan, eight, first)
            return Eight(b, self, op, plan, first, apart, first if before else START).iteration(state), ()

        made = list(b.loop(tiles, starts, tile, names, "tile", accs))
        for k in plan.sums:
            with b.differentiating():
                lanes = halves(b, [b.get(made[k], integer(lane)) for lane in range(LANES)])
                made[k] = b.prim("+", state[k], lanes)

        def alone(r: Atom, *state: Atom):
            i = self.here[op.index] = b.prim("+", done, r)
            self.here.update(zip(op.accs, state))
            self.here.update({v: b.get(rows, i, hint=v.name) for v, rows in before.items()})
            results = self.block(slice_of(without(op.body, before), op.body.results))
            stacked = zip(state[width:], results[width:], names[width:])
            return [*results[:width], *(b.update(a, [i], x, name) for a, x, name in stacked)], ()

        if not (type(left) is Const and left.value == 0):
            made = list(b.loop(left, made, alone, names, op.index.name, accs))
        b.span = bind.span
        self.define(bind, made)

    def padded(self, bind: Bind, op: Loop, plan: Plan, count: Atom) -> None:
        """As many eights as there are, the last of which repeats the last iteration."""
        b, eight = self.b, integer(plan.lanes)
        tiles = b.prim("//", b.prim("+", count, integer(plan.lanes - 1)), eight)
        last = b.prim("-", count, integer(1))
        if type(tiles) is Var:
            b.sizes.add(tiles)
        state, names, accs = self.filling(op, bind)
        before = self.rows(op, plan, op.count) if self.kept(op) else {}

        def tile(q: Atom, *state: Atom):
            first = b.prim("*", eight, q)
            left = b.prim("min", eight, b.prim("-", count, first))
            if type(left) is Var:
                b.sizes.add(left)
            apart = before or self.rows(op, plan, eight, first, last)
            place = first if before else START
            return Eight(b, self, op, plan, first, apart, place, last, left).iteration(state), ()

        made = b.loop(tiles, state, tile, names, "tile", accs)
        b.span = bind.span
        self.define(bind, made)

    def kept(self, op: Loop) -> bool:
        """Whether there are as many rows as iterations anyway: the rows that these begin with are made before all."""
        if any(isinstance(type_of(r), Arr) for r in op.body.results[len(op.accs) :]):
            return True
        return any(isinstance(a.type, Arr) and a.type.rank > 1 and a.type.dims[0] is op.count for a in op.accs)

    def rows(self, op: Loop, plan: Plan, count: Atom, first: Atom = START, last: Atom | None = None) -> dict[Var, Atom]:
        """The rows that so many iterations begin with, one by one; of none after the ``last``."""
        if not plan.apart:
            return {}

        def row(i: Atom):
            at = self.b.prim("+", first, i)
            self.here[op.index] = at if last is None else self.b.prim("min", at, last)
            return (), self.block(slice_of(op.body, plan.apart))

        names = [v.name for v in plan.apart]
        return dict(zip(plan.apart, self.b.loop(self.atom(count), (), row, names, op.index.name)))


def all_of_them(op: Loop, plan: Plan) -> bool:
    return True


def in_part(op: Loop, plan: Plan) -> bool:
    """Whether ``Lanes`` would take but a part of what an iteration does, the rest adds to what all of them share; or
    eight, where sixteen pay."""
    return bool(plan.sums or plan.shared or plan.lanes > LANES) and ahead(op) is not None


def halves(b: Builder, terms: Sequence[Atom]) -> Atom:
    """The sum of some numbers, a power of two of them, half of them added to the other half."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [b.prim("+", x, y) for x, y in zip(terms[:half], terms[half:])]
    return terms[0]


@dataclass
class Plan:
    """What is done with a loop's iterations: ``early`` all at once, ``late`` for each in turn; ``sums``, the numbers of
    the accumulators that each lane has its own of; ``varying``, what differs between lanes; ``soft``, the terms that
    may be added in any order; ``shared``, the versions of arrays that all iterations add to; ``rows``, those that are
    stacked as they are written down, number by number; ``apart``, those that are made before and change in the lanes;
    ``copied``, those of arrays that are there anyway. ``private``: no iteration has anything to do with another one;
    ``lanes``, how many go at once."""

    early: list[Bind]
    late: list[Bind]
    sums: set[int]
    varying: set[Atom]
    soft: set[Atom]
    shared: set[Atom]
    rows: dict[Atom, Prim]
    apart: list[Var]
    copied: dict[Atom, Prim]
    private: bool
    lanes: int

    def numbers(self) -> list[Atom]:
        """What the rows consist of."""
        return [a for row in self.rows.values() for a in row.args]


class Eight(Rebuild):
    """Emits eight iterations from ``first`` on. ``lanes``: the arrays that hold what differs between them, whose last
    dimension is the lane; an array of the iteration has the others before. ``apart`` has rows that they begin with,
    from ``at`` on. There are ``left`` of them, and the others repeat the ``last``; all, where it is None."""

    def __init__(
        self,
        b: Builder,
        around: Rebuild,
        op: Loop,
        plan: Plan,
        first: Atom,
        apart: Mapping[Var, Atom],
        at: Atom,
        last: Atom | None = None,
        left: Atom | None = None,
    ) -> None:
        super().__init__(b)
        self.eight, self.last = integer(plan.lanes), last
        self.left = self.eight if left is None else left
        self.here = dict(around.here)
        self.op, self.plan, self.first = op, plan, first
        self.apart, self.place = apart, at
        self.lanes: dict[Atom, Atom] = {}

    def iteration(self, state: Sequence[Atom]) -> list[Atom]:
        op, plan, width = self.op, self.plan, len(self.op.accs)
        for k, (a, x) in enumerate(zip(op.accs, state)):
            (self.lanes if k in plan.sums else self.here)[a] = x
        results, stacked = op.body.results[:width], op.body.results[width:]
        self.level(plan.early, {*stacked, *plan.numbers(), *(a for x in plan.late for a in reads(x)), *results})
        arrays = self.stacks(stacked, state[width:])
        carried = [k for k, a in enumerate(op.accs) if k not in plan.sums and isinstance(a.type, Scalar)]
        sums = dict(zip(carried, self.in_turn([op.accs[k] for k in carried], [results[k] for k in carried])))
        after = [sums[k] if k in sums else self.lanes.get(r, self.atom(r)) for k, r in enumerate(results)]
        return [*after, *arrays]

    def in_turn(self, accs: Sequence[Var], results: Sequence[Atom]) -> Sequence[Atom]:
        """What waits for the iteration before, one lane after the other; the accumulators after them."""

        def one(lane: Atom, *now: Atom):
            self.at(lane, [*(a for x in self.plan.late for a in reads(x)), *results])
            self.here.update(zip(accs, now))
            return self.block(Block(tuple(self.plan.late), tuple(results))), ()

        around = self.here
        made = self.b.loop(self.eight, self.atoms(accs), one, [a.name for a in accs], "lane", [a.name for a in accs])
        self.here = around
        return made

    def at(self, lane: Atom, wanted: Sequence[Atom]) -> None:
        """What is known in a loop over the lanes: scalars of its lane, among them the index."""
        self.here = {**self.here, self.op.index: self.index(self.first, lane)}
        for a in dict.fromkeys(wanted):
            if a in self.lanes and isinstance(type_of(a), Scalar):
                self.here[a] = self.b.get(self.lanes[a], lane, hint=a.name)  # type: ignore[index, union-attr]

    def index(self, first: Atom, lane: Atom) -> Atom:
        """The index of a lane; of one that repeats the last iteration that one's."""
        at = self.b.prim("+", first, lane)
        return at if self.last is None else self.b.prim("min", at, self.last)

    def stacks(self, stacked: Sequence[Atom], arrays: Sequence[Atom]) -> Sequence[Atom]:
        """Puts what the iterations stack in its place."""
        if not stacked:
            return ()

        def one(lane: Atom, *now: Atom):
            self.at(lane, [*stacked, *self.plan.numbers()])
            i = self.here[self.op.index] = self.b.prim("+", self.first, lane)  # which is one of those that there are
            return [self.b.update(a, [i], self.row(r, lane)) for a, r in zip(now, stacked)], ()

        around, names = self.here, [getattr(r, "name", "t") for r in stacked]
        made = self.b.loop(self.left, arrays, one, names, "lane", names)
        self.here = around
        return made

    def row(self, r: Atom, lane: Atom, indices: tuple[Atom, ...] = ()) -> Atom:
        """The scalar or array of a lane."""
        if r in self.plan.rows:
            return self.b.array(self.atoms(self.plan.rows[r].args), r.name)  # type: ignore[union-attr]
        lanes = self.lanes.get(r)
        if lanes is None or isinstance(type_of(r), Scalar):
            return self.atom(r)
        if len(indices) == type_of(r).rank:  # type: ignore[union-attr]
            return self.b.get(lanes, *indices, lane)
        size = type_of(lanes).dims[len(indices)]  # type: ignore[union-attr]
        return self.b.build(size, lambda i: self.row(r, lane, (*indices, i)))

    def level(
        self, binds: Sequence[Bind], wanted: set[Atom], accs: Sequence[Var] = (), following: Sequence[Atom] = ()
    ) -> dict[Atom, Atom]:
        """The bindings of a block; operations that differ between lanes wait until something needs them. ``wanted``:
        of what arrays of the lanes are made, which are given back; ``accs``, scalars, get their next values."""
        waiting: list[Bind] = []
        adding: list[Bind] = []
        for k, bind in enumerate(binds):
            op, self.b.span = bind.op, bind.span
            if bind.vars[0] in self.apart or bind.vars[0] in self.plan.copied:
                self.lanes.update((v, self.turned(bind, v)) for v in bind.vars)
            elif type(op) is Loop and self.plan.varying.intersection(bind.vars):
                needs = {*reads(bind), *(a for x in adding for a in reads(x))}
                now = closure(waiting, needs)
                waiting = [x for x in waiting if x not in now]
                later = {a for x in (*waiting, *binds[k + 1 :]) for a in reads(x)}
                self.lanes.update(self.together(now, needs | later | wanted))
                self.add(adding)
                adding = []
                self.loop_in_lanes(bind, op)
            elif type(op) is Prim and op.name in ("zeros", "undef") and bind.vars[0] in self.plan.varying:
                t = self.type(bind.vars[0].type)  # type: ignore[arg-type]
                t = Arr(t.elem, (*t.dims, self.eight))  # type: ignore[union-attr]
                self.lanes[bind.vars[0]] = self.b.zeros(t) if op.name == "zeros" else self.b.undef(t)
            elif changes(bind) and op.args[0] in self.plan.shared:  # type: ignore[union-attr]
                adding.append(bind)
            elif self.plan.varying.intersection(bind.vars):
                waiting.append(bind)
            else:
                self.b.soft = bind.soft
                Rebuild.bind(self, bind)
                self.b.soft = False
        wanted = wanted | {a for x in adding for a in reads(x)}
        made = self.together(waiting, wanted, accs, following)
        self.lanes.update(made)
        self.add(adding)
        return made

    def turned(self, bind: Bind, row: Var) -> Atom:
        """Eight rows, so that the elements of one place lie side by side."""
        b, around, t = self.b, self.here, self.type(row.type)
        assert isinstance(t, Arr)

        def lay(lane: Atom, made: Atom):
            if row in self.apart:
                at = [self.apart[row], lane if self.place is START else self.index(self.place, lane)]
            else:
                self.at(lane, ())
                at = self.atoms(bind.op.args)  # type: ignore[union-attr]

            def element(j: Atom, made: Atom):
                return [b.update(made, [j, lane], b.get(*at, j))], ()

            return b.loop(t.dims[0], [made], element, [row.name], "j", [row.name]), ()

        empty = b.undef(Arr(t.elem, (*t.dims, self.eight)))
        (made,) = b.loop(self.eight, [empty], lay, [row.name], "lane", [row.name])
        self.here = around
        return made

    def together(
        self, binds: Sequence[Bind], wanted: set[Atom], accs: Sequence[Var] = (), following: Sequence[Atom] = ()
    ) -> dict[Atom, Atom]:
        """One loop over the lanes: arrays of those scalars that are ``wanted``, accumulators as they were at first
        among them, and those that are changed; by what was bound. The accumulators are changed in place."""
        b, around = self.b, self.here
        roots: dict[Atom, Atom] = {}  # the arrays that are changed, from their first version on
        for x in binds:
            if changes(x):
                roots[x.vars[0]] = roots.get(x.op.args[0], x.op.args[0])  # type: ignore[union-attr, arg-type]
        arrays = list(dict.fromkeys(roots.values()))
        outs = [a for a in (*accs, *(x.vars[0] for x in binds)) if a in wanted and a not in roots]
        if not outs and not accs and not arrays:
            return {}
        last = {root: v for v, root in roots.items()}

        def body(lane: Atom, *now: Atom):
            lanes = self.lanes
            self.lanes = {**lanes, **dict(zip((*accs, *arrays), now))}
            self.at(lane, [*accs, *(a for x in binds for a in reads(x)), *following])
            for x in binds:
                b.span, b.soft = x.span, x.soft
                self.one(x, lane)
                b.soft = False
            after = [b.update(s, [lane], self.as_type(self.atom(r), a)) for s, r, a in zip(now, following, accs)]
            after += [self.lanes[last[a]] for a in arrays]
            self.lanes = lanes
            return after, [self.here[a] for a in outs]  # type: ignore[index]

        names = [a.name for a in (*accs, *arrays, *outs)]  # type: ignore[union-attr]
        states = [self.lanes[a] for a in (*accs, *arrays)]
        made = b.loop(self.eight, states, body, names, "lane", names[: len(states)])
        self.here = around
        found = dict(zip((*accs, *arrays), made))
        changed: dict[Atom, Atom] = {v: found[root] for root, v in last.items()}
        self.states = made[: len(accs)]
        return {**changed, **dict(zip(outs, made[len(states) :]))}

    def as_type(self, x: Atom, like: Var) -> Atom:
        return self.b.to_real(x) if like.type == REAL else x

    def one(self, bind: Bind, lane: Atom) -> None:
        """An operation of one lane."""
        op, v = bind.op, bind.vars[0]
        assert type(op) is Prim
        if op.name == "get" and op.args[0] in self.lanes:
            self.here[v] = self.b.get(self.lanes[op.args[0]], *self.atoms(op.args[1:]), lane, hint=v.name)
        elif changes(bind):
            a, *at, x = op.args
            change = self.b.update if op.name == "update" else self.b.add_at
            self.lanes[v] = change(self.lanes[a], [*self.atoms(at), lane], self.atom(x), v.name)
        else:
            self.copy(bind)

    def add(self, binds: Sequence[Bind]) -> None:
        """What the lanes add to elements of an array that they share, or put into their own."""
        b = self.b
        for x in binds:
            a, *at, value = x.op.args  # type: ignore[union-attr]
            (v,), b.span, b.soft = x.vars, x.span, x.soft
            if self.plan.varying.intersection(at):

                def one(lane: Atom, array: Atom, x: Bind = x, at: Sequence[Atom] = at, value: Atom = value):
                    self.at(lane, reads(x))
                    change = b.update if x.op.name == "update" else b.add_at  # type: ignore[union-attr]
                    value = self.row(value, lane) if isinstance(type_of(value), Arr) else self.atom(value)
                    return [change(array, self.atoms(at), value)], ()

                around = self.here
                (made,) = b.loop(self.eight, [self.atom(a)], one, [v.name], "lane", [v.name])
                self.here, b.soft = {**around, v: made}, False
                continue
            lanes, at = self.lanes.get(value), self.atoms(at)
            terms = [self.atom(value) if lanes is None else b.get(lanes, integer(k)) for k in range(self.plan.lanes)]
            array = self.atom(a)
            for term in [halves(b, terms)] if x.soft and value in self.plan.soft else terms:
                array = b.add_at(array, at, term, v.name)
            b.soft = False
            self.here[v] = array

    def start(self, z: Atom, t: Scalar) -> Atom:
        """The array that an accumulator starts from."""
        if z in self.lanes:
            return self.lanes[z]
        if type(z) is Const and z.value == 0 and not str(z.value).startswith("-"):
            return self.b.zeros(Arr(t, (self.eight,)))
        return self.b.build(self.eight, lambda lane: self.b.to_real(self.atom(z)) if t == REAL else self.atom(z))

    def loop_in_lanes(self, bind: Bind, op: Loop) -> None:
        b, width, varying = self.b, len(op.accs), self.plan.varying
        results, stacked = op.body.results[:width], op.body.results[width:]
        scalars = [k for k, a in enumerate(op.accs) if isinstance(a.type, Scalar)]
        inits = [
            self.start(z, a.type) if isinstance(a.type, Scalar) else self.lanes.get(z, self.atom(z))
            for z, a in zip(op.inits, op.accs)
        ]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            for a, z, x in zip(op.accs, op.inits, accs):
                shared = isinstance(a.type, Arr) and z not in self.lanes
                (self.here if shared else self.lanes)[a] = x
            kept = [r for r in stacked if isinstance(type_of(r), Scalar)]
            made = self.level(op.body.binds, set(kept), [op.accs[k] for k in scalars], [results[k] for k in scalars])
            sums = dict(zip(scalars, self.states)) if scalars else {}
            after = [sums[k] if k in sums else self.lanes.get(r, self.atom(r)) for k, r in enumerate(results)]
            return after, [made.get(r, self.lanes.get(r, self.atom(r))) for r in stacked]

        names = [v.name for v in bind.vars]
        out = b.loop(self.atom(op.count), inits, body, names, op.index.name, [a.name for a in op.accs])
        b.span = bind.span
        for v, x in zip(bind.vars, out):
            (self.lanes if v in varying and v not in self.plan.shared else self.here)[v] = x


def changes(bind: Bind) -> bool:
    """Whether an operation changes an element of an array."""
    return type(bind.op) is Prim and bind.op.name in ("update", "add-at")


@dataclass
class Cost:
    """What eight iterations cost, in additions: ``plain``, one by one or four at once, ``lanes``, all at once, and
    ``wide``, sixteen at once."""

    plain: float = 0.0
    lanes: float = 0.0
    wide: float = 0.0
    recurs: bool = False  # a number is made of that of the step before otherwise than by adding to it

    def turn(self, numbers: int) -> None:
        """Adds what it costs to lay so many numbers of each iteration side by side, or apart."""
        self.lanes += APART * numbers
        self.wide += APART * numbers


class Known:
    """Finds out whether an iteration can be done in lanes, what differs between them, and what that costs.

    An array that an iteration makes is ``local``; ``shared`` is one that goes through all iterations, which add to it.
    ``root`` has for each version of an array that changes its first one, and ``last`` for that the last one so far.
    """

    def __init__(self, op: Loop, steps: Steps, jammed: bool) -> None:
        self.op, self.steps, self.jammed = op, steps, jammed
        self.varying: set[Atom] = {op.index}
        self.local: set[Atom] = set()
        self.shared: set[Atom] = set()
        self.root: dict[Atom, Atom] = {}
        self.last: dict[Atom, Atom] = {}
        self.soft: set[Atom] = set()
        self.inside = defined_in(op.body)
        self.cost = Cost()
        self.integers = {v: x for v, x in steps.definitions.items() if type(x) is Prim}
        self.apart: list[Var] = []
        self.copied: dict[Atom, Prim] = {}
        self.later = {a: k for k, x in enumerate(op.body.binds) for a in reads(x)}  # where each is read last
        self.later.update((r, len(op.body.binds)) for r in op.body.results)

    def version(self, a: Atom, root: Atom) -> None:
        """``a`` is what has become of an array."""
        self.root[a], self.last[root] = root, a
        self.varying.add(a)
        (self.shared if root in self.shared else self.local).add(a)

    def block(self, binds: Sequence[Bind], loops: tuple[Loop, ...] = ()) -> bool:
        return all(self.bind(x, loops) for x in binds)

    def bind(self, bind: Bind, loops: tuple[Loop, ...]) -> bool:
        op = bind.op
        if any(d in self.inside for v in bind.vars if isinstance(v.type, Arr) for d in v.type.dims):
            return False
        if type(op) is Loop:
            before = [set(self.varying), set(self.local), dict(self.root), dict(self.last), set(self.soft)]
            if loops or not self.makes_rows(bind, op):
                return self.loop(bind, op, loops)
            cost = replace(self.cost)
            if not self.loop(bind, op, loops):
                self.varying, self.local, self.root, self.last, self.soft = before  # type: ignore[assignment]
                self.cost = cost
                self.apart += bind.vars
                self.rows(bind.vars)
            return True
        if type(op) is not Prim:
            return False
        (v,) = bind.vars
        if op.name == "get" and not loops and self.is_row(v) and self.op.index in op.args and self.readable(op.args[0]):
            self.copied[v] = op
            self.rows(bind.vars)
            return op.args[0] not in self.local and not self.varying.difference({self.op.index}).intersection(op.args)
        if op.name in ("zeros", "undef"):
            self.version(v, v)
            return isinstance(v.type, Arr) and v.type.elem == REAL
        if changes(bind):
            return self.change(bind, op, loops)
        if not isinstance(v.type, Scalar) or not (op.name in PRIMITIVES or op.name in ("get", "select")):
            return False
        if op.name == "get" and not self.readable(op.args[0]):
            return False
        if self.varying.intersection(op.args):
            self.varying.add(v)
            chosen = op.name == "select" and all(a in self.soft or type(a) is Const for a in op.args[1:])
            if bind.soft or chosen:
                self.soft.add(v)
        # a call between the loops is made for each lane, as for each iteration
        return op.name not in PRIMITIVES or PRIMITIVES[op.name].cost < CALL or v not in self.varying or not loops

    def is_row(self, v: Var) -> bool:
        return isinstance(v.type, Arr) and v.type.elem is REAL and v.type.rank == 1

    def makes_rows(self, bind: Bind, op: Loop) -> bool:
        """Whether a loop makes rows, of nothing that another iteration changes."""
        if op.accs or not all(map(self.is_row, bind.vars)):
            return False
        return free_vars(slice_of(self.op.body, bind.vars)).keys().isdisjoint(self.op.accs)

    def rows(self, rows: Sequence[Var]) -> None:
        """Rows that are copied to the lanes: there they change in place."""
        for v in rows:
            self.version(v, v)
            self.cost.turn(USUAL)

    def readable(self, a: Atom) -> bool:
        """Whether an array is one that the iterations do not share, and not an old version of it."""
        return a not in self.shared and self.last.get(self.root.get(a, a), a) is a

    def change(self, bind: Bind, op: Prim, loops: tuple[Loop, ...]) -> bool:
        """An element of an array is changed: in a shared one each lane has elements of its own, or all add to one, in
        the order of the iterations unless it may be any."""
        a, *at, x = op.args
        root = self.root.get(a, a if a in self.local else None)
        if root is None or self.last.setdefault(root, a) is not a:
            return False
        if not isinstance(type_of(x), Scalar):  # each lane has a row of its own
            if a not in self.shared or self.op.index not in at or x not in self.local or type_of(x).rank > 1 or loops:
                return False
            self.cost.turn(USUAL)
        if a in self.shared and self.op.index not in at:
            free = bind.soft and x in self.soft
            if op.name == "update" or self.varying.intersection(at) and not free:
                return False
            if not free and not self.in_order(root, at, loops):
                return False
        self.version(bind.vars[0], root)
        return True

    def in_order(self, root: Atom, at: Sequence[Atom], loops: tuple[Loop, ...]) -> bool:
        """Whether eight iterations at once add to each element in the order of the iterations: it is that of one step
        of their one loop, and no other place adds."""
        places = [x for x in all_binds(self.op.body) if changes(x) and x.vars[0].type == root.type]  # type: ignore
        if len(places) > 1 or len(loops) > 1:
            return False
        return not loops or any(self.steps.step(a, loops[0].index, self.inside | {loops[0].index}) for a in at)

    def loop(self, bind: Bind, op: Loop, loops: tuple[Loop, ...]) -> bool:
        width = len(op.accs)
        if op.count in self.varying or op.index.soft or op.snapshots is not None:
            return False
        if any(isinstance(a.type, Arr) and z not in self.varying for z, a in zip(op.inits, op.accs)):
            return False
        uniform = self.varying.isdisjoint(reads(bind))
        if uniform:
            return True
        at = next((k for k, x in enumerate(self.op.body.binds) if x is bind), len(self.op.body.binds))
        for z, a in zip(op.inits, op.accs):
            if isinstance(a.type, Arr):
                root = self.root.setdefault(z, z)
                if self.last.setdefault(root, z) is not z:
                    return False
                if self.later.get(z, 0) > at or z in free_vars(op.body):  # it is copied
                    root = a
                self.version(a, root)
            elif a.type not in (REAL, INT):
                return False
            else:
                self.varying.add(a)
        ours = {x.vars[0] for x in op.body.binds if x.soft}
        for z, a, r in zip(op.inits, op.accs, op.body.results):
            if r in ours and (z in self.soft or type(z) is Const and z.soft):
                self.soft.add(a)
        if not self.block(op.body.binds, (*loops, op)):
            return False
        for a, r, v in zip(op.accs, op.body.results, bind.vars):
            if isinstance(a.type, Arr):
                root = self.root[a]
                if self.last[root] is not r:
                    return False
                self.version(v, root)
        for r, v in zip(op.body.results[width:], bind.vars[width:]):
            if r not in self.varying or type_of(r) not in (REAL, INT) and r not in self.local:
                return False
            self.local.add(v)
        self.varying.update(bind.vars)
        self.measure(op, loops)
        return True

    def measure(self, op: Loop, loops: tuple[Loop, ...]) -> None:
        """Adds what the scalar operations of a loop cost."""
        weight, work, apart, across = 1.0, 0, 0, 0
        for around in (*loops, op):
            weight *= around.count.value if type(around.count) is Const else USUAL
        carried: dict[Atom, int] = {a: 0 for a in op.accs if a.type == REAL}
        for x in op.body.binds:
            prim, v = x.op, x.vars[0]
            if type(prim) is not Prim or v not in self.varying:
                continue
            cost = PRIMITIVES[prim.name].cost if prim.name in PRIMITIVES else 1
            if changes(x) or prim.name == "get":
                if prim.args[0] in self.shared:
                    across += 1
                elif prim.args[0] not in self.local and not self.beside(prim.args[1:]):
                    apart += GATHERED if self.varying.isdisjoint(prim.args[1:-1]) else APART
                elif prim.name == "get" and self.reads_back(op, prim):
                    carried[v] = 0
                continue
            if v.type != INT:
                work += cost
                depths = [carried[a] for a in prim.args if a in carried]
                if depths:
                    carried[v] = max(depths) + cost
        stored = [carried.get(x.op.args[-1], 0) for x in op.body.binds if changes(x)]  # type: ignore[union-attr]
        chain = max((*stored, *(carried.get(r, 0) for r in op.body.results[: len(op.accs)])), default=0)
        steps_of = [(carried.get(r, 0), a, r) for a, r in zip(op.accs, op.body.results)]
        recurs = any(stored) or any(cost > 1 or cost and not simple_step(op, a, r) for cost, a, r in steps_of)
        steps = (2 if self.jammed or loops else LANES) * CHAIN * chain
        recurs |= across > 0 and any(cost for cost, *_ in steps_of) and not self.contiguous(op)
        plain = max(steps, (LANES if recurs else LANES / WIDTH) * work)
        self.cost.recurs |= recurs
        self.cost.plain += weight * (plain + LANES / WIDTH * across)
        each = LANES / WIDTH * work + apart + ACROSS * across
        self.cost.lanes += weight * max(CHAIN * chain, each)
        self.cost.wide += weight * max(CHAIN * chain / 2, each)

    def reads_back(self, op: Loop, read: Prim) -> bool:
        """Whether a loop reads an element of an array of the iteration that an iteration of its own before has changed:
        it waits for that one."""
        array, *at = read.args
        inside = {op.index, *defined_in(op.body)}
        for x in op.body.binds:
            if not changes(x) or self.root.get(x.op.args[0]) is not self.root.get(array):  # type: ignore[union-attr, arg-type]
                continue
            there = x.op.args[1:-1]  # type: ignore[union-attr]
            gaps = [affine_add(affine_in(q, self.integers), affine_in(p, self.integers), -1) for q, p in zip(there, at)]
            steps = [self.steps.step(q, op.index, inside) for q in there]
            ahead = [gap // step for (gap, _), step in zip(gaps, steps) if step]
            if ahead and ahead[0] > 0 and all(gap == (ahead[0] * (step or 0), {}) for gap, step in zip(gaps, steps)):
                return True
        return False

    def contiguous(self, op: Loop) -> bool:
        """Whether what a loop reads and changes of arrays lies side by side in its iterations, or is the same for all:
        a compiler may make vectors of these."""
        inside = {op.index, *op.accs, *defined_in(op.body)}
        return all(self.steps.cost(at, op.index, inside) < FAR for _, at, _ in accesses(op.body))

    def beside(self, subscripts: Sequence[Atom]) -> bool:
        """Whether the lanes' elements lie side by side."""
        *rest, last = subscripts
        return (
            self.varying.isdisjoint(rest) and self.steps.step(last, self.op.index, self.inside | {self.op.index}) == 1
        )


def plan_of(op: Loop, steps: Steps, jammed: bool) -> Plan | None:
    """What is done with a loop's iterations, where eight at once are worth it. ``jammed``: four of them can go side by
    side otherwise."""
    if op.index.soft or op.snapshots is not None or has_checks(op.body):
        return None
    if type(op.count) is Const and op.count.value < 2 * LANES or not any(map(recurrent, op.body.binds)):
        return None
    if steps.few(op.count):
        return None
    width, results = len(op.accs), op.body.results
    scalars = [k for k, a in enumerate(op.accs) if isinstance(a.type, Scalar)]
    sums = {k for k in scalars if own_sum(op.body, op.accs[k], results[k])}
    known = Known(op, steps, jammed)
    known.varying.update(op.accs[k] for k in sums)
    for a in op.accs:
        if isinstance(a.type, Arr):
            known.shared.add(a)
            known.version(a, a)
    waiting = tuple(op.accs[k] for k in scalars if k not in sums)
    late = carried_in(Loop(op.count, op.index, waiting, waiting, op.body))
    rows = {v: x.op for x in op.body.binds if x not in late for v in x.vars if literal_row(x, op)}
    early = [x for x in op.body.binds if x not in late and x.vars[0] not in rows]
    after = {v for x in late for v in x.vars}.union(waiting)
    if not after.isdisjoint(a for x in early for a in reads(x)) or not known.block(early):
        return None
    if any(known.local.union(known.shared).intersection(reads(x)) or changes(x) for x in late):
        return None
    if any(known.last[a] is not r for a, r in zip(op.accs, results) if isinstance(a.type, Arr)):
        return None
    if any(r in after or isinstance(type_of(r), Arr) and r not in {*known.local, *rows} for r in results[width:]):
        return None
    made = sum(isinstance(type_of(r), Arr) and r not in rows for r in results[width:])
    cost = known.cost
    cost.turn(USUAL * made + sum(len(row.args) for row in rows.values()))
    if not cost.recurs or cost.lanes >= WORTH * cost.plain:
        return None
    private = not op.accs
    many = type(op.count) is not Const or op.count.value >= 2 * WIDE
    lanes = WIDE if private and many and cost.wide < WORTH * cost.lanes else LANES
    return Plan(
        early,
        late,
        sums,
        known.varying,
        known.soft,
        known.shared,
        rows,
        known.apart,
        known.copied,
        private,
        lanes,  # type: ignore[arg-type]
    )


def literal_row(bind: Bind, op: Loop) -> bool:
    """Whether a binding of a loop's body is a row of numbers that is stacked, and nothing else is done with it."""
    made = bind.op
    if type(made) is not Prim or made.name != "array" or any(type_of(a) != REAL for a in made.args):
        return False
    (v,) = bind.vars
    return v in op.body.results[len(op.accs) :] and not any(v in reads(x) for x in op.body.binds)


def recurrent(bind: Bind) -> bool:
    """Whether a loop, or one in it, has a number that it carries from step to step, or an array that it changes and
    reads."""
    return any(
        a.type == REAL or isinstance(a.type, Arr) and a.type.elem is REAL and read_of(x.op.body, a)
        for x in binds_of(bind)
        if type(x.op) is Loop
        for a in x.op.accs
    )


def own_sum(block: Block, acc: Var, result: Atom) -> bool:
    """Whether all that is done with an accumulator is that differentiation adds terms to it, which may be in any
    order."""
    at, seen = acc, {acc}
    if acc.type != REAL or block.results.count(result) != 1:
        return False
    for bind in block.binds:
        op, read = bind.op, seen.intersection(reads(bind))
        if not read:
            continue
        if read != {at}:
            return False
        if type(op) is Loop:
            if op.inits.count(at) != 1 or at in free_vars(op.body) or at is op.count:
                return False
            k = op.inits.index(at)
            if not own_sum(op.body, op.accs[k], op.body.results[k]):
                return False
            at = bind.vars[k]
        elif type(op) is Prim and bind.soft and op.name in ("+", "-") and op.args.count(at) == 1:
            if op.name == "-" and op.args[0] is not at:
                return False
            at = bind.vars[0]
        else:
            return False
        seen.add(at)
    return result is at and acc is not at
