"""Which tangents may be 0 because nothing moves the value: a branch or a ``max`` gave a constant, or a loop just began.

The tangent of what is made of it is then 0 too, however steep that is there: but 0 times an infinite slope is NaN, as
in ``(sqrt (max v 0))`` for a negative v. A tangent that may rest therefore goes through a root or the like by
``pass-on``, which gives 0 for 0. (``left_out`` has the same for adjoints.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core import Apply, Atom, Bind, Block, Case, Const, If, Loop, Make, Prim, Var, While, all_binds
from .left_out import STEEP_WHERE_FINITE, whole_exponent
from .masses import Masses

#: What has an infinite slope at 1 or -1; the others have theirs at 0.
STEEP_AT_ONE = frozenset({"asin", "acos", "acosh"})


class Resting:
    """For a block and the directions in which its variables move: where a tangent may be 0 at an infinite slope.

    A tangent surely moves if a tangent that surely moves is added to it, as a parameter's does, but not the parameters
    of a function, which may be called with anything (``called``). What a variable rests at, where that is a constant,
    tells whether a slope is infinite there: what is 0 or unknown is kept apart from 1 or -1.
    """

    def __init__(self, block: Block, active: Mapping[Var, int], called: Iterable[Var] = ()) -> None:
        self.active = active
        self.rests: dict[Var, tuple[int, int]] = {}  # the directions: at 0 or an unknown number, at 1 or -1
        self.no_mass = Masses(block).logarithms
        if any(
            type(x.op) is Prim and x.op.name in STEEP_WHERE_FINITE and active.get(x.vars[0]) for x in all_binds(block)
        ):
            self.empty = {x.vars[0] for x in all_binds(block) if type(x.op) is Prim and x.op.name == "undef"}
            self.rests.update((p, (active.get(p, 0), 0)) for p in called)
            self.walk(block)

    def steep(self, bind: Bind, d: int) -> list[int]:
        """The operands of an operation whose tangents in direction ``d`` may rest where its slope is infinite."""
        op = bind.op
        assert type(op) is Prim
        if bind.vars[0] in self.no_mass:
            return [0]
        if op.name not in STEEP_WHERE_FINITE or op.name == "**" and whole_exponent(op.args[1]):
            return []
        found = []
        for k, a in enumerate(op.args):
            zero, one = self.rests.get(a, (0, 0))  # type: ignore[arg-type]
            if (zero | one if op.name in STEEP_AT_ONE else zero) >> d & 1:
                found.append(k)
        return found

    def at(self, a: Atom, bits: int) -> tuple[int, int]:
        """Of the directions ``bits``, those in which ``a`` may rest."""
        if type(a) is Const:
            return bits * (a.value == 0), bits * (abs(a.value) == 1)
        if a in self.empty:
            return 0, 0
        zero, one = self.rests.get(a, (0, 0))
        return bits & (zero | ~self.active.get(a, 0)), bits & one

    def meet(self, v: Var, atoms: Iterable[Atom]) -> bool:
        """``v`` is one of these; whether that is new."""
        before = zero, one = self.rests.get(v, (0, 0))
        for a in atoms:
            more = self.at(a, self.active.get(v, 0))
            zero, one = zero | more[0], one | more[1]
        self.rests[v] = zero, one
        return (zero, one) != before

    def walk(self, block: Block) -> None:
        for x in block.binds:
            op = x.op
            if type(op) is Prim:
                if self.active.get(x.vars[0]):
                    self.operation(op, x.vars[0])
            elif type(op) is Apply or type(op) is Make:
                self.rests.update((v, (self.active.get(v, 0), 0)) for v in x.vars)
            elif type(op) is If:
                self.branches(x.vars, (op.then, op.orelse))
            elif type(op) is Case:
                self.rests.update((f, (self.active.get(f, 0), 0)) for arm in op.arms for f in arm.fields)
                self.branches(x.vars, [arm.block for arm in op.arms])
            elif type(op) is Loop or type(op) is While:
                for a, z in zip(op.accs, op.inits):
                    self.meet(a, [z])
                while True:
                    self.walk(op.body)
                    changed = [self.meet(a, [r]) for a, r in zip(op.accs, op.body.results)]
                    if not any(changed):
                        break
                width = len(op.accs)
                outs = x.vars[width + (type(op) is While) :]
                for v, r in zip((*x.vars[:width], *outs), (*op.accs, *op.body.results[width:])):
                    self.meet(v, [r])

    def branches(self, made: Sequence[Var], blocks: Sequence[Block]) -> None:
        for inner in blocks:
            self.walk(inner)
            for v, r in zip(made, inner.results):
                self.meet(v, [r])

    def operation(self, op: Prim, v: Var) -> None:
        if op.name in ("min", "max", "array"):
            self.meet(v, op.args)
        elif op.name == "select":
            self.meet(v, op.args[1:])
        elif op.name == "update":
            self.meet(v, (op.args[0], op.args[-1]))
        elif op.name in ("get", "neg", "abs"):
            self.meet(v, op.args[:1])
        elif op.name == "relu":
            self.rests[v] = self.active[v], 0
        else:
            surely = 0
            for a in op.args:
                moving = self.active.get(a, 0)  # type: ignore[arg-type]
                zero, one = self.at(a, moving)
                surely |= moving & ~(zero | one)
            self.rests[v] = self.active[v] & ~surely, 0
