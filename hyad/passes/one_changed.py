"""Arrays that are built anew with one element changed, or one row, column or diagonal: changed in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core import (
    FALSE,
    INT,
    TRUE,
    Apply,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    defined_in,
    integer,
    reads,
    same,
    type_of,
    with_body,
)
from ..program.affine import Affine, affine_add, affine_in, negated, with_factors
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks, tidy
from ..program.loops import slice_of
from ..program.rebuild import Rebuild


def one_changed(program: Program) -> Program:
    """Changes an array where a build keeps all of its elements but one, or a row, a column or a diagonal.

    ``(build n (fn [i] (if (= i k) (f i) (get a i))))``  =>  ``(update a k (f k))``;
    ``(build [n m] (fn [i j] (if (= j k) (f i) (get a i j))))``  =>  ``c``, ``(f i)`` for all ``i``, then
    ``(ifold (fn [a i] (update a i k (get c i))) a n)``; unchanged where there is no such element.
    So it is where j is to be ``(+ i k)``, for the rows that have such an element: tables by the length of spans.
    A matrix that each step gives a new column is filled in the time of its elements, and is not made anew in each.
    """
    made = one_changed_block(Builder(), program.body, program.dims, ahead=False)
    return program if made is program.body else dead_code(with_body(program, made))


def one_changed_block(b: Builder, block: Block, sizes: Sequence[Var] = (), ahead: bool = True) -> Block:
    """``one_changed`` for a block under construction: before it is differentiated, so that derivatives do no more.
    ``ahead``: the new elements are in an array of their own first, or else reverse mode would remember the whole array
    before each of them."""
    if "one-changed" in b.off:
        return block
    found = {x: change for x in all_binds(block) if (change := changed(x)) is not None}
    if not found:
        return block
    b.sizes.update(sizes)
    return tidy(OneChanged(b, found, ahead).remade(block))


@dataclass(frozen=True, eq=False)
class Change:
    """``array`` keeps all elements but those at the subscripts ``at``, by the index of a loop of ``path``; these are
    the result of the last of ``bodies``, one for each of the loops. ``made`` has the operations in them. A ``line``
    says that they lie on a diagonal."""

    array: Var
    path: tuple[Loop, ...]
    at: dict[Var, Atom]
    bodies: tuple[Block, ...]
    made: Mapping[Atom, Prim]
    line: Line | None = None


class Line(NamedTuple):
    """A diagonal: the subscript ``j`` is ``i`` or its negative, as ``sign`` says, and ``offset``, which is the same for
    all."""

    i: Var
    j: Var
    sign: int
    offset: Affine


def changed(bind: Bind) -> Change | None:
    """What a build changes of an array, if it keeps all else."""
    path: list[Loop] = []
    bodies: list[Block] = []
    op, inside = bind.op, set()
    while type(op) is Loop and not op.accs and len(op.body.results) == 1 and op.snapshots is None:
        path.append(op)
        inside |= {op.index, *defined_in(op.body)}
        last = next((x for x in op.body.binds if op.body.results[0] in x.vars), None)
        if last is None or has_checks(Block(tuple(x for x in op.body.binds if x is not last), ())):
            return None
        if type(last.op) is If and len(last.vars) == 1:
            return choice(path, bodies, op.body, last.op, inside)
        bodies.append(op.body)
        op = last.op
    return None


def choice(path: list[Loop], bodies: list[Block], body: Block, op: If, inside: set[Var]) -> Change | None:
    """What the branch of a build chooses at one place."""
    made = {x.vars[0]: x.op for around in (*bodies, body) for x in around.binds if type(x.op) is Prim}
    indices = [loop.index for loop in path]
    conditions = [op.cond]
    for x in (x for around in (*bodies, body) for x in around.binds if op.cond in x.vars):
        if type(x.op) is If and x.op.orelse.results == (FALSE,):  # (and a b)
            made.update({y.vars[0]: y.op for y in x.op.then.binds if type(y.op) is Prim})
            conditions = [x.op.cond, *x.op.then.results]
        elif type(x.op) is Prim and x.op.name == "and":
            conditions = [*x.op.args]
    tests = [made.get(a) for a in conditions]  # type: ignore[call-overload]
    names = {t.name for t in tests if t is not None}
    if len(names) != 1 or None in tests or not names <= {"=", "!="} or len(tests) > 1 and "!=" in names:
        return None
    kept, other = (op.orelse, op.then) if names == {"="} else (op.then, op.orelse)
    at: dict[Var, Atom] = {}
    line = None
    for t in tests:
        for i, k in (t.args, t.args[::-1]):  # type: ignore[union-attr]
            if i in indices and fixed(k, inside, made):
                at[i] = k  # type: ignore[index]
                break
        else:
            line = diagonal(t, indices, inside, made) if len(tests) == 1 else None  # type: ignore[arg-type]
            if line is None:
                return None
    made.update({x.vars[0]: x.op for x in kept.binds if type(x.op) is Prim})
    read = made.get(kept.results[0])  # type: ignore[call-overload]
    place: list[Atom] = []
    while read is not None and read.name == "get":
        place = [*read.args[1:], *place]
        array = read.args[0]
        read = made.get(array) if array in inside else None  # type: ignore[call-overload]
    if place != indices or type(array) is not Var or array in inside or has_checks(kept):
        return None
    if len(at) + (line is not None) != len(tests):
        return None
    if not all(map(same, array.type.dims, (loop.count for loop in path))):  # type: ignore[union-attr]
        return None
    full = Block((*body.binds, *other.binds), other.results)
    return Change(array, tuple(path), at, (*bodies, full), made, line)


def diagonal(test: Prim, indices: Sequence[Var], inside: set[Var], made: Mapping[Atom, Prim]) -> Line | None:
    """The diagonal on which a comparison of integers holds."""
    if type_of(test.args[0]) != INT or type_of(test.args[1]) != INT:
        return None
    one, other = (with_factors(affine_in(a, made), made) for a in test.args)  # type: ignore[arg-type]
    gap = affine_add(one, other, -1)
    found = [i for i in indices if i in gap[1]]
    if len(found) != 2 or any(abs(gap[1][i]) != 1 for i in found):
        return None
    i, j = found
    offset = gap[0], {v: n for v, n in gap[1].items() if v not in found}
    if not all(fixed(v, inside, made) for v in offset[1]):
        return None
    return Line(i, j, -gap[1][i] * gap[1][j], negated(offset) if gap[1][j] > 0 else offset)


def fixed(a: Atom, inside: set[Var], made: Mapping[Atom, Prim]) -> bool:
    """Whether a number is the same in all iterations, though it is made in them maybe."""
    return a not in inside or a in made and all(fixed(x, inside, made) for x in made[a].args)


class OneChanged(Rebuild):
    """``one_changed`` for a block."""

    def __init__(self, builder: Builder, found: dict[Bind, Change], ahead: bool) -> None:
        super().__init__(builder)
        self.found, self.ahead = found, ahead
        self.change: Change | None = None  # that is being made in place
        self.safe = True  # as far as that has been seen

    def bind(self, bind: Bind) -> None:
        change = self.found.get(bind)
        if change is None:
            self.copy(bind)
            return
        b = self.b
        b.fired("one-changed")
        a, there = self.atom(change.array), TRUE
        inside = {v for loop in change.path for v in (loop.index, *defined_in(loop.body))}
        for loop in change.path:
            if loop.index in change.at:
                k = self.number(change.at[loop.index], inside, change.made)
                there = b.prim("and", there, self.is_there(k, self.atom(loop.count)))
        if type(there) is Const:
            (v,) = bind.vars
            self.here[v] = self.made(change, a, v.name) if there.value else a
            return
        with b.branch_region(there, True) as scope:
            made = self.made(change, a, bind.vars[0].name)
        with b.branch_region(there, False) as other:
            pass
        b.span = bind.span
        self.define(bind, b.if_(there, (scope, [made]), (other, [a]), [bind.vars[0].name]))

    def number(self, a: Atom, inside: set[Var], made: Mapping[Atom, Prim]) -> Atom:
        """A subscript that is the same in all iterations, before them."""
        if a in inside:
            for x in made[a].args:
                self.number(x, inside, made)
            self.here[a] = self.prim(made[a], a)  # type: ignore[index, arg-type]
        return self.atom(a)

    def is_there(self, k: Atom, count: Atom) -> Atom:
        """Whether an axis has a subscript."""
        b = self.b
        last = affine_add(b.affine(count), affine_add(b.affine(k), (1, {})), -1)
        low = TRUE if b.nonnegative(b.affine(k)) else b.prim("<=", integer(0), k)
        return b.prim("and", low, TRUE if b.nonnegative(last) else b.prim("<", k, count))

    def made(self, change: Change, a: Atom, name: str) -> Atom:
        """The array with its new elements."""
        for i, k in change.at.items():
            self.here[i] = self.atom(k)
        if change.line is not None:
            inside = {v for loop in change.path for v in (loop.index, *defined_in(loop.body))}
            for v in change.line.offset[1]:
                self.number(v, inside, change.made)
        self.change = change
        first = self.ahead and change.line is None  # what is on other diagonals is read of the array as it was
        self.safe = not first and not any(read_whole(body, change.array) for body in change.bodies)
        with self.b.region() as scope:
            found = self.in_place(0, a, [], name) if self.safe else a
        self.change, self.here[change.array] = None, a
        if self.safe:
            self.b.keep(scope)
            return found
        new = self.values(change, 0, name)
        return self.stored(change, 0, a, [], [], new, name)

    def prim(self, op: Prim, var: Var) -> Atom:
        if self.change is not None and op.name == "get" and op.args[0] is self.change.array:
            self.safe &= self.unchanged(self.atoms(op.args[1:]))
        return super().prim(op, var)

    def unchanged(self, place: Sequence[Atom]) -> bool:
        """Whether no element at a place has been changed before it is read: the one that is about to be, or of another
        row or column."""
        b, change = self.b, self.change
        assert change is not None
        if tuple(place) == self.atoms([loop.index for loop in change.path]):
            return True
        if change.line is not None:
            at = {loop.index: b.affine(k) for loop, k in zip(change.path, place)}
            i, j, sign, offset = change.line
            gap = affine_add(affine_add(at[j], self.moved(offset), -1), at[i], -sign)
            return any(b.nonnegative(affine_add(x, (1, {}), -1)) for x in (gap, negated(gap)))
        for loop, k in zip(change.path, place):
            if loop.index in change.at:
                gap = affine_add(b.affine(k), b.affine(self.atom(change.at[loop.index])), -1)
                if b.nonnegative(affine_add(gap, (1, {}), -1)) or b.nonnegative(negated(affine_add(gap, (1, {})))):
                    return True
        return False

    def in_place(self, k: int, array: Atom, place: list[Atom], name: str) -> Atom:
        """Each new element is stored as it is made; the path from its k-th loop on."""
        b, change = self.b, self.change
        assert change is not None
        if k == len(change.path):
            return b.update(array, place, self.atom(change.bodies[-1].results[0]), name)
        loop = change.path[k]

        def inner(array: Atom, i: Atom) -> Atom:
            self.here[loop.index], self.here[change.array] = i, array
            self.before(change, k)
            return self.in_place(k + 1, array, [*place, i], name)

        at = self.place(change, loop)
        if at is not None:
            return inner(array, at)
        first, count = self.rows(change, loop)
        body = lambda i, now: ([inner(now, b.prim("+", i, first))], ())  # noqa: E731
        return b.loop(count, (array,), body, [name], loop.index.name, [name])[0]

    def place(self, change: Change, loop: Loop) -> Atom | None:
        """The subscript that is the same for all new elements of the iterations around."""
        if change.line is not None and loop.index is change.line.j:
            i, _, sign, offset = change.line
            return self.b.affine_value(affine_add(self.moved(offset), self.b.affine(self.atom(i)), sign))
        return self.atom(change.at[loop.index]) if loop.index in change.at else None

    def rows(self, change: Change, loop: Loop) -> tuple[Atom, Atom]:
        """The first iteration of a loop that has a new element, and how many have one: all, or those that a diagonal
        goes through."""
        b, count = self.b, self.atom(loop.count)
        if change.line is None or loop.index is not change.line.i:
            return integer(0), count
        _, j, sign, offset = change.line
        width = next(self.atom(x.count) for x in change.path if x.index is j)
        start = self.moved(offset)
        past = affine_add(b.affine(width), start, -1) if sign > 0 else affine_add(start, (1, {}))
        first = negated(start) if sign > 0 else affine_add(past, b.affine(width), -1)
        low = b.affine_value(first) if b.nonnegative(first) else b.prim("max", integer(0), b.affine_value(first))
        low = integer(0) if b.nonnegative(negated(first)) else low
        above = affine_add(past, b.affine(count), -1)
        high = count if b.nonnegative(above) else b.affine_value(past)
        if high is not count and not b.nonnegative(negated(above)):
            high = b.prim("min", count, high)
        number = affine_add(b.affine(high), b.affine(low), -1)
        value = b.affine_value(number)
        return low, value if b.nonnegative(number) else b.prim("max", integer(0), value)

    def before(self, change: Change, k: int) -> None:
        """What the k-th loop of the path makes before the next one, or the new element."""
        body = change.bodies[k]
        self.block(slice_of(body, body.results if k == len(change.path) - 1 else self.free_of(body)))

    def values(self, change: Change, k: int, name: str) -> Atom:
        """The new elements, in an array over the subscripts that are left."""
        if k == len(change.path):
            return self.atom(change.bodies[-1].results[0])
        loop = change.path[k]

        def element(i: Atom):
            self.here[loop.index] = i
            self.before(change, k)
            return (), (self.values(change, k + 1, name),)

        at = self.place(change, loop)
        if at is not None:
            return element(at)[1][0]
        first, count = self.rows(change, loop)
        return self.b.loop(count, (), lambda i: element(self.b.prim("+", i, first)), [name], loop.index.name)[0]

    def stored(
        self, change: Change, k: int, array: Atom, place: list[Atom], left: list[Atom], new: Atom, name: str
    ) -> Atom:
        """The array with all of these in their places."""
        b = self.b
        if k == len(change.path):
            return b.update(array, place, b.get(new, *left) if left else new, name)
        loop = change.path[k]
        at = self.place(change, loop)
        if at is not None:
            return self.stored(change, k + 1, array, [*place, at], left, new, name)
        first, count = self.rows(change, loop)

        def body(i: Atom, now: Atom):
            self.here[loop.index] = row = b.prim("+", i, first)
            return [self.stored(change, k + 1, now, [*place, row], [*left, i], new, name)], ()

        return b.loop(count, (array,), body, [name], loop.index.name, [name])[0]

    @staticmethod
    def free_of(body: Block) -> list[Atom]:
        """What a body makes before the loop that it gives."""
        last = next(x for x in body.binds if body.results[0] in x.vars)
        return [v for x in body.binds if x is not last for v in x.vars if v in reads(last)]


def read_whole(block: Block, array: Var) -> bool:
    """Whether a block does more with an array than to read elements of it."""
    for x in all_binds(block):
        op = x.op
        if type(op) is Prim and array in op.args:
            if op.name != "get" or op.args.index(array) or len(op.args) != 1 + array.type.rank:  # type: ignore
                return True
        elif type(op) in (Loop, While) and array in op.inits:  # type: ignore[union-attr]
            return True
        elif type(op) in (Apply, Make, Case) and array in reads(x):
            return True
        if any(array in inner.results for inner in blocks_of(op)):
            return True
    return False
