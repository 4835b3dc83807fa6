"""Forward and backward code, cut: where the backward code stands elsewhere, it is a block on what it reads.

A ``Pair`` is both; what crosses the cut is put into a record, or captured by a backpropagator, a function of the
cotangents (the "closure" encoding), which ``call`` applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import Arr, Atom, Block, Constructor, Function, Var, free_vars, type_atoms, type_of
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.names import adjoint
from ..program.rebuild import Rebuild
from .adjoints import copied, fill_body, like, tangent_type

if TYPE_CHECKING:
    from .reverse import Reverse

Back = Callable[[], None]  # emits backward code


@dataclass(slots=True)
class Pair:
    """Forward results, and the backward code: a block on ``cotangents`` (by result) and ``starts``, the adjoints so
    far that it adds to; its results are the adjoints of the variables ``changed``."""

    results: tuple[Atom, ...]
    block: Block
    cotangents: dict[int, Var]
    starts: dict[Var, Var]
    changed: list[Var]


def there_and_cut(
    rev: Reverse, block: Block, touched: Sequence[Var], threaded: Callable[[Var], bool], last: Back | None = None
) -> Pair:
    """The forward code of a block in the open scope and, where it sees all of that, the backward code: a block on
    the cotangents of the results, and on the adjoints so far of those ``touched`` variables that are ``threaded``
    through it; its results are the adjoints (of the others: what is to be added; None for nothing). ``last``
    ends the backward code."""
    b = rev.b
    results, back = rev.there(block, apart=True)
    bars, rev.bar = rev.bar, {}
    scaled, rev.scaled = rev.scaled, {}
    span = b.span
    with b.region() as scope, b.differentiating():
        cotangents = {
            k: like(b, Var("y", type_of(x)), {}, adjoint(str(r)))
            for k, (r, x) in enumerate(zip(block.results, results))
            if rev.is_active(r)
        }
        starts = {v: like(b, Var(v.name, type_of(rev.atom(v))), {}, adjoint(v.name)) for v in touched if threaded(v)}
        scope.vars.update(cotangents.values())
        scope.vars.update(starts.values())
        rev.bar.update(starts)
        for k, ct in cotangents.items():
            rev.contribute(block.results[k], ct)
        back()
        if last is not None:
            last()
        outs = {v: rev.take(v) for v in touched}
    rev.bar, rev.scaled = bars, scaled
    b.span = span
    changed = {v: x for v, x in outs.items() if x is not None and x is not starts.get(v)}
    return Pair(results, tidy(b.close(scope, tuple(changed.values()))), cotangents, starts, list(changed))


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


def receive(rev: Reverse, changed: Sequence[Var], adjoints: Sequence[Atom], starts: Mapping[Var, Atom]) -> None:
    """What backward code has given: adjoints that were threaded through it, and those that are to be added."""
    for v, x in zip(changed, adjoints):
        if v in starts:
            rev.bar[v] = x
        else:
            rev.contribute(v, x)


def forgotten(rev: Reverse, pair: Pair, scope: Scope, bound: set[Var]) -> set[Var]:
    """What backward code may not read but from its record: for a closure, all that is not its argument."""
    if not rev.closures:
        return bound
    given = {*pair.cotangents.values(), *pair.starts.values()}
    free = {**free_vars(pair.block), **free_vars(Block(tuple(scope.binds), ()))}
    sizes = (d for v in free for d in type_atoms(v.type) if type(d) is Var)
    return bound.union(v for v in (*free, *sizes) if v not in given)


def call(
    rev: Reverse,
    closure: Atom,
    codes: Sequence[tuple[Constructor, Sequence[Var], Pair]],
    cotangents: Mapping[int, Atom],
    starts: Mapping[Var, Atom],
    changed: Sequence[Var],
) -> Sequence[Atom]:
    """Apply a backpropagator, one of ``codes``, to the cotangents; the adjoints of ``changed``. The function that
    applies it takes sizes, cotangents, and the adjoints so far that are threaded."""
    b = rev.b
    types = {v: tangent_type(b, type_of(starts[v] if v in starts else rev.atom(v))) for v in changed}
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
