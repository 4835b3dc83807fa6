"""Define by run: a model's surface core as Python functions, which compute, and are differentiated, as they run.

    (fn [x] (let [r (ref x)] (while (> (deref r) 1.0) (set! r (* 0.5 (deref r)))) (deref r)))
    =>  def f(v0): v1 = ref(v0)
                   while True: v2 = deref(v1); v3 = more(v2, 1.0); if v3 is False: break; ..
                   return deref(v1)

Each function of the model is compiled once to a Python function; a variable is a local variable, a closure a closure.
A function that calls functions it does not know is a generator: it yields the generator that a call gave and is sent
its value, and returns one for a call in tail position. ``drive`` runs them from a list, so that neither calls nor tail
calls use Python's stack. The line numbers of the Python code are places in the model: an error finds its form by the
line that it comes from, and a run without one pays nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Call,
    Case,
    Const,
    Global,
    If,
    Lambda,
    Node,
    Rec,
    Var,
    While,
    all_binds,
)
from ..errors import (
    BORDER,
    BoundsError,
    DerivativeError,
    HyadError,
    ModelTypeError,
    Span,
    UnboundError,
    at_border,
    hint_for,
)
from ..frontend.annotations import read_annotation, spec_text
from ..frontend.arguments import is_checkpointed, not_checkpointed
from ..frontend.resolve import in_scope, numpy_name, numpy_number, numpy_row, similar
from ..program.advice import said_inside
from ..program.data import Data
from ..program.primitives import CHAINED, COMPARISONS, FURTHER, ORDERED, PRIMITIVES
from ..program.reader import SPECIAL, deep, prelude, read_model
from ..program.values import OPERATORS, PARTS, Builtin, Closure, Derived, Wrt, for_parts
from . import library
from .active import operation
from .dynamic import ACTIVE, NUMBERS, Record, blame, describe, dims_of, enter, leave, leaves, transform
from .operators import GENERATOR, UNIT, Derivative, accepts, operator, parameters_of, wrong_count

#: So many calls may wait for one another; a recursion without an end is told from a deep one by this number.
DEPTH = 400_000
_NESTED = 15  # Python allows 20 loops inside one another
_NAMES = library.PLAIN.keys() | library.CALLING.keys() | OPERATORS


# ------------------------------------------------------------------------------------------------ running


def drive(function: Callable[..., Any], *args: Any) -> Any:
    """The value of a call: what a plain function gives, or what the generator gives that another function does."""
    waiting: list[Any] = []
    push, pop = waiting.append, waiting.pop
    try:
        run, value = function(*args), None
        if run.__class__ is not GENERATOR:
            return run
        while True:
            try:
                value = run.send(value)
            except StopIteration as stop:
                value = stop.value
                if value.__class__ is GENERATOR:  # a tail call
                    run, value = value, None
                elif waiting:
                    run = pop()
                else:
                    return value
                continue
            push(run)
            run, value = value, None
            if len(waiting) > DEPTH:
                raise HyadError(
                    f"{DEPTH} calls wait for one another here: this recursion does not end",
                    None,
                    "give it a case that calls nothing; a call in tail position waits for nothing",
                )
    except Exception as error:
        located = locate(error, waiting)
        if located is error:
            raise
        raise located from None


def locate(error: Exception, waiting: Sequence[Any]) -> Exception:
    """``error`` as the user's: with the place in the model that it comes from."""
    places = []  # outermost first
    trace = error.__traceback__
    while trace is not None:
        unit = trace.tb_frame.f_globals.get(UNIT)
        if unit is not None:
            places.append((unit, trace.tb_frame, trace.tb_lineno))
            if trace.tb_next is None and isinstance(error, TypeError) and not isinstance(error, HyadError):
                error = uncallable(*places[-1]) or error
        trace = trace.tb_next
    if not isinstance(error, HyadError) or error.span is not None:
        return error
    frames = (run.gi_frame for run in reversed(waiting))
    around = ((f.f_globals[UNIT], f, f.f_lineno) for f in frames if UNIT in f.f_globals)
    innermost, inside = True, None
    for unit, frame, line in chain(reversed(places), around):
        if unit.library is not None:
            inside, innermost = unit.library, False
            continue
        span, op = unit.places[line]
        error.span = span
        if innermost and type(op) is Call and hasattr(error, "value"):
            for atom, place in zip(op.args, op.spans):
                if place is not None and unit.value(atom, frame) is error.value:
                    error.span = place
                    break
        break
    if inside is not None:
        said_inside(error, inside.name, inside.doc)
    return error


def uncallable(unit: Unit, frame: Any, line: int) -> HyadError | None:
    """What is wrong with a call that Python refused: its head is no function, or takes another number of arguments."""
    _, op = unit.places[line]
    if type(op) is not Call:
        return None
    f = unit.value(op.fn, frame)
    if not callable(f):
        return ModelTypeError(f"{describe(f)} is called as a function", None, hint_for("call", describe(f)))
    return None if accepts(f, len(op.args)) else wrong_count(f, len(op.args))


class Unit:
    """One function of the user's with all that is inside it, as Python code: what finds the model's text again."""

    def __init__(self, library: Lambda | None) -> None:
        self.library = library  # the prelude's function that this is
        self.places: list[tuple[Span | None, Any]] = [(None, None)]  # by line of the Python code
        self.functions: dict[int, Lambda] = {}  # by first line
        self.names: dict[Var, str] = {}
        self.globals: dict[str, tuple[str, tuple[str, Any]]] = {}  # the model's name: the code's, and what it means
        self.env: dict[str, Any] = {UNIT: self, "GENERATOR": GENERATOR, "refuse": refuse, "conform": conform,
                                    "missing": missing, "with_wrt": with_wrt, "is_pair": is_pair}  # fmt: skip

    def value(self, atom: Atom, frame: Any) -> Any:
        """What an atom is in a frame of the code."""
        if type(atom) is Const:
            return atom.value
        if type(atom) is Var:
            return frame.f_locals.get(self.names.get(atom))
        return self.env.get(self.globals[atom.name][0]) if atom.name in self.globals else None


# ------------------------------------------------------------------------------- what compiled code calls


def refuse(c: Any) -> None:
    raise library.condition(c)


def missing(value: Any, *wanted: str) -> None:
    """No arm of a ``case`` or ``match`` takes what came."""
    have = f"the arms are for {', '.join(f'`{w}`' for w in wanted)}"
    raise blame(ModelTypeError(f"no arm takes {describe(value)}", None, f"{have}; `_` takes all that is left"), value)


def is_pair(value: Any) -> bool:
    return value.__class__ is tuple and len(value) == 2


def with_wrt(f: Any, *args: Any) -> Any:
    """A call that ends with ``:wrt``."""
    if getattr(f, "operator", None) is None or isinstance(f, Derivative) or len(args) < 2:
        raise ModelTypeError("`:wrt` ends the call of a derivative operator", None, "`(grad f :wrt x)`")
    return f(*args)


def conform(notes: Sequence[Any], *args: Any) -> tuple[Any, ...]:
    """The arguments of a call against the annotations of its parameters; an integer for a ``Real`` becomes one."""
    sizes: dict[str, int] = {}
    return tuple(x if note is None else conformed(x, note[1], note, sizes) for x, note in zip(args, notes))


def conformed(x: Any, spec: Any, note: tuple[str, Any, Span], sizes: dict[str, int]) -> Any:
    def fail(more: str = "") -> ModelTypeError:
        name, declared, span = note
        text = declared.__name__ if isinstance(declared, type) else spec_text(declared)
        return ModelTypeError(f"`{name}` is declared {text} but the argument is {describe(x)}{more}", span)

    if isinstance(spec, type):
        if not isinstance(x, spec):
            raise fail()
        return x
    if isinstance(spec, Node):
        items = x.values if x.__class__ is Record else x
        if not isinstance(items, tuple) or len(items) != len(spec.items):
            raise fail()
        made = tuple(conformed(y, s, note, sizes) for y, s in zip(items, spec.items))
        return Record(x.keys, made, x.make) if x.__class__ is Record else made
    if isinstance(spec, Arr):
        dims = dims_of(x)
        if not isinstance(x, list) or dims is None or len(dims) != spec.rank:
            raise fail()
        for have, want in zip(dims, spec.dims):
            wanted = sizes.setdefault(want, have) if isinstance(want, str) else want
            if wanted is not None and have != wanted:
                raise fail(f", where {want} is {wanted}" if isinstance(want, str) else "")
        kinds = {n.__class__ for n in leaves(x)}
        if spec.elem == REAL and bool not in kinds:
            return transform(x, lambda n: float(n) if n.__class__ is int else n) if int in kinds else x
        if kinds - {int if spec.elem == INT else bool}:
            raise fail()
        return x
    kind = x.__class__
    if spec == REAL and kind is int:
        return float(x)
    if kind is bool if spec == BOOL else kind is int if spec == INT else kind in NUMBERS:
        return x
    raise fail()


def foreign(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A Python function in a model: called with plain values, and never differentiated."""

    def call(*args: Any) -> Any:
        library.for_good()
        for x in leaves(args):
            level = getattr(x, "level", None) if x.__class__ in ACTIVE else None
            while level is not None and level.dead:
                x = x.primal
                level = x.level if x.__class__ in ACTIVE else None
            if level is not None:
                raise DerivativeError(
                    f"`{name}` is a Python function, which hyad cannot differentiate",
                    None,
                    "make it a model with defmodel, or a primitive with defprim",
                )
        return enter(function(*(leave(a, Returned) for a in args)), f"what `{name}` gave", from_python)

    call.__name__ = name
    return call


def called(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A function of the model called with Python's values."""
    names = [p[0] for p in parameters_of(function) or ()] or [str(k) for k in range(len(args))]
    values = [enter(a, f"argument `{name}`", from_python) for name, a in zip(names, args)]
    return leave(drive(function, *values), Returned)


class Returned:
    """A function that a model gave to Python: it takes and gives Python's values."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        try:
            if not accepts(self.function, len(args)):
                raise wrong_count(self.function, len(args))
            return called(self.function, args)
        except BORDER as error:
            raise at_border(error)

    def __repr__(self) -> str:
        return f"<function {getattr(self.function, '__name__', 'of a model')}>"


def from_python(value: Any) -> Callable[..., Any]:
    """What a function among the arguments is inside the model."""
    if isinstance(value, Returned):
        return value.function
    made = getattr(value, "hyad_value", None)
    if made is not None:
        return Runtime().function(made())
    if isinstance(value, type) and issubclass(value, Data):
        return value
    return foreign(value, getattr(value, "__name__", "this function"))


# --------------------------------------------------------------------------------------- names and values


class Runtime:
    """What one model needs to run: its functions and those that it calls, compiled, with their names resolved."""

    def __init__(self) -> None:
        self.made: dict[Lambda, Callable[..., Any]] = {}
        self.pending: list[Unit] = []
        self.names: set[str] = set()
        self.arrays: list[tuple[dict[str, Any], str, Any]] = []  # of the user's module: copied at each call

    def function(self, value: Any) -> Callable[..., Any]:
        """The Python function of a model's function value."""
        made = self.create(value)
        while self.pending:
            unit = self.pending.pop()
            for name, (key, meaning) in unit.globals.items():
                unit.env[key] = self.realise(name, meaning, unit.env, key)
        return made

    def create(self, value: Any) -> Callable[..., Any]:
        if isinstance(value, Derived):
            return Derivative(value.operator, self.create(value.function), value.wrt)
        if isinstance(value, Builtin):
            return builtin(value.name)
        assert isinstance(value, Closure), value
        if value.function not in self.made:
            inside = value.function if value.is_library else None
            unit, made = deep(lambda: _Compiler(self, value.scope, inside).unit(value.function))
            self.made[value.function] = made
            self.pending.append(unit)
        return self.made[value.function]

    def meaning(self, name: Global, scope: Callable[[str], tuple[bool, Any]]) -> tuple[str, Any]:
        """What a free name means: the user's module first, then the language. ``("builtin", name)``,
        ``("function", value)`` or ``("value", Python's)``."""
        if name.name.startswith(PARTS):
            return "builtin", for_parts(self.meaning(Global(name.name[len(PARTS) :], name.span), scope)[1])
        self.names.add(name.name)
        known = name.name in PRIMITIVES or name.name in _NAMES
        found, value = in_scope(scope, name.name)
        if found:
            made = getattr(value, "hyad_value", None)
            if made is not None:
                function = made()
                if not (known and isinstance(function, Builtin)):
                    return "function", function
            elif isinstance(value, type) and issubclass(value, Data):
                return "constructor", value
            elif not callable(value):
                return "value", value
            else:
                row = numpy_name(value)
                if row is not None and prelude(row) is not None:
                    return "function", prelude(row)
                if not known:
                    return ("builtin", row) if row is not None else ("foreign", value)
        if known:
            return "builtin", name.name
        function = prelude(name.name)
        if function is not None:
            return "function", function
        row = numpy_row(name.name)
        if row is not None:
            function = prelude(row)
            return ("function", function) if function is not None else ("builtin", row)
        number = numpy_number(name.name)
        if number is not None:
            return "value", number
        if name.name in SPECIAL:
            raise ModelTypeError(f"`{name.name}` is a form, not a value", name.span, f"write `({name.name} ...)`")
        raise UnboundError(f"nothing binds `{name.name}`", name.span, similar(name, scope))

    def realise(self, name: str, meaning: tuple[str, Any], env: dict[str, Any], key: str) -> Any:
        kind, value = meaning
        if kind == "builtin":
            return builtin(value)
        if kind == "function":
            return self.create(value)
        if kind == "constructor":
            return value
        if kind == "foreign":
            return foreign(value, name)
        made = enter(value, f"`{name}`", from_python)
        if made.__class__ not in NUMBERS and any(isinstance(x, np.ndarray) for x in arrays_in(value)):
            self.arrays.append((env, key, value))
        return made


def arrays_in(value: Any) -> list[Any]:
    """What a value of the user's module is made of."""
    found, todo = [], [value]
    while todo:
        x = todo.pop()
        found.append(x)
        if isinstance(x, (tuple, Data)):
            todo.extend(x)
        elif isinstance(x, dict):
            todo.extend(x.values())
    return found


def builtin(name: str) -> Callable[..., Any]:
    """What a name of the language is as a value."""
    if name in OPERATORS:
        return operator(name)
    found = library.PLAIN.get(name) or library.CALLING.get(name)
    if found is not None:
        return found
    if name in PRIMITIVES:
        return variadic(name) if name in CHAINED | COMPARISONS | FURTHER else operation(name)
    raise UnboundError(f"`{name}` is not a function of running models")


def variadic(name: str) -> Callable[..., Any]:
    """A primitive of any number of operands: ``(+ a b c)``, ``(- a)``, ``(< a b c)``."""
    op = operation(name)

    def chained(*args: Any) -> Any:
        if len(args) == 2:
            return op(*args)
        if len(args) < 2:
            if args and name in ("min", "max") and isinstance(args[0], list):
                numbers = leaves(args[0])
                if not numbers:
                    raise BoundsError(f"`{name}` of an array without elements")
                return chained(*numbers) if len(numbers) > 1 else numbers[0]
            if args:
                return {"-": operation("neg"), "/": lambda x: op(1, x)}.get(name, lambda x: op(x, 1) and x)(args[0])
            if name in ("+", "*"):
                return 0 if name == "+" else 1
            raise ModelTypeError(f"`{name}` takes at least 1 argument, not 0")
        total = args[0]
        for x in args[1:]:
            total = op(total, x)
        return total

    def compared(*args: Any) -> Any:
        if len(args) == 1 and name in ORDERED:
            op(args[0], args[0])  # which refuses what has no order
            return True
        if len(args) < 2:
            wanted = "at least 1 argument" if name in ORDERED else "2 arguments"
            raise ModelTypeError(f"`{name}` takes {wanted}, not {len(args)}")
        total = op(args[0], args[1])
        for a, b in zip(args[1:], args[2:]):
            total = operation("and")(total, op(a, b))
        return total

    def further(*args: Any) -> Any:
        if len(args) < 2:
            raise ModelTypeError(f"`{name}` takes 2 arguments, not {len(args)}")
        return reduce(lambda y, x: op(x, y), reversed(args)) if name == "**" else reduce(op, args)

    made = chained if name in CHAINED else compared if name in COMPARISONS else further
    made.__name__ = name
    if name in FURTHER:
        made.row = PRIMITIVES[name]  # type: ignore[attr-defined]
    return made


# --------------------------------------------------------------------------------------------- compiling

_LOAD, _STORE = ast.Load(), ast.Store()
RETURN = ""  # where a tail expression's value goes


class _Compiler:
    """Surface core to Python's syntax tree. ``body`` is the open list of statements; ``calls`` says whether the
    function at hand calls functions that it does not know."""

    def __init__(self, runtime: Runtime, scope: Callable[[str], tuple[bool, Any]], inside: Lambda | None) -> None:
        self.runtime, self.scope = runtime, scope
        self.out = Unit(inside)
        self.body: list[ast.stmt] = []
        self.calls = False
        self.loops = 0
        self.fresh = 0
        self.derived: set[Var] = set()  # what an operator gave
        self.line = 0

    def unit(self, function: Lambda) -> tuple[Unit, Callable[..., Any]]:
        self.function(function, "f")
        code = compile(ast.Module(self.body, []), f"<{function.name or 'model'}>", "exec")
        exec(code, self.out.env)
        return self.out, self.out.env["f"]

    # ------------------------------------------------------------------------------------ syntax

    def place(self, span: Span | None, op: Any) -> None:
        self.out.places.append((span, op))
        self.line = len(self.out.places) - 1

    def node(self, kind: type, **fields: Any) -> Any:
        return kind(**fields, lineno=self.line, col_offset=0, end_lineno=self.line, end_col_offset=1)

    def load(self, name: str) -> ast.expr:
        return self.node(ast.Name, id=name, ctx=_LOAD)

    def constant(self, value: Any) -> ast.expr:
        return self.node(ast.Constant, value=value)

    def invoke(self, function: ast.expr | str, *args: ast.expr) -> ast.expr:
        head = self.load(function) if isinstance(function, str) else function
        return self.node(ast.Call, func=head, args=list(args), keywords=[])

    def compare(self, left: ast.expr, op: type, right: ast.expr) -> ast.expr:
        return self.node(ast.Compare, left=left, ops=[op()], comparators=[right])

    def test(self, condition: ast.expr, then: list[ast.stmt], orelse: list[ast.stmt]) -> ast.stmt:
        return self.node(ast.If, test=condition, body=then or [self.node(ast.Pass)], orelse=orelse)

    def give(self, dest: str, value: ast.expr) -> None:
        """Put a value where it goes."""
        if dest == RETURN:
            self.body.append(self.node(ast.Return, value=value))
        else:
            target = self.node(ast.Name, id=dest, ctx=_STORE)
            self.body.append(self.node(ast.Assign, targets=[target], value=value))

    def name(self, var: Var) -> str:
        found = self.out.names.get(var)
        if found is None:
            found = self.out.names[var] = f"v{len(self.out.names)}"
        return found

    def temporary(self) -> str:
        self.fresh += 1
        return f"t{self.fresh}"

    def atom(self, atom: Atom) -> ast.expr:
        if type(atom) is Var:
            return self.load(self.name(atom))
        if type(atom) is Const:
            if type(atom.value) is tuple:  # :wrt
                return self.load(self.kept(Wrt(atom.value[1])))
            return self.constant(atom.value)
        return self.load(self.known(atom)[0])

    def kept(self, value: Any) -> str:
        """A constant of the code's globals."""
        name = f"k{len(self.out.env)}"
        self.out.env[name] = value
        return name

    def known(self, name: Global) -> tuple[str, tuple[str, Any]]:
        found = self.out.globals.get(name.name)
        if found is None:
            meaning = self.runtime.meaning(name, self.scope)
            found = self.out.globals[name.name] = (f"g{len(self.out.globals)}", meaning)
        return found

    # ------------------------------------------------------------------------- functions and blocks

    def function(self, f: Lambda, name: str) -> None:
        self.place(f.span, f)
        line = self.line
        self.out.functions[line] = f
        params = [self.name(p) for p in f.params]
        outer, calls, loops = self.body, self.calls, self.loops
        self.body, self.calls, self.loops = [], False, 0
        notes = [self.note(p, a) for p, a in zip(f.params, f.annotations or (None,) * len(f.params))]
        if any(note is not None for note in notes):
            targets = [self.node(ast.Name, id=p, ctx=_STORE) for p in params]
            value = self.invoke("conform", self.load(self.kept(notes)), *map(self.load, params))
            self.body.append(
                self.node(ast.Assign, targets=[self.node(ast.Tuple, elts=targets, ctx=_STORE)], value=value)
            )
        self.into(f.body, RETURN)
        self.define(name, params, line, outer, calls, loops)

    def define(
        self, name: str, params: Sequence[str], line: int, outer: list[ast.stmt], calls: bool, loops: int
    ) -> None:
        """The open statements as a function of their own, in the list around it."""
        if self.calls:  # a generator, though all its calls be tail calls
            self.body.append(self.node(ast.Expr, value=self.node(ast.Yield, value=None)))
        made = ast.parse(f"def {name}({', '.join(params)}): pass").body[0]
        made.body, made.lineno, made.end_lineno = self.body, line, line  # type: ignore[attr-defined]
        self.body, self.calls, self.loops = outer, calls, loops
        self.body.append(made)

    def note(self, param: Var, annotation: Any) -> Any:
        if annotation is None:
            return None
        if annotation.kind == "sym":
            found, value = self.scope(annotation.value)
            if found and isinstance(value, type) and issubclass(value, Data):
                return param.name, value, annotation.span
        return param.name, read_annotation(annotation), annotation.span

    def region(self, block: Block, dest: str) -> list[ast.stmt]:
        outer, self.body = self.body, []
        self.into(block, dest)
        made, self.body = self.body, outer
        return made

    def into(self, block: Block, dest: str) -> None:
        """The statements of a block; its result goes to ``dest``."""
        (result,) = block.results
        last = block.binds[-1] if block.binds else None
        whole = last is not None and last.vars == (result,) and type(last.op) in (Call, If, Case)
        for bind in block.binds[:-1] if whole else block.binds:
            self.bind(bind, None)
        if whole:
            self.bind(last, dest)  # type: ignore[arg-type]
        else:
            self.give(dest, self.atom(result))

    def bind(self, bind: Bind, dest: str | None) -> None:
        op = bind.op
        self.place(bind.span, op)
        if dest is None and type(op) is not Rec:
            dest = self.name(bind.vars[0])
        if type(op) is Call:
            self.call(op, bind, dest)  # type: ignore[arg-type]
        elif type(op) is If:
            self.branch(op, dest)  # type: ignore[arg-type]
        elif type(op) is Lambda:
            self.function(op, dest)  # type: ignore[arg-type]
        elif type(op) is Rec:
            for var, f in zip(bind.vars, op.functions):
                self.function(f, self.name(var))
        elif type(op) is While:
            self.while_(op)
            self.give(dest, self.constant(None))  # type: ignore[arg-type]
        else:
            assert type(op) is Case, op
            self.case(op, dest)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------- operations

    def call(self, op: Call, bind: Bind, dest: str) -> None:
        fn, args = op.fn, op.args
        if type(fn) is Global and fn.name == ".":
            self.give(dest, self.invoke(self.kept(library.field), *map(self.atom, args)))
            return
        kind, value = self.known(fn)[1] if type(fn) is Global else ("", None)
        if is_checkpointed(op):  # what is remembered here is the tape
            if (kind, value) not in (("builtin", "fold"), ("builtin", "ifold")):
                raise not_checkpointed(op)
            args = args[:-2]
        if kind == "function" and isinstance(value, Closure) and value.is_library:
            other = f"{value.name}/{len(args)}"
            if len(value.function.params) != len(args) and prelude(other) is not None:
                fn = Global(other, fn.span)  # type: ignore[union-attr]
                kind, value = self.known(fn)[1]
        if any(type(a) is Const and type(a.value) is tuple for a in args):
            if not all(type(a) is not Const or type(a.value) is not tuple for a in args[:-1]):
                raise ModelTypeError("`:wrt` ends the call of a derivative operator", bind.span, "`(grad f :wrt x)`")
            self.unknown(self.invoke("with_wrt", self.atom(fn), *map(self.atom, args)), dest, False)
            self.derived.add(bind.vars[0])
        elif kind == "builtin" and value in PRIMITIVES:
            self.give(dest, self.invoke(self.kept(self.primitive(value, len(args), bind.span)), *map(self.atom, args)))
        elif kind == "builtin" and value in library.CALLING:
            self.calls = True
            yielded = self.node(ast.Yield, value=self.invoke(self.atom(fn), *map(self.atom, args)))
            if dest == RETURN:  # not as a tail call: an error inside is this call's
                self.give(name := self.temporary(), yielded)
                yielded = self.load(name)
            self.give(dest, yielded)
        elif kind == "builtin" and value in OPERATORS:
            self.derived.add(bind.vars[0])
            self.unknown(self.invoke(self.atom(fn), *map(self.atom, args)), dest, False)
        elif kind == "builtin":
            head = self.atom(fn)
            if value in library.FROM_END and any(map(negative, args)):
                head = self.load(self.kept(library.FROM_END[value]))
            self.give(dest, self.invoke(head, *map(self.atom, args)))
        elif kind == "constructor":
            self.give(dest, self.invoke(self.atom(fn), *map(self.atom, args)))
        else:
            of_prelude = kind == "function" and isinstance(value, Closure) and value.is_library
            tail = not of_prelude and not (kind == "function" and isinstance(value, Derived)) and fn not in self.derived
            self.unknown(self.invoke(self.atom(fn), *map(self.atom, args)), dest, tail)

    def unknown(self, call: ast.expr, dest: str, tail: bool) -> None:
        """A call that may give a generator, which is to be waited for, or returned in tail position."""
        self.calls = True
        if dest == RETURN and tail:
            self.give(RETURN, call)
            return
        name = self.temporary() if dest == RETURN else dest
        self.give(name, call)
        kind = self.node(ast.Attribute, value=self.load(name), attr="__class__", ctx=_LOAD)
        outer, self.body = self.body, []
        self.give(name, self.node(ast.Yield, value=self.load(name)))
        wait, self.body = self.body, outer
        self.body.append(self.test(self.compare(kind, ast.Is, self.load("GENERATOR")), wait, []))
        if dest == RETURN:
            self.give(RETURN, self.load(name))

    def primitive(self, name: str, count: int, span: Span | None) -> Callable[..., Any]:
        if name == "-" and count == 1:
            return operation("neg")
        if count == len(PRIMITIVES[name].params):
            return operation(name)
        if name in CHAINED or name in COMPARISONS | FURTHER and count > 2 or name in ORDERED and count < 2:
            return variadic(name)
        wanted = len(PRIMITIVES[name].params)
        raise ModelTypeError(f"`{name}` takes {wanted} argument{'s' * (wanted != 1)}, not {count}", span)

    def branch(self, op: If, dest: str) -> None:
        if type(op.cond) is Const and type(op.cond.value) is bool:
            self.into(op.then if op.cond.value else op.orelse, dest)
            return
        line = self.line
        then, orelse = self.region(op.then, dest), self.region(op.orelse, dest)
        self.line = line
        otherwise = self.node(ast.Expr, value=self.invoke("refuse", self.atom(op.cond)))
        is_false = self.compare(self.atom(op.cond), ast.Is, self.constant(False))
        no = self.test(is_false, orelse, [otherwise])
        self.body.append(self.test(self.compare(self.atom(op.cond), ast.Is, self.constant(True)), then, [no]))

    def while_(self, op: While) -> None:
        """A loop; where its body makes functions, a function called at each turn, so that what they close over is a
        variable of that turn."""
        makes = any(type(b.op) in (Lambda, Rec) for block in (op.cond, op.body) for b in all_binds(block))
        line, outer = self.line, self.body
        outlined = makes or self.loops >= _NESTED
        names = [self.outlined(block) for block in (op.cond, op.body)] if outlined else []
        self.line, self.body = line, []
        self.loops += 1
        cond = self.temporary()
        if outlined:
            self.unknown(self.invoke(names[0]), cond, False)
        else:
            self.into(op.cond, cond)
        self.line = line
        wrong = self.node(ast.Expr, value=self.invoke("refuse", self.load(cond)))
        end = self.test(self.compare(self.load(cond), ast.Is, self.constant(False)), [self.node(ast.Break)], [wrong])
        self.body.append(self.test(self.compare(self.load(cond), ast.IsNot, self.constant(True)), [end], []))
        rest = self.temporary()
        if outlined:
            self.unknown(self.invoke(names[1]), rest, False)
        else:
            self.into(op.body, rest)
        self.line = line
        body, self.body = self.body, outer
        self.loops -= 1
        self.body.append(self.node(ast.While, test=self.constant(True), body=body, orelse=[]))

    def outlined(self, block: Block) -> str:
        name, line = self.temporary(), self.line
        outer, calls, loops = self.body, self.calls, self.loops
        self.body, self.calls, self.loops = [], False, 0
        self.into(block, RETURN)
        self.define(name, (), line, outer, calls, loops)
        return name

    def case(self, op: Case, dest: str) -> None:
        line, value = self.line, self.atom(op.value)
        wanted = [a.constructor.name for a in op.arms if a.constructor is not None]
        arms: list[ast.stmt] = [self.node(ast.Expr, value=self.invoke("missing", value, *map(self.constant, wanted)))]
        for arm in reversed(op.arms):
            self.place(arm.span, op)
            if arm.constructor is None:
                arms = self.region(arm.block, dest)
                continue
            test, reads = self.pattern(op.value, arm)
            outer, self.body = self.body, []
            for var, read in zip(arm.fields, reads):
                self.give(self.name(var), read)
            self.into(arm.block, dest)
            body, self.body = self.body, outer
            arms = [self.test(test, body, arms)]
            self.line = line
        self.body.extend(arms)

    def pattern(self, value: Atom, arm: Any) -> tuple[ast.expr, list[ast.expr]]:
        """Whether a value is of an arm's constructor, and its fields."""
        name, count = arm.constructor.name, len(arm.fields)
        if name == "nil":
            return self.compare(self.atom(value), ast.Is, self.constant(None)), []
        kind, found = self.known(arm.constructor)[1]
        if kind == "builtin" and name == "cons":
            fields = ["0", "1"]
            test = self.invoke("is_pair", self.atom(value))
            reads = [
                self.node(ast.Subscript, value=self.atom(value), slice=self.constant(k), ctx=_LOAD) for k in (0, 1)
            ]
        else:
            if kind == "builtin" and name in ("inl", "inr"):
                found = library.Inl if name == "inl" else library.Inr
            if not (isinstance(found, type) and issubclass(found, Data)) or not hasattr(found, "name"):
                raise ModelTypeError(
                    f"`{name}` is not a constructor",
                    arm.constructor.span,
                    "`(defdata Tree (Leaf word) ...)` makes some",
                )
            kind_of = self.node(ast.Attribute, value=self.atom(value), attr="__class__", ctx=_LOAD)
            test = self.compare(kind_of, ast.Is, self.load(self.kept(found)))
            fields = list(found.__match_args__)
            reads = [self.node(ast.Attribute, value=self.atom(value), attr=f, ctx=_LOAD) for f in fields]
        if len(fields) != count:
            raise ModelTypeError(
                f"`{name}` has {len(fields)} field{'s' * (len(fields) != 1)}; this pattern names {count}", arm.span
            )
        return test, reads


# ----------------------------------------------------------------------------------------- from Python


def negative(a: Atom) -> bool:
    return type(a) is Const and type(a.value) is int and a.value < 0


class Entry:
    """A model as Python calls it, define by run."""

    def __init__(self, value: Any, name: str, span: Span | None) -> None:
        self.value, self.name, self.span = value, name, span
        self.runtime = Runtime()
        self.function = self.runtime.function(value)

    @property
    def names(self) -> set[str]:
        """The free names that were looked up."""
        return self.runtime.names

    def __call__(self, *args: Any) -> Any:
        try:
            if not accepts(self.function, len(args)):
                raise wrong_count(self.function, len(args))
            for env, key, array in self.runtime.arrays:
                env[key] = enter(array, key, from_python)
            return called(self.function, args)
        except HyadError as error:
            error.span = error.span or self.span
            raise


def rule(model: Any) -> Callable[..., Any]:
    """The function of a ``jvp`` or ``vjp`` given with defprim: a model or the text of one."""
    value = model.hyad_value() if hasattr(model, "hyad_value") else None
    if value is None:
        value = _rules.get(model) or _rules.setdefault(model, Closure(read_model(model), None, no_module))
    return Runtime().function(value)


def no_module(name: str) -> tuple[bool, Any]:
    """The scope of a rule's text: its global names are the language's."""
    return False, None


_rules: dict[str, Closure] = {}
