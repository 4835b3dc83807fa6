"""Array privatisation: scratch vectors that each iteration of a loop fills before it reads them are its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core import Arr, Atom, Bind, Block, Check, If, Loop, Prim, Program, Var, all_binds, defined_in, substitute, uses
from ..program.affine import Affine, affine_add
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.rebuild import Rebuild, rebuilt
from .unchanged import Course

#: Which elements of a vector have been set: from the first on, up to the second.
Span = tuple[Affine, Affine]
ONE: Affine = (1, {})


def privatise(program: Program) -> Program:
    """Makes a vector that a loop changes, and nothing reads after it, anew in each iteration, where no iteration reads
    an element that it has not set.

    ``(ifold (fn [#(v c) t] ...) #(v0 (zeros n)) m)``, c the coefficients of a forward elimination that the
    substitution after it reads  =>  c made in the loop, not a part of its state.
    Design decision: before differentiation too: what is no state is neither remembered for each iteration nor has an
    adjoint that goes on to the one before. What is set is one range of elements, which loops extend by one in each
    iteration; anything else counts as not set.
    """
    pass_ = Privatise(Builder(), program.body)
    return rebuilt(program, pass_) if pass_.candidates else program


def privatise_block(b: Builder, block: Block) -> Block:
    """``privatise`` for a block under construction."""
    pass_ = Privatise(b, block)
    if "privatise" in b.off or not pass_.candidates:
        return block
    return tidy(pass_.remade(block))


class Privatise(Rebuild):
    """``privatise`` for a block; ``candidates``: the vectors that loops change and nothing reads after them."""

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.candidates: dict[Loop, list[Var]] = {}
        read = uses(block)
        for x in all_binds(block):
            op = x.op
            if type(op) is Loop and op.snapshots is None and not op.index.soft:
                found = [v for k, v in enumerate(x.vars[: len(op.accs)]) if read.get(v) is None and by_element(op, k)]
                if found:
                    self.candidates[op] = found

    def bind(self, bind: Bind) -> None:
        found = self.candidates.get(bind.op, ()) if type(bind.op) is Loop else ()
        if not found:
            self.copy(bind)
            return
        with self.b.region() as scope:
            self.copy(bind)
        self.b.keep(scope)
        self.b.scopes[-1].facts += scope.facts  # what has been checked for the loop
        last = scope.binds[-1] if scope.binds else None
        if last is not None and type(last.op) is Loop:
            unread, here = {self.here[v] for v in found}, self.b.scopes[-1]
            here.binds[-1] = self.private(last, [k for k, v in enumerate(last.vars) if v in unread])
            if here.binds[-1] is not last:  # what is the same later gives more
                here.shared = {k: v for k, v in here.shared.items() if v != last.vars}

    def private(self, bind: Bind, unread: Sequence[int]) -> Bind:
        """A loop of the new program without the vectors that are its iterations' own."""
        op: Loop = bind.op  # type: ignore[assignment]
        own = [k for k in unread if k < len(op.accs) and by_element(op, k) and self.filled_first(op, op.accs[k])]
        if not own:
            return bind
        self.b.fired("privatise")
        fresh = {op.accs[k]: Var(op.accs[k].name, op.accs[k].type, op.accs[k].span) for k in own}
        body = substitute(op.body, fresh)  # type: ignore[arg-type]
        starts = [Bind((v,), Prim("undef", ()), v.span) for v in fresh.values()]
        kept = [k for k in range(len(op.body.results)) if k not in own]
        accs = [k for k in kept if k < len(op.accs)]
        block = Block((*starts, *body.binds), tuple(body.results[k] for k in kept))
        loop = Loop(op.count, op.index, tuple(op.inits[k] for k in accs), tuple(op.accs[k] for k in accs), tidy(block))
        return Bind(tuple(bind.vars[k] for k in kept), loop, bind.span, bind.soft)

    def filled_first(self, op: Loop, acc: Var) -> bool:
        """Whether an iteration reads no element of a vector that it has not set."""
        filling = Filling(self.b, acc)
        try:
            with filling.facts(self.b.entered(op.count)):
                filling.block(op.body, None)
        except NotFilled:
            return False
        return True


class NotFilled(Exception):
    """An element is read that may not have been set."""


class Filling:
    """Which elements of a vector have been set where, in a loop of a builder's program; ``versions``: what the vector
    is, change by change."""

    def __init__(self, b: Builder, acc: Var) -> None:
        self.b = b
        self.versions: set[Atom] = {acc}

    @contextmanager
    def facts(self, facts: Sequence[Affine]) -> Iterator[None]:
        scope = Scope()
        scope.facts += facts
        self.b.scopes.append(scope)
        try:
            yield
        finally:
            self.b.scopes.pop()

    def block(self, block: Block, done: Span | None) -> Span | None:
        """What has been set after a block, where ``done`` has been before it."""
        for x in block.binds:
            done = self.step(x, done)
        return done

    def step(self, bind: Bind, done: Span | None) -> Span | None:
        op = bind.op
        if type(op) is Prim:
            if not op.args or op.args[0] not in self.versions:
                return done
            at = self.b.affine(op.args[1])
            if op.name != "update" and not self.within(at, done):
                raise NotFilled
            if op.name == "get":
                return done
            self.versions.add(bind.vars[0])
            return self.with_one(at, done)
        if type(op) is Check and op.relation != "==":
            low, above = self.b.affine(op.a), affine_add(self.b.affine(op.b), self.b.affine(op.a), -1)
            below = above if op.relation == "<=" else affine_add(above, ONE, -1)
            self.b.scopes[-1].facts += [low, below] if op.relation == "in" else [below]
        if type(op) is If:
            ends = []
            for arm, holds in ((op.then, True), (op.orelse, False)):
                with self.facts(self.b.facts_of(op.cond, holds)):
                    ends.append(self.block(arm, done))
            self.versions.update(v for v, r in zip(bind.vars, op.then.results) if r in self.versions)
            return ends[0] if ends[0] == ends[1] else done
        if type(op) is Loop:
            return self.loop(op, bind, done)
        return done

    def loop(self, op: Loop, bind: Bind, done: Span | None) -> Span | None:
        going = [k for k, z in enumerate(op.inits) if z in self.versions]
        self.versions.update(op.accs[k] for k in going)
        with self.facts(self.b.entered(op.count)):
            during = self.extended(op, done, (0, {op.index: 1})) if going else done
            self.block(op.body, during)
        self.versions.update(bind.vars[k] for k in going)
        return self.extended(op, done, self.b.affine(op.count)) if going else done

    def extended(self, op: Loop, done: Span | None, times: Affine) -> Span | None:
        """What has been set after so many iterations of a loop, each of which sets the next element, or the one before
        those that have been set."""
        b = self.b
        changes = [x.op for x in op.body.binds if type(x.op) is Prim and x.op.name == "update" and self.ours(op, x.op)]
        if len(changes) != 1:
            return done
        at = b.affine(changes[0].args[1])
        step = at[1].get(op.index)
        first = affine_add(at, (0, {op.index: 1}), -(step or 0))
        if step not in (1, -1) or not defined_in(op.body).isdisjoint(first[1]):
            return done
        if step == 1:
            low, high = done or (first, first)
            return (low, affine_add(first, times)) if self.equal(first, high) else done
        after = affine_add(first, ONE)
        low, high = done or (after, after)
        return (affine_add(after, times, -1), high) if self.equal(after, low) else done

    def ours(self, op: Loop, change: Prim) -> bool:
        """Whether a change in a loop's body is one of this vector."""
        v = change.args[0]
        makers = {x.vars[0]: x.op.args[0] for x in op.body.binds if type(x.op) is Prim and x.op.name == "update"}
        while v in makers:
            v = makers[v]
        return v in self.versions

    def within(self, at: Affine, done: Span | None) -> bool:
        if done is None:
            return False
        above = affine_add(affine_add(done[1], at, -1), ONE, -1)
        return self.b.nonnegative(affine_add(at, done[0], -1)) and self.b.nonnegative(above)

    def with_one(self, at: Affine, done: Span | None) -> Span | None:
        """What has been set when one more element has."""
        after = affine_add(at, ONE)
        if done is None:
            return at, after
        if self.equal(at, done[1]):
            return done[0], after
        return (at, done[1]) if self.equal(after, done[0]) else done

    def equal(self, a: Affine, c: Affine) -> bool:
        return self.b.normal(affine_add(a, c, -1)) == (0, {})


def by_element(op: Loop, k: int) -> bool:
    """Whether a loop reads and sets elements of a vector, and does nothing else with it."""
    acc = op.accs[k]
    if not isinstance(acc.type, Arr) or acc.type.rank != 1 or op.body.results[k] is acc:
        return False
    course = Course({acc})
    return course.goes(op.body) == [k] and all(len(x.args) == 2 + (x.name != "get") for x in course.place)
