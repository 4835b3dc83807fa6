"""One CUDA kernel: a piece of a typed program, run by one thread or by a whole grid.

A ``KernelPrinter`` prints what the C printer would print for the piece, but for three things. The loops of ``grid``, a
nest, become one loop in which each thread of the grid takes its share, neighbours side by side. Additions to arrays
that several threads may add to are atomic. The sums of such a loop are each thread's own; a block adds them up by
shuffles, and its first thread writes the sum to the block's place of an array of parts.

Where there are loops of ``rows``, a *team* of threads has each place of the grid: in each of these loops neighbours
read neighbours in the row, and fold what they have by shuffles. All of them have the result, and one stores what is
made of it. What such loops make of a row's elements, for others of them to read, lies in shared memory where it fits.
How many threads a team has is a parameter: a power of two up to a warp, or a block.

Where each place of the grid has a short row of an array, and neighbours' rows are neighbours, rows go through shared
memory (``staging.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hyad.core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Loop,
    Prim,
    Program,
    Scalar,
    Var,
    all_binds,
    binds_of,
    same,
    same_atoms,
)
from hyad.passes.spread import Reduction, beside, offset_from, reductions
from hyad.program.journal import fires, on

from .ahead import AHEAD, ARRAYS, OF_ROWS, READ, UNROLL, elsewhere, heads, light
from .c import without_unread
from .collectives import (
    ADD_AT,
    COMBINED,
    ELEM,
    FAIL,
    HELD,
    LEFT,
    QUOTIENT,
    SCALE,
    TIMES,
    behind,
    block_place,
    block_reduction,
    block_scan,
    combined,
    identities,
    parts_of,
    team_place,
    team_reduction,
    width,
)
from .comments import Comments
from .cuda import CudaPrinter
from .data import without_unused
from .directions import by_the_first, shared_by_a_warp
from .expressions import ADD, MUL, PRIMARY, SHIFT, WIDTH, Expr, plus, wrapped
from .identifiers import WORD
from .launches import BLOCK, FOLDING
from .lower import LOCAL_REALS, Buffer, Place, Plan, is_array, plan, type_of
from .operands import Line
from .staging import NAME as STAGING
from .staging import (
    ROWS,
    ROWS_IN,
    ROWS_OUT,
    SIZED,
    SizedTile,
    Tile,
    blocks_for,
    by_warps,
    by_warps_sized,
    functions_of,
    indices_of,
    mostly_read,
    only_rows,
    read_again,
    row_subscripts,
    row_width,
    terms_of,
)
from .thread import WARP, ThreadUnit, at
from .transposed import TILES, TURN, heads_of_tiles, turned_reads

CONSTANT = re.compile(r"const long long (\w+) = ")
REGISTERS = 1 << 16  # of a multiprocessor
HELD_OVER = 48  # registers of numbers that wait for an inner loop, from which on they had better wait in memory
FREE = 128  # registers that a thread of such a kernel has; its inner loop needs no more
TOGETHER = 3  # blocks of teams at once on a multiprocessor: their registers are enough for loads of four elements ahead


@dataclass(frozen=True, slots=True)
class Scanned:
    """How a loop with states runs on blocks (``hyad/grid/scans.py``). The loop's body is the terms, then the rest; its
    results for the states are the terms; where a state has two, one is the result of a further accumulator.

    ``states``: for each recurrence its kind, and the numbers of the accumulators that its terms are results of, the
    last one, or the last ones, the states'. ``before``: how many bindings make the terms. ``parts``: array
    parameters, what each block's iterations do to the states, those of all recurrences one after the other; ()
    where each block has whole loops (``rows``), or is to give these parts (``totals``)."""

    index: Var
    states: tuple[tuple[str, tuple[int, ...]], ...]
    before: int
    parts: tuple[Var, ...] = ()
    totals: bool = False
    rows: bool = False


@dataclass(slots=True)
class Piece:
    """What a kernel computes: a program whose results it writes, and how.

    ``own``: by result, the parameter whose memory it is, changed in place. ``grid``: the indices of the nest that the
    grid runs, outermost first; () where one thread does it all. ``pointed``: the scalar parameters that lie in device
    memory. ``folds``: what the nest folds, by the variables of its final accumulators; their parts are ``parts``.
    ``totals``: parameters that are the folds of their ``parts``, before anything else is computed: (reduction,
    parameters). ``atomic``: array parameters that several threads add to; ``copied``: those that a block adds up in its
    shared memory first, where they fit. ``fallible``: whether a check stands before
    it, or in it. ``names`` are what the results are to be called. ``scan``: the loop that blocks scan. ``rows``: the
    indices of loops in the nest's body that a team of threads shares, without a ``grid`` one block; none where each
    thread has a place of the grid to itself; ``long``: those of rows that are known to be long. ``roomy``: places are
    so few that it may take all registers. ``sized``: its launch may give it shared memory, for rows of which only the
    host knows the width."""

    program: Program
    own: dict[int, int] = field(default_factory=dict)
    grid: tuple[Var, ...] = ()
    pointed: frozenset[Var] = frozenset()
    folds: list[tuple[Reduction, tuple[Var, ...]]] = field(default_factory=list)
    totals: list[tuple[Reduction, tuple[Var, ...]]] = field(default_factory=list)
    atomic: frozenset[Var] = frozenset()
    copied: tuple[Var, ...] = ()
    fallible: bool = False
    names: tuple[str, ...] = ()
    scan: Scanned | None = None
    rows: frozenset[Var] = frozenset()
    long: frozenset[Var] = frozenset()
    roomy: bool = False
    sized: bool = False


def words_of(lines: Sequence[Line]) -> list[str]:
    """The names in some lines."""
    return WORD.findall("\n".join(line.text for line in lines))


@dataclass(frozen=True, slots=True)
class Places:
    """Names in a loop that reads ahead: the first of the places that a thread has at a time, which of them it is at,
    and the place. ``read``: the arrays that are read ahead, each as the name of what has been read, the array's, its
    elements' type, and how many there are, where that is not how many places there are."""

    first: str
    k: str
    place: str
    read: list[tuple[str, str, str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KernelText:
    """A printed kernel: its text, the functions that it calls, how many reals of workspace each thread needs (None: no
    workspace; else the terms of a size), the kinds of its parameters behind those of the piece, and which of all its
    parameters it has: those that it needs. ``heap``: whether a thread takes memory besides, as it needs it.
    ``staged``: the arrays whose rows go through shared memory, in blocks of up to ``block`` threads; ``sized``: the
    dims of those rows of which only the host knows the width."""

    text: str
    support: tuple[str, ...]
    room: dict | None
    needs: tuple[str, ...]
    kept: tuple[bool, ...]
    heap: bool = False
    staged: tuple[str, ...] = ()
    block: int = FOLDING
    sized: tuple[tuple[Atom, ...], ...] = ()


class KernelPrinter(CudaPrinter):
    """Prints a ``Piece``."""

    def __init__(self, piece: Piece, name: str, dtype: str, unit: ThreadUnit, comments: Comments | None = None) -> None:
        self.piece = piece
        self.barrier = bool(piece.folds or piece.totals or piece.copied)
        self.unshared = True  # what is printed is not shared by the threads of a team
        self.behind = ""  # the label behind the loop that a team shares
        self.labels = 0
        super().__init__(piece.program, dtype, name, unit=unit)
        self.shared_comments = comments
        self.atomic: set[Buffer] = {self.plan.place[p].buffer for p in piece.atomic}
        self.places: dict[str, str] = {}
        self.tiles: list[Tile] = []
        self.sized: dict[SizedTile, tuple[Var, tuple[Var, ...]]] = {}  # with the array and its rows' subscripts
        self.located: dict[Var, str] = {}  # indices that are known before the body: of rows that are gathered
        self.gathered: dict[Buffer, list[tuple[Var, str]]] = {}  # where a row lies, by its index
        self.early: dict[Var, Expr] = {}  # elements that a team has read ahead
        self.turned: dict[Buffer, str] = {}  # arrays that are read by tiles, the other way round: the tile's name
        self.turned_at: tuple[list[str], Expr] = [], Expr("")  # at which subscripts, and where in a tile
        self.terms: dict[tuple[Buffer, Var], tuple[str, int, set[int]]] = {}  # rows to add: how wide, what is there
        several = piece.grid or piece.rows or piece.scan or piece.folds or piece.totals or piece.atomic
        alone = not (several or self.arena or any(self.plan.swaps.values()))
        self.directions = shared_by_a_warp(self.program) if alone else None
        self.by_lanes = False  # in a loop over directions
        self.carries = False  # a thread that reads ahead carries indices from place to place

    def planned(self, program: Program) -> Plan:
        room = -1 if self.piece.rows else 0  # a team's arrays are not each thread's
        whole = self.piece.scan is not None
        return plan(program, self.unit.pairs, own=self.piece.own, whole=whole, room=room, shared=False)

    # ------------------------------------------------------------------------------------ the whole

    def print(self) -> KernelText:
        piece, program = self.piece, self.program
        self.local = {n: self.names.fresh(n) for n in ("thread", "step", "own", "work", "room", "status")}
        self.local |= {n: self.names.fresh(n) for n in ("team", "teams", "lane", "held") if piece.rows}
        if self.directions:
            self.local["lane"] = self.names.fresh("lane")
        self.local |= {n: self.names.fresh(n) for n in ("done", "memory", "stack")}
        head: list[str] = []
        first: list[Line] = []
        for p in program.params:
            name = self.names.fresh(p.name)
            if isinstance(p.type, Arr):
                buffer = self.plan.place[p].buffer
                self.buffer_name[buffer] = name
                const = "" if buffer.given else "const "
                head.append(f"{const}{self.ctype(p.type.elem)} *__restrict__ {name}")
            elif p in piece.pointed:
                head.append(f"const {self.ctype(p.type)} *__restrict__ {name}")
                self.value[p] = Expr(f"*{name}")
            else:
                head.append(f"{self.ctype(p.type)} {name}")
                self.value[p] = Expr(name)
        for d in program.dims:
            if d not in self.value:
                name = self.names.fresh(d.name)
                self.value[d] = Expr(name)
                head.append(f"long long {name}")
        needs: list[str] = []
        results: dict[int, str] = {}
        folded = {v for _, vs in piece.folds for v in vs}
        for k, r in enumerate(program.body.results):
            if k in piece.own:
                continue
            if is_array(r):
                target = self.plan.results[k]
                results[k] = self.buffer_name[target] = self.names.fresh(piece.names[k])
                head.append(f"{self.ctype(r.type.elem)} *__restrict__ {results[k]}")
            else:
                results[k] = self.names.fresh(piece.names[k])
                head.append(f"{self.ctype(type_of(r))} *__restrict__ {results[k]}")
        looked_up: dict[Line, str] = {}
        for p in program.params:  # scalars in memory are read once
            if p in piece.pointed and not any(p in vs for _, vs in piece.totals):
                name = self.names.fresh(p.name)
                first.append(Line(1, f"const {self.ctype(p.type)} {name} = {self.value[p].text};"))
                self.value[p], looked_up[first[-1]] = Expr(name), name
        self.offsets, total = self.layout()
        one = piece.rows and not piece.grid  # a block does it all
        room: dict | None = None
        static = total.isdigit() and int(total) <= LOCAL_REALS and not piece.rows and not self.heap
        real = self.ctype(REAL)
        if self.plan.pools and static:
            self.stack += 8 * int(total)
            first.append(Line(1, f"{'alignas(8) ' if self.mixed() else ''}{real} {self.local['own']}[{total}];"))
        elif self.plan.pools and one:
            room = self.pooled()
            first.append(Line(1, f"__shared__ {real} {self.local['own']}[{HELD}]; // vectors of this block"))
        elif self.plan.pools or self.heap:
            room = self.pooled()
            head += [f"{real} *__restrict__ {self.local['work']}", f"long long {self.local['room']}"]
            needs.append("work")
            if piece.rows:
                first += self.held(real)
            else:
                place = self.memory_of(self.local["thread"], self.local["room"], self.local["work"])
                first.append(Line(1, f"{real} *{self.local['own']} = {place};"))
        if piece.rows:
            head.append(f"long long {self.local['team']}")
            needs.append("team")
        if self.deep:
            head.append(f"long long {self.local['stack']}")
            needs.append("stack")
        if piece.fallible:
            head.append(f"unsigned long long *{self.local['status']}")
            needs.append("status")
        self.start_totals(first)
        added = self.start_copies(first)
        finals: list[Line] = []
        self.prepare_folds(first)
        self.unshared = not one
        self.statements(program.body, {})
        self.unshared = True
        if self.arena:
            first += self.memory(total)
        for k, r in enumerate(program.body.results):
            if is_array(r) or r in folded:
                continue
            text = f"*{results[k]} = {self.operand(r).text};"
            if piece.scan is not None:
                text = self.once(text[1:] if piece.scan.totals else text, results[k])
            elif one or self.directions:
                text = f"if ({self.local['lane']} == 0) {text}"
            finals.append(Line(self.depth, text, self.made.get(r)))
        self.flush_all()
        self.move(program.body)
        lines = self.lines
        if self.arena:
            lines = without_unused(lines, words_of([*finals, *self.end_folds(results)]))
        if self.directions:
            held = {self.plan.root(v) for v in self.directions[1]}
            seen = [n for b, n in self.buffer_name.items() if (b.given or b.kind == "result") and b not in held]
            lines = by_the_first(lines, seen, self.local["lane"])
        body = self.shown(lines) + finals
        words = words_of([*(line for line in first if line not in looked_up), *body])
        first = [line for line in first if line not in looked_up or looked_up[line] in words]
        return self.assembled(head, first, body, results, added, room, needs)

    def assembled(
        self,
        head: list[str],
        first: list[Line],
        body: list[Line],
        results: dict[int, str],
        added: list[Line],
        room: dict | None,
        needs: list[str],
    ) -> KernelText:
        piece = self.piece
        lines: list[Line] = []
        thread, step = self.local["thread"], self.local["step"]
        each, every = "(long long)blockIdx.x*blockDim.x + threadIdx.x", "(long long)gridDim.x*blockDim.x"
        if piece.rows:
            team, lane = self.local["team"], self.local["lane"]
            lines.append(Line(1, f"const int {lane} = threadIdx.x & ((int){team} - 1);"))
        if self.directions:
            lines.append(Line(1, f"const int {self.local['lane']} = threadIdx.x;"))
        if piece.rows and piece.grid:
            teams = self.local["teams"]
            lines.append(Line(1, f"const unsigned {teams} = blockDim.x/(unsigned){team};"))
            each = f"(long long)blockIdx.x*{teams} + threadIdx.x/(unsigned){team}"
            every = f"(long long)gridDim.x*{teams}"
        if piece.grid and not self.turned or "work" in needs:
            if piece.scan is not None:
                each, every = "blockIdx.x", "gridDim.x"
            lines.append(Line(1, f"const long long {thread} = {each};"))
        if piece.grid and not self.turned:
            lines.append(Line(1, f"const long long {step} = {every};"))
        guarded = piece.totals and not piece.grid
        declared = [line for line in first if line.view is None]
        if piece.fallible and self.barrier:
            state = [Line(2, f"if (*{self.local['status']}) goto {self.local['done']};")] if not guarded else []
            lines += declared
            if guarded:
                lines.append(Line(1, f"if (threadIdx.x || *{self.local['status']}) return;"))
                lines += body
            else:
                inner = [Line(line.depth + 1, line.text, line.span, line.view) for line in body]
                lines += [Line(1, "{"), *state, *inner, Line(1, "}"), Line(0, f"{self.local['done']}:")]
        else:
            if piece.fallible:
                failed = f"*{self.local['status']}"
                together = piece.rows or self.turned or self.tiles or self.sized
                if together:  # all threads of a block, or none, while other blocks may fail
                    failed = f"__syncthreads_or({failed} != 0)"
                lines.append(Line(1, f"if ({failed}) return;"))
            lines += declared
            if guarded:
                lines.append(Line(1, "if (threadIdx.x) return;"))
            lines += body
        lines += [*added, *self.end_folds(results)]
        if not (piece.fallible and self.barrier):
            lines = self.joined(lines)
        lines = without_unread(lines, anywhere=True)
        comments = self.shared_comments or Comments(self.program, False)
        text = comments.text(lines)
        tables = [f"    {t}" for t in self.tables]
        words = set(WORD.findall("\n".join([*tables, *(line.text for line in lines)])))
        kept = tuple(declared.rpartition(" ")[2].lstrip("*") in words for declared in head)
        used = [declared for declared, keep in zip(head, kept) if keep]
        most = FOLDING if piece.roomy else f"{FOLDING}, {TOGETHER}"
        bounds = f"__launch_bounds__({most}) " if piece.rows and piece.grid else ""
        if piece.grid and not piece.rows and self.held_over(self.program.body):
            block = self.block if self.tiles or self.sized else FOLDING if piece.folds else BLOCK
            bounds = f"__launch_bounds__({block}, {REGISTERS // (FREE * block)}) "
        signature = f'extern "C" __global__ void {bounds}{self.name}({", ".join(used)})'
        whole = "\n".join([*wrapped(signature, WIDTH), "{", *tables, *text, "}", ""])
        staged = tuple(tile.array for tile in (*self.tiles, *self.sized))
        block, sized = self.block if staged else FOLDING, tuple(tile.dims for tile in self.sized)
        return KernelText(whole, tuple(self.support), room, tuple(needs), kept, self.heap, staged, block, sized)

    def held_over(self, block: Block) -> bool:
        """Whether a loop in which another one takes long has so many accumulators that their registers, which that
        other loop does not use, are half of all. With fewer registers the compiler puts them into memory around it, and
        twice as many warps hide what each of them waits for."""
        wide = 2 if self.dtype == "f64" else 1

        def states(op: Loop) -> int:
            return wide * sum(a.type == REAL for a in op.accs)

        for bind in all_binds(block):
            op = bind.op
            if type(op) is Loop and op.index not in self.piece.grid and states(op) >= HELD_OVER:
                inner = [b.op for b in all_binds(op.body) if type(b.op) is Loop]
                if any(type(x.count) is not Const or x.count.value > HELD_OVER for x in inner):
                    return all(states(x) < HELD_OVER for x in inner)
        return False

    def joined(self, lines: list[Line]) -> list[Line]:
        """Lines in which what a thread folds is declared with its first value."""
        for _, variables in self.piece.folds:
            for v in variables:
                name = self.destination[v]
                declared = f"{self.ctype(v.type)} {name};"
                k = next(k for k, line in enumerate(lines) if line.text == declared)
                j = next(j for j, line in enumerate(lines) if line.text.startswith(f"{name} = "))
                lines[j] = replace(lines[j], text=f"{declared[:-1]}{lines[j].text[len(name) :]}")
                del lines[k]
        return lines

    def pooled(self) -> dict:
        """The reals of one thread's workspace, as the terms of a size."""
        out: dict = {}
        for key, count in self.plan.pools.items():
            elem, terms, *_ = key
            wide = 2 if elem == "Int" and self.dtype == "f32" else 1
            for symbols, c in terms:
                out[symbols] = out.get(symbols, 0) + c * count * wide
        return out

    def memory(self, total: str) -> list[Line]:
        """What the thread has to itself; ``total`` is the workspace, behind which its memory begins."""
        own, room, memory = (self.local[n] for n in ("own", "room", "memory"))
        size = f"({total} + 1)/2*2" if self.dtype == "f32" and total != "0" else total
        value = self.arena_value(self.stack, *self.free_memory(own, room, size), self.local["stack"])
        texts = [*wrapped(f"hyad_arena {memory} = {value};", WIDTH - 4), f"hyad_arena *const arena = &{memory};"]
        return [Line(1, text) for text in texts]

    def held(self, real: str) -> list[Line]:
        """Where a team's rows lie: in shared memory, where those of all of a block's teams fit."""
        work, room, team, teams, held = (self.local[n] for n in ("work", "room", "team", "teams", "held"))
        where = f"{room}*{teams} <= {HELD} ? {held} + threadIdx.x/(unsigned){team}*{room}"
        texts = [f"__shared__ {real} {held}[{HELD}]; // rows of this block's teams, where they fit"]
        texts += wrapped(f"{real} *{self.local['own']} = {where} : {work} + {self.local['thread']}*{room};", WIDTH - 4)
        return [Line(1, text) for text in texts]

    def in_warps(self) -> bool:
        each = bool(self.piece.grid) and not self.piece.rows and self.piece.scan is None
        return each or self.directions is not None

    def workspace_piece(self, elem: Scalar, name: str, offset: str) -> str:
        if self.strided:
            return self.strided_piece(self.local["own"], elem, name, offset)
        place = f"{self.local['own']} + {offset}" if offset else self.local["own"]
        if elem != REAL:
            place = f"({self.ctype(elem)} *)({place})"
        return f"{self.ctype(elem)} *{name} = {place};"

    # ------------------------------------------------------------------------------------ additions

    def start_copies(self, first: list[Line]) -> list[Line]:
        """Zeros in shared memory for the arrays that a block adds to there; and how it adds them to the arrays, when
        all of its threads are done."""
        if not self.piece.copied:
            return []
        here, k = self.names.fresh("here"), self.names.fresh("k")
        first.append(Line(1, f"__shared__ long long {here}[{HELD}]; // what this block adds"))
        after = [Line(1, "__syncthreads();")]
        behind: list[str] = [here]
        for p in self.piece.copied:
            buffer = self.plan.place[p].buffer
            name, ctype = self.buffer_name[buffer], self.ctype(buffer.elem)
            copy, length = self.names.fresh(f"{name}_here"), self.places_of(p.type.dims)
            head = f"for (long long {k} = threadIdx.x; {k} < {length}; {k} += blockDim.x)"
            first.append(Line(1, f"{ctype} *const {copy} = ({ctype} *)({' + '.join(behind)});"))
            first.append(Line(1, f"{head} {copy}[{k}] = 0;"))
            after += [Line(1, head), Line(2, f"if ({copy}[{k}] != 0) hyad_add(&{name}[{k}], {copy}[{k}]);")]
            self.support[ADD_AT[ctype]] = None
            self.buffer_name[buffer] = copy
            behind.append(length)
        first.append(Line(1, "__syncthreads();"))
        return after

    # ------------------------------------------------------------------------------------ the folds

    def prepare_folds(self, first: list[Line]) -> None:
        """The variables in which each thread folds its share; they outlive the loop."""
        for reduction, variables in self.piece.folds:
            for v in variables:
                name = self.names.fresh(v.name)
                self.destination[v] = name
                value = " = 0" if self.piece.fallible else ""
                first.append(Line(1, f"{self.ctype(v.type)} {name}{value};"))

    def end_folds(self, results: dict[int, str]) -> list[Line]:
        """After the loop: a block's threads together, and its part written."""
        lines: list[Line] = []
        where = {r: results[k] for k, r in enumerate(self.program.body.results) if k in results}
        for reduction, variables in self.piece.folds:
            lines += self.fold_block(reduction, variables)
        if lines:
            lines.append(Line(1, "if (threadIdx.x == 0) {"))
            for _, variables in self.piece.folds:
                for v in variables:
                    lines.append(Line(2, f"{where[v]}[blockIdx.x] = {self.destination[v]};"))
            lines.append(Line(1, "}"))
        return lines

    def fold_block(self, reduction: Reduction, variables: Sequence[Var]) -> list[Line]:
        ctype = self.ctype(variables[0].type)
        names = [self.destination[v] for v in variables]
        lines = []
        if self.piece.rows and reduction.kind in ("sum", "product"):  # one thread of each team has it
            lines.append(Line(1, f"if ({self.local['lane']}) {names[0]} = {self.identity(reduction, variables[0])};"))
        if reduction.kind == "scaled":
            return self.fold_scaled(ctype, *names)
        if reduction.kind == "place":
            function, text = block_place(ctype, reduction.least, reduction.last)
            call = f"{names[0]} = {function}({names[0]}, &{names[1]});"
        else:
            function, text = block_reduction(reduction.kind, ctype, ELEM[variables[0].type])
            call = f"{names[0]} = {function}({names[0]});"
        self.support[text] = None
        return [*lines, Line(1, call)]

    def fold_scaled(self, ctype: str, largest: str, *sums: str) -> list[Line]:
        """A block's largest element, and sums below it, from those of its threads."""
        self.support[SCALE.replace("REAL", ctype).replace("exp", "exp" if ctype == "double" else "expf")] = None
        of_all, text = team_reduction("max", ctype, "real")
        add, more = block_reduction("sum", ctype, "real")
        self.support |= {text: None, more: None}
        all_ = self.names.fresh(f"{largest}_all")
        lines = [f"const {ctype} {all_} = {of_all}({largest}, blockDim.x);"]
        lines += [f"{s} = {add}({s}*hyad_scale({largest}, {all_}));" for s in sums]
        return [Line(1, text) for text in (*lines, f"{largest} = {all_};")]

    def identity(self, reduction: Reduction, var: Var) -> str:
        """What a fold starts with."""
        start = COMBINED[reduction.kind][1][ELEM[var.type]]
        return self.real_literal(float(start)).text if start.isdigit() and var.type == REAL else start

    def start_totals(self, first: list[Line]) -> None:
        """Fold the parts of earlier blocks; the first thread goes on with the results."""
        for reduction, variables in self.piece.totals:
            parts = [self.value[v].text[1:] for v in variables]
            names = [self.names.fresh(v.name) for v in variables]
            ctypes = [self.ctype(v.type) for v in variables]
            many = self.value[self.parts_of[variables[0]]].text
            k = self.names.fresh("k")
            head = f"for (long long {k} = threadIdx.x; {k} < {many}; {k} += blockDim.x)"
            if reduction.kind == "place":
                sign = "<" if reduction.least else ">"
                first += [Line(1, f"{ctypes[j]} {names[j]} = {parts[j]}[0];") for j in (0, 1)]
                y, at = f"{parts[0]}[{k}]", f"{parts[1]}[{k}]"
                better = (
                    f"{y} {sign} {names[0]} || ({y} == {names[0]} && {at} {'>' if reduction.last else '<'} {names[1]})"
                )
                first += [
                    Line(1, f"{head} {{"),
                    Line(2, f"if ({better}) {{ {names[0]} = {y}; {names[1]} = {at}; }}"),
                    Line(1, "}"),
                ]
            elif reduction.kind == "scaled":
                first += [
                    Line(1, f"{t} {s} = {'0' if j else '-INFINITY'};") for j, (t, s) in enumerate(zip(ctypes, names))
                ]
                y, high = self.names.fresh("y"), self.names.fresh("high")
                first += [
                    Line(1, f"{head} {{"),
                    Line(2, f"const {ctypes[0]} {y} = {parts[0]}[{k}];"),
                    Line(2, f"const {ctypes[0]} {high} = {combined('max', 'real', names[0], y)};"),
                ]
                for s, part in zip(names[1:], parts[1:]):
                    text = f"{s} = {s}*hyad_scale({names[0]}, {high}) + {part}[{k}]*hyad_scale({y}, {high});"
                    first.append(Line(2, text))
                first += [Line(2, f"{names[0]} = {high};"), Line(1, "}")]
            else:
                elem = ELEM[variables[0].type]
                first.append(Line(1, f"{ctypes[0]} {names[0]} = {self.identity(reduction, variables[0])};"))
                if reduction.kind == "sum":
                    first.append(Line(1, f"{head} {names[0]} += {parts[0]}[{k}];"))
                else:
                    y = self.names.fresh("y")
                    first += [
                        Line(1, f"{head} {{"),
                        Line(2, f"const {ctypes[0]} {y} = {parts[0]}[{k}];"),
                        Line(2, f"{names[0]} = {combined(reduction.kind, elem, names[0], y)};"),
                        Line(1, "}"),
                    ]
            for v, name in zip(variables, names):
                self.destination[v] = name
                self.value[v] = Expr(name)
            first += self.fold_block(reduction, variables)
            for v in variables:
                del self.destination[v]

    @property
    def parts_of(self) -> dict[Var, Var]:
        """How many parts there are: the last parameter."""
        count = self.program.params[-1]
        return {v: count for _, vs in self.piece.totals for v in vs}

    # ------------------------------------------------------------------------------------ statements

    def failed(self, number: int | str) -> str:
        self.support[FAIL] = None
        end = f"goto {self.local['done']};" if self.piece.folds or self.piece.copied else "return;"
        if self.behind:  # the others of the team wait behind its loop
            end = f"goto {self.behind};"
        return f"{{ hyad_fail({self.local['status']}, {number}); {end} }}"

    def loop(self, bind: Bind, op: Loop) -> None:
        if self.piece.scan is not None and op.index is self.piece.scan.index:
            self.scan(bind, op, self.piece.scan)
        elif op.index in self.piece.rows:
            self.row(bind, op)
        elif self.directions and op.index in self.directions[0]:
            self.by_lanes = True
            super().loop(bind, op)
            self.by_lanes = False
        elif op.index not in self.piece.grid:
            super().loop(bind, op)
        elif op.index is self.piece.grid[0]:
            self.spread(bind, op)
        else:
            inits, before = self.start(bind, op)
            self.indices.add(op.index)
            self.iteration(bind, op, inits, bind.vars, self.value[op.index].text)
            self.after(bind, before)

    def loop_head(self, index: str, count: str) -> str:
        if not self.by_lanes:
            return super().loop_head(index, count)
        return f"for (long long {index} = {self.local['lane']}; {index} < {count}; {index} += {WARP}) {{"

    def every(self, to: str, value: Callable[[str], str], dims: Sequence[Atom], guard: str = "") -> None:
        """Of an array of directions each thread has its own, of every row."""
        held = {self.plan.root(v) for v in self.directions[1]} if self.directions else set()
        if to.partition(" + ")[0] not in [self.buffer_name.get(b) for b in held]:
            super().every(to, value, dims, guard)
            return
        rows, many = dims[:-1], self.length(dims[-1:]).text
        self.names.enter()
        k, d = (self.names.fresh(n) for n in "kd")
        if rows:
            self.emit(guard + self.loop_head(k, self.length(rows).text))
            self.depth += 1
        self.by_lanes = True
        self.emit(("" if rows else guard) + self.loop_head(d, many))
        self.by_lanes = False
        place = f"{many}*{k} + {d}" if rows else d
        self.emit(f"    {at(to, place)} = {value(place)};")
        self.emit("}")
        if rows:
            self.depth -= 1
            self.emit("}")
        self.names.leave()

    def row(self, bind: Bind, op: Loop) -> None:
        """A loop that a team shares: each thread every ``team``-th iteration, the first one from the start on."""
        team, lane = self.local["team"], self.local["lane"]
        count = self.fixed(op.count).at(SHIFT)
        inits, before = self.start(bind, op)
        folds = [(r, bind.vars[r.accs[0]]) for r in reductions(op) or ()]
        for r, v in folds:
            start = op.inits[r.accs[0]]
            if r.kind in ("sum", "product") and not (isinstance(start, Const) and start.value == (r.kind == "product")):
                self.emit(f"if ({lane}) {self.value[v].text} = {self.identity(r, v)};")
        read = self.row_ahead(op)
        reading: list[str] = []
        for _ in read[:1] * 2:
            self.enter()
        first, j = (self.names.fresh(n) for n in ("first", "j")) if read else ("", "")
        for v, array, start, ctype in read:
            name = self.names.fresh(f"{array}_ahead")
            reading.append(f"    {ctype} {name}[{AHEAD}];")
            reading.append(f"    hyad_ahead({name}, {start}, {first}, {team}, {count});")
            self.early[v] = Expr(f"{name}[{j}]")
        self.unshared = True
        self.labels += 1
        label = self.behind = f"behind{self.labels}"
        index, body = self.body(bind, op, inits)
        self.unshared, self.behind = False, ""
        for _ in read[:1] * 2:
            self.leave()
        loop, inner = f"for (long long {index} = {lane}; {index} < {count}; {index} += {team}) {{", []
        if read:
            loop, inner = heads(lane, team, count, (first, j, index))
            words = words_of(body)
            body = [b for b in body if not (m := CONSTANT.match(b.text)) or words.count(m[1]) > 1]  # unused subscripts
            body += [Line(self.depth, text) for text in ("        }", "    }")]
        self.emit(loop, bind.span)
        self.lines += [*(Line(self.depth, text) for text in (*reading, *inner)), *body]
        self.emit("}")
        if any(f"goto {label};" in line.text for line in body):
            self.emit(f"{label}:;")
        self.after(bind, before)
        for r, v in folds:
            value, ctype = self.value[v].text, self.ctype(v.type)
            if r.kind == "place":
                name, text = team_place(ctype, r.least, r.last)
                call = f"{name}({value}, &{self.value[bind.vars[r.accs[1]]].text}, {team})"
            else:
                name, text = team_reduction(r.kind, ctype, ELEM[v.type])
                call = f"{name}({value}, {team})"
            self.support[text] = None
            self.emit(f"{value} = {call};", bind.span)

    def row_ahead(self, op: Loop) -> list[tuple[Var, str, str, str]]:
        """What a loop that a team shares reads for some iterations at once, where rows are known to be long: elements
        side by side that are read in any case, as the variable, the array's name, where the row begins, and the
        elements' type."""
        if op.index not in self.piece.long or not light(op.body):
            return []
        made = {v: b.op for b in op.body.binds for v in b.vars}
        inside = {op.index, *op.accs, *made}
        found: list[tuple[Var, Var, list[Atom]]] = []
        for b in op.body.binds:
            if any(type(c.op) is Check for c in binds_of(b)):
                break
            if type(b.op) is not Prim or b.op.name != "get" or isinstance(b.vars[0].type, Arr):
                continue
            array, *above, sub = b.op.args
            buffer = self.plan.root(array)
            if buffer.kind != "param" or buffer.given or buffer in self.atomic or inside.intersection([array, *above]):
                continue
            if sub is op.index:
                found.append((b.vars[0], array, [*above, Const(0, INT)]))
            elif (offset_from(sub, op.index, made, inside) or "-")[0] == "+":
                found.append((b.vars[0], array, [*above, next(a for a in made[sub].args if a is not op.index)]))
        if elsewhere(op.body, [array for _, array, _ in found]) > 2 * len(found):
            return []
        places = []
        for v, array, subs in found[:OF_ROWS]:
            base, offset, buffer, _ = self.address(array, [self.fixed(a) for a in subs])
            places.append((v, base, f"{base} + {offset.at(ADD)}" if offset else base, self.ctype(buffer.elem)))
        self.support |= {UNROLL: None, READ: None} if places else {}
        return places

    def assignment(self, target: str, expr: Expr) -> str:
        text = super().assignment(target, expr)
        return text if self.unshared or target.isidentifier() else f"if ({self.local['lane']} == 0) {text}"

    def spread(self, bind: Bind, op: Loop) -> None:
        """The nest: one index space, of which each thread takes every ``step``-th place."""
        nest = [bind]
        while len(nest) < len(self.piece.grid):
            index = self.piece.grid[len(nest)]
            nest.append(next(b for b in nest[-1].op.body.binds if type(b.op) is Loop and b.op.index is index))
        counts = [self.fixed(b.op.count).at(SHIFT) for b in nest]
        inits, before = self.start(bind, op)
        self.stage(nest)
        self.names.enter()
        tiles = [] if self.tiles or self.sized else self.by_tiles(nest)
        places = None if self.tiles or self.sized or tiles else self.read_ahead(nest)
        deeper = 1 if self.tiles or self.sized else 2 if places or tiles else 0
        old = self.captured()
        for _ in range(1 + deeper):
            self.enter()
        if self.tiles or self.sized:
            self.labels += 1
            self.behind = f"behind{self.labels}"
        names = []
        for b in nest:
            alone = places is not None and len(nest) == 1
            names.append(places.place if alone else self.names.fresh(b.op.index.name))
            self.value[b.op.index] = Expr(names[-1])
            self.indices.add(b.op.index)
        *outer, i, j = names if tiles else ["", ""]
        row, lane = (self.names.fresh(n) for n in ("row", "lane")) if tiles else ("", "")
        self.turned_at = [*outer, j, i], Expr(f"{lane}*33 + {row}")
        located = self.locate(nest)
        self.unshared = not self.piece.rows
        self.iteration(bind, op, inits, bind.vars, names[0])
        self.unshared = True
        if self.tiles:
            head, tail = self.places_of_warps(nest, names, located)
            self.behind = ""
        elif self.sized:
            head, tail = self.places_of_rows(nest, names)
            self.behind = ""
        elif places:
            head, tail = self.places_ahead(nest, names, places)
        elif tiles:
            head, tail = self.places_in_tiles(nest, names, tiles, row, lane)
        else:
            fastest = self.fastest(nest)
            for each in (names, counts):
                each.append(each.pop(fastest))
            head, tail = self.counting(names, counts)
        for _ in range(1 + deeper):
            self.leave()
        self.names.leave()
        body, self.lines = self.lines, old
        self.span = None
        for text in head:
            self.emit(text, bind.span if text.startswith("for (") else None)
        self.lines += body
        for text in tail:
            self.emit(text)
        self.span = bind.span
        self.row_name.clear()
        self.turned_at = [], Expr("")
        self.after(bind, before)

    def by_tiles(self, nest: Sequence[Bind]) -> list[tuple[Var, str]]:
        """Choose the matrices that a nest reads the other way round, to be read by tiles, with the tiles' names."""
        piece = self.piece
        if piece.rows or piece.copied or piece.atomic or piece.folds or not on("tiles"):
            return []
        found = []
        for p in turned_reads(self.program, nest)[:TILES]:
            buffer = self.plan.root(p)
            if buffer.kind == "param" and p not in piece.pointed:
                found.append((p, self.names.fresh(f"{self.buffer_name[buffer]}_tile")))
                self.turned[buffer] = found[-1][1]
        if found:
            self.support |= {UNROLL: None, TURN: None}
            self.block = FOLDING
        return found

    def places_in_tiles(
        self, nest: Sequence[Bind], names: list[str], tiles: list[tuple[Var, str]], row: str, lane: str
    ) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space of which a block takes a tile at a time, and what stands behind its
        body."""
        counts = [self.places_of([b.op.count, Const(1, INT)]).rpartition("*")[0] for b in nest]
        own = [self.names.fresh(n) for n in ("tile", "tiles", "first", "start", "k")]
        loads = []
        for p, name in tiles:
            *outer, height, width = (self.fixed(d).at(MUL) for d in p.type.dims)
            before = self.flat([Expr(n) for n in names[:-2]], p.type.dims[:-1]) if names[2:] else None
            loads.append((name, self.ctype(p.type.elem), self.buffer_name[self.plan.root(p)], before, height, width))
        return heads_of_tiles(counts, names, own, row, lane, loads)

    def fastest(self, nest: Sequence[Bind]) -> int:
        """Which loop of a nest neighbours go along; neighbours of a team go along its row."""
        last = len(nest) - 1
        found = beside(nest) if not self.piece.rows and on("thread-order") else last
        if found < last:
            fires("thread-order", nest[0].span)
        return found

    def stage(self, nest: Sequence[Bind]) -> None:
        """Declare tiles for the arrays of which each place of the grid has a row, one after the other."""
        if self.piece.rows or self.piece.copied:
            return
        levels, grid, n = len(nest), self.piece.grid, len(nest[0].op.accs)
        counts = [b.op.count for b in nest]
        rows = [
            (p, self.plan.root(p))
            for p in self.program.params
            if row_width(p, levels) and only_rows(self.program, p, grid) and mostly_read(self.program, p, grid)
        ]
        for v in nest[0].vars[n:]:
            if row_width(v, levels):
                rows.append((v, self.plan.root(v)))
        tiles: dict[Tile, Buffer] = {}
        for v, buffer in rows:
            if buffer.kind not in ("param", "result") or not same_atoms(v.type.dims[1:levels], counts[1:]):
                continue
            name, given = self.buffer_name[buffer], buffer.kind == "result"
            many = "" if same_atoms(v.type.dims[:1], counts[:1]) else self.places_of(v.type.dims[:levels])
            ctype, width = self.ctype(buffer.elem), row_width(v, levels)
            tiles[Tile(name, self.names.fresh(f"{name}_tile"), ctype, width, given, many)] = buffer
        gathered = self.gathers(nest, set(tiles.values()))
        folds = len(self.piece.folds)
        self.block, self.tiles = blocks_for([*tiles, *gathered], FOLDING if folds else BLOCK, folds)
        for tile in self.tiles:
            name = self.names.fresh(f"{tile.array}_row")
            self.lines.append(Line(self.depth, tile.declared(self.block)))
            self.lines.append(Line(self.depth, f"{tile.ctype} *const {name} = {tile.own()};"))
            if tile.at:
                index, buffer = gathered[tile]
                self.located[index] = tile.at
                if tile.given:
                    self.support[ADD_AT[tile.ctype]] = None
                    self.terms[buffer, index] = name, tile.width, set()
                else:
                    self.gathered.setdefault(buffer, []).append((index, name))
            else:
                self.row_name[tiles[tile]] = name, levels, None
        self.support.update(dict.fromkeys(functions_of(self.tiles)))
        alone = not self.piece.atomic and self.piece.scan is None
        if not self.tiles and self.piece.sized and alone and on(STAGING):
            self.stage_sized(nest)

    def stage_sized(self, nest: Sequence[Bind]) -> None:
        """Choose the arrays of reals of which each place of the grid has a row whose width only the host knows, apart
        from those of its neighbours: what is written first. Rows that are as wide as there are many, or several times
        as wide as something else, are hardly short where they are many."""
        grid, n = self.piece.grid, len(nest[0].op.accs)
        counts = {b.op.index: b.op.count for b in nest}
        beside = nest[self.fastest(nest)].op.index
        rows = [(v, grid) for v in nest[0].vars[n:] if self.plan.root(v).kind == "result"]
        for p in (p for p in self.program.params if is_array(p) and self.plan.root(p).kind == "param"):
            at = row_subscripts(self.program, p, grid)
            if beside in at and only_rows(self.program, p, at) and read_again(nest[-1].op.body, {p}):
                rows.append((p, at))
        for v, at in rows:
            dims = v.type.dims[len(at) :]
            wide = [d for d in dims if type(d) is not Const]
            short = len(wide) == 1 and wide[0] in self.program.dims and wide[0] not in counts.values()
            side = same_atoms(v.type.dims[: len(at)], [counts[i] for i in at])
            if v.type.elem != REAL or not short or not side:
                continue
            buffer = self.plan.root(v)
            name = self.buffer_name[buffer]
            own = [self.names.fresh(f"{name}_{what}") for what in ("tile", "at", "apart", "row")]
            given = buffer.kind == "result"
            self.sized[SizedTile(name, own[0], self.ctype(REAL), dims, self.places_of(dims), given, *own[1:])] = v, at
            self.row_name[buffer] = own[3], len(at), None
        if self.sized:
            self.block = FOLDING if self.piece.folds else BLOCK
            moves = {tile.given for tile in self.sized}
            texts = (ROWS, SIZED, *([ROWS_IN] if False in moves else []), *([ROWS_OUT] if True in moves else []))
            self.support.update(dict.fromkeys(texts))

    def gathers(self, nest: Sequence[Bind], staged: set[Buffer]) -> dict[Tile, tuple[Var, Buffer]]:
        """Tiles for rows of arrays that each place of the grid finds by an index it has read, with this and where the
        array lies. What indices are read from is read before, each element as it is needed."""
        made = {b.vars[0]: b.op for level in nest for b in level.op.body.binds if type(b.op) is Prim}
        pairs = [
            (p, index)
            for p in self.program.params
            if row_width(p, 1) and self.plan.root(p).kind == "param" and self.plan.root(p) not in staged
            for index in indices_of(self.program, p)
            if self.findable(index, made) and mostly_read(self.program, p, (index,))
        ]
        indices, sources = {index for _, index in pairs}, set()
        while indices:
            op = made[indices.pop()]
            sources.add(op.args[0])
            indices |= {a for a in op.args[1:] if a in made}
        found: dict[Tile, tuple[Var, Buffer]] = {}
        named: dict[Var, str] = {}
        for p, index in pairs:
            if p in sources:
                continue
            buffer, count = self.plan.root(p), self.fixed(p.type.dims[0]).text
            name, width = self.buffer_name[buffer], row_width(p, 1)
            if index not in named:
                named[index] = self.names.fresh(f"{name}_at")
            tile = self.names.fresh(f"{name}_tile")
            found[Tile(name, tile, self.ctype(buffer.elem), width, False, count, named[index])] = index, buffer
        body = nest[-1].op.body
        for p in sorted(self.piece.atomic, key=self.program.params.index):
            buffer, name = self.plan.root(p), self.buffer_name[self.plan.root(p)]
            states = [v for b in body.binds for v in b.vars if isinstance(v.type, Arr) and self.plan.root(v) is buffer]
            for index in terms_of(body, states) if row_width(p, 1) else ():
                if self.findable(index, made):
                    at = named.setdefault(index, self.names.fresh(f"{name}_at"))
                    tile, count = self.names.fresh(f"{name}_tile"), self.fixed(p.type.dims[0]).text
                    found[Tile(name, tile, self.ctype(buffer.elem), row_width(p, 1), True, count, at)] = index, buffer
        return found

    def term(self, buffer: Buffer, op: Prim, var: Var) -> None:
        """What a thread adds to an element of a row that it found, in its row of the tile."""
        row, _, there = self.terms[buffer, op.args[1]]
        *_, new = self.fit(op.args[1:])
        at = 0
        for a, d in zip(op.args[2:-1], var.type.dims[1:]):
            at = at * int(d.value) + int(a.value)
        if isinstance(op.args[-1], Const) and buffer.elem == REAL:
            new = self.real_literal(op.args[-1].value)
        self.changes(buffer)
        self.emit(f"{row}[{at}] = {new.text};")
        there.add(at)

    def findable(self, index: Atom, made: dict[Var, Prim]) -> bool:
        """Whether an index is an element of an array of integers, at places of the grid, constants, or indices like
        it."""
        op = made.get(index) if type(index) is Var else None
        if op is None or op.name != "get" or index.type != INT or op.args[0] not in self.program.params:
            return False
        subs = [a for a in op.args[1:] if type(a) is not Const and a not in self.piece.grid]
        return self.plan.root(op.args[0]).kind == "param" and all(self.findable(a, made) for a in subs)

    def locate(self, nest: Sequence[Bind]) -> dict[str, str]:
        """The indices of the rows that are gathered, each as its variable's name and what it is: -1 where a subscript
        that it is read by is none."""
        made = {b.vars[0]: b.op for level in nest for b in level.op.body.binds if type(b.op) is Prim}
        counts: dict[Atom, Atom] = {b.op.index: b.op.count for b in nest}
        found: dict[str, str] = {}

        def inside(sub: Atom, dim: Atom) -> bool:
            known = type(sub) is Const and type(dim) is Const and 0 <= sub.value < dim.value
            return known or sub in counts and same(counts[sub], dim)

        def locate(index: Var) -> None:
            array, *subs = made[index].args
            for a in subs:
                if a in made and a not in self.value:
                    self.located.setdefault(a, self.names.fresh(f"{a.name}_at"))
                    locate(a)
            exprs = [self.operand_of(a) for a in subs]
            texts = []
            for sub, e, dim in zip(subs, exprs, array.type.dims):
                if not inside(sub, dim):
                    texts.append(f"0 <= {e.at(SHIFT)} && {e.at(SHIFT)} < {self.operand_of(dim).at(SHIFT)}")
            text = self.element(array, exprs).text
            name = self.located[index]
            found[name] = f"{' && '.join(texts)} ? {text} : -1" if texts else text
            self.value[index] = Expr(name)

        for index in list(self.located):
            if index not in self.value:
                locate(index)
        return found

    def row_elsewhere(self, buffer: Buffer, subs: Sequence[Expr]) -> tuple[str, int, Expr | None] | None:
        for index, name in self.gathered.get(buffer, ()):
            if subs and subs[0].text == self.located[index]:
                return name, 1, None
        if buffer in self.turned and [x.text for x in subs] == self.turned_at[0]:
            return self.turned[buffer], len(subs), self.turned_at[1]
        return super().row_elsewhere(buffer, subs)

    def prim(self, bind: Bind, op: Prim) -> None:
        var = bind.vars[0]
        if var in self.early:
            self.elements.add(var)
            self.settle(var, self.early[var])
        elif var not in self.located:
            super().prim(bind, op)

    def places_of(self, counts: Sequence[Atom]) -> str:
        """How many places a nest of loops has, as C."""
        texts = [self.fixed(c).at(MUL) for c in counts]
        if len(texts) > 1:  # none is negative
            known = [type(c) is Const or c in self.program.dims for c in counts]
            texts = [t if sure else f"({t} > 0 ? {t} : 0)" for t, sure in zip(texts, known)]
        return "*".join(texts)

    def places_of_warps(
        self, nest: Sequence[Bind], names: list[str], located: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space in which warps move their rows, and what stands behind its body."""
        first, lane, *_ = own = tuple(self.names.fresh(n) for n in ("first", "lane", "rows", "arrived", "turn"))
        head, total = self.total_of(nest)
        place = f"{first} + {lane}"
        indices = self.indices_at(nest, names, place, words_of(self.lines))
        found = self.indices_at(nest, names, place, words_of([Line(0, text) for text in located.values()]))
        found += [f"{name} = {text};" for name, text in located.items()]
        counts = self.local["thread"], self.local["step"], total
        before, tail = by_warps(self.tiles, self.block, counts, own, [*located], found)
        if f"goto {self.behind};" in "\n".join(line.text for line in self.lines):
            tail.insert(1, f"    {self.behind}:;")
        nothing = [
            f"{row}[{k}] = 0;" for row, wide, there in self.terms.values() for k in range(wide) if k not in there
        ]
        return [*head, *before, *("        " + text for text in (*nothing, *indices))], tail

    def places_of_rows(self, nest: Sequence[Bind], names: list[str]) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space in which warps move rows of which only the host knows the width, and
        what stands behind its body."""
        first, lane, *_ = own = tuple(self.names.fresh(n) for n in ("first", "lane", "rows", "room"))
        head, total = self.total_of(nest)
        fastest = self.fastest(nest)
        order = [*range(fastest), *range(fastest + 1, len(nest)), fastest]
        subs = [[self.value[i] for i in at] for _, at in self.sized.values()]
        places = [self.flat(at, v.type.dims).text for at, (v, _) in zip(subs, self.sized.values())]
        needed = words_of([*self.lines, *(Line(0, text) for text in places)])
        indices = self.indices_at([nest[k] for k in order], [names[k] for k in order], f"{first} + {lane}", needed)
        counts = self.local["thread"], self.local["step"], total
        before, tail = by_warps_sized([*self.sized], counts, own, indices, places)
        if f"goto {self.behind};" in "\n".join(line.text for line in self.lines):
            tail.insert(1, f"    {self.behind}:;")
        return [*head, *before], tail

    def total_of(self, nest: Sequence[Bind]) -> tuple[list[str], str]:
        """How many places a nest has, as a variable where it is several loops, with what declares it."""
        total = self.places_of([b.op.count for b in nest])
        if len(nest) == 1:
            return [], total
        name = self.names.fresh("total")
        return [f"const long long {name} = {total};"], name

    def indices_at(self, nest: Sequence[Bind], names: list[str], place: str, needed: list[str]) -> list[str]:
        """Declarations of the indices that are among some names at a place of the index space: with a division for each
        dim but the first."""
        counting: list[tuple[str, str]] = []
        if len(nest) > 1 and not place.isidentifier():
            counting.append((self.names.fresh("at"), place))
            place = counting[0][0]
        for k in range(len(nest) - 1, 0, -1):
            n = self.fixed(nest[k].op.count).at(MUL)
            above = names[0] if k == 1 else self.names.fresh("at")
            if not n.isdigit():
                self.support[QUOTIENT] = None
            counting.append((above, f"{place}/{n}" if n.isdigit() else f"hyad_quotient({place}, {n})"))
            counting.append((names[k], f"{place} - {above}*{n}"))
            place = above
        if len(nest) == 1 and names[0] != place:
            counting.append((names[0], place))
        found: list[str] = []
        for name, text in reversed(counting):
            if name in needed:
                needed += re.findall(r"\w+", text)
                found.insert(0, f"const long long {name} = {text};")
        return found

    # ----------------------------------------------------------------------------- elements read ahead

    def read_ahead(self, nest: Sequence[Bind]) -> Places | None:
        """Choose the arrays of which each place of the grid has an element, to be read for some places at once."""
        levels, grid, counts = len(nest), self.piece.grid, [b.op.count for b in nest]
        if self.piece.rows or not light(nest[-1].op.body):
            return None

        def elements(v: Var, kind: str) -> bool:
            known = isinstance(v.type, Arr) and v.type.rank == levels and same_atoms(v.type.dims[1:], counts[1:])
            return known and self.plan.root(v).kind == kind

        read = [
            p
            for p in self.program.params
            if elements(p, "param") and only_rows(self.program, p, grid) and mostly_read(self.program, p, grid)
        ]
        if not read or elsewhere(nest[-1].op.body, read) > 2 * len(read):
            return None
        first, k, place = (self.names.fresh(n) for n in ("first", "k", "at" if levels > 1 else nest[0].op.index.name))
        found = Places(first, k, place)
        for p in read[:ARRAYS]:
            buffer = self.plan.root(p)
            many = "" if same_atoms(p.type.dims[:1], counts[:1]) else self.places_of(p.type.dims)
            name = self.names.fresh(f"{self.buffer_name[buffer]}_ahead")
            found.read.append((name, self.buffer_name[buffer], self.ctype(buffer.elem), many))
            self.row_name[buffer] = name, levels, Expr(k)
        for v in nest[0].vars[len(nest[0].op.accs) :] if levels > 1 else ():
            if elements(v, "result"):  # nor does what is written need the indices
                self.row_name[self.plan.root(v)] = self.buffer_name[self.plan.root(v)], levels, Expr(place)
        self.support |= {UNROLL: None, READ: None}
        return found

    def places_ahead(self, nest: Sequence[Bind], names: list[str], places: Places) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space in which threads read ahead, and what stands behind its body."""
        head, total = self.total_of(nest)
        step = self.local["step"]
        loop, inner = heads(self.local["thread"], step, total, (places.first, places.k, places.place))
        reading = []
        for name, array, ctype, many in places.read:
            end = f"({many} < {total} ? {many} : {total})" if many else total
            reading.append(f"    {ctype} {name}[{AHEAD}];")
            reading.append(f"    hyad_ahead({name}, {array}, {places.first}, {step}, {end});")
        start, indices, grown = self.indices_ahead(nest, names, places.place, words_of(self.lines))
        inner += ["            " + text for text in indices]
        self.carries = bool(start)
        return [*head, *start, loop, *reading, *inner], ["        }", *("        " + g for g in grown), "    }", "}"]

    def indices_ahead(
        self, nest: Sequence[Bind], names: list[str], place: str, needed: list[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """The indices that are among some names: what stands before the loop, at a place, and behind it. There is one
        division for each dim but the first, before the loop: from place to place quotients are carried."""
        rest, rest_step = self.local["thread"], self.local["step"]
        start, carried, indices, grown = [], [], [], []
        for k in range(len(nest) - 1, 0, -1):
            if not any(name in needed for name in names[: k + 1]):
                break
            n = self.fixed(nest[k].op.count).at(MUL)
            above = names[0] if k == 1 else self.names.fresh("at")
            above_step = self.names.fresh(f"{above}_step")
            start.append(f"long long {above} = {self.quotient(rest, n)};")
            start.append(f"const long long {above_step} = {self.quotient(rest_step, n)};")
            carried.append(f"if ({place} - {above}*{n} >= {n}) {above}++;")
            if names[k] in needed:
                indices.append(f"const long long {names[k]} = {place} - {above}*{n};")
            grown.append(f"{above} += {above_step};")
            place, rest, rest_step = above, above, above_step
        return start, [*carried, *indices], grown

    def quotient(self, a: str, b: str) -> str:
        """a/b, where b may be 0."""
        if b.isdigit() and int(b) > 0:
            return f"{a}/{b}"
        self.support[QUOTIENT] = None
        return f"hyad_quotient({a}, {b})"

    def counting(self, names: list[str], counts: list[str]) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space, and what stands after its body. There is one division for each
        dim but the first, before the loop: from place to place indices are carried as digits are."""
        thread, step = self.local["thread"], self.local["step"]
        if len(names) == 1:
            return [f"for (long long {names[0]} = {thread}; {names[0]} < {counts[0]}; {names[0]} += {step}) {{"], ["}"]
        head, tail = [], []
        rest, rest_step = thread, step
        steps = {}
        for k in range(len(names) - 1, 0, -1):
            i, n = names[k], counts[k]
            above = self.names.fresh("at") if k > 1 else names[0]
            above_step = self.names.fresh(f"{above}_step")
            steps[i] = self.names.fresh(f"{i}_step")
            kind = "long long" if k == 1 else "const long long"
            head.append(f"{kind} {above} = {self.quotient(rest, n)};")
            head.append(f"const long long {above_step} = {self.quotient(rest_step, n)};")
            head.append(f"long long {i} = {rest} - {above}*{n};")
            head.append(f"const long long {steps[i]} = {rest_step} - {above_step}*{n};")
            rest, rest_step = above, above_step
        for k in range(len(names) - 1, 0, -1):
            tail.append(f"    {names[k]} += {steps[names[k]]};")
        for k in range(len(names) - 1, 0, -1):
            tail.append(f"    if ({names[k]} >= {counts[k]}) {{ {names[k]} -= {counts[k]}; {names[k - 1]}++; }}")
        return [*head, f"for (; {names[0]} < {counts[0]}; {names[0]} += {rest_step}) {{"], [*tail, "}"]

    # ------------------------------------------------------------------------------------ scans

    def once(self, text: str, name: str) -> str:
        """The statement that one thread writes a final state by, or each block's first one its part."""
        if self.piece.scan.totals:
            return f"if (threadIdx.x == 0) {name}[blockIdx.x] = {text.partition(' = ')[2]}"
        return f"if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {text}"

    def scan(self, bind: Bind, op: Loop, scan: Scanned) -> None:
        """A loop of which a block takes as many iterations at once as it has threads. The terms are made by all of its
        threads, of the last iteration again where there are too many; the rest by those that have an iteration."""
        count = self.fixed(op.count).at(SHIFT)
        self.flush_all()
        self.span = None
        self.prepare_states(bind, op)
        start, end, tile, at = (self.names.fresh(n) for n in ("from", "to", "tile", "at"))
        if scan.rows:
            start, end = "0", count
        else:
            many = self.names.fresh("many")
            tiles = f"({count} + blockDim.x - 1)/blockDim.x"
            self.emit(f"const long long {many} = ({tiles} + gridDim.x - 1)/gridDim.x*blockDim.x;")
            self.emit(f"const long long {start} = blockIdx.x*{many};")
            self.emit(f"const long long {end} = {start} + {many} < {count} ? {start} + {many} : {count};")
        carries = [self.carry(op, kind, numbers) for kind, numbers in scan.states]
        if scan.parts:
            self.carry_parts(scan, carries, op)
        old = self.captured()
        self.enter()
        index = self.names.fresh(op.index.name)
        self.value[op.index] = Expr(index)
        self.indices.add(op.index)
        self.emit(f"const long long {at} = {tile} + threadIdx.x;")
        self.emit(f"const long long {index} = {at} < {end} ? {at} : {end} - 1;")
        self.statements(op.body, {}, op.body.binds[: scan.before])
        self.span = None
        for (kind, numbers), carried in zip(scan.states, carries):
            accs = [op.accs[k] for k in numbers[-width(kind) :]]
            terms = [self.as_type(op.body.results[k], op.accs[k].type).text for k in numbers]
            ctype, elem = self.ctype(accs[0].type), ELEM[accs[0].type]
            names = [self.names.fresh(n if len(numbers) > 1 else "before") for n in parts_of(kind)]
            for name, term, zero in zip(names, terms, identities(kind, elem)):
                self.emit(f"{ctype} {name} = {at} < {end} ? {term} : {zero};")
            alls = self.block_scan(kind, ctype, elem, names)
            states = behind(kind, elem, carried[-len(accs) :], names)
            for acc, state in zip(accs, states):
                if self.uses.get(acc):
                    name = self.names.fresh(acc.name)
                    self.emit(f"const {ctype} {name} = {state};")
                    self.value[acc] = Expr(name)
            self.go_on(kind, ctype, elem, carried, alls)
        if len(op.body.binds) > scan.before or len(op.body.results) > len(op.accs):
            self.emit(f"if ({at} >= {end}) continue;")
            self.rest(bind, op, index)
        self.leave()
        body, self.lines = self.lines, old
        if not any(re.search(rf"\b{index}\b", line.text) for line in body[2:]):
            del body[1]
        self.emit(f"for (long long {tile} = {start}; {tile} < {end}; {tile} += blockDim.x) {{", bind.span)
        self.lines += body
        self.emit("}")
        for (_, numbers), carried in zip(scan.states, carries):
            for k, name in zip(reversed(numbers), reversed(carried)):
                self.value[bind.vars[k]] = Expr(name)

    def prepare_states(self, bind: Bind, op: Loop) -> None:
        """What is folded beside the states starts at each thread's own."""
        for k, (acc, var) in enumerate(zip(op.accs, bind.vars)):
            if var in self.destination:
                name = self.destination[var]
                self.emit(f"{name} = {self.as_type(op.inits[k], acc.type).text};")
                for v in (acc, var):
                    self.value[v], self.slot[v] = Expr(name, PRIMARY, frozenset({name})), name

    def carry(self, op: Loop, kind: str, numbers: tuple[int, ...]) -> list[str]:
        """Variables of the state before a tile; of what all tiles before do, where that is to be found out."""
        numbers = numbers if self.piece.scan.totals else numbers[-width(kind) :]
        names = []
        for k in numbers:
            t = op.accs[k].type
            names.append(self.names.fresh(op.accs[k].name))
            self.emit(f"{self.ctype(t)} {names[-1]} = {self.as_type(op.inits[k], t).text};")
        return names

    def carry_parts(self, scan: Scanned, carries: list[list[str]], op: Loop) -> None:
        """The states behind the blocks before this one, from these blocks' parts."""
        parts = [self.buffer_name[self.plan.place[p].buffer] for p in scan.parts]
        k, at = self.names.fresh("k"), self.names.fresh("at")
        self.emit(f"for (long long {k} = 0; {k} < blockIdx.x; {k} += blockDim.x) {{")
        self.enter()
        self.emit(f"const long long {at} = {k} + threadIdx.x;")
        for (kind, numbers), carried in zip(scan.states, carries):
            t = op.accs[numbers[-1]].type
            ctype, elem = self.ctype(t), ELEM[t]
            names = [self.names.fresh("part") for _ in numbers]
            for name, zero in zip(names, identities(kind, elem)):
                self.emit(f"{ctype} {name} = {at} < blockIdx.x ? {parts.pop(0)}[{at}] : {zero};")
            self.go_on(kind, ctype, elem, carried, self.block_scan(kind, ctype, elem, names))
        self.leave()
        self.emit("}")

    def block_scan(self, kind: str, ctype: str, elem: str, names: list[str]) -> list[str]:
        """Scan variables of a block's threads: each becomes what comes before; the variables of what all give."""
        if len(names) > 1 or kind == "product" and elem == "real":
            self.support[(TIMES if kind == "product" else LEFT).replace("REAL", ctype)] = None
        function, text = block_scan(kind, ctype, elem)
        self.support[text] = None
        alls = [self.names.fresh(f"{name}_all") for name in names]
        self.emit(f"{ctype} {', '.join(alls)};")
        self.emit(f"{function}({', '.join(f'&{name}' for name in (*names, *alls))});")
        return alls

    def go_on(self, kind: str, ctype: str, elem: str, carried: list[str], change: list[str]) -> None:
        """The states, or what tiles do to them, behind a change."""
        made = behind(kind, elem, carried, change)
        if len(made) == 1:
            self.emit(f"{carried[0]} = {made[0]};")
            return
        names = [self.names.fresh("next") for _ in made]
        for name, text in zip(names, made):
            self.emit(f"const {ctype} {name} = {text};")
        for name, state in zip(names, carried):
            self.emit(f"{state} = {name};")

    def rest(self, bind: Bind, op: Loop, index: str) -> None:
        """The rest of an iteration of a scan, with its states known."""
        self.statements(op.body, {}, op.body.binds[self.piece.scan.before :])
        self.span = bind.span
        terms = {k for _, numbers in self.piece.scan.states for k in numbers}
        todo = []
        for k, r in enumerate(op.body.results):
            if k in terms or isinstance(type_of(r), Arr):
                continue
            if k < len(op.accs):
                name, t = self.value[op.accs[k]].text, op.accs[k].type
                todo.append((name, name, self.as_type(r, t), t, self.made.get(r)))
            else:
                var = bind.vars[k]
                target = self.element_of(var, [Expr(index)])
                buffer = self.plan.resolve(self.plan.place[var])[0]
                todo.append((target, buffer, self.as_type(r, var.type.elem), var.type.elem, self.made.get(r)))
        self.read_before_moves(op.body, todo)
        self.move(op.body)
        self.assign(todo)

    def array(self, op: Prim, place: Place, buffer: Buffer) -> None:
        if self.unshared or self.initialised is place.buffer:
            super().array(op, place, buffer)
            return
        self.unshared = True  # one thread of a team
        for a in op.args:
            if a in self.pending:
                self.materialise(a)
        before = len(self.lines)
        super().array(op, place, buffer)
        for k in range(before, len(self.lines)):
            self.lines[k] = replace(self.lines[k], text=f"if ({self.local['lane']} == 0) {self.lines[k].text}")
        self.unshared = False

    def store(self, bind: Bind, op: Prim, var: Var) -> None:
        buffer = self.plan.root(var)
        if not self.unshared:  # one thread of a team
            self.unshared = True
            self.store(bind, op, var)
            self.unshared = False
            self.lines[-1] = replace(self.lines[-1], text=f"if ({self.local['lane']} == 0) {self.lines[-1].text}")
            return
        if op.name != "add-at" or buffer not in self.atomic:
            super().store(bind, op, var)
            return
        self.support[ADD_AT[self.ctype(buffer.elem)]] = None
        value = op.args[-1]
        if (buffer, op.args[1]) in self.terms:
            self.term(buffer, op, var)
            return
        if not is_array(value):
            *subs, new = self.fit(op.args[1:])
            self.changes(buffer)
            if isinstance(value, Const) and buffer.elem == REAL:
                new = self.real_literal(value.value)
            self.emit(f"hyad_add(&{self.element_of(var, subs)}, {new.text});")
            return
        subs = [self.fixed(a) for a in op.args[1:-1]]
        self.changes(buffer)
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        self.names.enter()
        k = self.names.fresh("k")
        source, start, _, _ = self.address(value)
        self.emit(self.loop_head(k, self.length(value.type.dims).text))
        self.emit(f"    hyad_add(&{base}[{plus(offset, Expr(k)).text}], {source}[{plus(start, Expr(k)).text}]);")
        self.emit("}")
        self.names.leave()
