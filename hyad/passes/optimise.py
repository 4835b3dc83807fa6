"""Optimisation of typed programs: plain lists of passes ``Program -> Program``.

The builder already folds, rewrites and shares as a program is built; the passes here do what needs a view of the
whole: dead code, loops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from ..core import (
    INT,
    REAL,
    ROW,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Scalar,
    Type,
    Var,
    While,
    all_binds,
    binders_of,
    blocks_of,
    defined_in,
    each_function,
    free_vars,
    functions_of,
    kinds_of,
    reads,
    size,
    substitute,
    type_of,
    uses,
    with_blocks,
    with_body,
)
from ..program.alike import same_code, structure
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.check import check_after
from ..program.counts import inside, work
from ..program.dead import dead_code, has_checks, tidy
from ..program.journal import FIRED, LEFT, OFF
from ..program.loops import CALL, array_uses, cost_of, loops_of, slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuild, rebuilt, taken
from ..program.sink import idle, sink
from .abreast import abreast, calls_first
from .adds_last import adds_last
from .afterwards import afterwards
from .align import align
from .alongside import alongside, recomputed
from .at_hand import at_hand
from .bands import bands
from .cancel import cancel
from .carried_last import carried_last
from .carry import carry
from .chains import chains
from .checks import Around, checks_first, made_two, once, one_size
from .choices import choices, masked_sums
from .collect import Collect
from .columns import Columns, candidates
from .common import common_factors
from .copies import Accumulate, Alias, Same, copied
from .counted import counted
from .data_first import outside
from .denormals import denormals
from .edges import edges
from .eights import Eights, Plan, all_of_them, in_part
from .exponents import exponents
from .factors import factors
from .fills import fills
from .fission import Expand, Fission
from .flags import flags
from .functions import fuse_calls, hand_on, inline, tail_calls, unused
from .fusion import Fuse, alone, diagonals_block, fuse_siblings, siblings
from .history import history
from .induction import induction
from .jam import Jam, Room
from .keep_calls import keep_calls
from .lanes import Lanes, RowLanes
from .lasting import lasting
from .lesser_powers import LesserPowers, lesser_powers
from .log_sums import log_sums
from .monomials import monomials
from .monotone import monotone
from .narrow import narrow
from .neighbours import neighbours
from .nests import Interchange, JamRows, Register, RowFolds, Steps, as_additions, row_makers
from .one_changed import one_changed
from .one_element import one_element
from .onehot import OneHot, Unswitch, may_be_one_hot, own_test
from .overlaps import overlaps
from .pairs import pairs
from .periods import periods
from .places import one_place
from .power_tables import power_tables
from .powers import powers_of_two
from .prefixes import prefixes
from .privatise import privatise
from .products import Products
from .reciprocals import divide, reciprocals
from .recurring import recurring
from .renew import put_aside, renew
from .reshaped import reshaped
from .rings import rings
from .roots import roots
from .roundtrip import round_trips
from .rows import added_rows
from .running import running_sums
from .running_powers import running_powers
from .scalar_replacement import scalar_replacement
from .scalings import scalings
from .searches import Searches, search_of
from .settled import settled
from .shifts import forwards, shifts
from .shrinking import shrinking
from .skips import skips
from .splits import Split, changes_and_reads
from .stores import assign, one_addition, one_store, overwritten, scatter
from .strands import strands
from .suffixes import suffix_sums
from .tables import Tabulate
from .terms import like_terms, open_brackets
from .transposes import by_columns, transposes
from .triangles import triangles
from .twins import movable, twins
from .unbranched import unbranched
from .unchanged import filled, unchanged
from .unfold import unfold
from .unread import unread
from .whiles import Singles, length, meet_whiles
from .windows import windows
from .wraps import wraps

Pass = Callable[[Program], Program]

SPLITS = 3  # how often a loop is split: where a stencil ends on both sides of a row, and in one place between
#: A loop of known trip count is written out if it is that short and that makes at most so many bindings.
UNROLL_COUNT, UNROLL = 32, 400
#: Branches by one condition whose results are compared one by one compute each in so many steps at most.
ALIKE = 16
#: One along a row that data says stays a loop from so many elements on.
GATHERED = 8
#: One that makes up to so many is tried: it stays written out where that saves a third of its work.
TRIED = 4000


# -------------------------------------------------------------------------------------------- unrolling


class Unroll(Rebuild):
    """Writes out loops of small known trip count; their arrays become single values.

    ``(build 3 (fn [i] (f (get x i))))``  =>  ``[(f (get x 0)) (f (get x 1)) (f (get x 2))]``.
    Design decision: before differentiation, where a scalar's derivative is sparse for free.
    """

    def __init__(self, builder: Builder, longest: int = UNROLL_COUNT) -> None:
        super().__init__(builder)
        self.budget = 0 if "unroll" in builder.off else 4 * UNROLL
        self.longest = longest

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and op.snapshots is None and type(self.atom(op.count)) is Const:
            count = self.atom(op.count).value  # type: ignore[union-attr]
            cost = count * expanded_size(op.body, {op.index: (count - 1) / 2})
            if self.longest and count <= 1 and self.once(op, bind, count):
                return
            if 0 < count <= self.longest and cost <= TRIED and self.by_element(op, count):
                if cost <= min(UNROLL, self.budget):
                    binds = self.b.scopes[-1].binds
                    before = len(binds)
                    self.write_out(op, bind, count)
                    self.budget -= min(cost, len(binds) - before)
                    return
                if self.budget and self.tried(op, bind, count):
                    return
        self.copy(bind)

    def once(self, op: Loop, bind: Bind, count: int) -> bool:
        """A loop that runs once is its body, and one that never runs what it starts from, unless it stacks arrays."""
        stacked = op.body.results[len(op.accs) :]
        if "unroll" in self.b.off or any(count == 0 or type(type_of(r)) is not Scalar for r in stacked):
            return False
        if count:
            self.write_out(op, bind, count)
        else:
            self.define(bind, self.atoms(op.inits))
        return True

    def tried(self, op: Loop, bind: Bind, count: int) -> bool:
        """Write a loop out if that saves work: where most iterations do less than the loop must do in each, as along
        unit vectors."""
        b = self.b
        with b.region() as scope:
            self.write_out(op, bind, count)
        outs = self.atoms(bind.vars)
        made = tidy(b.close(scope, outs))
        with b.region() as looped:
            self.copy(bind)
        loop = tidy(b.close(looped, self.atoms(bind.vars)))
        kept = scope if size(made) <= self.budget and work(made) < work(loop) * 2 / 3 else looped
        b.keep(kept)
        if kept is scope:
            self.budget -= size(made)
            self.define(bind, outs)
        return True

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        """A branch that gives small arrays made of single values, in both arms, gives the values."""
        b, cond = self.b, self.atom(op.cond)
        small = [length(v) for v in bind.vars]
        if not any(small) or type(cond) is Const or cond in self.holds:
            return super().if_(op, bind)
        arms = [self.branch(cond, block, holds) for block, holds in ((op.then, True), (op.orelse, False))]
        apart = [n if all(self.of_values(results[k]) for _, results in arms) else 0 for k, n in enumerate(small)]
        regions = []
        for scope, results in arms:
            rows = [[b.get(r, Const(i, INT)) for i in range(n)] if n else [r] for r, n in zip(results, apart)]
            regions.append((scope, [x for row in rows for x in row]))
        names = [v.name for v, n in zip(bind.vars, apart) for _ in range(n or 1)]
        out = iter(b.if_(cond, *regions, names, bind.vars[0].given))
        return [b.array([next(out) for _ in range(n)], v.name) if n else next(out) for v, n in zip(bind.vars, apart)]

    def of_values(self, a: Atom) -> bool:
        made = self.b.definitions.get(a)  # type: ignore[call-overload]
        return made is not None and made.name in ("array", "zeros")

    def by_element(self, op: Loop, count: int) -> bool:
        """Whether writing a loop out makes single values of array elements: it stacks numbers that it computes, or
        small arrays, or subscripts an argument or an array of known elements by its index. A loop that only counts
        stays a loop (and so do the loops of its derivative, which remember states and rows of unknown size), so that
        the code does not grow with the count."""
        if count > ROW and self.goes_on(op) or count >= GATHERED and self.gathers(op):
            return False
        if any(r not in op.accs and sized(type_of(r)) for r in op.body.results[len(op.accs) :]):
            return True
        moving: set[Atom] = {op.index}
        for bind in all_binds(op.body):
            inner = bind.op
            if type(inner) is Prim:
                if inner.name in ("get", "update", "add-at") and any(a in moving for a in inner.args):
                    base = self.atom(inner.args[0])
                    if count <= ROW and any(a in moving for a in inner.args[2:]):
                        return True
                    made_here = any(base in scope.vars for scope in self.b.scopes)
                    if not made_here or base in self.b.definitions and sized(type_of(base)):
                        value = bind.vars[0] if inner.name == "get" else inner.args[-1]
                        if inner.args[0] not in op.accs or sized(type_of(value)):
                            return True
                if any(a in moving for a in inner.args):
                    moving.update(bind.vars)
        return False

    def gathers(self, op: Loop) -> bool:
        """Whether a loop goes along a row that data says: it is a vector as it is, and written out it is numbers that
        compilers make none of. What is written out is for several rows at once, which here lie anywhere."""
        made = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
        for read in made.values():
            if read.name == "get" and len(read.args) > 2 and read.args[-1] is op.index:
                row = self.atom(read.args[1])
                found = made.get(row) or self.b.definitions.get(row)  # type: ignore[call-overload]
                if found is not None and found.name in ("int", "get"):
                    return True
        return False

    def goes_on(self, op: Loop) -> bool:
        """Whether a loop has another one inside of unknown length: one that is unknown where the index is known."""
        known: set[Atom] = {op.index}
        for bind in op.body.binds:
            inner = bind.op
            if type(inner) is Prim and all(type(self.atom(a)) is Const or a in known for a in inner.args):
                known.update(bind.vars)
            if type(inner) is Loop and type(self.atom(inner.count)) is not Const and inner.count not in known:
                return True
        return False

    def write_out(self, op: Loop, bind: Bind, count: int) -> None:
        width = len(op.accs)
        accs = list(self.atoms(op.inits))
        stacked: list[list[Atom]] = [[] for _ in bind.vars[width:]]
        scope = self.b.scopes[-1]
        first = len(scope.binds)
        for i in range(count):
            self.here[op.index] = Const(i, op.index.type)
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            accs = list(results[:width])
            for column, r in zip(stacked, results[width:]):
                column.append(r)
        if count <= ROW and any(type(x.op) is Loop for x in scope.binds[first:]):  # sums of all columns, in one loop
            scope.binds[first:] = siblings(Block(tuple(scope.binds[first:]), ())).binds
        self.b.span = bind.span
        outs = [self.b.array(column, v.name, v.given) for column, v in zip(stacked, bind.vars[width:])]
        self.define(bind, [*accs, *outs])


def sized(type: Type) -> bool:
    """Whether it is known how many numbers there are."""
    return not isinstance(type, Arr) or all(isinstance(n, Const) for n in type.dims)


def expanded_size(block: Block, means: Mapping[Atom, float] | None = None) -> int:
    """The bindings of a block with its inner loops of known trip count written out. ``means`` has the integers around
    it that will be known then, an index say, as their mean over the iterations: a triangle counts as half a square."""
    known, total = dict(means or {}), 1.0
    for bind in block.binds:
        op, inner = bind.op, 0.0
        if type(op) is Loop:
            count = op.count.value if type(op.count) is Const else known.get(op.count)
            if count is not None:
                known[op.index] = (count - 1) / 2
            inner = max(1, count or 0) * expanded_size(op.body, known)
        else:
            inner = sum(expanded_size(b, known) for b in blocks_of(op))
            if type(op) is Prim and op.name in ("+", "-") and bind.vars[0].type == INT:
                terms = [a.value if type(a) is Const else known.get(a) for a in op.args]
                if None not in terms:
                    known[bind.vars[0]] = terms[0] + terms[1] if op.name == "+" else terms[0] - terms[1]
        total += 1 + inner
    return round(total)


def unroll_block(b: Builder, block: Block) -> Block:
    """``Unroll`` for a block under construction."""
    if Loop not in kinds_of(block):
        return block
    return Unroll(b).remade(block)


def split_block(b: Builder, block: Block) -> Block:
    """``Fission`` for a block under construction, its outermost loops included."""
    return tidy(Fission(b, depth=1).remade(block))


def left_block(b: Builder, block: Block) -> Block:
    """``Fission`` of recurrences that leave a loop, for a block under construction, before it is differentiated."""
    if "fission" in b.off or not any(Loop in kinds_of(x.op.body) for x in all_binds(block) if type(x.op) is Loop):
        return block
    return tidy(Fission(b, ahead=True).remade(block))


def expand_block(b: Builder, block: Block) -> Block:
    """``Expand`` for a block under construction, before it is differentiated."""
    if "expand" in b.off or not any(Loop in kinds_of(x.op.body) for x in all_binds(block) if type(x.op) is Loop):
        return block
    return tidy(Expand(b, ahead=True).remade(block))


def fission(program: Program) -> Program:
    """Splits loops into independent parts, so that each can leave the loops that do not change it (loop fission)."""
    return rebuild(program, Fission) if nested_loops(program) else program


def expand(program: Program) -> Program:
    """Computes what inner iterations need and an outer loop does not change before it, in a table (expansion)."""
    pass_ = Expand(Builder())
    return rebuilt(program, pass_) if any(map(pass_.takes, loops_of(program))) else program


def split(program: Program) -> Program:
    """Splits a loop at the indices where its branches change (index-set splitting), one after the other."""
    for _ in range(SPLITS):
        loops = loops_of(program)
        if not any(changes_and_reads(op) or any(type(b.op) is If for b in op.body.binds) for op in loops):
            break
        made = rebuild(program, Split)
        if sum(1 for _ in loops_of(made)) == sum(1 for _ in loops_of(program)):
            return made
        program = made
    return program


def unchecked(program: Program) -> Program:
    """Adds a version of a loop without the checks in its branches, for when all of them are known to hold before it
    starts (loop versioning).

    ``(loop n (fn [i] (if c (do (check (< i m)) (get v i)) x)))``  =>  ``(if (<= n m) (loop n (fn [i] (if c (get v i)
    x))) (loop ..))``, the second one as it was. What may fail no more is taken apart as other loops are.
    """
    made = made_two(program)
    return split(dead_code(made)) if made is not program else program


def tabulate(program: Program) -> Program:
    """Computes a costly function of an integer once for each value that loops around it can give, as a table."""
    pass_ = Tabulate(Builder())
    return rebuilt(program, pass_) if any(map(pass_.takes, loops_of(program))) else program


def integer_tables(program: Program) -> Program:
    """``tabulate`` of functions of integers alone, before powers are made of one another; off where that is."""
    pass_ = Tabulate(Builder(), ahead=True)
    if "tabulate" in pass_.b.off:
        return program
    return rebuilt(program, pass_) if any(map(pass_.takes, loops_of(program))) else program


def integer_tables_block(b: Builder, block: Block) -> Block:
    """``integer_tables`` for a block under construction, before it is differentiated."""
    loops = [x.op for x in all_binds(block) if type(x.op) is Loop]
    if not b.off.isdisjoint(("integer-tables", "tabulate")) or not any(Loop in kinds_of(op.body) for op in loops):
        return block
    pass_ = Tabulate(b, ahead=True)
    return tidy(pass_.remade(block)) if any(map(pass_.takes, loops)) else block


def nested_loops(program: Program) -> bool:
    return any(Loop in kinds_of(loop.body) for loop in loops_of(program))


def unroll(program: Program) -> Program:
    """Unrolls loops of small, known trip count, but none as long as a loop over a derivative's directions that was
    kept."""
    known = [loop for loop in loops_of(program) if type(loop.count) is Const]
    kept = [loop.count.value for loop in known if loop.index.soft]
    longest = min([UNROLL_COUNT, *(n - 1 for n in kept)])
    return rebuild(program, lambda b: Unroll(b, longest)) if known else program


def singles(program: Program) -> Program:
    """Carries the elements of small arrays through loops as scalars (scalar replacement)."""
    made = with_body(program, singles_block(Builder(), program.body, program.dims))
    return program if made.body is program.body else unroll(dead_code(made))


def singles_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``Singles`` for a block under construction; itself where it has nothing to do. Design decision: also before a
    block is differentiated, where the sum of each element is seen to be one."""
    states = (a for x in all_binds(block) if type(x.op) in (Loop, While) for a in x.op.accs)  # type: ignore[union-attr]
    if "singles" in b.off or not any(map(length, states)):
        return block
    b.sizes.update(sizes)
    pass_ = Singles(b)
    made = pass_.remade(block)
    return made if pass_.found else block


def fuse(program: Program) -> Program:
    """Computes the elements of an array where they are used, so that no array is made between producer and consumers
    (loop fusion)."""
    return rebuild(program, lambda b: Fuse(b, program.body)) if elements_read(program) else program


def fuse_numbers(program: Program) -> Program:
    """Fuses numbers that take no loop, and that no loop reads again, once the order of loops is settled."""
    wanted = (
        "fuse" not in OFF.get() and elements_read(program) and Fuse(Builder(), program.body, True).may(program.body)
    )
    return rebuild(program, lambda b: Fuse(b, program.body, once=True)) if wanted else program


def elements_read(program: Program) -> bool:
    """Whether an element or a row is read of an array that a loop has made."""
    made: set[Atom] = set()
    for x in all_binds(program.body):
        if type(x.op) is Loop:
            made.update(x.vars)
        elif type(x.op) is Prim and x.op.name == "get" and x.op.args[0] in made:
            return True
    return False


class Share(Rebuild):
    """Common subexpressions where regions have been joined, and accumulators of a loop that are always equal: they
    start equal and, supposed that they are, go on equal. What is stacked twice is stacked once. What a branch gives is
    not computed again where the same condition has chosen it: ``(sqrt s)`` of what follows ``r = (if c 0.0 (sqrt s))``
    is ``r`` in ``(if c .. ..)``'s second arm. Arrays that are changed alike from the same one on are one: where they
    part, it is copied, as the one that they begin with would be."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        builder.shares_changes = True
        self.chosen: dict[tuple[Atom, bool], list[tuple[Scope, Prim, Var]]] = {}

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        out = super().if_(op, bind)
        scope = self.b.scopes[-1]
        made = scope.binds[-1] if scope.binds else None
        if made is not None and type(made.op) is If and made.vars == tuple(out):
            out = [self.given_before(made.op, k, v) for k, v in enumerate(made.vars)]
            for holds, arm in zip((True, False), blocks_of(made.op)):
                ops = {x.vars[0]: x.op for x in arm.binds if type(x.op) is Prim and x.op.name in PRIMITIVES}
                self.chosen.setdefault((made.op.cond, holds), []).extend(
                    (scope, ops[r], v) for r, v in zip(arm.results, made.vars) if r in ops
                )
        return out

    def given_before(self, op: If, k: int, v: Var) -> Atom:
        """What a branch gives, or what another one by the same condition has given that computes it alike."""
        arms = [slice_of(arm, arm.results[k : k + 1]) for arm in blocks_of(op)]
        if not isinstance(v.type, Scalar) or any(len(arm.binds) > ALIKE for arm in arms) or any(map(has_checks, arms)):
            return v
        key = ("given", op.cond, *map(structure, arms))
        found = self.b.shared(key)
        if found is None:
            self.b.scopes[-1].shared[key] = found = v
        return found

    def entered(self, cond: Atom, holds: bool) -> None:
        for scope, op, v in self.chosen.get((cond, holds), ()):
            if scope in self.b.scopes:
                self.b.remember(op.name, op.args, v)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width, inits = len(op.accs), self.atoms(op.inits)
        leader = self.leaders([(type_of(z), self.value(z)) for z in inits])
        leader = self.equal(op, leader) if len(set(leader)) < width else list(range(width))
        table = {op.accs[k]: op.accs[leader[k]] for k in range(width) if leader[k] != k}
        kept = [k for k in range(width) if leader[k] == k]
        if len(kept) < width:
            body = substitute(op.body, table)
            results = (*(body.results[k] for k in kept), *body.results[width:])
            accs, starts = (tuple(atoms[k] for k in kept) for atoms in (op.accs, op.inits))
            op = Loop(op.count, op.index, starts, accs, Block(body.binds, results), op.snapshots)
            bind = Bind((*(bind.vars[k] for k in kept), *bind.vars[width:]), op, bind.span)
        made = self.once(op, bind)
        return [*(made[kept.index(k)] for k in leader), *made[len(kept) :]]

    def once(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        """A loop in which what is stacked twice, when all in it is shared, is stacked once."""
        width = len(op.accs)
        first: list[int] = []

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            stacked = [(self.b.key(r) if type(r) is Var else k) for k, r in enumerate(results[width:])]
            first.extend(self.leaders(stacked))
            return results[:width], [results[width + k] for k in sorted(set(first))]

        # the names are known before what is stacked is: they are given afterwards to what is kept, in order
        out = self.loop_like(op, bind, body)
        kept = sorted(set(first))
        return [*out[:width], *(out[width + kept.index(k)] for k in first)]

    @staticmethod
    def leaders(keys: Sequence[object]) -> list[int]:
        """For each key, where it stands first."""
        return [keys.index(key) for key in keys]

    def value(self, atom: Atom) -> object:
        """What equal values have in common; arrays that are changed in place have memory of their own each, and are
        equal where equal ones are changed alike."""
        changes: list[object] = []
        while type(atom) is Var and (op := self.b.definitions.get(atom)) is not None:
            if op.name == "zeros":
                return (*changes, type_of(atom))
            if op.name not in ("update", "add-at"):
                break
            changes.append((op.name, *map(self.b.key, op.args[1:])))
            atom = op.args[0]
        return (*changes, self.b.key(atom)) if changes else self.b.key(atom)

    def equal(self, op: Loop, leader: list[int]) -> list[int]:
        """The accumulators' classes, split until each stays together over one iteration."""
        while True:
            with self.b.region() as scope:
                accs = [Var(a.name, a.type, a.span) for a in op.accs]
                scope.vars.update((op.index, *accs))
                self.here[op.index] = op.index
                self.here.update((a, accs[k]) for a, k in zip(op.accs, leader))
                results = self.block(Block(op.body.binds, op.body.results[: len(accs)]))
            split = self.leaders([(k, self.value(r)) for k, r in zip(leader, results)])
            if split == leader:
                return leader
            leader = split


def share(program: Program) -> Program:
    """Shares common subexpressions where regions have been joined, and accumulators of loops that are always equal."""
    return rebuild(program, Share) if any(type(bind.op) in (If, Loop) for bind in program.body.binds) else program


class SizesFirst(Rebuild):
    """Compares two sizes before the loops that do not change them, once.

    ``(build n (fn [i] (do (require-equal m l) x)))``  =>  ``(require-equal m l)``, then ``(build n (fn [i] x))``.
    Design decision: as with bounds, what only an empty loop would have needed is required as well. No pass moves or
    fuses a loop in which something may fail.
    """

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        self.compare(op)
        return super().loop(op, bind)

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        self.compare(op)
        return super().while_(op, bind)

    def compare(self, op: Loop | While) -> None:
        todo, inside = blocks_of(op), {*binders_of(op), *(v for block in blocks_of(op) for v in defined_in(block))}
        span = self.b.span
        while todo:
            block, *todo = todo
            for x in block.binds:
                if type(x.op) is Check and x.op.relation == "==" and inside.isdisjoint((x.op.a, x.op.b)):
                    self.line(x)  # from here on it is known
                elif type(x.op) in (Loop, While):
                    todo = [*todo, *blocks_of(x.op)]
        self.b.span = span


def sizes_first(program: Program) -> Program:
    """Compares sizes before the loops that do not change them."""
    regions = (block for x in all_binds(program.body) if type(x.op) in (Loop, While) for block in blocks_of(x.op))
    inside = any(type(x.op) is Check and x.op.relation == "==" for block in regions for x in all_binds(block))
    return rebuild(program, SizesFirst) if inside else program


def diagonals(program: Program) -> Program:
    """Puts elements of matrices that are read along diagonals alone where they are read."""
    made = with_body(program, diagonals_block(Builder(), program.body, program.dims))
    return program if made.body is program.body else made


def one_hot(program: Program) -> Program:
    """Replaces a loop that does something at one index only by that one iteration."""
    return rebuild(program, OneHot) if may_be_one_hot(program) else program


def unswitch(program: Program) -> Program:
    """Moves the loops of an iteration under the test without which each of them does something at one index only."""
    return rebuild(program, Unswitch) if any(map(own_test, loops_of(program))) else program


def data_first(program: Program) -> Program:
    """Puts the loops over directions of a Hessian inside those over data, and makes single iterations of what is left
    of loops that also did what no direction changes."""
    made = outside(program)
    return fuse(dead_code(one_hot(made))) if made is not program else program


def alias(program: Program) -> Program:
    """Replaces an array that a loop only copies by the original."""
    while any(copied(loop) for loop in loops_of(program)):  # the rows of a copy of a matrix, then the matrix
        before, program = loops_of(program), dead_code(rebuild(program, Alias))
        if len(loops_of(program)) == len(before):
            break
    return program


def same_loops(program: Program) -> Program:
    """Reuses what an earlier loop has computed where a later one computes the same."""
    if len(loops_of(program)) < 2:
        return program
    pass_ = Same(program.body)
    pass_.block(program.body, {})
    return with_body(program, substitute(program.body, pass_.known)) if pass_.known else program


def accumulate(program: Program) -> Program:
    """Merges two accumulators of adjoints into one."""
    pass_ = Accumulate(Builder(), program.body)
    return rebuild(program, lambda b: Accumulate(b, program.body)) if pass_.twice() else program


def interchange(program: Program) -> Program:
    """Interchanges loops so that the inner one reads and writes neighbouring elements."""
    if not nested_loops(program):
        return program
    for _ in range(3):  # a loop may go in by more than one level
        nests = Interchange(Builder(), Steps(program.body))
        if not any(map(nests.swap, loops_of(program))):
            break
        program = dead_code(rebuilt(program, nests))
    return program


def growing_sums(program: Program) -> Program:
    """Interchanges loops whose inner one sums a term more or less each time, as the lags of an autocorrelation, so that
    the sums of all iterations are one row."""
    if not nested_loops(program):
        return program
    nests = Interchange(Builder(), Steps(program.body), growing=True)
    return rebuilt(program, nests) if any(map(nests.swap, loops_of(program))) else program


def row_folds(program: Program) -> Program:
    """Takes one row of a state through all iterations of a fold before the next row (loop interchange)."""
    while any(row_makers(loop) for loop in loops_of(program)):  # the inner one of two folds first
        pass_ = RowFolds(Builder())
        made = rebuilt(program, pass_)
        if not pass_.found:
            break
        program = dead_code(made)
    return program


def products(program: Program) -> Program:
    """Makes one operation of the loops of a matrix product, for a BLAS."""
    return rebuild(program, lambda b: Products(b, uses(program.body))) if nested_loops(program) else program


def columns(program: Program) -> Program:
    """Adds to a sum of tangents only those columns that may be other than zero."""
    if not candidates(program.body):
        return program
    pass_ = Columns(Builder())
    made = rebuilt(program, pass_)
    return made if pass_.narrowed else program


def register(program: Program) -> Program:
    """Sums in a register what a loop adds to one element of an array, and adds it to the array once."""
    return taken(program, Register(Builder(), Steps(program.body)))


def branch_sums(program: Program) -> Program:
    """Sums in a register what the branches of a loop add to one element of an array, as ``register`` does."""
    if not any(type(x.op) is If for loop in loops_of(program) for x in loop.body.binds):
        return program
    return taken(program, Register(Builder(), Steps(program.body), arms=True))


def lanes(program: Program) -> Program:
    """Takes the sums of eight iterations of an outer loop as vectors, each in its own order."""
    return taken(program, Lanes(Builder(), Steps(program.body))) if nested_loops(program) else program


def row_lanes(program: Program) -> Program:
    """Adds to parts of the rows of eight iterations as vectors, each row in its own order."""
    return taken(program, RowLanes(Builder(), Steps(program.body))) if nested_loops(program) else program


def eights(program: Program) -> Program:
    """Runs eight iterations of a loop around recurrences at once, as vectors."""
    return in_eights(program, all_of_them)


def whole_eights(program: Program) -> Program:
    """Runs as many iterations at once as ``eights`` does, of loops of which ``lanes`` would take less."""
    return in_eights(program, in_part)


def in_eights(program: Program, which: Callable[[Loop, Plan], bool]) -> Program:
    """Eight at once of those loops; cheap states of theirs are computed again where they are read (``alongside``)."""
    if not nested_loops(program):
        return program
    pass_ = Eights(Builder(), Steps(program.body), Room(program), which)
    found = [x for x in all_binds(program.body) if type(x.op) is Loop and pass_.takes(x)]
    if found and "alongside" not in OFF.get():
        program = recomputed(program, 1, found)
    return rebuild(program, lambda b: Eights(b, Steps(program.body), Room(program), which)) if found else program


def jam(program: Program) -> Program:
    """Takes the short sums of four iterations side by side, each in its own order (unroll and jam)."""
    return taken(program, Jam(Builder(), Steps(program.body), Room(program))) if nested_loops(program) else program


def searches(program: Program) -> Program:
    """Searches for a largest or smallest value, and where it is, in eight vector lanes."""
    return rebuild(program, Searches) if any(map(search_of, loops_of(program))) else program


def jam_rows(program: Program) -> Program:
    """Adds four terms at a time to the elements of a row, or five that are all, in their order (unroll and jam)."""
    if not nested_loops(program):
        return program
    for added in (with_body(program, as_additions(program.body)), program):
        made = taken(added, JamRows(Builder(), Steps(added.body), Room(added)))
        if made is not added:
            return made
    return program


def meet(program: Program) -> Program:
    """Fuses loops of equal length that share much work: a value and its gradient sum the same rows."""
    made = met(program)
    if made is program:
        return program
    made = share(made)  # what is inside of two loops that have met may go equally far only now
    return share(with_body(made, siblings(made.body)))


def follow(program: Program) -> Program:
    """Fuses loops of which one reads what the other has made in the same iteration, where they share much work: a
    gradient whose cotangent is known goes through each row once, with its value. So does a loop that has checks, before
    other passes make the two different, which leave what may fail as it is."""
    made = met(program, lambda one, two: not reads(two).keys().isdisjoint(one.vars) or has_checks(one.op.body), 8)
    return share(made) if made is not program else program


def add_rows(program: Program) -> Program:
    """Adds the rows that a loop makes, and another one adds to rows of arrays, element by element where they are made:
    the adjoints of rows that have been gathered are not stored first.

    ``g = (build n (fn [k] (build m f))) .. (ifold (fn [a k] (add-at a (get i k) (get g k))) a n)``  =>
    ``(ifold (fn [a k] (ifold (fn [a j] (add-at a (get i k) j (f j))) a m)) a n)``.
    """
    if not any(adds_row(x) for loop in loops_of(program) for x in loop.body.binds):
        return program
    readers = Counter(v for x in all_binds(program.body) if type(x.op) in (Prim, Check) for v in reads(x))

    def wanted(one: Bind, two: Bind, both: Bind | None) -> bool:
        if type(one.op) is not Loop or type(two.op) is not Loop:
            return False
        stacks = one.vars[len(one.op.accs) :]
        gets = [x for x in two.op.body.binds if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] in stacks]
        rows = {x.vars[0] for x in gets if len(x.op.args) == 2}  # type: ignore[union-attr]
        added = [x.op.args[-1] for x in two.op.body.binds if adds_row(x)]  # type: ignore[union-attr]
        return (
            bool(rows)
            and rows.issubset(added)
            and all(readers[x.op.args[0]] == 1 and readers[x.vars[0]] == 1 for x in gets)  # type: ignore[union-attr]
        )

    made = dead_code(with_body(program, siblings(program.body, wanted)))  # nor stacked any more
    return with_body(made, added_rows(made.body))


def checked_sums(program: Program) -> Program:
    """Adds up numbers in the loop that makes them, where that has checks and nothing else reads them.

    ``v = (build n (fn [k] (do (check k) (f k))))``, ``(ifold (fn [s k] (+ s (get v k))) 0.0 n)``  =>  one loop, and no
    ``v``.
    Design decision: of sums in the user's order, each addition of which waits for the one before: what a check keeps
    from being a vector is done meanwhile.
    """
    if not any(type(x.op) is Check for loop in loops_of(program) for x in loop.body.binds):
        return program
    uses = array_uses(program.body)

    def wanted(one: Bind, two: Bind, both: Bind | None) -> bool:
        if type(one.op) is not Loop or type(two.op) is not Loop or one.op.accs or not has_checks(one.op.body):
            return False
        op = two.op
        waits = all(a.type == REAL for a in op.accs)
        own = all(u.loops[-1:] == (op,) for v in one.vars for u in uses.get(v, ()))
        inner = single_values(op) and kinds_of(op.body).isdisjoint((If,)) and len(op.accs) == len(two.vars) > 0
        return waits and own and inner and cost_of(op.body) < CALL and not any(x.soft for x in op.body.binds)

    made = siblings(program.body, wanted)
    return dead_code(with_body(program, made)) if made is not program.body else program


def one_reader(program: Program) -> Program:
    """Joins the innermost loops that alone read an array, each at its own index, as the sums of the columns of rows
    that ``fission`` has taken apart: what the array costs is computed in the one loop then, and no array made.

    ``v = (build n (fn [i] [(f i) (g i)]))``, ``(ifold (fn [s i] (+ s (get v i 0))) 0.0 n)``, and so with ``1``  =>
    both sums in one loop, and ``fuse``.
    """
    if not nested_loops(program):
        return program
    uses = array_uses(program.body)
    once: dict[Loop, set[Var]] = {}  # the arrays that each loop reads so
    for x in all_binds(program.body):
        if type(x.op) is not Loop or not single_values(x.op):
            continue
        for v in x.vars[len(x.op.accs) :]:
            loops = {u.loops[-1:] for u in uses.get(v, ())}
            own = all(u.loops and (u.subscripts or (None,))[0] is u.loops[-1].index for u in uses.get(v, ()))
            if len(loops) > 1 and own and all(single_values(loop) for (loop,) in loops):
                for (loop,) in loops:
                    once.setdefault(loop, set()).add(v)
    if not once:
        return program

    def wanted(one: Bind, two: Bind, both: Bind | None) -> bool:
        if type(one.op) is not Loop or type(two.op) is not Loop:
            return False
        shared = arrays[one] & arrays[two]
        if both is not None:
            arrays[both] = arrays[one] | arrays[two]
        return bool(shared)

    arrays = defaultdict(set, {x: once[x.op] for x in all_binds(program.body) if x.op in once})
    made = siblings(program.body, wanted)
    return fuse(with_body(program, made)) if made is not program.body else program


def single_values(op: Loop) -> bool:
    """Whether a loop has none inside, and no checks, and goes on with numbers alone."""
    if any(isinstance(a.type, Arr) for a in op.accs) or not kinds_of(op.body).isdisjoint((Loop, While, Apply)):
        return False
    return not has_checks(op.body)


def adds_row(bind: Bind) -> bool:
    """Whether a binding adds a row of numbers to a row."""
    return type(bind.op) is Prim and bind.op.name == "add-at" and isinstance(type_of(bind.op.args[-1]), Arr)


def met(program: Program, which: Callable[[Bind, Bind], bool] = lambda one, two: True, part: int = 4) -> Program:
    """``meet``, of those loops alone that ``which`` says, before what they have in common is shared: ``part`` says how
    much that has to be."""
    flat = not nested_loops(program)
    powers = "lesser-powers" not in (OFF.get() or ()) and any(LesserPowers.takes(x.op) for x in all_binds(program.body))
    if flat and len(list(islice(loops_of(program), 2))) < 2:
        return program
    cost = inside(program)
    seen: dict[Bind, set[Var]] = {}

    def read(bind: Bind) -> set[Var]:
        """What the iterations of a loop read of what is around it, integers aside."""
        if bind not in seen:
            seen[bind] = {v for v in free_vars(bind.op.body) if v.type != INT}  # type: ignore[union-attr]
        return seen[bind]

    def alike(one: Bind, two: Bind, both: Bind | None) -> bool:
        """Whether a part of what one of two nests does is done by the other anyway; of two innermost loops half of what
        costs as much as a call: what is cheap is better summed apart, side by side."""
        if type(one.op) is not Loop or not which(one, two):
            return False
        if read(one) and read(two) and read(one).isdisjoint(read(two)):
            return False
        nests = [Loop in kinds_of(bind.op.body) for bind in (one, two)]  # type: ignore[union-attr]
        if any(nests) and not all(nests) or not any(nests) and cost(one.op.body).work < CALL:
            return False
        if both is None:
            return True
        apart, together = [cost(Block((bind,), ())) for bind in (one, two)], cost(in_one(both))
        if any(nests) and together.transcendental < sum(x.transcendental for x in apart):
            return True
        work = [x.work for x in apart]
        return sum(work) - together.work > min(work) / (part if any(nests) else 2)

    def shared(bind: Bind) -> Block:
        b = Builder()
        b.sizes.update(program.dims)
        Share(b).bind(bind)
        made = Block(b.block(), ())
        if not powers:
            return made
        return LesserPowers(Builder(), Block((*program.body.binds, *made.binds), ()), True).remade(made)

    def in_one(both: Bind) -> Block:
        """Two loops that have met, with what they have in common done once; branches too, whose conditions are known to
        be the same only when these are shared. Not those of loops in others, which become selections later."""
        if flat and If in kinds_of(both.op.body):  # type: ignore[union-attr]
            both = next((x for x in reversed(shared(both).binds) if type(x.op) is Loop), both)
        inner = siblings(both.op.body, lambda *_: True, around=Around().body(both.op))  # type: ignore[union-attr]
        return shared(Bind(both.vars, with_blocks(both.op, [inner]), both.span))

    made = siblings(program.body, alike)
    return with_body(program, made) if size(made) < size(program.body) else program


def collect(program: Program) -> Program:
    """Writes the entries of a Hessian as few products of factors, in the loop over its directions."""
    return rebuild(program, Collect) if any(loop.index.soft for loop in loops_of(program)) else program


def decide(program: Program) -> Program:
    """Resolves an ``if`` inside a branch of an ``if`` with the same condition.

    ``(if c a (+ b (if c x y)))``  =>  ``(if c a (+ b y))``.
    """
    seen: set[Atom] = set()

    def again(block: Block) -> bool:
        for bind in block.binds:
            cond = bind.op.cond if type(bind.op) is If else None
            if cond in seen:
                return True
            new = type(cond) is Var
            if new:
                seen.add(cond)
            if any(map(again, blocks_of(bind.op))):
                return True
            if new:
                seen.discard(cond)
        return False

    return rebuild(program, Rebuild) if again(program.body) else program


#: So many numbers are kept in registers, if need be.
REGISTERS = 20


def rows_first(program: Program) -> Program:
    """Makes each row of a result as soon as its numbers are known, which saves registers; where all of them have a
    register, the rows are made at the end, in order, so that memory is written in one go.

    ``(let [x .. y .. z .. r [x x] s [y z]] [r s])``  =>  ``(let [x .. r [x x] y .. z .. s [y z]] [r s])``.
    Design decision: among operations and branches alone, where no array is changed in between.
    """
    block = program.body
    arrays = {x.vars[0]: x for x in block.binds if type(x.op) is Prim and x.op.name == "array"}
    wanted: dict[Bind, None] = {}
    todo = list(block.results)
    while todo:
        x = arrays.get(todo.pop())
        if x is not None:
            wanted[x] = None
            todo += x.op.args  # type: ignore[union-attr]
    if len(wanted) < 2 or not all(map(movable, block.binds)):
        return program
    rows = [x for x in wanted if not any(a in arrays for a in x.op.args)]  # type: ignore[union-attr]
    place = {v: k for k, x in enumerate(block.binds) for v in x.vars}
    waiting = {a for x in rows for a in x.op.args if a in place}  # type: ignore[union-attr]
    at: dict[Bind, float] = {x: k for k, x in enumerate(block.binds)}
    if len(waiting) <= REGISTERS:
        last = [*reversed(rows), *(x for x in reversed(wanted) if x not in rows)]
        at.update({x: len(at) + k for k, x in enumerate(last)})
    else:
        at.update({x: max((place.get(a, -1) for a in x.op.args), default=-1) + 0.5 for x in rows})  # type: ignore[union-attr]
    binds = tuple(sorted(block.binds, key=at.__getitem__))
    return program if binds == block.binds else with_body(program, Block(binds, block.results))


#: From a specialised program to what is printed.
PIPELINE: list[Pass] = [
    dead_code,  # first, as after each pass: a derivative stacks more than it needs, and fusion counts uses
    tail_calls,  # recursion that is a loop is treated as one
    inline,  # before all that looks at one function at a time
    unused,
    unfold,  # recursion whose course is known is straight-line code
    round_trips,  # what is remembered for a way back that can begin at once
    fuse_calls,  # a gradient by data is made in its final form
    hand_on,  # what is left of backward recursion
    tail_calls,  # and where that is a loop now
    counted,  # before all that asks how often a loop runs
    shrinking,  # and before all that knows arrays, but no data
    induction,  # of the lengths that this leaves too
    periods,  # before what may fail in one of two iterations alone is looked at
    sizes_first,  # no pass moves what may fail
    checks_first,
    one_size,  # before all that looks at how often a loop runs; a size that is a number then is unrolled
    log_sums,  # while each array is a loop
    monotone,  # as well; and sums have no largest exponent any more that is to be found
    alone,  # now that the others are not searched
    one_changed,  # before what is copied for one element is unrolled, or taken for an array of its own
    windows,  # before what a row gives is written out
    unroll,  # makes constants of subscripts, and single values of small arrays
    singles,  # now that the elements of small arrays are known one by one
    integer_tables,  # of powers, before each is made of the one before
    running_powers,  # before what a loop does not change leaves it
    roots,  # before all that asks what an operation costs
    meet_whiles,
    sizes_first,  # those of what has been unrolled
    checks_first,
    one_size,
    privatise,  # before anything asks what a state is
    scalar_replacement,  # numbers are easier to follow than elements; as before differentiation
    once,  # nor what fails once more
    same_loops,
    recurring,  # before the parts of an iteration go their ways
    one_store,  # an adjoint that is cleared and added to as it was
    settled,  # before copies are taken for what they are copies of
    diagonals,  # before what one branch alone reads of a matrix goes there, and rows become stores
    bands,  # when all that can be has been put where it is read along diagonals
    sink,  # what one branch reads is computed there
    decide,  # and so is what was chosen by the same condition
    overwritten,  # before all that asks what a loop changes
    filled,  # before all that looks at what goes from one iteration to the next
    log_sums,  # of what is read of tables too, now that it is known which rows change
    unchanged,  # before the arrays that it does without are taken for copies
    rings,  # before what is added once is stored
    unbranched,  # so that it is added once whichever branch is taken
    assign,  # what is added once is stored: adjoints become builds
    alias,
    cancel,  # while the loop that remembers its terms is the one that sums them
    fission,  # what an outer loop does not change leaves it; and a loop that does one thing may do it at one index
    lasting,  # and is not remembered in each of its iterations
    factors,  # each sum has loops of its own, and matrices are made before they are read
    accumulate,  # now that each adjoint has a loop of its own
    at_hand,  # and each array
    follow,  # before what is made of a row goes where it is read
    fuse,
    one_reader,  # of what is dear, which that leaves
    reshaped,  # now that what stacks a matrix as a vector is made where it is read
    prefixes,  # now that what is added up is made where it is added
    chains,  # what fuse would have to compute twice
    one_element,  # of a row that is made where it is read
    one_hot,  # loops that vanish
    follow,  # and what is made of its elements has gone where they are made
    row_folds,  # now that what an iteration does to a row is one loop; what reads the rows is fused with them below
    expand,  # values of inner iterations that an outer loop does not change leave it as well
    tabulate,  # and so do those of one integer
    assign,
    fuse,
    one_hot,  # what fusion brought together
    alias,
    collect,  # rows of a Hessian, now that each entry is one expression
    fuse,
    meet,
    unswitch,  # what no sum of products is
    data_first,  # nor one iteration
    power_tables,  # those of integers too
    denormals,  # now that products are where they are added up, and before they are in lanes
    choices,  # before pairs are turned, which lanes are to take
    pairs,  # what they give both members is one sum then
    share,  # states that the tangents of several directions have in common
    wraps,  # before what the place of an element decides is split
    split,  # now that no array is made where it is read
    suffix_sums,  # now that what they add up, and others read, is a table
    running_sums,  # of what is added from an index on, or up to it
    unchecked,  # of what the branches that are loops now have not checked before these
    expand,  # what such loops would compute again
    lasting,  # nor is this, and no table is made twice
    settled,  # while what is read of a table shows: in eight lanes its rows are the elements of an array
    keep_calls,  # now that what loops do is where it is to be, and before they are taken in lanes
    flags,  # before lanes asks what a loop carries
    whole_eights,  # before lanes takes a part of what an iteration does
    lanes,  # what is left of an iteration's sums to one loop is for jam
    transposes,  # no sum is to be in lanes any more
    interchange,  # now that it is known which loops there are
    growing_sums,  # before jam takes four of them at once
    by_columns,  # and in which order
    row_lanes,  # the lanes of a tile, now that they are inside the loops that they share
    register,  # a loop that came inside may add to one element alone
    branch_sums,  # before additions leave branches
    lanes,  # and each of two nests that were one has sums now
    assign,
    columns,  # before four rows are added at a time, each of which may have other columns
    jam_rows,
    assign,  # what is left of loops whose sums are four rows at a time adds to all elements of what another has made
    fuse_numbers,  # which it makes itself then, as all that loops make in this order now
    eights,  # what is left of iterations when it is known what rows they add; the rest is for four at once
    jam,  # before all siblings join: a loop of four at once has a trip count of its own
    searches,
    fuse_siblings,
    checked_sums,  # when all sums of an array are in one loop, and no pass takes several rows at once any more
    add_rows,  # when all that reads them is one loop
    lesser_powers,  # when what needs both is in one loop
    reciprocals,
    share,  # what siblings had in common
    lasting,  # and the tables that they have in common now
    exponents,
    like_terms,  # when each sum is one expression; the twos that it makes meet halves below
    open_brackets,  # when that has put together what it can
    powers_of_two,  # when no product is made any more
    monomials,  # when twos and halves are out of the way
    common_factors,  # when sums of powers are what they will be
    scalings,  # and each product is what it will be
    scatter,  # what the rows of a matrix hold is known
    idle,  # when sums are what they will be
    skips,  # and what is added where
    settled,  # when all else is done: what is left that is remembered of a table
    narrow,  # and of any other state
    put_aside,  # when nothing looks for copies any more
    renew,  # after all that looks at states: no pass before has to know of those that change as they are read
    unread,  # what is not stored is what was there
    neighbours,  # before edges takes grids apart
    edges,  # when each state lies where it is to lie
    assign,  # what the loop between the first and the last iterations adds once
    one_store,  # what were two branches are one piece of code now
    one_place,  # when what comes first of an adjoint row, and what comes last, is done outside of the loop over it
    forwards,  # that from the end are for no pass
    afterwards,  # what is added there may come together in a gather
    unbranched,  # but for those that differ from element to element
    shifts,  # in loops that have no branches any more
    fills,  # and come to each element once
    overlaps,  # what is left of them in one loop
    one_addition,  # and of those to one element
    alongside,  # when it is known how many chains go side by side
    align,  # now that it is known where each begins and ends
    triangles,  # no pass before has to know of packed rows
    history,  # when it is known what is remembered
    adds_last,  # of the additions that have been gathered nowhere; before what an iteration hands on to the next
    carry,  # when each loop is what it will be, and no pass looks for stores any more
    carried_last,  # now that it is known what an iteration hands on
    divide,  # when it is known what is divided in a loop, and what before it
    strands,  # when each sum is what it will be, and no pass looks for sums any more
    rows_first,
    masked_sums,  # when no pass looks for zeros any more
    twins,  # last: to the passes before, straight-line code is straight-line code
]


#: The same where a BLAS is there.
WITH_BLAS: list[Pass] = [*PIPELINE[: PIPELINE.index(sink)], products, *PIPELINE[PIPELINE.index(sink) :]]

#: After all others, where functions have forms that compilers make vectors of.
WITH_VECTORS: list[Pass] = [calls_first, abreast]

#: What serves the caches and vectors of a processor: a thread of a GPU keeps its sums in registers.
FOR_CACHES = frozenset(
    "add-rows adds-last afterwards align alongside branch-sums by-columns carried-last carry checked-sums choices"
    " columns data-first denormals edges eights fills flags forwards growing-sums history interchange jam jam-rows"
    " keep-calls kept-rows lanes masked-sums neighbours one-place overlaps periods power-tables row-folds"
    " row-lanes rows-first searches shifts skips split strands transposes triangles twins unbranched unchecked"
    " whole-eights wraps".split()
)

#: What makes a sum, of rows or not, one that threads cannot take in parts, and what has to come after that, once more.
AFTER_PARTS: list[Pass] = [
    growing_sums,
    jam_rows,
    whole_eights,
    eights,
    jam,  # or four iterations would be what eights takes for one
    triangles,
    strands,
]

#: The passes that see all functions at once; the others run on each by itself.
WHOLE = (tail_calls, inline, unused, unfold, round_trips, fuse_calls, hand_on)


def named(p: Pass) -> str:
    """What users call a pass."""
    return p.__name__.replace("_", "-")


def changed(p: Pass, program: Program) -> Program:
    """The program after a pass; itself where the pass has rebuilt it as it was, and then nothing stays on record of
    what was done for it. Design decision: found by comparing the two, which ends where they first differ, and saves
    what would be done with a new one."""
    fired = FIRED.get()
    before = len(fired or ())
    made = p(program)
    if made is not program:
        around = [(x.params, x.dims, x.ins, x.out, x.names) for x in (program, made)]
        if not all(a is b for a, b in zip(*around)) or not same_code(program.body, made.body):
            return made
    if fired:
        fired[before:] = [f for f in fired[before:] if f[0] in LEFT]
    return program


def optimise(
    program: Program, passes: Sequence[Pass] = PIPELINE, watch: Callable[[Pass, Program], None] | None = None
) -> Program:
    """The program after ``passes``, without those that are switched off (``journal.OFF``). ``dead_code`` follows each
    that has changed the program: a pass may count on it that all is read. ``watch`` is told of each pass that changes
    something or puts something on record: which it is, and the program after it."""
    idle: set[Pass] = set()  # what has left this very program as it is: a pass is a pure function
    calls = bool(functions_of(program.body))  # no pass makes a first one
    off = OFF.get()
    check_after("", program)

    def run(p: Pass) -> bool:
        nonlocal program
        if p in idle or p in WHOLE and not calls or off and named(p) in off:
            return False
        fired = FIRED.get()
        before = len(fired or ())
        made = each_function(program, partial(changed, p)) if calls and p not in WHOLE else changed(p, program)
        new = made is not program
        if new:
            program = made
            idle.clear()
        else:
            idle.add(p)
        if watch is not None and (new or len(fired or ()) > before):
            watch(p, program)
        return new

    for p in passes:
        if run(p):
            if p is not dead_code:
                run(dead_code)
            check_after(p.__name__, program)
    return program
