"""Small states of loops as single values; the ``while`` of a value in that of its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
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
    free_vars,
    substitute,
    type_of,
    with_blocks,
    with_body,
)
from ..program.builder import Builder
from ..program.counts import work
from ..program.dead import effects
from ..program.rebuild import Rebuild

FEW = 8  # an array of up to so many elements is carried from one iteration to the next as single values


class Singles(Rebuild):
    """The elements of small arrays that an iteration makes anew, and that are read one by one, are carried as single
    values: these stay in registers, and sums of them go side by side as any others.

    ``(while (> (get x 0) 0) [(f (get x 1)) (g (get x 0))])``  =>  the same with two numbers in place of x.
    """

    found = False

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        chosen, b, span = self.chosen(op), self.b, self.b.span
        if not chosen:
            return super().while_(op, bind)
        parts = Parts(self, op, chosen)

        def cond(*accs: Atom) -> Atom:
            self.here.update(zip(op.accs, parts.whole(accs)))
            return self.block(op.cond)[0]

        names = [*parts.names(bind), *(v.name for v in bind.vars[len(op.accs) + 1 :])]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        out = b.while_(parts.inits(), cond, parts.body, names, parts.accs(), False, kept)
        b.span = span
        return parts.results(out)

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        chosen, b, span = self.chosen(op), self.b, self.b.span
        if not chosen:
            return super().loop(op, bind)
        parts = Parts(self, op, chosen)

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            return parts.body(*accs)

        names = [*parts.names(bind), *(v.name for v in bind.vars[len(op.accs) :])]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        count, inits = self.atom(op.count), parts.inits()
        out = b.loop(count, inits, body, names, op.index.name, parts.accs(), soft=op.index.soft, snapshots=kept)
        b.span = span
        return parts.results(out)

    def chosen(self, op: While | Loop) -> set[int]:
        """The accumulators to be taken apart: each is only read by element, and made of single values or one of
        those."""
        chosen = {k for k, a in enumerate(op.accs) if length(a)}
        if not chosen:
            return chosen
        makers = {v: x.op for x in op.body.binds for v in x.vars}
        whole = self.read_whole(op, {op.accs[k] for k in chosen})
        chosen = {k for k in chosen if op.accs[k] not in whole}
        while True:
            accs = {op.accs[k] for k in chosen}
            kept = {k for k in chosen if self.single(op.body.results[k], accs, makers)}
            if kept == chosen:
                self.found = self.found or bool(chosen)
                return chosen
            chosen = kept

    @staticmethod
    def single(r: Atom, accs: set[Var], makers: dict) -> bool:
        made = makers.get(r)
        return r in accs or type(made) is Prim and made.name in ("array", "zeros")

    @staticmethod
    def read_whole(op: While | Loop, accs: set[Var]) -> set[Atom]:
        """Those of the accumulators that a loop's body needs as arrays."""
        blocks = blocks_of(op)
        known = {
            x.op.index
            for block in blocks
            for x in all_binds(block)
            if type(x.op) is Loop and type(x.op.count) is Const and x.op.count.value <= FEW
        }
        found: set[Atom] = set()
        for block in blocks:
            for x in all_binds(block):
                element = (
                    type(x.op) is Prim and x.op.name == "get" and (type(x.op.args[1]) is Const or x.op.args[1] in known)
                )
                found.update(a for a in atoms_of(x.op)[1 if element else 0 :] if a in accs)
                for inner in blocks_of(x.op):
                    found.update(a for a in inner.results if a in accs)
            found.update(a for a in block.results[len(op.accs) if block is op.body else 0 :] if a in accs)
        return found


class Parts:
    """The accumulators of a loop, the ``chosen`` ones as single values."""

    def __init__(self, pass_: Singles, op: While | Loop, chosen: set[int]) -> None:
        self.pass_, self.op, self.chosen, self.width = pass_, op, chosen, len(op.accs)
        self.count = [length(a) if k in chosen else 1 for k, a in enumerate(op.accs)]

    def of(self, k: int, a: Atom) -> list[Atom]:
        return [self.pass_.b.get(a, Const(i, INT)) for i in range(self.count[k])] if k in self.chosen else [a]

    def inits(self) -> list[Atom]:
        return [x for k, z in enumerate(self.op.inits) for x in self.of(k, self.pass_.atom(z))]

    def names(self, bind: Bind) -> list[str]:
        return [v.name for v, n in zip(bind.vars, self.count) for _ in range(n)]

    def accs(self) -> list[str]:
        return [a.name for a, n in zip(self.op.accs, self.count) for _ in range(n)]

    def whole(self, atoms: Sequence[Atom]) -> list[Atom]:
        """The accumulators again, from single values."""
        left, made = iter(atoms), []
        for k, acc in enumerate(self.op.accs):
            own = [next(left) for _ in range(self.count[k])]
            made.append(self.pass_.b.array(own, acc.name) if k in self.chosen else own[0])
        return made

    def body(self, *accs: Atom) -> tuple[list[Atom], Sequence[Atom]]:
        self.pass_.here.update(zip(self.op.accs, self.whole(accs)))
        results = self.pass_.block(self.op.body)
        return [x for k in range(self.width) for x in self.of(k, results[k])], results[self.width :]

    def results(self, out: Sequence[Atom]) -> list[Atom]:
        """What the loop's binding has, from what the loop of single values gives."""
        single = sum(self.count)
        return [*self.whole(out[:single]), *out[single:]]


def length(a: Var) -> int:
    """The number of elements of a short list of numbers; 0 of anything else."""
    t = a.type
    short = isinstance(t, Arr) and isinstance(t.elem, Scalar) and t.rank == 1 and type(t.dims[0]) is Const
    return t.dims[0].value if short and t.dims[0].value <= FEW else 0  # type: ignore[union-attr]


# ------------------------------------------------------------------------------- a value and its gradient

SUBSCRIPTED = ("get", "update", "add-at")
EAGER = 3  # a loop is run before it is known to be wanted if it takes so many times the work of the part that is


def meet_whiles(program: Program) -> Program:
    """Merges a ``while`` into another that does all that it does: the loop of a gradient computes the value along the
    way.

    ``y = (while c f) .. (if (< y z) (while c #(f df)) ..)``  =>  ``#(y dy) = (while c #(f df)) .. (if (< y z) dy ..)``.
    Design decision: also where the larger loop stands in a branch, as in a descent that asks for the gradient where the
    value is good. It then ends where the smaller one does, and takes at most a few times its time.
    """
    loops = sum(type(bind.op) is While for bind in all_binds(program.body))
    return with_body(program, joined(program.body)) if loops > 1 else program


def joined(block: Block) -> Block:
    """A block, and those in it, with each loop in the one that contains it; itself where there are none."""
    n = 0
    binds = [x if (op := joined_in(x)) is x.op else Bind(x.vars, op, x.span) for x in block.binds]
    made = block if all(x is y for x, y in zip(binds, block.binds)) else Block(tuple(binds), block.results)
    while n < len(made.binds):
        n, made = joined_with(made, n)
    return made


def joined_in(bind: Bind) -> Op:
    inner = blocks_of(bind.op)
    made = [joined(x) for x in inner]
    return bind.op if all(x is y for x, y in zip(made, inner)) else with_blocks(bind.op, made)


def joined_with(block: Block, n: int) -> tuple[int, Block]:
    """The block with the loop number ``n`` and one after it made one; where to go on."""
    first, after = block.binds[n], block.binds[n + 1 :]
    if not plain(first):
        return n + 1, block
    late = {v for x in block.binds[n:] for v in (*x.vars, *(w for r in blocks_of(x.op) for w in defined_in(r)))}
    for other in later(after):
        kept, dropped = first, other
        places = contained(other, first)
        if places is None and late.isdisjoint(free_vars(Block((other,), ()))) and may_move(other, first, after):
            kept, dropped = other, first
            places = contained(first, other)
        if places is not None:
            rest = without(Block(after, block.results), other)
            rest = substitute(rest, dict(zip(dropped.vars, [kept.vars[k] for k in places])))
            return n, Block((*block.binds[:n], kept, *rest.binds), rest.results)
    return n + 1, block


def may_move(loop: Bind, to: Bind, after: Sequence[Bind]) -> bool:
    """Whether a loop can run where one before it does: it is as sure to, or little work; and what it reads is there
    before anything in between has been checked."""
    if loop in after and not any(effects(x.op) for x in after[: after.index(loop)]):
        return True
    reads = [x.op.args for x in all_binds(Block((loop,), ())) if type(x.op) is Prim and x.op.name in SUBSCRIPTED]
    known = all(type(i) is Const and type(d) is Const for a, *at in reads for i, d in zip(at, a.type.dims))
    return known and work(Block((loop,), ())) <= EAGER * work(Block((to,), ()))


def plain(bind: Bind) -> bool:
    """Whether a binding is a loop of unknown length that stacks nothing and cannot fail."""
    op = bind.op
    return type(op) is While and len(bind.vars) == len(op.accs) + 1 and op.snapshots is None and not effects(op)


def later(binds: Sequence[Bind]) -> Iterator[Bind]:
    """The loops of unknown length among bindings and in their branches."""
    for x in binds:
        if plain(x):
            yield x
        elif type(x.op) is If:
            for inner in blocks_of(x.op):
                yield from later(inner.binds)


def without(block: Block, bind: Bind) -> Block:
    """A block without a binding of it, or of a branch in it."""
    binds = []
    for x in block.binds:
        if type(x.op) is If:
            x = Bind(x.vars, with_blocks(x.op, [without(inner, bind) for inner in blocks_of(x.op)]), x.span)
        if x is not bind:
            binds.append(x)
    return Block(tuple(binds), block.results)


def contained(small: Bind, large: Bind) -> list[int] | None:
    """Where among the variables of one loop those of another stand that it contains: they end together, and each
    accumulator starts like one of the other's and, supposed that all are equal to theirs, goes on equal."""
    one, two = small.op, large.op
    accs, b = [*one.accs, *two.accs], Builder()
    keys: list = [(type_of(z), b.key(z)) for z in (*one.inits, *two.inits)]
    leader = [keys.index(key) for key in keys]
    width = len(one.accs)
    while True:
        if not set(leader[:width]) <= set(leader[width:]):
            return None
        b = Builder()
        pass_ = Rebuild(b)
        fresh = [Var(a.name, a.type, a.span) for a in accs]
        b.scopes[-1].vars.update(fresh)
        pass_.here.update((a, fresh[k]) for a, k in zip(accs, leader))
        tests = [b.key(pass_.block(op.cond)[0]) for op in (one, two)]
        after = [b.key(r) for op in (one, two) for r in pass_.block(op.body)]
        if tests[0] != tests[1]:
            return None
        keys = list(zip(leader, after))
        split = [keys.index(key) for key in keys]
        if split == leader:
            return [*(leader.index(k, width) - width for k in leader[:width]), len(two.accs)]
        leader = split
