"""Arrays that get shorter from one iteration to the next lie in one of the length at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core import (
    INT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Constructor,
    Data,
    Function,
    Loop,
    Make,
    Program,
    Var,
    While,
    all_binds,
    given,
    kinds_of,
    type_atoms,
    with_body,
)
from ..program.affine import affine_add
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.rebuild import Rebuild


class Longer(Exception):  # noqa: N818
    """A state of which it is not known that it gets no longer."""


def shrinking(program: Program) -> Program:
    """Keeps an array state that never gets longer in one array of its first length, of which each iteration uses a
    part.

    ``(ifold (fn [v i] (- (cut v 1 None) (cut v None -1))) v n)``: a length, and ``len v`` numbers.
    Design decision: before differentiation too. Else such a state is data, one cell for each iteration, and so are its
    tangents and what a gradient remembers of it. The new elements go to an array that holds nothing, not to the old
    one, whose elements the same loop may still read.
    """
    b = Builder()
    b.sizes.update(program.dims)
    made = shrinking_block(b, program.body)
    return program if made is program.body else dead_code(with_body(program, made))


def shrinking_block(b: Builder, block: Block) -> Block:
    """``shrinking`` for a block under construction; itself where it has nothing to do."""
    if "shrinking" in b.off or Make not in kinds_of(block):
        return block
    pass_ = Shrinking(b)
    made = pass_.remade(block)
    return made if pass_.found else block


class Shrinking(Rebuild):
    """``shrinking`` for a block."""

    found = False

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        out = self.tried(op, bind)
        return super().loop(op, bind) if out is None else out

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        out = self.tried(op, bind)
        return super().while_(op, bind) if out is None else out

    def tried(self, op: Loop | While, bind: Bind) -> Sequence[Atom] | None:
        """What a loop gives, its states in arrays of one length; None where it has no such state, or may make it
        longer."""
        b = self.b
        starts = {k: made for k, (a, z) in enumerate(zip(op.accs, op.inits)) if (made := self.start(a, self.atom(z)))}
        if not starts:
            return None
        here, region = dict(self.here), Scope()
        try:
            with b.region(region):
                out = self.within(op, bind, starts)
        except Longer:
            self.here = here
            return None
        around = b.scopes[-1]
        around.binds += region.binds
        around.vars |= region.vars
        around.shared.update(region.shared)
        self.found = True
        b.fired("shrinking")
        return out

    def start(self, acc: Var, init: Atom) -> Make | None:
        """What a state is at the start: an array with its length, in a type of nothing else."""
        if not isinstance(acc.type, Data) or len(acc.type.constructors) != 1:
            return None
        (c,) = acc.type.constructors
        whole = c.make == "array" and len(c.fields) == 2 and isinstance(c.fields[1].type, Arr)
        return self.b.made.get(init) if whole and c.fields[1].type.dims == c.fields[:1] else None  # type: ignore

    def within(self, op: Loop | While, bind: Bind, starts: dict[int, Make]) -> Sequence[Atom]:
        """The loop; raises ``Longer``."""
        b, width, span = self.b, len(op.accs), bind.span
        inits = [x for k, z in enumerate(op.inits) for x in (starts[k].args if k in starts else (self.atom(z),))]
        names = [n for k, a in enumerate(op.accs) for n in (("length", a.name) if k in starts else (a.name,))]
        at = {k: k + sum(j in starts for j in range(k)) for k in range(width)}

        def put(accs: Sequence[Atom]) -> None:
            """The states of an iteration, each as what it was."""
            it = iter(accs)
            for k, a in enumerate(op.accs):
                if k not in starts:
                    self.here[a] = next(it)
                    continue
                length, array = next(it), next(it)
                b.below(length, b.prim("+", inits[at[k]], Const(1, INT)))  # type: ignore[arg-type]
                self.here[a] = self.whole(starts[k].constructor, length, array, a.name)

        def cond(*accs: Atom) -> Atom:
            put(accs)
            return self.block(op.cond)[0]  # type: ignore[union-attr]

        def body(*accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
            put(accs)
            results = self.block(op.body)
            after: list[Atom] = []
            for k, r in enumerate(results[:width]):
                if k not in starts:
                    after.append(r)
                    continue
                made = b.made.get(r)  # type: ignore[arg-type]
                if made is None:
                    raise Longer
                length, array = made.args
                before = accs[at[k]]
                if not no_longer(b, length, before):
                    raise Longer
                room = Arr(array.type.elem, inits[at[k] + 1].type.dims)  # type: ignore[union-attr]
                after += [length, put_in(b, room, length, array)]
            return after, results[width:]

        labels = [n for k, a in enumerate(bind.vars[:width]) for n in ((a.name, a.name) if k in starts else (a.name,))]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        if type(op) is Loop:

            def iteration(i: Atom, *accs: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
                self.here[op.index] = i
                return body(*accs)

            labels += [v.name for v in bind.vars[width:]]
            out = b.loop(
                self.atom(op.count), inits, iteration, labels, op.index.name, names, given(bind), snapshots=kept
            )
        else:
            labels += [v.name for v in bind.vars[width + 1 :]]
            out = b.while_(inits, cond, body, labels, names, given(bind), kept)
        b.span = span
        it, results = iter(out), []
        for k in range(width):
            if k in starts:
                length, array = next(it), next(it)
                b.sizes.add(length)  # type: ignore[arg-type]
                results.append(self.whole(starts[k].constructor, length, array, bind.vars[k].name))
            else:
                results.append(next(it))
        return [*results, *it]

    def whole(self, constructor: Constructor, length: Atom, array: Atom, name: str) -> Atom:
        """The part of an array that is used, as data."""
        return self.b.make(constructor, (length, part(self.b, length, array, name)), name)


def no_longer(b: Builder, length: Atom, before: Atom) -> bool:
    """Whether a length is at most another one. Where it is known to equal something else, what it is the larger of says
    more of it."""
    op = b.definitions.get(length) if type(length) is Var else None
    either = op is not None and op.name == "max"
    return b.nonnegative(affine_add(b.affine(before), b.affine(length), -1)) or (
        either and all(no_longer(b, a, before) for a in op.args)  # type: ignore[union-attr]
    )


def part(b: Builder, length: Atom, array: Atom, name: str) -> Atom:
    """The first elements of an array, so many."""
    return b.build(length, lambda i: b.get(array, i), hint=name)


def put_in(b: Builder, room: Arr, length: Atom, array: Atom) -> Atom:
    """An array of the type ``room`` that begins with these elements."""

    def body(i: Atom, into: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
        return [b.update(into, (i,), b.get(array, i))], ()

    return b.loop(length, [b.undef(room)], body)[0]


def of_one_length(f: Function, rules: Mapping[str, Any]) -> tuple[Function, dict[Var, Atom]] | None:
    """A function that calls itself with arrays that get shorter, as one that is handed arrays of one length and how
    much of them is used; and what its parameters are for those of ``f``. None where a call may make them longer."""
    body, place = f.body, {p: k for k, p in enumerate(f.params)}
    calls = [x.op for x in all_binds(body) if type(x.op) is Apply and x.op.function is f]  # type: ignore[arg-type]
    dims = {d for v in f.params for d in type_atoms(v.type) if type(d) is Var}
    moving = {d for d in dims if any(op.args[place[d]] is not d for op in calls)}  # type: ignore
    arrays = [v for v in f.params if not moving.isdisjoint(type_atoms(v.type))]
    if any(not moving.isdisjoint(type_atoms(r.type)) for r in f.results) or not arrays:
        return None
    if any(not moving.isdisjoint(v.type.dims[1:]) for v in arrays):  # type: ignore[union-attr]
        return None
    room = {d: Var(f"{d.name}0", INT) for d in moving}
    whole = {v: Var(v.name, Arr(v.type.elem, (room[v.type.dims[0]], *v.type.dims[1:])), v.span) for v in arrays}  # type: ignore
    made = Function(f.name, (*room.values(), *(whole.get(p, p) for p in f.params)), f.results, None, f.span)
    b = Builder()
    if "shrinking" in b.off:
        return None
    b.rules.update(rules)
    b.sizes.update(made.params[: len(room)])
    pass_ = Shorter(b, f, made, place, whole)
    try:
        with b.region() as scope:
            for d, most in room.items():
                b.below(d, b.prim("+", most, Const(1, INT)))
            for v, array in whole.items():
                pass_.here[v] = part(b, v.type.dims[0], array, v.name)  # type: ignore[union-attr]
            results = pass_.block(body)  # type: ignore[arg-type]
    except Longer:
        return None
    made.body = b.close(scope, results)
    b.fired("shrinking")
    return made, {**{most: d for d, most in room.items()}, **{array: v for v, array in whole.items()}}


class Shorter(Rebuild):
    """The body of a function that calls itself, with calls of another one that is handed arrays of one length."""

    def __init__(self, b: Builder, f: Function, made: Function, place: dict[Var, int], whole: dict[Var, Var]) -> None:
        super().__init__(b)
        self.f, self.made, self.place, self.whole = f, made, place, whole

    def copy(self, bind: Bind) -> None:
        op, b = bind.op, self.b
        if type(op) is not Apply or op.function is not self.f:
            return super().copy(bind)
        args = list(self.atoms(op.args))
        for v, array in self.whole.items():
            d = v.type.dims[0]  # type: ignore[union-attr]
            length = args[self.place[d]]
            if not no_longer(b, length, d):
                raise Longer
            k = self.place[v]
            args[k] = put_in(b, array.type, length, args[k])  # type: ignore[arg-type]
        rooms = self.made.params[: len(self.made.params) - len(args)]
        self.define(bind, b.apply(self.made, [*rooms, *args], [v.name for v in bind.vars], given(bind)))
