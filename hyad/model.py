"""Models: what users hold. A ``Model`` compiles itself at first call, one specialisation for each signature.

The path of a call: the C entry of the last specialisation takes the arguments as they are; only what does not fit it
comes back to ``Model._dispatch``, which finds or makes the specialisation that does, or says what is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import memo
from .call_errors import check_error, misfit, said_at_call
from .core import INT, Program, Tree, leaves
from .errors import (
    BORDER,
    CompileError,
    HyadError,
    ModelTypeError,
    NoCForm,
    NotCompiled,
    ReadError,
    Source,
    Span,
    UnboundError,
    at_border,
    border,
)
from .frontend.annotations import parameters
from .marshalling import signature_key, spec_of, with_rows, without_rows
from .plain_python import python_callable, run_to
from .program.check import check_after
from .program.data import defdata
from .program.forms import Form, read_forms, unparse
from .program.journal import FIRED, OFF
from .program.journal import without as switched_off
from .program.names import mangled
from .program.reader import deep, form_to_lambda, only_model
from .program.recent import once, renewed
from .program.signature import Spec
from .program.values import ENCODINGS, Closure, Derived, Function

if TYPE_CHECKING:
    from .interpret.eager import Entry


_named: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """A model, or a function derived from one: callable from Python, usable inside other models.

    ``f(x, y, out=...)`` takes and returns Python numbers, NumPy arrays (not copied), tuples, dicts and dataclasses.
    The first call with a new signature compiles it to C (to Python where there is no compiler). A model is pickled as a
    function is, by its module and name; a derivative by its operator and model.
    """

    def __init__(
        self, value: Function, name: str, span: Span | None = None, doc: str | None = None, text: str = ""
    ) -> None:
        self.value, self.name, self.span = value, name, span
        self.__doc__ = doc
        self.__name__ = name
        self.source = text
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._short: dict[Any, bool] = {}  # whether there is a program for a signature with short rows
        self._options: dict[str, Any] = {}
        self._call: Callable[..., Any] = self._first
        self._last: tuple[Spec, ...] | None = None
        self._globals: set[str] = set()
        self.forgotten = 0  # how often what was made of it has become outdated
        self._namespaces: set[int] = set()
        self._running: Entry | None = None  # define by run
        self._noted = False
        _named.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except BORDER as error:
            raise at_border(error)

    def hyad_value(self) -> Function:
        """What this is inside a model."""
        return self.value

    def __copy__(self) -> Model:
        return self

    def __deepcopy__(self, memo: dict) -> Model:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple]:
        if "base" in self.__dict__:
            d = self.value
            return derived, (d.operator, self.base, d.wrt, d.encoding)
        namespace = getattr(getattr(self.value, "scope", None), "namespace", {})
        module = sys.modules.get(namespace.get("__name__"))
        for name, value in vars(module).items() if module is not None else ():
            if value is self:
                return by_name, (module.__name__, name)
        hint = "define it at the top of a module, where another process finds it by name"
        raise ModelTypeError(f"{self.name} cannot be pickled: it is no name of a module", self.span, hint)

    @property
    def doc(self) -> str | None:
        return self.__doc__

    def __repr__(self) -> str:
        return f"<model {self.name}>" if not self.source else self.source

    @property
    def off(self) -> tuple[str, ...]:
        """The optimisations that it is made without."""
        return tuple(self._options.get("without", ()))

    def without(self, names: str | Sequence[str]) -> Model:
        """This model, made without some optimisations, one or several, as is what is derived from it; raises
        ``HyadError`` for a name that is none."""
        from .switches import chosen

        return self.with_options({**self._options, "without": chosen(names)})

    def with_options(self, options: dict[str, Any]) -> Model:
        """This model, compiled with options of its own."""
        own = Model(self.value, self.name, self.span, self.__doc__, self.source)
        own._options, own._last = options, self._last
        return own

    # ----------------------------------------------------------------------------------- dispatching

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        return self._dispatch("", args, kwargs)

    def _dispatch(self, reason: str | int, args: tuple, kwargs: dict, entry: Any = None) -> Any:
        """Call the specialisation that fits ``args``; ``entry`` is one that just refused them, for ``reason``."""
        if isinstance(reason, int) and entry is not None:
            raise check_error(entry.cfunction.checks[reason - 1], self, args)
        known = parameters(self.value)
        for keyword in kwargs:
            if keyword != "out":
                named = any(keyword in (p[0], mangled(p[0])) for p in known or ())
                hint = "arguments go by position" if named else "`out=` is the one there is"
                raise ModelTypeError(f"{self.name} got an unexpected keyword `{keyword}`", self.span, hint)
        if known is not None and len(known) != len(args):
            raise self.arity_error(len(args))
        try:
            specs = self._specs(args, known)
        except NotCompiled as reason:
            return self._run_instead(reason)(*args, **kwargs)
        key = tuple(map(signature_key, specs))
        found = self._compiled.get(key)
        if found is not None and found is entry:
            plain = [a.item() if isinstance(a, np.ndarray) and a.ndim == 0 else a for a in args]
            if any(a is not b for a, b in zip(plain, args)):  # an array without dims is a number
                return self(*plain, **kwargs)
            program = getattr(found, "program", None) or self.optimised(specs)
            raise misfit(str(reason), self, program, args, kwargs)
        if found is None:
            try:
                found = self._compiled[key] = self.made(specs, self._remembered)
            except NotCompiled as reason:
                found = self._compiled[key] = self._run_instead(reason)
            self._last = tuple(specs)
        if getattr(found, "target", None) == "run":  # not entered: another signature may well compile
            return found(*args, **kwargs)
        self._enter(found)
        return found(*args, **kwargs)

    def arity_error(self, given: int) -> ModelTypeError:
        known = parameters(self.value)
        names, plural = " ".join(p[0] for p in known), "s" * (len(known) != 1)
        return ModelTypeError(f"{self.name} takes {len(known)} argument{plural} [{names}], not {given}", self.span)

    def _enter(self, found: Callable[..., Any]) -> None:
        """Send calls to ``found``. CPython looks ``__call__`` up on the class and calls a builtin that it finds there
        with no frame in between: a model that runs as C has a class of its own, whose ``__call__`` is the C entry."""
        self._call = found
        entry = getattr(found, "entry", None)
        if entry is None:
            self.__class__ = Model
            return
        own = found.__dict__.get("owner")
        if own is None:
            own = found.__dict__["owner"] = type("Model", (Model,), {"__call__": entry, "__doc__": Model.__doc__})
        self.__class__ = own

    def made(self, specs: Sequence[Spec], compiling: Callable[..., Any]) -> Callable[..., Any]:
        """What ``compiling`` makes for a signature; for all sizes of rows where it cannot for those of this one: what
        does not fit is then said of the call."""
        try:
            return compiling(specs)
        except HyadError:
            whole = list(map(without_rows, specs))
            if whole == list(specs):
                raise
            return compiling(whole, rows="any")

    def _remembered(self, specs: Sequence[Spec], **more: Any) -> Callable[..., Any]:
        """``compile_for``, or what an earlier process made of the same text and signature (see ``memo``)."""
        options = {**self._options, **more}
        if options.get("target", "c") != "c":
            return self.compile_for(specs, **options)
        path = memo.path_of(self.value, specs, options)
        known = memo.read(path, memo.scope_of(self.value), specs) if path is not None else None
        if known is not None:
            names, *parts = known
            self._globals.update(names)
            try:
                return self._load(*parts, self._options.get("flags", "exact"))
            except CompileError:  # said again, in full, by the way that compiles
                pass
        found = self.compile_for(specs, **options)
        if found.target == "c" and len(self._namespaces) <= 1:
            program = found.program
            memo.write(path, self._globals, self.value, found.cfunction, program.ins, program.out)
        return found

    def adopt(self, specs: Sequence[Spec], found: Callable[..., Any]) -> None:
        """Send calls to what was compiled for a signature."""
        self._compiled[tuple(map(signature_key, specs))] = found
        self._enter(found)

    def _forget(self) -> None:
        """Drop what was compiled: a model that it calls has been defined anew."""
        self.forgotten += 1
        self._compiled.clear()
        self._short.clear()
        self._running = None
        self._enter(self._first)

    def running(self) -> Entry:
        """This model define by run."""
        if self._running is None:
            from .interpret.eager import Entry

            self._running = Entry(self.value, self.name, self.span)
            self._globals |= self._running.names
        return self._running

    def _run_instead(self, reason: NotCompiled) -> Callable[..., Any]:
        """Define by run for a signature that has no typed program; why is said once for a model."""
        if self._options:  # hyad.compile's own
            raise reason
        if not self._noted:
            self._noted = True
            note(f"{self.name} runs as it is read, for it cannot be compiled: {reason}")
        found = partial(run_to, self.running())
        found.target = "run"  # type: ignore[attr-defined]
        return found

    # ------------------------------------------------------------------------------------- compiling

    def specs(self, args: Sequence[Any] | None = None, rows: bool = False) -> list[Spec]:
        """The signature of ``args``; without them that of the last call, or what the annotations say (a parameter
        without one is a real). ``rows``: with the size of short rows, as they are called."""
        if args is not None:
            if not isinstance(args, (tuple, list)):
                raise ModelTypeError(f"args is {type(args).__name__}, not a tuple of arguments", None, "`args=(x, y)`")
            found = self._specs(args, parameters(self.value))
            return found if rows else list(map(without_rows, found))
        if self._last is not None:
            return list(self._last if rows else map(without_rows, self._last))
        known = parameters(self.value)
        if known is None:
            raise HyadError(f"{self.name} takes any number of arguments", self.span, "call it once, or give arguments")
        return [spec for _, spec, _ in known]

    def called_as(self, args: Sequence[Any] | None = None) -> list[Spec]:
        """The signature that a call with ``args`` is compiled for: that of short rows, where it can be (``made``)."""
        specs = self.specs(args, rows=True)
        whole = list(map(without_rows, specs))
        if whole == specs:
            return specs
        key = tuple(map(signature_key, specs))
        if key not in self._short:
            try:
                self.program(specs)
                self._short[key] = True
            except HyadError:
                self._short[key] = False
        return specs if self._short[key] else whole

    def _specs(self, args: Sequence[Any], known: Sequence[Any] | None) -> list[Spec]:
        """The types of ``args``, the arguments of the parameters ``known``; an error underlines the parameter. Short
        rows have the size that they have, where none is declared."""
        specs = []
        for k, a in enumerate(args):
            named = known is not None and k < len(known)
            try:
                spec = spec_of(a, known[k][0] if named else str(k))  # type: ignore[index]
                specs.append(spec if named and known[k][1] is not None else with_rows(spec, a))  # type: ignore[index]
            except (NotCompiled, ModelTypeError) as error:
                error.span = error.span or (known[k][2] if named else None) or self.span  # type: ignore[index]
                raise
        return specs

    def program(self, specs: Sequence[Spec] | None = None, plain: bool = False) -> Program:
        """The typed program for a signature, as specialised (``plain``: nothing folded or shared, if it can be typed
        so: an array whose rank hangs on a known integer cannot)."""
        specs = self.specs() if specs is None else specs
        with switched_off(self.off):
            if plain:
                try:
                    return deep(self._program, specs, True)
                except HyadError:
                    pass
            return deep(self._program, specs, False)

    def _program(self, specs: Sequence[Spec], plain: bool) -> Program:
        from .frontend.specialise import Specialiser  # a call that an earlier process compiled does without

        made = Specialiser(plain)
        try:
            return check_after("specialise", made.program(self.value, specs, self.name, self.span, self.__doc__))
        except ModelTypeError as error:
            taken = [(p[0], p[2]) for p, spec in zip(parameters(self.value) or (), specs) if spec is None]
            if taken and "number" in error.message:
                names = ", ".join(f"`{name}`" for name, _ in taken)
                said = f"what is not declared is taken as a number, {names} here"
                error.notes += ((f"{said}: declare it, as `#^ (Vec n) {taken[0][0]}`, or give arguments", taken[0][1]),)
            raise
        finally:
            self._globals |= made.globals_read
            self._namespaces |= made.namespaces

    def optimised(
        self,
        specs: Sequence[Spec] | None = None,
        target: str = "c",
        blas: bool = False,
        threads: int = 1,
        math: str = "libm",
        watch: Callable[[Any, Program], None] | None = None,
        dtype: str = "f64",
    ) -> Program:
        """The program that is printed as code for a target; ``blas``: matrix products are left to a BLAS; long sums
        are taken in parts for ``threads`` threads; ``math`` "vector": calls of one function are loops where they can
        be; ``watch`` is told of each pass (``optimise``); ``dtype`` "f32": for the range that floats have."""
        from .passes.optimise import (  # a call that an earlier process compiled does without
            AFTER_PARTS,
            FOR_CACHES,
            PIPELINE,
            WITH_BLAS,
            WITH_VECTORS,
            named,
            optimise,
        )

        # on a GPU each row has a thread, and no kernel makes an array of a size that the host does not know
        with switched_off(("columns-of-states", "trips") if target == "cuda" else ()):
            program = self.program(specs)
        threads = max(threads, self._options.get("threads", 1))
        later = set(map(named, AFTER_PARTS)) if threads > 1 else ()
        vectors = "vector" in (math, self._options.get("math"))
        off = {*FOR_CACHES, "trips"} if target == "cuda" else {*later, *(["denormals"] if dtype == "f32" else [])}
        off = {*off, "lesser-powers"} if vectors else off  # these have branches
        products = bool(blas or self._options.get("blas"))
        passes = WITH_BLAS if products else PIPELINE
        with switched_off((*self.off, *off)):
            if watch is not None or FIRED.get() is not None:  # it is asked what happens
                made = deep(optimise, program, passes, watch)
            else:
                made = once((products, frozenset(OFF.get() or ())), program, lambda p: deep(optimise, p, passes))
        if threads > 1:
            from .passes.threads import in_parts

            with switched_off(self.off):
                made = optimise(in_parts(made, threads), AFTER_PARTS)
        if vectors:
            with switched_off(self._options.get("without", ())):
                made = optimise(made, WITH_VECTORS)
        return made

    def compile_for(
        self,
        specs: Sequence[Spec],
        target: str = "c",
        dtype: str = "f64",
        flags: str = "exact",
        without: Sequence[str] = (),
        threads: int = 1,
        blas: bool = False,
        math: str = "libm",
        rows: str = "own",
    ) -> Callable[..., Any]:
        """A callable for one signature, with what it was made from as attributes: ``program``, ``cfunction``,
        ``source``, ``header``, ``address``, ``target``. ``without``, ``threads``, ``blas`` and ``math`` are this
        model's own options. ``rows`` "any": it takes short rows, too, where it is code for all sizes.

        Raises the errors of ``hyad.errors``.
        """
        return self.compile_program(self.optimised(specs, dtype=dtype), target, dtype, flags, rows)

    def compile_program(
        self, program: Program, target: str = "c", dtype: str = "f64", flags: str = "exact", rows: str = "own"
    ) -> Callable[..., Any]:
        """``compile_for`` a program that is at hand."""
        if target == "c":
            try:
                return self._load_c(program, dtype, flags, rows)
            except CompileError as error:
                here = isinstance(error, NoCForm) or type(error).__name__ == "NoCompiler"
                if not here or self._options.get("target") == "c":
                    raise
                note(f"{error.message}: {self.name} runs as plain Python")
        return self._load_python(program)

    def _load_c(self, program: Program, dtype: str, flags: str, rows: str = "any") -> Callable[..., Any]:
        from hyad.codegen.c import print_c

        options = {name: self._options[name] for name in ("threads", "math") if name in self._options}
        function = self._exact(print_c(program, dtype=dtype, **options), program.ins, rows)
        found = self._load(function, program.ins, program.out, flags)
        found.program = program  # type: ignore[attr-defined]
        return found

    def _exact(self, function: Any, ins: Sequence[Tree], rows: str) -> Any:
        """Leave integers for parameters that are not declared ``Real`` to the code for integers, and short rows to
        the code for such (``rows`` "own"). Parameters beside the model's own are what they are."""
        known = list(parameters(self.value) or [("", None, None)] * len(ins))
        known += [("", INT, None)] * (len(ins) - len(known))
        exact = [spec is None for tree, (_, spec, _) in zip(ins, known) for _ in range(leaves(tree))]
        params = tuple(
            dataclasses.replace(p, exact=e and (rows == "own" or not p.dims)) for p, e in zip(function.params, exact)
        )
        return dataclasses.replace(function, params=params)

    def _load(self, function: Any, ins: tuple[Tree, ...], out: Tree, flags: str) -> Callable[..., Any]:
        """Load a printed function (compiling it unless the cache has it) as this model's entry for its signature."""
        from hyad.codegen import build

        @border
        def fallback(reason: str | int, args: tuple, kwargs: dict) -> Any:
            if reason == "out of memory":
                raise MemoryError
            return self._dispatch(reason, args, kwargs, found)

        entry = build.load(function, ins=ins, out=out, fallback=fallback, optimise=flags)
        found = partial(entry)
        found.__dict__.update(
            cfunction=function, source=function.source, header=function.header, target="c", dtype=function.dtype
        )
        found.address = build.address(entry)  # type: ignore[attr-defined]
        found.entry = entry  # type: ignore[attr-defined]
        return found

    def _load_python(self, program: Program) -> Callable[..., Any]:
        def refuse(reason: str | HyadError, args: tuple, kwargs: dict) -> Any:
            if isinstance(reason, HyadError):
                raise said_at_call(reason, self, args)
            return self._dispatch(reason, args, kwargs, found)

        found = partial(python_callable(program, refuse))
        found.__dict__.update(program=program, target="python", dtype="f64")
        return found


def by_name(module: str, name: str) -> Model:
    """A model that was pickled."""
    return getattr(importlib.import_module(module), name)


def note(message: str) -> None:
    """A warning at the user's line: the innermost that is not hyad's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hyad":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


# ------------------------------------------------------------------------------------- making models


class Scope:
    """Resolves a model's global names in the module (and, through ``cells``, the function) that it stands in.

    ``own`` is the model of a text by its own name, by which it calls itself whatever variable holds it. A name of the
    language that the module does not have is the language's: ``(defmodel sum [v] (sum v))``.
    """

    def __init__(self, namespace: dict[str, Any], cells: Callable[[], Any] | None = None) -> None:
        self.namespace, self.cells = namespace, cells
        self.own: dict[str, Model] = {}

    def local(self, key: str) -> tuple[bool, Any]:
        """A variable of the function around the model, or of a ``let``, which Hy calls ``_hy_let_x_1``."""
        code = self.cells.__code__  # type: ignore[union-attr]
        let = re.compile(re.escape(mangled(f"_hy_let_{key}")) + r"_\d+\Z")
        for name, cell in zip(code.co_freevars, self.cells.__closure__ or ()):  # type: ignore[union-attr]
            if name == key or let.match(name):
                try:
                    return True, cell.cell_contents
                except ValueError:  # not bound yet
                    pass
        for name in code.co_names:
            if let.match(name) and name in self.namespace:
                return True, self.namespace[name]
        return False, None

    def __call__(self, name: str) -> tuple[bool, Any]:
        owner, *fields = name.split(".") if not name.startswith(".") else [name]
        key = mangled(owner)
        found, value = False, None
        if self.cells is not None:
            found, value = self.local(key)
        if not found and key in self.own:
            from .frontend.resolve import of_the_language  # most models do without

            if key in self.namespace or not of_the_language(owner):
                found, value = True, self.own[key]
        if not found and key in self.namespace:
            found, value = True, self.namespace[key]
        for field in fields:
            if not found or not hasattr(value, mangled(field)):
                return False, None
            value = getattr(value, mangled(field))
        return found, value


def make(form: Form, scope: Callable[[str], tuple[bool, Any]], text: str | None = None) -> Model:
    """The model of one function form."""
    f = form_to_lambda(form)
    text = text if text is not None else (form.span.text if form.span else unparse(form))
    made = Model(Closure(f, None, scope), f.name or "f", f.span, f.doc, text)
    if f.name is not None:
        redefined(f.name)
    return made


def redefined(name: str) -> None:
    """A name has a new meaning: models that were compiled with the old one are compiled anew."""
    for model in list(_named):
        if name in model._globals:
            model._forget()


def all_redefined() -> None:
    """A primitive has a new meaning: any model may have been compiled with the old one."""
    for model in list(_named):
        model._forget()


renewed.append(all_redefined)


@border
def model(src: str, *, filename: str = "<model>", namespace: dict[str, Any] | None = None) -> Model:
    """The model of one ``(model ..)``, ``(fn ..)`` or ``(defmodel ..)`` form; ``defdata`` forms may stand before it.

    Free names are looked up in ``namespace`` (by default the caller's globals). Raises ``ReadError``.

    >>> hyad.model("(fn [x] (* x x))")(3.0)
    9.0
    """
    if not isinstance(src, str):
        raise ReadError(
            f"hyad.model takes the text of a model, not {type(src).__name__}", None, 'hyad.model("(fn [x] ...)")'
        )
    if namespace is None:
        caller = sys._getframe(2)  # type: ignore[union-attr]  # past `border`
        namespace = (
            {**caller.f_globals, **caller.f_locals}
            if caller and caller.f_locals is not caller.f_globals
            else caller.f_globals
        )  # type: ignore[union-attr]
    source = Source(src, filename)
    forms = read_forms(src, source)
    data = [form for form in forms if form.head() == "defdata"]
    if data:
        namespace = dict(namespace)
        for form in data:
            made = data_type(form, namespace.get("__name__", "__main__"))
            namespace.update((mangled(name), value) for name, value in made.items())
    f = only_model([form for form in forms if form.head() != "defdata"], src, source)
    scope = Scope(namespace)
    made = Model(Closure(f, None, scope), f.name or "f", f.span, f.doc, src.strip())
    if f.name is not None:
        scope.own[mangled(f.name)] = made
        redefined(f.name)
    return made


def data_rows(form: Form) -> tuple[str, list[list[str]]]:
    """The name of a ``(defdata Tree (Leaf word) (Node label left right))``, and its constructors with their fields."""
    hint = "`(defdata Tree (Leaf word) (Node label left right))`"
    items = form.value[1:]
    if not items or items[0].kind != "sym":
        raise ReadError("a defdata starts with its name", form.span, hint)
    rows = []
    for c in items[1:]:
        if c.kind == "sym":
            raise ReadError("a constructor stands in brackets", c.span, f"`({c.value})` is one without fields")
        annotated = next((f for f in c.value if f.kind == "#^"), None) if c.head() is not None else None
        if annotated is not None:
            raise ReadError("a field has no annotation", annotated.span, "its type is that of what is given")
        if c.head() is None or any(f.kind != "sym" for f in c.value):
            raise ReadError("a constructor is a name with the names of its fields", c.span, hint)
        rows.append([f.value for f in c.value])
    return items[0].value, rows


def data_type(form: Form, module: str) -> dict[str, type]:
    """A ``defdata`` form: the type and its constructors by name."""
    name, rows = data_rows(form)
    try:
        made = defdata(name, *rows, module=module)
    except ModelTypeError as error:
        error.span = error.span or form.span
        raise
    return {name: made, **{c.name: c for c in made.constructors}}  # type: ignore[attr-defined]


@border
def define(text: str, filename: str, line: int, column: int, cells: Callable[[], Any]) -> Model:
    """What the macros ``defmodel`` and ``model`` expand to: a model from its text and place in a Hy file. ``cells``
    closes over the Python variables that the text names."""
    forms = read_forms(text, Source(text, filename, line, column))
    return make(forms[0], Scope(cells.__globals__, cells), text)


_sites: dict[Any, tuple[tuple, list[Any], Model]] = {}  # by place in a program: what a ``deriv`` there last was


@border
def deriv_here(
    text: str, filename: str, line: int, column: int, names: Sequence[str], cells: Callable[[], Any]
) -> tuple[Any, Any]:
    """What the macro ``deriv`` expands to, ``text`` being its form: the value of an expression and its derivative by a
    variable, which have values where it stands. The other ``names`` in it that are numbers or arrays there become
    parameters as well, so that one program serves all their values (dF~, Fig. 5)."""
    form = read_forms(text, Source(text, filename, line, column))[0]
    _, e, x = form.value
    scope = Scope(cells.__globals__, cells)
    bound, value = scope(x.value)
    if not bound:
        raise UnboundError(
            f"nothing binds `{x.value}`, to differentiate by", x.span, f"give it a value first: `(setv {x.value} 2.0)`"
        )
    params, values, others = [x.value], [value], []
    for name in names:
        found, value = scope(name)
        try:
            spec_of(value)
        except HyadError:
            found = False
        if found and name != x.value:
            params.append(name)
            values.append(value)
        else:
            others.append(value)
    key = (text, tuple(params), *map(id, others))
    site = (cells.__code__, filename, line, column)
    if site not in _sites or _sites[site][0] != key:
        model = Form(
            "(", [Form("sym", "model"), Form("[", [Form("sym", p, x.span) for p in params], x.span), e], e.span
        )
        _sites[site] = key, others, derived("value-and-deriv", make(model, scope, unparse(model)), x.value)
    return _sites[site][2](*values)


# --------------------------------------------------------------------------------- derivative operators


def as_model(f: Any, operator: str) -> Model:
    """The model that an operator is given: itself, as text, or what holds one."""
    if isinstance(f, Model):
        return f
    if isinstance(f, str):
        return model(f, namespace={})
    inner = getattr(f, "model", None)
    if isinstance(inner, Model):
        return inner
    made = getattr(f, "hyad_value", None)
    if made is not None:
        return Model(made(), getattr(f, "name", "f"))
    raise ModelTypeError(
        f"{operator} takes a model, not {type(f).__name__} {getattr(f, '__name__', '')}".rstrip(),
        None,
        "write the function as a model: defmodel in Hy, hyad.model(...) in Python",
    )


def derived(operator: str, f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The model of a derivative operator on a model."""
    if encoding not in ENCODINGS:
        names = ", ".join(f'"{e}"' for e in ENCODINGS)
        raise ModelTypeError(f"there is no encoding {encoding!r}", None, f"encodings are {names}")
    base = as_model(f, operator)
    if isinstance(wrt, list):
        wrt = tuple(wrt)
    made = Model(Derived(operator, base.value, wrt, encoding), f"{base.name}-{operator}", base.span, None)
    made.__doc__ = f"{operator} of {base.name}" + (f" by {wrt}" if wrt is not None else "")
    made.base = base  # type: ignore[attr-defined]
    if base.off:  # what is switched off for a model is for what is made of it
        made._options = {"without": base.off}
    return made
