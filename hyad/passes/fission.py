"""Loop fission and expansion: what an outer loop does not change leaves it, as a loop or a table of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf

from ..core import (
    INT,
    REAL,
    ZERO,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Scalar,
    Var,
    all_binds,
    binds_of,
    blocks_of,
    count_uses,
    defined_in,
    free_vars,
    reads,
    type_of,
)
from ..program.affine import affine_in
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import CALL, calls_in, cost_of, slice_of
from ..program.primitives import PRIMITIVES, price_of
from ..program.rebuild import Rebuild
from .reciprocals import is_reciprocal
from .trips import counting, longest, of_the_index, worth

QUOTIENT = PRIMITIVES["/"].cost + 2  # of what is computed as well
FEW = 16  # iterations: of a loop of fewer no quotients leave a branch
EXPANDED = 4  # in additions: from here on a value of an inner loop is kept in a table outside


class Fission(Rebuild):
    """Takes a loop inside another apart into loops that do not need one another, so that those that the outer loop
    does not change can leave it. ``fuse_siblings`` joins again what stays.

    ``(build m (fn [j] (loop n (fn [i] #((f i) (g i j))))))``  =>  ``a = (build n f)`` before the outer loop.

    Where one part reads an accumulator of another that the outer loop does not change, the accumulator's values are
    stacked: the tangent of a recurrence, say, is taken in every row, the recurrence once. Of one that changes an array
    the numbers are stacked that the others make of it: the elimination of a matrix is done once, and for each right
    side what is left. Integers that cost little are computed again. ``ahead``: before a block is differentiated, that
    alone, so that a derivative goes through such a recurrence once, too.
    """

    def __init__(self, builder: Builder, depth: int = 0, ahead: bool = False) -> None:
        super().__init__(builder)
        self.depth, self.ahead = depth, ahead

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop:
            self.copy(bind)
            return
        groups, needs = independent(op) if self.depth and not has_checks(op.body) else ([], [])
        groups = self.together(op, groups) if len(groups) > 1 else groups
        self.depth += 1
        steady = self.steady(op, needs) if groups else []
        read = {op.accs[a] for k, needed in enumerate(needs) if k not in steady for a in needed if a in steady}
        dear = cost_of(slice_of(op.body, [op.body.results[k] for k in steady])) >= EXPANDED
        if read and (dear or any(a.type == REAL for a in read)) and all(isinstance(a.type, Scalar) for a in read):
            history = self.part(op, bind, steady, dict.fromkeys(a for a in op.accs if a in read))
            for group in groups:
                rest = [k for k in group if k not in steady]
                if rest:
                    self.part(op, bind, rest, history)
        elif read and dear and (passed := self.passed(op, steady)):
            arrays = self.part(op, bind, steady, dict.fromkeys(passed))
            for group in groups:
                rest = [k for k in group if k not in steady]
                if rest:
                    self.part(op, bind, rest, {}, arrays)
        elif len(groups) > 1 and not self.ahead:
            stacked: dict[Var, Atom] = {}
            for group in sorted(groups, key=lambda g: not {*g} <= {*steady}):
                self.part(op, bind, group, {}, stacked)
                if {*group} <= {*steady}:
                    stacked.update(self.stacked(op, bind, group))
        else:
            self.copy(bind)
        self.depth -= 1

    def together(self, op: Loop, groups: list[list[int]]) -> list[list[int]]:
        """The groups, those joined that share a call, or a sum of calls, which the loop around changes: none of them
        can leave it."""
        b, own = self.b, {op.index, *op.accs}
        for x in op.body.binds:
            for call in dear(op.body, x):
                sharing = [g for g in groups if call in all_binds(slice_of(op.body, [op.body.results[k] for k in g]))]
                if len(sharing) < 2:
                    continue
                outer = [v for v in free_vars(slice_of(op.body, x.vars)) if v not in own]
                if b.plain or b.home(self.atoms(outer)) is b.scopes[-1]:
                    groups = [*(g for g in groups if g not in sharing), sorted(k for g in sharing for k in g)]
        return sorted(groups)

    def steady(self, op: Loop, needs: list[set[int]]) -> list[int]:
        """The results of a loop that the loop around it does not change, with the accumulators that they need."""
        b = self.b
        if b.plain or b.home((self.atom(op.count),)) is b.scopes[-1]:
            return []
        own = {op.index, *op.accs}
        found = set(range(len(op.body.results)))
        for k in list(found):
            reads = [v for v in free_vars(slice_of(op.body, (op.body.results[k],))) if v not in own]
            first = [a for z in self.atoms(op.inits[k : k + 1]) for a in b.needed(z)]
            if b.home((*self.atoms(reads), *first)) is b.scopes[-1]:
                found.discard(k)
        while True:
            left = {k for k in found if needs[k] <= found}
            if left == found:
                return sorted(found)
            found = left

    def passed(self, op: Loop, steady: Sequence[int]) -> list[Var]:
        """The numbers that the other results of a loop are made of, and that it makes of ``steady`` ones alone: a part
        with these, changing arrays say, hands them on. None where something else would have to be handed on."""
        b = self.b
        accs = [a for k, a in enumerate(op.accs) if k in steady]
        made: set[Atom] = set(accs)  # of steady accumulators
        fixed: set[Atom] = {op.index, *accs}
        inside = {op.index, *op.accs, *defined_in(op.body)}
        rest = slice_of(op.body, [r for k, r in enumerate(op.body.results) if k not in steady])
        passed: dict[Atom, None] = {}
        for x in rest.binds:
            read = reads(x)
            own = [a for a in read if a in inside]
            around = self.atoms([a for a in read if a not in inside])
            steady_too = not around or b.home(around) is not b.scopes[-1]
            if type(x.op) in (Prim, If) and steady_too and all(a in fixed for a in own):
                fixed.update(x.vars)
                if not made.isdisjoint(own):
                    made.update(x.vars)
            else:
                passed.update(dict.fromkeys(a for a in own if a in made))
        passed.update(dict.fromkeys(a for a in rest.results if a in made))
        fits = all(isinstance(v.type, Scalar) and v not in accs for v in passed)
        return list(passed) if fits else []  # type: ignore[arg-type]

    def stacked(self, op: Loop, bind: Bind, group: list[int]) -> dict[Var, Atom]:
        """The costly values that a part has stacked, and where: no other part computes them again."""
        found = {}
        for k in group:
            v = op.body.results[k]
            if k >= len(op.accs) and type(v) is Var and isinstance(v.type, Scalar):
                if cost_of(slice_of(op.body, [v])) >= EXPANDED:
                    found[v] = self.atom(bind.vars[k])
        return found

    def part(
        self,
        op: Loop,
        bind: Bind,
        group: list[int],
        history: dict[Var, Atom | None],
        known: dict[Var, Atom] | None = None,
    ) -> dict[Var, Atom | None]:
        """The loop of some results. ``history`` has accumulators, and values of an iteration, and where they are
        stacked: None, in this loop; returns where they are now. ``known`` has what other parts have stacked."""
        b, width = self.b, len(op.accs)
        accs = [k for k in group if k < width]
        stacked = [a for a, array in history.items() if array is None]

        def body(i: Atom, *atoms: Atom):
            self.here[op.index] = i
            self.here.update({a: b.get(array, i) for a, array in history.items() if array is not None})
            self.here.update(zip([op.accs[k] for k in accs], atoms))
            before = {a: self.atom(a) for a in stacked if a in op.accs}
            made = [a for a in stacked if a not in op.accs]
            needed = slice_of(op.body, [*(op.body.results[k] for k in group), *made])
            for v in known or ():
                if any(v in x.vars for x in needed.binds):
                    self.here[v] = b.get(known[v], i, hint=v.name)
            self.block(slice_of(without(needed, known), needed.results) if known else needed)
            results = self.atoms([op.body.results[k] for k in group])
            return results[: len(accs)], [*results[len(accs) :], *(before.get(a) or self.atom(a) for a in stacked)]

        out = b.loop(
            self.atom(op.count),
            self.atoms([op.inits[k] for k in accs]),
            body,
            [*(bind.vars[k].name for k in group), *(a.name for a in stacked)],
            op.index.name,
            [op.accs[k].name for k in accs],
            bind.vars[group[0]].given,
            pruned=True,
            soft=op.index.soft,
        )
        b.span = bind.span
        self.here.update(zip([bind.vars[k] for k in group], out))
        return dict(zip(stacked, out[len(group) :]))


def dear(block: Block, bind: Bind) -> list[Bind]:
    """A binding of a block that calls the C library, or a build of what it gives; the calls of a loop that adds up or
    compares what they give, or the loop, where these come before it or are those of loops in it: fusion makes none of
    them again where two parts compute it. And what changes an array in place, which no two parts share again."""
    if any(type(x.op) is Prim and x.op.name in ("update", "add-at") for x in binds_of(bind)):
        return [bind]
    if type(bind.op) is not Loop or not bind.op.accs:
        return [bind] * bool(calls_in(Block((bind,), ())))
    calls = [x for y in bind.op.body.binds if type(y.op) is not Loop for x in calls_in(Block((y,), ()))]
    return calls or [bind] * bool(calls_in(slice_of(block, bind.vars)))


def without(block: Block, known: Container[Var]) -> Block:
    """A block without the bindings of what is known."""
    return Block(tuple(x for x in block.binds if not any(v in known for v in x.vars)), block.results)


def independent(op: Loop) -> tuple[list[list[int]], list[set[int]]]:
    """The results of a loop's body in groups that share no accumulator; and which accumulators each one needs."""
    count, accs = len(op.body.results), set(op.accs)
    group = list(range(count))
    needs: dict[Atom, set[Var]] = {}

    def find(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    def accumulators(vars: Iterable[Var]) -> set[Var]:
        wanted = set()
        for v in vars:
            wanted |= {v} if v in accs else needs.get(v, set())
        return wanted

    for bind in op.body.binds:
        inner = bind.op
        if type(inner) is Loop and len(bind.vars) > 1:
            for part in independent(inner)[0]:
                body = slice_of(inner.body, [inner.body.results[k] for k in part])
                inits = [inner.inits[k] for k in part if k < len(inner.accs)]
                wanted = accumulators({a for a in (inner.count, *inits) if type(a) is Var} | set(free_vars(body)))
                for k in part:
                    needs[bind.vars[k]] = wanted
        else:
            wanted = accumulators(reads(bind))
            for v in bind.vars:
                needs[v] = wanted
    position = {a: k for k, a in enumerate(op.accs)}
    direct = [
        {position[a] for a in ({r} & accs | needs.get(r, set()))} if type(r) is Var else set() for r in op.body.results
    ]
    for k, needed in enumerate(direct):
        for a in needed:
            x, y = find(k), find(a)
            if x != y:
                group[max(x, y)] = min(x, y)
    found: dict[int, list[int]] = {}
    for k in range(count):
        found.setdefault(find(k), []).append(k)
    return list(found.values()), direct


# -------------------------------------------------------------------------------------------- expansion


class Expand(Rebuild):
    """Costly values of an inner loop's iterations, sums too, that the outer loop does not change are computed before
    it, into an array: ``(build m (fn [j] (build n (fn [i] (* (exp i) j)))))``  =>  ``e = (build n exp)`` first. From
    branches that the index alone decides, as at a border, with the branch; from others only calls of the C library, and
    quotients of what is computed: n of them, where an outer loop might make m n, or fewer; of loops in branches, and of
    short ones, calls alone. Where only the branch knows that its elements are there, of the elements that are.

    Calls of the C library, and quotients, that are made of elements of a matrix are in a matrix of their own, through
    two inner loops or more: ``(build l (fn [k] (build m (fn [j] (build n (fn [i] (* k (exp (get a j i)))))))))``.
    Design decision: only those, so that no table is larger than an array that is there anyway; what is less than a
    quotient is computed as fast as it is read. No reciprocal that ``divide`` is to make a quotient of: where it was
    there before, the quotient would be rounded twice. ``ahead``: before a block is differentiated,
    so that what is added to a row's elements for its sum, or to what a coefficient between two cells is made of, is
    added once, after all that is added to the table: sums, of rows and arrays too, and values in branches.
    """

    def __init__(self, builder: Builder, ahead: bool = False) -> None:
        super().__init__(builder)
        self.ahead = ahead
        self.tables: dict[Var, tuple[Atom, tuple[Loop, ...]]] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if bind.vars and all(v in self.tables for v in bind.vars):
            for v in bind.vars:
                table, path = self.tables[v]
                self.here[v] = self.b.get(table, *self.atoms([loop.index for loop in path]), hint=v.name)
            return
        if type(op) is Loop:
            for way in paths(op):
                self.prepare(op, *way)
            self.b.span = bind.span
        self.copy(bind)

    def takes(self, op: Loop) -> bool:
        """Whether there is a value to compute before a loop."""
        return any(self.chosen(op, *way)[2] for way in paths(op))

    def chosen(
        self, op: Loop, path: tuple[Loop, ...], inside: set[Var], least: int
    ) -> tuple[Block, dict[Var, Guard], list[Var]]:
        """``invariants``, and which of them have a table."""
        if any(type(loop.count) is Var and loop.count in inside for loop in path) or has_checks(path[0].body):
            if len(path) > 1 or has_checks(path[0].body) or self.as_many(op, path[0]) is None:
                return Block((), ()), {}, []
        fixed, guards = invariants(path, inside, least, self.ahead)
        chosen = [v for v in guards if v not in self.tables and (len(path) == 1 or of_elements(v, fixed, path))]
        if self.ahead:
            chosen = [v for v in chosen if guards[v] or any(map(summing, slice_of(fixed, [v]).binds))]
        return fixed, guards, chosen

    def as_many(self, op: Loop, inner: Loop) -> list[Bind] | None:
        """What makes the integer that says how often an inner loop runs, another one in each iteration; with all that
        is checked in these. None where it is not of the index alone."""
        if "trips" in self.b.off or not worth(inner):
            return None
        numbers, making = of_the_index(op)
        bind = next((x for x in op.body.binds if x.op is inner), None)
        return counting(op, making, bind, inner.count) if bind is not None and inner.count in numbers else None

    def prepare(self, op: Loop, path: tuple[Loop, ...], inside: set[Var], least: int) -> None:
        """Build the tables of an inner loop, or of several, if their trip counts are known outside."""
        fixed, guards, chosen = self.chosen(op, path, inside, least)
        if not chosen:
            return
        made = guarded(fixed, chosen, guards)
        most = path[0].count
        if type(most) is Var and most in inside:
            most = longest(self, op, self.as_many(op, path[0]) or (), most)
            self.here[path[0].count] = most

        def table(k: int, counts: Sequence[Atom]) -> Sequence[Atom]:
            if k == len(path):
                return self.block(made)

            def body(i: Atom):
                self.here[path[k].index] = i
                results = table(k + 1, counts)
                if not all(self.b.bind_in_range(bind.op) for bind in self.b.scopes[-1].binds):
                    raise OutOfReach
                return (), results

            names = [v.name for v in chosen]
            return self.b.loop(self.atom(counts[k]), (), body, names, path[k].index.name, pruned=True)

        for counts in ([loop.count for loop in path], elements(made, path)):
            try:
                arrays = table(0, counts) if counts else ()
            except OutOfReach:
                continue
            for v, array in zip(chosen, arrays):
                self.tables[v] = (array, path)
                if self.ahead and type(array) is Var and not_remembered(slice_of(fixed, [v]), v):
                    self.b.again.add(array)
            return


def elements(block: Block, path: tuple[Loop, ...]) -> list[Atom]:
    """How many elements there are of the arrays that a loop's values are made of, one element each: so many a table of
    them may have, whatever the loop reads. Empty where that are different numbers, or it is known how often it runs."""
    sizes = {
        type_of(x.op.args[0]).dims[0]  # type: ignore[union-attr]
        for x in block.binds
        if type(x.op) is Prim and x.op.name == "get" and x.op.args[1] is path[0].index
    }
    return list(sizes) if len(path) == len(sizes) == 1 and type(path[0].count) is Var else []


class OutOfReach(Exception):
    """Something is read that is only there where a loop around has been entered."""


def loops_in(block: Block) -> list[Loop]:
    """The loops of a block and of its branches, those inside of them aside."""
    found = []
    for x in block.binds:
        if type(x.op) is Loop:
            found.append(x.op)
        elif type(x.op) is If:
            found += [loop for branch in blocks_of(x.op) for loop in loops_in(branch)]
    return found


def paths(op: Loop) -> Iterator[tuple[tuple[Loop, ...], set[Var], int]]:
    """The inner loops of a loop, and each with those inside of it, one after the other; with what the loop binds, and
    from which cost on a value of them is worth a table: calls alone where a branch may leave one out."""
    inner = loops_in(op.body)
    inside = {op.index, *op.accs, *defined_in(op.body)} if inner else set()

    def nests(path: tuple[Loop, ...], block: Block, always: bool) -> Iterator[tuple[tuple[Loop, ...], set[Var], int]]:
        for loop in inner if block is op.body else loops_in(block):
            here = always and any(x.op is loop for x in block.binds)
            yield (*path, loop), inside, EXPANDED if here else CALL
            yield from nests((*path, loop), loop.body, here)

    return nests((), op.body, True)


#: The conditions that stand around a value, the outermost first, and what each has to be.
Guard = tuple[tuple[Var, bool], ...]


def invariants(
    path: tuple[Loop, ...], inside: set[Var], least: int, arrays: bool = False
) -> tuple[Block, dict[Var, Guard]]:
    """The scalars of an inner loop's body and of its branches that depend on its index, and on those of the loops
    around it that ``path`` has, and on nothing else inside the outer loop, as a block; and which of them are costly (of
    several loops: have a quotient or a call in them), and read by something else, with the conditions around each that
    depend on the same. Those in several loops that do not need all indices have been found without the others.
    ``arrays``: also the rows and arrays that sums may be made of, before fusion has made numbers of these."""
    few = type(path[0].count) is Const and path[0].count.value < FEW
    cost: dict[Var, int] = {loop.index: 0 for loop in path}
    needs: dict[Var, set[Var]] = {loop.index: {loop.index} for loop in path}
    dearest = dict(cost)  # of the operations on reals that make it
    fixed: list[Bind] = []
    dear: dict[Var, Guard] = {}
    wanted: set[Atom] = set()

    def walk(block: Block, least: float, guard: Guard = ()) -> None:
        wanted.update(block.results)
        for bind in block.binds:
            op, var = bind.op, bind.vars[0] if bind.vars else None
            if type(op) is Prim and isinstance(var.type, Scalar):  # type: ignore[union-attr]
                args = [a for a in op.args if type(a) is Var and a in inside]
                if all(a in cost for a in args) and op.name not in ("update", "add-at", "undef"):
                    row = PRIMITIVES.get(op.name)
                    cost[var] = (row.cost if row else 0) + sum(cost[a] for a in args)
                    needs[var] = set().union(*(needs[a] for a in args))
                    fixed.append(bind)
                    own = price_of(op) if row and var.type == REAL else 0
                    dearest[var] = max([own, *(dearest[a] for a in args)])
                    costly = cost[var] >= least and var.type == REAL
                    if costly and len(path) > 1 and least < CALL:
                        costly = dearest[var] >= EXPANDED and not turns(bind)
                    if costly and (len(path) == 1 or len(needs[var]) == len(path)):
                        dear[var] = guard
                    continue
            if arrays and len(path) == 1 and least <= EXPANDED and made_whole(bind) and not guard:
                args = [a for a in reads(bind) if a in inside]
                if all(a in cost for a in args):
                    cost.update((v, 0) for v in bind.vars)
                    dearest.update((v, 0) for v in bind.vars)
                    needs.update((v, {loop.index for loop in path}) for v in bind.vars)
                    fixed.append(bind)
                    continue
            if summing(bind) and len(path) == 1 and least <= EXPANDED and not guard:
                args = [a for a in reads(bind) if a in inside]
                if all(a in cost for a in args):
                    cost.update((v, CALL + sum(cost[a] for a in args)) for v in bind.vars)
                    dearest.update((v, CALL) for v in bind.vars)
                    needs.update((v, {loop.index for loop in path}) for v in bind.vars)
                    fixed.append(bind)
                    if all(v.type == REAL for v in bind.vars):
                        dear.update((v, guard) for v in bind.vars)
                    continue
            if type(op) is If and len(path) == 1 and not guard and chooses_numbers(op, bind):
                args = [a for a in reads(bind) if a in inside]
                if all(a in cost for a in args):
                    own = sum(map(cost_of, blocks_of(op))) + sum(cost[a] for a in args)
                    for v in bind.vars:
                        cost[v], needs[v] = own, {path[0].index}
                        dearest[v] = max(own, EXPANDED)
                        if own >= least and v.type == REAL:
                            dear[v] = guard
                    fixed.append(bind)
                    continue
            if type(op) is If:
                wanted.add(op.cond)
                known = type(op.cond) is Var and op.cond in cost and len(path) == 1
                for branch, taken in ((op.then, True), (op.orelse, False)):
                    if known:
                        walk(branch, least, (*guard, (op.cond, taken)))  # type: ignore[arg-type]
                    else:
                        walk(branch, max(least, CALL if few else QUOTIENT), guard)
            else:
                wanted.update(reads(bind))

    def turns(bind: Bind) -> bool:
        """Whether a number is a reciprocal that ``divide`` makes a quotient of, which is another number."""
        return is_reciprocal(bind.op) and count_uses(path[-1].body, bind.vars[0]) == 1

    for loop in path[:-1]:
        walk(loop.body, inf)
    walk(path[-1].body, least)
    return Block(tuple(fixed), ()), {v: guard for v, guard in dear.items() if v in wanted}


def chooses_numbers(op: If, bind: Bind) -> bool:
    """Whether a branch gives numbers that it computes without a loop."""
    arms = blocks_of(op)
    return all(isinstance(v.type, Scalar) for v in bind.vars) and all(
        type(x.op) is Prim and isinstance(x.vars[0].type, Scalar) for arm in arms for x in arm.binds
    )


def guarded(fixed: Block, chosen: Sequence[Var], guards: Mapping[Var, Guard]) -> Block:
    """The block that gives what is chosen; zero where the conditions around a value are not what they have to be."""
    binds = list(slice_of(fixed, [v for v in chosen if not guards[v]]).binds)
    results: dict[Var, Atom] = {v: v for v in chosen}
    for guard in dict.fromkeys(filter(None, (guards[v] for v in chosen))):
        mine = [v for v in chosen if guards[v] == guard]
        needed = slice_of(fixed, mine)  # what is there anyway is not made again, as it is where the condition is known
        block = Block(tuple(x for x in needed.binds if x not in binds), needed.results)
        for cond, taken in reversed(guard):
            given = tuple(Var(v.name, REAL) for v in mine)
            nothing = Block((), (ZERO,) * len(mine))
            choice = If(cond, block, nothing) if taken else If(cond, nothing, block)
            block = Block((*slice_of(fixed, [cond]).binds, Bind(given, choice)), given)
        binds += [x for x in block.binds if x not in binds]
        results.update(zip(mine, block.results))
    return Block(tuple(binds), tuple(results.values()))


def made_whole(bind: Bind) -> bool:
    """Whether a binding is a row of an array, or arrays that a loop without accumulators makes."""
    op = bind.op
    if type(op) is Prim:
        return op.name == "get" and isinstance(bind.vars[0].type, Arr)
    return type(op) is Loop and not op.accs and op.snapshots is None


def summing(bind: Bind) -> bool:
    """Whether a binding is a loop that gives numbers, as a sum."""
    return type(bind.op) is Loop and all(isinstance(v.type, Scalar) for v in bind.vars)


def not_remembered(made: Block, v: Var) -> bool:
    """Whether a table's value is more than a sum of numbers: a loop would not remember it where it stood, and a table
    of them for each iteration around takes more room than the states do."""
    return any(map(made_whole, made.binds)) or not any(v in x.vars for x in made.binds if summing(x))


def of_elements(v: Var, fixed: Block, path: tuple[Loop, ...]) -> bool:
    """Whether a value is made of an element of an array that all loops of ``path`` subscript, each another place of it:
    the array is there in each iteration, and has as many elements at least as there are of these."""
    binds = slice_of(fixed, [v]).binds
    integers = {x.vars[0]: x.op for x in binds if type(x.op) is Prim and x.vars[0].type == INT}
    indices = {loop.index for loop in path}

    def moved(x: Bind) -> list[set[Atom]]:
        return [indices.intersection(affine_in(a, integers)[1]) for a in x.op.args[1:]]  # type: ignore[union-attr]

    gets = [moved(x) for x in binds if type(x.op) is Prim and x.op.name == "get"]
    return any(all({i} in at for i in indices) for at in gets)
