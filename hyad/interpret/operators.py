"""The derivative operators of a program that runs: D, grad, jacobian, hessian, jvp, vjp, hvp, deriv.

The same operators with the same conventions as ``derive`` expands for compiled code, on dual numbers and tapes. A
derivative is a generator, as every function that calls functions is (see ``eager``): it yields what it waits for.

Where a function gives a function, its derivative is pointwise: ``((D f) x)`` is the function whose value at ``a`` is
the derivative of ``t -> ((f t) a)`` at ``x``, computed anew with a level of its own at each call. A level per call of
``D`` alone would mix up two calls of one such function (Manzyuk and others, "Perturbation confusion in forward
automatic differentiation of higher-order functions").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import DerivativeError, ModelTypeError
from ..frontend.annotations import arity_text, has_reals, not_real, read_annotation, usage
from ..program.advice import call_hint
from ..program.names import place_of
from ..program.primitives import CHAINED, Primitive
from ..program.values import AT_POINTS, RANKS, TABLE_2, Wrt, many_valued, miscounted, misplaced, unlike
from .active import backward
from .dynamic import (
    ACTIVE,
    NUMBERS,
    Dual,
    Level,
    Node,
    Ref,
    describe,
    dims_of,
    is_numeric,
    leaves,
    paired,
    shaped,
    transform,
)

GENERATOR = type(_ for _ in ())
Run = Iterator[Any]
UNIT = "hyad unit"  # the name, in a compiled function's globals, of what it was compiled with


class Derivative:
    """``(grad f)``, ``(jacobian f)`` ...: a function made from a function. ``wrt`` is as in ``:wrt``."""

    __slots__ = ("operator", "function", "wrt", "said")

    def __init__(self, operator: str, function: Callable[..., Any], wrt: Any = None, said: str | None = None) -> None:
        self.operator, self.function, self.wrt = operator, function, wrt
        self.said = said or operator  # what the user wrote, where this is a part of it

    def __call__(self, *args: Any) -> Run:
        return _RULES[self.operator](self, args)


def operator(name: str) -> Callable[..., Any]:
    """What ``grad`` is as a value: of a function a function, with a point after it the derivative there."""

    def apply(*args: Any) -> Any:
        wrt = None
        if args and args[-1].__class__ is Wrt:
            wrt, args = args[-1].wrt, args[:-1]
        if not args or not callable(args[0]):
            what = describe(args[0]) if args else "nothing"
            raise DerivativeError(f"`{name}` takes a function, not {what}", None, f"`({name} (fn [x] ...))`")
        made = Derivative(name, args[0], wrt)
        return made if len(args) == 1 else made(*args[1:])

    apply.operator = name  # type: ignore[attr-defined]
    apply.__name__ = name
    return apply


def lambda_of(f: Any) -> Any:
    """The surface core of a function of the model; None of any other."""
    unit = getattr(f, "__globals__", {}).get(UNIT)
    return None if unit is None else unit.functions.get(f.__code__.co_firstlineno)


def parameters_of(f: Any) -> list[tuple[str, Any]] | None:
    """Name and annotation of each parameter of a function; None where that is not known."""
    function = lambda_of(f)
    if function is not None:
        notes = function.annotations or (None,) * len(function.params)
        return [(p.name, annotated(a)) for p, a in zip(function.params, notes)]
    if isinstance(f, Derivative):
        inner = parameters_of(f.function)
        if inner is None or f.operator not in ("jvp", "hvp", "vjp"):
            return inner
        return [*inner, ("ct", None)] if f.operator == "vjp" else [*inner, *(("d" + n, a) for n, a in inner)]
    row = getattr(f, "row", None)
    if isinstance(row, Primitive) and row.name not in CHAINED:
        return [(p, None) for p in row.params]
    return None


def annotated(form: Any) -> Any:
    """The type of a number or array that an annotation gives; None of any other, a data type."""
    try:
        return None if form is None else read_annotation(form)
    except ModelTypeError:
        return None


def accepts(f: Any, count: int) -> bool:
    """Whether a function takes so many arguments, as far as is known."""
    known = parameters_of(f)
    if known is not None:
        return len(known) == count
    code = getattr(f, "__code__", None)
    if code is None:
        return True
    least = code.co_argcount - len(f.__defaults__ or ())
    return least <= count and (count <= code.co_argcount or bool(code.co_flags & 4))


def named(f: Any) -> str | None:
    """What a model calls a function."""
    function = lambda_of(f)
    if function is not None:
        return function.name
    return None if isinstance(f, Derivative) else getattr(f, "__name__", None)


def wrong_count(f: Any, count: int) -> ModelTypeError:
    """The error of a call with a number of arguments that the function does not take."""
    function, known = lambda_of(f), parameters_of(f)
    if known is None and not isinstance(f, type):
        code = f.__code__
        wanted = code.co_argcount - len(f.__defaults__ or ())
        more = "at least " if code.co_flags & 4 else ""
        text = f"`{named(f)}` takes {more}{wanted} argument{'s' * (wanted != 1)}, not {count}"
        return ModelTypeError(text, None, call_hint(named(f)))
    own = function is not None and function.span is not None and function.span.source.filename != "prelude.hy"
    notes = [("it is defined here", function.span)] if own else []
    library = function is not None and not own
    hint = usage(function) if library else None  # type: ignore[arg-type]
    return ModelTypeError(arity_text(named(f), len(known or ()), count, library), None, hint, notes)


# ------------------------------------------------------------------------------------------- arguments


def positions(d: Derivative, count: int) -> list[int]:
    """Which arguments ``wrt`` names; by default all that are not declared ``Int`` or ``Bool``."""
    known = parameters_of(d.function)
    if d.wrt is None:
        if known is None:
            return list(range(count))
        return [k for k in range(count) if k >= len(known) or has_reals(known[k][1])]
    names = [p[0] for p in known] if known else []
    found: list[int] = []
    for w in d.wrt if isinstance(d.wrt, (tuple, list)) else (d.wrt,):
        at = place_of(w, names)
        if type(at) is not int or not -count <= at < count:
            have = ", ".join(names) or f"positions 0 to {count - 1}"
            raise DerivativeError(
                f"there is no parameter `{w}` to differentiate by", None, f"the parameters are {have}"
            )
        if at % count in found:
            raise DerivativeError(
                f"the parameter `{names[at % count] if names else w}` stands twice in wrt", None, "name each once"
            )
        if known and at % count < len(known) and not has_reals(known[at % count][1]):
            raise not_real(d.said, *known[at % count])
        found.append(at % count)
    return found


def check_arity(d: Derivative, count: int) -> None:
    point, known = AT_POINTS.get(d.said) if d.operator in AT_POINTS else None, parameters_of(d.function)
    if point is None:
        if not accepts(d.function, count):
            raise wrong_count(d.function, count)
    elif known is not None and count != point[0](len(known)) or not count or d.said != "vjp" and count % 2:
        raise miscounted(d.said, None if known is None else len(known), count)
    elif known is None:
        inner = count // 2 if d.said != "vjp" else count - 1
        if not accepts(d.function, inner):
            raise wrong_count(d.function, inner)


def activate(value: Any, operator: str, seed: Callable[[Any], Any]) -> Any:
    """An argument with ``seed`` in the place of each number, which an integer is too. Truth values, nil and functions
    inside a structure stay."""

    def leaf(x: Any) -> Any:
        if x.__class__ in NUMBERS:
            return seed(float(x) if x.__class__ is int else x)
        if x.__class__ is Ref:
            raise DerivativeError(
                f"`{operator}` cannot differentiate by a reference", None, "differentiate by what it holds"
            )
        return x

    if callable(value):
        raise DerivativeError(
            f"`{operator}` cannot differentiate by a function", None, "give `:wrt` the other parameters"
        )
    if value.__class__ is bool:
        raise DerivativeError(f"`{operator}`: there is nothing to differentiate by in {describe(value)}")
    return transform(value, leaf)


def mirror(args: Sequence[Any], at: Sequence[int], parts: Iterator[Any], whole: Any = None) -> Any:
    """What stands for the numbers of the arguments ``at``, in their structure; a tuple for several."""

    def leaf(x: Any) -> Any:
        return next(parts) if x.__class__ in NUMBERS or isinstance(x, list) else x

    made = [transform(args[k], leaf, whole) for k in at]
    return made[0] if len(made) == 1 else tuple(made)


# --------------------------------------------------------------------------------------------- results


def below(x: Any, level: Level) -> Any:
    """A number as it was before a level: what is active at it or inside it is not part of its value."""
    while x.__class__ in ACTIVE and x.level.tag >= level.tag:
        x = x.primal
    return x


def at_level(x: Any, level: Level) -> Any:
    """A result's number as this level has it: levels inside have ended."""
    while x.__class__ in ACTIVE and x.level.tag > level.tag:
        x = x.primal
    return x


def tangent(x: Any, level: Level) -> Any:
    x = at_level(x, level)
    return x.tangent if x.__class__ is Dual and x.level is level else 0.0


def pointwise(d: Derivative, args: tuple[Any, ...], which: int | None) -> Callable[..., Any]:
    """The derivative of the function that ``f`` gives (``which``: as that leaf of its result): at ``xs`` it is the
    derivative of ``t -> ((f t) xs ...)``."""
    f = d.function

    def derived(*xs: Any) -> Run:
        def applied(*points: Any) -> Run:
            made = f(*points)
            if made.__class__ is GENERATOR:
                made = yield made
            inner = made if which is None else leaves(made)[which]
            if not accepts(inner, len(xs)):
                raise wrong_count(inner, len(xs))
            return inner(*xs)

        count = len(args) // 2 if d.operator in ("jvp", "hvp") else len(args) - (d.operator == "vjp")
        wrt = d.wrt if d.wrt is None and parameters_of(f) is None else tuple(positions(d, count))
        return Derivative(d.operator, applied, wrt)(*args)

    return derived


def moved(d: Derivative, args: tuple[Any, ...], result: Any, level: Level) -> Any:
    """The tangents of a result in its structure; functions in it become their derivatives."""
    k = -1

    def leaf(x: Any) -> Any:
        nonlocal k
        k += 1
        if x.__class__ in NUMBERS:
            return tangent(x, level)
        if x.__class__ is Ref:
            raise DerivativeError(f"`{d.operator}` of a function that gives a reference", None, "give what it holds")
        return pointwise(d, args, None if x is result else k) if callable(x) else x

    return transform(result, leaf)


# ----------------------------------------------------------------------------------- one rule an operator


def derivative(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``((D f) x)``: the derivative by one number, in the structure of the result."""
    check_arity(d, len(args))
    at = positions(d, len(args))
    if len(at) != 1 or args[at[0]].__class__ not in NUMBERS:
        what = describe(args[at[0]]) if len(at) == 1 else f"{len(at)} arguments"
        raise DerivativeError(f"`D` differentiates by one number, not by {what}", None, "use grad or jacobian")
    level, points = Level(False), list(args)
    points[at[0]] = activate(args[at[0]], "D", lambda x: Dual(level, x, 1.0))
    result = d.function(*points)
    if result.__class__ is GENERATOR:
        result = yield result
    level.end()
    return moved(d, args, result, level)


def forward_product(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``(jvp f x ... dx ...)``: the tangent of the result."""
    check_arity(d, len(args))
    half = len(args) // 2
    points, moves = list(args[:half]), args[half:]
    at = positions(Derivative("jvp", d.function), half)
    if d.wrt is not None:
        chosen = positions(d, half)
        at = [k for k in at if k in chosen]
    level = Level(False)
    for k in at:
        found = leaves(points[k])
        if found and all(x.__class__ is bool for x in found):  # nothing moves truth values
            continue
        pairs = paired(points[k], moves[k])
        dots = iter([y for x, y in pairs if x.__class__ in NUMBERS] if pairs is not None else ())
        if pairs is None or any(x.__class__ in NUMBERS and y.__class__ not in NUMBERS for x, y in pairs):
            message = f"a {'vector' if d.said == 'hvp' else 'tangent'} must have the shape of its argument"
            raise unlike(message, describe(moves[k]), describe(points[k]))

        def seed(x: Any) -> Any:
            dot = next(dots)  # noqa: B023
            if dot.__class__ is int:
                dot = float(dot)
            return x if dot.__class__ is float and dot == 0.0 else Dual(level, x, dot)

        points[k] = activate(points[k], d.said, seed)
    result = d.function(*points)
    if result.__class__ is GENERATOR:
        result = yield result
    level.end()
    return moved(d, args, result, level)


def traced(d: Derivative, args: tuple[Any, ...]) -> Run:
    """Run the function on a tape: its level, the positions differentiated by, the numbers there, and the result."""
    if d.operator != "vjp":
        check_arity(d, len(args))
    at = positions(d, len(args))
    if not at:
        raise DerivativeError(f"`{d.said}`: there is no real parameter to differentiate by")
    level, points, sources = Level(True), list(args), []

    def seed(x: Any) -> Node:
        sources.append(Node(level, x, ()))
        return sources[-1]

    for k in at:
        points[k] = activate(args[k], d.said, seed)
    result = d.function(*points)
    if result.__class__ is GENERATOR:
        result = yield result
    return level, at, sources, result


def adjoints(level: Level, sources: Sequence[Node], seeds: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The adjoints of ``sources`` for cotangents of some results."""
    on_tape = []
    for x, cotangent in seeds:
        x = at_level(x, level)
        if x.__class__ is Node and x.level is level:
            on_tape.append((x, cotangent))
    backward(level, on_tape)
    found = [0.0 if s.bar is None else s.bar for s in sources]
    for s in sources:
        s.bar = None
    return found


def gradient(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``((grad f) x ...)``: the adjoints for cotangent 1, in the structure of the arguments."""
    level, at, sources, result = yield traced(d, args)
    if callable(result):
        level.end()
        return pointwise(d, args, None)
    if result.__class__ not in NUMBERS:
        raise many_valued(d.said, describe(result), result.__class__ is bool or result is None)
    bars = adjoints(level, sources, [(result, 1.0)])
    level.end()
    found = mirror(args, at, iter(bars))
    if d.operator == "grad":
        return found
    value = below(result, level)
    return (float(value) if value.__class__ is int else value), found


def reverse_product(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``(vjp f x ... ct)``: the adjoints of the arguments."""
    check_arity(d, len(args))
    *points, cotangent = args
    level, at, sources, result = yield traced(d, tuple(points))
    if callable(result):
        raise DerivativeError("vjp of a function that returns a function", None, "apply its result first")
    pairs = paired(result, cotangent)
    if pairs is None or any(x.__class__ in NUMBERS and y.__class__ not in NUMBERS for x, y in pairs):
        message = "the cotangent must have the shape of the result"
        raise unlike(message, describe(cotangent), describe(result))
    seeds = []
    for x, y in pairs:
        y = float(y) if y.__class__ is int else y
        if x.__class__ in NUMBERS and not (y.__class__ is float and y == 0.0):
            seeds.append((x, y))
    bars = adjoints(level, sources, seeds)
    level.end()
    return mirror(points, at, iter(bars))


def hessian_product(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``(hvp f x ... v ...)``: forward over reverse."""
    check_arity(d, len(args))
    inner = Derivative("grad", d.function, d.wrt, d.said)
    return forward_product(Derivative("jvp", inner, d.wrt, d.said), args)


def hessian(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``((hessian f) x ...)``: the Jacobian of the gradient."""
    check_arity(d, len(args))
    inner = Derivative("grad", d.function, d.wrt, d.said)
    return jacobian(Derivative("jacobian", inner, d.wrt, d.said), args)


def jacobian(d: Derivative, args: tuple[Any, ...]) -> Run:
    """``((jacobian f) x ...)``: for each result and argument an array of the result's dims, then the argument's.

    One run of the function on a tape and one way back for each number of the result; where these are many more than
    the arguments' numbers, one run forward for each of those. ``value-and-deriv`` (dF~'s ``deriv``) gives the results
    beside it.
    """
    level, at, sources, result = yield traced(d, args)
    if callable(result):
        level.end()
        return pointwise(d, args, None)
    for x in leaves(result):
        if x.__class__ is bool or callable(x) or x.__class__ is Ref:
            raise DerivativeError(f"a result of this function is {describe(x)}: it has no derivative")
    outputs = [x for x in leaves(result) if x.__class__ in NUMBERS]
    if len(outputs) <= 4 * len(sources) or len(outputs) <= 4:
        rows = [adjoints(level, sources, [(x, 1.0)]) for x in outputs]
        level.end()
    else:
        level.end()
        columns = []
        for j in range(len(sources)):
            columns.append((yield along(d, args, at, j)))
        rows = [list(row) for row in zip(*columns)] if columns else [[] for _ in outputs]
    inputs = [dims_of(x) for k in at for x in leaves(args[k], is_numeric) if dims_of(x) is not None]
    first = 0

    def row_of(x: Any) -> Any:
        nonlocal first
        dims = dims_of(x)
        if dims is None:
            return x
        here = rows[first : first + size(dims)]
        first += size(dims)
        column, blocks = 0, []
        for inner in inputs:
            flat = [row[k] for row in here for k in range(column, column + size(inner))]
            blocks.append(shaped(flat, (*dims, *inner)))
            column += size(inner)
        return mirror(args, at, iter(blocks), is_numeric)

    made = transform(result, row_of, is_numeric) if result.__class__ not in NUMBERS else row_of(result)
    if d.operator != "value-and-deriv":
        return made
    return transform(result, lambda x: below(x, level) if x.__class__ in NUMBERS else x), made


def along(d: Derivative, args: tuple[Any, ...], at: Sequence[int], which: int) -> Run:
    """The tangents of the result's numbers when the number ``which`` of the arguments moves."""
    level, points, k = Level(False), list(args), -1

    def seed(x: Any) -> Any:
        nonlocal k
        k += 1
        return Dual(level, x, 1.0) if k == which else x

    for j in at:
        points[j] = activate(args[j], d.operator, seed)
    result = d.function(*points)
    if result.__class__ is GENERATOR:
        result = yield result
    level.end()
    return [tangent(x, level) for x in leaves(result) if x.__class__ in NUMBERS]


def size(dims: Sequence[int]) -> int:
    total = 1
    for n in dims:
        total *= n
    return total


def table_2(d: Derivative, args: tuple[Any, ...]) -> Run:
    """An operator of dF~'s Table 2: by the rank of an argument and of the result."""
    operator, by, of = TABLE_2[d.operator]
    check_arity(d, len(args))
    at = [args[k] for k in positions(d, len(args))]
    ranks = [rank_of(x) for x in at]
    if ranks == [by]:
        made = Derivative(operator, d.function, d.wrt)(*args)
        value = (yield made) if made.__class__ is GENERATOR else made
        rank = rank_of(value)
        found = of if operator == "grad" or rank is None else rank - by
        if callable(value) or rank is not None and found == of:
            return value
        here = f"it gives {RANKS[found] if rank is not None and found < 3 else describe(value)}"
    else:
        found, here = of, f"it is {describe(at[0])}" if len(at) == 1 else f"there are {len(at)} arguments"
    raise misplaced(d.operator, here, ranks[0] if len(ranks) == 1 else None, found)


def rank_of(x: Any) -> int | None:
    dims = dims_of(x)
    return None if dims is None else len(dims)


_RULES: dict[str, Callable[[Derivative, tuple[Any, ...]], Any]] = {
    "D": derivative,
    "grad": gradient,
    "value-and-grad": gradient,
    "jacobian": jacobian,
    "value-and-deriv": jacobian,
    "hessian": hessian,
    "jvp": forward_product,
    "vjp": reverse_product,
    "hvp": hessian_product,
    **dict.fromkeys(TABLE_2, table_2),
}
