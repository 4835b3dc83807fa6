"""Primitives of a user's own: ``defprim`` checks a row, and adds it to the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ..core import BOOL, INT, REAL
from ..errors import DerivativeError, HyadError, ModelTypeError, ReadError, border
from .names import is_symbol
from .primitives import _CALLS, ANY, BUILTIN, NO_SYMPY, PRIMITIVES, Expr, Primitive, Signature, define, parse_partial
from .recent import forget, renewed

#: Names that mean something else in a model or in a partial, so that no primitive can have them.
RESERVED = frozenset(
    "defmodel model fn let letrec if cond when unless do -> ->> ref deref set! while for get fst snd nil cons car cdr"
    " null? list num? truths? reals? inl inr case defdata match build copy array-of update set-at! len shape map fold"
    " ifold scan D grad value-and-grad value-and-deriv jacobian hessian jvp vjp hvp deriv diff vdiff mdiff mgrad jacob"
    " quote True False None select tuple array zeros zeros-of loop iterate add-at undef cut rank constant ruled"
    " require-index require-equal require-at-most require-below one-index without-ones same-size? symmetric?"
    " band-of known-zeros lower-triangular? upper-triangular? note-lower hoisted? note-result noted-result y".split()
)


@border
def defprim(
    name: str,
    params: Sequence[str],
    *,
    python: Callable[..., Any],
    c: str,
    partials: Sequence[str] | str | None = None,
    sympy: str | None = None,
    cuda: str | None = None,
    support: str = "",
    doc: str = "",
    types: Sequence[Signature] | None = None,
    jvp: Any = None,
    vjp: Any = None,
    domain: Sequence[tuple[float, float]] | None = None,
    cost: int = 10,
) -> Primitive:
    """Add a primitive; give back its row, which is callable. Models read later may use it by its name.

    ::

        defprim("softsign", ["x"], doc="x/(1 + |x|), a cheap sigmoid.",
                partials=["(/ 1 (square (+ 1 (abs x))))"],
                python=lambda x: x / (1 + abs(x)),
                c="softsign({0})",
                support="static inline double softsign(double x) { return x/(1 + fabs(x)); }",
                sympy="{0}/(1 + Abs({0}))")

    ``partials``: an s-expression per parameter, over the parameters, ``y`` (the result), numbers, primitives and
    ``(select c a b)``; or a sentence that says why there is no derivative. It may be left out where ``jvp``, a model
    of the arguments and then their tangents, and ``vjp``, a model of the arguments, the result and its cotangent that
    gives the arguments' cotangents, say it instead; each is a model or the text of one. ``python``: on floats and,
    elementwise, on arrays. ``c``: an expression with ``{0}``, ``{1}`` for the operands, or a sentence that says why
    there is none (the primitive then runs on the Python target only); functions in ``support`` begin with
    ``static inline``. ``sympy``: an expression over SymPy's names; without it SymPy treats the primitive as unknown.
    ``types``: pairs of operand types and result type, all Real if left out. ``domain``: per parameter an interval
    where checks may sample. ``cost``: in additions.

    A built-in primitive or a form of the language can't be redefined; a primitive of one's own can. Raises HyadError.
    """
    arity = _check_names(name, params)
    signatures = _check_types(name, types, arity)
    if not callable(python):
        raise ModelTypeError(
            f"defprim {name}: python is {python!r}, which can't be called",
            hint=f"give a Python function of {arity} argument(s)",
        )
    for which, rule in (("jvp", jvp), ("vjp", vjp)):
        if rule is not None and not isinstance(rule, str) and not hasattr(rule, "source"):
            raise ModelTypeError(
                f"defprim {name}: {which} is {rule!r}, which is not a model", hint="give a model, or its text"
            )
    if not isinstance(c, str) or not isinstance(sympy, (str, type(None))):
        raise ModelTypeError(
            f"defprim {name}: c and sympy are texts", hint='for example c="sin({0})", or a sentence: why there is none'
        )
    why = []
    if "{" not in c:
        why.append(c)
    if sympy is None or "{" not in sympy:
        why.append(sympy or NO_SYMPY)
    for which, text in (("c", c), ("cuda", cuda), ("sympy", sympy)):
        _check_template(name, which, text, params)
    if not isinstance(support, str) or not isinstance(doc, str):
        raise ModelTypeError(f"defprim {name}: support and doc are texts", hint="leave them out, or write C and a line")
    if not isinstance(cost, (int, float)) or not cost > 0:
        raise ModelTypeError(
            f"defprim {name}: cost is {cost!r}", hint="how many additions take as long: a division is 4, exp some 15"
        )
    row = Primitive(
        name,
        tuple(params),
        signatures,
        doc or f"{name}, defined by the user.",
        _check_partials(name, params, partials, jvp is not None or vjp is not None),
        _checked(name, python),
        sympy if sympy is not None and "{" in sympy else None,
        _closed(c) if "{" in c else None,
        cuda=_closed(cuda) if cuda is not None else None,
        support=support,
        cost=cost,
        domain=_check_domain(name, domain, arity),
        jvp=jvp,
        vjp=vjp,
        why="; ".join(why),
    )
    forget()
    known = name in PRIMITIVES
    define(row)
    for renew in renewed if known else ():
        renew()
    return row


def _check_names(name: str, params: Sequence[str]) -> int:
    if not is_symbol(name):
        raise ReadError(
            f"defprim: {name!r} can't be the name of a primitive", hint="a name is a symbol such as softsign"
        )
    if name in RESERVED or name in BUILTIN:
        kind = "a form of the language" if name in RESERVED else "a built-in primitive"
        raise ReadError(f"defprim: {name} is {kind} and can't be redefined", hint="choose another name")
    if not isinstance(params, (list, tuple)) or not params or not all(map(is_symbol, params)):
        raise ReadError(
            f"defprim {name}: params {params!r} is not a list of parameter names", hint='write params=["x"], ["a", "b"]'
        )
    for p in params:
        if p == "y" or p in PRIMITIVES or p in RESERVED:
            meaning = "the result" if p == "y" else "something else"
            raise ReadError(f"defprim {name}: {p} means {meaning} in partials", hint="rename the parameter")
    if len(set(params)) != len(params):
        raise ReadError(f"defprim {name}: params {list(params)!r} has a name twice", hint="give each its own name")
    return len(params)


def _check_types(name: str, types: Sequence[Signature] | None, arity: int) -> tuple[Signature, ...]:
    if types is None:
        return (((REAL,) * arity, REAL),)
    try:
        signatures = tuple((tuple(wanted), result) for wanted, result in types)
    except (TypeError, ValueError):
        signatures = ()
    scalars = (REAL, INT, BOOL)
    if not signatures or any(len(w) != arity or any(t not in scalars for t in (*w, r)) for w, r in signatures):
        raise ModelTypeError(
            f"defprim {name}: types {types!r} is not a list of (operand types, result type)",
            hint=f"for example [(({'REAL, ' * arity}), REAL)], of hyad.core's REAL, INT and BOOL",
        )
    return signatures


def _check_domain(name: str, domain: Any, arity: int) -> tuple[tuple[float, float], ...]:
    if domain is None:
        return (ANY,) * arity
    try:
        intervals = tuple((float(low), float(high)) for low, high in domain)
    except (TypeError, ValueError):
        intervals = ()
    if len(intervals) != arity or not all(low < high for low, high in intervals):
        raise ModelTypeError(
            f"defprim {name}: domain {domain!r} is not one interval (low, high) for each of {arity} parameter(s)",
            hint=f"write [{', '.join(['(-1.0, 1.0)'] * arity)}]",
        )
    return intervals


def _checked(name: str, python: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function, of which something else than a number would go on as one, or fail further on."""

    @wraps(python)
    def call(*args: Any) -> Any:
        value = python(*args)
        if not isinstance(value, (int, float, np.ndarray, np.number, np.bool_)) or np.iscomplexobj(value):
            what = "None" if value is None else f"a {type(value).__name__}"
            hint = "it takes and gives floats, and arrays of them element by element"
            raise ModelTypeError(f"the Python function of `{name}` gives {what}, not a number", None, hint)
        return value

    return call


def _check_template(name: str, which: str, text: str | None, params: Sequence[str]) -> None:
    if text is None or ("{" not in text and which != "cuda"):
        return
    try:
        text.format(*params)
    except (IndexError, KeyError, ValueError) as error:
        raise ModelTypeError(
            f"defprim {name}: the {which} text {text!r} does not fit {len(params)} operand(s)",
            hint=f"operands are {', '.join(f'{{{i}}}' for i in range(len(params)))}; a brace of C is written twice",
        ) from error


def _check_partials(name: str, params: Sequence[str], partials: Any, own_rule: bool) -> tuple[str, ...] | str:
    if partials is None and own_rule:
        return "its derivative is the user's own rule"
    if isinstance(partials, str) and " " in partials.strip() and not partials.lstrip().startswith("("):
        return partials
    if not isinstance(partials, (list, tuple)):
        raise DerivativeError(
            f"defprim {name}: partials {partials!r} is neither a list of partial derivatives nor a reason",
            hint=f"write partials=[{', '.join(f'<dy/d{p}>' for p in params)}], or a sentence: why there is none",
        )
    if len(partials) != len(params):
        raise DerivativeError(
            f"defprim {name}: {len(partials)} partial derivative(s) for {len(params)} parameter(s)",
            hint="give one for each parameter, in their order",
        )
    for text in partials:
        if not isinstance(text, str):
            raise DerivativeError(
                f"defprim {name}: the partial {text!r} is not a text", hint='write it as in "(* 2 x)"'
            )
        try:
            check_partial(parse_partial(text), params, {name: len(params)})
        except HyadError as error:
            raise type(error)(f"defprim {name}: in the partial {text}: {error.message}", hint=error.hint) from None
    return tuple(partials)


def check_partial(expr: Expr, params: Sequence[str], also: dict[str, int] | None = None) -> None:
    """Raise unless a parsed partial uses only parameters, ``y``, numbers and primitives, each with its operands.

    ``also`` has further primitives' names with their number of operands.
    """
    if isinstance(expr, str):
        if expr not in params and expr != "y":
            raise DerivativeError(
                f"{expr} is not a parameter",
                hint=f"names are {', '.join(params)} and y, the result; numbers are literals",
            )
    elif isinstance(expr, tuple):
        head, *args = expr
        if head == "select":
            arity = 3
        elif also and head in also:
            arity = also[head]
        elif isinstance(head, str) and head in PRIMITIVES:
            arity = len(PRIMITIVES[head].params)
        else:
            raise DerivativeError(f"{head} is not a primitive", hint="define it first, or write it with primitives")
        if len(args) != arity:
            raise DerivativeError(f"{head} takes {arity} operand(s), not {len(args)}", hint="add or remove some")
        for arg in args:
            check_partial(arg, params, also)


def _closed(text: str) -> str:
    """A C text whose operands and whose whole may stand anywhere: calls are so already, others get parentheses."""
    if _CALLS.fullmatch(text):
        return text
    return "(" + re.sub(r"(?<!\{)\{(\d+)\}(?!\})", r"({\1})", text) + ")"
