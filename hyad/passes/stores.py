"""Stores for additions: what is added to an element of fresh zeros once is stored, and needs no zeros.

``assign`` finds the accumulations that do so with every element, ``scatter`` rows that are zero but for a few;
``one_store`` puts together what straight-line code stores in one element and adds to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core import (
    INT,
    REAL,
    ROW,
    ZERO,
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
    Scalar,
    Var,
    all_binds,
    all_blocks,
    atoms_of,
    binds_of,
    blocks_of,
    defined_in,
    free_vars,
    rank_of,
    reads,
    same,
    substitute,
    type_atoms,
    type_of,
    with_body,
)
from ..program.affine import Affine, affine_add, affine_in
from ..program.builder import Builder
from ..program.loops import array_uses
from ..program.rebuild import Rebuild, rebuilt
from .rows import by_row


def assign(program: Program, by_rows: bool = True) -> Program:
    """Turns an accumulation that adds exactly once to each element of fresh zeros into stores, which need no zeros;
    also what is added to them first.

    ``(ifold (fn [v i] (add-at v i x)) (zeros n) n)``  =>  ``(build n (fn [i] x))``, and the same for a matrix in two
    loops; so is a sum with each element of a matrix that is needed as it was, which would be copied first; where the
    loop runs backwards through the elements, an ``update`` of memory that was never cleared; where it
    comes to one element of each row, as on a diagonal, an ``update`` of zeros. ``by_rows``: a loop that adds to a row
    in each iteration makes that row, of zeros of its own.
    """
    for _ in range(2):  # what is added to arrays that have become builds
        pass_ = Assign(program.body, by_rows)
        body = pass_.block(program.body)
        program = with_body(program, substitute(body, pass_.renamed) if pass_.renamed else body)
        if not pass_.renamed:
            break
    return program


class Assign:
    def __init__(self, body: Block, by_rows: bool) -> None:
        self.by_rows = by_rows
        self.definitions = {v: bind.op for bind in all_binds(body) for v in bind.vars if type(bind.op) is Prim}
        self.renamed: dict[Var, Atom] = {}  # arrays that came to be stacked
        built = [bind for bind in all_binds(body) if type(bind.op) is Loop and not bind.op.accs]
        self.uses = uses = array_uses(body) if built else {}
        self.builds = {v: len(uses.get(v, ())) for bind in built for v in bind.vars}  # how often each is read
        self.equal: dict[Atom, Atom] = {}  # sizes that a check before found equal
        self.kept: set[Atom] = set()  # matrices that are needed as they were by more than what adds to them

    def block(self, block: Block) -> Block:
        if all(type(bind.op) in (Prim, Check) and not self.first_of_all(bind.op) for bind in block.binds):
            return block
        outside, self.equal = self.equal, dict(self.equal)
        binds: list[Bind] = []
        last = last_reads(block)
        for j, bind in enumerate(block.binds):
            op = bind.op
            if type(op) is Check and op.relation == "==" and not self.same(op.a, op.b):
                a, b = self.first_of(op.a), self.first_of(op.b)
                self.equal[a if type(a) is Var else b] = b if type(a) is Var else a
            if self.first_of_all(op):
                bind = Bind(bind.vars, Prim("update", op.args), bind.span)  # type: ignore[union-attr]
            elif type(op) is If:
                bind = Bind(bind.vars, If(op.cond, self.block(op.then), self.block(op.orelse)), bind.span)
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, self.block(added_once(op)))
                own = free_vars(op.body) if last else ()
                self.kept = {z for z in op.inits if z in last and (last[z] > j or z in own)}
                binds.extend(self.loop(Bind(bind.vars, op, bind.span)))
                continue
            binds.append(bind)
        self.equal = outside
        return Block(tuple(binds), block.results)

    def first_of_all(self, op: object) -> bool:
        """Whether an operation adds to zeros of which nothing is known but that."""
        added = type(op) is Prim and op.name == "add-at"
        start = self.definitions.get(op.args[0]) if added else None  # type: ignore[union-attr]
        return start is not None and start.name == "zeros"

    def loop(self, bind: Bind) -> list[Bind]:
        bind = self.nest(bind)
        op: Loop = bind.op  # type: ignore[assignment]
        fresh: list[Bind] = []
        inits, accs = list(op.inits), list(op.accs)
        results, vars = list(op.body.results), list(bind.vars)
        body = list(op.body.binds)
        k = 0
        while k < len(accs):
            at = self.single_store(op, inits[k], accs[k], Block(tuple(body), tuple(results)), k)
            if at is None:
                here = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(body), tuple(results)))
                rows = self.rows(here, k) if self.by_rows else None
                if rows is None:
                    k += 1
                else:
                    body, results = list(rows.binds), list(rows.results)
                    vars.append(vars[k])
                    del inits[k], accs[k], vars[k]
                continue
            where, forward = at
            store: Prim = body[where].op  # type: ignore[assignment]
            if forward is None:
                body[where] = Bind(body[where].vars, Prim("update", store.args), body[where].span)
                k += 1
            elif forward and type_of(store.args[-1]) == accs[k].type.item():
                del body[where]
                results.append(store.args[-1])
                vars.append(vars[k])
                del inits[k], accs[k], results[k], vars[k]
            else:
                blank = Var(accs[k].name, accs[k].type, accs[k].span)
                fresh.append(Bind((blank,), Prim("undef", ()), bind.span))
                inits[k] = blank
                body[where] = Bind(body[where].vars, Prim("update", store.args), body[where].span)
                k += 1
        if not fresh and len(accs) == len(op.accs) and body == list(op.body.binds):
            return [bind]
        loop = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(tuple(body), tuple(results)))
        return [*fresh, Bind(tuple(vars), loop, bind.span)]

    def rows(self, op: Loop, k: int) -> Block | None:
        """The body of a loop that stacks the rows of its accumulator ``k``: zeros first, a row for each iteration."""
        start = self.definitions.get(op.inits[k]) if type(op.inits[k]) is Var else None
        acc = op.accs[k]
        if not (isinstance(start, Prim) and start.name == "zeros" and same(acc.type.dims[0], op.count)):
            return None
        found = by_row(op, k)
        if found is None:
            return None
        block, zeros = found
        self.definitions[zeros] = block.binds[0].op  # type: ignore[assignment]
        return self.block(block)

    def nest(self, bind: Bind) -> Bind:
        """Loops around one another that add to each element of a fresh array once, in its order, as builds."""
        op: Loop = bind.op  # type: ignore[assignment]
        for k, (init, acc) in enumerate(zip(op.inits, op.accs)):
            start = self.definitions.get(init) if type(init) is Var else None
            cleared = isinstance(start, Prim) and start.name == "zeros" and isinstance(acc.type, Arr)
            if cleared and acc.type.rank == 1 and same(acc.type.dims[0], op.count):  # type: ignore[union-attr]
                continue  # see below
            if cleared or self.builds.get(init) == 1 or init in self.kept or self.raises(op, bind, k):  # type: ignore
                made = self.stacking(bind, k, (), acc.type.dims, None if cleared else init)  # type: ignore
                if made is not None:
                    return self.nest(made)
        return bind

    def raises(self, op: Loop, bind: Bind, k: int) -> bool:
        """Whether a loop adds the same number to each element of a build that is read by element beside, and the sums
        are read by element once: they come to be where they are read (``Fuse``), and are no array."""
        init, acc = op.inits[k], op.accs[k]
        if init not in self.builds or [x for x in op.body.binds if acc in reads(x)] != [*op.body.binds]:
            return False
        before, after = self.uses.get(init, ()), self.uses.get(bind.vars[k], ())  # type: ignore[call-overload]
        return len(after) == 1 and after[0].subscripts is not None and sum(u.subscripts is None for u in before) == 1

    def stacking(
        self, bind: Bind, k: int, indices: tuple[Atom, ...], dims: tuple[Atom, ...], start: Atom | None
    ) -> Bind | None:
        """A loop that stacks what it would add to the accumulator ``k``, or the sum of that and what ``start`` holds;
        ``indices`` are those of the loops around. The array comes last."""
        op: Loop = bind.op  # type: ignore[assignment]
        acc, r, body = op.accs[k], op.body.results[k], op.body.binds
        where = next((j for j, b in enumerate(body) if r in b.vars), None)
        if where is None or not self.same(dims[len(indices)], op.count):
            return None
        last, own = body[where], (*indices, op.index)
        row = columns_of(op.body, acc, r, own, dims)
        if row is None and [b for b in body if acc in reads(b)] != [last] or any(r in reads(b) for b in body):
            return None
        if op.body.results.count(r) > 1 or acc in op.body.results:
            return None
        if row is not None:
            binds = tuple(b for b in body if b not in row)
            numbers: list[Atom] = [ZERO] * dims[-1].value  # type: ignore[union-attr]
            for column, x in row.values():
                numbers[column] = x
            if start is not None:
                more, numbers = raised(start, own, numbers, last, r)
                binds = (*binds, *more)
            made_row = Var(r.name, Arr(acc.type.elem, dims[-1:]), last.span)  # type: ignore[union-attr]
            binds, x = (*binds, Bind((made_row,), Prim("array", tuple(numbers)), last.span)), made_row
        elif type(last.op) is Loop and len(own) < len(dims):
            at = last.vars.index(r)  # type: ignore[arg-type]
            if at >= len(last.op.accs) or last.op.inits.count(acc) > 1 or last.op.inits[at] is not acc:
                return None
            made = None if acc in free_vars(last.op.body) else self.stacking(last, at, own, dims, start)
            if made is None:
                return None
            binds, x = (*body[:where], made, *body[where + 1 :]), made.vars[-1]
        elif type(last.op) is Prim and last.op.name == "add-at" and last.op.args[1:-1] == own and len(own) == len(dims):
            binds, x = (*body[:where], *body[where + 1 :]), last.op.args[-1]
            if start is not None:
                more, (x,) = raised(start, own, [x], last, r)
                binds = (*binds, *more)
        else:
            return None
        v, t = bind.vars[k], type_of(x)
        inner = t.dims if isinstance(t, Arr) else ()
        stack = Var(v.name, Arr(acc.type.elem, (op.count, *inner)), v.span, v.given)  # type: ignore[union-attr]
        self.renamed[v] = stack
        rest = [j for j in range(len(op.body.results)) if j != k]
        accs = [j for j in rest if j < len(op.accs)]
        results = (*(op.body.results[j] for j in rest), x)
        inits = tuple(op.inits[j] for j in accs)
        loop = Loop(op.count, op.index, inits, tuple(op.accs[j] for j in accs), Block(binds, results))
        return Bind((*(bind.vars[j] for j in rest), stack), loop, bind.span)

    def same(self, a: Atom, b: Atom) -> bool:
        """Whether two sizes are equal, as far as checks that came before say."""
        return same(self.first_of(a), self.first_of(b))

    def first_of(self, a: Atom) -> Atom:
        while a in self.equal:
            a = self.equal[a]
        return a

    def single_store(self, op: Loop, init: Atom, acc: Var, body: Block, k: int) -> tuple[int, bool | None] | None:
        """Where the body adds to ``acc``, its result ``k``, the one element of this iteration, and whether the loop
        goes upwards through all rows; None for an element of each row."""
        start = self.definitions.get(init) if type(init) is Var else None
        if not (isinstance(start, Prim) and start.name == "zeros"):
            return None
        result = body.results[k]
        where = next((j for j, b in enumerate(body.binds) if result in b.vars), None)
        if where is None:
            return None
        store = body.binds[where].op
        if type(store) is not Prim or store.name != "add-at" or store.args[0] is not acc:
            return None
        if sum(a is acc for b in body.binds for x in binds_of(b) for a in atoms_of(x.op)) != 1:
            return None
        if any(r is acc for b in body.binds for x in binds_of(b) for block in blocks_of(x.op) for r in block.results):
            return None
        if len(store.args) > 3:
            return (where, None) if op.index in store.args[1:-1] else None
        if acc in body.results or body.results.count(result) > 1 or any(result in reads(b) for b in body.binds):
            return None  # what is there before the end is zero but for a few
        dim = acc.type.dims[0]
        if not same(dim, op.count):
            return None
        subscript = store.args[1]
        if subscript is op.index:
            return where, True
        return (where, False) if self.reversed_index(subscript, op) else None

    def reversed_index(self, subscript: Atom, op: Loop) -> bool:
        """Whether a subscript is ``count - 1 - index``."""
        found = self.definitions.get(subscript) if type(subscript) is Var else None
        if not (isinstance(found, Prim) and found.name == "-" and found.args[1] is op.index):
            return False
        last = found.args[0]
        if type(last) is Const:
            return type(op.count) is Const and last.value == op.count.value - 1
        made = self.definitions.get(last)
        return isinstance(made, Prim) and (
            (made.name == "-" and made.args[0] is op.count and made.args[1] == Const(1, INT))
            or (made.name == "+" and made.args[0] is op.count and made.args[1] == Const(-1, INT))
        )


def added_once(op: Loop) -> Block:
    """A loop's body that adds to each accumulator once where it added to the element of the iteration several times:
    differentiation's own terms, which have no order."""
    block = op.body
    for acc, r in zip(op.accs, block.results):
        if isinstance(acc.type, Arr):
            block = in_one(block, op, acc, r)
    return block


def in_one(block: Block, op: Loop, acc: Var, r: Atom) -> Block:
    """``added_once`` for an accumulator, of which ``r`` is what it is after an iteration."""
    made = {x.vars[0]: x for x in block.binds if type(x.op) is Prim and x.op.name == "add-at"}
    steps: list[Bind] = []
    at = r
    while at in made:
        x = made[at]  # type: ignore[index]
        readers = sum(at in reads(y) for y in block.binds) + block.results.count(at)
        own = x.op.args[1] is op.index and len(x.op.args) == 3 and isinstance(type_of(x.op.args[-1]), Scalar)  # type: ignore
        if not x.soft or not own or readers != 1:
            return block
        steps.append(x)
        at = x.op.args[0]  # type: ignore[union-attr]
    if at is not acc or len(steps) < 2 or sum(acc in reads(y) for y in block.binds) != 1:
        return block
    values = [x.op.args[-1] for x in reversed(steps)]  # type: ignore[union-attr]
    sums, total = [], values[0]
    for x in values[1:]:
        v = Var("t", type_of(x), steps[0].span)
        sums.append(Bind((v,), Prim("+", (total, x)), steps[0].span, True))
        total = v
    last = Bind(steps[0].vars, Prim("add-at", (acc, op.index, total)), steps[0].span, True)
    binds: list[Bind] = []
    for x in block.binds:
        binds += [*sums, last] if x is steps[0] else [] if x in steps else [x]
    return Block(tuple(binds), block.results)


def last_reads(block: Block) -> dict[Atom, int]:
    """For the matrices that loops of a block change, the last binding that reads them; their number where the block
    gives them out. (Rows are for ``fills.py``.)"""
    changed = {
        z
        for x in block.binds
        if type(x.op) is Loop
        for z, a in zip(x.op.inits, x.op.accs)
        if type(z) is Var and isinstance(a.type, Arr) and a.type.rank > 1
    }
    if not changed:
        return {}
    found: dict[Atom, int] = {v: j for j, x in enumerate(block.binds) for v in reads(x) if v in changed}
    return {**found, **{r: len(block.binds) for r in block.results if r in changed}}


# ------------------------------------------------------------------------------------------ sparse rows


def columns_of(
    block: Block, acc: Var, r: Atom, own: tuple[Atom, ...], dims: tuple[Atom, ...]
) -> dict[Bind, tuple[int, Atom]] | None:
    """What adds to elements of the short row ``own`` of an array, each of them once: their columns and the numbers;
    None where a block does anything else with it."""
    size = dims[-1]
    if len(own) != len(dims) - 1 or type(size) is not Const or size.value > ROW:
        return None
    made = {b.vars[0]: b for b in block.binds if type(b.op) is Prim and b.op.name == "add-at"}
    found: dict[Bind, tuple[int, Atom]] = {}
    while r is not acc:
        store = made.get(r)  # type: ignore[call-overload]
        if store is None or store.op.args[1:-2] != own or type(store.op.args[-2]) is not Const:  # type: ignore
            return None
        found[store] = store.op.args[-2].value, store.op.args[-1]  # type: ignore[union-attr]
        r = store.op.args[0]  # type: ignore[union-attr]
        if sum(r in reads(b) for b in block.binds) != 1 or r in block.results:
            return None
    return found if len({column for column, _ in found.values()}) == len(found) else None


def raised(
    start: Atom, own: tuple[Atom, ...], numbers: list[Atom], last: Bind, r: Atom
) -> tuple[list[Bind], list[Atom]]:
    """An element of an array, or those of its row, with numbers added: how they are computed, and the sums."""
    binds, sums = [], []
    for k, x in enumerate(numbers):
        at = (*own, Const(k, INT)) if rank_of(start) > len(own) else own
        before, total = Var("t", REAL, last.span), Var(r.name, REAL, last.span)  # type: ignore[union-attr]
        binds += [
            Bind((before,), Prim("get", (start, *at)), last.span),
            Bind((total,), Prim("+", (before, x)), last.span),
        ]
        sums.append(total)
    return binds, sums


def scatter(program: Program) -> Program:
    """Writes rows that are zero but for a few elements into one matrix of zeros, and stores what is added to an element
    that is still zero.

    ``(build n (fn [j] (add-at (zeros m) (+ j 1) x)))``  =>
    ``(ifold (fn [a j] (update a j (+ j 1) x)) (zeros n m) n)``.
    Design decision: only rows without a loop in them; a full row is cleared best when its turn comes.
    """
    if not any(type(bind.op) is Prim and bind.op.name == "zeros" for bind in all_binds(program.body)):
        return program
    integers = {
        bind.vars[0]: bind.op for bind in all_binds(program.body) if type(bind.op) is Prim and bind.vars[0].type == INT
    }

    def block(b: Block) -> Block:
        binds: list[Bind] = []
        for bind in b.binds:
            op = bind.op
            if type(op) is If:
                bind = Bind(bind.vars, If(op.cond, block(op.then), block(op.orelse)), bind.span)
            elif type(op) is Loop:
                op = Loop(op.count, op.index, op.inits, op.accs, block(op.body))
                bind = Bind(bind.vars, op, bind.span)
                k = len(bind.op.accs)
                while k < len(bind.vars):
                    made = Scatter(bind, k, integers).bind()
                    if made is None:
                        k += 1
                    else:
                        binds.append(made[0])
                        bind, k = made[1], k + 1
            binds.append(bind)
        return Block(tuple(binds), b.results)

    return replace(program, body=block(program.body))


class Scatter:
    """The result ``k`` of a loop as an accumulator: ``places`` maps what the row was to what the matrix is."""

    def __init__(self, bind: Bind, k: int, integers: dict[Var, Prim]) -> None:
        self.loop: Loop = bind.op  # type: ignore[assignment]
        self.old, self.k, self.integers = bind, k, integers
        self.places: dict[Var, Var] = {}
        self.written: list[tuple[Affine, ...]] = []

    def bind(self) -> tuple[Bind, Bind] | None:
        """The zeros and the new loop; None where the row is none of those."""
        op, k, width = self.loop, self.k, len(self.loop.accs)
        row, whole = op.body.results[k], self.old.vars[k]
        start = self.start(op.body, row)
        if start is None or set(type_atoms(start.type)) & defined_in(op.body):
            return None
        acc = self.places[start] = Var(whole.name, whole.type, whole.span)
        binds = self.binds(op.body, start)
        others = [r for j, r in enumerate(op.body.results) if j != k]
        if binds is None or any(r in self.places for r in others) or row not in self.places:
            return None
        zeros = Var(whole.name, whole.type, whole.span)
        results = (*others[:width], self.places[row], *others[width:])
        rest = [v for j, v in enumerate(self.old.vars) if j != k]
        loop = Loop(op.count, op.index, (*op.inits, zeros), (*op.accs, acc), Block(tuple(binds), results))
        vars = (*rest[:width], whole, *rest[width:])
        fresh = Bind((zeros,), Prim("zeros", type_atoms(whole.type)), self.old.span)
        return fresh, Bind(vars, loop, self.old.span)

    def start(self, block: Block, row: Atom) -> Var | None:
        """The zeros of the body that a row was made from, by additions in the body and its branches."""
        made = {v: bind.op for bind in block.binds for v in bind.vars}
        changed = False
        while type(row) is Var and row in made:
            op = made[row]
            if type(op) is Prim and op.name == "zeros":
                return row if changed else None
            if type(op) is Prim and op.name in ("add-at", "update"):
                row = op.args[0]
            elif type(op) is If:
                inner = {v: b.op for b in op.orelse.binds for v in b.vars}
                at = next(k for b in block.binds if b.op is op for k, v in enumerate(b.vars) if v is row)
                row = op.orelse.results[at]
                while type(row) is Var and type(inner.get(row)) is Prim and inner[row].name in ("add-at", "update"):
                    row = inner[row].args[0]
            else:
                return None
            changed = True
        return None

    def binds(self, block: Block, start: Var | None = None) -> list[Bind] | None:
        """A block's bindings with the row's changes made in the matrix; None where the row is read, or used twice."""
        index, places, used = self.loop.index, self.places, set()
        made: list[Bind] = []
        for bind in block.binds:
            op = bind.op
            if start is not None and start in bind.vars:
                continue
            reads = [a for a in atoms_of(op) if a in places]
            inner = {v for region in blocks_of(op) for v in free_vars(region) if v in places}
            if not reads and not inner:
                made.append(bind)
                continue
            if len(reads) + len(inner) > 1 or used & {*reads, *inner}:
                return None
            used |= {*reads, *inner}
            if type(op) is Prim and op.name in ("add-at", "update") and reads == [op.args[0]]:
                base, *subs, x = op.args
                at = tuple(affine_in(s, self.integers) for s in subs)
                fresh = all(any(self.differ(s, t) for s, t in zip(at, other)) for other in self.written)
                self.written.append(at)
                new = self.place(bind.vars[0])
                store = Prim("update" if fresh else op.name, (places[base], index, *subs, x))
                made.append(Bind((new,), store, bind.span))
            elif type(op) is If and inner:
                regions = [self.binds(region) for region in blocks_of(op)]
                if None in regions:
                    return None
                vars = []
                for k, v in enumerate(bind.vars):
                    ends = [region.results[k] in places for region in blocks_of(op)]
                    if any(ends) and not all(ends):
                        return None
                    vars.append(self.place(v) if all(ends) else v)
                branches = [
                    Block(tuple(b), tuple(places.get(r, r) if type(r) is Var else r for r in region.results))
                    for b, region in zip(regions, blocks_of(op))
                ]
                made.append(Bind(tuple(vars), If(op.cond, *branches), bind.span))
            else:
                return None
        return made

    def place(self, v: Var) -> Var:
        self.places[v] = Var(v.name, self.old.vars[self.k].type, v.span, v.given)
        return self.places[v]

    @staticmethod
    def differ(a: Affine, b: Affine) -> bool:
        constant, terms = affine_add(a, b, -1)
        return constant != 0 and not terms


# ------------------------------------------------------------------------------------ elements stored once

#: How many stores back one to the same element is looked for.
FAR = 8


def one_store(program: Program) -> Program:
    """Combines a store to an element and a later addition to it, in straight-line code, into one store of the sum.

    ``(add-at (update (update a i x) j z) i y)``  =>  ``(update (update a j z) i (+ x y))``, where ``j`` is another
    element than ``i`` and nothing reads the arrays between.
    Design decision: twice. Backward code clears what the forward code has stored and adds to it what that was made of:
    where it is one thing, the adjoint stays as it is, row or element, which is to be seen before loops are put
    together. In the end again, for what were two branches.
    """
    return put_together(program, OneStore)


def one_addition(program: Program) -> Program:
    """Combines what a derivative adds to an element in several places of straight-line code into one addition.

    ``(add-at (add-at (add-at a i x) j z) i y)``  =>  ``(add-at (add-at a j z) i (+ x y))``, where nothing reads the
    arrays between.
    Design decision: after all that turns additions into sums by element, and only of differentiation's own terms, which
    have no order.
    """
    return put_together(program, OneAddition)


def put_together(program: Program, make: type[OneStore]) -> Program:
    """A program in which changes of one element are put together."""
    if not any(map(changed_before, all_blocks(program.body))):
        return program
    if not make(Builder(), program).may(program.body):
        return program
    pass_ = make(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def changed_before(block: Block) -> bool:
    """Whether a block adds to an array that it has changed."""
    changed = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim and x.op.name in ("update", "add-at")}
    return any(op.name == "add-at" and op.args[0] in changed for op in changed.values())


class OneStore(Rebuild):
    """``one_store`` for a program."""

    far = FAR

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        prims = [x for x in all_binds(program.body) if type(x.op) is Prim]
        self.integers = {x.vars[0]: x.op for x in prims if x.vars[0].type == INT}
        self.stores = {x.vars[0]: x for x in prims if x.op.name in ("add-at", "update")}  # type: ignore[union-attr]
        self.uses = uses_in(program)
        self.sums: dict[Bind, Bind] = {}  # an addition => the store that it is put together with
        self.waiting: dict[Bind, Atom | None] = {}  # such a store => what it stores
        self.own: set[Var] = set()  # what the block itself makes
        self.found = self.looking = False

    def may(self, body: Block) -> bool:
        """Whether there may be something to do, if subscripts that may differ do."""
        self.looking = True
        for block in all_blocks(body):
            here = {v for x in block.binds for v in x.vars if v in self.stores}
            adds = (x for x in block.binds if type(x.op) is Prim and x.op.name == "add-at" and x.op.args[0] in here)
            if any(self.store_before(x, here) is not None for x in adds):
                return True
        return False

    def block(self, block: Block) -> tuple[Atom, ...]:
        self.own = {v for x in block.binds for v in x.vars}
        here = {v for v in self.own if v in self.stores}
        for x in block.binds:
            if type(x.op) is Prim and x.op.name == "add-at":
                store = self.store_before(x, here)
                if store is not None:
                    self.sums[x], self.waiting[store] = store, None
                    self.found = True
        return super().block(block)

    def store_before(self, addition: Bind, here: set[Var]) -> Bind | None:
        """What was stored in the element that is added to, by the same block; None where something reads it before."""
        array, place = addition.op.args[0], self.place(addition)  # type: ignore[union-attr]
        for _ in range(self.far):
            if array not in here or self.uses[array] > 1:
                return None
            store = self.stores[array]  # type: ignore[index]
            at = self.place(store)
            gaps = [affine_add(i, j, -1) for i, j in zip(at, place)]
            if all(gap == (0, {}) for gap in gaps):
                return store if len(at) == len(place) and self.begins(store, addition) else None
            if not self.passes(store) and not any(map(self.apart, gaps)):
                return None
            array = store.op.args[0]  # type: ignore[union-attr]
        return None

    def begins(self, store: Bind, addition: Bind) -> bool:
        """Whether an addition to the element of a store can be put together with it."""
        return store.op.name == "update" or store in self.sums  # type: ignore[union-attr]

    def passes(self, store: Bind) -> bool:
        """Whether an addition may come before or after a store of the same element."""
        return False

    def apart(self, gap: Affine) -> bool:
        """Whether two subscripts differ, by a number or since one is always the larger."""
        if not gap[1]:
            return gap[0] != 0
        if self.looking:
            return True
        return self.own.isdisjoint(gap[1]) and self.never_zero(self.moved(gap))  # else it may not be there yet

    def never_zero(self, gap: Affine) -> bool:
        return any(self.b.nonnegative(affine_add((-1, {}), gap, sign)) for sign in (1, -1))

    def place(self, store: Bind) -> list[Affine]:
        return [affine_in(i, self.integers) for i in store.op.args[1:-1]]  # type: ignore[union-attr]

    def bind(self, bind: Bind) -> None:
        if bind not in self.sums and bind not in self.waiting:
            self.copy(bind)
            return
        array, *place, x = self.atoms(bind.op.args)  # type: ignore[union-attr]
        if bind in self.sums:
            x = self.b.add(self.waiting[self.sums[bind]], x)  # type: ignore[arg-type]
        if bind in self.waiting:
            self.waiting[bind], self.here[bind.vars[0]] = x, array
        elif self.stands(array, place, x):
            self.here[bind.vars[0]] = array
        else:
            self.here[bind.vars[0]] = self.changed(array, place, x, bind)

    def changed(self, array: Atom, place: Sequence[Atom], x: Atom, bind: Bind) -> Atom:
        """The array with the whole of what is stored."""
        return self.b.update(array, place, x, bind.vars[0].name)

    def stands(self, array: Atom, place: Sequence[Atom], x: Atom) -> bool:
        """Whether a value has been read where it is to be stored, and what was stored since lies elsewhere."""
        b = self.b
        for _ in range(FAR):
            if self.reads(x, array, place):
                return True
            store = b.definitions.get(array) if type(array) is Var else None
            if store is None or store.name not in ("update", "add-at"):
                return False
            gaps = [affine_add(b.affine(i), b.affine(j), -1) for i, j in zip(store.args[1:-1], place)]
            if not any(map(self.never_zero, gaps)):
                return False
            array = store.args[0]
        return False

    def reads(self, x: Atom, array: Atom, place: Sequence[Atom]) -> bool:
        """Whether a value is an element that has been read of an array, or of a row of it."""
        subscripts: tuple[Atom, ...] = ()
        while x is not array:
            read = self.b.definitions.get(x) if type(x) is Var else None
            if read is None or read.name != "get":
                return False
            x, subscripts = read.args[0], (*read.args[1:], *subscripts)
        return len(subscripts) == len(place) and all(map(self.b.same_int, subscripts, place))


class OneAddition(OneStore):
    """``one_addition`` for a program."""

    far = 16 * FAR  # nothing is asked of what is passed

    def begins(self, store: Bind, addition: Bind) -> bool:
        number = isinstance(type_of(addition.op.args[-1]), Scalar)  # type: ignore[union-attr]
        return number and addition.soft and self.passes(store)

    def passes(self, store: Bind) -> bool:
        return store.soft and store.op.name == "add-at"  # type: ignore[union-attr]

    def stands(self, array: Atom, place: Sequence[Atom], x: Atom) -> bool:
        return False

    def changed(self, array: Atom, place: Sequence[Atom], x: Atom, bind: Bind) -> Atom:
        return self.b.add_at(array, place, x, bind.vars[0].name, soft=True)


def overwritten(program: Program) -> Program:
    """Drops stores and additions to an element that is overwritten before anything reads it (dead stores).

    ``(update (update a i x) i y)``  =>  ``(update a i y)``, where nothing else reads the array between; and ``a``, if
    ``y`` is what stands there.
    Design decision: early. What reverse mode clears, and puts back since the model only added to it, is an array that
    the loop does not change.
    """
    if not any(type(x.op) is Prim and x.op.name == "update" for x in all_binds(program.body)):
        return program
    pass_ = Overwritten(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


class Overwritten(Rebuild):
    """``overwritten`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        prims = [x for x in all_binds(program.body) if type(x.op) is Prim]
        self.integers = {x.vars[0]: x.op for x in prims if x.vars[0].type == INT}
        self.uses = uses_in(program)
        self.made: dict[Atom, Prim] = {}  # stores of the block that is being rebuilt
        self.found = False

    def block(self, block: Block) -> tuple[Atom, ...]:
        around = self.made
        self.made = {x.vars[0]: x.op for x in block.binds if type(x.op) is Prim and x.op.name in ("add-at", "update")}
        results = super().block(block)
        self.made = around
        return results

    def prim(self, op: Prim, var: Var) -> Atom:
        array = op.args[0] if op.name == "update" else None
        while array in self.made and self.uses[array] == 1 and self.covers(op, self.made[array]):
            array = self.made[array].args[0]
        if array is None or array is op.args[0]:
            return super().prim(op, var)
        self.found = True
        return super().prim(Prim("update", (array, *op.args[1:])), var)

    def covers(self, op: Prim, before: Prim) -> bool:
        """Whether a store overwrites all of another one."""
        (place, inner) = ([affine_in(i, self.integers) for i in x.args[1:-1]] for x in (op, before))
        return place == inner[: len(place)]


def uses_in(program: Program) -> Counter[Atom]:
    """How often each variable is read, or handed on."""
    found = Counter(a for x in all_binds(program.body) for a in (*atoms_of(x.op), *ends_of(x.op)))
    found.update(program.body.results)
    return found


def ends_of(op: Op) -> Iterator[Atom]:
    """What the regions inside an operation result in."""
    return (a for region in blocks_of(op) for a in region.results)
