"""Adjoint rows in which one element alone is not zero, as its place and its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from ..core import (
    INT,
    REAL,
    TRUE,
    ZERO,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    defined_in,
    reads,
)
from ..program.affine import Affine, affine_add, negated
from ..program.builder import Builder, put_to_zeros
from ..program.dead import has_checks
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, rebuilt
from .tables import affine_of

#: What must have been decided how for a number to be other than zero.
Way = Mapping[object, object]


def one_place(program: Program) -> Program:
    """Keeps an adjoint row in which one element alone is not zero as its place and its value.

    ``(ifold (fn [a k] (ifold (fn [b j] (add-at b (f k j) (get a j))) (zeros n) n)) (update (zeros n) p 1.0) m)``  =>
    ``(ifold (fn [#(p v) k] (if (< -1 p n) #((f k p) v) #(0 0.0))) #(p 1.0) m)``, and the row after the loop.

    Design decision: proved, not looked for. The largest of several values hands its adjoint on to one of them, so a row
    with one element other than zero makes another one: of all that an iteration adds to the new row for an element of
    the old one, no two can be other than zero, since a choice that they depend on goes either way. A loop over the row
    is then one of its iterations; or those from that one on until what it hands on to the next is zero: the steps of a
    best path are followed back, and no others. What an iteration does for an element that is zero has to be nothing, as
    in ``skips``.
    """
    if not begins(program):
        return program
    pass_ = Places(Builder())
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def begins(program: Program) -> bool:
    """Whether a loop starts from a row with one element."""
    inits = {z for loop in loops_of(program) for z in loop.inits if is_row(z)}
    made = {x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim} if inits else {}
    return any(element(made, z) is not None for z in inits)


def element(made: Mapping[Var, Prim], a: Atom) -> tuple[Atom, Atom] | None:
    """Place and value of the one number that has been put into zeros to make a row."""
    op = put_to_zeros(made, a)
    return (op.args[1], op.args[2]) if op is not None and len(op.args) == 3 else None


def is_row(a: Atom) -> bool:
    return isinstance(a.type, Arr) and a.type.rank == 1 and a.type.elem is REAL  # type: ignore[union-attr]


@dataclass(eq=False)
class Reading:
    """Where the old row is read: one element, or ``by`` a loop one in each iteration; ``now``: in which branches.
    ``place`` is the element's, in the index of that loop and what its iterations do not change; ``carried``: which
    state of that loop is what it hands on to the next iteration, and ``joined`` its sum with what is read."""

    read: Bind
    place: Affine
    by: Bind | None
    now: Way
    carried: int | None = None
    joined: Bind | None = None


@dataclass(eq=False)
class Row:
    """What one state of a loop, a row, is to an iteration: all that is the old row, seen from some place on; all that
    becomes the new one; the readings of the old one."""

    views: dict[Var, Affine]
    chain: set[Var]
    readings: list[Reading] = field(default_factory=list)


class Unfit(Exception):
    """A row is not known to keep one element other than zero, or is of use as more than that."""


def zeros(x: Bind | None) -> bool:
    return x is not None and type(x.op) is Prim and x.op.name == "zeros"


def becoming(block: Block, a: Atom, found: set[Var]) -> Atom:
    """The first of all that becomes ``a`` by additions; all of it is put into ``found``."""
    made = {v: x for x in block.binds for v in x.vars}
    while (x := made.get(a)) is not None:  # type: ignore[call-overload]
        op, k = x.op, x.vars.index(a)  # type: ignore[arg-type]
        found.add(a)  # type: ignore[arg-type]
        if type(op) is Prim and op.name in ("add-at", "update"):
            a = op.args[0]
            if op.name == "update" and not zeros(made.get(a)):  # type: ignore[call-overload]
                raise Unfit
        elif type(op) is If:
            a, other = (becoming(arm, arm.results[k], found) for arm in (op.then, op.orelse))
            if a is not other:
                raise Unfit
        elif type(op) is Loop and k < len(op.accs):
            found.add(op.accs[k])
            if becoming(op.body, op.body.results[k], found) is not op.accs[k]:
                raise Unfit
            a = op.inits[k]
        else:
            break
    return a


class Ways:
    """Follows what an iteration does with the elements of a row: ``numbers`` has the numbers that are zero where these
    are, and for each the ways in which it is not; ``added`` those of all that is added to the new row."""

    def __init__(self, op: Loop, row: Row) -> None:
        self.row = row
        self.sums = {x.vars[0]: x.op for x in all_binds(op.body) if type(x.op) is Prim and x.vars[0].type == INT}
        self.sums = {v: inner for v, inner in self.sums.items() if inner.name in ("+", "-", "*", "neg")}
        self.numbers: dict[Atom, list[Way]] = {}
        self.added: list[list[Way]] = []

    def of(self, a: Atom) -> list[Way] | None:
        """In which ways a number may be other than zero; None where it may be so without the row."""
        return [] if type(a) is Const and a.value == 0 else self.numbers.get(a)

    def block(self, block: Block, now: Way, by: Bind | None = None) -> None:
        """Follow a block, which is done in the way ``now``, and where ``by``, a loop, reads the row in the body of it.
        Nothing may become of the new row but what is known to, and of the old one no result."""
        row = self.row
        for x in block.binds:
            op, leads = x.op, not row.chain.isdisjoint(x.vars)
            if type(op) is If:
                self.choice(x, op, now, by)
            elif type(op) is Prim and op.name == "get" and op.args[0] in row.views:
                self.reading(x, op, now, by)
            elif type(op) is Prim and leads:
                ways = [] if zeros(x) else self.of(op.args[-1])
                if ways is None or op.name == "add-at" and not x.soft or zeros(x) and (now or by):
                    raise Unfit
                self.added.append([{**way, **now} for way in ways])
            elif leads or not (row.views.keys() | row.chain).isdisjoint(reads(x)):
                if type(op) is not Loop or by is not None:
                    raise Unfit
                self.loop(x, op, now)
            elif type(op) is Prim:
                self.number(x, op)
        if not row.views.keys().isdisjoint(block.results):
            raise Unfit

    def reading(self, x: Bind, op: Prim, now: Way, by: Bind | None) -> None:
        """An element of the old row."""
        place = self.place(op, by)
        if place is None or by is not None and abs(place[1].get(by.op.index, 0)) != 1:  # type: ignore[union-attr]
            raise Unfit
        self.row.readings.append(Reading(x, affine_add(place, self.row.views[op.args[0]]), by, now))  # type: ignore
        self.numbers[x.vars[0]] = [{**now, self.row: x, by: x}]

    def place(self, op: Prim, by: Bind | None) -> Affine | None:
        """Where an element is read, in the index of a loop and what its iterations do not change."""
        if by is None:
            return affine_of(op.args[1], self.sums, {*self.sums}, set())
        loop: Loop = by.op  # type: ignore[assignment]
        return affine_of(op.args[1], self.sums, {*self.sums, *loop.accs, *defined_in(loop.body)}, {loop.index})

    def number(self, x: Bind, op: Prim) -> None:
        """A number that a primitive makes of some that are zero where the row's elements are."""
        if op.name == "select":
            self.chosen(x.vars[0], *op.args)
        elif op.name == "neg" or op.name in ("+", "-") and x.soft:
            ways = [self.of(a) for a in op.args]
            if None not in ways:
                self.numbers[x.vars[0]] = [way for some in ways for way in some]  # type: ignore[union-attr]

    def chosen(self, v: Var, cond: Atom, *values: Atom) -> None:
        ways = [self.of(a) for a in values]
        if v.type == REAL and None not in ways:
            self.numbers[v] = [{**way, cond: k} for k, some in enumerate(ways) for way in some]  # type: ignore

    def choice(self, x: Bind, op: If, now: Way, by: Bind | None) -> None:
        """What a branch makes; of the new row only what it is known to make."""
        for k, arm in enumerate((op.then, op.orelse)):
            self.block(arm, {**now, op.cond: k}, by)
        for v, *values in zip(x.vars, op.then.results, op.orelse.results):
            if v not in self.row.chain and not self.row.chain.isdisjoint(values):
                raise Unfit
            self.chosen(v, op.cond, *values)

    def loop(self, x: Bind, op: Loop, now: Way) -> None:
        """A loop that reads one element of the row in each iteration, and may hand on what it is to the next. What is
        zero for an element and what has been handed on can then be other than zero for one of the two alone."""
        row, chain = self.row, self.row.chain
        if not op.accs and not now and self.view(x, op):
            return
        if len(op.accs) < len(op.body.results) or op.snapshots is not None or has_checks(op.body):
            raise Unfit
        for v, *parts in zip(x.vars, op.accs, op.inits, op.body.results):
            if v not in chain and not chain.isdisjoint(parts):
                raise Unfit
        carried, joined = self.handed(op)
        if carried is not None:
            self.numbers[op.accs[carried]] = [{x: "handed on"}]
        before, around, self.added = len(row.readings), self.added, []
        self.block(op.body, {}, x)
        if len(row.readings) != before + 1 or row.readings[-1].now:
            raise Unfit
        reading = row.readings[-1]
        reading.now, reading.carried, reading.joined = now, carried, joined
        self.added, within = around, self.added
        self.added.append([{**now, row: reading.read, x: "added"}])
        if carried is not None:
            ways = self.of(op.body.results[carried])
            if ways is None:
                raise Unfit
            within.append(ways)
            self.numbers[x.vars[carried]] = [{row: reading.read, x: "handed on"}]
        exclusive(within)

    def handed(self, op: Loop) -> tuple[int | None, Bind | None]:
        """Which state of a loop over the row hands on what has been read, and the sum of it and of what is read."""
        body = op.body.binds
        gets = [x for x in body if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] in self.row.views]
        users = [x for x in body if len(gets) == 1 and gets[0].vars[0] in reads(x)]
        joined = users[0] if len(users) == 1 else None
        if joined is None or type(joined.op) is not Prim or joined.op.name != "+" or not joined.soft:
            return None, None
        for k, acc in enumerate(op.accs):
            if acc in joined.op.args and self.of(op.inits[k]) == [] and [x for x in body if acc in reads(x)] == users:
                return k, joined
        return None, None

    def view(self, x: Bind, op: Loop) -> bool:
        """Whether a loop makes a copy of the row from some place on, which is looked at as the row itself."""
        views = self.row.views
        read = op.body.binds[-1] if op.body.binds else None
        if read is None or op.body.results != read.vars or type(read.op) is not Prim or read.op.name != "get":
            return False
        if read.op.args[0] not in views or any(not views.keys().isdisjoint(reads(y)) for y in op.body.binds[:-1]):
            return False
        place = self.place(read.op, x)
        if place is None or place[1].get(op.index) != 1 or has_checks(op.body):
            return False
        place = affine_add(place, (0, {op.index: 1}), -1)
        views[x.vars[0]] = affine_add(place, views[read.op.args[0]])  # type: ignore[index]
        return True


def exclusive(added: Sequence[Sequence[Way]]) -> None:
    """Make sure that no two of some numbers can be other than zero."""
    for one, other in combinations(added, 2):
        for a in one:
            for b in other:
                if all(b.get(key, choice) == choice for key, choice in a.items()):
                    raise Unfit


class Places(Rebuild):
    """``one_place`` for a program."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False
        self.readings: dict[Bind, Reading] = {}  # of rows, by what reads them
        self.old: dict[Reading, tuple[Atom, Atom]] = {}  # place and value of the row that is read
        self.rows: set[Atom] = set()  # what becomes new ones
        self.new: dict[Atom, tuple[Atom, Atom]] = {}  # place and value of these
        self.gone: set[Bind] = set()  # what needs no code any more

    # ------------------------------------------------------------------------------------- finding rows

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        for k, acc in enumerate(op.accs):
            if is_row(acc) and op.snapshots is None and len(op.accs) == len(op.body.results):
                start = element(self.b.definitions, self.atom(op.inits[k]))
                row = self.row(op, k) if start is not None else None
                if row is not None:
                    return self.placed(op, bind, k, row, *start)  # type: ignore[misc]
        return super().loop(op, bind)

    def row(self, op: Loop, k: int) -> Row | None:
        """How an iteration makes a row with one element of another one; None where it is not known to."""
        row = Row({op.accs[k]: (0, {})}, set())
        made = {x.vars[0]: x for x in op.body.binds if x.vars}
        try:
            if not zeros(made.get(becoming(op.body, op.body.results[k], row.chain))):  # type: ignore[call-overload]
                return None
            ways = Ways(op, row)
            ways.block(op.body, {})
            exclusive(ways.added)
        except Unfit:
            return None
        others = (*op.body.results[:k], *op.body.results[k + 1 :])
        if not row.chain.isdisjoint(others):
            return None
        return row if self.apart(op, row) and any(r.by for r in row.readings) and self.idle(op, row) else None

    def apart(self, op: Loop, row: Row) -> bool:
        """Whether no two readings are of the same element."""
        b = self.b
        b.counted(op.index, self.atom(op.count))
        with b.region() as scope:
            for one, other in combinations(row.readings, 2):
                scope.facts = [*self.known(one), *self.known(other)]
                gap = affine_add(self.moved(one.place), self.moved(other.place), -1)
                if not any(b.nonnegative(affine_add(x, (1, {}), -1)) for x in (gap, negated(gap))):
                    return False
        return True

    def known(self, r: Reading) -> list[Affine]:
        """What is known of the integers around a reading."""
        facts = [fact for cond, k in r.now.items() for fact in self.b.facts_of(self.atom(cond), k == 0)]  # type: ignore
        if r.by is None:
            return facts
        op: Loop = r.by.op  # type: ignore[assignment]
        count = self.atom(op.count)
        self.b.counted(op.index, count)
        return [*facts, *self.b.entered(count)]

    def idle(self, op: Loop, row: Row) -> bool:
        """Whether an iteration for an element that is zero does nothing, where nothing has been handed on to it."""
        here, found, fits = dict(self.here), self.found, True
        with self.b.region() as scope:
            scope.vars.update((op.index, *op.accs, *defined_in(op.body)))
            for r in row.readings:
                if r.by is None:
                    continue
                inner: Loop = r.by.op  # type: ignore[assignment]
                self.here[r.read.vars[0]] = ZERO
                states = [ZERO if k == r.carried else a for k, a in enumerate(inner.accs)]
                self.here.update(zip(inner.accs, states))
                for x in inner.body.binds:
                    if x is not r.read:
                        self.line(x)
                fits = fits and all(
                    z is a or k == r.carried and type(z) is Const and z.value == 0
                    for k, (z, a) in enumerate(zip(self.atoms(inner.body.results), states))
                )
        self.here, self.found = here, found
        return fits

    # -------------------------------------------------------------------------------- places and values

    def placed(self, op: Loop, bind: Bind, k: int, row: Row, place: Atom, value: Atom) -> Sequence[Atom]:
        """A loop with place and value of a row in place of the row, and the row after it."""
        b, span = self.b, self.b.span
        self.found = True
        b.fired("one-place")
        self.readings.update({r.by or r.read: r for r in row.readings})
        self.gone.update(x for x in op.body.binds if not row.views.keys().isdisjoint(x.vars))
        self.rows |= row.chain

        def body(i: Atom, *states: Atom):
            *others, at, x = states
            self.here[op.index] = i
            self.here.update(zip((*op.accs[:k], *op.accs[k + 1 :]), others))
            self.old.update({r: (at, x) for r in row.readings})
            self.block(op.body)
            results = self.flat((*op.body.results[:k], *op.body.results[k + 1 :], op.body.results[k]))
            return results, []

        def rest(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
            return (*atoms[:k], *atoms[k + 1 :])

        name = op.accs[k].name
        *out, at, x = b.loop(
            self.atom(op.count),
            [*rest(self.atoms(op.inits)), place, value],
            body,
            [*(v.name for v in rest(bind.vars)), "at", name],  # type: ignore[union-attr]
            op.index.name,
            [*(a.name for a in rest(op.accs)), "at", name],  # type: ignore[union-attr]
            soft=op.index.soft,
        )
        b.span = span
        count = self.atom(op.accs[k].type.dims[0])  # type: ignore[union-attr]
        (whole,) = b.loop(count, [], lambda i: ([], [b.select(b.prim("=", i, at), x, ZERO)]), [name])
        return [*out[:k], whole, *out[k:]]

    def flat(self, atoms: Sequence[Atom]) -> list[Atom]:
        """What atoms of the program as it was are now, rows by place and value."""
        return [x for a in atoms for x in (self.new[a] if a in self.rows else (self.atom(a),))]

    def unflat(self, variables: Sequence[Var], made: Sequence[Atom]) -> None:
        """Say what variables of the program as it was are now, rows by place and value."""
        left = iter(made)
        for v in variables:
            if v in self.rows:
                self.new[v] = next(left), next(left)
            else:
                self.here[v] = next(left)

    def bind(self, bind: Bind) -> None:
        op, b = bind.op, self.b
        reading = self.readings.get(bind)
        if bind in self.gone:
            return
        if reading is not None and reading.by is not None:
            self.reached(reading, bind, op)  # type: ignore[arg-type]
        elif reading is not None:
            at, x = self.old[reading]
            here = b.prim("=", b.affine_value(self.moved(reading.place)), at)
            self.here[bind.vars[0]] = b.select(here, x, ZERO)
        elif self.rows.isdisjoint(bind.vars):
            self.copy(bind)
        elif type(op) is If:
            self.branches(bind, op)
        elif zeros(bind):
            self.new[bind.vars[0]] = Const(0, INT), ZERO
        else:
            row, place, added = op.args  # type: ignore[union-attr]
            at, x = self.new[row]
            more = b.prim("!=", self.atom(added), ZERO)
            more = TRUE if self.holds.get(more) else more
            self.new[bind.vars[0]] = b.select(more, self.atom(place), at), b.prim("+", x, self.atom(added))

    def branches(self, bind: Bind, op: If) -> None:
        """A branch that adds to a new row."""
        b, cond, arms = self.b, self.atom(op.cond), []
        known = cond.value if type(cond) is Const else self.holds.get(cond)
        if known is not None:
            arm = op.then if known else op.orelse
            self.block(arm)
            self.unflat(bind.vars, self.flat(arm.results))
            return
        for arm, holds in ((op.then, True), (op.orelse, False)):
            scope, _ = self.branch(cond, arm, holds)
            arms.append((scope, self.flat(arm.results)))
        self.unflat(bind.vars, b.if_(cond, *arms))

    def reached(self, reading: Reading, bind: Bind, op: Loop) -> None:
        """Of a loop over the old row what it does for the element that is not zero, and for what that hands on."""
        b, carried = self.b, reading.carried
        at, x = self.old[reading]
        place = self.moved(reading.place)
        step = place[1][op.index]
        start = b.affine_value(affine_add(place, (0, {op.index: step}), -1))  # the first iteration's
        first = b.prim("-", at, start) if step > 0 else b.prim("-", start, at)
        count, alive = self.atom(op.count), b.prim("!=", x, ZERO)
        inside = b.prim("and", b.prim("<=", Const(0, INT), first), b.prim("<", first, count))
        others = [k for k in range(len(op.accs)) if k != carried]

        def iteration(i: Atom, value: Atom, states: Sequence[Atom], alive: Atom) -> list[Atom]:
            self.here[op.index] = i
            self.unflat([op.accs[k] for k in others], states)
            around, self.holds = self.holds, {**self.holds, alive: True}
            self.here[reading.read.vars[0] if carried is None else reading.joined.vars[0]] = value  # type: ignore
            for y in op.body.binds:
                if y is not reading.read and y is not reading.joined:
                    self.line(y)
            self.holds = around
            return self.flat([op.body.results[k] for k in others])

        inits = self.flat([op.inits[k] for k in others])
        if carried is None:
            cond = b.prim("and", inside, alive)
            with b.branch_region(cond, True) as then:
                results = iteration(first, x, inits, alive)
            with b.branch_region(cond, False) as orelse:
                pass
            made = b.if_(cond, (then, results), (orelse, inits))
            self.unflat([bind.vars[k] for k in others], made)
            return

        def goes_on(i: Atom, value: Atom, *states: Atom) -> Atom:
            return b.prim("and", b.prim("<", i, count), b.prim("!=", value, ZERO))

        def body(i: Atom, value: Atom, *states: Atom):
            results = iteration(i, value, states, b.prim("!=", value, ZERO))
            handed = self.atom(op.body.results[carried])  # type: ignore[index]
            return [b.prim("+", i, Const(1, INT)), handed, *results], []

        name = op.accs[carried].name
        names = [op.index.name, name, *(n for k in others for n in self.names(op.accs[k]))]
        value = b.select(inside, x, ZERO)
        _, value, *made = b.while_([first, value, *inits], goes_on, body, names, names)
        self.here[bind.vars[carried]] = value
        self.unflat([bind.vars[k] for k in others], made[: len(inits)])

    def names(self, v: Var) -> list[str]:
        return ["at", v.name] if v in self.rows else [v.name]
