"""A ``while`` that counts is the counted loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core import (
    INT,
    Apply,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Function,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    defined_in,
    functions_of,
    given,
    kinds_of,
    retarget,
    type_of,
    with_body,
)
from ..program.affine import affine_add, affine_in, with_factors
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.loops import slice_of
from ..program.rebuild import Rebuild
from .functions import loop_of
from .unchanged import integers_of

#: A comparison with the counter on the right, as one with the counter on the left; and one that does not hold.
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
FAILED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!="}


@dataclass(slots=True)
class Counter:
    """What a ``while`` counts by: the accumulator's place, its step (1 or -1), the comparison that goes on, with the
    counter on the left, and what it is compared with."""

    place: int
    step: int
    relation: str
    end: Atom


def counted(program: Program) -> Program:
    """Turns a ``while`` that counts by one, up or down, to an end that no iteration changes into a counted loop.

    ``(while (< i n) .. (set! i (+ i 1)))``  =>  ``(ifold (fn [.. k] .. (+ i k) ..) .. (max 0 (- n i)))``.
    Design decision: before differentiation too. Of a loop whose count is known all is known that other passes ask for,
    and its derivative remembers in arrays of that size, none of which grows. Not where that difference could wrap, as
    the comparison does not.
    """
    made = counted_block(Builder(), program.body, program.dims)
    return program if made is program.body else dead_code(with_body(program, made))


def counted_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``counted`` for a block under construction; itself where it has nothing to do."""
    if "counted" in b.off or While not in kinds_of(block):
        return block
    b.sizes.update(sizes)
    pass_ = Counted(b)
    made = pass_.remade(block)
    return made if pass_.found else block


def recursion_counted(b: Builder, block: Block) -> Block:
    """A block in which recursion that counts, and calls itself last, is a ``while`` in a function that is not recursive
    and may be written out: where it is called it is known where it begins."""
    functions = functions_of(block) if "counted" not in b.off else []
    if any(f.body is None for f in functions):  # it is still being made
        return block
    inside = {
        x.op.function for f in functions for x in all_binds(f.body) if type(x.op) is Apply and x.op.function is not f
    }  # type: ignore
    table: dict[Function, Function] = {}
    for f in functions:
        made = loop_of(f, None, b.rules) if f not in inside else None
        if made is not None and any(type(x.op) is While and counter_of(x.op) for x in made.binds):
            table[f] = Function(f.name, f.params, f.results, made, f.span)
    return retarget(block, table) if table else block


class Counted(Rebuild):
    """``counted`` for a block."""

    found = False

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        counter = counter_of(op)
        count = None if counter is None or len(bind.vars) > len(op.accs) + 1 else self.count(op, counter)
        if counter is None or count is None:
            return super().while_(op, bind)
        self.found = True
        b, span, k = self.b, bind.span, counter.place
        b.fired("counted")
        sign, start = "+" if counter.step > 0 else "-", self.atom(op.inits[k])
        rest = [j for j in range(len(op.accs)) if j != k]

        def body(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[op.accs[k]] = b.prim(sign, start, i)
            self.here.update((op.accs[j], a) for j, a in zip(rest, accs))
            results = self.block(op.body)
            return [results[j] for j in rest], ()

        inits, names = self.atoms([op.inits[j] for j in rest]), [op.accs[j].name for j in rest]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        out = b.loop(
            count, inits, body, [bind.vars[j].name for j in rest], op.accs[k].name, names, given(bind), snapshots=kept
        )
        b.span = span
        after = dict(zip(rest, out))
        after[k] = b.prim(sign, start, count)
        return [*(after[j] for j in range(len(op.accs))), count]

    def count(self, op: While, counter: Counter) -> Atom | None:
        """How often the loop runs, before it; None where that may wrap, or where the counter may miss its end."""
        b, start = self.b, self.atom(op.inits[counter.place])
        self.block(slice_of(op.cond, [counter.end]))
        end = self.atom(counter.end)
        if counter.relation in ("<=", ">="):
            if not b.fits(b.prim("+", end, Const(1, INT))):
                return None
            end = b.prim("+" if counter.step > 0 else "-", end, Const(1, INT))
        way = (end, start) if counter.step > 0 else (start, end)
        steps = b.prim("-", *way)
        if not (b.fits(start) and b.fits(end) and b.fits(steps)):
            return None
        if b.nonnegative(affine_add(b.affine(way[0]), b.affine(way[1]), -1)):
            return steps
        if counter.relation != "!=":
            return b.prim("max", Const(0, INT), steps)
        missed = self.fails(op, counter, end)
        if missed is None:
            return None
        b.span, check = missed.span, missed.op
        b.check(replace(check, relation="<="), way[1], way[0])  # type: ignore[type-var]
        return steps

    def fails(self, op: While, counter: Counter, end: Atom) -> Bind | None:
        """The check in an iteration that fails where the counter begins beyond its end, if there is one."""
        b, at, sign = self.b, op.accs[counter.place], -counter.step
        moving = {*op.accs, *defined_in(op.body)}
        integers = integers_of(op.body)
        for x in op.body.binds:
            if type(x.op) is not Check or x.op.relation == "==":
                continue
            a, c = (with_factors(affine_in(y, integers), integers) for y in (x.op.a, x.op.b))
            gaps = [affine_add(c, a, -1)] if x.op.relation == "<=" else [a, affine_add(c, affine_add(a, (1, {})), -1)]
            for rest, terms in gaps:  # never negative where the check holds
                others = {v: n for v, n in terms.items() if v is not at}
                by = sign * terms.get(at, 0)  # so much less with each step
                if by <= 0 or not moving.isdisjoint(others):
                    continue
                least = affine_add(self.moved((rest, others)), b.affine(end), by * sign)  # of it at the end
                if b.nonnegative(affine_add((by - 1, {}), least, -1)):
                    return x
        return None


def counter_of(op: While) -> Counter | None:
    """What a ``while`` counts by, if it does, and nothing but that ends it."""
    tests = {x.vars[0]: x.op for x in op.cond.binds if type(x.op) is Prim}
    test = tests.get(op.cond.results[0])  # type: ignore[arg-type]
    holds = test is None or test.name != "not"
    test = test if holds else tests.get(test.args[0])  # type: ignore[arg-type, union-attr]
    if test is None or len(tests) < len(op.cond.binds) or not all(type_of(a) == INT for a in test.args):
        return None
    name = test.name if holds else FAILED.get(test.name)
    if name not in TURNED:
        return None
    steps = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
    moving = {*op.accs}
    for x in op.cond.binds:
        if not moving.isdisjoint(x.op.args):  # type: ignore[union-attr]
            moving.update(x.vars)
    for relation, at, end in ((name, *test.args), (TURNED[name], *test.args[::-1])):
        if at not in op.accs or end in moving:
            continue
        place = op.accs.index(at)  # type: ignore[arg-type]
        step = step_of(steps.get(op.body.results[place]), at)  # type: ignore[arg-type]
        if step and (relation == "!=" or (relation[0] == "<") == (step > 0)):
            return Counter(place, step, relation, end)
    return None


def step_of(op: Prim | None, counter: Atom) -> int:
    """1 or -1 where that is what an operation adds to an integer; 0 where it is something else."""
    if op is None or op.name not in ("+", "-") or counter not in op.args:
        return 0
    other = op.args[1] if op.args[0] is counter else op.args[0]
    if type(other) is not Const or op.name == "-" and op.args[0] is not counter or abs(other.value) != 1:
        return 0
    return other.value if op.name == "+" else -other.value
