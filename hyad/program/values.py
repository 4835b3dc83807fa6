"""What the specialiser computes with: atoms of typed core, and the structure that exists at compile time only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Union

from ..core import BOOL, INT, LEAF, REAL, UNIT, Arr, Atom, Bind, Const, Lambda, Leaf, Node, Tree, Var, free_vars
from ..core import Data as DataType
from ..errors import DerivativeError, ModelTypeError, Span
from .data import Data

NIL = Const(None, UNIT)
#: What the brackets in ``(concatenate [a b])`` call, before ``concatenate``: ``tuple`` if that is the language's, or
#: ``array`` if the user's module has another function of the name.
PARTS = "parts of "


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
        raise ModelTypeError(f"`{var}` is used before it has a value", var.span, "compute it before the call")


class Frame:
    """The calls that are being inlined, innermost first; a number that is the same in every run tells them apart."""

    __slots__ = ("parent", "site", "function", "number")

    def __init__(self, parent: Frame | None, site: Any, function: Any) -> None:
        self.parent, self.site, self.function = parent, site, function
        self.number: int | None = None


def language(name: str) -> tuple[bool, Any]:
    """The scope of the prelude's functions: their global names are the language's, and no module's."""
    return False, None


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function of the model with what it closes over; ``scope`` resolves its global names. ``group`` is the
    ``letrec`` that it is one of."""

    function: Lambda
    env: Env | None
    scope: Callable[[str], Any]
    group: Bind | None = None

    @property
    def name(self) -> str:
        return self.function.name or "fn"

    @property
    def is_library(self) -> bool:
        """Whether the function is the prelude's."""
        return self.scope is language


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """A primitive or array operation as a value: ``(fold + 0 xs)``."""

    name: str


def for_parts(function: Any) -> str:
    """What the brackets in a call of a function of several arrays make (``PARTS``)."""
    return "tuple" if isinstance(function, Closure) and function.is_library else "array"


@dataclass(frozen=True, slots=True, eq=False)
class Constructing:
    """A constructor of a data type as a function."""

    kind: type

    @property
    def name(self) -> str:
        return self.kind.name  # type: ignore[attr-defined]


#: dF~'s operators (Table 2): what each is short for, the rank of what it differentiates by, and of what it
#: differentiates.
TABLE_2 = {
    "diff": ("D", 0, 0),
    "vdiff": ("D", 0, 1),
    "mdiff": ("D", 0, 2),
    "jacob": ("jacobian", 1, 1),
    "mgrad": ("grad", 2, 0),
}
#: Operators from functions to functions (DESIGN section 2); ``derive`` expands them.
OPERATORS = frozenset("D grad value-and-grad jacobian hessian jvp vjp hvp value-and-deriv".split()) | TABLE_2.keys()
RANKS = ("a number", "a vector", "a matrix")


def misplaced(operator: str, here: str, by: int | None, of: int | None) -> DerivativeError:
    """The error of an operator of Table 2 on a function of rank ``by`` that gives rank ``of``."""
    _, wanted, given = TABLE_2[operator]
    table = {(by, of): name for name, (_, by, of) in TABLE_2.items()} | {(1, 0): "grad"}
    return DerivativeError(
        f"`{operator}` is for a function of {RANKS[wanted]} that gives {RANKS[given]}; here {here}",
        None,
        f"use {table.get((by, of), 'jacobian')}",  # type: ignore[arg-type]
    )


#: The operators at a point: how many values each takes for a function of ``n`` arguments, which, and an example.
AT_POINTS: dict[str, tuple[Callable[[int], int], str, str]] = {
    "jvp": (lambda n: 2 * n, "a tangent for each", "(jvp f x dx)"),
    "hvp": (lambda n: 2 * n, "a vector for each", "(hvp f x v)"),
    "vjp": (lambda n: n + 1, "a cotangent of the result", "(vjp f x ct)"),
}


def miscounted(operator: str, takes: int | None, given: int) -> ModelTypeError:
    """The error of an operator of ``AT_POINTS`` for a function of so many arguments that is given another number of
    values."""
    count, what, example = AT_POINTS[operator]
    here = f": here {count(takes)} values, not {given}" if takes is not None else f", not {given} values"
    return ModelTypeError(f"`{operator}` takes the arguments, then {what}{here}", None, f"`{example}`")


def many_valued(operator: str, what: str, number: bool) -> DerivativeError:
    """The error of an operator on a function that gives something else than a number; ``number``: a truth value."""
    hint = {
        "hessian": "take the Jacobian of its Jacobian: `(jacobian (jacobian f))`",
        "hvp": "take the tangent of its Jacobian: `(jvp (jacobian f) x v)`",
    }.get(operator, "use jacobian")
    if what == "None":
        hint = "a `for` and a `while` have no value: end with what they have made, as `(deref s)`"
    message = f"`{operator}` needs a function that gives a number; this gives {what}"
    return DerivativeError(message, None, None if number else hint)


def halved(name: str) -> str:
    """What ``car``, ``cdr``, ``fst`` and ``snd`` take."""
    return f"`{name}` takes a pair: `{'(cons a l)' if name in ('car', 'cdr') else '#(a b)'}`"


def unlike(message: str, given: str, wanted: str) -> ModelTypeError:
    """The error of a tangent or cotangent that is not like what it is for, both described."""
    facts = f": it is {given}, not {wanted}" if given != wanted else ""
    return ModelTypeError(message + facts, None, "the structures and shapes must be equal")


ENCODINGS = ("record", "closure", "continuation")  # of the cut between forward and backward code (see reverse.Reverse)


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """``(grad f)``, ``(jacobian f)`` ...: a function made from a function. ``encoding`` is one of ``ENCODINGS``; None:
    that of the derivative in which this one is taken."""

    operator: str
    function: Function
    wrt: Any = None
    encoding: str | None = None
    part_of: str | None = None  # the operator whose part it is: a Hessian's gradient

    @property
    def said(self) -> str:
        """The operator that the user wrote."""
        return self.part_of or self.operator


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


@dataclass(frozen=True, slots=True)
class Cell:
    """A reference, or an array that is changed in place: what it holds is in the specialiser's ``store``.

    ``key`` is the same whenever the program is specialised again; ``level`` counts the functions being made around it.
    """

    key: tuple
    level: int = field(compare=False)
    array: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A row of an array that is changed in place; or, a ``reference``, an element of an array of references."""

    array: Cell
    indices: tuple[Atom, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """``(build n (fn [i] (ref e)))``: what they hold is an array that is changed in place."""

    array: Cell


@dataclass(frozen=True, slots=True)
class Shape:
    """What a function or a reference is apart from the values that it closes over: the ``make`` of its ``Node``.

    Equal shapes have the same code, so that a value of the shape is known by what it closes over.
    """

    kind: str
    of: tuple
    rebuild: Any = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """``x -> (get (f x) i ...)``: how a derivative passes through a function among the parts of a result."""

    function: Function
    path: tuple[int, ...]


Function = Union[Closure, Builtin, Constructing, Part, Derived, Choice, Later, Pointwise]
Value = Union[Atom, TupleValue, ArrayOfTuples, Function, Cell, Place, References]
Spans = Sequence[Any]  # the places of a call's arguments, each a Span or None
FUNCTIONS = (Closure, Builtin, Constructing, Part, Derived, Choice, Later, Pointwise)
CLOSED = (*FUNCTIONS, Cell, Place, References)


def taken_apart(value: Function | Cell | Place | References) -> tuple[Shape, list[Value]]:
    """A function or reference as its shape and the values that it closes over."""
    if isinstance(value, Closure):
        captured = captures(value)
        lambdas = value.group.op.functions if value.group is not None else (value.function,)
        which = lambdas.index(value.function)
        made = Shape("fn", (value.function, value.scope), lambda vs: close_over(value, captured, lambdas, which, vs))
        return made, [value.env[v] for v in captured]  # type: ignore[index]
    if isinstance(value, Builtin):
        return Shape("builtin", (value.name,), lambda vs: value), []
    if isinstance(value, Constructing):
        return Shape("constructor", (value.kind,), lambda vs: value), []
    if isinstance(value, Derived):
        kind = (value.operator, value.wrt, value.encoding)
        return Shape("derived", kind, lambda vs: replace(value, function=vs[0])), [value.function]
    if isinstance(value, Choice):
        return Shape("choice", (), lambda vs: Choice(*vs)), [value.cond, value.then, value.orelse]
    if isinstance(value, Part):
        return Shape("part", (value.path,), lambda vs: Part(vs[0], value.path)), [value.function]
    if isinstance(value, Later):
        return Shape("later", (len(value.args),), lambda vs: Later(vs[0], tuple(vs[1:]))), [value.function, *value.args]
    if isinstance(value, Pointwise):
        shape = Shape("pointwise", (len(value.at),), lambda vs: Pointwise(vs[0], tuple(vs[1:])))
        return shape, [value.derived, *value.at]
    if isinstance(value, Place):
        of = (value.array, value.reference, len(value.indices))
        rebuild = lambda vs: Place(value.array, tuple(vs), value.reference)  # noqa: E731
        return Shape("reference", of, rebuild), list(value.indices)
    of = (value,) if isinstance(value, Cell) else (value.array, "all")
    return Shape("reference", of, lambda vs: value), []


def captures(closure: Closure) -> tuple[Var, ...]:
    """The variables that a closure, and those of its ``letrec`` that it calls, take from around them."""
    return free_in(closure.function, closure.group)


@lru_cache(maxsize=4096)
def free_in(function: Lambda, group: Bind | None) -> tuple[Var, ...]:
    """The free variables of a function, and of the functions of its ``letrec`` that it sees."""
    siblings = dict(zip(group.vars, group.op.functions)) if group is not None else {}  # type: ignore[union-attr]
    free: dict[Var, None] = {}
    seen: set[Lambda] = set()
    todo = [function]
    while todo:
        f = todo.pop()
        if f in seen:
            continue
        seen.add(f)
        for v in free_vars(f.body):
            if v in siblings:
                todo.append(siblings[v])
            elif v not in f.params:
                free[v] = None
    return tuple(free)


def close_over(
    closure: Closure, captured: tuple[Var, ...], lambdas: tuple[Lambda, ...], which: int, values: list[Value]
) -> Closure:
    """The same function closed over other values."""
    env = Env()
    env.values.update(zip(captured, values))
    group = closure.group
    made = [Closure(f, env, closure.scope, group) for f in lambdas]
    if group is not None:
        env.values.update(zip(group.vars, made))
    return made[which]


def flatten(value: Value, span: Span | None = None) -> tuple[list[Atom], Tree]:
    """The atoms of a structured value, left to right, and its structure.

    Raises ``ModelTypeError`` for an array of tuples, which exists at compile time only.
    """
    atoms: list[Atom] = []

    def walk(v: Value) -> Tree:
        if isinstance(v, TupleValue):
            return Node(tuple(walk(x) for x in v.items), v.keys, v.make)
        if isinstance(v, CLOSED):
            shape, items = taken_apart(v)
            return Node(tuple(walk(x) for x in items), None, shape)
        if isinstance(v, ArrayOfTuples):
            raise ModelTypeError(
                "an array of tuples cannot leave the model", span, "return a tuple of arrays: one `build` for each part"
            )
        if isinstance(v, Const) and v.value is None:
            return Node((), None, nothing)
        atoms.append(v)
        return LEAF

    return atoms, walk(value)


def holds_function(tree: Tree) -> bool:
    """Whether a structure holds a function or a reference."""
    return isinstance(tree, Node) and (isinstance(tree.make, Shape) or any(map(holds_function, tree.items)))


def nothing() -> None:
    """What rebuilds ``None`` from its no fields."""
    return None


def unflatten(tree: Tree, atoms: Iterator[Atom]) -> Value:
    """The inverse of ``flatten``."""
    if isinstance(tree, Leaf):
        return next(atoms)
    if tree.make is nothing:
        return NIL
    if isinstance(tree.make, Shape):
        return tree.make.rebuild([unflatten(t, atoms) for t in tree.items])
    return TupleValue(tuple(unflatten(t, atoms) for t in tree.items), tree.keys, tree.make)


def same_tree(a: Tree, b: Tree) -> bool:
    if isinstance(a, Leaf) or isinstance(b, Leaf):
        return isinstance(a, Leaf) and isinstance(b, Leaf)
    return same_node(a, b) and all(map(same_tree, a.items, b.items))


def same_node(a: Node | TupleValue, b: Node | TupleValue) -> bool:
    """Whether two structures are alike at their top."""
    if a.keys != b.keys or len(a.items) != len(b.items):
        return False
    return a.make == b.make if matters(a.make) or matters(b.make) else True


def matters(make: Any) -> bool:
    """Whether a structure's ``make`` tells it from others: nil, a constructor of a data type, a function."""
    return make is nothing or isinstance(make, Shape) or isinstance(make, type) and issubclass(make, Data)


def describe(value: Value) -> str:
    """A value's kind in the words of the language."""
    if isinstance(value, TupleValue):
        if matters(value.make):
            return f"`{value.make.name}`"
        if value.keys is not None:
            return f"a record of {', '.join(value.keys)}" if value.keys else "a record without fields"
        if value.make is tuple:
            end = value
            while isinstance(end, TupleValue) and end.make is tuple:
                end = end.items[1]
            return "a list" if end is NIL else "a pair"
        return f"a tuple of {len(value.items)}"
    if isinstance(value, ArrayOfTuples):
        return "an array of tuples"
    if isinstance(value, FUNCTIONS):
        return "a function"
    if isinstance(value, Const) and value.value is None:
        return "None"
    if isinstance(value, Cell):
        return "an array" if value.array else "a reference"
    if isinstance(value, Place):
        return "a reference" if value.reference else "an array"
    if isinstance(value, References):
        return "an array of references"
    t = value.type  # type: ignore[union-attr]
    if isinstance(t, DataType):
        if tuple in (makes := {c.make for c in t.constructors}) and makes <= {tuple, None}:
            return "a list" if None in makes else "a pair"
        return f"data ({' or '.join(c.name for c in t.constructors)})"
    if isinstance(t, Arr):
        return f"an array of shape [{' '.join(map(str, t.dims))}]"
    return {"Real": "a number", "Int": "an integer", "Bool": "a truth value"}.get(t.name, str(t))


# ------------------------------------------------------------------------- references and arrays in place


def is_array(value: Value) -> bool:
    """Whether a value is an array that is changed in place, or a row of one."""
    return isinstance(value, Cell) and value.array or isinstance(value, Place) and not value.reference


def same_array(a: Value, b: Value) -> bool:
    """Whether two values are one array that is changed in place."""
    if isinstance(a, Place) and isinstance(b, Place):
        return a.array == b.array and a.indices == b.indices and a.reference == b.reference
    return isinstance(a, Cell) and a == b


def is_reference(value: Value) -> bool:
    """Whether a value is a reference, or one of two as a condition says."""
    if isinstance(value, Choice):
        return is_reference(value.then) and is_reference(value.orelse)
    return isinstance(value, (Cell, Place)) and not is_array(value)


# ---------------------------------------------------------------------------- constants and options


class Wrt:
    """``:wrt`` on its way to the operator."""

    __slots__ = ("wrt",)

    def __init__(self, wrt: Any) -> None:
        self.wrt = wrt


def constant(value: Any, span: Span | None = None) -> Any:
    """A Python number as an atom."""
    if value is None:
        return NIL
    if isinstance(value, tuple) and value and value[0] == "wrt":
        return Wrt(value[1])
    if isinstance(value, bool):
        return Const(value, BOOL)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ModelTypeError(f"the integer {value} does not fit into 64 bits", span, "make it a real")
        return Const(value, INT)
    return Const(float(value), REAL)
