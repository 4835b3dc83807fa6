"""Index-set splitting: loops whose index decides a branch, split where the decision changes."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign

from ..core import INT, Atom, Bind, Const, If, Loop, Prim, Var, all_binds, blocks_of, defined_in
from ..program.affine import affine_add, negated
from ..program.builder import Builder
from ..program.rebuild import Rebuild
from .tables import affine_of

#: A loop with more bindings in it, those of the branch aside, is not written twice.
SHORT = 60


class Split(Rebuild):
    """A loop with a branch that its index decides, below a bound this way, from there on that way, becomes two loops.

    ``(build n (fn [i] (if (< i k) (f i) (g i))))``  =>  ``f`` for the first ``k`` elements, ``g`` for the others.
    The part in which nothing but zeros is added to sums is left out: a sum from 0.0 on never is -0.0, which that would
    change. Design decision: innermost loops alone, where a branch keeps a compiler from taking several iterations at
    once, and inside another loop, which may run on several threads.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.depth = 0

    def bind(self, bind: Bind) -> None:
        op = bind.op
        found = self.decision(op) if type(op) is Loop and self.depth else None
        if found is None:
            self.depth += type(op) is Loop
            self.copy(bind)
            self.depth -= type(op) is Loop
            return
        cond, first, bound = found
        b, width, count = self.b, len(op.accs), self.atom(op.count)  # type: ignore[union-attr]
        at = self.integer(bound)
        inside = affine_add(b.affine(count), b.affine(at), -1)
        if not b.nonnegative(b.affine(at)):
            at = b.prim("max", Const(0, INT), at)
        if not b.nonnegative(inside):
            at = b.prim("min", count, at)
        left = b.prim("-", count, at)
        b.sizes.update(v for v in (at, left) if type(v) is Var)
        state = [*self.atoms(op.inits), *(b.undef(self.type(v.type)) for v in bind.vars[width:])]  # type: ignore
        names = [v.name for v in bind.vars]
        accs = [*(a.name for a in op.accs), *names[width:]]  # type: ignore[union-attr]
        for length, start, holds in ((at, Const(0, INT), first), (left, at, not first)):

            def body(i: Atom, *state: Atom, start: Atom = start, holds: bool = holds):
                index = b.prim("+", start, i)
                return self.part(op, cond, index, state, holds), ()  # type: ignore[arg-type]

            none = type(length) is Const and length.value == 0
            if not none and not adds_zeros(op, cond, holds):  # type: ignore[arg-type]
                state = list(b.loop(length, state, body, names, op.index.name, accs))  # type: ignore[union-attr]
        b.span = bind.span
        self.define(bind, state)

    def part(self, op: Loop, cond: Atom, index: Atom, state: Sequence[Atom], holds: bool) -> list[Atom]:
        """An iteration of which it is known whether the condition holds."""
        width = len(op.accs)
        self.here[op.index] = index
        self.here.update(zip(op.accs, state))
        around = self.holds
        for bind in op.body.binds:
            self.b.span = bind.span
            self.bind(bind)
            if cond in bind.vars:
                self.holds = {**around, self.atom(cond): holds}
        self.holds = around
        results = self.atoms(op.body.results)
        arrays = [self.b.update(a, [index], x, a.name) for a, x in zip(state[width:], results[width:])]  # type: ignore
        return [*results[:width], *arrays]

    def decision(self, op: Loop) -> tuple[Atom, bool, tuple] | None:
        """The condition of a branch that changes once, whether it holds at first, and from where on it does not."""
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
            test = made.get(branch.cond)  # type: ignore[arg-type]
            if test is None or test.name not in ("<", "<=", ">", ">=") or any(a.type != INT for a in test.args):
                continue
            one_sided = sum(1 for block in blocks_of(branch) for _ in all_binds(block))
            if not one_sided or len(found) - one_sided > SHORT:
                continue
            low, high = (affine_of(a, integers, inside, {op.index}) for a in test.args)  # type: ignore[misc]
            if low is None or high is None:
                continue
            if test.name in (">", ">="):
                low, high = high, low
            gap = affine_add(high, low, -1)  # holds where this is positive, or not negative
            if test.name in ("<", ">"):
                gap = affine_add(gap, (1, {}), -1)
            step = gap[1].get(op.index, 0)
            rest = affine_add(gap, (0, {op.index: 1}), -step)
            if step in (1, -1):
                bound = affine_add(rest, (1, {})) if step == -1 else negated(rest)  # i <= rest, or i >= -rest
                if not self.at_end(op, bound):
                    return branch.cond, step == -1, bound
        return None

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


def adds_zeros(op: Loop, cond: Atom, holds: bool) -> bool:
    """Whether a loop does nothing, where it is known that a condition holds or not, but add 0.0 to sums from 0.0 on."""
    if len(op.body.results) != len(op.accs):
        return False
    branches = [x for x in op.body.binds if type(x.op) is If and x.op.cond is cond]
    zeros = {v for x in branches for v, r in zip(x.vars, blocks_of(x.op)[not holds].results) if is_plain_zero(r)}
    sums = {x.vars[0]: x.op.args for x in op.body.binds if type(x.op) is Prim and x.op.name == "+"}
    for acc, init, r in zip(op.accs, op.inits, op.body.results):
        if r is not acc and not (is_plain_zero(init) and acc in sums.get(r, ()) and zeros.intersection(sums[r])):  # type: ignore
            return False
    return True


def is_plain_zero(a: Atom) -> bool:
    return type(a) is Const and a.value == 0 and copysign(1.0, a.value) > 0
