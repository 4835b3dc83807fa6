"""Iterations of a loop in lanes: eight at once, each step of their inner loops done for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Op,
    Prim,
    Scalar,
    Type,
    Var,
    all_binds,
    atoms_of,
    binds_of,
    blocks_of,
    defined_in,
    reads,
    type_of,
)
from ..program.affine import affine_add
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import CALL, CHEAP, closure, cost_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from .fission import independent
from .nests import Steps, additions, part_of

#: How many iterations go side by side: a vector register has room for so many numbers.
LANES = 8

GATHER = 8  # in additions: what has to be done with a number that each lane reads from a row of its own
CHAIN = 4  # in additions: what a recurrence does with a number that each lane reads from a row of its own
STRAIGHT = 16  # in additions: what an innermost loop without sums has to do, for lanes to be worth it


class Views(Rebuild):
    """Reads an array of one lane, where the lanes have theirs together, at the lane."""

    def __init__(self, builder: Builder, views: dict[Var, tuple[Atom, Atom]]) -> None:
        super().__init__(builder)
        self.views = views  # an array of an iteration: the array of the lanes, and the lane

    def bind(self, bind: Bind) -> None:
        op, v = bind.op, bind.vars[0] if bind.vars else None
        if type(op) is Prim and op.name == "get" and op.args[0] in self.views:
            lanes, lane = self.views[op.args[0]]  # type: ignore[index]
            self.here[v] = self.b.get(lanes, *self.atoms(op.args[1:]), lane, hint=v.name, given=v.given)  # type: ignore
        else:
            self.copy(bind)


class Lanes(Views):
    """Runs the loops that an iteration begins with for eight iterations at once.

    ``(ifold (fn [s i] (g s i (build k (fn [j] (ifold (fn [t c] (+ t (f i j c))) 0.0 d))))) z n)``  =>  for eight ``i``
    at a time first a table of the ``t``s, whose innermost loop runs over the eight; then ``g`` for each ``i`` in turn.
    Design decision: each sum is taken in its own order, to the last bit. A compiler may not reorder the additions of
    one sum; those of eight sums are one vector instruction. What is read at the eight ``i`` is copied side by side
    first; what is read elsewhere is read once for all of them. The last lanes of the last eight repeat iteration
    ``n - 1``, and nobody looks at them.
    """

    def __init__(self, builder: Builder, steps: Steps) -> None:
        super().__init__(builder, {})
        self.steps = steps

    def plan(self, op: Loop) -> tuple[Loop, Plan | None]:
        """A loop, and what of its iterations goes ahead."""
        return op, None if self.steps.few(op.count) or columns_alone(op) else ahead(op)

    def takes(self, bind: Bind) -> bool:
        return self.plan(bind.op)[1] is not None  # type: ignore[arg-type]

    def bind(self, bind: Bind) -> None:
        loop, plan = self.plan(bind.op) if type(bind.op) is Loop else (None, None)
        again = len(self.b.scopes) > 1  # in each iteration of a loop around
        if plan is None or again and not self.reads_all(loop, plan):  # type: ignore[arg-type]
            super().bind(bind)
        else:
            self.tiles(bind, loop, plan)  # type: ignore[arg-type]

    def reads_all(self, op: Loop, plan: Plan) -> bool:
        """Whether the loops of a plan go along all of what is laid side by side for them, or how far they go is not
        told by another size: not a window of a long row, of which each iteration around would copy all."""
        within = [x.op for x in all_binds(Block(tuple(plan.binds), ()))]
        counts: dict[Atom, Atom] = {x.index: x.count for x in within if type(x) is Loop}

        def follows(a: Atom, n: Atom) -> bool:
            """Whether an integer is made of a size, or of the indices of loops that go as far as the size says."""
            if a in counts:
                return follows(counts[a], n)
            made = self.steps.definitions.get(a)  # type: ignore[arg-type]
            if type(made) is Prim and made.name in ("+", "-", "*", "//", "min", "max"):
                return (all if made.name == "min" else any)(follows(x, n) for x in made.args)
            return a is n

        for look in within:
            if type(look) is Prim and look.name == "get" and op.index in look.args[1:]:
                dims = type_of(look.args[0]).dims  # type: ignore[union-attr]
                for at, n in zip(look.args[1:], dims):
                    if at is not op.index and type(n) is Var and not counts.keys().isdisjoint(self.indices(at)):
                        if not any(follows(at, size) for size in self.indices(n)):
                            return False
        return True

    def indices(self, a: Atom) -> set[Atom]:
        """The integers that sums and products make an integer of."""
        made = self.steps.definitions.get(a)  # type: ignore[arg-type]
        if type(made) is Prim and made.name in ("+", "-", "*"):
            return set().union(*map(self.indices, made.args))
        return {a}

    def tiles(self, bind: Bind, op: Loop, plan: Plan) -> None:
        b, count = self.b, self.b.trips(self.atom(op.count))
        eight = Const(LANES, INT)
        tiles = b.prim("//", b.prim("+", count, Const(LANES - 1, INT)), eight)
        if type(tiles) is Var:
            b.sizes.add(tiles)

        def tile(q: Atom, *state: Atom):
            return self.tile(bind, op, plan, b.prim("*", eight, q), state), ()

        state, names, accs = self.filling(op, bind)
        out = b.loop(tiles, state, tile, names, "tile", accs)
        b.span = bind.span
        self.define(bind, out)

    def tile(self, bind: Bind, op: Loop, plan: Plan, first: Atom, state: Sequence[Atom]) -> Sequence[Atom]:
        """The eight iterations from ``first`` on, or as many as are left: what goes ahead of all of them, then the rest
        of each in turn. ``state``: the accumulators, and the arrays that are stacked."""
        b, count, width = self.b, self.atom(op.count), len(op.accs)
        lanes = Ahead(b, self, op, plan, first, b.prim("-", count, Const(1, INT))).run()
        for made in plan.binds:  # a row that is quickly made is made again: in its own order, not side by side
            if quick(made.op) and plan.whole.isdisjoint(made.vars):
                for v in made.vars:
                    lanes.pop(v, None)
        left = self.left(count, first)

        def one(lane: Atom, *state: Atom):
            self.here[op.index] = b.prim("+", first, lane)
            self.here.update(zip(op.accs, state))
            for v, array in lanes.items():
                if isinstance(v.type, Scalar):
                    self.here[v] = b.get(array, lane, hint=v.name, given=v.given)
                elif v in plan.whole:
                    self.here[v] = self.row(array, v.type, (), lane)  # type: ignore[arg-type]
                else:
                    self.views[v] = array, lane
            rest = tuple(x for x in op.body.binds if not any(v in lanes for v in x.vars))
            results = self.block(Block(rest, op.body.results))
            at = self.here[op.index]
            arrays = [
                b.update(a, [at], x, v.name) for a, x, v in zip(state[width:], results[width:], bind.vars[width:])
            ]
            return [*results[:width], *arrays], ()

        names = [v.name for v in bind.vars]
        return b.loop(left, state, one, names, op.index.name, [*(a.name for a in op.accs), *names[width:]])

    def left(self, count: Atom, first: Atom) -> Atom:
        """How many iterations a tile has."""
        left = self.b.prim("min", Const(LANES, INT), self.b.prim("-", count, first))
        if type(left) is Var:
            self.b.sizes.add(left)
        return left

    def row(self, lanes: Atom, t: Arr, indices: tuple[Atom, ...], lane: Atom) -> Atom:
        """The array of one lane."""
        if len(indices) == t.rank:
            return self.b.get(lanes, *indices, lane)
        size = type_of(lanes).dims[len(indices)]  # type: ignore[union-attr]
        return self.b.build(size, lambda i: self.row(lanes, t, (*indices, i), lane))


class RowLanes(Lanes):
    """The same for the few iterations of a tile, where they add to parts of a row that each of them has.

    ``(ifold (fn [g lane] (let [row (ifold (fn [row r] (ifold (fn [row c] (add-at row c (f lane r c))) row (+ r 1)))
    (zeros d) d)] ..)) z left)``  =>  the rows of eight lanes side by side, each of them added to in its own order.
    Design decision: where the part that is added to is not as long in each iteration, as a triangle's rows: of these a
    C compiler makes no whole vectors, and no four of them are taken together. What is added to all of a row is.
    """

    def __init__(self, builder: Builder, steps: Steps) -> None:
        super().__init__(builder, steps)
        self.around: dict[Atom, Atom] = {}  # the indices of the loops around, and how often these run

    def takes(self, bind: Bind) -> bool:
        definition = self.steps.definitions.get(bind.op.count)  # type: ignore[union-attr]
        return type(definition) is Prim and definition.name == "min"  # what is around it is not known yet

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        self.around[op.index] = op.count
        return super().loop(op, bind)

    def plan(self, op: Loop) -> tuple[Loop, Plan | None]:
        if not op.accs or not self.of_a_tile(op.count):
            return op, None
        binds: list[Bind] = []
        for bind in op.body.binds:  # what adds to a row of the iteration's own, and to others
            groups = independent(bind.op)[0] if type(bind.op) is Loop and not has_checks(bind.op.body) else ()
            binds += [part_of(bind, group) for group in groups] if len(groups) > 1 else [bind]
        apart = replace(op, body=Block(tuple(binds), op.body.results))
        return apart, ahead(apart, self.triangle)

    def tiles(self, bind: Bind, op: Loop, plan: Plan) -> None:
        self.b.span = bind.span
        self.b.fired("row-lanes")
        made = self.tile(bind, op, plan, Const(0, INT), self.atoms(op.inits))
        self.b.span = bind.span
        self.define(bind, made)

    def left(self, count: Atom, first: Atom) -> Atom:
        return count

    def of_a_tile(self, count: Atom) -> bool:
        """Whether a trip count is that of a tile's lanes, from one to eight: ``(min 8 (- n (* 8 tile)))``, where
        ``tile`` counts to ``(// (+ n 7) 8)``."""

        def made(a: Atom, name: str) -> Sequence[Atom]:
            op = self.steps.definitions.get(a)  # type: ignore[arg-type]
            return op.args if type(op) is Prim and op.name == name else (None, None)  # type: ignore[return-value]

        eight = Const(LANES, INT)
        most, left = made(count, "min")
        n, done = made(left, "-")
        factor, tile = made(done, "*")
        if most != eight or factor != eight or tile not in self.around:
            return False
        tiles = self.around[tile]
        if type(n) is Const and type(tiles) is Const:
            return tiles.value * LANES < n.value + LANES
        rounded, divisor = made(tiles, "//")
        return divisor == eight and made(rounded, "+") == (n, Const(LANES - 1, INT))

    def triangle(self, op: Loop) -> bool:
        """Whether a loop adds to rows whose parts are longer or shorter from iteration to iteration."""
        inside = {op.index, *op.accs, *defined_in(op.body)}
        rows = {a for a in op.accs if isinstance(a.type, Arr)}
        inner = [bind.op for bind in op.body.binds if type(bind.op) is Loop and not rows.isdisjoint(bind.op.inits)]
        return any(self.steps.step(x.count, op.index, inside) != 0 for x in inner)


class Plan:
    """What goes ahead in lanes: ``binds`` of the loop's body; ``varying``, the variables that differ between lanes;
    ``whole``, the arrays that the rest reads otherwise than by element."""

    def __init__(self, binds: list[Bind], varying: set[Atom], whole: set[Var]) -> None:
        self.binds, self.varying, self.whole = binds, varying, whole


def ahead(op: Loop, rows: Callable[[Loop], bool] | None = None) -> Plan | None:
    """What of an iteration can go ahead in lanes, if it is worth it: loops that do not wait for the iteration before
    and run equally often in each. ``rows`` says which of those that add to rows of zeros are worth it; without it, none
    is, but those that sum are."""
    stacks = len(op.body.results) > len(op.accs)
    if stacks and rows is not None or op.index.soft or has_checks(op.body):
        return None
    if type(op.count) is Const and op.count.value < 2 * LANES:
        return None
    if not any(type(bind.op) is Loop for bind in op.body.binds):
        return None
    late: set[Atom] = set(op.accs)
    varying: set[Atom] = {op.index}
    early: dict[Atom, Bind] = {}
    slow: list[Bind] = []
    found = {v for x in op.body.binds if element(x) for v in x.vars}
    for bind in op.body.binds:
        if late.intersection(reads(bind)):
            late.update(bind.vars)
        elif type(bind.op) is Prim and in_lanes(Block((bind,), ()), varying, rows is not None):
            early[bind.vars[0]] = bind
        elif type(bind.op) is Loop and in_lanes(Block((bind,), ()), varying, rows is not None):
            early.update((v, bind) for v in bind.vars)
            if stacks and (inner_loops(bind.op) or neighbours(bind.op, varying)):
                continue  # the rows of a product, or sums that become one: these lie side by side as they are
            moved = {v for v in early if v in varying and type(v) is Var and v.type == INT} - found
            apart = multiples(moved, early)
            if worth(bind.op, op.index, found, moved, apart) if rows is None else rows(bind.op):
                slow.append(bind)
        else:
            late.update(bind.vars)

    def closed(bind: Bind) -> set[Bind]:
        found: set[Bind] = set()
        stack = [bind]
        while stack:
            bind = stack.pop()
            if bind not in found:
                found.add(bind)
                stack += [early[a] for a in reads(bind) if a in early]
        return found

    groups = list(map(closed, slow))
    if all(dear(x) for bind in slow for x in inner_loops(bind.op)):  # type: ignore[arg-type]
        groups = [group for group in groups if not any(type(bind.op) is Loop and dear(bind.op) for bind in group)]
    groups = [group for group in groups if not copied_for_little(group, varying)]
    needed = set().union(*groups)
    if not needed:
        return None
    binds = [bind for bind in op.body.binds if bind in needed]
    made = {v for bind in binds if type(bind.op) is Loop for v in bind.vars if isinstance(v.type, Arr)}
    rest = [bind for bind in op.body.binds if bind not in needed or type(bind.op) is Prim]
    whole = {r for r in op.body.results if r in made}
    for bind in rest:
        for inner in binds_of(bind):
            look = inner.op
            by_element = type(look) is Prim and look.name == "get" and not isinstance(inner.vars[0].type, Arr)
            whole |= {a for a in atoms_of(look)[1 if by_element else 0 :] if a in made}  # type: ignore[misc]
        whole |= {r for block in blocks_of(bind.op) for r in block.results if r in made}  # type: ignore[misc]
    return Plan(binds, varying, whole)  # type: ignore[arg-type]


def in_lanes(block: Block, varying: set[Atom], rows: bool = False) -> bool:
    """Whether a block is scalar operations and loops that run equally often in all lanes, and with ``rows`` additions
    to elements of zeros; ``varying`` learns what of it differs between them."""
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name == "array" and all(type_of(a) == REAL for a in op.args):
            if not varying.intersection(op.args):
                return False
            varying.add(bind.vars[0])
        elif type(op) is Prim and rows and op.name in ("zeros", "add-at"):
            if op.name == "add-at" and op.args[0] not in varying or type_of(bind.vars[0]).elem != REAL:  # type: ignore[union-attr]
                return False
            varying.add(bind.vars[0])
        elif type(op) is Prim:
            if not isinstance(bind.vars[0].type, Scalar) or not (op.name in PRIMITIVES or op.name in ("get", "select")):
                return False
            if op.name == "select" and isinstance(op.args[1].type, Arr):  # type: ignore[union-attr]
                return False
            if varying.intersection(op.args):
                varying.add(bind.vars[0])
        elif type(op) is Loop:
            width = len(op.accs)
            if op.count in varying or op.index.soft:
                return False
            for z, a, r in zip(op.inits, op.accs, op.body.results):
                if a.type not in (REAL, INT) and not (rows and z in varying and one_addition(op.body, a, r)):
                    return False
            stacked = op.body.results[width:]
            if any(r in op.accs or r.type not in (REAL, INT) and not isinstance(r.type, Arr) for r in stacked):
                return False
            inside = {op.index, *op.accs, *defined_in(op.body)}
            if any(d in inside for v in defined_in(op.body) if isinstance(v.type, Arr) for d in v.type.dims):
                return False
            varying.update(op.accs)
            if not in_lanes(op.body, varying, rows):
                return False
            if any(isinstance(r.type, Arr) and r not in varying for r in stacked):
                return False
            varying.update(bind.vars[:width])
            varying.update(v for v, r in zip(bind.vars[width:], stacked) if r in varying)
            if not varying.intersection(bind.vars):
                return False
        else:
            return False
    return True


def quick(op: Op) -> bool:
    """Whether a binding is a build of numbers that are as soon computed as read."""
    numbers = type(op) is Loop and not op.accs and all(type(r) is Var and r.type == REAL for r in op.body.results)
    return numbers and all(type(x.op) is Prim for x in op.body.binds) and cost_of(op.body) <= CHEAP  # type: ignore


def one_addition(block: Block, acc: Var, result: Atom) -> bool:
    """Whether all that a block does with an array is to add to it in one place."""
    places = additions(block, acc, result)
    return places is not None and len(places) == 1


def neighbours(op: Loop, varying: set[Atom]) -> bool:
    """Whether a loop reads elements that lie side by side, each for one lane."""
    gets = (x.op for x in all_binds(op.body) if type(x.op) is Prim and x.op.name == "get")
    return any(x.args[-1] in varying for x in gets)


def inner_loops(op: Loop) -> list[Loop]:
    """The loops in a loop."""
    return [x.op for x in all_binds(op.body) if type(x.op) is Loop]


def dear(op: Loop) -> bool:
    """Whether a loop calls functions: one by one, in lanes as elsewhere, and those of the last lanes for nobody. What
    is worth that is a nest of loops beside it, or a loop inside, which has more to do."""
    names = (x.op.name for x in all_binds(op.body) if type(x.op) is Prim)
    return any(name in PRIMITIVES and PRIMITIVES[name].cost >= CALL for name in names)


def element(bind: Bind) -> bool:
    """Whether a binding reads an index from an array of integers."""
    return type(bind.op) is Prim and bind.op.name == "get" and bind.vars[0].type == INT


def multiples(moved: set[Var], made: Mapping[Atom, Bind]) -> set[Var]:
    """Those integers made of the lanes' index that are not next to one another in lanes that are."""
    apart: set[Var] = set()
    for v in made:  # in their order
        if v in moved:
            op = made[v].op
            sums = type(op) is Prim and op.name in ("+", "-")
            if not sums or not apart.isdisjoint(op.args):  # type: ignore[union-attr]
                apart.add(v)  # type: ignore[arg-type]
    return apart


def worth(op: Loop, index: Var, found: set[Var], moved: set[Var], apart: set[Var]) -> bool:
    """Whether a loop's innermost loops are sums or read columns, which C compilers do not vectorise, and read what lies
    side by side for several of their sums: no rows of the lanes' own, by their ``index`` or by those that they have
    ``found`` in an array, and few by numbers made of the index (``moved``), or in a row by those that are ``apart``:
    these are read one by one."""
    inner = inner_loops(op)
    if any(scattered(x, moved, apart) for x in (op, *inner)):
        return False
    if any(x.accs for x in inner):
        return not copied_once(op, index) and not rows_of_products(op, index)
    binds = [b for b in all_binds(op.body) if type(b.op) is Prim]
    reads = [b.op.args for b in binds if b.op.name == "get"]  # type: ignore[union-attr]
    at_index = any(index in args or not found.isdisjoint(args[1:-1]) for args in reads)
    if op.accs and not at_index:
        return True
    waits = any(not simple_step(op, a, r) for a, r in zip(op.accs, op.body.results))
    if waits and cost_of(op.body) >= CHAIN * sum(index in args for args in reads):
        return True
    columns = any(b.op.name == "get" and op.index in b.op.args[1:-1] for b in binds)  # type: ignore[union-attr]
    work = sum(PRIMITIVES[b.op.name].cost for b in binds if b.op.name in PRIMITIVES)  # type: ignore[union-attr]
    return not inner and not op.accs and columns and not at_index and work >= STRAIGHT


def simple_step(op: Loop, acc: Var, result: Atom) -> bool:
    """Whether an accumulator is a sum, or the largest of some values: C compilers compute those ahead."""
    last = next((x.op for x in op.body.binds if result in x.vars), None)
    return type(last) is Prim and last.name in ("+", "-", "max", "min") and acc in last.args


def scattered(op: Loop, moved: set[Var], apart: set[Var]) -> bool:
    """Whether a loop reads elements of rows by numbers made of the lanes' index, and does little with each: to gather
    the eight takes longer than the additions of one sum wait for one another."""
    here = [x for x in op.body.binds if type(x.op) is Prim]
    looks = [x.op.args[1:] for x in here if x.op.name == "get"]  # type: ignore[union-attr]
    gathers = sum(not moved.isdisjoint(at[:-1]) or at[-1] in apart for at in looks)
    return cost_of(Block(tuple(x for x in here if x.vars[0].type == REAL), ())) < GATHER * gathers


def rows_of_products(op: Loop, index: Var) -> bool:
    """Whether all sums of a nest are elements of the products of one matrix with the lanes', ``s + a[index, i, k]*w[k,
    j]``, in the order ``i, j, k``: a row of the product is a sum of rows, which lie side by side as they are."""
    loops = [x.op for x in op.body.binds if type(x.op) is Loop]
    if op.accs or not loops or any(type(x.op) is Prim for x in op.body.binds):
        return False
    for row in loops:
        sums = [x.op for x in row.body.binds if type(x.op) is Loop]
        if row.accs or len(sums) != 1:
            return False
        looks = [x.op.args[1:] for x in all_binds(row.body) if type(x.op) is Prim and x.op.name == "get"]
        if not all(index in args or args[-2:] == (sums[0].index, row.index) for args in looks):
            return False
        if not any(index in args and row.index not in args for args in looks):
            return False
    return True


def columns_alone(op: Loop) -> bool:
    """Whether loops in an iteration read columns of matrices that are its own, and nothing else that is: what these do
    for all iterations lies side by side as it is (``interchange``)."""
    inner = (x for bind in op.body.binds if type(bind.op) is Loop for x in all_binds(bind.op.body))
    looks = [x.op.args for x in inner if type(x.op) is Prim and x.op.name == "get" and op.index in x.op.args[1:]]
    return bool(looks) and all(len(at) > 2 and at[-1] is op.index and op.index not in at[1:-1] for at in looks)


def copied_once(op: Loop, index: Var) -> bool:
    """Whether all that a nest reads at the lanes' ``index``, each lane its own rows, it reads once, and does as good as
    nothing with it but add it up: to lay it side by side takes as long as the sums do."""
    once: list[bool] = []
    work = 0

    def walk(loop: Loop, loops: int) -> None:
        nonlocal work
        here = [x for x in loop.body.binds if type(x.op) is Prim]
        found = [x.op for x in here if x.op.name == "get" and index in x.op.args]  # type: ignore[union-attr]
        once.extend(loops <= len(look.args) - 2 for look in found)  # type: ignore[union-attr]
        if found:
            work += cost_of(Block(tuple(x for x in here if x.vars[0].type == REAL), ()))
        for x in loop.body.binds:
            if type(x.op) is Loop:
                walk(x.op, loops + 1)

    walk(op, 1)
    return bool(once) and all(once) and work < 2 * len(once)


def copied_for_little(group: set[Bind], varying: set[Atom]) -> bool:
    """Whether the loops of a group, none of them a nest, read rows of each lane's own, and do little with them: to lay
    them side by side takes as long."""
    loops = [bind.op for bind in group if type(bind.op) is Loop]
    if any(inner_loops(op) for op in loops):
        return False
    here = [x for op in loops for x in op.body.binds if type(x.op) is Prim]
    rows = sum(x.op.name == "get" and not varying.isdisjoint(x.op.args[1:-1]) for x in here)  # type: ignore[union-attr]
    return cost_of(Block(tuple(x for x in here if x.vars[0].type == REAL), ())) < 2 * rows


class Ahead(Views):
    """Emits what goes ahead: scalars become arrays of eight, arrays get one more dimension, the last."""

    def __init__(self, b: Builder, around: Views, op: Loop, plan: Plan, first: Atom, last: Atom) -> None:
        super().__init__(b, around.views)
        self.here = dict(around.here)
        self.op, self.plan, self.first, self.last = op, plan, first, last
        self.lanes: dict[Var, Atom] = {}
        self.stores: set[Atom] = set()  # arrays that hold one step of the lanes
        self.inside = {op.index, *defined_in(op.body)}
        self.fixed: dict[tuple[Atom, int], set[int]] = {}  # dimensions of which a tile reads one index at a time
        self.tables: dict[tuple, Atom] = {}

    def run(self) -> dict[Var, Atom]:
        """The arrays of the results of the loops."""
        found: dict[tuple[Atom, int], list[tuple[Atom, ...]]] = {}
        for bind in self.plan.binds:
            for inner in all_binds(Block((bind,), ())) if type(bind.op) is Loop else ():
                look = inner.op
                if type(look) is not Prim or look.name != "get" or look.args[0] in self.views:
                    continue
                if look.args[1:].count(self.op.index) == 1:
                    if self.side_by_side(self.atom(look.args[0]), look.args[1:]):
                        continue
                    if type(look.args[0]) is not Var or look.args[0] not in self.plan.varying:
                        key = self.atom(look.args[0]), look.args[1:].index(self.op.index)
                        found.setdefault(key, []).append(look.args[1:])
        for (array, place), reads_of_it in found.items():
            self.fixed[array, place] = self.fixed_in(array, place, reads_of_it)
            for indices in reads_of_it:
                self.table(array, place, indices)
        self.lines(self.plan.binds, ())
        made = [v for bind in self.plan.binds if type(bind.op) is Loop for v in bind.vars]
        return {v: self.lanes[v] for v in made if v in self.lanes}

    def lane_index(self, lane: Atom) -> Atom:
        return self.b.prim("min", self.b.prim("+", self.first, lane), self.last)

    def side_by_side(self, array: Atom, indices: Sequence[Atom]) -> bool:
        """Whether what the lanes read of an array lies side by side."""
        size = type_of(array).dims[-1]  # type: ignore[union-attr]
        at_start = type(self.first) is Const and self.first.value == 0
        real = type_of(array).elem == REAL  # type: ignore[union-attr]
        return at_start and real and indices[-1] is self.op.index and size == Const(LANES, INT)

    def fixed_in(self, array: Atom, place: int, found: Sequence[tuple[Atom, ...]]) -> set[int]:
        """The dimensions of which all that reads an array in a tile reads one index, as of a history the state of one
        step; of constants, the same one everywhere: the columns of short rows are copied together."""
        fixed = set()
        for k in range(len(found[0])):
            indices = {each[k] for each in found}
            if k == place or not self.inside.isdisjoint(indices):
                continue
            if len(indices) > 1 and all(type(a) is Const for a in indices):
                continue
            if all(self.within(array, k, self.atom(a)) for a in indices):
                fixed.add(k)
        return fixed

    def within(self, array: Atom, k: int, index: Atom) -> bool:
        """Whether an array has an index, also where none of the loops that read it runs."""
        b = self.b
        at, size = b.affine(index), b.affine(type_of(array).dims[k])  # type: ignore[union-attr]
        last = affine_add(affine_add(size, at, -1), (1, {}), -1)
        return b.nonnegative(at) and b.nonnegative(last)

    def table_key(self, array: Atom, place: int, indices: Sequence[Atom]) -> tuple:
        fixed = sorted(self.fixed.get((array, place), ()))
        return array, place, tuple(self.atom(indices[k]) for k in fixed)

    def table(self, array: Atom, place: int, indices: Sequence[Atom]) -> None:
        """What the lanes read of an array at their ``i``, side by side: of a dimension of which they read one index
        only what is there."""
        b, t, fixed = self.b, type_of(array), self.fixed[array, place]
        assert isinstance(t, Arr)
        key = self.table_key(array, place, indices)
        if key in self.tables:
            return
        open_ = [k for k in range(t.rank) if k != place and k not in fixed]
        sizes = [t.dims[k] for k in open_]
        given = {k: self.atom(indices[k]) for k in fixed}

        def copy(lane: Atom, others: tuple[Atom, ...], made: Atom) -> Atom:
            if len(others) < len(sizes):

                def element(c: Atom, x: Atom):
                    return [copy(lane, (*others, c), x)], ()

                return b.loop(sizes[len(others)], [made], element, [hint], "c", [hint])[0]
            at = {**given, place: self.lane_index(lane), **dict(zip(open_, others))}
            return b.update(made, [*others, lane], b.get(array, *(at[k] for k in range(t.rank))))

        hint = "side_by_side"
        empty = b.undef(Arr(t.elem, (*sizes, Const(LANES, INT))))
        (made,) = b.loop(Const(LANES, INT), [empty], lambda lane, x: ([copy(lane, (), x)], ()), [hint], "lane", [hint])
        self.tables[key] = made

    def lines(self, binds: Sequence[Bind], results: Sequence[Atom]) -> list[Bind]:
        """A block's bindings; scalar operations that differ between lanes wait until something needs them. Those that
        wait still are given back."""
        waiting: list[Bind] = []
        for k, bind in enumerate(binds):
            op, self.b.span = bind.op, bind.span
            if type(op) is Prim and op.name == "zeros" and bind.vars[0] in self.plan.varying:
                self.lanes[bind.vars[0]] = self.b.zeros(Arr(REAL, (*self.atoms(op.args), Const(LANES, INT))))
            elif type(op) is Loop or op.name == "array":  # type: ignore[union-attr]
                wanted = set(reads(bind))
                now = closure(waiting, wanted)
                waiting = [x for x in waiting if x not in now]
                later = {a for x in waiting for a in reads(x)} | {a for x in binds[k + 1 :] for a in reads(x)}
                if type(op) is Loop:
                    self.together(now, wanted | later | set(results))
                    self.loop_in_lanes(bind, op)
                else:
                    self.together([*now, bind], later | set(results))
            elif self.plan.varying.intersection(bind.vars):
                waiting.append(bind)
            else:
                self.line(bind)
        return waiting

    def together(
        self, binds: Sequence[Bind], wanted: set[Atom], accs: Sequence[Var] = (), following: Sequence[Atom] = ()
    ) -> list[Atom]:
        """One loop over the lanes for scalar operations: those ``wanted`` are remembered, and the accumulators get
        their next values. The accumulators after it."""
        arrays = [x for x in binds if x.op.name == "array"]  # type: ignore[union-attr]
        adding: dict[Atom, Bind] = {x.vars[0]: x for x in binds if x.op.name == "add-at"}  # type: ignore[union-attr]
        binds = [x for x in binds if x not in arrays and x.vars[0] not in adding]
        outs = [x.vars[0] for x in binds if x.vars[0] in wanted]
        if not outs and not accs and not arrays:
            return []
        b, around = self.b, self.here
        states = [self.lanes[a] for a in accs]
        for x in arrays:
            t = x.vars[0].type
            states.append(b.undef(Arr(REAL, (*t.dims, Const(LANES, INT)))))  # type: ignore[union-attr]

        def body(lane: Atom, *now: Atom):
            self.here = {**around, self.op.index: self.lane_index(lane)}
            known = {**self.lanes, **dict(zip(accs, now))}
            for a in dict.fromkeys((*(a for x in (*binds, *arrays, *adding.values()) for a in reads(x)), *following)):
                if a in known and isinstance(a.type, Scalar):  # type: ignore[union-attr]
                    self.here[a] = b.get(known[a], lane, hint=a.name)  # type: ignore[index, union-attr]
            for x in binds:
                self.scalar(x, lane)
            after = []
            for s, r, a in zip(now, following, accs):
                if r in adding:
                    _, *at, x = self.atoms(adding[r].op.args)  # type: ignore[union-attr]
                    after.append(b.add_at(s, [*at, lane], x, soft=adding[r].soft))
                else:
                    after.append(b.update(s, [lane], self.as_type(self.atom(r), a.type)))
            for x, s in zip(arrays, now[len(accs) :]):
                for j, a in enumerate(x.op.args):  # type: ignore[union-attr]
                    s = b.update(s, [Const(j, INT), lane], self.atom(a))
                after.append(s)
            return after, [self.here[v] for v in outs]

        going = [*accs, *(x.vars[0] for x in arrays)]
        names = [a.name for a in (*going, *outs)]
        made = b.loop(Const(LANES, INT), states, body, names, "lane", [a.name for a in going])
        self.here = around
        self.lanes.update(zip((*going, *outs)[len(accs) :], made[len(accs) :]))
        self.stores.update(made[len(going) :])
        return list(made[: len(accs)])

    def scalar(self, bind: Bind, lane: Atom) -> None:
        op, v = bind.op, bind.vars[0]
        assert type(op) is Prim
        if op.name == "get" and op.args[0] not in self.views:
            array, indices = op.args[0], op.args[1:]
            if array in self.lanes:
                self.here[v] = self.b.get(self.lanes[array], *self.atoms(indices), lane, hint=v.name)  # type: ignore[index]
                return
            if self.side_by_side(self.atom(array), indices):
                self.here[v] = self.b.get(self.atom(array), *self.atoms(indices[:-1]), lane, hint=v.name)
                return
            place = indices.index(self.op.index) if indices.count(self.op.index) == 1 else -1
            table = self.tables.get(self.table_key(self.atom(array), place, indices)) if place >= 0 else None
            if table is not None:
                fixed = self.fixed[self.atom(array), place]
                others = self.atoms([a for k, a in enumerate(indices) if k != place and k not in fixed])
                self.here[v] = self.b.get(table, *others, lane, hint=v.name)
                return
        self.line(bind)

    def as_type(self, x: Atom, t: Type) -> Atom:
        return self.b.to_real(x) if t == REAL else x

    def start(self, z: Atom, t: Type) -> Atom:
        """The array that an accumulator of type ``t`` starts from."""
        if z in self.lanes:
            return self.lanes[z]  # type: ignore[index]
        if type(z) is Const and z.value == 0 and not str(z.value).startswith("-"):
            return self.b.zeros(Arr(t, (Const(LANES, INT),)))  # type: ignore[arg-type]
        return self.b.build(Const(LANES, INT), lambda lane: self.as_type(self.atom(z), t), index_name="lane")

    def stacked(self, r: Atom) -> Atom:
        """What a loop stacks. A sum is copied: it had better stay in a register until it is done."""
        x = self.lanes.get(r, r)  # type: ignore[call-overload]
        if x is r:
            return self.atom(r)
        if not isinstance(r.type, Scalar) or x in self.stores:  # type: ignore[union-attr]
            return x
        return self.b.build(Const(LANES, INT), lambda lane: self.b.get(x, lane), index_name="lane")

    def loop_in_lanes(self, bind: Bind, op: Loop) -> None:
        b, width, varying = self.b, len(op.accs), self.plan.varying
        stacked = op.body.results[width:]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.lanes.update(zip(op.accs, accs))
            waiting = self.lines(op.body.binds, op.body.results)
            ready = [k for k, a in enumerate(op.accs) if isinstance(a.type, Arr) and op.body.results[k] in self.lanes]
            rest = [k for k in range(width) if k not in ready]
            following = dict(zip(ready, (self.lanes[op.body.results[k]] for k in ready)))  # type: ignore[index]
            made = self.together(waiting, set(stacked), [op.accs[k] for k in rest], [op.body.results[k] for k in rest])
            following.update(zip(rest, made))
            return [following[k] for k in range(width)], [self.stacked(r) for r in stacked]

        names = [v.name for v in bind.vars]
        inits = [self.start(z, a.type) for z, a in zip(op.inits, op.accs)]
        out = b.loop(self.atom(op.count), inits, body, names, op.index.name, [a.name for a in op.accs])
        b.span = bind.span
        for v, x in zip(bind.vars, out):
            if v in varying:
                self.lanes[v] = x
            else:
                self.here[v] = x
