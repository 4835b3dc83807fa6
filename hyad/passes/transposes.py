"""Matrices that a loop reads row by row in each iteration, where columns would be vectors: transposed before it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core import (
    INT,
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
    While,
    all_binds,
    binders_of,
    blocks_of,
    count_uses,
    defined_in,
    integer,
    kinds_of,
    substitute,
    type_of,
    with_blocks,
    with_body,
)
from ..errors import Span
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.journal import fires
from ..program.loops import CALL, cost_of
from .copies import changed_by
from .nests import FAR, LONG, Interchange, Steps, Swap, accesses, plain, quick

TILE = 8  # numbers that come with one access to memory
SMALL = 4096  # numbers that are near in any case

#: An array, and which of its axes changes places with the last one.
Turn = tuple[Var, int]


def transposes(program: Program) -> Program:
    """Transposes a matrix before a loop that multiplies it with a vector in each iteration, so that the sums of all
    rows are added to as one vector.

    ``(ifold (fn [h t] (build n (fn [i] (f (ifold (fn [s j] (+ s (* (get a i j) (get h j)))) 0.0 m))))) h k)``  =>
    ``b = (build m (fn [j] (build n (fn [i] (get a i j)))))`` first, and ``(get b j i)`` in the loop: ``interchange``
    makes a row of the sums then. A matrix that is made before the loop, and read nowhere else, is made transposed.

    Design decision: each sum is still taken in its own order. A compiler may not reorder its additions; those of
    neighbouring elements it does at once. So it is where ``interchange`` changes the two loops then, and would not as
    they are; not for sums of differentiation's own, which are vectors in any case since they have no order; nor where
    no loop around of more than a few iterations reads the same elements again, or only a part of the matrix is read.
    """
    return turned(program, Transposes)


def by_columns(program: Program) -> Program:
    """Transposes a matrix before a loop in which innermost loops read columns of it, and go along rows of all else."""
    return turned(program, ByColumns)


def turned(program: Program, how: type[Transposes]) -> Program:
    loops = (x.op for x in all_binds(program.body) if type(x.op) in (Loop, While))
    if not any(type(x.op) is Loop for op in loops for x in all_binds(op.body)):
        return program
    body = how(program.body).block(program.body, (), program.params)
    return program if body is program.body else dead_code(with_body(program, body))


@dataclass(frozen=True, eq=False)
class Around:
    """A loop around what is looked at, and all that is bound in it."""

    op: Loop | While
    inside: set[Var]


class Transposes:
    """``transposes`` for a program. ``equal``: sizes that are equal to others, and these; ``within``: pairs of sizes,
    the second not less than the first; ``turned``: what is transposed, and as what; ``wanted``: what has to be in front
    of the loop that is looked at."""

    name = "transposes"

    def __init__(self, block: Block) -> None:
        self.steps = Steps(block)
        self.interchange = Interchange(Builder(), self.steps)
        self.equal = equal_sizes(block)
        checks = [x.op for x in block.binds if type(x.op) is Check and x.op.relation == "<="]
        self.within = {tuple(self.equal.get(a, a) for a in (c.a, c.b)) for c in checks if type(c.a) is Var}
        self.turned: dict[Turn, Var] = {}
        self.wanted: dict[Turn, None] = {}

    def block(self, block: Block, around: tuple[Around, ...], bound: Sequence[Var]) -> Block:
        """A block whose loops read transposed what is to be; ``bound`` are the variables that it begins with. What it
        binds itself is transposed in front of the first loop that reads it so."""
        here = {*bound, *(v for x in block.binds for v in x.vars)}
        binds: list[Bind] = []
        for x in block.binds:
            if type(x.op) not in (Loop, While):
                binds.append(x)
                continue
            op = self.loop(x.op, around)  # type: ignore[arg-type]
            for turn in [t for t in self.wanted if t[0] in here]:
                del self.wanted[turn]
                binds.append(transposed(turn, self.turned[turn], x.span))
            binds.append(x if op is x.op else Bind(x.vars, op, x.span, x.soft))
        if len(binds) > len(block.binds):
            binds = made_so(binds, block.results, {v: turn for turn, v in self.turned.items()}, self.equal)
        return same(block, binds)

    def loop(self, op: Loop | While, around: tuple[Around, ...]) -> Loop | While:
        """A loop whose body reads transposed what is to be."""
        if type(op) is Loop and around:
            binds = [self.read_turned(x, self.turns(op, x, around)) for x in op.body.binds]
            op = with_blocks(op, [same(op.body, binds)])  # type: ignore[assignment]
        inside = (*around, Around(op, {*binders_of(op), *defined_in(op.body)}))
        blocks = blocks_of(op)
        made = [self.block(b, inside, binders_of(op)) for b in blocks]
        return op if all(b is c for b, c in zip(blocks, made)) else with_blocks(op, made)  # type: ignore[return-value]

    def read_turned(self, bind: Bind, turns: Mapping[Turn, Sequence[Bind]]) -> Bind:
        """A binding that reads transposed what is to be, at these places."""
        for turn in turns:
            fires(self.name, bind.span)
            if turn not in self.turned:
                self.turned[turn] = Var(turn[0].name, turned_type(turn))
                self.wanted[turn] = None
        return reading(bind, {x: (self.turned[turn], turn[1]) for turn in turns for x in turns[turn]})

    # ------------------------------------------------------------------------------------------- what pays

    def turns(self, op: Loop, bind: Bind, around: tuple[Around, ...]) -> dict[Turn, list[Bind]]:
        """What a loop inside of ``op``, that of a binding of its body, is to read transposed, and where, so that both
        change places; nothing where they do so as they are, or would not."""
        if type(bind.op) is not Loop:
            return {}
        found = self.reads(op, bind.op, around)
        if not found or self.interchange.swapped(op, bind) is not None:
            return {}
        trial = {turn: (Var("t", turned_type(turn)), turn[1]) for turn in found}
        tried = reading(bind, {x: trial[turn] for turn in found for x in found[turn]})
        block = same(op.body, [tried if x is bind else x for x in op.body.binds])
        swap = self.interchange.swapped(with_blocks(op, [block]), tried)  # type: ignore[arg-type]
        return found if swap is not None and (in_order(swap) or swap.arrays and self.far(op, bind.op)) else {}

    def far(self, op: Loop, inner: Loop) -> bool:
        """Whether a loop inside of another one goes through memory row by row, as it is."""
        inside = {op.index, *op.accs, *defined_in(op.body)}
        return any(self.steps.cost(at, inner.index, inside) == FAR for _, at, _ in accesses(inner.body))

    def reads(self, op: Loop, inner: Loop, around: tuple[Around, ...]) -> dict[Turn, list[Bind]]:
        """The numbers that a loop inside of ``op`` reads of rows of that one's own, element after element."""
        found: dict[Turn, list[Bind]] = {}
        inside = {op.index, *op.accs, *defined_in(op.body)}
        for x in numbers_read(inner.body, inside):
            a, *at = x.op.args  # type: ignore[union-attr]
            steps = [self.steps.step(s, op.index, inside) for s in at]
            if self.steps.step(at[-1], inner.index, inside) == 1 and one_axis(steps):
                axis = steps.index(1)
                whole = self.all_of(op.count, a.type.dims[axis]) and self.all_of(inner.count, a.type.dims[-1])  # type: ignore
                if whole and self.again(op, a, [op.count, inner.count, *at], around):  # type: ignore[arg-type]
                    found.setdefault((a, axis), []).append(x)  # type: ignore[arg-type]
        return found

    def again(self, op: Loop, array: Var, needed: Sequence[Atom], around: tuple[Around, ...]) -> bool:
        """Whether a loop around reads the same elements in each iteration, and more than a few of its iterations do:
        what is ``needed`` does not change in it."""
        return any(
            array not in loop.inside
            and not (type(loop.op) is Loop and self.steps.few(loop.op.count, 3))
            and not any(self.depends(a, loop.inside, op) for a in needed)
            for loop in around
        )

    def all_of(self, count: Atom, size: Atom) -> bool:
        """Whether a loop goes along an axis, but for a few elements of it. If a size is checked to have room for it,
        they are supposed to be equal."""
        count, size = (self.equal.get(a, a) for a in (count, size))
        if type(count) is Const and type(size) is Const:
            return 2 * count.value >= size.value
        return count is size or (count, size) in self.within or self.nearly(count) is size or self.nearly(size) is count

    def nearly(self, n: Atom) -> Atom:
        """What a size is a few less or more than."""
        made = self.steps.definitions.get(n)  # type: ignore[arg-type]
        if type(made) is not Prim or made.name not in ("+", "-") or type(made.args[1]) is not Const:
            return n
        return self.equal.get(made.args[0], made.args[0]) if abs(made.args[1].value) <= LONG else n

    def depends(self, a: Atom, inside: set[Var], op: Loop) -> bool:
        """Whether an integer changes in a loop around ``op``, the indices of loops from ``op`` on aside."""
        if type(a) is Const or a not in inside or a is op.index:
            return False
        made = self.steps.definitions.get(a)  # type: ignore[arg-type]
        if made is None:
            return not any(type(x.op) is Loop and x.op.index is a for x in all_binds(op.body))
        return type(made) is not Prim or any(self.depends(x, inside, op) for x in made.args)


class ByColumns(Transposes):
    """``by_columns`` for a program."""

    name = "by-columns"

    def turns(self, op: Loop, bind: Bind, around: tuple[Around, ...]) -> dict[Turn, list[Bind]]:
        """What an innermost loop, that of a binding of ``op``'s body, is to read transposed, and where: columns; none
        where it would have to wait for other memory, or for a function, in any case."""
        inner = bind.op
        if type(inner) is not Loop or Loop in kinds_of(inner.body) or self.steps.few(inner.count, LONG - 1):
            return {}
        if any(isinstance(a.type, Scalar) for a in inner.accs) or cost_of(inner.body) >= CALL or not plain(inner.body):
            return {}
        inside = {inner.index, *inner.accs, *defined_in(inner.body)}
        found: dict[Turn, list[Bind]] = {}
        for x in numbers_read(inner.body, inside):
            a, *at = x.op.args  # type: ignore[union-attr]
            steps = [self.steps.step(s, inner.index, inside) for s in at]
            if steps[-1] == 0 and one_axis(steps) and self.all_of(inner.count, a.type.dims[steps.index(1)]):  # type: ignore
                found.setdefault((a, steps.index(1)), []).append(x)  # type: ignore[arg-type]
        far = [x for x in accesses(inner.body) if self.steps.cost(x[1], inner.index, inside) == FAR]
        if not found or len(far) > sum(map(len, found.values())):
            return {}
        beyond = (*around, Around(op, {op.index, *op.accs, *defined_in(op.body)}))
        for turn, places in found.items():
            if not self.columns(inner, turn, places, beyond):
                return {}
        return found

    def columns(self, inner: Loop, turn: Turn, places: Sequence[Bind], around: tuple[Around, ...]) -> bool:
        """Whether all columns of an array are read, by loops around or by a loop's body, and by another loop again."""
        array, _ = turn
        size = array.type.dims[-1]  # type: ignore[union-attr]
        last = {x.op.args[-1] for x in places}  # type: ignore[union-attr]
        needed = [inner.count, *(a for x in places for a in x.op.args[1:])]  # type: ignore[union-attr]
        if all(type(a) is Const for a in last):
            return self.all_of(integer(len(last)), size) and self.again(inner, array, needed, around)
        indices = [x.op.index if type(x.op) is Loop else None for x in around]
        at = next((k for k, i in enumerate(indices) if last == {i}), None)
        if at is None or not self.all_of(around[at].op.count, size):  # type: ignore[union-attr]
            return False
        along: Loop = around[at].op  # type: ignore[assignment]
        return self.again(along, array, [along.count, *needed], around[:at])


def equal_sizes(block: Block) -> dict[Atom, Atom]:
    """For the sizes that a program checks to be equal to others, one of them, a constant where one is."""
    found: dict[Atom, Atom] = {}
    for x in block.binds:
        if type(x.op) is Check and x.op.relation == "==":
            a, b = (found.get(n, n) for n in (x.op.a, x.op.b))
            first, other = (b, a) if type(b) is Const else (a, b)
            found.update({n: first for n, m in found.items() if m is other})
            found[other] = first
    return found


def numbers_read(block: Block, inside: Container[Atom]) -> Iterator[Bind]:
    """What reads numbers of matrices that are not made ``inside``."""
    for x in all_binds(block):
        if type(x.op) is Prim and x.op.name == "get" and len(x.op.args) > 2 and isinstance(x.vars[0].type, Scalar):
            if x.op.args[0] not in inside:
                yield x


def one_axis(steps: Sequence[int | None]) -> bool:
    """Whether a loop goes along one axis, but not the last one, element by element."""
    return steps[-1] == 0 and steps.count(1) == 1 and steps.count(0) == len(steps) - 1


def same(block: Block, binds: Sequence[Bind]) -> Block:
    """A block with other bindings; itself if they are its own."""
    own = len(binds) == len(block.binds) and all(x is y for x, y in zip(binds, block.binds))
    return block if own else Block(tuple(binds), block.results, block.place)


def reading(bind: Bind, found: Mapping[Bind, tuple[Var, int]]) -> Bind:
    """A binding that reads transposed arrays at some places."""
    if not found:
        return bind
    if bind in found:
        v, axis = found[bind]
        return Bind(bind.vars, Prim("get", (v, *swapped(bind.op.args[1:], axis))), bind.span, bind.soft)  # type: ignore
    blocks = blocks_of(bind.op)
    made = [same(b, [reading(x, found) for x in b.binds]) for b in blocks]
    kept = all(b is c for b, c in zip(blocks, made))
    return bind if kept else Bind(bind.vars, with_blocks(bind.op, made), bind.span, bind.soft)


def swapped(items: Sequence[Atom], axis: int) -> tuple[Atom, ...]:
    """Subscripts, or sizes, with one of them in the last one's place."""
    made = list(items)
    made[axis], made[-1] = made[-1], made[axis]
    return tuple(made)


def turned_type(turn: Turn) -> Arr:
    t = turn[0].type
    assert isinstance(t, Arr)
    return Arr(t.elem, swapped(t.dims, turn[1]))


def in_order(swap: Swap) -> bool:
    """Whether some of the sums that a loop gives have an order."""
    loop = swap.bind.op
    assert type(loop) is Loop
    softly = {v for x in loop.body.binds if x.soft for v in x.vars}
    return any(loop.body.results[k] not in softly for k in swap.sums)


def transposed(turn: Turn, v: Var, span: Span | None) -> Bind:
    """What transposes an array."""
    array, axis = turn
    indices = [Var(name, INT) for _, name in zip(v.type.dims, "ijklmnpqrs")]  # type: ignore[union-attr]
    element = Var("t", v.type.elem)  # type: ignore[union-attr]
    block = Block((Bind((element,), Prim("get", (array, *swapped(indices, axis))), span),), (element,))
    for k in reversed(range(len(indices))):
        made = v if k == 0 else Var("t", Arr(v.type.elem, v.type.dims[k:]))  # type: ignore[union-attr]
        bind = Bind((made,), Loop(v.type.dims[k], indices[k], (), (), block), span)  # type: ignore[union-attr]
        block = Block((bind,), (made,))
    return bind


def by_tiles(bind: Bind, turn: Turn, equal: Mapping[Atom, Atom]) -> list[Bind]:
    """What transposes an array that may be large, eight of its rows at a time: their elements are stored side by side,
    and each row is read in the order of memory."""
    (v,), (array, axis) = bind.vars, turn
    b, eight = Builder(), integer(TILE)
    size = [equal.get(d, d) for d in v.type.dims]  # type: ignore[union-attr]
    b.sizes.update(d for d in size if type(d) is Var)
    b.span = bind.span
    last = len(size) - 1
    others = [k for k in range(last) if k != axis]

    def rows(into: Atom, at: dict[int, Atom], first: Atom, count: Atom, name: str) -> Atom:
        """Rows of the array from ``first`` on, as columns of the one that is made; ``at``: the other subscripts."""

        def element(j: Atom, into: Atom):
            def number(i: Atom, into: Atom):
                place = {**at, axis: j, last: b.prim("+", first, i)}
                to = [place[k] for k in range(len(size))]
                return [b.update(into, to, b.get(array, *swapped(to, axis)))], ()

            return b.loop(count, (into,), number, (v.name,), name, (v.name,)), ()

        return b.loop(size[axis], (into,), element, (v.name,), "j", (v.name,))[0]

    def matrix(into: Atom, at: dict[int, Atom]) -> Atom:
        if len(at) < len(others):
            k = others[len(at)]
            return b.loop(size[k], (into,), lambda i, x: ([matrix(x, {**at, k: i})], ()), (v.name,), "k", (v.name,))[0]
        tiles = b.prim("//", size[last], eight)
        done = b.prim("*", eight, tiles)

        def tile(q: Atom, into: Atom):
            return [rows(into, at, b.prim("*", eight, q), eight, "lane")], ()

        into = b.loop(tiles, (into,), tile, (v.name,), "tile", (v.name,))[0]
        left = b.prim("-", size[last], done)
        return into if left == integer(0) else rows(into, at, done, left, "i")

    with b.region() as scope:
        made = matrix(b.undef(v.type), {})  # type: ignore[arg-type]
    binds = b.close(scope, [made]).binds
    return [Bind(tuple(v if x is made else x for x in bind.vars), bind.op, bind.span, bind.soft) for bind in binds]


def made_so(
    binds: list[Bind], results: Sequence[Atom], turns: Mapping[Var, Turn], equal: Mapping[Atom, Atom]
) -> list[Bind]:
    """The bindings of a block in which arrays that are read transposed alone are made so, and others that may be large
    are transposed by tiles; what is transposed twice is read as it was. ``turns``: what each array is."""
    whole = Block(tuple(binds), tuple(results))
    for k, x in enumerate(whole.binds):
        turn = turns.get(x.vars[0]) if x.vars and type(x.op) is Loop else None
        if turn is None:
            continue
        alone = count_uses(whole, turn[0]) == 1
        maker = next((y for y in whole.binds[:k] if y.vars == (turn[0],)), None) if alone else None
        made = turned_maker(maker, x.vars[0], turn[1]) if maker is not None else None
        if made is not None:
            binds = [made if y is x else y for y in binds if y is not maker]
            again = copied_whole(made, equal)
            if again is not None and not any(again in changed_by(y.op) for y in binds):
                binds = list(
                    substitute(Block(tuple(y for y in binds if y is not made), ()), {made.vars[0]: again}).binds
                )
        elif not small(x.vars[0].type):  # type: ignore[arg-type]
            binds = [z for y in binds for z in (by_tiles(x, turn, equal) if y is x else [y])]
    return binds


def copied_whole(bind: Bind, equal: Mapping[Atom, Atom]) -> Atom | None:
    """The array that loops inside one another only copy, all of it."""
    indices: list[Atom] = []
    counts: list[Atom] = []
    while type(bind.op) is Loop and len(bind.op.body.binds) == 1 and bind.op.body.results == bind.op.body.binds[0].vars:
        indices.append(bind.op.index)
        counts.append(bind.op.count)
        bind = bind.op.body.binds[0]
    op = bind.op
    if type(op) is not Prim or op.name != "get" or not indices or op.args[1:] != tuple(indices):
        return None
    whole = all(equal.get(n, n) == equal.get(d, d) for n, d in zip(counts, type_of(op.args[0]).dims))  # type: ignore
    return op.args[0] if whole and len(indices) == type_of(op.args[0]).rank else None  # type: ignore[union-attr]


def small(t: Arr) -> bool:
    return all(type(d) is Const for d in t.dims) and math.prod(d.value for d in t.dims) <= SMALL  # type: ignore


def turned_maker(maker: Bind, v: Var, axis: int) -> Bind | None:
    """What makes an array with an axis in the last one's place: of the loops that make it as it is, two change places;
    None where they cannot, or where what an outer one does is too much to be done again in the inner ones."""
    loops: list[Loop] = []
    before: list[Bind] = []
    x: Bind | None = maker
    for _ in v.type.dims:  # type: ignore[union-attr]
        op = x.op if x is not None else None
        if type(op) is not Loop or op.accs or len(op.body.results) != 1:
            return None
        if any(op.count is y.index or op.count in defined_in(y.body) for y in loops):
            return None
        loops.append(op)
        x = next((y for y in op.body.binds if y.vars == op.body.results), None)
        if len(loops) < len(v.type.dims):  # type: ignore[union-attr]
            before += [y for y in op.body.binds if y is not x]
    if not quick(Block(tuple(before), ())):
        return None
    block = Block((*before, *loops[-1].body.binds), loops[-1].body.results)
    order = [loops[k] for k in range(len(loops))]
    order[axis], order[-1] = order[-1], order[axis]
    for k in reversed(range(len(order))):
        made = v if k == 0 else Var(v.name, Arr(v.type.elem, v.type.dims[k:]))  # type: ignore[union-attr]
        bind = Bind((made,), Loop(order[k].count, order[k].index, (), (), block), maker.span, maker.soft)
        block = Block((bind,), (made,))
    return bind
