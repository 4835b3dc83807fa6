"""Reverse mode, there and back: one clause per core form (Lantern Fig. 10, the record encoding).

    ∂(let y = e in r)  =  let y = e;  [hole: the rest, there and back];  x̄ += ȳ ∂e/∂x

A clause emits its forward code at once and hands back a function that emits its backward code; the hole between
them is the rest of the block. Continuations are static here, so a block of any length is a list of such functions
and not a nest of calls.

What the backward code remembers: in straight-line code every value is still in scope. A loop's backward iteration
computes the body again from the accumulators that it started with, which the forward loop stacks (a pure sum needs
none, so its forward loop vanishes from a gradient), and finds the costly values of the body in a record that the
forward loop stacked too. A branch's backward code likewise takes the costly values from the forward ``If``, which
returns them beside its results. A loop with ``:checkpoint n`` remembers n of its states (see ``checkpoint``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from .accumulators import extreme, starts_with, sum_like
from .activity import activity, differentiable, reach_of
from .adjoints import (
    add,
    add_at,
    copied,
    fill_body,
    is_linear,
    like,
    pack,
    prepared,
    tangent_type,
    unpack,
    vanishes,
    zero,
)
from .builder import ONE, ZERO, Builder, Rebuild, Scope, defined_in, has_snapshots, integer, type_of
from .checkpoint import Stack, begun, descended
from .core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Constructor,
    Data,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Scalar,
    Var,
    While,
    all_binds,
    blocks_of,
    free_vars,
    type_atoms,
)
from .dead import tidy
from .journal import KEPT, Kept
from .names import adjoint
from .partials import Partials
from .primitives import PRIMITIVES
from .records import COSTLY, calls, cut, record_of, stepwise, works

Back = Callable[[], None]
COSTLY_BRANCH = 4  # from here on a branch remembers a value, in a register


def vjp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    cotangents: Callable[[Sequence[Atom]], Sequence[Atom | None]],
    wrt: Sequence[Var],
    factor: bool = False,
    encoding: str = "record",
) -> tuple[tuple[Atom, ...], list[Atom]]:
    """Emit ``block`` and the adjoints of its variables ``wrt`` into the open scope.

    ``here`` says what the block's parameters are there; ``cotangents`` gives the results' (None: zero), from the
    emitted results. Returns the results and the adjoints, zero where nothing depends on the variable. ``factor``
    keeps the cotangent of a sum as a factor outside the sum's own gradient (see ``Reverse.factor``). ``encoding`` is
    what stands between forward and backward code: "record" or "closure" (see ``Reverse``), or "continuation" (see
    ``continuations``).
    """
    if encoding == "continuation":
        from . import continuations

        return continuations.vjp(b, block, here, cotangents, wrt, factor)
    pass_ = Reverse(b, factor and encoding == "record", encoding)
    pass_.here.update(here)
    pass_.active = activity(block, {v: 1 for v in wrt}, pass_.reach)
    results, back = pass_.there(block)
    cts = cotangents(results)
    with b.differentiating():
        for r, ct in zip(block.results, cts):
            if ct is not None:
                pass_.contribute(r, ct)
        back()
        adjoints = []
        for v in wrt:
            pass_.settle(v)
            found = pass_.bar.get(v)
            adjoints.append(found if found is not None else zero(b, pass_.atom(v)))
    return results, adjoints


class Reverse(Rebuild):
    """``bar`` maps an active variable of the old program to its adjoint so far.

    ``factor``: the gradient of a sum ``s = (fold + ..)`` is built for cotangent 1 and scaled by ``s̄`` afterwards, and
    an array's adjoint may wait in ``scaled`` as (factor, array). It costs a pass over the array, and pays when the
    gradient is differentiated again along many directions: the sum's own gradient then does not depend on ``s̄``, so
    that a Hessian's rows share it.

    ``encoding``: "record", or "closure": each branch, iteration and call gives a backpropagator beside its results, a
    function of the cotangents alone that has captured what it reads (Pearlmutter & Siskind 2008; Myia). It is closure
    converted: a data type with a constructor for each function, which holds what that has captured, and a function
    that applies it. Design decision: one transformation; a record is such a closure that leaves out what its one
    caller still has, and whose code stands where it is called (Lantern 3.5).
    """

    def __init__(self, builder: Builder, factor: bool = False, encoding: str = "record") -> None:
        super().__init__(builder)
        self.factor, self.closures = factor, encoding == "closure"
        self.scaled: dict[Var, tuple[Atom, Atom]] = {}
        self.top = len(builder.scopes)
        self.active: dict[Var, int] = {}
        self.bar: dict[Var, Atom] = {}
        self.backs: list[Back] = []
        self.apart = False  # whether the backward code of what is being emitted comes in another place
        self.again = False  # whether what is being emitted has run before
        self.stacks: dict[Var, Atom] = {}  # what is remembered of a loop's results, as its code is emitted again
        self.records: set[Data] = set()
        self.tables: set[Var] = set()  # arrays of which the elements that are read are remembered
        self.known: dict[Var, Atom] = {}  # those that a branch within a branch has read
        self.reach = builder.memo.setdefault(("reach",), {})

    def is_active(self, a: Atom) -> bool:
        return type(a) is Var and a in self.active

    def contribute(self, a: Atom, x: Atom) -> None:
        """``ā += x``."""
        if type(a) is not Var or a not in self.active or vanishes(self.b, x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            self.bar[a] = x
        elif isinstance(type_of(sofar), Scalar):
            self.bar[a] = self.b.prim("+", sofar, x, hint=adjoint(a.name), given=a.given)
        else:
            self.bar[a] = add(self.b, sofar, x)

    def contribute_at(self, a: Atom, indices: Sequence[Atom], x: Atom) -> None:
        """``ā[i] += x``, in place."""
        if not self.is_active(a) or vanishes(self.b, x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            sofar = zero(self.b, self.atom(a), adjoint(a.name))
        self.bar[a] = add_at(self.b, sofar, indices, x, adjoint(a.name))

    def contribute_scaled(self, a: Var, factor: Atom, x: Atom) -> None:
        """``ā += factor x``."""
        if isinstance(type_of(x), Scalar):
            self.contribute(a, self.b.prim("*", factor, x))
        elif a not in self.bar and a not in self.scaled:
            self.scaled[a] = (factor, x)
        else:
            self.contribute(a, self.product(factor, x))

    def product(self, factor: Atom, x: Atom) -> Atom:
        return self.b.elementwise(lambda f, y: self.b.prim("*", f, y), factor, x)

    def settle(self, a: Var) -> None:
        """Carry out a scaling that waits."""
        found = self.scaled.pop(a, None)
        if found is not None:
            self.bar[a] = self.product(*found)

    # ------------------------------------------------------------------------------- there ... and back

    def there(
        self, block: Block, record: dict[Var, Atom] | None = None, apart: bool = False, again: bool = False
    ) -> tuple[tuple[Atom, ...], Back]:
        """Emit the forward code of a block; the results, and what emits the backward code. Values in ``record``
        are remembered and not computed again. ``apart``: the backward code is cut off, or not wanted. ``again``: the
        block has run before, on the same values, and so its checks have been made."""
        outer, self.backs = self.backs, []
        around, self.apart = self.apart, apart
        before, self.again = self.again, self.again or again
        soft = self.b.soft
        for bind in block.binds:
            self.b.span, self.b.soft = bind.span, bind.soft
            if record and bind.vars and type(bind.op) is Loop:
                self.stacks = {v: record[v] for v in bind.vars if v in record}
                self.bind(bind)  # what is remembered is not read of it, and then not computed
                self.stacks = {}
                self.here.update((v, record[v]) for v in bind.vars if v in record)
            elif record and bind.vars and bind.vars[0] in record:
                self.here[bind.vars[0]] = record[bind.vars[0]]
                self.b.remember(bind.op.name, self.atoms(bind.op.args), record[bind.vars[0]])  # type: ignore[union-attr]
                if any(self.is_active(v) for v in bind.vars):
                    self.backs.append(self.prim_back(bind.op, bind))  # type: ignore[arg-type]
            else:
                self.bind(bind)
        backs, self.backs = self.backs, outer
        self.apart, self.again, self.b.soft = around, before, soft

        def back() -> None:
            for emit in reversed(backs):
                emit()

        return self.atoms(block.results), back

    def bind(self, bind: Bind) -> None:
        op, b = bind.op, self.b
        if type(op) is Check and self.again:
            b.check(op, self.atom(op.a), self.atom(op.b), made=True)
        elif not any(self.is_active(v) for v in bind.vars):
            self.copy(bind)
        elif type(op) is Prim:
            self.copy(bind)
            self.backs.append(self.prim_back(op, bind))
        elif type(op) is Make:
            self.copy(bind)
            self.backs.append(self.make_back(op, bind))
        elif type(op) is Apply:
            self.backs.append(self.apply_there(op, bind))
        elif self.few(op) and (type(op) is While or self.carries(op) or calls(op)):  # type: ignore[arg-type]
            self.backs.append(self.checkpointed_there(op, bind))  # type: ignore[arg-type]
        elif type(op) is While or (type(op) is Loop and (calls(op) or self.closures or self.heavy(op))):
            self.backs.append(self.iterations_there(op, bind))
        elif type(op) is Loop:
            self.backs.append(self.loop_there(op, bind))
        elif type(op) is Case and type(value := self.atom(op.value)) is Var and value in b.made and not b.plain:
            self.backs.append(self.arm_there(op, bind, b.made[value]))
        elif self.closures or any(
            type(inner.op) in (Apply, While) for block in blocks_of(op) for inner in all_binds(block)
        ):
            self.backs.append(self.choice_there(op, bind))
        else:
            self.backs.append(self.branch_there(op, bind))

    @property
    def remembers(self) -> bool:
        """Whether what costs more to compute again than to remember is remembered."""
        return "remembering" not in self.b.off

    def say(self, binds: Sequence[Bind], kept: Sequence[Var]) -> None:
        """That these are remembered, for who asks."""
        if self.b.journal is not None:
            span = self.b.span
            for bind in binds:
                if any(v in kept for v in bind.vars):
                    self.b.span = bind.span
                    self.b.fired("remembering")
            self.b.span = span

    def few(self, op: object) -> bool:
        """Whether few states of a loop are remembered."""
        return has_snapshots(op) and not self.closures and "checkpoint" not in self.b.off  # type: ignore[arg-type]

    def heavy(self, op: Loop) -> bool:
        """Whether an iteration of a loop that carries something has loops of costly operations in it: what these give
        is better remembered than computed once more."""
        if not self.carries(op) or not self.remembers:
            return False
        bound = {op.index, *op.accs, *defined_in(op.body)}
        for bind in all_binds(op.body):  # a size that is this iteration's own
            dims = [d for v in bind.vars for d in type_atoms(v.type)]
            if any(d in bound for d in (*dims, *([bind.op.count] if type(bind.op) is Loop else []))):
                return False
        return bool(stepwise(op)) or any(type(bind.op) is Loop and works(bind) for bind in op.body.binds)

    def take(self, v: Var) -> Atom | None:
        """The finished adjoint of a variable whose binding is being left, going back."""
        self.settle(v)
        return self.bar.pop(v, None)

    # y = p(x ...)  =>  x̄ += ȳ ∂p/∂x
    def prim_back(self, op: Prim, bind: Bind) -> Back:
        b, (var,) = self.b, bind.vars
        args, y = self.atoms(op.args), self.here[var]

        def back() -> None:
            y_bar = self.take(var)
            if y_bar is None:
                return
            b.span = bind.span
            row = PRIMITIVES.get(op.name)
            if row is not None:
                if row.jvp is not None or row.vjp is not None:
                    from .derive import custom_adjoints

                    for a, x in zip(op.args, custom_adjoints(b, row, args, y, y_bar)):
                        self.contribute(a, x)
                    return
                partials = Partials(b, row, args, y)
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, partials.product(y_bar, k, adjoint(a.name)))
            elif op.name in b.rules:
                rule = b.rules[op.name]
                with b.as_written():
                    made = rule.adjoints(args[1:], y, y_bar)
                for a, x in zip(op.args[1:], made):
                    self.contribute(a, x)
            elif op.name == "get":
                self.contribute_at(op.args[0], args[1:], y_bar)
            elif op.name == "array":
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, b.get(y_bar, Const(k, INT)))
            elif op.name == "select":
                nothing = b.zeros(type_of(y))
                self.contribute(op.args[1], b.select(args[0], y_bar, nothing))
                self.contribute(op.args[2], b.select(args[0], nothing, y_bar))
            elif op.name in ("update", "add-at"):
                base, *_, x = op.args
                if self.is_active(x):
                    self.contribute(x, b.get(y_bar, *args[1:-1]))
                if op.name == "update" and self.is_active(base):
                    y_bar = b.update(y_bar, args[1:-1], zero(b, args[-1]))
                self.contribute(base, y_bar)

        return back

    # y = (C x ...)  =>  x̄ += the fields of ȳ
    def make_back(self, op: Make, bind: Bind) -> Back:
        b, (var,), args = self.b, bind.vars, self.atoms(op.args)

        def back() -> None:
            y_bar = self.take(var)
            if y_bar is not None:
                b.span = bind.span
                for k, x in unpack(b, op.constructor, y_bar, args).items():
                    self.contribute(op.args[k], x)

        return back

    @contextmanager
    def region(self, op: If | Case, k: int) -> Iterator[tuple[Scope, tuple[Var, ...]]]:
        """A branch or an arm under construction, and an arm's fields in it."""
        if type(op) is If:
            with self.b.region() as scope:
                scope.facts.extend(self.b.facts_of(self.atom(op.cond), k == 0))
                yield scope, ()
        else:
            arm = op.arms[k]  # type: ignore[union-attr]
            with self.b.arm(arm.constructor) as (scope, fields):
                self.here.update(zip(arm.fields, fields))
                for f in arm.fields:
                    self.bar.pop(f, None)
                yield scope, fields

    def join(
        self,
        op: If | Case,
        choice: Atom,
        regions: Sequence[tuple[tuple[Var, ...], Scope, Sequence[Atom]]],
        names: Sequence[str],
        given: bool = False,
    ) -> Sequence[Atom]:
        """The choice between finished regions, as ``op`` chooses."""
        if type(op) is If:
            first, second = [(scope, results) for _, scope, results in regions]
            return self.b.if_(choice, first, second, names, given)
        arms = [(arm.constructor, *region) for arm, region in zip(op.arms, regions)]  # type: ignore[union-attr]
        return self.b.case(choice, arms, names, given)  # type: ignore[arg-type]

    def touched(self, op: If | Case | Loop | While) -> list[Var]:
        """The active variables of the blocks around that the regions of an operation read."""
        blocks = blocks_of(op)[1:] if type(op) is While else blocks_of(op)
        own = set(getattr(op, "accs", ()))
        found: dict[Var, None] = {}
        if type(op) is Case:
            own = {f for arm in op.arms for f in arm.fields}
            if self.is_active(op.value):
                found[op.value] = None  # type: ignore[index]
        for block in blocks:
            found.update(dict.fromkeys(v for v in free_vars(block) if v in self.active and v not in own))
        return [v for v in found if differentiable(v.type)]

    def give_back(self, op: If | Case, k: int) -> None:
        """At the end of an arm's backward code: the fields' adjoints make one of the value's."""
        if type(op) is Case and self.is_active(op.value):
            arm = op.arms[k]
            bars = {j: self.take(f) for j, f in enumerate(arm.fields)}
            parts = {j: x for j, x in bars.items() if x is not None}
            fields = self.atoms(arm.fields)
            self.contribute(op.value, pack(self.b, arm.constructor, fields, parts, adjoint(str(op.value))))

    def elements(self, block: Block, inside: bool = False) -> list[Var]:
        """What a block reads of tables and the backward code may need; ``inside``: what its branches read."""
        found: list[Var] = []
        for bind in block.binds if self.tables else ():
            op = bind.op
            if not any(self.is_active(v) for v in bind.vars):
                continue
            if not inside and type(op) is Prim and op.name == "get" and op.args[0] in self.tables:
                found += bind.vars
            elif inside and type(op) is If:
                for branch in blocks_of(op):
                    found += [*self.elements(branch), *self.elements(branch, inside=True)]
        return found

    # y = (if c e f)  =>  (x̄ ...) = (if c [e there and back] [f there and back]), and the same for match
    def branch_there(self, op: If | Case, bind: Bind) -> Back:
        b, span, blocks = self.b, bind.span, blocks_of(op)
        choice = self.atom(op.cond if type(op) is If else op.value)  # type: ignore[union-attr]
        kept = [costly(block, self.active, COSTLY_BRANCH) if self.remembers else [] for block in blocks]
        kept = [[*found, *self.elements(block)] for found, block in zip(kept, blocks)]
        inner = [self.elements(block, inside=True) for block in blocks]
        every = [(j, v) for j in range(len(blocks)) for v in (*kept[j], *inner[j])]
        known = {v: self.known.pop(v) for _, v in every if v in self.known}
        for block, found in zip(blocks, kept):
            self.say(block.binds, found)
        regions = []
        for k, block in enumerate(blocks):
            with self.region(op, k) as (scope, fields):
                results, _ = self.there(block, {v: known[v] for v in kept[k] if v in known}, apart=True)
                record = [self.here[v] if j == k else ZERO for j, v in every]
            regions.append((fields, scope, [*results, *record]))
        b.span = span
        names = [v.name for v in (*bind.vars, *(v for _, v in every))]
        out = self.join(op, choice, regions, names, bind.vars[0].given)
        self.define(bind, out)
        saved = {v: x for (_, v), x in zip(every, out[len(bind.vars) :])} | known
        self.here.update((v, saved[v]) for _, v in every)

        def back() -> None:
            bars = [self.take(v) for v in bind.vars]
            if all(x is None for x in bars):
                return
            touched = self.touched(op)
            self.known.update((v, saved[v]) for vs in inner for v in vs)
            for v in touched:
                self.settle(v)
            before = {v: self.bar.get(v) for v in touched}
            b.span = span
            start = {v: x if x is not None else zero(b, self.atom(v), adjoint(v.name)) for v, x in before.items()}
            regions = []
            for k, block in enumerate(blocks):
                with self.region(op, k) as (scope, fields):
                    _, inner_back = self.there(block, {v: saved[v] for v in kept[k]}, again=True)
                    self.bar.update(start)
                    for r, x in zip(block.results, bars):
                        if x is not None:
                            self.contribute(r, x)
                    inner_back()
                    self.give_back(op, k)
                    regions.append((fields, scope, [self.bar[v] for v in touched]))
            b.span = span
            changed = [j for j, v in enumerate(touched) if any(region[2][j] is not start[v] for region in regions)]
            after = self.join(
                op,
                choice,
                [(fields, scope, [results[j] for j in changed]) for fields, scope, results in regions],
                [adjoint(touched[j].name) for j in changed],
            )
            for v in touched:
                if before[v] is None:
                    self.bar.pop(v, None)
                else:
                    self.bar[v] = before[v]  # type: ignore[assignment]
            for j, x in zip(changed, after):
                self.bar[touched[j]] = x

        return back

    def arm_there(self, op: Case, bind: Bind, made: Make) -> Back:
        """A match on a value whose constructor is known: straight-line code."""
        k = made.constructor.tag
        arm = op.arms[k]
        self.here.update(zip(arm.fields, made.args))
        results, inner_back = self.there(arm.block, apart=self.apart)
        self.define(bind, results)

        def back() -> None:
            for v, r in zip(bind.vars, arm.block.results):
                bar = self.take(v)
                if bar is not None:
                    self.contribute(r, bar)
            inner_back()
            self.give_back(op, k)

        return back

    # ------------------------------------------------------------------------- forward and backward, cut

    def pair(
        self, block: Block, touched: Sequence[Var], threaded: Callable[[Var], bool], last: Back | None = None
    ) -> Pair:
        """The forward code of a block in the open scope and, where it sees all of that, the backward code: a block on
        the cotangents of the results, and on the adjoints so far of those ``touched`` variables that are ``threaded``
        through it; its results are the adjoints (of the others: what is to be added; None for nothing). ``last``
        ends the backward code."""
        b = self.b
        results, back = self.there(block, apart=True)
        bars, self.bar = self.bar, {}
        scaled, self.scaled = self.scaled, {}
        span = b.span
        with b.region() as scope, b.differentiating():
            cotangents = {
                k: like(b, Var("y", type_of(x)), {}, adjoint(str(r)))
                for k, (r, x) in enumerate(zip(block.results, results))
                if self.is_active(r)
            }
            starts = {
                v: like(b, Var(v.name, type_of(self.atom(v))), {}, adjoint(v.name)) for v in touched if threaded(v)
            }
            scope.vars.update(cotangents.values())
            scope.vars.update(starts.values())
            self.bar.update(starts)
            for k, ct in cotangents.items():
                self.contribute(block.results[k], ct)
            back()
            if last is not None:
                last()
            outs = {v: self.take(v) for v in touched}
        self.bar, self.scaled = bars, scaled
        b.span = span
        changed = {v: x for v, x in outs.items() if x is not None and x is not starts.get(v)}
        return Pair(results, tidy(b.close(scope, tuple(changed.values()))), cotangents, starts, list(changed))

    # y = (if c e f), with calls inside  =>  y, r = (if c [e.. there, (Then ..)] [f.. there, (Else ..)])
    #                                        x̄ += (match r (Then ..) [e back] (Else ..) [f back])
    def choice_there(self, op: If | Case, bind: Bind) -> Back:
        """A branch, a sum: what each branch remembers is made into a constructor of its own, and the backward code
        matches on it. A match is matched again: its fields need not be remembered, and an arm that needs nothing else
        makes no record."""
        b, span, blocks = self.b, bind.span, blocks_of(op)
        choice = self.atom(op.cond if type(op) is If else op.value)  # type: ignore[union-attr]
        touched = self.touched(op)
        data = Data(self.kind)
        again = type(op) is Case and not self.closures
        opened, pairs, own = [], [], []
        codes: list[tuple[Constructor | None, list[Var]]] = []
        for k, block in enumerate(blocks):
            with self.region(op, k) as (scope, fields):
                pair = self.pair(block, touched, is_threaded, lambda k=k: self.give_back(op, k))  # type: ignore[misc]
                bound = scope.vars.difference(fields if again else ())
                record, pair.block = cut(scope.binds, pair.block, self.forgotten(pair, scope, bound))
                name = ("then", "else")[k] if type(op) is If else op.arms[k].constructor.name  # type: ignore
                constructor, args = record_of(data, name, record, self.kind)
                codes.append((constructor, args) if args or not again else (None, []))
            opened.append((fields, scope))
            pairs.append(pair)
            own.append(fields)
        made = [c for c, _ in codes if c is not None]
        data.constructors = tuple(made)
        plain = not any(args for _, args in codes) and not self.closures  # the backward code chooses again, that is all
        regions = []
        for (fields, scope), (constructor, args), pair in zip(opened, codes, pairs):
            results = list(pair.results)
            if not plain:
                with b.region(scope):
                    results.append(b.undef(data) if constructor is None else b.make(constructor, args, "record"))
            regions.append((fields, scope, results))
        if not plain and not self.closures:
            self.records.add(data)
        b.span = span
        names = [*(v.name for v in bind.vars), "record"]
        out = self.join(op, choice, regions, names, bind.vars[0].given)
        self.define(bind, out)

        def back() -> None:
            bars = [self.take(v) for v in bind.vars]
            if all(x is None for x in bars):
                return
            b.span = span
            changed = [v for v in touched if any(v in pair.changed for pair in pairs)]
            starts = {v: self.so_far(v) for v in changed if is_threaded(v)}
            if self.closures:
                cts = {j: self.or_zero(bars[j], bind.vars[j]) for pair in pairs for j in pair.cotangents}
                after = self.call(out[-1], [(c, args, p) for (c, args), p in zip(codes, pairs)], cts, starts, changed)  # type: ignore
                return self.receive(changed, after, starts)

            depth = len(b.scopes)

            def emit(k: int, table: dict[Var, Atom]) -> list[Atom]:
                pair = pairs[k]
                table.update((ct, self.or_zero(bars[j], bind.vars[j])) for j, ct in pair.cotangents.items())
                table.update((pair.starts[v], x) for v, x in starts.items())
                found = instantiate(b, pair, table)
                out = [found[v] if v in found else starts[v] if v in starts else zero(b, self.atom(v)) for v in changed]
                return [fitted(b, x, type_of(self.atom(v)), depth) for x, v in zip(out, changed)]

            names = [adjoint(v.name) for v in changed]
            if again or plain:
                regions = []
                for k, (constructor, args) in enumerate(codes):
                    with self.region(op, k) as (scope, fields):
                        table: dict[Var, Atom] = dict(zip(own[k], fields))
                        if args:
                            results = self.opened(out[-1], constructor, args, lambda t: emit(k, {**table, **t}), names)  # type: ignore
                        else:
                            results = emit(k, table)
                    regions.append((fields, scope, results))
                after = self.join(op, choice, regions, names)
            else:
                arms = []
                for k, (constructor, args) in enumerate(codes):
                    with b.arm(constructor) as (scope, fields):  # type: ignore[arg-type]
                        results = emit(k, dict(zip(args, fields)))
                    arms.append((constructor, fields, scope, results))
                after = b.case(out[-1], arms, names)
            b.span = span
            self.receive(changed, after, starts)

        return back

    def opened(
        self,
        record: Atom,
        constructor: Constructor,
        args: Sequence[Var],
        emit: Callable[[dict[Var, Atom]], list[Atom]],
        names: Sequence[str],
    ) -> Sequence[Atom]:
        """Code on the fields of a record whose constructor is certain."""
        b, arms = self.b, []
        with b.arm(constructor) as (scope, fields):
            results = emit(dict(zip(args, fields)))
        for c in constructor.data.constructors:
            if c is constructor:
                arms.append((c, fields, scope, results))
            else:
                with b.arm(c) as (other, parts):
                    never = [b.undef(type_of(x)) for x in results]
                arms.append((c, parts, other, never))
        return b.case(record, arms, names)

    def receive(self, changed: Sequence[Var], adjoints: Sequence[Atom], starts: Mapping[Var, Atom]) -> None:
        """What backward code has given: adjoints that were threaded through it, and those that are to be added."""
        for v, x in zip(changed, adjoints):
            if v in starts:
                self.bar[v] = x
            else:
                self.contribute(v, x)

    # ------------------------------------------------------------------------------------- closures

    @property
    def kind(self) -> str:
        return "function" if self.closures else "record"

    def forgotten(self, pair: Pair, scope: Scope, bound: set[Var]) -> set[Var]:
        """What backward code may not read but from its record: for a closure, all that is not its argument."""
        if not self.closures:
            return bound
        given = {*pair.cotangents.values(), *pair.starts.values()}
        free = {**free_vars(pair.block), **free_vars(Block(tuple(scope.binds), ()))}
        sizes = (d for v in free for d in type_atoms(v.type) if type(d) is Var)
        return bound.union(v for v in (*free, *sizes) if v not in given)

    def call(
        self,
        closure: Atom,
        codes: Sequence[tuple[Constructor, Sequence[Var], Pair]],
        cotangents: Mapping[int, Atom],
        starts: Mapping[Var, Atom],
        changed: Sequence[Var],
    ) -> Sequence[Atom]:
        """Apply a backpropagator, one of ``codes``, to the cotangents; the adjoints of ``changed``. The function that
        applies it takes sizes, cotangents, and the adjoints so far that are threaded."""
        b = self.b
        types = {v: tangent_type(b, type_of(starts[v] if v in starts else self.atom(v))) for v in changed}
        taken = [type_of(x) for x in (*cotangents.values(), *starts.values())]
        sizes = dict.fromkeys(d for t in (*taken, *types.values()) for d in type_atoms(t) if type(d) is Var)
        table: dict[Atom, Atom] = {}
        k = Var("k", type_of(closure))
        copies = copied(list(sizes), table)  # type: ignore[arg-type]
        cts = {j: like(b, Var("y", type_of(x)), table, adjoint("y")) for j, x in cotangents.items()}
        begun = {v: like(b, Var(v.name, type_of(x)), table, adjoint(v.name)) for v, x in starts.items()}
        results = tuple(like(b, Var(v.name, t), table, adjoint(v.name)) for v, t in types.items())
        f = Function("call", (k, *copies, *cts.values(), *begun.values()), results, None, b.span)

        def body() -> Sequence[Atom]:
            arms = []
            for constructor, captured, pair in codes:
                with b.arm(constructor) as (scope, fields):
                    known: dict[Var, Atom] = {**dict(zip(captured, fields)), **{d: table[d] for d in sizes}}  # type: ignore
                    known.update((ct, cts[j]) for j, ct in pair.cotangents.items())
                    known.update((pair.starts[v], x) for v, x in begun.items())
                    found = instantiate(b, pair, known)
                    out = []
                    for v, r in zip(changed, results):
                        out.append(found[v] if v in found else begun[v] if v in begun else b.zeros(r.type))  # type: ignore
                arms.append((constructor, fields, scope, out))
            return b.case(k, arms)

        fill_body(b, f, body)
        return b.apply(f, [closure, *sizes, *cotangents.values(), *starts.values()])

    def so_far(self, v: Var) -> Atom:
        """The adjoint so far, to be threaded through backward code that adds to it."""
        self.settle(v)
        found = self.bar.get(v)
        return found if found is not None else zero(self.b, self.atom(v), adjoint(v.name))

    def or_zero(self, bar: Atom | None, v: Var) -> Atom:
        return bar if bar is not None else zero(self.b, self.atom(v))

    # s = (while c f z)  =>  the iterations counted and remembered; then back, last to first
    def iterations_there(self, op: Loop | While, bind: Bind) -> Back:
        """A loop that calls functions, or whose count is only known at its end: the forward loop stacks what the
        backward iterations read across the cut."""
        b, span, width = self.b, bind.span, len(op.accs)
        counted = type(op) is Loop
        moving = [k for k in range(width) if self.is_active(op.accs[k])]
        outside = self.touched(op)
        touched = [*outside, *(op.accs[k] for k in moving)]
        inits = self.atoms(op.inits)
        made: list = []
        tables = stepwise(op) if self.remembers else frozenset()
        self.tables |= tables

        def cond(*accs: Atom) -> Atom:
            plain = Rebuild(b)
            plain.here = self.here
            self.here.update(zip(op.accs, accs))
            return plain.block(op.cond)[0]  # type: ignore[union-attr]

        def forward(*args: Atom):
            accs = args[1:] if counted else args
            if counted:
                self.here[op.index] = args[0]  # type: ignore[union-attr]
            self.here.update(zip(op.accs, accs))
            scope = b.scopes[-1]
            pair = self.pair(op.body, touched, lambda v: v in outside)
            bound = set(scope.vars)
            known = {a: z for a, z, r in zip(accs, inits, pair.results) if r is a}  # what no iteration changes
            if counted:
                known[args[0]] = args[0]
            bound.difference_update({} if self.closures else known)  # type: ignore[arg-type]
            here = {self.here[v] for v in tables if v in self.here}
            fields, pair.block = cut(scope.binds, pair.block, self.forgotten(pair, scope, bound), True, here)  # type: ignore
            self.say(scope.binds, fields)
            boxed = [v for v in fields if self.closures or any(d in scope.vars for d in type_atoms(v.type))]
            box = None
            if boxed or self.closures:  # arrays whose size is this iteration's own
                box, boxed = record_of(Data(self.kind), "box", boxed, self.kind)  # type: ignore[assignment]
                box.data.constructors = (box,)
                fields = [v for v in fields if v not in boxed]
            stacked = [*fields, *([b.make(box, boxed)] if box is not None else [])]
            made[:] = pair, fields, box, boxed, known, args
            return pair.results[:width], [*pair.results[width:], *stacked]

        acc_names = [a.name for a in op.accs]
        if counted:
            names = [v.name for v in bind.vars]
            out = b.loop(self.atom(op.count), inits, forward, names, op.index.name, acc_names, bind.vars[0].given)  # type: ignore
            count = self.atom(op.count)  # type: ignore[union-attr]
        else:
            names = [v.name for k, v in enumerate(bind.vars) if k != width]
            out = b.while_(inits, cond, forward, names, acc_names, bind.vars[0].given)  # type: ignore[arg-type]
            count = out[width]
        self.define(bind, out)
        pair, fields, box, boxed, known, args = made
        saved = out[len(bind.vars) :]
        pair_vars = [v for k, v in enumerate(bind.vars) if counted or k != width]

        def back() -> None:
            bars = [self.take(v) for v in pair_vars]
            if all(x is None for x in bars):
                return
            b.span = span
            final = {op.accs[k]: self.or_zero(bars[k], pair_vars[k]) for k in moving}
            changed = [v for v in outside if v in pair.changed]
            starts = [*final.values(), *(self.so_far(v) for v in changed)]

            def backward(k: Atom, *accs: Atom):
                i = b.prim("-", b.prim("-", count, Const(1, INT)), k)
                table: dict[Var, Atom] = dict(known)
                if counted:
                    table[args[0]] = i
                table.update((v, b.get(a, i, hint=v.name)) for v, a in zip(fields, saved))
                going = dict(zip(final, accs))
                table.update(zip([pair.starts[v] for v in changed], accs[len(final) :]))
                for j, ct in pair.cotangents.items():
                    if j < width:
                        table[ct] = going[op.accs[j]] if op.accs[j] in going else self.or_zero(bars[j], pair_vars[j])
                    elif bars[j] is not None:
                        table[ct] = b.get(bars[j], i)
                    else:
                        item = type_of(self.atom(pair_vars[j])).item()  # type: ignore[union-attr]
                        table[ct] = zero(b, Var(ct.name, item))
                if self.closures:
                    cts = {j: table[ct] for j, ct in pair.cotangents.items()}
                    begun = dict(zip(changed, accs[len(final) :]))
                    return self.call(b.get(saved[-1], i), [(box, boxed, pair)], cts, begun, [*final, *changed]), ()

                def emit() -> list[Atom]:
                    found = instantiate(b, pair, table)
                    return [
                        found[v]
                        if v in found
                        else table[pair.starts[v]]
                        if v in pair.starts
                        else zero(b, inits[op.accs.index(v)])
                        for v in (*final, *changed)
                    ]

                if box is None:
                    return emit(), ()
                with b.arm(box) as (scope, parts):
                    table.update(zip(boxed, parts))
                    results = emit()
                types = [type_of(a) for a in accs]  # a box has fields for sizes that are known outside, too
                return b.case(b.get(saved[-1], i), [(box, parts, scope, results)], known=types), ()

            names = [adjoint(v.name) for v in (*final, *changed)]
            after = b.loop(count, starts, backward, names, "k", names)
            b.span = span
            self.bar.update(zip(changed, after[len(final) :]))
            for k, x in zip(moving, after):
                self.contribute(op.inits[k], x)

        return back

    # y = (f x ...)  =>  y, r = (f-there x ...);  x̄ += (f-back r ȳ)
    def apply_there(self, op: Apply, bind: Bind) -> Back:
        b, span = self.b, bind.span
        if is_linear(b, op.function):
            self.copy(bind)

            def share() -> None:
                y_bar = self.take(bind.vars[0])
                if y_bar is not None:
                    for a in op.args:
                        self.contribute(a, y_bar)

            return share
        args = self.atoms(op.args)
        functions = there_and_back(b, op.function, tuple(self.is_active(a) for a in op.args), self.kind)
        out = b.apply(functions.there, args, [*(v.name for v in bind.vars), "record"], bind.vars[0].given)
        self.define(bind, out)

        def back() -> None:
            bars = [self.take(v) for v in bind.vars]
            if all(bars[k] is None for k in functions.results):
                return
            b.span = span
            starts: list[Atom] = []
            first: set[Atom] = set()
            for k in functions.params:
                if is_threaded(op.function.params[k]):
                    a = op.args[k]
                    starts.append(zero(b, args[k]) if a in first else self.so_far(a))  # type: ignore[arg-type]
                    first.add(a)
            after = b.apply(
                functions.back,
                [
                    *(args[k] for k in functions.needs),
                    *(out[k] for k in functions.sizes),
                    out[-1],
                    *(self.or_zero(bars[k], bind.vars[k]) for k in functions.results),
                    *starts,
                ],
                [adjoint(str(op.args[k])) for k in functions.params],
            )
            for k, x in zip(functions.params, after):
                a = op.args[k]
                if a in first:
                    first.discard(a)
                    self.bar[a] = x  # type: ignore[index]
                else:
                    self.contribute(a, x)

        return back

    def block_there(self, block: Block) -> tuple[Atom, ...]:
        """The forward code alone: its backward code is emitted elsewhere, from what is remembered."""
        results, _ = self.there(block, apart=True)
        return results

    # s = (ifold f z n :checkpoint m)  =>  its states, last to first, each computed again from one that is kept
    def checkpointed_there(self, op: Loop | While, bind: Bind) -> Back:
        """A loop that keeps few of its states. Where its backward code stands in the same place and the count is known,
        the loop itself is the first way to the last state; elsewhere it keeps nothing but what it starts with."""
        b, span, width = self.b, bind.span, len(op.accs)
        counted = type(op) is Loop
        b.fired("checkpoint")
        snapshots, inits = self.atom(op.snapshots), self.atoms(op.inits)  # type: ignore[arg-type]
        count = self.atom(op.count) if counted else None  # type: ignore[union-attr]
        asked = KEPT.get()
        if asked is not None:
            steps = b.affine(count) if count is not None else None
            asked.append(Kept(span, steps, b.affine(snapshots), counted and not self.apart))
        if type(count) is Const or counted and type(snapshots) is not Const:  # else the room is known: worth more
            snapshots = b.prim("min", snapshots, count)
        names = [a.name for a in op.accs]
        moving = [k for k in range(width) if self.is_active(op.accs[k])]
        outside = self.touched(op)

        def advance(state: Sequence[Atom], at: Atom, steps: Atom) -> Sequence[Atom]:
            plain = Rebuild(b)
            plain.here = self.here

            def step(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
                if counted:
                    self.here[op.index] = b.prim("+", at, i)  # type: ignore[union-attr]
                self.here.update(zip(op.accs, accs))
                return plain.block(op.body), ()

            return b.loop(steps, state, step, names, op.index.name if counted else "i", names)  # type: ignore[union-attr]

        def down(stack: Stack, target: Atom) -> Stack:
            return descended(b, stack, names, snapshots, target, advance)

        stack = None
        if counted and not self.apart:
            stack = down(begun(b, inits, names, snapshots), b.prim("-", count, integer(1)))
            at = stack.place(b)
            self.define(bind, advance(stack.state(b, names), at, b.prim("-", count, at)))
        else:
            self.copy(bind)
            count = count if counted else self.here[bind.vars[width]]
        b.span = span

        def back() -> None:
            bars = [self.take(v) for v in bind.vars[:width]]
            if all(x is None for x in bars):
                return
            b.span = span
            final = [self.or_zero(bars[k], bind.vars[k]) for k in moving]
            kept = stack if stack is not None else begun(b, inits, names, snapshots)
            depth = len(kept.atoms)

            def backward(k: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
                i = b.prim("-", b.prim("-", count, integer(1)), k)
                here = down(Stack.of(accs[:depth]), i)
                if counted:
                    self.here[op.index] = i  # type: ignore[union-attr]
                self.here.update(zip(op.accs, here.state(b, names)))
                _, inner_back = self.there(op.body, again=True)
                for a in op.accs:
                    self.bar.pop(a, None)
                self.bar.update(zip(outside, accs[depth + len(moving) :]))
                for j, x in zip(moving, accs[depth:]):
                    self.contribute(op.body.results[j], x)
                inner_back()
                found = [self.take(op.accs[j]) for j in moving]
                following = [x if x is not None else zero(b, inits[j]) for j, x in zip(moving, found)]
                return [*here.below(b).atoms, *following, *(self.bar[v] for v in outside)], ()

            starts = [*kept.atoms, *final, *(self.so_far(v) for v in outside)]
            hints = [*(f"{name}-kept" for name in names), "places", "top"]
            hints += [adjoint(names[j]) for j in moving] + [adjoint(v.name) for v in outside]
            out = b.loop(count, starts, backward, hints, "k", hints, snapshots=snapshots)
            b.span = span
            self.bar.update(zip(outside, out[depth + len(moving) :]))
            for j, x in zip(moving, out[depth:]):
                self.contribute(op.inits[j], x)

        return back

    def carries(self, op: Loop) -> bool:
        """Whether the adjoints of an iteration depend on those of the next: the order of the sums, and of a search for
        the largest, does not matter."""
        return not all(
            not self.is_active(a) or sum_like(op.body, a, r) or extreme(op.body, a, r)
            for a, r in zip(op.accs, op.body.results)
        )

    # s = (ifold f z n)  =>  the iterations again, last to first, each there and back
    # m = (fold max z v)  =>  m and the index where it stands, -1 for z; back, m̄ is added there
    def loop_there(self, op: Loop, bind: Bind) -> Back:
        b, span, width = self.b, bind.span, len(op.accs)
        stacks, self.stacks = self.stacks, {}
        carried = self.carries(op)
        sums = [sum_like(op.body, a, r) or not self.is_active(a) for a, r in zip(op.accs, op.body.results)]
        extremes = (
            {}
            if carried
            else {k: extreme(op.body, op.accs[k], op.body.results[k]) for k in range(width) if not sums[k]}
        )
        given = {r: k for k, r in enumerate(op.body.results) if k >= width}  # stacked anyway
        free = self.few(op) or not self.remembers
        dear = [] if free else costly(op.body, self.active)
        if given and not free:  # else this loop vanishes, should nothing be remembered
            dear += laborious(op, self.active)
        kept = [v for v in dear if v not in given]
        self.say(op.body.binds, kept)
        count, inits = self.atom(op.count), self.atoms(op.inits)

        def forward(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.block_there(op.body)
            places = []
            for (k, (test, _)), before in zip(extremes.items(), accs[width:]):  # type: ignore[misc]
                keeps = b.prim(">=" if test.name == "max" else "<=", *self.atoms(test.args))
                old, new = (before, i) if test.args[0] is op.accs[k] else (i, before)
                places.append(b.select(keeps, old, new))
            return [*results[:width], *places], [*results[width:], *accs[:width], *(self.here[v] for v in kept)]

        names = [v.name for v in (*bind.vars, *op.accs, *kept)]
        names[width:width] = ["at"] * len(extremes)
        acc_names = [*(a.name for a in op.accs), *["at"] * len(extremes)]
        first = {k: starts_with(self, op, extremes[k][1], inits[k], count) for k in extremes}  # type: ignore[index]
        starts = [*inits, *(Const(0 if first[k] else -1, INT) for k in extremes)]
        out = b.loop(count, starts, forward, names, op.index.name, acc_names, bind.vars[0].given)
        places = dict(zip(extremes, out[width:]))
        out = [*out[:width], *out[width + len(extremes) :]]
        self.define(bind, out)
        at_start = dict(zip(op.accs, out[len(bind.vars) :]))
        saved = dict(zip(kept, out[len(bind.vars) + width :]))
        saved.update((v, stacks.get(bind.vars[given[v]], out[given[v]])) for v in dear if v in given)  # type: ignore[misc]

        def at_place(k: int, x: Atom) -> None:
            """The one iteration that found the largest."""
            self.here[op.index] = places[k]
            for a in op.accs:
                self.here[a] = b.get(at_start[a], places[k], hint=a.name, given=True)
                self.bar.pop(a, None)
            record = {v: b.get(saved[v], places[k], hint=v.name, given=v.given) for v in dear}
            _, inner_back = self.there(op.body, record, again=True)
            self.contribute(extremes[k][1], x)  # type: ignore[index]
            inner_back()

        def back() -> None:
            scale = None if carried else self.common_factor(bind, width)
            bars = [self.take(v) for v in bind.vars]
            if all(x is None for x in bars):
                return
            b.span = span
            if scale is not None:
                factor, k, unscaled = scale
                bars[k] = unscaled
            moving = [k for k in range(width) if self.is_active(op.accs[k])]
            outside = self.touched(op)
            if scale is None:
                for v in outside:
                    self.settle(v)
            if len(moving) == 1 and first.get(moving[0]) and scale is None and all(x is None for x in bars[width:]):
                at_place(moving[0], bars[moving[0]])  # type: ignore[arg-type]
                return
            held = {v: self.scaled.pop(v) for v in outside if v in self.scaled}
            kept_bars = {v: self.bar.get(v) for v in outside}
            before = kept_bars if scale is None else dict.fromkeys(outside)
            final = {k: bars[k] if bars[k] is not None else zero(b, inits[k]) for k in moving}
            going = moving if carried else []
            starts = [
                *(final[k] for k in going),
                *(before[v] if before[v] is not None else zero(b, self.atom(v), adjoint(v.name)) for v in outside),
            ]

            def backward(k: Atom, *accs: Atom):
                i = b.prim("-", b.prim("-", count, Const(1, INT)), k) if carried else k
                self.here[op.index] = i
                for a in op.accs:
                    self.here[a] = b.get(at_start[a], i, hint=a.name, given=True)
                record = {v: b.get(saved[v], i, hint=v.name, given=v.given) for v in dear}
                _, inner_back = self.there(op.body, record, again=True)
                for a in op.accs:
                    self.bar.pop(a, None)
                self.bar.update(zip(outside, accs[len(going) :]))
                going_in = dict(zip(going, accs))
                for j in moving:
                    if j in extremes:
                        hit = b.prim("=", i, places[j])
                        self.contribute(extremes[j][1], b.select(hit, final[j], ZERO))  # type: ignore[index]
                    else:
                        self.contribute(op.body.results[j], going_in.get(j, final[j]))
                for r, y_bar in zip(op.body.results[width:], bars[width:]):
                    if y_bar is not None:
                        self.contribute(r, b.get(y_bar, i))
                inner_back()
                following = []
                for j in going:
                    found = self.bar.get(op.accs[j])
                    following.append(found if found is not None else zero(b, inits[j]))
                return [*following, *(self.bar[v] for v in outside)], ()

            names = [adjoint(op.accs[j].name) for j in going] + [adjoint(v.name) for v in outside]
            out = b.loop(count, starts, backward, names, "k" if carried else op.index.name, names)
            b.span = span
            for v in outside:
                self.bar.pop(v, None)
                if scale is not None and kept_bars[v] is not None:
                    self.bar[v] = kept_bars[v]  # type: ignore[assignment]
            self.scaled.update(held)
            for a in op.accs:
                self.bar.pop(a, None)
            for v, x in zip(outside, out[len(going) :]):
                if scale is not None:
                    self.contribute_scaled(v, factor, x)
                else:
                    self.bar[v] = x
            result_of = dict(zip(going, out))
            for j in moving:
                x = result_of.get(j, final[j])
                if j in extremes:
                    x = ZERO if first[j] else b.select(b.prim("<", places[j], Const(0, INT)), x, ZERO)
                if scale is None:
                    self.contribute(op.inits[j], x)
                elif type(op.inits[j]) is Var and self.is_active(op.inits[j]):
                    self.contribute_scaled(op.inits[j], factor, x)

        return back

    def common_factor(self, bind: Bind, width: int) -> tuple[Atom, int, Atom] | None:
        """Where factors are kept and one result alone of a loop has an adjoint: its factor, which result it is, and
        the adjoint without the factor."""
        if not self.factor or len(self.b.scopes) != self.top:
            return None
        having = [k for k, v in enumerate(bind.vars) if v in self.bar or v in self.scaled]
        if len(having) != 1:
            return None
        (k,) = having
        v = bind.vars[k]
        if v in self.scaled:
            factor, x = self.scaled.pop(v)
            self.bar[v] = x
            return factor, k, x
        if k < width and isinstance(v.type, Scalar) and self.bar[v] is not ONE:
            return self.bar[v], k, ONE
        return None


@dataclass(slots=True)
class Pair:
    """Forward results, and the backward code: a block on ``cotangents`` (by result) and ``starts``, the adjoints so
    far that it adds to; its results are the adjoints of the variables ``changed``."""

    results: tuple[Atom, ...]
    block: Block
    cotangents: dict[int, Var]
    starts: dict[Var, Var]
    changed: list[Var]


def is_threaded(v: Var) -> bool:
    """Whether an adjoint is handed into backward code and out again: an array, so that it is added to in place."""
    return isinstance(v.type, Arr)


def instantiate(b: Builder, pair: Pair, table: Mapping[Var, Atom]) -> dict[Var, Atom]:
    """Emit the backward code of a pair with actual values for its variables; the adjoints."""
    copy = Rebuild(b)
    copy.here.update(table)
    return dict(zip(pair.changed, copy.block(pair.block)))


def fitted(b: Builder, x: Atom, t: Any, depth: int) -> Atom:
    """An array whose sizes are known outside the scopes from ``depth`` on, where they stand in ``t``: a copy, should
    ``x`` say them with what is bound inside."""
    dims = type_atoms(type_of(x))
    if not any(d in scope.vars for d in dims if type(d) is Var for scope in b.scopes[depth:]):
        return x
    return b.build(t.dims[0], lambda i: fitted(b, b.get(x, i), t.item(), depth))


class Retyped(Rebuild):
    """Copies code that makes values of one data type as code for another, which has taken over its constructors."""

    def __init__(self, b: Builder, table: Mapping[Any, Data]) -> None:
        super().__init__(b)
        self.table = table

    def type(self, t: Any) -> Any:
        return super().type(self.table.get(t, t))


# -------------------------------------------------------------------------------- recursive functions


@dataclass(slots=True)
class Functions:
    """The two functions of reverse mode. ``there`` takes the arguments and gives the results and a record. ``back``
    takes the arguments ``needs``, the results ``sizes``, the record, the cotangents of ``results`` and the adjoints
    so far of the arrays among ``params``; it gives the adjoints of ``params``."""

    there: Function
    back: Function
    needs: list[int]
    sizes: list[int]
    results: list[int]
    params: list[int]


def there_and_back(b: Builder, f: Function, mask: tuple[bool, ...], kind: str = "record") -> Functions:
    """The functions of ``f`` for the active arguments ``mask``; ``kind``: "record", or "function" for closures.

    Which arguments the backward function needs shows when it is made, and it calls itself: so all is made again, from
    what was found, until nothing more is found.
    """
    key = ("pair", f, mask, kind)
    if key in b.memo:
        return b.memo[key]
    session = b.memo.get(("session",))
    if session is not None:
        return make_pair(b, key, session)
    while True:
        session = b.memo["session",] = Session()
        try:
            made = make_pair(b, key, session)
        finally:
            del b.memo["session",]
        if not session.changed:
            return made
        for k in session.made:
            del b.memo[k]


@dataclass(slots=True)
class Session:
    """The making of functions that may call each other."""

    made: list[tuple] = field(default_factory=list)
    changed: bool = False


def make_pair(b: Builder, key: tuple, session: Session) -> Functions:
    _, f, mask, kind = key
    through = reach_of(f, b.memo.setdefault(("reach",), {}))
    params = [k for k, p in enumerate(f.params) if mask[k] and differentiable(p.type)]
    bits = sum(1 << k for k in params)
    results = [k for k, r in enumerate(f.results) if through[k] & bits]
    needs: set[int] = b.memo.setdefault(("needs", *key), set())
    position = {p: k for k, p in enumerate(f.params)}
    for p in params:  # the sizes of the adjoints
        needs.update(position[d] for d in type_atoms(f.params[p].type) if d in position)
    dims = {d for k in results for d in type_atoms(f.results[k].type)}
    needs.update(position[d] for d in dims if d in position)
    sizes = [k for k, r in enumerate(f.results) if r in dims]
    data = Data(f"{f.name}-{kind}")
    table: dict[Atom, Atom] = {}
    there_params = copied(f.params, table)
    there = Function(f"{f.name}-there", there_params, (*copied(f.results, table), Var("record", data)), None, f.span)
    table = {}
    used = sorted(needs)
    back_params = copied([f.params[k] for k in used], table)
    back_sizes = copied([f.results[k] for k in sizes], table)
    record = Var("record", data)
    cotangents = {k: like(b, f.results[k], table, adjoint(f.results[k].name)) for k in results}
    starts = {k: like(b, f.params[k], table, adjoint(f.params[k].name)) for k in params if is_threaded(f.params[k])}
    adjoints = tuple(
        replace(like(b, f.params[k], table, adjoint(f.params[k].name)), soft=f.params[k].type == REAL) for k in params
    )
    taken = (*back_params, *back_sizes, record, *cotangents.values(), *starts.values())
    back = Function(f"{f.name}-back", taken, adjoints, None, f.span)
    b.memo[key] = made = Functions(there, back, used, sizes, results, params)
    session.made.append(key)

    block, span = prepared(b, f), b.span
    pass_ = Reverse(b, encoding="closure" if kind == "function" else "record")
    pass_.here.update(zip(f.params, there_params))
    pass_.active = activity(block, {f.params[k]: 1 for k in params}, pass_.reach)
    with b.function_scope(0) as scope:
        scope.vars.update(there_params)
        for p in there_params:
            b.note_sizes(p.type)  # type: ignore[arg-type]
        pair = pass_.pair(block, [f.params[k] for k in params], is_threaded)
        bound = pass_.forgotten(pair, scope, scope.vars.difference(there_params))
        fields, pair.block = cut(scope.binds, pair.block, bound)
        own = type_of(fields[0]) if len(fields) == 1 else None
        if own in pass_.records:  # all that is remembered is what the branches remember: theirs is the record
            for c in own.constructors:  # type: ignore[union-attr]
                c.data = data
            data.constructors, own.constructors = own.constructors, ()  # type: ignore[union-attr]
            args, kept = fields, fields[0]
        else:
            constructor, args = record_of(data, f.name, fields, kind)
            data.constructors = (constructor,)
            kept = b.make(constructor, args, "record")
    b.span = span
    forward = b.close(scope, (*pair.results, kept))

    def make_there() -> Sequence[Atom]:
        return Retyped(b, {own: data} if own in pass_.records else {}).block(forward)

    def make_back() -> Sequence[Atom]:
        known: dict[Var, Atom] = {there_params[k]: p for k, p in zip(used, back_params)}
        known.update((ct, cotangents[k]) for k, ct in pair.cotangents.items() if k in cotangents)
        known.update((pair.starts[f.params[k]], x) for k, x in starts.items())

        def emit() -> list[Atom]:
            found = instantiate(b, pair, known)
            out = []
            for k in params:
                p = f.params[k]
                out.append(found[p] if p in found else starts[k] if k in starts else zero(b, Var(p.name, p.type)))
            return [fitted(b, x, r.type, 1) for x, r in zip(out, adjoints)]

        if own in pass_.records:
            known[fields[0]] = record
            return emit()
        with b.arm(constructor) as (inside, values):
            known.update((v, x) for v, x in zip(args, values) if v not in known)
            out = emit()
        return b.case(record, [(constructor, values, inside, out)])

    seen = {v for v in free_vars(Block(pair.block.binds, pair.block.results))}
    wanted = {k for k, p in enumerate(there_params) if kind == "record" and (p in seen or p in args)}
    if not wanted <= needs:
        needs |= wanted
        session.changed = True
        there.body = back.body = Block((), ())
        return made
    fill_body(b, there, make_there)
    fill_body(b, back, make_back)
    return made


def costly(block: Block, active: dict[Var, int], least: int = COSTLY) -> list[Var]:
    """The scalars bound at the top of a block that cost more to compute than to remember."""
    found = []
    for bind in block.binds:
        if type(bind.op) is Prim and bind.op.name in PRIMITIVES and bind.vars[0].type == REAL:
            row = PRIMITIVES[bind.op.name]
            if row.cost >= least and bind.vars[0] in active:
                found.append(bind.vars[0])
    return found


def laborious(op: Loop, active: dict[Var, int]) -> list[Var]:
    """The sums in a loop's body, and the arrays of sums, of sizes that are known outside: each of their numbers takes
    a loop to compute. Arrays of costly numbers, too, where they take no more room than what the loop stacks anyway."""
    stacked = [type_atoms(type_of(r)) for r in op.body.results[len(op.accs) :]]
    bound = {op.index, *op.accs, *defined_in(op.body)}
    found = []
    for bind in op.body.binds:
        inner = bind.op
        if type(inner) is Loop:
            loops = any(type(b.op) is Loop for b in inner.body.binds)
            dear = bool(costly(inner.body, active))
            for v in bind.vars:
                dims = v.type.dims if isinstance(v.type, Arr) else ()
                real = (v.type.elem if isinstance(v.type, Arr) else v.type) == REAL
                worth = loops or not dims or dear and dims in stacked
                if real and v in active and worth and not any(d in bound for d in dims):
                    found.append(v)
    return found
