"""The stages of a model: every program on the way from the user's text to C.

``stages(f)`` maps a stage's name to a ``Stage``, made when it is first asked for:

==============  ==========================================================================================
``source``      what the user wrote
``anf``         the same in A-normal form: surface core, nothing resolved
``typed``       one signature of it: types, sizes and constants inferred, calls inlined, tuples taken apart
``forward``     its derivative along a direction (``jvp``), optimised
``reverse``     its value and gradient; its adjoints (``vjp``) where the result is not one number
``optimised``   the typed program after the optimiser: what is printed as code
``simplified``  the optimised program after SymPy
``sympy``       its definitions in SymPy's notation
``latex``       and in LaTeX's
``python``      plain Python
``c``           C
``cuda``        CUDA
==============  ==========================================================================================

A derived model, ``grad(f)``, has the same stages: those of the derivative. What SymPy's simplification kept and what it
refused, with the reasons, is the ``log`` of the stages that come from it: ``print(hyad.show(f, "simplified").log)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .core import BOOL, INT, REAL, Arr, Lambda, Leaf, Program, Scalar, leaves
from .errors import DerivativeError, HyadError, border
from .frontend.annotations import has_reals, parameters
from .layout import pformat
from .marshalling import tree_spec
from .model import Model, as_model, derived
from .plain_python import python_callable
from .program.dead import dead_code
from .program.forms import Form
from .program.printer import call, declarations, print_lambda, print_program, sym, wrt_form
from .program.signature import Spec
from .program.values import Builtin, Closure, Derived, Function

if TYPE_CHECKING:
    from .passes.simplify import Log

WIDTH = 79


class Stage(str):
    """One stage: its text. ``program`` is the typed program that it shows, None where there is none. Called with the
    program's arguments it evaluates, in plain Python. ``log``: what SymPy's simplification kept and refused on the way
    to ``simplified``, ``sympy`` and ``latex``, as a table; None for the others."""

    name: str
    program: Program | None
    log: Log | None

    def __new__(
        cls, text: str, name: str, program: Program | None, evaluate: Callable[..., Any], log: Log | None = None
    ) -> Stage:
        made = super().__new__(cls, text)
        made.name, made.program, made._evaluate, made.log = name, program, evaluate, log
        return made

    def __repr__(self) -> str:
        return str(self)

    def __call__(self, *args: Any) -> Any:
        return self._evaluate(*args)


class Stages(Mapping[str, Stage]):
    """A model's stages by name, in order. Getting one raises ``HyadError`` if there is none of that name, or where the
    model does not get so far (``forward`` of a function that gives a truth value)."""

    def __init__(self, model: Model, specs: Sequence[Spec]) -> None:
        self.model, self.specs = model, list(specs)
        self._made: dict[str, Stage] = {}
        self._programs: dict[str, Program] = {}
        self._names: list[str] | None = None
        self._log: Log | None = None  # of the simplification
        self._wrt: Any = ...  # not asked for yet

    @border
    def __getitem__(self, name: str) -> Stage:
        if name not in self._made:
            if name not in MAKERS:
                raise HyadError(f"there is no stage {name!r}", None, f"the stages are {', '.join(MAKERS)}")
            self._made[name] = MAKERS[name](self, name)
        return self._made[name]

    @border
    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    @border
    def __len__(self) -> int:
        return len(self.names())

    @border
    def __contains__(self, name: object) -> bool:
        return name in MAKERS and self.has(str(name))

    @border
    def __repr__(self) -> str:
        return f"<stages of {self.model.name}: {' '.join(self.names())}>"

    def names(self) -> list[str]:
        if self._names is None:
            self._names = [name for name in MAKERS if self.has(name)]
        return self._names

    def has(self, name: str) -> bool:
        """Whether the model gets as far as a stage."""
        if name in HOMES:
            return find_spec(HOMES[name]) is not None
        if name in ("forward", "reverse"):
            results = self.program("typed").body.results
            return self.wrt() != () and all(_element(r.type) != BOOL for r in results)
        return True

    # ------------------------------------------------------------------------------- making stages

    def program(self, name: str) -> Program:
        """The typed program of a stage."""
        if name not in self._programs:
            self._programs[name] = PROGRAMS[name](self)
        return self._programs[name]

    def typed(self) -> Program:
        return dead_code(self.model.program(self.specs, plain=True))

    def optimised(self) -> Program:
        return self.model.optimised(self.specs)

    def simplified(self) -> Program:
        from .passes.simplify import simplify

        program, self._log = simplify(self.program("optimised"))
        return program

    def forward(self) -> Program:
        if self.wrt() == ():
            raise DerivativeError("`jvp`: there is no real parameter to differentiate by", self.model.span)
        return derived("jvp", self.model, self.wrt()).optimised([*self.specs, *self.specs])

    def reverse(self) -> Program:
        program = self.program("typed")
        if isinstance(program.out, Leaf) and isinstance(program.body.results[0].type, Scalar):
            return derived("value-and-grad", self.model, self.wrt()).optimised(self.specs)
        cotangent = tree_spec(program.out, iter(program.body.results))
        return derived("vjp", self.model, self.wrt()).optimised([*self.specs, _real(cotangent)])

    def wrt(self) -> tuple[int, ...] | None:
        """What ``forward`` and ``reverse`` differentiate by: what operators do (None), for which an integer is a real;
        the arguments that hold reals where the model needs the others as integers."""
        if self._wrt is ...:
            self._wrt = self._differentiable()
        return self._wrt

    def _differentiable(self) -> tuple[int, ...] | None:
        at, numbers = [], []
        params = iter(self.program("typed").params)
        for k, tree in enumerate(self.program("typed").ins):
            types = [_element(next(params).type) for _ in range(leaves(tree))]
            if REAL in types:
                at.append(k)
            if REAL in types or INT in types:
                numbers.append(k)
        known = parameters(self.model.value)
        if known is not None:
            numbers = [k for k in numbers if has_reals(known[k][1])]
        for k in numbers:
            if k not in at:
                try:
                    derived("jvp", self.model, (k,)).program([*self.specs, *self.specs])
                    at = sorted([*at, k])
                except HyadError:  # an index, or a size
                    pass
        return None if len(at) == len(self.specs) else tuple(at)

    def text(self, name: str) -> Stage:
        """``source`` and ``anf``: forms of the surface language, which the model itself evaluates."""
        text = source_text(self.model) if name == "source" else pformat(surface(self.model.value), WIDTH)
        return Stage(text, name, None, self.evaluate)

    def evaluate(self, *args: Any) -> Any:
        specs = self.model.called_as(args)
        return python_callable(dead_code(self.model.program(specs, plain=True)))(*args)

    def hy(self, name: str) -> Stage:
        program = self.program(name)
        text = "\n\n".join(pformat(form, WIDTH) for form in (*declarations(program), print_program(program)))
        return Stage(text, name, program, python_callable(program), self._log if name == "simplified" else None)

    def code(self, name: str) -> Stage:
        program = self.program("optimised")
        return Stage(_print_code(name, program), name, program, python_callable(program))

    def notation(self, name: str) -> Stage:
        from .program.latex import latex, system

        program = self.program("simplified")
        text = latex(program) if name == "latex" else system(program)
        return Stage(text, name, program, python_callable(program), self._log)


PROGRAMS: dict[str, Callable[[Stages], Program]] = {
    "typed": Stages.typed,
    "forward": Stages.forward,
    "reverse": Stages.reverse,
    "optimised": Stages.optimised,
    "simplified": Stages.simplified,
}
MAKERS: dict[str, Callable[[Stages, str], Stage]] = {
    "source": Stages.text,
    "anf": Stages.text,
    "typed": Stages.hy,
    "forward": Stages.hy,
    "reverse": Stages.hy,
    "optimised": Stages.hy,
    "simplified": Stages.hy,
    "sympy": Stages.notation,
    "latex": Stages.notation,
    "python": Stages.code,
    "c": Stages.code,
    "cuda": Stages.code,
}
#: The modules that stages need; one that is not there has no stage.
HOMES = {
    "simplified": "hyad.passes.simplify",
    "sympy": "hyad.program.latex",
    "latex": "hyad.program.latex",
    "cuda": "hyad.codegen.cuda",
}


@border
def stages(f: Any, *, args: Sequence[Any] | None = None, without: str | Iterable[str] = ()) -> Stages:
    """The stages of a model or of a derived one, by name, in order.

    The signature is that of ``args``, else of the last call, else of the annotations; a parameter without any is a
    real. ``without`` names optimisations to leave out of the stages from ``optimised`` on (``hyad.optimisations()``).
    """
    model = as_model(f, "stages")
    if without:
        model = model.without(without)
    return Stages(model, model.called_as(args))


@border
def show(f: Any, stage: str = "anf", *, args: Sequence[Any] | None = None, without: str | Iterable[str] = ()) -> Stage:
    """One stage of a model: ``print(hyad.show(f, "c"))``; a REPL shows it as it is. ``stage`` is "source", "anf",
    "typed", "forward", "reverse", "optimised", "simplified", "sympy", "latex", "python", "c" or "cuda"; the rest as for
    ``stages``."""
    return stages(f, args=args, without=without)[stage]


# ------------------------------------------------------------------------------------------ their texts


def source_text(model: Model) -> str:
    """What the user wrote, or ``(grad (fn ..))`` for what was derived."""
    return model.source or pformat(surface(model.value, flat=False), WIDTH)


def surface(function: Function, flat: bool = True) -> Form:
    """A function as a form: in A-normal form, or (not ``flat``) as it was written where that is known."""
    if isinstance(function, Closure):
        return open_sizes(print_lambda(function.function)) if flat else written(function.function)
    if isinstance(function, Derived):
        options = [] if function.wrt is None else [Form("key", "wrt"), wrt_form(function.wrt)]
        return call(function.operator, surface(function.function, flat), *options)
    if isinstance(function, Builtin):
        return sym(function.name)
    raise HyadError("this function has no text of its own", None, "apply it inside a model")


def written(function: Lambda) -> Form:
    """The user's own form of a function, without its name."""
    from .program.forms import read_forms

    if function.span is None:
        return print_lambda(function)
    form = read_forms(function.span.text)[0]
    items = form.value[2:] if form.head() == "defmodel" else form.value[1:]
    items = [x for x in items if not (x.kind == "str" and function.doc is not None)]
    return Form("(", [sym("fn"), *items])


def open_sizes(form: Form) -> Form:
    """A printed function whose sizes by name are left open: ``(Vec n)`` becomes ``(Vec None)``, which evaluates."""

    def opened(note: Form) -> Form:
        if note.kind == "(":
            return Form("(", [note.value[0], *map(opened, note.value[1:])])
        return sym("None") if note.kind == "sym" and note.value not in ("Real", "Int", "Bool") else note

    params = [Form("#^", [opened(p.value[0]), p.value[1]]) if p.kind == "#^" else p for p in form.value[1].value]
    return Form("(", [form.value[0], Form("[", params), *form.value[2:]])


def _print_code(name: str, program: Program) -> str:
    if name == "python":
        from hyad.codegen.python import print_python

        return print_python(program)
    if name == "c":
        from hyad.codegen.c import print_c

        return print_c(program).source
    from hyad.codegen.cuda import print_cuda

    printed = print_cuda(program)
    return getattr(printed, "source", printed)


def _element(t: Any) -> Scalar:
    return t.elem if isinstance(t, Arr) else t


def _real(spec: Spec) -> Spec:
    """A cotangent's type: that of the result, of reals."""
    if isinstance(spec, Arr):
        return Arr(REAL, spec.dims)
    if isinstance(spec, Scalar):
        return REAL
    return type(spec)(tuple(map(_real, spec.items)), spec.keys, spec.make)
