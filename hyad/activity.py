"""Which variables carry derivatives: the analysis before both modes.

A set of directions is an integer, one bit for each. A variable is active in a direction if a differentiable path
leads to it from an input that is; the rest is left out of the derivative altogether.
"""

from __future__ import annotations

from .core import REAL, Arr, Atom, Block, If, Loop, Prim, Type, Var
from .primitives import PRIMITIVES


def differentiable(t: Type | None) -> bool:
    return (t.elem if isinstance(t, Arr) else t) == REAL


def activity(block: Block, active: dict[Var, int]) -> dict[Var, int]:
    """Extend ``active`` (variable -> directions) over a block and the regions inside it; returns it."""

    def of(atom: Atom) -> int:
        return active.get(atom, 0) if type(atom) is Var else 0

    def walk(b: Block) -> None:
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim:
                var = bind.vars[0]
                if not differentiable(var.type):
                    continue
                row = PRIMITIVES.get(op.name)
                if row is not None and type(row.partials) is str and row.jvp is None and row.vjp is None:
                    continue
                bits = 0
                for a in op.args:
                    if type(a) is Var:
                        bits |= active.get(a, 0)
                if bits:
                    active[var] = active.get(var, 0) | bits
            elif type(op) is If:
                walk(op.then)
                walk(op.orelse)
                for v, x, y in zip(bind.vars, op.then.results, op.orelse.results):
                    bits = of(x) | of(y)
                    if bits and differentiable(v.type):
                        active[v] = active.get(v, 0) | bits
            elif type(op) is Loop:
                for acc, z in zip(op.accs, op.inits):
                    if of(z):
                        active[acc] = active.get(acc, 0) | of(z)
                while True:
                    walk(op.body)
                    changed = False
                    for acc, r in zip(op.accs, op.body.results):
                        bits = of(r)
                        if bits & ~active.get(acc, 0):
                            active[acc] = active.get(acc, 0) | bits
                            changed = True
                    if not changed:
                        break
                sources = (*op.accs, *op.body.results[len(op.accs) :])
                for v, r in zip(bind.vars, sources):
                    if of(r) and differentiable(v.type):
                        active[v] = active.get(v, 0) | of(r)

    walk(block)
    return active
