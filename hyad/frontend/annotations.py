"""Annotations: the types that a model's parameters are declared to have, and what a function takes.

``(defmodel f [#^ (Vec n) x #^ Int k] ...)``: each annotation is read once as a ``Spec``, merged with the
actual argument's where the model is compiled (``merge_specs``), and checked where a function is called inside a model
(``conform``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core import BOOL, INT, REAL, Arr, Lambda, Node, Var, integer, type_of
from ..errors import DerivativeError, ModelTypeError, Span
from ..program.advice import USAGE
from ..program.forms import Form, prelude_texts
from ..program.primitives import CHAINED, PRIMITIVES
from ..program.signature import DataSpec, Spec
from ..program.values import (
    FUNCTIONS,
    NIL,
    ArrayOfTuples,
    Builtin,
    Choice,
    Closure,
    Constructing,
    Derived,
    Function,
    Pointwise,
    TupleValue,
    Value,
    describe,
)

if TYPE_CHECKING:
    from .specialise import Specialiser


#: What Python and C call the types of numbers: none is taken for a size.
ELSEWHERE = {"float": "Real", "double": "Real", "real": "Real", "int": "Int", "bool": "Bool"}
TYPES = "types are Real, Int, Bool, (Vec n), (Mat n m), (Arr Real n m k), (Tuple ..) and what defdata defines"


@dataclass(frozen=True, slots=True)
class Named:
    """A data type's name as an annotation."""

    name: str


def read_annotation(form: Form) -> Spec:
    """``Real``, ``(Vec n)``, ``(Mat n m)``, ``(Arr Real n m)``, ``(Tuple ...)`` as a spec."""
    scalars = {"Real": REAL, "Int": INT, "Bool": BOOL}
    if form.kind == "sym" and form.value in scalars:
        return scalars[form.value]
    head = form.head()
    if head in ("Vec", "Mat", "Arr"):
        rest = form.value[1:]
        elem = REAL
        if head == "Arr" and rest and rest[0].kind == "sym" and rest[0].value in scalars:
            elem, rest = scalars[rest[0].value], rest[1:]
        wanted = {"Vec": 1, "Mat": 2}.get(head)
        good = all(d.kind == "sym" or d.kind == "num" and type(d.value) is int and d.value >= 0 for d in rest)
        good = good and not any(d.value in scalars or d.value in ELSEWHERE for d in rest)
        if rest and good and (wanted is None or len(rest) == wanted):
            return Arr(elem, tuple(None if d.value == "None" else d.value for d in rest))
    whole = form.kind == "sym" and form.value not in ("Vec", "Mat", "Arr", "Tuple")
    if whole and form.value[:1].isupper() and form.value.isidentifier():
        return Named(form.value)
    if head == "Tuple":
        return Node(tuple(read_annotation(f) for f in form.value[1:]))
    written = [form, *(form.value[1:] if head in ("Vec", "Mat", "Arr") else ())]
    known = next((f.value for f in written if f.kind == "sym" and f.value in ELSEWHERE), None)
    hint = TYPES if known is None else f"the type is {ELSEWHERE[known]}; arrays are (Vec n), (Mat n m), (Arr Int n)"
    raise ModelTypeError(f"`{form}` is not a type", form.span, hint)


def merge_specs(annotation: Spec, actual: Spec, span: Span | None, name: str, role: str = "") -> Spec:
    """The annotation, with what it leaves open taken from the actual argument. ``role``: what of the parameter the
    argument is, where it is not its value."""
    if annotation is None:
        return actual
    if actual is None:
        return annotation

    def fail() -> ModelTypeError:
        if role:
            return ModelTypeError(
                f"the {role} for `{name}` is {spec_text(actual)}, but `{name}` is declared {spec_text(annotation)}",
                span,
                "it has the type of its argument: 0 for an integer" if annotation == INT else None,
            )
        return ModelTypeError(
            f"`{name}` is declared {spec_text(annotation)} but the argument is {spec_text(actual)}",
            span,
            TYPES if isinstance(annotation, Named) else None,
        )

    if isinstance(annotation, Named):
        kinds_of = [k for p, k, _ in actual.rows if p == actual.root] if isinstance(actual, DataSpec) else []
        kinds_of += [actual.make] if isinstance(actual, Node) else []
        if not any(isinstance(k, type) and annotation.name in (c.__name__ for c in k.__mro__) for k in kinds_of):
            raise fail()
        return actual
    if isinstance(annotation, Node):
        if not isinstance(actual, Node) or len(actual.items) != len(annotation.items):
            raise fail()
        items = tuple(merge_specs(a, b, span, name, role) for a, b in zip(annotation.items, actual.items))
        return Node(items, actual.keys, actual.make)
    if isinstance(annotation, Arr):
        if not isinstance(actual, Arr) or actual.rank != annotation.rank:
            raise fail()
        if annotation.elem != actual.elem and not (annotation.elem == REAL and actual.elem == INT):
            raise fail()
        return Arr(actual.elem, annotation.dims)
    if annotation != actual and not (annotation == REAL and actual == INT):
        raise fail()
    return annotation


def spec_text(spec: Spec) -> str:
    """A spec as an annotation writes it."""
    if isinstance(spec, Arr):
        short = {1: "Vec", 2: "Mat"}.get(spec.rank) if spec.elem == REAL else None
        return f"({short or f'Arr {spec.elem}'} {' '.join('_' if d is None else str(d) for d in spec.dims)})"
    if isinstance(spec, Named):
        return spec.name
    if isinstance(spec, Node):
        return "(Tuple " + " ".join(map(spec_text, spec.items)) + ")" if spec.items else "None"
    return str(spec)


def has_reals(spec: Spec) -> bool:
    """Whether a parameter may be differentiated by: it is not declared to be integers or truth values."""
    return (spec.elem if isinstance(spec, Arr) else spec) not in (INT, BOOL)


def not_real(operator: str, name: str, spec: Spec, span: Span | None = None) -> DerivativeError:
    what = f"`{operator}` by `{name}`, which is declared {spec_text(spec)}"
    return DerivativeError(what, span, "declare it real, or leave it out of wrt")


def dim_names(spec: Spec) -> list[str]:
    """The names of sizes in an annotation."""
    if isinstance(spec, Node):
        return [d for item in spec.items for d in dim_names(item)]
    return [d for d in spec.dims if isinstance(d, str)] if isinstance(spec, Arr) else []


def parameters(function: Function) -> list[tuple[str, Spec, Span | None]] | None:
    """What a function takes: name, annotation and place of each parameter; None where it takes any number."""
    if isinstance(function, Closure):
        f = function.function
        notes = f.annotations or (None,) * len(f.params)
        return [
            (p.name, read_annotation(a) if a is not None else None, a.span if a else p.span)
            for p, a in zip(f.params, notes)
        ]
    if isinstance(function, Builtin):
        row = PRIMITIVES.get(function.name)
        return [(p, None, None) for p in row.params] if row and function.name not in CHAINED else None
    if isinstance(function, (Derived, Pointwise)):
        inner = parameters(function.function if isinstance(function, Derived) else function.derived.function)
        if isinstance(function, Pointwise) or inner is None:
            return None
        if function.operator in ("jvp", "hvp"):
            prefix = "d" if function.operator == "jvp" else "v-"
            # nothing moves integers and truth values: a 0 for all of an array is enough
            moves = [(name, spec if spec == INT or has_reals(spec) else None, span) for name, spec, span in inner]
            return inner + [(prefix + name, spec, span) for name, spec, span in moves]
        if function.operator == "vjp":
            return [*inner, ("ct", None, None)]
        return inner
    if isinstance(function, Constructing):
        return [(p, None, None) for p in function.kind.__match_args__]  # type: ignore[attr-defined]
    if isinstance(function, Var):
        return None
    if isinstance(function, Choice):
        return parameters(function.then)
    return parameters(function.function)


def moved(function: Function, count: int, k: int) -> tuple[str, str]:
    """The parameter that the ``k``-th argument of so many belongs to, and what of it that is: its name and nothing, or
    the tangent or the vector for it."""
    known = parameters(function) or []
    if isinstance(function, Derived) and function.operator in ("jvp", "hvp") and k >= count // 2:
        return known[k - count // 2][0], "tangent" if function.operator == "jvp" else "vector"
    return known[k][0], ""


def conform(sp: Specialiser, value: Value, spec: Spec, span: Span | None, name: str) -> Value:
    """An argument of an inner call against the parameter's annotation."""

    def fail() -> ModelTypeError:
        return ModelTypeError(
            f"`{name}` is declared {spec_text(spec)} but the argument is {describe(value)}",
            span,
            notes=[("in this call", sp.b.span)] if sp.b.span else [],
        )

    if isinstance(value, FUNCTIONS):
        raise fail()
    value = sp.held(value)
    if isinstance(spec, Named):
        family = sp.family_of(value)
        sort = family.sort if family is not None else getattr(value, "make", None)
        if not isinstance(sort, type) or spec.name not in (c.__name__ for c in sort.__mro__):
            raise fail()
        return value
    if isinstance(spec, Node):
        if not isinstance(value, TupleValue) or len(value.items) != len(spec.items):
            raise fail()
        items = tuple(conform(sp, v, s, span, name) for v, s in zip(value.items, spec.items))
        return TupleValue(items, value.keys, value.make)
    if isinstance(value, (TupleValue, ArrayOfTuples)) or value is NIL:
        raise fail()
    t = type_of(value)
    if isinstance(spec, Arr):
        if not isinstance(t, Arr) or t.rank != spec.rank:
            raise fail()
        for d, wanted in zip(t.dims, spec.dims):
            if isinstance(wanted, int) and not sp.b.require_equal(
                d, integer(wanted), f"`{name}` is declared {spec_text(spec)}"
            ):
                raise fail()
        if t.elem == INT and spec.elem == REAL:
            return sp.b.reals(value)
        if t.elem != spec.elem:
            raise fail()
        return value
    if spec == REAL and t == INT:
        return sp.b.to_real(value)
    if t != spec:
        raise fail()
    return value


def usage(function: Lambda) -> str:
    """How a function of the library is called: a hint."""
    if function.name in USAGE:
        return USAGE[function.name]
    given = ("[n m ..]" if p.name == "dims" else p.name for p in function.params)
    return f"`({function.name} {' '.join(given)})`"


def arity_text(name: str | None, wanted: int, got: int, library: bool = False) -> str:
    """What an error says of a call with the wrong number of arguments; a function of the ``library`` may take several
    numbers of them."""
    who = f"`{name}`" if name else "this function"
    head, _, number = (name or "").rpartition("/")
    plain = head if head and number.isdigit() else name
    counts = {wanted}
    if library:
        who = f"`{plain}`"
        counts.update(k for k in range(1, 10) if f"{plain}/{k}" in prelude_texts())
    *most, last = map(str, sorted(counts))
    said = f"{', '.join(most)} or {last}" if most else last
    return f"{who} takes {said} argument{'s' * (said != '1')}, not {got}"
