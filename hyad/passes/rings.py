"""Adjoints of stencils on rings: each element takes what its neighbours would add to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    reads,
    same,
    type_of,
)
from ..program.affine import Affine, affine_add
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks
from ..program.loops import loops_of, slice_of
from ..program.rebuild import Rebuild, rebuilt
from .shifts import CHEAP
from .spread import work
from .tables import affine_of, sums_in

CHANGES = ("update", "add-at", "zeros", "undef")
#: How often the pass looks again: it takes one array from a nest at a time.
ROUNDS = 4


def rings(program: Program) -> Program:
    """Turns a loop's additions to neighbours on a ring into one sum for each element (a gather in place of a scatter).

    ``(ifold (fn [a i] (add-at (add-at a i (f i)) (% (+ i 1) n) (g i))) z n)``  =>
    ``(build n (fn [i] (+ (get z i) (f i) (g (% (- i 1) n)))))``; rows that are added to rows likewise, as where
    ``np.roll`` goes along the first axis.

    Design decision: early, so that the adjoint is an array that is made element by element, as the stencil's is, and
    goes where it is read with what else is made there. A number that costs more than to be read is stored first. The
    terms of an element are those that it got, in another order: additions are differentiation's own (``Bind.soft``).
    """
    turned = (x.op.name == "%" or x.op.name == "select" and x.vars[0].type == INT for x in prims(program.body))
    if not any(turned) or not any(any(isinstance(a.type, Arr) for a in loop.accs) for loop in loops_of(program)):
        return program
    for _ in range(ROUNDS):
        pass_ = Rings(Builder(), program)
        made = rebuilt(program, pass_)
        if not pass_.found:
            break
        program = dead_code(made)
    return program


def prims(block: Block) -> list[Bind]:
    return [x for x in all_binds(block) if type(x.op) is Prim]


@dataclass
class Nest:
    """The loops through which an array goes, the outermost first, each over one of its first dimensions, and which
    accumulator it is there; what is added to it in an iteration: how far on on the rings, and the number, or the row
    where the array has more dimensions."""

    loops: list[Loop]
    places: list[int]
    added: list[tuple[Bind, tuple[int, ...], Atom]]


class Rings(Rebuild):
    """``rings`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        self.sums = sums_in(program.body)
        self.made = {v: x.op for x in prims(program.body) for v in x.vars}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        nest = self.nest_of(op) if type(op) is Loop else None
        if nest is None:
            self.copy(bind)
            return
        self.found = True
        k = nest.places[0]
        values = dict.fromkeys(a for _, _, a in nest.added if type(a) is Var)
        kept = [a for a in values if self.dear(nest, a)]
        bind, arrays = storing(bind, nest.loops, kept)
        self.copy(bind)  # of which is dropped what nothing reads any more
        stored = dict(zip(kept, self.atoms(arrays)))
        self.here[bind.vars[k]] = self.taken(nest, self.atom(op.inits[k]), bind.vars[k].name, stored)  # type: ignore

    # ------------------------------------------------------------------------------------------ which

    def nest_of(self, op: Loop) -> Nest | None:
        """The first array that goes through a loop of which each element gets as many terms."""
        if op.index.soft or op.snapshots is not None or has_checks(op.body):
            return None
        found = (self.nest(op, k) for k, a in enumerate(op.accs) if isinstance(a.type, Arr))
        return next((nest for nest in found if nest is not None), None)

    def nest(self, op: Loop, k: int) -> Nest | None:
        dims = op.accs[k].type.dims  # type: ignore[union-attr]
        loops, places = [op], [k]
        while True:
            op, k, depth = loops[-1], places[-1], len(loops)
            acc, result = op.accs[k], op.body.results[k]
            if depth > len(dims) or not same(op.count, dims[depth - 1]) or op.body.results.count(result) > 1:
                return None
            inner = next((x for x in op.body.binds if type(x.op) is Loop and result in x.vars), None)
            if inner is None:
                break
            at = inner.vars.index(result)  # type: ignore[arg-type]
            if at >= len(inner.op.accs) or inner.op.inits[at] is not acc or uses_of(op.body, acc) != 1:  # type: ignore
                return None
            if uses_of(op.body, result) or inner.op.index.soft or inner.op.snapshots is not None:  # type: ignore
                return None
            loops.append(inner.op)  # type: ignore[arg-type]
            places.append(at)
        nest = Nest(loops, places, [])
        return nest if self.additions(nest) else None

    def additions(self, nest: Nest) -> bool:
        """Finds what the innermost loop adds to its array, if that is all that it does with it."""
        op, k = nest.loops[-1], nest.places[-1]
        makers = {x.vars[0]: x for x in op.body.binds if type(x.op) is Prim}
        at: Atom = op.body.results[k]
        while at is not op.accs[k]:
            x = makers.get(at)  # type: ignore[call-overload]
            if x is None or x.op.name != "add-at" or not x.soft or len(x.op.args) != len(nest.loops) + 2:
                return False
            if uses_of(op.body, at) != (at not in op.body.results):
                return False
            distances = tuple(self.distance(a, loop) for a, loop in zip(x.op.args[1:-1], nest.loops))
            if None in distances:
                return False
            nest.added.insert(0, (x, distances, x.op.args[-1]))  # type: ignore[arg-type]
            at = x.op.args[0]
        return uses_of(op.body, op.accs[k]) == 1 and any(any(d) for _, d, _ in nest.added)

    def distance(self, a: Atom, loop: Loop) -> int | None:
        """How far a subscript is from a loop's index, on the ring of as many elements as it has iterations."""
        op = self.made.get(a)  # type: ignore[call-overload]
        if op is not None and op.name == "%":
            a, size = op.args
            return self.gap(a, loop) if same(size, loop.count) else None
        if op is None or op.name != "select":
            gap = self.gap(a, loop)
            return gap if gap == 0 else None
        gaps = [self.affine(x, loop) for x in op.args[1:]]
        if None in gaps:
            return None
        turn = affine_add(gaps[0], gaps[1], -1)  # type: ignore[arg-type]
        size = self.affine(loop.count)
        if size is None or turn not in (size, affine_add((0, {}), size, -1)):
            return None
        one = next((g for g in gaps if g[1] == {loop.index: 1}), None)  # type: ignore[index]
        return None if one is None else one[0]

    def gap(self, a: Atom, loop: Loop) -> int | None:
        found = self.affine(a, loop)
        return found[0] if found is not None and found[1] == {loop.index: 1} else None

    def affine(self, a: Atom, loop: Loop | None = None) -> Affine | None:
        return affine_of(a, self.sums, set(self.sums), {loop.index} if loop is not None else set())

    def dear(self, nest: Nest, a: Var) -> bool:
        """Whether a number is more than a few operations on what the loops do not make."""
        inside = {v for op in nest.loops for v in op.accs}
        inside.update(v for op in nest.loops for x in op.body.binds if type(x.op) is not Prim for v in x.vars)
        binds = self.needed(nest, a).binds
        if a in inside or any(v in inside for x in binds for v in reads(x)):
            return True
        return any(x.op.name in CHANGES for x in binds) or sum(work(x.op) for x in binds) > CHEAP  # type: ignore

    def needed(self, nest: Nest, a: Var) -> Block:
        """The single operations of the loops that make a number."""
        return slice_of(Block(tuple(x for op in nest.loops for x in op.body.binds if type(x.op) is Prim), ()), [a])

    # ----------------------------------------------------------------------------------------- how

    def taken(self, nest: Nest, array: Atom, name: str, stored: dict[Var, Atom]) -> Atom:
        """The array after all additions, element by element."""
        b, sizes = self.b, [self.atom(op.count) for op in nest.loops]
        dims = type_of(array).dims  # type: ignore[union-attr]

        def value(a: Atom, at: Sequence[Atom]) -> Atom:
            if type(a) is not Var:
                return a
            if a in stored:
                return b.get(stored[a], *at)
            around = dict(self.here)
            self.here.update(zip([op.index for op in nest.loops], at))
            (made,) = self.block(self.needed(nest, a))
            self.here = around
            return made

        def element(at: tuple[Atom, ...]) -> Atom:
            terms = []
            for x, distances, a in nest.added:
                b.span = x.span
                terms.append((x, value(a, [ring(b, i, d, n) for i, d, n in zip(at, distances, sizes)])))
            return along(at, terms)

        def along(at: tuple[Atom, ...], terms: Sequence[tuple[Bind, Atom]]) -> Atom:
            """The sum of an element of the array and of those of some rows."""
            if len(at) < len(dims):
                return b.build(dims[len(at)], lambda i: along((*at, i), terms), name)
            total = b.get(array, *at)
            for x, term in terms:
                b.span = x.span
                row = b.get(term, *at[len(sizes) :])
                soft, b.soft = b.soft, True
                total = b.prim("+", total, row)
                b.soft = soft
            return total

        def build(at: tuple[Atom, ...] = ()) -> Atom:
            return element(at) if len(at) == len(sizes) else b.build(sizes[len(at)], lambda i: build((*at, i)), name)

        return build()


def storing(bind: Bind, loops: Sequence[Loop], values: Sequence[Var]) -> tuple[Bind, list[Var]]:
    """Loops around one another that stack some numbers of the innermost one as well, and where."""
    if not values:
        return bind, []
    op, stacked = loops[0], list(values)
    binds = op.body.binds
    if len(loops) > 1:
        inner = next(x for x in binds if x.op is loops[1])
        made, stacked = storing(inner, loops[1:], values)
        binds = tuple(made if x is inner else x for x in binds)
    types = (v.type.dims if isinstance(v.type, Arr) else () for v in stacked)
    arrays = [Var(v.name, Arr(REAL, (op.count, *dims)), v.span) for v, dims in zip(stacked, types)]
    body = Block(binds, (*op.body.results, *stacked))
    return Bind((*bind.vars, *arrays), Loop(op.count, op.index, op.inits, op.accs, body), bind.span), arrays


def ring(b: Builder, i: Atom, distance: int, n: Atom) -> Atom:
    """The element so far before ``i`` on a ring of ``n``."""
    return b.prim("%", b.prim("-", i, Const(distance, INT)), n) if distance else i


def uses_of(block: Block, a: Atom) -> int:
    """How many of the bindings of a block, their regions included, read a variable."""
    return sum(a in reads(x) for x in block.binds)
