"""Boxing: a value known by its structure as data, and data as such a value again.

Where structures differ they become data of a *family* (``families``): ``coerce`` puts a value into the form that a
target says, ``spread`` and ``gather`` are its atoms in a constructor's fields and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core import INT, REAL, Arr, Atom, Const, Data, Var, elem_of, type_of
from ..program.bounds import Scope
from ..program.values import (
    CLOSED,
    NIL,
    Cell,
    Choice,
    Place,
    Shape,
    TupleValue,
    Value,
    flatten,
    is_reference,
    nothing,
    taken_apart,
)
from .families import Again, Apart, ArrayOf, Family, Member, Target, concrete, sizes_of

if TYPE_CHECKING:
    from .specialise import Specialiser


def coerce(sp: Specialiser, value: Value, target: Target) -> Value:
    """A value in the form that ``target`` says: structures that differ become data."""
    if isinstance(value, Cell) and isinstance(target, Apart):  # a reference is known by its place alone
        return value
    if not (isinstance(value, Place) and isinstance(target, Apart)):  # a row by its array's place and its index
        value = sp.held(value)
    if isinstance(target, Data):
        return box(sp, value, sp.facts.of_data[sp.facts.find(target)])
    if isinstance(target, Apart):
        if value is NIL or target.make is nothing:
            return NIL
        if isinstance(value, CLOSED):
            items = taken_apart(value)[1]
            assert isinstance(target.make, Shape)
            return target.make.rebuild([coerce(sp, x, t) for x, t in zip(items, target.items)])
        if not isinstance(value, TupleValue):
            raise Again
        items = [coerce(sp, x, t) for x, t in zip(value.items, target.items)]
        return TupleValue(tuple(items), value.keys, value.make)
    if isinstance(target, ArrayOf):
        return sp.b.reals(value) if target.elem == REAL else value
    if not isinstance(value, (Const, Var)) or value is NIL:
        raise Again
    return sp.b.to_real(value) if target == REAL and type_of(value) == INT else value


def box(sp: Specialiser, value: Value, family: Family) -> Var:
    """A value as data of a family."""
    if isinstance(value, Var) and isinstance(value.type, Data):
        if sp.facts.find(value.type) is not family.data:
            sp.facts.merge(family.data, value.type)
        return value
    if isinstance(value, Choice) and not is_reference(value):
        return box_chosen(sp, value, family)
    value = sp.copied(value)
    member = sp.facts.member(family, sp.target(value))
    items = items_of(sp, value)
    atoms: list[Atom] = []
    sizes: set[str] = set()
    for item, target in zip(items, member.items):
        spread(sp, coerce(sp, item, target), target, atoms, sizes)
    return sp.b.make(member.constructor, atoms)


def box_chosen(sp: Specialiser, value: Choice, family: Family) -> Var:
    """A function that a branch chooses as data of a family: the one that it is."""
    b = sp.b
    with b.branch_region(value.cond, True) as one:
        then = box(sp, value.then, family)
    with b.branch_region(value.cond, False) as other:
        orelse = box(sp, value.orelse, sp.facts.of_data[sp.facts.find(family.data)])
    return b.if_(value.cond, (one, [then]), (other, [orelse]))[0]


def unbox(member: Member, fields: Sequence[Atom]) -> Value:
    """A constructor's value from its fields."""
    atoms = iter(fields)
    sizes: set[str] = set()
    items = tuple(gather(t, atoms, sizes) for t in member.items)
    make = member.make
    if make is nothing:
        return NIL
    if isinstance(make, Shape):
        return make.rebuild(list(items))
    if make in (float, bool, "array"):
        return items[0]
    return TupleValue(items, member.keys, None if make is dict else make)


def items_of(sp: Specialiser, value: Value) -> Sequence[Value]:
    """The fields of a structure that becomes data."""
    if isinstance(value, TupleValue):
        return value.items
    if isinstance(value, CLOSED):
        return taken_apart(value)[1]
    if value is NIL:
        return ()
    return (sp.b.to_real(value) if type_of(value) == INT else value,)  # type: ignore[arg-type]


def spread(sp: Specialiser, value: Value, target: Target, atoms: list[Atom], sizes: set[str]) -> None:
    """The atoms of a coerced value, each run-time size before the first array that has it."""
    if isinstance(target, Apart):
        for x, t in zip(items_of(sp, value), target.items):
            spread(sp, x, t, atoms, sizes)
        return
    if isinstance(target, ArrayOf):
        for d, dim in zip(target.dims, type_of(value).dims):  # type: ignore[arg-type]
            if type(d) is str and d not in sizes:
                sizes.add(d)
                atoms.append(dim)
    atoms.append(value)  # type: ignore[arg-type]


def gather(target: Target, atoms: Iterator[Atom], sizes: set[str]) -> Value:
    """The inverse of ``spread``."""
    if isinstance(target, Apart):
        if target.make is nothing:
            return NIL
        items = [gather(t, atoms, sizes) for t in target.items]
        if isinstance(target.make, Shape):
            return target.make.rebuild(items)
        return TupleValue(tuple(items), target.keys, target.make)
    if isinstance(target, ArrayOf):
        for d in target.dims:
            if type(d) is str and d not in sizes:
                sizes.add(d)
                next(atoms)
    return next(atoms)


def variables(sp: Specialiser, targets: Sequence[Target], names: Sequence[str], sizes: dict[str, Var]) -> list[Var]:
    """Typed variables for the atoms that ``spread`` gives."""
    made: list[Var] = []

    def add(target: Target, name: str) -> None:
        if isinstance(target, Apart):
            for k, t in enumerate(target.items):
                add(t, target.keys[k] if target.keys else name)
        else:
            made.append(Var(name, concrete(target, sizes, made), sp.b.span, True))

    for t, name in zip(targets, names):
        add(t, name)
    return made


def sized(sp: Specialiser, target: Target, known: set[str], key: tuple) -> Target:
    """A target whose arrays of sizes that are not ``known`` are data."""
    if isinstance(target, Apart):
        items = (sized(sp, t, known, (*key, k)) for k, t in enumerate(target.items))
        return Apart(tuple(items), target.keys, target.make)
    if isinstance(target, ArrayOf) and not sizes_of(target) <= known:
        return sp.facts.family((key, "array"), "list").data
    return target


def resized(sp: Specialiser, before: Value, after: Value) -> bool:
    """Whether of two values of one structure an array is of another size than its like, for all that is known."""
    pairs = zip(flatten(before, sp.b.span)[0], flatten(after, sp.b.span)[0])
    types = [(type_of(x), type_of(y)) for x, y in pairs]
    return any(
        not sp.b.same_int(d, e)
        for t, u in types
        if isinstance(t, Arr) and isinstance(u, Arr)
        for d, e in zip(t.dims, u.dims)
    )


def box_unsized(sp: Specialiser, site: Any, atoms: Sequence[list[Atom]], scopes: Sequence[Scope], width: int) -> None:
    """Where regions meet: arrays whose sizes cannot be said outside of them become data, which holds its sizes.
    So do those of different sizes, in a recursion and in references (the results from ``width`` on); elsewhere
    they are a mistake."""
    b = sp.b
    for k in range(len(atoms[0])):
        types = [type_of(a[k]) for a in atoms]
        if not all(isinstance(t, Arr) and t.rank == types[0].rank for t in types):
            continue
        outer = [[b.outside(d, scope) for d in t.dims] for t, scope in zip(types, scopes)]  # type: ignore[union-attr]
        unknown = any(d is None for dims in outer for d in dims)
        differ = not unknown and not all(
            b.same_int(d, e)
            for dims in outer[1:]
            for d, e in zip(outer[0], dims)  # type: ignore[arg-type]
        )
        if unknown or differ and (sp.making or k >= width):
            family = sp.facts.family((sp.frame_number(sp.frame), site, "array", k), "list")
            wide = any(elem_of(a[k]) == REAL for a in atoms)
            for a, scope in zip(atoms, scopes):
                with b.region(scope):
                    a[k] = box(sp, sp.b.reals(a[k]) if wide else a[k], family)
