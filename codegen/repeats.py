"""Loops, ``while``s and branches that the host takes, because there are parallel loops in them.

A loop that is taken in its order is a ``Repeat``: its states have memory of their own from iteration to iteration, of
which two arrays change places where a new one is made of the old one. A ``while`` is a ``While``, whose condition is
read from the device; a branch is a ``Choose`` whose arms make their results at one place.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from hyad.core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
    free_vars,
    type_atoms,
)
from hyad.errors import Span
from hyad.passes.spread import sequential

from .collectives import ELEM
from .launches import At, Choose, Copy, Memory, Repeat, Size, Swap, total
from .launches import While as WhileStep
from .lower import is_array
from .memory import Spot, simple
from .parallel import ParallelLoops
from .pieces import remembers

ROUNDS_USED_UP = "a `while` that is remembered takes more rounds than there is room for"


def makes_sizes(block: Block, count: Var) -> bool:
    """Whether the size of an array depends on an integer."""
    binds = list(all_binds(block))
    found: set[Atom] = {count}
    while True:
        before = len(found)
        for x in binds:
            op = x.op
            if type(op) is Loop and op.count in found:
                found.add(op.index)
            handed = [op.inits, op.body.results] if type(op) is Loop or type(op) is While else []
            for given in handed:
                found.update(a for z, a in zip(given, op.accs) if z in found)  # type: ignore[union-attr]
            results = [b.results for b in blocks_of(op)] if not isinstance(op, While) else [op.body.results]
            for given in results:
                found.update(v for z, v in zip(given, x.vars) if z in found)
            if type(op) is Prim and x.vars[0].type == INT and not found.isdisjoint(op.args):
                found.update(x.vars)
        if len(found) == before:
            break
    made = (v for x in binds for v in (*x.vars, *getattr(x.op, "accs", ())))
    return any(not found.isdisjoint(type_atoms(v.type)) for v in made)


class HostLoops(ParallelLoops):
    """Makes of loops and branches steps of the host that have steps inside."""

    def block(self, block: Block, after: frozenset[Var]) -> None:
        """The bindings of a block, ``after`` being what is read when it is done (``grid.py``)."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ loops

    def repeat(self, bind: Bind, op: Loop, later: frozenset[Var]) -> None:
        """A loop of the host."""
        count = self.size(op.count)
        if count is None:
            self.one_thread(bind, later)
            return
        self.note(bind, f"repeated by the host: {sequential(op)}; what is inside runs in parallel")
        index = self.names.fresh(op.index.name)
        self.host[op.index] = index
        n = len(op.accs)
        inside = frozenset(free_vars(op.body)) - {op.index, *op.accs}
        kept, after = self.kept_states(bind, op)
        alone = [k for k in range(n) if k not in kept]
        self.starts([op.accs[k] for k in alone], [op.inits[k] for k in alone], later | inside)
        stacks, last = [], {}
        never_negative = type(op.count) is Const or op.count in self.program.dims
        rows: Size = count if never_negative else simple("max", count, 0)
        for j, v in enumerate(bind.vars[n:], n):
            if j in after:
                stacks.append(At(""))  # see below
                continue
            dims = self.sizes(v.type.dims[1:], bind.span)
            at = self.room(v, (simple("+", rows, 1) if j in kept.values() else rows, *dims))
            size: Size = total(dims)
            stacks.append(At(at.array, simple("+", at.offset, simple("*", index, size))))
            last[j] = At(at.array, simple("*", rows, size))
        for k, j in kept.items():
            first = At(last[j].array)
            self.spot[bind.vars[j]] = Spot(first, False)
            self.copy_value(op.inits[k], first)
            self.spot[op.accs[k]] = Spot(stacks[j - n], False)
            size = total(self.sizes(op.accs[k].type.dims, bind.span))
            self.wanted[op.body.results[k]] = At(first.array, simple("*", simple("+", index, 1), size))
            for j in (j for j, state in after.items() if state == k):  # from the second one on
                stacks[j - n] = self.wanted[op.body.results[k]]
                self.spot[bind.vars[j]] = Spot(At(first.array, size), False)
        outer, self.steps = self.steps, []
        self.indices[index] = count
        self.integers(op.body)
        late = self.stacked(op.body, n, stacks)
        self.iteration(op.body, op.accs, late, stacks, later | inside, bind.span, kept)
        del self.indices[index]
        steps, self.steps = tuple(self.steps), outer
        self.steps.append(Repeat(count, index, steps))
        self.spot.update((op.accs[k], Spot(last[j], False)) for k, j in kept.items())
        self.ends(op.accs, bind.vars[:n])

    def kept_states(self, bind: Bind, op: Loop) -> tuple[dict[int, int], dict[int, int]]:
        """Arrays that a loop of the host makes in each iteration, of which it stacks what they were before: by the
        number of each the number of the stack. They lie there, one after the other, and nothing is copied. And by the
        numbers of the stacks of what they become these arrays' numbers: such a stack is the same from its second row
        on."""
        n, found, after = len(op.accs), dict[int, int](), dict[int, int]()
        results = op.body.results
        for k, acc in enumerate(op.accs):
            made = any(results[k] in b.vars for b in op.body.binds)
            stacks = [j for j in range(n, len(results)) if results[j] is acc]
            next_ = [j for j in range(n, len(results)) if results[j] is results[k]]
            if not is_array(acc) or not made or results[:n].count(results[k]) > 1 or results[k] in self.wanted:
                continue
            if len(stacks) == 1 and not any(bind.vars[j] in self.wanted for j in (*stacks, *next_)):
                found[k] = stacks[0]
                after.update(dict.fromkeys(next_, k))
        return found, after

    def while_(self, bind: Bind, op: While, later: frozenset[Var]) -> None:
        """A ``while`` of the host. What it stacks has room for so many rounds as the call says, and so has an array of
        that size."""
        n = len(op.accs)
        index = ""
        if remembers(bind) or self.uses.get(bind.vars[n]):
            index = self.host[bind.vars[n]] = self.names.fresh(bind.vars[n].name)
        self.flush()
        self.note(bind, f"repeated by the host: {sequential(op)}; what is inside runs in parallel")
        inside = (frozenset(free_vars(op.cond)) | frozenset(free_vars(op.body))) - frozenset(op.accs)
        self.starts(op.accs, op.inits, later | inside)
        stacks = []
        for v in bind.vars[n + 1 :]:
            self.rounds = self.rounds or self.names.fresh("rounds")
            dims = self.sizes(v.type.dims[1:], bind.span)
            at = self.room(v, (self.rounds, *dims))
            stacks.append(At(at.array, simple("+", at.offset, simple("*", index, total(dims)))))
        most: Size = 1
        number = 0
        if stacks or index and makes_sizes(self.program.body, bind.vars[n]):
            self.rounds = self.rounds or self.names.fresh("rounds")
            self.checks.append(("rounds", ROUNDS_USED_UP, bind.span))
            most, number = self.rounds, len(self.checks)
        outer, self.steps = self.steps, []
        marker = index or self.names.fresh("turn")
        self.indices[marker] = most
        self.integers(op.cond)
        (holds,) = op.cond.results
        live = later | inside | frozenset(op.accs)
        self.block(op.cond, live | (frozenset({holds}) if isinstance(holds, Var) else frozenset()))
        self.flush()
        cond = self.in_memory(holds)
        before, self.steps = tuple(self.steps), []
        self.integers(op.body)
        late = self.stacked(op.body, n, stacks)
        self.iteration(op.body, op.accs, late, stacks, later | inside, bind.span)
        steps, self.steps = tuple(self.steps), outer
        del self.indices[marker]
        if index:
            self.counted[index] = most
        self.steps.append(WhileStep(before, cond, steps, index, most, number))
        self.ends(op.accs, bind.vars[:n])

    def stacked(self, body: Block, n: int, stacks: Sequence[At]) -> Sequence[int]:
        """Let what the body of a loop with ``n`` states stacks be made there; which of its results that are."""
        late = range(n, len(body.results))
        for k in late:
            r = body.results[k]
            if isinstance(r, Var) and r not in self.wanted and r not in body.results[:n]:
                if any(r in b.vars for b in body.binds):
                    self.wanted[r] = stacks[k - n]
        self.trace(body)
        return late

    def starts(self, accs: Sequence[Var], inits: Sequence[Atom], later: frozenset[Var]) -> None:
        """Memory for the accumulators of a loop of the host, with their starts."""
        loose = []
        for acc, init in zip(accs, inits):
            shared = sum(i is init for i in inits) > 1
            if isinstance(acc.type, Arr):
                here = self.spot.get(init) if isinstance(init, Var) else None
                if here is not None and not shared and here.whole and self.free(init, later):
                    if self.memory[here.array].kind == "own":
                        self.spot[acc] = here
                        continue
                at = self.room(acc)
                self.copy_value(init, at)
            else:
                at = self.room(acc)
                loose.append((init, at))
        if loose:
            self.scalars_to(loose)

    def ends(self, accs: Sequence[Var], finals: Sequence[Var]) -> None:
        for acc, final in zip(accs, finals):
            self.spot[final] = self.spot[acc]
            wanted = self.wanted.get(final)
            if wanted is not None and wanted != self.spot[acc].at:
                self.steps.append(Copy(wanted, self.spot[acc].at, self.length(acc, None)))
                self.spot[final] = Spot(wanted, wanted.offset == 0)

    def iteration(
        self,
        body: Block,
        accs: Sequence[Var],
        late: Sequence[int],
        targets: Sequence[At],
        later: frozenset[Var],
        span: Span | None,
        kept: Container[int] = (),
    ) -> None:
        """The body of a loop of the host, then its accumulators' next values, all at once; those of ``kept`` are next
        where they are wanted."""
        n = len(accs)
        results = frozenset(r for r in body.results if isinstance(r, Var))
        self.block(body, later | results)
        self.flush()
        loose: list[tuple[Atom, At]] = []
        for k, at in zip(late, targets):
            r = body.results[k]
            if isinstance(r, Var) and r in self.spot and self.spot[r].at == at:
                continue
            if is_array(r) or isinstance(r, Var) and r in self.spot:
                if isinstance(r, Var) and r in self.spot:
                    self.steps.append(Copy(at, self.spot[r].at, self.length(r, span)))
                else:
                    self.copy_value(r, at)
            else:
                loose.append((r, at))
        moves: list[tuple[int, Atom]] = []
        for k in range(n):
            r = body.results[k]
            if isinstance(r, Var) and r in self.spot and self.spot[r].at == self.spot[accs[k]].at:
                continue
            if k in kept:
                if self.spot[r].at != self.wanted[r]:
                    self.steps.append(Copy(self.wanted[r], self.spot[r].at, self.length(r, span)))
                continue
            moves.append((k, r))
        stacked = {body.results[k] for k in late}
        chains = self.exchanges([m for m in moves if m[1] not in stacked], body, accs)
        exchanged = {k for chain in chains for k, _ in chain}
        aside: list[tuple[At, At, Size]] = []
        for k, r in moves:
            home = self.spot[accs[k]]
            if k in exchanged:
                continue
            if isinstance(r, Var) and r in self.spot:
                here = self.spot[r]
                aside.append((home.at, here.at, self.length(r, span)))
            elif is_array(r):
                name = self.names.fresh(f"next_{accs[k].name}")
                self.memory[name] = Memory(name, self.memory[home.array].elem, self.memory[home.array].dims)
                self.copy_value(r, At(name))
                aside.append((home.at, At(name), self.length(accs[k], span)))
            else:
                name = self.names.fresh(f"next_{accs[k].name}")
                self.memory[name] = Memory(name, ELEM[accs[k].type], ())
                loose.append((r, At(name)))
                aside.append((home.at, At(name), 1))
        if loose:
            self.scalars_to(loose)
        todo = list(aside)
        while todo:  # none overwrites what another still reads
            for move in todo:
                if not any(other[1].array == move[0].array for other in todo if other is not move):
                    break
            else:
                move = todo[0]
                name = self.names.fresh("aside")
                old = self.memory[move[1].array]
                self.memory[name] = Memory(name, old.elem, (move[2],))
                self.steps.append(Copy(At(name), move[1], move[2]))
                todo[0] = (move[0], At(name), move[2])
                continue
            todo.remove(move)
            self.steps.append(Copy(*move))
        self.steps += (Swap(self.spot[accs[k]].array, array) for chain in chains for k, array in reversed(chain))

    def exchanges(
        self, moves: Sequence[tuple[int, Atom]], body: Block, accs: Sequence[Var]
    ) -> list[list[tuple[int, str]]]:
        """The accumulators whose memory is exchanged instead of copied, in chains, each with the array that it gets:
        one whose next value is made in memory of its own, then those whose next value is what the one before was."""
        mine = {self.spot[a].array for a in accs}
        made = [self.spot[r].array for r in {*body.results} if isinstance(r, Var) and r in self.spot]
        arrays = [(k, r) for k, r in moves if isinstance(r, Var) and r in self.spot and self.alike(accs[k], r)]
        chains: list[list[tuple[int, str]]] = []
        for k, r in arrays:
            here = self.spot[r].array
            again = any(here == array for ((_, array),) in chains)
            if any(r in b.vars for b in body.binds) and not (again or here in mine) and made.count(here) == 1:
                chains.append([(k, here)])
        for chain in chains:
            taken = {k for chain in chains for k, _ in chain}
            while link := next(((k, r) for k, r in arrays if r is accs[chain[-1][0]] and k not in taken), None):
                chain.append((link[0], self.spot[link[1]].array))
                taken.add(link[0])
        return chains

    def alike(self, acc: Var, made: Var) -> bool:
        """Whether two arrays are each all of an array of the program's own, of equal size."""
        home, here = self.spot[acc], self.spot[made]
        a, b = self.memory[home.array], self.memory[here.array]
        return a.kind == b.kind == "own" and a.dims == b.dims and home.whole and here.whole

    # --------------------------------------------------------------------------------------------- branches

    def branch(self, bind: Bind, op: If, later: frozenset[Var]) -> None:
        """A branch of the host: its arms have parallel loops."""
        self.flush()
        cond: Size | At | None = self.size(op.cond)
        if cond is None:
            cond = self.in_memory(op.cond)
        self.note(bind, "the host chooses: there are parallel loops in the branches")
        targets = [self.room(v) for v in bind.vars]
        arms = []
        for arm in (op.then, op.orelse):
            outer, self.steps = self.steps, []
            for r, at in zip(arm.results, targets):
                if isinstance(r, Var) and r not in self.wanted and any(r in b.vars for b in arm.binds):
                    self.wanted[r] = at
            self.integers(arm)
            self.trace(arm)
            self.block(arm, later | frozenset(r for r in arm.results if isinstance(r, Var)))
            self.flush()
            loose = []
            for r, at in zip(arm.results, targets):
                if isinstance(r, Var) and r in self.spot:
                    if self.spot[r].at != at:
                        self.steps.append(Copy(at, self.spot[r].at, self.length(r, bind.span)))
                elif is_array(r):
                    self.copy_value(r, at)
                else:
                    loose.append((r, at))
            if loose:
                self.scalars_to(loose)
            arms.append(tuple(self.steps))
            self.steps = outer
        self.steps.append(Choose(cond, *arms))
