"""Forward mode: symbolic differentiation of A-normal form with its lets (Lantern Figs. 1, 2 and 4; dF~ Fig. 7).

    d(let y = e in r)  =  let y = e; ẏ = de in dr

Each active binding is followed by the bindings of its tangents, one for each direction that reaches it. Several
directions are carried at once, so that a Jacobian shares one primal; a tangent that is zero has no binding at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from .activity import activity
from .builder import Builder, Rebuild, is_zero, type_of
from .core import Atom, Bind, Block, If, Loop, Prim, Var
from .names import tangent
from .partials import Partials
from .primitives import PRIMITIVES


def jvp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    tangents: dict[Var, dict[int, Atom]],
    known: dict[Var, Atom] | None = None,
) -> tuple[tuple[Atom, ...], list[dict[int, Atom]]]:
    """Emit ``block`` and its tangents into the open scope.

    ``here`` says what the block's parameters are there, ``tangents`` gives theirs by direction; ``known`` are tangents,
    in direction 0, of variables of the block that need not be computed again. Returns the results and, for each, its
    tangents by direction (none: zero).
    """
    pass_ = Forward(b, tangents)
    pass_.known = known or {}
    pass_.here.update(here)
    activity(block, pass_.active)
    results = pass_.block(block)
    return results, [pass_.dots(r) for r in block.results]


class Forward(Rebuild):
    """``dot`` maps an active variable of the old program to its tangents by direction."""

    def __init__(self, builder: Builder, tangents: dict[Var, dict[int, Atom]]) -> None:
        super().__init__(builder)
        self.dot = {v: dict(ts) for v, ts in tangents.items()}
        self.known: dict[Var, Atom] = {}
        self.active = {v: sum(1 << d for d in ts) for v, ts in tangents.items()}

    def dots(self, a: Atom) -> dict[int, Atom]:
        return self.dot.get(a, {}) if type(a) is Var else {}

    def directions(self, v: Atom) -> list[int]:
        bits = self.active.get(v, 0) if type(v) is Var else 0
        return [d for d in range(bits.bit_length()) if bits >> d & 1]

    def tangent_or_zero(self, a: Atom, d: int) -> Atom:
        found = self.dots(a).get(d)
        return found if found is not None else self.b.zeros(type_of(self.atom(a)))

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim:
            self.copy(bind)
            var = bind.vars[0]
            if self.active.get(var):
                dots = self.prim_tangents(op, var)
                if dots:
                    self.dot[var] = dots
        elif bind.vars and all(v in self.known for v in bind.vars):
            self.copy(bind)
            self.take([(v, 0) for v in bind.vars], [self.known[v] for v in bind.vars])
        elif type(op) in (If, Loop) and any(self.active.get(v) for v in bind.vars):
            (self.if_tangents if type(op) is If else self.loop_tangents)(op, bind)
        else:
            self.copy(bind)

    # dy = sum_k (dy/dx_k) dx_k
    def prim_tangents(self, op: Prim, var: Var) -> dict[int, Atom]:
        b, name = self.b, op.name
        args = self.atoms(op.args)
        row = PRIMITIVES.get(name)
        hint, given = tangent(var.name), var.given
        if row is not None:
            if row.jvp is not None or row.vjp is not None:
                from .derive import custom_tangents

                return custom_tangents(b, row, args, self.here[var], [self.dots(a) for a in op.args])
            partials = Partials(b, row, args, self.here[var])
            moving = [(k, self.dots(a)) for k, a in enumerate(op.args) if self.dots(a)]
            out: dict[int, Atom] = {}
            for d in sorted({d for _, dots in moving for d in dots}):
                total = partials.combine([(k, dots[d]) for k, dots in moving if d in dots], hint, given)
                if not is_zero(total):
                    out[d] = total
            return out
        out = {}
        for d in sorted({d for a in op.args for d in self.dots(a)}):
            if name == "get":
                made = b.get(self.dots(op.args[0])[d], *args[1:], hint=hint, given=given)
            elif name == "array":
                made = b.array([self.tangent_or_zero(a, d) for a in op.args], hint, given)
            elif name == "select":
                made = b.select(args[0], self.tangent_or_zero(op.args[1], d), self.tangent_or_zero(op.args[2], d))
            else:  # update and add-at are linear in the array and the element
                base, x = self.tangent_or_zero(op.args[0], d), self.tangent_or_zero(op.args[-1], d)
                made = (b.update if name == "update" else b.add_at)(base, args[1:-1], x, hint)
            if not is_zero(made):
                out[d] = made
        return out

    # d(if c a b) = (if c da db): the branch not taken contributes nothing
    def if_tangents(self, op: If, bind: Bind) -> None:
        b, cond = self.b, self.atom(op.cond)
        wanted = [(v, d) for v in bind.vars for d in self.directions(v)]
        regions = []
        for block, holds in ((op.then, True), (op.orelse, False)):
            with b.region() as scope:
                scope.facts.extend(b.facts_of(cond, holds))
                results = self.block(block)
                of = dict(zip(bind.vars, block.results))
                moved = [self.tangent_or_zero(of[v], d) for v, d in wanted]
            regions.append((scope, [*results, *moved]))
        b.span = bind.span
        names = [v.name for v in bind.vars] + [tangent(v.name) for v, _ in wanted]
        out = b.if_(cond, *regions, names=names, given=bind.vars[0].given)
        self.define(bind, out)
        self.take(wanted, out[len(bind.vars) :])

    # d(ifold f z n): the accumulators and their tangents go round together
    def loop_tangents(self, op: Loop, bind: Bind) -> None:
        b, width = self.b, len(op.accs)
        carried = [(a, d) for a in op.accs for d in self.directions(a)]
        inits = [*self.atoms(op.inits)]
        start = dict(zip(op.accs, op.inits))
        dot_inits = [self.tangent_or_zero(start[a], d) for a, d in carried]
        stacked = [(v, r, d) for v, r in zip(bind.vars[width:], op.body.results[width:]) for d in self.directions(v)]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            for a in op.accs:
                self.dot.pop(a, None)
            self.take(carried, accs[width:])
            results = self.block(op.body)
            after = dict(zip(op.accs, op.body.results))
            moved = [self.tangent_or_zero(after[a], d) for a, d in carried]
            outs = [self.tangent_or_zero(r, d) for _, r, d in stacked]
            return [*results[:width], *moved], [*results[width:], *outs]

        names = [v.name for v in bind.vars[:width]] + [tangent(a.name) for a, _ in carried]
        names += [v.name for v in bind.vars[width:]] + [tangent(v.name) for v, _, _ in stacked]
        acc_names = [a.name for a in op.accs] + [tangent(a.name) for a, _ in carried]
        out = b.loop(
            self.atom(op.count), [*inits, *dot_inits], body, names, op.index.name, acc_names, bind.vars[0].given
        )
        b.span = bind.span
        finals, rest = out[:width], out[width:]
        dots, rest = rest[: len(carried)], rest[len(carried) :]
        outs, dot_outs = rest[: len(bind.vars) - width], rest[len(bind.vars) - width :]
        self.define(bind, (*finals, *outs))
        final_of = dict(zip(op.accs, bind.vars))
        self.take([(final_of[a], d) for a, d in carried], dots)
        self.take([(v, d) for v, _, d in stacked], dot_outs)

    def take(self, wanted: Sequence[tuple[Var, int]], atoms: Sequence[Atom]) -> None:
        for (v, d), a in zip(wanted, atoms):
            self.dot.setdefault(v, {})[d] = a
