"""Sums over all pairs: what a pair adds to its second member, the turned pair adds to its first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

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
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    defined_in,
    free_vars,
    is_zero,
    reads,
)
from ..program.builder import Builder
from ..program.counts import work
from ..program.dead import tidy
from ..program.loops import slice_of
from ..program.rebuild import Rebuild, rebuilt, taken
from .lanes import ahead
from .nests import Register, Steps
from .strands import own_sum
from .unbranched import Unbranched, chooses_arrays

Here = dict[Var, Atom]
Known = dict[Hashable, Atom]  # by the operands of a difference, the factors of a product
Adding = tuple[Bind, tuple[Atom, ...], Atom]

#: What the turned pair may take, over what it saves, where eight sums then go side by side: vectors have four numbers.
IN_LANES = 2
#: Loops and arrays inside one another that are tried together: each makes twice as many programs.
TRIED, NONE = 4, -1


class Pairs(Rebuild):
    """In two loops over the same range, what is added at the inner index is added at the outer one, the pair turned.

    ``(ifold (fn [a i] (ifold (fn [a j] (add-at a j (f i j))) a n)) a n)``  =>  the same with ``(add-at a i (f j i))``,
    which is a sum in a register: ``(add-at a i (ifold (fn [s j] (+ s (f j i))) 0.0 n))``.

    Design decision: where ``f j i`` adds no work to ``f i j``, since most of it is there, as among bodies that attract
    one another; up to as much again where there are sums alone then, which go in lanes (``hyad/passes/lanes.py``). An
    ``add-at`` is an adjoint's, whose sum may be taken in any order. What a member takes a loop for, a density say, is
    made for all members first.
    """

    found = False
    tried = 0

    def takes(self, bind: Bind) -> bool:
        op = bind.op
        arrays = [k for k, acc in enumerate(op.accs) if isinstance(acc.type, Arr)] if type(op) is Loop else ()
        inner = (self.inner(op, k) for k in arrays)  # type: ignore[arg-type]
        inside = {*defined_in(op.body), op.index} if arrays else set()  # type: ignore[union-attr]
        return any(x is not None and added(x[0].op, x[1], inside) for x in inner)  # type: ignore[arg-type]

    def loop(self, op: Loop, bind: Bind, first: int = 0) -> Sequence[Atom]:
        """A loop with what is added to its arrays from ``first`` on turned, where that takes little: all of them, each
        with what is then best for the others, up to ``TRIED`` inside one another; one by one beyond."""
        for k in range(first, len(op.accs)) if self.tried != NONE else ():
            inner = self.inner(op, k) if isinstance(op.accs[k].type, Arr) else None
            if inner is None:
                continue
            adding = added(inner[0].op, inner[1], {*defined_in(op.body), op.index})  # type: ignore[arg-type]
            needed = self.needed(op, inner[0], [a for _, _, a in adding]) if adding else None
            if not needed or not needed[0]:
                continue
            with self.b.region() as scope:
                turned = self.turned(op, bind, inner[0], inner[1], adding, *needed)  # type: ignore[arg-type]
            alone = tidy(self.b.close(scope, turned))
            if self.tried == TRIED:
                if not pays(alone, self.plain(op, bind)):
                    continue
                self.found = True
                return self.block(alone)
            self.tried += 1
            with self.b.region() as scope:
                turned = self.block(alone)  # and what is added to the others
            made = tidy(self.b.close(scope, turned))
            with self.b.region() as plain:
                kept = self.loop(op, bind, k + 1)
            self.tried -= 1
            if pays(made, tidy(self.b.close(plain, kept))):
                self.found = True
                kept = turned
            else:
                scope = plain
            self.b.keep(scope)
            return kept
        return super().loop(op, bind)

    def plain(self, op: Loop, bind: Bind) -> Block:
        """A loop in which nothing is turned."""
        before, self.tried = self.tried, NONE
        with self.b.region() as scope:
            kept = super().loop(op, bind)
        self.tried = before
        return tidy(self.b.close(scope, kept))

    def inner(self, op: Loop, k: int) -> tuple[Bind, int] | None:
        """The loop over the same range through which an array goes that is only added to, and where it stands there."""
        at: Atom = op.accs[k]
        found = None
        readers = readers_of(op.body)
        while at is not op.body.results[k]:
            if len(readers.get(at, ())) != 1 or at in op.body.results:
                return None
            (x,) = readers[at]
            if type(x.op) is Prim and x.op.name == "add-at" and x.soft and x.op.args[0] is at:
                at = x.vars[0]
            elif type(x.op) is Loop and x.op.inits.count(at) == 1 and found is None and x.op.count is op.count:
                if at in free_vars(x.op.body):
                    return None
                found = x, x.op.inits.index(at)
                at = x.vars[found[1]]
            else:
                return None
        return found if op.body.results.count(at) == 1 else None

    def needed(self, op: Loop, inner: Bind, atoms: Sequence[Atom]) -> tuple[list[Bind], list[Var]] | None:
        """What computes some numbers of a pair from its indices, and the numbers of its members that take loops; None
        if it is more than single operations and choices between them, or hangs on what the loops change."""
        before = op.body.binds[: op.body.binds.index(inner)]
        changed: set[Atom] = {*op.accs, *inner.op.accs}  # type: ignore[union-attr]
        looped: set[Var] = set()
        for x in before:
            if type(x.op) is Loop or not looped.isdisjoint(reads(x)):
                looped.update(x.vars)
            if not changed.isdisjoint(reads(x)):
                changed.update(x.vars)
        wanted, found, tables = set(atoms), [], []
        for x in reversed((*before, *inner.op.body.binds)):  # type: ignore[union-attr]
            if wanted.isdisjoint(x.vars):
                continue
            if not looped.isdisjoint(x.vars):
                tables += [v for v in x.vars if v in wanted]
            elif single(x):
                wanted.update(reads(x))
                found.append(x)
            else:
                return None
        if not wanted.isdisjoint(changed) or any(v.type != REAL for v in tables):
            return None
        return found[::-1], tables

    def turned(
        self, op: Loop, bind: Bind, inner: Bind, k: int, adding: list[Adding], needed: list[Bind], tables: list[Var]
    ) -> Sequence[Atom]:
        """The loops with what is added to the k-th array of the inner one turned. What a member of a pair takes loops
        for is in ``tables`` then, made before."""
        b, loop = self.b, inner.op
        assert type(loop) is Loop
        known = dict(zip(tables, self.of_members(op, tables)))
        apart = {  # sums over all pairs: of each member's first, so that members wait for none
            n
            for n, (a, z) in enumerate(zip(loop.accs, loop.inits))
            if a.type == REAL and z in op.accs and own_sum(loop.body, a, loop.body.results[n])
        }

        def own(out: Sequence[Atom]) -> list[tuple[int, Atom]]:
            return list(zip([n for n in range(len(loop.accs)) if n != k], out))

        places = list(dict.fromkeys(place for _, place, _ in adding))
        dropped = {x for x, _, _ in adding}
        later = self.later(op, inner, k)
        last = later[-1].vars[0] if later else inner.vars[k]
        width, count = len(op.accs), self.atom(op.count)
        inside, wanted = set(loop.body.binds), set(needed)

        def pair(i: Atom, j: Atom, *accs: Atom):
            sums = accs[len(loop.accs) - 1 :]
            self.here[loop.index] = j
            self.here.update(zip([a for n, a in enumerate(loop.accs) if n != k], accs))
            around = dict(self.here)
            there = {**around, op.index: j, loop.index: i, **{v: b.get(table, j) for v, table in known.items()}}
            self.both([x for x in needed if x not in inside], around, there, set(), wanted, {})
            self.both(loop.body.binds, around, there, inside - dropped, wanted, {})
            self.here = there
            terms = {place: [self.atom(a) for _, p, a in adding if p == place] for place in places}
            self.here = around
            results = self.atoms(loop.body.results)
            after = [b.sum([s, *terms[place]]) for s, place in zip(sums, places)]
            kept = [r for n, r in enumerate(results) if n != k]
            return [*kept[: len(loop.accs) - 1], *after], kept[len(loop.accs) - 1 :]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            left: dict[tuple[Atom, ...], Atom] = {}
            array: Atom | None = None
            for x in op.body.binds:
                self.b.span = x.span
                if x is inner:
                    array = self.atom(loop.inits[k])
                    inits = [ZERO if n in apart else self.atom(z) for n, z in enumerate(loop.inits) if n != k]
                    names = [v.name for n, v in enumerate(x.vars) if n != k]
                    out = b.loop(
                        count,
                        [*inits, *[ZERO] * len(places)],
                        lambda j, *accs: pair(i, j, *accs),
                        [*names[: len(inits)], *["s"] * len(places), *names[len(inits) :]],
                        loop.index.name,
                        [*(a.name for n, a in enumerate(loop.accs) if n != k), *["s"] * len(places)],
                    )
                    with b.differentiating():
                        sums = [b.prim("+", self.atom(loop.inits[n]), s) if n in apart else s for n, s in own(out)]
                    out = (*sums, *out[len(inits) :])
                    left = dict(zip(places, out[len(inits) :]))
                    rest = iter((*out[: len(inits)], *out[len(inits) + len(places) :]))
                    self.define(x, [array if n == k else next(rest) for n in range(len(x.vars))])
                elif x in later and x.op.args[1:2] == (op.index,):  # type: ignore[union-attr]
                    assert type(x.op) is Prim
                    total = self.atom(x.op.args[-1])
                    more = left.pop(x.op.args[2:-1], None)
                    total = total if more is None else b.prim("+", total, more)
                    made = b.add_at(self.atom(x.op.args[0]), self.atoms(x.op.args[1:-1]), total, x.vars[0].name, x.soft)
                    self.define(x, [made])
                elif known and all(v in known for v in x.vars):
                    self.define(x, [b.get(known[v], i) for v in x.vars])
                else:
                    self.line(x)
            results = list(self.atoms(op.body.results))
            at = op.body.results.index(last)
            for place, total in left.items():
                results[at] = b.add_at(results[at], (i, *self.atoms(place)), total, op.accs[at].name, True)
            return results[:width], results[width:]

        return b.loop(
            count,
            self.atoms(op.inits),
            body,
            [v.name for v in bind.vars],
            op.index.name,
            [a.name for a in op.accs],
            bool(bind.vars) and bind.vars[0].given,
        )

    def both(
        self, binds: Sequence[Bind], here: Here, there: Here, kept: set[Bind], needed: set[Bind], known: Known
    ) -> None:
        """Rebuild bindings, those ``kept`` for the pair as it is (``here``) and those ``needed`` for the turned one
        (``there``), side by side. ``known`` has the pair's differences, whose negatives the other's are, and its
        products: those of the same factors are the other's, in whichever order they are multiplied."""
        b = self.b
        for x in binds:
            op = x.op
            if type(op) is If and x in kept and x in needed and self.alike(op.cond, here, there):
                cond, regions = here.get(op.cond, op.cond), []  # type: ignore[call-overload]
                for block, holds in ((op.then, True), (op.orelse, False)):
                    with b.branch_region(cond, holds) as scope:
                        inner, all_ = (dict(here), dict(there)), set(block.binds)
                        self.both(block.binds, *inner, all_, all_, dict(known))
                        results = [m.get(r, r) for m in inner for r in block.results]  # type: ignore[call-overload]
                    regions.append((scope, results))
                b.span = x.span
                out = b.if_(cond, *regions, [v.name for v in x.vars] * 2)
                here.update(zip(x.vars, out))
                there.update(zip(x.vars, out[len(x.vars) :]))
                continue
            name = op.name if type(op) is Prim else None
            if x in kept:
                self.here = here
                self.line(x)
                if name == "-":
                    known[self.atoms(op.args)] = here[x.vars[0]]  # type: ignore[union-attr]
                elif name == "*":
                    known[self.factors([here[x.vars[0]]])] = here[x.vars[0]]
            if x in needed:
                self.here = there
                args = self.atoms(op.args) if type(op) is Prim else ()
                if name == "-" and args[::-1] in known:
                    b.span = x.span
                    self.define(x, [b.prim("neg", known[args[::-1]])])
                elif name == "*" and (product := self.factors(args)) in known:
                    self.define(x, [known[product]])
                else:
                    self.line(x)

    def factors(self, args: Sequence[Atom]) -> Hashable:
        """What is multiplied in a product of products, and how often."""
        found: Counter[Any] = Counter()
        stack = list(args)
        while stack:
            a = stack.pop()
            made = self.b.definitions.get(a)  # type: ignore[call-overload]
            if made is not None and made.name == "*":
                stack += made.args
            else:
                found[self.b.key(a)] += 1
        return frozenset(found.items())

    def alike(self, cond: Atom, here: Here, there: Here) -> bool:
        """Whether a condition is the same of a pair and of the turned one."""
        one, other = (m.get(cond, cond) for m in (here, there))  # type: ignore[call-overload]
        return self.b.key(one) == self.b.key(other)

    def of_members(self, op: Loop, tables: list[Var]) -> Sequence[Atom]:
        """Arrays of the numbers of all members."""
        if not tables:
            return ()
        needed = slice_of(op.body, tables)

        def body(i: Atom):
            self.here[op.index] = i
            return (), self.block(needed)

        return self.b.loop(self.atom(op.count), (), body, [v.name for v in tables], op.index.name)

    @staticmethod
    def later(op: Loop, inner: Bind, k: int) -> list[Bind]:
        """What adds to the array that the inner loop gives, in order."""
        found: list[Bind] = []
        stores = {x.op.args[0]: x for x in op.body.binds if type(x.op) is Prim and x.op.name == "add-at"}
        at: Atom = inner.vars[k]
        while at in stores:
            found.append(stores[at])
            at = found[-1].vars[0]
        return found


def single(x: Bind) -> bool:
    """Whether a binding is an operation on single numbers, or a choice between such."""
    if any(isinstance(v.type, Arr) for v in x.vars):
        return False
    return type(x.op) is Prim or type(x.op) is If and all(single(y) for r in blocks_of(x.op) for y in r.binds)


def added(op: Loop, k: int, inside: set[Var]) -> list[Adding] | None:
    """What a loop adds to an array at its own index, if it does nothing else with it: each binding, the subscripts
    after that one, which nothing ``inside`` of the loops decides, and the number."""
    found: list[Adding] = []
    at: Atom = op.accs[k]
    readers = readers_of(op.body)
    while at is not op.body.results[k]:
        if len(readers.get(at, ())) != 1 or at in op.body.results:
            return None
        (x,) = readers[at]
        if type(x.op) is not Prim or x.op.name != "add-at" or not x.soft or x.op.args[0] is not at:
            return None
        if x.op.args[1] is not op.index:
            return None
        place, number = x.op.args[2:-1], x.op.args[-1]
        if number.type != REAL or not inside.isdisjoint(place) or is_zero(number):
            return None
        found.append((x, place, number))
        at = x.vars[0]
    return found if found and op.body.results.count(at) == 1 else None


def goes_ahead(block: Block) -> bool:
    """Whether the sums of a loop in a block go side by side."""
    return any(type(x.op) is Loop and ahead(x.op) is not None for x in block.binds)


def pays(made: Block, plain: Block) -> bool:
    """Whether loops with something turned take as little as without."""
    return work(made) <= (IN_LANES if goes_ahead(made) else 1) * work(plain)


def readers_of(block: Block) -> dict[Atom, list[Bind]]:
    """The bindings of a block that read each variable, in their regions too."""
    found: dict[Atom, list[Bind]] = {}
    for x in block.binds:
        for a in {*atoms_of(x.op), *(v for r in blocks_of(x.op) for v in free_vars(r))}:
            found.setdefault(a, []).append(x)
    return found


class Others(Unbranched):
    """``Unbranched`` for the loops over all pairs but those of a member with itself: what is added to the arrays where
    ``(!= i j)`` is added for all, zero for the others."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder, program)
        self.around: Atom | None = None  # how often the loop around runs

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        around, self.around = self.around, op.count
        inside, self.inside = self.inside, op.count is around and self.takes(op)
        out = Rebuild.loop(self, op, bind)
        self.around, self.inside = around, inside
        return out

    def takes(self, op: Loop) -> bool:
        """Whether a loop asks for no order of two members."""
        found = list(all_binds(op.body))
        return all(type(x.op) in (Prim, If) for x in found) and not any(
            type(x.op) is Prim and x.op.name in ("<", "<=", ">", ">=") and x.op.args[0].type == INT for x in found
        )


def pairs(program: Program) -> Program:
    """Turns additions to the second member of all pairs into additions to the first, with the pairs turned: a sum in a
    register."""
    nested = [
        y.op.body
        for x in all_binds(program.body)
        if type(x.op) is Loop
        for y in x.op.body.binds
        if type(y.op) is Loop and y.op.count is x.op.count
    ]
    if not nested:
        return program
    others = Others(Builder(), program)
    plain = rebuilt(program, others) if any(map(chooses_arrays, nested)) else program
    plain = taken(plain, Register(Builder(), Steps(plain.body))) if others.found else program
    pass_ = Pairs(Builder())
    made = taken(plain, pass_)
    return made if pass_.found else program
