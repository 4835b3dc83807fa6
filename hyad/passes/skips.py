"""Adjoints that are zero go nowhere: what follows of them in an iteration is skipped.

The largest of several values hands its adjoint on to one of them alone. So do the steps of a best path: where the last
state alone has an adjoint, one state has one in every step before, and an iteration for any other adds zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import REAL, ZERO, Atom, Bind, Block, Const, If, Loop, Prim, Program, Var, blocks_of, is_zero, reads
from ..program.builder import Builder
from ..program.loops import loops_of, slice_of
from ..program.rebuild import Rebuild, rebuilt
from ..program.sink import dependent, sink


class Skips(Rebuild):
    """What an iteration does with an adjoint is done if that is not zero, where nothing else would change.

    ``(let [t (get x_bar j)  k (place-of-the-largest j)] (add-at y_bar k t))``  =>
    ``(if (!= t 0) (add-at y_bar k t) y_bar)``, and the search only if it is needed.
    Design decision: found by supposing, as ``idle`` does: the rest of the iteration is built with a zero, and has to
    leave all as it was, or constant. Products do not, since zero times what is infinite is NaN. It must be worth a
    branch that a processor may not foresee: a loop that looks for the place is skipped, or each iteration waits for the
    adjoint that the one before has chosen a way for, so that no vectors are lost. A table that is filled in place has
    its adjoints cleared as they are read: what is zero need not be.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False
        self.carried: set[Atom] = set()  # the accumulators of the loops around

    def wanted(self, block: Block) -> bool:
        """Whether there is anything to skip in a block."""
        for x in block.binds:
            around, looped = self.carried, type(x.op) is Loop
            self.carried = {*around, *x.op.accs} if looped else around  # type: ignore[union-attr]
            found = looped and self.first(x.op) is not None or any(map(self.wanted, blocks_of(x.op)))  # type: ignore
            self.carried = around
            if found:
                return True
        return False

    def first(self, op: Loop) -> int | None:
        """The binding of a loop's body of which what follows is to be skipped."""
        return next((k for k, x in enumerate(op.body.binds) if self.adjoint(op, x) and self.worth(op, k)), None)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        around, self.carried = self.carried, {*self.carried, *op.accs}
        first = self.first(op)

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body) if first is None else self.parted(op, first, accs)
            return results[: len(accs)], results[len(accs) :]

        made = self.loop_like(op, bind, body)
        self.carried = around
        return made

    def adjoint(self, op: Loop, x: Bind) -> bool:
        """Whether a binding is a number that is read of what loops carry, or a sum of differentiation's of such."""
        if type(x.op) is not Prim or x.vars[0].type != REAL:
            return False
        if x.op.name == "get":
            return x.op.args[0] in self.carried
        return x.op.name == "+" and x.soft and not self.carried.isdisjoint(x.op.args)

    def worth(self, op: Loop, k: int) -> bool:
        """Whether what follows of the k-th binding of a loop's body is differentiation's, and worth a branch."""
        x, later = op.body.binds[k], op.body.binds[k + 1 :]
        after = followed(x, later)
        moving = [r for r in op.body.results if r in after]
        if len(op.accs) < len(op.body.results) or not moving or not additions(later, after):
            return False
        skipped = slice_of(Block(later, ()), moving).binds
        steady = slice_of(Block(later, ()), [r for r in op.body.results if r not in after]).binds
        if any(type(y.op) is Loop and y not in steady and after.isdisjoint(y.vars) for y in skipped):
            return True  # what looks for the place
        chosen = any(type(y.op) is Prim and y.op.name == "select" and not after.isdisjoint(y.op.args) for y in skipped)
        return (
            chosen and any(a in reads(x) and r in after for a, r in zip(op.accs, op.body.results)) and moves(x, skipped)
        )

    def parted(self, op: Loop, k: int, accs: Sequence[Atom]) -> Sequence[Atom]:
        """The results of a loop's body, in which what follows of the k-th binding is skipped if that is zero."""
        b, block = self.b, op.body
        self.block(Block(block.binds[: k + 1], ()))
        x, later = block.binds[k], Block(block.binds[k + 1 :], ())
        after = followed(x, later.binds)
        moving = {r: a for r, a in zip(block.results, accs) if r in after}
        zero = self.supposed(x, later, list(moving))
        if any(r is not a and type(r) is not Const for r, a in zip(zero, moving.values())):
            return self.block(Block(later.binds, block.results))
        self.found = True
        b.fired("skips")
        self.block(slice_of(later, [r for r in block.results if r not in after]))
        cond = b.prim("!=", self.atom(x.vars[0]), ZERO)
        with b.branch_region(cond, True) as scope:
            results = self.block(slice_of(later, list(moving)))
        with b.branch_region(cond, False) as nothing:
            pass
        made = b.if_(cond, (scope, results), (nothing, zero), [a.name for a in moving.values()])  # type: ignore[union-attr]
        self.here.update(zip(moving, made))  # type: ignore[arg-type]
        return self.atoms(block.results)

    def supposed(self, x: Bind, later: Block, wanted: Sequence[Atom]) -> Sequence[Atom]:
        """What is wanted of the bindings that follow one, should that be zero."""
        here = dict(self.here)
        with self.b.region():
            self.here[x.vars[0]] = ZERO
            for y in slice_of(later, wanted).binds:
                if clears(y, x):  # what is zero
                    self.here[y.vars[0]] = self.atom(x.op.args[0])  # type: ignore[union-attr]
                else:
                    self.bind(y)
            results = self.atoms(wanted)
        self.here = here
        return results


def clears(y: Bind, x: Bind) -> bool:
    """Whether ``y`` puts zero where ``x`` has read: what was there has gone on its way."""
    return (
        type(y.op) is Prim and y.op.name == "update" and is_zero(y.op.args[-1]) and y.op.args[:-1] == x.op.args  # type: ignore[union-attr]
    )


def followed(x: Bind, later: Sequence[Bind]) -> set[Var]:
    """What depends on ``x``, and on its being cleared where it is read."""
    found = dependent(x, later)
    for y in later:
        if clears(y, x):
            found |= dependent(y, later)
    return found


def moves(x: Bind, binds: Sequence[Bind]) -> bool:
    """Whether what is read of an array is added to another of its elements."""
    if x.op.name != "get" or not any(clears(y, x) for y in binds):  # type: ignore[union-attr]
        return True
    stores = [y.op for y in binds if type(y.op) is Prim and y.op.name == "add-at"]
    return any(op.args[1:-1] != x.op.args[1:] and op.args[0].type == x.op.args[0].type for op in stores)  # type: ignore[union-attr]


def additions(binds: Sequence[Bind], moving: set[Var]) -> bool:
    """Whether nothing but differentiation's own additions, and choices, is done with what moves: a user's sum with a
    zero may differ in its sign."""
    after: set[Atom] = {*moving}
    for x in binds:
        op = x.op
        if after.isdisjoint(reads(x)):
            continue
        if type(op) is Prim and op.name == "update" and is_zero(op.args[-1]) and after.isdisjoint(op.args[1:]):
            after.update(x.vars)
            continue
        if type(op) is Prim:
            summed = op.name in ("+", "-") and x.soft
            added = op.name == "add-at" and x.soft and after.isdisjoint(op.args[1:-1])
            if not (summed or added or op.name in ("neg", "select")):
                return False
        elif type(op) not in (If, Loop) or type(op) is If and op.cond in after:
            return False
        elif not all(additions(inner.binds, {*after, *getattr(op, "accs", ())}) for inner in blocks_of(op)):
            return False
        after.update(x.vars)
    return True


def skips(program: Program) -> Program:
    """Skips what an iteration computes from an adjoint that is zero."""
    if not any(type(x.op) is Prim and x.op.name == "add-at" for loop in loops_of(program) for x in loop.body.binds):
        return program
    pass_ = Skips(Builder())
    if not pass_.wanted(program.body):
        return program
    made = rebuilt(program, pass_)
    return sink(made) if pass_.found else program
