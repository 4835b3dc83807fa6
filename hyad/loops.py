"""Loop optimisations of typed programs (dF~ section 5): fusion, one-hot normalisation, stores for accumulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .builder import (
    ONE,
    Affine,
    Builder,
    Rebuild,
    affine_add,
    affine_key,
    defined_in,
    has_checks,
    is_zero,
    negated,
    type_of,
)
from .core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    substitute,
    type_atoms,
)
from .dead import tidy
from .primitives import PRIMITIVES

EXPANDED = 4  # in additions: from here on a value of an inner loop is kept in a table outside
CHEAP = 3  # in additions: a body that costs no more is computed again rather than stored


# ---------------------------------------------------------------------------------------------- fusion


@dataclass(frozen=True, slots=True)
class Use:
    """One reading of an array: the subscripts if it is a ``get``, and the loops around it, outermost first."""

    subscripts: tuple[Atom, ...] | None
    loops: tuple[Loop, ...]


def array_uses(block: Block) -> dict[Var, list[Use]]:
    """Every reading of every array in a block and the regions inside it."""
    found: dict[Var, list[Use]] = {}

    def walk(b: Block, loops: tuple[Loop, ...]) -> None:
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim and op.name == "get":
                found.setdefault(op.args[0], []).append(Use(op.args[1:], loops))  # type: ignore[arg-type]
            else:
                for a in atoms_of(op):
                    if type(a) is Var and isinstance(a.type, Arr):
                        found.setdefault(a, []).append(Use(None, loops))
            inner = (*loops, op) if type(op) is Loop else loops
            for region in blocks_of(op):
                walk(region, inner)
        for r in b.results:
            if type(r) is Var and isinstance(r.type, Arr):
                found.setdefault(r, []).append(Use(None, loops))

    walk(block, ())
    return found


class Fuse(Rebuild):
    """Puts the body of a ``build`` where its elements are read, and drops the array.

    ``v = (build n f) ... (build n (fn [i] (g (get v i))))``  =>  ``(build n (fn [i] (g (f i))))``  (dF~ Fig. 8a).
    Design decision: only where that repeats no work that counts: the array is read by element alone, and either at
    the index of one loop (all readings then share the one copy) or its elements are cheap.
    """

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.uses = array_uses(block)
        self.inlined: dict[Var, tuple[Loop, int]] = {}
        self.depth = 0

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and not op.accs and not has_checks(op.body) and self.fusible(bind, op):
            for k, v in enumerate(bind.vars):
                self.inlined[v] = (op, k)
            return
        if type(op) is Prim and op.name == "get" and op.args[0] in self.inlined:
            loop, k = self.inlined[op.args[0]]  # type: ignore[index]
            self.here[loop.index] = self.atom(op.args[1])
            results = self.block(loop.body)
            self.b.span = bind.span
            self.here[bind.vars[0]] = self.b.get(results[k], *self.atoms(op.args[2:]))
            return
        self.depth += type(op) is Loop
        self.copy(bind)
        self.depth -= type(op) is Loop

    def fusible(self, bind: Bind, op: Loop) -> bool:
        uses = [u for v in bind.vars for u in self.uses.get(v, ())]
        if not uses or any(not u.subscripts for u in uses):
            return False
        if cheap(op.body):
            return True
        first = uses[0]
        if not all(u.subscripts[0] is first.subscripts[0] for u in uses):  # type: ignore[index]
            return False
        index = first.subscripts[0]  # type: ignore[index]
        if type(index) is Const:
            return all(len(u.loops) == self.depth for u in uses)
        consumer = next((loop for loop in first.loops if loop.index is index), None)
        # the consumer runs as often as this loop, and reads the element once in each iteration
        return (
            consumer is not None
            and len(first.loops) == self.depth + 1
            and all(u.loops and u.loops[-1] is consumer for u in uses)
            and self.in_body(consumer, bind.vars)
        )

    @staticmethod
    def in_body(consumer: Loop, vars: Sequence[Var]) -> bool:
        """Whether the readings stand in the body itself, where they share one copy, not in its branches."""
        wanted = set(vars)
        here = sum(
            1 for b in consumer.body.binds if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] in wanted
        )
        return here > 0


def cheap(block: Block) -> bool:
    cost = 0
    for bind in block.binds:
        if type(bind.op) is not Prim or isinstance(bind.vars[0].type, Arr):
            return False
        row = PRIMITIVES.get(bind.op.name)
        cost += row.cost if row else 1
    return cost <= CHEAP


# ------------------------------------------------------------------------------------- sibling fusion


def fuse_siblings(program: Program) -> Program:
    """Makes one loop of two that run equally often and do not need one another.

    ``(loop n f) (loop n g)``  =>  ``(loop n f+g)``. What stands between them and needs the first comes after, what
    the second needs comes before.
    """
    return replace(program, body=siblings(program.body))


def siblings(block: Block) -> Block:
    binds: list[Bind] = []
    for bind in block.binds:
        op = bind.op
        if type(op) is If:
            op = If(op.cond, siblings(op.then), siblings(op.orelse))
        elif type(op) is Loop:
            op = Loop(op.count, op.index, op.inits, op.accs, siblings(op.body))
        binds.append(bind if op is bind.op else Bind(bind.vars, op, bind.span))
    k = 0
    while k < len(binds):
        op = binds[k].op
        mergeable = type(op) in (Loop, If) and not any(map(has_checks, blocks_of(op)))
        while mergeable and merge_into(binds, k):
            pass
        k += 1
    return Block(tuple(binds), block.results)


def join(first: Bind, second: Bind) -> Bind | None:
    """One loop, or branch, of two that run together; None where they do not."""
    one, two = first.op, second.op
    v1, v2 = first.vars, second.vars
    if any(map(has_checks, blocks_of(two))):
        return None
    if type(one) is If and type(two) is If and one.cond is two.cond:
        regions = [Block(x.binds + y.binds, x.results + y.results) for x, y in zip(blocks_of(one), blocks_of(two))]
        return Bind(v1 + v2, If(one.cond, *regions), first.span)
    if type(one) is Loop and type(two) is Loop and same_count(one.count, two.count):
        width, other = len(one.accs), len(two.accs)
        body = substitute(two.body, {two.index: one.index})
        r1, r2 = one.body.results, body.results
        results = (*r1[:width], *r2[:other], *r1[width:], *r2[other:])
        block = Block(one.body.binds + body.binds, results)
        loop = Loop(one.count, one.index, one.inits + two.inits, one.accs + two.accs, block)
        return Bind((*v1[:width], *v2[:other], *v1[width:], *v2[other:]), loop, first.span)
    return None


def reads(bind: Bind) -> set[Var]:
    found = {a for a in atoms_of(bind.op) if type(a) is Var}
    for region in blocks_of(bind.op):
        found.update(free_vars(region))
    for v in bind.vars:
        found.update(a for a in type_atoms(v.type) if type(a) is Var)
    return found


def merge_into(binds: list[Bind], k: int) -> bool:
    """Merge a later loop or branch into the one at ``k`` if one can be; what needs the first one's results stays
    behind, what the second needs comes before."""
    first = binds[k]
    after = set(first.vars)  # what depends on the first
    early: list[Bind] = []
    late: list[Bind] = []
    for j in range(k + 1, len(binds)):
        bind = binds[j]
        if type(bind.op) is Check:
            return False
        if reads(bind) & after:
            after.update(bind.vars)
            late.append(bind)
            continue
        made = join(first, bind)
        if made is not None:
            binds[k : j + 1] = [*early, made, *late]
            return not early
        early.append(bind)
    return False


def same_count(a: Atom, b: Atom) -> bool:
    return a is b or (type(a) is Const and type(b) is Const and a.value == b.value)


# ----------------------------------------------------------------------------- one-hot normalisation


class OneHot(Rebuild):
    """A loop that does something at one index only becomes that one iteration (dF~ Fig. 8, loop normalisation).

    ``(ifold (fn [s i] (+ s (if (= i j) (f i) 0))) z n)``  =>  ``(if (< -1 j n) (+ z (f j)) z)``.
    Design decision: found by supposing, not by matching: the body is built once with all its tests ``i = e`` failing;
    if it then leaves every accumulator as it was, the loop is its iterations at the solutions ``e``, which must be
    provably different from one another.
    """

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and self.normalise(op, bind):
            return
        self.copy(bind)

    def normalise(self, op: Loop, bind: Bind) -> bool:
        b = self.b
        count, inits = self.atom(op.count), self.atoms(op.inits)
        index = Var(op.index.name, INT, op.index.span, True)
        solutions = self.solutions(op, index, count, inits)
        if not solutions:
            return False
        if not self.idle(op, index, count, inits, solutions):
            return False
        state = [*inits, *(b.zeros(self.type(v.type), v.name) for v in bind.vars[len(inits) :])]
        for _, value in solutions:
            at = b.affine_value(value)
            runs = b.prim("and", b.prim("<=", Const(0, INT), at), b.prim("<", at, count))
            state = self.once(op, bind, at, runs, state)
            b.span = bind.span
        self.define(bind, state)
        return True

    def trial(
        self, op: Loop, index: Var, count: Atom, inits: Sequence[Atom], assumed: dict
    ) -> tuple[list[Bind], tuple[Atom, ...], tuple[Var, ...]]:
        """Build the body where nobody keeps it."""
        from .builder import Scope

        b = self.b
        b.counts[index] = count
        accs = tuple(Var(a.name, type_of(z), a.span) for a, z in zip(op.accs, inits))
        saved, b.assumed = b.assumed, {**b.assumed, **assumed}
        scope = Scope()  # no loop's body: nothing is hoisted out of a trial
        try:
            with b.region(scope):
                scope.vars.update((index, *accs))
                scope.facts.append(affine_add(b.affine(count), (1, {}), -1))
                self.here[op.index] = index
                self.here.update(zip(op.accs, accs))
                results = self.block(op.body)
        finally:
            b.assumed = saved
        return scope.binds, results, accs

    def solutions(self, op: Loop, index: Var, count: Atom, inits: Sequence[Atom]) -> list[tuple[Affine, Affine]]:
        """The equations ``i = e`` that the body tests, and their solutions: pairwise different, free of the body."""
        if not any(type(x.op) is Prim and x.op.name == "=" for x in all_binds(op.body)):
            return []
        binds, _, _ = self.trial(op, index, count, inits, {})
        inner = {v for bind in binds for v in bind.vars}
        found: dict[tuple, tuple[Affine, Affine]] = {}
        for bind in binds:
            test = bind.op
            if type(test) is not Prim or test.name != "=" or any(type_of(a) != INT for a in test.args):
                continue
            a, c = map(self.b.affine, test.args)
            equation = affine_add(a, c, -1)
            k = equation[1].get(index, 0)
            if abs(k) != 1:
                continue
            rest = affine_add(equation, (0, {index: 1}), -k)
            value = negated(rest) if k == 1 else rest
            if any(v in inner for v in value[1]):
                return []
            found[affine_key(value)] = (equation, value)
        solutions = sorted(found.values(), key=lambda s: s[1][0])
        for x, y in zip(solutions, solutions[1:]):
            difference = affine_add(x[1], y[1], -1)
            if difference[1] or difference[0] == 0:
                return []
        return solutions

    def idle(self, op: Loop, index: Var, count: Atom, inits: Sequence[Atom], solutions) -> bool:
        """Whether the body changes nothing where none of the tests holds."""
        assumed = {affine_key(equation): False for equation, _ in solutions}
        _, results, accs = self.trial(op, index, count, inits, assumed)
        width = len(accs)
        return all(r is a for r, a in zip(results, accs)) and all(map(is_zero, results[width:]))

    def once(self, op: Loop, bind: Bind, at: Atom, runs: Atom, state: list[Atom]) -> list[Atom]:
        """One iteration, where it is one of the loop's: ``state`` holds accumulators, then stacked arrays."""
        b = self.b
        if type(runs) is Const:
            return self.iteration(op, at, state) if runs.value else state
        with b.region() as scope:
            scope.facts.extend(b.facts_of(runs, True))
            results = self.iteration(op, at, state)
        with b.region() as otherwise:
            pass
        names = [v.name for v in bind.vars]
        return list(b.if_(runs, (scope, results), (otherwise, state), names))

    def iteration(self, op: Loop, at: Atom, state: Sequence[Atom]) -> list[Atom]:
        width = len(op.accs)
        self.here[op.index] = at
        self.here.update(zip(op.accs, state))
        results = self.block(op.body)
        stacked = [self.b.update(a, [at], x, a.name) for a, x in zip(state[width:], results[width:])]
        return [*results[:width], *stacked]


# ---------------------------------------------------------------------------------- fission, expansion


class Fission(Rebuild):
    """Takes a loop inside another apart into loops that do not need one another, so that those that the outer loop
    does not change can leave it. ``fuse_siblings`` joins again what stays.

    ``(build m (fn [j] (loop n (fn [i] #((f i) (g i j))))))``  =>  ``a = (build n f)`` before the outer loop.
    """

    def __init__(self, builder: Builder, depth: int = 0) -> None:
        super().__init__(builder)
        self.depth = depth

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop:
            self.copy(bind)
            return
        groups = independent(op) if self.depth and not has_checks(op.body) else []
        self.depth += 1
        if len(groups) > 1:
            for group in groups:
                self.part(op, bind, group)
        else:
            self.copy(bind)
        self.depth -= 1

    def part(self, op: Loop, bind: Bind, group: list[int]) -> None:
        b, width = self.b, len(op.accs)
        accs = [k for k in group if k < width]

        def body(i: Atom, *atoms: Atom):
            self.here[op.index] = i
            self.here.update(zip([op.accs[k] for k in accs], atoms))
            self.block(slice_of(op.body, [op.body.results[k] for k in group]))
            results = self.atoms([op.body.results[k] for k in group])
            return results[: len(accs)], results[len(accs) :]

        out = b.loop(
            self.atom(op.count),
            self.atoms([op.inits[k] for k in accs]),
            body,
            [bind.vars[k].name for k in group],
            op.index.name,
            [op.accs[k].name for k in accs],
            bind.vars[group[0]].given,
            pruned=True,
        )
        b.span = bind.span
        self.here.update(zip([bind.vars[k] for k in group], out))


def slice_of(block: Block, results: Sequence[Atom]) -> Block:
    """The bindings of a block that some of its results need."""
    return tidy(Block(block.binds, tuple(results)))


def independent(op: Loop) -> list[list[int]]:
    """The results of a loop's body in groups that share no accumulator."""
    count, accs = len(op.body.results), set(op.accs)
    group = list(range(count))
    needs: dict[Atom, set[Var]] = {}

    def find(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    def accumulators(vars: set[Var]) -> set[Var]:
        wanted = set()
        for v in vars:
            wanted |= {v} if v in accs else needs.get(v, set())
        return wanted

    for bind in op.body.binds:
        inner = bind.op
        if type(inner) is Loop and len(bind.vars) > 1:
            for part in independent(inner):
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
    for k, r in enumerate(op.body.results):
        for a in {r} & accs | needs.get(r, set()) if type(r) is Var else ():
            x, y = find(k), find(position[a])
            if x != y:
                group[max(x, y)] = min(x, y)
    found: dict[int, list[int]] = {}
    for k in range(count):
        found.setdefault(find(k), []).append(k)
    return list(found.values())


class Expand(Rebuild):
    """Costly values of an inner loop's iterations that the outer loop does not change are computed before it, into an
    array: ``(build m (fn [j] (build n (fn [i] (* (exp i) j)))))``  =>  ``e = (build n exp)`` first.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.tables: dict[Var, tuple[Atom, Var]] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop:
            inside = {op.index, *op.accs, *defined_in(op.body)}
            for inner in op.body.binds:
                if type(inner.op) is Loop:
                    self.prepare(inner.op, inside)
            self.b.span = bind.span
        elif bind.vars and bind.vars[0] in self.tables:
            table, index = self.tables[bind.vars[0]]
            self.here[bind.vars[0]] = self.b.get(table, self.atom(index), hint=bind.vars[0].name)
            return
        self.copy(bind)

    def prepare(self, loop: Loop, inside: set[Var]) -> None:
        """Build the tables of one inner loop, if its trip count is known outside."""
        if type(loop.count) is Var and loop.count in inside or has_checks(loop.body):
            return
        chosen = invariants(loop, inside)
        if not chosen:
            return

        def body(i: Atom):
            self.here[loop.index] = i
            return (), self.block(slice_of(loop.body, chosen))

        arrays = self.b.loop(self.atom(loop.count), (), body, [v.name for v in chosen], loop.index.name, pruned=True)
        for v, table in zip(chosen, arrays):
            self.tables[v] = (table, loop.index)


def invariants(loop: Loop, inside: set[Var]) -> list[Var]:
    """The costly scalars at the top of an inner loop's body that depend on its index and on nothing else inside the
    outer loop, and that something else there reads."""
    cost: dict[Var, int] = {loop.index: 0}
    fixed: list[Var] = []
    wanted: set[Atom] = set(loop.body.results)
    for bind in loop.body.binds:
        op = bind.op
        if type(op) is Prim and isinstance(bind.vars[0].type, Scalar):
            needs = [a for a in op.args if type(a) is Var and a in inside]
            if all(a in cost for a in needs) and op.name not in ("update", "add-at", "undef"):
                row = PRIMITIVES.get(op.name)
                cost[bind.vars[0]] = (row.cost if row else 0) + sum(cost[a] for a in needs)
                fixed.append(bind.vars[0])
                continue
        wanted |= reads(bind)
    return [v for v in fixed if v in wanted and cost[v] >= EXPANDED and v.type == REAL]


# --------------------------------------------------------------------------------------- reciprocals


def divide(program: Program) -> Program:
    """A product with a reciprocal that nothing else uses is a division: ``(* x (/ 1 y))``  =>  ``(/ x y)``.

    Only the reciprocals that differentiation introduced (their 1 is soft), and not across a loop.
    """
    counts: dict[Var, int] = {}
    for bind in all_binds(program.body):
        for a in (*atoms_of(bind.op), *(r for region in blocks_of(bind.op) for r in region.results)):
            if type(a) is Var:
                counts[a] = counts.get(a, 0) + 1
    for r in program.body.results:
        if type(r) is Var:
            counts[r] = counts.get(r, 0) + 1

    def block(b: Block) -> Block:
        bottoms: dict[Var, Atom] = {}
        binds = []
        for bind in b.binds:
            op = bind.op
            if type(op) is If:
                op = If(op.cond, block(op.then), block(op.orelse))
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, block(op.body))
            elif type(op) is Prim and op.name == "/" and op.args[0] == ONE and op.args[0].soft:
                if counts.get(bind.vars[0]) == 1:
                    bottoms[bind.vars[0]] = op.args[1]
            elif type(op) is Prim and op.name == "*":
                for x, r in (op.args, op.args[::-1]):
                    if type(r) is Var and r in bottoms:
                        op = Prim("/", (x, bottoms[r]))
                        break
            binds.append(bind if op is bind.op else Bind(bind.vars, op, bind.span))
        return Block(tuple(binds), b.results)

    return replace(program, body=block(program.body))


# -------------------------------------------------------------------------------- stores for additions


def assign(program: Program) -> Program:
    """An accumulation that adds to each element of fresh zeros exactly once is a store, and needs no zeros.

    ``(ifold (fn [v i] (add-at v i x)) (zeros n) n)``  =>  ``(build n (fn [i] x))``; where the loop runs backwards
    through the elements, an ``update`` of memory that was never cleared.
    """
    return replace(program, body=Assign(program.body).block(program.body))


class Assign:
    def __init__(self, body: Block) -> None:
        self.definitions = {v: bind.op for bind in all_binds(body) for v in bind.vars if type(bind.op) is Prim}

    def block(self, block: Block) -> Block:
        binds: list[Bind] = []
        for bind in block.binds:
            op = bind.op
            if type(op) is If:
                bind = Bind(bind.vars, If(op.cond, self.block(op.then), self.block(op.orelse)), bind.span)
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, self.block(op.body))
                binds.extend(self.loop(Bind(bind.vars, op, bind.span)))
                continue
            binds.append(bind)
        return Block(tuple(binds), block.results)

    def loop(self, bind: Bind) -> list[Bind]:
        op: Loop = bind.op  # type: ignore[assignment]
        fresh: list[Bind] = []
        inits, accs = list(op.inits), list(op.accs)
        results, vars = list(op.body.results), list(bind.vars)
        body = list(op.body.binds)
        k = 0
        while k < len(accs):
            at = self.single_store(op, inits[k], accs[k], results[k], body)
            if at is None:
                k += 1
                continue
            where, forward = at
            store: Prim = body[where].op  # type: ignore[assignment]
            if forward and type_of(store.args[-1]) == accs[k].type.item():
                del body[where]
                results.append(store.args[-1])
                vars.append(vars[k])
                del inits[k], accs[k], results[k], vars[k]
            else:
                blank = Var(accs[k].name, accs[k].type, accs[k].span)
                fresh.append(Bind((blank,), Prim("undef", ()), bind.span))
                inits[k] = blank
                body[where] = Bind(body[where].vars, Prim("update", store.args), body[where].span)
                k += 1
        if not fresh and len(accs) == len(op.accs):
            return [bind]
        loop = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(body), tuple(results)))
        return [*fresh, Bind(tuple(vars), loop, bind.span)]

    def single_store(self, op: Loop, init: Atom, acc: Var, result: Atom, body: list[Bind]) -> tuple[int, bool] | None:
        """Where the body adds to ``acc`` its one element of this iteration, and whether the loop goes upwards."""
        start = self.definitions.get(init) if type(init) is Var else None
        if not (isinstance(start, Prim) and start.name == "zeros"):
            return None
        where = next((j for j, b in enumerate(body) if result in b.vars), None)
        if where is None:
            return None
        store = body[where].op
        if type(store) is not Prim or store.name != "add-at" or store.args[0] is not acc or len(store.args) != 3:
            return None
        if sum(a is acc for b in body for x in [b, *inner_binds(b)] for a in atoms_of(x.op)) != 1:
            return None
        if any(
            r is acc for b in body for x in [b, *inner_binds(b)] for block in blocks_of(x.op) for r in block.results
        ):
            return None
        dim = acc.type.dims[0]
        if not same_count(dim, op.count):
            return None
        subscript = store.args[1]
        if subscript is op.index:
            return where, True
        return (where, False) if self.reversed_index(subscript, op, body) else None

    def reversed_index(self, subscript: Atom, op: Loop, body: list[Bind]) -> bool:
        """Whether a subscript is ``count - 1 - index``."""
        found = self.definitions.get(subscript) if type(subscript) is Var else None
        if not (isinstance(found, Prim) and found.name == "-" and found.args[1] is op.index):
            return False
        last = found.args[0]
        if type(last) is Const:
            return type(op.count) is Const and last.value == op.count.value - 1
        made = self.definitions.get(last)
        return isinstance(made, Prim) and (
            (made.name == "-" and made.args[0] is op.count and made.args[1] == Const(1, INT))
            or (made.name == "+" and made.args[0] is op.count and made.args[1] == Const(-1, INT))
        )


def inner_binds(bind: Bind):
    for region in blocks_of(bind.op):
        yield from all_binds(region)
