"""Straight-line code that does the same twice, as loops of two iterations, which compilers make vectors of."""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    binds_of,
    blocks_of,
    reads,
    with_blocks,
    with_body,
)

#: What vectors do as quickly as numbers.
OPERATIONS = frozenset({"+", "-", "*", "/", "neg"})
EITHER = frozenset({"+", "*"})  # the order of whose operands says nothing
LEAST = 16  # a loop saves at least so many operations
SAVED = 3  # and one in so many
MOST = 64  # so many numbers go in and come out at most: they are arrays of the stack
LONGEST = 256  # of more results no two are compared
OUTER = 2  # of expressions, so many operations one in another are
TRIED = 4  # distances, until half of all operations are in pairs

Pair = tuple[Atom, Atom]
TWO = Const(2, INT)


def twins(program: Program) -> Program:
    """Computes two results of the same operations as vectors, in a loop of two iterations: the rows of a Jacobian by
    reverse mode.

    ``x = (* a b) .. y = (* c b) ..``  =>  ``u = [a c]``, ``v = (build 2 (fn [i] (* (get u i) b) ..))``, ``x = (get v
    0)``, ``y = (get v 1)``.

    Design decision: last, as arrays and a loop in any C and not as some compiler's vectors. Each number is computed as
    before, to the last bit. Only in blocks outside of loops whose operations can be put into another order, and where
    few numbers go in and out for the operations that are saved.
    """
    body = side_by_side(program.body)
    return program if body is program.body else with_body(program, body)


def side_by_side(block: Block) -> Block:
    """A block, and the branches in it, with loops for what it does twice; itself where there are none."""
    free = all(map(movable, block.binds))
    binds = []
    for x in block.binds:
        regions = [side_by_side(r) for r in blocks_of(x.op)] if type(x.op) is If else []
        same = all(r is s for r, s in zip(regions, blocks_of(x.op))) or not regions
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, regions), x.span))
    if any(x is not y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    if not free or sum(is_one(x) for x in binds) < 2 * LEAST:
        return block
    return Twins(block).made()


def is_one(x: Bind) -> bool:
    """Whether a binding is an operation that a loop may have."""
    op = x.op
    return (
        type(op) is Prim and op.name in OPERATIONS and x.vars[0].type == REAL and all(a.type == REAL for a in op.args)
    )


def movable(x: Bind) -> bool:
    """Whether a binding can stand anywhere between what it reads and what reads it."""
    return all(
        type(y.op) is If or type(y.op) is Prim and y.op.name not in ("update", "add-at", "undef") for y in binds_of(x)
    )


class Twins:
    """The pairs of a block's operations that are one operation in a loop of two.

    ``depth``: the longest way from each binding to the block's end: two of equal depth do not need each other, and
    pairs of such two can be put into an order. ``shape`` is equal for expressions whose outer operations are.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.makers = {x.vars[0]: x for x in block.binds if is_one(x)}
        self.reads = {x: list(reads(x)) for x in block.binds}
        self.bind_of = {v: x for x in block.binds for v in x.vars}
        self.depth = dict.fromkeys(block.binds, 0)
        self.shape: dict[Atom, int] = {}
        self.weight: dict[Atom, int] = {}  # the operations of an expression, shared ones each time, up to LONGEST
        for v, x in self.makers.items():
            self.weight[v] = min(LONGEST, 1 + sum(self.weight.get(a, 0) for a in x.op.args))  # type: ignore[union-attr]
        for _ in range(OUTER):
            self.shape = {v: self.outline(x.op) for v, x in self.makers.items()}  # type: ignore[arg-type]
        for x in reversed(block.binds):
            for a in self.reads[x]:
                if a in self.bind_of:
                    self.depth[self.bind_of[a]] = max(self.depth[self.bind_of[a]], self.depth[x] + 1)
        self.pairs: dict[Pair, tuple[Pair, ...]]  # with the pairs of their operands
        self.partner: dict[Atom, Pair]

    def outline(self, op: Prim) -> int:
        """A number that is equal, as a rule, for operations of equal names on operands of equal shapes."""
        parts = [self.shape.get(a, 0) for a in op.args]
        return hash((op.name, *(sorted(parts) if op.name in EITHER else parts)))

    def made(self) -> Block:
        best: list[list[Pair]] = []
        for seeds in self.seeds():
            self.pairs, self.partner = {}, {}
            for pair in seeds:
                self.grow(pair)
            loops = self.paying()
            if sum(map(len, loops)) > sum(map(len, best)):
                best, kept = loops, (self.pairs, self.partner)
            if 4 * sum(map(len, best)) >= len(self.makers):
                break
        if not best:
            return self.block
        self.pairs, self.partner = kept
        return self.written(best, self.alone())

    def paying(self) -> list[list[Pair]]:
        """The pairs of each loop, when all loops that do not pay are left out."""
        while True:
            loops: dict[int, list[Pair]] = {}
            for p, k in self.levels().items():
                loops.setdefault(k, []).append(p)
            alone = self.alone()
            poor = [pairs for pairs in loops.values() if not self.pays(pairs, alone)]
            if not poor:
                return [loops[k] for k in sorted(loops)]
            for p in [p for pairs in poor for p in pairs]:
                del self.pairs[p], self.partner[p[0]], self.partner[p[1]]

    def seeds(self) -> list[list[Pair]]:
        """Pairs of results that are computed alike, of those at one distance: of a few rows, and of the distances with
        most such pairs."""
        roots: list[Atom] = []
        todo = list(reversed(self.block.results))
        while todo and len(roots) <= LONGEST:
            r = todo.pop()
            op = self.bind_of[r].op if r in self.bind_of else None
            if type(op) is Prim and op.name == "array":
                todo += reversed(op.args)
            else:
                roots.append(r)
        if len(roots) > LONGEST:
            return []

        def at(distance: int) -> list[Pair]:
            return [(a, b) for a, b in zip(roots, roots[distance:]) if self.can_be(a, b) and self.alike(a, b)]

        rows = [len(roots) // k for k in (2, 3, 4) if len(roots) % k == 0]
        found = {d: at(d) for d in range(1, len(roots))}
        most = sorted(found, key=lambda d: -sum(self.weight[a] for a, _ in found[d]))
        return [found[d] for d in dict.fromkeys([*rows, *most]) if found.get(d)][:TRIED]

    def alike(self, a: Atom, b: Atom) -> bool:
        return self.shape.get(a, 0) == self.shape.get(b, 0)

    def can_be(self, a: Atom, b: Atom) -> bool:
        """Whether two numbers can be the two of a pair."""
        x, y = self.makers.get(a), self.makers.get(b)
        if x is None or y is None or x is y:
            return False
        return x.op.name == y.op.name and self.depth[x] == self.depth[y]  # type: ignore[union-attr]

    def grow(self, pair: Pair) -> None:
        """A pair, and its operands' as far as they are alike."""
        todo = [pair]
        while todo:
            p = todo.pop()
            if p in self.pairs or p[0] in self.partner or p[1] in self.partner:
                continue
            self.pairs[p] = operands = self.operands(p)
            self.partner[p[0]] = self.partner[p[1]] = p
            todo += [q for q in operands if self.can_be(*q)]

    def operands(self, pair: Pair) -> tuple[Pair, ...]:
        """The operands of a pair's operations, side by side; those of a sum or product as they are more alike."""
        one, two = (self.makers[v].op for v in pair)  # type: ignore[index]
        if one.name in EITHER:
            straight, crossed = list(zip(one.args, two.args)), list(zip(one.args, two.args[::-1]))
            if sum(map(self.likeness, crossed)) > sum(map(self.likeness, straight)):
                return tuple(crossed)
        return tuple(zip(one.args, two.args))

    def likeness(self, pair: Pair) -> int:
        if same(*pair):
            return 4
        return 2 if self.can_be(*pair) and self.alike(*pair) else 1 if self.can_be(*pair) else 0

    def levels(self) -> dict[Pair, int]:
        """Which loop has each pair: the first after all that it needs, of other loops and of what is beside them."""
        level: dict[Pair, int] = {}
        beside: dict[Bind, int] = {}
        done: set[Pair] = set()

        def before(a: Atom, other: Atom | None = None) -> int:
            """The first level at which a number is there; in the loop itself where its other is beside it."""
            p = self.partner.get(a)
            if p is not None:
                return level[p] + (p != (a, other))
            return beside[self.bind_of[a]] if a in self.bind_of else 0

        for x in sorted(self.block.binds, key=self.depth.__getitem__, reverse=True):
            p = self.partner.get(x.vars[0]) if x.vars else None
            if p is None:
                beside[x] = max(map(before, self.reads[x]), default=0)
            elif p not in done:
                done.add(p)
                level[p] = max(
                    (max(before(a, b), before(b) if (a, b) not in self.pairs else 0) for a, b in self.pairs[p])
                )
        return level

    def pays(self, pairs: Sequence[Pair], alone: Container[Pair]) -> bool:
        """Whether a loop saves enough operations: a number that both iterations read is put beside itself, and it takes
        about two to put numbers side by side, or apart again."""
        operands = {q for p in pairs for q in self.pairs[p] if q not in self.pairs and type(q[0]) is Var}
        both = sum(same(*q) for q in operands)
        moved = len(operands) - both + sum(p in alone for p in pairs)
        return moved <= MOST and len(pairs) - both - 2 * moved >= max(LEAST, len(pairs) / SAVED)

    def alone(self) -> set[Pair]:
        """The pairs that are read one by one, by what is in no loop or has another number beside it there."""
        read: set[Atom] = set(self.block.results)
        for x in self.block.binds:
            p = self.partner.get(x.vars[0]) if x.vars else None
            if p is None:
                read.update(self.reads[x])
            else:
                read.update(a for q in self.pairs[p] if q not in self.pairs for a in q)
        return {p for p in self.pairs if p[0] in read or p[1] in read}

    # ------------------------------------------------------------------------------------------ writing

    def written(self, loops: Sequence[Sequence[Pair]], alone: Container[Pair]) -> Block:
        """The block with its loops, each binding as early as it stood and what it reads allows."""
        place = {x: k for k, x in enumerate(self.block.binds)}
        binds: list[tuple[float, Bind]] = [
            (k, x) for x, k in place.items() if not (x.vars and x.vars[0] in self.partner)
        ]
        arrays: dict[tuple, Var] = {}
        for pairs in loops:
            level = set(pairs)
            first = min(place[self.makers[v]] for p in pairs for v in p)  # type: ignore[index]
            index = Var("k", INT, None, True)
            inner: dict[tuple, Var] = {}
            body: list[Bind] = []
            span = self.makers[pairs[0][0]].span  # type: ignore[index]

            def element(
                q: Pair, index: Var = index, inner: dict = inner, body: list = body, first: int = first
            ) -> Atom:
                """The operand of the loop's operation whose two values are ``q``."""
                if same(*q):
                    return q[0]
                key = tuple(repr(a.value) if type(a) is Const else a for a in q)  # 0.0 and -0.0 differ
                if key not in inner:
                    if key not in arrays:
                        name = next((a.name for a in q if type(a) is Var), "c")
                        arrays[key] = Var(name, Arr(REAL, (TWO,)), span)
                        binds.append((first - 0.5, Bind((arrays[key],), Prim("array", q), span)))
                    inner[key] = Var(arrays[key].name, REAL, span)
                    body.append(Bind((inner[key],), Prim("get", (arrays[key], index)), span))
                return inner[key]

            for p in sorted(pairs, key=lambda p: -self.depth[self.makers[p[0]]]):  # type: ignore[index]
                op, old = self.makers[p[0]].op, self.makers[p[0]]  # type: ignore[index]
                made = Prim(op.name, tuple(element(q) for q in self.pairs[p]))
                inner[p] = Var(p[0].name, REAL, old.span)  # type: ignore[union-attr]
                body.append(Bind((inner[p],), made, old.span))
            later = {q for other in self.pairs if other not in level for q in self.pairs[other]}
            out = [p for p in pairs if p in alone or p in later]
            for p in out:
                arrays[p] = Var(p[0].name, Arr(REAL, (TWO,)), span)  # type: ignore[union-attr]
                if p in alone:
                    for k, v in enumerate(p):
                        read = Prim("get", (arrays[p], Const(k, INT)))
                        binds.append((place[self.makers[v]], Bind((v,), read, self.makers[v].span)))  # type: ignore
            loop = Loop(TWO, index, (), (), Block(tuple(body), tuple(inner[p] for p in out)))
            binds.append((first - 0.25, Bind(tuple(arrays[p] for p in out), loop, span)))
        return Block(in_order(binds), self.block.results)


def same(a: Atom, b: Atom) -> bool:
    """Whether two operands are one number."""
    return a is b or type(a) is Const and type(b) is Const and repr(a.value) == repr(b.value)


def in_order(binds: Sequence[tuple[float, Bind]]) -> tuple[Bind, ...]:
    """Bindings by their places, each after what it reads."""
    at = {v: k for k, (_, x) in enumerate(binds) for v in x.vars}
    waits: list[set[int]] = []
    for k, (_, x) in enumerate(binds):
        waits.append({at[a] for a in reads(x) if a in at} - {k})
    readers: dict[int, list[int]] = {}
    for k, needed in enumerate(waits):
        for j in needed:
            readers.setdefault(j, []).append(k)
    ready = [(binds[k][0], k) for k, needed in enumerate(waits) if not needed]
    heapq.heapify(ready)
    out = []
    while ready:
        _, k = heapq.heappop(ready)
        out.append(binds[k][1])
        for j in readers.get(k, ()):
            waits[j].discard(k)
            if not waits[j]:
                heapq.heappush(ready, (binds[j][0], j))
    assert len(out) == len(binds), "a loop of two needs what it makes"
    return tuple(out)
