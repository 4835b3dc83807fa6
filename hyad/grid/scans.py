"""Prefix scans: loops whose states a whole grid can compute, prefix sums and linear recurrences.

A loop that is taken in its order may run in parallel even so, where what one iteration does to a state can be put
together with what the next one does, before the state is known. So it is for ``s + e``, ``max(s, e)`` and the like, and
for ``a s + b``, which is most of what the reverse of a recurrence is::

    (loop n (fn [k s] (let [e (sin (get x k))] (+ s e)) 0.0)          =>  a sum, of e
    (loop n (fn [k s] (+ (* (get c k) s) (get x k))) 0.0)             =>  linear, by the pairs (c_k, x_k)
    (loop n (fn [k s t] #(t (+ s (* x t)))) 0.0 1.0)                  =>  affine, by matrices and vectors, of s and t

``scan_of`` says what of a loop's body comes first: the terms, which need no state. The rest is the body as it was, to
be run with the state that its iteration starts with.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    Var,
    all_binds,
    blocks_of,
    reads,
    same,
    type_of,
)
from ..passes.spread import Reduction, folded, own_slice, reductions
from ..program.dead import tidy

DIRECT = frozenset({"max", "min", "and", "or"})


TRUE, FALSE = Const(True, BOOL), Const(False, BOOL)
WIDEST = 4  # states that go on together


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How scalar accumulators, by their numbers, go on: "sum", "product", "max", "min", "and", "or" of one and the
    one of ``terms``; "linear": ``terms`` are ``(a, b)``, and the next state is ``a s + b``; or "affine2" to
    "affine4", of so many: a matrix, row by row, and a vector. A factor -0.0 says that the next state does not read the
    state, be it no number; one that is computed is 0.0 where it is zero."""

    accs: tuple[int, ...]
    kind: str
    terms: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop with ``recurrences``. ``before``: the bindings that make their terms; ``after``: the rest of the body,
    with the states. ``folds`` and ``slices`` are what the other accumulators are."""

    recurrences: tuple[Recurrence, ...]
    before: tuple[Bind, ...]
    after: tuple[Bind, ...]
    folds: tuple[Reduction, ...]
    slices: tuple[Reduction, ...]


def scan_of(op: Loop) -> Scan | None:
    """What a loop is as a scan; None where a state is none of those above."""
    body = op.body
    if not op.accs or not all(map(plain, body.binds)):
        return None
    folds: list[Reduction] = []
    slices: list[Reduction] = []
    states: list[int] = []
    for k, (acc, result) in enumerate(zip(op.accs, body.results)):
        if isinstance(acc.type, Arr):
            if own_slice(op, acc, result) is not False:
                return None
            slices.append(Reduction("slice", (k,)))
            continue
        kind = folded(body, acc, result)
        if kind is not None:
            folds.append(Reduction(kind, (k,)))
        else:
            states.append(k)
    if not states:
        return None
    moved = set(op.accs)
    for b in body.binds:
        if any(v in moved for v in reads(b)):
            moved.update(b.vars)
    made = {v: b for b in body.binds for v in b.vars}
    new: list[Bind] = []
    recurrences = []
    together: set[int] = set()
    for k in states:
        found = direct(op, k, made, moved) or Linear([op.accs[k]], made, moved, new).recurrence((k,), body)
        if found is None:
            together.add(k)
        else:
            recurrences.append(found)
    if together:  # those that need one another
        changed = True
        while changed:
            read = set().union(*(states_read(body.results[k], op, made) for k in together))
            changed = not read <= together
            together |= read
        group = tuple(k for k in states if k in together)
        if len(group) > WIDEST or len(group) != len(together):
            return None
        found = Linear([op.accs[k] for k in group], made, moved, new).recurrence(group, body)
        if found is None:
            return None
        recurrences = [r for r in recurrences if r.accs[0] not in together] + [found]
    needed = {t for r in recurrences for t in r.terms if isinstance(t, Var)}
    first: list[Bind] = []
    for b in reversed((*body.binds, *new)):
        if any(v in needed for v in b.vars):
            first.append(b)
            needed.update(reads(b))
    if any(v in moved for b in first for v in b.vars):
        return None
    results = tuple(r for k, r in enumerate(body.results) if k not in states)
    after = tidy(Block(tuple(b for b in body.binds if b not in first), results)).binds
    read = {v for b in after for v in reads(b)}.union(results)
    shared = tuple(v for b in first for v in b.vars if v in read)
    terms = tuple(t for r in recurrences for t in r.terms)
    before = tidy(Block(tuple(reversed(first)), (*terms, *shared))).binds
    return Scan(tuple(recurrences), before, after, tuple(folds), tuple(slices))


def row_scan(bind: Bind) -> list[Bind] | None:
    """A parallel loop whose iterations are each a scan and nothing else but cheap scalars: it, the parallel loops in
    it, each the only one of the one before, and the scan."""
    found = [bind]
    while True:
        op = found[-1].op
        *before, last = op.body.binds or (None,)
        if last is None or type(last.op) is not Loop or op.accs or reductions(op) is None:
            return None
        if not all(
            type(b.op) is Prim and (not isinstance(b.vars[0].type, Arr) or b.op.name in ("get", "undef"))
            for b in before
        ):
            return None
        inside = {v for b in found for x in b.op.body.binds for v in x.vars} | {b.op.index for b in found}
        if last.op.count in inside or not all(r in last.vars for r in op.body.results):
            return None
        if len(set(op.body.results)) != len(op.body.results):
            return None
        found.append(last)
        scan = scan_of(last.op)
        if scan is not None:
            empty = {b.vars[0] for b in before if b.op.name == "undef"}
            starts = [last.op.inits[k] for r in scan.slices for k in r.accs]
            good = not scan.folds and set(starts) == empty and len(starts) == len(empty)
            arrays = [v for v in last.vars if not scalar(v)]
            return found if good and all(v in op.body.results for v in arrays) else None
        if any(b.op.name == "undef" for b in before):
            return None


def scalar(var: Var) -> bool:
    return not isinstance(var.type, Arr)


def plain(bind: Bind) -> bool:
    """Whether a binding of the body is scalar, a row that is looked at, or a change of an array's element."""
    op = bind.op
    if type(op) is Prim:
        return scalar(bind.vars[0]) or op.name in ("get", "update")
    if type(op) not in (Loop, If) or not all(map(scalar, bind.vars)):
        return False
    return all(type(b.op) in (Prim, Loop, If) and plain(b) for block in blocks_of(op) for b in all_binds(block))


def direct(op: Loop, k: int, made: dict[Var, Bind], moved: set[Var]) -> Recurrence | None:
    """``(max s e)`` and the like."""
    acc, result = op.accs[k], op.body.results[k]
    bind = made.get(result)
    if bind is None or type(bind.op) is not Prim or bind.op.name not in DIRECT or acc.type not in (REAL, INT, BOOL):
        return None
    terms = [a for a in bind.op.args if a is not acc]
    if len(terms) != 1 or terms[0] in moved or type_of(terms[0]) != acc.type:
        return None
    return Recurrence((k,), bind.op.name, (terms[0],))


def states_read(result: Atom, op: Loop, made: dict[Var, Bind]) -> set[int]:
    """The numbers of the accumulators that a result is computed from."""
    todo, seen = [result], set()
    while todo:
        a = todo.pop()
        if type(a) is Var and a not in seen:
            seen.add(a)
            todo += reads(made[a]) if a in made else ()
    return {k for k, acc in enumerate(op.accs) if acc in seen}


class Linear:
    """Writes values as ``a s + b``, or ``a s + b t + .. + c``, of one state or several; ``new`` takes the bindings that
    compute the coefficients. ``unread``: of coefficients that a branch chooses, where the state is not read at all."""

    def __init__(self, accs: list[Var], made: dict[Var, Bind], moved: set[Var], new: list[Bind]) -> None:
        self.accs, self.made, self.moved, self.new = accs, made, moved, new
        self.type = accs[0].type
        self.known: dict[Atom, tuple[Atom, ...] | None] = {}
        self.unread: dict[Atom, Atom] = {}
        self.zero, self.one = (Const(x, self.type) for x in ((0.0, 1.0) if self.type == REAL else (0, 1)))

    def recurrence(self, group: tuple[int, ...], body: Block) -> Recurrence | None:
        if self.type not in (REAL, INT) or len(group) > 1 and any(acc.type != REAL for acc in self.accs):
            return None
        rows = [self.form(body.results[k]) for k in group]
        if None in rows:
            return None
        if len(group) > 1:
            matrix = [self.marked(a) for row in rows for a in row[:-1]]
            return Recurrence(group, f"affine{len(group)}", (*matrix, *(row[-1] for row in rows)))
        ((a, b),) = rows
        if self.same(a, 1):
            return Recurrence(group, "sum", (b,))
        if self.same(b, 0) and (self.type != REAL or self.forgets(a) is FALSE):
            return Recurrence(group, "product", (a,))
        return Recurrence(group, "linear", (self.marked(a), b)) if self.type == REAL else None

    def forgets(self, a: Atom) -> Atom:
        """Where a coefficient's state is not read."""
        return TRUE if self.same(a, 0) else self.unread.get(a, FALSE)

    def marked(self, a: Atom) -> Atom:
        """A coefficient that is -0.0 where its state is not read, and nowhere else."""
        where = self.forgets(a)
        if where is TRUE:
            return Const(-0.0, REAL)
        if type(a) is Const:
            return a
        plain = self.prim("+", a, Const(0.0, REAL))
        return plain if where is FALSE else self.prim("select", where, Const(-0.0, REAL), plain)

    def either(self, cond: Atom, x: Atom, y: Atom) -> Atom:
        """One of two truth values."""
        if x is y:
            return x
        if x is TRUE and y is FALSE:
            return cond
        var = Var("t", BOOL)
        self.new.append(Bind((var,), Prim("not", (cond,)) if (x, y) == (FALSE, TRUE) else Prim("select", (cond, x, y))))
        return var

    def carried(self, x: Atom, where: Atom) -> Atom:
        """A coefficient that has just been computed, with where its state is not read."""
        if where is not FALSE:
            self.unread[x] = where
        return x

    def form(self, x: Atom) -> tuple[Atom, ...] | None:
        """The coefficients of the states, and what is added."""
        if x not in self.moved:
            return (*(self.zero for _ in self.accs), x) if type_of(x) == self.type else None
        if x in self.accs:
            return (*(self.one if acc is x else self.zero for acc in self.accs), self.zero)
        if x not in self.known:
            bind = self.made.get(x)
            found = None
            if bind is not None and type(bind.op) is Prim:
                found = self.made_of(bind.op)
            elif bind is not None and type(bind.op) is If:
                found = self.chosen(bind.op, bind.vars.index(x))
            if found is not None:
                self.unread.pop(found[-1], None)  # it is added, whatever it may be a factor of later
            self.known[x] = found
        return self.known[x]

    def chosen(self, op: If, k: int) -> tuple[Atom, ...] | None:
        """What a branch gives: the coefficients of both arms, of which one is selected."""
        forms = [self.arm(block, k) for block in (op.then, op.orelse)]
        if op.cond in self.moved or None in forms:
            return None
        return tuple(self.select(op.cond, x, y) for x, y in zip(*forms))

    def arm(self, block: Block, k: int) -> tuple[Atom, ...] | None:
        """The coefficients of an arm, to be computed whether it is taken or not: it must be arithmetic alone."""
        table: dict[Atom, Atom] = {}
        for b in block.binds:
            if type(b.op) is not Prim or b.vars[0].type != REAL or b.op.name == "get":
                return None
            var = Var(b.vars[0].name, REAL, b.vars[0].span)
            args = tuple(table.get(a, a) for a in b.op.args)
            copy = Bind((var,), Prim(b.op.name, args), b.span)
            table[b.vars[0]] = var
            if any(a in self.moved for a in args):
                self.moved.add(var)
                self.made[var] = copy
            else:
                self.new.append(copy)
        return self.form(table.get(block.results[k], block.results[k]))

    def made_of(self, op: Prim) -> tuple[Atom, ...] | None:
        if op.name == "select":
            cond, *ways = op.args
            forms = [self.form(w) for w in ways]
            if cond in self.moved or None in forms:
                return None
            return tuple(self.select(cond, x, y) for x, y in zip(*forms))
        if op.name not in ("+", "-", "*", "/", "neg"):
            return None
        forms = [self.form(x) for x in op.args]
        if None in forms:
            return None
        left, *rest = forms
        if op.name == "neg":
            return tuple(self.minus(self.zero, x) for x in left)
        (right,) = rest
        if op.name == "+":
            return tuple(map(self.plus, left, right))
        if op.name == "-":
            return tuple(map(self.minus, left, right))
        if op.name == "*" and self.free(left):
            return tuple(self.times(left[-1], x) for x in right)
        if op.name == "*" and self.free(right):
            return tuple(self.times(x, right[-1]) for x in left)
        if op.name == "/" and self.free(right) and self.type == REAL:
            return tuple(self.over(x, right[-1]) for x in left)
        return None

    def free(self, form: tuple[Atom, ...]) -> bool:
        """Whether a value has nothing of a state."""
        return all(self.same(a, 0) for a in form[:-1])

    def same(self, x: Atom, number: int) -> bool:
        return type(x) is Const and x.value == number

    def prim(self, name: str, *args: Atom) -> Var:
        var = Var("t", self.type)
        self.new.append(Bind((var,), Prim(name, args)))
        return var

    def plus(self, x: Atom, y: Atom) -> Atom:
        if self.same(x, 0) or self.same(y, 0):
            return y if self.same(x, 0) else x
        return self.carried(self.prim("+", x, y), self.neither(x, y))

    def minus(self, x: Atom, y: Atom) -> Atom:
        if self.same(y, 0):
            return x
        if self.same(x, 0):
            return self.carried(self.prim("neg", y), self.forgets(y))
        return self.carried(self.prim("-", x, y), self.neither(x, y))

    def neither(self, x: Atom, y: Atom) -> Atom:
        """Where the states of neither of two coefficients are read."""
        return self.either(self.forgets(x), self.forgets(y), FALSE) if x in self.unread else FALSE

    def times(self, x: Atom, y: Atom) -> Atom:
        if self.same(x, 0) or self.same(y, 0):
            return self.zero
        if self.same(x, 1) or self.same(y, 1):
            return y if self.same(x, 1) else x
        return self.carried(self.prim("*", x, y), self.forgets(x if x in self.unread else y))

    def over(self, x: Atom, y: Atom) -> Atom:
        return x if self.same(x, 0) else self.carried(self.prim("/", x, y), self.forgets(x))

    def select(self, cond: Atom, x: Atom, y: Atom) -> Atom:
        if same(x, y):
            return x
        return self.carried(self.prim("select", cond, x, y), self.either(cond, self.forgets(x), self.forgets(y)))
