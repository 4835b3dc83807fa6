"""Loops whose iterations many threads share: how many threads, and what becomes of the loop's accumulators.

A parallel loop (``hyad/passes/spread.py``) is one kernel with its nest; what it folds goes through parts, one for each
block, that a second kernel folds (``totals``). A scan (``hyad/grid/scans.py``) is two kernels: what the iterations of
each block do to its state, then all iterations, each block going on from what those before it do; of scans side by
side, one for each row, each is one block's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyad.core import BOOL, INT, REAL, Arr, Atom, Bind, Block, Const, Loop, Prim, Var, all_binds, free_vars
from hyad.grid.long_rows import by_passes, largest_in_pieces
from hyad.grid.scans import Scan, scan_of
from hyad.grid.teams import TwoFolds, across_rows, in_pieces, makes_rows, team_loops, written_out
from hyad.passes.spread import Reduction, nest, reductions
from hyad.program.journal import fires, on

from .collectives import ELEM, HELD, identities
from .kernels import Scanned
from .launches import BLOCK, FOLDING, WAVES, At, Choose, Memory, Size, Step, ceiling, total
from .memory import Spot, simple
from .pieces import Pieces

PARTS = 1024  # blocks of a kernel that folds
BLOCKS = 4 * WAVES  # of one that does not: the more there are, the less the last ones of them have to wait for
WARP = 32
LONG = 1024  # elements of a row from which on a block has it, not a warp
FEW = 396  # rows that keep a device busy with a block for each: three for each of 132 multiprocessors
PIECE = 8192  # elements of a row that are worth a block where several have one
ROOM = 1 << 15  # places of a nest from which on a thread for each keeps a device busy
THREADS = 1 << 17  # pieces of columns that do
BLOCKED = 1 << 12  # places with long folds up to which each has a block, and columns are cut into pieces
SHORT = 64  # elements that one thread had better fold by itself
COLUMN = 256  # and those of a column, whose pieces are a launch more
OFTEN = 1 << 11  # additions to each element from which on blocks add up their own first
COPIES = 4 * 132  # such blocks, at most
EACH = 16  # additions to each element that are worth the one that a block makes in the end
SLICE = 32  # elements that a piece of a column has at least


class ParallelLoops(Pieces):
    """Makes kernels of parallel loops and of scans."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.lengths: dict[Var, Size] = {}  # of rows that have several blocks: what a team is to suit

    # ------------------------------------------------------------------------------------------------ loops

    def parallel(self, bind: Bind, op: Loop, later: frozenset[Var], kinds: Sequence[Reduction]) -> None:
        """Kernels for a parallel loop and its nest."""
        op = written_out(op)
        bind = Bind(bind.vars, op, bind.span)
        levels = nest(bind)
        if self.deterministic and any(r.kind == "slice" and not slices(levels, *r.accs) for r in kinds):
            levels = [bind]  # each row by one thread: several would add to one element
        few = self.few_places(levels, kinds)
        if few is None:
            self.nested(levels, later, kinds)
            return
        cond, places, found = few
        outer, self.steps = self.steps, []
        if cond != 1:
            self.nested(levels, later, kinds)
            for v in bind.vars:
                self.wanted[v] = self.spot[v].at
        whole, self.steps = self.steps, []
        notes, kernels = len(self.notes), len(self.kernels)
        parts = self.in_columns(levels, found) if across_rows(levels, found) else None
        if parts is None:
            self.few = places
            self.nested(levels, later, kinds)
            self.few = 0
        else:
            live = self.liveness(Block(tuple(part for part, _ in parts), ()), later)
            for (part, pair), after in zip(parts, live):
                if pair is None:
                    self.nested(nest(part), after, reductions(part.op) or [])
                else:
                    self.in_slices(part, pair, places, self.row_length(found[0]), after)
        del self.notes[notes:]
        fires("few-places", bind.span)
        what = "columns in pieces" if parts is not None else "a team of threads for each element"
        self.note(bind, f"parallel: {what}{'' if cond == 1 else ', where there is room for more threads than that'}")
        steps, self.steps = tuple(self.steps), outer
        if cond != 1:
            self.roomy.update(self.kernels[kernels:])
        self.steps += steps if cond == 1 else [Choose(cond, steps, tuple(whole))]

    def few_places(self, levels: Sequence[Bind], kinds: Sequence[Reduction]) -> tuple[Size, Size, list[Bind]] | None:
        """When a device has room for more threads than a nest has places, each of which folds much; how many these are;
        and the loops that fold. None where that is never so, or a team has each place anyway."""
        counts = [self.size(b.op.count) for b in levels]
        changes = any(r.kind in ("scatter", "slice") for r in kinds)
        if not on("few-places") or self.lengths or self.few or changes or None in counts or self.rows(levels)[0]:
            return None
        places = total([simple("max", c, 0) for c in counts])
        if self.private(*(b.op.body for b in levels)):
            return None
        found = [b for b in team_loops(levels, few=True) if self.size(b.op.count) is not None]
        length: Size = 0
        for n in (self.size(b.op.count) for b in found):
            length = n if length == 0 else length if length == n else simple("max", length, n)
        most, least = (BLOCKED, COLUMN) if across_rows(levels, found) else (ROOM, SHORT)
        cond = simple("and", simple("<", places, most), simple("<", least, length))
        return None if not found or cond == 0 else (cond, places, found)

    def in_columns(self, levels: Sequence[Bind], found: Sequence[Bind]) -> list[tuple[Bind, TwoFolds | None]] | None:
        """A nest that folds columns as several, of which each folds them once, in pieces, or not at all."""
        whole = in_pieces(levels, found, apart=True)
        if whole is not None:
            parts = [(levels[0], whole)]
        else:
            split = by_passes(levels[0], found) if len(levels) == 1 else None
            if split is None:
                return None
            loops = [[b for b in part.op.body.binds if type(b.op) is Loop] for part in split]
            parts = [(p, in_pieces([p], inner, apart=True) if inner else None) for p, inner in zip(split, loops)]
        several = len(levels) + 1
        return parts if all(pair is None or len(nest(pair.first)) == several for _, pair in parts) else None

    def in_slices(self, bind: Bind, pair: TwoFolds, places: Size, length: Size, later: frozenset[Var]) -> None:
        """Kernels for a loop that folds columns in pieces, of which a device has room for so many at once."""
        enough = simple("+", simple("//", THREADS, simple("max", places, 1)), 1)
        many = simple("max", simple("min", enough, simple("//", length, SLICE)), 1)
        self.host[pair.many] = many
        self.host[pair.most], self.host[pair.left] = simple("//", length, many), simple("%", length, many)
        self.lengths |= {pair.many: many}
        for v in pair.first.vars:
            name = self.names.fresh(v.name)
            self.memory[name] = Memory(name, ELEM[v.type.elem], (THREADS + BLOCKED,))
            self.wanted[v] = At(name)
        self.two_kernels(bind, pair, later)

    def room_apart(self, v: Var, body: Block) -> None:
        """Memory for what a kernel makes, other than that of any array which it reads: its pointers are restricted."""
        at = self.room(v)
        if v in self.wanted and any(self.spot[u].at == at for u in free_vars(body) if u in self.spot):
            del self.wanted[v]
            self.room(v)

    def nested(self, levels: Sequence[Bind], later: frozenset[Var], kinds: Sequence[Reduction]) -> None:
        """A kernel for a nest."""
        bind, op = levels[0], levels[0].op
        counts = [self.size(b.op.count) for b in levels]
        known = None not in counts
        work: Size = total([simple("max", c, 0) for c in counts]) if known else WAVES * BLOCK
        n = len(op.accs)
        own: dict[Var, Var] = {}
        atomic: list[Var] = []
        folds: list[tuple[Reduction, tuple[Var, ...]]] = []
        inits = list(op.inits)
        for r in kinds:
            variables = tuple(bind.vars[k] for k in r.accs)
            if r.kind in ("scatter", "slice"):
                (k,) = r.accs
                at = self.take_over(bind.vars[k], op.inits[k], later, op.body)
                start = Var(op.accs[k].name, op.accs[k].type, bind.span)  # the memory that is added to
                self.spot[start] = Spot(at)
                inits[k] = start
                own[bind.vars[k]] = start
                if r.kind == "scatter" or len(levels) > 1 and not slices(levels, k):
                    atomic.append(start)
            else:
                folds.append((r, variables))
                if r.kind != "place":
                    kind = "max" if r.kind == "scaled" else r.kind
                    inits[r.accs[0]] = Const(identity(kind, variables[0].type), variables[0].type)
        rows, team = self.rows(levels)
        blocks: Size = simple("min", ceiling(work, BLOCK), BLOCKS)
        threads, free = BLOCK, True
        first = {}
        if rows:
            fires("teams", bind.span)
            blocks, threads = simple("min", ceiling(simple("*", work, team), FOLDING), WAVES), FOLDING
        if folds:
            loops = any(type(b.op) is Loop for b in all_binds(levels[-1].op.body))
            each = 1 if rows or loops else 4  # places that a thread has at least: it needs no more work than loops are
            work = simple("*", work, team)
            blocks, threads, free = simple("min", ceiling(work, FOLDING * each), PARTS), FOLDING, False
            for r, variables in folds:
                for v in variables:
                    first[v] = Var(v.name, v.type, v.span, v.given)
        out_vars = tuple(first.get(v, v) for v in bind.vars)
        folds_here = [(r, tuple(first[v] for v in vs)) for r, vs in folds]
        fresh = Bind(out_vars, replace(op, inits=tuple(inits)), bind.span)
        for v in bind.vars[n:]:
            self.room_apart(v, op.body)
        for v in first.values():
            name = self.names.fresh(f"{v.name}_parts")
            self.memory[name] = Memory(name, ELEM[v.type], (PARTS,))
            self.spot[v] = Spot(At(name))
        levels = [fresh, *levels[1:]]
        what = "one thread for each element" if not rows else "a team of threads for each row"
        what += ", folded by blocks" if folds else ""
        self.note(bind, f"parallel: {what}" + (f", {len(levels)} loops as one" if len(levels) > 1 else ""))
        hint = next((v.name for v in bind.vars if v.given), bind.vars[0].name if bind.vars else "checks")
        here = len(self.steps)
        added = [own[v] for v in bind.vars if own.get(v) in atomic]
        alone = len(added) == len(own) == len(kinds) == len(bind.vars)  # nothing but these additions is made
        few = self.few_targets(added, work) if known and alone and not rows else 0
        launch = self.emit(
            [fresh],
            out_vars,
            [None if v in own else self.spot[v].at for v in out_vars],
            own,
            levels,
            folds_here,
            atomic,
            hint=hint,
            blocks=blocks,
            threads=threads,
            free=free,
            span=bind.span,
            rows=rows,
            team=team,
        )
        if few != 0:
            self.copies(few, [fresh], levels, own, added, work, hint)
        if folds:
            self.totals(bind, op, folds, first, launch.blocks, hint)
        if rows and not own and not self.lengths:
            self.pieces(bind, op, levels, rows, later, self.steps[here:])

    def few_targets(self, added: Sequence[Var], work: Size) -> Size:
        """When so few elements are added to so often that blocks had better add up what they have in shared memory."""
        if not added or not on("copies"):
            return 0
        length = self.length_of(added)
        return simple("and", simple("<=", length, HELD), simple("<=", simple("*", length, OFTEN), work))

    def length_of(self, arrays: Sequence[Var]) -> Size:
        """How many elements some arrays have together."""
        length: Size = 0
        for v in arrays:
            length = simple("+", length, total(self.sizes(v.type.dims, v.span)))
        return length

    def copies(
        self,
        few: Size,
        binds: Sequence[Bind],
        levels: Sequence[Bind],
        own: dict[Var, Var],
        added: Sequence[Var],
        work: Size,
        hint: str,
    ) -> None:
        """The kernel of blocks that add up what they have in shared memory, in place of the last launch, where the host
        finds that it is worth it."""
        whole = self.steps.pop()
        fires("copies", levels[0].span)
        self.note(levels[0], "each block adds up its own in shared memory, where few elements are added to often")
        each = simple("max", simple("*", self.length_of(added), EACH), FOLDING * 16)  # places of a block
        many = simple("min", simple("+", simple("//", work, each), 1), COPIES)
        out = tuple(own)
        self.emit(
            binds,
            out,
            [None for _ in out],
            own,
            levels,
            (),
            added,
            hint=hint,
            blocks=many,
            threads=FOLDING,
            free=True,
            span=levels[0].span,
            copied=added,
        )
        self.roomy.add(self.kernels[-1])
        self.steps.append(Choose(few, (self.steps.pop(),), (whole,)))

    def pieces(
        self,
        bind: Bind,
        op: Loop,
        levels: Sequence[Bind],
        rows: Sequence[Bind],
        later: frozenset[Var],
        whole: Sequence[Step],
    ) -> None:
        """Where rows are few and long: several blocks for each, a kernel or two for each pass over them, in place of
        ``whole``, the last steps so far. The host chooses when it knows the sizes."""
        count, length = self.size(op.count), self.size(rows[0].op.count)
        if len(levels) > 1 or count is None or length is None or not on("long-rows"):
            return
        worth = simple("<", 2 * PIECE, length)
        if not any(isinstance(v.type, Arr) and v not in op.body.results for b in rows for v in b.vars):
            worth = simple("and", simple("<", count, FEW), worth)  # else a row does not fit into shared memory
            worth = 0 if count == length else worth
        if worth == 0:
            return
        found = [in_pieces(levels, rows)]
        parts = [bind] if found[0] is not None else by_passes(bind, rows)
        if parts is None:
            return
        if found[0] is None:
            loops = [[b for b in part.op.body.binds if type(b.op) is Loop] for part in parts]
            found = [
                largest_in_pieces(part) if len(inner) > 1 else in_pieces([part], inner) if inner else None
                for part, inner in zip(parts, loops)
            ]
        notes = len(self.notes)
        del self.steps[len(self.steps) - len(whole) :]
        outer, self.steps = self.steps, []
        for v in bind.vars:
            self.wanted[v] = self.spot[v].at
        live = self.liveness(Block(tuple(parts), ()), later)
        for part, pair, after in zip(parts, found, live):
            if pair is None:
                self.parallel(part, part.op, after, reductions(part.op) or [])
            else:
                self.two_folds(part, pair, count, length, after)
        del self.notes[notes:]
        fires("long-rows", bind.span)
        self.note(bind, "several blocks for each row, where rows are few and long, or too long to be kept")
        steps, self.steps = tuple(self.steps), outer
        self.steps.append(Choose(worth, steps, tuple(whole)))

    def two_folds(self, bind: Bind, pair: TwoFolds, count: Size, length: Size, later: frozenset[Var]) -> None:
        """Kernels for a loop that folds rows in pieces: of the pieces, and of what they give."""
        enough = ("+", ("//", 4 * FEW, simple("max", count, 1)), 1)
        self.host[pair.many] = ("//", length, PIECE) if pair.twice else ("min", enough, ("//", length, PIECE))
        self.host[pair.most] = ("+", ("//", length, ("max", self.host[pair.many], 1)), 1)
        self.lengths |= {pair.each: PIECE, pair.many: PIECE}  # a block for each piece, and for each row's
        self.long.add(pair.each)
        self.two_kernels(bind, pair, later)

    def two_kernels(self, bind: Bind, pair: TwoFolds, later: frozenset[Var]) -> None:
        """The kernels of the pieces, and of what they give."""
        self.parallel(pair.first, pair.first.op, later, [])
        self.large.add(self.kernels[-1])
        for v, made in zip(pair.second.vars, bind.vars):
            if made not in self.spot:
                self.room(made)
            self.wanted[v] = self.spot[made].at
        self.parallel(pair.second, pair.second.op, later, [])
        self.lengths.clear()

    def row_length(self, bind: Bind) -> Size | None:
        """How many elements of a row a team folds."""
        return self.lengths[bind.op.count] if bind.op.count in self.lengths else self.size(bind.op.count)

    def rows(self, levels: list[Bind]) -> tuple[list[Bind], Size]:
        """The loops of a nest's body that a team of threads shares and are of a count that the host knows; and how many
        threads that is: a power of two up to a warp that suits the row, a block where rows are long, or where so many
        as a block's warps have are more than fit into its shared memory."""
        few = self.few != 0
        found = team_loops(levels, few=few) if not self.private(*(b.op.body for b in levels)) else []
        if any(self.row_length(b) is None for b in found):
            found = [b for b in found if self.row_length(b) is not None] if not any(map(makes_rows, found)) else []
        count: Size = 0
        for b in found:
            n = self.row_length(b)
            count = n if count == 0 else count if count == n else simple("max", count, n)
        if not found:
            return found, 1
        given = levels[-1].op.body.results
        held = sum(isinstance(v.type, Arr) and v not in given for b in found for v in b.vars)
        long = min(LONG, HELD // (FOLDING // WARP) // held) if held else LONG
        block = simple("<", long, count)
        if few:
            block = simple("and", block, simple("<", self.few, BLOCKED))
        return found, simple("+", simple("power", count, WARP), simple("*", block, FOLDING - WARP))

    def totals(
        self,
        bind: Bind,
        op: Loop,
        folds: Sequence[tuple[Reduction, tuple[Var, ...]]],
        first: dict[Var, Var],
        blocks: Size,
        hint: str,
    ) -> None:
        """A kernel that folds the parts of blocks, and the start of the accumulator, into the final one."""
        binds: list[Bind] = []
        results: list[Var] = []
        sums = []
        for r, variables in folds:
            parts = tuple(Var(v.name, v.type, v.span) for v in variables)
            for v, p in zip(variables, parts):
                self.spot[p] = self.spot[first[v]]
            sums.append((r, parts))
            if r.kind == "scaled":
                more, made = scaled_by(op.inits[r.accs[0]], parts, r.finite)
                binds += more
                results += made
                continue
            for k, v, p in zip(r.accs, variables, parts):
                init, result = op.inits[k], p
                if r.kind != "place" and not (isinstance(init, Const) and init.value == identity(r.kind, v.type)):
                    result = Var(v.name, v.type, v.span)
                    name = {"sum": "+", "product": "*"}.get(r.kind, r.kind)
                    binds.append(Bind((result,), Prim(name, (init, p)), bind.span))
                results.append(result)
        places = [self.room(v) for _, variables in folds for v in variables]
        many = (Var("parts", INT), simple("max", blocks, 1))
        self.emit(
            binds, results, places, totals=sums, parts=many, hint=f"{hint}_total", threads=FOLDING, span=bind.span
        )

    # ------------------------------------------------------------------------------------------------ scans

    def scan(self, bind: Bind, op: Loop, later: frozenset[Var], scan: Scan) -> None:
        """Kernels for a loop whose states blocks can put together: what each block's iterations do to them, where there
        are several blocks; then all of the loop, each block going on from what those before it do."""
        count = self.size(op.count)
        n = len(op.accs)
        blocks = simple("min", ceiling(simple("max", count, 0), FOLDING * 4), PARTS)
        many = simple("max", blocks, 1)
        self.note(bind, "a scan by blocks: what each does to the state first, then all iterations")
        hint = next((v.name for v in bind.vars if v.given), bind.vars[0].name)
        accs, inits, terms, finals, states, k = [], [], [], [], [], 0
        for r in scan.recurrences:
            acc = op.accs[r.accs[0]]
            zeros = (
                (float(x.rstrip("f")) for x in identities(r.kind, "real"))
                if len(r.terms) > 1
                else (identity(r.kind, acc.type),)
            )
            for term, x in zip(r.terms, zeros):
                accs.append(Var(acc.name, acc.type, acc.span))
                finals.append(Var(bind.vars[r.accs[0]].name, acc.type))
                inits.append(Const(x, acc.type))
                terms.append(term)
            states.append((r.kind, tuple(range(k, len(accs)))))
            k = len(accs)
        parts = []
        for v in finals:
            name = self.names.fresh(f"{v.name}_parts")
            self.memory[name] = Memory(name, ELEM[v.type], (PARTS,))
            parts.append(Var(name, Arr(v.type, (Const(PARTS, INT),))))
            self.spot[parts[-1]] = self.spot[v] = Spot(At(name))
        loop = Loop(op.count, op.index, tuple(inits), tuple(accs), Block(scan.before, tuple(terms)))
        outer, self.steps = self.steps, []
        self.emit(
            [Bind(tuple(finals), loop, bind.span)],
            finals,
            [self.spot[v].at for v in finals],
            scan=Scanned(op.index, tuple(states), len(scan.before), totals=True),
            hint=f"{hint}_parts",
            blocks=many,
            threads=FOLDING,
            span=bind.span,
        )
        first, self.steps = tuple(self.steps), outer
        own: dict[Var, Var] = {}
        starts = list(op.inits)
        folds = []
        outs: dict[int, Var] = {}
        for r in (*scan.slices, *scan.folds):
            (k,) = r.accs
            v = bind.vars[k]
            if r.kind == "slice":
                at = self.take_over(v, op.inits[k], later, op.body)
                starts[k] = Var(op.accs[k].name, op.accs[k].type, bind.span)
                self.spot[starts[k]] = Spot(at)
                own[v] = starts[k]
            else:
                outs[k] = Var(v.name, v.type, v.span, v.given)
                name = self.names.fresh(f"{v.name}_parts")
                self.memory[name] = Memory(name, ELEM[v.type], (PARTS,))
                self.spot[outs[k]] = Spot(At(name))
                folds.append((r, (v,)))
                starts[k] = Const(identity(r.kind, v.type), v.type)
        if first:  # what one block alone needs not ask for
            self.steps.append(Choose(("<", 1, many), first))
        alive = self.closure(later)
        for k, v in enumerate(bind.vars):
            if k >= n or k in {k for r in scan.recurrences for k in r.accs} and v in alive:
                self.room(v)
        variables = [outs.get(k, v) for k, v in enumerate(bind.vars)]
        made = self.scanning(op, scan, starts, variables, parts=tuple(parts))
        results = [v for k, v in enumerate(variables) if v in own or v in self.spot]
        self.emit(
            [made[0]],
            results,
            [None if v in own else self.spot[v].at for v in results],
            own,
            folds=[(r, (outs[r.accs[0]],)) for r, _ in folds],
            scan=made[1],
            hint=hint,
            blocks=many,
            threads=FOLDING,
            span=bind.span,
        )
        if folds:
            self.totals(bind, op, folds, {bind.vars[k]: v for k, v in outs.items()}, blocks, hint)

    def scanning(
        self, op: Loop, scan: Scan, inits: Sequence[Atom], variables: Sequence[Var], **how: object
    ) -> tuple[Bind, Scanned]:
        """The loop of a scan as ``Scanned`` has it: the terms are the results of the states."""
        n = len(op.accs)
        results = list(op.body.results[:n])
        more: list[tuple[Var, Var, Atom]] = []
        states = []
        for r in scan.recurrences:
            size = len(r.accs)
            for k, term in zip(r.accs, r.terms[-size:]):
                results[k] = term
            first = n + len(more)
            more += [(Var("a", REAL), Var("a", REAL), term) for term in r.terms[:-size]]
            states.append((r.kind, (*range(first, n + len(more)), *r.accs)))
        block = Block((*scan.before, *scan.after), (*results, *(t for _, _, t in more), *op.body.results[n:]))
        loop = Loop(
            op.count,
            op.index,
            (*inits, *(Const(1.0, REAL) for _ in more)),
            (*op.accs, *(a for a, _, _ in more)),
            block,
        )
        made = Bind((*variables[:n], *(v for _, v, _ in more), *variables[n:]), loop, None)
        return made, Scanned(op.index, tuple(states), len(scan.before), **how)

    def row_scans(self, bind: Bind, levels: Sequence[Bind]) -> None:
        """A kernel for a loop of which each iteration is a scan: a block for each."""
        *outer, last = levels
        scan = scan_of(last.op)
        made, scanned = self.scanning(last.op, scan, last.op.inits, last.vars, rows=True)
        inner = Bind(made.vars, made.op, last.span)
        for b in reversed(outer):
            body = b.op.body
            inner = Bind(b.vars, replace(b.op, body=Block((*body.binds[:-1], inner), body.results)), b.span)
        for v in bind.vars:
            self.room(v)
        counts = [simple("max", self.size(b.op.count), 0) for b in outer]
        self.note(bind, "parallel: scans, each by one block")
        self.emit(
            [inner],
            bind.vars,
            [self.spot[v].at for v in bind.vars],
            grid=(inner, *outer[1:]),
            scan=scanned,
            hint=next((v.name for v in bind.vars if v.given), bind.vars[0].name),
            blocks=simple("min", total(counts), WAVES),
            threads=FOLDING,
            free=True,
            span=bind.span,
        )


def scaled_by(start: Atom, parts: Sequence[Var], finite: bool) -> tuple[list[Bind], list[Var]]:
    """The largest element, with what is looked for it from, and the sums below it, from what they are below the
    largest of the elements alone; they are no numbers where it is infinite, or with ``finite`` below 0 there."""
    largest, *sums = parts
    binds: list[Bind] = []

    def made(name: str, *args: Atom, t: object = REAL) -> Var:
        binds.append(Bind((Var("t" if t == REAL else "equal", t),), Prim(name, args)))
        return binds[-1].vars[0]

    if not (isinstance(start, Const) and start.value == identity("max", REAL)):
        here, largest = largest, made("max", start, largest)
        equal = made("=", here, largest, t=BOOL)
        factor = made("exp", made("select", equal, Const(0.0, REAL), made("-", here, largest)))
        sums = [made("*", s, factor) for s in sums]
    none = made("-", largest, largest)
    if not finite:
        return binds, [largest, *(made("+", s, none) for s in sums)]
    known = made("=", none, Const(0.0, REAL), t=BOOL)
    return binds, [largest, *(made("select", known, s, made("exp", largest)) for s in sums)]


def slices(levels: Sequence[Bind], k: int) -> bool:
    """Whether every place of a nest has a part of an array to itself. The loops' subscripts differ: one that is
    the outer index and something that its iterations do not change has no inner index in it."""
    for outer, inner in zip(levels, levels[1:]):
        acc = outer.op.accs[k]
        k = next(j for j, z in enumerate(inner.op.inits) if z is acc)
        if not any(x.kind == "slice" and k in x.accs for x in reductions(inner.op) or ()):
            return False
    return True


def identity(kind: str, t: object) -> float | int | bool:
    if kind == "sum":
        return 0.0 if t == REAL else 0
    if kind == "product":
        return 1.0 if t == REAL else 1
    if kind == "max":
        return float("-inf") if t == REAL else -(2**63)
    if kind == "min":
        return float("inf") if t == REAL else 2**63 - 1
    return kind == "and"
