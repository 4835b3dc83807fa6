"""The command ``hyad``: run, show, emit and check models of a Hy file; ``hyad repl``.

A user's mistake is a message without a traceback and exit status 1, a wrong command line status 2. Results are
printed as Hy reads them, so one command's output is another's argument.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import HyadError, ReadError
from .program.names import mangled

OPERATORS = {
    "grad": "its gradient",
    "value-and-grad": "the pair of its value and gradient",
    "jacobian": "the derivative of every result by every argument",
    "hessian": "its second derivatives",
    "D": "its derivative by one number",
}

EXAMPLES = """\
A model is a Hy form in a file, say ring.hy:

  (require hyad.macros [defmodel])
  (defmodel area [r R] (* 3.14 (- (* R R) (* r r))))

  hyad run ring.hy area 1.0 2.0             call it
  hyad show ring.hy area --grad             its gradient, as a program in A-normal form
  hyad show ring.hy area --grad --stage c   and in C
  hyad emit ring.hy area --grad -o out      area_grad.c and area_grad.h: no runtime, no allocation
  hyad check ring.hy area                   are its derivatives right?
  hyad repl ring.hy                         all that and more, interactively
"""
RUN = """\
  hyad run ring.hy area 1.0 2.0                       a model and its arguments
  hyad run fit.hy residuals '[1 2 3]' '#(0.5 [1 0])'  an array; a tuple of a number and an array
  hyad run net.hy layer '[[1 2] [3 4]]' --blas        large products of matrices by a BLAS
  hyad run examples/nist.hy -- --all --data DIR       a file's own `main`, called with what stands behind --
"""
SHOW = """\
  hyad show ring.hy area                           in A-normal form
  hyad show ring.hy area --stage reverse           value and gradient together
  hyad show ring.hy area --hessian --wrt r,R --stage c
  hyad show fit.hy residuals --stage typed '[1 2 3]'    for arguments like this one
  hyad show ring.hy area --stage simplified --log       what SymPy's simplification kept and refused

stages: source anf typed forward reverse optimised simplified sympy latex python c cuda
"""
EMIT = """\
  hyad emit ring.hy area --grad -o out             out/area_grad.c and out/area_grad.h
  hyad emit ring.hy area -o out/ring_area.c        names of your own
  hyad emit net.hy layer --grad --blas -o out      large products of matrices by a BLAS, with -DHYAD_BLAS
  hyad emit net.hy layer --grad --threads 4 --math vector -o out   with -fopenmp, on four threads
  hyad emit ring.hy area --target cuda --dtype f32 -o out          a kernel over a batch
  hyad emit fit.hy residuals --grad --target cuda --grid --deterministic -o out   one call in parallel

then: cc -std=c99 -O3 -Iout main.c out/area_grad.c -lm
"""
CHECK = """\
  hyad check ring.hy area                          at random arguments
  hyad check ring.hy area 1.0 2.0 --wrt r          at these
"""
REPORT = """\
  hyad COMMAND ring.hy area --grad
  hyad COMMAND FILE MODEL --grad '[1 2 3]' 2.0        at these sizes
  hyad COMMAND FILE MODEL --grad --without fuse,jam
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    try:
        status = command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        from .repl import explained

        sys.stdout.flush()
        print(explained(error), file=sys.stderr)
        return 1


def command(argv: list[str]) -> int:
    if argv[:1] == ["repl"]:
        from .repl import main as repl

        return repl(argv[1:])
    argv, behind = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    # a negative number is an argument, not an option; argparse takes nothing with a space for an option
    argv = [f" {a}" if re.match(r"-([\d.]|[Ii]nf)", a) else a for a in argv]
    parser = arguments()
    options, late = parser.parse_known_args(argv)  # late: what argparse does not place, arguments behind an option
    if any(a.startswith("-") for a in late):
        getattr(options, "parser", parser).error(f"unrecognized arguments: {' '.join(late)}")
    if options.action is None:
        parser.print_help()
        return 2
    if options.model is None and late:
        options.model = late.pop(0)
    options.args = [*options.args, *late]
    options.behind = behind
    return options.action(options)


def arguments() -> argparse.ArgumentParser:
    from . import __version__

    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="hyad", description="Symbolic differentiation of Hy models.", epilog=EXAMPLES, formatter_class=layout
    )
    parser.add_argument("--version", action="version", version=f"hyad {__version__}")
    parser.set_defaults(action=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, action: Callable[..., int], what: str, examples: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=examples)
        sub.formatter_class = layout
        sub.set_defaults(action=action, parser=sub)
        sub.add_argument("file", metavar="FILE", help="a Hy file")
        return sub

    def model(sub: argparse.ArgumentParser, what: str, derive: bool = True) -> None:
        sub.add_argument("model", metavar="MODEL", nargs="?", help="its name; may be left out where there is one")
        sub.add_argument("args", metavar="ARG", nargs="*", default=[], help=what)
        if derive:
            chosen = sub.add_mutually_exclusive_group()
            for name, meaning in OPERATORS.items():
                chosen.add_argument(f"--{name}", dest="operator", action="store_const", const=name, help=meaning)
        sub.add_argument("--wrt", type=positions, help="by which parameters: names or positions, with commas between")

    sub = add("run", run, "call a model, or the file's `main`; or run the file, a script", RUN)
    sub.add_argument("model", metavar="MODEL", nargs="?", help="a model or function of the file")
    sub.add_argument("args", metavar="ARG", nargs="*", default=[], help="its arguments: 1.5, '[1 2 3]', '#(1 [2 3])'")
    sub.add_argument("--blas", action="store_true", help="leave large products of matrices to a BLAS")
    sub = add("show", show, "show a model or its derivative at one stage on the way to C", SHOW)
    model(sub, "arguments whose types are meant")
    sub.add_argument("--stage", help="which stage (anf; of a derivative optimised)")
    sub.add_argument("--log", action="store_true", help="what SymPy's simplification kept and refused, instead")
    sub = add("emit", emit, "write C or CUDA files that stand alone", EMIT)
    model(sub, "arguments whose types are meant")
    sub.add_argument("--target", choices=("c", "cuda"), default="c")
    sub.add_argument("--dtype", choices=("f64", "f32"), default="f64", help="double or single precision")
    sub.add_argument("--grid", action="store_true", help="CUDA for one call in parallel, not for a batch of them")
    sub.add_argument("--deterministic", action="store_true", help="with --grid: the same bits in every call")
    sub.add_argument("--threads", metavar="N", type=int, default=1, help="C for so many threads, with -fopenmp")
    sub.add_argument("--math", choices=("libm", "vector"), default="libm", help="exp, log, sin .. that become vectors")
    sub.add_argument("--blas", action="store_true", help="C that calls a BLAS for large products of matrices")
    sub.add_argument("--line-directives", action="store_true", help="let a debugger step through the Hy model")
    sub.add_argument("-o", "--output", metavar="DIR", default=".", help="a folder, or a file such as out/kernel.c")
    sub = add("check", check, "compare a model's derivatives with finite differences", CHECK)
    model(sub, "where; random if left out", derive=False)
    sub.add_argument("--tol", type=float, default=1e-6, help="the relative error allowed (1e-6)")
    for name, what in (("explain", "say what the optimiser did to a model: what fired where, what it saved"),
                       ("cost", "count what a model and its derivatives cost")):  # fmt: skip
        sub = add(name, report, what, REPORT.replace("COMMAND", name))
        model(sub, "arguments at whose sizes it is counted")
        sub.add_argument("--without", metavar="NAMES", help="optimisations to leave out, with commas between")
        sub.set_defaults(report=name, threads=1, target="c")
        if name == "explain":
            sub.add_argument("--threads", metavar="N", type=int, help="how each loop runs on so many, or why on one")
            sub.add_argument("--target", choices=("c", "cuda"), default="c", help="cuda: what is done on a GPU, too")
    commands.add_parser("repl", help="a Hy session with hyad's macros", add_help=False)
    return parser


# ------------------------------------------------------------------------------------------- commands


def run(options: argparse.Namespace) -> int:
    from .files import plain_models
    from .frontend.annotations import parameters

    module = load(options.file)
    name = options.model
    if name is None:
        main = getattr(module, "main", None)
        if callable(main) and not options.blas:
            status = main(options.behind) if inspect.signature(main).parameters else main()
            return status if isinstance(status, int) else 0
        found = list(models(module).values())
        called = len(found) == 1 and (options.behind or not parameters(found[0].value))
        if not called and not plain_models(Path(options.file).read_text(encoding="utf-8-sig")):
            return 0  # a script: it has run
        name = only_model(module, options.file)
    function = models(module).get(name) or getattr(module, mangled(name), None)
    if not callable(function):
        raise no_model(name, module, options.file)
    values = literals(options.args + options.behind, function)
    if options.blas:
        from .compiling import compile
        from .model import Model

        if not isinstance(function, Model):
            raise HyadError(f"--blas is for a model, and `{name}` is a function", None, "leave it out")
        function = compile(function, args=values, blas=True)
    print(text_of(function(*values)))
    return 0


def show(options: argparse.Namespace) -> int:
    from .repl import coloured, wants_colour
    from .stages import show

    f = chosen(options)
    stage = options.stage or ("anf" if options.operator is None else "optimised")
    text = show(f, stage, args=given(options, f))
    if options.log:
        if text.log is None:
            raise HyadError(f"the stage {stage!r} has no log", None, "SymPy makes simplified, sympy and latex")
        print(text.log)
        return 0
    print(coloured(text) if wants_colour(sys.stdout) and text.lstrip().startswith("(") else text.rstrip("\n"))
    return 0


def emit(options: argparse.Namespace) -> int:
    from .emit import emit

    f = chosen(options)
    paths = emit(
        f,
        options.output,
        target=options.target,
        args=given(options, f),
        dtype=options.dtype,
        line_directives=options.line_directives,
        blas=options.blas,
        grid=options.grid,
        threads=options.threads,
        math=options.math,
        deterministic=options.deterministic,
    )
    for path in paths:
        print(path)
    return 0


def report(options: argparse.Namespace) -> int:
    from . import report as reports

    f = chosen(options)
    names, args = options.without.split(",") if options.without else (), given(options, f)
    if options.report == "explain":
        told = reports.explain(f, args=args, without=names, threads=options.threads, target=options.target)
        print(told)
    else:
        print(reports.cost(f, args=args, without=names))
    return 0


def check(options: argparse.Namespace) -> int:
    from .checking import check_grad, sample_args

    options.operator = None
    wrt, options.wrt = options.wrt, None
    f = chosen(options)
    args = given(options, f)
    report = check_grad(f, tuple(sample_args(f) if args is None else args), wrt, options.tol)
    print(report)
    return 0 if report else 1


# ------------------------------------------------------------------------------------- files and models


def load(path: str) -> ModuleType:
    from .files import load

    sys.path.insert(0, str(Path(path).resolve().parent))  # as Python does for a script
    return load(path)


def models(module: ModuleType) -> dict[str, Any]:
    """The models of a file by their names."""
    import hy

    from .model import Model

    return {hy.unmangle(k): v for k, v in vars(module).items() if isinstance(v, Model)}


def only_model(module: ModuleType, path: str) -> str:
    names = list(models(module))
    if len(names) != 1:
        hint = f"say which: {' '.join(names)}" if names else "define one with defmodel"
        raise HyadError(f"{path} has {len(names) or 'no'} models", None, hint)
    return names[0]


def no_model(name: str, module: ModuleType, path: str) -> HyadError:
    names = " ".join(models(module)) or "none"
    return HyadError(f"there is no model `{name}` in {path}", None, f"its models are: {names}")


def chosen(options: argparse.Namespace) -> Any:
    """The model that a command line names, differentiated as it says."""
    from .model import derived

    module = load(options.file)
    found = models(module)
    name = options.model if options.model is not None else only_model(module, options.file)
    if name not in found:
        raise no_model(name, module, options.file)
    if options.operator is None:
        if options.wrt is not None:
            raise HyadError("--wrt says by what to differentiate", None, "add --grad, --jacobian, --hessian or --D")
        return found[name]
    return derived(options.operator, found[name], options.wrt)


def given(options: argparse.Namespace, f: Any) -> list[Any] | None:
    texts = options.args + options.behind
    return literals(texts, f) if texts else None


def positions(text: str) -> Any:
    """``--wrt``: a name, a position, or several."""
    if not all(p.strip() for p in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} leaves a name out: write r, or 0, or r,R")
    parts = [int(p) if p.lstrip("-").isdigit() else p for p in text.split(",")]
    return parts[0] if len(parts) == 1 else tuple(parts)


# --------------------------------------------------------------------------------------------- literals


def literals(texts: Sequence[str], f: Any) -> list[Any]:
    """The values of arguments on a command line. Arrays are of reals unless a parameter says something else."""
    from .core import REAL, Arr
    from .frontend.annotations import parameters
    from .model import Model

    known = parameters(f.value) if isinstance(f, Model) else None
    values = []
    for k, text in enumerate(texts):
        spec = known[k][1] if known and k < len(known) else None
        elem = spec.elem if isinstance(spec, Arr) else REAL
        values.append(literal(text, {"Real": float, "Int": int, "Bool": bool}[elem.name], constructors(f)))
    return values


def constructors(f: Any) -> dict[str, Callable[..., Any]]:
    """What makes data in an argument: the language's own, and what the model's file defines."""
    from .program.data import Data, Inl, Inr, lisp

    value = getattr(f, "value", None)
    while hasattr(value, "function") and not hasattr(value, "scope"):  # a derivative's own function
        value = value.function
    names = getattr(getattr(value, "scope", None), "namespace", getattr(f, "__globals__", {}))
    own = {v.name: v for v in names.values() if isinstance(v, type) and issubclass(v, Data) and v.name}
    return {"list": lambda *items: lisp(items), "cons": lambda a, b: (a, b), "inl": Inl, "inr": Inr, **own}


def literal(text: str, elem: type = float, made_by: dict[str, Callable[..., Any]] | None = None) -> Any:
    """One value as Hy, Python or JSON write it: ``1.5``, ``[1 2 3]``, ``[[1, 0], [0, 1]]``, ``#(1 [2 3])``, ``None``,
    ``{"a": 1}``, ``(list 1.0 2.0)``; ``(Node 1 (Leaf 2))`` of the constructors ``made_by``.

    Raises ``ReadError``.
    """
    import numpy as np

    from .errors import Source, Span
    from .program.forms import Form, read_forms

    text = re.sub(r'("[^"]*")\s*:', r"\1 ", text.strip().replace(",", " "))  # JSON's commas and colons
    source = Source(text, "<argument>")
    forms = read_forms(text, source)
    if not text:
        raise ReadError("an argument is empty", None, "arguments are numbers, '[1 2 3]', '#(1 [2 3])', 'None'")
    if len(forms) != 1:
        whole = Span(source, 0, len(text))
        raise ReadError("an argument is one value", whole, "put quotes around it: '[1 2 3]'")

    def items(form: Form) -> Any:
        if form.kind == "[":
            return [items(x) for x in form.value]
        item, (what, fits) = value(form), ELEMENTS[elem]
        if not isinstance(item, (int, float)) or not fits(item):
            raise ReadError(f"this is no {what}", form.span, f"each element of this array is a {what}")
        return item

    def value(form: Form) -> Any:
        if form.kind == "num":
            return form.value
        if form.kind == "sym" and form.value in CONSTANTS:
            return CONSTANTS[form.value]
        if form.kind == "(" and form.head() in (made_by or {}):
            try:
                return made_by[form.head()](*map(value, form.value[1:]))  # type: ignore[index]
            except (HyadError, TypeError) as error:
                raise ReadError(getattr(error, "message", str(error)), form.span) from None
        if form.kind in ("(", "#("):
            return tuple(map(value, form.value))
        if form.kind == "{" and len(form.value) % 2 == 0:
            keys = [k.value for k in form.value[::2]]
            return dict(zip(keys, map(value, form.value[1::2])))
        if form.kind == "[":
            try:
                return np.array(items(form), elem)
            except (TypeError, ValueError):
                raise ReadError("this is no array of numbers", form.span, "rows have equal lengths") from None
        raise ReadError(
            "this is no value", form.span, "arguments are numbers, '[1 2 3]', '#(1 [2 3])', '(list 1 2)', '{\"a\" 1}'"
        )

    return value(forms[0])


#: What an element of an array on a command line has to be, by its type.
ELEMENTS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    float: ("number", lambda x: True),
    int: ("64-bit integer", lambda x: x == x // 1 and -(2**63) <= x < 2**63),
    bool: ("truth value", lambda x: x in (0, 1)),
}
CONSTANTS = {
    "None": None,
    "nil": None,
    "null": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "-inf": -float("inf"),
    "nan": float("nan"),
}


def text_of(value: Any) -> str:
    """A result as Hy reads it."""
    import numpy as np

    from .program.forms import number_text

    if isinstance(value, (np.ndarray, list)):
        return f"[{' '.join(map(text_of, value))}]" if np.ndim(value) else text_of(value.item())
    if isinstance(value, np.generic):
        return text_of(value.item())
    if isinstance(value, tuple):
        return f"#({' '.join(map(text_of, value))})"
    if isinstance(value, dict):
        return "{" + "  ".join(f'"{k}" {text_of(v)}' for k, v in value.items()) + "}"
    if value is None or isinstance(value, (bool, int, float)):
        return number_text(value)
    return str(value)
