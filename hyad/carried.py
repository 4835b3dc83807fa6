"""Elements that an iteration stores and the next one reads, handed on as numbers."""

from __future__ import annotations

from collections.abc import Sequence

from .affine import Affine, affine_add
from .builder import Builder
from .core import INT, REAL, ZERO, Arr, Atom, Bind, Block, Const, Loop, Prim, Program, Var, all_binds, defined_in, reads
from .edges import FEWEST
from .loops import loops_of
from .rebuild import Rebuild, rebuilt
from .tables import affine_of, sums_in

Place = tuple[Affine, ...]


def carried(program: Program) -> Program:
    """What a loop stores in an array and reads of it in the next iteration goes from one to the other as a number.

    ``(ifold (fn [a i] (update a (+ i 1) (f (get a i)))) z n)``  =>  the same beside ``s``, ``(get z 0)`` at first and
    then ``(f s)``, which is read in place of ``(get a i)``.
    Design decision: a compiler does so itself where it knows that no other array lies there; of several in one
    workspace it does not, and each iteration waits for memory. In innermost loops without branches.
    """
    if not any(map(changes, loops_of(program))):
        return program
    pass_ = Carried(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


def changes(loop: Loop) -> bool:
    """Whether a loop of operations alone changes an array."""
    return all(type(x.op) is Prim for x in loop.body.binds) and any(isinstance(a.type, Arr) for a in loop.accs)


def affine_ones(block: Block) -> dict[Var, Prim]:
    """The integers of a block that are sums, and products with constants."""
    products = (x for x in all_binds(block) if type(x.op) is Prim and x.op.name == "*" and x.vars[0].type == INT)
    return sums_in(block) | {x.vars[0]: x.op for x in products if any(type(a) is Const for a in x.op.args)}  # type: ignore


class Carried(Rebuild):
    """``carried`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.integers = affine_ones(program.body)
        self.found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        few = type(op.count) is Const and op.count.value < FEWEST
        if few or op.snapshots is not None or op.index.soft or not changes(op):
            return super().loop(op, bind)
        found = [x for k in range(len(op.accs)) if (x := self.handed_on(op, k)) is not None]
        if not found:
            return super().loop(op, bind)
        self.found = True
        b, width = self.b, len(op.accs)
        firsts = [self.first(op, store, looks[0]) for store, looks in found]
        skipped = {x: k for k, (_, looks) in enumerate(found) for x in looks}
        stores = {store: k for k, (store, _) in enumerate(found)}

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            after = list(accs[width:])
            for x in op.body.binds:
                b.span, b.soft = x.span, x.soft
                if x in skipped:
                    self.here[x.vars[0]] = accs[width + skipped[x]]
                elif x in stores:
                    array, *place, value = self.atoms(x.op.args)  # type: ignore[union-attr]
                    if x.op.name == "add-at":  # type: ignore[union-attr]
                        value = b.prim("+", b.get(array, *place), value)
                    after[stores[x]] = value
                    self.here[x.vars[0]] = b.update(array, place, value, x.vars[0].name)
                else:
                    self.bind(x)
            b.soft = False
            results = self.atoms(op.body.results)
            return (*results[:width], *after), results[width:]

        names = [v.name for v in bind.vars]
        carried = [op.accs[op.body.results.index(store.vars[0])].name for store, _ in found]
        out = b.loop(
            self.atom(op.count),
            [*self.atoms(op.inits), *firsts],
            body,
            [*names[:width], *carried, *names[width:]],
            op.index.name,
            [*(a.name for a in op.accs), *carried],
        )
        return [*out[:width], *out[width + len(found) :]]

    def handed_on(self, op: Loop, k: int) -> tuple[Bind, list[Bind]] | None:
        """The one store of numbers in an array, and what reads in an iteration what the one before has stored."""
        acc, result = op.accs[k], op.body.results[k]
        if not isinstance(acc.type, Arr) or acc.type.elem != REAL or op.body.results.count(result) > 1:
            return None
        store = next((x for x in op.body.binds if result in x.vars), None)
        if store is None or store.op.name not in ("update", "add-at") or store.op.args[0] is not acc:  # type: ignore
            return None
        place = self.place(op, store.op.args[1:-1])  # type: ignore[union-attr]
        if place is None or len(place) < acc.type.rank or any(result in reads(x) for x in op.body.binds):
            return None
        looks = []
        for x in op.body.binds:
            if x.op.name == "get" and x.op.args[0] is acc:  # type: ignore[union-attr]
                at = self.place(op, x.op.args[1:])  # type: ignore[union-attr]
                if at is not None and len(at) == len(place) and all(map(self.next(op.index), at, place)):
                    looks.append(x)
        moves = any(p[1].get(op.index) for p in place)
        return (store, looks) if looks and moves else None

    @staticmethod
    def next(index: Var):
        """Whether one subscript is in the next iteration what another is in this."""

        def same(look: Affine, store: Affine) -> bool:
            return affine_add(affine_add(look, (look[1].get(index, 0), {})), store, -1) == (0, {})

        return same

    def place(self, op: Loop, subscripts: Sequence[Atom]) -> Place | None:
        """Subscripts in the index and in what the loop does not change; None where they are not."""
        inside = {*op.accs, *defined_in(op.body)}
        found = tuple(affine_of(s, self.integers, set(self.integers), set()) for s in subscripts)
        if any(p is None or not p[1].keys().isdisjoint(inside) for p in found):
            return None
        return found  # type: ignore[return-value]

    def first(self, op: Loop, store: Bind, look: Bind) -> Atom:
        """What the first iteration reads; where there may be none, 0.0."""
        b, place = self.b, []
        for constant, terms in self.place(op, look.op.args[1:]) or ():  # type: ignore[union-attr]
            total: Atom = Const(constant, INT)
            for v, k in terms.items():
                if v is not op.index:
                    total = b.prim("+", total, b.prim("*", Const(k, INT), self.atom(v)))
            place.append(total)
        array = self.atom(op.inits[op.accs.index(store.op.args[0])])  # type: ignore[union-attr, arg-type]
        b.span = look.span
        if b.in_range(array, place):
            return b.get(array, *place)
        runs = b.prim("<", Const(0, INT), self.atom(op.count))
        with b.branch_region(runs, True) as scope:
            one = b.get(array, *place)
        with b.branch_region(runs, False) as other:
            pass
        return b.if_(runs, (scope, [one]), (other, [ZERO]))[0]
