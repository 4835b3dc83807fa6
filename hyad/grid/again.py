"""Data that one parallel loop makes and another reads, made again where they are read.

On a GPU a thread has data in memory of its own, while it runs: none can be handed to another kernel. In the gradient of
a recursion that is mapped over an array the records are::

    t = (build n (fn [i] (f-there (get x i))))  ..  (build n (fn [i] (f-back (get t i) ..)))
    =>  (build n (fn [i] (f-back (f-there (get x i)) ..)))

Where a loop has states its data are made again from these, which are stacked in their place.

Design decision: a forward part that is done twice takes less time than records of all iterations take memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Data,
    Loop,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    binders_of,
    elem_of,
    free_vars,
    reads,
    type_atoms,
)
from ..program.dead import dead_code, tidy
from ..program.rebuild import Rebuild, rebuild


def made_again(program: Program) -> Program:
    """The program with no array of data between its parallel loops, where that can be."""
    if not any(holds_data(v) for bind in program.body.binds for v in bind.vars):
        return program
    return dead_code(rebuild(program, Again))


def holds_data(v: Var) -> bool:
    return isinstance(v.type, Arr) and isinstance(v.type.elem, Data)


def kept_together(binds: Sequence[Bind], counts: Collection[Var] = ()) -> tuple[list[Bind], set[Bind]]:
    """Bindings of a block, what a recursive function remembers being read right behind where it is made, and those of
    them that one thread does: from the first call to the last that reads what it has remembered, all that the one needs
    of the other. What depends on none of it comes before, what is not needed for it after. The same of arrays as long
    as a ``while`` of that thread has run, ``counts``."""
    made = [v for b in binds for v in b.vars]
    records = {v for v in made if isinstance(v.type, Data) and remembered(v.type)}
    records.update(v for v in made if any(d in counts for d in type_atoms(v.type)))
    readers = [k for k, b in enumerate(binds) if not records.isdisjoint(reads(b))]
    if not readers:
        return list(binds), set()
    first, last = next(k for k, b in enumerate(binds) if not records.isdisjoint(b.vars)), readers[-1]
    span = binds[first : last + 1]
    depends: set[Var] = set()
    behind = []
    for b in span:
        if not (records.isdisjoint(b.vars) and depends.isdisjoint(reads(b))):
            depends.update(b.vars)
            behind.append(b)
    needed: set[Atom] = set()
    for k in range(len(behind) - 1, -1, -1):
        own = type(behind[k].op) is Check or not records.isdisjoint(reads(behind[k]))
        if own or not needed.isdisjoint(behind[k].vars):
            needed.update(reads(behind[k]))
            needed.update(behind[k].vars)
    together = {b for b in behind if type(b.op) is Check or not needed.isdisjoint(b.vars)}
    before = [b for b in span if b not in behind]
    after = [b for b in behind if b not in together]
    order = [*binds[:first], *before, *(b for b in behind if b in together), *after, *binds[last + 1 :]]
    return order, together


def remembered(data: Data) -> bool:
    """Whether a type is one of records, of what a function remembers for its gradient."""
    return any(c.make == "record" for c in data.constructors)


class Again(Rebuild):
    """Rebuilds a program; what reads an array of data that a loop of its own block makes has the loop's body."""

    depth = 0

    def block(self, block: Block) -> tuple[Atom, ...]:
        if not self.depth:
            self.makers: dict[Var, tuple[Bind, int]] = {}
            self.states: dict[Var, Var] = {}  # where the states of loops are stacked
            self.whole: dict[tuple[Atom, Atom], Atom] = {}  # rows that have been made again, around the open loops
            self.rows: dict[Var, tuple[Var, tuple[Atom, ...]]] = {}
        self.depth += 1
        results = super().block(block)
        self.depth -= 1
        return results

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and op.name == "get":
            array, subs = op.args[0], self.atoms(op.args[1:])
            if array in self.rows:
                array, first = self.rows[array]  # type: ignore[index]
                subs = (*first, *subs)
            if array in self.makers:
                (var,) = bind.vars
                if not holds_data(var):
                    self.here[var] = self.element(*self.makers[array], subs)  # type: ignore[index]
                    return
                self.rows[var] = array, subs  # type: ignore[assignment]
        if type(op) in (Loop, While) and self.depth == 1:
            bind = self.with_states(bind, op)
        before = dict(self.whole)
        if type(op) is Loop and self.depth > 1:
            self.rows_before(op)
        self.copy(bind)
        self.whole = before

    def rows_before(self, op: Loop) -> None:
        """Make the rows again before a loop that reads them element by element, where one element needs those before
        it."""
        inside = {op.index, *op.accs, *(v for b in all_binds(op.body) for v in (*b.vars, *binders_of(b.op)))}
        for b in all_binds(op.body):
            if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] in self.makers:
                array, first, *rest = b.op.args
                if rest and first not in inside:
                    maker, k = self.makers[array]  # type: ignore[index]
                    if made_by(maker.op, k) is None:  # type: ignore[arg-type]
                        row = self.element(maker, k, [self.atom(first)])
                        self.whole[maker.op.body.results[k], self.atom(first)] = row  # type: ignore[union-attr]

    def with_states(self, bind: Bind, op: Loop | While) -> Bind:
        """A loop that stacks the states, too, that are needed to make the data again that it stacks."""
        needed: dict[Var, None] = {}
        first = len(op.body.results) - len(bind.vars)  # behind the states, and the count of a ``while``
        count = op.count if type(op) is Loop else bind.vars[len(op.accs)]
        for k, v in enumerate(bind.vars, first):
            if k >= len(op.accs) and holds_data(v):
                read = [a for a in free_vars(part(op, op.body.results[k])) if a in op.accs]
                if not any(isinstance(elem_of(a), Data) for a in read):
                    needed.update(dict.fromkeys(read))
                    self.makers[v] = bind, k
        if not needed:
            return bind
        for a in needed:
            elem, dims = (a.type.elem, a.type.dims) if isinstance(a.type, Arr) else (a.type, ())
            self.states[a] = Var(a.name, Arr(elem, (count, *dims)), a.span)
        body = Block(op.body.binds, (*op.body.results, *needed))
        return Bind((*bind.vars, *(self.states[a] for a in needed)), replace(op, body=body), bind.span)

    def element(self, bind: Bind, k: int, subs: Sequence[Atom]) -> Atom:
        """One element of what a loop stacks, in the open scope."""
        op: Loop | While = bind.op  # type: ignore[assignment]
        result = op.body.results[k]
        row = self.whole.get((result, subs[0]))
        if row is not None:
            return self.b.get(row, *subs[1:])
        if type(op) is Loop:
            self.here[op.index] = subs[0]
        for a in op.accs:
            if a in self.states:
                self.here[a] = self.b.get(self.atom(self.states[a]), subs[0])
        if len(subs) == 1:
            return self.block(part(op, result))[0]
        inner = made_by(op, k)
        if inner is None:
            return self.b.get(self.block(part(op, result))[0], *subs[1:])
        self.block(part(op, *free_vars(Block((inner,), ()))))
        return self.element(inner, inner.vars.index(result), subs[1:])  # type: ignore[arg-type]


def made_by(op: Loop | While, k: int) -> Bind | None:
    """The inner loop that makes a row that a loop stacks, each element for itself; None where that is not so."""
    result = op.body.results[k]
    inner = next((b for b in op.body.binds if result in b.vars), None)
    if inner is None or type(inner.op) is not Loop:
        return None
    j = inner.vars.index(result)  # type: ignore[arg-type]
    width = len(inner.op.accs)
    if j < width or set(inner.op.accs) & set(free_vars(part(inner.op, inner.op.body.results[j]))):
        return None
    return inner


def part(op: Loop | While, *results: Atom) -> Block:
    """What of a loop's body makes some of its values."""
    return tidy(Block(op.body.binds, results))
