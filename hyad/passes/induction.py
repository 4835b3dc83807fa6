"""Induction variables: an integer that a loop takes on by the same step each time is a multiple of its index."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import INT, Atom, Bind, Block, Const, Loop, Program, Var, all_binds, given, with_body
from ..program.affine import Affine, affine_add, affine_in, with_factors
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.rebuild import Rebuild
from .unchanged import inner_of, integers_of


def induction(program: Program) -> Program:
    """Writes an integer of a loop in its index, where each iteration adds the same to it.

    ``(ifold (fn [#(v k) i] #((f v k) (- k 1))) #(v n) n)``  =>  ``(ifold (fn [v i] (f v (- n i))) v n)``.
    Also where no iteration comes below the 0 of ``(max 0 (- k 1))``; and what follows the index one iteration late, if
    it begins as it would have been before the first.
    Design decision: before differentiation too. The lengths of arrays that get shorter are such integers: no check of
    them is left in the loop then, and what the derivative remembers is an array of known size.
    """
    b = Builder()
    b.sizes.update(program.dims)
    made = induction_block(b, program.body)
    return program if made is program.body else dead_code(with_body(program, made))


def induction_block(b: Builder, block: Block) -> Block:
    """``induction`` for a block under construction; itself where it has nothing to do."""
    integers = any(a.type == INT for x in all_binds(block) if type(x.op) is Loop for a in x.op.accs)
    if "induction" in b.off or not integers:
        return block
    pass_ = Induction(b)
    made = pass_.remade(block)
    return made if pass_.found else block


class Induction(Rebuild):
    """``induction`` for a block."""

    found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        b, count, width = self.b, self.atom(op.count), len(op.accs)
        known = self.known(op, count)
        if not known:
            return super().loop(op, bind)
        self.found = True
        b.fired("induction")
        rest = [j for j in range(width) if j not in known]

        def at(index: Affine) -> dict[int, Atom]:
            """These integers when an iteration begins."""
            return {j: b.affine_value(affine_add(others, index, n)) for j, (n, others) in known.items()}

        def body(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            self.here[op.index] = i
            self.here.update((op.accs[j], a) for j, a in at(b.affine(i)).items())
            self.here.update((op.accs[j], a) for j, a in zip(rest, accs))
            results = self.block(op.body)
            return [results[j] for j in rest], results[width:]

        labels = [bind.vars[j].name for j in (*rest, *range(width, len(bind.vars)))]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        inits, names, span = self.atoms([op.inits[j] for j in rest]), [op.accs[j].name for j in rest], b.span
        out = b.loop(count, inits, body, labels, op.index.name, names, given(bind), soft=op.index.soft, snapshots=kept)
        b.span = span
        after = {**at(b.affine(b.trips(count))), **dict(zip(rest, out))}
        return [*(after[j] for j in range(width)), *out[len(rest) :]]

    def known(self, op: Loop, count: Atom) -> dict[int, tuple[int, Affine]]:
        """The integers that a loop goes on with and that are a multiple of its index and something that no iteration
        changes: by place the two."""
        b, found = self.b, {}
        if not any(a.type == INT for a in op.accs):
            return {}
        inner, integers = inner_of(op), integers_of(op.body)
        for j, acc in enumerate(op.accs):
            if acc.type != INT:
                continue
            after, init = op.body.results[j], b.affine(self.atom(op.inits[j]))
            least = integers.get(after)  # type: ignore[call-overload]
            zero = least is not None and least.name == "max" and Const(0, INT) in least.args
            if zero:
                after = least.args[1 - least.args.index(Const(0, INT))]  # type: ignore[union-attr]
            rest, terms = with_factors(affine_in(after, integers), integers)
            if terms == {acc: 1} and rest:
                if not zero or self.never_below(affine_add(init, (rest, {})), rest, count):
                    found[j] = rest, init
                continue
            n = terms.get(op.index, 0)
            others = {v: k for v, k in terms.items() if v is not op.index}
            if zero or not n or not inner.isdisjoint(others):
                continue
            first = affine_add(self.moved((rest, others)), (n, {}), -1)
            if first == init:
                found[j] = n, first
        states = list(zip(map(self.atom, op.inits), op.body.results))
        found.update((j, found[k]) for k in list(found) for j, x in enumerate(states) if x == states[k])
        return found

    def never_below(self, first: Affine, step: int, count: Atom) -> bool:
        """Whether what begins so and goes on by the same step is 0 or more in all iterations."""
        b, index = self.b, Var("i", INT)
        b.counted(index, count)
        with b.region(Scope(index)) as scope:
            scope.vars.add(index)
            scope.facts += b.entered(count)
            return b.nonnegative(affine_add(first, (0, {index: 1}), step))
