"""Rows that a team of threads has: what is done with each row of a matrix as few passes over it, in one kernel.

What becomes of a row often needs no other row: its largest element, the sum of what is made of its elements, these
divided by that sum. A team of threads that has a row takes *passes* over it. Each thread has every so-many-th element,
in all passes the same ones; a fold is known to all of them before the next pass begins, and what one pass makes of an
element the next one finds where the same thread has left it, near the processor::

    (map softmax a)
    =>  (build n (fn [i]
          (let [t (ifold (fn [acc j] (max acc (get a i j))) .. m)
                #(s e) (loop m (fn [j acc] (let [x (exp (- (get a i j) t))] #((+ acc x) x))) 0.0)]
            (build m (fn [j] (/ (get e j) s))))))

``passes`` puts the inner loops of a loop over rows together so: two are one pass unless the second needs what the first
folds. What is no such loop (a product with a matrix, sums of columns) stands before or after. ``team_loops`` says which
loops of a nest a team shares; it is asked again when a kernel is printed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..core import (
    BOOL,
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
    Type,
    Var,
    all_binds,
    atoms_of,
    binds_of,
    blocks_of,
    free_vars,
    most_uses,
    reads,
    same,
    substitute,
    type_of,
    with_blocks,
)
from ..passes.checks import in_range
from ..passes.spread import depends, offset_from, reductions, work
from ..program.dead import has_checks, tidy
from ..program.journal import on

NAME = "teams"  # of the optimisation, to switch it off
TEAM = 32  # iterations from which on a row whose length is known is worth a team
AGAIN = 8.0  # the work of an element, in additions, that is done again in a later pass rather than kept
INNER = 8  # iterations of a loop for each element that leave it one


# ------------------------------------------------------------------------------------- what a team shares


def team_loops(levels: Sequence[Bind], near: Iterable[Var] = (), few: bool = False) -> list[Bind]:
    """The loops in the body of a nest that a team of threads shares: those that each fold a row of memory, so that
    neighbouring threads had better share a row than have one each; and beside them those that make rows, where what
    they make is used element by element. None where threads side by side read what lies side by side as it is, or
    where the body makes other arrays. With ``few`` any that fold scalars, whatever they read: where there are so few
    places that each may have several threads."""
    body, index = levels[-1].op.body, levels[-1].op.index
    if not on(NAME):
        return []
    for level in levels:
        if any(r.kind == "slice" and r.read for r in reductions(level.op) or ()):
            return []
    made = {v: b.op for b in all_binds(levels[0].op.body) for v in b.vars}
    places = {*near, *(level.op.index for level in levels)}
    makers = [b for b in body.binds if makes_rows(b)]
    mine = {v for b in makers for v in b.vars if isinstance(v.type, Arr)}
    found, folds = [], 0
    given: set[Atom] = {acc for level in levels for acc in level.op.accs}
    for bind in body.binds:
        op = bind.op
        if type(op) is Prim:
            written = op.name in ("update", "add-at") and not isinstance(type_of(op.args[-1]), Arr)
            if written and op.args[0] in given:  # by one thread, what no other one of the team reads
                given.add(bind.vars[0])
            elif isinstance(bind.vars[0].type, Arr) and op.name != "get":
                own = op.name == "array" and bind.vars[0] in body.results and most_uses(body, bind.vars[0]) == 1
                if not own or any(isinstance(type_of(a), Arr) for a in op.args):
                    return []  # more than a short row for the result, by one thread
        elif bind in makers:
            found.append(bind)
            folds += len(op.accs)
        elif not all(scalars(b) for b in binds_of(bind)):
            return []
        elif type(op) is Loop and reductions(op) is not None:
            if makers and same(op.count, makers[0].op.count):
                found.append(bind)
            elif not (type(op.count) is Const and op.count.value < TEAM):
                along, across = reading(op, places, index, made)
                if few or along and not across:
                    found.append(bind)
            folds += bind in found
    if not makers:
        return found
    count = makers[0].op.count
    if not folds or not all(same(b.op.count, count) for b in makers) or type(count) is Const and count.value < TEAM:
        return []
    ways = [reading(b.op, places, index, made) for b in found]
    if any(across for _, across in ways) or not any(along for along, _ in ways):
        return []
    return found if all(own_elements(body, v, found) for v in mine) and rows_alone(levels[-1].op, mine) else []


def across_rows(levels: Sequence[Bind], shared: Sequence[Bind]) -> bool:
    """Whether loops in the body of a nest read what threads side by side read side by side, as those that fold the
    columns of a matrix do."""
    made = {v: b.op for b in all_binds(levels[0].op.body) for v in b.vars}
    places = {level.op.index for level in levels}
    return any(reading(b.op, places, levels[-1].op.index, made)[1] for b in shared)


def makes_rows(bind: Bind) -> bool:
    """Whether a binding is a loop that folds scalars, if anything, and stacks scalars."""
    op = bind.op
    if type(op) is not Loop or not any(isinstance(v.type, Arr) for v in bind.vars):
        return False
    return not any(isinstance(v.type, Arr) for v in op.accs) and elementwise(op) and reductions(op) is not None


def elementwise(op: Loop) -> bool:
    """Whether a loop's body makes nothing but scalars, without loops that are worth one of their own."""
    for b in all_binds(op.body):
        if not scalars(b) or type(b.op) is Loop and not (type(b.op.count) is Const and b.op.count.value <= INNER):
            return False
    return all(not isinstance(type_of(r), Arr) for r in op.body.results)


def reading(op: Loop, places: set[Var], index: Var, made: dict) -> tuple[bool, bool]:
    """How a loop in the body of a nest reads memory: along rows of its own, across rows that threads side by side
    read side by side."""
    along = across = False
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
    return along, across


def own_elements(body: Block, row: Var, shared: Sequence[Bind]) -> bool:
    """Whether a row that is made in a body is read there by the loops ``shared`` alone, each iteration its own
    element."""
    for bind in body.binds:
        if row not in reads(bind):
            continue
        if bind not in shared or row in atoms_of(bind.op) or not own_reads(bind.op, row):
            return False
    return True


def own_reads(op: Loop, row: Var) -> bool:
    """Whether a loop reads a row at its own index alone."""
    for b in all_binds(op.body):
        own = type(b.op) is Prim and b.op.name == "get" and b.op.args[0] is row and b.op.args[1:] == (op.index,)
        if row in atoms_of(b.op) and not own:
            return False
        if any(row in block.results for block in blocks_of(b.op)):
            return False
    return row not in op.body.results


def rows_alone(op: Loop, rows: set[Var]) -> bool:
    """Whether the arrays that a loop over rows stacks are rows of its own, each once; the others are real numbers."""
    arrays = [r for r in op.body.results if isinstance(type_of(r), Arr)]
    if len(set(arrays)) != len(arrays) or not all(r in rows for r in arrays):
        return False
    return all(v.type.elem == REAL for v in rows if v not in arrays)


def scalars(bind: Bind) -> bool:
    """Whether a binding makes nothing but scalars and views."""
    arrays = any(isinstance(v.type, Arr) for v in bind.vars)
    return not arrays or type(bind.op) is Prim and bind.op.name == "get"


# ------------------------------------------------------------------------------------------ rows in pieces

#: What may be folded in pieces, and how these are put together.
PIECED = {"sum": "+", "product": "*", "max": "max", "min": "min", "and": "and", "or": "or"}
IDENTITY = {"sum": 0.0, "product": 1.0, "max": -math.inf, "min": math.inf}
WHOLE = {"sum": 0, "product": 1, "max": -(2**63), "min": 2**63 - 1, "and": True, "or": False}


@dataclass(frozen=True, slots=True)
class TwoFolds:
    """A nest of loops each of which folds a row in two: ``first``, what each piece of a row gives, by row and piece,
    and ``second``, that folded, with what is made of it. The other ones are integers: how many pieces a row has
    (``many``) and how long they are (``most``, or one less; ``left``) are the host's to know, ``each`` is how long one
    is. ``twice``: a piece is read twice, and had better be small enough for a cache."""

    first: Bind
    second: Bind
    many: Var
    most: Var
    left: Var
    each: Var
    twice: bool = False


def cut_in_pieces(count: Atom, piece: Var, most: Var, each: Var) -> tuple[list[Bind], Var]:
    """Bindings that compute how many elements of so many a piece has; and where the piece begins."""
    start, rest = Var("start", INT), Var("rest", INT)
    return [
        Bind((start,), Prim("*", (piece, most))),
        Bind((rest,), Prim("-", (count, start))),
        Bind((each,), Prim("min", (most, rest))),
    ], start


def in_pieces(levels: Sequence[Bind], shared: Sequence[Bind], apart: bool = False) -> TwoFolds | None:
    """A nest over rows, each folded by the one loop that a team shares, in pieces; with ``apart`` a piece has every
    ``many``-th element, and the first ``left`` of them have one more than ``most``. None where a body does more::

        (build n (fn [i] (f (fold + 0.0 (get a i)))))
        =>  p = (build [n many] (fn [i k] (fold + 0.0 (cut (get a i) (* k most) (* (+ k 1) most)))))
            (build n (fn [i] (f (fold + 0.0 (build many (fn [k] (get p i k)))))))
    """
    bind = levels[-1]
    op, (fold, *more) = bind.op, shared
    body, kinds, n = op.body, reductions(fold.op) or [], len(fold.op.accs)
    others = [b for b in body.binds if b is not fold]
    scalar = not any(isinstance(type_of(r), Arr) for r in (*body.results, *fold.op.body.results))
    if more or op.accs or not scalar or len(fold.vars) != n or any(r.kind not in PIECED for r in kinds):
        return None
    if not all(type(c.op) in (Prim, If) and scalars(c) for b in others for c in binds_of(b)):
        return None
    before = body.binds[: body.binds.index(fold)]
    many, most, left, piece, k, each = (Var(name, INT) for name in "many most left piece k each".split())
    kind = {r.accs[0]: r.kind for r in kinds}
    zeros = [
        Const(IDENTITY[kind[j]] if acc.type == REAL else WHOLE[kind[j]], acc.type) for j, acc in enumerate(fold.op.accs)
    ]
    if apart:
        longer, one, further = Var("longer", BOOL), Var("one", INT), Var("further", INT)
        counting = [
            Bind((longer,), Prim("<", (piece, left))),
            Bind((one,), Prim("select", (longer, Const(1, INT), Const(0, INT)))),
            Bind((each,), Prim("+", (most, one))),
        ]
        at = [Bind((further,), Prim("*", (k, many))), Bind((fold.op.index,), Prim("+", (further, piece)))]
    else:
        counting, start = cut_in_pieces(fold.op.count, piece, most, each)
        at = [Bind((fold.op.index,), Prim("+", (start, k)))]
    inner = Loop(each, k, tuple(zeros), fold.op.accs, Block((*at, *fold.op.body.binds), fold.op.body.results))
    made = tuple(Var(v.name, v.type, v.span) for v in fold.vars)
    rows = tuple(Var(v.name, Arr(v.type, (many,)), v.span) for v in fold.vars)
    pieces = Loop(many, piece, (), (), Block((*counting, Bind(made, inner, fold.span)), made))
    first = Bind(rows, pieces, fold.span)
    around = before
    for level in reversed(levels):
        parts = tuple(Var(f"{v.name}_pieces" if level is levels[0] else v.name, deeper(v.type, level), v.span)
                      for v in first.vars)  # fmt: skip
        block = Block((*around, first), first.vars)
        first = Bind(parts, replace(level.op, body=tidy(block) if level is bind else block), level.span)
        around = level_before(levels, level)
    again = tuple(Var(acc.name, acc.type) for acc in fold.op.accs)
    found = [Var(v.name, v.type) for v in fold.vars]
    sums = tuple(Var(v.name, v.type) for v in fold.vars)
    places = [level.op.index for level in levels]
    reading = [Bind((x,), Prim("get", (p, *places, piece))) for x, p in zip(found, first.vars)]
    adding = [Bind((s,), Prim(PIECED[kind[j]], (again[j], found[j]))) for j, s in enumerate(sums)]
    total = Loop(many, piece, fold.op.inits, again, Block((*reading, *adding), sums))
    whole = [Bind(fold.vars, total, fold.span) if b is fold else b for b in body.binds]
    second = replace(op, body=tidy(Block(tuple(whole), body.results)))
    for level in reversed(levels[:-1]):
        inside = levels[levels.index(level) + 1]
        block = Block((*level.op.body.binds[:-1], Bind(inside.vars, second, inside.span)), level.op.body.results)
        second = replace(level.op, body=block)
    last = tuple(Var(v.name, v.type, v.span, v.given) for v in levels[0].vars)
    return TwoFolds(first, Bind(last, second, levels[0].span), many, most, left, each)


def deeper(t: Type, level: Bind) -> Arr:
    """The type of what a level of a nest stacks."""
    return Arr(t.elem, (level.op.count, *t.dims))


def level_before(levels: Sequence[Bind], level: Bind) -> tuple[Bind, ...]:
    """What stands before a level of a nest in the body of the one around it."""
    k = levels.index(level)
    return levels[k - 1].op.body.binds[:-1] if k else ()


# ------------------------------------------------------------------------------------------------- passes


@dataclass(slots=True)
class Pass:
    """One pass over a row: loops of one count as one."""

    index: Var
    binds: list[Bind] = field(default_factory=list)
    accs: list[tuple[Var, Var, Atom, Atom]] = field(default_factory=list)  # final, accumulator, start, next
    rows: list[tuple[Var, Atom]] = field(default_factory=list)  # a row and its element


def written_out(op: Loop) -> Loop:
    """A loop in which rows from elsewhere that it stacks are copied by loops."""
    n = len(op.accs)
    made = {v for b in op.body.binds if not (type(b.op) is Prim and b.op.name == "get") for v in b.vars}
    results, more = list(op.body.results), []
    for k in range(n, len(results)):
        r = results[k]
        if type(r) is Var and isinstance(r.type, Arr) and r.type.rank == 1 and r not in made and r not in op.accs:
            index, x, row = Var("j", INT), Var(r.name, r.type.elem), Var(r.name, r.type)
            block = Block((Bind((x,), Prim("get", (r, index))),), (x,))
            more.append(Bind((row,), Loop(r.type.dims[0], index, (), (), block)))
            results[k] = row
    return replace(op, body=Block((*op.body.binds, *more), tuple(results))) if more else op


def passes(bind: Bind) -> tuple[Bind, list[list[Bind]]] | None:
    """A loop over rows, its body put in another order: groups of bindings that a team is to do, each as few passes
    over the row, and the rest before and behind them. None where there is no such group."""
    found = (passes_over(bind, count) for count in row_counts(bind.op.body))
    return next((arranged for arranged in found if arranged is not None), None)


def passes_over(bind: Bind, count: Atom) -> tuple[Bind, list[list[Bind]]] | None:
    """``passes`` over rows of one length."""
    op = bind.op
    body = tidy(Block(tuple(from_the_least(op.body.binds)), op.body.results))
    op = replace(op, body=body)
    made = {v: b.op for b in op.body.binds for v in b.vars}
    epoch: dict[Var, int] = {}
    rows: set[Var] = set()
    first: list[list[Bind]] = []  # all bindings of each epoch
    groups: list[list[Bind]] = []
    between: list[list[Bind]] = []

    def put(b: Bind, place: list[list[Bind]], later: int) -> None:
        near = type(b.op) is Loop and place is groups
        e = 0
        for v in reads(b):
            own = v not in rows or near and v not in atoms_of(b.op) and own_reads(b.op, v)
            e = max(e, epoch.get(v, 0) + (not own))
        while len(groups) <= e:
            for lists in (first, groups, between):
                lists.append([])
        first[e].append(b)
        place[e].append(b)
        epoch.update(dict.fromkeys(b.vars, e + later))

    for b in op.body.binds:
        if row_loop(b, count):
            mine, rest = parted(b, made)
            if mine is not None:
                put(mine, groups, 0)
                rows.update(v for v in mine.vars if isinstance(v.type, Arr))
            if rest is not None:
                put(rest, between, 1)
        elif all(scalars(x) for x in binds_of(b)):
            put(b, groups, 0)
        else:
            put(b, between, int(not (type(b.op) is Prim and b.op.name in ("zeros", "undef"))))
    out: list[Bind] = []
    chosen: list[list[Bind]] = []
    for e, group in enumerate(groups):
        together = merged(group, count)
        others = [b for lists in first for b in lists if b not in group]
        wanted = {v for b in others for v in reads(b)} | {r for r in op.body.results if type(r) is Var}
        block = tidy(Block(tuple(together), tuple(v for b in together for v in b.vars if v in wanted)))
        vars_ = tuple(Var(r.name, REAL) for r in block.results)
        hypothetical = Bind(vars_, Loop(op.count, op.index, (), (), block))
        shared = team_loops([hypothetical], {v for b in others for v in b.vars})
        if shared and all(b in shared for b in block.binds if type(b.op) is Loop and same(b.op.count, count)):
            zeros = [b for b in between[e] if type(b.op) is Prim and b.op.name in ("zeros", "undef")]
            out += [*zeros, *block.binds, *(b for b in between[e] if b not in zeros)]
            chosen.append(list(block.binds))
        else:
            out += first[e]
    if not chosen:
        return None
    loop = Loop(op.count, op.index, op.inits, op.accs, Block(tuple(out), op.body.results))
    return Bind(bind.vars, loop, bind.span), chosen


def joined(block: Block) -> Block:
    """A block in which loops over the same rows are one, where the second needs of what the first makes but its own
    row and a team can do both."""
    out: list[Bind] = []
    for b in block.binds:
        out.append(b)
        k = len(out) - 1
        while (found := join(out, k)) is not None:
            k = found
    return Block(tuple(out), block.results)


def join(binds: list[Bind], q: int) -> int | None:
    """Let one loop and an earlier one be one, where it stands now; None where there is no such loop."""
    b, read = binds[q], reads(binds[q])
    if type(b.op) is not Loop:
        return None
    for p in range(q - 1, -1, -1):
        a = binds[p]
        if type(a.op) is not Loop or not any(v in read for v in a.vars) or not same(a.op.count, b.op.count):
            continue
        between = {v for x in binds[p + 1 : q] for v in x.vars}
        checked = has_checks(Block(tuple(binds[p + 1 : q]), ()))  # the second may be in range because of it
        if has_checks(a.op.body) and (checked or not in_range(b, a)):
            continue
        late = checked or any(v in between for v in read)
        if late and any(v in a.vars for x in binds[p + 1 : q] for v in reads(x)):
            continue
        both = one_loop(a, b)
        arranged = passes(both) if both is not None else None
        if arranged is None or not whole(*arranged):
            continue
        del binds[q], binds[p]
        place = q - 1 if late else p
        binds.insert(place, arranged[0])
        return place
    return None


def one_loop(a: Bind, b: Bind, chained: Collection[Var] | None = None) -> Bind | None:
    """Two parallel loops as one; None where the second reads more of what the first makes than its own row. Those of
    the first one's accumulators that are ``chained`` the second goes on with, and nothing else reads them; where that
    is said it reads other arrays that the first changes as they are then: who asks sees to it that it reads its own
    parts."""
    x, y = a.op, b.op
    n = len(x.accs)
    goes_on = {a.vars.index(z): j for j, z in enumerate(y.inits) if z in (chained or ())}
    rest = [j for j in range(len(y.accs)) if j not in goes_on.values()]
    if reductions(x) is None or reductions(y) is None or x.snapshots is not None or y.snapshots is not None:
        return None
    row = dict(zip(a.vars[n:], x.body.results[n:]))
    found = [v for v in free_vars(y.body) if v in a.vars[:n]]
    if any(chained is None or v in chained or not isinstance(v.type, Arr) for v in found):
        return None
    if any(y.inits[j] in a.vars for j in rest):
        return None
    alias: dict[Var, Atom] = {y.index: x.index} | {y.accs[j]: x.body.results[p] for p, j in goes_on.items()}
    alias |= {v: x.body.results[a.vars.index(v)] for v in found}

    def own(block: Block) -> Block | None:
        out = []
        for c in block.binds:
            op = c.op
            if type(op) is Prim and op.name == "get" and op.args[0] in row and op.args[1] is y.index:
                here = row[op.args[0]]
                if len(op.args) == 2:
                    alias[c.vars[0]] = here
                    continue
                out.append(Bind(c.vars, Prim("get", (here, *op.args[2:])), c.span))
                continue
            if any(v in row for v in atoms_of(op)):
                return None
            inner = [own(r) for r in blocks_of(op)]
            if None in inner:
                return None
            out.append(Bind(c.vars, with_blocks(op, inner), c.span) if inner else c)
        return None if any(r in row for r in block.results) else Block(tuple(out), block.results)

    second = own(y.body)
    if second is None:
        return None
    second = substitute(second, alias)
    first = [second.results[goes_on[p]] if p in goes_on else r for p, r in enumerate(x.body.results[:n])]
    finals = [b.vars[goes_on[p]] if p in goes_on else v for p, v in enumerate(a.vars[:n])]
    inits, accs = (*x.inits, *(y.inits[j] for j in rest)), (*x.accs, *(y.accs[j] for j in rest))
    m = len(y.accs)
    results = (*first, *(second.results[j] for j in rest), *x.body.results[n:], *second.results[m:])
    loop = Loop(x.count, x.index, inits, accs, Block((*x.body.binds, *second.binds), results))
    return Bind((*finals, *(b.vars[j] for j in rest), *a.vars[n:], *b.vars[m:]), loop, b.span)


def whole(by_rows: Bind, groups: Sequence[Sequence[Bind]]) -> bool:
    """Whether a team can do all of a loop over rows."""
    return len(groups) == 1 and len(groups[0]) == len(by_rows.op.body.binds) and bool(team_loops([by_rows]))


def row_counts(body: Block) -> list[Atom]:
    """How long rows may be: the counts of the inner loops that make them."""
    found: list[Atom] = []
    for b in body.binds:
        if type(b.op) is Loop and any(isinstance(v.type, Arr) for v in b.vars) and reductions(b.op) is not None:
            count = b.op.count
            if not (type(count) is Const and count.value < TEAM) and not any(same(count, c) for c in found):
                found.append(count)
    return found


def row_loop(bind: Bind, count: Atom) -> bool:
    """Whether a binding is a loop over a row's elements: it folds, stacks and adds to arrays, element by element."""
    op = bind.op
    if type(op) is not Loop or op.snapshots is not None or not same(op.count, count) or reductions(op) is None:
        return False
    if any(isinstance(type_of(r), Arr) for r in op.body.results[len(op.accs) :]):
        return False
    for b in all_binds(op.body):
        if type(b.op) is Loop and not (type(b.op.count) is Const and b.op.count.value <= INNER):
            return False
        stored = type(b.op) is Prim and b.op.name in ("update", "add-at") and b in op.body.binds
        if not scalars(b) and not stored:
            return False
    return True


def parted(bind: Bind, made: dict) -> tuple[Bind | None, Bind | None]:
    """A loop over a row's elements in two: what folds and makes rows, and what adds to other arrays. A row that is
    changed in each element is a row that is made of it. Where what folds reads what is changed, they stay one."""
    op = bind.op
    n = len(op.accs)
    mine: list[int] = []
    rows: list[tuple[int, list[Bind], Atom]] = []
    rest: list[int] = []
    for k, acc in enumerate(op.accs):
        if not isinstance(acc.type, Arr):
            mine.append(k)
            continue
        changed = remade(op, k, made)
        if changed is None:
            rest.append(k)
        else:
            rows.append((k, *changed))
    if not rest and not rows:
        return bind, None
    stacked = range(n, len(op.body.results))
    other = None
    if rest:
        body = tidy(Block(op.body.binds, tuple(op.body.results[k] for k in rest)))
        index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
        body = renamed(substitute(body, {op.index: index}))
        loop = Loop(op.count, index, tuple(op.inits[k] for k in rest), tuple(op.accs[k] for k in rest), body)
        other = Bind(tuple(bind.vars[k] for k in rest), loop, bind.span)
    if not mine and not rows and not stacked:
        return None, other
    more = [b for _, binds, _ in rows for b in binds]
    results = [op.body.results[k] for k in mine] + [x for *_, x in rows] + [op.body.results[k] for k in stacked]
    body = tidy(Block((*op.body.binds, *more), tuple(results)))
    loop = Loop(op.count, op.index, tuple(op.inits[k] for k in mine), tuple(op.accs[k] for k in mine), body)
    if any(op.accs[k] in free_vars(body) for k in rest):
        return None, bind
    vars_ = [bind.vars[k] for k in mine] + [bind.vars[k] for k, *_ in rows] + [bind.vars[k] for k in stacked]
    return Bind(tuple(vars_), loop, bind.span), other


def renamed(block: Block, table: dict[Var, Var] | None = None) -> Block:
    """A block whose bindings have variables of their own, those of ``table`` or new ones."""
    if table is None:
        table = {v: Var(v.name, v.type, v.span, v.given) for b in all_binds(block) for v in b.vars}
    block = substitute(block, table)

    def one(bind: Bind) -> Bind:
        op = bind.op
        if type(op) is If:
            op = If(op.cond, renamed(op.then, table), renamed(op.orelse, table))
        elif type(op) is Loop:
            accs = {a: Var(a.name, a.type, a.span, a.given) for a in op.accs}
            index = Var(op.index.name, INT, op.index.span, op.index.given, op.index.soft)
            body = renamed(op.body, {**table, **accs, op.index: index})
            op = Loop(op.count, index, op.inits, tuple(accs.values()), body)
        return Bind(tuple(table.get(v, v) for v in bind.vars), op, bind.span)

    return Block(tuple(map(one, block.binds)), block.results)


def remade(op: Loop, k: int, made: dict) -> tuple[list[Bind], Atom] | None:
    """The element that a row has behind a loop that changes each of its elements once, and how it is computed."""
    acc, init, result = op.accs[k], op.inits[k], op.body.results[k]
    if acc.type.rank != 1 or not same(acc.type.dims[0], op.count):
        return None
    store = next((b for b in op.body.binds if result in b.vars), None)
    if store is None or type(store.op) is not Prim or store.op.name not in ("update", "add-at"):
        return None
    array, *subs, value = store.op.args
    if array is not acc or subs != [op.index] or most_uses(op.body, acc) != 1 or most_uses(op.body, result) != 1:
        return None
    start = made.get(init)
    if store.op.name == "update":
        return [], value
    if type(start) is Prim and start.name == "zeros":
        return [], value
    if type(start) is not Loop and not (type(start) is Prim and start.name == "get"):
        return None
    if type(start) is Loop and not same(start.count, op.count):
        return None
    old, new = Var(acc.name, acc.type.elem), Var(acc.name, acc.type.elem)
    return [Bind((old,), Prim("get", (init, op.index))), Bind((new,), Prim("+", (old, value)), store.span)], new


def from_the_least(binds: Sequence[Bind]) -> list[Bind]:
    """Bindings in which the largest or smallest of a row is looked for from infinity on, and not from the row's first
    element, which is one of them: another thread of the team has that."""
    made = {v: b.op for b in binds for v in b.vars}
    out = []
    for b in binds:
        op = b.op
        if type(op) is Loop:
            inside = {v: x.op for x in op.body.binds for v in x.vars}
            inits = list(op.inits)
            for k, (acc, init, result) in enumerate(zip(op.accs, op.inits, op.body.results)):
                first, step = made.get(init), inside.get(result)
                if type(first) is not Prim or first.name != "get" or not same(first.args[-1], Const(0, INT)):
                    continue
                if (
                    acc.type != REAL
                    or type(step) is not Prim
                    or step.name not in ("max", "min")
                    or acc not in step.args
                ):
                    continue
                terms = [inside.get(a) for a in step.args if a is not acc]
                if len(terms) == 1 and type(terms[0]) is Prim and terms[0].name == "get":
                    if terms[0].args == (*first.args[:-1], op.index) and most_uses(op.body, acc) == 1:
                        inits[k] = Const(float("-inf" if step.name == "max" else "inf"), REAL)
            if tuple(inits) != op.inits:
                b = Bind(b.vars, replace(op, inits=tuple(inits)), b.span)
        out.append(b)
    return out


def merged(binds: Sequence[Bind], count: Atom, most: float = AGAIN) -> list[Bind]:
    """Scalars and loops over a row's elements, the loops as few passes: each in the first in which all is known that
    it needs. An element that is no more work than ``most`` is computed again in a later pass."""
    level: dict[Var, int] = {}  # how many passes are done when a scalar is known; in which pass a row is made
    element: dict[Var, Atom] = {}
    plain: list[list[Bind]] = [[]]
    found: list[Pass] = []
    for b in binds:
        later = {
            v for r in blocks_of(b.op) for c in r.binds for q in blocks_of(c.op) for v in free_vars(q) if v in element
        }
        k = max((level.get(v, 0) + (v in later) for v in reads(b)), default=0)  # a branch reads a row once it is there
        while len(plain) <= k + 1:
            plain.append([])
        op = b.op
        if type(op) is not Loop or not same(op.count, count) or not (elementwise(op) and reductions(op) is not None):
            plain[k].append(b)
            level.update(dict.fromkeys(b.vars, k))
            continue
        while len(found) <= k:
            index = op.index
            found.append(Pass(Var(index.name, INT, index.span, index.given, index.soft)))
        here, n = found[k], len(op.accs)
        table: dict[Var, Atom] = {op.index: here.index}
        for x in op.body.binds:
            if type(x.op) is not Prim or x.op.name != "get" or x.op.args[0] not in element:
                continue
            row = x.op.args[0]
            if level[row] == k:
                table[x.vars[0]] = element[row]
            else:  # what is as cheap as to look it up
                cheap = again(found[level[row]], element[row], here.index, most)
                if cheap is not None:
                    here.binds += cheap.binds
                    table[x.vars[0]] = cheap.results[0]
        body = substitute(op.body, table)
        here.binds += [x for x in body.binds if not (x.vars and x.vars[0] in table)]
        here.accs += zip(b.vars[:n], op.accs, op.inits, body.results[:n])
        for v, x in zip(b.vars[n:], body.results[n:]):
            here.rows.append((v, x))
            element[v], level[v] = x, k
        level.update(dict.fromkeys(b.vars[:n], k + 1))
    out: list[Bind] = []
    for k in range(max(len(plain), len(found))):
        out += plain[k] if k < len(plain) else ()
        if k < len(found) and (found[k].accs or found[k].rows):
            p = found[k]
            results = (*(a[3] for a in p.accs), *(x for _, x in p.rows))
            loop = Loop(
                count,
                p.index,
                tuple(a[2] for a in p.accs),
                tuple(a[1] for a in p.accs),
                Block(tuple(p.binds), results),
            )
            span = next((b.span for b in binds if any(v in b.vars for v in (*(a[0] for a in p.accs),))), None)
            span = span or next((b.span for b in binds if type(b.op) is Loop), None)
            out.append(Bind((*(a[0] for a in p.accs), *(v for v, _ in p.rows)), loop, span))
    return out


def again(made: Pass, element: Atom, index: Var, most: float) -> Block | None:
    """The computation of an element of a row, to be done again in a later pass; None where it had better be kept."""
    block = tidy(Block(tuple(made.binds), (element,)))
    accs = {a[1] for a in made.accs}
    if any(type(b.op) is not Prim or any(a in accs for a in b.op.args) for b in block.binds):
        return None
    if sum(work(b.op) for b in block.binds) > most:
        return None
    return renamed(substitute(block, {made.index: index}))
