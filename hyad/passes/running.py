"""What a derivative adds in each iteration to all elements before or after it: running sums, and each element once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core import (
    INT,
    REAL,
    ZERO,
    Arr,
    Atom,
    Bind,
    Block,
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
    is_zero,
    kinds_of,
    substitute,
    type_atoms,
)
from ..program.affine import Affine, affine_add, affine_in
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import closure, loops_of, slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, taken
from .unchanged import Course, integers_of


def running_sums(program: Program) -> Program:
    """Adds to each element once what many iterations of a derivative's loops add to it, as running sums: their terms
    may differ from iteration to iteration by a factor.

    ``(ifold (fn [v i] (ifold (fn [v j] (add-at v (+ i j) (* (f i) (g (+ i j))))) v (- n i))) z n)``  =>
    ``s``, the running sums of ``(f i)``; ``(ifold (fn [v k] (add-at v k (* (get s k) (g k)))) z n)``; and the same
    from the last iteration backwards, where each adds to the elements before it.
    Design decision: differentiation's own sums alone, each of the same terms as before: what is infinite or no number
    goes where it went. The running sums stand in a loop by themselves, which is a scan; what is made of them is not.
    """
    if not any(Loop in kinds_of(loop.body) for loop in loops_of(program)):
        return program
    return taken(program, Running(Builder(), program))


@dataclass
class Triangle:
    """A loop whose iterations add to elements from its index on, all but the last ``short`` ones, or (``before``) to
    those up to its index, or below where that is 1; ``inner`` is what adds, to its accumulators ``chosen``, which are
    ``places`` of the loop around; ``seeds`` are the numbers of the iteration that it does so with."""

    inner: Bind
    before: bool
    short: int
    seeds: list[Var]
    chosen: list[int]
    places: list[int]

    def adding(self) -> Loop:
        """The loop that does nothing else."""
        return self.part(self.chosen).op  # type: ignore[return-value]

    def rest(self) -> Bind | None:
        """The loop without that; None where there is nothing else."""
        op: Loop = self.inner.op  # type: ignore[assignment]
        others = [m for m in range(len(op.body.results)) if m not in self.chosen]
        return self.part(others) if others else None

    def part(self, kept: Sequence[int]) -> Bind:
        op: Loop = self.inner.op  # type: ignore[assignment]
        accs = [m for m in kept if m < len(op.accs)]
        inits, states = tuple(op.inits[m] for m in accs), tuple(op.accs[m] for m in accs)
        body = slice_of(op.body, [op.body.results[m] for m in kept])
        x = self.inner
        return Bind(tuple(x.vars[m] for m in kept), Loop(op.count, op.index, inits, states, body), x.span, x.soft)


class Running(Rebuild):
    """``running_sums`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.integers = integers_of(program.body)
        self.soft = {x.op: x.soft for x in all_binds(program.body) if type(x.op) is Prim}

    def takes(self, bind: Bind) -> bool:
        return bool(self.triangles(bind.op))  # type: ignore[arg-type]

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        found = self.triangles(op)
        if not found:
            return super().loop(op, bind)
        self.b.fired("running-sums")
        table: dict[Var, Atom] = {}
        for t in found:
            for m in t.chosen:
                z = t.inner.op.inits[m]  # type: ignore[union-attr]
                table[t.inner.vars[m]] = table.get(z, z)
        left = {t.inner: t.rest() for t in found}
        seeds = list(dict.fromkeys(s for t in found for s in t.seeds))
        binds = [left.get(x, x) for x in op.body.binds]
        body = Block(tuple(x for x in binds if x is not None), (*op.body.results, *seeds))
        again = Loop(op.count, op.index, op.inits, op.accs, substitute(body, table), op.snapshots)
        rows = [Var(s.name, Arr(REAL, (op.count,)), s.span) for s in seeds]
        out = list(super().loop(again, Bind((*bind.vars, *rows), again, bind.span)))
        stacked = dict(zip(seeds, out[len(bind.vars) :]))
        for t in found:
            self.b.span = t.inner.span
            made = self.once(op, t, [stacked[s] for s in t.seeds], [out[k] for k in t.places])
            for k, a in zip(t.places, made):
                out[k] = a
        self.b.span = bind.span
        return out[: len(bind.vars)]

    def once(self, op: Loop, t: Triangle, numbers: Sequence[Atom], arrays: Sequence[Atom]) -> Sequence[Atom]:
        """What a triangle adds to ``arrays``, each element once."""
        b, inner = self.b, t.adding()
        last = b.prim("-", self.atom(op.count), integer(1))
        count = b.trips(b.prim("-", self.atom(op.count), integer(t.short)))
        names = [s.name for s in t.seeds]

        def sums(q: Atom, *totals: Atom):
            at = b.prim("-", last, q) if t.before else q
            with b.differentiating():
                after = [b.prim("+", s, b.get(a, at)) for s, a in zip(totals, numbers)]
            return after, after

        zeros = [ZERO] * len(numbers)
        running = b.loop(count, zeros, sums, [*names, *names], "q", names)[len(numbers) :]

        def body(q: Atom, *accs: Atom):
            at = b.prim("-", b.prim("-", last, integer(t.short)), q) if t.before else q
            self.here[inner.index] = at
            self.here.update(zip(inner.accs, accs))
            self.here.update((s, b.get(a, q, hint=s.name)) for s, a in zip(t.seeds, running))
            return self.block(inner.body), ()

        self.here[op.index] = integer(0)
        self.block(Block(tuple(closure([x for x in op.body.binds if integral(x)], free_vars(inner.body))), ()))
        accs = [a.name for a in inner.accs]
        return b.loop(count, arrays, body, [t.inner.vars[m].name for m in t.chosen], inner.index.name, accs)

    def triangles(self, op: Loop) -> list[Triangle]:
        """The loops in the body of another that do so."""
        if op.snapshots is not None or op.index.soft:
            return []
        courses: dict[Atom, int] = {}  # what the arrays are that this loop does nothing with but to add to them
        for k, a in enumerate(op.accs):
            if isinstance(a.type, Arr) and any(type(x.op) is Loop and a in x.op.inits for x in op.body.binds):
                course = Course({a})
                if course.goes(op.body) == [k] and not course.looks and all(map(self.own, course.changes)):
                    courses.update(dict.fromkeys(course.vars, k))
        found = []
        for x in op.body.binds:
            inner = x.op
            if type(inner) is not Loop or inner.snapshots is not None or inner.index.soft or has_checks(inner.body):
                continue
            shape = self.shape(op, inner)
            chosen: list[int] = []
            seeds: dict[Var, None] = {}
            for m, z in enumerate(inner.inits if shape is not None else ()):
                linear = Linear(op, inner, self.integers, *shape)
                if z in courses and linear.adds(m) and linear.seeds:
                    chosen.append(m)
                    seeds.update(linear.seeds)
            if chosen:
                found.append(Triangle(x, *shape, [*seeds], chosen, [courses[inner.inits[m]] for m in chosen]))
        return found

    def own(self, change: Prim) -> bool:
        """Whether something is added by differentiation."""
        return change.name == "add-at" and self.soft.get(change, False)

    def shape(self, op: Loop, inner: Loop) -> tuple[bool, int] | None:
        """Whether a loop in another goes to its index, or from there to its end, and how many steps it has less."""
        count, whole = affine_in(inner.count, self.integers), affine_in(op.count, self.integers)
        short, rest = affine_add(affine_add(whole, count, -1), (0, {op.index: 1}), -1)
        if not rest and short >= 0:
            return False, short
        more, terms = count
        return (True, 1 - more) if terms == {op.index: 1} and more in (0, 1) else None


def integral(x: Bind) -> bool:
    """Whether a binding makes a sum of integers."""
    return type(x.op) is Prim and x.op.name in ("+", "-") and x.vars[0].type == INT


#: What a value is to a triangle: a number of the element, a sum of the iteration's numbers, each times one of the
#: element, or zero, which is both.
ELEMENT, SUM, NOTHING = "element", "sum", "nothing"


@dataclass
class Linear:
    """Whether all that a loop inside another does is to add to arrays what is linear in numbers of the outer iteration,
    ``seeds``, with factors that depend on nothing but the sum of both indices, or (``before``) the inner one."""

    outer: Loop
    inner: Loop
    integers: Mapping[Var, Prim]
    before: bool
    short: int
    seeds: dict[Var, None] = field(default_factory=dict)
    kinds: dict[Atom, str | Var] = field(default_factory=dict)  # of an array that is added to: which one it is

    def adds(self, m: int) -> bool:
        """Whether it is so for an accumulator, and what is done for that."""
        self.varying = {self.outer.index, *self.outer.accs, *defined_in(self.outer.body)}
        self.inside = {self.inner.index, *self.inner.accs, *defined_in(self.inner.body)}
        self.kinds[self.inner.accs[m]] = self.inner.accs[m]
        return self.block(slice_of(self.inner.body, [self.inner.body.results[m]])) == [self.inner.accs[m]]

    def block(self, block: Block) -> list[str | Var | None] | None:
        """What the results of a block are; None if something in it is of no kind."""
        known = all(self.bind(x) for x in block.binds)
        return [self.kind(r) for r in block.results] if known else None

    def kind(self, a: Atom) -> str | Var | None:
        if a in self.kinds:
            return self.kinds[a]
        if type(a) is not Var:
            return NOTHING if is_zero(a) else ELEMENT
        if a.type == INT:
            return ELEMENT if self.of_element(affine_in(a, self.integers)) else None
        if a not in self.varying:
            return ELEMENT
        if a.type != REAL or a in self.inside:
            return None
        self.seeds[a] = None
        return SUM

    def of_element(self, a: Affine) -> bool:
        """Whether an integer depends on nothing but the element."""
        steps = [a[1].get(v, 0) for v in (self.outer.index, self.inner.index)]
        rest = (v for v in a[1] if v not in (self.outer.index, self.inner.index))
        straight = not steps[0] if self.before else steps[0] == steps[1]
        return straight and all(v not in self.varying or self.kinds.get(v) == ELEMENT for v in rest)

    def bind(self, x: Bind) -> bool:
        op = x.op
        if any(self.kind(d) != ELEMENT for v in x.vars for d in type_atoms(v.type)):
            return False
        if type(op) is Prim:
            kinds: list[str | Var | None] = [self.prim(x, op)]
        elif type(op) is Loop:
            kinds = self.loop(op)
        elif type(op) is If and self.kind(op.cond) == ELEMENT:
            here, other = self.block(op.then), self.block(op.orelse)
            kinds = [joined(k, m) for k, m in zip(here, other)] if here is not None and other is not None else [None]
        else:
            return False
        self.kinds.update((v, k) for v, k in zip(x.vars, kinds) if k is not None)
        return None not in kinds

    def prim(self, x: Bind, op: Prim) -> str | Var | None:
        if x.vars[0].type == INT and op.name in ("+", "-"):
            return ELEMENT if self.of_element(affine_in(x.vars[0], self.integers)) else INT.name  # of no use by itself
        kinds = [self.kind(a) for a in op.args]
        if None in kinds:
            return None
        if all(k in (ELEMENT, NOTHING) for k in kinds):
            return ELEMENT if op.name in PRIMITIVES or op.name in ("get", "select", "array", "zeros") else None
        first, *rest = kinds
        if op.name == "add-at" and isinstance(first, Var):
            *at, value = rest
            added = value in (SUM, NOTHING) and x.soft and op.args[-1].type == REAL  # type: ignore[union-attr]
            return first if added and all(k == ELEMENT for k in at) else None
        if x.vars[0].type != REAL or any(isinstance(k, Var) for k in kinds) or INT.name in kinds:
            return None
        if op.name == "get":
            return SUM if first == SUM and all(k == ELEMENT for k in rest) else None
        terms = [k in (SUM, NOTHING) for k in kinds]
        linear = {
            "neg": all(terms),
            "+": all(terms),
            "-": all(terms),
            "*": kinds.count(SUM) == 1,
            "/": first == SUM and rest == [ELEMENT],
            "select": first == ELEMENT and all(terms[1:]),
        }
        return SUM if x.soft and linear.get(op.name) else None

    def loop(self, op: Loop) -> list[str | Var | None]:
        """What a loop inside gives: an accumulator that starts from zero is what is added to it."""
        if op.snapshots is not None or self.kind(op.count) != ELEMENT:
            return [None]
        self.kinds[op.index] = ELEMENT
        starts = [self.kind(z) for z in op.inits]
        while True:
            if None in starts:
                return [None]
            self.kinds.update(zip(op.accs, starts))  # type: ignore[arg-type]
            results = self.block(op.body)
            if results is None:
                return [None]
            width = len(op.accs)
            after = [joined(k, m) for k, m in zip(starts, results)]
            if after == starts:
                scalars = all(isinstance(r.type, Scalar) for r in op.body.results[width:])  # type: ignore[union-attr]
                return [*after, *results[width:]] if scalars else [None]
            starts = after


def joined(one: str | Var | None, other: str | Var | None) -> str | Var | None:
    """What is one thing or the other."""
    if one == NOTHING:
        return other
    return one if other in (one, NOTHING) else None
