"""Loops whose arrays do not overlap, though a C compiler cannot see it: they lie in one workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hyad.core import INT, REAL, Arr, Atom, Bind, Const, If, Loop, Prim, Scalar, Var, all_binds, blocks_of, reads
from hyad.passes.eights import WIDE
from hyad.passes.lanes import LANES as NUMBER_OF_LANES
from hyad.passes.strands import STRANDS
from hyad.program.affine import affine_in, never_equal

from .lower import Buffer, Place, Plan
from .vector import KERNELS, WAVES

#: What stands before such a loop.
APART = """\
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* of a loop that waits for itself there are no vectors */
#define HYAD_APART _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define HYAD_APART _Pragma("GCC ivdep") /* the arrays of this loop do not overlap */
#else
#define HYAD_APART
#endif
"""

#: What stands before a short innermost loop that is one vector instruction.
LANES = """\
#if defined(__GNUC__) && !defined(__clang__)
#define HYAD_LANES _Pragma("GCC unroll 1") /* a vector: not to be written out as single numbers */
#else
#define HYAD_LANES
#endif
"""

#: Stands first in a file of which such a loop chooses between numbers.
CHOOSING = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math") /* or gcc branches where a vector would choose */
#endif
"""

#: Stands before a loop over such loops, whose sums begin at zero.
UNKNOWN = """\
#if defined(__GNUC__) && !defined(__clang__)
#define HYAD_UNKNOWN __asm__("" ::: "memory") /* or gcc reads the first sums ahead, and branches again */
#else
#define HYAD_UNKNOWN (void)0
#endif
"""


def in_lanes(op: Loop, math: str = "libm") -> bool:
    """Whether a loop takes iterations of another side by side (``hyad/passes/lanes.py``), strands of a sum
    (``hyad/passes/strands.py``), or calls (``hyad/passes/abreast.py``): gcc writes loops of so few iterations out
    before it looks for vectors, and finds worse ones then."""
    count = op.count.value if isinstance(op.count, Const) else 0
    plain = all(isinstance(inner.op, Prim) for inner in op.body.binds)
    calls = math == "vector" and 0 < count <= 4 * NUMBER_OF_LANES
    across = bool(op.accs) and all(isinstance(r.type, Scalar) for r in op.body.results if isinstance(r, Var))
    return plain and (
        count in (STRANDS, NUMBER_OF_LANES, WIDE)
        and not across
        or calls
        and any(b.op.name in KERNELS for b in op.body.binds)
    )


def chooses(op: Loop) -> bool:
    """Whether a loop in lanes chooses between numbers."""
    return in_lanes(op) and any(b.op.name == "select" for b in op.body.binds)  # type: ignore[union-attr]


def apart(plan: Plan, bind: Bind, op: Loop, swapped: Iterable[Buffer] = ()) -> bool:
    """Whether no iteration of an innermost loop reads or writes what another one writes, and a C compiler might doubt
    it: more than one array of the workspace is there, or of those that have changed places (``swapped``), of which one
    is written; or several rows of one array.

    Design decision: an array is written at one place, which moves with the loop, at the same place of other rows, or
    in rows whose numbers differ by a constant; and it is read there alone, or in such rows.
    """
    found = list(all_binds(op.body))
    inside = {v for b in found for v in b.vars} | set(op.accs)
    moving: set[Atom] = {op.index}
    places: dict[Buffer, set[tuple[Atom, ...]]] = {}
    written: dict[Buffer, set[tuple[Atom, ...]]] = {}

    def touch(array: Atom, subscripts: Sequence[Atom], writes: bool = False) -> None:
        root, subs, _ = plan.resolve(plan.of(array))
        key = tuple(Const(a.value, INT) if isinstance(a, Const) else a for a in (*subs, *subscripts))
        places.setdefault(root, set()).add(key)
        if writes:
            written.setdefault(root, set()).add(key)

    for inner in found:
        prim = inner.op
        if isinstance(prim, If):
            if not all(isinstance(v.type, Scalar) for v in inner.vars):
                return False
            continue
        if not isinstance(prim, Prim):
            return False
        if prim.name in ("update", "add-at"):
            if inner not in plan.in_place or isinstance(prim.args[-1].type, Arr):
                return False
            touch(prim.args[0], prim.args[1:-1], writes=True)
        elif prim.name == "get" and not isinstance(inner.vars[0].type, Arr):
            touch(prim.args[0], prim.args[1:])
        elif isinstance(inner.vars[0].type, Arr) and prim.name != "get":
            return False
        elif prim.name == "+" and len(fixed := [a for a in prim.args if a not in moving]) == 1:
            moving.update(inner.vars if fixed[0] not in inside else ())
    for var, r in zip(bind.vars[len(op.accs) :], op.body.results[len(op.accs) :]):
        if isinstance(r.type, Arr):
            return False
        touch(var, (op.index,), writes=True)
    if plan.swaps[bind] or plan.moves[op.body] or plan.early[op.body]:
        return False

    def beside(one: tuple[Atom, ...], two: tuple[Atom, ...]) -> bool:
        """Whether both places move alike, in one of their subscripts: then only those of one iteration can be one."""
        places = zip(one, two)
        return any(a in moving and affine_in(a, plan.integers) == affine_in(b, plan.integers) for a, b in places)

    for root, changed in written.items():
        if any(not moving & set(key) or any(a in inside and a not in moving for a in key) for key in changed):
            return False
        rows = {
            k: [affine_in(a, plan.integers) if a not in inside and a not in moving else None for a in k]
            for k in places[root]
        }
        if not all(never_equal(rows[one], rows[two]) or beside(one, two) for one in changed for two in rows):
            return False
    swaps = {plan.resolve(Place(buffer))[0] for buffer in swapped}
    shared = [root for root in places if root in swaps or root.kind == "own" and root.slot is not None]
    rows_of_one = any(len(places[root]) > 1 for root in written)
    return rows_of_one or len(shared) > 1 and any(root in written for root in shared)


def serial(op: Loop) -> bool:
    """Whether an iteration takes the larger or smaller of numbers that wait for the iteration before."""
    late: set[Atom] = {a for a in op.accs if a.type == REAL}
    for inner in op.body.binds if late else ():
        if not late.isdisjoint(reads(inner)):
            if isinstance(inner.op, Prim) and inner.op.name in ("max", "min"):
                return True
            late.update(inner.vars)
    return False


def calls_abreast(op: Loop) -> bool:
    """Whether an innermost loop calls functions of ``vector.py``, and none of them waits for the iteration before: one
    number after the other takes these two or three times as long as the C library's."""
    late: set[Atom] = set(op.accs)
    found = False
    for inner in all_binds(op.body):
        if not isinstance(inner.op, (Prim, If)):
            return False
        if not late.isdisjoint(reads(inner)):
            late.update(inner.vars)
        if isinstance(inner.op, Prim) and inner.op.name in KERNELS:
            found = True
            if inner.vars[0] in late:
                return False
    return found


def calls_waves(op: Loop) -> bool:
    """Whether a loop calls functions that are to be watched."""
    return any(isinstance(inner.op, Prim) and inner.op.name in WAVES for inner in all_binds(op.body))


def repeatable(plan: Plan, bind: Bind, op: Loop) -> bool:
    """Whether an innermost loop gives the same when it is run again from its scalar starts: it is scalar operations,
    and writes no memory that it reads."""
    read: set[Buffer] = set()
    written: set[Buffer] = set()
    if plan.swaps[bind]:
        return False
    for block in (op.body, *(b for inner in all_binds(op.body) for b in blocks_of(inner.op))):
        if plan.moves.get(block) or plan.early.get(block):
            return False
    for inner in all_binds(op.body):
        prim = inner.op
        array = any(isinstance(v.type, Arr) for v in inner.vars)
        if isinstance(prim, If):
            if array:
                return False
        elif not isinstance(prim, Prim):
            return False
        elif prim.name == "update":
            if inner not in plan.in_place or isinstance(prim.args[-1].type, Arr):
                return False
            written.add(plan.resolve(plan.of(prim.args[0]))[0])
        elif prim.name == "get":
            read.add(plan.resolve(plan.of(prim.args[0]))[0])
        elif array:
            return False
    for var, r in zip(bind.vars[len(op.accs) :], op.body.results[len(op.accs) :]):
        if isinstance(r.type, Arr):
            return False
        written.add(plan.resolve(plan.of(var))[0])
    slots = {buffer.slot for buffer in written if buffer.slot is not None}
    return read.isdisjoint(written) and not any(buffer.slot in slots for buffer in read)
