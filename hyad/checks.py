"""Checks that have been made: what a program has found to be in range it need not look at again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .core import (
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
    Var,
    While,
    all_binds,
    blocks_of,
    substitute,
    type_of,
    with_blocks,
    with_body,
)

STEPS = 1000  # atoms that are compared at most before two checks are thought to be different


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

    def __init__(self, block: Block) -> None:
        self.sources = sources(all_binds(block))
        self.made: dict[tuple, list[Made]] = {}
        self.open: list[list[Made]] = [[]]  # those of each region around, and of what it has left
        self.around: dict[Atom, Atom] = {}  # the loops around: index and count
        self.holds: list[tuple[Atom, bool]] = []

    def block(self, block: Block) -> Block:
        binds = []
        for bind in block.binds:
            op = bind.op
            if type(op) is Check:
                key = self.key(op)
                if any(self.covers(made, op) for made in self.made.get(key, ())):
                    continue
                found = Made(op)
                self.made.setdefault(key, []).append(found)
                self.open[-1].append(found)
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

    def in_range(self, block: Block) -> bool:
        """Whether all subscripts in a block are in range: constants, indices of loops that run as often as there are
        elements, and what has been checked, in the block too."""
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim and op.name in ("get", "update", "add-at"):
                subscripts = op.args[1 : len(op.args) - (op.name != "get")]
                if not all(map(self.fits, subscripts, type_of(op.args[0]).dims)):  # type: ignore[union-attr]
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
            return type(n) is Const and 0 <= i.value < n.value
        count = self.around.get(i)
        if count is not None and (count is n or type(n) is Const and count == n):
            return True
        check = Check("in", i, n, "")
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
        table: dict[Atom, Atom | None] = dict.fromkeys(index for index, _ in made.loops)
        match = Match(self.sources, table)
        if not (match(made.check.a, op.a) and match(made.check.b, op.b)):
            return False
        for index, count in reversed(made.loops):
            at = table[index]
            if at is None:  # it does not matter which iteration: there is one
                at = table[index] = next((i for i, n in self.around.items() if match(count, n)), None)
                entered = type(count) is Const and count.value > 0
                if at is None and not entered:
                    return False
            elif at not in self.around or not match(count, self.around[at]):
                return False
        return all(any(holds == h and match(cond, c) for c, h in self.holds) for cond, holds in made.holds)


class Match:
    """Whether an atom is what another one is, the loop indices in ``table`` taken for what they stand for; those
    that stand for nothing yet stand for what they meet.

    Two accumulators are equal that start equal and, supposed that they are, go on equal.
    """

    def __init__(self, sources: Sources, table: dict[Atom, Atom | None]) -> None:
        self.sources, self.table, self.left = sources, table, STEPS
        self.supposed: set[tuple[Atom, Atom]] = set()

    def __call__(self, one: Atom, other: Atom) -> bool:
        table, supposed = dict(self.table), set(self.supposed)
        if self.same(one, other):
            return True
        self.table.update(table)
        self.supposed = supposed
        return False

    def same(self, one: Atom, other: Atom) -> bool:
        self.left -= 1
        if self.left < 0:
            return False
        if type(one) is Const or type(other) is Const:
            return one == other and repr(one.value) == repr(other.value)  # type: ignore[union-attr]
        if one in self.table:
            if self.table[one] is None:
                self.table[one] = other
            return self.table[one] is other
        if one is other or (one, other) in self.supposed:
            return True
        p, j = self.sources.get(one, (None, 0))  # type: ignore[call-overload]
        q, k = self.sources.get(other, (None, 0))  # type: ignore[call-overload]
        if type(p) is Prim and type(q) is Prim:
            alike = p.name == q.name and len(p.args) == len(q.args) and p.name != "undef"
            alike = alike and (p.name != "zeros" or one.type.elem == other.type.elem)  # type: ignore[union-attr]
            return alike and all(map(self.same, p.args, q.args))
        if type(p) is If and type(q) is If:
            ends = [(x.results[j], y.results[k]) for x, y in zip(blocks_of(p), blocks_of(q))]
            return self.same(p.cond, q.cond) and all(self.same(x, y) for x, y in ends)
        if type(p) is not Loop or type(q) is not Loop or (j < len(p.accs)) != (k < len(q.accs)):
            return False
        if one in p.accs and other in q.accs:  # an iteration of loops that go round together
            if not self.same(p.index, q.index):
                return False
        elif one in p.accs or other in q.accs or not self.same(p.count, q.count):
            return False
        else:
            self.supposed.add((p.index, q.index))
        if j < len(p.accs):
            self.supposed.add((p.accs[j], q.accs[k]))
            if not self.same(p.inits[j], q.inits[k]):
                return False
        return self.same(p.body.results[j], q.body.results[k])


Sources = dict[Var, tuple[Op, int]]


def sources(binds: Iterable[Bind]) -> Sources:
    """What makes each variable, and as which of its results; accumulators are their loop's."""
    found: Sources = {}
    for x in binds:
        found.update((v, (x.op, k)) for k, v in enumerate(x.vars))
        if type(x.op) is Loop:
            found.update((a, (x.op, k)) for k, a in enumerate(x.op.accs))
    return found


def in_range(second: Bind, first: Bind | None = None) -> bool:
    """Whether all subscripts in a loop or a branch are in range whatever was checked before; with ``first`` in a loop
    that runs as often as that, once it has done the same iteration."""
    if first is None:
        return Once(Block((), ())).in_range(Block((second,), ()))
    one, two = first.op, second.op
    assert type(one) is Loop and type(two) is Loop
    body = substitute(two.body, {two.index: one.index})
    here = Once(Block((first, Bind(second.vars, Loop(two.count, one.index, two.inits, two.accs, body))), ()))
    here.around[one.index] = one.count
    here.block(one.body)
    return here.in_range(body)


def once(program: Program) -> Program:
    """Leaves out the checks that have been made before."""
    if sum(type(bind.op) is Check for bind in all_binds(program.body)) < 2:
        return program
    return with_body(program, Once(program.body).block(program.body))
