"""Tables of costly functions of one integer that several loops around make of their indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .affine import Affine, affine_add, affine_key
from .builder import Builder
from .core import (
    BOOL,
    INT,
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    all_binds,
    blocks_of,
    defined_in,
    reads,
)
from .counts import ASSUMED
from .loops import CALL
from .primitives import PRIMITIVES
from .rebuild import Rebuild

ORDER = ("<", "<=", ">", ">=")
#: A value that takes more operations is not looked at.
MOST = 64


@dataclass(slots=True)
class Value:
    """A number that is computed from invariants and one integer: that, as an atom and in loop indices, what it costs,
    and the bindings that make it, the loops around aside."""

    at: Atom | None
    affine: Affine | None
    cost: int
    binds: tuple[Bind, ...]


class Tabulate(Rebuild):
    """A costly function of one integer, an affine one of the indices of loops around it, is computed once for each
    value that the integer can have.

    ``(build n (fn [t] (build m (fn [i] (** u (real (- (* 2 i) t)))))))``  =>
    ``p = (build (+ 2m n 1) (fn [q] (** u (real (- q n)))))`` first, then ``(get p (+ (- (* 2 i) t) n))``.

    Design decision: where that halves the calls at least. A value that a branch alone computes is in the table for all
    integers that the branch's condition leaves, as far as that shows: a number never read does no harm. So it is in a
    triangle, whose rows count as the longest.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.tables: dict[Var, tuple[Atom, Atom, Atom]] = {}  # the table, the integer, the least one
        self.inside: set[Var] = set()  # what the nest makes that is looked at
        self.integers: dict[Var, Prim] = {}  # its integers

    def bind(self, bind: Bind) -> None:
        if type(bind.op) is Loop:
            self.prepare(bind.op)
            self.b.span = bind.span
        elif bind.vars and bind.vars[0] in self.tables:
            table, at, low = self.tables[bind.vars[0]]
            index = self.b.prim("-", self.atom(at), low)
            self.here[bind.vars[0]] = self.b.get(table, index, hint=bind.vars[0].name)
            return
        self.copy(bind)

    def prepare(self, op: Loop) -> None:
        """Build the tables of a nest of loops."""
        inside = self.inside = {op.index, *op.accs, *defined_in(op.body)}
        integers = self.integers = {
            v: x.op for x in all_binds(op.body) for v in x.vars if v.type == INT and type(x.op) is Prim
        }
        found: dict[Var, tuple[Value, tuple[Loop, ...]]] = {}
        wanted: set[Atom] = set()
        tests = {x.vars[0]: x.op for x in all_binds(op.body) if type(x.op) is Prim and x.op.name in ORDER}
        known: dict[Var, set[tuple[Atom, bool]]] = {}  # by value: the conditions of the branches around it
        for bind, path, holds in nest(op.body, (op,)):
            known.update((v, set(holds)) for v in bind.vars)
            value = self.value(bind, found, integers, inside, {loop.index for loop in path})
            if value is None:
                wanted.update(reads(bind))
            else:
                found[bind.vars[0]] = value, path
            for region in blocks_of(bind.op):
                wanted.update(region.results)
        wanted.update(op.body.results)
        alike: dict[object, list[Var]] = {}
        for v, (value, path) in found.items():
            if v in wanted and v.type == REAL and value.cost >= CALL and self.fewer(value, path, inside):
                alike.setdefault(affine_key(value.affine), []).append(v)  # type: ignore[arg-type]
        for vars in alike.values():
            gaps = []
            for cond, holds in set.intersection(*(known[v] for v in vars)):
                if cond in tests:
                    gaps += gap(tests[cond], holds, integers, inside, {loop.index for loop in found[vars[0]][1]})
            self.tabulate(vars, found, gaps)

    def value(self, bind: Bind, found: dict, integers: dict, inside: set[Var], indices: set[Var]) -> Value | None:
        """What a binding computes from invariants and one integer, if it does."""
        op = bind.op
        if type(op) is not Prim or op.name not in PRIMITIVES and op.name != "select":
            return None
        if bind.vars[0].type not in (REAL, BOOL) or bind.vars[0] in self.tables:
            return None
        at, affine, binds = None, None, []
        cost = PRIMITIVES[op.name].cost if op.name != "select" else 1
        for a in op.args:
            if type(a) is Const or a not in inside:
                continue
            if a.type == INT:
                part = Value(a, affine_of(a, integers, inside, indices), 0, ())
            elif a in found:
                part = found[a][0]
            else:
                return None
            if part.affine is None:
                return None
            if affine is not None and affine_key(affine) != affine_key(part.affine):  # type: ignore[arg-type]
                return None
            at, affine = part.at if at is None else at, part.affine
            cost += part.cost
            binds += [x for x in part.binds if x not in binds]
        return None if affine is None or len(binds) > MOST else Value(at, affine, cost, (*binds, bind))

    def fewer(self, value: Value, path: tuple[Loop, ...], inside: set[Var]) -> bool:
        """Whether the integer has half as many values as the loops have iterations, or fewer, known beforehand."""
        calls, values = 1.0, 1.0
        moved = 0
        for loop in path:
            calls *= float(loop.count.value) if type(loop.count) is Const else ASSUMED
            step = value.affine[1].get(loop.index, 0)  # type: ignore[index]
            if step:
                moved += 1
                if loop.count in inside and self.longest(loop, path) is None:
                    return False
                values += abs(step) * (loop.count.value if type(loop.count) is Const else ASSUMED)
        return moved > 0 and 2 * values <= calls

    def longest(self, loop: Loop, path: Sequence[Loop]) -> Affine | None:
        """The most iterations of a loop, where its count is affine in the indices around, by what the nest keeps."""
        around = {x.index: x for x in path}
        made = affine_of(loop.count, self.integers, self.inside, set(around))
        if made is None:
            return None
        constant, most = made[0], {v: k for v, k in made[1].items() if v not in around}
        for v, k in made[1].items():
            if v in around and k > 0:
                last = self.longest(around[v], path)
                if last is None:
                    return None
                constant, most = affine_add((constant - k, most), last, k)
        return constant, most

    def count(self, loop: Loop, path: Sequence[Loop]) -> Atom:
        """``longest`` as an atom, before the nest."""
        if loop.count not in self.inside:
            return self.atom(loop.count)
        constant, terms = self.longest(loop, path)  # type: ignore[misc]
        made: Atom = Const(constant, INT)
        for v, k in terms.items():
            made = self.plus(made, k, self.atom(v))
        return self.b.prim("max", Const(0, INT), made)

    def plus(self, a: Atom, k: int, x: Atom) -> Atom:
        """``a + k x``."""
        step = x if abs(k) == 1 else self.b.prim("*", Const(abs(k), INT), x)
        if k < 0 and a == Const(0, INT):
            return self.b.prim("neg", step)
        return self.b.prim("+" if k > 0 else "-", a, step)

    def tabulate(
        self, vars: list[Var], found: dict[Var, tuple[Value, tuple[Loop, ...]]], gaps: Sequence[Affine]
    ) -> None:
        """Build one table of several values of one integer; each of ``gaps`` is not negative where they are read."""
        b, (value, path) = self.b, found[vars[0]]
        constant, terms = value.affine  # type: ignore[misc]
        counts = {loop.index: loop.count.value for loop in path if type(loop.count) is Const}
        low: Atom = Const(constant, INT)
        size: Atom = Const(1, INT)
        steps = {loop.index: loop for loop in path}
        for v, k in terms.items():
            if v not in steps:
                low = self.plus(low, k, self.atom(v))
                continue
            count = self.count(steps[v], path)
            size = self.plus(size, abs(k), count)
            if k < 0:
                low = self.plus(low, k, count)
        if type(size) is Var:
            b.sizes.add(size)
        elif set(terms) <= set(counts) and all(set(g[1]) <= set(counts) for g in gaps):
            least = -most(affine_add((0, {}), value.affine, -1), gaps, counts)  # type: ignore[arg-type]
            low, size = Const(least, INT), Const(max(most(value.affine, gaps, counts) - least + 1, 0), INT)  # type: ignore

        def body(q: Atom):
            at = b.prim("+", low, q)
            self.here.update((found[v][0].at, at) for v in vars)  # type: ignore[misc]
            for v in vars:
                for x in found[v][0].binds:
                    for a in x.op.args:  # type: ignore[union-attr]
                        if type(a) is Var and a.type == INT:
                            self.here[a] = at
                    self.copy(x)
            return (), self.atoms(vars)

        made = b.loop(size, (), body, [v.name for v in vars], "q", pruned=True)
        for v, table in zip(vars, made):
            self.tables[v] = table, found[v][0].at, low  # type: ignore[assignment]


Holds = tuple[tuple[Atom, bool], ...]


def nest(block: Block, path: tuple[Loop, ...], holds: Holds = ()) -> Iterator[tuple[Bind, tuple[Loop, ...], Holds]]:
    """Every binding in a loop's body, its branches and the loops inside, with the loops around it, and the conditions
    of the branches that it is in, with what they are there."""
    for bind in block.binds:
        yield bind, path, holds
        if type(bind.op) is Loop:
            yield from nest(bind.op.body, (*path, bind.op), holds)
        elif type(bind.op) is If:
            yield from nest(bind.op.then, path, (*holds, (bind.op.cond, True)))
            yield from nest(bind.op.orelse, path, (*holds, (bind.op.cond, False)))


def gap(test: Prim, holds: bool, integers: dict[Var, Prim], inside: set[Var], indices: set[Var]) -> list[Affine]:
    """What is not negative where a comparison of integers holds, or does not; nothing if that does not show."""
    if any(a.type != INT for a in test.args):
        return []
    low, high = (affine_of(a, integers, inside, indices) for a in test.args)
    if low is None or high is None:
        return []
    if test.name in (">", ">="):
        low, high = high, low
    strict = test.name in ("<", ">")
    if not holds:
        low, high, strict = high, low, not strict
    return [affine_add(affine_add(high, low, -1), (1 if strict else 0, {}), -1)]


def most(value: Affine, gaps: Sequence[Affine], counts: Mapping[Atom, int]) -> int:
    """The most that an affine integer of loop indices can be, where none of ``gaps`` is negative: adding as much of one
    as takes an index out of it makes it no smaller."""

    def bound(a: Affine) -> int:
        return a[0] + sum(max(0, k * (counts[v] - 1)) for v, k in a[1].items())

    found = [bound(value)]
    for g in gaps:
        for v, k in value[1].items():
            step = g[1].get(v, 0)
            if step and k % step == 0 and k // step < 0:
                found.append(bound(affine_add(value, g, -k // step)))
    return min(found)


def affine_of(a: Atom, integers: dict[Var, Prim], inside: set[Var], indices: set[Var]) -> Affine | None:
    """An integer in loop indices and in what the nest does not change."""
    if type(a) is Const:
        return a.value, {}
    if a not in inside or a in indices:
        return 0, {a: 1}
    op = integers.get(a)  # type: ignore[arg-type]
    if op is None or op.name not in ("+", "-", "*", "neg"):
        return None
    parts = [affine_of(x, integers, inside, indices) for x in op.args]
    if None in parts:
        return None
    if op.name == "neg":
        return affine_add((0, {}), parts[0], -1)  # type: ignore[arg-type]
    if op.name != "*":
        return affine_add(*parts, 1 if op.name == "+" else -1)  # type: ignore[arg-type]
    for x, y in (parts, parts[::-1]):
        if not x[1]:  # type: ignore[index]
            return affine_add((0, {}), y, x[0])  # type: ignore[index, arg-type]
    return None


def sums_in(block: Block) -> dict[Var, Prim]:
    """The integers of a block that are sums and differences."""
    made = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == INT}
    return {v: op for v, op in made.items() if op.name in ("+", "-", "neg")}
