"""What the host knows of a call: the integers that sizes are made of, and where each value lies in device memory.

``HostMemory`` is the first of the classes by which a program is cut into kernels (``grid.py`` has the last): it has
what all of them ask for. A value is the host's (``host``), given by value (``scalars``), in memory (``spot``), or not
anywhere: it is computed where it is used (``lazy``). Each array has memory of its own (``room``), but for those that
``wanted`` has a place for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyad.core import (
    BOOL,
    INT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    Data,
    If,
    Make,
    Prim,
    Program,
    Var,
    all_binds,
    functions_of,
    reads,
    uses,
)
from hyad.errors import CompileError, Span

from .c import FUNCTION_RESERVED, RESERVED
from .collectives import ELEM
from .comments import Comments
from .data import item_type
from .identifiers import Names
from .launches import At, Memory, Scalar, Size, Step, names_of, total, value
from .lower import type_of
from .sizes import Extreme, Quotient
from .thread import CUDA, ThreadUnit

INTEGER = {"+": "+", "-": "-", "*": "*", "min": "min", "max": "max"}
COMPARED = {"=": "==", "!=": "!=", "<": "<", "<=": "<="}


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a value lies in device memory."""

    at: At
    whole: bool = True  # all of the array

    @property
    def array(self) -> str:
        return self.at.array


def unknown_size(span: Span | None) -> CompileError:
    return CompileError(
        "the size of this array is not known before the call",
        span,
        'make it a number, a dim of an argument, or an Int argument, or use target="c"',
    )


class HostMemory:
    """The state of going through one program: ``steps`` are those of the block that is open."""

    def __init__(self, program: Program, dtype: str, name: str | None, deterministic: bool) -> None:
        self.program, self.dtype, self.deterministic = program, dtype, deterministic
        self.name = Names(FUNCTION_RESERVED | CUDA).fresh(name or program.name or "model")
        self.names = Names(RESERVED | CUDA)
        self.names.taken.add(self.name)
        self.unit = ThreadUnit(program, dtype, self.name)
        self.kernel_names = Names(RESERVED | CUDA)
        self.kernel_names.taken |= self.unit.names.taken
        self.comments = Comments(program)
        self.memory: dict[str, Memory] = {}
        self.host: dict[Var, Size] = {}  # integers and truth values that the host knows
        self.scalars: dict[Var, Scalar] = {}  # parameters given by value
        self.spot: dict[Var, Spot] = {}  # what lies in device memory
        self.lazy: dict[Var, Bind] = {}  # what is computed where it is used
        self.weight: dict[Var, float] = {}
        self.wanted: dict[Var, At] = {}  # where a value is to be made
        self.steps: list[Step] = []
        self.group: list[Bind] = []  # what one thread is to do, not printed yet
        self.in_one: set[Bind] = set()  # what one thread does, since it reads what functions remember
        self.group_live: frozenset[Var] = frozenset()
        self.bound: set[Bind] = set()  # what reads data, or arrays of unknown size, in the thread that makes them
        self.checks = self.unit.checks
        self.checked = False  # a kernel so far may note that a check failed
        self.notes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.support = self.unit.support
        self.kernels: list[str] = []
        self.status: str | None = None
        self.heap: str | None = None  # the names of three sizes (``CudaProgram``)
        self.stack_bytes: str | None = None
        self.rounds: str | None = None
        self.counted: dict[str, Size] = {}  # how often its whiles have run: the most there may be
        self.tiled: str | None = None  # the kernel of matrix products
        self.parts: tuple[At, ...] = ()  # its memory
        self.indices: dict[str, Size] = {}  # of the host's loops that are open: their counts
        self.uses = uses(program.body)

    # ------------------------------------------------------------------------------------------------ sizes

    def integers(self, block: Block) -> None:
        """The integers, and comparisons of them, that the host can compute; at the block's own level."""
        for bind in block.binds:
            if isinstance(bind.op, Prim) and len(bind.vars) == 1 and bind.vars[0].type in (INT, BOOL):
                size = self.computed(bind.op)
                if size is not None:
                    self.host[bind.vars[0]] = size
            elif isinstance(bind.op, If) and bind.vars and all(v.type in (INT, BOOL) for v in bind.vars):
                self.branch_of_integers(bind, bind.op)

    def branch_of_integers(self, bind: Bind, op: If) -> None:
        """Integers that a branch makes, where the host knows by what it is chosen, and both sides."""
        arms = (op.then, op.orelse)
        for arm in arms:
            self.integers(arm)
        known = all(v in self.host for arm in arms for b in arm.binds for v in b.vars)
        if known and all(b.vars for arm in arms for b in arm.binds):  # neither has a check
            for k, v in enumerate(bind.vars):
                sizes = [self.size(a) for a in (op.cond, *(arm.results[k] for arm in arms))]
                if None not in sizes:
                    self.host[v] = one_of(*sizes)

    def computed(self, op: Prim) -> Size | None:
        args = [self.size(a) for a in op.args]
        if None in args or not args:
            return None
        if any(type_of(a) not in (INT, BOOL) for a in op.args):
            return None
        if op.name == "neg":
            return simple("-", 0, args[0])
        if op.name == "not":
            return simple("==", args[0], 0)
        if op.name == "select":
            return one_of(*args)
        if len(args) != 2:
            return None
        a, b = args
        if op.name in INTEGER:
            return simple(INTEGER[op.name], a, b)
        if op.name in ("//", "%"):
            return self.quotient(op.name, a, b)
        if op.name in COMPARED:
            return simple(COMPARED[op.name], a, b)
        if op.name in (">", ">="):
            return simple({">": "<", ">=": "<="}[op.name], b, a)
        if op.name in ("and", "or"):
            return simple(op.name, a, b)
        return None

    def quotient(self, operator: str, a: Size, b: Size) -> Size:
        """``a // b`` or ``a % b``, which are 0 where ``b`` is."""
        if isinstance(b, int) and b > 0 or isinstance(b, tuple) and b[0] == "max" and b[2] == 1:
            return simple(operator, a, b)
        nonzero = simple("max", b, 1) if self.natural(b) else simple("+", b, simple("==", b, 0))
        made = simple(operator, a, nonzero)
        return made if operator == "%" else simple("*", made, simple("!=", b, 0))

    def size(self, a: Atom) -> Size | None:
        if isinstance(a, Const):
            return int(a.value) if type_of(a) in (INT, BOOL) else None
        return self.host.get(a)

    def natural(self, size: Size) -> bool:
        """Whether a size is certainly not negative."""
        if isinstance(size, int):
            return size >= 0
        if isinstance(size, str):
            known = size in (*self.indices, *self.counted, self.rounds)
            return known or any(self.host.get(d) == size for d in self.program.dims)
        operator, a, b = size
        if operator == "max":
            return self.natural(a) or self.natural(b)
        return operator != "-" and self.natural(a) and self.natural(b)

    def sizes(self, dims: Iterable[Atom], span: Span | None) -> tuple[Size, ...]:
        out = []
        for d in dims:
            size = self.size(d)
            if size is None:
                raise unknown_size(span)
            out.append(size)
        return tuple(out)

    def largest(self, size: Size) -> Size:
        """What a size is at most in any iteration of the host's loops. Inner loops come first: how often they run may
        depend on outer ones."""
        loops = [*self.counted.items(), *((i, simple("max", simple("-", c, 1), 0)) for i, c in self.indices.items())]
        for index, last in reversed(loops):
            if index not in names_of(size):
                continue
            if convex(size, index):
                size = ("max", with_name(size, index, 0), with_name(size, index, last))
            else:
                size = self.extremes(size, index, last)[1]
        return size

    def extremes(self, size: Size, index: str, last: Size) -> tuple[Size, Size]:
        """What a size is at least and at most where an index is from 0 to ``last``, each part by itself."""
        if size == index:
            return 0, last
        if index not in names_of(size):
            return size, size
        operator, a, b = size
        (low, high), (least, most) = (self.extremes(x, index, last) for x in (a, b))
        if operator in ("==", "!="):
            return 0, 1
        if operator in ("-", "<", "<="):  # the larger b, the smaller the difference, the smaller a, the more it is less
            return (simple("-", low, most), simple("-", high, least)) if operator == "-" else (0, 1)
        if operator == "*" and not (self.natural(a) and self.natural(b)):
            products = [simple("*", x, y) for x in dict.fromkeys((low, high)) for y in dict.fromkeys((least, most))]
            return reduced("min", products), reduced("max", products)
        if operator == "//" and not (isinstance(b, int) and b > 0):
            if self.natural(a) and self.natural(b):
                return 0, simple("//", high, simple("max", least, 1))
            high = simple("max", high, simple("-", 0, low))  # no quotient is further from 0
            return simple("-", 0, high), high
        if operator == "%":
            return simple("min", simple("+", least, 1), 0), simple("max", simple("-", most, 1), 0)
        return simple(operator, low, least), simple(operator, high, most)

    def terms(self, terms: dict, bound: dict) -> Size:
        """A size of ``sizes.py`` as the host's."""
        out: Size = 0
        for symbols, c in terms.items():
            factor: Size = c
            for s in symbols:
                if isinstance(s, Quotient):
                    x: Size = ("//", self.terms(dict(s.terms), bound), s.by)
                elif isinstance(s, Extreme):
                    x = (s.name, self.terms(dict(s.a), bound), self.terms(dict(s.b), bound))
                else:
                    known = bound.get(s, s)
                    if known not in self.host:
                        raise unknown_size(getattr(known, "span", None))
                    x = ("max", self.host[known], 0)
                factor = simple("*", factor, x)
            out = simple("+", out, factor)
        return out

    # ----------------------------------------------------------------------------------------------- memory

    def room(self, var: Var, dims: Sequence[Size] | None = None) -> At:
        """Memory for a variable: where it is wanted, or its own."""
        data = item_type(var)
        if isinstance(data, Data):
            span = var.span or self.program.span
            if any(c.make == "array" for c in data.constructors):
                found = sizes_of(self.program, data)
                sizes = f" (here {' and '.join(found)})" if len(found) > 1 else ""
                raise CompileError(
                    "the shape of this array changes, or may: it is data, which kernels do not hand on",
                    span,
                    f"declare sizes that are equal by one name, as `#^ (Mat n n) u`{sizes}, or make the first shape"
                    ' that of the others; or use target="c"',
                )
            if any(c.make == "record" for c in data.constructors):
                raise CompileError(
                    "what a recursive function remembers for its gradient is data here that another kernel is to read",
                    span,
                    "write the recursion as loops, take the gradient inside a `map` or `build` (one thread each), run a"
                    ' batch, or use target="c"',
                )
            raise CompileError(
                "one kernel makes data here that another one is to read",
                span,
                'make and read them in one `map` or `build`, run a batch (one thread each), or use target="c"',
            )
        at = self.wanted.get(var)
        if at is None:
            t = var.type
            name = self.names.fresh(var.name)
            if dims is None:
                dims = self.sizes(t.dims, var.span) if isinstance(t, Arr) else ()
            self.memory[name] = Memory(
                name, ELEM[t.elem if isinstance(t, Arr) else t], tuple(self.largest(d) for d in dims)
            )
            at = At(name)
        self.spot[var] = Spot(at, at.offset == 0)
        return at

    def closure(self, variables: Iterable[Var]) -> set[Var]:
        """Variables and all that computing the lazy ones among them reads."""
        seen: set[Var] = set()
        todo = list(variables)
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self.lazy:
                todo += [a for a in reads(self.lazy[v])]
        return seen

    def free(self, array: Atom, later: frozenset[Var]) -> bool:
        """Whether an array's memory may be overwritten: nothing that is read later lies there."""
        if not isinstance(array, Var) or array not in self.spot:
            return False
        here = self.spot[array].array
        if self.memory[here].kind == "param":
            return False
        return not any(
            v in self.spot and self.spot[v].array == here for v in self.closure(later) if v is not array
        ) and (array not in self.closure(later))

    def place(self, value: Atom) -> At | None:
        """Where an array lies, if it is all in one place at an offset that the host knows."""
        if not isinstance(value, Var):
            return None
        if value in self.spot:
            return self.spot[value].at
        bind = self.lazy.get(value)
        if bind is None or not isinstance(bind.op, Prim) or bind.op.name != "get":
            return None
        base, *subs = bind.op.args
        outer = self.place(base)
        if outer is None:
            return None
        dims = type_of(base).dims
        offset: Size = 0
        for k, d in enumerate(dims):
            extent = self.size(d)
            sub = self.size(subs[k]) if k < len(subs) else 0
            if extent is None or sub is None:
                return None
            offset = simple("+", simple("*", offset, extent), sub) if k else sub
        return At(outer.array, simple("+", outer.offset, offset))

    def length(self, var: Var, span: Span | None) -> Size:
        return total(self.sizes(var.type.dims, span)) if isinstance(var.type, Arr) else 1

    def note(self, bind: Bind, text: str) -> None:
        if bind.span is not None:
            self.notes.append((bind.span.text, text))


# ------------------------------------------------------------------------------------------------ helpers


def simple(operator: str, a: Size, b: Size) -> Size:
    """``(operator, a, b)``, where it is not simply one of them or a number."""
    if isinstance(a, int) and isinstance(b, int):
        return value((operator, a, b), {})
    if operator == "+" and a == 0 or operator == "*" and a == 1:
        return b
    if operator in ("+", "-") and b == 0 or operator in ("*", "//") and b == 1:
        return a
    if operator == "*" and (a == 0 or b == 0) or operator == "-" and a == b:
        return 0
    if operator in ("==", "<=") and a == b:
        return 1
    if operator == "and" and 1 in (a, b):
        return b if a == 1 else a
    if operator == "max" and isinstance(a, tuple) and a[0] == "max" and b in a[1:]:
        return a
    return (operator, a, b)


def reduced(operator: str, sizes: Sequence[Size]) -> Size:
    """Several sizes put together."""
    whole = sizes[0]
    for size in sizes[1:]:
        whole = simple(operator, whole, size)
    return whole


def convex(size: Size, name: str) -> bool:
    """Whether a size is certainly largest where a name in it is least or largest: it is a largest of sums and multiples
    of it."""
    if isinstance(size, tuple) and size[0] in ("max", "+"):
        return convex(size[1], name) and convex(size[2], name)
    return affine(size, name)


def affine(size: Size, name: str) -> bool:
    """Whether a size is a multiple of a name and something to which that is added."""
    if not isinstance(size, tuple) or name not in names_of(size):
        return True
    operator, a, b = size
    if operator == "*" and name in names_of(a) and name in names_of(b):
        return False
    return operator in ("+", "-", "*") and affine(a, name) and affine(b, name)


def sizes_of(program: Program, data: Data) -> list[str]:
    """In words, the sizes of the program's parameters that arrays which are data are made with."""
    blocks = [program.body, *(f.body for f in functions_of(program.body) if f.body is not None)]
    binds = [b for block in blocks for b in all_binds(block)]
    said: dict[Atom, str] = {}
    for p in program.params:
        for k, d in enumerate(p.type.dims if isinstance(p.type, Arr) else ()):
            said.setdefault(d, f"the length of `{p.name}`" if k == 0 else f"the size of `{p.name}` along axis {k}")
    given: dict[Atom, list[Atom]] = {}  # what each parameter of a function is called with
    for op in (b.op for b in binds if type(b.op) is Apply):
        for p, a in zip(op.function.params, op.args):
            given.setdefault(p, []).append(a)
    todo = [a for b in binds if type(b.op) is Make and b.op.constructor.data is data for a in b.op.args]
    seen: dict[Atom, None] = {}
    while todo:
        a = todo.pop()
        if type(a) is Var and a.type == INT and a not in seen:
            seen[a] = None
            todo += given.get(a, ())
    return [text for d, text in said.items() if d in seen]


def one_of(cond: Size, a: Size, b: Size) -> Size:
    """``a`` where a size is not 0, else ``b``: both are computed."""
    cond = cond if isinstance(cond, tuple) and cond[0] in COMPARED.values() else simple("!=", cond, 0)
    return simple("+", simple("*", cond, a), simple("*", simple("==", cond, 0), b))


def with_name(size: Size, name: str, what: Size) -> Size:
    """A size with something else in a name's place."""
    if isinstance(size, tuple):
        return simple(size[0], with_name(size[1], name, what), with_name(size[2], name, what))
    return what if size == name else size
