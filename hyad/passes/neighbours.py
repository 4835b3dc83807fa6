"""Grids whose elements add to the ones around them, as adjoints of stencils do, made to take the sum for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    Prim,
    Program,
    Type,
    Var,
    all_binds,
    defined_in,
    free_vars,
    type_of,
)
from ..program.accumulators import sum_like
from ..program.additions import ZERO, additions, totals
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import dead_code, tidy
from ..program.loops import loops_of
from ..program.rebuild import rebuilt
from ..program.sink import sink_block
from .edges import FEW, FEWEST, LONGEST_ROW, Bordered, comparisons
from .shifts import CHEAP
from .spread import work
from .tables import affine_of


def neighbours(program: Program) -> Program:
    """Turns a grid's additions to elements of several rows into one sum for each element (a gather in place of a
    scatter).

    ``(loop n (fn [i a] (loop m (fn [j a] (add-at (add-at a (+ i 1) j (x i j)) i j (y i j))) a)) a)``  =>  for the rows
    ``i`` = 1 .. n-1 of ``a``, ``(build m (fn [j] (+ (get a i j) (x (- i 1) j) (y i j))))``; for the first and last
    rows and columns, to which not all come, the sum of what is there for them.

    Design decision: each element gets what it got, in the order in which it got it. What is added must be cheap, since
    it is computed once more for each element that gets it. An array whose elements get something from their own
    iteration alone is made in the same loops, what else they give in loops of its own.
    """
    if not any(grid_of(loop) for loop in loops_of(program)):
        return program
    pass_ = Neighbours(Builder())
    made = rebuilt(program, pass_)
    return dead_code(made) if pass_.found else program


@dataclass(frozen=True)
class Output:
    """An array that a nest of loops gives, one element an iteration: what of it the innermost loop makes, and by which
    of its additions to the elements so far from its own; None where that is an element itself."""

    number: int
    result: Atom
    groups: dict[tuple[int, ...], set[Var]] | None


@dataclass(frozen=True)
class Grid:
    """A nest of loops of which each is all that the one around it does, and arrays that it gives: first one that gets
    something from several iterations of the outermost loop."""

    loops: list[Loop]
    outputs: list[Output]

    def parts(self) -> dict[tuple[int, ...], Block]:
        """What an iteration adds to the elements so far from its own, a number for each array (``ZERO`` for those that
        get nothing); in the order in which they come to an element."""
        block = Block(tuple(x for loop in self.loops for x in loop.body.binds if type(x.op) is not Loop), ())
        own = (0,) * len(self.loops)
        parts = {}
        for far in sorted({own, *(far for x in self.outputs for far in x.groups or ())}, reverse=True):
            adds = [(x.result, x.groups.get(far, set())) for x in self.outputs if x.groups is not None]
            stored = [x.result if far == own else ZERO for x in self.outputs if x.groups is None]
            part = totals(block, adds, stored)
            sums, values = iter(part.results[: len(adds)]), iter(part.results[len(adds) :])
            results = tuple(next(values if x.groups is None else sums) for x in self.outputs)
            parts[far] = sink_block(Block(part.binds, results))
        return parts


def grid_of(op: Loop) -> Grid | None:
    """The grid that a loop is, if what it adds is cheap and does not depend on what it changes."""
    loops = loops_of_grid(op)
    if len(loops) < 2 or not op.accs:
        return None
    inside = {v for loop in loops for v in (loop.index, *loop.accs)} | defined_in(op.body)
    if any(loop.count in inside for loop in loops):
        return None
    found = [x for k in range(len(op.body.results)) if (x := output(loops, k, inside)) is not None]
    outputs = sorted(found, key=lambda x: not spread_out(x))
    if not outputs or not spread_out(outputs[0]):
        return None
    grid = Grid(loops, outputs)
    parts = grid.parts()
    states = {a for loop in loops for a in loop.accs}
    if any(any(far) and cost(x) > CHEAP or not states.isdisjoint(free_vars(x)) for far, x in parts.items()):
        return None
    if sum(1 for x in parts.values() for _ in all_binds(x)) > LONGEST_ROW or not all_decided(loops, parts):
        return None
    return grid


def output(loops: Sequence[Loop], number: int, inside: set[Var]) -> Output | None:
    """The array of real numbers that a nest gives as its result of that number, if it is made as outputs are."""
    acc, level, k = None, 0, number
    for level, loop in enumerate(loops):
        if k < len(loop.accs):
            acc = loop.accs[k]
            break
        result = loop.body.results[k]
        if level == len(loops) - 1:
            return Output(number, result, None) if type_of(result) == REAL else None
        (inner,) = [x for x in loop.body.binds if type(x.op) is Loop]
        if result not in inner.vars:
            return None
        k = inner.vars.index(result)
    if level:  # one that an iteration of the loop around starts with zeros
        zeros = [x.vars[0] for x in loops[level - 1].body.binds if type(x.op) is Prim and x.op.name == "zeros"]
        if loops[level].inits[k] not in zeros:
            return None
    if acc is None or not isinstance(acc.type, Arr) or acc.type.elem != REAL or acc.type.rank != len(loops) - level:
        return None
    if not sum_like(loops[level].body, acc, loops[level].body.results[k]):
        return None
    for loop in loops[level + 1 :]:
        if acc not in loop.inits:
            return None
        acc = loop.accs[loop.inits.index(acc)]
    inner = loops[-1].body
    result = inner.results[loops[-1].accs.index(acc)]
    adds = additions(inner, result)
    if adds is None or adds[1] is not acc:
        return None
    integers = {x.vars[0]: x.op for x in all_binds(loops[0].body) if type(x.op) is Prim and x.vars[0].type == INT}
    groups: dict[tuple[int, ...], set[Var]] = {}
    for x in adds[0]:
        far = [0] * level
        for sub, loop in zip(x.subs, loops[level:]):
            place = affine_of(sub, integers, inside, {loop.index})  # type: ignore[arg-type]
            if place is None or place[1] != {loop.index: 1} or abs(place[0]) > FEW:
                return None
            far.append(place[0])
        if len(far) < len(loops):
            return None
        groups.setdefault(tuple(far), set()).add(x.after)
    soft = {x.vars[0] for x in all_binds(inner) if x.soft}
    return Output(number, result, groups) if len(groups) < 2 or all(x.after in soft for x in adds[0]) else None


def spread_out(x: Output) -> bool:
    """Whether elements of an array get something from several iterations of the outermost loop."""
    return len({far[0] for far in x.groups or ()}) > 1


def loops_of_grid(op: Loop) -> list[Loop]:
    """The loops of a nest, each all that the one around it does but for operations on numbers; none where it is not
    one of many iterations, or has branches that are not innermost."""
    loops = [op]
    while True:
        op = loops[-1]
        if op.snapshots is not None or op.index.soft or type(op.count) is Const and op.count.value < FEWEST:
            return []
        inner = [x.op for x in op.body.binds if type(x.op) is Loop]
        if not inner:
            return loops if all(type(x.op) in (Prim, If) for x in all_binds(op.body)) else []
        if len(inner) > 1 or not all(type(x.op) in (Prim, Loop) for x in op.body.binds):
            return []
        loops += inner


def all_decided(loops: Sequence[Loop], parts: Mapping[tuple[int, ...], Block]) -> bool:
    """Whether the branches of what is added ask nothing but where the iteration is."""
    known = {v for loop in loops for v in comparisons(loop)}
    prims = [x for loop in loops for x in loop.body.binds if type(x.op) is Prim]
    joins = {x.vars[0]: x.op.args for x in prims if x.op.name in ("or", "and", "not")}  # type: ignore[union-attr]

    def decided(a: Atom) -> bool:
        return a in known or a in joins and all(map(decided, joins[a]))  # type: ignore[index]

    return all(decided(x.op.cond) for part in parts.values() for x in all_binds(part) if type(x.op) is If)


def cost(block: Block) -> float:
    """What it costs to compute the numbers of a block, in additions."""
    return sum(work(x.op) for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == REAL)


@dataclass(frozen=True)
class Side:
    """One direction of a grid: how many elements there are, from the first (``low``) to the last one (``high``, not
    included) of those that all that may comes to, and what comparisons give for these. ``fewer``: how many iterations
    there are less than elements."""

    size: Affine
    low: int
    high: Affine
    decided: dict[Var, bool]
    fewer: int


class Neighbours(Bordered):
    """``neighbours`` for a program."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False
        self.cleared: set[Atom] = set()  # arrays of zeros

    def prim(self, op: Prim, var: Var) -> Atom:
        if op.name == "zeros":
            self.cleared.add(var)
        return super().prim(op, var)

    def bind(self, bind: Bind) -> None:
        grid = grid_of(bind.op) if type(bind.op) is Loop else None
        sides = self.sides(grid) if grid is not None else None
        if sides is None:
            self.copy(bind)
            return
        self.found = True
        shape = [side.size for side in sides]
        types = {x.number: self.type(bind.vars[x.number].type) for x in grid.outputs}  # type: ignore[union-attr]
        outputs = [x for x in grid.outputs if self.shape(types[x.number]) == shape or spread_out(x)]  # type: ignore[union-attr]
        self.others(bind, {x.number for x in outputs})
        for x, a in zip(outputs, self.gathered(Grid(grid.loops, outputs), bind, sides)):  # type: ignore[union-attr]
            self.here[bind.vars[x.number]] = a

    def sides(self, grid: Grid) -> list[Side] | None:
        """The directions of a grid; None where it is not known which of its elements all comes to."""
        b, op = self.b, grid.loops[0]
        shapes = [self.shape(self.type(op.accs[x.number].type)) for x in grid.outputs if spread_out(x)]
        fars = [far for x in grid.outputs for far in x.groups or ()]
        found = []
        for level, loop in enumerate(grid.loops):
            tests = comparisons(loop)
            skipped, left = (self.least(loop, tests, end) for end in (0, 1))
            decided = {v: self.known(loop, t, skipped, left) for v, t in tests.items()}
            count = b.normal(b.affine(self.atom(loop.count)))
            near, far = (end(far[level] for far in fars) for end in (min, max))
            more, terms = affine_add(shapes[0][level], count, -1)
            if None in decided.values() or terms or more < 0 or any(s != shapes[0] for s in shapes):
                return None  # nor does it touch what may not be there
            fewer = max(0, min(far, more))
            high = affine_add(count, (min(near, 0) - left, {}))
            found.append(Side(affine_add(count, (fewer, {})), skipped + max(far, 0), high, decided, fewer))  # type: ignore
        return found

    def least(self, op: Loop, tests: Mapping[Var, tuple[str, Affine]], end: int) -> int:
        """How many iterations are left out at the start, or the end, for all comparisons to be known in the others."""
        for few in range(FEW):
            apart = (FEW, few) if end else (few, FEW)
            if all(self.known(op, t, *apart) is not None for t in tests.values()):
                return few
        return FEW

    def shape(self, t: Type) -> list[Affine]:
        return [self.b.normal(self.b.affine(d)) for d in t.dims]  # type: ignore[union-attr]

    def others(self, bind: Bind, but: set[int]) -> None:
        """What else the loops give."""
        wanted = tuple(v for k, v in enumerate(bind.vars) if k not in but)
        for x in tidy(Block((Bind(bind.vars, bind.op, bind.span, bind.soft),), wanted)).binds:
            self.copy(x)

    def gathered(self, grid: Grid, bind: Bind, sides: Sequence[Side]) -> Sequence[Atom]:
        """The loops over all elements that get something; arrays of zeros that they fill are not cleared before."""
        b, op, parts = self.b, grid.loops[0], grid.parts()
        inits: list[Atom] = []
        filled: list[bool] = []
        for x in grid.outputs:
            t, init = self.type(bind.vars[x.number].type), op.inits[x.number] if x.number < len(op.inits) else None  # type: ignore
            whole = self.shape(t) == [side.size for side in sides]
            filled.append(whole and (init is None or init in self.cleared))
            inits.append(b.undef(t) if filled[-1] else self.atom(init))  # type: ignore[arg-type]
        names = [bind.vars[x.number].name for x in grid.outputs]

        def elements(at: Sequence[Atom], inner: tuple[bool, ...], arrays: Sequence[Atom]) -> Sequence[Atom]:
            """The elements of the rows ``at``; ``inner``: in which of the first directions they are not at the edge."""
            level = len(at)
            side, index = sides[level], grid.loops[level].index.name
            size, high = b.affine_value(side.size), b.affine_value(side.high)
            last = level == len(sides) - 1

            def element(place: Atom, within: bool, arrays: Sequence[Atom]) -> Sequence[Atom]:
                return self.element(grid, parts, sides, [*at, place], (*inner, within), arrays, filled)

            def row(i: Atom, *arrays: Atom):
                narrow = b.prim("<", b.affine_value(sides[-1].high), Const(sides[-1].low, INT))  # all at both edges
                border = b.prim("or", b.prim("<", i, Const(side.low, INT)), b.prim(">=", i, high))
                before_last = level == len(sides) - 2
                border = b.prim("or", border, narrow) if before_last else border
                with b.branch_region(border, True) as scope:
                    one: Sequence[Atom] = arrays
                    if before_last:
                        with b.branch_region(narrow, True) as few:
                            each = one_by_one([*at, i], (*inner, False), arrays)
                        with b.branch_region(narrow, False) as many:
                            one = elements([*at, i], (*inner, False), arrays)
                        one = b.if_(narrow, (few, each), (many, one), names)
                    else:
                        one = elements([*at, i], (*inner, False), arrays)
                with b.branch_region(border, False) as other:
                    two = elements([*at, i], (*inner, True), arrays)
                return b.if_(border, (scope, one), (other, two), names), ()

            if not last:
                return b.loop(size, arrays, row, names, index, names)
            for i in range(side.low):
                arrays = element(Const(i, INT), False, arrays)
            count = b.affine_value(affine_add(side.high, (side.low, {}), -1))

            def middle(i: Atom, *arrays: Atom):
                return element(b.prim("+", Const(side.low, INT), i), True, arrays), ()

            arrays = b.loop(count, arrays, middle, names, index, names)
            for i in range(affine_add(side.size, side.high, -1)[0]):
                arrays = element(b.affine_value(affine_add(side.high, (i, {}))), False, arrays)
            return arrays

        def one_by_one(at: Sequence[Atom], inner: tuple[bool, ...], arrays: Sequence[Atom]) -> Sequence[Atom]:
            """The elements of a short row, of each of which everything is asked."""

            def element(i: Atom, *arrays: Atom):
                return self.element(grid, parts, sides, [*at, i], (*inner, False), arrays, filled), ()

            size = b.affine_value(sides[-1].size)
            return b.loop(size, arrays, element, names, grid.loops[-1].index.name, names)

        return elements([], (), inits)

    def element(
        self,
        grid: Grid,
        parts: Mapping[tuple[int, ...], Block],
        sides: Sequence[Side],
        at: Sequence[Atom],
        inner: tuple[bool, ...],
        arrays: Sequence[Atom],
        filled: Sequence[bool],
    ) -> Sequence[Atom]:
        """The arrays with one element as it is to be; ``inner``: in which directions it is not at the edge."""
        b, around = self.b, self.here
        sums = [None if new else b.get(a, *at) for a, new in zip(arrays, filled)]
        self.decided = {v: x for side, known in zip(sides, inner) if known for v, x in side.decided.items()}
        for far, part in parts.items():
            tests = []
            self.here = dict(around)
            for level, (loop, side, c) in enumerate(zip(grid.loops, sides, far)):
                i = self.here[loop.index] = b.prim("-", at[level], Const(c, INT))
                if not inner[level] and c > 0:
                    tests.append(b.prim("<=", Const(c, INT), at[level]))
                if not inner[level] and c < side.fewer:
                    tests.append(b.prim("<", i, self.atom(loop.count)))
            terms: Sequence[Atom] = self.terms(part, tests)
            sums = [s if t is ZERO else t if s is None else b.prim("+", s, t) for s, t in zip(sums, terms)]
        self.here, self.decided = around, {}
        return [b.update(a, at, ZERO if s is None else s) for a, s in zip(arrays, sums)]

    def terms(self, part: Block, tests: Sequence[Atom]) -> Sequence[Atom]:
        """What an iteration adds, if it is there and in the branch that adds something."""
        before, last = part.binds[:-1], part.binds[-1].op if part.binds else None
        alone = type(last) is If and part.results == part.binds[-1].vars
        numbers = all(x.vars[0].type in (INT, BOOL) and x.op.name != "get" for x in before)  # type: ignore[union-attr]
        if tests and alone and numbers:
            arms = last.then, last.orelse  # type: ignore[union-attr]
            nothing = [not arm.binds and all(r is ZERO for r in arm.results) for arm in arms]
            if any(nothing):
                for x in before:
                    self.line(x)
                cond = self.atom(last.cond)  # type: ignore[union-attr]
                tests = [*tests, self.b.prim("not", cond) if nothing[0] else cond]
                part = arms[nothing[0]]
        if not tests:
            return self.block(part)
        there = tests[0]
        for t in tests[1:]:
            there = self.b.prim("and", there, t)
        if there == Const(False, BOOL):
            return [ZERO] * len(part.results)
        with self.b.branch_region(there, True) as scope:
            terms = self.block(part)
        with self.b.branch_region(there, False) as other:
            pass
        return self.b.if_(there, (scope, terms), (other, [ZERO] * len(terms)))
