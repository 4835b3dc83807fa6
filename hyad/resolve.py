"""Name resolution: what a free name of a model means.

The user's module first, then the language: its primitives and builtins, then the prelude. A name that nothing
binds is an error that says what the user may have meant.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from .builtins import BUILTINS
from .core import Atom, Global
from .data import Data as PythonData
from .errors import DerivativeError, ModelTypeError, UnboundError
from .forms import prelude_texts
from .primitives import PRIMITIVES
from .reader import SPECIAL, prelude
from .values import OPERATORS, Builtin, Constructing, TupleValue, Value, constant

if TYPE_CHECKING:
    from .specialise import Specialiser


def resolve(sp: Specialiser, name: Global) -> Value:
    """What a free name means: the user's module first, then the language."""
    sp.globals_read.add(name.name)
    if hasattr(sp.scope, "namespace"):
        sp.namespaces.add(id(sp.scope.namespace) if sp.scope.cells is None else id(sp.scope))
    found, value = sp.scope(name.name)
    builtin = name.name in PRIMITIVES or name.name in BUILTINS or name.name in OPERATORS
    if found:
        known = python_value(sp, value, name)
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
    return Builtin(known) if known in PRIMITIVES else prelude(known) if known is not None else None


def array_constant(sp: Specialiser, value: np.ndarray) -> Atom:
    """A NumPy array of the user's module, written out."""
    items = [array_constant(sp, x) if value.ndim > 1 else constant(x.item()) for x in value]
    return sp.b.array(items)


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
    "arctan": "(atan x)", ":": "(get (transpose m) j)",
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
        return f"did you mean `{close[0].partition('/')[0] or '/'}`?"
    return "bind it with let, make it a parameter, or define it in the module"
