"""Recursion: a function that calls itself under a run-time condition becomes a function of the program.

Functions are inlined; where one turns out to call itself, it is called after all: a ``Function``, one for each kind of
arguments, whose types are found by specialising it until they no longer grow. So does one that calls itself on known
integers where that is long, written out: ``unfold`` may still do it, once equal calls are known and what is alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core import (
    BOOL,
    Arr,
    Atom,
    Bind,
    Block,
    Call,
    Case,
    Const,
    Data,
    Function,
    If,
    Lambda,
    Rec,
    Var,
    all_binds,
    blocks_of,
)
from ..errors import HyadError, ModelTypeError, NotCompiled, Span
from ..program.advice import said_inside
from ..program.values import ArrayOfTuples, Cell, Closure, Env, Frame, Shape, TupleValue, Value, captures, is_array
from .boxing import coerce, gather, resized, sized, spread, variables
from .families import (
    Again,
    Apart,
    ArrayOf,
    Bottom,
    Facts,
    Instance,
    Recursion,
    Sizes,
    Target,
    code_of,
    describe_target,
    kinds,
    named_apart,
    sizes_of,
    sort_of,
    target_of,
    unsized,
)
from .store_passing import held_elsewhere, new_cell, origins, set_cell, touch

if TYPE_CHECKING:
    from .specialise import Specialiser


INSTANCES = 3  # so many kinds of arguments of a function are told apart inside each other
WALKED = 10_000  # surface bindings that a recursive function on known integers is inlined for, in a program
LOOPED = 400  # the same of one that calls itself only last: as many as a loop of known length is written out for
FAR = 10  # times as many where it cannot be a function of the program
DEPTH = 500  # calls inside one another that are inlined


def is_recursive(sp: Specialiser, f: Lambda) -> bool:
    """Whether calls of a function are calls at run time: it was found to call itself under a run-time condition."""
    levels = sp.active.get(f)
    if levels and sp.branching > levels[-1] and f not in sp.facts.recursive:
        sp.facts.recursive.add(f)
        sp.facts.changed = True
        raise Recursion(f)
    return f in sp.facts.recursive


def spend(sp: Specialiser, closure: Closure, args: Sequence[Value]) -> None:
    """Raise ``Recursion`` where a function that calls itself has been inlined for too long.

    ``(f 20 x)`` of ``(f n x)`` = ``(if (= n 0) x (+ (f (- n 1) (* 2 x)) (f (- n 1) (+ x 1))))`` is two million
    operations written out, of which none are equal, and one recursive function. One that calls itself only last is a
    loop then, unless its arrays get longer from call to call, or matrices change their shapes.
    """
    f = closure.function
    here = sp.walked - sp.entered[f]
    walked = sp.spent.get(f, 0) + here
    counts = here > LOOPED and calls_last(closure) and no_longer(shapes_in(sp, args), sp.began[f])
    deep, refused = len(sp.active[f]) >= DEPTH, sp.written_out.get(f)
    if refused is not None:
        if deep:
            raise endless(f, sp.b.span)
        if walked > FAR * WALKED:
            message = f"the recursion of {called(f)} is too long to be written out"
            notes = [(f"and it cannot be called instead: {refused.message}", refused.span)]
            raise NotCompiled(message, sp.b.span, "hyad.run evaluates it", notes)
    elif deep or (counts or walked > WALKED) and "recursion" not in sp.b.off:
        sp.b.fired("recursion")
        sp.facts.recursive.add(f)
        sp.long.add(f)
        sp.facts.changed = True
        raise Recursion(f)


def inline_or_call(sp: Specialiser, closure: Closure, args: Sequence[Value], var: Var | None) -> Value:
    """A call of a function that may be recursive: where that shows while it is inlined, it is called after all.

    What was emitted stays; nothing reads it, and the whole is specialised again.
    """
    state = dict(sp.store), sp.known, sp.branching, list(sp.open_loops)
    modes = sp.unrolled, sp.factor, sp.encoding, sp.result_names
    try:
        return sp.inline(closure, args)
    except Recursion as found:
        if found.function is not closure.function:
            raise
    sp.store, sp.known, sp.branching, sp.open_loops = state
    sp.unrolled, sp.factor, sp.encoding, sp.result_names = modes
    return call_recursive(sp, closure, sp.arguments(closure, args), var)


def call_recursive(sp: Specialiser, closure: Closure, args: Sequence[Value], var: Var | None) -> Value:
    """A call of a ``Function``, which is made at its first call."""
    facts, b = sp.facts, sp.b
    span = b.span
    shared = set(sp.shared)
    closed = [closure.env[v] for v in captures(closure)] if closure.env is not None else []
    whole = facts.changes.get(closure.function, ())
    given = (*args, *closed)
    values = [recursive_argument(sp, v, span, k in whole) for k, v in enumerate(given)]
    sizes: dict[Atom, str] = {}
    targets = [target_of(v, sizes, facts.find) for v in values]
    instance = instance_of(sp, closure, targets)
    instance.params = [facts.renamed(t) for t in instance.params]
    join_params(sp, closure, instance, targets, span)
    if instance.function is None:
        sp.settled(lambda: make_function(sp, closure, instance, len(args), span))
    assert instance.function is not None
    cells = [c for c in sp.store if c.key in instance.cells and c.level <= len(sp.making)]
    cells = [c for c in cells if c in sp.store]
    atoms: list[Atom] = []
    given_sizes: set[str] = set()

    def hand(value: Value, t: Target, original: Value) -> None:
        """A value, of which the results may hold a copy then."""
        first = len(atoms)
        spread(sp, coerce(sp, value, t), t, atoms, given_sizes)
        if not instance.flows.isdisjoint(range(first, len(atoms))):
            sp.copied(original)

    for v, t, original in zip(values, instance.params, given):
        no_stale(sp, instance, original, t)
        hand(v, t, original)
    number = id_of(instance, facts)
    cell_targets = [facts.joins.get(state_key(sp, number, c)) for c in cells]
    for c in cells:
        touch(sp, c)
        if c.array and instance.cells[c.key] and c.key in shared:
            raise held_elsewhere(sp, c.key, sp.written[c.key][1])
    sp.shared |= instance.shared
    for c, t in zip(cells, cell_targets):
        if t is None:
            raise Bottom if facts.changed else Again
        now = state_target(sp, number, c)
        if kinds(now) != kinds(t):
            joined = named_apart(join_states(sp, number, c, t, now), c.key)
            if kinds(joined) != kinds(t):
                facts.changed = True
            t = facts.joins[state_key(sp, number, c)] = joined
        no_stale(sp, instance, sp.store[c], t)
        hand(sp.store[c], t, sp.store[c])
    if instance.result is None:
        raise Bottom
    if len(atoms) != len(instance.function.params):
        raise Again
    names = [var.name] if var is not None else []
    out = iter(b.apply(instance.function, atoms, names, bool(var is not None and var.given)))
    b.span = span
    known = {d for t in (*instance.params, *cell_targets) for d in sizes_of(t)}  # type: ignore[arg-type]
    result = gather(instance.result, out, known)
    try:
        states = [gather(t, out, known) if instance.cells[c.key] else None for c, t in zip(cells, cell_targets)]  # type: ignore
    except StopIteration:  # that it sets one was found out in its body, after its results had been declared
        raise Again from None
    for c, state in zip(cells, states):
        if state is not None:
            set_cell(sp, c, state)
    return result


def no_stale(sp: Specialiser, instance: Instance, value: Value, target: Target) -> None:
    """Raise the refusal of a call that hands in a copy of an array that the function changes."""
    if is_array(value) and isinstance(target, (ArrayOf, Data)):
        key = value.key if isinstance(value, Cell) else value.array.key  # type: ignore[union-attr]
        if instance.cells.get(key):
            raise held_elsewhere(sp, key, sp.written[key][1])
    elif isinstance(value, TupleValue):
        parts = target.items if isinstance(target, Apart) else (target,) * len(value.items)
        for x, t in zip(value.items, parts):
            no_stale(sp, instance, x, t)


def instance_of(sp: Specialiser, closure: Closure, targets: list[Target]) -> Instance:
    """The making of a function that a call belongs to: the one that is being made if it fits, else its own."""
    f = closure.function
    around = [i for c, i, _ in sp.making if c.function is f]
    codes = [code_of(t) for t in targets]
    for instance in reversed(around):
        if [code_of(t) for t in instance.params] == codes:
            return instance
    own = lambdas_in(f)
    if around and (len(around) >= INSTANCES or any(made_in(c, own) for c in codes)):
        return around[-1]
    key = (f, tuple(sp.facts.renamed(t) for t in targets), sp.b.span if closure.is_library else None)
    found = sp.facts.instances.get(key)
    if found is None:
        found = sp.facts.instances[key] = Instance(list(targets))
        found.span = sp.b.span
        sp.facts.changed = True
    return found


def join_params(
    sp: Specialiser, closure: Closure, instance: Instance, targets: list[Target], span: Span | None
) -> None:
    """What is known of a function's parameters, with those of one more call."""
    if instance.params == targets:
        return
    sizes = Sizes({d for t in instance.params for d in sizes_of(t)})
    number = id_of(instance, sp.facts)
    for k, (old, new) in enumerate(zip(instance.params, targets)):
        try:
            joined = sp.join((number, k), old, new, sizes)
        except ModelTypeError as error:
            raise unlike_calls(sp, closure, k, old, new, span, error.message) from error
        if joined != old:
            if sizes_of(joined) != sizes_of(old):
                instance.result = None  # the sizes that it spoke of
            instance.params[k] = joined
            sp.facts.changed = True


def unlike_calls(
    sp: Specialiser, closure: Closure, k: int, old: Target, new: Target, span: Span | None, parts: str
) -> HyadError:
    """What is wrong where two calls of one function give it values of different kinds."""
    f = closure.function
    name = f.params[k].name if k < len(f.params) else captures(closure)[k - len(f.params)].name
    who = called(f)
    if sort_of(old) == sort_of(new) == "reference":
        return NotCompiled(
            f"which reference `{name}` of {who} is, is only known when the model runs",
            span,
            "give it what the reference holds",
        )
    first = next((i for c, i, _ in sp.making if c.function is f), None)
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


def recursive_argument(sp: Specialiser, value: Value, span: Span | None, whole: bool = False) -> Value:
    """What a recursive function is given; ``whole``: an array that it changes in place, itself."""
    if whole and type(value) is Var and isinstance(value.type, Arr):
        return new_cell(sp, value, array=True)
    value = value if whole else sp.now(value)
    if isinstance(value, ArrayOfTuples):
        raise ModelTypeError("an array of tuples cannot be given to a recursive function", span, "give its parts")
    return value


def make_function(sp: Specialiser, closure: Closure, instance: Instance, arity: int, span: Span | None) -> None:
    """Specialise the body of a recursive function."""
    sp.made.append(instance)
    shared = set(sp.shared)
    instance.params = [sp.facts.renamed(t) for t in instance.params]
    f, facts, b = closure.function, sp.facts, sp.b
    number, given = id_of(instance, facts), len(instance.params)
    cells = [c for c in sp.store if c.key in instance.cells]
    for c in cells:
        key = state_key(sp, number, c)
        facts.joins[key] = named_apart(facts.joins.get(key) or state_target(sp, number, c), c.key)
    targets = [*instance.params, *(facts.renamed(facts.joins[state_key(sp, number, c)]) for c in cells)]
    sizes: dict[str, Var] = {}
    function = instance.function = declared(sp, closure, instance, cells, targets, sizes)
    b.sizes.update(sizes.values())
    with inside(sp, closure, instance, number, span), b.function_scope(0) as region:
        region.vars.update(function.params)
        it, seen = iter(function.params), set()
        values = [gather(t, it, seen) for t in targets]
        sp.params_of.update({v: (f, k) for k, v in enumerate(values) if type(v) is Var})
        env = Env()
        env.values.update(zip(captures(closure), values[arity:given]))
        if closure.group is not None:
            for v, g in zip(closure.group.vars, closure.group.op.functions):
                env.values[v] = Closure(g, env, closure.scope, closure.group)
        for c, v in zip(cells, values[given:]):
            sp.store[c] = v
        b.span = f.span if sp.library is None else span
        result = sp.copied(sp.body(f, env, values[:arity]))
        joined = join_result(sp, instance, number, result, sizes)
        atoms: list[Atom] = []
        known = set(sizes)
        spread(sp, coerce(sp, result, joined), joined, atoms, known)
        for c, t, before in zip(cells, targets[given:], values[given:]):
            if instance.cells[c.key]:
                join_state(sp, number, c, t, before)
                state = sp.copied(sp.store[c]) if ("apart", number, c.key) in facts.joins else sp.store[c]
                spread(sp, coerce(sp, state, t), t, atoms, known)
        if facts.mutates:
            join_copies(sp, instance, region.binds, atoms, {key for key in sp.shared - shared if key in instance.cells})
        function.body = b.close(region, atoms)


def declared(
    sp: Specialiser,
    closure: Closure,
    instance: Instance,
    cells: Sequence[Cell],
    targets: Sequence[Target],
    sizes: dict[str, Var],
) -> Function:
    """The function without its body: ``targets`` are its parameters', the references' that it is handed last."""
    f = closure.function
    names = [*(p.name for p in f.params), *(v.name for v in captures(closure)), *("state" for _ in cells)]
    params = variables(sp, targets, names, sizes)
    results: list[Var] = []
    if instance.result is not None:
        instance.result = sp.facts.renamed(instance.result)
        states = [t for c, t in zip(cells, targets[len(instance.params) :]) if instance.cells[c.key]]
        labels = [f.name or "result"] * (1 + len(states))
        results = variables(sp, [instance.result, *states], labels, dict(sizes))
    return Function(f.name or "f", tuple(params), tuple(results), None, f.span)


@contextmanager
def inside(sp: Specialiser, closure: Closure, instance: Instance, number: int, span: Span | None) -> Iterator[None]:
    """The specialiser while it makes a function: what is known at the call is not known in it."""
    f, b = closure.function, sp.b
    state = (sp.store, sp.known, sp.frame, sp.site, sp.branching, sp.open_loops, sp.active)
    library, scope, fast = sp.library, sp.scope, sp.fast
    sp.making.append((closure, instance, []))
    sp.known, sp.branching, sp.open_loops, sp.active = {}, 0, [], {}
    sp.frame, sp.site = Frame(None, number, f), f
    sp.store = dict(sp.store)
    sp.scope = closure.scope
    sp.library = (library or closure.name) if closure.is_library else None  # the place is the user's call
    sp.fast = fast or f.fast
    try:
        yield
    except Bottom as bottom:
        if not sp.facts.changed and bottom.args and bottom.args[0] is not None:
            raise bottom.args[0].error() from None
        if not sp.facts.changed:
            raise endless(f, span) from None
        raise
    except HyadError as error:
        if sp.library is not None and library is None:
            said_inside(error, sp.library, f.doc)
        raise
    finally:
        sp.making.pop()
        sp.store, sp.known, sp.frame, sp.site, sp.branching, sp.open_loops, sp.active = state
        sp.library, sp.scope, sp.fast = library, scope, fast
        b.span = span


def calls_last(closure: Closure) -> bool:
    """Whether a function calls itself, and only as the last thing that it does."""
    f, group = closure.function, closure.group
    itself = f.name if group is None else group.vars[group.op.functions.index(f)]  # type: ignore[union-attr]

    def last(block: Block) -> int:
        """How many calls of it a block ends with."""
        if not block.binds or block.binds[-1].vars != block.results:
            return 0
        op = block.binds[-1].op
        return int(calls(op)) if type(op) is Call else sum(map(last, blocks_of(op))) if type(op) in (If, Case) else 0

    def calls(op: Any) -> bool:
        return type(op) is Call and itself in (op.fn, getattr(op.fn, "name", None) if group is None else None)

    found = sum(calls(x.op) for x in all_binds(f.body))
    return found > 0 and found == last(f.body)


def shapes_in(sp: Specialiser, values: Iterable[Value]) -> list[Any]:
    """The types of the arrays among values, those that are changed in place as they are now."""
    inner = [x for v in values for x in (v.items if isinstance(v, TupleValue) else (v,))]
    held = [sp.store.get(x) if isinstance(x, Cell) and x.array else x for x in inner]
    return [x.type for x in held if type(x) is Var and isinstance(x.type, Arr)]


def no_longer(types: Sequence[Arr], began: Sequence[Arr]) -> bool:
    """Whether arrays are no longer than those that a function was first called with, and else as these."""
    return types == began or (
        [(t.elem, len(t.dims)) for t in types] == [(t.elem, len(t.dims)) for t in began]
        and all(t == z or len(t.dims) == 1 and shorter(t.dims[0], z.dims[0]) for t, z in zip(types, began))
    )


def shorter(dim: Atom, first: Atom) -> bool:
    """Whether a known size is less than another one."""
    return type(dim) is Const and type(first) is Const and dim.value < first.value


def endless(f: Lambda, span: Span | None) -> HyadError:
    """The mistake of a function that calls itself whatever is asked."""
    hint = "a branch that does not call it ends the recursion"
    return HyadError(f"{called(f)} calls itself without an end", span, hint)


def called(f: Lambda) -> str:
    """What an error calls a function."""
    return f"`{f.name}`" if f.name else "this function"


def join_result(sp: Specialiser, instance: Instance, number: int, result: Value, sizes: dict[str, Var]) -> Target:
    """The type of a function's result, with what its body gives now; where that is news the function is made again."""
    joined = target_of(sp.held(result), {v: d for d, v in sizes.items()}, sp.facts.find)
    if instance.result is not None:
        old = Sizes(sizes_of(instance.result), frozenset(sizes))
        joined = sp.join((number, "result"), instance.result, joined, old)
    joined = sized(sp, joined, set(sizes), (number, "result"))
    if joined != instance.result:
        instance.result = joined
        sp.facts.changed = True
        raise Again
    return joined


def join_copies(
    sp: Specialiser, instance: Instance, binds: Sequence[Bind], results: Sequence[Atom], shared: set[tuple]
) -> None:
    """Which arrays a function's results may hold copies of; where there are more now the function is made again."""
    assert instance.function is not None
    reached = origins(sp, binds, results)
    flows = {k for k, p in enumerate(instance.function.params) if p in reached}
    if not (flows <= instance.flows and shared <= instance.shared):
        instance.flows |= flows
        instance.shared |= shared
        sp.facts.changed = True
        raise Again


def state_key(sp: Specialiser, number: int, cell: Cell) -> tuple:
    """Where the kind of what a reference holds in a function is kept."""
    return "cell", number, cell.key, ("apart", number, cell.key) in sp.facts.joins


def state_target(sp: Specialiser, number: int, cell: Cell) -> Target:
    """The kind of what a reference holds now: the arrays in it themselves, as long as they are the same ones."""
    held = sp.store[cell]
    return sp.target(sp.now(held) if ("apart", number, cell.key) in sp.facts.joins else held, {})


def join_states(sp: Specialiser, number: int, cell: Cell, target: Target, now: Target) -> Target:
    """The kind of what a reference holds, with one more; of arrays that are not the same ones it holds copies."""
    if has_arrays(target) or has_arrays(now):
        sp.facts.joins["apart", number, cell.key] = BOOL
        sp.facts.changed = True
        raise Again
    return sp.join((number, cell.key), target, now)


def has_arrays(target: Target) -> bool:
    """Whether a structure holds arrays that are changed in place, themselves."""
    if not isinstance(target, Apart):
        return False
    if isinstance(target.make, Shape) and target.make.kind == "reference":
        return isinstance(target.make.of[0], Cell) and target.make.of[0].array
    return not isinstance(target.make, Shape) and any(map(has_arrays, target.items))


def join_state(sp: Specialiser, number: int, cell: Cell, target: Target, before: Value) -> None:
    """A reference that a function sets is of one type; where it is another one now the function is made again."""
    after = state_target(sp, number, cell)
    if kinds(after) != kinds(target):
        joined = join_states(sp, number, cell, target, after)
    elif resized(sp, coerce(sp, before, target), coerce(sp, sp.store[cell], target)):
        joined = sized(sp, unsized(target), set(), (number, cell.key))
    else:
        return
    sp.facts.joins[state_key(sp, number, cell)] = joined
    sp.facts.changed = True
    raise Again


# ------------------------------------------------------------------------------------ kinds of arguments


def lambdas_in(f: Lambda) -> set[Lambda]:
    """The functions that are written inside a function."""
    return {x for bind in all_binds(f.body) for x in functions_at(bind.op)}


def functions_at(op: Any) -> tuple[Lambda, ...]:
    """The functions that an operation makes."""
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
    """A number for a function's making, the same in every run."""
    return facts.places.setdefault(("instance", id(instance)), len(facts.places))
