"""Least and greatest values of monotone functions: the function of the least or the greatest argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ..core import (
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    count_uses,
    defined_in,
    integer,
    kinds_of,
    real,
    with_body,
)
from ..program.builder import Builder
from ..program.dead import dead_code, tidy
from .producers import Frame, Place, Producers

#: What grows with its argument, and is a number for each.
GROWING = frozenset("exp exp2 expm1 tanh atan sinh asinh erf cbrt".split())
#: What grows where it is a number: not below 0, or -1.
GROWING_ABOVE = frozenset("sqrt log log2 log10 log1p".split())
FLIPPED = {"min": "max", "max": "min"}


def monotone(program: Program) -> Program:
    """Takes the least or greatest value of a function that only grows, or falls, from the least or greatest argument.

    ``(amax (map (fn [x] (* c (exp x))) v))``  =>  ``(* c (exp (amax v)))`` for a ``c`` that is not negative, and of the
    least element for one that is: the highest price on a path of which the logarithms are summed takes one exponential,
    not one for each step.
    Design decision: where that saves calls. Roots and logarithms, which are NaN below 0 or -1, only where it is their
    least value that is looked for: the least argument tells then that there is such a one. The value is that of one of
    the elements; which one it is may differ where two are equal to rounding.
    """
    made = monotone_block(Builder(), program.body, program.dims, marks=False)
    return program if made is program.body else dead_code(with_body(program, made))


def monotone_block(b: Builder, block: Block, sizes: Sequence[Var] = (), marks: bool = True) -> Block:
    """``monotone`` for a block under construction: before it is differentiated, so that derivatives have as few calls.
    ``marks``: the sign of a factor is marked as a constant."""
    names = {x.op.name for x in all_binds(block) if type(x.op) is Prim}
    if "monotone" in b.off or Loop not in kinds_of(block) or names.isdisjoint(FLIPPED):
        return block
    if names.isdisjoint(GROWING | GROWING_ABOVE):
        return block
    pass_ = Monotone(b, block, marks)
    if not pass_.plans:
        return block
    b.sizes.update(sizes)
    return tidy(pass_.remade(block))


@dataclass(frozen=True)
class Step:
    """An operation on the way from an argument to a value: its operand ``k`` is the one that moves."""

    op: Prim
    k: int
    frame: Frame | None


@dataclass(frozen=True)
class Plan:
    """``name`` is what is looked for of the argument, ``min`` or ``max``, if the product of the ``signs`` is not
    negative; ``steps`` lead from the value to the argument; ``whole``: the start is one of the values."""

    name: str
    steps: list[Step]
    signs: list[Place]
    argument: Place
    whole: bool


class Monotone(Producers):
    """``monotone`` for a block. ``plans``: by loop and accumulator."""

    def __init__(self, builder: Builder, block: Block, marks: bool) -> None:
        super().__init__(builder, block)
        self.marks = marks
        self.plans: dict[Loop, dict[int, Plan]] = {}
        for x in all_binds(block):
            if type(x.op) is Loop and x.op.accs and x.op.snapshots is None and not x.op.index.soft:
                found = {k: plan for k in range(len(x.op.accs)) if (plan := self.plan(x.op, k)) is not None}
                if found:
                    self.plans[x.op] = found

    def plan(self, op: Loop, k: int) -> Plan | None:
        """How to look for an extreme, if an accumulator is one of values of a monotone function."""
        acc, result = op.accs[k], op.body.results[k]
        if acc.type != REAL or type(result) is not Var or count_uses(op.body, acc) != 1:
            return None
        x = self.made[result] if result in self.made else None
        if x not in op.body.binds or type(x.op) is not Prim or x.op.name not in FLIPPED or acc not in x.op.args:  # type: ignore
            return None
        if count_uses(op.body, result) != 1:
            return None
        value = x.op.args[1 - x.op.args.index(acc)]  # type: ignore[union-attr]
        found = self.way(value, op, x.op.name)  # type: ignore[union-attr]
        return None if found is None else Plan(*found, self.first(op.inits[k], value, op))

    def way(self, a: Atom, loop: Loop, name: str) -> tuple[str, list[Step], list[Place], Place] | None:
        """From a value to the argument that the last call on the way is made of."""
        frame: Frame | None = None
        steps: list[Step] = []
        signs: list[Place] = []
        found = None
        while True:
            a, frame = self.look(a, frame)
            op, inner = self.definition(a, frame) or (None, None)
            if op is None:
                return found
            moving = [j for j, v in enumerate(op.args) if loop in self.changes(v, inner)]
            if len(moving) != 1:
                return found
            (j,) = moving
            other = op.args[1 - j] if len(op.args) == 2 else None
            if other is not None and not self.read(other, inner).isdisjoint(defined_in(loop.body)):
                return found  # it is the same in each iteration, and is made there
            call = op.name in GROWING or op.name in GROWING_ABOVE and name == "min" and not signs
            if op.name == "neg" or op.name == "-" and j == 1:
                name = FLIPPED[name]
            elif op.name == "*" or op.name == "/" and j == 0:
                if type(other) is Const and other.value < 0:
                    name = FLIPPED[name]
                elif type(other) is not Const:
                    signs = [*signs, (other, inner)]
                elif not other.value > 0:
                    return found
            elif not (call or op.name in ("+", "-")):
                return found
            steps.append(Step(op, j, inner))
            a, frame = op.args[j], inner
            if call:
                found = name, [*steps], signs, (a, frame)

    def first(self, init: Atom, value: Atom, loop: Loop) -> bool:
        """Whether an accumulator starts as the first of the values."""
        start, each = self.definition(init, None), self.definition(value, None)
        if start is None or each is None or start[0].name != "get" or each[0].name != "get":
            return False
        pairs = [(x, y) for x, y in zip(start[0].args, each[0].args) if x is not y]
        alike = len(start[0].args) == len(each[0].args) and len(pairs) == 1
        return alike and type(pairs[0][0]) is Const and pairs[0][0].value == 0 and pairs[0][1] is loop.index

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        plans = None if self.seeing else self.plans.get(op)
        if plans is None:
            return super().loop(op, bind)
        b, width = self.b, len(op.accs)
        b.fired("monotone")
        some = b.prim(">", self.atom(op.count), integer(0))
        signs = {k: self.sign(plan, some) for k, plan in plans.items()}
        inits = list(self.atoms(op.inits))
        for k, plan in plans.items():
            inits[k] = real(inf if plan.name == "min" else -inf)

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = self.at = i
            self.here.update(zip(op.accs, accs))
            results = list(self.block(op.body))
            for k, plan in plans.items():
                self.at = i
                x = self.value(*plan.argument)
                sign = signs[k]
                x = x if sign is None else b.prim("*", sign, x)
                results[k] = b.prim(plan.name, accs[k], x)
            return results[:width], results[width:]

        names, accs = [v.name for v in bind.vars], [a.name for a in op.accs]
        count = self.atom(op.count)
        out = list(b.loop(count, inits, body, names, op.index.name, accs, bind.vars[0].given, pruned=True))
        for k, plan in plans.items():
            out[k] = self.ended(plan, out[k], signs[k], self.atom(op.inits[k]), op, k, some)
        return out

    def sign(self, plan: Plan, some: Atom) -> Atom | None:
        """1 or -1, whichever sign a product has; None without factors. They are there where the loop has ``some``
        iterations."""
        if not plan.signs:
            return None
        b = self.b

        def product() -> Atom:
            factors = [self.value(*place) for place in plan.signs]
            factors = [b.stop(x) for x in factors] if self.marks else factors
            total, *others = (b.select(b.prim("<", x, real(0.0)), real(-1.0), real(1.0)) for x in factors)
            for one in others:
                total = b.prim("*", total, one)
            return total

        return self.if_there(plan, some, product, real(1.0), "sign")

    def ended(self, plan: Plan, found: Atom, sign: Atom | None, init: Atom, op: Loop, k: int, some: Atom) -> Atom:
        """The extreme of the values, from that of the arguments and the start."""
        b = self.b
        name = self.made[op.body.results[k]].op.name  # type: ignore[union-attr]

        def extreme() -> Atom:
            x = found if sign is None else b.prim("*", sign, found)
            for step in reversed(plan.steps):
                args = [x if j == step.k else self.value(a, step.frame) for j, a in enumerate(step.op.args)]
                x = b.prim(step.op.name, *args)
            return x if plan.whole else b.prim(name, init, x)

        return self.if_there(plan, some, extreme, init, op.accs[k].name)

    def if_there(self, plan: Plan, some: Atom, make: Callable[[], Atom], other: Atom, name: str) -> Atom:
        """What ``make`` gives where there are values to compare, as it is known of a start that is one of them."""
        b = self.b
        if plan.whole or type(some) is Const and some.value:
            return make()
        with b.branch_region(some, True) as then:
            made = make()
        with b.branch_region(some, False) as orelse:
            pass
        return b.if_(some, (then, [made]), (orelse, [other]), [name])[0]
