"""Programs made ready for a device with thousands of threads: loops split, sums gathered where they are needed.

Three things are done to parallel loops, the outermost ones.

*Apart.* A loop whose body has loops over arrays in it becomes several, each with one of them, so that each is a nest
with as many places as the product of its counts. What one makes and another reads is stacked; cheap scalars are
computed again instead. A row that each iteration makes of zeros, by adding to it, is added to where it is stacked.
Loops of a few iterations stay in a thread, which has their arrays in registers, unless all threads would add to the
same elements in them.

*Gathered.* ``a[j] += e(i, j)`` over a nest, whose subscripts are loop indices, is a sum for each ``j`` alone: no two
threads add to one element, and the order of a sum is known::

    (loop n (fn [i a] (loop m (fn [j a] (add-at a j e)) a)) a)
    =>  s = (build m (fn [j] (ifold (fn [s i] (+ s e)) 0.0 n))), added to a

Where there are few elements to add to, each sum is taken in parts, one thread for each. The innermost loop may be that
of a triangle, as long as one of the outer indices says; what the loops around it compute is stacked first then, unless
it is cheap.

*In fixed point* (``fixed.py``), for results that are the same from call to call: additions to places that only data
know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    free_vars,
    integer,
    most_uses,
    reads,
    same,
    substitute,
    type_atoms,
    type_of,
    with_blocks,
)
from ..passes.optimise import fuse, products
from ..passes.spread import FOLDED, changed, nest, next_level, reductions, states_between, work
from ..passes.stores import assign
from ..passes.unbranched import unbranched
from ..program.affine import affine_add, affine_in
from ..program.builder import Builder
from ..program.check import check_after
from ..program.dead import dead_code, tidy
from ..program.journal import on
from ..program.rebuild import Rebuild, rebuild
from .batches import as_products, aside_block, batches_block
from .courses import courses_block, rows_block, stepped
from .elements import by_elements
from .elsewhere import elsewhere_block
from .fixed import in_fixed_point
from .folded import folded
from .nesting import (
    CHEAP,
    DEAR,
    PLACES,
    SHARE,
    adding,
    folding,
    nested,
    operation,
    parts_of,
    share_of,
    stacking,
    statements,
    weighed,
    without,
)
from .rectangles import branch_inside, rectangle
from .scans import scan_of
from .scattered import parted, scattered
from .stencils import stencil
from .sums_first import sums_first
from .teams import joined, passes, renamed, whole
from .turned import along, turned

LONG = 64  # iterations that are worth a loop of their own


def spread(
    program: Program, deterministic: bool = False, watch: Callable[[str, Program], None] | None = None
) -> Program:
    """The program with its parallel loops apart and its sums gathered (see above); ``watch`` is told the name of each
    step that has a name of its own, with what it has made. Those of ``switches.ON_A_GPU`` can be switched off."""

    def by(change: Callable[[Block], Block], name: str = "") -> None:
        nonlocal program
        if name and not on(name):
            return
        block = change(program.body)
        program = program if block is program.body else dead_code(rebuild(replace(program, body=block)))
        check_after(f"on a GPU, {name or change.__name__}", program)
        if name and watch is not None:
            watch(name, program)

    program = counts_written_out(program)
    by(lambda block: aside_block(block, in_any_order), "batches")
    by(added_block)
    if on("unbranched"):  # each element is made where its branch is
        made = unbranched(program, own=True)
        if made is not program:
            program = dead_code(assign(dead_code(made)))
            program = dead_code(fuse(program)) if on("fuse") else program
    if on("folded"):
        made = folded(program)
        if made is not program:
            program = dead_code(made)
            if watch is not None:
                watch("folded", program)
    by(rows_block)
    if stepped(program.body):
        program = dead_code(assign(program))  # what an iteration adds to a row of its own is a row that it makes
        by(lambda block: courses_block(block, deterministic), "courses")
    integers = {b.vars[0]: b.op for b in all_binds(program.body) if type(b.op) is Prim and b.op.name in ("+", "-")}
    by(lambda block: elsewhere_block(block, integers), "elsewhere")
    by(checks_block)
    by(product_block)
    by(branch_block, "branch-inside")
    by(lambda block: each(block, by_elements), "elements")
    by(branch_block, "branch-inside")  # the rows that branches add
    by(joined_block, "teams")
    by(lambda block: indexed_block(block, stencil), "stencils")
    by(lambda block: indexed_block(block, parted), "gather")
    by(apart_block, "apart")
    by(sums_first, "sums-first")
    before = program
    by(lambda block: each(block, lambda bind: [turned(bind)]), "turned")
    if program is not before and on("fuse"):
        program = dead_code(fuse(dead_code(assign(program, by_rows=False))))
    by(lambda block: indexed_block(block, stencil), "stencils")  # those that are nests of their own only now
    by(joined_block, "teams")
    by(lambda block: indexed_block(block, scattered), "gather")
    by(gather_block, "gather")
    by(rectangle_block, "rectangles")
    program = dead_code(assign(program, by_rows=False))
    by(lambda block: each(block, scaled))
    program = dead_code(products(program))  # those of a gradient are whole only now
    program = uncopied(program)
    by(batches_block, "batches")
    by(lambda block: product_block(block, stacked=True))
    if deterministic:
        by(lambda block: each(block, in_fixed_point))
    return program


class Counts(Rebuild):
    """``counts_written_out`` for a program with such ``counts``."""

    def __init__(self, builder: Builder, counts: set[Atom]) -> None:
        super().__init__(builder)
        self.counts = counts

    def prim(self, op: Prim, var: Var) -> Atom:
        known = self.b.affine_of(op.name, self.atoms(op.args)) if var in self.counts else None
        if known is not None and {*known[1].values()} <= {1} and len(known[1]) + (known[0] != 0) <= 2:
            return self.b.affine_value(known)
        return super().prim(op, var)


def counts_written_out(program: Program) -> Program:
    """The program in which a loop that takes so many steps as a sum of two numbers says, takes these: the ``k + 1`` of
    a triangle backwards, and not ``n - ((n - 1) - k)``."""
    made = {b.vars[0]: b.op for b in all_binds(program.body) if type(b.op) is Prim and b.op.name in ("+", "-")}
    counts = {b.op.count for b in all_binds(program.body) if type(b.op) is Loop and b.op.count in made}
    counts = {c for c in counts if not made.keys().isdisjoint(made[c].args)}
    return dead_code(rebuild(program, lambda b: Counts(b, counts))) if counts else program


def uncopied(program: Program) -> Program:
    """The program in which an array that a loop stacks again and again is read where it is, element by element."""
    copies: dict[Atom, Atom] = {}
    for b in all_binds(program.body):
        if type(b.op) is Loop and not b.op.accs:
            inside = {v for x in b.op.body.binds for v in x.vars}
            stacked = zip(b.vars, b.op.body.results)
            copies.update((v, r) for v, r in stacked if r not in inside and isinstance(type_of(r), Arr))
    if not copies:
        return program

    class Uncopied(Rebuild):
        def bind(self, bind: Bind) -> None:
            op = bind.op
            if type(op) is Prim and op.name == "get" and op.args[0] in copies:
                array, _, *place = op.args
                self.here[bind.vars[0]] = self.b.get(self.atom(copies[array]), *self.atoms(place))
            else:
                self.copy(bind)

    return dead_code(rebuild(program, Uncopied))


def added_block(block: Block) -> Block:
    """A block in which an element that becomes itself and something is added to: ``(update a i (+ (get a i) x))`` =>
    ``(add-at a i x)``, which iterations may do in any order; so is a row all of whose elements do, and so are all
    elements of an array that a loop carries on, if it is parallel then."""
    if not any(type(b.op) is Prim and b.op.name == "update" or carries_on(b.op) for b in all_binds(block)):
        return block
    made = {v: b.op for b in block.binds for v in b.vars}
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) is Prim and op.name == "update":
            term = term_added(op, block, made)
            if term is not None:
                b = Bind(b.vars, Prim("add-at", (*op.args[:-1], term)), b.span)
            elif most_uses(block, op.args[-1]) == 1:
                added = row_added(block, op.args[-1], op.args[0], op.args[1:-1], op.args[0], b)
                if added is not None:
                    out += added
                    continue
        inner = [added_block(r) for r in blocks_of(op)]
        b = Bind(b.vars, with_blocks(op, inner), b.span) if inner else b
        out.append(added_in_place(b) if carries_on(op) else b)
    return tidy(Block(tuple(out), block.results))


def in_any_order(bind: Bind) -> bool:
    """Whether a loop is a parallel one, or will be when what it adds to arrays is added in place."""
    (made,) = added_block(Block((bind,), bind.vars)).binds
    return reductions(made.op) is not None  # type: ignore[arg-type]


def carries_on(op: Op) -> bool:
    """Whether a loop carries arrays on."""
    return type(op) is Loop and any(isinstance(a.type, Arr) for a in op.accs)


def added_in_place(bind: Bind) -> Bind:
    """A loop with what its iterations build of whole arrays and something added in place, if it is a parallel one then;
    not where products of a batch are added up."""
    op: Loop = bind.op  # type: ignore[assignment]
    if reductions(op) is not None or as_products(bind, set()) is not None:
        return bind
    made = replace(op, body=all_added(op.body, dict(zip(op.accs, op.body.results))))
    return Bind(bind.vars, made, bind.span) if reductions(made) is not None else bind


def all_added(block: Block, states: Mapping[Var, Atom]) -> Block:
    """A block that gives each of some arrays as it was, or its elements and something: what it and its branches build
    of it is added to it, element by element."""
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) is If:
            arms = [op.then, op.orelse]
            for old, new in states.items():
                if new in b.vars and isinstance(old.type, Arr) and most_uses(block, old) == 1:
                    arms = [all_in_place(arm, b.vars.index(new), old) for arm in arms]
            b = Bind(b.vars, with_blocks(op, arms), b.span)
        out.append(b)
    made = Block(tuple(out), block.results)
    for k, (old, new) in enumerate(states.items()):
        if isinstance(old.type, Arr) and most_uses(made, old) == 1:
            made = all_in_place(made, k, old)
    return made


def all_in_place(block: Block, k: int, old: Var) -> Block:
    """A branch whose result ``k`` has all elements of an array and something: additions to the array."""
    new = block.results[k]
    made = next((x for x in block.binds if new in x.vars), None)
    if made is not None and type(made.op) is If:
        arms = [all_in_place(arm, made.vars.index(new), old) for arm in blocks_of(made.op)]
        binds = (Bind(x.vars, with_blocks(x.op, arms), x.span) if x is made else x for x in block.binds)
        return Block(tuple(binds), block.results)
    if made is None or most_uses(block, old) != 1 or most_uses(block, new) != 1:
        return block
    last = Var(new.name, new.type, made.span)  # type: ignore[union-attr]
    steps = row_added(block, new, old, (), old, Bind((last,), made.op, made.span))
    if steps is None:
        return block
    results = (*block.results[:k], last, *block.results[k + 1 :])
    return tidy(Block((*block.binds, *steps), results))


def term_added(op: Prim, block: Block, made: dict[Var, Op]) -> Atom | None:
    """What a store adds to the element that it stores to."""
    *place, value = op.args
    step = made.get(value)
    if type(step) is not Prim or step.name != "+" or most_uses(block, value) != 1:
        return None
    for was, term in (step.args, step.args[::-1]):
        old = made.get(was)
        if type(old) is Prim and old.name == "get" and list(old.args) == place and most_uses(block, was) == 1:
            return term if not isinstance(type_of(was), Arr) and term is not was else None
    return None


def row_added(block: Block, row: Atom, old: Atom, place: Sequence[Atom], to: Atom, bind: Bind) -> list[Bind] | None:
    """What a block makes of a row that it stores at a place of an array ``old``, where each of its elements is the one
    that is there and something: additions to ``to``, the last of which binds what ``bind`` does."""
    source = next((x for x in block.binds if row in x.vars), None)
    op = source.op if source is not None else None
    made = {v: x.op for x in block.binds for v in x.vars}

    def added(inner: Block, value: Atom, at: Sequence[Atom], to: Atom, bind: Bind) -> list[Bind] | None:
        """The same of an element, or a part, of the row."""
        if isinstance(type_of(value), Arr):
            return row_added(inner, value, old, at, to, bind) if most_uses(inner, value) == 1 else None
        here = made if inner is block else {v: x.op for x in inner.binds for v in x.vars}
        term = term_added(Prim("update", (old, *at, value)), inner, here)
        return None if term is None else [Bind(bind.vars, Prim("add-at", (to, *at, term)), bind.span)]

    if type(op) is Loop and not op.accs and len(source.vars) == 1:
        acc, last = (Var(bind.vars[0].name, bind.vars[0].type, bind.span) for _ in range(2))
        steps = added(op.body, op.body.results[0], (*place, op.index), acc, Bind((last,), op, bind.span))
        if steps is None:
            return None
        body = tidy(Block((*op.body.binds, *steps), (last,)))
        if old in free_vars(body):
            return None
        return [Bind(bind.vars, Loop(op.count, op.index, (to,), (acc,), body), bind.span)]
    if type(op) is Prim and op.name == "array":
        steps = []
        for k, value in enumerate(op.args):
            done = k == len(op.args) - 1
            var = bind.vars[0] if done else Var(bind.vars[0].name, bind.vars[0].type, bind.span)
            step = added(block, value, (*place, integer(k)), to, Bind((var,), op, bind.span))
            if step is None:
                return None
            steps += step
            to = var
        return steps
    return None


def long(bind: Bind) -> bool:
    """Whether a binding is a loop of many iterations, or of how many nobody knows yet."""
    op = bind.op
    return type(op) is Loop and (type(op.count) is not Const or op.count.value > LONG)


def wide(bind: Bind) -> bool:
    """Whether a binding is a long loop, or one of a few iterations with long parallel loops or matrix products in it,
    as over the members of an ensemble: a thread for each would be few."""
    op = bind.op
    return (
        long(bind)
        or type(op) is Loop
        and any(
            long(b) and reductions(b.op) is not None or type(b.op) is Prim and b.op.name == "product"
            for b in all_binds(op.body)
        )
    )


def each(block: Block, change) -> Block:
    """A block in which ``change(bind)`` gives what stands for each parallel loop, a list of bindings; loops that are
    taken in their order, and branches, are gone into. The same block where that changes nothing."""
    out: list[Bind] = []
    for bind in block.binds:
        op = bind.op
        if wide(bind) and reductions(op) is not None:
            out += change(bind)
        elif type(op) is Loop and (long(bind) or reductions(op) is None) or type(op) in (If, While):
            inner = blocks_of(op)
            made = [r if type(op) is While and r is op.cond else each(r, change) for r in inner]
            same_ = all(x is y for x, y in zip(inner, made))
            out.append(bind if same_ else Bind(bind.vars, with_blocks(op, made), bind.span))
        else:
            out.append(bind)
    unchanged = len(out) == len(block.binds) and all(x is y for x, y in zip(out, block.binds))
    return block if unchanged else Block(tuple(out), block.results)


def product_block(block: Block, stacked: bool = False) -> Block:
    """A block whose parallel loops have no products in them; with ``stacked`` but stacks of them."""
    if not any(type(b.op) is Prim and b.op.name == "product" for b in all_binds(block)):
        return block

    def written(bind: Bind) -> list[Bind]:
        if stacked and stack_of_products(bind) is not None:
            return [bind]
        return [Bind(bind.vars, replace(bind.op, body=by_loops(bind.op.body)), bind.span)]

    return each(block, written)


def stack_of_products(bind: Bind) -> tuple[list[Loop], Bind] | None:
    """Loops that stack the products of matrices that they look up, and do nothing else: they, the outermost first, and
    the product."""
    loops: list[Loop] = []
    while True:
        op = bind.op
        if type(op) is not Loop or op.accs or len(op.body.results) != 1 or not op.body.binds:
            return None
        loops.append(op)
        *views, last = op.body.binds
        if op.body.results != last.vars or not all(type(b.op) is Prim and b.op.name == "get" for b in views):
            return None
        if any(not isinstance(b.vars[0].type, Arr) for b in views):
            return None
        if type(last.op) is Prim and last.op.name == "product":
            return loops, last
        bind = last


def by_loops(block: Block) -> Block:
    """A block with its matrix products written out as loops: there is no calling a library from a thread."""
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) is Prim and op.name == "product":
            x, y, n, m, terms, s, t = op.args
            i, j, k = (Var(name, INT) for name in "ijk")
            left, right, term = (Var(name, REAL) for name in ("a", "b", "t"))
            reads_ = (
                Bind((left,), Prim("get", (x, k, i) if s.value else (x, i, k)), b.span),
                Bind((right,), Prim("get", (y, j, k) if t.value else (y, k, j)), b.span),
                Bind((term,), Prim("*", (left, right)), b.span),
            )
            total = folding(terms, k, Block(reads_, (term,)), REAL, b.span)
            nest_ = nested([i, j], [n, m], Block((total,), total.vars), REAL, b.vars[0].name)
            out.append(Bind(b.vars, nest_.op, b.span))
        else:
            blocks = tuple(map(by_loops, blocks_of(op)))
            out.append(Bind(b.vars, with_blocks(op, blocks), b.span) if blocks else b)
    return Block(tuple(out), block.results)


def checks_block(block: Block) -> Block:
    """A block in which the checks of a scan that need no state come before it, in a parallel loop: threads that leave
    at a check would be missed at a scan's barriers."""
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        inner = [checks_block(r) for r in blocks_of(op)]
        b = Bind(b.vars, with_blocks(op, inner), b.span) if inner else b
        if long(b) and any(type(x.op) is Check for x in b.op.body.binds) and reductions(b.op) is None:
            moved = dependents(b.op.body, set(b.op.accs))
            checks = [x for x in b.op.body.binds if type(x.op) is Check]
            rest = replace(b.op, body=Block(tuple(x for x in b.op.body.binds if x not in checks), b.op.body.results))
            if not any(a in moved for x in checks for a in reads(x)) and scan_of(rest) is not None:
                index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
                first = renamed(substitute(tidy(Block(b.op.body.binds, ())), {op.index: index}))
                out.append(Bind((), Loop(op.count, index, (), (), first), b.span))
                b = Bind(b.vars, rest, b.span)
        out.append(b)
    return Block(tuple(out), block.results)


def joined_block(block: Block) -> Block:
    """A block in which loops over the same rows are one where a team has them (``teams.py``), inside loops too."""
    out = []
    for b in block.binds:
        inner = [joined_block(r) for r in blocks_of(b.op)]
        out.append(Bind(b.vars, with_blocks(b.op, inner), b.span) if inner else b)
    return joined(Block(tuple(out), block.results))


def apart_block(block: Block) -> Block:
    return each(block, lambda bind: apart(bind, {}))


def gather_block(block: Block) -> Block:
    return each(block, gathered)


def branch_block(block: Block) -> Block:
    return each(block, branch_inside)


def rectangle_block(block: Block) -> Block:
    return each(block, rectangle)


def indexed_block(block: Block, change: Callable[[Bind, dict[Var, Prim]], list[Bind]]) -> Block:
    """``each``, by what is told of the block's integers, too."""
    integers = {b.vars[0]: b.op for b in all_binds(block) if type(b.op) is Prim}
    return each(block, lambda bind: change(bind, integers))


# --------------------------------------------------------------------------------------------------- apart

#: The array accumulators of a loop, and the indices of the long loops that hand them on from iteration to iteration.
Added = Mapping[Var, tuple[Var, ...]]


def apart(bind: Bind, added: Added) -> list[Bind]:
    """A parallel loop as several, one for each loop over arrays in its body; ``added`` is known of its accumulators
    where it is in another loop. A short loop is one of them where it adds to what all iterations of a long one add to:
    it becomes part of a nest, whose sums are gathered."""
    op = bind.op
    added = {**added, **{acc: () for acc in op.accs if isinstance(acc.type, Arr) and acc not in added}}
    if long(bind):
        added = {acc: (*indices, op.index) for acc, indices in added.items()}
    shared = sharing(op, added)
    binds: list[Bind] = []
    for b in op.body.binds:
        for part in product_first(b, op.index):
            inner = handed_on(op, part, added) if type(part.op) is Loop else {}
            gone_into = (long(part) or b in shared) and reductions(part.op) is not None
            binds += apart(part, inner) if gone_into else [part]
    bind = Bind(bind.vars, replace(op, body=Block(tuple(binds), op.body.results)), bind.span)
    arranged = passes(bind)
    if arranged is not None:
        by_rows, groups = arranged
        if whole(by_rows, groups):
            return [by_rows]
        before, lifted = lift(by_rows)
        parted = divided(lifted, groups, added=added)
        if parted is not None:
            return [*before, *lifted_parts(parted)]
    before, lifted = lift(bind)
    parted = divided(lifted, added=added)
    return [*before, *lifted_parts(parted)] if parted is not None else [bind] if not before else [*before, lifted]


def handed_on(op: Loop, inner: Bind, added: Added) -> Added:
    """``added`` of a loop in a loop's body."""
    made = {v: (b, k) for b in op.body.binds for k, v in enumerate(b.vars)}
    found: dict[Var, tuple[Var, ...]] = {}
    for acc, start in zip(inner.op.accs, inner.op.inits):
        while start in made:
            start = changed(*made[start])
        if start in added and start in op.accs:
            found[acc] = added[start]
    return found


def sharing(op: Loop, added: Added) -> set[Bind]:
    """The loops in a loop's body, short ones too, that add to elements of an array to which all iterations of a long
    loop add: threads would wait for each other."""
    inside = {v for b in all_binds(op.body) for v in (*b.vars, *(b.op.accs if type(b.op) is Loop else ()))}
    found: set[Bind] = set()
    for b in op.body.binds:
        if type(b.op) is Loop and reductions(b.op) is not None:
            for acc, indices in handed_on(op, b, added).items():
                places = places_added(b.op, b.op.accs.index(acc), inside)
                if places is not None and any(i not in places for i in indices):
                    found.add(b)
    return found


def places_added(op: Loop, k: int, inside: set[Var]) -> set[Var] | None:
    """The variables that are subscripts where a loop adds to an array; None where one of them is computed (``inside``)
    or the loop does anything else to the array."""
    found: set[Var] = set()
    made = {v: (b, j) for b in op.body.binds for j, v in enumerate(b.vars)}
    v = op.body.results[k]
    while v is not op.accs[k]:
        b, j = made.get(v, (None, 0))
        if b is None or most_uses(op.body, v) != 1:
            return None
        if type(b.op) is Loop and j < len(b.op.accs):
            within = places_added(b.op, j, inside)
        elif type(b.op) is Prim and b.op.name == "add-at":
            within = {a for a in b.op.args[1:-1] if type(a) is Var}
        else:
            return None
        if within is None or within & inside:
            return None
        found |= within
        v = changed(b, j)
    return found


def lifted_parts(parts: Sequence[Bind]) -> list[Bind]:
    """Parts of a loop, with rows lifted that are results only now that it is in parts."""
    return [b for part in parts for before, loop in [lift(part)] for b in (*before, loop)]


def product_first(bind: Bind, row: Var) -> list[Bind]:
    """A loop ``(loop m (fn [j ..] (let [s (ifold (fn [s k] (+ s (* (get w j k) (get x row k)))) 0.0 l)] ..)))`` as two:
    the sums, which are a row of a matrix product, and what is made of them."""
    op = bind.op
    if not long(bind) or reductions(op) is None or len(op.body.binds) == 1:
        return [bind]
    outside = {v for b in op.body.binds for v in b.vars} | {op.index, *op.accs}
    for b in op.body.binds:
        inner = b.op
        if not long(b) or len(inner.accs) != 1 or len(b.vars) != 1 or reductions(inner) is None:
            continue
        made = {v: x.op for x in inner.body.binds for v in x.vars}
        step, (start,) = made.get(inner.body.results[0]), inner.inits
        if type(step) is not Prim or step.name != "+" or not (type(start) is Const and start.value == 0.0):
            continue
        times = made.get(next(a for a in step.args if a is not inner.accs[0])) if inner.accs[0] in step.args else None
        if type(times) is not Prim or times.name != "*" or len(inner.body.binds) != 4:
            continue
        factors = [made.get(a) for a in times.args]
        if not all(type(f) is Prim and f.name == "get" and len(f.args) > 1 for f in factors):
            continue
        subscripts = [set(f.args[1:]) & {op.index, inner.index, row} for f in factors]
        mine = next((f for f, s in zip(factors, subscripts) if s == {op.index, inner.index}), None)
        other = next((f for f in factors if f is not mine), None)
        if mine is None or inner.count in outside or any(v in outside for v in other.args):
            continue
        index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
        row_, total = Var(b.vars[0].name, Arr(REAL, (op.count,))), Var(b.vars[0].name, REAL)
        block = substitute(Block((Bind((total,), inner, b.span),), (total,)), {op.index: index})
        first = Bind((row_,), Loop(op.count, index, (), (), block), bind.span)
        read = Bind(b.vars, Prim("get", (row_, op.index)), b.span)
        rest = tuple(read if x is b else x for x in op.body.binds)
        return [first, Bind(bind.vars, replace(op, body=Block(rest, op.body.results)), bind.span)]
    return [bind]


def over_arrays(bind: Bind) -> bool:
    """Whether a binding is a long parallel loop that makes or adds to arrays."""
    return long(bind) and any(isinstance(v.type, Arr) for v in bind.vars) and reductions(bind.op) is not None


def divided(
    bind: Bind, groups: Sequence[Sequence[Bind]] = (), folded: bool = False, added: Added | None = None
) -> list[Bind] | None:
    """The loops that a loop is taken apart into, the bindings of each of ``groups`` together; None where it stays
    whole: where its body has no loops over arrays, unless those that fold are worth it, too."""
    op = bind.op
    body, n = op.body, len(op.accs)
    kinds = reductions(op)
    alone = {b for b in body.binds if over_arrays(b)} | sharing(op, added or {})
    if kinds is None or not (folded or alone):
        return None
    inside = {v for b in body.binds for v in b.vars} | {op.index}
    if any(d in inside for b in body.binds for v in b.vars for d in type_atoms(v.type)):
        return None
    carried = [dependents(body, {acc}) for acc in op.accs]
    for r in kinds:
        if r.kind in FOLDED or r.kind == "scatter":  # of what makes several results at once, its own
            (k,) = r.accs
            names = FOLDED["sum" if r.kind == "scatter" else r.kind]
            carried[k] = states_between(body, op.accs[k], body.results[k], names) or set()
    cheap = recomputed(body, set().union(*carried))
    chained = {k for r in kinds if r.kind == "slice" for k in r.accs if states(body, op, k) is not None}
    for k in chained:  # what is read of an iteration's own part may be handed on
        carried[k] = states(body, op, k) or set()
    moved = set().union(*carried)
    for b in (b for group in groups for b in group if any(r in b.vars for r in body.results)):
        cheap.pop(b.vars[0], None)  # a result of a row's is made where the row is
    segments = cut(body, cheap, alone, groups)
    home = {v: k for k, segment in enumerate(segments) for b in segment for v in b.vars}
    stacked = body.results[n:]
    loose = [j for j, r in enumerate(stacked) if r not in home]  # made of cheap scalars alone
    if loose:
        segments.append([])
    if len(segments) < 2:
        return None
    # the accumulators: what comes into each segment, and what goes out of it
    passing: list[dict[int, tuple[Var, Var]]] = [{} for _ in segments]
    for kind in kinds:
        deps = set().union(*(carried[k] for k in kind.accs))
        simple = not kind.read and len(kind.accs) == 1 and all(most_uses(body, v) == 1 for v in deps)
        homes = sorted({home[v] for v in deps})
        if len(homes) > 1 and not simple and not chained.issuperset(kind.accs):
            return None
        for number in kind.accs:
            current = op.accs[number]
            for k in homes:
                last = [v for b in segments[k] for v in b.vars if v in carried[number]][-1]
                last = op.body.results[number] if k == homes[-1] else last
                passing[k][number] = (current, last)
                current = last
    for k, segment in enumerate(segments):  # none reads a state of before, or of later
        mine = {v for b in segment for v in b.vars} | {came for came, _ in passing[k].values()}
        others = {v for number in chained for v in (op.accs[number], *carried[number])} - mine
        if any(v in others for b in segment for v in reads(b)):
            return None
    # what each segment reads of earlier ones is stacked
    wanted: list[list[Var]] = []
    again: list[list[Bind]] = []
    for k, segment in enumerate(segments):
        roots = [v for b in segment for v in reads(b)]
        if k == len(segments) - 1:
            roots += [stacked[j] for j in loose if type(stacked[j]) is Var]
        seen: dict[Var, None] = {}
        while roots:
            v = roots.pop()
            if v not in seen:
                seen[v] = None
                roots += reads(cheap[v]) if v in cheap else ()
        wanted.append([v for v in seen if home.get(v, k) != k and v not in moved])
        again.append([b for b in body.binds if b.vars and b.vars[0] in cheap and b.vars[0] in seen])
        if any(home[v] > k for v in wanted[-1]):
            return None
    stacks: dict[Var, Var] = {}
    for v in dict.fromkeys(v for w in wanted for v in w):
        t = v.type
        shape = Arr(t.elem, (op.count, *t.dims)) if isinstance(t, Arr) else Arr(t, (op.count,))
        stacks[v] = bind.vars[n + stacked.index(v)] if v in stacked else Var(v.name, shape, v.span)
    out: list[Bind] = []
    latest: dict[int, Atom] = dict(enumerate(op.inits))
    for k, segment in enumerate(segments):
        index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
        table: dict[Var, Atom] = {op.index: index}
        read: list[Bind] = []
        for v in wanted[k]:
            here = Var(v.name, v.type, v.span)
            read.append(Bind((here,), Prim("get", (stacks[v], index)), v.span))
            table[v] = here
        accs, inits, finals, results = [], [], [], []
        for number, (came, goes) in passing[k].items():
            acc = op.accs[number]
            accs.append(Var(acc.name, acc.type, acc.span, acc.given))
            table[came] = accs[-1]
            inits.append(latest[number])
            done = goes is body.results[number]
            finals.append(bind.vars[number] if done else Var(bind.vars[number].name, acc.type, acc.span))
            latest[number] = finals[-1]
            results.append(goes)
        here = {v for b in segment for v in b.vars}
        outs = [(v, stack) for v, stack in stacks.items() if v in here and v not in stacked]
        for j, r in enumerate(stacked):
            if r in here or k == len(segments) - 1 and j in loose:
                outs.append((r, bind.vars[n + j]))
        chosen = {b: None for b in (*again[k], *segment)}
        block = Block(tuple(b for b in body.binds if b in chosen), (*results, *(r for r, _ in outs)))
        block = substitute(block, table)
        loop = Loop(op.count, index, tuple(inits), tuple(accs), Block((*read, *block.binds), block.results))
        if loop.body.results or any(type(b.op) is Check for b in all_binds(loop.body)):
            out.append(Bind((*finals, *(v for _, v in outs)), loop, bind.span))
    return out


def states(body: Block, op: Loop, k: int) -> set[Var] | None:
    """What becomes of an array accumulator in a loop's body, one state of another; None where that is no chain."""
    made = {v: (b, j) for b in body.binds for j, v in enumerate(b.vars)}
    found: set[Var] = set()
    v = body.results[k]
    while v is not op.accs[k]:
        source = changed(*made[v]) if v in made else None
        if source is None:
            return None
        found.add(v)
        v = source
    return found


def dependents(block: Block, of: set[Var]) -> set[Var]:
    """All that is computed in a block from some variables."""
    found = set(of)
    for b in block.binds:
        if not any(a in found for a in reads(b)):
            continue
        kinds = reductions(b.op) if type(b.op) is Loop else None
        folded = {k for r in kinds or () if not r.read for k in r.accs}
        inside = free_vars(b.op.body) if type(b.op) is Loop else ()
        if folded and not any(v in found for v in inside) and type(b.op) is Loop:
            through = {k for k, z in enumerate(b.op.inits) if z in found}
            if through <= folded:  # a fold is handed on, and nothing else of it
                found.update(b.vars[k] for k in through)
                continue
        found.update(b.vars)
    return found - of


def recomputed(body: Block, moved: set[Var]) -> dict[Var, Bind]:
    """The scalars that are as cheap as a load, rows that are only looked at, and arrays of zeros."""
    cheap: dict[Var, Bind] = {}
    weight: dict[Var, float] = {}
    for b in body.binds:
        if type(b.op) is not Prim or b.vars[0] in moved:
            continue
        (v,) = b.vars
        if b.op.name in ("zeros", "undef"):
            cheap[v] = b
        elif not isinstance(v.type, Arr) or b.op.name == "get":
            cost = work(b.op) if not isinstance(v.type, Arr) else 0.0
            cost += sum(weight.get(a, 0.0) for a in b.op.args if type(a) is Var)
            if cost <= CHEAP:
                cheap[v], weight[v] = b, cost
    return cheap


def cut(
    body: Block, cheap: dict[Var, Bind], alone: set[Bind], groups: Sequence[Sequence[Bind]] = ()
) -> list[list[Bind]]:
    """The bindings of a body in segments: each of ``groups`` one, each other loop that is to be ``alone``, what stands
    between them together."""
    segments: list[list[Bind]] = []
    between: list[Bind] = []
    group_of = {b: k for k, group in enumerate(groups) for b in group}
    last = None
    for b in body.binds:
        if b.vars and b.vars[0] in cheap:
            continue
        group = group_of.get(b)
        if group is not None:
            if group != last:
                segments += [between] if between else []
                segments.append([])
                between, last = [], group
            segments[-1].append(b)
        elif b in alone:
            last = None
            segments += [between] if between else []
            segments.append([b])
            between = []
        else:
            between.append(b)
    return segments + ([between] if between else [])


# ------------------------------------------------------------------------- rows that are made by adding


def lift(bind: Bind) -> tuple[list[Bind], Bind]:
    """Rows that each iteration makes of zeros, or of an array that is the same for all, by adding to them: what is
    stacked becomes an accumulator, of which each iteration adds to its own row. What comes before, and the loop."""
    op = bind.op
    n = len(op.accs)
    before: list[Bind] = []
    for r in dict.fromkeys(op.body.results[n:]):
        if not isinstance(type_of(r), Arr) or sum(x is r for x in op.body.results) != 1:
            continue
        j = op.body.results.index(r)
        chain = chain_of(op.body, r)
        if chain is None:
            continue
        start = next((b for b in op.body.binds if chain[0] in b.vars), None)
        final = bind.vars[j]
        first = Var(final.name, final.type, final.span)
        same_ = Loop(op.count, Var("i", INT), (), (), Block((), (chain[0],)))
        before.append(Bind((first,), Prim("zeros", final.type.dims) if start else same_, (start or bind).span))
        acc = Var(final.name, final.type, final.span)
        binds = tuple(b for b in op.body.binds if b is not start)
        rest = tuple(x for k, x in enumerate(op.body.results) if k != j)
        body = into_rows(Block(binds, (*rest[:n], r, *rest[n:])), {chain[0]: acc}, final.type, op.index)
        vars_ = tuple(v for k, v in enumerate(bind.vars) if k != j)
        op = Loop(op.count, op.index, (*op.inits, first), (*op.accs, acc), body)
        bind = Bind((*vars_[:n], final, *vars_[n:]), op, bind.span)
        n += 1
    return before, bind


def chain_of(body: Block, result: Atom) -> list[Var] | None:
    """The states of an array from zeros made in the block, or from one of without, to ``result``, through long loops,
    each used once, where nothing is done but adding to it."""
    made = {v: (b, k) for b in body.binds for k, v in enumerate(b.vars)}
    chain: list[Var] = []
    v = result
    while True:
        if type(v) is not Var or most_uses(body, v) != 1:
            return None
        chain.insert(0, v)
        if v not in made:
            break
        b, k = made[v]
        if type(b.op) is Prim and b.op.name == "zeros":
            break
        source = changed(b, k)
        if source is None or type(b.op) is While or type(b.op) is Prim and b.op.name != "add-at":
            return None
        v = source
    if not any(type(made[v][0].op) is Loop and only_adds(made[v][0].op, made[v][1]) for v in chain[1:]):
        return None
    loops = [made[v] for v in chain[1:] if type(made[v][0].op) is Loop]
    return chain if all(only_adds(b.op, k) for b, k in loops) else None


def only_adds(op: Loop, k: int) -> bool:
    """Whether a loop does nothing with an array accumulator but add to it."""
    return most_uses(op.body, op.accs[k]) == 1 and only_added(op.body, op.body.results[k], op.accs[k])


def only_added(block: Block, v: Atom, start: Atom) -> bool:
    """Whether a block makes ``v`` of an array by adding to it, and does nothing else with what comes between."""
    made = {x: (b, j) for b in block.binds for j, x in enumerate(b.vars)}
    while v is not start:
        if v not in made or most_uses(block, v) != 1:
            return False
        b, j = made[v]
        if type(b.op) is Prim and b.op.name == "add-at":
            v = b.op.args[0]
        elif type(b.op) is Loop and j < len(b.op.accs) and only_adds(b.op, j):
            v = b.op.inits[j]
        elif type(b.op) is If:
            v = source(b.op.then, b.op.then.results[j])
            if not all(only_added(arm, arm.results[j], v) for arm in (b.op.then, b.op.orelse)):
                return False
        else:
            return False
    return True


def source(block: Block, v: Atom) -> Atom:
    """The array, of without a block, that one is a later state of."""
    made = {x: (b, j) for b in block.binds for j, x in enumerate(b.vars)}
    while v in made:
        b, j = made[v]
        before = source(b.op.then, b.op.then.results[j]) if type(b.op) is If else changed(b, j)
        if before is None:
            return v
        v = before
    return v


def into_rows(block: Block, table: dict[Var, Var], t: Arr, index: Var) -> Block:
    """A block in which the states of an array, which it adds to, are states of an array of such rows."""
    table = dict(table)
    out: list[Bind] = []
    for b in block.binds:
        op = b.op
        if type(op) is Prim and op.name == "add-at" and op.args[0] in table:
            (old,) = b.vars
            table[old] = Var(old.name, t, old.span)
            out.append(Bind((table[old],), Prim("add-at", (table[op.args[0]], index, *op.args[1:])), b.span, b.soft))
        elif type(op) is Loop and any(z in table for z in op.inits):
            inner = dict(table)
            accs, inits, vars_ = list(op.accs), list(op.inits), list(b.vars)
            for k, z in enumerate(op.inits):
                if z in table:
                    accs[k] = inner[op.accs[k]] = Var(op.accs[k].name, t, op.accs[k].span)
                    vars_[k] = table[b.vars[k]] = Var(b.vars[k].name, t, b.vars[k].span)
                    inits[k] = table[z]
            body = into_rows(op.body, inner, t, index)
            out.append(Bind(tuple(vars_), Loop(op.count, op.index, tuple(inits), tuple(accs), body), b.span))
        elif type(op) is If and not {*free_vars(op.then), *free_vars(op.orelse)}.isdisjoint(table):
            then, orelse = (into_rows(arm, table, t, index) for arm in (op.then, op.orelse))
            vars_ = [v if type_of(r) == v.type else Var(v.name, t, v.span) for v, r in zip(b.vars, then.results)]
            table.update((v, new) for v, new in zip(b.vars, vars_) if v is not new)
            out.append(Bind(tuple(vars_), If(op.cond, then, orelse), b.span))
        else:
            out.append(b)
    return Block(tuple(out), tuple(table.get(r, r) if type(r) is Var else r for r in block.results))


# -------------------------------------------------------------------------------------------- gathering


@dataclass(frozen=True, slots=True)
class Triangle:
    """The innermost loop of a nest, where that goes up to an outer index: ``most``, how far it ever goes, computed by
    ``before``; ``holds``, whether it goes as far as its index is, computed by ``binds`` in the nest; the ``outer``
    index."""

    most: Atom
    before: tuple[Bind, ...]
    holds: Var
    binds: tuple[Bind, ...]
    outer: Var

    def chosen(self, value: Block, otherwise: Atom, binds: Sequence[Bind], table: dict[Var, Atom]) -> Block:
        """A block that is done where the loop goes so far; else its one result is another value. ``binds`` are those of
        the nest, ``table`` has its indices."""
        test = renamed(substitute(tidy(Block((*binds, *self.binds), (self.holds,))), table))
        (x,), (holds,) = value.results, test.results
        out = Var(getattr(x, "name", "t"), type_of(x))
        return Block((*test.binds, Bind((out,), If(holds, value, Block((), (otherwise,))))), (out,))


def triangle(levels: Sequence[Bind]) -> tuple[Bind, Triangle] | None:
    """The loop inside a nest that is a triangle with one of its loops, all in it: ``c < r + k`` for ``r < n``, where k
    is 1 or less, and ``c < m - r``, where m is n or less."""
    inner = next_level(levels[-1].op)
    if inner is None:
        return None
    made = {b.vars[0]: b.op for o in levels for b in o.op.body.binds if type(b.op) is Prim and b.op.name in ("+", "-")}
    count = affine_in(inner.op.count, made)
    found = [b.op for b in levels if b.op.index in count[1]]
    if len(found) != 1:
        return None
    (op,) = found
    along = count[1][op.index]
    rest = affine_add(count, (0, {op.index: along}), -1)
    rows = affine_in(op.count, {})
    if along == -1:
        rest = affine_add(rest, rows, -1)
    if along not in (1, -1) or rest[1] or rest[0] > (along == 1):
        return None
    less = rest[0] - (along == 1)  # how much less far than there are rows it goes
    before: list[Bind] = []
    most = op.count
    for name, by in (("+", less), ("max", 0)) if less else ():
        most, made_by = operation(name, most, integer(by), hint="most")
        before.append(made_by)
    holds = Var("within", BOOL)
    test = Bind((holds,), Prim("<", (inner.op.index, inner.op.count)))
    return inner, Triangle(most, tuple(before), holds, (test,), op.index)


def gathered(bind: Bind) -> list[Bind]:
    """A nest with the sums taken out of it whose places are given by its own indices."""
    levels = nest(bind)
    corner = triangle(levels)
    if corner is not None:
        inner, found = corner
        taken = to_take([*levels, inner], found)
        if taken:
            return [*found.before, *taken_out(bind, [*levels, inner], taken, found)]
    taken = to_take(levels)
    return taken_out(bind, levels, taken) if taken else [bind]


def to_take(levels: Sequence[Bind], corner: Triangle | None = None) -> list[tuple[int, Prim, list[Var], list[int]]]:
    """The sums of a nest whose places are given by its own indices: each accumulator's number, what adds to it, the
    indices of the place, and the numbers of the others."""
    ops = [b.op for b in levels]
    inner = ops[-1]
    indices = [o.index for o in ops]
    bound = {v for o in ops for b in o.body.binds for v in b.vars} | set(indices) | {a for o in ops for a in o.accs}
    if any(type(o.count) is Var and o.count in bound for o in (ops[:-1] if corner else ops)):
        return []
    taken: list[tuple[int, Prim, list[Var], list[int]]] = []
    number = {k: k for k in range(len(ops[0].accs))}  # an accumulator's number in the innermost loop
    for outer, within in zip(ops, ops[1:]):
        for k, j in number.items():
            number[k] = next(m for m, z in enumerate(within.inits) if z is outer.accs[j])
    made = {b.vars[0]: b for b in inner.body.binds if len(b.vars) == 1}
    for kind in reductions(ops[0]) or ():
        if kind.kind not in ("scatter", "slice"):
            continue
        (k,) = kind.accs
        acc, result = inner.accs[number[k]], inner.body.results[number[k]]
        store = made.get(result)
        if store is None or type(store.op) is not Prim or store.op.name != "add-at" or store.op.args[0] is not acc:
            continue
        x = store.op.args[-1]
        if most_uses(inner.body, acc) != 1 or isinstance(type_of(x), Arr):
            continue
        subs = store.op.args[1:-1]
        free = [a for a in subs if type(a) is Var and a in indices]
        if len(set(free)) != len(free) or any(type(a) is Var and a in bound and a not in indices for a in subs):
            continue
        over = [m for m, i in enumerate(indices) if i not in free]
        if corner and (inner.index not in free or dear(x, statements(levels, []))):
            continue
        if over or corner is None and len(free) == len(subs) and out_of_order(x, levels, free):
            taken.append((k, store.op, free, over))
    return taken


def out_of_order(x: Atom, levels: Sequence[Bind], free: Sequence[Var]) -> bool:
    """Whether a nest adds a number to each element once, in another order than they lie in; not where several arrays
    lie in that order. One is read by tiles."""
    indices = [b.op.index for b in levels]
    if not on("turned") or free == indices:
        return False
    block = tidy(Block(statements(levels, ()), (x,)))
    return free[-1] is indices[-1] or along(block, indices[-1]) <= along(block, free[-1]) + 1


def dear(x: Atom, binds: Sequence[Bind]) -> bool:
    """Whether a value costs too much to be computed by each thread that needs it."""
    return type(x) is Var and sum(weighed(b) for b in tidy(Block(tuple(binds), (x,))).binds) > DEAR


def taken_out(bind: Bind, levels: Sequence[Bind], taken: list, corner: Triangle | None = None) -> list[Bind]:
    ops = [b.op for b in levels]
    indices = [o.index for o in ops]
    counts = {o.index: o.count for o in ops}
    if corner:
        counts[indices[-1]] = corner.most
    binds = statements(levels, [store for _, store, _, _ in taken])
    out: list[Bind] = []
    rest = without(levels, {k for k, *_ in taken})
    kept: dict[Var, Var] = {}
    for _, store, _, over in taken:  # what is dear to compute more than once is stacked first
        x = store.args[-1]
        if over and x not in kept and x not in indices and dear(x, binds):
            kept[x] = Var(x.name, Arr(x.type, tuple(o.count for o in ops)), x.span)
    if rest is not None:
        out.append(rest)
    if kept:
        out.append(stacking(levels, binds, kept))
    if corner:
        stacks, binds = around(levels, binds)
        out += stacks
    for k, store, free, over in taken:
        out += sums(bind, k, store, free, [indices[m] for m in over], counts, binds, kept, indices, corner)
    return out


def around(levels: Sequence[Bind], binds: tuple[Bind, ...]) -> tuple[list[Bind], tuple[Bind, ...]]:
    """Nests that stack what the innermost loop of a nest reads of the others, where that is dearer than to read it
    again, and the bindings of the nest that read it there."""
    ops = [b.op for b in levels]
    level = {v: m for m, o in enumerate(ops) for b in o.body.binds for v in b.vars}
    read = {v for b in ops[-1].body.binds for v in reads(b) if level.get(v, len(ops)) < len(ops) - 1}
    out: list[Bind] = []
    for v in [v for v in level if v in read and not isinstance(v.type, Arr)]:
        if sum(weighed(b) for b in tidy(Block(binds, (v,))).binds) > CHEAP:
            nest_ = levels[: level[v] + 1]
            stack = Var(v.name, Arr(v.type, tuple(b.op.count for b in nest_)), v.span)
            out.append(stacking(nest_, binds, {v: stack}))
            again = Bind((v,), Prim("get", (stack, *(b.op.index for b in nest_))), v.span)
            binds = tuple(again if v in b.vars else b for b in binds)
    return out, binds


def multiple(bind: Bind | None) -> tuple[Const, Atom] | None:
    """A constant that differentiation has multiplied by, and what it has multiplied."""
    if bind is None or not bind.soft or type(bind.op) is not Prim or bind.op.name != "*":
        return None
    a, b = sorted(bind.op.args, key=lambda x: type(x) is not Const)
    return (a, b) if type(a) is Const and type(b) is not Const else None


def scaled(bind: Bind) -> list[Bind]:
    """A nest whose elements are sums of products of which one factor is a multiple, as the adjoint of a square is, as
    two: the sums, which are a product of matrices, or a stack of such, and their multiples::

        (build [n m] (fn [i j] (ifold (fn [s k] (+ s (* (* 2.0 (get a i k)) (get b k j)))) 0.0 l)))
        =>  p = (build [n m] (fn [i j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 l)))
            (build [n m] (fn [i j] (* 2.0 (get p i j))))
    """
    levels, op = [bind], bind.op
    while len(op.body.binds) == 1 and type(op.body.binds[0].op) is Loop and not op.accs and len(levels[-1].vars) == 1:
        levels.append(op.body.binds[0])
        op = levels[-1].op
        if op.accs:
            break
    made = {v: b for b in op.body.binds for v in b.vars}
    indices = [b.op.index for b in levels[:-1]]
    whole = all(b.op.body.results == c.vars for b, c in zip(levels, levels[1:]))
    if not whole or len(op.accs) != 1 or len(op.body.results) != 1 or len(indices) < 2:
        return [bind]
    total, zero = made.get(op.body.results[0]), op.inits[0]  # type: ignore[call-overload]
    if not (type(zero) is Const and zero.value == 0.0) or not all(type(b.op) is Prim for b in op.body.binds):
        return [bind]
    if total is None or total.op.name != "+" or op.accs[0] not in total.op.args:  # type: ignore[union-attr]
        return [bind]
    x = next(a for a in total.op.args if a is not op.accs[0])  # type: ignore[union-attr]
    term = made.get(x)  # type: ignore[call-overload]
    if term is None or not product(x, op.body.binds, indices):
        return [bind]
    factor = next((made[a] for a in term.op.args if multiple(made.get(a))), None)  # type: ignore
    if factor is None:
        return [bind]
    by, rest = multiple(factor)  # type: ignore[misc]
    left = Block(tuple(b for b in op.body.binds if b is not factor), op.body.results)
    body = tidy(substitute(left, {factor.vars[0]: rest}))  # type: ignore[dict-item]
    sums_: Bind = Bind(levels[-1].vars, replace(op, body=body), levels[-1].span)
    for level in reversed(levels[:-1]):
        sums_ = Bind(level.vars, replace(level.op, body=Block((sums_,), sums_.vars)), level.span)
    (v,) = bind.vars
    p, s, y = Var(v.name, v.type, v.span), Var("s", REAL), Var(v.name, REAL)
    again = [Var(i.name, INT, i.span) for i in indices]
    block = Block((Bind((s,), Prim("get", (p, *again))), Bind((y,), Prim("*", (by, s)), factor.span, True)), (y,))
    sums_ = Bind((p,), sums_.op, bind.span)
    return [sums_, Bind((v,), nested(again, [b.op.count for b in levels[:-1]], block, REAL, v.name).op, bind.span)]


def product(x: Atom, binds: Sequence[Bind], free: Sequence[Var]) -> bool:
    """Whether a term is the product of two elements of matrices, or of stacks of matrices at one place, so that its
    sums are the elements of a product."""
    made = {v: b for b in binds for v in b.vars}
    op = made[x].op if x in made else None
    if type(op) is not Prim or op.name != "*" or len(free) < 2:
        return False
    multiples = [multiple(made.get(a)) for a in op.args]  # of one of them at most
    found = [made.get(m[1] if m else a) for m, a in zip(multiples, op.args)]  # type: ignore[call-overload]
    if all(multiples) or not all(f is not None and type(f.op) is Prim and f.op.name == "get" for f in found):
        return False
    at = tuple(free[:-2])
    places = [f.op.args[1:] for f in found]  # type: ignore[union-attr]
    return not at or all(len(place) == len(at) + 2 and place[: len(at)] == at for place in places)


def sums(
    bind: Bind,
    k: int,
    store: Prim,
    free: Sequence[Var],
    over: Sequence[Var],
    counts: dict[Var, Atom],
    binds: Sequence[Bind],
    kept: dict[Var, Var],
    indices: Sequence[Var],
    corner: Triangle | None,
) -> list[Bind]:
    """What adds to one array, element by element."""
    op = bind.op
    within = corner is not None and corner.outer in over
    x, elem = store.args[-1], op.accs[k].type.elem
    table: dict[Var, Atom] = {i: Var(i.name, INT, i.span, i.given, i.soft) for i in indices}
    mine = [table[i] for i in free]
    sizes = [counts[i] for i in free]
    before: list[Bind] = []
    if not over:
        block = substitute(tidy(Block(tuple(binds), (x,))), table)
        return [adding(bind.vars[k], op.inits[k], mine, sizes, mine, block, bind.span)]
    first, *more = over
    matrix = corner is None and len(over) == 1 and x not in kept and product(x, binds, free)
    if corner is None and not matrix and by_rows(x, binds, free, over, kept, indices):
        return sums_of_rows(bind, k, store, free, over, counts, binds, kept, indices)
    parts: Atom = integer(1)
    if not matrix and (corner is None or first is indices[0]):
        parts, before = parts_of(counts[first], sizes, PLACES)
    split = not (type(parts) is Const and parts.value == 1)
    inside = table[first]
    count = counts[first]
    head: list[Bind] = []
    shift: list[Bind] = []
    part = Var("part", INT)
    if split:
        place = Var(first.name, INT)
        count, head, shift = share_of(part, parts, counts[first], inside, place)
        table = {**table, first: place}
    if x in kept:
        value = Var(x.name, x.type)
        block = Block((Bind((value,), Prim("get", (kept[x], *(table[i] for i in indices)))),), (value,))
    else:
        block = substitute(tidy(Block(tuple(binds), (x,))), table)
    zero = Const(0.0 if elem == REAL else 0, elem, True)
    if within:
        block = corner.chosen(block, zero, binds, table)
    for i in reversed(more):
        total = folding(counts[i], table[i], block, elem, bind.span)
        block = Block((total,), total.vars)
    total = folding(count, inside, Block((*shift, *block.binds), block.results), elem, bind.span)
    block = Block((total,), total.vars)
    subs = [table.get(a, a) if type(a) is Var else a for a in store.args[1:-1]]
    if split:
        block = Block((*head, total), total.vars)
        if corner is not None and not within:
            block = corner.chosen(block, zero, binds, table)
        made = nested([part, *mine], [parts, *sizes], block, elem, bind.vars[k].name)
        before.append(Bind(made.vars, made.op, bind.span))
        again = {i: Var(i.name, INT) for i in free}
        p, term = Var("part", INT), Var("t", elem)
        read = Bind((term,), Prim("get", (made.vars[0], p, *(again[i] for i in free))))
        total = folding(parts, p, Block((read,), (term,)), elem, bind.span)
        block = Block((total,), total.vars)
        mine = [again[i] for i in free]
        if mine and all(type(n) is Const for n in sizes) and not (type(parts) is Const and parts.value <= SHARE):
            made = nested(mine, sizes, block, elem, bind.vars[k].name)  # alone, a nest of which a team has each place
            before.append(made)
            again = {i: Var(i.name, INT) for i in free}
            mine, term = [*again.values()], Var("t", elem)
            block = Block((Bind((term,), Prim("get", (made.vars[0], *mine))),), (term,))
        subs = [again.get(a, a) if type(a) is Var else a for a in store.args[1:-1]]
    final = bind.vars[k]
    if not mine:
        return [
            *before,
            *block.binds,
            Bind((final,), Prim("add-at", (op.inits[k], *subs, block.results[0])), bind.span),
        ]
    test = None
    if corner is not None and not within:
        here = dict(zip(free, mine))
        if same(op.accs[k].type.dims[list(store.args[1:-1]).index(indices[-1])], corner.most):  # all are places of it
            block = block if split else corner.chosen(block, zero, binds, here)
        else:
            test = lambda value, array: corner.chosen(value, array, binds, here)  # noqa: E731
    return [*before, adding(final, op.inits[k], mine, sizes, subs, block, bind.span, test)]


def by_rows(
    x: Atom, binds: Sequence[Bind], free: Sequence[Var], over: Sequence[Var], kept: dict, indices: Sequence[Var]
) -> bool:
    """Whether what a sum over some indices reads lies side by side along the last of them, so that neighbouring threads
    had better share a sum; and whether the sums along it alone are few, beside what they are sums of."""
    last = over[-1]
    if not free:
        return False
    if x in kept:
        return last is indices[-1]
    term = tidy(Block(tuple(binds), (x,)))
    integers = {b.vars[0]: b.op for b in all_binds(term) if type(b.op) is Prim and b.op.name in ("+", "-")}
    gets = [b.op for b in all_binds(term) if type(b.op) is Prim and b.op.name == "get" and len(b.op.args) > 1]
    along = False
    for op in gets:
        *outer, inner = ({v for v in affine_in(a, integers)[1] if v in indices} for a in op.args[1:])
        summed = any(i in over for part in (*outer, inner) for i in part)
        if last in inner:
            along = True
        elif inner and summed:
            return False
        if summed and len(over) > 1 and any(part & {*free} and not part & {*over} for part in (*outer, inner)):
            return False
    return along


def sums_of_rows(
    bind: Bind,
    k: int,
    store: Prim,
    free: Sequence[Var],
    over: Sequence[Var],
    counts: dict[Var, Atom],
    binds: Sequence[Bind],
    kept: dict[Var, Var],
    indices: Sequence[Var],
) -> list[Bind]:
    """``sums`` over one index after the other, the last one first: each time a row for each of the other ones."""
    op, x = bind.op, store.args[-1]
    elem, name = op.accs[k].type.elem, bind.vars[k].name
    out: list[Bind] = []
    left = list(over)
    rows: Var | None = kept.get(x)
    places = list(indices)
    while True:
        table: dict[Var, Atom] = {i: Var(i.name, INT, i.span, i.given, i.soft) for i in indices}
        mine = [table[i] for i in free]
        value = Var(getattr(x, "name", name), elem)
        if rows is None:
            block = substitute(tidy(Block(tuple(binds), (x,))), table)
        else:
            block = Block((Bind((value,), Prim("get", (rows, *(table[i] for i in places)))),), (value,))
        i = left.pop()
        total = folding(counts[i], table[i], block, elem, bind.span)
        block = Block((total,), total.vars)
        sizes = [counts[i] for i in (*free, *left)]
        if not left:
            break
        room, rows = (Var(name, Arr(elem, tuple(sizes))) for _ in range(2))
        inner = [table[i] for i in left]
        around, order = (
            [counts[i] for i in (*left, *free)],
            [*inner, *mine],
        )
        out.append(Bind((room,), Prim("undef", ())))
        out.append(adding(rows, room, order, around, [*mine, *inner], block, bind.span, by="update"))
        places = [*free, *left]
    subs = [table.get(a, a) if type(a) is Var else a for a in store.args[1:-1]]
    return [*out, adding(bind.vars[k], op.inits[k], mine, sizes, subs, block, bind.span)]
