"""Sums over windows that overlap, by rows: what a row gives is computed once for all windows that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

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
    Var,
    all_binds,
    defined_in,
    integer,
    kinds_of,
    reads,
    substitute,
    type_of,
    with_body,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.counts import ASSUMED, work
from ..program.dead import dead_code, tidy
from ..program.loops import loops_in
from ..program.rebuild import Rebuild
from .fusion import Fuse
from .tables import affine_of

#: A table has so many axes at most beside the one along which windows overlap.
AXES = 2
#: The sum of so many rows is written out.
FEW = 8
#: What makes affine integers of affine integers.
WHOLE = ("+", "-", "*", "neg")


def windows(program: Program) -> Program:
    """Computes what a row of a window gives once for all windows that have it (separable filters).

    ``(build [m m] (fn [i j] (sum (build [5 5] (fn [k l] (f (+ i k) (+ j l)))))))``  =>
    ``t = (build [(+ m 4) m] (fn [i j] (sum (build 5 (fn [l] (f i (+ j l)))))))``, then
    ``(build [m m] (fn [i j] (sum (build 5 (fn [k] (get t (+ i k) j))))))``.
    Design decision: to the last bit, since a row is summed before the rows are, as it is written; sums that go on from
    row to row are left. Where that saves a third of the work: windows of three rows of plain numbers are left, too.
    """
    made = windows_block(Builder(), program.body, program.dims)
    return program if made is program.body else dead_code(with_body(program, made))


def windows_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``windows`` for a block under construction. Design decision: also before a block is differentiated, where the
    adjoint of a sum by rows is one, too."""
    b.sizes.update(sizes)
    for _ in range(1 + AXES):  # the rows of planes, when these are the rows of blocks
        if "windows" in b.off or not any(type(x.op) is Loop and overlapping(x.op) for x in all_binds(block)):
            break
        pass_ = Windows(b)
        made = tidy(pass_.remade(block))
        if not pass_.found:
            break
        block = made
    return block


@dataclass(frozen=True)
class Row:
    """A number that a nest of loops computes of the indices ``axes`` and of a sum of other ones: of ``unit``'s index,
    and as often as ``steps`` says of those of others. ``binds`` compute it."""

    binds: tuple[Bind, ...]
    axes: tuple[Loop, ...]
    unit: Loop
    steps: dict[Loop, int]

    @property
    def var(self) -> Var:
        return self.binds[-1].vars[0]

    @property
    def body(self) -> Block:
        return Block(self.binds, (self.var,))

    def pays(self) -> bool:
        """Whether a table of it saves a third of the work."""
        calls = times(self.unit) * prod(map(times, self.steps))
        values = times(self.unit) + sum(abs(k) * (times(loop) - 1) for loop, k in self.steps.items())
        cost = work(self.body)
        return calls * cost - values * (cost + 1) - calls >= calls * cost / 3

    def place(self) -> Callable[[Atom], Affine | None]:
        """A function that gives an integer of its as a sum of indices and of what is the same in the whole nest."""
        integers = {x.vars[0]: x.op for x in all_binds(self.body) if type(x.op) is Prim and x.vars[0].type == INT}
        own = {loop.index for loop in loops_in(self.body)}
        return lambda a: affine_of(a, integers, defined_in(self.body), own)

    def integers(self) -> list[Affine] | None:
        """The sums of indices that it is made of."""
        place, found = self.place(), []
        made = {v: x.op for x in all_binds(self.body) for v in x.vars if v.type == INT}
        whole = {v for v, op in made.items() if type(op) is Prim and op.name in WHOLE}
        todo: list[Atom] = []
        for x in all_binds(self.body):
            if type(x.op) is Loop:
                todo.append(x.op.count)
            elif type(x.op) is Prim:
                todo += [] if x.vars[0] in whole else [a for a in x.op.args if type_of(a) == INT]
            else:
                return None
        while todo:
            a = todo.pop()
            affine = place(a)
            if affine is not None:
                found.append(affine)
            elif a in whole:
                todo += made[a].args  # type: ignore[union-attr, index]
        return found


def times(loop: Loop) -> float:
    """How often a loop runs, as far as that is known."""
    return float(loop.count.value) if type(loop.count) is Const else ASSUMED


class Windows(Rebuild):
    """``windows`` for a block. ``tables``: for a number that is read from one, the table, its place along the sum, and
    the other subscripts."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.tables: dict[Var, tuple[Atom, Affine, list[Atom]]] = {}
        self.short: set[Loop] = set()  # folds over few rows
        self.found = False

    def bind(self, bind: Bind) -> None:
        if bind.vars and bind.vars[0] in self.tables:
            table, place, others = self.tables[bind.vars[0]]
            index = self.b.affine_value(self.moved(place))
            self.here[bind.vars[0]] = self.b.get(table, index, *self.atoms(others), hint=bind.vars[0].name)
            return
        if type(bind.op) is Loop and bind.op in self.short:
            self.written_out(bind, bind.op)
            return
        fused = self.by_elements(bind) if type(bind.op) is Loop and overlapping(bind.op) else None
        rows = {x: rows_of(x.op) for x in fused.binds if type(x.op) is Loop} if fused is not None else {}
        if fused is None or not any(rows.values()):
            self.copy(bind)
            return
        self.found = True
        self.b.fired("windows")
        soft = self.b.soft
        for x in fused.binds:
            for row in rows.get(x, ()):
                self.tabulate(row)
            self.line(x)
        self.b.soft = soft
        self.define(bind, self.atoms(fused.results))

    def by_elements(self, bind: Bind) -> Block:
        """A loop as a block of the new program, with what it makes put where its elements are read."""
        here = substitute(Block((bind,), bind.vars), {v: a for v, a in self.here.items() if v is not a})
        return tidy(Fuse(self.b, here).remade(here))

    def written_out(self, bind: Bind, op: Loop) -> None:
        """A fold over the few rows of a window: each row is one number to read."""
        state = self.atoms(op.inits)
        for i in range(op.count.value):  # type: ignore[union-attr]
            self.here[op.index] = integer(i)
            self.here.update(zip(op.accs, state))
            state = self.block(op.body)
        self.define(bind, state)

    def tabulate(self, row: Row) -> None:
        """Emits the table of what a row gives: for each value of the sum of indices, from the least on, and each of the
        other indices."""
        b = self.b
        low, size = self.extent(row)
        self.here.update((loop.index, integer(0)) for loop in row.steps)
        names = [row.var.name]

        def along(axes: Sequence[Loop]) -> Atom:
            if not axes:
                for x in row.binds:
                    self.line(x)
                return self.here.pop(row.var)

            def body(i: Atom):
                self.here[axes[0].index] = i
                return (), [along(axes[1:])]

            (made,) = b.loop(self.atom(axes[0].count), (), body, names, axes[0].index.name)
            return made

        def body(q: Atom):
            self.here[row.unit.index] = b.affine_value(affine_add(low, b.affine(q)))
            return (), [along(row.axes)]

        (table,) = b.loop(size, (), body, names, row.unit.index.name)
        place: Affine = (0, {row.unit.index: 1, **{loop.index: step for loop, step in row.steps.items()}})
        self.short.update(loop for loop in row.steps if few(loop))
        self.tables[row.var] = table, affine_add(place, low, -1), [loop.index for loop in row.axes]

    def extent(self, row: Row) -> tuple[Affine, Atom]:
        """The least value of the sum, and how many there are; none where there is no window, if what a row reads is not
        known to be there then."""
        b = self.b
        low, length = (0, {}), b.affine(self.atom(row.unit.count))
        for loop, step in row.steps.items():
            last = affine_add(b.affine(self.atom(loop.count)), (1, {}), -1)
            low, length = affine_add(low, last, min(step, 0)), affine_add(length, last, abs(step))
        size = b.trips(b.affine_value(length))
        if not self.there(row, low, affine_add(affine_add(low, length), (1, {}), -1)):
            for loop in (row.unit, *row.steps):
                if not runs(loop):
                    size = b.prim("*", size, b.prim("min", b.trips(self.atom(loop.count)), integer(1)))
        return low, size

    def there(self, row: Row, low: Affine, high: Affine) -> bool:
        """Whether the elements that a row reads are there for all values of the sum from ``low`` to ``high``."""
        b, places = self.b, row.place()
        loops = {loop.index: loop for loop in (*row.axes, *loops_in(row.body))}
        moving = {loop.index for loop in row.steps}
        for x in all_binds(row.body):
            if type(x.op) is not Prim or x.op.name != "get":
                continue
            array, *subscripts = x.op.args
            for a, size in zip(subscripts, type_of(self.atom(array)).dims):  # type: ignore[union-attr]
                place = places(a)
                if place is None:
                    return False
                for sign in (-1, 1):
                    end: Affine = (place[0], {})
                    for v, k in place[1].items():
                        if v is row.unit.index:
                            end = affine_add(end, high if k * sign > 0 else low, k)
                        elif v in loops and k * sign > 0:
                            last = affine_add(b.affine(self.atom(loops[v].count)), (1, {}), -1)
                            end = affine_add(end, last, k)
                        elif v not in loops and v not in moving:
                            end = affine_add(end, b.affine(self.atom(v)), k)
                    above = end if sign < 0 else affine_add(affine_add(b.affine(size), end, -1), (1, {}), -1)
                    if not b.nonnegative(above):
                        return False
        return True


def overlapping(op: Loop) -> bool:
    """Whether a sum of a loop's index and that of a loop inside is there, and there are loops in loops inside."""
    loops = loops_in(op.body)
    if op.snapshots is not None or op.index.soft or not any(Loop in kinds_of(x.body) for x in loops):
        return False
    inside = {op.index, *defined_in(op.body)}
    integers = {x.vars[0]: x.op for x in all_binds(op.body) if type(x.op) is Prim and x.vars[0].type == INT}
    inner = {x.index for x in loops}
    sums = (affine_of(v, integers, inside, {op.index, *inner}) for v in integers)
    return any(a is not None and op.index in a[1] and not inner.isdisjoint(a[1]) for a in sums)


def rows_of(op: Loop) -> list[Row]:
    """The rows of windows in a nest of loops, of which the outermost has an index that takes part in the sum."""
    made = {v: x for x in all_binds(op.body) for v in x.vars}
    return [row for x, path in folds(op.body, (op,)) if (row := row_of(x, path, made)) is not None and row.pays()]


def folds(block: Block, path: tuple[Loop, ...]) -> Iterator[tuple[Bind, tuple[Loop, ...]]]:
    """The folds that give a number, in a nest of loops without branches, and the loops around each; outer before
    inner."""
    for x in block.binds:
        if type(x.op) is Loop and x.op.snapshots is None and not x.op.index.soft:
            if len(path) > 1 and len(x.op.accs) == len(x.vars) == 1 and x.vars[0].type == REAL:
                yield x, path
            yield from folds(x.op.body, (*path, x.op))


def row_of(bind: Bind, path: tuple[Loop, ...], made: Mapping[Var, Bind]) -> Row | None:
    """A fold as a row of windows, if there are more of these than values that it has."""
    needed = {bind: None}
    todo: list[Atom] = list(reads(bind))
    accs = {a for loop in path for a in loop.accs}
    while todo:
        a = todo.pop()
        x = made.get(a)  # type: ignore[call-overload]
        if a in accs or x is not None and (type(x.op) is not Prim or isinstance(type_of(a), Arr)):
            return None
        if x is not None and x not in needed:
            needed[x] = None
            todo += reads(x)
    inside = {*made, *(loop.index for loop in path)}
    if any(loop.count in inside for loop in path):
        return None
    binds = tuple(x for x in dict.fromkeys(made.values()) if x in needed)
    found = Row(binds, (), path[0], {})
    places = found.integers()
    if places is None:
        return None
    often = {loop: tuple(place[1].get(loop.index, 0) for place in places) for loop in path}
    if not any(often[path[0]]):
        return None
    moving = [loop for loop in path if any(often[loop]) and parallel(often[loop], often[path[0]])]
    unit = next((x for x in moving if all(multiple(often[y], often[x]) for y in moving)), None)
    axes = tuple(x for x in path if x not in moving and (any(often[x]) or not runs(x)))
    if unit is None or len(moving) < 2 or not all(any(often[x]) for x in axes) or len(axes) > AXES:
        return None
    return Row(binds, axes, unit, {x: multiple(often[x], often[unit]) for x in moving if x is not unit})


def few(loop: Loop) -> bool:
    """Whether a loop is a fold over few rows, and stacks nothing."""
    return runs(loop) and loop.count.value <= FEW and len(loop.body.results) == len(loop.accs)  # type: ignore


def runs(loop: Loop) -> bool:
    """Whether a loop is known to run."""
    return type(loop.count) is Const and loop.count.value > 0


def parallel(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether one of two vectors, of which the second is not zero, is a multiple of the other."""
    return all(x * v == y * u for x, y in zip(a, b) for u, v in zip(a, b))


def multiple(a: Sequence[int], b: Sequence[int]) -> int:
    """How many times ``b`` a vector of integers that is parallel to it is; 0 where that is no integer."""
    x, y = next((x, y) for x, y in zip(a, b) if y)
    return x // y if x % y == 0 else 0
