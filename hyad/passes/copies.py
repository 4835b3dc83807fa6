"""Arrays that are made twice: copies, accumulations of the same terms, and loops of which one does all of another."""

from __future__ import annotations

from ..core import (
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Loop,
    Op,
    Prim,
    Var,
    all_binds,
    blocks_of,
    defined_in,
    free_vars,
    reads,
    type_of,
)
from ..program.alike import structure
from ..program.builder import Builder
from ..program.rebuild import Rebuild
from .checks import Match, sources

NEAR = 8  # so many results that look the same at first sight are compared


class Alias(Rebuild):
    """A stacked copy of an array, or of a row, is that: ``(build n (fn [i] (get v i)))``  =>  ``v``.

    Design decision: not where the array is changed while the copy is wanted: all of it would have to be copied."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.kept: set[Bind] = set()

    def block(self, block: Block) -> tuple[Atom, ...]:
        copies = [(k, x) for k, x in enumerate(block.binds) if type(x.op) is Loop and not x.op.accs and copied(x.op)]
        for k, x in copies:
            sources = {source for source, *_ in copied(x.op).values()}
            changed = [j for j, y in enumerate(block.binds[k:], k) if not sources.isdisjoint(changed_by(y.op))]
            if changed:
                later = {v for y in block.binds[changed[0] + 1 :] for v in reads(y)}.union(block.results)
                if not later.isdisjoint(x.vars):
                    self.kept.add(x)
        return super().block(block)

    def bind(self, bind: Bind) -> None:
        self.copy(bind)
        op = bind.op
        if type(op) is not Loop or bind in self.kept:
            return
        for k, (source, *at) in copied(op).items():
            row = self.b.get(*self.atoms((source, *at)))
            if self.b.same_int(type_of(row).dims[0], self.atom(op.count)):
                self.here[bind.vars[k]] = row


def changed_by(op: Op) -> list[Atom]:
    """The arrays that an operation changes, to make others of them."""
    if type(op) is Prim:
        return [*op.args[:1]] if op.name in ("update", "add-at") else []
    inside = (a for region in blocks_of(op) for x in region.binds for a in changed_by(x.op))
    return [*getattr(op, "inits", ()), *inside]


def copied(op: Loop) -> dict[int, tuple[Atom, ...]]:
    """The stacked results that are the elements of an array, or of a row of it, at the loop's own index: the array, and
    the row's subscripts."""
    gets = {b.vars[0]: b.op for b in op.body.binds if type(b.op) is Prim and b.op.name == "get"}
    found: dict[int, tuple[Atom, ...]] = {}
    for k in range(len(op.accs), len(op.body.results)):
        read = gets.get(op.body.results[k])  # type: ignore[call-overload]
        if read is not None and read.args[-1] is op.index:
            found[k] = read.args[:-1]
    inside = {op.index, *op.accs, *defined_in(op.body)} if found else set()
    return {k: read for k, read in found.items() if inside.isdisjoint(read)}


class Accumulate(Rebuild):
    """One accumulation from zeros serves another of the same terms that starts from an array.

    ``p = (ifold (fn [v i] (add-at v i x)) (zeros n) m) ... q = (ifold (fn [v i] (add-at v i x)) u m)``  =>
    ``p = ... ; q = (vec-add u p)``.
    Design decision: only where both are there. An ``add-at`` is an adjoint's, whose sum may be taken in any order.
    """

    def __init__(self, builder: Builder, block: Block) -> None:
        super().__init__(builder)
        self.zeros = {b.vars[0] for b in all_binds(block) if type(b.op) is Prim and b.op.name == "zeros"}
        self.started: dict[tuple, set[bool]] = {}
        for bind in all_binds(block):
            key = self.terms(bind)
            if key is not None:
                self.started.setdefault(key, set()).add(bind.op.inits[0] in self.zeros)
        self.made: dict[tuple, Var] = {}

    def twice(self) -> bool:
        """Whether anything starts both ways."""
        return any(len(starts) == 2 for starts in self.started.values())

    def terms(self, bind: Bind) -> tuple | None:
        """What a loop adds to its one accumulator, an array of numbers: equal for two that add the same."""
        op = bind.op
        if type(op) is not Loop or len(bind.vars) != 1 or len(op.accs) != 1 or not self.adds_only(op):
            return None
        if not isinstance(op.accs[0].type, Arr) or op.accs[0].type.rank != 1:
            return None
        return structure(Loop(op.count, op.index, (Const(0, INT),), op.accs, op.body))

    def adds_only(self, op: Loop) -> bool:
        """Whether a loop does nothing with its accumulator but add to it."""
        (acc,) = op.accs
        for bind in op.body.binds:
            inner = bind.op
            if acc not in reads(bind):
                continue
            if type(inner) is Prim and inner.name == "add-at" and inner.args[0] is acc:
                if acc in inner.args[1:]:
                    return False
            elif not (type(inner) is Loop and inner.inits == (acc,) and len(bind.vars) == 1):
                return False
            elif acc in free_vars(inner.body) or not self.adds_only(inner):
                return False
            acc = bind.vars[0]
        return op.body.results == (acc,)

    def bind(self, bind: Bind) -> None:
        key = self.terms(bind)
        if key is None or self.started[key] != {True, False}:
            self.copy(bind)
            return
        b, op, v = self.b, bind.op, bind.vars[0]
        made = self.made.get(key)
        if made is None or not any(made in scope.vars for scope in b.scopes):
            start = b.zeros(self.type(v.type), v.name)
            (made,) = self.loop(Loop(op.count, op.index, (start,), op.accs, op.body), bind)
            self.made[key] = made
        init = self.atom(op.inits[0])
        self.here[v] = made if op.inits[0] in self.zeros else b.add(init, made)


class Same:
    """What a loop folds, and stacks as it does so, and an earlier one has made as well, is that.

    ``u = (ifold f u0 n) .. (v w) = (loop n ((a u0) (c c0)) (fn [i] (f a i), (g a c i)))``  =>  ``v`` is ``u``.
    Design decision: by what makes the elements, whatever else the loops do (``Match``): a value that a derivative has
    computed beside its tangents is the one that the model has computed before. Dead code drops what nobody reads then.
    Not what loops make element by element: that is computed where it is read.
    """

    def __init__(self, block: Block) -> None:
        self.sources = sources(all_binds(block))
        self.soft = {v for x in all_binds(block) if x.soft for v in x.vars}
        self.known: dict[Var, Var] = {}

    def block(self, block: Block, seen: dict[tuple, list[Var]]) -> None:
        """Look through a block; ``seen`` has the results of the loops before it."""
        seen = {key: list(many) for key, many in seen.items()}
        for bind in block.binds:
            op = bind.op
            looks = []
            if type(op) is Loop and op.accs:
                looks = [self.outline(op, k, v) for k, v in enumerate(bind.vars)]
                for v, look in zip(bind.vars, looks):
                    found = next((u for u in reversed(seen.get(look, [])[-NEAR:]) if self.match(u, v)), None)
                    if found is not None:
                        self.known[v] = found
            for region in blocks_of(op):  # what a loop gives is not there in its iterations
                self.block(region, seen)
            for v, look in zip(bind.vars, looks):  # what one loop does twice is ``share``'s
                if v not in self.known:
                    seen.setdefault(look, []).append(v)

    def outline(self, op: Loop, k: int, v: Var) -> tuple:
        """What is seen of a result at first sight."""
        made = self.sources.get(op.body.results[k], (None, 0))[0]  # type: ignore[call-overload]
        return type_of(v), k < len(op.accs), type(made), made.name if type(made) is Prim else ""

    def match(self, one: Var, other: Var) -> bool:
        """Whether the later one is the earlier one. A user's sum is none of differentiation's, whose terms have no
        order."""
        match = Match(self.sources, {}, self.known)
        return match(one, other) and not any(a in self.soft and b not in self.soft for a, b in match.supposed)
