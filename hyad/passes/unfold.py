"""Recursion whose course is known beforehand is written out, and equal calls are made once.

``(det a)`` of a 4 x 4 matrix, by minors  =>  straight-line code in which each minor's determinant stands once:
n 2^(n-1) products instead of n!.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
    INT,
    Apply,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    Function,
    If,
    Loop,
    Program,
    While,
    all_binds,
    functions_of,
    given,
    with_body,
)
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.rebuild import Rebuild, rebuilt
from .rolling import TooLong, Unknown, course

WALKED = 100_000  # operations that are looked at
KEPT, SHORT = 6_000, 400  # operations that are written: where equal calls were found, and where none was
ROLLED = 3_000  # operations on reals that are loops over tables, where they do the same (``rolling``)
DEEP = 64  # calls inside one another


def long(again: bool) -> tuple[int, int]:
    """From how many operations on reals on loops over tables are better, and how many are surely too many."""
    return (ROLLED, 2 * KEPT) if again else (SHORT, 2 * SHORT)


class Unfold(Rebuild):
    """Calls of recursive functions with known integers become what they do, where every choice on the way and every
    trip count is then known.

    Design decision: tried, not proven. The call is run first (``rolling.course``), which is cheap, and says what equal
    calls leave: what is short is written out from that, what is long and alike as loops over tables. Where an operation
    is more than one on reals (a branch, a loop or data that a real decides), the call is written into a region of its
    own instead, with every branch taken, every loop gone through, every equal call found again. A choice that is not
    known, or too much code, throws the region away, and the call stays. The builder finds equal arguments: an array of
    equal elements is one variable.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.made: dict[tuple, Sequence[Atom]] = {}
        self.failed: set[Function] = set()
        self.depth = self.choices = self.walked = self.again = 0
        self.unfolded = False

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if self.depth:
            self.walked += 1
            if self.walked > WALKED or len(self.b.scopes[-1].binds) > 20 * (KEPT if self.again else SHORT):
                raise TooLong
        if type(op) is Apply and op.function not in self.failed and op.function.body is not None:
            known = any(type(a) is Const and a.type == INT for a in self.atoms(op.args))
            if self.depth or known and op.function in functions_of(op.function.body):
                self.define(bind, self.call(bind, op))
                return
        if self.depth and type(op) is Loop and not self.choices:
            count = self.atom(op.count)
            if type(count) is Const and 0 < count.value:
                self.write_out(op, bind, count.value)
                return
        if self.depth and (type(op) in (While, Case, Loop) or type(op) is If and type(self.atom(op.cond)) is not Const):
            self.choices += 1
            self.copy(bind)
            self.choices -= 1
            return
        self.copy(bind)

    def call(self, bind: Bind, op: Apply) -> Sequence[Atom]:
        args = self.atoms(op.args)
        key = (op.function, tuple(map(self.b.key, args)))
        found = self.made.get(key)
        if found is not None:
            self.again += 1
            return found
        if self.depth:
            return self.body(key, op.function, args)
        region = Scope()
        self.walked = self.again = 0
        try:
            known = course(self.b, op.function, args)
            if known is not None:
                least, most = long(known.again)
                loops = known.loops() if known.count >= least and "rolling" not in self.b.off else None
                if loops is not None:
                    self.b.fired("rolling")
                    self.unfolded = True
                    return loops
                if known.count > most:
                    raise TooLong
            with self.b.region(region):
                results = self.body(key, op.function, args) if known is None else known.straight()
                self.again += known is not None and known.again
                if len(tidy(self.b.close(region, results)).binds) > (KEPT if self.again else SHORT):
                    raise TooLong
        except (Unknown, TooLong) as why:
            if type(why) is TooLong:
                self.b.fired("too-long")
            self.failed.add(op.function)
            self.made.clear()
            self.depth = self.choices = 0
            return self.b.apply(op.function, args, [v.name for v in bind.vars], given(bind))
        self.unfolded = True
        around = self.b.scopes[-1]
        around.binds += region.binds
        around.vars |= region.vars
        around.shared.update(region.shared)
        if len(self.b.scopes) > 1:
            self.made.clear()  # what is made in a branch is not known outside
        return results

    def body(self, key: tuple, f: Function, args: Sequence[Atom]) -> Sequence[Atom]:
        if self.choices or self.depth == DEEP:
            raise Unknown
        here, self.here = self.here, dict(zip(f.params, args))
        self.depth += 1
        try:
            self.made[key] = self.block(f.body)  # type: ignore[arg-type]
        finally:
            self.here = here
        self.depth -= 1
        return self.made[key]

    def write_out(self, op: Loop, bind: Bind, count: int) -> None:
        width = len(op.accs)
        accs = list(self.atoms(op.inits))
        stacked: list[list[Atom]] = [[] for _ in bind.vars[width:]]
        for i in range(count):
            self.here[op.index] = Const(i, INT)
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            accs = list(results[:width])
            for column, r in zip(stacked, results[width:]):
                column.append(r)
        self.define(bind, [*accs, *(self.b.array(c, v.name, v.given) for c, v in zip(stacked, bind.vars[width:]))])


def unfold_block(b: Builder, block: Block) -> Block:
    """``Unfold`` for a block under construction."""
    if "unfold" in b.off or not any(type(bind.op) is Apply for bind in all_binds(block)):
        return block
    pass_ = Unfold(b)
    made = pass_.remade(block)
    return tidy(made) if pass_.unfolded else block


def unfold(program: Program) -> Program:
    """Writes out recursion whose course is known from integers and sizes; equal calls are made once."""
    if not any(type(bind.op) is Apply for bind in all_binds(program.body)):
        return program
    pass_ = Unfold(Builder())
    made = rebuilt(program, pass_)
    return with_body(made, tidy(made.body)) if pass_.unfolded else program
