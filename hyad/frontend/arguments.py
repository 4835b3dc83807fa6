"""The arguments of builtin functions: a number, an array, a size or a function, or else the user's mistake.

For the modules that say what each builtin does (``arithmetic``, ``subscripts``, ``structures``, ``combinators`` ..).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core import BOOL, INT, REAL, UNIT, Atom, Call, Check, Const, Data, Var, elem_of, integer, type_of
from ..errors import ModelTypeError, Span, hint_for
from ..program.advice import call_hint
from ..program.values import FUNCTIONS, NIL, Closure, Function, Spans, TupleValue, Value, describe
from .annotations import arity_text, parameters
from .branches import cases, expose

if TYPE_CHECKING:
    from .specialise import Specialiser


def blamed(sp: Specialiser, name: str) -> str:
    """What an error says went wrong: inside the prelude the function that the user called."""
    return sp.library or name


def arity(sp: Specialiser, name: str, args: list[Value], *allowed: int) -> None:
    """Raise the mistake of another number of arguments than is ``allowed``."""
    if len(args) not in allowed:
        raise ModelTypeError(arity_text(name, allowed[0], len(args)), sp.b.span, call_hint(name))


def operand(sp: Specialiser, name: str, value: Value, span: Span | None) -> Atom:
    """A number, a truth value or an array; of data, the one that it holds."""
    if isinstance(value, Var) and isinstance(value.type, Data):
        before, sp.b.span = sp.b.span, span or sp.b.span
        value = number_in(sp, value, name)
        sp.b.span = before
    if isinstance(value, (Const, Var)) and value is not NIL and type_of(value) != UNIT:
        return value
    what = f"`{name}` works on numbers and arrays; this is {describe(value)}"
    raise ModelTypeError(what, span or sp.b.span, hint_for("operand", describe(value)))


def number_in(sp: Specialiser, value: Value, name: str | None = None) -> Value:
    """The number, truth value or array that data holds: a failing check where it holds none."""
    value = sp.look(value)
    family = sp.family_of(value)
    if family is None:
        return value
    sp.doubted(value)
    what = f"`{name}` works on numbers and arrays; this is {{}}" if name else "{} where a number is needed"
    apart = expose(sp, value, lambda v: isinstance(v, (Const, Var)) and v is not NIL, what)  # type: ignore[arg-type]
    if apart is not None:
        return apart
    possible = family.numeric
    if not possible:
        sp.mistakes.append((value, ModelTypeError(what.format(describe(value)), sp.b.span)))

    def take(known: Value) -> Value:
        if isinstance(known, (Const, Var)) and known is not NIL:
            return known
        return sp.impossible(what.format(describe(known if possible else value)))

    return cases(sp, value, take, None)  # type: ignore[arg-type]


def number_among(sp: Specialiser, value: Value) -> Value:
    """The number that data holds, where it can hold one."""
    family = sp.family_of(value)
    numeric = family is not None and any(m.make is float for m in family.members.values())
    return number_in(sp, value) if numeric else value


def integer_arg(sp: Specialiser, value: Value, what: str, span: Span | None) -> Atom:
    """An integer: an index, a size or a count, as ``what`` says in an error."""
    if isinstance(value, (Const, Var)) and value is not NIL:
        if type_of(value) == INT:
            return value
        if type(value) is Const and type_of(value) == REAL and float(value.value).is_integer() and value.soft:
            return integer(int(value.value))
    kind = (
        {BOOL: bool, REAL: float}.get(elem_of(value)) if isinstance(value, (Const, Var)) and value is not NIL else None
    )
    hint = hint_for("index" if what == "this index" else "size", describe(value), kind)
    if "`arange`" in what and kind is float:
        hint = "`arange` counts in integers; `(linspace a b n)` has n numbers from a to b"
    raise ModelTypeError(f"{what} is {describe(value)}, not an integer", span or sp.b.span, hint)


def count_arg(sp: Specialiser, value: Value, span: Span | None) -> Atom:
    """How often a loop runs: never where Python's ``range`` is empty."""
    what = f"the size in `{sp.library}`" if sp.library else "the count of this loop"
    count = integer_arg(sp, value, what, span)
    return integer(max(count.value, 0)) if type(count) is Const else count


def sizes(sp: Specialiser, value: Value, name: str, span: Span | None) -> list[Atom]:
    """The sizes that ``n``, ``[n m]`` or a tuple of them says, none of them negative."""
    op = sp.b.definitions.get(value) if type(value) is Var else None
    if isinstance(value, TupleValue):
        items: Sequence[Value] = value.items
    elif op is not None and op.name == "array":
        items = op.args
    else:
        items = [value]
    counts = []
    for x in items:
        count = integer_arg(sp, x, f"the size in `{blamed(sp, name)}`", span)
        if type(count) is Const and count.value < 0:
            raise ModelTypeError(f"the size in `{name}` is {count.value}", span or sp.b.span, "sizes are not negative")
        sp.b.require_size(count, f"the size in `{blamed(sp, name)}` is negative")
        counts.append(count)
    return counts


def function_arg(sp: Specialiser, value: Value, name: str, span: Span | None) -> Function:
    """A function, or data that is one."""
    if isinstance(value, FUNCTIONS) or sp.family_of(value) is not None:
        return value  # type: ignore[return-value]
    raise ModelTypeError(f"`{name}` takes a function, not {describe(value)}", span or sp.b.span, call_hint(name))


def param_names(fn: Function, count: int, fallback: Sequence[str] = "ijklmnopq") -> list[str]:
    """What a function calls its first ``count`` parameters."""
    known = parameters(fn) if isinstance(fn, Closure) else None
    names = [p[0] for p in known] if known else []
    return [names[k] if k < len(names) else fallback[k] for k in range(count)]


# ------------------------------------------------------------------------------------------ :checkpoint


@dataclass(frozen=True, slots=True)
class Kept:
    """``:checkpoint`` on its way to the loop."""

    snapshots: Atom


def split_checkpoint(args: list[Value]) -> tuple[list[Value], Atom | None]:
    """The arguments of a loop, and how many states of it are kept."""
    if args and isinstance(args[-1], Kept):
        return args[:-1], args[-1].snapshots
    return args, None


def snapshots(sp: Specialiser, value: Value, span: Span | None) -> Atom:
    """How many states ``:checkpoint`` keeps of a loop: at least one."""
    n = integer_arg(sp, sp.look(value), "the number of snapshots", span)
    if type(n) is Const and n.value < 1:
        hint = "one state is the least, what the loop starts with"
        raise ModelTypeError(f"`:checkpoint {n.value}` keeps nothing", span, hint)
    sp.b.check(Check("<=", integer(1), n, "`:checkpoint` keeps one state at least"), integer(1), n)
    return n


def is_checkpointed(op: Call) -> bool:
    """Whether a call ends with ``:checkpoint n``."""
    return len(op.args) > 1 and type(op.args[-2]) is Const and op.args[-2].value == ("checkpoint",)


def not_checkpointed(op: Call) -> ModelTypeError:
    """The mistake of ``:checkpoint`` at a call of another function."""
    hint = "`(ifold f z n :checkpoint 10)`; fold and while take it as well"
    return ModelTypeError("`:checkpoint` is an option of loops", op.spans[-2], hint)


def facts_at(values: Sequence[Value], spans: Spans) -> list[tuple[str, Span]]:
    """What each of some values is, for an error: beside the place where it is written."""
    return [(f"this is {describe(v)}", s) for v, s in zip(values, spans) if s is not None]
