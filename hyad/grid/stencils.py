"""Adjoints of stencils, for a device with thousands of threads: each element takes what its neighbours would add to it.

A nest of loops over the elements of an array that adds to them and to their neighbours has three atomic additions for a
stencil of three, to zeros that are written before. The other way round each element is one thread's, which computes
again what its neighbours add::

    (ifold (fn [a i] (if (f i) (add-at (add-at a (+ i 1) (x i)) i (y i)) a)) a n)
    =>  (ifold (fn [a i] (add-at a i (+ (if (<= 1 i) (if (f (- i 1)) (x (- i 1)) 0.0) 0.0) (if (f i) (y i) 0.0)))) a n)

The terms of an element are those that it got, in the order of the additions in an iteration. The loops need not go
through all elements. A subscript may be kept inside, ``(max 0 (- i 1))``: the elements at the edges take a few terms
more. How far away a neighbour is may be known in the call alone, ``(+ i k)``, and it may come from the other end,
``(- n i)``. Where all that is computed again is dear, a number that most of it is made of is stacked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
    free_vars,
    integer,
    same,
    substitute,
    type_of,
)
from ..passes.spread import nest, reductions, work
from ..program.additions import ZERO, Addition, added, additions, total
from ..program.affine import Affine, affine_add, affine_in, with_factors
from ..program.dead import tidy
from .nesting import adding, folding, operation, stacking, statements, without
from .teams import renamed

DEAR = 96.0  # the work of all that is computed again for an element, in additions: less than memory takes
STACKED = 2  # numbers that are stacked for one array, at most
CORNERS = 4  # iterations whose subscript is kept inside, at most, at one edge
AT_EDGES = 8.0  # so many times less than other terms count those of the edges: few threads have them


@dataclass(frozen=True, slots=True)
class Way:
    """Which iteration of a loop, ``level``, adds to an element: the one that is so much before it (``shift``, and
    ``also``: integers of the program, added or taken away), and as much more as the index of another loop says
    (``along``), or less (``less``); or, where the loop goes ``back``, the one that with the element makes so much; or
    this one (``at``; from the end where that is less than 0), to the element of the number ``edge``."""

    level: int
    shift: int
    at: int | None = None
    edge: Atom | None = None
    along: int | None = None
    also: tuple[tuple[Var, int], ...] = ()
    less: bool = False
    back: bool = False

    @property
    def own(self) -> bool:
        """Whether it is the element's own: back there is such a one at 0 alone."""
        return not self.shift and not self.also and self.at is None and self.along is None


class Nest:
    """A nest of parallel loops, and what is known of its integers: ``integers``, those of the program."""

    def __init__(self, bind: Bind, integers: Mapping[Var, Prim]) -> None:
        self.bind, self.levels = bind, nest(bind)
        self.ops: list[Loop] = [b.op for b in self.levels]
        self.indices = [o.index for o in self.ops]
        self.inner = self.ops[-1]
        self.sums = {v: op for v, op in integers.items() if op.name in ("+", "-")}
        self.prims = integers
        self.made = {v for b in all_binds(self.ops[0].body) for v in b.vars} | {*self.indices}

    def numbers(self) -> dict[int, int]:
        """Each accumulator's number in the innermost loop."""
        number = {k: k for k in range(len(self.ops[0].accs))}
        for outer, within in zip(self.ops, self.ops[1:]):
            for k, j in number.items():
                number[k] = next(m for m, z in enumerate(within.inits) if z is outer.accs[j])
        return number

    # ------------------------------------------------------------------------------------- which iterations

    def ways(self, addition: Addition, dims: Sequence[Atom]) -> list[tuple[Way, ...]] | None:
        """The iterations that add to an element, each as what its indices are; None where that is not known."""
        each = [self.way(sub, d, addition) for sub, d in zip(addition.subs, dims)]
        if None in each:
            return None
        found = [tuple(ways) for ways in product(*each)]
        for ways in found:
            levels = [level for w in ways for level in (w.level, w.along) if level is not None]
            if len({*levels}) != len(levels):
                return None
        return found

    def way(self, sub: Atom, size: Atom, addition: Addition) -> list[Way] | None:
        op = self.prims.get(sub)
        if op is not None and op.name in ("max", "min"):
            return self.kept_inside(op, size)
        inner = {v: x for v, x in self.prims.items() if v in self.made}  # sizes stay as they are
        constant, rest = with_factors(affine_in(sub, self.sums), inner)
        also = tuple((v, k) for v, k in rest.items() if v not in self.made)
        mine = {v: k for v, k in rest.items() if v in self.made}
        plain = all(abs(k) == 1 for k in rest.values()) and {*mine} <= {*self.indices}
        for k, index in enumerate(self.indices):
            if plain and mine.get(index) == 1 and len(mine) <= 2:
                other = next((v for v in mine if v is not index), None)
                along = self.indices.index(other) if other is not None else None
                return [Way(k, constant, along=along, also=also, less=mine.get(other) == -1)]
            if plain and mine == {index: -1}:
                return [Way(k, constant, also=also, back=True)]
            for branch, arm in addition.inside:  # where the index is this very number
                test = self.prims.get(branch.cond)
                if arm == 0 and test is not None and test.name == "=" and index in test.args:
                    other = test.args[test.args[0] is index]
                    if affine_in(other, self.sums) == (constant, rest):
                        return [Way(k, 0)]
        return None

    def kept_inside(self, op: Prim, size: Atom) -> list[Way] | None:
        """``(max 0 (+ i c))``, ``(min (- n 1) (+ i c))`` or one in the other, where n is how many there are of i."""
        low: Atom | None = None
        high: Atom | None = None
        while True:
            sides = [affine_in(a, self.sums) for a in op.args]
            known = [j for j in (0, 1) if not any(v in self.made for v in sides[j][1])]
            if len(known) != 1 or (low if op.name == "max" else high) is not None:
                return None
            bound, a = op.args[known[0]], op.args[1 - known[0]]
            low, high = (bound, high) if op.name == "max" else (low, bound)
            inner = self.prims.get(a)
            if inner is None or inner.name not in ("max", "min"):
                break
            op = inner
        shift, rest = affine_in(a, self.sums)
        level = next((k for k, i in enumerate(self.indices) if rest == {i: 1}), None)
        if level is None or low is not None and affine_in(low, self.sums) != (0, {}):
            return None
        count = self.size(self.ops[level].count)
        if high is not None and affine_in(high, self.sums) != affine_add(count, (1, {}), -1):
            return None
        if self.size(size) != count or abs(shift) > CORNERS:
            return None
        found = [Way(level, shift)]
        if low is not None:
            found += [Way(level, 0, k, low) for k in range(-shift)]
        if high is not None:
            found += [Way(level, 0, -k - 1, high) for k in range(shift)]
        return found

    def size(self, a: Atom) -> Affine:
        return affine_in(a, self.sums)

    # ---------------------------------------------------------------------------------------------- the sums

    def taken(self, ways: tuple[Way, ...], block: Block, at: Sequence[Var], dims: Sequence[Atom]) -> Block:
        """A term of the element ``at``, as it is in the iteration that adds it, if there is one."""
        block = renamed(block)
        binds: list[Bind] = []
        tests: list[Atom] = []
        table: dict[Var, Atom] = {}
        over = {k: op for k, op in enumerate(self.ops) if all(k != way.level for way in ways)}
        loops: list[tuple[Atom, Var]] = []  # how many terms, and which one

        def made(name: str, *args: Atom, hint: str = "terms") -> Atom:
            v, b = operation(name, *args, hint=hint)
            binds.append(b)
            return v

        def test(name: str, *args: Atom) -> None:
            tests.append(Var("there", BOOL))
            binds.append(Bind((tests[-1],), Prim(name, args)))

        inside: list[Bind] = []
        for way, e, size in zip(ways, at, dims):
            op = self.ops[way.level]
            if way.at is not None:
                test("=", e, way.edge)
                if way.at < 0:
                    i = made("-", op.count, integer(-way.at), hint=op.index.name)
                    test("<=", integer(0), i)
                else:
                    i = integer(way.at)
                    test("<", i, op.count)
                table[op.index] = i
                continue
            i = self.before(way, e, made)
            if way.along is not None:  # those that are there are neighbours
                other = over.pop(way.along)
                if way.less:
                    first = made("max", integer(0), made("-", integer(0), i), hint="first")
                    last = made("-", op.count, i)
                else:
                    last = made("+", i, integer(1))
                    first = made("max", integer(0), made("-", last, op.count), hint="first")
                count = made("max", integer(0), made("-", made("min", other.count, last), first))
                term = Var("term", INT)
                loops.append((count, term))
                table[other.index], b = operation("+", first, term, hint=other.index.name)
                table[op.index], c = operation("+" if way.less else "-", i, table[other.index], hint=op.index.name)
                inside += [b, c]
                continue
            known = not way.also and not way.back
            if not known:
                test("<=", integer(0), i)
            elif way.shift > 0:
                test("<=", integer(way.shift), e)
            less = affine_add(self.size(size), self.size(op.count), -1)
            if not known or less[1] or less[0] > way.shift:
                test("<", i, op.count)
            table[op.index] = i
        for op in over.values():
            table[op.index] = Var(op.index.name, INT)
            loops.append((op.count, table[op.index]))
        block = substitute(block, table)
        block = Block((*inside, *block.binds), block.results)
        for count, index in reversed(loops):
            total_ = folding(count, index, block, REAL, self.bind.span)
            block = Block((total_,), total_.vars)
        if not tests:
            return Block((*binds, *block.binds), block.results)
        there = tests[0]
        for t in tests[1:]:
            both = Var("there", BOOL)
            binds.append(Bind((both,), Prim("and", (there, t))))
            there = both
        out = Var("t", REAL)
        binds.append(Bind((out,), If(there, block, Block((), (ZERO,)))))
        return Block(tuple(binds), (out,))

    def before(self, way: Way, e: Atom, made: Callable[..., Atom]) -> Atom:
        """The iteration that adds to an element, but for what another loop's index says; ``made`` computes."""
        hint = self.ops[way.level].index.name
        i = integer(way.shift) if way.back else e
        if way.shift and not way.back:
            name, far = ("-", way.shift) if way.shift > 0 else ("+", -way.shift)
            i = made(name, e, integer(far), hint=hint)
        for v, k in way.also:
            i = made("+" if (k == 1) == way.back else "-", i, v, hint=hint)
        return made("-", i, e, hint=hint) if way.back else i

    def gathered(self) -> list[Bind]:
        """The nest, with what it adds to arrays as sums for each element, where these are known and cheap."""
        op, bind = self.ops[0], self.bind
        if any(type(b.op) not in (Prim, If) for b in all_binds(self.inner.body)):
            return [bind]
        number = self.numbers()
        own: list[tuple[int, Block]] = []
        apart: list[Bind] = []
        gone: set[int] = set()
        stacks: dict[Var, Var] = {}
        for kind in reductions(op) or ():
            k = kind.accs[0]
            if kind.kind not in ("scatter", "slice") or op.accs[k].type.elem != REAL:
                continue
            sizes = op.accs[k].type.dims
            terms = self.terms(number[k], sizes, stacks)
            if terms is None:
                continue
            made, read = terms
            if kind.kind == "slice" and all(w.own for ways in made for w in ways):
                continue  # each iteration has elements of its own
            whole = all(len(w) == len(self.ops) and all(x.along is None for x in w) for w in made)
            if (
                not read
                and whole
                and len(sizes) == len(self.ops)
                and all(same(o.count, d) for o, d in zip(self.ops, sizes))
            ):
                own.append((number[k], self.element(made, self.indices, sizes)))
                continue
            at = [Var("i", INT) for _ in sizes]
            gone.add(k)
            apart.append(adding(bind.vars[k], op.inits[k], at, sizes, at, self.element(made, at, sizes), bind.span))
        if not own and not apart:
            return [bind]
        rest = without(self.with_sums(own), gone)
        before = [self.stacked(stacks)] if stacks else []
        return [*before, *([rest] if rest is not None else []), *apart]

    def plain(self, stacks: Mapping[Var, Var]) -> tuple[Bind, ...]:
        """What is done in the nest, but for its loops; what is stacked is read."""
        return self.reading(statements(self.levels, ()), stacks)

    def reading(self, binds: Sequence[Bind], stacks: Mapping[Var, Var]) -> tuple[Bind, ...]:
        out: list[Bind] = []
        for b in binds:
            op = b.op
            if b.vars[0] in stacks:
                b = Bind(b.vars, Prim("get", (stacks[b.vars[0]], *self.indices)), b.span)
            elif type(op) is If and stacks:
                arms = (Block(self.reading(arm.binds, stacks), arm.results) for arm in (op.then, op.orelse))
                b = Bind(b.vars, If(op.cond, *arms), b.span)
            out.append(b)
        return tuple(out)

    def stacked(self, stacks: Mapping[Var, Var]) -> Bind:
        """The nest that stacks some numbers; where their branches are not taken, 0."""
        plain = self.plain({})
        binds: dict[Bind, None] = dict.fromkeys(plain)
        kept: dict[Var, Var] = {}
        places: dict[tuple, list[Var]] = {}
        for v, inside in self.numbers_made():
            if v in stacks:
                places.setdefault(inside, []).append(v)
        for inside, values in places.items():
            blocks = [Block(plain, ()), *((op.then, op.orelse)[arm] for op, arm in inside)]
            made = Block(blocks.pop().binds, tuple(values))
            for (op, arm), around in zip(reversed(inside), reversed(blocks)):
                outs = tuple(Var(v.name, REAL, v.span) for v in values)
                arms = [Block((), (ZERO,) * len(values))] * 2
                arms[arm] = tidy(made)
                made = Block((*around.binds, Bind(outs, If(op.cond, *arms))), outs)
            binds.update(dict.fromkeys(made.binds))
            kept.update(zip(made.results, (stacks[v] for v in values)))
        return stacking(self.levels, tuple(binds), kept)

    def with_sums(self, own: Sequence[tuple[int, Block]]) -> list[Bind]:
        """The nest, in which some accumulators, by their numbers in the innermost loop, get the sum of each element."""
        binds, results = list(self.inner.body.binds), list(self.inner.body.results)
        for j, block in own:
            acc = self.inner.accs[j]
            after = Var(acc.name, acc.type, acc.span)
            binds += [*block.binds, Bind((after,), Prim("add-at", (acc, *self.indices, block.results[0])))]
            results[j] = after
        made = replace(self.inner, body=tidy(Block(tuple(binds), tuple(results))))
        levels = [Bind(self.levels[-1].vars, made, self.levels[-1].span)]
        for level in reversed(self.levels[:-1]):
            body = Block((*level.op.body.binds[:-1], levels[0]), level.op.body.results)
            levels.insert(0, Bind(level.vars, replace(level.op, body=body), level.span))
        return levels

    def terms(
        self, j: int, sizes: Sequence[Atom], stacks: dict[Var, Var]
    ) -> tuple[dict[tuple[Way, ...], Block], bool] | None:
        """What is added to an element of an array, by the iteration that adds it, and whether that reads what is
        stacked; ``stacks`` gets what has to be."""
        acc, result = self.inner.accs[j], self.inner.body.results[j]
        found = additions(self.inner.body, result)
        if found is None or found[1] is not acc or not found[0]:
            return None
        groups: dict[tuple[Way, ...], set[Var]] = {}
        for a in found[0]:
            ways = self.ways(a, sizes)
            if ways is None or isinstance(type_of(a.value), Arr):
                return None
            for w in ways:
                groups.setdefault(w, set()).add(a.after)
        if all(w.own for ways in groups for w in ways) and any(len(ways) < len(self.ops) for ways in groups):
            return None  # a sum over other loops is for ``gather``
        accs = {a for o in self.ops for a in o.accs} | self.made.difference(self.indices)  # and what they become

        def made(stacks: Mapping[Var, Var]) -> tuple[float, dict[tuple[Way, ...], Block]]:
            """The terms, and the work of them all."""
            block = Block(self.plain(stacks), ())
            terms = {w: total(block, result, chosen) for w, chosen in groups.items()}
            if any(v in accs for t in terms.values() for v in free_vars(t)):
                return DEAR + 1, {}
            weights = ((sum(work(b.op) for b in all_binds(t) if type(b.op) is Prim), w) for w, t in terms.items())
            return sum(x / AT_EDGES if any(way.at is not None for way in w) else x for x, w in weights), terms

        weight, terms = made({})
        if weight <= DEAR:
            return terms, False
        chosen = dict(stacks)
        weight, terms = made(chosen) if chosen else (weight, terms)
        several = self.combined([a.value for a in found[0]])
        if terms and weight > DEAR and len({*several} - {*chosen}) <= STACKED:
            tried = {**chosen, **{v: Var(v.name, self.stack_type(), v.span) for v in several if v not in chosen}}
            light, fewer = made(tried)
            if light <= DEAR:
                stacks.update(tried)
                return fewer, True
        for _ in range(STACKED):  # one number more, that which most is made of
            if weight <= DEAR or not terms:
                break
            tried = [{**chosen, v: Var(v.name, self.stack_type(), v.span)} for v, _ in self.numbers_made()]
            weight, terms, chosen = min(((*made(s), s) for s in tried), key=lambda x: x[0], default=(weight, {}, {}))
        if weight > DEAR:
            return None
        stacks.update(chosen)
        return terms, True

    def combined(self, values: Sequence[Atom]) -> dict[Var, None]:
        """The numbers of which values are sums, differences and multiples by constants."""
        made = {b.vars[0]: b.op for b in all_binds(self.inner.body) if type(b.op) is Prim}
        found: dict[Var, None] = {}
        todo = [*values]
        for a in todo:
            op = made.get(a)  # type: ignore[arg-type]
            if op is not None and (op.name in ("+", "-", "neg") or op.name == "*" and type(op.args[0]) is Const):
                todo += [x for x in op.args if x not in todo]
            elif type(a) is Var:
                found[a] = None
        return found

    def numbers_made(self) -> list[tuple[Var, tuple[tuple[If, int], ...]]]:
        """The real numbers that the innermost loop computes, and what branches each is in, and which arm of them."""

        def numbers(block: Block, inside: tuple) -> Iterator[tuple[Var, tuple]]:
            for b in block.binds:
                if len(b.vars) == 1 and b.vars[0].type == REAL:
                    yield b.vars[0], inside
                if type(b.op) is If:
                    for j, arm in enumerate((b.op.then, b.op.orelse)):
                        yield from numbers(arm, (*inside, (b.op, j)))

        return list(numbers(self.inner.body, ()))

    def stack_type(self) -> Arr:
        return Arr(REAL, tuple(o.count for o in self.ops))

    def element(self, terms: Mapping[tuple[Way, ...], Block], at: Sequence[Var], sizes: Sequence[Atom]) -> Block:
        """The sum of the terms of the element ``at``."""
        blocks = [self.taken(w, t, at, sizes) for w, t in terms.items()]
        binds = [b for block in blocks for b in block.binds]
        sum_ = added([block.results[0] for block in blocks], binds)
        return Block(tuple(binds), (sum_,))


def stencil(bind: Bind, integers: Mapping[Var, Prim]) -> list[Bind]:
    """A parallel loop whose additions to arrays are sums for each element, where they are cheap: several loops, if need
    be. ``integers``: the operations of the program on single numbers."""
    return Nest(bind, integers).gathered()
