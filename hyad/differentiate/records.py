"""What must be remembered: cutting a pair (forward code, backward code) at the hole between them.

The backward code is made where it can see every value of the forward code. Cutting moves it away: the values that it
reads across the cut are the record, but for those that are computed again for less than it costs to remember them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from ..core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Constructor,
    Data,
    If,
    Loop,
    Make,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
    defined_in,
    free_vars,
    reads,
    type_atoms,
    type_of,
)
from ..program.accumulators import sum_like
from ..program.loops import array_uses, cost_of, slice_of
from ..program.primitives import PRIMITIVES, price_of

MANY = 100  # what a size or a count is supposed to be that only a run knows
COSTLY = 8  # in additions: from here on a loop or a function remembers a value, below it is computed again
CHAIN = 2  # in additions: what waits for so many, one after the other, is remembered as well


def calls(op: object) -> bool:
    """Whether a function is called in the regions of an operation."""
    return any(type(bind.op) is Apply for block in blocks_of(op) for bind in all_binds(block))  # type: ignore[arg-type]


def works(bind: Bind) -> bool:
    """Whether what a loop or a branch gives costs more to compute again than to remember: there are costly operations
    in it, or all its work for each number that it gives; or each of these waits for the one before."""
    inner = [b for block in blocks_of(bind.op) for b in all_binds(block)]
    if any(type(b.op) is Prim and b.op.name in PRIMITIVES and price_of(b.op) >= COSTLY for b in inner):
        return True
    numbers = sum(math.prod(map(extent, type_atoms(v.type))) for v in bind.vars)
    if bind.vars and type(bind.op) is Loop and waits(bind.op):
        return True
    return bool(bind.vars) and work(Block((bind,), ())) >= COSTLY * numbers


def waits(op: Loop) -> bool:
    """Whether a loop stacks the course of a number, each computed from the one before, by more than an addition."""
    stacked = op.body.results[len(op.accs) :]
    for acc, r in zip(op.accs, op.body.results):
        if acc.type == REAL and r is not acc and (acc in stacked or r in stacked) and not sum_like(op.body, acc, r):
            step = slice_of(op.body, [r])
            if acc in free_vars(step) and cost_of(step) >= CHAIN:
                return True
    return False


def work(block: Block) -> float:
    """What a block costs, in additions; of a branch its dearest arm."""
    total = 0.0
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim:
            total += price_of(op) if op.name in PRIMITIVES and bind.vars[0].type == REAL else 0
        elif type(op) in (Loop, While):
            total += (extent(op.count) if type(op) is Loop else MANY) * sum(map(work, blocks_of(op)))  # type: ignore
        elif blocks_of(op):
            total += max(map(work, blocks_of(op)))
    return total


def extent(size: Atom) -> float:
    """A size or a count, or what is supposed for one that only a run knows."""
    return size.value if type(size) is Const else MANY


def stepwise(op: Loop | While) -> frozenset[Var]:
    """The accumulators of which an iteration reads and changes single elements or rows, as a table that is filled in
    place, and what they are in its body: the few numbers that are read of them are remembered, not the whole array each
    time."""
    found: frozenset[Var] = frozenset()
    for acc, r in zip(op.accs, op.body.results):
        if isinstance(acc.type, Arr) and acc.type.elem == REAL and r is not acc:
            chain = Chain()
            if chain.start(op.body, r) is acc and chain.reads_elements(op, {acc}):
                size = math.prod(map(extent, acc.type.dims))
                if chain.changed and size >= COSTLY * chain.count:
                    found |= chain.vars | {acc}
    return found


class Chain:
    """What an array is in the body of a loop, change by change, back to what it was before."""

    def __init__(self) -> None:
        self.vars: set[Var] = set()
        self.changed = False
        self.count = 0.0  # of elements that an iteration reads
        self.lines: set[tuple[Var, Line]] = set()  # .. of these rows and columns

    def start(self, block: Block, r: Atom) -> Atom | None:
        """What ``r`` was before ``block`` changed elements of it; None where it is something else."""
        definitions = {v: bind for bind in block.binds for v in bind.vars}
        while r in definitions:
            bind = definitions[r]  # type: ignore[index]
            self.vars.add(r)  # type: ignore[arg-type]
            op, k = bind.op, bind.vars.index(r)  # type: ignore[arg-type]
            if type(op) is Prim and op.name == "update":
                self.changed = True
                r = op.args[0]
            elif type(op) is If:
                before = {self.start(branch, branch.results[k]) for branch in blocks_of(op)}
                if len(before) > 1:
                    return None
                r = before.pop()  # type: ignore[assignment]
            elif type(op) in (Loop, While) and k < len(op.accs):  # type: ignore[union-attr]
                acc = op.accs[k]  # type: ignore[union-attr]
                if self.start(op.body, op.body.results[k]) is not acc:  # type: ignore[union-attr]
                    return None
                self.vars.add(acc)
                r = op.inits[k]  # type: ignore[union-attr]
            else:
                return None
        return r

    def reads_elements(self, op: Loop | While, here: set[Var]) -> bool:
        """Whether nothing but elements are read of it in a loop's body, each where the array is the loop's own, or rows
        and columns that loops inside go through."""
        every = self.vars | here
        goes_on = all(r not in every or k < len(op.accs) and op.accs[k] in every for k, r in enumerate(op.body.results))
        return goes_on and self.elements_in(op.body, every, here)

    def elements_in(self, block: Block, every: set[Var], here: set[Var]) -> bool:
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim:
                places = [k for k, a in enumerate(op.args) if a in every]
                if places and (places != [0] or op.args[0] not in here):
                    return False
                if places and op.name == "get":
                    self.counts(op.args[0], line_of(op.args[1:], op.args[0].type, ()))  # type: ignore[arg-type, union-attr]
                elif places and bind.vars[0] not in every:
                    return False
            elif type(op) is If:
                for branch in blocks_of(op):
                    if any(r in every and v not in every for r, v in zip(branch.results, bind.vars)):
                        return False
                    if not self.elements_in(branch, every, here):
                        return False
            elif type(op) in (Loop, While):
                if any(z in every and a not in every for z, a in zip(op.inits, op.accs)):  # type: ignore[union-attr]
                    return False
                mine = every.intersection(op.accs)  # type: ignore[union-attr]
                if mine or every.isdisjoint(free_vars(Block((bind,), ()))):
                    if not self.reads_elements(op, mine):  # type: ignore[arg-type]
                        return False
                elif not self.reads_lines(bind, every, here):
                    return False
            elif every.intersection(free_vars(Block((bind,), ()))):
                return False
            here.update(every.intersection(bind.vars))
        return True

    def reads_lines(self, bind: Bind, every: set[Var], here: set[Var]) -> bool:
        """Whether a loop that does not change the array reads rows or columns of it that are the same in all of its
        iterations."""
        block = Block((bind,), ())
        own = defined_in(block)
        for a, seen in array_uses(block).items():
            if a in every:
                lines = {line_of(use.subscripts or (), a.type, own) for use in seen}  # type: ignore[arg-type]
                if a not in here or not all(map(any, lines)):
                    return False
                for line in lines:
                    self.counts(a, line)
        return True

    def counts(self, a: Var, line: Line) -> None:
        """Add what is read of an array: a row once, however often."""
        if None not in line or (a, line) not in self.lines:
            self.count += length_of(line, a.type)  # type: ignore[arg-type]
        self.lines.add((a, line))


#: A part of an array: its subscripts, None where it has all of them.
Line = tuple[Atom | None, ...]


def line_of(subscripts: Sequence[Atom], t: Arr, inside: Container[Atom]) -> Line:
    """The part of an array in which an element is that is read, by what is not ``inside``; none where all of it is."""
    return (*(None if s in inside else s for s in subscripts), *[None] * (t.rank - len(subscripts)))


def length_of(line: Line, t: Arr) -> float:
    """How many elements it has."""
    return math.prod(extent(d) for d, s in zip(t.dims, line) if s is None)


def cost_again(bind: Bind, rerun: bool) -> int:
    """What it costs to compute a binding again; ``COSTLY`` where that must not be."""
    op = bind.op
    if type(op) is Prim:
        if op.name in PRIMITIVES:
            return price_of(op)
        return {"get": 1, "select": 1, "zeros": 1, "undef": 0, "array": len(op.args)}.get(op.name, COSTLY)
    if type(op) is Make:
        return COSTLY if op.args else 0
    return 0 if rerun and blocks_of(op) and not calls(op) and not works(bind) else COSTLY


def cut(
    binds: Sequence[Bind], back: Block, bound: set[Var], rerun: bool = False, tables: Container[Var] = ()
) -> tuple[list[Var], Block]:
    """The fields of the record between the forward code ``binds`` and the backward code, and the backward code that
    needs nothing else of the variables ``bound`` in the forward code.

    ``rerun``: arrays that loops and branches without calls give are computed again as well, as they would fill memory
    once for each iteration around. What is read of ``tables`` is not read again. Sizes stand before the arrays.
    """
    definitions = {v: bind for bind in binds for v in bind.vars}
    order = {v: k for k, v in enumerate(definitions)}
    found: dict[Var, tuple[Sequence[Var], int]] = {}

    def read_of_these(bind: Bind) -> list[Var]:
        return [v for v in reads(bind) if v in bound]

    begun: set[Atom] = set()  # arrays with memory of their own, of which a few elements have been set
    for bind in binds:  # what each variable can be computed again from, and the cost
        sources, below = read_of_these(bind), []
        op = bind.op
        started = type(op) is Prim and op.name in ("update", "add-at") and op.args[0] in begun
        if started or type(op) is Prim and op.name in ("zeros", "undef"):
            begun.add(bind.vars[0])
        again = COSTLY if any(a in tables for a in sources) else 1 if started else cost_again(bind, rerun)
        if again < COSTLY:
            for a in sources:
                more, cost = found.get(a, ((a,), 0))
                below += more
                again += cost
        for v in bind.vars:
            whole = bool(blocks_of(bind.op))
            if again < COSTLY and (not whole or isinstance(v.type, Arr)):  # a number is not worth a loop
                found[v] = tuple(dict.fromkeys(below)), 0 if whole else again
            else:
                found[v] = (v,), 0

    def roots(v: Var) -> Sequence[Var]:
        return found[v][0] if v in found else (v,)

    def sizes(v: Var) -> list[Var]:
        return [d for d in type_atoms(v.type) if type(d) is Var and d in bound]

    needed = [v for v in free_vars(back) if v in bound]
    needed = sorted(dict.fromkeys([*(d for v in needed for d in sizes(v)), *needed]), key=lambda v: order.get(v, -1))
    kept = {v: None for v in needed if v in roots(v)}
    cheap = [v for v in needed if v not in kept]
    uses: dict[Var, int] = {}
    for v in cheap:
        for root in roots(v):
            uses[root] = uses.get(root, 0) + 1
    for v in cheap:
        missing = [root for root in roots(v) if root not in kept]
        if not missing:
            continue
        if (len(missing) == 1 and uses[missing[0]] > 1) or blocks_of(definitions[v].op):
            kept.update(dict.fromkeys(missing))
        else:
            kept[v] = None
    for v in list(kept):
        kept.update(dict.fromkeys(sizes(v)))
    recomputed: dict[Bind, None] = {}
    todo = [v for v in cheap if v not in kept]
    while todo:
        bind = definitions[todo.pop()]
        if bind not in recomputed:
            recomputed[bind] = None
            todo += [a for a in read_of_these(bind) if a not in kept]
    first = tuple(bind for bind in binds if bind in recomputed)
    fields = sorted(kept, key=lambda v: (v.type != INT, order.get(v, -1)))
    return fields, Block((*first, *back.binds), back.results)


def record_of(data: Data, name: str, fields: Sequence[Var], make: str = "record") -> tuple[Constructor, list[Var]]:
    """A constructor that remembers variables, and what it is made from: these, and before them the sizes that their
    types need. ``data`` is to list it."""
    have = set(fields)
    sizes = dict.fromkeys(d for v in fields for d in type_atoms(v.type) if type(d) is Var and d not in have)
    args = [*sizes, *fields]
    table: dict = {}
    for v in args:
        t = v.type
        t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
        table[v] = Var(v.name, t, v.span, v.given)
    return Constructor(name, data, tuple(table[v] for v in args), make), args


def costly(block: Block, active: dict[Var, int], least: int = COSTLY) -> list[Var]:
    """The scalars bound at the top of a block that cost more to compute than to remember."""
    found = []
    for bind in block.binds:
        if type(bind.op) is Prim and bind.op.name in PRIMITIVES and bind.vars[0].type == REAL:
            if price_of(bind.op) >= least and bind.vars[0] in active:
                found.append(bind.vars[0])
    return found


def laborious(op: Loop, active: dict[Var, int], again: Container[Var] = ()) -> list[Var]:
    """The sums in a loop's body, and the arrays of sums, of sizes that are known outside: each of their numbers takes
    a loop to compute; but for those that are computed ``again``. Arrays of costly numbers, too, where they take no more
    room than what the loop stacks anyway."""
    stacked = [type_atoms(type_of(r)) for r in op.body.results[len(op.accs) :]]
    bound = {op.index, *op.accs, *defined_in(op.body)}
    found = []
    for bind in op.body.binds:
        inner = bind.op
        if type(inner) is Loop:
            loops = any(type(b.op) is Loop and b.op.accs for b in all_binds(inner.body))
            dear = bool(costly(inner.body, active))
            for v in bind.vars:
                dims = v.type.dims if isinstance(v.type, Arr) else ()
                real = (v.type.elem if isinstance(v.type, Arr) else v.type) == REAL
                worth = loops or not dims or dear and dims in stacked
                if real and v in active and v not in again and worth and not any(d in bound for d in dims):
                    found.append(v)
    return found


def elements(op: Loop, active: dict[Var, int]) -> list[Var]:
    """The numbers that a loop's body reads of the arrays that its own loops make: without such a number its loop would
    run again for it alone. Short loops are written out before."""
    made: set[Var] = set()
    found = []
    for bind in op.body.binds:
        inner, v = bind.op, bind.vars[0] if bind.vars else None
        if type(inner) is Loop:
            made.update(bind.vars)
        elif type(inner) is Prim and inner.args and inner.args[0] in made:
            if inner.name == "update":
                made.add(v)  # type: ignore[arg-type]
            elif inner.name == "get" and v in active and v.type == REAL:  # type: ignore[union-attr]
                found.append(v)
    return found  # type: ignore[return-value]
