"""What is known of values at compile time, joined where several flow together: types for recursion and data.

A value that the specialiser knows apart (a tuple, nil, a function with what it closes over) stays apart as long as
everything that reaches a place has the same structure. Where structures differ they become a *family*: a data type
with one constructor for each structure. So lists, trees, sums and functions that a program chooses at run time are
inferred, none is declared. A family grows while a model is specialised; the specialiser starts again until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Union

from ..core import BOOL, INT, LEAF, REAL, Arr, Atom, Const, Constructor, Data, Function, Node, Scalar, Tree, Var
from ..errors import ModelTypeError, Span
from ..program.data import Data as PythonData
from ..program.data import Inl, Inr
from ..program.values import CLOSED, NIL, Shape, TupleValue, Value, describe, nothing, same_node, taken_apart


class Again(Exception):
    """Something new is known: the model is specialised once more."""


class Recursion(Again):
    """A function that is being inlined calls itself under a condition that only a run knows."""

    def __init__(self, function: Any) -> None:
        self.function = function


class Anew(Exception):
    """What is known is so no more: the model is specialised from the start, and no part of it alone."""


class Endless(Exception):
    """What is known at a place, the argument, grows each time that it is specialised."""


class Bottom(Exception):
    """The result of a recursive call of which nothing is known yet."""


class Dead(Exception):
    """Code that ends the call, for a mistake: nothing comes after it."""

    def __init__(self, message: str, span: Span | None) -> None:
        self.message, self.span = message, span

    def error(self) -> ModelTypeError:
        """The mistake, where there is no way around it."""
        return ModelTypeError(self.message, self.span)


# --------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array's type with sizes as numbers: an ``int`` is known, a ``str`` tells run-time sizes apart."""

    elem: Any
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """A structure: a tuple, a record, nil, a constructor, a function with what it closes over."""

    items: tuple[Target, ...]
    keys: tuple[str, ...] | None = None
    make: Any = None


Target = Union[Scalar, ArrayOf, Data, Apart]


def target_of(value: Value, sizes: dict[Atom, str], family: Callable[[Data], Data]) -> Target:
    """What is known of a value apart from its numbers. ``sizes`` numbers the run-time sizes."""
    if isinstance(value, TupleValue):
        return Apart(tuple(target_of(x, sizes, family) for x in value.items), value.keys, value.make)
    if isinstance(value, CLOSED):
        shape, items = taken_apart(value)
        return Apart(tuple(target_of(x, sizes, family) for x in items), None, shape)
    if value is NIL or not isinstance(value, (Const, Var)):
        if value is NIL:
            return Apart((), None, nothing)
        raise ModelTypeError(f"{describe(value)} cannot go through recursion", None, "make it a tuple of arrays")
    t = value.type
    if isinstance(t, Arr):
        elem = family(t.elem) if isinstance(t.elem, Data) else t.elem
        return ArrayOf(
            elem, tuple(d.value if type(d) is Const else sizes.setdefault(d, f"n{len(sizes)}") for d in t.dims)
        )
    return family(t) if isinstance(t, Data) else t  # type: ignore[return-value]


def sort_of(target: Target) -> Any:
    """Which structures share a family: numbers, nil and pairs; the constructors of one data type; sums; functions."""
    if isinstance(target, Apart):
        make = target.make
        if isinstance(make, Shape):
            return "function" if make.kind != "reference" else "reference"
        if isinstance(make, type) and issubclass(make, PythonData):
            return "sum" if make in (Inl, Inr) else make.__mro__[1]
        if target.keys is not None:
            return ("record", target.keys)
        return "list"
    return "list"


def chosen(target: Target) -> tuple[Target, ...]:
    """The two functions of which a branch chooses one."""
    if isinstance(target, Apart) and isinstance(target.make, Shape) and target.make.kind == "choice":
        _, one, other = target.items
        return () if "reference" in (sort_of(one), sort_of(other)) else (one, other)
    return ()


# -------------------------------------------------------------------------------------------- families


@dataclass(slots=True, eq=False)
class Member:
    """One constructor of a family, and what is known of its fields."""

    constructor: Constructor
    items: tuple[Target, ...]
    keys: tuple[str, ...] | None
    make: Any


@dataclass(slots=True, eq=False)
class Family:
    """A data type that is being inferred. ``depth`` is how many families of its sort it lies inside."""

    key: Any
    sort: Any
    data: Data
    depth: int = 1
    doubt: Any = None  # the mistake that it is if no pair is ever in it: nil or a number
    members: dict[Any, Member] = field(default_factory=dict)

    @property
    def numeric(self) -> bool:
        """Whether it may hold a number, a truth value or an array; nil alone may yet become a list of them."""
        made = [m.make for m in self.members.values()]
        return all(m is nothing for m in made) or any(m in (float, bool, "array") for m in made)


@dataclass(slots=True, eq=False)
class Instance:
    """What is known of a recursive function for one kind of arguments: joined over all its calls."""

    params: list[Target]
    result: Target | None = None
    cells: dict[tuple, bool] = field(default_factory=dict)  # the references it reads; true for those that it sets
    flows: set[int] = field(default_factory=set)  # the parameters whose arrays its results may hold
    shared: set[tuple] = field(default_factory=set)  # arrays from outside of which its results or others hold copies
    function: Function | None = None  # in this run
    span: Any = None  # the first call


class Facts:
    """All that is kept from one run of the specialiser to the next; ``changed`` asks for another. ``news`` counts what
    was found."""

    def __init__(self, mutates: bool = False) -> None:
        self.news = self.old_news = 0
        self.recursive: set[Any] = set()
        self.instances: dict[Any, Instance] = {}
        self.families: dict[Any, Family] = {}
        self.of_data: dict[Data, Family] = {}
        self.merged: dict[Data, Data] = {}
        self.modified: dict[Any, dict[tuple, None]] = {}  # by a loop's place: the references that it sets
        self.joins: dict[Any, Target] = {}
        self.places: dict[Any, int] = {}
        self.recursive_now = False  # whether what is joined meets in a recursion
        self.stale = False  # whether a constructor has other fields than code of this run supposes
        self.mutates = mutates  # whether arrays are changed in place
        self.changes: dict[Any, set[int]] = {}  # which arguments and captured values a recursive function changes so

    @property
    def changed(self) -> bool:
        return self.news != self.old_news

    @changed.setter
    def changed(self, value: bool) -> None:
        if value:
            self.news += 1
        else:
            self.old_news = self.news

    # ------------------------------------------------------------------------------------- families

    def find(self, data: Data) -> Data:
        while data in self.merged:
            data = self.merged[data]
        return data

    def family(self, key: Any, sort: Any, depth: int = 1) -> Family:
        """The family at a place; a new one has no constructors yet."""
        found = self.families.get(key)
        if found is None:
            name = {"list": "cell", "sum": "either", "function": "function"}.get(sort) if type(sort) is str else None
            name = name or (sort.__name__ if isinstance(sort, type) else "record")
            made = Family(key, sort, Data(name), depth)
            self.families[key] = self.of_data[made.data] = found = made
            self.changed = True
        return self.of_data[self.find(found.data)]

    def members(self, family: Family, target: Target) -> None:
        """The constructors of what a structure may be: of a function that a branch chooses, those of both.

        A function that gives, or a loop that hands on, one of two chosen again would be one inside the other.
        """
        either = chosen(target)
        if not either:
            self.member(family, target)
        for x in either:
            if isinstance(x, Data):
                self.merge(family.data, x)
            else:
                self.members(self.of_data[self.find(family.data)], x)

    def member(self, family: Family, target: Target) -> Member:
        """The constructor of a structure in a family, made if it is new; its fields are joined with ``target``'s."""
        key, name, items = self.constructor_of(target)
        found = family.members.get(key)
        if found is None:
            keys, make = (target.keys, target.make) if isinstance(target, Apart) else (None, float)
            if target == BOOL or isinstance(target, ArrayOf):
                make = bool if target == BOOL else "array"
            elif make is None:
                make = tuple if keys is None else dict
            name = unlike(name, family)
            found = Member(Constructor(name, family.data, (), python_of(make)), (), keys, make)
            family.members[key] = found
            family.data.constructors = tuple(m.constructor for m in ordered(family.members))
            fields = [self.field(family, key, k, x) for k, x in enumerate(items)]
            self.changed = True
        else:
            fields = self.join_all(found.items, items, lambda k, sort: self.inner(family, key, k, sort))
        if tuple(fields) != found.items:
            found.items = tuple(fields)
            self.changed = True
        self.declare(found)
        return found

    def constructor_of(self, target: Target) -> tuple[Any, str, tuple[Target, ...]]:
        """A structure's key among the constructors of a family, its name and its fields."""
        if isinstance(target, Scalar):
            return ("truth", "truth", (BOOL,)) if target == BOOL else ("number", "number", (REAL,))
        if isinstance(target, ArrayOf):
            return (target.elem, len(target.dims)), "array", (target,)
        assert isinstance(target, Apart)
        make = target.make
        if make is nothing:
            return "nil", "nil", ()
        if isinstance(make, Shape):
            name = getattr(make.of[0], "name", None) if make.kind == "fn" else make.kind
            return make, name or "fn", target.items
        if isinstance(make, type) and issubclass(make, PythonData):
            return make, make.name, target.items
        name = (
            "cons" if target.keys is None and len(target.items) == 2 else "tuple" if target.keys is None else "record"
        )
        return (len(target.items), target.keys), name, target.items

    def inner(self, family: Family, key: Any, k: int, sort: Any) -> Family:
        """The family of a field: its own constructor's where that is recursive, else one inside it."""
        around: Family | None = family
        while around is not None and around.sort != sort:
            around = self.around(around)
        tail = sort == "list" and family.sort == "list" and k == 1
        if around is not None and (tail or sort not in ("list", "sum") or around.depth >= 2):
            return around
        depth = around.depth + 1 if around is not None else 1
        return self.family((family.key, key, k, sort), sort, depth)

    def around(self, family: Family) -> Family | None:
        """The family whose field a family was made for."""
        key = family.key
        if isinstance(key, tuple) and len(key) == 4 and key[0] in self.families:
            return self.of_data[self.find(self.families[key[0]].data)]
        return None

    def field(self, family: Family, key: Any, k: int, target: Target, shapes: tuple = ()) -> Target:
        """What a new constructor's field holds: structures of a recursive sort become families at once. ``shapes`` are
        those of the functions that it lies in."""
        shapes = (*shapes, key) if isinstance(key, Shape) else shapes
        if isinstance(target, Apart):
            sort = sort_of(target)
            known = sort == "function" and target.make not in shapes  # it stays known until another is in its place
            if sort == family.sort and not known and not (sort == "list" and k == 0 and target.make is not tuple):
                inside = self.inner(family, key, k, sort)
                self.members(inside, target)
                return inside.data
            inner = (*shapes, target.make) if sort == "function" else shapes
            items = tuple(self.field(family, (key, k), j, x, inner) for j, x in enumerate(target.items))
            return Apart(items, target.keys, target.make)
        return self.find(target) if isinstance(target, Data) else target

    def declare(self, member: Member) -> None:
        """Give a constructor its typed fields; a run-time size is a field before the array."""
        fields: list[Var] = []
        sizes: dict[str, Var] = {}

        def add(target: Target, name: str) -> Tree:
            if isinstance(target, Apart):
                items = [add(x, target.keys[k] if target.keys else f"{name}{k}") for k, x in enumerate(target.items)]
                make = "function" if isinstance(target.make, Shape) else None if target.make is tuple else target.make
                return Node(tuple(items), target.keys, make)
            t = concrete(target, sizes, fields)
            fields.append(Var(name, t, None, True))
            return LEAF

        names = member.keys or {"cons": ("car", "cdr"), "number": ("value",)}.get(member.constructor.name)
        parts = [add(x, names[k] if names and k < len(names) else f"x{k}") for k, x in enumerate(member.items)]
        before = member.constructor.fields
        layout = [[(type(f.type), getattr(f.type, "elem", f.type)) for f in x] for x in (before, fields)]
        self.stale = self.stale or bool(before) and layout[0] != layout[1]
        member.constructor.fields = tuple(fields)
        member.constructor.parts = tuple(parts) if any(isinstance(t, Node) for t in parts) else ()
        if member.keys is not None and not (isinstance(member.make, type) and issubclass(member.make, PythonData)):
            member.constructor.make = "whole"
            member.constructor.parts = (Node(tuple(parts), member.keys, None if member.make is dict else member.make),)

    def widen(self, data: Data) -> None:
        """Make reals of the integers in data that is differentiated."""
        todo, seen = [self.find(data)], set()
        while todo:
            family = self.of_data.get(todo.pop())
            if family is None or family.data in seen:
                continue
            seen.add(family.data)
            for m in family.members.values():
                items = tuple(map(real_target, m.items))
                if items != m.items:
                    m.items = items
                    self.changed = True
                    self.declare(m)
                todo += [self.find(t) for x in m.items for t in leaves_of(x) if isinstance(t, Data)]

    def merge(self, a: Data, b: Data) -> Data:
        """Make two families one."""
        a, b = self.find(a), self.find(b)
        if a is b:
            return a
        first, second = self.of_data[a], self.of_data[b]
        if only_nil(first):
            first.sort = second.sort
        if first.sort != second.sort and not only_nil(second):
            raise ModelTypeError(f"{describe_family(first)} where {describe_family(second)} is expected")
        self.merged[b] = a
        self.changed = True
        for key, m in second.members.items():
            if key in first.members:
                mine = first.members[key]
                mine.items = tuple(
                    self.join_all(mine.items, m.items, lambda k, sort, key=key: self.inner(first, key, k, sort))
                )
            else:
                m.constructor = Constructor(unlike(m.constructor.name, first), a, (), m.constructor.make)
                first.members[key] = m
        a.constructors = tuple(m.constructor for m in ordered(first.members))
        for m in first.members.values():
            m.items = tuple(self.renamed(x) for x in m.items)
            self.declare(m)
        instances: dict[Any, Instance] = {}
        for (f, targets, *rest), instance in self.instances.items():  # what is known of a function stays found
            instances.setdefault((f, tuple(map(self.renamed, targets)), *rest), instance)
        self.instances = instances
        return a

    def renamed(self, target: Target) -> Target:
        """A target that speaks of families as they are now."""
        if isinstance(target, Data):
            return self.find(target)
        if isinstance(target, Apart):
            return Apart(tuple(map(self.renamed, target.items)), target.keys, target.make)
        if isinstance(target, ArrayOf) and isinstance(target.elem, Data):
            return ArrayOf(self.find(target.elem), target.dims)
        return target

    # ----------------------------------------------------------------------------------------- joins

    def join(
        self,
        a: Target,
        b: Target,
        family: Callable[[Any], Family],
        sizes: Sizes | None = None,
        loop: bool = False,
    ) -> Target:
        """What holds of both: ``family`` gives the family of a sort where their structures differ. ``sizes``: of
        targets that lie beside each other, one for all. In a ``loop``, pairs may hold pairs that held numbers.

        Raises ``ModelTypeError`` where nothing does.
        """
        size = sizes or Sizes(sizes_of(a))

        def walk(x: Target, y: Target, at: tuple[int, ...], pairs: bool = True) -> Target:
            if isinstance(x, Data) and isinstance(y, Data):
                return self.merge(x, y)
            if isinstance(x, Data) or isinstance(y, Data):
                data, other = (x, y) if isinstance(x, Data) else (y, x)
                inside = self.of_data[self.find(data)]
                if sort_of(other) != inside.sort and not is_nil(other) and not only_nil(inside):
                    raise ModelTypeError(f"{describe_target(other)} where {describe_family(inside)} is expected")
                if only_nil(inside):
                    inside.sort = sort_of(other)
                self.members(inside, other)
                return self.find(inside.data)
            if isinstance(x, Scalar) and isinstance(y, Scalar):
                if x == y:
                    return x
                if {x, y} == {INT, REAL}:
                    return REAL
            if isinstance(x, ArrayOf) and isinstance(y, ArrayOf) and len(x.dims) == len(y.dims):
                elem = walk(x.elem, y.elem, at)
                return ArrayOf(elem, tuple(map(size, x.dims, y.dims)))
            if isinstance(x, Apart) and isinstance(y, Apart) and same_node(x, y):
                pairs = pairs and x.keys is None and len(x.items) == 2
                items = (walk(p, q, (*at, k), pairs) for k, (p, q) in enumerate(zip(x.items, y.items)))
                return Apart(tuple(items), x.keys, x.make)
            sort = sort_of(y) if is_nil(x) else sort_of(x)
            alike = sort_of(x) == sort_of(y) or is_nil(x) or is_nil(y)
            recursive = self.recursive_now or loop and pairs and bool(at)
            if not alike or sort == "reference" or not mixes(x, y, recursive):
                raise ModelTypeError(f"{describe_target(x)} or {describe_target(y)}")
            inside = family((sort, at) if at else sort)
            self.members(inside, x)
            self.members(inside, y)
            return self.find(inside.data)

        return walk(a, b, ())

    def join_all(
        self, old: Sequence[Target], new: Sequence[Target], family: Callable[[int, Any], Family]
    ) -> list[Target]:
        """The joins of targets that lie beside each other: a size that two of them share stays shared."""
        sizes = Sizes({d for t in old for d in sizes_of(t)})
        return [self.join(a, b, lambda sort, k=k: family(k, sort), sizes) for k, (a, b) in enumerate(zip(old, new))]


class Sizes:
    """Names for pairs of sizes that are joined, two only where both sizes differ: the ``old`` name where it can stay.
    The ``fixed`` ones mean what they say: they stay only where they meet themselves."""

    def __init__(self, old: set[str], fixed: frozenset[str] = frozenset()) -> None:
        self.taken, self.fixed = old | fixed, fixed
        self.names: dict[tuple, str] = {}

    def __call__(self, d: int | str, e: int | str) -> int | str:
        if d == e and (type(d) is int or d in self.fixed):
            return d
        if (d, e) not in self.names:
            name = d
            if type(d) is int or d in self.fixed or d in self.names.values():
                name = next(n for n in (f"m{k}" for k in count()) if n not in self.taken)
            self.taken.add(name)  # type: ignore[arg-type]
            self.names[d, e] = name  # type: ignore[assignment]
        return self.names[d, e]


def sizes_of(target: Target) -> set[str]:
    """The run-time sizes of the arrays in a target."""
    if isinstance(target, Apart):
        return {d for t in target.items for d in sizes_of(t)}
    return {d for d in target.dims if type(d) is str} if isinstance(target, ArrayOf) else set()


def real_target(target: Target) -> Target:
    """A target whose integers are reals."""
    if isinstance(target, Apart):
        return Apart(tuple(map(real_target, target.items)), target.keys, target.make)
    if isinstance(target, ArrayOf):
        return ArrayOf(REAL if target.elem == INT else target.elem, target.dims)
    return REAL if target == INT else target


def unlike(name: str, family: Family) -> str:
    """A constructor's name that no other of the family has."""
    taken = {m.constructor.name for m in family.members.values()}
    return name if name not in taken else next(n for n in (f"{name}{k}" for k in count(2)) if n not in taken)


def is_nil(target: Target) -> bool:
    return isinstance(target, Apart) and target.make is nothing


def only_nil(family: Family) -> bool:
    """Whether nothing but nil is known of a family: it may yet be of any sort."""
    return all(m.make is nothing for m in family.members.values())


def mixes(a: Target, b: Target, recursive: bool) -> bool:
    """Whether two different structures may meet in one place: numbers, nil and tuples only in a recursion, and where
    one is a pair that ``cons`` made, so that a branch that forgets its value is a mistake."""
    if sort_of(a) != "list":
        return True
    tuples = [x for x in (a, b) if isinstance(x, Apart) and x.make is not nothing]
    if recursive and tuples:
        return True
    if any(len(x.items) != 2 for x in tuples):
        return False
    return any(isinstance(x, Apart) and (x.make is tuple or x.make is nothing) for x in (a, b))


def ordered(members: dict[Any, Member]) -> list[Member]:
    """Constructors in the order of their types' declarations: nil first, as no cell stands for it."""
    rank = {"nil": 0, "number": 1, "truth": 2}

    def place(item: tuple[Any, Member]) -> tuple:
        key, m = item
        if isinstance(m.make, type) and issubclass(m.make, PythonData):
            siblings = m.make.__mro__[1].__dict__.get("constructors", (Inl, Inr))
            return (4, siblings.index(m.make) if m.make in siblings else 0)
        return (rank.get(key, 3) if isinstance(key, str) else 3, 0)

    return [m for _, m in sorted(members.items(), key=place)]


def python_of(make: Any) -> Any:
    """What a constructor's value is in Python."""
    if make is nothing:
        return None
    return "function" if isinstance(make, Shape) else make


def concrete(target: Target, sizes: dict[str, Var], fields: list[Var]) -> Any:
    """The type of one number, array or piece of data; sizes that are new are appended to ``fields``."""
    if not isinstance(target, ArrayOf):
        return target
    dims: list[Atom] = []
    for d in target.dims:
        if type(d) is int:
            dims.append(Const(d, INT))
            continue
        if d not in sizes:
            sizes[d] = Var("n", INT, None, True)
            fields.append(sizes[d])
        dims.append(sizes[d])
    return Arr(target.elem, tuple(dims))


def leaves_of(target: Target) -> Iterator[Target]:
    """The numbers, arrays and data of a target, left to right."""
    if isinstance(target, Apart):
        for x in target.items:
            yield from leaves_of(x)
    else:
        yield target


def describe_target(target: Target) -> str:
    if isinstance(target, Apart):
        if target.make is nothing:
            return "nil"
        if isinstance(target.make, Shape):
            return "a function" if target.make.kind != "reference" else "a reference"
        if isinstance(target.make, type) and issubclass(target.make, PythonData):
            return f"`{target.make.name}`"
        return f"a record of {', '.join(target.keys)}" if target.keys else f"a tuple of {len(target.items)}"
    if isinstance(target, ArrayOf):
        return f"an array of rank {len(target.dims)}"
    if isinstance(target, Data):
        return f"data ({' or '.join(c.name for c in target.constructors)})"
    return {"Real": "a number", "Int": "an integer", "Bool": "a truth value"}.get(target.name, str(target))


def describe_family(family: Family) -> str:
    return describe_target(family.data)


# ---------------------------------------------------------------------------- targets, compared


def kinds(target: Target) -> Target:
    """A target without its sizes."""
    if isinstance(target, Apart):
        return Apart(tuple(map(kinds, target.items)), target.keys, target.make)
    return ArrayOf(target.elem, (0,) * len(target.dims)) if isinstance(target, ArrayOf) else target


def sizes_vary(target: Target) -> bool:
    """Whether there are arrays in a target."""
    return isinstance(target, ArrayOf) or isinstance(target, Apart) and any(map(sizes_vary, target.items))


def unsized(target: Target) -> Target:
    """A target whose arrays may be of any size."""
    if isinstance(target, Apart):
        return Apart(tuple(map(unsized, target.items)), target.keys, target.make)
    return ArrayOf(target.elem, ("any",) * len(target.dims)) if isinstance(target, ArrayOf) else target


def named_apart(target: Target, key: Any) -> Target:
    """A target whose run-time sizes are none of another's."""
    names: dict[str, str] = {}

    def walk(t: Target) -> Target:
        if isinstance(t, Apart):
            return Apart(tuple(map(walk, t.items)), t.keys, t.make)
        if isinstance(t, ArrayOf):
            dims = (names.setdefault(d, f"{key} {len(names)}") if type(d) is str else d for d in t.dims)
            return ArrayOf(t.elem, tuple(dims))
        return t

    return walk(target)


def code_of(target: Target) -> Any:
    """The functions in a target: calls that differ in them are told apart."""
    if not isinstance(target, Apart):
        return None
    inner = tuple(map(code_of, target.items))
    if isinstance(target.make, Shape):
        return (target.make, inner)
    return inner if any(x is not None for x in inner) else None


def numbers_alone(a: Any, b: Any) -> bool:
    """Whether two targets differ in nothing but integers and reals."""
    if isinstance(a, Apart) and isinstance(b, Apart):
        return all(map(numbers_alone, a.items, b.items))
    return not isinstance(a, (Apart, Data)) and not isinstance(b, (Apart, Data))


def derives(target: Any) -> bool:
    """Whether a value holds a derivative that is yet to be taken."""
    if not isinstance(target, Apart):
        return False
    made = isinstance(target.make, Shape) and target.make.kind in ("derived", "pointwise")
    return made or any(map(derives, target.items))
