"""Sums of products, of which one factor is the same in many: it leaves the sum, and the rest is made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core import REAL, Arr, Atom, Bind, Block, Loop, Prim, Program, Var, all_binds, blocks_of, count_uses, reads
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks
from ..program.loops import loops_of
from ..program.rebuild import Rebuild, rebuilt
from .fission import independent
from .nests import part_of

#: As often may a matrix be seen to be a column times a row since another one is: the adjoints of a chain of products.
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops around one another, and what they compute of numbers in the innermost one: bindings in their order.
    ``needs`` says which of the loops' indices, and what from outside, a number is made of."""

    loops: tuple[Loop, ...]
    binds: tuple[Bind, ...]
    needs: Mapping[Atom, frozenset[Atom]]

    def slice(self, wanted: Sequence[Atom]) -> Block:
        """What computes some numbers."""
        todo, kept = set(wanted), []
        for x in reversed(self.binds):
            if not todo.isdisjoint(x.vars):
                todo.update(reads(x))
                kept.append(x)
        return Block(tuple(kept[::-1]), ())

    def leaves(self, a: Atom) -> list[Atom]:
        """The factors of a number."""
        made = {x.vars[0]: x.op for x in self.binds if type(x.op) is Prim and x.op.name == "*"}
        todo, found = [a], []
        while todo:
            a = todo.pop()
            if a in made:
                todo += made[a].args  # type: ignore[union-attr]
            else:
                found.append(a)
        return found


@dataclass(frozen=True, slots=True)
class Dyad:
    """A matrix whose elements are products, and their factors: those that depend on the row, those on the column."""

    nest: Nest
    factors: tuple[list[Atom], list[Atom]]


@dataclass(frozen=True, slots=True)
class Part:
    """A factor that a dyad's element has: element ``at`` of its column (0) or its row (1)."""

    matrix: Var
    which: int
    at: Atom


@dataclass(frozen=True, slots=True)
class Sum:
    """What a nest adds to one number, or to elements of an array at ``place``: the factors that the loops which are
    summed over change, with what those are made of, and the others."""

    nest: Nest
    place: tuple[Atom, ...]
    inner: list[Atom | Part]
    kept: list[Loop]
    outer: list[Atom | Part]


def factors(program: Program) -> Program:
    """Takes loop-invariant factors out of sums, where the rest is then the same for all of a loop.

    ``m = (build n (fn [k] (build l (fn [j] (* (get u k) (get v j))))))``, ``(ifold (fn [s k] (+ s (* (get w i k) (get m
    k j)))) 0.0 n)``  =>  ``(* (get v j) (ifold (fn [s k] (+ s (* (get w i k) (get u k)))) 0.0 n))``: a sum for each
    ``i``, not for each ``i`` and ``j``. So with what loops around one another add to an array.

    Design decision: sums of differentiation's own (``Bind.soft``, ``add-at``), whose terms have no order. The adjoint
    of ``m`` in ``(dot y (@ m x))`` is such a product, and goes through the products that ``m`` is made of: each was the
    work of a product of matrices, and is that of a matrix with a vector.
    """
    for _ in range(ROUNDS):
        if not any(type(x.op) is Loop for loop in loops_of(program) for x in loop.body.binds):
            break
        pass_ = Factors(Builder(), dyads_in(program))
        if not pass_.wanted(program.body):
            break
        program = dead_code(rebuilt(program, pass_))
    return program


def nest_of(loop: Loop, inner: Callable[[Loop], Bind | None], folds: bool = False) -> Nest | None:
    """The loops around one another from ``loop`` on, of which ``inner`` tells the next one; None where they hold
    anything else but numbers and rows, numbers that loops give among them if ``folds``, or run as often as an index
    says."""
    loops: list[Loop] = []
    binds: list[Bind] = []
    needs: dict[Atom, frozenset[Atom]] = {}
    while True:
        if loop.count in needs or loop.index.soft or loop.snapshots is not None:
            return None
        loops.append(loop)
        needs[loop.index] = frozenset((loop.index,))
        deeper = inner(loop)
        for x in loop.body.binds:
            if x is deeper:
                continue
            if type(x.op) is not Prim and not (folds and type(x.op) is Loop and all(v.type == REAL for v in x.vars)):
                return None
            binds.append(x)
            made_of = frozenset().union(*(needs.get(a, {a}) for a in reads(x)))
            needs.update(dict.fromkeys(x.vars, made_of))
        if deeper is None:
            return Nest(tuple(loops), tuple(binds), needs)
        loop = deeper.op  # type: ignore[assignment]


def dyads_in(program: Program) -> dict[Var, Dyad]:
    """The matrices of a program that are a column times a row."""
    found = {}
    for x in all_binds(program.body):
        if type(x.op) is Loop and len(x.vars) == 1 and not x.op.accs and not has_checks(x.op.body):
            made = dyad(x)
            if made is not None:
                found[x.vars[0]] = made
    return found


def dyad(bind: Bind) -> Dyad | None:
    """The factors of a matrix, if each depends on one of the two indices alone."""

    def inner(loop: Loop) -> Bind | None:
        last = next((x for x in loop.body.binds if x.vars == loop.body.results), None)
        return last if last is not None and type(last.op) is Loop and not last.op.accs else None

    nest = nest_of(bind.op, inner, folds=True)  # type: ignore[arg-type]
    t = bind.vars[0].type
    if nest is None or len(nest.loops) != 2 or not isinstance(t, Arr) or t.rank != 2 or t.elem != REAL:
        return None
    i, j = (loop.index for loop in nest.loops)
    parts: tuple[list[Atom], list[Atom]] = [], []
    for leaf in nest.leaves(nest.loops[1].body.results[0]):
        needs = nest.needs.get(leaf, frozenset())
        if i in needs and j in needs:
            return None
        parts[j in needs].append(leaf)
    moves = any(i in nest.needs.get(a, ()) for a in parts[0])
    return Dyad(nest, parts) if moves and parts[1] else None


class Factors(Rebuild):
    """``factors`` for a program."""

    def __init__(self, builder: Builder, dyads: dict[Var, Dyad]) -> None:
        super().__init__(builder)
        self.dyads = dyads
        self.parts: dict[Var, tuple[Atom, ...]] = {}  # the column and the row of each, made
        self.around: list[Var] = []  # the indices of the loops around

    def bind(self, bind: Bind) -> None:
        chosen = self.chosen(bind)
        if chosen is not None:
            k, found, others = chosen
            with self.b.differentiating():
                self.here[bind.vars[k]] = self.taken_out(found)
            if others:
                self.bind(part_of(bind, others))
            return
        self.copy(bind)
        if bind.vars and bind.vars[0] in self.dyads:
            self.parts[bind.vars[0]] = self.column_and_row(self.dyads[bind.vars[0]])

    def chosen(self, bind: Bind) -> tuple[int, Sum, list[int]] | None:
        """Which result of a loop is a sum that a factor can leave, and the others."""
        op = bind.op
        if type(op) is not Loop or not op.accs or has_checks(op.body):
            return None
        groups = independent(op)[0] if len(bind.vars) > 1 else [[0]]
        for k in range(len(op.accs)):
            if [k] in groups:
                others = [j for j in range(len(bind.vars)) if j != k]
                alone = part_of(bind, [k]) if others else bind
                found = self.sum_of(alone.op) if len(alone.op.accs) == 1 else None  # type: ignore[union-attr, arg-type]
                if found is not None:
                    return k, found, others
        return None

    def wanted(self, block: Block) -> bool:
        """Whether there is such a sum in a block."""
        for x in block.binds:
            if self.chosen(x) is not None:
                return True
            indices = [x.op.index] if type(x.op) is Loop else []
            self.around += indices
            found = any(map(self.wanted, blocks_of(x.op)))
            del self.around[len(self.around) - len(indices) :]
            if found:
                return True
        return False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        self.around.append(op.index)
        out = super().loop(op, bind)
        self.around.pop()
        return out

    def sum_of(self, op: Loop) -> Sum | None:
        """What a loop adds up, if a factor can leave that for less work."""

        def inner(loop: Loop) -> Bind | None:
            last = next((x for x in loop.body.binds if loop.body.results[0] in x.vars), None)
            if last is None or type(last.op) is not Loop or last.op.inits != loop.accs or len(last.vars) != 1:
                return None
            return last if count_uses(loop.body, loop.accs[0]) == 1 else None

        nest = nest_of(op, inner)
        if nest is None or len(op.body.results) != 1:
            return None
        loop = nest.loops[-1]
        acc, (result,) = loop.accs[0], loop.body.results
        last = next((x for x in loop.body.binds if result in x.vars), None)
        if last is None or type(last.op) is not Prim or count_uses(loop.body, acc) != 1:
            return None
        if last.op.name == "+" and last.soft and acc in last.op.args:
            place, value = (), last.op.args[last.op.args[0] is acc]
        elif last.op.name == "add-at" and last.soft and last.op.args[0] is acc:
            place, value = last.op.args[1:-1], last.op.args[-1]
        else:
            return None
        indices = {loop.index: loop for loop in nest.loops}
        if any(a in nest.needs and a not in indices for a in place) or value.type != REAL:  # type: ignore[union-attr]
            return None
        leaves: list[Atom | Part] = []
        for leaf in nest.leaves(value):
            leaves += self.seen_through(nest, leaf)
        summed = indices.keys() - {*place}
        own = [a for a in leaves if not summed.isdisjoint(self.needs(nest, a))]
        other = [a for a in leaves if summed.isdisjoint(self.needs(nest, a))]
        of_own, of_other = (frozenset().union(*(self.needs(nest, a) for a in x)) for x in (own, other))
        fewer = indices.keys() & {*place} - of_own  # type: ignore[operator]
        if not own or not summed or not (fewer & of_other or set(self.around) & of_other - of_own):
            return None
        kept = [loop for loop in nest.loops if loop.index in of_own]
        return Sum(nest, place, own, kept, other)

    def seen_through(self, nest: Nest, leaf: Atom) -> list[Atom | Part]:
        """A factor, or the two of which it is one element of their product."""
        made = next((x.op for x in nest.binds if leaf in x.vars), None)
        if made is None or made.name != "get" or made.args[0] not in self.dyads or len(made.args) != 3:  # type: ignore
            return [leaf]
        return [Part(made.args[0], k, made.args[1 + k]) for k in range(2)]  # type: ignore[union-attr, arg-type]

    @staticmethod
    def needs(nest: Nest, a: Atom | Part) -> frozenset[Atom]:
        at = a.at if isinstance(a, Part) else a
        return nest.needs.get(at, frozenset((at,)))

    def product(self, nest: Nest, leaves: Sequence[Atom | Part]) -> Atom:
        """The product of some factors, where the indices that they need are known."""
        b = self.b
        self.block(nest.slice([a.at if isinstance(a, Part) else a for a in leaves]))
        made = [
            b.get(self.parts[a.matrix][a.which], self.atom(a.at)) if isinstance(a, Part) else self.atom(a)
            for a in leaves
        ]
        total = made[0]
        for a in made[1:]:
            total = b.prim("*", total, a)
        return total

    def column_and_row(self, dyad: Dyad) -> tuple[Atom, ...]:
        """The products of a matrix's factors, those for its rows and those for its columns."""
        made = []
        for loop, leaves in zip(dyad.nest.loops, dyad.factors):

            def element(i: Atom, loop: Loop = loop, leaves: Sequence[Atom] = leaves):
                self.here[loop.index] = i
                return (), [self.product(dyad.nest, leaves)]

            made += self.b.loop(self.atom(loop.count), (), element, ["t"], loop.index.name)
        return tuple(made)

    def taken_out(self, found: Sum) -> Atom:
        """The sums of what is summed over, and what loops add of their products with the rest."""
        b, nest = self.b, found.nest
        free = [loop for loop in found.kept if loop.index in found.place]
        summed = [loop for loop in nest.loops if loop.index not in found.place]
        places = [loop for loop in nest.loops if loop.index in found.place]

        def total(loops: Sequence[Loop], start: Atom) -> Atom:
            if not loops:
                return b.prim("+", start, self.product(nest, found.inner))

            def body(i: Atom, acc: Atom):
                self.here[loops[0].index] = i
                return [total(loops[1:], acc)], ()

            return b.loop(self.atom(loops[0].count), [start], body, ["s"], loops[0].index.name, ["s"])[0]

        def sums(loops: Sequence[Loop]) -> Atom:
            if not loops:
                return total(summed, b.zeros(REAL))

            def body(i: Atom):
                self.here[loops[0].index] = i
                return (), [sums(loops[1:])]

            return b.loop(self.atom(loops[0].count), (), body, ["s"], loops[0].index.name)[0]

        rest = sums(free)

        def added(loops: Sequence[Loop], acc: Atom) -> Atom:
            if not loops:
                at = [self.here[loop.index] for loop in free]
                value = b.get(rest, *at) if at else rest
                value = b.prim("*", self.product(nest, found.outer), value)
                if isinstance(acc.type, Arr):  # type: ignore[union-attr]
                    return b.add_at(acc, self.atoms(found.place), value)
                return b.prim("+", acc, value)

            def body(i: Atom, acc: Atom):
                self.here[loops[0].index] = i
                return [added(loops[1:], acc)], ()

            name = nest.loops[0].accs[0].name
            return b.loop(self.atom(loops[0].count), [acc], body, [name], loops[0].index.name, [name])[0]

        return added(places, self.atom(nest.loops[0].inits[0]))
