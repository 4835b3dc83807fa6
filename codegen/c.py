"""Typed core to C99 that a person would have written.

``print_c(program)`` gives a ``CFunction``: one C function, the header that declares it, and how to call it. Where
arrays live is decided in ``lower.py``; here the plan is written down. What makes the text readable:

* a variable that the user named has a line of its own; other scalars that are used once are written into their use,
  if nothing that they read changes in between (``pending`` below);
* parentheses only where C's precedence asks for them;
* accumulators are plain locals, updated in place; the value of an ``if`` is assigned in its branches;
* each line carries the form of the model that it came from.

``CPrinter`` is made to be overridden: the CUDA printer replaces the function's head, declarations and literals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hyad.core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Node,
    Prim,
    Program,
    Scalar,
    Tree,
    Type,
    Var,
    all_binds,
    atoms_of,
)
from hyad.errors import CompileError, Span
from hyad.primitives import PRIMITIVES, c_form
from hyad.reader import deep

from .cfunction import CFunction, CParam
from .lower import Buffer, Extreme, Names, Place, Quotient, is_array, plan, type_of, uses

KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register"
    " restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true"
    " false asm typeof class new delete this template namespace operator private public protected".split()
)
LIBRARY = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma"
    " fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf"
    " nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn signbit sin sinh sqrt tan"
    " tanh tgamma trunc isnan isinf isfinite isnormal fpclassify INFINITY NAN HUGE_VAL NULL memcpy memset memmove"
    " memcmp strlen work size_t ptrdiff_t errno".split()
)
RESERVED = KEYWORDS | LIBRARY | frozenset(f"{name}f" for name in LIBRARY)
FUNCTION_RESERVED = RESERVED | frozenset(
    "main abs labs llabs div exit abort malloc calloc realloc free printf puts rand srand system time clock gamma"
    " signal index y0 y1 yn j0 j1 jn read write open close send select link round pause sleep raise remove"
    " rename signgam qsort bsearch getenv atof atoi strtod scanf drem significand gammaf pow10 exp10 sincos".split()
)

WIDTH = 100  # of a line of code
SUBSCRIPT = 9  # an Int expression no longer than this is written out at each use
FOLDED = 64  # an expression longer than this has a line of its own

# C's precedence levels, loosest first
COMMA, ASSIGN, TERNARY, OR, AND, BITS, EQUAL, ORDER, SHIFT, ADD, MUL, UNARY, PRIMARY = range(13)
_BINARY = {"||": OR, "&&": AND, "|": BITS, "^": BITS, "&": BITS, "==": EQUAL, "!=": EQUAL}
_BINARY |= {"<": ORDER, "<=": ORDER, ">": ORDER, ">=": ORDER, "<<": SHIFT, ">>": SHIFT, "+": ADD, "-": ADD}
_BINARY |= {"*": MUL, "/": MUL, "%": MUL, "?": TERNARY, ":": TERNARY}
_TOKEN = re.compile(r"\s*(\{\d+\}|[A-Za-z_]\w*|\d[\w.]*|\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>!~?:(),&|^.\[\]])")


@dataclass(frozen=True, slots=True)
class Expr:
    """A C expression, how tightly it binds, and the memory and variables in it that may change.

    ``update`` is (operator, left, right) where it reads ``left op right``, for ``left op= right``.
    """

    text: str
    prec: int = PRIMARY
    reads: frozenset[Any] = frozenset()
    update: tuple[str, str, str] | None = None

    def at(self, level: int, leftmost: bool = True) -> str:
        """The text as an operand that must bind at least as tightly as ``level``."""
        return f"({self.text})" if self.prec < level or (not leftmost and self.text.startswith("-")) else self.text


def _positive(e: Expr) -> Expr:
    """A product or primary that starts with a minus, without it."""
    return Expr(e.text[1:], PRIMARY if e.prec == UNARY else e.prec, e.reads)


@lru_cache(maxsize=None)
def _form(template: str) -> tuple[int, tuple[tuple[int, bool], ...], tuple[str, ...]]:
    """A C form's own precedence; for each operand the level that it must have and whether it starts the form; and the
    form's operators outside parentheses."""
    tokens = [""] + _TOKEN.findall(template) + [""]
    level, own, operators = 0, PRIMARY, []
    wanted: dict[int, tuple[int, bool]] = {}
    for k in range(1, len(tokens) - 1):
        token, before, after = tokens[k], tokens[k - 1], tokens[k + 1]
        if token in "([":
            level += 1
        elif token in ")]":
            level -= 1
        prefix = before in ("", "(", ",", "[") or before in _BINARY or before in ("!", "~")
        if token in ("!", "~") or (token in ("-", "+") and prefix):
            own = min(own, UNARY) if level == 0 else own
        elif token in _BINARY and level == 0:
            own = min(own, _BINARY[token])
            operators.append(token)
        if token.startswith("{"):
            need = ASSIGN
            if before in _BINARY:
                unary = before in ("-", "+") and (tokens[k - 2] in ("", "(", ",", "[") or tokens[k - 2] in _BINARY)
                need = max(need, UNARY + 1 if unary else _operand(before, right=True))
            elif before in ("!", "~"):
                need = UNARY + 1
            elif before == ")":  # a cast
                need = UNARY
                own = min(own, UNARY) if level == 0 else own
            if after in _BINARY:
                need = max(need, _operand(after, right=False))
            number = int(token[1:-1])
            old = wanted.get(number, (ASSIGN, True))
            wanted[number] = (max(old[0], need), old[1] and (need == ASSIGN or before in ("", "(", ",")))
    return own, tuple(wanted.get(k, (ASSIGN, True)) for k in range(max(wanted, default=-1) + 1)), tuple(operators)


def _operand(operator: str, right: bool) -> int:
    """The level of an operand. Comparisons and logic take no operand of their own kind: compilers warn."""
    level = _BINARY[operator]
    if level in (EQUAL, ORDER):
        return SHIFT
    if level in (OR, AND):
        return EQUAL
    if level == TERNARY:
        return OR
    return level + 1 if right else level


@dataclass(frozen=True, slots=True)
class Line:
    depth: int
    text: str
    span: Span | None = None
    view: Var | None = None  # declares the pointer of this view, and goes if nothing is read through it


def print_c(
    program: Program, *, dtype: str = "f64", name: str | None = None, line_directives: bool = False
) -> CFunction:
    """A typed program as C.

    ``dtype`` is "f64" or "f32"; ``name`` the C function's, else the model's; ``line_directives`` puts ``#line`` before
    the statements, so that a debugger steps through the model. Raises CompileError where a primitive has no C form or
    an array's size is not known before the call.
    """
    return deep(lambda: CPrinter(program, dtype=dtype, name=name, line_directives=line_directives).function())


class CPrinter:
    """Prints one program. ``function()`` is the whole; the small methods below it are what another target overrides."""

    header_suffix = ".h"

    def __init__(self, program: Program, *, dtype: str = "f64", name: str | None = None, line_directives: bool = False):
        self.plan = plan(program)
        self.program = self.plan.program
        self.dtype = dtype
        self.line_directives = line_directives
        self.uses = uses(self.program)
        self.names = Names(self.reserved())
        self.names.enter()
        self.name = Names(FUNCTION_RESERVED).fresh(name or self.program.name or "model")
        self.names.taken.add(self.name)
        self.lines: list[Line] = []
        self.depth = 1
        self.span: Span | None = None
        self.value: dict[Var, Expr] = {}  # what each scalar variable is written as
        self.slot: dict[Var, str] = {}  # scalar variables that lie in a C variable which may change
        self.destination: dict[Var, str] = {}  # scalar variables that are to be built in this C variable
        self.pending: dict[Var, tuple[Expr, Span | None]] = {}  # expressions waiting for their one use
        self.readers: dict[Any, dict[Var, None]] = {}  # what may change -> the pending expressions that read it
        self.buffer_name: dict[Buffer, str] = {}
        self.tenant: dict[Any, Buffer] = {}  # whose each piece of the workspace is
        self.swapped: dict[Buffer, str] = {}  # accumulators that change places with their next value
        self.pointer: dict[Var, str] = {}  # views that have a C variable
        self.followed: set[Var] = set()  # those of them that are read through it
        self.here: set[Var] = set()  # used once, in this very block
        self.stable: dict[Var, Expr] = {}  # constants that hold what a changing variable was
        self.made: dict[Atom, Span | None] = {}  # the form that each scalar came from
        self.scopes: list[list[Var]] = [[]]  # the keys of ``stable`` that each open C scope declared
        self.indices: set[Var] = set()  # loop indices: never negative
        self.initialised: Buffer | None = None  # declared together with its values
        self.forms: dict[Any, tuple[str, list[int], list[int]]] = {}  # of primitives, at operand types
        self.support: dict[str, None] = {}
        self.tables: list[str] = []
        self.checks: list[tuple[str, str, Span | None]] = []

    # ------------------------------------------------------------------ what a target overrides

    def reserved(self) -> Iterable[str]:
        return RESERVED

    def ctype(self, elem: Scalar) -> str:
        if elem == REAL:
            return "double" if self.dtype == "f64" else "float"
        return "long long" if elem == INT else "int"

    def real_literal(self, value: float) -> Expr:
        """A real number that reads back as the same one."""
        value = float(value)
        if self.dtype == "f32":
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
        if math.isnan(value):
            return Expr("NAN")
        if math.isinf(value):
            return Expr("INFINITY") if value > 0 else Expr("-INFINITY", UNARY)
        text = repr(value) if self.dtype == "f64" else str(np.float32(value)) + "f"
        return Expr(text, UNARY if text.startswith("-") else PRIMARY)

    def literal(self, value: Any, t: Type) -> Expr:
        if t == REAL:
            return self.real_literal(value)
        if value is None:
            return Expr("0")
        number = int(value)
        if number == -(2**63):
            return Expr("(-9223372036854775807 - 1)")
        return Expr(str(number), UNARY if number < 0 else PRIMARY)

    def primitive(self, name: str, types: tuple[Scalar, ...]) -> tuple[str, tuple[str, ...]]:
        """The text of a primitive, and the support functions that it calls."""
        if name == "square":
            return "{0}*{0}", ()
        return c_form(PRIMITIVES[name], types, f32=self.dtype == "f32")

    def loop_head(self, index: str, count: str) -> str:
        return f"for (long long {index} = 0; {index} < {count}; {index}++) {{"

    def table(self, elem: Scalar, name: str, length: int, values: str) -> str:
        return f"static const {self.ctype(elem)} {name}[{length}] = {{{values}}};"

    def workspace_piece(self, elem: Scalar, name: str, offset: str) -> str:
        """The declaration of a piece of the workspace."""
        place = f"work + {offset}" if offset else "work"
        if elem != REAL:
            place = f"({self.ctype(elem)} *)({place})" if offset else f"({self.ctype(elem)} *)work"
        return f"{self.ctype(elem)} *{name} = {place};"

    def copy_block(
        self, function: str, to: str, source: str, dims: Sequence[Atom], elem: Scalar, guard: str = ""
    ) -> None:
        """Copies whole arrays or rows, if ``guard`` holds; ``function`` is "memmove" where both lie in one array."""
        self.emit(f"{guard}{function}({to}, {source}, {self.bytes(dims, elem)});")

    def clear_block(self, to: str, dims: Sequence[Atom], elem: Scalar) -> None:
        """Fills an array or a row with zeros."""
        self.emit(f"memset({to}, 0, {self.bytes(dims, elem)});")

    def failed(self, number: int) -> str:
        """The statement that ends the call because check ``number`` failed."""
        return f"return {number};"

    def prototype(self, fn: CFunction) -> str:
        return fn.prototype

    def includes(self, text: str) -> list[str]:
        found = []
        functions = set(re.findall(r"\b([a-z]\w*)\(|\b(INFINITY|NAN)\b", text))
        called = {a or b for a, b in functions}
        if any(c in LIBRARY or c.removesuffix("f") in LIBRARY for c in called if not c.startswith("mem")):
            found.append("#include <math.h>")
        if called & {"memcpy", "memset", "memmove"}:
            found.append("#include <string.h>")
        return found

    # ------------------------------------------------------------------------------- the whole

    def function(self) -> CFunction:
        program = self.program
        params = tuple(self.param(p) for p in program.params)
        dims = []
        for d in program.dims:
            if d not in self.value:
                dims.append(self.names.fresh(d.name))
                self.value[d] = Expr(dims[-1])
        params = tuple(CParam(c.name, c.elem, self.dims(p)) for c, p in zip(params, program.params))
        results = self.result_params()
        has_work = bool(self.plan.pools)
        fallible = any(isinstance(b.op, Check) for b in all_binds(program.body))
        frame = CFunction(self.name, params, results, tuple(dims), fallible, "" if has_work else None, dtype=self.dtype)
        self.offsets, total = self.layout()
        self.top(frame)
        body = self.finish(self.lines)
        fn = CFunction(
            self.name,
            params,
            results,
            tuple(dims),
            fallible,
            total if has_work else None,
            has_work and total.isdigit(),
            tuple(self.checks),
            dtype=self.dtype,
        )
        return replace(fn, source=self.source(fn, body), header=self.header(fn))

    def param(self, p: Var) -> CParam:
        name = self.names.fresh(p.name)
        if isinstance(p.type, Arr):
            self.buffer_name[self.plan.place[p].buffer] = name
            return CParam(name, _ELEM[p.type.elem.name], ())
        self.value[p] = Expr(name)
        return CParam(name, _ELEM.get(p.type.name, "int"))

    def dims(self, p: Var) -> tuple[int | str, ...]:
        return tuple(self.extent(d, p.span) for d in p.type.dims) if isinstance(p.type, Arr) else ()

    def extent(self, d: Atom, span: Span | None) -> int | str:
        """A dim of a parameter or a result: a number, or C over the dims and the Int parameters."""
        if isinstance(d, Const):
            return int(d.value)
        size = self.plan.sizes.exact.get(d)
        if size is None:
            raise CompileError(
                "the size of this result is not known before the call",
                span,
                "make its size a number, a dim of an argument, or an Int argument, or an expression of those",
            )
        expr = self.polynomial(size, clamp=False)
        return int(expr.text) if expr.text.isdigit() else expr.at(PRIMARY)

    def polynomial(self, size: dict, clamp: bool = True) -> Expr:
        """A size as C. An Int parameter may be negative, which counts as none (``clamp``)."""
        terms: list[tuple[int, str]] = []
        for key, factor in sorted(size.items(), key=lambda t: (-len(t[0]), [self.plan.sizes.order[s] for s in t[0]])):
            factors = [self.symbol(s, clamp) for s in key]
            if abs(factor) != 1 or not factors:
                factors.insert(0, str(abs(factor)))
            terms.append((factor, "*".join(factors)))
        if not terms:
            return Expr("0")
        terms.sort(key=lambda t: t[0] < 0)
        text = ("-" if terms[0][0] < 0 else "") + terms[0][1]
        text += "".join(f" {'-' if f < 0 else '+'} {t}" for f, t in terms[1:])
        simple = len(terms) == 1 and terms[0][0] > 0
        if simple and text.startswith("(") and len(size) == 1 and isinstance(next(iter(size))[0], Quotient):
            if next(iter(size.values())) == 1 and len(next(iter(size))) == 1:
                return Expr(text[1:-1], MUL)
        return Expr(text, (PRIMARY if "*" not in text and "/" not in text else MUL) if simple else ADD)

    def symbol(self, s: Any, clamp: bool) -> str:
        if isinstance(s, Extreme):
            a, b = (self.polynomial(dict(terms), clamp).at(SHIFT) for terms in (s.a, s.b))
            return f"({a} {'<' if s.name == 'min' else '>'} {b} ? {a} : {b})"
        if isinstance(s, Quotient):
            return f"({self.polynomial(dict(s.terms), clamp).at(MUL)}/{s.by})"
        name = self.value[s].text
        return f"({name} > 0 ? {name} : 0)" if clamp and s in self.program.params else name

    def result_params(self) -> tuple[CParam, ...]:
        out = []
        body = self.program.body
        labels = list(self.program.names or _labels(self.program.out))
        for k, r in enumerate(body.results):
            t = type_of(r)
            wanted = "out" if len(body.results) == 1 else f"out{k}"
            if len(body.results) > 1:
                if k < len(labels) and labels[k]:
                    wanted = labels[k]
                elif isinstance(r, Var) and (r.given or not r.name.isascii()) and r not in self.program.params:
                    wanted = r.name
            name = self.names.fresh(wanted)
            if isinstance(t, Arr):
                self.buffer_name[self.plan.results[k]] = name
                dims = tuple(self.extent(d, getattr(r, "span", None)) for d in t.dims)
                out.append(CParam(name, _ELEM[t.elem.name], dims))
            else:
                out.append(CParam(name, _ELEM.get(t.name, "int")))
        return tuple(out)

    def layout(self) -> tuple[dict[Any, tuple[dict, dict]], str]:
        """For each pool of the workspace its offset and the size of its pieces, and the total size as C."""
        offset: dict = {}
        offsets = {}
        for key in sorted(self.plan.pools, key=lambda k: (k[0] != "Int", len(k[1]) != 1 or k[1][0][0] != ())):
            elem, terms = key
            size = dict(terms)
            if elem == "Int" and self.dtype == "f32":
                size = {k: 2 * c for k, c in size.items()}
            offsets[key] = (dict(offset), size)
            for k, c in size.items():
                offset[k] = offset.get(k, 0) + c * self.plan.pools[key]
        return offsets, self.polynomial(offset).text

    def top(self, frame: CFunction) -> None:
        body = self.program.body
        self.statements(body, {})
        exprs = []
        for k, r in enumerate(body.results):
            if not is_array(r):
                exprs.append((frame.results[k], self.operand(r), self.made.get(r)))
        self.flush_all()
        self.move(body)
        for result, expr, span in exprs:
            if frame.returns_value:
                self.emit(f"return {expr.text};", span)
            else:
                self.emit(f"*{result.name} = {expr.text};", span)
        if frame.fallible:
            self.emit("return 0;")

    # ------------------------------------------------------------------------------ statements

    def emit(self, text: str, span: Span | None = None) -> None:
        self.lines.append(Line(self.depth, text, span or self.span))

    def enter(self) -> None:
        self.names.enter()
        self.scopes.append([])
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1
        self.names.leave()
        for var in self.scopes.pop():
            del self.stable[var]

    def captured(self) -> list[Line]:
        """Start a fresh list of lines; the caller puts the old one back."""
        old, self.lines = self.lines, []
        return old

    def statements(self, block: Block, destinations: dict[int, str]) -> None:
        """A block's bindings; ``destinations`` are the C variables that its results may be built in."""
        once = self.used_once(block)
        outer, self.here = self.here, once
        makers = {v: b for b in block.binds if isinstance(b.op, (If, Loop)) for v in b.vars}
        for k, name in destinations.items():
            r = block.results[k]
            if r in makers and self.uses.get(r) == 1:
                self.destination[r] = name
        for bind in block.binds:
            self.span = bind.span
            op = bind.op
            for buffer in self.plan.declare.get(bind, ()):
                self.declare(buffer, bind)
            if isinstance(op, Prim):
                self.prim(bind, op)
            elif isinstance(op, If):
                self.conditional(bind, op)
            elif isinstance(op, Loop):
                self.loop(bind, op)
            elif isinstance(op, Check):
                self.check(bind, op)
        self.here = outer

    def used_once(self, block: Block) -> set[Var]:
        """The variables that are used once and in this block itself, not in a region inside it."""
        once: set[Var] = set()
        for bind in block.binds:
            once.update(a for a in atoms_of(bind.op) if isinstance(a, Var) and self.uses.get(a) == 1)
        once.update(a for a in block.results if isinstance(a, Var) and self.uses.get(a) == 1)
        return once

    def check(self, bind: Bind, op: Check) -> None:
        a, b = self.operand(op.a), self.operand(op.b)
        if op.relation == "in":
            failure = f"{a.at(SHIFT)} >= {b.at(SHIFT)}"
            if op.a not in self.indices and not (isinstance(op.a, Const) and op.a.value >= 0):
                failure = f"{a.at(SHIFT)} < 0 || {failure}"
        else:
            failure = f"{a.at(SHIFT)} {({'==': '!=', '<': '>=', '<=': '>'})[op.relation]} {b.at(SHIFT)}"
        self.checks.append((op.kind, op.message, bind.span))
        self.emit(f"if ({failure}) {self.failed(len(self.checks))}")

    # -------------------------------------------------------------- scalars and where they wait

    def operand(self, atom: Atom) -> Expr:
        """An atom as an expression; a pending one is handed out, once."""
        if isinstance(atom, Const):
            return self.literal(atom.value, type_of(atom))
        waiting = self.pending.pop(atom, None)
        if waiting is not None:
            self.forget(atom, waiting[0])
            return waiting[0]
        return self.value[atom]

    def forget(self, var: Var, expr: Expr) -> None:
        for r in expr.reads:
            self.readers[r].pop(var, None)
            if not self.readers[r]:
                del self.readers[r]

    def wait(self, var: Var, expr: Expr) -> None:
        self.pending[var] = (expr, self.span)
        for r in expr.reads:
            self.readers.setdefault(r, {})[var] = None

    def settle(self, var: Var, expr: Expr) -> None:
        """A new scalar: wait for its use, or have a line of its own."""
        self.made[var] = self.span
        if var.type == INT and not var.given and not expr.reads and len(expr.text) <= SUBSCRIPT:
            self.value[var] = expr
            return
        alone = var.given or var not in self.here or len(expr.text) > FOLDED
        if alone:
            self.define(var, expr)
        else:
            self.wait(var, expr)

    def define(self, var: Var, expr: Expr, span: Span | None = None) -> Expr:
        name = self.names.fresh(var.name)
        self.emit(f"const {self.ctype(var.type)} {name} = {expr.text};", span)
        self.value[var] = Expr(name)
        return self.value[var]

    def materialise(self, var: Var) -> None:
        """Give a pending expression its line now."""
        expr, span = self.pending.pop(var)
        self.forget(var, expr)
        self.define(var, expr, span)

    def changes(self, what: Any) -> None:
        """What is about to be written: pending expressions that read it go first."""
        for var in list(self.readers.get(what, ())):
            self.materialise(var)

    def flush_all(self) -> None:
        """Before a region, or the end: whatever reads something that may change goes first."""
        for what in list(self.readers):
            self.changes(what)

    def fixed(self, atom: Atom) -> Expr:
        """An atom that will be written more than once: never a pending expression, never a variable that changes."""
        if isinstance(atom, Var):
            if atom in self.pending:
                self.materialise(atom)
            if atom in self.slot and atom not in self.stable:
                name = self.names.fresh(atom.name)
                self.emit(f"const {self.ctype(atom.type)} {name} = {self.value[atom].text};")
                self.stable[atom] = Expr(name)
                self.scopes[-1].append(atom)
        return self.operand_of(atom)

    def fit(self, atoms: Sequence[Atom]) -> list[Expr]:
        """Operands for one line: the longest pending ones get lines of their own until the rest is short enough."""
        waiting = {a: len(self.pending[a][0].text) for a in atoms if isinstance(a, Var) and a in self.pending}
        total = sum(waiting.values())
        for var in sorted(waiting, key=waiting.__getitem__, reverse=True):
            if total <= WIDTH - 20:
                break
            self.materialise(var)
            total -= waiting[var] - 2
        return [self.operand(a) for a in atoms]

    # ----------------------------------------------------------------------------- expressions

    def fill(self, template: str, operands: Sequence[Expr]) -> Expr:
        """A C form with its operands in, parenthesised where needed."""
        signed = self.signed(template, operands)
        if signed is not None:
            return signed
        own, wanted, operators = _form(template)
        parts = [e.at(*wanted[k]) if k < len(wanted) else e.text for k, e in enumerate(operands)]
        reads = frozenset().union(*(e.reads for e in operands)) if operands else frozenset()
        update = None
        if len(operators) == 1 and operators[0] in "+-*/" and len(operands) == 2 and own in (ADD, MUL):
            if re.fullmatch(r"\{0\} ?[-+*/] ?\{1\}", template):
                update = (operators[0], operands[0].text, operands[1].text)
        return Expr(template.format(*parts), own, reads, update)

    def signed(self, template: str, operands: Sequence[Expr]) -> Expr | None:
        """Minus signs as a person puts them: ``x + (-2.0*y)`` is ``x - 2.0*y``, ``x*(-y)`` is ``-x*y``. Every rewrite
        here is exact, for a sign passes through products and quotients unrounded. None where there is none to move."""
        reads = frozenset().union(*(e.reads for e in operands)) if operands else frozenset()
        minus = [e.text.startswith("-") and e.prec >= MUL and "%" not in e.text for e in operands]
        last = operands[-1] if operands else None
        if template == "-{0}":
            if minus[0]:
                return replace(_positive(last), reads=reads)
            multiple = last.prec == MUL and "%" not in last.text
            return Expr(f"-{last.text}", MUL, reads) if multiple else Expr(f"-{last.at(UNARY)}", UNARY, reads)
        if not any(minus) or template not in ("{0} + {1}", "{0} - {1}", "{0}*{1}", "{0}/{1}"):
            return None
        a, b = operands
        if template in ("{0} + {1}", "{0} - {1}"):
            operator = template[4]
            if minus[1]:
                right = _positive(b).at(MUL)
                operator = "-" if operator == "+" else "+"
                return Expr(f"{a.at(ADD)} {operator} {right}", ADD, reads, (operator, a.text, right))
            if operator == "+" and b.prec >= MUL:
                return Expr(f"{b.text} - {_positive(a).at(MUL)}", ADD, reads, ("-", b.text, _positive(a).at(MUL)))
            return None
        if not minus[1]:
            return None
        operator, right = template[3], _positive(b)
        if operator == "*" and a.prec == PRIMARY and right.text[0].isdigit():
            return Expr(f"-{right.text}*{a.text}", MUL, reads)
        left = _positive(a).text if minus[0] else f"-{a.at(MUL)}"
        return Expr(f"{left}{operator}{right.at(UNARY)}", MUL, reads)

    def converted(self, op: Prim) -> tuple[str, list[Expr]]:
        """The form of a primitive and its operands; Int operands of a real one are made real where C would not."""
        types = tuple(type_of(a) for a in op.args)
        known = self.forms.get((op.name, types))
        if known is None:
            match = PRIMITIVES[op.name].result(types)
            wanted = match[0] if match else types
            template, support = self.primitive(op.name, wanted)
            self.support.update(dict.fromkeys(support))
            again = [k for k in range(len(types)) if template.count(f"{{{k}}}") > 1]
            promoted = [k for k, (t, w) in enumerate(zip(types, wanted)) if t == INT and w == REAL]
            known = self.forms[op.name, types] = template, again, promoted
        template, again, promoted = known
        for k in again:
            if op.args[k] in self.pending:
                self.materialise(op.args[k])
        operands = self.fit(op.args)
        for k in promoted:
            if isinstance(op.args[k], Const):
                operands[k] = self.real_literal(op.args[k].value)
            elif REAL not in types and _form(template)[2]:
                operands[k] = Expr(f"({self.ctype(REAL)}){operands[k].at(UNARY)}", UNARY, operands[k].reads)
        return template, operands

    def prim(self, bind: Bind, op: Prim) -> None:
        var = bind.vars[0]
        if isinstance(var.type, Arr):
            self.array_prim(bind, op, var)
            return
        if op.name == "get":
            subs = self.fit(op.args[1:])
            expr = self.element(op.args[0], subs)
        elif op.name in ("undef", "zeros"):
            expr = self.literal(0, var.type)
        elif op.name == "select":
            expr = self.fill("{0} ? {1} : {2}", self.fit(op.args))
        else:
            template, operands = self.converted(op)
            expr = self.fill(template, operands)
        if op.name == "undef":
            self.value[var] = expr
        else:
            self.settle(var, expr)

    # ---------------------------------------------------------------------------------- memory

    def element(self, array: Atom, subs: Sequence[Expr]) -> Expr:
        """An element of an array as an expression, and as what can be assigned to."""
        base, offset, buffer, reads = self.address(array, subs)
        own = frozenset({buffer}) if buffer.kind in ("own", "result") else frozenset()
        return Expr(f"{base}[{offset.text if offset else '0'}]", PRIMARY, own | reads)

    def address(self, array: Atom | Place, subs: Sequence[Expr] = ()) -> tuple[str, Expr | None, Buffer, frozenset]:
        """The C pointer, the offset of what ``subs`` select (None: zero), the buffer, what the offset reads."""
        place = array if isinstance(array, Place) else self.plan.of(array)
        root = self.plan.resolve(place)[0]
        buffer, path, dims = place.buffer, place.subs, place.buffer.dims
        while buffer.home is not None and buffer not in self.swapped:
            outer = buffer.home
            path, dims = outer.subs + path, outer.buffer.dims[: len(outer.subs)] + dims
            buffer = outer.buffer
        exprs = [*(self.operand_of(a) for a in path), *subs]
        base = self.swapped.get(buffer) or self.buffer_name.get(buffer)
        if base is None:
            base = self.declare_table(buffer)
        if isinstance(array, Var) and array in self.pointer:
            self.followed.add(array)
            base, exprs, dims = self.pointer[array], list(subs), array.type.dims
        offset = self.flat(exprs, dims)
        reads = frozenset().union(*(e.reads for e in exprs)) if exprs else frozenset()
        return base, offset, root, reads

    def operand_of(self, atom: Atom) -> Expr:
        """A subscript of a view or of a home: written out again at each use."""
        if isinstance(atom, Var):
            return self.stable.get(atom) or self.value[atom]
        return self.literal(atom.value, type_of(atom))

    def flat(self, subs: Sequence[Expr], dims: Sequence[Atom]) -> Expr | None:
        """Row-major: ``(i*m + j)*k + l``; fewer subscripts than dims are scaled to the row's start."""
        total: Expr | None = None
        for k, dim in enumerate(dims):
            if k > 0:
                total = self.times(total, self.operand_of(dim))
            if k < len(subs) and subs[k].text != "0":
                total = self.plus(total, subs[k])
        return total

    def plus(self, a: Expr | None, b: Expr) -> Expr:
        if a is None:
            return b
        if a.text.isdigit() and b.text.isdigit():
            return Expr(str(int(a.text) + int(b.text)))
        return Expr(f"{a.at(ADD)} + {b.at(ADD, leftmost=False)}", ADD, a.reads | b.reads)

    def times(self, a: Expr | None, b: Expr) -> Expr | None:
        if a is None:
            return None
        if a.text == "1" or b.text == "1":
            return b if a.text == "1" else a
        if a.text.isdigit() and b.text.isdigit():
            return Expr(str(int(a.text) * int(b.text)))
        if b.text.isdigit():
            a, b = b, a
        return Expr(f"{a.at(MUL)}*{b.at(UNARY, leftmost=False)}", MUL, a.reads | b.reads)

    def length(self, dims: Sequence[Atom]) -> Expr:
        """The number of elements: literals first, then the named dims."""
        total: Expr = Expr("1")
        number = math.prod(int(d.value) for d in dims if isinstance(d, Const))
        if number != 1:
            total = Expr(str(number))
        for d in dims:
            if not isinstance(d, Const):
                total = self.times(total, self.operand_of(d))
        return total

    def bytes(self, dims: Sequence[Atom], elem: Scalar) -> str:
        size = self.length(dims)
        kind = f"sizeof({self.ctype(elem)})"
        return kind if size.text == "1" else f"{size.at(MUL)}*{kind}"

    def pointer_to(self, array: Atom | Place) -> str:
        base, offset, _, _ = self.address(array)
        return f"{base} + {offset.at(ADD)}" if offset else base

    def declare(self, buffer: Buffer, bind: Bind) -> None:
        """A buffer's C variable: a pointer into the workspace, or a local array."""
        if buffer in self.buffer_name:
            return
        name = self.buffer_name[buffer] = self.names.fresh(buffer.var.name if buffer.var else "t")
        if buffer.slot is not None:
            former = self.tenant.get(buffer.slot)  # what still waits to be read from the memory that is used again
            if former is not None:
                self.changes(former)
            self.tenant[buffer.slot] = buffer
            offset, size = self.offsets[buffer.slot[0]]
            total = dict(offset)
            for k, c in size.items():
                total[k] = total.get(k, 0) + c * buffer.slot[1]
            text = self.polynomial({k: c for k, c in total.items() if c}).text
            self.emit(self.workspace_piece(buffer.elem, name, "" if text == "0" else text))
            return
        length = math.prod(int(d.value) for d in buffer.dims)
        start = f"{self.ctype(buffer.elem)} {name}[{max(length, 1)}]"
        op = bind.op
        own = isinstance(op, Prim) and self.plan.place[bind.vars[0]].buffer is buffer
        if own and op.name == "zeros":
            self.emit(f"{start} = {{0}};")
            self.initialised = buffer
        elif own and op.name == "array" and op.args and not is_array(op.args[0]):
            self.initialised = buffer
        else:
            self.emit(f"{start} = {{0}};" if buffer.partial or buffer.blank else f"{start};")

    def declare_table(self, buffer: Buffer) -> str:
        """A constant table, at the top of the function."""
        name = self.names.fresh(buffer.var.name if buffer.var else "table")
        self.buffer_name[buffer] = name
        self.names.scopes[-1] = [s for s in self.names.scopes[-1] if s[1] != name]  # visible in the whole function
        flat = np.asarray(buffer.values).reshape(-1).tolist() or [0]
        texts = [self.literal(v, buffer.elem).text for v in flat]
        text = self.table(buffer.elem, name, len(texts), ", ".join(texts))
        self.tables += _wrapped(text, WIDTH - 4)
        return name

    def copy(self, source: Atom | Place, target: Atom | Place) -> None:
        """``target = source``, whole arrays or rows; nothing where there is nothing to copy."""
        place = source if isinstance(source, Place) else self.plan.of(source)
        origin = self.plan.resolve(place)[0]
        if origin.blank:
            return
        to = target if isinstance(target, Place) else self.plan.of(target)
        buffer, path, dims = self.plan.resolve(to)
        self.changes(buffer)
        function = "memmove" if origin is buffer else "memcpy"
        to, source = self.pointer_to(target), self.pointer_to(source)
        self.copy_block(function, to, source, dims[len(path) :], buffer.elem)

    def move(self, block: Block) -> None:
        for move in self.plan.moves.get(block, ()):
            self.copy(move.source, move.target)

    def array_prim(self, bind: Bind, op: Prim, var: Var) -> None:
        place = self.plan.place[var]
        buffer, path, dims = self.plan.resolve(place)
        if op.name == "get":
            self.view(var, op)
        elif op.name == "zeros":
            if self.initialised is not place.buffer:
                self.changes(buffer)
                self.clear_block(self.pointer_to(place), dims[len(path) :], buffer.elem)
        elif op.name == "array":
            self.array(var, op, place, buffer)
        elif op.name in ("update", "add-at"):
            self.store(bind, op, var)

    def view(self, var: Var, op: Prim) -> None:
        """A row: subscripts to be written out at each use, or a pointer where a person named it."""
        for a in op.args[1:]:
            self.fixed(a)
        if var.given and self.uses.get(var, 0) > 1:
            text = self.pointer_to(var)
            name = self.names.fresh(var.name)
            declaration = f"const {self.ctype(var.type.elem)} *{name} = {text};"
            self.lines.append(Line(self.depth, declaration, self.span, var))
            self.pointer[var] = name

    def array(self, var: Var, op: Prim, place: Place, buffer: Buffer) -> None:
        if buffer.kind == "table":
            return
        if self.initialised is place.buffer:
            values = ", ".join(self.as_type(a, buffer.elem).text for a in op.args)
            text = f"{self.ctype(buffer.elem)} {self.buffer_name[buffer]}[{len(op.args)}] = {{{values}}};"
            for line in _wrapped(text, WIDTH - 4 * self.depth):
                self.emit(line)
            return
        rows = bool(op.args) and is_array(op.args[0])
        if not rows:
            for a in op.args:  # what waits and reads this memory goes first; the elements' own texts are read now
                if isinstance(a, Var) and a in self.pending and buffer in self.pending[a][0].reads:
                    self.materialise(a)
        self.changes(buffer)
        for k, a in enumerate(op.args):
            index = Const(k, INT)
            target = Place(place.buffer, (*place.subs, index))
            if not rows:
                value = self.as_type(a, buffer.elem)
                base, offset, _, _ = self.address(target)
                self.emit(f"{base}[{offset.text if offset else '0'}] = {value.text};")
                continue
            source = self.plan.resolve(self.plan.of(a))
            where = self.plan.resolve(target)
            if source[0] is where[0] and _equal(source[1], where[1]):
                continue
            self.copy(a, target)

    def store(self, bind: Bind, op: Prim, var: Var) -> None:
        """``update`` and ``add-at``: one element or one row changes."""
        array, value, adding = op.args[0], op.args[-1], op.name == "add-at"
        if bind not in self.plan.in_place:
            self.copy(array, var)
        buffer = self.plan.root(var)
        if not is_array(value):
            *subs, new = self.fit(op.args[1:])
            self.changes(buffer)
            if type_of(value) == INT and buffer.elem == REAL and isinstance(value, Const):
                new = self.real_literal(value.value)
            self.emit(f"{self.element_of(var, subs)} {'+=' if adding else '='} {new.text};")
            return
        subs = [self.fixed(a) for a in op.args[1:-1]]
        self.changes(buffer)
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        dims = value.type.dims if isinstance(value, Var) else type_of(value).dims
        if adding:
            self.names.enter()
            k = self.names.fresh("k")
            source, start, _, _ = self.address(value)
            left = f"{base}[{self.plus(offset, Expr(k)).text}]"
            self.emit(self.loop_head(k, self.length(dims).text))
            self.emit(f"    {left} += {source}[{self.plus(start, Expr(k)).text}];")
            self.emit("}")
            self.names.leave()
        else:
            origin = self.plan.root(value)
            if origin.blank:
                return
            function = "memmove" if origin is buffer else "memcpy"
            to = f"{base} + {offset.at(ADD)}" if offset else base
            self.copy_block(function, to, self.pointer_to(value), dims, buffer.elem)

    def element_of(self, var: Var, subs: Sequence[Expr]) -> str:
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        return f"{base}[{offset.text if offset else '0'}]"

    # ------------------------------------------------------------------------------- control flow

    def assign(self, todo: list[tuple[str, Any, Expr, Scalar, Span | None]]) -> None:
        """Assignments that happen at once, in an order that lets none read what another has overwritten.

        Each is (target, what changes with it, value, type, form). A cycle goes through a constant.
        """
        todo = [t for t in todo if t[2].text != t[0]]
        while todo:
            for k, (_, what, *_) in enumerate(todo):
                if not any(what in other[2].reads for j, other in enumerate(todo) if j != k):
                    break
            else:
                k = 0
                for j in range(1, len(todo)):
                    target, changed, expr, elem, span = todo[j]
                    if todo[0][1] in expr.reads:
                        name = self.names.fresh(f"next-{target}" if target.isidentifier() else "next")
                        self.emit(f"const {self.ctype(elem)} {name} = {expr.text};")
                        todo[j] = (target, changed, Expr(name), elem, span)
            target, what, expr, _, span = todo.pop(k)
            self.changes(what)
            self.emit(f"{self.assignment(target, expr)};", span)

    def assignment(self, target: str, expr: Expr) -> str:
        if expr.update is not None:
            operator, left, right = expr.update
            if left == target:
                return f"{target} {operator}= {right}"
            if right == target and operator in "+*":
                return f"{target} {operator}= {left}"
        return f"{target} = {expr.text}"

    def slots_for(self, bind: Bind, op: If) -> dict[int, tuple[str, str]]:
        """For each scalar result of an ``if`` its C variable, and the declaration that it needs ('' for none)."""
        slots: dict[int, tuple[str, str]] = {}
        taken: set[str] = set()
        for k, var in enumerate(bind.vars):
            if isinstance(var.type, Arr):
                continue
            blank = any(_is_undef(block, block.results[k]) for block in (op.then, op.orelse))
            if var in self.destination:
                slots[k] = (self.destination[var], "")
                if blank:
                    slots[k] = (self.destination[var], f"{self.destination[var]} = {self.literal(0, var.type).text};")
                continue
            for block in (op.then, op.orelse):
                r = block.results[k]
                old = self.slot.get(r) if isinstance(r, Var) else None
                if old and r in self.plan.live.dies[bind] and old not in taken and r.type == var.type and not blank:
                    slots[k] = (old, "")
                    taken.add(old)
                    break
            else:
                name = self.names.fresh(var.name)
                zero = f" = {self.literal(0, var.type).text}" if blank else ""
                slots[k] = (name, f"{self.ctype(var.type)} {name}{zero};")
        return slots

    def conditional(self, bind: Bind, op: If) -> None:
        plain = not op.then.binds and not op.orelse.binds
        scalar = not any(isinstance(v.type, Arr) for v in bind.vars)
        if plain and scalar and bind.vars:
            self.ternaries(bind, op)
            return
        if self.short_circuit(bind, op):
            return
        cond = self.operand(op.cond)
        span = bind.span
        self.flush_all()
        slots = self.slots_for(bind, op)
        by_type: dict[str, list[str]] = {}
        for name, declaration in slots.values():
            if not declaration:
                continue
            kind, _, rest = declaration[:-1].rpartition(" ") if "=" not in declaration else ("", "", "")
            if kind:
                by_type.setdefault(kind, []).append(rest)
            else:
                self.emit(declaration)
        for kind, names in by_type.items():
            for text in _wrapped(f"{kind} {', '.join(names)};", WIDTH - 4 * self.depth):
                self.emit(text)
        then = self.branch(op.then, bind, slots)
        orelse = self.branch(op.orelse, bind, slots)
        self.span = span
        if not then and orelse:
            then, orelse, cond = orelse, [], _negated(cond)
        if not then and isinstance(op.cond, Var):  # the branches differ in nothing; what the condition reads is read
            self.emit(f"(void){cond.at(UNARY)};")
        if then:
            self.emit(f"if ({cond.text}) {{")
            self.lines += then
            if orelse and _is_one_if(orelse, self.depth + 1):
                first, *rest = orelse
                self.lines.append(Line(self.depth, f"}} else {first.text}", first.span))
                self.lines += [replace(line, depth=line.depth - 1) for line in rest]
            else:
                if orelse:
                    self.emit("} else {")
                    self.lines += orelse
                self.emit("}")
        for k, (name, _) in slots.items():
            self.value[bind.vars[k]] = Expr(name, PRIMARY, frozenset({name}))
            self.slot[bind.vars[k]] = name

    def branch(self, block: Block, bind: Bind, slots: dict[int, tuple[str, str]]) -> list[Line]:
        old = self.captured()
        self.enter()
        fresh = {k: name for k, (name, declaration) in slots.items() if declaration or bind.vars[k] in self.destination}
        self.statements(block, fresh)
        self.span = bind.span
        todo = []
        for k, (name, _) in slots.items():
            if not _is_undef(block, block.results[k]):
                var = bind.vars[k]
                r = block.results[k]
                todo.append((name, name, self.as_type(r, var.type), var.type, self.made.get(r)))
        self.move(block)
        self.assign(todo)
        self.leave()
        lines, self.lines = self.lines, old
        return lines

    def as_type(self, atom: Atom, t: Type) -> Expr:
        if isinstance(atom, Const) and t == REAL:
            return self.real_literal(atom.value)
        return self.operand(atom)

    def ternaries(self, bind: Bind, op: If) -> None:
        cond = self.operand(op.cond)
        if len(bind.vars) > 1 and cond.prec != PRIMARY:
            cond = self.define(Var("cond", BOOL), cond)
        for k, var in enumerate(bind.vars):
            then, orelse = op.then.results[k], op.orelse.results[k]
            values = [self.as_type(then, var.type), self.as_type(orelse, var.type)]
            expr = self.fill("{0} ? {1} : {2}", [cond, *values])
            if var in self.destination:
                name = self.destination[var]
                self.emit(f"{name} = {expr.text};")
                self.value[var], self.slot[var] = Expr(name, PRIMARY, frozenset({name})), name
            else:
                self.settle(var, expr)

    def short_circuit(self, bind: Bind, op: If) -> bool:
        """``(and a b)`` is an ``if`` whose ``b`` is evaluated only where ``a`` holds; so is C's ``a && b``. False where
        this is no such thing, or ``b`` needs lines of its own."""
        if len(bind.vars) != 1 or bind.vars[0].type != BOOL or bind.vars[0] in self.destination:
            return False
        if _is_literal(op.orelse, False):
            inner, operator, level = op.then, "&&", AND
        elif _is_literal(op.then, True):
            inner, operator, level = op.orelse, "||", OR
        else:
            return False
        if _size_if_plain(inner) > 8:
            return False
        old = self.captured()
        self.enter()
        self.statements(inner, {})
        value = self.operand(inner.results[0])
        self.leave()
        lines, self.lines = self.lines, old
        if lines:
            return False
        self.span = bind.span
        cond, *_ = self.fit([op.cond])
        text = f"{cond.at(EQUAL)} {operator} {value.at(EQUAL)}"
        self.settle(bind.vars[0], Expr(text, level, cond.reads | value.reads))
        return True

    def loop(self, bind: Bind, op: Loop) -> None:
        n = len(op.accs)
        span = bind.span
        count = self.operand(op.count)
        if count.reads or len(count.text) > 20:
            count = self.define(Var("count", INT), count)
        inits = {
            k: self.as_type(op.inits[k], op.accs[k].type) for k in range(n) if not isinstance(op.accs[k].type, Arr)
        }
        self.flush_all()
        taken: set[str] = set()
        for k, init in inits.items():
            acc, var, start = op.accs[k], bind.vars[k], op.inits[k]
            old = self.slot.get(start) if isinstance(start, Var) and start.type == acc.type else None
            dead = old and start in self.plan.live.dies[bind] and start not in self.plan.live.free[op.body]
            if var in self.destination:
                name = self.destination[var]
                self.emit(f"{name} = {init.text};")
            elif dead and old not in taken:
                name = old
                taken.add(old)
            else:
                name = self.names.fresh(acc.name if acc.given and not var.given else var.name)
                self.emit(f"{self.ctype(acc.type)} {name} = {init.text};")
            for v in (acc, var):
                self.value[v], self.slot[v] = Expr(name, PRIMARY, frozenset({name})), name
        for k in sorted(self.plan.copies[bind]):
            self.copy(op.inits[k], op.accs[k])
        swaps = self.plan.swaps[bind]
        before = dict(self.swapped)
        for k in swaps:
            place = self.plan.of(op.accs[k])
            elem = self.ctype(place.buffer.elem)
            home, name = self.pointer_to(place), self.names.fresh(op.accs[k].name)
            self.emit(f"{elem} *{name} = {home};")
            self.swapped[place.buffer] = name
        old_lines = self.captured()
        self.enter()
        index = self.names.fresh(op.index.name)
        self.value[op.index] = Expr(index)
        self.indices.add(op.index)
        for move in self.plan.early[op.body].values():
            self.copy(move.source, move.target)
        self.statements(op.body, {})
        self.span = span
        todo = []
        for k, r in enumerate(op.body.results):
            var = bind.vars[k]
            if k < n:
                if k in inits:
                    name = self.value[op.accs[k]].text
                    t = op.accs[k].type
                    todo.append((name, name, self.as_type(r, t), t, self.made.get(r)))
            elif not isinstance(type_of(r), Arr):
                place = self.plan.place[var]
                target = self.element_of(var, [Expr(index)])
                t = var.type.elem
                todo.append((target, self.plan.resolve(place)[0], self.as_type(r, t), t, self.made.get(r)))
        written = {self.plan.resolve(m.target)[0] for m in self.plan.moves[op.body]}
        for k, (target, what, expr, elem, form) in enumerate(todo):
            if written & expr.reads:
                name = self.names.fresh("next")
                self.emit(f"const {self.ctype(elem)} {name} = {expr.text};")
                todo[k] = (target, what, Expr(name), elem, form)
        self.move(op.body)
        self.assign(todo)
        self.span = span
        for k, made in swaps.items():
            old, new = self.swapped[self.plan.of(op.accs[k]).buffer], self.buffer_name[made]
            aside = self.names.fresh("swap")
            self.emit(f"{self.ctype(made.elem)} *{aside} = {old};")
            self.emit(f"{old} = {new};")
            self.emit(f"{new} = {aside};")
        self.leave()
        body, self.lines = self.lines, old_lines
        if body:
            self.emit(self.loop_head(index, count.at(SHIFT)), span)
            self.lines += body
            self.emit("}")
        last, self.swapped = self.swapped, before
        for k in swaps:
            place = self.plan.of(op.accs[k])
            home, name = self.pointer_to(place), last[place.buffer]
            dims, elem = place.buffer.dims, place.buffer.elem
            self.copy_block("memcpy", home, name, dims, elem, f"if ({name} != {home}) ")

    # --------------------------------------------------------------------------------- the text

    def finish(self, lines: list[Line]) -> list[str]:
        """Lines with their comments, or with ``#line``: a form of the model is quoted where code that came from it
        first stands, once (the adjoint of ``x`` is called ``x_bar``, and needs no second quotation)."""
        out: list[str] = []
        quoted: set[Any] = set()
        where: Any = None
        for line in lines:
            if line.view is not None and line.view not in self.followed:
                continue
            indent = "    " * line.depth
            text = indent + line.text
            span = line.span
            bare = line.text.startswith("}") or _DECLARATION.fullmatch(line.text)
            if span is not None and not bare:
                key = (id(span.source), span.start, span.end)
                if self.line_directives and where != (span.source.filename, span.line):
                    where = (span.source.filename, span.line)
                    out.append(f'#line {span.line} "{_c_string(span.source.filename)}"')
                if key not in quoted:
                    quoted.add(key)
                    comment = _comment(span.text, max(WIDTH + 10 - len(text), 24))
                    text += f"  /* {comment} */" if comment else ""
            if len(text) > WIDTH + 20 and "  /* " not in text:
                out += [indent + t for t in _wrapped(line.text, WIDTH - len(indent))]
            else:
                out.append(text)
            if self.line_directives and where is not None:
                where = (where[0], where[1] + 1)
        return out

    def source(self, fn: CFunction, body: list[str]) -> str:
        text = "\n".join(body)
        words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"/\*.*?\*/|#line.*", "", text)))
        unused = [p.name for p in fn.params if p.name not in words] + [d for d in fn.dims if d not in words]
        unused += [r.name for r in fn.results if not fn.returns_value and r.name not in words]
        silence = [f"    (void){name};" for name in unused]
        tables = [f"    {t}" for t in self.tables]
        support = "\n".join(self.support)
        parts = []
        heads = self.includes(support + "\n" + re.sub(r"/\*.*?\*/", "", text + "\n" + "\n".join(tables)))
        if heads:
            parts.append("\n".join(heads) + "\n")
        if support:
            parts.append(support)
        head = _wrapped(self.prototype(fn), WIDTH)
        parts.append("\n".join([*self.banner(fn), *head, "{", *tables, *silence, *([text] if text else []), "}", ""]))
        return "\n".join(parts)

    def banner(self, fn: CFunction) -> list[str]:
        """What the function computes and what its parameters mean, in at most six lines."""
        program = self.program
        doc = (program.doc or "").strip().split("\n")[0]
        form = _comment(program.span.text, 90) if program.span is not None else ""
        lines = [f"{fn.name}: {_comment(doc, 84)}" if doc else f"{fn.name}" + (f" = {form}" if form else "")]
        if doc and form:
            lines.append(form)
        shapes = [f"{p.name}[{']['.join(map(_bare, p.dims))}]" for p in (*fn.params, *fn.results) if p.dims]
        if shapes:
            lines.append(_shorten("arrays, row-major: " + ", ".join(shapes), 94))
        if fn.workspace is not None:
            lines.append(f"work: room for {fn.workspace} reals")
        if fn.fallible:
            lines.append("returns 0, or the number of the check that failed")
        if len(lines) == 1:
            return [f"/* {lines[0]} */"]
        return [f"/* {lines[0]}", *(f" * {t}" for t in lines[1:-1]), f" * {lines[-1]} */"]

    def header(self, fn: CFunction) -> str:
        guard = f"{fn.name.upper()}_H"
        out = [f"#ifndef {guard}", f"#define {guard}", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
        doc = _comment((self.program.doc or "").strip(), 400)
        out.append(f"/* {fn.name}" + (f": {doc}" if doc else ""))
        for p in fn.params:
            out.append(f" *   {p.name}: {self.described(p)}")
        for d in fn.dims:
            out.append(f" *   {d}: a size")
        for r in fn.results:
            where = "what comes back" if fn.returns_value else r.name
            out.append(f" *   {where}: {self.described(r)}, the result" + ("" if len(fn.results) == 1 else "'s part"))
        if fn.workspace is not None:
            macro = f"{fn.name.upper()}_WORK"
            aligned = ", aligned for a long long" if any(k[0] == "Int" for k in self.plan.pools) else ""
            arguments = [n for n in self.macro_arguments(fn)]
            call = f"{macro}({', '.join(arguments)})" if arguments else macro
            out.append(f" *   work: room for {call} elements that the function writes to{aligned}")
        if fn.fallible:
            out.append(" * Returns 0, or, with the results not written to the end:")
            for k, (kind, message, span) in enumerate(fn.checks, 1):
                place = f", line {span.line}" if span is not None else ""
                out.append(f" *   {k}: {kind}{place}: {_comment(message, 200)}")
        out[-1] += " */"
        if fn.workspace is not None:
            body = fn.workspace
            for n in arguments:
                body = re.sub(rf"\b{n}\b", f"({n})", body)
            out.append(f"#define {call} " + (body if re.fullmatch(r"\(\w+\)|\d+", body) else f"({body})"))
        out += ["#ifdef __cplusplus", "#define restrict", "#endif"] if "restrict" in fn.prototype else []
        out += _wrapped(fn.prototype + ";", WIDTH)
        out += ["#ifdef __cplusplus", "#undef restrict", "#endif"] if "restrict" in fn.prototype else []
        out += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
        return "\n".join(out)

    def macro_arguments(self, fn: CFunction) -> list[str]:
        """The sizes that the workspace depends on, in the order of the C parameters."""
        words = set(re.findall(r"[A-Za-z_]\w*", fn.workspace or ""))
        return [n for n in (*(p.name for p in fn.params), *fn.dims) if n in words]

    def described(self, p: CParam) -> str:
        kind = {"real": "real", "int": "integer", "bool": "truth value"}[p.elem]
        if not p.dims:
            return f"a {kind}" if kind != "integer" else "an integer"
        return f"{' x '.join(map(_bare if len(p.dims) == 1 else str, p.dims))} {kind}s" + (
            ", row-major" if len(p.dims) > 1 else ""
        )


_DECLARATION = re.compile(r"(double|float|long long|int) [\w, ]+;")
_ELEM = {"Real": "real", "Int": "int", "Bool": "bool"}


def _labels(tree: Tree, path: str = "") -> Iterable[str]:
    """A name for each leaf of a result made of records; '' where there is none."""
    if not isinstance(tree, Node):
        yield path
        return
    for k, item in enumerate(tree.items):
        if tree.keys is not None:
            key = tree.keys[k]
            yield from _labels(item, f"{path}_{key}" if path else str(key))
        else:
            yield from _labels(item, f"{path}_{k}" if path else "")


def _equal(a: Sequence[Atom], b: Sequence[Atom]) -> bool:
    return len(a) == len(b) and all(
        x is y or (isinstance(x, Const) and isinstance(y, Const) and x.value == y.value) for x, y in zip(a, b)
    )


def _is_literal(block: Block, value: bool) -> bool:
    """Whether a block is nothing but this truth value."""
    r = block.results[0]
    return not block.binds and isinstance(r, Const) and bool(r.value) is value


def _size_if_plain(block: Block) -> int:
    """How many scalar operations a block is, its own ``and`` and ``or`` included; 99 if it is anything else."""
    total = 0
    for bind in block.binds:
        if any(isinstance(v.type, Arr) for v in bind.vars) or total > 8:
            return 99
        if isinstance(bind.op, If):
            total += _size_if_plain(bind.op.then) + _size_if_plain(bind.op.orelse)
        elif not isinstance(bind.op, Prim):
            return 99
        total += 1
    return total


def _is_undef(block: Block, atom: Atom) -> bool:
    """Whether a block's result is an ``undef`` of its own."""
    for bind in block.binds:
        if atom in bind.vars:
            return isinstance(bind.op, Prim) and bind.op.name == "undef"
    return False


def _negated(cond: Expr) -> Expr:
    return Expr(f"!{cond.at(PRIMARY)}", UNARY, cond.reads)


def _is_one_if(lines: list[Line], depth: int) -> bool:
    """Whether lines are one ``if`` statement, to be joined to an ``else``."""
    if not lines[0].text.startswith("if (") or not lines[0].text.endswith("{"):
        return False
    flat = [line.text for line in lines[1:] if line.depth == depth]
    return bool(flat) and flat[-1] == "}" and all(t.startswith("} else") for t in flat[:-1])


def _bare(extent: int | str) -> str:
    """A size without the parentheses that make it an operand."""
    text = str(extent)
    return text[1:-1] if text.startswith("(") else text


def _shorten(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: max(width - 3, 1)].rstrip() + "..."


def _comment(text: str, width: int) -> str:
    """A form as one line that is safe in a C comment."""
    text = _shorten(text, width)
    return text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").rstrip("\\")


def _c_string(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _wrapped(text: str, width: int) -> list[str]:
    """A long line broken at commas; what follows is indented."""
    out: list[str] = []
    while len(text) > width:
        cut = text.rfind(", ", 8, width)
        if cut < 0:
            break
        out.append(text[: cut + 1])
        text = "    " + text[cut + 2 :]
    out.append(text)
    return out
