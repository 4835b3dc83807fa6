"""Reverse mode of branches and matches: each region there and back, its costly values remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..core import (
    INT,
    ZERO,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Constructor,
    Data,
    If,
    Make,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
    type_of,
)
from ..program.names import adjoint
from .adjoints import zero
from .backpropagators import Back, call, fitted, forgotten, instantiate, is_threaded, receive, there_and_cut
from .records import costly, cut, record_of

if TYPE_CHECKING:
    from .reverse import Reverse


COSTLY_BRANCH = 4  # from here on a branch remembers a value, in a register


# y = (if c e f)  =>  (x̄ ...) = (if c [e there and back] [f there and back]), and the same for match
def branch_there(rev: Reverse, op: If | Case, bind: Bind) -> Back:
    """A branch or a match, whose backward code chooses again."""
    b, span, blocks = rev.b, bind.span, blocks_of(op)
    choice = rev.atom(op.cond if type(op) is If else op.value)  # type: ignore[union-attr]
    kept = [costly(block, rev.active, COSTLY_BRANCH) if rev.remembers else [] for block in blocks]
    kept = [[*found, *elements(rev, block), *choices(rev, block)] for found, block in zip(kept, blocks)]
    inner = [elements(rev, block, inside=True) for block in blocks]
    own = {v: i for found, block in zip(kept, blocks) for v, i in own_results(block, found).items()}
    every = [(j, v) for j in range(len(blocks)) for v in (*kept[j], *inner[j]) if v not in own]
    known = {v: rev.known.pop(v) for v in (*own, *(v for _, v in every)) if v in rev.known}
    for block, found in zip(blocks, kept):
        rev.say(block.binds, found)
    regions = []
    for k, block in enumerate(blocks):
        with rev.region(op, k) as (scope, fields):
            results, _ = rev.there(block, {v: known[v] for v in kept[k] if v in known}, apart=True)
            record = [rev.here[v] if j == k else nothing(rev, v) for j, v in every]
        regions.append((fields, scope, [*results, *record]))
    b.span = span
    names = [v.name for v in (*bind.vars, *(v for _, v in every))]
    out = rev.join(op, choice, regions, names, bind.vars[0].given, [rev.type(v.type) for v in bind.vars])
    rev.define(bind, out)
    saved = {v: x for (_, v), x in zip(every, out[len(bind.vars) :])}
    saved |= {v: out[i] for v, i in own.items()} | known
    rev.here.update(saved)

    def back() -> None:
        bars = [rev.take(v) for v in bind.vars]
        if all(x is None for x in bars):
            return
        touched = rev.touched(op)
        rev.known.update((v, saved[v]) for vs in inner for v in vs)
        for v in touched:
            rev.settle(v)
        before = {v: rev.bar.get(v) for v in touched}
        b.span = span
        start = {v: x if x is not None else zero(b, rev.atom(v), adjoint(v.name)) for v, x in before.items()}
        regions = []
        for k, block in enumerate(blocks):
            with rev.region(op, k) as (scope, fields):
                _, inner_back = rev.there(block, {v: saved[v] for v in kept[k]}, again=True)
                rev.bar.update(start)
                for r, x in zip(block.results, bars):
                    if x is not None:
                        rev.contribute(r, x)
                inner_back()
                rev.give_back(op, k)
                regions.append((fields, scope, [rev.bar[v] for v in touched]))
        b.span = span
        changed = [j for j, v in enumerate(touched) if any(region[2][j] is not start[v] for region in regions)]
        after = rev.join(
            op,
            choice,
            [(fields, scope, [results[j] for j in changed]) for fields, scope, results in regions],
            [adjoint(touched[j].name) for j in changed],
        )
        for v in touched:
            if before[v] is None:
                rev.bar.pop(v, None)
            else:
                rev.bar[v] = before[v]  # type: ignore[assignment]
        for j, x in zip(changed, after):
            rev.bar[touched[j]] = x

    return back


def own_results(block: Block, kept: Sequence[Var]) -> dict[Var, int]:
    """Of what is kept of a region what it gives: where it has been taken, that is the value of the branch."""
    return {v: block.results.index(v) for v in kept if v in block.results}


def remembered(rev: Reverse, op: object, block: Block) -> list[int]:
    """The results of a branch in a block that are, in a region, what it keeps: where they are stacked it need not run
    again. A branch that integers decide is at a place, as a diagonal, and seldom costly."""
    tests = [x.op.args for x in block.binds if type(op) is If and op.cond in x.vars and type(x.op) is Prim]
    if any(type_of(a) == INT for args in tests for a in args) or not keeps(rev, op):
        return []
    return sorted({i for r in map(partial(kept_results, rev), blocks_of(op)) for i in r.values()})  # type: ignore[arg-type]


def keeps(rev: Reverse, op: object) -> bool:
    """Whether what is costly in the regions of a branch can be remembered."""
    if type(op) is not If or rev.closures or not rev.remembers:
        return False
    return not any(type(x.op) in (Apply, While) for block in blocks_of(op) for x in all_binds(block))


def inside(rev: Reverse, block: Block) -> list[Var]:
    """The costly numbers in the branches of a block: where another branch was taken, they are 0."""
    ops = [x.op for x in block.binds if keeps(rev, x.op) and any(v in rev.active for v in x.vars)]
    return [v for op in ops for region in blocks_of(op) for v in costly(region, rev.active) if v not in region.results]


def choices(rev: Reverse, block: Block) -> list[Var]:
    """The results of a region that branches in it give, as ``remembered`` says."""
    found = [x.vars[i] for x in block.binds for i in remembered(rev, x.op, block)]
    return [v for v in found if v in block.results and v in rev.active]


def kept_results(rev: Reverse, block: Block) -> dict[Var, int]:
    return own_results(block, [*costly(block, rev.active), *choices(rev, block)])


def know(rev: Reverse, bind: Bind, record: dict[Var, Atom]) -> None:
    """Tells the regions of a branch what it has given before, and what has been computed in them."""
    results = {i: record[v] for i, v in enumerate(bind.vars) if v in record}
    for block in blocks_of(bind.op):
        rev.known.update((v, results[i]) for v, i in kept_results(rev, block).items() if i in results)
        rev.known.update((v, record[v]) for x in block.binds for v in x.vars if v in record)


def elements(rev: Reverse, block: Block, inside: bool = False) -> list[Var]:
    """What a block reads of tables and the backward code may need; ``inside``: what its branches read."""
    found: list[Var] = []
    for bind in block.binds if rev.tables else ():
        op = bind.op
        if not any(rev.is_active(v) for v in bind.vars):
            continue
        if not inside and type(op) is Prim and op.name == "get" and op.args[0] in rev.tables:
            found += bind.vars
        elif inside and type(op) is If:
            for branch in blocks_of(op):
                found += [*elements(rev, branch), *elements(rev, branch, inside=True)]
    return found


def nothing(rev: Reverse, v: Var) -> Atom:
    """What stands for a number or a row where another branch was taken."""
    return rev.b.zeros(rev.type(v.type)) if isinstance(v.type, Arr) else ZERO  # type: ignore[arg-type]


def arm_there(rev: Reverse, op: Case, bind: Bind, made: Make) -> Back:
    """A match on a value whose constructor is known: straight-line code."""
    k = made.constructor.tag
    arm = op.arms[k]
    rev.here.update(zip(arm.fields, made.args))
    results, inner_back = rev.there(arm.block, apart=rev.apart)
    rev.define(bind, results)

    def back() -> None:
        for v, r in zip(bind.vars, arm.block.results):
            bar = rev.take(v)
            if bar is not None:
                rev.contribute(r, bar)
        inner_back()
        rev.give_back(op, k)

    return back


# y = (if c e f), with calls inside  =>  y, r = (if c [e.. there, (Then ..)] [f.. there, (Else ..)])
#                                        x̄ += (match r (Then ..) [e back] (Else ..) [f back])
def choice_there(rev: Reverse, op: If | Case, bind: Bind) -> Back:
    """A branch, a sum: what each branch remembers is made into a constructor of its own, and the backward code
    matches on it. A match is matched again: its fields need not be remembered, and an arm that needs nothing else
    makes no record."""
    b, span, blocks = rev.b, bind.span, blocks_of(op)
    choice = rev.atom(op.cond if type(op) is If else op.value)  # type: ignore[union-attr]
    touched = rev.touched(op)
    data = Data(rev.kind)
    again = type(op) is Case and not rev.closures
    opened, pairs, own, inside = [], [], [], []
    codes: list[tuple[Constructor | None, list[Var]]] = []
    for k, block in enumerate(blocks):
        with rev.region(op, k) as (scope, fields):
            pair = there_and_cut(rev, block, touched, is_threaded, lambda k=k: rev.give_back(op, k))  # type: ignore[misc]
            bound = scope.vars.difference(fields if again else ())
            record, pair.block = cut(scope.binds, pair.block, forgotten(rev, pair, scope, bound))
            name = ("then", "else")[k] if type(op) is If else op.arms[k].constructor.name  # type: ignore
            constructor, args = record_of(data, name, record, rev.kind)
            codes.append((constructor, args) if args or not again else (None, []))
            inside.append(bound)
        opened.append((fields, scope))
        pairs.append(pair)
        own.append(fields)
    made = [c for c, _ in codes if c is not None]
    data.constructors = tuple(made)
    plain = not any(args for _, args in codes) and not rev.closures  # the backward code chooses again, that is all
    regions = []
    for (fields, scope), (constructor, args), pair in zip(opened, codes, pairs):
        results = list(pair.results)
        if not plain:
            with b.region(scope):
                results.append(b.undef(data) if constructor is None else b.make(constructor, args, "record"))
        regions.append((fields, scope, results))
    if not plain and not rev.closures:
        rev.records.add(data)
    b.span = span
    names = [*(v.name for v in bind.vars), "record"]
    out = rev.join(op, choice, regions, names, bind.vars[0].given, [rev.type(v.type) for v in bind.vars])
    rev.define(bind, out)

    def back() -> None:
        bars = [rev.take(v) for v in bind.vars]
        if all(x is None for x in bars):
            return
        b.span = span
        changed = [v for v in touched if any(v in pair.changed for pair in pairs)]
        starts = {v: rev.so_far(v) for v in changed if is_threaded(v)}
        if rev.closures:
            cts = {j: rev.or_zero(bars[j], bind.vars[j]) for pair in pairs for j in pair.cotangents}
            after = call(rev, out[-1], [(c, args, p) for (c, args), p in zip(codes, pairs)], cts, starts, changed)  # type: ignore
            return receive(rev, changed, after, starts)

        depth = len(b.scopes)

        def known(k: int, fields: Sequence[Atom]) -> dict[Var, Atom]:
            """What the fields of a record stand for. A size that is known here too, of which the record has a copy for
            the types of its arrays, stays the one that it is: an adjoint that is handed on is seen to be of one size.
            """
            return {v: x for v, x in zip(codes[k][1], fields) if v in inside[k]}

        def emit(k: int, table: dict[Var, Atom]) -> list[Atom]:
            pair = pairs[k]
            table.update((ct, rev.or_zero(bars[j], bind.vars[j])) for j, ct in pair.cotangents.items())
            table.update((pair.starts[v], x) for v, x in starts.items())
            found = instantiate(b, pair, table)
            out = [found[v] if v in found else starts[v] if v in starts else zero(b, rev.atom(v)) for v in changed]
            return [fitted(b, x, type_of(rev.atom(v)), depth) for x, v in zip(out, changed)]

        names = [adjoint(v.name) for v in changed]
        if again or plain:
            regions = []
            for k, (constructor, args) in enumerate(codes):
                with rev.region(op, k) as (scope, fields):
                    table: dict[Var, Atom] = dict(zip(own[k], fields))
                    if args:
                        results = record_opened(
                            rev, out[-1], constructor, lambda fields: emit(k, {**table, **known(k, fields)}), names
                        )  # type: ignore
                    else:
                        results = emit(k, table)
                regions.append((fields, scope, results))
            after = rev.join(op, choice, regions, names)
        else:
            arms = []
            for k, (constructor, args) in enumerate(codes):
                with b.arm(constructor) as (scope, fields):  # type: ignore[arg-type]
                    results = emit(k, known(k, fields))
                arms.append((constructor, fields, scope, results))
            after = b.case(out[-1], arms, names)
        b.span = span
        receive(rev, changed, after, starts)

    return back


def record_opened(
    rev: Reverse,
    record: Atom,
    constructor: Constructor,
    emit: Callable[[Sequence[Atom]], list[Atom]],
    names: Sequence[str],
) -> Sequence[Atom]:
    """Code on the fields of a record whose constructor is certain."""
    b, arms = rev.b, []
    with b.arm(constructor) as (scope, fields):
        results = emit(fields)
    for c in constructor.data.constructors:
        if c is constructor:
            arms.append((c, fields, scope, results))
        else:
            with b.arm(c) as (other, parts):
                never = [b.undef(type_of(x)) for x in results]
            arms.append((c, parts, other, never))
    return b.case(record, arms, names)
