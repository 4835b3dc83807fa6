"""The forms of typed core, as stages and passes print them: ``loop``, ``iterate``, ``select``, ``undef`` ...

What ``hyad.stages`` shows reads back and runs: these are the operations that a model does not write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import REAL, Arr, Atom, Check, Var
from ..errors import ModelTypeError
from ..program.advice import said_of
from ..program.values import NIL, Constructing, Spans, TupleValue, Value, describe
from .arguments import arity, function_arg, integer_arg, operand, param_names, sizes
from .boxing import coerce
from .families import Again, Apart, kinds, numbers_alone, sort_of
from .store_passing import counted_loop, truth
from .subscripts import get

if TYPE_CHECKING:
    from .specialise import Specialiser


def loop(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(loop n f z ...)``: the one loop of typed core; ``f`` takes the index and the accumulators and gives the
    next accumulators, then what is stacked."""
    if len(args) < 2:
        raise ModelTypeError("loop takes a count, a function and the accumulators' starts", sp.b.span)
    count = sizes(sp, args[0], "loop", spans[0])[0]
    fn = function_arg(sp, args[1], "loop", spans[1])
    place = sp.place()
    inits = [one_atom(sp, place, k, z) for k, z in enumerate(args[2:])]
    names = param_names(fn, 1 + len(inits), ("i", *("acc",) * len(inits)))

    def iteration(i: Atom, *accs: Atom):
        value = sp.call(fn, [i, *accs], (None,) * (1 + len(accs)), None)
        results = results_of(sp, place, inits, value)
        return results[: len(accs)], results[len(accs) :]

    out = counted_loop(sp, count, inits, iteration, (), names[0], names[1:])
    return out[0] if len(out) == 1 else TupleValue(out)


def one_atom(sp: Specialiser, place: int, k: int, value: Value) -> Atom:
    """The start of accumulator ``k`` of typed core as an atom: a structure becomes data."""
    value = sp.held(value)
    target = sp.target(value)
    known = sp.facts.joins.get((place, "typed", k))
    if known is not None and known != target:
        target = sp.join((place, "typed", k), known, target)
    if isinstance(target, Apart):
        target = sp.facts.family((place, "typed", k), sort_of(target)).data
    return coerce(sp, value, target)  # type: ignore[return-value]


def results_of(sp: Specialiser, place: int, inits: Sequence[Atom], value: Value) -> list[Atom]:
    """What an iteration of typed core gives, as atoms: the accumulators in the form of their starts."""
    parts = list(value.items) if isinstance(value, TupleValue) and value.make is None else [value]
    if len(parts) < len(inits):
        raise ModelTypeError(f"an iteration gives {len(parts)} values for {len(inits)} accumulators", sp.b.span)
    out: list[Atom] = []
    for k, part in enumerate(parts):
        if k >= len(inits):
            out.append(one_atom(sp, place, k, part))
            continue
        start, after = sp.target(inits[k]), sp.target(part)
        if kinds(start) != kinds(after) and not numbers_alone(start, after):
            joined = sp.join((place, "typed", k), start, after)
            if kinds(joined) != kinds(start):
                sp.facts.joins[place, "typed", k] = joined
                sp.facts.changed = True
                raise Again
            part = coerce(sp, part, joined)
        out.append(sp.held(part))  # type: ignore[arg-type]
    return out


def iterate(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(iterate c f z ...)``: the ``while`` of typed core. ``c`` and ``f`` take the accumulators, ``f`` gives the
    next ones, then what is stacked; the final accumulators, the number of iterations, the stacked arrays."""
    if len(args) < 2:
        raise ModelTypeError("iterate takes a condition, a function and the starts", sp.b.span)
    test, step = (function_arg(sp, f, "iterate", s) for f, s in zip(args[:2], spans))
    place = sp.place()
    inits = [one_atom(sp, place, k, z) for k, z in enumerate(args[2:])]
    names = param_names(step, len(inits), ("acc",) * len(inits))

    def cond(*accs: Atom) -> Atom:
        return truth(sp.call(test, accs, (None,) * len(accs), None), sp.b.span)

    def body(*accs: Atom):
        results = results_of(sp, place, inits, sp.call(step, accs, (None,) * len(accs), None))
        return results[: len(accs)], results[len(accs) :]

    return TupleValue(sp.b.while_(inits, cond, body, (), names))


def zeros_of(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(zeros-of n m)``: an array of zeros."""
    dims = tuple(sizes(sp, a, "zeros-of", None)[0] for a in args)
    return sp.b.zeros(Arr(REAL, dims), var.name if var is not None else None)


def undef(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(undef Leaf)``: a value that is never read, of the type that the constructor is of."""
    arity(sp, "undef", args, 1)
    if not isinstance(args[0], Constructing):
        raise ModelTypeError(f"`undef` of {describe(args[0])}", spans[0] or sp.b.span, "it takes a constructor")
    sort = args[0].kind.__mro__[1]
    return sp.b.undef(sp.facts.family((sp.place(), "undef"), sort).data)


def add_at(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(add-at v i x)``: the array with a sum in one place."""
    array, *indices, x = args
    get(sp, [array, *indices], spans[:-1], None)
    return sp.b.add_at(array, indices, sp.b.reals(x), var.name if var is not None else None)


def select(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(select c a b)``: one of two values, both computed."""
    arity(sp, "select", args, 3)
    return sp.b.select(*(operand(sp, "select", a, s) for a, s in zip(args, spans)))


def require(sp: Specialiser, relation: str, args: list[Value], spans: Spans) -> Value:
    """``(require-equal n m)`` and its kin: a check of sizes, when the program runs or now."""
    a, b = (integer_arg(sp, x, "this size", s) for x, s in zip(args, spans))
    where = f" in `{sp.library}`" if sp.library is not None else ""
    if relation != "==":
        text = f"a requirement{where or ' of the program'} does not hold"
        kind = "bounds" if relation == "in" else "shape"
        sp.b.check(Check(relation, a, b, said_of(sp.library or "", text), kind), a, b)
    elif not sp.b.require_equal(a, b, said_of(sp.library or "", f"the sizes of the arrays{where} do not fit")):
        raise ModelTypeError(f"the sizes {a} and {b}{where} must be equal", sp.b.span)
    return NIL
