"""The body of a C function: statements, arrays, control flow.

``BodyPrinter`` writes down one typed program's plan (``lower.py``) as lines, each with the form of the model that it
came from; ``c.py`` makes a function and its header of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from hyad.core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Scalar,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    same_atoms,
)
from hyad.errors import Span
from hyad.passes.threads import GRAIN, LINE, Polynomial, uneven

from .apart import (
    APART,
    CHOOSING,
    LANES,
    UNKNOWN,
    apart,
    calls_abreast,
    calls_waves,
    chooses,
    in_lanes,
    repeatable,
    serial,
)
from .blas import product
from .expressions import (
    ADD,
    AND,
    EQUAL,
    OR,
    PRIMARY,
    SHIFT,
    UNARY,
    WIDTH,
    Expr,
    added,
    all_reads,
    fill,
    integer,
    negated,
    plus,
    wrapped,
)
from .lower import Buffer, Place, is_array, is_zeros, type_of
from .miscompiled import (
    ALONE,
    IN_ORDER,
    READ_FIRST,
    WHOLE_LOOPS,
    WHOLE_PATTERNS,
    masked,
    overtaken,
    patterned,
    several,
    turned,
)
from .operands import WHOLE, Line, OperandPrinter
from .ranges import OVERFLOW
from .vector import by_library

_ADD = """\
static inline int hyad_add_overflows(long long a, long long b, long long *sum) {
#if defined(__GNUC__) && !defined(__CUDACC__)
    return __builtin_add_overflow(a, b, sum);
#else
    *sum = (long long)((unsigned long long)a + (unsigned long long)b);
    return b < 0 ? *sum >= a : *sum < a;
#endif
}
"""
_SUB = """\
static inline int hyad_sub_overflows(long long a, long long b, long long *difference) {
#if defined(__GNUC__) && !defined(__CUDACC__)
    return __builtin_sub_overflow(a, b, difference);
#else
    *difference = (long long)((unsigned long long)a - (unsigned long long)b);
    return b < 0 ? *difference <= a : *difference > a;
#endif
}
"""
_MUL = """\
static inline int hyad_mul_overflows(long long a, long long b, long long *product) {
#if defined(__GNUC__) && !defined(__CUDACC__)
    return __builtin_mul_overflow(a, b, product);
#else
    const long long most = 9223372036854775807LL, least = -most - 1;
    *product = (long long)((unsigned long long)a*(unsigned long long)b);
    if (a == 0 || b == 0) return 0;
    if (a > 0) return b > 0 ? a > most/b : b < least/a;
    return b > 0 ? a < least/b : b < most/a;
#endif
}
"""
#: Operations in both branches of an ``if`` that is written as ``c ? x : y``, at most.
CHOICE = 8
#: A loop for threads stands twice if it has at most so many lines; inside another loop, if it has at most so many.
SHORT, REPEATED = 12, 40

NUMBER = "omp_get_thread_num()"  # of the thread that asks

CHECKED = {"+": ("hyad_add_overflows", _ADD), "-": ("hyad_sub_overflows", _SUB), "*": ("hyad_mul_overflows", _MUL)}
CHECKED |= {"neg": CHECKED["-"], "square": CHECKED["*"]}


class BodyPrinter(OperandPrinter):
    """Prints the body of one program; another target overrides the small methods that come first."""

    # ------------------------------------------------------------------ what a target overrides

    marks_apart = True  # whether loops are marked whose arrays do not overlap

    def loop_head(self, index: str, count: str) -> str:
        return f"for (long long {index} = 0; {index} < {count}; {index}++) {{"

    def enough(self, op: Loop, count: Expr, worth: int | Polynomial) -> str:
        """Whether a loop is long enough to run on several threads, or does enough."""
        if isinstance(worth, int):
            return f"{count.at(SHIFT)} >= {2 * worth}"

        def size(v: Var) -> str:
            return (count if v is op.count else self.operand(v)).at(UNARY)

        work = [["%d.0" % max(1, round(c)), *map(size, at)] for at, c in worth.items() if c > 0] or [["1.0"]]
        return f"{count.at(UNARY)}*({' + '.join(map('*'.join, work))}) >= {2 * GRAIN}"

    def on_threads(
        self, op: Loop, enough: str, head: str, body: list[Line], far: str | None, repeated: bool
    ) -> list[Line]:
        """What stands before a loop that runs on several threads where that is worth it: a pragma; or, since OpenMP
        takes some 300 ns to find that it is not, a short loop once more, for threads alone. Gives the loop's body."""
        pragma = f"#pragma omp parallel for num_threads({self.threads})"
        if op.index.name != "part" and uneven(op):  # what waits for a long iteration takes others meanwhile
            pragma += " schedule(guided)"
        self.lines.append(Line(0, "#ifdef _OPENMP"))
        if far is not None or len(body) > (REPEATED if repeated else SHORT):
            noted = "" if far is None else f" reduction(|:{far})"
            self.lines += [Line(0, f"{pragma} if({enough}){noted}"), Line(0, "#endif")]
            return body
        self.emit(f"if ({enough}) {{")
        self.lines.append(Line(0, pragma))
        self.depth += 1
        self.emit(head)
        self.lines += [replace(line, depth=line.depth + 1) for line in body]
        self.emit("}")
        self.depth -= 1
        self.emit("} else")
        self.lines.append(Line(0, "#endif"))
        return [replace(line, text=line.text.replace(NUMBER, "0")) for line in body]

    def workspace_piece(self, elem: Scalar, name: str, offset: str) -> str:
        """The declaration of a piece of the workspace."""
        place = f"work + {offset}" if offset else "work"
        if elem != REAL:
            place = f"({self.ctype(elem)} *)({place})" if offset else f"({self.ctype(elem)} *)work"
        return f"{self.ctype(elem)} *{name} = {place};"

    def pointer_type(self, buffer: Buffer, const: str = "") -> str:
        """The type of what points to elements of a buffer, with what stands between it and a name."""
        return f"{const}{self.ctype(buffer.elem)} *"

    def copy_block(
        self, function: str, to: str, source: str, dims: Sequence[Atom], elem: Scalar, guard: str = ""
    ) -> None:
        """Copies whole arrays or rows, if ``guard`` holds; ``function`` is "memmove" where both lie in one array."""
        self.emit(f"{guard}{function}({to}, {source}, {self.bytes(dims, elem)});")

    def clear_block(self, to: str, dims: Sequence[Atom], elem: Scalar) -> None:
        """Fills an array or a row with zeros."""
        self.emit(f"memset({to}, 0, {self.bytes(dims, elem)});")

    def structured(self, bind: Bind, op: Any) -> None:
        """A binding of data, of a ``while`` or of a call: what ``data.py`` prints."""
        raise NotImplementedError

    def failed(self, number: int) -> str:
        """The statement that ends the call because check ``number`` failed."""
        return f"return {number};"

    # ------------------------------------------------------------------------------ statements

    def statements(self, block: Block, destinations: dict[int, str], binds: Sequence[Bind] | None = None) -> None:
        """A block's bindings, or ``binds`` of them; ``destinations`` are C variables to build its results in."""
        outer, positive = (self.here, self.stored), self.positive
        self.here = self.used_once(block)
        self.stored = self.here.intersection(stored_in(block))
        makers = {v: b for b in block.binds if isinstance(b.op, (If, Loop, Case, While)) for v in b.vars}
        for k, name in destinations.items():
            r = block.results[k]
            if r in makers and self.uses.get(r) == 1:
                self.destination[r] = name
        for bind in block.binds if binds is None else binds:
            self.span = bind.span
            op = bind.op
            for a in self.plan.rows.get(bind, ()):
                self.fixed(a)
            for buffer in self.plan.declare.get(bind, ()):
                self.declare(buffer, bind)
            if isinstance(op, Prim):
                self.prim(bind, op)
            elif isinstance(op, If):
                self.conditional(bind, op)
                self.made.update(dict.fromkeys(bind.vars, bind.span))
            elif isinstance(op, Loop):
                self.loop(bind, op)
                self.made.update(dict.fromkeys(bind.vars, bind.span))
            elif isinstance(op, Check):
                self.check(bind, op)
            else:
                self.structured(bind, op)
        (self.here, self.stored), self.positive = outer, positive

    def used_once(self, block: Block) -> set[Var]:
        """The variables that are used once and in this block itself, not in a region inside it."""
        once: set[Var] = set()
        for bind in block.binds:
            once.update(a for a in atoms_of(bind.op) if isinstance(a, Var) and self.uses.get(a) == 1)
        once.update(a for a in block.results if isinstance(a, Var) and self.uses.get(a) == 1)
        return once

    def check(self, bind: Bind, op: Check) -> None:
        known = op.a in self.indices or op.a in self.positive or isinstance(op.a, Const) and op.a.value >= 0
        twice = op.relation == "in" and not known
        if twice and op.a in self.pending:
            self.materialise(op.a)
        a, b = self.operand(op.a), self.operand(op.b)
        sign, turned = {"==": ("!=", "!="), "<=": (">", "<")}.get(op.relation, (">=", "<="))
        failure = f"{a.at(SHIFT)} {sign} {b.at(SHIFT)}"
        if isinstance(op.a, Const):  # numbers stand on the right
            failure = f"{b.at(SHIFT)} {turned} {a.at(SHIFT)}"
        if twice:
            failure = f"{a.at(SHIFT)} < 0 || {failure}"
            self.positive |= {op.a}
        elif op.relation in ("<", "<=") and isinstance(op.a, Const) and op.a.value >= 0:
            self.positive |= {op.b}
        self.checks.append((op.kind, op.message, bind.span))
        self.emit(f"if ({failure}) {self.failed(len(self.checks))}")
        for size, other in self.plan.sizes.same.get(bind, {}).items():
            self.value[size] = self.operand(other)

    def prim(self, bind: Bind, op: Prim) -> None:
        var = bind.vars[0]
        if isinstance(var.type, Arr):
            self.array_prim(bind, op, var)
            return
        if bind in self.overflows.checked:
            self.checked(bind, op, var)
            return
        if op.name == "get":
            if var in self.ahead:
                return
            self.elements.add(var)
            subs = self.subscripts(op.args[0], op.args[1:])
            expr = self.element(op.args[0], subs)
            if var in self.lone:
                self.support[ALONE] = None
                kind = self.ctype(op.args[0].type.elem)
                expr = replace(expr, text=f"(*(const HYAD_ALONE {kind} *)&{expr.text})")
            if var in self.read_first:
                self.made[var] = self.span
                self.define(var, expr)
                return
        elif op.name in ("undef", "zeros"):
            expr = self.literal(0, var.type)
        elif op.name == "select":
            expr = fill("{0} ? {1} : {2}", self.fit(op.args))
        elif bind in self.overflows.plain:
            a, b = self.fit(op.args)
            expr = fill("{0}/{1}" if op.name == "//" else "{0} % {1}", [a, b])
            if op.name == "//" and b.text.isdigit():
                expr = replace(expr, quotient=(a, int(b.text)))
        elif var.type == INT and op.name in ("//", "%") and power_of_two(op.args[1]):  # down, from below 0 too
            (a,), n = self.fit(op.args[:1]), op.args[1].value  # type: ignore[union-attr]
            a = replace(a, text=a.at(PRIMARY), prec=PRIMARY, total=None)  # or compilers ask whether it is meant so
            expr = fill(f"{{0}} >> {n.bit_length() - 1}" if op.name == "//" else f"{{0}} & {n - 1}", [a])
        else:
            template, operands = self.converted(op)
            whole = var.type == INT and op.name in ("+", "-", "*") and bind not in self.overflows.wrapped
            expr = integer(op.name, *operands) if whole else fill(template, operands)
        if op.name == "undef":
            self.value[var] = expr
        else:
            dear = bind in self.overflows.plain and type(op.args[1]) is not Const
            self.settle(var, expr, dear, bind.soft)

    def checked(self, bind: Bind, op: Prim, var: Var) -> None:
        """Int arithmetic that a subscript or a size depends on: the call ends where it does not fit."""
        name, operands = CHECKED[op.name]
        if op.name == "square":
            self.fixed(op.args[0])
        a, b = self.fit([*op.args, *op.args][:2] if op.name != "neg" else [Const(0, INT), *op.args])
        self.support[self.support_text(operands)] = None
        result = self.names.fresh(var.name)
        self.emit(f"long long {result};")
        self.checks.append(("bounds", OVERFLOW, bind.span))
        self.emit(f"if ({name}({a.text}, {b.text}, &{result})) {self.failed(len(self.checks))}")
        self.value[var] = Expr(result)
        self.made[var] = self.span

    # ---------------------------------------------------------------------------------- memory

    @cached_property
    def zeros(self) -> set[Var]:
        """The arrays of zeros."""
        return {x.vars[0] for x in all_binds(self.program.body) if is_zeros(x)}

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
            if len(buffer.slot[0]) > 2:  # one for each thread
                each = self.of_a_thread(buffer.slot[0], size)
                own = f"{self.thread}*({self.polynomial(each).text})"
                text = own if text == "0" else f"{text} + {own}"
            self.emit(self.workspace_piece(buffer.elem, name, "" if text == "0" else text))
            return
        length = max(math.prod(int(d.value) for d in buffer.dims), 1)
        elem = self.ctype(buffer.elem)
        self.stack += length * {"float": 4, "int": 4}.get(elem, 8)
        start = f"{elem} {name}[{length}]"
        op = bind.op
        own = isinstance(op, Prim) and self.plan.place[bind.vars[0]].buffer is buffer
        if own and op.name == "zeros":
            self.emit(f"{start} = {{0}};")
            self.initialised = buffer
        elif own and op.name == "array" and op.args and not is_array(op.args[0]):
            self.initialised = buffer
        else:
            self.emit(f"{start} = {{0}};" if buffer.partial or buffer.blank else f"{start};")

    def of_a_thread(self, pool: Any, size: dict) -> dict:
        """The room that each thread has of a pool of its own pieces: with a gap, so that two write to no line of the
        cache in turn."""
        each = {k: c * self.plan.pools[pool] for k, c in size.items()}
        return {**each, (): each.get((), 0) + (LINE if self.dtype == "f64" else 2 * LINE)}

    def copy(self, source: Atom | Place, target: Atom | Place) -> None:
        """``target = source``, whole arrays or rows; nothing where there is nothing to copy."""
        place = source if isinstance(source, Place) else self.plan.of(source)
        origin = self.plan.resolve(place)[0]
        if origin.blank:
            return
        to = target if isinstance(target, Place) else self.plan.of(target)
        buffer, path, dims = self.plan.resolve(to)
        self.changes(buffer)
        if isinstance(source, Var) and source in self.zeros:
            self.clear_block(self.pointer_to(target), dims[len(path) :], buffer.elem)
            return
        function = "memmove" if origin is buffer else "memcpy"
        to, source = self.pointer_to(target), self.pointer_to(source)
        self.copy_block(function, to, source, dims[len(path) :], buffer.elem)

    def read_before_moves(self, block: Block, todo: list[tuple]) -> None:
        """Results that read what the moves at a block's end write have lines of their own before."""
        written = {self.plan.resolve(m.target)[0] for m in self.plan.moves.get(block, ())}
        for k, (target, what, expr, elem, form) in enumerate(todo):
            if written & expr.reads:
                name = self.names.fresh("next")
                self.emit(f"const {self.ctype(elem)} {name} = {expr.text};")
                todo[k] = (target, what, Expr(name), elem, form)

    def move(self, block: Block) -> None:
        for move in self.plan.moves.get(block, ()):
            self.copy(move.source, move.target)

    def array_prim(self, bind: Bind, op: Prim, var: Var) -> None:
        place = self.plan.place[var]
        buffer, path, dims = self.plan.resolve(place)
        if op.name == "get":
            self.view(var, op)
        elif op.name == "zeros":
            if self.initialised is not place.buffer and var not in self.plan.zero_rows:
                self.changes(buffer)
                self.clear_block(self.pointer_to(place), dims[len(path) :], buffer.elem)
        elif op.name == "array":
            self.array(op, place, buffer)
        elif op.name in ("update", "add-at"):
            self.store(bind, op, var)
        elif op.name == "product":
            self.product(op, place, buffer)

    def product(self, op: Prim, place: Place, buffer: Buffer) -> None:
        """A dense matrix product: a call of the function that asks a BLAS where it is worth it."""
        a, b, *sizes, s, t = op.args
        self.support[product(self.dtype)] = None
        self.changes(buffer)
        n, m, terms = (self.fixed(x).text for x in sizes)
        rows = [self.fixed(type_of(x).dims[1]).text for x in (a, b)]
        factors = [f"{self.pointer_to(x)}, {row}, {int(turned.value)}" for x, row, turned in zip((a, b), rows, (s, t))]
        self.emit(f"hyad_product({n}, {m}, {terms}, {', '.join(factors)}, {self.pointer_to(place)});")

    def view(self, var: Var, op: Prim) -> None:
        """A row: subscripts to be written out at each use, or a pointer where a person named it."""
        for a in op.args[1:]:
            self.fixed(a)
        if var.given and self.uses.get(var, 0) > 1:
            text = self.pointer_to(var)
            name = self.names.fresh(var.name)
            declaration = f"{self.pointer_type(self.plan.root(var), 'const ')}{name} = {text};"
            self.lines.append(Line(self.depth, declaration, self.span, var))
            self.pointer[var] = name

    def array(self, op: Prim, place: Place, buffer: Buffer) -> None:
        if buffer.kind == "table":
            return
        if self.initialised is place.buffer:
            values = ", ".join(self.as_type(a, buffer.elem).text for a in op.args)
            text = f"{self.ctype(buffer.elem)} {self.buffer_name[buffer]}[{len(op.args)}] = {{{values}}};"
            for line in wrapped(text, WIDTH - 4 * self.depth):
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
            if source[0] is where[0] and same_atoms(source[1], where[1]):
                continue
            self.copy(a, target)

    def store(self, bind: Bind, op: Prim, var: Var) -> None:
        """``update`` and ``add-at``: one element or one row changes."""
        array, value, adding = op.args[0], op.args[-1], op.name == "add-at"
        if bind not in self.plan.in_place:
            self.copy(array, var)
        buffer = self.plan.root(var)
        if not is_array(value):
            *subs, new = self.subscripts(array, op.args[1:])
            self.changes(buffer)
            if type_of(value) == INT and buffer.elem == REAL and isinstance(value, Const):
                new = self.real_literal(value.value)
            target = self.element_of(var, subs)
            if var in self.lone:
                self.support[IN_ORDER] = None
                target = f"*(HYAD_IN_ORDER {self.ctype(buffer.elem)} *)&{target}"
            self.emit(f"{added(target, new) if adding else self.assignment(target, new)};")
            return
        at = self.plan.of(var)
        made, row = (self.plan.resolve(p) for p in (self.plan.of(value), Place(at.buffer, at.subs + op.args[1:-1])))
        if not adding and made[0] is row[0] and same_atoms(made[1], row[1]):
            return  # it was made where it belongs
        subs = [self.fixed(a) for a in op.args[1:-1]]
        self.changes(buffer)
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        dims = value.type.dims if isinstance(value, Var) else type_of(value).dims
        if adding:
            self.names.enter()
            k = self.names.fresh("k")
            source, start, _, _ = self.address(value)
            left = f"{base}[{plus(offset, Expr(k)).text}]"
            self.emit(self.loop_head(k, self.length(dims).text))
            self.emit(f"    {left} += {source}[{plus(start, Expr(k)).text}];")
            self.emit("}")
            self.names.leave()
        else:
            origin = self.plan.root(value)
            if origin.blank:
                return
            function = "memmove" if origin is buffer else "memcpy"
            to = f"{base} + {offset.at(ADD)}" if offset else base
            if value in self.zeros:
                self.clear_block(to, dims, buffer.elem)
                return
            self.copy_block(function, to, self.pointer_to(value), dims, buffer.elem)

    # ------------------------------------------------------------------------------ control flow

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

    def slots_for(self, bind: Bind, op: If | Case) -> dict[int, tuple[str, str]]:
        """For each scalar result of an ``if`` its C variable, and the declaration that it needs ('' for none)."""
        slots: dict[int, tuple[str, str]] = {}
        blocks = blocks_of(op)
        taken: set[str] = set()
        for k, var in enumerate(bind.vars):
            if isinstance(var.type, Arr):
                continue
            blank = any(_is_undef(block, block.results[k]) for block in blocks)
            if var in self.destination:
                slots[k] = (self.destination[var], "")
                if blank:
                    slots[k] = (self.destination[var], f"{self.destination[var]} = {self.literal(0, var.type).text};")
                continue
            for block in blocks:
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
        before = self.ahead
        todo = [op] if self.read_first else []
        while todo:
            inner = todo.pop()
            for x in (*inner.then.binds, *inner.orelse.binds):
                if isinstance(x.op, If):
                    todo.append(x.op)
                elif not before.issuperset(x.vars) and self.read_first.issuperset(x.vars):
                    self.prim(x, x.op)
                    self.ahead = self.ahead.union(x.vars)
        self.either(bind, op)
        self.ahead = before

    def either(self, bind: Bind, op: If) -> None:
        plain = not op.then.binds and not op.orelse.binds
        scalar = not any(isinstance(v.type, Arr) for v in bind.vars)
        if plain and scalar and bind.vars:
            self.ternaries(bind, op)
            return
        if scalar and (self.short_circuit(bind, op) or self.short_choice(bind, op)):
            return
        cond = self.operand(op.cond)
        span = bind.span
        self.flush_all()
        slots = self.slots_for(bind, op)
        self.declare_slots(slots)
        then = self.branch(op.then, bind, slots)
        orelse = self.branch(op.orelse, bind, slots)
        self.span = span
        if not then and orelse:
            then, orelse, cond = orelse, [], negated(cond)
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
        self.bind_slots(bind, slots)

    def bind_slots(self, bind: Bind, slots: dict[int, tuple[str, str]]) -> None:
        """After the branches: where the scalar results are."""
        for k, (name, _) in slots.items():
            self.value[bind.vars[k]] = Expr(name, PRIMARY, frozenset({name}))
            self.slot[bind.vars[k]] = name

    def declare_slots(self, slots: dict[int, tuple[str, str]]) -> None:
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
            for text in wrapped(f"{kind} {', '.join(names)};", WIDTH - 4 * self.depth):
                self.emit(text)

    def branch(
        self, block: Block, bind: Bind, slots: dict[int, tuple[str, str]], before: Callable[[], None] | None = None
    ) -> list[Line]:
        old = self.captured()
        self.enter()
        if before is not None:
            before()
        fresh = {k: name for k, (name, declaration) in slots.items() if declaration or bind.vars[k] in self.destination}
        self.statements(block, fresh)
        self.span = bind.span
        todo = []
        for k, (name, _) in slots.items():
            if not _is_undef(block, block.results[k]):
                var = bind.vars[k]
                r = block.results[k]
                todo.append((name, name, self.as_type(r, var.type), var.type, self.made.get(r)))
        self.read_before_moves(block, todo)
        self.move(block)
        self.assign(todo)
        self.leave()
        lines, self.lines = self.lines, old
        return lines

    def ternaries(self, bind: Bind, op: If) -> None:
        cond = self.operand(op.cond)
        if len(bind.vars) > 1 and cond.prec != PRIMARY:
            cond = self.define(Var("cond", BOOL), cond)
        for k, var in enumerate(bind.vars):
            then, orelse = op.then.results[k], op.orelse.results[k]
            self.one_of(var, cond, self.as_type(then, var.type), self.as_type(orelse, var.type))

    def one_of(self, var: Var, cond: Expr, then: Expr, orelse: Expr) -> None:
        """``var`` is ``cond ? then : orelse``."""
        expr = fill("{0} ? {1} : {2}", [cond, then, orelse])
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
        values = self.inline([inner], BOOL)
        if values is None:
            return False
        self.span = bind.span
        cond, *_ = self.fit([op.cond])
        text = f"{cond.at(EQUAL)} {operator} {values[0].at(EQUAL)}"
        self.settle(bind.vars[0], Expr(text, level, all_reads([cond, *values])))
        return True

    def inline(self, blocks: Sequence[Block], t: Scalar) -> list[Expr] | None:
        """The results of blocks as expressions, if they are short and need no lines of their own."""
        if any(not self.overflows.checked.isdisjoint(all_binds(block)) for block in blocks):
            return None
        old = self.captured()
        waiting = self.pending.copy(), {what: readers.copy() for what, readers in self.readers.items()}
        values = []
        for block in blocks:
            self.enter()
            self.statements(block, {})
            values.append(self.as_type(block.results[0], t))
            self.leave()
        lines, self.lines = self.lines, old
        if not lines and sum(len(e.text) for e in values) <= WHOLE:
            return values
        self.pending, self.readers = waiting  # lines are dropped, and what waited may have gone into them
        for x in (x for block in blocks for x in all_binds(block)):
            for v in x.vars:
                self.slot.pop(v, None)
        return None

    def short_choice(self, bind: Bind, op: If) -> bool:
        """An ``if`` for one number whose branches are short: ``c ? x : y``, which computes one of them, too. False
        where a branch is long or needs lines of its own, or this is the last of a chain."""
        if len(bind.vars) != 1 or bind.vars[0] in self.destination:
            return False
        if any(_is_undef(block, block.results[0]) for block in (op.then, op.orelse)):
            return False
        nested = any(type(x.op) is If for block in (op.then, op.orelse) for x in block.binds)
        if nested or _size_if_plain(op.then) + _size_if_plain(op.orelse) > CHOICE:
            return False
        values = self.inline((op.then, op.orelse), bind.vars[0].type)
        if values is None:
            return False
        self.span = bind.span
        self.one_of(bind.vars[0], self.operand(op.cond), *values)
        return True

    def loop(self, bind: Bind, op: Loop) -> None:
        span = bind.span
        if self.zero_fill(bind, op):
            return
        count = self.operand(op.count)
        if count.reads or len(count.text) > 20 or re.search(r"[/%] ?[^\d ]", count.text):
            count = self.define(Var("count", INT), count)
        inits, before = self.start(bind, op)
        outer = self.forms, self.abreast, self.far, self.serial, self.lanes
        self.abreast, self.serial = self.math == "vector" and calls_abreast(op), serial(op)
        self.lanes = self.marks_apart and in_lanes(op, self.math)
        far = None
        if self.abreast and calls_waves(op) and repeatable(self.plan, bind, op):
            far = self.names.fresh("far")
        now = self.abreast, far, self.serial, self.lanes
        self.forms, self.far = {} if now != outer[1:] else self.forms, far
        index, body = self.body(bind, op, inits)
        self.forms, self.abreast, self.far, self.serial, self.lanes = outer
        if body:
            starts = self.watch(far, op, inits) if far is not None else {}
            if bind in self.plan.parallel:
                enough = self.enough(op, count, self.plan.parallel[bind])
                body = self.on_threads(op, enough, self.loop_head(index, count.at(SHIFT)), body, far, self.depth > 1)
            elif self.marks_apart and apart(self.plan, bind, op, self.swapped):
                self.support[APART] = None
                self.emit("HYAD_APART", span)
            alone = self.marks_apart and bind not in self.plan.parallel
            if alone and any(type(b.op) is Loop and chooses(b.op) for b in op.body.binds):
                self.support[UNKNOWN] = None
                self.emit("HYAD_UNKNOWN;", span)
            if alone and in_lanes(op, self.math):
                self.support[LANES] = None
                if chooses(op):
                    self.support[CHOOSING] = None
                self.emit("HYAD_LANES", span)
            self.emit(self.loop_head(index, count.at(SHIFT)), span)
            self.lines += body
            self.emit("}")
            if far is not None:
                self.again(far, starts, self.loop_head(index, count.at(SHIFT)), body, span)
        self.after(bind, before)

    def zero_fill(self, bind: Bind, op: Loop) -> bool:
        """A loop that does nothing but store zeros, or loops in one another that do: ``memset``."""
        if not is_zeros(bind) or bind in self.plan.parallel:
            return False
        if bind.vars[0] in self.plan.zero_rows:
            return True
        place = self.plan.place[bind.vars[0]]
        if not all(type(d) is Const or d in self.program.dims or d in self.positive for d in bind.vars[0].type.dims):
            return False  # fewer than no iterations are none
        inner: Loop | None = op
        while inner is not None:  # each row lies where it belongs, and nothing has been copied
            if self.plan.moves.get(inner.body) or self.plan.early.get(inner.body):
                return False
            inner = inner.body.binds[0].op if inner.body.binds else None
        buffer, path, dims = self.plan.resolve(place)
        self.changes(buffer)
        self.clear_block(self.pointer_to(place), dims[len(path) :], buffer.elem)
        return True

    def watch(self, far: str, op: Loop, inits: dict[int, Expr]) -> dict[str, str]:
        """Before a loop that may be run again: what notes that it must be, and what its accumulators start from."""
        self.emit(f"unsigned long long {far} = 0;")
        starts = {}
        for k in inits:
            name, start = self.value[op.accs[k]].text, self.names.fresh("start")
            self.emit(f"const {self.ctype(op.accs[k].type)} {start} = {name};")
            starts[name] = start
        return starts

    def again(self, far: str, starts: dict[str, str], head: str, body: list[Line], span: Span | None) -> None:
        """The loop once more, by the C library's functions, where an argument was too large for those of hyad's own."""
        self.emit(f"if ({far} >> 63) {{", span)
        self.depth += 1
        for name, start in starts.items():
            self.emit(f"{name} = {start};")
        self.emit(head, span)
        self.lines += [replace(line, text=by_library(line.text), depth=line.depth + 1) for line in body]
        self.emit("}")
        self.depth -= 1
        self.emit("}")

    def body(self, bind: Bind, op: Loop, inits: dict[int, Expr]) -> tuple[str, list[Line]]:
        """The name of a loop's index, and the lines of one iteration."""
        old = self.captured()
        self.enter()
        index = self.names.fresh(op.index.name)
        self.value[op.index] = Expr(index)
        self.indices.add(op.index)
        if bind in self.plan.parallel and any(len(pool) > 2 for pool in self.plan.pools):
            self.thread = self.names.fresh("thread")
            own = Line(self.depth, f"const long long {self.thread} = {NUMBER};", bind.span)
        else:
            own = None
        self.iteration(bind, op, inits, bind.vars, index)
        self.leave()
        lines, self.lines = self.lines, old
        if own is not None and any(f"{self.thread}*(" in line.text for line in lines):
            lines.insert(0, own)
        return index, lines

    def after(self, bind: Bind, before: dict[Buffer, str]) -> None:
        """After a loop: accumulators that changed places and are read again go where they are looked for."""
        last, self.swapped = self.swapped, before
        accs, swaps = bind.op.accs, self.plan.swaps[bind]
        places = {k: self.plan.of(accs[k]) for k in swaps if self.uses.get(bind.vars[k])}
        for k, place in places.items():
            for j, other in places.items():
                if other.buffer is swaps[k]:  # it may lie where this one is looked for
                    here = f"if ({last[other.buffer]} == {self.pointer_to(place)}) "
                    self.go_home(other, last[other.buffer], here)
                    self.emit(f"{here}{last[other.buffer]} = {self.pointer_to(other)};")
            self.go_home(place, last[place.buffer], f"if ({last[place.buffer]} != {self.pointer_to(place)}) ")

    def go_home(self, place: Place, name: str, guard: str) -> None:
        """Copy what a pointer points to where it is looked for."""
        self.copy_block("memcpy", self.pointer_to(place), name, place.buffer.dims, place.buffer.elem, guard)

    def start(self, bind: Bind, op: Loop | While) -> tuple[dict[int, Expr], dict[Buffer, str]]:
        """Before a loop: its accumulators, the scalar ones with their starts, and what was swapped around it."""
        n = len(op.accs)
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
            home, name = self.pointer_to(place), self.names.fresh(op.accs[k].name)
            self.emit(f"{self.pointer_type(self.plan.root(op.accs[k]))}{name} = {home};")
            self.swapped[place.buffer] = name
        return inits, before

    def iteration(self, bind: Bind, op: Loop | While, inits: dict[int, Expr], outs: Sequence[Var], index: str) -> None:
        """The body of a loop; ``outs`` are the variables of its results."""
        n, span, swaps = len(op.accs), bind.span, self.plan.swaps[bind]
        if self.marks_apart:
            if isinstance(op, Loop):
                self.counts[op.index] = op.count
            first, alone, several_wanted = masked(self.plan, op, self.uses, self.counts)
            self.lone |= turned(self.plan, op, self.uses) | overtaken(self.plan, op, self.uses) | alone
            self.read_first |= first
            if several_wanted:
                self.support[READ_FIRST] = None
            if several(self.plan, op, outs):
                self.support[WHOLE_LOOPS] = None
                if patterned(op):
                    self.support[WHOLE_PATTERNS] = None
        for move in self.plan.early[op.body].values():
            self.copy(move.source, move.target)
        self.statements(op.body, {})
        self.span = span
        todo = []
        for k, r in enumerate(op.body.results):
            var = outs[k]
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
        self.read_before_moves(op.body, todo)
        self.move(op.body)
        self.assign(todo)
        self.span = span
        buffers = {self.plan.of(op.accs[k]).buffer for k in swaps}
        aside = ""
        for k, made in swaps.items():
            old, new = self.swapped[self.plan.of(op.accs[k]).buffer], self.swapped.get(made) or self.buffer_name[made]
            if not aside:
                aside = self.names.fresh("swap")
                self.emit(f"{self.pointer_type(made)}{aside} = {old};")
            self.emit(f"{old} = {new};")
            if made not in buffers:
                self.emit(f"{new} = {aside};")
                aside = ""


def power_of_two(a: Atom) -> bool:
    return type(a) is Const and a.value > 1 and a.value & (a.value - 1) == 0


def stored_in(block: Block) -> list[Var]:
    """The scalars that a block stores in arrays or hands out, as they are."""
    stores = (x.op for x in block.binds if type(x.op) is Prim and x.op.name in ("update", "add-at"))
    return [a for a in (*block.results, *(op.args[-1] for op in stores)) if type(a) is Var]


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


def _is_one_if(lines: list[Line], depth: int) -> bool:
    """Whether lines are one ``if`` statement, to be joined to an ``else``."""
    if not lines[0].text.startswith("if (") or not lines[0].text.endswith("{"):
        return False
    flat = [line.text for line in lines[1:] if line.depth == depth]
    return bool(flat) and flat[-1] == "}" and all(t.startswith("} else") for t in flat[:-1])
