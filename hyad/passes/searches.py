"""The largest or smallest of many values, and where it is, looked for in eight lanes side by side, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core import (
    BOOL,
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
    Scalar,
    Var,
    blocks_of,
    free_vars,
    integer,
    real,
)
from ..program.loops import CALL, cost_of, slice_of
from ..program.rebuild import Rebuild
from .lanes import LANES
from .spread import FLIPPED

LEAST = 2 * LANES  # values: fewer are looked at one by one

LEAST_PLACED = 8 * LANES  # the same where their place is wanted

PART = 256  # values: in the part where the largest one is its place is looked for one by one

#: What gives the same number wherever it is computed: nothing is rounded.
UNROUNDED = frozenset({"abs", "get", "max", "min", "neg", "real", "select"})


@dataclass(frozen=True, slots=True)
class Key:
    """An accumulator that a loop looks for the largest value in, or the smallest: of ``value``. ``watched``: whether a
    NaN among the values matters, as it does to ``max``; else it is passed over."""

    number: int
    least: bool
    value: Atom
    watched: bool

    @property
    def beyond(self) -> str:
        return "<" if self.least else ">"


@dataclass(frozen=True, slots=True)
class Search:
    """What a loop looks for: one key and what is noted where it is found, by the numbers of the accumulators; or keys
    alone. ``nans``: accumulators that become less at a NaN alone, and what they are then no more than; None where the
    values are integers."""

    keys: tuple[Key, ...]
    noted: dict[int, Block]
    nans: dict[int, Atom | None]

    @property
    def least(self) -> int:
        return LEAST_PLACED if self.noted else LEAST


class Searches(Rebuild):
    """Looks for the largest of a loop's values in eight lanes, which are a vector or two.

    ``(fold max z xs)``  =>  eight values at a time, each greater than that of its lane so far takes its place; then the
    largest of the eight, and ``z`` where that is no smaller. Where the place is wanted, the part of the values that has
    the largest is remembered, and gone through once more.
    Design decision: what lanes lose is which of equal values came first, and which NaN. Of equal values only zeros
    differ, in their signs, unless the place is wanted, and then the first is found in the part. Should there be a NaN,
    noticed by a second vector, or a zero whose sign is not known, the lanes are forgotten, and the loop runs as it
    was; the same loop takes few values, and those that are left of eight. Only where a value is found again to the
    last bit is it looked for twice.
    """

    def bind(self, bind: Bind) -> None:
        found = search_of(bind.op) if type(bind.op) is Loop else None
        if found is None:
            self.copy(bind)
        else:
            self.search(bind, bind.op, found)  # type: ignore[arg-type]

    def search(self, bind: Bind, op: Loop, search: Search) -> None:
        b, count, inits = self.b, self.atom(op.count), self.atoms(op.inits)
        names = [v.name for v in bind.vars]
        b.fired("searches")

        def some() -> list[Atom]:
            return self.whole(op, search, count, inits, names)

        def none() -> list[Atom]:
            return [*inits, integer(0)]

        *state, done = self.either(b.prim(">=", count, integer(search.least)), some, none, [*names, "done"])
        left = b.prim("-", count, done)
        if type(left) is Var:
            b.sizes.add(left)

        def alone(k: Atom, *accs: Atom):
            self.here[op.index] = b.prim("+", done, k)
            self.here.update(zip(op.accs, accs))
            wanted = [r for k, r in enumerate(op.body.results) if k not in search.nans]
            self.block(slice_of(op.body, [*wanted, *(key.value for key in search.keys)]))
            x = self.atom(search.keys[0].value)
            return [
                self.first_nan(x, accs[k], search.nans[k]) if k in search.nans else self.atom(r)
                for k, r in enumerate(op.body.results)
            ], ()

        given = any(v.given for v in bind.vars)
        out = b.loop(left, state, alone, names, op.index.name, [a.name for a in op.accs], given)
        b.span = bind.span
        self.define(bind, out)

    def first_nan(self, x: Atom, acc: Atom, at: Atom | None) -> Atom:
        """An accumulator after ``x``, no more than ``at`` should that be a NaN: a branch that nobody takes."""
        if at is None:
            return acc
        b = self.b
        return self.either(b.prim("=", x, x), lambda: [acc], lambda: [b.prim("min", acc, self.atom(at))])[0]

    def either(self, cond: Atom, then, orelse, names: Sequence[str] = ()) -> list[Atom]:
        """What one of two branches gives; of that alone which is taken where that is known."""
        if type(cond) is Const:
            return list(then() if cond.value else orelse())
        regions = []
        for make in (then, orelse):
            with self.b.region() as scope:
                regions.append((scope, make()))
        return list(self.b.if_(cond, *regions, names=names))

    def values(self, op: Loop, i: Atom, wanted: Sequence[Atom]) -> list[Atom]:
        """What an iteration computes that waits for none before it."""
        self.here[op.index] = i
        self.block(slice_of(op.body, wanted))
        return list(self.atoms(wanted))

    def whole(self, op: Loop, search: Search, count: Atom, inits: Sequence[Atom], names: Sequence[str]) -> list[Atom]:
        """The accumulators after as many iterations as whole lanes have, and how many these are."""
        b = self.b
        blocks = b.prim("//", count, integer(LANES))
        if type(blocks) is Var:
            b.sizes.add(blocks)
        unknown = [*inits, integer(0)]
        keys, part = search.keys, None
        if search.noted:
            *lanes, top, part = self.parts(op, keys[0], blocks)
            tops, nans = [top], self.across(keys, lanes[1:], [])[1]
        else:
            lanes = self.lanes(op, keys, integer(0), blocks, self.starts(keys))
            tops, nans = self.across(keys, lanes[len(keys) :], lanes[: len(keys)])
        sure: list[Atom] = []
        for key, top, nan in zip(search.keys, tops, nans):
            z = inits[key.number]
            if top.type == REAL:
                seen = z if nan is None else b.prim("+", nan, z)
                sure.append(b.prim("=", seen, seen))
                if not search.noted:
                    start = b.prim(FLIPPED[key.beyond + "="], top, z)
                    sure.append(b.prim("or", start, b.prim("!=", top, real(0.0))))
        known: Atom = Const(True, BOOL)
        for x in sure:
            known = x if type(known) is Const and known.value else b.prim("and", known, x)

        def found() -> list[Atom]:
            done = b.prim("*", integer(LANES), blocks)
            if search.noted:
                return [*self.place(op, search, inits, blocks, tops[0], part, names), done]
            state = list(inits)
            for key, top in zip(search.keys, tops):
                z = inits[key.number]
                state[key.number] = b.select(b.prim(key.beyond, top, z), top, z)
            return [*state, done]

        return self.either(known, found, lambda: unknown, [*names, "done"])

    def starts(self, keys: Sequence[Key]) -> list[Atom]:
        """The lanes before they have seen a value: below all that a key has, and zeros to watch for NaN."""
        b, eight = self.b, integer(LANES)
        most = [b.build(eight, lambda lane, z=least_of(key): z, "most", index_name="lane") for key in keys]
        return [*most, *(b.zeros(Arr(REAL, (eight,)), "nans") for key in keys if key.watched)]

    def lanes(
        self, op: Loop, keys: Sequence[Key], first: Atom, blocks: Atom, lanes: Sequence[Atom]
    ) -> tuple[Atom, ...]:
        """The lanes after so many times eight values from ``first`` on."""
        b = self.b
        names = [*["most"] * len(keys), *["nans"] * (len(lanes) - len(keys))]

        def eight(q: Atom, *accs: Atom):
            at = b.prim("+", first, b.prim("*", integer(LANES), q))

            def one(lane: Atom, *accs: Atom):
                found = self.values(op, b.prim("+", at, lane), [key.value for key in keys])
                after = []
                for key, x, most in zip(keys, found, accs):
                    before = b.get(most, lane)
                    after.append(b.update(most, [lane], b.select(b.prim(key.beyond, x, before), x, before)))
                watched = [x for key, x in zip(keys, found) if key.watched]
                for x, nans in zip(watched, accs[len(keys) :]):
                    after.append(b.update(nans, [lane], b.select(b.prim("=", x, x), b.get(nans, lane), x)))
                return after, ()

            return b.loop(integer(LANES), accs, one, names, "lane", names), ()

        return b.loop(blocks, lanes, eight, names, op.index.name, names)

    def across(
        self, keys: Sequence[Key], nans: Sequence[Atom], mosts: Sequence[Atom]
    ) -> tuple[list[Atom], list[Atom | None]]:
        """The largest of the lanes of each key, and of those that are watched 0 or NaN."""
        b, count = self.b, len(mosts)

        def one(lane: Atom, *accs: Atom):
            after = []
            for key, most, x in zip(keys, mosts, accs):
                y = b.get(most, lane)
                after.append(b.select(b.prim(key.beyond, y, x), y, x))
            return [*after, *(b.prim("+", x, b.get(some, lane)) for some, x in zip(nans, accs[count:]))], ()

        names = [*["top"] * count, *["nan"] * len(nans)]
        starts = [*map(least_of, keys[:count]), *[real(0.0)] * len(nans)]
        out = b.loop(integer(LANES), starts, one, names, "lane", names) if starts else ()
        seen = iter(out[count:])
        return list(out[:count]), [next(seen, None) if key.watched else None for key in keys]

    def parts(self, op: Loop, key: Key, blocks: Atom) -> Sequence[Atom]:
        """The lanes of a key after so many times eight values, the largest of them, and the first part that has it."""
        b = self.b
        each = integer(PART // LANES)
        parts = b.prim("//", b.prim("+", blocks, integer(PART // LANES - 1)), each)
        starts = self.starts([key])
        b.sizes.update(v for v in (parts,) if type(v) is Var)

        def part(p: Atom, *accs: Atom):
            some = self.blocks_of_part(blocks, p)
            *lanes, top, place = accs
            lanes = self.lanes(op, [key], b.prim("*", integer(PART), p), some, lanes)
            ((now,), _) = self.across([key], [], lanes[:1])
            beyond = b.prim(key.beyond, now, top)
            return [*lanes, b.select(beyond, now, top), b.select(beyond, p, place)], ()

        names = [*["most", "nans"][: len(starts)], "top", "place"]
        return b.loop(parts, [*starts, least_of(key), integer(0)], part, names, "part", names)

    def place(
        self,
        op: Loop,
        search: Search,
        inits: Sequence[Atom],
        blocks: Atom,
        top: Atom,
        part: Atom,
        names: Sequence[str],
    ) -> list[Atom]:
        """The accumulators where the first value ``top`` is, in a part."""
        b, (key,) = self.b, search.keys

        def there() -> list[Atom]:
            first, some = b.prim("*", integer(PART), part), self.blocks_of_part(blocks, part)
            beyond = real(PART // LANES)

            def eight(q: Atom, turns: Atom):
                at, turn = b.prim("+", first, b.prim("*", integer(LANES), q)), b.prim("real", q, hint="turn")

                def one(lane: Atom, turns: Atom):
                    (x,) = self.values(op, b.prim("+", at, lane), [key.value])
                    before = b.get(turns, lane)
                    here = b.select(b.prim("=", x, top), turn, beyond)
                    return [b.update(turns, [lane], b.select(b.prim("<", here, before), here, before))], ()

                return b.loop(integer(LANES), [turns], one, ["turns"], "lane", ["turns"]), ()

            lanes = b.build(integer(LANES), lambda lane: beyond, "turns", index_name="lane")
            (lanes,) = b.loop(some, [lanes], eight, ["turns"], op.index.name, ["turns"])

            def least(lane: Atom, at: Atom):
                place = b.prim("+", b.prim("*", real(LANES), b.get(lanes, lane)), b.prim("real", lane))
                return [b.select(b.prim("<", place, at), place, at)], ()

            (at,) = b.loop(integer(LANES), [real(PART)], least, ["at"], "lane", ["at"])
            at = b.prim("+", first, b.prim("int", at), hint="at")
            needs = [v for block in search.noted.values() for v in free_vars(block) if v is not op.index]
            x, *_ = self.values(op, at, [key.value, *needs])
            known = {key.number: x, **{k: self.block(block)[0] for k, block in search.noted.items()}}
            return [known.get(k, z) for k, z in enumerate(inits)]

        return self.either(b.prim(key.beyond, top, inits[key.number]), there, lambda: list(inits), names)

    def blocks_of_part(self, blocks: Atom, part: Atom) -> Atom:
        """How often a part has eight values."""
        b, each = self.b, integer(PART // LANES)
        some = b.prim("min", each, b.prim("-", blocks, b.prim("*", each, part)))
        b.sizes.update(v for v in (some,) if type(v) is Var)
        return some


def least_of(key: Key) -> Const:
    """What every value of a key is at least as far as."""
    if key.value.type == REAL:  # type: ignore[union-attr]
        return real(float("inf") if key.least else float("-inf"))
    return integer((1 << 63) - 1 if key.least else -(1 << 63))


def search_of(op: Loop) -> Search | None:
    """What a loop looks for, where that is all that it does, and its values are cheap and wait for none before."""
    if len(op.accs) != len(op.body.results) or not op.accs or op.snapshots is not None or op.index.soft:
        return None
    if cost_of(op.body) >= CALL or not all(map(simple, op.body.binds)):
        return None
    made: dict[Atom, Prim] = {x.vars[0]: x.op for x in op.body.binds if type(x.op) is Prim}
    at_nan = {k: found for k in range(len(op.accs)) if (found := of_nans(op, k, made)) is not None}
    keys = tuple(key for k in range(len(op.accs)) if k not in at_nan and (key := key_of(op, k, made)) is not None)
    noted: dict[int, Block] = {}
    for j in sorted(set(range(len(op.accs))) - {key.number for key in keys} - {*at_nan}):
        what = note(op, j, keys[0], made) if len(keys) == 1 else None
        if what is None:
            return None
        noted[j] = what
    if not keys or not noted and any(op.accs[key.number].type != REAL for key in keys):  # which compilers see
        return None
    if at_nan:
        if not noted or not all(x is None or x is keys[0].value for x, _ in at_nan.values()):
            return None
        keys = (replace(keys[0], watched=keys[0].watched or any(x is not None for x, _ in at_nan.values())),)
    nans = {k: at for k, (_, at) in at_nan.items()}
    needs = [*(key.value for key in keys), *(at for at in nans.values() if at is not None)]
    needs += [v for block in noted.values() for v in free_vars(block)]
    wanted = slice_of(op.body, needs)
    if set(op.accs) & {*free_vars(wanted)}:
        return None
    if noted and not all(map(unrounded, slice_of(op.body, [keys[0].value]).binds)):
        return None
    found = Search(keys, noted, nans)
    return None if type(op.count) is Const and op.count.value < found.least else found


def simple(bind: Bind) -> bool:
    """Whether a binding is a scalar operation, or a choice between such."""
    if type(bind.op) is If:
        return all(simple(x) and type(x.op) is Prim for block in blocks_of(bind.op) for x in block.binds)
    return type(bind.op) is Prim and isinstance(bind.vars[0].type, Scalar)


def unrounded(bind: Bind) -> bool:
    """Whether what a binding binds is the same number wherever it is computed."""
    if type(bind.op) is If:
        return all(unrounded(x) for block in blocks_of(bind.op) for x in block.binds)
    return bind.vars[0].type != REAL or bind.op.name in UNROUNDED  # type: ignore[union-attr]


def key_of(op: Loop, k: int, made: dict[Atom, Prim]) -> Key | None:
    """``acc' = (max acc x)``, or ``acc' = (select (> x acc) x acc)``."""
    acc, r = op.accs[k], op.body.results[k]
    if acc.type not in (REAL, INT):
        return None
    last = made.get(r)
    if last is not None and last.name in ("max", "min"):
        first, x = last.args
        if x is acc and acc.type == INT:
            first, x = x, first
        return Key(k, last.name == "min", x, acc.type == REAL) if first is acc and x is not acc else None
    chosen = choice(op.body, r)
    if chosen is None or chosen[2].results != (acc,) or type(chosen[1].results[0]) is not Var:
        return None
    (x,) = chosen[1].results
    relation = related(made.get(chosen[0]), x, acc)
    return Key(k, relation == "<", x, False) if relation in ("<", ">") else None


def choice(block: Block, atom: Atom) -> tuple[Atom, Block, Block] | None:
    """The condition, and what is computed in each case, of what a block chooses."""
    bind = next((b for b in block.binds if atom in b.vars), None)
    if bind is not None and type(bind.op) is If:
        k = bind.vars.index(atom)  # type: ignore[arg-type]
        return bind.op.cond, *(slice_of(region, region.results[k : k + 1]) for region in blocks_of(bind.op))  # type: ignore[return-value]
    if bind is not None and type(bind.op) is Prim and bind.op.name == "select":
        cond, *ways = bind.op.args
        return cond, *(Block((), (way,)) for way in ways)  # type: ignore[return-value]
    return None


def of_nans(op: Loop, k: int, made: dict[Atom, Prim]) -> tuple[Atom | None, Atom | None] | None:
    """``acc' = (min acc (select (= x x) z i))``, ``z`` being what it starts from: ``x`` and ``i``; Nones of
    ``acc' = (min acc z)``, which is left of it where the ``x`` are integers."""
    acc, last = op.accs[k], made.get(op.body.results[k])
    if acc.type != INT or last is None or last.name != "min" or last.args.count(acc) != 1:
        return None
    (other,) = [a for a in last.args if a is not acc]
    if other == op.inits[k]:
        return None, None
    chosen = choice(op.body, other)
    if chosen is None or any(way.binds for way in chosen[1:]):
        return None
    test, ((start,), (at,)) = made.get(chosen[0]), (way.results for way in chosen[1:])
    if test is None or test.name != "=" or test.args[0] is not test.args[1] or start != op.inits[k]:
        return None
    return test.args[0], at


def note(op: Loop, j: int, key: Key, made: dict[Atom, Prim]) -> Block | None:
    """What is noted in accumulator ``j`` where ``key`` is found: ``at' = (select (> x acc) i at)`` and the like."""
    at, acc, chosen = op.accs[j], op.accs[key.number], choice(op.body, op.body.results[j])
    if chosen is None:
        return None
    test, then, orelse = made.get(chosen[0]), *chosen[1:]
    if orelse.results == (at,) and related(test, key.value, acc) == key.beyond:
        return then
    if then.results == (at,) and related(test, acc, key.value) == key.beyond + "=":
        return orelse if key.watched or acc.type == INT else None
    return None


def related(test: Prim | None, one: Atom, other: Atom) -> str | None:
    """The relation that a test asks for between two atoms, in this order."""
    if test is None or len(test.args) != 2:
        return None
    if test.args == (one, other):
        return test.name
    return FLIPPED.get(test.name) if test.args == (other, one) else None
