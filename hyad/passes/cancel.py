"""Sums in derivatives that are known: the terms were summed before, and their sum divided by itself is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import ONE, ZERO, Atom, Bind, Block, Const, Loop, Prim, Program, Var, all_binds, count_uses, same
from ..program.builder import Builder
from ..program.rebuild import Rebuild, rebuilt
from .reciprocals import is_reciprocal


def cancel(program: Program) -> Program:
    """Replaces a sum of ``(* t (/ 1 s))``, where ``s`` is the sum of the same ``t``, by 1, and 1 - 1 by 0; a search for
    the largest element, whose adjoint that was to be, is then dropped.

    ``(fold (fn [a t] (- a (* t (/ 1 s)))) 1 ts)``  =>  ``0``, after ``s`` = ``(fold + 0 ts)``.
    Design decision: only with a reciprocal that differentiation introduced, and so in derivatives alone: there ``s`` is
    no 0 and no infinity, or the terms are no numbers either. An empty sum is 0: the loop must be known to run.
    """
    if not any(is_reciprocal(bind.op) for bind in all_binds(program.body)):
        return program
    pass_ = Cancel(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of what a loop stacks."""

    sum: Var
    count: Atom


class Cancel(Rebuild):
    """``makers``: where each variable of the program comes from; ``totals``: of stacked arrays, by their variables."""

    def __init__(self, b: Builder, program: Program) -> None:
        super().__init__(b)
        binds = list(all_binds(program.body))
        self.makers: dict[Atom, Bind] = {v: bind for bind in binds for v in bind.vars}
        self.totals: dict[Atom, Total] = {}
        self.found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width = len(op.accs)
        known = {k: z for k in range(width) if (z := self.known(op, k)) is not None}
        made = super().loop(op, bind) if not known else self.without(op, bind, known)
        for k, acc in enumerate(op.accs):
            last = self.makers.get(op.body.results[k])
            if type(op.inits[k]) is Const and op.inits[k].value == 0 and last is not None and type(last.op) is Prim:
                if last.op.name == "+" and acc in last.op.args:
                    term = last.op.args[last.op.args[0] is acc]
                    for v, r in zip(bind.vars[width:], op.body.results[width:]):
                        if r is term:
                            self.totals[v] = Total(bind.vars[k], op.count)
        return made

    def without(self, op: Loop, bind: Bind, known: dict[int, Atom]) -> Sequence[Atom]:
        """The loop without the accumulators whose last values are known, and what it gave with them."""
        self.found = True
        self.b.fired("cancel")
        kept = [k for k in range(len(bind.vars)) if k not in known]
        accs = [k for k in kept if k < len(op.accs)]
        body = Block(op.body.binds, tuple(op.body.results[k] for k in kept))
        body = Block(tuple(x for x in body.binds if not self.only_for(x, op, known)), body.results)
        fewer = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), body)
        rest = Bind(tuple(bind.vars[k] for k in kept), fewer, bind.span)
        made = dict(zip(kept, super().loop(fewer, rest))) | known
        return [made[k] for k in range(len(bind.vars))]

    @staticmethod
    def only_for(bind: Bind, op: Loop, known: dict[int, Atom]) -> bool:
        return any(op.body.results[k] in bind.vars for k in known)

    def known(self, op: Loop, k: int) -> Atom | None:
        """The last value of an accumulator, where it is known before the loop."""
        acc, after = op.accs[k], op.body.results[k]
        last = self.makers.get(after)
        if last is None or last not in op.body.binds or type(last.op) is not Prim or op.snapshots is not None:
            return None
        args, minus = last.op.args, last.op.name == "-"
        if last.op.name not in ("+", "-") or acc not in args[: 1 if minus else 2]:
            return None
        term = args[args[0] is acc]
        if count_uses(op.body, acc) != 1 or count_uses(op.body, after) != 1:
            return None
        rest = self.without_sum(op, term)
        if rest is None:
            return None
        b = self.b
        if not b.nonnegative(b.last_index(self.atom(op.count))):
            return None
        start, total = self.atom(op.inits[k]), ONE
        for x in (*rest, None) if minus else rest:
            total = b.prim("neg", total) if x is None else b.prim("*", total, self.atom(x))
        opposite = b.prim("neg", total)
        return ZERO if opposite is start or type(start) is Const and opposite == start else b.prim("+", start, total)

    def without_sum(self, op: Loop, term: Atom) -> list[Atom | None] | None:
        """The factors of a product but for an element and the reciprocal of the sum of all such; None is a sign."""
        inside = {v for bind in all_binds(op.body) for v in bind.vars} | {op.index, *op.accs}
        rest: list[Atom | None] = []
        elements: list[Total] = []
        todo: list[Atom] = [term]
        while todo:
            x = todo.pop()
            made = self.makers.get(x)
            name = made.op.name if made is not None and type(made.op) is Prim else ""
            if name == "*" or name == "neg":
                todo += made.op.args  # type: ignore[union-attr]
                rest += [None] * (name == "neg")
            elif name == "get" and len(made.op.args) == 2 and made.op.args[1] is op.index:  # type: ignore[union-attr]
                total = self.totals.get(made.op.args[0])  # type: ignore[union-attr]
                if total is None or elements or not same(total.count, op.count):
                    return None
                elements.append(total)
            elif x in inside:
                return None
            else:
                rest.append(x)
        for x in rest:
            made = self.makers.get(x)
            if elements and made is not None and is_reciprocal(made.op) and made.op.args[1] is elements[0].sum:
                rest.remove(x)
                return rest
        return None
