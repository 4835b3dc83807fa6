"""What may run in parallel on a device with thousands of threads: reductions, and loops to be run as one.

``reductions`` says what the accumulators of a loop are: sums and the like, whose order does not matter, or arrays of
which each iteration has a part of its own. A loop of such accumulators alone runs in parallel; any other one is taken
in its order.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import type_of
from .core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Var,
    While,
    all_binds,
    atoms_of,
    binders_of,
    blocks_of,
    free_vars,
    most_uses,
    type_atoms,
)
from .primitives import PRIMITIVES

#: What is folded in any order, and by which operations.
FOLDED = {"sum": frozenset({"+", "-", "add-at"})}
FOLDED |= {kind: frozenset({name}) for kind, name in (("product", "*"), ("max", "max"), ("min", "min"))}
FOLDED |= {kind: frozenset({kind}) for kind in ("and", "or")}
COMMUTES = frozenset({"+", "*", "max", "min", "and", "or"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """What some accumulators of a loop are, by their numbers.

    ``kind`` is "sum", "product", "max", "min", "and", "or" of scalars; "place", the largest or smallest (``least``) one
    and where it is (``last``: the last of equals), two accumulators; "scatter", an array to whose elements is added
    wherever; "slice", an array of which each iteration reads and writes a part of its own, at the subscript ``at``
    (``read``: it does read it).
    """

    kind: str
    accs: tuple[int, ...]
    at: int = 0
    least: bool = False
    last: bool = False
    read: bool = False


def reductions(op: Loop) -> list[Reduction] | None:
    """What the accumulators of a loop are; None where one is none of these."""
    found: list[Reduction] = []
    made = made_in(op.body)
    done: set[int] = set()
    for k, acc in enumerate(op.accs):
        result = op.body.results[k]
        if k in done:
            continue
        if isinstance(acc.type, Arr):
            mine = own_slice(op, acc, result)
            if mine is not None:
                found.append(Reduction("slice", (k,), mine[0], read=mine[1]))
            elif acc.type.elem in (REAL, INT) and follows(op.body, acc, result, FOLDED["sum"]):
                found.append(Reduction("scatter", (k,)))
            else:
                return None
            continue
        pair = place_of(op, k, made)
        if pair is not None:
            found.append(pair)
            done.update(pair.accs)
            continue
        kind = folded(op.body, acc, result)
        if kind is None:
            return None
        found.append(Reduction(kind, (k,)))
    return found


def folded(block: Block, acc: Var, result: Atom) -> str | None:
    """``acc' = (+ acc e)``, ``(max acc e)`` and the like, through inner loops and branches, with no other use of
    either: the kind of it."""
    return next((kind for kind, names in FOLDED.items() if follows(block, acc, result, names)), None)


def follows(block: Block, start: Var, result: Atom, names: frozenset[str]) -> bool:
    """Whether ``result`` is ``start``, with something folded into it by the operations ``names`` alone, or as it was
    where a branch leaves it; and neither it nor what lies between is used for anything else."""
    made = made_in(block)
    number = {v: k for bind in block.binds for k, v in enumerate(bind.vars)}
    allowed = 1
    while result is not start:
        if type(result) is not Var or result not in made or most_uses(block, result) != allowed:
            return False
        op, k = made[result], number[result]
        allowed = 1
        if type(op) is Prim and op.name in names:
            sources = op.args if op.name in COMMUTES else op.args[:1]
            ways = [a for a in sources if a is start or type(a) is Var and depends(a, {start}, made)]
            if len(ways) != 1:
                return False
            (result,) = ways
        elif type(op) is Prim and op.name == "select":
            _, x, y = op.args
            if x is y:
                return False
            base = next((a for a, b in ((x, y), (y, x)) if type(a) is Var and between(block, a, b, names)), None)
            if base is None:
                return False
            result, allowed = base, 2
        elif type(op) is Loop and k < len(op.accs):
            if not follows(op.body, op.accs[k], op.body.results[k], names):
                return False
            result = op.inits[k]
        elif type(op) is If:
            bases = set()
            for branch in (op.then, op.orelse):
                r = branch.results[k]
                inside = {v for b in branch.binds for v in b.vars}
                if type(r) is Var and r not in inside:
                    bases.add(r)
                    continue
                ways = [v for v in free_vars(branch) if v is start or v in made and depends(v, {start}, made)]
                ways = [v for v in ways if depends(r, {v}, made_in(branch))]
                if len(ways) != 1 or not follows(branch, ways[0], r, names):
                    return False
                bases.add(ways[0])
            if len(bases) != 1:
                return False
            (result,) = bases
        else:
            return False
    return most_uses(block, start) == allowed


def between(block: Block, start: Var, result: Atom, names: frozenset[str]) -> bool:
    """``follows`` for two values of one block, of which the first is used in a ``select`` as well."""
    made = made_in(block)
    while result is not start:
        if type(result) is not Var or result not in made or most_uses(block, result) != 1:
            return False
        op = made[result]
        if type(op) is not Prim or op.name not in names:
            return False
        sources = op.args if op.name in COMMUTES else op.args[:1]
        ways = [a for a in sources if a is start or type(a) is Var and depends(a, {start}, made)]
        if len(ways) != 1:
            return False
        (result,) = ways
    return True


def made_in(block: Block) -> dict[Var, Op]:
    """What makes each variable that a block binds at its own level."""
    return {v: bind.op for bind in block.binds for v in bind.vars}


def place_of(op: Loop, k: int, made: dict) -> Reduction | None:
    """``acc' = (max acc t)  at' = (select (>= acc t) at i)``: the largest and where it is."""
    acc, best = op.accs[k], op.body.results[k]
    best_op = made.get(best)
    if acc.type not in (REAL, INT) or type(best_op) is not Prim or best_op.name not in ("max", "min"):
        return None
    others = [a for a in best_op.args if a is not acc]
    if len(others) != 1 or most_uses(op.body, acc) != 2 or most_uses(op.body, best) != 1:
        return None
    (t,) = others
    for j, at in enumerate(op.accs):
        chosen = made.get(op.body.results[j])
        if at is acc or at.type != INT or type(chosen) is not Prim or chosen.name != "select":
            continue
        cond, kept, new = chosen.args
        test = made.get(cond)
        if kept is not at or new is not op.index or type(test) is not Prim or len(test.args) != 2:
            continue
        if most_uses(op.body, at) != 1 or most_uses(op.body, op.body.results[j]) != 1:
            continue
        relation = test.name if test.args == (acc, t) else FLIPPED.get(test.name) if test.args == (t, acc) else None
        least = best_op.name == "min"
        if relation not in (("<=", "<") if least else (">=", ">")):
            continue
        return Reduction("place", (k, j), least=least, last=relation in ("<", ">"))
    return None


FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def own_slice(op: Loop, acc: Var, result: Atom) -> tuple[int, bool] | None:
    """The subscript at which each iteration has a part of an array accumulator to itself: wherever the accumulator or
    what it becomes is read or written, its subscript there is the loop's index plus something that no iteration
    changes, or that less the index, the same everywhere; and whether it is read."""
    inside = {v for bind in all_binds(op.body) for v in bind.vars}
    inside |= {v for bind in all_binds(op.body) if type(bind.op) is Loop for v in (bind.op.index, *bind.op.accs)}
    made = {v: bind.op for bind in all_binds(op.body) for v in bind.vars}
    versions: set[Var] = {acc}
    subscripts: list[tuple[Atom, ...]] = []
    read = False
    for bind in walk(op.body):
        o = bind.op
        if type(o) is Prim:
            if o.args and o.args[0] in versions and o.name in ("get", "update", "add-at"):
                subs = o.args[1:] if o.name == "get" else o.args[1:-1]
                if any(a in versions for a in o.args[1:]):
                    return None
                subscripts.append(subs)
                if o.name == "get":
                    read = True
                    if isinstance(bind.vars[0].type, Arr):
                        return None  # a view, which may be handed on
                else:
                    versions.update(bind.vars)
            elif any(a in versions for a in o.args):
                return None
        elif type(o) is Loop:
            for z, a, r, v in zip(o.inits, o.accs, o.body.results, bind.vars):
                if z in versions:
                    versions.update((a, v))
            if any(r in versions for r in o.body.results[len(o.accs) :]):
                return None
        elif type(o) is If:
            for k, v in enumerate(bind.vars):
                ends = [block.results[k] for block in (o.then, o.orelse)]
                if any(e in versions for e in ends):
                    if not all(e in versions for e in ends):
                        return None
                    versions.add(v)
        elif any(a in versions for a in atoms_of(o)) or any(v in versions for b in blocks_of(o) for v in free_vars(b)):
            return None
    if result not in versions or not subscripts or any(r in versions for r in op.body.results[len(op.accs) :]):
        return None
    if sum(r in versions for r in op.body.results) != 1:
        return None
    for at in range(min(map(len, subscripts))):
        first = subscripts[0][at]
        key = offset_from(first, op.index, made, inside)
        if key is not None and all(offset_from(s[at], op.index, made, inside) == key for s in subscripts):
            return at, read
    return None


def walk(block: Block):
    """Bindings, a loop before its body, a branch after its blocks."""
    for bind in block.binds:
        if type(bind.op) is If:
            for b in blocks_of(bind.op):
                yield from walk(b)
            yield bind
        else:
            yield bind
            for b in blocks_of(bind.op):
                yield from walk(b)


def offset_from(sub: Atom, index: Var, made: dict, inside: set[Var]) -> tuple | None:
    """What is added to the index in a subscript, or what it is taken from, as a key; None where it is neither."""
    if sub is index:
        return ()
    op = made.get(sub)
    if type(op) is not Prim or op.name not in ("+", "-") or len(op.args) != 2:
        return None
    a, b = op.args
    if op.name == "+" and b is index:
        a, b = b, a
    if a is index and (type(b) is Const or b not in inside):
        return (op.name, b.value if type(b) is Const else id(b))
    if op.name == "-" and b is index and (type(a) is Const or a not in inside):
        return ("back", a.value if type(a) is Const else id(a))
    return None


def reads(bind: Bind) -> dict[Var, None]:
    """The variables that a binding reads, sizes of what it makes included."""
    out: dict[Var, None] = {a: None for a in atoms_of(bind.op) if isinstance(a, Var)}
    for b in blocks_of(bind.op):
        out.update(free_vars(b))
    for v in binders_of(bind.op):
        out.pop(v, None)
    for v in bind.vars:
        out.update({d: None for d in type_atoms(v.type) if isinstance(d, Var) and d not in bind.vars})
    return out


def changed(bind: Bind, k: int) -> Atom | None:
    """The array that a binding's variable is a later state of."""
    op = bind.op
    if isinstance(op, Prim) and op.name in ("update", "add-at"):
        return op.args[0]
    if isinstance(op, (Loop, While)) and k < len(op.accs) and isinstance(op.accs[k].type, Arr):
        return op.inits[k]
    return None


# ---------------------------------------------------------------------------------------- nests of loops

#: The work of the statements between two loops, in additions, that may be done again in each inner iteration.
AGAIN = 48


def nest(bind: Bind) -> list[Bind]:
    """A parallel loop and the loops inside it that can be run with it as one, each the only loop of the one before."""
    found = [bind]
    while True:
        op = found[-1].op
        inner = next_level(op)
        if inner is None:
            return found
        bound = {b.op.index for b in found}
        between = {v for b in found for x in b.op.body.binds for v in x.vars}
        count = inner.op.count
        if type(count) is Var and (count in bound or count in between):
            return found
        found.append(inner)


def next_level(op: Loop) -> Bind | None:
    """The one inner loop that does all that a loop does, but for scalars that are cheap."""
    *before, last = op.body.binds or (None,)
    if last is None or type(last.op) is not Loop or not last.op.body.binds and not last.op.body.results:
        return None
    inner, n = last.op, len(op.accs)
    if not all(type(b.op) is Prim and (type_of(b.vars[0]) in (REAL, INT, BOOL) or b.op.name == "get") for b in before):
        return None
    if sum(work(b.op) for b in before) > AGAIN:
        return None
    m = len(inner.accs)
    if m != n or len(inner.body.results) - m != len(op.body.results) - n:
        return None
    for k, r in enumerate(op.body.results):
        if r not in last.vars:
            return None
        j = last.vars.index(r)
        if (j < m) != (k < n) or j < m and inner.inits[j] is not op.accs[k]:
            return None
    if set(op.body.results) != set(last.vars):
        return None
    outer, within = reductions(op), reductions(inner)
    if within is None or outer is None or any(r.kind == "place" for r in (*outer, *within)):
        return None
    return last


def work(op: Prim) -> float:
    if op.name in PRIMITIVES:
        return PRIMITIVES[op.name].cost
    return 2.0 if op.name == "get" else 1.0


def sequential(op: Loop | While) -> str:
    """Why a loop is taken in its order."""
    if type(op) is While:
        return "each iteration of a `while` needs the one before"
    return "each iteration needs the one before, and what it accumulates is no sum, product, minimum or maximum"


# ------------------------------------------------------------------------------------------- folds of rows

#: Iterations from which on a fold is worth a team of threads.
TEAM = 32


def folded_rows(levels: list[Bind]) -> list[Bind]:
    """The loops in the body of a nest that each fold rows of memory, so that neighbouring threads had better share a
    row than have one each. None where threads side by side read what lies side by side as it is, where anything but
    scalars is made in the body, or where a check stands in it."""
    body = levels[-1].op.body
    index = levels[-1].op.index
    if any(type(b.op) is Check for level in levels for b in all_binds(level.op.body)):
        return []
    for level in levels:
        for r in reductions(level.op) or ():
            if r.kind == "slice" and r.read:
                return []
    made = {v: b.op for b in all_binds(levels[0].op.body) for v in b.vars}
    places = {level.op.index for level in levels}
    found = []
    for bind in body.binds:
        op = bind.op
        if type(op) is Prim:
            written = op.name in ("update", "add-at") and not isinstance(type_of(op.args[-1]), Arr)
            if isinstance(bind.vars[0].type, Arr) and not written and op.name != "get":
                return []
        elif not all(scalars(b) for b in [bind, *(x for r in blocks_of(op) for x in all_binds(r))]):
            return []
        elif type(op) is not Loop:
            continue
        else:
            kinds = reductions(op)
            if kinds is None or any(r.kind == "place" for r in kinds):
                continue
            if type(op.count) is Const and op.count.value < TEAM:
                continue
            across = along = False
            inside = {v for b in all_binds(op.body) for v in b.vars}
            for b in all_binds(op.body):
                if type(b.op) is not Prim or b.op.name != "get" or isinstance(b.vars[0].type, Arr):
                    continue
                array, *subs = b.op.args
                above = [array, *subs[:-1]]
                if offset_from(subs[-1], op.index, made, inside) is not None:
                    along |= any(depends(a, places, made) for a in above)
                elif any(depends(a, {op.index}, made) for a in above):
                    across |= offset_from(subs[-1], index, made, inside) is not None
            if along and not across:
                found.append(bind)
    return found


def scalars(bind: Bind) -> bool:
    """Whether a binding makes nothing but scalars and views."""
    arrays = any(isinstance(v.type, Arr) for v in bind.vars)
    return not arrays or type(bind.op) is Prim and bind.op.name == "get"


def depends(atom: Atom, variables: set[Var], made: dict) -> bool:
    """Whether a value is computed from any of some variables, by what ``made`` says of each."""
    todo, seen = [atom], set()
    while todo:
        a = todo.pop()
        if a in variables:
            return True
        if type(a) is Var and a in made and a not in seen:
            seen.add(a)
            op = made[a]
            todo += atoms_of(op)
            todo += [v for b in blocks_of(op) for v in free_vars(b)]
    return False
