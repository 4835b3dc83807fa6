"""Loops on several threads: which may, and sums made ready for it.

A ``Loop`` without accumulators is independent by construction: its iterations read what is there and stack what they
make; so is one whose iterations change rows of their own (``rows.own_rows``). A sum is not; ``in_parts`` takes it in
parts, one for each thread, in an order that the sizes and the number of threads decide alone, so that a result is the
same to the last bit from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

from ..core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Op,
    Prim,
    Program,
    Scalar,
    Type,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    defined_in,
    free_vars,
    type_of,
)
from ..program.accumulators import sum_like
from ..program.builder import Builder
from ..program.counts import ASSUMED, DEAR, stacked
from ..program.dead import dead_code, tidy
from ..program.loops import CHEAP, cost_of, slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild, rebuild
from .lanes import LANES
from .nests import Steps, additions
from .rows import own_rows

#: The work, in additions, that each thread is to have: 80 us of a processor, where waking one may take 50. So two
#: grains are shared by two; of one, each would have half, and be done later than one thread alone.
GRAIN = 300_000

#: A loop over lanes costs so many of its iterations: it is a vector or two.
VECTORS = 2.0

#: How often a ``while`` goes round, where nobody knows.
ROUNDS = 10.0

#: The reals of a line of the cache: so many lie between what two threads write.
LINE = 8

#: A number that follows from sizes: the coefficients of products of them.
Polynomial = Mapping[tuple[Var, ...], float]


def safe(block: Block) -> bool:
    """Whether a block's code can run on any thread: it neither fails nor takes memory that grows."""
    return not any(isinstance(bind.op, (Apply, Case, Check, Make)) or grows(bind.op) for bind in all_binds(block))


def grows(op: Op) -> bool:
    """Whether an operation is a ``while`` that stacks something."""
    return type(op) is While and len(op.body.results) > len(op.accs)


def uneven(op: Loop) -> bool:
    """Whether the iterations of a loop do not all do as much: inside is a ``while``, or a loop as long as their index
    says. The last lanes, of at most so many, are no such loop."""
    moving: set[Atom] = {op.index}
    for bind in all_binds(op.body):
        x = bind.op
        if type(x) is While or type(x) is Loop and x.count in moving:
            return True
        if type(x) is Prim and x.name in ("+", "-", "*", "//") and bind.vars[0].type == INT:
            if not moving.isdisjoint(x.args):
                moving.update(bind.vars)
    return False


def constant(value: float) -> Polynomial:
    return {(): value}


def plus(p: Polynomial, q: Polynomial, scale: float = 1.0) -> Polynomial:
    """``p + scale q``."""
    terms = {k: p.get(k, 0.0) + scale * q.get(k, 0.0) for k in (*p, *q)}
    return {k: c for k, c in terms.items() if c} or constant(0.0)


def times(p: Polynomial, q: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for a, x in p.items():
        for c, y in q.items():
            total = plus(total, {tuple(sorted((*a, *c), key=lambda v: (v.name, id(v)))): x * y})
    return total


def assumed(p: Polynomial) -> float:
    """What a number is where nobody knows a size."""
    return sum(c * float(ASSUMED) ** len(sizes) for sizes, c in p.items())


def weight(block: Block, means: Mapping[Atom, Polynomial]) -> Polynomial:
    """What a block costs, in additions, loads and stores, by the integers that are known around it. ``means`` has those
    bound inside a loop, an index say, as their mean over the iterations. Of a branch its dearer arm counts."""
    known = dict(means)
    total: Polynomial = constant(0.0)

    def number(a: Atom) -> Polynomial:
        return constant(float(a.value)) if type(a) is Const else known.get(a) or {(a,): 1.0}  # type: ignore[dict-item]

    def integer(op: Prim) -> Polynomial:
        p, q = (number(a) for a in op.args)
        if op.name in ("+", "-"):
            return plus(p, q, 1.0 if op.name == "+" else -1.0)
        if op.name == "*":
            return times(p, q)
        if op.name == "//" and type(op.args[1]) is Const and op.args[1].value:
            return times(p, constant(1 / op.args[1].value))
        if op.name == "min":  # no more than what is known
            return next((x for x in (p, q) if set(x) == {()}), p)
        return constant(float(ASSUMED))

    def elements(dims: Iterable[Atom]) -> Polynomial:
        total = constant(1.0)
        for d in dims:
            total = times(total, number(d))
        return total

    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and len(bind.vars) == 1:
            v, t = bind.vars[0], bind.vars[0].type
            if t == INT:
                two = len(op.args) == 2 and all(type_of(a) == INT for a in op.args)
                known[v] = integer(op) if two else constant(float(ASSUMED))
            elif op.name in ("update", "add-at"):
                t = type_of(op.args[-1])
                each = elements(t.dims) if isinstance(t, Arr) else constant(1.0)
                total = plus(total, each, 3.0 if op.name == "add-at" else 1.0)
            elif op.name == "zeros" and isinstance(t, Arr):
                total = plus(total, elements(t.dims))
            elif op.name in PRIMITIVES or op.name in ("get", "select"):
                total = plus(total, constant(PRIMITIVES[op.name].cost if op.name in PRIMITIVES else 1.0))
        elif type(op) is If:
            known.update((v, constant(float(ASSUMED))) for v in bind.vars if v.type == INT)
            total = plus(total, max((weight(op.then, known), weight(op.orelse, known)), key=assumed))
        elif type(op) is Loop:
            count = number(op.count)
            known[op.index] = plus(times(count, constant(0.5)), constant(-0.5))
            known.update((v, constant(float(ASSUMED))) for v in (*op.accs, *bind.vars) if v.type == INT)
            body = plus(weight(op.body, known), constant(float(stacked(op))))
            total = plus(total, times(constant(VECTORS) if count == constant(float(LANES)) else count, body))
        else:
            known.update((v, constant(float(ASSUMED))) for v in bind.vars if v.type == INT)
            often = ROUNDS if type(op) is While else 1.0
            total = plus(total, constant(often * sum(assumed(weight(region, known)) for region in blocks_of(op))))
    return total


def iteration(op: Loop) -> Polynomial:
    """What one iteration of a loop costs, by the sizes around the loop; an addition at least."""
    count = constant(float(op.count.value)) if type(op.count) is Const else {(op.count,): 1.0}  # type: ignore[dict-item]
    mean = plus(times(count, constant(0.5)), constant(-0.5))
    return plus(plus(weight(op.body, {op.index: mean}), constant(float(stacked(op)))), constant(1.0))


def grain(body: Polynomial) -> int | None:
    """How many iterations are worth a thread, where no size decides."""
    return max(1, ceil(GRAIN / body[()])) if set(body) == {()} else None


def independent(program: Program) -> dict[Bind, int | Polynomial]:
    """The outermost loops whose iterations can run at once, with how many of them are worth a thread, or what one costs
    where sizes decide."""
    found: dict[Bind, int | Polynomial] = {}
    made = {bind.vars[0]: bind.op for bind in all_binds(program.body) if type(bind.op) is Prim}

    def for_threads(count: Atom) -> bool:
        """Whether a count is that of the parts of a sum: at most a number of threads."""
        op = made.get(count)  # type: ignore[arg-type]
        return op is not None and op.name == "min" and type(op.args[0]) is Const

    def few(count: Atom) -> bool:
        """Whether a count is that of where parts begin, one more."""
        op = made.get(count)  # type: ignore[arg-type]
        return op is not None and op.name == "+" and any(map(for_threads, op.args))

    def visit(block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if type(op) is Loop and few(op.count):
                continue
            if type(op) is Loop and safe(op.body) and own_rows(op) is not None:
                body = iteration(op)
                worth = 1 if for_threads(op.count) else grain(body)
                if type(op.count) is not Const or worth is None or op.count.value > worth:
                    found[bind] = body if worth is None else worth
            elif type(op) is Loop:
                visit(op.body)
            elif type(op) is If:
                visit(op.then)
                visit(op.orelse)

    visit(program.body)
    return found


def spread(program: Program) -> list[tuple[Bind, str]]:
    """The outermost loops of a program that is made for threads, each with how it runs on them, or why it does not; of
    one that does not those inside follow. What adds up parts, or does too little in any case, is left out."""
    binds = [bind.op for bind in all_binds(program.body)]
    alone = any(isinstance(op, (Apply, Case, Make)) or grows(op) for op in binds)  # as ``print_c`` has it
    shared = {} if alone else independent(program)
    found: list[tuple[Bind, str]] = []

    def visit(block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if bind in shared:
                worth = shared[bind]
                known = type(worth) is int and worth > 1
                enough = f"from {worth + 1} iterations on" if known else "where it is long enough"  # type: ignore[operator]
                part = "in parts, " if op.index.name == "part" else ""  # type: ignore[union-attr]
                found.append((bind, f"on threads, {part}{enough}"))
            elif type(op) is Loop:
                if type(op.count) is not Const and op.index.name != "part":
                    own = safe(op.body) and own_rows(op) is not None
                    found.append((bind, ALONE if alone and own else why_not(op)))
                visit(op.body)
            elif type(op) is If:
                visit(op.then)
                visit(op.orelse)

    visit(program.body)
    return found


ALONE = "on one: elsewhere the program has data, calls a function, or remembers the rounds of a `while`"


def why_not(op: Loop) -> str:
    """Why the iterations of a loop do not run on several threads."""
    inside = [bind.op for bind in all_binds(op.body)]
    if any(type(x) is Check for x in inside):
        return "on one: a check in it may fail"
    if any(isinstance(x, (Apply, Case, Make)) for x in inside):
        return "on one: it calls a function or makes data"
    if any(map(grows, inside)):
        return "on one: a `while` in it remembers its rounds"
    waits = [a.name for a, r in zip(op.accs, op.body.results) if not sum_like(op.body, a, r)]
    if waits:
        return f"on one: an iteration needs what the one before gives ({', '.join(dict.fromkeys(waits))})"
    return "on one: parts of its sums would save less than it takes to clear and add them"


class Parts(Rebuild):
    """Sums in parts: ``(fold + z v)``  =>  the sums of equal parts of ``v``, each by a loop of its own, then theirs.

    Accumulators may be arrays to whose elements is added, as the adjoints of a reverse pass. A loop that stacks
    something beside its sums becomes two: one stacks, costly numbers that the sums need included; the other adds.
    Design decision: the outermost loop that can be so taken apart, for threads are dear to start.
    """

    def __init__(self, builder: Builder, program: Program, threads: int) -> None:
        super().__init__(builder)
        self.steps, self.threads = Steps(program.body), threads
        self.alone = False  # inside a loop that runs on one thread

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width, outer = len(op.accs), self.alone
        adds = all(
            sum_like(op.body, a, r) and (a.type.elem if isinstance(a.type, Arr) else a.type) == REAL
            for a, r in zip(op.accs, op.body.results)
        )
        runs = safe(op.body) and not self.alone
        own = runs and own_rows(op) is not None
        count = self.atom(op.count)
        try:
            if not runs or not adds and not own and not self.stacks_apart(op):
                return super().loop(op, bind)
            self.alone = True
            if own:
                return super().loop(op, bind)
            most = grain(iteration(op))
            if not width or type(count) is Const and most is not None and count.value < 2 * most or self.its_own(op):
                return super().loop(op, bind)
            if len(op.body.results) > width:
                return self.apart(op, bind, count, adds)
            return self.in_parts(op, [v.name for v in bind.vars], count, lambda i: None)
        finally:
            self.alone = outer

    def in_parts(self, op: Loop, names: Sequence[str], count: Atom, first_of_all: Callable[[Atom], None]) -> list[Atom]:
        """A loop of sums alone; ``first_of_all(i)`` says what else is known in iteration ``i``."""
        b = self.b
        enough = b.prim("max", Const(1, INT), self.grains(count, iteration(op)))
        parts = b.prim("min", Const(self.threads, INT), enough)
        inits, starts = self.atoms(op.inits), self.starts(op, count, parts)
        bounded = uneven(op)

        def part(c: Atom):
            after = b.prim("+", c, Const(1, INT))
            if starts is not None:
                first, last = b.get(starts, c), b.get(starts, after)
            else:
                first, last = (b.prim("//", b.prim("*", x, count), parts) for x in (c, after))

            def body(k: Atom, *accs: Atom):
                i = b.prim("+", first, k)
                if bounded:  # that it is one of these says how large what depends on it is at most
                    i = b.prim("min", i, b.prim("-", count, Const(1, INT)))
                self.here[op.index] = i
                first_of_all(self.here[op.index])
                self.here.update(zip(op.accs, accs))
                return self.block(op.body), ()

            zeros = [self.zeros(type_of(z), a.name) for z, a in zip(inits, op.accs)]
            length = b.prim("-", last, first)
            return (), b.loop(length, zeros, body, names, op.index.name, [a.name for a in op.accs])

        sums = b.loop(parts, (), part, [f"{n}_part" for n in names], "part")
        return self.totals(inits, sums, parts, names)

    def starts(self, op: Loop, count: Atom, parts: Atom) -> Atom | None:
        """Where parts of equal work begin in a loop whose iterations do more and more, or less and less, a triangle;
        the last number is ``count``. None where equal parts are as good.

        Iteration ``i`` costs ``p + q i``, so that ``x`` of work is done after ``2 x / (p + sqrt(p^2 + 2 q x))``.
        """
        b = self.b
        work = plus(weight(op.body, {op.index: {(op.index,): 1.0}}), constant(1.0))
        slope = {tuple(v for v in at if v is not op.index): c for at, c in work.items() if at.count(op.index) == 1}
        if not slope or any(at.count(op.index) > 1 for at in work):
            return None
        p, q = (self.real(w) for w in ({at: c for at, c in work.items() if op.index not in at}, slope))
        n, two = b.to_real(count), Const(2.0, REAL)
        all_of_it = b.prim("*", n, b.prim("+", p, b.prim("/", b.prim("*", q, n), two)))
        each = b.prim("/", all_of_it, b.to_real(parts))

        def start(c: Atom) -> Atom:
            x = b.prim("*", two, b.prim("*", b.to_real(c), each))
            square = b.prim("+", b.prim("*", p, p), b.prim("*", q, x))
            below = b.prim("+", p, b.prim("sqrt", b.prim("max", Const(0.0, REAL), square)))
            at = b.prim("int", b.prim("min", n, b.prim("/", x, b.prim("max", Const(1.0, REAL), below))))
            return b.select(b.prim("<", c, parts), b.prim("max", Const(0, INT), at), count)

        length = b.prim("+", parts, Const(1, INT))
        b.sizes.update(v for v in (length,) if type(v) is Var)
        return b.build(length, start, hint="starts", index_name="part")

    def real(self, p: Polynomial, scale: float = 1.0) -> Atom:
        """A polynomial in the sizes as a number of the program."""
        b = self.b
        total: Atom = Const(0.0, REAL)
        for sizes, c in p.items():
            term: Atom = Const(c / scale, REAL)
            for v in sizes:
                term = b.prim("*", term, b.to_real(self.atom(v)))
            total = b.prim("+", total, term)
        return total

    def zeros(self, t: Type, name: str) -> Atom:
        """What a part starts from: an array with rows that nobody uses, which keep it apart from the next part's."""
        if not isinstance(t, Arr):
            return self.b.zeros(t, name)
        row = prod(d.value if type(d) is Const else 1 for d in t.dims[1:])
        longer = self.b.prim("+", t.dims[0], Const(ceil(LINE / max(1, row)), INT))
        if type(longer) is Var:
            self.b.sizes.add(longer)
        return self.b.zeros(Arr(t.elem, (longer, *t.dims[1:])), name)

    def grains(self, count: Atom, body: Polynomial) -> Atom:
        """How many threads so many iterations are worth, or more than there are."""
        b, most = self.b, grain(body)
        if most is not None:
            return b.prim("//", count, Const(most, INT))
        work = b.prim("*", b.to_real(count), self.real(body, GRAIN))
        enough = b.prim("min", Const(float(self.threads), REAL), b.prim("max", Const(0.0, REAL), work))
        return b.prim("int", enough)

    def its_own(self, op: Loop) -> bool:
        """Whether the iterations add to elements of their own, and do little else: no parts are worth their zeros."""
        inside = {op.index, *op.accs, *defined_in(op.body)}
        room: Polynomial = constant(0.0)
        for acc, result in zip(op.accs, op.body.results):
            places = additions(op.body, acc, result) if isinstance(acc.type, Arr) else None
            if not places or any(all(self.steps.step(s, op.index, inside) in (0, None) for s in at) for at in places):
                return False
            room = plus(room, constant(float(prod(ASSUMED for _ in acc.type.dims))))  # type: ignore[union-attr]
        count = float(op.count.value) if type(op.count) is Const else float(ASSUMED)
        return count * assumed(iteration(op)) < 4 * 3 * self.threads * assumed(room)

    def totals(self, inits: Sequence[Atom], sums: Sequence[Atom], parts: Atom, names: Sequence[str]) -> list[Atom]:
        """``inits`` and the parts' sums, added in their order: all numbers in one loop, an array by its elements."""
        b, made = self.b, list(inits)

        def added(which: Sequence[int], starts: Sequence[Atom], indices: tuple[Atom, ...] = ()) -> Sequence[Atom]:
            def body(c: Atom, *totals: Atom):
                return [b.prim("+", t, b.get(sums[k], c, *indices)) for k, t in zip(which, totals)], ()

            hints = [names[k] for k in which]
            return b.loop(parts, starts, body, hints, "part", hints)

        def item(x: Atom, i: Atom) -> Atom:
            made = b.definitions.get(x)  # type: ignore[arg-type]
            return b.zeros(type_of(x).item()) if made is not None and made.name == "zeros" else b.get(x, i)  # type: ignore[union-attr]

        def element(k: int, x: Atom, indices: tuple[Atom, ...]) -> Atom:
            t = type_of(x)
            if not isinstance(t, Arr):
                return added([k], [x], indices)[0]
            if t.rank > 1:
                return b.build(t.dims[0], lambda i: element(k, item(x, i), (*indices, i)), hint=names[k])

            def first(i: Atom) -> Atom:
                return b.prim("+", b.get(x, i), b.get(sums[k], Const(0, INT), *indices, i))

            def row(c: Atom, total: Atom):  # of a part, side by side in memory
                def one(i: Atom, total: Atom):
                    term = b.get(sums[k], b.prim("+", Const(1, INT), c), *indices, i)
                    return [b.add_at(total, [i], term, names[k], True)], ()

                return b.loop(t.dims[0], [total], one, [names[k]], "i", [names[k]]), ()

            others = b.prim("-", parts, Const(1, INT))
            b.sizes.update(v for v in (others,) if type(v) is Var)
            total = b.build(t.dims[0], first, hint=names[k])
            return b.loop(others, [total], row, [names[k]], "part", [names[k]])[0]

        numbers = [k for k, z in enumerate(inits) if not isinstance(type_of(z), Arr)]
        for k, x in zip(numbers, added(numbers, [inits[k] for k in numbers]) if numbers else ()):
            made[k] = x
        lengths = {k: type_of(z).dims[0] for k, z in enumerate(inits) if k not in numbers}  # type: ignore[union-attr]
        while lengths:  # arrays of one length in one loop
            length = next(iter(lengths.values()))
            which = [k for k, n in lengths.items() if b.same_int(n, length)]

            def elements(i: Atom, which: Sequence[int] = tuple(which)):
                return (), [element(k, item(inits[k], i), (i,)) for k in which]

            hints = [names[k] for k in which]
            for k, x in zip(which, b.loop(length, (), elements, hints)):
                made[k] = x
                del lengths[k]
        return made

    def stacks_apart(self, op: Loop) -> bool:
        """Whether what a loop stacks waits for none of its accumulators, and is most of its work."""
        stacking, folding, _ = split(op)
        if op.snapshots is not None or not stacking.results or not free_vars(stacking).keys().isdisjoint(op.accs):
            return False
        return 2 * assumed(iteration(replace(op, body=folding))) < assumed(iteration(op))

    def apart(self, op: Loop, bind: Bind, count: Atom, adds: bool) -> list[Atom]:
        """A loop that stacks, then one of sums, or of what else it folds."""
        b, width = self.b, len(op.accs)
        stacking, folding, kept = split(op)
        names = [v.name for v in bind.vars]

        def stack(i: Atom):
            self.here[op.index] = i
            return (), self.block(stacking)

        self.here.update((a, b.undef(a.type)) for a in op.accs)  # type: ignore[arg-type]
        hints = [*names[width:], *(str(v) for v in stacking.results[len(names) - width :])]
        out = b.loop(count, (), stack, hints, op.index.name, pruned=True)
        stacked = {v: out[stacking.results.index(v)] for v in kept}

        def known(i: Atom) -> None:
            self.here.update((v, b.get(rows, i, hint=v.name)) for v, rows in stacked.items())

        rest = Loop(op.count, op.index, op.inits, op.accs, folding)
        if adds:
            return [*self.in_parts(rest, names[:width], count, known), *out[: len(names) - width]]

        def fold(i: Atom, *accs: Atom):
            self.here[op.index] = i
            known(i)
            self.here.update(zip(op.accs, accs))
            return self.block(folding), ()

        accs = [a.name for a in op.accs]
        return [*b.loop(count, self.atoms(op.inits), fold, names, op.index.name, accs), *out[: len(names) - width]]


def split(op: Loop) -> tuple[Block, Block, list[Var]]:
    """Of a loop that stacks: what an iteration stacks, then what it folds, then the costly numbers and stacked rows
    that the second reads and the first stacks, the last results of it."""
    body, width = op.body, len(op.accs)
    folding = tidy(Block(body.binds, body.results[:width]))
    given = body.results[width:]
    made = {v for x in tidy(Block(body.binds, given)).binds for v in x.vars}
    dears = [x for x in folding.binds if dear(x)]
    numbers = [x for x in dears if all(v in made and (v.type == REAL or v in given) for v in x.vars)]
    kept = [v for x in numbers for v in x.vars]
    stacking = tidy(Block(body.binds, (*given, *(v for v in kept if v not in given))))
    left = tuple(x for x in folding.binds if x not in numbers)
    return stacking, tidy(Block(left, folding.results)), kept


def dear(bind: Bind) -> bool:
    """Whether a number is better read than computed again."""
    op = bind.op
    return type(op) in (Loop, If) or type(op) is Prim and op.name in PRIMITIVES and PRIMITIVES[op.name].cost >= DEAR


class ChecksFirst(Rebuild):
    """Checks of what a loop reads in a loop of their own: the rest cannot fail, and may run on any thread.

    ``(build n (fn [i] (do (require-index (get at i) m) (f (get x (get at i))))))``  =>  a loop of the checks, then the
    loop without them. Design decision: where nothing costly has to be computed twice for it, and nothing waits for the
    iteration before.
    """

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        checks = [x for x in op.body.binds if type(x.op) is Check]
        others = tuple(x for x in op.body.binds if x not in checks)
        if not checks or not safe(Block(others, ())):
            return super().loop(op, bind)
        first = slice_of(op.body, [a for x in checks for a in atoms_of(x.op)])
        light = all(type(x.op) in (Prim, Check) and isinstance(type_of(v), Scalar) for x in first.binds for v in x.vars)
        if not light or cost_of(first) > CHEAP or not free_vars(first).keys().isdisjoint(op.accs):
            return super().loop(op, bind)
        count = self.atom(op.count)

        def body(i: Atom):
            self.here[op.index] = i
            self.block(Block(first.binds, ()))
            return (), ()

        self.b.loop(count, (), body, (), op.index.name)
        return super().loop(replace(op, body=Block(others, op.body.results)), bind)


def in_parts(program: Program, threads: int) -> Program:
    """The program with its long sums in parts that can run on ``threads`` threads."""
    if threads < 2 or not any(type(bind.op) is Loop for bind in program.body.binds):
        return program
    program = dead_code(rebuild(program, ChecksFirst))
    return dead_code(rebuild(program, lambda b: Parts(b, program, threads)))
