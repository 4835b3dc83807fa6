"""Calls as loops of their own, which compilers make vectors of: those of straight-line code, and those before sums."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import (
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
CALLS = {"sin": "wave", "cos": "wave"} | {name: name for name in ("tan", "exp", "expm1", "log", "log1p", "tanh")}
LEAST = 2  # calls are worth a loop, measured one by one: a vector takes the time of one of its numbers
WHOLE = 4  # numbers to a vector: a loop has as many iterations as whole vectors have numbers
WAVES = frozenset({"sin", "cos", "tan"})  # whose loops may have to be run again
TILE = 32  # iterations have their calls ahead of the rest
MOST = 12  # in an iteration


def abreast(program: Program) -> Program:
    """Calls a function on several numbers at once, in a loop that vectorises: the sines of a robot's angles.

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


def calls_first(program: Program) -> Program:
    """Moves calls ahead of the sums and array changes of a loop, for some iterations at a time, so that they vectorise.

    ``(ifold (fn [v i] (add-at v i (* (get u i) (sin (get x i))))) v n)``  =>  for 32 ``i`` at a time first a loop for
    ``w``, whose elements are ``(sin (get x i))``, then one that does ``(add-at v i (* (get u i) (get w k)))``.

    Design decision: a C compiler makes no vectors, or poor ones, of a loop with a sum that has an order, which each sum
    keeps; and a loop of sines is run again where an argument is too large (``codegen/vector.py``), which one that
    changes what it reads cannot be.
    """
    return with_body(program, with_tiles(program.body, frozenset()))


def with_tiles(block: Block, states: frozenset[Atom]) -> Block:
    """A block, and the regions in it, with the calls of its loops ahead; itself where there are none. ``states``: the
    arrays that the loops around hand on, which a loop may write in place."""
    binds: list[Bind] = []
    for x in block.binds:
        op = x.op
        first = ahead(op, states) if type(op) is Loop else []
        if first:
            binds += tiled(x, op, first)  # type: ignore[arg-type]
            continue
        around = states.union(a for a in op.accs if isinstance(a.type, Arr)) if type(op) is Loop else states
        regions = blocks_of(op)
        made = [with_tiles(r, around) for r in regions]
        same = all(r is s for r, s in zip(regions, made))
        binds.append(x if same else Bind(x.vars, with_blocks(op, made), x.span))
    same = len(binds) == len(block.binds) and all(x is y for x, y in zip(binds, block.binds))
    return block if same else Block(tuple(binds), block.results)


def ahead(op: Loop, states: frozenset[Atom]) -> list[Bind]:
    """What an innermost loop had better compute before the rest: its calls, where they do not wait for the iteration
    before, or what is made of them, if those are no more numbers."""
    body = op.body
    if any(type(x.op) is not Prim for x in body.binds) or type(op.count) is Const and op.count.value < WHOLE:
        return []
    late: set[Atom] = set(op.accs)
    early: dict[Atom, Bind] = {}
    rest: list[Bind] = []
    for x in body.binds:
        if late.isdisjoint(reads(x)):
            early[x.vars[0]] = x
        else:
            late.update(x.vars)
            rest.append(x)
    calls = [x for x in early.values() if x.op.name in CALLS]  # type: ignore[union-attr]
    if not calls or len(calls) > MOST:
        return []
    if not op.accs:
        in_place = any(x.op.name == "get" and x.op.args[0] in states for x in body.binds)  # type: ignore[union-attr]
        return [x for x in calls if x.op.name in WAVES] if in_place else []  # type: ignore[union-attr]
    if len(body.results) > len(op.accs) or all(x.op.name == "update" for x in rest):  # type: ignore[union-attr]
        return []
    read = {a for x in rest for a in reads(x)}.union(body.results)
    made = [x for v, x in early.items() if v in read and v.type == REAL and x.op.name != "get"]  # type: ignore
    return made if len(made) <= len(calls) else calls


def tiled(bind: Bind, op: Loop, ahead: Sequence[Bind]) -> list[Bind]:
    """What takes the place of such a loop."""
    span, made = bind.span, []

    def number(block: list[Bind], name: str, *args: Atom) -> Var:
        block.append(Bind((Var("t", INT, span),), Prim(name, args), span))
        return block[-1].vars[0]

    if not op.accs or type(op.count) is Const and op.count.value <= TILE:
        arrays = before(made, op, ahead, op.count)
        return [*made, Bind(bind.vars, behind(op, op.inits, arrays, op.count), span)]
    size, tile = Const(TILE, INT), Var("tile", INT, span)
    tiles = number(made, "//", number(made, "+", op.count, Const(TILE - 1, INT)), size)
    body: list[Bind] = []
    first = number(body, "*", size, tile)
    left = number(body, "min", size, number(body, "-", op.count, first))
    arrays = before(body, op, ahead, left, first)
    accs, outs = tuple(map(like, op.accs)), tuple(map(like, bind.vars))
    body.append(Bind(outs, behind(op, accs, arrays, left, first), span))
    return [*made, Bind(bind.vars, Loop(tiles, tile, op.inits, accs, Block(tuple(body), outs)), span)]


def before(out: list[Bind], op: Loop, ahead: Sequence[Bind], count: Atom, first: Var | None = None) -> dict[Bind, Var]:
    """Adds the loop of what goes ahead to ``out``; the arrays that it makes. Those of a tile, from iteration ``first``
    on, have room for a whole one."""
    makers = {x.vars[0]: x for x in op.body.binds}
    needed: set[Bind] = set()
    todo = list(ahead)
    while todo:
        x = todo.pop()
        if x not in needed:
            needed.add(x)
            todo += [makers[a] for a in reads(x) if a in makers]
    k, body = like(op.index), []
    here: dict[Atom, Atom] = {op.index: k}
    if first is not None:
        here[op.index] = like(op.index)
        body.append(Bind((here[op.index],), Prim("+", (first, k)), None))  # type: ignore[arg-type]
    for x in op.body.binds:
        if x in needed:
            v = here[x.vars[0]] = like(x.vars[0])
            body.append(Bind((v,), Prim(x.op.name, tuple(here.get(a, a) for a in x.op.args)), x.span))  # type: ignore
    arrays = {x: Var(x.vars[0].name, Arr(REAL, (count,)), x.span) for x in ahead}
    results = [here[x.vars[0]] for x in ahead]
    if first is None:
        loop = Loop(count, k, (), (), Block(tuple(body), tuple(results)))
    else:
        arrays = {x: Var(x.vars[0].name, Arr(REAL, (Const(TILE, INT),)), x.span) for x in ahead}
        rooms, accs, full = ([like(v) for v in arrays.values()] for _ in range(3))
        for x, room, acc, result, r in zip(ahead, rooms, accs, full, results):
            out.append(Bind((room,), Prim("undef", ()), x.span))
            body.append(Bind((result,), Prim("update", (acc, k, r)), x.span))
        loop = Loop(count, k, tuple(rooms), tuple(accs), Block(tuple(body), tuple(full)))
    out.append(Bind(tuple(arrays.values()), loop, ahead[0].span))
    return arrays


def behind(op: Loop, inits: tuple[Atom, ...], arrays: dict[Bind, Var], count: Atom, first: Var | None = None) -> Loop:
    """The loop with what went ahead looked up."""
    k = op.index if first is None else like(op.index)
    body = [] if first is None else [Bind((op.index,), Prim("+", (first, k)), None)]
    for x in op.body.binds:
        body.append(Bind(x.vars, Prim("get", (arrays[x], k)), x.span) if x in arrays else x)
    return Loop(count, k, inits, op.accs, Block(tuple(body), op.body.results))


def like(v: Var) -> Var:
    """Another variable of its kind."""
    return Var(v.name, v.type, v.span, v.given, v.soft)
