"""Where arrays live: typed core has values, C has memory, and this file goes from one to the other.

``plan`` takes a typed ``Program`` and gives a ``Plan``: the program without what nothing uses, and for every array
variable the memory that holds it. Nothing is allocated at run time. A ``Buffer`` is one piece of memory: a parameter,
a result that the caller gives room for, a constant table, a small local C array, or a piece of the workspace.

Three ideas do the work.

*Sharing.* An ``update`` or ``add-at`` of an array that nothing reads afterwards is done in place; so is a loop's
accumulator whose initial value dies. "Reads afterwards" is a backward liveness pass; a view (``get`` with fewer
subscripts than dims) keeps the whole buffer alive.

*Destinations.* An array that ends up as a result, as a row that a loop stacks, as the next accumulator or as the
value of an ``if`` is given that place as its ``home`` as soon as this is known to be safe, so that it is built there
and never copied. Where it is not safe there is a ``Move``: a copy at the end of the block.

*Reuse.* What is left gets a piece of the workspace. Pieces of one size form a pool; a piece goes back to its pool after
the last use, so a loop's or a branch's temporaries take no more room than one iteration's.

Memory whose size is not known before the call comes from the arena of the call: an array whose dims are computed from
data (``Buffer.arena``), the stacks of a ``while``, which grow (``Buffer.grown``). Data are immutable cells, which are
handed on as pointers: to this file they are scalars, and an array in a cell is memory that is only read. A call of a
recursive function gives an array into memory of the caller's; a result that is a parameter changed in place
(``paired.py``) comes back in the argument's own memory, where that is the caller's to give.

The C printer writes this plan down; the Python printer reads from it only where a copy is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

import numpy as np

from hyad.core import (
    BOOL,
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Scalar,
    Type,
    Var,
    While,
    all_binds,
    atoms_of,
    binders_of,
    blocks_of,
    count_uses,
    free_vars,
    reads,
    same_atoms,
    type_atoms,
)
from hyad.errors import Span
from hyad.passes.rows import own_rows
from hyad.passes.threads import Polynomial, independent
from hyad.program.affine import affine_in, never_equal
from hyad.program.dead import dead_code

from .sizes import Sizes

SHORT = 32  # elements of a state that is sooner copied than found through a pointer
LOCAL_REALS = 512  # local C arrays take at most this many elements of the stack, all together
TABLE_LENGTH = 8  # an array of more literals than this is a static table


def type_of(atom: Atom) -> Type:
    """An atom's type; a literal without one has that of its Python value."""
    if atom.type is not None:
        return atom.type
    value = atom.value
    if isinstance(value, np.ndarray):
        elem = BOOL if value.dtype == bool else INT if np.issubdtype(value.dtype, np.integer) else REAL
        return Arr(elem, tuple(Const(int(n), INT) for n in value.shape))
    return BOOL if isinstance(value, bool) else INT if isinstance(value, int) else REAL


def is_array(atom: Atom) -> bool:
    return isinstance(type_of(atom), Arr)


# --------------------------------------------------------------------------------------------- liveness


def saved_first(op: Loop | While) -> frozenset[int]:
    """The stacked results that are an array accumulator as it was: they are copied before the body changes it."""
    n = len(op.accs)
    arrays = {acc for acc in op.accs if isinstance(acc.type, Arr)}
    return frozenset(k for k in range(n, len(op.body.results)) if op.body.results[k] in arrays)


class Liveness:
    """What is read after a binding: its block's later bindings and results, and, in a loop, the next iteration.

    ``after[bind]`` holds the live arrays of the bindings that may share memory; ``dies[bind]`` the scalars among a
    loop's initial values or a branch's results that nothing reads after the binding. The branches of an ``if`` do
    not see each other: what one changes in place the other may still read.
    """

    def __init__(self, program: Program):
        self.after: dict[Bind, frozenset[Var]] = {}
        self.dies: dict[Bind, frozenset[Var]] = {}
        self.free: dict[Block, dict[Var, None]] = {}
        carried = (If, Loop, Case, While)
        self.carried = {v for b in all_binds(program.body) if isinstance(b.op, carried) for v in b.vars}
        self.carried |= {v for b in all_binds(program.body) for v in binders_of(b.op)}
        self._walk(program.body, set())

    def _tracked(self, atoms: Iterable[Atom]) -> list[Var]:
        found = [a for a in atoms if isinstance(a, Var) and (isinstance(a.type, Arr) or a in self.carried)]
        found += [d for a in found for d in type_atoms(a.type) if d in self.carried]  # strides are read with it
        return found

    def _walk(self, block: Block, live: set[Var], early: frozenset[int] = frozenset()) -> None:
        live.update(self._tracked(r for k, r in enumerate(block.results) if k not in early))
        for bind in reversed(block.binds):
            op = bind.op
            live.difference_update(bind.vars)
            if not isinstance(op, Prim) or op.name in ("update", "add-at"):
                self.after[bind] = frozenset(v for v in live if isinstance(v.type, Arr))
            if isinstance(op, (If, Case)):
                branches = blocks_of(op)
                inside = self._tracked(r for branch in branches for r in branch.results)
                self.dies[bind] = frozenset(v for v in inside if v not in live)
                after = set(live)
                for branch in branches:
                    inner = set(after)
                    self._walk(branch, inner)
                    live |= inner
                live.difference_update(binders_of(op))
            elif isinstance(op, While):
                self.dies[bind] = frozenset(v for v in self._tracked(op.inits) if v not in live)
                free = {**free_vars(op.cond), **free_vars(op.body)}
                self.free[op.body] = free = {v: None for v in free if v not in op.accs}
                live.update(self._tracked(free))
                self._walk(op.body, set(live), saved_first(op))
                self._walk(op.cond, live | set(self._tracked(op.accs)))
            elif isinstance(op, Loop):
                self.dies[bind] = frozenset(v for v in self._tracked(op.inits) if v not in live)
                free = {v: None for v in free_vars(op.body) if v is not op.index and v not in op.accs}
                self.free[op.body] = free
                live.update(self._tracked(free))
                self._walk(op.body, set(live), saved_first(op))
            live.update(self._tracked(atoms_of(op)))


# --------------------------------------------------------------------------------------------- the plan


@dataclass(eq=False, slots=True)
class Buffer:
    """One piece of memory. ``home`` says that it is a part of another one: all of what ``home`` selects.

    ``kind`` is "param", "result", "table", "own" or "cell" (memory of the arena that others may see: read only).
    ``born`` and ``last`` are the times of its first write and its last use; ``bind`` is the binding before which it is
    declared. ``blank``: only an ``undef`` was ever put there; ``partial``: something may be put there on some paths
    only. An own buffer without a home lies in a local C array, at ``slot`` of the workspace, or, where its size is not
    known before, in the arena: ``arena`` where it stays, ``grown`` where it is a stack of a ``while``. ``given``: an
    own buffer that is a parameter, to be changed in place. ``reused``: it is changed after it was made.
    """

    elem: Scalar | Data
    dims: tuple[Atom, ...]
    kind: str
    var: Var | None = None
    bind: Bind | None = None
    born: int = 0
    last: int = 0
    home: Place | None = None
    blank: bool = False
    partial: bool = False
    slot: tuple[Any, int] | None = None
    values: Any = None  # a table's elements
    index: int = 0  # which result
    arena: bool = False
    grown: bool = False
    given: bool = False
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What ``subs`` select of a buffer: the whole of it, or a row."""

    buffer: Buffer
    subs: tuple[Atom, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of one array, at the end of a block."""

    source: Place
    target: Place


@dataclass(eq=False)
class Plan:
    """The decisions. ``program`` is the pruned one; bindings and blocks below are its own.

    ``place``: where each array variable lies. ``in_place``: the ``update``s and ``add-at``s that need no copy.
    ``copies``: the accumulators (their numbers) of a loop that start as a copy. ``moves``: the copies at the end of a
    block; ``moved``: for each block, which of its results need one. ``early``: the copies at the start of a loop's
    body, by the stacked result that each is. ``swaps``: the accumulators of a loop whose next value is made in a buffer
    of its own, or is what another one was: the two buffers change places after each iteration, in this order.
    ``declare``: the buffers to declare before a binding. ``results``: the memory of each array result. ``pools``: for
    each size of workspace piece (the element type and the size; a third part, True, where each thread has its own), how
    many there are. ``parallel``: the loops that run on several threads, and how many iterations are worth one, or what
    one costs. ``unsized``: the buffers that only an arena can hold, and their forms. ``zero_rows``: zeros that lie
    nowhere, since what they are stored in is cleared.
    ``rows``: the subscripts of the row in which a binding begins to make an array.
    """

    program: Program
    live: Liveness
    sizes: Sizes
    parallel: dict[Bind, int | Polynomial] = field(default_factory=dict)
    place: dict[Var, Place] = field(default_factory=dict)
    constants: dict[int, Buffer] = field(default_factory=dict)
    in_place: set[Bind] = field(default_factory=set)
    copies: dict[Bind, set[int]] = field(default_factory=dict)
    moves: dict[Block, list[Move]] = field(default_factory=dict)
    moved: dict[Block, set[int]] = field(default_factory=dict)
    early: dict[Block, dict[int, Move]] = field(default_factory=dict)
    swaps: dict[Bind, dict[int, Buffer]] = field(default_factory=dict)
    declare: dict[Bind, list[Buffer]] = field(default_factory=dict)
    results: list[Buffer | None] = field(default_factory=list)
    pools: dict[Any, int] = field(default_factory=dict)
    unsized: list[tuple[Buffer, Span | None]] = field(default_factory=list)
    zero_rows: set[Var] = field(default_factory=set)
    rows: dict[Bind, tuple[Atom, ...]] = field(default_factory=dict)

    @cached_property
    def integers(self) -> dict[Var, Prim]:
        """What makes each integer of the program."""
        made = ((b.vars[0], b.op) for b in all_binds(self.program.body) if isinstance(b.op, Prim))
        return {v: op for v, op in made if v.type == INT}

    def of(self, atom: Atom) -> Place:
        """Where an array lies; an array literal has a table of its own."""
        if isinstance(atom, Var):
            return self.place[atom]
        table = self.constants.get(id(atom.value))
        if table is None:
            t = type_of(atom)
            table = Buffer(t.elem, t.dims, "table", values=np.asarray(atom.value))
            self.constants[id(atom.value)] = table
        return Place(table)

    def resolve(self, place: Place) -> tuple[Buffer, tuple[Atom, ...], tuple[Atom, ...]]:
        """The outermost buffer, the subscripts into it, and the dims that those count in."""
        buffer, subs, dims = place.buffer, place.subs, place.buffer.dims
        while buffer.home is not None:
            outer = buffer.home
            subs = outer.subs + subs
            dims = outer.buffer.dims[: len(outer.subs)] + dims
            buffer = outer.buffer
        return buffer, subs, dims

    def root(self, atom: Atom) -> Buffer:
        return self.resolve(self.of(atom))[0]


Pairs = Mapping[Function, Mapping[int, int]]  # the results of a function that are a parameter, changed in place


def plan(
    program: Program,
    pairs: Pairs | None = None,
    own: Mapping[int, int] | None = None,
    lent: Iterable[int] = (),
    room: int = 0,
    threads: int = 0,
    whole: bool = False,
    shared: bool = True,
    fixed: bool = False,
) -> Plan:
    """Decide where every array of a typed program lies.

    ``pairs`` says it of the functions that it calls, ``own`` of the program itself, where that is the body of a
    function; ``lent`` are its array results that stay where they are made, in the arena; ``room`` is how many elements
    of the stack its local arrays take at most. With ``threads``, independent loops run on so many: what an iteration
    needs of the workspace is there for each. With ``whole`` nothing is left out, be it read or not. Unless ``shared``,
    a result's memory holds nothing before the result. With ``fixed``, long states of known size change places as
    others do, instead of being copied: they lie in the workspace then, not on the stack.
    """
    pruned = program if whole else dead_code(program)
    parallel = independent(pruned) if threads > 1 else {}
    while True:
        made = Plan(pruned, Liveness(pruned), Sizes(pruned), parallel)
        made = _Planner(made, pairs or {}, room or LOCAL_REALS, shared, fixed).run(own or {}, frozenset(lent))
        moving = [bind for bind in parallel if not stays(made, bind)]
        if not moving:
            return made
        parallel = {bind: worth for bind, worth in parallel.items() if bind not in moving}


def stays(plan: Plan, bind: Bind) -> bool:
    """Whether each accumulator of a loop, which is changed by rows, lies in one place from start to end, and nothing in
    it takes memory of the arena, which is no thread's own."""
    op = bind.op
    if any(b.arena or b.grown for x in all_binds(op.body) for b in plan.declare.get(x, ())):
        return False
    versions = own_rows(op) or {}
    inner = [bind, *(x for x in all_binds(op.body) if isinstance(x.op, Loop))]
    if any(x.op.accs[k] in versions for x in inner for k in plan.swaps.get(x, ())):
        return False
    places = [(plan.resolve(plan.of(v)), plan.resolve(plan.of(op.accs[k]))) for v, k in versions.items()]
    return all(a[0] is b[0] and same_atoms(a[1], b[1]) for a, b in places)


class _Planner:
    """One forward walk that shares and homes buffers, then one that gives the rest a place.

    Time: each binding reads at ``t``, its own buffer is born at ``t + 1``, and what it reads while it writes is read at
    ``t + 2``.
    """

    def __init__(self, plan: Plan, pairs: Pairs, room: int, shared: bool, fixed: bool):
        self.plan = plan
        self.shared, self.fixed = shared, fixed
        self.pairs = pairs
        self.room = room
        self.time = 0
        self.ends: dict[Bind, int] = {}
        self.spans: dict[Buffer, Span | None] = {}
        self.owned: list[Buffer] = []
        self.captured: list[Atom] = []  # the arrays that cells hold
        self.block_of: dict[Buffer, Block] = {}
        self.aligned: dict[Var, tuple[int, Var | None]] = {}  # loop index -> (time of the loop, outer index)
        self.made: dict[Var, int] = {}  # when a number is computed
        self.checked = 0  # when something was checked last: that a row is there, it may be
        self.touches: dict[Buffer, list[tuple[int, tuple[Atom, ...]]]] = {}  # when which part of it is read or changed

    def run(self, own: Mapping[int, int], lent: frozenset[int]) -> Plan:
        plan, program = self.plan, self.plan.program
        for k, p in enumerate(program.params):
            if isinstance(p.type, Arr):
                given = k in own.values()
                plan.place[p] = Place(Buffer(p.type.elem, p.type.dims, "own" if given else "param", p, given=given))
        self.block(program.body)
        moves = plan.moves[program.body] = []
        moved = plan.moved[program.body] = set()
        for k, r in enumerate(program.body.results):
            if not is_array(r) or k in lent:
                plan.results.append(None)
                if k in lent:
                    self.keep(r, True)
                continue
            t = type_of(r)
            if k in own:  # given back where it was given
                target = plan.place[program.params[own[k]]].buffer
                plan.results.append(target)
                if not self.same_place(r, program.params[own[k]]):
                    moves.append(Move(plan.of(r), Place(target)))
                    moved.add(k)
                continue
            target = Buffer(t.elem, t.dims, "result", r if isinstance(r, Var) else None, index=k)
            plan.results.append(target)
            if not self.settle(r, Place(target), 0):
                moves.append(Move(plan.of(r), Place(target)))
                moved.add(k)
        for a in self.captured:
            self.keep(a)
        self.allocate(program.body)
        return plan

    def keep(self, array: Atom, last: bool = False) -> None:
        """Let an array that will be seen after its last use here be made in the arena, if it is not changed there
        (or ``last``)."""
        root, subs, _ = self.plan.resolve(self.plan.of(array))
        if root.kind == "own" and not (subs or root.grown or root.given) and (last or not root.reused):
            root.arena = True

    # ------------------------------------------------------------------------- helpers

    def tick(self) -> int:
        self.time += 4
        return self.time

    def use(self, atom: Atom, time: int, subs: tuple[Atom, ...] = ()) -> None:
        if is_array(atom):
            root, path, _ = self.plan.resolve(self.plan.of(atom))
            root.last = max(root.last, time)
            self.touches.setdefault(root, []).append((self.time, path + subs))

    def touch(self, place: Place) -> None:
        root, path, _ = self.plan.resolve(place)
        self.touches.setdefault(root, []).append((self.time, path))

    def new(self, var: Var, bind: Bind, block: Block, born: int) -> Buffer:
        buffer = Buffer(var.type.elem, var.type.dims, "own", var, bind, born, born)
        self.owned.append(buffer)
        self.block_of[buffer] = block
        self.spans[buffer] = bind.span
        return buffer

    def bind_to(self, var: Var, place: Place) -> None:
        """``var`` lies at ``place``; a name that a person chose names the buffer."""
        self.plan.place[var] = place
        buffer = place.buffer
        if not place.subs and var.given and buffer.kind == "own" and not (buffer.var and buffer.var.given):
            buffer.var = var

    def writable(self, atom: Atom, live: Iterable[Var]) -> bool:
        """Whether an array's memory is the program's own and nothing live lies in it."""
        root = self.plan.root(atom)
        return root.kind == "own" and not any(self.plan.root(v) is root for v in live)

    def touched(self, array: Atom, indices: tuple[Atom, ...], live: Iterable[Var]) -> list[Var]:
        """Those of live arrays that a change of an array at some place may change: rows beside that place stay."""
        plan = self.plan
        root, path, _ = plan.resolve(plan.of(array))
        place = [affine_in(a, plan.integers) for a in (*path, *indices)]

        def apart(v: Var) -> bool:
            other, subs, _ = plan.resolve(plan.of(v))
            return other is root and never_equal(place, [affine_in(a, plan.integers) for a in subs])

        return [v for v in live if not apart(v)]

    def settle(self, atom: Atom, target: Place, since: int) -> bool:
        """Let an array that was made after ``since`` be built at ``target``, if that is safe; True if it was."""
        root, subs, _ = self.plan.resolve(self.plan.of(atom))
        if root.kind != "own" or subs or root.born <= since or root.grown or root.given:
            return False
        outer = self.plan.resolve(target)[0]
        if outer is root:
            return False
        self.move_in(root, target)
        outer.last = max(outer.last, root.last)
        outer.partial |= root.blank or root.partial
        return True

    def move_in(self, root: Buffer, home: Place) -> None:
        """Give a buffer its home."""
        outer, path, _ = self.plan.resolve(home)
        root.home = home
        touched = self.touches.pop(root, ())
        self.touches.setdefault(outer, []).extend((time, path + subs) for time, subs in touched)

    def settle_row(self, op: Prim, target: Place, block: Block) -> None:
        """Let the array that an ``update`` in place puts into another one be built there, if that is safe: it was made
        in this block, where its row was known, and since then nothing has been checked, or done to that row. The loop
        that stacks it may read what lies at its own index, before it stores there."""
        plan = self.plan
        root = plan.root(op.args[-1])
        outer, path, _ = plan.resolve(target)
        if self.block_of.get(root) is not block or outer.born >= root.born or root.arena or self.checked > root.born:
            return
        if any(self.made.get(a, 0) > root.born for a in path):  # type: ignore[call-overload]
            return
        row = [affine_in(a, plan.integers) for a in path]
        made = root.bind.op  # type: ignore[union-attr]
        along = made.index if isinstance(made, Loop) and len(root.dims) == 1 else None
        if along is not None and any(plan.root(a) is root for a in made.accs if is_array(a)):
            along = None  # a state is there before the loop, and changes anywhere
        for time, subs in self.touches.get(outer, ()):
            beside = along is not None and len(subs) == len(path) + 1 and subs[-1] is along
            if time > root.born and not (beside or never_equal(row, [affine_in(a, plan.integers) for a in subs])):
                return
        if self.settle(op.args[-1], target, 0):
            plan.rows[root.bind] = target.subs  # type: ignore[index]

    def read_as_it_was(self, bind: Bind, block: Block) -> bool:
        """Whether a row that is put into an array is read when a loop of the block changes that array, or after that:
        built there, it would have the whole array copied for the loop."""
        row, versions = bind.op.args[-1], {bind.vars[0]}
        after = self.plan.live.after
        if row not in after[bind]:
            return False
        for x in block.binds[block.binds.index(bind) + 1 :]:
            if isinstance(x.op, Prim) and x.op.name in ("update", "add-at") and x.op.args[0] in versions:
                versions.add(x.vars[0])
            elif isinstance(x.op, (Loop, While)) and not versions.isdisjoint(x.op.inits):
                return row in after[x] or row in reads(x)
        return False

    def same_place(self, a: Atom, b: Atom) -> bool:
        (ra, sa, _), (rb, sb, _) = self.plan.resolve(self.plan.of(a)), self.plan.resolve(self.plan.of(b))
        return ra is rb and same_atoms(sa, sb)

    # ---------------------------------------------------------------------------- walk

    def block(self, block: Block, early: frozenset[int] = frozenset()) -> None:
        checked = self.checked
        for bind in block.binds:
            t = self.tick()
            op = bind.op
            self.made.update((v, t) for v in bind.vars)
            if isinstance(op, Prim):
                self.prim(bind, op, block, t)
            elif isinstance(op, (If, Case)):
                self.conditional(bind, op, block, t)
            elif isinstance(op, Loop):
                self.loop(bind, op, block, t)
            elif isinstance(op, While):
                self.while_(bind, op, block, t)
            elif isinstance(op, Apply):
                self.apply(bind, op, block, t)
            elif isinstance(op, Check):
                self.checked = t
            elif isinstance(op, Make):
                for a in op.args:
                    self.use(a, t + 2)
                self.captured += [a for a in op.args if is_array(a)]
            self.ends[bind] = self.time + 3
        self.checked = checked  # what a block inside has checked says nothing of the rows of this one
        t = self.tick()
        for k, r in enumerate(block.results):
            if k not in early:
                self.use(r, t)

    def prim(self, bind: Bind, op: Prim, block: Block, t: int) -> None:
        plan, args = self.plan, op.args
        var = bind.vars[0]
        if not isinstance(var.type, Arr):
            if op.name == "get":
                self.use(args[0], self.time_of_get(op, t), args[1:])
            elif var.type == INT:
                plan.sizes.define(var, op)
            return
        if op.name == "get":  # a view reads nothing yet
            base = plan.of(args[0])
            self.bind_to(var, Place(base.buffer, base.subs + args[1:]))
        elif op.name in ("update", "add-at"):
            root = plan.root(args[0])
            if self.writable(args[0], self.touched(args[0], args[1:-1], plan.live.after[bind])):
                plan.in_place.add(bind)
                if op.name == "update" and is_array(args[-1]) and not self.read_as_it_was(bind, block):
                    place = plan.of(args[0])
                    self.settle_row(op, Place(place.buffer, place.subs + args[1:-1]), block)
                self.bind_to(var, plan.of(args[0]))
                root.last = t + 2
                root.partial |= root.blank
                root.blank = False
                root.reused = True
            else:
                self.bind_to(var, Place(self.new(var, bind, block, t + 1)))
            for a in (args[0], args[-1]):
                self.use(a, t + 2)
        elif op.name == "array" and len(args) > TABLE_LENGTH and all(isinstance(a, Const) for a in args):
            table = Buffer(var.type.elem, var.type.dims, "table", var, values=np.array([a.value for a in args]))
            plan.place[var] = Place(table)
        else:
            buffer = self.new(var, bind, block, t + 1)
            buffer.blank = op.name == "undef"
            if op.name == "product":
                for a in args[:2]:
                    self.use(a, t + 2)
            if op.name == "array" and args and is_array(args[0]):
                self.rows(buffer, args, block, t)
            self.bind_to(var, Place(buffer))

    def rows(self, buffer: Buffer, args: tuple[Atom, ...], block: Block, t: int) -> None:
        """``array`` of arrays: a row that was made in this block is built where it belongs."""
        plan = self.plan
        for k, a in enumerate(args):
            self.use(a, t + 2)
            root, subs, _ = plan.resolve(plan.of(a))
            if root.kind == "own" and not subs and self.block_of.get(root) is block and root is not buffer:
                buffer.partial |= root.blank or root.partial
                self.move_in(root, Place(buffer, (Const(k, INT),)))
                if root.born < buffer.born:
                    buffer.born, buffer.bind = root.born, root.bind
                buffer.last = max(buffer.last, root.last)

    def time_of_get(self, op: Prim, t: int) -> int:
        """When a scalar ``get`` reads, for the question whether a loop may overwrite the array that it reads.

        An element that is read at just the subscripts which the enclosing ``build`` is about to write does no harm:
        it counts as read before the loop. (So ``acc + x``, elementwise, is done in place.) Not of an array that each
        iteration makes.
        """
        root, subs, _ = self.plan.resolve(self.plan.of(op.args[0]))
        subs = (*subs, *op.args[1:])
        if len(subs) != len(root.dims) or not all(isinstance(s, Var) and s in self.aligned for s in subs):
            return t
        outer = [self.aligned[s][1] for s in subs]
        if outer[0] is None and all(outer[k] is subs[k - 1] for k in range(1, len(subs))):
            before = self.aligned[subs[0]][0]
            return before if root.born <= before else t
        return t

    def cell(self, var: Var, born: int) -> None:
        """An array in memory that is only read: a field of a cell, what a function has made."""
        self.plan.place[var] = Place(Buffer(var.type.elem, var.type.dims, "cell", var, None, born, born))

    def apply(self, bind: Bind, op: Apply, block: Block, t: int) -> None:
        """A call: each array result has memory of its own before it, or the argument's that it is."""
        plan, pairs = self.plan, self.pairs.get(op.function, {})
        plan.copies[bind] = set()
        shared: list[Buffer] = []
        for a in op.args:
            self.use(a, t + 2)
        for k, var in enumerate(bind.vars):
            if not isinstance(var.type, Arr):
                continue
            if not measured(op.function, k):
                self.cell(var, t + 1)
            elif k in pairs:
                self.take(bind, k, var, op.args[pairs[k]], op.args, plan.live.after[bind], shared, block, t)
                plan.root(var).last = max(plan.root(var).last, t + 2)
            else:
                self.bind_to(var, Place(self.new(var, bind, block, t + 1)))

    def take(
        self,
        bind: Bind,
        k: int,
        acc: Var,
        init: Atom,
        inits: Sequence[Atom],
        live: Iterable[Var],
        shared: list[Buffer],
        block: Block,
        t: int,
    ) -> None:
        """Let an accumulator have the memory of its start, or else a copy of it."""
        plan = self.plan
        root = plan.root(init)
        others = [a for a in inits if is_array(a) and plan.root(a) is root]
        if self.writable(init, live) and len(others) == 1 and root not in shared:
            shared.append(root)
            self.bind_to(acc, plan.of(init))
            root.partial |= root.blank
            root.blank = False
            root.reused = True
        else:
            buffer = self.new(acc, bind, block, t + 1)
            buffer.partial = root.blank
            buffer.reused = True
            self.bind_to(acc, Place(buffer))
            plan.copies[bind].add(k)

    def conditional(self, bind: Bind, op: If | Case, block: Block, t: int) -> None:
        plan = self.plan
        starts = []
        branches = blocks_of(op)
        for number, branch in enumerate(branches):
            starts.append(self.time + 3)
            if isinstance(op, Case):
                for field in op.arms[number].fields:
                    if isinstance(field.type, Arr):
                        self.cell(field, self.time + 3)
            self.block(branch)
        end = self.time
        for k, var in enumerate(bind.vars):
            plan.sizes.either(var, [branch.results[k] for branch in branches])
        arrays = [k for k, v in enumerate(bind.vars) if isinstance(v.type, Arr)]
        for branch in branches:
            plan.moves[branch], plan.moved[branch] = [], set()
        roots = [plan.root(branch.results[k]) for branch in branches for k in arrays]
        for k in arrays:
            var, results = bind.vars[k], [branch.results[k] for branch in branches]
            if isinstance(op, Case) and len(branches) == 1 and results[0] in op.arms[0].fields:
                self.bind_to(var, plan.of(results[0]))  # it stays where the data has it, which do not change
                continue
            if all(self.same_place(results[0], r) for r in results) and plan.root(results[0]).born < t:
                self.bind_to(var, plan.of(results[0]))
                continue
            target = None
            for result in results:  # build it over an array from outside that dies here
                root = plan.root(result)
                if root.born < t and roots.count(root) == 1 and self.writable(result, plan.live.after[bind]):
                    target = plan.of(result)
                    root.reused = True
                    break
            if target is None:
                target = Place(self.new(var, bind, block, t + 1))
            outer = plan.resolve(target)[0]
            for branch, start in zip(branches, starts):
                result = branch.results[k]
                root, subs, _ = plan.resolve(plan.of(result))
                if root is outer and same_atoms(subs, plan.resolve(target)[1]):
                    continue
                if outer.last < root.born or outer.born == t + 1:
                    if self.settle(result, target, start):
                        continue
                plan.moves[branch].append(Move(plan.of(result), target))
                plan.moved[branch].add(k)
            outer.last = max(outer.last, end)
            self.touch(target)
            self.bind_to(var, target)

    def loop(self, bind: Bind, op: Loop, block: Block, t: int) -> None:
        plan, n = self.plan, len(op.accs)
        count = plan.sizes.atom(op.count, plan.sizes.bound)
        if count is not None:
            plan.sizes.bound[op.index] = count
            plan.sizes.indices.add(op.index)
        live = plan.live.after[bind] | {v for v in plan.live.free[op.body] if isinstance(v.type, Arr)}
        self.accumulators(bind, op, block, t, live)
        stacked: dict[int, Buffer] = {}
        for k in range(n, len(bind.vars)):
            stacked[k] = self.new(bind.vars[k], bind, block, t + 1)
            self.bind_to(bind.vars[k], Place(stacked[k]))
        self.mark_aligned(bind, op, t, stacked)
        start = self.time + 3
        early = saved_first(op)
        for k in early:
            self.use(op.body.results[k], start)
        self.block(op.body, early)
        self.carry(bind, op, block, t, start, stacked, op.index)

    def while_(self, bind: Bind, op: While, block: Block, t: int) -> None:
        """As a loop, whose index is the number of iterations so far; what it stacks grows."""
        plan, n = self.plan, len(op.accs)
        live = plan.live.after[bind] | {v for v in plan.live.free[op.body] if isinstance(v.type, Arr)}
        self.accumulators(bind, op, block, t, live)
        stacked: dict[int, Buffer] = {}
        for k in range(n, len(op.body.results)):
            stacked[k] = self.new(bind.vars[k + 1], bind, block, t + 1)
            stacked[k].grown = True
            self.bind_to(bind.vars[k + 1], Place(stacked[k]))
        self.block(op.cond)
        start = self.time + 3
        early = saved_first(op)
        for k in early:
            self.use(op.body.results[k], start)
        self.block(op.body, early)
        self.carry(bind, op, block, t, start, stacked, bind.vars[n])

    def accumulators(self, bind: Bind, op: Loop | While, block: Block, t: int, live: Iterable[Var]) -> None:
        """Give each array accumulator its memory."""
        self.plan.copies[bind] = set()
        shared: list[Buffer] = []
        for k, (acc, init) in enumerate(zip(op.accs, op.inits)):
            if isinstance(acc.type, Arr):
                self.use(init, t)
                self.take(bind, k, acc, init, op.inits, live, shared, block, t)
        for k in sorted(self.plan.copies[bind])[1:]:
            self.use(op.inits[k], t + 2)  # the copies before are written by then

    def carry(
        self,
        bind: Bind,
        op: Loop | While,
        block: Block,
        t: int,
        start: int,
        stacked: dict[int, Buffer],
        index: Var,
    ) -> None:
        """After a loop's body: what is copied into the accumulators and into the rows of what is stacked."""
        plan, n, early, end = self.plan, len(op.accs), saved_first(op), self.time
        moves = plan.moves[op.body] = []
        moved = plan.moved[op.body] = set()
        later: list[tuple[int, Move]] = []
        for k in range(n):
            acc, result = op.accs[k], op.body.results[k]
            if not isinstance(acc.type, Arr) or self.same_place(acc, result):
                continue
            outer = plan.root(acc)
            if outer.last < plan.root(result).born and self.settle(result, plan.of(acc), start):
                continue
            later.append((k, Move(plan.of(result), plan.of(acc))))
        plan.early[op.body] = {}
        for k, buffer in stacked.items():
            result = op.body.results[k]
            buffer.last = max(buffer.last, end)
            if k in early:
                plan.early[op.body][k] = Move(plan.of(result), Place(buffer, (index,)))
            elif isinstance(type_of(result), Arr):
                target = Place(buffer, (index,))
                if not self.settle(result, target, start):
                    moves.append(Move(plan.of(result), target))
                    moved.add(k)
        later = self.exchanges(later, bind, block, start, end)
        moved.update(k for k, _ in later)
        moves += self.in_parallel(later, bind, op, block, t)
        for k in range(n):
            if isinstance(op.accs[k].type, Arr):
                root = plan.root(op.accs[k])
                root.last = max(root.last, end)
                self.touch(plan.of(op.accs[k]))
                self.bind_to(bind.vars[k], plan.of(op.accs[k]))

    def exchanges(
        self, later: list[tuple[int, Move]], bind: Bind, block: Block, start: int, end: int
    ) -> list[tuple[int, Move]]:
        """Take out the moves that become exchanges of pointers: a state made anew from the old one, as in
        ``(ifold (fn [u k] (build n ...)) u steps)``, and the old one that stays as the state before, as in ``(ifold (fn
        [#(u v) k] #((build n ...) u)) #(u v) steps)``. All these buffers then last for the whole loop."""
        plan = self.plan
        chains: list[list[tuple[int, Buffer]]] = []
        rest = []
        for k, move in later:
            made, subs, _ = plan.resolve(move.source)
            fresh = made.kind == "own" and not (subs or made.grown) and made.born > start
            again = any(made is buffer for ((_, buffer),) in chains)
            known = plan.sizes.product(made.dims, plan.sizes.bound) is not None
            if fresh and known and not (again or move.target.subs) and self.exchanged(made):
                chains.append([(k, made)])
                made.bind = bind
                made.last = max(made.last, end)
            else:
                rest.append((k, move))
        for chain in chains:
            while link := self.before(chain, rest, bind, block):
                chain.append(link)
                rest = [(k, move) for k, move in rest if k != link[0]]
        plan.swaps[bind] = {k: made for chain in chains for k, made in reversed(chain)}
        return rest

    def exchanged(self, buffer: Buffer) -> bool:
        """Whether a state had better change places with another one than be copied."""
        if any(isinstance(d, Var) for d in buffer.dims):
            return True
        return self.fixed and math.prod(d.value for d in buffer.dims) > SHORT

    def before(
        self, chain: list[tuple[int, Buffer]], moves: list[tuple[int, Move]], bind: Bind, block: Block
    ) -> tuple[int, Buffer] | None:
        """The accumulator whose next value is what the last one of a chain was, and that one's buffer. Of two, both may
        be looked for after the loop where they began, of more a single one."""
        last = bind.op.accs[chain[-1][0]]  # type: ignore[union-attr]
        for k, move in moves:
            source, subs, _ = self.plan.resolve(move.source)
            target = self.plan.root(bind.op.accs[k])  # type: ignore[union-attr]
            alike = (source.elem, source.dims, source.kind) == (target.elem, target.dims, target.kind)
            if source is self.plan.root(last) and alike and not (subs or move.target.subs):
                found = [bind.vars[j] for j in (k, *(j for j, _ in chain))]
                if len(found) == 2 or sum(count_uses(block, v) > 0 for v in found) < 2:
                    return k, self.plan.of(last).buffer
        return None

    def mark_aligned(self, bind: Bind, op: Loop, t: int, stacked: dict[int, Buffer]) -> None:
        """Note the loops, and nests of two, whose elements are written at (i), or (i, j), at the iteration's end."""
        results = [op.body.results[k] for k in stacked]
        if self.plan.copies[bind]:
            return  # a new accumulator's memory, changed within an iteration, might be what is overwritten
        if results and not any(is_array(r) for r in results) and op.index not in self.aligned:
            self.aligned[op.index] = (t, None)
        elif len(results) == 1:
            makers = [b.op for b in op.body.binds if isinstance(b.op, Loop) and b.vars == (results[0],)]
            if makers and not makers[0].accs and not is_array(makers[0].body.results[0]):
                self.aligned[op.index] = (t, None)
                self.aligned[makers[0].index] = (t, op.index)

    def in_parallel(
        self, later: list[tuple[int, Move]], bind: Bind, op: Loop | While, block: Block, t: int
    ) -> list[Move]:
        """The moves of the accumulators, ordered so that none overwrites what another still reads."""
        plan = self.plan
        todo = [move for _, move in later]
        done: list[Move] = []
        while todo:
            for move in todo:
                target = plan.resolve(move.target)[0]
                if not any(plan.resolve(other.source)[0] is target for other in todo if other is not move):
                    done.append(move)
                    todo.remove(move)
                    break
            else:  # a cycle: one of them goes through a buffer of its own
                move = todo.pop(0)
                var = next(op.accs[k] for k, m in later if m.target == move.target)
                aside = self.new(Var("swap", var.type), bind, block, t + 1)
                aside.last = self.time
                done.append(Move(move.source, Place(aside)))
                todo.append(Move(Place(aside), move.target))
        return done

    # ----------------------------------------------------------------------- allocation

    def allocate(self, program_body: Block) -> None:
        """Give each own buffer that has no home a local C array or a piece of the workspace."""
        plan = self.plan
        free: dict[Any, list[int]] = {}
        order = itertools.count()
        local, room = set(), self.room
        known = [b for b in self.owned if b.home is None and not b.arena and all(type(d) is Const for d in b.dims)]
        swapped = {buffer for pairs in plan.swaps.values() for buffer in pairs.values()}
        swapped |= {plan.of(x.op.accs[k]).buffer for x, pairs in plan.swaps.items() for k in pairs}
        known = [b for b in known if b not in swapped]  # which is done with pointers
        for buffer in sorted(known, key=lambda b: math.prod(d.value for d in b.dims)):  # of the small ones a C compiler
            room -= math.prod(d.value for d in buffer.dims)  # makes registers
            if room < 0:
                break
            local.add(buffer)
        if self.shared:
            self.before_results(program_body, local)
        rows = zero_rows(plan.program)
        plan.zero_rows = {v for v in rows if plan.of(v).buffer.kind == "own" and plan.of(v).buffer.home is None}
        nowhere = {plan.of(v).buffer for v in plan.zero_rows}
        for buffer in self.owned:
            if buffer.home is None and buffer not in nowhere:
                plan.declare.setdefault(buffer.bind, []).append(buffer)

        def place(buffer: Buffer, own: bool) -> None:
            if buffer.arena or buffer in local:
                return
            size = plan.sizes.product(buffer.dims, plan.sizes.bound)
            if size is None or buffer.grown:
                buffer.arena = not buffer.grown
                plan.unsized.append((buffer, self.spans[buffer]))
                return
            elem = REAL if buffer.elem in (REAL, BOOL) else INT
            key = (elem.name, tuple(sorted(size.items(), key=lambda t: [plan.sizes.order[s] for s in t[0]])))
            key = (*key, True) if own else key
            slots = free.setdefault(key, [])
            if slots:
                number = slots.pop()
            else:
                number = plan.pools.get(key, 0)
                plan.pools[key] = number + 1
            buffer.slot = (key, number)

        def release(buffer: Buffer) -> None:
            key, number = buffer.slot
            free[key].append(number)

        def visit(block: Block, own: bool = False) -> None:
            here: list[tuple[int, int, Buffer]] = []  # a heap: the next to die first
            for bind in block.binds:
                for buffer in plan.declare.get(bind, ()):
                    place(buffer, own)
                    if buffer.slot is not None:
                        heappush(here, (buffer.last, next(order), buffer))
                for inner in blocks_of(bind.op):
                    visit(inner, own or bind in plan.parallel)
                while here and here[0][0] <= self.ends[bind]:
                    release(heappop(here)[2])
            for _, _, buffer in here:
                release(buffer)

        visit(program_body)

    def before_results(self, body: Block, local: Container[Buffer]) -> None:
        """Let arrays that are done with before a result begins lie in that result's memory: in ``y = (map exp x)``,
        ``s = (sum y)``, ``(map (fn [a] (/ a s)) y)`` the last loop divides in place."""
        plan = self.plan
        own = {plan.of(x.op.accs[k]).buffer for x, pairs in plan.swaps.items() for k in pairs}
        swapped = {buffer for pairs in plan.swaps.values() for buffer in pairs.values()} - own
        begins: dict[Buffer, int] = {}  # when the memory of each result is first written to
        for buffer in self.owned:
            root = plan.resolve(Place(buffer))[0]
            if root.kind == "result":
                begins[root] = min(begins.get(root, buffer.born), buffer.born)
        for buffer in sorted(self.owned, key=lambda b: -b.last):
            fixed = buffer.home is not None or buffer.arena or buffer.grown or buffer.given or buffer in local
            if fixed or buffer.blank or buffer.partial or buffer in swapped or self.block_of[buffer] is not body:
                continue
            for result, time in begins.items():
                if buffer.last < time and (buffer.elem, buffer.dims) == (result.elem, result.dims):
                    buffer.home = Place(result)
                    begins[result] = buffer.born
                    break


def is_zeros(bind: Bind) -> bool:
    """Whether a binding makes an array of zeros."""
    op = bind.op
    if type(op) is Loop:
        return len(bind.vars) == 1 and not op.accs and _all_zeros(op)
    return type(op) is Prim and op.name == "zeros" and isinstance(bind.vars[0].type, Arr)


def _all_zeros(op: Loop) -> bool:
    """Whether a loop stacks 0.0 alone, or what such a loop in it gives."""
    (r,) = op.body.results
    if not op.body.binds:
        return type(r) is Const and r.type in (REAL, INT) and r.value == 0 and math.copysign(1, r.value) > 0
    (inner,) = op.body.binds if len(op.body.binds) == 1 else (None,)
    return inner is not None and type(inner.op) is Loop and inner.vars == (r,) and is_zeros(inner)


def zero_rows(program: Program) -> list[Var]:
    """The arrays of zeros that are nothing but stored in another array."""
    binds = list(all_binds(program.body))
    values = [x.op.args[-1] for x in binds if type(x.op) is Prim and x.op.name == "update"]
    stored = {v for v in values if type(v) is Var and isinstance(v.type, Arr)}
    made = [x.vars[0] for x in binds if len(x.vars) == 1 and x.vars[0] in stored and is_zeros(x)] if stored else []
    count = uses(program) if made else {}
    return [v for v in made if count.get(v) == 1]


def measured(f: Function, k: int) -> bool:
    """Whether the caller of a function knows the size of an array result before the call."""
    t = f.results[k].type
    return isinstance(t, Arr) and all(isinstance(d, Const) or d in f.params for d in t.dims)


def uses(program: Program) -> dict[Var, int]:
    """How often each variable is read; a dim of a type counts as two, since strides are written out again and again."""
    count: dict[Var, int] = {}

    def use(atoms: Iterable[Atom], by: int = 1) -> None:
        for a in atoms:
            if isinstance(a, Var):
                count[a] = count.get(a, 0) + by

    use(program.body.results)
    for p in program.params:
        use(type_atoms(p.type), 2)
    for bind in all_binds(program.body):
        op = bind.op
        use(atoms_of(op))
        for inner in blocks_of(op):
            use(inner.results)
        for v in (*bind.vars, *binders_of(op)):
            use(type_atoms(v.type), 2)
    return count
