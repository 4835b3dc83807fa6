"""How values flow together: branches, loops, references, recursion and data. The specialiser's other half.

What meets at a place is joined (``families``): values of one structure stay apart in registers, others become data.
References, and arrays that ``set-at!`` changes, never reach typed core: ``store`` says what each holds, a branch or
loop hands on what it sets, and so does a recursive function (store passing, Lantern section 3.6); where an array must
go on as a value, ``set-at!`` of it is refused from there (``copied``). A function is inlined where it is called; one
that calls itself under a run-time condition becomes a ``Function``, one for each kind of arguments. What
is not known yet (a recursive result's type, a family's constructors) is found by specialising again until nothing
changes: types only grow, so that this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .arguments import snapshots
from .builder import FALSE, TRUE, Builder, Scope, elem_of, has_checks, integer, type_of
from .core import BOOL, INT, REAL, Arr, Atom, Case, Check, Const, Data, Function, If, Lambda, Rec, Var, While, all_binds
from .data import Data as PythonData
from .errors import HyadError, ModelTypeError, NotCompiled, Span
from .families import (
    Again,
    Apart,
    ArrayOf,
    Bottom,
    Endless,
    Facts,
    Family,
    Instance,
    Member,
    Recursion,
    Sizes,
    Target,
    code_of,
    concrete,
    describe_target,
    kinds,
    named_apart,
    sizes_of,
    sizes_vary,
    sort_of,
    target_of,
    unsized,
)
from .subscripts import get
from .values import (
    CLOSED,
    FUNCTIONS,
    NIL,
    ArrayOfTuples,
    Cell,
    Choice,
    Closure,
    Env,
    Place,
    Shape,
    TupleValue,
    Value,
    captures,
    describe,
    flatten,
    is_array,
    is_reference,
    nothing,
    same_array,
    same_tree,
    taken_apart,
    unflatten,
)

RUNS = 200  # a model is specialised so often at most until all its types are known
NEWS = 1000  # and so many things are found out about them: fifty are many
INSTANCES = 3  # so many kinds of arguments of a function are told apart inside each other


class Frame:
    """The calls that are being inlined, innermost first; a number that is the same in every run tells them apart."""

    __slots__ = ("parent", "site", "function", "number")

    def __init__(self, parent: Frame | None, site: Any, function: Any) -> None:
        self.parent, self.site, self.function = parent, site, function
        self.number: int | None = None


class Flow:
    """The part of a ``Specialiser`` that knows of more than one path through the program."""

    b: Builder
    facts: Facts
    store: dict[Cell, Value]
    call: Callable[..., Value]
    value: Callable[..., Value]
    block: Callable[..., Value]

    def start(self) -> None:
        """Before each run."""
        for instance in self.facts.instances.values():
            instance.function = None
        self.store = {}
        self.known: dict[Var, Value] = {}  # data whose constructor a branch has found
        self.tests: dict[Var, tuple[Var, frozenset[Any]]] = {}  # (null? l): true for these constructors
        self.frame = Frame(None, None, None)
        self.site: Any = None
        self.seen: dict[tuple, int] = {}
        self.passed: list[tuple] = []  # what ``seen`` has counted, the latest last
        self.branching = 0  # branches on run-time values around
        self.making: list[tuple[Closure, Instance, list[Any]]] = []  # the recursive functions being made
        self.open_loops: list[tuple[int, frozenset[Cell]]] = []
        self.active: dict[Lambda, list[int]] = {}
        self.rigid = False  # inside a Jacobian: arrays that meet have one size, or the call fails
        self.made: list[Instance] = []  # those with a function in this run, the latest last
        self.written: dict[tuple, tuple[Span | None, Span | None]] = {}  # a reference: where made, where last set
        self.shared: set[tuple] = set()  # arrays that other values hold a copy of, which should be the array itself
        self.params_of: dict[Atom, tuple[Any, int]] = {}  # of recursive functions: arrays that ``set-at!`` may change

    # ---------------------------------------------------------------------------------------- places

    def frame_number(self, frame: Frame) -> int:
        if frame.number is None:
            parent = self.frame_number(frame.parent) if frame.parent is not None else -1
            key = (parent, frame.site, frame.function)
            frame.number = self.facts.places.setdefault(key, len(self.facts.places))
        return frame.number

    def place(self, site: Any = None) -> int:
        """A number for this point of the program, the same in every run and for no other evaluation of it."""
        key = (self.frame_number(self.frame), site if site is not None else self.site)
        count = self.seen[key] = self.seen.get(key, 0) + 1
        self.passed.append(key)
        return self.facts.places.setdefault((*key, count), len(self.facts.places))

    def settled(self, part: Callable[[], Any]) -> Any:
        """What a part of the program gives: specialised again as long as that tells something new.

        Design decision: a loop's or a function's types are found where it stands. The whole is then specialised once
        more for all of them, and not once for each. What a part that is given up has emitted stays; nothing reads it.
        """
        facts, made, passed = self.facts, len(self.made), len(self.passed)
        state = dict(self.store), self.known, self.branching, list(self.open_loops), self.b.span
        shared = set(self.shared)
        span = self.b.span
        while facts.news < NEWS:
            news = facts.news
            try:
                return part()
            except Recursion as found:
                if facts.news == news or self.active.get(found.function):
                    raise
            except (Again, Bottom):
                if facts.news == news:
                    raise
            for other in self.made[made:]:  # these may call what is made anew
                other.function = None
            for key in self.passed[passed:]:
                self.seen[key] -= 1
            del self.made[made:], self.passed[passed:]
            store, self.known, self.branching, open_loops, self.b.span = state
            self.store, self.open_loops, self.shared = dict(store), list(open_loops), set(shared)
        raise Endless(span)

    # -------------------------------------------------------------------------------- joins, coercions

    def target(self, value: Value, sizes: dict[Atom, str] | None = None) -> Target:
        return target_of(self.held(value), {} if sizes is None else sizes, self.facts.find)

    def now(self, value: Value) -> Value:
        """A structure with its arrays as they are now."""
        if isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.now, value.items)), value.keys, value.make)
        return self.held(value)

    def changeable(self, value: Value) -> Value:
        """An array that comes from outside, held where ``set-at!`` can change it."""
        if self.facts.mutates and type(value) is Var and isinstance(value.type, Arr):
            return self.new_cell(value, array=True)
        if self.facts.mutates and isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.changeable, value.items)), value.keys, value.make)
        return value

    def held(self, value: Value) -> Value:
        """An array that is changed in place, as it is now."""
        while isinstance(value, Cell) and value.array:
            self.touch(value)
            value = self.store[value]
        if isinstance(value, Place) and not value.reference:
            return get(self, [self.held(value.array), *value.indices], (), None)  # type: ignore[attr-defined]
        return value

    def copied(self, value: Value) -> Value:
        """A structure with its arrays as they are now, for what should hold the arrays themselves: from here on they
        cannot be changed."""
        if isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.copied, value.items)), value.keys, value.make)
        if is_array(value):
            self.shared.add(value.key if isinstance(value, Cell) else value.array.key)  # type: ignore[union-attr]
        return self.held(value)

    def meeting(self, values: Sequence[Value], live: Sequence[Any]) -> list[Value]:
        """What branches give: an array that is changed in place stays itself where it is the same one in all."""
        if not self.facts.mutates or all(same_array(values[0], v) for v in values):
            return list(values)
        first = values[0]
        if all(isinstance(v, TupleValue) and len(v.items) == len(first.items) for v in values):  # type: ignore[union-attr]
            columns = [self.meeting(column, live) for column in zip(*(v.items for v in values))]  # type: ignore[union-attr]
            rows = zip(*columns) if columns else [()] * len(values)
            return [TupleValue(tuple(row), v.keys, v.make) for row, v in zip(rows, values)]  # type: ignore[union-attr]
        out = []
        for v, (opened, _, store) in zip(values, live):
            saved, self.store = self.store, store
            with self.b.region(scope_of(opened)):
                out.append(self.copied(v))
            self.store = saved
        return out

    def join(self, place: Any, a: Target, b: Target, sizes: Sizes | None = None, loop: bool = False) -> Target:
        """What holds of both; ``loop``: they meet at the start of a loop's iterations."""

        def family(sort: Any) -> Family:
            kind = sort[0] if isinstance(sort, tuple) and len(sort) == 2 and isinstance(sort[1], tuple) else sort
            return self.facts.family((place, sort), kind)

        self.facts.recursive_now = bool(self.making)
        return self.facts.join(a, b, family, sizes, loop)

    def coerce(self, value: Value, target: Target) -> Value:
        """A value in the form that ``target`` says: structures that differ become data."""
        if isinstance(value, Cell) and isinstance(target, Apart):  # a reference is known by its place alone
            return value
        value = self.held(value)
        if isinstance(target, Data):
            return self.box(value, self.facts.of_data[self.facts.find(target)])
        if isinstance(target, Apart):
            if value is NIL or target.make is nothing:
                return NIL
            if isinstance(value, CLOSED):
                items = taken_apart(value)[1]
                assert isinstance(target.make, Shape)
                return target.make.rebuild([self.coerce(x, t) for x, t in zip(items, target.items)])
            if not isinstance(value, TupleValue):
                raise Again
            items = [self.coerce(x, t) for x, t in zip(value.items, target.items)]
            return TupleValue(tuple(items), value.keys, value.make)
        if isinstance(target, ArrayOf):
            return self.b.reals(value) if target.elem == REAL else value
        if not isinstance(value, (Const, Var)) or value is NIL:
            raise Again
        return self.b.to_real(value) if target == REAL and type_of(value) == INT else value

    def box(self, value: Value, family: Family) -> Var:
        """A value as data of a family."""
        if isinstance(value, Var) and isinstance(value.type, Data):
            if self.facts.find(value.type) is not family.data:
                self.facts.merge(family.data, value.type)
            return value
        value = self.copied(value)
        member = self.facts.member(family, self.target(value))
        items = self.items_of(value)
        atoms: list[Atom] = []
        sizes: set[str] = set()
        for item, target in zip(items, member.items):
            self.spread(self.coerce(item, target), target, atoms, sizes)
        return self.b.make(member.constructor, atoms)

    def items_of(self, value: Value) -> Sequence[Value]:
        """The fields of a structure that becomes data."""
        if isinstance(value, TupleValue):
            return value.items
        if isinstance(value, CLOSED):
            return taken_apart(value)[1]
        if value is NIL:
            return ()
        return (self.b.to_real(value) if type_of(value) == INT else value,)  # type: ignore[arg-type]

    def spread(self, value: Value, target: Target, atoms: list[Atom], sizes: set[str]) -> None:
        """The atoms of a coerced value, each run-time size before the first array that has it."""
        if isinstance(target, Apart):
            for x, t in zip(self.items_of(value), target.items):
                self.spread(x, t, atoms, sizes)
            return
        if isinstance(target, ArrayOf):
            for d, dim in zip(target.dims, type_of(value).dims):  # type: ignore[arg-type]
                if type(d) is str and d not in sizes:
                    sizes.add(d)
                    atoms.append(dim)
        atoms.append(value)  # type: ignore[arg-type]

    def gather(self, target: Target, atoms: Iterator[Atom], sizes: set[str]) -> Value:
        """The inverse of ``spread``."""
        if isinstance(target, Apart):
            if target.make is nothing:
                return NIL
            items = [self.gather(t, atoms, sizes) for t in target.items]
            if isinstance(target.make, Shape):
                return target.make.rebuild(items)
            return TupleValue(tuple(items), target.keys, target.make)
        if isinstance(target, ArrayOf):
            for d in target.dims:
                if type(d) is str and d not in sizes:
                    sizes.add(d)
                    next(atoms)
        return next(atoms)

    def variables(self, targets: Sequence[Target], names: Sequence[str], sizes: dict[str, Var]) -> list[Var]:
        """Typed variables for the atoms that ``spread`` gives."""
        made: list[Var] = []

        def add(target: Target, name: str) -> None:
            if isinstance(target, Apart):
                for k, t in enumerate(target.items):
                    add(t, target.keys[k] if target.keys else name)
            else:
                made.append(Var(name, concrete(target, sizes, made), self.b.span, True))

        for t, name in zip(targets, names):
            add(t, name)
        return made

    # ------------------------------------------------------------------------------------------ data

    def family_of(self, value: Value) -> Family | None:
        """The family of data that only a run knows the constructor of."""
        if isinstance(value, Var) and isinstance(value.type, Data) and value not in self.known:
            return self.facts.of_data[self.facts.find(value.type)]
        return None

    def look(self, value: Value) -> Value:
        """A value as far as it is known here: data whose constructor a branch has found is apart."""
        value = self.held(value)
        return self.known.get(value, value) if type(value) is Var else value

    def bare(self, value: Value) -> Value:
        """The number that data is known to hold here: what a test has taken apart stays so."""
        known = self.look(value)
        return known if isinstance(known, (Const, Var)) and known is not NIL else value

    def unbox(self, member: Member, fields: Sequence[Atom]) -> Value:
        """A constructor's value from its fields."""
        atoms = iter(fields)
        sizes: set[str] = set()
        items = tuple(self.gather(t, atoms, sizes) for t in member.items)
        make = member.make
        if make is nothing:
            return NIL
        if isinstance(make, Shape):
            return make.rebuild(list(items))
        if make in (float, bool, "array"):
            return items[0]
        return TupleValue(items, member.keys, None if make is dict else make)

    def cases(
        self,
        value: Var,
        then: Callable[[Value], Value],
        var: Var | None,
        group: Callable[[Member], Any] = lambda member: None,
        place: Callable[[Member], Span | None] = lambda member: None,
    ) -> Value:
        """``then`` of what data is, for each of its constructors; ``place``: where what it gives is written.

        Where it makes no sense for one of them (the ``car`` of nil) the call fails when it runs, provided that it does
        for another of the same ``group``.
        """
        family = self.family_of(value)
        assert family is not None
        members = [self.member_of(family, c) for c in family.data.constructors]
        if not members:
            raise Bottom
        arms = [(lambda m=m: self.b.arm(m.constructor), self.known_as(value, m, then), group(m)) for m in members]

        def finish(regions: Sequence[tuple[Any, list[Atom]]], names: Sequence[str], given: bool) -> Sequence[Atom]:
            rows = [(m.constructor, fields, scope, atoms) for m, ((scope, fields), atoms) in zip(members, regions)]
            return self.b.case(value, rows, names, given)

        return self.choose(arms, finish, var, None, [place(m) for m in members])

    def expose(self, value: Var, good: Callable[[Value], bool], what: str) -> Value | None:
        """Data that must be made by the one constructor that ``good`` takes, apart from here on; None where more than
        one is good. The call fails when it runs if the data is made otherwise."""
        family = self.family_of(value)
        assert family is not None
        members = [m for m in family.members.values() if good(self.sample(m))]
        if len(members) != 1 or any(sizes_of(t) for t in members[0].items):
            return None

        def take(known: Value) -> Value:
            if good(known):
                return known if isinstance(known, TupleValue) else TupleValue((known,))
            return self.impossible(what.format(describe(known)))

        apart = self.cases(value, take, None)
        assert isinstance(apart, TupleValue)
        if members[0].make in (float, bool, "array"):
            apart = apart.items[0]  # type: ignore[assignment]
        self.known = {**self.known, value: apart}
        return apart

    def doubted(self, value: Value) -> None:
        """Raise the mistake of a branch that forgets its value, now that the value is used."""
        family = self.family_of(value)
        if family is None or family.doubt is None or family.sort != "list" or self.facts.changed:
            return
        if self.boxed_array(value):
            return
        if not any(m.make is tuple or m.make is None for m in family.members.values()):
            raise family.doubt

    def gives_function(self, value: Value) -> bool:
        """Whether data is a function that is only known at run time."""
        family = self.family_of(value)
        return family is not None and family.sort == "function"

    def member_of(self, family: Family, constructor: Any) -> Member:
        return next(m for m in family.members.values() if m.constructor is constructor)

    def known_as(self, value: Var, member: Member, then: Callable[[Value], Value]) -> Callable[[Any], Value]:
        def run(opened: tuple[Scope, tuple[Var, ...]]) -> Value:
            apart = self.unbox(member, opened[1])
            known, self.known = self.known, {**self.known, value: apart}
            try:
                return self.bare(then(apart))
            finally:
                self.known = known

        return run

    def impossible(self, message: str) -> Value:
        """Code that ends the call: the branch that it is in fails when it runs."""
        raise Dead(message, self.b.span)

    def test(self, value: Value, holds: Callable[[Value], bool]) -> Atom:
        """``(null? l)``: a truth value, which a branch takes apart again."""
        family = self.family_of(value)
        if family is None:
            return TRUE if holds(self.look(value)) else FALSE
        assert isinstance(value, Var)
        true = frozenset(m.constructor for m in family.members.values() if holds(self.sample(m)))
        if len(true) in (0, len(family.members)):
            return TRUE if true else FALSE
        cond = self.cases(value, lambda v: TRUE if holds(v) else FALSE, None)
        if isinstance(cond, Var):
            self.tests[cond] = (value, true)
        return cond  # type: ignore[return-value]

    def sample(self, member: Member) -> Value:
        """Something that is made by a constructor, to ask about its kind."""
        if member.make is nothing:
            return NIL
        if member.make in (float, bool):
            return Const(0.0, REAL) if member.make is float else FALSE
        return TupleValue((NIL,) * len(member.items), member.keys, None)

    # -------------------------------------------------------------------------------------- branches

    def branches(self, cond: Atom, then: Callable[[], Value], orelse: Callable[[], Value], var: Var | None) -> Value:
        """``(if cond ..)`` of two thunks."""
        if type(cond) is Const:
            return then() if cond.value else orelse()
        test = self.tests.get(cond)  # type: ignore[arg-type]
        op = getattr(self.site, "op", None)
        places = [op.then.place, op.orelse.place] if type(op) is If and self.library is None else [None, None]  # type: ignore[has-type]
        if test is not None and test[0] not in self.known:
            value, true = test
            thunk = lambda v: then() if self.is_one_of(value, true) else orelse()  # noqa: E731
            holds = lambda m: m.constructor in true  # noqa: E731
            return self.cases(value, thunk, var, holds, lambda m: places[0 if holds(m) else 1])
        if test is not None:
            return then() if self.is_one_of(*test) else orelse()
        b = self.b

        def region(holds: bool) -> Callable[[], AbstractContextManager]:
            return lambda: b.branch_region(cond, holds)

        def finish(regions: Sequence[tuple[Any, list[Atom]]], names: Sequence[str], given: bool) -> Sequence[Atom]:
            return b.if_(cond, *regions, names, given)  # type: ignore[arg-type]

        arms = [(region(True), lambda _: then(), True), (region(False), lambda _: orelse(), False)]
        return self.choose(arms, finish, var, cond, places)

    def is_one_of(self, value: Var, constructors: frozenset[Any]) -> bool:
        """Whether data whose constructor is known here has one of ``constructors``."""
        family = self.facts.of_data[self.facts.find(value.type)]  # type: ignore[arg-type]
        apart = self.known[value]
        if apart is NIL:
            return any(c.make is None for c in constructors)
        member = self.facts.member(family, self.target(apart))
        return member.constructor in constructors

    def choose(
        self,
        arms: Sequence[tuple[Callable[[], AbstractContextManager], Callable[[Any], Value], Any]],
        finish: Callable[..., Sequence[Atom]],
        var: Var | None,
        cond: Atom | None = None,
        places: Sequence[Span | None] = (),
    ) -> Value:
        """One of several regions is run: their values and what they set, joined. ``places``: where each is written."""
        b, span, site, before, known = self.b, self.b.span, self.site, self.store, self.known
        done: list[tuple[Any, Value | None, dict[Cell, Value]]] = []
        unknown = False
        dead: Dead | None = None
        mistakes: list[tuple[Any, Scope, ModelTypeError]] = []
        ended: set[Any] = set()
        self.branching += 1
        for open_, thunk, group in arms:
            self.store, self.known = dict(before), known
            frame, level = self.frame, self.branching
            with open_() as opened:
                try:
                    done.append((opened, thunk(opened), self.store))
                    ended.add(group)
                except Bottom:
                    unknown = True
                    ended.add(group)
                except Dead as end:
                    dead = dead or end
                    b.span = end.span or span
                    b.emit(Check("==", integer(0), integer(1), end.message, "shape"), ())
                    done.append((opened, None, self.store))
                except ModelTypeError as error:
                    if sum(g == group for *_, g in arms) == 1:
                        raise
                    mistakes.append((group, scope_of(opened), error))
                    done.append((opened, None, self.store))
                    self.frame, self.branching = frame, level
            b.span, self.site = span, site
        self.branching -= 1
        self.store, self.known = before, known
        for group, scope, error in mistakes:
            if group not in ended:
                raise error
            with b.region(scope):
                message = f"{error.message}: {error.hint}" if error.hint else error.message
                b.emit(Check("==", integer(0), integer(1), message, "shape"), ())
        live = [(opened, value, store) for opened, value, store in done if value is not None]
        spots = [p for p, (_, value, _) in zip(places, done) if value is not None] or [None] * len(live)
        if not live:
            if unknown:
                raise Bottom(dead)
            raise dead or Dead(mistakes[0][2].message, mistakes[0][2].span)
        if unknown:  # this run only finds types
            opened, value, self.store = live[0]
            for other, v, _ in live[1:]:
                value = self.learn(site, value, v)
            self.splice(scope_of(opened))
            return value
        cells = [c for c in before if any(store[c] is not before[c] for _, _, store in live)]
        values = [value for _, value, _ in live]
        chosen = all(isinstance(v, FUNCTIONS) for v in values) or all(map(is_reference, values))
        if cond is not None and not cells and len(live) == 2 and chosen:
            scopes = [scope_of(opened) for opened, _, _ in live]
            alike = same_tree(flatten(values[0])[1], flatten(values[1])[1])
            if not alike and not any(has_checks(b.close(s, ())) for s in scopes):
                for s in scopes:
                    self.splice(s)
                return Choice(cond, *values)  # type: ignore[arg-type]
        rows = [[value, *(store[c] for c in cells)] for _, value, store in live]
        columns = [
            self.level(site, k, self.meeting([row[k] for row in rows], live), live, spots if c is None else c, span)
            for k, c in enumerate([None, *cells])
        ]
        rows = [list(row) for row in zip(*columns)]
        flat = [flatten(TupleValue(tuple(row)), span) for row in rows]
        tree = flat[0][1]
        atoms = [list(a) for a, _ in flat]
        if any(len(a) != len(atoms[0]) for a in atoms):
            raise Again
        self.box_unsized(site, atoms, [scope_of(opened) for opened, _, _ in live], len(flatten(rows[0][0], span)[0]))
        for j in range(1, len(atoms)):
            for k in range(len(atoms[0])):
                one, two = (scope_of(live[0][0]), atoms[0]), (scope_of(live[j][0]), atoms[j])
                try:
                    self.unify_branches(k, atoms[0][k], atoms[j][k], one, two, span)
                except ModelTypeError as error:
                    notes = [(atoms[0][k], live[0][1], spots[0]), (atoms[j][k], live[j][1], spots[j])]
                    error.notes = tuple(
                        (f"{'this' if isinstance(v, (Const, Var)) else 'a part of this'} is {describe(a)}", spot)
                        for a, v, spot in notes
                        if spot is not None and k < len(flatten(live[0][1])[0])
                    )
                    raise
        for j in range(1, len(atoms)):  # the first may have become wider since
            for k in range(len(atoms[0])):
                with b.region(scope_of(live[j][0])):
                    if elem_of(atoms[0][k]) == REAL and elem_of(atoms[j][k]) == INT:
                        atoms[j][k] = self.b.reals(atoms[j][k])
        made = iter(atoms)
        regions = []
        for opened, value, _ in done:
            if value is not None:
                regions.append((opened, next(made)))
            else:
                with b.region(scope_of(opened)):
                    regions.append((opened, [self.never(type_of(a), scope_of(live[0][0])) for a in atoms[0]]))
        names = (var.name,) * len(atoms[0]) if var is not None else ()
        out = finish(regions, names, bool(var is not None and var.given))
        b.span = span
        result = unflatten(tree, iter(out))
        assert isinstance(result, TupleValue)
        for c, v in zip(cells, result.items[1:]):
            self.store[c] = v
        return result.items[0]

    def box_unsized(self, site: Any, atoms: Sequence[list[Atom]], scopes: Sequence[Scope], width: int) -> None:
        """Where regions meet: arrays whose sizes cannot be said outside of them become data, which holds its sizes.
        So do those of different sizes, in a recursion and in references (the results from ``width`` on); elsewhere
        they are a mistake."""
        b = self.b
        for k in range(len(atoms[0])):
            types = [type_of(a[k]) for a in atoms]
            if not all(isinstance(t, Arr) and t.rank == types[0].rank for t in types):
                continue
            outer = [[b.outside(d, scope) for d in t.dims] for t, scope in zip(types, scopes)]  # type: ignore[union-attr]
            unknown = any(d is None for dims in outer for d in dims)
            differ = not unknown and not all(
                b.same_int(d, e)
                for dims in outer[1:]
                for d, e in zip(outer[0], dims)  # type: ignore[arg-type]
            )
            if unknown or differ and (self.making or k >= width) and not self.rigid:
                family = self.facts.family((self.frame_number(self.frame), site, "array", k), "list")
                wide = any(elem_of(a[k]) == REAL for a in atoms)
                for a, scope in zip(atoms, scopes):
                    with b.region(scope):
                        a[k] = self.box(self.b.reals(a[k]) if wide else a[k], family)

    def sized(self, target: Target, known: set[str], key: tuple) -> Target:
        """A target whose arrays of sizes that are not ``known`` are data."""
        if isinstance(target, Apart):
            items = (self.sized(t, known, (*key, k)) for k, t in enumerate(target.items))
            return Apart(tuple(items), target.keys, target.make)
        if isinstance(target, ArrayOf) and not sizes_of(target) <= known:
            return self.facts.family((key, "array"), "list").data
        return target

    def resized(self, before: Value, after: Value) -> bool:
        """Whether of two values of one structure an array is of another size than its like, for all that is known."""
        pairs = zip(flatten(before, self.b.span)[0], flatten(after, self.b.span)[0])
        types = [(type_of(x), type_of(y)) for x, y in pairs]
        return any(
            not self.b.same_int(d, e)
            for t, u in types
            if isinstance(t, Arr) and isinstance(u, Arr)
            for d, e in zip(t.dims, u.dims)
        )

    def boxed_array(self, value: Value) -> bool:
        """Whether a value is an array whose sizes only a run knows."""
        family = self.family_of(value)
        return family is not None and bool(family.members) and all(m.make == "array" for m in family.members.values())

    def with_arrays(self, args: Sequence[Value], then: Callable[[list[Value]], Value], var: Var | None) -> Value:
        """``then`` of arguments whose arrays are known with their sizes."""
        for k, a in enumerate(args):
            if self.boxed_array(a):
                return self.cases(a, lambda v: self.with_arrays([*args[:k], v, *args[k + 1 :]], then, var), var)  # type: ignore[arg-type]
        return then(list(args))

    def never(self, t: Any, scope: Scope) -> Atom:
        """What stands for the result of a region that does not end."""
        return self.b.undef(self.b.type_outside(t, scope))

    def splice(self, scope: Scope) -> None:
        self.b.scopes[-1].binds.extend(scope.binds)
        self.b.scopes[-1].vars.update(scope.vars)

    def learn(self, site: Any, a: Value, b: Value) -> Value:
        """Join what is known of two results, in a run that is thrown away; the one that tells more."""
        try:
            joined = self.join((self.place(site), "if", 0), self.target(a), self.target(b))
            return self.coerce(a, joined)
        except ModelTypeError:
            return a

    def level(
        self,
        site: Any,
        k: int,
        values: list[Value],
        live: Sequence[Any],
        where: Sequence[Span | None] | Cell,
        span: Span | None,
    ) -> list[Value]:
        """Values that meet, in one form: those of one structure stay, others become data. ``where``: the places of
        what branches give, or the reference that holds the values."""
        place = None
        if all(isinstance(v, (Const, Var)) and v is not NIL and not isinstance(v.type, Data) for v in values):
            return values
        if all(same_array(values[0], v) for v in values):
            return values
        targets = []
        for v in values:
            if isinstance(v, ArrayOfTuples):
                return values
            targets.append(self.target(v))
        joined = targets[0]
        if any(t != joined for t in targets[1:]):
            place = (self.place(site), "if", k)
            for j, (v, t) in enumerate(zip(values[1:], targets[1:]), 1):
                try:
                    joined = self.join(place, joined, t)
                except ModelTypeError as error:
                    if "reference" in (sort_of(joined), sort_of(t)) and sort_of(joined) == sort_of(t):
                        raise NotCompiled(
                            "which reference this is is only known when the model runs",
                            span,
                            "choose between what the references hold",
                        ) from None
                    raise self.unlike(values, j, where, span, error.message) from None
            if isinstance(joined, Data):
                family = self.facts.of_data[self.facts.find(joined)]
                other = next(j for j, t in enumerate(targets) if t != targets[0])
                family.doubt = family.doubt or self.unlike(values, other, where, span)
        out = []
        for (opened, _, store), v in zip(live, values):
            saved, self.store = self.store, store
            with self.b.region(scope_of(opened)):
                out.append(self.coerce(v, joined))
            self.store = saved
        return out

    def unlike(
        self,
        values: Sequence[Value],
        j: int,
        where: Sequence[Span | None] | Cell,
        span: Span | None,
        parts: str | None = None,
    ) -> ModelTypeError:
        """The mistake of a branch whose value, number ``j``, is not of the kind of the first one's; ``parts``: what
        differs."""
        one, two = describe(values[0]), describe(values[j])
        if isinstance(where, Cell):
            message = f"a reference holds {one} after one branch, {two} after the other"
            notes = [("it is made here", self.written[where.key][0])]
        else:
            message = f"one branch gives {one}, the other {two}"
            notes = [(f"this is {one}", where[0]), (f"this is {two}", where[j])]
        notes = [(text, place) for text, place in notes if place is not None]
        if one == two and parts:
            notes.append((f"they differ in a part: {parts}", None))
        return ModelTypeError(message, span, "both branches give the same kind", notes)

    def case(self, op: Case, env: Env, var: Var | None) -> Value:
        """``case`` and ``match``."""
        value = self.look(self.value(op.value, env))
        span = self.b.span
        arms = [(self.constructor(arm.constructor), arm) for arm in op.arms]

        def run(v: Value) -> Value:
            for (kind, fields), arm in arms:
                parts = v.items if isinstance(v, TupleValue) else () if v is NIL else (v,)
                if arm.constructor is not None and not is_made_by(v, kind):
                    continue
                if arm.constructor is not None and len(arm.fields) != len(parts):
                    raise ModelTypeError(
                        f"`{arm.constructor}` has {len(parts)} field{'s' * (len(parts) != 1)}, not {len(arm.fields)}",
                        arm.span,
                        f"`({' '.join([str(arm.constructor), *fields])})`" if fields else None,
                    )
                inner = Env(env)
                for name, x in zip(arm.fields, parts if arm.constructor is not None else ()):
                    inner.values[name] = x
                return self.block(arm.block, inner)
            what = f"no arm takes {describe(v)}"
            have = (
                f"the arms are for {', '.join(f'`{arm.constructor}`' for arm in op.arms)}; `_` takes all that is left"
            )
            if self.branching and self.family_of(value) is None and value is not v:
                return self.impossible(f"{what}: {have}")
            raise ModelTypeError(what, span, have)

        def group(m: Member) -> Any:
            return m.constructor  # a pattern's mistakes are its own

        def place(m: Member) -> Span | None:
            arm = next((arm for (kind, _), arm in arms if arm.constructor is None or makes(m, kind)), None)
            return arm.block.place if arm is not None and self.library is None else None  # type: ignore[has-type]

        if self.family_of(value) is not None:
            return self.cases(value, run, var, group, place)  # type: ignore[arg-type]
        return run(value)

    def constructor(self, name: Any) -> tuple[Any, tuple[str, ...]]:
        """What a pattern's constructor is: a class of ``hyad.data``, ``tuple`` for pairs, None for nil."""
        from .data import Inl, Inr

        if name is None or name.name == "nil":
            return None, ()
        known = {"cons": tuple, "inl": Inl, "inr": Inr, "number": float, "truth": bool, "array-of": Arr}.get(name.name)
        if known is not None:
            return known, ("a", "b") if name.name == "cons" else ("x",)
        self.globals_read.add(name.name)  # type: ignore[attr-defined]
        found, made = self.scope(name.name)  # type: ignore[attr-defined]
        if not found or not (isinstance(made, type) and issubclass(made, PythonData)):
            raise ModelTypeError(
                f"`{name.name}` is not a constructor", name.span, "a defdata names them: `(defdata Tree (Leaf x) ...)`"
            )
        return made, made.fields

    # ------------------------------------------------------------------------------------ references

    def new_cell(self, value: Value, array: bool = False) -> Cell:
        cell = Cell((self.place(), "array" if array else "ref"), len(self.making), array)
        self.store[cell] = value
        self.written[cell.key] = self.b.span, None
        return cell

    def touch(self, cell: Cell, written: bool = False) -> None:
        """A reference from outside is read or set in a recursive function: calls hand it in, and out if it is set."""
        for _, instance, _ in self.making[cell.level :]:
            if instance.cells.get(cell.key) not in (written, True):
                instance.cells[cell.key] = written
                self.facts.changed = True

    def set_cell(self, cell: Cell, value: Value) -> None:
        self.touch(cell, True)
        self.written[cell.key] = self.written.get(cell.key, (None, None))[0], self.b.span
        for place, outside in self.open_loops:
            if cell in outside and cell.key not in self.facts.modified.setdefault(place, {}):
                self.facts.modified[place][cell.key] = None
                self.facts.changed = True
        self.store[cell] = value

    def counted_loop(
        self,
        count: Atom,
        inits: Sequence[Atom],
        body: Callable[..., tuple[Sequence[Atom], Sequence[Atom]]],
        names: Sequence[str] = (),
        index_name: str = "i",
        acc_names: Sequence[str] = (),
        given: bool = False,
    ) -> tuple[Atom, ...]:
        """A loop of the builder that hands on the references that its body sets."""
        place = self.place()
        return self.settled(lambda: self.loop_counted(place, count, inits, body, names, index_name, acc_names, given))

    def loop_counted(
        self,
        place: int,
        count: Atom,
        inits: Sequence[Atom],
        body: Callable[..., tuple[Sequence[Atom], Sequence[Atom]]],
        names: Sequence[str],
        index_name: str,
        acc_names: Sequence[str],
        given: bool,
        snapshots: Atom | None = None,
    ) -> tuple[Atom, ...]:
        known = tuple(self.facts.modified.get(place, ()))
        cells = [c for c in self.store if c.key in known]
        starts, targets = self.starts(place, cells)
        width, more = len(inits), len(starts)
        before, known_here = self.store, self.known

        def iteration(i: Atom, *accs: Atom):
            self.store, self.known = dict(before), known_here
            self.take(cells, targets, accs[width:])
            self.open_loops.append((place, frozenset(before)))
            try:
                following, stacked = body(i, *accs[:width])
                self.news_of_loop(place, known, before)
            finally:
                self.open_loops.pop()
            return [*following, *self.ends(place, cells, targets, before)], stacked

        self.branching += 1
        try:
            hints = [*names[:width], *(["state"] * more), *names[width:]]
            acc_hints = [*acc_names, *(["acc"] * (width - len(acc_names))), *(["state"] * more)]
            out = self.b.loop(
                count,
                [*inits, *starts],
                iteration,
                hints,
                index_name,
                acc_hints if more else acc_names,
                given,
                snapshots=snapshots,
            )
        finally:
            self.branching -= 1
            self.store, self.known = before, known_here
        self.take(cells, targets, out[width : width + more])
        return (*out[:width], *out[width + more :])

    def news_of_loop(self, place: int, known: Sequence[tuple], before: dict[Cell, Value]) -> None:
        """Start a loop again whose body was found to make another kind of thing of a reference: the wrong kind is
        not to reach what follows."""
        found = self.facts.modified.get(place, ())
        if len(found) > len(known):
            for c, value in before.items():
                if c.key in found and c.key not in known:
                    if kinds(self.target(value, {})) != kinds(self.target(self.store[c], {})):
                        raise Again

    def starts(self, place: int, cells: Sequence[Cell]) -> tuple[list[Atom], list[Target]]:
        """What a loop's references hold at first, as atoms, and in which form the loop keeps it."""
        atoms: list[Atom] = []
        targets: list[Target] = []
        for k, c in enumerate(cells):
            target = self.target(self.store[c], {})
            joined = self.facts.joins.get((place, c.key))
            if joined is not None and joined != target:
                target = self.join((place, "loop", k), joined, target, loop=True)
            targets.append(target)
            self.flat(self.store[c], target, atoms)
        return atoms, targets

    def flat(self, value: Value, target: Target, atoms: list[Atom]) -> None:
        """Atoms of a value whose arrays keep their sizes."""
        value = self.copied(value) if self.facts.mutates else value
        atoms += flatten(self.coerce(value, target), self.b.span)[0]

    def take(self, cells: Sequence[Cell], targets: Sequence[Target], atoms: Sequence[Atom]) -> None:
        it = iter(atoms)
        for c, t in zip(cells, targets):
            self.store[c] = self.refill(t, it)

    def refill(self, target: Target, atoms: Iterator[Atom]) -> Value:
        if isinstance(target, Apart):
            if target.make is nothing:
                return NIL
            items = [self.refill(t, atoms) for t in target.items]
            if isinstance(target.make, Shape):
                return target.make.rebuild(items)
            return TupleValue(tuple(items), target.keys, target.make)
        return next(atoms)

    def ends(
        self, place: int, cells: Sequence[Cell], targets: Sequence[Target], before: dict[Cell, Value]
    ) -> list[Atom]:
        """What the references hold after an iteration; ``before``: what they held at first."""
        atoms: list[Atom] = []
        for k, (c, target) in enumerate(zip(cells, targets)):
            after = self.target(self.store[c], {})
            if kinds(after) == kinds(target) and sizes_vary(target):
                start, end = (self.coerce(v, target) for v in (before[c], self.store[c]))
                if self.resized(start, end):
                    self.facts.joins[place, c.key] = self.sized(unsized(target), set(), (place, c.key))
                    self.facts.changed = True
                    raise Again
            if kinds(after) != kinds(target):
                try:
                    joined = self.join((place, "loop", k), target, after, loop=True)
                except ModelTypeError:
                    raise ModelTypeError(
                        f"a reference in this loop holds {describe_target(target)}, then {describe_target(after)}",
                        self.b.span,
                        "what is set must be of the same kind",
                        [(t, p) for t, p in zip(("it is made here", "it is set here"), self.written[c.key]) if p],
                    ) from None
                if kinds(joined) != kinds(target):
                    self.facts.joins[place, c.key] = joined
                    self.facts.changed = True
                    raise Again
            self.flat(self.store[c], target, atoms)
        return atoms

    def while_(self, op: While, env: Env) -> None:
        """A loop over what its condition and body set."""
        place = self.place()
        self.settled(lambda: self.loop_while(op, env, place))

    def loop_while(self, op: While, env: Env, place: int) -> None:
        b, span = self.b, self.b.span
        known = tuple(self.facts.modified.get(place, ()))
        cells = [c for c in self.store if c.key in known]
        before = self.store
        outside = frozenset(before)
        kept = None if op.snapshots is None else snapshots(self, self.value(op.snapshots, env), span)
        turned = (place, "condition") in self.facts.joins  # the condition sets references: it is run before, and last
        if turned:
            first = self.truth(self.block(op.cond, Env(env)), op.cond.place or span)
        elif self.never_entered(op, env):
            return
        starts, targets = self.starts(place, cells)
        before, known_here = self.store, self.known
        width = len(starts)
        if turned:
            starts.append(first)

        def condition(*accs: Atom) -> Atom:
            if turned:
                return accs[-1]
            self.store, self.known = dict(before), known_here
            self.take(cells, targets, accs)
            entered = dict(self.store)
            self.open_loops.append((place, outside))
            self.branching += 1
            holds = self.truth(self.block(op.cond, Env(env)), op.cond.place or span)
            self.branching -= 1
            self.open_loops.pop()
            if any(self.store[c] is not entered[c] for c in entered):
                self.facts.joins[place, "condition"] = BOOL
                self.facts.changed = True
            return holds

        def body(*accs: Atom):
            self.store, self.known = dict(before), known_here
            self.take(cells, targets, accs[:width])
            self.open_loops.append((place, outside))
            self.branching += 1
            try:
                self.block(op.body, Env(env))
                self.news_of_loop(place, known, before)
                last = [self.truth(self.block(op.cond, Env(env)), op.cond.place or span)] if turned else []
            finally:
                self.open_loops.pop()
                self.branching -= 1
            b.span = span
            return [*self.ends(place, cells, targets, before), *last], ()

        out = b.while_(starts, condition, body, ["state"] * len(starts), [], snapshots=kept)
        b.span = span
        self.store, self.known = before, known_here
        self.take(cells, targets, out[:width])

    def never_entered(self, op: While, env: Env) -> bool:
        """Whether the condition is known to be false at first: what the body is made for may not be there then."""
        before, span = dict(self.store), self.b.span
        with self.b.region():
            try:
                holds = self.truth(self.block(op.cond, Env(env)), span)
            except Dead:
                holds = TRUE
        same = all(self.store[c] is v for c, v in before.items())
        self.store, self.b.span = before, span
        return same and type(holds) is Const and not holds.value

    def truth(self, value: Value, span: Span | None) -> Atom:
        if not isinstance(value, (Const, Var)) or value is NIL or type_of(value) != BOOL:
            raise ModelTypeError(f"the condition is {describe(value)}", span, "a condition compares: `(< x 0)`")
        return value

    # ------------------------------------------------------------------------------------- recursion

    def is_recursive(self, f: Lambda) -> bool:
        """Whether calls of a function are calls at run time: it was found to call itself under a run-time condition."""
        levels = self.active.get(f)
        if levels and self.branching > levels[-1] and f not in self.facts.recursive:
            self.facts.recursive.add(f)
            self.facts.changed = True
            raise Recursion(f)
        return f in self.facts.recursive

    def inline_or_call(self, closure: Closure, args: Sequence[Value], var: Var | None) -> Value:
        """A call of a function that may be recursive: where that shows while it is inlined, it is called after all.

        What was emitted stays; nothing reads it, and the whole is specialised again.
        """
        state = dict(self.store), self.known, self.branching, list(self.open_loops)
        modes = self.unrolled, self.factor, self.encoding, self.result_names  # type: ignore[has-type]
        try:
            return self.inline(closure, args)  # type: ignore[attr-defined]
        except Recursion as found:
            if found.function is not closure.function:
                raise
        self.store, self.known, self.branching, self.open_loops = state
        self.unrolled, self.factor, self.encoding, self.result_names = modes
        return self.call_recursive(closure, self.arguments(closure, args), var)  # type: ignore[attr-defined]

    def call_recursive(self, closure: Closure, args: Sequence[Value], var: Var | None) -> Value:
        """A call of a ``Function``, which is made at its first call."""
        facts, b = self.facts, self.b
        span = b.span
        closed = [closure.env[v] for v in captures(closure)] if closure.env is not None else []
        whole = facts.changes.get(closure.function, ())
        values = [self.recursive_argument(v, span, k in whole) for k, v in enumerate((*args, *closed))]
        sizes: dict[Atom, str] = {}
        targets = [target_of(v, sizes, facts.find) for v in values]
        instance = self.instance(closure, targets)
        instance.params = [facts.renamed(t) for t in instance.params]
        self.join_params(closure, instance, targets, span)
        if instance.function is None:
            self.settled(lambda: self.make_function(closure, instance, len(args), span))
        assert instance.function is not None
        cells = [c for c in self.store if c.key in instance.cells and c.level <= len(self.making)]
        cells = [c for c in cells if c in self.store]
        atoms: list[Atom] = []
        given_sizes: set[str] = set()
        for v, t in zip(values, instance.params):
            self.spread(self.coerce(v, t), t, atoms, given_sizes)
        cell_targets = [facts.joins.get(("cell", id_of(instance, facts), c.key)) for c in cells]
        for c in cells:
            self.touch(c)
        for c, t in zip(cells, cell_targets):
            if t is None:
                raise Bottom if facts.changed else Again
            now = self.target(self.store[c], {})
            if kinds(now) != kinds(t):
                joined = named_apart(self.join((id_of(instance, facts), c.key), t, now), c.key)
                if kinds(joined) != kinds(t):
                    facts.changed = True
                t = facts.joins["cell", id_of(instance, facts), c.key] = joined
            self.spread(self.coerce(self.store[c], t), t, atoms, given_sizes)
        if instance.result is None:
            raise Bottom
        if len(atoms) != len(instance.function.params):
            raise Again
        names = [var.name] if var is not None else []
        out = iter(b.apply(instance.function, atoms, names, bool(var is not None and var.given)))
        b.span = span
        known = {d for t in (*instance.params, *cell_targets) for d in sizes_of(t)}  # type: ignore[arg-type]
        result = self.gather(instance.result, out, known)
        for c, t in zip(cells, cell_targets):
            if instance.cells[c.key]:
                self.set_cell(c, self.gather(t, out, known))  # type: ignore[arg-type]
        return result

    def join_params(self, closure: Closure, instance: Instance, targets: list[Target], span: Span | None) -> None:
        """What is known of a function's parameters, with those of one more call."""
        if instance.params == targets:
            return
        sizes = Sizes({d for t in instance.params for d in sizes_of(t)})
        number = id_of(instance, self.facts)
        for k, (old, new) in enumerate(zip(instance.params, targets)):
            try:
                joined = self.join((number, k), old, new, sizes)
            except ModelTypeError as error:
                raise self.unlike_calls(closure, k, old, new, span, error.message) from error
            if joined != old:
                if sizes_of(joined) != sizes_of(old):
                    instance.result = None  # the sizes that it spoke of
                instance.params[k] = joined
                self.facts.changed = True

    def unlike_calls(
        self, closure: Closure, k: int, old: Target, new: Target, span: Span | None, parts: str
    ) -> HyadError:
        """What is wrong where two calls of one function give it values of different kinds."""
        f = closure.function
        name = f.params[k].name if k < len(f.params) else captures(closure)[k - len(f.params)].name
        who = f"`{f.name}`" if f.name else "this function"
        if sort_of(old) == sort_of(new) == "reference":
            return NotCompiled(
                f"which reference `{name}` of {who} is, is only known when the model runs",
                span,
                "give it what the reference holds",
            )
        first = next((i for c, i, _ in self.making if c.function is f), None)
        if closure.is_library:
            return ModelTypeError(
                f"the loop starts with {describe_target(old)} and goes on with {describe_target(new)}",
                span,
                "each step gives what it was given",
            )
        notes: list[Any] = []
        if first is not None and first.span:
            notes.append((f"it began with {describe_target(old)}", first.span))
        if describe_target(old) == describe_target(new):
            notes.append((f"they differ in a part: {parts}", None))
        return ModelTypeError(
            f"`{name}` of {who} is {describe_target(new)} in this call, and {describe_target(old)} in another",
            span,
            "every call in a recursion gives the same kind",
            notes,
        )

    def recursive_argument(self, value: Value, span: Span | None, whole: bool = False) -> Value:
        """What a recursive function is given; ``whole``: an array that it changes in place, itself."""
        if whole and type(value) is Var and isinstance(value.type, Arr):
            return self.new_cell(value, array=True)
        value = value if whole else self.now(value)
        if isinstance(value, ArrayOfTuples):
            raise ModelTypeError("an array of tuples cannot be given to a recursive function", span, "give its parts")
        return value

    def instance(self, closure: Closure, targets: list[Target]) -> Instance:
        """The making of a function that a call belongs to: the one that is being made if it fits, else its own."""
        f = closure.function
        around = [i for c, i, _ in self.making if c.function is f]
        codes = [code_of(t) for t in targets]
        for instance in reversed(around):
            if [code_of(t) for t in instance.params] == codes:
                return instance
        own = lambdas_in(f)
        if around and (len(around) >= INSTANCES or any(made_in(c, own) for c in codes)):
            return around[-1]
        key = (
            f,
            tuple(self.facts.renamed(t) for t in targets),
            self.b.span if closure.is_library else None,
            self.rigid,
        )
        found = self.facts.instances.get(key)
        if found is None:
            found = self.facts.instances[key] = Instance(list(targets))
            found.span = self.b.span
            self.facts.changed = True
        return found

    def make_function(self, closure: Closure, instance: Instance, arity: int, span: Span | None) -> None:
        """Specialise the body of a recursive function."""
        self.made.append(instance)
        instance.params = [self.facts.renamed(t) for t in instance.params]
        f, facts, b = closure.function, self.facts, self.b
        number = id_of(instance, facts)
        captured = captures(closure)
        cells = [c for c in self.store if c.key in instance.cells]
        for c in cells:
            key = ("cell", number, c.key)
            facts.joins[key] = named_apart(facts.joins.get(key) or self.target(self.store[c], {}), c.key)
        targets = [*instance.params, *(facts.renamed(facts.joins["cell", number, c.key]) for c in cells)]
        names = [*(p.name for p in f.params), *(v.name for v in captured), *("state" for _ in cells)]
        sizes: dict[str, Var] = {}
        params = self.variables(targets, names, sizes)
        results: list[Var] = []
        if instance.result is not None:
            instance.result = facts.renamed(instance.result)
            result_sizes = dict(sizes)
            states = [t for c, t in zip(cells, targets[len(instance.params) :]) if instance.cells[c.key]]
            labels = [f.name or "result"] * (1 + len(states))
            results = self.variables([instance.result, *states], labels, result_sizes)
        function = instance.function = Function(f.name or "f", tuple(params), tuple(results), None, f.span)
        b.sizes.update(sizes.values())
        state = (self.store, self.known, self.frame, self.site, self.branching, self.open_loops, self.active)
        library, scope, fast = self.library, self.scope, self.fast  # type: ignore[has-type]
        self.making.append((closure, instance, []))
        self.known, self.branching, self.open_loops, self.active = {}, 0, [], {}
        self.frame, self.site = Frame(None, number, f), f
        self.store = dict(self.store)
        self.scope, self.library = closure.scope, None
        if closure.is_library:  # the place is the user's call
            self.library = library or closure.name
        self.fast = fast or f.fast
        try:
            with b.function_scope(0) as region:
                region.vars.update(params)
                it, seen = iter(params), set()
                values = [self.gather(t, it, seen) for t in targets]
                self.params_of.update({v: (f, k) for k, v in enumerate(values) if type(v) is Var})
                env = Env()
                env.values.update(zip(captured, values[arity : len(instance.params)]))
                if closure.group is not None:
                    for v, g in zip(closure.group.vars, closure.group.op.functions):
                        env.values[v] = Closure(g, env, closure.scope, closure.group)
                for c, v in zip(cells, values[len(instance.params) :]):
                    self.store[c] = v
                b.span = f.span if self.library is None else span
                result = self.copied(self.body(f, env, values[:arity]))
                size_names: dict[Atom, str] = {v: d for d, v in sizes.items()}
                now = target_of(self.held(result), size_names, facts.find)
                joined = now
                if instance.result is not None:
                    old = sizes_of(instance.result)
                    joined = self.join((number, "result"), instance.result, now, Sizes(old, frozenset(sizes)))
                joined = self.sized(joined, set(sizes), (number, "result"))
                if joined != instance.result:
                    instance.result = joined
                    facts.changed = True
                    raise Again
                atoms: list[Atom] = []
                known = set(sizes)
                self.spread(self.coerce(result, joined), joined, atoms, known)
                for c, t, before in zip(cells, targets[len(instance.params) :], values[len(instance.params) :]):
                    if not instance.cells[c.key]:
                        continue
                    after = self.target(self.store[c], {})
                    if kinds(after) != kinds(t):
                        facts.joins["cell", number, c.key] = self.join((number, c.key), t, after)
                        facts.changed = True
                        raise Again
                    if self.resized(self.coerce(before, t), self.coerce(self.store[c], t)):
                        facts.joins["cell", number, c.key] = self.sized(unsized(t), set(), (number, c.key))
                        facts.changed = True
                        raise Again
                    self.spread(self.coerce(self.store[c], t), t, atoms, known)
                function.body = b.close(region, atoms)
        except Bottom as bottom:
            if not facts.changed and bottom.args and bottom.args[0] is not None:
                raise bottom.args[0].error() from None
            if not facts.changed:
                who = f"`{f.name}`" if f.name else "this function"
                raise HyadError(
                    f"{who} calls itself without an end", span, "a branch that does not call it ends the recursion"
                ) from None
            raise
        except HyadError as error:
            if self.library is not None and library is None and f"`{self.library}`" not in error.message:
                error.notes += ((f"this is inside `{self.library}`, {f.doc}", None),)
            raise
        finally:
            self.making.pop()
            self.store, self.known, self.frame, self.site, self.branching, self.open_loops, self.active = state
            self.library, self.scope, self.fast = library, scope, fast
            b.span = span

    def body(self, f: Lambda, env: Env, args: Sequence[Value]) -> Value:
        """A function's body with its parameters bound."""
        raise NotImplementedError

    def unify_branches(self, k: int, x: Atom, y: Atom, one: Any, two: Any, span: Span | None) -> None:
        raise NotImplementedError


class Dead(Exception):
    """Code that ends the call, for a mistake: nothing comes after it."""

    def __init__(self, message: str, span: Span | None) -> None:
        self.message, self.span = message, span

    def error(self) -> ModelTypeError:
        """The mistake, where there is no way around it."""
        return ModelTypeError(self.message, self.span)


def scope_of(opened: Any) -> Scope:
    return opened[0] if isinstance(opened, tuple) else opened


def lambdas_in(f: Lambda) -> set[Lambda]:
    """The functions that are written inside a function."""
    return {x for bind in all_binds(f.body) for x in functions_at(bind.op)}


def functions_at(op: Any) -> tuple[Lambda, ...]:
    return op.functions if isinstance(op, Rec) else (op,) if isinstance(op, Lambda) else ()


def made_in(code: Any, own: set[Lambda]) -> bool:
    """Whether a value holds a function that the recursive function itself makes: it grows with each call."""
    if code is None:
        return False
    make, inner = code if isinstance(code[0], Shape) else (None, code)
    if make is not None and make.kind == "fn" and make.of[0] in own:
        return True
    return any(made_in(c, own) for c in inner)


def id_of(instance: Instance, facts: Facts) -> int:
    return facts.places.setdefault(("instance", id(instance)), len(facts.places))


def makes(member: Member, kind: Any) -> bool:
    """Whether a pattern of a kind, as ``constructor`` gives it, takes what a constructor makes."""
    if kind in (None, Arr):
        return member.make is nothing if kind is None else member.make == "array"
    return member.make is kind or kind is tuple and member.keys is None and len(member.items) == 2


def is_made_by(value: Value, kind: Any) -> bool:
    if kind is None:
        return value is NIL
    if kind in (float, bool, Arr):
        t = type_of(value) if isinstance(value, (Const, Var)) and value is not NIL else None
        return isinstance(t, Arr) if kind is Arr else t == BOOL if kind is bool else t in (REAL, INT)
    if not isinstance(value, TupleValue):
        return False
    if kind is tuple:
        return value.keys is None and len(value.items) == 2
    return value.make is kind
