"""Arrays that a loop fills completely by adding to them: stored, with no clearing or copying before."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import INT, Arr, Atom, Bind, Block, Const, Loop, Prim, Program, Var, blocks_of, free_vars, reads, type_of
from ..program.affine import affine_add
from ..program.builder import Builder
from ..program.loops import loops_of, read_after_loops
from ..program.rebuild import Rebuild, rebuilt
from .tables import affine_in, sums_in

#: So many elements of an array at its ends may be left out by a loop.
MOST = 2


def fills(program: Program) -> Program:
    """Stores what a loop adds once to each element of zeros, and stores the sum where it adds to an array that is read
    later; one or two elements at the ends may be left out.

    ``(loop (- n 1) (fn [i a] (add-at a (+ i 1) x)) (zeros n))``  =>  0 at 0, and ``x`` at the others;
    ``(loop n (fn [i a] (add-at a i x)) b)``, then ``b``  =>  ``(build n (fn [i] (+ (get b i) x)))``.
    """
    if not any(adds_alone(loop, k) for loop in loops_of(program) for k in range(len(loop.accs))):
        return program
    pass_ = Fills(Builder(), program)
    if not pass_.wanted(program.body):
        return program
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def adds_alone(op: Loop, k: int) -> Prim | None:
    """The addition to one element that is all that a loop does with a vector, if it is: its k-th accumulator."""
    acc, result = op.accs[k], op.body.results[k]
    if not isinstance(acc.type, Arr) or acc.type.rank != 1 or any(type(x.op) is not Prim for x in op.body.binds):
        return None
    store = next((x.op for x in op.body.binds if result in x.vars), None)
    if type(store) is not Prim or store.name != "add-at" or store.args[0] is not acc:
        return None
    if sum(acc in reads(x) for x in op.body.binds) > 1 or any(result in reads(x) for x in op.body.binds):
        return None
    alone = [*op.body.results].count(result) == 1 and acc not in op.body.results and op.snapshots is None
    return store if alone else None


class Fills(Rebuild):
    """``fills`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        self.sums = sums_in(program.body)
        self.made: dict[Var, Bind] = {}  # in the block that is being rebuilt
        self.later: dict[Bind, set[Var]] = {}  # what is read after a loop, of what it starts from

    def wanted(self, block: Block) -> bool:
        """Whether a block has a loop that may be one of these."""
        around = self.look(block)
        found = any(next(self.starts(x), None) or any(map(self.wanted, blocks_of(x.op))) for x in block.binds)
        self.made = around
        return found

    def look(self, block: Block) -> dict[Var, Bind]:
        """Take note of what a block makes and reads; gives what was known of the one around it."""
        around, self.made = self.made, {v: x for x in block.binds for v in x.vars}
        self.later.update(read_after_loops(block))
        return around

    def block(self, block: Block) -> tuple[Atom, ...]:
        around = self.look(block)
        results = super().block(block)
        self.made = around
        return results

    def starts(self, bind: Bind) -> Iterator[tuple[int, Atom, bool]]:
        """The accumulators of a loop that it only adds to, where they start, and whether that is zeros."""
        op = bind.op
        if type(op) is not Loop or bind not in self.later:
            return
        for k, init in enumerate(op.inits):
            start = self.made.get(init) if adds_alone(op, k) else None  # type: ignore[call-overload]
            if start is None or op.inits.count(init) > 1 or init in free_vars(op.body):
                continue
            cleared = type(start.op) is Prim and start.op.name == "zeros"
            if cleared or init in self.later[bind]:  # else its memory is at hand
                yield k, init, cleared

    def bind(self, bind: Bind) -> None:
        op = bind.op
        for k, init, cleared in self.starts(bind):
            place = self.place(op, k)  # type: ignore[arg-type]
            if place is not None and (place != (0, 0) or not cleared):
                op = self.stored(op, k, place, init, cleared)  # type: ignore[arg-type]
                self.found = True
        self.copy(bind if op is bind.op else Bind(bind.vars, op, bind.span))

    def place(self, op: Loop, k: int) -> tuple[int, int | Atom] | None:
        """How many elements a loop leaves out before and after those to which it adds once; None where it does not."""
        acc, store = op.accs[k], adds_alone(op, k)
        if store is None:
            return None
        before = affine_add(affine_in(self.sums, store.args[1]), (0, {op.index: 1}), -1)
        size = self.moved(affine_in(self.sums, acc.type.dims[0]))
        left = affine_add(size, self.moved(affine_in(self.sums, op.count)), -1)
        if before == (0, {}) and left[1] and self.b.nonnegative(left):  # none where there is none
            few = self.b.nonnegative(affine_add((MOST, {}), left, -1))
            return (0, self.rest(self.atom(acc.type.dims[0]), self.atom(op.count))) if few else None
        if before[1] or left[1] or not 0 <= before[0] <= left[0] <= MOST:
            return None
        return (before[0], left[0] - before[0]) if self.b.nonnegative(affine_add(size, left, -1)) else None

    def rest(self, size: Atom, count: Atom) -> Atom:
        """How many elements a loop from the first one on leaves out: all of them where its count is negative."""
        left = self.b.prim("-", size, count)
        return left if self.b.nonnegative(self.b.affine(count)) else self.b.prim("min", left, size)

    def stored(self, op: Loop, k: int, place: tuple[int, int | Atom], init: Atom, cleared: bool) -> Loop:
        """A loop that stores what it added to the array ``k``, which starts with its ends alone."""
        b, old = self.b, self.atom(init)
        t = type_of(old)
        acc, result = op.accs[k], op.body.results[k]
        size = t.dims[0]  # type: ignore[union-attr]
        before, after = place
        array = b.undef(t)

        def end(array: Atom, at: Atom) -> Atom:
            return b.update(array, [at], b.zeros(t.elem) if cleared else b.get(old, at))  # type: ignore

        ends = [Const(i, INT) for i in range(before)]
        if isinstance(after, int):
            ends += [b.prim("-", size, Const(i, INT)) for i in range(after, 0, -1)]
        for at in ends:
            array = end(array, at)
        if not isinstance(after, int):
            first = b.prim("-", size, after)
            (array,) = b.loop(after, [array], lambda i, array: ([end(array, b.prim("+", first, i))], ()), [acc.name])
        binds: list[Bind] = []
        for x in op.body.binds:
            if result in x.vars:
                *subscripts, value = x.op.args[1:]  # type: ignore[union-attr]
                if not cleared:
                    was, total = Var(acc.name, type_of(value), x.span), Var("t", type_of(value), x.span)
                    binds.append(Bind((was,), Prim("get", (init, *subscripts)), x.span))
                    binds.append(Bind((total,), Prim("+", (was, value)), x.span))
                    value = total
                x = Bind(x.vars, Prim("update", (acc, *subscripts, value)), x.span)
            binds.append(x)
        fresh = Var(acc.name, acc.type, acc.span)
        self.here[fresh] = array
        inits = tuple(fresh if j == k else z for j, z in enumerate(op.inits))
        return Loop(op.count, op.index, inits, op.accs, Block(tuple(binds), op.body.results), op.snapshots)
