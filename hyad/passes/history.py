"""A state that is remembered before each iteration lies where it is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Program,
    Var,
    integer,
)
from ..program.builder import Builder
from ..program.loops import array_uses, loops_of
from ..program.rebuild import Rebuild, rebuilt


def history(program: Program) -> Program:
    """Keeps a loop's state in the array that remembers it: each iteration reads a row and makes the next.

    ``(loop n (fn [i u] [(f u) u]) z)``  =>  ``(loop n (fn [i us] (update us (+ i 1) (f (get us i)))) us)``, where us
    has n + 1 rows, of which the first is z to begin with, and the last in the end what u was after the loop.
    Design decision: where an iteration makes the state anew, as a step of a differential equation or of a recurrent
    network does; one that is changed in place would have to be copied first, as it is now. A state is an array of a
    size that is not known: those of few numbers are numbers, or lie in registers. Nothing but elements and rows of the
    stack is read: it is longer than it was. Where what an iteration makes is stacked too, for a derivative that is told
    by the value, that is the same array from its second row on.
    """
    if not any(remembered(loop) for loop in loops_of(program)):
        return program
    pass_ = History(program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def remembered(op: Loop) -> dict[int, int]:
    """The accumulators of a loop that are arrays, and made anew, by their numbers: the result that stacks each of them
    as it was."""
    width, results = len(op.accs), op.body.results
    if op.snapshots is not None:
        return {}
    found = {}
    for k, acc in enumerate(op.accs):
        stacked = [s for s in range(width, len(results)) if results[s] is acc]
        if len(stacked) == 1 and isinstance(acc.type, Arr) and any(type(d) is Var for d in acc.type.dims):
            if results[:width].count(results[k]) == 1 and anew(op.body, results[k]):
                found[k] = stacked[0]
    return found


def anew(block: Block, a: Atom) -> bool:
    """Whether a block makes an array, and not by changing one that was there before."""
    made = next((x for x in block.binds if a in x.vars), None)
    if made is None:
        return False
    op = made.op
    k = made.vars.index(a)  # type: ignore[arg-type]
    if type(op) is Loop:
        return k >= len(op.accs) or anew(block, op.inits[k])
    if type(op) is If:
        return anew(op.then, op.then.results[k]) and anew(op.orelse, op.orelse.results[k])
    if type(op) is Prim and op.name in ("update", "add-at"):
        return anew(block, op.args[0])
    return type(op) is Prim and op.name in ("array", "zeros", "undef", "product")


class History(Rebuild):
    """``history`` for a program."""

    def __init__(self, program: Program) -> None:
        super().__init__(Builder())
        self.uses = array_uses(program.body)
        self.found = False
        self.later: dict[Atom, Atom] = {}  # stacks of states as they became, and the array that has them one row later

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim and op.name == "get" and op.args[0] in self.later:
            v, (_, i, *rest) = bind.vars[0], self.atoms(op.args)
            at = self.b.prim("+", i, integer(1))
            self.here[v] = self.b.get(self.later[op.args[0]], at, *rest, hint=v.name, given=v.given)
        else:
            self.copy(bind)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        of = {k: s for k, s in remembered(op).items() if self.read_by_rows(bind.vars[s])}
        if not of:
            return super().loop(op, bind)
        self.found = True
        b, width = self.b, len(op.accs)
        self.b.fired("history")
        count, one = b.trips(self.atom(op.count)), integer(1)
        inits, rows = list(self.atoms(op.inits)), b.prim("+", count, one)
        for k in of:
            t: Arr = self.type(op.accs[k].type)  # type: ignore[assignment]
            inits[k] = b.update(b.undef(Arr(t.elem, (rows, *t.dims))), [integer(0)], inits[k], bind.vars[of[k]].name)
        again = {s: k for s, k in self.as_they_become(op, bind).items() if k in of}
        stacked = [s for s in range(width, len(op.body.results)) if s not in of.values() and s not in again]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            after = b.prim("+", i, one)  # before what is made there
            for k in of:
                self.here[op.accs[k]] = b.get(accs[k], i, hint=op.accs[k].name)
            results = list(self.block(op.body))
            for k in of:
                results[k] = b.update(accs[k], [after], results[k], op.accs[k].name)
            return results[:width], [results[s] for s in stacked]

        kept = [bind.vars[k] for k in (*range(width), *stacked)]
        names = [bind.vars[of[k]].name if k in of else v.name for k, v in enumerate(kept)]
        accs = [bind.vars[of[k]].name if k in of else a.name for k, a in enumerate(op.accs)]
        made = b.loop(count, inits, body, names, op.index.name, accs, soft=op.index.soft)
        out = dict(zip((*range(width), *stacked), made))
        for k, s in of.items():
            out[s] = out[k]
            out[k] = b.get(out[s], count, hint=bind.vars[k].name)
        for s, k in again.items():
            self.later[bind.vars[s]] = out[s] = out[of[k]]
        return [out[k] for k in range(len(bind.vars))]

    def as_they_become(self, op: Loop, bind: Bind) -> dict[int, int]:
        """The results that stack what an accumulator becomes, and which one."""
        results, width = op.body.results, len(op.accs)
        return {
            s: results[:width].index(results[s])
            for s in range(width, len(results))
            if results[s] in results[:width] and self.read_by_rows(bind.vars[s])
        }

    def read_by_rows(self, stack: Var) -> bool:
        """Whether nothing is read of a stack but its elements and rows."""
        return all(use.subscripts for use in self.uses.get(stack, ()))
