"""The specialiser: a model and one signature => a typed program.

A partial evaluator over surface core, as Myia's inference and specialisation in one linear pass: functions, tuples
and known constants are values at compile time and leave no trace; numbers and arrays become typed operations. Every
call of a known function is inlined. Derivative operators are expanded where they are applied, innermost first, on
fresh variables: no tags at run time, no perturbation confusion.

``(let [g (fn [f x] (f (f x)))] (g sin y))``  =>  ``t = sin y; r = sin t``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from .builder import Builder, Scope, integer, is_one, rank_of, type_of, wider, without_rules
from .core import (
    BOOL,
    INT,
    REAL,
    UNIT,
    Arr,
    Atom,
    Block,
    Call,
    Case,
    Check,
    Const,
    Data,
    Global,
    If,
    Lambda,
    Node,
    Program,
    Rec,
    Scalar,
    Var,
    While,
    all_binds,
    blocks_of,
    nodes,
)
from .data import Data as PythonData
from .data import Inl, Inr
from .errors import (
    BoundsError,
    DerivativeError,
    HyadError,
    ModelTypeError,
    NotCompiled,
    Source,
    Span,
    UnboundError,
    hint_for,
)
from .families import Again, Anew, Apart, ArrayOf, Bottom, Endless, Facts, Family, sort_of
from .flow import RUNS, Dead, Flow, Frame, is_array, is_reference, kinds
from .forms import Form, prelude_texts
from .names import mangled
from .primitives import PRIMITIVES
from .reader import SPECIAL
from .signature import DataSpec, Inline
from .values import (
    CLOSED,
    FUNCTIONS,
    NIL,
    TABLE_2,
    ArrayOfTuples,
    Builtin,
    Cell,
    Choice,
    Closure,
    Constructing,
    Derived,
    Env,
    Function,
    Later,
    Part,
    Place,
    Pointwise,
    References,
    Shape,
    TupleValue,
    Value,
    captures,
    describe,
    flatten,
    halved,
    nothing,
    same_tree,
    unflatten,
)

#: Operators from functions to functions (DESIGN section 2); ``derive`` expands them.
OPERATORS = frozenset("D grad value-and-grad jacobian hessian jvp vjp hvp value-and-deriv".split()) | TABLE_2.keys()
COMPARISONS = frozenset({"<", "<=", ">", ">=", "=", "!="})
CHAINED = frozenset({"+", "*", "-", "/", "min", "max"})
RECURSION_LIMIT = 500
UNROLLED = 32  # a loop of so many steps at most that gives derivatives of functions is written out
DIM_NAMES = ("n", "m", "k", "l", "p", "q")

TYPES = "types are Real, Int, Bool, (Vec n), (Mat n m), (Arr Real n m k), (Tuple ..) and what defdata defines"

Spec = Any  # Scalar | Arr with dims int | str | None | Node of Specs | None (unknown)
Spans = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Named:
    """A data type's name as an annotation."""

    name: str


class _Widen(Exception):
    """An accumulator that began as an integer becomes a real: the loop is specialised again."""

    def __init__(self, positions: list[int]) -> None:
        self.positions = positions


# ------------------------------------------------------------------------------------------ signatures


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
        if rest and good and (wanted is None or len(rest) == wanted):
            return Arr(elem, tuple(None if d.value == "None" else d.value for d in rest))
    if form.kind == "sym" and form.value[:1].isupper() and form.value.isidentifier():
        return Named(form.value)
    if head == "Tuple":
        return Node(tuple(read_annotation(f) for f in form.value[1:]))
    raise ModelTypeError(
        f"`{form}` is not a type",
        form.span,
        TYPES,
    )


def merge_specs(annotation: Spec, actual: Spec, span: Span | None, name: str) -> Spec:
    """The annotation, with what it leaves open taken from the actual argument."""
    if annotation is None:
        return actual
    if actual is None:
        return annotation

    def fail() -> ModelTypeError:
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
        items = tuple(merge_specs(a, b, span, name) for a, b in zip(annotation.items, actual.items))
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
    if isinstance(spec, Arr):
        short = {1: "Vec", 2: "Mat"}.get(spec.rank) if spec.elem == REAL else None
        return f"({short or f'Arr {spec.elem}'} {' '.join('_' if d is None else str(d) for d in spec.dims)})"
    if isinstance(spec, Named):
        return spec.name
    if isinstance(spec, Node):
        return "(Tuple " + " ".join(map(spec_text, spec.items)) + ")" if spec.items else "None"
    return str(spec)


def dim_names(spec: Spec) -> list[str]:
    """The names of sizes in an annotation."""
    if isinstance(spec, Node):
        return [d for item in spec.items for d in dim_names(item)]
    return [d for d in spec.dims if isinstance(d, str)] if isinstance(spec, Arr) else []


def parameters(function: Function) -> list[tuple[str, Spec, Span | None]] | None:
    """Name, annotation and place of each parameter of a function; None where it takes any number."""
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
            return inner + [(prefix + name, spec, span) for name, spec, span in inner]
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


class Specialiser(Flow):
    """One specialisation: the builder, and what of the model is being inlined."""

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self.facts = Facts()
        self.globals_read: set[str] = set()
        self.namespaces: set[int] = set()  # the modules that they were looked up in
        self.start()

    def start(self) -> None:
        super().start()
        self.b = Builder(self.plain)
        self.dims: dict[str, Var] = {}
        self.dims_named: set[str] = set()  # by annotations: not to be given to sizes without a name
        self.params: list[Var] = []
        self.library: str | None = None  # the prelude function that the user called and that is being inlined
        self.result_names: tuple[str, ...] = ()  # of the gradient taken last
        self.gave: dict[tuple, tuple[Scope, Value]] = {}  # what calls inside a recursion gave, and where
        self.descending: set[tuple] = set()  # the calls of prelude functions that are being inlined
        self.fast = False  # whether constants are soft: inside a :fast-math model
        self.unrolled = True  # whether loops of known trip count are written out before they are differentiated
        self.factor = False  # whether gradients keep the factors of sums apart (see reverse.Reverse)
        self.encoding = "record"  # what stands between forward and backward code (see reverse.Reverse)
        self.mistakes: list[tuple[Value, HyadError]] = []  # of data that holds no number, if it ends so

    # ------------------------------------------------------------------------------------- programs

    def program(
        self, function: Function, specs: Sequence[Spec], name: str, span: Span | None = None, doc: str | None = None
    ) -> Program:
        if isinstance(function, Closure):
            self.bound(function)
        for _ in range(RUNS):
            self.facts.changed = self.facts.stale = False
            try:
                program = self.attempt(function, specs, name, span, doc)
                if not self.facts.changed:
                    for value, error in self.mistakes:
                        if not numeric(self.family_of(value)):
                            raise error
                    return program
            except (Again, Anew, Bottom):
                if not self.facts.changed:  # another run would find the same
                    raise NotCompiled(f"the types of `{name}` could not be inferred", span) from None
            except Endless as endless:
                span = endless.args[0] or span
                break
            except Dead as dead:
                raise dead.error() from None
            except HyadError:
                if not self.facts.changed:
                    raise
            self.start()
        hint = "a loop or recursion here gives another kind of thing each time: hyad.run evaluates it"
        raise NotCompiled(f"the types of `{name}` could not be inferred: they grow without end", span, hint)

    def bound(self, closure: Closure) -> None:
        """Raise the mistake of a name that nothing binds, in code that is not called as well."""
        scope, self.scope = self.scope, closure.scope
        for bind in all_binds(closure.function.body):
            op = bind.op
            names = [op.fn, *op.args] if isinstance(op, Call) else []
            for name in [*names, *(x for block in blocks_of(op) for x in block.results)]:
                if isinstance(name, Global) and not self.scope(name.name)[0] and name.name not in SPECIAL:
                    try:
                        self.resolve(name)
                    except UnboundError as error:
                        error.hint = size_named(closure.function, name.name) or error.hint
                        raise
        self.scope = scope  # type: ignore[method-assign]

    def attempt(
        self, function: Function, specs: Sequence[Spec], name: str, span: Span | None, doc: str | None
    ) -> Program:
        """The program as far as the facts that are known so far allow."""
        known = parameters(function)
        if known is not None and len(known) != len(specs):
            raise ModelTypeError(arity_text(name, len(known), len(specs)), span)
        args: list[Value] = []
        ins = []
        self.dims_named = {d for _, annotation, _ in known or () for d in dim_names(annotation)}
        for i, spec in enumerate(specs):
            label, annotation, place = known[i] if known else (f"x{i}", None, None)
            merged = merge_specs(annotation, spec, place, label)
            value = self.parameter(REAL if merged is None else merged, label, place)
            ins.append(flatten(value)[1])
            value = value if annotation is None else self.conform(value, annotation, place, label)
            args.append(self.changeable(value))
        self.b.span = span
        place = function.function.body.place if isinstance(function, Closure) else None
        result = self.outward(self.call(function, args, (None,) * len(args), None), place or span)
        atoms, out = flatten(result, span)
        body = without_rules(Block(self.b.block(), tuple(atoms)))
        gradient = isinstance(function, Derived) and function.operator in ("grad", "value-and-grad")
        names = self.result_names if gradient and len(self.result_names) == len(atoms) else ()
        dims = tuple(self.dims.values())
        return Program(name, tuple(self.params), dims, body, tuple(ins), out, span, doc, names)

    def outward(self, value: Value, span: Span | None) -> Value:
        """A result as it leaves the model. What a model that is run gives and compiled code cannot is NotCompiled."""
        value = self.held(value)
        if isinstance(value, TupleValue) and value.make is not list:
            items = tuple(self.outward(x, span) for x in value.items)
            return TupleValue(items, value.keys, None if value.make is tuple else value.make)
        if is_reference(value) or isinstance(value, References):
            raise ModelTypeError(f"{describe(value)} cannot leave the model", span, "give what it holds: `(deref r)`")
        self.doubted(value)
        data = isinstance(value, Var) and isinstance(value.type, Arr) and isinstance(value.type.elem, Data)
        if data or isinstance(value, (ArrayOfTuples, TupleValue)):
            hint = "give a tuple of arrays, one `build` for each part; or a list"
            raise NotCompiled("this gives an array of other things than numbers", span, hint)
        if isinstance(value, FUNCTIONS):
            raise NotCompiled("this gives a function", span, "call it, and give what it gives")
        if isinstance(value, Var) and isinstance(value.type, Data):
            self.outward_data(value.type, span)
        return value

    def outward_data(self, data: Data, span: Span | None) -> None:
        """Raise what keeps data from leaving the model."""
        todo, seen = [data], {data}
        while todo:
            for c in todo.pop().constructors:
                made = [c.make, *(n.make for n in nodes(c.parts))]
                if "function" in made:
                    raise NotCompiled("this gives data that holds a function", span, "call it, and give what it gives")
                other = [m for m in made if isinstance(m, type) and m not in (tuple, float, bool)]
                for m in other:
                    if not issubclass(m, PythonData):
                        hint = "use a dict, or a type of `defdata`"
                        raise NotCompiled(f"this gives data that holds a {m.__name__}", span, hint)
                inner = {f.type for f in c.fields if isinstance(f.type, Data)} - seen
                seen |= inner
                todo += inner

    def parameter(self, spec: Spec, name: str, span: Span | None) -> Value:
        """Fresh parameters for one argument."""
        if isinstance(spec, Node):
            if not spec.items and spec.keys is None:
                return NIL if spec.make is not None else TupleValue(())
            keys = spec.keys or [str(i) for i in range(len(spec.items))]
            items = tuple(self.parameter(s, f"{name}-{k}", span) for s, k in zip(spec.items, keys))
            return TupleValue(items, spec.keys, spec.make)
        if isinstance(spec, DataSpec):
            spec = self.data_type(spec, name)
        if isinstance(spec, Arr):
            spec = Arr(spec.elem, tuple(self.dim(d) for d in spec.dims))
        var = Var(name, spec, span, True)
        self.params.append(var)
        return var

    def data_type(self, spec: DataSpec, name: str) -> Data:
        """The family that an argument's data is of."""
        facts = self.facts
        families = {p: facts.family(("argument", name, p), p[-1], p.count(p[-1])) for p in spec.families()}

        inline = {path: fields for path, kind, fields in spec.rows if isinstance(kind, Inline)}

        def target(held: Any) -> Any:
            if isinstance(held, tuple) and held in inline:
                return Apart(tuple(map(target, inline[held])), held[-1].keys, held[-1].make)
            if isinstance(held, tuple):
                return facts.find(families[held].data)
            if held == "nil":
                return Apart((), None, nothing)
            return ArrayOf(held.elem, tuple(f"n{k}" for k in range(held.rank))) if isinstance(held, Arr) else held

        for path, kind, fields in sorted(spec.rows, key=lambda row: (len(row[0]), str(row[1]))):
            if isinstance(kind, Inline):
                continue
            if kind in ("number", "truth") or isinstance(kind, Arr):
                row = target(fields[0])
            elif kind == "nil":
                row = Apart((), None, nothing)
            else:
                keys, make = (None, tuple) if kind == "cons" else (kind.__match_args__, kind)
                row = Apart(tuple(map(target, fields)), keys, make)
            facts.member(facts.of_data[facts.find(families[path].data)], row)
        return facts.find(families[spec.root].data)

    def dim(self, d: int | str | None) -> Atom:
        if isinstance(d, int):
            return integer(d)
        if d is None:
            taken = self.dims.keys() | self.dims_named
            d = next((x for x in DIM_NAMES if x not in taken), f"n{len(taken)}")
        if d not in self.dims:
            self.dims[d] = Var(d, INT, None, True)
            self.b.sizes.add(self.dims[d])
        return self.dims[d]

    # -------------------------------------------------------------------------------------- regions

    def block(self, block: Block, env: Env) -> Value:
        b = self.b
        for bind in block.binds:
            op = bind.op
            self.site = bind
            if self.library is None:  # inside the prelude the place is the user's call
                b.span = bind.span or b.span
            if type(op) is Rec:
                for var, f in zip(bind.vars, op.functions):
                    env.values[var] = Closure(f, env, self.scope, bind)
                continue
            (var,) = bind.vars
            if type(op) is Call:
                value = self.surface_call(op, env, var)
            elif type(op) is Lambda:
                value = Closure(op, env, self.scope)
            elif type(op) is If:
                value = self.if_(op, env, var)
            elif type(op) is Case:
                value = self.case(op, env, var)
            else:
                assert type(op) is While
                self.while_(op, env)
                value = NIL
            env.values[var] = value
        return self.value(block.results[0], env)

    def value(self, atom: Atom, env: Env) -> Value:
        if type(atom) is Var:
            return env[atom]
        if type(atom) is Const:
            made = constant(atom.value, self.b.span)
            if (self.fast or self.scope is Specialiser.scope) and made is not NIL and type(made) is Const:
                return Const(made.value, made.type, soft=True)  # the prelude's own, or a :fast-math model's
            return made
        assert isinstance(atom, Global)
        return self.resolve(atom)

    def resolve(self, name: Global) -> Value:
        """What a free name means: the user's module first, then the language."""
        self.globals_read.add(name.name)
        if hasattr(self.scope, "namespace"):
            self.namespaces.add(id(self.scope.namespace) if self.scope.cells is None else id(self.scope))
        found, value = self.scope(name.name)
        builtin = name.name in PRIMITIVES or name.name in BUILTINS or name.name in OPERATORS
        if found:
            known = self.python_value(value, name)
            if known is not None and not (builtin and isinstance(known, Builtin)):
                return known
            if not builtin:
                if known is not None:
                    return known
                what = "function" if callable(value) else type(value).__name__
                hint = "make it a model with defmodel, or a primitive with defprim"
                raise DerivativeError(
                    f"`{name.name}` is a Python {what}, which hyad cannot look into",
                    name.span,
                    hint if callable(value) else "models use numbers, NumPy arrays, tuples, and other models",
                )
        if builtin:
            return Builtin(name.name)
        function = prelude(name.name)
        if function is not None:
            return function
        if name.name in SPECIAL:
            raise ModelTypeError(f"`{name.name}` is a form, not a value", name.span, f"write `({name.name} ...)`")
        raise UnboundError(f"nothing binds `{name.name}`", name.span, similar(name))

    def python_value(self, value: Any, name: Global) -> Value | None:
        """A value of the user's module as the model sees it; None for what models cannot use."""
        if isinstance(value, type) and issubclass(value, PythonData):
            return Constructing(value) if value.name else None
        made = getattr(value, "hyad_value", None)
        if made is not None:
            return made()
        if isinstance(value, bool | numbers.Real | np.generic) if not isinstance(value, type) else False:
            return constant(value.item() if isinstance(value, np.generic) else value, name.span)
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "fiub":
                raise ModelTypeError(f"`{name.name}` is an array of {value.dtype}, not of numbers", name.span)
            if value.size > 4096 or value.size == 0:
                raise ModelTypeError(
                    f"`{name.name}` has {value.size} elements: too many to be written into the model"
                    if value.size
                    else f"`{name.name}` is an empty array",
                    name.span,
                    "pass it as an argument",
                )
            return self.array_constant(value)
        if isinstance(value, tuple):
            parts = [self.python_value(x, name) for x in value]
            return None if any(p is None for p in parts) else TupleValue(tuple(parts))
        known = numpy_name(value)
        return Builtin(known) if known in PRIMITIVES else prelude(known) if known is not None else None

    def array_constant(self, value: np.ndarray) -> Atom:
        items = [self.array_constant(x) if value.ndim > 1 else constant(x.item()) for x in value]
        return self.b.array(items)

    # ---------------------------------------------------------------------------------------- calls

    def surface_call(self, op: Call, env: Env, var: Var) -> Value:
        if isinstance(op.fn, Global) and op.fn.name == ".":
            return self.field(self.value(op.args[0], env), op.args[1].value)  # type: ignore[union-attr]
        fn = self.look(self.value(op.fn, env))
        kept, given = None, op.args
        if is_checkpointed(op):
            if not isinstance(fn, Builtin) or fn.name not in ("fold", "ifold"):
                raise not_checkpointed(op)
            given = op.args[:-2]
            kept = Kept(self.snapshots(self.value(op.args[-1], env), op.spans[-1]))
        args = [self.value(a, env) for a in given]
        if kept is not None:
            args.append(kept)  # type: ignore[arg-type]
        if not isinstance(fn, FUNCTIONS) and self.family_of(fn) is not None:
            return self.call_data(fn, args, op.spans, var)
        if not isinstance(fn, FUNCTIONS):
            raise ModelTypeError(
                f"{describe(fn)} is called as a function", self.b.span, "the head of a call is a function"
            )
        takes_wrt = isinstance(fn, Builtin) and fn.name in OPERATORS
        for k, (a, span) in enumerate(zip(args, op.spans)):
            if isinstance(a, Wrt) and not (takes_wrt and k == len(args) - 1 and k > 0):
                raise ModelTypeError("`:wrt` ends the call of a derivative operator", span, "`(grad f :wrt x)`")
        return self.call(fn, args, op.spans if self.library is None else (None,) * len(args), var)

    def snapshots(self, value: Value, span: Span | None) -> Atom:
        """How many states ``:checkpoint`` keeps of a loop: at least one."""
        n = self.integer_arg(self.look(value), "the number of snapshots", span)
        if type(n) is Const and n.value < 1:
            hint = "one state is the least, what the loop starts with"
            raise ModelTypeError(f"`:checkpoint {n.value}` keeps nothing", span, hint)
        self.b.check(Check("<=", integer(1), n, "`:checkpoint` keeps one state at least"), integer(1), n)
        return n

    def call(self, fn: Function, args: Sequence[Value], spans: Spans, var: Var | None) -> Value:
        """Apply a function value; ``var`` is the surface variable that names the result."""
        fn = self.look(fn)
        if isinstance(fn, Builtin):
            return self.builtin(fn.name, list(args), spans, var)
        if isinstance(fn, Closure):
            if fn.scope is Specialiser.scope and len(args) != len(fn.function.params):
                fn = prelude(f"{fn.name}/{len(args)}") or fn
            counts = fn.scope is Specialiser.scope and not any(self.family_of(a) is not None for a in args)
            if counts and fn.function not in self.facts.recursive:
                call = (fn.function, *map(shape_known, args), fn.env)
                if call not in self.descending:  # recursion on ranks and known integers, which ends by itself
                    self.descending.add(call)
                    try:
                        return self.inline(fn, args)
                    finally:
                        self.descending.discard(call)
            if self.is_recursive(fn.function):
                return self.call_recursive(fn, self.arguments(fn, args), var)
            if self.active.get(fn.function) and fn.env is None:
                return self.inline_once(fn, args)
            if self.active.get(fn.function) or fn.scope is Specialiser.scope:
                return self.inline(fn, args)
            return self.inline_or_call(fn, args, var)
        if isinstance(fn, Constructing):
            return self.construct(fn, args)
        if self.family_of(fn) is not None:
            return self.call_data(fn, args, spans, var)
        if isinstance(fn, Derived):
            from .derive import apply_operator

            return apply_operator(self, fn, list(args), spans)
        if isinstance(fn, Part):
            whole = self.call(fn.function, args, spans, var)
            for k in fn.path:
                whole = self.look(whole)
                assert isinstance(whole, TupleValue)
                whole = whole.items[k]
            return whole
        if isinstance(fn, Later):
            result = self.call(fn.function, args, spans, var)
            if not isinstance(self.look(result), FUNCTIONS) and self.family_of(result) is None:
                raise ModelTypeError(f"{describe(result)} is called as a function", self.b.span)
            return self.call(result, fn.args, spans, var)
        if isinstance(fn, Pointwise):
            d = fn.derived
            return self.call(replace(d, function=Later(d.function, tuple(args))), fn.at, spans, var)
        return self.branches(
            fn.cond, lambda: self.call(fn.then, args, spans, var), lambda: self.call(fn.orelse, args, spans, var), var
        )

    def call_data(self, fn: Value, args: Sequence[Value], spans: Spans, var: Var | None) -> Value:
        """Call a function that is only known at run time: one arm for each that it may be."""

        def apply(known: Value) -> Value:
            if isinstance(known, FUNCTIONS):
                return self.call(known, args, spans, None)
            return self.impossible(f"{describe(known)} is called as a function")

        family = self.family_of(fn)
        if family is not None and any(grows(m.make, m.items, family.data) for m in family.members.values()):
            raise NotCompiled(
                "the order of this derivative is only known when the model runs",
                self.b.span,
                "hyad.run evaluates it; a compiled model differentiates a known number of times",
            )
        return self.cases(fn, apply, var)  # type: ignore[arg-type]

    def construct(self, fn: Constructing, args: Sequence[Value]) -> Value:
        """``(Node l r)``."""
        keys = fn.kind.__match_args__  # type: ignore[attr-defined]
        if len(args) != len(keys):
            fields = " ".join(fn.kind.fields if hasattr(fn.kind, "fields") else keys)  # type: ignore[attr-defined]
            raise ModelTypeError(arity_text(fn.name, len(keys), len(args)), self.b.span, f"`({fn.name} {fields})`")
        return TupleValue(tuple(args), keys, fn.kind)

    def arguments(self, closure: Closure, args: Sequence[Value]) -> list[Value]:
        """The arguments of a call as the parameters are declared."""
        f = closure.function
        if len(args) != len(f.params):
            raise ModelTypeError(
                arity_text(f.name, len(f.params), len(args)), self.b.span, None,
                [("it is defined here", f.span)] if f.span else [],
            )  # fmt: skip
        notes = f.annotations or (None,) * len(f.params)
        return [
            self.conform(a, read_annotation(n), n.span, p.name) if n is not None else a
            for a, n, p in zip(args, notes, f.params)
        ]

    def body(self, f: Lambda, env: Env, args: Sequence[Value]) -> Value:
        self.active[f] = [self.branching]
        env.values.update(zip(f.params, args))
        return self.block(f.body, env)

    def inline_once(self, closure: Closure, args: Sequence[Value]) -> Value:
        """A model that calls itself with what it was called with before, where that can be seen from here, gives what
        it gave: it closes over nothing."""
        if not all(isinstance(a, (Const, Var)) for a in args):
            return self.inline(closure, args)
        key = (closure.function, *map(self.b.key, args))  # type: ignore[arg-type]
        scope, value = self.gave.get(key, (None, None))
        if scope is None or scope not in self.b.scopes:
            value = self.inline(closure, args)
            if isinstance(value, (Const, Var)):
                self.gave[key] = self.b.scopes[-1], value
        return value  # type: ignore[return-value]

    def inline(self, closure: Closure, args: Sequence[Value]) -> Value:
        f = closure.function
        call_span, site, frame = self.b.span, self.site, self.frame
        if len(args) != len(f.params):
            library = closure.scope is Specialiser.scope
            notes = [("it is defined here", f.span)] if f.span and not library else []
            hint = f"`({f.name} {' '.join(p.name for p in f.params)})`" if library else None
            raise ModelTypeError(arity_text(f.name, len(f.params), len(args)), call_span, hint, notes)
        levels = self.active.setdefault(f, [])
        if len(levels) >= RECURSION_LIMIT:
            who = f"`{f.name}`" if f.name else "this function"
            raise HyadError(
                f"{who} calls itself without an end", call_span, "a branch that does not call it ends the recursion"
            )
        levels.append(self.branching)
        self.frame = Frame(frame, site, f)
        fast, self.fast = self.fast, self.fast or f.fast
        scope, self.scope = self.scope, closure.scope
        library = self.library
        if closure.scope is Specialiser.scope and any(map(self.boxed_array, args)):
            return self.with_arrays(args, lambda known: self.inline(closure, known), None)
        self.library = (library or closure.name) if closure.scope is Specialiser.scope else None
        env = Env(closure.env)
        for p, a, note in zip(f.params, args, f.annotations or (None,) * len(f.params)):
            env.values[p] = self.conform(a, read_annotation(note), note.span, p.name) if note is not None else a
        try:
            return self.block(f.body, env)
        except HyadError as error:
            inside = f"`{self.library}`"
            if self.library is not None and library is None and inside not in error.message:
                error.notes += ((f"this is inside {inside}, {f.doc}", None),)
            raise
        finally:
            levels.pop()
            self.fast = fast
            self.scope, self.library = scope, library
            self.frame, self.site = frame, site
            self.b.span = call_span

    @staticmethod
    def scope(name: str) -> tuple[bool, Any]:
        """Resolves a global name; replaced while a closure of some module is being inlined."""
        return False, None

    def conform(self, value: Value, spec: Spec, span: Span | None, name: str) -> Value:
        """An argument of an inner call against the parameter's annotation."""

        def fail() -> ModelTypeError:
            return ModelTypeError(
                f"`{name}` is declared {spec_text(spec)} but the argument is {describe(value)}",
                span,
                notes=[("in this call", self.b.span)] if self.b.span else [],
            )

        if isinstance(value, FUNCTIONS):
            raise fail()
        value = self.held(value)
        if isinstance(spec, Named):
            family = self.family_of(value)
            sort = family.sort if family is not None else getattr(value, "make", None)
            if not isinstance(sort, type) or spec.name not in (c.__name__ for c in sort.__mro__):
                raise fail()
            return value
        if isinstance(spec, Node):
            if not isinstance(value, TupleValue) or len(value.items) != len(spec.items):
                raise fail()
            items = tuple(self.conform(v, s, span, name) for v, s in zip(value.items, spec.items))
            return TupleValue(items, value.keys, value.make)
        if isinstance(value, (TupleValue, ArrayOfTuples)) or value is NIL:
            raise fail()
        t = type_of(value)
        if isinstance(spec, Arr):
            if not isinstance(t, Arr) or t.rank != spec.rank:
                raise fail()
            for d, wanted in zip(t.dims, spec.dims):
                if isinstance(wanted, int) and not self.b.require_equal(
                    d, integer(wanted), f"`{name}` is declared {spec_text(spec)}"
                ):
                    raise fail()
            if t.elem == INT and spec.elem == REAL:
                return self.reals(value)
            if t.elem != spec.elem:
                raise fail()
            return value
        if spec == REAL and t == INT:
            return self.b.to_real(value)
        if t != spec:
            raise fail()
        return value

    def reals(self, atom: Atom) -> Atom:
        """Integers, or an array of them, as reals."""
        t = type_of(atom)
        if isinstance(t, Arr) and t.elem == INT:
            return self.b.elementwise(self.b.to_real, atom)
        return self.b.to_real(atom) if t == INT else atom

    # ------------------------------------------------------------------------------------- branches

    def if_(self, op: If, env: Env, var: Var) -> Value:
        cond = self.number_in(self.value(op.cond, env))
        if not isinstance(cond, (Const, Var)) or type_of(cond) != BOOL:
            place = op.place if self.library is None else None
            raise ModelTypeError(
                f"the condition is {describe(cond)}", place or self.b.span, hint_for("condition", describe(cond))
            )
        return self.branches(cond, lambda: self.block(op.then, env), lambda: self.block(op.orelse, env), var)

    def unify_branches(self, k: int, x: Atom, y: Atom, one: Any, two: Any, span: Span | None) -> None:
        """Give result ``k`` of both branches one type."""
        b, tx, ty = self.b, type_of(x), type_of(y)
        for (scope, atoms), mine, other in ((one, tx, ty), (two, ty, tx)):
            elem = mine.elem if isinstance(mine, Arr) else mine
            wanted = other.elem if isinstance(other, Arr) else other
            if elem == INT and wanted == REAL:
                with b.region(scope):
                    atoms[k] = self.reals(atoms[k])
        tx, ty = type_of(one[1][k]), type_of(two[1][k])
        if isinstance(tx, Arr) and isinstance(ty, Arr) and tx.rank == ty.rank and tx.elem == ty.elem:
            outer_x, outer_y = b.type_outside(tx, one[0]), b.type_outside(ty, two[0])
            if all(
                b.require_equal(d, e, "the branches of an if give arrays of different shapes")
                for d, e in zip(outer_x.dims, outer_y.dims)
            ):
                return
        elif tx == ty:
            return
        raise ModelTypeError(
            f"one branch gives {describe(one[1][k])}, the other {describe(two[1][k])}",
            span,
            "both branches give the same type",
        )

    # ------------------------------------------------------------------------------------- builtins

    def builtin(self, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if name in OPERATORS:
            return self.operator(name, args, spans, var)
        if name == "get" and args and (is_array(args[0]) or isinstance(args[0], References)):
            found = self.row(args, spans)
            if found is not None:
                return found
        if name == "array":
            args = list(map(self.copied, args))
        if name != "set-at!":
            keeps = KEEPING.get(name, ())
            args = [a if k in keeps and is_array(a) else self.look(a) for k, a in enumerate(args)]
            if name not in STRUCTURE and any(map(self.boxed_array, args)):
                return self.with_arrays(args, lambda known: self.builtin(name, known, spans, None), var)
        handler = BUILTINS.get(name)
        if handler is not None:
            value = handler(self, args, spans, var)
        else:
            value = self.arithmetic(name, args, spans, var)
        if self.facts.mutates and name not in ("get", "fst", "snd", "car", "cdr", "deref"):
            return self.changeable(value) if type(value) is Var else value
        return value

    def operator(self, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
        wrt = None
        if args and isinstance(args[-1], Wrt):
            wrt, args, spans = args[-1].wrt, args[:-1], spans[:-1]
        if not args or not isinstance(args[0], FUNCTIONS) and self.family_of(args[0]) is None:
            what = describe(args[0]) if args else "nothing"
            place = spans[0] if args and spans and spans[0] else self.b.span
            raise DerivativeError(f"`{name}` takes a function, not {what}", place, f"`({name} (fn [x] ...))`")
        derived = Derived(name, args[0], wrt)
        return derived if len(args) == 1 else self.call(derived, args[1:], spans[1:], var)

    def arithmetic(self, name: str, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """A primitive on numbers, or element by element on arrays of one shape."""
        row = PRIMITIVES[name]
        atoms = [self.operand(name, a, s) for a, s in zip(args, spans or (None,) * len(args))]
        if name == "-" and len(atoms) == 1:
            name, row = "neg", PRIMITIVES["neg"]
        if name == "/" and len(atoms) == 1:
            atoms.insert(0, integer(1))
        spans = spans if len(spans) == len(atoms) else (None,) * len(atoms)
        if name in COMPARISONS and len(atoms) > 2:
            pairs = [self.combine(name, atoms[k : k + 2], None, spans[k : k + 2]) for k in range(len(atoms) - 1)]
            result = pairs[0]
            for p in pairs[1:]:
                result = self.combine("and", [result, p], None, ())
            return result
        if name in CHAINED and len(atoms) > 2:
            for k, x in enumerate(atoms[1:-1], 1):
                atoms[0] = self.combine(name, [atoms[0], x], None, (spans[0] if k == 1 else None, spans[k]))
            atoms, spans = [atoms[0], atoms[-1]], (None, spans[-1])
        elif name in ("min", "max") and len(atoms) == 1 and isinstance(type_of(atoms[0]), Arr):
            return self.call(prelude(f"a{name}"), atoms, spans, var)  # type: ignore[arg-type, return-value]
        elif name in ("+", "*", "min", "max") and len(atoms) == 1:
            return atoms[0]
        elif name in ("+", "*") and not atoms:
            return integer(0 if name == "+" else 1)
        if len(atoms) != len(row.params):
            raise ModelTypeError(arity_text(name, len(row.params), len(atoms)), self.b.span)
        return self.combine(name, atoms, var, spans)

    def number_in(self, value: Value, name: str | None = None) -> Value:
        """The number, truth value or array that data holds: a failing check where it holds none."""
        value = self.look(value)
        if self.family_of(value) is None:
            return value
        self.doubted(value)
        what = f"`{name}` works on numbers and arrays; this is {{}}" if name else "{} where a number is needed"
        apart = self.expose(value, lambda v: isinstance(v, (Const, Var)) and v is not NIL, what)  # type: ignore[arg-type]
        if apart is not None:
            return apart
        possible = numeric(self.family_of(value))
        if not possible:
            self.mistakes.append((value, ModelTypeError(what.format(describe(value)), self.b.span)))

        def take(known: Value) -> Value:
            if isinstance(known, (Const, Var)) and known is not NIL:
                return known
            return self.impossible(what.format(describe(known if possible else value)))

        return self.cases(value, take, None)  # type: ignore[arg-type]

    def number_among(self, value: Value) -> Value:
        """The number that data holds, where it can hold one."""
        family = self.family_of(value)
        numeric = family is not None and any(m.make is float for m in family.members.values())
        return self.number_in(value) if numeric else value

    def operand(self, name: str, value: Value, span: Span | None) -> Atom:
        if isinstance(value, Var) and isinstance(value.type, Data):
            before, self.b.span = self.b.span, span or self.b.span
            value = self.number_in(value, name)
            self.b.span = before
        if isinstance(value, (Const, Var)) and value is not NIL and type_of(value) != UNIT:
            return value
        what = f"`{name}` works on numbers and arrays; this is {describe(value)}"
        raise ModelTypeError(what, span or self.b.span, hint_for("operand", describe(value)))

    def combine(self, name: str, atoms: list[Atom], var: Var | None, spans: Spans) -> Atom:
        b = self.b
        hint, given = (var.name, var.given) if var is not None else (None, False)
        arrays = [a for a in atoms if isinstance(type_of(a), Arr)]
        if self.library is not None and b.plain and all(type(a) is Const and a.type != REAL for a in atoms):
            known = b.fold(name, *atoms)  # type: ignore[arg-type]
            if known is not None:  # ranks, and recursion on them, are for now
                return known
        if arrays:
            self.rows_fit(arrays, name, [s for a, s in zip(atoms, spans) if isinstance(type_of(a), Arr)])
            return b.elementwise(lambda *xs: self.combine(name, list(xs), None, spans), *atoms, hint=hint)
        if (
            name == "**"
            and type(atoms[1]) is Const
            and type_of(atoms[1]) == REAL
            and float(atoms[1].value).is_integer()
        ):
            if abs(atoms[1].value) < 2**31:
                atoms = [atoms[0], integer(int(atoms[1].value))]
        if PRIMITIVES[name].result(tuple(type_of(a) for a in atoms)) is None:
            kinds = " and ".join(describe(a) for a in atoms)
            raise ModelTypeError(f"`{name}` does not work on {kinds}", b.span, None, facts_at(atoms, spans))
        return b.prim(name, *atoms, hint=hint, given=given)

    def blamed(self, name: str) -> str:
        """What an error says went wrong: inside the prelude the function that the user called."""
        return self.library or name

    def same_shape(self, arrays: Sequence[Atom], name: str, spans: Spans = ()) -> None:
        first, name = type_of(arrays[0]), self.blamed(name)
        for k, other in enumerate(arrays[1:], 1):
            t = type_of(other)
            if t.rank != first.rank or not all(
                self.b.require_equal(d, e, f"the arrays in `{name}` have different shapes")
                for d, e in zip(first.dims, t.dims)
            ):
                notes = facts_at([arrays[0], other], [spans[0], spans[k]]) if len(spans) == len(arrays) else ()
                raise ModelTypeError(
                    f"`{name}` of {describe(arrays[0])} and {describe(other)}",
                    self.b.span,
                    "the shapes must be equal",
                    notes,
                )

    def rows_fit(self, arrays: Sequence[Atom], name: str, spans: Spans = ()) -> None:
        """Arrays are combined element by element; one of lower rank with each row, and row of rows, of the others, and
        along an axis whose size is known to be 1 the one row with all of the others'."""
        whole = max(arrays, key=lambda a: type_of(a).rank)
        message = f"the arrays in `{self.blamed(name)}` have different shapes"
        for k in range(1, type_of(whole).rank + 1):
            sizes = [type_of(a).dims[-k] if type_of(a).rank >= k else None for a in arrays]
            size = wider(sizes)
            for a, n in zip(arrays, sizes):
                if n is None or is_one(n) or self.b.require_equal(size, n, message):
                    continue
                widest = arrays[next(j for j, m in enumerate(sizes) if m is size)]
                one, other = (a, widest) if arrays[0] is a else (widest, a)
                same = type_of(one).rank == type_of(other).rank
                hint = "the shapes must be equal" if same else "each row must have the shape of the other"
                at = [spans[arrays.index(x)] for x in (one, other)] if len(spans) == len(arrays) else ()
                notes = facts_at([one, other], at)
                text = f"`{self.blamed(name)}` of {describe(one)} and {describe(other)}"
                raise ModelTypeError(text, self.b.span, hint, notes)

    def integer_arg(self, value: Value, what: str, span: Span | None) -> Atom:
        if isinstance(value, (Const, Var)) and value is not NIL:
            if type_of(value) == INT:
                return value
            if type(value) is Const and type_of(value) == REAL and float(value.value).is_integer() and value.soft:
                return integer(int(value.value))
        hint = hint_for("index" if what == "this index" else "size", describe(value))
        raise ModelTypeError(f"{what} is {describe(value)}, not an integer", span or self.b.span, hint)

    # ---- tuples and arrays

    def tuple_(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        return TupleValue(tuple(args))

    def half(self, name: str, at: int, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``car``, ``cdr``, ``fst`` and ``snd``: of a pair, which is no constructor of a data type."""
        self.arity(name, args, 1)
        a, place = args[0], (spans[0] if spans else None) or self.b.span
        if isinstance(a, TupleValue) and isinstance(a.make, type) and issubclass(a.make, PythonData):
            raise ModelTypeError(f"the parts of {describe(a)} by position", place, "`match` and `case` take it apart")
        if a is NIL and not (self.branching or self.making):
            raise ModelTypeError(f"`{name}` of nil, the empty list", place, "ask `(null? l)` first")
        number = isinstance(a, (Const, Var)) and a is not NIL and self.family_of(a) is None
        if number and (name in ("car", "cdr") or not isinstance(type_of(a), Arr)) or isinstance(a, CLOSED):
            raise ModelTypeError(f"`{name}` of {describe(a)}", place, halved(name))
        return self.get([a, integer(at)], [*spans, None], var)

    def array(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if not args:
            raise ModelTypeError("an array has at least one element", self.b.span, "`(zeros 0)` has none")
        if all(isinstance(a, TupleValue) for a in args):
            return self.array_of_tuples(args, spans, var)
        if all(isinstance(a, CLOSED) or self.gives_function(a) for a in args):
            return TupleValue(tuple(args), None, list)  # known by its elements; a run-time subscript chooses
        atoms = [self.operand("[...]", a, s) for a, s in zip(args, spans)]
        arrays = [isinstance(type_of(a), Arr) for a in atoms]
        if any(arrays):
            if not all(arrays):
                pair = [0, arrays.index(not arrays[0])]
                raise ModelTypeError(
                    "this array mixes numbers and arrays",
                    self.b.span,
                    "all elements have one shape",
                    facts_at([atoms[k] for k in pair], [spans[k] for k in pair]),
                )
            self.same_shape(atoms, "[...]", spans)
        if any(elem_of(a) == REAL for a in atoms):
            atoms = [self.reals(a) for a in atoms]
        if len({elem_of(a) for a in atoms}) > 1:
            pair = [0, next(k for k, a in enumerate(atoms) if elem_of(a) != elem_of(atoms[0]))]
            notes = facts_at([atoms[k] for k in pair], [spans[k] for k in pair])
            raise ModelTypeError("this array mixes numbers and truth values", self.b.span, None, notes)
        return self.b.array(atoms, *((var.name, var.given) if var is not None else ()))

    def array_of_tuples(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        flat = [flatten(self.now(a), self.b.span) for a in args]
        if not all(same_tree(flat[0][1], t) for _, t in flat):
            what = "the elements of this array are tuples of different kinds"
            raise NotCompiled(what, self.b.span, "write a list: `(list f g)`")
        columns = [self.array(list(column), (None,) * len(args), None) for column in zip(*(a for a, _ in flat))]
        return ArrayOfTuples(unflatten(flat[0][1], iter(columns)), 1)

    def get(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if len(args) < 2:
            raise ModelTypeError("get takes an array or tuple and an index", self.b.span, "`(get v i)`")
        value, *indices = args
        b = self.b
        if self.family_of(value) is not None:
            return self.part_of_data(value, indices, spans, var)
        if isinstance(value, TupleValue):
            at = indices[0]
            if value.make is list and type(at) is Var:
                return self.one_of(value, at, indices[1:], spans, var)
            if not (type(at) is Const and type_of(at) == INT):
                raise ModelTypeError(
                    "a tuple is subscripted by a literal integer",
                    spans[1] or b.span,
                    "`(get t 0)`; use an array for run-time indices",
                )
            if not -len(value.items) <= at.value < len(value.items):
                raise BoundsError(f"a tuple of {len(value.items)} has no element {at.value}", b.span)
            item = value.items[at.value]
            return item if len(indices) == 1 else self.get([item, *indices[1:]], [None, *spans[2:]], var)
        if isinstance(value, ArrayOfTuples):
            leading, rest = indices[: value.rank], indices[value.rank :]
            atoms, tree = flatten(value.parts)
            parts = [self.get([a, *leading], spans[: 1 + len(leading)], None) for a in atoms]
            part = unflatten(tree, iter(parts))
            if len(leading) < value.rank:
                return ArrayOfTuples(part, value.rank - len(leading))
            return self.get([part, *rest], [None, *spans[1 + len(leading) :]], var) if rest else part
        if not isinstance(value, (Const, Var)) or not isinstance(type_of(value), Arr):
            place = (spans[0] if spans else None) or b.span
            if value is NIL and (self.branching or self.making):  # perhaps nothing comes here
                before, b.span = b.span, place
                part = {0: "first", 1: "second"}.get(getattr(indices[0], "value", None), "part")  # type: ignore[call-overload]
                try:
                    return self.impossible(f"the {part} of None")
                finally:
                    b.span = before
            raise ModelTypeError(f"get of {describe(value)}", place, "get subscripts arrays and tuples")
        t = type_of(value)
        written = b.definitions.get(value) if self.library is not None and type(value) is Var else None
        if written is not None and written.name == "array" and len(indices) == 1 and type(indices[0]) is Const:
            if 0 <= indices[0].value < len(written.args):  # the sizes of an array are for now
                return written.args[indices[0].value]
        if len(indices) > t.rank:
            raise ModelTypeError(f"{len(indices)} subscripts of {describe(value)}", b.span)
        checked = []
        for axis, (i, dim) in enumerate(zip(indices, t.dims)):
            place = (spans[axis + 1] if axis + 1 < len(spans) else None) or b.span
            index = self.integer_arg(i, "this index", place)
            if type(index) is Const and index.value < 0:
                index = b.prim("+", dim, index)
            size = f" of size {dim}" if type(dim) is Const else ""
            text = f"index `{place.text}`" if place is not None else f"index `{index}`"
            if self.library is not None:
                text = f"in `{self.library}`: {f'index `{index}`' if type(index) is Const else 'an index'}"
            if not b.require_index(index, dim, f"{text} is outside axis {axis}{size}"):
                last = dim.value - 1 if type(dim) is Const else dim
                hint = f"indices run from 0 to {last}; negative literals count from the end" if last != -1 else None
                raise BoundsError(f"index {i} is outside an axis of size {dim}", place, hint)
            checked.append(index)
        return b.get(
            value, *checked, hint=var.name if var is not None else None, given=bool(var is not None and var.given)
        )

    def one_of(self, value: TupleValue, at: Value, rest: list[Value], spans: Spans, var: Var | None) -> Value:
        """An element of an array of functions by a run-time subscript."""
        b, place = self.b, (spans[1] if len(spans) > 1 else None) or self.b.span
        index = self.integer_arg(at, "this index", place)
        b.require_index(index, integer(len(value.items)), f"index `{place.text if place else index}` is outside axis 0")

        def pick(k: int) -> Value:
            if k == len(value.items) - 1:
                return value.items[k]
            return self.branches(b.prim("=", index, integer(k)), lambda: value.items[k], lambda: pick(k + 1), None)

        item = pick(0)
        return self.get([item, *rest], [None, *spans[2:]], var) if rest else item

    def part_of_data(self, value: Value, indices: list[Value], spans: Spans, var: Var | None) -> Value:
        """``get``, ``car`` or ``cdr`` of data: of its pair, tuple or array."""

        def part(known: Value) -> Value:
            array = isinstance(known, (Const, Var)) and isinstance(type_of(known), Arr)
            at = indices[0]
            short = isinstance(known, TupleValue) and type(at) is Const and len(known.items) <= at.value
            if isinstance(known, TupleValue) and not short or array:
                return self.get([known, *indices], spans, None)
            name = {0: "first", 1: "second"}.get(getattr(at, "value", None), "part")  # type: ignore[call-overload]
            return self.impossible(f"the {name} of {describe(known)}")

        at = indices[0].value if type(indices[0]) is Const and type_of(indices[0]) == INT else None
        if at is not None:
            what = f"{ {0: 'the first', 1: 'the second'}.get(at, f'part {at}') } of {{}}"
            apart = self.expose(value, lambda v: isinstance(v, TupleValue) and len(v.items) > at, what)
            if apart is not None:
                return self.get([apart, *indices], spans, var)
        return self.cases(value, part, var)  # type: ignore[arg-type]

    def field(self, value: Value, name: str) -> Value:
        value = self.look(value)
        if self.family_of(value) is not None:

            def read(known: Value) -> Value:
                if isinstance(known, TupleValue) and known.keys and mangled(name) in known.keys:
                    return self.field(known, name)
                return self.impossible(f"{describe(known)} has no field `{name}`")

            return self.cases(value, read, None)  # type: ignore[arg-type]
        if isinstance(value, TupleValue) and value.keys and mangled(name) in value.keys:
            return value.items[value.keys.index(mangled(name))]
        if isinstance(value, TupleValue) and value.keys and name in value.keys:
            return value.items[value.keys.index(name)]
        raise ModelTypeError(f"{describe(value)} has no field `{name}`", self.b.span)

    def len_(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("len", args, 1)
        if self.lists(args):
            return self.over_lists("len", [], args, 1)
        return self.shape_of(args[0], "len")[0]

    def shape(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if len(args) == 2:
            dims, axis = self.shape_of(args[0], "shape"), args[1]
            if not (type(axis) is Const and type_of(axis) == INT):
                what = f"`{self.blamed('shape')}` along an axis that is {describe(axis)}"
                raise ModelTypeError(
                    what, spans[1] or self.b.span, "write the axis as a number: 0, 1, or -1 for the last"
                )
            if not -len(dims) <= axis.value < len(dims):
                what = f"`{self.blamed('shape')}`: {describe(args[0])} has no axis {axis.value}"
                axes = f"axes are 0 to {len(dims) - 1}" if len(dims) > 1 else "one axis is 0"
                raise BoundsError(what, spans[1] or self.b.span, f"its {axes}, or -1 for the last")
            return dims[axis.value]
        self.arity("shape", args, 1)
        return TupleValue(self.shape_of(args[0], "shape"))

    def shape_of(self, value: Value, name: str) -> tuple[Atom, ...]:
        if isinstance(value, TupleValue) and name == "len":
            return (integer(len(value.items)),)
        if isinstance(value, ArrayOfTuples):
            return type_of(flatten(value.parts)[0][0]).dims[: value.rank]
        if isinstance(value, References):
            return type_of(self.held(value.array)).dims
        if isinstance(value, (Const, Var)) and isinstance(type_of(value), Arr):
            return type_of(value).dims
        name = self.blamed(name)
        raise ModelTypeError(f"`{name}` of {describe(value)}", self.b.span, f"`{name}` takes an array")

    def rank(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("rank", args, 1)
        if isinstance(args[0], ArrayOfTuples):
            return integer(args[0].rank)
        t = type_of(self.operand("rank", args[0], spans[0] if spans else None))
        return integer(t.rank if isinstance(t, Arr) else 0)

    def constant(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(constant f x ...)``: what ``f`` gives, without derivatives."""
        if not args:
            raise ModelTypeError("constant takes a function and its arguments", self.b.span, "`(constant f x)`")
        fn = self.function_arg(args[0], "constant", spans[0])
        return self.call(fn, [self.stopped(a) for a in args[1:]], (None,) * (len(args) - 1), var)

    def stopped(self, value: Value) -> Value:
        """A value that is a constant to every derivative."""
        atoms, tree = flatten(self.held(value), self.b.span)
        return unflatten(tree, iter([self.b.stop(a) for a in atoms]))

    def ruled(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(ruled f jvp vjp x ...)``: ``(f x ...)``, differentiated by rule.

        ``(jvp x ... y dx ...)`` gives the tangent, ``(vjp x ... y ct)`` the adjoints: of the first arguments, as
        many as ``jvp`` takes tangents. What the rules call may have rules in turn, so that derivatives nest.
        """
        hint = "`(ruled f jvp vjp x)`: jvp takes x, the result and dx; vjp takes x, the result and its cotangent"
        if len(args) < 4:
            raise ModelTypeError("ruled takes a function, two rules and the function's arguments", self.b.span, hint)
        f, jvp, vjp = (self.function_arg(a, "ruled", s) for a, s in zip(args[:3], spans))
        count = len(args) - 3
        known = parameters(jvp)
        moving = count if known is None else len(known) - count - 1
        if not 0 < moving <= count or any(isinstance(r, Closure) and captures(r) for r in (jvp, vjp)):
            raise ModelTypeError("these rules do not fit the function", self.b.span, f"{hint}; and nothing else")
        atoms = [self.operand("ruled", a, s) for a, s in zip(args[3:], spans[3:])]
        atoms[:moving] = map(self.reals, atoms[:moving])
        y = self.call(f, [self.stopped(a) for a in atoms], (None,) * count, var)
        y = self.operand("ruled", self.look(y), None)
        if elem_of(y) != REAL:
            raise ModelTypeError(f"`ruled` of a function that gives {describe(y)}", self.b.span, "it gives reals")
        return self.b.ruled(Rule(self, jvp, vjp, moving), y, atoms, var.name if var is not None else None)

    def arity(self, name: str, args: list[Value], *allowed: int) -> None:
        if len(args) not in allowed:
            raise ModelTypeError(arity_text(name, allowed[0], len(args)), self.b.span)

    def row(self, args: list[Value], spans: Spans) -> Value | None:
        """A row of an array that is changed in place, or an element of an array of references; None for a number."""
        array, *indices = args
        indices = [self.look(i) for i in indices]
        cell = array if isinstance(array, Cell) else array.array  # type: ignore[union-attr]
        before = array.indices if isinstance(array, Place) else ()
        held = self.held(cell)
        if not isinstance(held, (Const, Var)) or not isinstance(type_of(held), Arr) or not indices:
            return None
        whole = self.get([held, *before, *indices], [None, *(None for _ in before), *spans[1:]], None)
        reference = isinstance(array, References)
        if not reference and not isinstance(type_of(whole), Arr):
            return None
        return Place(cell, (*before, *indices), reference)  # type: ignore[arg-type]

    def update(self, args: list[Value], spans: Spans, var: Var | None, name: str = "update") -> Value:
        if len(args) < 3:
            raise ModelTypeError("update takes an array, an index and a value", self.b.span, "`(update v i x)`")
        array, *indices, x = args
        a = self.operand(name, array, spans[0])
        row = self.get([a, *indices], spans[:-1], None)  # checks the indices
        x = self.operand(name, x, spans[-1])
        if elem_of(a) == INT and elem_of(x) == REAL:
            a = self.reals(a)
        x = self.reals(x) if elem_of(a) == REAL else x
        if isinstance(type_of(row), Arr) != isinstance(type_of(x), Arr) or elem_of(a) != elem_of(x):
            raise ModelTypeError(
                f"`{name}` puts {describe(x)} where {describe(row)} stands", self.b.span, "the types must be equal"
            )
        if isinstance(type_of(row), Arr):
            self.same_shape([row, x], name)
        at = []
        for i, dim in zip(indices, type_of(a).dims):
            negative = type(i) is Const and i.value < 0
            at.append(self.b.prim("+", dim, i) if negative else i)
        return self.b.update(a, at, x, hint=var.name if var is not None else None)

    def copy(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """A copy is the value itself: typed core is functional, and lowering copies where memory is shared."""
        self.arity("copy", args, 1)
        return args[0]  # where arrays are changed in place it is held anew, see ``builtin``

    # ---- loops

    def function_arg(self, value: Value, name: str, span: Span | None) -> Function:
        if isinstance(value, FUNCTIONS) or self.family_of(value) is not None:
            return value  # type: ignore[return-value]
        raise ModelTypeError(f"`{name}` takes a function, not {describe(value)}", span or self.b.span)

    def sizes(self, value: Value, name: str, span: Span | None) -> list[Atom]:
        op = self.b.definitions.get(value) if type(value) is Var else None
        if isinstance(value, TupleValue):
            items: Sequence[Value] = value.items
        elif op is not None and op.name == "array":
            items = op.args
        else:
            items = [value]
        counts = []
        for x in items:
            count = self.integer_arg(x, f"the size in `{self.blamed(name)}`", span)
            if type(count) is Const and count.value < 0:
                raise ModelTypeError(
                    f"the size in `{name}` is {count.value}", span or self.b.span, "sizes are not negative"
                )
            if name == "build":
                self.b.require_size(count, f"the size in `{self.blamed(name)}` is negative")
            counts.append(count)
        return counts

    def build(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("build", args, 2)
        counts = self.sizes(args[0], "build", spans[0])
        fn = self.function_arg(args[1], "build", spans[1])
        names = self.param_names(fn, len(counts))

        def nest(done: list[Atom]) -> Value:
            if len(done) == len(counts):
                return self.call(fn, done, (None,) * len(done), None)
            return self.stack(
                counts[len(done)], lambda i: nest([*done, i]), var if not done else None, names[len(done)]
            )

        return nest([])

    def param_names(self, fn: Function, count: int, fallback: Sequence[str] = "ijklmnopq") -> list[str]:
        known = parameters(fn) if isinstance(fn, Closure) else None
        names = [p[0] for p in known] if known else []
        return [names[k] if k < len(names) else fallback[k] for k in range(count)]

    def stack(self, count: Atom, body: Callable[[Atom], Value], var: Var | None, index_name: str = "i") -> Value:
        """The array of what ``body`` gives for 0 .. count-1."""
        span, outside = self.b.span, set(self.store)
        shape: list[Any] = []

        def iteration(i: Atom):
            value = self.contents(self.now(body(i)), outside)
            inner = value.parts if isinstance(value, ArrayOfTuples) else value
            atoms, tree = flatten(inner, self.b.span)
            if not atoms and isinstance(value, CLOSED):
                what = f"an array whose elements are {describe(value)} each"
                raise NotCompiled(what, span, "write a list: `(list f g)`")
            if not atoms:
                raise ModelTypeError(
                    f"an array of {describe(value)}", span, "build gives numbers, arrays or tuples of them"
                )
            shape[:] = [
                tree,
                value.rank + 1 if isinstance(value, ArrayOfTuples) else 1,
                not isinstance(value, (Const, Var)),
                self.references,
            ]
            return (), atoms

        hint = (var.name,) if var is not None else ()
        out = self.counted_loop(count, (), iteration, hint, index_name, (), bool(var is not None and var.given))
        self.b.span = span
        tree, rank, structured, references = shape
        if references:
            return References(self.new_cell(out[0], array=True))
        return ArrayOfTuples(unflatten(tree, iter(out)), rank) if structured else out[0]

    def contents(self, value: Value, outside: set[Cell]) -> Value:
        """An element of an array; of a reference that was made for it, what it holds."""
        self.references = is_reference(value) and isinstance(value, Cell) and value not in outside
        held = self.now(self.store[value]) if self.references else value  # type: ignore[index]
        if self.references and not (isinstance(held, (Const, Var)) and type_of(held) in (REAL, INT)):
            raise NotCompiled("an array of references that hold no numbers", self.b.span, "write a list of them")
        return held

    def map(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if len(args) < 2:
            raise ModelTypeError("map takes a function and at least one array", self.b.span, "`(map f xs)`")
        fn, arrays = self.function_arg(args[0], "map", spans[0]), args[1:]
        if self.lists(arrays):
            return self.over_lists("map", [fn], arrays, 3)
        if all(isinstance(a, TupleValue) for a in arrays):
            if len({len(a.items) for a in arrays}) > 1:
                raise ModelTypeError("map over tuples of different lengths", self.b.span)
            return TupleValue(
                tuple(self.call(fn, xs, (None,) * len(xs), None) for xs in zip(*(a.items for a in arrays)))
            )
        count = self.common_length("map", arrays, spans[1:])
        return self.stack(
            count, lambda i: self.call(fn, [self.item(a, i) for a in arrays], (None,) * len(arrays), None), var
        )

    def lists(self, values: Sequence[Value]) -> bool:
        """Whether all of some values are lists: nil, pairs that ``cons`` made, data of both."""

        def is_list(v: Value) -> bool:
            family = self.family_of(v)
            if family is not None:
                return family.sort == "list" and any(m.make in (nothing, tuple) for m in family.members.values())
            return v is NIL or isinstance(v, TupleValue) and v.make is tuple

        return bool(values) and all(map(is_list, values))

    def over_lists(self, name: str, first: list[Value], lists: Sequence[Value], most: int) -> Value:
        """``map``, ``fold`` or ``scan`` of lists: the prelude's recursive function for so many."""
        if len(lists) > most:
            raise ModelTypeError(f"`{name}` over {len(lists)} lists", self.b.span, f"it takes {most} at most")
        function = prelude(f"list-{name}" if len(lists) == 1 else f"list-{name}-{len(lists)}")
        assert function is not None
        return self.call(function, [*first, *lists], (None,) * (len(first) + len(lists)), None)

    def item(self, array: Value, i: Atom) -> Value:
        if isinstance(array, References):
            return Place(array.array, (i,), True)
        return self.get([array, i], [None, None], None)

    def common_length(self, name: str, arrays: Sequence[Value], spans: Spans) -> Atom:
        lengths = [self.shape_of(a, name)[0] for a in arrays]
        name = self.blamed(name)
        for n in lengths[1:]:
            if not self.b.require_equal(lengths[0], n, f"the arrays in `{name}` have different lengths"):
                raise ModelTypeError(
                    f"`{name}` over arrays of lengths {lengths[0]} and {n}", self.b.span, "the lengths must be equal"
                )
        return lengths[0]

    def fold(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(fold f z xs ...)``: ``f`` takes the accumulator and an element of each array."""
        args, kept = apart(args)
        if len(args) < 3:
            raise ModelTypeError(
                "fold takes a function, a start and at least one array", self.b.span, "`(fold + 0.0 xs)`"
            )
        fn, init, arrays = self.function_arg(args[0], "fold", spans[0]), args[1], args[2:]
        if self.lists(arrays):
            if kept is not None:
                hint = "of a list it is no loop: copy the list into an array, or leave the option out"
                raise ModelTypeError("`:checkpoint` of a fold over a list", self.b.span, hint)
            return self.over_lists("fold", [fn, init], arrays, 2)
        if all(isinstance(a, TupleValue) for a in arrays):
            acc = init
            for xs in zip(*(a.items for a in arrays)):
                acc = self.call(fn, [acc, *xs], (None,) * (1 + len(xs)), None)
            return acc
        count = self.common_length("fold", arrays, spans[2:])
        names = self.param_names(fn, 1, ("acc",))
        return self.accumulate(
            count,
            init,
            lambda acc, i: self.call(fn, [acc, *(self.item(a, i) for a in arrays)], (None,) * (1 + len(arrays)), None),
            var,
            "i",
            names[0],
            places=(spans[1], body_place(fn)),
            snapshots=kept,
        )[0]

    def ifold(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(ifold f z n)``: ``f`` takes the accumulator and the index (dF~ Fig. 3)."""
        args, kept = apart(args)
        self.arity("ifold", args, 3)
        fn = self.function_arg(args[0], "ifold", spans[0])
        counts = self.sizes(args[2], "ifold", spans[2])
        names = self.param_names(fn, 2, ("acc", "i"))
        return self.accumulate(
            counts[0],
            args[1],
            lambda acc, i: self.call(fn, [acc, i], (None, None), None),
            var,
            names[1],
            names[0],
            places=(spans[1], body_place(fn)),
            snapshots=kept,
        )[0]

    def scan(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(scan f z xs)``: the accumulators after each element."""
        self.arity("scan", args, 3)
        fn = self.function_arg(args[0], "scan", spans[0])
        if self.lists(args[2:]):
            return self.over_lists("scan", [fn, args[1]], args[2:], 1)
        count = self.common_length("scan", args[2:], spans[2:])
        return self.accumulate(
            count,
            args[1],
            lambda acc, i: self.call(fn, [acc, self.item(args[2], i)], (None, None), None),
            var,
            "i",
            self.param_names(fn, 1, ("acc",))[0],
            True,
            (spans[1], body_place(fn)),
        )[1]

    def accumulate(
        self,
        count: Atom,
        init: Value,
        step: Callable[[Value, Atom], Value],
        var: Var | None,
        index_name: str,
        acc_name: str,
        stacked: bool = False,
        places: Spans = (),
        snapshots: Atom | None = None,
    ) -> tuple[Value, Value]:
        """A loop with accumulators of any structure: the final value, and the array of all where ``stacked``. Its
        start and what its function gives are written at ``places``; reverse mode keeps so many ``snapshots`` of it."""
        place = self.place()

        def run() -> tuple[Value, Value]:
            if (place, "unrolled") in self.facts.joins:
                value = init
                for k in range(count.value):  # type: ignore[union-attr]
                    value = step(value, integer(k))
                return value, NIL
            return self.loop_accumulating(place, count, init, step, var, index_name, acc_name, stacked, snapshots)

        try:
            return self.settled(run)
        except ModelTypeError as error:
            facts, error.facts = getattr(error, "facts", ()), ()  # type: ignore[attr-defined]
            if facts and self.library is None:
                error.notes = tuple((text, p) for text, p in zip(facts, places) if p is not None)
            raise

    def loop_accumulating(
        self,
        place: int,
        count: Atom,
        init: Value,
        step: Callable[[Value, Atom], Value],
        var: Var | None,
        index_name: str,
        acc_name: str,
        stacked: bool,
        snapshots: Atom | None,
    ) -> tuple[Value, Value]:
        span, cells = self.b.span, self.place()
        apart = stacked or (place, "arrays") in self.facts.joins  # arrays are accumulated, not held by identity
        init = self.now(init) if apart else init
        outside = set(self.store)
        joined = self.facts.joins.get((place, "acc"))
        if joined is not None:
            target = self.target(init)
            if kinds(target) != kinds(joined):
                joined = self.join((place, "acc"), joined, target, loop=True)
            init = self.coerce(init, joined)
        atoms, tree = flatten(init, span)

        def iteration(i: Atom, *accs: Atom):
            value = step(unflatten(tree, iter(accs)), i)
            if apart:
                value = self.accumulated(value, outside)
            elif self.facts.mutates and arrays_in(init) != arrays_in(value):
                self.facts.joins[place, "arrays"] = BOOL
                self.facts.changed = True
                raise Again
            if not stacked and type(count) is Const and count.value <= UNROLLED and derives(self.target(value)):
                self.facts.joins[place, "unrolled"] = BOOL  # each step differentiates what the one before gave
                self.facts.changed = True
                raise Again
            value = self.next_accumulator(place, init, value, span)
            following, after = flatten(value, span)
            if not same_tree(tree, after):
                raise unlike_steps(init, value, span)
            following = [self.reals(x) if elem_of(a) == REAL else x for a, x in zip(accs, following)]
            wide = [k for k, (a, x) in enumerate(zip(accs, following)) if elem_of(a) == INT and elem_of(x) == REAL]
            if wide:
                raise _Widen(wide)
            for a, x in zip(accs, following):
                self.same_accumulator(a, x, span)
            return following, following if stacked else ()

        shared = set(self.shared)
        while True:
            self.shared = set(shared)
            names = [acc_name] * len(atoms)
            hint = [var.name] * len(atoms) if var is not None and not stacked else []
            try:
                given = bool(var is not None and var.given)
                out = self.loop_counted(cells, count, atoms, iteration, hint, index_name, names, given, snapshots)
                break
            except _Widen as widen:
                for k in widen.positions:
                    atoms[k] = self.reals(atoms[k])
                self.b.span = span
        self.b.span = span
        final = unflatten(tree, iter(out))
        if not stacked:
            return final, NIL
        every = unflatten(tree, iter(out[len(atoms) :]))
        return final, every if isinstance(every, (Const, Var)) else ArrayOfTuples(every, 1)

    def accumulated(self, value: Value, outside: set[Cell]) -> Value:
        """What a step gives, with its arrays as they are now. One from outside of the loop should be itself."""
        if isinstance(value, TupleValue):
            items = tuple(self.accumulated(x, outside) for x in value.items)
            return TupleValue(items, value.keys, value.make)
        cell = value.array if isinstance(value, Place) else value
        return self.copied(value) if is_array(value) and cell in outside else self.held(value)

    def next_accumulator(self, place: int, init: Value, value: Value, span: Span | None) -> Value:
        """What an iteration gives, in the form of what the loop starts with; else the loop starts again."""
        if isinstance(value, (Const, Var)) and value is not NIL and not isinstance(value.type, Data):
            if isinstance(init, (Const, Var)) and init is not NIL and not isinstance(init.type, Data):
                return value
        if isinstance(value, ArrayOfTuples) or isinstance(init, ArrayOfTuples):
            return value
        start, after = self.target(init), self.target(value)
        if kinds(start) == kinds(after):
            return value
        try:
            joined = self.join((place, "acc"), start, after, loop=True)
        except ModelTypeError:
            raise unlike_steps(init, value, span) from None
        if kinds(joined) == kinds(start):
            return self.coerce(value, joined)
        if numbers_alone(start, joined):
            return value
        self.facts.joins[place, "acc"] = joined
        self.facts.changed = True
        raise Again

    def same_accumulator(self, a: Atom, x: Atom, span: Span | None) -> None:
        ta, tx = type_of(a), type_of(x)
        if isinstance(ta, Arr) and isinstance(tx, Arr) and ta.rank == tx.rank and ta.elem == tx.elem:
            if all(
                self.b.require_equal(d, e, "the accumulator of this loop changes its shape")
                for d, e in zip(ta.dims, tx.dims)
            ):
                return
        elif ta == tx:
            return
        raise unlike_steps(a, x, span)

    # ---- lists, sums, references

    def cons(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("cons", args, 2)
        return TupleValue(tuple(args), None, tuple)

    def list_(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        value: Value = NIL
        for a in reversed(args):
            value = TupleValue((a, value), None, tuple)
        return value

    def left(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        return self.construct(Constructing(Inl), args)

    def right(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        return self.construct(Constructing(Inr), args)

    def is_nil(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("null?", args, 1)
        return self.test(args[0], lambda v: v is NIL)

    def is_number(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("num?", args, 1)

        def number(v: Value) -> bool:
            return isinstance(v, (Const, Var)) and v is not NIL and type_of(v) in (REAL, INT)

        return self.test(args[0], number)

    def ref(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("ref", args, 1)
        return self.new_cell(args[0])

    def cell(self, name: str, value: Value, span: Span | None) -> Cell:
        if isinstance(value, Cell) and not value.array:
            return value
        if isinstance(value, Var) and isinstance(value.type, Data):
            raise NotCompiled(f"`{name}` of a reference that is only known when the model runs", span or self.b.span)
        raise ModelTypeError(f"`{name}` of {describe(value)}", span or self.b.span, "`(ref x)` makes a reference")

    def deref(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("deref", args, 1)
        r = args[0]
        if isinstance(r, Choice) and is_reference(r):
            return self.branches(
                r.cond, lambda: self.deref([r.then], spans, None), lambda: self.deref([r.orelse], spans, None), var
            )
        if isinstance(r, Place) and r.reference:
            return self.get([self.held(r.array), *r.indices], (), var)
        cell = self.cell("deref", r, spans[0] if spans else None)
        self.touch(cell)
        return self.store[cell]

    def set_(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("set!", args, 2)
        r, x = args
        if isinstance(r, Choice) and is_reference(r):
            return self.branches(
                r.cond, lambda: self.set_([r.then, x], spans, None), lambda: self.set_([r.orelse, x], spans, None), var
            )
        if isinstance(r, Place) and r.reference:
            self.set_cell(r.array, self.update([self.held(r.array), *r.indices, x], (None,) * 3, None, "set!"))
            return NIL
        self.set_cell(self.cell("set!", args[0], spans[0] if spans else None), args[1])
        return NIL

    def set_at(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        if len(args) < 3:
            raise ModelTypeError("set-at! takes an array, an index and a value", self.b.span, "`(set-at! v i x)`")
        array, before = args[0], ()
        if isinstance(array, Place) and not array.reference:
            array, before = array.array, array.indices
        if not isinstance(array, Cell) or not array.array:
            if self.facts.mutates and array in self.params_of:
                f, k = self.params_of[array]
                if k not in self.facts.changes.setdefault(f, set()):
                    self.facts.changes[f].add(k)
                    self.facts.changed = True
                    raise Again
            if isinstance(array, (Const, Var)) and isinstance(type_of(array), Arr):
                if not self.facts.mutates:  # from now on arrays are held where they can be changed
                    self.facts.__init__(mutates=True)  # type: ignore[misc]  # what is known of arrays is no more so
                    self.facts.changed = True
                    raise Anew
                raise NotCompiled(
                    "set-at! of an array that is part of another value", spans[0] if spans else self.b.span,
                    "name a copy of it: `(let [w (copy v)] (set-at! w i x))`",
                )  # fmt: skip
            if self.boxed_array(array):
                raise NotCompiled(
                    "set-at! of an array that is part of data",
                    spans[0] if spans else self.b.span,
                    "change a copy of it",
                )
            raise ModelTypeError(f"`set-at!` of {describe(array)}", spans[0] if spans else self.b.span)
        if array.key in self.shared:
            raise NotCompiled(
                "set-at! of an array that another value holds, too",
                spans[0] if spans else self.b.span,
                "let the other hold a copy of it: `(copy v)`",
            )
        rest = [*before, *(self.look(a) for a in args[1:])]
        spans = [None, *(None for _ in before), *spans[1:]]
        self.set_cell(array, self.update([self.held(array), *rest], spans, None, "set-at!"))
        return NIL

    def negation(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("not", args, 1)
        a = args[0]
        if not isinstance(a, (Const, Var)) or type_of(a) != BOOL:
            raise ModelTypeError(f"`not` of {describe(a)}", self.b.span, "`not` takes a truth value")
        return self.b.prim("not", a)

    # ---- typed core as it is printed: what passes make, and a stage's text holds

    def loop(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(loop n f z ...)``: the one loop of typed core; ``f`` takes the index and the accumulators and gives the
        next accumulators, then what is stacked."""
        if len(args) < 2:
            raise ModelTypeError("loop takes a count, a function and the accumulators' starts", self.b.span)
        count = self.sizes(args[0], "loop", spans[0])[0]
        fn = self.function_arg(args[1], "loop", spans[1])
        place = self.place()
        inits = [self.one_atom(place, k, z) for k, z in enumerate(args[2:])]
        names = self.param_names(fn, 1 + len(inits), ("i", *("acc",) * len(inits)))

        def iteration(i: Atom, *accs: Atom):
            value = self.call(fn, [i, *accs], (None,) * (1 + len(accs)), None)
            results = self.results_of(place, inits, value)
            return results[: len(accs)], results[len(accs) :]

        out = self.counted_loop(count, inits, iteration, (), names[0], names[1:])
        return out[0] if len(out) == 1 else TupleValue(out)

    def one_atom(self, place: int, k: int, value: Value) -> Atom:
        """The start of accumulator ``k`` of typed core as an atom: a structure becomes data."""
        value = self.held(value)
        target = self.target(value)
        known = self.facts.joins.get((place, "typed", k))
        if known is not None and known != target:
            target = self.join((place, "typed", k), known, target)
        if isinstance(target, Apart):
            target = self.facts.family((place, "typed", k), sort_of(target)).data
        return self.coerce(value, target)  # type: ignore[return-value]

    def results_of(self, place: int, inits: Sequence[Atom], value: Value) -> list[Atom]:
        """What an iteration of typed core gives, as atoms: the accumulators in the form of their starts."""
        parts = list(value.items) if isinstance(value, TupleValue) and value.make is None else [value]
        if len(parts) < len(inits):
            raise ModelTypeError(f"an iteration gives {len(parts)} values for {len(inits)} accumulators", self.b.span)
        out: list[Atom] = []
        for k, part in enumerate(parts):
            if k >= len(inits):
                out.append(self.one_atom(place, k, part))
                continue
            start, after = self.target(inits[k]), self.target(part)
            if kinds(start) != kinds(after) and not numbers_alone(start, after):
                joined = self.join((place, "typed", k), start, after)
                if kinds(joined) != kinds(start):
                    self.facts.joins[place, "typed", k] = joined
                    self.facts.changed = True
                    raise Again
                part = self.coerce(part, joined)
            out.append(self.held(part))  # type: ignore[arg-type]
        return out

    def iterate(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(iterate c f z ...)``: the ``while`` of typed core. ``c`` and ``f`` take the accumulators, ``f`` gives the
        next ones, then what is stacked; the final accumulators, the number of iterations, the stacked arrays."""
        if len(args) < 2:
            raise ModelTypeError("iterate takes a condition, a function and the starts", self.b.span)
        test, step = (self.function_arg(f, "iterate", s) for f, s in zip(args[:2], spans))
        place = self.place()
        inits = [self.one_atom(place, k, z) for k, z in enumerate(args[2:])]
        names = self.param_names(step, len(inits), ("acc",) * len(inits))

        def cond(*accs: Atom) -> Atom:
            return self.truth(self.call(test, accs, (None,) * len(accs), None), self.b.span)

        def body(*accs: Atom):
            results = self.results_of(place, inits, self.call(step, accs, (None,) * len(accs), None))
            return results[: len(accs)], results[len(accs) :]

        return TupleValue(self.b.while_(inits, cond, body, (), names))

    def zeros_of(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        dims = tuple(self.sizes(a, "zeros-of", None)[0] for a in args)
        return self.b.zeros(Arr(REAL, dims), var.name if var is not None else None)

    def undef(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        """``(undef Leaf)``: a value that is never read, of the type that the constructor is of."""
        self.arity("undef", args, 1)
        if not isinstance(args[0], Constructing):
            raise ModelTypeError(f"`undef` of {describe(args[0])}", spans[0] or self.b.span, "it takes a constructor")
        sort = args[0].kind.__mro__[1]
        return self.b.undef(self.facts.family((self.place(), "undef"), sort).data)

    def add_at(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        array, *indices, x = args
        self.get([array, *indices], spans[:-1], None)
        return self.b.add_at(array, indices, self.reals(x), var.name if var is not None else None)

    def select(self, args: list[Value], spans: Spans, var: Var | None) -> Value:
        self.arity("select", args, 3)
        return self.b.select(*(self.operand("select", a, s) for a, s in zip(args, spans)))

    def require(self, relation: str, args: list[Value], spans: Spans) -> Value:
        a, b = (self.integer_arg(x, "this size", s) for x, s in zip(args, spans))
        name = self.blamed("require-equal")
        if relation != "==":
            self.b.check(Check(relation, a, b, "a requirement of the program"), a, b)
        elif not self.b.require_equal(a, b, f"the sizes of the arrays in `{name}` do not fit"):
            raise ModelTypeError(f"`{name}`: the sizes {a} and {b} must be equal", self.b.span)
        return NIL


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The derivatives of a ``ruled`` value: functions, and how many arguments they are about."""

    sp: Specialiser
    jvp: Function
    vjp: Function
    moving: int

    def tangent(self, args: Sequence[Atom], y: Atom, dots: Sequence[Atom]) -> Atom:
        (dot,) = self.apply(self.jvp, [*args, y, *dots], 1)
        return dot

    def adjoints(self, args: Sequence[Atom], y: Atom, y_bar: Atom) -> list[Atom]:
        return self.apply(self.vjp, [*args, y, y_bar], self.moving)

    def apply(self, rule: Function, given: Sequence[Atom], count: int) -> list[Atom]:
        sp, span = self.sp, self.sp.b.span
        atoms = flatten(sp.now(sp.call(rule, given, (None,) * len(given), None)), span)[0]
        sp.b.span = span
        if len(atoms) != count:
            raise DerivativeError(f"a rule of `ruled` gives {len(atoms)} values, not {count}", span)
        return [sp.reals(a) for a in atoms]


def unlike_steps(init: Value, value: Value, span: Span | None) -> ModelTypeError:
    """A loop whose steps do not give what it starts with; ``facts`` are for the places of both."""
    start, step = describe(init), describe(value)
    error = ModelTypeError(
        f"the loop starts with {start} and goes on with {step}", span, "each step gives what it was given"
    )
    error.facts = f"it starts with {start}", f"a step gives {step}"  # type: ignore[attr-defined]
    return error


def body_place(fn: Value) -> Span | None:
    """Where what a function gives is written."""
    return fn.function.body.place if isinstance(fn, Closure) and fn.scope is not Specialiser.scope else None


@dataclass(frozen=True, slots=True)
class Kept:
    """``:checkpoint`` on its way to the loop."""

    snapshots: Atom


def apart(args: list[Value]) -> tuple[list[Value], Atom | None]:
    """The arguments of a loop, and how many states of it are kept."""
    if args and isinstance(args[-1], Kept):
        return args[:-1], args[-1].snapshots
    return args, None


def is_checkpointed(op: Call) -> bool:
    """Whether a call ends with ``:checkpoint n``."""
    return len(op.args) > 1 and type(op.args[-2]) is Const and op.args[-2].value == ("checkpoint",)


def not_checkpointed(op: Call) -> ModelTypeError:
    hint = "`(ifold f z n :checkpoint 10)`; fold and while take it as well"
    return ModelTypeError("`:checkpoint` is an option of loops", op.spans[-2], hint)


class Wrt:
    """``:wrt`` on its way to the operator."""

    __slots__ = ("wrt",)

    def __init__(self, wrt: Any) -> None:
        self.wrt = wrt


#: What ``math`` and NumPy call a primitive, where that is not its name.
_NUMPY_NAMES = {
    "power": "**", "pow": "**", "fabs": "abs", "absolute": "abs", "maximum": "max", "minimum": "min", "rint": "round",
    "remainder": "%", "true_divide": "/", "divide": "/", "floor_divide": "//", "negative": "neg", "add": "+",
    "subtract": "-", "multiply": "*", "equal": "=", "less": "<", "greater": ">", "arctan2": "atan2",
    "max": "amax", "min": "amin", "dot": "matmul", "norm": "frobenius",
}  # fmt: skip
#: What NumPy and the prelude call by one name.
_NUMPY_ARRAYS = frozenset(
    "all amax amin any arange argmax argmin argsort cholesky clip concatenate convolve count-nonzero cross cumprod"
    " cumsum det diag expand-dims eye flip frobenius full full-like identity inner interp inv kron linspace log-softmax"
    " logsumexp matmul matrix-power mean median moveaxis ones ones-like outer polyval prod ravel repeat reshape roll"
    " searchsorted size slogdet softmax solve sort squeeze stack std sum swapaxes take tile trace transpose tril triu"
    " var where zeros zeros-like".split()
)


def numpy_name(value: Any) -> str | None:
    """The primitive, or the function of the prelude, that a function of ``math``, NumPy or SciPy is."""
    module = (getattr(value, "__module__", None) or "").split(".")[0]
    if not callable(value) or not (module in ("math", "numpy", "scipy") or isinstance(value, np.ufunc)):
        return None
    name = getattr(value, "__name__", "").replace("_", "-")
    name = _NUMPY_NAMES.get(name, name)
    name = name.replace("arc", "a") if name.startswith("arc") else name
    return name if name in PRIMITIVES or name in _NUMPY_ARRAYS else None


BUILTINS: dict[str, Callable[..., Value]] = {
    "tuple": Specialiser.tuple_,
    "array": Specialiser.array,
    "get": Specialiser.get,
    "fst": lambda sp, *given: sp.half("fst", 0, *given),
    "snd": lambda sp, *given: sp.half("snd", 1, *given),
    "len": Specialiser.len_,
    "shape": Specialiser.shape,
    "rank": Specialiser.rank,
    "constant": Specialiser.constant,
    "ruled": Specialiser.ruled,
    "build": Specialiser.build,
    "map": Specialiser.map,
    "fold": Specialiser.fold,
    "ifold": Specialiser.ifold,
    "scan": Specialiser.scan,
    "update": Specialiser.update,
    "copy": Specialiser.copy,
    "set-at!": Specialiser.set_at,
    "cons": Specialiser.cons,
    "car": lambda sp, *given: sp.half("car", 0, *given),
    "cdr": lambda sp, *given: sp.half("cdr", 1, *given),
    "null?": Specialiser.is_nil,
    "num?": Specialiser.is_number,
    "list": Specialiser.list_,
    "inl": Specialiser.left,
    "inr": Specialiser.right,
    "ref": Specialiser.ref,
    "deref": Specialiser.deref,
    "set!": Specialiser.set_,
    "not": Specialiser.negation,
    "loop": Specialiser.loop,
    "iterate": Specialiser.iterate,
    "zeros-of": Specialiser.zeros_of,
    "undef": Specialiser.undef,
    "add-at": Specialiser.add_at,
    "select": Specialiser.select,
    "require-index": lambda sp, args, spans, var: sp.require("in", args, spans),
    "require-equal": lambda sp, args, spans, var: sp.require("==", args, spans),
    "require-at-most": lambda sp, args, spans, var: sp.require("<=", args, spans),
    "require-below": lambda sp, args, spans, var: sp.require("<", args, spans),
}


#: What takes structures as they are: all else looks into arrays of sizes that only a run knows.
STRUCTURE = frozenset("tuple cons list ref set! deref null? num? inl inr".split())
#: The arguments in which an array that is changed in place is itself, and not what is in it now.
EVERY = range(2**31)
KEEPING = {**dict.fromkeys("tuple cons list ref set! inl inr".split(), EVERY), "fold": (1,), "ifold": (1,)}


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


def grows(make: Any, items: tuple, family: Data) -> bool:
    """Whether a function of a family is a derivative of one of the same family: of unknown order."""
    return isinstance(make, Shape) and make.kind in ("derived", "pointwise") and any(x is family for x in items)


def derives(target: Any) -> bool:
    """Whether a value holds a derivative that is yet to be taken."""
    if not isinstance(target, Apart):
        return False
    made = isinstance(target.make, Shape) and target.make.kind in ("derived", "pointwise")
    return made or any(map(derives, target.items))


def arrays_in(value: Value) -> list[Any]:
    """The arrays in a structure that are changed in place, by place."""
    if isinstance(value, TupleValue):
        return [(k, found) for k, x in enumerate(value.items) for found in arrays_in(x)]
    if isinstance(value, Place):
        return [(value.array.key, value.indices)]
    return [value.key] if isinstance(value, Cell) and value.array else []


def numbers_alone(a: Any, b: Any) -> bool:
    """Whether two targets differ in nothing but integers and reals."""
    if isinstance(a, Apart) and isinstance(b, Apart):
        return all(map(numbers_alone, a.items, b.items))
    return not isinstance(a, (Apart, Data)) and not isinstance(b, (Apart, Data))


def shape_known(value: Value) -> Any:
    """What tells one call of a prelude function from another one inside it: ranks, known integers, functions."""
    if type(value) is Const and value.type != REAL:
        return value.value
    if isinstance(value, Closure):
        return value.function
    return f"rank {rank_of(value)}" if isinstance(value, (Const, Var)) and value is not NIL else None


def numeric(family: Family | None) -> bool:
    """Whether data may hold a number, a truth value or an array; nil alone may yet become a list of them."""
    made = [m.make for m in family.members.values()] if family is not None else []
    return all(m is nothing for m in made) or any(m in (float, bool, "array") for m in made)


def facts_at(values: Sequence[Value], spans: Spans) -> list[tuple[str, Span]]:
    """What each of some values is, for an error: beside the place where it is written."""
    return [(f"this is {describe(v)}", s) for v, s in zip(values, spans) if s is not None]


def elem_of(atom: Atom) -> Scalar:
    t = type_of(atom)
    return t.elem if isinstance(t, Arr) else t


def arity_text(name: str | None, wanted: int, got: int) -> str:
    who = f"`{name}`" if name else "this function"
    return f"{who} takes {wanted} argument{'s' * (wanted != 1)}, not {got}"


@cache
def prelude(name: str) -> Closure | None:
    """A function of ``prelude.hy`` by name; ``sum/2`` is what ``sum`` is of two arguments."""
    text = prelude_texts().get(name)
    if text is None:
        return None
    from .reader import read_model

    f = read_model(text, Source(text, "prelude.hy"))
    return Closure(replace(f, name=name.partition("/")[0]), None, Specialiser.scope)


def size_named(function: Lambda, name: str) -> str | None:
    """How to write a size that only an annotation names."""
    for p, annotation in zip(function.params, function.annotations):
        sizes = annotation.value[1:] if annotation is not None and annotation.kind == "(" else ()
        for k, size in enumerate(sizes):
            if size.kind == "sym" and size.value == name:
                written = f"(shape {p.name} {k})" if k else f"(len {p.name})"
                return f"annotations name sizes for one another; here it is `{written}`"
    return None


#: How a model writes what other languages and libraries have another name for.
ELSEWHERE = {
    "==": "(= a b)", "not=": "(!= a b)", "/=": "(!= a b)", "mod": "(% a b)", "fmod": "(% a b)", "ln": "(log x)",
    "add": "(+ a b)", "sub": "(- a b)", "mul": "(* a b)", "div": "(/ a b)", "inc": "(+ x 1)", "dec": "(- x 1)",
    "+=": "(set! r (+ (deref r) x))", "-=": "(set! r (- (deref r) x))", "*=": "(set! r (* (deref r) x))",
    "float": "(real i)", "sgn": "(sign x)", "expit": "(sigmoid x)", "logaddexp": "(logsumexp [a b])",
    "isnan": "(!= x x)", "range": "(arange n)", "enumerate": "(build n (fn [i] ...))", "empty": "(zeros n)",
    "reduce": "(fold f z xs)", "accumulate": "(scan f z xs)", "for": "(ifold (fn [s i] ...) z n)",
    "filter": "(where c a b)", "zip": "(map f a b)", "first": "(get v 0)", "last": "(get v -1)", "nth": "(get v i)",
    "rest": "(cut v 1 None)", "reverse": "(flip v)", "reversed": "(flip v)", "sorted": "(sort v)",
    "flatten": "(ravel a)", "append": "(concat a b)", "vstack": "(concatenate #(a b) 0)",
    "hstack": "(concatenate #(a b) 1)", "matvec": "(@ m v)", "einsum": "(build [n m] (fn [i j] (sum ...)))",
    "tensordot": "(build [n m] (fn [i j] (sum ...)))", "arccos": "(acos x)", "arcsin": "(asin x)",
    "arctan": "(atan x)",
}  # fmt: skip
_CONSTANTS = frozenset("pi e tau inf nan".split())


def similar(name: Global) -> str:
    """What a user may have meant by a name that nothing binds: what the language calls it, or has, or the model itself
    holds."""
    import difflib
    import re

    bare = name.name.rpartition(".")[2] or name.name
    known = _NUMPY_NAMES.get(bare.replace("-", "_"))
    if bare in ELSEWHERE or known is not None:
        params = PRIMITIVES[known].params if known in PRIMITIVES else ("a",)
        written = ELSEWHERE.get(bare) or f"({' '.join([known, *params])})"
        return f"`{written}` is how a model writes it"
    if bare in _CONSTANTS:
        return f"import it at the top of the module: `(import math [{bare}])`"

    nearby = re.findall(r"[^\s()\[\]{}\"#;]+", name.span.source.text) if name.span is not None else []
    names = [*PRIMITIVES, *BUILTINS, *OPERATORS, *prelude_texts(), *(n for n in nearby if n != name.name)]
    close = difflib.get_close_matches(bare, names, 1, 0.76)
    if close:
        return f"did you mean `{close[0]}`?"
    return "bind it with let, make it a parameter, or define it in the module"
