"""A typed program as one call on a GPU: cut into kernels, and into the steps of a host around them.

``print_grid(program)`` gives a ``CudaProgram`` (``launches.py``). The bindings of the program's body are gone through
in their order:

* a parallel loop is a kernel of its own, a scan two (``parallel.py``); a matrix product is a step of its own;
* a loop that is taken in its order, but has parallel loops in it, is a ``Repeat`` of the host; so are a branch and a
  ``while`` with such loops a ``Choose`` and a ``While`` (``repeats.py``);
* everything else, one after the other, is a kernel of one thread (``pieces.py``); but cheap scalars and rows of arrays
  are computed where they are used, by each thread.

Integers that sizes are made of are the host's. Each array has memory of its own (``memory.py``), but for what is
changed in place: an accumulator whose start is not read again, and the states of a ``Repeat``, of which two change
places. Each of these modules has a class that goes on from that of the one before: memory, pieces, parallel, repeats,
and here the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hyad.core import (
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
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    reads,
)
from hyad.errors import Span
from hyad.grid.again import kept_together, made_again
from hyad.grid.batches import sum_of
from hyad.grid.gather import long, spread, stack_of_products
from hyad.grid.scans import row_scan, scan_of
from hyad.grid.teams import from_the_least
from hyad.grid.vectors import arranged, beside, from_nothing, online, run_of, scalar
from hyad.passes.spread import Reduction, changed, reductions, work
from hyad.program.dead import dead_code
from hyad.program.journal import fires, on

from .c import called_of
from .collectives import ELEM, HELD, MOST, PRODUCT, TILE
from .cuda import CONSTANTS, HEAD, refuse
from .identifiers import WORD
from .launches import (
    FOLDING,
    WAVES,
    At,
    Choose,
    Clear,
    Copy,
    CudaProgram,
    Gemm,
    Launch,
    Memory,
    Param,
    Require,
    Scalar,
    Size,
    ceiling,
    total,
)
from .lower import is_array, type_of
from .memory import Spot, simple
from .pieces import binds_span
from .repeats import HostLoops

HEAVY = 60.0  # the work, in additions, from which on a scalar is computed once, by a thread of its own
FEW = 64  # iterations that are not worth a launch
SERIAL = 4096.0  # the work of a few, in additions, from which on they are: a thread takes longer than a launch


def print_grid(
    program: Program, *, dtype: str = "f64", name: str | None = None, deterministic: bool = False
) -> CudaProgram:
    """A typed program as CUDA: one call with its arguments as they are, in parallel.

    ``dtype`` is "f64" or "f32"; ``name`` replaces the model's. With ``deterministic`` results are the same to the last
    bit from call to call: sums into arrays are not made by atomic additions.

    Raises CompileError for data among the arguments and results, or between kernels, and for an array between kernels
    whose size is not known before the call.
    """
    refuse(program)
    return Cutter(made_again(spread(dead_code(program), deterministic)), dtype, name, deterministic).whole()


class Cutter(HostLoops):
    """Goes through one program."""

    # -------------------------------------------------------------------------------------------- the whole

    def whole(self) -> CudaProgram:
        program = self.program
        params = []
        for p in program.params:
            name = self.names.fresh(p.name)
            if isinstance(p.type, Arr):
                self.spot[p] = Spot(At(name))
            elif p.type == INT:
                self.host[p] = name
            else:
                self.scalars[p] = Scalar(name, ELEM[p.type])
            params.append(name)
        dims = []
        for d in program.dims:
            if d not in self.host:
                self.host[d] = self.names.fresh(d.name)
                dims.append(self.host[d])
        given = []
        for p, name in zip(program.params, params):
            sizes = self.sizes(p.type.dims, p.span) if isinstance(p.type, Arr) else ()
            elem = ELEM[p.type.elem if isinstance(p.type, Arr) else p.type]
            given.append(Param(name, elem, sizes))
            if isinstance(p.type, Arr):
                self.memory[name] = Memory(name, elem, sizes, "param")
        self.fallible = any(isinstance(b.op, Check) for b in all_binds(program.body)) or self.private(program.body)
        self.status = self.names.fresh("status") if self.fallible else None
        self.integers(program.body)
        results = self.results()
        self.block(program.body, frozenset(r for r in program.body.results if isinstance(r, Var)))
        self.finish(results)
        steps = self.persistent(self.steps)
        if self.status is not None:
            self.memory[self.status] = Memory(self.status, "word", (2,), "own")
        return CudaProgram(
            self.name,
            tuple(given),
            tuple(self.memory[name] for name in results),
            tuple(dims),
            tuple(self.memory.values()),
            steps if not self.parts else (Clear(self.parts[1], MOST), *steps),
            tuple(self.kernels),
            self.source(),
            self.status,
            tuple(self.checks),
            self.dtype,
            self.deterministic,
            tuple(self.notes),
            self.heap,
            self.stack_bytes,
            self.rounds,
        )

    def source(self) -> str:
        shared = self.unit.text("\n".join(self.texts))
        support = called_of(self.support, set(WORD.findall("\n".join([*shared, *self.texts]))))
        text = re.sub(r"\bNULL\b", "nullptr", "\n".join([*support, *shared, *self.texts]))
        constants = CONSTANTS if re.search(r"\b(INFINITY|NAN)\b", text) else []
        return "\n".join([*HEAD, *constants, "#endif", "", text])

    def results(self) -> list[str]:
        """Memory for each result; what is made for one is made there."""
        names = []
        body = self.program.body
        labels = self.program.names or ()
        for k, r in enumerate(body.results):
            t = type_of(r)
            label = labels[k] if k < len(labels) else r.name if isinstance(r, Var) and len(body.results) > 1 else "out"
            name = self.names.fresh(label or "out")
            dims = self.sizes(t.dims, getattr(r, "span", None)) if isinstance(t, Arr) else ()
            self.memory[name] = Memory(name, ELEM[t.elem if isinstance(t, Arr) else t], dims, "result")
            names.append(name)
            if isinstance(r, Var) and r not in self.wanted and r not in self.program.params:
                self.wanted[r] = At(name)
        self.trace(body)
        return names

    def trace(self, block: Block) -> None:
        """Where a result is changed in place, what it was before is made in its memory as well."""
        here = {v for b in block.binds for v in b.vars}
        for bind in reversed(block.binds):
            for k, v in enumerate(bind.vars):
                place = self.wanted.get(v)
                source = changed(bind, k)
                if place is None or source not in here or source in self.wanted:
                    continue
                if self.uses.get(source) == 1:
                    self.wanted[source] = place

    def finish(self, results: Sequence[str]) -> None:
        """The results that are not in their memory yet."""
        self.flush()
        loose: list[tuple[Atom, At]] = []
        for r, name in zip(self.program.body.results, results):
            here = self.spot.get(r) if isinstance(r, Var) else None
            if here is not None and here.at == At(name):
                continue
            if here is not None:
                self.steps.append(Copy(At(name), here.at, self.memory[name].length))
            elif is_array(r):
                if isinstance(r, Var) and r not in self.lazy:
                    raise AssertionError(r)
                self.copy_value(r, At(name))
            else:
                loose.append((r, At(name)))
        if loose:
            self.scalars_early(loose)

    # ----------------------------------------------------------------------------------------------- blocks

    def block(self, block: Block, after: frozenset[Var]) -> None:
        """The bindings of a block, ``after`` being what is read when it is done. The host's own checks are made before
        anything is started: between two loops over a vector they would keep them apart."""
        early = {b for b in block.binds if isinstance(b.op, Check) and None not in map(self.size, (b.op.a, b.op.b))}
        block = Block(tuple(sorted(block.binds, key=lambda b: b not in early)), block.results)
        binds = from_the_least(block.binds)
        made = {v: b.op for b in binds for v in b.vars}
        if on("beside"):
            binds, given = beside(binds, made), binds
            if binds != given:
                fires("beside", block.binds[0].span)
        whiles = ((b, b.op) for b in binds if isinstance(b.op, While))
        counts = {b.vars[len(op.accs)] for b, op in whiles if not worth(op.cond, op.body)}
        binds, together = kept_together(binds, counts)
        self.in_one |= together
        live = self.liveness(Block(tuple(binds), block.results), after)
        k = 0
        done: set[Bind] = set()
        while k < len(binds):
            added = self.added_to(binds, k, live) if not self.group and binds[k] not in together else None
            if added is not None:
                done.add(added)
                k += 1
                continue
            if binds[k] in done:
                k += 1
                continue
            run = run_of(binds[k:], made) if on("vectors") else []
            if run and together.isdisjoint(run) and self.size(run[0].op.count) is not None:
                k += len(run)
                self.vectors(run, live[k - 1])
            else:
                self.binding(binds[k], live[k])
                k += 1

    def vectors(self, run: Sequence[Bind], later: frozenset[Var]) -> None:
        """What is done with vectors (``hyad/grid/vectors.py``): one kernel of one block where they are short, else few
        passes over memory."""
        span = binds_span([b for b in run if type(b.op) is Loop])
        fires("vectors", span)
        if on("from-nothing"):
            run, given = from_nothing(run), run
            if run != given:
                fires("from-nothing", span)
        wanted = [v for b in run for v in b.vars if v in later]
        near, far = (arranged(run, wanted, near) for near in (True, False))
        loops = [b for b in near if type(b.op) is Loop]
        held = sum(isinstance(v.type, Arr) and v not in later for b in loops for v in b.vars)
        fits = simple("<=", simple("*", self.size(run[0].op.count), max(held, 1)), HELD)
        self.flush()
        printed = len(self.texts), len(self.notes), dict(self.support), dict(self.memory)
        outer, self.steps = self.steps, []
        steps = online(far) if on("online") else [(b, None) for b in far]
        if len(steps) < len(far):
            fires("online", span)
        live = self.liveness(Block(tuple(b for b, _ in steps), tuple(wanted)), later)
        for (bind, kinds), after in zip(steps, live):
            if kinds is None:
                self.binding(bind, after)
            else:
                self.flush()
                self.parallel(bind, bind.op, after, kinds)
        self.flush()
        loose = [(v, self.wanted[v]) for v in wanted if v in self.lazy and v in self.wanted]
        if loose:
            self.scalars_early(loose)
        for v, at in loose:
            self.spot[v] = Spot(at)
            del self.lazy[v]
        long, self.steps = tuple(self.steps), outer
        if fits == 0 or len(loops) == 1:
            self.steps += long
            return
        alive = self.closure(later)
        results = [v for b in near for v in b.vars if v in alive and v in self.spot]
        places = [self.spot[v].at for v in results]
        if fits == 1:  # what would be done else is not
            texts, notes, self.support, memory = printed
            del self.texts[texts:], self.kernels[texts:], self.notes[notes:]
            self.memory = memory | {at.array: self.memory[at.array] for at in places}
        self.steps = []
        hint = next((v.name for v in results if v.given), None)
        self.emit(near, results, places, hint=hint, threads=FOLDING, span=span, rows=loops, team=FOLDING)
        short, self.steps = tuple(self.steps), outer
        self.note(loops[0], f"one block, where vectors fit into its shared memory: {len(loops)} passes")
        self.steps += short if fits == 1 else (Choose(fits, short, long),)

    def binding(self, bind: Bind, later: frozenset[Var]) -> None:
        op = bind.op
        if all(v in self.host for v in bind.vars) and bind.vars:
            return
        if bind in self.in_one or self.group and self.stuck(bind):
            self.bound.add(bind)
            self.one_thread(bind, later)
        elif isinstance(op, Check):
            self.check(bind, op, later)
        elif isinstance(op, Prim):
            self.prim(bind, op, later)
        elif isinstance(op, Loop):
            self.loop(bind, op, later)
        elif isinstance(op, If) and len(bind.vars) == 1 and scalar(bind):
            self.scalar(
                bind, sum(work(b.op) for r in blocks_of(op) for b in all_binds(r) if isinstance(b.op, Prim)), later
            )
        elif isinstance(op, If) and worth(op.then, op.orelse):
            self.branch(bind, op, later)
        elif isinstance(op, While) and worth(op.cond, op.body):
            self.while_(bind, op, later)
        else:
            self.one_thread(bind, later)

    def scalar(self, bind: Bind, weight: float, later: frozenset[Var]) -> None:
        """A scalar or a row: computed where it is used, unless that is much work."""
        (var,) = bind.vars
        weight += sum(self.weight.get(v, 0.0) for v in reads(bind))
        if weight > HEAVY and not isinstance(var.type, Arr) or any(v in self.pending() for v in reads(bind)):
            self.one_thread(bind, later)
            return
        self.weight[var] = weight
        self.lazy[var] = bind

    def prim(self, bind: Bind, op: Prim, later: frozenset[Var]) -> None:
        var = bind.vars[0]
        if not isinstance(var.type, Arr) or op.name == "get":
            self.scalar(bind, work(op), later)
        elif op.name == "product":
            self.flush()
            self.product(bind, op)
        elif op.name in ("zeros", "undef"):
            self.flush()
            at = self.room(var)
            if op.name == "zeros":
                self.steps.append(Clear(at, total(self.sizes(var.type.dims, bind.span))))
        elif op.name == "array" and op.args and is_array(op.args[0]) and self.long_array(var):
            self.flush()
            at, row = self.room(var), total(self.sizes(var.type.dims[1:], bind.span))
            for k, part in enumerate(op.args):
                self.copy_value(part, At(at.array, simple("+", at.offset, simple("*", k, row))))
        else:
            self.one_thread(bind, later)

    def check(self, bind: Bind, op: Check, later: frozenset[Var]) -> None:
        a, b = self.size(op.a), self.size(op.b)
        if a is None or b is None:
            self.one_thread(bind, later)
            return
        if op.relation == "in":
            holds = ("and", ("<=", 0, a), ("<", a, b))
        else:
            holds = simple(op.relation, a, b)
        if holds == 1:
            return
        self.flush()
        self.checks.append((op.kind, op.message, bind.span))
        self.steps.append(Require(holds, len(self.checks)))

    def loop(self, bind: Bind, op: Loop, later: frozenset[Var]) -> None:
        kinds = reductions(op)
        small = isinstance(op.count, Const) and op.count.value <= FEW and not worth(op.body) and not slow(op, kinds)
        private = self.private(op.body)
        scan = scan_of(op) if kinds is None and not (private or worth(op.body)) else None
        rows = row_scan(bind) if kinds is not None and not private else None
        if self.stack(bind):
            return
        if small:
            self.one_thread(bind, later)
        elif scan is not None and self.size(op.count) is not None:
            self.flush()
            self.scan(bind, op, later, scan)
        elif rows is not None and long(rows[-1]) and all(self.size(b.op.count) is not None for b in rows):
            self.flush()
            self.row_scans(bind, rows)
        elif kinds is not None and not (self.deterministic and any_order(op, kinds)):
            self.flush()
            self.parallel(bind, op, later, kinds)
        elif worth(op.body):
            self.flush()
            self.repeat(bind, op, later)
        else:
            self.one_thread(bind, later)

    # --------------------------------------------------------------------------------------------- products

    def added_to(self, binds: Sequence[Bind], k: int, live: Sequence[frozenset[Var]]) -> Bind | None:
        """A product that a later binding adds to an array which nobody reads from then on, as the adjoint of weights
        over time: it is added where that lies. That binding."""
        bind = binds[k]
        if type(bind.op) is not Prim or bind.op.name != "product" or self.uses.get(bind.vars[0]) != 1:
            return None
        j = next((j for j in range(k + 1, len(binds)) if bind.vars[0] in reads(binds[j])), None)
        total_ = sum_of(binds[j]) if j is not None else None
        if total_ is None:
            return None
        old = next(x for x in total_ if x is not bind.vars[0])
        between = [v for b in binds[k + 1 : j] for v in reads(b)]
        made = {v for b in binds[k:j] for v in b.vars}
        here, result = self.spot.get(old), binds[j].vars[0]
        if here is None or old in made or old in between or old in bind.op.args or not here.whole:
            return None
        if not self.free(old, live[j].union(between) - made) or self.wanted.get(result, here.at) != here.at:
            return None
        self.flush()
        places = [self.matrix(factor, bind.span) for factor in bind.op.args[:2]]
        self.products(bind, bind.op, places, here.at, 1, (0, 0, 0), add=True)
        self.spot[result] = here
        return binds[j]

    def product(self, bind: Bind, op: Prim) -> None:
        """A matrix product: a library's, or the tiled kernel's."""
        places = [self.matrix(factor, bind.span) for factor in op.args[:2]]
        self.products(bind, op, places, self.room(bind.vars[0]), 1, (0, 0, 0))

    def matrix(self, factor: Atom, span: Span | None) -> At:
        """An array in one place, copied there if need be."""
        place = self.place(factor)
        if place is None:
            name = self.names.fresh("factor")
            t = type_of(factor)
            self.memory[name] = Memory(name, ELEM[t.elem], tuple(map(self.largest, self.sizes(t.dims, span))))
            place = At(name)
            self.copy_value(factor, place)
        return place

    def stack(self, bind: Bind) -> bool:
        """Loops that stack products, as one step: each factor is a matrix of a stack, or the same for all."""
        found = stack_of_products(bind)
        if found is None or any(self.size(loop.count) is None for loop in found[0]):
            return False
        loops, last = found
        indices = [loop.index for loop in loops]
        views = {b.vars[0]: b.op for loop in loops for b in loop.body.binds[:-1]}
        stacks: list[Atom] = []
        apart: list[Size] = []
        for factor in last.op.args[:2]:
            subs: list[Atom] = []
            base = factor
            while base in views:
                subs = [*views[base].args[1:], *subs]
                base = views[base].args[0]
            if subs not in ([], indices):
                return False
            stacks.append(base)
            apart.append(total(self.sizes(type_of(factor).dims, bind.span)) if subs else 0)
        counts = [simple("max", self.size(loop.count), 0) for loop in loops]
        m, n, _ = self.sizes(last.op.args[2:5], bind.span)
        self.flush()
        places = [self.matrix(x, bind.span) for x in stacks]
        self.products(last, last.op, places, self.room(bind.vars[0]), total(counts), (*apart, simple("*", m, n)))
        return True

    def products(
        self,
        bind: Bind,
        op: Prim,
        places: Sequence[At],
        c: At,
        many: Size,
        apart: tuple[Size, Size, Size],
        add: bool = False,
    ) -> None:
        """A step that makes so many products of matrices, so far apart; ``add``: adds them to what is there."""
        x, y, *counts, s, t = op.args
        a, b = places
        m, n, k = self.sizes(counts, bind.span)
        lda, ldb = (self.sizes(type_of(factor).dims[-1:], bind.span)[0] for factor in (x, y))
        if self.tiled is None:
            self.tiled = self.kernel_names.fresh(f"{self.name}_product")
            real = "double" if self.dtype == "f64" else "float"
            text = PRODUCT.replace("NAME", self.tiled).replace("REAL", real).replace("MOST", str(MOST))
            self.texts.append(text)
            self.kernels.append(self.tiled)
            part, done = self.names.fresh("part"), self.names.fresh("done")
            self.memory[part] = Memory(part, "real", (MOST * TILE * TILE,))
            self.memory[done] = Memory(done, "bool", (MOST,))
            self.parts = At(part), At(done)
        tiles = simple("*", many, simple("*", ceiling(m, TILE), ceiling(n, TILE)))
        turned = int(s.value), int(t.value)
        args = (a, lda, turned[0], b, ldb, turned[1], c, n, m, n, k, int(add), many, *apart, *self.parts)
        form = bind.span.text if bind.span else ""
        launch = Launch(self.tiled, simple("max", MOST, simple("min", tiles, WAVES)), FOLDING, args, True, form)
        step = Gemm(m, n, k, a, lda, bool(s.value), b, ldb, bool(t.value), c, n, add, launch, many, apart)
        self.steps.append(step)
        what = "a matrix product" if many == 1 else "a stack of matrix products"
        self.note(bind, f"{what}: the library's, or tiles in shared memory")


def any_order(op: Loop, kinds: Sequence[Reduction]) -> bool:
    """Whether a loop adds to reals at places that only data know: the order of the additions decides the last bits."""
    return any(r.kind == "scatter" and op.accs[r.accs[0]].type.elem == REAL for r in kinds)


def slow(op: Loop, kinds: Sequence[Reduction] | None) -> bool:
    """Whether a loop's iterations, which make elements of their own, are more than one thread had better do."""
    if kinds is None or any(r.kind != "slice" for r in kinds):
        return False
    return isinstance(op.count, Const) and (op.count.value - 1) * load(op.body) > SERIAL


def load(block: Block) -> float:
    """The work of a block, of both arms of a branch; of a loop that runs nobody knows how often that of one round."""
    total_ = 0.0
    for b in block.binds:
        op = b.op
        if isinstance(op, Prim):
            total_ += len(op.args) if op.name == "array" else work(op)
        times = op.count.value if isinstance(op, Loop) and isinstance(op.count, Const) else 1
        total_ += times * sum(map(load, blocks_of(op)))
    return total_


def worth(*blocks: Block) -> bool:
    """Whether there are loops in a block that are worth a launch."""
    for block in blocks:
        for bind in block.binds:
            op = bind.op
            if isinstance(op, Prim) and op.name == "product":
                return True
            if isinstance(op, Loop):
                if long(bind) and (reductions(op) is not None or scan_of(op) is not None):
                    return True
            if any(worth(b) for b in blocks_of(op)):
                return True
    return False
