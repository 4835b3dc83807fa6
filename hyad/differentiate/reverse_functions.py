"""Reverse mode of recursive functions: two functions, one that goes there and gives a record, one that goes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..core import REAL, Apply, Atom, Bind, Block, Data, Function, Var, free_vars, type_atoms, type_of
from ..program.builder import Builder
from ..program.names import adjoint
from ..program.rebuild import Rebuild
from .activity import activity, differentiable, reach_of
from .adjoints import copied, fill_body, is_linear, like, prepared, zero
from .backpropagators import Back, fitted, forgotten, instantiate, is_threaded, there_and_cut
from .left_out import LeftOut
from .records import cut, record_of

if TYPE_CHECKING:
    from .reverse import Reverse


# y = (f x ...)  =>  y, r = (f-there x ...);  x̄ += (f-back r ȳ)
def apply_there(rev: Reverse, op: Apply, bind: Bind) -> Back:
    """A call of a recursive function."""
    b, span = rev.b, bind.span
    if is_linear(b, op.function):
        rev.copy(bind)

        def share() -> None:
            y_bar = rev.take(bind.vars[0])
            if y_bar is not None:
                for a in op.args:
                    rev.contribute(a, y_bar)

        return share
    args = rev.atoms(op.args)
    functions = there_and_back(rev, op.function, tuple(rev.is_active(a) for a in op.args))
    out = b.apply(functions.there, args, [*(v.name for v in bind.vars), "record"], bind.vars[0].given)
    rev.define(bind, out)

    def back() -> None:
        bars = [rev.take(v) for v in bind.vars]
        if all(bars[k] is None for k in functions.results):
            return
        b.span = span
        starts: list[Atom] = []
        first: set[Atom] = set()
        for k in functions.params:
            if is_threaded(op.function.params[k]):
                a = op.args[k]
                starts.append(zero(b, args[k]) if a in first else rev.so_far(a))  # type: ignore[arg-type]
                first.add(a)
        after = b.apply(
            functions.back,
            [
                *(args[k] for k in functions.needs),
                *(out[k] for k in functions.sizes),
                out[-1],
                *(rev.or_zero(bars[k], bind.vars[k]) for k in functions.results),
                *starts,
            ],
            [adjoint(str(op.args[k])) for k in functions.params],
        )
        for k, x in zip(functions.params, after):
            a = op.args[k]
            if a in first:
                first.discard(a)
                rev.bar[a] = x  # type: ignore[index]
            else:
                rev.contribute(a, x)

    return back


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


def there_and_back(rev: Reverse, f: Function, mask: tuple[bool, ...]) -> Functions:
    """The functions of ``f`` for the active arguments ``mask``.

    Which arguments the backward function needs shows when it is made, and it calls itself: so all is made again, from
    what was found, until nothing more is found.
    """
    b, key = rev.b, ("pair", f, mask, rev.kind)
    if key in b.memo:
        return b.memo[key]
    session = b.memo.get(("session",))
    if session is not None:
        return make_pair(rev, key, session)
    while True:
        session = b.memo["session",] = Session()
        try:
            made = make_pair(rev, key, session)
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


def make_pair(rev: Reverse, key: tuple, session: Session) -> Functions:
    """One attempt at ``there_and_back``, with the arguments that the backward function was found to need so far."""
    b, (_, f, mask, kind) = rev.b, key
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
    pass_ = rev.anew()
    pass_.here.update(zip(f.params, there_params))
    pass_.active = activity(block, {f.params[k]: 1 for k in params}, pass_.reach)
    pass_.left_out = LeftOut(block, pass_.active, called=True)
    with b.function_scope(0) as scope:
        scope.vars.update(there_params)
        for p in there_params:
            b.note_sizes(p.type)  # type: ignore[arg-type]
        pair = there_and_cut(pass_, block, [f.params[k] for k in params], is_threaded)
        bound = forgotten(pass_, pair, scope, scope.vars.difference(there_params))
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
    wanted |= {position[d] for k in wanted for d in type_atoms(f.params[k].type) if d in position}  # their sizes
    if not wanted <= needs:
        needs |= wanted
        session.changed = True
        there.body = back.body = Block((), ())
        return made
    fill_body(b, there, make_there)
    fill_body(b, back, make_back)
    return made


class Retyped(Rebuild):
    """Copies code that makes values of one data type as code for another, which has taken over its constructors."""

    def __init__(self, b: Builder, table: Mapping[Any, Data]) -> None:
        super().__init__(b)
        self.table = table

    def type(self, t: Any) -> Any:
        return super().type(self.table.get(t, t))
