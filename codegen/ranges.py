"""Which integers may pass 64 bits: intervals of the Int values of a program.

``overflows`` finds the operations whose result may not fit, and which of them a run-time ``Check`` (of a subscript, a
count, a size) depends on: those are carried out with a check of their own, for a product that wraps may come back into
range and select a wrong element. All others wrap, in every target. An index that was proven in range needs no check:
what is proven holds of the integers themselves, and sums and products that wrap are right as soon as the whole fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hyad.core import (
    INT,
    Apply,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    functions_of,
)

LOW, HIGH = -(2**63), 2**63 - 1
MEMORY = 2**54  # no array has more elements

Interval = tuple[int, int]
ANY: Interval = (LOW, HIGH)


@dataclass(slots=True)
class Overflows:
    """Operations on Ints that may not fit: ``checked`` ends the call with an error, ``wrapped`` wraps. ``plain``:
    quotients and remainders of what is not negative, which all languages round alike."""

    checked: set[Bind]
    wrapped: set[Bind]
    plain: set[Bind]


def _products(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


_EXACT: dict[str, Callable[..., Interval]] = {
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "*": _products,
    "neg": lambda a: (-a[1], -a[0]),
    "square": lambda a: _products(a, a),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
#: What the error says.
OVERFLOW = "an integer that a subscript or a size depends on does not fit in 64 bits"
CHECKED = ("+", "-", "*", "neg", "square")


def overflows(program: Program) -> Overflows:
    """The operations of a program that may not fit into 64 bits."""
    known: dict[Var, Interval] = dict.fromkeys(program.dims, (0, MEMORY))
    found: list[Bind] = []
    lowest: set[Bind] = set()  # what has no negative that fits, which is there
    plain: set[Bind] = set()

    def of(atom: Atom) -> Interval:
        if type(atom) is Const:
            return int(atom.value), int(atom.value)
        return known.get(atom, ANY)

    def walk(block: Block) -> None:
        learnt: list[tuple[Var, Interval | None]] = []  # by checks, for the rest of this block

        def learn(var: Atom, interval: Interval) -> None:
            if type(var) is Var:
                learnt.append((var, known.get(var)))
                old = known.get(var, ANY)
                known[var] = max(old[0], interval[0]), min(old[1], interval[1])

        for bind in block.binds:
            op = bind.op
            if type(op) is Prim:
                if bind.vars[0].type == INT:
                    known[bind.vars[0]] = result(bind, op)
            elif type(op) is Check:
                if op.relation == "in":
                    learn(op.a, (0, of(op.b)[1] - 1))
                elif op.relation in ("<", "<="):
                    learn(op.b, (of(op.a)[0], HIGH))
                    learn(op.a, (LOW, of(op.b)[1]))
            elif type(op) in (If, Case, While):
                for region in blocks_of(op):
                    walk(region)
            elif type(op) is Loop:
                high = max(of(op.count)[1], 1)
                known[op.index] = (0, high - 1)
                before = known.get(op.count) if type(op.count) is Var else None
                learn(op.count, (1, HIGH))
                walk(op.body)
                if type(op.count) is Var:
                    known.pop(op.count) if before is None else known.__setitem__(op.count, before)
        for var, old in reversed(learnt):
            if old is None:
                known.pop(var, None)
            else:
                known[var] = old

    def result(bind: Bind, op: Prim) -> Interval:
        exact = _EXACT.get(op.name)
        if exact is None or any(a.type != INT for a in op.args):
            if op.name not in ("abs", "//", "%") or any(a.type != INT for a in op.args):
                return ANY
            (low, high), (least, most) = of(op.args[0]), of(op.args[-1])
            if low == LOW and (op.name == "abs" or op.name == "//" and least <= -1 <= most):
                lowest.add(bind)
            if op.name == "abs" or least <= 0:
                return ANY
            if low >= 0:
                plain.add(bind)
            if op.name == "%":
                return 0, most - 1
            return min(low // least, low // most), max(high // least, high // most)
        low, high = exact(*map(of, op.args))
        if low < LOW or high > HIGH:
            found.append(bind)
            return (max(low, LOW), min(high, HIGH)) if bind.vars[0] in needed else ANY
        return low, high

    names = {b.op.name for b in all_binds(program.body) if type(b.op) is Prim and b.vars[0].type == INT}
    if names.isdisjoint((*CHECKED, "abs", "//", "%")):
        return Overflows(set(), set(), plain)
    needed = _needed(program.body)
    walk(program.body)
    checked = {bind for bind in found if bind.vars[0] in needed}
    return Overflows(checked, (set(found) - checked) | lowest, plain)


def _needed(body: Block) -> set[Var]:
    """The Ints that a check depends on, here or in a function that is called."""
    needed: set[Var] = set()
    bodies = [body, *(f.body for f in functions_of(body) if f.body is not None)]
    binds = [bind for b in bodies for bind in all_binds(b)][::-1]

    def need(atoms: Iterable[Atom]) -> None:
        needed.update(a for a in atoms if type(a) is Var and a.type == INT)

    size = -1
    while len(needed) != size:  # again, where a loop or a branch hands on what is needed
        size = len(needed)
        for bind in binds:
            op = bind.op
            if type(op) is Check:
                need((op.a, op.b))
            elif type(op) is Prim and bind.vars[0] in needed:
                need(op.args)
            elif type(op) is If:
                for v, results in zip(bind.vars, zip(op.then.results, op.orelse.results)):
                    need(results if v in needed else ())
            elif type(op) in (Loop, While):
                for v, acc, init, result in zip(bind.vars, op.accs, op.inits, op.body.results):
                    need((acc, init, result) if v in needed or acc in needed else ())
            elif type(op) is Case:
                for k, v in enumerate(bind.vars):
                    need([arm.block.results[k] for arm in op.arms] if v in needed else ())
                for arm in op.arms:
                    fields = arm.constructor.fields  # type: ignore[union-attr]
                    need([f for f, v in zip(fields, arm.fields) if v in needed])
            elif type(op) is Make:
                need([a for f, a in zip(op.constructor.fields, op.args) if f in needed])
            elif type(op) is Apply:
                need([a for p, a in zip(op.function.params, op.args) if p in needed])
                results = op.function.body.results if op.function.body is not None else ()
                need([r for v, r in zip(bind.vars, results) if v in needed])
    return needed
