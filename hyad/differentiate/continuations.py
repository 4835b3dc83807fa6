"""Reverse mode with dynamic continuations (Lantern Figs. 10 to 12 and 14, closure converted).

    ∂(let y = (f x) in r) k  =  x̄, e = (f-cps x (fn [y] [there and back of r, which calls k; ȳ and the rest's x̄]))

The forward code goes on inside the call: what comes after a call of a recursive function is handed to it as a
continuation. That runs the rest of the program, forward and backward, and gives back the cotangents of the results.
So nothing is remembered: a value that backward code reads is still in scope when the call returns, and the stack is
the tape. Backward code stands after the calls, as in straight-line code, which is all that ``reverse`` needs to know.

The continuations are closures, converted to data: for each function a type with a constructor for each place where it
is called, which holds what the rest of the code there has captured, and a function that applies it. They are only
handed down, never given back, so that C has them on its stack. What a continuation adds to the adjoints of the
variables that it has captured travels back in a second type, again with a constructor for each place: Lantern adds to
references instead.

Where it matters to nobody but the reader, loops are what they are in the record encoding: those that count and call
nothing, and those that carry or stack arrays (as would everything that is called there). Another loop is a recursive
function, and a branch with calls in it hands the rest of the code to each of its sides as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core import (
    BOOL,
    INT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    Constructor,
    Data,
    Function,
    If,
    Loop,
    Prim,
    Var,
    While,
    blocks_of,
    free_vars,
    type_atoms,
    type_of,
)
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.names import adjoint
from ..program.rebuild import Rebuild
from .activity import activity, differentiable, reach_of
from .adjoints import copied, fill_body, is_linear, like, prepared, zero
from .backpropagators import fitted
from .left_out import LeftOut
from .records import record_of
from .reverse import Reverse

Ups = list[Atom]  # what the innermost code gives, beside adjoints
Last = Callable[[Sequence[Atom]], Ups]  # the hole: from the results, there and back


def vjp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    cotangents: Callable[[Sequence[Atom]], Sequence[Atom | None]],
    wrt: Sequence[Var],
    factor: bool = False,
) -> tuple[tuple[Atom, ...], list[Atom]]:
    """``reverse.vjp`` in this encoding."""
    made: dict[tuple, Passing] = {}
    pass_ = Continued(b, made, factor)
    pass_.here.update(here)
    pass_.active = activity(block, {v: 1 for v in wrt}, pass_.reach)
    pass_.left_out = LeftOut(block, pass_.active)

    def last(results: Sequence[Atom]) -> Ups:
        emitted = pass_.atoms(results)
        for r, ct in zip(results, cotangents(emitted)):
            if ct is not None:
                pass_.contribute(r, ct)
        return list(emitted)

    results = pass_.through(block.binds, block.results, last)
    adjoints = []
    for v in wrt:
        pass_.settle(v)
        found = pass_.bar.get(v)
        adjoints.append(found if found is not None else zero(b, pass_.atom(v)))
    for c in made.values():
        c.finish(b)
    return tuple(results), adjoints


@dataclass(slots=True)
class Rest:
    """The code after a binding, as a block on its results ``ys``: it gives their cotangents, ``count`` of them, and
    ``items``. These are what else leaves it, as variables of its own: among them the adjoints ``outs`` of variables
    outside of it, and ``ups``. ``reads`` is what it needs from outside, sizes first."""

    ys: tuple[Var, ...]
    block: Block
    count: int
    items: list[Var]
    outs: dict[Var, Atom]
    ups: Ups
    reads: list[Var]


@dataclass(slots=True)
class Site:
    """A place where a function is called: the continuation's constructor and what it captures, the rest of the code,
    the sizes of its parameters there, the constructor of what it gives and the function that takes that apart."""

    constructor: Constructor
    captured: list[Var]
    rest: Rest
    sizes: list[Atom]
    given: Constructor
    given_sizes: list[Var]
    opened: Function | None = None


@dataclass(slots=True)
class Passing:
    """A function in continuation passing style: ``there`` takes its arguments and a continuation, and gives the
    adjoints of ``params`` and what the continuation gave; ``apply`` applies that to the arguments ``needs`` (sizes)
    and the function's results, and gives the cotangents of ``results`` and the rest."""

    there: Function
    apply: Function
    params: list[int]
    results: list[int]
    needs: list[int]
    sites: list[Site] = field(default_factory=list)

    @property
    def continuation(self) -> Data:
        return self.there.params[-1].type  # type: ignore[return-value]

    @property
    def given(self) -> Data:
        return self.there.results[-1].type  # type: ignore[return-value]

    def finish(self, b: Builder) -> None:
        """Make the functions that look at continuations, when all places are known that make one."""
        k, *taken = self.apply.params
        sizes, ys = taken[: len(self.needs)], taken[len(self.needs) :]

        def body() -> Sequence[Atom]:
            arms = []
            for site in self.sites:
                with b.arm(site.constructor) as (scope, fields):
                    copy = Rebuild(b)
                    copy.here.update(zip(site.captured, fields))
                    copy.here.update((a, s) for a, s in zip(site.sizes, sizes) if type(a) is Var)
                    copy.here.update(zip(site.rest.ys, ys))
                    out = copy.block(site.rest.block)
                    cts = [fitted(b, x, r.type, 1) for x, r in zip(out[: site.rest.count], self.apply.results)]
                    items = [*copy.atoms(site.given_sizes), *out[site.rest.count :]]
                    results = [*cts, b.make(site.given, items, "given")]
                arms.append((site.constructor, fields, scope, results))
            return b.case(k, arms)

        fill_body(b, self.apply, body)
        for site in self.sites:
            if site.opened is not None:
                fill_body(b, site.opened, lambda site=site: self.open(b, site))  # type: ignore[misc]

    def open(self, b: Builder, site: Site) -> Sequence[Atom]:
        assert site.opened is not None
        arms = []
        for c in self.given.constructors:
            with b.arm(c) as (scope, fields):
                if c is site.given:
                    parts = fields[len(site.given_sizes) :]
                    out = [fitted(b, x, r.type, 1) for x, r in zip(parts, site.opened.results)]
                else:
                    out = [b.undef(r.type) for r in site.opened.results]  # type: ignore[arg-type]
            arms.append((c, fields, scope, out))
        return b.case(site.opened.params[0], arms, [r.name for r in site.opened.results])


class Continued(Reverse):
    """Reverse mode whose calls take the rest of the code with them. No adjoint is known before the innermost code has
    run: wherever forward code is emitted ``bar`` is empty."""

    def __init__(self, builder: Builder, made: dict[tuple, Passing], factor: bool = False) -> None:
        super().__init__(builder, factor)
        self.made = made
        self.own: Passing | None = None  # the function that is being made
        self.k: Var | None = None  # its continuation
        self.last: Last | None = None  # and what hands its results to that
        self.loops: set[Function] = set()
        self.passing: dict[Bind, bool] = {}

    def passes(self, bind: Bind) -> bool:
        """Whether a binding is handed the code after it."""
        found = self.passing.get(bind)
        if found is None:
            op, width = bind.op, len(bind.vars)
            if not any(self.is_active(v) for v in bind.vars):
                found = False
            elif type(op) is Apply:
                found = not is_linear(self.b, op.function)
            elif type(op) in (Loop, While) and any(isinstance(a.type, Arr) for a in op.accs):  # type: ignore[union-attr]
                found = False
            elif type(op) is While:
                found = width == len(op.accs) + 1
            elif type(op) is Loop and width > len(op.accs):
                found = False
            else:
                found = any(self.passes(inner) for block in blocks_of(op) for inner in block.binds)
            self.passing[bind] = found
        return found

    def through(self, binds: Sequence[Bind], results: Sequence[Atom], last: Last) -> Ups:
        """Emit bindings there, then what is ``last``, then the bindings back."""
        outer, self.backs = self.backs, []
        soft = self.b.soft
        ups: Ups | None = None
        for n, bind in enumerate(binds):
            self.b.span, self.b.soft = bind.span, bind.soft
            if not self.passes(bind):
                self.bind(bind)
                continue
            after = tuple(binds[n + 1 :])
            end = not after and bind.vars == results  # nothing but what is last comes after it

            def rest(after: tuple[Bind, ...] = after) -> Ups:
                return self.through(after, results, last)

            if type(bind.op) in (If, Case):
                ups = self.choice(bind.op, bind, rest, last if end and self.own is not None else None)  # type: ignore
            elif type(bind.op) is Apply:
                mask = tuple(self.is_active(a) for a in bind.op.args)
                ups = self.call(bind.op, bind, mask, rest, end and last is self.last)
            else:
                op, variables, mask = self.recursion(bind.op, bind)  # type: ignore[arg-type]
                ups = self.call(op, Bind(variables, op, bind.span), mask, rest, False)
            break
        with self.b.differentiating():
            if ups is None:
                ups = last(results)
            backs, self.backs = self.backs, outer
            for emit in reversed(backs):
                emit()
        self.b.soft = soft
        return ups

    # ------------------------------------------------------------------------------------ what comes after

    def rest(self, bind: Bind, ys: tuple[Var, ...], active: Sequence[int], rest: Callable[[], Ups]) -> Rest:
        """The code after a binding, in which its results are ``ys``; those at ``active`` have cotangents."""
        b, known, span = self.b, set(self.here), self.b.span
        assert not self.bar, "an adjoint before the innermost code"
        depth = len(b.scopes)
        with b.region() as scope:
            scope.vars.update(ys)
            for y in ys:
                b.note_sizes(y.type)  # type: ignore[arg-type]
            self.define(bind, ys)
            ups = rest()
            cts = [self.or_zero(self.take(bind.vars[k]), bind.vars[k]) for k in active]
            outs = {v: fitted(b, self.take(v), type_of(self.atom(v)), depth) for v in list(self.bar) if v in known}  # type: ignore
            self.bar = {}
        moved = dict.fromkeys(x for x in (*outs.values(), *ups) if type(x) is Var and x in scope.vars)
        items = sorted(moved, key=lambda v: v.type != INT)
        block = tidy(b.close(scope, (*cts, *items)))
        b.span = span
        free = {**dict.fromkeys(d for v in (*ys, *items) for d in type_atoms(v.type)), **free_vars(block)}
        sizes = dict.fromkeys(d for v in free if type(v) is Var for d in type_atoms(v.type))
        reads = dict.fromkeys(v for v in (*sizes, *free) if type(v) is Var and v not in ys)
        return Rest(ys, block, len(cts), items, outs, ups, sorted(reads, key=lambda v: v.type != INT))

    def receive_rest(self, rest: Rest, items: Sequence[Atom]) -> Ups:
        """What left the code after a binding, outside of it."""
        table: dict[Atom, Atom] = dict(zip(rest.items, items))
        for v, x in rest.outs.items():
            self.contribute(v, table.get(x, x))
        return [table.get(x, x) for x in rest.ups]

    # y = (f x); r  =>  x̄, e = (f-cps x (K captured));  captured̄ += e
    def call(self, op: Apply, bind: Bind, mask: tuple[bool, ...], rest: Callable[[], Ups], end: bool) -> Ups:
        b, f = self.b, op.function
        c = self.continued(f, mask)
        args = self.atoms(op.args)
        site = None
        if end and c is self.own:  # a last call has its caller's continuation
            k = self.k
        else:
            table: dict[Atom, Atom] = dict(zip(f.params, args))
            ys = copied(f.results, table)
            site = self.site(c, self.rest(bind, ys, c.results, rest), [args[j] for j in c.needs])
            k = b.make(site.constructor, site.captured, "k")
        out = b.apply(c.there, [*args, k], [*(adjoint(str(op.args[j])) for j in c.params), "given"])
        if site is None:
            ups = [out[-1]]
        else:
            items: Sequence[Atom] = ()
            if site.opened is not None:
                items = b.apply(site.opened, [out[-1], *site.given_sizes], [v.name for v in site.rest.items])
            ups = self.receive_rest(site.rest, items)
        for j, x in zip(c.params, out):
            self.contribute(op.args[j], x)
        return ups

    def site(self, c: Passing, rest: Rest, sizes: list[Atom]) -> Site:
        """Enter a place where a function is called into its types."""
        name = str(len(c.sites) + 1)
        made, captured = record_of(c.continuation, f"then-{name}", rest.reads, "continuation")
        c.continuation.constructors += (made,)
        given, parts = record_of(c.given, f"given-{name}", rest.items)
        c.given.constructors += (given,)
        site = Site(made, captured, rest, sizes, given, parts[: len(parts) - len(rest.items)])
        if rest.items:
            table: dict[Atom, Atom] = {}
            params = (Var("given", c.given), *copied(site.given_sizes, table))
            site.opened = Function(f"open-{c.given.name}", params, copied(rest.items, table), None, self.b.span)
        c.sites.append(site)
        return site

    # y = (if c e f); r  =>  J = (fn [y] r);  (if c [e there, J, e back] [f there, J, f back])
    def choice(self, op: If | Case, bind: Bind, rest: Callable[[], Ups], last: Last | None) -> Ups:
        """A branch: the code after it is a function that both sides call; or only what is ``last``."""
        b, span, blocks = self.b, bind.span, blocks_of(op)
        value = self.atom(op.cond if type(op) is If else op.value)  # type: ignore[union-attr]
        certain = self.certain(op, value)
        if certain is not None:
            return self.straight(op, bind, certain, rest)
        if last is None:
            table: dict[Atom, Atom] = dict(self.here)
            ys = copied(bind.vars, table)
            active = [k for k, v in enumerate(bind.vars) if self.is_active(v)]
            after = self.rest(bind, ys, active, rest)
            join = self.function(after, [adjoint(bind.vars[k].name) for k in active])

            def last(results: Sequence[Atom]) -> Ups:
                out = b.apply(join, [*after.reads, *self.atoms(results)])
                for k, x in zip(active, out):
                    self.contribute(results[k], x)
                return self.receive_rest(after, out[len(active) :])

        known, regions, found = set(self.here), [], []
        for k, block in enumerate(blocks):
            with self.region(op, k) as (scope, fields):
                ups = self.through(block.binds, block.results, last)
                self.give_back(op, k)
                bars = {v: self.take(v) for v in list(self.bar) if v in known}
                self.bar = {}
            regions.append((fields, scope, ups))
            found.append(bars)
        changed = list(dict.fromkeys(v for bars in found for v in bars))
        depth, whole = len(b.scopes), []
        for (fields, scope, ups), bars in zip(regions, found):
            with b.region(scope):
                out = [bars[v] if v in bars else zero(b, self.atom(v)) for v in changed]
                out = [fitted(b, x, type_of(self.atom(v)), depth) for v, x in zip(changed, out)]  # type: ignore[arg-type]
            whole.append((fields, scope, [*ups, *out]))
        b.span = span
        count = len(regions[0][2])
        made = self.join(op, value, whole, [*["t"] * count, *(adjoint(v.name) for v in changed)])
        for v, x in zip(changed, made[count:]):
            self.contribute(v, x)
        return list(made[:count])

    def certain(self, op: If | Case, value: Atom) -> int | None:
        """The side of a branch that is taken, where that is known."""
        if self.b.plain:
            return None
        if type(op) is If:
            return (0 if value.value else 1) if type(value) is Const else None
        known = self.b.made.get(value) if type(value) is Var else None
        return known.constructor.tag if known is not None else None

    def straight(self, op: If | Case, bind: Bind, k: int, rest: Callable[[], Ups]) -> Ups:
        """A branch one side of which is certain."""
        if type(op) is Case:
            self.here.update(zip(op.arms[k].fields, self.b.made[self.atom(op.value)].args))  # type: ignore[index]
        block = blocks_of(op)[k]

        def last(results: Sequence[Atom]) -> Ups:
            self.define(bind, self.atoms(results))
            ups = rest()
            for v, r in zip(bind.vars, results):
                bar = self.take(v)
                if bar is not None:
                    self.contribute(r, bar)
            return ups

        ups = self.through(block.binds, block.results, last)
        self.give_back(op, k)
        return ups

    def function(self, rest: Rest, names: Sequence[str]) -> Function:
        """The code after a binding as a function of what it reads and of the binding's results."""
        b, table = self.b, {}
        params = copied([*rest.reads, *rest.ys], table)
        results = []
        for k, r in enumerate(rest.block.results):
            t = type_of(r)
            t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
            results.append(Var(names[k] if k < len(names) else str(r), t))
        made = Function("join", params, tuple(results), None, b.span)

        def body() -> Sequence[Atom]:
            copy = Rebuild(b)
            copy.here.update(table)  # type: ignore[arg-type]
            return copy.block(rest.block)

        fill_body(b, made, body)
        return made

    # (loop n f z), (while c f z)  =>  (go 0 z), with (go i s) = (if c (go (+ i 1) (f s)) s)
    def recursion(self, op: Loop | While, bind: Bind) -> tuple[Apply, tuple[Var, ...], tuple[bool, ...]]:
        """A loop as a call of a recursive function: the call, the variables of its results, and which arguments are
        active in some iteration. (It is there to be transformed only, so it has the loop's own variables.)"""
        counted = type(op) is Loop
        index = op.index if counted else Var("count", INT)  # type: ignore[union-attr]
        following = Var(index.name, INT)
        test = Var("t", BOOL)
        first: tuple[Bind, ...]
        if counted:
            first = (Bind((test,), Prim("<", (index, op.count)), bind.span),)  # type: ignore[union-attr]
        else:
            first, test = op.cond.binds, op.cond.results[0]  # type: ignore[union-attr, assignment]
        free = {**free_vars(Block(first, (test,))), **free_vars(op.body)}
        sizes = dict.fromkeys(d for v in (*free, *op.accs) for d in type_atoms(v.type) if type(d) is Var)
        own = {index, test, *op.accs, *(v for b in first for v in b.vars)}
        captured = sorted((v for v in {**sizes, **free} if v not in own), key=lambda v: v.type != INT)
        results = tuple(Var(a.name, a.type) for a in op.accs) + (() if counted else (Var("count", INT),))
        go = Function("go", (*captured, index, *op.accs), results, None, bind.span)
        again, out = (tuple(Var(r.name, r.type) for r in results) for _ in range(2))
        step = Bind((following,), Prim("+", (index, Const(1, INT))), bind.span)
        call = Bind(again, Apply(go, (*captured, following, *op.body.results)), bind.span)
        end = (*op.accs, *(() if counted else (index,)))
        branch = If(test, Block((*op.body.binds, step, call), again), Block((), end))
        go.body = Block((*first, Bind(out, branch, bind.span)), out)
        mask = (*(self.is_active(v) for v in captured), False, *(self.is_active(a) for a in op.accs))
        self.loops.add(go)
        return Apply(go, (*captured, Const(0, INT), *op.inits)), bind.vars, mask

    # ---------------------------------------------------------------------------------------- functions

    def continued(self, f: Function, mask: tuple[bool, ...]) -> Passing:
        """``f`` in continuation passing style, for the active arguments ``mask``."""
        b, key = self.b, (f, mask)
        if key in self.made:
            return self.made[key]
        through = reach_of(f, self.reach)
        params = [k for k, p in enumerate(f.params) if mask[k] and differentiable(p.type)]
        bits = sum(1 << k for k in params)
        results = [k for k, r in enumerate(f.results) if through[k] & bits]
        position = {p: k for k, p in enumerate(f.params)}
        needs = sorted({position[d] for r in f.results for d in type_atoms(r.type) if d in position})
        continuation, given = Data(f"{f.name}-continuation"), Data(f"{f.name}-given")
        table: dict[Atom, Atom] = {}
        own = copied(f.params, table)
        k = Var("k", continuation)
        adjoints = tuple(like(b, f.params[j], table, adjoint(f.params[j].name)) for j in params)
        there = Function(f"{f.name}-cps", (*own, k), (*adjoints, Var("given", given)), None, f.span)
        table = {}
        taken = (*copied([f.params[j] for j in needs], table), *copied(f.results, table))
        cotangents = tuple(like(b, f.results[j], table, adjoint(f.results[j].name)) for j in results)
        name = f"continue-{f.name}"
        apply = Function(name, (Var("k", continuation), *taken), (*cotangents, Var("given", given)), None, f.span)
        made = self.made[key] = Passing(there, apply, params, results, needs)

        inner = Continued(b, self.made)
        inner.own, inner.k, inner.loops = made, k, self.loops
        block = f.body if f in self.loops else prepared(b, f, loops=False)
        inner.here.update(zip(f.params, own))
        inner.active = activity(block, {f.params[j]: 1 for j in params}, inner.reach)  # type: ignore[arg-type]
        inner.left_out = LeftOut(block, inner.active, called=True)

        def last(emitted: Sequence[Atom]) -> Ups:
            out = b.apply(apply, [k, *(own[j] for j in needs), *inner.atoms(emitted)])
            for j, x in zip(results, out):
                inner.contribute(emitted[j], x)
            return [out[-1]]

        inner.last = last

        def body() -> Sequence[Atom]:
            (e,) = inner.through(block.binds, block.results, last)  # type: ignore[union-attr]
            out = [inner.take(f.params[j]) for j in params]
            out = [x if x is not None else zero(b, own[j]) for x, j in zip(out, params)]
            return [*(fitted(b, x, r.type, 1) for x, r in zip(out, adjoints)), e]  # type: ignore[arg-type]

        fill_body(b, there, body)
        return made
