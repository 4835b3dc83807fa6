"""Tables of costly functions of one integer that several loops around make of their indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    all_binds,
    binds_of,
    blocks_of,
    defined_in,
    reads,
    type_of,
)
from ..program.affine import Affine, affine_add, affine_key
from ..program.builder import Builder
from ..program.counts import ASSUMED
from ..program.loops import CALL
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild

ORDER = ("<", "<=", ">", ">=")
#: What may be computed of an integer that no iteration comes to.
HARMLESS = ("+", "-", "*", "neg", "min", "max", "select")
#: A value that takes more operations is not looked at.
MOST = 64
#: A real number that is an integer is exact if it is an index, or a few less or more, so many times.
SMALL = 1 << 20


@dataclass(slots=True)
class Value:
    """A number that is computed from invariants and one integer, or from some that differ by constants: one of them in
    loop indices (None: from invariants alone), what it costs, and the bindings that make it, the loops around aside."""

    affine: Affine | None
    cost: float
    binds: tuple[Bind, ...]


class Tabulate(Rebuild):
    """A costly function of one integer, an affine one of the indices of loops around it, is computed once for each
    value that the integer can have.

    ``(build n (fn [t] (build m (fn [i] (** u (real (- (* 2 i) t)))))))``  =>
    ``p = (build (+ 2m n 1) (fn [q] (** u (real (- q n)))))`` first, then ``(get p (+ (- (* 2 i) t) n))``.

    Design decision: where that halves the calls at least. The table has all integers that the loops' counts leave,
    those of inner loops in terms of what is around them, and the conditions of the branches that all its values are
    in: a number that is never read does no harm. So the tables of a triangle and of its derivative are as long, and
    may be one. An array may be read if it has an element for each of them. What is computed where two integers are
    equal is not computed often. ``ahead``: before differentiation, so that the adjoints of what is read of a table meet
    in one of the table, and before powers are made of one another; then of integers that several indices make, and of
    one for powers.
    """

    def __init__(self, builder: Builder, ahead: bool = False) -> None:
        super().__init__(builder)
        self.ahead = ahead
        self.tables: dict[Var, tuple[Atom, Affine, Affine]] = {}  # the table, the integer, the least one
        self.inside: set[Var] = set()  # what the nest makes that is looked at
        self.integers: dict[Var, Prim] = {}  # its integers
        self.reals: dict[Var, Prim] = {}  # and its sums, differences and products of numbers
        self.wholes: dict[tuple[Loop, ...], dict[Atom, Affine | None]] = {}  # which are integers, by the loops around

    def bind(self, bind: Bind) -> None:
        if bind.vars and bind.vars[0] in self.tables:
            table, at, low = self.tables[bind.vars[0]]
            index = self.b.affine_value(affine_add(self.moved(at), low, -1))
            self.here[bind.vars[0]] = self.b.get(table, index, hint=bind.vars[0].name)
            return
        if type(bind.op) is Loop:
            self.prepare(bind.op)
            self.b.span = bind.span
        self.copy(bind)

    def takes(self, op: Loop) -> bool:
        """Whether a value in a nest of loops has a table."""
        return bool(self.chosen(op)[0])

    def chosen(self, op: Loop) -> tuple[dict[object, list[Var]], dict, dict]:
        """The values in a nest of loops that have tables, those together that can have one; and of all that it makes of
        one integer what they are, and the conditions around them."""
        inside = self.inside = {op.index, *op.accs, *defined_in(op.body)}
        made = [(v, x.op) for x in all_binds(op.body) for v in x.vars if type(x.op) is Prim]
        self.wholes = {}
        self.integers = {v: op for v, op in made if v.type == INT}
        self.reals = {v: op for v, op in made if v.type == REAL and op.name in ("real", "+", "-", "*", "neg")}
        found: dict[Var, tuple[Value, tuple[Loop, ...]]] = {}
        wanted: set[Atom] = set()
        equal = {x.vars[0] for x in all_binds(op.body) if type(x.op) is Prim and x.op.name == "="}
        known: dict[Var, set[tuple[Atom, bool]]] = {}  # by value: the conditions of the branches around it
        for bind, path, holds in nest(op.body, (op,)):
            known.update((v, set(holds)) for v in bind.vars)
            value = self.value(bind, found, path)
            if value is None:
                wanted.update(reads(bind))
            else:
                found[bind.vars[0]] = value, path
            for region in blocks_of(bind.op):
                wanted.update(region.results)
        wanted.update(op.body.results)
        alike: dict[object, list[Var]] = {}
        for v, (value, path) in found.items():
            if v in wanted and v.type == REAL and value.affine is not None and value.cost >= CALL:
                rare = any(holds and cond in equal for cond, holds in known[v])
                if not rare and self.fewer(value, path, inside) and not (self.ahead and left(value, path)):
                    alike.setdefault(terms_of(value.affine), []).append(v)
        return alike, found, known

    def prepare(self, op: Loop) -> None:
        """Build the tables of a nest of loops."""
        alike, found, known = self.chosen(op)
        tests = {x.vars[0]: x.op for x in all_binds(op.body) if type(x.op) is Prim and x.op.name in ORDER}
        for vars in alike.values():
            gaps = []
            for cond, holds in set.intersection(*(known[v] for v in vars)):
                if cond in tests:
                    indices = {loop.index for loop in found[vars[0]][1]}
                    gaps += gap(tests[cond], holds, self.integers, self.inside, indices)
            self.tabulate(vars, found, gaps)

    def value(self, bind: Bind, found: dict, path: tuple[Loop, ...]) -> Value | None:
        """What a binding computes from invariants and one integer, if it does."""
        op = bind.op
        if type(op) is Loop:
            return self.sum(bind, op, found, path)
        if type(op) is not Prim or op.name not in PRIMITIVES and op.name not in ("select", "get"):
            return None
        var = bind.vars[0]
        if op.name == "get" and (op.args[0] in self.inside or isinstance(var.type, Arr)):
            return None
        if var in self.tables or var.type not in (REAL, BOOL) and (var.type != INT or op.name not in HARMLESS):
            return None
        if self.whole(var, path) is not None:
            return None
        cost = PRIMITIVES[op.name].cost if op.name in PRIMITIVES else 1
        return self.together(bind, op.args, cost, found, path)

    def sum(self, bind: Bind, op: Loop, found: dict, path: tuple[Loop, ...]) -> Value | None:
        """The same of a fold of numbers, where the integer is made of several indices: what one index says left the
        loops of the others before."""
        inside = self.inside
        count = float(op.count.value) if type(op.count) is Const else ASSUMED
        whole = len(op.accs) == len(bind.vars) == 1 and bind.vars[0].type == REAL and op.snapshots is None
        if not whole or op.count in inside or op.index.soft or bind.vars[0] in self.tables:
            return None
        cost = 0
        for x in op.body.binds:
            known = type(x.op) is Prim and (x.op.name in PRIMITIVES or x.op.name in ("select", "get"))
            if not known or isinstance(x.vars[0].type, Arr) or x.op.name == "get" and x.op.args[0] in inside:  # type: ignore
                return None
            cost += PRIMITIVES[x.op.name].cost if x.op.name in PRIMITIVES else 1  # type: ignore[union-attr]
        made = self.together(bind, tuple(reads(bind)), round(count * cost), found, path)
        indices = {loop.index for loop in path}
        several = made is not None and made.affine is not None and sum(v in indices for v in made.affine[1]) > 1
        return made if several else None

    def together(
        self, bind: Bind, args: Sequence[Atom], cost: float, found: dict, path: tuple[Loop, ...]
    ) -> Value | None:
        """What a binding computes from these."""
        affine, binds = None, []
        for a in args:
            if type(a) is Const or a not in self.inside:
                continue
            if a in found:
                part = found[a][0]
            elif a.type in (INT, REAL):
                part = Value(self.whole(a, path), 0, ())
            else:
                return None
            if part.affine is None and not part.binds:
                return None
            if affine is None:
                affine = part.affine
            elif part.affine is not None and terms_of(affine) != terms_of(part.affine):
                return None
            cost += part.cost
            binds += [x for x in part.binds if x not in binds]
        return None if sum(1 for x in binds for _ in binds_of(x)) > MOST else Value(affine, cost, (*binds, bind))

    def whole(self, a: Atom, path: tuple[Loop, ...]) -> Affine | None:
        """An integer in loop indices and invariants; or a number that is one, where all that it is made of are known
        for numbers that reals are exact for: beside constants and indices what a loop of the nest goes up to."""
        indices = {loop.index for loop in path}
        if a.type != REAL:
            return affine_of(a, self.integers, self.inside, indices) if a.type == INT else None
        made = self.whole_real(a, indices, self.wholes.setdefault(path, {}))
        if made is None:
            return None
        ends = {v for loop in path for v in self.end(loop)}
        small = abs(made[0]) <= SMALL and all(abs(k) <= SMALL for k in made[1].values())
        return made if small and all(v in indices or v in ends for v in made[1]) else None

    def whole_real(self, a: Atom, indices: set[Var], known: dict[Atom, Affine | None]) -> Affine | None:
        """The same of a real number as if no product were rounded; ``known``: of those that it has been asked of."""
        if type(a) is Const:
            return (int(a.value), {}) if float(a.value).is_integer() else None
        op = self.reals.get(a)  # type: ignore[arg-type]
        if op is None:
            return None
        if op.name == "real" and op.args[0].type == INT:
            return affine_of(op.args[0], self.integers, self.inside, indices)
        if a not in known:
            known[a] = combined(op.name, [self.whole_real(x, indices, known) for x in op.args])
        return known[a]

    def end(self, loop: Loop) -> dict[Var, int]:
        """The one variable that says how often a loop runs."""
        constant, terms = (0, {}) if loop.count in self.inside else self.b.affine(loop.count)
        return terms if abs(constant) <= SMALL and list(terms.values()) == [1] else {}

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

    def extreme(self, value: Affine, path: Sequence[Loop], gaps: Sequence[Affine], sign: int) -> Affine:
        """What an affine integer of loop indices is never above (``sign`` 1) or below (-1) where none of ``gaps`` is
        negative, in what is known before the nest: the indices at their ends, the innermost first. Adding as much of a
        gap as takes an index out of it makes it no smaller."""
        found = [value]
        for g in gaps:
            for v, k in value[1].items():
                step = -sign * g[1].get(v, 0)
                if step and k % step == 0 and k // step > 0:
                    found.append(affine_add(value, g, sign * (k // step)))
        b = self.b
        ends = (self.at_ends(x, path, sign) for x in found)
        best, *others = (self.outside(x) for x in ends if x is not None)
        for x in others:
            if b.nonnegative(affine_add((0, {}), affine_add(best, x, -1), sign)):
                best = x
        return best

    def at_ends(self, value: Affine, path: Sequence[Loop], sign: int) -> Affine | None:
        """An affine integer with the loops' indices, where they make it largest (``sign`` 1) or smallest (-1); None
        where nobody knows how far one of them goes, as that of a loop that may not run."""
        for k in reversed(range(len(path))):
            step, index = value[1].get(path[k].index, 0), path[k].index
            value = affine_add(value, (0, {index: 1}), -step)
            if step * sign > 0:
                count = affine_of(path[k].count, self.integers, self.inside, {loop.index for loop in path[:k]})
                if count is None:
                    return None
                value = affine_add(value, affine_add(count, (1, {}), -1), step)
        return value

    def outside(self, a: Affine) -> Affine:
        """An integer in what is known before the nest, as it is in the new program."""
        total: Affine = (a[0], {})
        for v, k in a[1].items():
            total = affine_add(total, self.b.affine(self.atom(v)), k)
        return total

    def in_range(
        self, op: Prim, least: Affine, last: Affine, value: Affine, path: Sequence[Loop], around: Sequence[Loop]
    ) -> bool:
        """Whether an array has what is read of it for all integers from ``least`` to ``last``, of which a subscript is
        as far as from ``value``, also where no iteration runs; ``around``: the folds that it is read in."""
        b, (array, *subscripts) = self.b, op.args
        indices = {loop.index for loop in (*path, *around)}
        constant, terms = value[0], terms_of(value)
        for s, dim in zip(subscripts, type_of(self.atom(array)).dims):  # type: ignore[union-attr]
            low = high = b.affine(self.atom(s)) if s not in self.inside else None
            if low is None:
                place = affine_of(s, self.integers, self.inside, indices)
                if place is None:
                    return False
                if around and {loop.index for loop in around}.issuperset(v for v in place[1] if v in indices):
                    ends = [self.at_ends(place, around, sign) for sign in (-1, 1)]
                    if None in ends:
                        return False
                    low, high = (self.outside(x) for x in ends)  # type: ignore[arg-type]
                elif terms_of(place) != terms:
                    return False
                else:
                    low, high = (affine_add(x, (place[0] - constant, {})) for x in (least, last))
            rest = affine_add(affine_add(b.affine(dim), high, -1), (1, {}), -1)  # type: ignore[arg-type]
            if not b.nonnegative(low) or not b.nonnegative(rest):
                return False
        return True

    def tabulate(
        self, vars: list[Var], found: dict[Var, tuple[Value, tuple[Loop, ...]]], gaps: Sequence[Affine]
    ) -> None:
        """Build one table of several values of one integer; each of ``gaps`` is not negative where they are read."""
        b, (value, path) = self.b, found[vars[0]]
        assert value.affine is not None
        least, last = (self.extreme(value.affine, path, gaps, sign) for sign in (-1, 1))
        length = affine_add(affine_add(last, least, -1), (1, {}))
        for x in (x for v in vars for x in found[v][0].binds):
            around = (x.op,) if type(x.op) is Loop else ()
            looks = (y.op for y in binds_of(x) if type(y.op) is Prim and y.op.name == "get")
            if not all(self.in_range(op, least, last, value.affine, path, around) for op in looks):
                return
        low, size = b.affine_value(least), b.affine_value(length)
        if not b.nonnegative(length):
            size = b.prim("max", Const(0, INT), size)

        def body(q: Atom):
            at = b.prim("+", low, q)
            for x in (x for v in vars for x in found[v][0].binds):
                for a in reads(x):
                    affine = self.whole(a, path) if type(a) is Var and a in self.inside else None
                    if affine is not None:
                        number = b.prim("+", at, Const(affine[0] - value.affine[0], INT))  # type: ignore
                        self.here[a] = number if a.type == INT else b.to_real(number)  # type: ignore[index]
                self.line(x)
            return (), self.atoms(vars)

        made = b.loop(size, (), body, [v.name for v in vars], "q", pruned=True)
        for v, table in zip(vars, made):
            own = found[v][0]
            self.tables[v] = table, own.affine, affine_add(b.affine(low), (own.affine[0] - value.affine[0], {}))  # type: ignore


def left(value: Value, path: Sequence[Loop]) -> bool:
    """Whether a number of the index of one loop alone is left for ``Expand``: but for powers by integers one apart."""
    steps = [value.affine[1][loop.index] for loop in path if loop.index in value.affine[1]]  # type: ignore[index]
    prims = [y.op for x in value.binds for y in binds_of(x) if type(y.op) is Prim]
    powers = any(p.name == "**" and type_of(p.args[1]) == INT for p in prims) and not any(
        p.name == "get" for p in prims
    )
    return len(steps) < 2 and not (powers and abs(steps[0]) == 1)


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


def terms_of(a: Affine) -> object:
    """An affine integer but for its constant, to be compared."""
    return affine_key((0, a[1]))


def affine_of(a: Atom, integers: dict[Var, Prim], inside: set[Var], indices: set[Var]) -> Affine | None:
    """An integer in loop indices and in what the nest does not change."""
    if type(a) is Const:
        return a.value, {}
    if a not in inside or a in indices:
        return 0, {a: 1}
    op = integers.get(a)  # type: ignore[arg-type]
    if op is None or op.name not in ("+", "-", "*", "neg"):
        return None
    return combined(op.name, [affine_of(x, integers, inside, indices) for x in op.args])


def combined(name: str, parts: Sequence[Affine | None]) -> Affine | None:
    """A sum, difference or product of affine integers; None where that is none."""
    if None in parts:
        return None
    if name == "neg":
        return affine_add((0, {}), parts[0], -1)  # type: ignore[arg-type]
    if name != "*":
        return affine_add(*parts, 1 if name == "+" else -1)  # type: ignore[arg-type]
    for x, y in (parts, parts[::-1]):
        if not x[1]:  # type: ignore[index]
            return affine_add((0, {}), y, x[0])  # type: ignore[index, arg-type]
    return None


def affine_in(sums: dict[Var, Prim], a: Atom) -> Affine:
    """An integer in what the ``sums`` that it is made of start from."""
    found = affine_of(a, sums, set(sums), set())
    assert found is not None
    return found


def sums_in(block: Block) -> dict[Var, Prim]:
    """The integers of a block that are sums and differences."""
    made = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim and x.vars[0].type == INT}
    return {v: op for v, op in made.items() if op.name in ("+", "-", "neg")}
