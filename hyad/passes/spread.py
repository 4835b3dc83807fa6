"""What may run in parallel on a device with thousands of threads: reductions, and loops to be run as one.

``reductions`` says what the accumulators of a loop are: sums and the like, whose order does not matter, or arrays of
which each iteration has a part of its own. A loop of such accumulators alone runs in parallel; any other one is taken
in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

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
    Op,
    Prim,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    most_uses,
    type_of,
)
from ..program.affine import Affine, affine_add, affine_in, furthest, with_factors
from ..program.primitives import PRIMITIVES

#: What is folded in any order, and by which operations.
FOLDED = {"sum": frozenset({"+", "-", "add-at"})}
FOLDED |= {kind: frozenset({name}) for kind, name in (("product", "*"), ("max", "max"), ("min", "min"))}
FOLDED |= {kind: frozenset({kind}) for kind in ("and", "or")}
COMMUTES = frozenset({"+", "*", "max", "min", "and", "or"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """What some accumulators of a loop are, by their numbers.

    ``kind`` is "sum", "product", "max", "min", "and", "or" of scalars; "place", the largest or smallest (``least``) one
    and where it is (``last``: the last of equals), as the index or so much more, two accumulators; "scaled", the
    largest one, and sums of what is multiplied by the exponential of what it is below that (``vectors.py``; ``finite``:
    below 0 where that is infinite); "scatter", an array to whose elements is added wherever; "slice", an array of which
    each iteration writes, or reads and writes (``read``), a part of its own.
    """

    kind: str
    accs: tuple[int, ...]
    least: bool = False
    last: bool = False
    read: bool = False
    finite: bool = False


def reductions(op: Loop) -> list[Reduction] | None:
    """What the accumulators of a loop are; None where one is none of these."""
    found: list[Reduction] = []
    made = made_in(op.body)
    pairs = [pair for k in range(len(op.accs)) if (pair := place_of(op, k, made)) is not None]
    done = {k for pair in pairs for k in pair.accs}
    if len(done) != 2 * len(pairs):
        return None
    for k, acc in enumerate(op.accs):
        result = op.body.results[k]
        if k in done:
            found += [pair for pair in pairs if pair.accs[0] == k]
            continue
        if isinstance(acc.type, Arr):
            read = own_slice(op, acc, result)
            if read is not None:
                found.append(Reduction("slice", (k,), read=read))
            elif acc.type.elem in (REAL, INT) and follows(op.body, acc, result, FOLDED["sum"]):
                found.append(Reduction("scatter", (k,)))
            else:
                return None
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
    return states_between(block, start, result, names) is not None


def states_between(block: Block, start: Var, result: Atom, names: frozenset[str]) -> set[Var] | None:
    """What becomes of ``start`` in a block until it is ``result``, that included, if ``follows``; None if not."""
    found: set[Var] = set()
    made = made_in(block)
    number = {v: k for bind in block.binds for k, v in enumerate(bind.vars)}
    allowed = 1
    while result is not start:
        if type(result) is not Var or result not in made or most_uses(block, result) != allowed:
            return None
        op, k = made[result], number[result]
        found.add(result)
        allowed = 1
        if type(op) is Prim and op.name in names:
            sources = op.args if op.name in COMMUTES else op.args[:1]
            ways = [a for a in sources if a is start or type(a) is Var and depends(a, {start}, made)]
            if len(ways) != 1:
                return None
            (result,) = ways
        elif type(op) is Prim and op.name == "select":
            _, x, y = op.args
            if x is y:
                return None
            sides = [(a, between(block, a, b, names)) for a, b in ((x, y), (y, x)) if type(a) is Var]
            way = next((side for side in sides if side[1]), None)
            if way is None:
                return None
            found |= way[1]  # type: ignore[arg-type, operator]
            result, allowed = way[0], 2
        elif type(op) is Loop and k < len(op.accs):
            if not follows(op.body, op.accs[k], op.body.results[k], names):
                return None
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
                    return None
                bases.add(ways[0])
            if len(bases) != 1:
                return None
            (result,) = bases
        else:
            return None
    return found if most_uses(block, start) == allowed else None


def between(block: Block, start: Var, result: Atom, names: frozenset[str]) -> set[Var] | None:
    """``states_between`` for two values of one block, of which the first is used in a ``select`` as well."""
    made, found = made_in(block), set()
    while result is not start:
        if type(result) is not Var or result not in made or most_uses(block, result) != 1:
            return None
        op = made[result]
        found.add(result)
        if type(op) is not Prim or op.name not in names:
            return None
        sources = op.args if op.name in COMMUTES else op.args[:1]
        ways = [a for a in sources if a is start or type(a) is Var and depends(a, {start}, made)]
        if len(ways) != 1:
            return None
        (result,) = ways
    return found


def made_in(block: Block) -> dict[Var, Op]:
    """What makes each variable that a block binds at its own level."""
    return {v: bind.op for bind in block.binds for v in bind.vars}


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


def place_of(op: Loop, k: int, made: dict) -> Reduction | None:
    """``acc' = (max acc t)  at' = (select (>= acc t) at i)``, or ``acc' = (select (> t acc) t acc)  at' = (select (> t
    acc) i at)``: the largest and where it is. As the second is taken, a NaN that comes later is passed over."""
    acc, best = op.accs[k], op.body.results[k]
    best_op = made.get(best)
    chosen = choice(op.body, best)
    if acc.type not in (REAL, INT) or most_uses(op.body, acc) != 2 or most_uses(op.body, best) != 1:
        return None
    inside = {*op.accs, *(v for bind in all_binds(op.body) for v in bind.vars)}

    def number(a: Atom) -> bool:
        """Whether a value is the index, or that and something that no iteration changes."""
        return a is op.index or (offset_from(a, op.index, made, inside) or ("",))[0] == "+"

    if type(best_op) is Prim and best_op.name in ("max", "min"):
        others = [a for a in best_op.args if a is not acc]
    else:
        others = [chosen[1]] if chosen is not None and chosen[2] is acc else []
    if len(others) != 1 or depends(others[0], {acc}, made):
        return None
    (t,) = others
    for j, at in enumerate(op.accs):
        place = choice(op.body, op.body.results[j])
        if at is acc or at.type != INT or place is None:
            continue
        cond, *ways = place
        test = made.get(cond)
        if type(test) is not Prim or len(test.args) != 2:
            continue
        if most_uses(op.body, at) != 1 or most_uses(op.body, op.body.results[j]) != 1:
            continue
        relation = test.name if test.args == (acc, t) else FLIPPED.get(test.name) if test.args == (t, acc) else None
        if chosen is not None:
            if cond is chosen[0] and number(ways[0]) and ways[1] is at and relation in FLIPPED:
                return Reduction("place", (k, j), least=relation[0] == ">", last="=" in relation)
            continue
        least = best_op.name == "min"
        if ways[0] is at and number(ways[1]) and relation in (("<=", "<") if least else (">=", ">")):
            return Reduction("place", (k, j), least=least, last=relation in ("<", ">"))
    return None


def choice(block: Block, atom: Atom) -> tuple[Atom, Atom, Atom] | None:
    """The condition and the two values of which ``atom`` is one."""
    bind = next((b for b in block.binds if atom in b.vars), None)
    if bind is None:
        return None
    if type(bind.op) is Prim and bind.op.name == "select":
        return bind.op.args
    if type(bind.op) is If and not bind.op.then.binds and not bind.op.orelse.binds:
        k = bind.vars.index(atom)
        return bind.op.cond, bind.op.then.results[k], bind.op.orelse.results[k]
    return None


FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def own_slice(op: Loop, acc: Var, result: Atom) -> bool | None:
    """Whether an array accumulator is read where each iteration has a part of it to itself, None where none has:
    wherever the accumulator or what it becomes is read or written, one of its subscripts is the loop's index plus
    something that no iteration changes, or that less the index, the same everywhere; or one of the k elements that
    begin at k times the index. So it is with an element of a triangle and its mirror image."""
    inside = {*op.accs, *(v for bind in all_binds(op.body) for v in bind.vars)}
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
    for at in range(min(map(len, subscripts))):
        first = subscripts[0][at]
        for key_of in (offset_from, window_of):
            key = key_of(first, op.index, made, inside)
            if key is not None and all(key_of(s[at], op.index, made, inside) == key for s in subscripts):
                return read
    return read if mirrored(op, versions, made, inside) else None


#: An element of an array that an iteration reads or changes: its subscripts, and the comparisons around that hold, as
#: the smaller number, the larger one, and whether they differ.
Place = tuple[tuple[Atom, ...], tuple[tuple[Atom, Atom, bool], ...]]


def places_of(block: Block, versions: set[Var], made: dict, known: tuple = ()) -> Iterator[Place]:
    """Where a block reads or changes elements of an array, ``versions`` being what it becomes."""
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name in ("get", "update", "add-at") and op.args[0] in versions:
            yield op.args[1 : None if op.name == "get" else -1], known
        for k, inner in enumerate(blocks_of(op)):
            test = made.get(op.cond) if type(op) is If else None
            holds = known
            if type(test) is Prim and test.name in ("<", "<=", ">", ">="):
                small, big = test.args if test.name[0] == "<" else test.args[::-1]
                strict = len(test.name) == 1
                holds = (*known, (small, big, strict) if k == 0 else (big, small, not strict))
            yield from places_of(inner, versions, made, holds)


def mirrored(op: Loop, versions: set[Var], made: dict, inside: set[Var]) -> bool:
    """Whether two subscripts, in either order, are the iteration's own number and another one by which the two tell
    what is whose: one that is the same in all iterations, or never above the own number, or never below it."""
    places = list(places_of(op.body, versions, made))
    width = min((len(place) for place, _ in places), default=0)
    if width < 2:
        return False
    integers = {v: o for v, o in made.items() if type(o) is Prim and v.type == INT}

    def number(a: Atom) -> Affine:
        return with_factors(affine_in(a, integers), integers)

    counts = {b.op.index: number(b.op.count) for b in all_binds(op.body) if type(b.op) is Loop}

    def known_end(a: Affine, most: bool, counts: Mapping[Var, Affine]) -> float:
        """The most, or the least, that a number is, as far as the loops inside say."""
        constant, terms = furthest(a, most, counts)
        return constant if not terms else inf if most else -inf

    def side(a: Atom, own: Affine, known: tuple) -> object:
        """Where another number lies as seen from the own one."""
        this = number(a)
        if inside.isdisjoint(this[1]) and op.index not in this[1]:
            return this[0], frozenset(this[1].items())
        ends = {v: affine_add(number(big), (1 - strict, {})) for v, big, strict in known if v in counts}
        within, gap = {**counts, **ends}, affine_add(this, own, -1)
        if known_end(gap, True, within) <= 0:
            return "below"
        above = [affine_add(number(small), (int(strict), {})) for small, big, strict in known if big is a]
        least = (known_end(affine_add(x, own, -1), False, within) for x in above)
        return "above" if known_end(gap, False, within) >= 0 or any(x >= 0 for x in least) else None

    def told(p: int, q: int, own: Affine) -> bool:
        found = set()
        for place, known in places:
            numbers = [number(place[p]), number(place[q])]
            if own not in numbers:
                return False
            if numbers[0] != numbers[1]:
                found.add(side(place[p if numbers[1] == own else q], own, known))
        return len(found) == 1 and None not in found

    for q in range(width):
        for p in range(q):
            for a in (places[0][0][p], places[0][0][q]):
                own = number(a)
                others = own[1].keys() - {op.index}
                if own[1].get(op.index) in (1, -1) and inside.isdisjoint(others) and told(p, q, own):
                    return True
    return False


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


def window_of(sub: Atom, index: Var, made: dict, inside: set[Var]) -> tuple | None:
    """How many elements an iteration has to itself, in which a subscript is, and by how many times that many further
    on, as a key: two for ``(+ (* 2 i) 1)``; None where it is not of that form."""
    far, op = 0, made.get(sub)
    while type(op) is Prim and op.name in ("+", "-") and len(op.args) == 2:
        a, b = op.args[::-1] if op.name == "+" and type(op.args[0]) is Const else op.args
        if type(b) is not Const:
            return None
        far += b.value if op.name == "+" else -b.value
        op = made.get(a)
    if type(op) is not Prim or op.name != "*" or len(op.args) != 2:
        return None
    times = next((a for a in op.args if type(a) is Const), None)
    if times is None or times.value < 1 or index not in op.args:
        return None
    return ("window", times.value, far // times.value)


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


#: The sectors of memory that a warp reads at once where its threads read one element, neighbours, or what lies apart.
ONE, BESIDE, APART = 1, 8, 32
LOOPED = 64  # iterations of a loop whose count is not known


def beside(levels: Sequence[Bind]) -> int:
    """Which loop of a nest threads that are neighbours have neighbouring iterations of: the innermost one, unless by
    another one the loops inside the nest read so much less memory (``APART``) at once."""
    made = {v: b.op for b in all_binds(levels[0].op.body) for v in b.vars}
    indices = [b.op.index for b in levels]
    reads = list(looked_up(levels[-1].op.body, made, 1))
    scores = [sum(times * sectors(subs, i, made) for subs, times in reads) for i in indices]
    least = min(range(len(levels)), key=lambda k: (scores[k], -k))
    return least if 3 * scores[least] <= 2 * scores[-1] else len(levels) - 1


def looked_up(block: Block, made: dict[Var, Op], times: int) -> Iterator[tuple[list[Atom], int]]:
    """The subscripts of the numbers that the loops in a block read of arrays, and how often."""
    for b in block.binds:
        op = b.op
        if type(op) is Loop:
            count = op.count.value if type(op.count) is Const else LOOPED
            yield from looked_up(op.body, made, times * count)
        elif type(op) is If:
            for arm in blocks_of(op):
                yield from looked_up(arm, made, times)
        elif type(op) is Prim and op.name == "get" and times > 1 and not isinstance(b.vars[0].type, Arr):
            subs: list[Atom] = []
            array: Atom = b.vars[0]
            while type(made.get(array)) is Prim and made[array].name == "get":
                array, subs = made[array].args[0], [*made[array].args[1:], *subs]
            yield subs, times


def sectors(subs: Sequence[Atom], index: Var, made: dict[Var, Op]) -> int:
    """How many a warp reads whose threads differ by an index."""
    integers = {v: op for v, op in made.items() if type(op) is Prim and op.name in ("+", "-")}
    if not any(depends(a, {index}, made) for a in subs):
        return ONE
    along = abs(affine_in(subs[-1], integers)[1].get(index, 0)) == 1
    return BESIDE if along and not any(depends(a, {index}, made) for a in subs[:-1]) else APART


def work(op: Prim) -> float:
    if op.name in PRIMITIVES:
        return PRIMITIVES[op.name].cost
    return 2.0 if op.name == "get" else 1.0


def sequential(op: Loop | While) -> str:
    """Why a loop is taken in its order."""
    if type(op) is While:
        return "each iteration of a `while` needs the one before"
    return "each iteration needs the one before, and what it accumulates is no sum, product, minimum or maximum"
