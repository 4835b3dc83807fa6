"""Loops that add to several elements of a row, as adjoints of stencils do, made to take the sum for each element."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
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
    free_vars,
    reads,
    type_of,
)
from ..program.accumulators import any_order
from ..program.affine import Affine, affine_add, affine_key, never_equal
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.loops import loops_of, read_after_loops
from ..program.rebuild import Rebuild, taken
from .edges import FEWEST
from .spread import work
from .strands import own_sum
from .tables import affine_in, affine_of, sums_in

#: What is added is computed again for each element if it costs no more, in additions; else it is stored first.
CHEAP = 8.0
#: So many numbers of an iteration are stored, at most.
STORED = 4
#: The first and last elements of a row, to which not all come, are written out if no more is added to them.
WRITTEN_OUT = 24
#: A window to whose elements one number is added has so many of them, at least.
LONG = 8


def shifts(program: Program) -> Program:
    """Turns a loop's additions to several elements of a row into one sum for each element (a gather in place of a
    scatter).

    ``(loop n (fn [i a] (add-at (add-at a (+ i 1) (x i)) i (y i))) a)``  =>  ``(add-at a 0 (y 0))``; for the elements
    ``i`` = 1 .. n-1 of ``a``, ``(+ (+ (get a i) (x (- i 1))) (y i))``; ``(add-at a n (x (- n 1)))``.

    Design decision: each element gets what it got, in the order in which it got it, and so the same value. What an
    iteration adds to and the next one reads again keeps a compiler from taking several at once.
    """
    return taken(program, Shifts(Builder(), program)) if any(map(adds_twice, loops_of(program))) else program


def forwards(program: Program) -> Program:
    """Turns round an innermost loop that goes backwards through the rows that it adds to, and need not.

    ``(loop n (fn [k a] (add-at (add-at a (- n k) x) (- (- n 1) k) y)) a)``, ``x`` and ``y`` by ``(- (- n 1) k)``  =>
    the same by ``k``.
    Design decision: where all that it does is differentiation's own sums, and changes of a place of its own in each
    iteration: their order is nothing to the result, and the terms of a sum have none of the user's.
    """
    return taken(program, Forwards(Builder(), program)) if any(map(adds_twice, loops_of(program))) else program


class Forwards(Rebuild):
    """``forwards`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.sums = sums_in(program.body)

    def takes(self, bind: Bind) -> bool:
        op = bind.op
        return type(op) is Loop and adds_twice(op) and self.backwards(op) and freely(op)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        if not self.takes(bind):
            return super().loop(op, bind)
        last = self.b.prim("-", self.atom(op.count), Const(1, INT))

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = self.b.prim("-", last, i)
            self.here.update(zip(op.accs, accs))
            return self.block(op.body), ()

        return self.loop_like(op, bind, body)

    def backwards(self, op: Loop) -> bool:
        """Whether a loop goes through all rows that it adds to from their end."""
        adds = [x.op for x in op.body.binds if type(x.op) is Prim and x.op.name == "add-at"]
        places = [affine_of(x.args[-2], self.sums, set(self.sums), set()) for x in adds]
        return all(p is not None and p[1].get(op.index) == -1 for p in places)


def freely(op: Loop) -> bool:
    """Whether the order of a loop's iterations is nothing to what it gives."""
    if op.snapshots is not None or op.index.soft or len(op.body.results) > len(op.accs):
        return False
    if not all(type(x.op) is Prim or chooses(x) for x in op.body.binds):
        return False
    return all(
        isinstance(acc.type, Arr) and any_order(op, [acc]) or only_sums(op.body, acc, result)
        for acc, result in zip(op.accs, op.body.results)
    )


def only_sums(block: Block, acc: Var, result: Atom) -> bool:
    """Whether a block does nothing to an accumulator but to add to it, in sums of differentiation's own."""
    if not isinstance(acc.type, Arr):
        return own_sum(block, acc, result)
    made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim}
    readers = Counter(v for x in block.binds for v in reads(x))
    while result is not acc:
        x = made.get(result)  # type: ignore[call-overload]
        if x is None or not x.soft or x.op.name != "add-at" or readers[result] + block.results.count(result) != 1:  # type: ignore
            return False
        result = x.op.args[0]  # type: ignore[union-attr]
    return readers[acc] == 1


def adds_twice(loop: Loop) -> bool:
    return sum(type(x.op) is Prim and x.op.name == "add-at" for x in loop.body.binds) > 1


def chooses(bind: Bind) -> bool:
    """Whether a binding is a branch between numbers."""
    inner = [x.op for block in blocks_of(bind.op) for x in block.binds]
    return (
        type(bind.op) is If
        and all(type(x) is Prim for x in inner)
        and all(isinstance(v.type, Scalar) for v in bind.vars)
    )


def carried_by(op: Loop, accs: Sequence[Var]) -> set[Atom]:
    """Some accumulators of a loop and all that its body makes of them."""
    carried: set[Atom] = set(accs)
    for x in op.body.binds:
        if any(a in carried for a in reads(x)):
            carried.update(x.vars)
    return carried


def added_to(block: Block) -> dict[Var, tuple[Bind, Atom]]:
    """For the arrays of a block that are added to another one and not read elsewhere: by which loop, and to which."""
    readers = Counter(v for x in block.binds for v in reads(x))
    readers.update(r for r in block.results if type(r) is Var)
    found = {}
    for x in block.binds:
        op = x.op
        if type(op) is not Loop or op.accs or op.snapshots is not None or len(op.body.binds) != 3:
            continue
        one, two, total = (y.op for y in op.body.binds)
        if not all(type(y) is Prim and y.name == "get" and y.args[1:] == (op.index,) for y in (one, two)):
            continue
        items = {y.vars[0] for y in op.body.binds[:2]}
        if type(total) is Prim and total.name == "+" and {*total.args} == items:
            arrays = [y.args[0] for y in (one, two)]  # type: ignore[union-attr]
            if op.body.results == op.body.binds[2].vars and all(op.count == a.type.dims[0] for a in arrays):  # type: ignore
                found.update({a: (x, b) for a, b in zip(arrays, reversed(arrays)) if readers[a] == 1 and a is not b})
    return found  # type: ignore[return-value]


@dataclass
class Store:
    """An addition of an innermost loop: to which row, and how far its place is from that of the first one there."""

    bind: Bind
    row: tuple
    shift: int


def few_at_the_ends(row: Sequence[Store]) -> bool:
    """Whether the additions to the elements to which not all come are written out."""
    return (row[0].shift - row[-1].shift) * len(row) <= WRITTEN_OUT


def of_window(op: Loop, row: Sequence[Store]) -> Var | None:
    """The number of an iteration that is added to all elements of a long row, as a window's adjoint is; None if they
    get several, or one that is none of its own, or are so few that the ends are written out."""
    values = {s.bind.op.args[-1] for s in row}  # type: ignore[union-attr]
    if len(row) < LONG or few_at_the_ends(row) or len(values) > 1 or values.isdisjoint(defined_in(op.body)):
        return None
    return values.pop()  # type: ignore[return-value]


class Shifts(Rebuild):
    """``shifts`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.sums = sums_in(program.body)
        maxima = {x.vars[0]: x.op.args for x in all_binds(program.body) if type(x.op) is Prim and x.op.name == "max"}
        #: Counts that are at least 0: what they are where they are more.
        self.limits: dict[Atom, Atom] = {v: b for v, (a, b) in maxima.items() if v.type == INT and a == Const(0, INT)}
        self.limits |= {v: a for v, (a, b) in maxima.items() if v.type == INT and b == Const(0, INT)}
        self.stored: dict[Atom, Atom] = {}  # what is made of it is added, by the iteration
        self.made: dict[Var, Bind] = {}  # in the block that is being rebuilt
        self.later: dict[Bind, set[Var]] = {}  # what is read after a loop, of what it starts from
        self.others: dict[Var, tuple[Bind, Atom]] = {}  # to which array alone one is added, and where
        self.summed: dict[Bind, Atom] = {}  # where that has been done before

    def block(self, block: Block) -> tuple[Atom, ...]:
        around = self.made
        self.made = {v: x for x in block.binds for v in x.vars}
        self.later.update(read_after_loops(block))
        self.others.update(added_to(block))
        results = super().block(block)
        self.made = around
        return results

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if bind in self.summed:
            self.define(bind, [self.summed[bind]])
            return
        chains = self.chains(op) if type(op) is Loop and adds_twice(op) else None
        if not chains:
            self.copy(bind)
            return
        self.define(bind, self.gathered(op, bind, chains))  # type: ignore[arg-type]

    def takes(self, bind: Bind) -> bool:
        return type(bind.op) is Loop and adds_twice(bind.op) and bool(self.chains(bind.op))

    def chains(self, op: Loop) -> dict[int, list[list[Store]]]:
        """For accumulators that a loop adds to: its additions to rows that get several, in the order in which they
        come to an element."""
        if op.index.soft or op.snapshots is not None or type(op.count) is Const and op.count.value < FEWEST:
            return {}
        if not all(type(x.op) is Prim or chooses(x) for x in op.body.binds):
            return {}
        made = {x.vars[0]: x for x in op.body.binds if type(x.op) is Prim}
        own = {a for a in op.accs if isinstance(a.type, Arr) and any_order(op, [a])}
        carried = carried_by(op, [a for a in op.accs if a not in own])
        found = {}
        for k, (acc, result) in enumerate(zip(op.accs, op.body.results)):
            adds: list[Bind] = []
            at: Atom = result
            while (x := made.get(at)) is not None and x.op.name == "add-at":  # type: ignore
                adds.insert(0, x)
                at = x.op.args[0]  # type: ignore[union-attr]
            steps = [acc, *(x.vars[0] for x in adds)]
            alone = all(sum(v in reads(x) for x in op.body.binds) + op.body.results.count(v) == 1 for v in steps)
            if at is not acc or not alone or len(adds) < 2 or any(x.op.args[-1] in carried for x in adds):  # type: ignore
                continue
            stores = self.stores(op, adds)
            numbers = dict.fromkeys(s.row for s in stores)
            rows = [[s for s in stores if s.row == row] for row in numbers]
            rows = [sorted(row, key=lambda s: -s.shift) for row in rows if len({s.shift for s in row}) > 1]
            if rows and all(self.worth(op, row) for row in rows):
                found[k] = rows
        return found

    def stores(self, op: Loop, adds: Sequence[Bind]) -> list[Store]:
        """The additions to an array; none where it is not known how their places differ. Of two rows that may be the
        same an element gets what it gets in another order: that has to be differentiation's own."""
        stores: list[Store] = []
        inside = defined_in(op.body)
        first: dict[tuple, tuple[Affine, ...]] = {}  # the first place of each row
        for x in adds:
            *_, value = x.op.args  # type: ignore[union-attr]
            *rows, last = (affine_of(a, self.sums, set(self.sums), set()) for a in x.op.args[1:-1])  # type: ignore
            place = (*rows, last)
            if isinstance(type_of(value), Arr) or any(p is None or not p[1].keys().isdisjoint(inside) for p in place):
                return []
            if [p[1].get(op.index, 0) for p in place] != [*(0 for _ in rows), 1]:  # type: ignore[union-attr]
                return []
            row = tuple(map(affine_key, rows))  # type: ignore[arg-type]
            apart = all(never_equal(rows, other[:-1]) for key, other in first.items() if key != row)
            if not apart and not all(y.soft for y in adds):
                return []
            constant, terms = affine_add(last, first.setdefault(row, place)[-1], -1)  # type: ignore[arg-type]
            if terms:
                return []
            stores.append(Store(x, row, constant))
        return stores

    def worth(self, op: Loop, row: list[Store]) -> bool:
        return (few_at_the_ends(row) or of_window(op, row) is not None) and len(self.dear(op, [row])) <= STORED

    def dear(self, op: Loop, rows: Sequence[Sequence[Store]]) -> list[Var]:
        """The fewest numbers of which it is cheap to make all that is added; what is made of what the loop changes is
        not made again."""
        made = {v: x for x in op.body.binds for v in x.vars}
        carried = carried_by(op, op.accs)

        def cheap(v: Atom, known: Container[Atom]) -> bool:
            cost, todo, seen = 0.0, [v], set(known)
            while todo:
                v = todo.pop()
                if v in seen or v not in made:
                    continue
                seen.add(v)
                op = made[v].op
                cost += work(op) if type(op) is Prim else CHEAP + 1
                if v in carried or cost > CHEAP:
                    return False
                todo += op.args  # type: ignore[union-attr]
            return True

        values = dict.fromkeys(s.bind.op.args[-1] for row in rows for s in row)  # type: ignore[union-attr]
        wanted = [v for v in values if not cheap(v, ())]
        numbers = [v for x in tidy(Block(op.body.binds, tuple(wanted))).binds for v in x.vars if v.type == REAL]
        kept = list(dict.fromkeys(v for row in rows if (v := of_window(op, row)) is not None))
        wanted = [w for w in wanted if not cheap(w, kept)]
        while wanted:  # the last of those numbers that the most are made of
            best = max(reversed(numbers), key=lambda v: sum(cheap(w, (*kept, v)) for w in wanted))
            kept.append(best)
            wanted = [w for w in wanted if not cheap(w, kept)]
        return kept

    def gathered(self, op: Loop, bind: Bind, chains: dict[int, list[list[Store]]]) -> Sequence[Atom]:
        """The loop without the additions of ``chains``, if that does anything, and then these, row by row."""
        taken = {s.bind.vars[0]: s.bind.op.args[0] for rows in chains.values() for row in rows for s in row}  # type: ignore
        binds = tuple(x for x in op.body.binds if not any(v in taken for v in x.vars))

        def left(a: Atom) -> Atom:
            while a in taken:
                a = taken[a]  # type: ignore[index]
            return a

        binds = tuple(
            Bind(x.vars, Prim("add-at", (left(x.op.args[0]), *x.op.args[1:])), x.span, x.soft)  # type: ignore[union-attr]
            if type(x.op) is Prim and x.op.name == "add-at"
            else x
            for x in binds
        )
        dear = self.dear(op, [row for rows in chains.values() for row in rows])
        count = self.b.prim("max", self.atom(op.count), Const(0, INT)) if dear else op.count  # sizes are not negative
        kept = tuple(Var(v.name, Arr(v.type, (count,)), v.span) for v in dear)
        rest = tidy(Block(binds, (*map(left, op.body.results), *dear)))
        again = Bind((*bind.vars, *kept), Loop(count, op.index, op.inits, op.accs, rest), bind.span)
        out = list(super().loop(again.op, again))  # type: ignore[arg-type]
        self.stored = dict(zip(dear, out[len(bind.vars) :]))
        for k, rows in chains.items():
            fresh = self.fresh(op, bind, k, chains)
            if fresh == "sum":
                sum_, other = self.others[bind.vars[k]]
                array = out[bind.vars.index(other)] if other in bind.vars else self.atom(other)
                self.summed[sum_] = self.row(op, rows[0], array, fresh)
                continue
            for row in rows:
                out[k] = self.row(op, row, out[k], fresh)
        return out[: len(bind.vars)]

    def fresh(self, op: Loop, bind: Bind, k: int, chains: dict[int, list[list[Store]]]) -> str:
        """Where the one row is all of an array, which was cleared for it or is read later, it is stored into memory of
        its own: what was there, "zeros" or "numbers". Where it was cleared, and is added to another array and no more,
        it is added there, "sum". Else nothing."""
        acc, init, rows = op.accs[k], op.inits[k], chains[k]
        if len(rows) > 1 or acc.type.rank != 1 or op.inits.count(init) > 1 or op.body.results[k] is acc:  # type: ignore
            return ""
        adds = sum(
            type(x.op) is Prim and x.op.name == "add-at" and x.op.args[0] in carried_by(op, [acc])
            for x in op.body.binds
        )
        start = self.made.get(init)  # type: ignore[call-overload]
        cleared = start is not None and type(start.op) is Prim and start.op.name == "zeros"
        if adds > len(rows[0]) or init in free_vars(op.body) or not cleared and init not in self.later.get(bind, ()):
            return ""
        other = self.others[bind.vars[k]][1] if bind.vars[k] in self.others else None
        known = other in bind.vars and bind.vars.index(other) not in chains or type(other) is Var and other in self.here
        if cleared and known:
            return "sum"
        row = rows[0]
        low = affine_add(affine_in(self.sums, row[-1].bind.op.args[1]), (0, {op.index: 1}), -1)  # type: ignore
        size = affine_add(
            affine_in(self.sums, acc.type.dims[0]), affine_in(self.sums, self.limits.get(op.count, op.count)), -1
        )  # type: ignore
        whole = low == (0, {}) and size == (row[0].shift - row[-1].shift, {})
        return ("zeros" if cleared else "numbers") if whole else ""

    def row(self, op: Loop, row: list[Store], array: Atom, fresh: str = "") -> Atom:
        """The additions to the elements of one row, where there are as many iterations as elements that not all come
        to; else as they were."""
        b, count = self.b, self.atom(op.count)
        gap = row[0].shift - row[-1].shift
        if of_window(op, row) is not None:
            return self.among_zeros(op, row, array, gap, fresh)
        many = affine_add(b.affine(count), (gap, {}), -1)
        if b.nonnegative(many):
            return self.sums_of(op, row, array, gap, fresh)
        there = b.prim("<=", Const(gap, INT), count)
        with b.branch_region(there, True) as scope:
            one = self.sums_of(op, row, array, gap, fresh)
        with b.branch_region(there, False) as other:
            if fresh == "zeros":
                array = b.zeros(type_of(array))
            if gap > 1:  # else there is no iteration
                (array,) = b.loop(
                    count, [array], lambda i, a: ((self.added(op, row, i, a),), ()), [], op.index.name, ["a"]
                )
        return b.if_(there, (scope, [one]), (other, [array]))[0]

    def sums_of(self, op: Loop, row: list[Store], array: Atom, gap: int, fresh: str) -> Atom:
        """``fresh``: as it says. A sum that is added to another array is taken first, as it would be of zeros."""
        b, count = self.b, self.atom(op.count)
        low, old = row[-1].shift, array
        array = b.undef(type_of(old)) if fresh in ("zeros", "numbers") else array

        def total(a: Atom, stores: Sequence[Store], index: Callable[[Store], Atom]) -> Atom:
            place, sum_ = None, None
            for s in stores:
                place, value = self.value(op, s, index(s))
                if sum_ is None and fresh in ("", "numbers"):
                    sum_ = b.get(old if fresh else a, *place)
                sum_ = value if sum_ is None else b.prim("+", sum_, value)
            if fresh == "sum":
                sum_ = b.prim("+", b.get(a, *place), sum_)  # type: ignore[misc]
            return b.update(a, place, sum_)  # type: ignore[arg-type]

        def end(a: Atom, stores: Sequence[Store], index: Callable[[Store], Atom]) -> Atom:
            if fresh:
                return total(a, stores, index)
            for s in stores:
                a = self.add(op, s, index(s), a)
            return a

        for d in range(gap):  # the first elements
            array = end(array, [s for s in row if s.shift <= low + d], lambda s, d=d: Const(low + d - s.shift, INT))  # type: ignore
        length = b.prim("-", count, Const(gap, INT))

        def body(i: Atom, a: Atom):
            return (total(a, row, lambda s: b.prim("+", i, Const(row[0].shift - s.shift, INT))),), ()

        (array,) = b.loop(length, [array], body, [], op.index.name, ["a"])
        for d in range(gap):  # and the last ones
            later = [s for s in row if s.shift > low + d]
            array = end(array, later, lambda s, d=d: b.prim("-", count, Const(s.shift - low - d, INT)))  # type: ignore
        return array

    def among_zeros(self, op: Loop, row: list[Store], array: Atom, gap: int, fresh: str) -> Atom:
        """The same of one number that is added to many elements: with as many zeros before the first of these numbers
        and after the last one as make no element a special one."""
        b, count, low, old = self.b, self.atom(op.count), row[-1].shift, array
        numbers = self.stored[row[0].bind.op.args[-1]]  # type: ignore[union-attr]
        made = b.zeros(Arr(REAL, (b.affine_value(affine_add(b.affine(count), (2 * gap, {}))),)), "padded")

        def put(i: Atom, a: Atom):
            return (b.update(a, [b.prim("+", i, Const(gap, INT))], b.get(numbers, i)),), ()

        def total(j: Atom, a: Atom):
            self.here[op.index] = j
            place = self.block(tidy(Block(op.body.binds, row[-1].bind.op.args[1:-1])))  # type: ignore[union-attr]
            sum_ = b.get(old if fresh else a, *place) if fresh in ("", "numbers") else None
            for s in row:
                x = b.get(padded, b.prim("+", j, Const(gap + low - s.shift, INT)))
                sum_ = x if sum_ is None else b.prim("+", sum_, x)
            if fresh == "sum":
                sum_ = b.prim("+", b.get(a, *place), sum_)  # type: ignore[arg-type]
            return (b.update(a, place, sum_),), ()  # type: ignore[arg-type]

        with b.branch_region(there := b.prim("<", Const(0, INT), count), True) as scope:
            start = b.undef(type_of(old)) if fresh in ("zeros", "numbers") else array
            (padded,) = b.loop(count, [made], put, ["padded"], op.index.name, ["padded"])
            times = b.prim("+", count, Const(gap, INT))
            one = b.loop(times, [start], total, [], op.index.name, ["a"])
        with b.branch_region(there, False) as other:
            rest = b.zeros(type_of(array)) if fresh == "zeros" else array
        return b.if_(there, (scope, one), (other, [rest]))[0]

    def value(self, op: Loop, store: Store, index: Atom) -> tuple[tuple[Atom, ...], Atom]:
        """Where an addition comes to in an iteration, and what is added."""
        self.here[op.index] = index
        self.b.span = store.bind.span
        made = tuple(x for x in op.body.binds if not any(v in self.stored for v in x.vars))
        needed = tidy(Block(made, store.bind.op.args[1:]))  # type: ignore[union-attr]
        for v in free_vars(needed):
            if v in self.stored:
                self.here[v] = self.b.get(self.stored[v], index, hint=v.name)
        *at, x = self.block(needed)
        return tuple(at), x

    def add(self, op: Loop, store: Store, index: Atom, array: Atom) -> Atom:
        place, value = self.value(op, store, index)
        return self.b.add_at(array, place, value, soft=store.bind.soft)

    def added(self, op: Loop, row: list[Store], index: Atom, array: Atom) -> Atom:
        for s in row:
            array = self.add(op, s, index, array)
        return array
