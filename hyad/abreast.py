"""Calls of one function on several numbers of straight-line code, as a short loop, which compilers make vectors of."""

from __future__ import annotations

from collections.abc import Sequence

from .core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    binds_of,
    blocks_of,
    reads,
    with_blocks,
    with_body,
)
from .twins import in_order

#: The functions that have a form without branches (``codegen/vector.py``), each with those that are computed together.
CALLS = {"sin": "wave", "cos": "wave", "tan": "tan", "exp": "exp", "expm1": "expm1", "tanh": "tanh"}
LEAST = 2  # calls are worth a loop, measured one by one: a vector takes the time of one of its numbers
WHOLE = 4  # numbers to a vector: a loop has as many iterations as whole vectors have numbers


def abreast(program: Program) -> Program:
    """Calls a function on several numbers at once, in a loop of its own: the sines of a robot's angles.

    ``a = (sin x) .. b = (sin y) .. c = (sin z)``  =>  ``u = [x y z z]``, ``v = (build 4 (fn [i] (sin (get u i))))``,
    ``a = (get v 0)``, ``b = (get v 1)``, ``c = (get v 2)``.

    Design decision: for ``math="vector"`` alone, whose functions have no branch and no call. A C library's function
    would be called one number at a time in the loop, too.
    """
    return with_body(program, in_loops(program.body))


def in_loops(block: Block) -> Block:
    """A block, and the regions in it, with loops for its calls; itself where there are none."""
    binds = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [in_loops(r) for r in regions]
        same = all(r is s for r, s in zip(regions, made))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    out: list[Bind] = []
    run: list[Bind] = []
    for x in (*binds, None):
        if x is not None and movable(x):
            run.append(x)
            continue
        out += gathered(run)
        run = []
        out += [] if x is None else [x]
    same = len(out) == len(block.binds) and all(x is y for x, y in zip(out, block.binds))
    return block if same else Block(tuple(out), block.results)


def movable(x: Bind) -> bool:
    """Whether a binding can stand anywhere between what it reads and what reads it: it may not fail, nor change an
    array."""
    return all(
        type(y.op) is If
        or type(y.op) is Loop
        and not y.op.accs
        or type(y.op) is Prim
        and y.op.name not in ("update", "add-at", "undef", "product")
        for y in binds_of(x)
    )


def gathered(run: Sequence[Bind]) -> Sequence[Bind]:
    """Bindings that can be put into another order, with loops for the calls among them. Calls with as many others
    before them do not need each other, and neither do loops of such."""
    level: dict[Var, int] = {}
    groups: dict[tuple[int, str], list[Bind]] = {}
    for x in run:
        op = x.op
        here = max((level.get(a, 0) for a in reads(x)), default=0)
        if type(op) is Prim and op.name in CALLS and type(op.args[0]) is Var and op.args[0].type == REAL:
            groups.setdefault((here, CALLS[op.name]), []).append(x)
            here += 1
        level.update(dict.fromkeys(x.vars, here))
    groups = {key: calls for key, calls in groups.items() if len({x.op.args[0] for x in calls}) >= LEAST}  # type: ignore
    if not groups:
        return run
    place = {x: k for k, x in enumerate(run)}
    taken = {x for calls in groups.values() for x in calls}
    binds: list[tuple[float, Bind]] = [(k, x) for x, k in place.items() if x not in taken]
    for calls in groups.values():
        first, span = place[calls[0]], calls[0].span
        args: list[Atom] = list(dict.fromkeys(x.op.args[0] for x in calls))  # type: ignore[union-attr]
        count = Const(-(-len(args) // WHOLE) * WHOLE, INT)
        padded = [*args, *[args[-1]] * (count.value - len(args))]
        array = Var(args[0].name, Arr(REAL, (count,)), span)  # type: ignore[union-attr]
        index, element = Var("k", INT, None, True), Var("x", REAL, span)
        body = [Bind((element,), Prim("get", (array, index)), span)]
        arrays: dict[str, Var] = {}
        for x in calls:
            name = x.op.name  # type: ignore[union-attr]
            if name not in arrays:
                body.append(Bind((Var(name, REAL, span),), Prim(name, (element,)), x.span))
                arrays[name] = Var(name, Arr(REAL, (count,)), span)
            read = Prim("get", (arrays[name], Const(args.index(x.op.args[0]), INT)))  # type: ignore[union-attr]
            binds.append((place[x], Bind(x.vars, read, x.span)))
        loop = Loop(count, index, (), (), Block(tuple(body), tuple(y.vars[0] for y in body[1:])))
        binds.append((first - 0.5, Bind((array,), Prim("array", tuple(padded)), span)))
        binds.append((first - 0.25, Bind(tuple(arrays.values()), loop, span)))
    return in_order(binds)
