"""References and arrays that are changed in place: ``ref``, ``deref``, ``set!``, ``set-at!``.

They never reach typed core: what each holds is in the specialiser's store, see ``flow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import Arr, Const, Data, Var, type_of
from ..errors import ModelTypeError, NotCompiled, Span
from ..program.values import NIL, Cell, Choice, Place, References, Spans, Value, describe, is_reference
from .arguments import arity
from .branches import branches
from .families import Again, Anew
from .store_passing import held_elsewhere, new_cell, set_cell, touch
from .subscripts import get, update

if TYPE_CHECKING:
    from .specialise import Specialiser


def ref(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(ref x)``."""
    arity(sp, "ref", args, 1)
    return new_cell(sp, args[0])


def cell_of(sp: Specialiser, name: str, value: Value, span: Span | None) -> Cell:
    """A reference, as an argument of ``name``."""
    if isinstance(value, Cell) and not value.array:
        return value
    if isinstance(value, Var) and isinstance(value.type, Data):
        raise NotCompiled(f"`{name}` of a reference that is only known when the model runs", span or sp.b.span)
    hint = "`(ref x)` makes a reference" + ("; `(set-at! v i x)` changes an element" if name == "set!" else "")
    raise ModelTypeError(f"`{name}` of {describe(value)}", span or sp.b.span, hint)


def deref(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(deref r)``: what a reference holds now."""
    arity(sp, "deref", args, 1)
    r = args[0]
    if isinstance(r, Choice) and is_reference(r):
        return branches(
            sp, r.cond, lambda: deref(sp, [r.then], spans, None), lambda: deref(sp, [r.orelse], spans, None), var
        )
    if isinstance(r, Place) and r.reference:
        return get(sp, [sp.held(r.array), *r.indices], (), var)
    cell = cell_of(sp, "deref", r, spans[0] if spans else None)
    touch(sp, cell)
    return sp.store[cell]


def set_(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(set! r x)``."""
    arity(sp, "set!", args, 2)
    r, x = args
    if isinstance(r, Choice) and is_reference(r):
        return branches(
            sp, r.cond, lambda: set_(sp, [r.then, x], spans, None), lambda: set_(sp, [r.orelse, x], spans, None), var
        )
    if isinstance(r, Place) and r.reference:
        set_cell(sp, r.array, update(sp, [sp.held(r.array), *r.indices, x], (None,) * 3, None, "set!"))
        return NIL
    set_cell(sp, cell_of(sp, "set!", args[0], spans[0] if spans else None), args[1])
    return NIL


def set_at(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(set-at! v i ... x)``: an array changed in place, or a row of one."""
    if len(args) < 3:
        raise ModelTypeError("set-at! takes an array, an index and a value", sp.b.span, "`(set-at! v i x)`")
    array, before = args[0], ()
    if isinstance(array, Place) and not array.reference:
        array, before = array.array, array.indices
    if not isinstance(array, Cell) or not array.array:
        if sp.facts.mutates and array in sp.params_of:
            f, k = sp.params_of[array]
            if k not in sp.facts.changes.setdefault(f, set()):
                sp.facts.changes[f].add(k)
                sp.facts.changed = True
                raise Again
        if isinstance(array, (Const, Var)) and isinstance(type_of(array), Arr):
            if not sp.facts.mutates:  # from now on arrays are held where they can be changed
                sp.facts.__init__(mutates=True)  # type: ignore[misc]  # what is known of arrays is no more so
                sp.facts.changed = True
                raise Anew
            raise NotCompiled(
                "set-at! of an array that is part of another value", spans[0] if spans else sp.b.span,
                "name a copy of it: `(let [w (copy v)] (set-at! w i x))`",
            )  # fmt: skip
        if sp.boxed_array(array):
            raise NotCompiled(
                "set-at! of an array that is part of data",
                spans[0] if spans else sp.b.span,
                "change a copy of it",
            )
        raise ModelTypeError(f"`set-at!` of {describe(array)}", spans[0] if spans else sp.b.span)
    if array.key in sp.shared:
        raise held_elsewhere(sp, array.key, spans[0] if spans else sp.b.span)
    rest = [*before, *(sp.look(a) for a in args[1:])]
    spans = [None, *(None for _ in before), *spans[1:]]
    set_cell(sp, array, update(sp, [sp.held(array), *rest], spans, None, "set-at!"))
    return NIL


def row(sp: Specialiser, args: list[Value], spans: Spans) -> Value | None:
    """A row of an array that is changed in place, or an element of an array of references; None for a number."""
    array, *indices = args
    indices = [sp.look(i) for i in indices]
    cell = array if isinstance(array, Cell) else array.array  # type: ignore[union-attr]
    before = array.indices if isinstance(array, Place) else ()
    held = sp.held(cell)
    if not isinstance(held, (Const, Var)) or not isinstance(type_of(held), Arr) or not indices:
        return None
    whole = get(sp, [held, *before, *indices], [None, *(None for _ in before), *spans[1:]], None)
    reference = isinstance(array, References)
    if not reference and not isinstance(type_of(whole), Arr):
        return None
    return Place(cell, (*before, *indices), reference)  # type: ignore[arg-type]
