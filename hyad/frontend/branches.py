"""Branches: what is run of two regions or more, and one form for what they give and set.

``branches`` is ``if``, ``cases`` takes data apart by its constructors; both end in ``choose``, where values meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Union

from ..core import (
    BOOL,
    FALSE,
    INT,
    REAL,
    TRUE,
    Arr,
    Atom,
    Case,
    Check,
    Const,
    Data,
    If,
    Type,
    Var,
    elem_of,
    integer,
    type_of,
)
from ..errors import ModelTypeError, NotCompiled, Span
from ..program.bounds import Scope
from ..program.data import Data as PythonData
from ..program.dead import has_checks
from ..program.values import (
    FUNCTIONS,
    NIL,
    ArrayOfTuples,
    Cell,
    Choice,
    Env,
    TupleValue,
    Value,
    describe,
    flatten,
    is_reference,
    nothing,
    same_array,
    same_tree,
    unflatten,
)
from .boxing import box_unsized, coerce, unbox
from .families import Again, Bottom, Dead, Family, Member, sizes_of, sort_of

if TYPE_CHECKING:
    from .specialise import Specialiser


def branches(
    sp: Specialiser, cond: Atom, then: Callable[[], Value], orelse: Callable[[], Value], var: Var | None
) -> Value:
    """``(if cond ..)`` of two thunks."""
    if type(cond) is Const:
        return then() if cond.value else orelse()
    test = sp.tests.get(cond)  # type: ignore[arg-type]
    op = getattr(sp.site, "op", None)
    places = [op.then.place, op.orelse.place] if type(op) is If and sp.library is None else [None, None]
    if test is not None and test[0] not in sp.known:
        value, true = test
        thunk = lambda v: then() if is_one_of(sp, value, true) else orelse()  # noqa: E731
        holds = lambda m: m.constructor in true  # noqa: E731
        return cases(sp, value, thunk, var, holds, lambda m: places[0 if holds(m) else 1])
    if test is not None:
        return then() if is_one_of(sp, *test) else orelse()
    b = sp.b

    def region(holds: bool) -> Callable[[], AbstractContextManager]:
        return lambda: b.branch_region(cond, holds)

    def finish(regions: Sequence[tuple[Any, list[Atom]]], names: Sequence[str], given: bool) -> Sequence[Atom]:
        return b.if_(cond, *regions, names, given)  # type: ignore[arg-type]

    arms = [(region(True), lambda _: then(), True), (region(False), lambda _: orelse(), False)]
    return choose(sp, arms, finish, var, cond, places)


def cases(
    sp: Specialiser,
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
    family = sp.family_of(value)
    assert family is not None
    members = [member_of(family, c) for c in family.data.constructors]
    if not members:
        raise Bottom
    if len(members) == 1 and members[0].make == "array":
        return then(array_of(sp, value, members[0]))
    arms = [(lambda m=m: sp.b.arm(m.constructor), known_as(sp, value, m, then), group(m)) for m in members]

    def finish(regions: Sequence[tuple[Any, list[Atom]]], names: Sequence[str], given: bool) -> Sequence[Atom]:
        rows = [(m.constructor, fields, scope, atoms) for m, ((scope, fields), atoms) in zip(members, regions)]
        return sp.b.case(value, rows, names, given)

    return choose(sp, arms, finish, var, None, [place(m) for m in members])


def array_of(sp: Specialiser, value: Var, member: Member) -> Atom:
    """The array that data is, taken out where the data is bound: once for all that read it, in whatever loops and
    branches; what their derivatives add to it is one array, too."""
    b = sp.b
    home = next((scope for scope in b.scopes if value in scope.vars), b.scopes[0])
    found = home.shared.get(("array-of", value))
    if found is None:

        def part(pick: Callable[[Sequence[Var]], Sequence[Atom]], known: Sequence[Type]) -> Sequence[Var]:
            with b.arm(member.constructor) as (scope, fields):
                results = pick(fields)
            names = [r.name for r in results]
            return b.case(value, [(member.constructor, fields, scope, results)], names, False, known)

        sizes = member.constructor.fields[:-1]
        with b.inside(home):
            outside = dict(zip(sizes, part(lambda fields: fields[:-1], ()))) if sizes else {}
            t = member.constructor.fields[-1].type
            t = Arr(t.elem, tuple(outside.get(d, d) for d in t.dims))
            b.note_sizes(t)
            (found,) = part(lambda fields: fields[-1:], [t])
        home.shared["array-of", value] = found
    return found


def expose(sp: Specialiser, value: Var, good: Callable[[Value], bool], what: str) -> Value | None:
    """Data that must be made by the one constructor that ``good`` takes, apart from here on; None where more than
    one is good. The call fails when it runs if the data is made otherwise."""
    family = sp.family_of(value)
    assert family is not None
    members = [m for m in family.members.values() if good(sample(m))]
    if len(members) != 1 or any(sizes_of(t) for t in members[0].items):
        return None

    def take(known: Value) -> Value:
        if good(known):
            return known if isinstance(known, TupleValue) else TupleValue((known,))
        return sp.impossible(what.format(describe(known)))

    apart = cases(sp, value, take, None)
    assert isinstance(apart, TupleValue)
    if members[0].make in (float, bool, "array"):
        apart = apart.items[0]  # type: ignore[assignment]
    sp.known = {**sp.known, value: apart}
    return apart


def ask(sp: Specialiser, value: Value, holds: Callable[[Value], bool]) -> Atom:
    """``(null? l)``: a truth value, which a branch takes apart again."""
    family = sp.family_of(value)
    if family is None:
        return TRUE if holds(sp.look(value)) else FALSE
    assert isinstance(value, Var)
    true = frozenset(m.constructor for m in family.members.values() if holds(sample(m)))
    if len(true) in (0, len(family.members)):
        return TRUE if true else FALSE
    cond = cases(sp, value, lambda v: TRUE if holds(v) else FALSE, None)
    if isinstance(cond, Var):
        sp.tests[cond] = (value, true)
    return cond  # type: ignore[return-value]


def case(sp: Specialiser, op: Case, env: Env, var: Var | None) -> Value:
    """``case`` and ``match``."""
    value = sp.look(sp.value(op.value, env))
    span = sp.b.span
    arms = [(constructor(sp, arm.constructor), arm) for arm in op.arms]

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
            return sp.block(arm.block, inner)
        what = f"no arm takes {describe(v)}"
        have = f"the arms are for {', '.join(f'`{arm.constructor}`' for arm in op.arms)}; `_` takes all that is left"
        if sp.branching and sp.family_of(value) is None and value is not v:
            return sp.impossible(f"{what}: {have}")
        raise ModelTypeError(what, span, have)

    def group(m: Member) -> Any:
        return m.constructor  # a pattern's mistakes are its own

    def place(m: Member) -> Span | None:
        arm = next((arm for (kind, _), arm in arms if arm.constructor is None or makes(m, kind)), None)
        return arm.block.place if arm is not None and sp.library is None else None

    if sp.family_of(value) is not None:
        return cases(sp, value, run, var, group, place)  # type: ignore[arg-type]
    return run(value)


def constructor(sp: Specialiser, name: Any) -> tuple[Any, tuple[str, ...]]:
    """What a pattern's constructor is: a class of ``hyad.program.data``, ``tuple`` for pairs, None for nil."""
    from ..program.data import Inl, Inr

    if name is None or name.name == "nil":
        return None, ()
    known = {"cons": tuple, "inl": Inl, "inr": Inr, "number": float, "truth": bool, "array-of": Arr}.get(name.name)
    if known is not None:
        return known, ("a", "b") if name.name == "cons" else ("x",)
    sp.globals_read.add(name.name)
    found, made = sp.scope(name.name)
    if not found or not (isinstance(made, type) and issubclass(made, PythonData)):
        raise ModelTypeError(
            f"`{name.name}` is not a constructor", name.span, "a defdata names them: `(defdata Tree (Leaf x) ...)`"
        )
    return made, made.fields


def is_made_by(value: Value, kind: Any) -> bool:
    """Whether a value is one that a pattern of a kind takes."""
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


def makes(member: Member, kind: Any) -> bool:
    """Whether a pattern of a kind, as ``constructor`` gives it, takes what a constructor makes."""
    if kind in (None, Arr):
        return member.make is nothing if kind is None else member.make == "array"
    return member.make is kind or kind is tuple and member.keys is None and len(member.items) == 2


# ------------------------------------------------------------------------------------ constructors known


def known_as(sp: Specialiser, value: Var, member: Member, then: Callable[[Value], Value]) -> Callable[[Any], Value]:
    """``then`` of the fields of an arm, in which the data is known to be made by ``member``."""

    def run(opened: tuple[Scope, tuple[Var, ...]]) -> Value:
        apart = unbox(member, opened[1])
        known, sp.known = sp.known, {**sp.known, value: apart}
        try:
            return bare(sp, then(apart))
        finally:
            sp.known = known

    return run


def is_one_of(sp: Specialiser, value: Var, constructors: frozenset[Any]) -> bool:
    """Whether data whose constructor is known here has one of ``constructors``."""
    family = sp.facts.of_data[sp.facts.find(value.type)]  # type: ignore[arg-type]
    apart = sp.known[value]
    if apart is NIL:
        return any(c.make is None for c in constructors)
    member = sp.facts.member(family, sp.target(apart))
    return member.constructor in constructors


def member_of(family: Family, constructor: Any) -> Member:
    """What is known of a family's constructor."""
    return next(m for m in family.members.values() if m.constructor is constructor)


def sample(member: Member) -> Value:
    """Something that is made by a constructor, to ask about its kind."""
    if member.make is nothing:
        return NIL
    if member.make in (float, bool):
        return Const(0.0, REAL) if member.make is float else FALSE
    return TupleValue((NIL,) * len(member.items), member.keys, None)


def bare(sp: Specialiser, value: Value) -> Value:
    """The number that data is known to hold here: what a test has taken apart stays so."""
    known = sp.look(value)
    return known if isinstance(known, (Const, Var)) and known is not NIL else value


# ------------------------------------------------------------------------------------ where values meet


Arm = tuple[Callable[[], AbstractContextManager], Callable[[Any], Value], Any]  # opens its region, gives, its group
Ran = tuple[Any, Union[Value, None], dict[Cell, Value]]  # the opened region, its value, what references hold after it


def choose(
    sp: Specialiser,
    arms: Sequence[Arm],
    finish: Callable[..., Sequence[Atom]],
    var: Var | None,
    cond: Atom | None = None,
    places: Sequence[Span | None] = (),
) -> Value:
    """One of several regions is run: their values and what they set, joined. ``places``: where each is written."""
    b, span, site, before = sp.b, sp.b.span, sp.site, sp.store
    done, unknown, dead = run_arms(sp, arms)
    live = [(opened, value, store) for opened, value, store in done if value is not None]
    spots = [p for p, (_, value, _) in zip(places, done) if value is not None] or [None] * len(live)
    if not live:
        raise Bottom(dead) if unknown else dead  # type: ignore[misc]
    if unknown:  # this run only finds types
        opened, value, sp.store = live[0]
        for other, v, _ in live[1:]:
            value = learn(sp, site, value, v)
        splice(sp, scope_of(opened))
        return value
    cells = [c for c in before if any(store[c] is not before[c] for _, _, store in live)]
    choice = choice_of(sp, cond, live) if cond is not None and not cells else None
    if choice is not None:
        return choice
    rows = [[value, *(store[c] for c in cells)] for _, value, store in live]
    columns = [
        levelled(sp, site, k, meeting(sp, [row[k] for row in rows], live), live, spots if c is None else c, span)
        for k, c in enumerate([None, *cells])
    ]
    rows = [list(row) for row in zip(*columns)]
    flat = [flatten(TupleValue(tuple(row)), span) for row in rows]
    atoms = [list(a) for a, _ in flat]
    if any(len(a) != len(atoms[0]) for a in atoms):
        raise Again
    box_unsized(sp, site, atoms, [scope_of(opened) for opened, _, _ in live], len(flatten(rows[0][0], span)[0]))
    unify(sp, atoms, live, spots, span)
    made = iter(atoms)
    regions = []
    for opened, value, _ in done:
        if value is not None:
            regions.append((opened, next(made)))
        else:
            with b.region(scope_of(opened)):
                regions.append((opened, [never(sp, type_of(a), scope_of(live[0][0])) for a in atoms[0]]))
    names = (var.name,) * len(atoms[0]) if var is not None else ()
    out = finish(regions, names, bool(var is not None and var.given))
    b.span = span
    result = unflatten(flat[0][1], iter(out))
    assert isinstance(result, TupleValue)
    for c, v in zip(cells, result.items[1:]):
        sp.store[c] = v
    return result.items[0]


def run_arms(sp: Specialiser, arms: Sequence[Arm]) -> tuple[list[Ran], bool, Dead | None]:
    """What each arm gives, None where the call ends in it; whether of one nothing is known yet; the first end.

    A mistake in an arm is one of the call, where another arm of its group makes sense: it fails when it runs.
    """
    b, span, site, before, known = sp.b, sp.b.span, sp.site, sp.store, sp.known
    done: list[Ran] = []
    unknown = False
    dead: Dead | None = None
    mistakes: list[tuple[Any, Scope, ModelTypeError]] = []
    ended: set[Any] = set()
    sp.branching += 1
    for open_, thunk, group in arms:
        sp.store, sp.known = dict(before), known
        frame, depth = sp.frame, sp.branching
        with open_() as opened:
            try:
                done.append((opened, thunk(opened), sp.store))
                ended.add(group)
            except Bottom:
                unknown = True
                ended.add(group)
            except Dead as end:
                dead = dead or end
                b.span = end.span or span
                b.emit(Check("==", integer(0), integer(1), end.message, "shape"), ())
                done.append((opened, None, sp.store))
            except ModelTypeError as error:
                if sum(g == group for *_, g in arms) == 1:
                    raise
                mistakes.append((group, scope_of(opened), error))
                done.append((opened, None, sp.store))
                sp.frame, sp.branching = frame, depth
        b.span, sp.site = span, site
    sp.branching -= 1
    sp.store, sp.known = before, known
    for group, scope, error in mistakes:
        if group not in ended:
            raise error
        with b.region(scope):
            message = f"{error.message}: {error.hint}" if error.hint else error.message
            b.emit(Check("==", integer(0), integer(1), message, "shape"), ())
    if mistakes and not (dead or unknown):
        dead = Dead(mistakes[0][2].message, mistakes[0][2].span)
    return done, unknown, dead


def choice_of(sp: Specialiser, cond: Atom, live: Sequence[Ran]) -> Choice | None:
    """Two functions, or references, of different code: the call of either goes into both branches."""
    values = [value for _, value, _ in live]
    chosen = all(isinstance(v, FUNCTIONS) for v in values) or all(map(is_reference, values))  # type: ignore[arg-type]
    if len(live) != 2 or not chosen:
        return None
    scopes = [scope_of(opened) for opened, _, _ in live]
    alike = same_tree(flatten(values[0])[1], flatten(values[1])[1])  # type: ignore[arg-type]
    if alike or any(has_checks(sp.b.close(s, ())) for s in scopes):
        return None
    for s in scopes:
        splice(sp, s)
    return Choice(cond, *values)  # type: ignore[arg-type]


def unify(
    sp: Specialiser,
    atoms: Sequence[list[Atom]],
    live: Sequence[Ran],
    spots: Sequence[Span | None],
    span: Span | None,
) -> None:
    """Give each result one type in all regions; a mistake names what stands at ``spots``."""
    for j in range(1, len(atoms)):
        for k in range(len(atoms[0])):
            one, two = (scope_of(live[0][0]), atoms[0]), (scope_of(live[j][0]), atoms[j])
            try:
                unify_branches(sp, k, atoms[0][k], atoms[j][k], one, two, span)
            except ModelTypeError as error:
                notes = [(atoms[0][k], live[0][1], spots[0]), (atoms[j][k], live[j][1], spots[j])]
                error.notes = tuple(
                    (f"{'this' if isinstance(v, (Const, Var)) else 'a part of this'} is {describe(a)}", spot)
                    for a, v, spot in notes
                    if spot is not None and k < len(flatten(live[0][1])[0])  # type: ignore[arg-type]
                )
                raise
    for j in range(1, len(atoms)):  # the first may have become wider since
        for k in range(len(atoms[0])):
            with sp.b.region(scope_of(live[j][0])):
                if elem_of(atoms[0][k]) == REAL and elem_of(atoms[j][k]) == INT:
                    atoms[j][k] = sp.b.reals(atoms[j][k])


def meeting(sp: Specialiser, values: Sequence[Value], live: Sequence[Any]) -> list[Value]:
    """What branches give: an array that is changed in place stays itself where it is the same one in all."""
    if not sp.facts.mutates or all(same_array(values[0], v) for v in values):
        return list(values)
    first = values[0]
    if all(isinstance(v, TupleValue) and len(v.items) == len(first.items) for v in values):  # type: ignore[union-attr]
        columns = [meeting(sp, column, live) for column in zip(*(v.items for v in values))]  # type: ignore[union-attr]
        rows = zip(*columns) if columns else [()] * len(values)
        return [TupleValue(tuple(row), v.keys, v.make) for row, v in zip(rows, values)]  # type: ignore[union-attr]
    out = []
    for v, (opened, _, store) in zip(values, live):
        saved, sp.store = sp.store, store
        with sp.b.region(scope_of(opened)):
            out.append(sp.copied(v))
        sp.store = saved
    return out


def levelled(
    sp: Specialiser,
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
        targets.append(sp.target(v))
    joined = targets[0]
    if any(t != joined for t in targets[1:]):
        place = (sp.place(site), "if", k)
        for j, (v, t) in enumerate(zip(values[1:], targets[1:]), 1):
            try:
                joined = sp.join(place, joined, t)
            except ModelTypeError as error:
                if "reference" in (sort_of(joined), sort_of(t)) and sort_of(joined) == sort_of(t):
                    raise NotCompiled(
                        "which reference this is is only known when the model runs",
                        span,
                        "choose between what the references hold",
                    ) from None
                raise unlike(sp, values, j, where, span, error.message) from None
        if isinstance(joined, Data):
            family = sp.facts.of_data[sp.facts.find(joined)]
            other = next(j for j, t in enumerate(targets) if t != targets[0])
            family.doubt = family.doubt or unlike(sp, values, other, where, span)
    out = []
    for (opened, _, store), v in zip(live, values):
        saved, sp.store = sp.store, store
        with sp.b.region(scope_of(opened)):
            out.append(coerce(sp, v, joined))
        sp.store = saved
    return out


def unlike(
    sp: Specialiser,
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
        notes = [("it is made here", sp.written[where.key][0])]
    else:
        message = f"one branch gives {one}, the other {two}"
        notes = [(f"this is {one}", where[0]), (f"this is {two}", where[j])]
    notes = [(text, place) for text, place in notes if place is not None]
    if one == two and parts:
        notes.append((f"they differ in a part: {parts}", None))
    return ModelTypeError(message, span, "both branches give the same kind", notes)


def learn(sp: Specialiser, site: Any, a: Value, b: Value) -> Value:
    """Join what is known of two results, in a run that is thrown away; the one that tells more."""
    try:
        joined = sp.join((sp.place(site), "if", 0), sp.target(a), sp.target(b))
        return coerce(sp, a, joined)
    except ModelTypeError:
        return a


def unify_branches(sp: Specialiser, k: int, x: Atom, y: Atom, one: Any, two: Any, span: Span | None) -> None:
    """Give result ``k`` of both branches one type."""
    b, tx, ty = sp.b, type_of(x), type_of(y)
    for (scope, atoms), mine, other in ((one, tx, ty), (two, ty, tx)):
        elem = mine.elem if isinstance(mine, Arr) else mine
        wanted = other.elem if isinstance(other, Arr) else other
        if elem == INT and wanted == REAL:
            with b.region(scope):
                atoms[k] = sp.b.reals(atoms[k])
    tx, ty = type_of(one[1][k]), type_of(two[1][k])
    if isinstance(tx, Arr) and isinstance(ty, Arr) and tx.rank == ty.rank and tx.elem == ty.elem:
        outer_x, outer_y = b.type_outside(tx, one[0]), b.type_outside(ty, two[0])
        if all(
            b.require_equal(d, e, "the branches of an if give arrays of different shapes")
            for d, e in zip(outer_x.dims, outer_y.dims)
        ):
            return
    elif tx == ty:
        return
    raise ModelTypeError(
        f"one branch gives {describe(one[1][k])}, the other {describe(two[1][k])}",
        span,
        "both branches give the same type",
    )


def never(sp: Specialiser, t: Any, scope: Scope) -> Atom:
    """What stands for the result of a region that does not end."""
    return sp.b.undef(sp.b.type_outside(t, scope))


def splice(sp: Specialiser, scope: Scope) -> None:
    """Put the bindings of a region where it stands."""
    sp.b.scopes[-1].binds.extend(scope.binds)
    sp.b.scopes[-1].vars.update(scope.vars)


def scope_of(opened: Any) -> Scope:
    """The scope of a region that was opened as a branch or as a constructor's arm."""
    return opened[0] if isinstance(opened, tuple) else opened
