"""Which columns of a tangent may be other than zero, and sums of tangents that leave the others alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import REAL, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Type, Var, count_uses, integer, type_of
from ..program.builder import Builder
from ..program.rebuild import Rebuild

#: So many columns are added at a time, a vector; of fewer than ``MANY`` directions all are.
AT_ONCE, MANY = 4, 12


@dataclass(frozen=True, slots=True)
class Part:
    """The columns from ``low`` up to ``high``, that aside: two integers, or two arrays of them for a tangent whose rows
    have columns of their own. ``width`` is a guess at how many."""

    low: Atom
    high: Atom
    width: int


#: The columns of a tangent that may be other than zero: those from the least to the greatest of some parts.
Span = dict[tuple[Atom, Atom], Part]


class Columns(Rebuild):
    """Adds to a sum of tangents those columns only that may be other than zero.

    ``(build 26 (fn [d] (+ (get sum d) (* w (get dx i d)))))``  =>  the same for ``d`` from ``(get low i)`` up to
    ``(get high i)``, four at a time, where row ``i`` of ``dx`` came from few of the 26 inputs.

    The spans of columns are computed beside the tangents, as integers: of unit directions, of zeros, of what is linear
    in tangents with spans, row by row where an array is filled row by row. A span is widened to whole vectors: that
    adds zeros.

    Design decision: the zeros are those that differentiation introduced, so nothing that a user wrote is lost, and
    what is added keeps its order. Only sums in place: a fresh tangent has to be written from end to end anyway.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.spans: dict[Atom, Span] = {}  # of the new program's tangents; what is not there may have any column
        self.around: Loop | None = None  # the innermost loop that is being rebuilt, directions aside
        self.narrowed = False

    # ------------------------------------------------------------------------------------- spans

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and op.index.soft:
            self.directions(bind, op)
            return
        self.copy(bind)
        if type(op) is Prim and directions_of(bind.vars[0].type):
            made, span = self.here[bind.vars[0]], self.span_of(op, bind.vars[0].type)
            if span is not None:
                self.spans[made] = span

    def span_of(self, op: Prim, t: Type | None) -> Span | None:
        """The columns of what an operation on tangents gives."""
        if op.name == "zeros":
            return {}
        if op.name == "array":
            return union([self.spans.get(a) for a in self.atoms(op.args)])
        base = self.spans.get(self.atom(op.args[0])) if op.args else None
        if base is None:
            return None
        if op.name == "get":
            return self.row(base, self.atoms(op.args[1:]))
        if op.name not in ("update", "add-at"):
            return None
        *at, x = self.atoms(op.args[1:])
        if len(at) == type_of(self.atom(op.args[0])).rank:  # type: ignore[union-attr]
            new: Span | None = only(at[-1], self.b.prim("+", at[-1], integer(1)), 1)
        else:
            new = self.spans.get(x)
        if by_row(base) is None:
            return union([base, new])
        if new is None or by_row(new):
            return None
        (rows,) = base.values()
        if op.name == "add-at" or len(at) > 1:  # what the row had stays
            new = union([self.row(base, at), new])
        made = self.whole(new, directions_of(t))  # type: ignore[arg-type]
        low, high = self.b.update(rows.low, at[:1], made.low), self.b.update(rows.high, at[:1], made.high)
        return only(low, high, max(rows.width, made.width))

    def row(self, span: Span, at: Sequence[Atom]) -> Span:
        """The columns of a part of a tangent."""
        rows = by_row(span)
        if rows is None or not at:
            return span
        return only(self.b.get(rows.low, at[0]), self.b.get(rows.high, at[0]), rows.width)

    def whole(self, span: Span | None, n: int) -> Part:
        """The columns of a span in ``n`` directions as one part."""
        if span is None:
            return Part(integer(0), integer(n), n)
        if not span:
            return Part(integer(n), integer(0), 0)
        first, *rest = span.values()
        low, high, width = first.low, first.high, first.width
        for s in rest:
            low, high, width = self.b.prim("min", low, s.low), self.b.prim("max", high, s.high), width + s.width
        return Part(low, high, min(n, width))

    def in_rows(self, span: Span | None, rows: Atom, n: int) -> Part:
        """Columns row by row; those that are the same in all rows."""
        if span is not None and (found := by_row(span)):
            return found
        s = self.whole(span, n)
        low, high = (self.b.build(rows, lambda i, a=a: a, name) for a, name in ((s.low, "low"), (s.high, "high")))
        return Part(low, high, s.width)

    # -------------------------------------------------------------------------- branches and loops

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        b, cond = self.b, self.atom(op.cond)
        if type(cond) is Const or cond in self.holds or not any(directions_of(v.type) for v in bind.vars):
            return super().if_(op, bind)
        made = [self.branch(cond, block, holds) for block, holds in ((op.then, True), (op.orelse, False))]
        spans: dict[int, list[Part]] = {}
        for k, v in enumerate(bind.vars):
            both = [self.spans.get(results[k]) for _, results in made]
            if directions_of(v.type) and not any(s is None or by_row(s) for s in both):
                spans[k] = []
        for scope, results in made:
            with b.region(scope):
                for k, parts in spans.items():
                    parts.append(self.whole(self.spans[results[k]], directions_of(bind.vars[k].type)))
        regions = [
            (scope, [*results, *(a for parts in spans.values() for a in (parts[n].low, parts[n].high))])
            for n, (scope, results) in enumerate(made)
        ]
        names = [v.name for v in bind.vars] + ["low", "high"] * len(spans)
        out = b.if_(cond, *regions, names=names, given=bool(bind.vars) and bind.vars[0].given)
        bounds = iter(out[len(bind.vars) :])
        for k, parts in spans.items():
            self.spans[out[k]] = only(next(bounds), next(bounds), max(p.width for p in parts))
        return out[: len(bind.vars)]

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        b, width = self.b, len(op.accs)
        around, self.around = self.around, op
        inits = self.atoms(op.inits)

        def carries(k: int, span: Span | None) -> Part:
            """The columns of accumulator ``k``, by row where it has some."""
            t: Arr = op.accs[k].type  # type: ignore[assignment]
            return (
                self.in_rows(span, self.atom(t.dims[0]), directions_of(t))
                if t.rank > 1
                else self.whole(span, directions_of(t))
            )

        carried = {
            k: carries(k, self.spans[z])
            for k, (a, z) in enumerate(zip(op.accs, inits))
            if directions_of(a.type) and z in self.spans and filled(op.body, a, op.body.results[k])
        }
        starts = [*inits, *(a for p in carried.values() for a in (p.low, p.high))]
        stacked: dict[int, Part] = {}

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            bounds = iter(accs[width:])
            for k in carried:
                self.spans[accs[k]] = only(next(bounds), next(bounds), 1)
            results = self.block(op.body)
            for k in carried:
                carried[k] = carries(k, self.spans.get(results[k]))
            for k in range(width, len(results)):
                n, s = directions_of(type_of(results[k])), self.spans.get(results[k])
                if n and s is not None and not by_row(s):
                    stacked[k] = self.whole(s, n)
            following = [a for p in carried.values() for a in (p.low, p.high)]
            return [*results[:width], *following], [
                *results[width:],
                *(a for p in stacked.values() for a in (p.low, p.high)),
            ]

        names = [v.name for v in bind.vars]
        names[width:width] = ["low", "high"] * len(carried)
        acc_names = [a.name for a in op.accs] + ["low", "high"] * len(carried)
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        given, span = bool(bind.vars) and bind.vars[0].given, b.span
        out = b.loop(self.atom(op.count), starts, body, names, op.index.name, acc_names, given, snapshots=kept)
        b.span, self.around = span, around
        bounds = iter(out[width : width + 2 * len(carried)])
        for k, p in carried.items():
            self.spans[out[k]] = only(next(bounds), next(bounds), p.width)
        rest = out[width + 2 * len(carried) :]
        results = [*out[:width], *rest[: len(bind.vars) - width]]
        bounds = iter(rest[len(bind.vars) - width :])
        for k, p in stacked.items():
            self.spans[results[k]] = only(next(bounds), next(bounds), p.width)
        return results

    # ---------------------------------------------------------------------------------- directions

    def directions(self, bind: Bind, op: Loop) -> None:
        """A loop over the directions: a sum of few columns, or fresh tangents and their spans."""
        if type(op.count) is not Const or any(type(x.op) is not Prim for x in op.body.binds):
            self.plainly(bind)
            return
        n = op.count.value
        sums = sums_of(bind, op, self.around)
        if sums and n >= MANY:
            span = union([self.column(op, x) for terms in sums.values() for x in terms])
            if span is not None and 2 * sum(p.width for p in span.values()) <= n:
                self.b.fired("columns")
                self.narrowed = True
                self.few(bind, op, list(sums), self.whole(span, n), n)
                return
        spans = [self.column(op, r) for r in op.body.results] if not op.accs else []
        self.plainly(bind)
        self.spans.update((self.here[v], s) for v, s in zip(bind.vars, spans) if s is not None)  # type: ignore[misc]

    def plainly(self, bind: Bind) -> None:
        self.define(bind, super().loop(bind.op, bind))  # type: ignore[arg-type]

    def column(self, op: Loop, a: Atom) -> Span | None:
        """The columns in which a number of an iteration over directions may be other than zero."""
        makers = {x.vars[0]: x.op for x in op.body.binds}
        inside = {op.index, *op.accs, *makers}
        known: dict[Atom, Span | None] = {}

        def find(a: Atom) -> Span | None:
            if type(a) is Const:
                return {} if a.soft and a.value == 0 else None
            if a not in known:
                made = makers.get(a)  # type: ignore[arg-type]
                known[a] = of(made) if type(made) is Prim else None
            return known[a]

        def of(made: Prim) -> Span | None:
            name, args = made.name, made.args
            if name == "get":
                base, *at, last = args
                if last is not op.index or base in inside or any(x in inside for x in at):
                    return None
                span = self.spans.get(self.atom(base))
                span = None if span is None else self.row(span, self.atoms(at))
                return None if span is None or by_row(span) else span
            if name in ("+", "-", "neg"):
                return union([find(x) for x in args])
            if name == "*":
                return next((s for x in args if (s := find(x)) is not None), None)
            return find(args[0]) if name == "/" else None

        return find(a)

    def few(self, bind: Bind, op: Loop, totals: Sequence[Var], span: Part, n: int) -> None:
        """Adds to the columns of a span: to as many whole vectors of them as are needed, and what does not fill one
        where these are all columns."""
        b, four, inits = self.b, integer(AT_ONCE), dict(zip(op.accs, op.inits))
        state = [self.atom(inits.get(a, a)) for a in totals]
        names = [v.name for v in bind.vars]
        wide = b.prim("max", integer(0), b.prim("-", span.high, span.low))
        blocks = b.prim("//", b.prim("+", wide, integer(AT_ONCE - 1)), four)
        wide = b.prim("*", four, blocks)
        if n % AT_ONCE:
            wide = b.prim("min", wide, integer(n))
            blocks = b.prim("//", wide, four)
        start = b.prim("min", span.low, b.prim("-", integer(n), wide))
        b.sizes.update(v for v in (start, wide, blocks) if type(v) is Var)

        def at(d: Atom, *state: Atom):
            self.here[op.index] = d
            self.here.update(zip(totals, state))
            results = self.block(op.body)
            if op.accs:
                return results, ()
            return [b.update(a, [d], r) for a, r in zip(state, results)], ()

        def vector(q: Atom, *state: Atom):
            first = b.prim("+", start, b.prim("*", four, q))
            lane = lambda j, *state: at(b.prim("+", first, j), *state)  # noqa: E731
            return b.loop(four, state, lane, names, "j", names, soft=True), ()

        if span.width:
            state = list(b.loop(blocks, state, vector, names, "q", names))
            if n % AT_ONCE:
                done = b.prim("+", start, b.prim("*", four, blocks))
                left = b.prim("-", wide, b.prim("*", four, blocks))
                b.sizes.update(v for v in (left,) if type(v) is Var)
                alone = lambda j, *state: at(b.prim("+", done, j), *state)  # noqa: E731
                state = list(b.loop(left, state, alone, names, op.index.name, names, soft=True))
        b.span = bind.span
        self.define(bind, state)


def only(low: Atom, high: Atom, width: int) -> Span:
    """A span of one part."""
    return {(low, high): Part(low, high, width)}


def by_row(span: Span) -> Part | None:
    """The columns of each row, where the rows have columns of their own."""
    part = next(iter(span.values()), None)
    return part if part is not None and isinstance(type_of(part.low), Arr) else None


def union(spans: Sequence[Span | None]) -> Span | None:
    """The columns of a sum; None, all of them, where one of its terms may have any."""
    found: Span = {}
    for s in spans:
        if s is None or by_row(s):
            return None
        found |= s
    return found


def directions_of(t: Type | None) -> int:
    """The number of directions if a value of the type may be a tangent in many; else 0."""
    if not isinstance(t, Arr) or t.elem is not REAL or type(t.dims[-1]) is not Const:
        return 0
    return t.dims[-1].value if t.dims[-1].value >= MANY else 0


def filled(block: Block, acc: Var, result: Atom) -> bool:
    """Whether an accumulator only has parts of it replaced or added to."""
    at: Atom = acc
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name in ("update", "add-at") and op.args[0] is at:
            at = bind.vars[0]
        elif type(op) is Loop and at in op.inits and not op.index.soft:
            k = op.inits.index(at)
            if not filled(op.body, op.accs[k], op.body.results[k]):
                return False
            at = bind.vars[k]
    return at is result and at is not acc


def sums_of(bind: Bind, op: Loop, around: Loop | None) -> dict[Var, list[Atom]]:
    """The tangents to which a loop over directions adds, if that is all it does, and what it adds to each: its
    accumulators, or those of the loop around it, which it makes anew."""
    makers = {x.vars[0]: x.op for x in op.body.binds}
    found: dict[Var, list[Atom]] = {}
    if op.accs:
        for acc, r in zip(op.accs, op.body.results):
            made = makers.get(r)  # type: ignore[arg-type]
            adds = type(made) is Prim and made.name == "add-at" and made.args[:2] == (acc, op.index)
            if not adds or len(made.args) != 3 or count_uses(op.body, acc) != 1:  # type: ignore[union-attr]
                return {}
            found[acc] = [made.args[2]]  # type: ignore[union-attr]
        return found if len(op.body.results) == len(op.accs) else {}
    if around is None:
        return {}
    for v, r in zip(bind.vars, op.body.results):
        acc = next((a for a, x in zip(around.accs, around.body.results) if x is v), None)
        terms: list[Atom] = []
        if acc is None or acc in found or count_uses(around.body, acc) != 1 or count_uses(around.body, v) != 1:
            return {}
        while type(r) is Var:
            made = makers.get(r)
            if type(made) is not Prim or count_uses(op.body, r) != 1:
                return {}
            if made.name == "get" and made.args == (acc, op.index):
                break
            if made.name not in ("+", "-") or len(made.args) != 2:
                return {}
            holds = [leads(makers, x, acc) for x in made.args]
            if sum(holds) != 1 or made.name == "-" and holds[1]:
                return {}
            terms.append(made.args[holds[0]])
            r = made.args[not holds[0]]
        found[acc] = terms
    return found


def leads(makers: dict, a: Atom, acc: Var) -> bool:
    """Whether a number is an element of an accumulator, or a sum with one in it."""
    made = makers.get(a)
    if type(made) is not Prim:
        return False
    return (
        made.name == "get"
        and made.args[0] is acc
        or made.name in ("+", "-")
        and any(leads(makers, x, acc) for x in made.args)
    )


def candidates(block: Block, around: Loop | None = None) -> bool:
    """Whether a loop over many directions adds to tangents, in another loop."""
    for bind in block.binds:
        op = bind.op
        if type(op) is not Loop:
            if type(op) is If and (candidates(op.then) or candidates(op.orelse)):
                return True
        elif not op.index.soft:
            if candidates(op.body, op):
                return True
        elif around is not None and type(op.count) is Const and op.count.value >= MANY and sums_of(bind, op, around):
            return True
    return False
