"""The specialiser: a model and one signature => a typed program.

A partial evaluator over surface core, as Myia's inference and specialisation in one linear pass: functions, tuples
and known constants are values at compile time and leave no trace; numbers and arrays become typed operations. Every
call of a known function is inlined. Derivative operators are expanded where they are applied, innermost first, on
fresh variables: no tags at run time, no perturbation confusion.

``(let [g (fn [f x] (f (f x)))] (g sin y))``  =>  ``t = sin y; r = sin t``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Block,
    Call,
    Case,
    Const,
    Data,
    Global,
    If,
    Lambda,
    Node,
    Program,
    Rec,
    Var,
    While,
    all_binds,
    blocks_of,
    integer,
    nodes,
    rank_of,
    type_of,
)
from ..errors import HyadError, ModelTypeError, NotCompiled, Span, hint_for
from ..program.advice import said_inside
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.data import Data as PythonData
from ..program.marks import without_rules
from ..program.names import part_name
from ..program.reader import SPECIAL, prelude
from ..program.signature import DataSpec, Inline, Spec
from ..program.values import (
    FUNCTIONS,
    NIL,
    OPERATORS,
    ArrayOfTuples,
    Builtin,
    Cell,
    Closure,
    Constructing,
    Derived,
    Env,
    Frame,
    Function,
    Later,
    Part,
    Place,
    Pointwise,
    References,
    Shape,
    Spans,
    TupleValue,
    Value,
    Wrt,
    constant,
    describe,
    flatten,
    is_reference,
    language,
    nothing,
)
from .annotations import arity_text, conform, dim_names, merge_specs, moved, parameters, read_annotation, usage
from .arguments import Kept, is_checkpointed, not_checkpointed, number_in, snapshots
from .branches import branches, case, cases
from .builtins import builtin
from .families import Again, Anew, Apart, ArrayOf, Bottom, Dead, Endless, Facts
from .flow import RUNS, Flow
from .recursion import DEPTH, call_recursive, endless, inline_or_call, is_recursive, shapes_in, spend
from .resolve import resolve
from .store_passing import while_
from .subscripts import COUNTED_FROM_END, field, written

DIM_NAMES = ("n", "m", "k", "l", "p", "q")


class Specialiser(Flow):
    """One specialisation: the builder, and what of the model is being inlined."""

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self.facts = Facts()
        self.globals_read: set[str] = set()
        self.namespaces: set[int] = set()  # the modules that they were looked up in
        self.long: set[Lambda] = set()  # functions of the program for the length of their recursion alone
        self.written_out: dict[Lambda, HyadError] = {}  # those of them that can be none, and why: they are inlined
        self.start()

    def start(self) -> None:
        super().start()
        self.b = Builder(self.plain)
        self.dims: dict[str, Var] = {}
        self.dims_named: set[str] = set()  # by annotations, and integers: not for sizes without a name
        self.params: list[Var] = []
        self.scope: Callable[[str], tuple[bool, Any]] = language  # of the function that is being inlined
        self.library: str | None = None  # the prelude function that the user called and that is being inlined
        self.result_names: tuple[str, ...] = ()  # of the gradient taken last
        self.gave: dict[tuple, tuple[Scope, Value]] = {}  # what calls inside a recursion gave, and where
        self.lower: set[Var] = set()  # matrices that a function made lower triangular (see bands.py)
        self.ranges: dict[Var, tuple[float, float]] = {}  # of each matrix, where it may not be zero (bands.py)
        self.zeros: dict[Var, set[tuple[int, ...]]] = {}  # of small ones, which elements are zero (bands.py)
        self.notes: dict[tuple, tuple[Scope, Value]] = {}  # how the prelude made a value, and where (see symmetry.py)
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
        while True:
            try:
                return self.inferred(function, specs, name, span, doc)
            except HyadError as error:
                if not self.long:
                    raise
                # What they give may hang on their integers: an array's rank, a tuple's parts.
                self.written_out.update(dict.fromkeys(self.long, error))
            self.long, self.facts = set(), Facts()
            self.start()

    def inferred(
        self, function: Function, specs: Sequence[Spec], name: str, span: Span | None, doc: str | None
    ) -> Program:
        """The program, once the types of all that it calls are known."""
        for _ in range(RUNS):
            self.facts.changed = self.facts.stale = False
            try:
                program = self.attempt(function, specs, name, span, doc)
                if not self.facts.changed:
                    for value, error in self.mistakes:
                        family = self.family_of(value)
                        if family is not None and not family.numeric:
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
                    resolve(self, name)
        self.scope = scope

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
        self.dims_named.update(k[0] for k, spec in zip(known or (), specs) if INT in (k[1], spec))  # integers beside
        for i, spec in enumerate(specs):
            label, annotation, place = known[i] if known else (f"x{i}", None, None)
            merged = spec
            if annotation is not None:
                merged = merge_specs(annotation, spec, place, *moved(function, len(specs), i))
            value = self.parameter(REAL if merged is None else merged, label, place)
            ins.append(flatten(value)[1])
            value = value if annotation is None else conform(self, value, annotation, place, label)
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
            items = tuple(self.parameter(s, part_name(name, k), span) for s, k in zip(spec.items, keys))
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
            d = next(x for x in chain(DIM_NAMES, (f"n{k}" for k in count())) if x not in taken)
        if d not in self.dims:
            self.dims[d] = Var(d, INT, None, True)
            self.b.sizes.add(self.dims[d])
        return self.dims[d]

    # -------------------------------------------------------------------------------------- regions

    def block(self, block: Block, env: Env) -> Value:
        b = self.b
        self.walked += len(block.binds)
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
                value = case(self, op, env, var)
            else:
                assert type(op) is While
                while_(self, op, env)
                value = NIL
            env.values[var] = value
        return self.value(block.results[0], env)

    def value(self, atom: Atom, env: Env) -> Value:
        if type(atom) is Var:
            return env[atom]
        if type(atom) is Const:
            made = constant(atom.value, self.b.span)
            if (self.fast or self.scope is language) and made is not NIL and type(made) is Const:
                return Const(made.value, made.type, soft=True)  # the prelude's own, or a :fast-math model's
            return made
        assert isinstance(atom, Global)
        return resolve(self, atom)

    # ---------------------------------------------------------------------------------------- calls

    def surface_call(self, op: Call, env: Env, var: Var) -> Value:
        if isinstance(op.fn, Global) and op.fn.name == ".":
            return field(self, self.value(op.args[0], env), op.args[1].value)  # type: ignore[union-attr]
        fn = self.look(self.value(op.fn, env))
        kept, given = None, op.args
        if is_checkpointed(op):
            if not isinstance(fn, Builtin) or fn.name not in ("fold", "ifold"):
                raise not_checkpointed(op)
            given = op.args[:-2]
            kept = Kept(snapshots(self, self.value(op.args[-1], env), op.spans[-1]))
        args = [self.value(a, env) for a in given]
        if isinstance(fn, Builtin) and fn.name in COUNTED_FROM_END:
            args = [written(v) if type(a) is Const else v for a, v in zip(given, args)]
        if kept is not None:
            args.append(kept)  # type: ignore[arg-type]
        if not isinstance(fn, FUNCTIONS) and self.family_of(fn) is not None:
            return self.call_data(fn, args, op.spans, var)
        if not isinstance(fn, FUNCTIONS):
            raise ModelTypeError(f"{describe(fn)} is called as a function", self.b.span, hint_for("call", describe(fn)))
        takes_wrt = isinstance(fn, Builtin) and fn.name in OPERATORS
        for k, (a, span) in enumerate(zip(args, op.spans)):
            if isinstance(a, Wrt) and not (takes_wrt and k == len(args) - 1 and k > 0):
                raise ModelTypeError("`:wrt` ends the call of a derivative operator", span, "`(grad f :wrt x)`")
        return self.call(fn, args, op.spans if self.library is None else (None,) * len(args), var)

    def call(self, fn: Function, args: Sequence[Value], spans: Spans, var: Var | None) -> Value:
        """Apply a function value; ``var`` is the surface variable that names the result."""
        fn = self.look(fn)
        if isinstance(fn, Builtin):
            return builtin(self, fn.name, list(args), spans, var)
        if isinstance(fn, Closure):
            if fn.is_library and len(args) != len(fn.function.params):
                fn = prelude(f"{fn.name}/{len(args)}") or fn
            counts = fn.is_library and not any(self.family_of(a) is not None for a in args)
            if counts and fn.function not in self.facts.recursive:
                call = (fn.function, *(shape_known(self, a) for a in args), fn.env)
                if call not in self.descending:  # recursion on ranks and known integers, which ends by itself
                    self.descending.add(call)
                    try:
                        return self.inline(fn, args)
                    finally:
                        self.descending.discard(call)
            if is_recursive(self, fn.function):
                return call_recursive(self, fn, self.arguments(fn, args), var)
            if self.active.get(fn.function) and not fn.is_library:
                spend(self, fn, args)
            if self.active.get(fn.function) and fn.env is None:
                return self.inline_once(fn, args)
            if self.active.get(fn.function) or fn.is_library:
                return self.inline(fn, args)
            return inline_or_call(self, fn, args, var)
        if isinstance(fn, Constructing):
            return self.construct(fn, args)
        if self.family_of(fn) is not None:
            return self.call_data(fn, args, spans, var)
        if isinstance(fn, Derived):
            from ..differentiate.derive import apply_operator

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
        return branches(
            self,
            fn.cond,
            lambda: self.call(fn.then, args, spans, var),
            lambda: self.call(fn.orelse, args, spans, var),
            var,
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
        return cases(self, fn, apply, var)  # type: ignore[arg-type]

    def construct(self, fn: Constructing, args: Sequence[Value]) -> Value:
        """``(Node l r)``."""
        keys = fn.kind.__match_args__  # type: ignore[attr-defined]
        if len(args) != len(keys):
            fields = " ".join(fn.kind.fields if hasattr(fn.kind, "fields") else keys)  # type: ignore[attr-defined]
            raise ModelTypeError(arity_text(fn.name, len(keys), len(args)), self.b.span, f"`({fn.name} {fields})`")
        return TupleValue(tuple(args), keys, fn.kind)

    def wrong_count(self, closure: Closure, count: int) -> ModelTypeError:
        """The mistake of a call with a number of arguments that the function does not take."""
        f, library = closure.function, closure.is_library
        notes = [("it is defined here", f.span)] if f.span and not library else []
        text = arity_text(f.name, len(f.params), count, library)
        return ModelTypeError(text, self.b.span, usage(f) if library else None, notes)

    def arguments(self, closure: Closure, args: Sequence[Value]) -> list[Value]:
        """The arguments of a call as the parameters are declared."""
        f = closure.function
        if len(args) != len(f.params):
            raise self.wrong_count(closure, len(args))
        return [
            conform(self, a, read_annotation(note), note.span, p.name) if note is not None else a
            for p, a, note in zip(f.params, args, f.annotations or (None,) * len(f.params))
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
        """What a function gives, its body in the place of the call."""
        args = self.arguments(closure, args)
        if closure.is_library and any(map(self.boxed_array, args)):
            return self.with_arrays(args, lambda known: self.inline(closure, known), None)
        f = closure.function
        call_span, site, frame = self.b.span, self.site, self.frame
        fast, scope, library = self.fast, self.scope, self.library
        levels = self.active.setdefault(f, [])
        if len(levels) >= DEPTH:
            raise endless(f, call_span)
        if not levels:
            self.entered[f], self.began[f] = self.walked, shapes_in(self, args)
        levels.append(self.branching)
        self.frame = Frame(frame, site, f)
        self.fast = fast or f.fast
        self.scope = closure.scope
        self.library = (library or closure.name) if closure.is_library else None
        env = Env(closure.env)
        env.values.update(zip(f.params, args))
        try:
            return self.block(f.body, env)
        except HyadError as error:
            if self.library is not None and library is None:
                said_inside(error, self.library, f.doc)
            raise
        finally:
            levels.pop()
            if not levels:
                self.spent[f] = self.spent.get(f, 0) + self.walked - self.entered[f]
            self.fast = fast
            self.scope, self.library = scope, library
            self.frame, self.site = frame, site
            self.b.span = call_span

    # ------------------------------------------------------------------------------------- branches

    def if_(self, op: If, env: Env, var: Var) -> Value:
        cond = number_in(self, self.value(op.cond, env))
        if not isinstance(cond, (Const, Var)) or type_of(cond) != BOOL:
            place = op.place if self.library is None else None
            raise ModelTypeError(
                f"the condition is {describe(cond)}", place or self.b.span, hint_for("condition", describe(cond))
            )
        return branches(self, cond, lambda: self.block(op.then, env), lambda: self.block(op.orelse, env), var)


def grows(make: Any, items: tuple, family: Data) -> bool:
    """Whether a function of a family is a derivative of one of the same family: of unknown order."""
    return isinstance(make, Shape) and make.kind in ("derived", "pointwise") and any(x is family for x in items)


def shape_known(sp: Specialiser, value: Value) -> Any:
    """What tells one call of a prelude function from another one inside it: ranks, known integers, functions."""
    below = len(value.indices) if isinstance(value, Place) else 0
    value = value.array if isinstance(value, Place) else value
    value = sp.store.get(value) if isinstance(value, Cell) and value.array else value
    if type(value) is Const and value.type != REAL:
        return value.value
    if isinstance(value, Closure):
        return value.function
    return f"rank {rank_of(value) - below}" if isinstance(value, (Const, Var)) and value is not NIL else None
