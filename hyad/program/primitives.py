"""The primitives: one row each, every fact about a primitive in that row.

A row's partial derivatives are s-expressions in the parameters and in ``y``, the result (the Omega of ChainRules).
Both modes follow from them, so forward and reverse cannot disagree. Numbers written in a partial are *soft*: rules
may fold them where folding a user's own 0 or 1 could hide a NaN.

How to read the file: the record ``Primitive``; what is read off a row (``parse_partial``, ``c_form``, ``sympy_form``);
the Python meanings and C functions that no library has; the table itself. ``defprim`` adds rows from outside.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..core import BOOL, INT, REAL, Const, Prim, Scalar
from ..errors import NoCForm, ReadError

Signature = tuple[tuple[Scalar, ...], Scalar]
Expr = str | int | float | tuple


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One scalar primitive.

    ``partials`` has one s-expression per parameter, or is a string: the reason why there are none (a truth value).
    One of them is None where the parameter is always an ``Int`` that no derivative can reach (the order of
    ``polygamma``). ``python`` computes on floats and, elementwise, on NumPy arrays, with IEEE results (``inf``, not
    an exception). ``c`` is an expression with ``{0}``, ``{1}`` for the operands; ``c_int`` is what stands for it
    where the last operand is ``Int``, ``cuda`` and ``c_f32`` where the text differs there (``c_form`` derives the
    float text: ``sin`` becomes ``sinf``), ``c_serial`` in a loop whose iterations wait for each other. ``prec`` says
    how ``c`` binds. ``support`` is C text of the functions that ``c`` calls and libm lacks. ``sympy`` is a Python
    expression over SymPy's names. ``cost`` is in additions. ``domain`` has, per parameter, an interval that tests and
    checks sample. A row is callable, as ``python`` is.
    """

    name: str
    params: tuple[str, ...]
    types: tuple[Signature, ...]
    doc: str
    partials: tuple[str | None, ...] | str
    python: Callable[..., Any]
    sympy: str | None
    c: str | None
    cuda: str | None = None
    c_f32: str | None = None
    support: str = ""
    cost: int = 1
    domain: tuple[tuple[float, float], ...] = ()
    surface: str | None = None  # how it is written, where that is not the name: ``(- x)`` for neg
    kinks: tuple[float, ...] = ()  # where the derivative jumps; a convention in ``doc`` says what it is there
    jvp: Any = None  # a user's own rule (defprim :jvp), a model of (args, tangents)
    vjp: Any = None  # a user's own rule (defprim :vjp), a model of (args, y, cotangent)
    c_int: str | None = None  # None: ``c`` serves Int too
    c_serial: str | None = None  # None: ``c`` serves there too
    prec: str = "call"  # one of PRECEDENCE
    why: str = ""  # why ``c`` or ``sympy`` is None

    def __call__(self, *args: Any) -> Any:
        return self.python(*args)

    def result(self, types: tuple[Scalar, ...]) -> tuple[tuple[Scalar, ...], Scalar] | None:
        """The first overload that fits, each ``Int`` operand standing for a ``Real`` one where need be."""
        for wanted, result in self.types:
            if len(wanted) == len(types) and all(t == w or (t == INT and w == REAL) for t, w in zip(types, wanted)):
                return wanted, result
        return None


PRECEDENCE = ("logic", "cmp", "add", "mul", "unary", "call")
"""How C forms bind, loosest first. The operands of a ``call`` need no parentheses, nor does a call as an operand.
``add`` and ``mul`` take an operand of their own level on the left only; ``cmp``, ``logic`` and ``unary`` on no side
(``--x`` is another operator, and compilers warn of ``a && b || c``)."""

PRIMITIVES: dict[str, Primitive] = {}


def define(row: Primitive) -> Primitive:
    """Enter a row; a later one of the same name replaces it."""
    PRIMITIVES[row.name] = row
    return row


# ------------------------------------------------------------------------------------ partial derivatives


_TOKEN = re.compile(r"[()]|[^\s()]+")


@cache
def parse_partial(text: str) -> Expr:
    """A partial as nested tuples: ``"(* 2 x)"`` is ``("*", 2, "x")``; numbers are ints and floats, names strings.

    Operators come out as the table has them: ``(- x)`` as ``("neg", "x")``, ``(* a b c)`` as binary products.
    Raises ReadError where parentheses do not match.
    """
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1 or not stack[-1]:
                break
            form = stack.pop()
            stack[-1].append(_canonical(form))
        else:
            stack[-1].append(_atom(token))
    else:
        if len(stack) == 1 and len(stack[0]) == 1:
            return stack[0][0]
    raise ReadError(
        f"the partial derivative {text!r} is not one well-formed expression",
        hint='write a number, a name or a form such as "(* 2 x)", its parentheses matching',
    )


def _atom(token: str) -> Expr:
    if not token.lstrip("+-.")[:1].isdigit():
        return token
    try:
        return int(token)
    except ValueError:
        pass
    try:
        return float(token)
    except ValueError:
        raise ReadError(f"{token!r} in a partial derivative is neither a number nor a name") from None


def _canonical(form: list[Any]) -> tuple:
    head, *args = form
    if head == "-" and len(args) == 1:
        return ("neg", args[0])
    if head in ("+", "*", "and", "or", "min", "max") and len(args) > 2:
        first, second, *rest = args
        return _canonical([head, (head, first, second), *rest])
    return tuple(form)


# -------------------------------------------------------------------------------------------- C and SymPy


NO_SYMPY = "no SymPy form was given"
_LIBM = frozenset(
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p pow sqrt"
    " cbrt hypot fabs fmod fmin fmax fdim fma erf erfc tgamma lgamma floor ceil rint round trunc copysign".split()
)
_DOUBLE = re.compile(r"\bdouble\b")
_FUNCTION = re.compile(r"\b(\w+)(?=\s*\()")
_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
_DEFINES = re.compile(r"\b(\w+)\s*\([^()]*\bdouble\b[^()]*\)\s*\{")
_CALLS = re.compile(r"[A-Za-z_]\w*\((?:\{\d\}(?:, ?(?=\{))?)+\)")


@cache
def c_form(
    row: Primitive, types: tuple[Scalar, ...] = (), f32: bool = False, cuda: bool = False, serial: bool = False
) -> tuple[str, tuple[str, ...]]:
    """The C expression of a row, with ``{0}`` for operands, and the functions of its ``support`` which that calls.

    ``types`` are the operands', as ``result`` wants them; left out, they are Real. ``f32``: reals are ``float``;
    ``serial``: in a loop whose iterations wait for each other. Each support function is one string, callees first, so
    that a printer can leave out one that it has printed. A CUDA printer puts ``__device__`` after their ``static``.
    Raises NoCForm where the row has none.
    """
    if row.c is None:
        why = row.why.removesuffix(f"; {NO_SYMPY}")
        raise NoCForm(f"{row.name} has no C form: {why}", hint='hyad.compile(f, target="python") needs none')
    text, support = row.c, row.support
    if types and types[-1] == INT and row.c_int is not None:
        text = row.c_int
    elif cuda and row.cuda is not None:
        text = row.cuda
    elif serial and row.c_serial is not None:
        text = row.c_serial
    if f32 and text is row.c and row.c_f32 is not None:
        text = row.c_f32
    elif f32:
        own = frozenset(_DEFINES.findall(support))
        text, support = _as_float(text, own), _as_float(support, own)
    return text, _called(text, support)


def whole_power(op: Prim) -> int | None:
    """The exponent of a power that is written as products; None where it is none."""
    n = op.args[1] if op.name == "**" else None
    return n.value if type(n) is Const and n.type == INT and 1 < abs(n.value) <= WRITTEN else None


def price_of(op: Prim) -> int:
    """What an operation of the table costs, in additions. A C compiler divides by a power of two by multiplying."""
    if op.name == "/" and type(op.args[1]) is Const and abs(math.frexp(op.args[1].value)[0]) == 0.5:
        return PRIMITIVES["*"].cost
    n = whole_power(op)
    if n is None:
        return PRIMITIVES[op.name].cost
    return abs(n).bit_length() + bin(n).count("1") - 2 + (PRIMITIVES["/"].cost if n < 0 else 0)


def power_form(n: int, f32: bool = False) -> tuple[str, tuple[str, ...]]:
    """The same of ``(** x n)`` for a known n: what ``hyad_ipow`` does, without its loop, of which compilers make no
    vectors."""
    name = f"hyad_pow{'_minus' * (n < 0)}{abs(n)}"
    there = [1 << k for k in range(abs(n).bit_length())]
    squares = [f"x{k} = x{k // 2 if k > 2 else ''}*x{k // 2 if k > 2 else ''}" for k in there[1:]]
    product = "*".join(f"x{k if k > 1 else ''}" for k in there if abs(n) & k)
    value = product if n > 0 else f"1/({product})" if "*" in product else f"1/{product}"
    lines = [f"    const double {', '.join(squares)};", f"    return {value};"]
    function = "\n".join([f"static inline double {name}(double x)", "{", *lines, "}"]) + "\n"
    text = f"{name}({{0}})"
    if f32:
        own = frozenset(_DEFINES.findall(function))
        text, function = _as_float(text, own), _as_float(function, own)
    return text, (function,)


def _as_float(text: str, own: frozenset[str]) -> str:
    """C text for ``float``: types, libm's and the text's own functions, literals."""
    text = _DOUBLE.sub("float", text)
    text = _FUNCTION.sub(lambda m: m[1] + "f" if m[1] in _LIBM or m[1] in own else m[1], text)
    return _LITERAL.sub(r"\1f", text)


def _called(text: str, support: str) -> tuple[str, ...]:
    """The functions of ``support`` that ``text`` reaches, in their order there; text before the first one as well."""
    if not support:
        return ()
    preamble, *functions = re.split(r"(?m)^(?=static inline )", support)
    wanted, reached = [text], []
    for function in reversed(functions):  # callees stand first
        name = _FUNCTION.search(function)[1]
        if any(re.search(rf"\b{name}\b", t) for t in wanted):
            wanted.append(function)
            reached.append(function.rstrip() + "\n")
    return (*((preamble.strip() + "\n",) if preamble.strip() else ()), *reversed(reached))


def sympy_form(row: Primitive, *operands: Any) -> Any:
    """The row applied to SymPy expressions. Call it only where ``row.sympy`` is not None. Imports SymPy."""
    return _sympy_function(row.sympy, len(row.params))(*operands)


@cache
def _sympy_function(text: str, arity: int) -> Callable[..., Any]:
    names = [f"_{i}" for i in range(arity)]
    return eval(f"lambda {', '.join(names)}: {text.format(*names)}", _sympy_names())


@cache
def _sympy_names() -> dict[str, Any]:
    import sympy
    from sympy.codegen import cfunctions

    c = {name: getattr(cfunctions, name) for name in ("exp2", "expm1", "log1p", "log2", "log10", "hypot")}
    return {**vars(sympy), **c}


# ---------------------------------------------------------------------------------------- Python meanings


_NUMBERS = frozenset((float, int, bool))
_FAILS = (ValueError, OverflowError, ZeroDivisionError)  # what ``math`` raises where IEEE has inf or NaN


def _as_real(*args: Any) -> None:
    """Raise ``OverflowError`` for an integer that is too large for a real number."""
    for x in args:
        if x.__class__ is int:
            float(x)


def _unary(scalar: Callable[..., Any], array: Callable[..., Any]) -> Callable[..., Any]:
    """``scalar`` for a Python number, ``array`` for everything else and where ``scalar`` refuses; no warnings."""

    def meaning(x: Any) -> Any:
        if x.__class__ in _NUMBERS:
            try:
                return scalar(x)
            except _FAILS:
                _as_real(x)
        with np.errstate(all="ignore"):
            y = array(x)
        return y.item() if isinstance(y, np.generic) else y

    return meaning


def _binary(scalar: Callable[..., Any], array: Callable[..., Any]) -> Callable[..., Any]:
    """As ``_unary``, with two operands."""

    def meaning(a: Any, b: Any) -> Any:
        if a.__class__ in _NUMBERS and b.__class__ in _NUMBERS:
            try:
                return scalar(a, b)
            except _FAILS:
                _as_real(a, b)
        with np.errstate(all="ignore"):
            y = array(a, b)
        return y.item() if isinstance(y, np.generic) else y

    return meaning


def _each(scalar: Callable[..., float]) -> Callable[..., Any]:
    """A function of floats that never raises, on floats and elementwise on arrays."""

    def meaning(*args: Any) -> Any:
        if all(a.__class__ in _NUMBERS for a in args):
            return scalar(*args)
        with np.errstate(all="ignore"):
            y = np.vectorize(scalar, otypes=[float])(*args)
        return y if y.ndim else y.item()

    return meaning


def _rounding(array: Callable[..., Any]) -> Callable[..., Any]:
    def scalar(x: float) -> float:
        return float(array(x))

    return _unary(scalar, array)


def _max(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


def _min(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


def _pass_on(a: Any, p: Any) -> Any:
    return np.where(np.not_equal(a, 0), np.multiply(a, p), 0.0)[()]


def _sign(x: Any) -> Any:
    return type(x)((x > 0) - (x < 0)) if x == x else x


def _int(x: Any) -> int:
    """Truncation as x86 and NumPy have it: what does not fit into 64 bits is the smallest ``Int``."""
    return int(x) if -(2.0**63) <= x < 2.0**63 else -(2**63)


def _int_array(x: Any) -> Any:
    x = np.asarray(x)
    if x.dtype.kind in "iub":
        return x.astype(np.int64)
    fits = (x >= -(2.0**63)) & (x < 2.0**63)
    return np.where(fits, np.where(fits, x, 0.0).astype(np.int64), np.int64(-(2**63)))[()]


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _logaddexp(a: float, b: float) -> float:
    if a == b:
        return a + math.log(2.0)
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _logaddexp_slope(a: float, b: float) -> float:
    if a == b:
        return 0.5
    e = math.exp(-abs(a - b))
    return (1.0 if a > b else e) / (1.0 + e)


def _logaddexp_slopes(a: Any, b: Any) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(-np.abs(np.subtract(a, b)))
        return np.where(np.equal(a, b), 0.5, np.where(np.greater(a, b), 1.0, e) / (1.0 + e))[()]


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:  # a pole
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except _FAILS:
        return math.inf


def _digamma(x: float) -> float:
    """What ``hyad_digamma`` does, in Python."""
    y = 0.0
    x = float(x)
    if x <= 0:
        if x == 0:
            return math.copysign(math.inf, -x)
        if x == np.floor(x):
            return math.nan
        y = -math.pi / math.tan(math.pi * (x - round(x)))
        x = 1 - x
    while x < 10:
        y -= 1 / x
        x += 1
    z = 1 / (x * x) if x < 1e154 else 0.0
    tail = 1 / 132 - z * (691 / 32760 - z / 12)
    return y + math.log(x) - 0.5 / x - z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * tail))))


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


def _polygamma(n: int, x: float) -> float:
    """What ``hyad_polygamma`` does, in Python."""
    x, sign, reflected = float(x), 1.0 if n % 2 else -1.0, 0.0
    if n == 0:
        return _digamma(x)
    if n < 0 or n > 30:
        return math.nan
    if x < 0:
        if x == np.floor(x):
            return math.inf if n % 2 else math.nan
        cot = 1 / math.tan(math.pi * (x - round(x)))
        p = [0.0, 1.0]
        for k in range(1, n + 1):
            p = [-math.pi * ((j + 1) * (p + [0.0, 0.0])[j + 1] + (j - 1) * ([0.0] + p)[j]) for j in range(k + 2)]
        for c in reversed(p):
            reflected = reflected * cot + c
        x, sign, reflected = 1 - x, -1.0, -math.pi * reflected
    head = 0.0
    while x < n + 16:
        head += _float_power(x, -(n + 1))
        x += 1
    term, tail = 1.0, 1 + n / (2 * x)
    for k, b in enumerate(_BERNOULLI, 1):
        term *= (2 * k + n - 1) / (2 * k) * ((2 * k + n - 2) / (2 * k - 1)) / x / x
        tail += b * term
    return reflected + sign * (math.factorial(n) * head + math.factorial(n - 1) * _float_power(x, -n) * tail)


_float_power = _binary(math.pow, np.float_power)

# ------------------------------------------------------------------------------ C that libm does not have

FLOORDIV = """\
static inline double hyad_floordiv(double a, double b) { /* Python's a // b: exact where fmod is */
    if (b == 0) return a/b;
    double m = fmod(a, b), q = (a - m)/b;
    if (m != 0 && (m < 0) != (b < 0)) q -= 1;
    return q != 0 ? rint(q) : copysign(0.0, a/b);
}
static inline long long hyad_ifloordiv(long long a, long long b) { /* rounds down; 0 where b is 0, as NumPy */
    if (b == 0) return 0;
    if (b == -1) return (long long)(0ULL - (unsigned long long)a);
    return a/b - (a % b != 0 && (a < 0) != (b < 0));
}
"""
MOD = """\
static inline double hyad_mod(double a, double b) { /* Python's a % b, with b's sign: exact where fmod is */
    double m = fmod(a, b);
    return m == 0 ? copysign(0.0, b) : (m < 0) != (b < 0) ? m + b : m;
}
static inline long long hyad_imod(long long a, long long b) { /* with b's sign; 0 where b is 0, as NumPy */
    if (b == 0 || b == -1) return 0;
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}
"""
WRITTEN = 32  # powers with whole exponents up to this are products
IPOW = """\
static inline double hyad_ipow(double x, long long n) { /* relative error |n| 2^-53, or pow's */
    double y = 1;
    if (n < -32 || n > 32) return pow(x, (double)n);
    for (int k = (int)(n < 0 ? -n : n); k; k >>= 1, x *= x)
        if (k & 1) y *= x;
    return n < 0 ? 1/y : y;
}
"""
SQUARE = """\
static inline double hyad_square(double x) { return x*x; }
static inline long long hyad_isquare(long long x) { return x*x; }
"""
IABS = """\
static inline long long hyad_iabs(long long x) { return x < 0 ? -x : x; }
"""
SIGN = """\
static inline double hyad_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
static inline long long hyad_isign(long long x) { return (x > 0) - (x < 0); }
"""
# What maxsd gives, NaN apart: no branch, since which one is larger is not foreseen, and loops become vectors. Where an
# iteration waits for the one before, there are none, and it waits less behind a branch that is foreseen: NaN is seldom.
MAX = """\
static inline double hyad_max(double a, double b) {
    const double most = b > a ? b : a;
    return b == b ? most : b;
}
static inline double hyad_max_serial(double a, double b) {
    const double most = b > a ? b : a;
    if (b != b) {
#if defined(__GNUC__)
        __asm__ volatile(""); /* a branch, which is foreseen */
#endif
        return b;
    }
    return most;
}
static inline long long hyad_imax(long long a, long long b) { return a >= b ? a : b; }
"""
MIN = """\
static inline double hyad_min(double a, double b) {
    const double least = b < a ? b : a;
    return b == b ? least : b;
}
static inline double hyad_min_serial(double a, double b) {
    const double least = b < a ? b : a;
    if (b != b) {
#if defined(__GNUC__)
        __asm__ volatile(""); /* a branch, which is foreseen */
#endif
        return b;
    }
    return least;
}
static inline long long hyad_imin(long long a, long long b) { return a <= b ? a : b; }
"""
SIGMOID = """\
static inline double hyad_sigmoid(double x) { return 1/(1 + exp(-x)); }
"""
SOFTPLUS = """\
static inline double hyad_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
"""
LOGADDEXP = """\
static inline double hyad_logaddexp(double a, double b) {
    const double most = a > b ? a : b, sum = most + log1p(exp(-fabs(a - b)));
    return a == b ? a + 0.69314718055994531 : sum;
}
"""
LOGADDEXP_SLOPE = """\
static inline double hyad_logaddexp_slope(double a, double b) {
    const double e = exp(-fabs(a - b)), slope = (a > b ? 1 : e)/(1 + e);
    return a == b ? 0.5 : slope;
}
"""
#: By the second argument, of the same exponential as the value and the other slope: a compiler calls it once.
LOGADDEXP_OTHER = """\
static inline double hyad_logaddexp_other(double a, double b) {
    const double e = exp(-fabs(a - b)), slope = (a > b ? e : 1)/(1 + e);
    return a == b ? 0.5 : slope;
}
"""
RELU = """\
static inline double hyad_relu(double x) { return x < 0 ? 0 : x; }
"""
PASS_ON = """\
static inline double hyad_pass_on(double a, double p) { const double x = a * p; return a != 0 ? x : 0; }
"""
TO_INT = """\
static inline long long hyad_to_int(double x) { /* truncates; what does not fit is the smallest long long */
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (long long)x : -9223372036854775807LL - 1;
}
"""
DIGAMMA = """\
static inline double hyad_digamma(double x) { /* relative error 1e-14; near a root, absolute */
    const double pi = 3.14159265358979323846;
    double y = 0, z;
    if (x <= 0) { /* reflection */
        if (x == floor(x)) return x == 0 ? -1/x : NAN;
        y = -pi/tan(pi*(x - rint(x)));
        x = 1 - x;
    }
    for (; x < 10; x += 1) y -= 1/x;
    z = 1/(x*x);
    return y + log(x) - 0.5/x
                  - z*(1/12. - z*(1/120. - z*(1/252. - z*(1/240. - z*(1/132. - z*(691/32760. - z/12))))));
}
"""
POLYGAMMA = """\
static inline double hyad_trigamma(double x) { /* x > 0 */
    double head = 0, r;
    for (; x < 10; x += 1) head += 1/(x*x);
    r = 1/(x*x);
    return head + r/2 + (1 + r*(1/6. + r*(-1/30. + r*(1/42. + r*(-1/30. + r*(5/66. + r*(-691/2730. + r*(7/6.
        + r*(-3617/510. + r*(43867/798. + r*(-174611/330.)))))))))))/x;
}
static inline double hyad_polygamma(long long n, double x) { /* n <= 30; error as digamma's */
    const double pi = 3.14159265358979323846;
    const double bernoulli[10] = {1/6., -1/30., 1/42., -1/30., 5/66.,
                                                                -691/2730., 7/6., -3617/510., 43867/798., -174611/330.};
    double sign = n % 2 ? 1 : -1, reflected = 0, head = 0, factorial = 1, term = 1, tail;
    if (n == 0) return hyad_digamma(x);
    if (n == 1 && x > 0) return hyad_trigamma(x);
    if (n < 0 || n > 30) return NAN;
    if (x < 0) { /* reflection: the n-th derivative of cot(pi x) is a polynomial p in cot(pi x) */
        double p[34] = {0, 1}, cot, before, old;
        if (x == floor(x)) return n % 2 ? INFINITY : NAN;
        cot = 1/tan(pi*(x - rint(x)));
        for (int k = 1; k <= n; k++) {
            before = 0;
            for (int j = 0; j <= k + 1; j++, before = old) {
                old = p[j];
                p[j] = -pi*((j + 1)*p[j + 1] + (j - 1)*before);
            }
        }
        for (int j = (int)n + 1; j >= 0; j--) reflected = reflected*cot + p[j];
        reflected *= -pi;
        sign = -1;
        x = 1 - x;
    }
    for (; x < (double)n + 16; x += 1) head += pow(x, -(double)n - 1);
    for (int k = 2; k < n; k++) factorial *= k;
    tail = 1 + (double)n/(2*x);
    for (int k = 1; k <= 10; k++) {
        term *= (2*k + (double)n - 1)/(2*k)*((2*k + (double)n - 2)/(2*k - 1))/x/x;
        tail += bernoulli[k - 1]*term;
    }
    return reflected + sign*factorial*((double)n*head + pow(x, -(double)n)*tail);
}
"""

# ---------------------------------------------------------------------------------------------- the table

R1: tuple[Signature, ...] = (((REAL,), REAL),)
R2: tuple[Signature, ...] = (((REAL, REAL), REAL),)
N1: tuple[Signature, ...] = (((INT,), INT), ((REAL,), REAL))
N2: tuple[Signature, ...] = (((INT, INT), INT), ((REAL, REAL), REAL))
B1: tuple[Signature, ...] = (((BOOL,), BOOL),)
B2: tuple[Signature, ...] = (((BOOL, BOOL), BOOL),)
COMPARE: tuple[Signature, ...] = (((INT, INT), BOOL), ((REAL, REAL), BOOL))

ANY = (-2.0, 2.0)
POS = (0.1, 3.0)
UNIT_BALL = (-0.95, 0.95)
TRUTH = "a truth value has no derivative"


def _row(
    name: str, params: str, types: tuple[Signature, ...], doc: str, partials: Any, python: Any, **facets: Any
) -> None:
    names = tuple(params.split())
    operands = ", ".join(f"{{{i}}}" for i in range(len(names)))
    facets.setdefault("sympy", f"{name}({operands})")
    facets.setdefault("c", f"{name}({operands})")
    facets.setdefault("domain", (ANY,) * len(names))
    define(Primitive(name, names, types, doc, partials, python, **facets))


# One row a primitive: a table reads best unwrapped.
# fmt: off

# Arithmetic. Int operands: 64 bits; / is always Real; // and % round down, as Python's do.
_row("+", "a b", N2, "The sum.", ("1", "1"), _binary(operator.add, np.add),
     sympy="{0} + {1}", c="{0} + {1}", prec="add")
_row("-", "a b", N2, "The difference.", ("1", "-1"), _binary(operator.sub, np.subtract),
     sympy="{0} - {1}", c="{0} - {1}", prec="add")
_row("*", "a b", N2, "The product.", ("b", "a"), _binary(operator.mul, np.multiply),
     sympy="{0}*{1}", c="{0}*{1}", prec="mul")
_row("pass-on", "a p", R2, "a times p, but 0 where a is 0, even if p is infinite or NaN: how an adjoint goes through an"
     " infinite slope. So are its own derivatives where what moves is 0.",
     ("p", "a"), _binary(lambda a, p: a * p if a != 0 else 0.0, _pass_on),
     sympy="{0}*{1}", c="hyad_pass_on({0}, {1})", support=PASS_ON, cost=2)
_row("/", "a b", R2, "The quotient, a Real for Int operands too.", ("(/ 1 b)", "(- (/ y b))"),
     _binary(operator.truediv, np.true_divide),
     sympy="{0}/{1}", c="{0}/{1}", prec="mul", cost=4, domain=(ANY, POS))
_row("//", "a b", N2, "The quotient rounded down. A step function: its derivative is 0. An Int divided by 0 is 0.",
     ("0", "0"), _binary(operator.floordiv, np.floor_divide),
     sympy="floor({0}/{1})", c="hyad_floordiv({0}, {1})", c_int="hyad_ifloordiv({0}, {1})", support=FLOORDIV, cost=20,
     domain=(ANY, POS))
_row("%", "a b", N2, "What // leaves: a - b*(a // b), with b's sign. An Int modulo 0 is 0.",
     ("1", "(- (// a b))"), _binary(operator.mod, np.remainder),
     sympy="{0} - {1}*floor({0}/{1})", c="hyad_mod({0}, {1})", c_int="hyad_imod({0}, {1})", support=MOD, cost=20,
     domain=(ANY, POS))
_row("neg", "a", N1, "The negation, written (- a).", ("-1",), _unary(operator.neg, np.negative),
     sympy="-{0}", c="-{0}", prec="unary", surface="-")
_row("square", "x", N1, "x times x.", ("(* 2 x)",), _unary(lambda x: x * x, np.square),
     sympy="{0}**2", c="hyad_square({0})", c_int="hyad_isquare({0})", support=SQUARE)

# Powers. Int ** Int is a Real, for the exponent may be negative: (int (** 2 n)) makes it an Int.
_row("**", "a b", (((REAL, INT), REAL), ((REAL, REAL), REAL)),
     "a to the power b, exact at a <= 0 for an Int b; NaN where a < 0 and b is no whole number. The derivative with"
     " respect to a is 0 at 0 ** 0, the one with respect to b is 0 where a = 0 and b > 0.",
     # each arm of a select is finite: the derivative of the one not taken is multiplied by zero
     ("(* b (** a (select (and (= a 0) (= b 0)) 1 (- b 1))))", "(* y (log (select (and (= a 0) (> b 0)) 1 a)))"),
     _float_power,
     sympy="{0}**{1}", c="pow({0}, {1})", c_int="hyad_ipow({0}, {1})", support=IPOW, cost=40, domain=(POS, ANY))
_row("sqrt", "x", R1, "The square root. Its derivative at 0 is inf.", ("(/ 0.5 y)",), _unary(math.sqrt, np.sqrt),
     cost=5, domain=(POS,))
_row("cbrt", "x", R1, "The real cube root, of negative numbers too. Its derivative at 0 is inf.",
     ("(/ 1 (* 3 (* y y)))",), _rounding(np.cbrt), sympy="sign({0})*Abs({0})**Rational(1, 3)", cost=20)
_row("hypot", "a b", R2, "sqrt(a*a + b*b) without overflow. Its derivative at (0, 0) is 0, as norm's.",
     ("(/ a (select (= y 0) 1 y))", "(/ b (select (= y 0) 1 y))"), _binary(math.hypot, np.hypot), cost=15)

# Exponentials and logarithms.
_row("exp", "x", R1, "e to the power x.", ("y",), _unary(math.exp, np.exp), cost=15)
_row("exp2", "x", R1, "2 to the power x.", ("(* 0.6931471805599453 y)",), _unary(lambda x: math.pow(2.0, x), np.exp2),
     cost=15)
_row("expm1", "x", R1, "exp(x) - 1, accurate near 0.", ("(exp x)",), _unary(math.expm1, np.expm1), cost=20)
_row("log", "x", R1, "The natural logarithm.", ("(/ 1 x)",), _unary(math.log, np.log), cost=15, domain=(POS,))
_row("log2", "x", R1, "The logarithm to base 2.", ("(/ 1.4426950408889634 x)",), _unary(math.log2, np.log2),
     cost=15, domain=(POS,))
_row("log10", "x", R1, "The logarithm to base 10.", ("(/ 0.4342944819032518 x)",), _unary(math.log10, np.log10),
     cost=15, domain=(POS,))
_row("log1p", "x", R1, "log(1 + x), accurate near 0.", ("(/ 1 (+ 1 x))",), _unary(math.log1p, np.log1p),
     cost=20, domain=((-0.9, 3.0),))

# Trigonometry.
_row("sin", "x", R1, "The sine.", ("(cos x)",), _unary(math.sin, np.sin), cost=15)
_row("cos", "x", R1, "The cosine.", ("(- (sin x))",), _unary(math.cos, np.cos), cost=15)
_row("tan", "x", R1, "The tangent.", ("(+ 1 (* y y))",), _unary(math.tan, np.tan), cost=20, domain=((-1.4, 1.4),))
_row("asin", "x", R1, "The arc sine. Its derivative at -1 and 1 is inf.", ("(/ 1 (sqrt (* (- 1 x) (+ 1 x))))",),
     _unary(math.asin, np.arcsin), cost=20, domain=(UNIT_BALL,))
_row("acos", "x", R1, "The arc cosine. Its derivative at -1 and 1 is -inf.", ("(/ -1 (sqrt (* (- 1 x) (+ 1 x))))",),
     _unary(math.acos, np.arccos), cost=20, domain=(UNIT_BALL,))
_row("atan", "x", R1, "The arc tangent.", ("(/ 1 (+ 1 (* x x)))",), _unary(math.atan, np.arctan), cost=20)
_row("atan2", "a b", R2, "The angle of the point (b, a), from -pi to pi. Its derivative at (0, 0) is NaN.",
     ("(/ b (+ (* a a) (* b b)))", "(/ (- a) (+ (* a a) (* b b)))"), _binary(math.atan2, np.arctan2), cost=30)

# Hyperbolic functions.
_row("sinh", "x", R1, "The hyperbolic sine.", ("(cosh x)",), _unary(math.sinh, np.sinh), cost=20)
_row("cosh", "x", R1, "The hyperbolic cosine.", ("(sinh x)",), _unary(math.cosh, np.cosh), cost=20)
_row("tanh", "x", R1, "The hyperbolic tangent.", ("(- 1 (* y y))",), _unary(math.tanh, np.tanh), cost=20)
_row("asinh", "x", R1, "The inverse of sinh.", ("(/ 1 (sqrt (+ 1 (* x x))))",), _unary(math.asinh, np.arcsinh), cost=25)
_row("acosh", "x", R1, "The inverse of cosh. Its derivative at 1 is inf.", ("(/ 1 (sqrt (* (- x 1) (+ x 1))))",),
     _unary(math.acosh, np.arccosh), cost=25, domain=((1.1, 4.0),))
_row("atanh", "x", R1, "The inverse of tanh.", ("(/ 1 (* (- 1 x) (+ 1 x)))",), _unary(math.atanh, np.arctanh),
     cost=25, domain=(UNIT_BALL,))

# Pieces. NaN goes through min, max, sign and relu, as through NumPy's.
_row("abs", "x", N1, "The absolute value. Its derivative at 0 is 0.", ("(sign x)",), _unary(abs, np.abs),
     sympy="Abs({0})", c="fabs({0})", c_int="hyad_iabs({0})", support=IABS, kinks=(0.0,))
_row("sign", "x", N1, "-1, 0 or 1. A step function: its derivative is 0, at 0 too.", ("0",), _unary(_sign, np.sign),
     c="hyad_sign({0})", c_int="hyad_isign({0})", support=SIGN, cost=2, kinks=(0.0,))
_row("min", "a b", N2, "The smaller one. At a tie the derivative is the first operand's.",
     ("(select (<= a b) 1 0)", "(select (<= a b) 0 1)"), _binary(_min, np.minimum),
     sympy="Min({0}, {1})", c="hyad_min({0}, {1})", c_int="hyad_imin({0}, {1})",
     c_serial="hyad_min_serial({0}, {1})", support=MIN)
_row("max", "a b", N2, "The larger one. At a tie the derivative is the first operand's.",
     ("(select (>= a b) 1 0)", "(select (>= a b) 0 1)"), _binary(_max, np.maximum),
     sympy="Max({0}, {1})", c="hyad_max({0}, {1})", c_int="hyad_imax({0}, {1})",
     c_serial="hyad_max_serial({0}, {1})", support=MAX)
_row("relu", "x", R1, "max(x, 0). Its derivative at 0 is 0.", ("(select (> y 0) 1 0)",),
     _unary(lambda x: 0.0 if x < 0 else float(x), lambda x: np.where(np.less(x, 0), 0.0, x)[()]),
     sympy="Max({0}, 0)", c="hyad_relu({0})", support=RELU, kinks=(0.0,))
_row("sigmoid", "x", R1, "The logistic function 1/(1 + exp(-x)).", ("(* y (- 1 y))",),
     _unary(_sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x))),
     sympy="1/(1 + exp(-{0}))", c="hyad_sigmoid({0})", support=SIGMOID, cost=20)
_row("softplus", "x", R1, "log(1 + exp(x)), without overflow.", ("(sigmoid x)",),
     _unary(_softplus, lambda x: np.logaddexp(0.0, x)),
     sympy="log(1 + exp({0}))", c="hyad_softplus({0})", support=SOFTPLUS, cost=35)
_row("logaddexp", "a b", R2, "log(exp(a) + exp(b)), without overflow.",
     ("(logaddexp-slope a b)", "(logaddexp-other a b)"), _binary(_logaddexp, np.logaddexp),
     sympy="log(exp({0}) + exp({1}))", c="hyad_logaddexp({0}, {1})", support=LOGADDEXP, cost=35)
_row("logaddexp-slope", "a b", R2, "exp(a)/(exp(a) + exp(b)), without overflow; 1/2 also where both are infinite.",
     ("(* y (logaddexp-other a b))", "(neg (* y (logaddexp-other a b)))"), _binary(_logaddexp_slope, _logaddexp_slopes),
     sympy="1/(1 + exp({1} - {0}))", c="hyad_logaddexp_slope({0}, {1})", support=LOGADDEXP_SLOPE, cost=20)
_row("logaddexp-other", "a b", R2, "exp(b)/(exp(a) + exp(b)): the slope of logaddexp by its second argument.",
     ("(neg (* y (logaddexp-slope a b)))", "(* y (logaddexp-slope a b))"),
     _binary(lambda a, b: _logaddexp_slope(b, a), lambda a, b: _logaddexp_slopes(b, a)),
     sympy="1/(1 + exp({0} - {1}))", c="hyad_logaddexp_other({0}, {1})", support=LOGADDEXP_OTHER, cost=20)

# Rounding: Reals that are whole numbers; (int x) makes an Int.
_row("floor", "x", R1, "x rounded down. A step function: its derivative is 0.", ("0",), _rounding(np.floor), cost=2)
_row("ceil", "x", R1, "x rounded up. A step function: its derivative is 0.", ("0",), _rounding(np.ceil),
     sympy="ceiling({0})", cost=2)
_row("round", "x", R1, "x rounded to the nearest whole number, halves to even. A step function: its derivative is 0.",
     ("0",), _rounding(np.rint), sympy=None, why="SymPy can't round a symbol half to even", c="rint({0})", cost=2)
_row("trunc", "x", R1, "x rounded towards 0. A step function: its derivative is 0.", ("0",), _rounding(np.trunc),
     sympy="sign({0})*floor(Abs({0}))", cost=2)
_row("real", "x", (((INT,), REAL), ((REAL,), REAL)), "An Int as a Real.", ("1",),
     _unary(float, lambda x: np.asarray(x, dtype=float)[()]), sympy="{0}", c="(double){0}", prec="unary")
_row("int", "x", (((INT,), INT), ((REAL,), INT)),
     "x rounded towards 0, as an Int; what does not fit is the smallest Int. A step function: its derivative is 0.",
     ("0",), _unary(_int, _int_array),
     sympy="sign({0})*floor(Abs({0}))", c="hyad_to_int({0})", c_int="({0})", support=TO_INT, cost=2)

# Special functions.
_row("erf", "x", R1, "The error function.", ("(* 1.1283791670955126 (exp (- (* x x))))",), _each(math.erf), cost=30)
_row("erfc", "x", R1, "1 - erf(x), accurate for large x.", ("(* -1.1283791670955126 (exp (- (* x x))))",),
     _each(math.erfc), cost=40)
_row("gamma", "x", R1, "The gamma function.", ("(* y (digamma x))",), _each(_gamma), c="tgamma({0})", cost=80,
     domain=((0.2, 4.0),))
_row("lgamma", "x", R1, "The logarithm of the gamma function's absolute value.", ("(digamma x)",), _each(_lgamma),
     sympy="loggamma({0})", cost=60, domain=((0.2, 4.0),))
_row("digamma", "x", R1, "The derivative of lgamma.", ("(polygamma 1 x)",), _each(_digamma),
     sympy="polygamma(0, {0})", c="hyad_digamma({0})", c_f32="(float)hyad_digamma({0})", support=DIGAMMA, cost=70,
     domain=((0.2, 4.0),))
_row("polygamma", "n x", (((INT, REAL), REAL),), "The n-th derivative of digamma, n from 0 to 30 (NaN beyond).",
     (None, "(polygamma (+ n 1) x)"), _each(_polygamma),
     c="hyad_polygamma({0}, {1})", c_f32="(float)hyad_polygamma({0}, {1})", support=DIGAMMA + POLYGAMMA, cost=300,
     domain=((0, 4), (0.2, 4.0)))

# Truth values.
_row("<", "a b", COMPARE, "Whether a is less than b.", TRUTH, _binary(operator.lt, np.less),
     sympy="{0} < {1}", c="{0} < {1}", prec="cmp")
_row("<=", "a b", COMPARE, "Whether a is at most b.", TRUTH, _binary(operator.le, np.less_equal),
     sympy="{0} <= {1}", c="{0} <= {1}", prec="cmp")
_row(">", "a b", COMPARE, "Whether a is greater than b.", TRUTH, _binary(operator.gt, np.greater),
     sympy="{0} > {1}", c="{0} > {1}", prec="cmp")
_row(">=", "a b", COMPARE, "Whether a is at least b.", TRUTH, _binary(operator.ge, np.greater_equal),
     sympy="{0} >= {1}", c="{0} >= {1}", prec="cmp")
_row("=", "a b", COMPARE + B2, "Whether a and b are equal.", TRUTH, _binary(operator.eq, np.equal),
     sympy="Eq({0}, {1})", c="{0} == {1}", prec="cmp")
_row("!=", "a b", COMPARE + B2, "Whether a and b differ; NaN differs from itself.", TRUTH,
     _binary(operator.ne, np.not_equal), sympy="Ne({0}, {1})", c="{0} != {1}", prec="cmp")
_row("not", "a", B1, "Whether a is false.", TRUTH, _unary(operator.not_, np.logical_not),
     sympy="Not({0})", c="!{0}", prec="unary")
_row("and", "a b", B2, "Whether both are true.", TRUTH, _binary(lambda a, b: bool(a and b), np.logical_and),
     sympy="And({0}, {1})", c="{0} && {1}", prec="logic")
_row("or", "a b", B2, "Whether one of them is true.", TRUTH, _binary(lambda a, b: bool(a or b), np.logical_or),
     sympy="Or({0}, {1})", c="{0} || {1}", prec="logic")
# fmt: on

BUILTIN = frozenset(PRIMITIVES)
#: What takes any number of operands, and what compares neighbours among them.
CHAINED = frozenset({"+", "*", "-", "/", "min", "max"})
COMPARISONS = frozenset({"<", "<=", ">", ">=", "=", "!="})
#: Those that hold of one operand alone.
ORDERED = COMPARISONS - {"!="}
#: What takes two operands or more, as in Hy: ``(// a b c)`` is ``(// (// a b) c)``, ``(** a b c)`` ``(** a (** b c))``.
FURTHER = frozenset({"//", "**"})
