"""The pattern of a Jacobian, from the program: which inputs each number of the results can depend on.

A typed program runs once on sets of inputs in place of reals: an operation depends on what its operands depend on,
both branches of an ``if`` on a real are taken, and integers are computed, so that ``(get x (get index i))`` reads the
elements that ``index`` says. The pattern holds for all reals, and for those integers and shapes.

The body of a loop runs for all iterations at once. A *frame* is one level of that: its *lanes* are the iterations, of
all enclosing loops together. A number is an array over the lanes of its frame (or one for all); a real is a set of
``Rows``, sparse matrices with a row for each lane and a column for each input: the union of two reals' sets is their
dependency, and no matrix is touched before an array is subscripted or a loop left. An array is a view into a ``Store``.

Accumulators that a loop only adds to (sums, products, adjoints) are ``Mark``s while its body runs, and so are arrays of
which each iteration reads elements that no other one changes, or that it puts back to their places with something
added, as ``(set-at! r i (+ (get r i) x))`` does (``Own``); a loop that reads anything else of one runs iteration by
iteration instead. Recursion that integers end is followed call by call, for all lanes at once, and such a ``while``
iteration by iteration. What cannot be followed (what reals end, data) is taken to depend on all that goes into it: a
pattern may be too large, never too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from ..core import (
    BOOL,
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Data,
    Function,
    If,
    Loop,
    Prim,
    Program,
    Type,
    Var,
    While,
    reads,
)
from ..errors import Span
from ..passes.functions import inline, tail_calls, unused
from ..passes.optimise import optimise
from ..program.dead import dead_code
from ..program.primitives import PRIMITIVES
from ..program.reader import deep

#: A loop that reads its accumulators is followed for so many iterations; beyond, all is taken to depend on all.
ITERATIONS = 2000
#: A recursion is followed for so many calls; beyond, what it gives depends on all of its arguments.
CALLS = 2000
#: So many matrices make a set of inputs before they are added up.
MATRICES = 16


#: What nothing depends on must not be followed.
PREPARE = [dead_code, tail_calls, inline, unused, dead_code]


class Unfollowed(Exception):
    """A size depends on reals, or on a loop or function that is not followed."""


class Endless(Exception):
    """A recursion whose end depends on reals, or that takes too many calls."""


class Sequential(Exception):
    """A loop cannot run for all iterations at once: it reads an accumulator."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What reals depend on: a row for each lane or element, a column for each input."""

    matrix: csr_array


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What an accumulator of a running loop depends on: not known yet."""


Real = frozenset  # of Rows, Marks and Owns
NOTHING: Real = frozenset()


class Frame:
    """``lanes`` iterations; ``up`` says for each which lane of the frame ``outer`` it belongs to."""

    def __init__(self, lanes: int, outer: Frame | None = None, up: np.ndarray | None = None) -> None:
        self.lanes, self.outer, self.up = lanes, outer, up
        self.lifted: dict[Rows, Rows] = {}
        self.ways: dict[Frame, np.ndarray | None] = {self: None}

    def within(self, frame: Frame) -> bool:
        """Whether this is a frame, or one inside it."""
        return self is frame or self.outer is not None and self.outer.within(frame)

    def to(self, frame: Frame) -> np.ndarray | None:
        """The lane of an enclosing frame for each lane; None where they are the same."""
        if frame not in self.ways:
            way = self.outer.to(frame)  # type: ignore[union-attr]
            self.ways[frame] = self.up if way is None else way[self.up]
        return self.ways[frame]


@dataclass(slots=True, eq=False)
class Store:
    """The elements of arrays: ``real``, or ``numbers`` (None where they are not known)."""

    size: int
    real: Real = NOTHING
    numbers: np.ndarray | None = None

    @property
    def marked(self) -> bool:
        return any(type(r) is Mark for r in self.real)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """What was added to a store, at which positions, and in which lane of which frame each."""

    at: np.ndarray
    real: Real
    frame: Frame
    lanes: np.ndarray


@dataclass(slots=True, eq=False)
class Cells:
    """An array: in each lane the ``dims`` elements of ``store`` from ``start``. ``shared``: lanes see the same cells.
    ``writes`` have not been done yet."""

    store: Store
    start: np.ndarray
    dims: tuple[np.ndarray, ...]
    writes: tuple[Write, ...] = ()
    shared: bool = False


@dataclass(slots=True, eq=False)
class State:
    """An array that a running loop changes: what it was before the loop, the frame of the loop's iterations, and which
    positions have been read since, by which iteration each."""

    before: Cells
    child: Frame
    reads: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """What elements of an array that a running loop changes depend on, by what is known yet: no read, if they only go
    back to where they are."""

    mark: Mark
    frame: Frame
    at: np.ndarray
    rows: Rows


Value = Any  # Real | np.ndarray | None | Cells
Column = list[tuple[np.ndarray, int, Frame, Value]]  # what iterations stack: in which lanes, the iteration, what


def pattern(
    program: Program, values: Sequence[Any], wrt: Sequence[int], long: list[Span | None] | None = None
) -> csr_array:
    """Which of the numbers in the parameters at ``wrt`` each number in the results depends on, as truth values.

    ``values`` are the flat arguments; of their reals only the shapes are read. ``long`` is told of loops that have too
    many iterations to be followed one by one. Raises ``Unfollowed``.
    """
    try:
        return deep(lambda: Tracer(optimise(program, PREPARE), values, wrt, [] if long is None else long).run())
    except Sequential:
        raise Unfollowed from None


def integers(value: Value) -> bool:
    """Whether a value is a number or an array of such, known or not; a real never is."""
    return value.store.numbers is not None if isinstance(value, Cells) else not isinstance(value, frozenset)


def spread(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For ``counts[k]`` things of each lane k: their lanes, and their numbers within the lane."""
    lanes = np.repeat(np.arange(len(counts)), counts)
    return lanes, np.arange(len(lanes)) - np.repeat(starts_of(counts), counts)


def starts_of(counts: np.ndarray) -> np.ndarray:
    return (np.cumsum(counts) - counts).astype(np.int64)


def incidence(rows: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """The matrix that adds row k of another to row ``rows[k]``."""
    ones = np.ones(len(rows), bool)
    return csr_array((ones, (rows, np.arange(len(rows)))), shape=shape)


class Tracer:
    """One run of a program. ``env`` has the value of each variable and the frame that it lives in."""

    def __init__(self, program: Program, values: Sequence[Any], wrt: Sequence[int], long: list[Span | None]) -> None:
        self.program, self.long = program, long
        self.root = Frame(1)
        self.env: dict[Var, tuple[Frame, Value]] = {}
        self.doubt = 0  # inside so many branches that may not be taken
        self.calling: dict[Function, int] = {}  # the functions whose calls are being followed, and the doubt there
        self.calls = 0  # since the outermost of these
        self.states: dict[Mark, State] = {}  # what running loops change
        shapes = [np.shape(v) for v in values]
        first = {k: 0 for k in wrt}
        self.inputs = 0
        for k in wrt:
            first[k] = self.inputs
            self.inputs += int(np.prod(shapes[k]))
        for k, (p, v) in enumerate(zip(program.params, values)):
            t = p.type
            if isinstance(t, Arr):
                for d, n in zip(t.dims, shapes[k]):
                    if type(d) is Var:
                        self.env[d] = (self.root, np.asarray(n))
            size = int(np.prod(shapes[k]))
            moving = self.identity(first[k], size) if k in first else NOTHING
            elem = t.elem if isinstance(t, Arr) else t
            if isinstance(elem, Data):
                made: Value = NOTHING
            elif isinstance(t, Arr):
                numbers = None if elem == REAL else np.asarray(v).ravel()
                made = Cells(Store(size, moving, numbers), np.zeros(1, np.int64), tuple(map(np.asarray, shapes[k])))
            else:
                made = moving if elem == REAL else np.asarray(v)
            self.env[p] = (self.root, made)

    def identity(self, first: int, size: int) -> Real:
        columns = np.arange(first, first + size)
        matrix = csr_array((np.ones(size, bool), columns, np.arange(size + 1)), shape=(size, self.inputs))
        return frozenset((Rows(matrix),))

    def run(self) -> csr_array:
        with np.errstate(all="ignore"):
            results = self.block(self.program.body, self.root)
            made = []
            for r, atom in zip(results, self.program.body.results):
                if isinstance(r, Cells):
                    store, *_ = self.packed(r, self.root)
                    made.append(self.matrix(store.real, store.size))
                else:
                    made.append(self.matrix(r if isinstance(r, frozenset) else NOTHING, 1))
        return vstack(made, format="csr") if made else self.empty(0)

    # --------------------------------------------------------------------------------------- reals

    def empty(self, rows: int) -> csr_array:
        return csr_array((rows, self.inputs), dtype=bool)

    def matrix(self, real: Real, rows: int) -> csr_array:
        """A set as one matrix."""
        found = None
        for r in self.settled(real):
            if type(r) is Mark:
                raise Sequential
            found = r.matrix if found is None else found + r.matrix
        return self.empty(rows) if found is None else found

    def settled(self, real: Real) -> Real:
        """The same set, in which all that has been read of what running loops change has been noted as read."""
        if not any(type(r) is Own for r in real):
            return real
        for r in real:
            if type(r) is Own:
                self.note(r.mark, r.frame, r.at, np.arange(len(r.at)))
        return frozenset(r.rows if type(r) is Own else r for r in real)

    def note(self, mark: Mark, frame: Frame, at: np.ndarray, lanes: np.ndarray) -> None:
        """Elements of an array that a running loop changes are read in these lanes."""
        state = self.states[mark]
        if not frame.within(state.child):  # of a loop that has run, in the loop around it
            raise Sequential
        way = frame.to(state.child)
        state.reads.append((at, lanes if way is None else way[lanes]))
        if state.before.store.marked:
            (before,) = state.before.store.real
            self.note(before, frame, at, lanes)

    def picked(self, real: Real, at: np.ndarray, rows: int) -> Real:
        """The rows ``at`` of a store with ``rows`` of them."""
        if not real:
            return NOTHING
        found = self.matrix(real, rows)[at]
        return frozenset((Rows(found),)) if found.nnz else NOTHING

    def added(self, real: Real, to: np.ndarray, rows: int, size: int) -> Real:
        """``size`` rows: the sums of those of ``real`` that go to the same place."""
        if not real:
            return NOTHING
        return frozenset((Rows(incidence(to, (size, rows)) @ self.matrix(real, rows)),))

    def few(self, real: Real, rows: int) -> Real:
        """The same set, of one matrix if it has many."""
        marks = frozenset(r for r in real if type(r) is Mark)
        return real if len(real) < MATRICES else marks | {Rows(self.matrix(real - marks, rows))}

    # ----------------------------------------------------------------------------------- reading

    def read(self, atom: Atom, frame: Frame) -> Value:
        """The value of an atom in the lanes of ``frame``."""
        if type(atom) is Const:
            return NOTHING if atom.type == REAL else np.asarray(atom.value)
        home, value = self.env[atom]  # type: ignore[index]
        way = frame.to(home)
        if way is None or value is None:
            return value
        if isinstance(value, np.ndarray):
            return value if value.ndim == 0 else value[way]
        if isinstance(value, frozenset):
            return frozenset(r if type(r) is Mark else self.lift(r, way, frame) for r in self.settled(value))
        dims = tuple(d if d.ndim == 0 else d[way] for d in value.dims)
        start = value.start if value.start.ndim == 0 else value.start[way]
        self.settle(value)
        return Cells(value.store, start, dims, value.writes, True)

    def lift(self, rows: Rows, way: np.ndarray, frame: Frame) -> Rows:
        if rows not in frame.lifted:
            frame.lifted[rows] = Rows(rows.matrix[way])
        return frame.lifted[rows]

    def whole(self, value: Value, frame: Frame) -> Real:
        """All that a value depends on, in each lane."""
        if isinstance(value, frozenset):
            return value
        if not isinstance(value, Cells) or not (value.store.real or value.writes):
            return NOTHING
        store, _, counts = self.packed(value, frame)
        lanes, _ = spread(counts)
        return self.added(store.real, lanes, store.size, frame.lanes)

    def settle(self, cells: Cells) -> None:
        """Do the writes, unless they are to an accumulator of a running loop."""
        if not cells.writes or cells.store.marked:
            return
        total = self.matrix(cells.store.real, cells.store.size)
        for w in cells.writes:
            for r in self.added(w.real, w.at, len(w.at), cells.store.size):
                total = total + r.matrix
        cells.store, cells.writes = Store(cells.store.size, frozenset((Rows(total),))), ()

    def packed(self, cells: Cells, frame: Frame) -> tuple[Store, np.ndarray, np.ndarray]:
        """The elements of an array alone, lane by lane: their store, where each lane starts, and how many it has."""
        self.settle(cells)
        if cells.writes:
            raise Sequential
        counts = self.count(cells.dims, frame)
        lanes, within = spread(counts)
        at = np.broadcast_to(cells.start, frame.lanes)[lanes] + within
        store = cells.store
        if len(at) != store.size or not np.array_equal(at, np.arange(store.size)):
            numbers = None if store.numbers is None else store.numbers[at]
            store = Store(len(at), self.picked(store.real, at, store.size), numbers)
        return store, starts_of(counts), counts

    def count(self, dims: Sequence[np.ndarray], frame: Frame) -> np.ndarray:
        total = np.ones(frame.lanes, np.int64)
        for d in dims:
            total = total * d
        return total

    def dims(self, t: Arr, frame: Frame) -> tuple[np.ndarray, ...]:
        return tuple(self.size(d, frame) for d in t.dims)

    def size(self, atom: Atom, frame: Frame) -> np.ndarray:
        found = self.read(atom, frame)
        if found is None:
            raise Unfollowed
        return found

    # ---------------------------------------------------------------------------------- operations

    def block(self, block: Block, frame: Frame) -> list[Value]:
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim:
                v = bind.vars[0]
                self.env[v] = (frame, self.prim(op, v.type, frame))  # type: ignore[arg-type]
            elif type(op) is If:
                self.define(bind, frame, self.branch(op, frame))
            elif type(op) is Loop:
                self.define(bind, frame, self.loop(op, bind, frame))
            elif type(op) is While:
                self.define(bind, frame, self.while_(op, bind, frame))
            elif type(op) is Apply:
                self.define(bind, frame, self.call(op, bind, frame))
            elif type(op) is not Check:
                self.define(bind, frame, self.opaque(bind, frame))
        return [self.read(r, frame) for r in block.results]

    def define(self, bind: Bind, frame: Frame, values: Sequence[Value]) -> None:
        for v, x in zip(bind.vars, values):
            self.env[v] = (frame, x)

    def call(self, op: Apply, bind: Bind, frame: Frame) -> list[Value]:
        """What a function gives: its body is followed. A recursive call in a branch that may not be taken might never
        end, and so might one of no lanes."""
        f, around = op.function, self.calling
        if f.body is None or not frame.lanes:
            return self.opaque(bind, frame)
        if not around:
            self.calls = 0
        self.calls += 1
        if self.calls > CALLS or f in around and self.doubt > around[f]:
            raise Endless
        outer, doubt = self.env, self.doubt
        args = [self.read(a, frame) for a in op.args]
        self.env = {d: outer[d] for d in self.program.dims if d in outer}
        for p, x in zip(f.params, args):
            self.env[p] = (frame, x)
            if isinstance(x, Cells):
                self.env.update((d, (frame, n)) for d, n in zip(p.type.dims, x.dims) if type(d) is Var)  # type: ignore
        self.calling = {f: doubt, **around}
        try:
            results = self.block(f.body, frame)
        except Endless:
            if around:
                raise
            results = None
        finally:
            self.env, self.calling, self.doubt = outer, around, doubt
        return self.opaque(bind, frame) if results is None else results

    def opaque(self, bind: Bind, frame: Frame) -> list[Value]:
        """What depends on all that an operation reads."""
        real = NOTHING.union(*(self.whole(self.read(a, frame), frame) for a in reads(bind)))
        for v in bind.vars:  # a size may be one of them
            self.env[v] = (frame, self.filled(v.type, real, frame))  # type: ignore[arg-type]
        return [self.env[v][1] for v in bind.vars]

    def filled(self, t: Type, real: Real, frame: Frame) -> Value:
        """A value of a type that depends on ``real`` throughout."""
        if not isinstance(t, Arr):
            return None if t in (INT, BOOL) else real
        dims = self.dims(t, frame)
        counts = self.count(dims, frame)
        lanes, _ = spread(counts)
        real = self.picked(real, lanes, frame.lanes) if t.elem not in (INT, BOOL) else NOTHING
        return Cells(Store(len(lanes), real), starts_of(counts), dims)

    def prim(self, op: Prim, t: Type, frame: Frame) -> Value:
        args = [self.read(a, frame) for a in op.args]
        row = PRIMITIVES.get(op.name)
        if row is not None:
            if t == REAL:
                partials = row.partials if row.jvp is None and row.vjp is None else None
                if isinstance(partials, str):
                    return NOTHING
                moving = [a for k, a in enumerate(args) if partials is None or partials[k] not in ("0", 0, None)]
                return self.few(NOTHING.union(*(a for a in moving if isinstance(a, frozenset))), frame.lanes)
            if any(a is None or isinstance(a, frozenset) for a in args):
                return None
            return np.asarray(row.python(*args))
        if op.name == "get":
            return self.get(args[0], args[1:], t, frame)
        if op.name in ("update", "add-at"):
            return self.write(args[0], args[1:-1], args[-1], frame, op.name == "add-at")
        if op.name == "select":
            return self.select(args, t, frame)
        if op.name == "array":
            return self.array(args, t, frame)  # type: ignore[arg-type]
        assert op.name in ("zeros", "undef"), op.name
        made = self.filled(t, NOTHING, frame)
        if isinstance(made, Cells) and t.elem in (INT, BOOL):  # type: ignore[union-attr]
            made.store.numbers = np.zeros(made.store.size, np.int64 if t.elem == INT else bool)  # type: ignore[union-attr]
        return made

    def select(self, args: list[Value], t: Type, frame: Frame) -> Value:
        cond, x, y = args
        if t != REAL:
            return None if any(a is None for a in args) else np.where(cond, x, y)
        if cond is None:
            return x | y
        if cond.ndim == 0:
            return x if cond else y
        parts = [(np.flatnonzero(c), r) for c, r in ((cond, x), (~cond, y))]
        found = NOTHING
        for at, real in parts:
            marks = frozenset(r for r in real if type(r) is Mark)
            kept = self.picked(real - marks, at, frame.lanes)
            found |= marks | self.added(kept, at, len(at), frame.lanes)
        return found

    def array(self, args: list[Value], t: Arr, frame: Frame) -> Cells:
        dims = self.dims(t, frame)
        n, k = frame.lanes, len(args)
        if isinstance(args[0], Cells):
            stores, _, counts = zip(*(self.packed(a, frame) for a in args))
        else:
            stores = tuple(
                Store(n, a) if isinstance(a, frozenset) else Store(n, numbers=None if a is None else self.all(a, frame))
                for a in args
            )
            counts = (np.ones(n, np.int64),)
        order = self.interleaved(counts[0], k)
        return Cells(self.joined(stores, order), starts_of(counts[0] * k), dims)

    @staticmethod
    def all(number: np.ndarray, frame: Frame) -> np.ndarray:
        return np.broadcast_to(number, frame.lanes)

    @staticmethod
    def interleaved(counts: np.ndarray, parts: int) -> np.ndarray:
        """Where the elements of ``parts`` packed arrays stand, one after the other, when each lane has its own
        together: positions among all elements of the first, then of the second, ..."""
        lanes, within = spread(np.repeat(counts, parts))
        lane, part = np.divmod(lanes, parts)
        return part * counts.sum() + starts_of(counts)[lane] + within

    def joined(self, stores: Sequence[Store], order: np.ndarray) -> Store:
        """The elements of several stores, one after the other, in an order."""
        if any(s.numbers is not None for s in stores):
            known = all(s.numbers is not None for s in stores)
            return Store(len(order), numbers=np.concatenate([s.numbers for s in stores])[order] if known else None)
        if not any(s.real for s in stores):
            return Store(len(order))
        matrix = vstack([self.matrix(s.real, s.size) for s in stores], format="csr")
        return Store(len(order), frozenset((Rows(matrix[order]),)))

    def place(self, a: Cells, indices: Sequence[np.ndarray], frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        """Where what some subscripts select starts, and in which lanes they are in range."""
        at, good = np.broadcast_to(a.start, frame.lanes), np.ones(frame.lanes, bool)
        for k, i in enumerate(indices):
            good = good & (0 <= i) & (i < a.dims[k])
            stride = self.count(a.dims[k + 1 :], frame)
            at = at + i * stride
        return at, good

    def get(self, a: Cells, indices: Sequence[np.ndarray | None], t: Type, frame: Frame) -> Value:
        if any(i is None for i in indices):
            return self.filled(t, self.whole(a, frame), frame)
        at, good = self.place(a, indices, frame)  # type: ignore[arg-type]
        if isinstance(t, Arr):
            return Cells(a.store, np.where(good, at, 0), a.dims[len(indices) :], a.writes, a.shared)
        if a.store.marked:
            (mark,) = a.store.real
            if mark not in self.states:
                raise Sequential
            inside = np.flatnonzero(good)
            rows = Rows(self.matrix(self.element(a, at[inside]), len(inside)))
            if len(inside) == frame.lanes:
                return frozenset((Own(mark, frame, at, rows),))
            self.note(mark, frame, at[inside], inside)
            return self.added(frozenset((rows,)), inside, len(inside), frame.lanes)
        self.settle(a)
        store = a.store
        if t in (INT, BOOL):
            if store.numbers is None:
                return None
            return store.numbers[np.where(good, at, 0)] if store.size else np.zeros(frame.lanes, store.numbers.dtype)
        if not store.real:
            return NOTHING
        if good.all():
            return self.picked(store.real, at, store.size)
        inside = np.flatnonzero(good)
        found = self.picked(store.real, at[inside], store.size)
        return self.added(found, inside, len(inside), frame.lanes)

    def element(self, a: Cells, at: np.ndarray) -> Real:
        """What is at these positions of an array; of one that a running loop changes what was there before the loop,
        and what iterations have put there since: ``apart`` asks later whether other ones have."""
        if a.store.marked:
            found = self.element(self.states[next(iter(a.store.real))].before, at)
        else:
            self.settle(a)
            found = self.picked(a.store.real, at, a.store.size)
        for w in a.writes:
            found |= self.picked(self.added(w.real, w.at, len(w.at), a.store.size), at, a.store.size)
        return self.few(found, len(at))

    def apart(self, state: State, writes: Sequence[Write]) -> bool:
        """Whether no iteration has read what another one writes."""
        first = np.full(state.before.store.size, np.iinfo(np.int64).max)
        last = np.full(state.before.store.size, -1)
        for w in writes if state.reads else ():
            way = w.frame.to(state.child)
            lanes = w.lanes if way is None else way[w.lanes]
            np.minimum.at(first, w.at, lanes)
            np.maximum.at(last, w.at, lanes)
        return all(np.all((last[at] < 0) | (first[at] == lanes) & (last[at] == lanes)) for at, lanes in state.reads)

    def write(self, a: Cells, indices: Sequence[np.ndarray | None], x: Value, frame: Frame, add: bool) -> Cells:
        """An array with something added at (or put to) one element or row in each lane."""
        if a.shared and not a.store.marked:
            store, start, _ = self.packed(a, frame)
            a = Cells(store, start, a.dims)
        unknown = any(i is None for i in indices)
        if integers(a) or integers(x):
            return self.write_numbers(a, indices, x, frame, add)
        if unknown:
            counts = self.count(a.dims, frame)
            lanes, within = spread(counts)
            at = np.broadcast_to(a.start, frame.lanes)[lanes] + within
            real = self.picked(self.whole(x, frame), lanes, frame.lanes)
            return Cells(a.store, a.start, a.dims, (*a.writes, Write(at, real, frame, lanes)), a.shared)
        at, good = self.place(a, indices, frame)  # type: ignore[arg-type]
        if isinstance(x, Cells):
            if x.store is a.store and a.store.marked and np.array_equal(np.broadcast_to(x.start, frame.lanes), at):
                return Cells(a.store, a.start, a.dims, tuple(dict.fromkeys((*a.writes, *x.writes))), a.shared)
            store, _, counts = self.packed(x, frame)
            lanes, within = spread(counts)
            at, good, real, rows = at[lanes] + within, good[lanes], store.real, store.size
        else:
            own = {r for r in x if type(r) is Own and r.frame is frame and r.mark in a.store.real}
            back = {r for r in own if np.array_equal(r.at, at)}  # what stands there stays there
            real, rows, lanes = self.settled(x - back), frame.lanes, np.arange(frame.lanes)
        if not good.all():
            inside = np.flatnonzero(good)
            at, lanes, real = at[inside], lanes[inside], self.picked(real, inside, rows)
        if not add and not self.doubt and not a.store.marked:  # what stood there is gone
            self.settle(a)
            keep = np.ones(a.store.size, bool)
            keep[at] = False
            kept = np.flatnonzero(keep)
            old = self.added(self.picked(a.store.real, kept, a.store.size), kept, len(kept), a.store.size)
            a = Cells(Store(a.store.size, old), a.start, a.dims, (), a.shared)
        if not real:
            return a
        return Cells(a.store, a.start, a.dims, (*a.writes, Write(at, real, frame, lanes)), a.shared)

    def write_numbers(self, a: Cells, indices: Sequence[np.ndarray | None], x: Value, frame: Frame, add: bool) -> Cells:
        if isinstance(x, Cells):
            x = self.packed(x, frame)[0].numbers
        if a.store.numbers is None or x is None or isinstance(x, frozenset) or any(i is None for i in indices):
            return Cells(Store(a.store.size, a.store.real), a.start, a.dims, a.writes, a.shared)
        at, good = self.place(a, indices, frame)  # type: ignore[arg-type]
        lanes, within = spread(self.count(a.dims[len(indices) :], frame))
        at, good = (at[lanes] + within)[good[lanes]], good[lanes]
        x = np.broadcast_to(x, len(good))[good]
        numbers = a.store.numbers.copy()
        if add:
            np.add.at(numbers, at, x)
        else:
            numbers[at] = x
        return Cells(Store(a.store.size, NOTHING, numbers), a.start, a.dims, (), a.shared)

    # ---------------------------------------------------------------------------------- branches

    def branch(self, op: If, frame: Frame) -> list[Value]:
        cond = self.read(op.cond, frame)
        if cond is None:
            self.doubt += 1
            parts = [self.block(b, frame) for b in (op.then, op.orelse)]
            self.doubt -= 1
            return [self.either(x, y, frame) for x, y in zip(*parts)]
        if cond.all() or not cond.any():
            return self.block(op.then if cond.all() else op.orelse, frame)
        frames = [Frame(len(up), frame, up) for up in (np.flatnonzero(cond), np.flatnonzero(~cond))]
        parts = [self.block(b, f) for b, f in zip((op.then, op.orelse), frames)]
        return [self.merged(frame, list(zip(frames, xs))) for xs in zip(*parts)]

    def either(self, x: Value, y: Value, frame: Frame) -> Value:
        """What is one of two values."""
        if isinstance(x, frozenset):
            return x | y
        if not isinstance(x, Cells):
            return x if x is not None and y is not None and np.array_equal(x, y) else None
        if x.store is y.store and np.array_equal(x.start, y.start):
            return Cells(x.store, x.start, x.dims, tuple(dict.fromkeys((*x.writes, *y.writes))), x.shared)
        (a, start, _), (b, *_) = self.packed(x, frame), self.packed(y, frame)
        numbers = self.either(a.numbers, b.numbers, frame)
        return Cells(Store(a.size, a.real | b.real, numbers), start, x.dims)

    def merged(self, frame: Frame, parts: Sequence[tuple[Frame, Value]]) -> Value:
        """One value of values in some lanes each."""
        values = [v for _, v in parts]
        if isinstance(values[0], frozenset):
            found = NOTHING
            for f, real in parts:
                marks = frozenset(r for r in real if type(r) is Mark)
                found |= marks | self.added(real - marks, f.up, f.lanes, frame.lanes)  # type: ignore[arg-type]
            return found
        if not isinstance(values[0], Cells):
            if any(v is None for v in values):
                return None
            made = np.empty(frame.lanes, np.result_type(*values))
            for f, v in parts:
                made[f.up] = v
            return made
        dims = tuple(
            d[0]
            if all(x.ndim == 0 and x == d[0] for x in d)
            else self.merged(frame, list(zip([f for f, _ in parts], d)))
            for d in zip(*(v.dims for v in values))
        )
        first = values[0]
        if first.store.marked and all(v.store is first.store for v in values):
            start = self.merged(frame, [(f, v.start) for f, v in parts])
            writes = tuple(dict.fromkeys(w for v in values for w in v.writes))
            return Cells(first.store, start, dims, writes, any(v.shared for v in values))
        starts = starts_of(self.count(dims, frame))
        stores, places = [], []
        for f, v in parts:
            store, _, counts = self.packed(v, f)
            lanes, within = spread(counts)
            stores.append(store)
            places.append(starts[f.up][lanes] + within)
        order = np.argsort(np.concatenate(places))
        return Cells(self.joined(stores, order), starts, dims)

    # ------------------------------------------------------------------------------------- loops

    def loop(self, op: Loop, bind: Bind, frame: Frame) -> list[Value]:
        count = self.read(op.count, frame)
        if count is None:
            return self.opaque(bind, frame)
        counts = np.maximum(np.broadcast_to(count, frame.lanes), 0)
        inits = [self.read(z, frame) for z in op.inits]
        try:
            return self.at_once(op, frame, counts, inits)
        except Sequential:
            if any(isinstance(z, frozenset) and any(type(r) is Mark for r in z) for z in inits):
                raise
            if counts.size and counts.max() > ITERATIONS:
                self.long.append(bind.span)
                return self.opaque(bind, frame)
            return self.one_by_one(op, bind, frame, counts, inits)

    def at_once(self, op: Loop, frame: Frame, counts: np.ndarray, inits: list[Value]) -> list[Value]:
        """All iterations together; raises ``Sequential`` where one needs to know what came before it."""
        width = len(op.accs)
        if any(map(integers, inits)):
            raise Sequential
        up, index = spread(counts)
        child = Frame(len(up), frame, up)
        self.env[op.index] = (child, index)
        marks = [Mark() for _ in inits]
        for acc, z, mark in zip(op.accs, inits, marks):
            real = frozenset((mark,))
            if isinstance(z, Cells):
                if z.shared and not z.store.marked:
                    store, start, _ = self.packed(z, frame)
                    z = inits[op.accs.index(acc)] = Cells(store, start, z.dims)
                self.states[mark] = State(z, child, [])
                self.env[acc] = (frame, Cells(Store(z.store.size, real), z.start, z.dims))
            else:
                self.env[acc] = (child, real)
        mine = frozenset(marks)
        held = {acc: self.env[acc][1] for acc in op.accs}
        results = self.block(op.body, child)
        results = [self.settled(r) if isinstance(r, frozenset) else r for r in results]
        handed = [k for k, (z, r) in enumerate(zip(inits, results)) if isinstance(z, frozenset) and not r & mine]
        if handed:  # what one iteration hands on, made of nothing that was handed to it, is known for all
            for k in handed:
                self.env[op.accs[k]] = (child, self.shifted(inits[k], results[k], child, counts, frame))
            results = [self.settled(r) if isinstance(r, frozenset) else r for r in self.block(op.body, child)]
        out: list[Value] = []
        for k, (acc, z, r) in enumerate(zip(op.accs, inits, results)):
            if isinstance(z, Cells):
                if r.store is not held[acc].store or any(w.real & mine for w in r.writes):
                    raise Sequential
                if not self.apart(self.states[marks[k]], r.writes):
                    raise Sequential
                out.append(Cells(z.store, z.start, z.dims, (*z.writes, *r.writes), z.shared))
                continue
            own = frozenset((marks[k],))
            if not isinstance(r, frozenset) or (r & mine) - own:
                raise Sequential
            outer = frozenset(x for x in r if type(x) is Mark) - own
            rows = frozenset(x for x in r if type(x) is Rows)
            if r & own:
                out.append(z | outer | self.added(rows, up, child.lanes, frame.lanes))
            else:  # the last iteration's
                ran = np.flatnonzero(counts)
                last = (starts_of(counts) + counts - 1)[ran]
                found = self.added(self.picked(rows, last, child.lanes), ran, len(ran), frame.lanes)
                out.append(found | outer if len(ran) == frame.lanes else z | found | outer)
        for r in results[width:]:
            if isinstance(r, Cells):
                store, _, sizes = self.packed(r, child)
                start = starts_of(np.bincount(up, sizes, frame.lanes).astype(np.int64))
                inner = tuple(self.outside(d, up, frame) for d in r.dims)
            else:
                if isinstance(r, frozenset):
                    store = Store(child.lanes, frozenset((Rows(self.matrix(r, child.lanes)),)) if r else NOTHING)
                else:
                    store = Store(child.lanes, numbers=None if r is None else self.all(r, child))
                start, inner = starts_of(counts), ()
            out.append(Cells(store, start, (counts, *inner)))
        return out

    def shifted(self, init: Real, real: Real, child: Frame, counts: np.ndarray, frame: Frame) -> Real:
        """For each iteration what the one before it gave; at first ``init``."""
        lanes, first = np.arange(child.lanes), starts_of(counts)[counts > 0]
        later = np.delete(lanes, first)
        marks = frozenset(r for r in init | real if type(r) is Mark)
        before = self.added(self.picked(real - marks, later - 1, child.lanes), later, len(later), child.lanes)
        start = self.picked(init - marks, np.flatnonzero(counts), frame.lanes)
        return marks | before | self.added(start, first, len(first), child.lanes)

    @staticmethod
    def outside(dim: np.ndarray, up: np.ndarray, frame: Frame) -> np.ndarray:
        """A size in a loop's body, the same in all iterations, in the loop's own lanes."""
        if dim.ndim == 0:
            return dim
        made = np.zeros(frame.lanes, np.int64)
        made[up] = dim
        return made

    def one_by_one(self, op: Loop, bind: Bind, frame: Frame, counts: np.ndarray, inits: list[Value]) -> list[Value]:
        columns: list[Column] = [[] for _ in op.body.results[len(op.accs) :]]
        accs = list(inits)
        for t in range(int(counts.max()) if counts.size else 0):
            accs = self.iteration(op, frame, counts > t, t, accs, columns)
        return [*accs, *self.all_stacked(bind.vars[len(op.accs) :], columns, counts, frame)]

    def while_(self, op: While, bind: Bind, frame: Frame) -> list[Value]:
        """A ``while`` that integers end, iteration by iteration."""
        accs = [self.read(z, frame) for z in op.inits]
        if any(isinstance(z, frozenset) and any(type(r) is Mark for r in z) for z in accs):
            raise Sequential
        width = len(op.accs)
        columns: list[Column] = [[] for _ in op.body.results[width:]]
        counts, going = np.zeros(frame.lanes, np.int64), np.ones(frame.lanes, bool)
        for t in range(ITERATIONS):
            for a, x in zip(op.accs, accs):
                self.env[a] = (frame, x)
            (holds,) = self.block(op.cond, frame)
            if holds is None:
                break
            going = going & holds
            if not going.any():
                stacked = self.all_stacked(bind.vars[width + 1 :], columns, counts, frame)
                return [*accs, counts, *stacked]
            counts = counts + going
            accs = self.iteration(op, frame, going, t, accs, columns)
        return self.opaque(bind, frame)

    def iteration(
        self, op: Loop | While, frame: Frame, going: np.ndarray, t: int, accs: list[Value], columns: Sequence[Column]
    ) -> list[Value]:
        """The accumulators after iteration ``t``, which some lanes have; what it stacks goes to ``columns``."""
        width, active = len(op.accs), np.flatnonzero(going)
        full = len(active) == frame.lanes
        inner = frame if full else Frame(len(active), frame, active)
        if type(op) is Loop:
            self.env[op.index] = (inner, np.asarray(t))
        for a, x in zip(op.accs, accs):
            self.env[a] = (frame, x)
        results = self.block(op.body, inner)
        if full:
            accs = [self.compact(r, frame) for r in results[:width]]
        else:
            left = np.flatnonzero(~going)
            rest = Frame(len(left), frame, left)
            for a, x in zip(op.accs, accs):
                self.env[a] = (frame, x)
            old = [self.read(a, rest) for a in op.accs]
            accs = [self.merged(frame, [(inner, r), (rest, o)]) for r, o in zip(results, old)]
        for column, r in zip(columns, results[width:]):
            column.append((active, t, inner, self.compact(r, inner)))
        return accs

    def all_stacked(
        self, vars: Sequence[Var], columns: Sequence[Column], counts: np.ndarray, frame: Frame
    ) -> list[Value]:
        made: list[Value] = []
        for v, column in zip(vars, columns):
            d = v.type.dims[0]  # type: ignore[union-attr]
            if type(d) is Var and not self.is_known(d, frame):
                self.env[d] = (frame, counts)
            made.append(self.stacked(v.type, column, counts, frame))  # type: ignore[arg-type]
        return made

    def is_known(self, dim: Var, frame: Frame) -> bool:
        """Whether a size is bound in a frame around this one, where it may be read again."""
        home, outer = self.env.get(dim, (None, None))[0], frame.outer
        while outer is not None and outer is not home:
            outer = outer.outer
        return outer is not None

    def compact(self, value: Value, frame: Frame) -> Value:
        if isinstance(value, Cells):
            self.settle(value)
            return value
        return self.few(value, frame.lanes) if isinstance(value, frozenset) else value

    def stacked(self, t: Arr, column: Column, counts: np.ndarray, frame: Frame) -> Cells:
        """What iterations gave one by one, as an array."""
        dims = (counts, *(self.size(d, frame) for d in t.dims[1:]))
        start = starts_of(self.count(dims, frame))
        stores, places = [], []
        for active, k, inner, r in column:
            if isinstance(r, Cells):
                store, _, sizes = self.packed(r, inner)
            elif isinstance(r, frozenset):
                store, sizes = Store(inner.lanes, r), np.ones(inner.lanes, np.int64)
            else:
                store = Store(inner.lanes, numbers=None if r is None else self.all(r, inner))
                sizes = np.ones(inner.lanes, np.int64)
            lanes, within = spread(sizes)
            stores.append(store)
            places.append((start[active] + k * sizes)[lanes] + within)
        if not stores:
            return self.filled(t, NOTHING, frame)
        return Cells(self.joined(stores, np.argsort(np.concatenate(places))), start, dims)
