"""Pieces of a program as kernels: each is printed, launched, and given the memory that it reads and makes.

``emit`` does it for all of them. What one thread does (``one_thread``) is collected until something else needs it, and
is one kernel then (``flush``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hyad.core import (
    INT,
    LEAF,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Data,
    Loop,
    Make,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    binders_of,
    binds_of,
    free_vars,
    reads,
    type_atoms,
)
from hyad.errors import Span
from hyad.passes.spread import Reduction, changed, reductions, sequential
from hyad.program.journal import fires

from .ahead import AHEAD, ROUNDS
from .collectives import ELEM, HELD
from .comments import commented
from .data import item_type
from .kernels import KernelPrinter, KernelText, Piece, Scanned
from .launches import (
    FOLDING,
    WAVES,
    At,
    Choose,
    Clear,
    Copy,
    Gemm,
    Launch,
    Memory,
    Size,
    Step,
    Swap,
    ceiling,
    total,
    walk,
)
from .lower import plan, type_of
from .memory import Spot, simple
from .persistent import Persistent
from .staging import SIZES, room_of_rows
from .thread import WARP

COPIED = 512  # elements that are not worth a launch, to be copied
ROOM = 1 << 27  # elements of workspace that the threads of one launch have, all together


class Pieces(Persistent):
    """Prints and launches kernels."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.few: Size = 0  # the places of a nest that has a team for each since they are few, while it is printed
        self.long: set[Atom] = set()  # how long rows are that are known to be long
        self.makes: dict[str, set[str]] = {}  # the arrays that a kernel writes to, by its name

    def parallel(self, bind: Bind, op: Loop, later: frozenset[Var], kinds: Sequence[Reduction]) -> None:
        """A kernel for a parallel loop and its nest (``parallel.py``)."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------- kernels

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
        copied: Sequence[Var] = (),
    ) -> Launch:
        """Print a kernel that does ``binds`` and launch it: ``results`` are made at their ``places``; one without is
        what ``own`` says, an array changed in place."""
        own = own or {}
        order, needed = self.needed(Block(tuple(binds), tuple(results)), {v for _, vs in totals for v in vs})
        made = {v for b in order for v in b.vars}
        params = [v for v in needed if v not in made]
        dims = tuple(
            v for v in params if v in self.host and v not in self.program.params and self.natural(self.host[v])
        )
        params = [v for v in params if v not in dims]
        params += scan.parts if scan is not None else ()
        if parts is not None:
            params.append(parts[0])
        index = {v: k for k, v in enumerate(params)}
        program = Program(
            self.name, tuple(params), dims, Block((*order, *binds), tuple(results)), (), None, span or binds_span(binds)
        )
        device = any(isinstance(b.op, Check) for x in (*order, *binds) for b in binds_of(x))
        piece = Piece(
            program,
            own={k: index[own[r]] for k, r in enumerate(results) if places[k] is None},
            grid=tuple(b.op.index for b in grid),
            pointed=frozenset(v for v in params if v in self.spot and not isinstance(v.type, Arr)),
            folds=list(folds),
            totals=list(totals),
            atomic=frozenset(atomic),
            copied=tuple(copied),
            names=tuple(at.array if at is not None else "" for at in places),
            scan=scan,
            rows=frozenset(b.op.index for b in rows),
            long=frozenset(b.op.index for b in rows if b.op.count in self.long),
            roomy=self.few != 0,
            sized=not self.indices,
        )
        name = self.kernel_names.fresh(
            f"{self.name}_{hint or getattr(results[0] if results else None, 'name', 'checks')}"
        )
        printer = KernelPrinter(piece, name, self.dtype, self.unit, self.comments)
        device |= printer.arena
        if device and self.status is None:
            self.fallible, self.status = True, self.names.fresh("status")
        piece.fallible = self.fallible and (device or self.device_checks())
        text = printer.print()
        self.known(name, text, binds, bool(rows))
        if parts is not None:
            self.many[name] = parts[1]
        ahead = "hyad_ahead(" in text.text
        fired = {
            "staging": text.staged,
            "striding": printer.strided and "work" in text.needs,
            "directions": printer.directions,
            "ahead": ahead,
        }
        for what in filter(fired.get, fired):
            fires(what, program.span)
        if text.staged and self.notes:
            form, note = self.notes[-1]
            self.notes[-1] = form, f"{note}; rows of {' and '.join(text.staged)} through shared memory"
        if printer.directions and self.notes:
            form, note = self.notes[-1]
            self.notes[-1] = form, f"{note}, with a warp for its directions"
        if printer.directions:
            self.warps.add(name)
        smaller = text.block < threads
        threads = WARP if printer.directions else min(threads, text.block)
        if printer.turned:
            fires("tiles", program.span)
            self.wide.add(name)
            *outer, n, m = (simple("max", self.size(b.op.count) or 0, 0) for b in grid)
            tiles = total([*outer, ceiling(n, WARP), ceiling(m, WARP)])
            blocks, threads = simple("min", tiles, blocks), FOLDING
        many = total([simple("max", self.size(b.op.count) or 0, 0) for b in grid])
        if smaller and free and not rows:  # as many threads, where these are few
            blocks = simple("max", blocks, simple("min", ceiling(many, threads), WAVES))
        if ahead and free and not (rows or copied):  # one round for each thread, rather than a last one that few have
            each = AHEAD * (ROUNDS if printer.carries else 1)
            blocks = simple("max", blocks, ceiling(many, each * threads))
        args: list = []
        for v in params:
            if parts is not None and v is parts[0]:
                args.append(parts[1])
            elif v in self.host:
                args.append(self.host[v])
            elif v in self.scalars:
                args.append(self.scalars[v])
            else:
                args.append(self.spot[v].at)
        args += [self.host[d] for d in dims]
        args += [at for at in places if at is not None]
        if "work" in text.needs:
            free = False
            blocks, work = self.workspace(text, blocks, threads, team, bool(rows))
            args += work
        if rows:
            args.append(team)
        if "stack" in text.needs:
            self.stack_bytes = self.stack_bytes or self.names.fresh("stack")
            args.append(self.stack_bytes)
        if "status" in text.needs:
            args.append(At(self.status))
        args = [a for a, keep in zip(args, text.kept) if keep]
        self.support.update(dict.fromkeys(text.support))
        where = commented(program.span.text, 96) if program.span is not None else ""
        self.texts.append((f"/* {where} */\n" if where else "") + text.text)
        self.kernels.append(name)
        self.makes[name] = {at.array for at in places if at is not None} | {self.spot[v].array for v in own.values()}
        shared = self.shared(text, threads, len(folds))
        launch = Launch(name, blocks, threads, tuple(args), free, program.span.text if program.span else "", shared)
        self.steps.append(launch)
        if device:
            self.checked = True
        return launch

    def shared(self, text: KernelText, threads: int, folds: int) -> Size:
        """The bytes of shared memory for the rows of a block: the first ones that there is room for."""
        ctype = "double" if self.dtype == "f64" else "float"
        left: Size = room_of_rows(ctype, threads, folds)
        taken: Size = 0
        for dims in text.sized:
            width = total(self.sizes(dims, None))
            apart = simple("-", simple("+", width, 1), simple("%", width, 2))
            here = simple("*", apart, simple("<=", apart, left))
            left, taken = simple("-", left, here), simple("+", taken, here)
        return simple("*", taken, threads * SIZES[ctype])

    def needed(self, body: Block, folded_in: set[Var]) -> tuple[list[Bind], dict[Var, None]]:
        """The bindings that were put off and are done in the kernel of ``body``, and all variables that it reads."""
        order: list[Bind] = []
        found: dict[Var, None] = {}

        def need(v: Var) -> None:
            if v in found:
                return
            if v in self.lazy and v not in self.host and v not in folded_in and v not in self.spot:
                for a in reads(self.lazy[v]):
                    need(a)
                order.append(self.lazy[v])
            found[v] = None
            for d in type_atoms(v.type):
                if isinstance(d, Var):
                    need(d)

        for v in free_vars(body):
            need(v)
        return order, found

    def workspace(self, text: KernelText, blocks: Size, threads: int, team: Size, rows: bool) -> tuple[Size, list]:
        """How many blocks a kernel that works in memory of its own has, and the arguments that say where that is."""
        room = self.terms(text.room, {})
        if text.heap:
            self.heap = self.heap or self.names.fresh("heap")
            if self.dtype == "f32":  # what takes eight bytes comes next
                room = simple("*", simple("//", simple("+", room, 1), 2), 2)
            room = simple("+", room, self.heap)
        pieces = self.largest(simple("//", threads, team))  # of a block: one for each team
        most_room = self.largest(room)  # in any iteration of the host's loops: the memory is the same for all
        per_block = simple("*", most_room, pieces)
        most = simple("max", simple("//", ROOM, simple("max", per_block, 1)), 1)
        beyond: Size = 1
        if rows:  # in shared memory, where it fits
            beyond = simple("<", HELD, per_block)
            most = simple("max", most, simple("*", simple("==", beyond, 0), WAVES))
        blocks = simple("min", simple("min", blocks, WAVES), most) if blocks != 1 else 1
        work = self.names.fresh("work")
        length = total((beyond, most_room, pieces, self.largest(simple("max", blocks, 1))))
        self.memory[work] = Memory(work, "real", (length,))
        return blocks, [At(work), room]

    def device_checks(self) -> bool:
        """Whether an earlier kernel may have failed; in the body of a loop a later one as well."""
        return self.checked or bool(self.indices)

    def liveness(self, block: Block, after: frozenset[Var]) -> list[frozenset[Var]]:
        """What is read after each binding."""
        out: list[frozenset[Var]] = []
        current = set(after)
        for bind in reversed(block.binds):
            out.append(frozenset(current))
            current.difference_update(bind.vars)
            current.update(reads(bind))
        return out[::-1]

    # ------------------------------------------------------------------------------------------- one thread

    def one_thread(self, bind: Bind, later: frozenset[Var]) -> None:
        """Leave a binding to the kernel of one thread that is being collected."""
        self.group.append(bind)
        self.group_live = later

    def private(self, *blocks: Block) -> bool:
        """Whether a thread that runs some blocks needs memory of its own, or a stack: for calls, data, and arrays of
        which the host does not know the size."""
        for bind in (bind for block in blocks for bind in all_binds(block)):
            op = bind.op
            if isinstance(op, Apply) and self.unit.functions[op.function].arena:
                return True
            if isinstance(op, Make) and op.args or remembers(bind):
                return True
            if any(isinstance(d, Var) and self.size(d) is None for v in bind.vars for d in type_atoms(v.type)):
                return any(plan(self.alone(block), self.unit.pairs).unsized for block in blocks)
        return False

    def alone(self, block: Block) -> Program:
        """A block as a program: what it reads, sizes too, are parameters, and dims where they are not negative."""
        made = {v for b in all_binds(block) for v in (*b.vars, *binders_of(b.op))}
        read = dict(free_vars(block))
        for v in (*read, *made):
            read.update((d, None) for d in type_atoms(v.type) if isinstance(d, Var) and d not in made)
        dims = tuple(v for v in read if v in self.host and self.natural(self.host[v]))
        return Program(self.name, tuple(v for v in read if v not in dims), dims, block, (), LEAF)

    def stuck(self, bind: Bind) -> bool:
        """Whether a binding reads what the open group makes and cannot leave its thread."""
        made = self.pending()
        for v in reads(bind):
            t = v.type
            if v in made and (isinstance(item_type(v), Data) or any(self.size(d) is None for d in type_atoms(t))):
                return True
        return False

    def pending(self) -> set[Var]:
        """What the open group of one thread's work will have made."""
        return {v for b in self.group for v in b.vars}

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
                if b in self.bound:
                    why = "it reads what that has in its own memory"
                self.note(b, f"one thread: {sequential(b.op) if kinds is None and b not in self.bound else why}")
        roots = {}
        for b in binds:
            for k, v in enumerate(b.vars):
                if isinstance(v.type, Arr):
                    source = changed(b, k)
                    roots[v] = roots.get(source, source) if source is not None else None
        latest = {}  # of each array, the last version
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
                if root not in others and (wanted == self.spot[root].at or wanted is None and not shared):
                    own[v] = root  # it is free
                    self.spot[v] = self.spot[root]
                    continue
            first = self.first_change(binds, root, v)
            if self.long_array(root) and isinstance(first.op, Prim):  # a loop takes as long as the copy does
                binds, own[v] = self.copied_first(binds, root, v, first)
        places = [None if v in own else self.room(v) for v in outs]
        self.emit(binds, outs, places, own)

    def long_array(self, array: Var) -> bool:
        """Whether it takes one thread longer to copy an array than it takes to launch a copy."""
        dims = array.type.dims  # type: ignore[union-attr]
        if any(self.size(d) is None for d in dims):
            return False
        return not all(type(d) is Const for d in dims) or prod(d.value for d in dims) > COPIED  # type: ignore[union-attr]

    def first_change(self, binds: Sequence[Bind], root: Var, last: Var) -> Bind:
        """Of bindings that make ``last`` of ``root``, one of what the other has made, the first."""
        makers = {v: (b, k) for b in binds for k, v in enumerate(b.vars)}
        first, k = makers[last]
        while (source := changed(first, k)) is not root:
            first, k = makers[source]  # type: ignore[index]
        return first

    def copied_first(self, binds: Sequence[Bind], root: Var, last: Var, first: Bind) -> tuple[list[Bind], Var]:
        """Bindings of which the ``first`` changes an array that has to stay as it is, and others what that has become,
        until it is ``last``; with a copy of it that is made before, and changed in place. The copy."""
        at = self.room(last)
        self.copy_value(root, at)
        start = Var(root.name, root.type, root.span)
        self.spot[start] = Spot(at)
        op = replace(first.op, args=(start, *first.op.args[1:]))  # type: ignore[union-attr, type-var]
        return [Bind(b.vars, op, b.span, b.soft) if b is first else b for b in binds], start

    def scalars_to(self, todo: Sequence[tuple[Atom, At]]) -> None:
        """Scalars that are computed where they are used, put into memory by one thread."""
        self.flush()
        self.emit((), [value for value, _ in todo], [at for _, at in todo])

    def scalars_early(self, todo: Sequence[tuple[Atom, At]]) -> None:
        """``scalars_to``, not behind all steps but beside the one that makes the last of what they are computed from:
        small launches side by side are one."""
        self.scalars_to(todo)
        *before, launch = self.steps
        read = {a.array for a in launch.args if isinstance(a, At)}
        place = max((k + 1 for k, step in enumerate(before) if self.changed_by(step) & read), default=0)
        last = before[place - 1] if place else None
        if isinstance(last, Choose):  # beside that of either course
            both = replace(last, then=(*last.then, launch), orelse=(*last.orelse, launch))
            self.steps[place - 1 :] = [both, *before[place:]]
        else:
            self.steps[place:] = [launch, *before[place:]]

    def changed_by(self, step: Step) -> set[str]:
        """The arrays that a step writes to."""
        found: set[str] = set()
        for s in walk([step]):
            if isinstance(s, Launch):
                found |= self.makes.get(s.kernel, set())
            elif isinstance(s, (Clear, Copy)):
                found.add(s.to.array)
            elif isinstance(s, Swap):
                found |= {s.a, s.b}
            elif isinstance(s, Gemm):
                found.add(s.c.array)
        return found

    def in_memory(self, atom: Atom) -> At:
        """A scalar in device memory."""
        if isinstance(atom, Var) and atom in self.spot:
            return self.spot[atom].at
        name = self.names.fresh(atom.name if isinstance(atom, Var) else "cond")
        self.memory[name] = Memory(name, ELEM[type_of(atom)], ())
        self.scalars_to([(atom, At(name))])
        return At(name)

    # ----------------------------------------------------------------------------------------------- copies

    def take_over(self, var: Var, init: Atom, later: frozenset[Var], body: Block) -> At:
        """The memory of an array that the loop of ``body`` is to change: its own where it is not read again, not by
        that loop either, some of whose threads would find what others have changed; else a copy."""
        wanted, later = self.wanted.get(var), later.union(free_vars(body))
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


# ------------------------------------------------------------------------------------------------ helpers


def remembers(bind: Bind) -> bool:
    """Whether a binding is a ``while`` that stacks what its iterations give."""
    return isinstance(bind.op, While) and len(bind.vars) > len(bind.op.accs) + 1


def binds_span(binds: Sequence[Bind]) -> Span | None:
    return next((b.span for b in binds if b.span is not None), None)
