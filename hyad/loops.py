"""Loop optimisations of typed programs (dF~ section 5): fusion, one-hot normalisation, stores for accumulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .builder import (
    ONE,
    TRUE,
    Affine,
    Builder,
    Rebuild,
    affine_add,
    affine_key,
    defined_in,
    has_checks,
    is_zero,
    negated,
    real,
    rebuild,
    structure,
    type_of,
)
from .core import (
    BOOL,
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
    Op,
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
    with_blocks,
    with_body,
)
from .dead import tidy
from .functions import uses
from .primitives import PRIMITIVES
from .rows import by_row

EXPANDED = 4  # in additions: from here on a value of an inner loop is kept in a table outside
JAMMED, JAMMED_COST = 4, 8  # iterations that run side by side, where one step of their sums costs no more
CALL = 15  # in additions: what costs so much is a call of the C library
CHEAP = 3  # in additions: a body that costs no more is computed again rather than stored
NEAR = 400  # bindings between two loops beyond which they are not made one


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
        self.inlined: dict[Var, tuple[Loop, int, int]] = {}  # the loop, which result, how many subscripts it takes
        self.costs: dict[Var, int] = {}  # what an element of these costs
        self.sparse: dict[Var, tuple[Loop, Prim]] = {}
        self.zeros = {b.vars[0] for b in all_binds(block) if type(b.op) is Prim and b.op.name == "zeros"}
        self.depth = 0

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and not has_checks(op.body):
            levels = 0 if op.accs else self.fusible(bind, op)
            if levels:
                for k, v in enumerate(bind.vars):
                    self.inlined[v] = (op, k, levels)
                return
            store = self.one_store(bind, op)
            if store is not None:
                self.sparse[bind.vars[0]] = (op, store)
                return
        if type(op) is Prim and op.name == "get":
            if op.args[0] in self.inlined:
                loop, k, levels = self.inlined[op.args[0]]  # type: ignore[index]
                self.here[bind.vars[0]] = self.element(loop, k, levels, self.atoms(op.args[1:]), bind)
                return
            if op.args[0] in self.sparse:
                loop, store = self.sparse[op.args[0]]  # type: ignore[index]
                self.here[bind.vars[0]] = self.pulled(loop, store, self.atoms(op.args[1:]), bind)
                return
        self.depth += type(op) is Loop
        self.copy(bind)
        self.depth -= type(op) is Loop

    def element(self, loop: Loop, k: int, levels: int, subscripts: Sequence[Atom], bind: Bind) -> Atom:
        """The element of a build, and of the build that gives its rows, at known subscripts."""
        r = loop.body.results[k]
        self.here[loop.index] = subscripts[0]
        row = next((x for x in loop.body.binds if r in x.vars and type(x.op) is Loop), None) if levels > 1 else None
        if row is None:
            (found,) = self.block(slice_of(loop.body, (r,)))
            self.b.span = bind.span
            return self.b.get(found, *subscripts[1:])
        for x in slice_of(loop.body, (r,)).binds:
            if x is not row:
                self.b.span = x.span
                self.bind(x)
        return self.element(row.op, row.vars.index(r), levels - 1, subscripts[1:], bind)  # type: ignore[arg-type]

    def fusible(self, bind: Bind, op: Loop) -> int:
        """How many subscripts of every reading of a build are put in place of its indices: 0 if it stays."""
        uses = [(k, u) for k, v in enumerate(bind.vars) for u in self.uses.get(v, ())]
        if not uses or any(not u.subscripts for _, u in uses):
            return 0
        known = min(len(u.subscripts) for _, u in uses)  # type: ignore[arg-type]
        levels = min(known, *(depth_of(op, k) for k, _ in uses))
        for k, v in enumerate(bind.vars):
            cost = self.cost(op.body, op.body.results[k], known - 1)
            if cost is not None:
                self.costs[v] = cost
        if all(self.costs.get(v, CHEAP + 1) <= CHEAP for v in bind.vars if self.uses.get(v)):
            again = any(len(u.loops) - self.depth > levels for _, u in uses)
            if not (again and any(permuted(op, k, levels) for k, _ in uses)):
                return levels
        first = uses[0][1]
        if len(first.loops) == self.depth:  # one element alone is read, where all would be made
            one = all(u.subscripts[0] is first.subscripts[0] and len(u.loops) == self.depth for _, u in uses)  # type: ignore
            return int(one)
        # the innermost loops around all readings run as often as these, and read the element once in each iteration
        for n in range(levels, 0, -1):
            around = first.loops[-n:]
            subscripts = tuple(loop.index for loop in around)
            if (
                len(first.loops) == self.depth + n
                and all(u.loops[-n:] == around and u.subscripts[:n] == subscripts for _, u in uses)  # type: ignore
                and self.in_body(around[-1], bind.vars)
                and (n == 1 or not self.crowded(around[-1], bind.vars))
            ):
                return n
        return 0

    def crowded(self, consumer: Loop, vars: Sequence[Var]) -> bool:
        """Whether a sum would come to stand in a sum, or beside another loop or a call: alone in the body of a build it
        is taken four at a time (``Jam``), which compilers then do side by side."""
        full = bool(consumer.accs) or any(type(b.op) is Loop for b in consumer.body.binds)
        full = full or cost_of(consumer.body) >= CALL
        return full and any(self.uses.get(v) and v not in self.costs for v in vars)

    def cost(self, block: Block, r: Atom, more: int) -> int | None:
        """What a number costs that a block's result ``r`` has at ``more`` known subscripts; None where that takes a
        loop. What is read from another build that is put in its place costs what that does."""
        cost = 0
        for bind in slice_of(block, (r,)).binds:
            op = bind.op
            if type(op) is Loop and more and r in bind.vars and not op.accs:
                inner = self.cost(op.body, op.body.results[bind.vars.index(r)], more - 1)  # type: ignore[arg-type]
            elif type(op) is If and all(isinstance(v.type, Scalar) for v in bind.vars):
                costs = [self.cost(x, a, 0) for x in blocks_of(op) for a in x.results]
                inner = None if None in costs else 1 + sum(costs)  # type: ignore[arg-type]
            elif type(op) is not Prim or isinstance(bind.vars[0].type, Arr) and not is_view(op):
                inner = None
            elif op.name in PRIMITIVES:
                inner = PRIMITIVES[op.name].cost if bind.vars[0].type != BOOL else 0  # tests of indices: mostly decided
            else:
                inner = self.costs.get(op.args[0]) if op.args[0] in self.inlined else 1  # type: ignore[arg-type]
            if inner is None:
                return None
            cost += inner
        return cost

    def one_store(self, bind: Bind, op: Loop) -> Prim | None:
        """The one store of a loop that does nothing but put a cheap value into zeros, each iteration in a row of its
        own, if the array is read by element alone: a diagonal, say."""
        uses = self.uses.get(bind.vars[0], ()) if bind.vars else ()
        if len(op.accs) != 1 or len(bind.vars) != 1 or op.inits[0] not in self.zeros or not uses:
            return None
        acc, last = op.accs[0], op.body.binds[-1] if op.body.binds else None
        store = last.op if last is not None and last.vars == op.body.results else None
        rank = acc.type.rank if isinstance(acc.type, Arr) else 0
        if type(store) is not Prim or store.name not in ("update", "add-at") or store.args[0] is not acc:
            return None
        if len(store.args) != rank + 2 or any(not u.subscripts or len(u.subscripts) != rank for u in uses):
            return None
        if any(acc in atoms_of(b.op) for b in op.body.binds[:-1]) or acc in store.args[1:]:
            return None
        own = [k for k, s in enumerate(store.args[1:-1]) if s is op.index]
        others = [s for s in store.args[1:-1] if s is not op.index]
        steady = not any(type(s) is Var and s in defined_in(op.body) for s in others)
        fits = own and same_count(acc.type.dims[own[0]], op.count)  # type: ignore[union-attr]
        return store if fits and steady and cheap(Block(op.body.binds[:-1], ())) else None

    def pulled(self, loop: Loop, store: Prim, subscripts: Sequence[Atom], bind: Bind) -> Atom:
        """``(get (ifold (fn [a i] (update a i i x)) zeros n) p q)``  =>  ``(select (= q p) x 0)``, x for i = p."""
        b, at = self.b, store.args[1:-1]
        self.here[loop.index] = next(s for s, own in zip(subscripts, at) if own is loop.index)
        hit: Atom = TRUE
        for s, own in zip(subscripts, self.atoms(at)):
            hit = b.prim("and", hit, b.prim("=", s, own))
        self.block(Block(loop.body.binds[:-1], ()))
        b.span = bind.span
        value = self.atom(store.args[-1])
        return b.select(hit, value, b.zeros(type_of(value)))

    @staticmethod
    def in_body(consumer: Loop, vars: Sequence[Var]) -> bool:
        """Whether the readings stand in the body itself, where they share one copy, not in its branches."""
        wanted = set(vars)
        here = sum(
            1 for b in consumer.body.binds if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] in wanted
        )
        return here > 0


def depth_of(loop: Loop, k: int) -> int:
    """How many builds stand inside one another to make result ``k`` of a loop."""
    r = loop.body.results[k]
    row = next((b for b in loop.body.binds if r in b.vars), None)
    if row is None or type(row.op) is not Loop or row.op.accs or has_checks(row.op.body):
        return 1
    return 1 + depth_of(row.op, row.vars.index(r))  # type: ignore[arg-type]


def permuted(loop: Loop, k: int, levels: int) -> bool:
    """Whether builds inside one another read an array in another order than they make theirs, as a transpose does: what
    is read again and again is made first then, so that it is read in its order."""
    order: list[Atom] = []
    for _ in range(levels):
        order.append(loop.index)
        r = loop.body.results[k]
        for bind in loop.body.binds:
            if type(bind.op) is Prim and bind.op.name == "get":
                at = [order.index(s) for s in bind.op.args[1:] if s in order]
                if at != sorted(at):
                    return True
        row = next((b for b in loop.body.binds if r in b.vars and type(b.op) is Loop), None)
        if row is None:
            break
        loop, k = row.op, row.vars.index(r)  # type: ignore[assignment, arg-type]
    return False


def is_view(op: Prim) -> bool:
    """Whether an array operation takes no work: a row, or an array whose elements are one."""
    return op.name == "get" or op.name == "array" and all(a is op.args[0] for a in op.args)


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
    return with_body(program, siblings(program.body))


def siblings(block: Block, wanted: Callable[[Bind, Bind, Bind], bool] | None = None) -> Block:
    """``fuse_siblings`` for a block; ``wanted`` says of a loop, another and the two as one whether that is to be."""
    if all(type(bind.op) in (Prim, Check) for bind in block.binds):
        return block
    binds, known, k = list(block.binds), {}, 0
    while k < len(binds):
        op = binds[k].op
        mergeable = type(op) in (Loop, If) and not any(map(has_checks, blocks_of(op)))
        while mergeable and merge_into(binds, k, known, wanted):
            pass
        bind = binds[k]  # what its regions hold now, siblings of both, may join too
        if type(bind.op) is If:
            binds[k] = Bind(bind.vars, If(bind.op.cond, *(siblings(x, wanted) for x in blocks_of(bind.op))), bind.span)
        elif type(bind.op) is Loop:
            binds[k] = Bind(bind.vars, with_blocks(bind.op, [siblings(bind.op.body, wanted)]), bind.span)
        k += 1
    return Block(tuple(binds), block.results)


def partners(one: Op, two: Op) -> bool:
    """Whether two loops run equally often, or two branches ask the same."""
    if type(one) is If:
        return type(two) is If and one.cond is two.cond
    return type(one) is Loop and type(two) is Loop and same_count(one.count, two.count)


def join(first: Bind, second: Bind) -> Bind | None:
    """One loop, or branch, of two that run together; None where they do not."""
    one, two = first.op, second.op
    v1, v2 = first.vars, second.vars
    if not partners(one, two) or any(map(has_checks, blocks_of(two))):
        return None
    if type(one) is If and type(two) is If:
        regions = [Block(x.binds + y.binds, x.results + y.results) for x, y in zip(blocks_of(one), blocks_of(two))]
        return Bind(v1 + v2, If(one.cond, *regions), first.span)
    if type(one) is Loop and type(two) is Loop:
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


def merge_into(
    binds: list[Bind],
    k: int,
    known: dict[Bind, set[Var]],
    wanted: Callable[[Bind, Bind, Bind], bool] | None = None,
) -> bool:
    """Merge a later loop or branch into the one at ``k`` if one can be; what needs the first one's results stays
    behind, what the second needs comes before. ``known``: what bindings read, as far as that was asked."""
    first = binds[k]
    if not any(partners(first.op, binds[j].op) for j in range(k + 1, min(len(binds), k + NEAR))):
        return False
    after = set(first.vars)  # what depends on the first
    checked = False  # whether a check is among that
    early: list[Bind] = []
    late: list[Bind] = []
    for j in range(k + 1, min(len(binds), k + NEAR)):
        bind = binds[j]
        if type(bind.op) is Check:
            return False
        if bind not in known:
            known[bind] = reads(bind)
        if not known[bind].isdisjoint(after):
            checked = checked or any(map(has_checks, blocks_of(bind.op)))
            after.update(bind.vars)
            late.append(bind)
            continue
        made = join(first, bind)
        if made is not None and (not checked or in_range(bind)) and (wanted is None or wanted(first, bind, made)):
            binds[k : j + 1] = [*early, made, *late]
            return not early
        early.append(bind)
    return False


def in_range(bind: Bind) -> bool:
    """Whether all subscripts in a loop or a branch are plainly in range, whatever was checked before: they are
    constants and indices of loops that run as often as there are elements."""
    counts = {x.op.index: x.op.count for x in (bind, *inner_binds(bind)) if type(x.op) is Loop}
    for x in inner_binds(bind):
        op = x.op
        if type(op) is Prim and op.name in ("get", "update", "add-at"):
            for i, dim in zip(op.args[1 : len(op.args) - (op.name != "get")], type_of(op.args[0]).dims):  # type: ignore
                known = type(i) is Const and type(dim) is Const and 0 <= i.value < dim.value
                if not known and not (i in counts and same_count(counts[i], dim)):
                    return False
    return True


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
        if type(op) is Loop and bind.vars and self.normalise(op, bind):  # one without results is there for its checks
            return
        self.copy(bind)

    def normalise(self, op: Loop, bind: Bind) -> bool:
        b = self.b
        count, inits = self.atom(op.count), self.atoms(op.inits)
        index = Var(op.index.name, INT, op.index.span, True)
        found = self.solutions(op, index, count, inits)
        alone = [[s] for s in found] if len(found) > 1 else []  # one test may do, as in (and (= i r) (= i c))
        choices = [*alone, *([found] if found and different(found) else [])]
        solutions = next((s for s in choices if self.idle(op, index, count, inits, s)), None)
        if solutions is None:
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
        """The equations ``i = e`` that the body tests, and their solutions, which are free of the body."""
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
        return sorted(found.values(), key=lambda s: s[1][0])

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


def different(solutions: Sequence[tuple[Affine, Affine]]) -> bool:
    """Whether solutions, in order, are provably different from one another."""
    gaps = [affine_add(y, x, -1) for (_, x), (_, y) in zip(solutions, solutions[1:])]
    return all(not terms and constant for constant, terms in gaps)


# ---------------------------------------------------------------------------------- fission, expansion


class Fission(Rebuild):
    """Takes a loop inside another apart into loops that do not need one another, so that those that the outer loop
    does not change can leave it. ``fuse_siblings`` joins again what stays.

    ``(build m (fn [j] (loop n (fn [i] #((f i) (g i j))))))``  =>  ``a = (build n f)`` before the outer loop.

    Where one part reads an accumulator of another that the outer loop does not change, the accumulator's values are
    stacked: the tangent of a recurrence, say, is taken in every row, the recurrence once. Integers that cost little are
    computed again.
    """

    def __init__(self, builder: Builder, depth: int = 0) -> None:
        super().__init__(builder)
        self.depth = depth

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
        elif len(groups) > 1:
            for group in groups:
                self.part(op, bind, group, {})
        else:
            self.copy(bind)
        self.depth -= 1

    def together(self, op: Loop, groups: list[list[int]]) -> list[list[int]]:
        """The groups, those joined that share a call which the loop around changes: none of them can leave it."""
        b, own = self.b, {op.index, *op.accs}
        for x in op.body.binds:
            if cost_of(Block((x,), ())) < CALL:
                continue
            sharing = [g for g in groups if x in slice_of(op.body, [op.body.results[k] for k in g]).binds]
            if len(sharing) > 1:
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
            reads += op.inits[k : k + 1]
            if b.home(self.atoms(reads)) is b.scopes[-1]:
                found.discard(k)
        while True:
            left = {k for k in found if needs[k] <= found}
            if left == found:
                return sorted(found)
            found = left

    def part(self, op: Loop, bind: Bind, group: list[int], history: dict[Var, Atom | None]) -> dict[Var, Atom | None]:
        """The loop of some results. ``history`` has accumulators and where their values are stacked: None, in this
        loop; returns where they are now."""
        b, width = self.b, len(op.accs)
        accs = [k for k in group if k < width]
        stacked = [a for a, array in history.items() if array is None]

        def body(i: Atom, *atoms: Atom):
            self.here[op.index] = i
            self.here.update({a: b.get(array, i) for a, array in history.items() if array is not None})
            self.here.update(zip([op.accs[k] for k in accs], atoms))
            before = self.atoms(stacked)
            self.block(slice_of(op.body, [op.body.results[k] for k in group]))
            results = self.atoms([op.body.results[k] for k in group])
            return results[: len(accs)], [*results[len(accs) :], *before]

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


def slice_of(block: Block, results: Sequence[Atom]) -> Block:
    """The bindings of a block that some of its results need."""
    return tidy(Block(block.binds, tuple(results)))


def independent(op: Loop) -> tuple[list[list[int]], list[set[int]]]:
    """The results of a loop's body in groups that share no accumulator; and which accumulators each one needs."""
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
            results = self.block(slice_of(loop.body, chosen))
            if not all(self.b.bind_in_range(bind.op) for bind in self.b.scopes[-1].binds):
                raise OutOfReach
            return (), results

        try:
            arrays = self.b.loop(
                self.atom(loop.count), (), body, [v.name for v in chosen], loop.index.name, pruned=True
            )
        except OutOfReach:
            return
        for v, table in zip(chosen, arrays):
            self.tables[v] = (table, loop.index)


class OutOfReach(Exception):
    """Something is read that is only there where a loop around has been entered."""


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


# ------------------------------------------------------------------------- copies, equal accumulations


class Alias(Rebuild):
    """A stacked copy of an array, or of a row, is that: ``(build n (fn [i] (get v i)))``  =>  ``v``."""

    def bind(self, bind: Bind) -> None:
        self.copy(bind)
        op = bind.op
        if type(op) is not Loop:
            return
        for k, (source, *at) in copied(op).items():
            row = self.b.get(*self.atoms((source, *at)))
            if self.b.same_int(type_of(row).dims[0], self.atom(op.count)):
                self.here[bind.vars[k]] = row


def copied(op: Loop) -> dict[int, tuple[Atom, ...]]:
    """The stacked results that are the elements of an array, or of a row of it, at the loop's own index: the array, and
    the row's subscripts."""
    gets = {b.vars[0]: b.op for b in op.body.binds if type(b.op) is Prim and b.op.name == "get"}
    found: dict[int, tuple[Atom, ...]] = {}
    for k in range(len(op.accs), len(op.body.results)):
        read = gets.get(op.body.results[k])  # type: ignore[call-overload]
        if read is not None and read.args[-1] is op.index:
            found[k] = read.args[:-1]
    inside = {op.index, *op.accs, *defined_in(op.body)} if found else set()
    return {k: read for k, read in found.items() if inside.isdisjoint(read)}


class Accumulate(Rebuild):
    """One accumulation from zeros serves another of the same terms that starts from an array.

    ``p = (ifold (fn [v i] (add-at v i x)) (zeros n) m) ... q = (ifold (fn [v i] (add-at v i x)) u m)``  =>
    ``p = ... ; q = (vec-add u p)``.
    Design decision: only where both are there. An ``add-at`` is an adjoint's, whose sum may be taken in any order.
    """

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.zeros = {b.vars[0] for b in all_binds(block) if type(b.op) is Prim and b.op.name == "zeros"}
        self.started: dict[tuple, set[bool]] = {}
        for bind in all_binds(block):
            key = self.terms(bind)
            if key is not None:
                self.started.setdefault(key, set()).add(bind.op.inits[0] in self.zeros)
        self.made: dict[tuple, Var] = {}

    def twice(self) -> bool:
        """Whether anything starts both ways."""
        return any(len(starts) == 2 for starts in self.started.values())

    def terms(self, bind: Bind) -> tuple | None:
        """What a loop adds to its one accumulator, an array of numbers: equal for two that add the same."""
        op = bind.op
        if type(op) is not Loop or len(bind.vars) != 1 or len(op.accs) != 1 or not self.adds_only(op):
            return None
        if not isinstance(op.accs[0].type, Arr) or op.accs[0].type.rank != 1:
            return None
        return structure(Loop(op.count, op.index, (Const(0, INT),), op.accs, op.body))

    def adds_only(self, op: Loop) -> bool:
        """Whether a loop does nothing with its accumulator but add to it."""
        (acc,) = op.accs
        for bind in op.body.binds:
            inner = bind.op
            reads = {*atoms_of(inner), *(v for region in blocks_of(inner) for v in free_vars(region))}
            if acc not in reads:
                continue
            if type(inner) is Prim and inner.name == "add-at" and inner.args[0] is acc:
                if acc in inner.args[1:]:
                    return False
            elif not (type(inner) is Loop and inner.inits == (acc,) and len(bind.vars) == 1):
                return False
            elif acc in free_vars(inner.body) or not self.adds_only(inner):
                return False
            acc = bind.vars[0]
        return op.body.results == (acc,)

    def bind(self, bind: Bind) -> None:
        key = self.terms(bind)
        if key is None or self.started[key] != {True, False}:
            self.copy(bind)
            return
        b, op, v = self.b, bind.op, bind.vars[0]
        made = self.made.get(key)
        if made is None or not any(made in scope.vars for scope in b.scopes):
            start = b.zeros(self.type(v.type), v.name)
            (made,) = self.loop(Loop(op.count, op.index, (start,), op.accs, op.body), bind)
            self.made[key] = made
        init = self.atom(op.inits[0])
        self.here[v] = made if op.inits[0] in self.zeros else b.add(init, made)


# ------------------------------------------------------------------------------------- unroll and jam


class Jam(Rebuild):
    """Runs four iterations of a loop over short sums at once, so that four chains of additions go side by side.

    ``(build n (fn [i] (ifold (fn [s j] (+ s (f i j))) 0.0 m)))``  =>  in each of ``n // 4`` iterations one inner loop
    with four accumulators, for 4 q, .., 4 q + 3; the iterations that are left follow one by one. Of several inner
    loops each is made one.
    Design decision: each sum is still taken in its own order, to the last bit. A processor adds as fast as one sum's
    dependent additions let it, and compilers may not reorder them; independent ones it takes together.
    """

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop or not self.side_by_side(op):
            self.copy(bind)
            return
        b, width, count = self.b, len(op.accs), self.atom(op.count)
        blocks, left, done = in_fours(b, count)
        state = [*self.atoms(op.inits), *(b.undef(self.type(v.type)) for v in bind.vars[width:])]
        names = [v.name for v in bind.vars]
        accs = [*(a.name for a in op.accs), *names[width:]]

        def together(q: Atom, *state: Atom):
            first = b.prim("*", Const(JAMMED, INT), q)
            indices = [b.prim("+", first, Const(k, INT)) for k in range(JAMMED)]
            return self.jammed(op, indices, state), ()

        def alone(r: Atom, *state: Atom):
            return self.jammed(op, [b.prim("+", done, r)], state), ()

        if not (type(blocks) is Const and blocks.value == 0):
            state = list(b.loop(blocks, state, together, names, op.index.name, accs))
        if not (type(left) is Const and left.value == 0):
            state = list(b.loop(left, state, alone, names, op.index.name, accs))
        b.span = bind.span
        self.define(bind, state)

    def jammed(self, op: Loop, indices: Sequence[Atom], state: Sequence[Atom]) -> list[Atom]:
        """The iterations ``indices``, each inner loop once for all: the accumulators and arrays after them."""
        b, width = self.b, len(op.accs)
        outer, going = self.here, {a: x for a, x in zip(op.accs, state) if isinstance(a.type, Arr)}
        views = [{**outer, op.index: i} for i in indices]  # what the body's variables are in each of the iterations
        late = carried_in(op)
        for bind in op.body.binds:
            if type(bind.op) is Loop:
                self.together(bind, bind.op, views, going)
            elif bind not in late:
                self.each(views, [bind])
        accs, arrays = list(state[:width]), list(state[width:])
        for i, view in zip(indices, views):
            self.here = {**view, **dict(zip(op.accs, accs)), **going}
            results = self.block(Block(tuple(late), op.body.results))
            accs = list(results[:width])
            arrays = [b.update(a, [i], x, a.name) for a, x in zip(arrays, results[width:])]
        self.here = outer
        return [*accs, *arrays]

    def each(self, views: list[dict[Var, Atom]], binds: Sequence[Bind]) -> None:
        for k, view in enumerate(views):
            self.here = view
            self.block(Block(tuple(binds), ()))
            views[k] = self.here

    def together(self, bind: Bind, inner: Loop, views: list[dict[Var, Atom]], going: dict[Var, Atom]) -> None:
        """One loop for that of each iteration: own sums and what is stacked, but one array ``going`` through all."""
        b, width = self.b, len(inner.accs)
        arrays = [k for k in range(width) if isinstance(inner.accs[k].type, Arr)]
        sums = [k for k in range(width) if k not in arrays]
        starts = [going[inner.inits[k]] for k in arrays]  # type: ignore[index]

        def body(j: Atom, *accs: Atom):
            following, stacked, now = [], [], list(accs[: len(arrays)])
            for n, view in enumerate(views):
                own = accs[len(arrays) + n * len(sums) :]
                self.here = {**view, inner.index: j, **dict(zip([inner.accs[k] for k in sums], own))}
                self.here.update(zip([inner.accs[k] for k in arrays], now))
                results = self.block(inner.body)
                now = [results[k] for k in arrays]
                following += [results[k] for k in sums]
                stacked += results[width:]
            return [*now, *following], stacked

        inits = []
        for view in views:
            self.here = view
            inits += self.atoms([inner.inits[k] for k in sums])
        self.here = views[0]
        order = [*arrays, *(k for _ in views for k in sums)]
        names = [bind.vars[k].name for k in order] + [v.name for _ in views for v in bind.vars[width:]]
        accs = [inner.accs[k].name for k in order]
        made = b.loop(self.atom(inner.count), [*starts, *inits], body, names, inner.index.name, accs)
        for k, x in zip(arrays, made):
            going[bind.vars[k]] = x
        rest, each = made[len(arrays) :], len(bind.vars) - width
        for n, view in enumerate(views):
            view.update(zip([bind.vars[k] for k in sums], rest[n * len(sums) :]))
            view.update(zip(bind.vars[width:], rest[len(views) * len(sums) + n * each :]))

    def side_by_side(self, op: Loop) -> bool:
        """Whether the body of a loop is scalars and inner loops, cheap sums among them, that the iterations could take
        side by side: they wait for none of what the iteration before gives. An accumulator that is an array is only
        added to, by one inner loop after the other."""
        if type(op.count) is Const and op.count.value < 2 * JAMMED or op.index.soft or has_checks(op.body):
            return False
        inner = [bind for bind in op.body.binds if type(bind.op) is Loop]
        if (
            not any(isinstance(a.type, Scalar) for bind in inner for a in bind.op.accs)
            or len(op.body.binds) > 4 * JAMMED
        ):
            return False
        late = carried_in(op)
        going: set[Atom] = {a for a in op.accs if isinstance(a.type, Arr)}
        moving = {op.index, *defined_in(op.body)}
        late_vars = {v for bind in late for v in bind.vars} | {a for a in op.accs if isinstance(a.type, Scalar)}
        local: set[Var] = set()  # what inner loops stack
        for bind in op.body.binds:
            loop = bind.op
            if type(loop) is Prim:
                reads_array = any(a in going or a in local for a in loop.args)
                if not isinstance(bind.vars[0].type, Scalar) or reads_array:
                    return False
                continue
            if type(loop) is not Loop or loop.count in moving or any(type(x.op) is not Prim for x in loop.body.binds):
                return False
            if cost_of(loop.body) > JAMMED_COST:
                return False
            if late_vars & {*loop.inits, *free_vars(loop.body)} or going & set(free_vars(loop.body)):
                return False
            for k, (acc, init) in enumerate(zip(loop.accs, loop.inits)):
                if isinstance(acc.type, Arr):
                    if init not in going or not adds_to(loop, k):
                        return False
                    going.discard(init)
                    going.add(bind.vars[k])
            for x in loop.body.binds:
                added = x.op.name == "add-at" and isinstance(x.op.args[-1].type, Scalar)  # type: ignore[union-attr]
                if not (added or isinstance(x.vars[0].type, Scalar)):
                    return False
            if not all(isinstance(r.type, Scalar) for r in loop.body.results[len(loop.accs) :]):
                return False
            local.update(bind.vars[len(loop.accs) :])
        width = len(op.accs)
        if not all(isinstance(r.type, Scalar) for r in op.body.results[width:]):
            return False
        return all(isinstance(r.type, Scalar) or r in going for r in op.body.results[:width])


class Quarters(Rebuild):
    """Looks for the largest of a loop's values in its quarters side by side, then for the largest of theirs.

    ``(fold max z xs)``  =>  ``n // 4`` iterations with four accumulators, for i, q + i, 2 q + i, 3 q + i; those that
    are left follow.
    Design decision: quarters one after the other, not every fourth value: the first of equal ones is found, and the
    first NaN, as before, to the last bit and the sign of a zero. Only of loops that no other is around: these go side
    by side as a whole (``Jam``, ``Lanes``), and inner ones are often short.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.depth = 0

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop or self.depth or not self.searches(op):
            self.depth += type(op) is Loop
            self.copy(bind)
            self.depth -= type(op) is Loop
            return
        b, width = self.b, len(op.accs)
        blocks, left, done = in_fours(b, self.atom(op.count))
        names, given = [v.name for v in bind.vars], any(v.given for v in bind.vars)
        steps = [self.step(op, k) for k in range(width)]

        def values(i: Atom) -> list[Atom]:
            self.here[op.index] = i
            self.block(slice_of(op.body, [term for _, term in steps]))
            return [self.atom(term) for _, term in steps]

        def larger(accs: Sequence[Atom], found: Sequence[Atom]) -> list[Atom]:
            return [b.prim(name, a, x, hint=h) for (name, _), a, x, h in zip(steps, accs, found, names)]

        def together(i: Atom, *accs: Atom):
            starts = [i] + [b.prim("+", b.prim("*", Const(k, INT), blocks), i) for k in range(1, JAMMED)]
            parts = [larger(accs[k * width : (k + 1) * width], values(at)) for k, at in enumerate(starts)]
            return [x for part in parts for x in part], ()

        least = [real(float("-inf" if name == "max" else "inf")) for name, _ in steps]
        found = list(self.atoms(op.inits))
        if not (type(blocks) is Const and blocks.value == 0):
            made = b.loop(
                blocks, [*found, *least * (JAMMED - 1)], together, names * JAMMED, op.index.name, names * JAMMED
            )
            found = list(made[:width])
            for k in range(1, JAMMED):
                found = larger(found, made[k * width : (k + 1) * width])
        if not (type(left) is Const and left.value == 0):
            alone = lambda r, *accs: (larger(accs, values(b.prim("+", done, r))), ())  # noqa: E731
            found = list(b.loop(left, found, alone, names, op.index.name, [a.name for a in op.accs], given))
        b.span = bind.span
        self.define(bind, found)

    @staticmethod
    def step(op: Loop, k: int) -> tuple[str, Atom] | None:
        """What is looked for with accumulator ``k``: ``max`` or ``min``, and of which value."""
        acc, r = op.accs[k], op.body.results[k]
        last = next((x.op for x in op.body.binds if r in x.vars), None)
        if type(last) is not Prim or last.name not in ("max", "min") or last.args[0] is not acc or acc.type != REAL:
            return None
        return last.name, last.args[1]

    def searches(self, op: Loop) -> bool:
        """Whether a loop only looks for the largest or smallest of cheap values, none of which depends on what was
        found before."""
        if len(op.accs) != len(op.body.results) or not op.accs or op.snapshots is not None or op.index.soft:
            return False
        if type(op.count) is Const and op.count.value < 4 * JAMMED or cost_of(op.body) >= CALL:
            return False
        if any(type(x.op) is not Prim or not isinstance(x.vars[0].type, Scalar) for x in op.body.binds):
            return False
        steps = [self.step(op, k) for k in range(len(op.accs))]
        if None in steps:
            return False
        terms = [term for _, term in steps]  # type: ignore[misc]
        return not set(op.accs) & {*free_vars(slice_of(op.body, terms))}


def in_fours(b: Builder, count: Atom) -> tuple[Atom, Atom, Atom]:
    """How often four iterations at once fit into a loop, how many are left, and how many are done before those."""
    blocks = b.prim("//", count, Const(JAMMED, INT))
    done = b.prim("*", Const(JAMMED, INT), blocks)
    left = b.prim("-", count, done)
    b.sizes.update(v for v in (blocks, left) if type(v) is Var)
    return blocks, left, done


def carried_in(op: Loop) -> list[Bind]:
    """The scalar operations of a loop's body that wait for the scalar accumulators."""
    carried: set[Atom] = {a for a in op.accs if isinstance(a.type, Scalar)}
    found = []
    for bind in op.body.binds:
        if type(bind.op) is Prim and any(a in carried for a in bind.op.args):
            carried.update(bind.vars)
            found.append(bind)
    return found


def adds_to(loop: Loop, k: int) -> bool:
    """Whether a loop does nothing with its accumulator ``k``, an array, but add to its elements."""
    at: Atom = loop.accs[k]
    for bind in loop.body.binds:
        op = bind.op
        if at in atoms_of(op):
            if type(op) is not Prim or op.name != "add-at" or op.args[0] is not at or at in op.args[1:]:
                return False
            at = bind.vars[0]
    return loop.body.results[k] is at


def cost_of(block: Block) -> int:
    """What the scalar operations of a block cost, in additions."""
    return sum(PRIMITIVES[b.op.name].cost for b in block.binds if type(b.op) is Prim and b.op.name in PRIMITIVES)


# --------------------------------------------------------------------------------------- reciprocals


def reciprocals(program: Program) -> Program:
    """Divides once where fractions of 1 are divided by the same: ``(/ 1 y) .. (/ 0.5 y)``  =>  ``(* 0.5 (/ 1 y))``.

    Only what differentiation divides becomes a product: ``(/ 0.5 y)`` is finite where ``(/ 1 y)`` is just not any more.
    The reciprocal that it makes of a division by y is then the user's own where there is one. A quotient that is read
    only to be divided again, as a derivative of it by y has it, is such a product, too.
    """
    counts = uses(program.body)

    def once(b: Block) -> Block:
        """A block with such quotients as products: ``(* (/ x y) (/ 1 y))``  =>  ``(* (* x (/ 1 y)) (/ 1 y))``."""
        ones = {x.op.args[1]: x for x in b.binds if is_reciprocal(x.op)}  # type: ignore[union-attr]
        if not ones:
            return b
        readers: dict[Atom, list[tuple[Atom, ...]]] = {}
        for x in b.binds:
            for a in atoms_of(x.op):
                multiplied = type(x.op) is Prim and x.op.name == "*"
                readers.setdefault(a, []).append(x.op.args if multiplied else ())  # type: ignore[union-attr]
        binds: list[Bind] = []
        for x in b.binds:
            one = ones.get(x.op.args[1]) if type(x.op) is Prim and x.op.name == "/" else None
            if one is not None and one is not x and type(x.op.args[0]) is Var:  # type: ignore[union-attr]
                y, r = x.vars[0], one.vars[0]
                found = readers.get(y, [])
                if found and len(found) == counts.get(y) and all(args in ((y, r), (r, y)) for args in found):
                    if one not in binds:
                        binds.append(one)
                    x = Bind(x.vars, Prim("*", (x.op.args[0], r)), x.span)  # type: ignore[union-attr]
            if x not in binds:
                binds.append(x)
        return Block(tuple(binds), b.results) if binds != list(b.binds) else b

    def block(b: Block) -> Block:
        b = once(b)
        by: dict[Atom, list[Bind]] = {}
        for x in b.binds:
            if halving(x.op):
                by.setdefault(x.op.args[1], []).append(x)  # type: ignore[union-attr]
        shared: dict[Bind, Bind] = {}  # a division: the one that stands for its reciprocal
        for many in by.values():
            ones = [x for x in many if x.op.args[0] == ONE]  # type: ignore[union-attr]
            if ones and len(many) > 1:
                kept = next((x for x in ones if not x.op.args[0].soft), ones[0])  # type: ignore[union-attr]
                shared.update(dict.fromkeys(many, kept))
        binds, table = [], {}
        for x in b.binds:
            inner, kept = blocks_of(x.op), shared.get(x)
            if inner:
                made = [block(r) for r in inner]
                x = x if all(r is s for r, s in zip(made, inner)) else Bind(x.vars, with_blocks(x.op, made), x.span)
            if kept is None:
                binds.append(x)
                continue
            top, bottom = x.op.args  # type: ignore[union-attr]
            if x is by[bottom][0]:
                binds.append(kept)
            if top == ONE:
                table[x.vars[0]] = kept.vars[0]
            else:
                binds.append(Bind(x.vars, Prim("*", (top, kept.vars[0])), x.span))
        if all(x is y for x, y in zip(binds, b.binds)) and len(binds) == len(b.binds):
            return b
        return substitute(Block(tuple(binds), b.results), table)

    made = with_body(program, block(program.body))
    return program if made is program else rebuild(made)  # what is equal now is shared


def divide(program: Program) -> Program:
    """A product with a reciprocal that nothing else uses is a division: ``(* x (/ 1 y))``  =>  ``(/ x y)``.

    Only the reciprocals that differentiation introduced (their 1 is soft), and not across a loop.
    """
    if not any(is_reciprocal(bind.op) for bind in all_binds(program.body)):
        return program
    counts = uses(program.body)

    def block(b: Block) -> Block:
        bottoms: dict[Var, Atom] = {}
        binds = []
        for bind in b.binds:
            op = bind.op
            if type(op) is If:
                op = If(op.cond, block(op.then), block(op.orelse))
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, block(op.body))
            elif is_reciprocal(op):
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


def halving(op: Op) -> bool:
    """Whether an operation divides 1 by something, or differentiation a half, a quarter .."""
    if type(op) is not Prim or op.name != "/" or type(op.args[1]) is not Var:
        return False
    top = op.args[0]
    if type(top) is not Const or top.type != REAL:
        return False
    return top.value == 1 or top.soft and 0 < top.value < 1 and math.frexp(top.value)[0] == 0.5


def is_reciprocal(op: Op) -> bool:
    """Whether an operation is a ``(/ 1 y)`` that differentiation introduced."""
    if type(op) is not Prim or op.name != "/":
        return False
    top = op.args[0]
    return type(top) is Const and top.soft and top == ONE


# -------------------------------------------------------------------------------- stores for additions


def assign(program: Program) -> Program:
    """An accumulation that adds to each element of fresh zeros exactly once is a store, and needs no zeros.

    ``(ifold (fn [v i] (add-at v i x)) (zeros n) n)``  =>  ``(build n (fn [i] x))``, and the same for a matrix in two
    loops; where the loop runs backwards through the elements, an ``update`` of memory that was never cleared; where it
    comes to one element of each row, as on a diagonal, an ``update`` of zeros.
    """
    pass_ = Assign(program.body)
    body = pass_.block(program.body)
    return with_body(program, substitute(body, pass_.renamed) if pass_.renamed else body)


class Assign:
    def __init__(self, body: Block) -> None:
        self.definitions = {v: bind.op for bind in all_binds(body) for v in bind.vars if type(bind.op) is Prim}
        self.renamed: dict[Var, Atom] = {}  # arrays that came to be stacked
        built = [bind for bind in all_binds(body) if type(bind.op) is Loop and not bind.op.accs]
        uses = array_uses(body) if built else {}
        self.builds = {v: len(uses.get(v, ())) for bind in built for v in bind.vars}  # how often each is read
        self.equal: dict[Atom, Atom] = {}  # sizes that a check before found equal

    def block(self, block: Block) -> Block:
        if all(type(bind.op) in (Prim, Check) for bind in block.binds):
            return block
        outside, self.equal = self.equal, dict(self.equal)
        binds: list[Bind] = []
        for bind in block.binds:
            op = bind.op
            if type(op) is Check and op.relation == "==" and not self.same(op.a, op.b):
                a, b = self.first_of(op.a), self.first_of(op.b)
                self.equal[a if type(a) is Var else b] = b if type(a) is Var else a
            if type(op) is If:
                bind = Bind(bind.vars, If(op.cond, self.block(op.then), self.block(op.orelse)), bind.span)
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, self.block(op.body))
                binds.extend(self.loop(Bind(bind.vars, op, bind.span)))
                continue
            binds.append(bind)
        self.equal = outside
        return Block(tuple(binds), block.results)

    def loop(self, bind: Bind) -> list[Bind]:
        bind = self.nest(bind)
        op: Loop = bind.op  # type: ignore[assignment]
        fresh: list[Bind] = []
        inits, accs = list(op.inits), list(op.accs)
        results, vars = list(op.body.results), list(bind.vars)
        body = list(op.body.binds)
        k = 0
        while k < len(accs):
            at = self.single_store(op, inits[k], accs[k], results[k], body)
            if at is None:
                rows = self.rows(
                    Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(body), tuple(results))), k
                )
                if rows is None:
                    k += 1
                else:
                    body, results = list(rows.binds), list(rows.results)
                    vars.append(vars[k])
                    del inits[k], accs[k], vars[k]
                continue
            where, forward = at
            store: Prim = body[where].op  # type: ignore[assignment]
            if forward is None:
                body[where] = Bind(body[where].vars, Prim("update", store.args), body[where].span)
                k += 1
            elif forward and type_of(store.args[-1]) == accs[k].type.item():
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
        if not fresh and len(accs) == len(op.accs) and body == list(op.body.binds):
            return [bind]
        loop = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(body), tuple(results)))
        return [*fresh, Bind(tuple(vars), loop, bind.span)]

    def rows(self, op: Loop, k: int) -> Block | None:
        """The body of a loop that stacks the rows of its accumulator ``k``: zeros first, a row for each iteration."""
        start = self.definitions.get(op.inits[k]) if type(op.inits[k]) is Var else None
        acc = op.accs[k]
        if not (isinstance(start, Prim) and start.name == "zeros" and same_count(acc.type.dims[0], op.count)):
            return None
        found = by_row(op, k)
        if found is None:
            return None
        block, zeros = found
        self.definitions[zeros] = block.binds[0].op  # type: ignore[assignment]
        return self.block(block)

    def nest(self, bind: Bind) -> Bind:
        """Loops around one another that add to each element of a fresh array once, in its order, as builds."""
        op: Loop = bind.op  # type: ignore[assignment]
        for k, (init, acc) in enumerate(zip(op.inits, op.accs)):
            start = self.definitions.get(init) if type(init) is Var else None
            cleared = isinstance(start, Prim) and start.name == "zeros" and isinstance(acc.type, Arr)
            if cleared and acc.type.rank == 1 and same_count(acc.type.dims[0], op.count):  # type: ignore[union-attr]
                continue  # see below
            if cleared or self.builds.get(init) == 1:  # type: ignore[call-overload]
                made = self.stacking(bind, k, (), acc.type.dims, None if cleared else init)  # type: ignore
                if made is not None:
                    return self.nest(made)
        return bind

    def stacking(
        self, bind: Bind, k: int, indices: tuple[Atom, ...], dims: tuple[Atom, ...], start: Atom | None
    ) -> Bind | None:
        """A loop that stacks what it would add to the accumulator ``k``, or the sum of that and what ``start`` holds;
        ``indices`` are those of the loops around. The array comes last."""
        op: Loop = bind.op  # type: ignore[assignment]
        acc, r, body = op.accs[k], op.body.results[k], op.body.binds
        where = next((j for j, b in enumerate(body) if r in b.vars), None)
        if where is None or not self.same(dims[len(indices)], op.count):
            return None
        last, own = body[where], (*indices, op.index)
        if [b for b in body if acc in reads(b)] != [last] or any(r in reads(b) for b in body):
            return None
        if op.body.results.count(r) > 1 or acc in op.body.results:
            return None
        if type(last.op) is Loop and len(own) < len(dims):
            at = last.vars.index(r)  # type: ignore[arg-type]
            if at >= len(last.op.accs) or last.op.inits.count(acc) > 1 or last.op.inits[at] is not acc:
                return None
            made = None if acc in free_vars(last.op.body) else self.stacking(last, at, own, dims, start)
            if made is None:
                return None
            binds, x = (*body[:where], made, *body[where + 1 :]), made.vars[-1]
        elif type(last.op) is Prim and last.op.name == "add-at" and last.op.args[1:-1] == own and len(own) == len(dims):
            binds, x = (*body[:where], *body[where + 1 :]), last.op.args[-1]
            if start is not None:
                before, total = Var("t", type_of(x), last.span), Var(r.name, type_of(x), last.span)  # type: ignore
                read = Bind((before,), Prim("get", (start, *own)), last.span)
                binds, x = (*binds, read, Bind((total,), Prim("+", (before, x)), last.span)), total
        else:
            return None
        v, t = bind.vars[k], type_of(x)
        inner = t.dims if isinstance(t, Arr) else ()
        stack = Var(v.name, Arr(acc.type.elem, (op.count, *inner)), v.span, v.given)  # type: ignore[union-attr]
        self.renamed[v] = stack
        rest = [j for j in range(len(op.body.results)) if j != k]
        accs = [j for j in rest if j < len(op.accs)]
        results = (*(op.body.results[j] for j in rest), x)
        inits = tuple(op.inits[j] for j in accs)
        loop = Loop(op.count, op.index, inits, tuple(op.accs[j] for j in accs), Block(binds, results))
        return Bind((*(bind.vars[j] for j in rest), stack), loop, bind.span)

    def same(self, a: Atom, b: Atom) -> bool:
        """Whether two sizes are equal, as far as checks that came before say."""
        return same_count(self.first_of(a), self.first_of(b))

    def first_of(self, a: Atom) -> Atom:
        while a in self.equal:
            a = self.equal[a]
        return a

    def single_store(
        self, op: Loop, init: Atom, acc: Var, result: Atom, body: list[Bind]
    ) -> tuple[int, bool | None] | None:
        """Where the body adds to ``acc`` its one element of this iteration, and whether the loop goes upwards through
        all rows; None for an element of each row."""
        start = self.definitions.get(init) if type(init) is Var else None
        if not (isinstance(start, Prim) and start.name == "zeros"):
            return None
        where = next((j for j, b in enumerate(body) if result in b.vars), None)
        if where is None:
            return None
        store = body[where].op
        if type(store) is not Prim or store.name != "add-at" or store.args[0] is not acc:
            return None
        if sum(a is acc for b in body for x in [b, *inner_binds(b)] for a in atoms_of(x.op)) != 1:
            return None
        if any(
            r is acc for b in body for x in [b, *inner_binds(b)] for block in blocks_of(x.op) for r in block.results
        ):
            return None
        if len(store.args) > 3:
            return (where, None) if op.index in store.args[1:-1] else None
        dim = acc.type.dims[0]
        if not same_count(dim, op.count):
            return None
        subscript = store.args[1]
        if subscript is op.index:
            return where, True
        return (where, False) if self.reversed_index(subscript, op) else None

    def reversed_index(self, subscript: Atom, op: Loop) -> bool:
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


# ------------------------------------------------------------------------------------ sparse rows


def scatter(program: Program) -> Program:
    """Rows that are zero but for a few elements go into one matrix of zeros, and what is added to an element that is
    still zero is a store.

    ``(build n (fn [j] (add-at (zeros m) (+ j 1) x)))``  =>
    ``(ifold (fn [a j] (update a j (+ j 1) x)) (zeros n m) n)``.
    Design decision: only rows without a loop in them; a full row is cleared best when its turn comes.
    """
    if not any(type(bind.op) is Prim and bind.op.name == "zeros" for bind in all_binds(program.body)):
        return program
    integers = {
        bind.vars[0]: bind.op for bind in all_binds(program.body) if type(bind.op) is Prim and bind.vars[0].type == INT
    }

    def block(b: Block) -> Block:
        binds: list[Bind] = []
        for bind in b.binds:
            op = bind.op
            if type(op) is If:
                bind = Bind(bind.vars, If(op.cond, block(op.then), block(op.orelse)), bind.span)
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, block(op.body))
                bind = Bind(bind.vars, op, bind.span)
                k = len(bind.op.accs)
                while k < len(bind.vars):
                    made = Scatter(bind, k, integers).bind()
                    if made is None:
                        k += 1
                    else:
                        binds.append(made[0])
                        bind, k = made[1], k + 1
            binds.append(bind)
        return Block(tuple(binds), b.results)

    return replace(program, body=block(program.body))


class Scatter:
    """The result ``k`` of a loop as an accumulator: ``places`` maps what the row was to what the matrix is."""

    def __init__(self, bind: Bind, k: int, integers: dict[Var, Prim]) -> None:
        self.loop: Loop = bind.op  # type: ignore[assignment]
        self.old, self.k, self.integers = bind, k, integers
        self.places: dict[Var, Var] = {}
        self.written: list[tuple[Affine, ...]] = []

    def bind(self) -> tuple[Bind, Bind] | None:
        """The zeros and the new loop; None where the row is none of those."""
        op, k, width = self.loop, self.k, len(self.loop.accs)
        row, whole = op.body.results[k], self.old.vars[k]
        start = self.start(op.body, row)
        if start is None or set(type_atoms(start.type)) & defined_in(op.body):
            return None
        acc = self.places[start] = Var(whole.name, whole.type, whole.span)
        binds = self.binds(op.body, start)
        others = [r for j, r in enumerate(op.body.results) if j != k]
        if binds is None or any(r in self.places for r in others) or row not in self.places:
            return None
        zeros = Var(whole.name, whole.type, whole.span)
        results = (*others[:width], self.places[row], *others[width:])
        rest = [v for j, v in enumerate(self.old.vars) if j != k]
        loop = Loop(op.count, op.index, (*op.inits, zeros), (*op.accs, acc), Block(tuple(binds), results))
        vars = (*rest[:width], whole, *rest[width:])
        fresh = Bind((zeros,), Prim("zeros", type_atoms(whole.type)), self.old.span)
        return fresh, Bind(vars, loop, self.old.span)

    def start(self, block: Block, row: Atom) -> Var | None:
        """The zeros of the body that a row was made from, by additions in the body and its branches."""
        made = {v: bind.op for bind in block.binds for v in bind.vars}
        changed = False
        while type(row) is Var and row in made:
            op = made[row]
            if type(op) is Prim and op.name == "zeros":
                return row if changed else None
            if type(op) is Prim and op.name in ("add-at", "update"):
                row = op.args[0]
            elif type(op) is If:
                inner = {v: b.op for b in op.orelse.binds for v in b.vars}
                at = next(k for b in block.binds if b.op is op for k, v in enumerate(b.vars) if v is row)
                row = op.orelse.results[at]
                while type(row) is Var and type(inner.get(row)) is Prim and inner[row].name in ("add-at", "update"):
                    row = inner[row].args[0]
            else:
                return None
            changed = True
        return None

    def binds(self, block: Block, start: Var | None = None) -> list[Bind] | None:
        """A block's bindings with the row's changes made in the matrix; None where the row is read, or used twice."""
        index, places, used = self.loop.index, self.places, set()
        made: list[Bind] = []
        for bind in block.binds:
            op = bind.op
            if start is not None and start in bind.vars:
                continue
            reads = [a for a in atoms_of(op) if a in places]
            inner = {v for region in blocks_of(op) for v in free_vars(region) if v in places}
            if not reads and not inner:
                made.append(bind)
                continue
            if len(reads) + len(inner) > 1 or used & {*reads, *inner}:
                return None
            used |= {*reads, *inner}
            if type(op) is Prim and op.name in ("add-at", "update") and reads == [op.args[0]]:
                base, *subs, x = op.args
                at = tuple(self.affine(s) for s in subs)
                fresh = all(any(self.differ(s, t) for s, t in zip(at, other)) for other in self.written)
                self.written.append(at)
                new = self.place(bind.vars[0])
                store = Prim("update" if fresh else op.name, (places[base], index, *subs, x))
                made.append(Bind((new,), store, bind.span))
            elif type(op) is If and inner:
                regions = [self.binds(region) for region in blocks_of(op)]
                if None in regions:
                    return None
                vars = []
                for k, v in enumerate(bind.vars):
                    ends = [region.results[k] in places for region in blocks_of(op)]
                    if any(ends) and not all(ends):
                        return None
                    vars.append(self.place(v) if all(ends) else v)
                branches = [
                    Block(tuple(b), tuple(places.get(r, r) if type(r) is Var else r for r in region.results))
                    for b, region in zip(regions, blocks_of(op))
                ]
                made.append(Bind(tuple(vars), If(op.cond, *branches), bind.span))
            else:
                return None
        return made

    def place(self, v: Var) -> Var:
        self.places[v] = Var(v.name, self.old.vars[self.k].type, v.span, v.given)
        return self.places[v]

    def affine(self, a: Atom) -> Affine:
        if type(a) is Const:
            return a.value, {}
        op = self.integers.get(a)
        if op is not None and op.name in ("+", "-"):
            return affine_add(*map(self.affine, op.args), 1 if op.name == "+" else -1)
        return 0, {a: 1}

    @staticmethod
    def differ(a: Affine, b: Affine) -> bool:
        constant, terms = affine_add(a, b, -1)
        return constant != 0 and not terms


def inner_binds(bind: Bind):
    for region in blocks_of(bind.op):
        yield from all_binds(region)
