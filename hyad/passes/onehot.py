"""One-hot normalisation: a loop that does something at one index only becomes that one iteration (dF~ Fig. 8)."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import INT, Atom, Bind, Const, Loop, Prim, Var, all_binds, is_zero, type_of
from ..program.affine import Affine, affine_add, affine_key, negated
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.rebuild import Rebuild


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
        made = super().loop(op, bind)
        if all(map(is_zero, op.body.results)):
            return made
        last = self.b.scopes[-1].binds[-1] if made and self.b.scopes[-1].binds else None
        own = last is not None and last.vars == tuple(made) and type(last.op) is Loop and not last.op.accs
        if own and all(map(is_zero, last.op.body.results)):  # type: ignore[union-attr]
            return [self.b.zeros(type_of(a)) for a in made]  # type: ignore[arg-type]
        return made

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
        b.counts[index] = count
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
        with b.branch_region(runs, True) as scope:
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
