"""Loop fusion: a ``build`` put where its elements are read, and one loop of two that run equally often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from ..core import (
    BOOL,
    INT,
    REAL,
    TRUE,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Scalar,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    defined_in,
    elem_of,
    free_vars,
    is_zero,
    kinds_of,
    rank_of,
    reads,
    same,
    substitute,
    type_of,
    with_blocks,
    with_body,
)
from ..program.accumulators import picked, sum_like
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import has_checks, tidy
from ..program.loops import CALL, CHEAP, Use, array_uses, cost_of, read_of, slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from ..program.sink import changed_by, sink_block
from .checks import Around, Match, Once, in_range
from .diagonals import diagonals_cost
from .tables import affine_of, sums_in

NEAR = 400  # bindings between two loops beyond which they are not made one

Reads = dict[Bind, dict[Var, None]]  # what bindings read, as far as that was asked
Wanted = Callable[[Bind, Bind, "Bind | None"], bool]


class Fuse(Rebuild):
    """Puts the body of a ``build`` where its elements are read, and drops the array.

    ``v = (build n f) ... (build n (fn [i] (g (get v i))))``  =>  ``(build n (fn [i] (g (f i))))``  (dF~ Fig. 8a).
    Design decision: only where that repeats no work that counts: the array is read by element alone, and either at
    the index of one loop (all readings then share the one copy) or its elements are cheap. With ``once`` it leaves
    arrays of which an element takes a loop, or is read again and again, or that are made for their order.
    """

    def __init__(self, builder: Builder, block: Block, once: bool = False) -> None:
        super().__init__(builder)
        self.uses = array_uses(block)
        self.once = once
        self.inlined: dict[Var, tuple[Loop, int, int]] = {}  # the loop, which result, how many subscripts it takes
        self.costs: dict[Var, int] = {}  # what an element of these costs
        self.within = block
        self.sums: dict[Var, Prim] | None = None  # the integer sums in it, when they are asked for
        self.sparse: dict[Var, tuple[Loop, Prim]] = {}
        self.places: dict[Var, tuple[int, Atom, Atom]] = {}  # rows of one element: the axis, where, what
        self.outside: dict[int, tuple[Loop, tuple[Var, ...] | None]] = {}
        self.zeros = {b.vars[0] for b in all_binds(block) if type(b.op) is Prim and b.op.name == "zeros"}
        self.depth = 0
        self.looking = False  # nothing is made yet
        self.stale = stale(block)

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop and not op.accs and not self.once and has_checks(op.body):
            bind = self.checked_first(bind, op)
            op = bind.op
        if type(op) is Loop and not has_checks(op.body):
            levels = 0 if op.accs else self.fusible(bind, op)
            if levels:
                for k, v in enumerate(bind.vars):
                    self.inlined[v] = (op, k, levels)
                return
            store = self.one_store(bind, op)
            if store is not None:
                self.sparse[bind.vars[0]] = (op, store)
                return
            bind = self.without_looks(self.by_places(bind, op))
        if type(op) is Prim and op.name == "get":
            if op.args[0] in self.inlined:
                loop, k, levels = self.inlined[op.args[0]]  # type: ignore[index]
                self.here[bind.vars[0]] = self.element(loop, k, levels, self.atoms(op.args[1:]), bind)
                return
            if op.args[0] in self.sparse:
                loop, store = self.sparse[op.args[0]]  # type: ignore[index]
                self.here[bind.vars[0]] = self.pulled(loop, store, self.atoms(op.args[1:]), bind)
                return
            if op.args[0] in self.places:
                self.here[bind.vars[0]] = self.placed(*self.places[op.args[0]], *self.atoms(op.args[1:]))
                return
        self.depth += type(op) is Loop
        self.copy(bind)
        self.depth -= type(op) is Loop

    def may(self, block: Block) -> bool:
        """Whether there may be something to do in a block, but for loops with checks."""
        self.looking = True
        for x in block.binds:
            op = x.op
            if type(op) is Loop and not has_checks(op.body):
                if not op.accs and self.fusible(x, op) or self.one_store(x, op) is not None:
                    return True
                if self.without_looks(self.by_places(x, op)) is not x:
                    return True
            self.depth += type(op) is Loop
            if any(map(self.may, blocks_of(op))):
                return True
            self.depth -= type(op) is Loop
        return False

    def checked_first(self, bind: Bind, op: Loop) -> Bind:
        """A loop that stacks rows that it checks, as those found by an index, of which the checks are made in a loop of
        their own, where the rows can be read where they are used; else as it is."""
        binds = op.body.binds
        rows = any(isinstance(type_of(r), Arr) for r in op.body.results)
        if not rows or op.snapshots is not None or not all(type(x.op) in (Prim, Check) for x in binds):
            return bind
        rest = Loop(op.count, op.index, (), (), Block(tuple(x for x in binds if type(x.op) is Prim), op.body.results))
        made = Bind(bind.vars, rest, bind.span, bind.soft)
        if not self.fusible(made, rest):
            return bind
        asked = tuple(a for x in binds if type(x.op) is Check for a in (x.op.a, x.op.b))
        needed = {id(x) for x in slice_of(Block(rest.body.binds, ()), asked).binds}
        checks = tuple(x for x in binds if type(x.op) is Check or id(x) in needed)
        self.copy(Bind((), Loop(op.count, op.index, (), (), Block(checks, ())), bind.span))
        return made

    def without_looks(self, bind: Bind) -> Bind:
        """A loop that does not stack the elements that it reads, one after the other, of an array that stays as it is:
        what reads the stack reads the array."""
        op: Loop = bind.op  # type: ignore[assignment]
        width, own = len(op.accs), {op.index, *op.accs, *defined_in(op.body)} if op.accs else set()
        looks: list[int] = []
        for k in range(width, len(op.body.results)) if width and op.snapshots is None else ():
            v, r = bind.vars[k], op.body.results[k]
            needed = slice_of(op.body, (r,))
            if v.type.rank == 1 and r in own and self.look(op, needed, own) and self.by_element(v):  # type: ignore
                self.inlined[v] = (Loop(op.count, op.index, (), (), needed), 0, 1)
                looks.append(k)
        if not looks:
            return bind
        results = tuple(r for k, r in enumerate(op.body.results) if k not in looks)
        op = Loop(op.count, op.index, op.inits, op.accs, slice_of(op.body, results), op.snapshots)
        return Bind(tuple(v for k, v in enumerate(bind.vars) if k not in looks), op, bind.span, bind.soft)

    def look(self, op: Loop, needed: Block, own: set[Var]) -> bool:
        """Whether ``needed`` reads a number of an array that stays as it is, the next one in each iteration."""
        if not needed.binds or needed.results[0] not in needed.binds[-1].vars:
            return False
        *integers, last = (x.op for x in needed.binds)
        if not all(type(x) is Prim and x.name in ("+", "-") for x in integers):
            return False
        if type(last) is not Prim or last.name != "get" or last.args[0] in own or last.args[0] in self.inlined:
            return False
        if self.sums is None:
            self.sums = sums_in(self.within)
        *rows, at = (affine_of(a, self.sums, set(self.sums), set()) for a in last.args[1:])
        steady = all(row is not None and op.index not in row[1] for row in rows)
        return steady and at is not None and at[1].get(op.index) == 1 and self.by_element(last.args[0])

    def by_element(self, array: Atom) -> bool:
        """Whether elements of an array are all that is read of it."""
        return all(u.subscripts for u in self.uses.get(array, ()))  # type: ignore[call-overload]

    def element(self, loop: Loop, k: int, levels: int, subscripts: Sequence[Atom], bind: Bind) -> Atom:
        """The element of a build, and of the build that gives its rows, at known subscripts. Where the same element is
        already at hand it is that one: made again for each reading, the elements of a chain of arrays that each read
        two elements of the one before would take twice the time for every array."""
        around = self.around(loop)
        if around is None:
            return self.made(loop, k, levels, subscripts, bind)
        place = tuple(map(self.b.key, (*subscripts, *self.atoms(around))))
        found = self.b.shared(("element", id(loop), k, levels, place))
        if found is None:
            found = self.made(loop, k, levels, subscripts, bind)
            self.b.scopes[-1].shared["element", id(loop), k, levels, place] = found
            for j in self.made_with(loop, k):  # the elements of several arrays, by one loop
                other = self.atom(loop.body.results[j])
                self.b.scopes[-1].shared["element", id(loop), j, levels, place] = other
        return found

    def made_with(self, loop: Loop, k: int) -> list[int]:
        """Where an element is a number: which other arrays' elements the same loop, or branch, in the build gives."""
        r = loop.body.results[k]
        if not isinstance(type_of(r), Scalar):
            return []
        vars = next((x.vars for x in loop.body.binds if r in x.vars and type(x.op) is not Prim), ())
        numbers = [v for v in vars if isinstance(v.type, Scalar) and v is not r]
        return [j for j, v in enumerate(loop.body.results) if v in numbers]

    def around(self, loop: Loop) -> tuple[Var, ...] | None:
        """What the elements of a build are made of that stands outside of it, builds that are put in its place seen
        through; None where it reads an array that is put in its place in another way."""
        if id(loop) not in self.outside:
            self.outside[id(loop)] = (loop, self.free(loop))
        return self.outside[id(loop)][1]

    def free(self, loop: Loop) -> tuple[Var, ...] | None:
        read: dict[Var, None] = {}
        for v in free_vars(loop.body):
            if v is loop.index:
                continue
            more = self.around(self.inlined[v][0]) if v in self.inlined else (v,)
            if more is None or v in self.sparse or v in self.places:
                return None
            read.update(dict.fromkeys(more))
        return tuple(read)

    def made(self, loop: Loop, k: int, levels: int, subscripts: Sequence[Atom], bind: Bind) -> Atom:
        r = loop.body.results[k]
        self.here[loop.index] = subscripts[0]
        row = next((x for x in loop.body.binds if r in x.vars and type(x.op) is Loop), None) if levels > 1 else None
        if row is None:
            found, *_ = self.block(slice_of(loop.body, (r, *(loop.body.results[j] for j in self.made_with(loop, k)))))
            self.b.span = bind.span
            return self.b.get(found, *subscripts[1:])
        before = [x for x in slice_of(loop.body, (r,)).binds if x is not row]
        scope = self.b.scopes[-1]
        if any(type(x.op) is Loop for x in before):  # not again for each element of the row
            scope = self.scope_of(subscripts[0], before)
        with self.b.inside(scope):
            for x in before:
                self.b.span, self.b.soft = x.span, x.soft
                self.bind(x)
        self.b.soft = False
        return self.element(row.op, row.vars.index(r), levels - 1, subscripts[1:], bind)  # type: ignore[arg-type]

    def scope_of(self, index: Atom, binds: Sequence[Bind]) -> Scope:
        """The loop around that an index belongs to, if no branch is between and all that bindings read is there; else
        where we are."""
        here, inner = self.b.scopes[-1], set()
        for scope in reversed(self.b.scopes):
            if scope.index is index:
                return scope if self.seen_outside(binds, inner) else here
            if scope.index is None:
                break
            inner |= scope.vars
        return here

    def seen_outside(self, binds: Sequence[Bind], inner: set[Var]) -> bool:
        """Whether bindings read nothing that is made in loops further inside."""
        made = {v for x in binds for v in x.vars}
        for v in {v for x in binds for v in reads(x)} - made:
            more = self.around(self.inlined[v][0]) if v in self.inlined else (v,)
            if more is None or v in self.sparse or v in self.places:
                return False
            if any(self.atom(a) in inner for a in more):
                return False
        return True

    def fusible(self, bind: Bind, op: Loop) -> int:
        """How many subscripts of every reading of a build are put in place of its indices: 0 if it stays."""
        uses = [(k, u) for k, v in enumerate(bind.vars) for u in self.uses.get(v, ())]
        if not uses or any(not u.subscripts for _, u in uses) or bind in self.stale:
            return 0
        known = min(len(u.subscripts) for _, u in uses)  # type: ignore[arg-type]
        levels = min(known, *(depth_of(op, k) for k, _ in uses))
        for k, v in enumerate(bind.vars):
            written = all(type(s) is Const for u in self.uses.get(v, ()) for s in u.subscripts[levels:known])  # type: ignore
            cost = self.cost((op.body,), op.body.results[k], known - 1, known - levels if written else 0)
            if cost is not None:
                self.costs[v] = 1 if self.found_once(op, k, self.uses.get(v, ())) else cost
        again = any(len(u.loops) - self.depth > levels for _, u in uses)
        down = self.column(op) and not any(u.loops and recurs(u.loops[-1]) for _, u in uses)
        if self.once and (
            again or down or any(permuted(op, k, levels) or bind.vars[k] not in self.costs for k, _ in uses)
        ):
            return 0
        cheap = CALL - 1 if down and not again else CHEAP
        if all(self.costs.get(v, cheap + 1) <= cheap for v in bind.vars if self.uses.get(v)):
            if not (again and any(self.kept(op, k, levels) for k, _ in uses)):
                return levels
        if not (again or self.once) and all(bind.vars[k] in self.costs for k, _ in uses):
            if all(one_hot(op, k, levels) for k, _ in uses):
                return levels  # loops over it will do one iteration
        first = uses[0][1]
        if len(first.loops) == self.depth:  # one element alone is read, where all would be made
            one = all(u.subscripts[0] is first.subscripts[0] and len(u.loops) == self.depth for _, u in uses)  # type: ignore
            return int(one)
        if self.each_in_one(op, uses):
            return 1
        # the innermost loops around the readings read each element once; what is read outside of them is little
        inner = max((u for _, u in uses), key=lambda u: len(u.loops))
        n = len(inner.loops) - self.depth
        if not 0 < n <= levels:
            return 0
        around = inner.loops[-n:]
        often = [(k, u) for k, u in uses if u.loops[-n:] == around]
        few = [(k, u) for k, u in uses if u.loops[-n:] != around]
        if few and (known < n or not all(len(u.loops) < len(inner.loops) and self.quick(bind.vars[k]) for k, u in few)):
            return 0
        exact = all(u.subscripts[:n] == tuple(loop.index for loop in around) for _, u in often)  # type: ignore
        if not exact and not (self.one_element(around, often) and all(self.quick(bind.vars[k]) for k, _ in often)):
            turned = {loop.index for loop in around}
            if any(set(u.subscripts[:n]) != turned or not self.quick_row(op, k, u) for k, u in often):  # type: ignore
                return 0
        fits = self.in_body(around[-1], bind.vars) and (n == 1 or not self.crowded(around[-1], bind.vars))
        return n if fits and not (makes_sums(op) and branches(around[-1])) else 0

    def found_once(self, op: Loop, k: int, uses: Sequence[Use]) -> bool:
        """Whether a build stacks rows of an array, and the innermost loop around each reading of an element goes along
        one of them: which row it is, round and round say (``np.roll``), is found outside of that loop, and an element
        costs a reading, as it would of the stack."""
        needed = slice_of(op.body, (op.body.results[k],)).binds
        if not needed or op.body.results[k] not in needed[-1].vars or not isinstance(needed[-1].vars[0].type, Arr):
            return False
        if type(needed[-1].op) is not Prim or needed[-1].op.name != "get":
            return False
        if any(type(x.op) not in (Prim, If) or any(isinstance(v.type, Arr) for v in x.vars) for x in needed[:-1]):
            return False
        for u in uses:
            inside = (u.loops[-1].index, *defined_in(u.loops[-1].body)) if u.loops else ()
            if not inside or len(u.subscripts) < 2 or u.subscripts[0] in inside or u.subscripts[-1] not in inside:  # type: ignore
                return False
        return True

    def kept(self, op: Loop, k: int, levels: int) -> bool:
        """Whether what is read again and again is made first: a transpose, so that it is read in its order, and a row
        of numbers that are made of several others each, where one is read in place of these then."""
        if permuted(op, k, levels):
            return True
        if levels > 1 or "kept-rows" in self.b.off or not of_several(op, k):
            return False
        self.b.fired("kept-rows")
        return True

    def column(self, op: Loop) -> bool:
        """Whether a build goes down a column of matrices, whose rows the loop around it goes along: computed again, it
        leaves no array that keeps the two loops from changing places."""
        if self.looking:
            return False
        along = self.b.scopes[-1].index
        gets = [x.op.args for x in op.body.binds if type(x.op) is Prim and x.op.name == "get" and op.index in x.op.args]
        return (
            along is not None
            and any(gets)
            and all(args[-1] is not op.index and self.atom(args[-1]) is along for args in gets)
        )

    def quick(self, v: Var) -> bool:
        """Whether an element of a build costs less than a call."""
        return self.costs.get(v, CALL) < CALL

    def each_in_one(self, op: Loop, uses: Sequence[tuple[int, Use]]) -> bool:
        """Whether what a build stacks are a few rows that are written down, each of which one loop reads, the next of
        them in each iteration: such a loop makes that row itself (the axes of a small array in another order)."""
        found: dict[tuple[int, Atom], Loop] = {}
        for k, u in uses:
            made = next((x.op for x in op.body.binds if op.body.results[k] in x.vars), None)
            if type(made) is not Prim or made.name != "array" or not isinstance(type_of(made.args[0]), Arr):
                return False
            if len(u.loops) != self.depth + 1 or len(u.subscripts) < 2 or type(u.subscripts[1]) is not Const:  # type: ignore
                return False
            loop = u.loops[-1]
            if u.subscripts[0] is not loop.index or found.setdefault((k, u.subscripts[1]), loop) is not loop:  # type: ignore
                return False
        return len(found) > 1

    def quick_row(self, op: Loop, k: int, use: Use) -> bool:
        """Whether a reading takes a row, of numbers that cost less than a call each: rows may be made in another order
        than they are written in, for their numbers stay in theirs."""
        r = op.body.results[k]
        rest = type_of(r).rank + 1 - len(use.subscripts) if isinstance(type_of(r), Arr) else 0  # type: ignore
        cost = self.cost((op.body,), r, type_of(r).rank, 0) if rest > 0 else None  # type: ignore[union-attr]
        return cost is not None and cost < CALL

    def one_element(self, around: Sequence[Loop], uses: Sequence[tuple[int, Use]]) -> bool:
        """Whether loops around one another read one element in each iteration and each element once: the rows in the
        other order, say, or what is right of the diagonal."""
        first = uses[0][1].subscripts
        indices = [loop.index for loop in around]
        if any(u.subscripts != first for _, u in uses):
            return False
        if self.sums is None:
            self.sums = sums_in(self.within)
        for k, s in enumerate(first[: len(around)]):  # type: ignore[index]
            place = affine_of(s, self.sums, set(self.sums), set())
            if place is None or abs(place[1].get(indices[k], 0)) != 1 or any(i in place[1] for i in indices[k + 1 :]):
                return False
        return True

    def crowded(self, consumer: Loop, vars: Sequence[Var]) -> bool:
        """Whether a sum would come to stand in a sum, or beside another loop or a call: alone in the body of a build it
        is taken four at a time (``Jam``), which compilers then do side by side."""
        full = bool(consumer.accs) or any(type(b.op) is Loop for b in consumer.body.binds)
        full = full or cost_of(consumer.body) >= CALL
        return full and any(self.uses.get(v) and v not in self.costs for v in vars)

    def cost(self, blocks: tuple[Block, ...], r: Atom, more: int, written: int) -> int | None:
        """What a number costs that a result ``r`` of the last of ``blocks``, builds inside one another, has at ``more``
        known subscripts, of which the last ``written`` are numbers; None where that takes a loop. What is read from
        another build that is put in its place costs what that does."""
        row = next((x for x in blocks[-1].binds if r in x.vars), None)
        if more and row is not None:
            op = row.op
            if type(op) is Loop and not op.accs:
                k = row.vars.index(r)  # type: ignore[arg-type]
                return self.cost((*blocks, op.body), op.body.results[k], more - 1, written)
            if more <= written and type(op) is Prim and op.name == "array":  # one element of it is what is computed
                costs = [self.cost(blocks, a, more - 1, written) for a in dict.fromkeys(op.args)]
                return None if None in costs else max(costs)  # type: ignore[type-var]
        total, wanted = 0, (r,)
        for block in reversed(blocks):
            needed = slice_of(block, wanted)
            for bind in needed.binds:
                cost = self.cost_of_one(bind)
                if cost is None:
                    return None
                total += cost
            wanted = tuple(free_vars(needed))  # type: ignore[assignment]
        return total

    def cost_of_one(self, bind: Bind) -> int | None:
        """What a binding costs in the body of a build; None where it is a loop or makes an array."""
        op = bind.op
        if type(op) is If and all(isinstance(v.type, Scalar) for v in bind.vars):
            costs = [self.cost((x,), a, 0, 0) for x in blocks_of(op) for a in x.results]
            return None if None in costs else 1 + sum(costs)  # type: ignore[arg-type]
        if type(op) is not Prim or isinstance(bind.vars[0].type, Arr) and not is_view(op):
            return None
        if op.name in PRIMITIVES:
            return PRIMITIVES[op.name].cost if bind.vars[0].type != BOOL else 0  # tests of indices: mostly decided
        return self.costs.get(op.args[0]) if op.args[0] in self.inlined else 1  # type: ignore[arg-type]

    def one_store(self, bind: Bind, op: Loop) -> Prim | None:
        """The one store of a loop that does nothing but put a cheap value into zeros, each iteration in a row of its
        own, if the array is read by element alone: a diagonal, say."""
        uses = self.uses.get(bind.vars[0], ()) if bind.vars else ()
        if len(op.accs) != 1 or len(bind.vars) != 1 or op.inits[0] not in self.zeros or not uses:
            return None
        acc, last = op.accs[0], op.body.binds[-1] if op.body.binds else None
        store = last.op if last is not None and last.vars == op.body.results else None
        rank = acc.type.rank if isinstance(acc.type, Arr) else 0
        if type(store) is not Prim or store.name not in ("update", "add-at") or store.args[0] is not acc:
            return None
        if len(store.args) != rank + 2 or any(not u.subscripts or len(u.subscripts) != rank for u in uses):
            return None
        if any(acc in atoms_of(b.op) for b in op.body.binds[:-1]) or acc in store.args[1:]:
            return None
        own = [k for k, s in enumerate(store.args[1:-1]) if s is op.index]
        others = [s for s in store.args[1:-1] if s is not op.index]
        steady = not any(type(s) is Var and s in defined_in(op.body) for s in others)
        fits = own and same(acc.type.dims[own[0]], op.count)  # type: ignore[union-attr]
        return store if fits and steady and cheap(Block(op.body.binds[:-1], ())) else None

    def pulled(self, loop: Loop, store: Prim, subscripts: Sequence[Atom], bind: Bind) -> Atom:
        """``(get (ifold (fn [a i] (update a i i x)) zeros n) p q)``  =>  ``(select (= q p) x 0)``, x for i = p."""
        b, at = self.b, store.args[1:-1]
        self.here[loop.index] = next(s for s, own in zip(subscripts, at) if own is loop.index)
        hit: Atom = TRUE
        for s, own in zip(subscripts, self.atoms(at)):
            hit = b.prim("and", hit, b.prim("=", s, own))
        self.block(Block(loop.body.binds[:-1], ()))
        b.span = bind.span
        value = self.atom(store.args[-1])
        return b.select(hit, value, b.zeros(type_of(value)))

    def by_places(self, bind: Bind, op: Loop) -> Bind:
        """A loop that stacks where it would store, and what, in place of zeros with one element stored in each row, or
        each column, at a place that is found in the iteration, if these are read by element alone.

        ``(ifold (fn [a i] (update a i (f i) x)) zeros n)``  =>  ``p = (build n f)``; for ``(get a i j)``,
        ``(select (= j (get p i)) x 0)``: what is done with all elements of a row is done with one then (``OneHot``).
        """
        for k in reversed(range(len(op.accs))):
            store = self.row_store(bind, op, k)
            if store is None:
                continue
            own = store.args.index(op.index) - 1
            wanted, found = (store.args[2 - own], store.args[3]), []
            for a in wanted:
                steady = type(a) is not Var or a not in defined_in(op.body)
                found.append(a if steady else Var(bind.vars[k].name, Arr(a.type, (op.count,)), bind.span))  # type: ignore
            self.places[bind.vars[k]] = (own, found[0], found[1])
            new = [(v, a) for v, a in zip(found, wanted) if v is not a]
            others = [j for j in range(len(bind.vars)) if j != k]
            left = [j for j in range(len(op.accs)) if j != k]
            binds = tuple(b for b in op.body.binds if op.body.results[k] not in b.vars)
            results = (*(op.body.results[j] for j in others), *(a for _, a in new))
            inits, accs = (tuple(atoms[j] for j in left) for atoms in (op.inits, op.accs))
            op = Loop(op.count, op.index, inits, accs, Block(binds, results), op.snapshots)
            bind = Bind((*(bind.vars[j] for j in others), *(v for v, _ in new)), op, bind.span, bind.soft)
        return bind

    def row_store(self, bind: Bind, op: Loop, k: int) -> Prim | None:
        """The one store of a number in each row, or column, of zeros that are read by element alone."""
        acc, uses = op.accs[k], self.uses.get(bind.vars[k], ())
        if op.inits[k] not in self.zeros or not isinstance(acc.type, Arr) or acc.type.rank != 2 or not uses:
            return None
        if any(not u.subscripts or len(u.subscripts) != 2 for u in uses):
            return None
        result = op.body.results[k]
        made = next((b.op for b in op.body.binds if result in b.vars), None)
        if type(made) is not Prim or made.name not in ("update", "add-at") or len(made.args) != 4:
            return None
        _, *place, x = made.args
        if made.args[0] is not acc or place.count(op.index) != 1 or x in (acc, op.index):
            return None
        own = place.index(op.index)
        if not same(acc.type.dims[own], op.count) or place[1 - own] not in defined_in(op.body):
            return None
        if any(v in reads(b) for b in op.body.binds for v in (acc, result) if b.op is not made):
            return None
        return made if acc not in op.body.results and op.body.results.count(result) == 1 else None

    def placed(self, own: int, places: Atom, values: Atom, *subscripts: Atom) -> Atom:
        """An element of such rows."""
        b, i = self.b, subscripts[own]
        at, x = (b.get(self.atom(a), i) if isinstance(type_of(a), Arr) else self.atom(a) for a in (places, values))
        return b.select(b.prim("=", subscripts[1 - own], at), x, b.zeros(type_of(x)))

    @staticmethod
    def in_body(consumer: Loop, vars: Sequence[Var]) -> bool:
        """Whether the readings stand in the body itself, where they share one copy, not in its branches."""
        wanted = set(vars)
        here = sum(
            1 for b in consumer.body.binds if type(b.op) is Prim and b.op.name == "get" and b.op.args[0] in wanted
        )
        return here > 0


class Builds(Fuse):
    """Puts the elements of some builds where they are read, and does nothing else that ``Fuse`` does."""

    def one_store(self, bind: Bind, op: Loop) -> Prim | None:
        return None

    def by_places(self, bind: Bind, op: Loop) -> Bind:
        return bind

    def without_looks(self, bind: Bind) -> Bind:
        return bind

    def checked_first(self, bind: Bind, op: Loop) -> Bind:
        return bind


class Diagonals(Builds):
    """Puts the elements of a matrix that is read along diagonals alone where they are read, if its indices decide there
    what they are.

    ``m = (build [n n] (fn [i j] (if (= i j) (f i) (g i j)))) .. (build n (fn [i] (get m i i)))``  =>  ``(build n f)``.
    Design decision: before differentiation, too. Else the adjoints of a few diagonals would be put into a matrix of
    zeros, and looked for there. Elements that take more than a few additions are not computed again and again.
    """

    def fusible(self, bind: Bind, op: Loop) -> int:
        uses = [(k, u) for k, v in enumerate(bind.vars) for u in self.uses.get(v, ())]
        if not uses or any(not u.subscripts or len(u.subscripts) != 2 for _, u in uses):
            return 0
        if any(depth_of(op, k) != 2 for k, _ in uses):
            return 0
        if self.sums is None:
            self.sums = sums_in(self.within)
        again = any(len(u.loops) - self.depth > 1 for _, u in uses)
        return 2 if diagonals_cost(op, uses, self.sums, self.costs) < (CHEAP + 1 if again else inf) else 0


def diagonals_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """The same for a block, again and again: what it is made of may be read along diagonals then."""
    b.sizes.update(sizes)
    while "diagonals" not in b.off and makes_matrices(block) and Diagonals(b, block).may(block):
        pass_ = Diagonals(b, block)
        with b.region() as scope:
            results = pass_.block(block)
        made = tidy(b.close(scope, results))
        if not pass_.inlined:
            break
        block = made
    return block


def makes_matrices(block: Block) -> bool:
    """Whether loops make matrices."""
    return any(type(x.op) is Loop and not x.op.accs and any(rank_of(v) == 2 for v in x.vars) for x in all_binds(block))


class Alone(Builds):
    """Puts an element of an array where it is read, if no other one is read there.

    ``v = (build n f) .. (get v k)``  =>  ``(f k)``: the last price on a path, where only the logarithms of the others
    are needed. Design decision: before differentiation too. Else the adjoint of the one would be put into a vector of
    zeros, and each of these multiplied by the slope of ``f``.
    """

    def fusible(self, bind: Bind, op: Loop) -> int:
        uses = {k: self.uses[v] for k, v in enumerate(bind.vars) if v in self.uses}
        if not uses or not all(one_read(u, self.depth) for u in uses.values()):
            return 0
        return min(min(depth_of(op, k), len(u[0].subscripts)) for k, u in uses.items())  # type: ignore[arg-type]


def one_read(uses: Sequence[Use], depth: int) -> bool:
    """Whether the same element is read each time, each of the loops around, ``depth`` of which are around the array as
    well, goes to another one, and not to all of them."""
    first = uses[0]
    if not first.subscripts or any(u.subscripts != first.subscripts or u.loops != first.loops for u in uses):
        return False
    return {loop.index for loop in first.loops[depth:]} < set(first.subscripts)  # type: ignore[operator]


def alone(program: Program) -> Program:
    """Computes an element alone where no other is read of an array."""
    made = alone_block(Builder(), program.body, program.dims)
    return program if made is program.body else with_body(program, made)


def alone_block(b: Builder, block: Block, sizes: Sequence[Var] = ()) -> Block:
    """``alone`` for a block, again and again: one element may be all that is read of another array then."""
    b.sizes.update(sizes)
    while "alone" not in b.off and Loop in kinds_of(block) and Alone(b, block).may(block):
        pass_ = Alone(b, block)
        made = tidy(pass_.remade(block))
        if not pass_.inlined:
            break
        block = made
    return block


class Folded(Builds):
    """Puts the elements of an array that an iteration makes, as long as the iteration says, where a fold goes through
    them, if it looks for the largest or smallest one.

    ``(ifold (fn [t s] .. v = (build (+ s 1) f) .. (fold min (get v 0) v)) t n)``  =>
    ``.. (ifold (fn [m k] (min m (f k))) (f 0) (+ s 1))``.
    Design decision: before differentiation too. Iterations that have arrays of their own lengths remember nothing, and
    their backward code would search again for what has been found. Terms of a sum would all be remembered.
    """

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder, block)
        loops = [x.op for x in all_binds(block) if type(x.op) is Loop]
        self.varying = {v for op in loops for v in (op.index, *defined_in(op.body))}

    def fusible(self, bind: Bind, op: Loop) -> int:
        if op.count not in self.varying or len(bind.vars) != 1 or isinstance(type_of(op.body.results[0]), Arr):
            return 0
        uses = sorted(self.uses.get(bind.vars[0], ()), key=lambda u: -len(u.loops))
        self.uses[bind.vars[0]] = uses  # what the fold reads first, then where it starts
        folds = [u.loops[-1] for u in uses if len(u.loops) == self.depth + 1]
        if len(folds) != 1 or any(len(u.loops) > self.depth + 1 for u in uses):
            return 0
        (fold,) = folds
        found = zip(fold.accs, fold.body.results)
        if len(fold.accs) != len(fold.body.results) or any(picked(fold.body, acc, r) is None for acc, r in found):
            return 0
        return super().fusible(bind, op)


def folded_block(b: Builder, block: Block) -> Block:
    """Folds over what an iteration makes for them alone, in a block."""
    if "fuse" in b.off or Loop not in kinds_of(block) or not Folded(b, block).may(block):
        return block
    return tidy(Folded(b, block).remade(block))


class Branched(Fuse):
    """Puts the body of a ``build`` into the one branch that reads its elements, each at most once.

    ``v = (build n f) ... (build n (fn [i] (if c (get v i) 0)))``  =>  ``(build n (fn [i] (if c (f i) 0)))``.
    Design decision: ``sink`` for arrays, before differentiation and for its reason: the adjoints of elements that a
    ``where`` leaves out are 0, and 0 times an infinite slope is NaN. What has no such slope, as a matrix product, stays
    where it is.
    """

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder, block)
        self.arms = arms_of(block)
        self.steep: set[Atom] = set()  # arrays whose elements, or those that they are made of, have infinite slopes
        for bind in all_binds(block):
            op = bind.op
            if type(op) is Loop:
                inside, made = {op.index, *defined_in(op.body)}, list(all_binds(op.body))
                own = any(type(x.op) is Prim and steep(x.op) and x.op.args[-1] in inside for x in made)
                if own or not self.steep.isdisjoint(a for x in made for a in reads(x)):
                    self.steep.update(bind.vars)
        self.found = False

    def fusible(self, bind: Bind, op: Loop) -> int:
        if all(elem_of(v) == BOOL for v in bind.vars):  # conditions: what they read, the branches share
            return super().fusible(bind, op)
        if self.steep.isdisjoint(bind.vars):
            return 0
        read = [k for k, v in enumerate(bind.vars) if self.uses.get(v)]
        if len(read) != 1:
            return 0
        (k,), uses, arms = read, self.uses[bind.vars[read[0]]], self.arms.get(bind.vars[read[0]], {})
        around, known = uses[0].loops, min(len(u.subscripts or ()) for u in uses)
        n = len(around) - self.depth
        if not 0 < n <= min(depth_of(op, k), known) or any(u.loops != around for u in uses):
            return 0
        for subscripts, found in arms.items():
            own = all(s is loop.index for s, loop in zip(subscripts, around[-n:]))
            if len(found) != 1 or not own or any(type(s) is not Const for s in subscripts[n:]):
                return 0
        if any(arm is None or arm[1] != around for found in arms.values() for arm in found):
            return 0
        self.found = True
        return n

    def one_store(self, bind: Bind, op: Loop) -> Prim | None:
        return None

    def by_places(self, bind: Bind, op: Loop) -> Bind:
        return bind

    def without_looks(self, bind: Bind) -> Bind:
        return bind


def steep(op: Prim) -> bool:
    """Whether the slope of an operation may be infinite: a quotient's, a root's, a logarithm's, that of an exponential
    that overflows."""
    return op.name in PRIMITIVES and PRIMITIVES[op.name].cost > PRIMITIVES["*"].cost


def branched_block(b: Builder, block: Block) -> Block:
    """``sink`` for a block under construction: arrays, too."""
    block = sink_block(block)
    while any(type(x.op) is Loop and If in kinds_of(x.op.body) for x in all_binds(block)):
        pass_ = Branched(b, block)
        with b.region() as scope:
            results = pass_.block(block)
        made = b.close(scope, results)
        if not pass_.found:
            break
        block = sink_block(tidy(made))
    return block


Arm = tuple[int, tuple[Loop, ...]]


def arms_of(block: Block) -> dict[Var, dict[tuple[Atom, ...], set[Arm | None]]]:
    """The branches in which the elements of arrays are read, each with the loops around it; None outside of any."""
    found: dict[Var, dict[tuple[Atom, ...], set[Arm | None]]] = {}

    def walk(b: Block, arm: Arm | None, loops: tuple[Loop, ...]) -> None:
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim and op.name == "get":
                found.setdefault(op.args[0], {}).setdefault(tuple(op.args[1:]), set()).add(arm)  # type: ignore[arg-type]
            inner = (*loops, op) if type(op) is Loop else loops
            for region in blocks_of(op):
                walk(region, (id(region), loops) if type(op) is If else arm, inner)

    walk(block, None, ())
    return found


def stale(block: Block) -> set[Bind]:
    """The builds in a block, and in the regions in it, that read an array and are read where one that has been made of
    it by changing elements is needed: put there they would read it as it was before, which would have to be copied as
    a whole. So they would where the loop that changes it does so at several places."""
    found: set[Bind] = set()
    changes: dict[Atom, list[int]] = {}
    for k, x in enumerate(block.binds):
        for a in changed_by(x):
            changes.setdefault(a, []).append(k)
        for inner in blocks_of(x.op):
            found |= stale(inner)
    if not changes:
        return found
    last = {a: k for k, x in enumerate(block.binds) for a in reads(x)}
    roots: dict[Atom, set[Atom]] = {}  # the arrays that builds read, those that they would be put in place of as well
    after: dict[int, set[Atom]] = {}  # what is read where a change is needed, directly or not
    for x in block.binds:
        if type(x.op) is not Loop or x.op.accs or not any(isinstance(v.type, Arr) for v in x.vars):
            continue
        read = {a for a in reads(x) if isinstance(type_of(a), Arr)}
        read = read.union(*(roots[a] for a in read if a in roots))
        roots.update(dict.fromkeys(x.vars, read))
        end = max((last.get(v, -1) for v in x.vars), default=-1)
        for k in {k for a in read for k in changes.get(a, ()) if k <= end}:
            if k == end:
                late = places(block.binds[k].op) > 1
            else:
                after[k] = after[k] if k in after else {a for y in needing(block.binds, k) for a in reads(y)}
                late = not after[k].isdisjoint(x.vars)
            if late:
                found.add(x)
    return found


def needing(binds: Sequence[Bind], k: int) -> list[Bind]:
    """The bindings after one that need what it gives, directly or not; and the builds that these read."""
    made, found = set(binds[k].vars), []
    for x in binds[k + 1 :]:
        if not made.isdisjoint(reads(x)):
            found.append(x)
            made.update(x.vars)
    read = {a for x in found for a in reads(x)}
    for x in reversed(binds):
        if type(x.op) is Loop and not x.op.accs and not read.isdisjoint(x.vars) and x not in found:
            found.append(x)
            read.update(reads(x))
    return found


def places(op: Op) -> int:
    """At how many places a loop changes arrays."""
    return sum(
        type(x.op) is Prim and x.op.name in ("update", "add-at") for block in blocks_of(op) for x in all_binds(block)
    )


def depth_of(loop: Loop, k: int) -> int:
    """How many builds stand inside one another to make result ``k`` of a loop."""
    r = loop.body.results[k]
    row = next((b for b in loop.body.binds if r in b.vars), None)
    if row is None or type(row.op) is not Loop or row.op.accs or has_checks(row.op.body):
        return 1
    return 1 + depth_of(row.op, row.vars.index(r))  # type: ignore[arg-type]


def permuted(loop: Loop, k: int, levels: int) -> bool:
    """Whether builds inside one another read an array in another order than they make theirs, as a transpose does: what
    is read again and again is made first then, so that it is read in its order."""
    order: list[Atom] = []
    for _ in range(levels):
        order.append(loop.index)
        r = loop.body.results[k]
        for bind in loop.body.binds:
            if type(bind.op) is Prim and bind.op.name == "get":
                at = [order.index(s) for s in bind.op.args[1:] if s in order]
                if at != sorted(at):
                    return True
        row = next((b for b in loop.body.binds if r in b.vars and type(b.op) is Loop), None)
        if row is None:
            break
        loop, k = row.op, row.vars.index(r)  # type: ignore[assignment, arg-type]
    return False


def one_hot(loop: Loop, k: int, levels: int) -> bool:
    """Whether builds inside one another give rows of zeros except where an index, not the last, has a certain value."""
    indices: set[Var] = set()
    made: dict[Atom, Prim] = {}
    for level in range(levels):
        if level < levels - 1:
            indices.add(loop.index)
        made.update((x.vars[0], x.op) for x in loop.body.binds if type(x.op) is Prim)
        r = loop.body.results[k]
        row = next((b for b in loop.body.binds if r in b.vars and type(b.op) is Loop), None)
        if row is None or level == levels - 1:
            break
        loop, k = row.op, row.vars.index(r)  # type: ignore[assignment, arg-type]

    def vanishes(a: Atom) -> bool:
        op = made.get(a)
        if op is None:
            return False
        if op.name == "select":
            test = made.get(op.args[0])
            return is_zero(op.args[2]) and test is not None and test.name == "=" and not indices.isdisjoint(test.args)
        if op.name in ("/", "pass-on", "neg"):
            return vanishes(op.args[0])
        return op.name == "*" and any(map(vanishes, op.args))

    last = made.get(r)
    constant = last is not None and last.name == "select" and type(last.args[1]) is Const  # a unit matrix
    return not constant and vanishes(r)


def of_several(loop: Loop, k: int) -> bool:
    """Whether each number of result ``k`` of a build is made of several that are read."""
    needed = slice_of(loop.body, (loop.body.results[k],)).binds
    return sum(type(x.op) is Prim and x.op.name == "get" and x.vars[0].type == REAL for x in needed) > 1


def makes_sums(op: Loop) -> bool:
    """Whether an element of a build is a sum, of which several can be taken side by side."""
    return any(type(x.op) is Loop and x.op.accs for x in op.body.binds)


def recurs(op: Loop) -> bool:
    """Whether an iteration reads what another one has put into an array: it changes places with no loop around it."""
    return any(isinstance(a.type, Arr) and read_of(op.body, a) for a in op.accs)


def branches(op: Loop) -> bool:
    """Whether loops stand in a branch of a loop's body: its iterations are not taken side by side."""
    return any(type(x.op) is If and any(Loop in kinds_of(arm) for arm in blocks_of(x.op)) for x in op.body.binds)


def is_view(op: Prim) -> bool:
    """Whether an array operation takes no work: a row, or an array whose elements are one."""
    return op.name == "get" or op.name == "array" and all(a is op.args[0] for a in op.args)


def cheap(block: Block) -> bool:
    """Whether a block is scalar operations that are computed again rather than stored."""
    cost = 0
    for bind in block.binds:
        if type(bind.op) is not Prim or isinstance(bind.vars[0].type, Arr):
            return False
        row = PRIMITIVES.get(bind.op.name)
        cost += row.cost if row else 1
    return cost <= CHEAP


# ------------------------------------------------------------------------------------- sibling fusion


def fuse_siblings(program: Program) -> Program:
    """Fuses independent loops of equal length.

    ``(loop n f) (loop n g)``  =>  ``(loop n f+g)``. What stands between them and needs the first comes after, what
    the second needs comes before.
    """
    return with_body(program, siblings(program.body, sums=True))


def siblings(block: Block, wanted: Wanted | None = None, sums: bool = False, around: Around | None = None) -> Block:
    """``fuse_siblings`` for a block; ``wanted`` says of a loop, another and the two as one whether that is to be; and
    before, of None in place of the two as one, whether it may be. ``sums``: also of loops of which the second one adds
    to what the first one has added to."""
    if all(type(bind.op) in (Prim, Check) for bind in block.binds):
        return block
    around = around or Around()
    binds, known, k = list(block.binds), {}, 0
    while k < len(binds):
        op = binds[k].op
        mergeable = type(op) is Loop or type(op) is If and not any(map(has_checks, blocks_of(op)))
        while mergeable and merge_into(binds, k, known, wanted, block.results, sums, around):
            pass
        bind = binds[k]  # what its regions hold now, siblings of both, may join too
        if type(bind.op) is If:
            binds[k] = Bind(
                bind.vars, If(bind.op.cond, *(siblings(x, wanted, sums, around) for x in blocks_of(bind.op))), bind.span
            )
        elif type(bind.op) is Loop:
            inner = siblings(bind.op.body, wanted, sums, around.body(bind.op, binds[:k]))
            binds[k] = Bind(bind.vars, with_blocks(bind.op, [inner]), bind.span)
        k += 1
    return Block(tuple(binds), block.results)


def partners(one: Op, two: Op) -> bool:
    """Whether two loops run equally often, or two branches ask the same."""
    if type(one) is If:
        return type(two) is If and one.cond is two.cond
    return type(one) is Loop and type(two) is Loop and same(one.count, two.count)


def both_loops(one: Op, two: Op) -> bool:
    """Whether two loops run equally often."""
    return type(one) is Loop and partners(one, two)


def as_deep(one: Op, two: Op) -> bool:
    """Whether two loops both have loops inside, or neither has."""
    return (Loop in kinds_of(one.body)) == (Loop in kinds_of(two.body))  # type: ignore[union-attr]


def join(first: Bind, second: Bind) -> Bind | None:
    """One loop, or branch, of two that run together; None where they do not."""
    one, two = first.op, second.op
    v1, v2 = first.vars, second.vars
    if not partners(one, two) or any(map(has_checks, blocks_of(two))):
        return None
    if type(one) is If and type(two) is If:
        regions = [Block(x.binds + y.binds, x.results + y.results) for x, y in zip(blocks_of(one), blocks_of(two))]
        return Bind(v1 + v2, If(one.cond, *regions), first.span)
    if type(one) is Loop and type(two) is Loop:
        width, other = len(one.accs), len(two.accs)
        body = substitute(two.body, {two.index: one.index})
        r1, r2 = one.body.results, body.results
        results = (*r1[:width], *r2[:other], *r1[width:], *r2[other:])
        block = one_count(Block(one.body.binds + body.binds, results))
        loop = Loop(one.count, one.index, one.inits + two.inits, one.accs + two.accs, block)
        return Bind((*v1[:width], *v2[:other], *v1[width:], *v2[other:]), loop, first.span)
    return None


def one_count(block: Block) -> Block:
    """A block whose loops have one count where both of them compute the same integer."""
    counts = {x.op.count for x in block.binds if type(x.op) is Loop}
    if len(counts) < 2:
        return block
    found: dict[tuple[str, tuple[Atom, ...]], Var] = {}
    table: dict[Var, Atom] = {}
    binds = []
    for x in block.binds:
        if type(x.op) is Prim and x.vars[0].type == INT:
            operands = tuple(table.get(a, a) for a in x.op.args)  # type: ignore[call-overload]
            known = found.setdefault((x.op.name, operands), x.vars[0])
            if known is not x.vars[0]:
                table[x.vars[0]] = known
                continue
        binds.append(x)
    return block if counts.isdisjoint(table) else substitute(Block(tuple(binds), block.results), table)


def at_once(first: Bind, second: Bind, after: set[Var]) -> Bind | None:
    """A later loop that reads, of what depends on the first one (``after``), nothing but what that stacks, and of this
    what that has made in the same iteration: with the numbers and rows in place of what is read. None if it reads more.

    ``a = (build n f) .. (build n (fn [i] (g (get a i))))``  =>  the second as ``(build n (fn [i] (g (f i))))``, where
    ``(f i)`` is the first one's.
    """
    made = taken(first, second)
    return made if after.isdisjoint(reads(made)) else None


def stacked(bind: Bind) -> tuple[Var, ...]:
    """The arrays that a loop stacks."""
    assert type(bind.op) is Loop
    return bind.vars[len(bind.op.accs) :]


def taken(first: Bind, second: Bind) -> Bind:
    """A loop with what another one makes in the same iteration in place of what it reads there of its arrays."""
    one, two = first.op, second.op
    assert type(one) is Loop and type(two) is Loop
    width = len(one.accs)
    rows = dict(zip(first.vars[width:], one.body.results[width:]))
    table: dict[Var, Atom] = {}

    def put(block: Block) -> Block:
        binds = []
        for x in block.binds:
            if type(x.op) is Prim and x.op.name == "get" and x.op.args[0] in rows and x.op.args[1] is two.index:
                row = rows[x.op.args[0]]  # type: ignore[index]
                if len(x.op.args) == 2:
                    table[x.vars[0]] = row
                    continue
                x = Bind(x.vars, Prim("get", (row, *x.op.args[2:])), x.span, x.soft)
            inner = blocks_of(x.op)
            binds.append(Bind(x.vars, with_blocks(x.op, list(map(put, inner))), x.span, x.soft) if inner else x)
        return Block(tuple(binds), block.results)

    body = put(two.body)
    return Bind(second.vars, Loop(two.count, two.index, two.inits, two.accs, substitute(body, table)), second.span)


def continued(first: Bind, second: Bind, after: set[Var]) -> Bind | None:
    """One loop of two, of which the second one goes on with sums that the first one has begun, and reads nothing else
    that depends on it (``after``) but what it stacks in the same iteration. None if they are others.

    ``s = (ifold (fn [s i] (+ s (f i))) z n) .. (ifold (fn [s i] (+ s (g i))) s n)``  =>
    ``(ifold (fn [s i] (+ s (f i) (g i))) z n)``.
    Design decision: of sums of differentiation's own, whose terms have no order, and of sums for each row of an array:
    their terms stay in their order.
    """
    if has_checks(second.op.body):  # type: ignore[union-attr]
        return None
    one, two = first.op, second.op
    assert type(one) is Loop and type(two) is Loop
    width, other = len(one.accs), len(two.accs)
    goes_on = {k: first.vars.index(z) for k, z in enumerate(two.inits) if z in first.vars[:width]}
    if not goes_on or len(set(goes_on.values())) < len(goes_on):
        return None
    rest = [z for k, z in enumerate(two.inits) if k not in goes_on]
    if not after.difference(stacked(first)).isdisjoint({*rest, two.count, *free_vars(two.body)}):
        return None
    two = taken(first, second).op  # type: ignore[assignment]
    if not after.isdisjoint({*rest, two.count, *free_vars(two.body)}):
        return None
    for k, j in goes_on.items():
        here = own_sum(one.body, one.index, one.accs[j], one.body.results[j])
        there = own_sum(two.body, two.index, two.accs[k], two.body.results[k])
        if not (here and there and here & there):
            return None
    table: dict[Var, Atom] = {two.accs[k]: one.body.results[j] for k, j in goes_on.items()}
    body = substitute(two.body, {two.index: one.index, **table})
    r1, r2, v1 = list(one.body.results), body.results, list(first.vars)
    for k, j in goes_on.items():
        r1[j], v1[j] = r2[k], second.vars[k]
    new = [k for k in range(other) if k not in goes_on]
    results = (*r1[:width], *(r2[k] for k in new), *r1[width:], *r2[other:])
    vars = (*v1[:width], *(second.vars[k] for k in new), *v1[width:], *second.vars[other:])
    inits = (*one.inits, *(two.inits[k] for k in new))
    accs = (*one.accs, *(two.accs[k] for k in new))
    return Bind(vars, Loop(one.count, one.index, inits, accs, Block(one.body.binds + body.binds, results)), first.span)


def own_sum(block: Block, index: Var, acc: Var, result: Atom) -> set[int] | None:
    """On which axes an iteration adds to one row of an accumulator only, that at ``index``, or -1 where the order of
    what it adds is nobody's; None if it does anything else with it."""
    if not sum_like(block, acc, result):
        return None
    chain: set[Atom] = {acc}
    own, axes = True, set(range(acc.type.rank if isinstance(acc.type, Arr) else 0))
    for bind in block.binds:
        op = bind.op
        if not chain.isdisjoint(reads(bind)):
            if type(op) is Loop:  # it is one that only adds, all over the array
                k = next(k for k, z in enumerate(op.inits) if z in chain)
                own = own and own_sum(op.body, op.index, op.accs[k], op.body.results[k]) is not None
                axes = set()
                chain.add(bind.vars[k])
                continue
            if type(op) is not Prim:
                return None
            own = own and bind.soft
            axes &= {k for k, a in enumerate(op.args[1:-1]) if a is index} if op.name == "add-at" else set()
            chain.add(bind.vars[0])
    return {-1} if own else axes or None


def repeated(first: Bind, second: Bind, before: Sequence[Bind]) -> Bind | None:
    """A loop that checks, with the results of a second one that computes the same without checks; None if that does
    not. ``share`` leaves one of each."""
    one, two = first.op, second.op
    if not both_loops(one, two) or has_checks(two.body) or two.snapshots is not None:  # type: ignore[union-attr]
        return None
    assert type(one) is Loop and type(two) is Loop
    known, width, other = Once(Block((*before, first, second), ())).sources, len(one.accs), len(two.accs)
    found = []
    for k, v in enumerate(second.vars):
        same_kind = range(width) if k < other else range(width, len(first.vars))
        at = next((j for j in same_kind if first.vars[j].type == v.type and Match(known, {})(first.vars[j], v)), None)
        if at is None:
            return None
        found.append(one.body.results[at])
    r, v = one.body.results, first.vars
    results = (*r[:width], *found[:other], *r[width:], *found[other:])
    loop = Loop(one.count, one.index, one.inits + two.inits, one.accs + two.accs, Block(one.body.binds, results))
    return Bind((*v[:width], *second.vars[:other], *v[width:], *second.vars[other:]), loop, first.span)


def dear_to_check(first: Op, second: Op) -> bool:
    """Whether a loop that checks where elements are had better be one with a loop that looks there: it finds that by a
    search, or from a real number; or no compiler would make vectors of the second, which adds to what it finds."""
    for x in all_binds(first.body):  # type: ignore[union-attr]
        if x.op.accs if type(x.op) is Loop else type(x.op) is Prim and x.op.name == "int":
            return True
    binds = [x for x in all_binds(second.body) if type(x.op) is Prim]  # type: ignore[union-attr]
    made = {x.vars[0]: x.op for x in binds}
    todo = [a for x in binds if x.op.name == "add-at" for a in x.op.args[1:-1]]  # type: ignore[union-attr]
    while todo:
        at = made.get(todo.pop())  # type: ignore[call-overload]
        if at is not None and at.name not in ("+", "-", "*"):  # type: ignore[union-attr]
            return True
        todo += at.args if at is not None else ()  # type: ignore[union-attr]
    return False


def early_use(
    first: Bind, made: Bind, binds: Sequence[Bind], second: Bind, results: Sequence[Atom], known: Reads
) -> bool:
    """Whether something else reads what ``first`` gives and ``made``, it and ``second`` in one, does not."""
    gone = set(first.vars).difference(made.vars)
    return any(r in gone for r in results) or any(
        x is not first and x is not second and not gone.isdisjoint(known_reads(x, known)) for x in binds
    )


def known_reads(bind: Bind, known: Reads) -> dict[Var, None]:
    """What a binding reads."""
    found = known.get(bind)
    if found is None:
        found = known[bind] = reads(bind)
    return found


def merge_into(
    binds: list[Bind],
    k: int,
    known: Reads,
    wanted: Wanted | None = None,
    results: Sequence[Atom] = (),
    sums: bool = False,
    around: Around | None = None,
) -> bool:
    """Merge a later loop or branch into the one at ``k`` if one can be; what needs the first one's results stays
    behind, what the second needs comes before. ``results``: what their block gives; ``sums`` as in ``siblings``."""
    first, around = binds[k], around or Around()
    near = range(min(len(binds), k + NEAR) - 1, k, -1)
    last = next((j for j in near if partners(first.op, binds[j].op)), None)
    if last is None:
        return False
    after = set(first.vars)  # what depends on the first
    rows = set(stacked(first)) if type(first.op) is Loop else set()
    totals = after - rows
    fallible = any(map(has_checks, blocks_of(first.op)))
    checked = passed = False  # whether a check is among what stays behind, and one that asks nothing of the first
    early: list[Bind] = []
    late: list[Bind] = []
    for j in range(k + 1, last + 1):
        bind = binds[j]
        if type(bind.op) is Check:
            checked = passed = True
            late.append(bind)
            continue
        reading, needs = None, after.intersection(known_reads(bind, known))
        if needs and not checked and both_loops(first.op, bind.op) and (wanted is not None or sums):
            if wanted is not None and needs <= rows:
                reading = at_once(first, bind, after)
            going_on = None
            if reading is None and not fallible and not totals.isdisjoint(bind.op.inits):  # type: ignore[union-attr]
                going_on = continued(first, bind, after)
            if going_on is not None and not early_use(first, going_on, binds, bind, results, known):
                if as_deep(first.op, bind.op) if wanted is None else wanted(first, bind, going_on):
                    binds[k : j + 1] = [*early, going_on, *late]
                    return not early
        twin = repeated(first, bind, [*around.before, *binds[:k], *early]) if fallible and not needs else None
        if twin is not None:
            binds[k : j + 1] = [*early, twin, *late]
            return not early
        if reading is None and needs:
            checked = checked or any(map(has_checks, blocks_of(bind.op)))
            after.update(bind.vars)
            late.append(bind)
            continue
        if passed and not kinds_of(Block((bind,), ())).isdisjoint((Apply, While)):
            return False  # what may not end comes after it
        may = partners(first.op, bind.op) and (wanted is None or wanted(first, bind, None))
        made = join(first, reading or bind) if may else None
        if made is not None and (fallible or checked):
            made = made if in_range(bind, first if fallible else None, [*binds[:k], *early], around) else None
            if fallible and wanted is None and not dear_to_check(first.op, bind.op):
                if not first.vars or in_range(bind, None, [*binds[:k], *early], around):
                    made = None  # what cannot fail is better in a loop that cannot
        if made is not None and (wanted is None or wanted(first, bind, made)):
            binds[k : j + 1] = [*early, made, *late]
            return not early
        if reading is not None:
            after.update(bind.vars)
            late.append(bind)
            continue
        if (fallible or checked) and (
            any(map(has_checks, blocks_of(bind.op))) or not in_range(bind, None, [*binds[:k], *early], around)
        ):
            return False  # the first one fails first; and what it has checked is in range behind it
        early.append(bind)
    return False
