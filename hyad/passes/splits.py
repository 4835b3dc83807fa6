"""Index-set splitting: loops whose index decides a branch, split where the decision changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import copysign

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Var,
    all_binds,
    blocks_of,
    defined_in,
    reads,
    with_blocks,
)
from ..program.affine import affine_add, negated
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import CALL, cost_of, slice_of
from ..program.primitives import BUILTIN
from ..program.rebuild import Rebuild
from .fusion import recurs
from .lanes import LANES, ahead
from .tables import affine_of

#: What compares an index with a bound, or with another index.
TESTS = ("<", "<=", ">", ">=", "=", "!=")

#: A loop with more bindings in it, those of a branch that is in one part alone aside, is not written twice.
SHORT = 60


class Split(Rebuild):
    """A loop with a branch that its index decides, below a bound this way, from there on that way, becomes two loops.

    ``(build n (fn [i] (if (< i k) (f i) (g i))))``  =>  ``f`` for the first ``k`` elements, ``g`` for the others; and
    ``(if (= i k) (f i) (g i))``  =>  ``g`` for the first ``k``, ``f`` once, ``g`` for the others, where ``k`` is known
    to be an index of the loop, as that of a loop over the same range around it is.
    A loop that is taken in lanes without the branch computes both sides instead, and chooses one.
    So does a loop that changes a row of an array and reads one element of that row in all iterations: it is the same
    until it is changed itself, and from then on.
    The part in which nothing but zeros is added to sums is left out: a sum from 0.0 on never is -0.0, which that would
    change. Design decision: innermost loops alone, where a branch keeps a compiler from taking several iterations at
    once, and inside another loop, which may run on several threads.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.depth = 0

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and "lanes" not in self.b.off and (masked := masked_pairs(op)) is not None:
            if self.in_lanes(Bind(bind.vars, masked, bind.span, bind.soft)):
                return
        found = self.decision(op) if type(op) is Loop and self.depth else None
        spot = self.spot(op) if type(op) is Loop and self.depth and found is None else None
        if spot is not None:
            self.around_it(bind, op, *spot)  # type: ignore[arg-type]
            return
        if found is None:
            self.depth += type(op) is Loop
            self.copy(bind)
            self.depth -= type(op) is Loop
            return
        cond, first, bound, once = found
        b, count = self.b, self.atom(op.count)  # type: ignore[union-attr]
        at = self.integer(bound)
        inside = affine_add(b.affine(count), b.affine(at), -1)
        if not b.nonnegative(b.affine(at)):
            at = b.prim("max", Const(0, INT), at)
        if not b.nonnegative(inside):
            at = b.prim("min", count, at)
        after = b.prim("+", at, Const(1, INT)) if once else at
        left = b.prim("-", count, after)
        b.sizes.update(v for v in (at, left) if type(v) is Var)
        state, names, accs = self.filling(op, bind)  # type: ignore[arg-type]
        parts = [(at, Const(0, INT), first), (left, after, not first)]
        if once and not self.is_index(op, bound):  # type: ignore[arg-type]  # the first or last one, if there is one
            steps = b.trips(count)
            some = b.prim("min", steps, Const(1, INT))
            left = b.prim("-", steps, some)
            b.sizes.update(v for v in (some, left) if type(v) is Var)
            if bound == (0, {}):
                parts = [(some, Const(0, INT), first), (left, Const(1, INT), not first)]
            else:
                parts = [(left, Const(0, INT), not first), (some, left, first)]
        elif once:
            parts = [(at, Const(0, INT), not first), (Const(1, INT), at, first), (left, after, not first)]
        for length, start, holds in parts:

            def body(i: Atom, *state: Atom, start: Atom = start, holds: bool = holds):
                index = b.prim("+", start, i)
                return self.part(op, cond, index, state, holds), ()  # type: ignore[arg-type]

            if type(length) is Const and length.value == 0 or adds_zeros(op, cond, holds):  # type: ignore[arg-type]
                continue
            if length == Const(1, INT):
                state = self.part(op, cond, start, state, holds)  # type: ignore[arg-type]
            else:
                state = list(b.loop(length, state, body, names, op.index.name, accs))  # type: ignore[union-attr]
        b.span = bind.span
        self.define(bind, state)

    def spot(self, op: Loop) -> tuple[Bind, tuple] | None:
        """What reads one element of a row that a loop changes, element by element, and in which iteration that is
        changed."""
        body, width = op.body, len(op.accs)
        if op.index.soft or not changes_and_reads(op) or type(op.count) is Const and op.count.value < LANES:
            return None
        inside = {op.index, *op.accs, *defined_in(body)}
        integers = {x.vars[0]: x.op for x in body.binds if x.vars[0].type == INT}
        for acc, r in zip(op.accs, body.results[:width]):
            store = next((x for x in body.binds if r in x.vars), None)
            if store is None or store.op.name not in ("update", "add-at") or store.op.args[0] is not acc:  # type: ignore
                continue
            reading = [x for x in body.binds if acc in reads(x) and x is not store]
            if any(x.op.name != "get" for x in reading) or any(r in reads(x) for x in body.binds):  # type: ignore
                continue
            at = [affine_of(a, integers, inside, {op.index}) for a in store.op.args[1:-1]]  # type: ignore
            for x in reading:
                there = [affine_of(a, integers, inside, {op.index}) for a in x.op.args[1:]]  # type: ignore
                if None in at or None in there or len(there) != len(at) or any(a[1].get(op.index) for a in there):  # type: ignore
                    continue
                moved = [(a, q) for a, q in zip(at, there) if a != q]
                if len(moved) == 1 and moved[0][0][1].get(op.index) == 1:  # type: ignore[index]
                    a, q = moved[0]
                    bound = affine_add(q, affine_add(a, (0, {op.index: 1}), -1), -1)  # type: ignore[arg-type]
                    if self.is_index(op, bound):
                        return x, bound
        return None

    def around_it(self, bind: Bind, op: Loop, read: Bind, bound: tuple) -> None:
        """The iterations before one that changes the element that all of them ``read``, that one, and the others."""
        b, count = self.b, self.atom(op.count)
        at = self.integer(bound)
        after = b.prim("+", at, Const(1, INT))
        left = b.prim("-", count, after)
        b.sizes.update(v for v in (at, left) if type(v) is Var)
        state, names, accs = self.filling(op, bind)
        array, k = read.op.args[0], op.accs.index(read.op.args[0])  # type: ignore[union-attr, arg-type]
        for length, start in ((at, Const(0, INT)), (Const(1, INT), at), (left, after)):
            if length == Const(1, INT):
                state = self.part(op, None, start, state, True)
                continue
            self.here[op.index] = start
            self.block(slice_of(op.body, [a for a in read.op.args[1:] if a is not array]))  # type: ignore[union-attr]
            found = b.get(state[k], *self.atoms(read.op.args[1:]), hint=read.vars[0].name)  # type: ignore[union-attr]

            def body(i: Atom, *state: Atom, start: Atom = start, found: Atom = found):
                return self.part(op, None, b.prim("+", start, i), state, True, {read: found}), ()

            state = list(b.loop(length, state, body, names, op.index.name, accs))
        b.span = bind.span
        self.define(bind, state)

    def in_lanes(self, bind: Bind) -> bool:
        """Rebuild a loop whose iterations are taken eight at once then; or say that it is not."""
        b = self.b
        with b.region() as scope:
            self.copy(bind)
        if not any(type(x.op) is Loop and ahead(x.op) is not None for x in scope.binds):
            return False
        b.keep(scope)
        return True

    def part(
        self,
        op: Loop,
        cond: Atom | None,
        index: Atom,
        state: Sequence[Atom],
        holds: bool,
        known: Mapping[Bind, Atom] | None = None,
    ) -> list[Atom]:
        """An iteration of which it is known whether the condition holds, and what some bindings give."""
        width = len(op.accs)
        self.here[op.index] = index
        self.here.update(zip(op.accs, state))
        for bind in op.body.binds:
            if known and bind in known:
                self.here[bind.vars[0]] = known[bind]
                continue
            self.line(bind)
            if cond in bind.vars:
                self.here[cond] = Const(holds, BOOL)  # type: ignore[index]
        results = self.atoms(op.body.results)
        arrays = [self.b.update(a, [index], x, a.name) for a, x in zip(state[width:], results[width:])]  # type: ignore
        return [*results[:width], *arrays]

    def decision(self, op: Loop) -> tuple[Atom, bool, tuple, bool] | None:
        """The condition of a branch that changes once, whether it holds at first, and from where on it does not; or of
        one that is another at one index: whether it holds there, and which."""
        branches = [x.op for x in op.body.binds if type(x.op) is If]
        if not branches or op.index.soft:
            return None
        found = list(all_binds(op.body))
        if any(type(x.op) not in (Prim, If) for x in found):
            return None
        inside = {op.index, *op.accs, *defined_in(op.body)}
        made = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
        integers = {v: o for v, o in made.items() if v.type == INT}
        for branch in branches:
            one_sided = sum(1 for block in blocks_of(branch) for _ in all_binds(block))
            cond = next((a for a in parts_of(branch.cond, made) if compares(made.get(a))), None)  # type: ignore
            if not one_sided or cond is None:
                continue
            test = made[cond]  # type: ignore[index]
            once = test.name in ("=", "!=")
            if len(found) - (0 if once or cond is not branch.cond else one_sided) > SHORT:
                continue
            low, high = (affine_of(a, integers, inside, {op.index}) for a in test.args)  # type: ignore[misc]
            if low is None or high is None:
                continue
            if test.name in (">", ">="):
                low, high = high, low
            gap = affine_add(high, low, -1)  # holds where this is positive, or not negative; or zero
            if test.name in ("<", ">"):
                gap = affine_add(gap, (1, {}), -1)
            step = gap[1].get(op.index, 0)
            rest = affine_add(gap, (0, {op.index: 1}), -step)
            if step in (1, -1) and once:
                bound = rest if step == -1 else negated(rest)
                left = affine_add(self.b.affine(self.atom(op.count)), self.moved(bound), -1)
                ends = bound == (0, {}) or left == (1, {})  # the first or the last one, if there is one
                if ends and recurs(op) or not self.at_end(op, bound) and self.is_index(op, bound):
                    return cond, test.name == "=", bound, True  # the others are taken in lanes, maybe
            elif step in (1, -1):
                bound = affine_add(rest, (1, {})) if step == -1 else negated(rest)  # i <= rest, or i >= -rest
                if not self.at_end(op, bound):
                    return cond, step == -1, bound, False
        return None

    def is_index(self, op: Loop, bound: tuple) -> bool:
        """Whether one of a loop's iterations has this index."""
        at = self.moved(bound)
        last = affine_add(self.b.affine(self.atom(op.count)), affine_add(at, (1, {})), -1)
        return self.b.nonnegative(at) and self.b.nonnegative(last)

    def at_end(self, op: Loop, bound: tuple) -> bool:
        """Whether there is one iteration before a bound, or after it: those are taken apart when all else is done."""
        left = affine_add(self.b.affine(self.atom(op.count)), self.moved(bound), -1)
        return "edges" not in self.b.off and (1, {}) in (bound, left)

    def integer(self, affine: tuple) -> Atom:
        """An atom that holds an integer of the old program, made of the variables that made it there."""
        total: Atom = Const(affine[0], INT)
        for v, k in affine[1].items():
            total = self.b.prim("+", total, self.b.prim("*", Const(k, INT), self.atom(v)))
        return total


def changes_and_reads(op: Loop) -> bool:
    """Whether a loop is single operations, and reads elements of an array that it changes."""
    arrays = {a for a in op.accs if isinstance(a.type, Arr)}
    if not arrays or any(type(x.op) is not Prim for x in op.body.binds):
        return False
    return any(x.op.name == "get" and x.op.args[0] in arrays for x in op.body.binds)  # type: ignore[union-attr]


def masked_pairs(op: Loop) -> Loop | None:
    """A loop over members, with loops over all of them inside that do something else for the member itself: both sides
    are computed then, and one is chosen. None where there are none inside."""
    binds: list[Bind] = []
    for x in op.body.binds:
        inner = x.op
        if type(inner) is Loop and not has_checks(inner.body):
            ranges = {op.index: op.count, inner.index: inner.count}
            made_by = {y.vars[0]: y.op for y in inner.body.binds if type(y.op) is Prim}
            if any(type(y.op) is If and of_pairs(y.op, made_by, ranges) for y in inner.body.binds):
                made = selections(inner.body, ranges)
                if made is not None:
                    x = Bind(x.vars, with_blocks(inner, [made]), x.span, x.soft)
        binds.append(x)
    if all(x is y for x, y in zip(binds, op.body.binds)):
        return None
    return with_blocks(op, [Block(tuple(binds), op.body.results)])  # type: ignore[return-value]


def selections(block: Block, ranges: Mapping[Atom, Atom], inside: bool = False) -> Block | None:
    """A block whose branches by the equality of two indices, those ``inside`` of them, and others without calls, are
    selections between what both sides give; None where one does more than single operations, or reads an element that
    may not be there."""
    made = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim}
    binds: list[Bind] = []
    for x in block.binds:
        op = x.op
        if type(op) is Prim and (not inside or harmless(op, ranges)):
            binds.append(x)
            continue
        if type(op) is not If or any(v.type not in (REAL, INT, BOOL) for v in x.vars):
            return None
        if not inside and not of_pairs(op, made, ranges) and sum(map(cost_of, blocks_of(op))) >= CALL:
            return None
        arms = [selections(arm, ranges, True) for arm in blocks_of(op)]
        if None in arms:
            return None
        for arm in arms:
            binds += arm.binds  # type: ignore[union-attr]
        for v, one, other in zip(x.vars, *(arm.results for arm in arms)):  # type: ignore[union-attr]
            binds.append(Bind((v,), Prim("select", (op.cond, one, other)), x.span, x.soft))
    return Block(tuple(binds), block.results)


def of_pairs(op: If, made: Mapping[Var, Op], ranges: Mapping[Atom, Atom]) -> bool:
    """Whether a branch is one by the equality of two indices, or by that and something else."""
    return any(of_indices(made.get(a), ranges) for a in parts_of(op.cond, made))  # type: ignore


def of_indices(test: Prim | None, ranges: Mapping[Atom, Atom]) -> bool:
    """Whether a condition asks whether two indices are equal."""
    return test is not None and test.name in ("=", "!=") and all(a in ranges for a in test.args)


def harmless(op: Prim, ranges: Mapping[Atom, Atom]) -> bool:
    """Whether an operation may be done whatever the indices are: no integer is divided by what may be zero, a user's
    own primitive is not asked for what it may not have, and an element is there, each subscript an index of an axis
    that is as long as its loop."""
    if op.name != "get":
        divides = op.name in ("//", "%") and not (type(op.args[1]) is Const and op.args[1].value)
        return op.name == "select" or op.name in BUILTIN and not divides
    return all(
        ranges.get(i) is n or type(i) is Const and type(n) is Const and 0 <= i.value < n.value
        for i, n in zip(op.args[1:], op.args[0].type.dims)
    )


def parts_of(cond: Atom, made: dict[Var, Prim]) -> list[Atom]:
    """A condition, or the ones that all have to hold where it does."""
    op = made.get(cond)  # type: ignore[call-overload]
    return [cond] if op is None or op.name != "and" else [x for a in op.args for x in parts_of(a, made)]


def compares(test: Prim | None) -> bool:
    """Whether a condition compares integers."""
    return test is not None and test.name in TESTS and all(a.type == INT for a in test.args)


def adds_zeros(op: Loop, cond: Atom, holds: bool) -> bool:
    """Whether a loop does nothing, where it is known that a condition holds or not, but add 0.0 to sums from 0.0 on."""
    if len(op.body.results) != len(op.accs):
        return False
    made = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
    given = {  # what branches give then
        v: r
        for x in op.body.binds
        if type(x.op) is If and (x.op.cond is cond or not holds and cond in parts_of(x.op.cond, made))
        for v, r in zip(x.vars, blocks_of(x.op)[not holds].results)
    }
    zeros = {v for v, r in given.items() if is_plain_zero(r)}
    sums = {v: x.args for v, x in made.items() if x.name == "+"}
    for acc, init, r in zip(op.accs, op.inits, op.body.results):
        if given.get(r, r) is acc:  # type: ignore[call-overload]
            continue
        if not (is_plain_zero(init) and acc in sums.get(r, ()) and zeros.intersection(sums[r])):  # type: ignore
            return False
    return True


def is_plain_zero(a: Atom) -> bool:
    return type(a) is Const and a.value == 0 and copysign(1.0, a.value) > 0
