"""Name resolution: what a free name of a model means.

The user's module first, then the language: its primitives and builtins, then the prelude. A name that nothing
binds is an error that says what the user may have meant.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import Atom, Global
from ..errors import DerivativeError, ModelTypeError, UnboundError
from ..program.advice import as_hint, instead
from ..program.data import Data as PythonData
from ..program.forms import prelude_texts
from ..program.names import mangled
from ..program.primitives import PRIMITIVES
from ..program.reader import SPECIAL, prelude
from ..program.values import OPERATORS, PARTS, Builtin, Constructing, TupleValue, Value, constant, for_parts
from .builtins import BUILTINS

if TYPE_CHECKING:
    from .specialise import Specialiser


def resolve(sp: Specialiser, name: Global) -> Value:
    """What a free name means: the user's module first, then the language."""
    if name.name.startswith(PARTS):
        return Builtin(for_parts(resolve(sp, Global(name.name[len(PARTS) :], name.span))))
    sp.globals_read.add(name.name)
    if hasattr(sp.scope, "namespace"):
        sp.namespaces.add(id(sp.scope.namespace) if sp.scope.cells is None else id(sp.scope))
    found, value = in_scope(sp.scope, name.name)
    builtin = name.name in PRIMITIVES or name.name in BUILTINS or name.name in OPERATORS
    if found:
        known = python_value(sp, value, name)
        if known is not None and not (builtin and isinstance(known, Builtin)):
            return known
        if not builtin:
            if known is not None:
                return known
            what = "function" if callable(value) else type(value).__name__
            hint = "models use numbers, NumPy arrays, tuples, and other models"
            if callable(value):
                hint = "make it a model with defmodel, or a primitive with defprim"
            hint = written(name.name) or hint
            raise DerivativeError(f"`{name.name}` is a Python {what}, which hyad cannot look into", name.span, hint)
    if builtin:
        return Builtin(name.name)
    function = prelude(name.name)
    if function is not None:
        return function
    row = numpy_row(name.name)
    if row is not None:
        return prelude(row) or Builtin(row)
    number = numpy_number(name.name)
    if number is not None:
        return constant(number, name.span)
    if name.name in SPECIAL:
        raise ModelTypeError(f"`{name.name}` is a form, not a value", name.span, f"write `({name.name} ...)`")
    raise UnboundError(f"nothing binds `{name.name}`", name.span, similar(name, sp.scope))


def in_scope(scope: Callable[[str], tuple[bool, Any]], name: str) -> tuple[bool, Any]:
    """Whether the user's module binds a name, and to what; a Python module, ``import copy``, is no value, and hides
    nothing of the language."""
    found, value = scope(name)
    return found and not (isinstance(value, ModuleType) and of_the_language(name)), value


def of_the_language(name: str) -> bool:
    """Whether a name that no module binds means something."""
    return name in PRIMITIVES or name in BUILTINS or name in OPERATORS or prelude(name) is not None


def python_value(sp: Specialiser, value: Any, name: Global) -> Value | None:
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
        return array_constant(sp, value)
    if isinstance(value, tuple):
        parts = [python_value(sp, x, name) for x in value]
        return None if any(p is None for p in parts) else TupleValue(tuple(parts))
    known = numpy_name(value)
    return None if known is None else prelude(known) or Builtin(known)


def array_constant(sp: Specialiser, value: np.ndarray) -> Atom:
    """A NumPy array of the user's module, written out."""
    items = [array_constant(sp, x) if value.ndim > 1 else constant(x.item()) for x in value]
    return sp.b.array(items)


#: What ``math`` and NumPy call a primitive, where that is not its name.
_NUMPY_NAMES = {
    "power": "**", "pow": "**", "fabs": "abs", "absolute": "abs", "maximum": "max", "minimum": "min", "rint": "round",
    "remainder": "%", "true_divide": "/", "divide": "/", "floor_divide": "//", "negative": "neg", "add": "+",
    "subtract": "-", "multiply": "*", "equal": "=", "less": "<", "greater": ">", "arctan2": "atan2",
    "max": "amax", "min": "amin", "norm": "np.linalg.norm", "greater_equal": ">=", "less_equal": "<=",
    "not_equal": "!=", "logical_and": "and", "logical_or": "or", "logical_not": "not", "array": "array-of",
    "asarray": "array-of", "ndim": "rank", "diagonal": "diag", "deg2rad": "radians", "rad2deg": "degrees",
    "expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma", "diff": "nth-differences",
}  # fmt: skip


#: What NumPy and the prelude call by one name.
_NUMPY_ARRAYS = frozenset(
    "all amax amin any arange argmax argmin argsort array-of cholesky clip column-stack concatenate convolve copy"
    " correlate count-nonzero cov cross cumprod cumsum degrees det diag dot expand-dims eye flip fliplr flipud"
    " full full-like hstack identity inner interp inv isfinite isinf isnan kron linspace log-softmax logaddexp"
    " logsumexp matmul matrix-power mean median meshgrid moveaxis nansum np.linalg.norm nth-differences ones ones-like"
    " outer pad percentile polyval prod ptp quantile radians rank ravel repeat reshape roll searchsorted shape size"
    " slogdet softmax solve sort squeeze stack std sum swapaxes take tile trace transpose trapezoid tril triu vander"
    " var vdot vstack where zeros zeros-like".split()
)


def numpy_name(value: Any) -> str | None:
    """The primitive, or the function of the prelude, that a function of ``math``, NumPy or SciPy is; the operator that
    one of hyad's own is, ``hyad.grad``."""
    path = (getattr(value, "__module__", None) or "").split(".")
    name = getattr(value, "__name__", "")
    if path[0] == "hyad":
        operator = name.replace("_", "-")
        return operator if operator in OPERATORS else None
    if path[0] == "scipy" and (path[1:2] not in (["special"], ["linalg"], ["integrate"]) or name == "cholesky"):
        return None  # scipy.signal's `correlate` is another one, and SciPy's Cholesky factor an upper triangle
    if not callable(value) or not (path[0] in ("math", "numpy", "scipy") or isinstance(value, np.ufunc)):
        return None
    name = _NUMPY_NAMES.get(name, name.replace("_", "-"))
    name = name.replace("arc", "a") if name.startswith("arc") else name
    return name if name in PRIMITIVES or name in _NUMPY_ARRAYS else None


#: NumPy's functions that a model may name as they are: what they do element by element has no other name here.
_BARE = frozenset("maximum minimum logical-and logical-or logical-not".split())


def numpy_row(name: str) -> str | None:
    """The primitive or prelude function that a name which nothing binds is by NumPy: `np.sum`, `maximum`."""
    head, dot, rest = name.partition(".")
    if name not in _BARE and not (dot and head in ("np", "numpy")):
        return None
    return numpy_name(of_numpy(rest if dot else name))


def of_numpy(path: str) -> Any:
    """What NumPy has by a name; None if nothing."""
    value: Any = np
    for part in path.replace("-", "_").split("."):
        value = getattr(value, part, None)
    return value


def numpy_number(name: str) -> float | None:
    """`np.pi`, `np.e`, `np.inf` and `np.nan` where nothing binds `np`."""
    head, _, bare = name.partition(".")
    return getattr(np, bare) if head in ("np", "numpy") and bare in _CONSTANTS and hasattr(np, bare) else None


_CONSTANTS = frozenset("pi e tau inf nan".split())


def written(name: str) -> str | None:
    """What a model writes for what another language or library calls ``name``."""
    other = instead(name)
    known = _NUMPY_NAMES.get(re.split(r"[./](?=.)", name)[-1].replace("-", "_"))
    if other is not None or known is None:
        return other
    params = PRIMITIVES[known].params if known in PRIMITIVES else ("a",)
    return as_hint(f"({' '.join([known, *params])})")


def as_index(name: str, text: str) -> bool:
    """Whether a text has a name as the index of a sum or an array, in a way that no form of models has:
    ``(build n [i] e)``, ``(sum [i n] e)``, ``(build i n e)``."""
    index = rf"(?<![^\s\[]){re.escape(name)}(?![^\s\]])"
    loops, size = r"\((?:build|ifold|fold|scan|map|sum|prod|mean|max|min)\s+", r"(?:[^\s()\[\]]+|\([^()\[\]]*\))"
    brackets = rf"(?:{size}\s+)?\[(?:{size}\s+)*{index}(?:\s+{size})*\s*\]"
    return re.search(rf"{loops}(?:{brackets}|{index}\s+{size})\s*(?!\s*\(fn\b)\(", text) is not None


def similar(name: Global, scope: Callable[[str], tuple[bool, Any]]) -> str:
    """What a user may have meant by a name that nothing binds: what the language calls it, or has, or the model itself
    holds; a macro of the user's module, of which models know nothing."""
    import difflib

    text = name.name
    if mangled(text) in getattr(scope, "namespace", {}).get("_hy_macros", ()):
        return "a model expands no macros of your own: make it a model, `(defmodel name [x] ...)`, and call it"
    bare = re.split(r"[./](?=.)", text)[-1]
    other = written(text)
    if other is not None:
        return other
    if text.lstrip("-") in ("inf", "nan"):
        return f"Hy writes it `{'-Inf' if text == '-inf' else 'Inf' if text == 'inf' else 'NaN'}`"
    if name.span is not None and re.search(rf"(?<![^\s\[]){re.escape(text)}\s+\(fn\b", name.span.source.text):
        return f"`(letrec [{text} (fn ...)] ...)` names a function that calls itself"
    if name.span is not None and as_index(text, name.span.source.text):
        built = f"(build n (fn [{text}] ...))"
        return f"an index is the parameter of a function: `{built}`, `(sum {built})`"
    if text[0] == "-" and bare in _CONSTANTS:
        return f"write `(- {text[1:]})`"
    if bare in _CONSTANTS:
        return f"import it at the top of the module: `(import math [{bare}])`"
    if re.fullmatch(r"[\d.][\d.e+-]*j", text):
        return "models have real numbers: compute with both parts of a complex one"
    head, _, path = text.partition(".")
    if head in ("np", "numpy") and of_numpy(path) is not None:
        return "LANGUAGE.md lists the functions of NumPy that there are; call others outside, and pass what they give"
    if not head and path.isidentifier():
        return f"of what a form gives it is read as `(. (...) {path})`"
    names = [*PRIMITIVES, *BUILTINS, *OPERATORS, *prelude_texts()]
    infix = re.fullmatch(r"(\w+)([*/+^]+)(\w+)", text)
    if infix is not None and bare not in names:
        return f"an operator stands first: `({infix[2]} {infix[1]} {infix[3]})`"

    nearby = re.findall(r"[^\s()\[\]{}\"#;]+", name.span.source.text) if name.span is not None else []
    close = difflib.get_close_matches(bare, [*names, *(n for n in nearby if n != text)], 1, 0.76)
    if close:
        return f"did you mean `{close[0].partition('/')[0] or '/'}`?"
    return "bind it with let, make it a parameter, or define it in the module"
