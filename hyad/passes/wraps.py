"""What is moved along a ring by a number that a loop does not change: no division for each element."""

from __future__ import annotations

from ..core import Atom, Bind, If, Loop, Prim, Program, Var, all_binds, defined_in, integer
from ..program.affine import affine_add
from ..program.builder import Builder
from ..program.rebuild import Rebuild, rebuilt
from .tables import affine_of


def wraps(program: Program) -> Program:
    """Divides once where a loop over a ring of n elements reads or changes those that are some places further on.

    ``(build n (fn [i] (get a (% (- i s) n))))``  =>  ``r = (% (- s) n)`` first, and then ``(get a (+ i r))`` where that
    is below n, ``(get a (- (+ i r) n))`` from there on: two loops, if it is an innermost one in another.
    """
    if not any(type(x.op) is Prim and x.op.name == "%" for x in all_binds(program.body)):
        return program
    pass_ = Wraps(Builder())
    made = rebuilt(program, pass_)
    return made if pass_.found else program


class Wraps(Rebuild):
    """``wraps`` for a program. ``found``: whether there was one; ``known``: what these are in a part of a loop."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False
        self.depth = 0
        self.known: dict[Bind, Atom] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if bind in self.known:
            self.here[bind.vars[0]] = self.known[bind]
        elif type(op) is Prim and op.name == "%":
            made = self.chosen(*self.atoms(op.args))
            self.here[bind.vars[0]] = made if made is not None else self.prim(op, bind.vars[0])
        elif type(op) is Loop:
            turns = self.turns(op)
            if self.depth and len(set(turns.values())) == 1:
                self.split(bind, op, turns)
                return
            self.depth += 1
            self.copy(bind)
            self.depth -= 1
        else:
            self.copy(bind)

    def turns(self, op: Loop) -> dict[Bind, tuple]:
        """The remainders of an innermost loop that are of this kind; none where it is no such loop."""
        binds = list(all_binds(op.body))
        if any(type(x.op) not in (Prim, If) for x in binds) or op.index.soft:
            return {}
        inside = {op.index, *op.accs, *defined_in(op.body)}
        integers = {x.vars[0]: x.op for x in binds if type(x.op) is Prim}
        found: dict[Bind, tuple] = {}
        for x in op.body.binds:
            if type(x.op) is Prim and x.op.name == "%" and x.op.args[1] == op.count:
                affine = affine_of(x.op.args[0], integers, inside, {op.index})
                sign = affine[1].get(op.index, 0) if affine is not None else 0
                if affine is not None and sign in (1, -1) and len(affine[1]) > 1:
                    rest = {v: k for v, k in affine[1].items() if v is not op.index}
                    if self.b.nonnegative(self.b.affine(self.atom(op.count))):
                        found[x] = (affine[0], tuple(rest.items()), sign)
        return found

    def split(self, bind: Bind, op: Loop, turns: dict[Bind, tuple]) -> None:
        """Two loops: up to the last element of the ring, and from its first one on, or the other way round."""
        b, n = self.b, self.atom(op.count)
        ((constant, rest, sign), *_) = turns.values()
        first = b.prim("%", b.affine_value(self.moved((constant, dict(rest)))), n)
        at = b.prim("-", n, first) if sign > 0 else b.prim("min", n, b.prim("+", first, integer(1)))
        left = b.prim("-", n, at)
        b.sizes.update(v for v in (first, at, left) if type(v) is Var)
        self.found = True
        b.fired("wraps")
        state, names, accs = self.filling(op, bind)
        width = len(op.accs)
        for length, start, turned in ((at, integer(0), integer(0)), (left, at, n)):

            def body(i: Atom, *state: Atom, start: Atom = start, turned: Atom = turned):
                index = self.here[op.index] = b.prim("+", start, i)
                self.here.update(zip(op.accs, state))
                place = b.prim("-", b.prim("+", first, index), turned)
                if sign < 0:
                    place = b.prim("+", b.prim("-", first, index), turned)
                self.known = dict.fromkeys(turns, place)
                results = self.block(op.body)
                arrays = [b.update(a, [index], x, a.name) for a, x in zip(state[width:], results[width:])]  # type: ignore
                return [*results[:width], *arrays], ()

            state = list(b.loop(length, state, body, names, op.index.name, accs))
        b.span = bind.span
        self.define(bind, state)

    def chosen(self, x: Atom, n: Atom) -> Atom | None:
        """``(% x n)`` for the index of a loop with n iterations, and what that loop does not change, added or taken."""
        b = self.b
        (constant, terms), size = b.affine(x), b.affine(n)
        for scope in reversed(b.scopes):
            i = scope.index
            if i is None or i not in terms:
                if not scope.vars.isdisjoint(terms):
                    return None
                continue
            rest = (constant, {v: k for v, k in terms.items() if v is not i})
            steady = rest[1] and scope.vars.isdisjoint(rest[1])
            if not steady or terms[i] not in (1, -1) or b.affine(b.counts[i]) != size or not b.nonnegative(size):
                return None
            first = b.prim("%", b.affine_value(rest), n)
            if type(first) is Var:
                b.sizes.add(first)
                b.scopes[-1].facts.append(affine_add(affine_add(size, b.affine(first), -1), (1, {}), -1))
            self.found = True
            b.fired("wraps")
            return b.wrapped(b.prim("+" if terms[i] > 0 else "-", first, i), n)
        return None
