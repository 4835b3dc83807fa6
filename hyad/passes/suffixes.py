"""Sums to the last element, which an inner loop takes one step shorter in each iteration of an outer one: done once."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    REAL,
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
    count_uses,
    defined_in,
    elem_of,
    free_vars,
    integer,
    kinds_of,
    reads,
)
from ..program.affine import affine_add, affine_in
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import closure, loops_of
from ..program.rebuild import Rebuild, taken
from .running import ELEMENT, Linear, integral
from .unchanged import integers_of


def suffix_sums(program: Program) -> Program:
    """Takes sums from each element to the last one as one running sum, from the last element on.

    ``(build n (fn [i] (f (ifold (fn [s j] (+ s (g (+ i j)))) z (- n i)))))``  =>  ``s``, a loop that stacks the running
    sums of ``(g (- n 1))``, ``(g (- n 2))`` ..; ``(build n (fn [i] (f (get s (- n 1 i)))))``.
    Design decision: the terms have another order than the one that is written, so only sums of differentiation's own
    and those of the user's that nothing but differentiation reads: the sum in a logarithm of which the slope alone is
    wanted. As many terms are added as before, so the bound of the rounding error is the same. What the user gets, or a
    condition looks at, is added up as it is written (``asked_for``). What comes after something that may fail stays.
    """
    if not any(Loop in kinds_of(loop.body) for loop in loops_of(program)):
        return program
    return taken(program, Suffixes(Builder(), program))


class Suffixes(Rebuild):
    """``suffix_sums`` for a program. ``last``: for a loop that has been done once, the running sums, how many there
    are, where they begin, and the index of the loop around."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.program = program
        self.integers = integers_of(program.body)
        self.asked: set[Var] | None = None
        self.last: dict[Bind, tuple[Sequence[Atom], Atom, int, Var]] = {}

    def takes(self, bind: Bind) -> bool:
        return bool(self.shrinking(bind.op))  # type: ignore[arg-type]

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        for x, short in self.shrinking(op):
            self.once(x, x.op, short, op)  # type: ignore[arg-type]
        return super().loop(op, bind)

    def bind(self, bind: Bind) -> None:
        if bind in self.last:
            self.define(bind, self.after(bind, bind.op, *self.last[bind]))  # type: ignore[arg-type]
        else:
            self.copy(bind)

    def shrinking(self, op: Loop) -> list[tuple[Bind, int]]:
        """The loops in the body of another that sum from its index on to the last element, or to the last but some: how
        many fewer."""
        found = []
        if op.snapshots is not None or op.index.soft:
            return []
        for x in op.body.binds:
            if has_checks(Block((x,), ())):
                break  # what comes after it may need it
            inner = x.op
            if type(inner) is not Loop or inner.index.soft or inner.snapshots is not None:
                continue
            count, whole = affine_in(inner.count, self.integers), affine_in(op.count, self.integers)
            short, rest = affine_add(affine_add(whole, count, -1), (0, {op.index: 1}), -1)
            if not rest and short >= 0 and self.sums(x, inner, op, short):
                found.append((x, short))
        return found

    def sums(self, x: Bind, inner: Loop, op: Loop, short: int) -> bool:
        """Whether all that a loop does is to add up what depends on the sum of both indices alone, in sums that may be
        taken in another order."""
        width = len(inner.accs)
        if not width or len(inner.body.results) > width or any(a.type != REAL for a in inner.accs):
            return False
        varying: set[Atom] = {op.index, *op.accs, *defined_in(op.body)}
        if any(z in varying for z in inner.inits):
            return False
        links: set[Bind] = set()
        terms: list[Atom] = []
        for k, (v, acc) in enumerate(zip(x.vars, inner.accs)):
            chain = chain_of(inner.body, acc, inner.body.results[k])
            if chain is None or not (all(link.soft for link, _ in chain) or self.own(v)):
                return False
            links.update(link for link, _ in chain)
            terms += (term for _, term in chain)
        linear = Linear(op, inner, self.integers, False, short)
        linear.varying, linear.inside = varying, {inner.index, *inner.accs, *defined_in(inner.body)}
        if not all(link in links or linear.bind(link) for link in inner.body.binds):
            return False
        return all(linear.kind(t) == ELEMENT for t in terms) and not linear.seeds

    def own(self, v: Var) -> bool:
        """Whether nothing but differentiation reads a number of the user's."""
        if self.asked is None:
            self.asked = asked_for(self.program.body)
        return v not in self.asked

    def once(self, x: Bind, inner: Loop, short: int, around: Loop) -> None:
        """Emits the running sums, the last element's first."""
        b, width = self.b, len(inner.accs)
        b.span, soft, b.soft = x.span, b.soft, x.soft
        b.fired("suffix-sums")
        count = b.trips(b.prim("-", self.atom(around.count), integer(short)))
        last = b.prim("-", count, integer(1))
        self.here[around.index] = integer(0)
        self.block(Block(tuple(closure([y for y in around.body.binds if integral(y)], free_vars(inner.body))), ()))

        def body(q: Atom, *accs: Atom):
            self.here[inner.index] = b.prim("-", last, q)
            self.here.update(zip(inner.accs, accs))
            results = self.block(inner.body)
            return results, results

        names, accs = [v.name for v in x.vars], [a.name for a in inner.accs]
        made = b.loop(count, self.atoms(inner.inits), body, [*names, *names], "q", accs)
        b.soft = soft
        self.last[x] = (made[width:], last, short, around.index)

    def after(self, x: Bind, inner: Loop, sums: Sequence[Atom], last: Atom, short: int, index: Var) -> Sequence[Atom]:
        """What a sum is in one iteration: it starts from what it started from where no terms are left."""
        b, i, names = self.b, self.atom(index), [v.name for v in x.vars]
        if not short:
            return [b.get(s, b.prim("-", last, i), hint=name) for s, name in zip(sums, names)]
        some = b.prim("<=", i, last)
        with b.branch_region(some, True) as scope:
            found = [b.get(s, b.prim("-", last, i), hint=name) for s, name in zip(sums, names)]
        with b.branch_region(some, False) as other:
            pass
        return b.if_(some, (scope, found), (other, list(self.atoms(inner.inits))), names)


def chain_of(block: Block, acc: Var, result: Atom) -> list[tuple[Bind, Atom]] | None:
    """The additions by which a block adds to a number, each with its term; None if it does anything else with it."""
    made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim}
    chain: list[tuple[Bind, Atom]] = []
    while result is not acc:
        x = made.get(result)  # type: ignore[call-overload]
        if x is None or x.op.name not in ("+", "-") or count_uses(block, result) != 1:  # type: ignore
            return None
        first, second = x.op.args  # type: ignore[union-attr]
        if second is acc and x.op.name == "+":  # type: ignore[union-attr]
            first, second = second, first
        chain.append((x, second))
        result = first
    return chain if chain and count_uses(block, acc) == 1 else None


def asked_for(block: Block) -> set[Var]:
    """The numbers that a user sees or that the user's own operations, conditions among them, need for such; others are
    read by differentiation's own operations alone."""
    asked: set[Var] = {r for r in block.results if type(r) is Var}

    def ask(block: Block) -> None:
        for x in reversed(block.binds):
            op = x.op
            if type(op) is Prim:
                (v,) = x.vars
                if x.soft:
                    if v in asked and isinstance(v.type, Arr) and type(op.args[0]) is Var:
                        asked.add(op.args[0])  # the array that is added to
                elif v in asked or elem_of(v) != REAL:
                    asked.update(a for a in op.args if type(a) is Var)
            elif type(op) is Loop:
                asked.update(a for a in atoms_of(op) if type(a) is Var and elem_of(a) != REAL)
                before = -1
                while len(asked) != before:
                    before = len(asked)
                    for k, (v, r) in enumerate(zip(x.vars, op.body.results)):
                        if v in asked or k < len(op.accs) and op.accs[k] in asked:
                            asked.update(a for a in (r, *op.inits[k : k + 1]) if type(a) is Var)
                    ask(op.body)
            elif type(op) is If:
                asked.update(a for a in atoms_of(op) if type(a) is Var)
                for branch in blocks_of(op):
                    asked.update(r for v, r in zip(x.vars, branch.results) if v in asked and type(r) is Var)
                    ask(branch)
            else:
                asked.update(reads(x))
                for y in all_binds(Block((x,), ())):
                    asked.update(y.vars)
                    asked.update(a for a in atoms_of(y.op) if type(a) is Var)

    ask(block)
    return asked
