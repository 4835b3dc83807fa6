"""Store passing: references, and arrays that ``set-at!`` changes, as values that loops hand on (Lantern 3.6).

They never reach typed core. The specialiser's ``store`` says what each holds; a loop's accumulators hold what its body
sets, which is known from the run before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..core import (
    BOOL,
    INT,
    TRUE,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    If,
    Loop,
    Make,
    Prim,
    Var,
    While,
    free_vars,
    integer,
    type_of,
)
from ..errors import ModelTypeError, NotCompiled, Span
from ..program.values import NIL, Cell, Env, Shape, TupleValue, Value, describe, flatten, nothing
from .arguments import snapshots
from .boxing import coerce, resized, sized
from .families import Again, Apart, Dead, Target, describe_target, kinds, sizes_vary, unsized

if TYPE_CHECKING:
    from .specialise import Specialiser


NEVER_ENDS = "this `while` never ends: its body changes nothing that its condition reads"


def new_cell(sp: Specialiser, value: Value, array: bool = False) -> Cell:
    """A reference, or an array that is held where it can be changed."""
    cell = Cell((sp.place(), "array" if array else "ref"), len(sp.making), array)
    sp.store[cell] = value
    sp.written[cell.key] = sp.b.span, None
    return cell


def touch(sp: Specialiser, cell: Cell, written: bool = False) -> None:
    """A reference from outside is read or set in a recursive function: calls hand it in, and out if it is set."""
    for _, instance, _ in sp.making[cell.level :]:
        if instance.cells.get(cell.key) not in (written, True):
            instance.cells[cell.key] = written
            sp.facts.changed = True


def set_cell(sp: Specialiser, cell: Cell, value: Value) -> None:
    """Set a reference: the loops and functions around it hand it on."""
    touch(sp, cell, True)
    sp.written[cell.key] = sp.written.get(cell.key, (None, None))[0], sp.b.span
    for place, outside in sp.open_loops:
        if cell in outside and cell.key not in sp.facts.modified.setdefault(place, {}):
            sp.facts.modified[place][cell.key] = None
            sp.facts.changed = True
    sp.store[cell] = value


# ------------------------------------------------------------------------------------- copies of arrays


def held_elsewhere(sp: Specialiser, key: tuple, span: Span | None) -> NotCompiled:
    """The refusal to change an array of which another value holds a copy, and should hold the array itself."""
    hint = "let the other value hold a copy of it: `(copy v)` in place of `v`"
    holder = sp.holders.get(key)
    notes = [("that value is made here:", holder)] if holder is not None and holder != span else []
    return NotCompiled("set-at! of an array that another value holds, too", span, hint, notes)


def origins(sp: Specialiser, binds: Sequence[Bind], results: Iterable[Atom]) -> set[Var]:
    """The variables whose arrays may be what ``results`` are or hold: through branches, loops, calls, data and rows."""
    flows = {i.function: i.flows for i in sp.facts.instances.values() if i.function is not None}
    found: set[Var] = set()

    def want(atoms: Iterable[Atom]) -> None:
        found.update(x for x in atoms if type(x) is Var and isinstance(x.type, (Arr, Data)))

    def inside(bind: Bind, block: Block) -> None:
        """The block of a branch."""
        want(x for v, x in zip(bind.vars, block.results) if v in found)
        walk(block.binds)

    def walk(binds: Sequence[Bind]) -> None:
        for bind in reversed(binds):
            op = bind.op
            if found.isdisjoint(bind.vars):
                continue
            if isinstance(op, Make):
                want(op.args)
            elif isinstance(op, Apply):
                want(x for k, x in enumerate(op.args) if k in flows.get(op.function, range(len(op.args))))
            elif isinstance(op, Prim):
                want(op.args if op.name == "array" else op.args[:1] if op.name == "get" else ())
            elif isinstance(op, If):
                inside(bind, op.then)
                inside(bind, op.orelse)
            elif isinstance(op, Case):
                for arm in op.arms:
                    inside(bind, arm.block)
                    if not found.isdisjoint(arm.fields):
                        want([op.value])
            elif isinstance(op, (Loop, While)):
                states = list(zip(op.accs, op.inits, op.body.results, bind.vars))
                want(op.body.results[len(states) :])
                size = -1
                while size != len(found):
                    size = len(found)
                    for acc, init, following, last in states:
                        if acc in found or last in found:
                            want([init, following])
                    walk(op.body.binds)

    want(results)
    walk(binds)
    return found


# ---------------------------------------------------------------------------------------------- loops


def counted_loop(
    sp: Specialiser,
    count: Atom,
    inits: Sequence[Atom],
    body: Callable[..., tuple[Sequence[Atom], Sequence[Atom]]],
    names: Sequence[str] = (),
    index_name: str = "i",
    acc_names: Sequence[str] = (),
    given: bool = False,
) -> tuple[Atom, ...]:
    """A loop of the builder that hands on the references that its body sets."""
    place = sp.place()
    return sp.settled(lambda: loop_counted(sp, place, count, inits, body, names, index_name, acc_names, given))


def loop_counted(
    sp: Specialiser,
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
    """One attempt at ``counted_loop``, with what is known so far of the references that it sets. Where one of them
    holds an array of another size after the first iteration than before it, that iteration is made before the loop."""
    start, ahead = 0, (place, "ahead")
    if sp.facts.joins.get(ahead) is BOOL:
        start = 1
        inits, stacked = body(integer(0), *inits)
        if stacked:
            sp.facts.joins[ahead] = INT
            sp.facts.changed = True
            raise Again
        count = integer(count.value - 1)  # type: ignore[union-attr]
    once = type(count) is Const and count.value > 1 and ahead not in sp.facts.joins
    known = tuple(sp.facts.modified.get(place, ()))
    cells = [c for c in sp.store if c.key in known]
    starts, targets = states_before(sp, place, cells)
    width, more = len(inits), len(starts)
    before, known_here = sp.store, sp.known

    def iteration(i: Atom, *accs: Atom):
        sp.store, sp.known = dict(before), known_here
        take(sp, cells, targets, accs[width:])
        sp.open_loops.append((place, frozenset(before)))
        try:
            following, stacked = body(sp.b.prim("+", i, integer(start)), *accs[:width])
            news_of_loop(sp, place, known, before)
        finally:
            sp.open_loops.pop()
        return [*following, *states_after(sp, place, cells, targets, before, [*following, *stacked], once)], stacked

    sp.branching += 1
    try:
        hints = [*names[:width], *(["state"] * more), *names[width:]]
        acc_hints = [*acc_names, *(["acc"] * (width - len(acc_names))), *(["state"] * more)]
        out = sp.b.loop(
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
        sp.branching -= 1
        sp.store, sp.known = before, known_here
    take(sp, cells, targets, out[width : width + more])
    return (*out[:width], *out[width + more :])


def news_of_loop(sp: Specialiser, place: int, known: Sequence[tuple], before: dict[Cell, Value]) -> None:
    """Start a loop again whose body was found to make another kind of thing of a reference: the wrong kind is
    not to reach what follows."""
    found = sp.facts.modified.get(place, ())
    if len(found) > len(known):
        for c, value in before.items():
            if c.key in found and c.key not in known:
                if kinds(sp.target(value, {})) != kinds(sp.target(sp.store[c], {})):
                    raise Again


def states_before(sp: Specialiser, place: int, cells: Sequence[Cell]) -> tuple[list[Atom], list[Target]]:
    """What a loop's references hold at first, as atoms, and in which form the loop keeps it."""
    atoms: list[Atom] = []
    targets: list[Target] = []
    for k, c in enumerate(cells):
        target = sp.target(sp.now(sp.store[c]), {})
        joined = sp.facts.joins.get((place, c.key))
        if joined is not None and joined != target:
            target = sp.join((place, "loop", k), joined, target, loop=True)
        targets.append(target)
        flat_state(sp, sp.store[c], target, atoms)
    return atoms, targets


def states_after(
    sp: Specialiser,
    place: int,
    cells: Sequence[Cell],
    targets: Sequence[Target],
    before: dict[Cell, Value],
    others: Sequence[Atom] = (),
    once: bool = False,
) -> list[Atom]:
    """What the references hold after an iteration; ``before``: what they held at first, ``others``: what else an
    iteration gives; ``once``: the first iteration may be made before the loop."""
    atoms: list[Atom] = []
    ends = [0]
    for k, (c, target) in enumerate(zip(cells, targets)):
        after = sp.target(sp.now(sp.store[c]), {})
        if kinds(after) == kinds(target) and sizes_vary(target):
            start, end = (coerce(sp, v, target) for v in (before[c], sp.store[c]))
            if resized(sp, start, end):
                if once:
                    sp.facts.joins[place, "ahead"] = BOOL
                else:
                    sp.facts.joins[place, "ahead"] = INT  # its size changes again
                    sp.facts.joins[place, c.key] = sized(sp, unsized(target), set(), (place, c.key))
                sp.facts.changed = True
                raise Again
        if kinds(after) != kinds(target):
            try:
                joined = sp.join((place, "loop", k), target, after, loop=True)
            except ModelTypeError:
                raise ModelTypeError(
                    f"a reference in this loop holds {describe_target(target)}, then {describe_target(after)}",
                    sp.b.span,
                    "what is set must be of the same kind",
                    [(t, p) for t, p in zip(("it is made here", "it is set here"), sp.written[c.key]) if p],
                ) from None
            if kinds(joined) != kinds(target):
                sp.facts.joins[place, c.key] = joined
                sp.facts.changed = True
                raise Again
        flat_state(sp, sp.store[c], target, atoms)
        ends.append(len(atoms))
    for c in before:
        if c.key in sp.copies and c.key in sp.facts.modified.get(place, ()):
            own = next((slice(*ends[k : k + 2]) for k, d in enumerate(cells) if d is c), slice(0))
            rest = [x for k, x in enumerate(atoms) if k not in range(*own.indices(len(atoms)))]
            if sp.copies[c.key] & origins(sp, sp.b.scopes[-1].binds, [*others, *rest]):
                raise held_elsewhere(sp, c.key, sp.written[c.key][1])  # the next iteration changes it
    return atoms


def flat_state(sp: Specialiser, value: Value, target: Target, atoms: list[Atom]) -> None:
    """Atoms of a value whose arrays keep their sizes."""
    value = sp.copied(value) if sp.facts.mutates else value
    atoms += flatten(coerce(sp, value, target), sp.b.span)[0]


def take(sp: Specialiser, cells: Sequence[Cell], targets: Sequence[Target], atoms: Sequence[Atom]) -> None:
    """References hold what a loop's accumulators are."""
    it = iter(atoms)
    for c, t in zip(cells, targets):
        sp.store[c] = refill(t, it)


def refill(target: Target, atoms: Iterator[Atom]) -> Value:
    """A value of a target's form from the next atoms."""
    if isinstance(target, Apart):
        if target.make is nothing:
            return NIL
        items = [refill(t, atoms) for t in target.items]
        if isinstance(target.make, Shape):
            return target.make.rebuild(items)
        return TupleValue(tuple(items), target.keys, target.make)
    return next(atoms)


def while_(sp: Specialiser, op: While, env: Env) -> None:
    """A loop over what its condition and body set."""
    place = sp.place()
    sp.settled(lambda: loop_while(sp, op, env, place))


def loop_while(sp: Specialiser, op: While, env: Env, place: int) -> None:
    """One attempt at ``while_``."""
    b, span = sp.b, sp.b.span
    known = tuple(sp.facts.modified.get(place, ()))
    cells = [c for c in sp.store if c.key in known]
    before = sp.store
    outside = frozenset(before)
    kept = None if op.snapshots is None else snapshots(sp, sp.value(op.snapshots, env), span)
    turned = (place, "condition") in sp.facts.joins  # the condition sets references: it is run before, and last
    if turned:
        first = truth(sp.block(op.cond, Env(env)), op.cond.place or span)
    elif never_entered(sp, op, env):
        return
    starts, targets = states_before(sp, place, cells)
    before, known_here = sp.store, sp.known
    width = len(starts)
    if turned:
        starts.append(first)

    def condition(*accs: Atom) -> Atom:
        if turned:
            return accs[-1]
        sp.store, sp.known = dict(before), known_here
        take(sp, cells, targets, accs)
        entered = dict(sp.store)
        sp.open_loops.append((place, outside))
        sp.branching += 1
        holds = truth(sp.block(op.cond, Env(env)), op.cond.place or span)
        sp.branching -= 1
        sp.open_loops.pop()
        if any(sp.store[c] is not entered[c] for c in entered):
            sp.facts.joins[place, "condition"] = BOOL
            sp.facts.changed = True
        return holds

    def body(*accs: Atom):
        sp.store, sp.known = dict(before), known_here
        take(sp, cells, targets, accs[:width])
        sp.open_loops.append((place, outside))
        sp.branching += 1
        try:
            sp.block(op.body, Env(env))
            news_of_loop(sp, place, known, before)
            last = [truth(sp.block(op.cond, Env(env)), op.cond.place or span)] if turned else []
        finally:
            sp.open_loops.pop()
            sp.branching -= 1
        b.span = span
        return [*states_after(sp, place, cells, targets, before), *last], ()

    out = b.while_(starts, condition, body, ["state"] * len(starts), [], snapshots=kept)
    b.span = span
    sp.store, sp.known = before, known_here
    if not sp.facts.changed and never_left(sp):
        refuse_entry(sp, op, env)
        out = starts
    take(sp, cells, targets, out[:width])


def never_left(sp: Specialiser) -> bool:
    """Whether the condition of the loop just made reads nothing that an iteration changes."""
    made = sp.b.scopes[-1].binds[-1].op
    if type(made) is not While:  # it is one that was made before, and is left
        return False
    return not set(made.accs) & set(free_vars(made.cond))


def refuse_entry(sp: Specialiser, op: While, env: Env) -> None:
    """In place of the loop just made, which never ends where it is entered: an error there."""
    b, span = sp.b, sp.b.span
    scope = b.scopes[-1]
    loop = scope.binds.pop()
    scope.shared = {key: made for key, made in scope.shared.items() if made is not loop.vars}
    holds = truth(sp.block(op.cond, Env(env)), op.cond.place or span)
    b.span = span
    if holds == TRUE:
        raise ModelTypeError(NEVER_ENDS, span, "a reference that its condition reads is to be set in it")
    b.emit(Check("==", b.select(holds, integer(1), integer(0)), integer(0), NEVER_ENDS, "shape"), ())


def never_entered(sp: Specialiser, op: While, env: Env) -> bool:
    """Whether the condition is known to be false at first: what the body is made for may not be there then."""
    before, span = dict(sp.store), sp.b.span
    with sp.b.region():
        try:
            holds = truth(sp.block(op.cond, Env(env)), span)
        except Dead:
            holds = TRUE
    same = all(sp.store[c] is v for c, v in before.items())
    sp.store, sp.b.span = before, span
    return same and type(holds) is Const and not holds.value


def truth(value: Value, span: Span | None) -> Atom:
    """A condition, as a truth value."""
    if not isinstance(value, (Const, Var)) or value is NIL or type_of(value) != BOOL:
        raise ModelTypeError(f"the condition is {describe(value)}", span, "a condition compares: `(< x 0)`")
    return value
