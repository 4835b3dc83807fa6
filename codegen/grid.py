"""A typed program as one call on a GPU: cut into kernels, and into the steps of a host around them.

``print_grid(program)`` gives a ``CudaProgram`` (``launches.py``). The bindings of the program's body are gone through
in their order:

* a parallel loop (``hyad/spread.py``) is a kernel of its own, its nest one index space; what it folds goes through
  parts, one for each block, that a second kernel folds;
* a scan (``hyad/scans.py``) is two kernels: what the iterations of each block do to its state; then all iterations,
  each block going on from what those before it do. Of scans side by side, one for each row, each is one block's;
* a loop that is taken in its order, but has parallel loops in it, is a ``Repeat`` of the host; so are a branch and a
  ``while`` with such loops a ``Choose`` and a ``While``;
* everything else, one after the other, is a kernel of one thread; but cheap scalars and rows of arrays are computed
  where they are used, by each thread.

Integers that sizes are made of are the host's. Each array has memory of its own, but for what is changed in place: an
accumulator whose start is not read again, and the states of a ``Repeat``, of which two change places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hyad.core import (
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
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    free_vars,
    type_atoms,
)
from hyad.dead import dead_code
from hyad.errors import CompileError, Span
from hyad.gather import long, spread, stack_of_products
from hyad.optimise import uses
from hyad.primitives import PRIMITIVES
from hyad.scans import Scan, row_scan, scan_of
from hyad.spread import Reduction, changed, nest, reads, reductions, sequential
from hyad.teams import makes_rows, team_loops, written_out

from .c import FUNCTION_RESERVED, RESERVED
from .collectives import ELEM, HELD, MOST, PRODUCT, TILE, identities
from .comments import Comments, commented
from .cuda import CPP, refuse
from .kernels import KernelPrinter, Piece, Scanned
from .launches import (
    BLOCK,
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
    Repeat,
    Require,
    Scalar,
    Size,
    Step,
    Swap,
    ceiling,
    names_of,
    total,
    value,
)
from .launches import While as WhileStep
from .lower import Extreme, Names, Quotient, is_array, type_of

HEAVY = 60.0  # the work, in additions, from which on a scalar is computed once, by a thread of its own
FEW = 64  # iterations that are not worth a launch
PARTS = 1024  # blocks of a kernel that folds
FOLDING = 256  # threads of such a block
WARP = 32
LONG = 1024  # elements of a row from which on a block has it, not a warp
ROOM = 1 << 27  # elements of workspace that the threads of one launch have, all together
INTEGER = {"+": "+", "-": "-", "*": "*", "min": "min", "max": "max"}
COMPARED = {"=": "==", "!=": "!=", "<": "<", "<=": "<="}


def print_grid(
    program: Program, *, dtype: str = "f64", name: str | None = None, deterministic: bool = False
) -> CudaProgram:
    """A typed program as CUDA: one call with its arguments as they are, in parallel.

    ``dtype`` is "f64" or "f32"; ``name`` replaces the model's. With ``deterministic`` results are the same to the last
    bit from call to call: sums into arrays are not made by atomic additions.

    Raises CompileError for data, for recursion, and where the size of an array is not known before the call.
    """
    return Cutter(program, dtype, name, deterministic).whole()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a value lies in device memory: ``size`` elements from ``at``."""

    at: At
    whole: bool = True  # all of the array

    @property
    def array(self) -> str:
        return self.at.array


class Cutter:
    """Goes through one program. ``steps`` are those of the block that is open."""

    def __init__(self, program: Program, dtype: str, name: str | None, deterministic: bool) -> None:
        refuse(program)
        self.program = program = spread(dead_code(program), deterministic)
        self.dtype, self.deterministic = dtype, deterministic
        self.name = Names(FUNCTION_RESERVED | CPP).fresh(name or program.name or "model")
        self.names = Names(RESERVED | CPP)
        self.names.taken.add(self.name)
        self.kernel_names = Names(RESERVED | CPP)
        self.comments = Comments(program)
        self.memory: dict[str, Memory] = {}
        self.host: dict[Var, Size] = {}  # integers and truth values that the host knows
        self.scalars: dict[Var, Scalar] = {}  # parameters given by value
        self.spot: dict[Var, Spot] = {}  # what lies in device memory
        self.lazy: dict[Var, Bind] = {}  # what is computed where it is used
        self.weight: dict[Var, float] = {}
        self.wanted: dict[Var, At] = {}  # where a value is to be made
        self.steps: list[Step] = []
        self.group: list[Bind] = []  # what one thread is to do, not printed yet
        self.group_live: frozenset[Var] = frozenset()
        self.checks: list = []
        self.notes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.support: dict[str, None] = {}
        self.kernels: list[str] = []
        self.status: str | None = None
        self.tiled: str | None = None  # the kernel of matrix products
        self.parts: tuple[At, ...] = ()  # its memory
        self.indices: dict[str, Size] = {}  # of the host's loops that are open: their counts
        self.uses = uses(program.body)

    # -------------------------------------------------------------------------------------- the whole

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
        self.fallible = any(isinstance(b.op, Check) for b in all_binds(program.body))
        self.status = self.names.fresh("status") if self.fallible else None
        self.integers(program.body)
        results = self.results()
        self.block(program.body, frozenset(r for r in program.body.results if isinstance(r, Var)))
        self.finish(results)
        if self.status is not None:
            self.memory[self.status] = Memory(self.status, "word", (2,), "own")
        return CudaProgram(
            self.name,
            tuple(given),
            tuple(self.memory[name] for name in results),
            tuple(dims),
            tuple(self.memory.values()),
            tuple(self.steps) if not self.parts else (Clear(self.parts[1], MOST), *self.steps),
            tuple(self.kernels),
            self.source(),
            self.status,
            tuple(self.checks),
            self.dtype,
            self.deterministic,
            tuple(self.notes),
        )

    def source(self) -> str:
        import re

        from .cuda import CONSTANTS, HEAD

        text = "\n".join([*self.support, *self.texts])
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
            self.scalars_to(loose)

    # --------------------------------------------------------------------------------------- integers

    def integers(self, block: Block) -> None:
        """The integers, and comparisons of them, that the host can compute; at the block's own level."""
        for bind in block.binds:
            if isinstance(bind.op, Prim) and len(bind.vars) == 1 and bind.vars[0].type in (INT, BOOL):
                size = self.computed(bind.op)
                if size is not None:
                    self.host[bind.vars[0]] = size

    def computed(self, op: Prim) -> Size | None:
        args = [self.size(a) for a in op.args]
        if None in args or not args:
            return None
        if any(type_of(a) not in (INT, BOOL) for a in op.args):
            return None
        if op.name == "neg":
            return simple("-", 0, args[0])
        if op.name == "not":
            return simple("==", args[0], 0)
        if len(args) != 2:
            return None
        a, b = args
        if op.name in INTEGER:
            return simple(INTEGER[op.name], a, b)
        if op.name in ("//", "%"):
            return self.quotient(op.name, a, b)
        if op.name in COMPARED:
            return simple(COMPARED[op.name], a, b)
        if op.name in (">", ">="):
            return simple({">": "<", ">=": "<="}[op.name], b, a)
        if op.name in ("and", "or"):
            return simple(op.name, a, b)
        return None

    def quotient(self, operator: str, a: Size, b: Size) -> Size:
        """``a // b`` or ``a % b``, which are 0 where ``b`` is."""
        if isinstance(b, int) and b > 0 or isinstance(b, tuple) and b[0] == "max" and b[2] == 1:
            return simple(operator, a, b)
        nonzero = simple("max", b, 1) if self.natural(b) else simple("+", b, simple("==", b, 0))
        made = simple(operator, a, nonzero)
        return made if operator == "%" else simple("*", made, simple("!=", b, 0))

    def size(self, a: Atom) -> Size | None:
        if isinstance(a, Const):
            return int(a.value) if type_of(a) in (INT, BOOL) else None
        return self.host.get(a)

    def natural(self, size: Size) -> bool:
        """Whether a size is certainly not negative."""
        if isinstance(size, int):
            return size >= 0
        if isinstance(size, str):
            return size in self.indices or any(self.host.get(d) == size for d in self.program.dims)
        operator, a, b = size
        if operator == "max":
            return self.natural(a) or self.natural(b)
        return operator != "-" and self.natural(a) and self.natural(b)

    def sizes(self, dims: Iterable[Atom], span: Span | None) -> tuple[Size, ...]:
        out = []
        for d in dims:
            size = self.size(d)
            if size is None:
                raise CompileError(
                    "the size of this array is not known before the call",
                    span,
                    'make it a number, a dim of an argument, or an Int argument, or use target="c"',
                )
            out.append(size)
        return tuple(out)

    def terms(self, terms: dict, bound: dict) -> Size:
        """A size of ``lower.Sizes`` as the host's."""
        out: Size = 0
        for symbols, c in terms.items():
            factor: Size = c
            for s in symbols:
                if isinstance(s, Quotient):
                    x: Size = ("//", self.terms(dict(s.terms), bound), s.by)
                elif isinstance(s, Extreme):
                    x = (s.name, self.terms(dict(s.a), bound), self.terms(dict(s.b), bound))
                else:
                    x = self.host[bound.get(s, s)]
                    x = ("max", x, 0)
                factor = simple("*", factor, x)
            out = simple("+", out, factor)
        return out

    # ----------------------------------------------------------------------------------------- blocks

    def block(self, block: Block, after: frozenset[Var]) -> None:
        """The bindings of a block, ``after`` being what is read when it is done."""
        live = self.liveness(block, after)
        for bind, later in zip(block.binds, live):
            self.binding(bind, later)

    def liveness(self, block: Block, after: frozenset[Var]) -> list[frozenset[Var]]:
        """What is read after each binding."""
        out: list[frozenset[Var]] = []
        current = set(after)
        for bind in reversed(block.binds):
            out.append(frozenset(current))
            current.difference_update(bind.vars)
            current.update(reads(bind))
        return out[::-1]

    def binding(self, bind: Bind, later: frozenset[Var]) -> None:
        op = bind.op
        if all(v in self.host for v in bind.vars) and bind.vars:
            return
        if isinstance(op, Check):
            self.check(bind, op, later)
        elif isinstance(op, Prim):
            self.prim(bind, op, later)
        elif isinstance(op, Loop):
            self.loop(bind, op, later)
        elif isinstance(op, If) and self.worth(op.then, op.orelse):
            self.branch(bind, op, later)
        elif isinstance(op, While) and self.worth(op.cond, op.body):
            self.while_(bind, op, later)
        else:
            self.one_thread(bind, later)

    def prim(self, bind: Bind, op: Prim, later: frozenset[Var]) -> None:
        var = bind.vars[0]
        if not isinstance(var.type, Arr) or op.name == "get":
            weight = PRIMITIVES[op.name].cost if op.name in PRIMITIVES else 1.0
            weight += sum(self.weight.get(a, 0.0) for a in op.args if isinstance(a, Var))
            heavy = weight > HEAVY and not isinstance(var.type, Arr)
            if heavy or any(a in self.pending() for a in op.args):
                self.one_thread(bind, later)
                return
            self.weight[var] = weight
            self.lazy[var] = bind
        elif op.name == "product":
            self.flush()
            self.product(bind, op)
        elif op.name in ("zeros", "undef"):
            self.flush()
            at = self.room(var)
            if op.name == "zeros":
                self.steps.append(Clear(at, total(self.sizes(var.type.dims, bind.span))))
        else:
            self.one_thread(bind, later)

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
        self, bind: Bind, op: Prim, places: Sequence[At], c: At, many: Size, apart: tuple[Size, Size, Size]
    ) -> None:
        """A step that makes so many products of matrices, so far apart."""
        x, y, *counts, s, t = op.args
        a, b = places
        m, n, k = self.sizes(counts, bind.span)
        lda, ldb = (self.sizes(type_of(factor).dims[1:], bind.span)[0] for factor in (x, y))
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
        args = (a, lda, turned[0], b, ldb, turned[1], c, n, m, n, k, 0, many, *apart, *self.parts)
        form = bind.span.text if bind.span else ""
        launch = Launch(self.tiled, simple("max", MOST, simple("min", tiles, WAVES)), FOLDING, args, True, form)
        step = Gemm(m, n, k, a, lda, bool(s.value), b, ldb, bool(t.value), c, n, False, launch, many, apart)
        self.steps.append(step)
        what = "a matrix product" if many == 1 else "a stack of matrix products"
        self.note(bind, f"{what}: the library's, or tiles in shared memory")

    def pending(self) -> set[Var]:
        """What the open group of one thread's work will have made."""
        return {v for b in self.group for v in b.vars}

    def check(self, bind: Bind, op: Check, later: frozenset[Var]) -> None:
        a, b = self.size(op.a), self.size(op.b)
        if a is None or b is None:
            self.one_thread(bind, later)
            return
        self.flush()
        self.checks.append((op.kind, op.message, bind.span))
        if op.relation == "in":
            holds: Size = ("and", ("<=", 0, a), ("<", a, b))
        else:
            holds = (op.relation, a, b)
        self.steps.append(Require(holds, len(self.checks)))

    # ----------------------------------------------------------------------------------------- memory

    def room(self, var: Var, dims: Sequence[Size] | None = None) -> At:
        """Memory for a variable: where it is wanted, or its own."""
        at = self.wanted.get(var)
        if at is None:
            t = var.type
            name = self.names.fresh(var.name)
            if dims is None:
                dims = self.sizes(t.dims, var.span) if isinstance(t, Arr) else ()
            self.memory[name] = Memory(
                name, ELEM[t.elem if isinstance(t, Arr) else t], tuple(self.largest(d) for d in dims)
            )
            at = At(name)
        self.spot[var] = Spot(at, at.offset == 0)
        return at

    def largest(self, size: Size) -> Size:
        """A size at the iteration of the host's loops at which it is largest: the first or the last."""
        for index, count in self.indices.items():
            if index in names_of(size):
                last = simple("max", simple("-", count, 1), 0)
                size = ("max", with_name(size, index, 0), with_name(size, index, last))
        return size

    def closure(self, variables: Iterable[Var]) -> set[Var]:
        """Variables and all that computing the lazy ones among them reads."""
        seen: set[Var] = set()
        todo = list(variables)
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self.lazy:
                todo += [a for a in reads(self.lazy[v])]
        return seen

    def free(self, array: Atom, later: frozenset[Var]) -> bool:
        """Whether an array's memory may be overwritten: nothing that is read later lies there."""
        if not isinstance(array, Var) or array not in self.spot:
            return False
        here = self.spot[array].array
        if self.memory[here].kind == "param":
            return False
        return not any(
            v in self.spot and self.spot[v].array == here for v in self.closure(later) if v is not array
        ) and (array not in self.closure(later))

    def take_over(self, var: Var, init: Atom, later: frozenset[Var]) -> At:
        """The memory of an array that is to be changed: its own where it is not read again, else a copy."""
        wanted = self.wanted.get(var)
        if self.free(init, later) and (wanted is None or self.spot[init].at == wanted):
            self.spot[var] = self.spot[init]
            return self.spot[var].at
        at = self.room(var)
        self.copy_value(init, at)
        return at

    def copy_value(self, value: Atom, to: At) -> None:
        """A step that puts an array, a row or a table where it is wanted."""
        length = total(self.sizes(type_of(value).dims, getattr(value, "span", None)))
        here = self.place(value)
        if here is not None:
            if here != to:
                self.steps.append(Copy(to, here, length))
            return
        t = type_of(value)
        source = value if isinstance(value, Var) else Var("table", t)
        index = Var("i", INT)
        dims = list(t.dims)
        # a loop that reads the value, element by element
        made = Var(source.name, t)
        bind = self.copying(value, made, dims, index)
        self.wanted[made] = to
        self.parallel(bind, bind.op, frozenset({made}), [])

    def copying(self, value: Atom, made: Var, dims: list[Atom], index: Var) -> Bind:
        """The loops that copy ``value``."""
        indices = [index, *(Var("j", INT) for _ in dims[1:])]
        element = Var("x", type_of(value).elem)
        inner: Bind | None = None
        for k in range(len(dims) - 1, -1, -1):
            if inner is None:
                body = Block((Bind((element,), Prim("get", (value, *indices))),), (element,))
            else:
                body = Block((inner,), inner.vars)
            var = made if k == 0 else Var("row", Arr(type_of(value).elem, tuple(dims[k:])))
            inner = Bind((var,), Loop(dims[k], indices[k], (), (), body))
        return inner

    def place(self, value: Atom) -> At | None:
        """Where an array lies, if it is all in one place at an offset that the host knows."""
        if not isinstance(value, Var):
            return None
        if value in self.spot:
            return self.spot[value].at
        bind = self.lazy.get(value)
        if bind is None or not isinstance(bind.op, Prim) or bind.op.name != "get":
            return None
        base, *subs = bind.op.args
        outer = self.place(base)
        if outer is None:
            return None
        dims = type_of(base).dims
        offset: Size = 0
        for k, d in enumerate(dims):
            extent = self.size(d)
            sub = self.size(subs[k]) if k < len(subs) else 0
            if extent is None or sub is None:
                return None
            offset = simple("+", simple("*", offset, extent), sub) if k else sub
        return At(outer.array, simple("+", outer.offset, offset))

    # ------------------------------------------------------------------------------------ one thread

    def one_thread(self, bind: Bind, later: frozenset[Var]) -> None:
        """Leave a binding to the kernel of one thread that is being collected."""
        self.group.append(bind)
        self.group_live = later

    def flush(self) -> None:
        """Print what one thread is to do."""
        if not self.group:
            return
        binds, later = self.group, self.group_live
        self.group = []
        inside = {v for b in binds for v in b.vars}
        alive = self.closure(later)
        outs = [v for b in binds for v in b.vars if v in alive]
        own: dict[Var, Var] = {}  # a result that is a free array changed in place
        for b in binds:
            if isinstance(b.op, Loop):
                kinds = reductions(b.op)
                added = any(r.kind == "scatter" for r in kinds or ())
                why = "additions in one order" if added and self.deterministic else "few iterations"
                self.note(b, f"one thread: {sequential(b.op) if kinds is None else why}")
        roots = {}
        for b in binds:
            for k, v in enumerate(b.vars):
                if isinstance(v.type, Arr):
                    source = changed(b, k)
                    roots[v] = roots.get(source, source) if source is not None else None
        latest = {}  # of each free array, the last version
        for v in outs:
            if isinstance(v.type, Arr) and isinstance(roots.get(v), Var) and roots[v] not in inside:
                latest[roots[v]] = v
        for root, v in latest.items():
            others = alive - {v}
            if root in self.spot and self.memory[self.spot[root].array].kind != "param":
                shared = any(
                    w in self.spot and self.spot[w].array == self.spot[root].array for w in others if w is not root
                )
                wanted = self.wanted.get(v)
                if root not in others and not shared and (wanted is None or wanted == self.spot[root].at):
                    own[v] = root
                    self.spot[v] = self.spot[root]
        places = [None if v in own else self.room(v) for v in outs]
        self.emit(binds, outs, places, own)

    def scalars_to(self, todo: Sequence[tuple[Atom, At]]) -> None:
        """Scalars that are computed where they are used, put into memory by one thread."""
        self.flush()
        self.emit((), [value for value, _ in todo], [at for _, at in todo])

    # --------------------------------------------------------------------------------------- kernels

    def emit(
        self,
        binds: Sequence[Bind],
        results: Sequence[Atom],
        places: Sequence[At | None],
        own: dict[Var, Var] | None = None,
        grid: Sequence[Bind] = (),
        folds: Sequence[tuple[Reduction, tuple[Var, ...]]] = (),
        atomic: Sequence[Var] = (),
        totals: Sequence[tuple[Reduction, tuple[Var, ...]]] = (),
        parts: tuple[Var, Size] | None = None,
        scan: Scanned | None = None,
        hint: str | None = None,
        blocks: Size = 1,
        threads: int = 1,
        free: bool = False,
        span: Span | None = None,
        rows: Sequence[Bind] = (),
        team: Size = 1,
    ) -> Launch:
        """Print a kernel that does ``binds`` and launch it: ``results`` are made at their ``places``; one without is
        what ``own`` says, an array changed in place."""
        own = own or {}
        body = Block(tuple(binds), tuple(results))
        order: list[Bind] = []
        needed: dict[Var, None] = {}
        folded_in = {v for _, vs in totals for v in vs}

        def need(v: Var) -> None:
            if v in needed:
                return
            if v in self.lazy and v not in self.host and v not in folded_in and v not in self.spot:
                bind = self.lazy[v]
                for a in reads(bind):
                    need(a)
                order.append(bind)
                needed[v] = None
                for d in type_atoms(v.type):
                    if isinstance(d, Var):
                        need(d)
                return
            needed[v] = None
            for d in type_atoms(v.type):
                if isinstance(d, Var):
                    need(d)

        for v in free_vars(body):
            need(v)
        made = {v for b in order for v in b.vars}
        params = [v for v in needed if v not in made]
        dims = tuple(
            v for v in params if v in self.host and v not in self.program.params and self.natural(self.host[v])
        )
        params = [v for v in params if v not in dims]
        params += scan.parts if scan is not None else ()
        extra = []
        if parts is not None:
            params.append(parts[0])
            extra = [parts[1]]
        index = {v: k for k, v in enumerate(params)}
        program = Program(
            self.name, tuple(params), dims, Block((*order, *binds), tuple(results)), (), None, span or binds_span(binds)
        )
        device = any(isinstance(b.op, Check) for x in (*order, *binds) for b in [x, *inner_binds(x)])
        piece = Piece(
            program,
            {k: index[own[r]] for k, r in enumerate(results) if places[k] is None},
            tuple(b.op.index for b in grid),
            frozenset(v for v in params if v in self.spot and not isinstance(v.type, Arr)),
            list(folds),
            list(totals),
            frozenset(atomic),
            self.fallible and (device or self.device_checks()),
            tuple(at.array if at is not None else "" for at in places),
            scan,
            frozenset(b.op.index for b in rows),
        )
        name = self.kernel_names.fresh(
            f"{self.name}_{hint or getattr(results[0] if results else None, 'name', 'checks')}"
        )
        printer = KernelPrinter(piece, name, self.dtype, self.checks, self.comments)
        text = printer.print()
        args: list = []
        for v in params:
            if parts is not None and v is parts[0]:
                args.append(extra[0])
            elif v in self.host:
                args.append(self.host[v])
            elif v in self.scalars:
                args.append(self.scalars[v])
            else:
                args.append(self.spot[v].at)
        args += [self.host[d] for d in dims]
        args += [at for at in places if at is not None]
        if text.room is not None:
            bound = {}
            room = self.terms(text.room, bound)
            pieces = simple("//", threads, team)  # of a block: one for each team
            per_block = simple("*", room, pieces)
            most = simple("max", simple("//", ROOM, simple("max", per_block, 1)), 1)
            beyond: Size = 1
            if rows:  # in shared memory, where it fits
                beyond = simple("<", HELD, per_block)
                most = simple("max", most, simple("*", simple("==", beyond, 0), WAVES))
            blocks = simple("min", blocks, most)
            free = False
            work = self.names.fresh("work")
            length = total((beyond, room, pieces, simple("max", blocks, 1)))
            self.memory[work] = Memory(work, "real", (length,))
            args += [At(work), room]
        if rows:
            args.append(team)
        if "status" in text.needs:
            args.append(At(self.status))
        args = [a for a, keep in zip(args, text.kept) if keep]
        self.support.update(dict.fromkeys(text.support))
        where = commented(program.span.text, 96) if program.span is not None else ""
        self.texts.append((f"/* {where} */\n" if where else "") + text.text)
        self.kernels.append(name)
        launch = Launch(name, blocks, threads, tuple(args), free, program.span.text if program.span else "")
        self.steps.append(launch)
        if device:
            self.checked = True
        return launch

    checked = False

    def device_checks(self) -> bool:
        """Whether an earlier kernel may have failed; in the body of a loop a later one as well."""
        return self.checked or bool(self.indices)

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, bind: Bind, op: Loop, later: frozenset[Var]) -> None:
        kinds = reductions(op)
        small = isinstance(op.count, Const) and op.count.value <= FEW and not self.worth(op.body)
        scan = scan_of(op) if kinds is None and not self.worth(op.body) else None
        rows = row_scan(bind) if kinds is not None else None
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
        elif kinds is not None and not (self.deterministic and any(r.kind == "scatter" for r in kinds)):
            self.flush()
            self.parallel(bind, op, later, kinds)
        elif self.worth(op.body):
            self.flush()
            self.repeat(bind, op, later)
        else:
            self.one_thread(bind, later)

    def worth(self, *blocks: Block) -> bool:
        """Whether there are loops in a block that are worth a launch."""
        for block in blocks:
            for bind in block.binds:
                op = bind.op
                if isinstance(op, Prim) and op.name == "product":
                    return True
                if isinstance(op, Loop):
                    if long(bind) and (reductions(op) is not None or scan_of(op) is not None):
                        return True
                if any(self.worth(b) for b in blocks_of(op)):
                    return True
        return False

    def parallel(self, bind: Bind, op: Loop, later: frozenset[Var], kinds: Sequence[Reduction]) -> None:
        """A kernel for a parallel loop and its nest."""
        op = written_out(op)
        bind = Bind(bind.vars, op, bind.span)
        levels = nest(bind)
        if self.deterministic and any(r.kind == "slice" and not self.slices(levels, r, *r.accs) for r in kinds):
            levels = [bind]  # each row by one thread: several would add to one element
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
                at = self.take_over(bind.vars[k], op.inits[k], later)
                start = Var(op.accs[k].name, op.accs[k].type, bind.span)  # the memory that is added to
                self.spot[start] = Spot(at)
                inits[k] = start
                own[bind.vars[k]] = start
                if r.kind == "scatter" or len(levels) > 1 and not self.slices(levels, r, k):
                    atomic.append(start)
            else:
                folds.append((r, variables))
                if r.kind != "place":
                    inits[r.accs[0]] = Const(identity(r.kind, variables[0].type), variables[0].type)
        rows, team = self.rows(levels)
        blocks: Size = simple("min", ceiling(work, BLOCK), WAVES)
        threads, free = BLOCK, True
        first = {}
        if rows:
            blocks, threads = simple("min", ceiling(simple("*", work, team), FOLDING), WAVES), FOLDING
        if folds:
            each = 1 if rows else 4
            work = simple("*", work, team)
            blocks, threads, free = simple("min", ceiling(work, FOLDING * each), PARTS), FOLDING, False
            for r, variables in folds:
                for v in variables:
                    first[v] = Var(v.name, v.type, v.span, v.given)
        out_vars = tuple(first.get(v, v) for v in bind.vars)
        folds_here = [(r, tuple(first[v] for v in vs)) for r, vs in folds]
        fresh = Bind(out_vars, replace(op, inits=tuple(inits)), bind.span)
        for v in bind.vars[n:]:
            self.room(v)
        for v in first.values():
            name = self.names.fresh(f"{v.name}_parts")
            self.memory[name] = Memory(name, ELEM[v.type], (PARTS,))
            self.spot[v] = Spot(At(name))
        levels = [fresh, *levels[1:]]
        what = "one thread for each element" if not rows else "a team of threads for each row"
        what += ", folded by blocks" if folds else ""
        self.note(bind, f"parallel: {what}" + (f", {len(levels)} loops as one" if len(levels) > 1 else ""))
        hint = next((v.name for v in bind.vars if v.given), bind.vars[0].name if bind.vars else "checks")
        self.emit(
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
        if folds:
            self.totals(bind, op, folds, first, blocks, hint)

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
                (float(x) for x in identities(r.kind, "real")) if len(r.terms) > 1 else (identity(r.kind, acc.type),)
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
                at = self.take_over(v, op.inits[k], later)
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

    def rows(self, levels: list[Bind]) -> tuple[list[Bind], Size]:
        """The loops of a nest's body that a team of threads shares and are of a count that the host knows; and how many
        threads that is: a power of two up to a warp that suits the row, a block where rows are long, or where so many
        as a block's warps have are more than fit into its shared memory."""
        found = team_loops(levels)
        if any(self.size(b.op.count) is None for b in found):
            found = [b for b in found if self.size(b.op.count) is not None] if not any(map(makes_rows, found)) else []
        count: Size = 0
        for b in found:
            n = self.size(b.op.count)
            count = n if count == 0 else count if count == n else simple("max", count, n)
        if not found:
            return found, 1
        held = sum(isinstance(v.type, Arr) for b in found for v in b.vars) - sum(
            isinstance(type_of(r), Arr) for r in levels[-1].op.body.results
        )
        long = min(LONG, HELD // (FOLDING // WARP) // held) if held else LONG
        return found, simple("+", simple("power", count, WARP), simple("*", simple("<", long, count), FOLDING - WARP))

    def slices(self, levels: Sequence[Bind], r: Reduction, k: int) -> bool:
        """Whether every place of a nest has a part of an array to itself, by subscripts of different loops."""
        taken = {r.at}
        number = k
        for outer, inner in zip(levels, levels[1:]):
            acc = outer.op.accs[number]
            number = next(j for j, z in enumerate(inner.op.inits) if z is acc)
            found = next((x for x in reductions(inner.op) or () if number in x.accs), None)
            if found is None or found.kind != "slice" or found.at in taken:
                return False
            taken.add(found.at)
        return True

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

    def repeat(self, bind: Bind, op: Loop, later: frozenset[Var]) -> None:
        """A loop of the host."""
        count = self.size(op.count)
        if count is None:
            self.one_thread(bind, later)
            return
        self.note(bind, f"repeated by the host: {sequential(op)}; what is inside runs in parallel")
        index = self.names.fresh(op.index.name)
        self.host[op.index] = index
        n = len(op.accs)
        inside = frozenset(free_vars(op.body)) - {op.index, *op.accs}
        self.starts(op.accs, op.inits, later | inside)
        stacks = []
        for v in bind.vars[n:]:
            at = self.room(v)
            size: Size = total(self.sizes(v.type.dims[1:], bind.span))
            stacks.append(At(at.array, simple("+", at.offset, simple("*", index, size))))
        outer, self.steps = self.steps, []
        self.indices[index] = count
        self.integers(op.body)
        early = [k for k in range(n, len(op.body.results)) if op.body.results[k] in op.accs]
        for k in early:
            acc = op.body.results[k]
            self.steps.append(Copy(stacks[k - n], self.spot[acc].at, self.length(acc, bind.span)))
        late = [k for k in range(n, len(op.body.results)) if k not in early]
        for k in late:
            r = op.body.results[k]
            if isinstance(r, Var) and r not in self.wanted and r not in op.body.results[:n]:
                if any(r in b.vars for b in op.body.binds):
                    self.wanted[r] = stacks[k - n]
        self.trace(op.body)
        self.iteration(op.body, op.accs, late, [stacks[k - n] for k in late], later | inside, bind.span)
        del self.indices[index]
        steps, self.steps = tuple(self.steps), outer
        self.steps.append(Repeat(count, index, steps))
        self.ends(op.accs, bind.vars[:n])

    def starts(self, accs: Sequence[Var], inits: Sequence[Atom], later: frozenset[Var]) -> None:
        """Memory for the accumulators of a loop of the host, with their starts."""
        loose = []
        for acc, init in zip(accs, inits):
            shared = sum(i is init for i in inits) > 1
            if isinstance(acc.type, Arr):
                here = self.spot.get(init) if isinstance(init, Var) else None
                if here is not None and not shared and here.whole and self.free(init, later):
                    if self.memory[here.array].kind == "own":
                        self.spot[acc] = here
                        continue
                at = self.room(acc)
                self.copy_value(init, at)
            else:
                at = self.room(acc)
                loose.append((init, at))
        if loose:
            self.scalars_to(loose)

    def ends(self, accs: Sequence[Var], finals: Sequence[Var]) -> None:
        for acc, final in zip(accs, finals):
            self.spot[final] = self.spot[acc]
            wanted = self.wanted.get(final)
            if wanted is not None and wanted != self.spot[acc].at:
                self.steps.append(Copy(wanted, self.spot[acc].at, self.length(acc, None)))
                self.spot[final] = Spot(wanted, wanted.offset == 0)

    def length(self, var: Var, span: Span | None) -> Size:
        return total(self.sizes(var.type.dims, span)) if isinstance(var.type, Arr) else 1

    def iteration(
        self,
        body: Block,
        accs: Sequence[Var],
        late: Sequence[int],
        targets: Sequence[At],
        later: frozenset[Var],
        span: Span | None,
    ) -> None:
        """The body of a loop of the host, then its accumulators' next values, all at once."""
        n = len(accs)
        results = frozenset(r for r in body.results if isinstance(r, Var))
        self.block(body, later | results)
        self.flush()
        loose: list[tuple[Atom, At]] = []
        for k, at in zip(late, targets):
            r = body.results[k]
            if isinstance(r, Var) and r in self.spot and self.spot[r].at == at:
                continue
            if is_array(r) or isinstance(r, Var) and r in self.spot:
                if isinstance(r, Var) and r in self.spot:
                    self.steps.append(Copy(at, self.spot[r].at, self.length(r, span)))
                else:
                    self.copy_value(r, at)
            else:
                loose.append((r, at))
        moves: list[tuple[int, Atom]] = []
        for k in range(n):
            r = body.results[k]
            if isinstance(r, Var) and r in self.spot and self.spot[r].at == self.spot[accs[k]].at:
                continue
            moves.append((k, r))
        mine = {self.spot[a].array for a in accs}
        aside: list[tuple[At, At, Size]] = []
        swaps = []
        taken: set[str] = set()
        stacked = {body.results[k] for k in late}
        for k, r in moves:
            home = self.spot[accs[k]]
            if isinstance(r, Var) and r in self.spot:
                here = self.spot[r]
                same = self.memory[here.array].dims == self.memory[home.array].dims
                own = self.memory[here.array].kind == self.memory[home.array].kind == "own"
                inside = any(r in b.vars for b in body.binds)
                alone = sum(1 for v in results if v in self.spot and self.spot[v].array == here.array) == 1
                if own and same and inside and here.whole and home.whole and alone and r not in stacked:
                    if here.array not in mine and here.array not in taken:
                        taken.add(here.array)
                        swaps.append(Swap(home.array, here.array))
                        continue
                aside.append((home.at, here.at, self.length(r, span)))
            elif is_array(r):
                name = self.names.fresh(f"next_{accs[k].name}")
                self.memory[name] = Memory(name, self.memory[home.array].elem, self.memory[home.array].dims)
                self.copy_value(r, At(name))
                aside.append((home.at, At(name), self.length(accs[k], span)))
            else:
                name = self.names.fresh(f"next_{accs[k].name}")
                self.memory[name] = Memory(name, ELEM[accs[k].type], ())
                loose.append((r, At(name)))
                aside.append((home.at, At(name), 1))
        if loose:
            self.scalars_to(loose)
        todo = list(aside)
        while todo:  # none overwrites what another still reads
            for move in todo:
                if not any(other[1].array == move[0].array for other in todo if other is not move):
                    break
            else:
                move = todo[0]
                name = self.names.fresh("aside")
                old = self.memory[move[1].array]
                self.memory[name] = Memory(name, old.elem, (move[2],))
                self.steps.append(Copy(At(name), move[1], move[2]))
                todo[0] = (move[0], At(name), move[2])
                continue
            todo.remove(move)
            self.steps.append(Copy(*move))
        self.steps += swaps

    # --------------------------------------------------------------------------------------- branches

    def branch(self, bind: Bind, op: If, later: frozenset[Var]) -> None:
        """A branch of the host: its arms have parallel loops."""
        self.flush()
        cond: Size | At | None = self.size(op.cond)
        if cond is None:
            cond = self.in_memory(op.cond)
        self.note(bind, "the host chooses: there are parallel loops in the branches")
        targets = [self.room(v) for v in bind.vars]
        arms = []
        for arm in (op.then, op.orelse):
            outer, self.steps = self.steps, []
            for r, at in zip(arm.results, targets):
                if isinstance(r, Var) and r not in self.wanted and any(r in b.vars for b in arm.binds):
                    self.wanted[r] = at
            self.integers(arm)
            self.trace(arm)
            self.block(arm, later | frozenset(r for r in arm.results if isinstance(r, Var)))
            self.flush()
            loose = []
            for r, at in zip(arm.results, targets):
                if isinstance(r, Var) and r in self.spot:
                    if self.spot[r].at != at:
                        self.steps.append(Copy(at, self.spot[r].at, self.length(r, bind.span)))
                elif is_array(r):
                    self.copy_value(r, at)
                else:
                    loose.append((r, at))
            if loose:
                self.scalars_to(loose)
            arms.append(tuple(self.steps))
            self.steps = outer
        self.steps.append(Choose(cond, *arms))

    def in_memory(self, atom: Atom) -> At:
        """A scalar in device memory."""
        if isinstance(atom, Var) and atom in self.spot:
            return self.spot[atom].at
        name = self.names.fresh(atom.name if isinstance(atom, Var) else "cond")
        self.memory[name] = Memory(name, ELEM[type_of(atom)], ())
        self.scalars_to([(atom, At(name))])
        return At(name)

    def while_(self, bind: Bind, op: While, later: frozenset[Var]) -> None:
        """A ``while`` of the host."""
        n = len(op.accs)
        self.flush()
        self.note(bind, f"repeated by the host: {sequential(op)}; what is inside runs in parallel")
        inside = (frozenset(free_vars(op.cond)) | frozenset(free_vars(op.body))) - frozenset(op.accs)
        self.starts(op.accs, op.inits, later | inside)
        outer, self.steps = self.steps, []
        marker = self.names.fresh("turn")
        self.indices[marker] = 1
        self.integers(op.cond)
        (holds,) = op.cond.results
        live = later | inside | frozenset(op.accs)
        self.block(op.cond, live | (frozenset({holds}) if isinstance(holds, Var) else frozenset()))
        self.flush()
        cond = self.in_memory(holds)
        before, self.steps = tuple(self.steps), []
        self.integers(op.body)
        self.iteration(op.body, op.accs, (), (), later | inside, bind.span)
        steps, self.steps = tuple(self.steps), outer
        del self.indices[marker]
        self.steps.append(WhileStep(before, cond, steps))
        self.ends(op.accs, bind.vars[:n])

    def note(self, bind: Bind, text: str) -> None:
        if bind.span is not None:
            self.notes.append((bind.span.text, text))


# ------------------------------------------------------------------------------------------------ helpers


def simple(operator: str, a: Size, b: Size) -> Size:
    """``(operator, a, b)``, where it is not simply one of them or a number."""
    if isinstance(a, int) and isinstance(b, int):
        return value((operator, a, b), {})
    if operator == "+" and a == 0 or operator == "*" and a == 1:
        return b
    if operator in ("+", "-") and b == 0 or operator in ("*", "//") and b == 1:
        return a
    if operator == "*" and (a == 0 or b == 0):
        return 0
    return (operator, a, b)


def with_name(size: Size, name: str, what: Size) -> Size:
    """A size with something else in a name's place."""
    if isinstance(size, tuple):
        return simple(size[0], with_name(size[1], name, what), with_name(size[2], name, what))
    return what if size == name else size


def inner_binds(bind: Bind) -> Iterable[Bind]:
    for b in blocks_of(bind.op):
        yield from all_binds(b)


def binds_span(binds: Sequence[Bind]) -> Span | None:
    return next((b.span for b in binds if b.span is not None), None)


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
