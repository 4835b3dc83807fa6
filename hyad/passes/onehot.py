"""A loop that does something at one index only becomes that one iteration (dF~ Fig. 8); also under a condition."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..core import (
    INT,
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    binders_of,
    defined_in,
    is_zero,
    kinds_of,
    reads,
    type_of,
)
from ..program.affine import Affine, affine_add, affine_in, affine_key, negated, with_factors
from ..program.bounds import Scope
from ..program.builder import Builder, put_to_zeros
from ..program.dead import tidy
from ..program.loops import loops_of, slice_of
from ..program.rebuild import Rebuild

Branch = tuple[Scope, Sequence[Atom]]


class OneHot(Rebuild):
    """A loop that does something at one index only becomes that one iteration (dF~ Fig. 8, loop normalisation).

    ``(ifold (fn [s i] (+ s (if (= i j) (f i) 0))) z n)``  =>  ``(if (< -1 j n) (+ z (f j)) z)``.
    Design decision: found by supposing, not by matching: the body is built once with all its tests ``i = e`` failing;
    if it then leaves every accumulator as it was, the loop is its iterations at the solutions ``e``, which must be
    provably different from one another.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.trying = False  # in a trial the loops inside stay loops: each would be tried again at every level

    def bind(self, bind: Bind) -> None:
        op = bind.op
        wanted = type(op) is Loop and bind.vars and not self.trying  # one without results is there for its checks
        if wanted and self.normalise(op, bind):  # type: ignore[arg-type]
            return
        self.copy(bind)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        """A build of what has become zeros is zeros: what a loop does at other indices, say, seen through an array."""
        made = self.spread(op, bind)
        made = super().loop(op, bind) if made is None else made
        if all(map(is_zero, op.body.results)):
            return made
        last = self.b.scopes[-1].binds[-1] if made and self.b.scopes[-1].binds else None
        own = last is not None and last.vars == tuple(made) and type(last.op) is Loop and not last.op.accs
        if own and all(map(is_zero, last.op.body.results)):  # type: ignore[union-attr]
            return [self.b.zeros(type_of(a)) for a in made]  # type: ignore[arg-type]
        return made

    def spread(self, op: Loop, bind: Bind) -> Sequence[Atom] | None:
        """A loop that adds once to each element of an array that has one other than zero, as a build of sums."""
        b, count = self.b, self.atom(op.count)
        init = put_to_zeros(b.definitions, self.atom(op.inits[0])) if len(op.inits) == 1 == len(bind.vars) else None
        if init is None or type_of(init.args[-1]) != REAL or type_of(init.args[0]).rank != 1:  # type: ignore[union-attr]
            return None
        (acc,) = op.accs
        adds = [x for x in all_binds(op.body) if acc in reads(x)]
        last = adds[0].op if len(adds) == 1 and adds[0].vars == op.body.results else None
        if type(last) is not Prim or last.name != "add-at" or last.args[:2] != (acc, op.index):
            return None
        if not b.same_int(count, type_of(init.args[0]).dims[0]):  # type: ignore[union-attr]
            return None
        _, place, value = init.args

        def element(i: Atom) -> Atom:
            self.here[op.index] = i
            for x in op.body.binds:
                if x is not adds[0]:
                    self.line(x)
            there = b.select(b.prim("=", i, place), value, Const(0.0, REAL, soft=True))
            return b.add(there, self.atom(last.args[-1]))

        return [b.build(count, element, bind.vars[0].name, index_name=op.index.name)]

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
        b = self.b
        outer, self.trying = self.trying, True
        b.counted(index, count)
        accs = tuple(Var(a.name, type_of(z), a.span) for a, z in zip(op.accs, inits))
        saved, b.assumed = b.assumed, {**b.assumed, **assumed}
        scope = Scope()  # no loop's body: nothing is hoisted out of a trial
        try:
            with b.region(scope):
                scope.vars.update((index, *accs))
                scope.facts.append(b.last_index(count))
                self.here[op.index] = index
                self.here.update(zip(op.accs, accs))
                results = self.block(op.body)
        finally:
            b.assumed, self.trying = saved, outer
        return scope.binds, results, accs

    def solutions(self, op: Loop, index: Var, count: Atom, inits: Sequence[Atom]) -> list[tuple[Affine, Affine]]:
        """The equations ``i = e`` that the body tests, and their solutions, which are free of the body."""
        if not self.may_be_one(op):
            return []
        made, _, _ = self.trial(op, index, count, inits, {})
        binds = list(all_binds(Block(tuple(made), ())))
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

    def may_be_one(self, op: Loop) -> bool:
        """Whether it is worth a trial: an iteration asks what is equal, or reads zeros but for one element."""
        prims = [x.op for x in all_binds(op.body) if type(x.op) is Prim]
        made = self.b.definitions
        return any(p.name == "=" or p.name == "get" and put_to_zeros(made, self.atom(p.args[0])) for p in prims)

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
        with b.branch_region(runs, True) as scope:
            results = self.iteration(op, at, state)
        with b.region() as otherwise:
            pass
        return self.choice(runs, (scope, results), (otherwise, state), [v.name for v in bind.vars])

    def choice(self, cond: Atom, then: Branch, orelse: Branch, names: Sequence[str]) -> list[Atom]:
        """What either of two branches gives."""
        return list(self.b.if_(cond, then, orelse, names))

    def iteration(self, op: Loop, at: Atom, state: Sequence[Atom]) -> list[Atom]:
        width = len(op.accs)
        self.here[op.index] = at
        self.here.update(zip(op.accs, state))
        results = self.block(op.body)
        stacked = [self.b.update(a, [at], x, a.name) for a, x in zip(state[width:], results[width:])]
        return [*results[:width], *stacked]


class Unswitch(OneHot):
    """Loop unswitching: the loops of an iteration that are one iteration each unless a test of its index holds, are
    loops under that test alone.

    ``(ifold (fn [a i] (ifold (fn [a k] (f a i k (- (d i j) (d k j)))) a n)) a n)``, where ``d`` is 1 where the two are
    equal, else 0, and ``f`` adds multiples of the last number to ``a``  =>  the loop over ``k`` where ``i`` is ``j``,
    and for all other ``i`` its iteration ``j``: a tangent of one of many bodies is 0 for all pairs but its own.
    Design decision: supposed as in ``OneHot``, for an iteration as a whole, in which arrays that are zeros but for one
    element are handed on; elements of others that are made in it are made where they are read. After ``collect``, to
    which the rows of a dense Hessian are sums of products.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.builds: dict[Var, tuple[Loop, Atom, dict[Var, Atom]]] = {}

    def bind(self, bind: Bind) -> None:
        if not self.b.assumed:
            self.copy(bind)
            return
        op = bind.op
        if type(op) is Loop and not op.accs and all(type(x.op) is Prim for x in op.body.binds):
            here = dict(self.here)
            self.builds.update((v, (op, r, here)) for v, r in zip(bind.vars, op.body.results))
        super().bind(bind)

    def prim(self, op: Prim, var: Var) -> Atom:
        if not self.b.assumed or op.name != "get" or op.args[0] not in self.builds:
            return super().prim(op, var)
        loop, result, here = self.builds[op.args[0]]  # type: ignore[index]
        around, (at, *rest) = self.here, self.atoms(op.args[1:])
        self.here = {**here, loop.index: at}
        for x in slice_of(loop.body, [result]).binds:
            self.line(x)
        made = self.atom(result)
        self.here = around
        return self.b.get(made, *rest) if rest else made

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        made = None if self.b.assumed else self.unswitched(op, bind)
        return super().loop(op, bind) if made is None else made

    def may_be_one(self, op: Loop) -> bool:
        return True  # what it reads may be zeros but for one element

    def unswitched(self, op: Loop, bind: Bind) -> Sequence[Atom] | None:
        """A loop whose iterations have loops only if a test of the index holds; None where that is not so."""
        test = own_test(op) if Loop in kinds_of(op.body) else None
        if test is None:
            return None
        b, width, alone = self.b, len(op.accs), False

        def body(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            nonlocal alone
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            here, (x, y) = dict(self.here), self.atoms(test.args)
            cond = b.prim("=", x, y)
            with b.branch_region(cond, False) as otherwise:
                equation = affine_add(b.affine(x), b.affine(y), -1)
                saved, b.assumed = b.assumed, {**b.assumed, affine_key(equation): False}
                others = self.block(op.body)
                b.assumed = saved
            self.here = here
            alone = kinds_of(tidy(b.close(otherwise, others))).isdisjoint((Loop, While))
            if not alone:
                return others[:width], others[width:]
            with b.branch_region(cond, True) as scope:
                whole = self.block(op.body)
            results = b.if_(cond, (scope, whole), (otherwise, others), [v.name for v in bind.vars])
            return results[:width], results[width:]

        here = dict(self.here)
        with b.region() as scope:
            made = self.loop_like(op, bind, body)
        self.here = here
        if not alone:
            return None
        b.fired("unswitch")
        around = b.scopes[-1]
        around.binds += scope.binds
        around.vars |= scope.vars
        around.shared.update(scope.shared)
        return made

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        cond = self.atom(op.cond)
        if not self.b.assumed or type(cond) is Const or cond in self.holds:
            return super().if_(op, bind)
        then, orelse = (self.branch(cond, block, holds) for block, holds in ((op.then, True), (op.orelse, False)))
        return self.choice(cond, then, orelse, [v.name for v in bind.vars])

    def choice(self, cond: Atom, then: Branch, orelse: Branch, names: Sequence[str]) -> list[Atom]:
        """Where one branch adds a number to an element of an array, which is there in any case, and the other leaves it
        as it is, a number is chosen, and added after them: what is read of it later is seen to be zero elsewhere."""
        b = self.b
        if not b.assumed:
            return super().choice(cond, then, orelse, names)
        sides = [then, orelse]
        results = [list(rs) for _, rs in sides]
        after: dict[int, tuple[Atom, tuple[Atom, ...]]] = {}
        for k, pair in enumerate(zip(*results)):
            for side in (0, 1):
                made, scope = b.definitions.get(pair[side]), sides[side][0]  # type: ignore[arg-type]
                adds = made is not None and made.name == "add-at" and pair[side] in scope.vars
                if adds and made.args[0] is pair[1 - side] and type_of(made.args[-1]) == REAL:  # type: ignore[union-attr]
                    base, *places, value = made.args  # type: ignore[union-attr]
                    if scope.vars.isdisjoint(places) and b.surely_there(type_of(base), places):  # type: ignore[arg-type]
                        after[k] = base, tuple(places)
                        results[side][k], results[1 - side][k] = value, Const(0.0, REAL, soft=True)
                        break
        out = list(b.if_(cond, (then[0], results[0]), (orelse[0], results[1]), names))
        for k, (base, places) in after.items():
            out[k] = b.add_at(base, places, out[k], names[k])
        return out


def may_be_one_hot(program: Program) -> bool:
    """Whether ``OneHot`` may have something to do: a loop asks whether its index is what an iteration does not change,
    or an array is zeros but for one element."""
    made = {x.vars[0]: x.op for x in all_binds(program.body) if type(x.op) is Prim}
    tests = {v for v, op in made.items() if op.name == "="}
    if not tests:
        return False
    loops = loops_of(program)
    few = {v for v in made if put_to_zeros(made, v)}
    if few and any(loop.inits[:1] and loop.inits[0] in few for loop in loops):
        return True
    if few and any(type(x.op) is Prim and x.op.name == "get" and x.op.args[0] in few for x in all_binds(program.body)):
        return True
    integers = {v: op for v, op in made.items() if v.type == INT}
    tests = {v for v in tests if type_of(made[v].args[0]) == INT}
    return any(solvable(loop, tests, integers) for loop in loops)


def solvable(op: Loop, tests: Container[Var], integers: dict[Var, Prim]) -> bool:
    """Whether an iteration of a loop makes one of the ``tests``, of its index and what it does not change."""
    moving: set[Atom] = {op.index, *op.accs}
    for x in all_binds(op.body):
        if not moving.isdisjoint(reads(x)):
            moving.update(x.vars)
        moving.update(binders_of(x.op))
        if x.vars and x.vars[0] in tests:
            a, c = (with_factors(affine_in(v, integers), integers) for v in x.op.args)  # type: ignore[union-attr]
            terms = affine_add(a, c, -1)[1]
            if abs(terms.pop(op.index, 0)) == 1 and moving.isdisjoint(terms):
                return True
    return False


def own_test(op: Loop) -> Prim | None:
    """The equation of a loop's index and something from around it that numbers of an iteration are 0 without."""
    inner = {*op.accs, *defined_in(op.body)}
    made = {x.vars[0]: x.op for x in all_binds(op.body) if type(x.op) is Prim}
    conds = {p.args[0] for p in made.values() if p.name == "select" and is_zero(p.args[2])}
    for v, test in made.items():
        if test.name == "=" and op.index in test.args and inner.isdisjoint(test.args):
            if v in conds or any(c in made and made[c].name == "and" and v in made[c].args for c in conds):
                return test
    return None


def different(solutions: Sequence[tuple[Affine, Affine]]) -> bool:
    """Whether solutions, in order, are provably different from one another."""
    gaps = [affine_add(y, x, -1) for (_, x), (_, y) in zip(solutions, solutions[1:])]
    return all(not terms and constant for constant, terms in gaps)
