"""The order of loops in a nest: which one is innermost, and how many terms a row takes at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
    Scalar,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    count_uses,
    defined_in,
    free_vars,
    integer,
    kinds_of,
    reads,
    same_atoms,
    substitute,
    type_of,
    with_blocks,
)
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import CALL, CHEAP, cost_of, slice_of
from ..program.rebuild import Rebuild
from .fission import independent
from .jam import JAMMED, JAMMED_COST, Room, in_fours

NEXT, FAR = 1, 8  # what an access costs that moves on by one element, or by a row, from iteration to iteration
CHAIN = 2  # what a sum costs whose additions wait for one another
LONG = 8  # a loop of fewer iterations is not worth being innermost
SHORT = 16  # a row of so many elements comes with one of them
FEW = 8  # a row of so many parts is carried from iteration to iteration in parts


class Steps:
    """How the integers of a program move with the index of a loop."""

    def __init__(self, block: Block) -> None:
        self.definitions = {v: bind.op for bind in all_binds(block) for v in bind.vars if v.type == INT}

    def few(self, count: Atom, most: int = LONG) -> bool:
        """Whether a trip count is at most ``most``, as that of the last lanes is, or of the parts of a sum."""
        op = self.definitions.get(count)  # type: ignore[arg-type]
        if type(op) is Prim and op.name == "-" and type(op.args[1]) is Const and op.args[1].value >= 0:
            return self.few(op.args[0], most + op.args[1].value)
        if type(op) is Prim and op.name == "-" and self.whole(*op.args, most + 1):
            return True
        known = (count,) if type(count) is Const else op.args if type(op) is Prim and op.name == "min" else ()
        return any(type(a) is Const and a.value <= most for a in known)

    def whole(self, n: Atom, done: Atom, most: int) -> bool:
        """Whether ``done`` is ``(* k (// n k))``, for a k of at most ``most``: what is left of ``n`` is less."""
        factor = self.definitions.get(done)  # type: ignore[arg-type]
        if type(factor) is not Prim or factor.name != "*" or type(factor.args[0]) is not Const:
            return False
        quotient = self.definitions.get(factor.args[1])  # type: ignore[arg-type]
        known = type(quotient) is Prim and quotient.name == "//" and quotient.args == (n, factor.args[0])
        return known and factor.args[0].value <= most

    def step(self, a: Atom, index: Var, inside: set[Var], mostly: bool = False) -> int | None:
        """By how much an integer grows from one iteration to the next; None where nobody knows. ``inside`` has what the
        loop's body binds. ``mostly``: as long as it has not come to a bound, as the length of a slice to none."""
        if type(a) is Const or a not in inside:
            return 0
        if a is index:
            return 1
        op = self.definitions.get(a)  # type: ignore[arg-type]
        if type(op) is not Prim:
            return 0 if op is None and a in self.definitions or a.type == INT and a not in self.definitions else None
        args = [x for x in op.args if not isinstance(type_of(x), Arr)]
        steps = [self.step(x, index, inside, mostly) for x in args]
        if None in steps or len(args) < len(op.args) and op.args[0] in inside:
            return None
        if mostly and op.name in ("max", "min") and steps.count(0) == 1:
            return sum(steps)  # type: ignore[arg-type]
        if op.name in ("+", "-", "neg"):
            signs = (-1,) if op.name == "neg" else (1, -1 if op.name == "-" else 1)
            return sum(sign * step for sign, step in zip(signs, steps))  # type: ignore[operator]
        if op.name == "*" and any(type(x) is Const for x in args):
            return sum(steps[1 - k] * x.value for k, x in enumerate(args) if type(x) is Const)  # type: ignore[operator]
        return None if any(steps) else 0

    def cost(self, subscripts: Sequence[Atom], index: Var, inside: set[Var]) -> int:
        """What one access costs in a loop over ``index``."""
        steps = [self.step(s, index, inside) for s in subscripts]
        if None in steps or any(steps[:-1]) or steps[-1] not in (-1, 0, 1):
            return FAR
        return NEXT if steps[-1] else 0


@dataclass(frozen=True, slots=True)
class Swap:
    """An inner loop that is to go around its outer one: its binding, and which of its accumulators go with it. ``sums``
    are numbers, ``arrays`` maps others to the accumulator of the outer loop that they are. ``tables`` are numbers of
    the outer loop's body that the inner one needs and that are better read than computed again. ``length``: how often
    the inner loop runs, where that is one iteration more or less (``step``) each time."""

    bind: Bind
    sums: tuple[int, ...]
    arrays: dict[int, int]
    tables: tuple[Var, ...]
    length: Var | None = None
    step: int = 0


class Interchange(Rebuild):
    """Puts the loop inside over whose index memory is read and written element after element.

    ``(build m (fn [j] (ifold (fn [s k] (+ s (* (get v k) (get a k j)))) 0.0 n)))``  =>
    ``(ifold (fn [row k] (ifold (fn [row j] (add-at row j (* (get v k) (get a k j)))) row m)) (zeros m) n)``.

    A sum in each iteration of a loop becomes a row of sums; what the outer loop did before and after the inner one it
    does in loops of its own. Where the inner loop adds to elements of an array, the two loops just change places; that
    pays as well where the outer one has few iterations, and the inner one goes through a matrix in each of its own. Of
    sums that are a term longer or shorter each time (``growing``), as an autocorrelation's, first the terms that all of
    them have are added, then what is left of the longer ones.

    Design decision: by an explicit cost of the accesses of one innermost iteration (``NEXT``, ``FAR``), of a chain of
    additions (``CHAIN``), and of what two loops compute instead of one, the new row's accesses included: never a call,
    beside which it matters little how memory is read. A compiler does not do it: it would have to prove that no array
    overlaps another. Each sum is still taken in its own order.
    """

    def __init__(self, builder: Builder, steps: Steps, growing: bool = False) -> None:
        super().__init__(builder)
        self.steps, self.growing = steps, growing  # those of one length, or those that grow or shrink

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop:
            swap = self.swap(op)
            if swap is not None:
                self.b.fired("growing-sums" if self.growing else "interchange")
                self.apart(bind, op, swap)
                return
        self.copy(bind)

    # ---------------------------------------------------------------------------------- what pays

    def swap(self, op: Loop) -> Swap | None:
        """The first inner loop that ought to be the outer one."""
        return next((s for s in map(partial(self.swapped, op), op.body.binds) if s is not None), None)

    def swapped(self, op: Loop, bind: Bind) -> Swap | None:
        """How an inner loop, that of a binding of ``op``'s body, becomes the outer one, if it ought to be that."""
        inner = bind.op
        if type(inner) is not Loop or self.steps.few(op.count, LONG - 1) or not plain(op.body):
            return None
        inside = {op.index, *op.accs, *defined_in(op.body)}
        ragged = inner.count in inside
        if ragged != self.growing:
            return None
        if ragged:
            return self.ragged(op, bind, inner, inside)
        if self.sweeps(op, inner, inside):
            whole = self.fits(op, bind, range(len(inner.accs)), inside)
            if whole is not None:
                return whole
        for group in independent(inner)[0]:
            found = self.fits(op, bind, group, inside)
            if found is not None and self.pays(op, inner, found, inside):
                return found
        return None

    def ragged(self, op: Loop, bind: Bind, inner: Loop, inside: set[Var]) -> Swap | None:
        """The same for a loop of sums that are a term longer or shorter each time, down to none."""
        length, made = inner.count, self.steps.definitions.get(inner.count)  # type: ignore[arg-type]
        if type(made) is Prim and made.name == "max" and integer(0) in made.args:
            length = made.args[made.args[0] == integer(0)]
        step = self.steps.step(length, op.index, inside)
        if step not in (-1, 1) or type(length) is not Var or len(inner.body.results) > len(inner.accs):
            return None
        if cost_of(inner.body) >= CALL:
            return None
        found = self.fits(op, bind, range(len(inner.accs)), inside)
        if found is None or found.arrays or not self.pays(op, inner, found, inside):
            return None
        return replace(found, length=length, step=step)

    def fits(self, op: Loop, bind: Bind, group: Sequence[int], inside: set[Var]) -> Swap | None:
        """How some accumulators of an inner loop can go with it, if they can."""
        inner: Loop = bind.op  # type: ignore[assignment]
        sums, arrays = [], {}
        part = slice_of(inner.body, [inner.body.results[k] for k in group])
        for k in group:
            if k >= len(inner.accs):
                return None
            acc = inner.accs[k]
            if isinstance(acc.type, Scalar):
                if acc.type != REAL:
                    return None
                sums.append(k)
                continue
            at = next((j for j, a in enumerate(op.accs) if a is inner.inits[k]), None)
            if at is None or op.body.results[at] is not bind.vars[k]:
                return None
            if count_uses(op.body, op.accs[at]) != 1 or count_uses(op.body, bind.vars[k]) != 1:
                return None
            places = additions(part, acc, inner.body.results[k])
            if places is None or not all(self.in_order(place, op.index, inner.index, inside) for place in places):
                return None
            arrays[k] = at
        own = {inner.index, *inner.accs, *defined_in(inner.body)}
        needed = [a for a in (*free_vars(part), *(inner.inits[k] for k in sums)) if a in inside and a not in own]
        needed = [a for a in dict.fromkeys(needed) if a is not op.index]
        before = slice_of(op.body, needed)
        if any(a in free_vars(before) or a in needed for a in op.accs):
            return None
        tables = [v for v in needed if not quick(slice_of(before, [v]))]
        if any(not isinstance(v.type, Scalar) for v in tables):  # type: ignore[union-attr]
            return None
        return Swap(bind, tuple(sums), arrays, tuple(tables))  # type: ignore[arg-type]

    def in_order(self, place: Sequence[Atom], outer: Var, inner: Var, inside: set[Var]) -> bool:
        """Whether an element is met along one of the two loops only, so that what is added to it keeps its order."""
        for s in place:
            steps = self.steps.step(s, outer, inside), self.steps.step(s, inner, inside)
            if None not in steps and sum(map(bool, steps)) == 1:
                return True
        return False

    def pays(self, op: Loop, inner: Loop, swap: Swap, inside: set[Var]) -> bool:
        part = slice_of(inner.body, [inner.body.results[k] for k in (*swap.sums, *swap.arrays)])
        own = {inner.index, *inner.accs, *defined_in(inner.body)}
        needed = [v for v in free_vars(part) if v in inside and v not in own]
        first = slice_of(op.body, [v for v in needed if v is not op.index and v not in swap.tables])
        before, after = 0, NEXT * len(swap.tables) + self.cost(first, op.index, inside)  # read in each iteration then
        for around, accs, block in innermost((inner.index,), inner.accs, part):
            here = 2 * NEXT * len(swap.sums) if block is part else 0
            rows = CHAIN * any(isinstance(a.type, Scalar) for a in accs)
            after += here + self.cost(block, op.index, inside)
            before += min(rows + self.cost(block, index, inside) for index in around)
        rest = [k for k in range(len(inner.body.results)) if k not in (*swap.sums, *swap.arrays)]
        left = {v for x in slice_of(inner.body, [inner.body.results[k] for k in rest]).binds for v in x.vars}
        twice = cost_of(Block(tuple(x for x in part.binds if not left.isdisjoint(x.vars)), ()))
        ragged = inner.count in inside  # C compilers make no vectors of such sums, whatever they read
        return twice < CALL and after + twice < before + ragged

    def sweeps(self, op: Loop, inner: Loop, inside: set[Var]) -> bool:
        """Whether a loop has few iterations, and each iteration of a loop inside reads or changes a matrix of its own,
        the same in all of the few: it stays in the cache for all of them if these come inside."""
        if not self.steps.few(op.count):
            return False
        for around, _, block in innermost((inner.index,), inner.accs, inner.body):
            for _, subscripts, _ in accesses(block):
                moved = [any(self.steps.step(s, i, inside) != 0 for s in subscripts) for i in around]
                if moved[0] and sum(moved) > 2 and all(self.steps.step(s, op.index, inside) == 0 for s in subscripts):
                    return True
        return False

    def cost(self, block: Block, index: Var, inside: set[Var]) -> int:
        """What the accesses of an innermost loop's body cost if its index is ``index``. Of the elements of a short row,
        as a point or a small matrix, the first one brings the others."""
        total = 0
        seen: set[tuple[Atom, ...]] = set()
        for array, subscripts, changed in accesses(block):
            cost = self.steps.cost(subscripts, index, inside)
            row = row_of_few(array, subscripts)
            if row is not None and cost == FAR:
                cost = NEXT if row in seen else FAR
                seen.add(row)
            total += CHAIN if changed and not cost else cost * (1 + changed)
        return total

    # ------------------------------------------------------------------------------- how it is done

    def apart(self, bind: Bind, op: Loop, swap: Swap) -> None:
        """The loops that an outer loop becomes: tables, the inner loop around it, and the rest."""
        b, count = self.b, self.atom(op.count)
        inner: Loop = swap.bind.op  # type: ignore[assignment]
        known = dict(zip(swap.tables, self.stacked(op, count, swap.tables)))
        rows = self.rows(op, count, swap, known)
        b.span = swap.bind.span
        arrays = [self.atom(op.inits[at]) for at in swap.arrays.values()]
        made = self.around(op, inner, count, swap, known, [*rows, *arrays])
        sums = dict(zip([swap.bind.vars[k] for k in swap.sums], made))
        self.here.update(zip([bind.vars[at] for at in swap.arrays.values()], made[len(rows) :]))
        b.span = bind.span
        self.rest(bind, op, count, swap, known, sums)

    def stacked(self, op: Loop, count: Atom, wanted: Sequence[Var]) -> Sequence[Atom]:
        """Numbers of a loop's body in all its iterations."""
        if not wanted:
            return ()

        def body(i: Atom):
            self.here[op.index] = i
            self.block(slice_of(op.body, wanted))
            return (), self.atoms(wanted)

        return self.b.loop(count, (), body, [v.name for v in wanted], op.index.name, pruned=True)

    def before(self, op: Loop, i: Atom, wanted: Sequence[Atom], known: dict[Var, Atom]) -> None:
        """What stands before the inner loop, in iteration ``i``."""
        self.here[op.index] = i
        self.here.update((v, self.b.get(table, i, hint=v.name)) for v, table in known.items())
        binds = tuple(x for x in op.body.binds if known.keys().isdisjoint(x.vars))
        self.block(slice_of(Block(binds, ()), [v for v in wanted if v not in known]))

    def rows(self, op: Loop, count: Atom, swap: Swap, known: dict[Var, Atom]) -> list[Atom]:
        """The sums of all iterations as they start."""
        b, inner, rows = self.b, swap.bind.op, []
        for k in swap.sums:
            start, name = inner.inits[k], swap.bind.vars[k].name  # type: ignore[union-attr]
            if type(start) is Const and repr(float(start.value)) == "0.0":
                rows.append(b.zeros(Arr(REAL, (count,)), name))
                continue

            def body(i: Atom, start: Atom = start) -> Atom:
                self.before(op, i, [start], known)
                return self.atom(start)

            rows.append(b.build(count, body, name, index_name=op.index.name))
        return rows

    def around(
        self, op: Loop, inner: Loop, count: Atom, swap: Swap, known: dict[Var, Atom], state: list[Atom]
    ) -> Sequence[Atom]:
        """The inner loop with the outer one in it; of one that is not equally long each time, what they all have, then
        the rest."""
        b = self.b
        group = [*swap.sums, *swap.arrays]
        part = slice_of(inner.body, [inner.body.results[k] for k in group])
        needed = [a for a in free_vars(part) if a is not op.index]
        names = [swap.bind.vars[k].name for k in swap.sums] + [op.accs[at].name for at in swap.arrays.values()]
        accs, results = list(inner.accs), list(inner.body.results)
        for k in swap.sums:  # a row is added to where its number was
            whole = Block(part.binds, tuple(results[j] for j in group))
            found = lifted(whole, accs[k], group.index(k), op.index, Arr(REAL, (op.count,)))
            if found is not None:
                part, accs[k] = found
                results[k] = part.results[group.index(k)]

        def nest(times: Atom, state: Sequence[Atom], start: Atom, rows: Callable[[Atom], tuple[Atom, Atom]]):
            """So many iterations of the inner loop from ``start`` on, each for those of the outer one that ``rows``
            says: the first of them, and how many."""

            def each(k: Atom, *outer: Atom):
                at = b.prim("+", start, k)
                first, width = rows(at)

                def body(i: Atom, *state: Atom):
                    i = b.prim("+", first, i)
                    self.here[inner.index] = at
                    self.before(op, i, needed, known)
                    for j, s in zip(group, state):
                        alone = isinstance(accs[j].type, Scalar)
                        self.here[accs[j]] = b.get(s, i) if alone else s
                    self.block(part)
                    made = [self.atom(results[j]) for j in group]
                    return [
                        b.update(s, [i], x) if isinstance(accs[j].type, Scalar) else x
                        for j, s, x in zip(group, state, made)
                    ], ()

                return b.loop(width, outer, body, names, op.index.name, names), ()

            return b.loop(times, state, each, names, inner.index.name, names)

        zero = integer(0)
        if swap.length is None:
            return nest(self.atom(inner.count), state, zero, lambda at: (zero, count))
        first, last = (self.length(op, swap.length, i) for i in (zero, b.prim("-", count, integer(1))))
        shortest, longest = map(b.trips, (first, last) if swap.step > 0 else (last, first))
        state = nest(shortest, state, zero, lambda at: (zero, count))

        def longer(at: Atom) -> tuple[Atom, Atom]:
            if swap.step < 0:
                return zero, b.prim("-", first, at)
            begin = b.prim("-", b.prim("+", at, integer(1)), first)
            return begin, b.prim("-", count, begin)

        return nest(b.prim("-", longest, shortest), state, shortest, longer)

    def length(self, op: Loop, length: Var, i: Atom) -> Atom:
        """How long an inner loop is in iteration ``i``."""
        self.here[op.index] = i
        self.block(slice_of(op.body, [length]))
        return self.atom(length)

    def rest(
        self, bind: Bind, op: Loop, count: Atom, swap: Swap, known: dict[Var, Atom], sums: dict[Var, Atom]
    ) -> None:
        """What the outer loop does beside and after the inner one."""
        b, width = self.b, len(op.accs)
        kept = [k for k in range(len(bind.vars)) if k not in swap.arrays.values()]
        for k in kept[:]:
            if k >= width and op.body.results[k] in sums:
                self.here[bind.vars[k]] = sums[op.body.results[k]]  # type: ignore[index]
                kept.remove(k)
        if not kept:
            return
        results = [op.body.results[k] for k in kept]
        accs = [k for k in kept if k < width]
        beside = [k for k in range(len(swap.bind.vars)) if k not in (*swap.sums, *swap.arrays)]
        binds = [part_of(x, beside) if x is swap.bind else x for x in op.body.binds]
        left = slice_of(Block(tuple(x for x in binds if not known.keys() >= set(x.vars)), ()), results)

        def body(i: Atom, *state: Atom):
            self.here[op.index] = i
            self.here.update(zip([op.accs[k] for k in accs], state))
            self.here.update((v, b.get(table, i, hint=v.name)) for v, table in (known | sums).items())
            self.block(left)
            made = self.atoms(results)
            return made[: len(accs)], made[len(accs) :]

        made = b.loop(
            count,
            self.atoms([op.inits[k] for k in accs]),
            body,
            [bind.vars[k].name for k in kept],
            op.index.name,
            [op.accs[k].name for k in accs],
            bind.vars[kept[0]].given,
            soft=op.index.soft,
        )
        self.here.update(zip([bind.vars[k] for k in kept], made))


def row_makers(op: Loop) -> list[Bind]:
    """For each accumulator the loop that makes its rows, each from the same row alone; none where that is not so
    or does not pay."""
    plainly = op.accs and len(op.body.results) == len(op.accs) and op.snapshots is None and not op.index.soft
    if not plainly or not plain(op.body):
        return []
    inside = {op.index, *op.accs, *defined_in(op.body)}
    by_var = {v: x for x in op.body.binds for v in x.vars}
    makers = [by_var.get(r) for r in op.body.results]  # type: ignore[arg-type]
    for maker in makers:
        loop = maker.op if maker else None
        if type(loop) is not Loop or loop.accs or loop.index.soft or loop.count in inside:
            return []
    rows = dict.fromkeys(x for x in makers if x is not None)
    made = {v for x in rows for v in x.vars}
    loops = any(type(x.op) is Loop for maker in rows for x in maker.op.body.binds)  # type: ignore[union-attr]
    if not loops and not all(added(op, acc, x) for acc, x in zip(op.accs, makers)):  # type: ignore[arg-type]
        return []
    reads = sum(count_uses(op.body, v) for v in made)
    if reads != len(makers) or len(set(op.body.results)) < reads:
        return []
    for acc in op.accs:
        if count_uses(op.body, acc) != sum(own_row(maker.op, acc) for maker in rows):  # type: ignore[arg-type]
            return []
    rest = beside(op, rows)
    apart = not loops and all(v.type == REAL for v in wanted(rest, rows))
    return makers if apart or quick(rest) else []  # type: ignore[return-value]


class RowFolds(Rebuild):
    """Takes one row of a state through all iterations of a fold before the next row.

    ``(ifold (fn [s k] (build m (fn [i] (f (get s i) k)))) z n)``  =>
    ``(build m (fn [i] (ifold (fn [row k] (f row k)) (get z i) n)))``.

    The state is written once, a row stays in the first cache or in registers, and what reads the rows is fused with
    what makes them. Few parts of a row, made one by one, are accumulators of their own.

    Design decision: where loops work on a row. Of rows without, neighbours in different rows are better taken side by
    side, as a vector, than one after the other; but for few sums for each row whose terms have the elements of a
    matrix's row as factors (``added``): four of these are read at a time then (``JamRows``). What else an iteration
    makes for such rows is made first.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.rows: dict[Atom, Atom] = {}  # the row of an accumulator in the iteration that is being rebuilt
        self.found = False

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and op.name == "get" and op.args[0] in self.rows:
            self.here[bind.vars[0]] = self.b.get(
                self.rows[op.args[0]], *self.atoms(op.args[2:]), hint=bind.vars[0].name
            )
            return
        makers = self.makers(op) if type(op) is Loop else []
        if makers:
            self.by_rows(bind, op, makers)  # type: ignore[arg-type]
        else:
            self.copy(bind)

    def makers(self, op: Loop) -> list[Bind]:
        """``row_makers``, where each makes all rows of its accumulator."""
        makers, b = row_makers(op), self.b
        sizes = [(x.op.count, acc.type.dims[0]) for x, acc in zip(makers, op.accs)]  # type: ignore[union-attr]
        return makers if all(b.same_int(self.atom(count), self.atom(size)) for count, size in sizes) else []

    def by_rows(self, bind: Bind, op: Loop, makers: Sequence[Bind]) -> None:
        b, self.found = self.b, True
        b.fired("row-folds")
        loops: dict[Bind, Loop] = {x: x.op for x in makers}  # type: ignore[misc]
        rest = beside(op, loops)
        table = self.table(op, rest, loops)
        results = [x.op.body.results[x.vars.index(r)] for x, r in zip(makers, op.body.results)]  # type: ignore
        counts = [pieces(x.op.body, r) for x, r in zip(makers, results)]  # type: ignore[union-attr]

        def apart(row: Atom, n: int) -> list[Atom]:
            return [b.get(row, integer(j)) for j in range(n)] if n else [row]

        def whole(parts: Sequence[Atom]) -> list[Atom]:
            left = list(parts)
            return [
                b.array([left.pop(0) for _ in range(n)], a.name) if n else left.pop(0) for n, a in zip(counts, op.accs)
            ]

        def start(k: int, i: Atom) -> list[Atom]:
            z = self.atom(op.inits[k])
            made = b.definitions.get(z)  # type: ignore[arg-type]
            if type(made) is not Prim or made.name != "zeros":
                return apart(b.get(z, i), counts[k])
            t = type_of(z).item(2 if counts[k] else 1)  # type: ignore[union-attr]
            return [b.zeros(t, op.accs[k].name) for _ in range(counts[k] or 1)]

        def row(i: Atom):
            def step(k: Atom, *parts: Atom):
                self.here[op.index] = k
                around, self.rows = self.rows, {**self.rows, **dict(zip(op.accs, whole(parts)))}
                if table is None:
                    self.block(rest)
                else:
                    self.here.update((v, b.get(table[1], k, integer(j))) for j, v in enumerate(table[0]))
                for loop in loops.values():
                    self.here[loop.index] = i
                    self.block(Block(loop.body.binds, ()))
                self.rows = around
                return [x for r, n in zip(results, counts) for x in apart(self.atom(r), n)], ()

            starts = [x for k in range(len(op.accs)) for x in start(k, i)]
            names = [a.name for a, n in zip(op.accs, counts) for _ in range(n or 1)]
            return (), whole(b.loop(self.atom(op.count), starts, step, names, op.index.name, names))

        index = next(iter(loops.values())).index.name
        made = b.loop(self.atom(makers[0].op.count), (), row, [v.name for v in bind.vars], index)  # type: ignore[union-attr]
        b.span = bind.span
        self.define(bind, made)

    def table(self, op: Loop, rest: Block, loops: Collection[Bind]) -> tuple[Sequence[Var], Atom] | None:
        """The numbers that all iterations compute for the rows, as a matrix; none where they are looked up as soon."""
        if quick(rest):
            return None
        numbers = wanted(rest, loops)

        def body(k: Atom) -> Atom:
            self.here[op.index] = k
            self.block(rest)
            return self.b.array(self.atoms(numbers))

        return numbers, self.b.build(self.atom(op.count), body, index_name=op.index.name)


def added(op: Loop, acc: Var, maker: Bind) -> bool:
    """Whether a loop makes rows of a few numbers by adding to those of an accumulator, each to its own, and reads rows
    of a matrix for it, an element in each iteration of the loop around."""
    loop: Loop = maker.op  # type: ignore[assignment]
    made = {x.vars[0]: x.op for x in loop.body.binds if type(x.op) is Prim}
    row = made.get(next((r for r, v in zip(loop.body.results, maker.vars) if v in op.body.results), None))  # type: ignore
    across = any(x.name == "get" and x.args[1] is loop.index and x.args[-1] is op.index for x in made.values())
    if row is None or row.name != "array" or not 1 < len(row.args) <= FEW or not across:
        return False
    for k, a in enumerate(row.args):
        total = made.get(a)  # type: ignore[call-overload]
        own = (
            [x for x in total.args if count_uses(loop.body, x) == 1] if total is not None and total.name == "+" else []
        )
        if not any(x in made and made[x].args == (acc, loop.index, integer(k)) for x in own):  # type: ignore
            return False
    return True


def beside(op: Loop, loops: Collection[Bind]) -> Block:
    """What a loop's body computes for some of its inner loops, its accumulators aside."""
    rest = tuple(x for x in op.body.binds if x not in loops)
    return slice_of(Block(rest, ()), wanted(Block(rest, ()), loops))


def wanted(block: Block, loops: Collection[Bind]) -> list[Var]:
    """What some loops read of what a block binds."""
    read = {v for x in loops for v in free_vars(x.op.body)}  # type: ignore[union-attr]
    return [v for x in block.binds for v in x.vars if v in read]


def own_row(loop: Loop, array: Var) -> int:
    """How often a loop's body reads elements of an array's row that is the loop's own."""
    gets = [x.op for x in all_binds(loop.body) if type(x.op) is Prim and x.op.name == "get"]
    return sum(op.args[0] is array and op.args[1] is loop.index for op in gets)


def pieces(block: Block, result: Atom) -> int:
    """Of how many parts, made one by one, a result consists; 0 where these are many or there are none."""
    made = next((x.op for x in block.binds if result in x.vars), None)
    return len(made.args) if type(made) is Prim and made.name == "array" and len(made.args) <= FEW else 0


class JamRows(Rebuild):
    """Adds to the elements of a row four terms at a time: the row is read and written once for all four.

    ``(ifold (fn [row k] (ifold (fn [row j] (add-at row j (f k j))) row m)) row n)``  =>  in each of ``n // 4``
    iterations one inner loop that adds ``(f 4q j)`` .. ``(f (+ 4q 3) j)``; the iterations that are left follow; five
    are taken at once. The same with the largest or the smallest for each element: ``(update row j (max (get row j) (f k
    j)))``.
    Design decision: in the order in which they were added before, to the last bit. Where loops inside come to an
    element several times it is not that order, and done with sums of differentiation's own alone (``Bind.soft``). Of
    a loop that does more, only where little is computed twice then: what is added needs to be read, too.
    """

    def __init__(self, builder: Builder, steps: Steps, room: Room) -> None:
        super().__init__(builder)
        self.steps, self.room = steps, room

    def takes(self, bind: Bind) -> bool:
        return next(self.found(bind), None) is not None

    def found(self, bind: Bind) -> Iterator[tuple[Bind, Bind | None]]:
        """The parts of a loop that can be taken four at a time, each with the rest of it; then the whole loop."""
        op = bind.op
        if len(bind.vars) > 1 and not has_checks(op.body):  # type: ignore[union-attr]
            for group in independent(op)[0]:  # type: ignore[arg-type]
                if group[-1] < len(op.accs):  # type: ignore[union-attr]
                    left = [k for k in range(len(bind.vars)) if k not in group]
                    alone, rest = part_of(bind, group), part_of(bind, left) if left else None
                    if (rest is None or twice(bind, alone, rest) <= CHEAP) and self.same_rows(alone.op):  # type: ignore
                        yield alone, rest
        if self.same_rows(op):  # type: ignore[arg-type]
            yield bind, None

    def bind(self, bind: Bind) -> None:
        for alone, rest in self.found(bind) if type(bind.op) is Loop else ():
            if self.room.for_two(alone.op):  # type: ignore[arg-type]
                self.fours(alone, alone.op)  # type: ignore[arg-type]
                if rest is not None:
                    self.bind(rest)
                return
        self.copy(bind)

    def fours(self, bind: Bind, op: Loop) -> None:
        b, names = self.b, [v.name for v in bind.vars]
        count, state = self.atom(op.count), self.atoms(op.inits)
        if type(count) is Const and count.value == JAMMED + 1:  # the one that would be left comes along
            self.define(bind, self.terms(op, [integer(r) for r in range(count.value)], state))
            return
        blocks, left, done = in_fours(b, count)
        for count, width, first in ((blocks, JAMMED, Const(0, INT)), (left, 1, done)):
            if type(count) is Const and count.value == 0:
                continue

            def body(q: Atom, *state: Atom, width: int = width, first: Atom = first):
                start = b.prim("+", first, b.prim("*", Const(width, INT), q))
                return self.terms(op, [b.prim("+", start, Const(r, INT)) for r in range(width)], state), ()

            state = b.loop(count, state, body, names, op.index.name, [a.name for a in op.accs])
        b.span = bind.span
        self.define(bind, state)

    def terms(self, op: Loop, indices: Sequence[Atom], state: Sequence[Atom]) -> Sequence[Atom]:
        """The accumulators after the iterations ``indices``."""
        outer = self.here
        views = [{**outer, op.index: i} for i in indices]
        made = self.level(op.body, op.accs, views, state)
        self.here = outer
        return made

    def level(self, block: Block, accs: Sequence[Var], views: list[dict], state: Sequence[Atom]) -> Sequence[Atom]:
        """One loop's body of the nest for all ``views``, what the variables are in each of the iterations."""
        b = self.b
        now: dict[Atom, Atom] = dict(zip(accs, state))
        inner = next((x for x in block.binds if type(x.op) is Loop and x.op.accs), None)
        stores, rows, chosen = [], {*accs}, choices_of(block)
        for x in block.binds:
            if (x in chosen or type(x.op) is Prim and x.op.name == "add-at") and x.op.args[0] in rows:  # type: ignore
                stores.append(x)
                rows.update(x.vars)
        within = {y for x in stores if x in chosen for y in chosen[x].binds}
        rest = tuple(x for x in block.binds if x is not inner and x not in stores and x not in within)
        for k, view in enumerate(views):
            self.here = view
            self.block(Block(rest, ()))
            views[k] = self.here
        for store in stores:
            array, *place, x = store.op.args  # type: ignore[union-attr]
            self.here, b.span = views[0], store.span
            at = self.atoms(place)
            if store in chosen:
                total = b.get(now[array], *at)
                for self.here in views:
                    total = chosen[store].next(b, total, self.atom(chosen[store].term))
                now[store.vars[0]] = b.update(now[array], at, total, store.vars[0].name)
                continue
            if len(views) == 1:
                now[store.vars[0]] = b.add_at(now[array], at, self.atom(x), store.vars[0].name, store.soft)
                continue
            total = b.get(now[array], *at)
            for self.here in views:
                total = b.prim("+", total, self.atom(x))
            now[store.vars[0]] = b.update(now[array], at, total, store.vars[0].name)
        if inner is not None:
            loop: Loop = inner.op  # type: ignore[assignment]
            b.span = inner.span

            def body(j: Atom, *state: Atom):
                deeper = [{**view, loop.index: j} for view in views]
                return self.level(loop.body, loop.accs, deeper, state), ()

            self.here = views[0]
            starts = [now[z] for z in loop.inits]
            names = [a.name for a in loop.accs]
            made = b.loop(self.atom(loop.count), starts, body, [v.name for v in inner.vars], loop.index.name, names)
            now.update(zip(inner.vars, made))
        return [now[r] for r in block.results]

    def same_rows(self, op: Loop) -> bool:
        """Whether a loop's iterations do nothing but add to the same elements, in loops inside."""
        if not op.accs or len(op.body.results) > len(op.accs) or op.index.soft:
            return False
        few = type(op.count) is Const and op.count.value < 2 or self.steps.few(op.count, JAMMED - 1)
        if few or not any(type(x.op) is Loop for x in op.body.binds):
            return False
        return self.adds(op.body, op.accs, op, {op.index, *op.accs, *defined_in(op.body)})

    def adds(self, block: Block, accs: Sequence[Var], op: Loop, inside: set[Var], around: Sequence[Loop] = ()) -> bool:
        now: list[Atom] = list(accs)
        held: set[Atom] = {*accs}
        places: list[list[Sequence[Atom]]] = [[] for _ in accs]
        loops = [x for x in block.binds if type(x.op) is Loop and x.op.accs]
        if len(loops) > 1 or cost_of(block) > JAMMED_COST:
            return False
        chosen = choices_of(block)
        within = {x for choice in chosen.values() for x in choice.binds}
        for bind in block.binds:
            inner = bind.op
            if bind in within:  # seen where the row is changed
                continue
            if type(inner) is Loop and not inner.accs:  # a table of its own
                if not plain(inner.body) or not held.isdisjoint(reads(bind)):
                    return False
            elif type(inner) is Loop:
                if short_row(inner):
                    return False
                fits = list(inner.inits) == now and len(inner.body.results) == len(inner.accs)
                often = self.steps.step(inner.count, op.index, inside) == 0
                if not fits or not often or not self.adds(inner.body, inner.accs, op, inside, (*around, inner)):
                    return False
                now = list(bind.vars)
            elif (
                type(inner) is Prim
                and (bind in chosen or inner.name == "add-at")
                and inner.args[0] in now
                and not loops
            ):
                array, *place, x = inner.args
                x = chosen[bind].term if bind in chosen else x
                moves = any(self.steps.step(s, op.index, inside) != 0 for s in place)
                if moves or type_of(x) != REAL or any(a in held for a in (*place, x)):
                    return False
                any_order = bind.soft and bind not in chosen
                if not any_order and not self.once(place, [loop.index for loop in around], inside):
                    return False
                k = now.index(array)
                if not all(apart(place, p) for p in places[k]):  # or their terms would come in another order
                    return False
                places[k].append(place)
                now[k] = bind.vars[0]
                held.update(bind.vars)
            elif type(inner) is not Prim or not isinstance(bind.vars[0].type, Scalar):
                return False
            elif any(a in held for a in inner.args):
                return False
        return list(block.results) == now

    def once(self, place: Sequence[Atom], indices: Sequence[Var], inside: set[Var]) -> bool:
        """Whether some loops come to each element once: each has a subscript of its own."""
        for i in indices:
            steps = [[self.steps.step(s, j, inside) for j in (i, *(j for j in indices if j is not i))] for s in place]
            if not any(own and not any(other != 0 for other in others) for own, *others in steps):
                return False
        return True


def short_row(op: Loop) -> bool:
    """Whether a loop chooses for the elements of a row that is known to be short: as one vector it is in a register."""
    return type(op.count) is Const and op.count.value <= FEW and bool(choices_of(op.body))


@dataclass(frozen=True)
class Choice:
    """An element of a row that becomes the larger or the smaller of itself and ``term``: what reads it and compares."""

    read: Bind
    compared: Bind
    term: Atom

    @property
    def binds(self) -> tuple[Bind, Bind]:
        return self.read, self.compared

    def next(self, b: Builder, before: Atom, term: Atom) -> Atom:
        """The element after one term, which stands where it stood."""
        op: Prim = self.compared.op  # type: ignore[assignment]
        first = op.args[0] is self.read.vars[0]
        return b.prim(op.name, *((before, term) if first else (term, before)))


def as_additions(block: Block) -> Block:
    """A block in which folds that make each element of a state of the same one and a term add to it; itself where there
    are none.

    ``(ifold (fn [s k] (build m (fn [j] (+ (get s j) (f k j))))) z n)``  =>
    ``(ifold (fn [s k] (ifold (fn [s j] (add-at s j (f k j))) s m)) z n)``.
    """
    if Loop not in kinds_of(block):
        return block
    binds = []
    for x in block.binds:
        op = x.op
        if regions := blocks_of(op):
            made = [as_additions(r) for r in regions]
            if type(op) is Loop:
                made = [added_to(op, made[0])]
            if any(r is not s for r, s in zip(made, regions)):
                x = Bind(x.vars, with_blocks(op, made), x.span, x.soft)
        binds.append(x)
    return block if all(x is y for x, y in zip(binds, block.binds)) else Block(tuple(binds), block.results)


def added_to(op: Loop, body: Block) -> Block:
    """The body of a fold over one state, if it is nothing but a loop that adds to each of its elements, as that."""
    if len(op.accs) != 1 or len(body.results) != 1 or len(body.binds) != 1 or op.snapshots is not None:
        return body
    (acc,), (bind,) = op.accs, body.binds
    loop = bind.op
    if type(loop) is not Loop or loop.accs or bind.vars != body.results or acc.type != bind.vars[0].type:
        return body
    if loop.count is not acc.type.dims[0] or acc.type.rank != 1 or not plain(loop.body):  # type: ignore[union-attr]
        return body
    made = {x.vars[0]: x.op for x in loop.body.binds if type(x.op) is Prim}
    total = made.get(loop.body.results[0])  # type: ignore[call-overload]
    if total is None or total.name != "+" or count_uses(loop.body, acc) != 1:
        return body
    for own, term in (total.args, total.args[::-1]):
        read = made.get(own)  # type: ignore[call-overload]
        if read is not None and read.name == "get" and read.args == (acc, loop.index):
            if count_uses(loop.body, own) == 1 and count_uses(loop.body, loop.body.results[0]) == 1:  # type: ignore
                row, after = Var(acc.name, acc.type, acc.span), Var(acc.name, acc.type, acc.span)
                kept = tuple(x for x in loop.body.binds if own not in x.vars and loop.body.results[0] not in x.vars)
                change = Bind((after,), Prim("add-at", (row, loop.index, term)), loop.body.binds[-1].span)
                adds = Loop(loop.count, loop.index, (acc,), (row,), Block((*kept, change), (after,)))
                return Block((Bind(bind.vars, adds, bind.span, bind.soft),), body.results)
    return body


def choices_of(block: Block) -> dict[Bind, Choice]:
    """The changes of a block's arrays of which each makes an element the larger or smaller one of itself and a number,
    and nothing else reads what it was."""
    made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim}
    found = {}
    for x in made.values():
        if x.op.name != "update":  # type: ignore[union-attr]
            continue
        array, *place, value = x.op.args  # type: ignore[union-attr]
        compared = made.get(value)  # type: ignore[call-overload]
        if compared is None or compared.op.name not in ("max", "min") or compared.vars[0].type != REAL:  # type: ignore
            continue
        for k, a in enumerate(compared.op.args):  # type: ignore[union-attr]
            read = made.get(a)  # type: ignore[call-overload]
            if read is None or read.op.name != "get" or not same_atoms(read.op.args, (array, *place)):  # type: ignore
                continue
            if count_uses(block, a) == 1 and count_uses(block, compared.vars[0]) == 1:  # type: ignore[arg-type]
                found[x] = Choice(read, compared, compared.op.args[1 - k])  # type: ignore[union-attr]
                break
    return found


def apart(one: Sequence[Atom], other: Sequence[Atom]) -> bool:
    """Whether two places of an array are known to be two: by different numbers along an axis."""
    return any(type(a) is type(b) is Const and 0 <= a.value != b.value >= 0 for a, b in zip(one, other))


def plain(block: Block) -> bool:
    """Whether a block is nothing but numbers, arrays, branches and loops."""
    return all(type(bind.op) in (Prim, If, Loop) for bind in all_binds(block))


def quick(block: Block) -> bool:
    """Whether a block is a few operations that are done again as soon as they are looked up."""
    small = all(type(x.op) is Prim and (isinstance(x.vars[0].type, Scalar) or x.op.name == "get") for x in block.binds)
    return small and cost_of(block) <= CHEAP


def unchecked(block: Block) -> Block:
    """A block without its checks: where it has run before."""
    binds = (
        Bind(x.vars, with_blocks(x.op, [unchecked(r) for r in blocks_of(x.op)]), x.span) if blocks_of(x.op) else x
        for x in block.binds
        if type(x.op) is not Check
    )
    return Block(tuple(binds), block.results)


def additions(block: Block, acc: Var, result: Atom) -> list[tuple[Atom, ...]] | None:
    """The subscripts of the elements that a block adds to in an array; None where it does anything else with it."""
    places: list[tuple[Atom, ...]] = []
    at: Atom = acc
    for bind in block.binds:
        op = bind.op
        used = sum(a is at for a in atoms_of(op))
        if not used:
            if any(at in free_vars(region) for region in blocks_of(op)):
                return None
            continue
        if used > 1:
            return None
        if type(op) is Prim and op.name == "add-at" and op.args[0] is at and isinstance(type_of(op.args[-1]), Scalar):
            places.append(op.args[1:-1])
            at = bind.vars[0]
        elif type(op) is Loop and at in op.inits and at is not op.count and at not in free_vars(op.body):
            k = op.inits.index(at)
            inner = additions(op.body, op.accs[k], op.body.results[k])
            if inner is None:
                return None
            places += inner
            at = bind.vars[k]
        else:
            return None
    return places if at is result else None


def lifted(block: Block, acc: Var, k: int, index: Var, t: Arr) -> tuple[Block, Var] | None:
    """A block in which the number ``acc``, to which it adds to get its result ``k``, is element ``index`` of an array;
    None where it does anything else with it."""
    result = block.results[k]
    at = next((n for n, x in enumerate(block.binds) if result in x.vars), None)
    if at is None or count_uses(block, acc) != 1 or count_uses(block, result) != 1:  # type: ignore[arg-type]
        return None
    bind, array = block.binds[at], Var(acc.name, t, acc.span, acc.given)
    op, j = bind.op, bind.vars.index(result)  # type: ignore[arg-type]
    changed = Var(bind.vars[j].name, t, bind.span)
    if type(op) is Prim and op.name == "+" and acc in op.args:
        x = op.args[op.args[0] is acc]
        bind = Bind((changed,), Prim("add-at", (array, index, x)), bind.span, bind.soft)
    elif type(op) is Loop and j < len(op.accs) and op.inits[j] is acc:
        found = lifted(op.body, op.accs[j], j, index, t)
        if found is None:
            return None
        body, inner = found
        inits, accs = (*op.inits[:j], array, *op.inits[j + 1 :]), (*op.accs[:j], inner, *op.accs[j + 1 :])
        vars = (*bind.vars[:j], changed, *bind.vars[j + 1 :])
        bind = Bind(vars, Loop(op.count, op.index, inits, accs, body), bind.span)
    else:
        return None
    results = (*block.results[:k], changed, *block.results[k + 1 :])
    return Block((*block.binds[:at], bind, *block.binds[at + 1 :]), results), array


def innermost(
    around: tuple[Var, ...], accs: Sequence[Var], block: Block
) -> Iterator[tuple[tuple[Var, ...], Sequence[Var], Block]]:
    """The innermost loops of a loop's body, itself where it has none: the indices around, accumulators, body."""
    inner = [bind.op for bind in block.binds if type(bind.op) is Loop]
    if not inner:
        yield around, accs, block
    for op in inner:
        yield from innermost((*around, op.index), op.accs, op.body)


def accesses(block: Block) -> Iterator[tuple[Atom, tuple[Atom, ...], bool]]:
    """The arrays of which a block reads elements, with which subscripts, and whether it changes them."""
    was: dict[Atom, Atom] = {}  # what an array was before the block changed it
    for bind in all_binds(block):
        op = bind.op
        if type(op) is Prim and op.name == "get" and isinstance(bind.vars[0].type, Scalar):
            yield was.get(op.args[0], op.args[0]), op.args[1:], False
        elif type(op) is Prim and op.name in ("update", "add-at"):
            array = was[bind.vars[0]] = was.get(op.args[0], op.args[0])
            yield array, op.args[1:-1], True


def row_of_few(array: Atom, subscripts: Sequence[Atom]) -> tuple[Atom, ...] | None:
    """An array and the subscripts of a row of it, or of a matrix in it, of known and small size, an element of which
    these subscripts have."""
    dims = type_of(array).dims  # type: ignore[union-attr]
    k = len(subscripts)
    while k > 0 and k == len(dims[:k]) and type(subscripts[k - 1]) is Const and type(dims[k - 1]) is Const:
        k -= 1
    size = math.prod(d.value for d in dims[k:] if type(d) is Const)
    return (array, *subscripts[:k]) if 0 < k < len(dims) and len(subscripts) == len(dims) and size <= SHORT else None


def twice(whole: Bind, *parts: Bind) -> int:
    """What the innermost iterations of a nest's parts do more than those of the nest, in additions."""

    def cost(bind: Bind) -> int:
        loops = [x.op for x in (bind, *all_binds(bind.op.body)) if type(x.op) is Loop]  # type: ignore[union-attr]
        return sum(cost_of(x.body) for x in loops if Loop not in kinds_of(x.body))

    return sum(map(cost, parts)) - cost(whole)


def part_of(bind: Bind, kept: Sequence[int]) -> Bind:
    """A loop with some of its results only."""
    op: Loop = bind.op  # type: ignore[assignment]
    accs = [k for k in kept if k < len(op.accs)]
    body = slice_of(op.body, [op.body.results[k] for k in kept])
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), body)
    return Bind(tuple(bind.vars[k] for k in kept), loop, bind.span)


#: Of each element what adds to it first, the accumulator, and what that is by now.
Sums = dict[tuple, tuple[Bind, Var, Atom]]


class Register(Rebuild):
    """What a loop adds to one element of an array is added up first.

    ``(ifold (fn [a j] (add-at a k (f j))) a n)``  =>  ``(add-at a k (ifold (fn [s j] (+ s (f j))) 0.0 n))``. What it
    adds to others meanwhile it adds in the loop. With ``arms`` so it is with what a branch of an iteration adds, if the
    element is there whether it is taken or not.
    Design decision: what is differentiation's own (``Bind.soft``) may be taken in any order. A sum of the user's goes
    on from what is in the element: ``(update a k (ifold (fn [s j] (+ s (f j))) (get a k) n))``.
    """

    def __init__(self, builder: Builder, steps: Steps, arms: bool = False) -> None:
        super().__init__(builder)
        self.steps, self.arms = steps, arms

    def takes(self, bind: Bind) -> bool:
        op: Loop = bind.op  # type: ignore[assignment]
        inside = {op.index, *op.accs, *defined_in(op.body)}
        return any(self.additions(op, k, inside) for k in range(len(op.accs)))

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        inside, width = {op.index, *op.accs, *defined_in(op.body)}, len(op.accs)
        chosen = {x: k for k in range(width) for x in self.stores(op, k, inside)}
        if not chosen:
            return super().loop(op, bind)
        sums: Sums = {}
        table: dict[Var, Atom] = {}
        body: list[Bind] = []
        for x in op.body.binds:
            arms = blocks_of(x.op) if type(x.op) is If else ()
            inner_stores = [y for arm in arms for y in arm.binds if y in chosen]
            for y in [x] if x in chosen else inner_stores:
                k, place = chosen[y], y.op.args[1:-1]  # type: ignore[union-attr]
                start = Var(op.accs[k].name, REAL, op.accs[k].span)
                sums.setdefault((k, *place), (y, start, start))
            if inner_stores:
                body.append(self.in_arms(x, chosen, sums))
            elif x in chosen:
                body += self.summed([x], chosen, sums, table)
            else:
                body.append(x)
        inner = substitute(Block(tuple(body), op.body.results), table)
        starts = [ZERO if x.soft else self.element(op, *place) for place, (x, _, _) in sums.items()]
        results = (*inner.results[:width], *(total for _, _, total in sums.values()), *inner.results[width:])
        accs = (*op.accs, *(acc for _, acc, _ in sums.values()))
        loop = Loop(op.count, op.index, (*op.inits, *starts), accs, Block(inner.binds, results))
        names = (*bind.vars[:width], *(acc for _, acc, _ in sums.values()), *bind.vars[width:])
        out = list(super().loop(loop, Bind(names, loop, bind.span)))
        made, totals = [*out[:width], *out[width + len(sums) :]], out[width : width + len(sums)]
        for ((k, *place), (x, _, _)), total in zip(sums.items(), totals):
            if x.soft:
                made[k] = self.added(op, made[k], place, total, op.accs[k].name)
            else:
                made[k] = self.b.update(made[k], self.atoms(place), total, op.accs[k].name)
        return made

    def summed(self, binds: Sequence[Bind], chosen: dict[Bind, int], sums: Sums, table: dict[Var, Atom]) -> list[Bind]:
        """Bindings with sums in place of chosen additions; ``table`` gets what the arrays are then."""
        made = []
        for x in binds:
            if x not in chosen:
                made.append(x)
                continue
            array, *place, term = x.op.args  # type: ignore[union-attr]
            first, acc, so_far = sums[(chosen[x], *place)]
            total = Var("s", REAL, x.span)
            made.append(Bind((total,), Prim("+", (so_far, term)), x.span, x.soft))
            sums[(chosen[x], *place)] = first, acc, total
            table[x.vars[0]] = table.get(array, array)  # type: ignore[call-overload]
        return made

    def in_arms(self, x: Bind, chosen: dict[Bind, int], sums: Sums) -> Bind:
        """A branch that gives the sums of elements in place of additions to them."""
        arms = blocks_of(x.op)
        stores = [y for arm in arms for y in arm.binds if y in chosen]
        keys = list(dict.fromkeys((chosen[y], *y.op.args[1:-1]) for y in stores))  # type: ignore[union-attr]
        before, made = {key: sums[key] for key in keys}, []
        for arm in arms:
            sums.update(before)
            table: dict[Var, Atom] = {}
            binds = self.summed(arm.binds, chosen, sums, table)
            made.append(substitute(Block(tuple(binds), (*arm.results, *(sums[key][-1] for key in keys))), table))
        outs = [Var("s", REAL, x.span) for _ in keys]
        for key, out in zip(keys, outs):
            first, acc, _ = before[key]
            sums[key] = first, acc, out
        return Bind((*x.vars, *outs), with_blocks(x.op, made), x.span, x.soft)

    def element(self, op: Loop, k: int, *place: Atom) -> Var:
        """What an element is before the loop, as a variable of the old program."""
        self.block(slice_of(unchecked(op.body), place))
        was = Var(op.accs[k].name, REAL, op.accs[k].span)
        self.here[was] = self.b.get(self.atom(op.inits[k]), *self.atoms(place), hint=was.name)
        return was

    def added(self, op: Loop, array: Atom, place: Sequence[Atom], total: Atom, name: str) -> Atom:
        """The sum added to its element, which may not be there where the loop was not entered."""
        b, subscripts = self.b, slice_of(unchecked(op.body), place)

        def add() -> Atom:
            self.block(subscripts)
            return b.add_at(array, self.atoms(place), total, name, True)

        if self.there(op, array, place):
            return add()
        entered = b.prim("<", integer(0), self.atom(op.count))
        with b.branch_region(entered, True) as then:
            made = add()
        with b.branch_region(entered, False) as orelse:
            pass
        return b.if_(entered, (then, [made]), (orelse, [array]), [name])[0]

    def there(self, op: Loop, array: Atom, place: Sequence[Atom]) -> bool:
        """Whether an element is there even where the loop is not entered."""
        b = self.b
        with b.region() as trial:  # what is made in it is dropped
            self.block(slice_of(unchecked(op.body), place))
            return b.in_range(array, self.atoms(place)) and all(b.bind_in_range(x.op) for x in trial.binds)

    def stores(self, op: Loop, k: int, inside: set[Var]) -> list[Bind]:
        """``additions``; those of the user's only where the element is there even where the loop is not entered."""
        found = self.additions(op, k, inside)
        if not found or found[0].soft:
            own = {id(x) for x in op.body.binds}
            init = self.atom(op.inits[k])
            return [x for x in found if id(x) in own or self.there(op, init, x.op.args[1:-1])]  # type: ignore[union-attr]
        place = found[0].op.args[1:-1]  # type: ignore[union-attr]
        return found if self.there(op, self.atom(op.inits[k]), place) else []

    def additions(self, op: Loop, k: int, inside: set[Var]) -> list[Bind]:
        """The additions to one element each, where all that a loop does with an array is to add to elements; those of
        the user's only where nothing else is added to. Of one iteration at most there is no sum."""
        if self.steps.few(op.count, 1):
            return []
        if not isinstance(op.accs[k].type, Arr):
            return []
        stores = self.chain(op.body, op.accs[k], op.body.results[k])
        if stores is None:
            return []
        arms = [arm for x in op.body.binds if type(x.op) is If for arm in blocks_of(x.op)]
        near = {id(x) for block in (op.body, *arms) for x in block.binds}
        deeper = {v for arm in arms for v in defined_in(arm)}
        found = []
        for x in stores:
            *place, term = x.op.args[1:]  # type: ignore[union-attr]
            if type_of(term) == REAL and not any(self.steps.step(s, op.index, inside) != 0 for s in place):
                if id(x) in near and deeper.isdisjoint(place):
                    found.append(x)
        if all(x.soft for x in stores):
            return found
        places = {x.op.args[1:-1] for x in stores}  # type: ignore[union-attr]
        alone = len(places) == 1 and len(found) == len(stores) and not any(x.soft for x in stores)
        return found if alone and all(x in op.body.binds for x in found) else []

    def chain(self, block: Block, at: Atom, end: Atom) -> list[Bind] | None:
        """The additions that make of one array another one in a block, in branches too; None if it is made in another
        way, or read in between."""
        stores: list[Bind] = []
        while at is not end:
            readers = [x for x in block.binds if at in reads(x)]
            if len(readers) != 1:
                return None
            (x,) = readers
            if type(x.op) is Prim and x.op.name == "add-at" and x.op.args[0] is at and count_uses(block, at) == 1:
                stores.append(x)
                at = x.vars[0]
                continue
            if not self.arms or type(x.op) is not If or at in block.results:
                return None
            pairs = zip(x.op.then.results, x.op.orelse.results)
            ways = [[self.chain(arm, at, r) for arm, r in zip(blocks_of(x.op), pair)] for pair in pairs]
            following = [v for v, way in zip(x.vars, ways) if None not in way]
            if len(following) != 1:
                return None
            stores += (y for way in ways if None not in way for arm in way for y in arm)
            at = following[0]
        return stores if count_uses(block, end) == 1 else None
