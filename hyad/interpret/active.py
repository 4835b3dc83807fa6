"""The primitives on numbers under derivatives: each row of the table as one Python function.

An operation on plain numbers is the row's ``python``. Where an operand is active, the innermost level decides: the row
is applied to what stands below that level, and its partials, compiled from the row's s-expressions to functions of
such numbers, make the tangent (forward mode) or go on the tape (reverse mode). Both are again numbers of the outer
levels, so that modes nest as they like. Arrays go element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from ..core import BOOL, INT, REAL
from ..errors import DerivativeError, ModelTypeError, hint_for, truth_hint
from ..program.primitives import BUILTIN, PRIMITIVES, Primitive, parse_partial
from .dynamic import ACTIVE, NUMBERS, Dual, Level, Node, blame, describe, dims_of, kind_of, leaves, plain, shaped

#: The constants of partial derivatives, known by identity: no product is computed with them, so that a derivative
#: that is zero stays zero beside an infinite one.
ZERO, ONE, MINUS = float("0"), float("1"), float("-1")
_SOFT = {0: "ZERO", 1: "ONE", -1: "MINUS"}
_TYPES = {float: REAL, int: INT, bool: BOOL}

Operation = Callable[..., Any]
_operations: dict[str, Operation] = {}


def operation(name: str) -> Operation:
    """The function that a primitive is, of exactly its operands; ``row`` is its attribute."""
    found = _operations.get(name)
    row = PRIMITIVES[name]
    if found is None or found.row is not row:  # type: ignore[attr-defined]
        found = _operations[name] = make(row)
    return found


#: Integers beyond 64 bits come round from the other end, as those of compiled code.
LEAST, MOST = -(2**63), 2**63 - 1


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(*args: Any) -> Any:
        y = function(*args)
        if y.__class__ is int and not LEAST <= y <= MOST:
            return (y - LEAST) % 2**64 + LEAST
        return y

    return meaning


def make(row: Primitive) -> Operation:
    python = row.python if row.name in BUILTIN else item_of(row.python)
    if row.name in ("+", "-", "*", "neg", "abs", "square"):
        python = wrapping(python)
    if len(row.params) == 1:
        one = frozenset(c for c, t in _TYPES.items() if row.result((t,)))

        def op(x: Any) -> Any:
            if x.__class__ in one:
                return python(x)
            return general(row, op, (x,))

    elif len(row.params) == 2:
        two = frozenset((c, d) for c, t in _TYPES.items() for d, u in _TYPES.items() if row.result((t, u)))

        def op(a: Any, b: Any) -> Any:  # type: ignore[misc]
            if (a.__class__, b.__class__) in two:
                return python(a, b)
            return general(row, op, (a, b))

    else:

        def op(*args: Any) -> Any:  # type: ignore[misc]
            types = tuple(_TYPES.get(a.__class__) for a in args)
            if None not in types and row.result(types):
                return python(*args)
            return general(row, op, args)

    op.row = row  # type: ignore[attr-defined]
    op.__name__ = row.surface or row.name
    return op


def item_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(*args: Any) -> Any:
        y = function(*args)
        return y.item() if isinstance(y, (np.generic, np.ndarray)) else y

    return meaning


def general(row: Primitive, op: Operation, args: tuple[Any, ...]) -> Any:
    """A primitive on what is not all plain numbers of its types."""
    top: Level | None = None
    for a in args:
        kind = a.__class__
        if kind is Dual or kind is Node:
            if top is None or a.level.tag > top.tag:
                top = a.level
        elif kind not in _TYPES:
            if any(isinstance(x, list) for x in args):
                return elementwise(row, op, args)
            raise misuse(row, args)
    if top is None:
        raise misuse(row, args)
    lower = [a.primal if a.__class__ in ACTIVE and a.level is top else a for a in args]
    y = op(*lower)
    if top.dead or y.__class__ is bool:
        return y
    if row.jvp is not None or row.vjp is not None:
        return by_rule(row, args, lower, y, top)
    if isinstance(row.partials, str):
        raise DerivativeError(f"`{op.__name__}` has no derivative: {row.partials}")
    if row.name == "log" and plain(y) == -inf and (top.tape is None or no_mass(args[0])):
        return without_weight(args[0], lower[0], y, top)
    partials = _partials.get(row) or partials_of(row)
    if top.tape is None:
        tangent = None
        for a, partial in zip(args, partials):
            if a.__class__ is Dual and a.level is top:
                tangent = plus(tangent, times(partial(*lower, y) if callable(partial) else partial, a.tangent))
        return y if tangent is None else Dual(top, y, tangent)
    edges: list[Any] = []
    for a, partial in zip(args, partials):
        if a.__class__ is Node and a.level is top:
            d = partial(*lower, y) if callable(partial) else partial
            if d is not ZERO:
                edges += (a, d)
    if not edges:
        return y
    node = Node(top, y, edges)
    top.tape.append(node)
    return node


def no_mass(x: Node) -> bool:
    """Whether a number is 0 because exponentials have underflown: each way to what it is made of has a slope of 0."""
    seen: set[Node] = set()
    todo = [x]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        edges = node.edges
        if not edges or edges.__class__ is Rule:
            return False
        todo += (a for a, d in zip(edges[::2], edges[1::2]) if plain(d) != 0)
    return True


def without_weight(x: Any, lower: Any, y: Any, top: Level) -> Any:
    """The logarithm of 0, an infinite slope; what does not move, or moves nothing, is not moved by it (``Masses``)."""
    if top.tape is None:
        return y if plain(x.tangent) == 0 else Dual(top, y, _divide(x.tangent, lower))
    node = Node(top, y, Rule([x], lambda bar: [bar if plain(bar) == 0 else _divide(bar, lower)]))
    top.tape.append(node)
    return node


def times(partial: Any, x: Any) -> Any:
    """``partial`` times ``x``; None is a zero that differentiation made."""
    if x is None or partial is ZERO:
        return None
    if partial is ONE:
        return x
    return _neg(x) if partial is MINUS else _multiply(partial, x)


def plus(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else _add(a, b)


_neg, _multiply, _add, _divide = operation("neg"), operation("*"), operation("+"), operation("/")


def elementwise(row: Primitive, op: Operation, args: tuple[Any, ...]) -> Any:
    arrays = [a for a in args if isinstance(a, list)]
    for a in args:
        if not isinstance(a, list) and a.__class__ not in NUMBERS and a.__class__ is not bool:
            raise misuse(row, args)
    rank = max(map(rank_of, arrays))
    whole = [a for a in arrays if rank_of(a) == rank]
    count = next((len(a) for a in whole if len(a) != 1), 1)
    if any(len(a) not in (1, count) for a in whole):
        raise ModelTypeError(
            f"`{op.__name__}` of {' and '.join(map(describe, arrays))}", None, "the shapes must be equal"
        )
    if not count:
        return empty(op, args, [(dims_of(a) or ())[rank_of(a) == rank :] for a in arrays])
    rows = [isinstance(a, list) and rank_of(a) == rank for a in args]
    columns = [[a] * count if not row else a * count if len(a) < count else a for a, row in zip(args, rows)]
    return [op(*xs) for xs in zip(*columns)]


def empty(op: Operation, args: tuple[Any, ...], rows: list[tuple[int, ...]]) -> list:
    """What an operation makes of arrays of no rows: of the kind that it makes of ones, and of no rows of the shape that
    rows of these shapes would give."""
    try:
        kind = kind_of(op(*(kind_of(a)(1) for a in args)))
    except (ArithmeticError, ValueError):
        kind = float
    rank = max(map(len, rows))
    columns = zip(*((1,) * (rank - len(row)) + row for row in rows))
    return shaped((), (0, *(next((n for n in sizes if n != 1), 1) for sizes in columns)), kind)


def rank_of(array: list) -> int:
    """How many subscripts reach a number. An array of lower rank than another is combined with each of its rows."""
    rank = 1
    while array and isinstance(array[0], list):
        rank, array = rank + 1, array[0]
    return rank + len(getattr(array, "inner", ()))


def misuse(row: Primitive, args: Sequence[Any]) -> ModelTypeError:
    name = row.surface or row.name
    for a in args:
        if not isinstance(a, list) and a.__class__ not in NUMBERS and a.__class__ is not bool:
            what = describe(a)
            error = ModelTypeError(
                f"`{name}` works on numbers and arrays; this is {what}", None, hint_for("operand", what)
            )
            return blame(error, a)  # type: ignore[return-value]
    kinds = " and ".join(map(describe, args))
    return ModelTypeError(f"`{name}` does not work on {kinds}", None, truth_hint(name, kinds))


# ------------------------------------------------------------------------------------ partial derivatives

_partials: dict[Primitive, list[Any]] = {}


def partials_of(row: Primitive) -> list[Any]:
    """For each parameter the partial, a function of the operands and the result, or a constant."""
    found = _partials[row] = [order_only(row) if text is None else compiled(row, text) for text in row.partials]
    return found


def order_only(row: Primitive) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise DerivativeError(f"`{row.name}` cannot be differentiated by its order", None, "the order is an integer")

    return refuse


def compiled(row: Primitive, partial: str) -> Any:
    names = {**{p: f"_{k}" for k, p in enumerate(row.params)}, "y": "_y"}
    scope: dict[str, Any] = {"ZERO": ZERO, "ONE": ONE, "MINUS": MINUS}

    def text(form: Any, top: bool = False) -> str:
        if isinstance(form, str):
            return names[form]
        if not isinstance(form, tuple):
            return _SOFT.get(form, repr(form)) if top else repr(form)
        head, *rest = form
        if head == "select":
            return f"({text(rest[1], top)} if {text(rest[0])} else {text(rest[2], top)})"
        name = next((n for n, v in scope.items() if getattr(v, "row", None) is PRIMITIVES[head]), None)
        if name is None:
            name = f"op{len(scope)}"
            scope[name] = operation(head)
        return f"{name}({', '.join(map(text, rest))})"

    form = parse_partial(partial)
    body = text(form, True)
    if body in scope:
        return scope[body]
    return eval(f"lambda {', '.join(names.values())}: {body}", scope)


# ------------------------------------------------------------------------- a user's own rules (defprim)


class Rule:
    """The edges of a node whose adjoints a user's ``vjp`` gives."""

    __slots__ = ("parents", "adjoints")

    def __init__(self, parents: list[Any], adjoints: Callable[[Any], list[Any]]) -> None:
        self.parents, self.adjoints = parents, adjoints


def apply_rule(row: Primitive, kind: str, given: Sequence[Any], wanted: int) -> list[Any]:
    """What the model of a row's own ``jvp`` or ``vjp`` gives for ``given``: ``wanted`` numbers."""
    from .eager import drive, rule

    found = leaves(drive(rule(row.vjp if kind == "vjp" else row.jvp), *given))
    if len(found) != wanted or any(x.__class__ not in NUMBERS for x in found):
        raise DerivativeError(f"the {kind} of `{row.name}` gives {len(found)} values, not {wanted} numbers")
    return found


def by_rule(row: Primitive, args: tuple[Any, ...], lower: list[Any], y: Any, top: Level) -> Any:
    """A primitive with a rule of its own. A ``jvp`` alone serves both modes, asked for each unit tangent; so does a
    ``vjp``: the result is one number, so that its adjoints for cotangent 1 are the partials."""
    count = len(args)
    moving = [k for k, a in enumerate(args) if a.__class__ in ACTIVE and a.level is top]
    if top.tape is None:
        if row.jvp is not None:
            dots = [args[k].tangent if k in moving else 0.0 for k in range(count)]
            return Dual(top, y, apply_rule(row, "jvp", [*lower, *dots], 1)[0])
        partials = apply_rule(row, "vjp", [*lower, y, 1.0], count)
        tangent = None
        for k in moving:
            tangent = plus(tangent, times(partials[k], args[k].tangent))
        return Dual(top, y, tangent)
    if row.vjp is not None:
        node = Node(top, y, Rule(list(args), lambda bar: apply_rule(row, "vjp", [*lower, y, bar], count)))
    else:
        edges: list[Any] = []
        for k in moving:
            unit = [1.0 if j == k else 0.0 for j in range(count)]
            edges += (args[k], apply_rule(row, "jvp", [*lower, *unit], 1)[0])
        node = Node(top, y, edges)
    top.tape.append(node)
    return node


# ---------------------------------------------------------------------------------------------- backward


def backward(level: Level, seeds: Sequence[tuple[Node, Any]]) -> None:
    """Send adjoints from ``seeds`` back along a tape; they arrive in the ``bar`` of the nodes that are not on it."""
    for node, cotangent in seeds:
        node.bar = plus(node.bar, cotangent)
    for node in reversed(level.tape):  # type: ignore[arg-type]
        bar = node.bar
        if bar is None:
            continue
        node.bar = None
        edges = node.edges
        if edges.__class__ is Rule:
            for parent, x in zip(edges.parents, edges.adjoints(bar)):
                if parent.__class__ is Node and parent.level is level:
                    parent.bar = plus(parent.bar, x)
            continue
        for k in range(0, len(edges), 2):
            parent = edges[k]
            parent.bar = plus(parent.bar, times(edges[k + 1], bar))
