"""Fusion of loops of which one reads what the other has just stored, shifted by some iterations where need be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_blocks,
    free_vars,
    reads,
    type_of,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.loops import CALL, array_uses, loops_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuilt
from .edges import FEWEST, LONGEST
from .fills import MOST
from .tables import affine_of, sums_in

#: So many loops further on the second one is looked for.
NEAR = 12
#: So many arrays go through one loop: there are as many registers for where they stand.
STREAMS = 12
#: How often the pass looks again for what a loop that it made goes with.
ROUNDS = 6

Place = tuple[Affine, ...]


def align(program: Program) -> Program:
    """Fuses two loops of which the second reads what the first has just stored, an iteration or two apart where their
    edges differ.

    ``(loop (- n 1) (fn [i a] (update a (+ i 1) (f i))) z)``, then ``(build n (fn [j] (g (get a j) j)))``  =>
    ``(g (get z 0) 0)``, then for ``i`` < n - 1 both ``(f i)`` and ``(g (f i) (+ i 1))``.

    Design decision: late, when it is known where loops begin and end, and among innermost loops that a compiler takes
    several iterations of at once; the one loop is one, too. A loop that carries numbers from one iteration to the next
    goes with one that only copies what it has made. What is stored is not read again, nor stored where nothing else
    reads it.
    """
    if len(loops_of(program)) < 2:
        return program
    for _ in range(ROUNDS):
        pass_ = Align(Builder(), program)
        if not pass_.pairs:
            break
        program = rebuilt(program, pass_)
    return program


@dataclass(frozen=True, slots=True)
class Ends:
    """How many iterations of the second loop come before the one loop, and how many behind."""

    first: int
    last: int


@dataclass(slots=True)
class Pair:
    """A loop, what has to come before it, and the one that goes with it."""

    second: Bind
    before: list[Bind]
    ends: Ends


class Align(Rebuild):
    """``align`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.sums = sums_in(program.body)
        self.uses = array_uses(program.body)
        self.pairs: dict[Bind, Pair] = {}  # of all blocks
        self.done: set[Bind] = set()
        self.elements: dict[Var, Atom] = {}  # of arrays that are being stacked: that of this iteration
        self.starts: dict[Var, Atom] = {}  # of arrays that have been made: what they started from
        for block in all_blocks(program.body):
            if sum(type(x.op) is Loop for x in block.binds) > 1:
                self.plan(block)

    def bind(self, bind: Bind) -> None:
        if bind in self.done:
            return
        pair = self.pairs.get(bind)
        if pair is None:
            self.copy(bind)
        else:
            self.together(bind, pair)

    def prim(self, op: Prim, var: Var) -> Atom:
        if op.name == "get":
            if op.args[0] in self.elements:
                return self.elements[op.args[0]]  # type: ignore[index]
            if op.args[0] in self.starts:  # what the loop has left as it was
                known = self.b.known_element(self.starts[op.args[0]], self.atoms(op.args[1:]))  # type: ignore[index]
                if known is not None:
                    return known
        return super().prim(op, var)

    # ---------------------------------------------------------------------------------------- which ones

    def plan(self, block: Block) -> None:
        """Finds, for each loop of a block, the next one that it can be one with."""
        binds = block.binds
        simple = {x for x in binds if type(x.op) is Loop and self.simple(x.op)}
        taken: set[Bind] = set()
        for k, x in enumerate(binds):
            if x in simple and x not in taken:
                loops = 0
                for j in range(k + 1, len(binds)):
                    y = binds[j]
                    loops += type(y.op) is Loop
                    if type(y.op) not in (Prim, Loop, If) or loops > NEAR:
                        break
                    if y in taken:
                        break
                    if y in simple and (pair := self.pair(x, y, binds[k + 1 : j])) is not None:
                        self.pairs[x] = pair
                        taken.update((y, *pair.before, *binds[k + 1 : j]))
                        break

    def simple(self, op: Loop) -> bool:
        """Whether a loop goes through arrays, element by element: one store at most into each array of its own, which
        it reads nowhere else, and operations on numbers, cheap ones where it carries none to the next iteration."""
        if op.index.soft or op.snapshots is not None or len(op.body.binds) > LONGEST:
            return False
        if type(op.count) is Const and op.count.value < FEWEST:
            return False
        if not all(isinstance(a.type, (Arr, Scalar)) for a in op.accs):
            return False
        if any(type(x.op) is not Prim for x in op.body.binds):
            return False
        if not all(isinstance(type_of(r), Scalar) for r in op.body.results[len(op.accs) :]):
            return False
        stores = {}
        for k, acc in enumerate(op.accs):
            if isinstance(acc.type, Scalar):
                continue
            place = self.stored(op, k)
            if place is None or not any(p[1].get(op.index) for p in place) or op.inits.count(op.inits[k]) > 1:
                return False
            stores[acc] = place
        made = {x.vars[0] for x in op.body.binds}
        for x in op.body.binds:
            if x.op.name == "get":
                place = self.place(x.op.args[1:], op)
                if place is None or not isinstance(x.vars[0].type, Scalar) or x.op.args[0] in made:
                    return False
                if any(p[1].get(op.index) for p in place[:-1]) or place[-1][1].get(op.index, 0) not in (0, 1):
                    return False
                if stores.get(x.op.args[0], place) != place:  # type: ignore[call-overload]
                    return False
            elif x.op.name in PRIMITIVES:
                if PRIMITIVES[x.op.name].cost >= CALL and not carries(op):
                    return False
            elif x.op.name not in ("update", "add-at", "select"):
                return False
        return True

    def place(self, subscripts: Sequence[Atom], op: Loop) -> Place | None:
        found = [affine_of(a, self.sums, set(self.sums), {op.index}) for a in subscripts]
        made = {op.index, *(x.vars[0] for x in op.body.binds)} - {op.index}
        if any(f is None or not made.isdisjoint(f[1]) for f in found):
            return None
        return tuple(found)  # type: ignore[arg-type]

    def stored(self, op: Loop, k: int) -> Place | None:
        """Where a loop puts its one number of an iteration into the array ``k``; None where it does anything else."""
        if k >= len(op.accs):
            return ((0, {op.index: 1}),)
        acc, result = op.accs[k], op.body.results[k]
        if not isinstance(acc.type, Arr):
            return None
        store = next((x for x in op.body.binds if result in x.vars), None)
        if store is None or store.op.name not in ("update", "add-at") or store.op.args[0] is not acc:  # type: ignore
            return None
        if len(store.op.args) != acc.type.rank + 2 or any(result in x.op.args for x in op.body.binds):  # type: ignore
            return None
        users = [x for x in op.body.binds if acc in x.op.args]  # type: ignore[union-attr]
        if users[-1] is not store or any(x.op.name != "get" for x in users[:-1]):  # type: ignore[union-attr]
            return None
        if op.body.results.count(result) > 1 or acc in op.body.results:
            return None
        place = self.place(store.op.args[1:-1], op)  # type: ignore[union-attr]
        if place is None or place[-1][1].get(op.index) != 1 or any(p[1].get(op.index) for p in place[:-1]):
            return None
        return place

    def pair(self, one: Bind, two: Bind, between: Sequence[Bind]) -> Pair | None:
        """How a loop and a later one are one loop; None where they are not, or where the second reads nothing that the
        first one makes."""
        a, c = one.op, two.op
        assert type(a) is Loop and type(c) is Loop
        made = set(one.vars)
        read = free_vars(c.body)
        if made.isdisjoint(read) or not made.isdisjoint(c.inits):
            return None
        changed = {z for z in (*a.inits, *c.inits) if type(z) is Var}
        if not changed.isdisjoint(read) or not changed.isdisjoint(free_vars(a.body)):
            return None
        if set(a.inits) & set(c.inits) or carries(c):
            return None
        ends = self.ends(one, a, c)
        if ends is None:
            return None
        if carries(a) and (ends != Ends(0, 0) or not only_copies(c)):
            return None
        arrays = {v for v in (*read, *free_vars(a.body), *one.vars, *two.vars) if isinstance(v.type, Arr)}
        if len(arrays) > STREAMS:
            return None
        before, wanted = [], set(reads(two)) - made
        for x in reversed(between):
            if wanted.isdisjoint(x.vars):
                if set(c.inits) & reads(x).keys():  # what the second loop changes is read there
                    return None
                continue
            if type(x.op) is not Prim or x.op.name in ("update", "add-at") and not self.fresh(x, between):
                return None
            before.insert(0, x)
            wanted.update(reads(x))
        return None if made & wanted else Pair(two, before, ends)

    def fresh(self, x: Bind, between: Sequence[Bind]) -> bool:
        """Whether a store is into an array that nothing else has."""
        base = x.op.args[0]  # type: ignore[union-attr]
        own = next((y for y in between if base in y.vars), None)
        return own is not None and type(own.op) is Prim and len(self.uses.get(base, ())) == 1  # type: ignore[call-overload]

    def ends(self, one: Bind, a: Loop, c: Loop) -> Ends | None:
        """How far two loops are apart, so that each iteration reads what its own one has stored."""
        apart: int | None = None
        for x in c.body.binds:
            if x.op.args and x.op.args[0] in one.vars:  # type: ignore[union-attr]
                k = one.vars.index(x.op.args[0])  # type: ignore[union-attr, arg-type]
                if x.op.name != "get":  # type: ignore[union-attr]
                    return None
                there, here = self.stored(a, k), self.place(x.op.args[1:], c)  # type: ignore[union-attr]
                if there is None or here is None or len(there) != len(here):
                    return None
                gap = [affine_add(without(p, a.index), without(q, c.index), -1) for p, q in zip(there, here)]
                if any(g[1] for g in gap) or any(g[0] for g in gap[:-1]) or here[-1][1].get(c.index) != 1:
                    return None
                if apart not in (None, gap[-1][0]) or k >= len(a.accs) and gap[-1][0]:
                    return None
                apart = gap[-1][0]
            elif any(v in x.op.args for v in one.vars):  # type: ignore[union-attr]
                return None
        more = affine_add(self.count(c), self.count(a), -1)
        if apart is None or more[1] or not 0 <= apart <= more[0] <= MOST:
            return None
        return Ends(apart, more[0] - apart)

    def count(self, op: Loop) -> Affine:
        found = affine_of(op.count, self.sums, set(self.sums), set())
        assert found is not None
        return found

    # ---------------------------------------------------------------------------------------- as one loop

    def together(self, bind: Bind, pair: Pair) -> None:
        b, a, two = self.b, bind.op, pair.second
        c: Loop = two.op  # type: ignore[assignment]
        assert type(a) is Loop
        count = b.affine(self.atom(c.count))
        for x in pair.before:
            b.span, b.soft = x.span, x.soft
            self.bind(x)
        self.done.update((two, *pair.before))
        width, more = len(a.accs), len(c.accs)
        apart = bool(pair.ends.first or pair.ends.last)
        starts, state = self.atoms(a.inits), list(self.atoms(c.inits))
        if apart:
            state += [b.undef(self.type(v.type)) for v in two.vars[more:]]  # type: ignore[arg-type]
        b.span = two.span
        self.here.update(zip(bind.vars, starts))
        for k in range(pair.ends.first):
            state = self.once(two, Const(k, INT), state, k)
        b.span = bind.span
        wanted = {a.body.results[k] for k, v in enumerate(bind.vars) if v in free_vars(c.body)}

        def body(i: Atom, *accs: Atom):
            self.here[a.index] = i
            self.here.update(zip(a.accs, accs))
            results = self.first(a, wanted)
            self.here.update(zip(bind.vars, results[:width]))
            self.elements = dict(zip(bind.vars[width:], results[width:]))
            index = b.prim("+", i, Const(pair.ends.first, INT))
            if apart:
                following, stacked = self.second(c, index, accs[width:]), []
            else:
                following, stacked = self.iteration(c, index, accs[width:])
            self.elements = {}
            return [*results[:width], *following], [*results[width:], *stacked]

        names = [v.name for v in (*bind.vars[:width], *(two.vars if apart else two.vars[:more]), *bind.vars[width:])]
        names += [] if apart else [v.name for v in two.vars[more:]]
        hints = [*(x.name for x in a.accs), *(x.name for x in c.accs), *(v.name for v in two.vars[more:] if apart)]
        made = b.loop(self.atom(a.count), [*starts, *state], body, names, a.index.name, hints)
        state = list(made[width : width + len(state)])
        rest = made[width + len(state) :]
        self.define(bind, [*made[:width], *rest[: len(bind.vars) - width]])
        self.starts = dict(zip(bind.vars, starts))
        for k in range(pair.ends.last, 0, -1):
            index = b.affine_value(affine_add(count, (k, {}), -1))
            state = self.once(two, index, state, pair.ends.first + k - 1)
        self.starts = {}
        self.define(two, [*state, *rest[len(bind.vars) - width :]])

    def first(self, op: Loop, wanted: set[Atom]) -> list[Atom]:
        """An iteration of the first loop. What it adds to an array that the second one reads it stores."""
        b, soft = self.b, self.b.soft
        for x in op.body.binds:
            b.span, b.soft = x.span, x.soft
            if type(x.op) is Prim and x.op.name == "add-at" and x.vars[0] in wanted:
                base, *at, value = self.atoms(x.op.args)
                start = b.definitions.get(self.atom(op.inits[op.body.results.index(x.vars[0])]))  # type: ignore
                if start is None or start.name != "zeros":  # to an element of zeros it comes once
                    value = b.prim("+", b.get(base, *at), value)
                self.here[x.vars[0]] = b.update(base, at, value, x.vars[0].name)
            else:
                self.bind(x)
        b.soft = soft
        return list(self.atoms(op.body.results))

    def once(self, bind: Bind, index: Atom, state: list[Atom], fewer: int) -> list[Atom]:
        """One iteration of the second loop, where it has more than ``fewer`` of them."""
        b, op = self.b, bind.op
        assert type(op) is Loop
        count = self.atom(op.count)
        if b.nonnegative(affine_add(b.affine(count), (1 + fewer, {}), -1)):
            return self.second(op, index, state)
        there = b.prim("<", Const(fewer, INT), count)
        with b.branch_region(there, True) as scope:
            results = self.second(op, index, state)
        with b.branch_region(there, False) as other:
            pass
        return list(b.if_(there, (scope, results), (other, state), [v.name for v in bind.vars]))

    def second(self, op: Loop, index: Atom, state: Sequence[Atom]) -> list[Atom]:
        """An iteration of the second loop, which stores what it would stack."""
        following, stacked = self.iteration(op, index, state)
        arrays = state[len(op.accs) :]
        return [*following, *(self.b.update(array, [index], x) for array, x in zip(arrays, stacked))]

    def iteration(self, op: Loop, index: Atom, state: Sequence[Atom]) -> tuple[list[Atom], list[Atom]]:
        self.here[op.index] = index
        self.here.update(zip(op.accs, state))
        results = self.block(op.body)
        return list(results[: len(op.accs)]), list(results[len(op.accs) :])


def carries(op: Loop) -> bool:
    """Whether a loop has numbers that go from one iteration to the next."""
    return any(isinstance(a.type, Scalar) for a in op.accs)


def only_copies(op: Loop) -> bool:
    """Whether a loop only puts into arrays what it reads of others: it takes no part in what goes from one iteration of
    another loop to the next."""
    return all(
        x.op.name in ("get", "update") or x.vars[0].type == INT  # type: ignore[union-attr]
        for x in op.body.binds
    ) and len(op.body.results) == len(op.accs)


def without(place: Affine, index: Var) -> Affine:
    """An integer without the index."""
    return place[0], {v: k for v, k in place[1].items() if v is not index}
