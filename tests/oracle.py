"""An independent meaning of the language: an interpreter of its text in multiple precision.

Nothing of the engine is used but the reader of s-expressions. Numbers are Python integers and ``mpmath`` reals of 240
digits; arrays are lists, tuples are tuples, records are ``Record``, sums and data types ``Variant``, references
``Ref``. A derivative is a central difference with the step 1e-25: its error is near 1e-50, and six of them nest before
digits that matter are lost. What a difference cannot say (a convention at a kink; what a function does to a reference
outside it, which a difference runs twice) tests state themselves.

    evaluate("(fn [x] ((D sin) x))", 0.0)  =>  1.0

Arguments and results are Python numbers, NumPy arrays, tuples and dicts, as models take and give them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

from hyad.program.forms import Form, read_forms

DIGITS = 240
STEP = mpmath.mpf(10) ** -25
mp = mpmath.mp
Real = mpmath.mpf
Env = dict[str, Any]
Code = Callable[[Env], Any]


class OracleError(Exception):
    """The program has no meaning: an index out of range, shapes that differ, a name that nothing binds."""


@dataclasses.dataclass(frozen=True)
class Record:
    fields: tuple[str, ...]
    values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A constructor with its fields."""

    name: str
    values: tuple[Any, ...]


class Ref:
    def __init__(self, value: Any) -> None:
        self.value = value


def variant(value: Any) -> Variant | None:
    """A sum or an instance of a data type, hyad's or the interpreter's own."""
    if isinstance(value, Variant):
        return value
    if hasattr(type(value), "__match_args__") and isinstance(getattr(value, "name", None), str):
        return Variant(value.name, tuple(getattr(value, f) for f in value.__match_args__))
    return None


# ------------------------------------------------------------------------------------ from and to Python


def internal(value: Any) -> Any:
    """A Python value as the interpreter holds it."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return Real(float(value))
    if isinstance(value, (np.ndarray, list)):
        return [internal(x) for x in value]
    found = variant(value)
    if found is not None:
        return Variant(found.name, tuple(map(internal, found.values)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Record(value._fields, tuple(map(internal, value)))
    if isinstance(value, tuple):
        return tuple(map(internal, value))
    if isinstance(value, dict):
        return Record(tuple(value), tuple(map(internal, value.values())))
    if dataclasses.is_dataclass(value):
        names = tuple(f.name for f in dataclasses.fields(value))
        return Record(names, tuple(internal(getattr(value, n)) for n in names))
    return value


def numbers(value: Any) -> list[float]:
    """Every number of a value, of the interpreter's or of hyad's, in order, as floats."""
    if value is None:
        return []
    found = variant(value)
    if found is not None or isinstance(value, Record):
        return [x for v in (found or value).values for x in numbers(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers(v)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [x for f in dataclasses.fields(value) for x in numbers(getattr(value, f.name))]
    if isinstance(value, np.ndarray):
        return [float(x) for x in value.ravel()]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in numbers(v)]
    return [float(value)]


def structure(value: Any) -> Any:
    """The shape of a value: ``()`` for a number, dims for an array, a list of shapes for a tuple or record."""
    if value is None:
        return []
    found = variant(value)
    if found is not None:
        return [(found.name,), *map(structure, found.values)]
    if isinstance(value, Record):
        return [structure(v) for v in value.values]
    if isinstance(value, dict):
        return [structure(v) for v in value.values()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [structure(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [structure(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.shape
    if isinstance(value, list):
        if any(isinstance(v, (tuple, Record)) or v is None or variant(v) for v in value):
            return [structure(v) for v in value]
        return (len(value), *(structure(value[0]) if value else ()))
    return ()


# ---------------------------------------------------------------------------------------------- leaves


def is_number(x: Any) -> bool:
    return isinstance(x, (int, Real)) and not isinstance(x, bool)


def leaves(value: Any) -> list[Any]:
    """The numbers of a value, truth values left out."""
    if is_number(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in leaves(v)]
    if isinstance(value, (Record, Variant)):
        return [x for v in value.values for x in leaves(v)]
    return []


def rebuild(value: Any, new: Sequence[Any]) -> Any:
    """``value`` with its numbers replaced, in order."""
    it = iter(new)

    def walk(v: Any) -> Any:
        if is_number(v):
            return next(it)
        if isinstance(v, list):
            return [walk(x) for x in v]
        if isinstance(v, tuple):
            return tuple(map(walk, v))
        if isinstance(v, (Record, Variant)):
            return dataclasses.replace(v, values=tuple(map(walk, v.values)))
        return v

    return walk(value)


def map_arrays(f: Callable[..., Any], value: Any) -> Any:
    """``f`` of each number or array of a value, in its structure."""
    if isinstance(value, tuple):
        return tuple(map_arrays(f, v) for v in value)
    if isinstance(value, (Record, Variant)):
        return dataclasses.replace(value, values=tuple(map_arrays(f, v) for v in value.values))
    return f(value) if isinstance(value, list) or is_number(value) else value


# ------------------------------------------------------------------------------------------ derivatives


def slope(f: Callable[[Any], Any]) -> Any:
    """The derivative at 0 of ``f``, in the structure of its result; pointwise where there is a function in it."""

    def difference(up: Any, down: Any, part: Callable[[Any], Any]) -> Any:
        """Of the part of both results that ``part`` takes out of a result."""

        def inner(k: int) -> Callable[[Any], Any]:
            return lambda result: parts_of(part(result))[k]

        if callable(up):
            return lambda *args: slope(lambda t: part(f(t))(*args))
        if is_number(up):
            return (up - down) / (2 * STEP)
        if isinstance(up, (list, tuple, Record, Variant)):
            pairs = zip(parts_of(up), parts_of(down))
            made = tuple(difference(a, b, inner(k)) for k, (a, b) in enumerate(pairs))
            if isinstance(up, (list, tuple)):
                return type(up)(made)
            return dataclasses.replace(up, values=made)
        return up

    return difference(f(STEP), f(-STEP), lambda result: result)


def parts_of(value: Any) -> Sequence[Any]:
    return value.values if isinstance(value, (Record, Variant)) else value


def along(f: Callable[..., Any], args: Sequence[Any], at: Sequence[int], directions: Sequence[Any]) -> Any:
    """The directional derivative of ``f`` when the arguments ``at`` move along ``directions``."""

    def moved(t: Real) -> Any:
        new = list(args)
        for k, d in zip(at, directions):
            new[k] = rebuild(args[k], [x + t * dx for x, dx in zip(leaves(args[k]), leaves(d))])
        return f(*new)

    return slope(moved)


def unit(value: Any, k: int) -> Any:
    """``value`` with 1 for its number ``k`` and 0 for the others."""
    return rebuild(value, [Real(j == k) for j in range(len(leaves(value)))])


def gradient(f: Callable[..., Any], args: Sequence[Any], at: Sequence[int], single: bool = True) -> Any:
    parts = []
    for k in at:
        slopes = [along(f, args, [k], [unit(args[k], j)]) for j in range(len(leaves(args[k])))]
        parts.append(rebuild(args[k], slopes))
    return parts[0] if len(parts) == 1 and single else tuple(parts)


def jacobian(f: Callable[..., Any], args: Sequence[Any], at: Sequence[int]) -> Any:
    """For each array of the result and of the arguments one array: the result's dims, then the argument's."""
    columns = [[along(f, args, [k], [unit(args[k], j)]) for j in range(len(leaves(args[k])))] for k in at]
    result = f(*args)
    position = 0

    def rows(part: Any) -> Any:
        nonlocal position
        first = position
        position += len(leaves(part))
        blocks = []
        for k, column in zip(at, columns):
            offset = 0

            def block(arg: Any, column: list[Any] = column) -> Any:
                nonlocal offset
                here = range(offset, offset + len(leaves(arg)))
                offset = here.stop
                every = [[leaves(column[j])[row] for j in here] for row in range(first, position)]
                cells = iter(every)

                def fill(v: Any) -> Any:
                    if isinstance(v, list):
                        return [fill(x) for x in v]
                    return rebuild(arg, next(cells))

                return fill(part)

            blocks.append(map_arrays(block, args[k]))
        return blocks[0] if len(blocks) == 1 else tuple(blocks)

    return map_arrays(rows, result)


class Operator:
    """``D``, ``grad`` and their kin: applied to a function a function, with a point after it a value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, f: Any, *rest: Any, wrt: Any = None) -> Any:
        def derived(*args: Any) -> Any:
            return self.apply(f, args, wrt)

        derived.params = getattr(f, "params", None)  # type: ignore[attr-defined]
        return derived(*rest) if rest else derived

    def apply(self, f: Any, args: tuple[Any, ...], wrt: Any) -> Any:
        name, names = self.name, getattr(f, "params", None)

        def places(count: int) -> list[int]:
            if wrt is None:
                return list(range(count))
            given = wrt if isinstance(wrt, tuple) else (wrt,)
            return [names.index(w) if isinstance(w, str) else w for w in given]

        if name in ("jvp", "hvp"):
            half = len(args) // 2
            inner = f if name == "jvp" else Operator("grad")(f, wrt=wrt)
            at = places(half)
            return along(inner, args[:half], at, [args[half + k] for k in at])
        if name == "vjp":
            *points, ct = args

            def weighed(*xs: Any) -> Any:
                return sum((a * b for a, b in zip(leaves(f(*xs)), leaves(ct))), Real(0))

            return gradient(weighed, points, places(len(points)))
        at = places(len(args))
        if name == "D":
            return along(f, args, at, [Real(1)])
        if name == "grad":
            return gradient(f, args, at)
        if name == "value-and-grad":
            return f(*args), gradient(f, args, at)
        if name == "hessian":
            return jacobian(Operator("grad")(f, wrt=wrt), args, at)
        if name == "value-and-deriv":
            return f(*args), jacobian(f, args, at)
        return jacobian(f, args, at)


# ------------------------------------------------------------------------------------------- primitives


def real_only(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` on reals, NaN where mpmath leaves them, infinity at a pole."""

    def primitive(*args: Any) -> Any:
        try:
            y = f(*(Real(x) for x in args))
        except ZeroDivisionError:
            return mp.inf
        except ValueError:
            return mp.nan
        return mp.nan if isinstance(y, mpmath.mpc) and y.imag != 0 else mpmath.re(y)

    return primitive


def divide(a: Any, b: Any) -> Any:
    a, b = Real(a), Real(b)
    if b == 0:
        return mp.nan if a == 0 or a != a else mp.sign(a) * mp.inf
    return a / b


def floor_divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    return mp.floor(Real(a) / Real(b))


def modulo(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    return Real(a) - Real(b) * mp.floor(Real(a) / Real(b))


def power(a: Any, b: Any) -> Any:
    a, b = Real(a), Real(b)
    if b == mp.floor(b) and abs(b) < 2**31:
        return mp.inf if a == 0 and b < 0 else a ** int(b)
    if a < 0:
        return mp.nan
    if a == 0:
        return Real(0) if b > 0 else mp.inf
    return a**b


def sign(x: Any) -> Any:
    return type(x)((x > 0) - (x < 0))


def truncate(x: Any) -> int:
    return int(x)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": divide,
    "//": floor_divide,
    "%": modulo,
    "**": power,
    "neg": lambda a: -a,
    "square": lambda x: x * x,
    "sqrt": real_only(mp.sqrt),
    "cbrt": real_only(lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "hypot": real_only(mp.hypot),
    "exp": real_only(mp.exp),
    "exp2": real_only(lambda x: mp.mpf(2) ** x),
    "expm1": real_only(mp.expm1),
    "log": real_only(mp.log),
    "log2": real_only(lambda x: mp.log(x) / mp.log(2)),
    "log10": real_only(mp.log10),
    "log1p": real_only(lambda x: mp.log(1 + x)),
    "sin": real_only(mp.sin),
    "cos": real_only(mp.cos),
    "tan": real_only(mp.tan),
    "asin": real_only(mp.asin),
    "acos": real_only(mp.acos),
    "atan": real_only(mp.atan),
    "atan2": real_only(mp.atan2),
    "sinh": real_only(mp.sinh),
    "cosh": real_only(mp.cosh),
    "tanh": real_only(mp.tanh),
    "asinh": real_only(mp.asinh),
    "acosh": real_only(mp.acosh),
    "atanh": real_only(mp.atanh),
    "abs": abs,
    "sign": sign,
    "min": lambda a, b: a if a <= b else b,
    "max": lambda a, b: a if a >= b else b,
    "relu": lambda x: x if x > 0 else Real(0),
    "sigmoid": real_only(lambda x: 1 / (1 + mp.exp(-x))),
    "softplus": real_only(lambda x: mp.log(1 + mp.exp(x))),
    "floor": real_only(mp.floor),
    "ceil": real_only(mp.ceil),
    "round": real_only(mp.nint),
    "trunc": lambda x: Real(int(x)),
    "real": lambda x: Real(x),
    "int": truncate,
    "erf": real_only(mp.erf),
    "erfc": real_only(mp.erfc),
    "gamma": real_only(mp.gamma),
    "lgamma": real_only(lambda x: mp.log(abs(mp.gamma(x)))),
    "digamma": real_only(lambda x: mp.psi(0, x)),
    "polygamma": lambda n, x: mp.psi(n, Real(x)),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
CHAINED = frozenset({"+", "*", "-", "/", "min", "max"})
COMPARISONS = frozenset({"<", "<=", ">", ">=", "=", "!="})


def elementwise(f: Callable[..., Any], *args: Any) -> Any:
    arrays = [a for a in args if isinstance(a, list)]
    if not arrays:
        if any(a is None or isinstance(a, (tuple, Record, Variant, Ref)) or callable(a) for a in args):
            raise OracleError("a primitive works on numbers")
        return f(*args)
    if len({len(a) for a in arrays}) > 1:
        raise OracleError("shapes differ")
    rows = zip(*(a if isinstance(a, list) else [a] * len(arrays[0]) for a in args))
    return [elementwise(f, *row) for row in rows]


def primitive(name: str) -> Callable[..., Any]:
    """A primitive as the language has it: n-ary, elementwise, comparisons chained."""
    f = PRIMITIVES[name]

    def apply(*args: Any) -> Any:
        if name == "-" and len(args) == 1:
            return elementwise(PRIMITIVES["neg"], *args)
        if name == "/" and len(args) == 1:
            return elementwise(f, 1, args[0])
        if name in COMPARISONS:
            return all(f(a, b) for a, b in zip(args, args[1:]))
        if name in CHAINED:
            if not args:
                return 0 if name == "+" else 1
            total = args[0]
            for x in args[1:]:
                total = elementwise(f, total, x)
            return total
        return elementwise(f, *args)

    apply.__name__ = name
    return apply


# ------------------------------------------------------------------------------------------------ arrays


def unify(items: list[Any]) -> list[Any]:
    """``[...]``: one element type, so an integer among reals is a real."""
    if all(is_number(x) for x in items) and any(isinstance(x, Real) for x in items):
        return [Real(x) for x in items]
    return items


def get(value: Any, *indices: Any) -> Any:
    for i in indices:
        items = value.values if isinstance(value, Record) else value
        if not isinstance(items, (list, tuple)) or not isinstance(i, int) or not -len(items) <= i < len(items):
            raise OracleError(f"no element {i}")
        value = items[i]
    return value


def length(value: Any) -> int:
    if is_list(value):
        return len(elements(value))
    return len(value.values if isinstance(value, Record) else value)


def shape(value: Any, axis: int | None = None) -> Any:
    dims = []
    while isinstance(value, list):
        dims.append(len(value))
        value = value[0] if value else None
    return tuple(dims) if axis is None else dims[axis]


def build(size: Any, f: Callable[..., Any]) -> Any:
    sizes = list(size) if isinstance(size, (tuple, list)) else [size]

    def nest(done: tuple[int, ...]) -> Any:
        if len(done) == len(sizes):
            return own(f(*done))
        return [nest((*done, i)) for i in range(sizes[len(done)])]

    return nest(())


def is_list(value: Any) -> bool:
    """Whether a value is nil or pairs that end in it."""
    while isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    return value is None


def elements(value: Any) -> Sequence[Any]:
    """What ``map`` and ``fold`` go over: the items of an array, of a tuple, of a list."""
    if not is_list(value):
        return value
    found = []
    while value is not None:
        found.append(value[0])
        value = value[1]
    return found


def lisp(*items: Any) -> Any:
    found = None
    for x in reversed(items):
        found = (x, found)
    return found


def half(which: int) -> Callable[[Any], Any]:
    def part(pair: Any) -> Any:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise OracleError("not a pair")
        return pair[which]

    return part


def deref(r: Any) -> Any:
    if not isinstance(r, Ref):
        raise OracleError("not a reference")
    return r.value


def set_(r: Any, value: Any) -> None:
    deref(r)
    r.value = value


def set_at(a: Any, *rest: Any) -> None:
    *indices, x = rest
    row = get(a, *indices[:-1])
    get(row, indices[-1])
    if isinstance(x, list) and isinstance(row[indices[-1]], list):
        row[indices[-1]][:] = copy(x)  # as NumPy does
    else:
        row[indices[-1]] = x


def copy(a: Any) -> Any:
    return [copy(x) for x in a] if isinstance(a, list) else a


def own(x: Any) -> Any:
    """What an array that is made keeps: arrays are copied into it."""
    if isinstance(x, list):
        return copy(x)
    return tuple(map(own, x)) if isinstance(x, tuple) else x


def same_lengths(arrays: Sequence[Any]) -> None:
    if len({len(a) for a in arrays}) != 1:
        raise OracleError("lengths differ")


def map_(f: Callable[..., Any], *arrays: Any) -> Any:
    rows = [elements(a) for a in arrays]
    same_lengths(rows)
    array = any(isinstance(a, list) for a in arrays)
    made = [own(f(*xs)) if array else f(*xs) for xs in zip(*rows)]
    if array:
        return made
    return lisp(*made) if is_list(arrays[0]) else tuple(made)


def fold(f: Callable[..., Any], acc: Any, *arrays: Any) -> Any:
    rows = [elements(a) for a in arrays]
    same_lengths(rows)
    for xs in zip(*rows):
        acc = f(acc, *xs)
    return acc


def ifold(f: Callable[..., Any], acc: Any, n: int) -> Any:
    for i in range(n):
        acc = f(acc, i)
    return acc


def scan(f: Callable[..., Any], acc: Any, xs: Any) -> Any:
    out = []
    for x in xs:
        acc = f(acc, x)
        out.append(own(acc))
    return out


def update(a: Any, *rest: Any) -> Any:
    i, *more, x = rest
    get(a, i)
    copy = list(a)
    copy[i] = update(a[i], *more, x) if more else x
    return unify(copy)


def dot(u: Any, v: Any) -> Any:
    same_lengths([u, v])
    return sum((a * b for a, b in zip(u, v)), Real(0))


def mat_mul(a: Any, b: Any) -> Any:
    return [[sum((a[i][k] * b[k][j] for k in range(len(b))), Real(0)) for j in range(len(b[0]))] for i in range(len(a))]


def scale(s: Any, a: Any) -> Any:
    return elementwise(PRIMITIVES["*"], s, a)


def norm(v: Any) -> Any:
    s = dot(v, v)
    return Real(0) if s == 0 else mp.sqrt(s)


def cross(u: Any, v: Any) -> Any:
    return [u[(i + 1) % 3] * v[(i + 2) % 3] - u[(i + 2) % 3] * v[(i + 1) % 3] for i in range(3)]


BUILTINS: dict[str, Any] = {
    **{name: primitive(name) for name in PRIMITIVES},
    **{name: Operator(name) for name in "D grad value-and-grad jacobian hessian jvp vjp hvp value-and-deriv".split()},
    "not": lambda a: not a,
    "get": get,
    "fst": lambda p: get(p, 0),
    "snd": lambda p: get(p, 1),
    "len": length,
    "shape": shape,
    "build": build,
    "map": map_,
    "fold": fold,
    "ifold": ifold,
    "scan": scan,
    "update": update,
    "copy": copy,
    "nil": None,
    "tuple": lambda *items: items,
    "array": lambda *items: unify(list(items)),
    "cons": lambda a, b: (a, b),
    "car": half(0),
    "cdr": half(1),
    "list": lisp,
    "null?": lambda x: x is None,
    "num?": is_number,
    "inl": lambda x: Variant("inl", (x,)),
    "inr": lambda x: Variant("inr", (x,)),
    "ref": Ref,
    "deref": deref,
    "set!": set_,
    "set-at!": set_at,
    "vec-map": map_,
    "vec-add": lambda u, v: map_(PRIMITIVES["+"], u, v),
    "vec-sub": lambda u, v: map_(PRIMITIVES["-"], u, v),
    "vec-mul": lambda u, v: map_(PRIMITIVES["*"], u, v),
    "vec-scale": scale,
    "vec-sum": lambda v: sum(v, Real(0)),
    "sum": lambda v: sum(v, Real(0)),
    "dot": dot,
    "sq-norm": lambda v: dot(v, v),
    "norm": norm,
    "cross": cross,
    "one-hot": lambda n, k: [Real(i == k) for i in range(n)],
    "zeros": lambda n: [Real(0)] * n,
    "ones": lambda n: [Real(1)] * n,
    "eye": lambda n: [[Real(i == j) for j in range(n)] for i in range(n)],
    "outer": lambda u, v: [[a * b for b in v] for a in u],
    "transpose": lambda m: [list(row) for row in zip(*m)],
    "mat-add": lambda a, b: elementwise(PRIMITIVES["+"], a, b),
    "mat-sub": lambda a, b: elementwise(PRIMITIVES["-"], a, b),
    "mat-scale": scale,
    "mat-vec": lambda m, v: [dot(row, v) for row in m],
    "vec-mat": lambda v, m: [dot(v, list(column)) for column in zip(*m)],
    "mat-mul": mat_mul,
    "trace": lambda m: sum((row[i] for i, row in enumerate(m)), Real(0)),
}

# ----------------------------------------------------------------------------------------- the language


def compile_form(form: Form) -> Code:
    """What a form computes, as a function of the environment."""
    kind = form.kind
    if kind == "num":
        value = internal(form.value)
        return lambda env: value
    if kind == "sym":
        return symbol(form.value)
    if kind == "[":
        items = [compile_form(x) for x in form.value]
        return lambda env: unify([x(env) for x in items])
    if kind == "#(":
        items = [compile_form(x) for x in form.value]
        return lambda env: tuple(x(env) for x in items)
    assert kind == "(", form
    head = form.head()
    special = SPECIAL.get(head or "")
    if special is not None:
        return special(form.value[1:])
    return call(form)


def symbol(name: str) -> Code:
    if name in ("None", "nil"):
        return lambda env: None
    owner, *fields = name.split(".") if "." in name.strip(".") else [name]

    def look_up(env: Env) -> Any:
        if owner in env:
            value = env[owner]
        elif owner in BUILTINS:
            value = BUILTINS[owner]
        else:
            raise OracleError(f"nothing binds {name}")
        for field in fields:
            value = value.values[value.fields.index(field)]
        return value

    return look_up


def wrt_of(form: Form) -> Any:
    return tuple(map(wrt_of, form.value)) if form.is_list else form.value


def call(form: Form) -> Code:
    head, *rest = form.value
    fn = compile_form(head)
    options = {}
    if len(rest) > 1 and rest[-2].kind == "key":
        options = {rest[-2].value: wrt_of(rest[-1])}
        rest = rest[:-2]
    args = [compile_form(x) for x in rest]

    def run(env: Env) -> Any:
        f = fn(env)
        if not callable(f):
            raise OracleError(f"{head} is not a function")
        return f(*[a(env) for a in args], **options)

    return run


def bind(pattern: Form, value: Any, env: Env) -> None:
    if pattern.kind == "#^":
        pattern = pattern.value[1]
    if pattern.kind in ("#(", "["):
        for i, p in enumerate(pattern.value):
            bind(p, get(value, i), env)
    else:
        env[pattern.value] = value


def sequence(forms: Sequence[Form]) -> Code:
    parts = [compile_form(x) for x in forms]

    def run(env: Env) -> Any:
        value = None
        for part in parts:
            value = part(env)
        return value

    return run


def function(items: list[Form]) -> Code:
    if items[0].kind == "sym":  # (defmodel name [..] ..)
        items = items[1:]
    params, body = items[0].value, items[1:]
    if len(body) > 1 and body[0].kind == "str":
        body = body[1:]
    code = sequence(body)
    names = [(p.value[1] if p.kind == "#^" else p).value for p in params]

    def make(env: Env) -> Any:
        seen = dict(env)  # a name that the same let binds later is another variable

        def f(*args: Any) -> Any:
            if len(args) != len(params):
                raise OracleError("wrong number of arguments")
            inner = dict(seen)
            for p, a in zip(params, args):
                bind(p, a, inner)
            return code(inner)

        f.params, f.seen = names, seen  # type: ignore[attr-defined]
        return f

    return make


def let(items: list[Form]) -> Code:
    bindings = items[0].value
    pairs = [(target, compile_form(value)) for target, value in zip(bindings[::2], bindings[1::2])]
    body = sequence(items[1:])

    def run(env: Env) -> Any:
        inner = dict(env)
        for target, value in pairs:
            bind(target, value(inner), inner)
        return body(inner)

    return run


def letrec(items: list[Form]) -> Code:
    """Every function sees every name that is bound here; values that are no functions come after, in their order."""
    pairs = list(zip(items[0].value[::2], items[0].value[1::2]))
    pairs.sort(key=lambda pair: pair[1].head() not in ("fn", "model"))
    parts = [(target.value, compile_form(value)) for target, value in pairs]
    body = sequence(items[1:])

    def run(env: Env) -> Any:
        inner, made = dict(env), {}
        for name, code in parts:
            inner[name] = made[name] = code(inner)
            for f in made.values():
                if hasattr(f, "seen"):
                    f.seen.update(made)
        return body(inner)

    return run


def while_(items: list[Form]) -> Code:
    test, body = compile_form(items[0]), sequence(items[1:])

    def run(env: Env) -> None:
        while test(env):
            body(env)

    return run


def case(items: list[Form]) -> Code:
    value = compile_form(items[0])
    arms = [(pattern, compile_form(result)) for pattern, result in zip(items[1::2], items[2::2])]

    def run(env: Env) -> Any:
        v = value(env)
        for pattern, result in arms:
            if pattern.kind == "sym":
                if pattern.value == "_" or v is None:
                    return result(env)
                continue
            name, *fields = pattern.value
            values = v.values if isinstance(v, Variant) and v.name == name.value else None
            if name.value == "cons" and isinstance(v, tuple) and len(v) == 2:
                values = v
            if values is not None:
                inner = dict(env)
                for field_, x in zip(fields, values):
                    bind(field_, x, inner)
                return result(inner)
        raise OracleError("no arm takes it")

    return run


def if_(items: list[Form]) -> Code:
    test, then, orelse = map(compile_form, items)
    return lambda env: then(env) if test(env) else orelse(env)


def cond(items: list[Form]) -> Code:
    clauses = [(compile_form(t), compile_form(v)) for t, v in zip(items[::2], items[1::2])]

    def run(env: Env) -> Any:
        for test, value in clauses:
            if test(env):
                return value(env)
        return None

    return run


def when(items: list[Form]) -> Code:
    test, body = compile_form(items[0]), sequence(items[1:])
    return lambda env: body(env) if test(env) else None


def both(stop: bool) -> Callable[[list[Form]], Code]:
    def make(items: list[Form]) -> Code:
        parts = [compile_form(x) for x in items]

        def run(env: Env) -> Any:
            for part in parts:
                if bool(part(env)) is stop:
                    return stop
            return not stop

        return run

    return make


def deriv(items: list[Form]) -> Code:
    body, name = compile_form(items[0]), items[1].value

    def run(env: Env) -> Any:
        return BUILTINS["value-and-deriv"](lambda x: body({**env, name: x}), env[name])

    return run


def field(items: list[Form]) -> Code:
    value, names = compile_form(items[0]), [f.value for f in items[1:]]

    def run(env: Env) -> Any:
        v = value(env)
        for name in names:
            v = v.values[v.fields.index(name)]
        return v

    return run


SPECIAL: dict[str, Callable[[list[Form]], Code]] = {
    "fn": function,
    "model": function,
    "defmodel": function,
    "let": let,
    "if": if_,
    "cond": cond,
    "when": when,
    "do": sequence,
    "and": both(False),
    "or": both(True),
    "deriv": deriv,
    ".": field,
    "letrec": letrec,
    "while": while_,
    "case": case,
    "match": case,
}


def constructor(form: Form) -> Callable[..., Variant]:
    name, *fields = (x.value for x in form.value)

    def make(*values: Any) -> Variant:
        if len(values) != len(fields):
            raise OracleError("wrong number of fields")
        return Variant(name, values)

    return make


def meaning(text: str, definitions: str = "", **values: Any) -> Callable[..., Any]:
    """The function that the text of one model means. ``definitions``: the text of ``defmodel`` and ``defdata`` forms
    that it needs; ``values``: of other names."""
    env: Env = {name: internal(v) if not callable(v) else v for name, v in values.items()}
    for form in read_forms(definitions):
        if form.head() == "defdata":
            env.update({c.value[0].value: constructor(c) for c in form.value[2:]})
        else:
            env[form.value[1].value] = compile_form(form)(env)
    for f in list(env.values()):
        if hasattr(f, "seen"):
            f.seen.update(env)
    (form,) = read_forms(text)
    return compile_form(form)(env)


def evaluate(text: str, *args: Any, operator: str | None = None, wrt: Any = None, definitions: str = "") -> Any:
    """The value of a model, or of ``operator`` of it, at ``args``, in the interpreter's own numbers."""
    with mpmath.workdps(DIGITS):
        f = meaning(text, definitions)
        if operator is not None:
            f = BUILTINS[operator](f, wrt=wrt)
        return f(*map(internal, args))


def same_structure(a: Any, b: Any) -> bool:
    """Equality of structures, up to the dims inside an empty array, which lists do not have."""
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and all(map(same_structure, a, b))
    empty = [s.index(0) for s in (a, b) if 0 in s]
    return a == b if not empty else a[: empty[0] + 1] == b[: empty[0] + 1]


def mismatch(got: Any, expected: Any, rtol: float = 1e-10, atol: float = 1e-12) -> str | None:
    """None if two values have one structure and agree number by number; else what differs."""
    if not same_structure(structure(got), structure(expected)):
        return f"structure {structure(got)}, expected {structure(expected)}"
    for k, (a, b) in enumerate(zip(numbers(got), numbers(expected))):
        same = (a != a and b != b) or a == b or abs(a - b) <= atol + rtol * abs(b)
        if not same:
            return f"number {k} is {a!r}, expected {b!r}; all: {numbers(got)}, expected {numbers(expected)}"
    return None
