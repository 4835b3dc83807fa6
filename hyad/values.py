"""What the specialiser computes with: atoms of typed core, and the structure that exists at compile time only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

from .core import LEAF, UNIT, Arr, Atom, Const, Lambda, Leaf, Node, Tree, Var
from .errors import ModelTypeError, Span

NIL = Const(None, UNIT)


@dataclass(frozen=True, slots=True, eq=False)
class TupleValue:
    """A tuple or record, taken apart; ``keys`` and ``make`` as in ``Node``."""

    items: tuple[Value, ...]
    keys: tuple[str, ...] | None = None
    make: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class ArrayOfTuples:
    """``(build n (fn [i] #(a b)))``: a tuple of arrays that is subscripted as an array of tuples."""

    parts: TupleValue
    rank: int


class Env:
    """The variables of one invocation; a closure keeps the one that it was made in."""

    __slots__ = ("values", "parent")

    def __init__(self, parent: Env | None = None) -> None:
        self.values: dict[Var, Value] = {}
        self.parent = parent

    def __getitem__(self, var: Var) -> Value:
        env: Env | None = self
        while env is not None:
            value = env.values.get(var)
            if value is not None:
                return value
            env = env.parent
        raise AssertionError(f"{var} escaped its scope")


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function of the model with what it closes over; ``scope`` resolves its global names."""

    function: Lambda
    env: Env | None
    scope: Callable[[str], Any]

    @property
    def name(self) -> str:
        return self.function.name or "fn"


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """A primitive or array operation as a value: ``(fold + 0 xs)``."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """``(grad f)``, ``(jacobian f)`` ...: a function made from a function."""

    operator: str
    function: Function
    wrt: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A function chosen at run time: the call goes into both branches."""

    cond: Atom
    then: Function
    orelse: Function


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """``x -> ((f x) a ...)``: how a derivative passes through a function-valued function, pointwise."""

    function: Function
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise:
    """``((D f) x)`` where ``(f x)`` is a function: at ``a`` it is the derivative of ``x -> ((f x) a)``."""

    derived: Derived
    at: tuple[Value, ...]


Function = Union[Closure, Builtin, Derived, Choice, Later, Pointwise]
Value = Union[Atom, TupleValue, ArrayOfTuples, Function]
FUNCTIONS = (Closure, Builtin, Derived, Choice, Later, Pointwise)


def flatten(value: Value, span: Span | None = None) -> tuple[list[Atom], Tree]:
    """The atoms of a structured value, left to right, and its structure.

    Raises ``ModelTypeError`` for a function or an array of tuples: these exist at compile time only.
    """
    atoms: list[Atom] = []

    def walk(v: Value) -> Tree:
        if isinstance(v, TupleValue):
            return Node(tuple(walk(x) for x in v.items), v.keys, v.make)
        if isinstance(v, FUNCTIONS):
            raise ModelTypeError(
                "a function cannot be a result or an accumulator here", span, "call it, and return what it gives"
            )
        if isinstance(v, ArrayOfTuples):
            raise ModelTypeError(
                "an array of tuples cannot leave the model", span, "return a tuple of arrays: one `build` for each part"
            )
        if isinstance(v, Const) and v.value is None:
            return Node((), None, nothing)
        atoms.append(v)
        return LEAF

    return atoms, walk(value)


def nothing() -> None:
    """What rebuilds ``None`` from its no fields."""
    return None


def unflatten(tree: Tree, atoms: Iterator[Atom]) -> Value:
    """The inverse of ``flatten``."""
    if isinstance(tree, Leaf):
        return next(atoms)
    if tree.make is nothing:
        return NIL
    return TupleValue(tuple(unflatten(t, atoms) for t in tree.items), tree.keys, tree.make)


def same_tree(a: Tree, b: Tree) -> bool:
    if isinstance(a, Leaf) or isinstance(b, Leaf):
        return isinstance(a, Leaf) and isinstance(b, Leaf)
    return a.keys == b.keys and len(a.items) == len(b.items) and all(map(same_tree, a.items, b.items))


def describe(value: Value) -> str:
    """A value's kind in the words of the language."""
    if isinstance(value, TupleValue):
        if value.keys is not None:
            return f"a record of {', '.join(value.keys)}"
        return f"a tuple of {len(value.items)}"
    if isinstance(value, ArrayOfTuples):
        return "an array of tuples"
    if isinstance(value, FUNCTIONS):
        return "a function"
    if isinstance(value, Const) and value.value is None:
        return "None"
    t = value.type  # type: ignore[union-attr]
    if isinstance(t, Arr):
        return f"an array of shape [{' '.join(map(str, t.dims))}]"
    return {"Real": "a number", "Int": "an integer", "Bool": "a truth value"}.get(t.name, str(t))
