"""Passes over the functions of a program: recursion that is a loop, functions that need not be, unused parts.

These see the whole program at once; the other passes run on each function by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import (
    FALSE,
    REAL,
    TRUE,
    ZERO,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    each_function,
    free_vars,
    functions_of,
    is_zero,
    retarget,
    size,
    substitute,
    type_atoms,
    uses,
    with_blocks,
)
from ..errors import Span
from ..program.builder import Builder
from ..program.dead import dead_code, effects, tidy
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from .shrinking import of_one_length

INLINE = 24  # up to so many bindings a function that is not recursive is written out wherever it is called
COPIED = 400  # a longer one where all of its copies but the first add no more bindings than this
ZERO_CONSTRUCTOR = "zero"  # what ``Constructor.make`` says of the first constructor of a tangent type (``adjoints``)
CHEAP = 8  # in additions: up to this cost the condition of a loop is computed again in its body

# ----------------------------------------------------------------------------------------- tail calls


def tail_calls(program: Program) -> Program:
    """Turns tail recursion into loops: ``(f x)`` = ``(if c e (f x'))``  =>  ``(while (not c) ..)``.

    Design decision: before differentiation too (``adjoints.prepared``). The derivative of a loop needs no stack, and
    remembers in arrays.
    """

    bodies = {f: loop_of(f) for f in functions_of(program.body)}
    if not any(bodies.values()):
        return program
    made = {f: Function(f.name, f.params, f.results, None, f.span) for f in bodies}
    for f, new in made.items():
        new.body = retarget(bodies[f] or f.body, made)  # type: ignore[arg-type]
    return replace(program, body=retarget(program.body, made))


def tail_block(block: Block, f: Function) -> bool:
    """Whether ``f`` is called in a block, and only as the last thing that it does."""
    last = block.binds[-1] if block.binds else None
    if any(type(bind.op) is Apply and bind.op.function is f for bind in all_binds(Block(block.binds[:-1], ()))):
        return False
    if last is None or last.vars != block.results:
        return last is not None and not calls_it(last, f)
    if type(last.op) in (If, Case):
        return all(tail_block(inner, f) or not calls_it_block(inner, f) for inner in blocks_of(last.op))
    return type(last.op) is Apply or not calls_it(last, f)


def calls_it(bind: Bind, f: Function) -> bool:
    return calls_it_block(Block((bind,), ()), f)


def calls_it_block(block: Block, f: Function) -> bool:
    return any(type(bind.op) is Apply and bind.op.function is f for bind in all_binds(block))


def loop_of(f: Function, body: Block | None = None, rules: Mapping[str, Any] | None = None) -> Block | None:
    """The body of a function as a loop, if it calls itself, and only last; None where it does not. ``rules``: those of
    the values in it that have derivatives of their own."""
    body = body or f.body
    assert body is not None
    if not calls_it_block(body, f) or not tail_block(body, f):
        return None
    calls = [bind.op for bind in all_binds(body) if type(bind.op) is Apply]
    others = [g for op in calls if (g := op.function) is not f]
    if any(g.body is None or f in functions_of(g.body) for g in others):
        return None
    sizes = {d for v in (*f.params, *f.results) for d in type_atoms(v.type) if type(d) is Var}
    position = {p: k for k, p in enumerate(f.params)}
    if any(d not in position for d in sizes):  # a size that is a result
        return None
    if any(op.args[position[d]] is not d for op in calls if op.function is f for d in sizes):  # one that changes
        shorter = of_one_length(f, rules or {}) if body is f.body else None
        loop = shorter and loop_of(shorter[0], None, rules)
        return substitute(loop, shorter[1]) if loop else None  # type: ignore[index]
    kept = [all(op.args[k] is p for op in calls if op.function is f) for k, p in enumerate(f.params)]
    b = Builder()
    b.rules.update(rules or {})
    b.sizes.update(sizes)

    def with_kept(before: Sequence[Atom], after: Sequence[Atom]) -> list[Atom]:
        """What no call changes stays the same variable, a size above all: a result may have it."""
        return [x if same else y for same, x, y in zip(kept, before, after)] + list(after[len(kept) :])

    def types(accs: Sequence[Atom]) -> list[Atom]:
        table = dict(zip(f.params, accs))
        found = []
        for r in f.results:
            t = r.type
            t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t  # type: ignore
            found.append(b.undef(t))  # type: ignore[arg-type]
        return found

    def walk(accs: Sequence[Atom], call: Callable, done: Callable, goes: bool | None = None) -> Sequence[Atom]:
        pass_ = TailCalls(b, f, call, done, goes)
        pass_.here.update(zip(f.params, accs))
        return pass_.walk(body)  # type: ignore[arg-type]

    def going(*accs: Atom) -> Atom:
        return walk(accs, lambda args: [TRUE], lambda results: [FALSE])[0]

    with b.region() as scope:
        test = going(*f.params)
    names = [p.name for p in f.params]
    if cost(tidy(b.close(scope, (test,)))) < CHEAP:

        def next_of(*accs: Atom):
            return with_kept(accs, walk(accs, list, lambda results: accs, True)), ()

        accs = b.while_(f.params, going, next_of, names, names)
        out = walk(accs[: len(f.params)], lambda args: types(accs), list, False)
    else:
        width = len(f.params)

        def body_of(*accs: Atom):
            here, before = accs[:width], accs[width + 1 :]
            after = walk(here, lambda args: [*args, TRUE, *before], lambda results: [*here, FALSE, *results])
            return with_kept(here, after), ()

        inits = [*f.params, TRUE, *types(f.params)]
        every = [*names, "going", *(r.name for r in f.results)]
        accs = b.while_(inits, lambda *accs: accs[width], body_of, every, every)
        out = accs[width + 1 : width + 1 + len(f.results)]
    return tidy(Block(b.block(), tuple(out)))


def cost(block: Block) -> int:
    """What a block of scalar operations and branches costs; much where there is anything else."""
    total = 0
    for bind in all_binds(block):
        op = bind.op
        if type(op) is Prim:
            total += PRIMITIVES[op.name].cost if op.name in PRIMITIVES else 1
        elif type(op) not in (If, Case):
            total += CHEAP
    return total


class TailCalls(Rebuild):
    """Copies the body of a function: ``call`` gives the results for the arguments of a last call of itself, ``done``
    those for its results. ``goes``: it is known that there is a call, or that there is none."""

    def __init__(self, b: Builder, function: Function, call: Callable, done: Callable, goes: bool | None) -> None:
        super().__init__(b)
        self.function, self.call, self.done, self.goes = function, call, done, goes

    def walk(self, block: Block) -> Sequence[Atom]:
        last = block.binds[-1] if block.binds else None
        if last is None or not calls_it(last, self.function):
            return self.done(self.block(block))
        self.block(Block(block.binds[:-1], ()))
        op, b = last.op, self.b
        if type(op) is Apply:
            return self.call(self.atoms(op.args))
        if type(op) is If:
            cond, regions = self.atom(op.cond), []
            for inner, other, holds in ((op.then, op.orelse, True), (op.orelse, op.then, False)):
                if self.goes is not None and self.ends(other) == {not self.goes}:  # then this branch is taken
                    b.scopes[-1].facts.extend(b.facts_of(cond, holds))
                    return self.walk(inner)
            for inner, holds in ((op.then, True), (op.orelse, False)):
                with b.branch_region(cond, holds) as scope:
                    results = self.walk(inner)
                regions.append((scope, results))
            if [results for _, results in regions] == [[TRUE], [FALSE]]:
                return [cond]
            if [results for _, results in regions] == [[FALSE], [TRUE]]:
                return [b.prim("not", cond)]
            return b.if_(cond, *regions)
        assert type(op) is Case
        arms = []
        for arm in op.arms:
            with b.arm(arm.constructor) as (scope, fields):  # type: ignore[arg-type]
                self.here.update(zip(arm.fields, fields))
                results = self.walk(arm.block)
            arms.append((arm.constructor, fields, scope, results))
        return b.case(self.atom(op.value), arms)  # type: ignore[arg-type]

    def ends(self, block: Block) -> set[bool]:
        """How a block can end: with a call (True), without one (False)."""
        last = block.binds[-1] if block.binds else None
        if last is None or not calls_it(last, self.function):
            return {False}
        return {True} if type(last.op) is Apply else set().union(*map(self.ends, blocks_of(last.op)))


# ------------------------------------------------------------------------------------------- inlining


class Inline(Rebuild):
    """Writes functions out where they are called."""

    def __init__(self, builder: Builder, functions: set[Function]) -> None:
        super().__init__(builder)
        self.functions = functions

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Apply and op.function in self.functions:
            self.here.update(zip(op.function.params, self.atoms(op.args)))
            self.define(bind, self.block(op.function.body))  # type: ignore[arg-type]
        else:
            self.copy(bind)


def applies(f: Function) -> bool:
    """Whether a function applies closures: these are there to be read."""
    kinds = [c.make for p in f.params if isinstance(p.type, Data) for c in p.type.constructors]
    return "function" in kinds


def inline(program: Program) -> Program:
    """Inlines functions that are not recursive, if that makes the program little longer.

    ``(f-back (f-there x) 1)``  =>  the gradient in one block: what was a record is variables again. What is called
    like one that calls itself, and does not, as a derivative's function inside another derivative's, is one of them.
    """
    chosen = short(program.body)
    if not chosen:
        return program

    def transform(p: Program) -> Program:
        b = Builder()
        b.sizes.update(p.dims)
        results = Inline(b, chosen).block(p.body)
        return replace(p, body=Block(b.block(), results))

    return each_function(program, transform)


def inline_block(b: Builder, block: Block) -> Block:
    """``inline`` for a block under construction."""
    chosen = short(block) if "inline" not in b.off else set()
    if not chosen:
        return block
    return tidy(Inline(b, chosen).remade(block))


def short(block: Block) -> set[Function]:
    """The functions that ``inline`` writes out: called once, or short, or of few calls."""
    functions = functions_of(block)
    if any(f.body is None for f in functions):  # it is still being made
        return set()
    counts: dict[Function, int] = {}
    for body in (block, *(f.body for f in functions)):
        for bind in all_binds(body):  # type: ignore[arg-type]
            if type(bind.op) is Apply:
                counts[bind.op.function] = counts.get(bind.op.function, 0) + 1

    def wanted(f: Function) -> bool:
        length = size(f.body)  # type: ignore[arg-type]
        return length <= INLINE or (counts[f] - 1) * length <= COPIED

    return {f for f in functions if wanted(f) and f not in functions_of(f.body) and not applies(f)}  # type: ignore


# ------------------------------------------------------------------------------------- calls of calls


class Fused(Rebuild):
    """Copies the body of ``inner`` as that of ``made``, which gives ``outer(x, y)`` in place of its result ``y``,
    number ``k``; ``x`` is its parameter number ``p``.

    What ``outer`` does to that result is done where the result is made: there its constructors are known. In a call
    of ``inner`` by itself ``y`` is a variable without a value, which only a call of ``outer`` may read.
    """

    def __init__(self, b: Builder, outer: Function, inner: Function, made: Function, k: int, p: int) -> None:
        super().__init__(b)
        self.outer, self.inner, self.made, self.k, self.p = outer, inner, made, k, p
        self.waiting: dict[Var, tuple[Atom, Atom]] = {}  # a result of inner: what outer makes of it, and its x

    def bind(self, bind: Bind) -> None:
        op, b = bind.op, self.b
        if type(op) is Apply and op.function is self.inner:
            args = self.atoms(op.args)
            out: list[Atom] = list(b.apply(self.made, args, [v.name for v in bind.vars]))
            missing = Var(bind.vars[self.k].name, bind.vars[self.k].type)
            self.waiting[missing] = out[self.k], args[self.p]
            out[self.k] = missing
            self.define(bind, out)
        elif type(op) is Apply and op.function is self.outer:
            x, y = self.atoms(op.args)
            found, at = self.waiting.get(y, (None, None))  # type: ignore[arg-type]
            if found is not None and at is x:
                self.define(bind, [found])
            else:
                self.copy(bind)
        else:
            self.copy(bind)

    def walk(self, block: Block, k: int) -> list[Atom]:
        """The results of a block, the one numbered ``k`` with ``outer`` applied."""
        b, last = self.b, block.binds[-1] if block.binds else None
        inside = last is not None and type(last.op) in (If, Case) and block.results[k] in last.vars
        if not inside or block.results.count(block.results[k]) > 1:
            results = list(self.block(block))
            known = b.definitions.get(results[k])  # type: ignore[arg-type]
            if known is not None and known.name == "undef":
                results[k] = b.undef(self.outer.results[0].type)  # type: ignore[arg-type]
                return results
            self.here.update(zip(self.outer.params, (self.here[self.inner.params[self.p]], results[k])))
            (results[k],) = self.block(self.outer.body)  # type: ignore[arg-type]
            return results
        assert last is not None
        self.block(Block(block.binds[:-1], ()))
        op, j = last.op, last.vars.index(block.results[k])  # type: ignore[arg-type]
        names = [v.name for v in last.vars]
        if type(op) is If:
            cond, regions = self.atom(op.cond), []
            for inner, holds in ((op.then, True), (op.orelse, False)):
                with b.branch_region(cond, holds) as scope:
                    results = self.walk(inner, j)
                regions.append((scope, results))
            self.define(last, b.if_(cond, *regions, names))
        else:
            value, arms = self.atom(op.value), []  # type: ignore[union-attr]
            for arm in op.arms:  # type: ignore[union-attr]
                with b.arm(arm.constructor) as (scope, fields):
                    self.here.update(zip(arm.fields, fields))
                    before = b.made.get(value)  # type: ignore[arg-type]
                    b.made[value] = Make(arm.constructor, fields)  # type: ignore[index]
                    results = self.walk(arm.block, j)
                    if before is None:
                        del b.made[value]  # type: ignore[arg-type]
                    else:
                        b.made[value] = before  # type: ignore[index]
                arms.append((arm.constructor, fields, scope, results))
            self.define(last, b.case(value, arms, names))
        return list(self.atoms(block.results))


def fuse_calls(program: Program) -> Program:
    """Fuses two recursive functions, one of which reads what the other makes: ``(outer x (inner .. x ..))``  =>
    ``(both .. x ..)``.

    The adjoint of a tree and the tree of zeros that it fills are one: what a gradient gives back is made at once.
    """
    functions = functions_of(program.body)
    made: dict[tuple, Function | None] = {}

    def both(outer: Function, inner: Function, k: int, p: int) -> Function | None:
        key = (outer, inner, k, p)
        if key not in made:
            made[key] = fused(outer, inner, k, p)
        return made[key]

    def block(b: Block) -> Block:
        counts = uses(b)
        producers = {
            v: (j, k) for j, bind in enumerate(b.binds) if type(bind.op) is Apply for k, v in enumerate(bind.vars)
        }
        binds: list[Bind | None] = list(b.binds)
        for j, bind in enumerate(b.binds):
            op = bind.op
            if type(op) is Apply and len(op.args) == 2 and len(bind.vars) == 1:
                x, y = op.args
                at = producers.get(y)  # type: ignore[arg-type]
                if at is None or counts.get(y) != 1 or x not in b.binds[at[0]].op.args:  # type: ignore[union-attr]
                    continue
                call = binds[at[0]]
                if call is None or call.op.function is op.function:  # type: ignore[union-attr]
                    continue
                p = call.op.args.index(x)  # type: ignore[union-attr]
                function = both(op.function, call.op.function, at[1], p)  # type: ignore[union-attr]
                if function is not None:
                    variables = tuple(bind.vars[0] if v is y else v for v in call.vars)
                    binds[at[0]] = Bind(variables, Apply(function, call.op.args), call.span)  # type: ignore[union-attr]
                    binds[j] = None
            elif blocks_of(op):
                inner = [block(region) for region in blocks_of(op)]
                binds[j] = Bind(bind.vars, with_blocks(op, inner), bind.span)
        return Block(tuple(bind for bind in binds if bind is not None), b.results)

    bodies = {f: block(f.body) for f in functions}  # type: ignore[arg-type]
    body = block(program.body)
    if not any(made.values()):
        return program
    every = {f: Function(f.name, f.params, f.results, None, f.span) for f in functions}
    for f, new in every.items():
        new.body = retarget(bodies[f], every)
    for h in made.values():
        if h is not None:
            h.body = retarget(h.body, every)  # type: ignore[arg-type]
    return replace(program, body=retarget(body, every))


def fused(outer: Function, inner: Function, k: int, p: int) -> Function | None:
    """The function of both; None where the result of ``inner`` is read by more than ``outer``, or is no tangent: a
    tangent that is undefined stands in code that never runs, and so does all that is made of it."""
    tangent = inner.results[k].type
    if not (isinstance(tangent, Data) and tangent.constructors and tangent.constructors[0].make == ZERO_CONSTRUCTOR):
        return None
    recursive = [f for f in (outer, inner) if f in functions_of(f.body)]  # type: ignore[arg-type]
    if len(recursive) < 2 or any(type_atoms(r.type) for r in outer.results):
        return None
    if inner in functions_of(outer.body) or outer in functions_of(inner.body):  # type: ignore[arg-type]
        return None
    b, table = Builder(), {}
    for v in (*inner.params, *inner.results):
        t = v.type
        t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
        table[v] = Var(v.name, t, v.span, v.given)
    params = tuple(table[v] for v in inner.params)
    results = [table[v] for v in inner.results]
    results[k] = Var(outer.results[0].name, outer.results[0].type)
    made = Function(inner.name, params, tuple(results), None, inner.span)
    for v in params:
        b.note_sizes(v.type)
    pass_ = Fused(b, outer, inner, made, k, p)
    pass_.here.update(zip(inner.params, params))
    out = pass_.walk(inner.body, k)  # type: ignore[arg-type]
    made.body = Block(b.block(), tuple(out))
    made.body = tidy(made.body)
    left = set(pass_.waiting) & set(free_vars(made.body))
    return None if left else made


# -------------------------------------------------------------------------------------- sums handed on


def hand_on(program: Program) -> Program:
    """Gives a recursive function that adds to the results of its own calls an accumulator, so that its last call is a
    tail call: ``(+ (f a) (f b))``  =>  ``(f b (f a s))``.

    Design decision: adjoints alone, which have no order of the user's; and after the round trips, for which calls of
    one function should not wait for one another.
    """
    functions = functions_of(program.body)
    sums = {f: [k for k, r in enumerate(f.results) if r.soft and r.type == REAL] for f in functions}
    made: dict[Function, Function] = {}
    bodies: dict[Function, Block] = {}
    for f in functions:
        while sums[f]:
            new = HandedOn(f, sums[f])
            bodies[f], made[f] = new.body, new.made
            if len(new.found) == len(sums[f]):
                break
            sums[f] = sorted(new.found)
        else:
            bodies[f], made[f] = f.body, Function(f.name, f.params, f.results, None, f.span)  # type: ignore[assignment]
    if not any(sums.values()):
        return program

    def block(b: Block) -> Block:
        binds = []
        for bind in b.binds:
            op = bind.op
            if type(op) is Apply and op.function in made:
                starts = [ZERO] * len(sums[op.function])
                bind = Bind(bind.vars, Apply(made[op.function], (*op.args, *starts)), bind.span)
            elif blocks_of(op):
                bind = Bind(bind.vars, with_blocks(op, [block(inner) for inner in blocks_of(op)]), bind.span)
            binds.append(bind)
        return Block(tuple(binds), b.results)

    for f, function in made.items():
        function.body = block(bodies[f])
    return replace(program, body=block(program.body))


class HandedOn:
    """The body of ``f`` with the sums so far of its results ``sums`` as further parameters. ``found``: those of them
    that some call in a tail position takes."""

    def __init__(self, f: Function, sums: Sequence[int]) -> None:
        self.f, self.found = f, set[int]()
        self.starts = {k: Var(f.results[k].name, REAL, f.results[k].span) for k in sums}
        self.made = Function(f.name, (*f.params, *self.starts.values()), f.results, None, f.span)
        self.body = self.walk(f.body, {k: k for k in sums}, f.span)  # type: ignore[arg-type]

    def walk(self, block: Block, at: dict[int, int], span: Span | None) -> Block:
        """A block of the form at ``span``, whose result number ``at[k]`` is the function's result number ``k``."""
        last = block.binds[-1] if block.binds else None
        wanted = {k: block.results[j] for k, j in at.items()}
        if last is None or type(last.op) not in (If, Case) or not all(x in last.vars for x in wanted.values()):
            return self.leaf(block, at, span)
        if any(block.results.count(x) > 1 for x in wanted.values()):
            return self.leaf(block, at, span)
        inside = {k: last.vars.index(x) for k, x in wanted.items()}  # type: ignore[arg-type]
        op = with_blocks(last.op, [self.walk(inner, inside, last.span) for inner in blocks_of(last.op)])
        return Block((*block.binds[:-1], Bind(last.vars, op, last.span)), block.results)

    def leaf(self, block: Block, at: dict[int, int], span: Span | None) -> Block:
        """The end of a path: terms are added where they are known, calls take what is there when it is their turn."""
        counts, makers = uses(block), {v: bind for bind in block.binds for v in bind.vars}
        dropped: set[Bind] = set()

        def terms(a: Atom) -> list[Atom]:
            found, todo = [], [a]
            while todo:
                x = todo.pop()
                bind = makers.get(x)  # type: ignore[arg-type]
                if bind is not None and type(bind.op) is Prim and bind.op.name == "+" and counts[x] == 1:
                    dropped.add(bind)
                    todo += reversed(bind.op.args)
                elif not is_zero(x):
                    found.append(x)
            return found

        left = {k: terms(block.results[j]) for k, j in at.items()}
        so_far: dict[int, Atom] = dict(self.starts)
        binds: list[Bind] = []
        known: set[Atom] = set()
        order = self.before_calls([bind for bind in block.binds if bind not in dropped], [*left.values()])

        def add(k: int, wanted: Sequence[Atom], span: Span | None) -> None:
            for t in wanted:
                left[k].remove(t)
                total = Var(self.f.results[k].name, REAL, span)
                binds.append(Bind((total,), Prim("+", (so_far[k], t)), span))
                so_far[k] = total

        for bind in order:
            op = bind.op
            if type(op) is Apply and op.function is self.f:
                taken = [k for k in at if counts.get(bind.vars[k]) == 1 and bind.vars[k] in left[k]]
                for k in taken:
                    left[k].remove(bind.vars[k])
                    add(k, [t for t in left[k] if t not in makers or t in known], bind.span)
                starts = [so_far[k] if k in taken else ZERO for k in self.starts]
                so_far.update((k, bind.vars[k]) for k in taken)
                self.found.update(taken)
                bind = Bind(bind.vars, Apply(self.made, (*op.args, *starts)), bind.span)
            known.update(bind.vars)
            binds.append(bind)
        for k in at:
            add(k, list(left[k]), span)
        results = list(block.results)
        for k, j in at.items():
            results[j] = so_far[k]
        return Block(tuple(binds), tuple(results))

    def before_calls(self, binds: list[Bind], terms: Sequence[Sequence[Atom]]) -> list[Bind]:
        """The scalar operations that terms are made of, where nothing in them waits for a call, before the first."""
        calls = [n for n, bind in enumerate(binds) if type(bind.op) is Apply and bind.op.function is self.f]
        if not calls:
            return binds
        needed = {a for group in terms for a in group}
        for bind in reversed(binds):
            if needed.intersection(bind.vars):
                needed.update(atoms_of(bind.op))
        waiting: set[Atom] = set()
        early: dict[Bind, None] = {}
        for bind in binds[calls[0] :]:
            scalar = type(bind.op) is Prim and not isinstance(bind.vars[0].type, (Arr, Data))
            if scalar and bind.vars[0] in needed and waiting.isdisjoint(bind.op.args):  # type: ignore[union-attr]
                early[bind] = None
            else:
                waiting.update(bind.vars)
        return [*binds[: calls[0]], *early, *(bind for bind in binds[calls[0] :] if bind not in early)]


# ---------------------------------------------------------------------------- unused parts of functions


def unused(program: Program) -> Program:
    """Drops results of functions that no call reads, and parameters that nothing reads or that are only passed on.

    A parameter that is the same constant in every call, but for those that hand it on, is that constant; one that is
    the same as another one in every call is that one.
    """
    functions = functions_of(program.body)
    if not functions:
        return program
    merged = merge_params(program.body)
    if merged is not program.body:
        program = replace(program, body=merged)
        functions = functions_of(program.body)
    live = needed(program, functions)
    results = {f: [k for k, r in enumerate(f.body.results) if (f, k) in live] for f in functions}  # type: ignore
    constants = same_constants(program, functions)
    params = {f: [k for k, p in enumerate(f.params) if p in live and p not in constants] for f in functions}
    if all(len(results[f]) == len(f.results) and len(params[f]) == len(f.params) for f in functions):
        return program
    return dead_code(replace(program, body=with_parts(program.body, functions, params, results, constants)))


def with_parts(
    body: Block,
    functions: Sequence[Function],
    params: Mapping[Function, Sequence[int]],
    results: Mapping[Function, Sequence[int]],
    table: Mapping[Var, Atom],
) -> Block:
    """A block whose ``functions`` have these of their parameters and results; ``table``: what stands for others."""
    made = {
        f: Function(
            f.name, tuple(f.params[k] for k in params[f]), tuple(f.results[k] for k in results[f]), None, f.span
        )
        for f in functions
    }

    def block(b: Block) -> Block:
        binds = []
        for bind in b.binds:
            op = bind.op
            if type(op) is Apply:
                f = op.function
                bind = Bind(
                    tuple(bind.vars[k] for k in results[f]),
                    Apply(made[f], tuple(op.args[k] for k in params[f])),
                    bind.span,
                )
            elif blocks_of(op):
                bind = Bind(bind.vars, with_blocks(op, [block(inner) for inner in blocks_of(op)]), bind.span)
            binds.append(bind)
        return Block(tuple(binds), b.results)

    for f, new in made.items():
        own = {p: table[p] for p in f.params if p in table}
        inner = Block(f.body.binds, tuple(f.body.results[k] for k in results[f]))  # type: ignore[union-attr]
        new.body = block(substitute(inner, own) if own else inner)
    for new in made.values():  # what only a dropped argument needed; when all calls are known
        new.body = tidy(new.body)  # type: ignore[arg-type]
    return block(body)


def merged_block(b: Builder, block: Block) -> Block:
    """``merge_params`` for a block under construction, before its derivative has an adjoint for each parameter."""
    return block if "unused" in b.off else merge_params(block)


def merge_params(block: Block) -> Block:
    """A block in whose functions one parameter stands for several that are the same in every call.

    ``(f x x 0)`` of ``(f a b i)`` = ``(.. (f a b (+ i 1)))``  =>  ``(f x 0)`` of ``(f b i)`` = ``(.. (f b (+ i 1)))``.
    A function that is given itself is given the arrays that it reads twice, for itself and for the other one.
    """
    functions = functions_of(block)
    if any(f.body is None for f in functions):  # it is still being made
        return block
    same = same_params(block, functions)
    if not same:
        return block
    params = {f: [k for k, p in enumerate(f.params) if p not in same] for f in functions}
    results = {f: range(len(f.results)) for f in functions}
    return with_parts(block, functions, params, results, same)


def same_params(block: Block, functions: Sequence[Function]) -> dict[Var, Var]:
    """The parameters that are the same as another one of their function in every call, each with that one, which is
    the last of those; but for sizes.

    Supposed of all of one type, until a call says otherwise.
    """
    sizes = {d for f in functions for v in (*f.params, *f.results) for d in type_atoms(v.type)}
    group: dict[Var, Any] = {p: p if p in sizes else p.type for f in functions for p in f.params}
    calls = [
        bind.op
        for f in (None, *functions)
        for bind in all_binds(block if f is None else f.body)  # type: ignore[arg-type]
        if type(bind.op) is Apply
    ]

    def lasts() -> dict[Var, Var]:
        found: dict[Var, Var] = {}
        for f in functions:
            last = {group[p]: p for p in f.params}
            found.update((p, last[group[p]]) for p in f.params if last[group[p]] is not p)
        return found

    same = lasts()
    while same:
        for op in calls:
            seen: dict[Any, int] = {}
            for p, a in zip(op.function.params, op.args):
                a = same.get(a, a) if type(a) is Var else (a.type, repr(a.value))  # type: ignore[union-attr]
                group[p] = seen.setdefault((group[p], a), len(seen))
        after = lasts()
        if after == same:
            break
        same = after
    return same


def same_constants(program: Program, functions: Sequence[Function]) -> dict[Var, Const]:
    """The parameters that every call gives the same constant, or hands on."""
    found: dict[Var, Const | None] = {}
    for caller in (None, *functions):
        for bind in all_binds(program.body if caller is None else caller.body):  # type: ignore[arg-type]
            if type(bind.op) is Apply:
                for p, a in zip(bind.op.function.params, bind.op.args):
                    if a is p:
                        continue
                    same = type(a) is Const and (p not in found or found[p] == a and found[p].type == a.type)  # type: ignore
                    found[p] = a if same else None  # type: ignore[assignment]
    sizes = {d for f in functions for v in (*f.params, *f.results) for d in type_atoms(v.type)}
    return {p: a for p, a in found.items() if a is not None and p not in sizes}


def needed(program: Program, functions: Sequence[Function]) -> set:
    """The variables that the program's results and its checks depend on, and the results (function, position)."""
    depends: dict[object, list[object]] = {}
    live: set = set()
    todo: list[object] = []

    def edge(v: object, atoms: Sequence[object]) -> None:
        depends.setdefault(v, []).extend(a for a in atoms if type(a) is not Const)

    def walk(b: Block) -> None:
        for bind in b.binds:
            op = bind.op
            for v in bind.vars:
                edge(v, type_atoms(v.type))
            if type(op) in (If, Case, Loop, While) and effects(op):  # what decides whether a check is made
                todo.extend(atoms_of(op) if type(op) is not While else op.cond.results)
            if type(op) in (Prim, Make):
                edge(bind.vars[0], op.args)  # type: ignore[union-attr]
            elif type(op) is Check:
                todo.extend((op.a, op.b))
            elif type(op) is If:
                for v, x, y in zip(bind.vars, op.then.results, op.orelse.results):
                    edge(v, (x, y, op.cond))
            elif type(op) is Case:
                for arm in op.arms:
                    for f in arm.fields:
                        edge(f, (op.value,))
                    for v, x in zip(bind.vars, arm.block.results):
                        edge(v, (x, op.value))
            elif type(op) in (Loop, While):
                width = len(op.accs)  # type: ignore[union-attr]
                ends = [op.count] if type(op) is Loop else list(op.cond.results)  # type: ignore[union-attr]
                outs = bind.vars if type(op) is Loop else (*bind.vars[:width], *bind.vars[width + 1 :])
                for a, z, x in zip(op.accs, op.inits, op.body.results):  # type: ignore[union-attr]
                    edge(a, (z, x))
                for k, (v, x) in enumerate(zip(outs, op.body.results)):  # type: ignore[union-attr]
                    edge(v, (op.accs[k] if k < width else x, *ends))  # type: ignore[union-attr]
                if type(op) is While:
                    edge(bind.vars[width], ends)
            elif type(op) is Apply:
                for k, v in enumerate(bind.vars):
                    edge(v, ((op.function, k),))
                for p, a in zip(op.function.params, op.args):
                    edge(p, (a,))
            for inner in blocks_of(op):
                walk(inner)

    walk(program.body)
    for f in functions:
        walk(f.body)  # type: ignore[arg-type]
        for p in f.params:
            edge(p, type_atoms(p.type))
        for k, (r, out) in enumerate(zip(f.body.results, f.results)):  # type: ignore[union-attr]
            edge((f, k), (r, *((f, f.results.index(d)) if d in f.results else d for d in type_atoms(out.type))))
    todo.extend(program.body.results)
    while todo:
        x = todo.pop()
        if type(x) is Const or x in live:
            continue
        live.add(x)
        todo.extend(depends.get(x, ()))
    return live
