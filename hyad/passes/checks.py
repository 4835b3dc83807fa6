"""Checks that have been made: what a program has found to be in range it need not look at again, and sizes that it
has found to be equal are one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..core import (
    INT,
    TRUE,
    Apply,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Scalar,
    Var,
    While,
    all_binds,
    blocks_of,
    given,
    kinds_of,
    size,
    substitute,
    type_of,
    with_blocks,
    with_body,
)
from ..program.affine import Affine, affine_add, affine_key
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuilt

LONGEST = 400  # a loop of more bindings is not made two
STEPS = 1000  # atoms that are compared at most before two checks are thought to be different


def subscripts(op: Prim) -> Iterable[tuple[Atom, Atom]]:
    """The subscripts of what reads or changes an array, and the sizes that they are below."""
    return zip(op.args[1 : len(op.args) - (op.name != "get")], type_of(op.args[0]).dims)  # type: ignore[union-attr]


@dataclass(slots=True)
class Made:
    """A check that has been made: in all iterations of ``loops`` (their indices and counts), innermost first, wherever
    the conditions ``holds`` were as it says."""

    check: Check
    loops: list[tuple[Var, Atom]] = field(default_factory=list)
    holds: list[tuple[Atom, bool]] = field(default_factory=list)


class Once:
    """Leaves out the checks of a program that have been made before, of the same integers in loops over the same
    ranges: arrays do not change, so that they would be made with the same result.

    ``(loop n (fn [i] (check (get at i) m))) (loop n (fn [j] (check (get at j) m) ..))``  =>  the second without.
    Design decision: a check is known by the operations that make its operands, whose loop indices stand for any others
    that run as often. The first one stays where it is, and so does the error of a program that fails.
    """

    def __init__(self, block: Block, read: bool = False) -> None:
        self.sources = sources(all_binds(block))
        self.read = read  # whether what is read or changed counts as checked: where it is, its subscripts are in range
        self.made: dict[tuple, list[Made]] = {}
        self.open: list[list[Made]] = [[]]  # those of each region around, and of what it has left
        self.around: dict[Atom, Atom] = {}  # the loops around: index and count
        self.holds: list[tuple[Atom, bool]] = []

    def copy(self) -> Once:
        """The same, to which more may become known."""
        made = Once(Block((), ()), self.read)
        made.sources = dict(self.sources)
        made.made = {key: list(many) for key, many in self.made.items()}
        made.open = [list(many) for many in self.open]
        made.around, made.holds = dict(self.around), list(self.holds)
        return made

    def go_on(self, binds: Sequence[Bind]) -> None:
        """More operations of the same block."""
        block = Block(tuple(binds), ())
        self.sources.update(sources(all_binds(block)))
        self.block(block)

    def block(self, block: Block) -> Block:
        binds = []
        for bind in block.binds:
            op = bind.op
            if type(op) is Check:
                key = self.key(op)
                if any(self.covers(made, op) for made in self.made.get(key, ())):
                    continue
                self.note(key, Made(op))
            elif self.read and type(op) is Prim and op.name in ("get", "update", "add-at"):
                for i, n in subscripts(op):
                    if type(i) is Var and i not in self.around:
                        check = Check("in", i, n, "")
                        self.note(self.key(check), Made(check))
            elif type(op) is Loop:
                self.around[op.index] = op.count
                with self.region() as found:
                    body = self.block(op.body)
                del self.around[op.index]
                for made in found:
                    made.loops.append((op.index, op.count))
                bind = bind if body is op.body else Bind(bind.vars, with_blocks(op, [body]), bind.span)
            elif type(op) is If:
                regions = []
                for region, holds in ((op.then, True), (op.orelse, False)):
                    self.holds.append((op.cond, holds))
                    with self.region() as found:
                        regions.append(self.block(region))
                    for made in found:
                        made.holds.append(self.holds[-1])
                    self.holds.pop()
                if regions[0] is not op.then or regions[1] is not op.orelse:
                    bind = Bind(bind.vars, with_blocks(op, regions), bind.span)
            elif type(op) in (While, Case):
                regions = []
                for region in blocks_of(op):
                    with self.region(lost=True):
                        regions.append(self.block(region))
                if any(a is not b for a, b in zip(regions, blocks_of(op))):
                    bind = Bind(bind.vars, with_blocks(op, regions), bind.span)
            binds.append(bind)
        same = len(binds) == len(block.binds) and all(a is b for a, b in zip(binds, block.binds))
        return block if same else Block(tuple(binds), block.results, block.place)

    def note(self, key: tuple, made: Made) -> None:
        self.made.setdefault(key, []).append(made)
        self.open[-1].append(made)

    def in_range(self, block: Block) -> bool:
        """Whether all subscripts in a block are in range: constants, indices of loops that run as often as there are
        elements, and what has been checked, in the block too."""
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim and op.name in ("get", "update", "add-at"):
                if not all(self.fits(i, n) for i, n in subscripts(op)):
                    return False
            elif type(op) is Check:
                self.made.setdefault(self.key(op), []).append(Made(op, [], list(self.holds)))
            elif type(op) is Loop:
                self.around[op.index] = op.count
                if not self.in_range(op.body):
                    return False
                del self.around[op.index]
            elif type(op) is If:
                for region, holds in ((op.then, True), (op.orelse, False)):
                    self.holds.append((op.cond, holds))
                    if not self.in_range(region):
                        return False
                    self.holds.pop()
            elif not all(map(self.in_range, blocks_of(op))):
                return False
        return True

    def fits(self, i: Atom, n: Atom) -> bool:
        if type(i) is Const:
            return i.value >= 0 and (i.value < n.value if type(n) is Const else self.more(n, i.value))
        return self.checked("in", i, n) or self.from_zero(*self.offset(i)) and self.below(*self.offset(i), n)

    def from_zero(self, base: Atom, more: int) -> bool:
        """Whether a subscript is not below 0: the index of a loop, and what has been checked or asked of it."""
        if more >= 0 and any(True for _ in self.counts_of(base)):
            return True
        for made, (low, at), (top, over) in self.sides():
            if made.check.relation == "in" and at <= more and self.made_of(made, (low, base)):
                return True
            least = over - at - (made.check.relation == "<")
            if low == Const(0, INT) and least <= more and self.made_of(made, (top, base)):
                return True
        return any(x[0] == Const(0, INT) and y[0] is base and y[1] - x[1] - s <= more for x, y, s in self.asked())

    def below(self, base: Atom, more: int, n: Atom) -> bool:
        """Whether a subscript is below a size."""
        end, room = self.offset(n)
        for count, over in map(self.offset, self.counts_of(base)):  # its largest value is its count - 1
            if over + more <= room and (count == end or self.checked("<=", count, end) or self.equal(count, end)):
                return True
        for made, (low, at), (top, over) in self.sides():
            if at - (made.check.relation == "<=") - over >= more - room and self.made_of(made, (low, base), (top, end)):
                return True
        return any(x[0] is base and y[0] == end and y[1] - x[1] - s + more < room for x, y, s in self.asked())

    def sides(self) -> Iterator[tuple[Made, tuple[Atom, int], tuple[Atom, int]]]:
        """The checks that compare integers, and those as others and numbers."""
        for made in (made for many in self.made.values() for made in many):
            if made.check.relation in ("in", "<=", "<"):
                yield made, self.offset(made.check.a), self.offset(made.check.b)

    def asked(self) -> Iterator[tuple[tuple[Atom, int], tuple[Atom, int], int]]:
        """What the conditions around say of loops' indices, which are far from where integers wrap: one integer, and 1
        where it is less, is not above another one."""
        todo = list(self.holds)
        while todo:
            cond, holds = todo.pop()
            op, _ = self.sources.get(cond, (None, 0))  # type: ignore[call-overload]
            if type(op) is not Prim:
                continue
            if op.name == ("and" if holds else "or"):
                todo += [(a, holds) for a in op.args]
            elif op.name in ("<", "<=", ">", ">=") and all(a.type == INT for a in op.args):
                strict, up = len(op.name) == 1, op.name[0] == "<"
                x, y = map(self.offset, op.args if up == holds else op.args[::-1])
                if x[0] in self.around or y[0] in self.around:
                    yield x, y, int(strict == holds)

    def offset(self, a: Atom) -> tuple[Atom, int]:
        """An integer as another one, or 0, and a number."""
        if type(a) is Const:
            return Const(0, INT), int(a.value)
        op, _ = self.sources.get(a, (None, 0))  # type: ignore[call-overload]
        if type(op) is Prim and op.name in ("+", "-") and a.type == INT:
            x, y = op.args if type(op.args[1]) is Const or op.name == "-" else op.args[::-1]
            if type(y) is Const:
                base, more = self.offset(x)
                return base, more + (y.value if op.name == "+" else -y.value)
        return a, 0

    def more(self, n: Atom, i: int) -> bool:
        """Whether a check that has been made here says that a size is more than ``i``: of an index in it that it is
        more than 0."""
        here = [made for many in self.made.values() for made in many if not made.loops and not made.holds]
        return any(
            made.check.b is n
            and (i == 0 if made.check.relation == "in" else type(made.check.a) is Const and made.check.a.value > i)
            for made in here
            if made.check.relation in ("in", "<=")
        )

    def equal(self, a: Atom, b: Atom) -> bool:
        """Whether a check has found two sizes to be equal."""
        return self.checked("==", a, b) or self.checked("==", b, a)

    def checked(self, relation: str, a: Atom, b: Atom) -> bool:
        """Whether a check has been made."""
        check = Check(relation, a, b, "")
        return any(self.covers(made, check) for made in self.made.get(self.key(check), ()))

    def key(self, op: Check) -> tuple:
        """What is seen of a check at first sight: equal for those that are."""
        return op.relation, self.outline(op.a), self.outline(op.b)

    @contextmanager
    def region(self, lost: bool = False) -> Iterator[list[Made]]:
        """A region of an operation: the checks that are made in it. ``lost``: behind it nobody knows whether they
        were."""
        found: list[Made] = []
        self.open.append(found)
        yield found
        self.open.pop()
        if lost:
            for many in self.made.values():
                many[:] = [made for made in many if made not in found]
        else:
            self.open[-1] += found

    def outline(self, a: Atom) -> object:
        if type(a) is Const:
            return a.value
        op, _ = self.sources.get(a, (None, 0))  # type: ignore[call-overload]
        return op.name if type(op) is Prim else type(op)

    def covers(self, made: Made, op: Check) -> bool:
        """Whether a check here is one that has been made."""
        return self.made_of(made, (made.check.a, op.a), (made.check.b, op.b))

    def made_of(self, made: Made, *pairs: tuple[Atom, Atom]) -> bool:
        """Whether a check has been made, in an iteration where its integers are these."""
        table: dict[Atom, Atom | None] = dict.fromkeys(index for index, _ in made.loops)
        match = Match(self.sources, table)
        if not all(match(one, other) for one, other in pairs):
            return False
        for index, count in reversed(made.loops):
            at = table[index]
            if at is None:  # it does not matter which iteration: there is one
                at = table[index] = next((i for i, n in self.around.items() if match(count, n)), None)
                entered = type(count) is Const and count.value > 0
                if at is None and not entered:
                    return False
            elif not any(match(count, n) for n in self.counts_of(at)):
                return False
        return all(any(holds == h and match(cond, c) for c, h in self.holds) for cond, holds in made.holds)

    def counts_of(self, at: Atom) -> Iterator[Atom]:
        """The count of the loop that an integer is the index of, from either end."""
        op, _ = self.sources.get(at, (None, 0))  # type: ignore[call-overload]
        if at in self.around:
            yield self.around[at]
        elif type(op) is Prim and op.name == "-" and op.args[1] in self.around:
            n = self.around[op.args[1]]
            size, more = self.offset(op.args[0])
            if (size, more + 1) == self.offset(n):
                yield n


class Match:
    """Whether an atom is what another one is, the loop indices in ``table`` taken for what they stand for; those
    that stand for nothing yet stand for what they meet.

    Two accumulators are equal that start equal and, supposed that they are, go on equal. ``known``: variables that are
    others.
    """

    def __init__(
        self, sources: Sources, table: dict[Atom, Atom | None], known: Mapping[Var, Var] = MappingProxyType({})
    ) -> None:
        self.sources, self.table, self.left, self.known = sources, table, STEPS, known
        self.supposed: set[tuple[Atom, Atom]] = set()

    def __call__(self, one: Atom, other: Atom) -> bool:
        table, supposed = dict(self.table), set(self.supposed)
        todo = [(one, other)]
        while todo:
            more = self.needed(*todo.pop())
            self.left -= 1
            if more is None or self.left < 0:
                self.table.update(table)
                self.supposed = supposed
                return False
            todo += more
        return True

    def needed(self, one: Atom, other: Atom) -> list[tuple[Atom, Atom]] | None:
        """The pairs that have to be equal for two atoms to be; None where they are not. What has been compared once is
        supposed to be equal from then on: one pair that is not ends it all."""
        if type(one) is Const or type(other) is Const:
            return [] if one == other and repr(one.value) == repr(other.value) else None  # type: ignore[union-attr]
        if one in self.table:
            if self.table[one] is None:
                self.table[one] = other
            return [] if self.table[one] is other else None
        one, other = self.known.get(one, one), self.known.get(other, other)
        if one is other or (one, other) in self.supposed:
            return []
        self.supposed.add((one, other))
        p, j = self.sources.get(one, (None, 0))
        q, k = self.sources.get(other, (None, 0))
        if type(p) is Prim and type(q) is Prim:
            alike = p.name == q.name and len(p.args) == len(q.args) and p.name != "undef"
            alike = alike and (p.name != "zeros" or one.type.elem == other.type.elem)  # type: ignore[union-attr]
            return list(zip(p.args, q.args)) if alike else None
        if type(p) is If and type(q) is If:
            return [(p.cond, q.cond), *((x.results[j], y.results[k]) for x, y in zip(blocks_of(p), blocks_of(q)))]
        if type(p) is not Loop or type(q) is not Loop or (j < len(p.accs)) != (k < len(q.accs)):
            return None
        if p.snapshots is not None or q.snapshots is not None:
            return None
        pairs = [(p.body.results[j], q.body.results[k])]
        if j < len(p.accs):
            pairs.append((p.inits[j], q.inits[k]))
            self.supposed.add((p.accs[j], q.accs[k]))
        if one in p.accs and other in q.accs:  # an iteration of loops that go round together
            return [(p.index, q.index), *pairs]
        if one in p.accs or other in q.accs:
            return None
        self.supposed.add((p.index, q.index))
        return [(p.count, q.count), *pairs]


Sources = dict[Var, tuple[Op, int]]


def sources(binds: Iterable[Bind]) -> Sources:
    """What makes each variable, and as which of its results; accumulators are their loop's."""
    found: Sources = {}
    for x in binds:
        found.update((v, (x.op, k)) for k, v in enumerate(x.vars))
        if type(x.op) is Loop:
            found.update((a, (x.op, k)) for k, a in enumerate(x.op.accs))
    return found


STATES = 24  # so many are kept of what is known behind some operations of a block


@dataclass(frozen=True, slots=True)
class Around:
    """What is around a block: the indices and counts of loops, and what comes before. ``known``: what was asked about,
    each the beginning of the next, and what is known behind it."""

    loops: Mapping[Atom, Atom] = field(default_factory=dict)
    before: tuple[Bind, ...] = ()
    known: list[tuple[tuple[Bind, ...], Once]] = field(default_factory=list, compare=False, repr=False)

    def body(self, op: Loop, before: Iterable[Bind] = ()) -> Around:
        """What is around a loop's body."""
        return Around({**self.loops, op.index: op.count}, (*self.before, *before))

    def behind(self, before: Iterable[Bind]) -> Once:
        """What is known of checks behind these operations of the block: mostly a few more than were asked about."""
        binds = (*self.before, *before)
        self.known[:] = [x for x in self.known if len(x[0]) <= len(binds) and all(a is b for a, b in zip(x[0], binds))]
        last, made = self.known[-1] if self.known else ((), None)
        if made is None:
            made = Once(Block((), ()), read=True)
            made.around.update(self.loops)
        if len(last) < len(binds) or not self.known:
            made = made.copy()
            made.go_on(binds[len(last) :])
            self.known.append((binds, made))
            if len(self.known) > STATES:
                self.known[:-1] = self.known[:-1:2]
        return made.copy()


def in_range(
    second: Bind, first: Bind | None = None, before: Iterable[Bind] = (), around: Around | None = None
) -> bool:
    """Whether all subscripts in a loop or a branch are in range by the checks that stand ``before`` it in its block,
    and before that, whatever else was checked, and by what is read there; with ``first`` in a loop that runs as often
    as that, once it has done the same iteration."""
    block = Block((second,), ())
    if first is not None:
        one, two = first.op, second.op
        assert type(one) is Loop and type(two) is Loop
        block = substitute(two.body, {two.index: one.index})
        second = Bind(second.vars, Loop(two.count, one.index, two.inits, two.accs, block))
    here = (around or Around()).behind(before)
    here.sources.update(sources(all_binds(Block((second,) if first is None else (first, second), ()))))
    if first is not None:
        here.around[first.op.index] = first.op.count  # type: ignore[union-attr]
        here.block(first.op.body)  # type: ignore[union-attr]
    return here.in_range(block)


def once(program: Program) -> Program:
    """Drops checks that have been made before."""
    if sum(type(bind.op) is Check for bind in all_binds(program.body)) < 2:
        return program
    return with_body(program, Once(program.body).block(program.body))


# ------------------------------------------------------------------------------------- sizes that are equal


class First:
    """Makes the checks of a block before all of it that cannot fail.

    ``(loop n ..) (check (== m l)) ..``  =>  ``(check (== m l)) (loop n ..) ..``.
    Design decision: past nothing that may fail itself, or may not end; so the first error is the one that it was.
    With a check go the scalar operations and the elements that make its operands.
    """

    def __init__(self, program: Program) -> None:
        self.tame: set[Atom] = set(program.dims)  # integers that are far from 64 bits: what is made of them fits

    def block(self, block: Block) -> Block:
        out: list[Bind] = []
        after = 0  # what comes later passes nothing before this
        for bind in block.binds:
            op = bind.op
            if type(op) is Check:
                needed = self.needed(op, out[after:])
                if needed is not None:
                    rest = [x for x in out[after:] if x not in needed]
                    out[after:] = [*needed, bind, *rest]
                    after += len(needed) + 1
                    continue
            elif blocks_of(op):
                if type(op) is Loop:
                    self.tame.add(op.index)
                regions = [self.block(region) for region in blocks_of(op)]
                if any(a is not b for a, b in zip(regions, blocks_of(op))):
                    bind = Bind(bind.vars, with_blocks(op, regions), bind.span)
            out.append(bind)
            if self.may_fail(bind):
                after = len(out)
        same = all(a is b for a, b in zip(out, block.binds))
        return block if same else Block(tuple(out), block.results, block.place)

    def may_fail(self, bind: Bind) -> bool:
        """Whether an operation may raise an error, or go on for ever; if not, what it makes is noted."""
        op = bind.op
        if type(op) is Prim:
            if bind.vars[0].type is not INT or op.name not in PRIMITIVES:
                return False
            tame = all(type(a) is Const or a in self.tame for a in op.args)
            if tame and not (op.name in ("//", "%") and type(op.args[1]) is not Const):
                self.tame.add(bind.vars[0])
                return False
            return True
        if type(op) in (Check, While, Apply):
            return True
        return any(type(x.op) in (While, Apply) for r in blocks_of(op) for x in all_binds(r)) or any(
            map(has_checks, blocks_of(op))
        )

    @staticmethod
    def needed(op: Check, binds: Sequence[Bind]) -> list[Bind] | None:
        """The bindings among ``binds`` that make a check's operands, in order; None where they are no operations of
        scalars and no elements."""
        wanted, found = {op.a, op.b}, []
        for x in reversed(binds):
            if wanted.isdisjoint(x.vars):
                continue
            element = type(x.op) is Prim and x.op.name == "get" and isinstance(x.vars[0].type, Scalar)
            if type(x.op) is not Prim or x.op.name not in PRIMITIVES and not element:
                return None
            found.append(x)
            wanted.update(x.op.args)
        return found[::-1]


def checks_first(program: Program) -> Program:
    """Moves checks ahead of everything that cannot fail."""
    if not any(type(bind.op) is Check for bind in all_binds(program.body)):
        return program
    return with_body(program, First(program).block(program.body))


class OneSize(Rebuild):
    """Uses one size for those that a check has found to be equal.

    ``(check (== m l)) (loop l ..)``  =>  ``(check (== m l)) (loop m ..)``. The size of a slice is what is left between
    its ends, or none: a check that says that it is what is left makes it that.
    Design decision: a constant is taken first, else what the caller knows, the first argument's first; so the printer
    can do the same to the sizes of arguments (``leading``). The check stays, and is the only one.
    """

    def __init__(self, builder: Builder, dims: Sequence[Var]) -> None:
        super().__init__(builder)
        self.order = {d: k for k, d in enumerate(dims)}
        self.equal: dict[Atom, Atom] = {}
        self.found = False

    def atom(self, a: Atom) -> Atom:
        a = super().atom(a)
        while a in self.equal:
            a = self.equal[a]
        return a

    def atoms(self, args: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(map(self.atom, args))

    def block(self, block: Block) -> tuple[Atom, ...]:
        before = dict(self.equal)
        results = super().block(block)
        if len(self.b.scopes) > 1:  # what a region has found is known there only
            self.equal = before
        return results

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Check or op.relation != "==":
            self.copy(bind)
            return
        a, c = self.atom(op.a), self.atom(op.b)
        larger = self.larger(affine_add(self.b.affine(a), self.b.affine(c), -1))
        self.b.check(op, a, c)
        if larger is not None:
            self.equal.update([larger])
            self.found = True
            a, c = self.atom(op.a), self.atom(op.b)
        if a is not c and not (type(a) is Const and type(c) is Const):
            kept, other = one_of(a, c, self.order)
            self.equal[other] = kept
            self.found = True

    def larger(self, gap: Affine) -> tuple[Var, Atom] | None:
        """Of an integer that is the larger one of two: which of them it is, if that is what it takes to make a
        difference nothing. So it is with the size of a slice, none or what is left between its ends."""
        for v, k in gap[1].items():
            op = self.b.definitions.get(v)
            if k in (1, -1) and op is not None and op.name == "max":
                for x in op.args:
                    if affine_add(affine_add(gap, (0, {v: 1}), -k), self.b.affine(x), k) == (0, {}):
                        return v, x
        return None


def one_of(a: Atom, b: Atom, order: Mapping[Var, int]) -> tuple[Atom, Atom]:
    """Two equal sizes, not both constants: the one to use, and the other. ``order``: that of those that the caller
    knows."""

    def rank(x: Atom) -> int:
        return -1 if type(x) is Const else order.get(x, len(order))  # type: ignore[arg-type]

    return (a, b) if rank(a) <= rank(b) else (b, a)


def one_size(program: Program) -> Program:
    """Replaces sizes that a check has found equal by one of them."""
    if not any(type(bind.op) is Check and bind.op.relation == "==" for bind in all_binds(program.body)):
        return program
    pass_ = OneSize(Builder(), program.dims)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def leading(program: Program) -> dict[Bind, dict[Var, Atom]]:
    """The checks at the very start of a program that find a size of its arguments equal to another one or to a number:
    the sizes in whose place another stands from there on, and which."""
    order = {d: k for k, d in enumerate(program.dims)}
    equal: dict[Var, Atom] = {}
    found: dict[Bind, dict[Var, Atom]] = {}
    for bind in program.body.binds:
        op = bind.op
        if type(op) is Check and op.relation == "==":
            a, b = (equal.get(x, x) for x in (op.a, op.b))  # type: ignore[call-overload]
            known = all(type(x) is Const or x in order for x in (a, b))
            if a is not b and known and (type(a) is Var or type(b) is Var):
                kept, other = one_of(a, b, order)
                found[bind] = {other: kept, **{x: kept for x, y in equal.items() if y is other}}  # type: ignore[dict-item]
                equal.update(found[bind])
        elif type(op) is not Check and not (type(op) is Prim and isinstance(bind.vars[0].type, Scalar)):
            break
    return found


# ------------------------------------------------------------------------------------ checks of loops, at their ends


class Ends(Builder):
    """A builder that notes of each check that it makes in a loop, whose body is the scope ``depth``, what says that it
    holds in all iterations: integers of before the loop that are no less than 0 then; None where nothing does."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[list[Affine] | None] | None = None
        self.depth = 0
        self.hangs = False  # whether one of them hangs on the loop's index
        self.made_here = False

    def check(self, op: Check, a: Atom, c: Atom, made: bool = False) -> None:
        found = None if self.noted is None else self.at_ends(op.relation, a, c)  # before it is a fact here
        self.made_here = False
        super().check(op, a, c, made)
        if self.noted is not None and self.made_here:
            self.noted.append(found)

    def emit(self, op: Any, *args: Any, **more: Any) -> tuple[Var, ...]:
        self.made_here |= type(op) is Check and len(self.scopes) > self.depth
        return super().emit(op, *args, **more)

    def at_ends(self, relation: str, a: Atom, c: Atom) -> list[Affine] | None:
        at = self.affine(a)
        gap = affine_add(self.affine(c), at, -1)
        below = affine_add(gap, (1, {}), -1)
        needed = {"in": [at, below], "<": [below], "<=": [gap]}.get(relation)
        found = []
        for x in needed or ():
            if self.nonnegative(x):
                continue
            for at_scope in range(len(self.scopes) - 1, self.depth - 1, -1):
                scope = self.scopes[at_scope]
                if scope.index is not None and scope.index in x[1]:
                    self.hangs |= at_scope == self.depth
                    x = self.at_end(x, scope.index, at_scope)
                if any(v in scope.vars for v in x[1]):
                    return None
            found.append(x)
        return None if needed is None else found

    def at_end(self, x: Affine, index: Var, depth: int) -> Affine:
        """What an integer is never below as an index runs from 0 to its last value, or to that at which the branches
        inside the loop, whose body is the scope ``depth``, are taken."""
        k = x[1][index]
        count = self.counts[index]
        last = affine_add(self.running(count) or self.affine(count), (1, {}), -1)
        least = affine_add(x, (0, {index: 1}), -k)
        least = affine_add(least, last, k) if k < 0 else least
        for fact in (fact for scope in self.scopes[depth:] for fact in scope.facts):
            if fact[1].get(index, 0) == (1 if k > 0 else -1):
                other = affine_add(x, fact, -abs(k))
                if other[0] > least[0] and affine_key((0, other[1])) == affine_key((0, least[1])):
                    least = other
        return least

    def all_hold(self, needed: Sequence[Affine]) -> Atom:
        """Whether integers are no less than 0."""
        holds: Atom = TRUE
        least = {affine_key((0, terms)): (constant, terms) for constant, terms in sorted(needed, key=lambda x: -x[0])}
        for constant, terms in least.values():
            less, more = ({v: abs(k) for v, k in terms.items() if (k < 0) == below} for below in (True, False))
            sides = [self.affine_value(x) for x in ((max(0, -constant), less), (max(0, constant), more))]
            holds = self.prim("and", holds, self.prim("<=", *sides))
        return holds


class Unchecked(Rebuild):
    """Makes two of a loop, of which one is without checks (``unchecked``)."""

    b: Ends
    found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        b = self.b
        if b.noted is not None or Check not in kinds_of(op.body) or size(op.body) > LONGEST:
            return super().loop(op, bind)
        with b.region():  # to see what its checks are
            b.noted, b.depth, b.hangs = [], len(b.scopes), False
            super().loop(op, bind)
            noted, b.noted = b.noted, None
        if not noted or None in noted or not b.hangs:
            return super().loop(op, bind)
        holds = b.all_hold([x for found in noted for x in found])  # type: ignore[union-attr]
        regions = []
        for taken in (True, False):
            b.span = bind.span
            with b.branch_region(holds, taken) as scope:
                b.noted = []  # one of two is not made two
                regions.append((scope, super().loop(op, bind)))
                left, b.noted = b.noted, None
            if taken and left or type(holds) is Const:
                return super().loop(op, bind)
        b.span, self.found = bind.span, True
        return b.if_(holds, *regions, names=[v.name for v in bind.vars], given=given(bind))


def made_two(program: Program) -> Program:
    """The program with its loops made two whose checks all hold, if that can be said before them (``unchecked``).

    Design decision: a branch may never be taken, so that its checks are no checks of the loop (those that are the
    builder makes before it); and a loop that may end in each iteration no compiler makes vectors of. The outermost loop
    whose index is checked, so that those around stay what they are to other passes. For a grid and another one of which
    nothing says that it is as large.
    """
    if not any(type(x.op) is Check for loop in loops_of(program) for x in all_binds(loop.body)):
        return program
    pass_ = Unchecked(Ends())
    made = rebuilt(program, pass_)
    return made if pass_.found else program
