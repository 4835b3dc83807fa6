"""Innermost loops without branches: a few first and last iterations peeled off, one loop for each side of a branch; and
first and last rows of a grid.

What a newcomer writes of a grid, ``(build n (fn [i] (if (or (= i 0) (= i (- n 1))) (border i) (inner i))))``, has a
branch in every iteration, which keeps a compiler from taking several at once. So has the choice of a neighbour on a
ring.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import product

from ..core import (
    BOOL,
    INT,
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
    blocks_of,
    defined_in,
    kinds_of,
    same,
    type_of,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, taken
from .tables import affine_of

#: A loop with more bindings in it is not written out for its edges.
LONGEST = 80
#: The same for a loop around an innermost one.
LONGEST_ROW = 180
#: One that stacks what it makes has its first and last iterations in one loop, if it is no longer than this.
LONGER = 240
#: A loop that is known to run less often is left as it is.
FEWEST = 8
#: So many first and last iterations are few.
FEW = 4
#: What comparisons ask of the difference, and whether the first of two is the smaller or larger one.
COMPARE = {
    "=": lambda x: x == 0,
    "!=": lambda x: x != 0,
    "<": lambda x: x < 0,
    "<=": lambda x: x <= 0,
    ">": lambda x: x > 0,
    ">=": lambda x: x >= 0,
    "min": lambda x: x <= 0,
    "max": lambda x: x >= 0,
}


class Bordered(Rebuild):
    """Takes comparisons as ``decided``, and leaves as they are what a loop does in a few first and last iterations
    alone: a grid's border rows."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.decided: dict[Var, bool] = {}  # comparisons in the part of a loop that is being made
        self.borders: set[Atom] = set()  # what asks whether this is one of those iterations
        self.border = False  # whether that is being made

    def prim(self, op: Prim, var: Var) -> Atom:
        known = self.decided.get(var)
        if known is None:
            return super().prim(op, var)
        return Const(known, BOOL) if var.type == BOOL else self.atom(op.args[not known])

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        self.borders |= self.borders_of(op)
        return super().loop(op, bind)

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        if op.cond not in self.borders or self.border or type(self.atom(op.cond)) is Const:
            return super().if_(op, bind)
        cond = self.atom(op.cond)
        with self.b.branch_region(cond, True) as scope:
            self.border = True
            one = self.block(op.then)
            self.border = False
        with self.b.branch_region(cond, False) as other:
            two = self.block(op.orelse)
        return self.b.if_(cond, (scope, one), (other, two), [v.name for v in bind.vars])

    def borders_of(self, op: Loop) -> set[Atom]:
        """The conditions of a loop's branches between loops that hold in a few first and last iterations alone, or in
        all."""
        if type(op.count) is Const and op.count.value < FEWEST:
            return set()
        branches = [x.op for x in op.body.binds if type(x.op) is If]
        asked = {x.cond for x in branches if any(Loop in kinds_of(arm) for arm in blocks_of(x))}
        if not asked:
            return set()
        tests = comparisons(op)
        either = {x.vars[0]: x.op.args for x in op.body.binds if type(x.op) is Prim and x.op.name == "or"}
        inside = defined_in(op.body)

        def few(a: Atom) -> bool:
            if a in either:
                return all(map(few, either[a]))  # type: ignore[index]
            return a not in inside or a in tests and self.known(op, tests[a], FEW, FEW) is False  # type: ignore[index]

        return {a for a in asked & inside if few(a)}

    def known(self, op: Loop, test: tuple[str, Affine], skipped: int, left: int) -> bool | None:
        """What a comparison gives in all iterations but some first and last ones, where that is one thing."""
        name, gap = test
        step = gap[1][op.index]
        if name == "%":
            left_of, right_of = (self.known(op, x, skipped, left) for x in self.both_sides(op, gap))
            return True if left_of and right_of else None
        low = affine_add(self.rest(gap, op.index), (step * skipped, {}))
        end = affine_add(self.b.affine(self.atom(op.count)), (1 + left, {}), -1)
        high = affine_add(self.rest(gap, op.index), end, step)
        low, high = self.b.normal(low), self.b.normal(high)
        if step < 0:
            low, high = high, low
        if not low[1] and low[0] >= 0:
            if name in (">=", "<", "max", "min"):
                return name in (">=", "max")
            if low[0] > 0:
                return name in ("!=", ">")
        if not high[1] and high[0] <= 0:
            if name in ("<=", ">", "min", "max"):
                return name in ("<=", "min")
            if high[0] < 0:
                return name in ("!=", "<")
        return None

    def both_sides(self, op: Loop, gap: Affine) -> tuple[tuple[str, Affine], tuple[str, Affine]]:
        """What says that an integer is its own remainder by a loop's count."""
        size: Affine = (op.count.value, {}) if type(op.count) is Const else (0, {op.count: 1})  # type: ignore[dict-item]
        return (">=", gap), ("<", affine_add(gap, size, -1))

    def rest(self, affine: Affine, index: Var) -> Affine:
        """What is left of an integer without the index, in the new program's variables."""
        return self.moved((affine[0], {v: k for v, k in affine[1].items() if v is not index}))


class Edges(Bordered):
    """A few first and last iterations of an innermost loop are apart where a comparison of the index with a value near
    its first or last one, or the larger or smaller of the two, is known in all others.

    ``(build n (fn [i] (if (= i 0) (f i) (g i))))``  =>  ``f`` for the first element, if there is one, then ``g``;
    ``(build n (fn [i] (get v (min (+ i 1) (- n 1)))))``  =>  ``(get v (+ i 1))``, then the last element;
    ``(build n (fn [i] (get v (% (+ i 2) n))))``  =>  ``(get v (+ i 2))``, then the last two.
    What a branch checks is then checked in each iteration between, and so before them once. So is the loop around an
    innermost one that asks twice or more of its index: a grid's first and last rows.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False

    def takes(self, bind: Bind) -> bool:
        return bool(self.tests(bind.op))  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        op = bind.op
        tests = self.tests(op) if type(op) is Loop and not self.border else {}
        ends = self.ends(op, tests) if tests else None  # type: ignore[arg-type]
        if ends is None:
            self.copy(bind)
            return
        self.found = True
        self.define(bind, self.way(op, tests, max(ends))(op, bind, tests, *ends))  # type: ignore[arg-type]

    def way(self, op: Loop, tests: Container[Var], most: int) -> Callable[..., Sequence[Atom]]:
        """How a loop is taken apart of which so many iterations are at an end."""
        if any(type(x.op) is Loop for x in op.body.binds):
            return self.rows
        if length(op.body, tests) > LONGEST:
            return self.around
        return self.parts if most < 2 else self.stretches

    def tests(self, op: Loop) -> dict[Var, tuple[str, Affine]]:
        """The comparisons that decide an innermost loop's branches, or two of those of the loops in a grid's."""
        if op.snapshots is not None or type(op.count) is Const and op.count.value < FEWEST:
            return {}
        found = list(all_binds(op.body))
        inner = [x.op for x in op.body.binds if type(x.op) is Loop]
        longest = LONGEST_ROW if inner else LONGEST if in_order(op) else LONGER
        if len(found) > max(longest, LONGER) or not any(map(decides, found)):
            return {}
        if len(found) > longest and (inner or length(op.body, comparisons(op)) > longest):
            return {}
        if any(type(x.op) not in (Prim, If, Check) for x in found if x.op not in inner):
            return {}
        tests = comparisons(op)
        asked = {a for loop in inner for x in all_binds(loop.body) for a in conditions(x)}
        return tests if not inner or len(asked & tests.keys()) > 1 else {}

    def ends(self, op: Loop, tests: dict[Var, tuple[str, Affine]]) -> tuple[int, int] | None:
        """How many first and last iterations are to be apart; None where none are."""
        first = last = 0
        most = 1 if any(type(x.op) is Check for x in all_binds(op.body)) else FEW
        apart = sorted(product(range(most + 1), repeat=2), key=lambda few: (sum(few), -few[0]))[1:]
        for test in tests.values():
            few = next((few for few in apart if self.known(op, test, *few) is not None), (0, 0))
            first, last = max(first, few[0]), max(last, few[1])
        return (first, last) if first or last else None

    def parts(
        self, op: Loop, bind: Bind, tests: dict[Var, tuple[str, Affine]], skipped: int, left: int
    ) -> Sequence[Atom]:
        b, count = self.b, self.atom(op.count)
        state, names, accs = self.begun(op, bind)
        n = b.affine(count)
        if skipped:
            state = self.once(op, bind, Const(0, INT), {v: self.at(op, t, (0, {})) for v, t in tests.items()}, state, 0)
        decided = {v: self.known(op, t, skipped, left) for v, t in tests.items()}
        length = b.affine_value(affine_add(n, (skipped + left, {}), -1))

        def body(i: Atom, *state: Atom):
            index = b.prim("+", i, Const(1, INT)) if skipped else i
            return self.part(op, index, state, decided), ()

        if any(type(x.op) is Check for x in all_binds(op.body)):  # made before the loop only where that runs
            there = b.prim("<", Const(skipped + left, INT), count)
            with b.branch_region(there, True) as scope:
                results = list(b.loop(length, state, body, names, op.index.name, accs))
            with b.branch_region(there, False) as other:
                pass
            state = list(b.if_(there, (scope, results), (other, state), names))
        else:
            state = list(b.loop(length, state, body, names, op.index.name, accs))
        if left:
            end = affine_add(n, (1, {}), -1)
            decided = {v: self.at(op, t, end) for v, t in tests.items()}
            state = self.once(op, bind, b.affine_value(end), decided, state, skipped)
        return state

    def stretches(
        self, op: Loop, bind: Bind, tests: dict[Var, tuple[str, Affine]], skipped: int, left: int
    ) -> Sequence[Atom]:
        """A loop as three: for several first iterations and the last ones as it was, for those between shorter."""
        b, count = self.b, self.atom(op.count)
        state, names, accs = self.begun(op, bind)
        known = {v: self.known(op, t, skipped, left) for v, t in tests.items()}
        between = b.trips(b.affine_value(affine_add(b.affine(count), (skipped + left, {}), -1)))
        last = b.prim("+", between, Const(skipped, INT)) if skipped else between
        for first, length, decided in (
            (Const(0, INT), b.prim("min", Const(skipped, INT), count), {}),
            (Const(skipped, INT), between, known),
            (last, b.trips(b.prim("-", count, last)), {}),
        ):

            def body(i: Atom, *state: Atom, first: Atom = first, decided: dict = decided):
                return self.part(op, b.prim("+", first, i), state, decided), ()

            if not (type(length) is Const and length.value == 0):
                state = list(b.loop(length, state, body, names, op.index.name, accs))
        return state

    def around(
        self, op: Loop, bind: Bind, tests: dict[Var, tuple[str, Affine]], skipped: int, left: int
    ) -> Sequence[Atom]:
        """A long loop, in any order, as two: for the first and last iterations as it was, for those between shorter."""
        b, count = self.b, self.atom(op.count)
        state, names, accs = self.begun(op, bind)
        known = {v: self.known(op, t, skipped, left) for v, t in tests.items()}
        few = b.prim("min", Const(skipped + left, INT), count)
        gap = b.prim("-", count, few)

        def ends(k: Atom, *state: Atom):
            late = b.prim("+", k, gap)
            index = b.select(b.prim("<", k, Const(skipped, INT)), k, late) if skipped else late
            return self.part(op, index, state, {}), ()

        def between(i: Atom, *state: Atom):
            return self.part(op, b.prim("+", i, Const(skipped, INT)) if skipped else i, state, known), ()

        state = list(b.loop(few, state, ends, names, op.index.name, accs))
        return b.loop(gap, state, between, names, op.index.name, accs)

    def rows(self, op: Loop, bind: Bind, tests: dict[Var, tuple[str, Affine]], first: int, last: int) -> Sequence[Atom]:
        """A loop whose iterations are those that they were for the first and the last ones, and shorter for others."""
        b, count = self.b, self.atom(op.count)
        state, names, accs = self.begun(op, bind)
        decided = {v: self.known(op, t, first, last) for v, t in tests.items()}

        def body(i: Atom, *state: Atom):
            ends = [b.prim("=", i, Const(0, INT)) if first == 1 else b.prim("<", i, Const(first, INT))] * (first > 0)
            if last:
                end = b.prim("-", count, Const(last, INT))
                ends.append(b.prim("=" if last == 1 else ">=", i, end))
            at_end = ends[0] if len(ends) == 1 else b.prim("or", *ends)
            with b.branch_region(at_end, True) as scope:
                self.border = True
                one = self.part(op, i, state, {})
                self.border = False
            with b.branch_region(at_end, False) as other:
                two = self.part(op, i, state, decided)
            return b.if_(at_end, (scope, one), (other, two), [v.name for v in bind.vars]), ()

        return b.loop(count, state, body, names, op.index.name, accs)

    def begun(self, op: Loop, bind: Bind) -> tuple[list[Atom], list[str], list[str]]:
        """What a loop starts from that changes all it gives in place, and the names of what it gives and changes."""
        width, names = len(op.accs), [v.name for v in bind.vars]
        stacked = [self.b.undef(self.type(v.type)) for v in bind.vars[width:]]  # type: ignore[arg-type]
        return [*self.atoms(op.inits), *stacked], names, [*(a.name for a in op.accs), *names[width:]]

    def once(
        self, op: Loop, bind: Bind, index: Atom, decided: dict[Var, bool | None], state: list[Atom], fewer: int
    ) -> list[Atom]:
        """One iteration, where the loop has more than ``fewer`` of them."""
        b, count = self.b, self.atom(op.count)
        if b.nonnegative(affine_add(b.affine(count), (1 + fewer, {}), -1)):
            return self.part(op, index, state, decided)
        there = b.prim("<", Const(fewer, INT), count)
        with b.branch_region(there, True) as scope:
            results = self.part(op, index, state, decided)
        with b.branch_region(there, False) as other:
            pass
        return list(b.if_(there, (scope, results), (other, state), [v.name for v in bind.vars]))

    def at(self, op: Loop, test: tuple[str, Affine], index: Affine) -> bool | None:
        """What a comparison gives in one iteration, where that is known."""
        name, gap = test
        if name == "%":
            return None
        value = self.b.normal(affine_add(self.rest(gap, op.index), index, gap[1][op.index]))
        return None if value[1] else COMPARE[name](value[0])

    def part(self, op: Loop, index: Atom, state: Sequence[Atom], decided: dict[Var, bool | None]) -> list[Atom]:
        """An iteration of which it is known what some comparisons give."""
        width, around = len(op.accs), self.decided
        self.here[op.index] = index
        self.here.update(zip(op.accs, state))
        self.decided = {**around, **{v: known for v, known in decided.items() if known is not None}}
        results = self.block(op.body)
        self.decided = around
        arrays = [self.b.update(a, [index], x, a.name) for a, x in zip(state[width:], results[width:])]  # type: ignore
        return [*results[:width], *arrays]


class Sides(Bordered):
    """An innermost loop with a branch that it does not change is two loops, one for each side.

    ``(build n (fn [i] (if c (f i) (g i))))``  =>  ``(if c (build n f) (build n g))``.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False

    def takes(self, bind: Bind) -> bool:
        return self.condition(bind.op) is not None  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        op = bind.op
        cond = self.condition(op) if type(op) is Loop and not self.border else None
        if cond is None:
            self.copy(bind)
            return
        self.found = True
        given = self.atom(cond)
        sides = []
        for holds in (True, False):
            with self.b.branch_region(given, holds) as scope:
                around, self.holds = self.holds, {**self.holds, given: holds}
                results = list(self.loop(op, bind))  # type: ignore[arg-type]
                self.holds = around
            sides.append((scope, results))
        self.define(bind, self.b.if_(given, *sides, names=[v.name for v in bind.vars]))

    def condition(self, op: Loop) -> Atom | None:
        """The condition of a branch of an innermost loop that the loop does not change."""
        if op.snapshots is not None or type(op.count) is Const and op.count.value < FEWEST:
            return None
        found = list(all_binds(op.body))
        if len(found) > LONGEST or any(type(x.op) not in (Prim, If) for x in found):
            return None
        inside = {op.index, *op.accs, *defined_in(op.body)}
        for x in op.body.binds:
            if type(x.op) is If and type(x.op.cond) is Var and x.op.cond not in inside:
                return x.op.cond
        return None


def edges(program: Program) -> Program:
    """Peels off the first and last iterations of a loop whose comparisons with the index are then known, and unswitches
    a branch that the loop does not change."""
    if not any(decides(x) for loop in loops_of(program) for x in loop.body.binds):
        return program
    ends = Edges(Builder())
    made = taken(program, ends)
    program = dead_code(made) if ends.found else program
    sides = Sides(Builder())
    made = taken(program, sides)
    return dead_code(made) if sides.found else program


def in_order(op: Loop) -> bool:
    """Whether it may matter which iteration comes first."""
    return bool(op.accs) or any(type(x.op) is Check for x in all_binds(op.body))


def comparisons(op: Loop) -> dict[Var, tuple[str, Affine]]:
    """What in a loop compares its index with what it does not change: how, and the difference that is compared with
    0; or asks for the remainder by its count, and of what."""
    found = list(all_binds(op.body))
    inside = {op.index, *op.accs, *defined_in(op.body)}
    integers = {v: x.op for x in found for v in x.vars if type(x.op) is Prim and v.type == INT}
    tests = {}
    for x in found:
        if type(x.op) is Prim and x.op.name == "%" and same(x.op.args[1], op.count):
            at = affine_of(x.op.args[0], integers, inside, {op.index})
            if at is not None and at[1].get(op.index) in (1, -1):
                tests[x.vars[0]] = "%", at
        elif type(x.op) is Prim and x.op.name in COMPARE and all(type_of(a) == INT for a in x.op.args):
            low, high = (affine_of(a, integers, inside, {op.index}) for a in x.op.args)
            if low is not None and high is not None and high != low:
                gap = affine_add(low, high, -1)
                if gap[1].get(op.index) in (1, -1):
                    tests[x.vars[0]] = x.op.name, gap
    return tests


def length(block: Block, tests: Container[Var]) -> int:
    """How many bindings a block has where it is known what the ``tests`` give: of their branches one is left."""
    total = 0
    for x in block.binds:
        arms = [length(arm, tests) for arm in blocks_of(x.op)]
        total += 1 + (max(arms) if type(x.op) is If and x.op.cond in tests else sum(arms))
    return total


def conditions(bind: Bind) -> tuple[Atom, ...]:
    """What a branch or a choice asks, and the rows that are read."""
    op = bind.op
    if type(op) is If:
        return (op.cond,)
    if type(op) is not Prim:
        return ()
    return op.args[:1] if op.name == "select" else op.args[1:] if op.name == "get" else ()


def decides(bind: Bind) -> bool:
    """Whether a binding is a branch, or chooses an integer, as the neighbour on a ring is chosen."""
    op = bind.op
    return type(op) is If or type(op) is Prim and op.name in ("select", "min", "max", "%") and bind.vars[0].type == INT
