"""Which variables carry derivatives: the analysis before both modes.

A set of directions is an integer, one bit for each. A variable is active in a direction if a differentiable path
leads to it from an input that is; the rest is left out of the derivative altogether.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core import (
    REAL,
    Apply,
    Arr,
    Atom,
    Block,
    Case,
    Data,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Type,
    Var,
    While,
    all_binds,
    functions_of,
)
from ..errors import DerivativeError, NotCompiled
from ..program.primitives import PRIMITIVES

Reach = dict[Function, list[int]]


def differentiable(t: Type | None) -> bool:
    """Whether values of a type carry derivatives: reals, arrays of what does, and data with such a field somewhere."""
    elem = t.elem if isinstance(t, Arr) else t
    return elem == REAL or (isinstance(elem, Data) and holds_reals(elem))


def holds_reals(data: Data) -> bool:
    """Whether a value of a data type can hold a real, at any depth."""
    seen, todo = {data}, [data]
    while todo:
        for constructor in todo.pop().constructors:
            for f in constructor.fields:
                elem = f.type.elem if isinstance(f.type, Arr) else f.type
                if elem == REAL:
                    return True
                if isinstance(elem, Data) and elem not in seen:
                    seen.add(elem)
                    todo.append(elem)
    return False


def reach_of(function: Function, reach: Reach) -> list[int]:
    """For each result of a function, from which parameters a differentiable path leads to it: bit k for parameter k.

    The least fixpoint over the function and all that it calls; ``reach`` keeps what was found.
    """
    if function not in reach:
        if function.body is None:
            raise NotCompiled(
                f"`{function}` is differentiated inside its own definition: the order of that derivative is only known "
                "when the model runs",
                function.span,
                "take the derivative outside, or run the model as it is read: hyad.run",
            )
        new = [g for g in dict.fromkeys([function, *functions_of(function.body)]) if g not in reach]
        reach.update({g: [0] * len(g.results) for g in new})
        callers: dict[Function, list[Function]] = {g: [] for g in new}
        for g in new:
            called = (bind.op.function for bind in all_binds(g.body) if type(bind.op) is Apply)  # type: ignore[arg-type]
            for h in dict.fromkeys(called):
                if h in callers:
                    callers[h].append(g)
        todo = dict.fromkeys(new)  # the last is what calls none of the others, as a rule
        while todo:
            g, _ = todo.popitem()
            start = {p: 1 << k for k, p in enumerate(g.params) if differentiable(p.type)}
            active = activity(g.body, start, reach)  # type: ignore[arg-type]
            found = [active.get(r, 0) if type(r) is Var else 0 for r in g.body.results]  # type: ignore[union-attr]
            if found != reach[g]:
                reach[g] = found
                todo.update(dict.fromkeys(callers[g]))
    return reach[function]


def activity(block: Block, active: dict[Var, int], reach: Reach | None = None) -> dict[Var, int]:
    """Extend ``active`` (variable -> directions) over a block and the regions inside it; returns it. ``reach`` keeps
    what is known of functions."""
    through: Reach = {} if reach is None else reach

    def of(atom: Atom) -> int:
        return active.get(atom, 0) if type(atom) is Var else 0

    def give(v: Var, bits: int) -> None:
        if bits and differentiable(v.type):
            active[v] = active.get(v, 0) | bits

    def circle(accs: Sequence[Var], inits: Sequence[Atom], body: Block) -> None:
        for acc, z in zip(accs, inits):
            give(acc, of(z))
        while True:
            walk(body)
            changed = False
            for acc, r in zip(accs, body.results):
                if of(r) & ~active.get(acc, 0):
                    give(acc, of(r))
                    changed = True
            if not changed:
                break

    def walk(b: Block) -> None:
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim:
                var = bind.vars[0]
                if not differentiable(var.type):
                    continue
                if op.name == "stop":
                    continue
                bits = 0
                for a in op.args:
                    if type(a) is Var:
                        bits |= active.get(a, 0)
                if bits:
                    row = PRIMITIVES.get(op.name)
                    if row is not None and type(row.partials) is str and row.jvp is None and row.vjp is None:
                        raise DerivativeError(
                            f"`{op.name}` has no derivative: {row.partials}",
                            bind.span,
                            "give it partials, or a rule of its own, in its defprim",
                        )
                    active[var] = active.get(var, 0) | bits
            elif type(op) is If:
                walk(op.then)
                walk(op.orelse)
                for v, x, y in zip(bind.vars, op.then.results, op.orelse.results):
                    give(v, of(x) | of(y))
            elif type(op) is Loop:
                circle(op.accs, op.inits, op.body)
                for v, r in zip(bind.vars, (*op.accs, *op.body.results[len(op.accs) :])):
                    give(v, of(r))
            elif type(op) is While:
                circle(op.accs, op.inits, op.body)
                width = len(op.accs)
                for v, r in zip((*bind.vars[:width], *bind.vars[width + 1 :]), (*op.accs, *op.body.results[width:])):
                    give(v, of(r))
            elif type(op) is Make:
                give(bind.vars[0], union(map(of, op.args)))
            elif type(op) is Case:
                for arm in op.arms:
                    for f in arm.fields:
                        give(f, of(op.value))
                    walk(arm.block)
                    for v, r in zip(bind.vars, arm.block.results):
                        give(v, of(r))
            elif type(op) is Apply:
                bits_of = [of(a) for a in op.args]
                if any(bits_of):
                    for v, mask in zip(bind.vars, reach_of(op.function, through)):
                        give(v, union(bits for k, bits in enumerate(bits_of) if mask >> k & 1))

    walk(block)
    return active


def union(found: Iterable[int]) -> int:
    total = 0
    for bits in found:
        total |= bits
    return total
