"""Array combinators: ``build``, ``map``, ``fold``, ``ifold`` and ``scan``, loops with a function for their body.

All are cases of the builder's one counted loop. Accumulators may be of any structure: what an iteration gives is
brought into the form of what the loop starts with, and the loop is specialised again where that has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core import BOOL, INT, REAL, Arr, Atom, Const, Data, Var, elem_of, integer, type_of
from ..errors import ModelTypeError, NotCompiled, Span
from ..program.advice import call_hint
from ..program.values import (
    CLOSED,
    NIL,
    ArrayOfTuples,
    Cell,
    Closure,
    Place,
    References,
    Spans,
    TupleValue,
    Value,
    describe,
    flatten,
    is_array,
    is_reference,
    same_tree,
    unflatten,
)
from .arguments import arity, blamed, count_arg, function_arg, param_names, sizes, split_checkpoint
from .boxing import coerce
from .families import Again, derives, kinds, numbers_alone
from .references import row
from .store_passing import counted_loop, loop_counted, new_cell
from .structures import are_lists, over_lists
from .subscripts import get, shape_of

if TYPE_CHECKING:
    from .specialise import Specialiser


UNROLLED = 32  # a loop of so many steps at most that gives derivatives of functions is written out


def build(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(build n f)``, ``(build [n m] f)``: the array of what ``f`` gives of the indices."""
    arity(sp, "build", args, 2)
    counts = sizes(sp, args[0], "build", spans[0])
    fn = function_arg(sp, args[1], "build", spans[1])
    if isinstance(fn, Closure) and not fn.is_library and len(fn.function.params) != len(counts):
        error = sp.wrong_count(fn, len(counts))
        error.hint = call_hint("build")
        raise error
    names = param_names(fn, len(counts))

    def nest(done: list[Atom]) -> Value:
        if len(done) == len(counts):
            return sp.call(fn, done, (None,) * len(done), None)
        return stack(sp, counts[len(done)], lambda i: nest([*done, i]), var if not done else None, names[len(done)])

    return nest([])


def stack(sp: Specialiser, count: Atom, body: Callable[[Atom], Value], var: Var | None, index_name: str = "i") -> Value:
    """The array of what ``body`` gives for 0 .. count-1."""
    span, outside = sp.b.span, set(sp.store)
    shape: list[Any] = []

    def iteration(i: Atom):
        value = contents(sp, sp.now(body(i)), outside)
        inner = value.parts if isinstance(value, ArrayOfTuples) else value
        atoms, tree = flatten(inner, sp.b.span)
        if not atoms and isinstance(value, CLOSED):
            what = f"an array whose elements are {describe(value)} each"
            raise NotCompiled(what, span, "write a list: `(list f g)`")
        if not atoms:
            raise ModelTypeError(
                f"an array of {describe(value)}", span, "build gives numbers, arrays or tuples of them"
            )
        shape[:] = [
            tree,
            value.rank + 1 if isinstance(value, ArrayOfTuples) else 1,
            not isinstance(value, (Const, Var)),
            sp.references,
        ]
        return (), atoms

    hint = (var.name,) if var is not None else ()
    out = counted_loop(sp, count, (), iteration, hint, index_name, (), bool(var is not None and var.given))
    sp.b.span = span
    tree, rank, structured, references = shape
    if references:
        return References(new_cell(sp, out[0], array=True))
    return ArrayOfTuples(unflatten(tree, iter(out)), rank) if structured else out[0]


def contents(sp: Specialiser, value: Value, outside: set[Cell]) -> Value:
    """An element of an array; of a reference that was made for it, what it holds."""
    sp.references = is_reference(value) and isinstance(value, Cell) and value not in outside
    held = sp.now(sp.store[value]) if sp.references else value  # type: ignore[index]
    if sp.references and not (isinstance(held, (Const, Var)) and type_of(held) in (REAL, INT)):
        raise NotCompiled("an array of references that hold no numbers", sp.b.span, "write a list of them")
    return held


def map_(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(map f xs ...)``: ``f`` takes an element of each array, tuple or list."""
    if len(args) < 2:
        raise ModelTypeError("map takes a function and at least one array", sp.b.span, "`(map f xs)`")
    fn, whole, arrays = function_arg(sp, args[0], "map", spans[0]), args[1:], list(map(sp.look, args[1:]))
    if are_lists(sp, arrays):
        return over_lists(sp, "map", [fn], arrays, 3)
    if all(isinstance(a, TupleValue) for a in arrays):
        if len({len(a.items) for a in arrays}) > 1:
            raise ModelTypeError("map over tuples of different lengths", sp.b.span)
        return TupleValue(tuple(sp.call(fn, xs, (None,) * len(xs), None) for xs in zip(*(a.items for a in arrays))))
    count = common_length(sp, "map", arrays, spans[1:])
    return stack(sp, count, lambda i: sp.call(fn, [item(sp, a, i) for a in whole], (None,) * len(whole), None), var)


def item(sp: Specialiser, array: Value, i: Atom) -> Value:
    """Element ``i`` of an array, or of one of references or tuples; of one that is changed in place, as it is then, or
    the row itself."""
    if isinstance(array, References):
        return Place(array.array, (i,), True)
    itself = row(sp, [array, i], [None, None]) if is_array(array) else None
    return itself if itself is not None else get(sp, [sp.look(array), i], [None, None], None)


def common_length(sp: Specialiser, name: str, arrays: Sequence[Value], spans: Spans) -> Atom:
    """The one length of some arrays."""
    lengths = [shape_of(sp, a, name)[0] for a in arrays]
    name = blamed(sp, name)
    for n in lengths[1:]:
        if not sp.b.require_equal(lengths[0], n, f"the arrays in `{name}` have different lengths"):
            raise ModelTypeError(
                f"`{name}` over arrays of lengths {lengths[0]} and {n}", sp.b.span, "the lengths must be equal"
            )
    return lengths[0]


def fold(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(fold f z xs ...)``: ``f`` takes the accumulator and an element of each array."""
    args, kept = split_checkpoint(args)
    if len(args) < 3:
        raise ModelTypeError("fold takes a function, a start and at least one array", sp.b.span, "`(fold + 0.0 xs)`")
    fn, init, whole = function_arg(sp, args[0], "fold", spans[0]), args[1], args[2:]
    arrays = list(map(sp.look, whole))
    if are_lists(sp, arrays):
        if kept is not None:
            hint = "of a list it is no loop: copy the list into an array, or leave the option out"
            raise ModelTypeError("`:checkpoint` of a fold over a list", sp.b.span, hint)
        return over_lists(sp, "fold", [fn, init], arrays, 2)
    if all(isinstance(a, TupleValue) for a in arrays):
        acc = init
        for xs in zip(*(a.items for a in arrays)):
            acc = sp.call(fn, [acc, *xs], (None,) * (1 + len(xs)), None)
        return acc
    count = common_length(sp, "fold", arrays, spans[2:])
    names = param_names(fn, 1, ("acc",))
    return accumulate(
        sp,
        count,
        init,
        lambda acc, i: sp.call(fn, [acc, *(item(sp, a, i) for a in whole)], (None,) * (1 + len(whole)), None),
        var,
        "i",
        names[0],
        places=(spans[1], written_at(fn)),
        snapshots=kept,
    )[0]


def ifold(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(ifold f z n)``: ``f`` takes the accumulator and the index (dF~ Fig. 3)."""
    args, kept = split_checkpoint(args)
    arity(sp, "ifold", args, 3)
    fn = function_arg(sp, args[0], "ifold", spans[0])
    count = count_arg(sp, args[2], spans[2])
    names = param_names(fn, 2, ("acc", "i"))
    return accumulate(
        sp,
        count,
        args[1],
        lambda acc, i: sp.call(fn, [acc, i], (None, None), None),
        var,
        names[1],
        names[0],
        places=(spans[1], written_at(fn)),
        snapshots=kept,
    )[0]


def scan(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(scan f z xs)``: the accumulators after each element."""
    arity(sp, "scan", args, 3)
    fn, init, array = function_arg(sp, args[0], "scan", spans[0]), sp.look(args[1]), sp.look(args[2])
    if are_lists(sp, [array]):
        return over_lists(sp, "scan", [fn, init], [array], 1)
    count = common_length(sp, "scan", [array], spans[2:])
    return accumulate(
        sp,
        count,
        init,
        lambda acc, i: sp.call(fn, [acc, item(sp, args[2], i)], (None, None), None),
        var,
        "i",
        param_names(fn, 1, ("acc",))[0],
        True,
        (spans[1], written_at(fn)),
    )[1]


# ------------------------------------------------------------------------------------------ accumulators


class Widen(Exception):
    """An accumulator that began as an integer becomes a real: the loop is specialised again."""

    def __init__(self, positions: list[int]) -> None:
        self.positions = positions


def accumulate(
    sp: Specialiser,
    count: Atom,
    init: Value,
    step: Callable[[Value, Atom], Value],
    var: Var | None,
    index_name: str,
    acc_name: str,
    stacked: bool = False,
    places: Spans = (),
    snapshots: Atom | None = None,
) -> tuple[Value, Value]:
    """A loop with accumulators of any structure: the final value, and the array of all where ``stacked``. Its
    start and what its function gives are written at ``places``; reverse mode keeps so many ``snapshots`` of it."""
    place = sp.place()

    def run() -> tuple[Value, Value]:
        if (place, "unrolled") in sp.facts.joins:
            value = init
            for k in range(count.value):  # type: ignore[union-attr]
                value = step(value, integer(k))
            return value, NIL
        return loop_accumulating(sp, place, count, init, step, var, index_name, acc_name, stacked, snapshots)

    try:
        return sp.settled(run)
    except ModelTypeError as error:
        facts, error.facts = getattr(error, "facts", ()), ()  # type: ignore[attr-defined]
        if facts and sp.library is None:
            error.notes = tuple((text, p) for text, p in zip(facts, places) if p is not None)
        raise


def loop_accumulating(
    sp: Specialiser,
    place: int,
    count: Atom,
    init: Value,
    step: Callable[[Value, Atom], Value],
    var: Var | None,
    index_name: str,
    acc_name: str,
    stacked: bool,
    snapshots: Atom | None,
) -> tuple[Value, Value]:
    span, cells = sp.b.span, sp.place()
    apart = stacked or (place, "arrays") in sp.facts.joins  # arrays are accumulated, not held by identity
    init = sp.now(init) if apart else init
    outside = set(sp.store)
    joined = sp.facts.joins.get((place, "acc"))
    if joined is not None:
        target = sp.target(init)
        if kinds(target) != kinds(joined):
            joined = sp.join((place, "acc"), joined, target, loop=True)
        init = coerce(sp, init, joined)
    atoms, tree = flatten(init, span)

    def iteration(i: Atom, *accs: Atom):
        value = step(unflatten(tree, iter(accs)), i)
        if apart:
            value = accumulated(sp, value, outside)
        elif sp.facts.mutates and arrays_in(init) != arrays_in(value):
            sp.facts.joins[place, "arrays"] = BOOL
            sp.facts.changed = True
            raise Again
        if not stacked and type(count) is Const and count.value <= UNROLLED and derives(sp.target(value)):
            sp.facts.joins[place, "unrolled"] = BOOL  # each step differentiates what the one before gave
            sp.facts.changed = True
            raise Again
        value = next_accumulator(sp, place, init, value, span)
        following, after = flatten(value, span)
        if not same_tree(tree, after):
            raise unlike_steps(init, value, span)
        following = [sp.b.reals(x) if elem_of(a) == REAL else x for a, x in zip(accs, following)]
        wide = [k for k, (a, x) in enumerate(zip(accs, following)) if elem_of(a) == INT and elem_of(x) == REAL]
        if wide:
            raise Widen(wide)
        for a, x in zip(accs, following):
            same_accumulator(sp, a, x, span)
        return following, following if stacked else ()

    shared = set(sp.shared)
    while True:
        sp.shared = set(shared)
        names = [acc_name] * len(atoms)
        hint = [var.name] * len(atoms) if var is not None and not stacked else []
        try:
            given = bool(var is not None and var.given)
            out = loop_counted(sp, cells, count, atoms, iteration, hint, index_name, names, given, snapshots)
            break
        except Widen as widen:
            for k in widen.positions:
                atoms[k] = sp.b.reals(atoms[k])
            sp.b.span = span
    sp.b.span = span
    final = unflatten(tree, iter(out))
    if not stacked:
        return final, NIL
    every = unflatten(tree, iter(out[len(atoms) :]))
    return final, every if isinstance(every, (Const, Var)) else ArrayOfTuples(every, 1)


def accumulated(sp: Specialiser, value: Value, outside: set[Cell]) -> Value:
    """What a step gives, with its arrays as they are now. One from outside of the loop should be itself."""
    if isinstance(value, TupleValue):
        items = tuple(accumulated(sp, x, outside) for x in value.items)
        return TupleValue(items, value.keys, value.make)
    cell = value.array if isinstance(value, Place) else value
    return sp.copied(value) if is_array(value) and cell in outside else sp.held(value)


def next_accumulator(sp: Specialiser, place: int, init: Value, value: Value, span: Span | None) -> Value:
    """What an iteration gives, in the form of what the loop starts with; else the loop starts again."""
    if isinstance(value, (Const, Var)) and value is not NIL and not isinstance(value.type, Data):
        if isinstance(init, (Const, Var)) and init is not NIL and not isinstance(init.type, Data):
            return value
    if isinstance(value, ArrayOfTuples) or isinstance(init, ArrayOfTuples):
        return value
    start, after = sp.target(init), sp.target(value)
    if kinds(start) == kinds(after):
        return value
    try:
        joined = sp.join((place, "acc"), start, after, loop=True)
    except ModelTypeError:
        raise unlike_steps(init, value, span) from None
    if kinds(joined) == kinds(start):
        return coerce(sp, value, joined)
    if numbers_alone(start, joined):
        return value
    sp.facts.joins[place, "acc"] = joined
    sp.facts.changed = True
    raise Again


def same_accumulator(sp: Specialiser, a: Atom, x: Atom, span: Span | None) -> None:
    """An accumulator keeps its type and shape."""
    ta, tx = type_of(a), type_of(x)
    if isinstance(ta, Arr) and isinstance(tx, Arr) and ta.rank == tx.rank and ta.elem == tx.elem:
        if all(
            sp.b.require_equal(d, e, "the accumulator of this loop changes its shape: write it with `loop` and `recur`")
            for d, e in zip(ta.dims, tx.dims)
        ):
            return
    elif ta == tx:
        return
    raise unlike_steps(a, x, span)


def unlike_steps(init: Value, value: Value, span: Span | None) -> ModelTypeError:
    """A loop whose steps do not give what it starts with; ``facts`` are for the places of both."""
    start, step = describe(init), describe(value)
    hint = "each step gives what it was given"
    types = [type_of(x) if isinstance(x, (Const, Var)) and x is not NIL else None for x in (init, value)]
    if all(isinstance(t, Arr) for t in types) and types[0].rank == types[1].rank:  # type: ignore[union-attr]
        hint += "; arrays that change their size go through `(loop [a z  i 0] ... (recur b (+ i 1)))`"
    error = ModelTypeError(f"the loop starts with {start} and goes on with {step}", span, hint)
    error.facts = f"it starts with {start}", f"a step gives {step}"  # type: ignore[attr-defined]
    return error


def written_at(fn: Value) -> Span | None:
    """Where what a function gives is written."""
    return fn.function.body.place if isinstance(fn, Closure) and not fn.is_library else None


def arrays_in(value: Value) -> list[Any]:
    """The arrays in a structure that are changed in place, by place."""
    if isinstance(value, TupleValue):
        return [(k, found) for k, x in enumerate(value.items) for found in arrays_in(x)]
    if isinstance(value, Place):
        return [(value.array.key, value.indices)]
    return [value.key] if isinstance(value, Cell) and value.array else []
