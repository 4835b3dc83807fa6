"""Arrays that a loop changes, and reads where it does not: what is read is read of the array as it was before.

``filled``: a row, or an array, of which each iteration stores the next element is built, and stored as one.
``unchanged``: an array that is only wanted in the loop itself is not made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    blocks_of,
    count_uses,
    defined_in,
    given,
    reads,
    same,
    type_of,
    uses,
    with_body,
)
from ..program.affine import affine_add, affine_in, directions, furthest, negated
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.loops import array_uses
from ..program.rebuild import Rebuild, rebuilt


def filled(program: Program) -> Program:
    """Turns a loop that stores one element of a row in each iteration, first to last, and reads no other element of
    that row, into a ``build`` of the row.

    ``(ifold (fn [a j] (update a t j (f (get a t j) (get a s j)))) z n)``  =>
    ``(update z t (build n (fn [j] (f (get z t j) (get z s j)))))`` where s is not t, as it is known to be or a branch
    around says, and without a t the array itself is built.
    Design decision: before differentiation too. Each iteration of such a loop is one for itself, and so is that of its
    derivative; as a table that goes from one to the next it would be remembered.
    """
    made = filled_block(Builder(), program.body, program.dims)
    return program if made is program.body else dead_code(with_body(program, made))


def filled_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``filled`` for a block under construction."""
    if "filled" in b.off or not any(arrays(x) for x in all_binds(block)):
        return block
    b.sizes.update(sizes)
    while True:  # a loop over rows that have been built stores one in each iteration
        pass_ = Filled(b, block)
        loops = (x.op for x in all_binds(block) if type(x.op) is Loop)
        if not any(pass_.written(op, k) for op in loops for k, a in enumerate(op.accs) if isinstance(a.type, Arr)):
            return block
        made = pass_.remade(block)
        if not pass_.found:
            return block
        block = made


class Filled(Rebuild):
    """``filled`` for a block."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.integers = integers_of(block)
        self.found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        stores = {k: x for k, a in enumerate(op.accs) if isinstance(a.type, Arr) and (x := self.store(op, k))}
        if not stores:
            return super().loop(op, bind)
        self.found = True
        self.b.fired("filled")
        width, rest = len(op.accs), [k for k in range(len(op.accs)) if k not in stores]
        starts = {k: self.atom(op.inits[k]) for k in stores}

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update((op.accs[k], z) for k, z in starts.items())
            self.here.update(zip([op.accs[k] for k in rest], accs))
            binds = [x for x in op.body.binds if x not in stores.values()]
            self.block(Block(tuple(binds), ()))
            values = [x.op.args[-1] for x in stores.values()]  # type: ignore[union-attr]
            return self.atoms([op.body.results[k] for k in rest]), self.atoms([*op.body.results[width:], *values])

        names = [v.name for v in (*(bind.vars[k] for k in rest), *bind.vars[width:], *(bind.vars[k] for k in stores))]
        inits = [self.atom(op.inits[k]) for k in rest]
        acc_names = [op.accs[k].name for k in rest]
        out = self.b.loop(self.atom(op.count), inits, body, names, op.index.name, acc_names, given(bind))
        self.b.span = bind.span
        after = dict(zip(rest, out))
        for (k, x), row in zip(stores.items(), out[len(bind.vars) - len(stores) :]):
            place = self.atoms(x.op.args[1:-2])  # type: ignore[union-attr]
            after[k] = self.b.update(starts[k], place, row, bind.vars[k].name) if place else row
        return [*(after[k] for k in range(width)), *out[len(rest) : len(bind.vars) - len(stores)]]

    def store(self, op: Loop, k: int) -> Bind | None:
        """Where the body stores the element of this iteration, where that is all that it does with the array but for
        reading this element, and other rows; of an array that is zero before, also a row and what is in it."""
        x = self.written(op, k)
        if x is None:
            return None
        acc, own, inside = op.accs[k], x.op.args[1:-1], inner_of(op)  # type: ignore[union-attr]
        start = self.b.definitions.get(self.atom(op.inits[k]))  # type: ignore[arg-type]
        fresh = start is not None and start.name == "zeros"
        apart = (
            (y.subscripts[: len(own)] if fresh else y.subscripts) == own
            or differ(y.subscripts, own[:-1], inside, self.integers)
            or self.unequal(y.subscripts, own[:-1], inside)
            or self.ordered(op, y.subscripts, own[:-1], inside)
            for y in array_uses(op.body)[acc]
            if y.subscripts is not None
        )
        return x if all(apart) else None

    @staticmethod
    def written(op: Loop, k: int) -> Bind | None:
        """Where the body stores the element of this iteration, whatever else of the array it reads."""
        acc, result = op.accs[k], op.body.results[k]
        x = next((x for x in op.body.binds if result in x.vars), None)
        if x is None or type(x.op) is not Prim or x.op.name != "update" or x.op.args[0] is not acc:
            return None
        *row, at = x.op.args[1:-1]
        inside = inner_of(op)
        if at is not op.index or not inside.isdisjoint(row) or not same(acc.type.dims[len(row)], op.count):  # type: ignore
            return None
        others = [y for y in array_uses(op.body)[acc] if y.subscripts is None]
        if op.snapshots is not None or op.index.soft or len(others) > 1 or count_uses(op.body, result) > 1:  # type: ignore
            return None
        return x

    def unequal(self, one: Sequence[Atom], other: Sequence[Atom], inside: set[Var]) -> bool:
        """Whether two elements differ in a subscript, by the conditions of the branches around the loop."""
        b = self.b
        known: list[tuple[Atom, bool]] = list(self.holds.items())
        pairs = []
        while known:
            cond, holds = known.pop()
            op = b.definitions.get(cond)  # type: ignore[call-overload]
            if op is None:
                continue
            if op.name == "not":
                known.append((op.args[0], not holds))
            elif op.name == ("and" if holds else "or"):
                known += [(a, holds) for a in op.args]
            elif op.name == ("!=" if holds else "=") and type_of(op.args[0]) == INT:
                pairs.append(affine_add(b.affine(op.args[0]), b.affine(op.args[1]), -1))
        for x, y in zip(one, other) if pairs else ():
            if x not in inside and y not in inside:
                gap = affine_add(b.affine(self.atom(x)), b.affine(self.atom(y)), -1)
                if gap in pairs or negated(gap) in pairs:
                    return True
        return False

    def ordered(self, op: Loop, one: Sequence[Atom], other: Sequence[Atom], inside: set[Var]) -> bool:
        """Whether two elements differ in a subscript of which one is the larger whatever the indices of the loops in
        the body are: a recurrence with some memory reads rows that are before the one that it fills. Not where one row
        is read by all, as in an elimination, which a GPU takes element by element."""
        b = self.b
        for x in all_binds(op.body):
            if type(x.op) is Loop and x.op.count in inside:
                b.sizes.add(x.op.index)
            elif type(x.op) is Loop:
                b.counted(x.op.index, self.atom(x.op.count))
        for a, c in zip(one, other):
            if c not in inside and not inside.isdisjoint(affine_in(a, self.integers)[1]):
                gap = affine_add(b.affine(self.atom(c)), self.moved(affine_in(a, self.integers)), -1)
                if any(b.nonnegative(affine_add(x, (1, {}), -1)) for x in (gap, negated(gap))):
                    return True
        return False


def unchanged(program: Program) -> Program:
    """Reads elements that a loop leaves as they are from the array as it was before, so that a changed array that
    nothing reads later is not made.

    ``(ifold (fn [a j] (update a (+ t 1) j (f (get a t j)))) z n)``  =>  the same with ``(get z t j)``, and no ``a``. So
    is an element that each iteration reads before it changes it, where no two change the same one: the adjoint of what
    a table's element is set to, which is cleared then.
    Design decision: where the array vanishes with it alone, else it would have to be copied, to be there in both forms.
    Backward code runs the iterations of a table that is filled in place again, for what they read of it: what they
    fill is there already, in what the next iteration has remembered.
    """
    finals = uses(program.body)
    if not any(v not in finals for x in all_binds(program.body) for v in arrays(x)):
        return program
    pass_ = Unchanged(Builder(), program, finals)
    made = rebuilt(program, pass_)
    return dead_code(made) if pass_.before else program


def arrays(bind: Bind) -> list[Var]:
    """The arrays that a loop changes, as they are after it."""
    op = bind.op
    return [v for v in bind.vars[: len(op.accs)] if isinstance(v.type, Arr)] if type(op) is Loop else []


class Unchanged(Rebuild):
    """``unchanged`` for a program; ``before``: what the arrays of which single elements are read were before."""

    def __init__(self, builder: Builder, program: Program, finals: dict[Var, int]) -> None:
        super().__init__(builder)
        self.finals = finals
        self.integers = integers_of(program.body)
        self.before: dict[Prim, Atom] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        for v in arrays(bind):
            k = bind.vars.index(v)
            if v not in self.finals:
                course = Course({op.accs[k]})  # type: ignore[union-attr]
                if course.goes(op.body) == [k] and course.looks and self.apart(op, course):  # type: ignore[union-attr]
                    self.before.update(dict.fromkeys(course.looks, op.inits[k]))  # type: ignore[union-attr]
        super().bind(bind)

    def prim(self, op: Prim, var: Var) -> Atom:
        if op in self.before:
            return self.b.get(self.atom(self.before[op]), *self.atoms(op.args[1:]), hint=var.name, given=var.given)
        return super().prim(op, var)

    @staticmethod
    def loops(op: Loop, indices: Sequence[Var]) -> list[Loop]:
        """A loop, and those inside it that have these indices."""
        found = {x.op.index: x.op for x in all_binds(op.body) if type(x.op) is Loop} if indices else {}
        return [op, *map(found.__getitem__, indices)]

    def apart(self, op: Loop, course: Course) -> bool:
        """Whether no element that is read is one that has been changed."""
        inside = inner_of(op)

        def alone(look: Prim, change: Prim) -> bool:
            one, other = look.args[1:], change.args[1:-1]
            if differ(one, other, inside, self.integers):
                return True
            if self.aside(one, other, *(self.loops(op, course.place[x][1]) for x in (look, change)), inside):
                return True
            (before, here), (after, there) = course.place[look], course.place[change]
            return before < after and self.own(one, other, [op.index, *(v for v in here if v in there)], inside)

        return all(alone(look, change) for look in course.looks for change in course.changes)

    def aside(
        self, look: Sequence[Atom], change: Sequence[Atom], here: list[Loop], there: list[Loop], inside: set[Var]
    ) -> bool:
        """Whether all elements that are changed lie on one side of all that are read, along an axis or a diagonal."""
        width = min(len(look), len(change))
        places = [[affine_in(a, self.integers) for a in place[:width]] for place in (look, change)]
        mine, others = ({x.index: affine_in(x.count, self.integers) for x in loops} for loops in (here, there))
        for one, other in zip(*map(directions, places)):
            for side in (True, False):
                most, least = furthest(one, side, mine), furthest(other, not side, others)
                gap = affine_add(least, most, -1) if side else affine_add(most, least, -1)
                if inside.isdisjoint(gap[1]) and self.b.nonnegative(affine_add(self.moved(gap), (1, {}), -1)):
                    return True
        return False

    def own(self, look: Sequence[Atom], change: Sequence[Atom], loops: Sequence[Var], inside: set[Var]) -> bool:
        """Whether each iteration of these loops has elements of its own, all that it reads and changes: for each there
        is a subscript that nothing else moves, or another of these loops which has one."""
        places = [affine_in(a, self.integers) for a in change]
        at = [x for x, a in zip(places, look) if x == affine_in(a, self.integers)]
        moved = [{v for v in terms if v in inside} for _, terms in at]
        own: set[Var] = set()
        while found := {v for v in loops if v not in own and any(each - own == {v} for each in moved)}:
            own |= found
        return own.issuperset(loops)


def integers_of(block: Block) -> dict[Var, Prim]:
    """How the integers of a block are computed."""
    return {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == INT}


def inner_of(op: Loop) -> set[Var]:
    """What may differ from iteration to iteration."""
    return {op.index, *op.accs, *defined_in(op.body)}


def differ(one: Sequence[Atom], other: Sequence[Atom], inside: set[Var], integers: Mapping[Var, Prim]) -> bool:
    """Whether two elements differ in a subscript, each of the two being the same in all iterations."""
    for a, b in zip(one, other):
        x, y = affine_in(a, integers), affine_in(b, integers)
        constant, terms = affine_add(x, y, -1)
        if not terms and constant and inside.isdisjoint(x[1]) and inside.isdisjoint(y[1]):
            return True
    return False


class Course:
    """What an array is in a loop, change by change, ``vars``; where elements of it are read and changed."""

    def __init__(self, vars: set[Var]) -> None:
        self.vars = vars
        self.looks: list[Prim] = []
        self.changes: list[Prim] = []
        self.place: dict[Prim, tuple[int, list[Var]]] = {}  # where each stands, and in which loops
        self.loops: list[Var] = []  # those inside of the loop that are being gone through

    def goes(self, block: Block) -> list[int] | None:
        """As which results a block gives the array; None if it does anything else with it than to read and change
        elements of it."""
        known = all(self.vars.isdisjoint(reads(bind)) or self.step(bind) for bind in block.binds)
        return [k for k, r in enumerate(block.results) if r in self.vars] if known else None

    def step(self, bind: Bind) -> bool:
        op = bind.op
        if type(op) is Prim:
            if op.args[0] not in self.vars or not self.vars.isdisjoint(op.args[1:]):
                return False
            self.place[op] = len(self.place), [*self.loops]
            if op.name == "get":
                self.looks.append(op)
                return True
            self.changes.append(op)
            self.vars.add(bind.vars[0])
            return op.name in ("update", "add-at")
        if type(op) is If:
            here, other = map(self.goes, blocks_of(op))
            self.vars.update(bind.vars[k] for k in here or ())
            return here is not None and here == other
        if type(op) is Loop:
            going = [k for k, z in enumerate(op.inits) if z in self.vars]
            self.vars.update(op.accs[k] for k in going)
            self.vars.update(bind.vars[k] for k in going)
            self.loops.append(op.index)
            there = self.goes(op.body)
            self.loops.pop()
            return there == going
        return False
