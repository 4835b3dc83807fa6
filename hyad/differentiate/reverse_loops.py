"""Reverse mode of loops: the iterations again, last to first, from the states that the forward loop remembers.

``loop_there`` stacks the accumulators of each iteration, or nothing where the loop is a sum; ``iterations_there`` is
for loops that call functions or whose count shows at their end; ``checkpointed_there`` keeps few states.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import (
    INT,
    ONE,
    ZERO,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Data,
    Loop,
    Prim,
    Scalar,
    Var,
    While,
    integer,
    kinds_of,
    type_atoms,
    type_of,
)
from ..program.accumulators import any_order, picked, starts_with, sum_like
from ..program.journal import KEPT, Kept
from ..program.loops import cost_of, slice_of
from ..program.marks import has_snapshots
from ..program.names import adjoint
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from .adjoints import zero
from .backpropagators import Back, call, forgotten, instantiate, there_and_cut
from .checkpoint import Stack, begun, descended
from .records import COSTLY, costly, cut, elements, laborious, record_of, stepwise, works
from .reverse_branches import inside, remembered
from .rooms import read_by_rows, rooms

if TYPE_CHECKING:
    from .reverse import Reverse


def few(rev: Reverse, op: object) -> bool:
    """Whether few states of a loop are remembered."""
    return has_snapshots(op) and not rev.closures and "checkpoint" not in rev.b.off  # type: ignore[arg-type]


def carries(rev: Reverse, op: Loop) -> bool:
    """Whether the adjoints of an iteration depend on those of the next: the order of the sums, and of a search for
    the largest, does not matter."""
    return not all(
        not rev.is_active(a) or sum_like(op.body, a, r) or picked(op.body, a, r)
        for a, r in zip(op.accs, op.body.results)
    )


def waits(rev: Reverse, op: Loop, moving: Sequence[int]) -> bool:
    """Whether the adjoints of an iteration have to wait for those of the next one, so that the loop goes backwards.
    What a function has remembered does: what was made last is in the cache."""
    if Apply in kinds_of(op.body):
        return True
    changed = [op.accs[k] for k in moving if not sum_like(op.body, op.accs[k], op.body.results[k])]
    if "any-order" in rev.b.off or not any_order(op, changed):
        return True
    rev.b.fired("any-order")
    return False


def heavy(rev: Reverse, op: Loop) -> bool:
    """Whether an iteration of a loop that carries something has loops of costly operations in it: what these give
    is better remembered than computed once more."""
    if not carries(rev, op) or not rev.remembers:
        return False
    ragged = rooms(op)
    if ragged is None or any(map(whole_matrices, ragged)):  # for each iteration of both: longer than they take
        return False
    return bool(stepwise(op)) or any(type(bind.op) is Loop and works(bind) for bind in op.body.binds)


def whole_matrices(op: Loop) -> bool:
    """Whether a loop carries a matrix of which more than elements and rows would be remembered."""
    matrices = {
        a for a, r in zip(op.accs, op.body.results) if isinstance(a.type, Arr) and a.type.rank > 1 and r is not a
    }
    return not matrices <= stepwise(op)


# s = (ifold f z n)  =>  the iterations again, last to first, each there and back
# m = (fold max z v)  =>  m and the index where it stands, -1 for z; back, m̄ is added there
def loop_there(rev: Reverse, op: Loop, bind: Bind) -> Back:
    """A loop whose iterations are known by their accumulators; of a sum, or a search for the largest, none is kept."""
    b, span, width = rev.b, bind.span, len(op.accs)
    stacks, rev.stacks = rev.stacks, {}
    carried = carries(rev, op)
    sums = [sum_like(op.body, a, r) or not rev.is_active(a) for a, r in zip(op.accs, op.body.results)]
    picks = {} if carried else {k: picked(op.body, op.accs[k], op.body.results[k]) for k in range(width) if not sums[k]}
    given = {r: k for k, r in enumerate(op.body.results) if k >= width}  # stacked anyway
    free = few(rev, op) or not rev.remembers
    dear = [] if free else costly(op.body, rev.active)
    if (given or carried) and not free:  # else this loop vanishes, should nothing be remembered
        dear += laborious(op, rev.active, b.again)
        states = {r for r in op.body.results[:width] if isinstance(type_of(r), Arr)} if carried else ()
        dear += [v for v in ends(rev, op.body) if (v in given or v in states) and v not in dear]
    if carried and not free:
        dear += [*elements(op, rev.active), *inside(rev, op.body)]
    kept = [v for v in dear if v not in given]
    rev.say(op.body.binds, kept)
    count, inits = rev.atom(op.count), rev.atoms(op.inits)

    def forward(i: Atom, *accs: Atom):
        rev.here[op.index] = i
        rev.here.update(zip(op.accs, accs))
        results = block_there(rev, op.body)
        places = [pick.place(rev, before, i) for pick, before in zip(picks.values(), accs[width:])]  # type: ignore[union-attr]
        return [*results[:width], *places], [*results[width:], *accs[:width], *(rev.here[v] for v in kept)]

    names = [v.name for v in (*bind.vars, *op.accs, *kept)]
    names[width:width] = ["at"] * len(picks)
    acc_names = [*(a.name for a in op.accs), *["at"] * len(picks)]
    first = {k: starts_with(rev, op, picks[k].value, inits[k], count) for k in picks}  # type: ignore[index]
    starts = [*inits, *(Const(0 if first[k] else -1, INT) for k in picks)]
    room = rev.rooms.get(op)
    out = b.loop(count, starts, forward, names, op.index.name, acc_names, bind.vars[0].given, room=room)
    places = dict(zip(picks, out[width:]))
    out = [*out[:width], *out[width + len(picks) :]]
    rev.define(bind, out)
    at_start = dict(zip(op.accs, out[len(bind.vars) :]))
    saved = dict(zip(kept, out[len(bind.vars) + width :]))
    saved.update((v, stacks.get(bind.vars[given[v]], out[given[v]])) for v in dear if v in given)  # type: ignore[misc]

    def at_place(k: int, x: Atom) -> None:
        """The one iteration that found the largest."""
        rev.here[op.index] = places[k]
        for a in op.accs:
            rev.here[a] = b.get(at_start[a], places[k], hint=a.name, given=True)
            rev.bar.pop(a, None)
        record = {v: b.get(saved[v], places[k], hint=v.name, given=v.given) for v in dear}
        _, inner_back = rev.there(op.body, record, again=True)
        rev.contribute(picks[k].value, x)  # type: ignore[index]
        inner_back()

    def back() -> None:
        apart = carried or not rev.left_out.vars.isdisjoint(bind.vars)  # whose own gradient may be infinite
        scale = None if apart else common_factor(rev, bind, width)
        bars = [rev.take(v) for v in bind.vars]
        if all(x is None for x in bars):
            return
        b.span = span
        if scale is not None:
            factor, k, unscaled = scale
            bars[k] = unscaled
        moving = [k for k in range(width) if rev.is_active(op.accs[k])]
        outside = rev.touched(op)
        if scale is None:
            for v in outside:
                rev.settle(v)
        if len(moving) == 1 and first.get(moving[0]) and scale is None and all(x is None for x in bars[width:]):
            at_place(moving[0], bars[moving[0]])  # type: ignore[arg-type]
            return
        held = {v: rev.scaled.pop(v) for v in outside if v in rev.scaled}
        kept_bars = {v: rev.bar.get(v) for v in outside}
        before = kept_bars if scale is None else dict.fromkeys(outside)
        final = {k: bars[k] if bars[k] is not None else zero(b, inits[k]) for k in moving}
        going = moving if carried else []
        backwards = carried and waits(rev, op, going)
        starts = [
            *(final[k] for k in going),
            *(before[v] if before[v] is not None else zero(b, rev.atom(v), adjoint(v.name)) for v in outside),
        ]

        def backward(k: Atom, *accs: Atom):
            i = b.prim("-", b.prim("-", count, Const(1, INT)), k) if backwards else k
            rev.here[op.index] = i
            for a in op.accs:
                rev.here[a] = b.get(at_start[a], i, hint=a.name, given=True)
            record = {v: b.get(saved[v], i, hint=v.name, given=v.given) for v in dear}
            _, inner_back = rev.there(op.body, record, again=True)
            for a in op.accs:
                rev.bar.pop(a, None)
            rev.bar.update(zip(outside, accs[len(going) :]))
            going_in = dict(zip(going, accs))
            for j in moving:
                if j in picks:
                    hit = b.prim("=", i, places[j])
                    rev.contribute(picks[j].value, b.select(hit, final[j], ZERO))  # type: ignore[index]
                else:
                    rev.contribute(op.body.results[j], going_in.get(j, final[j]))
            for r, y_bar in zip(op.body.results[width:], bars[width:]):
                if y_bar is not None:
                    rev.contribute(r, b.get(y_bar, i))
            inner_back()
            following = []
            for j in going:
                found = rev.bar.get(op.accs[j])
                following.append(found if found is not None else zero(b, inits[j]))
            return [*following, *(rev.bar[v] for v in outside)], ()

        names = [adjoint(op.accs[j].name) for j in going] + [adjoint(v.name) for v in outside]
        out = b.loop(count, starts, backward, names, "k" if backwards else op.index.name, names)
        b.span = span
        for v in outside:
            rev.bar.pop(v, None)
            if scale is not None and kept_bars[v] is not None:
                rev.bar[v] = kept_bars[v]  # type: ignore[assignment]
        rev.scaled.update(held)
        for a in op.accs:
            rev.bar.pop(a, None)
        for v, x in zip(outside, out[len(going) :]):
            if scale is not None:
                rev.contribute_scaled(v, factor, x)
            else:
                rev.bar[v] = x
        result_of = dict(zip(going, out))
        for j in moving:
            x = result_of.get(j, final[j])
            if j in picks:
                x = ZERO if first[j] else b.select(b.prim("<", places[j], Const(0, INT)), x, ZERO)
            if scale is None:
                rev.contribute(op.inits[j], x)
            elif type(op.inits[j]) is Var and rev.is_active(op.inits[j]):
                rev.contribute_scaled(op.inits[j], factor, x)

    return back


def ends(rev: Reverse, block: Block) -> list[Var]:
    """The numbers that branches of a block end in, as ``remembered`` says, those that tell their own slopes where what
    they are made of is dear, and the arrays of such numbers."""
    found = []
    for x in block.binds:
        if type(x.op) is Loop:
            inner = ends(rev, x.op.body) if not x.op.accs else ()
            found += [v for v, r in zip(x.vars, x.op.body.results) if r in inner]
        elif type(x.op) is Prim:
            if tells_its_slope(x.op) and cost_of(slice_of(block, x.vars)) >= COSTLY:
                found.append(x.vars[0])
        else:
            found += [x.vars[i] for i in remembered(rev, x.op, block)]
    return [v for v in found if v in rev.active]


def tells_its_slope(op: Prim) -> bool:
    """Whether the slope of a function of one number is told by its value alone, as that of ``relu``."""
    row = PRIMITIVES.get(op.name)
    if row is None or len(row.params) != 1 or not isinstance(row.partials, tuple) or row.partials[0] is None:
        return False
    names = set(re.findall(r"[a-z]+", row.partials[0]))
    return "y" in names and not names & set(row.params)


def block_there(rev: Reverse, block: Block) -> tuple[Atom, ...]:
    """The forward code alone: its backward code is emitted elsewhere, from what is remembered."""
    results, _ = rev.there(block, apart=True)
    return results


def common_factor(rev: Reverse, bind: Bind, width: int) -> tuple[Atom, int, Atom] | None:
    """Where factors are kept and one result alone of a loop has an adjoint: its factor, which result it is, and
    the adjoint without the factor."""
    if not rev.factor or len(rev.b.scopes) != rev.top:
        return None
    having = [k for k, v in enumerate(bind.vars) if v in rev.bar or v in rev.scaled]
    if len(having) != 1:
        return None
    (k,) = having
    v = bind.vars[k]
    if v in rev.scaled:
        factor, x = rev.scaled.pop(v)
        rev.bar[v] = x
        return factor, k, x
    if k < width and isinstance(v.type, Scalar) and rev.bar[v] is not ONE:
        return rev.bar[v], k, ONE
    return None


# s = (while c f z)  =>  the iterations counted and remembered; then back, last to first
def iterations_there(rev: Reverse, op: Loop | While, bind: Bind) -> Back:
    """A loop that calls functions, or whose count is only known at its end: the forward loop stacks what the
    backward iterations read across the cut."""
    b, span, width = rev.b, bind.span, len(op.accs)
    counted = type(op) is Loop
    moving = [k for k in range(width) if rev.is_active(op.accs[k])]
    outside = rev.touched(op)
    touched = [*outside, *(op.accs[k] for k in moving)]
    inits = rev.atoms(op.inits)
    made: list = []
    tables = stepwise(op) if rev.remembers else frozenset()
    rev.tables |= tables

    def cond(*accs: Atom) -> Atom:
        plain = Rebuild(b)
        plain.here = rev.here
        rev.here.update(zip(op.accs, accs))
        return plain.block(op.cond)[0]  # type: ignore[union-attr]

    def forward(*args: Atom):
        accs = args[1:] if counted else args
        if counted:
            rev.here[op.index] = args[0]  # type: ignore[union-attr]
        rev.here.update(zip(op.accs, accs))
        scope = b.scopes[-1]
        pair = there_and_cut(rev, op.body, touched, lambda v: v in outside)
        if not rev.closures:
            pair.block = read_by_rows(b, scope, pair.block)
        bound = set(scope.vars)
        known = {a: z for a, z, r in zip(accs, inits, pair.results) if r is a}  # what no iteration changes
        if counted:
            known[args[0]] = args[0]
        bound.difference_update({} if rev.closures else known)  # type: ignore[arg-type]
        here = {rev.here[v] for v in tables if v in rev.here}
        fields, pair.block = cut(scope.binds, pair.block, forgotten(rev, pair, scope, bound), True, here)  # type: ignore
        rev.say(scope.binds, fields)
        boxed = [v for v in fields if rev.closures or any(d in scope.vars for d in type_atoms(v.type))]
        box = None
        if boxed or rev.closures:  # arrays whose size is this iteration's own
            box, boxed = record_of(Data(rev.kind), "box", boxed, rev.kind)  # type: ignore[assignment]
            box.data.constructors = (box,)
            fields = [v for v in fields if v not in boxed]
        stacked = [*fields, *([b.make(box, boxed)] if box is not None else [])]
        made[:] = pair, fields, box, boxed, known, args
        return pair.results[:width], [*pair.results[width:], *stacked]

    acc_names = [a.name for a in op.accs]
    if counted:
        names = [v.name for v in bind.vars]
        room, given = rev.rooms.get(op), bind.vars[0].given  # type: ignore[call-overload]
        if room is None and tables and len(op.body.results) == width:
            room = b.trips(rev.atom(op.count))  # type: ignore[union-attr]
        with rev.with_rooms(op):  # type: ignore[arg-type]
            out = b.loop(rev.atom(op.count), inits, forward, names, op.index.name, acc_names, given, room=room)  # type: ignore
        count = rev.atom(op.count)  # type: ignore[union-attr]
    else:
        names = [v.name for k, v in enumerate(bind.vars) if k != width]
        out = b.while_(inits, cond, forward, names, acc_names, bind.vars[0].given)  # type: ignore[arg-type]
        count = out[width]
    rev.define(bind, out)
    pair, fields, box, boxed, known, args = made
    saved = out[len(bind.vars) :]
    pair_vars = [v for k, v in enumerate(bind.vars) if counted or k != width]

    def back() -> None:
        bars = [rev.take(v) for v in pair_vars]
        if all(x is None for x in bars):
            return
        b.span = span
        final = {op.accs[k]: rev.or_zero(bars[k], pair_vars[k]) for k in moving}
        changed = [v for v in outside if v in pair.changed]
        starts = [*final.values(), *(rev.so_far(v) for v in changed)]
        backwards = not counted or waits(rev, op, moving)  # type: ignore[arg-type]

        def backward(k: Atom, *accs: Atom):
            i = b.prim("-", b.prim("-", count, Const(1, INT)), k) if backwards else k
            table: dict[Var, Atom] = dict(known)
            if counted:
                table[args[0]] = i
            table.update((v, b.get(a, i, hint=v.name)) for v, a in zip(fields, saved))
            going = dict(zip(final, accs))
            table.update(zip([pair.starts[v] for v in changed], accs[len(final) :]))
            for j, ct in pair.cotangents.items():
                if j < width:
                    table[ct] = going[op.accs[j]] if op.accs[j] in going else rev.or_zero(bars[j], pair_vars[j])
                elif bars[j] is not None:
                    table[ct] = b.get(bars[j], i)
                else:
                    item = type_of(rev.atom(pair_vars[j])).item()  # type: ignore[union-attr]
                    table[ct] = zero(b, Var(ct.name, item))
            if rev.closures:
                cts = {j: table[ct] for j, ct in pair.cotangents.items()}
                begun = dict(zip(changed, accs[len(final) :]))
                return call(rev, b.get(saved[-1], i), [(box, boxed, pair)], cts, begun, [*final, *changed]), ()

            def emit() -> list[Atom]:
                found = instantiate(b, pair, table)
                return [
                    found[v]
                    if v in found
                    else table[pair.starts[v]]
                    if v in pair.starts
                    else zero(b, inits[op.accs.index(v)])
                    for v in (*final, *changed)
                ]

            if box is None:
                return emit(), ()
            with b.arm(box) as (scope, parts):
                table.update(zip(boxed, parts))
                results = emit()
            types = [type_of(a) for a in accs]  # a box has fields for sizes that are known outside, too
            return b.case(b.get(saved[-1], i), [(box, parts, scope, results)], known=types), ()

        names = [adjoint(v.name) for v in (*final, *changed)]
        after = b.loop(count, starts, backward, names, "k" if backwards else op.index.name, names)  # type: ignore
        b.span = span
        rev.bar.update(zip(changed, after[len(final) :]))
        for k, x in zip(moving, after):
            rev.contribute(op.inits[k], x)

    return back


# s = (ifold f z n :checkpoint m)  =>  its states, last to first, each computed again from one that is kept
def checkpointed_there(rev: Reverse, op: Loop | While, bind: Bind) -> Back:
    """A loop that keeps few of its states. Where its backward code stands in the same place and the count is known,
    the loop itself is the first way to the last state; elsewhere it keeps nothing but what it starts with."""
    b, span, width = rev.b, bind.span, len(op.accs)
    counted = type(op) is Loop
    b.fired("checkpoint")
    snapshots, inits = rev.atom(op.snapshots), rev.atoms(op.inits)  # type: ignore[arg-type]
    count = rev.atom(op.count) if counted else None  # type: ignore[union-attr]
    asked = KEPT.get()
    if asked is not None:
        steps = b.affine(count) if count is not None else None
        asked.append(Kept(span, steps, b.affine(snapshots), counted and not rev.apart))
    if type(count) is Const or counted and type(snapshots) is not Const:  # else the room is known: worth more
        snapshots = b.prim("min", snapshots, count)
    names = [a.name for a in op.accs]
    moving = [k for k in range(width) if rev.is_active(op.accs[k])]
    outside = rev.touched(op)

    def advance(state: Sequence[Atom], at: Atom, steps: Atom) -> Sequence[Atom]:
        plain = Rebuild(b)
        plain.here = rev.here

        def step(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            if counted:
                rev.here[op.index] = b.prim("+", at, i)  # type: ignore[union-attr]
            rev.here.update(zip(op.accs, accs))
            return plain.block(op.body), ()

        return b.loop(steps, state, step, names, op.index.name if counted else "i", names)  # type: ignore[union-attr]

    def down(stack: Stack, target: Atom) -> Stack:
        return descended(b, stack, names, snapshots, target, advance)

    stack = None
    if counted and not rev.apart:
        stack = down(begun(b, inits, names, snapshots), b.prim("-", count, integer(1)))
        at = stack.place(b)
        rev.define(bind, advance(stack.state(b, names), at, b.prim("-", count, at)))
    else:
        rev.copy(bind)
        count = count if counted else rev.here[bind.vars[width]]
    b.span = span

    def back() -> None:
        bars = [rev.take(v) for v in bind.vars[:width]]
        if all(x is None for x in bars):
            return
        b.span = span
        final = [rev.or_zero(bars[k], bind.vars[k]) for k in moving]
        kept = stack if stack is not None else begun(b, inits, names, snapshots)
        depth = len(kept.atoms)

        def backward(k: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            i = b.prim("-", b.prim("-", count, integer(1)), k)
            here = down(Stack.of(accs[:depth]), i)
            if counted:
                rev.here[op.index] = i  # type: ignore[union-attr]
            rev.here.update(zip(op.accs, here.state(b, names)))
            _, inner_back = rev.there(op.body, again=True)
            for a in op.accs:
                rev.bar.pop(a, None)
            rev.bar.update(zip(outside, accs[depth + len(moving) :]))
            for j, x in zip(moving, accs[depth:]):
                rev.contribute(op.body.results[j], x)
            inner_back()
            found = [rev.take(op.accs[j]) for j in moving]
            following = [x if x is not None else zero(b, inits[j]) for j, x in zip(moving, found)]
            return [*here.below(b).atoms, *following, *(rev.bar[v] for v in outside)], ()

        starts = [*kept.atoms, *final, *(rev.so_far(v) for v in outside)]
        hints = [*(f"{name}-kept" for name in names), "places", "top"]
        hints += [adjoint(names[j]) for j in moving] + [adjoint(v.name) for v in outside]
        out = b.loop(count, starts, backward, hints, "k", hints, snapshots=snapshots)
        b.span = span
        rev.bar.update(zip(outside, out[depth + len(moving) :]))
        for j, x in zip(moving, out[depth:]):
            rev.contribute(op.inits[j], x)

    return back
