"""What an iteration ends with, and the next one begins with: computed once, and handed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core import (
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    defined_in,
    free_vars,
    given,
    kinds_of,
    reads,
    same,
    with_blocks,
    with_body,
)
from ..program.alike import structure
from ..program.builder import Builder
from ..program.counts import DEAR, work
from ..program.dead import dead_code, has_checks, tidy
from ..program.loops import CALL, calls_in, slice_of
from ..program.primitives import price_of
from ..program.rebuild import Rebuild


def recurring(program: Program) -> Program:
    """Hands what an iteration computes of its last state on to the next one, which would compute it again.

    ``(ifold (fn [#(x v) s] (let [u (+ v (f x)) y (+ x u)] #(y (+ u (f y))))) #(x0 v0) n)``  =>
    ``(ifold (fn [#(x v a) s] (let [u (+ v a) y (+ x u) b (f y)] #(y (+ u b) b))) #(x0 v0 (f x0)) n)``: a step of the
    velocity Verlet method takes one evaluation of the forces, and not two.
    Design decision: of what takes a loop, or a call of the C library; before the loop it is computed also where that
    has no iterations, and so not where it may fail, or may not end.

    A ``while`` hands on what its condition and its body compute of the same state: ``(while (> (f x) e) (set! x (- x
    (f x))))``  =>  ``(while (> y e) #(x y) = (let [z (- x y)] #(z (f z))))``, with y = (f x) at first.
    """
    if any(type(x.op) is While and in_common(x.op) for x in all_binds(program.body)):
        b = Builder()
        b.sizes.update(program.dims)
        made = tidy(Recurring(b, True).remade(program.body))
    else:
        made = recurring_block(Builder(), program.body, program.dims)
    return program if made is program.body else dead_code(with_body(program, made))


def recurring_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``recurring`` for a block under construction: before it is differentiated, so that a derivative takes as many
    steps as the value."""
    if "recurring" in b.off or not any(type(x.op) is Loop and handed_on(x.op) for x in all_binds(block)):
        return block
    b.sizes.update(sizes)
    return tidy(Recurring(b).remade(block))


class Recurring(Rebuild):
    """``recurring`` for a block; ``whiles``: and for each ``while``, of which a derivative would remember more."""

    def __init__(self, builder: Builder, whiles: bool = False) -> None:
        super().__init__(builder)
        self.whiles = whiles

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        found = in_common(op) if self.whiles else {}
        if not found:
            return super().while_(op, bind)
        self.b.fired("recurring")
        width, values, span = len(op.accs), list(dict.fromkeys(found.values())), self.b.span
        self.here.update(zip(op.accs, self.atoms(op.inits)))
        inits = [*self.atoms(op.inits), *self.block(slice_of(op.body, values))]
        tested, rest = without(op.cond, set(found)), without(op.body, set(values))

        def cond(*accs: Atom) -> Atom:
            self.here.update(zip((*op.accs, *values), accs))
            self.here.update((v, self.here[w]) for v, w in found.items())
            return self.block(tested)[0]

        def body(*accs: Atom):
            self.here.update(zip((*op.accs, *values), accs))
            results = self.block(rest)
            self.here.update(zip(op.accs, results))
            return [*results[:width], *self.block(slice_of(op.body, values))], results[width:]

        names = [v.name for v in (*bind.vars[:width], *values, *bind.vars[width + 1 :])]
        out = self.b.while_(inits, cond, body, names, [v.name for v in (*op.accs, *values)], given(bind))
        self.b.span = span
        return [*out[:width], *out[width + len(values) :]]

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        found = handed_on(op, lambda v: self.room(op, v))
        if not found:
            return super().loop(op, bind)
        self.b.fired("recurring")
        width, values = len(op.accs), list(found)
        self.here.update(zip(op.accs, self.atoms(op.inits)))
        inits = [*self.atoms(op.inits), *self.block(slice_of(op.body, values))]
        rest = [x for x in op.body.binds if found.keys().isdisjoint(x.vars)]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip((*op.accs, *values), accs))
            results = self.block(Block(tuple(rest), op.body.results))
            return [*results[:width], *self.atoms(list(found.values()))], results[width:]

        names = [v.name for v in (*bind.vars[:width], *values, *bind.vars[width:])]
        out = list(
            self.b.loop(
                self.atom(op.count), inits, body, names, op.index.name, [v.name for v in (*op.accs, *values)],
                bind.vars[0].given, soft=op.index.soft,
            )
        )  # fmt: skip
        return [*out[:width], *out[width + len(values) :]]

    def room(self, op: Loop, v: Var) -> bool:
        """Whether a value is a number, or a vector, or takes no more room than a state: a derivative remembers both."""
        if not isinstance(v.type, Arr) or v.type.rank == 1:
            return True
        rooms = [list(self.type(a.type).dims) for a in op.accs if isinstance(a.type, Arr)]  # type: ignore[union-attr]
        return any(self.within(self.type(v.type).dims, each) for each in rooms)  # type: ignore[union-attr]

    def within(self, dims: Sequence[Atom], others: list[Atom]) -> bool:
        """Whether each of some sizes is another one of others."""
        for d in dims:
            k = next((k for k, n in enumerate(others) if self.b.same_int(d, n)), None)
            if k is None:
                return False
            del others[k]
        return True


def handed_on(op: Loop, room: Callable[[Var], bool] = lambda v: True) -> dict[Var, Var]:
    """What an iteration computes of the state that it begins with, and computes again of the one that it ends with:
    the one, and the other. ``room`` says whether a value may be handed on."""
    if not op.accs or op.snapshots is not None or has_checks(op.body):
        return {}
    if not kinds_of(op.body).isdisjoint((Apply, While)):
        return {}
    own = {op.index, *op.accs, *defined_in(op.body)}
    later = {a: r for a, r in zip(op.accs, op.body.results) if type(r) is Var and r in own and r is not op.index}
    if all(a is r for a, r in later.items()):
        return {}
    outlines: dict[tuple, list[Bind]] = {}
    for x in op.body.binds:
        outlines.setdefault(outline(x), []).append(x)
    matched: dict[Bind, Bind] = {}
    for x in op.body.binds:
        needed = [v for v in reads(x) if v in own]
        if not x.vars or not needed or any(v not in later for v in needed):
            continue
        others = [y for y in outlines[outline(x)] if y is not x and y.soft == x.soft]
        key = structure(x.op, True, later) if others else None
        twin = next((y for y in others if structure(y.op, True) == key), None)
        if twin is not None and [v.type for v in x.vars] == [v.type for v in twin.vars]:
            matched[x] = twin
            later.update(zip(x.vars, twin.vars))
    used = {v for x in op.body.binds if x not in matched for v in reads(x)} | {*op.body.results}
    found: dict[Var, Var] = {}
    for x in matched:
        wanted = [v for v in x.vars if v in used]
        if all(worth(op, v, own) and room(v) for v in wanted):
            found.update((v, later[v]) for v in wanted)
    return found


def in_common(op: While) -> dict[Var, Var]:
    """What the condition of a ``while`` computes, and its body computes of the same state: the one, and the other.

    It is what the next round needs of the state that this one ends with, and so may not fail. What stands in a branch
    of the condition is computed once more where the branch is not taken in the end: none that the branch guards.
    """
    if op.snapshots is not None or has_checks(op.cond) or has_checks(op.body):
        return {}
    outlines: dict[tuple, list[Bind]] = {}
    for x in op.body.binds:
        outlines.setdefault(outline(x), []).append(x)
    equal: dict[Var, Var] = {}

    def look(block: Block, guarded: bool) -> None:
        for x in block.binds:
            others = [y for y in outlines.get(outline(x), ()) if y.soft == x.soft and not (guarded and needs_guard(x))]
            key = structure(x.op, True, equal) if others else None
            twin = next((y for y in others if structure(y.op, True) == key), None)
            if twin is not None and [v.type for v in x.vars] == [v.type for v in twin.vars]:
                equal.update(zip(x.vars, twin.vars))
            elif type(x.op) is If:
                for arm in blocks_of(x.op):
                    look(arm, True)

    look(op.cond, False)
    tested, rest = without(op.cond, {*equal}), without(op.body, {*equal.values()})
    wanted = {equal[v] for v in free_vars(tested) if v in equal} | {v for v in free_vars(rest) if v in equal.values()}
    taken = {v for v in wanted if handed(op, v)}
    return {v: w for v, w in equal.items() if w in taken}


def needs_guard(bind: Bind) -> bool:
    """Whether an operation reads elements that a branch may have to say are there: others than each of an axis."""
    if type(bind.op) is Prim:
        return bind.op.name == "get"
    counts = {x.op.index: x.op.count for x in (bind, *inside(bind)) if type(x.op) is Loop}
    gets = (x.op for x in inside(bind) if type(x.op) is Prim and x.op.name == "get")
    return not all(
        s in counts and same(counts[s], d)
        for g in gets
        for s, d in zip(g.args[1:], g.args[0].type.dims)  # type: ignore
    )


def inside(bind: Bind) -> list[Bind]:
    """What stands in the regions of an operation."""
    return [x for block in blocks_of(bind.op) for x in all_binds(block)]


def handed(op: While, v: Var) -> bool:
    """Whether a value is worth a state of its own: dearer than a few operations, of which a compiler finds those that
    are made twice; a vector only where each element takes more than itself."""
    needed = slice_of(op.body, (v,))
    if not kinds_of(needed).isdisjoint((Apply, While)):
        return False
    if not isinstance(v.type, Arr):
        return Loop in kinds_of(needed) or work(needed) >= DEAR
    made = [x for y in needed.binds if type(y.op) is Loop for x in inside(y)]
    dear = any(type(x.op) is Loop or type(x.op) is Prim and price_of(x.op) >= CALL for x in made)
    return dear and not any(d in defined_in(op.body) for d in v.type.dims)


def without(block: Block, left: set[Var]) -> Block:
    """A block without the operations that make some variables, those in its branches too."""
    return Block(
        tuple(
            Bind(x.vars, with_blocks(x.op, [without(y, left) for y in blocks_of(x.op)]), x.span, x.soft)
            if type(x.op) is If
            else x
            for x in block.binds
            if left.isdisjoint(x.vars)
        ),
        block.results,
    )


def outline(x: Bind) -> tuple:
    """What two bindings that do the same have in common at first sight."""
    inside = tuple(y.op.name for y in all_binds(x.op.body) if type(y.op) is Prim) if type(x.op) is Loop else ()
    return type(x.op), x.op.name if type(x.op) is Prim else "", inside


def worth(op: Loop, v: Var, own: set[Var]) -> bool:
    """Whether a value that an iteration computes takes loops or calls, and is of a size that is known before."""
    if isinstance(v.type, Arr) and any(d in own for d in v.type.dims):
        return False
    needed = slice_of(op.body, (v,))
    return any(type(x.op) is Loop for x in needed.binds) or bool(calls_in(needed))
