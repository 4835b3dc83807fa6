"""Which array results of a function are a parameter of it with changes: they can be made in its memory."""

from __future__ import annotations

from collections.abc import Iterable

from hyad.core import (
    Apply,
    Arr,
    Atom,
    Bind,
    Case,
    Function,
    If,
    Loop,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
)

from .lower import measured


def paired(functions: Iterable[Function]) -> dict[Function, dict[int, int]]:
    """For each function the array results that are a parameter of it with changes: ``update`` and ``add-at``, on every
    path, through loops, branches and calls. They can be made in the memory of the parameter.

    The largest solution: a result is taken to be such until a path shows another origin.
    """
    functions = list(functions)
    origin: dict[tuple[Function, int], int | None] = {}  # absent: not known yet; None: something else
    while True:
        found = {(f, k): _origin(f, k, origin) for f in functions for k in range(len(f.results))}
        known = {key: value for key, value in found.items() if value != -1}
        if known == origin:
            break
        origin = known
    pairs: dict[Function, dict[int, int]] = {}
    for f in functions:
        own = {k: origin.get((f, k)) for k in range(len(f.results)) if isinstance(f.results[k].type, Arr)}
        taken = [j for j in own.values() if j is not None]
        pairs[f] = {k: j for k, j in own.items() if j is not None and taken.count(j) == 1 and measured(f, k)}
    return pairs


def _origin(f: Function, k: int, known: dict[tuple[Function, int], int | None]) -> int | None:
    """The parameter that a result is: its position, None for something else, -1 where that is open."""
    assert f.body is not None
    makers: dict[Var, Bind] = {v: bind for bind in all_binds(f.body) for v in bind.vars}
    starts = {a: (bind, n) for bind in all_binds(f.body) if isinstance(bind.op, (Loop, While))
              for n, a in enumerate(bind.op.accs)}  # fmt: skip
    found: set[int | None] = set()
    seen: set[Var] = set()
    todo: list[Atom] = [f.body.results[k]]
    while todo:
        a = todo.pop()
        if not isinstance(a, Var) or not isinstance(a.type, Arr):
            found.add(None)
            continue
        if a in seen:
            continue
        seen.add(a)
        if a in f.params:
            found.add(f.params.index(a))
        elif a in starts:
            bind, n = starts[a]
            todo += [bind.op.inits[n], bind.op.body.results[n]]
        elif a in makers:
            bind = makers[a]
            op, n = bind.op, bind.vars.index(a)
            if isinstance(op, Prim) and op.name in ("update", "add-at"):
                todo.append(op.args[0])
            elif isinstance(op, (If, Case)):
                todo += [block.results[n] for block in blocks_of(op)]
            elif isinstance(op, (Loop, While)) and n < len(op.accs):
                todo += [op.inits[n], op.body.results[n]]
            elif isinstance(op, Apply):
                j = known.get((op.function, n), -1)
                if j is None:
                    found.add(None)
                elif j != -1:
                    todo.append(op.args[j])
            elif not (isinstance(op, Prim) and op.name == "undef"):
                found.add(None)
        else:
            found.add(None)  # a field
    if not found:
        return -1
    return found.pop() if len(found) == 1 else None
