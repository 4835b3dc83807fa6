"""Models: what users hold. A ``Model`` compiles itself at first call, one specialisation for each signature.

The path of a call: the C entry of the last specialisation takes the arguments as they are; only what does not fit it
comes back to ``Model._dispatch``, which finds or makes the specialisation that does, or says what is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
import types
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import core, memo
from .annotations import parameters
from .check import check_after
from .core import BOOL, INT, REAL, Arr, Const, Leaf, Node, Program, Tree, leaves
from .data import Data, defdata
from .errors import (
    BORDER,
    BoundsError,
    CompileError,
    HyadError,
    ModelTypeError,
    NoCForm,
    NotCompiled,
    ReadError,
    Source,
    Span,
    at_border,
    border,
)
from .forms import Form, read_forms, unparse
from .journal import without as switched_off
from .names import mangled
from .reader import deep, form_to_lambda, only_model
from .signature import FLAT, DataSpec, Spec, data_spec, is_flat, is_list
from .specialise import Specialiser
from .values import ENCODINGS, Closure, Derived, Function, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from .eager import Entry

TARGETS = ("c", "cuda", "python")


# ------------------------------------------------------------------------------------------ signatures


def spec_of(value: Any, name: str | None = None) -> Spec:
    """The type of a Python value, the argument ``name``, as a model sees it.

    Raises ``ModelTypeError`` for what models do not take.
    """
    t, who = type(value), f"argument `{name}`" if name else "this argument"
    if t is float:
        return REAL
    if t is bool or t is np.bool_:
        return BOOL
    if t is int:
        return INT
    if value is None:
        return Node((), None, nothing)
    if isinstance(value, np.ndarray):
        elem = {"f": REAL, "i": INT, "u": INT, "b": BOOL}.get(value.dtype.kind)
        if elem is None:
            raise ModelTypeError(
                f"{who} is an array of {value.dtype}, not of numbers", None, "models take float, int and bool arrays"
            )
        return Arr(elem, (None,) * value.ndim) if value.ndim else elem
    if isinstance(value, Data) and not is_flat(value) or t is tuple and len(value) == 2 and is_list(value):
        try:
            return data_spec(value, lambda part: spec_of(part, name))
        except ModelTypeError as error:
            raise ModelTypeError(f"{who}: {foreign(value) or error.message}", error.span, error.hint) from None
        except NotCompiled:  # a pair whose second is a list of other things than its first
            items = lisp_items(value, FLAT + 1)
            if t is not tuple or len(items) > FLAT or all(isinstance(x, Data) for x in items):
                raise
            return Node((spec_of(value[0], f"{name}[0]"), spec_of(value[1], f"{name}[1]")))
    if isinstance(value, Data):
        keys = value.__match_args__
        return Node(tuple(spec_of(x, f"{name}.{k}") for k, x in zip(keys, value)), keys, t)
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = tuple(spec_of(x, f"{name}[{k}]") for k, x in enumerate(value))
        return Node(items, names, type(value)) if names else Node(items)
    if isinstance(value, dict):
        if not all(isinstance(k, str) for k in value):
            raise ModelTypeError(f"{who} is a dict whose keys are not all strings", None, "records have named fields")
        return Node(tuple(spec_of(x, f"{name}[{k!r}]") for k, x in value.items()), tuple(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(f.name for f in dataclasses.fields(value))
        return Node(tuple(spec_of(getattr(value, f), f"{name}.{f}") for f in fields), fields, t)
    if isinstance(value, np.floating):
        return REAL
    if isinstance(value, np.integer):
        return INT
    if isinstance(value, list):
        raise ModelTypeError(f"{who} is a Python list", None, "pass an array: numpy.array(...)")
    if isinstance(value, (memoryview, array)):
        return spec_of(np.asarray(value), name)
    if callable(value):
        raise ModelTypeError(f"{who} is a function", None, "name the function inside the model: `(f x)`")
    if isinstance(value, int):
        return INT
    if isinstance(value, float):
        return REAL
    hint = "models take numbers, NumPy arrays, tuples, dicts and dataclasses"
    if hasattr(t, "__cuda_array_interface__"):
        hint = 'arrays of the GPU are for what hyad.compile(f, target="cuda") gives'
    elif hasattr(value, "__float__"):
        hint = "pass float(...) of it" if not hasattr(value, "__len__") else "pass numpy.asarray(...) of it"
    raise ModelTypeError(f"{who} is a Python {t.__name__}", None, hint)


def lisp_items(value: Any, most: int) -> list[Any]:
    """The first elements of a list."""
    items: list[Any] = []
    while type(value) is tuple and len(value) == 2 and len(items) < most:
        items.append(value[0])
        value = value[1]
    return items


def foreign(value: Any) -> str:
    """Which part of data is nothing that models take, and what it is."""
    from hyad.codegen.values import article, written

    todo: list[tuple[Any, Any]] = [(value, None)]
    while todo:
        x, path = todo.pop()
        if isinstance(x, Data):
            todo += [(part, (path, f".{k}")) for k, part in zip(x.__match_args__, x)][::-1]
        elif type(x) is tuple:
            todo += [(part, (path, f"[{k}]")) for k, part in enumerate(x)][::-1]
        else:
            try:
                spec_of(x)
            except ModelTypeError:
                return f"{written(path)} is {article(x)}, not a number"
    return ""


def signature_key(spec: Spec) -> Any:
    """A hashable form of a spec."""
    if isinstance(spec, Node):
        return ("node", tuple(map(signature_key, spec.items)), spec.keys, spec.make)
    return spec


# ---------------------------------------------------------------------------------------------- models

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
        self._options: dict[str, Any] = {}
        self._call: Callable[..., Any] = self._first
        self._last: tuple[Spec, ...] | None = None
        self._globals: set[str] = set()
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

    def without(self, names: Sequence[str]) -> Model:
        """This model, made without some optimisations."""
        return self.with_options({**self._options, "without": tuple(names)})

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
                found = self._compiled[key] = self._remembered(specs)
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

    def _remembered(self, specs: Sequence[Spec]) -> Callable[..., Any]:
        """``compile_for``, or what an earlier process made of the same text and signature (see ``memo``)."""
        if self._options.get("target", "c") != "c":
            return self.compile_for(specs, **self._options)
        path = memo.path_of(self.value, specs, self._options)
        known = memo.read(path, memo.scope_of(self.value), specs) if path is not None else None
        if known is not None:
            try:
                return self._load(*known, self._options.get("flags", "exact"))
            except CompileError:  # said again, in full, by the way that compiles
                pass
        found = self.compile_for(specs, **self._options)
        if found.target == "c" and len(self._namespaces) <= 1:
            program = found.program
            memo.write(path, self._globals, self.value, found.cfunction, program.ins, program.out)
        return found

    def _forget(self) -> None:
        """Drop what was compiled: a model that it calls has been defined anew."""
        self._compiled.clear()
        self._running = None
        self._enter(self._first)

    def running(self) -> Entry:
        """This model define by run."""
        if self._running is None:
            from .eager import Entry

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

    def specs(self, args: Sequence[Any] | None = None) -> list[Spec]:
        """The signature of ``args``; without them that of the last call, or what the annotations say (a parameter
        without one is a real)."""
        if args is not None:
            if not isinstance(args, (tuple, list)):
                raise ModelTypeError(f"args is {type(args).__name__}, not a tuple of arguments", None, "`args=(x, y)`")
            return self._specs(args, parameters(self.value))
        if self._last is not None:
            return list(self._last)
        known = parameters(self.value)
        if known is None:
            raise HyadError(f"{self.name} takes any number of arguments", self.span, "call it once, or give args=")
        return [spec for _, spec, _ in known]

    def _specs(self, args: Sequence[Any], known: Sequence[Any] | None) -> list[Spec]:
        """The types of ``args``, the arguments of the parameters ``known``; an error underlines the parameter."""
        specs = []
        for k, a in enumerate(args):
            named = known is not None and k < len(known)
            try:
                specs.append(spec_of(a, known[k][0] if named else str(k)))  # type: ignore[index]
            except (NotCompiled, ModelTypeError) as error:
                error.span = error.span or (known[k][2] if named else None) or self.span  # type: ignore[index]
                raise
        return specs

    def program(self, specs: Sequence[Spec] | None = None, plain: bool = False) -> Program:
        """The typed program for a signature, as specialised (``plain``: nothing folded or shared)."""
        with switched_off(self._options.get("without", ())):
            return deep(self._program, self.specs() if specs is None else specs, plain)

    def _program(self, specs: Sequence[Spec], plain: bool) -> Program:
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
        self, specs: Sequence[Spec] | None = None, target: str = "c", blas: bool = False, threads: int = 1
    ) -> Program:
        """The program that is printed as code for a target; ``blas``: matrix products are left to a BLAS; long sums
        are taken in parts for ``threads`` threads."""
        from .optimise import (
            AFTER_PARTS,
            FOR_CACHES,
            PIPELINE,
            WITH_BLAS,
            named,
            optimise,
        )  # a call that an earlier process compiled does without

        program = self.program(specs)
        threads = max(threads, self._options.get("threads", 1))
        off = FOR_CACHES if target == "cuda" else map(named, AFTER_PARTS[:1]) if threads > 1 else ()
        with switched_off((*self._options.get("without", ()), *off)):
            made = deep(optimise, program, WITH_BLAS if blas or self._options.get("blas") else PIPELINE)
        if threads > 1:
            from .threads import in_parts

            with switched_off(self._options.get("without", ())):
                made = optimise(in_parts(made, threads), AFTER_PARTS)
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
    ) -> Callable[..., Any]:
        """A callable for one signature, with what it was made from as attributes: ``program``, ``cfunction``,
        ``source``, ``header``, ``address``, ``target``. ``without``, ``threads``, ``blas`` and ``math`` are this
        model's own options.

        Raises the errors of ``hyad.errors``.
        """
        return self.compile_program(self.optimised(specs), target, dtype, flags)

    def compile_program(
        self, program: Program, target: str = "c", dtype: str = "f64", flags: str = "exact"
    ) -> Callable[..., Any]:
        """``compile_for`` a program that is at hand."""
        if target == "c":
            try:
                return self._load_c(program, dtype, flags)
            except CompileError as error:
                here = isinstance(error, NoCForm) or type(error).__name__ == "NoCompiler"
                if not here or self._options.get("target") == "c":
                    raise
                note(f"{error.message}: {self.name} runs as plain Python")
        return self._load_python(program)

    def _load_c(self, program: Program, dtype: str, flags: str) -> Callable[..., Any]:
        from hyad.codegen.c import print_c

        options = {name: self._options[name] for name in ("threads", "math") if name in self._options}
        function = self._exact(print_c(program, dtype=dtype, **options), program.ins)
        found = self._load(function, program.ins, program.out, flags)
        found.program = program  # type: ignore[attr-defined]
        return found

    def _exact(self, function: Any, ins: Sequence[Tree]) -> Any:
        """Leave integers for parameters that are not declared ``Real`` to the code for integers."""
        known = parameters(self.value) or [("", None, None)] * len(ins)
        exact = [spec is None for tree, (_, spec, _) in zip(ins, known) for _ in range(leaves(tree))]
        params = tuple(dataclasses.replace(p, exact=e) for p, e in zip(function.params, exact))
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


def run_to(entry: Entry, *args: Any, **kwargs: Any) -> Any:
    """Run a model; ``out=`` is filled as by compiled code."""
    result, out = entry(*args), kwargs.get("out")
    if out is None:
        return result
    results = result if isinstance(result, tuple) else (result,)
    targets = out if isinstance(out, tuple) and len(results) > 1 else (out,)
    reason = unfit_out(targets, results)
    if reason:
        raise ModelTypeError(f"{entry.name}: {reason}", entry.span)
    for target, found in zip(targets, results):
        if target is not None:
            target[...] = found
    filled = tuple(r if t is None else t for t, r in zip(targets, results))
    return filled if isinstance(result, tuple) else filled[0]


def note(message: str) -> None:
    """A warning at the user's line: the innermost that is not hyad's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hyad":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def python_callable(program: Program, refuse: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A program as a Python function of structured arguments, without a compiler.

    ``refuse(reason, args, kwargs)`` is called with arguments that do not fit, the reason being a sentence, and with
    the error of a check that failed.
    """
    from hyad.codegen.python import load_python

    flat = load_python(program)
    wanted = [tuple(map(signature_key, [tree_spec(t, it) for t in program.ins])) for it in [iter(program.params)]][0]

    def no(reason: Any, args: tuple, kwargs: dict) -> Any:
        if refuse is not None:
            return refuse(reason, args, kwargs)
        raise reason if isinstance(reason, HyadError) else ModelTypeError(f"{program.name}: {reason}", program.span)

    def run(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        try:
            fit = not kwargs.keys() - {"out"} and fits(wanted, tuple(map(signature_key, map(spec_of, args))))
        except ModelTypeError:
            fit = False
        if not fit:
            return no("the arguments do not fit its signature", args, kwargs)
        values: list[Any] = []
        for tree, a in zip(program.ins, args):
            take_apart(tree, a, values)
        arrays = [isinstance(p.type, Arr) and not hasattr(a, "_mask") for p, a in zip(program.params, values)]
        values = [np.asarray(a) if array else a for array, a in zip(arrays, values)]
        sizes: dict[Any, int] = {}
        for p, a in zip(program.params, values):
            reason = unfit(p, a, sizes)
            if reason:
                return no(f"argument {p.name} wants {reason}", args, kwargs)
        try:
            results = flat(*values)
        except HyadError as error:
            return no(error, args, kwargs)
        except OverflowError:
            return no(ModelTypeError("an integer of this call does not fit in 64 bits", program.span), args, kwargs)
        except ValueError as error:  # what NumPy says of a shape beyond all bounds
            if "too big" in str(error) or "Maximum allowed" in str(error):
                raise MemoryError from None
            raise
        if out is None:
            return put_together(program.out, iter(results))
        targets = out if isinstance(out, tuple) and len(results) > 1 else (out,)
        reason = unfit_out(targets, results)
        if reason:
            return no(reason, args, kwargs)
        for target, result in zip(targets, results):
            if target is not None:
                target[...] = result
        return put_together(program.out, iter([r if t is None else t for t, r in zip(targets, results)]))

    return border(run)


DTYPES = {REAL: "float64", INT: "int64", BOOL: "bool"}


def unfit(param: Any, value: Any, sizes: dict[Any, int]) -> str:
    """What a parameter of the plain-Python target wants and ``value`` is not, as the stub of compiled code says it;
    nothing where it fits. ``sizes`` collects the named dims."""
    t = param.type
    if not isinstance(t, Arr):
        if t == INT and not -(2**63) <= value < 2**63:
            return "an integer; this integer does not fit in 64 bits"
        return ""
    dims = [d.value if type(d) is Const else d.name for d in t.dims]
    wants = f"a {DTYPES[t.elem]} array of shape ({', '.join(map(str, dims))}{',' * (len(dims) == 1)}); "
    if value.dtype != DTYPES[t.elem]:
        return wants + "this has another dtype"
    if hasattr(value, "_mask"):
        return wants + "this is a masked array"
    for axis, (d, have) in enumerate(zip(t.dims, value.shape)):
        want = d.value if type(d) is Const else sizes.setdefault(d, have)
        if have != want:
            how = "must be" if type(d) is Const else f"where {d} is"
            return f"{wants}its dimension {axis + 1} is {have}, {how} {want}"
    return ""


def unfit_out(targets: tuple, results: Sequence[Any]) -> str:
    """What is wrong with ``out=``, for the plain-Python target."""
    if len(targets) != len(results):
        return f"out wants a tuple of {len(results)}, None where there is no array to fill; this is not such a tuple"
    for target, result in zip(targets, results):
        if target is None:
            continue
        if not isinstance(result, np.ndarray):
            return "out wants None for a scalar result; this is not None"
        wants = f"out wants a writeable {result.dtype} array of shape {result.shape}; "
        if not isinstance(target, np.ndarray):
            return wants + "this is not such an array"
        if target.dtype != result.dtype:
            return wants + "this has another dtype"
        if target.shape != result.shape:
            return wants + f"this has shape {target.shape}"
        if not target.flags.writeable:
            return wants + "this is read-only"
    return ""


def tree_spec(tree: Tree, params: Any) -> Spec:
    if isinstance(tree, Leaf):
        t = next(params).type
        return Arr(t.elem, (None,) * t.rank) if isinstance(t, Arr) else t
    return Node(tuple(tree_spec(t, params) for t in tree.items), tree.keys, tree.make)


def fits(wanted: Any, key: Any) -> bool:
    if isinstance(wanted, tuple) and isinstance(key, tuple):
        return len(wanted) == len(key) and all(map(fits, wanted, key))
    if isinstance(wanted, core.Data):  # which parts do not fit is found as they are read
        return isinstance(key, DataSpec)
    return wanted == key or (wanted == REAL and key == INT)


def take_apart(tree: Tree, value: Any, into: list[Any]) -> None:
    if isinstance(tree, Leaf):
        into.append(value)
    elif tree.keys is None:
        for t, x in zip(tree.items, value or ()):
            take_apart(t, x, into)
    else:
        for t, k in zip(tree.items, tree.keys):
            take_apart(t, value[k] if isinstance(value, dict) else getattr(value, k), into)


def put_together(tree: Tree, results: Any) -> Any:
    if isinstance(tree, Leaf):
        return next(results)
    parts = [put_together(t, results) for t in tree.items]
    if tree.keys is None:
        return tree.make() if tree.make is not None else tuple(parts)
    fields = dict(zip(tree.keys, parts))
    return tree.make(**fields) if tree.make is not None else fields


def check_error(check: tuple[str, str, Span | None], model: Model, args: tuple) -> HyadError:
    """The error of a check that failed when compiled code ran."""
    kind, message, span = check
    if kind == "depth":
        hint = "make the recursive call the last thing that is done (a loop), or raise the limit: ulimit -s"
        return said_at_call(HyadError(message, span, hint), model, args)
    error = BoundsError if kind == "bounds" else ModelTypeError
    return said_at_call(error(message, span), model, args)


def said_at_call(error: HyadError, model: Model, args: tuple) -> HyadError:
    """``error``, with the model's name and what it was called with: the shapes of arrays, and integers."""
    given = []
    for label, value, _ in flat_arguments(model, args):
        if isinstance(value, np.ndarray):
            given.append(f"`{label}` has shape {value.shape}")
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            given.append(f"`{label}` is {value}")
    message = f"{model.name}: {error.message}"
    hint = error.hint
    if hint is None and message.endswith("have different shapes"):
        if any(isinstance(a, np.ndarray) and 1 in a.shape for _, a, _ in flat_arguments(model, args)):
            hint = (
                "a row goes with all others where the program says it is one: by `(expand-dims v 1)` or `#^ (Mat n 1)`"
            )
    more = [f"and {len(given) - 8} more"] if len(given) > 8 else []
    notes = [(f"in this call {', '.join(given[:8] + more)}", None)] if given else []
    return type(error)(message, error.span or model.span, hint, [*error.notes, *notes])


def flat_arguments(model: Model, args: Sequence[Any]) -> list[tuple[str, Any, Span | None]]:
    """The numbers and arrays in the arguments of a call: what a user calls each, its value, its parameter's place."""
    known = parameters(model.value)
    found: list[tuple[str, Any, Span | None]] = []

    def walk(label: str, value: Any, span: Span | None) -> None:
        if type(value) is tuple and len(value) == 2 and is_list(value) and isinstance(spec_of(value), DataSpec):
            parts = None
        elif isinstance(value, Data):
            parts = [(f"{label}.{k}", x) for k, x in zip(value.__match_args__, value)] if is_flat(value) else None
        elif isinstance(value, tuple) and not hasattr(value, "_fields"):
            parts = [(f"{label}[{k}]", x) for k, x in enumerate(value)]
        elif isinstance(value, dict):
            parts = [(f"{label}[{k!r}]", x) for k, x in value.items()]
        elif isinstance(value, tuple) or dataclasses.is_dataclass(value):
            fields = getattr(value, "_fields", None) or [f.name for f in dataclasses.fields(value)]
            parts = [(f"{label}.{f}", getattr(value, f)) for f in fields]
        else:
            parts = None
        if parts is None:
            found.append((label, value, span))
            return
        for inner, x in parts:
            walk(inner, x, span)

    for k, a in enumerate(args):
        label, _, span = known[k] if known and k < len(known) else (f"argument {k + 1}", None, None)
        walk(label, a, span)
    return found


def misfit(reason: str, model: Model, program: Program, args: tuple, kwargs: dict) -> ModelTypeError:
    """The error for an argument that code for its signature refused: in the user's names, with what it is."""
    span, hint, value, label = model.span, None, kwargs.get("out"), "out"
    if "by position" in reason:
        what = f"{model.name} gives no array that `out=` could be filled with"
        if any(isinstance(getattr(r, "type", None), Arr) for r in program.body.results):
            what = f"the size of the array that {model.name} gives is only known after the call: `out=` is not filled"
        return ModelTypeError(what, span, "leave it out")
    about = re.match(r"argument (\S+) wants", reason)
    if about is not None:
        which, flat = about[1], flat_arguments(model, args)
        position = next((k for k, p in enumerate(program.params) if mangled(p.name) == which or p.name == which), None)
        if which.isdigit() and 0 < int(which) <= len(args):
            known = parameters(model.value)
            label, value = f"argument {which}", args[int(which) - 1]
            if known:
                label, _, span = known[int(which) - 1]
        elif position is not None and position < len(flat):
            label, value, span = flat[position]
            if isinstance(program.params[position].type, core.Data):
                return unfit_data(model, label, span, args, program.params[position].type)
        reason = reason.replace(f"argument {which}", f"`{label}`", 1)
    if "masked" in reason:
        hint = f"fill it: {label}.filled(...)"
    elif "not aligned" in reason:
        hint = f"pass {label}.copy()"
    elif isinstance(value, (np.ndarray, np.generic)):
        dtype = re.search(r"(float64|float32|int64|bool) array", reason)
        reason = reason.replace("this has another dtype", f"this is {value.dtype}")
        if dtype and ("C-contiguous" in reason.partition(";")[2] or f"this is {value.dtype}" in reason):
            made = "numpy.ascontiguousarray" if about is not None else "numpy.empty"
            first = label if about is not None else "shape"
            hint = f"pass {made}({first}, dtype={dtype[1]!r})"
    return ModelTypeError(f"{model.name}: {reason}", span or model.span, hint)


def unfit_data(model: Model, label: str, span: Span | None, args: tuple, data: core.Data) -> ModelTypeError:
    """The error for data with a part that does not fit."""
    from hyad.codegen.values import misfit as part

    known = [p[0] for p in parameters(model.value) or ()]
    value = args[known.index(label)] if label in known else None
    return ModelTypeError(f"{model.name}: argument `{label}`: {part(value, data)}", span or model.span)


# ------------------------------------------------------------------------------------- making models


class Scope:
    """Resolves a model's global names in the module (and, through ``cells``, the function) that it stands in."""

    def __init__(self, namespace: dict[str, Any], cells: Callable[[], Any] | None = None) -> None:
        self.namespace, self.cells = namespace, cells

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
    return Model(Closure(f, None, Scope(namespace)), f.name or "f", f.span, f.doc, src.strip())


def data_type(form: Form, module: str) -> dict[str, type]:
    """``(defdata Tree (Leaf word) (Node label left right))``: the type and its constructors by name."""
    hint = "`(defdata Tree (Leaf word) (Node label left right))`"
    items = form.value[1:]
    if not items or items[0].kind != "sym":
        raise ReadError("a defdata starts with its name", form.span, hint)
    rows = []
    for c in items[1:]:
        if c.head() is None or any(f.kind != "sym" for f in c.value):
            raise ReadError("a constructor is a name with the names of its fields", c.span, hint)
        rows.append([f.value for f in c.value])
    try:
        made = defdata(items[0].value, *rows, module=module)
    except ModelTypeError as error:
        error.span = error.span or form.span
        raise
    return {items[0].value: made, **{c.name: c for c in made.constructors}}  # type: ignore[attr-defined]


@border
def define(text: str, filename: str, line: int, column: int, cells: Callable[[], Any]) -> Model:
    """What the macros ``defmodel`` and ``model`` expand to: a model from its text and place in a Hy file. ``cells``
    closes over the Python variables that the text names."""
    forms = read_forms(text, Source(text, filename, line, column))
    return make(forms[0], Scope(cells.__globals__, cells), text)


_sites: dict[Any, tuple[tuple, list[Any], Model]] = {}  # by place in a program: what a ``deriv`` there last was


@border
def deriv_here(
    text: str, variable: str, filename: str, line: int, column: int, names: Sequence[str], cells: Callable[[], Any]
) -> tuple[Any, Any]:
    """What the macro ``deriv`` expands to: the value of an expression and its derivative by a variable, which have
    values where it stands. The other ``names`` in it that are numbers or arrays there become parameters as well, so
    that one program serves all their values (dF~, Fig. 5)."""
    scope = Scope(cells.__globals__, cells)
    params, values, others = [variable], [scope(variable)[1]], []
    for name in names:
        found, value = scope(name)
        try:
            spec_of(value)
        except HyadError:
            found = False
        if found and name != variable:
            params.append(name)
            values.append(value)
        else:
            others.append(value)
    key = (text, tuple(params), *map(id, others))
    site = (cells.__code__, filename, line, column)
    if site not in _sites or _sites[site][0] != key:
        f = define(f"(model [{' '.join(params)}] {text})", filename, line, column, cells)
        _sites[site] = key, others, derived("value-and-deriv", f, variable)
    return _sites[site][2](*values)


@border
def load(path: str | os.PathLike) -> types.ModuleType:
    """The models of a Hy file as a module: ``hyad.load("m.hy").f``.

    A file of ``defmodel`` forms alone is read by hyad; any other is imported by Hy. Raises ``ReadError`` for a file
    that cannot be read.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ReadError(f"hyad.load takes a path, not {type(path).__name__}", None, PATH_HINT)
    from pathlib import Path

    path = Path(path)
    text = text_of_file(path)
    if not text.strip():
        raise ReadError(f"{path} is empty", None, "write models in it: `(defmodel f [x] ...)`")
    module = types.ModuleType(mangled(path.stem) if path.stem else "models")
    module.__file__ = str(path)
    forms = read_forms(text, Source(text, str(path))) if plain_models(text) else None
    if forms is None:
        return import_hy(path, text)
    for form in forms:
        if form.head() == "defmodel":
            made = make(form, Scope(module.__dict__))
            setattr(module, mangled(made.name), made)
        elif form.head() == "defdata":
            for name, value in data_type(form, module.__name__).items():
                setattr(module, mangled(name), value)
        elif form.kind == "str":
            module.__doc__ = module.__doc__ or form.value
    return module


PATH_HINT = "give the path of a Hy file"


def text_of_file(path: Path) -> str:
    """A file's text, without the byte order mark that some editors write. Raises ``ReadError``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ReadError(f"cannot read {path}: it is not a text file", None, PATH_HINT) from None
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", None, PATH_HINT) from None
    if "\0" in text:
        raise ReadError(f"cannot read {path}: it is not a text file", None, PATH_HINT)
    return text


def plain_models(text: str) -> bool:
    """Whether a file holds nothing but models (and the lines that require hyad's macros)."""
    try:
        forms = read_forms(text)
    except ReadError:
        return "(defmodel" in text and not any(x in text for x in ("(defn", "(setv", "(import"))
    return all(
        f.head() in ("defmodel", "defdata")
        or f.kind == "str"
        or (f.head() in ("require", "import") and "hyad" in unparse(f))
        for f in forms
    )


def import_hy(path: Path, text: str) -> types.ModuleType:
    """Run a Hy file, which holds ``text``, as a module. Errors of what it runs are its own."""
    import importlib.util

    import hy  # noqa: F401  (installs the importer of .hy files)

    spec = importlib.util.spec_from_file_location(mangled(path.stem), path) if path.suffix == ".hy" else None
    if spec is None or spec.loader is None:
        raise ReadError(f"{path} is not a Hy file", None, "its name ends in .hy")
    if path.read_bytes().startswith(b"\xef\xbb\xbf"):
        raise ReadError(f"{path} starts with a byte order mark, which Hy cannot read", None, "save it without one")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if os.path.abspath(error.filename or "") != os.path.abspath(path):
            raise
        raise unread(error, text, path) from None
    return module


def unread(error: SyntaxError, text: str, path: Path) -> SyntaxError | ReadError:
    """What to say of a file that Hy cannot read: where a bracket or a string is left open, else what Hy says."""
    source = Source(text, str(path))
    if not error.lineno:
        return error
    try:
        read_forms(text, source)
    except ReadError as mine:
        if any(word in mine.message for word in ("never closed", "has no end", "unmatched")):
            return mine
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: error.lineno - 1])) + max(0, (error.offset or 1) - 1)
    start = min(start, max(0, len(text) - 1))
    message = error.msg.splitlines()[0] if error.msg else "this is not Hy"
    return ReadError(f"Hy cannot read this: {message}", Span(source, start, start + 1))


# --------------------------------------------------------------------------------- derivative operators


def as_model(f: Any, operator: str) -> Model:
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
    if encoding not in ENCODINGS:
        names = ", ".join(f'"{e}"' for e in ENCODINGS)
        raise ModelTypeError(f"there is no encoding {encoding!r}", None, f"encodings are {names}")
    base = as_model(f, operator)
    if isinstance(wrt, list):
        wrt = tuple(wrt)
    made = Model(Derived(operator, base.value, wrt, encoding), f"{base.name}-{operator}", base.span, None)
    made.__doc__ = f"{operator} of {base.name}" + (f" by {wrt}" if wrt is not None else "")
    made.base = base  # type: ignore[attr-defined]
    return made


@border
def grad(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The gradient of a model that gives a number, in the structure of its argument (a tuple for several).

    ``wrt``: a parameter's position or name, or a tuple of them for a tuple of gradients. ``encoding``: what stands
    between the forward and the backward code where functions are called or a count is known at run time only. The
    derivative is the same, and so is straight-line code.

    * ``"record"``: the forward code remembers in a record what the backward code reads (a tape, defunctionalised:
      Lantern 3.5). The fastest, with the least memory.
    * ``"closure"``: the forward code gives a backpropagator, a function of the cotangent, beside its result
      (Pearlmutter & Siskind 2008; Myia).

    Raises ``ModelTypeError`` for an encoding that there is not.
    """
    return derived("grad", f, wrt, encoding)


@border
def value_and_grad(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The pair of value and gradient, computed together. ``wrt`` and ``encoding`` as for ``grad``."""
    return derived("value-and-grad", f, wrt, encoding)


@border
def jacobian(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The derivative of every result by every argument: an array [result dims ..., argument dims ...].

    ``wrt`` as for ``grad``, and ``encoding`` too, where reverse mode is what takes the fewest passes.
    """
    return derived("jacobian", f, wrt, encoding)


@border
def hessian(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The Jacobian of the gradient. ``wrt`` and ``encoding`` as for ``grad``."""
    return derived("hessian", f, wrt, encoding)


@border
def D(f: Any, wrt: Any = None) -> Model:
    """The derivative by one number, in the structure of the result."""
    return derived("D", f, wrt)


@border
def diff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a number (dF~, Fig. 6 and Table 2)."""
    return derived("diff", f, wrt)


@border
def vdiff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a vector: a vector (dF~, Table 2)."""
    return derived("vdiff", f, wrt)


@border
def mdiff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a matrix: a matrix (dF~, Table 2)."""
    return derived("mdiff", f, wrt)


@border
def jacob(f: Any, wrt: Any = None) -> Model:
    """The Jacobian of a model of a vector that gives a vector: a matrix, a row for each result (dF~, Table 2)."""
    return derived("jacob", f, wrt)


@border
def mgrad(f: Any, wrt: Any = None) -> Model:
    """The gradient of a model of a matrix that gives a number: a matrix (dF~, Table 2)."""
    return derived("mgrad", f, wrt)


def _product(operator: str, f: Any, first: Any, second: tuple, encoding: str = "record") -> Any:
    base = as_model(f, operator)
    cached = base.__dict__.setdefault("_products", {})
    if (operator, encoding) not in cached:
        cached[operator, encoding] = derived(operator, base, None, encoding)
    points = first if isinstance(first, (tuple, list)) else (first,)
    return cached[operator, encoding](*points, *second)


@border
def jvp(f: Any, primals: Any, tangents: Any) -> Any:
    """The tangent of ``f`` at ``primals`` (a tuple of arguments) along ``tangents``."""
    return _product("jvp", f, primals, tuple(tangents) if isinstance(tangents, (tuple, list)) else (tangents,))


@border
def vjp(f: Any, primals: Any, cotangent: Any, encoding: str = "record") -> Any:
    """The adjoints of ``primals`` for a cotangent of the result. ``encoding`` as for ``grad``."""
    return _product("vjp", f, primals, (cotangent,), encoding)


@border
def hvp(f: Any, primals: Any, vectors: Any, encoding: str = "record") -> Any:
    """The Hessian at ``primals`` times ``vectors``, forward over reverse. ``encoding`` as for ``grad``."""
    moves = tuple(vectors) if isinstance(vectors, (tuple, list)) else (vectors,)
    return _product("hvp", f, primals, moves, encoding)


@border
def run(f: Any, *args: Any) -> Any:
    """A model called define by run: evaluated as it is read, and differentiated on the way by dual numbers and tapes.

    The whole language runs, whether it compiles or not: recursion, closures in data, derivatives whose order is known
    at run time. Arguments and results are a compiled call's; functions may be arguments, and a function that comes back
    is called like any other. Arrays are copied on entry, so that ``set-at!`` does not reach the caller's. Raises the
    errors of ``hyad.errors``.

    >>> hyad.run("(fn [x] (letrec [f (fn [n] (if (= n 0) 1 (* x (f (- n 1)))))] (f 10)))", 2.0)
    1024.0
    """
    return as_model(f, "run").running()(*args)


@border
def compile(
    f: Any,
    target: str = "c",
    dtype: str = "f64",
    *,
    args: Sequence[Any] | None = None,
    flags: str = "exact",
    without: str | Iterable[str] = (),
    threads: int = 1,
    blas: bool = False,
    math: str = "libm",
    deterministic: bool = False,
) -> Callable[..., Any]:
    """A model compiled for one target, at once where its signature is known.

    The signature is that of ``args``, else of the annotations, else of the last call; a parameter without any is a
    real. What comes back is the C entry itself, with ``source``, ``header``, ``cfunction``, ``program`` and
    ``address`` beside it; called with arguments of another signature it compiles that too. It is pickled as its model,
    with options and signature, and made again where it is loaded, its C from the cache. ``dtype`` "f32" computes
    in single precision. ``flags`` "fast" lets the C compiler reorder sums, and take exp, log, sin, cos, tanh and the
    like of several numbers at once (4 units in the last place off at most). ``math`` "vector" changes nothing but exp,
    expm1 and tanh, and what is made of them: functions of hyad's own, which C compilers make vectors of without leave
    to reorder anything (exp is at most 1 unit in the last place off, expm1 and tanh 3). ``without`` names optimisations
    to leave out (``hyad.optimisations()``). C code runs independent loops on ``threads`` threads (OpenMP) where their
    sizes make it worth while, sums in as many parts: results are the same to the last bit for the same number of
    threads. These wait for 20 us before they sleep, or as ``$GOMP_SPINCOUNT`` or ``$OMP_WAIT_POLICY`` say. With
    ``blas`` large products of matrices are a BLAS's, that of the wheel ``scipy-openblas32`` (``pip install
    hyad[blas]``) or the system's.
    ``deterministic`` makes a GPU give the same bits in every call, where adding in any order would be faster; code for
    a CPU always does.

    With the target "cuda" what comes back is a ``hyad.gpu.CudaModel``: it runs on a GPU through pycuda, over a batch
    where an argument has one dim more than its parameter, else one call in parallel.
    """
    if target not in TARGETS:
        raise ModelTypeError(f"there is no target {target!r}", None, f"targets are {', '.join(TARGETS)}")
    if dtype not in ("f64", "f32"):
        raise ModelTypeError(f"there is no dtype {dtype!r}", None, 'dtypes are "f64" and "f32"')
    if flags not in ("exact", "fast"):
        raise ModelTypeError(f"there are no flags {flags!r}", None, 'flags are "exact" and "fast"')
    if blas and target != "c":
        raise ModelTypeError(f"the target {target!r} calls no BLAS", None, 'target "c" does')
    base = as_model(f, "compile")
    options: dict[str, Any] = dict(target=target, dtype=dtype, flags=flags)
    if type(threads) is not int or threads < 1:
        raise ModelTypeError(f"threads is {threads!r}", None, "a number of threads: 1 or more")
    if threads > 1:
        if target != "c":
            raise ModelTypeError(f"the target {target!r} has no threads", None, 'target "c" has')
        options["threads"] = threads
    if target == "cuda" and flags != "exact":
        raise ModelTypeError("the target 'cuda' has no flags", None, 'target "c" has')
    if blas:
        from hyad.codegen import blas as products

        if products.library() is None:
            raise CompileError("there is no BLAS here", None, "pip install hyad[blas], or the system's OpenBLAS")
        options["blas"] = True
    if math != "libm":
        options["math"] = own_math(math, target, dtype)
    if without:
        from .report import chosen

        options["without"] = chosen(without)
    own = base.with_options(options)
    if target == "cuda":
        from .gpu import compile_cuda

        return compile_cuda(own, dtype, args, deterministic)
    return compiled(base, options, own.specs(args))


def compiled(base: Model, options: dict[str, Any], specs: Sequence[Spec]) -> Callable[..., Any]:
    """``compile`` for a signature. What comes back is pickled as these three, and loaded by this function."""
    own = base.with_options(options)
    found = own.compile_for(specs, **options)
    own._compiled[tuple(map(signature_key, specs))] = found
    own._enter(found)
    found.model = base  # type: ignore[attr-defined]
    # pickle asks the object for this, and no class of its own stands between a call and the C entry
    found.__reduce_ex__ = lambda protocol: (compiled, (base, options, tuple(specs)))  # type: ignore[method-assign]
    return found


def own_math(math: str, target: str, dtype: str) -> str:
    """``math``, where it is one that the target has."""
    if math not in ("libm", "vector"):
        raise ModelTypeError(f"there is no math {math!r}", None, 'math is "libm" or "vector"')
    if math == "vector" and (target != "c" or dtype != "f64"):
        raise ModelTypeError('math "vector" is for the target "c" and dtype "f64"', None, "leave it out")
    return math


@border
def low_level_callable(f: Any, signature: str | None = None) -> Any:
    """A ``scipy.LowLevelCallable`` of a model of reals, or of one vector of reals, that gives a real: what
    ``scipy.integrate.quad`` and ``nquad`` call without Python. ``signature`` picks one of SciPy's C signatures.

    Raises ``ModelTypeError`` where the model cannot be called so.
    """
    from hyad.codegen import build

    compiled = f if hasattr(f, "entry") else compile(f)
    return build.low_level_callable(compiled.entry, signature)
