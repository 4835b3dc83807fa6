"""Atoms as C: literals, scalars and where they wait for their use, elements of arrays, sizes.

``OperandPrinter`` holds the state of one body that is being printed. A scalar that is used once waits as an
expression (``pending``) until its use or until something that it reads is about to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyad.core import (
    INT,
    REAL,
    Atom,
    Const,
    Prim,
    Program,
    Scalar,
    Type,
    Var,
    same,
    same_atoms,
)
from hyad.errors import NoCForm, Span
from hyad.program.primitives import PRIMITIVES, c_form, power_form, whole_power

from .expressions import (
    ADD,
    MUL,
    PRIMARY,
    SHIFT,
    UNARY,
    WIDTH,
    Expr,
    parse_form,
    plus,
    times,
    wrapped,
)
from .identifiers import Names
from .lower import Buffer, Place, Plan, plan, type_of, uses
from .ranges import overflows
from .sizes import Extreme, Quotient
from .vector import vectorised

DOUBLE_MAX, FLOAT_MAX = float(np.finfo(np.float64).max), float(np.finfo(np.float32).max)
SUBSCRIPT = 9  # an Int expression no longer than this is written out at each use
FOLDED = 64  # an expression longer than this has a line of its own
WHOLE = 80  # one that is all of what a line stores, if it is longer than this


@dataclass(frozen=True, slots=True)
class Line:
    depth: int
    text: str
    span: Span | None = None
    view: Var | None = None  # declares the pointer of this view, and goes if nothing is read through it


#: Logic without branches, which would keep a compiler from making vectors.
BITWISE = {"and": "{0} & {1}", "or": "{0} | {1}"}


class OperandPrinter:
    """What the lines of a body are made of. ``BodyPrinter`` goes on with the statements."""

    threads = 1
    thread = ""  # in a loop on several threads: the number of this one
    math = "libm"  # whose functions are called: the C library's, or "vector", those of vector.py
    abreast = False  # in a loop that calls functions on several numbers at once: with vector math
    serial = False  # in a loop whose iterations wait for each other's larger or smaller numbers
    lanes = False  # in a loop over lanes: of what is decided there by two conditions, both are asked
    far: str | None = None  # in a loop that can be run again: what notes arguments that those are not for

    def __init__(self, program: Program, *, dtype: str, reserved: Iterable[str]):
        self.plan = self.planned(program)
        self.program = self.plan.program
        self.dtype = dtype
        self.overflows = overflows(self.program)
        self.uses = uses(self.program)
        self.names = Names(reserved)
        self.names.enter()
        self.lines: list[Line] = []
        self.depth = 1
        self.span: Span | None = None
        self.value: dict[Var, Expr] = {}  # what each scalar variable is written as
        self.slot: dict[Var, str] = {}  # scalar variables that lie in a C variable which may change
        self.destination: dict[Var, str] = {}  # scalar variables that are to be built in this C variable
        self.pending: dict[Var, tuple[Expr, Span | None]] = {}  # expressions waiting for their one use
        self.readers: dict[Any, dict[Var, None]] = {}  # what may change -> the pending expressions that read it
        self.elements: set[Var] = set()  # scalars that are elements of arrays
        self.lone: set[Var] = set()  # those that are read alone, see ``miscompiled.py``
        self.read_first: set[Var] = set()  # and those that are read before a choice,
        self.ahead: frozenset[Var] = frozenset()  # of which these have been, before the branches that they stand in
        self.counts: dict[Var, Atom] = {}  # how many values each index of a loop around has
        self.buffer_name: dict[Buffer, str] = {}
        self.row_name: dict[Buffer, tuple[str, int, Expr | None]] = {}  # of which one row lies elsewhere
        self.tenant: dict[Any, Buffer] = {}  # whose each piece of the workspace is
        self.swapped: dict[Buffer, str] = {}  # accumulators that change places with their next value
        self.pointer: dict[Var, str] = {}  # views that have a C variable
        self.followed: set[Var] = set()  # those of them that are read through it, and other variables that are read
        self.here: set[Var] = set()  # used once, in this very block
        self.stored: set[Var] = set()  # those of them that are all of what a line stores
        self.positive: frozenset[Atom] = frozenset()  # what a check here has found not to be negative
        self.handed_out: set[Var] = set()  # scalars that a parameter of the result's name is set to
        self.stable: dict[Var, Expr] = {}  # constants that hold what a changing variable was
        self.made: dict[Atom, Span | None] = {}  # the form that each scalar came from
        self.scopes: list[list[Var]] = [[]]  # the keys of ``stable`` that each open C scope declared
        self.stack = 0  # the bytes of local arrays
        self.indices: set[Var] = set()  # loop indices: never negative
        self.moving: set[Buffer] = set()  # parameters that a tail call points elsewhere
        self.initialised: Buffer | None = None  # declared together with its values
        self.forms: dict[Any, tuple[str, list[int], list[int]]] = {}  # of primitives, at operand types
        self.support: dict[str, None] = {}
        self.tables: list[str] = []
        self.checks: list[tuple[str, str, Span | None]] = []

    # ------------------------------------------------------------------ what a target overrides

    def planned(self, program: Program) -> Plan:
        return plan(program, threads=self.threads, fixed=True)

    def ctype(self, elem: Scalar) -> str:
        if elem == REAL:
            return "double" if self.dtype == "f64" else "float"
        return "long long" if elem == INT else "int"

    def real_literal(self, value: float) -> Expr:
        """A real number that reads back as the same one."""
        value = float(value)
        if self.dtype == "f32":
            with np.errstate(over="ignore"):  # the largest double stands for the largest number, as in a search
                value = math.copysign(FLOAT_MAX, value) if abs(value) == DOUBLE_MAX else float(np.float32(value))
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

    def primitive(self, name: str, types: tuple[Scalar, ...], power: int | None = None) -> tuple[str, tuple[str, ...]]:
        """The text of a primitive, and the support functions that it calls; ``power``: its known exponent."""
        if name == "square":
            return "{0}*{0}", ()
        if power is not None:
            return power_form(power, f32=self.dtype == "f32")
        if self.lanes and name in BITWISE:
            return BITWISE[name], ()
        form, support = c_form(PRIMITIVES[name], types, f32=self.dtype == "f32", serial=self.serial)
        vector = self.math == "vector" and (self.abreast or support)
        return vectorised(form, support, self.far) if vector else (form, support)

    def support_text(self, text: str) -> str:
        """A function that printed code calls."""
        return text

    def table(self, elem: Scalar, name: str, length: int, values: str) -> str:
        return f"static const {self.ctype(elem)} {name}[{length}] = {{{values}}};"

    # ----------------------------------------------------------------------- lines and scopes

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

    # -------------------------------------------------------------- scalars and where they wait

    def operand(self, atom: Atom) -> Expr:
        """An atom as an expression; a pending one is handed out, once."""
        if type(atom) is Const:
            return self.literal(atom.value, type_of(atom))
        waiting = self.pending.pop(atom, None)
        if waiting is not None:
            expr, span = waiting
            self.forget(atom, expr)
            if span is not None and atom not in self.elements and _inside(self.span, span):
                self.span = span  # a line's form is the one around all that is computed in it
            return expr
        self.followed.add(atom)
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

    def settle(self, var: Var, expr: Expr, dear: bool = False, soft: bool = False) -> None:
        """A new scalar: wait for its use, or have a line of its own. A short integer is written wherever it is used, if
        it is not ``dear``; a name that differentiation gave (``soft``) says nothing where the value is stored."""
        self.made[var] = self.span
        if var.type == INT and not var.given and not expr.reads and len(expr.text) <= SUBSCRIPT and not dear:
            self.value[var] = expr
            return
        stored = var in self.stored
        named = var.given and var not in self.handed_out and not (soft and stored)
        alone = named or var not in self.here or len(expr.text) > (WHOLE if stored else FOLDED)
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
        pending = self.pending
        waiting = {a: len(pending[a][0].text) for a in atoms if type(a) is Var and a in pending} if pending else {}
        total = sum(waiting.values())
        if total > WIDTH - 20:
            for var in sorted(waiting, key=waiting.__getitem__, reverse=True):
                if total <= WIDTH - 20:
                    break
                self.materialise(var)
                total -= waiting[var] - 2
        return [self.operand(a) for a in atoms]

    def subscripts(self, array: Atom, atoms: Sequence[Atom]) -> list[Expr]:
        """Subscripts of an element. A quotient and its remainder by the length of a row are together what was divided,
        however far that is from the array's beginning: ``v[k/m*m + k % m]`` is ``v[k]``, as of an array reshaped."""
        dims, made, whole = type_of(array).dims, self.plan.integers, list(atoms)  # type: ignore[union-attr]
        for k in reversed(range(min(len(atoms), len(dims)) - 1)):
            last = k + 1  # what the subscripts from the next one on are together, as those before them are 0
            while last < len(atoms) - 1 and whole[last] == Const(0, INT):
                last += 1
            q, r = made.get(whole[k]), made.get(whole[last])  # type: ignore[call-overload]
            if q is None or r is None or (q.name, r.name) != ("//", "%") or not same_atoms(q.args, r.args):
                continue
            if self.is_product(q.args[1], dims[k + 1 : last + 1]) and q.args[0] not in self.pending:
                whole[k : last + 1] = [*[Const(0, INT)] * (last - k), q.args[0]]
        return self.fit(whole)

    def is_product(self, n: Atom, sizes: Sequence[Atom]) -> bool:
        """Whether an integer is the product of some sizes."""
        if len(sizes) == 1:
            return same(n, sizes[0])
        op = self.plan.integers.get(n)  # type: ignore[call-overload]
        if op is None or op.name != "*":
            return False
        for size, rest in ((sizes[0], sizes[1:]), (sizes[-1], sizes[:-1])):
            for a, b in (op.args, op.args[::-1]):
                if same(a, size) and self.is_product(b, rest):
                    return True
        return False

    def converted(self, op: Prim) -> tuple[str, list[Expr]]:
        """The form of a primitive and its operands; Int operands of a real one are made real where C would not."""
        types = tuple([type_of(a) for a in op.args])
        power = whole_power(op)
        key = op.name, types if power is None else power
        known = self.forms.get(key)
        if known is None:
            match = PRIMITIVES[op.name].result(types)
            wanted = match[0] if match else types
            try:
                template, support = self.primitive(op.name, wanted, power)
            except NoCForm as error:
                error.span = error.span or self.span
                raise
            self.support.update(dict.fromkeys(support))
            again = [k for k in range(len(types)) if template.count(f"{{{k}}}") > 1]
            promoted = [k for k, (t, w) in enumerate(zip(types, wanted)) if t == INT and w == REAL]
            known = self.forms[key] = template, again, promoted
        template, again, promoted = known
        for k in again:
            if op.args[k] in self.pending:
                self.materialise(op.args[k])
        operands = self.fit(op.args)
        for k in promoted:
            if isinstance(op.args[k], Const):
                operands[k] = self.real_literal(op.args[k].value)
            elif REAL not in types and parse_form(template)[2]:
                operands[k] = Expr(f"({self.ctype(REAL)}){operands[k].at(UNARY)}", UNARY, operands[k].reads)
        return template, operands

    def as_type(self, atom: Atom, t: Type) -> Expr:
        if isinstance(atom, Const) and t == REAL:
            return self.real_literal(atom.value)
        return self.operand(atom)

    # ---------------------------------------------------------------------------- places and sizes

    def element(self, array: Atom, subs: Sequence[Expr]) -> Expr:
        """An element of an array as an expression, and as what can be assigned to."""
        base, offset, buffer, reads = self.address(array, subs)
        own = frozenset({buffer}) if buffer.kind in ("own", "result") or buffer in self.moving else frozenset()
        return Expr(f"{base}[{offset.text if offset else '0'}]", PRIMARY, own | reads)

    def element_of(self, var: Var, subs: Sequence[Expr]) -> str:
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        return f"{base}[{offset.text if offset else '0'}]"

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
        elsewhere = None
        row = self.row_elsewhere(buffer, exprs)
        if row is not None:
            base, levels, elsewhere = row
            exprs, dims = exprs[levels:], dims[levels:]
        if isinstance(array, Var) and array in self.pointer:
            self.followed.add(array)
            base, exprs, dims = self.pointer[array], list(subs), array.type.dims
        offset = elsewhere or self.flat(exprs, dims)
        reads = frozenset().union(*(e.reads for e in exprs)) if exprs else frozenset()
        return base, offset, root, reads

    def row_elsewhere(self, buffer: Buffer, subs: Sequence[Expr]) -> tuple[str, int, Expr | None] | None:
        """Where the row of a buffer lies that begins at ``subs``, behind how many of these, and what is added, if that
        row lies elsewhere."""
        return self.row_name.get(buffer)

    def operand_of(self, atom: Atom) -> Expr:
        """A subscript of a view or of a home: written out again at each use."""
        if isinstance(atom, Var):
            self.followed.add(atom)
            return self.stable.get(atom) or self.value[atom]
        return self.literal(atom.value, type_of(atom))

    def flat(self, subs: Sequence[Expr], dims: Sequence[Atom]) -> Expr | None:
        """Row-major: ``(i*m + j)*k + l``; fewer subscripts than dims are scaled to the row's start."""
        total: Expr | None = None
        for k, dim in enumerate(dims):
            if k > 0:
                total = times(total, self.operand_of(dim))
            if k < len(subs) and subs[k].text != "0":
                total = plus(total, subs[k])
        return total

    def pointer_to(self, array: Atom | Place) -> str:
        base, offset, _, _ = self.address(array)
        return f"{base} + {offset.at(ADD)}" if offset else base

    def declare_table(self, buffer: Buffer) -> str:
        """A constant table, at the top of the function."""
        name = self.names.fresh(buffer.var.name if buffer.var else "table")
        self.buffer_name[buffer] = name
        self.names.scopes[-1] = [s for s in self.names.scopes[-1] if s[1] != name]  # visible in the whole function
        flat = np.asarray(buffer.values).reshape(-1).tolist() or [0]
        texts = [self.literal(v, buffer.elem).text for v in flat]
        text = self.table(buffer.elem, name, len(texts), ", ".join(texts))
        self.tables += wrapped(text, WIDTH - 4)
        return name

    def length(self, dims: Sequence[Atom]) -> Expr:
        """The number of elements: literals first, then the named dims."""
        total: Expr = Expr("1")
        number = math.prod(int(d.value) for d in dims if isinstance(d, Const))
        if number != 1:
            total = Expr(str(number))
        for d in dims:
            if not isinstance(d, Const):
                total = times(total, self.operand_of(d))
        return total

    def bytes(self, dims: Sequence[Atom], elem: Scalar) -> str:
        size = self.length(dims)
        kind = f"sizeof({self.ctype(elem)})"
        if size.text.isdigit():
            return kind if size.text == "1" else f"{size.text}*{kind}"
        return f"(size_t){size.at(UNARY)}*{kind}"

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


def _inside(inner: Span | None, outer: Span) -> bool:
    return inner is None or (inner.source is outer.source and outer.start <= inner.start and inner.end <= outer.end)
