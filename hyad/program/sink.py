"""Let floating: a value that one branch alone reads is computed in that branch, and so is what comes after a branch,
where the other one leaves everything as it is. What reads an array before it changes comes before the change."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    binders_of,
    blocks_of,
    free_vars,
    reads,
    substitute,
    type_atoms,
    type_of,
    with_blocks,
    with_body,
)
from .builder import Builder
from .dead import effects
from .loops import slice_of
from .primitives import PRIMITIVES
from .rebuild import Rebuild, taken

DEAR = 4  # in additions: C compilers take no branch away in which something costs so much


def sink(program: Program) -> Program:
    """Moves bindings into the one branch that reads them.

    ``(let [r (sqrt t)] (if (> t 0) r 0))``  =>  ``(if (> t 0) (let [r (sqrt t)] r) 0)``.
    Design decision: before differentiation, so that the branch not taken contributes nothing there either (an adjoint
    0 times the infinite slope of what was computed for the other branch is NaN). A choice between integers that are
    there stays where it is: it has no slope, and takes less than a branch that a processor does not foresee.
    """
    return with_body(program, sink_block(program.body))


def chooses(bind: Bind) -> bool:
    """Whether a binding chooses integers, or truth values, from others."""
    trivial = type(bind.op) is If and not any(block.binds for block in blocks_of(bind.op))
    return trivial and all(v.type in (INT, BOOL) for v in bind.vars)


def sink_block(block: Block) -> Block:
    if not any(blocks_of(bind.op) for bind in block.binds):
        return block
    here: set[Var] = set()  # read in the block itself, or in two places
    branch_of: dict[Var, tuple[int, int]] = {}  # read in this branch only
    moved: dict[tuple[int, int], list[Bind]] = {}
    kept: list[tuple[int, Bind]] = []

    def read(a: Atom, place: tuple[int, int] | None = None) -> None:
        if type(a) is not Var or a in here:
            return
        if place is None or branch_of.setdefault(a, place) != place:
            here.add(a)

    for r in block.results:
        read(r)
    for k in range(len(block.binds) - 1, -1, -1):
        bind = block.binds[k]
        op = bind.op
        places = {branch_of.get(v) if v not in here else None for v in bind.vars}
        place = places.pop() if len(places) == 1 else None
        if place is not None and not (type(op) is Check or effects(op) or chooses(bind)):
            moved.setdefault(place, []).append(bind)
        else:
            place = None
            kept.append((k, bind))
        for a in atoms_of(op):
            read(a, place)
        for v in bind.vars:
            for d in type_atoms(v.type):
                read(d, place)
        for j, region in enumerate(blocks_of(op)):
            own = binders_of(op)
            for v in free_vars(region):
                if v in own:
                    continue
                read(v, place if place is not None else (k, j) if type(op) in (If, Case) else None)
    binds = []
    for k, bind in reversed(kept):
        op = bind.op
        if blocks_of(op):
            regions = []
            for j, region in enumerate(blocks_of(op)):
                first = tuple(reversed(moved.get((k, j), ())))
                regions.append(sink_block(Block((*first, *region.binds), region.results)))
            op = with_blocks(op, regions)
        binds.append(bind if op is bind.op else Bind(bind.vars, op, bind.span))
    return Block(tuple(binds), block.results)


# -------------------------------------------------------------------------------------- idle iterations


class Idle(Rebuild):
    """What a loop does after a branch is done in the branch, if it does nothing where the other one is taken.

    ``(let [f (if (< r c) (force r) 0)] (add-at a i (* f x)))``, the zero one of differentiation's  =>
    ``(if (< r c) (add-at a i (* (force r) x)) a)``: the gradient of a sum of few terms goes on with the next one, as
    the sum does. Design decision: beside a branch that stays one in machine code, and late, since no pass over loops
    looks for sums in branches. Not where nothing is done if two reals are equal: that saves nothing, and loops without
    a branch can be vectors.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.found = False

    @staticmethod
    def takes(bind: Bind) -> bool:
        """Whether a loop has a branch that one arm may leave with nothing done."""
        op = bind.op
        if type(op) is not Loop or not op.accs or op.index.soft:
            return False
        binds, results, width = op.body.binds, op.body.results, len(op.accs)
        for k, x in enumerate(binds):
            arms = blocks_of(x.op) if type(x.op) is If else ()
            trivial = [dict(zip(x.vars, arm.results)) for arm in arms if not arm.binds]
            if trivial and any(map(dear, arms)):
                after = dependent(x, binds[k + 1 :])
                moving = [(r, acc) for r, acc in zip(results, op.accs) if r in after]
                as_before = (all(arm.get(r, acc) is acc for r, acc in moving) for arm in trivial)  # type: ignore
                if moving and after.isdisjoint(results[width:]) and any(as_before):
                    return True
        return False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width = len(op.accs)
        if not self.takes(bind):
            return super().loop(op, bind)

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.rest(op.body, [*accs, *[None] * (len(op.body.results) - width)])
            return results[:width], results[width:]

        return self.loop_like(op, bind, body)

    def rest(self, block: Block, idle: Sequence[Atom | None]) -> list[Atom]:
        """The results of a block, which are ``idle`` where nothing is done."""
        b, soft = self.b, self.b.soft
        for k, x in enumerate(block.binds):
            b.span, b.soft = x.span, x.soft
            if type(x.op) is If and any(map(dear, blocks_of(x.op))):
                after = dependent(x, block.binds[k + 1 :])
                moving = [j for j, r in enumerate(block.results) if r in after]
                done = [j for j, arm in enumerate(blocks_of(x.op)) if self.leaves(arm, x, block, k, moving, idle)]
                if moving and len(done) == 1 and done[0] != self.seldom(x.op):
                    return self.parted(block, k, done[0], moving, idle)
            self.bind(x)
        b.soft = soft
        return list(self.atoms(block.results))

    def seldom(self, op: If) -> int | None:
        """The arm that is taken where two reals are equal: seldom, so that a branch saves nothing."""
        cond = self.b.definitions.get(self.atom(op.cond))  # type: ignore[call-overload]
        reals = cond is not None and cond.name in ("=", "!=") and type_of(cond.args[0]) == REAL
        return int(cond.name == "!=") if reals else None  # type: ignore[union-attr]

    def leaves(
        self, arm: Block, x: Bind, block: Block, k: int, moving: Sequence[int], idle: Sequence[Atom | None]
    ) -> bool:
        """Whether all that depends on a branch is as before where this arm of it is taken."""
        if arm.binds or any(idle[j] is None for j in moving):
            return False
        wanted = [block.results[j] for j in moving]
        with self.b.region():
            self.define(x, self.atoms(arm.results))
            results = self.block(slice_of(Block(block.binds[k + 1 :], ()), wanted))
        return all(r is idle[j] for j, r in zip(moving, results))

    def parted(self, block: Block, k: int, done: int, moving: Sequence[int], idle: Sequence[Atom | None]) -> list[Atom]:
        """The results of a block; what depends on its k-th binding, a branch, is made in the arm not ``done``."""
        self.found = True
        b, x = self.b, block.binds[k]
        later = Block(block.binds[k + 1 :], ())
        steady = [r for j, r in enumerate(block.results) if j not in moving]
        self.block(slice_of(later, steady))
        wanted = [block.results[j] for j in moving]
        cond, arms = self.atom(x.op.cond), []
        for j, arm in enumerate(blocks_of(x.op)):
            with b.branch_region(cond, j == 0) as scope:
                if j == done:
                    results = [idle[m] for m in moving]
                else:
                    tail = slice_of(later, wanted)
                    whole = substitute(Block(tail.binds, tail.results), dict(zip(x.vars, arm.results)))
                    results = self.rest(Block((*arm.binds, *whole.binds), whole.results), [idle[m] for m in moving])
            arms.append((scope, results))
        names = [a.name for a in (idle[m] for m in moving)]  # type: ignore[union-attr]
        self.here.update(zip(wanted, b.if_(cond, *arms, names)))  # type: ignore[arg-type]
        return list(self.atoms(block.results))


def dear(block: Block) -> bool:
    """Whether something in a block costs too much to be computed in vain."""
    return any(
        type(x.op) is not Prim or x.op.name in PRIMITIVES and PRIMITIVES[x.op.name].cost >= DEAR
        for x in all_binds(block)
    )


def dependent(bind: Bind, later: Sequence[Bind]) -> set[Var]:
    """What depends on a binding, with what it binds."""
    found = set(bind.vars)
    for x in later:
        if not found.isdisjoint(reads(x)):
            found.update(x.vars)
    return found


def idle(program: Program) -> Program:
    """Moves what comes after a branch into it, where the other branch leaves all as it is."""
    pass_ = Idle(Builder())
    made = taken(program, pass_)
    return sink(made) if pass_.found else program


def reads_first(binds: Sequence[Bind]) -> Sequence[Bind]:
    """The bindings of a block, in which what reads an array before it is changed comes before what changes it.

    ``b = (update a i x); y = (f (get a j))``  =>  ``y = (f (get a j)); b = (update a i x)``.
    Design decision: for reverse mode, which goes through them backwards: what the change gives to the adjoint of the
    array is all of an array, and what is added to elements of it then is added in place. The other way round an array
    of zeros but for these elements is added to another one. Checks that stand between are made before as well.
    """
    last = {a: k for k, x in enumerate(binds) for a in reads(x)}
    for k, x in enumerate(binds):
        old = changed_by(x)
        if any(last[a] > k for a in old):
            binds = before_change(binds, x, old)
    return binds


def changed_by(bind: Bind) -> set[Atom]:
    """The arrays of which a binding makes others by changing elements, as an operation or a loop."""
    op = bind.op
    if type(op) is Prim:
        return {op.args[0]} if op.name in ("update", "add-at") else set()
    return {z for z in op.inits if isinstance(type_of(z), Arr)} if type(op) is Loop else set()


def before_change(binds: Sequence[Bind], change: Bind, old: set[Atom]) -> Sequence[Bind]:
    """The same for one change of some arrays."""
    k = next(k for k, x in enumerate(binds) if x is change)
    late, free, wanted = set(change.vars), [], []
    for x in binds[k + 1 :]:
        partial = type(x.op) is Check or effects(x.op)
        if late.isdisjoint(reads(x)):
            free.append((x, partial))
            if not old.isdisjoint(reads(x)) and old.isdisjoint(changed_by(x)):
                wanted.append(x)
        elif partial:  # what is checked there may be what a later one needs
            break
        else:
            late.update(x.vars)
    if not wanted:
        return binds
    moved: set[Bind] = set()
    needed: set[Atom] = set()
    for x, partial in reversed(free):
        if x in wanted or not needed.isdisjoint(x.vars) or partial and moved:
            moved.add(x)
            needed.update(reads(x))
    first = [x for x in binds[k + 1 :] if x in moved]
    return [*binds[:k], *first, change, *(x for x in binds[k + 1 :] if x not in moved)]
