"""Loops of which gcc makes wrong vectors. The first are sums, before gcc 14: of rows that are read from their end.

    for (long long i = 0; i < n; i++)
        t = t + a[3*i + 2] + a[3*i + 1] + a[3*i];

gcc makes vectors of it, under strict flags too, adding their elements one after the other. Where it finds that it may
as well read a row from its start and turn it after, it forgets to turn it, and adds elements of one row twice and of
another never (its bug 110381: gcc 12.3 and 13.1 and before, -O2 is enough); of rows from the last to the first where
the loop stores to them as well. Reverse mode, which comes by everything last to first, makes many such sums; of terms
that are added under a condition it may turn out, in gcc, that they always are.

``turned`` finds them; the printer then has one element of each read as a ``volatile`` one, so that gcc leaves the loop
as it is written. Design decision: the order of the sum stays what it is, and newer compilers see nothing of it.

The second read rows under conditions:

    for (long long i = 0; i < n; i++) {
        b[3*i] = 0.0 >= t[3*i] ? 0.0 : a[3*i];
        b[3*i + 1] = 0.0 >= t[3*i + 1] ? 0.0 : a[3*i + 1];
        b[3*i + 2] = 0.0 >= t[3*i + 2] ? 0.0 : a[3*i + 2];
    }

A row of ``a`` is read under masks; where the rows of a few iterations are more than one vector, gcc 12.2 reads all of
these under the mask of the first, and gives what it has not read (-O3 where there are masked loads, AVX2 and later).
``masked`` finds them. What a ``select`` chooses from has lines of its own, before it, which costs less anyway; so has
what a branch reads, where it is in range for certain. Of what may be out of range one element of a row is ``volatile``.
Where nothing is stored between such a line and the choice, in sums say, gcc moves it there: it is told not to. It reads
rows turned under masks as if they were not, too (its bug 114375, before gcc 14).

The third store to a row and then, in the same iteration, to one before it:

    for (long long i = 0; i < n; i++) {
        u[3*i + 5] += a;
        u[3*i + 2] += b;
        u[3*i + 4] += c;
        ..

The next iteration reads what this one has stored first. gcc 11 and 12 take both for one row of six elements, all of
which they read before they store any (-O3; -O2 from gcc 12 on). ``overtaken`` finds such stores, of which one is
``volatile`` then; all gcc are told so, as it is not known which one is right.

The fourth are loops that fill several arrays of one workspace. gcc makes a loop for each, if they turn out not to
overlap when it runs, and then may not keep the order of those that need one another (its bug 107323: -O3 before gcc 13,
and before 12.3). ``several`` finds them; gcc is told then to leave the loops of the file as they are. Where they clear
or copy elements among other things (``patterned``), it has to be told so twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hyad.core import (
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
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    same,
)

from .apart import in_lanes
from .lower import Buffer, Plan, type_of

#: Reads one element alone.
ALONE = """\
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14 && !defined(__ASSOCIATIVE_MATH__)
#define HYAD_ALONE volatile /* or gcc takes the elements of this sum in a wrong order, some of them twice */
#else
#define HYAD_ALONE
#endif
"""

#: Stores where it is written.
IN_ORDER = """\
#if defined(__GNUC__) && !defined(__clang__)
#define HYAD_IN_ORDER volatile /* or gcc stores elements of two rows in a wrong order */
#else
#define HYAD_IN_ORDER
#endif
"""

#: Reads before choices what is read there.
READ_FIRST = """\
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#pragma GCC optimize("no-tree-sink") /* or gcc reads elements of rows under masks, some of them under another's */
#endif
"""

#: Leaves loops whole.
WHOLE_LOOPS = """\
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#pragma GCC optimize("no-tree-loop-distribution") /* or gcc makes several loops of one, in a wrong order */
#endif
"""

#: Also where one of the several would clear or copy an array.
WHOLE_PATTERNS = """\
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#pragma GCC optimize("no-tree-loop-distribute-patterns") /* or gcc takes what clears or copies out of loops */
#endif
"""

WRITTEN_OUT = 16  # the most iterations of an inner loop that gcc writes out before it looks for vectors
MOST = 256  # additions, and elements that one of them depends on: gcc gives up long before

Affine = tuple[int, dict[Var, int]]


@dataclass(frozen=True, slots=True)
class Element:
    """An element that is read: what its place has beside multiples of the indices of loops, and these multiples."""

    var: Var
    root: Buffer
    rest: frozenset
    start: int
    moves: dict[Var, int] = field(hash=False, compare=False)


def turned(plan: Plan, op: Loop | While, uses: dict[Var, int]) -> set[Var]:
    """One element of each sum over a loop's iterations whose terms come from the end of a row."""
    if not any(a.type == REAL for a in op.accs):
        return set()
    body = _Body(plan, op, uses)
    found: set[Var] = set()
    for acc, r in zip(op.accs, op.body.results):
        if acc.type == REAL:
            found |= body.last_of_turned(body.terms(op.body, acc, r, {}) or [])
    return found


def masked(
    plan: Plan, op: Loop | While, uses: dict[Var, int], counts: dict[Var, Atom]
) -> tuple[set[Var], set[Var], bool]:
    """Of rows of which several elements are read under conditions in a loop's body: what can be read before these, and
    of the rest an element, if there are two of its row; and whether there are several of which what is wanted under a
    condition is made. ``counts`` has those of the loops around, by their indices."""
    if not any(b.op.name == "select" if isinstance(b.op, Prim) else isinstance(b.op, If) for b in all_binds(op.body)):
        return set(), set(), False
    body = _Body(plan, op, uses)
    chosen: dict[tuple, dict[int, set[Var]]] = {}
    branch: dict[tuple, dict[int, set[Var]]] = {}
    wanted: dict[tuple, set[int]] = {}
    always = body.always_wanted()

    def want(atoms: Iterable[Atom], at: dict[Var, int]) -> None:
        """What is read for choices alone: not by a loop, which stays where it is."""
        waiting, seen = list(atoms), set[Bind]()
        while waiting:
            a = waiting.pop()
            bind = None if a in always else body.made.get(a)  # type: ignore[call-overload]
            if bind is None or bind in seen or not isinstance(bind.op, Prim):
                continue
            seen.add(bind)
            if bind.op.name != "get" or isinstance(bind.vars[0].type, Arr):
                waiting += bind.op.args
                continue
            e = body.element(bind.vars[0], bind.op)
            row, place = ((0,), 0) if e is None else body.place(e, at)
            if abs(row[-1]) > 1:
                wanted.setdefault(row, set()).add(place)

    def note(bind: Bind, at: dict[Var, int], rows: dict[tuple, dict[int, set[Var]]]) -> None:
        e = None if isinstance(bind.vars[0].type, Arr) else body.element(bind.vars[0], bind.op)
        row, place = ((0,), 0) if e is None else body.place(e, at)
        if e is not None and abs(row[-1]) > 1:
            rows.setdefault(row, {}).setdefault(place, set()).add(e.var)

    def choice(atoms: Iterable[Atom], at: dict[Var, int]) -> None:
        for a in atoms:
            bind = body.made.get(a) if uses.get(a) == 1 else None  # what is written where it is used
            if bind is not None and isinstance(bind.op, Prim):
                if bind.op.name == "get":
                    note(bind, at, chosen)
                else:
                    choice(bind.op.args, at)

    def plain(block: Block) -> bool:
        """Whether a branch is scalar operations: what it reads does not change in it."""
        return all(
            not any(isinstance(v.type, Arr) for v in bind.vars)
            and (isinstance(bind.op, Prim) or isinstance(bind.op, If) and plain(bind.op.then) and plain(bind.op.orelse))
            for bind in block.binds
        )

    def there(op: Prim) -> bool:
        """Whether an element is in range for certain."""
        dims = zip(op.args[1:], type_of(op.args[0]).dims)
        return all(a.value < n.value if type(a) is type(n) is Const else same(counts.get(a), n) for a, n in dims)

    def find(block: Block, at: dict[Var, int], inside: bool, ahead: bool) -> None:
        for bind in block.binds:
            inner = bind.op
            if isinstance(inner, Prim) and inner.name == "select":
                choice(inner.args[1:], at)
                want(inner.args[1:], at)
            elif isinstance(inner, Prim) and inner.name == "get" and inside:
                note(bind, at, chosen if ahead and there(inner) else branch)
            elif isinstance(inner, If):
                both = (ahead or not inside) and plain(inner.then) and plain(inner.orelse)
                for arm in (inner.then, inner.orelse):
                    find(arm, at, True, both)
                    choice(arm.results, at)
                    want((*free_vars(arm), *arm.results), at)
            elif isinstance(inner, Loop) and isinstance(inner.count, Const) and inner.count.value <= WRITTEN_OUT:
                counts[inner.index] = inner.count
                for i in range(1 if in_lanes(inner) else min(2, inner.count.value)):  # what moves is at two places then
                    find(inner.body, {**at, inner.index: i}, inside, False)

    find(op.body, {}, False, False)
    alone = {v for places in branch.values() if len(places) > 1 for v in list(places.values())[0]}
    inner = {v for places in branch.values() for found in places.values() for v in found}
    rows = (row for row, places in chosen.items() if len({*places, *branch.get(row, ())}) > 1)
    first = {v for row in rows for found in chosen[row].values() for v in found} - inner
    return first, alone, any(len(places) > 1 for places in wanted.values())


def overtaken(plan: Plan, op: Loop | While, uses: dict[Var, int]) -> set[Var]:
    """A store of each two, not both of whole rows, of which the later one stores to an element that an earlier
    iteration's first one, or a later iteration's, has stored to as well: from the end of an array to its start."""
    body = _Body(plan, op, uses)
    stores: list[tuple[Element, int, int, int, bool]] = []  # from one iteration to the next, first, last, whether a row
    for bind in all_binds(op.body):
        if isinstance(bind.op, Prim) and bind.op.name in ("update", "add-at"):
            e = body.element(bind.vars[0], bind.op, bind.op.args[1:-1])
            stride = sum(move * body.steps.get(v, 0) for v, move in e.moves.items()) if e is not None else 0
            if e is not None and abs(stride) > 1:
                ends = [move * (body.loops[v] - 1) for v, move in e.moves.items() if v in body.loops]
                row = type_of(bind.op.args[-1])
                width = row.dims[-1] if isinstance(row, Arr) else Const(1, INT)
                if isinstance(width, Const) and all(body.loops.get(v, 0) <= WRITTEN_OUT for v in e.moves):
                    first = e.start + sum(min(0, end) for end in ends)
                    last = e.start + sum(max(0, end) for end in ends) + width.value - 1
                    stores.append((e, stride, first, last, isinstance(row, Arr)))
    found: set[Var] = set()
    for k, (e, stride, first, last, row) in enumerate(stores):
        for later, other, lowest, highest, rows in stores[k + 1 :]:
            fixed = [{v: m for v, m in x.moves.items() if v not in body.loops} for x in (e, later)]
            if e.root is not later.root or e.rest != later.rest or stride != other or fixed[0] != fixed[1]:
                continue
            apart = [d for d in range(first - highest, last - lowest + 1) if d % stride == 0 and d]
            if not (row and rows) and any((d > 0) == (stride > 0) for d in apart):
                found.add(later.var if row else e.var)
    return found


def several(plan: Plan, op: Loop | While, outs: Iterable[Var]) -> bool:
    """Whether a loop stores to several arrays, of which a C compiler cannot tell what overlaps: it uses two that lie in
    memory of the function's own, and stores to one of them. ``outs``: the results of the loop."""
    arrays = [v for b in all_binds(op.body) for v in b.vars if isinstance(v.type, Arr)]
    stored = {plan.root(v) for v in (*arrays, *outs) if isinstance(v.type, Arr)}
    read = {plan.root(a) for b in all_binds(op.body) for a in atoms_of(b.op) if isinstance(type_of(a), Arr)}
    own = {root for root in stored | read if root.kind == "own" and (root.slot is not None or root.arena or root.grown)}
    return len(stored) > 1 and len(own) > 1 and not own.isdisjoint(stored)


def patterned(op: Loop | While) -> bool:
    """Whether a loop stores numbers, or what it reads, as it is, to arrays."""
    made = {v: b.op for b in all_binds(op.body) for v in b.vars}

    def plain(a: Atom) -> bool:
        inner = made.get(a)  # type: ignore[call-overload]
        return isinstance(a, Const) or isinstance(inner, Prim) and inner.name in ("get", "zeros", "array")

    stored = [b.op.args[-1] for b in all_binds(op.body) if isinstance(b.op, Prim) and b.op.name == "update"]
    inside = [x for x in (op, *(b.op for b in all_binds(op.body))) if isinstance(x, (Loop, While))]
    return any(map(plain, (*stored, *(r for x in inside for r in x.body.results[len(x.accs) :]))))


class _Body:
    """The body of a loop: who made a value, who reads it, how far each index goes in an iteration."""

    def __init__(self, plan: Plan, op: Loop | While, uses: dict[Var, int]):
        self.plan, self.uses = plan, uses
        self.made: dict[Var, Bind] = {}
        self.loops: dict[Var, int] = {}  # the indices of loops inside, and how often they run, if that is known
        for bind in all_binds(op.body):
            self.made.update(dict.fromkeys(bind.vars, bind))
            if isinstance(bind.op, Loop):
                count = bind.op.count
                self.loops[bind.op.index] = count.value if isinstance(count, Const) else WRITTEN_OUT + 1
        self.steps = {op.index: 1} if isinstance(op, Loop) else {}
        for acc, r in zip(op.accs, op.body.results):
            if acc.type == INT and isinstance(r, Var):
                constant, terms = self.affine(r)
                if terms == {acc: 1} and constant:
                    self.steps[acc] = constant
        self.known: dict[Var, dict[Var, Element]] = {}
        self.block = op.body
        stores = (b.op for b in all_binds(op.body) if isinstance(b.op, Prim) and b.op.name in ("update", "add-at"))
        self.stored = {plan.resolve(plan.of(store.args[0]))[0] for store in stores}
        self.users: dict[Block, dict[Var, Bind]] = {}

    def always_wanted(self) -> set[Atom]:
        """What an iteration makes whatever its conditions are: not what choices and branches alone are made of."""
        inside = {
            x for b in all_binds(self.block) if isinstance(b.op, If) for arm in blocks_of(b.op) for x in all_binds(arm)
        }
        found: set[Atom] = set()
        waiting = list(self.block.results)
        for bind in all_binds(self.block):
            if bind not in inside and (not isinstance(bind.op, Prim) or bind.op.name in ("update", "add-at")):
                regions = () if isinstance(bind.op, If) else blocks_of(bind.op)
                waiting += [*atoms_of(bind.op), *(r for region in regions for r in region.results)]
        while waiting:
            a = waiting.pop()
            op = self.made[a].op if a in self.made and self.made[a] not in inside else None  # type: ignore[index]
            if a not in found and isinstance(op, Prim):
                waiting += op.args[:1] if op.name == "select" else op.args
            found.add(a)
        return found

    def terms(self, block: Block, acc: Var, result: Atom, at: dict[Var, int]) -> list[tuple[Atom, dict]] | None:
        """The terms that an iteration adds to an accumulator, in order, each with the iterations of the loops that it
        stands in; None where it is no such sum."""
        users = self.users.get(block)
        if users is None:
            users = self.users[block] = {a: b for b in block.binds for a in atoms_of(b.op) if isinstance(a, Var)}
        found: list[tuple[Atom, dict]] = []
        while acc is not result:
            bind = users.get(acc)
            chosen = self.chosen(block, acc)
            if chosen is not None:
                term, acc = chosen
                found.append((term, at))
                continue
            if bind is None or self.uses.get(acc) != 1:
                return None
            inner = bind.op
            if isinstance(inner, Prim) and inner.name == "+":
                found += [(a, at) for a in inner.args if a is not acc]
                acc = bind.vars[0]
            elif isinstance(inner, Loop) and isinstance(inner.count, Const) and inner.count.value <= WRITTEN_OUT:
                k = inner.inits.index(acc)
                for i in range(inner.count.value):
                    more = self.terms(inner.body, inner.accs[k], inner.body.results[k], {**at, inner.index: i})
                    if more is None or len(found) > MOST:
                        return None
                    found += more
                acc = bind.vars[k]
            else:
                return None
        return found

    def chosen(self, block: Block, acc: Var) -> tuple[Atom, Var] | None:
        """What is added to an accumulator under a condition alone, and the sum, or what was there, then."""
        if self.uses.get(acc) != 2:
            return None
        reads = [b for b in block.binds if acc in (*atoms_of(b.op), *(r for x in blocks_of(b.op) for r in x.results))]
        if not reads:
            return None
        last = reads[-1]
        if isinstance(last.op, If) and len(reads) == 1:
            arms = blocks_of(last.op)
            for v, pair in zip(last.vars, zip(*(arm.results for arm in arms))):
                if acc in pair:
                    other = pair.index(acc) == 0
                    added = self.added(arms[other].binds, acc, pair[other])
                    return None if added is None else (added, v)
        elif isinstance(last.op, Prim) and last.op.name == "select" and acc in last.op.args[1:]:
            other = last.op.args[2 if last.op.args[1] is acc else 1]
            added = self.added(reads, acc, other)
            return None if added is None else (added, last.vars[0])
        return None

    def added(self, binds: Sequence[Bind], acc: Var, total: Atom) -> Atom | None:
        """What is added to an accumulator to make a sum that is read once."""
        for b in binds:
            if b.vars and b.vars[0] is total and isinstance(b.op, Prim) and b.op.name == "+" and acc in b.op.args:
                return next((a for a in b.op.args if a is not acc), None)
        return None

    def last_of_turned(self, terms: list[tuple[Atom, dict]]) -> set[Var]:
        """An element that the last of these terms reads, if all read elements of one row and not from its start on."""
        if not 1 < len(terms) <= MOST:
            return set()
        read: list[dict[tuple, dict[int, Var]]] = []
        for atom, at in terms:
            rows: dict[tuple, dict[int, Var]] = {}
            for e in self.elements(atom).values():
                row, place = self.place(e, at)
                if row[-1] > 1 or row[-1] < -1 and e.root in self.stored:
                    rows.setdefault(row, {})[place] = e.var
            read.append(rows)
        found: set[Var] = set()
        for row in read[-1]:
            if all(row in rows for rows in read):
                places = [sorted(rows[row]) for rows in read]
                if any(b[0] <= a[-1] for a, b in zip(places, places[1:])):
                    found.add(next(iter(read[-1][row].values())))
        return found

    def place(self, e: Element, at: dict[Var, int]) -> tuple[tuple, int]:
        """The row that an element is in, last how far an iteration moves it, and its place there."""
        place, rest, stride = e.start, [], 0
        for var, move in e.moves.items():
            if var in self.steps:
                stride += move * self.steps[var]
            elif var in self.loops:
                place += move * at.get(var, 0)
            else:
                rest.append((var, move))
        return (e.root, e.rest, frozenset(rest), stride), place

    def elements(self, atom: Atom) -> dict[Var, Element]:
        """The elements of arrays that a value is made of in the loop."""
        if not isinstance(atom, Var) or atom not in self.made:
            return {}
        found = self.known.get(atom)
        if found is None:
            self.known[atom] = {}
            found = {}
            waiting, seen = [atom], {atom}
            while waiting and len(found) < MOST and len(seen) < 16 * MOST:
                var = waiting.pop()
                bind = self.made[var]
                if isinstance(bind.op, Prim) and bind.op.name == "get" and not isinstance(var.type, Arr):
                    e = self.element(var, bind.op)
                    if e is not None:
                        found[var] = e
                for a in () if self.in_lanes(bind) else self.sources(bind, var):
                    if isinstance(a, Var) and a in self.made and a not in seen:
                        seen.add(a)
                        waiting.append(a)
            self.known[atom] = found
        return found

    def in_lanes(self, bind: Bind) -> bool:
        """Whether a value is an element of an array that a loop over lanes has made: vectors, which are not taken for
        what they are made of."""
        made = self.made.get(bind.op.args[0]) if isinstance(bind.op, Prim) and bind.op.name == "get" else None
        return made is not None and isinstance(made.op, Loop) and in_lanes(made.op)

    def sources(self, bind: Bind, var: Var) -> Iterable[Atom]:
        """What a value is made of."""
        yield from atoms_of(bind.op)
        if isinstance(bind.op, If):
            k = bind.vars.index(var)
            yield from (bind.op.then.results[k], bind.op.orelse.results[k])
        elif isinstance(bind.op, Loop):
            yield bind.op.body.results[bind.vars.index(var)]

    def element(self, var: Var, op: Prim, subscripts: Sequence[Atom] | None = None) -> Element | None:
        """The element, or the first one of the row, that these subscripts are of."""
        root, subs, dims = self.plan.resolve(self.plan.of(op.args[0]))
        subs = (*subs, *(op.args[1:] if subscripts is None else subscripts))
        weight, start, moves, rest = 1, 0, {}, []
        for d in dims[len(subs) :]:
            weight = weight * d.value if weight is not None and isinstance(d, Const) else None
        for k in reversed(range(len(subs))):
            constant, terms = self.affine(subs[k])
            if weight is None:  # from here on a row's length is not a number
                rest.append((k, constant, frozenset(terms.items())))
                if any(v in self.steps or v in self.loops for v in terms):
                    return None
            else:
                start += weight * constant
                for v, factor in terms.items():
                    moves[v] = moves.get(v, 0) + weight * factor
                weight = weight * dims[k].value if isinstance(dims[k], Const) else None
        return Element(var, root, frozenset(rest), start, moves)

    def affine(self, atom: Atom) -> Affine:
        """An integer as a number and multiples of variables."""
        if isinstance(atom, Const):
            return int(atom.value), {}
        bind = self.made.get(atom)
        op = bind.op if bind is not None else None
        if isinstance(op, Prim) and op.name in ("+", "-", "neg") and type_of(atom) == INT:
            parts = [self.affine(a) for a in op.args]
            signs = (1, 1) if op.name == "+" else (1, -1) if op.name == "-" else (-1,)
            terms: dict[Var, int] = {}
            for sign, (_, more) in zip(signs, parts):
                for v, factor in more.items():
                    terms[v] = terms.get(v, 0) + sign * factor
            return sum(s * c for s, (c, _) in zip(signs, parts)), {v: f for v, f in terms.items() if f}
        if isinstance(op, Prim) and op.name == "*" and type_of(atom) == INT:
            (a, more), (b, others) = map(self.affine, op.args)
            if not more or not others:
                factor, (constant, terms) = (a, (b, others)) if not more else (b, (a, more))
                return factor * constant, {v: factor * f for v, f in terms.items()} if factor else {}
        return 0, {atom: 1}
