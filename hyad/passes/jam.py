"""Unroll and jam: four short sums at once, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    atoms_of,
    defined_in,
    free_vars,
    type_of,
)
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import cost_of
from ..program.rebuild import Rebuild

if TYPE_CHECKING:
    from .nests import Steps

JAMMED = 4  # iterations that run side by side


JAMMED_COST = 8  # in additions: what a step of their sums costs at most

LOOPS = 240  # that a program has at most for that: C compilers make four loops of each to have it in vectors


class Room:
    """How many loops may be added to a program by those that take four iterations at once.

    Design decision: the nests that come first, as far as it goes. A program with more loops than that is a long one of
    small products, where compiling them twice costs more than it gains; so its C grows with the model alone.
    """

    def __init__(self, program: Program) -> None:
        self.left = LOOPS - sum(type(bind.op) is Loop for bind in all_binds(program.body))

    def for_two(self, op: Loop, more: int = 0) -> bool:
        """Whether a nest may be made two, with so many loops more; then it is."""
        loops = 1 + more + sum(type(bind.op) is Loop for bind in all_binds(op.body))
        if loops > self.left:
            return False
        self.left -= loops
        return True


class Jam(Rebuild):
    """Runs four iterations of a loop over short sums at once, so that four chains of additions go side by side.

    ``(build n (fn [i] (ifold (fn [s j] (+ s (f i j))) 0.0 m)))``  =>  in each of ``n // 4`` iterations one inner loop
    with four accumulators, for 4 q, .., 4 q + 3; the iterations that are left follow one by one. Of several inner
    loops each is made one. One that is an iteration longer or shorter each time is, as far as all four of it go; the
    few terms that are left are added to each sum after that. Where it adds to an array it stays one for each.
    Design decision: each sum is still taken in its own order, to the last bit. A processor adds as fast as one sum's
    dependent additions let it, and compilers may not reorder them; independent ones it takes together.
    """

    def __init__(self, builder: Builder, steps: Steps, room: Room) -> None:
        super().__init__(builder)
        self.steps, self.room = steps, room

    def takes(self, bind: Bind) -> bool:
        return self.side_by_side(bind.op)  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is not Loop or not self.side_by_side(op) or not self.room.for_two(op, JAMMED * ragged(op)):
            self.copy(bind)
            return
        b, count = self.b, self.atom(op.count)
        blocks, left, done = in_fours(b, count)
        state, names, accs = self.filling(op, bind)

        def together(q: Atom, *state: Atom):
            first = b.prim("*", Const(JAMMED, INT), q)
            indices = [b.prim("+", first, Const(k, INT)) for k in range(JAMMED)]
            return self.jammed(op, indices, state), ()

        def alone(r: Atom, *state: Atom):
            return self.jammed(op, [b.prim("+", done, r)], state), ()

        if not (type(blocks) is Const and blocks.value == 0):
            state = list(b.loop(blocks, state, together, names, op.index.name, accs))
        if not (type(left) is Const and left.value == 0):
            state = list(b.loop(left, state, alone, names, op.index.name, accs))
        b.span = bind.span
        self.define(bind, state)

    def jammed(self, op: Loop, indices: Sequence[Atom], state: Sequence[Atom]) -> list[Atom]:
        """The iterations ``indices``, each inner loop once for all: the accumulators and arrays after them."""
        b, width = self.b, len(op.accs)
        outer, going = self.here, {a: x for a, x in zip(op.accs, state) if isinstance(a.type, Arr)}
        views = [{**outer, op.index: i} for i in indices]  # what the body's variables are in each of the iterations
        late = carried_in(op)
        for bind in op.body.binds:
            if type(bind.op) is Loop:
                self.inner(op, bind, bind.op, views, going)
            elif adds(bind):
                self.in_turn(bind, views, going)
            elif bind not in late:
                self.each(views, [bind])
        accs, arrays = list(state[:width]), list(state[width:])
        for i, view in zip(indices, views):
            self.here = {**view, **dict(zip(op.accs, accs)), **going}
            results = self.block(Block(tuple(late), op.body.results))
            accs = list(results[:width])
            arrays = [b.update(a, [i], x, a.name) for a, x in zip(arrays, results[width:])]
        self.here = outer
        return [*accs, *arrays]

    def each(self, views: list[dict[Var, Atom]], binds: Sequence[Bind]) -> None:
        for k, view in enumerate(views):
            self.here = view
            self.block(Block(tuple(binds), ()))
            views[k] = self.here

    def inner(self, op: Loop, bind: Bind, inner: Loop, views: list[dict[Var, Atom]], going: dict[Var, Atom]) -> None:
        """An inner loop for all of the iterations, as far as it goes in each of them; what is left for each."""
        if len(views) == 1 or not moving(op, inner):
            self.together(bind, inner, views, going)
        elif any(isinstance(a.type, Arr) for a in inner.accs):
            self.in_turn(bind, views, going)
        else:
            counts = [view.get(inner.count, inner.count) for view in views]  # type: ignore[call-overload]
            least = counts[0]
            for count in counts[1:]:
                least = self.b.prim("min", least, count)
            shared = self.b.trips(least)
            if type(shared) is Var:
                self.b.sizes.add(shared)
            self.together(bind, inner, views, going, shared)
            for view, count in zip(views, counts):
                self.left(bind, inner, view, shared, self.b.prim("-", count, shared))

    def left(self, bind: Bind, inner: Loop, view: dict[Var, Atom], done: Atom, count: Atom) -> None:
        """What is left of the sums of one iteration, written out where it is known how much that is."""
        names, accs = [v.name for v in bind.vars], [a.name for a in inner.accs]

        def body(r: Atom, *state: Atom):
            self.here = {**view, inner.index: self.b.prim("+", done, r), **dict(zip(inner.accs, state))}
            return self.block(inner.body), ()

        state: Sequence[Atom] = [view[v] for v in bind.vars]
        if type(count) is Const:
            for k in range(count.value):
                state = body(Const(k, INT), *state)[0]
        else:
            state = self.b.loop(count, state, body, names, inner.index.name, accs)
        view.update(zip(bind.vars, state))

    def in_turn(self, bind: Bind, views: list[dict[Var, Atom]], going: dict[Var, Atom]) -> None:
        """What one iteration after the other adds to arrays."""
        starts = [a for a in atoms_of(bind.op) if a in going]
        arrays = bind.op.inits if type(bind.op) is Loop else starts  # type: ignore[union-attr]
        now = [going[a] for a in arrays]  # type: ignore[index]
        for view in views:
            self.here = {**view, **dict(zip(arrays, now))}  # type: ignore[arg-type]
            self.line(bind)
            now = [self.here[v] for v in bind.vars]
        going.update(zip(bind.vars, now))

    def together(
        self, bind: Bind, inner: Loop, views: list[dict[Var, Atom]], going: dict[Var, Atom], count: Atom | None = None
    ) -> None:
        """One loop for that of each iteration: own sums and what is stacked, but one array ``going`` through all."""
        b, width = self.b, len(inner.accs)
        arrays = [k for k in range(width) if isinstance(inner.accs[k].type, Arr)]
        sums = [k for k in range(width) if k not in arrays]
        starts = [going[inner.inits[k]] for k in arrays]  # type: ignore[index]

        def body(j: Atom, *accs: Atom):
            following, stacked, now = [], [], list(accs[: len(arrays)])
            for n, view in enumerate(views):
                own = accs[len(arrays) + n * len(sums) :]
                self.here = {**view, inner.index: j, **dict(zip([inner.accs[k] for k in sums], own))}
                self.here.update(zip([inner.accs[k] for k in arrays], now))
                results = self.block(inner.body)
                now = [results[k] for k in arrays]
                following += [results[k] for k in sums]
                stacked += results[width:]
            return [*now, *following], stacked

        inits = []
        for view in views:
            self.here = view
            inits += self.atoms([inner.inits[k] for k in sums])
        self.here = views[0]
        order = [*arrays, *(k for _ in views for k in sums)]
        names = [bind.vars[k].name for k in order] + [v.name for _ in views for v in bind.vars[width:]]
        accs = [inner.accs[k].name for k in order]
        times = self.atom(inner.count) if count is None else count
        made = b.loop(times, [*starts, *inits], body, names, inner.index.name, accs)
        for k, x in zip(arrays, made):
            going[bind.vars[k]] = x
        rest, each = made[len(arrays) :], len(bind.vars) - width
        for n, view in enumerate(views):
            view.update(zip([bind.vars[k] for k in sums], rest[n * len(sums) :]))
            view.update(zip(bind.vars[width:], rest[len(views) * len(sums) + n * each :]))

    def side_by_side(self, op: Loop) -> bool:
        """Whether the body of a loop is scalars and inner loops, cheap sums among them, that the iterations could take
        side by side: they wait for none of what the iteration before gives. An accumulator that is an array is only
        added to, by one inner loop after the other."""
        if type(op.count) is Const and op.count.value < 2 * JAMMED or op.index.soft or has_checks(op.body):
            return False
        if self.steps.few(op.count, 2 * JAMMED - 1):
            return False
        inner = [bind for bind in op.body.binds if type(bind.op) is Loop]
        if (
            not any(isinstance(a.type, Scalar) for bind in inner for a in bind.op.accs)
            or len(op.body.binds) > 8 * JAMMED
        ):
            return False
        late = carried_in(op)
        going: set[Atom] = {a for a in op.accs if isinstance(a.type, Arr)}
        moving = {op.index, *defined_in(op.body)}
        late_vars = {v for bind in late for v in bind.vars} | {a for a in op.accs if isinstance(a.type, Scalar)}
        local: set[Var] = set()  # what inner loops stack
        for bind in op.body.binds:
            loop = bind.op
            if type(loop) is Prim:
                if adds(bind) and loop.args[0] in going and bind.soft and not late_vars.intersection(loop.args):
                    going.discard(loop.args[0])
                    going.add(bind.vars[0])
                    continue
                reads_array = any(a in going or a in local for a in loop.args)
                if not isinstance(bind.vars[0].type, Scalar) or reads_array:
                    return False
                continue
            if type(loop) is not Loop or any(type(x.op) is not Prim for x in loop.body.binds):
                return False
            if loop.count in moving and not self.steady(op, loop):
                return False
            if cost_of(loop.body) > JAMMED_COST:
                return False
            if late_vars & {loop.count, *loop.inits, *free_vars(loop.body)} or going & set(free_vars(loop.body)):
                return False
            for k, (acc, init) in enumerate(zip(loop.accs, loop.inits)):
                if isinstance(acc.type, Arr):
                    if init not in going or not self.in_any_order(op, bind, k):
                        return False
                    going.discard(init)
                    going.add(bind.vars[k])
            for x in loop.body.binds:
                added = x.op.name == "add-at" and isinstance(x.op.args[-1].type, Scalar)  # type: ignore[union-attr]
                if not (added or isinstance(x.vars[0].type, Scalar)):
                    return False
            if not all(isinstance(r.type, Scalar) for r in loop.body.results[len(loop.accs) :]):
                return False
            local.update(bind.vars[len(loop.accs) :])
        width = len(op.accs)
        if not all(isinstance(r.type, Scalar) for r in op.body.results[width:]):
            return False
        return all(isinstance(r.type, Scalar) or r in going for r in op.body.results[:width])

    def steady(self, op: Loop, inner: Loop) -> bool:
        """Whether an inner loop is one iteration longer or shorter each time, down to none as a slice is, and either
        sums or adds to arrays."""
        width, arrays = len(inner.accs), [isinstance(a.type, Arr) for a in inner.accs]
        step = self.steps.step(inner.count, op.index, {op.index, *op.accs, *defined_in(op.body)}, mostly=True)
        return step in (-1, 1) and len(inner.body.results) == width and (all(arrays) or not any(arrays))

    def in_any_order(self, op: Loop, bind: Bind, k: int) -> bool:
        """Whether an inner loop does nothing with its accumulator ``k``, an array, but add to its elements, in sums
        that have no order of the user's, or keep it: one term in each iteration, and all of them in this loop."""
        inner: Loop = bind.op  # type: ignore[assignment]
        stores = additions_of(inner, k)
        if stores is None or all(x.soft for x in stores):
            return stores is not None
        inside = {inner.index, *inner.accs, *defined_in(inner.body)}
        places = [x.op.args[1:-1] for x in stores]  # type: ignore[union-attr]
        moves = len(places) == 1 and any(self.steps.step(s, inner.index, inside) for s in places[0])
        return moves and inner.inits[k] in op.accs and bind.vars[k] in op.body.results


def moving(op: Loop, inner: Loop) -> bool:
    """Whether an iteration of ``op`` finds how often its inner loop runs."""
    return inner.count is op.index or inner.count in defined_in(op.body)


def ragged(op: Loop) -> int:
    """How many inner loops are longer in some iterations than in others."""
    return sum(type(x.op) is Loop and moving(op, x.op) for x in op.body.binds)


def adds(bind: Bind) -> bool:
    """Whether a binding adds a number to an element of an array."""
    op = bind.op
    return type(op) is Prim and op.name == "add-at" and all(isinstance(type_of(a), Scalar) for a in op.args[1:])


def in_fours(b: Builder, count: Atom) -> tuple[Atom, Atom, Atom]:
    """How often four iterations at once fit into a loop, how many are left, and how many are done before those."""
    count = b.trips(count)
    blocks = b.prim("//", count, Const(JAMMED, INT))
    done = b.prim("*", Const(JAMMED, INT), blocks)
    left = b.prim("-", count, done)
    b.sizes.update(v for v in (blocks, left) if type(v) is Var)
    return blocks, left, done


def carried_in(op: Loop) -> list[Bind]:
    """The scalar operations of a loop's body that wait for the scalar accumulators."""
    carried: set[Atom] = {a for a in op.accs if isinstance(a.type, Scalar)}
    found = []
    for bind in op.body.binds:
        if type(bind.op) is Prim and any(a in carried for a in bind.op.args):
            carried.update(bind.vars)
            found.append(bind)
    return found


def additions_of(loop: Loop, k: int) -> list[Bind] | None:
    """What a loop adds to elements of its accumulator ``k``, an array; None if it does anything else with it."""
    at: Atom = loop.accs[k]
    found = []
    for bind in loop.body.binds:
        op = bind.op
        if at in atoms_of(op):
            if type(op) is not Prim or op.name != "add-at" or op.args[0] is not at or at in op.args[1:]:
                return None
            at = bind.vars[0]
            found.append(bind)
    return found if loop.body.results[k] is at else None
