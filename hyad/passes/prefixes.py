"""Prefix computations, which an inner loop repeats one step further in each iteration of an outer one: done once."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    REAL,
    Atom,
    Bind,
    Block,
    Check,
    If,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    defined_in,
    free_vars,
    integer,
    kinds_of,
    type_atoms,
    with_body,
)
from ..program.affine import affine_in
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks
from ..program.loops import array_uses, closure
from ..program.rebuild import Rebuild
from .trips import counting, longest, of_the_index, worth
from .unchanged import integers_of


def prefixes(program: Program) -> Program:
    """Replaces inner loops that go through a prefix, one element longer in each iteration, by one loop before (prefix
    sums and the like).

    ``(build n (fn [i] (f (ifold (fn [s j] (g s j)) z (+ i 1)))))``  =>  ``s``, a loop that stacks each ``(g s j)``;
    ``(build n (fn [i] (f (get s i))))``. An array that is built as far as the index is a part of one built once.
    Design decision: to the last bit, since each sum is the one before with a term added to it, as it is written: from
    the first element on. Sums to the last element are not, unless they were added from there. What comes after
    something that may fail stays: it may need what that has checked. So are loops that take as many steps as an integer
    says which is another one in each iteration: until a payment is due, say. Those take as many as the largest of them
    says (off: ``trips``), in an array that is as long, and only where they have calls or loops in them.
    """
    made = prefixes_block(Builder(), program.body, program.dims)
    return program if made is program.body else dead_code(with_body(program, made))


def prefixes_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``prefixes`` for a block under construction. Design decision: also before a block is differentiated, so that a
    derivative takes as many steps as the value."""
    if "prefixes" in b.off or not any(type(x.op) is Loop and Loop in kinds_of(x.op.body) for x in all_binds(block)):
        return block
    b.sizes.update(sizes)
    pass_ = Prefixes(b, block)
    if not any(type(x.op) is Loop and pass_.growing(x.op) for x in all_binds(block)):
        return block
    return pass_.remade(block)


class Prefixes(Rebuild):
    """``prefixes`` for a block. ``last``: for a loop that has been done once, what its accumulators were after each
    step, and how many steps it takes more than an integer of the iteration around."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.uses = array_uses(block)
        self.integers = integers_of(block)
        self.last: dict[Bind, tuple[Sequence[Atom], int, Atom]] = {}

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        for x, more, before, binds in self.growing(op):
            self.first(before, op)
            self.once(x, x.op, more, op, binds)  # type: ignore[arg-type]
        return super().loop(op, bind)

    def bind(self, bind: Bind) -> None:
        if bind in self.last:
            self.define(bind, self.after(bind, bind.op, *self.last[bind]))  # type: ignore[arg-type]
        else:
            self.copy(bind)

    def growing(self, op: Loop) -> list[tuple[Bind, int, list[Bind], list[Bind]]]:
        """The loops in the body of another that take as many steps as its index says, or one more, or as another
        integer says, and need nothing else of it; how many more, the numbers that are the same in all iterations and
        needed by them, and what makes that integer."""
        varying: set[Atom] = {op.index, *op.accs, *defined_in(op.body)}
        same: dict[Atom, Bind] = {}
        found: list[tuple[Bind, int, list[Bind], list[Bind]]] = []
        numbers, making = of_the_index(op)
        checked = False
        for x in op.body.binds:
            inner = x.op
            if type(inner) is Prim and x.vars[0].type == REAL and inner.name not in ("stop", "undef"):
                if all(a in same or a not in varying for a in inner.args):
                    same[x.vars[0]] = x
            if type(inner) is Loop and inner.snapshots is None and not inner.index.soft and plain(inner):
                more, terms = affine_in(inner.count, self.integers)
                grows = terms == {op.index: 1} and more in (0, 1) and not checked
                own = {inner.index, *inner.accs, *defined_in(inner.body)}
                sizes = (d for v in own for d in type_atoms(v.type))
                needs = varying.intersection((*free_vars(inner.body), *inner.inits, *sizes)) - own
                steady = not needs or not checked and all(a in same for a in needs)
                steady = steady and self.read_by_element(x)
                if steady and (grows or inner.count in numbers and worth(inner) and "trips" not in self.b.off):
                    binds = [] if grows else counting(op, making, x, inner.count)
                    found.append((x, more if grows else 0, closure(list(same.values()), needs), binds))
                    varying.difference_update(x.vars[len(inner.accs) :])  # the same elements for all iterations
            if has_checks(Block((x,), ())):
                checked = True
                if x not in making:
                    break  # what comes after it may need it
        return found

    def first(self, binds: Sequence[Bind], around: Loop) -> None:
        """Emits numbers that all iterations share, if there are any: what they are made of need not be there else."""
        if not binds:
            return
        b = self.b
        some = b.prim(">", self.atom(around.count), integer(0))
        with b.branch_region(some, True) as scope:
            self.block(Block(tuple(binds), ()))
        with b.branch_region(some, False) as other:
            zeros = [b.zeros(x.vars[0].type) for x in binds]
        names = [x.vars[0].name for x in binds]
        made = b.if_(some, (scope, [self.here[x.vars[0]] for x in binds]), (other, zeros), names)
        self.here.update((x.vars[0], a) for x, a in zip(binds, made))

    def read_by_element(self, x: Bind) -> bool:
        """Whether nothing is read of what a loop stacks but its elements."""
        arrays = x.vars[len(x.op.accs) :]  # type: ignore[union-attr]
        return all(use.subscripts for v in arrays for use in self.uses.get(v, ()))

    def once(self, x: Bind, inner: Loop, more: int, around: Loop, binds: Sequence[Bind]) -> None:
        """Emits a loop for all of the iterations around it."""
        b, width = self.b, len(inner.accs)
        b.span, soft, b.soft = x.span, b.soft, x.soft
        b.fired("prefixes")
        if binds:
            count = longest(self, around, binds, inner.count)
        else:
            count = self.atom(around.count)
            count = b.trips(count if more else b.prim("-", count, integer(1)))

        def body(j: Atom, *accs: Atom):
            self.here[inner.index] = j
            self.here.update(zip(inner.accs, accs))
            results = self.block(inner.body)
            return results[:width], results

        names, accs = [v.name for v in x.vars], [a.name for a in inner.accs]
        made = b.loop(count, self.atoms(inner.inits), body, [*names[:width], *names], inner.index.name, accs)
        b.soft = soft
        self.here.update(zip(x.vars[width:], made[2 * width :]))
        self.last[x] = (made[width : 2 * width], more, inner.count if binds else around.index)

    def after(self, x: Bind, inner: Loop, states: Sequence[Atom], more: int, steps: Atom) -> list[Atom]:
        """What a loop gives in one iteration."""
        b, i = self.b, self.atom(steps)
        stacked = [self.here[v] for v in x.vars[len(inner.accs) :]]
        if more:
            return [*(b.get(s, i, hint=v.name) for s, v in zip(states, x.vars)), *stacked]
        some = b.prim(">", i, integer(0))
        with b.branch_region(some, True) as scope:
            before = b.prim("-", i, integer(1))
            found = [b.get(s, before, hint=v.name) for s, v in zip(states, x.vars)]
        with b.branch_region(some, False) as other:
            pass
        starts = list(self.atoms(inner.inits))
        names = [v.name for v in x.vars[: len(inner.accs)]]
        return [*(b.if_(some, (scope, found), (other, starts), names) if states else ()), *stacked]


def plain(inner: Loop) -> bool:
    """Whether a loop computes numbers, in what a program without functions and data has."""
    return kinds_of(inner.body) <= {Prim, Loop, If, Check} and all(
        isinstance(a.type, Scalar) for a in (*inner.accs, *inner.body.results)
    )
